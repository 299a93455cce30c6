"""Surveys: what this member knows of a partition, and how far it may read a segment."""

from __future__ import annotations

from ...state.broker import BrokerState
from ...state.partition import Partition
from ...values.effects import PartitionSurveyed
from ...values.events import SurveyPartition
from ...values.kinds import TimerKind
from ...values.segment import Segment, SegmentState


def survey(broker: BrokerState, partition: Partition, event: SurveyPartition) -> None:
    """Report the chain as it is known here. If the caller asks for a newer chain epoch, read it first."""
    known = partition.chain.epoch if partition.chain is not None else 0
    if partition.chain is not None and known >= event.epoch:
        answer(broker, partition, event)
        return
    partition.surveys = (*partition.surveys, event)
    broker.wake(event.deadline_us, TimerKind.RANGES, partition.id)
    partition.read_chain(broker)


def answer(broker: BrokerState, partition: Partition, event: SurveyPartition) -> None:
    """Report the chain and the index below which this member may read a segment.

    Rule `range-end-by-any` (RANGE): only the master of the open segment says where the partition ends. Without it:
      1. The slave knows the commit 100. The master has acknowledged all below 120.
      2. A job asks the slave where the partition ends, and reads to 100.
      3. The job says that it has read everything that was sent before it began, and 20 messages are missing.
    """
    chain = partition.chain
    assert chain is not None
    no = event.segment_no or chain.open_segment.no
    segment, log = chain.segment(no), partition.logs.get(no)
    is_master = log is not None and log.unbroken and log.active
    readable = readable_below(partition, segment) if segment is not None else None
    broker.out.emit(PartitionSurveyed(event.request, chain, readable, is_master, None))


def readable_below(partition: Partition, segment: Segment) -> int | None:
    """The index below which this member may read a segment; None if it has no in-sync copy.

    Rule `range-above-commit` (I6): a range read ends below the commit. Without it:
      1. The master has a at index 40, and its commit is 40. A range read gives a.
      2. A switch seals the segment at 40, and the master truncates a. The reader has a message that does not exist.

    Rule `range-parts` (RANGE, I3): ranges are read from in-sync copies. Without it:
      1. A member has copied 100 of the 800 messages of a sealed segment.
      2. A reader believes that the segment ends at 100, and continues in the next one. 700 messages are missing.
    """
    log = partition.logs.get(segment.no)
    if log is None or log.record.quarantined or log.record.lost:
        return None
    if segment.state is SegmentState.OPEN or log.record.sealed_len is None:
        return log.readable_below
    return log.record.sealed_len if log.is_in_sync else None
