"""A database in memory. In simulations the storage adapter uses it in place of RocksDB (`adapters.rocks.floor`).

It does what the adapter relies on. A write is applied as a whole or not at all, and is visible at once. A flush makes
all writes before it durable. A crash keeps any prefix of the writes that were not durable. A `MemoryDatabase` outlives
the process. A `MemoryEngine` is one opening of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from random import Random
from types import TracebackType
from typing import Any

from seriatim_api.errors import CorruptionError

from seriatim_broker.adapters.rocks.floor import (
    CURSOR,
    DELAY,
    DELETE,
    INDEX,
    META,
    PUT,
    FlushFailedError,
    Op,
    extent_name,
)

_Families = dict[str, dict[bytes, bytes]]


class MemoryDatabase:
    """The rows of all column families: those that are durable, and those that a running process sees.

    Args:
        extent_count: The number of extents.

    Attributes:
        mark: The sequence number that the owner noted as durable. A note is durable at once.
        fails_next_flush: Whether the next flush fails. The writes that it should have flushed are then never flushed,
            as with a kernel, which drops pages that it could not write.
        visible: The rows that a running process sees.
        sequence: The newest sequence number.
    """

    def __init__(self, extent_count: int) -> None:
        self.extent_count = extent_count
        self.mark = 0
        self.fails_next_flush = False
        self._durable: _Families = self._empty()
        self._durable_sequence = 0
        self._pending: list[tuple[int, list[Op]]] = []
        self.visible: _Families = self._empty()
        self.sequence = 0

    def _empty(self) -> _Families:
        names = [META, INDEX, CURSOR, DELAY, *(extent_name(number) for number in range(1, self.extent_count + 1))]
        return {name: {} for name in names}

    @property
    def pending_count(self) -> int:
        """The number of writes that are not durable."""
        return len(self._pending)

    def write(self, ops: list[Op]) -> int:
        """Apply operations, which are visible at once. Returns the sequence number after them."""
        _apply(self.visible, ops)
        self.sequence += len(ops)
        self._pending.append((self.sequence, ops))
        return self.sequence

    def flush(self, count: int | None = None) -> None:
        """Make the first `count` writes that are not durable yet durable; None: all of them."""
        taken = self._pending[:count]
        del self._pending[: len(taken)]
        for sequence, ops in taken:
            _apply(self._durable, ops)
            self._durable_sequence = sequence

    def drop_pending(self) -> None:
        """Forget the writes that wait for a flush: they stay visible, but never become durable."""
        self._pending.clear()

    def empty(self, extent: int) -> None:
        """Remove all rows of an extent, durably at once."""
        self.visible[extent_name(extent)] = {}
        self._durable[extent_name(extent)] = {}

    def crash(self, kept_count: int) -> None:
        """End the process or its machine. Only the first `kept_count` of the writes that are not durable are kept."""
        self.flush(kept_count)
        self._pending.clear()
        self.visible = _copy(self._durable)
        self.sequence = self._durable_sequence

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.__init__(self.extent_count)  # type: ignore[misc]

    def twin(self) -> MemoryDatabase:
        """A copy of the durable content, as in a backup."""
        twin = MemoryDatabase(self.extent_count)
        twin._durable, twin.visible = _copy(self._durable), _copy(self._durable)
        twin._durable_sequence = twin.sequence = self._durable_sequence
        twin.mark = min(self.mark, self._durable_sequence)
        return twin

    def flip(self, key: bytes, chance: Random) -> bool:
        """Change one bit of the value under a key, in each extent that has it. Returns whether one has it."""
        at: int | None = None
        for families in (self.visible, self._durable):
            for name in (extent_name(number) for number in range(1, self.extent_count + 1)):
                value = families[name].get(key)
                if value is not None:
                    if at is None:
                        at = chance.randrange(len(value))
                    families[name][key] = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        return at is not None


def _copy(families: _Families) -> _Families:
    return {name: dict(rows) for name, rows in families.items()}


def _apply(families: _Families, ops: Iterable[Op]) -> None:
    for kind, family, key, value in ops:
        rows = families[family]
        if kind == PUT:
            rows[key] = value if type(value) is bytes else b"".join(value)
        elif kind == DELETE:
            rows.pop(key, None)
        else:
            for gone in [other for other in rows if key <= other < value]:
                del rows[gone]


class MemoryEngine:
    """A `Database` over a `MemoryDatabase`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.extents = list(range(1, database.extent_count + 1))
        self._database = database

    def let_go(self) -> None:
        """Cut off the owner: whatever it still does after its end, it does to a copy of the database."""
        self._database = self._database.twin()

    def family(self, name: str) -> Any:
        """The handle of a column family, which is its name."""
        return name

    def empty_extent(self, extent: int) -> bool:
        """Remove all rows of an extent."""
        self._database.empty(extent)
        return True

    def extent_size_bytes(self, extent: int) -> int:
        """The bytes of an extent's values."""
        return sum(map(len, self._database.visible[extent_name(extent)].values()))

    def write(self, ops: Iterable[Op]) -> int:
        """Apply operations, which are visible at once. Returns the sequence number after them."""
        return self._database.write(list(ops))

    def flush_wal(self) -> None:
        """Make all writes durable.

        Raises:
            FlushFailedError: `fails_next_flush` was set.
        """
        if self._database.fails_next_flush:
            self._database.fails_next_flush = False
            self._database.drop_pending()
            raise FlushFailedError("EIO, as asked")
        self._database.flush()

    def sequence(self) -> int:
        """The newest sequence number."""
        return self._database.sequence

    def cursor(self, name: str, end: bytes | None = None) -> MemoryRows:
        """The rows of a column family below `end`, as they are now."""
        return MemoryRows(self._database.visible[name], end)

    def extent_cursor(self, extent: int, end: bytes | None = None) -> MemoryRows:
        """The rows of an extent below `end`, as they are now."""
        if extent not in self.extents:
            raise CorruptionError(f"extent {extent} is missing, but the index names it", extent=extent)
        return self.cursor(extent_name(extent), end)

    def get(self, name: str, key: bytes) -> bytes | None:
        """One value, or None."""
        return self._database.visible[name].get(key)

    def get_from_extent(self, extent: int, key: bytes) -> bytes | None:
        """One value of an extent, or None."""
        if extent not in self.extents:
            raise CorruptionError(f"extent {extent} is missing, but the index names it", extent=extent)
        return self.get(extent_name(extent), key)

    def close(self) -> None:
        """Make all writes durable."""
        self._database.flush()


class MemoryRows:
    """A snapshot of a column family."""

    def __init__(self, rows: dict[bytes, bytes], end: bytes | None) -> None:
        self._rows = dict(rows)
        self._keys = sorted(self._rows)
        self._end = end

    def __enter__(self) -> MemoryRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def forward(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, ascending, from the first key at or above `key`."""
        for at in range(bisect_left(self._keys, key), len(self._keys)):
            found = self._keys[at]
            if self._end is not None and found >= self._end:
                return
            yield found, self._rows[found]

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key at or below `key` with its value, or None."""
        at = bisect_right(self._keys, key)
        return (self._keys[at - 1], self._rows[self._keys[at - 1]]) if at else None


class MemoryMark:
    """A `Mark` on a `MemoryDatabase`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def check(self, sequence: int) -> None:
        """Compare the note with the newest sequence number of the database.

        Raises:
            CorruptionError: The database ends before writes that were durable.
        """
        if sequence < self._database.mark:
            raise CorruptionError(f"the log ends at {sequence}, but {self._database.mark} was durable")

    def open(self, sequence: int) -> None:
        """Write the first note."""
        self.note(sequence)

    def note(self, sequence: int) -> None:
        """Note that all writes up to `sequence` are durable."""
        self._database.mark = sequence

    def close(self) -> None:
        """Do nothing, because there is no file to close."""
