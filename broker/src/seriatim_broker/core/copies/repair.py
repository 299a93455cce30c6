"""Repair: a member rewrites its damaged copy of a sealed segment, from its own disk and from the other members.

A read finds the damage: a delivery, a copy for another member, or a scrub. The member then goes through the segment
from the first message on. It reads each piece from its own disk. If that fails, it asks the other members for the
piece. It checks each piece against the checksum chain and writes it to another place of the disk. Nothing is cut first:
the copies of the other members may be damaged in other places, and a good piece here may be the last one.

An open segment is not repaired. Its repair begins after its seal.
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
from . import copying


def begin(broker: BrokerState, partition: Partition, no: int) -> None:
    """A read found damage in the copy here: begin to repair it, unless its repair has begun already."""
    log = partition.logs.get(no)
    if no in partition.repairs or log is None or not log.is_in_sync:
        return
    partition.repairs = put(partition.repairs, no, Repair(log.start, log.record.begin.checksum))
    broker.out.note("copy_damaged", partition.id, segment=no)
    _go_on(broker, partition, no)


def _go_on(broker: BrokerState, partition: Partition, no: int) -> None:
    """Read the next piece from the disk here, or end."""
    repair, log = partition.repairs[no], partition.logs.get(no)
    if log is None or log.record.sealed_len is None:
        partition.repairs = drop(partition.repairs, no)  # the segment was dropped
        return
    if repair.next_index < log.start:  # retention dropped messages meanwhile
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
    """The disk here was read: write what is good, or ask another member for the piece."""
    repair = partition.repairs.get(no)
    if repair is None:
        return
    if not batches or not _take(broker, partition, no, repair, batches):
        _ask(broker, partition, no, repair)


def _ask(broker: BrokerState, partition: Partition, no: int, repair: Repair) -> None:
    """Ask the next of the other members for the piece that cannot be read here."""
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
    """Another member sent a piece: write it, or ask again after a pause."""
    no = message.segment_no
    repair = partition.repairs.get(no)
    if repair is None or repair.asked != sender or message.from_index != repair.next_index:
        return
    repair.asked = None
    if _take(broker, partition, no, repair, message.batches):
        repair.foreign_count += len(message.batches)
    else:
        repair.failures += 1
        copying.read_if_older(broker, partition, repair.failures)
        repair.wake_us = broker.now.mono_us + broker.config.retry_us
        broker.wake(repair.wake_us, TimerKind.REPAIR, partition.id, no)


def _take(broker: BrokerState, partition: Partition, no: int, repair: Repair, batches: tuple[Batch, ...]) -> bool:
    """Write the batches that continue the checksum chain; False if there are none."""
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
    broker.out.when_stored(partition.id, StoredFor.REPAIR, no)  # `on_stored` continues
    return True


def on_stored(broker: BrokerState, partition: Partition, no: int) -> None:
    """A piece is on the disk at its new place: repair the next one."""
    if no in partition.repairs:
        _go_on(broker, partition, no)


def on_timer(broker: BrokerState, partition: Partition, no: int) -> None:
    """There was no answer, or no good one: ask another member."""
    repair = partition.repairs.get(no)
    if repair is None or not repair.is_asking or broker.now.mono_us < repair.wake_us:
        return
    if repair.asked is not None:
        repair.failures += 1
    log = partition.logs.get(no)
    if log is None or repair.next_index < log.start:  # retention dropped the piece meanwhile, so no member has it
        _go_on(broker, partition, no)
    else:
        _ask(broker, partition, no, repair)
