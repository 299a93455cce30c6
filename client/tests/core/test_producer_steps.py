"""One event at a time: which effects follow, in which order."""

from __future__ import annotations

from seriatim._core.producer import (
    Abandon,
    Connected,
    Disconnected,
    Effect,
    Ended,
    Enqueue,
    OpenStream,
    Outcome,
    PartitionProducer,
    ProducerConfig,
    Replied,
    ReplyError,
    Resolve,
    Resolved,
    Route,
    RouteKnown,
    Send,
    Settled,
    Timer,
)

A = Route(5, 1, "a-0", "a:1", ("b:1",))
B = Route(9, 2, "b-0", "b:1", ("a:1",))
CONFIG = ProducerConfig(window_batches_max=4, delivery_timeout_ms=10_000)
OVERLOADED = ReplyError(400, "busy", retry_after_ms=30)
RUN_REFUSED = ReplyError(203)
MOVED = ReplyError(301)
TRUNCATED = ReplyError(302)
UNKNOWN_END = ReplyError(303)
TOO_LARGE = ReplyError(110, "too large")
FENCED = ReplyError(200, "a newer one")
GAP = ReplyError(201)
MS = 1000


def connected(address: str = "a:1", stream: int = 1) -> Connected:
    return Connected(address, stream, 16, 1 << 20)


def producer(route: Route | None = A) -> PartitionProducer:
    return PartitionProducer(CONFIG, route)


def started(count: int = 2) -> PartitionProducer:
    """A producer with `count` batches of 10 messages in flight at a:1, in run 1."""
    core = producer()
    for batch_id in range(count):
        core.step(Enqueue(batch_id, 10, 100), 0)
    sends = core.step(connected(), 0)
    assert [s.base_sequence for s in sends if isinstance(s, Send)] == [10 * n for n in range(count)]
    return core


def sends_of(effects: list[Effect]) -> list[tuple[int, int, int, int, bool]]:
    """Batch id, epoch, sequence, run, starts_run of each attempt."""
    return [
        (e.batch_id, e.producer_epoch, e.base_sequence, e.producer_run, e.starts_run)
        for e in effects
        if isinstance(e, Send)
    ]


def outcomes_of(effects: list[Effect]) -> list[tuple[int, Outcome]]:
    return [(e.batch_id, e.outcome) for e in effects if isinstance(e, Settled)]


def test_asks_for_a_route_then_opens_then_sends() -> None:
    core = producer(None)
    assert core.step(Enqueue(7, 10, 100), 0) == [Resolve(None, 0, None)]
    assert core.step(Resolved(A), 0) == [OpenStream("a:1")]
    assert core.step(connected(), 0) == [Send(1, 7, 10, 0, 0, 1, True, 5)]
    settled = Settled(7, Outcome.OK, 40, 3, offset_is_final=True)  # it was sent once
    assert core.step(Replied(0, 0, 1, offset=40, append_time_ms=3), 0) == [settled]
    assert core.is_idle
    assert core.wake_at_us is None
    assert core.step(Enqueue(8, 5, 100), 0) == [Send(1, 8, 5, 0, 10, 1, False, 5)]


def test_window_holds_back_and_moves_on() -> None:
    core = started(4)
    assert not core.has_room
    assert core.step(Enqueue(4, 10, 100), 0) == []
    effects = core.step(Replied(0, 0, 1), 0)
    assert outcomes_of(effects) == [(0, Outcome.OK)]
    assert sends_of(effects) == [(4, 0, 40, 1, False)]


def test_window_in_bytes_lets_one_large_batch_go() -> None:
    core = producer()
    core.step(Enqueue(0, 1, 2 << 20), 0)
    core.step(Enqueue(1, 1, 10), 0)
    assert sends_of(core.step(connected(), 0)) == [(0, 0, 0, 1, True)]
    assert sends_of(core.step(Replied(0, 0, 1), 0)) == [(1, 0, 1, 1, False)]


def test_refusal_starts_the_next_run_with_the_oldest() -> None:
    core = started(3)
    core.step(Replied(0, 0, 1), 0)
    assert core.step(Replied(0, 10, 1, error=OVERLOADED), 0) == []
    assert core.step(Replied(0, 20, 1, error=RUN_REFUSED), 0) == []
    assert core.step(Enqueue(3, 10, 100), 0) == []
    assert core.wake_at_us == 30 * MS
    assert core.step(Timer(), 29 * MS) == []
    assert sends_of(core.step(Timer(), 30 * MS)) == [(1, 0, 10, 2, True), (2, 0, 20, 2, False), (3, 0, 30, 2, False)]


def test_stale_refusal_does_not_end_the_new_run() -> None:
    core = started(2)
    core.step(Replied(0, 0, 1, error=OVERLOADED), 0)
    core.step(Timer(), 30 * MS)
    core.step(Replied(0, 10, 1, error=RUN_REFUSED), 30 * MS)
    assert core.step(Enqueue(2, 10, 100), 31 * MS) == [Send(1, 2, 10, 0, 20, 2, False, 5)]


def test_a_place_is_final_if_the_broker_says_so_or_if_no_earlier_attempt_can_stand_elsewhere() -> None:
    for says_so in (False, True):
        core = started(2)
        core.step(Replied(0, 0, 1, error=UNKNOWN_END), 0)
        core.step(Resolved(B), MS)
        again = core.step(connected("b:1", 2), MS)
        assert sends_of(again) == [(0, 0, 0, 2, True), (1, 0, 10, 2, False)]
        [settled] = core.step(Replied(0, 0, 2, offset=2 << 40, offset_is_final=says_so), MS)
        assert isinstance(settled, Settled)
        assert settled.offset_is_final is says_so
        [late] = core.step(Replied(0, 10, 1, offset=1 << 40), MS)  # of its first attempt
        assert isinstance(late, Settled)
        assert late.offset_is_final


def test_move_with_the_refusal_goes_at_once() -> None:
    core = started(2)
    effects = core.step(Replied(0, 0, 1, error=MOVED, route=B), 0)
    assert effects == [OpenStream("b:1")]
    assert sends_of(core.step(connected("b:1", 2), 0)) == [(0, 0, 0, 2, True), (1, 0, 10, 2, False)]


def test_refusal_without_a_route_asks_first() -> None:
    core = started(1)
    assert core.step(Replied(0, 0, 1, error=MOVED), 0) == [Resolve(None, 5, None)]
    assert core.step(Timer(), 100 * MS) == []
    assert core.step(Resolved(B), 100 * MS) == [OpenStream("b:1")]


def test_broken_stream_complains_and_tries_again() -> None:
    core = started(2)
    assert core.step(Disconnected("a:1", 1), 0) == [Resolve(1, 5, "a:1")]
    assert core.step(Timer(), 200 * MS) == [OpenStream("a:1")]
    assert sends_of(core.step(connected("a:1", 2), 200 * MS)) == [(0, 0, 0, 2, True), (1, 0, 10, 2, False)]
    assert outcomes_of(core.step(Replied(0, 0, 2, offset=3), 201 * MS)) == [(0, Outcome.OK)]
    # The answer to the complaint comes later and says the same.
    assert core.step(Resolved(A), 300 * MS) == []
    assert outcomes_of(core.step(Replied(0, 10, 2, offset=13), 301 * MS)) == [(1, Outcome.OK)]


def test_silence_complains_and_the_old_answer_still_counts() -> None:
    core = started(2)
    assert core.wake_at_us == 1000 * MS
    assert core.step(Timer(), 1000 * MS) == [Resolve(1, 5, "a:1")]
    assert core.step(Resolved(B), 1100 * MS) == [OpenStream("b:1")]
    core.step(connected("b:1", 2), 1100 * MS)
    assert outcomes_of(core.step(Replied(0, 0, 1, offset=99), 1200 * MS)) == [(0, Outcome.OK)]
    assert core.step(Replied(0, 0, 2, offset=99), 1201 * MS) == []
    assert outcomes_of(core.step(Replied(0, 10, 2, offset=109), 1201 * MS)) == [(1, Outcome.OK)]


def test_a_client_that_did_not_run_complains_of_no_master_before_it_has_read_what_came() -> None:
    core = started(2)
    # The client stands still from 1 to 1200 ms. It sends the next batch before it reads the replies.
    assert sends_of(core.step(Enqueue(2, 10, 100), 1200 * MS)) == [(2, 0, 20, 1, False)]
    assert outcomes_of(core.step(Replied(0, 0, 1, offset=1), 1201 * MS)) == [(0, Outcome.OK)]
    assert core.wake_at_us == 2201 * MS
    assert core.step(Timer(), 2201 * MS) == [Resolve(1, 5, "a:1")], "it ran, and nothing came"


def test_a_client_that_is_always_late_complains_at_the_second_time() -> None:
    core = started(1)
    assert core.step(Timer(), 1021 * MS) == []
    assert core.wake_at_us == 2021 * MS
    assert core.step(Timer(), 2100 * MS) == [Resolve(1, 5, "a:1")]
    core.step(Resolved(A), 2200 * MS)
    assert core.step(Timer(), 3300 * MS) == [], "this silence is another one"
    assert core.step(Timer(), 4400 * MS) == [Resolve(1, 5, "a:1")]


def test_a_broken_stream_is_complained_of_however_late_it_is_noticed() -> None:
    core = started(1)
    assert core.step(Disconnected("a:1", 1), 5000 * MS) == [Resolve(1, 5, "a:1")]


def test_older_route_is_ignored() -> None:
    core = producer(B)
    core.step(Enqueue(0, 1, 1), 0)
    assert core.step(RouteKnown(A), 0) == []
    assert core.route == B


def test_later_epoch_of_the_same_place_changes_nothing_under_way() -> None:
    core = started(1)
    assert core.step(RouteKnown(Route(6, 1, "a-0", "a:1")), 0) == []
    assert core.step(Enqueue(1, 1, 1), 0) == [Send(1, 1, 1, 0, 10, 1, False, 6)]


def test_move_within_one_broker_starts_a_run_on_the_same_stream() -> None:
    core = started(1)
    assert core.step(RouteKnown(Route(6, 2, "a-0", "a:1")), 0) == [Send(1, 0, 10, 0, 0, 2, True, 6)]


def test_refused_for_good_fails_and_gives_its_sequence_back() -> None:
    core = started(3)
    effects = core.step(Replied(0, 10, 1, error=TOO_LARGE), 0)
    assert outcomes_of(effects) == [(1, Outcome.FAILED)]
    effects = core.step(Timer(), 5 * MS)
    assert sends_of(effects) == [(0, 0, 0, 2, True), (2, 0, 10, 2, False)]
    # The old number of batch 2 speaks of nothing any more.
    assert core.step(Replied(0, 20, 1, error=RUN_REFUSED), 5 * MS) == []


def test_refused_for_good_after_a_doubtful_attempt_is_unknown_and_raises_the_epoch() -> None:
    core = started(2)
    core.step(Disconnected("a:1", 1), 0)
    core.step(RouteKnown(B), 0)
    core.step(Enqueue(2, 10, 100), 0)
    core.step(connected("b:1", 2), 0)
    effects = core.step(Replied(0, 0, 2, error=TOO_LARGE), 0)
    assert outcomes_of(effects) == [(0, Outcome.UNKNOWN), (1, Outcome.UNKNOWN)]
    assert sends_of(core.step(Timer(), 10 * MS)) == [(2, 1, 0, 3, True)]


def test_truncated_everywhere_fails_at_the_deadline() -> None:
    core = started(2)
    core.step(Replied(0, 0, 1, error=TRUNCATED), 0)
    effects = core.step(Timer(), 10_000 * MS)
    assert outcomes_of(effects) == [(0, Outcome.FAILED), (1, Outcome.FAILED)]
    assert core.epoch == 0


def test_truncated_resend_after_an_unanswered_attempt_is_unknown() -> None:
    core = started(1)
    core.step(Disconnected("a:1", 1), 0)
    core.step(Resolved(B), 0)
    core.step(connected("b:1", 2), 0)
    core.step(Replied(0, 0, 2, error=TRUNCATED), 0)
    effects = core.step(Timer(), 10_000 * MS)
    assert outcomes_of(effects) == [(0, Outcome.UNKNOWN)]
    assert core.epoch == 1
    core.step(Enqueue(1, 3, 9), 10_000 * MS)
    assert sends_of(core.step(Resolved(None), 10_000 * MS)) == [(1, 1, 0, 3, True)]


def test_unanswered_in_front_of_the_deadline_is_unknown_behind_it_goes_on() -> None:
    core = started(1)
    core.step(Disconnected("a:1", 1), 0)
    core.step(Enqueue(1, 10, 100), 5_000 * MS)
    effects = core.step(Timer(), 10_000 * MS)
    assert outcomes_of(effects) == [(0, Outcome.UNKNOWN)]
    assert sends_of(core.step(connected("a:1", 2), 10_001 * MS)) == [(1, 1, 0, 2, True)]


def test_two_epochs_are_never_in_flight_together() -> None:
    core = started(2)
    core.step(Disconnected("a:1", 1), 0)
    core.step(RouteKnown(B), 0)
    core.step(Enqueue(2, 10, 100), 0)
    core.step(connected("b:1", 2), 0)
    # The second is refused for good while the first is still on its way.
    effects = core.step(Replied(0, 10, 2, error=TOO_LARGE), 0)
    assert outcomes_of(effects) == [(1, Outcome.UNKNOWN)]
    assert sends_of(core.step(Timer(), 10 * MS)) == [(0, 0, 0, 3, True)]
    assert sends_of(core.step(Replied(0, 0, 3, offset=1), 11 * MS)) == [(2, 1, 0, 4, True)]


def test_gap_at_the_head_renumbers_in_the_next_epoch() -> None:
    core = started(2)
    core.step(Replied(0, 0, 1), 0)
    core.step(Replied(0, 10, 1, error=OVERLOADED), 0)
    core.step(Timer(), 30 * MS)
    assert outcomes_of(core.step(Replied(0, 10, 2, error=GAP), 30 * MS)) == []
    assert sends_of(core.step(Timer(), 60 * MS)) == [(1, 1, 0, 3, True)]


def test_fenced_ends_the_producer() -> None:
    core = started(2)
    core.step(Disconnected("a:1", 1), 0)
    core.step(Resolved(B), 0)
    core.step(Enqueue(2, 1, 1), 0)
    core.step(connected("b:1", 2), 0)
    effects = core.step(Replied(0, 0, 2, error=FENCED), 0)
    assert effects[-1] == Ended(FENCED)
    assert outcomes_of(effects) == [(0, Outcome.UNKNOWN), (1, Outcome.UNKNOWN), (2, Outcome.FAILED)]
    assert outcomes_of(core.step(Enqueue(3, 1, 1), 0)) == [(3, Outcome.FAILED)]


def test_acknowledged_out_of_turn_goes_along_in_the_next_run() -> None:
    core = started(3)
    assert outcomes_of(core.step(Replied(0, 10, 1, offset=10), 0)) == [(1, Outcome.OK)]
    core.step(Disconnected("a:1", 1), 0)
    core.step(Resolved(B), 0)
    assert [s[0] for s in sends_of(core.step(connected("b:1", 2), 0))] == [0, 1, 2]
    assert outcomes_of(core.step(Replied(0, 0, 2, offset=0), 0)) == [(0, Outcome.OK)]
    assert core.step(Replied(0, 10, 2, offset=10), 0) == []
    assert outcomes_of(core.step(Replied(0, 20, 2, offset=20), 0)) == [(2, Outcome.OK)]
    assert core.is_idle


def test_closing_tells_failed_from_unknown() -> None:
    core = started(2)
    core.step(Replied(0, 0, 1, error=OVERLOADED), 0)
    core.step(Enqueue(2, 1, 1), 0)
    assert outcomes_of(core.step(Abandon(), 0)) == [(n, Outcome.FAILED) for n in range(3)]
    core = started(1)
    assert outcomes_of(core.step(Abandon(), 0)) == [(0, Outcome.UNKNOWN)]


def test_idle_producer_does_not_complain_of_a_broken_stream() -> None:
    core = started(1)
    core.step(Replied(0, 0, 1), 0)
    assert core.step(Disconnected("a:1", 1), 0) == []
    assert core.wake_at_us is None
    assert core.step(Enqueue(1, 1, 1), 100 * MS) == [OpenStream("a:1")]


def test_error_of_unknown_outcome_asks_and_makes_doubtful() -> None:
    core = started(1)
    assert core.step(Replied(0, 0, 1, error=UNKNOWN_END), 0) == [Resolve(None, 5, None)]
    assert outcomes_of(core.step(Abandon(), 0)) == [(0, Outcome.UNKNOWN)]


def test_copy_is_independent_and_freeze_tells_states_apart() -> None:
    core = started(2)
    twin = core.copy()
    assert twin.freeze() == core.freeze()
    hash(core.freeze())
    twin.step(Replied(0, 0, 1), 0)
    assert twin.freeze() != core.freeze()
    assert core.unsettled_count == 2
