"""Cancelling: a delayed message is called back, by the offset where it was stored first.

The answers *cancelled*, *too late* and *not found* are final, and true: a cancelled message is never visible, and one
that came too late is, or will be. A refusal is not final: the request is sent again.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors
from seriatim_api.batch import BatchHeader
from seriatim_api.delayed import CancelOutcome
from seriatim_api.ids import split_offset

from ..copies import producer_tables
from ..state.broker import BrokerState
from ..state.delayed import Cancelling, Firing
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..values.delayed_messages import CancelDelayed, DelayedCancelled, DelayedFound, FindDelayed
from ..values.kinds import TimerKind
from ..values.segment import SegmentState
from . import ledger, serving

KEPT_US: Final = 1_000_000
"""What was done in a segment stays in memory for this long after a cancellation. Without it, a segment of which nothing
is left would be forgotten between the refusal of a request and its repetition, each time."""


def cancel(broker: BrokerState, partition: Partition, event: CancelDelayed) -> None:
    """Cancel one message, if this member serves its segment.

    Rule `cancel-unsettled` (D2): nothing is cancelled before all segments before are settled: `serving.take_up` asks.
    Without it:
      1. d is in segment 1, which is opened over. Its producer sends d again, and segment 2 takes it.
      2. A cancellation names the place in segment 2. Its server answers that d is cancelled.
      3. Segment 1 is settled with d in it. Its server fires d.
    """
    no, index = split_offset(event.offset)
    chain, log = partition.chain, partition.logs.get(no)
    segment = chain.segment(no) if chain is not None else None
    if chain is None or no > chain.open_segment.no:
        partition.read_chain(broker)
        serving.try_again(broker, event.request, "this broker does not know the segment yet")
    elif segment is None or segment.state is SegmentState.LOST or (log is not None and index < log.start):
        broker.out.emit(DelayedCancelled(event.request, CancelOutcome.NOT_FOUND, None, may_be_moved=True))
    elif segment.server != broker.member:
        serving.ask_for_server(broker, partition, segment)
        error = errors.GroupHeadElsewhereError(f"segment {no} is served by {segment.server.broker}", segment=no)
        broker.out.emit(DelayedCancelled(event.request, None, error, server=segment.server.broker))
    elif log is None or not log.has_delayed:
        _answer_absent(broker, event.request, log, index)
    else:
        firing = serving.take_up(broker, partition, no)
        if no in partition.firing:
            partition.firing[no].kept_until_us = broker.now.mono_us + KEPT_US
        if firing is None:
            serving.try_again(
                broker, event.request, f"segment {no} is about to be served, or one before it is not settled"
            )
        elif index >= log.readable_below:
            _answer_absent(broker, event.request, log, index)
        else:
            serial = broker.new_serial()
            firing.reads[serial] = Cancelling(event.request, index)
            broker.out.emit(FindDelayed(serial, partition.id, no, index))


def _answer_absent(broker: BrokerState, request: int, log: SegmentLog | None, index: int) -> None:
    """No delayed message is there, as far as this member knows. It may not know what the master has just committed."""
    is_sure = log is not None and (index < log.readable_below or log.is_in_sync)
    if is_sure or (log is not None and log.unbroken and index >= log.tail):
        _answer(broker, request, CancelOutcome.NOT_FOUND)
    else:
        serving.try_again(broker, request, "the message is not committed yet, as far as this broker knows")


def on_found(broker: BrokerState, partition: Partition, event: DelayedFound) -> None:
    """The row of the message was looked up.

    Rule `cancel-too-late` (D2): a message in a volley is not cancelled. Without it:
      1. d is in volley 1, which is sent. A cancellation is answered: cancelled.
      2. The master stores volley 1. d is visible.

    Rule `too-late-is-durable` (D3): it is too late when every eligible member has the number of the volley. Without it:
      1. d is in volley 1, which only the server's memory has. A cancellation is answered: too late. The server dies.
      2. The next server knows nothing of volley 1, and cancels d.

    Rule `cancel-moving` (D2): a message in a move waits until the move is stored. Without it:
      1. d is in volley 1, which moves it, and is sent. A cancellation is answered: cancelled.
      2. The master stores volley 1. d is fired in its new place.

    Rule `moved-is-not-late` (D3): what was moved is cancelled in its new place. Without it:
      1. d is due in a month, and was moved. A cancellation is answered: too late.
      2. The same cancellation names the new place, and is answered: cancelled.

    Rule `cancel-looks-again` (D2, D3): the server asks for its right after the read. Without it:
      1. The server reads for half a second, and is cut off meanwhile. Another member takes the right, and cancels d.
      2. The read is over. d is in volley 1 in the memory of the former server, so it answers: too late.
    """
    firing = partition.firing.get(event.segment_no)
    asked = firing.reads.pop(event.serial, None) if firing is not None else None
    if firing is None or asked is None:
        return
    request, index, _ = asked
    if serving.take_up(broker, partition, event.segment_no) is not firing:
        serving.try_again(broker, request, f"segment {event.segment_no} may be served by another broker by now")
        return
    volley = firing.volley_with(index)
    if event.failed:
        serving.try_again(broker, request, "the disk was not read")
    elif event.header is None:
        may_be_moved = index in firing.moved or index < partition.logs[firing.no].start  # retention was here meanwhile
        broker.out.emit(DelayedCancelled(request, CancelOutcome.NOT_FOUND, None, may_be_moved=may_be_moved))
    elif index in firing.cancelled:
        _confirm(broker, firing, request, index)
    elif _answer_repeat(broker, partition, firing, asked, event.header):
        pass
    elif volley is not None and (volley.is_move or not (volley.number and ledger.is_common(firing, volley.written))):
        serving.try_again(broker, request, "the message is about to be fired or moved")
    elif index in firing.moved:
        broker.out.emit(DelayedCancelled(request, CancelOutcome.TOO_LATE, None, may_be_moved=True))
    elif volley is not None or not firing.passed.not_passed(index, index + 1):
        _answer(broker, request, CancelOutcome.TOO_LATE)
    else:
        firing.cancel(index)
        _confirm(broker, firing, request, index)
        broker.poll(0, TimerKind.DELAYED, partition.id, firing.no)


def _answer_repeat(
    broker: BrokerState, partition: Partition, firing: Firing, asked: Cancelling, header: BatchHeader
) -> bool:
    """Answer if the batch is a repeat, or may be one. Returns whether that is so.

    Rule `first-place-answers` (D3): also when the repeat is passed. Without it:
      1. d is in segments 1 and 2. A cancellation names its place in segment 2, is sent to the one in segment 1, and
         answered there: cancelled.
      2. d becomes due. The server of segment 2 passes it, because it is a repeat.
      3. The cancellation comes once more, and the server of segment 2 answers: too late.
    """
    assert partition.chain is not None
    segment = partition.chain.segment(firing.no)
    if segment is None or not segment.incomplete_table:
        return False
    before = producer_tables.want_before(broker, partition, firing.no)
    if before is None:
        serving.try_again(broker, asked.request, "the producer tables of the segments before are not known yet")
        return True
    if not before.covers(header):
        return False
    found = before.find(header)
    if found is None:
        _answer(broker, asked.request, CancelOutcome.TOO_LATE)
        return True
    at = found.offset + asked.index - header.base_index
    error = errors.OutcomeUnknownError("the message was stored earlier: cancel it there")
    broker.out.emit(DelayedCancelled(asked.request, None, error, offset=at))
    return True


def _confirm(broker: BrokerState, firing: Firing, request: int, index: int) -> None:
    """Answer when the cancellation is on the disk of every eligible member.

    Rule `cancel-is-durable` (D2). Without it:
      1. d is cancelled, which only the server's disk has. The answer leaves, and the server dies.
      2. The next server fires d.
    """
    newest = max(firing.ledger.replications, default=0)
    if firing.cancelled.is_written(index) and not newest:
        _answer(broker, request, CancelOutcome.CANCELLED)
    else:
        firing.cancels.append(Cancelling(request, index, newest if firing.cancelled.is_written(index) else 0))


def confirm(broker: BrokerState, firing: Firing) -> None:
    """Answer the cancellations whose control records count by now."""
    waiting, firing.cancels = firing.cancels, []
    for one in waiting:
        if one.serial and ledger.is_common(firing, one.serial):
            _answer(broker, one.request, CancelOutcome.CANCELLED)
        else:
            firing.cancels.append(one)


def _answer(broker: BrokerState, request: int, outcome: CancelOutcome) -> None:
    broker.out.emit(DelayedCancelled(request, outcome, None))
