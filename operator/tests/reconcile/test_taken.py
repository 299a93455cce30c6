"""Objects of others that have the names of children: they are reported, and neither written nor deleted."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_operator.cluster.kinds import SERVICE
from seriatim_operator.cluster.kube import ConflictError, Kube, KubeError
from seriatim_operator.resources.ownership import belongs_to, tell_owner
from seriatim_operator.spec.cluster import BrokerCluster

from ..memory_kube import Manifest
from ..spec.objects import good
from .fake_cluster import NAMESPACE
from .place import Place, started


def foreign(kind: str, name: str, /, api_version: str = "v1", **fields: Any) -> Manifest:
    """An object that a team made for itself."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": "web"}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


NAMES = {
    "a Service": foreign("Service", "orders", spec={"selector": {"app": "web"}, "ports": [{"port": 80}]}),
    "a ConfigMap": foreign("ConfigMap", "orders-config", data={"page": "hello"}),
    "a policy": foreign("NetworkPolicy", "orders-brokers", "networking.k8s.io/v1", spec={"podSelector": {}}),
    "a budget": foreign("PodDisruptionBudget", "orders-g0", "policy/v1", spec={"maxUnavailable": 1}),
    "an account": foreign("ServiceAccount", "orders-broker"),
}


async def passes(place: Place, count: int = 8) -> None:
    """Passes of one operator, with what happens between them."""
    reconciler, cache = place.operator()
    for _ in range(count):
        await place.a_pass(reconciler, cache)
        place.machines.step()


def degraded(place: Place) -> Manifest:
    return next(dict(c) for c in place.status()["conditions"] if c["type"] == "Degraded")


@pytest.mark.parametrize("what", NAMES)
async def test_an_object_of_others_is_told_and_stays_as_it_was(what: str) -> None:
    place, theirs = Place(), NAMES[what]
    before = place.kube.put(theirs)
    await passes(place)
    key = (theirs["kind"], NAMESPACE, theirs["metadata"]["name"])
    assert place.kube.objects[key] == before
    found = degraded(place)
    assert (found["status"], found["reason"]) == ("True", "NameTaken")
    assert f"{key[0]} {key[2]} was not made by the operator" in found["message"]
    assert [e for e in place.kube.events if e[2] == "NameTaken"] == [
        ("orders", "Warning", "NameTaken", found["message"])
    ]
    is_used_by_pods = what in ("a ConfigMap", "an account")
    assert len(place.pods()) == (0 if is_used_by_pods else 4)
    assert ("orders-g0-0" in place.status().get("blockedBy", "")) == is_used_by_pods
    assert place.status().get("bootstrap", "") == ("" if what == "a Service" else "orders.shop.svc:7100")
    place.kube.remove(*key[::2])
    await place.run(until=lambda: len(place.pods()) == 4)
    assert belongs_to(place.kube.objects[key], BrokerCluster.from_manifest(place.kube.of("BrokerCluster")[0]))


async def test_a_name_that_is_not_needed_any_more_is_not_told() -> None:
    place = Place()
    place.kube.put(NAMES["a policy"])
    reconciler, cache = place.operator()
    for _ in range(2):
        await place.a_pass(reconciler, cache)
    assert degraded(place)["reason"] == "NameTaken"
    place.edit(networkPolicy={"enabled": False})
    for _ in range(2):
        await place.a_pass(reconciler, cache)
    assert degraded(place)["reason"] != "NameTaken"


async def test_a_service_of_others_with_our_labels_is_not_deleted() -> None:
    place = await started()
    theirs = foreign("Service", "orders-external", spec={"selector": {"app": "web"}})
    theirs["metadata"]["labels"] |= {"seriatim.dev/cluster": "orders", "seriatim.dev/external": "bootstrap"}
    before = place.kube.put(theirs)
    await passes(place)
    assert place.kube.objects["Service", NAMESPACE, "orders-external"] == before


@pytest.mark.parametrize("name", ["orders-ca", "orders-broker-tls"])
async def test_a_secret_of_others_is_neither_used_nor_written(name: str) -> None:
    place = Place(tls={"enabled": True})
    before = place.kube.put(foreign("Secret", name, data={"password": "aGVsbG8="}))
    await passes(place)
    assert place.kube.objects["Secret", NAMESPACE, name] == before
    assert degraded(place)["reason"] == "NameTaken"
    assert name in degraded(place)["message"]
    assert not place.pods()
    place.kube.remove("Secret", name)
    await place.run(until=lambda: len(place.pods()) == 4)


async def test_a_child_whose_labels_were_changed_is_mended() -> None:
    place = await started()
    service = place.kube.objects["Service", NAMESPACE, "orders"]
    service["metadata"]["labels"] = {}
    place.kube.put(service)
    await passes(place, 2)
    assert place.kube.objects["Service", NAMESPACE, "orders"]["metadata"]["labels"]["seriatim.dev/cluster"] == "orders"
    assert place.is_stable()


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
async def test_an_object_that_took_a_name_between_the_look_and_the_write_stays(kube: Kube) -> None:
    theirs = foreign("Service", "orders", spec={"selector": {"app": "web"}, "ports": [{"name": "a", "port": 80}]})
    theirs["metadata"]["namespace"] = "default"
    before = await kube.create(theirs)
    ours = {**theirs, "spec": {"selector": {"app": "seriatim"}, "ports": [{"name": "b", "port": 7100}]}}
    with pytest.raises(ConflictError):
        await kube.apply(ours, force=False)
    with pytest.raises(KubeError):
        await kube.apply({**ours, "metadata": {**ours["metadata"], "uid": "of-an-earlier-object"}})
    assert (await kube.get(SERVICE, "default", "orders") or {})["spec"] == before["spec"]
    assert await kube.delete(SERVICE, "default", "orders", uid=before["metadata"]["uid"])


def test_objects_say_to_whom_they_belong() -> None:
    cluster = BrokerCluster.from_manifest({**good("BrokerCluster"), "metadata": {"name": "orders", "uid": "u"}})
    labels = {"app.kubernetes.io/managed-by": "seriatim-operator", "seriatim.dev/cluster": "orders-brokers"}
    told = {
        "was not made by the operator": {},
        "belongs to the cluster orders-brokers": {"labels": labels},
        "is managed by Helm": {"labels": {"app.kubernetes.io/managed-by": "Helm"}},
        "belongs to StatefulSet web": {"ownerReferences": [{"kind": "StatefulSet", "name": "web", "uid": "w"}]},
    }
    for text, metadata in told.items():
        manifest = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
        assert not belongs_to(manifest, cluster)
        assert tell_owner(manifest) == text
    group = {"apiVersion": "seriatim.dev/v1alpha1", "metadata": {}, "spec": {"cluster": "orders"}}
    assert belongs_to(group, cluster), "administrators may make it without labels"
