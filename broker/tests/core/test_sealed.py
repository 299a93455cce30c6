"""What a sealed segment keeps: its producer table only while it may be asked for, its part of a tail while needed."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.core.copies import producer_tables
from seriatim_broker.core.dispatch import reconciliation
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, add_eligible, change_server, declare_lost
from seriatim_broker.core.values.log import (
    DropCursor,
    DropPreparation,
    PutPreparation,
    RecoveredPartition,
    TailCopy,
    Truncate,
)
from seriatim_broker.core.values.producers import NO_TABLE, Entry, Table, pack_table, pack_window
from seriatim_broker.core.values.segment import Segment
from seriatim_broker.core.values.segments import CHUNK_SEGMENTS, Segments

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    MS,
    Bench,
    P,
    attempt,
    batches_of,
    checksum_of,
    control_record,
    filled,
    first_chain,
    prepared,
    recovered,
    sealed_chain,
    segment_of,
    unsettled_chain,
)

SEGMENT_COUNT = 300
SEALED_SIZE_BYTES_MAX = 1_010
"""Of core state a sealed segment, its part of the chain included: 720 were seen; 495 KB with 100 producers when each
kept its table, twice."""

BATCHES = batches_of(1, [1, 2, 1])


def _table(producer_count: int = 1, entry_count: int = 1) -> Table:
    window = pack_window(Entry(0, 1000 + number, 1, 1000 + number) for number in range(entry_count))
    return pack_table({number.to_bytes(16, "big"): window for number in range(producer_count)})


def _switches(chain: Chain, count: int, bench: Bench | None = None) -> Chain:
    """That many empty segments are sealed, all of them on the first group."""
    for _ in range(count):
        chain = sealed_chain(chain, 0, 0, members=(M00, M01))
        if bench is not None:
            bench.open(chain, table=_table())
    return chain


def _kept(bench: Bench) -> list[int]:
    return [no for no, log in sorted(bench.part.logs.items()) if log.table is not None]


def _prepared(bench: Bench) -> list[int]:
    return [no for no, log in sorted(bench.part.logs.items()) if log.opened_with is not None]


@pytest.mark.parametrize("member", [M00, M01])
def test_a_sealed_segment_is_small(member: object) -> None:
    bench = Bench(M00)
    bench.link(M01)
    chain = first_chain()
    bench.open(chain, table=_table(20, 16))
    tracemalloc.start()
    try:
        before = 0
        for at in range(3 + SEGMENT_COUNT):
            if at == 3:  # the newest segments have tables, before as after
                gc.collect()  # rubbish of earlier tests, and of these, is no state
                before, _ = tracemalloc.get_traced_memory()
            chain = sealed_chain(chain, 0, 0, members=(M00, M01) if member == M00 else (M01, M00))
            bench.open(chain, table=_table(20, 16))
            bench.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(bench.part.logs) == SEGMENT_COUNT + 4
    assert (after - before) / SEGMENT_COUNT < SEALED_SIZE_BYTES_MAX


def test_only_the_newest_sealed_segments_keep_their_tables() -> None:
    bench = Bench(M00)
    bench.open(first_chain(), table=_table())
    _switches(first_chain(), 5, bench)
    assert _kept(bench) == [5, 6], "the open one, and the one before: two after it may be opened incomplete"
    assert _prepared(bench) == [5, 6]
    forgotten = [(write.segment_no, write.windows) for write in bench.writes(Truncate)]
    assert forgotten == [(1, None), (2, None), (3, None), (4, None)]
    assert [write.segment_no for write in bench.writes(DropPreparation)] == [1, 2, 3, 4], "on the disk as well"


def test_a_start_drops_what_an_older_version_kept() -> None:
    segments = tuple(recovered(no, (), sealed=True) for no in range(1, 6))
    found = RecoveredPartition(P, segments, tuple(prepared(no, (M00, M01), table=_table()) for no in range(1, 6)))
    bench = Bench(M00, 2, (found,))
    bench.read_chain(_switches(first_chain(), 5))
    assert _prepared(bench) == [5]
    assert [write.segment_no for write in bench.writes(DropPreparation)] == [1, 2, 3, 4]


def test_what_stands_before_an_incomplete_segment_keeps_its_table() -> None:
    """Readers of segment 4 ask for the table after 3; if 3 is declared lost one day, for that after 2."""
    bench = Bench(M00)
    bench.open(first_chain(), table=_table())
    chain = _switches(first_chain(), 2, bench)
    chain = unsettled_chain(chain, (M00, M01))
    bench.open(chain)
    chain = sealed_chain(chain, 0, 0, members=(M00, M01))
    bench.open(chain, table=_table())
    chain = _switches(chain, 3, bench)
    assert [segment.no for segment in chain.segments if segment.incomplete_table] == [4]
    assert _kept(bench) == [2, 3, 7, 8]
    (forgotten, kept) = (producer_tables.table_after(bench.part, no) for no in (1, 2))
    assert forgotten is not None
    assert forgotten.at_rest() == NO_TABLE, "nothing asks for it"
    assert kept is not None
    assert kept.at_rest() == _table()


def test_two_lost_segments_in_a_row_count_as_empty() -> None:
    """What stood before them let go of its table: readers after them must not wait for it."""
    chain = unsettled_chain(_switches(first_chain(), 2), (M00, M01))
    chain = declare_lost(declare_lost(chain, 2), 3)
    bench = Bench(M00)
    bench.read_chain(_switches(chain, 1))
    assert not producer_tables.is_kept(chain, 1)
    before = producer_tables.want_before(bench.core.state, bench.part, 4)
    assert before is not None
    assert before.at_rest() == NO_TABLE


def _old_chain() -> tuple[Chain, Segment]:
    """Segment 1 with three messages on the first group, and this many after it that its table is not asked for."""
    chain = sealed_chain(first_chain(), 4, checksum_of(BATCHES), members=(M20, M21))
    for _ in range(3):
        chain = sealed_chain(chain, 0, 0, members=(M20, M21))
    return chain, segment_of(chain, 1)


def test_a_new_copy_of_an_old_segment_is_whole_without_a_table() -> None:
    bench = Bench(M01, 2, (RecoveredPartition(P, (recovered(1, BATCHES[:1]),)),))
    bench.link(M00)
    bench.read_chain(_old_chain()[0])
    (request,) = bench.sent(msg.CopyRequest, M00)
    assert not request.want_table
    given = {"from_index": 1, "available": True, "batches": BATCHES[1:], "table": None}
    bench.hear(M00, filled(msg.CopyAnswer, partition=P, segment_no=1, **given))
    bench.persist()
    assert bench.part.logs[1].is_in_sync
    assert not bench.part.copies
    assert not bench.writes(PutPreparation)


def test_a_member_of_an_older_version_that_asks_for_such_a_table_gets_an_empty_one() -> None:
    bench = Bench(M00, 2, (RecoveredPartition(P, (recovered(1, BATCHES, sealed=True),)),))
    bench.link(M01)
    bench.read_chain(_old_chain()[0])
    bench.hear(M01, msg.CopyRequest(P, 1, 4, 1000, want_table=True))
    (read,) = bench.all(fx.ReadLog)
    bench.do(ev.LogRead(read.serial, ()))
    (answer,) = bench.sent(msg.CopyAnswer, M01)
    assert (answer.available, answer.table) == (True, NO_TABLE)


def test_a_tail_copy_is_kept_until_two_whole_copies_are_listed() -> None:
    tail = TailCopy(1, 1, 4, BATCHES[1:])
    chain = sealed_chain(first_chain(), 4, checksum_of(BATCHES), (M10, M11), server=M01, eligible=(M01,), tail_from=1)
    bench = Bench(M10)
    bench.link(M00)
    bench.open(chain, tail=tail)
    for _ in range(3):
        chain = sealed_chain(chain, 0, 0, members=(M20, M21))
        bench.hear(M21, msg.ChainUpdate(chain, 100 + chain.epoch))
    assert not bench.writes(DropPreparation)
    bench.hear(M00, msg.CopyRequest(P, 1, 1, 1000, want_table=False))
    assert [answer.batches for answer in bench.sent(msg.CopyAnswer, M00)] == [BATCHES[1:]]
    chain = add_eligible(chain, 1, M00)
    bench.hear(M21, msg.ChainUpdate(chain, 100 + chain.epoch))
    assert [write.segment_no for write in bench.writes(DropPreparation)] == [2]
    assert _prepared(bench) == []


def _long_chain(count: int) -> Chain:
    """This many sealed segments on the first group, as they come from the coordinator."""
    opened = _switches(first_chain(), 1)
    sealed = tuple(
        replace(opened.segments[0], no=no, switch_attempt=attempt(no), server_epoch=no) for no in range(1, count)
    )
    last = replace(opened.segments[1], no=count, switch_attempt=attempt(count), server_epoch=count)
    return replace(opened, epoch=count, segments=(*sealed, last))


def test_nothing_walks_the_chain_when_a_newer_record_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch, a change of the right and a settled length: each is as much work as with two segments."""
    bench = Bench(M00)
    chain = _long_chain(5000)
    bench.read_chain(chain)
    bench.persist()
    seen: list[int] = []
    walk = Segments.__iter__

    def counted(self: Segments) -> Iterator[Segment]:
        for segment in walk(self):
            seen.append(segment.no)
            yield segment

    monkeypatch.setattr(Segments, "__iter__", counted)
    looked_at: list[int] = []
    agree = reconciliation._agree

    def agree_counted(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
        looked_at.append(segment.no)
        agree(broker, partition, chain, segment)

    monkeypatch.setattr(reconciliation, "_agree", agree_counted)
    parties: list[int] = []

    def parties_counted(self: Segment) -> tuple[MemberId, ...]:
        parties.append(self.no)
        return self.eligible

    monkeypatch.setattr(Segment, "parties", property(parties_counted))
    chain = sealed_chain(chain, 0, 0, members=(M10, M11))
    chain = change_server(chain, 17, M01, ())
    bench.link(M21)
    bench.hear(M21, msg.ChainUpdate(chain, 9000))
    assert looked_at == [17, 5000, 5001]
    assert len(parties) <= 2 * CHUNK_SEGMENTS, "of two chunks that changed"
    bench.wait(1000 * MS)
    bench.link(M01)
    bench.do(ev.ResolveProducer(1, P, None, bench.now_us + MS))
    assert seen == []
    assert bench.part.chain == chain


def test_of_a_group_only_the_newest_control_record_is_kept() -> None:
    """One for each segment that it passed was: 10,000 a group, on each eligible member."""
    bench = Bench(M01)
    bench.link(M00)
    bench.read_chain(_long_chain(200))
    for no in range(1, 101):
        for acked in (1, 2):
            replication = msg.ReplicateCursors(P, no, no, no, (control_record(no, "g", 1, acked, 10),))
            bench.hear(M00, replication)
    assert list(bench.part.cursors.values()) == [control_record(100, "g", 1, 2, 10, server_epoch=100, serial=100)]
    late = (control_record(7, "g", 1, 5, 10),)
    bench.hear(M00, msg.ReplicateCursors(P, 7, 7, 7, late))
    assert bench.part.cursors["g"].segment_no == 100, "a server that serves no more"
    again = control_record(3, "g", 2, 0, 0, server_epoch=3, serial=3)  # in a new epoch it may begin anywhere
    bench.hear(M00, msg.ReplicateCursors(P, 3, 3, 3, (again,)))
    assert list(bench.part.cursors.values()) == [again]
    found = tuple(control_record(no, "g", 1, 1, 1) for no in range(1, 50))
    start = Bench(M01, 2, (RecoveredPartition(P, (), (), (), (*found, control_record(4, "h", 1, 1, 1))),))
    assert [(c.segment_no, c.consumer_group) for c in start.part.cursors.values()] == [(49, "g"), (4, "h")], (
        "and what is on the disk"
    )


def test_the_disk_keeps_only_the_newest_control_record_too() -> None:
    bench = Bench(M01)
    bench.link(M00)
    bench.read_chain(_long_chain(200))
    for no in (3, 4):
        bench.hear(M00, msg.ReplicateCursors(P, no, no, no, (control_record(no, "g", 1, 1, 1),)))
    assert bench.writes(DropCursor) == [DropCursor(P, 3, "g")]
    found = (control_record(3, "g", 1, 1, 1), control_record(4, "g", 1, 1, 1), control_record(4, "h", 1, 1, 1))
    start = Bench(M01, 2, (RecoveredPartition(P, (), (), (), found),))
    assert start.writes(DropCursor) == [DropCursor(P, 3, "g")], "and what a start found"


def test_control_records_of_a_deleted_group_are_forgotten_below_the_floor_only() -> None:
    found = (control_record(4, "f", 9, 1, 1), control_record(4, "g", 3, 1, 1), control_record(4, "h", 2, 1, 1))
    bench = Bench(M01, 2, (RecoveredPartition(P, (), (), (), found),))
    bench.do(ev.ListCursors(1, (0, ""), 5, 100))
    bench.do(ev.ListCursors(2, (0, ""), 5, 1))
    bench.do(ev.ListCursors(3, (P, "g"), 5, 100))
    listed = {effect.request: [group for _, group in effect.consumer_groups] for effect in bench.all(fx.CursorsListed)}
    assert listed == {1: ["g", "h"], 2: ["g"], 3: ["h"]}
    for group in "fgh":
        bench.do(ev.ForgetConsumerGroup(P, group, 5))
    assert [write.consumer_group for write in bench.writes(DropCursor)] == ["g", "h"]
    assert list(bench.part.cursors) == ["f"], "it was made again, in an epoch above the floor"
