"""All that a case may use: the installation, traffic, nodes to kill, and a place for its figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.bench.measures.machine import MachineCpu
from e2e.faults.traffic.load import Clients
from e2e.kubernetes.machines import Machines
from e2e.kubernetes.place import Manifest, Place, condition, is_true
from e2e.kubernetes.release import CLUSTER, Images, Release
from e2e.kubernetes.report import Figure
from e2e.kubernetes.sight import Sight, look, recorded
from e2e.kubernetes.traffic import Traffic, traffic, write_certificates

HEALTHY_S: Final = 180.0


@dataclass
class Stage:
    """One case on the installation.

    Attributes:
        number: The number of the case. No other case of this namespace has it. It is in the topic's name.
        release: The installation.
        clients: The processes that send and read.
        machines: The nodes.
        out: The directory of the run.
        directory: The directory for the files of the case.
        previous: The images and the chart of the version before, if they are there.
    """

    number: int
    release: Release
    clients: Clients
    machines: Machines
    out: Path
    directory: Path
    previous: Images | None = None
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _first_sight: Sight | None = None

    @property
    def place(self) -> Place:
        """The namespace."""
        return self.release.place

    # ---- what it reports ----

    def figure(self, name: str, value: float, unit: str = "s", limit: float | None = None) -> None:
        """Add a figure that was measured."""
        self.figures.append(Figure(name, value, unit, limit))

    def processors(self, used: MachineCpu) -> None:
        """Add how busy the machine's processors were. A pause counts for little if they were full."""
        self.figure("processors busy", 100 * used.busy_s / used.total_s, "%")
        self.figure("taken by other machines", 100 * used.stolen_s / used.total_s, "%")

    def note(self, text: str) -> None:
        """Note what was done or seen."""
        self.notes.append(text)

    def problem(self, text: str) -> None:
        """Note that something is wrong. The case fails, and continues."""
        self.problems.append(text)

    async def look(self, name: str) -> Sight:
        """Look at all that reports the state of the cluster, and keep the text. Metrics are compared with the first
        look of the case.
        """
        seen = await look(self.place)
        await asyncio.to_thread((self.directory / f"seen-{name}.txt").write_text, seen.render(self._first_sight))
        self._first_sight = self._first_sight or seen
        return seen

    def recorded(self) -> AbstractAsyncContextManager[None]:
        """Keep each change of a condition for as long as the block lasts."""
        return recorded(self.place, self.directory / "conditions.txt")

    # ---- traffic ----

    async def certificates(self) -> dict[str, str]:
        """Write a client's certificate into files, and return their paths."""
        return await write_certificates(self.place, self.out / "client-tls")

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[Traffic]:
        """Send and read messages of a new topic for as long as the block lasts.

        If they are not in order, the case fails.
        """
        tls = await self.certificates()
        async with traffic(self.place, self.clients, self.number, self.directory, tls) as running:
            yield running
        self.problems += running.judged["problems"]
        for name in ("sent", "acknowledged", "failed", "delivered"):
            self.counts[name] = running.judged[name]

    # ---- the cluster ----

    async def cluster(self) -> Manifest:
        """Read the BrokerCluster."""
        found = await self.place.get("brokerclusters", CLUSTER)
        assert found is not None, "it was installed"
        return found

    async def pods(self) -> list[Manifest]:
        """Read the brokers' pods."""
        return await self.place.list("pods", f"seriatim.dev/cluster={CLUSTER}")

    async def pod_of(self, broker: str) -> Manifest:
        """Read the pod of a broker, such as `g0-1`, that is not being deleted.

        Raises:
            LookupError: The broker has no such pod.
        """
        group, _, slot = broker.rpartition("-")
        for pod in await self.pods():
            labels = pod["metadata"]["labels"]
            is_it = (labels.get("seriatim.dev/group"), labels.get("seriatim.dev/slot")) == (group, slot)
            if is_it and not pod["metadata"].get("deletionTimestamp"):
                return pod
        raise LookupError(f"{broker} has no pod")

    async def node_of(self, broker: str) -> str:
        """Return the node on which a broker runs."""
        return str((await self.pod_of(broker))["spec"]["nodeName"])

    async def wait_healthy(self, deadline_s: float = HEALTHY_S) -> float:
        """Wait until the BrokerCluster is Stable, all groups are complete and all pods are ready. Return how many
        seconds it took.

        Raises:
            StillNotError: They are not in time.
        """
        seen = [""]

        async def healthy() -> bool:
            seen[0] = await self.unhealthy()
            return not seen[0]

        return await self.place.wait_until("the cluster is healthy", healthy, deadline_s, lambda: seen[0])

    async def unhealthy(self) -> str:
        """Say what is wrong; empty if nothing is."""
        cluster = await self.place.get("brokerclusters", CLUSTER)
        if cluster is None:
            return "there is no BrokerCluster"
        wanted = cluster["spec"]["groups"] * cluster["spec"].get("membersPerGroup", 2)
        ready = [
            pod["metadata"]["name"]
            for pod in await self.pods()
            if is_true(pod, "Ready", current=False) and not pod["metadata"].get("deletionTimestamp")
        ]
        if len(ready) != wanted:
            return f"{len(ready)} of {wanted} pods are ready: {', '.join(sorted(ready))}"
        not_whole = [
            group["metadata"]["name"]
            for group in await self.place.list("brokergroups")
            if not is_true(group, "Whole", current=False)
        ]
        if not_whole:
            return f"not complete: {', '.join(not_whole)}"
        for name in ("Ready", "Stable"):
            if not is_true(cluster, name):
                conditions = {c["type"]: f"{c['status']} {c['reason']} {c.get('message', '')}".strip()
                              for c in (cluster.get("status") or {}).get("conditions") or ()}  # fmt: skip
                return f"{name} is not True: {conditions}"
        return ""

    async def wait_until(self, what: str, holds: Callable[[], Awaitable[bool]], deadline_s: float) -> float:
        """Call `Place.wait_until`."""
        return await self.place.wait_until(what, holds, deadline_s)

    async def broker_condition(self, name: str, type_: str) -> dict[str, Any]:
        """Read a condition of a Broker object."""
        return condition(await self.place.get("brokers", name), type_)
