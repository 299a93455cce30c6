"""Appending: what a master does with a producer's batch, and when the replies leave.

The rules are those of the producer's order: a run that was refused once stays refused, sequences have no gap, a repeat
is answered with its first offset once that is committed. Only a batch that starts a run may set a sequence, and only
while the table is incomplete.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.batch import FLAG_PUBLISH, FLAG_STAGED, BatchHeader
from seriatim_api.ids import make_offset, split_offset
from seriatim_api.publications import PRODUCER_MARK, STAGE_TOPIC, StagedBatch

from ..peers import candidates, disks
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog, Waiting
from ..values.effects import AppendAccepted, AppendRefused, RouteInfo
from ..values.events import AckLevel, Append
from ..values.kinds import TimerKind
from ..values.log import Batch
from ..values.messages import FORM_ADOPTS, Replicate, ReplicateStaged
from ..values.producers import WINDOW_BATCHES, Entry
from ..values.states import add, put

"""The timer that moves a head away from a full disk; see `leaving.leave_full_disk`."""


def on_append(broker: BrokerState, partition: Partition, event: Append) -> None:
    """A producer's batch: into the log, and on its way to the followers in the same step."""
    log = partition.open_log()
    if log is None or not log.active or not log.unbroken:
        error: errors.SeriatimError
        if log is not None and log.record.fenced:
            error = errors.SegmentMovedError(f"segment {log.no} is fenced; the next one opens elsewhere")
        else:
            error = errors.NotServingError("this broker is not the master of the open segment")
        broker.out.emit(AppendRefused(event.request, error, partition.route()))
        return
    if partition.quiescence is not None:
        partition.quiescence.hold(broker, event)
        return
    event = _checked_for_room(broker, partition, log, event)
    batch = append(broker, partition, log, event)
    if batch is not None:
        _send_on(broker, partition, log, batch)


def append_staged(
    broker: BrokerState,
    partition: Partition,
    log: SegmentLog,
    header: BatchHeader,
    staged: Batch,
    place: StagedBatch | None,
) -> Batch:
    """Append a batch whose body is that of a staged one, which was checked already, and send it to the followers.

    `place`: of the staged batch, if this disk has it and it is worth adopting; its followers are likely to have it too,
    and are spared the body.
    """
    batch = log.append(broker, header, staged.body, staged.header if place is not None else None)
    _send_on(broker, partition, log, batch, place)
    return batch


def _send_on(
    broker: BrokerState, partition: Partition, log: SegmentLog, batch: Batch, place: StagedBatch | None = None
) -> None:
    for follower in log.followers:
        if follower.in_step:
            where = partition.id, log.no, log.record.attempt, log.flushed
            link = broker.links.by_broker.get(follower.member.broker)
            looks = link is not None and link.forms & FORM_ADOPTS and broker.now.mono_us >= follower.looks_from_us
            if place is None or not looks:
                broker.send(follower.member, Replicate(*where, (batch,)))
            else:
                broker.send(follower.member, ReplicateStaged(*where, batch.header, place))
            log.told_flushed = log.flushed


def _checked_for_room(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> Append:
    """If a member's disk is full: have the head moved, and refuse the batch unless that can be done soon."""
    full = disks.full_member(broker, log.record.members)
    if full is None or event.refuse is not None:
        return event
    if (TimerKind.ROOM, partition.id, 0) not in broker.timers.polls:
        broker.poll(0, TimerKind.ROOM, partition.id)
    assert partition.chain is not None
    full_for_us = disks.full_for_us(broker, full)
    is_new = full_for_us is not None and full_for_us < broker.config.disk_full_grace_us
    if is_new and candidates.open_target(broker, partition.chain):
        return event
    error = errors.DiskFullError(
        f"the disk of {full.broker} has reached its reserve, and the partition cannot move to a group with room. The "
        "batch is not stored. Remedy: add disks or broker groups, or delete topics that are not needed",
        retry_after_ms=1000,
    )
    return replace(event, refuse=error)


def append(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> Batch | None:
    """Take a batch into an active segment; returns it with its place if it is new here."""
    error = _run_refusal(log, event)
    last = log.live_table.last(event.header.producer)
    is_repeat = _is_repeat(last, event)
    if error is None:
        error = event.refuse or _stage_refusal(partition, event) or _sequence_refusal(broker, log, event, last)
        if error is None and not is_repeat:
            error = _capacity_refusal(broker, log, event)
        if not isinstance(error, errors.TooManyProducersError):  # of one that is not taken up nothing is kept
            log.runs = put(log.runs, event.header.producer, (event.run, error is not None))
    if error is not None:
        broker.out.emit(AppendRefused(event.request, error, partition.route() if event.refuse else None))
        return None
    if is_repeat:
        _answer_repeat(broker, partition, log, event)
        return None
    batch = log.append(broker, event.header, event.body)
    offset = make_offset(log.no, batch.header.base_index)
    is_final = _is_final(partition, log, log.no)
    waiting = Waiting(log.tail, event.level, event.request, offset, batch.header.append_time_ms, is_final)
    if event.level <= AckLevel.MASTER_RECEIVED:
        _accept(broker, waiting)
    else:
        log.waiting = add(log.waiting, waiting)
    return batch


def release(broker: BrokerState, log: SegmentLog) -> None:
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
            _accept(broker, waiting)
        else:
            still.append(waiting)
    log.waiting = still or ()


def settle_waiting(broker: BrokerState, log: SegmentLog, route: RouteInfo | None) -> None:
    """The segment is sealed: what lies below its length is stored, the rest of the attempts is gone for ever."""
    sealed_len = log.record.sealed_len
    assert sealed_len is not None
    for waiting in log.waiting:
        if waiting.end <= sealed_len:
            effect: AppendAccepted | AppendRefused = AppendAccepted(
                waiting.request, waiting.offset, waiting.append_time_ms, waiting.is_final
            )
        else:
            error = errors.SegmentTruncatedError(f"segment {log.no} was sealed below this attempt")
            effect = AppendRefused(waiting.request, error, route)
        broker.out.when_durable(effect)  # not before the cut is on the disk
    log.waiting = ()


def abandon_waiting(broker: BrokerState, log: SegmentLog, route: RouteInfo | None) -> None:
    """The segment was opened over, or its length is in doubt: what became of these attempts is not known yet."""
    error = errors.OutcomeUnknownError(f"the length of segment {log.no} is not known for certain yet")
    refuse_waiting(broker, log, error, route)


def refuse_waiting(broker: BrokerState, log: SegmentLog, error: errors.SeriatimError, route: RouteInfo | None) -> None:
    """Give every attempt that waits this answer."""
    for waiting in log.waiting:
        broker.out.emit(AppendRefused(waiting.request, error, route))
    log.waiting = ()


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


def _stage_refusal(partition: Partition, event: Append) -> errors.SeriatimError | None:
    """Whether the batch says something that only a master says, or was sent to the wrong kind of topic.

    Rule `only-masters-publish` (P1). Without it a client appends rows that look like a publication's, and readers that
    check whole publications find one that nobody decided.

    Rule `own-ids`: so is a batch that names a writer's producer id. Without it: (1) a client sends one row under a
    writer's id, which each reader sees, in the last epoch that there is; (2) the writer publishes; (3) its masters find
    a later publication in their tables, append nothing, and answer that all is carried out.
    """
    if event.header.producer.endswith(PRODUCER_MARK):
        return errors.BadRequestError(
            f"a producer id that ends with {PRODUCER_MARK!r} is a writer's: take a random one"
        )
    flags = event.header.flags & (FLAG_STAGED | FLAG_PUBLISH)
    is_stage = partition.chain is not None and partition.chain.topic == STAGE_TOPIC
    if is_stage and not flags & FLAG_STAGED:
        return errors.BadRequestError(f"{STAGE_TOPIC} takes nothing but what is staged for a publication")
    if flags and not is_stage:
        return errors.BadRequestError("a batch of a client is neither staged nor published here: use a writer")
    return None


def _sequence_refusal(
    broker: BrokerState, log: SegmentLog, event: Append, last: Entry | None
) -> errors.SeriatimError | None:
    """Whether the batch is neither the producer's next one nor a repeat; `last` is the producer's newest."""
    header = event.header
    if last is None or header.producer_epoch > last.epoch:
        may_set = event.starts_run and log.record.incomplete_table
        if header.base_sequence == 0 or may_set:
            return None if last is not None else _room_refusal(broker, log)
        return errors.SequenceGapError(
            f"sequence {header.base_sequence} of an epoch that must begin at 0: the producer is not known, or no more",
            expected=0,
            producer=header.producer.hex(),
        )
    if header.producer_epoch < last.epoch:
        return errors.ProducerFencedError(f"epoch {header.producer_epoch} is over: {last.epoch} is the current one")
    expected = last.last_sequence + 1
    if header.base_sequence > expected:
        return errors.SequenceGapError(
            f"sequence {header.base_sequence} does not follow {last.last_sequence}", expected=expected
        )
    if header.base_sequence < expected:
        if log.live_table.find(header) is None:
            if header.base_sequence < log.live_table.entries(header.producer)[0].base_sequence:
                return errors.SequenceTooOldError(
                    f"sequence {header.base_sequence} was stored long ago", producer=header.producer.hex()
                )
            return errors.BatchMismatchError(f"sequence {header.base_sequence} was sent in another batch before")
        return None
    if log.live_table.has_from(make_offset(log.no, log.commit), header.producer, WINDOW_BATCHES):
        return errors.OverloadedError(f"{WINDOW_BATCHES} batches of this producer wait already", retry_after_ms=5)
    return None


def _room_refusal(broker: BrokerState, log: SegmentLog) -> errors.SeriatimError | None:
    """Whether the table has no room for a producer that it does not know."""
    config = broker.config
    if log.makes_room(broker):
        return None
    return errors.TooManyProducersError(
        f"{config.producer_count_max} producers sent to this partition within the last {config.producer_evict_ms} ms; "
        "nothing of this batch was stored: send with fewer producers, or to more partitions",
        retry_after_ms=config.tidy_ms,
    )


def _is_repeat(last: Entry | None, event: Append) -> bool:
    """Whether a batch that is not refused is here already; `last` is its producer's newest."""
    sent = (event.header.producer_epoch, event.header.base_sequence)
    return last is not None and sent <= (last.epoch, last.last_sequence)


def _capacity_refusal(broker: BrokerState, log: SegmentLog, event: Append) -> errors.SeriatimError | None:
    """Whether the members' disks are so far behind that, with a new batch, a switch would have to copy too much."""
    limit = broker.config.unflushed_bytes_max
    if log.uncertain_bytes + len(event.header.raw) + len(event.body) <= limit:
        return None
    return errors.OverloadedError(f"{limit} bytes of this partition wait for the members' disks", retry_after_ms=20)


def _is_final(partition: Partition, log: SegmentLog, segment_no: int) -> bool:
    """Whether readers find a batch at its place in that segment.

    (1) Segment 1 holds a batch, and is opened over. (2) Segment 2 does not know the batch, and takes it again. (3) When
    segment 1 is settled with the batch in it, readers find the batch there, and skip it in segment 2. So the place is
    final only in a segment that was opened with the tables of all segments before it.
    """
    if segment_no == log.no:
        return not log.record.incomplete_table
    segment = partition.chain.segment(segment_no) if partition.chain is not None else None
    return segment is not None and not segment.incomplete_table


def _answer_repeat(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> None:
    """A batch that is here already: its first offset, once that is as safe as the level asks."""
    entry = log.live_table.find(event.header)
    assert entry is not None
    segment_no, index = split_offset(entry.offset)
    end = index + entry.message_count if segment_no == log.no else 0
    waiting = Waiting(end, event.level, event.request, entry.offset, 0, _is_final(partition, log, segment_no))
    if event.level <= AckLevel.MASTER_RECEIVED:
        _accept(broker, waiting)
    else:
        log.waiting = add(log.waiting, waiting)
        release(broker, log)


def _accept(broker: BrokerState, waiting: Waiting) -> None:
    broker.out.emit(AppendAccepted(waiting.request, waiting.offset, waiting.append_time_ms, waiting.is_final))
