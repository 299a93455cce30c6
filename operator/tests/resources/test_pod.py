"""A broker's pod: what it may do, where it may be, what it is given, and when it has to be recreated."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_operator.resources.pod import pod_in_place

from .objects import IMAGE, UID, broker, children, hash_of


def spec_of(**spec: Any) -> dict[str, Any]:
    return dict(children(**spec).pod(broker())["spec"])


def container_of(**spec: Any) -> dict[str, Any]:
    return dict(spec_of(**spec)["containers"][0])


def environment_of(made: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in made["spec"]["containers"][0]["env"]}


def test_pod_is_called_labelled_and_owned_as_agreed() -> None:
    metadata = children().pod(broker())["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("orders-g0-1-x7k2", "shop")
    assert metadata["labels"] == {
        "app.kubernetes.io/name": "seriatim",
        "app.kubernetes.io/instance": "orders",
        "app.kubernetes.io/managed-by": "seriatim-operator",
        "app.kubernetes.io/component": "broker",
        "seriatim.dev/cluster": "orders",
        "seriatim.dev/group": "g0",
        "seriatim.dev/slot": "1",
        "seriatim.dev/broker-uid": "x7k2",
    }
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("BrokerCluster", "orders", UID, True)


def test_pod_may_do_nothing_that_it_need_not() -> None:
    spec = spec_of()
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "orders-broker"


def test_broker_is_told_who_it_is() -> None:
    made = children().pod(broker())
    assert environment_of(made) == {
        "SERIATIM_GROUP": "g0",
        "SERIATIM_SLOT": "1",
        "SERIATIM_ADVERTISE": "g0-1.orders-brokers.shop.svc:7100",
        "SERIATIM_STATUS_FILE": "/dev/termination-log",
        "SERIATIM_LINK_LISTEN": "0.0.0.0:7103",
        "SERIATIM_STREAM_LISTEN": "0.0.0.0:7104",
    }
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("g0-1", "orders-brokers")
    assert made["spec"]["enableServiceLinks"] is False, "a Service called seriatim would look like settings"
    replacing = environment_of(children().pod(broker(replaces="ab12")))
    assert replacing["SERIATIM_REPLACE_DISK_OF"] == "ab12"


def test_users_variables_come_along() -> None:
    env = [{"name": "MALLOC_ARENA_MAX", "value": "2"}]
    assert environment_of(children(podTemplate={"env": env}).pod(broker()))["MALLOC_ARENA_MAX"] == "2"


def test_what_ended_is_left_where_the_kubelet_reads_it() -> None:
    container = container_of()
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"


def test_members_of_a_group_never_share_a_machine() -> None:
    [term] = spec_of()["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"]["seriatim.dev/group"] == "g0"
    assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "orders"


def test_spread_never_keeps_a_broker_from_starting() -> None:
    spread = spec_of(podTemplate={"zoneKey": "rack"})["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["rack", "kubernetes.io/hostname"]
    assert {each["whenUnsatisfiable"] for each in spread} == {"ScheduleAnyway"}


def test_a_silent_node_is_left_to_the_operator() -> None:
    users = {"key": "disks", "operator": "Exists", "effect": "NoSchedule"}
    tolerations = spec_of(podTemplate={"tolerations": [users]})["tolerations"]
    assert users in tolerations
    silent = [each for each in tolerations if each["key"].startswith("node.kubernetes.io/")]
    assert {each["key"] for each in silent} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert all("tolerationSeconds" not in each for each in silent)


def test_probes() -> None:
    plain, encrypted = container_of(tls={"enabled": False}), container_of()
    assert plain["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin", "scheme": "HTTP"}
    assert encrypted["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    start = encrypted["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 3600
    live = encrypted["livenessProbe"]
    assert live["httpGet"]["path"] == "/healthz"
    assert live["periodSeconds"] * live["failureThreshold"] >= 120, "a busy machine is no reason to kill a broker"


def test_grace_leaves_time_to_hand_over() -> None:
    assert spec_of()["terminationGracePeriodSeconds"] == 30
    assert spec_of(settings={"stop_deadline_s": "60"})["terminationGracePeriodSeconds"] == 87


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({}, {"cpu": "100m", "memory": "512Mi"}),
        ({"requests": {"cpu": "2"}}, {"cpu": "2", "memory": "512Mi"}),
        ({"limits": {"memory": "256Mi"}}, {"cpu": "100m"}),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi", "cpu": "1"}}, {"memory": "1Gi"}),
    ],
)
def test_broker_asks_for_something_but_never_more_than_its_limit(said: Any, asked: dict[str, str]) -> None:
    resources = container_of(podTemplate={"resources": said})["resources"]
    assert resources["requests"] == asked
    assert resources.get("limits", {}) == said.get("limits", {})


def test_files_are_one_volume_that_changes_at_once() -> None:
    spec = spec_of(etcd={"endpoints": ["etcd:2379"], "tlsSecret": "etcd-client"})
    [config] = [volume for volume in spec["volumes"] if volume["name"] == "config"]
    paths = {
        item["path"]: next(iter(source.values()))["name"]
        for source in config["projected"]["sources"]
        for item in next(iter(source.values()))["items"]
    }
    assert paths == {
        "broker.toml": "orders-config",
        "tls/ca.crt": "orders-broker-tls",
        "tls/tls.crt": "orders-broker-tls",
        "tls/tls.key": "orders-broker-tls",
        "etcd-tls/ca.crt": "etcd-client",
        "etcd-tls/tls.crt": "etcd-client",
        "etcd-tls/tls.key": "etcd-client",
    }
    plain = spec_of(tls={"enabled": False})["volumes"]
    assert [len(volume["projected"]["sources"]) for volume in plain if volume["name"] == "config"] == [1]


def test_only_the_disk_is_writable_for_good() -> None:
    mounts = {mount["mountPath"]: mount for mount in container_of()["volumeMounts"]}
    assert mounts["/etc/seriatim"]["readOnly"] is True
    assert set(mounts) == {"/etc/seriatim", "/var/lib/seriatim", "/tmp"}
    claims = [volume["persistentVolumeClaim"] for volume in spec_of()["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"claimName": "orders-g0-1-x7k2"}]


@pytest.mark.parametrize(
    "spec",
    [
        {"image": "seriatim.dev/broker:other"},
        {"settings": {"heal_after_s": "60"}},
        {"etcd": {"endpoints": ["other:2379"]}},
        {"etcd": {"endpoints": ["etcd-0.etcd.shop.svc:2379"], "tlsSecret": "etcd-client"}},
        {"tls": {"enabled": False}},
        {"podTemplate": {"env": [{"name": "A", "value": "1"}]}},
        {"podTemplate": {"resources": {"limits": {"memory": "2Gi"}}}},
    ],
)
def test_what_needs_a_restart_changes_the_hash(spec: dict[str, Any]) -> None:
    assert hash_of(**spec) != hash_of()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"image": IMAGE},
        {"groups": 5},
        {"podTemplate": {"labels": {"team": "a"}, "annotations": {"note": "b"}}},
        {"podTemplate": {"nodeSelector": {"disk": "nvme"}, "priorityClassName": "high", "zoneKey": "rack"}},
        {"podTemplate": {"tolerations": [{"key": "x", "operator": "Exists"}], "imagePullPolicy": "Always"}},
        {"tls": {"certificateDays": 30, "caSecret": "mine"}},
        {"storage": {"storageClassName": "local-nvme", "size": "40Gi"}},
        {"networkPolicy": {"enabled": False}},
    ],
)
def test_what_needs_none_does_not(spec: dict[str, Any]) -> None:
    assert hash_of(**spec) == hash_of()


def test_one_amount_written_two_ways_is_one() -> None:
    def amount(text: str) -> str:
        return hash_of(podTemplate={"resources": {"requests": {"memory": text, "cpu": "1"}}})

    assert amount("1Gi") == amount("1024Mi") != amount("1025Mi")


def test_all_members_have_the_same_hash() -> None:
    made = children()
    hashes = {
        made.pod(each)["metadata"]["annotations"]["seriatim.dev/template-hash"]
        for each in (broker(slot=0), broker(slot=1), broker(uid="aaaa", replaces="ab12"))
    }
    assert hashes == {made.template_hash()}


def test_labels_change_in_place_and_the_rest_stays() -> None:
    existing = children().pod(broker())
    existing["spec"]["nodeName"] = "n1"
    wanted = children(image="other", podTemplate={"labels": {"team": "a"}, "nodeSelector": {"a": "b"}}).pod(broker())
    applied = pod_in_place(existing, wanted)
    assert applied["metadata"]["labels"]["team"] == "a"
    assert applied["spec"] == existing["spec"]
    for annotation in ("seriatim.dev/template-hash", "seriatim.dev/placement-hash"):
        was = existing["metadata"]["annotations"][annotation]
        assert applied["metadata"]["annotations"][annotation] == was
        assert wanted["metadata"]["annotations"][annotation] != was


@pytest.mark.parametrize(
    "template",
    [
        {"nodeSelector": {"disk": "nvme"}},
        {"tolerations": [{"key": "a", "operator": "Exists"}]},
        {"affinity": {"nodeAffinity": {}}},
        {"topologySpreadConstraints": [{"topologyKey": "rack"}]},
        {"priorityClassName": "high"},
        {"imagePullPolicy": "Always"},
        {"imagePullSecrets": [{"name": "registry"}]},
        {"zoneKey": "rack"},
    ],
)
def test_what_counts_when_a_pod_is_made_changes_its_placement_hash_alone(template: dict[str, Any]) -> None:
    assert children(podTemplate=template).placement_hash() != children().placement_hash()
    assert hash_of(podTemplate=template) == hash_of()


def test_a_pod_with_a_former_image_has_a_hash_that_no_spec_has() -> None:
    made = children(image="new")
    pod = made.pod(broker(), "old")
    assert pod["spec"]["containers"][0]["image"] == "old"
    assert pod["metadata"]["annotations"]["seriatim.dev/template-hash"] == f"former-{hash_of(image='old')}"


def test_users_affinity_is_kept_beside_the_rule_of_the_group() -> None:
    node = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}]}
    apart = {"labelSelector": {"matchLabels": {"app": "spark"}}, "topologyKey": "kubernetes.io/hostname"}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: node}, "podAntiAffinity": {required: [apart]}}
    made = children(podTemplate={"affinity": affinity}).pod(broker())["spec"]["affinity"]
    assert made["nodeAffinity"][required] == node
    users, ours = made["podAntiAffinity"][required]
    assert users["labelSelector"]["matchLabels"] == {"app": "spark"}
    assert ours["labelSelector"]["matchLabels"]["seriatim.dev/group"] == "g0"


def test_users_constraint_takes_the_place_of_ours_with_the_same_key() -> None:
    hostname, rack = "kubernetes.io/hostname", "example.com/rack"
    given = [{"topologyKey": hostname, "maxSkew": 3}, {"topologyKey": rack, "whenUnsatisfiable": "DoNotSchedule"}]
    made = children(podTemplate={"topologySpreadConstraints": given}).pod(broker())["spec"]["topologySpreadConstraints"]
    assert [(one["topologyKey"], one["whenUnsatisfiable"], one["maxSkew"]) for one in made] == [
        (hostname, "ScheduleAnyway", 3),
        (rack, "DoNotSchedule", 1),
        ("topology.kubernetes.io/zone", "ScheduleAnyway", 1),
    ]
    assert made[0]["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "orders"
    assert "seriatim.dev/group" not in made[0]["labelSelector"]["matchLabels"]


def test_placement_restarts_no_broker() -> None:
    placed = {"affinity": {"nodeAffinity": {}}, "topologySpreadConstraints": [{"topologyKey": "rack"}]}
    assert children(podTemplate=placed).template_hash() == children().template_hash()
