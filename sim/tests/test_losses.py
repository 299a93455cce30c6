"""What the judge forgives, and what not: memories that ended, weaker promises, gaps that an administrator declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from seriatim_api.dead_letters import dead_letter_producer
from seriatim_api.errors import SequenceGapError
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.effects import Batches, Joined
from seriatim_broker.core.values.events import AckLevel, ConsumerGroupOperation, CursorRecord
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT, DeadLetter, DeadLetterRow, KeyGrant
from seriatim_broker.core.values.log import (
    Batch,
    CursorState,
    LocalSegment,
    Preparation,
    PutBatch,
    PutCursor,
    PutPreparation,
    PutSegment,
)
from seriatim_broker.core.values.producers import NO_TABLE
from seriatim_broker.core.values.segment import Segment, SegmentState, Start
from seriatim_broker.testing.memory_disk import MemoryDisk

from sim.basics.batches import header_of, placed
from sim.basics.schedule import Schedule, Violation
from sim.judge import PERSON, Judge, messages_of
from sim.judge.modes import ONCE
from sim.judge.views import Fate

ONE = PartitionId(1)
A, B = MemberId("a-0", "a" * 32), MemberId("b-0", "b" * 32)
OPENING = chains.Opening(b"x", "g", (A, B), 1, False)
NEXT = chains.Opening(b"z", "h", (B, A), 1, True)
LEVELS = (int(AckLevel.MASTER_FLUSHED), int(AckLevel.REPLICATED), int(AckLevel.REPLICATED_FLUSHED))
STATES = {"s": SegmentState.SEALED, "l": SegmentState.LOST, "u": SegmentState.UNSETTLED, "o": SegmentState.OPEN}
LENGTH = 6
"""Of segment 1; all others are empty."""


class Slot:
    """As much of a broker as the judge looks at."""

    def __init__(self, member: MemberId) -> None:
        self.name = member.broker
        self.member = member
        self.disk = self.real_disk = MemoryDisk()
        self.process: Any = None
        self.suspect_before_run = 0


class Pair:
    """Two members of an open segment, three batches of two messages, and a judge."""

    def __init__(self, *, flush: bool = False, levels: tuple[int, ...] = LEVELS[1:]) -> None:
        self.slots: Any = {member.broker: Slot(member) for member in (A, B)}
        self.judge = Judge(Schedule(0), self.slots, flush=flush, levels=levels)
        self.batches = list(_three_batches())
        self.chain = chains.create(ONE, "t", 0, flush, ("g", "h"), OPENING, 0)
        for slot in self.slots.values():
            slot.process = type("Process", (), {"run": 1})()
            record = LocalSegment(1, b"x", (A, B), flush, False)
            self.put(slot, PutPreparation(ONE, Preparation(1, b"x", (A, B), flush, False, NO_TABLE, None, 1)))
            self.put(slot, PutSegment(ONE, record))
            self.put(slot, PutPreparation(ONE, Preparation(2, b"z", (B, A), flush, True, NO_TABLE, None, 1)))
        self.judge.chain_written("a-0", None, self.chain, None)

    def put(self, slot: Any, write: Any, *, flushed: bool = True) -> None:
        self.judge.writes(slot.member.broker, (write,))
        ticket = slot.disk.submit((write,))
        if flushed:
            slot.disk.flush(ticket)

    def take(self, name: str, count: int, *, flushed: bool) -> None:
        for batch in self.batches[:count]:
            self.put(self.slots[name], PutBatch(ONE, batch, 0, ()), flushed=flushed)

    def end(self, *names: str) -> None:
        for name in names:
            self.slots[name].process = None
            self.slots[name].disk.crash(0)

    def accept(self, number: int, level: int) -> None:
        batch = self.batches[number]
        messages = messages_of(batch)
        for message in messages:
            self.judge.sent(message, ONE, b"p" * 16, level)
        offset = make_offset(1, batch.header.base_index)
        self.judge.accepted("a-0", ONE, messages, offset, level)
        self.judge.settled(messages, "ok", offset)

    def settle(self, length: int) -> None:
        """Opened over, unless it was, and settled by the first member."""
        if len(self.chain.segments) == 1:
            self.open_over()
        value = self.batches[length // 2 - 1].header.checksum if length else 0
        seal = chains.Seal(length, value, A, (A,), None, (), 0)
        self.write(chains.settle(self.chain, 1, seal))

    def open_over(self) -> None:
        self.slots["a-0"].suspect_before_run = 2
        self.write(chains.open_over(self.chain, NEXT, 0))

    def write(self, chain: chains.Chain) -> None:
        before, self.chain = self.chain, chain
        self.judge.chain_written("a-0", before, chain, None)


def _three_batches() -> Any:
    previous = 0
    for number in range(3):
        body = (100 + 2 * number).to_bytes(8, "big")
        header = placed(header_of(1, b"p" * 16, body, count=2, sequence=2 * number), 2 * number, previous)
        previous = header.checksum
        yield Batch(header, body)


def test_two_memories_are_enough_for_replicated_and_not_for_flushed() -> None:
    pair = Pair()
    pair.take("a-0", 1, flushed=False)
    with pytest.raises(Violation, match="I12"):
        pair.accept(0, AckLevel.REPLICATED)
    pair.take("b-0", 1, flushed=False)
    pair.accept(0, AckLevel.REPLICATED)
    with pytest.raises(Violation, match="I12"):
        pair.accept(0, AckLevel.REPLICATED_FLUSHED)


def test_what_nobody_has_any_more_is_forgiven() -> None:
    pair = Pair()
    for name in ("a-0", "b-0"):
        pair.take(name, 1, flushed=True)
        for batch in pair.batches[1:]:
            pair.put(pair.slots[name], PutBatch(ONE, batch, 0, ()), flushed=False)
    pair.accept(0, AckLevel.REPLICATED)
    pair.accept(1, AckLevel.REPLICATED)
    pair.judge.delivered("early", ONE, make_offset(1, 2), messages_of(pair.batches[1])[0], flagged=False)
    pair.end("a-0", "b-0")
    pair.settle(2)
    assert "promised and gone" in pair.judge.seen.states
    assert pair.judge.view("early", ONE).firsts == [], "it may be given again, where it is sent to again"
    pair.judge.final(pair.chain, 0, [])
    pair.judge.denied("b-0", 7, SequenceGapError("the last batch is gone"))


@pytest.mark.parametrize("where", ["on a disk", "in a process"])
def test_a_seal_below_what_somebody_has_is_found(where: str) -> None:
    pair = Pair()
    pair.take("a-0", 1, flushed=True)
    for name in ("a-0", "b-0"):
        for batch in pair.batches[1 if name == "a-0" else 0 :]:
            pair.put(pair.slots[name], PutBatch(ONE, batch, 0, ()), flushed=name == "b-0" and where == "on a disk")
    pair.accept(1, AckLevel.REPLICATED)
    pair.end("a-0", *(["b-0"] if where == "on a disk" else []))
    with pytest.raises(Violation, match="I6"):
        pair.settle(2)


def test_what_was_acknowledged_as_flushed_is_never_forgiven() -> None:
    pair = Pair()
    for name in ("a-0", "b-0"):
        pair.take(name, 2, flushed=True)
    pair.accept(1, AckLevel.REPLICATED_FLUSHED)
    pair.end("a-0", "b-0")
    pair.open_over()
    for slot in pair.slots.values():
        slot.disk.wipe()
    with pytest.raises(Violation, match="flushed"):
        pair.settle(2)


def test_a_level_without_promise_promises_nothing() -> None:
    for level in (AckLevel.MASTER_FLUSHED, AckLevel.REPLICATED):
        pair = Pair(flush=True, levels=LEVELS)
        pair.take("a-0", 2, flushed=True)
        pair.take("b-0", 1 if level < AckLevel.REPLICATED else 2, flushed=True)
        pair.accept(1, level)
        seal = chains.Seal(0, 0, A, (A,), None, (), 0)
        sealed = chains.seal_and_open(pair.chain, seal, NEXT, 0)
        if level < AckLevel.REPLICATED:
            pair.write(sealed)
            pair.judge.final(pair.chain, 0, [])
        else:
            with pytest.raises(Violation, match="I6"):
                pair.write(sealed)


def _lost() -> Pair:
    """A segment that was opened over, and both of whose disks were replaced."""
    pair = Pair(flush=True, levels=LEVELS[2:])
    for name in ("a-0", "b-0"):
        pair.take(name, 1, flushed=True)
    pair.accept(0, AckLevel.REPLICATED_FLUSHED)
    pair.judge.cursor_written("a-0", ONE, "early", None, CursorRecord(1, 1, 0, "t"))
    pair.judge.seen.flush = False  # one fence of a suspect is enough to open over
    pair.open_over()
    pair.judge.seen.flush = True
    for slot in pair.slots.values():
        pair.judge.seen.graveyard.append((slot.member, slot.disk.durable.twin()))
        slot.member = MemberId(slot.member.broker, "c" * 32)
    return pair


def test_a_gap_that_nobody_declared_or_whose_disk_is_there_is_found() -> None:
    pair = _lost()
    with pytest.raises(Violation, match="no request"):
        pair.write(chains.declare_lost(pair.chain, 1))
    pair = _lost()
    pair.judge.rules.gaps.asked.add((ONE, 1))
    pair.slots["b-0"].member = B
    with pytest.raises(Violation, match="is there"):
        pair.write(chains.declare_lost(pair.chain, 1))


def test_readers_of_a_gap_are_told_and_go_on_in_a_new_epoch() -> None:
    pair = _lost()
    pair.judge.rules.gaps.asked.add((ONE, 1))
    pair.write(chains.declare_lost(pair.chain, 1))
    old = CursorRecord(1, 1, 0, "t")
    with pytest.raises(Violation, match="I8"):
        pair.judge.cursor_written("a-0", ONE, "early", old, CursorRecord(2, 1, 0, "t"))
    pair.judge.cursor_written("a-0", ONE, "early", old, CursorRecord(2, 2, 0, "t"))
    with pytest.raises(Violation, match="never notified"):
        pair.judge.final(pair.chain, 0, ["early"])
    pair.judge.gap_told("early", ONE, 1)
    pair.judge.final(pair.chain, 0, ["early"])
    with pytest.raises(Violation, match="I1"):
        pair.judge.gap_told("early", ONE, 2)


@pytest.mark.parametrize("was_told", [True, False])
def test_a_repeat_of_what_was_read_before_its_gap(was_told: bool) -> None:
    """Its reader was told to skip it, and then the place where it had read the messages was declared lost."""
    pair = _lost()
    judge, batch = pair.judge, pair.batches[0]
    first, second = messages_of(batch)
    pair.settle(2)
    for index, message in enumerate((first, second)):
        judge.delivered("range", ONE, make_offset(1, index), message, flagged=False)
        judge.acknowledged("range", ONE, make_offset(1, index))
    again = placed(batch.header, 0, 0, segment=2)
    judge.seen.placed[ONE, 2, 0] = Batch(again, batch.body)
    judge.seen.fates[first].offset = judge.seen.fates[second].offset = make_offset(2, 0)
    if was_told:
        judge.skipped("range", ONE, 2, 0, 2)
    judge.rules.gaps.asked.add((ONE, 1))
    pair.write(chains.declare_lost(pair.chain, 1))
    judge.gap_told("range", ONE, 1)
    assert judge.is_gone(ONE, [first, second]) is was_told
    # A server without a table from before the loss gives them to a group that comes later.
    judge.gap_told("early", ONE, 1)
    for index, message in enumerate((first, second)):
        judge.delivered("early", ONE, make_offset(2, index), message, flagged=False)
    if was_told:
        judge.final(pair.chain, 2, ["range", "early"])
        judge.view("early", ONE).firsts.reverse()
        with pytest.raises(Violation, match="I2"):
            judge.final(pair.chain, 2, ["early"])
    else:
        with pytest.raises(Violation, match="I2"):
            judge.final(pair.chain, 2, ["range"])


@pytest.mark.parametrize(("read", "is_forgiven"), [(2, True), (1, False), (0, False)])
def test_a_range_that_ends_where_a_segment_is_lost(read: int, is_forgiven: bool) -> None:
    """Its reader hears of the end after the declaration, and continues after the segment."""
    pair = _lost()
    judge = pair.judge
    pair.settle(2)
    for index, message in enumerate(messages_of(pair.batches[0])[:read]):
        judge.delivered("range", ONE, make_offset(1, index), message, flagged=False)
        judge.acknowledged("range", ONE, make_offset(1, index))
    judge.rules.gaps.asked.add((ONE, 1))
    pair.write(chains.declare_lost(pair.chain, 1))
    judge.moved("range", ONE, 2)
    assert judge.rules.gaps.untold(ONE, ["range"]) == ([] if is_forgiven else [("range", 1)])


@pytest.mark.parametrize(("start", "is_forgiven"), [(make_offset(1, 2), True), (make_offset(2, 0), False), (0, False)])
@pytest.mark.parametrize("was_told", [True, False])
def test_a_lost_segment_with_all_behind_it_dropped(start: int, is_forgiven: bool, was_told: bool) -> None:
    """The cursor says from where its readers were notified of nothing, and then a consumer is notified of the drop."""
    pair = _lost()
    judge = pair.judge
    judge.rules.gaps.asked.add((ONE, 1))
    pair.write(chains.declare_lost(pair.chain, 1))
    judge.cursor_written(
        "a-0", ONE, "early", CursorRecord(1, 1, 0, "t"), CursorRecord(2, 2, 0, "t", dropped_from=start)
    )
    if was_told:
        judge.seen.untold_from.clear()
        judge.view("early", ONE).dropped += [(start, make_offset(2, 1))] if start else []
    assert judge.rules.gaps.untold(ONE, ["early"]) == ([] if is_forgiven else [("early", 1)])


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_resend_of_what_an_at_most_once_group_had(is_lost: bool) -> None:
    """Its producer had no answer, because the segment was opened over. Nothing reports after a loss that it is one."""
    pair = _lost()
    modes, (message, _) = pair.judge.rules.keyed, messages_of(pair.batches[0])
    pair.settle(2)
    modes.given("once-exclusive.0", ONE, make_offset(1, 0), message, flagged=False)
    grants = [KeyGrant(token, 1, False, (make_offset(no, 0),)) for no, token in ((1, 5), (2, 6))]
    modes.granted("a-0", ONCE, ONE, 1, 1, grants[0], [message])
    if is_lost:
        pair.judge.rules.gaps.asked.add((ONE, 1))
        pair.write(chains.declare_lost(pair.chain, 1))
        modes.given("once-exclusive.0", ONE, make_offset(2, 0), message, flagged=False)
        modes.granted("a-0", ONCE, ONE, 1, 2, grants[1], [message])
    with pytest.raises(Violation, match="O1"):
        modes.given("once-exclusive.0", ONE, make_offset(2, 1), message, flagged=False)
    with pytest.raises(Violation, match="O1"):
        modes.granted("a-0", ONCE, ONE, 1, 2, grants[1], [message])


@pytest.mark.parametrize("has_left", [True, False])
def test_a_message_again_behind_lost_tables(has_left: bool) -> None:
    """Retention dropped its first place, and then the segment was lost that had the only table which named it."""
    pair = Pair(flush=True)
    judge, keyed, first = pair.judge, pair.judge.rules.keyed, pair.batches[0]
    one, two = messages_of(first)
    like = pair.chain.open_segment
    judge.seen.fates.update(dict.fromkeys((one, two), Fate(ONE, b"p" * 16, 0, AckLevel.REPLICATED_FLUSHED)))
    judge.seen.placed[ONE, 1, 0] = first
    judge.delivered("early", ONE, make_offset(1, 0), one, flagged=False)
    grants = [KeyGrant(token, 1, False, (make_offset(no, 0),)) for no, token in ((1, 5), (3, 6), (3, 7))]
    for group in (ONCE, "keyed", "shared"):
        keyed.granted("a-0", group, ONE, 1, 1, grants[0], [one])
        keyed.confirmed(group, ONE, 1, [one])
    keyed.given("once-exclusive.0", ONE, make_offset(1, 0), one, flagged=False)
    records = ("2o", "2u 3o?", "2l 3s? 4o") if has_left else ("1s 2o", "1s 2u 3o?", "1s 2l 3s? 4o")

    def parts(record: str) -> tuple[Segment, ...]:
        found = (_segment(like, text) for text in record.split())
        return tuple(
            replace(part, sealed_len=2) if part.no in (1, 3) and part.state is SegmentState.SEALED else part
            for part in found
        )

    judge.seen.history[ONE] = [replace(pair.chain, segments=parts(record)) for record in records]
    judge.seen.left[ONE] = list(parts("1s")) if has_left else []
    again = placed(first.header, 0, 0, segment=3)
    judge.seen.placed[ONE, 3, 0] = Batch(again, first.body)
    chain = judge.seen.history[ONE][-1]
    judge.view("late", ONE).start = make_offset(2, 0)
    for index, message in enumerate((one, two)):
        judge.delivered("late", ONE, make_offset(3, index), message, flagged=False)

    def give_again(grant: KeyGrant) -> list[Callable[[], None]]:
        return [
            lambda: judge.delivered("early", ONE, make_offset(3, 0), one, flagged=False),
            lambda: keyed.given("once-exclusive.0", ONE, make_offset(3, 0), one, flagged=False),
            *(partial(keyed.granted, "a-0", group, ONE, 1, 1, grant, [one]) for group in (ONCE, "keyed", "shared")),
        ]

    if has_left:
        judge.rules.order.final(chain, 0, ["late"])
        for give in give_again(grants[1]):
            give()
        for group in ("keyed", "shared"):
            keyed.confirmed(group, ONE, 1, [one])
    else:
        with pytest.raises(Violation, match="I2"):
            judge.rules.order.final(chain, 0, ["late"])
    for give in give_again(grants[2]):  # at the same place, or with the tables
        with pytest.raises(Violation):
            give()


@pytest.mark.parametrize("had_cursor", [True, False])
def test_a_drop_before_a_group_began(had_cursor: bool) -> None:
    """The coordinator is restored without the drop, and a consumer group begins at what is gone."""
    pair = Pair(flush=True)
    judge = pair.judge
    judge.rules.retention.retains_unread = True
    for name in ("a-0", "b-0"):
        pair.take(name, 3, flushed=True)
    cursor, before = CursorRecord(1, 1, 0, "t"), pair.chain
    if had_cursor:
        judge.cursor_written("a-0", ONE, "early", None, cursor)
    start = pair.batches[1].header
    size_bytes = sum(batch.size_bytes for batch in pair.batches[:2])
    begin = Start(start.end_index, start.checksum, size_bytes)
    pair.write(chains.trim(before, 1, begin, 1))
    judge.seen.history[ONE].append(before)
    if not had_cursor:
        judge.cursor_written("a-0", ONE, "early", None, cursor)
    judge.rules.retention.changed(ONE, before.segments[0], pair.chain.segments[0])  # the rebuild
    judge.seen.history[ONE].append(pair.chain)
    if had_cursor:
        with pytest.raises(Violation, match="RETAIN"):
            judge.dropped_told("early", ONE, make_offset(1, 0), make_offset(1, 4))
    else:
        judge.dropped_told("early", ONE, make_offset(1, 0), make_offset(1, 4))


@pytest.mark.parametrize(("is_restored", "flagged"), [(True, True), (True, False), (False, True)])
def test_a_grant_of_what_has_a_dead_letter(is_restored: bool, flagged: bool) -> None:
    """The coordinator is restored with the cursor in a segment whose server does not know of the dead letter."""
    pair = Pair(flush=True)
    forwarding = pair.judge.rules.dead_letters
    letter = DeadLetter(1, DeadLetterRow((100).to_bytes(8, "big"), 0, True))
    producer = dead_letter_producer(ONE, "keyed", 1, 2)
    forwarding.sent(("b-0", 1, "keyed", 1, 2), ONE, "keyed", producer, [letter])
    pair.judge.seen.waits_for_rebuild = is_restored
    forwarding.granted("a-0", "keyed", ONE, 1, 1, [101], flagged=flagged)
    if is_restored and flagged:
        forwarding.granted("a-0", "keyed", ONE, 1, 1, [100], flagged=flagged)
    else:
        with pytest.raises(Violation, match="J4"):
            forwarding.granted("a-0", "keyed", ONE, 1, 1, [100], flagged=flagged)


def test_a_rebuilt_cursor_passes_only_what_the_group_had_worked_off() -> None:
    """The coordinator came back empty: what is written then is no new beginning of the group."""
    pair = Pair(flush=True)
    for name in ("a-0", "b-0"):
        pair.take(name, 1, flushed=True)
    pair.judge.cursor_written("a-0", ONE, "early", None, CursorRecord(1, 1, 0, "t"))
    pair.judge.view("early", ONE).acked[1] = 1
    seal = chains.Seal(2, pair.batches[0].header.checksum, A, (A, B), None, (), 0)
    pair.write(chains.seal_and_open(pair.chain, seal, NEXT, 0))
    with pytest.raises(Violation, match="I8"):
        pair.judge.cursor_written(PERSON, ONE, "early", None, CursorRecord(2, 1, 0, "t"))
    pair.judge.view("early", ONE).acked[1] = 2
    pair.judge.cursor_written(PERSON, ONE, "early", None, CursorRecord(1, 1, 1, "t"))
    pair.judge.cursor_written("a-0", ONE, "early", CursorRecord(1, 1, 1, "t"), CursorRecord(2, 1, 0, "t"))


@pytest.mark.parametrize("is_on_a_disk", [False, True])
def test_lost_group_that_begins_after_a_drop(is_on_a_disk: bool) -> None:
    """The coordinator came back empty. If no disk knows the consumer group, it is a new one."""
    pair = Pair(flush=True)
    judge = pair.judge
    judge.cursor_written("a-0", ONE, "early", None, CursorRecord(1, 1, 0, "t"))
    assert not judge.view("early", ONE).start
    if is_on_a_disk:
        pair.put(pair.slots["b-0"], PutCursor(ONE, CursorState(1, "early", 1, 0, 0, settings=SETTINGS_DEFAULT)))
    judge.seen.waits_for_rebuild = True
    judge.cursor_written("b-0", ONE, "early", None, CursorRecord(1, 1, 4, "t"))
    assert judge.view("early", ONE).need_not_have(make_offset(1, 3)) is not is_on_a_disk


@pytest.mark.parametrize("is_restored", [False, True])
def test_cursor_that_passes_what_an_older_copy_has_open(is_restored: bool) -> None:
    """A broker that was told the newer record follows that."""
    pair = Pair(flush=True)
    judge, before = pair.judge, pair.chain
    cursor = CursorRecord(1, 1, 0, "t")
    judge.cursor_written("a-0", ONE, "early", None, cursor)
    seal = chains.Seal(0, 0, A, (A, B), None, (), 0)
    pair.write(chains.seal_and_open(before, seal, NEXT, 0))
    judge.seen.history[ONE].append(before)
    judge.seen.waits_for_rebuild = is_restored
    moved = CursorRecord(2, 1, 0, "t")
    if is_restored:
        judge.cursor_written("a-0", ONE, "early", cursor, moved)
    else:
        with pytest.raises(Violation, match="I8"):
            judge.cursor_written("a-0", ONE, "early", cursor, moved)


def test_drop_that_an_older_copy_lacks() -> None:
    """What disks have dropped is gone, whatever the coordinator says before the rebuild."""
    pair = Pair(flush=True)
    seen, before = pair.judge.seen, pair.chain
    for name in ("a-0", "b-0"):
        pair.take(name, 3, flushed=True)
    start = pair.batches[1].header
    begin = Start(start.end_index, start.checksum, sum(batch.size_bytes for batch in pair.batches[:2]))
    pair.write(chains.trim(before, 1, begin, 1))
    seen.history[ONE].append(before)
    assert not seen.is_dropped(ONE, 1, 0)
    seen.waits_for_rebuild = True
    assert seen.is_dropped(ONE, 1, 0)
    assert not seen.is_dropped(ONE, 1, start.end_index)


@pytest.mark.parametrize("is_on_a_disk", [False, True])
def test_a_move_that_the_coordinator_lost(is_on_a_disk: bool) -> None:
    """No disk knows it unless a server had begun its group epoch. Then the rebuild brings it back."""
    pair = Pair(flush=True)
    judge, operations = pair.judge, pair.judge.rules.operations
    begun = CursorRecord(1, 1, 0, "t")
    moved = CursorRecord(1, 2, 0, "t", begun_by=ConsumerGroupOperation.SKIP, requests=(b"id",))
    judge.cursor_written("a-0", ONE, "early", None, begun)
    judge.delivered("early", ONE, make_offset(1, 0), _sent(judge, 100), flagged=False)
    judge.cursor_written("a-0", ONE, "early", begun, moved)
    if is_on_a_disk:
        pair.put(pair.slots["b-0"], PutCursor(ONE, CursorState(1, "early", 2, 0, 0, settings=SETTINGS_DEFAULT)))
    operations.went_back((), lambda _partition, _group: begun)
    operations.rebuilt(lambda _partition, _group: begun)
    operations.subscribed(1, 1, "early", ONE)
    operations.told("a-0", 1, 1, Joined(True, 1, 0, 1, 1, 1))
    if is_on_a_disk:
        with pytest.raises(Violation, match="VOID"):
            operations.told("a-0", 1, 1, Batches(1, (), 0, 0, 1, 1))
        with pytest.raises(Violation, match="ONCE"):
            judge.cursor_written("a-0", ONE, "early", begun, moved)
    else:
        operations.told("a-0", 1, 1, Batches(1, (), 0, 0, 1, 1))
        assert judge.view("early", ONE).seen == {100}, "it had this message in the epoch that is back"
        judge.cursor_written("a-0", ONE, "early", begun, moved)
        with pytest.raises(Violation, match="VOID"):
            operations.told("a-0", 1, 1, Batches(1, (), 0, 0, 1, 1))


def test_a_rebuild_without_a_cursor() -> None:
    """If no disk knew it, its group had acknowledged nothing, and keeps nothing in the record."""
    pair = Pair(flush=True)
    judge = pair.judge
    pair.put(pair.slots["b-0"], PutCursor(ONE, CursorState(1, "shared", 1, 0, 0, settings=SETTINGS_DEFAULT)))
    for group in ("early", "late", "shared"):
        judge.cursor_written("a-0", ONE, group, None, CursorRecord(1, 1, 0, "t"))
    judge.moved("range", ONE, 1)
    known = {"early": CursorRecord(1, 1, 0, "t")}
    judge.rules.operations.went_back((), lambda _partition, group: known.get(group))
    judge.rules.operations.rebuilt(lambda _partition, group: known.get(group))
    assert set(judge.seen.cursors) == {("early", ONE), ("range", ONE), ("shared", ONE)}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_segment_with_a_cursor_that_the_coordinator_lost(*, is_known: bool) -> None:
    """The segment may leave the record: the coordinator has no cursor there, so the group begins again."""
    pair = Pair(flush=True)
    judge, begun = pair.judge, CursorRecord(1, 1, 0, "t")
    judge.cursor_written("a-0", ONE, "early", None, begun)
    judge.delivered("early", ONE, make_offset(1, 0), _sent(judge, 100), flagged=False)
    first = pair.chain.segments[0]
    old = replace(first, state=SegmentState.SEALED, sealed_len=0, sealed_checksum=0)
    after = replace(pair.chain, segments=(replace(first, no=2),))
    judge.rules.operations.went_back((), lambda _partition, _group: begun if is_known else None)
    if is_known:
        with pytest.raises(Violation, match=r"RETAIN.*early stands in 1"):
            judge.rules.retention.left_record(after, old)
        return
    judge.rules.retention.left_record(after, old)
    judge.cursor_written("a-0", ONE, "early", None, replace(begun, segment_no=2))
    assert judge.view("early", ONE).start == make_offset(2, 0)
    with pytest.raises(Violation, match=r"RETAIN.*early stands in 2"):
        judge.rules.retention.left_record(replace(after, segments=(replace(first, no=3),)), replace(old, no=2))


@pytest.mark.parametrize("acked", [3, 1])
def test_a_lost_cursor_continues_at_what_a_disk_has(acked: int) -> None:
    """A broker makes it again where it began. Retention has dropped all before that."""
    pair = Pair(flush=True)
    judge, begun = pair.judge, CursorRecord(1, 1, 2, "t")
    judge.cursor_written("a-0", ONE, "early", None, begun)
    judge.delivered("early", ONE, make_offset(1, 2), _sent(judge, 100), flagged=False)
    pair.put(pair.slots["a-0"], PutCursor(ONE, CursorState(1, "early", 1, acked, acked, 1, settings=SETTINGS_DEFAULT)))
    judge.rules.operations.went_back((), lambda _partition, _group: None)
    judge.seen.waits_for_rebuild = True
    judge.seen.dropped_below[ONE] = make_offset(1, 2)
    judge.cursor_written("a-0", ONE, "early", None, begun)
    assert bool(judge.view("early", ONE).firsts) is (acked == 3)


def _sent(judge: Judge, message: int) -> int:
    judge.sent(message, ONE, b"p" * 16, AckLevel.REPLICATED)
    return message


def _segment(like: Segment, text: str) -> Segment:
    """A segment by its number and its state, with `?` if it was opened with an incomplete table."""
    no, state = int(text[0]), STATES[text[1]]
    length = None if state in (SegmentState.OPEN, SegmentState.UNSETTLED) else LENGTH if no == 1 else 0
    return replace(like, no=no, state=state, sealed_len=length, incomplete_table=text.endswith("?"))


@pytest.mark.parametrize(
    ("left", "records", "is_forgiven"),
    [
        ("", ("1s 2l 3l 4o",), False),
        ("", ("1s 2u 3o?", "1s 2l 3s? 4o"), False),
        ("", ("1s 2s 3u 4o", "1s 2l 3l 4s 5o?", "1s 2l 3l 4s 5s? 6o"), False),  # 4 had the whole table
        ("", ("1s 2s 3u 4o?", "1s 2l 3l 4s? 5o"), True),
        ("", ("1s 2s 3u 4o?", "1s 2l 3l 4s? 5o", "1s 2l 3l 5s 6o"), True),  # the incomplete one is folded
        ("1s", ("1s 2o", "2o", "2u 3o?", "2l 3s? 4o"), True),
        ("1s", ("1s 2u 3o?", "1s 2l 3s? 4o", "2l 3s? 4s 5o"), False),  # the record had it while readers needed it
    ],
)
def test_a_table_behind_lost_segments(left: str, records: tuple[str, ...], is_forgiven: bool) -> None:
    """It lacks the producer of segment 1."""
    pair = Pair(flush=True)
    for name in ("a-0", "b-0"):
        pair.take(name, 3, flushed=True)
    seen, like = pair.judge.seen, pair.chain.open_segment
    known: list[chains.Chain] = [
        replace(pair.chain, segments=tuple(_segment(like, text) for text in record.split())) for record in records
    ]
    seen.history[ONE] = known
    seen.left[ONE] = [_segment(like, text) for text in left.split()]
    preparation = Preparation(known[-1].open_segment.no, b"x", (A, B), True, False, NO_TABLE, None, 1)
    if is_forgiven:
        pair.judge.rules.tables.prepared(known[-1], A, preparation)
    else:
        with pytest.raises(Violation, match="TABLE"):
            pair.judge.rules.tables.prepared(known[-1], A, preparation)
