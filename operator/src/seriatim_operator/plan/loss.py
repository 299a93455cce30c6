"""A lost disk, in two latched steps: marked with its proof, then, in a later pass, given up.

What proves a loss is a closed list: no Node bears the host name that the volume is bound to, for the whole of
`nodeLossTimeoutSeconds`; every such Node is tainted out-of-service; or a person annotated the Broker. The text of an
event or the state of a pod proves nothing. The disk's slot then gets another Broker with another disk: a lost disk is a
lost member, for good.
"""

from __future__ import annotations

from ..spec.broker import Broker
from .actions import BeginOperation, DeleteClaim, DeletePod, MarkLost, Plan
from .observed import Observed

ANNOTATION_LOST = "seriatim.dev/disk-lost"
"""A person's word: `true` on a Broker."""

OPERATION = "ReplaceDisk"


def mark_losses(observed: Observed, plan: Plan) -> None:
    """Mark what is proved lost; at most one disk's loss is on its way at a time."""
    suspects = {broker.name: hosts for broker in _all_holders(observed) if (hosts := _gone_hosts(observed, broker))}
    hosts_gone = frozenset().union(*suspects.values()) if suspects else frozenset()
    pending = [b.name for b in observed.brokers.values() if b.status.disk_lost and not b.status.released]
    for broker in _all_holders(observed):
        proof = _word_of_a_person(broker) or _out_of_service(observed, broker)
        if proof is None and broker.name in suspects:
            proof = _gone_for_long(observed, broker, plan)
            if proof is not None and len(hosts_gone) > 1:
                plan.blocked_by.append(
                    f"{len(hosts_gone)} machines are gone at once ({', '.join(sorted(hosts_gone))}), more than one "
                    f"machine's loss: if their disks are lost, annotate each Broker with {ANNOTATION_LOST}=true"
                )
                continue
        if proof is None:
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
            note = f"the disk of {broker.name} is lost: {broker.status.disk_lost.proof}"
            plan.actions.append(DeletePod(pod.name, pod.uid, "DiskLost", note, at_once=True))
        elif claim is not None and not claim.is_deleting:
            plan.actions.append(
                DeleteClaim(claim.name, claim.uid, f"its disk is lost: {broker.status.disk_lost.proof}")
            )
        plan.look_again(1.0)
        return


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


def _word_of_a_person(broker: Broker) -> str | None:
    if broker.metadata.annotations.get(ANNOTATION_LOST) == "true":
        return f"the Broker was annotated {ANNOTATION_LOST}=true"
    return None


def _same_machine(observed: Observed, broker: Broker, pending: list[str]) -> bool:
    """Disks of one machine may be marked together: they are lost together."""
    hosts = observed.hosts_of(broker)
    return bool(hosts) and all(observed.hosts_of(observed.brokers[name]) == hosts for name in pending)
