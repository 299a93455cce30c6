"""The traffic of a case: the fault suite's producer and reader run on this host, with TLS and the cluster's names.

They use the brokers' advertised addresses as a pod does. Their histories are judged at the end of a case.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, get_args

from seriatim import Admin, Client, DelayedStats, GroupDescription, Tls, TopicDescription, TopicSettings
from seriatim.history import HistoryWriter, check, render
from seriatim_api.errors import DeadlineExceededError, SeriatimError

from e2e.faults.kinds.fault import MIN_COPIES, lacks_copies
from e2e.faults.report import judge
from e2e.faults.schedule import Workload
from e2e.faults.traffic.load import Clients, Load, Role
from e2e.kubernetes.place import Manifest, Place, condition, is_true
from e2e.kubernetes.release import CLUSTER, topic_manifest
from tools.kubernetes.errors import ClusterError

WORKLOAD: Final = Workload("kubernetes", partitions=4, rate=500.0)
TOPIC_READY_S: Final = 60.0
TWO_COPIES_S: Final = 120.0
FILES: Final = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}


def bootstrap_of(place: Place) -> str:
    """Return the address of the cluster's Service, with which clients begin."""
    return f"{CLUSTER}.{place.namespace}.svc:7100"


async def write_certificates(place: Place, directory: Path) -> dict[str, str]:
    """Write a client's certificate from its Secret into files.

    Raises:
        ClusterError: There is no such Secret.
    """
    secret = await place.get("secrets", f"{CLUSTER}-client-tls")
    if secret is None:
        raise ClusterError(f"there is no Secret {CLUSTER}-client-tls")
    return await asyncio.to_thread(_write, secret["data"], directory)


def _write(data: Mapping[str, str], directory: Path) -> dict[str, str]:
    directory.mkdir(exist_ok=True, mode=0o700)
    paths = {}
    for name, key in FILES.items():
        path = directory / key
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(data[key]))
        paths[name] = str(path)
    return paths


class TopicObjects:
    """Makes topics as users of Kubernetes do, and describes them as the brokers do.

    Args:
        place: The namespace of the objects.
        admin: The `Admin` of the brokers.
    """

    def __init__(self, place: Place, admin: Admin) -> None:
        self._place = place
        self._admin = admin

    async def create_topic(self, name: str, partition_count: int, settings: TopicSettings) -> None:
        """Apply a Topic, and wait until it is Ready."""
        durability = "Flushed" if settings.flush else "Replicated"
        await self._place.apply(topic_manifest(self._place.namespace, name, partition_count, durability=durability))
        await wait_topic_ready(self._place, name)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Call `Admin.describe_topic`."""
        return await self._admin.describe_topic(name)

    async def delayed_stats(self, topic: str) -> list[DelayedStats]:
        """Call `Admin.delayed_stats`."""
        return await self._admin.delayed_stats(topic)

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        """Call `Admin.describe_group`."""
        return await self._admin.describe_group(topic, group)


async def wait_topic_ready(place: Place, name: str, deadline_s: float = TOPIC_READY_S) -> float:
    """Wait until a Topic is Ready. Return how many seconds it took.

    Raises:
        StillNotError: It is not Ready in time.
    """
    seen: list[Manifest | None] = [None]

    async def ready() -> bool:
        seen[0] = await place.get("topics", name)
        return is_true(seen[0], "Ready")

    return await place.wait_until(
        f"topic {name} is Ready", ready, deadline_s, lambda: str((seen[0] or {}).get("status"))
    )


class Traffic:
    """One case's traffic while it runs.

    Attributes:
        load: Producer and reader, and what they said.
        judged: The fields of the judgement. They are set at the end.
        is_restarted: Whether its clients were killed and started again.
    """

    def __init__(self, place: Place, load: Load, history: HistoryWriter) -> None:
        self._place = place
        self._history = history
        self.load = load
        self.judged: dict[str, Any] = {}
        self.is_restarted = False
        self._struck_at = 0.0

    async def master(self, partition: int = 0) -> str:
        """Return the broker that accepts a partition's messages now, such as `g0-1`."""
        return (await self.load.observer.look()).chains[partition].open_segment.members[0]

    @asynccontextmanager
    async def struck(self, what: str, victim: str) -> AsyncIterator[None]:
        """Note in the history that something is broken or changed for as long as the block lasts.

        Gaps count from its begin.
        """
        self._struck_at = time.monotonic()
        self._history.fault(what, victim, phase="inject")
        try:
            yield
        finally:
            self._history.fault(what, victim, phase="heal")

    async def start_again(self) -> None:
        """Kill the clients, and start them again, as administrators do with programs that have ended."""
        self.is_restarted = True
        for role in get_args(Role):
            await self.load.kill(role)
            await self.load.start_again(role)

    async def gap_s(self) -> float:
        """Wait until messages flow. Return the longest time since the last fault in which a partition acknowledged
        nothing.

        Raises:
            DeadlineExceededError: Messages do not flow in time.
        """
        await self.load.goes_on(200)
        return await self.load.gap_s(self._struck_at)

    def hand_over_s(self) -> float:
        """Return the longest hand-over since the last fault: see `Load.hand_over_s`. Call `gap_s` first."""
        return self.load.hand_over_s(self._struck_at)

    async def has_two_copies(self, deadline_s: float = TWO_COPIES_S) -> float:
        """Wait until the brokers and the Topic say that all of the topic has two copies. Return how many seconds it
        took.

        Raises:
            StillNotError: A segment lacks a copy, or the Topic does not say so.
        """
        lacking = ""

        async def whole() -> bool:
            nonlocal lacking
            try:
                lacking = lacks_copies(await self.load.observer.look(), MIN_COPIES)
            except SeriatimError as error:
                lacking = str(error)
            if not lacking:
                topic = await self._place.get("topics", self.load.topic)
                lacking = "" if is_true(topic, "ChainHealthy") else f"the Topic says {condition(topic, 'ChainHealthy')}"
            return not lacking

        what = f"all of {self.load.topic} has two copies"
        return await self._place.wait_until(what, whole, deadline_s, lambda: lacking)


@asynccontextmanager
async def traffic(
    place: Place, clients: Clients, case: int, directory: Path, tls: dict[str, str]
) -> AsyncIterator[Traffic]:
    """Send and read messages of a new topic for as long as the block lasts. Then drain and judge.

    The directory must exist. It gets the histories. Afterwards `judged["problems"]` says what is wrong with the
    history.

    Raises:
        SeriatimError, StillNotError, WorkerError: The traffic does not begin, or does not drain.
    """
    bootstrap = bootstrap_of(place)
    async with Client.connect(bootstrap, name="suite", tls=Tls(**tls)) as client:
        load = Load(clients, TopicObjects(place, client.admin()), (bootstrap,), case, WORKLOAD, directory, tls)
        with HistoryWriter(directory / "suite.jsonl", "suite") as history:
            running = Traffic(place, load, history)
            drained = False
            try:
                await load.begin()
                yield running
                await load.stop()
                drained = True
            finally:
                await load.end()
                for group in load.groups:
                    history.end(group, topic=load.topic, drained=drained)
    running.judged = await asyncio.to_thread(_judge, directory, is_restarted=running.is_restarted)


def _judge(directory: Path, *, is_restarted: bool) -> dict[str, Any]:
    report = check(sorted(directory.glob("*.jsonl")))
    (directory / "judgement.txt").write_text(render(report) + "\n")
    return judge(report, producer_killed=is_restarted)


async def first_message(place: Place, topic: str, tls: dict[str, str], deadline_s: float) -> None:
    """Send one message. Try again until it is accepted.

    Raises:
        DeadlineExceededError: It was not accepted in time.
    """
    until = time.monotonic() + deadline_s
    last = ""
    while time.monotonic() < until:
        try:
            async with (
                asyncio.timeout(until - time.monotonic()),
                Client.connect(bootstrap_of(place), name="first", tls=Tls(**tls)) as client,
                client.producer(topic) as producer,
            ):
                await (await producer.send(b"0 first", partition=0))
                return
        except (SeriatimError, TimeoutError) as error:
            last = str(error)
            await asyncio.sleep(0.1)
    raise DeadlineExceededError(f"no message was accepted within {deadline_s:g} s: {last}")
