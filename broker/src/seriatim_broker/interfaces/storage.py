"""What the broker asks of its disk.

One storage object for each broker process. Writes are taken in order and are in memory at once; they are durable, in
order and all at once for each `submit`, when the ticket that `submit` returned is reported. A write that the engine
refuses for the moment is kept and tried again by the storage itself, in order: callers see only `is_saturated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from seriatim_api.ids import PartitionId

from ..core.values.log import Batch, RecoveredPartition, Write
from ..core.values.positions import BatchPlace, Measure


class Storage(Protocol):
    """A log of extents with the control records beside it."""

    def recover(self) -> Iterator[RecoveredPartition]:
        """What is on the disk, partition by partition; once, before the first `submit`.

        Raises:
            CorruptionError: A checksum does not match.
        """

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes, to be made durable together and in order with earlier ones; returns their ticket.

        Never blocks on the disk. Tickets grow by one. The values are not copied: callers must not change them.
        """

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Name the function that is called on the event loop with the highest durable ticket."""

    @property
    def is_saturated(self) -> bool:
        """Whether more than the limit of bytes waits to be written: new appends should be refused."""

    def is_disk_full(self) -> bool:
        """Whether the disk's reserve is reached: new appends must be refused."""

    async def read(
        self,
        partition: PartitionId,
        segment_no: int,
        from_index: int,
        until_index: int,
        max_bytes: int,
        *,
        sequential: bool = False,
    ) -> list[Batch]:
        """Batches that hold indexes of [from_index, until_index), from the one that contains `from_index`.

        At least one if there is any, then as many as fit in `max_bytes`; none if retention has dropped `from_index`
        (`TrimLog`; what a disk has not given back yet may still be read). Bodies and chain are verified.
        Served from the memory tail where possible. Batches of tail copies count where the log itself ends before.
        What is good before a batch that cannot be read is given; the read that begins at that batch fails.

        Args:
            partition: Of which partition.
            segment_no: Of which segment.
            from_index: Where to begin.
            until_index: Where to end at the latest.
            max_bytes: Of headers and bodies.
            sequential: Whether the caller goes on where this read ends. The storage then keeps the place for a moment,
                and reads ahead of a caller that comes again; the read may give fewer batches than fit. Nothing has to
                be closed, and a caller that does not go on does no harm.

        Raises:
            CorruptionError: A body or the chain does not match its checksum.
            DeadlineExceededError: The disk did not answer in time.
        """

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """What a sequential `read` would give, if that is in memory; None: ask `read`, which can tell more."""

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value` (`BatchPlace.reaches`), of those that begin below `until_index`.

        A binary search: about twenty headers are read, and no body is verified. Tail copies do not count.
        `bytes_before` may be wrong by some batches after the segment was cut, until the next start.

        Raises:
            CorruptionError: A header does not match its checksum, or a batch is missing.
        """

    async def close(self) -> None:
        """Write and flush what was submitted, mark a clean shutdown, and let go of the directory."""
