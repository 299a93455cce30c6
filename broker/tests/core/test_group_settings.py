"""Administrators configure a group: other policies at once, other modes only without consumers and without keys that
wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.keyed import (
    RETRY_DEFAULT,
    BackOff,
    ConsumerGroupSettings,
    ConsumerMode,
    Exhausted,
    RetryPolicy,
    WantedSettings,
)

from .keyed_support import QUICK, KeyedServing, indexes_of
from .support import DONE, GROUP, M01, MS, SECOND, STREAM, TOPIC, UNKNOWN, P, Serving
from .test_key_states import drops_below

CONFIGURE = ev.ConsumerGroupOperation.CONFIGURE
REWIND, SKIP = ev.ConsumerGroupOperation.REWIND, ev.ConsumerGroupOperation.SKIP
ONCE = replace(QUICK, attempts_max=1)
SLOW = replace(QUICK, back_off=BackOff.FIXED, delays_ms=(5_000,))
ID = bytes(16)


class Configured(KeyedServing):
    """A server of a keyed group that administrators configure."""

    def __init__(self, keys: str = "aab", policy: RetryPolicy = QUICK) -> None:
        super().__init__(keys, policy=policy)
        self.record = ev.CursorRecord(1, 1, 0, TOPIC, mode=ConsumerMode.KEY_ORDERED, retry=policy)
        self.cursor_revision = 5

    def operate(
        self,
        operation: ev.ConsumerGroupOperation = CONFIGURE,
        wanted: WantedSettings | None = None,
        index: int = 0,
        *,
        drop_aside: bool = False,
        operation_id: bytes = ID,
    ) -> None:
        """An administrator asks for it, and both records are read."""
        self.clear()
        deadline_us = self.now_us + 3000 * MS
        self.do(
            ev.OperateConsumerGroup(
                1,
                P,
                GROUP,
                operation,
                operation_id,
                0,
                1,
                index,
                0,
                deadline_us,
                wanted or WantedSettings(),
                drop_aside,
            )
        )
        self.read_both()

    def reads(self) -> None:
        """The disk answers what it was asked, in any mode."""
        super().reads()
        Serving.reads(self)

    def read_both(self) -> None:
        """The coordinator answers what the operation reads."""
        chain = self.part.chain
        assert chain is not None
        self.read_chain(chain)
        self.do(ev.CursorRead(P, GROUP, self.record, self.cursor_revision))

    def end(self, outcome: ev.WriteOutcome = DONE) -> None:
        """The transaction ends."""
        write = self.all(fx.WriteCursor)[-1]
        if outcome is DONE:
            self.cursor_revision += 1
            self.record = write.record
        self.do(ev.CursorWritten(P, GROUP, write.serial, outcome, self.cursor_revision if outcome is DONE else 0))

    def refusal(self) -> errors.SeriatimError:
        """What is reported to the administrator."""
        assert not self.all(fx.WriteCursor), "nothing is changed"
        (answer,) = self.all(fx.ConsumerGroupOperated)
        assert answer.error is not None
        return answer.error


BLOCKS = replace(QUICK, exhausted=Exhausted.BLOCK)
"""A group that is shared parks no key."""


def served(keys: str = "aab", policy: RetryPolicy = QUICK) -> Configured:
    bench = Configured(keys, policy)
    bench.serve()
    return bench


def left(bench: Configured) -> Configured:
    """The consumer has left, and this member has forgotten the group."""
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.persist_everywhere()
    assert GROUP not in bench.part.consumer_groups
    return bench


def parked(policy: RetryPolicy = ONCE) -> Configured:
    """Key a is parked, all else is acknowledged, and no consumer is there."""
    bench = served("aab", policy)
    first, other = bench.runs()
    bench.nack(first)
    bench.acks(other)
    bench.deliver()
    return left(bench)


def test_new_mode_tells_of_what_was_dropped_before() -> None:
    """Rule `new-mode-keeps-note`: the only consumer that was notified has gone, and acknowledged nothing since."""
    bench = served("aab")
    first, other = bench.runs()
    bench.acks(other)
    bench.nack(first, delay_ms=60_000)
    bench.deliver()
    drops_below(bench, 1)
    left(bench)
    bench.operate(wanted=WantedSettings(ConsumerMode.SHARED, BLOCKS))
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.group_epoch, write.record.start_index) == (2, 1)
    assert write.record.dropped_from == make_offset(1, 0)
    bench.end()
    bench.mode = ConsumerMode.SHARED
    bench.join()
    bench.read_both()
    bench.read_both()
    bench.deliver()
    assert [(event.from_offset, event.to_index) for event in bench.delivered(fx.Dropped)] == [(make_offset(1, 0), 1)]


def test_another_policy_counts_at_once_and_keeps_epoch_grants_and_waits() -> None:
    bench = served("ab")
    run, other = bench.runs()
    bench.nack(run, delay_ms=500)
    bench.operate(wanted=WantedSettings(retry=SLOW))
    write = bench.all(fx.WriteCursor)[-1]
    assert (write.record.group_epoch, write.record.retry) == (1, SLOW)
    assert write.chain_revision == bench.revision, "compared with the chain"
    bench.end()
    assert bench.all(fx.ConsumerGroupOperated)[-1].error is None
    assert not bench.delivered(fx.TokensVoid)
    bench.deliver(SECOND)
    (again,) = bench.runs()
    assert (indexes_of(again), again.attempt) == ([0], 2), "it waited as long as before"
    bench.nack(other)
    bench.deliver(4 * SECOND)
    assert bench.granted() == []
    bench.deliver(2 * SECOND)
    assert bench.granted() == [[1]], "the new delay"


def test_attempts_count_on_under_the_new_policy() -> None:
    bench = served("a")
    (run,) = bench.runs()
    bench.nack(run)
    bench.operate(wanted=WantedSettings(retry=replace(QUICK, attempts_max=2)))
    bench.end()
    bench.deliver(SECOND)
    (run,) = bench.runs()
    bench.nack(run)
    bench.deliver(20 * SECOND)
    assert bench.granted() == []
    assert [note.name for note in bench.all(fx.Note) if note.name == "key_parked"]


def test_grants_of_a_consumer_last_as_long_as_it_was_told() -> None:
    bench = served("a.", replace(QUICK, grant_ms=20_000))
    run, _ = bench.runs()
    bench.operate(wanted=WantedSettings(retry=replace(QUICK, grant_ms=1_000)))
    bench.end()
    bench.nack(run, delay_ms=1)
    bench.deliver(SECOND)
    (again,) = bench.runs()
    bench.wait(5 * SECOND, (M01,))
    bench.acks(again)
    assert bench.void() == [], "it extends its grants in the time that it received"


def test_another_policy_is_on_disks_too() -> None:
    """Rule `settings-on-disks`."""
    bench = served()
    assert bench.part.cursors[GROUP].settings == ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, QUICK)
    bench.operate(wanted=WantedSettings(retry=SLOW))
    bench.end()
    wanted = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, SLOW)
    assert bench.part.cursors[GROUP].settings == wanted
    assert bench.sent(msg.ReplicateLedger, M01)[-1].cursor.settings == wanted


def test_the_same_settings_change_nothing() -> None:
    bench = served()
    bench.operate(wanted=WantedSettings(retry=QUICK))
    assert not bench.all(fx.WriteCursor)
    assert bench.all(fx.ConsumerGroupOperated)[-1].was_done


def test_a_repeated_request_is_carried_out_once() -> None:
    bench = served()
    bench.operate(wanted=WantedSettings(retry=SLOW))
    bench.end(UNKNOWN)
    bench.read_both()
    bench.end()
    bench.operate(wanted=WantedSettings(retry=QUICK), operation_id=b"b" * 16)
    bench.end()
    bench.operate(wanted=WantedSettings(retry=SLOW))
    assert not bench.all(fx.WriteCursor)
    assert bench.all(fx.ConsumerGroupOperated)[-1].was_done


def test_another_mode_is_refused_while_consumers_are_there() -> None:
    bench = served()
    bench.operate(wanted=WantedSettings(ConsumerMode.EXCLUSIVE))
    error = bench.refusal()
    assert isinstance(error, errors.PreconditionError)
    assert "consumer-1" in str(error)


def test_another_mode_begins_a_group_epoch_at_the_first_message_that_is_not_acknowledged() -> None:
    bench = served("aab")
    run, _ = bench.runs()
    bench.acks(run, upto=1)
    bench.deliver()
    left(bench)
    bench.operate(wanted=WantedSettings(ConsumerMode.SHARED, BLOCKS))
    record = bench.all(fx.WriteCursor)[-1].record
    assert (record.mode, record.group_epoch, record.segment_no, record.start_index) == (ConsumerMode.SHARED, 2, 1, 1)
    assert record.term_base > 0, "tokens grow"
    bench.end()
    assert bench.all(fx.ConsumerGroupOperated)[-1].error is None
    bench.read_both()
    assert GROUP not in bench.part.consumer_groups


def test_an_exclusive_group_has_no_policy() -> None:
    bench = left(served())
    bench.operate(wanted=WantedSettings(ConsumerMode.EXCLUSIVE, SLOW))
    assert isinstance(bench.refusal(), errors.BadRequestError)
    bench.operate(wanted=WantedSettings(ConsumerMode.EXCLUSIVE))
    assert bench.all(fx.WriteCursor)[-1].record.retry == RETRY_DEFAULT


# ---- keys that wait -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [CONFIGURE, SKIP, REWIND])
@pytest.mark.parametrize("is_served", [True, False])
def test_parked_keys_are_not_dropped_unasked(operation: ev.ConsumerGroupOperation, is_served: bool) -> None:
    bench = parked()
    if is_served and operation is not CONFIGURE:
        bench.join()
        bench.read_both()
        bench.deliver()
    index = 3 if operation is SKIP else 0
    wanted = WantedSettings(ConsumerMode.EXCLUSIVE)
    bench.operate(operation, wanted, index)
    error = bench.refusal()
    assert isinstance(error, errors.PreconditionError)
    assert "1 parked key, and 2 messages set aside (the oldest is 1:0)" in str(error)
    bench.operate(operation, wanted, index, drop_aside=True)
    record = bench.all(fx.WriteCursor)[-1].record
    places = {CONFIGURE: (1, 3), SKIP: (2, 0), REWIND: (1, 0)}
    assert (record.segment_no, record.start_index) == places[operation]
    assert record.group_epoch == 2
    bench.end()
    assert bench.all(fx.ConsumerGroupOperated)[-1].error is None


def test_a_rewind_before_all_that_was_set_aside_loses_nothing() -> None:
    bench = served("aab", replace(QUICK, attempts_max=5))
    run, other = bench.runs()
    bench.nack(run, delay_ms=60_000)
    bench.acks(other)
    keyed = bench.keyed
    keyed.set_aside(keyed.line.keys[b"ka"])
    bench.deliver()
    bench.operate(SKIP, index=3)
    assert "set aside (the oldest is 1:0)" in str(bench.refusal())
    bench.operate(REWIND, index=0)
    assert bench.all(fx.WriteCursor)


def test_settings_of_a_cursor_record() -> None:
    record = ev.CursorRecord(1, 1, 0, TOPIC).with_settings(ConsumerGroupSettings(ConsumerMode.SHARED, SLOW, True))
    assert record.settings == ConsumerGroupSettings(ConsumerMode.SHARED, SLOW, True)
    apart = ConsumerGroupSettings(is_spread=False)
    assert ev.CursorRecord(1, 1, 0, TOPIC).with_settings(apart).settings == apart


# ---- what comes again in a new group epoch -------------------------------------------------------------------


def flags(bench: Configured) -> list[tuple[int, bool]]:
    """The index of each message that was delivered since the last look, and whether it has the flag."""
    found = [(index, run.maybe_repeated) for run in bench.runs() for index in indexes_of(run)]
    for event in bench.delivered(fx.Batches):
        for batch in event.batches:
            first = max(event.from_index, batch.header.base_index)
            found += [(index, index < event.maybe_repeated_below) for index in range(first, batch.header.end_index)]
    bench.clear()
    return sorted(found)


def begun_again(bench: Configured) -> list[tuple[int, bool]]:
    """A consumer joins in the mode that the group has now: what it is given."""
    bench.mode = bench.record.mode
    bench.clear()
    bench.join(subscription=2)
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.read_both()
    if bench.all(fx.WriteCursor):
        bench.end()
        bench.read_both()
    for _ in range(3):
        bench.deliver()
    return flags(bench)


def test_key_by_key_messages_in_exclusive_mode_are_flagged() -> None:
    bench = served("abc")
    bench.acks(bench.runs()[2])
    bench.deliver()
    left(bench).operate(wanted=WantedSettings(ConsumerMode.EXCLUSIVE))
    bench.end()
    assert begun_again(bench) == [(0, True), (1, True), (2, True)], "also what was acknowledged after the floor"


@pytest.mark.parametrize("mode", [ConsumerMode.KEY_ORDERED, ConsumerMode.SHARED])
@pytest.mark.parametrize("at_most_once", [False, True])
def test_exclusive_messages_in_another_mode_are_flagged(mode: ConsumerMode, at_most_once: bool) -> None:
    bench = Configured("abc")
    bench.mode = ConsumerMode.EXCLUSIVE
    bench.record = replace(bench.record, mode=bench.mode)
    bench.begin()
    bench.deliver()
    assert flags(bench) == [(0, False), (1, False), (2, False)]
    left(bench).operate(wanted=WantedSettings(mode, None if at_most_once else BLOCKS, at_most_once))
    bench.end()
    assert begun_again(bench) == [(0, True), (1, True), (2, True)]


def test_flags_of_a_new_mode_end_where_the_log_ended() -> None:
    bench = served("abc")
    assert bench.part.consumer_groups[GROUP].served.ledger.reserved > 3, "reserved far ahead, and never given"
    left(bench).operate(wanted=WantedSettings(ConsumerMode.SHARED, BLOCKS))
    record = bench.all(fx.WriteCursor)[-1].record
    assert (record.repeated_to, record.repeated_index) == (0, 3)


def test_flags_of_an_earlier_change_stay() -> None:
    record = ev.CursorRecord(2, 1, 0, TOPIC)
    once = record.repeated_below(2, 5)
    assert once.repeated_below(2, 3) is once
    assert (once.repeated_below(2, 7).repeated_to, once.repeated_below(2, 7).repeated_index) == (1, 7)
    lost = once.repeated_below(3, 0)
    assert (lost.repeated_to, lost.repeated_index) == (2, 0), "all of segment 2"
    assert lost.repeated_below(2, 9) is lost


def test_messages_after_a_rewind_are_first_attempts() -> None:
    bench = served("abc")
    for run in bench.runs()[:2]:
        bench.acks(run)
    bench.deliver()
    left(bench).operate(wanted=WantedSettings(ConsumerMode.SHARED, BLOCKS))
    bench.end()
    bench.operate(REWIND, operation_id=bytes(15) + b"2")
    bench.end()
    assert bench.record.begun_by is REWIND
    assert begun_again(bench) == [(0, False), (1, False), (2, False)], "an administrator asked for them again"


def test_messages_of_a_group_made_again_are_first_attempts() -> None:
    bench = served("abc")
    assert len(bench.runs()) == 3
    left(bench)
    bench.record = replace(bench.record, deleted=True, repeated_index=3)
    again = begun_again(bench)
    assert (bench.record.group_epoch, bench.record.deleted) == (2, False)
    assert again == [(0, False), (1, False), (2, False)], "nothing of the deleted group counts"
