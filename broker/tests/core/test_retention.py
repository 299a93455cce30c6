"""Retention: what may go, in which order, and what readers and copies are notified."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.consumers.groups import beginning, operations
from seriatim_broker.core.control import retention
from seriatim_broker.core.control.retention import Limits, Reader
from seriatim_broker.core.copies import producer_tables
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, declare_lost, settle, trim
from seriatim_broker.core.values.chain import Seal as ChainSeal
from seriatim_broker.core.values.keyed import ConsumerMode, WantedSettings
from seriatim_broker.core.values.log import DropPreparation, PutSegment, RecoveredPartition, TrimLog, Truncate
from seriatim_broker.core.values.positions import Place, first_kept, is_dropped
from seriatim_broker.core.values.producers import NO_TABLE
from seriatim_broker.core.values.segment import SegmentState, Start

from .support import (
    DONE,
    GROUP,
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    MS,
    TOPIC,
    Bench,
    P,
    Serving,
    batches_of,
    checksum_of,
    filled,
    first_chain,
    opened_master,
    prepared,
    recovered,
    sealed_chain,
    unsettled_chain,
)
from .test_modes import configuring

BATCHES = batches_of(1, [2, 1, 2])
SIZE_BYTES = sum(batch.size_bytes for batch in BATCHES)


def start_at(index: int) -> Start:
    """Where the segment begins after the batches that end there."""
    below = tuple(batch for batch in BATCHES if batch.header.end_index <= index)
    return Start(index, checksum_of(below), sum(batch.size_bytes for batch in below))


def three_sealed(sizes_bytes: tuple[int, ...] = (100, 100, 100), sealed_at_ms: tuple[int, ...] = (10, 20, 30)) -> Chain:
    """Segments 1 to 3 are sealed, with five messages each, and 4 is open."""
    chain = first_chain()
    for _ in sizes_bytes:
        chain = sealed_chain(chain, 5, 7, (M10, M11))
    told = zip(chain.segments, sizes_bytes, sealed_at_ms, strict=False)
    changed = [replace(segment, sealed_bytes=size, sealed_at_ms=at) for segment, size, at in told]
    return replace(chain, segments=(*changed, chain.open_segment))


# ---- what may go ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        (Limits(), 1),
        (Limits(age_ms=80), 3),  # sealed at 20 and before, it is 100 now
        (Limits(age_ms=1), 4),
        (Limits(size_bytes=250), 2),  # the open one has 50, 2 and 3 have 100 each
        (Limits(size_bytes=150), 3),
        (Limits(size_bytes=149), 3),
        (Limits(size_bytes=50), 4),
        (Limits(age_ms=95, size_bytes=250), 2),
    ],
)
def test_sealed_segments_go_as_a_whole_by_age_and_by_size(limits: Limits, first: int) -> None:
    assert retention.first_segment(three_sealed(), limits, 100, 50) == first


def test_nothing_goes_that_has_no_length_yet() -> None:
    chain = unsettled_chain(sealed_chain(first_chain(), 5, 7, (M10, M11)), (M20, M21))
    assert retention.first_segment(chain, Limits(age_ms=1), 10**9, 0) == 2
    assert trim(chain, 2, None, 1).segments[0].is_stub
    with pytest.raises(AssertionError):
        trim(chain, 3, None, 1)


def reader_at(group: str, no: int, index: int, *, is_spared: bool = True) -> Reader:
    return Reader(group, no, make_offset(no, index), is_spared=is_spared, kept=make_offset(no, index))


def test_what_a_group_has_not_read_can_be_spared() -> None:
    readers = [reader_at("a", 2, 3), reader_at("b", 3, 0)]
    assert retention.first_unread(readers, make_offset(4, 9)) == make_offset(2, 3)
    assert retention.first_unread(readers, make_offset(1, 9)) == make_offset(1, 9)


def test_a_stub_stays_while_a_group_stands_in_or_before_it() -> None:
    chain = trim(three_sealed(), 4, None, 1)
    assert retention.first_kept(chain, 4, [Reader("a", 2, make_offset(2, 3))]) == 2
    assert retention.first_kept(chain, 4, []) == 4
    assert retention.to_pass(chain, [Reader("a", 2, 0), Reader("b", 4, 0)]) == [(2, "a")]


def test_a_stub_stays_while_readers_need_its_producer_table() -> None:
    chain = unsettled_chain(first_chain(), (M10, M11))
    chain = settle(chain, 1, ChainSeal(5, 7, M00, (M00, M01), None, (), 0))
    chain = sealed_chain(chain, 5, 7, (M20, M21))
    assert chain.segments[1].incomplete_table
    assert retention.first_kept(chain, 3, []) == 3
    assert retention.first_kept(chain, 2, []) == 1
    assert retention.limited_by_tables(chain, 3) == 3
    alone = replace(chain, segments=(replace(chain.segments[0], eligible=(M00,)), *chain.segments[1:]))
    assert retention.limited_by_tables(alone, 3) == 1


def test_a_stub_before_the_open_segment_leaves_and_members_keep_its_table() -> None:
    chain = trim(three_sealed(), 4, None, 1)
    assert [producer_tables.is_kept(chain, no) for no in (1, 2, 3)] == [False, False, True]
    assert retention.first_kept(chain, 4, []) == 4


def test_a_stub_stays_while_its_table_is_needed_behind_a_lost_segment() -> None:
    """Rule `tables-leave`: a lost segment has no table of its own."""
    chain = sealed_chain(first_chain(), 5, 7, (M10, M11))
    chain = declare_lost(unsettled_chain(chain, (M20, M21)), 2)
    assert chain.segments[2].incomplete_table
    assert retention.first_kept(chain, 3, []) == 1


def test_a_lost_segment_stays_until_a_group_has_read_behind_it() -> None:
    chain = declare_lost(three_sealed(), 2)
    assert retention.first_kept(chain, 4, [Reader("a", 3, make_offset(3, 0))]) == 2
    assert retention.first_kept(chain, 4, [Reader("a", 4, make_offset(4, 0))]) == 4


def test_what_is_dropped_behind_a_lost_segment_is_gone_for_readers() -> None:
    """Rule `dropped-behind-loss`."""
    chain = trim(declare_lost(three_sealed(), 1), 3, None, 1)
    assert [(segment.no, segment.is_stub) for segment in chain.segments[:2]] == [(1, False), (2, True)]
    assert first_kept(chain).segment_no == 1
    assert first_kept(chain, 2) == Place(3, 0)
    assert is_dropped(chain, Place(2, 1), first_kept(chain, 2))
    assert first_kept(chain, 9).segment_no == chain.open_segment.no


def test_a_long_past_goes_in_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STUBS_PER_TRIM_MAX", 2)
    chain = three_sealed()
    assert retention.cut(chain, 4, start_at(2), 4) == (3, None, 3)
    assert retention.cut(trim(chain, 3, None, 3), 4, start_at(2), 4) == (4, start_at(2), 4)


def test_a_record_says_what_is_left_and_positions_stay() -> None:
    chain = trim(three_sealed(), 3, Start(2, 9, 40), 1)
    assert [(segment.start, segment.is_stub) for segment in chain.segments] == [
        (5, True), (5, True), (2, False), (0, False),
    ]  # fmt: skip
    assert [segment.base for segment in chain.segments] == [0, 5, 10, 15]
    assert [segment.no for segment in trim(chain, 3, None, 3).segments] == [3, 4]


# ---- the master decides ---------------------------------------------------------------------------------


def leading() -> Bench:
    """A master whose log holds five messages, all of them flushed by both members."""
    bench = opened_master()
    for sequence, count in ((0, 2), (2, 1), (3, 2)):
        bench.append(sequence, count, starts=sequence == 0)
    bench.persist()
    bench.ack(M01, 5, durable=5)
    return bench


def decided(bench: Bench, start: Start, revision: int = 77) -> ev.Trim:
    """To begin there."""
    assert bench.part.chain is not None
    return ev.Trim(P, bench.part.chain.epoch, 1, start, 1, revision)


def own_start(bench: Bench, index: int) -> Start:
    """Where this bench's log could begin."""
    log = bench.part.logs[1]
    checksum = log.checksum_at(index) if index == log.tail else 0
    return Start(index, checksum, log.size_at(log.tail))


def test_the_master_says_what_it_leads_and_how_far_every_member_has_flushed() -> None:
    bench = leading()
    bench.do(ev.ListLed(9, 0, 10))
    [listed] = bench.all(fx.LedListed)
    [led] = listed.led
    assert (led.partition, led.flushed, led.chain) == (P, 5, bench.part.chain)
    assert led.size_bytes == bench.part.logs[1].size_bytes > 0


def test_the_record_is_written_first_and_compares_the_cursors() -> None:
    bench = leading()
    bench.do(decided(bench, own_start(bench, 5)))
    [write] = [write for write in bench.all(fx.WriteChain) if write.chain.open_segment.start]
    assert (write.cursors_revision, write.chain.open_segment.start) == (77, 5)
    assert not bench.writes(TrimLog)
    bench.written(DONE)
    assert [(drop.segment_no, drop.below) for drop in bench.writes(TrimLog)] == [(1, 5)]
    assert bench.part.logs[1].start == 5
    assert bench.writes(PutSegment)[-1].segment.begin.first == 5


@pytest.mark.parametrize("why", ["an older record", "a switch"])
def test_the_master_leaves_it_to_the_next_look(why: str) -> None:
    bench = leading()
    event = decided(bench, own_start(bench, 5))
    if why == "an older record":
        event = replace(event, epoch=event.epoch - 1)
    else:
        bench.do(ev.PlanSwitch(3, P))
    bench.do(event)
    assert not [write for write in bench.all(fx.WriteChain) if write.chain.open_segment.start]


# ---- members and copies ---------------------------------------------------------------------------------


def away(have: int) -> Bench:
    """A slave comes back with the first batches of a segment that was sealed and trimmed meanwhile."""
    table = prepared(1, (M00, M01))
    found = RecoveredPartition(P, (recovered(1, BATCHES[:have]),), (table,))
    bench = Bench(M01, 2, (found,))
    bench.link(M00)
    bench.link(M20)
    bench.read_chain(trimmed(3))
    bench.persist()
    return bench


def trimmed(index: int) -> Chain:
    """Segment 1 is sealed and begins there; the next one is open on the third group."""
    chain = sealed_chain(first_chain(), 5, checksum_of(BATCHES), (M20, M21), eligible=(M00,))
    first = replace(chain.segments[0], sealed_bytes=SIZE_BYTES)
    return trim(replace(chain, segments=(first, chain.open_segment)), 1, start_at(index), 1)


def requests(bench: Bench) -> list[msg.CopyRequest]:
    """What it asked of others."""
    return bench.sent(msg.CopyRequest)


def test_a_member_that_ends_below_the_start_begins_there_and_not_at_zero() -> None:
    bench = away(1)
    log = bench.part.logs[1]
    assert (log.tail, log.start, log.record.copied_from) == (3, 3, 3)
    assert [cut.length for cut in bench.writes(Truncate)] == [0]
    assert bench.writes(DropPreparation), "what the segment was opened with is not the table as of its end"
    assert requests(bench)[-1].from_index == 3


def test_a_member_that_ends_behind_the_start_goes_on_from_its_own_tail() -> None:
    bench = away(2)
    assert (bench.part.logs[1].tail, bench.part.logs[1].record.copied_from) == (3, 0)
    assert [drop.below for drop in bench.writes(TrimLog)] == [3]
    assert not bench.writes(Truncate)


def test_such_a_copy_asks_for_the_table_as_of_the_end_when_it_has_the_batches() -> None:
    bench = away(1)
    given = {"partition": P, "segment_no": 1, "from_index": 3, "available": True, "batches": BATCHES[2:], "table": None}
    bench.hear(M00, filled(msg.CopyAnswer, **given))
    bench.persist()
    last = requests(bench)[-1]
    assert (last.from_index, last.want_table, last.want_end_table) == (5, False, True)
    given |= {"from_index": 5, "batches": (), "table": NO_TABLE}
    bench.hear(M00, filled(msg.CopyAnswer, **given, is_end_table=False))
    assert bench.part.logs[1].opened_with is None, "that is the table of the beginning"
    bench.wait(3_000_000, (M00, M20))
    bench.hear(M00, filled(msg.CopyAnswer, **given, is_end_table=True))
    bench.hear(M20, filled(msg.CopyAnswer, **given, is_end_table=True))
    assert bench.part.logs[1].opened_with is not None


def test_what_was_dropped_is_not_copied_to_others() -> None:
    bench = Serving(counts=(2, 1, 2))
    bench.read_chain(trim(known(bench), 1, start_at(3), 1))
    bench.link(M11)
    bench.hear(M11, filled(msg.CopyRequest, partition=P, segment_no=1, from_index=0, max_bytes=1000))
    assert [answer.available for answer in bench.sent(msg.CopyAnswer, M11)] == [False]


def test_a_copy_of_a_stub_counts_when_it_is_on_the_disk() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.do(ev.Heal(P, 1, M10, M01))
    bench.read_chain(trim(trimmed(3), 2, None, 1))
    log = bench.part.logs[1]
    assert log.is_in_sync
    assert log.durable < log.tail
    bench.persist()
    assert log.durable == log.tail


# ---- groups ---------------------------------------------------------------------------------------------


def begun() -> Serving:
    """A consumer has the grant, and room for nothing yet."""
    bench = Serving(counts=(2, 1, 2))
    bench.begin(credit=0)
    bench.clear()
    return bench


def known(bench: Bench) -> Chain:
    """The record that it knows."""
    assert bench.part.chain is not None
    return bench.part.chain


def drops(bench: Serving) -> list[tuple[int, int, int]]:
    """What consumers were told: from, to, how many."""
    return [(event.from_offset, event.to_index, event.messages) for event in bench.delivered(fx.Dropped)]


def test_a_reader_that_falls_behind_is_told_before_it_is_given_more() -> None:
    bench = begun()
    bench.read_chain(trim(known(bench), 1, start_at(3), 1))
    bench.do(ev.ConsumerCredit(1, 1 << 20))
    bench.deliver()
    assert drops(bench) == [(make_offset(1, 0), 3, 3)]
    assert bench.indexes() == [3, 4]
    told = [type(event) for event in (effect.event for effect in bench.all(fx.Deliver))]
    assert told.index(fx.Dropped) < told.index(fx.Batches)


def test_the_next_consumer_is_told_again_until_one_acknowledges_something_behind() -> None:
    bench = begun()
    bench.read_chain(trim(known(bench), 1, start_at(3), 1))
    bench.do(ev.ConsumerCredit(1, 1 << 20))
    bench.deliver()
    bench.do(ev.ConsumerLeave(1, 1))
    bench.join(2)
    bench.cursor()
    bench.deliver()
    assert len(drops(bench)) == 2
    bench.ack(3, subscription=2)
    bench.do(ev.ConsumerLeave(1, 2))
    bench.join(3)
    bench.cursor()
    bench.deliver()
    assert len(drops(bench)) == 2


def stubbed(bench: Serving) -> Chain:
    """The whole segment is dropped."""
    return trim(known(bench), 2, None, 1)


def test_a_group_crosses_a_stub_and_the_cursor_says_what_nobody_acknowledged() -> None:
    bench = begun()
    bench.read_chain(stubbed(bench))
    write = bench.all(fx.WriteCursor)[-1]
    assert (write.record.segment_no, write.record.dropped_from) == (2, make_offset(1, 0))
    assert drops(bench) == [(make_offset(1, 0), 5, 5)]


def working() -> Serving:
    """A consumer was sent the whole segment, another one stands by, and then the whole segment is dropped."""
    bench = begun()
    works(bench)
    return bench


def works(bench: Serving) -> None:
    bench.do(ev.ConsumerCredit(1, 1 << 20))
    bench.deliver()
    bench.join(2)
    bench.read_chain(stubbed(bench))


def done(bench: Serving, index: int) -> None:
    """The active consumer is done with all up to and including `index`."""
    bench.ack(index, bench.part.consumer_groups[GROUP].dispatcher.token)


def crossings(bench: Serving) -> list[int]:
    """The segments to which the group crosses."""
    return [write.record.segment_no for write in bench.all(fx.WriteCursor)]


def goes_on(bench: Serving) -> None:
    """Some time passes, and the other member is heard."""
    bench.wait(100 * MS, (M01,))
    bench.persist_everywhere()


def test_dropped_segment_is_left_when_its_reader_is_done() -> None:
    """Rule `works-on-dropped`."""
    bench = working()
    done(bench, 3)
    goes_on(bench)
    assert not crossings(bench), "the consumer works on 1:4"
    done(bench, 4)
    goes_on(bench)
    assert crossings(bench) == [2]


def test_dropped_segment_is_left_when_its_reader_leaves() -> None:
    bench = working()
    bench.do(ev.ConsumerLeave(1, 1))
    goes_on(bench)
    assert drops(bench) == [(make_offset(1, 0), 5, 5)], "the next one is notified"
    assert crossings(bench) == [2]


def test_reader_that_began_anew_is_waited_for_too() -> None:
    """The same consumer is active again, so what it was sent may still be on its way to its application."""
    bench = working()
    group = bench.part.consumer_groups[GROUP]
    group.look_again()
    bench.cursor()
    bench.persist_everywhere()
    goes_on(bench)
    assert drops(bench) == [(make_offset(1, 0), 5, 5)]
    assert not crossings(bench)
    done(bench, 4)
    goes_on(bench)
    assert crossings(bench) == [2]


def test_dropped_segment_is_left_without_a_reader_that_hangs() -> None:
    bench = begun()
    bench.core.state.config = replace(bench.config, dropped_work_us=1000 * MS)
    works(bench)
    for _ in range(9):
        goes_on(bench)
    done(bench, 0)
    for _ in range(9):
        goes_on(bench)
    assert not crossings(bench), "it acknowledged a message 900 ms ago"
    for _ in range(2):
        goes_on(bench)
    assert crossings(bench) == [2]
    active = bench.part.consumer_groups[GROUP].dispatcher.active
    assert active is not None
    assert active.name == "consumer-1", "it is not taken for gone"


def test_a_new_server_tells_what_the_cursor_says() -> None:
    bench = Serving(counts=(2, 1, 2))
    bench.begin(credit=0)
    bench.do(ev.ConsumerLeave(1, 1))
    bench.clear()
    bench.join(2)
    record = ev.CursorRecord(1, 1, 0, TOPIC, dropped_from=make_offset(1, 0), dropped_position=0)
    read = ev.CursorRead(P, GROUP, replace(record, group_epoch=2, start_index=2), 6)
    bench.do(read)
    for _ in range(2):  # a read that was under way, and the one that the note asks for
        bench.read_chain(bench.part.chain)
    bench.do(read)
    assert drops(bench) == [(make_offset(1, 0), 2, 2)]


def test_its_server_moves_a_group_on_that_has_no_consumer() -> None:
    bench = begun()
    bench.do(ev.ConsumerLeave(1, 1))
    bench.persist_everywhere()
    bench.read_chain(stubbed(bench))
    bench.do(ev.PassConsumerGroup(P, 1, GROUP))
    bench.cursor()
    [write] = [write for write in bench.all(fx.WriteCursor) if write.record.segment_no == 2]
    assert write.record.dropped_from == make_offset(1, 0)
    bench.do(ev.CursorWritten(P, GROUP, write.serial, DONE, 9))
    assert GROUP not in bench.part.consumer_groups


def test_another_broker_asks_the_server_to_move_a_group_on() -> None:
    bench = Serving(M01, counts=(2, 1, 2))
    bench.link(M00)
    bench.read_chain(stubbed(bench))
    bench.do(ev.PassConsumerGroup(P, 1, GROUP))
    assert bench.sent(msg.PassRequest, M00) == [msg.PassRequest(P, 1, GROUP)]
    assert not bench.all(fx.WriteCursor)


def test_a_group_that_has_messages_left_is_not_moved_on() -> None:
    bench = begun()
    bench.do(ev.ConsumerLeave(1, 1))
    bench.persist_everywhere()
    bench.do(ev.PassConsumerGroup(P, 1, GROUP))
    bench.cursor()
    assert not bench.all(fx.WriteCursor)
    assert GROUP not in bench.part.consumer_groups


def test_a_new_group_begins_where_the_partition_does_and_compares_the_record() -> None:
    bench = begun()
    bench.do(ev.ConsumerLeave(1, 1))
    bench.read_chain(trim(known(bench), 1, start_at(3), 1))
    bench.do(ev.ConsumerJoin(1, 2, P, "new", "consumer", ev.StartPosition.EARLIEST, False))
    bench.do(ev.CursorRead(P, "new", None, 0))
    [write] = [write for write in bench.all(fx.WriteCursor) if write.consumer_group == "new"]
    assert (write.record.segment_no, write.record.start_index) == (1, 3)
    assert write.chain_revision == bench.part.revision > 0


def test_a_new_group_begins_behind_the_stubs_that_another_group_keeps() -> None:
    bench = begun()
    bench.read_chain(stubbed(bench))
    bench.do(ev.ConsumerJoin(1, 2, P, "new", "consumer", ev.StartPosition.EARLIEST, False))
    bench.do(ev.CursorRead(P, "new", None, 0))
    [write] = [write for write in bench.all(fx.WriteCursor) if write.consumer_group == "new"]
    assert (write.record.segment_no, write.record.start_index) == (2, 0)


def test_a_segment_that_lost_its_state_is_no_stub() -> None:
    assert three_sealed().segments[0].state is SegmentState.SEALED
    assert not three_sealed().segments[0].is_stub


def test_what_a_broadcast_consumer_has_not_read_is_not_kept() -> None:
    readers = [reader_at("g/a", 2, 3, is_spared=False), reader_at("b", 3, 0)]
    assert retention.first_unread(readers, make_offset(4, 9)) == make_offset(3, 0)


# ---- a drop that is noted, and whose segment has left ---------------------------------------------------


def test_another_mode_keeps_the_position_of_a_drop_whose_segment_has_left() -> None:
    """Rule `new-mode-keeps-note`: the group stands at 3:0, and 1:1 to 3:1 are dropped."""
    chain = trim(three_sealed(), 3, start_at(2), 3)
    noted = make_offset(1, 1)
    record = ev.CursorRecord(3, 2, 0, TOPIC, mode=ConsumerMode.SHARED, dropped_from=noted, dropped_position=1)
    event = configuring(WantedSettings(ConsumerMode.EXCLUSIVE))
    kept = operations.after(record, event, chain, Place(3, 0), 0, noted, record.dropped_position)
    assert (kept.dropped_from, kept.dropped_position) == (noted, 1)
    unknown = operations.after(record, event, chain, Place(3, 0), 0, noted)
    assert (unknown.dropped_from, unknown.dropped_position) == (noted, 0), "not known"
    back = beginning._back_at(chain, record, Place(3, 0))
    assert (back.dropped_from, back.dropped_position, back.start_index) == (noted, 1, 2)


@pytest.mark.parametrize("is_left", [False, True])
def test_note_of_a_lost_segment_in_another_mode(is_left: bool) -> None:
    """Rule `new-mode-keeps-note`: segment 1 is lost, and segment 2 is dropped, unless `is_left`."""
    chain = three_sealed() if is_left else trim(three_sealed(), 3, start_at(2), 1)
    lost = replace(chain.segments[0], state=SegmentState.LOST, begin=Start(0, 0, 0))
    chain = replace(chain, segments=(lost, *chain.segments[1:]))
    noted = make_offset(1, 0)
    record = ev.CursorRecord(3, 2, 0, TOPIC, mode=ConsumerMode.SHARED, dropped_from=noted)
    moved = operations.after(
        record, configuring(WantedSettings(ConsumerMode.EXCLUSIVE)), chain, Place(3, 2), 0, noted, 0
    )
    assert moved.dropped_from == (0 if is_left else noted)
