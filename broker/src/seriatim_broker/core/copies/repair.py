"""Repair: a sealed segment whose copy here cannot be read whole is written anew, from here and from the others.

A damaged place is found by a read (a delivery, a copy for another member, a scrub). From the segment's first message
on, what can be read is read, and what cannot is asked of the other members; each piece is checked against the chain of
checksums and written to another place of the disk. Nothing is cut first: the others' copies may be damaged as well, in
other places, and what is good here may be all that is left of it.

The segment is not written while it is open: what is damaged there is repaired after its seal.
"""

from __future__ import annotations

from seriatim_api.batch import chain_is_intact
from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.copies import Repair
from ..state.partition import Partition
from ..values.effects import ReadLog
from ..values.kinds import ReadKind, StoredFor, TimerKind
from ..values.log import Batch, Rewrite
from ..values.messages import CopyAnswer, CopyRequest
from ..values.states import drop, put


def begin(broker: BrokerState, partition: Partition, no: int) -> None:
    """The copy here is damaged; once it is known to be under repair that is no news."""
    log = partition.logs.get(no)
    if no in partition.repairs or log is None or not log.is_whole:
        return
    partition.repairs = put(partition.repairs, no, Repair(log.start, log.record.begin.checksum))
    broker.out.note("copy_damaged", partition.id, segment=no)
    _go_on(broker, partition, no)


def _go_on(broker: BrokerState, partition: Partition, no: int) -> None:
    """Read the next piece here, or be done."""
    repair, log = partition.repairs[no], partition.logs.get(no)
    if log is None or log.record.sealed_len is None:
        partition.repairs = drop(partition.repairs, no)  # it was dropped
        return
    if repair.next_index < log.start:  # retention has dropped the rest of what lies below
        repair.next_index, repair.checksum = log.start, log.record.begin.checksum
    if repair.next_index >= log.record.sealed_len:
        partition.repairs = drop(partition.repairs, no)
        whole = repair.checksum == log.record.sealed_checksum
        broker.out.note(
            "copy_repaired" if whole else "copy_differs", partition.id, segment=no, batches=repair.foreign_count
        )
        return
    serial = broker.new_serial()
    broker.reads[serial] = (ReadKind.REPAIR, partition.id, no, broker.member, repair.next_index)
    size = broker.config.copy_bytes
    broker.out.emit(ReadLog(serial, partition.id, no, repair.next_index, log.record.sealed_len, size))


def on_log_read(broker: BrokerState, partition: Partition, no: int, batches: tuple[Batch, ...] | None) -> None:
    """What is good here is taken from here."""
    repair = partition.repairs.get(no)
    if repair is None:
        return
    if not batches or not _take(broker, partition, no, repair, batches):
        _ask(broker, partition, no, repair)


def _ask(broker: BrokerState, partition: Partition, no: int, repair: Repair) -> None:
    """Ask the next of the others for what cannot be read here."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    members = (*segment.members, *segment.tail_copies) if segment is not None else ()
    others = [member for member in dict.fromkeys(members) if member != broker.member]
    for member in others:
        broker.connect(member.broker)
    linked = [member for member in others if broker.is_linked(member)]
    repair.is_asking = True
    repair.asked = linked[repair.failures % len(linked)] if linked else None
    config = broker.config
    repair.pause_us = min(max(2 * repair.pause_us, config.retry_us), config.retry_us_max)
    repair.wake_us = broker.now.mono_us + (config.retry_us_max if repair.asked is not None else repair.pause_us)
    broker.wake(repair.wake_us, TimerKind.REPAIR, partition.id, no)
    if repair.asked is not None:
        broker.send(repair.asked, CopyRequest(partition.id, no, repair.next_index, config.copy_bytes, want_table=False))


def on_copy_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: CopyAnswer) -> None:
    """Another member's piece."""
    no = message.segment_no
    repair = partition.repairs.get(no)
    if repair is None or repair.asked != sender or message.from_index != repair.next_index:
        return
    repair.asked = None
    if _take(broker, partition, no, repair, message.batches):
        repair.foreign_count += len(message.batches)
    else:
        repair.failures += 1
        repair.wake_us = broker.now.mono_us + broker.config.retry_us
        broker.wake(repair.wake_us, TimerKind.REPAIR, partition.id, no)


def _take(broker: BrokerState, partition: Partition, no: int, repair: Repair, batches: tuple[Batch, ...]) -> bool:
    """Write what continues the chain; False if nothing does."""
    good: list[Batch] = []
    index, value = repair.next_index, repair.checksum
    for batch in batches:
        header = batch.header
        follows = (header.segment, header.base_index, header.previous_checksum) == (no, index, value)
        if not follows or not chain_is_intact(header, broker.checksum):
            break
        good.append(batch)
        index, value = header.end_index, header.checksum
    if not good:
        return False
    repair.next_index, repair.checksum = index, value
    repair.is_asking = False
    repair.pause_us = 0
    broker.out.write(Rewrite(partition.id, no, tuple(good)))
    broker.out.when_stored(partition.id, StoredFor.REPAIR, no)  # goes on when this is on the disk
    return True


def on_stored(broker: BrokerState, partition: Partition, no: int) -> None:
    """A piece is durable at its new place."""
    if no in partition.repairs:
        _go_on(broker, partition, no)


def on_timer(broker: BrokerState, partition: Partition, no: int) -> None:
    """No answer, or none that was good: ask another one."""
    repair = partition.repairs.get(no)
    if repair is None or not repair.is_asking or broker.now.mono_us < repair.wake_us:
        return
    if repair.asked is not None:
        repair.failures += 1
    _ask(broker, partition, no, repair)
