"""Range reads: batches of [from, to) of a partition, for readers without a consumer group.

Messages below the commit never change, and all in-sync copies of a sealed segment are the same. So a range read needs
no serving right. Any member with an in-sync copy reads a sealed segment. Any member reads the open segment, below the
commit that it knows.

A range is read in steps. The servicer asks for each step. A step reads the disk at most once, and its answer says one
of three things: where the next step begins, that the range is read to its end, or that other brokers have the next
part. Repeats after unsettled segments are skipped with the same producer tables as for consumer groups, unless the
reader asks for raw batches.

A member of an old segment may have an old chain record, because it is notified of no later segment. So it refuses a
range only by a record that it has read since the reader asked (rule `refusal-reads-first`).
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL
from seriatim_api.ids import format_offset, make_offset
from seriatim_api.publications import STAGE_TOPIC

from ...copies import producer_tables
from ...state.broker import BrokerState
from ...state.consumers import RangeWait, RecordRead
from ...state.partition import Partition
from ...values.chain import Chain
from ...values.effects import (
    PartitionSurveyed,
    RangeBatches,
    RangeDropped,
    RangeEvent,
    RangeGap,
    RangeRead,
    RangeSegmentEnd,
    RangeSkip,
    ReadLog,
)
from ...values.events import ReadRange
from ...values.kinds import ReadKind, TimerKind
from ...values.log import Batch
from ...values.passing import is_passed_by
from ...values.positions import Place, first_kept, is_dropped
from ...values.producers import ProducerTable
from ...values.segment import Segment, SegmentState
from ...values.states import drop, put
from . import surveys

SEGMENTS_PER_STEP = 64
"""Maximum number of segments without anything to read that are passed over in one step: lost, empty and read to the
end."""

CHECKED_MAX: Final = 1_000
"""If this many partitions have a time before which a refusal does not read the record, times in the past are
removed."""

RECORD_WAIT_US: Final = 1_000_000
"""A step waits at most 1 s for the chain record. A client leaves a broker that is silent for 2 s."""


# ---- a step ------------------------------------------------------------------------------------------------


def read(broker: BrokerState, partition: Partition, event: ReadRange) -> None:
    """Answer a step of a range read: now, or when the chain, a producer table or the disk has answered."""
    wait = RangeWait(event, event.start, (), event.deadline_us)
    if partition.chain is None:
        _want_record(broker, partition, wait)
        return
    _advance(broker, partition, wait)


def _hold(broker: BrokerState, partition: Partition, wait: RangeWait) -> None:
    known = partition.range_waits.get(wait.event.request)
    if known is None or known.due_us != wait.due_us:
        broker.wake(wait.due_us, TimerKind.RANGES, partition.id)
    partition.range_waits = put(partition.range_waits, wait.event.request, wait)


def _want_record(broker: BrokerState, partition: Partition, wait: RangeWait) -> None:
    """Hold the step until the chain record was read, by a read that begins after this."""
    if wait.record is RecordRead.NOT_NEEDED:
        wait = wait._replace(due_us=min(wait.due_us, broker.now.mono_us + RECORD_WAIT_US))
    _hold(broker, partition, wait._replace(record=RecordRead.WANTED))
    _read_record(broker, partition)


def _answer(
    broker: BrokerState,
    partition: Partition,
    wait: RangeWait,
    *,
    is_done: bool = False,
    brokers: tuple[str, ...] = (),
    error: errors.SeriatimError | None = None,
) -> None:
    partition.range_waits = drop(partition.range_waits, wait.event.request)
    broker.out.emit(RangeRead(wait.event.request, wait.passed, wait.place, is_done, brokers, error))


def _advance(broker: BrokerState, partition: Partition, wait: RangeWait) -> None:
    """Continue from `wait.place`: pass over segments with nothing to read, up to one read of the disk."""
    chain = partition.chain
    assert chain is not None
    if chain.topic == STAGE_TOPIC and not wait.event.staged:
        refusal = errors.BadRequestError(
            "the stage topic has no order, and only brokers read it: read the topics that it is published to"
        )
        _answer(broker, partition, wait, error=refusal)
        return
    wait = _over_what_was_dropped(chain, wait)
    for _ in range(SEGMENTS_PER_STEP):
        if wait.place >= wait.event.until:
            _answer(broker, partition, wait, is_done=True)
            return
        segment = chain.from_no(wait.place.segment_no)
        if segment is None:
            _refuse(broker, partition, wait, chain)
            return
        if segment.no != wait.place.segment_no:
            if wait.place.segment_no > segment.previous_no and wait.place.index:
                _answer(broker, partition, wait, error=_behind_segment(wait.place.segment_no, 0))
                return
            wait = _to_segment(wait, segment)
        elif segment.state is SegmentState.LOST:
            gap = RangeGap(segment.no, wait.place.index, "declared lost")
            wait = wait._replace(place=Place(segment.no + 1, 0), passed=(*wait.passed, gap))
        elif segment.state is SegmentState.SEALED and _names_behind(wait, segment):
            _answer(broker, partition, wait, error=_behind_segment(segment.no, segment.sealed_len or 0))
            return
        elif segment.state is SegmentState.SEALED and wait.place.index == segment.sealed_len:
            end = RangeSegmentEnd(segment.no, wait.place.index, segment.sealed_checksum or 0)
            wait = wait._replace(place=Place(segment.no + 1, 0), passed=(*wait.passed, end))
        else:
            _read_from(broker, partition, wait, chain, segment)
            return
    _answer(broker, partition, wait)


def _over_what_was_dropped(chain: Chain, wait: RangeWait) -> RangeWait:
    """If retention has dropped the messages at the place, notify the reader, and continue at the first message left.

    This is checked in each step, because retention may drop messages while the range is read.
    """
    # Rule `dropped-behind-loss` (I13): what lies before the place says nothing of it. Without it:
    #   1. Segment 3 is declared lost, and stays in the record. Retention drops all of segment 4 after it.
    #   2. A reader reads from 4:4 on. The first message that is kept seems to be the one of segment 3, before 4:4.
    #   3. No member has 4:4, so each one sends the reader to another one, for ever.
    first = first_kept(chain, wait.place.segment_no)
    if not is_dropped(chain, wait.place, first):
        return wait
    segment = chain.segment(first.segment_no)
    assert segment is not None
    dropped = RangeDropped(wait.place, first, segment.begin.checksum)
    return wait._replace(place=first, passed=(*wait.passed, dropped))


def _names_behind(wait: RangeWait, segment: Segment) -> bool:
    """Whether the range begins or ends after the end of a sealed segment. There is no such offset."""
    named = (place.index for place in (wait.place, wait.event.until) if place.segment_no == segment.no)
    return max(named) > (segment.sealed_len or 0)


def _to_segment(wait: RangeWait, segment: Segment) -> RangeWait:
    """Go to the next segment, because the one of the place was empty and is no longer in the record.

    The reader is told that the last segment before the next one has ended. Otherwise it would wait for that segment.
    """
    return wait._replace(place=Place(segment.no, 0), passed=(*wait.passed, RangeSegmentEnd(segment.no - 1, 0, 0)))


def _read_from(broker: BrokerState, partition: Partition, wait: RangeWait, chain: Chain, segment: Segment) -> None:
    """Read batches of a segment from the place on, if this member may read them."""
    is_unsettled = segment.state is SegmentState.UNSETTLED
    if is_unsettled or not (wait.event.staged or chain.settled_before(segment.no)):
        _refuse(broker, partition, wait, chain)
        return
    readable = surveys.readable_below(partition, segment)
    until = wait.event.until
    until_index = until.index if until.segment_no == segment.no else None
    end = end_of(partition, chain)
    if end is not None and until > end and not wait.event.staged:
        _refuse(broker, partition, wait, chain)
        return
    if readable is None or readable <= wait.place.index:
        _answer(broker, partition, wait, brokers=_others(broker, segment))
        return
    if (
        segment.incomplete_table
        and not wait.event.raw
        and producer_tables.want_before(broker, partition, segment.no) is None
    ):
        _hold(broker, partition, wait)
        broker.poll(broker.config.retry_us, TimerKind.RANGES, partition.id)
        return
    serial = broker.new_serial()
    broker.reads[serial] = (ReadKind.RANGE, partition.id, segment.no, None, wait.event.request)
    _hold(broker, partition, wait._replace(reading=serial))
    below = readable if until_index is None else min(readable, until_index)
    broker.out.emit(ReadLog(serial, partition.id, segment.no, wait.place.index, below, wait.event.max_bytes))


def on_log_read(
    broker: BrokerState, partition: Partition, serial: int, request: int, batches: tuple[Batch, ...] | None
) -> None:
    """The disk has read batches. Check again whether this member may still read them, and answer."""
    wait = partition.range_waits.get(request)
    if wait is None or wait.reading != serial:
        return
    wait = wait._replace(reading=0)
    chain = partition.chain
    if chain is not None and is_dropped(chain, wait.place, first_kept(chain, wait.place.segment_no)):
        _advance(broker, partition, wait)
        return
    segment = chain.segment(wait.place.segment_no) if chain is not None else None
    readable = surveys.readable_below(partition, segment) if segment is not None else None
    if not batches or chain is None or segment is None or readable is None:
        # Rule `range-nothing-is-end` (RANGE): a range does not end where a member lacks messages. The record says that
        # there are messages, so the reader asks another member. Without it:
        #   1. A member lacks the last messages of a segment.
        #   2. It answers that the range is read to its end.
        #   3. A job counts as complete without these messages.
        brokers = _others(broker, segment) if segment is not None else ()
        text = f"{broker.member.broker} cannot read segment {wait.place.segment_no}: ask another broker"
        _answer(broker, partition, wait, brokers=brokers, error=errors.NotServingError(text, retry_after_ms=50))
        return
    skips = segment.incomplete_table and not wait.event.raw
    before = producer_tables.want_before(broker, partition, segment.no) if skips else ProducerTable()
    if before is None:
        _hold(broker, partition, wait)
        broker.poll(broker.config.retry_us, TimerKind.RANGES, partition.id)
        return
    found = tuple(batch for batch in batches if batch.header.end_index <= readable)
    events = (*wait.passed, *_events(segment.no, found, before, is_raw=wait.event.raw))
    if found:
        wait = wait._replace(place=Place(segment.no, found[-1].header.end_index))
    wait = wait._replace(passed=events)
    _answer(broker, partition, wait, is_done=wait.place >= wait.event.until)


def _events(no: int, batches: tuple[Batch, ...], before: ProducerTable, *, is_raw: bool) -> list[RangeEvent]:
    """The batches in rows, and between the rows skips of batches that are earlier in the order already.

    Batches that are not due yet, or only for one consumer group, are skipped too. A raw read skips control batches
    only, because they hold no message.

    Rule `range-repeats` (I9): a range read skips a batch that is earlier in the order already. Without it:
      1. a is at 1:0. After the unsettled segment 1 it was stored again at 2:0.
      2. A range read of both segments gives a twice.
    """
    events: list[RangeEvent] = []
    for batch in batches:
        header, last = batch.header, events[-1] if events else None
        is_passed = header.flags & FLAG_CONTROL if is_raw else is_passed_by(header, (0,))
        if before.covers(header) or is_passed:
            begin = header.base_index
            if isinstance(last, RangeSkip):
                begin = last.from_index
                events.pop()
            events.append(RangeSkip(no, begin, header.end_index, header.checksum))
        elif isinstance(last, RangeBatches):
            events[-1] = RangeBatches(no, (*last.batches, batch))
        else:
            events.append(RangeBatches(no, (batch,)))
    return events


def _others(broker: BrokerState, segment: Segment) -> tuple[str, ...]:
    """The other brokers that have the segment according to the record, its server first."""
    others = dict.fromkeys((segment.server, *segment.eligible, *segment.members))
    return tuple(member.broker for member in others if member != broker.member)


# ---- where there is nothing more ---------------------------------------------------------------------------


def end_of(partition: Partition, chain: Chain) -> Place | None:
    """The end of the partition if this member knows it; None if the reader must ask another member.

    Messages after an UNSETTLED segment have no place in the order yet, so the end is where that segment begins.
    """
    if chain.open_segment.base is None:
        unsettled = next(segment for segment in chain.segments if segment.state is SegmentState.UNSETTLED)
        return Place(unsettled.no, 0)
    log = partition.logs.get(chain.open_segment.no)
    if log is None or not (log.unbroken and log.active):
        return None
    return Place(chain.open_segment.no, log.commit)


def _refuse(broker: BrokerState, partition: Partition, wait: RangeWait, chain: Chain) -> None:
    """Refuse a range that ends after the end of the partition. Before that, read the record: it may be old.

    Rule `refusal-reads-first` (RANGE, I13): a member refuses a range only by a record that it read after the request
    had come. Without it:
      1. Segment 1 is on A, segment 2 on B. B's members die, and segment 3 is opened over segment 2, which is UNSETTLED.
      2. A client asks A for the route, and A's members read the chain record.
      3. B is back and segment 2 is settled. A is in no later segment, so A's members are not notified.
      4. A reader asks for the range from segment 1 to segment 3. A's members answer that the partition ends at segment
         2, as long as they run.

    Rule `refusal-reads-anew` (RANGE): also if the record here has the chain epoch that the reader has seen, or a later
    one. Without it:
      1. A reader is told that the partition ends at 1:49, by the record of chain epoch 1.
      2. Segment 1 becomes UNSETTLED in chain epoch 2, which this member reads, and is settled in chain epoch 3.
      3. This member refuses 1:49 by the record of chain epoch 2.

    Rule `refusal-by-epoch` (RANGE): nor is a range refused by a record that is older than the one that the reader has
    seen. Without it: 1. An older copy of the coordinator is restored. 2. This member has just started and reads a
    record that lacks the last segments. 3. It refuses what the reader was promised before, and a job ends as failed.

    Staged batches are excepted: only members of their segment are asked, and the asking broker reads the record itself.
    """
    end = end_of(partition, chain)
    if end is None:
        # The record here may be older than the reader's.
        error = errors.NotServingError(
            f"this broker does not know offset {_text(wait.place)}: ask the master of the open segment",
            retry_after_ms=50,
        )
        _answer(broker, partition, wait, error=error)
        return
    event = wait.event
    if not (event.staged or wait.record is RecordRead.DONE):
        _want_record(broker, partition, wait)
        return
    if not event.staged and chain.epoch < event.epoch:
        _answer(broker, partition, wait, error=_unread(wait))
        return
    refusal = errors.OffsetOutOfRangeError(
        f"offset {_text(event.until)} is after the end of the partition, {_text(end)}: read up to there, or wait "
        "for more messages",
        end=make_offset(*end),
    )
    _answer(broker, partition, wait, error=refusal)


def _read_record(broker: BrokerState, partition: Partition) -> None:
    """Read the chain record for all steps that want it, at most once in `retry_us` (50 ms).

    A read that is under way may have begun before the request came, so it does not count: the next one does. A flood of
    ranges that are refused costs 20 reads a second for each partition, and for each partition that does not exist.
    """
    if partition.reading:
        return
    checked, now_us = broker.coordinator.checked, broker.now.mono_us
    pause_us = checked.get(partition.id, 0) - now_us
    if pause_us > 0:
        broker.poll(pause_us, TimerKind.RANGES, partition.id)
        return
    if len(checked) >= CHECKED_MAX:
        for known in [known for known, until_us in checked.items() if until_us <= now_us]:
            del checked[known]
    checked[partition.id] = now_us + broker.config.retry_us
    for wait in list(partition.range_waits.values()):
        if wait.record is RecordRead.WANTED:
            _hold(broker, partition, wait._replace(record=RecordRead.UNDER_WAY))
    partition.read_chain(broker)


def on_chain_read(broker: BrokerState, partition: Partition, failed: bool) -> None:
    """The coordinator answered a read of the chain record, or did not: continue or end the steps that wait for it."""
    is_old = failed or partition.awaits_newer(partition.chain)
    for wait in list(partition.range_waits.values()):
        if is_old and wait.record in (RecordRead.WANTED, RecordRead.UNDER_WAY):
            _answer(broker, partition, wait, error=_unread(wait))
        elif wait.record is RecordRead.UNDER_WAY:
            _hold(broker, partition, wait._replace(record=RecordRead.DONE, due_us=wait.event.deadline_us))
    look_again(broker, partition)


def _unread(wait: RangeWait) -> errors.SeriatimError:
    return errors.CoordinatorUnavailableError(
        f"the coordinator did not send this broker the newest chain record, so it does not know offset "
        f"{_text(wait.place)}; no message is lost; ask again",
        retry_after_ms=50,
    )


def _behind_segment(no: int, length: int) -> errors.SeriatimError:
    end = make_offset(no, length)
    return errors.OffsetOutOfRangeError(
        f"segment {no} ends at {format_offset(end)}: there is no offset after that in it", end=end, segment=no
    )


def _text(place: Place) -> str:
    return f"{place.segment_no}:{place.index}"


# ---- waiting -----------------------------------------------------------------------------------------------


def look_again(broker: BrokerState, partition: Partition) -> None:
    """Time has passed, or a record or a table has come: continue the steps that wait, or refuse the late ones."""
    now_us = broker.now.mono_us
    waits, partition.surveys = partition.surveys, ()
    for event in waits:
        if partition.chain is not None and partition.chain.epoch >= event.epoch and not partition.reading:
            surveys.answer(broker, partition, event)
        elif now_us >= event.deadline_us:
            unread = errors.CoordinatorUnavailableError("the chain could not be read in time")
            broker.out.emit(PartitionSurveyed(event.request, None, None, False, unread))
        else:
            partition.surveys = (*partition.surveys, event)
    for wait in list(partition.range_waits.values()):
        if wait.reading:
            continue  # the disk will answer
        if now_us >= wait.due_us:
            error = _unread(wait)
            if wait.record in (RecordRead.NOT_NEEDED, RecordRead.DONE):
                error = errors.DeadlineExceededError(
                    "a producer table that the range needs did not come in time: ask again"
                )
            _answer(broker, partition, wait, error=error)
        elif partition.reading:
            continue
        elif partition.chain is not None:
            _advance(broker, partition, wait)
        elif wait.record is RecordRead.WANTED:
            _read_record(broker, partition)


def on_no_partition(broker: BrokerState, partition: Partition) -> None:
    """The coordinator has no such partition: notify all that asked before that read began. The others have one more."""
    fail_all(broker, partition, errors.UnknownTopicError(f"there is no {partition.name}"), spared=RecordRead.WANTED)


def fail_all(
    broker: BrokerState, partition: Partition, error: errors.SeriatimError, *, spared: RecordRead | None = None
) -> None:
    """The partition does not exist, or no longer: answer every step with this error, but for those in that state."""
    for event in partition.surveys:
        broker.out.emit(PartitionSurveyed(event.request, None, None, False, error))
    partition.surveys = ()
    for wait in list(partition.range_waits.values()):
        if wait.record is not spared:
            _answer(broker, partition, wait, error=error)
