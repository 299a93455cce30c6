"""Consumer groups: one active consumer, acknowledgements and reservations that outlive their server, crossing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api import errors
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.state.dispatcher import (
    RESERVED_FIRST_MAX,
    RESERVED_LATE_US,
    RESERVED_TIMES_MAX,
    ReservationPace,
)
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import change_server, remove_eligible
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import (
    DropCursor,
    HandOverId,
    HandOverState,
    LedgerChange,
    PutCursor,
    PutHandOver,
    PutLedger,
    RecoveredPartition,
    SafeCursor,
)

from .support import (
    CONFLICT,
    DONE,
    GROUP,
    M00,
    M01,
    M10,
    MS,
    SECOND,
    STREAM,
    TOPIC,
    UNKNOWN,
    Bench,
    P,
    Serving,
    batches_of,
    checksum_of,
    control_record,
    first_chain,
    opened_master,
    recovered,
    sealed_chain,
)


def served(**options: object) -> Serving:
    """A consumer has been given all of the segment."""
    bench = Serving(**options)  # type: ignore[arg-type]
    bench.serve()
    return bench


def cross(bench: Serving) -> fx.WriteCursor:
    """All is acknowledged and durable; the crossing is under way."""
    bench.ack(bench.length - 1)
    bench.persist_everywhere()
    return bench.all(fx.WriteCursor)[-1]


def test_a_consumer_is_given_the_segment_in_order_and_once() -> None:
    bench = served()
    assert bench.indexes() == list(range(bench.length))


def test_the_reservation_is_durable_on_every_eligible_member_before_delivery() -> None:
    bench = Serving()
    bench.begin()
    bench.reads()
    assert bench.writes(PutCursor)[-1].cursor.reserved >= bench.length
    assert not bench.indexes()
    bench.persist()
    assert not bench.indexes(), "the other eligible member does not have it"
    bench.confirm_replications()
    bench.wait(bench.config.heartbeat_us, (M01,))
    assert bench.indexes()


def test_the_reservation_is_durable_here_too() -> None:
    bench = Serving()
    bench.begin()
    bench.reads()
    bench.confirm_replications()
    bench.wait(bench.config.heartbeat_us, (M01,))
    assert not bench.indexes()
    bench.persist()
    assert bench.indexes()


def test_consumers_of_an_open_segment_see_nothing_at_or_above_the_commit() -> None:
    bench = opened_master()
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "c", ev.StartPosition.EARLIEST, False))
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.read_chain(first_chain())
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 1, 0, TOPIC), 5))
    bench.wait(200 * MS, (M01,))
    bench.append(0, starts=True)
    bench.persist()
    assert not bench.all(fx.ReadLog)
    bench.ack(M01, 1)
    assert [read.until_index for read in bench.all(fx.ReadLog)] == [1]


def test_without_credit_nothing_is_read() -> None:
    bench = Serving()
    bench.begin(credit=0)
    assert not bench.all(fx.ReadLog)
    bench.do(ev.ConsumerCredit(STREAM, 1000))
    assert bench.all(fx.ReadLog)[-1].max_bytes == 1000


def test_a_standby_takes_over_with_a_new_token_from_the_first_unacknowledged_message() -> None:
    bench = served()
    bench.join(2)
    bench.ack(1)
    first = bench.token_of()
    bench.clear()
    bench.do(ev.ConsumerLeave(STREAM, 1))
    (joined,) = [event for event in bench.delivered(fx.Joined) if event.active]
    assert joined.index == 2
    assert joined.token > first
    bench.deliver()
    assert bench.indexes() == [2, 3, 4]
    assert {event.delivery_attempt for event in bench.delivered(fx.Batches)} == {2}


def test_only_one_consumer_is_active() -> None:
    bench = served()
    bench.clear()
    bench.join(2)
    bench.join(3)
    assert [event.active for event in bench.delivered(fx.Joined)] == [False, False]
    bench.deliver()
    assert not bench.indexes()


def test_a_stale_token_changes_nothing() -> None:
    bench = served()
    stale = bench.token_of()
    bench.join(2)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.deliver()
    bench.ack(4, stale, subscription=2)
    bench.wait(SECOND, (M01,))
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 0
    assert all(write.cursor.acked == 0 for write in bench.writes(PutCursor))


def test_a_standbys_ack_changes_nothing() -> None:
    bench = served()
    bench.join(2)
    bench.ack(4, subscription=2)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 0


def test_what_was_not_delivered_cannot_be_acknowledged() -> None:
    bench = Serving()
    bench.begin()
    bench.ack(0)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 0


def test_an_ack_moves_forward_only() -> None:
    bench = served()
    bench.ack(3)
    bench.ack(1)
    assert bench.part.consumer_groups[GROUP].served.ledger.acked == 4


def test_an_ack_is_confirmed_when_every_eligible_member_has_it() -> None:
    bench = served()
    bench.ack(1)
    bench.wait(bench.config.ack_replication_us, (M01,))
    bench.persist()
    assert not bench.delivered(fx.AckConfirmed)
    bench.confirm_replications()
    assert [event.index for event in bench.delivered(fx.AckConfirmed)] == [2]


def test_what_retention_takes_for_read_is_on_every_eligible_member() -> None:
    """Rule `durable-floor`."""
    bench = served()
    assert bench.part.safe_cursors == {GROUP: SafeCursor(1, 1, 0, 0)}
    bench.ack(1)
    bench.wait(bench.config.ack_replication_us, (M01,))
    assert bench.part.safe_cursors[GROUP].acked == 0, "it is in memory"
    bench.persist()
    assert bench.part.safe_cursors[GROUP].acked == 0, "it is on the disk of this member"
    bench.confirm_replications()
    assert bench.part.safe_cursors == {GROUP: SafeCursor(1, 1, 2, 0)}
    bench.ack(3)
    bench.wait(bench.config.ack_replication_us, (M01,))
    assert bench.part.safe_cursors == {GROUP: SafeCursor(1, 1, 2, 0)}
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.persist_everywhere()
    assert bench.part.safe_cursors == {GROUP: SafeCursor(1, 1, 4, 0)}, "it stays known when no consumer is left"


def test_acks_of_a_moment_are_one_control_record() -> None:
    bench = served()
    bench.clear()
    for index in range(4):
        bench.ack(index, bench.part.consumer_groups[GROUP].dispatcher.token)
    assert not bench.writes(PutCursor)
    bench.wait(bench.config.ack_replication_us, (M01,))
    assert [write.cursor.acked for write in bench.writes(PutCursor)] == [4]


def test_a_control_record_that_was_lost_with_the_link_is_sent_again() -> None:
    bench = served()
    bench.ack(1)
    bench.wait(bench.config.ack_replication_us, (M01,))
    bench.persist()
    bench.unlink(M01)
    bench.clear()
    bench.link(M01)
    assert bench.sent(msg.ReplicateCursors, M01)[-1].cursors[0].acked == 2
    bench.persist_everywhere()
    assert bench.delivered(fx.AckConfirmed)


def test_a_member_that_left_eligible_is_not_waited_for() -> None:
    bench = served()
    bench.ack(1)
    bench.wait(bench.config.ack_replication_us, (M01,))
    bench.persist()
    assert not bench.delivered(fx.AckConfirmed)
    assert bench.part.chain is not None
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(remove_eligible(bench.part.chain, 1, [M01]), 999))
    assert bench.delivered(fx.AckConfirmed)


# ---- crossing -------------------------------------------------------------------------------------------


def test_end_of_segment_only_after_the_cursors_transaction() -> None:
    bench = served()
    write = cross(bench)
    assert (write.record.segment_no, write.record.group_epoch, write.revision) == (2, 1, 5)
    assert not bench.delivered(fx.EndOfSegment)
    bench.do(ev.CursorWritten(P, GROUP, write.serial, DONE, 6))
    (end,) = bench.delivered(fx.EndOfSegment)
    assert (end.sealed_len, end.next_segment_no, end.next_server) == (bench.length, 2, M10.broker)


@pytest.mark.parametrize("outcome", [CONFLICT, UNKNOWN])
def test_a_crossing_that_is_not_known_to_have_happened_is_not_told(outcome: ev.WriteOutcome) -> None:
    bench = served()
    write = cross(bench)
    bench.clear()
    bench.do(ev.CursorWritten(P, GROUP, write.serial, outcome, 6))
    assert bench.all(fx.ReadChain if outcome is CONFLICT else fx.ReadCursor)  # after the chain, the cursor is read
    assert not bench.delivered(fx.EndOfSegment)


def test_a_crossing_compares_the_chain_record() -> None:
    bench = served()
    write = cross(bench)
    assert write.chain_revision == bench.part.revision > 0


def test_a_crossing_reads_the_chain_first_if_its_revision_is_not_known() -> None:
    bench = served()
    bench.part.revision = 0
    bench.ack(bench.length - 1)
    bench.persist_everywhere()
    assert bench.all(fx.ReadChain)
    assert not bench.all(fx.WriteCursor)


def test_the_place_of_a_group_is_found_anew_when_the_coordinator_is_rebuilt() -> None:
    """A member that did not notice the loss may serve it where an older cursor had put it."""
    bench = served()
    bench.clear()
    bench.do(ev.CoordinatorRebuilt())
    assert bench.all(fx.ReadChain)
    assert bench.all(fx.ReadCursor)
    bench.cursor(no=2, revision=4)
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert (refused.segment_no, refused.server) == (2, M10.broker)


def test_external_group_refuses_consumers_and_says_what_to_do() -> None:
    bench = Serving()
    bench.join()
    record = ev.CursorRecord(1, 1, 0, TOPIC, external=True)
    bench.do(ev.CursorRead(P, GROUP, record, 5))
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert isinstance(refused.error, errors.PreconditionError)
    assert "another group name" in str(refused.error)
    assert not bench.all(fx.WriteCursor)


def test_the_cursor_does_not_cross_before_everything_is_acknowledged() -> None:
    bench = served()
    bench.ack(bench.length - 2)
    bench.wait(SECOND, (M01,))
    bench.persist_everywhere()
    assert not bench.all(fx.WriteCursor)


@pytest.mark.parametrize("missing", ["own disk", "other member"])
def test_the_cursor_does_not_cross_before_the_acknowledgement_is_durable_everywhere(missing: str) -> None:
    bench = served()
    bench.ack(bench.length - 1)
    if missing == "own disk":
        bench.confirm_replications()
    else:
        bench.persist()
    assert not bench.all(fx.WriteCursor)


def test_an_empty_read_is_not_the_end_of_a_segment() -> None:
    bench = Serving()
    bench.begin()
    for read in bench.all(fx.ReadLog):
        bench.do(ev.LogRead(read.serial, ()))
    bench.wait(SECOND, (M01,))
    assert not bench.delivered(fx.EndOfSegment)
    assert not bench.all(fx.WriteCursor)
    assert len(bench.all(fx.ReadLog)) > 1, "it looks again"


def test_an_open_segment_has_no_end() -> None:
    bench = opened_master()
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "c", ev.StartPosition.EARLIEST, False))
    bench.read_chain(first_chain())
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 1, 0, TOPIC), 5))
    bench.persist()
    bench.wait(SECOND, (M01,))
    assert not bench.all(fx.WriteCursor)


# ---- where a group begins -------------------------------------------------------------------------------


def test_a_new_group_begins_at_the_first_segment() -> None:
    bench = Serving()
    bench.join()
    bench.read_chain(bench.chain)
    bench.do(ev.CursorRead(P, GROUP, None, 0))
    write = bench.all(fx.WriteCursor)[-1]
    assert (write.record.segment_no, write.record.start_index, write.revision) == (1, 0, 0)


def test_a_consumer_is_sent_to_the_server_of_its_groups_head() -> None:
    bench = Serving()
    bench.join()
    bench.read_chain(bench.chain)
    bench.cursor(no=2)
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert (refused.segment_no, refused.server) == (2, M10.broker)


def test_a_server_goes_on_from_the_control_records_and_flags_what_was_reserved() -> None:
    known = control_record(1, GROUP, 1, acked=2, reserved=4)
    bench = Serving(cursors=(known,))
    bench.serve()
    assert bench.indexes() == [2, 3, 4]
    assert {event.maybe_repeated_below for event in bench.delivered(fx.Batches)} == {4}


def test_a_reservation_that_only_this_disk_is_known_to_have_is_made_common_first() -> None:
    """The server before may have died while its control record was on the way: it reached this member, not all."""
    bench = Serving(cursors=(control_record(1, GROUP, 1, acked=0, reserved=5),))
    bench.link(M01)
    bench.join()
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.cursor()
    bench.written()
    bench.wait(SECOND // 2, (M01,))
    bench.cursor()
    bench.reads()
    bench.persist()
    bench.wait(bench.config.heartbeat_us, (M01,))
    assert not bench.indexes(), "the other eligible member has not confirmed it to this server"
    bench.confirm_replications()
    assert bench.indexes() == [0, 1, 2, 3, 4]


def test_an_acknowledgement_that_only_this_disk_is_known_to_have_does_not_let_the_group_cross() -> None:
    bench = Serving(cursors=(control_record(1, GROUP, 1, acked=5, reserved=5),))
    bench.link(M01)
    bench.join()
    bench.cursor()
    bench.written()
    bench.wait(SECOND // 2, (M01,))
    bench.cursor()
    bench.persist()
    bench.wait(bench.config.heartbeat_us, (M01,))
    assert not bench.all(fx.WriteCursor)
    bench.confirm_replications()
    assert bench.all(fx.WriteCursor)


def test_control_records_of_another_group_epoch_do_not_count() -> None:
    known = control_record(1, GROUP, 1, acked=2, reserved=4)
    bench = Serving(cursors=(known,))
    bench.join()
    bench.link(M01)
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.read_chain(bench.chain)
    bench.cursor(epoch=2, start=1)
    bench.written()
    bench.wait(SECOND // 2, (M01,))
    bench.cursor(epoch=2, start=1)
    assert [event.index for event in bench.delivered(fx.Joined)] == [1]


def test_a_control_record_replaces_that_of_an_older_server_and_no_later_one() -> None:
    epoch = 7
    on_disk = control_record(1, GROUP, 1, acked=3, reserved=9, server_epoch=epoch + 1)
    bench = Serving(M01, cursors=(on_disk,))
    bench.link(M00)
    older, same, rewound = (control_record(1, GROUP, group_epoch, 1, 1) for group_epoch in (1, 1, 2))
    bench.hear(M00, msg.ReplicateCursors(P, 1, epoch, 1, (older,)))
    assert bench.part.cursors[GROUP] == on_disk, "a restarted member refuses a server that was replaced"
    bench.persist()
    assert not bench.sent(msg.CursorsReplicated), "or that server would tell its consumer that this member has it"
    bench.hear(M00, msg.ReplicateCursors(P, 1, epoch + 1, 2, (same,)))
    assert bench.part.cursors[GROUP] == replace(same, server_epoch=epoch + 1, serial=2), (
        "nothing of the older record stays"
    )
    bench.hear(M00, msg.ReplicateCursors(P, 1, epoch + 1, 3, (rewound,)))
    assert bench.part.cursors[GROUP].group_epoch == 2


def test_after_a_restart_the_record_on_the_disk_says_who_is_not_the_server_any_more() -> None:
    """Rule `refused-unanswered`: this member has no control record, and has not read the coordinator yet."""
    before = Serving(M01, server=M01, eligible=(M01,))
    kept = before.chain
    epoch = kept.segments[0].server_epoch
    found = recovered(1, before.batches, commit=before.length, sealed=True)
    bench = Bench(M01, 2, (RecoveredPartition(P, (found,), (), (), chain=kept),))
    bench.link(M00)
    bench.clear()
    bench.hear(M00, msg.ReplicateCursors(P, 1, epoch - 1, 7, (control_record(1, GROUP, 1, 1, 1),)))
    bench.persist()
    assert bench.part.chain is None
    assert not bench.sent(msg.CursorsReplicated)
    assert not bench.part.cursors
    assert [update.chain for update in bench.sent(msg.ChainUpdate, M00)] == [kept]


def test_a_control_record_of_a_segment_that_left_the_record_is_refused() -> None:
    bench = Serving(M01)
    bench.link(M00)
    chain = replace(bench.chain, epoch=bench.chain.epoch + 1, segments=bench.chain.segments[1:])
    bench.do(ev.ChainRead(P, chain, 9))
    bench.clear()
    bench.hear(M00, msg.ReplicateCursors(P, 1, 99, 7, (control_record(1, GROUP, 1, 1, 1),)))
    bench.persist()
    assert not bench.sent(msg.CursorsReplicated)
    assert not bench.part.cursors


def test_a_control_record_of_a_segment_that_the_group_has_left_is_not_written() -> None:
    """Rule `later-stays`: its rows would be missing beside it."""
    later = control_record(2, GROUP, 1, acked=3, reserved=9, server_epoch=7)
    bench = Serving(M01, cursors=(later,))
    bench.link(M00)
    epoch = bench.chain.segments[0].server_epoch
    left = control_record(1, GROUP, 1, acked=5, reserved=9, server_epoch=epoch)
    bench.clear()
    change = LedgerChange(((b"kx", b"row"),), is_full=True)
    bench.hear(M00, msg.ReplicateLedger(P, 1, epoch, 7, 0, left, change))
    assert bench.part.cursors[GROUP] == later
    assert not bench.writes(PutCursor)
    assert not bench.writes(PutLedger)
    bench.persist()
    assert bench.sent(msg.CursorsReplicated, M00), "a member whose group was further has what it needs"


def test_a_hand_over_stays_on_the_disk_when_the_older_record_beside_it_is_dropped() -> None:
    """Rule `hand-over-stays`: an administrator moved the group back from segment 2, and it comes there again."""
    before = control_record(2, GROUP, 1, acked=3, reserved=9, server_epoch=7)
    bench = Serving(M01, cursors=(before,))
    bench.link(M00)
    epoch = bench.chain.segments[0].server_epoch
    handoff = HandOverState(2, GROUP, 2, HandOverId(epoch, 5), ((b"kx", b"row"),))
    bench.hear(M00, msg.HandOver(P, handoff))
    bench.clear()
    moved = control_record(1, GROUP, 2, acked=5, reserved=9, server_epoch=epoch)
    bench.hear(M00, msg.ReplicateLedger(P, 1, epoch, 7, 0, moved, LedgerChange(((b"kx", b"row"),), is_full=True)))
    [written] = [effect.writes for effect in bench.all(fx.Persist)]
    assert written[-2:] == (DropCursor(P, 2, GROUP), PutHandOver(P, handoff))


def test_a_hand_over_stays_on_the_disk_when_all_rows_of_the_group_epoch_before_are_written_beside_it() -> None:
    """Rule `hand-over-stays`: worlds `keyed-halves`, seed 105, found a joining member that lost it so."""
    bench = Serving(M01)
    bench.link(M00)
    epoch = bench.chain.segments[0].server_epoch
    handoff = HandOverState(1, GROUP, 2, HandOverId(epoch, 5), ((b"kx", b"row"),))
    bench.hear(M00, msg.HandOver(P, handoff))
    bench.clear()
    before = control_record(1, GROUP, 1, acked=3, reserved=9, server_epoch=epoch)
    change = LedgerChange(((b"ky", b"row"),), is_full=True)
    bench.hear(M00, msg.ReplicateLedger(P, 1, epoch, 7, 0, before, change))
    [written] = [effect.writes for effect in bench.all(fx.Persist)]
    assert isinstance(written[-2], PutLedger)
    assert written[-1] == PutHandOver(P, handoff)
    bench.clear()
    now = control_record(1, GROUP, 2, acked=5, reserved=9, server_epoch=epoch)
    bench.hear(M00, msg.ReplicateLedger(P, 1, epoch, 8, 1, now, change))
    [written] = [effect.writes for effect in bench.all(fx.Persist)]
    assert isinstance(written[-1], PutLedger), "in the new group epoch the handoff is taken up, and goes"


def test_a_start_that_drops_a_record_that_was_left_keeps_the_hand_over_beside_it() -> None:
    now = control_record(1, GROUP, 2, acked=5, reserved=9, server_epoch=7)
    handoff = HandOverState(2, GROUP, 2, HandOverId(7, 5), ((b"kx", b"row"),))
    left = control_record(2, GROUP, 1, acked=3, reserved=9, server_epoch=7)
    found = RecoveredPartition(P, cursors=(left, now), handoffs=(handoff,))
    core = BrokerCore(BrokerConfig(), M01, 2, bytes(12), checksum_of, (found,))
    assert core.state.out.writes == [DropCursor(P, 2, GROUP), PutHandOver(P, handoff)]


def test_control_records_are_confirmed_when_they_are_durable() -> None:
    bench = Serving(M01)
    bench.link(M00)
    epoch = bench.chain.segments[0].server_epoch
    bench.hear(M00, msg.ReplicateCursors(P, 1, epoch, 7, (control_record(1, GROUP, 1, 1, 1),)))
    assert not bench.sent(msg.CursorsReplicated)
    bench.persist()
    assert [message.serial for message in bench.sent(msg.CursorsReplicated, M00)] == [7]


def test_a_server_that_lost_the_right_revokes() -> None:
    bench = served()
    assert bench.part.chain is not None
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(change_server(bench.part.chain, 1, M01, [M00]), 999))
    assert bench.delivered(fx.Revoked)
    bench.clear()
    bench.reads()
    bench.ack(4, bench.core.state.serial)
    bench.wait(SECOND, (M01,))
    assert not bench.indexes()
    assert not bench.writes(PutCursor)


# ---- after an unsettled segment ------------------------------------------------------------------------


def test_who_needs_the_table_of_a_server_that_is_gone_asks_for_another_server() -> None:
    """No other member misses the server of a segment that is empty, or that all consumer groups have read."""
    from seriatim_broker.core.values.chain import Seal, settle
    from seriatim_broker.core.values.log import RecoveredPartition

    from .support import M11, Bench, checksum_of, recovered, unsettled_chain

    batches = batches_of(2, [1, 1, 1])
    found = recovered(2, batches, commit=3, sealed=True, incomplete=True)
    bench = Bench(M00, 1, (RecoveredPartition(P, (found,)),))
    chain = settle(
        unsettled_chain(first_chain((M10, M01)), members=(M00, M11)), 1, Seal(4, 0, M10, (M10, M01), None, (), 0)
    )
    chain = sealed_chain(chain, 3, checksum_of(batches), members=(M10, M11), server=M00, eligible=(M00,))
    bench.link(M01)
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "c", ev.StartPosition.EARLIEST, False))
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.read_chain(chain)
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(2, 1, 0, TOPIC), 5))
    bench.written()
    bench.persist()
    bench.wait(SECOND, (M01,))
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(2, 1, 0, TOPIC), 5))
    bench.persist()
    for read in bench.all(fx.ReadLog):
        bench.do(ev.LogRead(read.serial, batches))
    bench.persist()
    bench.wait(SECOND, (M01,))
    assert {message.segment_no for message in bench.sent(msg.TakeOver, M01)} == {1}
    assert not bench.delivered(fx.Batches)


def test_where_a_group_stands_is_found_anew_when_the_coordinator_has_what_it_had_lost() -> None:
    bench = served()
    bench.do(ev.OwnRecordSeen("it lost decisions"))
    bench.clear()
    bench.do(ev.OwnRecordSeen(""))
    assert {read.consumer_group for read in bench.all(fx.ReadCursor)} == {GROUP}
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(2, 1, 0, TOPIC), 9))
    assert [event.segment_no for event in bench.delivered(fx.SubscriptionRefused)] == [2], (
        "it stands in the next segment"
    )


def test_a_head_that_had_no_consumers_reads_the_cursor_again() -> None:
    """It waited for a silent member. Meanwhile the group was deleted, and made again by another server."""
    bench = Serving()
    bench.serve()
    bench.ack(2)
    bench.do(ev.ConsumerGone(STREAM))
    bench.persist()
    assert GROUP in bench.part.consumer_groups, "M01 has not confirmed what was acknowledged"
    reads = len(bench.all(fx.ReadCursor))
    bench.join(2, stream=STREAM + 1)
    assert len(bench.all(fx.ReadCursor)) == reads + 1
    bench.cursor(epoch=2)
    joined = [effect.event for effect in bench.all(fx.Deliver) if isinstance(effect.event, fx.Joined)]
    assert [(event.group_epoch, event.index) for event in joined] == [(1, 0), (2, 0)]


def test_a_reservation_covers_more_if_it_is_durable_late() -> None:
    pace, now_us = ReservationPace(), 1
    for times in (1, 2, 4, 8, 16, 32, 64, RESERVED_TIMES_MAX, RESERVED_TIMES_MAX):
        pace.ask(now_us)
        assert pace.times == times
        pace.awaited()
        pace.is_durable(now_us + 50 * MS)
        now_us += 90 * MS  # it lasted for 40 ms, and took 50


def test_a_reservation_covers_less_again_if_it_lasts() -> None:
    pace, now_us = ReservationPace(), 1
    pace.times = RESERVED_TIMES_MAX
    for times in (RESERVED_TIMES_MAX, 64, 32, 16, 8, 4, 2, 1, 1):
        pace.ask(now_us)
        assert pace.times == times
        pace.awaited()
        pace.is_durable(now_us + 50 * MS)
        now_us += 300 * MS


@pytest.mark.parametrize(("took_us", "lasted_us"), [(RESERVED_LATE_US, 1), (50 * MS, 60 * MS)])
def test_a_reservation_that_is_enough_stays_as_it_is(took_us: int, lasted_us: int) -> None:
    pace = ReservationPace()
    pace.ask(1)
    pace.awaited()
    pace.is_durable(1 + took_us)
    pace.is_durable(1 + took_us + lasted_us)  # reported again; the first time counts
    pace.ask(1 + took_us + lasted_us)
    assert pace.times == 1


def test_a_reservation_for_which_no_reader_waited_stays_as_it_is() -> None:
    """Twice as many messages would be flagged after the end of the server, and nothing would be faster."""
    pace = ReservationPace()
    pace.ask(1)
    pace.is_durable(1 + 50 * MS)
    pace.ask(1 + 60 * MS)
    assert pace.times == 1


def test_a_reservation_that_is_not_durable_says_nothing_about_its_pace() -> None:
    pace = ReservationPace()
    pace.ask(1)
    pace.ask(1_000 * MS)
    assert pace.times == 1


@pytest.mark.parametrize(("round_trip_ms", "times"), [(0, 1), (4, 1), (50, 5), (200, RESERVED_FIRST_MAX)])
def test_the_first_reservation_lasts_for_the_way_to_the_other_members(round_trip_ms: int, times: int) -> None:
    bench = Serving()
    bench.begin()
    bench.core.state.links.by_broker[M01.broker].round_trip_us = round_trip_ms * MS
    bench.reads()
    assert bench.writes(PutCursor)[-1].cursor.reserved == bench.length + times * bench.config.reservation_messages


def test_reservation_that_covers_less_takes_nothing_back() -> None:
    """The first one covers three times as many messages, and the next one half of that: once as many."""
    bench = Serving(counts=(1,) * 12, config=BrokerConfig(reservation_messages=4))
    bench.begin()
    bench.core.state.links.by_broker[M01.broker].round_trip_us = 3 * RESERVED_LATE_US
    while len(bench.indexes()) < 12:
        for read in bench.all(fx.ReadLog):
            if read.serial not in bench.answered:
                bench.answered.add(read.serial)
                bench.do(ev.LogRead(read.serial, (bench.batches[read.from_index],)))
        bench.persist_everywhere()
        bench.wait(50 * MS, (M01,))
    assert bench.part.consumer_groups[GROUP].dispatcher.reservation.times == 1
    reserved = [write.cursor.reserved for write in bench.writes(PutCursor)]
    assert reserved == sorted(reserved), "the other member must know all that may have been delivered"


def test_a_later_reservation_follows_what_the_ones_before_took() -> None:
    pace = ReservationPace()
    pace.ask(1)
    pace.begin(200 * MS)
    assert pace.times == 1


def test_a_fast_reader_asks_for_a_reservation_before_it_needs_it() -> None:
    """Each read gives one message, and a reservation of two takes 50 ms."""
    config = BrokerConfig(reservation_messages=2)
    bench = Serving(counts=(1,) * 240, config=config)
    bench.begin()
    ledger, asked_early = bench.part.consumer_groups[GROUP].served.ledger, 0
    while len(bench.indexes()) < 240:
        before, reserved = len(bench.indexes()), ledger.reserved
        for read in bench.all(fx.ReadLog):
            if read.serial not in bench.answered:
                bench.answered.add(read.serial)
                bench.do(ev.LogRead(read.serial, (bench.batches[read.from_index],)))
        given = len(bench.indexes())
        assert given <= ledger.safe_reserved
        asked_early += given > before and ledger.reserved > reserved
        if given == before:  # it waits for the other member
            bench.wait(50 * MS, (M01,))
            bench.persist_everywhere()
    assert bench.indexes() == list(range(240))
    assert asked_early > 1
    assert bench.part.consumer_groups[GROUP].dispatcher.reservation.times == RESERVED_TIMES_MAX
