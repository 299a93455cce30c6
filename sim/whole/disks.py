"""A world of whole brokers whose disks are written by the real storage adapter, over a database in memory.

This world runs parts of a broker that the other worlds leave out: writes become operations of one write group, extents
are begun, copied forward and emptied, the newest batches are in memory, and a start reads what is on the disk. Only
here a flush can fail, and a bit can flip in a batch that a start must read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import RunId
from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.testing.adapter_storage import AdapterDisk, AdapterStorage

from ..cores.brokers import checksum
from ..judge import Judge
from .brokers import READ_US, START_AGAIN_US, ProcessStorage, RuntimeBroker, RuntimeProcess
from .injector import RuntimeInjector
from .world import RuntimeWorld


class JudgedStorage(AdapterStorage):
    """Compares what a start finds with what was durable."""

    judge: Judge
    name: str

    def recover(self) -> Iterator[RecoveredPartition]:
        """What is on this disk now."""
        found = sorted(super().recover(), key=lambda partition: partition.partition)
        held = [partition for partition in self._disk.recover() if not _is_empty(partition)]
        if [partition for partition in found if not _is_empty(partition)] != held:
            self.judge.fail("DISK", f"{self.name} finds {found} on its disk, and {held} was durable")
        return iter(found)


def _is_empty(partition: RecoveredPartition) -> bool:
    return not (partition.segments or partition.preparations or partition.tail_copies or partition.cursors)


class DisksInjector(RuntimeInjector):
    """Adds faults of the disk: a failed flush, and a flipped bit."""

    _damaged: Any = None

    def _may_be_damaged(self, broker: Any) -> bool:
        """One disk only: a start that finds damage is refused, and then the whole disk is replaced."""
        self._damaged = self._damaged or broker
        return broker is self._damaged

    def inject_fsync_error(self) -> None:
        """A flush fails, and the writes that it should have made durable are gone."""
        broker: Any = self._victim()
        if broker.process is not None:
            self._tell(f"the next flush of {broker.name} fails")
            broker.disk.database.fails_next_flush = True


class DisksWorld(RuntimeWorld):
    """A world whose brokers write their disks with the real storage adapter."""

    injector_kind = DisksInjector

    def _make_broker(self, name: str, group: str) -> Any:
        broker = RuntimeBroker(name, group, self._incarnation())
        broker.disk = AdapterDisk(self.schedule.rng)
        return broker

    def open_storage(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""
        broker, rng = process.broker, self.schedule.rng
        process.loop.work_us = lambda: rng.randint(*READ_US)
        disk: Any = broker.disk
        storage = JudgedStorage(
            disk,
            self.schedule.time,
            checksum,
            process.clock.wall_ms,
            lambda: self.sync_us(broker),
            lambda: self.schedule.after(0, self._disk_failed, process),
        )
        storage.judge, storage.name = self.judge, broker.name
        return storage

    def _disk_failed(self, process: RuntimeProcess) -> None:
        """The adapter ended its process; the supervisor starts it again."""
        broker = process.broker
        if broker.process is not process:
            return
        self.judge.seen.states.add("disk failed")
        self.schedule.tell("FAULT", f"{broker.name} ends, for its disk failed")
        self.network.process_ended(process, silent=False)
        process.end()
        broker.refuses = True
        broker.disk.crash(0)
        self.clients.process_ended(process, silent=False)
        self.coordinator.certify(RunId(broker.member, broker.run))
        self.schedule.after(START_AGAIN_US, self._start_again, broker)

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """Also: a start that finds damage on its disk is refused, and the operator gives the slot another disk."""
        super().start_failed(broker, error)
        if isinstance(error, CorruptionError):
            self.replace_disk(broker)
