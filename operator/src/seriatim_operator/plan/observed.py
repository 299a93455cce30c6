"""What is: the objects of one cluster as the plan sees them, parsed from what the API and the brokers say.

Views hold only what a decision needs. Times are seconds of the API's clock (Unix time): they come from objects, and are
compared with `Observed.now_s`, never with a monotonic clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ..resources.names import ANNOTATION_TEMPLATE_HASH, CONTAINER, LABEL_BROKER_UID, LABEL_GROUP, LABEL_SLOT
from ..spec.broker import Broker
from ..spec.cluster import BrokerCluster
from ..spec.group import BrokerGroup

Manifest = Mapping[str, Any]

HOSTNAME_LABEL = "kubernetes.io/hostname"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
LEAVING_TAINTS = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
"""Taints by which autoscalers announce that a node goes."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A machine.

    Attributes:
        hostname: The value of its hostname label, which volumes name; not always the object's name.
        is_leaving: Cordoned, or announced to go: heads should stand elsewhere.
        is_out_of_service: Somebody vouched, by the taint made for it, that nothing runs there any more.
    """

    name: str
    hostname: str
    is_ready: bool
    is_leaving: bool
    is_out_of_service: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A container's end, as the kubelet reports it, with what the broker left in its status file.

    Attributes:
        incarnation, run: Of the run that ended; empty and 0 if it ended before it had any.
        error, text: Why it refused to run, if it did.
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
"""Why a container waits for its image: the kubelet's words (`pkg/kubelet/images/types.go` of Kubernetes 1.36, and
`pkg/errors` of its CRI API)."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A broker's pod.

    Attributes:
        is_over: The pod itself has ended (evicted by its kubelet, say) and will not run again.
        ended: Ends of its container that the kubelet still reports, the newest last.
        is_running: The container runs now, ready or not.
        says: Why it is not ready, in the broker's own words; empty if it was not asked, or said nothing.
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

    @property
    def broker(self) -> str:
        """The broker's name in the protocol."""
        return f"{self.group}-{self.slot}"

    @property
    def lacks_image(self) -> bool:
        """The kubelet tries in vain to get its image; between two tries it gives another reason for the same thing."""
        return self.waiting in IMAGE_REASONS


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A broker's volume claim."""

    name: str
    uid: str
    volume: str
    is_deleting: bool
    requested: str
    capacity: str
    group: str = ""
    slot: int = 0
    broker_uid: str = ""
    created_s: float = 0.0


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A persistent volume: which hosts it can be reached from (empty: any), and whether it is a disk of one machine."""

    name: str
    hostnames: frozenset[str]


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as the brokers have it registered; `unlinked`: live members of its group that it has no link to."""

    broker: str
    incarnation: str
    run: int
    is_admitted: bool
    is_live: bool
    is_certified: bool
    unlinked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker group as the brokers know it; counts are None where they were not asked for.

    `waits_for`: counted with them, what holds up its drain, in the brokers' words; empty if nothing does.
    """

    group: str
    intent: str
    weight: float
    heads: int | None
    segments: int | None
    members: tuple[MemberView, ...]
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class GateView:
    """The brokers' answer to "may this member be stopped now?"."""

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


@dataclass(frozen=True)
class Observed:
    """One look at everything that concerns a cluster.

    Attributes:
        members: None if no broker answered.
        gates: Answers of this pass, by broker; asked for by the plan itself.
    """

    cluster: BrokerCluster
    now_s: float
    groups: Mapping[str, BrokerGroup] = field(default_factory=dict)
    brokers: Mapping[str, Broker] = field(default_factory=dict)
    pods: Mapping[str, PodView] = field(default_factory=dict)
    claims: Mapping[str, ClaimView] = field(default_factory=dict)
    volumes: Mapping[str, VolumeView] = field(default_factory=dict)
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    storage_class: ClassView | None = None
    members: Mapping[str, GroupView] | None = None
    gates: Mapping[str, GateView] = field(default_factory=dict)

    @property
    def wanted_groups(self) -> list[str]:
        """Names of the groups that the cluster should have, in order."""
        return [f"g{number}" for number in range(self.cluster.spec.groups)]

    @property
    def leaving_groups(self) -> list[str]:
        """Groups that are there and should not be, the newest first."""
        wanted = set(self.wanted_groups)
        there = {group.spec.group for group in self.groups.values()} | {b.spec.group for b in self.brokers.values()}
        return sorted(there - wanted, key=lambda name: int(name[1:]), reverse=True)

    def holders(self, group: str) -> list[Broker]:
        """The Brokers that hold the slots of a group now: neither lost nor released, one a slot, by slot."""
        by_slot: dict[int, Broker] = {}
        for broker in sorted(self.brokers.values(), key=lambda b: (seconds_of(b), b.name)):
            if broker.spec.group == group and broker.status.disk_lost is None and not broker.metadata.is_deleted:
                by_slot.setdefault(broker.spec.slot, broker)
        return [by_slot[slot] for slot in sorted(by_slot)]

    def all_holders(self) -> list[Broker]:
        """The holders of all wanted groups."""
        return [broker for group in self.wanted_groups for broker in self.holders(group)]

    def hosts_of(self, broker: Broker) -> frozenset[str]:
        """The machines whose local disk the broker's claim is bound to; empty if it is not bound, or not local."""
        claim = self.claims.get(broker.name)
        volume = self.volumes.get(claim.volume) if claim is not None else None
        return volume.hostnames if volume is not None else frozenset()

    def nodes_of(self, broker: Broker) -> list[NodeView]:
        """Nodes that the broker's disk can be reached from, or that it runs on where its disk is not local."""
        hosts = self.hosts_of(broker)
        if hosts:
            return [node for node in self.nodes.values() if node.hostname in hosts]
        pod = self.pods.get(broker.name)
        name = pod.node if pod is not None and pod.node else broker.status.node
        return [self.nodes[name]] if name in self.nodes else []

    def member(self, broker: str) -> MemberView | None:
        """A member by its name, if the brokers told."""
        for group in (self.members or {}).values():
            for member in group.members:
                if member.broker == broker:
                    return member
        return None


def seconds_of(broker: Broker) -> float:
    """When an object was made; the oldest of two that claim one thing has it."""
    created = broker.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0


# ---- parsing --------------------------------------------------------------------------------------------


def seconds(text: str | None) -> float:
    """Unix time of an API timestamp; 0 for none."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


def node_view(manifest: Manifest) -> NodeView:
    """A Node."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    taints = {taint.get("key", "") for taint in spec.get("taints") or ()}
    conditions = {c["type"]: c["status"] for c in (manifest.get("status") or {}).get("conditions") or ()}
    return NodeView(
        name=metadata["name"],
        hostname=(metadata.get("labels") or {}).get(HOSTNAME_LABEL, metadata["name"]),
        is_ready=conditions.get("Ready") == "True",
        is_leaving=bool(spec.get("unschedulable")) or bool(taints & LEAVING_TAINTS),
        is_out_of_service=OUT_OF_SERVICE_TAINT in taints,
    )


def pod_view(manifest: Manifest) -> PodView:
    """A broker's Pod."""
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    containers = [c for c in status.get("containerStatuses") or () if c.get("name") == CONTAINER]
    container = containers[0] if containers else {}
    state = container.get("state") or {}
    ended = [_ended(past["terminated"]) for past in (container.get("lastState") or {}, state) if "terminated" in past]
    slot = str(labels.get(LABEL_SLOT, "0"))
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
        template_hash=str((metadata.get("annotations") or {}).get(ANNOTATION_TEMPLATE_HASH, "")),
        created_s=seconds(metadata.get("creationTimestamp")),
        restarts=int(container.get("restartCount") or 0),
        waiting=str((state.get("waiting") or {}).get("reason") or ""),
        ended=tuple(ended),
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
    """What the status file says; nothing if it is not the broker's."""
    try:
        told = json.loads(message)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def claim_view(manifest: Manifest) -> ClaimView:
    """A PersistentVolumeClaim."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    labels = metadata.get("labels") or {}
    slot = str(labels.get(LABEL_SLOT, ""))
    return ClaimView(
        name=metadata["name"],
        uid=metadata["uid"],
        volume=str(spec.get("volumeName") or ""),
        is_deleting=bool(metadata.get("deletionTimestamp")),
        requested=str(((spec.get("resources") or {}).get("requests") or {}).get("storage") or ""),
        capacity=str(((manifest.get("status") or {}).get("capacity") or {}).get("storage") or ""),
        group=str(labels.get(LABEL_GROUP, "")),
        slot=int(slot) if slot.isdecimal() else 0,
        broker_uid=str(labels.get(LABEL_BROKER_UID, "")),
        created_s=seconds(metadata.get("creationTimestamp")),
    )


def volume_view(manifest: Manifest) -> VolumeView:
    """A PersistentVolume: the hosts that its node affinity names."""
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


def class_view(manifest: Manifest) -> ClassView:
    """A StorageClass."""
    return ClassView(
        name=manifest["metadata"]["name"],
        waits_for_consumer=manifest.get("volumeBindingMode") == "WaitForFirstConsumer",
        can_expand=bool(manifest.get("allowVolumeExpansion")),
    )
