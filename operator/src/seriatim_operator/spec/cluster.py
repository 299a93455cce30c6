"""BrokerCluster: a cluster of broker groups, and the settings that they share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from .base import Model, Resource, Scale, Status
from .columns import AGE, Column, condition_columns
from .fields import (
    CLUSTER_NAME_LENGTH_MAX,
    QUALIFIED_KEYS,
    Amount,
    DeletionPolicy,
    LabelKey,
    LabelValue,
    ObjectName,
    Quantity,
)
from .rules import ListKeys, Rule, immutable, matches
from .settings import SETTINGS_RULES

GROUPS_MAX: Final = 1000
MEMBERS_MAX: Final = 5
"""The master sends each message to each other member, so more members make it slower, and more groups do not."""

STORAGE_SIZE_MIN: Final = "4Gi"
"""A broker keeps 2 GiB or 5 % of its disk free, so a smaller disk would hold almost no messages."""

EXTERNAL_BROKERS_MAX: Final = 100
"""Brokers of a cluster with external access. All their hosts are in one certificate, and each has a Service."""

BROKER_PATTERN: Final = "^g(0|[1-9][0-9]*)-(0|[1-9][0-9]*)$"
"""The name of a broker among the brokers: its broker group and its slot."""

AdvertisedHost = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matches(
        "^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:]+)$",
        "a host is a DNS name or an IP address, without a scheme, a port or brackets",
    ),
]

ChangeApproval = Literal["Automatic", "Manual"]
SpreadMending = Literal["Manual", "Automatic"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]

_RESERVED_LABEL = Rule(
    "self.all(key, !key.startsWith('seriatim.dev/') && !key.startsWith('app.kubernetes.io/'))",
    "labels below seriatim.dev/ and app.kubernetes.io/ belong to the operator: choose another prefix",
)
_RESERVED_ANNOTATION = Rule(
    "self.all(key, !key.startsWith('seriatim.dev/'))",
    "annotations below seriatim.dev/ belong to the operator: choose another prefix",
)


class Etcd(Model):
    """The etcd in which the brokers of the cluster keep their metadata."""

    RULES: ClassVar = (
        Rule(
            "has(self.tlsSecret) == has(oldSelf.tlsSecret)",
            "tlsSecret can name another Secret, but it cannot be added or removed: "
            "some brokers would use TLS to etcd and others would not",
        ),
    )

    endpoints: Annotated[
        tuple[
            Annotated[
                str,
                Field(min_length=3, max_length=260),
                matches(
                    "^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[[][0-9A-Fa-f:.]+[]]):[1-9][0-9]{0,4}$",
                    "an endpoint is written host:port, without a scheme, such as etcd-0.etcd.shop.svc:2379",
                ),
                Rule(
                    "!self.matches(':[0-9]{1,5}$') || int(self.substring(self.lastIndexOf(':') + 1)) <= 65535",
                    "a port is at most 65535",
                ),
            ],
            ...,
        ],
        Field(min_length=1, max_length=9),
        Rule("self.all(a, self.exists_one(b, a == b))", "each endpoint is named once"),
    ]
    """`host:port` of each member of etcd. If the cluster has run, they change only with `endpointsChange: SameEtcd`."""
    endpoints_change: Literal["Refused", "SameEtcd"] = "Refused"
    """`SameEtcd` says that new endpoints are of the etcd with this cluster's metadata. With another etcd the brokers
    would not know their topics, and would refuse their disks."""
    tls_secret: ObjectName | None = None
    """A Secret with `ca.crt`, `tls.crt` and `tls.key` for the connection to etcd. Without it, the connection is not
    encrypted."""


class Storage(Model):
    """The disk that each broker gets."""

    storage_class_name: Annotated[ObjectName, immutable("disks cannot change their class; make a new cluster")]
    """A StorageClass with `volumeBindingMode: WaitForFirstConsumer`. Disks local to a node are best."""
    size: Annotated[
        Quantity,
        Rule(
            f"!isQuantity(self) || quantity(self).compareTo(quantity('{STORAGE_SIZE_MIN}')) >= 0",
            f"at least {STORAGE_SIZE_MIN}: a broker keeps 2Gi of its disk free",
        ),
        Rule(
            "!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0",
            "a disk can grow, not shrink: keep at least the size it has",
        ),
    ]
    """Size of each broker's volume. A larger size grows the volumes in place, if the class allows it."""


class Tls(Model):
    """Encryption between brokers, clients and the operator."""

    RULES: ClassVar = (
        Rule(
            "self.enabled || !has(self.caSecret)",
            "without TLS no authority signs anything: leave caSecret out, or write enabled: true",
        ),
    )

    enabled: Annotated[
        bool, immutable("brokers with and without TLS do not understand each other; make a new cluster")
    ] = True
    """Whether all ports use TLS, and brokers and clients show certificates."""
    ca_secret: ObjectName | None = None
    """A Secret with your own certificate authority (`tls.crt`, `tls.key`). Without it, the operator makes one."""
    certificate_days: Annotated[int, Field(ge=1, le=3650)] = 90
    """Days for which a certificate is valid. The operator renews it after two thirds of them, without a restart."""


MEMORY_MIN: Final = "64Mi"
"""Less than this is a mistake: a broker's process alone takes more."""


class ResourceAmounts(Model):
    """What the container requests, and the most that it gets."""

    RULES: ClassVar = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
            "a request is at most its limit: lower the request or raise the limit",
        ),
        *(
            Rule(
                f"!has(self.{kind}) || !('memory' in self.{kind}) || !isQuantity(string(self.{kind}['memory'])) || "
                f"quantity(string(self.{kind}['memory'])).compareTo(quantity('{MEMORY_MIN}')) >= 0",
                f"{kind}.memory is at least {MEMORY_MIN}: m means a thousandth of a byte; write Mi or Gi",
            )
            for kind in ("requests", "limits")
        ),
    )

    requests: Annotated[dict[str, Amount], Field(max_length=16), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Amounts that the node reserves, by resource: `cpu`, `memory`, ..."""
    limits: Annotated[dict[str, Amount], Field(max_length=16), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Amounts that the container never exceeds, by resource."""


class Toleration(Model):
    """A taint that brokers tolerate."""

    RULES: ClassVar = (
        Rule(
            "self.operator != 'Exists' || !has(self.value) || self.value == ''", "with operator Exists leave value out"
        ),
        Rule(
            "has(self.key) || self.operator == 'Exists'",
            "without a key write operator: Exists, which tolerates every taint",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect: NoExecute",
        ),
    )

    key: LabelKey | None = None
    """The taint's key. Without it and with `operator: Exists`, brokers tolerate every key."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How `value` is compared."""
    value: LabelValue | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Without it, brokers tolerate every effect."""
    toleration_seconds: int | None = None
    """Seconds for which brokers tolerate a `NoExecute` taint. Without it, they tolerate it for ever."""


class EnvironmentVariable(Model):
    """One variable of the broker's environment."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        matches("^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name has letters, digits and _, and begins with no digit"),
        Rule("!self.startsWith('SERIATIM_')", "write a broker's settings into spec.settings, not into its environment"),
    ]
    """The variable's name."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """The variable's value."""


class LocalReference(Model):
    """An object in the same namespace."""

    name: ObjectName
    """The object's name."""


class LabelRequirement(Model):
    """One condition on a label."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values; with Exists and DoesNotExist leave values out",
        ),
    )

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value is compared with `values`."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """The values for `In` and `NotIn`."""


class LabelSelector(Model):
    """Selects pods. An empty selector selects all."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Labels that the pods have."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=32)] = ()
    """Conditions on the pods' labels."""


class NodeRequirement(Model):
    """One condition on a label of a node."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['Exists', 'DoesNotExist']) == (!has(self.values) || size(self.values) == 0)",
            "with Exists and DoesNotExist leave values out; the others need values",
        ),
        Rule(
            "!(self.operator in ['Gt', 'Lt']) || !has(self.values) || size(self.values) == 0 || "
            "(size(self.values) == 1 && self.values[0].matches('^[0-9]+$'))",
            'Gt and Lt compare with one whole number: write values: ["8"]',
        ),
    )

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label's value is compared with `values`."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """The values; for `Gt` and `Lt` one whole number."""


class NodeTerm(Model):
    """Conditions that a node meets all at once."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(min_length=1, max_length=16)]
    """Conditions on the node's labels."""


class NodeSelector(Model):
    """Nodes that meet one of several terms."""

    node_selector_terms: Annotated[tuple[NodeTerm, ...], Field(min_length=1, max_length=8)]
    """The terms."""


class PreferredNodes(Model):
    """Nodes that are preferred."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """How much they are preferred."""
    preference: NodeTerm
    """What a preferred node meets."""


class NodeAffinity(Model):
    """The nodes on which brokers may or should run."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """The nodes on which brokers may run."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=8)
    ] = ()
    """The nodes on which brokers should run."""


class PodTerm(Model):
    """Pods, and how near counts as beside them."""

    label_selector: LabelSelector
    """The pods, in the namespace of the cluster."""
    topology_key: LabelKey
    """A node label. Nodes with the same value of it are one place."""


class PreferredPods(Model):
    """Pods beside which a broker should or should not run."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """How much that is preferred."""
    pod_affinity_term: PodTerm
    """The pods."""


class PodAffinity(Model):
    """Pods beside which brokers must or should run (or, as anti-affinity, must not or should not)."""

    required_during_scheduling_ignored_during_execution: Annotated[tuple[PodTerm, ...], Field(max_length=4)] = ()
    """What must be so."""
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredPods, ...], Field(max_length=4)] = ()
    """What should be so."""


class Affinity(Model):
    """Where brokers run, as in a pod. The operator adds that members of a broker group are on different nodes."""

    node_affinity: NodeAffinity | None = None
    """The nodes for brokers."""
    pod_affinity: PodAffinity | None = None
    """Pods beside which brokers run."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods beside which no broker runs."""


class SpreadConstraint(Model):
    """How evenly brokers are spread."""

    topology_key: LabelKey
    """A node label. Nodes with the same value of it are one place."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "ScheduleAnyway"
    """What happens to a broker for which no place is even enough."""
    max_skew: Annotated[int, Field(ge=1, le=1000)] = 1
    """By how many brokers two places may differ."""
    label_selector: LabelSelector | None = None
    """The pods that are counted. Without it, all brokers of the cluster are."""


class PodTemplate(Model):
    """Settings for the brokers' pods: a selection of fields, not a whole pod.

    Fields that decide where a pod may run count when it is made. A change of them reaches pods that wait for a node or
    for their image, and restarts no broker that runs.
    """

    labels: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS, _RESERVED_LABEL] = Field(
        default_factory=dict
    )
    """More labels. A change needs no restart."""
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32), QUALIFIED_KEYS, _RESERVED_ANNOTATION
    ] = Field(default_factory=dict)
    """More annotations. A change needs no restart."""
    resources: ResourceAmounts = ResourceAmounts()
    """What the broker's container requests, and the most that it gets."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Labels that the node of a broker must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that brokers tolerate."""
    affinity: Affinity | None = None
    """Where brokers run. It counts when a broker gets its disk; a broker with a local disk does not move."""
    topology_spread_constraints: Annotated[
        tuple[SpreadConstraint, ...], Field(max_length=8), ListKeys(("topologyKey", "whenUnsatisfiable"))
    ] = ()
    """How evenly brokers are spread. One with the same `topologyKey` and `whenUnsatisfiable` as a constraint of the
    operator (`zoneKey` and `kubernetes.io/hostname`, both with `ScheduleAnyway`) takes its place."""
    priority_class_name: ObjectName | None = None
    """A PriorityClass for brokers."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64), ListKeys(("name",))] = ()
    """More environment variables, for instance for the allocator."""
    image_pull_policy: PullPolicy = "IfNotPresent"
    """When the kubelet pulls the image."""
    image_pull_secrets: Annotated[tuple[LocalReference, ...], Field(max_length=16), ListKeys(("name",))] = ()
    """Secrets with which the kubelet pulls the image from its registry."""
    zone_key: LabelKey = "topology.kubernetes.io/zone"
    """A node label. If possible, the members of a broker group run on nodes with different values of it."""


class NetworkPolicy(Model):
    """Which pods may connect to the brokers."""

    RULES: ClassVar = (
        Rule(
            "self.enabled || !has(self.clientSelector)",
            "without a NetworkPolicy all pods may connect: leave clientSelector out, or write enabled: true",
        ),
    )

    enabled: bool = True
    """Whether the operator makes a NetworkPolicy. It admits brokers, the operator, monitoring, and the clients of
    `clientSelector`."""
    client_selector: LabelSelector | None = None
    """Pods of this namespace that may connect as clients. Without it, all pods of all namespaces may."""


class ExternalService(Model):
    """What is special about one Service for clients outside."""

    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32), QUALIFIED_KEYS, _RESERVED_ANNOTATION
    ] = Field(default_factory=dict)
    """More annotations of the Service. They override those of `external.annotations`."""
    advertised_host: AdvertisedHost | None = None
    """The host to which clients connect, in place of the address that the operator finds: a DNS name, or an address."""
    advertised_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The port to which clients connect, in place of the node port or the load balancer's port."""
    node_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The Service's node port. Without it, Kubernetes chooses one, and the Service keeps it."""


class ExternalBroker(ExternalService):
    """What is special about the Service of one broker."""

    broker: Annotated[
        str,
        Field(min_length=4, max_length=16),
        matches(BROKER_PATTERN, "a broker is named by its broker group and slot, such as g0-1"),
    ]
    """The broker's name among the brokers, such as `g0-1`."""


class External(Model):
    """Access for clients outside the pods' network."""

    RULES: ClassVar = (
        Rule(
            "self.type == 'NodePort' || !has(self.nodeAddressType)",
            "nodeAddressType is for type: NodePort; a load balancer has an address of its own",
        ),
        Rule(
            "!has(self.brokers) || self.brokers.all(a, !has(a.nodePort) || "
            "(self.brokers.exists_one(b, has(b.nodePort) && "
            "a.nodePort == b.nodePort) && (!has(self.bootstrap) || !has(self.bootstrap.nodePort) || "
            "a.nodePort != self.bootstrap.nodePort)))",
            "a node port belongs to one Service only: give each broker and bootstrap another nodePort, or leave it out",
        ),
        Rule(
            "!has(self.brokers) || self.brokers.all(a, !has(a.advertisedHost) || "
            "(self.type == 'NodePort' && !has(a.advertisedPort)) || "
            "self.brokers.exists_one(b, has(b.advertisedHost) && a.advertisedHost == b.advertisedHost && "
            "has(a.advertisedPort) == has(b.advertisedPort) && "
            "(!has(a.advertisedPort) || a.advertisedPort == b.advertisedPort)))",
            "two brokers have the same address, and clients would reach one of them for both: give each another "
            "advertisedHost or another advertisedPort",
        ),
    )

    type: Literal["NodePort", "LoadBalancer"]
    """How clients come in: by a port of the nodes, or by a load balancer for each broker and one for the bootstrap
    address."""
    node_address_type: Literal["ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname"] | None = None
    """With `NodePort`, which address of a node clients use, if the node has it. Otherwise, and without this field, the
    first that a node has of ExternalDNS, ExternalIP, InternalDNS, InternalIP and Hostname."""
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32), QUALIFIED_KEYS, _RESERVED_ANNOTATION
    ] = Field(default_factory=dict)
    """Annotations of all Services for clients outside, for instance for the cloud's load balancers."""
    bootstrap: ExternalService = ExternalService()
    """What is special about the Service to which clients outside connect first."""
    brokers: Annotated[tuple[ExternalBroker, ...], Field(max_length=EXTERNAL_BROKERS_MAX), ListKeys(("broker",))] = ()
    """What is special about the Services of single brokers."""

    def of_broker(self, broker: str) -> ExternalService:
        """What is special about the Service of a broker."""
        return next((each for each in self.brokers if each.broker == broker), ExternalService())


class BrokerClusterSpec(Model):
    """The desired state of a cluster."""

    RULES: ClassVar = (
        Rule(
            f"!has(self.external) || self.groups * self.membersPerGroup <= {EXTERNAL_BROKERS_MAX}",
            f"at most {EXTERNAL_BROKERS_MAX} brokers can be reached from outside, each with a Service of its own",
        ),
        Rule(
            f"!has(self.external) || !has(self.external.brokers) || "
            f"self.external.brokers.all(b, !b.broker.matches('{BROKER_PATTERN}') || "
            "int(b.broker.substring(b.broker.lastIndexOf('-') + 1)) < self.membersPerGroup)",
            "external.brokers names a slot that no broker group has: slots begin with 0, and there are as many as "
            "membersPerGroup, so with 2 write g0-0 and g0-1",
        ),
    )

    groups: Annotated[int, Field(ge=1, le=GROUPS_MAX)]
    """How many broker groups the cluster has. The operator adds broker groups at once. It removes one only when the
    broker group holds no segment any more."""
    members_per_group: Annotated[
        int,
        Field(ge=2, le=MEMBERS_MAX),
        immutable(
            "the number of members is decided when a broker group is made; make a new cluster and move the topics to it"
        ),
    ] = 2
    """Members of each broker group. Each message is on the disks of that many members, so with 3 any two of
    these may be lost; it is on fewer if it was sent while a member was away and no other group was complete, until it
    is copied. For more throughput raise `groups` instead."""
    image: (
        Annotated[
            str,
            Field(min_length=1, max_length=512),
            matches(
                "^(([A-Za-z0-9.-]+|[[][0-9A-Fa-f:]+[]])(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
                "(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[a-z0-9]+:[0-9a-f]+)?$",
                "an image is written registry/name:tag, with small letters in the name, and without spaces or https://",
            ),
        ]
        | None
    ) = None
    """The brokers' image. Without it, the operator uses the image of its own version."""
    etcd: Etcd
    """The etcd in which the brokers of the cluster keep their metadata."""
    storage: Storage
    """The disk that each broker gets."""
    tls: Tls = Tls()
    """Encryption between brokers, clients and the operator."""
    settings: Annotated[
        dict[str, Annotated[str, Field(max_length=256)]],
        Field(max_length=64),
        *SETTINGS_RULES,
    ] = Field(default_factory=dict)
    """Settings of the brokers by name, such as `heal_after_s`. After a change the operator restarts the brokers, one at
    a time. If an object from before these rules has a wrong name or value, the last good settings stay in force."""
    change_approval: ChangeApproval = "Automatic"
    """`Manual`: restarts that a change needs wait in `status.plannedChanges` until an administrator approves them."""
    spread_mending: SpreadMending = "Manual"
    """Who mends the spread if a replacement has left a node with a member of every broker group, and other nodes have
    few brokers. `Automatic`: the operator moves one broker group after another, each after ten minutes in which
    nothing else is wrong. That copies all messages of the broker group. `Manual`: an administrator does it with the
    annotation `seriatim.dev/place-anew`, which the condition `Degraded` names."""
    paused: bool = False
    """`true`: the operator changes nothing in this cluster. The brokers continue, and switch by themselves if one
    dies."""
    pod_template: PodTemplate = PodTemplate()
    """Settings for the brokers' pods."""
    node_loss_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = 60
    """Seconds for which a node must be gone before the operator gives up its disks."""
    deletion_policy: DeletionPolicy = "Retain"
    """What happens to the brokers' volume claims when this object is deleted: `Retain` keeps them, `Delete` deletes
    them."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Which pods may connect to the brokers."""
    external: External | None = None
    """Access for clients outside the pods' network. Without it, there is none. Adding or removing it restarts the
    brokers, one at a time; other changes do not."""


class PlannedChange(Model):
    """A step that the operator takes when its plan is approved and it is this step's turn."""

    action: Annotated[str, Field(max_length=64)]
    """The step, in one word."""
    object: Annotated[str, Field(max_length=300)]
    """The object that the step changes."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why the step is needed."""
    hash: Annotated[str, Field(max_length=64)]
    """Names the plan. To approve it, write this value into the annotation `seriatim.dev/approve`."""


class Operation(Model):
    """The one disruptive operation that is under way."""

    kind: Annotated[str, Field(max_length=64)]
    """The kind of operation."""
    object: Annotated[str, Field(max_length=300)]
    """The object that the operation changes."""
    started_at: datetime
    """When it began."""
    expires_at: datetime
    """From this time on it does not hold up other operations any more."""


class BrokerClusterStatus(Status):
    """The observed state of a cluster."""

    CONDITIONS: ClassVar = (
        "Ready",
        "Progressing",
        "Degraded",
        "Quiesced",
        "Stable",
        "ExternalReady",
        "AuthoritySettled",
        "EtcdHealthy",
    )

    groups: int = 0
    """How many broker groups have Broker objects."""
    ready_groups: int = 0
    """How many of the broker groups in `spec.groups` have all their members serving."""
    topics: int | None = None
    """How many topics the brokers have, also those without a Topic object. Left out until the brokers have reported
    it."""
    selector: Annotated[str, Field(max_length=512)] = ""
    """A label selector for the brokers' pods. Autoscalers read it."""
    cluster_id: Annotated[str, Field(max_length=64)] = ""
    """The identity of the cluster, which is on each broker's disk."""
    bootstrap: Annotated[str, Field(max_length=300)] = ""
    """The `host:port` to which clients connect first. Empty while a Service of others has its name."""
    external_bootstrap: Annotated[str, Field(max_length=1024)] = ""
    """The `host:port` of brokers to which clients outside connect first, separated by commas. Empty while no address
    is known, and without `spec.external`."""
    external_pending: Annotated[str, Field(max_length=1024)] = ""
    """Which Services have no address for clients outside yet, and what each waits for. Empty if all have one."""
    planned_changes: Annotated[tuple[PlannedChange, ...], Field(max_length=100)] = ()
    """The restarts that are still to do, in order. With `changeApproval: Manual` they wait for approval."""
    operation: Operation | None = None
    """The one disruptive operation that is under way."""
    blocked_by: Annotated[str, Field(max_length=1024)] = ""
    """What the next step waits for."""
    reported_at: datetime | None = None
    """When the operator reported last. It does so at least every two minutes: if this is older, no operator acts, and
    the status of all objects of the cluster may be as old as this."""


_NO_EXTERNAL_OF = (
    f"!has(self.spec.external) || !has(self.spec.external.brokers) || "
    f"self.spec.external.brokers.all(b, !b.broker.matches('{BROKER_PATTERN}') || "
    "int(b.broker.substring(1, b.broker.indexOf('-'))) < self.spec.groups{})"
)
_NO_SUCH_GROUP = (
    "spec.external.brokers names a broker of a broker group that the cluster does not have: the first group is g0, and "
    "there are as many as spec.groups says. Correct the name, or raise groups first"
)


class BrokerCluster(Resource):
    """A cluster of broker groups."""

    KIND: ClassVar = "BrokerCluster"
    PLURAL: ClassVar = "brokerclusters"
    SINGULAR: ClassVar = "brokercluster"
    SHORT_NAME: ClassVar = "scluster"
    COLUMNS: ClassVar = (
        Column("Groups", ".spec.groups", "integer"),
        Column("Ready groups", ".status.readyGroups", "integer"),
        *condition_columns(),
        Column("Stable", '.status.conditions[?(@.type=="Stable")].status'),
        Column("Bootstrap", ".status.bootstrap", is_wide=True),
        Column("External", ".status.externalBootstrap", is_wide=True),
        Column("Blocked by", ".status.blockedBy", is_wide=True),
        Column("Reported", ".status.reportedAt", "date"),
        AGE,
    )
    SCALE: ClassVar = Scale(".spec.groups", ".status.groups", ".status.selector")

    RULES: ClassVar = (
        Rule(
            f"self.metadata.name.size() <= {CLUSTER_NAME_LENGTH_MAX} && "
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"metadata.name: a cluster's name has at most {CLUSTER_NAME_LENGTH_MAX} small letters, digits and -, and "
            "begins with a letter, because Services and pods are named after it",
        ),
        Rule(
            # A cluster that has run keeps its name: the API server would refuse its statuses too.
            "(has(self.status) && has(self.status.observedGeneration) && self.status.observedGeneration > 0) || "
            "!self.metadata.name.matches('-(brokers|external|g[0-9]+-[0-9]+)$')",
            "metadata.name: choose a name that does not end with -brokers, -external, or -g0-1 with any numbers: the "
            "Services of the cluster without this ending have such names",
        ),
        # Names of external brokers that were right before stay: a cluster may get fewer broker groups, and later more.
        Rule(
            "(has(self.status) && has(self.status.observedGeneration) && self.status.observedGeneration > 0) || "
            f"{_NO_EXTERNAL_OF.format('')}",
            _NO_SUCH_GROUP,
        ),
        Rule(
            _NO_EXTERNAL_OF.format(
                " || (has(oldSelf.spec.external) && has(oldSelf.spec.external.brokers) && "
                "oldSelf.spec.external.brokers.exists(o, o.broker == b.broker))"
            ),
            _NO_SUCH_GROUP,
        ),
        Rule(
            "!has(oldSelf.status) || !has(oldSelf.status.clusterId) || oldSelf.status.clusterId == '' || "
            "self.spec.etcd.endpointsChange == 'SameEtcd' || (self.spec.etcd.endpoints.size() == "
            "oldSelf.spec.etcd.endpoints.size() && self.spec.etcd.endpoints.all(e, e in oldSelf.spec.etcd.endpoints))",
            "spec.etcd.endpoints: this cluster has run, and its metadata is in this etcd. If the new endpoints are of "
            "the same etcd, write spec.etcd.endpointsChange: SameEtcd",
        ),
    )

    spec: BrokerClusterSpec
    status: BrokerClusterStatus = BrokerClusterStatus()
