"""Plans the members: a Broker for each slot, and a claim and a pod for each Broker."""

from __future__ import annotations

from ..resources.cluster_children import ClusterChildren
from ..spec.broker import Broker
from ..spec.errors import SpecError
from ..spec.values import parse_quantity
from .actions import Apply, DeletePod, Plan, Planned
from .former import former_image
from .loss import is_gone, waits_for_its_end
from .names import uid_of
from .observed import MOUNTED, Observed

GONE_POD_GRACE_S = 5.0
"""Seconds between two looks at a pod that is being deleted."""


WAITING_POD_S = 5.0
"""Seconds between two looks at a pod that waits for a node or for its image."""


def ensure_broker_groups(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Apply a BrokerGroup for each broker group."""
    for group in observed.wanted_broker_groups:
        plan.actions.append(Apply(make.group(group)))


def ensure_brokers(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Make a Broker for each slot of the wanted broker groups that has none."""
    for group in observed.wanted_broker_groups:
        held = {broker.spec.slot for broker in observed.holders(group)}
        for slot in range(observed.cluster.spec.members_per_group):
            if slot not in held:
                _fill_slot(observed, make, plan, group, slot)


def _fill_slot(observed: Observed, make: ClusterChildren, plan: Plan, group: str, slot: int) -> None:
    before = [b for b in observed.brokers.values() if (b.spec.group, b.spec.slot) == (group, slot)]
    unreleased = [broker.name for broker in before if broker.status.released is None]
    if unreleased:
        return  # first the lost disk is given up, because a slot has one incarnation at a time
    replaces: str | None = None
    if before:
        member = observed.member(f"{group}-{slot}")
        newest = max(before, key=lambda b: (b.status.disk_lost.at.timestamp() if b.status.disk_lost else 0.0, b.name))
        replaces = (member.incarnation if member is not None else "") or newest.status.incarnation or None
        if observed.members is None and not replaces:
            plan.blocked_by.append(
                f"{group}-{slot} gets no disk: no broker answers, and only the brokers know which disk it had"
            )
            return
    uid = _kept_disk(observed, group, slot) or uid_of(observed.cluster.uid, group, slot, len(before))
    plan.actions.append(Apply(make.broker(group, slot, uid, replaces)))


def _kept_disk(observed: Observed, group: str, slot: int) -> str | None:
    """The uid of a disk that an earlier cluster object of this name left in the slot, or None.

    Retained claims have the labels of their Broker. If etcd has the same cluster as before, the disk is used again. If
    it has another cluster, the broker refuses the disk and reports this.
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
    """Make a claim for each Broker, and enlarge claims if the cluster asks for it and the class allows it."""
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
    """Make a pod for each Broker whose disk may be used, and delete pods that have ended."""
    foreign = sorted(name for kind, name in observed.taken if kind in MOUNTED)
    for broker in _staffed(observed):
        pod, claim = observed.pods.get(broker.name), observed.claims.get(broker.name)
        if pod is None and (foreign or ("PersistentVolumeClaim", broker.name) in observed.taken):
            name = foreign[0] if foreign else broker.name
            plan.blocked_by.append(f"{broker.name} is not started: it would run with {name}, which belongs to others")
        elif claim is not None and claim.is_deleting:
            plan.blocked_by.append(f"the claim {broker.name} is being deleted: its broker is not started on it")
        elif pod is None and is_gone(observed, broker):
            plan.blocked_by.append(
                f"the machine of {broker.name} is gone: its pod waits until the machine returns or the disk is replaced"
            )
        elif pod is None and waits_for_its_end(observed, broker):
            plan.look_again(GONE_POD_GRACE_S)  # `loss` reports what it waits for
        elif pod is None:
            # With the settings from before it is as one with a former image: it is restarted when they are written.
            image = former_image(observed, make, broker) or (make.image if observed.settings_refused else "")
            plan.actions.append(Apply(make.pod(broker, image)))
        elif pod.is_over and not pod.is_deleting:
            note = f"pod {pod.name} has ended and will not run again"
            if not plan.disruptive:
                plan.actions.append(DeletePod(pod.name, pod.uid, "PodEnded", note))
        elif pod.is_deleting:
            plan.look_again(GONE_POD_GRACE_S)


def refresh_pods(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Change labels and annotations of existing pods in place. `rolling` makes the changes that need a restart."""
    for broker in _staffed(observed):
        pod = observed.pods.get(broker.name)
        if pod is None or pod.is_deleting:
            continue
        manifest = make.pod(broker)
        plan.actions.append(Apply(manifest))


def place_again(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Make a pod again that waits for a node or for its image, if the fields that decide on that have changed since.

    A pod gets these fields only when it is made. One that waits has never run, so nothing is taken away.
    """
    wanted = make.placement_hash()
    for broker in _staffed(observed):
        pod = observed.pods.get(broker.name)
        is_waiting = pod is not None and not pod.is_deleting and (not pod.is_scheduled or pod.lacks_image)
        if pod is None or not is_waiting or pod.placement_hash == wanted:
            continue
        why = "its placement changed while it waited"
        plan.planned.append(Planned("Place", broker.name, why))
        if not plan.disruptive:
            plan.actions.append(DeletePod(pod.name, pod.uid, "PlacementChanged", f"makes pod {pod.name} again: {why}"))


def tell_waiting(observed: Observed, plan: Plan) -> None:
    """Report each pod that has no node or no image, and why, unless another report has done so."""
    told = "; ".join(plan.blocked_by)
    for broker in _staffed(observed):
        pod = observed.pods.get(broker.name)
        if pod is not None and pod.name not in told and (pod.lacks_image or pod.no_node):
            plan.look_again(WAITING_POD_S)
            plan.blocked_by.append(f"{pod.name} waits: {pod.why_not_ready}")


def _staffed(observed: Observed) -> list[Broker]:
    """Brokers that should have a claim and a pod: those of wanted broker groups, and of leaving ones still in use."""
    operation = observed.cluster.status.operation
    removing = operation.object if operation is not None and operation.kind == "RemoveGroup" else ""
    groups = [
        *observed.wanted_broker_groups,
        *(g for g in observed.leaving_broker_groups if g != removing and _is_known(observed, g)),
    ]
    return [broker for group in groups for broker in observed.holders(group)]


def _is_known(observed: Observed, group: str) -> bool:
    """Whether the brokers still know the broker group, or none answers. A forgotten one is not started again."""
    return observed.members is None or group in observed.members
