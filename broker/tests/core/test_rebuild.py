"""What a rebuilt coordinator should have: the newest record of one line, and cursors that skip nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.control.rebuild import known_chain, plan_chain, plan_cursor
from seriatim_broker.core.values.chain import Chain, trim
from seriatim_broker.core.values.effects import WriteCursor
from seriatim_broker.core.values.events import CursorRead, CursorRecord
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode, Exhausted, RetryPolicy
from seriatim_broker.core.values.log import NO_HAND_OVER, UNKNOWN_HAND_OVER, CursorState, HandOverId
from seriatim_broker.core.values.messages import ReplicateCursors, ReplicateLedger
from seriatim_broker.core.values.segment import Start

from .keyed_support import KeyedServing
from .support import GROUP, M01, M20, M21, TOPIC, P, Serving, control_record, first_chain, sealed_chain

SECOND = sealed_chain(first_chain(), 5, 7)


def test_the_newest_record_wins_at_an_epoch_above_all() -> None:
    planned = plan_chain(P, {"a": first_chain(), "b": SECOND}, replace(first_chain(), epoch=9))
    assert planned.chain == replace(SECOND, epoch=10)
    assert planned.told_by == "b"


def test_what_is_there_already_is_left_alone() -> None:
    assert plan_chain(P, {"a": first_chain(), "b": SECOND}, SECOND).chain is None


def test_an_empty_coordinator_gets_what_is_told() -> None:
    assert plan_chain(P, {"a": SECOND}, None).chain == replace(SECOND, epoch=SECOND.epoch + 1)


def test_another_record_at_the_same_epoch_is_written_over() -> None:
    other = replace(SECOND, segments=(replace(SECOND.segments[0], eligible=()), SECOND.open_segment))
    planned = plan_chain(P, {"a": other}, SECOND)
    assert planned.chain is not None
    assert planned.chain.epoch == SECOND.epoch + 1


def test_a_number_that_was_used_twice_is_left_to_a_person() -> None:
    forked = replace(SECOND.open_segment, switch_attempt=b"another---------", broker_group="g2", members=(M20, M21))
    planned = plan_chain(P, {"a": SECOND, "b": replace(SECOND, segments=(SECOND.segments[0], forked))}, None)
    assert planned.chain is None
    assert "opened twice" in planned.conflict


def test_a_cursor_begins_at_the_least_that_a_member_tells() -> None:
    told = [control_record(2, "g", 1, 26, 40), control_record(2, "g", 1, 43, 50), control_record(1, "g", 1, 99, 99)]
    assert plan_cursor(told, None, TOPIC) == CursorRecord(2, 1, 26, TOPIC)
    assert plan_cursor(told, CursorRecord(1, 1, 0, TOPIC), TOPIC) == CursorRecord(2, 1, 26, TOPIC)
    assert plan_cursor(told, CursorRecord(2, 1, 0, TOPIC), TOPIC) is None
    assert plan_cursor(told, CursorRecord(1, 2, 0, TOPIC, deleted=True), TOPIC) is None, "forgotten, and stays so"
    assert plan_cursor([], None, TOPIC) is None


def test_a_cursor_keeps_what_disks_do_not_tell() -> None:
    """Rule `rebuilt-as-it-was`."""
    policy = RetryPolicy(5, exhausted=Exhausted.PARK_KEY)
    before = CursorRecord(
        2, 1, 7, TOPIC, mode=ConsumerMode.KEY_ORDERED, retry=policy, term_base=9, oldest=5, handoff=HandOverId(3, 4)
    )
    before = replace(before, paused=True)
    told = [
        CursorState(4, "g", 1, 26, 40, oldest=1 << 40, settings=before.settings, term_base=30),
        CursorState(4, "g", 1, 30, 40, settings=before.settings, term_base=30),
    ]
    planned = plan_cursor(told, before, TOPIC, chain_epoch=20)
    assert planned is not None
    assert (planned.segment_no, planned.start_index, planned.mode, planned.retry) == (4, 26, before.mode, policy)
    assert (planned.oldest, planned.handoff, planned.paused) == (1 << 40, UNKNOWN_HAND_OVER, True)
    assert planned.term_base == 30 + 21, "above all that a crossing can have made"


POLICY = RetryPolicy(5, exhausted=Exhausted.PARK_KEY)
KEYED = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, POLICY)


def test_a_cursor_that_the_coordinator_lost_has_the_settings_of_the_disks() -> None:
    """Rule `settings-on-disks`."""
    told = [
        CursorState(4, "g", 1, 26, 40, 7, oldest=make_offset(2, 5), settings=KEYED, term_base=9),
        CursorState(4, "g", 1, 30, 40, 7, settings=KEYED, term_base=9),
    ]
    for before in (None, CursorRecord(1, 0, 0, TOPIC, deleted=True), CursorRecord(1, 1, 0, TOPIC)):
        planned = plan_cursor(told, before, TOPIC, chain_epoch=20)
        assert planned is not None
        assert (planned.segment_no, planned.group_epoch, planned.start_index) == (4, 1, 26)
        assert planned.settings == KEYED
        assert planned.oldest == make_offset(2, 5), "the lists are on disks, and continue"
        assert planned.term_base == 9 + 21, "above the next segment's, where a server may have begun"
        assert plan_cursor(told, planned, TOPIC, chain_epoch=21) is None, "a second rebuild changes nothing"


def test_of_two_disks_the_settings_of_the_newest_record_count() -> None:
    other = replace(KEYED, retry=RetryPolicy(7))
    for older, newer in (((7, 3), (7, 4)), ((7, 90), (8, 1))):
        told = [
            CursorState(4, "g", 1, 26, 40, older[0], settings=KEYED, serial=older[1]),
            CursorState(4, "g", 1, 20, 40, newer[0], settings=other, serial=newer[1]),
            CursorState(3, "g", 1, 20, 40, 99, settings=KEYED, serial=99),
        ]
        for states in (told, told[::-1]):
            planned = plan_cursor(states, None, TOPIC)
            assert planned is not None
            assert planned.settings == other


def test_the_settings_of_the_coordinator_count_if_its_record_is_not_older() -> None:
    told = [CursorState(4, "g", 1, 26, 40, 7, settings=KEYED)]
    assert plan_cursor(told, CursorRecord(4, 1, 0, TOPIC), TOPIC) is None
    assert plan_cursor(told, CursorRecord(1, 2, 0, TOPIC), TOPIC) is None


def test_at_most_once_delivery_outlives_the_coordinator() -> None:
    once = ConsumerGroupSettings(at_most_once=True)
    planned = plan_cursor([CursorState(4, "g", 1, 26, 40, 7, settings=once)], None, TOPIC, chain_epoch=20)
    assert planned == CursorRecord(4, 1, 26, TOPIC, at_most_once=True)


def test_at_most_once_group_begins_where_a_member_tells() -> None:
    """If a handoff were named that no disk has, its server would pass the whole segment."""
    once = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, RetryPolicy(), at_most_once=True)
    planned = plan_cursor([CursorState(4, "g", 1, 26, 40, 7, settings=once)], None, TOPIC, chain_epoch=20)
    assert planned is not None
    assert planned.handoff == NO_HAND_OVER


class Rebuilt(KeyedServing):
    """This member serves segment 1. The coordinator was rebuilt from what the disk of another member has of that."""

    told = CursorState(1, GROUP, 1, 0, 0, 7, settings=KEYED, term_base=9)

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        record = plan_cursor([self.told], CursorRecord(no, epoch - 1, start, TOPIC), TOPIC, chain_epoch=20)
        assert record is not None
        self.do(CursorRead(P, GROUP, record, revision))


@pytest.mark.parametrize(
    ("acked", "oldest", "begins"),
    [
        pytest.param(0, 0, 0, id="a number of dead letters, and no list"),
        pytest.param(3, make_offset(1, 1), 1, id="a list"),
        pytest.param(1, make_offset(1, 2), 1, id="a list after the first message that is not acknowledged"),
    ],
)
@pytest.mark.parametrize("mode", [ConsumerMode.KEY_ORDERED, ConsumerMode.SHARED])
def test_server_without_the_rows_that_another_disk_has_goes_back(
    mode: ConsumerMode, acked: int, oldest: int, begins: int
) -> None:
    """Rule `rebuilt-goes-back`."""
    bench = Rebuilt("abcde", mode=mode)
    settings = replace(KEYED, mode=mode)
    bench.told = replace(bench.told, acked=acked, oldest=oldest, settings=settings)
    bench.begin_unconfirmed()
    (write,) = bench.all(WriteCursor)
    assert (write.record.segment_no, write.record.start_index, write.record.group_epoch) == (1, begins, 2)
    assert write.record.term_base > bench.told.term_base
    bench.deliver()
    assert not bench.granted(), "nothing is granted before that is written"
    assert not bench.sent(ReplicateLedger, M01), "nor does an empty table replace the rows of the other member"


@pytest.mark.parametrize("mode", [ConsumerMode.KEY_ORDERED, ConsumerMode.SHARED, ConsumerMode.EXCLUSIVE])
@pytest.mark.parametrize("start", [2, 5])
def test_place_of_a_group_that_acknowledged_nothing(start: int, mode: ConsumerMode) -> None:
    """Since its first consumer joined, its place is on the disks of all eligible members, also at the end."""

    class Begun(KeyedServing if mode.is_keyed else Serving):  # type: ignore[misc]
        def cursor(self, no: int = 1, epoch: int = 1, _start: int = 0, revision: int = 5) -> None:
            super().cursor(no, epoch, start, revision)

    bench = Begun("abcde", mode=mode) if mode.is_keyed else Begun()
    bench.begin()
    (told,) = bench.part.cursors.values()
    assert bench.sent(ReplicateLedger if mode.is_keyed else ReplicateCursors, M01)
    planned = plan_cursor([told], None, TOPIC, chain_epoch=20)
    assert planned is not None
    assert (planned.segment_no, planned.group_epoch, planned.start_index, planned.mode) == (1, 1, start, mode)


def test_server_that_has_the_rows_goes_on_after_a_rebuild() -> None:
    told = replace(Rebuilt.told, acked=1)
    bench = Rebuilt("abcde", cursors=(told,))
    bench.told = told
    bench.begin()
    bench.deliver()
    assert not bench.all(WriteCursor)
    assert [index for run in bench.granted() for index in run] == [1, 2, 3, 4]


def test_the_server_of_a_segment_does_not_go_back_to_an_earlier_server_epoch() -> None:
    """Rule `server-epochs-stay`: another member took the right over from the older copy, which lacks segment 2."""
    taken = replace(SECOND.segments[0], server_epoch=7)
    older = replace(SECOND, epoch=7, segments=(taken, SECOND.open_segment))
    planned = plan_chain(P, {"a": older}, replace(SECOND, epoch=9))
    assert planned.chain is not None
    assert planned.chain.epoch == 10
    assert [segment.server_epoch for segment in planned.chain.segments] == [10, SECOND.open_segment.server_epoch]
    assert plan_chain(P, {"a": older}, planned.chain).chain is None, "a second rebuild changes nothing"


TRIMMED = trim(first_chain(), 1, Start(3, 77, 300), 1)
SEALED_WITH_BYTES = replace(SECOND, segments=(replace(SECOND.segments[0], sealed_bytes=500), SECOND.open_segment))


@pytest.mark.parametrize(
    ("other", "begin"),
    [
        (TRIMMED, Start(3, 77, 300)),
        (trim(first_chain(), 1, Start(6, 78, 600), 1), Start(0, 0, 0)),  # beyond what was sealed: not the same line
        (trim(SEALED_WITH_BYTES, 2, None, 1), Start(5, 7, 500)),
        (trim(SEALED_WITH_BYTES, 2, None, 2), Start(5, 7, 500)),
    ],
    ids=["start", "start-beyond-the-end", "stub", "segment-left"],
)
def test_dropped_messages_stay_dropped_in_a_rebuilt_record(other: Chain, begin: Start) -> None:
    """Rule `dropped-stays-dropped`: the newest record was written by a switcher that does not know of the drop."""
    later = replace(SEALED_WITH_BYTES, epoch=9)
    planned = plan_chain(P, {"a": replace(other, epoch=8), "b": later}, later)
    rebuilt = planned.chain or later
    assert rebuilt.segments[0].begin == begin
    assert plan_chain(P, {"a": replace(other, epoch=8)}, rebuilt).chain is None, "a second rebuild changes nothing"


def test_broker_reports_what_its_disk_has_dropped() -> None:
    """Its disk dropped three messages. By now it follows a record of another line, which does not say so."""
    bench = Serving()
    bench.begin()
    log = bench.part.logs[1]
    log.trim(bench.core.state, Start(3, 77, 300))
    assert bench.chain.segments[0].start == 0
    known = known_chain(bench.part)
    assert known is not None
    assert known.segments[0].begin == Start(3, 77, 300)
