"""Finds how evenly the broker groups are spread over machines, which one to place anew, and when the operator does it.

To place a broker group anew copies all its messages, and Kubernetes chooses the new nodes. So the operator does it by
itself only if `spec.spreadMending` says so, one broker group at a time, while nothing else is wrong, and not again soon
if it did not help.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Final

from .actions import PlaceAnew, Plan
from .cordon import leaving_members
from .observed import ANNOTATION_SPREAD_MENDED, Observed

PAUSE_S: Final = 3_600.0
"""Seconds from the begin of one mending to the next."""

PAUSE_IN_VAIN_S: Final = 86_400.0
"""Seconds from the begin of one mending to the next if the spread is as uneven as before it."""

REASON: Final = "OneMachineHoldsAll"
"""The reason of `Degraded`, which is False, if nothing else is wrong than the spread."""


def machine_that_holds_all(observed: Observed) -> str:
    """A node on which every broker group has a member; empty if there is none."""
    groups_on: dict[str, set[str]] = {}
    for pod in observed.pods.values():
        if pod.node:
            groups_on.setdefault(pod.node, set()).add(pod.group)
    wanted = set(observed.wanted_broker_groups)
    return next((node for node, groups in sorted(groups_on.items()) if wanted and wanted <= groups), "")


def group_to_place_anew(observed: Observed, machine: str) -> str:
    """The broker group to place anew, so that `machine` has no member of it; empty if that would not help.

    It helps if another usable node has at least two brokers fewer, because Kubernetes prefers nodes with few brokers.
    The broker group on the busiest nodes is best. After one, another one may follow.

    Args:
        observed: The cluster.
        machine: A node on which every broker group has a member.
    """
    brokers = _brokers_on(observed)
    usable = [node.name for node in observed.nodes.values() if node.is_ready and not node.is_leaving]
    has_room = any(brokers[node] + 2 <= brokers[machine] for node in usable)
    if not has_room or len(usable) <= observed.cluster.spec.members_per_group:
        return ""
    load: Counter[str] = Counter()
    for pod in observed.pods.values():
        load[pod.group] += brokers[pod.node] if pod.node else 0
    return max(observed.wanted_broker_groups, key=lambda group: load[group])


def mend_spread(observed: Observed, plan: Plan) -> None:
    """Plan to place a broker group anew, if the cluster's spec lets the operator do it and nothing else is to do."""
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
    begin_s = max(since_s + observed.spread_quiet_s, may_mend_at_s(observed))
    if observed.now_s < begin_s:
        plan.look_again(begin_s - observed.now_s)
        return
    item = next(item for item in observed.groups.values() if item.spec.group == group)
    now = datetime.fromtimestamp(observed.now_s, UTC).isoformat(timespec="seconds")
    note = f"broker group {group} is placed anew: the loss of {machine} would leave no whole broker group"
    plan.actions.append(PlaceAnew(item.name, item.uid, f"{now} {unevenness(observed)}", note))


def may_mend_at_s(observed: Observed) -> float:
    """The Unix time in seconds before which the operator does not mend the spread again; 0 if it never did."""
    said = observed.cluster.metadata.annotations.get(ANNOTATION_SPREAD_MENDED, "").split()
    try:
        begun_s, before = datetime.fromisoformat(said[0]).timestamp(), int(said[1])
    except (ValueError, IndexError):
        return 0.0  # a person may remove the annotation, or write anything into it
    return begun_s + (PAUSE_S if unevenness(observed) < before else PAUSE_IN_VAIN_S)


def unevenness(observed: Observed) -> int:
    """How unevenly the brokers are spread: the sum of the squares of their numbers on each node."""
    return sum(count * count for count in _brokers_on(observed).values())


def _brokers_on(observed: Observed) -> Counter[str]:
    return Counter(pod.node for pod in observed.pods.values() if pod.node)


def _all_serve(observed: Observed) -> bool:
    """Whether each slot has a broker that is ready, and no person has cordoned or drained a broker group."""
    spec = observed.cluster.spec
    ready = {pod.broker for pod in observed.pods.values() if pod.is_ready and not pod.is_deleting}
    wanted = {f"g{number}-{slot}" for number in range(spec.groups) for slot in range(spec.members_per_group)}
    states = {item.spec.state for item in observed.groups.values()}
    return observed.members is not None and wanted <= ready and wanted <= observed.live_brokers and states == {"Active"}


def _wrong_since_s(observed: Observed) -> float | None:
    """Since when nothing else is wrong than the spread, as was last reported; None if it is not so."""
    status = observed.cluster.status
    found = status.condition("Degraded")
    is_it = found is not None and (found.status, found.reason) == ("False", REASON) and status.is_true("Stable")
    return found.last_transition_time.timestamp() if found is not None and is_it else None
