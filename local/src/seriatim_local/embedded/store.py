"""The embedded coordinator's state. A change is in memory at once, and no client hears of it before the disk has it.

A request changes memory on the event loop, in the order of arrival, and joins the open *group*. One worker thread
commits group after group. While it waits for the disk, the next group fills, so that many requests share one flush. An
answer, also to a read, leaves only when each change that it could have seen is durable. Watches get only durable
revisions.

If the disk fails, it is not known what is on it. Then each caller gets an error, and `on_fatal` is called, which ends
the process by default. The same happens after a failed assertion.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import structlog

from seriatim_local.embedded import refusal
from seriatim_local.embedded.disk import Batch, Disk
from seriatim_local.embedded.lease import TTL_S_MAX, TTL_S_MIN, Leases, LeaseState
from seriatim_local.embedded.mvcc import Change, Mvcc
from seriatim_local.embedded.requests import Requests

HISTORY_REVISION_COUNT: Final = 10_000
"""The number of old revisions that are kept for watches and paging. Older ones are compacted away."""

_COMPACTION_STEP_REVISION_COUNT: Final = 100
"""Compaction runs when there are this many revisions above the limit. It takes about 1 ms of the event loop each
time."""

_LEASE_CHECK_S_MAX: Final = 60.0
"""Longest sleep of the lease task. A change of leases wakes it anyway."""

FatalHandler = Callable[[BaseException], None]
"""Called once, when the disk has failed. Afterwards the process must not keep serving."""

_log = structlog.get_logger(__name__)


def end_process(error: BaseException) -> None:
    """Log why, and end the process at once with exit status 74, because no client may hear of changes in its memory."""
    _log.critical("coordinator_failed", error=str(error), exc_info=error)
    os._exit(74)  # EX_IOERR


class _Group:
    """Changes that become durable together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.changes: list[Change] = []
        self.leases: dict[int, int | None] = {}
        self.done: asyncio.Future[None] = loop.create_future()

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.leases


class Store:
    """Keys, leases and their durability. `open` makes it. It belongs to one event loop.

    Raises:
        Refusal: From each call, if etcd would refuse the request. Nothing was changed.
    """

    def __init__(
        self,
        disk: Disk,
        cluster_id: int,
        mvcc: Mvcc,
        leases: Leases,
        *,
        history_revision_count: int,
        on_fatal: FatalHandler,
    ) -> None:
        self.cluster_id = cluster_id
        self.durable_revision = mvcc.revision
        self.mvcc = mvcc
        self.leases = leases
        self._requests = Requests(mvcc, leases)
        self._disk = disk
        self._history_revision_count = history_revision_count
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._open_group = _Group(self._loop)
        self._writing: _Group | None = None
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._closing = False
        self._work = asyncio.Event()
        self._leases_changed = asyncio.Event()
        self._watchers: dict[asyncio.Event, None] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coordinator-disk")
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        history_revision_count: int = HISTORY_REVISION_COUNT,
        on_fatal: FatalHandler = end_process,
    ) -> Store:
        """Open the directory, or begin in an empty one. Each lease has its whole time again.

        Raises:
            StorageError: The directory cannot be used; the message says why and what to do.
            PreconditionError: Another process has the directory, or it cannot be opened.
        """
        assert history_revision_count > 0
        loop = asyncio.get_running_loop()
        disk = await asyncio.to_thread(Disk, directory)
        try:
            remembered = await asyncio.to_thread(disk.load)
        except BaseException:
            disk.close()
            raise
        leases = Leases()
        for lease_id, ttl_s in remembered.leases.items():
            leases.add(lease_id, ttl_s, loop.time())
        for lease_id, key in remembered.mvcc.leased_keys():
            leases.attach(key, lease_id)
        store = cls(
            disk,
            remembered.cluster_id,
            remembered.mvcc,
            leases,
            history_revision_count=history_revision_count,
            on_fatal=on_fatal,
        )
        store._tasks = [
            loop.create_task(store._run(store._commit_groups()), name="coordinator-commit"),
            loop.create_task(store._run(store._end_leases()), name="coordinator-leases"),
        ]
        return store

    async def close(self) -> None:
        """Make all changes durable, then close the directory. The caller must have ended all requests before."""
        self._closing = True
        self._work.set()
        self._leases_changed.set()
        await asyncio.gather(*self._tasks)
        await self._loop.run_in_executor(self._thread, self._disk.close)
        self._thread.shutdown(wait=True)

    # -- requests -----------------------------------------------------------------------------------------

    async def range(self, request: Any) -> Any:
        """Read keys, linearizably."""
        response = self._apply(self._requests.range, request)
        revision = self.mvcc.revision
        await self._durable()
        return self.with_header(response, revision)

    async def put(self, request: Any) -> Any:
        """Put a key. It is durable on return."""
        return await self._written(self._apply(self._requests.put, request, self._loop.time()))

    async def delete_range(self, request: Any) -> Any:
        """Delete keys. It is durable on return."""
        return await self._written(self._apply(self._requests.delete_range, request))

    async def txn(self, request: Any) -> Any:
        """Carry out a transaction. It is durable on return."""
        return await self._written(self._apply(self._requests.txn, request, self._loop.time()))

    async def compact(self, revision: int) -> int:
        """Compact up to `revision`. Returns the newest revision."""
        self._check_alive()
        if revision > self.mvcc.revision:
            raise refusal.future_revision()
        if revision <= self.mvcc.compact_revision:
            raise refusal.compacted()
        self.mvcc.compact(revision)
        self._stage()
        current = self.mvcc.revision
        await self._durable()
        return current

    async def grant(self, lease_id: int, ttl_s: int) -> LeaseState:
        """Make a lease with this id. It is durable on return."""
        self._check_alive()
        if ttl_s > TTL_S_MAX:
            raise refusal.ttl_too_large()
        if self.leases.exists(lease_id):
            raise refusal.lease_exists()
        state = self.leases.add(lease_id, max(ttl_s, TTL_S_MIN), self._loop.time())
        self._open_group.leases[lease_id] = state.ttl_s
        self._leases_changed.set()
        self._stage()
        await self._durable()
        return state

    async def keep_alive(self, lease_id: int) -> int:
        """Give a lease its whole time again. Returns this time in seconds; 0 if the lease has ended."""
        self._check_alive()
        state = self.leases.find(lease_id, self._loop.time())
        if state is not None:
            state.deadline_s = self._loop.time() + state.ttl_s
        await self._durable()  # also if the lease has ended: the answer reports its end, which must be durable
        return state.ttl_s if state is not None else 0

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. It is durable on return."""
        self._check_alive()
        if not self.leases.exists(lease_id):
            await self._durable()
            raise refusal.lease_not_found()
        self._end_lease(lease_id)
        await self._durable()

    def remaining_s(self, lease: LeaseState) -> int:
        """The whole seconds that a lease has left."""
        return max(0, int(lease.deadline_s - self._loop.time()))

    def find_lease(self, lease_id: int) -> LeaseState | None:
        """The lease with this id; None if there is none or it has ended."""
        return self.leases.find(lease_id, self._loop.time())

    # -- watches ------------------------------------------------------------------------------------------

    def add_watcher(self, wake: asyncio.Event) -> None:
        """Set `wake` whenever `durable_revision` has moved, until `remove_watcher`."""
        self._watchers[wake] = None

    def remove_watcher(self, wake: asyncio.Event) -> None:
        """Do not set `wake` any more."""
        del self._watchers[wake]

    @property
    def is_stopping(self) -> bool:
        """Whether watches must end, because nothing more will become durable."""
        return self._is_stopping or self._failure is not None

    def stop_watches(self) -> None:
        """Tell the watches to end. It comes before the end of everything else."""
        self._is_stopping = True
        for wake in self._watchers:
            wake.set()

    # -- durability ---------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._closing or self._failure is not None:
            raise refusal.stopping()

    def _apply(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Carry out a request in memory.

        Any error except a refusal is a bug, and the memory may be changed half-way. Then the store fails.
        """
        self._check_alive()
        try:
            return call(*arguments)
        except refusal.Refusal:
            raise
        except Exception as error:
            self._fail(error)
            raise refusal.stopping() from error

    def with_header(self, response: Any, revision: int) -> Any:
        """The response, with the header that each answer of etcd has."""
        header = response.header
        header.cluster_id = self.cluster_id
        header.member_id = self.cluster_id
        header.raft_term = 1
        header.revision = revision
        return response

    async def _written(self, response: Any) -> Any:
        revision = self.mvcc.revision
        self._stage()
        await self._durable()
        return self.with_header(response, revision)

    def _stage(self) -> None:
        """Move the changes in memory to the open group."""
        surplus = self.mvcc.revision - self.mvcc.compact_revision - self._history_revision_count
        if surplus >= min(_COMPACTION_STEP_REVISION_COUNT, self._history_revision_count):
            self.mvcc.compact(self.mvcc.compact_revision + surplus)
        self._open_group.changes += self.mvcc.take_changes()
        self._work.set()

    async def _durable(self) -> None:
        """Wait until all present changes in memory are on the disk. Cancelling ends the wait, not the write."""
        group = self._writing if self._open_group.is_empty else self._open_group
        if group is not None:
            await asyncio.shield(group.done)

    async def _commit_groups(self) -> None:
        while self._failure is None and not (self._closing and self._open_group.is_empty):
            await self._work.wait()
            self._work.clear()
            if self._open_group.is_empty or self._failure is not None:
                continue
            group, self._open_group = self._open_group, _Group(self._loop)
            batch = Batch(self.mvcc.revision, self.mvcc.compact_revision, group.changes, group.leases)
            self._writing = group
            await self._loop.run_in_executor(self._thread, self._disk.commit, batch)
            if self._failure is not None:
                return  # `_fail` has notified the waiters
            self._writing = None
            self.durable_revision = batch.revision
            group.done.set_result(None)
            for wake in self._watchers:
                wake.set()
            if not self._open_group.is_empty or self._closing:
                self._work.set()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one of the store's two tasks. It ends at `close`. If it fails, the store fails."""
        try:
            await work
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stop serving, because the disk or an assertion has failed. All waiting callers get an error."""
        if self._failure is not None:
            return
        self._failure = error
        for group in (self._writing, self._open_group):
            if group is not None:
                group.done.set_exception(refusal.stopping())
                group.done.exception()  # so that asyncio does not complain if no caller waits
        self.stop_watches()
        self._work.set()
        self._on_fatal(error)

    # -- leases -------------------------------------------------------------------------------------------

    def _end_lease(self, lease_id: int) -> None:
        self._requests.delete_lease(lease_id)
        self._open_group.leases[lease_id] = None
        self._stage()

    async def _end_leases(self) -> None:
        while not self._closing and self._failure is None:
            for lease_id in self.leases.due(self._loop.time()):
                _log.info("coordinator_lease_expired", lease=f"{lease_id:x}")
                self._end_lease(lease_id)
            deadline_s = self.leases.next_deadline_s()
            wait_s = _LEASE_CHECK_S_MAX if deadline_s is None else deadline_s - self._loop.time()
            self._leases_changed.clear()
            if self._closing:
                return
            try:
                async with asyncio.timeout(min(max(wait_s, 0.0), _LEASE_CHECK_S_MAX)):
                    await self._leases_changed.wait()
            except TimeoutError:
                continue
