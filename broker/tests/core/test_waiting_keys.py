"""Administrators list keys that wait, release them, and pass over their first messages: once, and said only when
durable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_api.lag import lag_messages
from seriatim_broker.core.consumers.keyed import waiting_keys
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import trim
from seriatim_broker.core.values.keyed import ConsumerMode, KeyOperation, KeyPhase, SeenKey, WaitingKey
from seriatim_broker.core.values.ledger_rows import (
    KeyRecord,
    aside_name,
    count_keys,
    key_name,
    write_aside,
    write_block,
    write_key,
)
from seriatim_broker.core.values.log import LedgerRow
from seriatim_broker.core.values.segment import Start

from .keyed_support import QUICK, KeyedServing, indexes_of
from .support import GROUP, M01, MS, SECOND, STREAM, TOPIC, P, control_record

ONCE = replace(QUICK, attempts_max=1)
RELEASE, SKIP = KeyOperation.RELEASE, KeyOperation.SKIP


class Asked(KeyedServing):
    """A server of which administrators ask something about keys."""

    def list_keys(
        self, *phases: KeyPhase, after: bytes = b"", limit: int = 100, name: bytes | None = None, request: int = 1
    ) -> None:
        """An administrator asks for keys."""
        until_us = self.now_us + 2_000 * MS
        self.do(ev.ListKeys(request, P, GROUP, phases, after, limit, name, until_us))

    def operate(self, operation: KeyOperation, *keys: SeenKey, request: int = 2) -> None:
        """An administrator operates on keys."""
        self.do(ev.OperateKeys(request, P, GROUP, operation, keys, self.now_us + 2_000 * MS))

    def settle(self) -> None:
        """Both members have all that was written."""
        self.persist_everywhere()

    def listed(self) -> list[WaitingKey]:
        """The answer to the administrator."""
        answer = self.all(fx.KeysListed)[-1]
        assert answer.error is None
        return list(answer.keys)

    def results(self) -> list[errors.SeriatimError | bool]:
        """The answer to the administrator."""
        answer = self.all(fx.KeysOperated)[-1]
        assert answer.error is None
        return list(answer.results)


def parked(keys: str = "aab") -> Asked:
    """Key a is parked, with all its messages; the others are acknowledged."""
    bench = Asked(keys, policy=ONCE)
    bench.serve()
    first, *others = bench.runs()
    bench.nack(first)
    for run in others:
        bench.acks(run)
    bench.deliver()
    bench.clear()
    return bench


def key_a(bench: Asked) -> SeenKey:
    """Key a as the administrator sees it."""
    bench.list_keys(name=b"ka")
    bench.settle()
    (key,) = bench.listed()
    return SeenKey(key.name, key.turn, key.first_offset, key.group_epoch)


def test_a_list_says_what_is_known_of_each_key() -> None:
    bench = parked()
    bench.list_keys()
    bench.settle()
    assert bench.listed() == [WaitingKey(b"ka", KeyPhase.PARKED, 1, 0, make_offset(1, 0), 2, 0, "no", 1)]


def test_a_list_waits_until_both_disks_have_it() -> None:
    bench = parked()
    bench.list_keys()
    assert not bench.all(fx.KeysListed)
    bench.persist()
    assert not bench.all(fx.KeysListed), "the other member does not have it"
    bench.confirm_replications()
    assert bench.all(fx.KeysListed)


def test_lists_are_paged_by_name_and_chosen_by_state() -> None:
    bench = Asked("abcd", policy=ONCE)
    bench.serve()
    for run in bench.runs():
        bench.nack(run)
    bench.settle()
    bench.list_keys(limit=3)
    bench.settle()
    assert [key.name for key in bench.listed()] == [b"ka", b"kb", b"kc"]
    assert bench.all(fx.KeysListed)[-1].has_more
    bench.list_keys(after=b"kc", limit=3)
    bench.settle()
    assert [key.name for key in bench.listed()] == [b"kd"]
    assert not bench.all(fx.KeysListed)[-1].has_more
    bench.list_keys(KeyPhase.RETRY)
    bench.settle()
    assert bench.listed() == []


def test_the_empty_key_is_one_key_and_no_key_is_all() -> None:
    bench = Asked("._a", policy=ONCE)
    bench.serve()
    for run in bench.runs():
        bench.nack(run)
    bench.settle()
    bench.list_keys(name=b"k")
    bench.settle()
    assert [key.name for key in bench.listed()] == [b"k"]
    bench.list_keys(name=None)
    bench.settle()
    assert [key.name for key in bench.listed()] == [b"k", b"ka", b"o" + make_offset(1, 0).to_bytes(8, "big")]


def test_a_delayed_key_waits_and_a_granted_one_does_not() -> None:
    bench = Asked("ab")
    bench.serve()
    run, _ = bench.runs()
    bench.nack(run, delay_ms=60_000)
    bench.list_keys()
    bench.settle()
    (key,) = bench.listed()
    assert (key.name, key.phase, key.attempts, key.message_count) == (b"ka", KeyPhase.RETRY, 1, 1)
    assert key.ready_at_ms > 0


def test_a_released_key_comes_again_with_all_its_attempts() -> None:
    bench = parked()
    bench.operate(RELEASE, key_a(bench))
    assert not bench.all(fx.KeysOperated), "not before both disks have it"
    bench.settle()
    assert bench.results() == [False]
    bench.deliver()
    (run,) = bench.runs()
    assert (indexes_of(run), run.attempt) == ([0, 1], 1)
    assert run.maybe_repeated, "a consumer had it before"
    assert [note.name for note in bench.all(fx.Note)] == ["key_released"]
    bench.acks(run)
    bench.deliver()
    assert b"kka" not in bench.rows(), "an emptied key leaves no record"
    assert not [name for name in bench.rows() if name[:1] in (b"k", b"a")]


def test_a_skipped_message_never_comes_and_the_rest_of_the_key_does() -> None:
    bench = parked()
    bench.operate(SKIP, key_a(bench))
    bench.settle()
    bench.deliver()
    assert bench.granted() == [[1]]


def test_skipping_the_last_message_of_a_key_leaves_nothing() -> None:
    bench = parked("ab")
    bench.operate(SKIP, key_a(bench))
    bench.settle()
    bench.deliver()
    assert bench.granted() == []
    assert not [name for name in bench.rows() if name[:1] in (b"k", b"a")]


@pytest.mark.parametrize("operation", [RELEASE, SKIP])
def test_a_request_that_comes_again_does_nothing(operation: KeyOperation) -> None:
    bench = parked("aaab")
    seen = key_a(bench)
    bench.operate(operation, seen)
    bench.operate(operation, seen)
    bench.settle()
    assert [answer.results for answer in bench.all(fx.KeysOperated)] == [(False,), (True,)]
    bench.deliver()
    assert bench.granted() == [[0, 1, 2] if operation is RELEASE else [1, 2]]


def test_a_key_that_failed_again_since_is_not_released_by_the_old_request() -> None:
    bench = parked("aab")
    seen = key_a(bench)
    bench.operate(RELEASE, seen)
    bench.deliver()
    (run,) = bench.runs()
    bench.acks(run, upto=1)
    bench.nack(run, 1)
    bench.deliver()
    bench.operate(RELEASE, seen)
    bench.settle()
    assert bench.results() == [True]
    bench.deliver()
    assert bench.granted() == []


def test_a_stale_turn_changes_nothing() -> None:
    bench = parked()
    seen = key_a(bench)
    bench.operate(RELEASE, seen)
    bench.deliver()
    (run,) = bench.runs()
    bench.nack(run)
    bench.deliver()
    bench.operate(SKIP, seen, seen._replace(turn=7), seen._replace(turn=1, first_offset=make_offset(1, 1)))
    bench.settle()
    first, second, third = bench.results()
    assert isinstance(first, errors.PreconditionError), "it was released since, so another administrator may want it"
    assert isinstance(second, errors.PreconditionError)
    assert isinstance(third, errors.PreconditionError)
    assert key_a(bench) == SeenKey(b"ka", 1, make_offset(1, 0), 1)


def test_a_key_that_a_consumer_works_on_is_left_alone() -> None:
    bench = parked()
    bench.operate(RELEASE, key_a(bench))
    bench.deliver()
    assert bench.granted() == [[0, 1]]
    bench.operate(SKIP, SeenKey(b"ka", 1, make_offset(1, 0), 1))
    bench.settle()
    (error,) = bench.results()
    assert "a consumer works on key a" in str(error)


def test_a_paused_group_answers() -> None:
    bench = parked()
    consumer_group = bench.part.consumer_groups[GROUP]
    bench.served.take_up(replace(bench.served.cursor, paused=True), consumer_group.cursor_revision)
    bench.operate(RELEASE, key_a(bench))
    bench.settle()
    assert bench.results() == [False]
    bench.deliver()
    assert bench.granted() == []


# ---- without consumers ----------------------------------------------------------------------------------


def alone(keys: str = "aab") -> Asked:
    """The consumer has left, and this member has forgotten the group."""
    bench = parked(keys)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.settle()
    assert GROUP not in bench.part.consumer_groups
    bench.clear()
    return bench


def test_a_group_without_consumers_is_loaded_for_a_question_and_forgotten_after_it() -> None:
    bench = alone()
    bench.list_keys()
    bench.look_up()
    bench.settle()
    (key,) = bench.listed()
    assert (key.name, key.phase, key.message_count) == (b"ka", KeyPhase.PARKED, 2)
    assert GROUP not in bench.part.consumer_groups


def test_a_key_is_released_without_consumers_and_the_next_one_gets_it() -> None:
    bench = alone("aab...")
    bench.operate(RELEASE, SeenKey(b"ka", 0, make_offset(1, 0), 1))
    bench.look_up()
    bench.settle()
    assert bench.results() == [False]
    bench.join()
    bench.look_up()
    bench.deliver()
    assert [0, 1] in bench.granted()


def released(operation: KeyOperation = RELEASE) -> Asked:
    """A consumer failed on the first message of key a, and left. Then an administrator operated on the key: all is
    durable."""
    bench = Asked("aab", policy=replace(QUICK, delays_ms=(60_000, 60_000)))
    bench.serve()
    run, other = bench.runs()
    bench.nack(run)
    bench.acks(other)
    bench.deliver()
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.settle()
    bench.clear()
    bench.operate(operation, SeenKey(b"ka", 0, make_offset(1, 0), 1))
    bench.look_up()
    bench.settle()
    assert bench.results() == [False]
    assert GROUP not in bench.part.consumer_groups
    bench.clear()
    return bench


def next_server(bench: Asked) -> Asked:
    """A server that has the control record and the rows of this one, and a consumer."""
    rows = tuple(LedgerRow(1, GROUP, name, value) for name, value in bench.rows().items())
    successor = Asked("aab", policy=ONCE, cursors=(bench.part.cursors[GROUP],), rows=rows)
    successor.serve()
    return successor


@pytest.mark.parametrize("acked", [0, 1])
def test_the_turn_of_a_delayed_key_outlives_its_server(acked: int) -> None:
    """Rule `seen-key`: the old request does not release the key again, which failed again and is parked."""
    bench = next_server(released())
    (run,) = bench.runs()
    assert (indexes_of(run), run.attempt) == ([0, 1], 1)
    if acked:
        bench.acks(run, upto=acked)
    bench.nack(run, acked)
    bench.deliver()
    assert key_a(bench) == SeenKey(b"ka", 1, make_offset(1, acked), 1)
    bench.operate(RELEASE, SeenKey(b"ka", 0, make_offset(1, 0), 1))
    bench.settle()
    assert bench.results() == [True]
    bench.deliver()
    assert bench.granted() == []


def test_a_released_key_waits_until_its_message_is_done_with() -> None:
    bench = released()
    bench.list_keys()
    bench.look_up()
    bench.settle()
    (key,) = bench.listed()
    assert (key.name, key.phase, key.attempts, key.turn, key.ready_at_ms) == (b"ka", KeyPhase.RETRY, 0, 1, 0)
    bench = next_server(bench)
    (run,) = bench.runs()
    bench.acks(run, upto=1)
    bench.deliver()
    assert not [name for name in bench.rows() if name[:1] in (b"k", b"a")]


def test_a_delayed_key_whose_message_was_skipped_has_no_record() -> None:
    assert not [name for name in released(SKIP).rows() if name[:1] in (b"k", b"a")]


def test_a_released_key_that_is_granted_and_dropped_has_no_record() -> None:
    bench = next_server(released())
    assert bench.part.chain is not None
    bench.chain = trim(bench.part.chain, 1, Start(1, 0, 0), 1)
    bench.read_chain(bench.chain)
    bench.deliver()
    assert bench.granted() == [[0, 1]]
    assert not [name for name in bench.rows() if name[:1] in (b"k", b"a")]


def test_a_key_that_is_given_at_most_once_leaves_no_record() -> None:
    listed = make_offset(1, 0), make_offset(1, 1)
    record = KeyRecord(KeyPhase.RETRY, 1, 0, 0, 0, 0, 2, "")
    values = {key_name(b"ka"): write_key(record), aside_name(b"ka", 0): write_aside(listed)}
    rows = tuple(LedgerRow(1, GROUP, name, value) for name, value in values.items())
    bench = Asked("aab", cursors=(control_record(1, GROUP, 1, 2, 3, 0, listed[0]),), rows=rows, at_most_once=True)
    bench.serve()
    assert bench.granted() == [[0, 1], [2]]
    assert not [name for name in bench.rows() if name[:1] in (b"k", b"a")]


def test_another_server_does_not_answer() -> None:
    bench = Asked(member=M01)
    bench.list_keys()
    bench.look_up()
    error = bench.all(fx.KeysListed)[-1].error
    assert isinstance(error, errors.GroupHeadElsewhereError)
    assert GROUP not in bench.part.consumer_groups


def test_a_group_of_another_mode_has_no_keys() -> None:
    bench = Asked()
    bench.operate(SKIP, SeenKey(b"ka", 0, 0, 1))
    bench.read_chain(bench.chain)
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 1, 0, TOPIC, mode=ConsumerMode.EXCLUSIVE), 5))
    assert isinstance(bench.all(fx.KeysOperated)[-1].error, errors.UnsupportedModeError)


def test_a_group_that_is_not_there_has_no_keys() -> None:
    bench = Asked()
    bench.list_keys()
    bench.read_chain(bench.chain)
    bench.do(ev.CursorRead(P, GROUP, None, 0))
    assert isinstance(bench.all(fx.KeysListed)[-1].error, errors.NotServingError), "who asks says what is not there"


def test_mode_of_a_group_whose_cursor_the_coordinator_lost() -> None:
    """An administrator's question made this server read the cursor, before an older copy of the coordinator was
    restored."""
    bench = Asked()
    bench.do(ev.DirectoryChanged((), forms=msg.FORMS))
    bench.list_keys()
    bench.look_up()
    until_us = bench.now_us + 2_000 * MS
    bench.do(ev.ResolveConsumer(2, P, GROUP, None, ev.StartPosition.EARLIEST, until_us, ConsumerMode.KEY_ORDERED))
    bench.do(ev.CursorRead(P, GROUP, None, 0, known_revision=5))
    assert bench.all(fx.WriteCursor)[-1].record.mode is ConsumerMode.KEY_ORDERED


def test_a_request_that_cannot_be_made_durable_ends_at_its_deadline() -> None:
    bench = parked()
    bench.operate(RELEASE, key_a(bench))
    bench.wait(3 * SECOND, (M01,))
    error = bench.all(fx.KeysOperated)[-1].error
    assert isinstance(error, errors.DeadlineExceededError)
    assert "a repeated request changes them once" in str(error)


def test_a_message_that_is_its_own_key_is_skipped_before_it_was_read() -> None:
    offset = make_offset(1, 0)
    name = b"o" + offset.to_bytes(8, "big")
    bench = Asked("..", policy=QUICK)
    bench.serve()
    run, _ = bench.runs()
    bench.nack(run, delay_ms=60_000)
    bench.deliver()
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.settle()
    bench.clear()
    bench.operate(SKIP, SeenKey(name, 0, offset, 1))
    bench.look_up()
    bench.settle()
    assert bench.results() == [False]
    assert bench.part.cursors[GROUP].acked == 1


def test_too_many_requests_are_refused() -> None:
    bench = Asked()
    for request in range(65):
        bench.list_keys(request=request)
    (refused,) = bench.all(fx.KeysListed)
    assert isinstance(refused.error, errors.OverloadedError)


def test_the_limit_of_parked_keys_keeps_further_ones_in_retry() -> None:
    bench = Asked("ab", policy=ONCE)
    bench.core.state.config = replace(bench.core.state.config, waiting_keys_max=1)
    bench.serve()
    first, second = bench.runs()
    bench.nack(first)
    bench.nack(second)
    bench.list_keys()
    bench.settle()
    assert [(key.name, key.phase) for key in bench.listed()] == [(b"ka", KeyPhase.PARKED), (b"kb", KeyPhase.RETRY)]
    assert [note.name for note in bench.all(fx.Note) if note.name != "key_parked"] == ["lists_full"]
    bench.deliver(20 * SECOND)
    assert bench.granted() == [[1]], "it is tried again"


def test_no_step_carries_out_many_requests() -> None:
    bench = parked()
    consumer_group = bench.part.consumer_groups[GROUP]
    assert consumer_group.keyed is not None
    consumer_group.keyed.handoff.frozen = []
    for request in range(1, 11):
        bench.list_keys(request=request)
    consumer_group.keyed.handoff.frozen = None
    waiting_keys.go_on(bench.served)
    assert sum(request.serial > 0 for request in consumer_group.key_requests) == waiting_keys.AT_ONCE_MAX
    bench.deliver()
    assert sorted(listed.request for listed in bench.all(fx.KeysListed)) == list(range(1, 11))


@pytest.mark.parametrize("operation", [RELEASE, SKIP, KeyOperation.DEAD_LETTER])
def test_a_request_that_is_repeated_after_a_rewind_is_not_said_to_be_done(operation: KeyOperation) -> None:
    """The rewind ended what the first request did, or the key waits no more for another reason."""
    bench = parked()
    bench.operate(operation, SeenKey(b"ka", 0, make_offset(1, 0), 7), SeenKey(b"kx", 0, make_offset(1, 0), 7))
    bench.settle()
    assert [type(result) for result in bench.results()] == [errors.StaleGroupEpochError] * 2
    assert key_a(bench) == SeenKey(b"ka", 0, make_offset(1, 0), 1)
    bench.operate(operation, SeenKey(b"kx", 0, make_offset(1, 0), 1))
    bench.settle()
    assert bench.results() == [True], "it waits no more"


# ---- what a description says -------------------------------------------------------------------------------


def lag_of(bench: Asked) -> int:
    """The lag as clients compute it from the description of the server."""
    before = len(bench.all(fx.ConsumerGroupDescribed))
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    bench.look_up()
    (found,) = bench.all(fx.ConsumerGroupDescribed)[before:]
    assert found.position is not None
    assert found.keys is not None
    end = bench.chain.open_segment.base  # another broker has the open segment, which is empty
    assert end is not None
    return lag_messages(end - found.position, found.keys.passed, found.keys.aside)


def test_messages_of_parked_keys_are_lag_although_the_group_is_behind_them() -> None:
    bench = parked("aab")
    bench.settle()
    assert lag_of(bench) == 2
    bench.operate(RELEASE, SeenKey(b"ka", 0, make_offset(1, 0), 1))
    bench.settle()
    bench.deliver()
    for run in bench.runs():
        bench.acks(run)
    bench.settle()
    assert lag_of(bench) == 0


def test_what_is_acknowledged_one_by_one_is_no_lag() -> None:
    bench = Asked("abc")
    bench.serve()
    _, run_b, run_c = bench.runs()
    assert lag_of(bench) == 3
    bench.acks(run_b)
    bench.acks(run_c)
    bench.settle()
    assert lag_of(bench) == 1


def test_without_consumers_the_rows_on_the_disk_tell_the_lag() -> None:
    bench = alone("aab")
    assert lag_of(bench) == 2
    assert GROUP not in bench.part.consumer_groups
    rows = [write_block(0, 0b1011_0110), write_block(1, 0b101)]
    assert count_keys(rows, 0).passed == 7
    assert count_keys(rows, 3).passed == 5, "those below the floor are after the group"
    assert count_keys(rows, 1_024).passed == 2
