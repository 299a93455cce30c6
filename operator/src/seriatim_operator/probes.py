"""Metrics and health of the operator's process, over HTTP.

`/healthz` also fails when the process runs but its work does not continue: a pass takes more than 300 s, or the Lease
was not renewed in time. `/metrics` has the page of `metrics`, among others the time at which each pass under way began.
So an alert can distinguish one pass that is stuck from many that are quick.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from .cluster.lease import Leadership
from .metrics import OperatorMetrics
from .reconcile.cache import Cache
from .reconcile.queue import WorkQueue

PASS_S_MAX = 300.0
"""A pass that takes longer counts as stuck. A pass makes a few calls of at most 10 s each."""


class Probes:
    """The HTTP server of metrics and health.

    Args:
        listen: `host:port`; empty to start no server.
        queue: Its passes and its depth are reported.
        lease: Whether this process holds the Lease is reported.
        cache: Its objects are counted, and their conditions shown.
        snapshot_at: When the newest snapshot of the release's etcd was taken; None: none is taken.
    """

    def __init__(
        self,
        listen: str,
        queue: WorkQueue,
        lease: Leadership,
        cache: Cache,
        snapshot_at: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._listen = listen
        self._queue = queue
        self._lease = lease
        self._shown = OperatorMetrics(queue, lease, cache, snapshot_at)
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
        return web.Response(body=self._shown.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})
