"""The coordinator on behalf of the core: reads gathered into few transactions, writes with an honest outcome.

All reads of one turn of the loop go out together, up to `READS_PER_TXN` in a transaction (a transaction of reads alone
is linearizable), so that a switch of a thousand partitions is ten reads and not a thousand. Chain writes are gathered
in the same way, up to `CHAINS_PER_TXN` of them: those of one turn, and whatever comes while all slots are busy. Such a
joint transaction compares what each of its members would compare alone; if one does not hold nothing was written, and
the members are tried one by one. Cursors are one transaction each. Whatever was not answered in time is reported as
such and never sent again: the core reads before it does anything else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from seriatim_api.errors import CoordinatorRefusedError, CorruptionError, SeriatimError, UnavailableError
from seriatim_api.ids import PartitionId, RunId

from ..core.values.deleted import NONE_DELETED
from ..core.values.effects import ReadCertificate, ReadChain, ReadCursor, ReadWriter, WriteChain, WriteCursor
from ..core.values.events import (
    CertificateRead,
    ChainRead,
    ChainWritten,
    CursorRead,
    CursorRecord,
    CursorWritten,
    Event,
    WriteOutcome,
    WriterRead,
)
from ..interfaces.coordinator import (
    OPERATION_COUNT_MAX,
    Compare,
    Coordinator,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    Operation,
    Put,
    absent,
    mod_revision_is,
    present,
    unchanged_under,
)
from .archive import ChainArchive, Layout, PagesNeededError
from .group_epochs import NO_FLOOR, EpochFloor
from .keys import Keys, partition_of
from .pages import WholeChain, has_pages, read_all_whole, read_whole
from .records import cursor_from_value, cursor_to_value, deleted_partitions_from, writer_from_value

READS_PER_TXN = 100
"""Below the coordinator's limit of 128 operations."""

READS_IN_FLIGHT_MAX = 16
WRITES_IN_FLIGHT_MAX = 64
"""Transactions of one write: of cursors, and of chains whose joint transaction did not hold."""

CHAINS_PER_TXN = 40
"""Members of a joint transaction: enough to make its fixed cost small, few enough to be soon tried one by one."""

JOINT_IN_FLIGHT_MAX = 8
"""Joint transactions at once; what comes while they are under way makes the next ones larger."""

JOINT_SIZE_BYTES_MAX = 512 * 1024
"""Of the values in a joint transaction, a third of the coordinator's limit of a request."""

READ_DEADLINE_S = 2.0
"""Of one transaction of reads; the core tries again at its own pace."""

WRITE_DEADLINE_S = 0.7
"""Of one that writes. A member of etcd that has gone says nothing, and what another one handed to it as the leader is
lost as silently: the sooner a write counts as unknown, the sooner its record is read, where the others answer. Longer
than a write takes that shares etcd with those of a thousand partitions."""

SAME_REFUSAL_S = 60.0
"""A write that the coordinator refuses for itself (too large) is logged once in this time, for each key."""

_log = structlog.get_logger(__name__)

_Answer = Callable[[KeyValue | None, bool], Event | None]
"""Makes the event from what was read; the flag says that nothing was. None: more must be read first."""


@dataclass(frozen=True, slots=True)
class _ChainWrite:
    """A write of a chain, ready to be sent alone or with others."""

    effect: WriteChain
    layout: Layout
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


class CoordinatorWork:
    """Carries out the core's reads and writes; `emit` takes the answers.

    Args:
        refused: Told when the coordinator refuses a write as it would refuse any other.
        counted: Told the outcome of each transaction.
        failed: Told of a bug here, and ends the process: the core would wait for an answer that never comes.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Keys,
        emit: Callable[[Event], None],
        refused: Callable[[CoordinatorRefusedError], None] = lambda _: None,
        counted: Callable[[str], None] = lambda _: None,
        failed: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._failed = failed
        self._refused = refused
        self._counted = counted
        self._told_refusals: dict[str, float] = {}
        self._coordinator = coordinator
        self._keys = keys
        self._emit = emit
        self._archive = ChainArchive()
        self._cursor_values: dict[str, bytes] = {}
        self._epoch_floor = NO_FLOOR  # as it was read last
        self._deleted, self._deleted_revision = NONE_DELETED, 0  # as they were read last
        self._reads: list[tuple[str, _Answer]] = []
        self._chain_writes: deque[WriteChain] = deque()
        self._written_now: set[PartitionId] = set()
        self._joint_count = 0
        self._is_gathering = False
        self._read_slots = asyncio.Semaphore(READS_IN_FLIGHT_MAX)
        self._write_slots = asyncio.Semaphore(WRITES_IN_FLIGHT_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @property
    def pending_count(self) -> int:
        """Transactions that wait or are on their way."""
        return len(self._tasks)

    async def close(self) -> None:
        """End everything; nothing is emitted any more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reads ----

    def read_chain(self, effect: ReadChain) -> None:
        """Answered by `ChainRead`."""

        def answer(item: KeyValue | None, failed: bool) -> Event | None:
            if item is not None and has_pages(item):
                self._start(self._read_long_chain(effect, item))
                return None
            return self._chain_read(effect, WholeChain(item) if item is not None else None, failed)

        self._read(self._keys.chain(effect.partition), answer)

    async def _read_long_chain(self, effect: ReadChain, item: KeyValue) -> None:
        whole, failed = None, False
        async with self._read_slots:
            try:
                whole = await read_whole(
                    self._coordinator, self._keys, item, deadline_s=READ_DEADLINE_S, unread=self._archive.unread
                )
            except SeriatimError as exc:
                _log.warning("chain_pages_not_read", partition=effect.partition, error=str(exc))
                failed = True
        event = self._chain_read(effect, whole, failed)
        if event is not None:
            self._report(event)

    def _no_chain(self, effect: ReadChain) -> Event | None:
        """There is no record: of a partition that had one, because it was deleted, or because that was lost."""
        if not effect.known:
            return ChainRead(effect.partition, None, 0)

        def answer(tombstone: KeyValue | None, failed: bool) -> Event | None:
            if tombstone is None and not failed:  # a tombstone that is gone has left the id in the ranges
                self._read(self._keys.deleted_partitions, without_tombstone)
                return None
            return ChainRead(effect.partition, None, 0, failed, deleted=tombstone is not None)

        def without_tombstone(item: KeyValue | None, failed: bool) -> Event:
            deleted = not failed and effect.partition in deleted_partitions_from(
                item.value if item is not None else None
            )
            return ChainRead(effect.partition, None, 0, failed, deleted=deleted)

        self._read(self._keys.tombstone(effect.partition), answer)
        return None

    def _chain_read(self, effect: ReadChain, whole: WholeChain | None, failed: bool) -> Event | None:
        if failed:
            return ChainRead(effect.partition, None, 0, failed)
        if whole is None:
            self._archive.forget(effect.partition)
            return self._no_chain(effect)
        revision = whole.item.mod_revision
        try:
            chain = self._archive.parse(whole.item.value, revision, whole.pages, whole.numbers)
        except PagesNeededError:
            self._archive.forget(effect.partition)  # what it held changed meanwhile: the core reads again, all of it
            return ChainRead(effect.partition, None, 0, failed=True)
        except CorruptionError as exc:
            _log.error("chain_unreadable", partition=effect.partition, error=str(exc))
            return ChainRead(effect.partition, None, 0, failed=True)
        return ChainRead(effect.partition, chain, revision)

    def read_certificate(self, effect: ReadCertificate) -> None:
        """Answered by `CertificateRead`, of that run or of a later one of the same disk, which proves its end too.

        The certificate of the run itself is gone if there is a later one (`tidying`).
        """

        def answer(item: KeyValue | None, failed: bool) -> Event | None:
            if item is None and not failed:
                self._start(self._read_later_certificate(effect))
                return None
            return CertificateRead(effect.partition, effect.run, None if failed else True)

        self._read(self._keys.certificate(effect.run), answer)

    async def _read_later_certificate(self, effect: ReadCertificate) -> None:
        found: bool | None = None
        run = effect.run
        async with self._read_slots:
            try:
                prefix = self._keys.certificates_of(run.member)
                listing = await self._coordinator.list(prefix, deadline_s=READ_DEADLINE_S)
                runs = [int(item.key.rpartition("/")[2]) for item in listing.items]
                later = max(runs, default=0)
                found = later >= run.run
                run = RunId(run.member, later) if found else run
            except SeriatimError as exc:
                _log.warning("certificates_not_read", run=str(run), error=str(exc))
        self._report(CertificateRead(effect.partition, run, found))

    def read_cursor(self, effect: ReadCursor) -> None:
        """Answered by `CursorRead`."""
        key = self._keys.cursor(effect.partition, effect.group)

        def read(record: CursorRecord | None, revision: int, failed: bool = False) -> CursorRead:
            return CursorRead(effect.partition, effect.group, record, revision, failed, effect.known_revision)

        def answer(item: KeyValue | None, failed: bool) -> Event | None:
            if failed:
                return read(None, 0, failed)
            if item is None:
                self._read(self._keys.group_epoch, without_cursor)
                return None
            try:
                record = cursor_from_value(item.value)
            except CorruptionError as exc:
                _log.error("cursor_unreadable", key=key, error=str(exc))
                return read(None, 0, failed=True)
            if cursor_to_value(record) != item.value:
                self._cursor_values[key] = item.value  # fields of a newer version
            return read(record, item.mod_revision)

        def without_cursor(item: KeyValue | None, failed: bool) -> Event:
            if failed:
                return read(None, 0, failed)
            floor = self._epoch_floor = EpochFloor.of(item)
            last = CursorRecord(0, floor.floor, 0, "", deleted=True) if floor.floor else None
            return read(last, 0)

        self._read(key, answer)

    def read_writer(self, effect: ReadWriter) -> None:
        """Answered by `WriterRead`."""
        key = self._keys.writer(effect.incarnation, effect.writer)

        def answer(item: KeyValue | None, failed: bool) -> Event:
            if failed or item is None:
                return WriterRead(effect.serial, effect.partition, None, failed)
            try:
                return WriterRead(effect.serial, effect.partition, writer_from_value(item.value))
            except CorruptionError as exc:
                _log.error("writer_unreadable", key=key, error=str(exc))
                return WriterRead(effect.serial, effect.partition, None, failed=True)

        self._read(key, answer)

    def _read(self, key: str, answer: _Answer) -> None:
        if not self._reads:
            self._loop.call_soon(self._send_reads)
        self._reads.append((key, answer))

    def _send_reads(self) -> None:
        try:
            reads, self._reads = self._reads, []
            for start in range(0, len(reads), READS_PER_TXN):
                self._start(self._carry_out_reads(reads[start : start + READS_PER_TXN]))
        except Exception as exc:
            self._failed(exc)

    async def _carry_out_reads(self, reads: Sequence[tuple[str, _Answer]]) -> None:
        items: list[KeyValue | None] = [None] * len(reads)
        failed = False
        async with self._read_slots:
            try:
                gets = [Get(key) for key, _ in reads]
                result = await self._coordinator.txn((), gets, deadline_s=READ_DEADLINE_S)
                items = [response.item for response in result.responses]
            except SeriatimError as exc:
                _log.warning("coordinator_read_failed", keys=len(reads), error=str(exc))
                failed = True
        for (_, answer), item in zip(reads, items, strict=True):
            event = answer(item, failed)
            if event is not None:
                self._report(event)

    # ---- writes ----

    def write_chain(self, effect: WriteChain) -> None:
        """Answered by `ChainWritten`."""
        self._chain_writes.append(effect)
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._send_chain_writes)

    def _send_chain_writes(self) -> None:
        """Send what has gathered, as far as there are slots."""
        try:
            self._is_gathering = False
            while self._joint_count < JOINT_IN_FLIGHT_MAX and not self._closed:
                effects = self._next_chain_writes()
                if not effects:
                    return
                self._joint_count += 1
                self._start(self._carry_out_chain_writes(effects))
        except Exception as exc:
            self._failed(exc)

    def _next_chain_writes(self) -> list[WriteChain]:
        """The oldest writes of partitions that have none under way: two of one partition never meet.

        The later one would lose against the earlier one, and take the others of its transaction with it.
        """
        effects: list[WriteChain] = []
        later: list[WriteChain] = []
        while self._chain_writes and len(effects) < CHAINS_PER_TXN:
            effect = self._chain_writes.popleft()
            if effect.partition in self._written_now:
                later.append(effect)
            else:
                self._written_now.add(effect.partition)
                effects.append(effect)
        self._chain_writes.extendleft(reversed(later))
        return effects

    async def _carry_out_chain_writes(self, effects: Sequence[WriteChain]) -> None:
        try:
            ready = await self._look_again(effects)
            joint = _joint_transactions([self._prepare(effect) for effect in ready])
            await asyncio.gather(*map(self._write_jointly, joint))
        finally:
            self._written_now.difference_update(effect.partition for effect in effects)
            self._joint_count -= 1
            self._send_chain_writes()

    async def _look_again(self, effects: Sequence[WriteChain]) -> list[WriteChain]:
        """Fetch what only the record itself can tell, where the core learned its version from another broker.

        Returns the writes that can be made; the others are answered: nothing was sent for them.
        """
        effects = [effect for effect in effects if not self._is_out_of_date(effect)]
        unseen = [effect for effect in effects if not self._archive.has_seen(effect.partition, effect.revision)]
        made = [effect for effect in effects if not effect.revision]
        if not unseen and not made:
            return list(effects)
        refused = {effect.partition for effect in made}
        otherwise = WriteOutcome.CONFLICT
        try:
            gets = [Get(self._keys.chain(effect.partition)) for effect in unseen]
            async with self._read_slots:
                result = await self._coordinator.txn(
                    (), [Get(self._keys.deleted_partitions), *gets], deadline_s=READ_DEADLINE_S
                )
                found, *items_found = (response.item for response in result.responses)
                self._deleted = deleted_partitions_from(found.value if found is not None else None)
                self._deleted_revision = found.mod_revision if found is not None else 0
                refused = {partition for partition in refused if partition in self._deleted}
                items = [item for item in items_found if item is not None]
                for whole in await read_all_whole(
                    self._coordinator, self._keys, items, deadline_s=READ_DEADLINE_S, unread=self._archive.unread
                ):
                    self._take_up(whole)
        except SeriatimError as exc:
            _log.warning("chains_not_read_again", count=len(unseen), error=str(exc))
            otherwise = WriteOutcome.UNKNOWN
        ready: list[WriteChain] = []
        for effect in effects:
            if self._archive.has_seen(effect.partition, effect.revision) and effect.partition not in refused:
                ready.append(effect)
            else:
                self._report(ChainWritten(effect.partition, effect.serial, otherwise, 0))
        return ready

    def _is_out_of_date(self, effect: WriteChain) -> bool:
        """Answer a write whose record was seen to be over while the write waited for its turn: nothing is sent.

        Rule `out-of-date` (I7). Without it:
          1. A switch of this broker waits behind a write whose outcome is not known yet.
          2. Another broker opens the segment, and acknowledges messages in it.
          3. An older copy of the coordinator is restored, in which the record stands where the switch read it. The
             write gets its turn, its compare holds, and the segment is opened a second time.
        """
        if not self._archive.has_seen_newer(effect.partition, effect.revision):
            return False
        self._report(ChainWritten(effect.partition, effect.serial, WriteOutcome.CONFLICT, 0))
        return True

    def _take_up(self, whole: WholeChain) -> None:
        """Remember how a chain lies in the coordinator."""
        try:
            self._archive.parse(whole.item.value, whole.item.mod_revision, whole.pages, whole.numbers)
        except PagesNeededError:  # what was held changed meanwhile: the write does not hold either, and is made anew
            self._archive.forget(partition_of(whole.item.key))

    def _prepare(self, effect: WriteChain) -> _ChainWrite:
        key = self._keys.chain(effect.partition)
        compares = [mod_revision_is(key, effect.revision)]
        if effect.certificate is not None:
            compares.append(present(self._keys.certificate(effect.certificate)))
        if effect.cursors_revision:
            compares.append(unchanged_under(self._keys.cursors_of(effect.partition), effect.cursors_revision))
        if not effect.revision:  # its topic may have been deleted while it was being made: nobody would delete it again
            # Rule `deleted-for-ever`: nor may it be in the ranges, however late this transaction arrives.
            compares.append(absent(self._keys.tombstone(effect.partition)))
            compares.append(mod_revision_is(self._keys.deleted_partitions, self._deleted_revision))
        layout = self._archive.lay_out(effect.chain)
        operations: list[Operation] = [Put(key, layout.record)]
        for number, value in layout.pages:  # the record's compare stands for them: nobody writes them alone
            page = self._keys.page(effect.partition, number)
            operations.append(Delete(page) if value is None else Put(page, value))
        return _ChainWrite(effect, layout, tuple(compares), tuple(operations))

    async def _write_jointly(self, writes: Sequence[_ChainWrite]) -> None:
        """One transaction for all; each of them alone if that did not hold."""
        if len(writes) > 1:
            compares = tuple(dict.fromkeys(compare for write in writes for compare in write.compares))
            operations = tuple(operation for write in writes for operation in write.operations)
            outcome, revision = await self._transact(compares, operations)
            if outcome in (WriteOutcome.DONE, WriteOutcome.UNKNOWN):
                for write in writes:
                    self._chain_written(write, outcome, revision)
                return
        await asyncio.gather(*map(self._write_alone, writes))

    async def _write_alone(self, write: _ChainWrite) -> None:
        async with self._write_slots:
            outcome, revision = await self._transact(write.compares, write.operations)
        self._chain_written(write, outcome, revision)

    def _chain_written(self, write: _ChainWrite, outcome: WriteOutcome, revision: int) -> None:
        effect = write.effect
        if outcome is WriteOutcome.DONE:
            self._archive.written(write.layout, revision)
        self._report(ChainWritten(effect.partition, effect.serial, outcome, revision))

    def write_cursor(self, effect: WriteCursor) -> None:
        """Answered by `CursorWritten`. A cursor is only written where its partition exists.

        One that is made anew begins above the floor (rule `above-the-floor`, `group_epochs`). A transaction that was
        under way while the group was made, deleted and expired is refused too, because the floor is another one then.
        """
        key = self._keys.cursor(effect.partition, effect.group)
        chain = self._keys.chain(effect.partition)
        compares = [mod_revision_is(key, effect.revision)]
        compares.append(mod_revision_is(chain, effect.chain_revision) if effect.chain_revision else present(chain))
        is_too_low = not effect.revision and effect.record.group_epoch <= self._epoch_floor.floor
        if not effect.revision:
            compares.append(self._epoch_floor.unchanged(self._keys))
        put = Put(key, cursor_to_value(effect.record, self._cursor_values.get(key)))

        async def carry_out() -> None:
            outcome, revision = WriteOutcome.CONFLICT, 0
            if not is_too_low:  # else the floor was raised since the core read: it reads again
                async with self._write_slots:
                    outcome, revision = await self._transact(compares, (put,))
            self._report(CursorWritten(effect.partition, effect.group, effect.serial, outcome, revision))

        self._start(carry_out())

    async def _transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> tuple[WriteOutcome, int]:
        """The outcome, and the revision if it is DONE (else 0)."""
        outcome, revision = await self._try(compares, operations)
        self._counted(outcome.value)
        return outcome, revision

    async def _try(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> tuple[WriteOutcome, int]:
        try:
            result = await self._coordinator.txn(compares, operations, deadline_s=WRITE_DEADLINE_S)
        except UnavailableError as exc:
            _log.warning("coordinator_write_unknown", key=_key_of(operations[0]), count=len(operations), error=str(exc))
            return WriteOutcome.UNKNOWN, 0
        except CoordinatorRefusedError as exc:
            self._refused(exc)  # it says so in the log, once
            return WriteOutcome.REFUSED, 0
        except SeriatimError as exc:
            self._log_refusal(_key_of(operations[0]), len(operations), exc)
            return WriteOutcome.REFUSED, 0
        return (WriteOutcome.DONE, result.revision) if result.succeeded else (WriteOutcome.CONFLICT, 0)

    def _log_refusal(self, key: str, count: int, error: SeriatimError) -> None:
        now_s = self._loop.time()
        self._told_refusals = {known: at_s for known, at_s in self._told_refusals.items() if at_s > now_s}
        if key not in self._told_refusals:
            self._told_refusals[key] = now_s + SAME_REFUSAL_S
            _log.error("coordinator_write_refused", key=key, count=count, error=str(error))

    # ---- tasks ----

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work, name="coordinator transaction")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _report(self, event: Event) -> None:
        if not self._closed:
            self._emit(event)


def _key_of(operation: Operation) -> str:
    return operation.prefix if isinstance(operation, (DeletePrefix, GetPrefix)) else operation.key


def _joint_transactions(writes: Sequence[_ChainWrite]) -> list[list[_ChainWrite]]:
    """The writes, in their order, cut where a transaction would grow too large."""
    joint: list[list[_ChainWrite]] = []
    size_bytes = count = 0
    for write in writes:
        own_count = max(len(write.compares), len(write.operations))
        size_bytes += write.layout.size_bytes
        count += own_count
        if not joint or size_bytes > JOINT_SIZE_BYTES_MAX or count > OPERATION_COUNT_MAX:
            joint.append([])
            size_bytes, count = write.layout.size_bytes, own_count
        joint[-1].append(write)
    return joint
