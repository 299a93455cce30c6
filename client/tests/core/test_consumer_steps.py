"""One event at a time: finding the server, contiguity, grants and acknowledgements."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from seriatim._core.consumer import DROPPED, ConsumerPhase, PartitionConsumer
from seriatim._core.consumer_types import (
    AckConfirmed,
    AckedDurably,
    Acknowledge,
    Answered,
    AskedToYield,
    Assigned,
    Connected,
    ConsumerConfig,
    ConsumerGroupChanged,
    Deliver,
    Delivered,
    Disconnected,
    Dropped,
    Ended,
    GapDeclared,
    GapFound,
    Grown,
    Joined,
    Leave,
    OpenStream,
    Passed,
    Paused,
    Place,
    Refused,
    Resolve,
    Resolved,
    SegmentEnded,
    SendAck,
    SendJoin,
    SendLeave,
    SendSpreadOver,
    SendYielded,
    Skipped,
    Timer,
    Yield,
    YieldAsked,
    YieldEnded,
)
from seriatim._core.producer_types import ReplyError
from seriatim_api.errors import CoordinatorBehindError, OrderViolationError
from seriatim_api.ids import make_offset

MS = 1000
SECOND = 1000 * MS
ELSEWHERE = ReplyError(304)
NOT_SERVING = ReplyError(300)


def joined(index: int = 10, *, sub: int = 1, active: bool = True, segment: int = 1, epoch: int = 5) -> Joined:
    return Joined(sub, active, segment, index, 77, 1, epoch)


def delivered(*batches: tuple[int, int], sub: int = 1, start: int | None = None, epoch: int = 5) -> Delivered:
    return Delivered(sub, 1, batches, batches[0][0] if start is None else start, 0, 1, epoch)


def joining() -> PartitionConsumer:
    core = PartitionConsumer(ConsumerConfig())
    assert core.step(Timer(), 0) == [Resolve(None, None)]
    assert core.step(Resolved(Place(1, "a:1", 5)), 0) == [OpenStream("a:1")]
    assert core.step(Connected("a:1", 3), 0) == [SendJoin(3, 1, False)]
    return core


def active(index: int = 10) -> PartitionConsumer:
    core = joining()
    assert core.step(joined(index), 0) == [Assigned(1, True, 1, index)]
    return core


def test_a_server_of_an_earlier_segment_is_outdated_and_what_it_says_does_not_count() -> None:
    """The coordinator was restored from an older copy, and its server there has a later server epoch."""
    core = active()
    core.step(SegmentEnded(1, 1, 10, 3, "a:1"), 0)
    core.step(Connected("a:1", 3), 0)
    core.step(joined(0, sub=2, segment=3), 0)
    core.step(Disconnected("a:1", 3), 0)
    core.step(Resolved(Place(1, "a:1", 9)), 0)
    core.step(Connected("a:1", 4), 0)
    assert core.step(joined(0, sub=3, segment=1, epoch=9), 0) == []
    assert core.step(delivered((0, 4), sub=3, epoch=9), 0) == []
    assert core.step(Skipped(3, 1, 4, 6), 0) == []
    assert core.phase is ConsumerPhase.JOINING


def active_in_segment(no: int) -> PartitionConsumer:
    """Its server is the one of segment 1, too."""
    core = active()
    core.step(SegmentEnded(1, 1, 10, no, "a:1"), 0)
    core.step(Connected("a:1", 3), 0)
    core.step(joined(0, sub=2, segment=no), 0)
    return core


def test_a_server_that_goes_back_under_an_active_grant_is_outdated_too() -> None:
    core = active_in_segment(3)
    assert core.step(joined(0, sub=2, segment=1, epoch=9), 0) == [Assigned(4, False, 3, 0)]
    assert core.step(delivered((0, 4), sub=2, epoch=9), 0) == []
    assert core.step(joined(0, sub=2, segment=3), 0) == [Assigned(5, True, 3, 0)], "the coordinator is rebuilt"
    with pytest.raises(OrderViolationError):
        core.step(delivered((0, 4), sub=2, epoch=9), 0)


@pytest.mark.parametrize("is_active", [True, False], ids=["active", "standby"])
def test_server_that_goes_back_has_as_long_as_for_a_join(*, is_active: bool) -> None:
    """It lives, so its heartbeats are answered, and nothing else would ever end the wait."""
    core = active_in_segment(3)
    core.step(joined(0, sub=2, active=is_active, segment=3), 0)
    core.step(joined(0, sub=2, active=is_active, segment=1, epoch=9), 1 * SECOND)
    assert core.phase is ConsumerPhase.JOINING
    assert core.wake_at_us == 3 * SECOND
    core.step(joined(0, sub=2, active=is_active, segment=1, epoch=9), 2 * SECOND)
    assert core.wake_at_us == 3 * SECOND, "one more such answer wins no time"
    core.step(Answered(3, 3 * SECOND), 3 * SECOND - 1)
    assert core.step(Timer(), 3 * SECOND) == [SendLeave(3, 2), Resolve(5, "a:1")]


def test_acknowledgement_that_an_outdated_server_confirms_is_not_durable() -> None:
    """The group was moved back to 1:10. The older copy of the coordinator does not know that, and is at 1:50."""
    core = joining()
    core.step(replace(joined(), group_epoch=2), 0)
    core.step(joined(50), 0)
    assert core.step(AckConfirmed(1, 1, 50), 0) == []


def test_end_that_an_outdated_server_says_leads_to_the_next() -> None:
    """The older copy of the coordinator says that all of segment 1 is acknowledged, so the group only crosses again."""
    core = active_in_segment(2)
    core.step(Delivered(2, 2, ((0, 4),), 0, 0, 1, 5), 0)
    assert core.step(joined(10, sub=2), 0) == [Assigned(4, False, 2, 4)]
    assert core.step(SegmentEnded(2, 1, 10, 2, "a:1"), 0) == [OpenStream("a:1")]
    assert core.step(Connected("a:1", 3), 0) == [SendJoin(3, 3, True)]
    assert core.step(joined(0, sub=3, segment=2), 0) == [Assigned(5, True, 2, 0)]


@pytest.mark.parametrize(
    "event", [Delivered(2, 3, ((0, 4),), 0, 0, 1, 9), Skipped(2, 3, 0, 4), Dropped(2, make_offset(3, 0), 3, 4, 4)]
)
def test_server_of_an_earlier_group_epoch_is_outdated(event: Delivered | Skipped | Dropped) -> None:
    """The group was moved back to 1:10, and the older copy of the coordinator does not know that."""
    core = joining()
    core.step(replace(joined(), group_epoch=2), 0)
    core.step(Disconnected("a:1", 3), 0)
    core.step(Resolved(Place(3, "b:1", 9)), 0)
    core.step(Connected("b:1", 4), 0)
    assert core.step(joined(0, sub=2, segment=3, epoch=9), 0) == []
    assert core.step(event, 0) == []


def test_delivers_what_is_contiguous() -> None:
    core = active()
    assert core.step(delivered((8, 4), (12, 3), start=10), 0) == [Deliver(1, 1, 10, 0, 1)]
    assert core.next_index == 15
    assert core.step(Skipped(1, 1, 15, 20), 0) == [Passed(1, 15, 20)]
    assert core.step(delivered((20, 1)), 0) == [Deliver(1, 1, 20, 0, 1)]


@pytest.mark.parametrize(
    "event",
    [
        delivered((11, 4)),
        delivered((9, 1), start=10),
        delivered((10, 2), (13, 1)),
        delivered((10, 2), epoch=6),
        Delivered(1, 2, ((10, 1),), 10, 0, 1, 5),
        Delivered(1, 1, (), 10, 0, 1, 5),
        Skipped(1, 1, 11, 20),
        Skipped(1, 1, 10, 10),
        SegmentEnded(1, 1, 11, 2, ""),
    ],
)
def test_a_hole_is_a_violation(event: Delivered | Skipped | SegmentEnded) -> None:
    core = active()
    with pytest.raises(OrderViolationError):
        core.step(event, 0)
    assert core.step(delivered((10, 1)), 0) == []


def test_older_server_and_older_subscription_are_dropped() -> None:
    core = active()
    assert core.step(delivered((10, 1), epoch=4), 0) == []
    assert core.step(delivered((10, 1), sub=0), 0) == []
    assert core.next_index == 10


def test_acks_coalesce_and_name_the_token() -> None:
    core = active()
    core.step(delivered((10, 10)), 0)
    assert core.step(Acknowledge(1, 1, 12), 0) == [SendAck(3, 1, 77, make_offset(1, 11))]
    assert core.step(Acknowledge(1, 1, 13), 1 * MS) == []
    assert core.step(Acknowledge(1, 1, 15), 2 * MS) == []
    assert core.wake_at_us == 5 * MS
    assert core.step(Timer(), 5 * MS) == [SendAck(3, 1, 77, make_offset(1, 14))]
    assert core.wake_at_us == 5 * S, "then its grant lapses"
    assert core.step(Acknowledge(1, 1, 14), 20 * MS) == []
    assert core.step(AckConfirmed(1, 1, 15), 20 * MS) == [AckedDurably(1, 15)]


def test_ack_of_an_earlier_grant_changes_nothing() -> None:
    core = active()
    core.step(delivered((10, 10)), 0)
    assert core.step(joined(10, epoch=6), 0) == [Assigned(2, True, 1, 10)]
    assert core.step(Acknowledge(1, 1, 15), 0) == []
    assert core.wake_at_us == 5 * S


def test_ack_above_what_was_delivered_is_our_bug() -> None:
    core = active()
    with pytest.raises(AssertionError):
        core.step(Acknowledge(1, 1, 11), 0)


def test_standby_takes_over_when_told() -> None:
    core = joining()
    assert core.step(joined(active=False), 0) == []
    assert core.phase is ConsumerPhase.STANDBY
    assert core.step(joined(30), 0) == [Assigned(1, True, 1, 30)]
    assert core.step(delivered((30, 1)), 0) == [Deliver(1, 1, 30, 0, 1)]


def test_end_of_segment_leads_to_the_next_server() -> None:
    core = active()
    core.step(delivered((10, 5)), 0)
    effects = core.step(SegmentEnded(1, 1, 15, 2, "b:1"), 0)
    assert effects == [Assigned(2, False, 1, 15), OpenStream("b:1")]
    assert core.step(Connected("b:1", 4), 0) == [SendJoin(4, 2, True)]
    assert core.step(joined(0, sub=2, segment=2, epoch=3), 0) == [Assigned(3, True, 2, 0)]


def test_end_of_segment_without_an_address_asks() -> None:
    core = active()
    assert core.step(SegmentEnded(1, 1, 10, 2, ""), 0)[-1] == Resolve(None, None)


def test_broken_stream_complains_and_rejoins() -> None:
    core = active()
    assert core.step(Disconnected("a:1", 3), 0) == [Assigned(2, False, 1, 10), Resolve(5, "a:1")]
    assert core.step(Resolved(Place(1, "b:1", 9)), 0) == [OpenStream("b:1")]
    assert core.step(Connected("b:1", 4), 0) == [SendJoin(4, 2, True)]
    assert core.step(joined(8, sub=2, epoch=4), 0) == []  # an older server than the one we had
    assert core.step(joined(8, sub=2, epoch=9), 0) == [Assigned(3, True, 1, 8)]


def test_nobody_answers_backs_off() -> None:
    core = PartitionConsumer(ConsumerConfig())
    core.step(Timer(), 0)
    waits = []
    now = 0
    for _ in range(8):
        assert core.step(Resolved(None), now) == []
        assert core.wake_at_us is not None
        waits.append(core.wake_at_us - now)
        now = core.wake_at_us
        assert core.step(Timer(), now) == [Resolve(None, None)]
    assert waits[0] < waits[3] < waits[-1] <= 200 * MS


def test_join_without_an_answer_is_a_complaint() -> None:
    core = joining()
    assert core.wake_at_us == 2000 * MS
    assert core.step(Timer(), 2000 * MS) == [SendLeave(3, 1), Resolve(5, "a:1")]


def test_refused_goes_where_it_is_told_but_not_for_ever() -> None:
    core = joining()
    assert core.step(Refused(1, ELSEWHERE, "b:1"), 0) == [OpenStream("b:1")]
    addresses = ["a:1", "b:1"] * 3
    for sub, address in enumerate(addresses, start=2):
        here = "b:1" if address == "a:1" else "a:1"
        core.step(Connected(here, 10 + sub), 0)
        effects = core.step(Refused(sub, ELSEWHERE, address), 0)
        if not effects:
            break
    assert core.phase is ConsumerPhase.RESOLVING
    assert core.wake_at_us is not None
    assert core.wake_at_us > 0


def test_refused_for_good_ends() -> None:
    core = joining()
    error = ReplyError(124)
    assert core.step(Refused(1, error), 0) == [Ended(error)]


def test_coordinator_that_is_rebuilt_is_waited_for() -> None:
    core = joining()
    assert core.step(Refused(1, ReplyError(CoordinatorBehindError.number)), 0) == [Resolve(None, None)]


def test_revoked_asks_again() -> None:
    core = active()
    assert core.step(Refused(1, NOT_SERVING), 0) == [Assigned(2, False, 1, 10), Resolve(None, None)]


def test_gap_is_told_and_the_segment_may_end_anywhere() -> None:
    core = active()
    assert core.step(GapDeclared(1, 1, 10, "lost"), 0) == [GapFound(1, 10, "lost")]
    assert core.step(SegmentEnded(1, 1, 50, 2, "b:1"), 0)[-1] == OpenStream("b:1")


def test_a_gap_of_a_later_segment_says_that_the_group_has_left_this_one() -> None:
    core = active()
    assert core.step(GapDeclared(1, 2, 0, "lost"), 0) == [GapFound(2, 0, "lost")]
    assert core.step(SegmentEnded(1, 2, 0, 3, "b:1"), 0)[-1] == OpenStream("b:1")


def test_a_gap_of_an_earlier_segment_excuses_nothing_in_this_one() -> None:
    core = active()
    assert core.step(GapDeclared(1, 0, 0, "lost"), 0) == [GapFound(0, 0, "lost")]
    with pytest.raises(OrderViolationError):
        core.step(SegmentEnded(1, 1, 50, 2, "b:1"), 0)


def test_what_retention_dropped_is_told_and_passed_and_what_comes_next_begins_there() -> None:
    core = active()
    dropped = Dropped(1, make_offset(1, 10), 1, 40, 30)
    assert core.step(dropped, 0)[0] == GapFound(1, 10, DROPPED, make_offset(1, 40), 30)
    assert core.step(delivered((40, 2)), 0) == [Deliver(1, 1, 40, 0, 1)]
    assert core.step(SegmentEnded(1, 1, 42, 2, "b:1"), 0)[-1] == OpenStream("b:1")


def test_a_drop_that_began_in_an_earlier_segment_is_told_from_there() -> None:
    core = active(0)
    told = core.step(Dropped(1, make_offset(0, 7), 1, 5, 99), 0)
    assert told[0] == GapFound(0, 7, DROPPED, make_offset(1, 5), 99)


def test_a_jump_over_messages_that_nothing_was_said_of_is_a_violation() -> None:
    core = active()
    with pytest.raises(OrderViolationError):
        core.step(delivered((40, 2)), 0)


@pytest.mark.parametrize("dropped", [Dropped(1, make_offset(1, 0), 1, 5, 5), Dropped(1, make_offset(2, 0), 2, 5, 5)])
def test_a_drop_of_what_was_delivered_or_of_another_segment_is_a_violation(dropped: Dropped) -> None:
    core = active()
    with pytest.raises(OrderViolationError):
        core.step(dropped, 0)


def test_a_drop_of_an_older_subscription_is_not_heard() -> None:
    core = active()
    assert core.step(Dropped(7, make_offset(1, 10), 1, 40, 30), 0) == []
    assert core.next_index == 10


def test_what_was_dropped_behind_an_acknowledged_message_needs_no_acknowledgement() -> None:
    core = active()
    core.step(delivered((10, 5)), 0)
    core.step(Acknowledge(1, 1, 15), 0)
    core.step(Dropped(1, make_offset(1, 15), 1, 40, 25), 0)
    sent = [effect for effect in core.step(AckConfirmed(1, 1, 15), 0) if isinstance(effect, SendAck)]
    sent += [effect for effect in core.step(Leave(), 0) if isinstance(effect, SendAck)]
    assert [effect.offset for effect in sent] == [make_offset(1, 39)]


def test_leaving_sends_the_last_ack() -> None:
    core = active()
    core.step(delivered((10, 5)), 0)
    core.step(Acknowledge(1, 1, 11), 0)
    core.step(Acknowledge(1, 1, 15), 0)
    effects = core.step(Leave(), 1 * MS)
    assert effects == [SendAck(3, 1, 77, make_offset(1, 14)), SendLeave(3, 1), Assigned(2, False, 1, 15), Ended(None)]


def test_skip_behind_what_is_acked_is_acked_with_it() -> None:
    core = active()
    core.step(delivered((10, 5)), 0)
    core.step(Acknowledge(1, 1, 15), 0)
    core.step(Skipped(1, 1, 15, 18), 0)
    assert core.step(Timer(), 10 * MS) == [SendAck(3, 1, 77, make_offset(1, 17))]


@pytest.mark.parametrize("behind", [Skipped(1, 1, 15, 18), Dropped(1, make_offset(1, 15), 1, 18, 3)])
def test_what_lies_behind_the_last_message_given_is_acked_with_it(behind: Skipped | Dropped) -> None:
    """The skip comes while the application still works on the last message of a sealed segment. Without it, the
    consumer group stays in front of messages that no consumer acknowledges, and never gets to the next segment."""
    core = active()
    core.step(delivered((10, 5)), 0)
    core.step(behind, 0)
    assert core.step(Acknowledge(1, 1, 14), 0) == [SendAck(3, 1, 77, make_offset(1, 13))]
    assert core.step(Acknowledge(1, 1, 15), 10 * MS) == [SendAck(3, 1, 77, make_offset(1, 17))]


def test_a_drop_is_told_once_and_what_is_added_to_it_when_it_grows() -> None:
    core = active()
    told = core.step(Dropped(1, make_offset(1, 10), 1, 40, 30), 0)
    assert told[0] == GapFound(1, 10, DROPPED, make_offset(1, 40), 30)
    again = core.step(Dropped(1, make_offset(1, 10), 1, 40, 30), 0)
    assert [effect for effect in again if isinstance(effect, GapFound)] == []
    grown = core.step(Dropped(1, make_offset(1, 10), 1, 45, 35), 0)
    assert grown[0] == GapFound(1, 40, DROPPED, make_offset(1, 45), 5)
    later = core.step(Dropped(1, make_offset(1, 20), 1, 50, 30), 0)
    assert later[0] == GapFound(1, 45, DROPPED, make_offset(1, 50), 5)
    next_to_it = core.step(Dropped(1, make_offset(1, 50), 1, 60, 10), 0)
    assert next_to_it[0] == GapFound(1, 50, DROPPED, make_offset(1, 60), 10)
    elsewhere = core.step(Dropped(1, make_offset(1, 65), 1, 70, 5), 0)
    assert elsewhere[0] == GapFound(1, 65, DROPPED, make_offset(1, 70), 5)


@pytest.mark.parametrize(
    ("to", "messages", "behind"),
    [
        ((1, 40), 28, []),
        ((2, 0), 28, []),  # the same place: the segment ends there
        ((1, 50), 38, [GapFound(1, 40, DROPPED, make_offset(1, 50), 10)]),
    ],
)
def test_a_drop_that_takes_what_was_given_and_not_acknowledged_is_told_from_there(
    to: tuple[int, int], messages: int, behind: list[GapFound]
) -> None:
    core = active()
    core.step(delivered((10, 5)), 0)
    assert core.step(Dropped(1, make_offset(1, 15), 1, 40, 25), 0)[0].from_index == 15
    if to[0] != 1:
        core.step(joined(0, segment=to[0]), 0)
    dropped = Dropped(1, make_offset(1, 12), *to, messages)
    told = [effect for effect in core.step(dropped, 0) if isinstance(effect, GapFound)]
    assert told == [GapFound(1, 12, DROPPED, make_offset(1, 15), 3), *behind]
    again = core.step(dropped, 0)
    assert [effect for effect in again if isinstance(effect, GapFound)] == []


def _gaps(core: PartitionConsumer, *drops: Dropped) -> list[GapFound]:
    return [effect for drop in drops for effect in core.step(drop, 0) if isinstance(effect, GapFound)]


def test_a_drop_told_in_two_parts_by_the_next_server_is_told() -> None:
    """Without it: 1. A consumer was notified of 20 messages of segment 1, and of the first 5 of segment 2. It gets 2:5
    to 2:10. 2. Retention drops 2:5 to 2:17. 3. The next server reports the drop from 1:30 to 2:0 again, and then of the
    one from 2:0 to 2:17. It has fewer messages than were reported before, so 2:10 to 2:17 are never reported."""
    core = active(30)
    assert _gaps(core, Dropped(1, make_offset(1, 30), 1, 50, 20)) == [GapFound(1, 30, DROPPED, make_offset(1, 50), 20)]
    core.step(joined(0, segment=2), 0)
    earlier = Dropped(1, make_offset(1, 30), 2, 0, 20)
    told = _gaps(core, earlier, Dropped(1, make_offset(2, 0), 2, 5, 5))
    assert told == [GapFound(2, 0, DROPPED, make_offset(2, 5), 5)]
    core.step(joined(0, segment=2), 0)
    told = _gaps(core, earlier, Dropped(1, make_offset(2, 0), 2, 17, 17))
    assert told == [GapFound(2, 5, DROPPED, make_offset(2, 17), 12)]
    core.step(joined(0, segment=3), 0)
    assert _gaps(core, Dropped(1, make_offset(2, 5), 3, 4, 20)) == [GapFound(2, 17, DROPPED, make_offset(3, 4), 8)]


@pytest.mark.parametrize(
    ("drop", "added"),
    [
        (Dropped(1, make_offset(1, 45), 2, 9, 14), [((1, 45), (2, 0), 5), ((2, 5), (2, 9), 4)]),
        (Dropped(1, make_offset(1, 50), 2, 5, 5), []),  # segment 1 ends at 50
        (Dropped(1, make_offset(1, 45), 3, 4, 20), [((1, 45), (2, 0), 15), ((2, 5), (3, 4), 15)]),
    ],
)
def test_a_drop_that_grows_at_both_ends_is_told_of_both(
    drop: Dropped, added: list[tuple[tuple[int, int], tuple[int, int], int]]
) -> None:
    """Of the last one only the sum is known, so either part may have all of it."""
    core = active(0)
    core.step(joined(0, segment=2), 0)
    _gaps(core, Dropped(1, make_offset(2, 0), 2, 5, 5))
    core.step(joined(0, segment=drop.segment), 0)
    assert _gaps(core, drop) == [
        GapFound(*first, DROPPED, make_offset(*end), messages) for first, end, messages in added
    ]
    assert _gaps(core, drop) == []


def test_copy_is_independent() -> None:
    core = active()
    twin = core.copy()
    twin.step(delivered((10, 1)), 0)
    assert core.next_index == 10
    assert twin.freeze() != core.freeze()


# ---- the session: what comes on a grant whose heartbeats stay unanswered ------------------------------------

S = 1000 * MS


def in_session() -> PartitionConsumer:
    """Active, of a server that answers heartbeats; the join went out at 0."""
    core = joining()
    core.step(replace(joined()), 0)
    assert core.wake_at_us == 5 * S
    return core


def test_what_a_cut_held_back_is_dropped_after_the_session_time() -> None:
    core = in_session()
    assert core.step(delivered((10, 1)), 4 * S) == [Deliver(1, 1, 10, 0, 1)]
    core.step(Acknowledge(1, 1, 11), 4 * S)
    effects = core.step(delivered((11, 1)), 35 * S)
    assert not any(isinstance(effect, Deliver) for effect in effects)
    assert effects == [SendLeave(3, 1), Assigned(2, False, 1, 11), Resolve(5, "a:1")], "another server may have it"
    for late in (delivered((11, 1)), Skipped(1, 1, 11, 12), SegmentEnded(1, 1, 99, 2, "b:1"), joined(11, epoch=7)):
        assert core.step(late, 35 * S) == []
    assert not core.has_lapsed(99 * S)


def test_a_heartbeat_counts_from_its_sending() -> None:
    core = in_session()
    assert core.step(Answered(3, 3 * S), 7 * S) == []  # held for 4 s, and the join is 7 s old
    assert core.wake_at_us == 8 * S
    assert core.step(delivered((10, 1)), 7 * S + MS) == [Deliver(1, 1, 10, 0, 1)]
    assert core.step(Answered(99, 20 * S), 7 * S + MS) == [], "of another stream"
    assert core.step(Timer(), 8 * S)[0] == SendLeave(3, 1)


def test_what_the_application_has_done_is_said_when_the_session_ends() -> None:
    """A program that blocked for longer than the session gets on: its acknowledgement goes out before it leaves."""
    core = in_session()
    core.step(delivered((10, 3)), 1 * S)
    effects = core.step(Acknowledge(1, 1, 12), 9 * S)
    assert effects == [SendAck(3, 1, 77, make_offset(1, 11))]
    core.step(Acknowledge(1, 1, 13), 9 * S + MS)
    assert core.step(Timer(), 9 * S + MS)[:2] == [SendAck(3, 1, 77, make_offset(1, 12)), SendLeave(3, 1)]


def test_a_standby_leaves_a_server_that_does_not_answer() -> None:
    core = joining()
    assert core.step(joined(active=False), 0) == []
    assert core.step(joined(), 6 * S) == [SendLeave(3, 1), Resolve(5, "a:1")]


# ---- the group is moved, paused and resumed ----------------------------------------------------------------


def moved(index: int, epoch: int, *, by: Literal["rewind", "skip"] | None = None, paused: bool = False) -> Joined:
    return Joined(1, True, 1, index, 78, epoch, 5, paused=paused, begun_by=by)


@pytest.mark.parametrize("by", ["rewind", "skip", None])
def test_a_moved_group_is_told_before_anything_is_delivered(by: Literal["rewind", "skip"] | None) -> None:
    core = active()
    core.step(delivered((10, 10)), 0)
    told = core.step(moved(3, 2, by=by), 0)
    assert told == [ConsumerGroupChanged(by or "moved", 2, 1, 3), Assigned(2, True, 1, 3)]
    assert core.step(Acknowledge(1, 1, 15), 0) == [], "of the grant before"
    assert core.step(delivered((3, 1)), 0) == [Deliver(2, 1, 3, 0, 1)]
    assert core.step(moved(4, 2, by=by), 0) == [Assigned(3, True, 1, 4)], "a new grant in the same epoch is no news"


def test_a_group_may_be_sent_to_an_earlier_segment_with_a_lower_serving_epoch() -> None:
    core = active()
    core.step(Refused(1, ELSEWHERE, "b:2"), 0)
    core.step(Connected("b:2", 4), 0)
    told = core.step(Joined(2, True, 0, 7, 79, 2, 3, begun_by="rewind"), 0)
    assert told == [ConsumerGroupChanged("rewind", 2, 0, 7), Assigned(3, True, 0, 7)]
    assert core.step(Delivered(2, 0, ((7, 1),), 7, 0, 1, 3), 0) == [Deliver(3, 0, 7, 0, 1)]


def test_a_pause_and_its_end_are_told_once_and_keep_the_grant() -> None:
    core = active()
    core.step(delivered((10, 2)), 0)
    assert core.step(Paused(1, True), 0) == [ConsumerGroupChanged("pause", 1, 1, 12)]
    assert core.paused
    assert core.step(Paused(1, True), 0) == []
    assert core.step(Acknowledge(1, 1, 11), 0) == [SendAck(3, 1, 77, make_offset(1, 10))]
    assert core.step(Paused(1, False), 0) == [ConsumerGroupChanged("resume", 1, 1, 12)]
    assert core.step(delivered((12, 1)), 0) == [Deliver(1, 1, 12, 0, 1)]
    assert core.step(Paused(0, True), 0) == [], "of an older subscription"


def test_who_joins_a_paused_group_is_told() -> None:
    core = joining()
    assert core.step(moved(10, 1, paused=True), 0) == [
        ConsumerGroupChanged("pause", 1, 1, 10),
        Assigned(1, True, 1, 10),
    ]


# ---- yielding to another consumer -------------------------------------------------------------------------


def asked(number: int = 4, *, sub: int = 1, is_over: bool = False) -> YieldAsked:
    return YieldAsked(sub, number, is_over)


def test_question_to_yield_is_answered_under_the_grant() -> None:
    core = active()
    core.step(delivered((10, 5)), 0)
    assert core.step(asked(), 0) == [AskedToYield(4)]
    assert core.yielding == 4
    assert core.step(Yield(4, 12), 0) == [SendYielded(3, 1, 77, 4, make_offset(1, 12))]
    assert core.step(Acknowledge(1, 1, 12), 5 * MS) == [SendAck(3, 1, 77, make_offset(1, 11))], (
        "it may still acknowledge"
    )


def test_question_to_yield_ends_with_its_number_or_with_the_grant() -> None:
    core = active()
    core.step(asked(), 0)
    assert core.step(asked(3, is_over=True), 0) == []
    assert core.yielding == 4, "an earlier one has ended"
    assert core.step(asked(is_over=True), 0) == [YieldEnded()]
    assert core.step(Yield(4, 12), 0) == [], "it is not asked any more"
    core.step(asked(5), 0)
    assert core.step(joined(10, active=False), 0) == [Assigned(2, False, 1, 10)]
    assert core.yielding == 0
    assert core.step(asked(6), 0) == [], "a standby has nothing to yield"


def test_join_says_that_another_consumer_was_active() -> None:
    core = joining()
    core.step(joined(10, active=False), 0)
    core.step(Disconnected("a:1", 3), 0)
    core.step(Resolved(Place(1, "b:1", 6)), 0)
    assert core.step(Connected("b:1", 9), 0) == [SendJoin(9, 2, False, True)]


def test_more_partitions_are_told_once() -> None:
    core = active()
    assert core.step(Grown(8), 0) == [SendSpreadOver(3, 1, 8)]
    assert core.step(Grown(8), 0) == []
    core.step(Disconnected("a:1", 3), 0)
    core.step(Resolved(Place(1, "b:1", 6)), 0)
    core.step(Connected("b:1", 9), 0)
    assert core.step(joined(10, sub=2), 0) == [Assigned(3, True, 1, 10)]
    assert core.step(Grown(16), 0) == [SendSpreadOver(9, 2, 16)]
    assert core.step(joined(10, sub=2), 0) == [Assigned(4, True, 1, 10)]


def test_a_complaint_without_an_answer_is_followed_by_a_plain_question() -> None:
    core = joining()
    config = ConsumerConfig()
    deadline_us = config.join_timeout_ms * MS
    assert core.step(Timer(), deadline_us) == [SendLeave(3, 1), Resolve(5, "a:1")]
    core.step(Resolved(None), deadline_us + SECOND)
    later_us = deadline_us + 2 * SECOND
    assert core.step(Timer(), later_us) == [Resolve(None, None)]
    assert core.step(Resolved(Place(1, "a:1", 5)), later_us) == [OpenStream("a:1")]


def test_each_confirmed_complaint_doubles_the_time_of_the_next_join() -> None:
    core, config = PartitionConsumer(ConsumerConfig()), ConsumerConfig()
    core.step(Timer(), 0)
    core.step(Resolved(Place(1, "a:1", 5)), 0)
    now_us = 0
    for expected_ms in (2_000, 4_000, 8_000, 16_000, 16_000):
        core.step(Connected("a:1", 3), now_us)
        assert core.wake_at_us == now_us + expected_ms * MS
        now_us += expected_ms * MS
        core.step(Timer(), now_us)
        now_us += config.backoff_ms_max * MS
        core.step(Timer(), now_us)
        core.step(Resolved(Place(1, "a:1", 5, confirmed=True)), now_us)
    core.step(Connected("a:1", 3), now_us)
    core.step(joined(sub=6), now_us)
    core.step(Disconnected("a:1", 3), now_us)
    core.step(Resolved(Place(1, "a:1", 5)), now_us)
    core.step(Connected("a:1", 4), now_us)
    assert core.wake_at_us == now_us + config.join_timeout_ms * MS, "an answer to a join ends it"


def test_the_deadline_of_a_join_follows_the_round_trip() -> None:
    core = PartitionConsumer(ConsumerConfig())
    core.step(Timer(), 0)
    core.step(Resolved(Place(1, "a:1", 5)), 0)
    core.step(Connected("a:1", 3, round_trip_us=300 * MS), 0)
    assert core.wake_at_us == (ConsumerConfig().join_timeout_ms + 300) * MS
