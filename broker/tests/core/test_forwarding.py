"""Forwarding: the first message of a key goes to the dead-letter topic after its last attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.dead_letters import dead_letter_producer
from seriatim_api.ids import MemberId, make_offset
from seriatim_api.lag import lag_messages
from seriatim_broker.core.consumers.groups import without_consumers
from seriatim_broker.core.consumers.groups.figures import figures_of
from seriatim_broker.core.consumers.keyed.earlier_messages import TRIES_MAX
from seriatim_broker.core.state.keyed.grants import Fetch
from seriatim_broker.core.state.numbered_sending import first_number
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import change_server
from seriatim_broker.core.values.keyed import (
    ConsumerMode,
    DeadLetterRow,
    Exhausted,
    KeyOperation,
    SeenKey,
)
from seriatim_broker.core.values.kinds import ReadKind, TimerKind
from seriatim_broker.core.values.ledger_rows import count_keys, read_rows, write_forwarder
from seriatim_broker.core.values.log import HandOverId, HandOverState, LedgerRow
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.core.values.segments import Segments

from .keyed_support import QUICK, KeyedServing, indexes_of, offsets
from .support import GROUP, M00, M01, MS, SECOND, TOPIC, P

MIB = 1 << 20
POLICY = replace(QUICK, attempts_max=1, exhausted=Exhausted.DEAD_LETTER, dead_letter_topic="dead")

TERM = 3


class Forwarding(KeyedServing):
    """A consumer group with a dead-letter topic. Messages that cannot be read are in `unreadable`."""

    def __init__(self, keys: str = "aab", **more: object) -> None:
        self.unreadable: set[int] = set()
        self.filling = b""
        super().__init__(keys, **{"policy": POLICY, **more})  # type: ignore[arg-type]

    def reads(self) -> None:
        """The disk answers what it was asked."""
        super().reads()
        for read in self.all(fx.ReadDeadLetter):
            if read.serial not in self.answered:
                self.answered.add(read.serial)
                row = DeadLetterRow(b"letter of %d" % read.offset + self.filling, 7, is_keyed=True)
                self.do(ev.DeadLetterRead(read.serial, None if read.offset in self.unreadable else row))

    def fail(self, *keys: str) -> None:
        """A consumer fails on the first messages of these keys."""
        for run in self.runs():
            if self.keys[run.offsets[0] & 0xFF].decode() in keys:  # type: ignore[union-attr]
                self.nack(run)

    def asked(self) -> list[fx.ForwardBatches]:
        """The requests that were not answered yet."""
        return [effect for effect in self.all(fx.ForwardBatches) if effect.serial not in self.answered]

    def numbers(self) -> list[int]:
        """The numbers in the newest request."""
        (request,) = self.asked()
        return [letter.number for letter in request.letters]

    def done(self, count: int | None = None, error: errors.SeriatimError | None = None) -> None:
        """The master of the dead-letter topic answers."""
        (request,) = self.asked()
        self.answered.add(request.serial)
        stored = len(request.letters) if count is None else count
        self.do(ev.ForwardsDone(P, GROUP, request.serial, stored, error))

    def notes(self) -> list[str]:
        """The names of what was reported to administrators."""
        return [note.name for note in self.all(fx.Note)]


def forwarding(keys: str = "aab", **more: object) -> Forwarding:
    bench = Forwarding(keys, **more)
    bench.serve()
    return bench


def test_after_its_last_attempt_a_message_goes_to_the_dead_letter_topic_and_its_key_goes_on() -> None:
    bench = forwarding("aab")
    bench.fail("a")
    bench.deliver()
    (request,) = bench.asked()
    assert (request.topic, request.partition_number) == ("dead", bench.part.chain.number)  # type: ignore[union-attr]
    assert request.producer == dead_letter_producer(P, GROUP, 1, TERM)
    assert [letter.row.body for letter in request.letters] == [b"letter of %d" % offsets([0])[0]]
    (read,) = bench.all(fx.ReadDeadLetter)
    assert (read.origin.topic, read.origin.group, read.origin.attempts, read.origin.reason) == (TOPIC, GROUP, 1, "no")
    assert bench.granted() == [], "the later messages of the key wait"
    bench.done()
    bench.deliver()
    assert bench.granted() == [[1]]
    assert read_rows(list(bench.rows().items())).blocks, "the first message is passed"
    assert "dead_lettered" in bench.notes()


def test_a_dead_letter_is_sent_only_when_its_number_is_on_both_disks() -> None:
    bench = forwarding("ab")
    bench.fail("a")
    bench.reads()
    bench.persist()
    assert bench.keyed.line.keys[b"ka"].sequence == first_number(TERM)
    assert bench.asked() == []
    bench.confirm_replications()
    assert bench.numbers() == [1]


class Later(Forwarding):
    """A server in a later term."""

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        record = ev.CursorRecord(no, epoch, start, TOPIC, mode=self.mode, retry=self.policy, term_base=6)
        self.do(ev.CursorRead(P, GROUP, record, revision))


def later(bench: Forwarding, keys: str) -> Later:
    """The server that continues, in a later term, with what is on the disk of another one."""
    rows = tuple(LedgerRow(1, GROUP, name, value) for name, value in bench.rows().items())
    found = Later(keys, cursors=(bench.part.cursors[GROUP],), rows=rows)
    found.serve()
    return found


def test_a_number_of_an_earlier_term_is_sent_as_it_was() -> None:
    """A dead letter whose answer was lost is found again, and the next one has a number of the new term."""
    former = forwarding("ab")
    former.fail("a")
    former.deliver()
    (lost,) = former.asked()
    present = later(former, "ab")
    present.fail("b")
    present.deliver()
    (again,) = present.asked()
    assert (again.producer, again.letters) == (lost.producer, lost.letters)
    present.done()
    present.deliver()
    (following,) = present.asked()
    assert (following.producer, present.numbers()) == (dead_letter_producer(P, GROUP, 1, TERM + 6), [1])


def test_nothing_is_forwarded_into_the_topic_of_the_group_itself() -> None:
    bench = forwarding("ab", policy=replace(POLICY, dead_letter_topic=TOPIC))
    bench.fail("a")
    for _ in range(20):
        bench.deliver(400 * MS)
    assert bench.asked() == []
    assert bench.notes().count("dead_letters_refused") == 1


def test_a_message_that_retention_dropped_takes_its_number_with_it() -> None:
    bench = forwarding("aab")
    bench.fail("a")
    bench.deliver()
    key = bench.keyed.line.keys[b"ka"]
    assert list(key.aside) == list(offsets([0, 1])), "the list says which message has the number"
    bench.keyed.pass_first(bench.keyed.line.keys[b"ka"])
    bench.keyed.line.requeue(bench.keyed.line.keys[b"ka"])
    bench.done(0, errors.NotServingError("later"))
    bench.deliver(200 * MS)
    assert bench.granted() == [[1]]
    assert not bench.keyed.forwarder.waiting


def alone_with_a_stored_dead_letter() -> Forwarding:
    """The dead letter of the only message that is left was stored just now, and no consumer is there."""
    bench = forwarding("aab")
    bench.fail("a")
    bench.do(ev.ConsumerGone(1))
    bench.deliver()
    bench.done()
    return bench


def test_stored_dead_letter_is_on_disks_without_consumers() -> None:
    bench = alone_with_a_stored_dead_letter()
    assert count_keys(bench.rows().items(), 0).forwarding == 1, "the control record is written 20 ms later"
    bench.deliver()
    assert count_keys(bench.rows().items(), 0).forwarding == 0
    assert GROUP not in bench.part.consumer_groups, "nothing is left to do"


def a_consumer_joins(bench: Forwarding) -> None:
    bench.join(subscription=2)


def a_person_lists_keys(bench: Forwarding) -> None:
    bench.do(ev.ListKeys(1, P, GROUP, (), b"", 100, b"", 60 * SECOND))


@pytest.mark.parametrize("comes", [a_consumer_joins, a_person_lists_keys])
def test_stored_dead_letter_when_the_group_begins_anew(comes: Callable[[Forwarding], None]) -> None:
    bench = alone_with_a_stored_dead_letter()
    comes(bench)
    bench.cursor()
    for _ in range(3):
        bench.deliver()
    assert bench.asked() == [], "it is not sent again"
    assert count_keys(bench.rows().items(), 0).forwarding == 0


def lag_of(bench: Forwarding) -> tuple[int, int]:
    """The lag in a description, and in the metrics."""
    before = len(bench.all(fx.ConsumerGroupDescribed))
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    bench.look_up()
    (found,) = bench.all(fx.ConsumerGroupDescribed)[before:]
    assert found.keys is not None
    end = bench.chain.open_segment.base
    assert end is not None
    assert found.position is not None
    figures = figures_of(bench.part, bench.part.consumer_groups[GROUP])
    assert figures is not None
    return lag_messages(end - found.position, found.keys.passed, found.keys.aside), figures.lag_messages


def test_lag_while_a_dead_letter_gets_its_number() -> None:
    bench = forwarding("abcabc")
    for run in bench.runs():
        (bench.nack if 0 in indexes_of(run) else bench.acks)(run)
    bench.deliver()
    lags = [lag_of(bench)]
    bench.done(0, errors.UnknownTopicError("there is no such topic"))
    lags.append(lag_of(bench))
    bench.deliver()
    lags.append(lag_of(bench))
    assert lags == [(2, 2)] * 3, "the message that failed, and the one after it"


def test_passed_messages_count_from_the_place_that_is_told() -> None:
    bench = forwarding("abcabc")
    for run in bench.runs():
        bench.acks(run)
    assert bench.keyed.window.floor == 6
    assert bench.keyed.counts(1).passed == 5, "on all disks the group is at 1:1"


def lose_the_next_segment(bench: Forwarding) -> None:
    """Segment 2 is lost before anything was written there, and segment 3 follows."""
    chain = bench.part.chain
    assert chain is not None
    first, second = chain.segments
    lost = replace(second, state=SegmentState.LOST, sealed_len=0)
    bench.chain = replace(chain, epoch=chain.epoch + 1, segments=(first, lost, replace(second, no=3)))
    bench.read_chain(bench.chain)


def handed_over(before: Callable[[Forwarding], None] | None = None) -> tuple[Forwarding, fx.WriteCursor]:
    """All that must keep it has the handoff, and the cursor is being written."""
    bench = forwarding("ab")
    if before is not None:
        before(bench)
    following = bench.chain.segments[1].server
    bench.link(following)
    bench.fail("a")
    bench.deliver()
    bench.done()
    for run in bench.runs():
        bench.acks(run)
    bench.keyed.handoff.rests_until_us = 0
    for _ in range(4):
        bench.deliver()
    handed = bench.sent(msg.HandOver, following)[-1].handover
    assert read_rows(handed.rows).next_number == 1, "the next server counts in its own term"
    bench.hear(following, msg.HandOverKept(P, handed.segment_no, GROUP, handed.group_epoch, handed.id))
    (written,) = bench.all(fx.WriteCursor)
    return bench, written


@pytest.mark.parametrize(("before", "noted"), [(None, (0, 0)), (lose_the_next_segment, (make_offset(2, 0), 2))])
def test_cursor_that_passes_a_lost_segment_says_so(
    before: Callable[[Forwarding], None] | None, noted: tuple[int, int]
) -> None:
    """Rule `passed-is-noted`."""
    record = handed_over(before)[1].record
    assert record.segment_no == (2 if before is None else 3)
    assert (record.dropped_from, record.dropped_position) == noted


def test_a_hand_over_whose_transaction_finds_a_newer_chain_reads_the_chain() -> None:
    bench, written = handed_over()
    assert written.chain_revision
    before = len(bench.all(fx.ReadChain))
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.CONFLICT, 0))
    assert len(bench.all(fx.ReadChain)) == before + 1


def test_a_hand_over_that_is_not_taken_is_tried_again_although_nothing_else_is_left_to_do() -> None:
    bench = forwarding("a", policy=QUICK)
    bench.link(bench.chain.segments[1].server)
    (run,) = bench.runs()
    bench.nack(run, is_last=True)  # its key is parked
    bench.keyed.handoff.rests_until_us = 0
    for _ in range(4):
        bench.deliver()
    assert bench.keyed.handoff.frozen is not None
    while bench.keyed.handoff.frozen is not None:  # the next segment is empty, so its server does not answer
        bench.wait(100 * MS, (M01,))
    assert not bench.keyed.grants.by_token
    assert bench.core.state.timers.polls[TimerKind.KEYS, P, GROUP] <= bench.keyed.handoff.rests_until_us


def test_consumer_that_joined_during_a_crossing_that_failed() -> None:
    """Rule `joined-is-told`."""
    bench, written = handed_over()
    bench.clear()
    bench.join(subscription=2)
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.CONFLICT, 0))
    bench.read_chain(bench.chain)
    bench.cursor()
    assert bench.keyed.handoff.frozen is None
    assert [effect.subscription for effect in bench.all(fx.Deliver) if isinstance(effect.event, fx.Joined)] == [2]


def test_a_read_for_the_forwarder_that_a_person_ended_ends_in_peace() -> None:
    bench = forwarding("ab")
    bench.unreadable = set(offsets([0]))
    bench.fail("a")
    bench.deliver()
    forward = bench.keyed.forwarder.waiting[b"ka"]
    assert (forward.number, forward.tries) == (0, 1), "only what can be sent gets a number"
    serial = forward.reading = bench.core.state.new_serial()
    bench.core.state.reads[serial] = (ReadKind.KEYS, P, 1, GROUP, 0)
    fetch = Fetch(offsets([0]), list(offsets([0])), tries=TRIES_MAX)  # no member has the message
    bench.keyed.grants.fetches[serial] = fetch
    seen = SeenKey(b"ka", 0, offsets([0])[0], 1)
    bench.do(ev.OperateKeys(9, P, GROUP, KeyOperation.SKIP, (seen,), bench.now_us + SECOND))
    assert not bench.keyed.forwarder.waiting
    bench.wait(SECOND, (M01,))
    bench.deliver()
    assert not bench.keyed.grants.fetches
    assert serial not in bench.core.state.reads


# ---- memory ------------------------------------------------------------------------------------------------


def held_bytes(bench: Forwarding) -> int:
    """What the forwarder has in memory, with the reads that are under way."""
    forwards = bench.keyed.forwarder.waiting.values()
    return sum(len(forward.row.body) if forward.row else MIB * bool(forward.reading) for forward in forwards)


def test_messages_on_their_way_to_dead_letter_topics_have_a_limit_in_bytes() -> None:
    bench = forwarding("abcdef")
    bench.core.state.config = replace(bench.config, forwarding_bytes_max=2 * MIB)
    bench.filling = bytes(MIB - 100)
    bench.fail("a", "b", "c", "d", "e", "f")
    assert 0 < held_bytes(bench) <= 2 * MIB
    stored = 0
    for _ in range(12):
        bench.deliver(400 * MS)
        assert held_bytes(bench) <= 2 * MIB
        if bench.asked():
            stored += len(bench.asked()[0].letters)
            bench.done()
    assert stored == 6
    assert not bench.keyed.forwarder.waiting
    assert not bench.core.state.forwarding_bytes


def test_what_other_groups_have_counts_until_they_are_gone() -> None:
    bench = forwarding("ab")
    state = bench.core.state
    state.forwarding_bytes[P, "other"] = state.config.forwarding_bytes_max, bench.now_us + 2 * SECOND
    bench.fail("a")
    bench.deliver(SECOND)
    assert not bench.all(fx.ReadDeadLetter)
    for _ in range(3):
        bench.deliver(SECOND)
    assert bench.all(fx.ReadDeadLetter), "that group has left this broker"
    assert bench.asked()


def test_a_group_whose_dead_letter_topic_takes_nothing_keeps_no_messages_in_memory() -> None:
    bench = forwarding("abcd")
    bench.fail("a", "b", "c", "d")
    for _ in range(40):
        bench.deliver(400 * MS)
        if bench.asked():
            bench.done(0, errors.UnknownTopicError("there is no topic 'dead'"))
    assert bench.keyed.forwarder.refusal == "there is no topic 'dead'"
    assert bench.notes().count("dead_letters_refused") == 1
    bench.clear()
    asked = 0
    for _ in range(40):
        bench.deliver(400 * MS)
        if bench.asked():
            assert len(bench.asked()[0].letters) == 1, "one message is read for each try"
            asked += 1
            bench.done(0, errors.UnknownTopicError("there is no topic 'dead'"))
            assert held_bytes(bench) == 0
    assert asked
    for _ in range(20):
        bench.deliver(400 * MS)
        if bench.asked():
            bench.done()
    assert not bench.keyed.forwarder.waiting, "all are stored when it takes dead letters again"
    assert bench.notes().count("dead_letters_taken") == 1


# ---- without consumers -------------------------------------------------------------------------------------


def after_all_consumers_left(*, server: MemberId) -> Forwarding:
    """Another member learned all of a group whose dead letter is on its way, and the last consumer is gone."""
    bench = forwarding("ab")
    bench.fail("a")
    bench.deliver()
    rows = tuple(LedgerRow(1, GROUP, name, value) for name, value in bench.rows().items())
    other = Forwarding("ab", cursors=(bench.part.cursors[GROUP],), rows=rows)
    other.link(M01)
    other.chain = change_server(other.chain, 1, server, ())
    other.clear()
    other.read_chain(other.chain)
    return other


def until_asked(bench: Forwarding) -> None:
    """The right is taken, and the dead letter is sent."""
    for _ in range(20):
        bench.cursor()
        bench.deliver(400 * MS)
        if bench.asked():
            return


def test_a_new_server_goes_on_with_dead_letters_although_the_group_has_no_consumers() -> None:
    bench = after_all_consumers_left(server=M00)
    assert bench.all(fx.ReadCursor)
    until_asked(bench)
    assert bench.numbers() == [1]
    bench.done()
    for _ in range(3):
        bench.deliver(400 * MS)
    assert GROUP not in bench.part.consumer_groups, "nothing is left to do"


def test_a_member_replaces_a_dead_server_of_a_group_without_consumers_to_store_its_dead_letters() -> None:
    bench = after_all_consumers_left(server=M01)
    assert not bench.all(fx.ReadCursor), "that server continues with them"
    bench.unlink(M01, refused=True)
    assert bench.all(fx.ReadCursor)
    bench.cursor()
    write = bench.all(fx.WriteChain)[-1]
    assert write.chain.segment(1).server == M00  # type: ignore[union-attr]
    bench.chain = write.chain
    bench.written()
    bench.chain = write.chain
    until_asked(bench)
    assert bench.numbers() == [1]


def test_a_member_leaves_the_dead_letters_to_a_server_that_lives() -> None:
    bench = after_all_consumers_left(server=M01)
    without_consumers.take_up_forwards(bench.core.state, bench.part, bench.chain, dead=M01.broker)
    bench.look_up()
    assert GROUP not in bench.part.consumer_groups
    assert not bench.all(fx.WriteChain)


def test_a_group_that_was_deleted_meanwhile_is_not_kept_for_its_dead_letters() -> None:
    bench = after_all_consumers_left(server=M00)
    record = ev.CursorRecord(1, 1, 0, TOPIC, mode=ConsumerMode.KEY_ORDERED, deleted=True)
    bench.do(ev.CursorRead(P, GROUP, record, 9))
    assert GROUP not in bench.part.consumer_groups


def test_without_consumers_dead_letters_are_not_handed_over() -> None:
    bench = forwarding("ab")
    bench.keyed.handoff.rests_until_us = 0
    bench.fail("a", "b")
    bench.do(ev.ConsumerGone(1))
    for _ in range(4):
        bench.deliver(400 * MS)
        assert bench.keyed.handoff.frozen is None
    for _ in range(6):
        if bench.asked():
            bench.done()
        bench.deliver(400 * MS)
    assert not bench.sent(msg.HandOver)
    assert not bench.keyed.forwarder.waiting
    assert bench.all(fx.WriteCursor)[-1].record.segment_no == 2, "all of segment 1 is done"


# ---- a server keeps dead letters that are on their way ------------------------------------------------------


def crosses_with_dead_letters() -> tuple[Forwarding, fx.WriteCursor]:
    """Dead letters wait. The keys are handed over, the cursor is being written, and all consumers end."""
    bench = forwarding("ab")
    following = bench.chain.segments[1].server
    bench.link(following)
    bench.fail("a", "b")
    bench.deliver()
    bench.keyed.handoff.rests_until_us = 0
    for _ in range(4):
        bench.deliver()
    handed = bench.sent(msg.HandOver, following)[-1].handover
    bench.hear(following, msg.HandOverKept(P, handed.segment_no, GROUP, handed.group_epoch, handed.id))
    (written,) = bench.all(fx.WriteCursor)
    bench.done(0, errors.DeadlineExceededError("no answer"))
    bench.do(ev.ConsumerGone(1))
    return bench, written


@pytest.mark.parametrize("outcome", [ev.WriteOutcome.CONFLICT, ev.WriteOutcome.REFUSED])
def test_dead_letters_go_on_alone_after_a_crossing_that_failed(outcome: ev.WriteOutcome) -> None:
    """Rule `forwards-are-wanted`."""
    bench, written = crosses_with_dead_letters()
    bench.do(ev.CursorWritten(P, GROUP, written.serial, outcome, 0))
    bench.clear()
    bench.wait(2 * SECOND, (M01,))
    assert bench.all(fx.ReadCursor)
    bench.read_chain(bench.chain)
    bench.cursor()
    for _ in range(4):
        bench.deliver()
    assert bench.numbers() == [1, 2]
    bench.done()
    bench.deliver()
    assert count_keys(bench.rows().items(), 0).forwarding == 0


def test_consumer_that_comes_after_a_crossing_that_failed() -> None:
    bench, written = crosses_with_dead_letters()
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.CONFLICT, 0))
    bench.read_chain(bench.chain)
    bench.cursor()
    bench.clear()
    bench.join(subscription=2)
    assert bench.all(fx.ReadCursor)
    bench.cursor()
    bench.deliver()
    assert bench.delivered(fx.Joined)


def test_group_with_dead_letters_that_another_member_serves_now() -> None:
    bench, written = crosses_with_dead_letters()
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.CONFLICT, 0))
    bench.chain = change_server(bench.part.chain, 1, M01, ())
    bench.read_chain(bench.chain)
    bench.cursor()
    assert GROUP not in bench.part.consumer_groups, "that member continues with them"


def test_dead_letters_without_consumers_after_a_rebuild() -> None:
    bench = forwarding("ab")
    bench.fail("a")
    bench.do(ev.ConsumerGone(1))
    bench.deliver()
    bench.done(0, errors.NotServingError("later"))
    bench.clear()
    bench.do(ev.CoordinatorRebuilt())
    bench.read_chain(bench.chain)
    assert bench.all(fx.ReadCursor)
    bench.cursor()
    for _ in range(4):
        bench.deliver()
    assert bench.numbers() == [1]


def test_dead_letters_when_the_next_consumer_leaves_at_once() -> None:
    bench = forwarding("ab")
    bench.fail("a")
    bench.do(ev.ConsumerGone(1))
    bench.deliver()
    bench.done(0, errors.NotServingError("later"))
    bench.join(subscription=2)
    bench.do(ev.ConsumerGone(1))
    bench.cursor()
    for _ in range(4):
        bench.deliver()
    assert bench.numbers() == [1]


def test_dead_letters_taken_up_while_the_outcome_is_unknown() -> None:
    bench, written = crosses_with_dead_letters()
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.UNKNOWN, 0))
    without_consumers.take_up_forwards(bench.core.state, bench.part, bench.chain)
    bench.clear()
    bench.do(ev.CursorRead(P, GROUP, written.record, 9))
    assert bench.all(fx.ReadCursor)
    bench.do(ev.CursorRead(P, GROUP, written.record, 9))
    assert GROUP not in bench.part.consumer_groups, "the server of the next segment continues"


def test_dead_letters_that_are_handed_over_without_consumers() -> None:
    """Rule `letters-go-on`: the next server is told, and sends them."""
    bench, written = crosses_with_dead_letters()
    server = bench.chain.segments[1].server
    bench.do(ev.CursorWritten(P, GROUP, written.serial, ev.WriteOutcome.DONE, 9))
    bench.do(ev.CursorRead(P, GROUP, written.record, 9))
    assert bench.sent(msg.PassRequest, server) == [msg.PassRequest(P, 2, GROUP)]
    assert GROUP not in bench.part.consumer_groups


@pytest.mark.parametrize("has_letters", [True, False])
def test_server_that_is_told_of_dead_letters(has_letters: bool) -> None:
    """Rule `letters-go-on`."""
    named = HandOverId(7, 3)
    before = forwarding("ab")
    before.fail("a")
    before.deliver()
    rows = tuple(before.rows().items()) if has_letters else (write_forwarder(1),)
    bench = Forwarding("ab", handoff=named)
    bench.part.handoffs = {GROUP: HandOverState(1, GROUP, 1, named, rows)}
    bench.link(M01)
    bench.read_chain(bench.chain)
    bench.hear(M01, msg.PassRequest(P, 1, GROUP))
    bench.cursor()
    if has_letters:
        bench.written()  # the serving right of this member run
        bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + 100 * MS, (M01,))
        bench.cursor()
        for _ in range(4):
            bench.deliver()
        assert bench.numbers() == [1]
    else:
        assert GROUP not in bench.part.consumer_groups


def with_letters_handed_over(no: int = 1) -> Forwarding:
    """A member that has a handoff of dead letters for the server of a segment, and no control record."""
    before = forwarding("ab")
    before.fail("a")
    before.deliver()
    bench = Forwarding("ab")
    bench.link(M01)
    bench.part.handoffs = {GROUP: HandOverState(no, GROUP, 1, HandOverId(7, 3), tuple(before.rows().items()))}
    return bench


def test_server_that_dies_before_it_begins_with_dead_letters() -> None:
    """Rule `letters-go-on`: the next one has the handoff, and no control record."""
    bench = with_letters_handed_over()
    bench.read_chain(change_server(bench.chain, 1, M01, ()))
    assert not bench.all(fx.ReadCursor), "that server continues with them"
    bench.unlink(M01, refused=True)
    assert bench.all(fx.ReadCursor)


def test_request_about_dead_letters_that_got_lost() -> None:
    """Rule `letters-go-on`: the server of an open segment has the handoff, and the chain changes."""
    bench = with_letters_handed_over(no=2)
    mine = replace(bench.chain.segments[1], server=M00, members=(M00, M01))
    bench.read_chain(replace(bench.chain, epoch=5, segments=Segments.of((bench.chain.segments[0], mine))))
    assert bench.part.consumer_groups[GROUP].forwards_alone


def test_consumers_that_end_while_dead_letters_are_handed_over() -> None:
    bench = forwarding("ab")
    bench.link(bench.chain.segments[1].server)
    bench.fail("a", "b")
    bench.deliver()
    bench.keyed.handoff.rests_until_us = 0
    for _ in range(4):
        bench.deliver()
    assert bench.keyed.handoff.frozen is not None
    bench.do(ev.ConsumerGone(1))
    assert bench.keyed.handoff.frozen is None
    for _ in range(2):
        bench.done()
        bench.deliver()
    assert count_keys(bench.rows().items(), 0).forwarding == 0
