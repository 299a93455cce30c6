"""The table of alarms: for each planned act and each fault, the Warnings of the operator that it gives. All others are
an error.

The kubelet, the scheduler and the controllers of Kubernetes post Warnings of their own. They are only counted.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from e2e.kubernetes import coordinator
from e2e.kubernetes.cases.states import ETCD
from e2e.kubernetes.machines import kill_container
from e2e.kubernetes.place import Manifest, is_true
from e2e.kubernetes.release import CLUSTER, GROUPS
from e2e.kubernetes.stage import Stage
from tools.kubernetes.errors import ClusterError

OPERATOR: Final = "seriatim-operator"
TOLD_S: Final = 60.0
TOLD_LIMIT_S: Final = 10.0
ACT_S: Final = 300.0
DRAIN_S: Final = 120
NOWHERE: Final = "seriatim.dev/broker:nowhere"

OF_MEMBERS: Final = frozenset({"MemberAway", "MembersAway", "CopiesAway", "CopyAway", "MasterAway"})
"""The Warnings about members and copies that do not answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: The act or the fault.
        struck: It lasts as long as this block.
        told: Reasons of which one must be reported for a fault.
        may: Reasons that may come too.
    """

    name: str
    struck: Callable[[Stage], AbstractAsyncContextManager[None]]
    told: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


async def planned_acts(stage: Stage) -> None:
    """What the operator does, and what administrators plan, gives no Warning."""
    await _follow(stage, PLANS)


async def faults_told(stage: Stage) -> None:
    """Each fault gives a Warning soon, and no Warning of another kind."""
    await _follow(stage, FAULTS)


async def _follow(stage: Stage, rows: tuple[Row, ...]) -> None:
    async with stage.traffic() as traffic, stage.recorded():
        for row in rows:
            before = await _warnings(stage, ours=True), await _warnings(stage, ours=False)
            began = time.monotonic()
            async with traffic.struck(row.name, CLUSTER), row.struck(stage):
                if row.told:
                    await stage.wait_until(f"{row.name}: a Warning", _tells(stage, before[0], row.told), TOLD_S)
                    stage.figure(f"{row.name}: reported after", time.monotonic() - began, limit=TOLD_LIMIT_S)
            await stage.wait_healthy(ACT_S)
            await traffic.has_two_copies()
            new = await _warnings(stage, ours=True) - before[0]
            others = await _warnings(stage, ours=False) - before[1]
            stage.figure(f"{row.name}: Warnings", len(new), "")
            told = sorted({f"{kind} {name}: {reason}: {note}" for kind, name, reason, note, _ in new})
            stage.note(f"{row.name}: {'; '.join(told) or 'no Warning'}; of others: {_counted(others)}")
            if wrong := sorted({reason for _, _, reason, _, _ in new} - row.told - row.may):
                stage.problem(f"{row.name} gave Warnings that mean something else: {', '.join(wrong)}")


Warnings = set[tuple[str, str, str, str, int]]
"""Kind and name of the object, reason, note, and how often it was reported."""


async def _warnings(stage: Stage, *, ours: bool) -> Warnings:
    found: Warnings = set()
    for event in await stage.place.list("events"):
        about = event["involvedObject"]
        if event["type"] == "Warning" and ((event.get("source") or {}).get("component") == OPERATOR) == ours:
            count = int(event.get("count") or 1)
            found.add((about.get("kind", ""), about.get("name", ""), event["reason"], event["message"], count))
    return found


def _tells(stage: Stage, before: Warnings, reasons: frozenset[str]) -> Callable[[], Awaitable[bool]]:
    async def told() -> bool:
        return any(reason in reasons for _, _, reason, _, _ in await _warnings(stage, ours=True) - before)

    return told


def _counted(warnings: Warnings) -> str:
    reasons = sorted({reason for _, _, reason, _, _ in warnings})
    return ", ".join(f"{reason} {sum(each[2] == reason for each in warnings)}" for reason in reasons) or "none"


# ---- planned acts ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _rolled(stage: Stage) -> AsyncIterator[None]:
    before = {pod["metadata"]["uid"] for pod in await stage.pods()}
    stamp = {"seriatim.dev/restart": str(time.time())}
    await stage.place.patch("brokerclusters", CLUSTER, {"metadata": {"annotations": stamp}})

    async def is_done() -> bool:
        pods = await stage.pods()
        return len(pods) == 2 * GROUPS and not before & {pod["metadata"]["uid"] for pod in pods}

    await stage.wait_until("every member is another pod", is_done, ACT_S)
    yield


def _scaled(groups: int) -> Callable[[Stage], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def scaled(stage: Stage) -> AsyncIterator[None]:
        await stage.place.kubectl("scale", f"brokercluster/{CLUSTER}", f"--replicas={groups}")

        async def is_done() -> bool:
            return len(await stage.place.list("brokergroups")) == groups and not await stage.unhealthy()

        await stage.wait_until(f"there are {groups} broker groups", is_done, ACT_S)
        yield

    return scaled


@asynccontextmanager
async def _drained(stage: Stage) -> AsyncIterator[None]:
    node = sorted({pod["spec"]["nodeName"] for pod in await stage.pods()})[0]
    only = ("--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app.kubernetes.io/component=broker")
    try:
        await stage.place.kubectl("drain", node, *only, f"--timeout={DRAIN_S}s", timeout_s=DRAIN_S + 30.0)
        yield
    finally:
        await stage.place.kubectl("uncordon", node)


@asynccontextmanager
async def _etcd_member_restarted(stage: Stage) -> AsyncIterator[None]:
    member = await coordinator.etcd_leader(stage.place)
    name, uid = member["metadata"]["name"], member["metadata"]["uid"]
    await stage.place.kubectl("delete", "pod", name, "--wait=false")

    async def is_another() -> bool:
        found = await stage.place.get("pods", name)
        return found is not None and found["metadata"]["uid"] != uid

    await stage.wait_until(f"{name} is another pod", is_another, ACT_S)
    await coordinator.wait_ready(stage.place)
    yield


PLANS: Final = (
    Row("rolling change", _rolled),
    Row("scale-out", _scaled(GROUPS + 1)),
    Row("scale-in", _scaled(GROUPS)),
    Row("drain", _drained),
    Row("etcd's leader restarted", _etcd_member_restarted),
)


# ---- faults ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _node_lost(stage: Stage) -> AsyncIterator[None]:
    """The node has no operator, because an operator that is lost reports nothing."""
    operators = await stage.place.list("pods", "app.kubernetes.io/component=operator")
    taken = {pod["spec"].get("nodeName") for pod in operators}
    node = next(name for name in sorted({pod["spec"]["nodeName"] for pod in await stage.pods()}) if name not in taken)
    async with stage.machines.down(node):
        yield


@asynccontextmanager
async def _no_image(stage: Stage) -> AsyncIterator[None]:
    await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"image": NOWHERE}})
    try:
        yield
    finally:
        await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"image": None}})


@asynccontextmanager
async def _etcd_majority_away(stage: Stage) -> AsyncIterator[None]:
    """Two members are killed: one that ends by itself first hands over, and keeps the quorum for up to 7 s."""
    go = (await coordinator.members(stage.place))[1:]
    await stage.place.kubectl("scale", ETCD, "--replicas=1")
    try:
        for pod in go:
            with suppress(ClusterError):  # it has ended
                kill_container(pod)
        yield
    finally:
        await stage.place.kubectl("scale", ETCD, "--replicas=3")
        await coordinator.wait_ready(stage.place)


@asynccontextmanager
async def _pod_deleted_and_kept_away(stage: Stage) -> AsyncIterator[None]:
    """An administrator deletes a pod of a broker without asking, and its node takes none back for some time."""
    pod = (await stage.pods())[0]
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    taint = "e2e.seriatim.dev/away"
    await stage.place.kubectl("taint", "node", node, f"{taint}=:NoSchedule")
    try:
        await stage.place.kubectl("delete", "pod", name, "--wait=false")
        yield
    finally:
        with suppress(ClusterError):
            await stage.place.kubectl("taint", "node", node, f"{taint}-")
        await stage.wait_until(f"{name} is ready", lambda: _is_ready(stage, name), ACT_S)


async def _is_ready(stage: Stage, name: str) -> bool:
    found: Manifest | None = await stage.place.get("pods", name)
    return is_true(found, "Ready", current=False)


FAULTS: Final = (
    Row("node lost", _node_lost, OF_MEMBERS, frozenset({"OneCopy", "EtcdSilent"})),
    Row("image that is nowhere", _no_image, OF_MEMBERS),
    Row("pod deleted, and no node for it", _pod_deleted_and_kept_away, OF_MEMBERS, frozenset({"OneCopy"})),
    Row("majority of etcd away", _etcd_majority_away, frozenset({"EtcdSilent"})),
)
