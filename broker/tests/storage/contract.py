"""What every storage must do, over a harness: the same cases for each implementation.

A module that has a `harness` fixture imports the functions of this one. `harness.storage` is open and recovered;
`harness.reopen(crash=...)` gives what a start finds after an end in good order, or after one where only what was
reported durable need be there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import pytest
from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.chain import Opening, Seal, create, remove_eligible, seal_and_open, trim
from seriatim_broker.core.values.keyed import (
    SETTINGS_DEFAULT,
    ConsumerGroupSettings,
    ConsumerMode,
    Exhausted,
    RetryPolicy,
)
from seriatim_broker.core.values.log import (
    Batch,
    CursorState,
    DropBlock,
    DropCursor,
    DropPartition,
    DropPreparation,
    DropSegment,
    DueRow,
    HandOverId,
    HandOverState,
    LedgerChange,
    LedgerRow,
    PutBatch,
    PutBlock,
    PutChain,
    PutCursor,
    PutHandOver,
    PutLedger,
    PutPreparation,
    PutSegment,
    PutTailCopy,
    RecoveredPartition,
    Rewrite,
    StoredVolley,
    TailCopy,
    TrimLog,
    Truncate,
    Write,
)
from seriatim_broker.core.values.positions import BatchPlace, Measure
from seriatim_broker.core.values.producers import (
    BlockName,
    Entry,
    IdleBlock,
    ProducerTable,
    Table,
    entries_of,
    pack_window,
)
from seriatim_broker.core.values.segment import Start
from seriatim_broker.interfaces.storage import Storage

from .build import SegmentBuilder, preparation, segment_record

_DEADLINE_S = 20.0
MIB = 1 << 20


class Harness(Protocol):
    """A storage under test."""

    @property
    def storage(self) -> Storage:
        """The storage, open and recovered."""

    @property
    def recovered(self) -> dict[int, RecoveredPartition]:
        """What the last start found."""

    async def reopen(self, *, crash: bool) -> None:
        """End the storage and open it again."""

    async def durable(self, ticket: int) -> None:
        """Wait until a ticket is reported durable."""


async def put(harness: Harness, writes: Sequence[Write]) -> None:
    """Submit, and wait until it is durable."""
    await harness.durable(harness.storage.submit(writes))


async def read_all(harness: Harness, builder: SegmentBuilder, from_index: int = 0, max_bytes: int = MIB) -> list[Batch]:
    """Read a segment to its end, in as many reads as it takes."""
    found: list[Batch] = []
    index = from_index
    while True:
        until = 1 << 40
        some = await harness.storage.read(builder.partition, builder.segment, index, until, max_bytes)
        if not some:
            return found
        found.extend(some)
        index = some[-1].header.end_index


async def test_an_empty_storage_has_nothing(harness: Harness) -> None:
    assert harness.recovered == {}
    assert await harness.storage.read(PartitionId(1), 1, 0, 10, MIB) == []
    assert not harness.storage.is_saturated


async def test_tickets_grow_by_one_and_are_reported_in_order(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    tickets = [harness.storage.submit([PutSegment(builder.partition, segment_record())])]
    tickets += [harness.storage.submit([builder.put()]) for _ in range(10)]
    assert tickets == list(range(tickets[0], tickets[0] + 11))
    await harness.durable(tickets[-1])


async def test_what_is_submitted_can_be_read_at_once(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    harness.storage.submit([PutSegment(builder.partition, segment_record()), builder.put(), builder.put()])
    assert await read_all(harness, builder) == builder.batches


async def test_a_read_begins_with_the_batch_that_holds_the_index(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record()), *(builder.put(count=10) for _ in range(5))])
    for crash in (False, True):
        found = await harness.storage.read(builder.partition, 1, 25, 41, MIB)
        assert [batch.header.base_index for batch in found] == [20, 30, 40]
        assert await harness.storage.read(builder.partition, 1, 50, 60, MIB) == []
        await harness.reopen(crash=crash)


async def test_a_read_gives_at_least_one_batch_and_no_more_than_fit(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record()), *(builder.put(1000) for _ in range(5))])
    for crash in (False, True):
        assert len(await harness.storage.read(builder.partition, 1, 0, 5, 1)) == 1
        assert len(await harness.storage.read(builder.partition, 1, 0, 5, 3 * (1000 + 192))) == 3
        assert len(await harness.storage.read(builder.partition, 1, 1, 3, MIB)) == 2
        await harness.reopen(crash=crash)


def _places(builder: SegmentBuilder) -> list[BatchPlace]:
    """Where each batch of a segment is, by counting."""
    places: list[BatchPlace] = []
    size_bytes = 0
    for batch in builder.batches:
        h = batch.header
        own = batch.size_bytes
        places.append(BatchPlace(h.base_index, h.end_index, size_bytes, own, h.append_time_ms, h.previous_checksum))
        size_bytes += own
    return places


async def test_a_batch_is_found_by_index_time_and_bytes(harness: Harness) -> None:
    builder, other = SegmentBuilder(1, 2), SegmentBuilder(1, 3, seed=1)
    writes: list[Write] = [PutSegment(builder.partition, segment_record(no)) for no in (2, 3)]
    for number in range(40):
        builder.time_ms = 1_000 + number // 3 * 10  # three batches have one time
        writes += [builder.put(50 + number, count=1 + number % 4), other.put()]
    await put(harness, writes)
    places = _places(builder)
    end = places[-1].end_index
    wanted = [(Measure.INDEX, index) for index in range(end + 2)]
    wanted += [(Measure.TIME, time_ms) for time_ms in (-5, 0, *range(995, 1_145, 5), 1 << 60)]
    wanted += [(Measure.BYTES, place.bytes_before + more) for place in places for more in (-1, 0, 1)]
    for crash in (False, True):
        for measure, value in wanted:
            for until in (end, end + 9, 33, 1, 0):
                found = await harness.storage.find(builder.partition, 2, until, measure, value)
                reached = [place for place in places if place.index < until and place.reaches(measure, value)]
                assert found == (reached[0] if reached else None), (measure, value, until)
        await harness.reopen(crash=crash)


async def test_what_was_trimmed_is_not_found_and_counts_as_bytes_before(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    writes: list[Write] = [PutSegment(builder.partition, segment_record())]
    for number in range(20):
        builder.time_ms = 1_000 + number
        writes.append(builder.put(50, count=2))
    await put(harness, writes)
    places = _places(builder)
    begin = Start(places[7].index, places[7].previous_checksum, places[7].bytes_before)
    trimmed = replace(segment_record(), begin=begin)
    await put(harness, [PutSegment(builder.partition, trimmed), TrimLog(builder.partition, 1, *begin[::2])])
    for crash in (False, True):
        for measure, value in ((Measure.INDEX, 0), (Measure.TIME, 0), (Measure.BYTES, 0), (Measure.TIME, 1_006)):
            assert await harness.storage.find(builder.partition, 1, 40, measure, value) == places[7]
        assert await harness.storage.find(builder.partition, 1, 40, Measure.TIME, 1_013) == places[13]
        assert await harness.storage.find(builder.partition, 1, 14, Measure.INDEX, 0) is None
        await harness.reopen(crash=crash)


async def test_nothing_is_found_in_a_segment_that_is_not_there(harness: Harness) -> None:
    assert await harness.storage.find(PartitionId(1), 1, 10, Measure.INDEX, 0) is None
    await put(harness, [PutSegment(PartitionId(1), segment_record())])
    assert await harness.storage.find(PartitionId(1), 1, 10, Measure.TIME, 0) is None


async def test_everything_durable_is_found_again(harness: Harness) -> None:
    builder = SegmentBuilder(5, 2)
    first = builder.put(count=3)
    tail = TailCopy(1, 4, 6, _tail_batches(5))
    writes: list[Write] = [
        PutSegment(builder.partition, segment_record(2)),
        PutPreparation(builder.partition, preparation(2, tail=tail)),
        PutPreparation(builder.partition, preparation(3, attempt=b"another", voided=True)),
        PutTailCopy(builder.partition, tail),
        PutCursor(builder.partition, CursorState(2, "billing", 1, 2, 3, settings=SETTINGS_DEFAULT)),
        first,
        builder.put(count=2, commit=3),
    ]
    await put(harness, writes)
    for crash in (True, False):
        await harness.reopen(crash=crash)
        found = harness.recovered[5]
        (segment,) = found.segments
        assert segment.record == segment_record(2)
        assert (segment.tail, segment.tail_checksum) == (5, builder.checksum)
        assert segment.commit == 3
        assert segment.last_append_ms == builder.batches[1].header.append_time_ms
        assert segment.uncommitted == (builder.batches[1],)
        assert segment.windows == ((builder.producer, builder.window),)
        assert {p.switch_attempt for p in found.preparations} == {preparation(2).switch_attempt, b"another"}
        assert preparation(2, tail=tail) in found.preparations
        assert found.tail_copies == (tail,)
        assert found.cursors == (CursorState(2, "billing", 1, 2, 3, settings=SETTINGS_DEFAULT),)


async def test_a_dropped_cursor_stays_dropped_and_the_others_stay(harness: Harness) -> None:
    at = PartitionId(5)
    cursors = [
        CursorState(no, group, 1, 2, 3, settings=SETTINGS_DEFAULT)
        for no, group in ((1, "billing"), (2, "bill"), (2, "billing"))
    ]
    await put(harness, [PutSegment(at, segment_record(2)), *(PutCursor(at, cursor) for cursor in cursors)])
    await put(harness, [DropCursor(at, 2, "billing"), DropCursor(at, 9, "never")])
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert harness.recovered[5].cursors == tuple(cursors[:2])


async def test_rows_of_a_ledger_follow_their_control_record(harness: Harness) -> None:
    at = PartitionId(5)
    settings = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, RetryPolicy(5, exhausted=Exhausted.PARK_KEY), True)
    billing = CursorState(2, "billing", 1, 2, 3, 7, 9, settings=settings, term_base=40, serial=12)
    other = CursorState(2, "bill", 1, 2, 3, 7, 9, settings=SETTINGS_DEFAULT)
    both = LedgerChange(((b"b1", b"bits"), (b"kx", b"\0\1")), is_full=True)
    handed = HandOverState(2, "billing", 1, HandOverId(6, 4), ((b"kx", b"row"), (b"g1", b"")))
    await put(harness, [PutSegment(at, segment_record(2)), PutHandOver(at, handed), PutLedger(at, other, both)])
    await harness.reopen(crash=True)
    assert harness.recovered[5].handoffs == (handed,)
    await put(harness, [PutLedger(at, billing, both)])
    await put(harness, [PutLedger(at, billing, LedgerChange(((b"ky", b"more"),), (b"b1", b"never")))])
    mine = tuple(LedgerRow(2, "billing", name, value) for name, value in ((b"kx", b"\0\1"), (b"ky", b"more")))
    theirs = tuple(LedgerRow(2, "bill", name, value) for name, value in both.puts)
    for crash in (True, False):
        await harness.reopen(crash=crash)
        found = harness.recovered[5]
        assert found.cursors == (other, billing)
        assert found.ledger_rows == (*theirs, *mine)
        assert found.handoffs == (), "a full change takes the place of what was handed over"
    await put(
        harness, [PutLedger(at, billing, LedgerChange(((b"kz", b"new"),), is_full=True)), DropCursor(at, 2, "bill")]
    )
    await harness.reopen(crash=True)
    assert harness.recovered[5].cursors == (billing,)
    assert harness.recovered[5].ledger_rows == (LedgerRow(2, "billing", b"kz", b"new"),)


async def test_idle_blocks_are_there_until_they_are_dropped(harness: Harness) -> None:
    at = PartitionId(5)
    window = pack_window([Entry(0, 0, 1, 7)], 8)
    one, other = (IdleBlock.of([(bytes([number]) * 16, window)]) for number in (1, 2))
    table = Table(b"", (BlockName(one.id, 1, 8, 0),))
    named = replace(preparation(2), table=table)
    await put(harness, [PutBlock(at, one.id, one.data), PutBlock(at, other.id, other.data), PutPreparation(at, named)])
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert set(harness.recovered[5].blocks) == {one.data, other.data}
        assert harness.recovered[5].preparations == (named,)
    await put(harness, [DropBlock(at, other.id)])
    await harness.reopen(crash=True)
    assert harness.recovered[5].blocks == (one.data,)
    await put(harness, [DropPartition(at)])
    await harness.reopen(crash=True)
    assert 5 not in harness.recovered


async def test_a_sealed_segment_has_nothing_uncommitted(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record()), builder.put(), builder.put()])
    await put(harness, [PutSegment(builder.partition, segment_record(sealed_len=2, fenced=True))])
    await harness.reopen(crash=True)
    (segment,) = harness.recovered[1].segments
    assert (segment.tail, segment.commit, segment.uncommitted) == (2, 2, ())


async def test_a_segment_without_batches_is_found(harness: Harness) -> None:
    await put(harness, [PutSegment(PartitionId(1), segment_record())])
    await harness.reopen(crash=True)
    (segment,) = harness.recovered[1].segments
    assert (segment.tail, segment.tail_checksum, segment.commit, segment.uncommitted) == (0, 0, 0, ())


async def test_every_producer_has_its_newest_window(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    builder.producer = b"a" * 16
    writes: list[Write] = [PutSegment(builder.partition, segment_record()), *(builder.put() for _ in range(40))]
    first = builder.window
    builder.producer = b"b" * 16
    await put(harness, [*writes, builder.put()])
    await harness.reopen(crash=True)
    assert harness.recovered[1].segments[0].windows == ((b"a" * 16, first), (b"b" * 16, builder.window))


async def test_producer_that_a_batch_says_is_forgotten_is_gone(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record()), builder.put()])
    gone = builder.put()
    windows = ((builder.producer, None), (b"f" * 16, builder.window))
    await put(harness, [replace(gone, windows=windows)])
    await harness.reopen(crash=True)
    assert harness.recovered[1].segments[0].windows == ((b"f" * 16, builder.window),)


async def test_what_was_cut_stays_away_and_what_follows_wins(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record()), *(builder.put(count=2) for _ in range(6))])
    windows = ((builder.producer, pack_window(entries_of(builder.window)[:2])),)
    await put(harness, [Truncate(builder.partition, 1, 4, windows)])
    builder.rewind(4)
    assert await read_all(harness, builder) == builder.batches
    await harness.reopen(crash=True)
    assert harness.recovered[1].segments[0].windows == windows
    assert harness.recovered[1].segments[0].tail == 4
    assert await read_all(harness, builder) == builder.batches
    # Longer batches over the place of what was cut: index 6 must now be inside a batch, not the beginning of one.
    await put(harness, [builder.put(count=5)])
    assert await read_all(harness, builder) == builder.batches
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert harness.recovered[1].segments[0].tail == 9
        assert await read_all(harness, builder) == builder.batches


async def test_cutting_and_putting_in_one_submit(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    writes: list[Write] = [PutSegment(builder.partition, segment_record()), builder.put(), builder.put()]
    builder.rewind(0)
    builder.table = ProducerTable()
    writes += [Truncate(builder.partition, 1, 0, None), builder.put(count=3)]
    await put(harness, writes)
    for crash in (True, False):
        assert await read_all(harness, builder) == builder.batches
        await harness.reopen(crash=crash)
        assert harness.recovered[1].segments[0].windows == ((builder.producer, builder.window),)


async def test_a_cut_takes_away_only_the_windows_that_have_no_batch_left(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    writes: list[Write] = [PutSegment(builder.partition, segment_record()), builder.put()]
    kept = builder.window
    builder.producer = b"b" * 16
    await put(harness, [*writes, builder.put(), Truncate(builder.partition, 1, 1, ((builder.producer, None),))])
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert harness.recovered[1].segments[0].windows == ((b"p" * 16, kept),)


async def test_windows_of_what_was_cut_in_the_same_submit_stay_away(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    at = builder.partition
    await put(harness, [PutSegment(at, segment_record()), builder.put(), Truncate(at, 1, 0, None)])
    await harness.reopen(crash=True)
    assert harness.recovered[1].segments[0].windows == ()
    builder.rewind(0)
    await put(harness, [builder.put(), DropSegment(at, 1), PutSegment(at, segment_record())])
    await harness.reopen(crash=True)
    assert harness.recovered[1].segments[0].windows == ()


async def test_tail_copies_are_read_where_the_log_ends(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    logged = [builder.put(count=2) for _ in range(3)]
    copied = tuple(builder.batch(count=2) for _ in range(3))
    at = builder.partition
    await put(harness, [PutSegment(at, segment_record()), *logged])
    harness.storage.submit([PutPreparation(at, preparation(2, tail=TailCopy(1, 4, 12, (builder.batches[2], *copied))))])
    for crash in (True, False):
        assert await read_all(harness, builder) == builder.batches
        assert await read_all(harness, builder, from_index=9) == builder.batches[4:]
        assert await harness.storage.read(at, 1, 0, 8, MIB) == builder.batches[:4]
        await put(harness, [PutCursor(at, CursorState(1, "g", 1, 0, 0, settings=SETTINGS_DEFAULT))])
        await harness.reopen(crash=crash)
    await put(harness, [DropPreparation(at, 2, preparation(2).switch_attempt)])
    assert await read_all(harness, builder) == builder.batches[:3]


async def test_a_tail_copy_is_read_without_a_log(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    for _ in range(4):
        builder.batch()
    await put(harness, [PutTailCopy(builder.partition, TailCopy(1, 2, 4, tuple(builder.batches[2:])))])
    for crash in (True, False):
        assert await harness.storage.read(builder.partition, 1, 2, 4, MIB) == builder.batches[2:]
        assert await harness.storage.read(builder.partition, 1, 1, 4, MIB) == []
        await harness.reopen(crash=crash)


async def test_tail_copies_that_do_not_touch_stand_beside_each_other(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    for _ in range(6):
        builder.batch()
    at, batches = builder.partition, builder.batches
    one, other = TailCopy(1, 4, 6, tuple(batches[4:])), TailCopy(1, 1, 2, tuple(batches[1:2]))
    longer = TailCopy(1, 1, 3, tuple(batches[1:3]))
    await put(harness, [PutTailCopy(at, one), PutTailCopy(at, other, 1), PutTailCopy(at, longer, 1)])
    for crash in (True, False):
        assert await harness.storage.read(at, 1, 4, 6, MIB) == batches[4:]
        assert await harness.storage.read(at, 1, 1, 3, MIB) == batches[1:3]
        await harness.reopen(crash=crash)
        assert harness.recovered[at].tail_copies == (one, longer)
    await put(harness, [DropSegment(at, 1)])
    await harness.reopen(crash=True)
    assert at not in harness.recovered or harness.recovered[at].tail_copies == ()


async def test_a_dropped_segment_is_gone_and_may_come_again(harness: Harness) -> None:
    builder, other = SegmentBuilder(1, 1), SegmentBuilder(1, 2)
    at = builder.partition
    await put(harness, [PutSegment(at, segment_record(1)), *(builder.put() for _ in range(4))])
    await put(
        harness,
        [
            PutSegment(at, segment_record(2)),
            other.put(),
            PutCursor(at, CursorState(1, "g", 1, 1, 1, settings=SETTINGS_DEFAULT)),
        ],
    )
    await put(harness, [DropSegment(at, 1)])
    for crash in (True, False):
        assert await read_all(harness, builder) == []
        assert await read_all(harness, other) == other.batches
        await harness.reopen(crash=crash)
        assert [segment.record.no for segment in harness.recovered[1].segments] == [2]
        assert harness.recovered[1].cursors == ()
    builder.rewind(0)
    await put(harness, [PutSegment(at, segment_record(1)), builder.put(count=2)])
    for crash in (True, False):
        assert await read_all(harness, builder) == builder.batches
        await harness.reopen(crash=crash)


async def test_a_dropped_partition_is_gone_and_its_neighbours_stay(harness: Harness) -> None:
    builders = [SegmentBuilder(partition) for partition in (6, 7, 8)]
    for builder in builders:
        writes: list[Write] = [PutSegment(builder.partition, segment_record()), builder.put()]
        writes.append(PutCursor(builder.partition, CursorState(1, "g", 1, 1, 1, settings=SETTINGS_DEFAULT)))
        writes.append(PutPreparation(builder.partition, preparation(2)))
        await put(harness, writes)
    await put(harness, [DropPartition(PartitionId(7))])
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert sorted(harness.recovered) == [6, 8]
        assert await read_all(harness, builders[1]) == []
        assert await read_all(harness, builders[2]) == builders[2].batches


async def test_a_submit_is_kept_whole_or_not_at_all(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    for _ in range(20):
        index = builder.index
        harness.storage.submit(
            [
                builder.put(300),
                PutCursor(builder.partition, CursorState(1, "g", 1, index + 1, index + 1, settings=SETTINGS_DEFAULT)),
            ]
        )
    await asyncio.sleep(0)
    await harness.reopen(crash=True)
    found = harness.recovered[1]
    acked = found.cursors[0].acked if found.cursors else 0
    assert acked == found.segments[0].tail


def _tail_batches(partition: int) -> tuple[Batch, ...]:
    builder = SegmentBuilder(partition, 1)
    for _ in range(6):
        builder.batch()
    return tuple(builder.batches[4:])


# ---- the chain record ----


async def test_the_chain_record_is_found_as_it_was_learned_last(harness: Harness) -> None:
    """A head and the segments that changed since are written; what a start finds is everything."""
    at = PartitionId(7)
    members = (MemberId("g0-0", "a" * 32), MemberId("g0-1", "b" * 32))
    others = (MemberId("g1-0", "c" * 32), MemberId("g1-1", "d" * 32))
    first = create(at, "t", 0, True, ("g0", "g1"), Opening(b"1" * 16, "g0", members, 3, False), 5)
    seal = Seal(4, 9, members[0], members, None, (), 0)
    second = seal_and_open(first, seal, Opening(b"2" * 16, "g1", others, 1, True), 6)
    third = remove_eligible(second, 1, [members[1]])
    await put(harness, [PutChain(at, first, (1,))])
    await put(harness, [PutChain(at, second, (1, 2))])
    await put(harness, [PutChain(at, third, (1,))])
    await harness.reopen(crash=True)
    assert harness.recovered[at].chain == third
    kept = trim(third, 2, None, 2)
    await put(harness, [DropSegment(at, 1), PutChain(at, kept, (), (1,))])
    await harness.reopen(crash=True)
    assert harness.recovered[at].chain == kept
    empty = Seal(0, 0, others[0], others, None, (), 0)
    fourth = seal_and_open(kept, empty, Opening(b"3" * 16, "g0", members, 3, False), 7)
    fifth = seal_and_open(fourth, empty, Opening(b"4" * 16, "g1", others, 1, False), 8)
    await put(harness, [PutChain(at, fourth, (2, 3)), PutChain(at, fifth, (3, 4), (2,))])
    await harness.reopen(crash=True)
    assert harness.recovered[at].chain == fifth
    assert fifth.is_folded(2)
    await put(harness, [DropPartition(at)])
    await harness.reopen(crash=True)
    assert at not in harness.recovered


async def test_batches_written_again_are_read_and_found_as_before(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    for _ in range(9):
        await put(harness, [builder.put(1000, commit=builder.index)])
    for at in (0, 4, 7):
        await put(
            harness, [Rewrite(builder.partition, builder.segment, tuple(builder.batches[at : at + 4][: 7 - at or 2]))]
        )
    assert await read_all(harness, builder) == builder.batches
    for crash in (True, False):
        await harness.reopen(crash=crash)
        assert await read_all(harness, builder) == builder.batches
        assert harness.recovered[builder.partition].segments[0].tail == builder.index
        await put(harness, [builder.put(1000, commit=builder.index)])
        assert await read_all(harness, builder) == builder.batches


# ---- readers that continue where they ended ------------------------------------------------------------------


class SequentialReader:
    """Reads as the broker does for a consumer: what is in memory at once, the rest from the disk."""

    def __init__(self, harness: Harness, builder: SegmentBuilder) -> None:
        self._harness = harness
        self._place = (builder.partition, builder.segment)
        self.index = 0

    async def read(self, max_bytes: int = 2500) -> list[Batch]:
        """The next batches; none at the end."""
        storage, until = self._harness.storage, 1 << 40
        found = storage.read_at_once(*self._place, self.index, until, max_bytes)
        if found is None:
            found = await storage.read(*self._place, self.index, until, max_bytes, sequential=True)
        if found:
            self.index = found[-1].header.end_index
        return found

    async def read_to_end(self, max_bytes: int = 2500) -> list[Batch]:
        """All that follows."""
        found: list[Batch] = []
        while some := await self.read(max_bytes):
            found += some
        return found


async def _filled(harness: Harness, count: int = 30, size_bytes: int = 1000) -> SegmentBuilder:
    builder = SegmentBuilder(1)
    await put(harness, [PutSegment(builder.partition, segment_record())])
    for _ in range(count):
        await put(harness, [builder.put(size_bytes, count=2)])
    return builder


async def test_a_sequential_reader_gets_everything_once(harness: Harness) -> None:
    builder = await _filled(harness)
    for crash in (False, True):
        for max_bytes in (1, 2500, MIB):
            assert await SequentialReader(harness, builder).read_to_end(max_bytes) == builder.batches
        await harness.reopen(crash=crash)


async def test_two_sequential_readers_do_not_disturb_each_other(harness: Harness) -> None:
    builder = await _filled(harness)
    one, other = SequentialReader(harness, builder), SequentialReader(harness, builder)
    found: tuple[list[Batch], list[Batch]] = ([], [])
    while len(found[0]) < len(builder.batches) or len(found[1]) < len(builder.batches):
        found[0].extend(await one.read())
        found[1].extend(await other.read(7000 if other.index > 20 else 2500))
    assert found == (builder.batches, builder.batches)


async def test_a_sequential_reader_gets_what_is_appended_meanwhile(harness: Harness) -> None:
    builder = await _filled(harness, 4)
    reader = SequentialReader(harness, builder)
    found = []
    for _ in range(20):
        found += await reader.read()
        await put(harness, [builder.put(1000)])
    assert found + await reader.read_to_end() == builder.batches


async def test_a_sequential_reader_never_gets_what_was_cut(harness: Harness) -> None:
    builder = await _filled(harness)
    reader = SequentialReader(harness, builder)
    found = [*await reader.read(), *await reader.read(), *await reader.read()]
    cut = reader.index + 2
    builder.rewind(cut)
    builder.table = ProducerTable()
    await put(harness, [Truncate(builder.partition, 1, cut, ()), *(builder.put(900) for _ in range(9))])
    assert found + await reader.read_to_end() == builder.batches


async def test_a_sequential_reader_never_gets_what_was_dropped(harness: Harness) -> None:
    builder = await _filled(harness)
    reader = SequentialReader(harness, builder)
    found = [*await reader.read(), *await reader.read(), *await reader.read()]
    await put(harness, [DropSegment(builder.partition, 1)])
    assert await reader.read() == []
    builder.rewind(0)
    builder.batches.clear()
    writes: list[Write] = [PutSegment(builder.partition, segment_record()), builder.put(count=reader.index)]
    await put(harness, [*writes, *(builder.put(900) for _ in range(9))])
    assert found + await reader.read_to_end() == found + builder.batches[1:]


async def test_a_sequential_reader_goes_on_in_what_was_written_again(harness: Harness) -> None:
    builder = await _filled(harness)
    reader = SequentialReader(harness, builder)
    found = [*await reader.read(), *await reader.read()]
    await put(harness, [Rewrite(builder.partition, 1, tuple(builder.batches[:10]))])
    found += await reader.read()
    await put(harness, [Rewrite(builder.partition, 1, tuple(builder.batches[10:]))])
    assert found + await reader.read_to_end() == builder.batches


async def test_a_sequential_reader_goes_on_in_the_tail_copy(harness: Harness) -> None:
    builder = await _filled(harness, 6)
    copied = tuple(builder.batch(1000, count=2) for _ in range(6))
    tail = TailCopy(1, 10, 24, (builder.batches[5], *copied))
    await put(harness, [PutTailCopy(builder.partition, tail)])
    for crash in (False, True):
        assert await SequentialReader(harness, builder).read_to_end() == builder.batches
        await harness.reopen(crash=crash)


# ---- delayed batches -----------------------------------------------------------------------------------------


class DelayedLog:
    """A segment's log, half of whose batches are delayed, under random changes."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self.harness = harness
        self.chance = random.Random(seed)
        self.builder = SegmentBuilder(1)
        self.at = self.builder.partition
        self.start = Start(0, 0, 0)

    def puts(self, count: int) -> list[Write]:
        """Writes of the next batches. Due times are few, so that batches have the same one."""
        kinds: list[dict[str, int]] = [{}, {"due_ms": 5, "origin": 9}, {"flags": FLAG_FIRED, "due_ms": 5, "origin": 9}]
        kinds += [{"due_ms": due} for due in (5, 6, 900)]
        return [
            self.builder.put(self.chance.randrange(90), self.chance.randrange(1, 4), **self.chance.choice(kinds))
            for _ in range(count)
        ]

    def record(self) -> list[Write]:
        """The segment's record, and the log's beginning if retention dropped something."""
        record: list[Write] = [PutSegment(self.at, replace(segment_record(), begin=self.start))]
        return record + ([TrimLog(self.at, 1, *self.start[::2])] if self.start.first else [])

    def cut(self) -> list[Write]:
        """Cut the log somewhere."""
        length = self.chance.choice([self.start.first, *(batch.header.end_index for batch in self.builder.batches)])
        self.builder.rewind(length)
        if not self.builder.batches:
            self.builder.checksum = self.start.checksum
        return [Truncate(self.at, 1, length, ())]

    def trim(self) -> list[Write]:
        """Retention drops some batches, or all."""
        batches = self.builder.batches
        count = self.chance.randrange(1, len(batches) + 1) if batches else 0
        if count:
            last = batches[count - 1].header
            size_bytes = self.start.size_bytes + sum(batch.size_bytes for batch in batches[:count])
            self.start = Start(last.end_index, last.checksum, size_bytes)
            self.builder.batches = batches[count:]
        return self.record()

    def start_over(self) -> list[Write]:
        """Let go of all batches, and begin again where retention left off."""
        self.builder.batches, self.builder.index, self.builder.checksum = [], *self.start[:2]
        return [Truncate(self.at, 1, 0, None), *self.record()]

    def drop(self) -> list[Write]:
        """Drop the segment or the partition, and make it again."""
        self.start = Start(0, 0, 0)
        self.builder.rewind(0)
        gone = self.chance.choice((DropSegment(self.at, 1), DropPartition(self.at)))
        return [gone, PutSegment(self.at, segment_record())]

    def rewrite(self) -> list[Write]:
        """Write the first batches again."""
        return [Rewrite(self.at, 1, tuple(self.builder.batches[:3]))] if self.builder.batches else []

    async def crash(self) -> None:
        """Crash with writes that are not durable: what is left is a first part of the log."""
        await put(self.harness, self.puts(1))
        self.harness.storage.submit(self.puts(3))
        await asyncio.sleep(0)
        await self.harness.reopen(crash=True)
        found = self.harness.recovered[self.at].segments[0]
        self.builder.rewind(found.tail)
        headers = [batch.header for batch in self.builder.batches if batch.header.flags & FLAG_DELAYED]
        assert found.delayed_until_ms >= max((header.due_time_ms for header in headers), default=0)
        if not self.builder.batches:
            self.builder.checksum = self.start.checksum

    async def check(self) -> None:
        """Compare what is read with what the batches say, page by page."""
        assert await read_all(self.harness, self.builder, self.start.first) == self.builder.batches
        delayed = (batch for batch in self.builder.batches if batch.header.flags & FLAG_DELAYED)
        rows = [
            DueRow(
                batch.header.due_time_ms, batch.header.base_index, batch.header.message_count, batch.size_bytes,
                batch.header.origin[1],
            )
            for batch in delayed
        ]  # fmt: skip
        storage, page = self.harness.storage, self.chance.randrange(1, 6)
        until_ms = self.chance.choice((4, 5, 6, 1_000))
        due: list[DueRow] = []
        while some := await storage.read_due(self.at, 1, due[-1][:2] if due else (0, 0), until_ms, page):
            assert len(some) <= page
            due += some
        assert due == sorted(row for row in rows if row.due_ms <= until_ms)
        index = self.chance.randrange(self.builder.index + 2)
        found: list[DueRow] = []
        while some := await storage.read_delayed(
            self.at, 1, found[-1].index + found[-1].message_count if found else index, page
        ):
            assert len(some) <= page
            found += some
        assert found == [row for row in rows if row.index + row.message_count > index]
        runs: list[StoredVolley] = []
        while some_runs := await storage.read_volleys(self.at, 1, runs[-1].index + 1 if runs else index, page):
            assert len(some_runs) <= page
            runs += some_runs
        volleys = [volley for batch in self.builder.batches if (volley := StoredVolley.of(batch)) is not None]
        assert runs == [volley for volley in volleys if volley.index >= index]


@pytest.mark.parametrize("seed", range(6))
async def test_rows_of_delayed_batches_are_a_function_of_the_log(harness: Harness, seed: int) -> None:
    log = DelayedLog(harness, seed)
    neighbours = [SegmentBuilder(1, 2), SegmentBuilder(2)]
    await put(harness, [PutSegment(log.at, segment_record(2)), PutSegment(PartitionId(2), segment_record())])
    await put(harness, [builder.put(due_ms=6) for builder in neighbours])
    await put(harness, log.record())
    for _ in range(40):
        if log.chance.random() < 0.15:
            await log.crash()
        else:
            change = log.chance.choice((log.cut, log.cut, log.trim, log.trim, log.start_over, log.drop, log.rewrite))
            writes = log.puts(log.chance.randrange(5)) + change() + log.puts(log.chance.randrange(3))
            if DropPartition(log.at) in writes:
                writes += [PutSegment(log.at, segment_record(2)), PutBatch(log.at, neighbours[0].batches[0], 0, ())]
            if writes:
                ticket = harness.storage.submit(writes)
                await (harness.durable(ticket) if log.chance.random() < 0.7 else asyncio.sleep(0))
        await log.check()
        for builder in neighbours:
            rows = await harness.storage.read_due(builder.partition, builder.segment, (0, 0), 6, 9)
            assert rows == [DueRow(6, 0, 1, builder.batches[0].size_bytes)]


CASES: dict[str, Any] = {name: case for name, case in list(globals().items()) if name.startswith("test_")}
"""Every case, for a module to take up."""


async def test_a_trimmed_log_begins_at_its_start(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    at = builder.partition
    await put(harness, [PutSegment(at, segment_record()), *(builder.put(count=2) for _ in range(4))])
    below, batches = builder.batches[:2], builder.batches[2:]
    begin = Start(4, below[-1].header.checksum, sum(batch.size_bytes for batch in below))
    writes: list[Write] = [PutSegment(at, replace(segment_record(), begin=begin)), TrimLog(at, 1, 4, begin.size_bytes)]
    await put(harness, writes)
    for crash in (True, False):
        assert await harness.storage.read(at, 1, 4, 8, MIB) == batches
        assert await harness.storage.read(at, 1, 0, 8, MIB) == []
        place = await harness.storage.find(at, 1, 8, Measure.INDEX, 4)
        assert place is not None
        assert (place.index, place.bytes_before, place.previous_checksum) == (4, begin.size_bytes, begin.checksum)
        await harness.reopen(crash=crash)
        found = harness.recovered[at].segments[0]
        assert (found.tail, found.record.begin) == (8, begin)
        assert found.size_bytes == sum(batch.size_bytes for batch in builder.batches)
    await put(harness, [builder.put()])
    assert (await harness.storage.read(at, 1, 4, 9, MIB))[-1] == builder.batches[-1]


async def test_a_log_of_which_everything_was_dropped_goes_on(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    at = builder.partition
    await put(harness, [PutSegment(at, segment_record()), *(builder.put() for _ in range(3))])
    begin = Start(3, builder.checksum, sum(batch.size_bytes for batch in builder.batches))
    await put(harness, [PutSegment(at, replace(segment_record(), begin=begin)), TrimLog(at, 1, 3, begin.size_bytes)])
    for crash in (True, False):
        assert await harness.storage.read(at, 1, 0, 3, MIB) == []
        await harness.reopen(crash=crash)
        found = harness.recovered[at].segments[0]
        assert (found.tail, found.tail_checksum, found.commit, found.size_bytes) == (
            3, begin.checksum, 3, begin.size_bytes,
        )  # fmt: skip
    await put(harness, [builder.put(), builder.put()])
    for crash in (True, False):
        assert await harness.storage.read(at, 1, 3, 5, MIB) == builder.batches[3:]
        await harness.reopen(crash=crash)


async def test_a_copy_begins_behind_what_was_dropped(harness: Harness) -> None:
    builder = SegmentBuilder(1)
    at = builder.partition
    await put(harness, [PutSegment(at, segment_record()), builder.put()])
    builder.batch()
    begin = Start(2, builder.checksum, sum(batch.size_bytes for batch in builder.batches))
    record = replace(segment_record(), begin=begin, copied_from=2)
    writes: list[Write] = [Truncate(at, 1, 0, None), PutSegment(at, record), TrimLog(at, 1, 2, begin.size_bytes)]
    await put(harness, writes)
    await put(harness, [builder.put(), builder.put()])
    for crash in (True, False):
        assert await harness.storage.read(at, 1, 2, 4, MIB) == builder.batches[2:]
        assert await harness.storage.read(at, 1, 0, 4, MIB) == []
        await harness.reopen(crash=crash)
        found = harness.recovered[at].segments[0]
        assert (found.tail, found.record.copied_from) == (4, 2)
        assert found.size_bytes == sum(batch.size_bytes for batch in builder.batches)


async def test_the_durable_sequence_grows_and_outlives_an_end(harness: Harness) -> None:
    """A start refuses a disk that ends below what was noted of it."""
    builder = SegmentBuilder(1)
    noted = [harness.storage.durable_sequence]
    await put(harness, [PutSegment(builder.partition, segment_record())])
    for crash in (True, False, True):
        await put(harness, [builder.put()])
        noted.append(harness.storage.durable_sequence)
        await harness.reopen(crash=crash)
        assert harness.storage.durable_sequence >= noted[-1] > noted[-2]
