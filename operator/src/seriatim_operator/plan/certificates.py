"""Plans death certificates. If the operator has proof that a member run ended, it notifies the brokers, which then need
not wait for this member run.

Two proofs count here, and both are about the process:

- The kubelet reports that a container ended, and the status file of this container names the member run.
- The pod of a lost disk is gone from the API, after a deletion with grace or with its node. A kubelet releases a pod
  only when its containers have ended. A pod that was deleted by force proves nothing while its node exists and its
  kubelet is silent, because the process may still live.

A lost *disk* proves nothing about the process. If a living member run is certified, another broker group may take
messages while this member run still acknowledges (`docs/adr/0024-a-certificate-can-be-false.md`).
"""

from __future__ import annotations

from ..spec.broker import Broker
from .actions import DeclareDead, Plan
from .observed import MemberView, NodeView, Observed

CONFIRM_S = 1.0
"""Seconds between two looks at a process whose end is not confirmed yet."""


def certify(observed: Observed, plan: Plan) -> None:
    """Plan the certificates that can be proved and are not written. Only a member's last member run can lack one."""
    for pod in observed.pods.values():
        member = observed.member(pod.broker)
        if member is None or member.is_certified:
            continue
        for end in pod.ended:
            if (end.incarnation, end.run) == (member.incarnation, member.run) and end.run:
                evidence = f"the kubelet of {pod.node} reports the container of pod {pod.name} ended ({end.exit_code})"
                plan.actions.append(DeclareDead(pod.broker, member.incarnation, member.run, evidence))
    for broker in observed.brokers.values():
        if broker.status.disk_lost is not None and broker.status.released is None:
            _certify_lost(observed, broker, plan)


def has_certificate(observed: Observed, broker: Broker) -> bool:
    """Whether the last member run on a lost disk is certified, or no broker answers.

    In the second case the disk that takes the slot certifies it when it joins.
    """
    return observed.members is None or _uncertified(observed, broker) is None


def _certify_lost(observed: Observed, broker: Broker, plan: Plan) -> None:
    member = _uncertified(observed, broker)
    if member is None or observed.pods.get(broker.name) is not None:
        return  # there is nothing to certify, or the pod is still there
    assert broker.status.disk_lost is not None
    noted = broker.status.disk_lost.run or broker.status.run or member.run
    problem = ""
    if member.run > noted:
        problem = f"member run {member.run} of {member.broker} began after its pod was gone: end that process"
    elif member.is_live:
        problem = (
            f"pod {broker.name} is gone, but the brokers still hear from member run {member.run} of {member.broker}"
        )
    elif silent := _silent_node(observed, broker):
        problem = (
            f"pod {broker.name} is gone, but the kubelet of {silent.name} is silent and cannot have confirmed that its "
            f"process ended: {REMEDY_SILENT.format(node=silent.name)}"
        )
    if problem:
        plan.blocked_by.append(f"the end of member run {member.run} of {member.broker} is not certified: {problem}")
        plan.look_again(CONFIRM_S)
        return
    evidence = f"pod {broker.name} is gone from the API; {broker.status.disk_lost.proof}"
    plan.actions.append(DeclareDead(member.broker, member.incarnation, member.run, evidence))
    plan.look_again(CONFIRM_S)


REMEDY_SILENT = (
    "if that machine is off for good, taint Node {node} with node.kubernetes.io/out-of-service, or delete it"
)


def _uncertified(observed: Observed, broker: Broker) -> MemberView | None:
    """The slot's member, if the brokers name this disk for the slot and its last member run is not certified."""
    assert broker.status.disk_lost is not None
    member = observed.member(f"{broker.spec.group}-{broker.spec.slot}")
    incarnation = broker.status.disk_lost.incarnation or broker.status.incarnation
    if member is None or not incarnation or member.incarnation != incarnation or member.is_certified:
        return None
    return member


def _silent_node(observed: Observed, broker: Broker) -> NodeView | None:
    """The node on which the broker ran, if it exists with a silent kubelet and is not tainted out-of-service."""
    node = observed.nodes.get(broker.status.node)
    return node if node is not None and not node.is_ready and not node.is_out_of_service else None
