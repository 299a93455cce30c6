"""Expiry: what was deleted goes after a while, and what stays says the same in bounded space."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.errors import CoordinatorBehindError, NotServingError, PreconditionError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.deleted import NONE_DELETED, DeletedPartitions
from seriatim_broker.core.values.effects import CursorsListed, ReadChain, ReadCursor, WriteChain, WriteCursor
from seriatim_broker.core.values.events import (
    ChainRead,
    ChainWritten,
    CursorRead,
    CursorRecord,
    CursorWritten,
    ForgetConsumerGroup,
    ListCursors,
    WriteOutcome,
)
from seriatim_broker.core.values.keyed import ConsumerMode
from seriatim_broker.interfaces.coordinator import Delete, Put, TxnResult
from seriatim_broker.runtime.controller.consumer_groups import ConsumerGroupCursors
from seriatim_broker.runtime.controller.expiry import PARTITIONS_PER_PASS, REMOVED_PER_PASS, REMOVED_PER_TXN, Expiry
from seriatim_broker.runtime.coordinator.group_epochs import EpochFloor
from seriatim_broker.runtime.coordinator.keys import Keys, group_of
from seriatim_broker.runtime.coordinator.records import (
    cursor_from_value,
    cursor_to_value,
    deleted_partitions_from,
    put_deleted_partitions,
)
from seriatim_broker.runtime.duties.deleted_consumer_groups import DeletedConsumerGroups
from seriatim_broker.runtime.membership.wall_clocks import WallClocks
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_cleanup import NOW_MS, Elected, StoppedClock
from .test_coordination import Desk, chain_of

KEYS = Keys("c")
ONE = PartitionId(1)
KEPT_S = 3600.0
LONG_AGO_MS = NOW_MS - 2 * 3_600_000


async def test_a_group_that_reports_itself_goes_once_it_reports_no_more() -> None:
    cluster = Cluster()
    for group, at_ms in (("gone", LONG_AGO_MS), ("here", NOW_MS)):
        record = CursorRecord(1, 7, 3, "t", external=True, reported_at_ms=at_ms)
        cluster.put(KEYS.cursor(ONE, group), cursor_to_value(record))
    assert await cluster.expiry.remove_cursors() == 1
    left = await cluster.coordinator.list(KEYS.cursors_of(ONE))
    assert [item.key for item in left.items] == [KEYS.cursor(ONE, "here")]
    assert EpochFloor.of(await cluster.coordinator.get(KEYS.group_epoch)).floor == 7


async def test_progress_goes_forward_in_an_epoch_and_back_into_the_next() -> None:
    cluster = Cluster()
    cursors = ConsumerGroupCursors(cluster.coordinator, KEYS, "spark")
    seen = []
    for place in ((1, 5), (2, 0), (1, 9)):
        await cursors.read([ONE])
        assert await cursors.report("t", {ONE: place}, NOW_MS)
        await cursors.read([ONE])
        record = cursors.records[ONE]
        seen.append((record.segment_no, record.start_index, record.group_epoch, record.external))
    assert seen == [(1, 5, 1, True), (2, 0, 1, True), (1, 9, 2, True)]
    consumed = CursorRecord(1, 1, 0, "t")
    cluster.put(KEYS.cursor(ONE, "spark"), cursor_to_value(consumed))
    assert not await cursors.report("t", {ONE: (3, 0)}, NOW_MS), "it was written meanwhile"
    await cursors.read([ONE])
    with pytest.raises(PreconditionError):
        await cursors.report("t", {ONE: (3, 0)}, NOW_MS)


class Cluster:
    """A coordinator with a topic, a broker of this version, and an expiry of an hour."""

    def __init__(self, partitions: Sequence[int] = (1,)) -> None:
        self.store = MemoryStore()
        self.coordinator = MemoryCoordinator(self.store)
        self.expiry = self.expiry_over(self.coordinator)
        self.tell_clocks(0, 0)
        topic = records_pb2.TopicRecord(name="t", partition_ids=partitions)
        self.put(KEYS.topic("t"), topic.SerializeToString())
        for partition in partitions:
            self.put(KEYS.chain(PartitionId(partition)), b"chain")

    def expiry_over(self, coordinator: Any) -> Expiry:
        return Expiry(coordinator, KEYS, Elected(coordinator), StoppedClock(), KEPT_S)  # type: ignore[arg-type]

    def put(self, key: str, value: bytes) -> None:
        self.store.txn((), [Put(key, value)], ())

    def tell_clocks(self, *ahead_ms: int) -> None:
        """Brokers are live, and their clocks are so far ahead."""
        for number, ahead in enumerate(ahead_ms):
            record = records_pb2.LiveRecord(wall_ms=NOW_MS + ahead)
            self.put(KEYS.live(f"g0-{number}"), record.SerializeToString())

    def forget(self, group: str, epoch: int = 1, partition: int = 1, at_ms: int = LONG_AGO_MS) -> None:
        record = CursorRecord(1, epoch, 0, "t", deleted=True, deleted_at_ms=at_ms)
        self.put(KEYS.cursor(PartitionId(partition), group), cursor_to_value(record))

    def bury(self, *partitions: int, at_ms: int = LONG_AGO_MS) -> None:
        for partition in partitions:
            record = records_pb2.PartitionTombstone(partition_id=partition, deleted_at_ms=at_ms)
            self.put(KEYS.tombstone(PartitionId(partition)), record.SerializeToString())

    def cursor(self, group: str) -> CursorRecord | None:
        item = self.store.items.get(KEYS.cursor(ONE, group))
        return cursor_from_value(item.value) if item is not None else None

    def under(self, prefix: str) -> list[str]:
        return [key.removeprefix(prefix) for key in self.store.items if key.startswith(prefix)]

    @property
    def floor(self) -> EpochFloor:
        return EpochFloor.of(self.store.items.get(KEYS.group_epoch))

    @property
    def deleted(self) -> DeletedPartitions:
        item = self.store.items.get(KEYS.deleted_partitions)
        return deleted_partitions_from(item.value if item is not None else None)

    async def group(self, name: str) -> ConsumerGroupCursors:
        cursors = ConsumerGroupCursors(self.coordinator, KEYS, name)
        await cursors.read([ONE])
        return cursors


class Interrupted:
    """A coordinator in which something happens between the first listing of a prefix and what follows."""

    def __init__(self, inner: MemoryCoordinator, prefix: str, happens: Any) -> None:
        self._inner = inner
        self._prefix = prefix
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def list(self, prefix: str) -> Any:
        listing = await self._inner.list(prefix)
        if prefix == self._prefix:
            self._happens()
        return listing


# ---- deleted cursors ------------------------------------------------------------------------------------


async def test_a_deleted_cursor_goes_and_leaves_its_epoch_as_the_floor() -> None:
    cluster = Cluster()
    cluster.forget("old", epoch=7)
    cluster.forget("older", epoch=3)
    cluster.forget("young", epoch=9, at_ms=NOW_MS - 60_000)
    cluster.put(KEYS.cursor(ONE, "live"), cursor_to_value(CursorRecord(1, 20, 0, "t")))
    assert await cluster.expiry.remove_cursors() == 2
    assert sorted(cluster.under(KEYS.cursors_of(ONE))) == ["live", "young"]
    assert (cluster.floor.floor, cluster.floor.expired, cluster.floor.count) == (7, 7, 2)


async def test_a_cursor_that_an_older_version_marked_goes_at_once() -> None:
    cluster = Cluster()
    cluster.forget("old", epoch=2, at_ms=0)
    assert await cluster.expiry.remove_cursors() == 1
    assert cluster.floor.floor == 2


async def test_a_group_that_is_made_again_begins_above_the_floor() -> None:
    cluster = Cluster()
    cluster.forget("g", epoch=7)
    await cluster.expiry.remove_cursors()
    assert await (await cluster.group("g")).create("t", {ONE: (1, 0)})
    assert cluster.cursor("g") == CursorRecord(1, 8, 0, "t")


async def test_tokens_of_a_group_without_a_cursor_are_above_those_of_each_cursor_that_was_removed() -> None:
    """Rule `begins-above`."""
    cluster = Cluster()
    for group, base in (("keyed", 6), ("other", 2)):
        record = CursorRecord(1, 1, 0, "t", deleted=True, deleted_at_ms=LONG_AGO_MS, mode=ConsumerMode.KEY_ORDERED)
        cluster.put(KEYS.cursor(ONE, group), cursor_to_value(replace(record, term_base=base)))
    assert await cluster.expiry.remove_cursors() == 2
    assert cluster.floor.term_base == 7
    cursors = ConsumerGroupCursors(cluster.coordinator, KEYS, "keyed")
    await cursors.read([ONE])
    chain = SimpleNamespace(last_server_epoch=lambda no: 20 if no == 0 else -1, segment=lambda _no: None)
    assert await cursors.create("t", {ONE: (1, 0)}, chains={ONE: cast(Any, chain)})
    made = cluster.cursor("keyed")
    assert made is not None
    assert made.term_base == 7 + 20 + 1


async def test_a_group_is_not_made_over_a_floor_that_was_raised_meanwhile() -> None:
    cluster = Cluster()
    late = await cluster.group("g")
    cluster.forget("g", epoch=7)
    await cluster.expiry.remove_cursors()
    assert not await late.create("t", {ONE: (1, 0)}), "its epoch 1 was used"
    assert cluster.cursor("g") is None


async def test_the_core_reads_the_floor_in_place_of_a_cursor_and_writes_above_it() -> None:
    cluster = Cluster()
    cluster.forget("g", epoch=7)
    await cluster.expiry.remove_cursors()
    desk = Desk(cluster.coordinator)
    desk.work.read_cursor(ReadCursor(ONE, "g"))
    await desk.until_count(1)
    assert desk.events == [CursorRead(ONE, "g", CursorRecord(0, 7, 0, "", deleted=True), 0)]
    assert desk.recording.txn_count == 1, "over a distance each transaction takes a round trip"
    for serial, epoch in ((1, 7), (2, 8)):
        desk.work.write_cursor(WriteCursor(ONE, "g", serial, CursorRecord(1, epoch, 0, "t"), 0))
    await desk.until_count(3)
    outcomes = {event.serial: event.outcome for event in desk.events if isinstance(event, CursorWritten)}
    assert outcomes == {1: WriteOutcome.CONFLICT, 2: WriteOutcome.DONE}
    await desk.work.close()


async def test_a_missing_cursor_during_a_rebuild_counts_as_not_read() -> None:
    cluster = Cluster()
    desk = Desk(cluster.coordinator)
    desk.work.read_cursor(ReadCursor(ONE, "g"))
    await desk.until_count(1)
    await cluster.coordinator.txn((), [EpochFloor(floor=7, is_rebuilding=True).put(KEYS)])
    desk.work.write_cursor(WriteCursor(ONE, "g", 1, CursorRecord(1, 8, 0, "t"), 0))
    desk.work.read_cursor(ReadCursor(ONE, "g"))
    await desk.until_count(3)
    found, *later = desk.events
    assert found == CursorRead(ONE, "g", None, 0)
    assert CursorRead(ONE, "g", None, 0, failed=True) in later
    assert [event.outcome for event in later if isinstance(event, CursorWritten)] == [WriteOutcome.CONFLICT]
    with pytest.raises(CoordinatorBehindError, match="coordinator rebuild again"):
        await (await cluster.group("g")).create("t", {ONE: (1, 0)})
    assert cluster.cursor("g") is None
    await desk.work.close()


async def test_a_deleted_cursor_during_a_rebuild_counts_as_not_read() -> None:
    """The group may have been made again in the lost time."""
    cluster = Cluster()
    desk = Desk(cluster.coordinator)
    deleted = CursorRecord(1, 3, 0, "t", deleted=True)
    key = KEYS.cursor(ONE, "g")
    await cluster.coordinator.txn((), [Put(key, cursor_to_value(deleted, None))])
    desk.work.read_cursor(ReadCursor(ONE, "g"))
    await desk.until_count(1)
    (found,) = (event for event in desk.events if isinstance(event, CursorRead))
    assert found.record == deleted
    await cluster.coordinator.txn((), [EpochFloor(floor=7, is_rebuilding=True).put(KEYS)])
    again = WriteCursor(ONE, "g", 1, CursorRecord(1, 4, 0, "t"), found.revision, is_new=True)
    desk.work.write_cursor(again)
    desk.work.read_cursor(ReadCursor(ONE, "g"))
    await desk.until_count(3)
    assert CursorRead(ONE, "g", None, 0, failed=True) in desk.events
    assert [event.outcome for event in desk.events if isinstance(event, CursorWritten)] == [WriteOutcome.CONFLICT]
    with pytest.raises(CoordinatorBehindError):
        await (await cluster.group("g")).create("t", {ONE: (1, 0)})
    await desk.work.close()


async def test_no_deleted_cursor_is_removed_during_a_rebuild() -> None:
    """The last write of a rebuild compares the floor, which each removal raises."""
    cluster = Cluster()
    cluster.forget("g", epoch=7)
    await cluster.coordinator.txn((), [EpochFloor(floor=3, is_rebuilding=True).put(KEYS)])
    assert not await cluster.expiry.remove_cursors()
    assert cluster.floor.floor == 3


async def test_a_write_of_the_core_that_was_under_way_for_long_is_refused() -> None:
    """It was sent when there was no cursor; then the group was made, deleted and expired."""
    cluster = Cluster()
    desk = Desk(cluster.coordinator)
    desk.work.read_cursor(ReadCursor(ONE, "g"))
    await desk.until_count(1)
    assert desk.events == [CursorRead(ONE, "g", None, 0)]
    cluster.forget("g", epoch=1)
    await cluster.expiry.remove_cursors()
    desk.work.write_cursor(WriteCursor(ONE, "g", 1, CursorRecord(1, 1, 0, "t"), 0))
    await desk.until_count(2)
    (written,) = (event for event in desk.events if isinstance(event, CursorWritten))
    assert written.outcome is WriteOutcome.CONFLICT
    assert cluster.cursor("g") is None
    await desk.work.close()


async def test_nothing_goes_if_a_group_is_made_again_or_the_floor_is_raised_meanwhile() -> None:
    def made_again(cluster: Cluster) -> None:
        cluster.put(KEYS.cursor(ONE, "g"), cursor_to_value(CursorRecord(1, 8, 0, "t")))

    cluster = Cluster()
    cluster.forget("g", epoch=7)
    coordinator = Interrupted(cluster.coordinator, KEYS.cursors_of(ONE), lambda: made_again(cluster))
    assert await cluster.expiry_over(coordinator).remove_cursors() == 0
    assert cluster.cursor("g") == CursorRecord(1, 8, 0, "t")
    assert cluster.floor == EpochFloor()


async def test_two_that_remove_the_same_remove_it_once() -> None:
    cluster = Cluster()
    cluster.forget("g", epoch=7)
    await_other: list[int] = []

    class Racing:
        def __getattr__(self, name: str) -> Any:
            return getattr(cluster.coordinator, name)

        async def get(self, key: str) -> Any:
            item = await cluster.coordinator.get(key)
            await_other.append(await cluster.expiry.remove_cursors())
            return item

    assert await cluster.expiry_over(Racing()).remove_cursors() == 0
    assert await_other == [1]
    assert cluster.floor.count == 1


async def test_a_pass_removes_a_bounded_number_and_the_next_goes_on_there() -> None:
    cluster = Cluster((1, 2))
    for number in range(REMOVED_PER_PASS + REMOVED_PER_TXN + 1):
        cluster.forget(f"g{number}", epoch=number + 1)
    cluster.forget("g", partition=2)
    assert await cluster.expiry.remove_cursors() == REMOVED_PER_PASS
    assert await cluster.expiry.remove_cursors() == REMOVED_PER_TXN + 2
    assert not cluster.under(f"{KEYS.prefix}cursors/")
    assert cluster.floor.floor == REMOVED_PER_PASS + REMOVED_PER_TXN + 1


async def test_passes_walk_over_all_partitions() -> None:
    cluster = Cluster(range(1, 2 * PARTITIONS_PER_PASS + 2))
    for partition in (1, PARTITIONS_PER_PASS + 1, 2 * PARTITIONS_PER_PASS + 1):
        cluster.forget("g", partition=partition)
    assert [await cluster.expiry.remove_cursors() for _ in range(3)] == [1, 1, 1]
    cluster.forget("g", partition=1)
    assert await cluster.expiry.remove_cursors() == 1, "it starts over"


# ---- tombstones -----------------------------------------------------------------------------------------


async def test_tombstones_become_ranges() -> None:
    cluster = Cluster()
    cluster.bury(2, 3, 4, 9)
    cluster.bury(5, at_ms=NOW_MS - 60_000)
    assert await cluster.expiry.remove_tombstones() == 4
    assert cluster.deleted.ranges == ((2, 5), (9, 10))
    assert len(cluster.under(KEYS.tombstones)) == 1
    cluster.bury(*range(5, 9))
    assert await cluster.expiry.remove_tombstones() == 4
    assert cluster.deleted.ranges == ((2, 10),)


async def test_a_million_partitions_that_were_deleted_leave_one_range() -> None:
    deleted = NONE_DELETED.with_ids(map(PartitionId, range(2, 1_000_002)))
    put = put_deleted_partitions(KEYS, deleted)
    assert len(put.value) < 20
    assert deleted_partitions_from(put.value) == deleted


def test_ranges_are_a_set() -> None:
    chance = Random(1)
    known: set[int] = set()
    deleted = NONE_DELETED
    for _ in range(200):
        some = [chance.randrange(300) for _ in range(chance.randrange(1, 4))]
        known.update(some)
        deleted = deleted.with_ids(map(PartitionId, some))
        deleted = deleted_partitions_from(put_deleted_partitions(KEYS, deleted).value)
        assert [number for number in range(301) if PartitionId(number) in deleted] == sorted(known)
        assert all(end < first for (_, end), (first, _) in zip(deleted.ranges, deleted.ranges[1:], strict=False))


async def test_a_chain_without_record_and_tombstone_is_known_to_be_deleted_by_the_ranges() -> None:
    cluster = Cluster()
    cluster.bury(2)
    await cluster.expiry.remove_tombstones()
    desk = Desk(cluster.coordinator)
    for partition in (2, 3):
        desk.work.read_chain(ReadChain(PartitionId(partition), known=True))
    await desk.until_count(2)
    read = {event.partition: event.deleted for event in desk.events if isinstance(event, ChainRead)}
    assert read == {2: True, 3: False}, "3 was lost, not deleted: its data stays"
    await desk.work.close()


async def test_a_partition_in_the_ranges_is_never_made() -> None:
    cluster = Cluster()
    cluster.bury(2)
    await cluster.expiry.remove_tombstones()
    desk = Desk(cluster.coordinator)
    effects = [WriteChain(PartitionId(number), number, chain_of(number), 0, None) for number in (2, 3)]
    written = await desk.write(*effects)
    assert {serial: event.outcome for serial, event in written.items()} == {
        2: WriteOutcome.CONFLICT,
        3: WriteOutcome.DONE,
    }
    await desk.work.close()


async def test_a_partition_is_not_made_by_a_write_that_was_under_way_while_its_tombstone_went() -> None:
    cluster = Cluster()

    class Slow:
        """Delivers the write after the topic was deleted and its tombstone is gone."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cluster.coordinator, name)

        async def txn(self, compares: Any, then: Any, *args: Any, **kwargs: Any) -> TxnResult:
            if any(isinstance(operation, Put) for operation in then):
                cluster.bury(2)
                await cluster.expiry.remove_tombstones()
            return await cluster.coordinator.txn(compares, then, *args, **kwargs)

    desk = Desk(Slow())
    written = await desk.write(WriteChain(PartitionId(2), 1, chain_of(2), 0, None))
    assert written[1].outcome is WriteOutcome.CONFLICT
    assert KEYS.chain(PartitionId(2)) not in cluster.store.items
    assert isinstance(written[1], ChainWritten)
    await desk.work.close()


async def test_a_deletion_that_is_gone_on_with_writes_tombstones_that_go_again() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.bury(2)
        assert await cluster.expiry.remove_tombstones() == 1
    assert cluster.deleted.ranges == ((2, 3),)


# ---- other controllers -----------------------------------------------------------------------------


async def test_a_controller_that_is_not_elected_any_more_removes_nothing() -> None:
    cluster = Cluster()
    cluster.forget("g")
    cluster.bury(2)
    cluster.expiry._election.is_lost = True  # type: ignore[attr-defined]
    for remove in (cluster.expiry.remove_cursors, cluster.expiry.remove_tombstones):
        with pytest.raises(NotServingError):
            await remove()
    assert cluster.cursor("g") is not None
    assert len(cluster.under(KEYS.tombstones)) == 1


async def test_a_deleted_cursor_says_when() -> None:
    cluster = Cluster()
    assert await (await cluster.group("g")).create("t", {ONE: (1, 0)})
    await (await cluster.group("g")).delete(NOW_MS)
    known = cluster.cursor("g")
    assert known is not None
    assert (known.deleted, known.deleted_at_ms) == (True, NOW_MS)
    assert await (await cluster.group("g")).create("t", {ONE: (1, 0)})
    assert cluster.cursor("g") == replace(known, deleted=False, deleted_at_ms=0, group_epoch=2)


# ---- what brokers keep on disk --------------------------------------------------------------------------


class Groups:
    """A driver over a core that has control records of these groups of partition 1, with their epochs."""

    def __init__(self, **epochs: int) -> None:
        self.epochs = epochs
        self.is_empty = asyncio.Event()
        self._reply: Any = None

    def new_request(self, reply: Any) -> int:
        self._reply = reply
        return 1

    def forget_request(self, request: int) -> None:
        pass

    def feed(self, event: ListCursors | ForgetConsumerGroup) -> None:
        if isinstance(event, ForgetConsumerGroup):
            if self.epochs[event.consumer_group] <= event.epoch_max:
                del self.epochs[event.consumer_group]
            if not self.epochs:
                self.is_empty.set()
            return
        low = [group for group, epoch in sorted(self.epochs.items()) if epoch <= event.epoch_max]
        named = [(ONE, group) for group in low if (ONE, group) > event.after]
        self._reply(CursorsListed(event.request, tuple(named[: event.limit])))


async def test_a_broker_forgets_groups_whose_cursor_was_removed() -> None:
    cluster = Cluster()
    groups = Groups(gone=7, again=7, live=2, young=3, lost=8)
    cluster.forget("gone", epoch=7)
    cluster.forget("again", epoch=7)
    cluster.forget("young", epoch=3, at_ms=NOW_MS)
    cluster.put(KEYS.cursor(ONE, "live"), cursor_to_value(CursorRecord(1, 2, 0, "t")))
    forgetting = DeletedConsumerGroups(cluster.coordinator, KEYS, groups, 1.0)  # type: ignore[arg-type]
    assert await forgetting.look() == 0, "nothing was removed yet"
    await cluster.expiry.remove_cursors()
    assert await (await cluster.group("again")).create("t", {ONE: (1, 0)})
    assert await forgetting.look() == 1
    assert groups.epochs == {"again": 7, "live": 2, "young": 3, "lost": 8}, "an epoch above the floor was not removed"


async def test_a_rebuild_makes_no_broker_forget_a_group() -> None:
    """The coordinator lost its cursor, and this broker was not asked."""
    cluster = Cluster()
    groups = Groups(g=7)
    cluster.store.txn((), [EpochFloor(floor=NOW_MS).put(KEYS)], ())
    forgetting = DeletedConsumerGroups(cluster.coordinator, KEYS, groups, 1.0)  # type: ignore[arg-type]
    assert await forgetting.look() == 0
    assert groups.epochs == {"g": 7}


async def test_a_broker_looks_when_cursors_are_removed() -> None:
    cluster = Cluster()
    groups = Groups(g=7)
    cluster.forget("g", epoch=7)
    forgetting = DeletedConsumerGroups(cluster.coordinator, KEYS, groups, 0.0)  # type: ignore[arg-type]
    duty = asyncio.create_task(forgetting.run())
    await cluster.expiry.remove_cursors()
    async with asyncio.timeout(60):
        await groups.is_empty.wait()
    duty.cancel()
    await asyncio.gather(duty, return_exceptions=True)


async def test_the_position_of_a_broadcast_consumer_goes_once_it_was_away_for_long() -> None:
    cluster = Cluster()
    day_ms = 86_400_000
    for name, away_ms in (("g/gone", KEPT_S * 1000 + day_ms), ("g/here", KEPT_S * 1000 + day_ms - 1)):
        at_ms = NOW_MS - int(away_ms)
        record = CursorRecord(1, 7, 3, "t", mode=ConsumerMode.BROADCAST, reported_at_ms=at_ms)
        cluster.put(KEYS.cursor(ONE, name), cursor_to_value(record))
    assert await cluster.expiry.remove_cursors() == 1
    left = await cluster.coordinator.list(KEYS.cursors_of(ONE))
    assert [group_of(item.key) for item in left.items] == ["g/here"]
    assert EpochFloor.of(await cluster.coordinator.get(KEYS.group_epoch)).floor == 7


class Ahead(StoppedClock):
    """The clock of a controller that is nine days ahead."""

    def wall_ms(self) -> int:
        return NOW_MS + 9 * 86_400_000


@pytest.mark.parametrize(
    "record",
    [
        CursorRecord(1, 7, 3, "t", mode=ConsumerMode.BROADCAST, reported_at_ms=NOW_MS - 1),
        CursorRecord(1, 7, 3, "t", external=True, reported_at_ms=NOW_MS - 1),
    ],
)
@pytest.mark.parametrize("told", [(9 * 86_400_000, 0), (9 * 86_400_000,), (9 * 86_400_000, -NOW_MS)])
async def test_a_controller_ahead_removes_nothing_that_is_in_use(record: CursorRecord, told: tuple[int, ...]) -> None:
    cluster = Cluster()
    cluster.store.txn((), [Delete(KEYS.live("g0-0")), Delete(KEYS.live("g0-1"))], ())
    cluster.tell_clocks(*told)  # of another one that is right, of none, of one whose version does not report it
    cluster.put(KEYS.cursor(ONE, "g/here"), cursor_to_value(record))
    elected: Any = Elected(cluster.coordinator)
    expiry = Expiry(cluster.coordinator, KEYS, elected, Ahead(), 7 * 86_400.0)
    assert await expiry.remove_cursors() == 0
    cluster.forget("gone")
    assert await expiry.remove_cursors() == 1, "when a deleted cursor goes does not matter"


async def test_a_clock_that_is_far_off_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    clocks = WallClocks(cluster.coordinator, KEYS, StoppedClock())
    cluster.tell_clocks(0, -110_000)
    assert await clocks.earliest_ms() == NOW_MS - 110_000
    assert "clocks_differ" not in capsys.readouterr().out, "its note may be two minutes old"
    cluster.tell_clocks(0, 120_000)
    assert [await clocks.earliest_ms() for _ in range(2)] == [NOW_MS, NOW_MS]
    assert capsys.readouterr().out.count("clocks_differ") == 1


@pytest.mark.parametrize(
    ("told", "ahead"),
    [((9, 9, 9), 0), ((9, 0, 0), 9), ((9, 9, 0), 0), ((9, 0), 9), ((9, 9, -9_000), 0), ((9,), 0)],
)
async def test_a_clock_that_is_ahead_of_most_does_not_count(told: tuple[int, ...], ahead: int) -> None:
    """Of this broker, which is nine days ahead, and others; in days."""
    day_ms = 86_400_000
    cluster = Cluster()
    cluster.store.txn((), [Delete(KEYS.live("g0-0")), Delete(KEYS.live("g0-1"))], ())
    cluster.tell_clocks(*(days * day_ms for days in told))
    clocks = WallClocks(cluster.coordinator, KEYS, Ahead())
    assert Ahead().wall_ms() - await clocks.agreed_ms() == max(0, ahead * day_ms - 120_000)
