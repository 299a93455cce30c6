"""One consumer on one partition of a consumer group in which order is by key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from seriatim._core import consumer_types as ct
from seriatim._core.joining import ConsumerPhase
from seriatim._core.keyed_consumer import KeyedPartitionConsumer

E = TypeVar("E")

CONFIG = ct.ConsumerConfig(ack_interval_ms=5)
MS = 1000


class Bench:
    """A core that has joined the server of segment 1, and the effects that it left."""

    def __init__(self, core: KeyedPartitionConsumer | None = None) -> None:
        self.core = core or KeyedPartitionConsumer(CONFIG)
        self.now_us = 1_000_000
        self.effects: list[Any] = []
        self.do(ct.Timer())
        self.do(ct.Resolved(ct.Place(1, "a", 3)))
        self.do(ct.Connected("a", 7))
        self.joined(1)

    def do(self, event: ct.Event) -> list[Any]:
        left = self.core.step(event, self.now_us)
        self.effects += left
        return left

    def joined(self, segment: int, server_epoch: int = 3) -> None:
        self.do(ct.Joined(self.core.subscription, True, segment, 0, 0, 1, server_epoch, grant_ms=30_000))

    def granted(self, token: int, *offsets: int, server_epoch: int = 3) -> list[Any]:
        return self.do(ct.Granted(self.core.subscription, (token,), (len(offsets),), offsets, server_epoch))

    def ack(self, token: int, offset: int) -> bool:
        return self.core.acknowledge(token, offset, self.now_us)

    def wait(self, us: int) -> list[Any]:
        self.now_us += us
        return self.do(ct.Timer())

    def all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]


def test_acknowledgements_of_some_milliseconds_go_together() -> None:
    bench = Bench()
    bench.granted(9, 100, 101)
    bench.granted(10, 102)
    assert bench.core.begin(9, bench.now_us)
    assert bench.ack(9, 100)
    assert bench.ack(10, 102)
    assert bench.wait(1 * MS) == []
    (sent,) = bench.wait(4 * MS)
    assert sent == ct.SendAcks(7, bench.core.subscription, 1, (9, 10), (100, 102), ())


def test_only_the_next_message_of_a_grant_that_is_held_counts() -> None:
    bench = Bench()
    bench.granted(9, 100, 101)
    assert not bench.ack(9, 101)
    assert not bench.ack(8, 100)
    assert bench.ack(9, 100)
    assert not bench.ack(9, 100)
    assert bench.ack(9, 101)
    assert not bench.core.begin(9, bench.now_us), "the grant is done"


def test_a_failed_message_gives_the_grant_back_behind_what_was_acknowledged() -> None:
    bench = Bench()
    bench.granted(9, 100, 101)
    bench.ack(9, 100)
    failure = ct.Fail(9, 101, 50, "no", False)
    assert bench.do(failure) == [ct.GrantsEnded((9,))]
    assert not bench.ack(9, 101)
    assert [type(effect) for effect in bench.wait(5 * MS)] == [ct.SendAcks, ct.SendNack]


def test_failures_of_some_milliseconds_go_together_however_long_acknowledgements_wait() -> None:
    bench = Bench(KeyedPartitionConsumer(replace(CONFIG, ack_interval_ms=1_000)))
    bench.granted(8, 99)
    bench.granted(9, 100)
    bench.granted(10, 101)
    bench.ack(8, 99)
    bench.do(ct.Fail(9, 100, None, "no", False))
    bench.wait(2 * MS)
    bench.do(ct.Fail(10, 101, None, "no", False))
    assert not bench.all(ct.SendNack)
    bench.wait(3 * MS)
    assert [effect.offsets for effect in bench.all(ct.SendAcks)] == [(99,)]
    assert [effect.failure.token for effect in bench.all(ct.SendNack)] == [9, 10]


def test_what_failed_is_told_before_the_consumer_leaves() -> None:
    bench = Bench()
    bench.granted(9, 100)
    bench.do(ct.Fail(9, 100, None, "no", False))
    assert [type(effect) for effect in bench.do(ct.Leave())][:2] == [ct.SendNack, ct.SendLeave]


def test_held_grants_are_extended() -> None:
    bench = Bench()
    bench.granted(9, 100)
    for _ in range(9):
        bench.do(ct.Answered(7, bench.now_us))
        bench.wait(1_200 * MS)
    assert [effect.tokens for effect in bench.all(ct.SendExtend)] == [(9,)]


def test_as_many_acknowledgements_as_the_server_gives_messages_for_wait_for_no_more() -> None:
    core = KeyedPartitionConsumer(replace(CONFIG, ack_interval_ms=1_000), in_flight_max=8)
    bench = Bench(core)
    for token in range(1, 5):
        bench.granted(token, 100 + token)
    assert bench.ack(1, 101)
    assert not core.is_enough_unsent
    assert not bench.wait(1 * MS)
    assert bench.ack(2, 102)
    assert core.is_enough_unsent
    assert [effect.tokens for effect in bench.wait(0)] == [(1, 2)]
    assert bench.ack(3, 103)
    bench.wait(900 * MS)
    assert len(bench.all(ct.SendAcks)) == 1
    bench.wait(100 * MS)
    assert [effect.tokens for effect in bench.all(ct.SendAcks)] == [(1, 2), (3,)]


def test_void_tokens_end_their_grants_only() -> None:
    bench = Bench()
    bench.granted(9, 100)
    bench.granted(10, 101)
    assert bench.do(ct.TokensVoid(bench.core.subscription, (9, 77))) == [ct.GrantsEnded((9,))]
    assert not bench.ack(9, 100)
    assert bench.ack(10, 101)


def test_grants_go_on_in_the_next_segment_and_what_was_not_confirmed_is_repeated() -> None:
    bench = Bench()
    bench.granted(9, 100, 101)
    bench.granted(10, 102, 103)
    bench.ack(9, 100)
    bench.wait(5 * MS)
    bench.do(ct.AcksConfirmed(bench.core.subscription, 1))
    bench.ack(10, 102)
    bench.core.begin(10, bench.now_us)
    bench.do(ct.SegmentEnded(bench.core.subscription, 1, 200, 2, "b"))
    bench.do(ct.Fail(9, 101, None, "no", False))
    assert not bench.all(ct.SendNack), "no server takes it now"
    bench.do(ct.Connected("b", 8))
    bench.effects.clear()
    bench.joined(2, server_epoch=2)
    assert [effect.offsets for effect in bench.all(ct.SendAcks)] == [(102,), ()]
    assert [effect.tokens for effect in bench.all(ct.SendExtend)] == [(10,)]
    assert [effect.failure.offset for effect in bench.all(ct.SendNack)] == [101]
    assert {effect.stream for effect in bench.all(ct.SendAcks)} == {8}
    assert bench.ack(10, 103)


def test_a_lost_stream_ends_all_grants() -> None:
    bench = Bench()
    bench.granted(9, 100)
    bench.ack(9, 100)
    bench.granted(10, 101)
    bench.do(ct.Disconnected("a", 7))
    assert bench.all(ct.GrantsEnded) == [ct.GrantsEnded((10,))]
    assert bench.core.phase is ConsumerPhase.RESOLVING
    bench.do(ct.Resolved(ct.Place(1, "a", 4)))
    bench.do(ct.Connected("a", 9))
    bench.effects.clear()
    bench.joined(1, server_epoch=4)
    assert not bench.all(ct.SendAcks), "those of the lost grants are void"


def test_grants_of_an_older_server_are_dropped() -> None:
    bench = Bench()
    assert bench.granted(9, 100, server_epoch=2) == []
    assert not bench.ack(9, 100)


def test_a_lapsed_session_ends_all_grants() -> None:
    bench = Bench()
    bench.granted(9, 100)
    bench.wait(CONFIG.session_ms * MS)
    assert bench.all(ct.GrantsEnded) == [ct.GrantsEnded((9,))]
    assert [type(effect) for effect in bench.all(ct.SendLeave)] == [ct.SendLeave]


def test_each_message_of_a_grant_is_reported_as_begun_by_itself() -> None:
    bench = Bench()
    bench.granted(9, 100, 101, 102)
    bench.core.begin(9, bench.now_us)
    bench.wait(5 * MS)
    assert bench.ack(9, 100)
    bench.wait(5 * MS)  # 101 is not begun
    bench.core.begin(9, bench.now_us)
    assert bench.ack(9, 101)  # begun and done between two requests
    bench.core.begin(9, bench.now_us)
    bench.wait(5 * MS)
    told = [(effect.offsets, effect.started) for effect in bench.all(ct.SendAcks)]
    assert told == [((), (9,)), ((100,), ()), ((101,), (9,))]


def test_a_message_behind_one_that_was_begun_is_not_told_to_the_next_server() -> None:
    bench = Bench()
    bench.granted(9, 100, 101)
    bench.core.begin(9, bench.now_us)
    bench.wait(5 * MS)
    assert bench.ack(9, 100)
    bench.do(ct.SegmentEnded(bench.core.subscription, 1, 10, 2, "a"))
    bench.effects.clear()
    bench.do(ct.Connected("a", 7))
    bench.joined(2, 4)
    bench.wait(0)
    assert [effect.offsets for effect in bench.all(ct.SendAcks)] == [(100,)], "101 is not begun"


def test_grants_given_back_are_told_by_what_the_application_saw() -> None:
    bench = Bench()
    for token in (8, 9, 10):
        bench.granted(token, 100 + token)
    bench.core.begin(8, bench.now_us)
    bench.do(ct.Release((8,), is_unseen=False))
    bench.do(ct.Release((9, 10, 11), is_unseen=True))  # 11 is not held
    told = [(effect.tokens, effect.grant_ms, effect.is_unseen) for effect in bench.all(ct.SendExtend)]
    assert told == [((8,), 0, False), ((9, 10), 0, True)]
    assert [effect.started for effect in bench.all(ct.SendAcks)] == [(8,)], "first it says what was begun"
    assert not bench.core.grants


def test_server_that_goes_back_ends_its_grants() -> None:
    """An older copy of the coordinator has the consumer group in segment 1, where the tokens of segment 2 are unknown.

    So that server would ignore what is acknowledged under them, and yet confirm the request.
    """
    bench = Bench()
    bench.do(ct.SegmentEnded(bench.core.subscription, 1, 10, 2, "a"))
    bench.do(ct.Connected("a", 7))
    bench.joined(2)
    bench.granted(9, 100)
    bench.granted(10, 101)
    assert bench.ack(9, 100)
    bench.wait(5 * MS)
    assert bench.core.unconfirmed == (1,)
    bench.effects.clear()
    bench.joined(1, server_epoch=8)
    assert bench.all(ct.GrantsEnded) == [ct.GrantsEnded((10,))]
    assert [effect.active for effect in bench.all(ct.Assigned)] == [False]
    assert not bench.core.unconfirmed, "its confirmation would be false"
    assert not bench.granted(11, 0, server_epoch=8)
    bench.joined(2)
    assert bench.granted(12, 100)
    bench.joined(1, server_epoch=8)
    bench.wait(2_000 * MS)
    assert bench.all(ct.SendLeave)
    assert bench.all(ct.Resolve)
