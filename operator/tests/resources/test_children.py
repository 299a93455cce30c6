"""The other children: which object owns them, which clients they let in, and that a real API server takes each."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from seriatim_operator.cluster.pki import broker_request, new_authority
from seriatim_operator.cluster.pki.issuing import authority_data
from seriatim_operator.resources.pod import pod_in_place
from seriatim_operator.resources.secrets import changed_at, is_ours, secret_files, tls_secret

from ..api_server import ApiServer
from .objects import IMAGE, broker, children, cluster

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)

FULL: dict[str, Any] = {
    "image": IMAGE,
    "etcd": {"endpoints": ["10.0.0.7:2379", "etcd-1.etcd:2379", "etcd-2.etcd:2379"], "tlsSecret": "etcd-client"},
    "settings": {"heal_after_s": "90", "stop_deadline_s": "10"},
    "networkPolicy": {"enabled": True, "clientSelector": {"matchLabels": {"seriatim.dev/client": "true"}}},
    "podTemplate": {
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [
            {"key": "disks", "operator": "Exists"},
            {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5},
        ],
        "priorityClassName": "system-cluster-critical",
        "env": [{"name": "MALLOC_ARENA_MAX", "value": "2"}],
        "imagePullSecrets": [{"name": "registry"}],
    },
}


def all_of(**spec: Any) -> list[dict[str, Any]]:
    """Every kind of child of such a cluster."""
    made = children("default", **spec)
    member = broker("default", replaces="0123456789abcdef0123456789abcdef")
    authority = new_authority("orders", "default", NOW)
    leaf = authority.issue(broker_request("orders", "default", NOW - datetime(2026, 8, 22, 12, tzinfo=UTC)), NOW)
    files = {"tls.crt": leaf.certificate_pem, "tls.key": leaf.key_pem, "ca.crt": authority.identity.certificate_pem}
    owner = cluster("default", **spec)
    return [
        *made.shared(),
        made.config(),
        made.group("g0"),
        made.broker("g0", 1, "x7k2", None),
        made.claim(member),
        made.pod(member),
        made.budget("g0", 1),
        tls_secret(owner, "orders-ca", authority_data(authority)),
        tls_secret(owner, "orders-broker-tls", files, NOW),
    ]


def named(kind: str, **spec: Any) -> dict[str, Any]:
    return next(made for made in all_of(**spec) if made["kind"] == kind)


def test_names_are_as_agreed() -> None:
    assert {(made["kind"], made["metadata"]["name"]) for made in all_of()} == {
        ("ServiceAccount", "orders-broker"),
        ("ConfigMap", "orders-config"),
        ("Service", "orders-brokers"),
        ("Service", "orders"),
        ("NetworkPolicy", "orders-brokers"),
        ("BrokerGroup", "orders-g0"),
        ("Broker", "orders-g0-1-x7k2"),
        ("PersistentVolumeClaim", "orders-g0-1-x7k2"),
        ("Pod", "orders-g0-1-x7k2"),
        ("PodDisruptionBudget", "orders-g0"),
        ("Secret", "orders-ca"),
        ("Secret", "orders-broker-tls"),
    }


def test_every_child_goes_with_its_cluster_but_the_disks() -> None:
    unowned = {made["kind"] for made in all_of() if "ownerReferences" not in made["metadata"]}
    assert unowned == {"PersistentVolumeClaim"}
    assert all("ownerReferences" in made["metadata"] for made in all_of(deletionPolicy="Delete"))


def test_every_child_bears_the_common_labels() -> None:
    for made in all_of():
        labels = made["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "seriatim-operator"
        assert labels["seriatim.dev/cluster"] == labels["app.kubernetes.io/instance"] == "orders"


@pytest.mark.parametrize(("may_leave", "members", "stay"), [(0, 2, 2), (1, 2, 1), (1, 3, 2)])
def test_budget_counts_pods_not_groups(may_leave: int, members: int, stay: int) -> None:
    spec = children(membersPerGroup=members).budget("g0", may_leave)["spec"]
    assert spec["minAvailable"] == stay
    assert "maxUnavailable" not in spec
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert spec["selector"]["matchLabels"]["seriatim.dev/group"] == "g0"


def test_brokers_are_found_before_they_are_ready_and_clients_find_ready_ones() -> None:
    services = {made["metadata"]["name"]: made["spec"] for made in children().shared() if made["kind"] == "Service"}
    assert services["orders-brokers"]["publishNotReadyAddresses"] is True
    assert services["orders-brokers"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in services["orders"]
    assert [port["port"] for port in services["orders"]["ports"]] == [7100]


def test_each_port_of_a_broker_has_the_same_name_and_number_at_its_pod_and_at_its_host_name() -> None:
    made = {(each["kind"], each["metadata"]["name"]): each.get("spec", {}) for each in all_of()}
    [container] = made["Pod", "orders-g0-1-x7k2"]["containers"]
    at_pod = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert at_pod == {"seriatim": 7100, "admin": 7101, "links": 7103, "streams": 7104}
    at_host_name = made["Service", "orders-brokers"]["ports"]
    assert {port["targetPort"]: port["port"] for port in at_host_name} == at_pod


def test_brokers_are_reached_by_their_peers_the_operator_and_clients() -> None:
    traffic, links, streams, metrics = named("NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for port in traffic["ports"]] == [7100]
    peers, operator, clients = traffic["from"]
    assert links == {"from": [peers], "ports": [{"protocol": "TCP", "port": 7103}]}
    assert streams == {"from": [clients], "ports": [{"protocol": "TCP", "port": 7104}]}
    assert peers["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "broker"
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "seriatim-system"}
    assert operator["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert clients == {"namespaceSelector": {}}
    assert [port["port"] for port in metrics["ports"]] == [7101]


def test_chosen_clients_are_those_of_the_namespace() -> None:
    clients = named("NetworkPolicy", **FULL)["spec"]["ingress"][0]["from"][2]
    assert clients["podSelector"]["matchLabels"] == {"seriatim.dev/client": "true"}
    assert "namespaceSelector" not in clients


def test_brokers_reach_peers_etcd_and_names_only() -> None:
    peers, first, others, names = named("NetworkPolicy", **FULL)["spec"]["egress"]
    assert "podSelector" in peers["to"][0]
    assert first == {"ports": [{"protocol": "TCP", "port": 2379}], "to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}]}
    assert others == {"ports": [{"protocol": "TCP", "port": 2379}]}
    assert {port["port"] for port in names["ports"]} == {53}


def test_policy_can_be_left_out() -> None:
    assert "NetworkPolicy" not in {made["kind"] for made in all_of(networkPolicy={"enabled": False})}


def test_what_users_say_of_a_group_is_theirs() -> None:
    assert children().group("g0")["spec"] == {"cluster": "orders", "group": "g0"}


def test_secret_comes_back_as_it_was() -> None:
    made = tls_secret(cluster(), "orders-broker-tls", {"tls.crt": b"c", "tls.key": b"k"}, NOW)
    assert secret_files(made) == {"tls.crt": b"c", "tls.key": b"k"}
    assert changed_at(made) == NOW
    assert is_ours(made, cluster())


def test_secrets_of_others_are_left_alone() -> None:
    made = tls_secret(cluster(), "orders-broker-tls", {})
    filled = {**made["metadata"], "annotations": {"cert-manager.io/certificate-name": "brokers"}}
    assert not is_ours({**made, "metadata": filled}, cluster())
    assert not is_ours({**made, "metadata": {"name": "orders-broker-tls"}}, cluster())


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-20T12:00:00"])
def test_time_that_is_none_counts_as_unknown(time: str) -> None:
    made = tls_secret(cluster(), "x", {})
    assert changed_at({"metadata": {**made["metadata"], "annotations": {"seriatim.dev/changed-at": time}}}) is None


def test_damaged_base64_is_an_empty_file() -> None:
    assert secret_files({"data": {"tls.crt": "%%%"}}) == {"tls.crt": b""}


@pytest.mark.parametrize("spec", [{}, FULL, {"tls": {"enabled": False}, "deletionPolicy": "Delete"}])
def test_api_server_takes_every_child(api_server: ApiServer, spec: dict[str, Any]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": all_of(**spec)}
    said = api_server.kubectl(
        *("apply", "--server-side", "--field-manager=seriatim-operator", "--validate=strict", "--dry-run=server"),
        *("-f", "-"),
        text=json.dumps(items),
    )
    assert len(said.splitlines()) == len(items["items"])


def test_pod_passes_the_restricted_standard(api_server: ApiServer) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict"}}
    label = {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    answer = api_server.call("POST", "/api/v1/namespaces", {**namespace, "metadata": {"name": "strict", **label}})
    assert answer.status in (201, 409)
    pod = children("strict", **FULL).pod(broker("strict"))
    path = "/api/v1/namespaces/strict/pods?dryRun=All&fieldValidation=Strict"
    assert api_server.call("POST", path, pod).complaint == ""
    pod["spec"]["containers"][0]["securityContext"]["capabilities"] = {}
    assert "unrestricted capabilities" in api_server.call("POST", path, pod).complaint


def test_labels_of_a_running_pod_change_in_place(api_server: ApiServer) -> None:
    path = "/api/v1/namespaces/default/pods/orders-g0-1-x7k2"
    apply = f"{path}?fieldManager=seriatim-operator&fieldValidation=Strict"

    def sent(made: dict[str, Any]) -> dict[str, Any]:
        answer = api_server.call("PATCH", apply, made, "application/apply-patch+yaml")
        assert answer.complaint == ""
        return answer.body

    existing = sent(children("default", podTemplate={"labels": {"team": "a", "tier": "x"}}).pod(broker("default")))
    other = children("default", podTemplate={"labels": {"team": "b"}, "nodeSelector": {"disk": "nvme"}})
    changed = sent(pod_in_place(existing, other.pod(broker("default"))))
    assert changed["metadata"]["labels"]["team"] == "b"
    assert "tier" not in changed["metadata"]["labels"]
    again = sent(pod_in_place(changed, other.pod(broker("default"))))
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    api_server.call("DELETE", f"{path}?gracePeriodSeconds=0")
