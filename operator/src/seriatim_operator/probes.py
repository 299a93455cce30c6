"""Metrics and health of the operator's process, over HTTP.

`/healthz` also fails when the process runs but its work does not go on: a pass takes more than 300 s, or the Lease was
not renewed in time. `/metrics` has counts, and the time at which each pass under way began. So an alert can distinguish
one pass that is stuck from many that are quick.
"""

from __future__ import annotations

import time

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .cluster.kinds import OWN
from .cluster.lease import Leadership
from .reconcile.cache import Cache
from .reconcile.queue import WorkQueue

PASS_S_MAX = 300.0
"""A pass that takes longer counts as stuck. A pass makes a few calls of at most 10 s each."""


class _Families(Collector):
    def __init__(self, queue: WorkQueue, lease: Leadership, cache: Cache) -> None:
        self._queue = queue
        self._lease = lease
        self._cache = cache

    def collect(self) -> list[GaugeMetricFamily]:
        """Read all gauges now."""
        holds_lease = GaugeMetricFamily("seriatim_operator_leader", "Whether this process holds the Lease")
        holds_lease.add_metric([], float(self._lease.is_held))
        epoch = GaugeMetricFamily("seriatim_operator_lease_epoch", "Epoch of the Lease when it was last acquired")
        epoch.add_metric([], float(self._lease.epoch))
        depth = GaugeMetricFamily("seriatim_operator_queue_depth", "Objects that wait for a pass, due or not")
        depth.add_metric([], float(self._queue.depth))
        objects = GaugeMetricFamily("seriatim_operator_objects", "Objects that are watched, by kind", labels=["kind"])
        for kind in OWN:
            objects.add_metric([kind.kind], float(self._cache.count(kind.kind)))
        began = GaugeMetricFamily(
            "seriatim_operator_reconcile_in_progress_start_time_seconds",
            "When each pass that is under way began (Unix time); absent while no pass runs",
            labels=["part", "namespace", "name"],
        )
        offset_s = time.time() - time.monotonic()
        for key, began_s in self._queue.running().items():
            part, namespace, name = (getattr(key, field, "") for field in ("part", "namespace", "name"))
            began.add_metric([part, namespace, name], began_s + offset_s)
        return [holds_lease, epoch, depth, objects, began]


class Probes:
    """The HTTP server of metrics and health.

    Args:
        listen: `host:port`; empty to start no server.
        queue: Its passes and its depth are reported.
        lease: Whether this process holds the Lease is reported.
        cache: Its objects are counted.
    """

    def __init__(self, listen: str, queue: WorkQueue, lease: Leadership, cache: Cache) -> None:
        self._listen = listen
        self._queue = queue
        self._lease = lease
        self._registry = CollectorRegistry()
        self._registry.register(_Families(queue, lease, cache))
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Begin to listen; do nothing if `listen` is empty."""
        if not self._listen:
            return
        app = web.Application()
        app.add_routes([web.get("/healthz", self._health), web.get("/readyz", self._health)])
        app.add_routes([web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        host, _, port = self._listen.rpartition(":")
        await web.TCPSite(self._runner, host, int(port)).start()

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        stands_s = self._queue.oldest_s()
        if stands_s > PASS_S_MAX:
            return web.Response(status=503, text=f"a pass has run for {stands_s:.0f} s\n")
        if self._lease.epoch and not self._lease.is_held:
            return web.Response(status=503, text="the Lease was not renewed in time\n")
        return web.Response(text="leading\n" if self._lease.is_held else "standing by\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
