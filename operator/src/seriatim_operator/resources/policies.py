"""What limits others: who may reach the brokers, and how many of a group may be evicted."""

from __future__ import annotations

import ipaddress

from ..spec.cluster import BrokerCluster
from .names import (
    ADMIN_PORT,
    APP,
    BROKER_PORT,
    COMPONENT_OPERATOR,
    LABEL_COMPONENT,
    LABEL_GROUP,
    LABEL_NAME,
    Manifest,
    brokers_name,
    child,
    common_labels,
    group_object_name,
    group_selector_labels,
    selector_labels,
)

DNS_PORT = 53


def disruption_budget(cluster: BrokerCluster, group: str, may_leave: int) -> Manifest:
    """The budget of one group.

    Written as `minAvailable`, a number: for `maxUnavailable` Kubernetes would ask the pods' owner how many there should
    be, and a BrokerCluster's scale counts groups, not pods.

    Args:
        cluster: Whose group it is.
        group: The group.
        may_leave: 0 while a member is not whole or a drain waits for heads to move, else 1.
    """
    assert 0 <= may_leave <= 1, "one member at a time"
    labels = {**common_labels(cluster.name), LABEL_GROUP: group}
    manifest = child(cluster, "policy/v1", "PodDisruptionBudget", group_object_name(cluster.name, group), labels=labels)
    spec = {
        "minAvailable": cluster.spec.members_per_group - may_leave,
        "selector": {"matchLabels": group_selector_labels(cluster.name, group)},
        # A member that is not ready protects nothing; without this it could hold up the drain of its node for ever.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return {**manifest, "spec": spec}


def network_policy(cluster: BrokerCluster, operator_namespace: str) -> Manifest:
    """Who may talk to the brokers, and with whom they may talk.

    Args:
        cluster: Whose brokers.
        operator_namespace: Where the operator runs.
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
            # Metrics, for whoever scrapes in this Kubernetes.
            {"from": [{"namespaceSelector": {}}], "ports": [_tcp(ADMIN_PORT)]},
        ],
        "egress": [
            {"to": [brokers], "ports": [_tcp(BROKER_PORT)]},
            *_to_etcd(cluster),
            # Name servers stand in pods, on nodes or outside; the port is all that is common to them.
            {"ports": [{"protocol": "UDP", "port": DNS_PORT}, _tcp(DNS_PORT)]},
        ],
    }
    return {**manifest, "spec": spec}


def _to_etcd(cluster: BrokerCluster) -> list[Manifest]:
    """A policy cannot name a host: an endpoint given by address is let through as such, one by name by its port."""
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
