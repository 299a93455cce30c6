"""Appending: what a master does with a producer's batch, and when the replies leave.

The rules keep the order of each producer. After a refusal the rest of the producer run is refused. Sequences have no
gap. A repeat is answered with the offset of its first arrival, once that is committed. Only a batch that starts a
producer run may set a sequence, and only while the producer table is incomplete.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api import errors
from seriatim_api.batch import (
    FLAG_CONTROL,
    FLAG_DELAYED,
    FLAG_FIRED,
    FLAG_NAMES,
    FLAG_PUBLISH,
    FLAG_STAGED,
    FLAGS_UNSERVED,
    BatchHeader,
)
from seriatim_api.dead_letters import is_brokers_own
from seriatim_api.delayed import EARLY_MS_MAX, FIRE_MARK
from seriatim_api.exclusive import is_exclusive
from seriatim_api.ids import make_offset, split_offset
from seriatim_api.publications import PRODUCER_MARK, STAGE_TOPIC, StagedBatch

from ..peers import candidates, disks, versions
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog, Waiting
from ..values import delays
from ..values.delayed import NONE_WAIT
from ..values.effects import AppendAccepted, AppendRefused, RouteInfo
from ..values.events import AckLevel, Append
from ..values.kinds import TimerKind
from ..values.log import Batch
from ..values.messages import FORM_DELAYED, Replicate, ReplicateStaged
from ..values.producers import FORGOTTEN_MARK, MARK_BYTES, WINDOW_BATCHES, Entry
from ..values.states import add, put
from . import admission, exclusive_producers


def on_append(broker: BrokerState, partition: Partition, event: Append) -> None:
    """A producer sent a batch: append it, and send it to the slaves in the same step.

    Rule `overtaken-takes-nothing` (GAP): a master that was notified of a newer record with a later open segment takes
    no batch, also before it has read the record. Without it:
      1. Master A is cut off from the coordinator. Segment 2, which is open on A, is sealed, and B takes a batch b.
      2. A is sent changes of the record that it cannot apply. It still has segment 2 as the open one.
      3. The next segment opens on A. Its producer continues after b, and A refuses that for ever: sequence 121 does not
         follow 95.
    """
    log = partition.open_log()
    if log is None or not log.active or not log.unbroken or partition.is_told_of_later(log.no):
        error: errors.SeriatimError
        if log is not None and log.record.fenced:
            if partition.quiescence is not None and partition.quiescence.is_expected(broker):
                partition.quiescence.hold(broker, event)
                return
            error = errors.SegmentMovedError(
                f"segment {log.no} is fenced: the next segment opens elsewhere; this batch is not stored here"
            )
        else:
            error = errors.NotServingError(
                "this broker is not the master of the open segment: this batch is not stored here"
            )
        broker.out.emit(AppendRefused(event.request, error, partition.route()))
        return
    if partition.quiescence is not None:
        partition.quiescence.hold(broker, event)
        return
    event = _checked_for_room(broker, partition, log, event)
    batch = append(broker, partition, log, event)
    if batch is not None:
        _send_on(broker, partition, log, batch, may_wait=may_wait(log, event.level))


def append_staged(
    broker: BrokerState,
    partition: Partition,
    log: SegmentLog,
    header: BatchHeader,
    staged: Batch,
    place: StagedBatch | None,
) -> Batch:
    """Append a batch with the body of a staged one, and send it to the slaves. The caller has checked the staged batch.

    Args:
        broker: This broker.
        partition: The partition.
        log: The log of its open segment.
        header: The published header.
        staged: The staged batch that has the body.
        place: The place of the staged batch, if this disk has it and adopts its body. The slaves probably have it too,
            so the master does not send them the body.
    """
    is_known = log.live_table.last(header.producer) is not None
    spared = 0 if is_known else admission.spared(broker, log, header.producer)
    batch = log.append(broker, header, staged.body, staged.header if place is not None else None, spared=spared)
    admission.note_append(broker, log)
    _send_on(broker, partition, log, batch, place)
    return batch


def _send_on(
    broker: BrokerState,
    partition: Partition,
    log: SegmentLog,
    batch: Batch,
    place: StagedBatch | None = None,
    *,
    may_wait: bool = False,
) -> None:
    for follower in log.followers:
        if follower.in_step:
            where = partition.id, log.no, log.record.switch_attempt, log.flushed
            if place is None or broker.now.mono_us < follower.looks_from_us:
                broker.send(follower.member, Replicate(*where, (batch,), may_wait))
            else:
                broker.send(follower.member, ReplicateStaged(*where, batch.header, place))
            log.untold_since_us = None


def _checked_for_room(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> Append:
    """If a member's disk is full, start to move the open segment away; returns the batch as it is to be taken.

    A batch is still taken for `disk_full_grace_us` (5 s) if the segment can move. After that, or if no other broker
    group has room, it comes back with the refusal in `refuse`.
    """
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
        f"the disk of {full.broker} has reached its reserve, and no other broker group has room for the partition. "
        "The batch is not stored. Remedy: add disks or broker groups, or delete topics that are not needed",
        retry_after_ms=1000,
    )
    return replace(event, refuse=error)


def append(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> Batch | None:
    """Append a batch that passes all checks, or answer it; returns the appended batch, or None."""
    is_stored = exclusive_producers.is_announced if is_exclusive(event.header.producer) else _is_forwarded
    if event.is_forward and is_stored(log, event):
        known_run, _ = log.runs.get(event.header.producer, (0, False))
        if event.producer_run > known_run:  # the next batch of the run may be a new one
            log.runs = put(log.runs, event.header.producer, (event.producer_run, False))
        _answer_forwarded(broker, partition, log, event)
        return None
    error = _run_refusal(log, event)
    last = log.live_table.last(event.header.producer)
    is_repeat = _is_repeat(last, event)
    if error is None:
        error = (
            event.refuse
            or _stage_refusal(partition, event)
            or exclusive_producers.refusal(broker, partition, log, event.header, last)
            or _sequence_refusal(broker, partition, log, event, last)
        )
        if error is None and not is_repeat:
            error = event.refuse_new or _delay_refusal(broker, log, event) or _capacity_refusal(broker, log, event)
        if not isinstance(error, errors.TooManyProducersError):  # a producer without room leaves no trace
            log.runs = put(log.runs, event.header.producer, (event.producer_run, error is not None))
    if error is not None:
        broker.out.emit(AppendRefused(event.request, error, partition.route() if event.refuse else None))
        return None
    if is_repeat:
        _answer_repeat(broker, partition, log, event)
        return None
    spared = admission.spared(broker, log, event.header.producer) if last is None else 0
    batch = log.append(broker, event.header, event.body, may_wait=may_wait(log, event.level), spared=spared)
    admission.note_append(broker, log)
    exclusive_producers.note_append(log, event.header.producer)
    offset = make_offset(log.no, batch.header.base_index)
    is_final = _is_final(partition, log, log.no)
    header = batch.header
    waiting = Waiting(log.tail, event.level, event.request, offset, header.append_time_ms, is_final, header.due_time_ms)
    if event.level <= AckLevel.MASTER_RECEIVED:
        _accept(broker, waiting)
    else:
        log.waiting = add(log.waiting, waiting)
    return batch


def may_wait(log: SegmentLog, level: int) -> bool:
    """Whether no disk is waited for: the commit does not wait for one, and neither does this producer."""
    return not log.record.flush and level not in (AckLevel.MASTER_FLUSHED, AckLevel.REPLICATED_FLUSHED)


def release(broker: BrokerState, log: SegmentLog) -> None:
    """Answer each batch that is as safe by now as its ack level asks.

    Rule `one-level` (I12): each batch waits for its own ack level. Without it:
      1. Batch a waits at `master_flushed` and batch b, after it, at `replicated_flushed`.
      2. Only the master has flushed both. It answers both, because the level of a, the first that waits, decides.
      3. The master's disk is lost, and the acknowledged b with it.

    Rule `fence-freezes-commit` (I6): a fenced member acknowledges nothing more. Without it:
      1. Am answers a fence with commit 0. The slave's acknowledgement of a was on its way, and arrives.
      2. Am sets its commit to 1, and acknowledges a.
      3. The switcher seals the segment at 0, and a is lost.
    """
    if not log.waiting:
        return
    durable = min((follower.durable for follower in log.followers), default=log.durable)
    safe = {
        AckLevel.MASTER_FLUSHED: log.durable,
        AckLevel.REPLICATED: log.commit,  # each member that may answer a fence has it
        AckLevel.REPLICATED_FLUSHED: min(log.commit, log.durable, durable),
    }
    if log.record.fenced:
        return
    still: list[Waiting] = []
    for waiting in log.waiting:
        if waiting.end <= safe[AckLevel(waiting.level)]:
            _accept(broker, waiting)
        else:
            still.append(waiting)
    log.waiting = still or ()


def settle_waiting(broker: BrokerState, log: SegmentLog, route: RouteInfo | None) -> None:
    """The segment is sealed: batches below its length are stored, and send attempts above it have failed.

    Rule `failed-early` (I10): a send attempt is answered as failed only once the chain record says so. Without it:
      1. Switcher W1 fences Am, which has a, at commit 0. Am answers the send attempt of a as failed.
      2. Switcher W2 takes the slave's tail, 1, and its transaction comes first.
      3. The segment is sealed at 1, and consumers are given a although its producer was told that it failed.
    """
    sealed_len = log.record.sealed_len
    assert sealed_len is not None
    for waiting in log.waiting:
        if waiting.end <= sealed_len:
            effect: AppendAccepted | AppendRefused = AppendAccepted(
                waiting.request, waiting.offset, waiting.append_time_ms, waiting.is_final, waiting.due_time_ms
            )
        else:
            error = errors.SegmentTruncatedError(f"segment {log.no} was sealed below this attempt")
            effect = AppendRefused(waiting.request, error, route)
        broker.out.when_durable(effect)  # when the cut is on the disk
    log.waiting = ()


def abandon_waiting(broker: BrokerState, log: SegmentLog, route: RouteInfo | None) -> None:
    """The segment was opened over, or its length is in doubt: the outcome of these send attempts is not known."""
    error = errors.OutcomeUnknownError(
        f"the length of segment {log.no} is not known yet: this batch may be stored or not"
    )
    refuse_waiting(broker, log, error, route)


def refuse_waiting(broker: BrokerState, log: SegmentLog, error: errors.SeriatimError, route: RouteInfo | None) -> None:
    """Refuse every send attempt that waits, with this error."""
    for waiting in log.waiting:
        broker.out.emit(AppendRefused(waiting.request, error, route))
    log.waiting = ()


def _run_refusal(log: SegmentLog, event: Append) -> errors.SeriatimError | None:
    """The refusal of a batch whose producer run may not continue; None if it may.

    Rule `run-refused` (I2): after a refusal the rest of the producer run is refused. Without it:
      1. P sends a, then b. This broker does not know yet that its segment is open when a arrives, and refuses a.
      2. It knows it when b arrives. Its producer table is incomplete, so it takes b as the first that it hears of P.
      3. P resends a. Its sequence is below the one of b, so the broker refuses a for ever.
    """
    known = log.runs.get(event.header.producer)
    if known is None:
        if event.starts_run:
            return None
        return errors.RunRefusedError(f"producer run {event.producer_run} did not begin on this broker")
    run, refused = known
    if event.producer_run < run:
        return errors.RunRefusedError(f"producer run {event.producer_run} is over: {run} is the current one")
    if event.producer_run == run:
        return errors.RunRefusedError(f"producer run {event.producer_run} was refused before") if refused else None
    return (
        None if event.starts_run else errors.RunRefusedError(f"producer run {event.producer_run} lacks its first batch")
    )


def _stage_refusal(partition: Partition, event: Append) -> errors.SeriatimError | None:
    """The refusal of a batch that says what only a master may say, or that is in the wrong kind of topic; else None.

    Rule `only-masters-publish` (P1): a client's batch that looks like a published one is refused. Without it:
      1. A client appends rows that look like rows of a publication.
      2. A reader that checks whole publications finds one that was never decided.

    Rule `own-ids` (P4): a client's batch with a writer's producer id is refused. Without it:
      1. Each reader sees the producer id of a writer. A client sends one row under it, in the highest epoch that there
         is.
      2. The writer publishes. Its masters find a later publication in their producer tables.
      3. They append nothing, and answer that all rows are committed.
    """
    if event.header.producer.endswith((PRODUCER_MARK, FORGOTTEN_MARK)):
        return errors.BadRequestError(
            f"a producer id that ends with {PRODUCER_MARK!r} or {FORGOTTEN_MARK!r} belongs to brokers: use a random "
            "one; nothing was stored"
        )
    if not event.is_forward:
        # Rule `own-forwards` (J4): only brokers send as forwarders. Without it: a client's batch under a forwarder's
        # producer id would make the master answer that dead letters are stored that it has never seen.
        if is_brokers_own(event.header.producer):
            return errors.BadRequestError(
                f"a producer id that ends with {event.header.producer[-MARK_BYTES:]!r} belongs to a forwarder: use a "
                "random one; nothing was stored"
            )
        if event.header.for_group:
            return errors.BadRequestError("a client's batch is for all consumer groups; nothing was stored")
        topic = partition.chain.topic if partition.chain is not None else ""
        if (unserved := _unserved(event.header) or delays.refusal(event.header, topic)) is not None:
            return unserved
    flags = event.header.flags & (FLAG_STAGED | FLAG_PUBLISH)
    is_stage = partition.chain is not None and partition.chain.topic == STAGE_TOPIC
    if is_stage and not flags & FLAG_STAGED:
        return errors.BadRequestError(
            f"{STAGE_TOPIC} takes only batches that are staged for a publication; nothing was stored"
        )
    if flags and not is_stage:
        return errors.BadRequestError(
            "a client's batch in this topic may not be marked as staged or published: use a writer; nothing was stored"
        )
    return None


def _unserved(header: BatchHeader) -> errors.SeriatimError | None:
    """The refusal of a client's batch whose header asks for what brokers do not do, or says what only they may say.

    None if it does neither.
    """
    if not (header.flags & FLAGS_UNSERVED or header.source_sequence or header.has_fields_of_brokers):
        return None
    names = ", ".join(name for flag, name in FLAG_NAMES.items() if header.flags & flag & FLAGS_UNSERVED)
    if names:
        why = f"this broker takes no batch with the flag {names} from a client: send it without"
    elif header.source_sequence:
        why = "the batch has a source sequence, but not the flag SOURCE_SEQUENCE"
    else:
        why = "the header has bytes that only brokers fill in, or that are reserved: send zeros there"
    return errors.BadRequestError(f"{why}; nothing was stored")


def _sequence_refusal(
    broker: BrokerState, partition: Partition, log: SegmentLog, event: Append, last: Entry | None
) -> errors.SeriatimError | None:
    """The refusal of a batch that is neither the producer's next one nor a repeat; `last` is the producer's newest."""
    header = event.header
    if last is None or header.producer_epoch > last.epoch:
        may_set = event.starts_run and log.record.incomplete_table
        first = exclusive_producers.first_sequence(header)
        if header.base_sequence == first or may_set:
            return None if last is not None else admission.refusal(broker, partition, log, header.producer)
        return errors.SequenceGapError(
            f"sequence {header.base_sequence} is not {first}, and this partition does not know the producer in this "
            "epoch, or has forgotten it; nothing was stored",
            expected=first,
            producer=header.producer.hex(),
        )
    # Rule `fence-is-new` (D1): a control batch fences only in an epoch that the producer never had. Without it:
    #   1. Server B, of which the coordinator has forgotten, has stored volleys in epoch 4.
    #   2. Server A sends a fence in epoch 4, and is answered that it is stored. Its first volley has sequence 1.
    #   3. The master has sequence 1 of epoch 4, so it answers that this volley is stored. Its messages are never fired.
    if header.producer_epoch < last.epoch or (_is_fence(header) and header.producer_epoch == last.epoch):
        return errors.ProducerFencedError(
            f"producer epoch {header.producer_epoch} is over: {last.epoch} is the current one", epoch=last.epoch
        )
    expected = last.last_sequence + 1
    if header.base_sequence > expected:
        return errors.SequenceGapError(
            f"sequence {header.base_sequence} does not follow {last.last_sequence}",
            expected=expected,
            producer=header.producer.hex(),
        )
    if header.base_sequence < expected:
        if log.live_table.find(header) is None:
            if header.base_sequence < log.live_table.entries(header.producer)[0].base_sequence:
                return errors.SequenceTooOldError(
                    f"sequence {header.base_sequence} was stored, but its offset is no longer known",
                    producer=header.producer.hex(),
                )
            return errors.BatchMismatchError(
                f"sequence {header.base_sequence} was stored before as part of another batch"
            )
        return None
    if log.live_table.has_pending(header.producer, WINDOW_BATCHES):
        return errors.OverloadedError(
            f"{WINDOW_BATCHES} batches of this producer wait for the commit already", retry_after_ms=5
        )
    return None


def _is_repeat(last: Entry | None, event: Append) -> bool:
    """Whether a batch that passed all checks is in the log already; `last` is the newest batch of its producer."""
    sent = (event.header.producer_epoch, event.header.base_sequence)
    return last is not None and sent <= (last.epoch, last.last_sequence)


def _delay_refusal(broker: BrokerState, log: SegmentLog, event: Append) -> errors.SeriatimError | None:
    """The refusal of a batch that was not stored before and is delayed for too long, one too many, or fired too early.

    Rule `two-clocks` (D4): a message is fired early only if two clocks are wrong. Without it:
      1. The clock of the server of a segment is an hour ahead. It fires what is due within the hour.
      2. The master of the partition appends the fired batch. Readers have it an hour too early.
    """
    header, wall_ms = event.header, broker.now.wall_ms
    if event.is_forward:
        early_ms = header.due_time_ms - wall_ms
        if not header.flags & FLAG_FIRED or early_ms <= EARLY_MS_MAX:
            return None
        return errors.OverloadedError(
            f"the messages are due in {early_ms} ms by the clock of {broker.member.broker}, the master: nothing was "
            "stored; fire them later",
            retry_after_ms=min(early_ms, 1_000),
        )
    if not header.flags & FLAG_DELAYED:
        return None
    if not versions.all_read(broker, FORM_DELAYED):
        # Not for the moment: the ordinary messages of the producer would wait after this one until it is given up.
        return errors.BadRequestError(
            "the brokers of this cluster do not all take delayed messages: nothing was stored. Send it without a delay"
        )
    delay_ms = -header.due_time_ms if header.due_time_ms < 0 else header.due_time_ms - wall_ms
    if delay_ms <= 0:
        return None
    pending = log.delayed.pending if log.delayed is not None else NONE_WAIT
    return event.delays.refusal(delay_ms) or event.delays.refusal_if_full(pending)


def _capacity_refusal(broker: BrokerState, log: SegmentLog, event: Append) -> errors.SeriatimError | None:
    """The refusal of a batch if more would wait for the members' disks than a switch may have to copy."""
    if has_room(broker, log, len(event.header.raw) + len(event.body)):
        return None
    return errors.OverloadedError(
        f"{log.uncertain_bytes} bytes of this partition wait for the members' disks already", retry_after_ms=20
    )


def has_room(broker: BrokerState, log: SegmentLog, size_bytes: int) -> bool:
    """Whether this many more bytes may wait for the members' disks: `unflushed_bytes_max` (18 MiB) wait at most."""
    return log.uncertain_bytes + size_bytes <= broker.config.unflushed_bytes_max


def _is_final(partition: Partition, log: SegmentLog, segment_no: int) -> bool:
    """Whether readers find a batch at its place in that segment.

    Rule `each-place-final` (PLACE): a place is final only if the tables of all segments before it are known. Without
    it:
      1. Segment 1 has a batch, and is opened over. Its producer gets no answer, and resends the batch.
      2. Segment 2 does not know the batch, stores it again at 2:0, and calls this place final.
      3. Segment 1 is settled with the batch in it. Readers get the batch from segment 1, and skip it at 2:0.
    """
    if segment_no == log.no:
        return not log.record.incomplete_table
    segment = partition.chain.segment(segment_no) if partition.chain is not None else None
    return segment is not None and not segment.incomplete_table


def _answer_repeat(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> None:
    """Answer a repeat with the offset of its first arrival, once that is as safe as its ack level asks.

    Rule `repeat-waits` (I12): a repeat is answered only once it is committed. Without it:
      1. Am has a on its disk, and As does not have it yet. The producer resends a.
      2. Am finds a in its producer table, and answers ok.
      3. Am's disk is lost, and a with it.
    """
    entry = log.live_table.find(event.header)
    assert entry is not None
    segment_no, index = split_offset(entry.offset)
    end = index + entry.message_count if segment_no == log.no else 0
    due_ms = None if event.header.flags & FLAG_DELAYED else 0  # the table does not keep it
    waiting = Waiting(end, event.level, event.request, entry.offset, 0, _is_final(partition, log, segment_no), due_ms)
    if event.level <= AckLevel.MASTER_RECEIVED:
        _accept(broker, waiting)
    else:
        log.waiting = add(log.waiting, waiting)
        release(broker, log)


def _is_fence(header: BatchHeader) -> bool:
    """Whether a control batch begins a producer epoch. The others are lists of what the next batch has."""
    return bool(header.flags & FLAG_CONTROL) and header.base_sequence == 0


def _is_forwarded(log: SegmentLog, event: Append) -> bool:
    """Whether a forwarder's batch was stored before, as far as this master knows.

    What is fired has sequences, as batches of clients have; a dead letter's number is its epoch.
    """
    header, last = event.header, log.live_table.last(event.header.producer)
    if _is_fence(header):
        return False
    if last is None or not header.producer.endswith(FIRE_MARK):
        return last is not None and header.producer_epoch <= last.epoch
    return header.producer_epoch == last.epoch and header.last_sequence <= last.last_sequence


def _answer_forwarded(broker: BrokerState, partition: Partition, log: SegmentLog, event: Append) -> None:
    """Answer a forwarder's repeat once everything is committed that the master has of the forwarder.

    The number of a dead letter is its producer epoch, and the forwarder sends them in order. So a number at or below
    the newest one is stored, whether the table still has its place or not.

    Rule `forwarded-waits` (I12, J4): as for other repeats, not before it is as safe as its ack level asks. Without it:
      1. Numbers 1 and 2 are on the master's disk only. A new server of the consumer group sends 1 again.
      2. The master answers that 1 was stored long ago, because it has number 2. The server passes the message.
      3. The master's disk is lost, and both dead letters with it.
    """
    last = log.live_table.last(event.header.producer)
    assert last is not None
    admission.note_asked(broker, log, event.header.producer)
    segment_no, index = split_offset(last.offset)
    end = index + last.message_count if segment_no == log.no else 0
    entry = log.live_table.find(event.header)
    offset = entry.offset if entry is not None else 0
    log.waiting = add(log.waiting, Waiting(end, event.level, event.request, offset, 0))
    release(broker, log)


def _accept(broker: BrokerState, waiting: Waiting) -> None:
    broker.out.emit(
        AppendAccepted(waiting.request, waiting.offset, waiting.append_time_ms, waiting.is_final, waiting.due_time_ms)
    )
