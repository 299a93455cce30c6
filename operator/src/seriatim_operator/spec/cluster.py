"""BrokerCluster: a cluster of broker groups, and all that they have in common."""

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

GROUPS_MAX: Final = 1000
MEMBERS_MAX: Final = 5

STORAGE_SIZE_MIN: Final = "4Gi"
"""A broker keeps 2 GiB or 5 % of its disk free: a smaller disk would hold next to nothing."""

ChangeApproval = Literal["Automatic", "Manual"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]

_RESERVED_LABEL = Rule(
    "self.all(key, !key.startsWith('seriatim.dev/') && !key.startsWith('app.kubernetes.io/'))",
    "labels below seriatim.dev/ and app.kubernetes.io/ are the operator's: choose another prefix",
)
_RESERVED_ANNOTATION = Rule(
    "self.all(key, !key.startsWith('seriatim.dev/'))",
    "annotations below seriatim.dev/ are the operator's: choose another prefix",
)


class Etcd(Model):
    """Where the cluster's metadata lives."""

    RULES: ClassVar = (
        Rule(
            "has(self.tlsSecret) == has(oldSelf.tlsSecret)",
            "tlsSecret can be pointed at another Secret, but neither added nor taken away: "
            "brokers with and without TLS to etcd would live side by side",
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
    """`host:port` of each member of etcd."""
    tls_secret: ObjectName | None = None
    """A Secret with `ca.crt`, `tls.crt` and `tls.key` for the connection to etcd; left out, it is not encrypted."""


class Storage(Model):
    """The disk that each broker gets."""

    storage_class_name: Annotated[ObjectName, immutable("disks cannot change their class; make a new cluster")]
    """A StorageClass with `volumeBindingMode: WaitForFirstConsumer`, best of disks local to a node."""
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
    """Size of each broker's volume; grows in place where the class allows it."""


class Tls(Model):
    """Encryption between brokers, clients and the operator."""

    enabled: Annotated[
        bool, immutable("brokers with and without TLS do not understand each other; make a new cluster")
    ] = True
    """Whether all ports speak TLS, and brokers and clients show certificates."""
    ca_secret: ObjectName | None = None
    """A Secret with your own authority (`tls.crt`, `tls.key`); left out, the operator makes one."""
    certificate_days: Annotated[int, Field(ge=1, le=3650)] = 90
    """How long a certificate is valid; it is renewed after two thirds of that, without a restart."""


class ResourceAmounts(Model):
    """What the container asks for, and what it gets at most."""

    RULES: ClassVar = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
            "no request exceeds its limit: lower the one or raise the other",
        ),
    )

    requests: Annotated[dict[str, Amount], Field(max_length=16), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Amounts reserved on the node, by resource: `cpu`, `memory`, ..."""
    limits: Annotated[dict[str, Amount], Field(max_length=16), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Amounts never exceeded, by resource."""


class Toleration(Model):
    """A taint that brokers bear."""

    RULES: ClassVar = (
        Rule(
            "self.operator != 'Exists' || !has(self.value) || self.value == ''", "with operator Exists leave value out"
        ),
        Rule(
            "has(self.key) || self.operator == 'Exists'", "without a key say operator: Exists, which bears every taint"
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect: NoExecute",
        ),
    )

    key: LabelKey | None = None
    """The taint's key; left out with `operator: Exists`, all."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How `value` is compared."""
    value: LabelValue | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; left out, all."""
    toleration_seconds: int | None = None
    """How long a `NoExecute` taint is borne; left out, for ever."""


class EnvironmentVariable(Model):
    """One variable of the broker's environment."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        matches("^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name has letters, digits and _, and begins with no digit"),
        Rule("!self.startsWith('SERIATIM_')", "what a broker is told stands in spec.settings, not in its environment"),
    ]
    """Its name."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value, as it is."""


class LocalReference(Model):
    """An object in the same namespace."""

    name: ObjectName
    """Its name."""


class PodTemplate(Model):
    """What may be said about the brokers' pods: a choice, not a whole pod."""

    labels: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS, _RESERVED_LABEL] = Field(
        default_factory=dict
    )
    """More labels; changed in place."""
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32), QUALIFIED_KEYS, _RESERVED_ANNOTATION
    ] = Field(default_factory=dict)
    """More annotations; changed in place."""
    resources: ResourceAmounts = ResourceAmounts()
    """What the broker's container asks for and gets."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Labels that a broker's node has."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that brokers bear."""
    priority_class_name: ObjectName | None = None
    """A PriorityClass for brokers."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64), ListKeys(("name",))] = ()
    """More environment variables, for instance for the allocator."""
    image_pull_policy: PullPolicy = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: Annotated[tuple[LocalReference, ...], Field(max_length=16), ListKeys(("name",))] = ()
    """Secrets for the registry."""
    zone_key: LabelKey = "topology.kubernetes.io/zone"
    """The node label over whose values the members of a group are spread, where that is possible."""


class LabelRequirement(Model):
    """One condition on a label."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values, Exists and DoesNotExist take none",
        ),
    )

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How its value is compared."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """With what."""


class LabelSelector(Model):
    """Which pods are meant; an empty one means all."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=32), QUALIFIED_KEYS] = Field(default_factory=dict)
    """Labels that they have."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=32)] = ()
    """Conditions on labels."""


class NetworkPolicy(Model):
    """Who may reach the brokers."""

    enabled: bool = True
    """Whether a NetworkPolicy is made: brokers, operator and monitoring, and the clients that are chosen."""
    client_selector: LabelSelector | None = None
    """Pods of this namespace that may connect as clients; left out, all pods of all namespaces may."""


class BrokerClusterSpec(Model):
    """What is wanted of a cluster."""

    groups: Annotated[int, Field(ge=1, le=GROUPS_MAX)]
    """How many broker groups there are. More are added at once; fewer leave when nothing lies on them any more."""
    members_per_group: Annotated[
        int,
        Field(ge=2, le=MEMBERS_MAX),
        immutable("the copies of a segment are decided when its group is made; make a new cluster and move its topics"),
    ] = 2
    """Members of each group: how many disks have each message."""
    image: (
        Annotated[
            str,
            Field(min_length=1, max_length=512),
            matches("^[^ ]+$", "an image is written registry/name:tag, without spaces"),
        ]
        | None
    ) = None
    """The brokers' image; left out, the one that belongs to the operator."""
    etcd: Etcd
    """Where the cluster's metadata lives."""
    storage: Storage
    """The disk that each broker gets."""
    tls: Tls = Tls()
    """Encryption between brokers, clients and the operator."""
    settings: Annotated[
        dict[str, Annotated[str, Field(max_length=256)]],
        Field(max_length=64),
        Rule(
            "self.all(key, key.matches('^[a-z][a-z0-9_]{0,63}$'))",
            "settings are called as in broker.toml, such as heal_after_s",
        ),
    ] = Field(default_factory=dict)
    """Settings of the brokers by name, such as `heal_after_s`; a change rolls them, one at a time."""
    change_approval: ChangeApproval = "Automatic"
    """`Manual`: what disrupts waits in `status.plannedChanges` until somebody approves it."""
    paused: bool = False
    """The operator leaves everything as it is; brokers go on, and fail over, by themselves."""
    pod_template: PodTemplate = PodTemplate()
    """What may be said about the brokers' pods."""
    node_loss_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = 60
    """How long a node must be proved gone before its disks are given up."""
    deletion_policy: DeletionPolicy = "Retain"
    """What becomes of the brokers' volumes when the cluster is deleted."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may reach the brokers."""


class PlannedChange(Model):
    """Something that the operator would do."""

    action: Annotated[str, Field(max_length=64)]
    """What."""
    object: Annotated[str, Field(max_length=300)]
    """To what."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why."""
    hash: Annotated[str, Field(max_length=64)]
    """Names this plan: the annotation that approves it repeats it."""


class Operation(Model):
    """The one disruptive thing that is going on."""

    kind: Annotated[str, Field(max_length=64)]
    """What."""
    object: Annotated[str, Field(max_length=300)]
    """To what."""
    started_at: datetime
    """Since when."""
    expires_at: datetime
    """When it no longer holds up others."""


class BrokerClusterStatus(Status):
    """What is true of a cluster."""

    CONDITIONS: ClassVar = ("Ready", "Progressing", "Degraded", "Quiesced", "Stable")

    groups: int = 0
    """Broker groups that there are."""
    ready_groups: int = 0
    """Of these, the ones all of whose members serve."""
    selector: Annotated[str, Field(max_length=512)] = ""
    """Labels of the brokers' pods, for autoscalers."""
    cluster_id: Annotated[str, Field(max_length=64)] = ""
    """The identity that the brokers' disks bear."""
    bootstrap: Annotated[str, Field(max_length=300)] = ""
    """What clients connect to first."""
    planned_changes: Annotated[tuple[PlannedChange, ...], Field(max_length=100)] = ()
    """What waits for approval, in order."""
    operation: Operation | None = None
    """The one disruptive operation that is going on."""
    blocked_by: Annotated[str, Field(max_length=1024)] = ""
    """What the next step waits for."""


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
        Column("Blocked by", ".status.blockedBy", is_wide=True),
        AGE,
    )
    SCALE: ClassVar = Scale(".spec.groups", ".status.groups", ".status.selector")

    RULES: ClassVar = (
        Rule(
            f"self.metadata.name.size() <= {CLUSTER_NAME_LENGTH_MAX} && "
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"metadata.name: a cluster's name has at most {CLUSTER_NAME_LENGTH_MAX} small letters, digits and -, and "
            "begins with a letter, for Services and pods are named after it",
        ),
    )

    spec: BrokerClusterSpec
    status: BrokerClusterStatus = BrokerClusterStatus()
