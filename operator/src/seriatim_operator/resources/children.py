"""Builds the small children: objects of our own kinds, and the ServiceAccount of the brokers."""

from __future__ import annotations

from ..spec.base import API_GROUP, API_VERSION
from ..spec.broker import BrokerSpec
from ..spec.cluster import BrokerCluster
from .names import (
    LABEL_GROUP,
    Manifest,
    broker_group_object_name,
    broker_labels,
    broker_object_name,
    child,
    common_labels,
    service_account_name,
)

_OURS = f"{API_GROUP}/{API_VERSION}"


def service_account(cluster: BrokerCluster) -> Manifest:
    """The ServiceAccount of the brokers. It has no rights, and its token is not mounted into pods."""
    manifest = child(cluster, "v1", "ServiceAccount", service_account_name(cluster.name))
    return {**manifest, "automountServiceAccountToken": False}


def broker_group(cluster: BrokerCluster, group: str) -> Manifest:
    """The BrokerGroup object of a broker group. The operator does not set weight and state: users write them."""
    labels = {**common_labels(cluster.name), LABEL_GROUP: group}
    manifest = child(cluster, _OURS, "BrokerGroup", broker_group_object_name(cluster.name, group), labels=labels)
    return {**manifest, "spec": {"cluster": cluster.name, "group": group}}


def broker(cluster: BrokerCluster, spec: BrokerSpec) -> Manifest:
    """The Broker object of an incarnation."""
    assert spec.cluster == cluster.name, "a broker of another cluster"
    manifest = child(cluster, _OURS, "Broker", broker_object_name(spec), labels=broker_labels(spec))
    return {**manifest, "spec": spec.to_manifest()}
