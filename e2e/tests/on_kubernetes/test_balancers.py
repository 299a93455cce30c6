"""The provider of load balancers gives each Service an address of its own."""

from __future__ import annotations

from typing import Any

from e2e.kubernetes.balancers import addresses_of, to_give


def service(name: str, type_: str = "LoadBalancer", address: str = "") -> dict[str, Any]:
    status = {"loadBalancer": {"ingress": [{"ip": address}]} if address else {}}
    return {"metadata": {"name": name}, "spec": {"type": type_}, "status": status}


def test_services_that_wait_get_addresses_that_no_other_has_or_had() -> None:
    services = [service("c"), service("a", address="203.0.113.2"), service("b"), service("d", "NodePort")]
    assert to_give(services, {"gone": "203.0.113.1"}) == {"b": "203.0.113.3", "c": "203.0.113.4"}
    assert addresses_of(services) == {"a": "203.0.113.2"}
    assert to_give([service("a", address="203.0.113.2")], {}) == {}


def test_a_service_of_another_type_has_no_load_balancer_whatever_its_status_says() -> None:
    assert addresses_of([service("a", "NodePort", "203.0.113.1")]) == {}
