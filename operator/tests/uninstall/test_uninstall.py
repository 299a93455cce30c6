"""Taking the operator away, against a real API server: refused while clusters exist, and no finalizer is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from seriatim_operator.cluster.kube import Kube, KubeError
from seriatim_operator.reconcile.uninstall import (
    Standing,
    Survey,
    refusal,
    survey,
    take_finalizers_off,
    working_revision,
)

from ..api_server import ApiServer
from ..memory_kube import MemoryKube
from ..spec.objects import good

# The test's API server has a certificate of its own making.
pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")

NAMESPACE = "uninstalling"

CLUSTER = good("BrokerCluster", namespace=NAMESPACE)


def topic(name: str, *finalizers: str) -> dict[str, Any]:
    """A Topic of the cluster."""
    made = good("Topic", name, namespace=NAMESPACE, deletionPolicy="Delete")
    made["metadata"]["finalizers"] = list(finalizers)
    return made


def said(found: Survey, *, takes_etcd: bool) -> str:
    """What an administrator reads."""
    return refusal(found, takes_etcd=takes_etcd, release="seriatim", revision="3", namespace="apart")


@pytest.fixture
def api(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    """The operator's client, on an empty namespace."""
    # The client's library reads the environment once, when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(api_server.kubeconfig))
    api_server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    kube = Kube()
    yield kube
    kube.close()
    base = f"/apis/seriatim.dev/v1alpha1/namespaces/{NAMESPACE}"
    for plural in ("topics", "brokerclusters"):
        assert api_server.call("DELETE", f"{base}/{plural}").status == 200


async def test_a_cluster_that_stands_is_named_with_what_hangs_on_it(api: Kube) -> None:
    await api.create(CLUSTER)
    await api.create(topic("payments"))
    found = await survey(api, [NAMESPACE])
    text = said(found, takes_etcd=True)
    assert "the operator and the etcd of" in text
    assert f"{NAMESPACE}/orders: 1 topic with a Topic object, and those that programs" in text
    assert "its volumes stay when it is deleted" in text
    assert f"kubectl -n {NAMESPACE} delete scluster orders" in text
    assert "helm -n apart rollback seriatim 3" in text
    assert "etcd" not in said(found, takes_etcd=False)


@pytest.mark.parametrize(
    ("objects", "topics", "told"),
    [
        (2, 12, "12 topics, 10 of them without a Topic object"),
        (0, 1, "1 topic, 1 of them without a Topic object"),
        (3, 3, "3 topics; "),
        (3, 2, "3 topics; "),
        (0, 0, "0 topics; "),
    ],
)
def test_topics_are_counted_with_and_without_objects(objects: int, topics: int, told: str) -> None:
    assert told in str(Standing("shop", "orders", objects, topics, "Retain", is_being_deleted=False))


async def test_without_clusters_nothing_is_in_the_way(api: Kube) -> None:
    assert said(await survey(api, [NAMESPACE]), takes_etcd=True) == ""


async def test_our_finalizers_are_taken_off_and_others_stay(api: Kube, api_server: ApiServer) -> None:
    await api.create(topic("payments", "seriatim.dev/topic", "example.com/audit"))
    await api.create(topic("invoices", "seriatim.dev/topic"))
    await api.create(topic("free", "example.com/audit"))
    path = f"/apis/seriatim.dev/v1alpha1/namespaces/{NAMESPACE}/topics"
    api_server.call("DELETE", f"{path}/invoices")
    try:
        assert await take_finalizers_off(api, await survey(api, [NAMESPACE])) == 2
        left = {
            item["metadata"]["name"]: item["metadata"]["finalizers"]
            for item in api_server.call("GET", path).body["items"]
        }
        assert left == {"payments": ["example.com/audit"], "free": ["example.com/audit"]}
    finally:
        for name in ("payments", "free"):
            patch = {"metadata": {"finalizers": None}}
            api_server.call("PATCH", f"{path}/{name}", patch, "application/merge-patch+json")


def refusing(status: int) -> MemoryKube:
    """An API without our kinds (404), or one that refuses to be asked."""
    return MemoryKube(refuse=lambda _call, kind: KubeError(status, "", f"no {kind.plural}"))


async def test_a_kind_that_is_not_there_has_no_objects() -> None:
    found = await survey(refusing(404), [NAMESPACE])
    assert not found.clusters
    assert not found.held


async def test_who_may_not_look_does_not_take_it_for_empty() -> None:
    with pytest.raises(KubeError):
        await survey(refusing(403), [NAMESPACE])


def records(**versions: str) -> MemoryKube:
    """An API with Helm's record of each revision."""
    kube = MemoryKube(NAMESPACE)
    for revision, status in versions.items():
        version = revision.removeprefix("v")
        labels = {"owner": "helm", "name": "seriatim", "status": status, "version": version}
        name = f"sh.helm.release.v1.seriatim.v{version}"
        kube.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}})
    return kube


@pytest.mark.parametrize(
    ("versions", "works"),
    [
        ({"v1": "superseded", "v2": "uninstalling"}, "2"),
        ({"v9": "superseded", "v10": "deployed", "v11": "failed", "v12": "uninstalling"}, "10"),
        ({"v1": "uninstalling"}, "1"),
        ({}, ""),
    ],
)
async def test_the_advice_goes_back_to_the_revision_that_works(versions: dict[str, str], works: str) -> None:
    assert await working_revision(records(**versions), NAMESPACE, "seriatim") == works


async def test_without_a_look_at_the_records_there_is_no_revision() -> None:
    assert await working_revision(refusing(403), NAMESPACE, "seriatim") == ""
