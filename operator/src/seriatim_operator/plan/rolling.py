"""Plans a rolling change: one member at a time, and only when the brokers say that the other copy is in sync.

No pod is deleted while another desired pod is missing, unscheduled or not ready, whatever operation is recorded. So a
template that does not work stops the change at its first member. Pods that take nothing away (`former`) are replaced
all the same: so a template that did not work can be corrected.
"""

from __future__ import annotations

import hashlib

from ..resources.cluster_children import ClusterChildren
from ..spec.broker import Broker
from .actions import AskGate, BeginOperation, DeletePod, EndOperation, Plan, Planned
from .former import former_image, takes_nothing_away
from .observed import Observed, PodView

OPERATION = "Roll"
ANNOTATION_APPROVE = "seriatim.dev/approve"
"""On a BrokerCluster: the hash of the plan that an administrator approves."""

SETTINGS_INVALID = "SettingsInvalid"
"""The problem with which no existing pod is replaced, because the operator does not know all that the user wants. Pods
that are missing are made with the last good settings, if there were any."""

LOOK_S = 0.5


def plan_hash(observed: Observed, make: ClusterChildren) -> str:
    """The hash of the whole change. It stays the same during the change. Another template gives another hash."""
    text = f"{observed.cluster.uid}/{make.template_hash()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def roll(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Plan the next step of a rolling change, if a pod has another template than the cluster wants."""
    stale = [] if plan.has_problem(SETTINGS_INVALID) else _stale(observed, make)
    _end_finished(observed, plan, {broker.name for broker, _ in stale})
    if not stale:
        return
    names = ", ".join(broker.name for broker, _ in stale)
    plan.planned += [Planned("Restart", broker.name, "its template changed") for broker, _ in stale]
    if observed.cluster.spec.change_approval == "Manual":
        wanted = plan_hash(observed, make)
        if observed.cluster.metadata.annotations.get(ANNOTATION_APPROVE) != wanted:
            plan.blocked_by.append(f"approval: annotate with {ANNOTATION_APPROVE}={wanted} to restart {names}")
            stale = [item for item in stale if item[0].status.served is None and takes_nothing_away(*item)]
    if stale and (why := observed.mounts_in_doubt):
        # Rule `settings-before-restart`. Without it:
        #   1. `spec.settings` changes, and the API server refuses the ConfigMap with the new settings.
        #   2. Each broker is restarted, reads the settings from before, and has the hash of the new ones.
        #   3. The ConfigMap is written later. No pod is restarted, because all have the wanted hash.
        # If the ConfigMap belongs to others, the first pod that is deleted is not made again.
        plan.blocked_by.append(f"{names} are not restarted: {why}")
        plan.look_again(LOOK_S)
        return
    free = [item for item in stale if takes_nothing_away(*item) and not _may_be_live(*item)]
    for broker, pod in free:
        if not former_image(observed, make, broker):
            note = f"replaces {broker.name}, which never served with its template"
            plan.actions.append(DeletePod(pod.name, pod.uid, "TemplateChanged", note))
            return
    if not stale:
        return
    broker, pod = _next(observed, [*free, *(item for item in stale if item not in free)])
    is_free = (broker, pod) in free
    obstacle = "" if is_free else _barrier(observed, pod)
    if obstacle:
        plan.blocked_by.append(f"{broker.name} is not restarted: {obstacle}")
        plan.look_again(LOOK_S)
        return
    _restart(observed, plan, broker, pod, needs_gate=pod.is_running and not is_free)


def _next(observed: Observed, stale: list[tuple[Broker, PodView]]) -> tuple[Broker, PodView]:
    """The member to restart next: the one that has the operation, or else the first.

    Without this rule:

    1. A member is broken. So it is the first, and it gets the operation.
    2. It recovers before its pod is deleted. Now other members come before it.
    3. They wait for the operation, and it waits for them, until the operation expires.
    """
    operation = observed.cluster.status.operation
    if operation is not None and operation.kind == OPERATION:
        return next((item for item in stale if item[0].name == operation.object), stale[0])
    return stale[0]


def _restart(observed: Observed, plan: Plan, broker: Broker, pod: PodView, *, needs_gate: bool) -> None:
    operation = observed.cluster.status.operation
    if operation is not None and (operation.kind, operation.object) != (OPERATION, broker.name):
        plan.blocked_by.append(f"{operation.kind} of {operation.object} is under way")
        plan.look_again(LOOK_S)
        return
    name = f"{broker.spec.group}-{broker.spec.slot}"
    gate = observed.gates.get(name)
    if needs_gate and gate is None:
        plan.actions.append(AskGate(name))
        return
    if needs_gate and gate is not None and not gate.is_safe:
        plan.blocked_by.append(f"{broker.name} is not restarted: {gate.text}")
        plan.look_again(LOOK_S)
        return
    answer = gate.text if gate is not None else "it does not serve as it is"
    if operation is None:
        plan.actions.append(BeginOperation(OPERATION, broker.name, "its template changed"))
    else:
        plan.actions.append(DeletePod(pod.name, pod.uid, "TemplateChanged", f"restarts {broker.name}: {answer}"))


def _end_finished(observed: Observed, plan: Plan, stale: set[str]) -> None:
    """End the operation when its member serves with the new template, or its broker group leaves, or it is gone.

    Also end it if its member is not restarted yet and a disk must be replaced. Otherwise the replacement waits for the
    operation, and the restart waits for the replacement.
    """
    operation = observed.cluster.status.operation
    if operation is None or operation.kind != OPERATION:
        return
    pod = observed.pods.get(operation.object)
    broker = observed.brokers.get(operation.object)
    is_gone = (
        broker is None or broker.status.disk_lost is not None or broker.spec.group not in observed.wanted_broker_groups
    )
    is_done = pod is not None and pod.is_ready and not pod.is_deleting and operation.object not in stale
    if is_gone or is_done:
        plan.actions.append(EndOperation(f"{operation.object} {'will not come back' if is_gone else 'serves again'}"))
    elif operation.object in stale and (lost := _lost_disks(observed)):
        plan.actions.append(EndOperation(f"the disk of {lost[0]} is replaced before {operation.object} is restarted"))


def _stale(observed: Observed, make: ClusterChildren) -> list[tuple[Broker, PodView]]:
    """Members whose pod has another template: first those that are not ready, then one broker group after another."""
    found: list[tuple[Broker, PodView]] = []
    wanted = make.template_hash()
    for broker in observed.all_holders():
        pod = observed.pods.get(broker.name)
        if pod is None or pod.is_deleting:
            continue
        if pod.template_hash != wanted:
            found.append((broker, pod))
    return sorted(found, key=lambda item: (item[1].is_ready, int(item[0].spec.group[1:]), -item[0].spec.slot))


def _barrier(observed: Observed, candidate: PodView) -> str:
    """Why the candidate may not be restarted now; empty if it may."""
    for broker in observed.all_holders():
        pod = observed.pods.get(broker.name)
        if pod is None:
            return f"pod {broker.name} is not there"
        if pod.name == candidate.name:
            continue
        if pod.is_deleting:
            return f"pod {broker.name} is being deleted"
        if not pod.is_scheduled:
            return f"pod {broker.name} has no node{_because(pod)}"
        if not pod.is_ready:
            return f"pod {broker.name} is not ready{_because(pod)}"
    lost = _lost_disks(observed)
    return f"the disk of {lost[0]} is being replaced" if lost else ""


def _because(pod: PodView) -> str:
    return f": {pod.why_not_ready}" if pod.why_not_ready else ""


def _may_be_live(broker: Broker, pod: PodView) -> bool:
    """Whether it is not known if the broker served: it joined, and no operator that notes this saw it ready."""
    return pod.is_running and broker.status.served is None and bool(broker.status.incarnation)


def _lost_disks(observed: Observed) -> list[str]:
    """Names of Brokers whose disk is marked as lost and not released yet."""
    return [b.name for b in observed.brokers.values() if b.status.disk_lost and not b.status.released]
