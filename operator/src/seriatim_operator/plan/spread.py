"""Finds how evenly the broker groups are spread over machines, which one to place again, and when the operator does it.

To place a broker group again copies all its messages, and Kubernetes chooses the new nodes. So the operator does it by
itself only if `spec.spreadMending` says so, one broker group at a time, while nothing else is wrong, and more and more
seldom if it does not help.

The record of a mending, an annotation of the BrokerCluster, is written before the wish, an annotation of the
BrokerGroup. Rule: no wish without a record. Without it:

1. The operator writes the wish and dies. Its successor empties the broker group, and makes it again where it was.
2. There is no record of that, so the successor empties it again at once, and so on.

With it, an operator that dies between the two writes has copied nothing. The spread stays as it was, each message has
its copies, and the next operator waits as after a mending that did not help, or until an administrator removes the
record. It cannot try at once, because an administrator who called a mending off (by removing the wish) leaves the same
two objects.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from .actions import PlaceAnew, Plan
from .cordon import leaving_members
from .nodes import takes_brokers
from .observed import ANNOTATION_SPREAD_MENDED, Observed

PAUSE_S: Final = 3_600.0
"""Seconds from the start of one mending to the next."""

PAUSE_IF_USELESS_S: Final = 86_400.0
"""Seconds from the start of one mending to the next if the spread is as uneven as before it. Each further one that does
not help doubles it.
"""

PAUSE_IF_USELESS_S_MAX: Final = 32 * PAUSE_IF_USELESS_S

ONE_MACHINE_HOLDS_ALL: Final = "OneMachineHoldsAll"
"""The reason of `Degraded`, which is False, if nothing else is wrong than the spread."""


@dataclass(frozen=True, slots=True)
class Mending:
    """The last mending, as its record says.

    Attributes:
        at: When it started.
        unevenness: How unevenly the brokers were spread then.
        pause_s: Seconds from its start to the next one, if it did not help.
    """

    at: datetime
    unevenness: int
    pause_s: float

    def to_text(self) -> str:
        """The record, as `last_mending` reads it: `2026-11-27T06:00:00+00:00 18 86400`."""
        return f"{self.at.isoformat(timespec='seconds')} {self.unevenness} {self.pause_s:.0f}"


def machine_that_holds_all(observed: Observed) -> str:
    """A node on which every broker group has a member; empty if there is none."""
    groups_on: dict[str, set[str]] = {}
    for pod in observed.pods.values():
        if pod.node:
            groups_on.setdefault(pod.node, set()).add(pod.group)
    wanted = set(observed.wanted_broker_groups)
    return next((node for node, groups in sorted(groups_on.items()) if wanted and wanted <= groups), "")


def group_to_place_anew(observed: Observed, machine: str) -> str:
    """The broker group to place again, so that `machine` has no member of it; empty if that would not help.

    It helps if another node that takes brokers has at least two fewer, because Kubernetes prefers nodes with few. The
    broker group on the busiest nodes is best. After one, another one may follow.

    Args:
        observed: The cluster.
        machine: A node on which every broker group has a member.
    """
    brokers = _brokers_on(observed)
    template = observed.cluster.spec.pod_template
    usable = [node.name for node in observed.nodes.values() if takes_brokers(node, template)]
    has_room = any(brokers[node] + 2 <= brokers[machine] for node in usable)
    if not has_room or len(usable) <= observed.cluster.spec.members_per_group:
        return ""
    load: Counter[str] = Counter()
    for pod in observed.pods.values():
        load[pod.group] += brokers[pod.node] if pod.node else 0
    return max(observed.wanted_broker_groups, key=lambda group: load[group])


def mend_spread(observed: Observed, plan: Plan) -> None:
    """Plan to place a broker group again, if the cluster's spec lets the operator do it and nothing else is to do."""
    if observed.cluster.spec.spread_mending != "Automatic" or plan.problems or plan.blocked_by:
        return
    if observed.cluster.status.operation is not None or observed.leaving_broker_groups or leaving_members(observed):
        return
    if observed.chains is None or observed.chains.troubles or not _all_serve(observed):
        return
    since_s = _wrong_since_s(observed)
    machine = machine_that_holds_all(observed)
    group = group_to_place_anew(observed, machine) if machine else ""
    if since_s is None or not group:
        return
    start_s = max(since_s + observed.spread_quiet_s, may_mend_at_s(observed))
    if observed.now_s < start_s:
        plan.look_again(start_s - observed.now_s)
        return
    item = next((item for item in observed.groups.values() if item.spec.group == group), None)
    if item is None:
        return  # an administrator deleted the BrokerGroup: this pass makes it again
    record = Mending(datetime.fromtimestamp(observed.now_s, UTC), unevenness(observed), _pause_s(observed))
    note = f"broker group {group} is placed again: the loss of {machine} would leave no complete broker group"
    plan.actions.append(PlaceAnew(item.name, item.uid, record.to_text(), note))


def may_mend_at_s(observed: Observed) -> float:
    """The Unix time in seconds before which the operator does not mend the spread again; 0 if it never did."""
    last = last_mending(observed)
    if last is None:
        return 0.0
    return last.at.timestamp() + (last.pause_s if _was_useless(observed, last) else PAUSE_S)


def last_mending(observed: Observed) -> Mending | None:
    """The last mending; None if there was none. An administrator may remove the record, or write anything into it."""
    try:
        at, before, pause = observed.cluster.metadata.annotations[ANNOTATION_SPREAD_MENDED].split()
        found = Mending(datetime.fromisoformat(at).astimezone(UTC), int(before), float(pause))
        _ = found.at + timedelta(seconds=PAUSE_IF_USELESS_S_MAX)  # also the end of the pause is reported as a time
    except (KeyError, ValueError, OverflowError):
        return None
    return found if PAUSE_IF_USELESS_S <= found.pause_s <= PAUSE_IF_USELESS_S_MAX else None


def _was_useless(observed: Observed, last: Mending) -> bool:
    return unevenness(observed) >= last.unevenness


def _pause_s(observed: Observed) -> float:
    """How long to wait after the mending that starts now, if it does not help."""
    last = last_mending(observed)
    if last is None or not _was_useless(observed, last):
        return PAUSE_IF_USELESS_S
    return min(2 * last.pause_s, PAUSE_IF_USELESS_S_MAX)


def unevenness(observed: Observed) -> int:
    """How unevenly the brokers are spread: the sum of the squares of their numbers on each node."""
    return sum(count * count for count in _brokers_on(observed).values())


def _brokers_on(observed: Observed) -> Counter[str]:
    return Counter(pod.node for pod in observed.pods.values() if pod.node)


def _all_serve(observed: Observed) -> bool:
    """Whether each slot has a broker that is ready and has room, and no administrator has cordoned or drained a broker
    group.

    How much room the other disks have, the operator does not know: only that none is full yet.
    """
    spec = observed.cluster.spec
    ready = {pod.broker for pod in observed.pods.values() if pod.is_ready and not pod.is_deleting}
    wanted = {f"g{number}-{slot}" for number in range(spec.groups) for slot in range(spec.members_per_group)}
    states = {item.spec.state for item in observed.groups.values()}
    if observed.members is None or not wanted <= ready or not wanted <= observed.live_brokers or states != {"Active"}:
        return False
    return not any(member.disk_state for view in observed.members.values() for member in view.members)


def _wrong_since_s(observed: Observed) -> float | None:
    """Since when nothing else is wrong than the spread, as was last reported; None if it is not so."""
    status = observed.cluster.status
    found = status.condition("Degraded")
    is_it = (
        found is not None
        and (found.status, found.reason) == ("False", ONE_MACHINE_HOLDS_ALL)
        and status.is_true("Stable")
    )
    return found.last_transition_time.timestamp() if found is not None and is_it else None
