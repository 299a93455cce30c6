"""Which members are away without a fault: the operator restarts or removes them, their node is drained, they start for
the first time, or they register again after etcd was silent.

Each restart, removal and eviction comes after the brokers' answer that it is safe. So such an absence is reported, and
is no reason for a Warning. It becomes a fault as soon as something shows one (a container that ends, an image or a disk
that is missing, a node that is silent), or when it lasts too long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..spec.broker import Broker
from ..spec.group import BrokerGroup
from .observed import Observed, PodView, seconds_of

RESTARTING: Final = "Restarting"
DRAINED: Final = "Drained"
REMOVED: Final = "Removed"
"""Reasons of the condition `Ready` of a Broker that is away as planned."""

AS_PLANNED: Final = "AwayAsPlanned"
"""The reason of conditions of a cluster, broker group or topic with which nothing else is wrong."""

NOT_TOLD: Final = "NotTold"
RETURNING: Final = "Returning"
"""Reasons of the condition `Whole` while it is not known which members run, and for a moment after that."""

RESTART_S: Final = 120.0
"""Seconds that a restart, or a first start, may take until it is a fault. Mostly it takes less than 10."""

DRAINED_S: Final = 900.0
"""Seconds for which the members of a drained node may be away. A machine that is repaired for longer is a risk."""

RETURN_S: Final = 8.0
"""Seconds after a silence of etcd in which members register again, as long as their pods are ready."""

WAITS_S: Final = 6.0
"""Seconds for which a new pod may lack a node or its image until something is wrong."""

_GOES_WELL: Final = ("", "ContainerCreating", "PodInitializing")
"""The kubelet's reasons to wait that every start has."""


def absence(observed: Observed, broker: Broker) -> str:
    """Why a member is, or will be at once, away as planned: one of the three reasons; empty if it should serve."""
    if broker.status.disk_lost is not None:
        return ""
    operation, pod = observed.cluster.status.operation, observed.pods.get(broker.name)
    if operation is not None and (operation.kind, operation.object) == ("RemoveGroup", broker.spec.group):
        return REMOVED
    before = broker.status.condition("Ready")
    served, reason = before is not None and before.status == "True", before.reason if before is not None else ""
    if not served and reason not in (RESTARTING, DRAINED):
        return ""  # it was away before, without a plan
    is_rolled = operation is not None and (operation.kind, operation.object) == ("Roll", broker.name)
    has_left = pod is None or pod.is_deleting or not pod.is_scheduled
    if has_left and any(node.is_leaving for node in observed.nodes_of(broker)):
        now, limit_s = DRAINED, DRAINED_S
    elif is_rolled or reason in (RESTARTING, DRAINED):
        now, limit_s = RESTARTING, RESTART_S
    else:
        return ""
    lasts_s = observed.now_s - before.last_transition_time.timestamp() if before is not None and reason == now else 0.0
    may_wait = now == DRAINED or lasts_s < WAITS_S
    return now if lasts_s < limit_s and not _shows_a_fault(observed, broker, pod, may_wait=may_wait) else ""


def _shows_a_fault(observed: Observed, broker: Broker, pod: PodView | None, *, may_wait: bool) -> bool:
    """Whether something says that the member will not be back by itself. The container of a pod that is being deleted
    says nothing, because it is asked to end.
    """
    if any(not node.is_ready for node in observed.nodes_of(broker)):
        return True
    if pod is None or pod.is_deleting:
        return False
    if pod.no_node and not pod.is_scheduled:
        return not may_wait
    return pod.waiting not in _GOES_WELL or bool(pod.ended) or pod.is_over or bool(pod.mount_fails)


def is_starting(observed: Observed, broker: Broker) -> bool:
    """Whether a member starts for the first time, on the first disk of its slot, and nothing keeps it from that."""
    pod, age_s = observed.pods.get(broker.name), observed.now_s - seconds_of(broker)
    if broker.status.served is not None or broker.spec.replaces is not None or age_s >= RESTART_S:
        return False
    if pod is None or pod.is_deleting:
        return True
    may_wait = observed.now_s - pod.created_s < WAITS_S
    return may_wait or not (pod.lacks_image or _shows_a_fault(observed, broker, pod, may_wait=False))


def planned_names(observed: Observed) -> frozenset[str]:
    """The members that are away as planned, by name and by disk, as chains name them."""
    return _names(observed, lambda broker: bool(absence(observed, broker)))


def returning_names(observed: Observed) -> frozenset[str]:
    """The members that register again after a silence of etcd, by name and by disk. Their processes never ended."""
    groups = {item.spec.group for item in observed.groups.values() if _was_silent(observed, item)}
    return _names(observed, lambda broker: broker.spec.group in groups and _is_unheard(observed, broker))


def _was_silent(observed: Observed, item: BrokerGroup) -> bool:
    before = item.status.condition("Whole")
    if before is None or observed.members is None:
        return False
    lasts_s = observed.now_s - before.last_transition_time.timestamp()
    return before.reason == NOT_TOLD or (before.reason == RETURNING and lasts_s < RETURN_S)


def _is_unheard(observed: Observed, broker: Broker) -> bool:
    """Whether the brokers do not hear from a member whose pod is ready."""
    pod, member = observed.pods.get(broker.name), observed.member(_name(broker))
    return pod is not None and pod.is_ready and member is not None and not member.is_live


def _names(observed: Observed, holds: Callable[[Broker], bool]) -> frozenset[str]:
    found = {_name(broker) for broker in observed.brokers.values() if holds(broker)}
    return frozenset(found | {member.disk for name in found if (member := observed.member(name)) is not None})


def _name(broker: Broker) -> str:
    return f"{broker.spec.group}-{broker.spec.slot}"
