"""What may change in an object and what may not; defaults, scale and samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from seriatim_operator.spec import KINDS, BrokerCluster, Resource, Topic
from seriatim_operator.spec.base import Status

from ..api_server import ROOT, ApiServer
from .objects import GONE, changed, create, good, kind_of, path_of, update

SAMPLES = ROOT / "docs" / "samples"


@pytest.fixture
def kept(api_server: ApiServer) -> Iterator[Any]:
    """Makes objects that are gone when the test ends."""
    paths = []

    def keep(manifest: dict[str, Any]) -> dict[str, Any]:
        answer = create(api_server, manifest)
        assert answer.complaint == ""
        paths.append(path_of(manifest["kind"], manifest["metadata"]["name"]))
        return answer.body

    yield keep
    for path in paths:
        assert api_server.call("DELETE", path).complaint == ""


FULL: dict[str, dict[str, Any]] = {
    "BrokerCluster": changed(
        changed(good("BrokerCluster"), "spec.etcd.tlsSecret", "etcd-tls"), "spec.image", "example.org/broker:1"
    ),
    "BrokerGroup": good("BrokerGroup"),
    "Broker": changed(good("Broker"), "spec.replaces", "0" * 32),
    "Topic": changed(changed(good("Topic"), "spec.name", "Events"), "spec.partitions", 4),
    "ConsumerGroup": good(
        "ConsumerGroup",
        group="Billing",
        mode="KeyOrdered",
        retry={"attempts": 3, "whenExhausted": "DeadLetter"},
        deadLetterTopic="letters",
    ),
}
"""Objects whose optional fields are set as well."""

REFUSED = [
    ("BrokerCluster", "spec.membersPerGroup", 3, "make a new cluster"),
    ("BrokerCluster", "spec.storage.storageClassName", "other", "disks cannot change their class"),
    ("BrokerCluster", "spec.storage.size", "19Gi", "a disk can grow, not shrink"),
    ("BrokerCluster", "spec.storage.size", "19000M", "a disk can grow, not shrink"),
    ("BrokerCluster", "spec.tls.enabled", False, "brokers with and without TLS"),
    ("BrokerCluster", "spec.etcd.tlsSecret", GONE, "cannot be added or removed"),
    ("BrokerCluster", "spec.external", {"type": "NodePort", "brokers": [{"broker": "g2-0"}]}, "raise groups first"),
    ("BrokerGroup", "spec.cluster", "other", "make a new object"),
    ("BrokerGroup", "spec.group", "g1", "keeps its name"),
    ("Broker", "spec.slot", 2, "keeps its slot"),
    ("Broker", "spec.uid", "aaaa", "another disk is another Broker"),
    ("Broker", "spec.replaces", "1" * 32, "decided when the Broker is made"),
    ("Broker", "spec.replaces", GONE, "neither adding nor removing"),
    ("Topic", "spec.cluster", "other", "make a new object"),
    ("Topic", "spec.name", "Other", "a topic keeps its name"),
    ("Topic", "spec.name", GONE, "neither adding nor removing"),
    ("Topic", "spec.partitions", 3, "partitions can be added but not removed"),
    ("Topic", "spec.partitions", GONE, "partitions can be added but not removed"),
    ("Topic", "spec.durability", "Replicated", "make a new topic"),
    ("ConsumerGroup", "spec.topic", "other", "place is in one topic"),
    ("ConsumerGroup", "spec.group", "Other", "keeps its name"),
    ("ConsumerGroup", "spec.group", GONE, "neither adding nor removing"),
    ("ConsumerGroup", "spec.start", "Latest", "a group starts once"),
]

ALLOWED = [
    ("BrokerCluster", "spec.groups", 4),
    ("BrokerCluster", "spec.groups", 1),
    ("BrokerCluster", "spec.etcd.endpoints", ["other:2379"]),
    ("BrokerCluster", "spec.etcd.tlsSecret", "other"),
    ("BrokerCluster", "spec.storage.size", "20480Mi"),
    ("BrokerCluster", "spec.storage.size", "1Ti"),
    ("BrokerCluster", "spec.image", GONE),
    ("BrokerCluster", "spec.paused", True),
    ("BrokerGroup", "spec.state", "Draining"),
    ("BrokerGroup", "spec.weight", 2),
    ("Topic", "spec.partitions", 5),
    ("Topic", "spec.retention", "Forever"),
    ("Topic", "spec.deletionPolicy", "Delete"),
    ("ConsumerGroup", "spec.deletionPolicy", "Delete"),
    ("ConsumerGroup", "spec.mode", "Shared"),
    ("ConsumerGroup", "spec.retry.attempts", 5),
    ("ConsumerGroup", "spec.retry.delays", ["2s", "1m"]),
    ("ConsumerGroup", "spec.deadLetterTopic", GONE),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), REFUSED)
def test_what_never_changes_is_refused_with_advice(
    kind: str, path: str, value: object, message: str, api_server: ApiServer, kept: Any
) -> None:
    there = kept(FULL[kind])
    answer = update(api_server, changed(there, path, value))
    assert message in answer.complaint
    assert answer.status == 422


def test_the_etcd_of_a_cluster_that_has_run_changes_only_with_a_word(api_server: ApiServer, kept: Any) -> None:
    there = kept(FULL["BrokerCluster"])
    two = ["etcd-0.etcd.shop.svc:2379", "etcd-1.etcd.shop.svc:2379"]
    there = api_server.call("PUT", path_of("BrokerCluster", "orders"), changed(there, "spec.etcd.endpoints", two)).body
    status = {"status": {"clusterId": "an-id"}}
    path = path_of("BrokerCluster", "orders", "status")
    there = api_server.call("PATCH", path, status, "application/merge-patch+json").body
    assert there["status"]["clusterId"] == "an-id"
    for endpoints in (["other:2379"], two[:1], [*two, "etcd-2.etcd.shop.svc:2379"]):
        answer = update(api_server, changed(there, "spec.etcd.endpoints", endpoints))
        assert "write spec.etcd.endpointsChange: SameEtcd" in answer.complaint
        said = changed(there, "spec.etcd.endpointsChange", "SameEtcd")
        assert update(api_server, changed(said, "spec.etcd.endpoints", endpoints)).complaint == ""
    assert update(api_server, changed(there, "spec.etcd.endpoints", two[::-1])).complaint == ""
    assert update(api_server, changed(there, "spec.groups", 5)).complaint == ""


def test_a_cluster_gets_fewer_groups_than_its_external_settings_name(api_server: ApiServer, kept: Any) -> None:
    ports = {"type": "NodePort", "brokers": [{"broker": "g1-0", "nodePort": 31001}]}
    there = kept(good("BrokerCluster", external=ports))
    path = path_of("BrokerCluster", "orders")
    seen = {"status": {"observedGeneration": 1}}
    assert api_server.call("PATCH", f"{path}/status", seen, "application/merge-patch+json").complaint == ""
    scaled = api_server.call("PATCH", f"{path}/scale", {"spec": {"replicas": 1}}, "application/merge-patch+json")
    assert scaled.complaint == ""
    there = api_server.call("GET", path).body
    assert there["spec"]["groups"] == 1
    more = [*ports["brokers"], {"broker": "g0-0", "nodePort": 31000}]
    assert update(api_server, changed(there, "spec.external.brokers", more)).complaint == ""
    others = [*more, {"broker": "g1-1"}]
    assert "raise groups first" in update(api_server, changed(there, "spec.external.brokers", others)).complaint


@pytest.mark.parametrize(("kind", "path", "value"), ALLOWED)
def test_what_may_change_is_taken(kind: str, path: str, value: object, api_server: ApiServer, kept: Any) -> None:
    there = kept(FULL[kind])
    assert update(api_server, changed(there, path, value)).complaint == ""


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Topic", "spec.name", "Events"),
        ("ConsumerGroup", "spec.group", "Billing"),
        ("Broker", "spec.replaces", "0" * 32),
        ("BrokerCluster", "spec.etcd.tlsSecret", "etcd-tls"),
    ],
)
def test_an_optional_field_that_never_changes_is_not_added_later(
    kind: str, path: str, value: object, api_server: ApiServer, kept: Any
) -> None:
    there = kept(good(kind))
    complaint = update(api_server, changed(there, path, value)).complaint
    assert "cannot be added or removed" in complaint or "neither adding nor removing" in complaint


def test_defaults_appear_in_what_is_stored(kept: Any) -> None:
    cluster = kept(good("BrokerCluster"))["spec"]
    assert cluster["membersPerGroup"] == 2
    assert cluster["tls"] == {"enabled": True, "certificateDays": 90}
    assert cluster["changeApproval"] == "Automatic"
    assert cluster["spreadMending"] == "Manual"
    assert cluster["deletionPolicy"] == "Retain"
    assert cluster["networkPolicy"] == {"enabled": True}
    assert cluster["podTemplate"]["zoneKey"] == "topology.kubernetes.io/zone"
    topic = kept(good("Topic"))["spec"]
    assert topic == {
        "cluster": "orders",
        "partitions": 1,
        "durability": "Flushed",
        "retention": "72h",
        "retainUnread": False,
        "batchSizeBytesMax": 1 << 20,
        "messageSizeBytesMax": 1 << 20,
        "chainWidth": 5,
        "delayMax": "40d",
        "delayedPendingMax": 10_000_000,
        "exclusiveOnly": False,
        "deletionPolicy": "Retain",
    }
    group = kept(good("ConsumerGroup", mode="Shared", retry={}))["spec"]
    assert group["delivery"] == "AtLeastOnce"
    assert group["retry"] == {
        "backOff": "Exponential",
        "delays": ["1s", "5m"],
        "jitterPercent": 20,
        "whenExhausted": "Block",
        "grant": "30s",
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_what_is_stored_is_what_the_model_reads(kind: type[Resource], kept: Any) -> None:
    """Defaults are in the model and in the definition, made from it: they are the same."""
    stored = kept(FULL[kind.KIND])
    assert kind.from_manifest(stored).spec == kind.from_manifest(FULL[kind.KIND]).spec  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_conditions_are_there_from_the_first_second(kind: type[Resource], kept: Any) -> None:
    stored = kind.from_manifest(kept(good(kind.KIND)))
    status: Status = stored.status  # type: ignore[attr-defined]
    assert tuple(condition.type for condition in status.conditions) == status.CONDITIONS
    assert {(c.status, c.reason) for c in status.conditions} == {("Unknown", "NotReconciled")}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_a_status_written_by_the_model_is_taken(kind: type[Resource], api_server: ApiServer, kept: Any) -> None:
    stored = kept(good(kind.KIND))
    model = kind.from_manifest(stored)
    path = path_of(kind.KIND, model.name, "status")
    manifest = {name: stored[name] for name in ("apiVersion", "kind")} | {"metadata": {"name": model.name}}
    status = model.status.model_copy(update={"observed_generation": 1})  # type: ignore[attr-defined]
    manifest["status"] = status.to_manifest()
    answer = api_server.call(
        "PATCH", f"{path}?fieldManager=tests&fieldValidation=Strict", manifest, "application/apply-patch+yaml"
    )
    assert answer.complaint == ""
    assert answer.body["status"]["observedGeneration"] == 1


def test_a_status_sent_with_the_object_is_ignored(kept: Any) -> None:
    stored = kept(changed(good("Topic"), "status.state", "Healthy"))
    assert stored["status"]["state"] == "Unknown"


def test_scale_changes_the_groups(api_server: ApiServer, kept: Any) -> None:
    kept(good("BrokerCluster"))
    path = path_of("BrokerCluster", "orders", "scale")
    assert api_server.call("GET", path).body["spec"]["replicas"] == 2
    api_server.kubectl("scale", "scluster/orders", "--replicas=5")
    stored = BrokerCluster.from_manifest(api_server.call("GET", path_of("BrokerCluster", "orders")).body)
    assert stored.spec.groups == 5
    refused = api_server.try_kubectl("scale", "scluster/orders", "--replicas=0")
    assert "should be greater than or equal to 1" in refused.stderr


def test_scale_reports_what_the_status_says(api_server: ApiServer, kept: Any) -> None:
    kept(good("BrokerCluster"))
    status = {"status": {"groups": 2, "selector": "seriatim.dev/cluster=orders"}}
    path = path_of("BrokerCluster", "orders", "status")
    assert api_server.call("PATCH", path, status, "application/merge-patch+json").complaint == ""
    scale = api_server.call("GET", path_of("BrokerCluster", "orders", "scale")).body
    assert scale["status"] == {"replicas": 2, "selector": "seriatim.dev/cluster=orders"}


def test_columns_show_whether_and_why(api_server: ApiServer, kept: Any) -> None:
    kept(good("Topic"))
    head, row = api_server.kubectl("get", "topics.seriatim.dev", "-o", "wide").splitlines()
    assert head.split()[:5] == ["NAME", "CLUSTER", "PARTITIONS", "READY", "STATUS"]
    assert "AGE" in head
    assert "Unknown" in row
    assert "Waiting for the operator" in row


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_samples_are_taken(path: Any, api_server: ApiServer) -> None:
    api_server.try_kubectl("create", "namespace", "shop")
    out = api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert out.count("dry run") == len(list(yaml.safe_load_all(path.read_text())))


def test_there_is_a_sample_of_each_kind_that_people_write() -> None:
    found = {document["kind"] for path in SAMPLES.glob("*.yaml") for document in yaml.safe_load_all(path.read_text())}
    assert found == {kind.KIND for kind in KINDS} - {"Broker"}, "applied, a Broker would harm a cluster of that name"


def test_samples_make_no_cluster_that_the_chart_makes_on_the_pages() -> None:
    made = [document for path in SAMPLES.glob("*.yaml") for document in yaml.safe_load_all(path.read_text())]
    clusters = [document["metadata"]["name"] for document in made if document["kind"] == "BrokerCluster"]
    assert len(set(clusters)) == len(clusters)
    assert "orders" not in clusters


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_models_read_the_samples(path: Any) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["apiVersion"].startswith("seriatim.dev/"):
            assert kind_of(document["kind"]).from_manifest(document).name == document["metadata"]["name"]


def test_a_topic_is_called_as_its_spec_says() -> None:
    assert Topic.from_manifest(good("Topic")).topic_name == "events"
    assert Topic.from_manifest(FULL["Topic"]).topic_name == "Events"


@pytest.fixture
def older(api_server: ApiServer) -> Iterator[dict[str, Any]]:
    """A cluster whose name was allowed before: its status has been written once."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokerclusters.seriatim.dev"
    definition = api_server.call("GET", path).body
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = schema.pop("x-kubernetes-validations")
    made = changed(good("BrokerCluster"), "metadata.name", "orders-brokers")
    cluster = path_of("BrokerCluster", "orders-brokers")
    try:
        patch = [{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"}]
        assert api_server.call("PATCH", path, patch, "application/json-patch+json").complaint == ""
        wait_for(lambda: create(api_server, made).status in (201, 409))
        status = {"status": {"observedGeneration": 1}}
        assert api_server.call("PATCH", f"{cluster}/status", status, "application/merge-patch+json").complaint == ""
        put_back = [{**patch[0], "op": "add", "value": rules}]
        assert api_server.call("PATCH", path, put_back, "application/json-patch+json").complaint == ""
        wait_for(lambda: create(api_server, changed(made, "metadata.name", "x-external"), is_kept=False).status == 422)
        yield api_server.call("GET", cluster).body
    finally:
        api_server.kubectl("apply", "-f", str(ROOT / "crds"))
        api_server.call("DELETE", cluster)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until the API server has taken a definition into use."""
    end_s = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < end_s, "the API server does not follow the definition"


def test_a_cluster_that_has_run_keeps_a_name_that_is_refused_now(older: dict[str, Any], api_server: ApiServer) -> None:
    assert update(api_server, changed(older, "spec.groups", 3)).complaint == ""
    path = path_of("BrokerCluster", "orders-brokers", "status")
    patch = {"status": {"observedGeneration": 2}}
    assert api_server.call("PATCH", path, patch, "application/merge-patch+json").complaint == ""
