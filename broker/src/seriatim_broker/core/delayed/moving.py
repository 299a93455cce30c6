"""Moving: before retention drops messages that are not due yet, the server of their segment appends them once more.

A move is a volley that stays delayed: it has the producer, the numbers and the fence of those that are fired, and one
row in the ledger, so that no message has a number for both. When it is stored, its messages are passed in their former
place, and wait in the new one with their due time and their origin.

The duty of retention says below which index it wants to drop messages soon (`runtime.duties.retention`). The server
moves what is delayed there while nothing is due, and slowly.
"""

from __future__ import annotations

from typing import Final

from ..state.broker import BrokerState
from ..state.delayed import LIMITS, Firing
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..values.delayed_messages import PendingRead, ReadPending
from ..values.kinds import TimerKind

ROWS_PER_READ: Final = 512

ROWS_KEPT: Final = 32
"""Rows of a segment in memory. Thousands of segments may be moved at the same time."""

SOON_MS: Final = 2_000
"""What is due within this time is not moved any more: it is about to be fired."""

MOVES_MAX: Final = LIMITS.items_max // 2
"""Maximum number of moves of a segment under way. What is due has the other places."""

PAUSE_US: Final = 20_000
"""A broker moves at most `MOVES_MAX` batches in this time: 200 a second. A fixed pace, chosen and not measured."""

BYTES_PER_US: Final = 5
"""And at most 5 MB a second."""


def want(firing: Firing, below: int) -> None:
    """Retention will drop messages below an index soon: move what is delayed there."""
    moving = firing.moving
    if moving.at >= moving.below and not moving.rows:
        moving.at = firing.passed.floor
    moving.below = max(moving.below, below)


def go_on(broker: BrokerState, partition: Partition, firing: Firing, log: SegmentLog) -> None:
    """Make volleys of the batches that are moved next.

    Rule `move-what-is-left` (D1, D2): a message that was fired or cancelled, or is in a volley, is not moved. Without
    it:
      1. d is in volley 1, which is sent. Retention wants to go beyond d, and d is moved as volley 2.
      2. Both are stored. d is visible now, and once more when it is due in its new place.
    """
    moving, now_us = firing.moving, broker.now.mono_us
    _give_up(broker, firing)
    below = min(moving.below, log.readable_below)
    waiting = firing.volleys.waiting
    is_due = any(not volley.is_move for volley in waiting.values())
    if (moving.at >= below and not moving.rows) or is_due or firing.volleys.refusal or len(waiting) >= MOVES_MAX:
        return
    if now_us < broker.moves_from_us:
        broker.poll(broker.moves_from_us - now_us, TimerKind.DELAYED, partition.id, firing.no)
        return
    size_bytes = 0
    rows = list(moving.rows)
    while rows and len(waiting) < MOVES_MAX:
        row = rows[0]
        if row.index >= below:
            rows.clear()
            moving.at = below
            break
        is_later = row.due_ms > broker.now.wall_ms + SOON_MS
        spans = firing.left_of(row) if is_later else ()
        room = MOVES_MAX - len(waiting)
        for span in spans[:room]:
            firing.add_volley(row.due_ms, (span,), is_move=True)
            size_bytes += row.size_bytes
        if len(spans) > room:
            break
        rows.pop(0)
    moving.rows = tuple(rows)
    if size_bytes:
        broker.moves_from_us = now_us + max(PAUSE_US, size_bytes // BYTES_PER_US)
    elif not rows and not moving.reading and moving.at < below:
        moving.reading = broker.new_serial()
        broker.out.emit(ReadPending(moving.reading, partition.id, firing.no, moving.at, ROWS_PER_READ))


def on_read(broker: BrokerState, partition: Partition, firing: Firing, event: PendingRead) -> None:
    """Rows by index were read: keep the first ones that are to be moved."""
    moving = firing.moving
    moving.reading = 0
    if event.rows is None:
        firing.moving.below = 0  # until retention asks again
        return
    later = [row for row in event.rows if row.due_ms > broker.now.wall_ms + SOON_MS and firing.left_of(row)]
    moving.rows = tuple(later[:ROWS_KEPT])
    if len(later) > ROWS_KEPT:
        moving.at = moving.rows[-1].index + moving.rows[-1].message_count
    elif len(event.rows) < ROWS_PER_READ:
        moving.at = moving.below
    else:
        moving.at = event.rows[-1].index + event.rows[-1].message_count
    broker.poll(0, TimerKind.DELAYED, partition.id, firing.no)


def _give_up(broker: BrokerState, firing: Firing) -> None:
    """Fire what could not be moved in time: drop moves without a number that are due soon, or cannot be read."""
    until_ms = broker.now.wall_ms + SOON_MS // 2
    late = [
        volley
        for volley in firing.volleys.waiting.values()
        if volley.is_move and not volley.number and (volley.tries or volley.due_ms < until_ms)
    ]
    for volley in late:
        firing.drop_volley(volley)
    if late:
        firing.give_up_moving()
