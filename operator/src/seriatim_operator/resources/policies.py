"""Builds the NetworkPolicy of the brokers, and the disruption budget of each broker group."""

from __future__ import annotations

import ipaddress

from ..spec.cluster import BrokerCluster
from .names import (
    ADMIN_PORT,
    APP,
    BROKER_PORT,
    COMPONENT_OPERATOR,
    EXTERNAL_PORT,
    LABEL_COMPONENT,
    LABEL_GROUP,
    LABEL_NAME,
    LINK_PORT,
    STREAM_PORT,
    Manifest,
    broker_group_object_name,
    broker_group_selector_labels,
    brokers_name,
    child,
    common_labels,
    selector_labels,
)

DNS_PORT = 53


def disruption_budget(cluster: BrokerCluster, group: str, may_leave: int) -> Manifest:
    """The budget of one broker group.

    It has `minAvailable` as a number. For `maxUnavailable` Kubernetes would ask the pods' owner how many pods there
    should be, and the scale of a BrokerCluster counts broker groups, not pods.

    Args:
        cluster: The cluster that the broker group belongs to.
        group: The name of the broker group.
        may_leave: 1 if a member may be evicted now, otherwise 0.
    """
    assert 0 <= may_leave <= 1, "one member at a time"
    labels = {**common_labels(cluster.name), LABEL_GROUP: group}
    manifest = child(
        cluster, "policy/v1", "PodDisruptionBudget", broker_group_object_name(cluster.name, group), labels=labels
    )
    spec = {
        "minAvailable": cluster.spec.members_per_group - may_leave,
        "selector": {"matchLabels": broker_group_selector_labels(cluster.name, group)},
        # Without this, a member that is not ready could hold up the drain of its node for ever.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return {**manifest, "spec": spec}


def network_policy(cluster: BrokerCluster, operator_namespace: str) -> Manifest:
    """The policy for connections to the brokers and from them.

    Args:
        cluster: The cluster of the brokers.
        operator_namespace: The namespace of the operator.
    """
    brokers = {"podSelector": {"matchLabels": selector_labels(cluster.name)}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {LABEL_NAME: APP, LABEL_COMPONENT: COMPONENT_OPERATOR}},
    }
    chosen = cluster.spec.network_policy.client_selector
    clients = {"namespaceSelector": {}} if chosen is None else {"podSelector": chosen.to_manifest()}
    manifest = child(cluster, "networking.k8s.io/v1", "NetworkPolicy", brokers_name(cluster.name))
    spec = {
        "podSelector": {"matchLabels": selector_labels(cluster.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [brokers, operator, clients], "ports": [_tcp(BROKER_PORT)]},
            {"from": [brokers], "ports": [_tcp(LINK_PORT)]},
            # No broker opens a stream, and neither does the operator.
            {"from": [clients], "ports": [_tcp(STREAM_PORT)]},
            # Clients outside come from addresses that are of no pod, and often from those of nodes or load balancers.
            *([{"ports": [_tcp(EXTERNAL_PORT)]}] if cluster.spec.external is not None else []),
            # The port of the metrics is open to all pods, because monitoring may run in any namespace.
            {"from": [{"namespaceSelector": {}}], "ports": [_tcp(ADMIN_PORT)]},
        ],
        "egress": [
            {"to": [brokers], "ports": [_tcp(BROKER_PORT), _tcp(LINK_PORT)]},
            *_to_etcd(cluster),
            # Name servers run in pods, on nodes or outside, so only their port is the same everywhere.
            {"ports": [{"protocol": "UDP", "port": DNS_PORT}, _tcp(DNS_PORT)]},
        ],
    }
    return {**manifest, "spec": spec}


def _to_etcd(cluster: BrokerCluster) -> list[Manifest]:
    """The rules for connections to etcd.

    A policy can name addresses but no hosts. So an endpoint with an address gets a rule for the address, and one with a
    host name gets a rule for its port.
    """
    rules: list[Manifest] = []
    for endpoint in cluster.spec.etcd.endpoints:
        host, _, port = endpoint.rpartition(":")
        rule: Manifest = {"ports": [_tcp(int(port))]}
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            pass
        else:
            rule["to"] = [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]
        if rule not in rules:
            rules.append(rule)
    return rules


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
