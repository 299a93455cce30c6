"""The children of a cluster that clients outside may reach."""

from __future__ import annotations

import tomllib
from typing import Any

from .objects import broker, children, hash_of

ADDRESS = "203.0.113.7:31001"


def external(**fields: Any) -> dict[str, Any]:
    return {"type": "NodePort", **fields}


def port_of(service: dict[str, Any]) -> dict[str, Any]:
    [port] = service["spec"]["ports"]
    return dict(port)


def test_a_broker_gets_a_service_that_leads_to_no_other() -> None:
    made = children(external=external()).external_service("g0-1")
    assert made["metadata"]["name"] == "orders-g0-1-external"
    assert made["metadata"]["labels"]["seriatim.dev/external"] == "g0-1"
    assert made["metadata"]["ownerReferences"], "Kubernetes deletes it with the cluster"
    pod = children(external=external()).pod(broker())
    assert made["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    other = children(external=external()).pod(broker(slot=0))
    assert not made["spec"]["selector"].items() <= other["metadata"]["labels"].items()
    assert made["spec"]["publishNotReadyAddresses"], "the brokers decide who serves"
    assert port_of(made) == {"name": "external", "port": 7102, "targetPort": "external", "protocol": "TCP"}


def test_the_bootstrap_service_leads_to_ready_brokers() -> None:
    made = children(external=external(type="LoadBalancer")).external_service()
    assert (made["metadata"]["name"], made["spec"]["type"]) == ("orders-external", "LoadBalancer")
    assert not made["spec"]["publishNotReadyAddresses"]
    assert "seriatim.dev/slot" not in made["spec"]["selector"]


def test_node_ports_and_annotations_are_the_users() -> None:
    given = external(
        annotations={"cloud.example/scheme": "internal"},
        bootstrap={"nodePort": 31000},
        brokers=[{"broker": "g0-1", "nodePort": 31001, "annotations": {"cloud.example/scheme": "public"}}],
    )
    make = children(external=given)
    assert port_of(make.external_service())["nodePort"] == 31000
    assert port_of(make.external_service("g0-1"))["nodePort"] == 31001
    assert "nodePort" not in port_of(make.external_service("g0-0"))
    schemes = [make.external_service(name)["metadata"]["annotations"] for name in ("", "g0-0", "g0-1")]
    assert [each["cloud.example/scheme"] for each in schemes] == ["internal", "internal", "public"]


def test_a_broker_reads_its_address_from_its_pods_annotation() -> None:
    make = children(external=external())
    pod = make.pod(broker())
    assert "seriatim.dev/external-address" not in pod["metadata"]["annotations"], "it is not known yet"
    [container] = pod["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env["SERIATIM_EXTERNAL_LISTEN"] == "0.0.0.0:7102"
    assert env["SERIATIM_EXTERNAL_ADVERTISE_FILE"] == "/etc/seriatim/external/address"
    assert {"name": "external", "containerPort": 7102, "protocol": "TCP"} in container["ports"]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "config"]
    [source] = [each for each in volume["projected"]["sources"] if "downwardAPI" in each]
    [item] = source["downwardAPI"]["items"]
    assert item["path"] == "external/address"
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['seriatim.dev/external-address']"
    settings = tomllib.loads(make.config()["data"]["broker.toml"])
    assert not [name for name in settings if name.startswith("external")], "it is another one for each broker"


def test_an_address_restarts_no_broker() -> None:
    make = children(external=external())
    known = children(external=external(bootstrap={"nodePort": 31000}))
    told = type(known)(known.cluster, known.default_image, known.operator_namespace, {"g0-1": ADDRESS}).pod(broker())
    assert told["metadata"]["annotations"]["seriatim.dev/external-address"] == ADDRESS
    before = make.pod(broker())["metadata"]["annotations"]["seriatim.dev/template-hash"]
    assert told["metadata"]["annotations"]["seriatim.dev/template-hash"] == before
    assert hash_of() != before, "the port itself needs a restart"


def test_without_external_access_nothing_is_open() -> None:
    [container] = children().pod(broker())["spec"]["containers"]
    assert not [port for port in container["ports"] if port["containerPort"] == 7102]
    assert "7102" not in str(children().shared())


def test_the_network_policy_lets_the_outer_port_in_from_everywhere() -> None:
    [policy] = [m for m in children(external=external()).shared() if m["kind"] == "NetworkPolicy"]
    [rule] = [rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"protocol": "TCP", "port": 7102}]]
    assert "from" not in rule
