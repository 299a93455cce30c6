"""Folding: empty segments leave the record of a chain, so that switches without a message between them cost nothing.

The transaction that opens a segment takes empty sealed segments out of the record (`chain.foldable`), and the segment
behind them says how many numbers are missing before it. Those numbers are never used again: they count as sealed, with
no message. So whatever names one of them goes on at the next segment: a group's cursor (`groups.serving`), or a member
that still has a log of it, here.
"""

from __future__ import annotations

from . import appending, quarantine, quiescence
from .chain import Chain
from .log import DropPreparation, DropSegment
from .messages import FORM_FOLDED
from .outbox import Outbox
from .partition import Partition
from .segments import Changes
from .state import drop


def is_understood(outbox: Outbox) -> bool:
    """Whether every registered broker reads a record with missing numbers; version 0.2.0 takes them for damage.

    A broker that is linked here is asked too: what it registered may not have come yet.
    """
    linked = (link for link in outbox.links.values() if link.member is not None)
    return bool(outbox.forms_of_all & FORM_FOLDED) and all(link.forms & FORM_FOLDED for link in linked)


def on_learned(outbox: Outbox, partition: Partition, chain: Chain, changes: Changes, *, is_first: bool) -> None:
    """Drop what is here of folded segments.

    A log that is sealed was in the record known before. One that is not may be of a segment that came and went since.
    """
    numbers = partition.logs if is_first else dict.fromkeys((*changes.gone, *partition.unsealed))
    for no in [no for no in numbers if no in partition.logs and chain.is_folded(no)]:
        _drop(outbox, partition, no)
    for group in [group for group, cursor in partition.cursors.items() if chain.is_folded(cursor.segment_no)]:
        partition.cursors = drop(partition.cursors, group)
    # The tail copies of a quarantined log stay with it: `DropSegment` would remove both.
    for no in [no for no in partition.tail_copies if no not in partition.logs and chain.is_folded(no)]:
        partition.tail_copies = drop(partition.tail_copies, no)
        outbox.write(DropSegment(partition.id, no))
    for no in [no for no in partition.copies if chain.is_folded(no)]:
        partition.copies = drop(partition.copies, no)
    if partition.fenced_at_us is not None and not partition.has_unsealed:
        partition.fenced_at_us = None


def _drop(outbox: Outbox, partition: Partition, no: int) -> None:
    """The segment is sealed with nothing in it: whatever waits is answered so, then the log goes.

    A log with committed messages contradicts that. It is kept as it is, as if the record still said so.
    """
    log = partition.logs[no]
    if log.record.quarantined or log.record.lost:
        return
    is_undecided = log.record.sealed_len is None
    if is_undecided:
        quiescence.end(outbox, partition)
    if quarantine.contradicts(log, 0):
        quarantine.begin(outbox, partition, log, 0)
        return
    if is_undecided:
        log.seal(outbox, 0, log.checksum_at(0))
        appending.settle_waiting(outbox, log, partition.route())
    del partition.logs[no]
    outbox.write(DropSegment(partition.id, no))
    if log.opened_with is not None:
        outbox.write(DropPreparation(partition.id, no, log.opened_with.attempt))
