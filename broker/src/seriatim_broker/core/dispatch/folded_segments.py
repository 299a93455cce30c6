"""Folding: empty segments leave the chain record, so that switches without a message between them cost nothing.

The transaction that opens a segment takes empty sealed segments out of the record (`chain.foldable`). The segment
after them says how many numbers are missing before it. Those numbers are never used again, and count as sealed with no
message. A cursor in such a segment moves to the next one (`consumers.groups.serving`). This module drops the logs of
such segments on this member.
"""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.chain import Chain
from ..values.delayed import is_ledger_name
from ..values.events import base_after
from ..values.log import CursorState, DropCursor, DropPreparation, DropSegment, PutCursor
from ..values.segments import Changes
from ..values.states import drop, put
from ..writing import appending, quiescence
from . import quarantine


def on_learned(broker: BrokerState, partition: Partition, chain: Chain, changes: Changes, *, is_first: bool) -> None:
    """Drop the logs, cursors, tail copies and copies of folded segments here.

    A sealed log was in the record that was known before. A log that is not sealed may be of a segment that was opened
    and folded since.
    """
    numbers = partition.logs if is_first else dict.fromkeys((*changes.gone, *partition.unsealed))
    for no in [no for no in numbers if no in partition.logs and chain.is_folded(no)]:
        _drop(broker, partition, no)
    for cursor in [cursor for cursor in partition.cursors.values() if chain.is_folded(cursor.segment_no)]:
        if is_ledger_name(cursor.consumer_group):  # a folded segment has no message
            partition.forget_cursor(cursor.consumer_group)
            broker.out.write(DropCursor(partition.id, cursor.segment_no, cursor.consumer_group))
            continue
        _move_on(broker, partition, chain, cursor)
    # The tail copies of a quarantined log stay with it: `DropSegment` would remove both.
    for no in [no for no in partition.tail_copies if no not in partition.logs and chain.is_folded(no)]:
        partition.tail_copies = drop(partition.tail_copies, no)
        broker.out.write(DropSegment(partition.id, no))
    for no in [no for no in partition.copies if chain.is_folded(no)]:
        partition.copies = drop(partition.copies, no)
    if partition.fenced_at_us is not None and not partition.has_unsealed:
        partition.fenced_at_us = None


def _move_on(broker: BrokerState, partition: Partition, chain: Chain, cursor: CursorState) -> None:
    """Move the control record of a consumer group to the beginning of the next segment, on this disk too.

    Rule `place-outlives-fold` (I9). Without it:
      1. A consumer group has acknowledged all of segment 1, and crossed to segment 4, which is empty. Here the control
         record of segment 4 has replaced the one of segment 1.
      2. Segment 4 is folded, and no disk knows of the consumer group any more.
      3. The coordinator loses the cursor, and no broker can report it to the rebuild.
      4. The consumer group starts over, and is given segment 1 again without a flag.
    """
    following = chain.from_no(cursor.segment_no)
    assert following is not None
    base = cursor.term_base
    if base or (cursor.settings.mode.is_keyed):
        base = base_after(base, chain.epoch, following.server_epoch)  # as the cursor itself (`stays-in-folded`)
    moved = CursorState(
        following.no, cursor.consumer_group, cursor.group_epoch, 0, 0, settings=cursor.settings, term_base=base
    )
    partition.cursors = put(partition.cursors, cursor.consumer_group, moved)
    broker.out.write(DropCursor(partition.id, cursor.segment_no, cursor.consumer_group))
    broker.out.write(PutCursor(partition.id, moved))


def _drop(broker: BrokerState, partition: Partition, no: int) -> None:
    """The segment is folded, so it was sealed at 0: answer the batches that wait, and drop the log.

    A log with committed messages contradicts that. It is kept as it is, in quarantine.
    """
    log = partition.logs[no]
    if log.record.quarantined or log.record.lost:
        return
    is_undecided = log.record.sealed_len is None
    if is_undecided:
        quiescence.end(broker, partition)
    if quarantine.contradicts(log, 0):
        quarantine.begin(broker, partition, log, 0)
        return
    if is_undecided:
        log.seal(broker, 0, log.checksum_at(0))
        appending.settle_waiting(broker, log, partition.route())
    del partition.logs[no]
    broker.out.write(DropSegment(partition.id, no))
    if log.opened_with is not None:
        broker.out.write(DropPreparation(partition.id, no, log.opened_with.switch_attempt))
