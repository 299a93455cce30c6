"""Two thousand Topics on a real API server: every status is written once, and none by an operator that starts anew."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from seriatim_operator.cluster.connection import connect
from seriatim_operator.cluster.kinds import BROKER_CLUSTER, TOPIC
from seriatim_operator.cluster.kube import Kube
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.dispatch import TopicsKey
from seriatim_operator.reconcile.queue import WorkQueue
from seriatim_operator.reconcile.topics import TopicsReconciler
from seriatim_operator.spec import Topic

from ..api_server import ApiServer
from ..spec.objects import good
from .doubles import MemoryBrokers

_log = logging.getLogger(__name__)

COUNT = 2000
NAMESPACE = "many"
COLD_START_S = 5.0
"""What the issue asks for; half of it is listing."""


class CountingKube(Kube):
    """Counts what it writes."""

    def __init__(self, api_server: ApiServer) -> None:
        super().__init__(configuration=connect(str(api_server.kubeconfig), None).configuration)
        self.status_writes = 0

    async def apply_status(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.status_writes += 1
        return await super().apply_status(manifest)


@asynccontextmanager
async def operator(api_server: ApiServer, brokers: MemoryBrokers) -> AsyncIterator[tuple[CountingKube, Cache]]:
    """The topic side over a fresh listing, with its queue."""
    kube, cache = CountingKube(api_server), Cache()
    for kind in (BROKER_CLUSTER, TOPIC):
        for manifest in await kube.list(kind, NAMESPACE):
            cache.put(kind.kind, manifest)
    queue = WorkQueue(lambda key: reconciler.reconcile(key.namespace, key.name))  # type: ignore[attr-defined]
    reconciler = TopicsReconciler(kube, cache, lambda _n, _c: brokers, queue.add)
    queue.add(TopicsKey(NAMESPACE, "orders"))
    running = asyncio.create_task(queue.run())
    try:
        yield kube, cache
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reconciler.close()
        kube.close()


@pytest.fixture
def many_topics(api_server: ApiServer) -> Iterator[ApiServer]:
    """A cluster and its Topics, applied."""
    api_server.kubectl("create", "namespace", NAMESPACE)
    root = f"/apis/seriatim.dev/v1alpha1/namespaces/{NAMESPACE}"
    assert api_server.call("POST", f"{root}/brokerclusters", good("BrokerCluster")).complaint == ""

    def create(number: int) -> str:
        return api_server.call("POST", f"{root}/topics", good("Topic", f"events-{number:04}")).complaint

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(create, range(COUNT))) == {""}
    yield api_server
    assert api_server.call("DELETE", f"{root}/topics").complaint == ""
    assert api_server.call("DELETE", f"{root}/brokerclusters/orders").complaint == ""


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
    async with operator(many_topics, brokers) as (kube, cache):
        made_s = await until(lambda: all(map(is_ready, cache.of(TOPIC.kind))), 300)
        assert kube.status_writes == COUNT
    assert len(brokers.topics) == COUNT

    began_s = time.monotonic()
    async with operator(many_topics, brokers) as (kube, cache):
        listed_s = time.monotonic() - began_s
        behind = next(iter(brokers.topics))
        # It is at rest when it acts on news: what comes after everything else has been looked at.
        brokers.topics[behind].topic.settings.retention_ms = 1
        brokers.tell(behind)
        await until(lambda: f"update {behind} 0 retention_ms" in brokers.calls, 60)
        cold_s = time.monotonic() - began_s
        assert len([call for call in brokers.calls if call.startswith("create")]) == COUNT
        assert kube.status_writes <= 1
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _log.info("made %.1f s, cold start %.1f s (listing %.1f s), %.0f MB", made_s, cold_s, listed_s, memory_mb)
    assert cold_s < COLD_START_S


def is_ready(manifest: dict[str, Any]) -> bool:
    return Topic.from_manifest(manifest).status.is_true("Ready") if "status" in manifest else False
