"""Consumers are notified once of each message that is dropped or lost, and the lag does not count it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_api.lag import lag_messages
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import declare_lost, trim
from seriatim_broker.core.values.keyed import ConsumerMode, KeyOperation, KeyPhase, SeenKey
from seriatim_broker.core.values.ledger_rows import KeyRecord, aside_name, key_name, write_aside, write_key
from seriatim_broker.core.values.log import NO_HAND_OVER, LedgerRow, RecoveredPartition
from seriatim_broker.core.values.segment import Start

from .keyed_support import QUICK, KeyedServing
from .support import (
    GROUP,
    M00,
    M01,
    M20,
    MS,
    SECOND,
    STREAM,
    TOPIC,
    Bench,
    P,
    Serving,
    batches_of,
    checksum_of,
    control_record,
    first_chain,
    sealed_chain,
    unsettled_chain,
)
from .support import recovered as recovered_segment

KEYED = ConsumerMode.KEY_ORDERED

PARKED = 5
"""How many keys are parked, with a message each in segment 1."""


def dropped(bench: Serving, stream: int = STREAM) -> list[tuple[int, int, int]]:
    """What a stream has heard of drops: from, to, how many."""
    told = [effect.event for effect in bench.all(fx.Deliver) if effect.stream == stream]
    return [(one.from_offset, one.to_index, one.messages) for one in told if isinstance(one, fx.Dropped)]


def drop_below(bench: Serving, index: int) -> None:
    """Retention drops the messages of segment 1 below that index."""
    assert bench.part.chain is not None
    bench.chain = trim(bench.part.chain, 1, Start(index, 0, 0), 1)
    bench.read_chain(bench.chain)
    bench.deliver()


def test_drops_of_a_keyed_group_that_reads_nothing_are_told_once() -> None:
    bench = KeyedServing("abcdef")
    bench.begin(credit=0)
    drop_below(bench, 2)
    drop_below(bench, 5)
    assert dropped(bench) == [(make_offset(1, 0), 2, 2), (make_offset(1, 2), 5, 3)]
    bench.join(2, stream=2)
    bench.deliver()
    assert dropped(bench, 2) == [(make_offset(1, 0), 5, 5)], "who comes later is notified of all"


def test_drops_of_an_exclusive_group_that_reads_nothing_are_told_once() -> None:
    bench = Serving(counts=(1,) * 6)
    bench.begin(credit=0)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.join(2)
    record = ev.CursorRecord(1, 2, 2, TOPIC, dropped_from=make_offset(1, 0), dropped_position=0)
    bench.do(ev.CursorRead(P, GROUP, record, 9))
    for _ in range(2):  # a read that was under way, and the one that the note asks for
        bench.read_chain(bench.part.chain)
    bench.do(ev.CursorRead(P, GROUP, record, 9))
    bench.deliver()
    drop_below(bench, 5)
    assert dropped(bench) == [(make_offset(1, 0), 2, 2), (make_offset(1, 2), 5, 3)]


class Carried(KeyedServing):
    """A server of segment 2. Keys that are parked have their messages in segment 1, which is sealed as well."""

    def __init__(self, acked: int = 0) -> None:
        self.keys = [b"z", b"z"]
        self.policy, self.mode, self.at_most_once = QUICK, ConsumerMode.KEY_ORDERED, False
        self.handoff = NO_HAND_OVER
        earlier, self.batches = batches_of(1, (1,) * 9), batches_of(2, (1, 1))
        self.length = 2
        found = tuple(
            recovered_segment(no, batches, commit=len(batches), sealed=True)
            for no, batches in ((1, earlier), (2, self.batches))
        )
        rows: list[LedgerRow] = []
        for number in range(PARKED):
            name, record = b"k%d" % number, KeyRecord(KeyPhase.PARKED, 0, 1, 0, 0, 0, 1, "no")
            rows.append(LedgerRow(2, GROUP, aside_name(name, 0), write_aside([make_offset(1, 2 + number)])))
            rows.append(LedgerRow(2, GROUP, key_name(name), write_key(record)))
        cursor = control_record(2, GROUP, 1, acked, 10, 0, make_offset(1, 2))
        Bench.__init__(self, M00, 1, (RecoveredPartition(P, found, cursors=(cursor,), ledger_rows=tuple(rows)),))
        both = (M00, M01)
        chain = sealed_chain(first_chain(), 9, checksum_of(earlier), both, server=M00, eligible=both)
        self.chain = sealed_chain(chain, 2, checksum_of(self.batches), server=M00, eligible=both)
        self.core.state.config = replace(self.config, handed_grants_max=-1)  # it stays in this segment
        self.answered: set[int] = set()
        self.read_chain(self.chain)

    def cursor(self, no: int = 2, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        super().cursor(no, epoch, start, revision)

    def lag(self) -> tuple[int, int]:
        """The lag in a description, and how many messages are in lists."""
        before = len(self.all(fx.ConsumerGroupDescribed))
        self.do(ev.DescribeConsumerGroup(9, P, GROUP))
        self.look_up()
        (found,) = self.all(fx.ConsumerGroupDescribed)[before:]
        assert found.keys is not None
        assert found.position is not None
        end = self.chain.open_segment.base
        assert end is not None
        return lag_messages(end - found.position, found.keys.passed, found.keys.aside), found.keys.aside


@pytest.mark.parametrize(("acked", "begin"), [(0, 0), (1, 2)])
def test_loss_of_many_lists_is_one_gap(acked: int, begin: int) -> None:
    bench = Carried(acked)
    bench.begin()
    bench.deliver()
    assert bench.part.chain is not None
    bench.read_chain(declare_lost(bench.part.chain, 1))
    bench.deliver()
    keyed = bench.keyed
    assert not keyed.lists.message_count
    assert bench.delivered(fx.Gap) == [fx.Gap(1, begin, "declared lost")]


def test_drop_of_many_lists_is_one_gap() -> None:
    bench = Carried()
    bench.begin()
    bench.deliver()
    drop_below(bench, 5)
    assert dropped(bench) == [(make_offset(1, 2), 5, 3)]


def test_message_of_a_list_in_a_drop_that_was_told_is_not_told() -> None:
    """Rule `drops-told-once`: 1:0 and 1:2 are in the list of a, which is parked, and b works on 1:1 and 1:3."""
    bench = KeyedServing("abab")
    bench.serve()
    first, _ = bench.runs()
    bench.nack(first, is_last=True)
    bench.deliver()
    drop_below(bench, 4)
    assert dropped(bench) == [(make_offset(1, 1), 4, 3), (make_offset(1, 0), 1, 1)]


class Woven(Carried):
    """As `Carried`, with two keys in turns: 1:0, 1:2 and 1:4 are in the list of j, 1:1, 1:3 and 1:5 in that of k."""

    def __init__(self) -> None:
        super().__init__()
        rows: dict[bytes, bytes] = {}
        for number, name in enumerate((b"kj", b"kk")):
            offsets = [make_offset(1, index) for index in range(number, 6, 2)]
            rows[aside_name(name, 0)] = write_aside(offsets)
            rows[key_name(name)] = write_key(KeyRecord(KeyPhase.PARKED, 0, 1, 0, 0, 0, 3, "no"))
        self.part.ledger_rows = {GROUP: rows}
        self.part.cursors = {GROUP: control_record(2, GROUP, 1, 0, 10, 0, make_offset(1, 0))}


@pytest.mark.parametrize(
    ("at_once", "told"),
    [(2_000, [(0, 6, 6)]), (4, [(0, 4, 4), (4, 6, 2)]), (1, [(index, index + 1, 1) for index in range(6)])],
)
def test_drop_of_lists_in_turns_is_one_gap_for_each_step(at_once: int, told: list[tuple[int, int, int]]) -> None:
    bench = Woven()
    bench.core.state.config = replace(bench.core.state.config, keys_at_once=at_once)
    bench.begin()
    bench.deliver()
    drop_below(bench, 6)
    bench.deliver()
    assert dropped(bench) == [(make_offset(1, begin), end, count) for begin, end, count in told]


def test_drops_of_lists_in_turns_do_not_overlap() -> None:
    """A consumer works on 1:1 of k when retention drops all, so k is passed later than j."""
    bench = Woven()
    bench.begin()
    bench.deliver()
    bench.runs()
    seen = SeenKey(b"kk", 0, make_offset(1, 1), 1)
    bench.do(ev.OperateKeys(2, P, GROUP, KeyOperation.RELEASE, (seen,), bench.now_us + SECOND))
    bench.deliver()
    (run,) = bench.runs()
    drop_below(bench, 6)
    assert dropped(bench) == [(make_offset(1, index), index + 1, 1) for index in (0, 2, 4)]
    bench.nack(run, is_last=True)
    bench.deliver()
    assert dropped(bench)[3:] == [(make_offset(1, index), index + 1, 1) for index in (1, 3, 5)]


def test_lost_lists_that_a_drop_took_before_are_told_once() -> None:
    """Rule `drops-told-once`: what was reported as dropped is no part of the loss that comes later."""
    bench = Carried(1)
    bench.begin()
    bench.deliver()
    drop_below(bench, 4)
    assert bench.part.chain is not None
    bench.read_chain(declare_lost(bench.part.chain, 1))
    bench.deliver()
    assert dropped(bench) == [(make_offset(1, 2), 4, 2)]
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 4, "declared lost")]


def test_loss_of_a_segment_is_told_once_although_the_jump_is_tried_twice() -> None:
    """Rule `loss-told-once`: the transaction of the first jump over segment 1 has no answer."""
    bench = Bench(M20)
    lost = declare_lost(unsettled_chain(first_chain()), 1)
    bench.read_chain(None)
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "c", ev.StartPosition.EARLIEST, False))
    bench.read_chain(lost)
    record = ev.CursorRecord(1, 4, 0, TOPIC)
    bench.do(ev.CursorRead(P, GROUP, record, 9))
    (write,) = bench.all(fx.WriteCursor)
    bench.do(ev.CursorWritten(P, GROUP, write.serial, ev.WriteOutcome.UNKNOWN, 0))
    bench.do(ev.CursorRead(P, GROUP, record, 9))
    assert len(bench.all(fx.WriteCursor)) == 2, "it is tried again"
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 0, "declared lost")]


def test_lost_messages_of_parked_keys_are_no_lag_without_consumers() -> None:
    bench = Carried()
    assert bench.lag() == (2 + PARKED, PARKED)
    bench.chain = declare_lost(bench.chain, 1)
    bench.read_chain(bench.chain)
    assert bench.lag() == (2, 0)
    found = bench.all(fx.ConsumerGroupDescribed)[-1]
    assert found.keys is not None
    assert (found.keys.parked, found.oldest) == (0, make_offset(2, 0)), "nothing waits for an administrator"


def test_dropped_messages_of_parked_keys_are_no_lag_without_consumers() -> None:
    bench = Carried()
    drop_below(bench, 4)
    assert bench.lag() == (2 + PARKED - 2, PARKED - 2)
    found = bench.all(fx.ConsumerGroupDescribed)[-1]
    assert found.keys is not None
    assert (found.keys.parked, found.oldest) == (PARKED - 2, make_offset(1, 4))


class InSegmentThree(Carried):
    """A server of segment 3. Key j is parked with 1:0, and key k with 2:0."""

    def __init__(self) -> None:
        self.keys = [b"z", b"z"]
        self.policy, self.mode, self.at_most_once = QUICK, ConsumerMode.KEY_ORDERED, False
        self.handoff = NO_HAND_OVER
        first, second, self.batches = (batches_of(no, (1, 1)) for no in (1, 2, 3))
        self.length = 2
        found = tuple(
            recovered_segment(no, batches, commit=2, sealed=True)
            for no, batches in enumerate((first, second, self.batches), 1)
        )
        rows: list[LedgerRow] = []
        for name, offset in ((b"j", make_offset(1, 0)), (b"k", make_offset(2, 0))):
            rows.append(LedgerRow(3, GROUP, aside_name(b"k" + name, 0), write_aside([offset])))
            record = KeyRecord(KeyPhase.PARKED, 0, 1, 0, 0, 0, 1, "no")
            rows.append(LedgerRow(3, GROUP, key_name(b"k" + name), write_key(record)))
        cursor = control_record(3, GROUP, 1, 0, 10, 0, make_offset(1, 0))
        Bench.__init__(self, M00, 1, (RecoveredPartition(P, found, cursors=(cursor,), ledger_rows=tuple(rows)),))
        both = (M00, M01)
        self.chain = first_chain()
        for batches in (first, second, self.batches):
            self.chain = sealed_chain(self.chain, 2, checksum_of(batches), both, server=M00, eligible=both)
        self.core.state.config = replace(self.config, handed_grants_max=-1)  # it stays in this segment
        self.answered: set[int] = set()
        self.read_chain(self.chain)

    def cursor(self, no: int = 3, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        super().cursor(no, epoch, start, revision)


def test_key_that_is_parked_after_its_message_was_lost_goes_on() -> None:
    """Rule `lost-behind-others`, if a consumer works on the message when its segment is declared lost."""
    bench = InSegmentThree()
    bench.begin()
    bench.deliver()
    keyed = bench.keyed
    bench.runs()
    seen = SeenKey(b"kk", 0, make_offset(2, 0), 1)
    bench.do(ev.OperateKeys(2, P, GROUP, KeyOperation.RELEASE, (seen,), bench.now_us + SECOND))
    bench.deliver()
    (run,) = bench.runs()
    assert run.offsets == (make_offset(2, 0),)
    assert bench.part.chain is not None
    bench.read_chain(declare_lost(bench.part.chain, 2))
    bench.deliver()
    bench.nack(run, is_last=True)
    bench.deliver()
    assert [key.name for key in keyed.line.keys.values() if key.aside] == [b"kj"], "nothing of k is left"
    assert keyed.line.phase_counts[KeyPhase.PARKED] == 1


class Behind(Serving):
    """A server of segment 2 in exclusive mode. Segments 1 and 2 are sealed, with two messages each."""

    noted = 0
    """What the cursor says: from which offset on messages were dropped or lost."""

    def __init__(self) -> None:
        earlier, self.batches = batches_of(1, (1, 1)), batches_of(2, (1, 1))
        self.length = 2
        found = tuple(
            recovered_segment(no, batches, commit=2, sealed=True) for no, batches in ((1, earlier), (2, self.batches))
        )
        Bench.__init__(self, M00, 1, (RecoveredPartition(P, found),))
        both = (M00, M01)
        chain = sealed_chain(first_chain(), 2, checksum_of(earlier), both, server=M00, eligible=both)
        self.chain = sealed_chain(chain, 2, checksum_of(self.batches), server=M00, eligible=both)
        self.answered: set[int] = set()
        self.read_chain(self.chain)

    def cursor(self, no: int = 2, epoch: int = 2, start: int = 0, revision: int = 9) -> None:
        self.do(ev.CursorRead(P, GROUP, ev.CursorRecord(no, epoch, start, TOPIC, dropped_from=self.noted), revision))


def test_loss_that_an_exclusive_groups_server_learns_late_is_told() -> None:
    """Another broker, which knew the loss, has moved the cursor of an idle group out of segment 1."""
    bench = Behind()
    bench.noted = make_offset(1, 0)
    bench.begin()
    bench.deliver()
    assert bench.delivered(fx.Batches) == [], "it gives nothing before it has read why messages are gone"
    assert bench.part.chain is not None
    bench.read_chain(declare_lost(bench.part.chain, 1))
    bench.cursor()
    bench.deliver()
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 0, "declared lost")]
    assert bench.indexes() == [0, 1]
    assert dropped(bench) == [], "it is notified of a loss as a loss only"
    bench.do(ev.ConsumerGone(STREAM))
    bench.deliver()
    bench.clear()
    bench.join(2, stream=2)
    bench.cursor()
    for _ in range(2):
        bench.read_chain(bench.part.chain)
    bench.cursor()
    bench.deliver()
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 0, "declared lost")], "none was acknowledged"


def test_note_of_a_drop_before_a_lost_segment_is_kept() -> None:
    bench = Behind()
    bench.noted = make_offset(1, 0)
    bench.read_chain(declare_lost(trim(bench.chain, 1, Start(1, 0, 0), 1), 2))
    bench.do(ev.ResolveConsumer(6, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + 10**6))
    bench.read_chain(bench.part.chain)
    bench.cursor()
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.dropped_from) == (3, make_offset(1, 0))


@pytest.mark.parametrize("start", [0, 1])
def test_segment_that_left_the_record_is_told_as_dropped(start: int) -> None:
    """Rule `missing-is-noted`: the cursor is of an older copy of the coordinator; the group has passed segment 1.

    Rule `unknown-is-no-number`: how many messages segment 1 had is not known.
    """
    bench = Behind()
    begin = Start(1, checksum_of(bench.batches[:1]), bench.batches[0].size_bytes) if start else None
    bench.chain = trim(bench.chain, 2, begin, 2)
    bench.read_chain(bench.chain)
    bench.link(M01)
    bench.join()
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.cursor(no=1, start=1)
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.start_index, write.record.group_epoch) == (2, 0, 2)
    assert (write.record.dropped_from, write.record.dropped_position) == (make_offset(1, 1), 0)
    assert bench.delivered(fx.Gap) == [], "the server of segment 2 reports it, from the note"
    bench.do(ev.CursorWritten(P, GROUP, write.serial, ev.WriteOutcome.DONE, 10))
    read = ev.CursorRead(P, GROUP, write.record, 10)
    bench.do(read)
    bench.written()
    bench.persist()
    bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + 100 * MS, (M01,))
    for _ in range(3):  # a read that was under way, and the one that the note asks for
        bench.read_chain(bench.part.chain)
        bench.do(read)
    bench.deliver()
    assert dropped(bench) == [(make_offset(1, 1), 0, 0), (make_offset(2, 0), 1, 1)][: 1 + start]
    assert bench.indexes() == [0, 1][start:]


@pytest.mark.parametrize(
    ("record", "noted"),
    [
        (ev.CursorRecord(1, 4, 0, TOPIC), (make_offset(1, 0), 0)),
        (ev.CursorRecord(2, 4, 1, TOPIC, mode=KEYED, oldest=make_offset(1, 1)), (make_offset(1, 1), 0)),
        (ev.CursorRecord(2, 4, 0, TOPIC, dropped_from=make_offset(1, 1), dropped_position=1), (make_offset(1, 1), 1)),
    ],
    ids=["its place", "the oldest message in a list", "an older note"],
)  # fmt: skip
def test_cursor_of_a_missing_segment_notes_from_where_on(record: ev.CursorRecord, noted: tuple[int, int]) -> None:
    bench = Behind()
    first = record.segment_no + 1
    bench.read_chain(trim(bench.chain, first, None, first))
    bench.do(ev.ResolveConsumer(6, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + 10**6))
    bench.read_chain(bench.part.chain)
    bench.do(ev.CursorRead(P, GROUP, record, 9))
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.group_epoch, write.record.oldest) == (first, 4, 0)
    assert (write.record.dropped_from, write.record.dropped_position) == noted


class Rebuilt(KeyedServing):
    """The cursor is rebuilt from what disks know."""

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 5, revision: int = 5) -> None:
        super().cursor(no, epoch, start, revision)


def test_place_of_a_rebuilt_cursor_is_no_drop() -> None:
    """Rule `place-is-no-drop`: the disk notes a drop from 1:0 on, 1:3 is parked, and the cursor's place is 1:5."""
    noted = control_record(1, GROUP, 1, 5, 6, 0, make_offset(1, 3), untold=make_offset(1, 0))
    record = KeyRecord(KeyPhase.PARKED, 0, 1, 0, 0, 0, 1, "no")
    rows = (
        LedgerRow(1, GROUP, aside_name(b"kd", 0), write_aside([make_offset(1, 3)])),
        LedgerRow(1, GROUP, key_name(b"kd"), write_key(record)),
    )
    bench = Rebuilt("abcdef", cursors=(noted,))
    bench.part.ledger_rows = {GROUP: {row.name: row.value for row in rows}}
    drop_below(bench, 3)
    assert bench.part.chain is not None
    bench.chain = bench.part.chain
    bench.begin()
    for _ in range(2):  # as a drop is noted, the chain is read once more after the read that is under way
        bench.read_chain(bench.chain)
    bench.cursor()
    bench.deliver()
    assert dropped(bench) == [(make_offset(1, 0), 3, 3)], "1:3 is there"


class BehindLoss(InSegmentThree):
    """Nothing of segments 1 and 2 is acknowledged. Segment 1 is declared lost, and 2 begins at an index."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.part.cursors = {GROUP: control_record(3, GROUP, 1, 0, 0, untold=make_offset(1, 0))}
        self.part.ledger_rows = {}
        self.chain = declare_lost(self.chain, 1)
        self.chain = trim(self.chain, 2, Start(start, 0, 0), 1) if start else self.chain
        self.read_chain(self.chain)


@pytest.mark.parametrize(
    ("start", "told"),
    [(0, []), (1, [(make_offset(2, 0), 1, 1)]), (2, [(make_offset(2, 0), 0, 2)])],
)
def test_drop_behind_a_lost_segment_is_told(start: int, told: list[tuple[int, int, int]]) -> None:
    """Rule `loss-hides-no-drop`."""
    bench = BehindLoss(start)
    bench.begin()
    for _ in range(2):  # as a drop is noted, the chain is read once more after the read that is under way
        bench.read_chain(bench.part.chain)
    bench.cursor()
    bench.deliver()
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 0, "declared lost")]
    assert dropped(bench) == told
    assert bench.runs(), "what follows is given"
