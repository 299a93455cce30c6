"""The disks of complete brokers: modelled, or written by the real storage adapter over a database in memory.

The adapter runs parts of a broker that other clusters leave out: writes become operations of one write group, extents
are begun, copied forward and emptied, the newest batches are in memory, and a start reads what is on the disk. Only
here a flush can fail, and a bit can flip in a batch that a start must read.
"""

from __future__ import annotations

from collections.abc import Iterator

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import RunId
from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.testing.adapter_storage import AdapterDisk, AdapterStorage
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_storage import SimulatedStorage

from ..basics.interfaces import checksum
from ..judge import Judge
from .brokers import READ_US, START_AGAIN_US, Home, ProcessStorage, RuntimeBroker, RuntimeProcess


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


class MemoryDisks:
    """Disks that are modelled, without the storage adapter."""

    def __init__(self, cluster: Home) -> None:
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._setting = cluster.setting

    def make(self) -> MemoryDisk:
        """An empty disk."""
        return MemoryDisk()

    def open(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""
        broker, rng = process.broker, self._schedule.rng
        return SimulatedStorage(
            broker.disk,
            self._schedule.time,
            lambda: self._setting.flush_us(broker),
            lambda: rng.randint(*READ_US),
        )

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A process could not join; these disks are not the cause."""


class AdapterDisks(MemoryDisks):
    """Disks that the real storage adapter writes, over a database in memory."""

    def make(self) -> AdapterDisk:
        """An empty disk."""
        return AdapterDisk(self._schedule.rng)

    def open(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""
        broker, scene = process.broker, self._cluster.scene
        rng = self._schedule.rng
        process.loop.work_us = lambda: rng.randint(*READ_US)
        disk = broker.disk
        assert isinstance(disk, AdapterDisk)
        storage = JudgedStorage(
            disk,
            self._schedule.time,
            checksum,
            process.clock.wall_ms,
            lambda: self._setting.flush_us(broker),
            lambda: self._schedule.after(0, self._disk_failed, process),
        )
        storage.judge, storage.name = scene.judge, broker.name
        return storage

    def _disk_failed(self, process: RuntimeProcess) -> None:
        """The adapter ended its process; the supervisor starts it again."""
        broker, scene = process.broker, self._cluster.scene
        if broker.process is not process:
            return
        scene.judge.seen.states.add("disk failed")
        self._schedule.tell("FAULT", f"{broker.name} ends because its disk failed")
        process.leave_network(silent=False)
        process.end()
        broker.refuses = True
        broker.disk.crash(0)
        scene.clients.process_ended(process, silent=False)
        self._cluster.coordinator.certify(RunId(broker.member, broker.run))
        self._schedule.after(START_AGAIN_US, broker.start_again)

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A start that finds damage on its disk is refused, and the operator gives the slot another disk."""
        if isinstance(error, CorruptionError):
            broker.replace_disk()
