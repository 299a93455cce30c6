"""Two thousand Topics on a real API server: every status is written once, and none by an operator that starts over."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from seriatim_operator.cluster.connection import connect
from seriatim_operator.cluster.kinds import BROKER_CLUSTER, TOPIC
from seriatim_operator.cluster.kube import Kube
from seriatim_operator.plan.topics import Surroundings
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.dispatch import ClusterKey, TopicsKey
from seriatim_operator.reconcile.known import Known
from seriatim_operator.reconcile.queue import WorkQueue
from seriatim_operator.reconcile.topics import TopicsReconciler
from seriatim_operator.spec import Topic

from ..api_server import ApiServer
from ..spec.objects import good
from .doubles import MemoryBrokers
from .world import ALL_LIVE

_log = logging.getLogger(__name__)

COUNT = 2000
NAMESPACE = "many"
COLD_START_CPU_S = 4.0
"""Of this process, so that a busy machine proves nothing; an idle one takes about as long by the clock."""


class CountingKube(Kube):
    """Counts what it writes."""

    def __init__(self, api_server: ApiServer) -> None:
        super().__init__(configuration=connect(str(api_server.kubeconfig), None).configuration)
        self.status_writes = 0

    async def apply_status(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.status_writes += 1
        return await super().apply_status(manifest)


@asynccontextmanager
async def operator(
    api_server: ApiServer, brokers: MemoryBrokers
) -> AsyncIterator[tuple[CountingKube, Cache, TopicsReconciler]]:
    """The topic side over a fresh listing, with its queue."""
    kube, cache = CountingKube(api_server), Cache()
    for kind in (BROKER_CLUSTER, TOPIC):
        for manifest in await kube.list(kind, NAMESPACE):
            cache.put(kind.kind, manifest)
    queue = WorkQueue(lambda key: reconciler.reconcile(key))  # type: ignore[arg-type]
    known = Known(lambda key, after_s: None if isinstance(key, ClusterKey) else queue.add(key, after_s))
    known.note_live(NAMESPACE, "orders", ALL_LIVE)
    reconciler = TopicsReconciler(kube, cache, lambda _n, _c: brokers, queue.add, known, "operators")
    queue.add(TopicsKey(NAMESPACE, "orders"))
    running = asyncio.create_task(queue.run())
    try:
        yield kube, cache, reconciler
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reconciler.close()
        kube.close()


@pytest.fixture
def many_topics(api_server: ApiServer) -> ApiServer:
    """A cluster and its Topics, applied."""
    api_server.kubectl("create", "namespace", NAMESPACE)
    root = f"/apis/seriatim.dev/v1alpha1/namespaces/{NAMESPACE}"
    assert api_server.call("POST", f"{root}/brokerclusters", good("BrokerCluster")).complaint == ""

    def create(number: int) -> str:
        return api_server.call("POST", f"{root}/topics", good("Topic", f"events-{number:04}")).complaint

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(create, range(COUNT))) == {""}
    return api_server  # which goes with all that is in it


async def until(is_so: Any, deadline_s: float) -> float:
    """Wait for a state; how long it took."""
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < deadline_s
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_topics_are_made_with_one_write_each_and_a_cold_start_writes_nothing(
    many_topics: ApiServer,
) -> None:
    brokers = MemoryBrokers()
    async with operator(many_topics, brokers) as (kube, cache, _):
        made_s = await until(lambda: all(map(is_ready, cache.of(TOPIC.kind))), 300)
        assert kube.status_writes == COUNT
    assert len(brokers.topics) == COUNT

    gc.collect()
    gc.freeze()  # the collector does not go over what other tests of this process left
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    async with operator(many_topics, brokers) as (kube, _, reconciler):
        listed_s = time.monotonic() - began_s
        await until(lambda: is_at_rest(reconciler), 60)
        cold_s, cold_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        assert len(brokers.calls) == COUNT, "nothing was asked of the brokers but the creations before"
        assert kube.status_writes == 0
        behind = next(iter(brokers.topics))
        brokers.topics[behind].topic.settings.retention_ms = 1
        brokers.tell(behind)
        await until(lambda: brokers.calls[-1] == f"update {behind} 0 retention_ms", 60)
    gc.unfreeze()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _log.info("made in %.1f s, %.0f MB", made_s, memory_mb)
    _log.info("cold start %.1f s (listing %.1f s), %.2f s of processor", cold_s, listed_s, cold_cpu_s)
    assert cold_cpu_s < COLD_START_CPU_S


def is_at_rest(reconciler: TopicsReconciler) -> bool:
    """Whether all objects were looked at with brokers that have reported everything."""
    cluster = reconciler._clusters.get((NAMESPACE, "orders"))
    if cluster is None or cluster.part(TopicsKey(NAMESPACE, "orders"))._before != (Surroundings.HERE, False):
        return False
    return len(cluster._topics) == COUNT and cluster._topics._claims.next_s() is None


def is_ready(manifest: dict[str, Any]) -> bool:
    return Topic.from_manifest(manifest).status.is_true("Ready") if "status" in manifest else False
