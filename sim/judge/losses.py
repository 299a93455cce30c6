"""What may be missing: what was only in the memory of machines that ended, and what is in a gap that an administrator
declared.

An ordinary world forgives nothing. There are two exceptions:

* If the topic does not flush before it commits, an acknowledged message may be gone if no member kept it, neither in a
  process that still runs nor on a disk.
* If two disks may be lost at a time, the messages of a segment that was declared lost may be gone.

The judge asks here, and forgives only that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.log import Batch, PutBatch, PutPreparation, PutTailCopy, Truncate, Write

from .disks import own_tail

if TYPE_CHECKING:
    from ..basics.interfaces import Broker

Place = tuple[PartitionId, int]
"""A partition, and the number of a segment of it."""


class Losses:
    """Knows which promised messages are gone, and why.

    Args:
        brokers: All slots.
        watches_memory: Whether messages count that are in a process and not on its disk yet.

    Attributes:
        cut: Segments with promised messages that are gone, each with the first index that is gone.
        declared: Segments that an administrator declared lost.
    """

    def __init__(self, brokers: Mapping[str, Broker], *, watches_memory: bool) -> None:
        self.cut: dict[Place, int] = {}
        self.declared: set[Place] = set()
        self._brokers = brokers
        self._watches_memory = watches_memory
        self._holders: dict[tuple[PartitionId, int, int], set[str]] = {}
        self._memories: dict[str, tuple[Any, dict[Place, int]]] = {}

    @property
    def has_any(self) -> bool:
        """Whether something that was promised is gone."""
        return bool(self.cut or self.declared)

    def covers(self, place: Place, index: int) -> bool:
        """Whether the message at this place is known to be gone."""
        return place in self.declared or index >= self.cut.get(place, index + 1)

    # ---- memories -----------------------------------------------------------------------------------

    def wrote(self, who: str, writes: tuple[Write, ...]) -> None:
        """A process has this in memory, and on its disk at some later time."""
        if not self._watches_memory:
            return
        tails = self._memory(who)
        for write in writes:
            if isinstance(write, PutBatch):
                header = write.batch.header
                tails[write.partition, header.segment] = header.end_index
                self._held(who, write.batch)
            elif isinstance(write, Truncate):
                tails[write.partition, write.segment_no] = write.length
            else:
                copied = write.tail if isinstance(write, PutTailCopy) else None
                copied = write.preparation.tail if isinstance(write, PutPreparation) else copied
                for batch in copied.batches if copied is not None else ():
                    self._held(who, batch)

    def _held(self, who: str, batch: Batch) -> None:
        header = batch.header
        place = (PartitionId(header.partition), header.segment, header.base_index)
        self._holders.setdefault(place, set()).add(who)

    def _memory(self, name: str) -> dict[Place, int]:
        """What the process that runs now has written of each segment, as far as it has written anything."""
        process = self._brokers[name].process
        known = self._memories.get(name)
        if known is None or known[0] is not process:
            known = self._memories[name] = (process, {})
        return known[1]

    def was_held_by_two(self, batch: Batch) -> bool:
        """Whether two members had a batch at some time, in memory at least."""
        header = batch.header
        return len(self._holders.get((PartitionId(header.partition), header.segment, header.base_index), ())) >= 2

    def longest(self, place: Place) -> int:
        """How much of a segment is left: the longest log on any present disk, or in a process that runs."""
        return max(self._tail(broker, place) for broker in self._brokers.values())

    def _tail(self, broker: Broker, place: Place) -> int:
        durable = own_tail(broker.real_disk.durable, *place)
        return self._memory(broker.name).get(place, durable) if broker.process is not None else durable
