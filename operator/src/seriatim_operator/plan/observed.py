"""The objects of one cluster as the plan sees them, parsed from the answers of the API and the brokers.

A view has only what a decision needs. Times are Unix times in seconds, from the API's clock. They are compared with
`Observed.now_s`, never with a monotonic clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from seriatim_api import troubles
from seriatim_api.ids import MemberId

from ..resources.names import (
    ANNOTATION_PLACEMENT_HASH,
    ANNOTATION_TEMPLATE_HASH,
    CONTAINER,
    LABEL_BROKER_UID,
    LABEL_GROUP,
    LABEL_SLOT,
    config_name,
)
from ..spec.broker import Broker
from ..spec.cluster import BrokerCluster
from ..spec.group import BrokerGroup
from .chains import ChainsView

Manifest = Mapping[str, Any]

HOSTNAME_LABEL = "kubernetes.io/hostname"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
ANNOTATION_PLACE_ANEW = "seriatim.dev/place-anew"
"""With this annotation of a BrokerGroup, whatever its value, an administrator asks for other disks for the broker
group. It is drained, removed and made again, as if `spec.groups` had been lowered and raised. The annotation goes with
the object.
"""

ANNOTATION_SPREAD_MENDED = "seriatim.dev/spread-mended"
"""When the operator last placed a broker group of the cluster again by itself, and how uneven the spread was before."""

SPREAD_QUIET_S = 600.0
"""Seconds for which nothing else must be wrong before the operator mends the spread by itself."""

MOUNTED: Final = ("ConfigMap", "Secret", "ServiceAccount")
"""Kinds of children that every pod of the cluster uses."""

LEAVING_TAINTS = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
"""Taints with which autoscalers announce that they will remove a node."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node, with its `effect`, such as `NoSchedule`."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A machine.

    Attributes:
        name: The name of the Node object.
        hostname: The value of its hostname label, which volumes name. It is not always the name of the Node object.
        is_ready: Its condition `Ready` is True.
        is_leaving: It is cordoned, or has a taint that announces its end: open segments must leave it.
        is_out_of_service: It has the out-of-service taint, with which an administrator says that no process runs on it.
        addresses: Types and values of its addresses, in the order of its status.
        labels: Its labels.
        taints: Its taints.
        uid: The UID of the Node object. A machine that is made again under its name has another one.
    """

    name: str
    hostname: str
    is_ready: bool
    is_leaving: bool
    is_out_of_service: bool
    addresses: tuple[tuple[str, str], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a container, as the kubelet reports it, with what the broker wrote into its status file.

    Attributes:
        broker: The broker's name in the protocol; empty if it wrote none.
        incarnation, run: The member run that ended; empty and 0 if the process ended before it had one.
        exit_code: The exit code of the container.
        at_s: When the container ended.
        error, text: Name and text of the error with which the broker refused to run; empty if it did not refuse.
    """

    broker: str
    incarnation: str
    run: int
    exit_code: int
    at_s: float
    error: str
    text: str


IMAGE_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "ErrImageNeverPull",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""The kubelet's reasons for a container that waits for its image (`pkg/kubelet/images/types.go` of Kubernetes 1.36,
and `pkg/errors` of its CRI API)."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A broker's pod.

    Attributes:
        is_running: The container runs now, ready or not.
        is_over: The pod itself has ended, for instance because its kubelet evicted it, and will not run again.
        waiting: The kubelet's reason why the container waits; empty if it does not wait.
        ended: Ends of its container that the kubelet still reports, the newest last.
        host_ip: The address of its node; empty before it has one.
        says: Why the broker is not ready, in its own words; empty if the operator did not ask or got no answer.
        image: The image of its container.
        placement_hash: The hash of its placement; empty if an older operator made it.
        no_node: Why no node takes it, in the scheduler's words; empty if it has one, or the scheduler said nothing yet.
        mount_fails: Why it cannot start with its volumes, in the kubelet's words; empty if the operator did not ask or
            nothing is said of it.
        waits_since_s: Since when it has no sandbox in which a container can start: since it was made, or since its
            machine was made again under its name.
    """

    name: str
    uid: str
    group: str
    slot: int
    node: str
    ip: str
    is_ready: bool
    is_running: bool
    is_deleting: bool
    is_scheduled: bool
    is_over: bool
    template_hash: str
    created_s: float
    restarts: int
    waiting: str
    ended: tuple[Ended, ...]
    says: str = ""
    host_ip: str = ""
    image: str = ""
    placement_hash: str = ""
    no_node: str = ""
    mount_fails: str = ""
    waits_since_s: float = 0.0

    @property
    def broker(self) -> str:
        """The broker's name in the protocol."""
        return f"{self.group}-{self.slot}"

    @property
    def lacks_image(self) -> bool:
        """Whether the container waits because the kubelet cannot get its image, for any of `IMAGE_REASONS`."""
        return self.waiting in IMAGE_REASONS

    @property
    def waits_for_volumes(self) -> bool:
        """Whether it has a node and its images, and its container is still to be made there. A container that ended is
        made again without a word of that, unless its machine was made again.
        """
        reasons = ("ContainerCreating",) if self.ended else ("", "ContainerCreating", "PodInitializing")
        has_begun = self.is_running or self.is_deleting or self.is_over
        return self.is_scheduled and not has_begun and self.waiting in reasons

    @property
    def why_not_ready(self) -> str:
        """Why the pod is not ready, and what reports more; empty if nothing says why."""
        if not self.is_scheduled:
            return f"no node takes it: {self.no_node}" if self.no_node else ""
        if self.lacks_image:
            # The kubelet's own words alternate between two tries.
            return f"its image cannot be pulled ({self.image}): kubectl describe pod {self.name} says why"
        if self.mount_fails:
            return f"the kubelet cannot give it its volumes: {self.mount_fails}"
        if self.waiting:
            return f"the kubelet says {self.waiting}"
        return self.says


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A broker's volume claim."""

    name: str
    uid: str
    volume: str
    is_deleting: bool
    requested: str
    group: str = ""
    slot: int = 0
    broker_uid: str = ""
    created_s: float = 0.0


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A persistent volume, and the host names from which it can be reached; empty if from any host."""

    name: str
    hostnames: frozenset[str]


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as the brokers have it registered.

    `unlinked` has the live members of its broker group to which it has no link. `disk_state` is `full`, `hangs`, or
    empty.
    """

    broker: str
    incarnation: str
    run: int
    is_admitted: bool
    is_live: bool
    is_certified: bool
    unlinked: tuple[str, ...] = ()
    disk_state: str = ""

    @property
    def disk(self) -> str:
        """The disk, as brokers name it in summaries of chains."""
        return str(MemberId(self.broker, self.incarnation))


@dataclass(frozen=True, slots=True)
class BrokerGroupView:
    """A broker group as the brokers know it.

    Attributes:
        intent: `ACTIVE`, `CORDONED` or `DRAINING`.
        open_segments, segments: Open segments on it, and segments that it has copies of; None if they were not asked
            for.
        waits_for: What holds up its drain, in the brokers' words. It comes with the counts; empty if nothing does.
    """

    group: str
    intent: str
    weight: float
    open_segments: int | None
    segments: int | None
    members: tuple[MemberView, ...]
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class GateView:
    """The brokers' answer to the question whether a member may be stopped now (`CheckRestart`)."""

    broker: str
    is_safe: bool
    verdict: str
    text: str


@dataclass(frozen=True, slots=True)
class ClassView:
    """The storage class of a cluster."""

    name: str
    waits_for_consumer: bool
    can_expand: bool


ETCD_FILLING: Final = 0.8
"""An etcd that uses more of its quota than this part will soon refuse writes."""


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """A member of the release's etcd.

    Attributes:
        name: The name of its pod.
        why_away: Why it does not serve; empty if it does.
        used: The part of its quota that it uses; None if that is not known.
    """

    name: str
    why_away: str = ""
    used: float | None = None

    @property
    def is_filling(self) -> bool:
        """Whether it will soon refuse writes."""
        return self.used is not None and self.used > ETCD_FILLING


@dataclass(frozen=True, slots=True)
class EtcdView:
    """The etcd of the operator's release. One member that serves proves a quorum."""

    members: tuple[EtcdMember, ...]

    @property
    def has_majority(self) -> bool:
        """Whether most members serve. Otherwise etcd has lost its quorum, or is about to lose it."""
        return 2 * sum(not member.why_away for member in self.members) > len(self.members)


@dataclass(frozen=True, slots=True)
class AuthorityView:
    """The authority that signs the cluster's certificates, and those that are trusted beside it.

    Attributes:
        id: Names it, in the annotation that replaces it.
        ends_at: When its own certificate ends.
        is_due: Whether an administrator should replace it.
        is_ours: Whether the operator made it, and so can replace it.
        former: The ids of the authorities that are trusted beside it, while it is taking their place.
        reissue_at: When it issues all certificates; None if it has issued them.
        forget_at: From when on the former ones are not trusted any more; None without any.
        refused_names: Names that brokers' certificates should have and that it may not give.
        not_followed: Why the annotation that should replace it is not followed; empty if nothing is wrong with it.
    """

    id: str
    ends_at: datetime
    is_due: bool = False
    is_ours: bool = True
    former: tuple[str, ...] = ()
    reissue_at: datetime | None = None
    forget_at: datetime | None = None
    refused_names: tuple[str, ...] = ()
    not_followed: str = ""


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A Service for clients outside.

    Attributes:
        type: `NodePort` or `LoadBalancer`.
        node_port: Its port on all nodes; 0 if it has none (yet).
        hosts: Addresses or names of its load balancer; empty before it has one.
    """

    name: str
    uid: str
    type: str
    node_port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Observed:
    """Everything that concerns a cluster, observed at one time. It is not changed, so what is derived from it is kept.

    Attributes:
        now_s: The Unix time of the observation, in seconds.
        members: The broker groups as the brokers know them, by name; None if no broker answered.
        gates: Answers to `CheckRestart` in this pass, by the broker's name in the protocol. The plan asks for them.
        last_settings: The settings that the brokers were given last. Observed only if `spec.settings` are not good;
            None if they are, or if the brokers were never given any.
        chains: What the chains of all topics say; None until the brokers have reported them.
        services: The Services for clients outside.
        certificate_names: The names that the brokers' certificate has; None without TLS.
        etcd: The etcd of the operator's release; None if the cluster has another one, or it was not seen.
        authority: The authority that signs; None if it is not known, or without TLS.
        spread_quiet_s: Seconds for which nothing else must be wrong before the operator mends the spread by itself.
        is_etcd_silent: Brokers answer, but not the question about members, for which they need etcd.
        taken: Kinds and names of children that objects of others have, and to whom each belongs.
        refused: The writes that the API server refuses now, such as `ConfigMap orders-config`.
    """

    cluster: BrokerCluster
    now_s: float
    groups: Mapping[str, BrokerGroup] = field(default_factory=dict)
    brokers: Mapping[str, Broker] = field(default_factory=dict)
    pods: Mapping[str, PodView] = field(default_factory=dict)
    claims: Mapping[str, ClaimView] = field(default_factory=dict)
    volumes: Mapping[str, VolumeView] = field(default_factory=dict)
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    services: Mapping[str, ServiceView] = field(default_factory=dict)
    storage_class: ClassView | None = None
    members: Mapping[str, BrokerGroupView] | None = None
    gates: Mapping[str, GateView] = field(default_factory=dict)
    last_settings: Mapping[str, str] | None = None
    chains: ChainsView | None = None
    certificate_names: frozenset[str] | None = None
    authority: AuthorityView | None = None
    etcd: EtcdView | None = None
    is_etcd_silent: bool = False
    spread_quiet_s: float = SPREAD_QUIET_S
    taken: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()

    @property
    def settings_refused(self) -> bool:
        """Whether the API server refuses the ConfigMap with the brokers' settings: those in place are older."""
        return f"ConfigMap {config_name(self.cluster.name)}" in self.refused

    @property
    def mounts_in_doubt(self) -> str:
        """What pods mount and what is not as the cluster wants it, and why; empty if there is no such thing."""
        taken = [f"{kind} {name} belongs to others" for kind, name in sorted(self.taken) if kind in MOUNTED]
        refused = [f"{write} cannot be written" for write in sorted(self.refused) if write.startswith(MOUNTED)]
        return "; ".join([*taken, *refused])

    @property
    def cluster_in_force(self) -> BrokerCluster:
        """The cluster from which the brokers' children are made: with the last good settings in place of bad ones."""
        if self.last_settings is None:
            return self.cluster
        spec = self.cluster.spec.model_copy(update={"settings": dict(self.last_settings)})
        return self.cluster.model_copy(update={"spec": spec})

    @cached_property
    def placed_anew(self) -> str:
        """The broker group that is removed now to be made again on other disks; empty if there is none.

        If administrators annotated several, the first one comes first: the others must take over its segments
        meanwhile. So the only broker group of a cluster stays where it is.
        """
        counted = [f"g{number}" for number in range(self.cluster.spec.groups)]
        if len(counted) < 2:
            return ""
        asked = {item.spec.group for item in self.groups.values() if ANNOTATION_PLACE_ANEW in item.metadata.annotations}
        return next((group for group in counted if group in asked), "")

    @cached_property
    def wanted_broker_groups(self) -> list[str]:
        """Names of the broker groups that the cluster should have now, in order."""
        anew = self.placed_anew
        return [name for number in range(self.cluster.spec.groups) if (name := f"g{number}") != anew]

    @cached_property
    def leaving_broker_groups(self) -> list[str]:
        """Names of broker groups that exist and that `spec.groups` does not count, and of the one that is placed again;
        the newest first.
        """
        wanted = set(self.wanted_broker_groups)
        there = {group.spec.group for group in self.groups.values()} | {b.spec.group for b in self.brokers.values()}
        return sorted(there - wanted, key=lambda name: int(name[1:]), reverse=True)

    @cached_property
    def _holders(self) -> Mapping[str, list[Broker]]:
        by_slot: dict[str, dict[int, Broker]] = {}
        for broker in sorted(self.brokers.values(), key=lambda b: (seconds_of(b), b.name)):
            if broker.status.disk_lost is None and not broker.metadata.is_deleted:
                by_slot.setdefault(broker.spec.group, {}).setdefault(broker.spec.slot, broker)
        return {group: [slots[slot] for slot in sorted(slots)] for group, slots in by_slot.items()}

    def holders(self, group: str) -> list[Broker]:
        """The Brokers that have the slots of a broker group now, ordered by slot, at most one for each slot.

        Brokers whose disk is lost or whose object is being deleted have no slot.
        """
        return self._holders.get(group, [])

    def all_holders(self) -> list[Broker]:
        """The holders of all wanted broker groups."""
        return [broker for group in self.wanted_broker_groups for broker in self.holders(group)]

    def hosts_of(self, broker: Broker) -> frozenset[str]:
        """The host names to which the broker's volume is bound; empty if it has no volume or the disk is not local."""
        claim = self.claims.get(broker.name)
        volume = self.volumes.get(claim.volume) if claim is not None else None
        return volume.hostnames if volume is not None else frozenset()

    def nodes_of(self, broker: Broker) -> list[NodeView]:
        """The Nodes of the broker's disk. If the disk is not local, the Node on which the broker runs or ran last."""
        hosts = self.hosts_of(broker)
        if hosts:
            return [node for node in self.nodes.values() if node.hostname in hosts]
        pod = self.pods.get(broker.name)
        name = pod.node if pod is not None and pod.node else broker.status.node
        return [self.nodes[name]] if name in self.nodes else []

    @cached_property
    def coordinator_behind(self) -> str:
        """Name of a pod whose broker says that the coordinator has lost decisions, and its words; else empty."""
        told = ((pod.name, troubles.read(pod.says)) for pod in self.pods.values() if pod.name in self.brokers)
        for name, found in told:
            for trouble, text in found:
                if trouble is troubles.COORDINATOR_BEHIND:
                    return f"{name} says: {text.partition('. Acknowledged')[0]}"
        return ""

    def has_lost_node(self, pod: PodView) -> bool:
        """Whether there is no Node of the pod's. Kubernetes deletes the pod later, and until then calls it running."""
        return bool(self.nodes) and pod.is_scheduled and pod.node not in self.nodes

    @cached_property
    def live_brokers(self) -> frozenset[str]:
        """Names of the members that are live; empty if no broker answered."""
        groups = (self.members or {}).values()
        return frozenset(member.broker for group in groups for member in group.members if member.is_live)

    @cached_property
    def live_disks(self) -> frozenset[str]:
        """The disks of the members that are live, as brokers name them in summaries of chains."""
        groups = (self.members or {}).values()
        return frozenset(member.disk for group in groups for member in group.members if member.is_live)

    @cached_property
    def _members(self) -> Mapping[str, MemberView]:
        return {member.broker: member for group in (self.members or {}).values() for member in group.members}

    def member(self, broker: str) -> MemberView | None:
        """A member by its name in the protocol; None if the brokers do not know it or did not answer."""
        return self._members.get(broker)


def seconds_of(broker: Broker) -> float:
    """When the object was made, as Unix time in seconds; 0 if the API did not say."""
    created = broker.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0


# ---- parsing --------------------------------------------------------------------------------------------


def seconds(text: str | None) -> float:
    """The Unix time in seconds of a timestamp of the API; 0 for None."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


def node_view(manifest: Manifest) -> NodeView:
    """The view of a Node."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    taints = tuple(
        Taint(str(taint.get("key") or ""), str(taint.get("value") or ""), str(taint.get("effect") or ""))
        for taint in spec.get("taints") or ()
    )
    tainted = {taint.key for taint in taints}
    conditions = {c["type"]: c["status"] for c in (manifest.get("status") or {}).get("conditions") or ()}
    return NodeView(
        name=metadata["name"],
        hostname=(metadata.get("labels") or {}).get(HOSTNAME_LABEL, metadata["name"]),
        is_ready=conditions.get("Ready") == "True",
        is_leaving=bool(spec.get("unschedulable")) or bool(tainted & LEAVING_TAINTS),
        is_out_of_service=OUT_OF_SERVICE_TAINT in tainted,
        addresses=tuple((a["type"], a["address"]) for a in (manifest.get("status") or {}).get("addresses") or ()),
        labels=metadata.get("labels") or {},
        taints=taints,
        uid=str(metadata.get("uid") or ""),
    )


def pod_view(manifest: Manifest) -> PodView:
    """The view of a broker's Pod."""
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    containers = [c for c in status.get("containerStatuses") or () if c.get("name") == CONTAINER]
    container = containers[0] if containers else {}
    state = container.get("state") or {}
    ended = [_ended(past["terminated"]) for past in (container.get("lastState") or {}, state) if "terminated" in past]
    slot = str(labels.get(LABEL_SLOT, "0"))
    annotations = metadata.get("annotations") or {}
    no_node = next((c.get("message") for c in status.get("conditions") or () if c.get("reason") == "Unschedulable"), "")
    no_sandbox = next(
        (
            c.get("lastTransitionTime")
            for c in status.get("conditions") or ()
            if (c["type"], c["status"]) == ("PodReadyToStartContainers", "False")
        ),
        None,
    )
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        group=str(labels.get(LABEL_GROUP, "")),
        slot=int(slot) if slot.isdecimal() else 0,
        node=str(spec.get("nodeName") or ""),
        ip=str(status.get("podIP") or ""),
        is_ready=conditions.get("Ready") == "True",
        is_running="running" in state,
        is_deleting=bool(metadata.get("deletionTimestamp")),
        is_scheduled=bool(spec.get("nodeName")),
        is_over=status.get("phase") in ("Failed", "Succeeded"),
        template_hash=str(annotations.get(ANNOTATION_TEMPLATE_HASH, "")),
        created_s=seconds(metadata.get("creationTimestamp")),
        restarts=int(container.get("restartCount") or 0),
        waiting=str((state.get("waiting") or {}).get("reason") or ""),
        ended=tuple(ended),
        host_ip=str(status.get("hostIP") or ""),
        image=next((str(c["image"]) for c in spec.get("containers") or () if c.get("name") == CONTAINER), ""),
        placement_hash=str(annotations.get(ANNOTATION_PLACEMENT_HASH, "")),
        no_node=str(no_node or "").partition(" preemption:")[0],
        waits_since_s=seconds(no_sandbox),
    )


def _ended(terminated: Manifest) -> Ended:
    told = _told(str(terminated.get("message") or ""))
    run = told.get("run")
    return Ended(
        broker=str(told.get("broker") or ""),
        incarnation=str(told.get("incarnation") or ""),
        run=run if isinstance(run, int) else 0,
        exit_code=int(terminated.get("exitCode") or 0),
        at_s=seconds(terminated.get("finishedAt")),
        error=str(told.get("error") or ""),
        text=str(told.get("text") or ""),
    )


def _told(message: str) -> dict[str, Any]:
    """The broker's status file as an object; empty if the text is not such a file."""
    try:
        told = json.loads(message)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def claim_view(manifest: Manifest) -> ClaimView:
    """The view of a PersistentVolumeClaim."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    labels = metadata.get("labels") or {}
    slot = str(labels.get(LABEL_SLOT, ""))
    return ClaimView(
        name=metadata["name"],
        uid=metadata["uid"],
        volume=str(spec.get("volumeName") or ""),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        requested=str(((spec.get("resources") or {}).get("requests") or {}).get("storage") or ""),
        group=str(labels.get(LABEL_GROUP, "")),
        slot=int(slot) if slot.isdecimal() else 0,
        broker_uid=str(labels.get(LABEL_BROKER_UID, "")),
        created_s=seconds(metadata.get("creationTimestamp")),
    )


def volume_view(manifest: Manifest) -> VolumeView:
    """The view of a PersistentVolume: the host names in its node affinity."""
    affinity = (manifest.get("spec") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("required") or {}).get("nodeSelectorTerms") or ()
    hosts = {
        value
        for term in terms
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") == HOSTNAME_LABEL and expression.get("operator") == "In"
        for value in expression.get("values") or ()
    }
    return VolumeView(manifest["metadata"]["name"], frozenset(hosts))


def service_view(manifest: Manifest) -> ServiceView:
    """The view of a Service for clients outside."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    balancer = (manifest.get("status") or {}).get("loadBalancer") or {}
    hosts = (str(way.get("ip") or way.get("hostname") or "") for way in balancer.get("ingress") or ())
    return ServiceView(
        name=metadata["name"],
        uid=metadata["uid"],
        type=str(spec.get("type") or "ClusterIP"),
        node_port=next((int(port.get("nodePort") or 0) for port in spec.get("ports") or ()), 0),
        hosts=tuple(filter(None, hosts)),
    )


def class_view(manifest: Manifest) -> ClassView:
    """The view of a StorageClass."""
    return ClassView(
        name=manifest["metadata"]["name"],
        waits_for_consumer=manifest.get("volumeBindingMode") == "WaitForFirstConsumer",
        can_expand=bool(manifest.get("allowVolumeExpansion")),
    )
