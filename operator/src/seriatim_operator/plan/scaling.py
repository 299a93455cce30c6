"""Plans the removal of broker groups, the newest first: it is drained, and removed when it holds no segment any more.

The operator takes these steps in order. It takes the next one only when it sees that the one before is done:

1. The broker group is DRAINING until the brokers count no open segment and no copy on it.
2. The operator writes the removal into `status.operation` of the cluster. No other operation begins meanwhile.
3. The pods end.
4. The brokers forget the broker group.
5. The claims, the Brokers and the BrokerGroup are deleted.

If `spec.groups` is raised again before step 2, the drain is called off and nothing else happens.

A broker group that an administrator asks to be placed again (`ANNOTATION_PLACE_ANEW`) is removed in the same way. Then
it is wanted again, and Kubernetes chooses nodes for its new disks. No message has fewer copies than before at any time,
because the disks are empty when they are given up.
"""

from __future__ import annotations

from .actions import (
    AskCounts,
    BeginOperation,
    DeleteClaim,
    DeleteObject,
    DeletePod,
    EndOperation,
    Plan,
    RemoveBrokerGroup,
)
from .observed import Observed

OPERATION = "RemoveGroup"
LOOK_S = 1.0


def remove_broker_groups(observed: Observed, plan: Plan) -> None:
    """Plan the next step of removing the newest broker group that `spec.groups` does not count.

    A removal that is under way is ended first, even if a newer broker group has to leave meanwhile: each would wait for
    the other one.
    """
    leaving = observed.leaving_broker_groups
    operation = observed.cluster.status.operation
    if operation is not None and operation.kind == OPERATION and operation.object not in leaving:
        plan.actions.append(EndOperation(f"{operation.object} is removed"))
        return
    if not leaving or observed.members is None:
        if leaving:
            plan.blocked_by.append("no broker answers: no broker group is removed")
            plan.look_again(LOOK_S)
        return
    is_under_way = operation is not None and operation.kind == OPERATION
    group = operation.object if operation is not None and is_under_way else leaving[0]
    plan.look_again(LOOK_S)
    if any(view.open_segments is None or view.segments is None for view in observed.members.values()):
        plan.actions.append(AskCounts())  # brokers count from the coordinator, not from a mirror that may be old
        return
    view = observed.members.get(group)
    if view is not None and (view.open_segments or view.segments):
        because = f"; {view.waits_for}" if view.waits_for else ""
        left = f"{view.open_segments} heads, {view.segments} segments left"
        plan.blocked_by.append(f"broker group {group} is being drained: {left}{because}")
    elif view is None and not is_under_way and (joined := _joined_uncounted(observed, group)):
        # Rule `unknown-is-not-empty` (I1). Without it:
        #   1. Broker group g2 is made and gets segments. The coordinator is restored as it was before that.
        #   2. `spec.groups` is lowered. Brokers need some seconds to notice the loss; until then they do not know g2.
        #   3. The operator takes it for one that they have forgotten, and deletes its claims.
        plan.blocked_by.append(
            f"broker group {group} is not removed: the brokers do not know it, the disk of {joined} has joined the "
            "cluster, and they never counted that it is empty. If the coordinator lost it, run seriatim coordinator "
            "rebuild (runbook coordinator-behind); otherwise raise spec.groups, and lower it again when the broker "
            "group is complete"
        )
    elif operation is None:
        plan.actions.append(BeginOperation(OPERATION, group, "it is drained"))
    elif (operation.kind, operation.object) != (OPERATION, group):
        plan.blocked_by.append(f"{operation.kind} of {operation.object} is under way: {group} waits")
    elif view is None:
        _delete_remains(observed, plan, group)
    else:
        _stop_members(observed, plan, group)


def _joined_uncounted(observed: Observed, group: str) -> str:
    """A Broker whose disk has joined, if no count of the brokers has proved that the broker group is empty."""
    counted = any(each.spec.group == group and each.status.is_true("Drained") for each in observed.groups.values())
    joined = (b.name for b in observed.brokers.values() if b.spec.group == group and b.status.incarnation)
    return "" if counted else next(joined, "")


def _stop_members(observed: Observed, plan: Plan, group: str) -> None:
    pods = [pod for pod in observed.pods.values() if pod.group == group]
    for pod in sorted(pods, key=lambda p: p.name):
        if not pod.is_deleting:
            plan.actions.append(
                DeletePod(pod.name, pod.uid, "GroupRemoved", f"broker group {group} is drained and removed")
            )
            return
    if not pods:
        plan.actions.append(RemoveBrokerGroup(group))


def _delete_remains(observed: Observed, plan: Plan, group: str) -> None:
    """Delete what is left in Kubernetes of a broker group that the brokers have forgotten, one object at a time."""
    brokers = sorted((b for b in observed.brokers.values() if b.spec.group == group), key=lambda b: b.name)
    for broker in brokers:
        pod, claim = observed.pods.get(broker.name), observed.claims.get(broker.name)
        if pod is not None:
            if not pod.is_deleting:
                plan.actions.append(DeletePod(pod.name, pod.uid, "GroupRemoved", f"broker group {group} is removed"))
            return
        if claim is not None:
            if not claim.is_deleting:
                plan.actions.append(DeleteClaim(claim.name, claim.uid, f"broker group {group} is drained and removed"))
            return
    plan.actions += [DeleteObject("Broker", broker.name, broker.uid) for broker in brokers]
    if not brokers:
        plan.actions += [
            DeleteObject("BrokerGroup", item.name, item.uid)
            for item in observed.groups.values()
            if item.spec.group == group
        ]
