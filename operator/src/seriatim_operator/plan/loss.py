"""A lost disk, in two latched steps: marked with its proof, then, in a later pass, given up.

What proves a loss is a closed list: no Node bears the host name that the volume is bound to, for the whole of
`nodeLossTimeoutSeconds`; every such Node is tainted out-of-service; or a person annotated the Broker with the identity
of its disk. The text of an event or the state of a pod proves nothing. The disk's slot then gets another Broker with
another disk: a lost disk is a lost member, for good.

No disk is marked while the brokers hear from its process. A disk that is marked is given up in this order, so that
nothing is taken from a process that may live: the pod is deleted with grace, its end is confirmed, its run is certified
(`certificates`), and then the claim goes.
"""

from __future__ import annotations

from ..spec.broker import Broker
from .actions import AskGate, BeginOperation, DeleteClaim, DeletePod, MarkLost, Plan
from .certificates import CONFIRM_S, REMEDY_SILENT, has_certificate
from .observed import Observed, PodView

ANNOTATION_LOST = "seriatim.dev/disk-lost"
"""A person's word on a Broker: the identity of the disk that is lost (`lost_value`)."""

LAST_COPY = "last-copy"
"""After the identity and a slash: the person knows that other members lack something that is on the disk."""

COPIES_ELSEWHERE = ("SAFE", "NO_OTHER_GROUP")
"""Answers of the brokers' gate by which other members have all that is on a disk."""

OPERATION = "ReplaceDisk"


def mark_losses(observed: Observed, plan: Plan) -> None:
    """Mark what is proved lost; at most one disk's loss is on its way at a time."""
    suspects = {broker.name: hosts for broker in _all_holders(observed) if (hosts := _gone_hosts(observed, broker))}
    hosts_gone = frozenset().union(*suspects.values()) if suspects else frozenset()
    pending = [b.name for b in observed.brokers.values() if b.status.disk_lost and not b.status.released]
    for broker in _all_holders(observed):
        proof = _word_of_a_person(observed, broker, plan) or _out_of_service(observed, broker)
        if proof is None and broker.name in suspects:
            proof = _gone_for_long(observed, broker, plan)
            if proof is not None and len(hosts_gone) > 1:
                plan.blocked_by.append(
                    f"{len(hosts_gone)} machines are gone at once ({', '.join(sorted(hosts_gone))}), more than one "
                    f"machine's loss: if their disks are lost, annotate each Broker with {ANNOTATION_LOST}, and the "
                    "value of its status.incarnation"
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
            plan.blocked_by.append(f"the disk of {pending[0]} is being replaced: that of {broker.name} waits")
            continue
        plan.actions.append(MarkLost(broker.name, proof))
        pending.append(broker.name)


def release_lost(observed: Observed, plan: Plan) -> None:
    """Give up what is marked: pod, then claim; one disk at a time, under the cluster's operation."""
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
                DeleteClaim(claim.name, claim.uid, f"its disk is lost: {broker.status.disk_lost.proof}")
            )
        plan.look_again(CONFIRM_S)
        return


def _end_pod(observed: Observed, broker: Broker, pod: PodView, plan: Plan) -> None:
    """Delete the pod with grace, and wait for its kubelet; at once only if there is nothing to wait for."""
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
    """Whether no Node bears a host name of the broker's local disk: noticed, and not proved before its time."""
    return bool(_gone_hosts(observed, broker))


def _all_holders(observed: Observed) -> list[Broker]:
    names = [*observed.wanted_groups, *observed.leaving_groups]
    return [broker for group in names for broker in observed.holders(group)]


def _gone_hosts(observed: Observed, broker: Broker) -> frozenset[str]:
    if not observed.nodes:
        return frozenset()  # they may not be read, or there is nobody to ask: that proves nothing
    hosts = observed.hosts_of(broker)
    return hosts if hosts and not any(node.hostname in hosts for node in observed.nodes.values()) else frozenset()


def _gone_for_long(observed: Observed, broker: Broker, plan: Plan) -> str | None:
    """The proof, once the loss was noticed in an earlier pass and for long enough."""
    noticed = broker.status.condition("DiskHealthy")
    if noticed is None or noticed.reason != "NodeGone":
        return None  # this pass notices it: the report writes the condition
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
    """Whether a person named this disk, and its process is heard for as long as its live key lasts: no pod meanwhile.

    1  a person annotates the Broker and deletes its pod, as the held word asks
    2  the process has ended, and its live key stands for some seconds more, so the word is held
    3  without this rule the pod is made again, its process serves, and the word is held for good
    """
    disk, _, _ = broker.metadata.annotations.get(ANNOTATION_LOST, "").partition("/")
    return disk == lost_value(broker) and _is_heard(observed, broker)


def lost_value(broker: Broker) -> str:
    """What a person writes into the annotation: the identity of the disk, or the Broker's uid if it never joined."""
    return broker.status.incarnation or broker.spec.uid


def _word_of_a_person(observed: Observed, broker: Broker, plan: Plan) -> str | None:
    """The proof, if a person named this disk, its process is not there, and other members have what is on it.

    `true` is not accepted: it would go on to be true of the disk that takes the slot of a Broker that is copied, and it
    says nothing about which disk the person looked at.
    """
    said = broker.metadata.annotations.get(ANNOTATION_LOST, "")
    if not said:
        return None
    wanted, (disk, _, word) = lost_value(broker), said.partition("/")
    about = f"{ANNOTATION_LOST}={said} on {broker.name} is not followed:"
    pod = observed.pods.get(broker.name)
    if disk != wanted or word not in ("", LAST_COPY):
        plan.hold(
            broker.name, f"{about} it must name the disk. If it is lost for good, write {ANNOTATION_LOST}={wanted}"
        )
        return None
    if pod is not None and pod.is_ready:
        why = f"its pod is Ready. If the disk has to be replaced although it serves, delete pod {pod.name}"
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
    """Whether the brokers say that the process on this disk is live."""
    member = observed.member(f"{broker.spec.group}-{broker.spec.slot}")
    return member is not None and member.is_live and member.incarnation == broker.status.incarnation


def _same_machine(observed: Observed, broker: Broker, pending: list[str]) -> bool:
    """Disks of one machine may be marked together: they are lost together."""
    hosts = observed.hosts_of(broker)
    return bool(hosts) and all(observed.hosts_of(observed.brokers[name]) == hosts for name in pending)
