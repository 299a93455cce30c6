"""I12: at an acknowledgement, at a delivery and at a seal, two disks hold the message.

If the topic does not flush before it commits, two memories are enough while the segment is open.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import Segment

from .disks import holds
from .excuses import Excuse
from .seen import Seen


class TwoCopies:
    """Counts the disks that hold a batch."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def two_hold(self, batch: Batch, why: str) -> None:
        """Fail if fewer than two disks hold a batch; of an open segment two memories may do."""
        header = batch.header
        if self._seen.flush or (PartitionId(header.partition), header.segment) in self._seen.sealed:
            self.on_two_disks(batch, why)
            return
        self._seen.excuse(Excuse.TWO_MEMORIES)
        if not self._seen.losses.was_held_by_two(batch):
            self._seen.fail("I12", f"{why}: {batch.header.segment}:{batch.header.base_index} was never in two memories")

    def on_two_disks(self, batch: Batch, why: str, rule: str = "I12") -> None:
        """Fail if fewer than two disks hold a batch, in their log or as a tail copy."""
        header = batch.header
        partition, end = PartitionId(header.partition), header.end_index
        found: list[MemberId] = []
        for member, image in self._seen.images():
            if holds(image, partition, header.segment, header.base_index, end):
                found.append(member)
                if len(found) == 2:
                    if not all(map(self._seen.is_present, found)):
                        self._seen.excuse(Excuse.LOST_DISK)
                    return
        held_by = ", ".join(map(str, found)) or "no disk"
        self._seen.fail(rule, f"{why}: {header.segment}:{header.base_index} is on {held_by}")

    def sealed(self, what: str, partition: PartitionId, segment: Segment) -> None:
        """A segment is sealed: two disks hold each of its batches."""
        assert segment.sealed_len is not None
        for batch in self._seen.batches(partition, segment.no, segment.sealed_len):
            self.two_hold(batch, what)

    def opened(self, segment: Segment) -> None:
        """A segment is opened on two members at least."""
        if not len(set(segment.members)) >= 2:
            self._seen.fail("I12", f"segment {segment.no} was opened on {segment.members}")
