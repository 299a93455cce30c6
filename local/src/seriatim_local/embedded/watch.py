"""One Watch stream of a client, with several watchers, each at its own revision.

There is no queue of events. A watcher is a place in the log of revisions. Whenever a revision becomes durable, the
stream's task reads on from each watcher's place and sends the events that match. So a slow client costs no memory. When
compaction passes its place, its watch is cancelled with the oldest revision that is kept, and the client lists again.
All events of a revision are in one response.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import grpc
from aetcd.rpc import kv_pb2, rpc_pb2

from seriatim_local.embedded import refusal
from seriatim_local.embedded.mvcc import FROM_KEY, EventMessage
from seriatim_local.embedded.store import Store

WATCHER_COUNT_MAX: Final = 1_000
"""Limit for the watchers of one stream. One more is cancelled at once."""

REVISION_COUNT_MAX: Final = 1_000
"""Revisions to read before other tasks of the event loop have their turn."""

RESPONSE_SIZE_BYTES: Final = 1024 * 1024
"""A response with this many bytes is full. One revision alone may have more."""

PROGRESS_INTERVAL_S: Final = 10.0
"""While nothing happens, a watcher that asked for it is sent the revision this often. In etcd: every 10 minutes."""

_PENDING_REQUEST_COUNT_MAX: Final = 16
_STREAM_WATCH_ID: Final = -1


@dataclass(slots=True)
class _Watcher:
    id: int
    key: bytes
    range_end: bytes
    next_revision: int
    wants_prev_kv: bool
    wants_progress: bool
    without: frozenset[int]
    told_at_s: float

    def matches(self, event: EventMessage) -> bool:
        key = event.kv.key
        if event.type in self.without:
            return False
        if not self.range_end:
            return bool(key == self.key)
        return bool(self.key <= key and (self.range_end == FROM_KEY or key < self.range_end))


class WatchStream:
    """Serves one stream. It lives as long as `run`."""

    def __init__(self, store: Store, context: Any) -> None:
        self._store = store
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._watchers: dict[int, _Watcher] = {}
        self._next_id = 0
        self._requests: asyncio.Queue[Any] = asyncio.Queue(_PENDING_REQUEST_COUNT_MAX)
        self._wake = asyncio.Event()
        self._is_half_closed = False
        self._progress_wanted = False

    async def run(self) -> None:
        """Serve until the client ends the stream.

        Raises:
            Refusal: The coordinator stops.
        """
        reader = self._loop.create_task(self._read_requests(), name="coordinator-watch-reader")
        self._store.add_watcher(self._wake)
        try:
            while not self._is_half_closed:
                await self._serve_once()
                try:
                    async with asyncio.timeout(PROGRESS_INTERVAL_S):
                        await self._wake.wait()
                except TimeoutError:
                    await self._tell_progress()
                self._wake.clear()
        finally:
            self._store.remove_watcher(self._wake)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read_requests(self) -> None:
        try:
            while (request := await self._context.read()) is not grpc.aio.EOF:
                await self._requests.put(request)
                self._wake.set()
        finally:
            self._is_half_closed = True
            self._wake.set()

    async def _serve_once(self) -> None:
        if self._store.is_stopping:
            raise refusal.stopping()
        while not self._requests.empty():
            await self._handle(self._requests.get_nowait())
        for watcher in list(self._watchers.values()):
            await self._catch_up(watcher)
        if self._progress_wanted:
            self._progress_wanted = False
            await self._write(rpc_pb2.WatchResponse(watch_id=_STREAM_WATCH_ID), self._common_revision())

    # -- requests -----------------------------------------------------------------------------------------

    async def _handle(self, request: Any) -> None:
        kind = request.WhichOneof("request_union")
        if kind == "create_request":
            await self._create(request.create_request)
        elif kind == "cancel_request":
            watch_id = request.cancel_request.watch_id
            if self._watchers.pop(watch_id, None) is not None:
                await self._write(rpc_pb2.WatchResponse(watch_id=watch_id, canceled=True), self._store.durable_revision)
        elif kind == "progress_request":
            self._progress_wanted = True

    async def _create(self, request: Any) -> None:
        # "From now on" means after all applied revisions, also those that are not durable yet.
        now = self._store.mvcc.revision
        watch_id = request.watch_id
        if watch_id == 0:
            watch_id, self._next_id = self._next_id, self._next_id + 1
        if watch_id in self._watchers or len(self._watchers) >= WATCHER_COUNT_MAX or not request.key:
            response = rpc_pb2.WatchResponse(
                watch_id=_STREAM_WATCH_ID, created=True, canceled=True, cancel_reason="watch not possible"
            )
            await self._write(response, self._store.durable_revision)
            return
        kinds = {rpc_pb2.WatchCreateRequest.NOPUT: kv_pb2.Event.PUT}
        kinds[rpc_pb2.WatchCreateRequest.NODELETE] = kv_pb2.Event.DELETE
        self._watchers[watch_id] = _Watcher(
            id=watch_id,
            key=request.key,
            range_end=request.range_end,
            next_revision=request.start_revision if request.start_revision > 0 else now + 1,
            wants_prev_kv=request.prev_kv,
            wants_progress=request.progress_notify,
            without=frozenset(kinds[one] for one in request.filters if one in kinds),
            told_at_s=self._loop.time(),
        )
        await self._write(rpc_pb2.WatchResponse(watch_id=watch_id, created=True), self._store.durable_revision)

    # -- events -------------------------------------------------------------------------------------------

    async def _catch_up(self, watcher: _Watcher) -> None:
        while watcher.next_revision <= self._store.durable_revision:
            if watcher.next_revision < self._store.mvcc.compact_revision:
                await self._cancel_compacted(watcher)
                return
            response = self._next_response(watcher)
            if response.events:
                await self._write(response, watcher.next_revision - 1)
                watcher.told_at_s = self._loop.time()
            else:
                await asyncio.sleep(0)

    def _next_response(self, watcher: _Watcher) -> Any:
        """Read from the watcher's place on, to the end or to a limit. Moves the place."""
        mvcc = self._store.mvcc
        response = rpc_pb2.WatchResponse(watch_id=watcher.id)
        size_bytes = 0
        last = min(self._store.durable_revision, watcher.next_revision + REVISION_COUNT_MAX - 1)
        while watcher.next_revision <= last and size_bytes < RESPONSE_SIZE_BYTES:
            for event in mvcc.events_of(watcher.next_revision):
                if watcher.matches(event):
                    response.events.append(event)
                    size_bytes += len(event.kv.key) + len(event.kv.value)
                    if watcher.wants_prev_kv:
                        self._add_previous(response.events[-1])
            watcher.next_revision += 1
        return response

    def _add_previous(self, event: EventMessage) -> None:
        revision = event.kv.mod_revision - 1
        if revision >= self._store.mvcc.compact_revision:
            previous = self._store.mvcc.at(event.kv.key, revision)
            if previous is not None:
                event.prev_kv.CopyFrom(previous)

    async def _cancel_compacted(self, watcher: _Watcher) -> None:
        del self._watchers[watcher.id]
        response = rpc_pb2.WatchResponse(
            watch_id=watcher.id,
            canceled=True,
            compact_revision=self._store.mvcc.compact_revision,
            cancel_reason="mvcc: required revision has been compacted",
        )
        await self._write(response, self._store.durable_revision)

    # -- progress -----------------------------------------------------------------------------------------

    async def _tell_progress(self) -> None:
        now_s = self._loop.time()
        for watcher in list(self._watchers.values()):
            is_idle = now_s - watcher.told_at_s >= PROGRESS_INTERVAL_S
            has_all = watcher.next_revision == self._store.durable_revision + 1
            if watcher.wants_progress and is_idle and has_all:
                await self._write(rpc_pb2.WatchResponse(watch_id=watcher.id), watcher.next_revision - 1)
                watcher.told_at_s = now_s

    def _common_revision(self) -> int:
        """The revision up to which all watchers of the stream have got all their events."""
        told = [watcher.next_revision - 1 for watcher in self._watchers.values()]
        return min([self._store.durable_revision, *told])

    async def _write(self, response: Any, revision: int) -> None:
        await self._context.write(self._store.with_header(response, revision))
