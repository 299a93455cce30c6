"""The interface between the storage and the machine: an ordered database with a write-ahead log, and a few other parts.

`engine`, `watermark`, `flusher` and `room` implement it on a real machine. The simulator has its own implementations,
which lose unflushed writes in a crash. So the rest of this package runs in the simulator unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

PUT: Final = 0
DELETE: Final = 1
DELETE_RANGE: Final = 2

Family = Any
"""A column family's handle."""

Op = tuple[int, Family, bytes, Any]
"""(PUT, family, key, value or pieces), (DELETE, family, key, None), (DELETE_RANGE, family, begin, end)."""

META: Final = "meta"
INDEX: Final = "index"
CURSOR: Final = "cursor"
DELAY: Final = "delay"
EXTENT_PREFIX: Final = "extent-"

REMEDY: Final = (
    "Remedy: give the slot a new, empty disk (a new incarnation) and let it be copied from the other members"
)
"""The end of an error about a directory with which a start refuses to continue. It tells an administrator what to
do."""


def extent_name(extent: int) -> str:
    """The name of an extent's column family."""
    return f"{EXTENT_PREFIX}{extent:08d}"


class WriteRefusedError(Exception):
    """The write would have had to wait for the disk. Nothing was written. This error never leaves the storage."""


class FlushFailedError(Exception):
    """A flush failed. It is no longer known what is on the disk, and a second flush that succeeds proves nothing.

    This error never leaves the storage.
    """


class Rows(Protocol):
    """The rows of a column family, as they were when this object was made."""

    def forward(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, ascending, from the first key at or above `key`.

        Raises:
            CorruptionError: The disk gave other bytes than were written.
        """

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key at or below `key` with its value, or None.

        Raises:
            CorruptionError: The disk gave other bytes than were written.
        """


class Database(Protocol):
    """Column families of sorted keys. `engine.Engine` says what each method promises."""

    extents: list[int]

    def family(self, name: str) -> Family:
        """The handle of a column family, for writing."""

    def empty_extent(self, extent: int) -> bool:
        """Remove all rows of an extent, durably. Call it in a worker thread. Returns whether the extent is empty."""

    def extent_size_bytes(self, extent: int) -> int:
        """An estimate of the bytes that an extent takes, on disk and in memory."""

    def write(self, ops: Iterable[Op]) -> int:
        """Apply all operations or none, in memory. Returns the sequence number after them.

        It must not run at the same time as `flush_wal`.

        Raises:
            WriteRefusedError: Nothing was written. Try again a few milliseconds later.
        """

    def flush_wal(self) -> None:
        """Make all writes durable, in their order. Call it in a worker thread.

        Raises:
            FlushFailedError: It is no longer known what is durable.
        """

    def sequence(self) -> int:
        """The newest sequence number."""

    def cursor(self, name: str, end: bytes | None = None) -> AbstractContextManager[Rows]:
        """The rows of a column family below `end`, as they are now."""

    def extent_cursor(self, extent: int, end: bytes | None = None) -> AbstractContextManager[Rows]:
        """The rows of an extent below `end`, as they are now.

        Raises:
            CorruptionError: There is no such extent.
        """

    def get(self, name: str, key: bytes) -> bytes | None:
        """One value, or None.

        Raises:
            CorruptionError: The disk gave other bytes than were written.
        """

    def get_from_extent(self, extent: int, key: bytes) -> bytes | None:
        """One value of an extent, or None.

        Raises:
            CorruptionError: There is no such extent, or the disk gave other bytes than were written.
        """

    def close(self) -> None:
        """Write all memtables out and close. Call it in a worker thread."""


class Mark(Protocol):
    """A note of the sequence number up to which the database is durable. See `watermark.Watermark`."""

    def check(self, sequence: int) -> None:
        """Compare the note with the newest sequence number of the database that was just opened.

        Raises:
            CorruptionError: The database ends before writes that were durable, or the note cannot be read.
        """

    def open(self, sequence: int) -> None:
        """Write the first note, durably."""

    def note(self, sequence: int) -> None:
        """Note that all writes up to `sequence` are durable."""

    def close(self) -> None:
        """Let go of the file of the note."""


class Flusher(Protocol):
    """Runs flushes one after another, while the event loop continues."""

    def start(self, work: Callable[[int, int], None]) -> None:
        """Begin. Each later `put` leads to one call `work(ticket, sequence)`."""

    def put(self, ticket: int, sequence: int) -> None:
        """Have one call made."""

    async def close(self) -> None:
        """Wait for the calls that were put. No further `put` may follow."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The parts of the floor together.

    Attributes:
        is_full: Says whether the disk has reached its reserve.
        now_ms: The wall clock, in milliseconds since 1970 UTC.
        die: Ends the process at once. Its arguments are the reason and the error.
    """

    database: Database
    mark: Mark
    flusher: Flusher
    is_full: Callable[[], bool]
    now_ms: Callable[[], int]
    die: Callable[[str, BaseException | None], NoReturn]
