"""What a disk has of a segment."""

from __future__ import annotations

from seriatim_api.ids import PartitionId
from seriatim_broker.testing.memory_disk import DiskImage


def own_tail(image: DiskImage, partition: PartitionId, segment_no: int) -> int:
    """How far a disk's own log of a segment goes."""
    found = image.partitions.get(partition)
    segment = found.segments.get(segment_no) if found is not None else None
    return segment.tail if segment is not None else 0


def holds(image: DiskImage, partition: PartitionId, segment_no: int, base: int, end: int) -> bool:
    """Whether a disk has [base, end) of a segment, in its log or in one tail copy."""
    found = image.partitions.get(partition)
    if found is None:
        return False
    if own_tail(image, partition, segment_no) >= end:
        return True
    tails = [tail for (no, _), tail in found.tails.items() if no == segment_no]
    for preparation in found.preparations.values():
        if preparation.tail is not None and preparation.tail.segment_no == segment_no:
            tails.append(preparation.tail)
    return any(tail.from_index <= base and tail.length >= end for tail in tails)
