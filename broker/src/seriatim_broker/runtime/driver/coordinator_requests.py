"""The coordinator on behalf of the core: reads are gathered into few transactions, writes report a true outcome.

All reads of one turn of the event loop go out together, up to `READS_PER_TXN` (100) in a transaction. A transaction of
reads alone is linearizable. So a switch of a thousand partitions needs ten reads.

Chain writes are gathered in the same way, up to `CHAINS_PER_TXN` (40): those of one turn, and those that come while all
slots are busy. Such a joint transaction compares everything that its members would compare alone. If one comparison
fails, nothing was written, and the members are tried one by one. Each cursor is a transaction of its own.

If a write gets no answer in time, its outcome is reported as unknown. It is never sent again: the core reads the record
before it does anything else.
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

from ...core.values.deleted import NONE_DELETED
from ...core.values.effects import ReadCertificate, ReadChain, ReadCursor, ReadWriter, WriteChain, WriteCursor
from ...core.values.events import (
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
from ...core.values.owners import OwnerRead, ReadOwner
from ...interfaces.coordinator import (
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
from ..coordinator.chain_layout import ChainArchive, Layout, PagesNeededError
from ..coordinator.consumer_group_settings import settings_elsewhere
from ..coordinator.group_epochs import NO_FLOOR, EpochFloor
from ..coordinator.keys import Keys, partition_of
from ..coordinator.pages import WholeChain, has_pages, read_all_whole, read_whole
from ..coordinator.records import (
    cursor_from_value,
    cursor_to_value,
    deleted_partitions_from,
    is_in_group_epoch,
    is_of_epoch,
    owner_from_value,
    writer_from_value,
)

READS_PER_TXN = 100
"""Keys that are read in one transaction; below the coordinator's limit of 128 operations."""

READS_IN_FLIGHT_MAX = 16
WRITES_IN_FLIGHT_MAX = 64
"""Transactions of one write each: cursors, and chains whose joint transaction failed its comparison."""

CHAINS_PER_TXN = 40
"""Members of a joint transaction: enough to share its fixed cost, and few enough to be tried one by one quickly."""

JOINT_IN_FLIGHT_MAX = 8
"""Joint transactions at once. Writes that come while all are under way make the next ones larger."""

JOINT_SIZE_BYTES_MAX = 512 * 1024
"""Limit on the values in a joint transaction: a third of the coordinator's limit on a request."""

READ_DEADLINE_S = 2.0
"""Deadline of a transaction of reads. The core tries again at its own pace."""

WRITE_DEADLINE_S = 0.7
"""Deadline of a transaction that writes. A member of etcd that died says nothing, and a write that another member of
etcd forwarded to it is lost without a word. The earlier the write counts as unknown, the earlier its record is read
from a member that answers. When a thousand partitions write at once, a write still takes less than this."""

SAME_REFUSAL_S = 60.0
"""If the coordinator refuses a write for its own content (too large), it is logged once in this time for each key."""

_log = structlog.get_logger(__name__)

_Answer = Callable[[KeyValue | None, bool], Event | None]
"""Makes the event from the item that was read. The flag says that the read failed. None: more must be read first."""


@dataclass(frozen=True, slots=True)
class _ChainWrite:
    """A write of a chain, ready to be sent alone or with others."""

    effect: WriteChain
    layout: Layout
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


class CoordinatorRequests:
    """Carries out the core's reads and writes. `emit` takes the answers.

    Args:
        refused: Called when the coordinator refuses a write for a reason that holds for every write.
        counted: Called with the outcome of each transaction.
        failed: Called with an exception that is a bug here. It must end the process, because the core would wait for an
            answer that never comes.
        is_overtaken: Whether by now the core knows a chain record of that partition and epoch, or a later one.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Keys,
        emit: Callable[[Event], None],
        refused: Callable[[CoordinatorRefusedError], None] = lambda _: None,
        counted: Callable[[str], None] = lambda _: None,
        failed: Callable[[BaseException], None] = lambda _: None,
        is_overtaken: Callable[[PartitionId, int], bool] = lambda *_: False,
    ) -> None:
        self._failed = failed
        self._is_overtaken = is_overtaken
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
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @property
    def pending_count(self) -> int:
        """Transactions that wait or are under way."""
        return len(self._tasks)

    async def close(self) -> None:
        """End everything. Nothing is emitted any more. Writes that are under way may still be carried out."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- reads ----

    def read_chain(self, effect: ReadChain) -> None:
        """Read a chain record. The answer is the event `ChainRead`."""

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
        """There is no chain record. If there was one, find out whether the partition was deleted or the record lost."""
        if not effect.known:
            return ChainRead(effect.partition, None, 0)

        def answer(tombstone: KeyValue | None, failed: bool) -> Event | None:
            if tombstone is None and not failed:  # if the tombstone was removed, the id is in the ranges
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
            self._archive.forget(effect.partition)  # a page that was held has changed: the core reads all of it again
            return ChainRead(effect.partition, None, 0, failed=True)
        except CorruptionError as exc:
            _log.error("chain_unreadable", partition=effect.partition, error=str(exc))
            return ChainRead(effect.partition, None, 0, failed=True)
        return ChainRead(effect.partition, chain, revision)

    def read_certificate(self, effect: ReadCertificate) -> None:
        """Read the certificate of a member run. The answer is the event `CertificateRead`.

        The certificate of a later run of the same disk proves the end of this one, too. The certificate of the run
        itself may have been removed if there is a later one (`controller.cleanup`).
        """

        def answer(item: KeyValue | None, failed: bool) -> Event | None:
            if item is None and not failed:
                self._start(self._read_later_certificate(effect))
                return None
            return CertificateRead(effect.partition, effect.member_run, None if failed else True)

        self._read(self._keys.certificate(effect.member_run), answer)

    async def _read_later_certificate(self, effect: ReadCertificate) -> None:
        found: bool | None = None
        run = effect.member_run
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
        """Read a cursor. The answer is the event `CursorRead`.

        There may be no cursor. So the floor is read with it, and not only after it: over a distance each read takes a
        round trip. It costs little, because a transaction reads it once for all cursors. The floor may be older than
        the cursor if they are in two transactions. Then the one that makes the cursor fails (`above-the-floor`).
        """
        key = self._keys.cursor(effect.partition, effect.consumer_group)
        floors: list[KeyValue | None] = []  # the floor, if it was read with the cursor
        found: list[CursorRead] = []  # the cursor, if there is one

        def read(record: CursorRecord | None, revision: int, failed: bool = False) -> CursorRead:
            return CursorRead(effect.partition, effect.consumer_group, record, revision, failed, effect.known_revision)

        def answer(item: KeyValue | None, failed: bool) -> Event | None:
            if failed:
                return read(None, 0, failed)
            if item is not None:
                try:
                    record = cursor_from_value(item.value)
                except CorruptionError as exc:
                    _log.error("cursor_unreadable", key=key, error=str(exc))
                    return read(None, 0, failed=True)
                if cursor_to_value(record) != item.value:
                    self._cursor_values[key] = item.value  # fields of a newer version
                found.append(read(record, item.mod_revision))
                if not record.deleted:
                    return found[0]
            if floors:
                return without_cursor(floors[0], failed)
            self._read(self._keys.group_epoch, without_cursor)
            return None

        def without_cursor(item: KeyValue | None, failed: bool) -> Event:
            if failed:
                return read(None, 0, failed)
            floor, before = EpochFloor.of(item), self._epoch_floor
            self._epoch_floor = floor
            if floor.is_rebuilding:
                # Rule `none-begins-in-a-rebuild` (`group_epochs`): whether there was a cursor is not known yet.
                if not before.is_rebuilding:
                    _log.warning("groups_wait_for_rebuild", remedy="run seriatim coordinator rebuild until it ends")
                return read(None, 0, failed=True)
            return found[0] if found else read(floor.last, 0)

        def with_floor(item: KeyValue | None, failed: bool) -> None:
            if not failed:
                floors.append(item)

        self._read(self._keys.group_epoch, with_floor)
        self._read(key, answer)

    def read_writer(self, effect: ReadWriter) -> None:
        """Read the record of a writer. The answer is the event `WriterRead`."""
        self._read_record(effect, self._keys.writer(effect.incarnation, effect.writer), writer_from_value, WriterRead)

    def read_owner(self, effect: ReadOwner) -> None:
        """Read the record of the owner of an exclusive producer. The answer is the event `OwnerRead`."""
        self._read_record(effect, self._keys.owner(effect.producer), owner_from_value, OwnerRead)

    def _read_record(
        self,
        effect: ReadWriter | ReadOwner,
        key: str,
        parse: Callable[[bytes], Any],
        event: type[WriterRead] | type[OwnerRead],
    ) -> None:
        def answer(item: KeyValue | None, failed: bool) -> Event:
            if failed or item is None:
                return event(effect.serial, effect.partition, None, failed)
            try:
                return event(effect.serial, effect.partition, parse(item.value))
            except CorruptionError as exc:
                _log.error("record_unreadable", key=key, error=str(exc))
                return event(effect.serial, effect.partition, None, failed=True)

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
        keys = list(dict.fromkeys(key for key, _ in reads))
        items: dict[str, KeyValue | None] = {}
        failed = False
        async with self._read_slots:
            try:
                result = await self._coordinator.txn((), [Get(key) for key in keys], deadline_s=READ_DEADLINE_S)
                items = dict(zip(keys, (response.item for response in result.responses), strict=True))
            except SeriatimError as exc:
                _log.warning("coordinator_read_failed", keys=len(keys), error=str(exc))
                failed = True
        for key, answer in reads:
            event = answer(items.get(key), failed)
            if event is not None:
                self._report(event)

    # ---- writes ----

    def write_chain(self, effect: WriteChain) -> None:
        """Write a chain record. The answer is the event `ChainWritten`."""
        self._chain_writes.append(effect)
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._send_chain_writes)

    def _send_chain_writes(self) -> None:
        """Send the writes that have gathered, as long as there are slots."""
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
        """The oldest waiting writes, one for each partition. Partitions with a write under way are left out.

        If two writes of one partition went out together, the later one would fail, and its joint transaction with it.
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
        """Read what only the coordinator knows, if the core learned its version of a chain from another broker.

        Returns:
            The writes that can be made. The others are answered here, and nothing was sent for them.
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
        """Answer a write if a later record is known by now. Then nothing is sent.

        Rule `out-of-date` (I7): the later record was read here, or another member reported it while the write waited.
        Without it:
          1. A switch of this broker waits behind a write whose outcome is not known yet.
          2. Another broker opens the segment, and acknowledges messages in it.
          3. An older copy of the coordinator is restored. In it, the record has the revision that the switch read.
          4. The write gets its turn, its comparison holds, and the segment is opened a second time.
        """
        was_read = self._archive.has_seen_newer(effect.partition, effect.revision)
        if not was_read and not self._is_overtaken(effect.partition, effect.chain.epoch):
            return False
        self._report(ChainWritten(effect.partition, effect.serial, WriteOutcome.CONFLICT, 0))
        return True

    def _take_up(self, whole: WholeChain) -> None:
        """Remember the layout of a chain in the coordinator."""
        try:
            self._archive.parse(whole.item.value, whole.item.mod_revision, whole.pages, whole.numbers)
        except PagesNeededError:  # a held page has changed. The write would fail too, and the core recreates it
            self._archive.forget(partition_of(whole.item.key))

    def _prepare(self, effect: WriteChain) -> _ChainWrite:
        key = self._keys.chain(effect.partition)
        # Rule `chain-compare` (I7). Without it: 1. Switchers 1 and 2 read the chain record at one revision. 2. Switcher
        # 1 opens segment 2 on broker group B, and a is acknowledged there. 3. Switcher 2 writes over it, and opens
        # segment 2 on broker group C. a is in no chain.
        compares = [mod_revision_is(key, effect.revision)]
        if effect.revision or effect.chain.epoch > 1:
            # Rule `epoch-compare` (I7): a record is only written over the record of the chain epoch before. Without it:
            # 1. A broker knows the chain record at epoch 4 and revision 32. 2. The coordinator is restored as it was at
            # revision 20, and counts on from there. 3. An administrator rebuilds the record, at epoch 5. That is
            # revision 32 again. 4. The broker, which has not read since, adds a member to an older segment: its
            # transaction is carried out, and the record that was rebuilt is lost, with the segments that this broker
            # did not know.
            # Likewise without a revision. 1. A broker starts, knows epoch 4 from its disk, and could not read so far.
            # 2. The coordinator comes back empty. 3. The broker adds a member: where no record is, it writes epoch 5,
            # and the rebuild finds a record that only this broker's disk vouches for.
            compares += is_of_epoch(key, effect.partition, effect.chain.epoch - 1)
        if effect.certificate is not None:
            # Rule `certificate-compare` (I7): a segment is opened over only while the certificate is there. Without
            # it: 1. The switcher has no proof that the master's run has ended. 2. It opens segment 3. 3. The master of
            # segment 2 is only unreachable, and keeps acknowledging. 4. A message that is sent after an
            # acknowledgement in segment 3 is stored in segment 2, before it.
            compares.append(present(self._keys.certificate(effect.certificate)))
        if effect.cursors_revision:
            # Rule `cursors-not-compared` (RETAIN). Without it: 1. Retention reads that all cursors are in segment 7 or
            # later. 2. A consumer group is rewound to segment 3. 3. Retention takes segment 3 out of the record, and
            # the cursor names a segment that does not exist.
            compares.append(unchanged_under(self._keys.cursors_of(effect.partition), effect.cursors_revision))
        if not effect.revision:
            # The topic may have been deleted while its partition was being made. Then nothing would delete it again.
            # Rule `deleted-for-ever`: the id may not be in the ranges either. Without it: 1. This broker is frozen for
            # longer than the tombstone is kept. 2. It continues, and makes the chain of a deleted partition.
            compares.append(absent(self._keys.tombstone(effect.partition)))
            compares.append(mod_revision_is(self._keys.deleted_partitions, self._deleted_revision))
        layout = self._archive.lay_out(effect.chain)
        operations: list[Operation] = [Put(key, layout.record)]
        for number, value in layout.pages:  # the comparison of the record covers them: no write changes a page alone
            page = self._keys.page(effect.partition, number)
            operations.append(Delete(page) if value is None else Put(page, value))
        return _ChainWrite(effect, layout, tuple(compares), tuple(operations))

    async def _write_jointly(self, writes: Sequence[_ChainWrite]) -> None:
        """One transaction for all of them. If its comparison fails, each of them alone."""
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
        """Write a cursor, only if its partition exists. The answer is the event `CursorWritten`.

        A new cursor begins above the floor (rule `above-the-floor` in `group_epochs`). The transaction compares the
        floor. So it fails if the consumer group was made, deleted and expired while it was under way.
        """
        key = self._keys.cursor(effect.partition, effect.consumer_group)
        chain = self._keys.chain(effect.partition)
        compares = [mod_revision_is(key, effect.revision)]
        compares.append(mod_revision_is(chain, effect.chain_revision) if effect.chain_revision else present(chain))
        is_too_low = not effect.revision and effect.record.group_epoch <= self._epoch_floor.floor
        if effect.is_new or not effect.revision:
            compares.append(self._epoch_floor.unchanged(self._keys))
        if effect.follows is not None:
            # Rule `cursor-compare` (I11): a cursor is only written over one of that segment and group epoch. Without
            # it: 1. A broker knows a cursor in segment 3, group epoch 1, at revision 50. 2. The coordinator is restored
            # as it was at revision 40, with the cursor in segment 2. Another broker moves it on, in group epoch 2. That
            # is revision 50 again. 3. The first broker has not read since, and crosses: it writes group epoch 1.
            compares += is_in_group_epoch(key, *effect.follows)
        made = [Put(self._keys.cursors_made(effect.record.topic), b"")] if effect.is_new else []  # `growth-sees-groups`

        async def carry_out() -> None:
            outcome, revision = WriteOutcome.CONFLICT, 0
            record = None if is_too_low else await self._with_settings(effect)
            if record is not None:  # otherwise the core reads again
                puts = [Put(key, cursor_to_value(record, self._cursor_values.get(key))), *made]
                async with self._write_slots:
                    outcome, revision = await self._transact(compares, puts)
                if outcome is WriteOutcome.DONE and record is not effect.record:
                    outcome, revision = WriteOutcome.CONFLICT, 0  # the core reads what was written
            self._report(CursorWritten(effect.partition, effect.consumer_group, effect.serial, outcome, revision))

        self._start(carry_out())

    async def _with_settings(self, effect: WriteCursor) -> CursorRecord | None:
        """The record to write; None: it is not known. A new one has the settings of the consumer group elsewhere."""
        topic, group = effect.record.topic, effect.consumer_group
        if not effect.is_new or "/" in group:  # consumers of broadcast groups have no settings of their own
            return effect.record
        try:
            found = await settings_elsewhere(self._coordinator, self._keys, topic, group, effect.partition)
        except (SeriatimError, CorruptionError) as exc:
            _log.info("group_settings_unknown", topic=topic, group=group, error=str(exc))
            return None
        if found is None or found == effect.record.settings:
            return effect.record
        return effect.record.with_settings(found)

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
            # Rule `unknown-done` (I7): a write without an answer does not count as done. Without it: 1. The write of a
            # switcher is lost. 2. It tells the members to open segment 2, and a is acknowledged there. 3. Another
            # switcher opens another segment 2. a is in no chain.
            return WriteOutcome.UNKNOWN, 0
        except CoordinatorRefusedError as exc:
            self._refused(exc)  # this logs it, once
            return WriteOutcome.REFUSED, 0
        except SeriatimError as exc:
            self._log_refusal(_key_of(operations[0]), len(operations), exc)
            return WriteOutcome.REFUSED, 0
        # Rule `conflict-done` (I5): a failed comparison means that nothing was written. Without it: 1. Switcher 1 seals
        # segment 1 at 5. 2. The comparison of switcher 2 fails, and it believes that segment 1 is sealed at 4. 3.
        # Members that hear of this truncate to 4, and an acknowledged message is gone.
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
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _report(self, event: Event) -> None:
        if not self._closed:
            self._emit(event)


def _key_of(operation: Operation) -> str:
    return operation.prefix if isinstance(operation, (DeletePrefix, GetPrefix)) else operation.key


def _joint_transactions(writes: Sequence[_ChainWrite]) -> list[list[_ChainWrite]]:
    """The writes in their order, divided so that no transaction is too large."""
    joint: list[list[_ChainWrite]] = []
    compares: set[Compare] = set()  # of the last one: writes after the end of one run share its certificate
    size_bytes = operation_count = 0
    for write in writes:
        size_bytes += write.layout.size_bytes
        operation_count += len(write.operations)
        compares.update(write.compares)
        if not joint or size_bytes > JOINT_SIZE_BYTES_MAX or max(len(compares), operation_count) > OPERATION_COUNT_MAX:
            joint.append([])
            compares = set(write.compares)
            size_bytes, operation_count = write.layout.size_bytes, len(write.operations)
        joint[-1].append(write)
    return joint
