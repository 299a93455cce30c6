"""Drains a broker group: checks whether it can be drained, writes the state, and watches until it holds nothing.

The plugin only writes `spec.state` of the BrokerGroup. The operator notifies the brokers, and the brokers move the
segments: first the open ones, then copies of sealed ones. A segment never has fewer than two copies because of it.
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
    """How far a drain is.

    Attributes:
        open_segments: Open segments that the broker group still has.
        segments: Segments of which it still has copies.
        is_drained: The brokers know of the drain, and the broker group holds no segment any more.
        waits_for: What holds up the drain, in the brokers' words; empty if nothing does.
    """

    open_segments: int
    segments: int
    is_drained: bool
    waits_for: str = ""


def find_broker_group(look: Look, name: str) -> BrokerGroup:
    """A broker group, by the name of its object or by its name among the brokers.

    Raises:
        PluginError: There is no such broker group.
    """
    for group in look.groups:
        if name in (group.name, group.spec.group):
            return group
    known = ", ".join(group.spec.group for group in look.groups) or "none"
    raise PluginError(f"there is no broker group {name} in {look.cluster.name}; there is {known}")


def check_drain(look: Look, group: BrokerGroup) -> None:
    """Check that another broker group can take the segments.

    Raises:
        PluginError: No other broker group is active and complete.
    """
    others = [other for other in look.groups if other.name != group.name]
    able = [other for other in others if other.spec.state == "Active" and other.status.is_true("Whole")]
    if not able:
        raise PluginError(
            f"nothing can leave {group.spec.group}: no other broker group is active and complete. Remedy: first raise "
            f"spec.groups of {look.cluster.name}, or bring another broker group back"
        )


async def set_state(kube: Kube, group: BrokerGroup, state: GroupState) -> None:
    """Write `spec.state` of a broker group.

    Raises:
        PluginError: The API refuses the write, for instance because the object has changed since it was read.
    """
    # The patch has the version that was read. So of two administrators who change the object at once, the second is
    # refused.
    patch = {"metadata": {"resourceVersion": group.metadata.resource_version}, "spec": {"state": state}}
    try:
        await kube.merge(BROKER_GROUP, group.namespace, group.name, patch)
    except KubeError as exc:
        raise explain(exc) from exc


async def read_progress(kube: Kube, brokers: Brokers, group: BrokerGroup) -> Progress:
    """How far a drain is, as the brokers count it.

    Raises:
        PluginError: The BrokerGroup is gone, its `spec.state` is not Draining any more, or the API refuses the read.
        SeriatimError: No broker answers.
    """
    try:
        manifest = await kube.get(BROKER_GROUP, group.namespace, group.name)
    except KubeError as exc:
        raise explain(exc) from exc
    if manifest is None:
        raise PluginError(f"BrokerGroup {group.name} is gone: the drain is not watched any more")
    wanted = BrokerGroup.from_manifest(manifest).spec.state
    if wanted != "Draining":
        raise PluginError(f"spec.state of {group.spec.group} is {wanted} now: the drain was called off")
    return await count(brokers, group.spec.group)


async def count(brokers: Brokers, group: str) -> Progress:
    """What a broker group holds now. One that the brokers do not know holds nothing.

    Raises:
        SeriatimError: No broker answers.
    """
    for known in await brokers.list_broker_groups(with_counts=True):
        if known.record.group == group:
            is_told = known.record.intent == records_pb2.BROKER_GROUP_INTENT_DRAINING
            is_empty = not known.heads and not known.segments
            return Progress(known.heads, known.segments, is_told and is_empty, known.waits_for)
    return Progress(0, 0, is_drained=True)


async def watch_drain(
    look: Callable[[], Awaitable[Progress]], wait_s: float, show: Callable[[Progress], None], poll_s: float = POLL_S
) -> Progress:
    """Show the progress until the broker group is drained or the time is over, and return the last progress shown.

    Args:
        look: Reads the progress.
        wait_s: Seconds to watch at most; the progress is shown at least once.
        show: Shows the progress.
        poll_s: Seconds between two looks.

    Cancelling it ends only the watching, not the drain.
    """
    until = time.monotonic() + wait_s
    while True:
        progress = await look()
        show(progress)
        if progress.is_drained or time.monotonic() + poll_s > until:
            return progress
        await asyncio.sleep(poll_s)
