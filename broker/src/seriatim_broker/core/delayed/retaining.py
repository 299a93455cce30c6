"""Retaining: how far retention may go in a segment, because nothing below is delayed any more.

The duty of retention asks (`runtime.duties.retention`). The server reads the rows of the segment by index, from the
floor of what is done on, and raises the floor to the first message that still waits. It answers with this floor when
the record of it counts. A floor never falls, so an old answer is as safe as a new one.
"""

from __future__ import annotations

from typing import Final

from ..state.broker import BrokerState
from ..state.delayed import Firing, Retaining
from ..state.partition import Partition
from ..values.delayed_messages import AskPending, PendingFound, PendingRead, ReadPending
from ..values.kinds import TimerKind
from . import ledger, moving, serving

ROWS_PER_READ: Final = 512


def ask(broker: BrokerState, partition: Partition, event: AskPending) -> None:
    """Answer with the first index that is pending, if this member serves the segment.

    Rule `trim-pending` (D1, D5): retention drops nothing that is pending. Without it:
      1. The topic keeps messages for an hour. d is in segment 1, and due in a day.
      2. Retention drops segment 1 after an hour. d is never fired.
    """
    firing = serving.take_up(broker, partition, event.segment_no)
    if firing is None:
        serving.refuse_pending(broker, event.request, f"nothing is known of segment {event.segment_no} here now")
        return
    firing.retention.new.append(event.request)
    moving.want(firing, event.move_below)
    _read(broker, partition, firing)


def _read(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    asked = firing.retention
    if not asked.reading:
        log = partition.logs[firing.no]
        asked.reading, asked.below = broker.new_serial(), min(log.readable_below, log.durable)
        broker.out.emit(ReadPending(asked.reading, partition.id, firing.no, firing.passed.floor, ROWS_PER_READ))


def on_read(broker: BrokerState, partition: Partition, event: PendingRead) -> None:
    """Rows by index were read, from the floor on: raise the floor to the first message that is not done."""
    firing = partition.firing.get(event.segment_no)
    if firing is not None and firing.moving.reading == event.serial:
        moving.on_read(broker, partition, firing, event)
    if firing is None or firing.retention.reading != event.serial:
        return
    asked, floor, rows = firing.retention, firing.passed, event.rows
    asked.reading = 0
    if rows is None:
        for request in asked.take_new():
            serving.refuse_pending(broker, request, "the disk was not read")
        return
    waiting = (floor.not_passed(row.index, row.index + row.message_count) for row in rows)
    first = next((indexes[0] for indexes in waiting if indexes), None)
    is_last = first is not None or len(rows) < ROWS_PER_READ
    if first is None:
        first = asked.below if is_last else rows[-1].index + rows[-1].message_count
    firing.raise_floor(min(first, asked.below))
    if not is_last and floor.floor < asked.below:
        _read(broker, partition, firing)
        return
    # What is in no record yet is in the next one; all else counts with the newest one that is under way.
    serial = None if firing.is_changed else max(firing.ledger.replications, default=0)
    asked.asked += [Retaining(request, floor.floor, serial) for request in asked.take_new()]
    broker.poll(0, TimerKind.DELAYED, partition.id, firing.no)


def confirm(broker: BrokerState, firing: Firing) -> None:
    """Answer with the floors whose control records count by now.

    Rule `pending-is-durable` (D1): a floor is answered when every eligible member has it on disk. Without it:
      1. A, the server of segment 1, is cut off from its other member A2. A cancellation of d comes to A, so d is passed
         in its memory. It is not answered.
      2. Retention asks A, and drops d.
      3. A2 takes the right, and knows of no cancellation. d is on no disk, and is never fired.
    """
    asked = firing.retention.asked
    for one in asked:
        if one.serial is not None and ledger.is_common(firing, one.serial):
            broker.out.emit(PendingFound(one.request, one.floor, None))
    firing.retention.asked = [one for one in asked if one.serial is None or not ledger.is_common(firing, one.serial)]
