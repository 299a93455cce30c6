"""Fencing: a server stores a control batch before the first volley that it numbers. If it may not know all that was
fired, it reads that in the log.

    begun ──▶ fence stored ──▶ its volleys have numbers in the producer epoch of the fence
      │            ▲  │
      │            └──┘ refused: another server was here, or the ledger is lost: fence above it, and then read the log
      └─ blind ────┘

The producer epoch is the one after the last that the ledger names. The master takes a fence only above all epochs that
its producer table has, and then nothing more of the epochs before. So the fence finds out whether the ledger is the
newest one, and whatever is fired under an earlier epoch is in the log when the fence is.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from seriatim_api.batch import FLAG_CONTROL, make_header
from seriatim_api.delayed import fire_producer
from seriatim_api.errors import BatchMismatchError, ProducerFencedError, SequenceGapError, SeriatimError

from ..state.broker import BrokerState
from ..state.delayed import Firing
from ..state.partition import Partition
from ..values.delayed_messages import FiredRead, FireVolleys, ReadFired
from ..values.kinds import TimerKind
from ..values.states import put

READ_PAUSE_US: Final = 100_000
READ_PAUSE_US_MAX: Final = 10_000_000
"""The pause after a read that failed doubles from the first to the second."""

OUTDATED: Final = (ProducerFencedError, SequenceGapError, BatchMismatchError)
"""With one of these the master says that its producer table has other volleys than the ledger knows of."""


def look(broker: BrokerState, partition: Partition, firing: Firing) -> None:
    """Store the fence, if it is not stored, and read what was fired, if that is to be learned.

    Rule `learns-is-durable` (D1): the ledger says that it must be learned, and above which epoch, before the fence is
    stored. Without it:
      1. B learns that the last epoch is 7, stores its fence in epoch 8, and dies.
      2. C begins with epoch 2, which B's ledger names. The open segment was opened over, so its master takes C's fence.
      3. C fires d in epoch 2. When the segment before is settled, readers skip d, because it is below epoch 8.
    """
    volleys, fence, now_us = firing.volleys, firing.fence, broker.now.mono_us
    if now_us < volleys.send_from_us:
        broker.poll(volleys.send_from_us - now_us, TimerKind.DELAYED, partition.id, firing.no)
        return
    serial = broker.new_serial()
    if not fence.is_stored:
        header = control_header(partition, fire_producer(partition.id, firing.no), (fence.epoch, 0))
        broker.out.emit(FireVolleys(serial, partition.id, firing.no, ((header, b""),)))
    elif fence.learns and partition.chain is not None:
        if not partition.chain.settled_before(partition.chain.open_segment.no):
            return  # a newer record wakes it
        broker.out.emit(ReadFired(serial, partition.id, firing.no, fence.epoch, partition.chain.epoch))
    else:
        return
    fence.serial = serial
    volleys.begin(serial, [], now_us)
    broker.poll(volleys.send_from_us - now_us, TimerKind.DELAYED, partition.id, firing.no)


def control_header(
    partition: Partition, producer: bytes, number: tuple[int, int], body_length: int = 0, body_crc: int = 0
) -> bytes:
    """The header of a control batch. `number`: its producer epoch, and its sequence."""
    return make_header(
        partition=partition.id,
        message_count=1,
        producer=producer,
        producer_epoch=number[0],
        base_sequence=number[1],
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        body_length=body_length,
        body_crc=body_crc,
        flags=FLAG_CONTROL,
    )


def on_stored(firing: Firing, stored_count: int, error: SeriatimError | None) -> None:
    """The master has answered the fence."""
    firing.fence.serial = 0
    if stored_count:
        firing.fence.is_stored = True
    elif isinstance(error, ProducerFencedError):
        firing.learn(int(error.details.get("epoch", 0)))


def on_read(broker: BrokerState, partition: Partition, event: FiredRead) -> None:
    """What was fired of the segment was read in the log.

    Rule `blind-reads-the-log` (D1): what a server may not know is read before it fires. Without it:
      1. A and B are eligible, and have fired d. The disks of both are lost, but C has a copy of the segment.
      2. C takes the right. It has no ledger, so it fires d once more.

    Rule `fence-before-look` (D1): the fence is stored before that. Without it:
      1. A is the server, and sends d. It is cut off. C, which lacks A's ledger, looks: d is not fired.
      2. A's request arrives, and d is stored.
      3. C fires d once more.
    """
    firing = partition.firing.get(event.segment_no)
    if firing is None or firing.fence.serial != event.serial:
        return
    fence = firing.fence
    fence.serial = 0
    firing.volleys.answered(event.serial, 0)
    if event.error is not None:
        if firing.volleys.refused(event.error.message, broker.now.mono_us):
            broker.out.note("firing_refused", partition.id, segment=firing.no, error=event.error.message)
        pause_us = min(READ_PAUSE_US << min(fence.tries, 10), READ_PAUSE_US_MAX)
        fence.tries, firing.volleys.send_from_us = fence.tries + 1, broker.now.mono_us + pause_us
    elif event.last_epoch >= fence.epoch:
        # The master did not know that epoch: the segment before its own was not settled. Readers know it by now.
        firing.learn(event.last_epoch)
    else:
        firing.passed.pass_over(chain.from_iterable(span.indexes for span in event.fired))
        for index in (index for span in event.moved for index in span.indexes):
            firing.moved.add(index)
        firing.learned()
        firing.volleys.taken()
        right = partition.rights[firing.no]
        right.renewed = put(right.renewed, firing.name, 0)  # its own ledger is the newest one from now on
        broker.out.note("fired_messages_read", partition.id, segment=firing.no)
    broker.poll(0, TimerKind.DELAYED, partition.id, firing.no)
