"""Objects that an older definition let in: they are reported, keep what their status remembers, and are left alone."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from seriatim_operator.cluster.kinds import BROKER_CLUSTER, BROKER_GROUP, EVENT
from seriatim_operator.cluster.kube import Kube, KubeError
from seriatim_operator.cluster.pki import DEFAULT_DOMAIN
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.cluster import UNREADABLE_S, ClusterReconciler
from seriatim_operator.reconcile.known import Known
from seriatim_operator.reconcile.queue import WorkQueue
from seriatim_operator.resources.cluster_children import ClusterChildren
from seriatim_operator.status.reasons import CLUSTER, GROUP

from ..api_server import ROOT, ApiServer
from .fake_cluster import NAMESPACE, broker_cluster
from .place import Place, started

CLUSTERS = ROOT / "crds" / "seriatim.dev_brokerclusters.yaml"


async def a_pass(place: Place) -> float | None:
    reconciler, cache = place.operator()
    place.refresh(cache)
    return await reconciler.reconcile(NAMESPACE, "orders")


async def test_a_cluster_that_cannot_be_read_says_what_to_correct_and_is_left_alone() -> None:
    place = await started()
    was = place.status()
    place.edit(membersPerGroup=9, groups=3)
    assert await a_pass(place) == UNREADABLE_S
    assert place.kube.writes == ["status BrokerCluster orders"], "nothing else is done"
    (condition,) = place.status()["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "False")
    assert condition["reason"] in CLUSTER["Ready"]
    assert "spec.membersPerGroup" in condition["message"]
    assert "correct it" in condition["message"]
    kept = {name: value for name, value in place.status().items() if name != "conditions"}
    assert kept == {name: value for name, value in was.items() if name != "conditions"}
    place.status()["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    await a_pass(place)
    assert place.status()["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z", "it is said once"
    place.edit(membersPerGroup=2)
    await place.run(until=lambda: len(place.pods()) == 6)


async def test_a_group_that_cannot_be_read_is_named_on_its_cluster_too() -> None:
    place = await started()
    group = place.kube.objects["BrokerGroup", NAMESPACE, "orders-g1"]
    group["spec"]["state"] = "Asleep"
    place.edit(groups=1)
    assert await a_pass(place) == UNREADABLE_S
    assert not [what for what in place.kube.writes if not what.startswith("status")]
    (of_cluster,) = place.status()["conditions"]
    assert "BrokerGroup shop/orders-g1: spec.state" in of_cluster["message"]
    (of_group,) = place.kube.objects["BrokerGroup", NAMESPACE, "orders-g1"]["status"]["conditions"]
    assert of_group["reason"] in GROUP["Ready"]
    assert of_group["message"].startswith("spec.state")
    group = place.kube.objects["BrokerGroup", NAMESPACE, "orders-g1"]
    group["spec"]["state"] = "Active"
    await place.run(until=lambda: len(place.pods()) == 2)


async def test_a_status_that_is_refused_holds_up_no_other() -> None:
    place = Place()
    older = KubeError(500, "InternalError", "field not declared in schema")
    place.kube.refuse = lambda *call: older if call == ("apply_status", BROKER_GROUP) else None
    await a_pass(place)
    place.machines.step()
    with pytest.raises(KubeError, match="field not declared"):
        await a_pass(place)
    assert place.status()["groups"] == 2, "of this pass"
    assert all(broker["status"] for broker in place.kube.of("Broker"))


# ---- what a real API server lets be written --------------------------------------------------------------


@pytest.fixture
def let_in(api_server: ApiServer) -> Iterator[dict[str, Any]]:
    """Clusters that passed a definition without rules; today's took its place since."""
    definition = yaml.safe_load(CLUSTERS.read_text())
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    lax = copy.deepcopy(definition)
    lax["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = anything
    _define(api_server, lax)
    manifests = {}
    for name, spec in (("crowded", {"membersPerGroup": 9}), ("worded", {"membersPerGroup": "two"})):
        manifest = broker_cluster(**spec)
        manifest["metadata"] = {"name": name, "namespace": "default"}
        manifests[name] = manifest
        api_server.kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest))
    _define(api_server, definition)
    yield manifests
    api_server.kubectl("delete", "brokerclusters", *manifests)


def _define(api_server: ApiServer, definition: dict[str, Any]) -> None:
    """Have a definition be in force: the API server learns of it a moment after it was written."""
    api_server.kubectl("apply", "-f", "-", text=yaml.safe_dump(definition))
    refused = broker_cluster(membersPerGroup=9)
    refused["metadata"] = {"name": "probe", "namespace": "default"}
    is_lax = "properties" not in definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    deadline = time.monotonic() + 30
    while True:
        done = api_server.try_kubectl("create", "--dry-run=server", "-f", "-", text=yaml.safe_dump(refused))
        if (done.returncode == 0) == is_lax:
            return
        assert time.monotonic() < deadline, done.stderr


def _reconciler(kube: Kube, cache: Cache) -> ClusterReconciler:
    make = lambda cluster: ClusterChildren(cluster, "seriatim.dev/broker:dev", "seriatim-system")  # noqa: E731
    return ClusterReconciler(kube, cache, Known(lambda _key, _after_s: None), make, lambda: 1, DEFAULT_DOMAIN)


@pytest.mark.usefixtures("let_in")
async def test_the_api_takes_the_status_of_a_cluster_whose_values_it_would_not_take_now(kube: Kube) -> None:
    cache = Cache()
    for manifest in await kube.list(BROKER_CLUSTER, "default"):
        cache.put("BrokerCluster", manifest)
    assert await _reconciler(kube, cache).reconcile("default", "crowded") == UNREADABLE_S
    found = await kube.get(BROKER_CLUSTER, "default", "crowded")
    assert found is not None
    ready = next(c for c in found["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "spec.membersPerGroup" in ready["message"]


@pytest.mark.usefixtures("let_in")
async def test_where_the_api_takes_no_status_an_event_says_it_and_the_queue_goes_on(kube: Kube) -> None:
    cache = Cache()
    for manifest in await kube.list(BROKER_CLUSTER, "default"):
        cache.put("BrokerCluster", manifest)
    reconciler, worked = _reconciler(kube, cache), asyncio.Event()

    async def work(key: object) -> float | None:
        if key == "another":
            worked.set()
            return None
        return await reconciler.reconcile("default", str(key))

    queue = WorkQueue(work)
    queue.add("worded")
    running = asyncio.create_task(queue.run())
    try:
        async with asyncio.timeout(30):
            while not (told := await _events_on(kube, "worded")):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.05)
            queue.add("another")
            await worked.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert {event["reason"] for event in told} == {"InvalidSpec"}
    assert "spec.membersPerGroup" in told[0]["message"]


async def _events_on(kube: Kube, name: str) -> list[dict[str, Any]]:
    """What was reported of an object; an API server reports its own too."""
    return [event for event in await kube.list(EVENT, "default") if event["involvedObject"]["name"] == name]
