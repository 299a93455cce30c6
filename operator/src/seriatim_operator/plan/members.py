"""Who should be there: a Broker for each slot, and for each Broker its claim and its pod."""

from __future__ import annotations

from ..resources.cluster_children import ClusterChildren
from ..spec.broker import Broker
from ..spec.errors import SpecError
from ..spec.values import parse_quantity
from .actions import Apply, DeletePod, Plan
from .loss import is_gone, waits_for_its_end
from .names import uid_of
from .observed import Observed

GONE_POD_GRACE_S = 5.0
"""Between two looks at a pod that is on its way out."""


def ensure_groups(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """An object for each group."""
    for group in observed.wanted_groups:
        plan.actions.append(Apply(make.group(group)))


def ensure_brokers(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """A Broker for each slot of the wanted groups that nobody holds."""
    for group in observed.wanted_groups:
        held = {broker.spec.slot for broker in observed.holders(group)}
        for slot in range(observed.cluster.spec.members_per_group):
            if slot not in held:
                _fill_slot(observed, make, plan, group, slot)


def _fill_slot(observed: Observed, make: ClusterChildren, plan: Plan, group: str, slot: int) -> None:
    before = [b for b in observed.brokers.values() if (b.spec.group, b.spec.slot) == (group, slot)]
    unreleased = [broker.name for broker in before if broker.status.released is None]
    if unreleased:
        return  # the lost disk is given up first: one incarnation in a slot at a time
    replaces: str | None = None
    if before:
        member = observed.member(f"{group}-{slot}")
        newest = max(before, key=lambda b: (b.status.disk_lost.at.timestamp() if b.status.disk_lost else 0.0, b.name))
        replaces = (member.incarnation if member is not None else "") or newest.status.incarnation or None
        if observed.members is None and not replaces:
            plan.blocked_by.append(f"no broker answers, and nobody else knows which disk {group}-{slot} had")
            return
    uid = _kept_disk(observed, group, slot) or uid_of(observed.cluster.uid, group, slot, len(before))
    plan.actions.append(Apply(make.broker(group, slot, uid, replaces)))


def _kept_disk(observed: Observed, group: str, slot: int) -> str | None:
    """The disk that an earlier cluster object of this name left to its slot, if there is one.

    Claims that are retained bear the labels of their Broker. With the same cluster in etcd the disk is taken back; with
    another one the broker refuses it, and says so.
    """
    kept = [
        claim
        for claim in observed.claims.values()
        if (claim.group, claim.slot) == (group, slot)
        and claim.broker_uid
        and not claim.is_deleting
        and claim.name not in observed.brokers
    ]
    return max(kept, key=lambda claim: (claim.created_s, claim.name)).broker_uid if kept else None


def ensure_claims(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """A claim for each Broker; larger where the cluster says so and the class allows it."""
    for broker in _staffed(observed):
        claim = observed.claims.get(broker.name)
        if claim is None:
            plan.actions.append(Apply(make.claim(broker)))
        elif not claim.is_deleting and _should_grow(observed, claim.requested):
            if observed.storage_class is not None and observed.storage_class.can_expand:
                plan.actions.append(Apply(make.claim(broker)))
            else:
                name = observed.cluster.spec.storage.storage_class_name
                text = f"the volumes have {claim.requested}, and StorageClass {name} does not expand volumes"
                remedy = "set the size back, or allowVolumeExpansion in the class"
                plan.problems.append(("ClassCannotExpand", f"{text}: {remedy}"))


def _should_grow(observed: Observed, requested: str) -> bool:
    try:
        return bool(requested) and parse_quantity(observed.cluster.spec.storage.size) > parse_quantity(requested)
    except SpecError:
        return False


def ensure_pods(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """A pod for each Broker whose disk may be used."""
    for broker in _staffed(observed):
        pod, claim = observed.pods.get(broker.name), observed.claims.get(broker.name)
        if claim is not None and claim.is_deleting:
            plan.blocked_by.append(f"the claim {broker.name} is being deleted: its broker is not started on it")
        elif pod is None and is_gone(observed, broker):
            plan.blocked_by.append(f"the machine of {broker.name} is gone: its pod waits for it, or for another disk")
        elif pod is None and waits_for_its_end(observed, broker):
            plan.look_again(GONE_POD_GRACE_S)  # `loss` says what is waited for
        elif pod is None:
            plan.actions.append(Apply(make.pod(broker)))
        elif pod.is_over and not pod.is_deleting:
            note = f"pod {pod.name} has ended and will not run again"
            if not plan.disruptive:
                plan.actions.append(DeletePod(pod.name, pod.uid, "PodEnded", note))
        elif pod.is_deleting:
            plan.look_again(GONE_POD_GRACE_S)


def refresh_pods(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Labels and annotations of running pods, in place; what needs a restart is `rolling`'s."""
    for broker in _staffed(observed):
        pod = observed.pods.get(broker.name)
        if pod is None or pod.is_deleting:
            continue
        manifest = make.pod(broker)
        plan.actions.append(Apply(manifest))


def _staffed(observed: Observed) -> list[Broker]:
    """Brokers that should have a claim and a pod: of wanted groups, and of leaving ones that are not drained yet."""
    operation = observed.cluster.status.operation
    removing = operation.object if operation is not None and operation.kind == "RemoveGroup" else ""
    groups = [
        *observed.wanted_groups,
        *(g for g in observed.leaving_groups if g != removing and _is_known(observed, g)),
    ]
    return [broker for group in groups for broker in observed.holders(group)]


def _is_known(observed: Observed, group: str) -> bool:
    """Whether the brokers still know the group, as far as they told: one that they forgot is not started again."""
    return observed.members is None or group in observed.members
