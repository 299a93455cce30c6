"""The disks of whole brokers: modelled, or written by the real storage adapter over a database in memory.

The adapter runs parts of a broker that other clusters leave out: writes become operations of one write group, extents
are begun, copied forward and emptied, the newest batches are in memory, and a start reads what is on the disk. Only
here a flush can fail, and a bit can flip in a batch that a start must read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import RunId
from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.testing.adapter_storage import AdapterDisk, AdapterStorage
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_storage import SimulatedStorage

from ..cluster import checksum
from ..judge import Judge
from .brokers import READ_US, START_AGAIN_US, ProcessStorage, RuntimeBroker, RuntimeProcess

if TYPE_CHECKING:
    from .cluster import WholeCluster


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

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world

    def make(self) -> MemoryDisk:
        """An empty disk."""
        return MemoryDisk()

    def open(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""
        broker, world = process.broker, self._world
        rng = world.schedule.rng
        return SimulatedStorage(
            broker.disk, world.schedule.time, lambda: world.flush_us(broker), lambda: rng.randint(*READ_US)
        )

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A process could not join; these disks are not the cause."""


class AdapterDisks(MemoryDisks):
    """Disks that the real storage adapter writes, over a database in memory."""

    def make(self) -> AdapterDisk:
        """An empty disk."""
        return AdapterDisk(self._world.schedule.rng)

    def open(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""
        broker, world = process.broker, self._world
        rng = world.schedule.rng
        process.loop.work_us = lambda: rng.randint(*READ_US)
        disk = broker.disk
        assert isinstance(disk, AdapterDisk)
        storage = JudgedStorage(
            disk,
            world.schedule.time,
            checksum,
            process.clock.wall_ms,
            lambda: world.flush_us(broker),
            lambda: world.schedule.after(0, self._disk_failed, process),
        )
        storage.judge, storage.name = world.judge, broker.name
        return storage

    def _disk_failed(self, process: RuntimeProcess) -> None:
        """The adapter ended its process; the supervisor starts it again."""
        broker, world = process.broker, self._world
        if broker.process is not process:
            return
        world.judge.seen.states.add("disk failed")
        world.schedule.tell("FAULT", f"{broker.name} ends, for its disk failed")
        process.leave_network(silent=False)
        process.end()
        broker.refuses = True
        broker.disk.crash(0)
        world.clients.process_ended(process, silent=False)
        self._cluster.coordinator.certify(RunId(broker.member, broker.run))
        world.schedule.after(START_AGAIN_US, broker.start_again)

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A start that finds damage on its disk is refused, and the operator gives the slot another disk."""
        if isinstance(error, CorruptionError):
            broker.replace_disk()
