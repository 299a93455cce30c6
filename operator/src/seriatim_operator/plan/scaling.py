"""Fewer groups: the newest are drained, and removed only when nothing lies on them any more.

Steps, each seen to be done before the next: DRAINING until the brokers count no head and no segment; the operation is
taken; pods end; the brokers forget the group; claims, Brokers and the BrokerGroup are deleted. Raising the number again
before the operation is taken just calls the drain off.
"""

from __future__ import annotations

from .actions import AskCounts, BeginOperation, DeleteClaim, DeleteObject, DeletePod, EndOperation, Plan, RemoveGroup
from .observed import Observed

OPERATION = "RemoveGroup"
LOOK_S = 1.0


def remove_groups(observed: Observed, plan: Plan) -> None:
    """The next step of removing the newest group that should not be there."""
    leaving = observed.leaving_groups
    operation = observed.cluster.status.operation
    if operation is not None and operation.kind == OPERATION and operation.object not in leaving:
        plan.actions.append(EndOperation(f"{operation.object} is removed"))
        return
    if not leaving or observed.members is None:
        if leaving:
            plan.blocked_by.append("no broker answers: no group is removed")
            plan.look_again(LOOK_S)
        return
    group = leaving[0]
    plan.look_again(LOOK_S)
    if any(view.heads is None or view.segments is None for view in observed.members.values()):
        plan.actions.append(AskCounts())  # a listing with counts is read from the coordinator, not from a mirror
        return
    view = observed.members.get(group)
    if view is not None and (view.heads or view.segments):
        because = f"; {view.waits_for}" if view.waits_for else ""
        left = f"{view.heads} heads, {view.segments} segments left"
        plan.blocked_by.append(f"group {group} is being drained: {left}{because}")
    elif operation is None:
        plan.actions.append(BeginOperation(OPERATION, group, "it is drained"))
    elif (operation.kind, operation.object) != (OPERATION, group):
        plan.blocked_by.append(f"{operation.kind} of {operation.object} is under way: {group} waits")
    elif view is None:
        _delete_remains(observed, plan, group)
    else:
        _stop_members(observed, plan, group)


def _stop_members(observed: Observed, plan: Plan, group: str) -> None:
    pods = [pod for pod in observed.pods.values() if pod.group == group]
    for pod in sorted(pods, key=lambda p: p.name):
        if not pod.is_deleting:
            plan.actions.append(DeletePod(pod.name, pod.uid, "GroupRemoved", f"group {group} is drained and removed"))
            return
    if not pods:
        plan.actions.append(RemoveGroup(group))


def _delete_remains(observed: Observed, plan: Plan, group: str) -> None:
    """The brokers know the group no more: nothing names its disks."""
    brokers = sorted((b for b in observed.brokers.values() if b.spec.group == group), key=lambda b: b.name)
    for broker in brokers:
        pod, claim = observed.pods.get(broker.name), observed.claims.get(broker.name)
        if pod is not None:
            if not pod.is_deleting:
                plan.actions.append(DeletePod(pod.name, pod.uid, "GroupRemoved", f"group {group} is removed"))
            return
        if claim is not None:
            if not claim.is_deleting:
                plan.actions.append(DeleteClaim(claim.name, claim.uid, f"group {group} is drained and removed"))
            return
    plan.actions += [DeleteObject("Broker", broker.name, broker.uid) for broker in brokers]
    if not brokers:
        plan.actions += [
            DeleteObject("BrokerGroup", item.name, item.uid)
            for item in observed.groups.values()
            if item.spec.group == group
        ]
