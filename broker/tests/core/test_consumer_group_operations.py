"""What administrators do to a group: rewind, skip, pause, resume; refused, repeated, raced, and without an answer."""

from __future__ import annotations

import pytest
from seriatim_api import errors
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import Chain, change_server, trim
from seriatim_broker.core.values.segment import Start
from seriatim_broker.core.values.targets import first_place, place_of

from .support import (
    CONFLICT,
    DONE,
    GROUP,
    M00,
    M01,
    MS,
    STREAM,
    TOPIC,
    UNKNOWN,
    P,
    Serving,
    control_record,
    first_chain,
    sealed_chain,
)

REFUSED = ev.WriteOutcome.REFUSED
ID = bytes(16)
REWIND, SKIP = ev.ConsumerGroupOperation.REWIND, ev.ConsumerGroupOperation.SKIP
PAUSE, RESUME = ev.ConsumerGroupOperation.PAUSE, ev.ConsumerGroupOperation.RESUME


class Operated(Serving):
    """A member that serves segment 1 of five messages, or may."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.record = ev.CursorRecord(1, 1, 0, TOPIC)
        self.cursor_revision = 5

    def operate(
        self,
        operation: ev.ConsumerGroupOperation,
        index: int = 0,
        no: int = 1,
        *,
        epoch: int = 0,
        operation_id: bytes = ID,
        request: int = 1,
        read: bool = True,
    ) -> None:
        """An administrator asks for it, and both records are read."""
        self.clear()
        deadline_us = self.now_us + 3000 * MS
        self.do(ev.OperateConsumerGroup(request, P, GROUP, operation, operation_id, epoch, no, index, 0, deadline_us))
        if read:
            self.read_both()

    def read_both(self, chain: Chain | None = None) -> None:
        """The coordinator answers what the operation reads."""
        self.read_chain(chain or self.chain_now)
        self.do(ev.CursorRead(P, GROUP, self.record, self.cursor_revision))

    @property
    def chain_now(self) -> Chain:
        """The record as this member knows it."""
        chain = self.core.partitions[P].chain
        assert chain is not None
        return chain

    def write(self) -> fx.WriteCursor:
        """The transaction that was sent last."""
        return self.all(fx.WriteCursor)[-1]

    def end(self, outcome: ev.WriteOutcome) -> None:
        """It ends."""
        write = self.write()
        revision = 0
        if outcome is DONE:
            self.cursor_revision += 1
            self.record, revision = write.record, self.cursor_revision
        self.do(ev.CursorWritten(P, GROUP, write.serial, outcome, revision))

    def reread(self) -> None:
        """The cursor is read once more."""
        self.do(ev.CursorRead(P, GROUP, self.record, self.cursor_revision))

    def told(self) -> fx.ConsumerGroupOperated:
        """What is reported to the administrator."""
        (answer,) = self.all(fx.ConsumerGroupOperated)
        return answer

    def refusal(self) -> errors.SeriatimError:
        """The error that is reported to the administrator."""
        error = self.told().error
        assert error is not None
        return error


def idle(**options: object) -> Operated:
    """No consumer reads any more, and the member has the serving right."""
    bench = Operated(**options)
    bench.begin(credit=0)
    bench.do(ev.ConsumerLeave(STREAM, 1))
    bench.confirm_replications()
    assert GROUP not in bench.core.partitions[P].consumer_groups
    return bench


def reading(**options: object) -> Operated:
    """A consumer has been given all five messages."""
    bench = Operated(**options)
    bench.serve()
    return bench


# ---- rewind and skip ------------------------------------------------------------------------------------


def test_a_rewind_that_an_older_coordinator_lacks_is_not_undone() -> None:
    """Rule `move-stays`: this disk has the group epoch that the rewind began."""
    bench = Operated(cursors=(control_record(1, GROUP, 2, 3, 3),))
    bench.serve()
    assert bench.delivered(fx.Batches) == []
    bench.do(ev.DescribeConsumerGroup(9, P, GROUP))
    bench.read_both()
    (described,) = bench.all(fx.ConsumerGroupDescribed)
    assert isinstance(described.error, errors.CoordinatorBehindError)
    bench.wait(2_000 * MS, (M01,))
    bench.cursor(epoch=2, revision=6)
    bench.deliver()
    assert bench.delivered(fx.Batches), "an administrator has rebuilt the coordinator"


def test_a_rewind_writes_the_place_in_a_new_epoch_under_both_revisions() -> None:
    bench = idle()
    bench.record = ev.CursorRecord(1, 3, 4, TOPIC)
    bench.operate(REWIND, 2)
    write = bench.write()
    assert write.record == ev.CursorRecord(1, 4, 2, TOPIC, begun_by=REWIND, requests=(ID,))
    assert (write.revision, write.chain_revision) == (5, bench.revision)
    assert not bench.all(fx.ConsumerGroupOperated), "not before it is written"
    bench.end(DONE)
    assert bench.told() == fx.ConsumerGroupOperated(1, write.record, False, None)


def test_a_group_without_consumers_leaves_nothing_behind_after_it() -> None:
    bench = idle()
    bench.operate(REWIND)
    bench.end(DONE)
    bench.reread()
    assert GROUP not in bench.core.partitions[P].consumer_groups


def test_a_running_consumer_is_given_nothing_until_it_is_written_and_then_begins_anew() -> None:
    bench = reading()
    bench.ack(3)
    old = bench.token_of()
    bench.operate(REWIND, 1)
    bench.deliver()
    assert not bench.indexes(), "the group is stopped first"
    bench.end(DONE)
    bench.reread()
    (joined,) = bench.delivered(fx.Joined)
    assert (joined.index, joined.group_epoch, joined.begun_by, joined.active) == (1, 2, REWIND, True)
    assert joined.token > old
    bench.deliver()
    assert bench.indexes() == [1, 2, 3, 4]


def test_what_was_acknowledged_before_a_rewind_counts_for_nothing() -> None:
    bench = reading()
    old = bench.token_of()
    bench.operate(REWIND, 0)
    bench.end(DONE)
    bench.reread()
    bench.ack(4, token=old)
    bench.deliver()
    assert bench.indexes() == [0, 1, 2, 3, 4]
    assert not bench.delivered(fx.AckConfirmed)


def test_a_control_record_of_the_epoch_before_does_not_come_back() -> None:
    late = control_record(1, GROUP, 1, 5, 5)
    bench = Operated(cursors=(late,))
    bench.record = ev.CursorRecord(1, 2, 1, TOPIC, begun_by=REWIND)
    bench.link(M01)
    bench.join()
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.read_both()
    bench.written()
    bench.persist()
    bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + 100 * MS, (M01,))
    bench.reread()
    bench.deliver()
    assert bench.indexes() == [1, 2, 3, 4]


def test_a_skip_passes_messages_over() -> None:
    bench = reading()
    bench.operate(SKIP, 4)
    assert bench.write().record.begun_by is SKIP
    bench.end(DONE)
    bench.reread()
    bench.deliver()
    assert bench.indexes() == [4]


def test_a_skip_to_the_end_of_a_sealed_segment_goes_to_the_next_one() -> None:
    bench = reading()
    bench.operate(SKIP, 5)
    assert (bench.write().record.segment_no, bench.write().record.start_index) == (2, 0)
    bench.end(DONE)
    bench.reread()
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert isinstance(refused.error, errors.GroupHeadElsewhereError), "another broker serves that one"


@pytest.mark.parametrize(
    ("operation", "no", "index"), [(SKIP, 1, 6), (SKIP, 2, 1), (SKIP, 3, 0), (REWIND, 0, 0), (SKIP, 1, 1 << 41)]
)
def test_a_place_that_is_not_there_is_refused(operation: ev.ConsumerGroupOperation, no: int, index: int) -> None:
    bench = idle()
    bench.operate(operation, index, no)
    assert isinstance(bench.refusal(), errors.OffsetOutOfRangeError)
    assert not bench.all(fx.WriteCursor)


def test_a_refused_operation_leaves_the_consumer_its_grant() -> None:
    bench = reading()
    bench.operate(SKIP, 6)
    bench.ack(
        4,
        token=None if bench.delivered(fx.Joined) else bench.core.partitions[P].consumer_groups[GROUP].dispatcher.token,
    )
    bench.wait(bench.config.ack_replication_us + MS, (M01,))
    bench.persist_everywhere()
    assert bench.delivered(fx.AckConfirmed)


def test_the_direction_is_that_of_where_the_group_is_by_now() -> None:
    bench = reading()
    bench.ack(3)
    bench.operate(SKIP, 2)
    assert bench.refusal().details["here"] == "1:4"
    bench.operate(REWIND, 5)
    assert isinstance(bench.refusal(), errors.OffsetOutOfRangeError)


def test_an_epoch_that_has_passed_is_refused() -> None:
    bench = idle()
    bench.record = ev.CursorRecord(1, 3, 4, TOPIC)
    bench.operate(REWIND, 0, epoch=2)
    assert isinstance(bench.refusal(), errors.StaleGroupEpochError)
    assert not bench.all(fx.WriteCursor)


# ---- once -----------------------------------------------------------------------------------------------


def test_a_repeated_request_is_not_carried_out_again() -> None:
    bench = reading()
    bench.operate(REWIND, 0, epoch=1)
    bench.end(DONE)
    bench.reread()
    bench.deliver()
    bench.operate(REWIND, 0, epoch=1, request=2)
    assert not bench.all(fx.WriteCursor)
    assert bench.told() == fx.ConsumerGroupOperated(2, bench.record, True, None)


def test_nothing_is_done_before_this_member_alone_may_deliver() -> None:
    bench = Operated()
    bench.link(M01)
    bench.operate(REWIND)
    assert not bench.all(fx.WriteCursor)
    bench.written()  # the right is taken again for this run
    bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + 100 * MS, (M01,))
    bench.read_both()
    assert bench.all(fx.WriteCursor)


def test_the_last_ids_are_remembered() -> None:
    bench = idle()
    for number in range(ev.REQUESTS_KEPT + 2):
        bench.operate(REWIND, 0, operation_id=bytes([number]) * 16)
        bench.end(DONE)
        bench.reread()
    assert bench.record.group_epoch == ev.REQUESTS_KEPT + 3
    assert [known[0] for known in bench.record.requests] == list(range(2, ev.REQUESTS_KEPT + 2))


def test_two_persons_at_once_are_served_one_after_the_other() -> None:
    bench = idle()
    bench.operate(REWIND, 0, epoch=1, operation_id=b"a" * 16)
    bench.do(ev.OperateConsumerGroup(2, P, GROUP, REWIND, b"b" * 16, 1, 1, 0, 0, bench.now_us + 3000 * MS))
    assert len(bench.all(fx.WriteCursor)) == 1
    bench.end(DONE)
    bench.read_both()
    first, second = bench.all(fx.ConsumerGroupOperated)
    assert first.error is None
    assert isinstance(second.error, errors.StaleGroupEpochError)


def test_so_many_operations_wait_and_no_more() -> None:
    bench = idle()
    for request in range(9):
        bench.do(ev.OperateConsumerGroup(request, P, GROUP, REWIND, ID, 0, 1, 0, 0, bench.now_us + 3000 * MS))
    assert isinstance(bench.refusal(), errors.OverloadedError)


# ---- races, and a coordinator that does not answer --------------------------------------------------------


def test_a_conflict_is_looked_into_again() -> None:
    bench = reading()
    bench.operate(REWIND, 0)
    bench.end(CONFLICT)
    bench.cursor_revision += 1
    bench.read_both()
    assert bench.write().revision == 6
    bench.end(DONE)
    assert bench.told().error is None


def test_a_server_that_was_deposed_meanwhile_changes_nothing() -> None:
    bench = idle()
    bench.operate(REWIND, 0)
    bench.end(CONFLICT)
    bench.clear()
    bench.read_both(change_server(bench.chain_now, 1, M01, (M00,)))
    assert isinstance(bench.refusal(), errors.GroupHeadElsewhereError)
    assert not bench.all(fx.WriteCursor)


def test_without_an_answer_the_group_is_given_nothing_until_it_is_known() -> None:
    bench = reading()
    bench.operate(REWIND, 0)
    first = bench.write()
    bench.end(UNKNOWN)
    bench.read_both()
    bench.deliver()
    assert not bench.indexes()
    assert bench.write().serial != first.serial, "it is tried again, under the same revision"
    assert (bench.write().record, bench.write().revision) == (first.record, first.revision)
    bench.end(DONE)
    bench.reread()
    bench.deliver()
    assert bench.indexes() == [0, 1, 2, 3, 4]
    assert bench.told().error is None


def test_without_an_answer_it_may_have_been_carried_out() -> None:
    bench = reading()
    bench.operate(REWIND, 0)
    write = bench.write()
    bench.end(UNKNOWN)
    bench.record, bench.cursor_revision = write.record, 6
    bench.read_both()
    assert len(bench.all(fx.WriteCursor)) == 1
    assert bench.told() == fx.ConsumerGroupOperated(1, write.record, False, None)
    bench.deliver()
    assert bench.indexes() == [0, 1, 2, 3, 4]


def test_who_waits_for_too_long_is_told_so() -> None:
    bench = reading()
    bench.operate(REWIND, 0)
    bench.end(UNKNOWN)
    bench.wait(4000 * MS, (M01,))
    assert isinstance(bench.refusal(), errors.DeadlineExceededError)
    bench.read_both()
    bench.end(DONE)
    assert len(bench.all(fx.ConsumerGroupOperated)) == 1
    bench.reread()
    bench.deliver()
    assert bench.indexes() == [0, 1, 2, 3, 4], "it continues in the new epoch"


def test_a_coordinator_that_refuses_ends_it() -> None:
    bench = reading()
    bench.operate(REWIND, 0)
    bench.end(REFUSED)
    assert isinstance(bench.refusal(), errors.CoordinatorRefusedError)
    bench.reread()
    bench.deliver()
    assert bench.token_of(), "the group continues where it was"
    bench.do(ev.WritesRefused(True))
    bench.operate(REWIND, 0)
    assert isinstance(bench.refusal(), errors.CoordinatorRefusedError), "nothing is even tried"
    assert not bench.all(fx.WriteCursor)


def test_a_record_older_than_the_callers_decides_no_operation() -> None:
    bench = idle()
    known = bench.chain_now
    newer = sealed_chain(known, 5, 0)
    event = ev.OperateConsumerGroup(1, P, GROUP, SKIP, ID, 0, 2, 3, 9, bench.now_us + 3000 * MS, epoch=newer.epoch)
    bench.clear()
    bench.do(event)
    bench.read_chain(None, failed=True)
    bench.reread()
    assert not bench.all(fx.ConsumerGroupOperated)
    assert not bench.all(fx.WriteCursor)
    bench.wait(100 * MS)
    bench.read_both(newer)
    assert (bench.write().record.segment_no, bench.write().record.start_index) == (2, 3)


def test_a_group_that_is_not_there_is_not_made() -> None:
    for record in (None, ev.CursorRecord(1, 4, 0, TOPIC, deleted=True)):
        bench = idle()
        bench.operate(REWIND, 0, read=False)
        bench.read_chain(bench.chain_now)
        bench.do(ev.CursorRead(P, GROUP, record, 0))
        assert isinstance(bench.refusal(), errors.NotServingError), "the broker that asks says what is not there"
        assert not bench.all(fx.WriteCursor)
        assert not bench.core.partitions[P].consumer_groups


def test_a_partition_that_was_deleted_is_refused() -> None:
    bench = idle()
    bench.operate(REWIND, 0, read=False)
    bench.do(ev.DropPartitionData(P))
    assert isinstance(bench.refusal(), errors.UnknownTopicError)


# ---- pause and resume -----------------------------------------------------------------------------------


def test_a_pause_keeps_the_grant_and_the_epoch_and_gives_nothing_more() -> None:
    bench = Operated()
    bench.begin(credit=0)
    token = bench.token_of()
    bench.operate(PAUSE)
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.deliver()
    assert not bench.indexes(), "nothing is given out while it is written"
    bench.end(DONE)
    assert bench.record == ev.CursorRecord(1, 1, 0, TOPIC, paused=True, requests=(ID,))
    assert bench.delivered(fx.Paused) == [fx.Paused(True)]
    bench.deliver()
    assert not bench.indexes()
    bench.operate(RESUME, operation_id=b"r" * 16)
    bench.end(DONE)
    assert bench.delivered(fx.Paused) == [fx.Paused(False)]
    assert not bench.delivered(fx.Joined), "under the same token"
    bench.deliver()
    assert bench.indexes() == [0, 1, 2, 3, 4]
    bench.ack(4, token=token)
    bench.persist_everywhere()
    assert bench.delivered(fx.AckConfirmed)


def test_what_was_given_before_a_pause_can_be_acknowledged_and_the_group_crosses() -> None:
    bench = reading()
    token = bench.token_of()
    bench.operate(PAUSE)
    bench.end(DONE)
    bench.clear()
    bench.ack(4, token=token)
    bench.persist_everywhere()
    assert bench.delivered(fx.AckConfirmed)
    assert bench.write().record == ev.CursorRecord(2, 1, 0, TOPIC, paused=True, requests=(ID,)), "and stays paused"


def test_a_new_server_goes_by_the_pause() -> None:
    bench = Operated()
    bench.record = ev.CursorRecord(1, 1, 0, TOPIC, paused=True)
    bench.link(M01)
    bench.join()
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.read_both()
    bench.written()
    bench.persist()
    bench.wait(bench.config.serve_lease_us + bench.config.serve_margin_us + 100 * MS, (M01,))
    bench.reread()
    bench.deliver()
    (joined,) = bench.delivered(fx.Joined)
    assert joined.paused
    assert not bench.indexes()


@pytest.mark.parametrize("operation", [PAUSE, RESUME])
def test_what_is_so_already_is_not_written(operation: ev.ConsumerGroupOperation) -> None:
    bench = idle()
    bench.record = ev.CursorRecord(1, 1, 0, TOPIC, paused=operation is PAUSE)
    bench.operate(operation)
    assert bench.told() == fx.ConsumerGroupOperated(1, bench.record, True, None)
    assert not bench.all(fx.WriteCursor)


def test_a_pause_without_an_answer_holds_the_group_until_it_is_known() -> None:
    bench = Operated()
    bench.begin()
    bench.operate(PAUSE)
    bench.end(UNKNOWN)
    bench.deliver()
    assert not bench.indexes()
    bench.read_both()
    bench.end(DONE)
    assert bench.delivered(fx.Paused) == [fx.Paused(True)]


def test_a_rewind_of_a_paused_group_stays_paused() -> None:
    bench = idle()
    bench.record = ev.CursorRecord(1, 1, 4, TOPIC, paused=True)
    bench.operate(REWIND, 0)
    assert bench.write().record.paused


# ---- places ---------------------------------------------------------------------------------------------


def test_a_place_behind_a_sealed_segment_is_the_beginning_of_the_next() -> None:
    chain = Serving().chain
    assert first_place(chain) == (1, 0)
    assert place_of(chain, 1, 4, 0) == (1, 4)
    assert place_of(chain, 1, 5, 0) == (2, 0)
    assert place_of(chain, 2, 7, 7) == (2, 7)
    with pytest.raises(errors.OffsetOutOfRangeError, match="the end of the partition is 2:7"):
        place_of(chain, 2, 8, 7)
    assert place_of(first_chain(), 1, 0, 0) == (1, 0)


def test_no_place_lies_in_what_retention_dropped() -> None:
    chain = trim(Serving().chain, 1, Start(2, 7, 100), 1)
    assert first_place(chain) == (1, 2)
    assert place_of(chain, 1, 2, 0) == (1, 2)
    with pytest.raises(errors.OffsetOutOfRangeError, match="retention dropped 1:1: the partition begins at 1:2"):
        place_of(chain, 1, 1, 0)
    stub = trim(chain, 2, Start(3, 9, 200), 1)
    assert first_place(stub) == (2, 3)
    for index in (0, 4):
        with pytest.raises(errors.OffsetOutOfRangeError, match="the partition begins at 2:3"):
            place_of(stub, 1, index, 7)
    gone = trim(chain, 2, None, 2)
    assert first_place(gone) == (2, 0)
    with pytest.raises(errors.OffsetOutOfRangeError, match="retention dropped 1:4"):
        place_of(gone, 1, 4, 7)
    assert place_of(gone, 2, 0, 7) == (2, 0)


def test_a_deposed_server_hears_of_it_from_the_chain_while_it_writes() -> None:
    bench = reading()
    bench.operate(REWIND, 0)
    bench.read_chain(change_server(bench.chain_now, 1, M01, (M00,)))
    bench.end(CONFLICT)
    bench.read_both()
    assert isinstance(bench.refusal(), errors.GroupHeadElsewhereError)
    assert bench.delivered(fx.SubscriptionRefused)


def test_a_place_below_what_retention_has_kept_is_refused() -> None:
    chain = Serving().chain
    trimmed = trim(chain, 1, Start(3, 0, 0), 1)
    assert first_place(trimmed) == (1, 3)
    assert place_of(trimmed, 1, 3, 0) == (1, 3)
    with pytest.raises(errors.OffsetOutOfRangeError, match="the partition begins at 1:3") as refused:
        place_of(trimmed, 1, 2, 0)
    assert refused.value.details["first"] == "1:3"
