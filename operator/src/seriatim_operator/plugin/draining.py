"""Draining a group: what it would do, the word itself, and watching until nothing lies on it any more.

The plugin only writes what is wanted into the BrokerGroup. The operator passes it on, and the brokers do it: heads move
first, then copies of closed segments, never below two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from seriatim_api.v1 import records_pb2

from ..cluster.brokers import Brokers
from ..cluster.kinds import BROKER_GROUP
from ..cluster.kube import Kube, KubeError
from ..spec.group import BrokerGroup, GroupState
from .errors import PluginError
from .look import Look, explain

POLL_S = 1.0


@dataclass(frozen=True)
class Progress:
    """How far a drain is: what lies on the group still, and whether the brokers know of the drain and hold nothing.

    `waits_for`: what holds it up, in the brokers' words.
    """

    heads: int
    segments: int
    is_drained: bool
    waits_for: str = ""


def find_group(look: Look, name: str) -> BrokerGroup:
    """A group by its object's name or by its own.

    Raises:
        PluginError: There is none.
    """
    for group in look.groups:
        if name in (group.name, group.spec.group):
            return group
    known = ", ".join(group.spec.group for group in look.groups) or "none"
    raise PluginError(f"there is no broker group {name} in {look.cluster.name}; there is {known}")


def check_drain(look: Look, group: BrokerGroup) -> None:
    """Whether what lies on the group has anywhere to go.

    Raises:
        PluginError: No other group is active and whole.
    """
    others = [other for other in look.groups if other.name != group.name]
    able = [other for other in others if other.spec.state == "Active" and other.status.is_true("Whole")]
    if not able:
        raise PluginError(
            f"nothing can leave {group.spec.group}: no other group is active and whole. Remedy: raise spec.groups of "
            f"{look.cluster.name}, or bring another group back, first"
        )


async def set_state(kube: Kube, group: BrokerGroup, state: GroupState) -> None:
    """Write what is wanted of a group.

    Raises:
        PluginError: The API refuses it.
    """
    # With the version that was looked at: of two people only one is right about what the group was.
    patch = {"metadata": {"resourceVersion": group.metadata.resource_version}, "spec": {"state": state}}
    try:
        await kube.merge(BROKER_GROUP, group.namespace, group.name, patch)
    except KubeError as exc:
        raise explain(exc) from exc


async def read_progress(kube: Kube, brokers: Brokers, group: BrokerGroup) -> Progress:
    """How far a drain is, in the brokers' own count.

    Raises:
        PluginError: The group has gone, or somebody wants something else of it by now.
        SeriatimError: No broker answers.
    """
    try:
        manifest = await kube.get(BROKER_GROUP, group.namespace, group.name)
    except KubeError as exc:
        raise explain(exc) from exc
    if manifest is None:
        raise PluginError(f"the object {group.name} has gone")
    wanted = BrokerGroup.from_manifest(manifest).spec.state
    if wanted != "Draining":
        raise PluginError(f"somebody wants {group.spec.group} {wanted} by now")
    return await count(brokers, group.spec.group)


async def count(brokers: Brokers, group: str) -> Progress:
    """What lies on a group now; a group that the brokers do not know holds nothing.

    Raises:
        SeriatimError: No broker answers.
    """
    for known in await brokers.list_groups(with_counts=True):
        if known.record.group == group:
            is_told = known.record.intent == records_pb2.BROKER_GROUP_INTENT_DRAINING
            is_empty = not known.heads and not known.segments
            return Progress(known.heads, known.segments, is_told and is_empty, known.waits_for)
    return Progress(0, 0, is_drained=True)


async def watch_drain(
    look: Callable[[], Awaitable[Progress]], wait_s: float, show: Callable[[Progress], None], poll_s: float = POLL_S
) -> Progress:
    """Show the progress until the group is drained, or `wait_s` is over; returns the last that was shown."""
    until = time.monotonic() + wait_s
    while True:
        progress = await look()
        show(progress)
        if progress.is_drained or time.monotonic() + poll_s > until:
            return progress
        await asyncio.sleep(poll_s)
