"""Appending: what a master does with a producer's batch, and when the replies leave.

The rules are those of the producer's order: a run that was refused once stays refused, sequences have no gap, a repeat
is answered with its first offset once that is committed. Only a batch that starts a run may set a sequence, and only
while the table is incomplete.
"""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.ids import make_offset, split_offset

from .effects import AppendAccepted, AppendRefused, RouteInfo
from .events import AckLevel, Append
from .log import Batch
from .messages import Replicate
from .outbox import Outbox
from .partition import Partition
from .producers import WINDOW_BATCHES
from .replica import SegmentLog, Waiting
from .state import put


def on_append(outbox: Outbox, partition: Partition, event: Append) -> None:
    """A producer's batch: into the log, and on its way to the followers in the same step."""
    log = partition.open_log()
    if log is None or not log.active or not log.unbroken:
        error: errors.SeriatimError
        if log is not None and log.record.fenced:
            error = errors.SegmentMovedError(f"segment {log.no} is fenced; the next one opens elsewhere")
        else:
            error = errors.NotServingError("this broker is not the master of the open segment")
        outbox.emit(AppendRefused(event.request, error, partition.route()))
        return
    if partition.quiescence is not None:
        partition.quiescence.hold(outbox, event)
        return
    batch = append(outbox, log, event, partition.route() if event.refuse else None)
    if batch is None:
        return
    for follower in log.followers:
        if follower.in_step:
            outbox.send(follower.member, Replicate(partition.id, log.no, log.record.attempt, log.commit, (batch,)))
            log.told_commit = log.commit


def append(outbox: Outbox, log: SegmentLog, event: Append, route: RouteInfo | None) -> Batch | None:
    """Take a batch into an active segment; returns it with its place if it is new here."""
    error = _run_refusal(log, event)
    if error is None:
        error = event.refuse or _sequence_refusal(log, event)
        log.runs = put(log.runs, event.header.producer, (event.run, error is not None))
    if error is not None:
        outbox.emit(AppendRefused(event.request, error, route))
        return None
    last = log.table.last(event.header.producer)
    if last is not None and (event.header.producer_epoch, event.header.base_sequence) <= (
        last.epoch,
        last.last_sequence,
    ):
        _answer_repeat(outbox, log, event)
        return None
    batch = log.append(outbox, event.header, event.body)
    offset = make_offset(log.no, batch.header.base_index)
    waiting = Waiting(log.tail, event.level, event.request, offset, batch.header.append_time_ms)
    if event.level <= AckLevel.MASTER_RECEIVED:
        _accept(outbox, waiting)
    else:
        log.waiting.append(waiting)
    return batch


def release(outbox: Outbox, log: SegmentLog) -> None:
    """Answer what is safe enough by now."""
    if not log.waiting:
        return
    durable = min((follower.durable for follower in log.followers), default=log.durable)
    safe = {
        AckLevel.MASTER_FLUSHED: log.durable,
        AckLevel.REPLICATED: log.commit,  # with the promise: whoever answers a fence must have it
        AckLevel.REPLICATED_FLUSHED: min(log.commit, log.durable, durable),
    }
    if log.record.fenced:  # a fence freezes every promise
        return
    still: list[Waiting] = []
    for waiting in log.waiting:
        if waiting.end <= safe[AckLevel(waiting.level)]:
            _accept(outbox, waiting)
        else:
            still.append(waiting)
    log.waiting = still


def settle_waiting(outbox: Outbox, log: SegmentLog, route: RouteInfo | None) -> None:
    """The segment is sealed: what lies below its length is stored, the rest of the attempts is gone for ever."""
    sealed_len = log.record.sealed_len
    assert sealed_len is not None
    for waiting in log.waiting:
        if waiting.end <= sealed_len:
            effect: AppendAccepted | AppendRefused = AppendAccepted(
                waiting.request, waiting.offset, waiting.append_time_ms
            )
        else:
            error = errors.SegmentTruncatedError(f"segment {log.no} was sealed below this attempt")
            effect = AppendRefused(waiting.request, error, route)
        outbox.when_durable(effect)  # not before the cut is on the disk
    log.waiting = []


def abandon_waiting(outbox: Outbox, log: SegmentLog, route: RouteInfo | None) -> None:
    """The segment was opened over: nobody can say yet what became of these attempts."""
    for waiting in log.waiting:
        error = errors.OutcomeUnknownError(f"segment {log.no} was opened over; its length is not known yet")
        outbox.emit(AppendRefused(waiting.request, error, route))
    log.waiting = []


def _run_refusal(log: SegmentLog, event: Append) -> errors.SeriatimError | None:
    """Whether the batch belongs to a run that may not go on."""
    known = log.runs.get(event.header.producer)
    if known is None:
        if event.starts_run:
            return None
        return errors.RunRefusedError(f"run {event.run} did not begin here")
    run, refused = known
    if event.run < run:
        return errors.RunRefusedError(f"run {event.run} is over: {run} is the current one")
    if event.run == run:
        return errors.RunRefusedError(f"run {event.run} was refused before") if refused else None
    return None if event.starts_run else errors.RunRefusedError(f"the first batch of run {event.run} is missing")


def _sequence_refusal(log: SegmentLog, event: Append) -> errors.SeriatimError | None:
    """Whether the batch is neither the producer's next one nor a repeat."""
    header = event.header
    last = log.table.last(header.producer)
    if last is None or header.producer_epoch > last.epoch:
        may_set = event.starts_run and log.record.incomplete_table
        if header.base_sequence == 0 or may_set:
            return None
        return errors.SequenceGapError(f"sequence {header.base_sequence} of an epoch that must begin at 0", expected=0)
    if header.producer_epoch < last.epoch:
        return errors.ProducerFencedError(f"epoch {header.producer_epoch} is over: {last.epoch} is the current one")
    expected = last.last_sequence + 1
    if header.base_sequence > expected:
        return errors.SequenceGapError(
            f"sequence {header.base_sequence} does not follow {last.last_sequence}", expected=expected
        )
    if header.base_sequence < expected:
        if log.table.find(header) is None:
            if header.base_sequence < log.table.windows[header.producer][0].base_sequence:
                return errors.SequenceTooOldError(f"sequence {header.base_sequence} was stored long ago")
            return errors.BatchMismatchError(f"sequence {header.base_sequence} was sent in another batch before")
        return None
    if _unacknowledged_batches(log, header.producer) >= WINDOW_BATCHES:
        return errors.OverloadedError(f"{WINDOW_BATCHES} batches of this producer wait already", retry_after_ms=5)
    return None


def _unacknowledged_batches(log: SegmentLog, producer: bytes) -> int:
    commit = make_offset(log.no, log.commit)
    return sum(1 for entry in log.table.windows[producer] if entry.offset >= commit)


def _answer_repeat(outbox: Outbox, log: SegmentLog, event: Append) -> None:
    """A batch that is here already: its first offset, once that is as safe as the level asks."""
    entry = log.table.find(event.header)
    assert entry is not None
    segment_no, index = split_offset(entry.offset)
    end = index + entry.message_count if segment_no == log.no else 0
    waiting = Waiting(end, event.level, event.request, entry.offset, 0)
    if event.level <= AckLevel.MASTER_RECEIVED:
        _accept(outbox, waiting)
    else:
        log.waiting.append(waiting)
        release(outbox, log)


def _accept(outbox: Outbox, waiting: Waiting) -> None:
    outbox.emit(AppendAccepted(waiting.request, waiting.offset, waiting.append_time_ms))
