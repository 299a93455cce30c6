"""Names, labels, ports and paths on which all children of a cluster agree.

With a cluster `orders` in the namespace `shop`, its first group `g0`, and the disk `x7k2` in that group's slot 1:

    orders                   client Service, and the BrokerCluster itself
    orders-brokers           headless Service, NetworkPolicy
    orders-broker            ServiceAccount
    orders-config            ConfigMap
    orders-ca                Secret of an own authority
    orders-broker-tls        Secret of the brokers; -client-tls, -operator-tls: of who comes as a client
    orders-g0                BrokerGroup, PodDisruptionBudget
    orders-g0-1-x7k2         Broker, Pod, PersistentVolumeClaim
    g0-1                     the broker's name in the protocol, and its host name
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..spec.broker import BrokerSpec
from ..spec.cluster import BrokerCluster

Manifest = dict[str, Any]

FIELD_MANAGER: Final = "seriatim-operator"
"""Under which the operator applies; the value of the managed-by label as well."""

BROKER_PORT: Final = 7100
ADMIN_PORT: Final = 7101
BROKER_PORT_NAME: Final = "seriatim"
ADMIN_PORT_NAME: Final = "admin"

CONTAINER: Final = "broker"
USER_ID: Final = 10001
"""Of the image's user and group."""

VOLUME_PATH: Final = "/var/lib/seriatim"
DATA_PATH: Final = f"{VOLUME_PATH}/data"
CONFIG_PATH: Final = "/etc/seriatim"
CONFIG_FILE: Final = "broker.toml"
TLS_DIRECTORY: Final = "tls"
ETCD_TLS_DIRECTORY: Final = "etcd-tls"
STATUS_FILE: Final = "/dev/termination-log"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_CLUSTER: Final = "seriatim.dev/cluster"
LABEL_GROUP: Final = "seriatim.dev/group"
LABEL_SLOT: Final = "seriatim.dev/slot"
LABEL_BROKER_UID: Final = "seriatim.dev/broker-uid"

ANNOTATION_TEMPLATE_HASH: Final = "seriatim.dev/template-hash"
ANNOTATION_CHANGED_AT: Final = "seriatim.dev/changed-at"
"""On Secrets: when what is in them last changed in a way that brokers have to see."""

APP: Final = "seriatim"
COMPONENT_BROKER: Final = "broker"
COMPONENT_OPERATOR: Final = "operator"
COMPONENT_ETCD: Final = "etcd"
"""Of the chart's own."""


def client_service_name(cluster: str) -> str:
    """The Service that clients connect to first."""
    return cluster


def brokers_name(cluster: str) -> str:
    """The headless Service that gives each broker its host name; the NetworkPolicy is called alike."""
    return f"{cluster}-brokers"


def config_name(cluster: str) -> str:
    """The ConfigMap of the brokers' settings."""
    return f"{cluster}-config"


def service_account_name(cluster: str) -> str:
    """The ServiceAccount that brokers run under; it may do nothing."""
    return f"{cluster}-broker"


def authority_secret_name(cluster: str) -> str:
    """The Secret of a cluster's own authority."""
    return f"{cluster}-ca"


def tls_secret_name(cluster: str, role: str) -> str:
    """The Secret of a leaf: `broker`, `client` or `operator`."""
    return f"{cluster}-{role}-tls"


def group_object_name(cluster: str, group: str) -> str:
    """The BrokerGroup of a group, and its disruption budget."""
    return f"{cluster}-{group}"


def broker_object_name(broker: BrokerSpec) -> str:
    """The Broker of an incarnation, its pod and its volume claim."""
    return f"{broker.cluster}-{broker.group}-{broker.slot}-{broker.uid}"


def broker_name(group: str, slot: int) -> str:
    """What the protocol calls a member."""
    return f"{group}-{slot}"


def protocol_cluster_name(cluster: BrokerCluster) -> str:
    """What the brokers call their cluster, and where its keys lie in etcd.

    With the namespace: two clusters of one name that share an etcd would otherwise be one cluster.
    """
    return f"{cluster.namespace}.{cluster.name}"


def broker_address(cluster: BrokerCluster, group: str, slot: int) -> str:
    """Where a broker is reached, by peers and by clients."""
    return f"{broker_name(group, slot)}.{brokers_name(cluster.name)}.{cluster.namespace}.svc:{BROKER_PORT}"


def bootstrap_address(cluster: BrokerCluster) -> str:
    """What clients connect to first."""
    return f"{client_service_name(cluster.name)}.{cluster.namespace}.svc:{BROKER_PORT}"


def selector_labels(cluster: str) -> dict[str, str]:
    """What the pods of a cluster's brokers have in common, and no other pod has."""
    return {LABEL_NAME: APP, LABEL_INSTANCE: cluster, LABEL_COMPONENT: COMPONENT_BROKER}


def group_selector_labels(cluster: str, group: str) -> dict[str, str]:
    """The same, of one group."""
    return {**selector_labels(cluster), LABEL_GROUP: group}


def selector_text(labels: Mapping[str, str]) -> str:
    """Labels as the API's query parameter and `status.selector` write them."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def common_labels(cluster: str) -> dict[str, str]:
    """Labels of every child."""
    return {**selector_labels(cluster), LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_CLUSTER: cluster}


def broker_labels(broker: BrokerSpec) -> dict[str, str]:
    """Labels of what belongs to one incarnation."""
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
    """The head of a child's manifest.

    Args:
        cluster: Whose child it is.
        api_version: Of the child.
        kind: Of the child.
        name: Of the child.
        labels: Instead of the common ones.
        annotations: If it has any.
        owned: Whether it goes when the cluster goes.
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
