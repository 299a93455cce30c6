"""I5: the length and the checksum of a sealed segment never change, and all disks have the same batch at one place.

A member knows a seal only from the chain.
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.log import Batch, PutSegment
from seriatim_broker.core.values.segment import Segment

from .seen import SETTLED, Seen


class OneLog:
    """Compares each batch with the one that was written first at its place."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def placed(self, who: str, partition: PartitionId, batch: Batch) -> bool:
        """A disk gets a batch; return whether it is the first at its place."""
        header = batch.header
        key = (partition, header.segment, header.base_index)
        known = self._seen.placed.get(key)
        if known is None:
            self._seen.placed[key] = batch
            return True
        if known.header.checksum != header.checksum or known.body != batch.body:
            self._seen.fail("I5", f"two batches at {header.segment}:{header.base_index} ({who}): {known} and {batch}")
        return False

    def seal_written(self, who: str, write: PutSegment) -> None:
        """A member takes a segment for sealed."""
        known = self._seen.sealed.get((write.partition, write.segment.no))
        if known is None or known[0] != write.segment.sealed_len:
            what = f"{who} takes segment {write.segment.no} for sealed"
            self._seen.fail("I5", f"{what}: {write.segment}, and the chain says {known}")

    def changed(self, what: str, old: Segment, new: Segment) -> None:
        """The record of a segment changed."""
        if old.base is not None and old.base != new.base:
            self._seen.fail("I5", f"{what}: base changed from {old.base} to {new.base}")
        if old.state in SETTLED and (old.sealed_len, old.sealed_checksum) != (new.sealed_len, new.sealed_checksum):
            self._seen.fail("I5", f"{what}: length or checksum changed: {old} {new}")

    def sealed(self, what: str, partition: PartitionId, segment: Segment) -> None:
        """A segment is sealed: its checksum is that of its last batch."""
        assert segment.sealed_len is not None
        found = self._seen.batches(partition, segment.no, segment.sealed_len)
        if segment.sealed_checksum != (found[-1].header.checksum if found else 0):
            self._seen.fail("I5", f"{what}, with a checksum that is not that of the log")

    def served(self, what: str, partition: PartitionId, batch: Batch) -> None:
        """A broker delivers a batch."""
        header = batch.header
        known = self._seen.placed.get((partition, header.segment, header.base_index))
        if known is None or known.header.checksum != header.checksum:
            self._seen.fail("I5", f"{what}, which is not what was written there")
