"""Other ways to consume: shared, broadcast, at most once, and consumers that ask for messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_api.ids import make_offset
from seriatim_broker.core.consumers.groups import operations
from seriatim_broker.core.consumers.groups.cursor_notes import KEEP_MS
from seriatim_broker.core.state.keyed.rows import rows_to_hand_off
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.keyed import (
    SETTINGS_DEFAULT,
    ConsumerGroupSettings,
    ConsumerMode,
    Exhausted,
    RetryPolicy,
    WantedSettings,
)
from seriatim_broker.core.values.ledger_rows import read_rows
from seriatim_broker.core.values.positions import Place

from .keyed_support import QUICK, KeyedServing, dispatcher_with
from .support import GROUP, M00, M01, MS, SECOND, STREAM, TOPIC, P, Serving

# ---- shared ---------------------------------------------------------------------------------------------


def shared(keys: str = "aaa") -> KeyedServing:
    bench = KeyedServing(keys, mode=ConsumerMode.SHARED)
    bench.serve()
    return bench


def test_in_a_shared_group_each_message_is_granted_alone() -> None:
    bench = KeyedServing("aaaa", mode=ConsumerMode.SHARED)
    bench.begin()
    bench.join(2)
    bench.deliver()
    assert sorted(bench.granted()) == [[0], [1], [2], [3]]


def test_a_failed_message_of_a_shared_group_holds_up_nothing() -> None:
    bench = shared()
    first, second, third = bench.runs()
    bench.nack(first)
    bench.acks(second)
    bench.acks(third, number=2)
    bench.deliver(us=80 * MS)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 0
    bench.deliver(us=100 * MS)
    (again,) = bench.runs()
    assert (again.offsets, again.attempt) == (first.offsets, 2)
    bench.acks(again, number=3)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 3


def test_a_shared_group_has_records_of_failed_messages_only() -> None:
    bench = shared()
    first, second, _ = bench.runs()
    bench.nack(first, delay_ms=60_000)
    bench.acks(second)
    bench.deliver()
    keys = read_rows(bench.rows().items()).keys
    assert list(keys) == [b"o" + make_offset(1, 0).to_bytes(8, "big")]


# ---- consumers that ask ----------------------------------------------------------------------------------


def asking(keys: str = "abcd") -> KeyedServing:
    bench = KeyedServing(keys)
    bench.begin()
    bench.join(2, on_demand=True)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver()
    return bench


def test_a_consumer_on_demand_is_given_what_it_asks_for_and_no_more() -> None:
    bench = asking()
    assert bench.granted() == []
    bench.do(ev.ConsumerDemand(STREAM, 2, 3))
    bench.deliver()
    assert bench.granted() == [[0], [1], [2]]
    bench.deliver()
    assert bench.granted() == []
    bench.do(ev.ConsumerDemand(STREAM, 2, 5))
    bench.deliver()
    assert bench.granted() == [[3]]


def test_a_demand_replaces_the_one_before() -> None:
    bench = asking("a")
    bench.do(ev.ConsumerDemand(STREAM, 2, 1))
    bench.do(ev.ConsumerDemand(STREAM, 2, 0))
    bench.deliver()
    assert bench.granted() == []


def test_a_demand_that_ends_during_the_read_gives_the_keys_back() -> None:
    bench = asking("ab")
    bench.do(ev.ConsumerDemand(STREAM, 2, 2))
    assert bench.all(fx.ReadRows)
    bench.do(ev.ConsumerDemand(STREAM, 2, 0))
    bench.deliver()
    assert bench.granted() == []
    bench.join(3)
    bench.deliver()
    assert sorted(bench.granted()) == [[0], [1]]


def test_a_demand_of_a_consumer_that_is_given_all_changes_nothing() -> None:
    bench = KeyedServing("ab")
    bench.begin()
    bench.do(ev.ConsumerDemand(STREAM, 1, 0))
    bench.do(ev.ConsumerDemand(STREAM, 77, 9))
    bench.deliver()
    assert bench.granted() == [[0], [1]]


# ---- at most once, by key --------------------------------------------------------------------------------


def once(keys: str = "aab", mode: ConsumerMode = ConsumerMode.KEY_ORDERED) -> KeyedServing:
    bench = KeyedServing(keys, mode=mode, at_most_once=True)
    bench.begin()
    keyed = bench.keyed
    keyed.handoff.rests_until_us = 1 << 60
    return bench


def test_at_most_once_a_message_is_given_when_both_disks_have_its_acknowledgement() -> None:
    bench = once()
    bench.reads()
    bench.persist()
    bench.confirm_replications()  # the reservation
    bench.reads()
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 3
    bench.persist()
    assert bench.granted() == []
    bench.confirm_replications()
    assert bench.granted() == [[0, 1], [2]]
    assert not any(run.maybe_repeated for run in bench.runs())


@pytest.mark.parametrize("how", ["nack", "deadline", "leave"])
def test_at_most_once_nothing_comes_twice(how: str) -> None:
    bench = once("ab")
    bench.deliver()
    run_a, _ = bench.runs()
    if how == "nack":
        bench.nack(run_a)
        (void,) = bench.delivered(fx.TokensVoid)
        assert isinstance(void.error, PreconditionError)
    elif how == "deadline":
        bench.wait((QUICK.grant_ms + 1_000) * MS, (M01,))
        assert run_a.token in bench.void()
    else:
        bench.join(2)
        bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver(us=5 * SECOND)
    assert bench.granted() == []
    assert read_rows(bench.rows().items()).keys == {}


def test_at_most_once_a_key_is_with_one_consumer_until_it_is_done() -> None:
    bench = once("aa")
    bench.join(2)
    for consumer in bench.part.consumer_groups[GROUP].consumers:
        consumer.run_max = 1
    bench.deliver()
    (first,) = bench.runs()
    bench.deliver()
    assert bench.granted() == []
    subscription = next(c.subscription for c in bench.part.consumer_groups[GROUP].consumers if c.in_flight)
    bench.acks(first, subscription=subscription)
    bench.deliver()
    assert bench.granted() == [[1]]


def test_at_most_once_another_server_gives_only_the_rest() -> None:
    bench = KeyedServing("abc", mode=ConsumerMode.SHARED, at_most_once=True)
    bench.begin()
    bench.part.consumer_groups[GROUP].consumers[0].in_flight_max = 2
    bench.deliver()
    assert bench.granted() == [[0], [1]]
    follower = KeyedServing("abc", M01, mode=ConsumerMode.SHARED, at_most_once=True)
    follower.link(M00)
    for change in bench.sent(msg.ReplicateLedger, M01):
        follower.hear(M00, change)
    assert follower.part.cursors[GROUP].acked == 2


def test_at_most_once_what_was_acknowledged_for_a_consumer_that_left_is_lost() -> None:
    bench = once("a")
    bench.reads()
    bench.persist_everywhere()
    bench.reads()
    bench.join(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver()
    assert bench.granted() == []
    assert bench.part.consumer_groups[GROUP].served.ledger.safe_acked == 1


def test_at_most_once_grants_that_are_handed_over_keep_their_keys() -> None:
    bench = KeyedServing("a", at_most_once=True)
    bench.begin()
    bench.deliver()
    (run,) = bench.runs()
    keyed = bench.keyed
    rows, _ = rows_to_hand_off(keyed, bench.rows(), ev.Moment(bench.now_us, bench.wall_ms))
    (carried,) = read_rows(rows).grants
    assert (carried.token, carried.name, carried.message_count, carried.is_passed) == (run.token, b"ka", 1, True)
    following = dispatcher_with(2, 0, dict(rows), ev.Moment(bench.now_us, bench.wall_ms))
    following.take_in(b"ka", 0, make_offset(2, 0))
    assert following.line.next_ready() is None, "the key is still with the consumer"
    grant = following.grants.by_token[run.token]
    following.acknowledge(grant)
    following.end_grant(grant)
    following.line.requeue(grant.key)
    key = following.line.next_ready()
    assert key is not None
    assert key.live == [0]


# ---- at most once, exclusive -----------------------------------------------------------------------------


class OnceServing(Serving):
    """An exclusive at-most-once group."""

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        """The coordinator says where the group is."""
        self.do(ev.CursorRead(P, GROUP, ev.CursorRecord(no, epoch, start, TOPIC, at_most_once=True), revision))


def test_at_most_once_batches_are_given_when_both_disks_have_the_acknowledgement() -> None:
    bench = OnceServing()
    bench.begin()
    bench.reads()
    bench.persist()
    bench.confirm_replications()  # the reservation
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 5
    bench.persist()
    assert not bench.delivered(fx.Batches)
    bench.confirm_replications()
    assert bench.indexes() == [0, 1, 2, 3, 4]
    assert all(batches.maybe_repeated_below == 0 for batches in bench.delivered(fx.Batches))


def test_at_most_once_the_next_consumer_is_given_only_what_follows() -> None:
    bench = OnceServing(counts=(2, 3))
    bench.begin()
    bench.join(2)
    bench.deliver()
    before = bench.indexes()
    assert before == [0, 1, 2, 3, 4]
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver()
    assert bench.indexes() == before


# ---- broadcast -------------------------------------------------------------------------------------------


class BroadcastServing(Serving):
    """The consumer of a broadcast group; its cursor says that it was here at `reported_at_ms`."""

    reported_at_ms = 0

    def join(self, subscription: int = 1, name: str = "", stream: int = STREAM, was_active: bool = False) -> None:
        """The consumer asks for the partition."""
        join = ev.ConsumerJoin(stream, subscription, P, GROUP, name or "c", ev.StartPosition.LATEST, was_active)
        self.do(replace(join, mode=ConsumerMode.BROADCAST))

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        """The coordinator says where the group is."""
        mode, at_ms = ConsumerMode.BROADCAST, self.reported_at_ms
        record = ev.CursorRecord(no, epoch, start, TOPIC, mode=mode, reported_at_ms=at_ms)
        self.do(ev.CursorRead(P, GROUP, record, revision))


def broadcast(*, age_ms: int) -> BroadcastServing:
    bench = BroadcastServing()
    bench.reported_at_ms = bench.wall_ms - age_ms
    bench.begin()
    bench.deliver()
    return bench


def test_the_consumer_of_a_broadcast_group_is_given_all_in_order() -> None:
    bench = broadcast(age_ms=0)
    assert bench.indexes() == [0, 1, 2, 3, 4]
    assert bench.delivered(fx.Joined)[-1].mode is ConsumerMode.BROADCAST


def test_an_old_note_that_the_consumer_is_here_is_renewed() -> None:
    bench = broadcast(age_ms=KEEP_MS)
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.start_index, write.revision) == (0, 5)
    assert write.record.reported_at_ms > bench.reported_at_ms
    bench.do(ev.CursorWritten(P, GROUP, write.serial, ev.WriteOutcome.DONE, 6))
    assert bench.part.consumer_groups[GROUP].cursor_revision == 6
    assert len(bench.delivered(fx.Joined)) == 1, "the consumer continues"


def test_a_new_note_is_not_renewed() -> None:
    bench = broadcast(age_ms=KEEP_MS - 60_000)
    assert not bench.all(fx.WriteCursor)


@pytest.mark.parametrize("outcome", [ev.WriteOutcome.CONFLICT, ev.WriteOutcome.UNKNOWN, ev.WriteOutcome.REFUSED])
def test_a_note_that_is_not_written_stops_nothing(outcome: ev.WriteOutcome) -> None:
    bench = broadcast(age_ms=KEEP_MS)
    (write,) = bench.all(fx.WriteCursor)
    reads = len(bench.all(fx.ReadCursor))
    bench.do(ev.CursorWritten(P, GROUP, write.serial, outcome, 0))
    if outcome is not ev.WriteOutcome.REFUSED:
        assert len(bench.all(fx.ReadCursor)) == reads + 1
        bench.reported_at_ms = bench.wall_ms
        bench.cursor(revision=7)
    group = bench.part.consumer_groups[GROUP]
    assert group.cursor is not None
    assert (group.phase.value, group.cursor_write) == ("serving", None)


# ---- changes --------------------------------------------------------------------------------------------


def configuring(wanted: WantedSettings, deadline_us: int = 0) -> ev.OperateConsumerGroup:
    """An administrator asks for other settings."""
    configure = ev.ConsumerGroupOperation.CONFIGURE
    return ev.OperateConsumerGroup(1, P, GROUP, configure, bytes(16), 0, 0, 0, 0, deadline_us, wanted)


def test_at_most_once_does_not_begin_while_a_consumer_is_there() -> None:
    bench = Serving()
    bench.begin()
    once_only = WantedSettings(ConsumerMode.EXCLUSIVE, None, at_most_once=True)
    bench.do(configuring(once_only, bench.now_us + 3 * SECOND))
    bench.look_up()
    (refused,) = bench.all(fx.ConsumerGroupOperated)
    assert isinstance(refused.error, PreconditionError)
    assert "consumer-1" in str(refused.error)


@pytest.mark.parametrize(("before", "epoch"), [(False, 2), (True, 1)])
def test_at_most_once_begins_in_a_new_group_epoch(before: bool, epoch: int) -> None:
    record = ev.CursorRecord(1, 1, 0, TOPIC, at_most_once=before)
    event = configuring(WantedSettings(ConsumerMode.EXCLUSIVE, None, at_most_once=True))
    after = operations.after(record, event, Serving().chain, Place(1, 3))
    assert (after.at_most_once, after.group_epoch) == (True, epoch)


def test_a_shared_group_begins_to_park_keys_by_no_change() -> None:
    parking = RetryPolicy(5, exhausted=Exhausted.PARK_KEY)
    keyed, shared = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, parking), ConsumerGroupSettings(ConsumerMode.SHARED)
    for change, before in (
        (WantedSettings(ConsumerMode.SHARED), keyed),
        (WantedSettings(None, parking), shared),
        (WantedSettings(ConsumerMode.SHARED, parking), SETTINGS_DEFAULT),
    ):
        with pytest.raises(BadRequestError, match="parks no key"):
            change.over(before)
    assert WantedSettings(ConsumerMode.SHARED, RetryPolicy(5)).over(keyed).mode is ConsumerMode.SHARED
    assert WantedSettings(ConsumerMode.SHARED, at_most_once=True).over(keyed).retry == RetryPolicy()


def test_at_most_once_ends_the_retries_of_a_group_and_takes_no_new_ones() -> None:
    before = ConsumerGroupSettings(ConsumerMode.SHARED, RetryPolicy(5, exhausted=Exhausted.PARK_KEY, grant_ms=9_000))
    after = WantedSettings(None, None, at_most_once=True).over(before)
    assert after == ConsumerGroupSettings(ConsumerMode.SHARED, RetryPolicy(grant_ms=9_000), at_most_once=True)
    assert WantedSettings(None, RetryPolicy(grant_ms=7_000)).over(after).retry == RetryPolicy(grant_ms=7_000)
    with pytest.raises(BadRequestError, match="no retry"):
        WantedSettings(None, RetryPolicy(3)).over(after)
    assert WantedSettings(None, RetryPolicy(3), at_most_once=False).over(after).retry == RetryPolicy(3)
