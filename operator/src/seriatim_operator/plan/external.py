"""Plans access for clients outside: a Service for each broker and one to connect to first, and the addresses of them.

A node port or a load balancer gets its address from Kubernetes or a cloud, later and in no order. A broker without an
address waits for it, and all others are reached meanwhile. An address goes into an annotation of the broker's pod,
which the broker reads from a file: so no address restarts a broker.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..resources.cluster_children import ClusterChildren
from ..resources.names import EXTERNAL_PORT, broker_name, external_service_name
from ..spec.cluster import External, ExternalService
from .actions import Apply, DeleteObject, Plan
from .observed import Observed, PodView, ServiceView

PENDING_S: Final = 5.0
"""Seconds between two looks while an address is pending. Services are not watched."""

BOOTSTRAP_NODES_MAX: Final = 3
"""Nodes in the bootstrap address with node ports. With one, clients could not begin while that node is away."""

_NODE_ADDRESS_TYPES: Final = ("ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname")


@dataclass(frozen=True, slots=True)
class ExternalAddresses:
    """Where clients outside reach the cluster.

    Attributes:
        brokers: By name of a broker, its `host:port`. Brokers without an address are missing.
        bootstrap: The `host:port` to connect to first, separated by commas; empty if none is known.
        pending: For each Service without an address, what it waits for.
        hosts: All hosts in these addresses, for the brokers' certificate, in the form that it has them.
    """

    brokers: Mapping[str, str] = field(default_factory=dict)
    bootstrap: str = ""
    pending: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


NOWHERE: Final = ExternalAddresses()


def external_addresses(observed: Observed) -> ExternalAddresses:
    """The addresses as far as they are known now."""
    external = observed.cluster.spec.external
    if external is None:
        return NOWHERE
    pods = {pod.broker: pod for pod in observed.pods.values() if not pod.is_deleting and pod.is_scheduled}
    found: dict[str, tuple[str, int]] = {}
    pending: list[str] = []
    for broker in _brokers(observed):
        service = _service(observed, broker)
        places = _places(
            observed, external, external.of_broker(broker), service, [pods[broker]] if broker in pods else []
        )
        if places:
            found[broker] = places[0]
        else:
            pending.append(_waits_for(observed, external, broker))
    firsts = _places(
        observed, external, external.bootstrap, _service(observed, ""), [pods[name] for name in sorted(pods)]
    )[:BOOTSTRAP_NODES_MAX]
    if not firsts:
        pending.insert(0, _waits_for(observed, external, ""))
    return ExternalAddresses(
        brokers={broker: _text(*place) for broker, place in found.items()},
        bootstrap=",".join(_text(*place) for place in firsts),
        pending=tuple(pending),
        hosts=tuple(sorted({_as_certified(host) for host, _ in (*found.values(), *firsts)})),
    )


def unused_names(observed: Observed) -> list[str]:
    """The brokers that `spec.external.brokers` names and that the cluster has not, for example because it had more
    broker groups before.
    """
    external, there = observed.cluster.spec.external, set(_brokers(observed))
    groups, wanted = observed.cluster.spec.groups, () if external is None else external.brokers
    named = (each.broker for each in wanted)
    return [name for name in named if name not in there and int(name[1:].partition("-")[0]) >= groups]


def _as_certified(host: str) -> str:
    """A host in the form that certificates have: a name in small letters, an IP address in its shortest form."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def ensure_external(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Apply the Services for clients outside, and delete those that are not wanted any more."""
    wanted: set[str] = set()
    if observed.cluster.spec.external is not None:
        for broker in ("", *_brokers(observed)):
            wanted.add(external_service_name(observed.cluster.name, broker))
            plan.actions.append(Apply(make.external_service(broker)))
        if external_addresses(observed).pending:
            plan.look_again(PENDING_S)
    for service in observed.services.values():
        if service.name not in wanted:
            plan.actions.append(DeleteObject("Service", service.name, service.uid))


def _brokers(observed: Observed) -> list[str]:
    """The names of the brokers that have, or should have, a pod. Those of leaving broker groups are reached too."""
    groups = (*observed.wanted_broker_groups, *observed.leaving_broker_groups)
    return [broker_name(b.spec.group, b.spec.slot) for group in groups for b in observed.holders(group)]


def _service(observed: Observed, broker: str) -> ServiceView | None:
    return observed.services.get(external_service_name(observed.cluster.name, broker))


def _places(
    observed: Observed, external: External, own: ExternalService, service: ServiceView | None, pods: list[PodView]
) -> list[tuple[str, int]]:
    """Hosts and ports at which clients outside reach a Service, the best first; empty if they are not known."""
    if service is None or service.type != external.type:
        return []
    if external.type == "LoadBalancer":
        hosts, port = list(service.hosts[:1]), EXTERNAL_PORT
    else:
        hosts, port = [host for pod in pods if (host := _host_of(observed, external, pod))], service.node_port
    if own.advertised_host is not None:
        hosts = [own.advertised_host]
    port = own.advertised_port or port
    return [(host, port) for host in dict.fromkeys(hosts)] if port else []


def _host_of(observed: Observed, external: External, pod: PodView) -> str:
    """The address of the pod's node for clients outside."""
    node = observed.nodes.get(pod.node)
    known = dict(reversed(node.addresses)) if node is not None else {}  # the first of each type
    preferred = (external.node_address_type,) if external.node_address_type is not None else ()
    found = (known.get(kind, "") for kind in (*preferred, *_NODE_ADDRESS_TYPES))
    return next(filter(None, found), pod.host_ip)  # an operator of one namespace may not read Nodes


def _waits_for(observed: Observed, external: External, broker: str) -> str:
    name = external_service_name(observed.cluster.name, broker)
    service = _service(observed, broker)
    if service is None or service.type != external.type:
        return f"Service {name} is being made"
    if external.type == "LoadBalancer":
        return f"Service {name} waits for its load balancer: does this cluster have a provider of load balancers?"
    if not service.node_port:
        return f"Service {name} waits for its node port"
    return f"Service {name} waits for the node of {f'the pod of {broker}' if broker else 'a broker'}"


def _text(host: str, port: int) -> str:
    try:
        return f"[{host}]:{port}" if ipaddress.ip_address(host).version == 6 else f"{host}:{port}"
    except ValueError:
        return f"{host}:{port}"
