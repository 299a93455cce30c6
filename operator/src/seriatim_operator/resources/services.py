"""Builds the two Services: one gives brokers their host names, to the other one clients connect first."""

from __future__ import annotations

from ..spec.cluster import BrokerCluster
from .names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    BROKER_PORT,
    BROKER_PORT_NAME,
    Manifest,
    brokers_name,
    child,
    client_service_name,
    selector_labels,
)


def brokers_service(cluster: BrokerCluster) -> Manifest:
    """The headless Service for names such as `g0-1.orders-brokers.shop.svc`.

    It also has brokers that are not ready, because a broker needs links to its peers to become ready.
    """
    manifest = child(cluster, "v1", "Service", brokers_name(cluster.name))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector_labels(cluster.name),
        "ports": [_port(BROKER_PORT_NAME, BROKER_PORT), _port(ADMIN_PORT_NAME, ADMIN_PORT)],
    }
    return {**manifest, "spec": spec}


def client_service(cluster: BrokerCluster) -> Manifest:
    """The Service that leads to any ready broker. That broker tells clients which brokers to use."""
    manifest = child(cluster, "v1", "Service", client_service_name(cluster.name))
    spec = {
        "type": "ClusterIP",
        "selector": selector_labels(cluster.name),
        "ports": [_port(BROKER_PORT_NAME, BROKER_PORT)],
    }
    return {**manifest, "spec": spec}


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
