"""Plans what happens to a lost disk: it is marked with a proof and, in a later pass, given up.

Only these three things prove a loss:

1. No Node has the host name to which the volume is bound, for the whole of `nodeLossTimeoutSeconds`.
2. Every such Node is tainted out-of-service.
3. An administrator annotated the Broker with the identity of its disk.

The text of an event or the state of a pod proves nothing. A lost disk is a lost member, for good: its slot gets another
Broker with another disk.

No disk is marked while the brokers hear from its process. A marked disk is given up in this order, so that nothing is
taken from a process that may live: the pod is deleted with grace, its end is confirmed, its member run is certified
(`certificates`), and then the claim is deleted.
"""

from __future__ import annotations

from ..spec.broker import Broker
from .actions import AskGate, BeginOperation, DeleteClaim, DeletePod, Plan
from .certificates import CONFIRM_S, REMEDY_SILENT, has_certificate
from .observed import Observed, PodView

ANNOTATION_LOST = "seriatim.dev/disk-lost"
"""With this annotation of a Broker an administrator says that its disk is lost. The value names the disk
(`lost_value`)."""

LAST_COPY = "last-copy"
"""After the identity and a slash: the administrator accepts that other members may lack what is on the disk."""

COPIES_ELSEWHERE = ("SAFE", "NO_OTHER_GROUP")
"""Answers of the brokers' gate with which other members have everything that is on a disk."""

OPERATION = "ReplaceDisk"


def mark_losses(observed: Observed, plan: Plan) -> None:
    """Mark disks that are proved lost. Until a marked disk is released, only disks of the same machine are marked."""
    suspects = {broker.name: hosts for broker in _all_holders(observed) if (hosts := _gone_hosts(observed, broker))}
    hosts_gone = frozenset().union(*suspects.values()) if suspects else frozenset()
    pending = [b.name for b in observed.brokers.values() if b.status.disk_lost and not b.status.released]
    for broker in _all_holders(observed):
        proof = _word_of_a_person(observed, broker, plan) or _out_of_service(observed, broker)
        if proof is None and broker.name in suspects:
            proof = _gone_for_long(observed, broker, plan)
            if proof is not None and len(hosts_gone) > 1:
                plan.blocked_by.append(
                    f"{len(hosts_gone)} machines are gone at once ({', '.join(sorted(hosts_gone))}), so the disks are "
                    f"kept: if they are lost, annotate each Broker with {ANNOTATION_LOST} and the value of its "
                    "status.incarnation"
                )
                continue
        if proof is None:
            continue
        if _is_heard(observed, broker):
            plan.hold(
                broker.name, f"the disk of {broker.name} is not given up: the brokers still hear from its process"
            )
            plan.look_again(CONFIRM_S)
            continue
        if pending and not _same_machine(observed, broker, pending):
            plan.blocked_by.append(f"the disk of {pending[0]} is being replaced: the disk of {broker.name} waits")
            continue
        plan.mark_lost(broker.name, proof)
        pending.append(broker.name)


def release_lost(observed: Observed, plan: Plan) -> None:
    """Give up a marked disk: first its pod, then its claim. One disk at a time, under the cluster's operation."""
    operation = observed.cluster.status.operation
    for broker in sorted(observed.brokers.values(), key=lambda b: b.name):
        if broker.status.disk_lost is None or broker.status.released is not None:
            continue
        if operation is None:
            plan.actions.append(BeginOperation(OPERATION, broker.name, broker.status.disk_lost.proof))
            return
        if (operation.kind, operation.object) != (OPERATION, broker.name):
            plan.blocked_by.append(f"{operation.kind} of {operation.object} is under way: {broker.name} waits")
            plan.look_again(1.0)
            return
        pod, claim = observed.pods.get(broker.name), observed.claims.get(broker.name)
        if pod is not None:
            _end_pod(observed, broker, pod, plan)
        elif not has_certificate(observed, broker):
            plan.blocked_by.append(f"the claim of {broker.name} is kept until the end of its process is certified")
        elif claim is not None and not claim.is_deleting:
            plan.actions.append(
                DeleteClaim(claim.name, claim.uid, f"its disk is lost: {broker.status.disk_lost.proof}", is_lost=True)
            )
        plan.look_again(CONFIRM_S)
        return


def _end_pod(observed: Observed, broker: Broker, pod: PodView, plan: Plan) -> None:
    """Delete the pod with grace, and wait until its kubelet confirms its end.

    The pod is deleted at once only if its Node is gone or out of service, because then no kubelet can confirm it.
    """
    assert broker.status.disk_lost is not None
    note = f"the disk of {broker.name} is lost: {broker.status.disk_lost.proof}"
    node = observed.nodes.get(pod.node)
    at_once = bool(observed.nodes) and pod.is_scheduled and (node is None or node.is_out_of_service)
    if at_once or not pod.is_deleting:
        plan.actions.append(DeletePod(pod.name, pod.uid, "DiskLost", note, at_once=at_once))
    else:
        plan.blocked_by.append(
            f"pod {pod.name} is being deleted, and the kubelet of {pod.node} has not confirmed that its process ended: "
            f"{REMEDY_SILENT.format(node=pod.node)}"
        )


def is_gone(observed: Observed, broker: Broker) -> bool:
    """Whether no Node has a host name of the broker's local disk now. This alone is not yet a proof of a loss."""
    return bool(_gone_hosts(observed, broker))


def _all_holders(observed: Observed) -> list[Broker]:
    names = [*observed.wanted_broker_groups, *observed.leaving_broker_groups]
    return [broker for group in names for broker in observed.holders(group)]


def _gone_hosts(observed: Observed, broker: Broker) -> frozenset[str]:
    if not observed.nodes:
        return frozenset()  # the operator may not read Nodes, or there are none: that proves nothing
    hosts = observed.hosts_of(broker)
    return hosts if hosts and not any(node.hostname in hosts for node in observed.nodes.values()) else frozenset()


def _gone_for_long(observed: Observed, broker: Broker, plan: Plan) -> str | None:
    """The proof, if an earlier pass noticed that the Node is gone and it has lasted for `nodeLossTimeoutSeconds`."""
    noticed = broker.status.condition("DiskHealthy")
    if noticed is None or noticed.reason != "NodeGone":
        return None  # this pass notices it, and its report writes the condition
    timeout_s = observed.cluster.spec.node_loss_timeout_seconds
    left_s = noticed.last_transition_time.timestamp() + timeout_s - observed.now_s
    if left_s > 0:
        plan.look_again(left_s + 0.1)
        return None
    hosts = ", ".join(sorted(observed.hosts_of(broker)))
    return f"no Node has the host name {hosts} that the volume is bound to, for {timeout_s} s"


def _out_of_service(observed: Observed, broker: Broker) -> str | None:
    nodes = observed.nodes_of(broker)
    if observed.hosts_of(broker) and nodes and all(node.is_out_of_service for node in nodes):
        return f"Node {', '.join(node.name for node in nodes)} is tainted out-of-service"
    return None


def waits_for_its_end(observed: Observed, broker: Broker) -> bool:
    """Whether an administrator named this disk and the brokers still hear from its process. Then no pod is made for it.

    Without this rule:

    1. An administrator annotates the Broker and deletes its pod, as the operator's message asks.
    2. The process ends. Its live key in etcd lasts some seconds more, so the annotation is not followed yet.
    3. The operator makes the pod again, and its process serves. Now the annotation is never followed.
    """
    disk, _, _ = broker.metadata.annotations.get(ANNOTATION_LOST, "").partition("/")
    return disk == lost_value(broker) and _is_heard(observed, broker)


def lost_value(broker: Broker) -> str:
    """The value of the annotation: the identity of the disk, or the Broker's uid if the disk never joined."""
    return broker.status.incarnation or broker.spec.uid


def _word_of_a_person(observed: Observed, broker: Broker, plan: Plan) -> str | None:
    """The proof, if an administrator named this disk, no process on it is heard, and other members have what is on it.

    The value `true` is not accepted, for two reasons. It does not say which disk the administrator looked at. And if
    the Broker's manifest is copied, the annotation would also be true of the next disk.
    """
    said = broker.metadata.annotations.get(ANNOTATION_LOST, "")
    if not said:
        return None
    wanted, (disk, _, word) = lost_value(broker), said.partition("/")
    about = f"{ANNOTATION_LOST}={said} on {broker.name} is not followed:"
    pod = observed.pods.get(broker.name)
    if disk != wanted or word not in ("", LAST_COPY):
        plan.hold(
            broker.name,
            f"{about} it must name the disk. If the disk is lost for good, write {ANNOTATION_LOST}={wanted}",
        )
        return None
    if pod is not None and pod.is_ready:
        why = f"its pod is Ready. If the disk must be replaced although it serves, delete pod {pod.name}"
        plan.hold(broker.name, f"{about} {why}")
        return None
    if _is_heard(observed, broker):
        why = "the brokers still hear from its process. End it: stop its machine, or delete its pod"
        plan.hold(broker.name, f"{about} {why}")
        plan.look_again(CONFIRM_S)
        return None
    gate = observed.gates.get(f"{broker.spec.group}-{broker.spec.slot}")
    if gate is None:
        plan.actions.append(AskGate(f"{broker.spec.group}-{broker.spec.slot}"))
        return None
    if gate.verdict not in COPIES_ELSEWHERE and word != LAST_COPY:
        why = f"other members may lack what is on it ({gate.text}). If it is lost for good all the same, write"
        plan.hold(broker.name, f"{about} {why} {ANNOTATION_LOST}={wanted}/{LAST_COPY}")
        plan.look_again(CONFIRM_S)
        return None
    return f"the Broker was annotated {ANNOTATION_LOST}={said}; the brokers say of its copies: {gate.text}"


def _is_heard(observed: Observed, broker: Broker) -> bool:
    """Whether the brokers hear from the process on this disk."""
    member = observed.member(f"{broker.spec.group}-{broker.spec.slot}")
    return member is not None and member.is_live and member.incarnation == broker.status.incarnation


def _same_machine(observed: Observed, broker: Broker, pending: list[str]) -> bool:
    """Whether the broker's disk and the pending ones are on one machine. Such disks are lost together."""
    hosts = observed.hosts_of(broker)
    return bool(hosts) and all(observed.hosts_of(observed.brokers[name]) == hosts for name in pending)
