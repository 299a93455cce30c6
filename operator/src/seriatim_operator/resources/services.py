"""Builds the Services: for names of brokers, for clients inside, and for clients outside if the cluster has any."""

from __future__ import annotations

from ..spec.cluster import BrokerCluster
from .names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    BROKER_PORT,
    BROKER_PORT_NAME,
    EXTERNAL_PORT,
    EXTERNAL_PORT_NAME,
    LABEL_EXTERNAL,
    LABEL_GROUP,
    LABEL_SLOT,
    LINK_PORT,
    LINK_PORT_NAME,
    STREAM_PORT,
    STREAM_PORT_NAME,
    Manifest,
    brokers_name,
    child,
    client_service_name,
    common_labels,
    external_service_name,
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
        "ports": [
            _port(BROKER_PORT_NAME, BROKER_PORT),
            _port(ADMIN_PORT_NAME, ADMIN_PORT),
            _port(LINK_PORT_NAME, LINK_PORT),
            _port(STREAM_PORT_NAME, STREAM_PORT),
        ],
    }
    return {**manifest, "spec": spec}


def client_service(cluster: BrokerCluster) -> Manifest:
    """The Service that leads to any ready broker. That broker tells clients which brokers to use.

    Streams of clients go to the brokers' own names, so their port is not here.
    """
    manifest = child(cluster, "v1", "Service", client_service_name(cluster.name))
    spec = {
        "type": "ClusterIP",
        "selector": selector_labels(cluster.name),
        "ports": [_port(BROKER_PORT_NAME, BROKER_PORT)],
    }
    return {**manifest, "spec": spec}


def external_service(cluster: BrokerCluster, broker: str = "") -> Manifest:
    """A Service for clients outside: of one broker, or of all ready ones, to which clients connect first.

    The Service of a broker also leads to it while it is not ready. The brokers decide who serves, and a client that is
    told to go there must not be sent away by Kubernetes.
    """
    external = cluster.spec.external
    assert external is not None
    own = external.of_broker(broker) if broker else external.bootstrap
    selector = selector_labels(cluster.name)
    if broker:
        group, _, slot = broker.rpartition("-")
        selector |= {LABEL_GROUP: group, LABEL_SLOT: slot}
    manifest = child(
        cluster,
        "v1",
        "Service",
        external_service_name(cluster.name, broker),
        labels={**common_labels(cluster.name), LABEL_EXTERNAL: broker or "bootstrap"},
        annotations={**external.annotations, **own.annotations},
    )
    port = _port(EXTERNAL_PORT_NAME, EXTERNAL_PORT)
    if own.node_port is not None:
        port["nodePort"] = own.node_port
    spec = {
        "type": external.type,
        "publishNotReadyAddresses": bool(broker),
        "selector": selector,
        "ports": [port],
    }
    return {**manifest, "spec": spec}


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
