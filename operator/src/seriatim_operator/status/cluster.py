"""The statuses of a cluster, its broker groups and its brokers: pure functions of what was observed and planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from seriatim_api.troubles import COORDINATOR_BEHIND

from ..plan.absence import (
    AS_PLANNED,
    NOT_TOLD,
    RETURNING,
    WAITS_S,
    absence,
    is_starting,
    planned_names,
    returning_names,
)
from ..plan.actions import CHILD_REFUSED, BeginOperation, EndOperation, Plan
from ..plan.cluster import OPERATION_S
from ..plan.cordon import leaving_members
from ..plan.external import ExternalAddresses, external_addresses, unused_names
from ..plan.loss import is_gone
from ..plan.observed import ANNOTATION_PLACE_ANEW, AuthorityView, BrokerGroupView, Ended, MemberView, Observed, PodView
from ..plan.spread import ONE_MACHINE_HOLDS_ALL, group_to_place_anew, machine_that_holds_all, may_mend_at_s
from ..resources.names import (
    ANNOTATION_REPLACE_AUTHORITY,
    FORMER,
    bootstrap_address,
    broker_group_object_name,
    client_service_name,
    selector_labels,
    selector_text,
)
from ..spec.broker import Broker, BrokerStatus, DiskLost, Released, Served
from ..spec.cluster import BrokerClusterStatus, Operation, PlannedChange
from ..spec.group import BrokerGroup, BrokerGroupStatus, MemberStatus
from ..spec.topic import TopicState
from . import reasons
from .conditions import MESSAGE_LENGTH_MAX, Fact, settle
from .disk_remedies import disk_remedy

DISK_REASONS = {
    "ForeignDiskError": "ForeignDisk",
    "WipedDiskError": "WipedDisk",
    "OldDiskError": "OldDisk",
    "DiskInUseError": "ClonedDisk",
    "LostDiskError": "LostDisk",
    "NewerFormatError": "NewerFormat",
    "OlderFormatError": "OlderFormat",
    "CorruptionError": "Corrupt",
}
"""The condition's reason for each error that a broker writes into its status file when it refuses its disk."""


def time_of(now_s: float) -> datetime:
    """Unix time in seconds as a time of the API, which has no fractions of a second."""
    return datetime.fromtimestamp(int(now_s), UTC)


REPORTED_S: Final = 60.0
"""Seconds after which the status is written although nothing has changed, so that users see that an operator acts."""

WAITS_FOR_COORDINATOR = "waits for the coordinator"
"""The words with which a broker says that it cannot reach etcd (`Broker.not_ready`)."""


# ---- brokers --------------------------------------------------------------------------------------------


def broker_status(observed: Observed, broker: Broker, plan: Plan) -> BrokerStatus:
    """The status of one incarnation. A lost disk and its release, once reported, stay in it."""
    before, pod, claim = broker.status, observed.pods.get(broker.name), observed.claims.get(broker.name)
    member = observed.member(f"{broker.spec.group}-{broker.spec.slot}")
    incarnation, run = before.incarnation, before.run
    for end in pod.ended if pod is not None else ():
        incarnation, run = end.incarnation or incarnation, end.run or run
    if member is not None and pod is not None and pod.is_ready and before.disk_lost is None:
        # Its pod is ready, so the brokers accept this disk in the slot.
        incarnation, run = member.incarnation, member.run
    served = before.served
    if pod is not None and pod.is_ready and (served is None or not pod.template_hash.startswith(FORMER)):
        served = Served(template=pod.template_hash, image=pod.image)
    lost = before.disk_lost
    if lost is None and broker.name in plan.lost:
        lost = DiskLost(at=time_of(observed.now_s), proof=plan.lost[broker.name], incarnation=incarnation)
    if lost is not None and (pod is not None or before.disk_lost is None):
        lost = lost.model_copy(update={"run": _last_run(member, lost.incarnation, lost.run or run)})
    released = before.released
    if before.disk_lost is not None and released is None and pod is None and claim is None:
        released = Released(at=time_of(observed.now_s))
    disk = before.disk
    if claim is not None:
        disk = f"{claim.name}: {claim.volume}" if claim.volume else claim.name
    facts = _broker_facts(observed, broker, pod, incarnation, plan.refused, is_lost=lost is not None)
    held = plan.held.get(broker.name)
    if held and lost is None:
        facts = [replace(fact, message=held) if fact.type == "DiskHealthy" else fact for fact in facts]
    return BrokerStatus(
        observed_generation=broker.metadata.generation,
        conditions=settle(
            before.conditions, facts, reasons.BROKER, generation=broker.metadata.generation, now_s=observed.now_s
        ),
        phase="Released" if released else "DiskLost" if lost else _phase(observed, pod),
        node=(pod.node if pod is not None else "") or before.node,
        node_uid=_node_uid(observed, pod) or before.node_uid,
        incarnation=incarnation,
        run=run,
        disk=disk,
        served=served,
        disk_lost=lost,
        released=released,
    )


def _node_uid(observed: Observed, pod: PodView | None) -> str:
    """The UID of the Node on which the pod serves; empty if it does not serve."""
    node = observed.nodes.get(pod.node) if pod is not None and pod.is_ready else None
    return node.uid if node is not None else ""


def _last_run(member: MemberView | None, incarnation: str, known: int | None) -> int | None:
    """The newest member run on a lost disk: `known`, or the one that the brokers have for this disk if it is newer.

    The caller asks only while the pod is there, because then no other process can have the disk.
    """
    if member is None or not incarnation or member.incarnation != incarnation:
        return known
    return member.run if known is None else max(known, member.run)


def _phase(observed: Observed, pod: PodView | None) -> Any:
    if pod is None or not pod.is_scheduled:
        return "Pending"
    if observed.has_lost_node(pod):
        return "Stopped"
    return "Running" if pod.is_running else "Pending" if not pod.ended else "Stopped"


def _broker_facts(
    observed: Observed,
    broker: Broker,
    pod: PodView | None,
    incarnation: str,
    refused: Mapping[str, str],
    *,
    is_lost: bool,
) -> list[Fact]:
    claim = observed.claims.get(broker.name)
    refusal = _refusal(pod)
    no_pod, no_claim = refused.get(f"Pod {broker.name}", ""), refused.get(f"PersistentVolumeClaim {broker.name}", "")
    if is_lost:
        ready = Fact("Ready", "False", "DiskLost", "its disk is given up; another disk takes its slot")
    elif pod is not None and pod.is_ready and not (pod.is_deleting and absence(observed, broker)):
        ready = Fact("Ready", "True", "Serving")
    elif refusal is not None:
        ready = Fact("Ready", "False", "Refused", refusal.text)
    elif planned := absence(observed, broker):
        ready = Fact("Ready", "False", planned)
    elif pod is not None and observed.has_lost_node(pod):
        ready = Fact("Ready", "False", "NodeGone", f"there is no Node {pod.node}")
    elif pod is not None and (node := observed.nodes.get(pod.node)) is not None and not node.is_ready:
        ready = Fact("Ready", "False", "NodeSilent", f"the kubelet of {node.name} does not answer")
    elif pod is not None and pod.is_running:
        ready = Fact("Ready", "False", "Starting", pod.says)
    else:
        ready = Fact("Ready", "False", "NotRunning", pod.why_not_ready if pod is not None else no_pod)
    scheduled = (
        Fact("Scheduled", "False", "NoPod", no_pod)
        if pod is None
        else Fact("Scheduled", "True", "OnNode", pod.node)
        if pod.is_scheduled
        else Fact(
            "Scheduled",
            "False",
            "NoNode",
            pod.why_not_ready or "no node takes its pod: kubectl describe pod says which rule each node breaks",
        )
    )
    bound = (
        Fact("StorageBound", "False", "NoClaim", no_claim)
        if claim is None
        else Fact("StorageBound", "True", "Bound", claim.volume)
        if claim.volume
        else Fact(
            "StorageBound", "False", "Unbound", "the storage class has no volume for it on a node that takes its pod"
        )
    )
    return [ready, scheduled, bound, _disk_fact(observed, broker, pod, refusal, incarnation, is_lost=is_lost)]


def _disk_fact(
    observed: Observed, broker: Broker, pod: PodView | None, refusal: Ended | None, incarnation: str, *, is_lost: bool
) -> Fact:
    if is_lost:
        return Fact("DiskHealthy", "False", "GivenUp")
    if is_gone(observed, broker):
        hosts = ", ".join(sorted(observed.hosts_of(broker)))
        timeout_s = observed.cluster.spec.node_loss_timeout_seconds
        return Fact(
            "DiskHealthy",
            "False",
            "NodeGone",
            f"no Node has the host name {hosts}; the disk is given up after {timeout_s} s",
        )
    if refusal is not None and refusal.error in DISK_REASONS:
        reason = DISK_REASONS[refusal.error]
        return Fact("DiskHealthy", "False", reason, _with_remedy(broker, reason, refusal.text.partition(" Remedy:")[0]))
    if pod is not None and (lacking := _lacks_its_disk(observed, broker, pod)) is not None:
        return Fact("DiskHealthy", "False", lacking[0], _with_remedy(broker, *lacking))
    if incarnation or (pod is not None and pod.is_ready):
        return Fact("DiskHealthy", "True", "Accepted")
    return Fact("DiskHealthy", "Unknown", "NotJoined")


def _lacks_its_disk(observed: Observed, broker: Broker, pod: PodView) -> tuple[str, str] | None:
    """Reason and words if the kubelet cannot give the pod its disk."""
    claim = observed.claims.get(broker.name)
    if not pod.mount_fails or claim is None or not claim.volume or claim.volume not in pod.mount_fails:
        return None
    node, known = observed.nodes.get(pod.node), broker.status.node_uid
    words = f"the kubelet of {pod.node} cannot mount volume {claim.volume} ({pod.mount_fails})"
    if node is None or not known or node.uid == known:
        return "MountFailed", words
    return (
        "NodeReplaced",
        f"{words}, and {pod.node} is another Node object than the one on which it served: it was made again",
    )


def _with_remedy(broker: Broker, reason: str, problem: str) -> str:
    """The problem with its remedy. The words of a broker have another one, which is not for Kubernetes."""
    return f"{problem.removesuffix('.')}. Remedy: {disk_remedy(broker, reason)}"


def _refusal(pod: PodView | None) -> Ended | None:
    """The end of the container in which the broker refused to run; None if the pod is ready or gave no error."""
    if pod is None or pod.is_ready or not pod.ended or not pod.ended[-1].error:
        return None
    return pod.ended[-1]


# ---- broker groups --------------------------------------------------------------------------------------


def broker_group_status(observed: Observed, item: BrokerGroup) -> BrokerGroupStatus:
    """The status of one broker group."""
    group, before = item.spec.group, item.status
    holders = observed.holders(group)
    members = tuple(_member_status(observed, broker) for broker in holders)
    view = (observed.members or {}).get(group)
    open_segments, segments = _counts(observed, item, view)
    ready = len(members) >= observed.cluster.spec.members_per_group and all(member.ready for member in members)
    away = ", ".join(member.broker for member in members if not member.ready) or "members are missing"
    if observed.members is None:
        note = "etcd does not answer the brokers" if observed.is_etcd_silent else "no broker answers"
        whole = Fact("Whole", "Unknown", NOT_TOLD, note)
    else:
        missing = frozenset(m.broker for m in view.members if not _serves(m)) if view is not None else frozenset()
        wanted = observed.cluster.spec.members_per_group
        is_whole = view is not None and len(view.members) >= wanted and not missing
        alone = [member for member in view.members if member.unlinked] if view is not None else []
        if is_whole and alone:
            note = f"{alone[0].broker} has no link to {', '.join(alone[0].unlinked)}: check the network between them"
            whole = Fact("Whole", "False", "NotLinked", note)
        elif missing and missing <= (returning := returning_names(observed)) | planned_names(observed):
            names = ", ".join(sorted(missing))
            is_returning = bool(missing & returning)
            whole = (
                Fact("Whole", "Unknown", RETURNING, names)
                if is_returning
                else Fact("Whole", "False", AS_PLANNED, names)
            )
        else:
            whole = Fact.of("Whole", is_whole, "AllThere" if is_whole else "Incomplete")
    drained = _drained(item, view, open_segments, segments)
    facts = [Fact.of("Ready", ready, "Serving" if ready else "MembersAway", "" if ready else away), whole, drained]
    return BrokerGroupStatus(
        observed_generation=item.metadata.generation,
        conditions=settle(
            before.conditions, facts, reasons.GROUP, generation=item.metadata.generation, now_s=observed.now_s
        ),
        members=members,
        brokers=",".join(member.broker for member in members),
        nodes=",".join(member.node or "-" for member in members),
        heads=open_segments,
        segments=segments,
    )


def _serves(member: MemberView) -> bool:
    return member.is_admitted and member.is_live and not member.is_certified


def _counts(observed: Observed, item: BrokerGroup, view: BrokerGroupView | None) -> tuple[int | None, int | None]:
    """Open segments, and segments that the broker group has copies of.

    A broker group that should lose them has the brokers' own count, which knows of every copy. The others have what
    the chains say, which costs no question.
    """
    if view is not None and view.open_segments is not None and view.segments is not None:
        return view.open_segments, view.segments
    if item.spec.state != "Active" or observed.chains is None:
        return item.status.heads, item.status.segments
    brokers = [f"{item.spec.group}-{broker.spec.slot}" for broker in observed.holders(item.spec.group)]
    return observed.chains.open_segments.get(item.spec.group, 0), observed.chains.segments_of(brokers)


def _drained(item: BrokerGroup, view: BrokerGroupView | None, open_segments: int | None, segments: int | None) -> Fact:
    """Whether the broker group is empty. Only a count of the brokers proves that."""
    is_counted = view is not None and view.open_segments is not None and view.segments is not None
    if not is_counted:
        known = item.status.condition("Drained")
        was_empty = view is None and known is not None and known.status == "True"  # the brokers have forgotten it
        if known is not None and (item.spec.state != "Active" or was_empty):
            return Fact("Drained", known.status, known.reason, known.message)
        if not open_segments and not segments:
            return Fact("Drained", "Unknown", "NotCounted")
    if not open_segments and not segments:
        return Fact("Drained", "True", "Empty")
    waits_for = _waits_for(item, view)
    return Fact("Drained", "False", "HeldUp" if waits_for else "HoldsData", waits_for)


def _waits_for(item: BrokerGroup, view: BrokerGroupView | None) -> str:
    """What holds up a drain. Without a count in this pass the last count's answer stays, as the counts do."""
    if view is not None and (view.open_segments is not None or view.intent == "ACTIVE"):
        return view.waits_for
    known = item.status.condition("Drained")
    return known.message if known is not None and known.reason == "HeldUp" else ""


def _member_status(observed: Observed, broker: Broker) -> MemberStatus:
    pod = observed.pods.get(broker.name)
    member = observed.member(f"{broker.spec.group}-{broker.spec.slot}")
    return MemberStatus(
        slot=broker.spec.slot,
        broker=broker.name,
        node=pod.node if pod is not None else "",
        role=_role(observed, broker),
        ready=pod is not None and pod.is_ready,
        incarnation=member.incarnation if member is not None else "",
    )


def _role(observed: Observed, broker: Broker) -> str:
    """`Master` if it is master of any open segment, `Slave` if it is not, empty while that is not known."""
    if observed.chains is None:
        return ""
    return "Master" if observed.chains.masters.get(f"{broker.spec.group}-{broker.spec.slot}") else "Slave"


# ---- the cluster ----------------------------------------------------------------------------------------


def cluster_status(observed: Observed, plan: Plan, hash_: str, cluster_id: str) -> BrokerClusterStatus:
    """The status of the cluster. Its operation is the one that is under way after the plan's steps."""
    cluster, before = observed.cluster, observed.cluster.status
    ready_groups = sum(_is_ready(observed, group) for group in observed.wanted_broker_groups)
    external = external_addresses(observed)
    is_taken = ("Service", client_service_name(cluster.name)) in observed.taken
    facts = [
        *_cluster_facts(observed, plan, ready_groups),
        _external_ready(observed, external),
        _authority_settled(observed),
        *_etcd_healthy(observed),
    ]
    status = BrokerClusterStatus(
        observed_generation=cluster.metadata.generation,
        conditions=settle(
            before.conditions, facts, reasons.CLUSTER, generation=cluster.metadata.generation, now_s=observed.now_s
        ),
        groups=len({broker.spec.group for broker in observed.brokers.values()}),
        ready_groups=ready_groups,
        topics=before.topics if observed.chains is None else observed.chains.topics,
        selector=selector_text(selector_labels(cluster.name)),
        cluster_id=cluster_id or before.cluster_id,
        bootstrap="" if is_taken else bootstrap_address(cluster),
        external_bootstrap=external.bootstrap,
        external_pending="; ".join(external.pending)[:1024],
        planned_changes=tuple(
            PlannedChange(action=change.action, object=change.object, reason=change.reason, hash=hash_)
            for change in plan.planned[:100]
        ),
        operation=operation_after(observed, plan),
        blocked_by="; ".join(plan.blocked_by)[:1024],
        reported_at=before.reported_at,
    )
    reported_s = before.reported_at.timestamp() if before.reported_at is not None else 0.0
    if status != before or observed.now_s - reported_s >= REPORTED_S:
        return status.model_copy(update={"reported_at": time_of(observed.now_s)})
    return status


def operation_after(observed: Observed, plan: Plan) -> Operation | None:
    """The operation that is under way after the plan's steps, or None."""
    operation = observed.cluster.status.operation
    for action in plan.actions:
        if isinstance(action, EndOperation):
            operation = None
        elif isinstance(action, BeginOperation):
            operation = Operation(
                kind=action.kind,
                object=action.object,
                started_at=time_of(observed.now_s),
                expires_at=time_of(observed.now_s + OPERATION_S),
            )
    return operation


def _is_ready(observed: Observed, group: str) -> bool:
    holders = observed.holders(group)
    pods = [observed.pods.get(broker.name) for broker in holders]
    return len(holders) >= observed.cluster.spec.members_per_group and all(p is not None and p.is_ready for p in pods)


def _cluster_facts(observed: Observed, plan: Plan, ready_groups: int) -> list[Fact]:
    wanted = len(observed.wanted_broker_groups)
    serving = f"{ready_groups} of {wanted} groups"
    ready = Fact.of(
        "Ready",
        ready_groups == wanted,
        "AllServing" if ready_groups == wanted else "SomeServing" if ready_groups else "NotServing",
        serving,
    )
    degraded = _degraded(observed, plan, ready_groups == wanted)
    operation = operation_after(observed, plan)
    waits = "; ".join(plan.blocked_by)
    if observed.cluster.spec.paused:
        progressing = Fact("Progressing", "False", "Paused", "spec.paused is set")
    elif operation is not None:
        told = "; ".join([f"{operation.kind} of {operation.object}", *plan.blocked_by])
        progressing = Fact("Progressing", "True", "Operating", told)
    elif waits:
        progressing = Fact("Progressing", "True", "Waiting", waits)
    elif ready.status != "True":
        progressing = Fact("Progressing", "True", "Applying", serving)
    else:
        progressing = Fact("Progressing", "False", "AsWanted")
    quiesced = progressing.status == "False"
    stable = quiesced and ready.status == "True" and degraded.status == "False"
    return [
        ready,
        progressing,
        degraded,
        Fact.of("Quiesced", quiesced, "Done" if quiesced else "Busy"),
        Fact.of("Stable", stable, "Steady" if stable else "Unsteady"),
    ]


def _external_ready(observed: Observed, external: ExternalAddresses) -> Fact:
    """Whether clients outside can be given an address of each broker, which the brokers' certificate names. It does not
    prove that they reach it.
    """
    if observed.cluster.spec.external is None:
        return Fact("ExternalReady", "True", "NotAsked")
    if external.pending:
        return Fact("ExternalReady", "False", "AddressesPending", "; ".join(external.pending))
    named = observed.certificate_names
    if unnamed := [] if named is None else [host for host in external.hosts if host not in named]:
        authority = observed.authority
        if authority is not None and authority.is_ours and set(unnamed) & set(authority.refused_names):
            return Fact("ExternalReady", "False", "AuthorityTooNarrow", _replace_it(authority, unnamed))
        return Fact("ExternalReady", "False", "CertificatePending", f"not named yet: {', '.join(unnamed)}")
    unused = ", ".join(unused_names(observed))
    note = f"all brokers have addresses; spec.external.brokers also names {unused}, which the cluster does not have"
    return Fact("ExternalReady", "True", "AllHaveAddresses", note if unused else "")


def _replace_it(authority: AuthorityView, unnamed: list[str]) -> str:
    hosts = ", ".join(unnamed)[:300]
    return (
        f"authority {authority.id} may name only hosts inside Kubernetes, not {hosts}. To replace it, annotate the "
        f"BrokerCluster with {ANNOTATION_REPLACE_AUTHORITY}={authority.id}; clients with copies of "
        f"ca.crt need the new one, for which {ANNOTATION_REPLACE_AUTHORITY}={authority.id}/TIME gives them until TIME"
    )


def _authority_settled(observed: Observed) -> Fact:
    """Whether all trust one authority. While one takes the place of another, it says until when which counts."""
    authority = observed.authority
    if not observed.cluster.spec.tls.enabled:
        return Fact("AuthoritySettled", "True", "NoTls")
    if authority is None:
        return Fact("AuthoritySettled", "Unknown", "NotTold")
    former, forget = ", ".join(authority.former), _minute(authority.forget_at)
    if former and authority.reissue_at is not None:
        reissue = _minute(authority.reissue_at)
        text = (
            f"{authority.id} takes the place of {former}. Brokers show certificates of {former} until {reissue}: by "
            f"then clients with copies need the new ca.crt. Brokers accept certificates of {former} until {forget}: "
            "between the two times clients with copies need the new tls.crt and tls.key"
        )
        return Fact("AuthoritySettled", "False", "NewTrusted", text)
    if former:
        text = (
            f"brokers show certificates of {authority.id}, and accept those of {former} until {forget}: by then "
            "clients with copies need the new tls.crt and tls.key"
        )
        return Fact("AuthoritySettled", "False", "NewSigns", text)
    if authority.not_followed:
        text = f"{ANNOTATION_REPLACE_AUTHORITY} is not followed: {authority.not_followed}"
        return Fact("AuthoritySettled", "False", "NotFollowed", text)
    told = f"{authority.id}, until {authority.ends_at:%Y-%m-%d}"
    if authority.is_due:
        text = f"{told}. Replace it: annotate the BrokerCluster with {ANNOTATION_REPLACE_AUTHORITY}={authority.id}"
        return Fact("AuthoritySettled", "False", "Due", text)
    return Fact("AuthoritySettled", "True", "One", told)


def _etcd_healthy(observed: Observed) -> list[Fact]:
    """Whether members, quorum and disks of the release's etcd are well; no fact about an etcd of others."""
    if observed.etcd is None:
        return []
    members = observed.etcd.members
    away = [f"{member.name} {member.why_away}" for member in members if member.why_away]
    used = [member.used for member in members if member.used is not None]
    told = f"{len(members) - len(away)} of {len(members)} members serve"
    if used:
        told += f", at most {max(used):.0%} of the quota used"
    told = "; ".join([told, *away])
    if len(away) == len(members):
        return [Fact("EtcdHealthy", "False", "NoQuorum", told)]
    if any(member.is_filling for member in members):
        return [Fact("EtcdHealthy", "False", "Filling", told)]
    if away:
        return [Fact("EtcdHealthy", "False", "MemberAway", told)]
    return [Fact("EtcdHealthy", "True", "AllMembers", f"{len(members)} of {len(members)} members serve")]


def _minute(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M} UTC"


def _degraded(observed: Observed, plan: Plan, all_ready: bool) -> Fact:
    """What is wrong. The reason is of the first trouble, and the message reports all of them."""
    troubles = [
        *_coordinator_troubles(observed),
        *plan.problems,
        *((CHILD_REFUSED, told) for told in plan.refusals),
        *_etcd_troubles(observed, all_ready),
        *_chain_troubles(observed, DANGERS),
        *_member_troubles(observed, all_ready),
        *_chain_troubles(observed, WEAKNESSES),
    ]
    if troubles:
        return Fact("Degraded", "True", troubles[0][0], "; ".join(message for _, message in troubles))
    if planned := [f"{name} ({why})" for name, why in _planned(observed).items()]:
        return Fact("Degraded", "False", AS_PLANNED, f"{', '.join(planned)}: nothing else is wrong")
    if not all_ready:
        ready = sum(_is_ready(observed, group) for group in observed.wanted_broker_groups)
        text = f"{ready} of {len(observed.wanted_broker_groups)} groups serve, and the others start for the first time"
        return Fact("Degraded", "False", "Starting", text)
    alone = machine_that_holds_all(observed)
    if alone and not observed.placed_anew:
        return Fact("Degraded", "False", ONE_MACHINE_HOLDS_ALL, _how_to_spread(observed, alone))
    return Fact("Degraded", "False", "Healthy")


def _planned(observed: Observed) -> dict[str, str]:
    """The Brokers that are not ready as planned, by name, and why."""
    brokers = sorted(observed.brokers.values(), key=lambda broker: broker.name)
    found = {broker.name: absence(observed, broker) for broker in brokers}
    return {name: why for name, why in found.items() if why and not _is_pod_ready(observed, name)}


def _is_pod_ready(observed: Observed, name: str) -> bool:
    pod = observed.pods.get(name)
    return pod is not None and pod.is_ready


def _coordinator_troubles(observed: Observed) -> list[tuple[str, str]]:
    if not observed.coordinator_behind:
        return []
    return [("CoordinatorBehind", f"{observed.coordinator_behind}. To do: {COORDINATOR_BEHIND.remedy}")]


def _etcd_troubles(observed: Observed, all_ready: bool) -> list[tuple[str, str]]:
    brokers = [b for b in observed.brokers.values() if not (is_starting(observed, b) or absence(observed, b))]
    pods = [pod for broker in brokers if (pod := observed.pods.get(broker.name)) is not None]
    waiting = [pod.says for pod in pods if WAITS_FOR_COORDINATOR in pod.says]
    remedy = "check that etcd runs, that spec.etcd.endpoints are right, and that the network lets brokers reach it"
    if waiting and not all_ready and observed.members is None:  # those that have etcd name the members
        return [("EtcdUnreachable", f"{waiting[0]}: {remedy}")]
    if observed.is_etcd_silent:
        return [
            ("EtcdSilent", f"etcd does not answer the brokers: messages continue, and nothing can fail over; {remedy}")
        ]
    return []


DANGERS: Final[Mapping[TopicState, tuple[str, str]]] = {
    "Unsettled": ("SegmentsUnsettled", "it is not known where a segment of {} ends: consumers wait there"),
    "Unreachable": ("SegmentsUnreachable", "no broker that has a segment of {} answers: consumers wait there"),
    "Lost": ("SegmentsLost", "an administrator declared segments of {} lost"),
}
"""Reason and message for each state of topics that stops consumers, or in which messages are lost."""

WEAKNESSES: Final[Mapping[TopicState, tuple[str, str]]] = {
    "OneCopy": ("OneCopy", "segments of {} have one copy left: brokers make the second (heal_after_s)"),
    "CopyAway": ("CopiesAway", "one broker that has copies of {} does not answer"),
    "CatchingUp": ("CatchingUp", "one broker surely has the ends of segments of {}: another copies them or is away"),
}
"""Reason and message for each state of topics in which the next fault would stop consumers or lose messages."""


def tells_of_last_copies(status: BrokerClusterStatus) -> bool:
    """Whether the cluster's status says, or does not exclude, that a disk may have the last copy of a segment."""
    found = status.condition("Degraded")
    if found is None or found.status == "Unknown" or len(found.message) >= MESSAGE_LENGTH_MAX:
        return True  # not reported yet, or the end is cut off
    sentences = [*(sentence for _, sentence in DANGERS.values()), WEAKNESSES["OneCopy"][1]]
    return found.status == "True" and any(sentence.partition("{}")[2] in found.message for sentence in sentences)


def _chain_troubles(observed: Observed, reasons: Mapping[TopicState, tuple[str, str]]) -> list[tuple[str, str]]:
    chains = observed.chains
    if chains is None:
        return []
    return [
        (reason, message.format(chains.told(state)))
        for state, (reason, message) in reasons.items()
        if chains.troubles.get(state)
    ]


def _member_troubles(observed: Observed, all_ready: bool) -> list[tuple[str, str]]:
    gone = [broker.name for broker in observed.all_holders() if is_gone(observed, broker)]
    if gone:
        return [("NodeGone", f"the machine of {', '.join(gone)} is gone")]
    if all_ready:
        return []
    planned = _planned(observed)
    away = [b for b in observed.all_holders() if not (_is_pod_ready(observed, b.name) or b.name in planned)]
    faulty = [broker for broker in away if not is_starting(observed, broker)]
    never = [told for broker in faulty if broker.status.served is None and (told := _start_trouble(observed, broker))]
    names = [broker.name for broker in faulty] + _empty_slots(observed)
    if not names:
        return []
    leaving = [name for name, brokers in leaving_members(observed).items() if brokers]
    note = ", ".join(names) + (f" (cordoned: {', '.join(leaving)})" if leaving else "")
    return [*never, *([("MembersAway", note)] if len(never) < len(names) else [])]


def _empty_slots(observed: Observed) -> list[str]:
    """Slots that had a disk and have none now. The first disk of a slot is made in the pass that finds none."""
    had = {(broker.spec.group, broker.spec.slot) for broker in observed.brokers.values()}
    held = {(broker.spec.group, broker.spec.slot) for broker in observed.all_holders()}
    wanted = set(observed.wanted_broker_groups)
    return [f"{group}-{slot} has no disk" for group, slot in sorted(had - held) if group in wanted]


def _start_trouble(observed: Observed, broker: Broker) -> tuple[str, str] | None:
    """What keeps a member from starting for the first time. Each pod lacks a node and an image for a moment."""
    pod = observed.pods.get(broker.name)
    if pod is None or observed.now_s - pod.created_s < WAITS_S or not (pod.lacks_image or pod.no_node):
        return None
    return "NoImage" if pod.lacks_image else "NoNode", f"{pod.name} does not start: {pod.why_not_ready}"


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """An Event on a BrokerCluster about its members and copies."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def danger(status: BrokerClusterStatus) -> str:
    """The reason of the Warning that there is about a cluster with this status; empty if there is none."""
    found = status.condition("Degraded")
    # After each switch a broker may catch up for a moment.
    is_one = found is not None and found.status == "True" and found.reason != "CatchingUp"
    return found.reason if found is not None and is_one else ""


def cluster_events(before: BrokerClusterStatus, after: BrokerClusterStatus, warned: str) -> list[ClusterEvent]:
    """Events for what went wrong with the cluster between two statuses, or is right again.

    Args:
        before: The older status.
        after: The newer one.
        warned: The reason of the last Event, if it was a Warning; otherwise empty. Only after one its end is news.
    """
    old, new = before.condition("Degraded"), after.condition("Degraded")
    if old is None or new is None or (old.status, old.reason) == (new.status, new.reason):
        return []
    if new.reason == CHILD_REFUSED:
        return []  # each refused write has an Event of its own, also if the reason is another
    if danger(after):
        return [ClusterEvent("Warning", new.reason, new.message)]
    return [ClusterEvent("Normal", "Recovered", f"no longer: {warned}")] if warned and new.status == "False" else []


def disk_events(broker: Broker, after: BrokerStatus) -> list[ClusterEvent]:
    """An Event for a disk that its broker cannot use any more, with what an administrator can do about it."""
    old, new = broker.status.condition("DiskHealthy"), after.condition("DiskHealthy")
    if new is None or new.status != "False" or new.reason in ("GivenUp", "NodeGone"):
        return []  # these have Events of their own
    if old is not None and old.reason == new.reason:
        return []
    return [ClusterEvent("Warning", new.reason, f"{broker.name}: {new.message}")]


def member_events(observed: Observed, item: BrokerGroup, after: BrokerGroupStatus) -> list[ClusterEvent]:
    """Events for members of a broker group that died, or are back."""
    old, new = item.status.condition("Whole"), after.condition("Whole")
    if old is None or new is None or (old.status, old.reason) == (new.status, new.reason):
        return []
    if new.status == "True" and old.reason in ("Incomplete", "NotLinked"):
        return [ClusterEvent("Normal", "MembersBack", f"all members of broker group {item.spec.group} answer")]
    live = observed.live_brokers | planned_names(observed) | returning_names(observed)
    away = [
        f"{member.broker}{' (master)' if member.role == 'Master' else ''}"
        for member in item.status.members
        if f"{item.spec.group}-{member.slot}" not in live
    ]
    if new.reason != "Incomplete" or not away:
        return []
    note = f"{', '.join(away)} of broker group {item.spec.group} does not answer"
    return [ClusterEvent("Warning", "MemberAway", f"{note}: its open segments go to other broker groups")]


def _how_to_spread(observed: Observed, machine: str) -> str:
    """What is wrong with the spread, and what an administrator can do."""
    problem = f"the loss of {machine} would leave no complete broker group"
    group = group_to_place_anew(observed, machine)
    if not group:
        return f"{problem}: add broker groups, or nodes for them"
    if observed.cluster.spec.spread_mending == "Automatic":
        at_s = may_mend_at_s(observed)
        at = datetime.fromtimestamp(at_s, UTC)
        when = f", not before {at:%Y-%m-%d %H:%M} UTC" if at_s > observed.now_s else ""
        return (
            f"{problem}, and other nodes have few brokers: the operator empties {group} and gives it disks on other "
            f"nodes when nothing else has been wrong for {observed.spread_quiet_s:.0f} s, no node and no broker group "
            f"is cordoned, and no disk is full{when}"
        )
    name = broker_group_object_name(observed.cluster.name, group)
    namespace = observed.cluster.namespace
    command = f"kubectl -n {namespace} annotate sgroup {name} {ANNOTATION_PLACE_ANEW}=true"
    return f"{problem}, and other nodes have few brokers: {command} empties {group} and gives it disks on other nodes"
