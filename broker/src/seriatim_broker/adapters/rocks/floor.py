"""What the storage stands on: an ordered database with a write-ahead log, and what else it asks of a machine.

`engine`, `watermark`, `flusher` and `room` are the real ones. The simulation puts others in their place, which lose in
a crash what was not flushed; so the rest of this package runs there as it is.
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
EXTENT_PREFIX: Final = "extent-"

REMEDY: Final = (
    "Remedy: give the slot a new, empty disk (a new incarnation) and let it be copied from the other members"
)
"""For people, behind what is wrong with a directory that a start refuses."""


def extent_name(extent: int) -> str:
    """The name of an extent's column family."""
    return f"{EXTENT_PREFIX}{extent:08d}"


class WriteRefusedError(Exception):
    """The database would have had to wait; nothing was written. Never leaves the storage."""


class FlushFailedError(Exception):
    """What the disk holds is no longer known: trying again could succeed, and say nothing. Never leaves the storage."""


class Rows(Protocol):
    """A column family as it was when this was made."""

    def forward(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from the first at or above `key`.

        Raises:
            CorruptionError: What is read is not what was written.
        """

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key at or below `key` with its value, or None.

        Raises:
            CorruptionError: What is read is not what was written.
        """


class Database(Protocol):
    """Column families of sorted keys. See `engine.Engine` for what each method promises."""

    extents: list[int]

    def family(self, name: str) -> Family:
        """The handle of a column family, for writing."""

    def empty_extent(self, extent: int) -> bool:
        """Take everything out of an extent, durably; for a worker thread. Returns whether it is empty now."""

    def extent_size_bytes(self, extent: int) -> int:
        """What an extent takes, on disk and in memory; an estimate."""

    def write(self, ops: Iterable[Op]) -> int:
        """Apply all or nothing, in memory; returns the sequence number after it. Never beside `flush_wal`.

        Raises:
            WriteRefusedError: Try again soon.
        """

    def flush_wal(self) -> None:
        """Make durable what was written, in the order of the writes; for a worker thread.

        Raises:
            FlushFailedError: Nothing may be promised any more.
        """

    def sequence(self) -> int:
        """The newest sequence number."""

    def cursor(self, name: str, end: bytes | None = None) -> AbstractContextManager[Rows]:
        """The rows of a column family, as it is now, up to `end`."""

    def extent_cursor(self, extent: int, end: bytes | None = None) -> AbstractContextManager[Rows]:
        """The rows of an extent.

        Raises:
            CorruptionError: There is no such extent.
        """

    def get(self, name: str, key: bytes) -> bytes | None:
        """One value, or None.

        Raises:
            CorruptionError: What is read is not what was written.
        """

    def get_from_extent(self, extent: int, key: bytes) -> bytes | None:
        """One value of an extent, or None.

        Raises:
            CorruptionError: There is no such extent, or what is read is not what was written.
        """

    def close(self) -> None:
        """Write everything out and close; for a worker thread."""


class Mark(Protocol):
    """How far the database is known to be durable. See `watermark.Watermark`."""

    def check(self, sequence: int) -> None:
        """Compare with the sequence number that the database came back with.

        Raises:
            CorruptionError: The database ends before what was durable, or the note cannot be read.
        """

    def open(self, sequence: int) -> None:
        """Write the first note, durably."""

    def note(self, sequence: int) -> None:
        """All up to `sequence` is durable."""

    def close(self) -> None:
        """Note no more."""


class Flusher(Protocol):
    """Has flushes done, one after another, without holding up the event loop."""

    def start(self, work: Callable[[int, int], None]) -> None:
        """From now on `work(ticket, sequence)` is what is done."""

    def put(self, ticket: int, sequence: int) -> None:
        """Have one done."""

    async def close(self) -> None:
        """Wait for what is under way; no more comes."""


@dataclass(frozen=True, slots=True)
class Floor:
    """All of it.

    Attributes:
        is_full: Whether the disk's reserve is reached.
        now_ms: Wall clock.
        die: Ends the process at once.
    """

    database: Database
    mark: Mark
    flusher: Flusher
    is_full: Callable[[], bool]
    now_ms: Callable[[], int]
    die: Callable[[str, BaseException | None], NoReturn]
