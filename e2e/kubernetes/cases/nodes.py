"""Nodes: one loses its power and comes back, one is lost for good with its disks, one is drained."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import Final

from seriatim_operator.plan.observed import ANNOTATION_SPREAD_MENDED as MENDED

from e2e.kubernetes import coordinator
from e2e.kubernetes.place import Manifest, is_true
from e2e.kubernetes.release import CLUSTER, GROUPS
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import Traffic
from tools.kubernetes.errors import ClusterError

NODE_GAP_LIMIT_S: Final = 2.0
NEW_MEMBER_LIMIT_S: Final = 120.0
DRAIN_GAP_LIMIT_S: Final = 0.3
REPLACED_S: Final = 400.0
DRAIN_S: Final = 180
NOT_READY_S: Final = 120.0
MENDING_BEGINS_S: Final = 120.0
MENDED_S: Final = 240.0
ETCD_LEADER: Final = "etcd's leader"
REFUSED_DRAIN_S: Final = 20
"""How long the drain is tried that must be refused."""

BROKERS_ONLY: Final = "--pod-selector=app.kubernetes.io/component=broker"


async def node_lost(stage: Stage) -> None:
    """A node loses its power: its masters fall silent at the same moment, and no connection is closed."""
    async with stage.traffic() as traffic, stage.recorded():
        await _lose(stage, traffic, await stage.node_of(await traffic.master()))


async def node_of_etcd_leader_lost(stage: Stage) -> None:
    """The lost node has etcd's leader. No segment can be opened until another member of etcd leads."""
    async with stage.traffic() as traffic, stage.recorded():
        await _lose(stage, traffic, (await coordinator.etcd_leader(stage.place))["spec"]["nodeName"])


async def _lose(stage: Stage, traffic: Traffic, node: str) -> None:
    leading = (await coordinator.etcd_leader(stage.place))["spec"]["nodeName"]
    names = [*sorted(await _names_on(stage, node)), *([ETCD_LEADER] if leading == node else [])]
    stage.note(f"{node} was lost: {', '.join(names)}")
    await stage.look("before")
    async with traffic.struck("lose node", node), stage.machines.down(node):
        stage.figure("gap", await traffic.gap_s(), limit=NODE_GAP_LIMIT_S)
        await stage.wait_until("the node is not Ready", lambda: _is_not_ready(stage, node), NOT_READY_S)
        await stage.look("node-lost")
    await stage.wait_healthy()
    stage.figure("two copies again after its return", await traffic.has_two_copies())


async def node_lost_for_good(stage: Stage) -> None:
    """A node is deleted with its disks. New members with new disks start on the other nodes. When a node is there
    again, the operator mends the spread.
    """
    async with stage.traffic() as traffic:
        async with AsyncExitStack() as healing:
            victim = await traffic.master()
            node = await stage.node_of(victim)
            before = {pod["metadata"]["name"] for pod in await stage.pods()}
            lost = {name for name in before if name in await _names_on(stage, node)}
            leading = (await coordinator.etcd_leader(stage.place))["spec"]["nodeName"]
            stage.note(f"{node} was deleted: {', '.join([*sorted(lost), *([ETCD_LEADER] if leading == node else [])])}")
            healing.push_async_callback(coordinator.replace_lost_member, stage.place, node)
            healing.push_async_callback(stage.machines.start, node)
            async with traffic.struck("lose node for good", node):
                began = time.monotonic()
                await stage.machines.delete(node)
                stage.figure("gap", await traffic.gap_s(), limit=NODE_GAP_LIMIT_S)
                await stage.wait_until("a new member runs", lambda: _new_members(stage, before, 1), REPLACED_S)
                stage.figure("first new member started after", time.monotonic() - began, limit=NEW_MEMBER_LIMIT_S)
                await stage.wait_until("all are replaced", lambda: _new_members(stage, before, len(lost)), REPLACED_S)
                stage.figure(f"all {len(lost)} new members started after", time.monotonic() - began)
                await stage.wait_healthy()
                await traffic.has_two_copies()
                stage.figure("two copies of everything after", time.monotonic() - began)
        await stage.wait_healthy()
        await _spread_mended(stage)


async def _spread_mended(stage: Stage) -> None:
    """Let the operator move one broker group after another, until no node has a member of each.

    It would wait for an hour between two. An administrator who removes its record need not.
    """
    began, count = time.monotonic(), 0
    await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"spreadMending": "Automatic"}})
    try:
        while count < GROUPS and await _holds_all(stage):
            await stage.wait_until("a broker group is placed again", lambda: _is_mending(stage), MENDING_BEGINS_S)
            await stage.wait_healthy(MENDED_S)
            await stage.place.patch("brokerclusters", CLUSTER, {"metadata": {"annotations": {MENDED: None}}})
            count += 1
    finally:
        await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"spreadMending": "Manual"}})
    stage.figure(f"spread mended, {count} broker groups placed again, after", time.monotonic() - began)
    if not count:
        stage.problem("no node had a member of each broker group, so nothing was shown")
    if holder := await _holds_all(stage):
        stage.problem(f"{holder} still has a member of each broker group")


async def _holds_all(stage: Stage) -> str:
    """Return a node that has a member of each broker group; empty if there is none."""
    groups: dict[str, set[str]] = {}
    for pod in await stage.pods():
        groups.setdefault(pod["spec"].get("nodeName", ""), set()).add(pod["metadata"]["labels"]["seriatim.dev/group"])
    return next((node for node, found in groups.items() if len(found) == GROUPS), "")


async def _is_mending(stage: Stage) -> bool:
    """Whether the operator has noted that it mends, and the cluster is not Stable any more."""
    cluster = await stage.cluster()
    return MENDED in cluster["metadata"].get("annotations", {}) and not is_true(cluster, "Stable", current=False)


async def node_drained(stage: Stage) -> None:
    """`kubectl drain`: open segments leave the node's groups, then its members go.

    The drain of a second node must be refused.
    """
    async with stage.traffic() as traffic:
        victim = await traffic.master()
        node = await stage.node_of(victim)
        other = next(name for name in sorted({pod["spec"]["nodeName"] for pod in await stage.pods()}) if name != node)
        async with AsyncExitStack() as healing:
            healing.push_async_callback(_uncordon, stage, node, other)
            async with traffic.struck("drain node", node):
                began = time.monotonic()
                watching = asyncio.create_task(_watch_evictions(stage, traffic, node))
                await _drain(stage, node, DRAIN_S)
                stage.figure("drained after", time.monotonic() - began)
                evicted = await watching
                stage.note(f"evicted from {node}: {', '.join(evicted)}")
                stage.figure("gap", await traffic.gap_s(), limit=DRAIN_GAP_LIMIT_S)
            async with traffic.struck("drain a second node", other):
                here = await _names_on(stage, other)
                with suppress(ClusterError):
                    await _drain(stage, other, REFUSED_DRAIN_S)
                    stage.problem(f"{other} was drained although {node} is away: one copy was left of some messages")
                gone = here - await _names_on(stage, other)
                if gone:
                    stage.problem(f"evicted from {other} while {node} is drained: {', '.join(sorted(gone))}")
                stage.figure("gap while a second drain is refused", await traffic.gap_s(), limit=DRAIN_GAP_LIMIT_S)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def _is_not_ready(stage: Stage, node: str) -> bool:
    return not is_true(await stage.place.read(f"/api/v1/nodes/{node}"), "Ready", current=False)


async def _names_on(stage: Stage, node: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in await stage.pods() if pod["spec"].get("nodeName") == node}


async def _new_members(stage: Stage, before: set[str], count: int) -> bool:
    new = [pod for pod in await stage.pods() if pod["metadata"]["name"] not in before]
    return sum(is_true(pod, "Ready", current=False) for pod in new) >= count


async def _drain(stage: Stage, node: str, seconds: int) -> None:
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", BROKERS_ONLY, f"--timeout={seconds}s")
    await stage.place.kubectl("drain", node, *options, timeout_s=seconds + 30.0)


async def _uncordon(stage: Stage, *nodes: str) -> None:
    await stage.place.kubectl("uncordon", *nodes)


async def _watch_evictions(stage: Stage, traffic: Traffic, node: str) -> list[str]:
    """Return the members that left a node. If a member's eviction begins, its group must not have an open segment."""
    names = await _names_on(stage, node)
    evicted: list[str] = []
    while len(evicted) < len(names):
        pods = {pod["metadata"]["name"]: pod for pod in await stage.pods()}
        for name in sorted(names - set(evicted)):
            if name in pods and not _is_leaving(pods[name], node):
                continue
            evicted.append(name)
            group = name.split("-")[1]
            if group in (await traffic.load.observer.look()).open_broker_groups():
                stage.problem(f"{name} was evicted while heads stood on {group}")
        await asyncio.sleep(0.1)
    return evicted


def _is_leaving(pod: Manifest, node: str) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or pod["spec"].get("nodeName") != node
