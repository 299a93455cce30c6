"""Names, labels, ports and paths that all children of a cluster use.

With a cluster `orders` in the namespace `shop`, its first broker group `g0`, and the disk `x7k2` in slot 1 of `g0`:

    orders                   client Service, and the BrokerCluster itself
    orders-external          Service to which clients outside connect first; orders-g0-1-external: of one broker
    orders-brokers           headless Service, NetworkPolicy
    orders-broker            ServiceAccount
    orders-config            ConfigMap
    orders-ca                Secret of an authority of the operator's own
    orders-broker-tls        Secret of the brokers; -client-tls, -operator-tls: Secrets of clients
    orders-g0                BrokerGroup, PodDisruptionBudget
    orders-g0-1-x7k2         Broker, Pod, PersistentVolumeClaim
    g0-1                     the broker's name in the protocol, and its host name

No cluster may be called `orders-brokers`, `orders-external` or `orders-g0-1` (`spec.cluster`), because its client
Service or its first Service for clients outside would have the name of a Service of `orders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..spec.broker import BrokerSpec
from ..spec.cluster import BrokerCluster

Manifest = dict[str, Any]

FIELD_MANAGER: Final = "seriatim-operator"
"""The field manager of the operator's server-side apply, and the value of the managed-by label."""

BROKER_PORT: Final = 7100
ADMIN_PORT: Final = 7101
EXTERNAL_PORT: Final = 7102
"""The brokers' second port, for clients outside. The Services have the same port."""
LINK_PORT: Final = 7103
"""The brokers' port for links among themselves."""
STREAM_PORT: Final = 7104
"""The brokers' port for streams of clients over TCP. Clients ask the brokers for it, at `BROKER_PORT`."""
BROKER_PORT_NAME: Final = "seriatim"
ADMIN_PORT_NAME: Final = "admin"
EXTERNAL_PORT_NAME: Final = "external"
LINK_PORT_NAME: Final = "links"
STREAM_PORT_NAME: Final = "streams"

CONTAINER: Final = "broker"
USER_ID: Final = 10001
"""The number of the image's user and of the user's group."""

VOLUME_PATH: Final = "/var/lib/seriatim"
DATA_PATH: Final = f"{VOLUME_PATH}/data"
CONFIG_PATH: Final = "/etc/seriatim"
CONFIG_FILE: Final = "broker.toml"
TLS_DIRECTORY: Final = "tls"
ETCD_TLS_DIRECTORY: Final = "etcd-tls"
EXTERNAL_ADDRESS_FILE: Final = "external/address"
"""Below `CONFIG_PATH`: the address at which clients outside reach the broker, from its pod's annotation."""
STATUS_FILE: Final = "/dev/termination-log"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_CLUSTER: Final = "seriatim.dev/cluster"
LABEL_GROUP: Final = "seriatim.dev/group"
LABEL_SLOT: Final = "seriatim.dev/slot"
LABEL_EXTERNAL: Final = "seriatim.dev/external"
"""A label of Services for clients outside: the broker's name, or `bootstrap`."""
LABEL_BROKER_UID: Final = "seriatim.dev/broker-uid"

ANNOTATION_TEMPLATE_HASH: Final = "seriatim.dev/template-hash"
ANNOTATION_PLACEMENT_HASH: Final = "seriatim.dev/placement-hash"
"""An annotation of pods: the hash of the fields that decide where a pod may run, as they were when it was made."""
FORMER: Final = "former-"
"""The beginning of the template hash of a pod that was made with a former image. So no spec has this hash."""
ANNOTATION_EXTERNAL_ADDRESS: Final = "seriatim.dev/external-address"
"""An annotation of pods: the address at which clients outside reach the broker."""
ANNOTATION_OPERATOR: Final = "seriatim.dev/operator"
"""An annotation of a BrokerCluster: namespace and name of the Lease of the operator that looks after it."""
ANNOTATION_REPLACE_AUTHORITY: Final = "seriatim.dev/replace-authority"
"""On a BrokerCluster: the id of the authority to replace, and perhaps the time until which brokers continue to show
certificates of it: `ID` or `ID/TIME`."""

ANNOTATION_CHANGED_AT: Final = "seriatim.dev/changed-at"
"""An annotation of Secrets: when their content last changed in a way that brokers must read."""

APP: Final = "seriatim"
COMPONENT_BROKER: Final = "broker"
COMPONENT_OPERATOR: Final = "operator"
COMPONENT_ETCD: Final = "etcd"
"""The component label of the chart's own etcd."""


def client_service_name(cluster: str) -> str:
    """The Service to which clients connect first."""
    return cluster


def external_service_name(cluster: str, broker: str = "") -> str:
    """The Service of a broker for clients outside; without a broker, the one to which they connect first."""
    return f"{cluster}-{broker}-external" if broker else f"{cluster}-external"


def brokers_name(cluster: str) -> str:
    """The headless Service that gives each broker its host name. The NetworkPolicy has the same name."""
    return f"{cluster}-brokers"


def config_name(cluster: str) -> str:
    """The ConfigMap of the brokers' settings."""
    return f"{cluster}-config"


def service_account_name(cluster: str) -> str:
    """The ServiceAccount of the brokers. It has no rights."""
    return f"{cluster}-broker"


def authority_secret_name(cluster: str) -> str:
    """The Secret of the authority that the operator makes for a cluster."""
    return f"{cluster}-ca"


def tls_secret_name(cluster: str, role: str) -> str:
    """The Secret of a leaf: `broker`, `client` or `operator`."""
    return f"{cluster}-{role}-tls"


def broker_group_object_name(cluster: str, group: str) -> str:
    """The BrokerGroup of a broker group, and its disruption budget."""
    return f"{cluster}-{group}"


def broker_object_name(broker: BrokerSpec) -> str:
    """The Broker of an incarnation, and its pod and volume claim."""
    return f"{broker.cluster}-{broker.group}-{broker.slot}-{broker.uid}"


def broker_name(group: str, slot: int) -> str:
    """The name of a member in the protocol."""
    return f"{group}-{slot}"


def protocol_cluster_name(cluster: BrokerCluster) -> str:
    """The cluster's name among the brokers, under which its keys are in etcd.

    It contains the namespace. Otherwise two clusters of the same name that share an etcd would be one cluster.
    """
    return f"{cluster.namespace}.{cluster.name}"


def broker_address(cluster: BrokerCluster, group: str, slot: int) -> str:
    """The `host:port` at which peers and clients reach a broker."""
    return f"{broker_name(group, slot)}.{brokers_name(cluster.name)}.{cluster.namespace}.svc:{BROKER_PORT}"


def bootstrap_address(cluster: BrokerCluster) -> str:
    """The `host:port` to which clients connect first."""
    return f"{client_service_name(cluster.name)}.{cluster.namespace}.svc:{BROKER_PORT}"


def selector_labels(cluster: str) -> dict[str, str]:
    """The labels that exactly the pods of a cluster's brokers have."""
    return {LABEL_NAME: APP, LABEL_INSTANCE: cluster, LABEL_COMPONENT: COMPONENT_BROKER}


def broker_group_selector_labels(cluster: str, group: str) -> dict[str, str]:
    """The labels that exactly the pods of one broker group have."""
    return {**selector_labels(cluster), LABEL_GROUP: group}


def selector_text(labels: Mapping[str, str]) -> str:
    """Labels as a selector text, as in the API's query parameter and in `status.selector`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def common_labels(cluster: str) -> dict[str, str]:
    """The labels of every child of a cluster."""
    return {**selector_labels(cluster), LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_CLUSTER: cluster}


def broker_labels(broker: BrokerSpec) -> dict[str, str]:
    """The labels of the objects of one incarnation."""
    return {
        **common_labels(broker.cluster),
        LABEL_GROUP: broker.group,
        LABEL_SLOT: str(broker.slot),
        LABEL_BROKER_UID: broker.uid,
    }


def child(
    cluster: BrokerCluster,
    api_version: str,
    kind: str,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owned: bool = True,
) -> Manifest:
    """The first part of a child's manifest: API version, kind and metadata.

    Args:
        cluster: The cluster that the child belongs to.
        api_version: The child's API version.
        kind: The child's kind.
        name: The child's name.
        labels: Labels in place of the common ones.
        annotations: Annotations, if the child has any.
        owned: Whether Kubernetes deletes the child when the cluster object is deleted.
    """
    metadata: Manifest = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": dict(common_labels(cluster.name) if labels is None else labels),
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owned:
        metadata["ownerReferences"] = [cluster.owner_reference()]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
