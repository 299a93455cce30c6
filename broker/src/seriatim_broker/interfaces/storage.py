"""The disk, as the broker needs it.

A broker process has one storage object. The storage takes writes in order, and reads see them at once. `submit` returns
a ticket. When the storage reports this ticket, the writes of that `submit` and of all earlier ones are durable. The
writes of one `submit` become durable together. If the engine refuses a write for the moment, the storage keeps it and
tries again, in order: callers see only `is_saturated`.

Each delayed batch has a row, which is written and deleted together with the batch: `read_due` and `read_delayed` find
what is due, or which batch has an index, and read no body. So has each batch that a broker made of them: `read_volleys`
finds which volleys are stored. Batches of tail copies have no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from seriatim_api.ids import PartitionId

from ..core.values.log import Batch, DueRow, RecoveredPartition, StoredVolley, Write
from ..core.values.positions import BatchPlace, Measure


class Storage(Protocol):
    """A log of extents with the control records beside it."""

    def recover(self) -> Iterator[RecoveredPartition]:
        """The data on the disk, partition by partition. Call it once, before the first `submit`.

        Raises:
            CorruptionError: A checksum does not match.
        """

    def submit(self, writes: Sequence[Write]) -> int:
        """Take writes. They become durable together, and after all earlier ones. Never blocks on the disk.

        The storage does not copy the values, so callers must not change them.

        Returns:
            The ticket of these writes. Tickets grow by one.
        """

    def on_durable(self, report: Callable[[int], None]) -> None:
        """Set the function that the storage calls, on the event loop, with the highest durable ticket."""

    @property
    def durable_sequence(self) -> int:
        """How far the disk is durable: a number that grows with its writes, also from one start to the next.

        The durable content of an older copy of the disk has a lower number.
        """

    @property
    def is_saturated(self) -> bool:
        """Whether more bytes than the limit wait to be written. Then new appends should be refused."""

    def is_disk_full(self) -> bool:
        """Whether the disk has reached its reserve. Then new appends must be refused."""

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
        """Batches with indexes of [from_index, until_index), beginning with the one that contains `from_index`.

        The read gives at least one batch if there is one, then as many as fit into `max_bytes`. It gives none if
        retention has dropped `from_index` (`TrimLog`), although dropped messages that are still on the disk may be
        read. It verifies bodies and the checksum chain. It takes batches from memory if they are there. After the end
        of the log it takes batches of tail copies. If a batch cannot be read, the read gives the good batches before
        it. A read that begins at the bad batch fails.

        Args:
            partition: The partition.
            segment_no: The segment.
            from_index: The first index to read.
            until_index: The index before which the read ends.
            max_bytes: Limit for headers and bodies together.
            sequential: Whether the caller's next read begins where this one ends. The storage then keeps the place for
                a short time, and reads ahead if the caller comes again. Such a read may give fewer batches than fit.
                The caller need not close anything, and may stop reading at any time.

        Raises:
            CorruptionError: A body or the chain does not match its checksum.
            DeadlineExceededError: The disk did not answer in time.
        """

    def read_at_once(
        self, partition: PartitionId, segment_no: int, from_index: int, until_index: int, max_bytes: int
    ) -> list[Batch] | None:
        """The batches that a sequential `read` would give, if they are in memory. None: the caller must use `read`."""

    async def find(
        self, partition: PartitionId, segment_no: int, until_index: int, measure: Measure, value: int
    ) -> BatchPlace | None:
        """The first batch that reaches `value` (`BatchPlace.reaches`), of those that begin below `until_index`.

        It is a binary search, which reads about twenty headers and verifies no body. Tail copies do not count. If the
        segment was cut since the last start, `bytes_before` may be wrong by a few batches until the next start.

        Raises:
            CorruptionError: A header does not match its checksum, or a batch is missing.
        """

    async def read_due(
        self, partition: PartitionId, segment_no: int, after: tuple[int, int], until_ms: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log, by due time and then by first index.

        Args:
            partition: The partition.
            segment_no: The segment.
            after: Only rows after this due time and index. (0, 0) is before all of them.
            until_ms: Only rows that are due at this time, or before.
            count_max: The number of rows to give at most.

        Raises:
            CorruptionError: A row cannot be read.
            DeadlineExceededError: The disk did not answer in time.
        """

    async def read_delayed(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[DueRow]:
        """Delayed batches of a segment's log by index, beginning with the one that contains `from_index`, or else with
        the next one.

        Raises:
            CorruptionError: A row cannot be read.
            DeadlineExceededError: The disk did not answer in time.
        """

    async def read_volleys(
        self, partition: PartitionId, segment_no: int, from_index: int, count_max: int
    ) -> list[StoredVolley]:
        """Batches of a segment's log that a broker made of delayed messages, by index: those that begin at `from_index`
        or after it.

        Raises:
            CorruptionError: A row cannot be read.
            DeadlineExceededError: The disk did not answer in time.
        """

    async def close(self) -> None:
        """Write and flush all submitted writes, mark a clean shutdown, and let go of the directory."""
