"""Addresses for clients outside: from Services, Nodes and load balancers into pods, certificate and status."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from seriatim_operator.cluster import pki
from seriatim_operator.plan.actions import Apply, DeleteObject, Plan
from seriatim_operator.plan.cluster import plan as make_plan
from seriatim_operator.plan.external import external_addresses
from seriatim_operator.plan.observed import NodeView, Observed, PodView, ServiceView, node_view, service_view
from seriatim_operator.resources.cluster_children import ClusterChildren
from seriatim_operator.spec.broker import Broker
from seriatim_operator.spec.cluster import BrokerCluster
from seriatim_operator.status.cluster import cluster_status

from ..spec.objects import good


def pod(slot: int, node: str, host_ip: str = "10.0.0.9") -> PodView:
    name = f"orders-g0-{slot}-x00{slot}"
    return PodView(
        name, f"u{slot}", "g0", slot, node, f"10.244.0.{slot}", True, True, False, bool(node), False, "h", 0.0, 0, "",
        (), host_ip=host_ip,
    )  # fmt: skip


def node(name: str, *addresses: tuple[str, str]) -> NodeView:
    return NodeView(name, name, True, False, False, addresses)


def service(broker: str, kind: str = "NodePort", port: int = 0, hosts: tuple[str, ...] = ()) -> ServiceView:
    name = f"orders-{broker}-external" if broker else "orders-external"
    return ServiceView(name, f"uid-{name}", kind, port, hosts)


def look(*services: ServiceView, external: dict[str, Any] | None, **changes: Any) -> Observed:
    manifest = good("BrokerCluster", groups=1, membersPerGroup=2)
    if external is not None:
        manifest["spec"]["external"] = external
    brokers = {}
    for slot in range(2):
        spec = {"cluster": "orders", "group": "g0", "slot": slot, "uid": f"x00{slot}"}
        name = f"orders-g0-{slot}-x00{slot}"
        brokers[name] = Broker.from_manifest({"metadata": {"name": name, "namespace": "shop"}, "spec": spec})
    pods = [pod(0, "n1"), pod(1, "n2")]
    nodes = [
        node("n1", ("InternalIP", "10.0.0.1"), ("ExternalIP", "203.0.113.1")),
        node("n2", ("InternalIP", "10.0.0.2")),
    ]
    whole = Observed(
        cluster=BrokerCluster.from_manifest(manifest),
        now_s=1_700_000_000.0,
        brokers=brokers,
        pods={each.name: each for each in pods},
        nodes={each.name: each for each in nodes},
        services={each.name: each for each in services},
    )
    return replace(whole, **changes)


NODE_PORTS = (service("", port=31000), service("g0-0", port=31001), service("g0-1", port=31002))
BALANCED = (
    service("", "LoadBalancer", hosts=("lb.example",)),
    service("g0-0", "LoadBalancer", hosts=("198.51.100.1",)),
    service("g0-1", "LoadBalancer"),
)


def test_node_ports_are_told_with_the_address_of_the_pods_node() -> None:
    found = external_addresses(look(*NODE_PORTS, external={"type": "NodePort"}))
    assert found.brokers == {"g0-0": "203.0.113.1:31001", "g0-1": "10.0.0.2:31002"}
    assert found.bootstrap == "203.0.113.1:31000,10.0.0.2:31000"
    assert found.pending == ()
    assert found.hosts == ("10.0.0.2", "203.0.113.1")
    inner = external_addresses(look(*NODE_PORTS, external={"type": "NodePort", "nodeAddressType": "InternalIP"}))
    assert inner.brokers["g0-0"] == "10.0.0.1:31001"


def test_hosts_have_the_form_of_names_in_a_certificate() -> None:
    external = {
        "type": "NodePort",
        "bootstrap": {"advertisedHost": "Orders.example"},
        "brokers": [
            {"broker": "g0-0", "advertisedHost": "2001:DB8:0::1"},
            {"broker": "g0-1", "advertisedHost": "Orders.example"},
        ],
    }
    observed = look(*NODE_PORTS, external=external)
    hosts = external_addresses(observed).hosts
    request = pki.broker_request("orders", "shop", timedelta(days=90), external_hosts=hosts)
    assert set(hosts) <= request.names
    named = replace(observed, certificate_names=request.names)
    found = cluster_status(named, Plan(), "", "").condition("ExternalReady")
    assert found is not None
    assert found.reason == "AllHaveAddresses"


def test_an_operator_that_may_not_read_nodes_takes_the_address_from_the_pod() -> None:
    found = external_addresses(look(*NODE_PORTS, external={"type": "NodePort"}, nodes={}))
    assert found.brokers["g0-0"] == "10.0.0.9:31001"


def test_a_broker_without_an_address_waits_and_the_others_do_not() -> None:
    found = external_addresses(look(*BALANCED, external={"type": "LoadBalancer"}))
    assert found.brokers == {"g0-0": "198.51.100.1:7102"}
    assert found.bootstrap == "lb.example:7102"
    [waiting] = found.pending
    assert waiting.startswith("Service orders-g0-1-external waits for its load balancer")
    nowhere = external_addresses(look(*NODE_PORTS, external={"type": "NodePort"}, pods={}))
    assert nowhere.brokers == {}
    assert len(nowhere.pending) == 3


def test_a_user_may_say_where_clients_connect() -> None:
    given = {
        "type": "LoadBalancer",
        "bootstrap": {"advertisedHost": "orders.example"},
        "brokers": [{"broker": "g0-1", "advertisedHost": "2001:db8::1", "advertisedPort": 443}],
    }
    found = external_addresses(look(*BALANCED, external=given))
    assert found.brokers["g0-1"] == "[2001:db8::1]:443", "it does not wait for a load balancer"
    assert found.bootstrap == "orders.example:7102"
    assert found.hosts == ("198.51.100.1", "2001:db8::1", "orders.example")


def test_another_type_is_awaited() -> None:
    found = external_addresses(look(*NODE_PORTS, external={"type": "LoadBalancer"}))
    assert (found.brokers, found.bootstrap) == ({}, "")


def planned(observed: Observed) -> Plan:
    addresses = external_addresses(observed).brokers
    return make_plan(observed, ClusterChildren(observed.cluster, "image", "seriatim-system", addresses))


def applied(plan: Plan, kind: str) -> dict[str, Any]:
    made = [action.manifest for action in plan.actions if isinstance(action, Apply)]
    return {each["metadata"]["name"]: each for each in made if each["kind"] == kind}


def test_pods_are_told_in_place_and_services_are_made_for_all() -> None:
    plan = planned(look(*BALANCED, external={"type": "LoadBalancer"}))
    assert {"orders-external", "orders-g0-0-external", "orders-g0-1-external"} <= applied(plan, "Service").keys()
    told = {
        name: made["metadata"]["annotations"].get("seriatim.dev/external-address")
        for name, made in applied(plan, "Pod").items()
    }
    assert told == {"orders-g0-0-x000": "198.51.100.1:7102", "orders-g0-1-x001": None}
    assert plan.again_s is not None
    assert plan.again_s <= 5


def test_services_that_are_not_wanted_any_more_are_deleted() -> None:
    plan = planned(look(*NODE_PORTS, external=None))
    gone = [action for action in plan.actions if isinstance(action, DeleteObject)]
    assert {(each.kind, each.name, each.uid) for each in gone} == {("Service", s.name, s.uid) for s in NODE_PORTS}
    former = service("g7-0", port=31009)
    plan = planned(look(*NODE_PORTS, former, external={"type": "NodePort"}))
    assert [a.name for a in plan.actions if isinstance(a, DeleteObject)] == ["orders-g7-0-external"]


def test_the_status_tells_where_to_connect_and_what_is_pending() -> None:
    status = cluster_status(look(*BALANCED, external={"type": "LoadBalancer"}), Plan(), "", "")
    assert status.external_bootstrap == "lb.example:7102"
    assert "orders-g0-1-external waits for its load balancer" in status.external_pending
    pending = status.condition("ExternalReady")
    assert pending is not None
    assert (pending.status, pending.reason, pending.message) == ("False", "AddressesPending", status.external_pending)

    status = cluster_status(look(*NODE_PORTS, external={"type": "NodePort"}), Plan(), "", "")
    ready = status.condition("ExternalReady")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "AllHaveAddresses")
    assert not status.external_pending

    observed = look(*NODE_PORTS, external={"type": "NodePort"})
    hosts = external_addresses(observed).hosts
    for names, reason in ((frozenset(hosts[:1]), "CertificatePending"), (frozenset(hosts), "AllHaveAddresses")):
        found = cluster_status(replace(observed, certificate_names=names), Plan(), "", "").condition("ExternalReady")
        assert found is not None
        assert found.reason == reason
        assert all(host in found.message for host in hosts[1:]) == (reason == "CertificatePending")

    without = cluster_status(look(external=None), Plan(), "", "")
    assert (without.external_bootstrap, without.external_pending) == ("", "")
    not_asked = without.condition("ExternalReady")
    assert not_asked is not None
    assert (not_asked.status, not_asked.reason) == ("True", "NotAsked")


def test_settings_for_brokers_that_the_cluster_has_not_are_told() -> None:
    brokers = [{"broker": "g0-0", "nodePort": 31001}, {"broker": "g1-0"}, {"broker": "g1-1"}]
    observed = look(*NODE_PORTS, external={"type": "NodePort", "brokers": brokers})
    found = cluster_status(observed, Plan(), "", "").condition("ExternalReady")
    assert found is not None
    assert (found.status, found.reason) == ("True", "AllHaveAddresses")
    assert "also names g1-0, g1-1, which the cluster does not have" in found.message


def test_what_the_api_says_is_read() -> None:
    ingress = [{"hostname": "lb.example"}, {"ip": "198.51.100.1"}]
    manifest = {
        "metadata": {"name": "s", "uid": "u"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 7102, "nodePort": 31000}]},
        "status": {"loadBalancer": {"ingress": ingress}},
    }
    assert service_view(manifest) == ServiceView("s", "u", "LoadBalancer", 31000, ("lb.example", "198.51.100.1"))
    assert service_view({"metadata": {"name": "s", "uid": "u"}}).node_port == 0
    status = {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"}]}
    found = node_view({"metadata": {"name": "n1"}, "status": status})
    assert found.addresses == (("InternalIP", "10.0.0.1"), ("Hostname", "n1"))
