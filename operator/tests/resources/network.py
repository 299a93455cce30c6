"""What a NetworkPolicy means, in a few lines: which pod may connect to which, by the rules of networking.k8s.io/v1.

The test cluster's network does not enforce policies. This says what one that does would do, so that a policy is tested
by what it lets through and not by how it is written.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """One end of a connection: a pod, or (without labels) a bare address outside."""

    address: str = "10.1.0.1"
    namespace: str | None = None
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def namespace_labels(self) -> dict[str, str]:
        return {"kubernetes.io/metadata.name": self.namespace or ""}


def pod(namespace: str, address: str = "10.1.0.1", **labels: str) -> Place:
    """A pod; `app__x` means the label `app.kubernetes.io/x`."""
    named = {
        name.replace("app__", "app.kubernetes.io/").replace("own__", "seriatim.dev/"): v for name, v in labels.items()
    }
    return Place(address, namespace, named)


def may_connect(policy: dict[str, Any], source: Place, target: Place, port: int, protocol: str = "TCP") -> bool:
    """Whether this policy, alone, lets a connection through."""
    spec, namespace = policy["spec"], policy["metadata"]["namespace"]

    def is_meant(place: Place) -> bool:
        return place.namespace == namespace and _matches(spec["podSelector"], place.labels)

    if (
        is_meant(target)
        and "Ingress" in spec["policyTypes"]
        and not any(_allows(rule, "from", source, namespace, port, protocol) for rule in spec["ingress"])
    ):
        return False
    return not (
        is_meant(source)
        and "Egress" in spec["policyTypes"]
        and not any(_allows(rule, "to", target, namespace, port, protocol) for rule in spec["egress"])
    )


def _allows(rule: dict[str, Any], side: str, other: Place, namespace: str, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    is_port = not ports or any((each["port"], each.get("protocol", "TCP")) == (port, protocol) for each in ports)
    peers = rule.get(side)
    return is_port and (not peers or any(_is_peer(peer, other, namespace) for peer in peers))


def _is_peer(peer: dict[str, Any], other: Place, namespace: str) -> bool:
    block = peer.get("ipBlock")
    if block is not None:
        return ipaddress.ip_address(other.address) in ipaddress.ip_network(block["cidr"])
    if other.namespace is None:
        return False
    namespaces = peer.get("namespaceSelector")
    is_there = other.namespace == namespace if namespaces is None else _matches(namespaces, other.namespace_labels)
    return is_there and _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    return all(_holds(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _holds(requirement: dict[str, Any], labels: dict[str, str]) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[str(requirement["operator"])]
