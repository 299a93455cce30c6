"""Finds how evenly the broker groups are spread over machines, and which one to place anew."""

from __future__ import annotations

from collections import Counter

from .observed import Observed


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
    brokers = Counter(pod.node for pod in observed.pods.values() if pod.node)
    usable = [node.name for node in observed.nodes.values() if node.is_ready and not node.is_leaving]
    has_room = any(brokers[node] + 2 <= brokers[machine] for node in usable)
    if not has_room or len(usable) <= observed.cluster.spec.members_per_group:
        return ""
    load: Counter[str] = Counter()
    for pod in observed.pods.values():
        load[pod.group] += brokers[pod.node] if pod.node else 0
    return max(observed.wanted_broker_groups, key=lambda group: load[group])
