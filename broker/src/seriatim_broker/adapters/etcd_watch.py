"""A watch that continues at its place when streams break, etcd restarts or the endpoint changes.

Each watch has its own stream. Its place moves past a revision only when the caller has taken all of that revision's
events. So a stream that breaks loses nothing. The place moves also when the coordinator says that nothing happened.
Otherwise compaction would remove the place of a watch without events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
import structlog
from aetcd.rpc import rpc_pb2
from seriatim_api.errors import CompactedError, CoordinatorUnavailableError, PreconditionError

from seriatim_broker.adapters.etcd_channel import Endpoint, EndpointPool
from seriatim_broker.adapters.etcd_codec import (
    TRANSIENT_CODES,
    decode_event,
    encode_key,
    make_error,
    prefix_range,
)
from seriatim_broker.interfaces.coordinator import WatchBatch

BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 0.2
"""Between tries to resume a watch; it doubles from try to try."""

_CREATE_S_MAX: Final = 5.0
"""How long a stream may take to confirm the watch. Then the watch tries another stream."""

_LEADER_REQUIRED: Final = (("hasleader", "true"),)
"""With this a member of etcd ends the stream when it has lost etcd's leader. Otherwise events would stop in silence."""

_log = structlog.get_logger(__name__)


class ResumedWatch:
    """One watch. It lives as long as the iteration over `batches`."""

    def __init__(self, pool: EndpointPool, key: str, *, start_revision: int, prefix: bool) -> None:
        assert start_revision >= 1, "a watch names its first revision"
        assert key or prefix, "the empty key cannot be watched"
        self._pool = pool
        self._name = f"watch of {key!r}" + (" and below" if prefix else "")
        self._key, self._range_end = prefix_range(key) if prefix else (encode_key(key), b"")
        self._next_revision = start_revision
        self._backoff_s = BACKOFF_S_MIN
        self._endpoint: Endpoint | None = None

    async def batches(self) -> AsyncGenerator[WatchBatch, None]:
        """The changes, until the caller ends the iteration, the pool is closed, or the coordinator refuses.

        Raises:
            CompactedError: The coordinator has compacted away changes that were not delivered yet.
            PreconditionError: The coordinator refuses this watch until an administrator acts.
        """
        while not self._pool.is_closed:
            call = None
            try:
                call = await self._open()
                while (response := await call.read()) is not grpc.aio.EOF:
                    self._backoff_s = BACKOFF_S_MIN
                    batch = self._accept(response)
                    if batch is not None:
                        yield batch
                        self._next_revision = batch.revision + 1
            except (CoordinatorUnavailableError, grpc.aio.AioRpcError, TimeoutError) as error:
                self._check_resumable(error)
            except asyncio.CancelledError:
                if not _was_cut():
                    raise
            finally:
                if call is not None:
                    call.cancel()
            if not self._pool.is_closed:
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(2 * self._backoff_s, BACKOFF_S_MAX)

    async def _open(self) -> Any:
        """A stream on which the coordinator has confirmed the watch, from its place on."""
        end_s = asyncio.get_running_loop().time() + _CREATE_S_MAX
        self._endpoint = None
        self._endpoint = await self._pool.ready(end_s)
        call = self._endpoint.watch.Watch(metadata=_LEADER_REQUIRED)
        try:
            async with asyncio.timeout_at(end_s):
                await call.write(self._request())
                response = await call.read()
            if response is grpc.aio.EOF:
                raise CoordinatorUnavailableError(f"{self._name}: the stream ended at once")
            self._accept(response)
        except BaseException:
            call.cancel()
            raise
        return call

    def _request(self) -> Any:
        create = rpc_pb2.WatchCreateRequest(
            key=self._key, range_end=self._range_end, start_revision=self._next_revision, progress_notify=True
        )
        return rpc_pb2.WatchRequest(create_request=create)

    def _accept(self, response: Any) -> WatchBatch | None:
        """The batch in a response; None if it has no events. The place moves when the caller has taken the batch."""
        if response.canceled:
            raise self._cancelled(response)
        if response.created:
            return None
        if not response.events:
            # Nothing happened up to this revision. (The confirmation of a watch, above, does not say this: its
            # revision is the coordinator's newest.)
            self._next_revision = max(self._next_revision, response.header.revision + 1)
            return None
        first, last = response.events[0].kv.mod_revision, response.events[-1].kv.mod_revision
        assert self._next_revision <= first <= last, (self._name, self._next_revision, first, last)
        return WatchBatch(tuple(map(decode_event, response.events)), last)

    def _cancelled(self, response: Any) -> Exception:
        if response.compact_revision:
            return CompactedError(
                f"{self._name}: revision {self._next_revision} is compacted away "
                f"(kept: {response.compact_revision} and later)",
                compact_revision=response.compact_revision,
            )
        reason = response.cancel_reason
        if "permission denied" in reason or "not possible" in reason:
            return PreconditionError(f"{self._name}: refused: {reason}")
        return CoordinatorUnavailableError(f"{self._name}: ended by the coordinator: {reason}")

    def _check_resumable(self, error: Exception) -> None:
        """Raise an error that another try cannot change. For any other, have the next try use another endpoint."""
        if self._endpoint is not None:
            self._pool.avoid(self._endpoint)
        if isinstance(error, grpc.aio.AioRpcError) and error.code() not in TRANSIENT_CODES:
            refused = make_error(error, self._name)
            if not isinstance(refused, CoordinatorUnavailableError):
                raise refused from error
        _log.debug("coordinator_watch_resumes", watch=self._name, revision=self._next_revision, error=str(error))


def _was_cut() -> bool:
    """Whether the closed channel caused the cancellation, and not the task that awaits the watch."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0
