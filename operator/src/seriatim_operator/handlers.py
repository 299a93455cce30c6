"""The operator's process: watches, the cache, the work queue and the Lease.

The handlers get events, put the objects into the cache, and add keys to the work queue. This module decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Hashable
from datetime import timedelta
from typing import Any

import structlog
from seriatim_api.errors import StaleOperatorError

from .cluster.kinds import API_VERSION, BROKER_CLUSTER, CLAIM, NODE, OWN, POD, Kind
from .cluster.kube import Kube, KubeError
from .cluster.lease import Leadership, LeaseLostError
from .etcd.watched import WatchedEtcd
from .probes import Probes
from .reconcile.cache import Cache
from .reconcile.cluster import ClusterReconciler
from .reconcile.dispatch import ClusterKey, ConsumerGroupsKey, TopicsKey, keys_of
from .reconcile.known import Known
from .reconcile.queue import WorkQueue
from .reconcile.rivals import LOOK_S as RIVAL_LOOK_S
from .reconcile.rivals import Rivals
from .reconcile.topics import TopicsReconciler
from .resources.cluster_children import ClusterChildren
from .resources.names import LABEL_CLUSTER
from .settings import OperatorSettings
from .spec.cluster import BrokerCluster
from .watching import watch

WATCHED: tuple[Kind, ...] = (*OWN, POD, CLAIM, NODE)

RELIST_S = 600.0
"""Seconds between two listings of all objects, in case a watch missed the deletion of one."""

LIST_AGAIN_S = 2.0

KINDS_S = 3.0
"""Seconds between two looks at which of our kinds the API server serves."""

WATCH_FAILURES_MAX = 5
WATCH_FAILURES_S = 60.0
"""If watches fail more often than that in this time, the process ends and starts again."""

FIRST_RELIST_S = 10.0
"""Seconds from the start to the second listing, because an object may be deleted between the first one and the watches.
"""

_log = structlog.get_logger(__name__)


class EndedByItselfError(Exception):
    """A part of the process that runs until the stop has ended before it. The process must end and start again."""


class Operator:
    """The process: it acquires the Lease, then runs watches and the work queue until the stop or the loss of the Lease.

    Args:
        settings: The settings, which are valid.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._kinds = WATCHED  # those that are served
        lease_api = Kube()
        identity = settings.identity or f"{os.environ.get('HOSTNAME', 'operator')}-{uuid.uuid4().hex[:8]}"
        self._lease = Leadership(lease_api, settings.namespace, settings.lease_name, identity)
        self._kube = Kube(before_write=self._lease.check)
        self.cache = Cache()
        self.queue = WorkQueue(self._work)
        known = Known(self.queue.add)
        self._etcd = WatchedEtcd(
            self._kube, settings.namespace, settings.etcd_name, settings.etcd_members, settings.etcd_snapshots,
            self._etcd_changed,
        )  # fmt: skip
        self._clusters = ClusterReconciler(
            self._kube, self.cache, known, self._children, lambda: self._lease.epoch, settings.cluster_domain,
            settle=timedelta(seconds=settings.certificate_settle_s), spread_quiet_s=settings.spread_quiet_s,
            etcd=self._etcd.view_for,
        )  # fmt: skip
        self._topics = TopicsReconciler(
            self._kube, self.cache, self._clusters.brokers_of, self.queue.add, known, settings.namespace
        )
        self._rivals = Rivals(self._kube, self.cache, f"{settings.namespace}/{settings.lease_name}")
        self._probes = Probes(
            settings.metrics_listen, self.queue, self._lease, self.cache, lambda: self._etcd.snapshot_at
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. If the call is cancelled, it releases the Lease like at a stop.

        Raises:
            LeaseLostError: Another operator may act: the process must end.
            EndedByItselfError: A part of the process ended before the stop.
        """
        await self._probes.start()
        stopped = asyncio.create_task(stop.wait(), name="stop")
        acquire = asyncio.create_task(self._lease.acquire(), name="acquire the Lease")
        try:
            await asyncio.wait([stopped, acquire], return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return
            acquire.result()
            await self._lead(stopped)
        finally:
            for task in (stopped, acquire):
                task.cancel()
            await asyncio.gather(stopped, acquire, return_exceptions=True)
            await self._probes.close()

    async def _lead(self, stopped: asyncio.Task[Any]) -> None:
        tasks = [asyncio.create_task(self._lease.hold(), name="hold the Lease")]
        listing = asyncio.create_task(self._insist_on_listing(), name="first listing")
        try:
            await self._until_one_ends(stopped, [*tasks, listing], expected=listing)
            if stopped.done():
                return
            tasks.append(asyncio.create_task(self._keep_watching(), name="watches"))
            tasks.append(asyncio.create_task(self.queue.run(), name="work queue"))
            if self._settings.etcd_name:
                tasks.append(asyncio.create_task(self._etcd.run(), name="etcd"))
            await self._until_one_ends(stopped, tasks)
        finally:
            for task in (listing, *tasks):
                task.cancel()
            await asyncio.gather(listing, *tasks, return_exceptions=True)
            await self._topics.close()
            await self._clusters.close()
            with contextlib.suppress(KubeError):
                await self._lease.release()
            self._kube.close()

    async def _until_one_ends(
        self, stopped: asyncio.Task[Any], tasks: list[asyncio.Task[None]], expected: asyncio.Task[None] | None = None
    ) -> None:
        """Wait until the stop or until the expected task is done.

        Raises:
            EndedByItselfError: Another task ended without an error.
            Exception: The error of a task that failed.
        """
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()
            if task is not expected and not stopped.done():
                raise EndedByItselfError(f"{task.get_name()} ended by itself")

    # ---- watching ----

    async def _keep_watching(self) -> None:
        """Watch all kinds that are served, and begin again when a kind was deleted or is put back, or a watch failed.

        Raises:
            LeaseLostError: Another operator may act.
            Exception: Watches fail again and again.
        """
        failed: deque[float] = deque(maxlen=WATCH_FAILURES_MAX)
        while True:
            self._kinds = await self._served()
            watching = asyncio.create_task(
                watch(self._kinds, self._settings.watch_namespaces, self._take_event), name="kopf"
            )
            tasks = {
                watching,
                asyncio.create_task(self._relist(), name="relist"),
                asyncio.create_task(self._until_kinds_change(), name="kinds"),
            }
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {watching}:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if watching in done:
                error, now_s = watching.exception(), time.monotonic()
                if len(failed) == WATCH_FAILURES_MAX and now_s - failed[0] < WATCH_FAILURES_S and error is not None:
                    raise error
                failed.append(now_s)
                _log.warning("watch_failed", error=str(error))
                await asyncio.sleep(LIST_AGAIN_S)

    async def _served(self) -> tuple[Kind, ...]:
        """The kinds that the API server serves now. If it does not report, they are those that it served before."""
        try:
            served = await self._kube.served(API_VERSION)
        except KubeError as exc:
            _log.info("kinds_not_told", error=str(exc))
            return self._kinds
        return tuple(kind for kind in WATCHED if kind not in OWN or kind.plural in served)

    async def _until_kinds_change(self) -> None:
        while True:
            await asyncio.sleep(KINDS_S)
            served = await self._served()
            if served != self._kinds:
                _log.warning("kinds_changed", served=[kind.kind for kind in served if kind in OWN])
                return

    def _take_event(self, kind: Kind, event_type: str | None, manifest: dict[str, Any]) -> None:
        """Take an event of a watch. Only here a deletion is proved: a listing shows only that an object is missing."""
        is_deleted = event_type == "DELETED"
        if is_deleted:
            self._topics.see_deleted(kind, _named(kind, manifest))
        self._see(kind, manifest, is_gone=is_deleted)

    def _see(self, kind: Kind, manifest: dict[str, Any], *, is_gone: bool) -> None:
        metadata = _named(kind, manifest)["metadata"]
        before = self.cache.get(kind.kind, str(metadata.get("namespace") or ""), metadata["name"])
        if is_gone:
            self.cache.drop(kind.kind, manifest)
            before = None
        else:
            self.cache.put(kind.kind, manifest)
        for key in keys_of(kind.kind, manifest, before, self.cache):
            self.queue.add(key)

    async def _relist(self) -> None:
        await asyncio.sleep(FIRST_RELIST_S)
        while True:
            await self._insist_on_listing()
            await asyncio.sleep(RELIST_S)

    async def _insist_on_listing(self) -> None:
        """List everything. If the API does not answer, try again every 2 s, until the Lease is lost."""
        while True:
            try:
                await self._list_all()
                return
            except KubeError as exc:
                _log.warning("not_listed", error=str(exc))
            await asyncio.sleep(LIST_AGAIN_S)
            self._lease.check()

    async def _list_all(self) -> None:
        """Read all watched objects from the API. This is done before the first plan, so that no plan lacks objects."""
        for kind in self._kinds:
            seen: set[tuple[str, str]] = set()
            async for manifest in self._listed(kind):
                metadata = manifest["metadata"]
                seen.add((str(metadata.get("namespace") or ""), metadata["name"]))
                self._see(kind, manifest, is_gone=False)
            for manifest in list(self.cache.of(kind.kind)):
                metadata = manifest["metadata"]
                if (str(metadata.get("namespace") or ""), metadata["name"]) not in seen:
                    await self._confirm_gone(kind, manifest)

    async def _listed(self, kind: Kind) -> AsyncIterator[dict[str, Any]]:
        namespaces = self._settings.watch_namespaces if kind.namespaced else ()
        selector = LABEL_CLUSTER if kind in (POD, CLAIM) else ""
        try:
            for namespace in namespaces or (None,):
                for manifest in await self._kube.list(kind, namespace, selector):
                    yield manifest
        except KubeError as exc:
            if exc.status != 403 or kind.namespaced:
                raise
            _log.warning("kind_not_readable", kind=kind.kind, error=str(exc))

    async def _confirm_gone(self, kind: Kind, manifest: dict[str, Any]) -> None:
        """Ask the API about an object that a listing did not have, because it may have been made after the listing."""
        metadata = manifest["metadata"]
        found = await self._kube.get(kind, metadata.get("namespace"), metadata["name"])
        self._see(kind, found or manifest, is_gone=found is None)

    # ---- working ----

    def _etcd_changed(self) -> None:
        """A member of the release's etcd came or went: look at all clusters, whose statuses report it."""
        for manifest in self.cache.of(BROKER_CLUSTER.kind):
            metadata = manifest["metadata"]
            self.queue.add(ClusterKey(str(metadata["namespace"]), metadata["name"]))

    def _children(self, cluster: BrokerCluster) -> ClusterChildren:
        return ClusterChildren(cluster, self._settings.broker_image, self._settings.namespace)

    async def _work(self, key: Hashable) -> float | None:
        self._lease.check()
        assert isinstance(key, ClusterKey | TopicsKey | ConsumerGroupsKey), key
        try:
            if not await self._rivals.may_act(key.namespace, key.name):
                return RIVAL_LOOK_S
            if isinstance(key, ClusterKey):
                return await self._clusters.reconcile(key.namespace, key.name)
            return await self._topics.reconcile(key)
        except (LeaseLostError, StaleOperatorError) as exc:
            _log.error("another_operator_acts", error=str(exc))
            raise SystemExit(EXIT_STATUS_LEASE_LOST) from exc


def _named(kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
    """The object with its API version and kind, which items of a list lack."""
    manifest.setdefault("apiVersion", kind.api_version)
    manifest.setdefault("kind", kind.kind)
    return manifest


EXIT_STATUS_LEASE_LOST = 75
"""Another operator may act now. The number is EX_TEMPFAIL of sysexits.h."""
