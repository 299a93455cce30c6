"""The chain record changed or was read again: stop serving where another member serves now, and continue elsewhere."""

from __future__ import annotations

from seriatim_api import errors

from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase, Seat, Served
from ...state.partition import Partition
from ...values.chain import Chain
from ...values.effects import Revoked, SubscriptionRefused
from ...values.segment import Segment
from ...values.states import NOTHING
from ..cursors import control_records, delivery_attempts, gap_reports
from ..cursors.consumer_group import forget, tell, unanswered
from ..keyed import waiting_keys
from . import operations, progress, questions, without_consumers


def on_learned(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain) -> None:
    """The chain record changed: stop serving where another member serves now, and continue with everything else."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.phase is ConsumerGroupPhase.LOADING:
            if consumer_group.questions and consumer_group.segment_no:
                questions.answer(Seat(broker, partition, consumer_group))
            continue
        segment = chain.segment(consumer_group.segment_no)
        served = consumer_group.served
        is_mine = segment is not None and segment.server == broker.member
        if segment is None or not is_mine or served is None or segment.server_epoch != served.server_epoch:
            _revoke(Seat(broker, partition, consumer_group), segment)
            continue
        gap_reports.tell_new_gaps(served, known)
        _expect_only_eligible(served)
        if served.is_serving and set(segment.eligible) - set(served.ledger.eligible):
            control_records.replicate(served)  # a new eligible member must have the newest control record
        if consumer_group.name in partition.consumer_groups:
            progress.retry(broker, partition, consumer_group.segment_no)
    without_consumers.take_up_forwards(broker, partition, chain)


def _expect_only_eligible(served: Served) -> None:
    """Control records wait no longer for members that are neither eligible nor joining."""
    segment = served.segment
    for serial in list(served.ledger.replications):
        replication = served.ledger.replications.get(serial)
        if replication is None:
            continue
        joining = served.partition.rights[segment.no].joining if segment.no in served.partition.rights else ()
        for member in list(replication.waiting):
            if member != served.broker.member and member not in segment.eligible and member not in joining:
                del replication.waiting[member]
        progress.finish_replication(served, serial)


def _revoke(seat: Seat, segment: Segment | None) -> None:
    """Stop serving in this server epoch. If this member is still the server, it finds the place of the cursor again."""
    consumer_group = seat.group
    mine = segment is not None and segment.server == seat.broker.member
    if not mine:
        error = errors.NotServingError(f"another broker serves segment {consumer_group.segment_no} now")
        for consumer in consumer_group.consumers:
            tell(seat.broker, consumer, Revoked(error))
        consumer_group.consumers = []
        delivery_attempts.forget(seat.partition, consumer_group.name)
    if consumer_group.phase is ConsumerGroupPhase.CROSSING:
        consumer_group.cursor_write = None
    consumer_group.look_again()
    if consumer_group.consumers or consumer_group.is_asked or (mine and consumer_group.is_forwarding):
        seat.read_cursor()
    else:
        forget(seat.partition, consumer_group)


def on_chain_read(broker: BrokerState, partition: Partition, failed: bool) -> None:
    """A read of the chain ended: continue with each consumer group that waited for it."""
    for consumer_group in list(partition.consumer_groups.values()):
        revision, left = consumer_group.chain_reads
        if left and not failed:
            consumer_group.chain_reads = (revision, left - 1)
            if left > 1:
                partition.read_chain(broker)
        if consumer_group.phase is ConsumerGroupPhase.SERVING:
            progress.retry(broker, partition, consumer_group.segment_no)
        is_written = consumer_group.cursor_write is not None
        if failed or is_written or consumer_group.name not in partition.consumer_groups:
            continue
        if consumer_group.operations or consumer_group.phase is ConsumerGroupPhase.LOADING:
            Seat(broker, partition, consumer_group).read_cursor()


def on_writes_taken(broker: BrokerState, partition: Partition) -> None:
    """The coordinator takes writes again: try again to cross, or to place consumer groups."""
    for consumer_group in list(partition.consumer_groups.values()):
        if consumer_group.phase is ConsumerGroupPhase.SERVING:
            progress.retry(broker, partition, consumer_group.segment_no)
        elif consumer_group.phase is ConsumerGroupPhase.LOADING and consumer_group.cursor_write is None:
            Seat(broker, partition, consumer_group).read_cursor()


def on_caught_up(broker: BrokerState, partition: Partition) -> None:
    """The coordinator has its lost decisions again: find the place of each consumer group again.

    Rule `place-found-anew` (I13): a cursor from the older copy may name a segment that the consumer group has left.
    Without it:
      1. In the older copy the cursor is in segment 2. This member serves segment 2.
      2. The consumers have had all of segment 2: they drop what comes, and acknowledge nothing.
      3. The rebuild writes that the cursor is in segment 8. This member serves segment 2 for ever.
    This happens after each rebuild, also if this member has not noticed a loss.
    """
    partition.left_revision = 0  # the revisions may count from a lower one on
    for consumer_group in list(partition.consumer_groups.values()):
        if _is_under_way(consumer_group):
            continue  # its place is found when the outcome is known
        consumer_group.cursor_revision = 0
        if consumer_group.phase is not ConsumerGroupPhase.LOADING:
            segment = partition.chain.segment(consumer_group.segment_no) if partition.chain is not None else None
            _revoke(Seat(broker, partition, consumer_group), segment)


def _is_under_way(consumer_group: ConsumerGroup) -> bool:
    """Whether a write of the cursor by this member may still be carried out.

    Rule `under-way-stays` (K2, I11): such a write is not forgotten. Without it:
      1. The cursor is in segment 1. This member starts to write that it moves to segment 2.
      2. The coordinator is rebuilt. This member reads the cursor, before its write is carried out: segment 1.
      3. It begins in segment 1 again. It grants k:5 there, and confirms the acknowledgement. The cursor moves.
      4. The server of segment 2 has k:5 in the list that was handed over, and grants it again.
    """
    return consumer_group.cursor_write is not None or unanswered(consumer_group) is not None


def on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """The partition does not exist, or no longer: refuse everything that waits for its consumer groups."""
    error = errors.UnknownTopicError(f"there is no {partition.name}")
    for consumer_group in list(partition.consumer_groups.values()):
        for consumer in consumer_group.consumers:
            tell(broker, consumer, SubscriptionRefused(error, 0, ""))
        questions.fail(Seat(broker, partition, consumer_group), error)
        operations.fail(Seat(broker, partition, consumer_group), error)
        waiting_keys.fail(Seat(broker, partition, consumer_group), error)
    partition.consumer_groups = partition.given = NOTHING
