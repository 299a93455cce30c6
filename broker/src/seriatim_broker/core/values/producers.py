"""The producer table: the last batches of each producer in a partition, with their offsets.

It recognises repeats, finds gaps and travels with each switch. Entries have offsets, so the table can be taken back to
any length that a switch may choose (`cut`). For each producer it keeps the newest `WINDOW_BATCHES` uncommitted entries
and as many committed ones.

A partition may have 100,000 producers, and a switch waits for their table. So a window is packed bytes in memory, on
the disk and on the wire, and a table at rest is one string of bytes. To make one of 100,000 windows takes some
milliseconds, and a broker that only passes it on does not look inside.

Most producers are idle. A window that was idle for `producer_idle_ms` (5 minutes) is cut to its newest entry, and 4,096
such windows become an *idle block*, which never changes. It takes 56 bytes a producer in memory, a window takes 170. A
producer that comes back has a window again, which hides its row. Blocks are made in the order in which producers fell
silent. So the oldest block can be dropped as a whole, after `producer_expiry_ms` (7 days) or if there are too many
producers. Only the log decides what is made and dropped: its batches and their append times. So the members of a
segment make the same blocks, unless they know different commits at that moment, which costs only memory.

A table at rest becomes a live one in slices of rows (`Unread`). To make all windows of 100,000 producers at once would
take 80 ms, in which a new master accepts nothing.

    window  n entries of 24 bytes, oldest first: epoch u32, base sequence u64, messages u32, offset u64
            append time of the newest batch, ms, i64
    rows    count n u32, n producer ids of 16 bytes, n entry counts u8, n windows
    block   n producer ids of 16 bytes, sorted; n rows of 32 bytes: windows of one entry, in the same order
    names   one after another: block id (16 bytes), producers u32, newest append time i64, bytes u16 of the bits that
            follow, bits of the hidden rows (little-endian, the first row is the lowest bit)
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any, Final, NamedTuple, Self

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import make_offset

from .config import BrokerConfig
from .states import NOTHING, State, drop, put

WINDOW_BATCHES: Final = 16
"""How many batches of one producer on one partition may be unacknowledged; the client's window is not larger."""

KEPT_BATCHES: Final = 2 * WINDOW_BATCHES

_ENTRY: Final = struct.Struct("<IQIQ")
_OFFSET: Final = struct.Struct("<Q")  # at the end of an entry
_TIME: Final = struct.Struct("<q")
_COUNT: Final = struct.Struct("<I")

ENTRY_BYTES: Final = _ENTRY.size
TIME_BYTES: Final = _TIME.size
PRODUCER_BYTES: Final = 16

TIME_NOT_KNOWN: Final = bytes(TIME_BYTES)

ROW_BYTES: Final = ENTRY_BYTES + TIME_BYTES
"""A window of one entry."""

_ROW: Final = struct.Struct("<16xQq")


class Entry(NamedTuple):
    """One batch of a producer, and the offset of its first message."""

    epoch: int
    base_sequence: int
    message_count: int
    offset: int

    @property
    def last_sequence(self) -> int:
        """The sequence of the batch's last message."""
        return self.base_sequence + self.message_count - 1


# ---- windows --------------------------------------------------------------------------------------------

Window = bytes
"""The newest batches of one producer, at least one, packed as the module describes."""

Rows = tuple[tuple[bytes, Window], ...]
"""Producers with their windows."""


def pack_window(entries: Iterable[Entry], append_time_ms: int = 0) -> Window:
    """The window of these batches, oldest first."""
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    assert packed, "a window holds at least one batch"
    return packed + _TIME.pack(append_time_ms)


def entries_of(window: Window) -> tuple[Entry, ...]:
    """The batches of a window, oldest first."""
    return tuple(map(Entry._make, _ENTRY.iter_unpack(memoryview(window)[:-TIME_BYTES])))


def newest_of(window: Window) -> Entry:
    """The newest batch of a window."""
    return Entry._make(_ENTRY.unpack_from(window, len(window) - TIME_BYTES - ENTRY_BYTES))


def append_time_of(window: Window) -> int:
    """The append time of the newest batch, in ms."""
    found: int = _TIME.unpack_from(window, len(window) - TIME_BYTES)[0]
    return found


def is_window(data: bytes) -> bool:
    """Whether these bytes have the length of a window."""
    return len(data) % ENTRY_BYTES == TIME_BYTES and ENTRY_BYTES < len(data) <= KEPT_BATCHES * ENTRY_BYTES + TIME_BYTES


def _cut(window: Window, offset: int, append_time_ms: int | None) -> Window | None:
    """The window without the batches at and above an offset, with another append time; None if none is below."""
    kept = tuple(entry for entry in entries_of(window) if entry.offset < offset)
    return pack_window(kept, append_time_of(window) if append_time_ms is None else append_time_ms) if kept else None


# ---- idle blocks ----------------------------------------------------------------------------------------


class IdleBlock(State):
    """Idle producers, each with its newest batch. It never changes; `id` is a digest of its content."""

    __slots__ = ("_keys", "data", "id", "newest_ms")

    def __init__(self, data: bytes) -> None:
        count = len(data) // (PRODUCER_BYTES + ROW_BYTES)
        assert self.is_sound(data), len(data)
        self.data = data
        self.id = hashlib.blake2b(data, digest_size=BLOCK_ID_BYTES).digest()
        self.newest_ms = max(time for _, time in _ROW.iter_unpack(memoryview(data)[PRODUCER_BYTES * count :]))
        keys = array("Q", data[: PRODUCER_BYTES * count])[::2]
        if sys.byteorder == "little":
            keys.byteswap()
        self._keys = keys  # the first half of each id, as a number: ids are random, so it is nearly always unique

    @staticmethod
    def is_sound(data: bytes) -> bool:
        """Whether these bytes have the length of a block."""
        return bool(data) and not len(data) % (PRODUCER_BYTES + ROW_BYTES)

    @staticmethod
    def size_bytes(producer_count: int) -> int:
        """The bytes of a block with so many producers, in a message and on the disk."""
        return producer_count * (PRODUCER_BYTES + ROW_BYTES)

    @classmethod
    def of(cls, rows: Iterable[tuple[bytes, Window]]) -> IdleBlock:
        """The block of these producers, with the newest entry of each window."""
        ordered = sorted(rows)
        ids = [producer for producer, _ in ordered]
        return cls(b"".join((*ids, *(window[-ROW_BYTES:] for _, window in ordered))))

    @property
    def producer_count(self) -> int:
        """The number of producers in it."""
        return len(self._keys)

    def find(self, producer: bytes) -> int:
        """The place of a producer in the block; -1 if it is not in it."""
        keys, key = self._keys, int.from_bytes(producer[:8], "big")
        at = bisect_left(keys, key)
        while at < len(keys) and keys[at] == key:
            if self.data[PRODUCER_BYTES * at : PRODUCER_BYTES * (at + 1)] == producer:
                return at
            at += 1
        return -1

    def window(self, at: int) -> Window:
        """The window of the producer at that place."""
        start = PRODUCER_BYTES * self.producer_count + ROW_BYTES * at
        return self.data[start : start + ROW_BYTES]

    def rows(self, hidden: int = 0) -> Iterator[tuple[bytes, Window]]:
        """All producers with their windows, without those whose bit is set in `hidden`."""
        for at in range(self.producer_count):
            if not hidden >> at & 1:
                yield self.data[PRODUCER_BYTES * at : PRODUCER_BYTES * (at + 1)], self.window(at)

    def copy(self, twins: dict[int, Any] | None = None) -> Self:
        """Itself: it never changes."""
        return self

    def freeze(self) -> Hashable:
        """Its id, which is a digest of its content."""
        return (type(self).__name__, self.id)


BLOCK_ID_BYTES: Final = 16

DICT_BYTES_MAX: Final = 250
"""Bytes of a dict for each key, above which it is copied: 50 to 150 are usual, and a dict that has shrunk has more."""


# ---- tables at rest -------------------------------------------------------------------------------------


class BlockName(NamedTuple):
    """An idle block as a table names it: its id, and what a member needs to know without its content."""

    id: bytes
    producer_count: int
    newest_ms: int
    hidden: int


_NAME: Final = struct.Struct("<16sIqH")


def pack_names(names: Iterable[BlockName]) -> bytes:
    """The names packed as the module describes."""
    found = bytearray()
    for name in names:
        bits = name.hidden.to_bytes((name.hidden.bit_length() + 7) // 8, "little")
        found += _NAME.pack(name.id, name.producer_count, name.newest_ms, len(bits)) + bits
    return bytes(found)


def read_names(packed: bytes) -> tuple[BlockName, ...]:
    """The names that `pack_names` packed.

    Raises:
        ValueError: The bytes are not packed names.
    """
    names: list[BlockName] = []
    at = 0
    while at < len(packed):
        if len(packed) - at < _NAME.size:
            raise ValueError("the name of an idle block is cut")
        block, count, newest_ms, size = _NAME.unpack_from(packed, at)
        at += _NAME.size + size
        hidden = int.from_bytes(packed[at - size : at], "little")
        if at > len(packed) or hidden.bit_length() > count:
            raise ValueError("the name of an idle block hides more rows than the block has producers")
        names.append(BlockName(block, count, newest_ms, hidden))
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Table:
    """A table at rest: `rows` packed as the module describes, empty without producers; idle blocks by name.

    To make a live table of it takes the blocks themselves; see `core.switching.idle_blocks`.
    """

    rows: bytes = b""
    blocks: tuple[BlockName, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Its bytes in a message and on the disk, without the content of its blocks."""
        return len(self.rows) + sum(_NAME.size + block.producer_count // 8 for block in self.blocks)

    @property
    def row_count(self) -> int:
        """The number of its producers that are in no block."""
        count: int = _COUNT.unpack_from(self.rows)[0] if self.rows else 0
        return count

    @property
    def is_sound(self) -> bool:
        """Whether `rows` has the length that its counts demand."""
        rows = self.rows
        if not rows:
            return True
        if len(rows) < _COUNT.size:
            return False
        count = self.row_count
        counts = rows[_COUNT.size + PRODUCER_BYTES * count : _COUNT.size + (PRODUCER_BYTES + 1) * count]
        if not count or len(counts) != count or not 0 < min(counts) <= max(counts) <= KEPT_BATCHES:
            return False
        size = _COUNT.size + (PRODUCER_BYTES + 1 + TIME_BYTES) * count + ENTRY_BYTES * sum(counts)
        return len(rows) == size

    def __iter__(self) -> Iterator[tuple[bytes, Window]]:
        """Each producer that is in no block, with its window, in the table's order."""
        return zip(*_columns(self.rows), strict=True)


NO_TABLE: Final = Table()


def _columns(rows: bytes) -> tuple[list[bytes], list[Window]]:
    if not rows:
        return [], []
    found = Unread(rows)
    found.read_on(found.row_count)
    return list(found.read), list(found.read.values())


class Unread(State):
    """Packed rows of which windows are made in slices. `read` has the windows made so far, in the table's order.

    A single producer is found at any time; among 100,000 it takes 0.2 ms.
    """

    __slots__ = ("_end", "_rows", "_slice_from", "read", "replaced_count", "row_count")

    def __init__(self, rows: bytes) -> None:
        self.row_count: int = _COUNT.unpack_from(rows)[0]
        self.read: dict[bytes, Window] = {}
        self.replaced_count = 0  # how many of its producers have a newer window by now
        self._rows = rows
        self._slice_from = 0
        self._end = _COUNT.size + (PRODUCER_BYTES + 1) * self.row_count  # where the last window that was made ends

    @property
    def left_count(self) -> int:
        """The number of rows of which no windows were made yet."""
        return self.row_count - self._slice_from

    def read_on(self, row_count: int) -> None:
        """Make the windows of so many more rows."""
        rows, begin = self._rows, self._slice_from
        end = min(begin + row_count, self.row_count)
        ids_from, ids_until = _COUNT.size + PRODUCER_BYTES * begin, _COUNT.size + PRODUCER_BYTES * end
        counts_from = _COUNT.size + PRODUCER_BYTES * self.row_count
        ids = [rows[at : at + PRODUCER_BYTES] for at in range(ids_from, ids_until, PRODUCER_BYTES)]
        sizes = (ENTRY_BYTES * entries + TIME_BYTES for entries in rows[counts_from + begin : counts_from + end])
        ends = list(accumulate(sizes, initial=self._end))
        windows = [rows[start:end] for start, end in pairwise(ends)]
        self.read.update(zip(ids, windows, strict=True))
        self._slice_from, self._end = end, ends[-1]

    def find(self, producer: bytes) -> Window | None:
        """The window of a producer; None if the table does not know it."""
        window = self.read.get(producer)
        if window is not None or not self.left_count:
            return window
        # Rule `unread-is-unknown` (I9): a producer whose window was not made yet is known all the same. Without it:
        #   1. P's batch a is sealed in. The new master opens with P in its table, and has not made P's window yet.
        #   2. P resends a. The master does not find P.
        #   3. It stores a again, behind the first a, or refuses P's next batch as a gap.
        rows, begin = self._rows, self._slice_from
        counts_from = _COUNT.size + PRODUCER_BYTES * self.row_count
        at = rows.find(producer, _COUNT.size + PRODUCER_BYTES * begin, counts_from)
        while at >= 0 and (at - _COUNT.size) % PRODUCER_BYTES:  # it matched across the end of one id
            at = rows.find(producer, at + 1, counts_from)
        if at < 0:
            return None
        place = (at - _COUNT.size) // PRODUCER_BYTES
        before = sum(rows[counts_from + begin : counts_from + place])
        start = self._end + ENTRY_BYTES * before + TIME_BYTES * (place - begin)
        return rows[start : start + ENTRY_BYTES * rows[counts_from + place] + TIME_BYTES]


_ENTRIES_OF_BYTES: Final = [size // ENTRY_BYTES for size in range(KEPT_BATCHES * ENTRY_BYTES + TIME_BYTES + 1)]


def pack_table(windows: Mapping[bytes, Window] | Rows) -> Table:
    """The table of these producers, in this order."""
    known = windows if isinstance(windows, Mapping) else dict(windows)
    if not known:
        return NO_TABLE
    found = known.values()
    counts = bytes(map(_ENTRIES_OF_BYTES.__getitem__, map(len, found)))
    return Table(b"".join((_COUNT.pack(len(known)), *known.keys(), counts, *found)))


# ---- the live table -------------------------------------------------------------------------------------


class ProducerTable(State):
    """The live table of an open segment.

    `windows` are in the order of their last batches. `blocks` are in the order in which they were made, oldest first. A
    bit of `hidden` is set for each row of a block whose producer came back: a window or a newer block has its batches.

    Args:
        table: The table at rest from which it is made.
        newer: Windows that replace those of the table at rest.
        blocks: Idle blocks by id, among them all that the table names.
    """

    __slots__ = ("_newer", "_unread", "blocks", "hidden")

    def __init__(self, table: Table = NO_TABLE, newer: Rows = (), blocks: Mapping[bytes, IdleBlock] = NOTHING) -> None:
        self._unread: Unread | None = Unread(table.rows) if table.rows else None
        self._newer: Mapping[bytes, Window] = NOTHING  # all windows, if no row is unread
        # A block that is missing here is a bug of the broker (rule `block-missing`, see `idle_blocks.wait_for`).
        self.blocks: tuple[IdleBlock, ...] = tuple(blocks[name.id] for name in table.blocks)
        self.hidden: Mapping[bytes, int] = NOTHING  # block id -> bits of its hidden rows
        if table.blocks:
            self.hidden = {name.id: name.hidden for name in table.blocks if name.hidden} or NOTHING
        if newer:
            self.windows = {**self.windows, **dict(newer)}
            self._hide(dict(newer))

    def _hide(self, windows: Mapping[bytes, Window]) -> None:
        """Hide the rows of producers that have these windows."""
        for block in self.blocks if windows else ():
            bits = sum(1 << at for at, (producer, _) in enumerate(block.rows()) if producer in windows)
            if bits:
                self.hidden = put(self.hidden, block.id, self.hidden.get(block.id, 0) | bits)

    # ---- rows without a window yet ----

    @property
    def windows(self) -> Mapping[bytes, Window]:
        """All windows. The call makes those that were not made yet."""
        if self._unread is not None:
            self.read_on(self._unread.left_count)
        return self._newer

    @windows.setter
    def windows(self, windows: Mapping[bytes, Window]) -> None:
        self._newer, self._unread = windows, None

    @property
    def unread_count(self) -> int:
        """The number of rows of the table at rest of which no windows were made yet."""
        return self._unread.left_count if self._unread is not None else 0

    @property
    def window_count(self) -> int:
        """The number of producers that have a window, or a row of which no window was made yet."""
        unread = self._unread
        return len(self._newer) + (unread.row_count - unread.replaced_count if unread is not None else 0)

    def read_on(self, row_count: int) -> None:
        """Make windows of so many more rows, if there are any left."""
        if self._unread is None:
            return
        self._unread.read_on(row_count)
        if not self._unread.left_count:
            windows = self._unread.read
            for producer in self._newer:
                windows.pop(producer, None)  # its window goes behind those of the producers that sent before it
            windows.update(self._newer)
            self.windows = windows or NOTHING

    def freeze(self) -> Hashable:
        """The same value, however many windows were made already."""
        assert self.windows is not None
        return super().freeze()

    # ---- questions ----

    @property
    def size_bytes(self) -> int:
        """About its bytes at rest, without the content of its blocks."""
        return self.window_count * (PRODUCER_BYTES + 1 + ROW_BYTES) + sum(
            _NAME.size + block.producer_count // 8 for block in self.blocks
        )

    @property
    def producer_count(self) -> int:
        """The number of producers that it knows."""
        idle = sum(block.producer_count for block in self.blocks)
        return self.window_count + idle - sum(bits.bit_count() for bits in self.hidden.values())

    def window(self, producer: bytes) -> Window | None:
        """The window of a producer, or its row in an idle block; None if the table does not know it."""
        # Rule `row-hides-window` (I9): the window of a producer that came back comes before its row in a block.
        # Without it:
        #   1. P was idle and is in a block, with its batch of sequence 10. It comes back and sends 11 and 12.
        #   2. The table finds P's row, and believes that 10 was its last sequence.
        #   3. It refuses 13 as a gap, and stores a resend of 11 again.
        window = self._newer.get(producer)
        if window is None and self._unread is not None:
            window = self._unread.find(producer)
        if window is None and self.blocks:
            found = self._idle_row(producer)
            return found[0].window(found[1]) if found is not None else None
        return window

    def _idle_row(self, producer: bytes) -> tuple[IdleBlock, int] | None:
        """The block with a producer's newest row, and its place there; None if the row is hidden or there is none."""
        for block in reversed(self.blocks):
            at = block.find(producer)
            if at >= 0:
                return None if self.hidden.get(block.id, 0) >> at & 1 else (block, at)
        return None

    def last(self, producer: bytes) -> Entry | None:
        """The newest batch of a producer; None if the table does not know the producer."""
        window = self.window(producer)
        return newest_of(window) if window is not None else None

    def entries(self, producer: bytes) -> tuple[Entry, ...]:
        """The batches of a producer that are known here, oldest first."""
        window = self.window(producer)
        return entries_of(window) if window is not None else ()

    def has_from(self, offset: int, producer: bytes, count: int) -> bool:
        """Whether at least `count` batches of a producer, which is 1 or more, are at or above an offset.

        Offsets of a window ascend, so this reads only one entry.
        """
        window = self.window(producer)
        if window is None or len(window) < count * ENTRY_BYTES + TIME_BYTES:
            return False
        found: int = _OFFSET.unpack_from(window, len(window) - TIME_BYTES - (count - 1) * ENTRY_BYTES - _OFFSET.size)[0]
        return found >= offset

    def find(self, header: BatchHeader) -> Entry | None:
        """The entry of a batch that was stored before; None if it is older than the window or was never stored."""
        for entry in reversed(self.entries(header.producer)):
            if entry.epoch == header.producer_epoch and entry.base_sequence == header.base_sequence:
                return entry if entry.message_count == header.message_count else None
        return None

    def covers(self, header: BatchHeader) -> bool:
        """Whether a batch is at or below the table. Behind an unsettled segment, readers skip such a batch."""
        newest = self.last(header.producer)
        if newest is None:
            return False
        return (header.producer_epoch, header.last_sequence) <= (newest.epoch, newest.last_sequence)

    def items(self) -> Iterator[tuple[bytes, Window]]:
        """Each producer with its window, the one that was idle for longest first."""
        for block in self.blocks:
            yield from block.rows(self.hidden.get(block.id, 0))
        yield from self.windows.items()

    def at_rest(self) -> Table:
        """The whole table at rest, with its blocks by name."""
        return replace(pack_table(self.windows), blocks=self._names()) if self.blocks else pack_table(self.windows)

    def _names(self) -> tuple[BlockName, ...]:
        return tuple(
            BlockName(block.id, block.producer_count, block.newest_ms, self.hidden.get(block.id, 0))
            for block in self.blocks
        )

    def spelled_out(self, size_bytes_max: int, evict_ms: int) -> Table | None:
        """The whole table with the rows of its blocks in it; None if it is larger than `size_bytes_max`.

        To make it fit, blocks that were idle for `evict_ms` are left out, the oldest first, as if there were too many
        producers. This table itself does not change.
        """
        blocks = self.blocks
        newest_ms = max(map(append_time_of, self.windows.values()), default=0)
        newest_ms = max((newest_ms, *(block.newest_ms for block in blocks)))
        size_bytes = _COUNT.size + sum(map(len, self.windows.values())) + len(self.windows) * (PRODUCER_BYTES + 1)
        size_bytes += sum(self._spelled_out_bytes(block) for block in blocks)
        while size_bytes > size_bytes_max and blocks and newest_ms - blocks[0].newest_ms >= evict_ms:
            size_bytes -= self._spelled_out_bytes(blocks[0])
            blocks = blocks[1:]
        if size_bytes > size_bytes_max:
            return None
        if not blocks:
            return pack_table(self.windows)
        rows = {producer: row for block in blocks for producer, row in block.rows(self.hidden.get(block.id, 0))}
        return pack_table({**rows, **self.windows})

    def _spelled_out_bytes(self, block: IdleBlock) -> int:
        row_count = block.producer_count - self.hidden.get(block.id, 0).bit_count()
        return row_count * (PRODUCER_BYTES + 1 + ROW_BYTES)

    # ---- growing ----

    def record(self, header: BatchHeader) -> Window:
        """Add a stored batch; returns the producer's new window."""
        producer = header.producer
        entry = _ENTRY.pack(
            header.producer_epoch,
            header.base_sequence,
            header.message_count,
            make_offset(header.segment, header.base_index),
        )
        known = self._newer.get(producer)
        if known is not None:
            self._newer = drop(self._newer, producer)  # so that its window goes behind all others
        elif self._unread is not None and (known := self._unread.find(producer)) is not None:
            self._unread.replaced_count += 1
        elif self.blocks:
            known = self._come_back(producer)
        known = known or TIME_NOT_KNOWN
        kept = known[max(0, len(known) - TIME_BYTES - (KEPT_BATCHES - 1) * ENTRY_BYTES) : -TIME_BYTES]
        window = b"".join((kept, entry, _TIME.pack(header.append_time_ms)))
        self._newer = put(self._newer, producer, window)
        return window

    def touch(self, producer: bytes, append_time_ms: int) -> None:
        """Make a producer count as one that sent at that time, in memory only; an unknown one stays unknown."""
        # Rule `entry-stays` (I9): a master calls this for a writer while it has a decided publication. Without it:
        #   1. A publication is decided and carried out. Its request to the master is delayed.
        #   2. The writer sends nothing for `producer_expiry_ms`, and the table forgets it.
        #   3. The request arrives. The master does not know the writer, and stores the rows again.
        known = self._newer.get(producer)
        if known is not None:
            self._newer = drop(self._newer, producer)
        elif self._unread is not None and (known := self._unread.find(producer)) is not None:
            self._unread.replaced_count += 1
        elif self.blocks:
            known = self._come_back(producer)
        if known is not None:
            self._newer = put(self._newer, producer, known[:-TIME_BYTES] + _TIME.pack(append_time_ms))

    def _come_back(self, producer: bytes) -> Window | None:
        """A producer sends again: hide its row in its block, and return the row as its window."""
        found = self._idle_row(producer)
        if found is None:
            return None
        block, at = found
        self.hidden = put(self.hidden, block.id, self.hidden.get(block.id, 0) | 1 << at)
        return block.window(at)

    def take_up(self, table: Table) -> None:
        """Add the producers that this table does not know; the windows that it has are newer and stay."""
        assert not self.blocks, "only the table of an open segment has blocks, and it is complete"
        if table.rows:
            self.windows = {**dict(table), **self.windows}

    # ---- taking batches back ----

    def cut(
        self, segment_no: int, length: int, producers: Iterable[bytes], append_time_ms: int | None = None
    ) -> dict[bytes, Window | None]:
        """The windows of these producers without the batches of a segment at and above a length.

        None for a producer whose window has no other batches. Producers in blocks are left out, because all their
        batches are committed.

        Args:
            segment_no: The segment.
            length: Its length in messages.
            producers: All producers with batches above the length.
            append_time_ms: The append time for these windows; None if they keep that of the batches that are cut.
        """
        limit = make_offset(segment_no, length)
        known = self.windows
        return {producer: _cut(known[producer], limit, append_time_ms) for producer in producers if producer in known}

    def set_back(self, changes: Mapping[bytes, Window | None], from_ms: int, to_ms: int) -> dict[bytes, Window]:
        """The windows that are not among these changes, as they are without a leap of append time.

        After a leap back, all windows have followed. So all move by the same time, so that the newest of them is of
        `to_ms`. After a leap forward, those that were idle have not followed. So those that are later get `to_ms`.

        Args:
            changes: The windows that `cut` returned.
            from_ms: Append time behind the leap.
            to_ms: Append time before the leap.
        """
        times = {producer: append_time_of(window) for producer, window in self.windows.items()}
        times = {producer: time_ms for producer, time_ms in times.items() if time_ms and producer not in changes}
        step_ms = max(0, to_ms - max(times.values(), default=to_ms)) if from_ms < to_ms else 0
        return {
            producer: self.windows[producer][:-TIME_BYTES] + _TIME.pack(min(time_ms + step_ms, to_ms))
            for producer, time_ms in times.items()
        }

    def change(self, changes: Mapping[bytes, Window | None]) -> None:
        """Apply the windows that `cut` returned."""
        for producer, window in changes.items():
            if window is None:
                self.windows = drop(self.windows, producer)
            else:
                self.windows = put(self.windows, producer, window)

    def without(self, changes: Mapping[bytes, Window | None]) -> Table:
        """The table at rest with the windows that `cut` returned; this table itself does not change."""
        if not changes:
            return self.at_rest()
        windows = dict(self.windows)
        for producer, window in changes.items():
            if window is None:
                del windows[producer]
            else:
                windows[producer] = window
        return replace(pack_table(windows), blocks=self._names())

    # ---- producers that are idle ----

    def fold(self, config: BrokerConfig, now_ms: int, committed: int) -> None:
        """Make blocks of all idle windows, after a start, because the disk has them as windows."""
        if len(self.windows) >= config.idle_block_rows:
            self.windows = dict(sorted(self.windows.items(), key=lambda item: append_time_of(item[1])))
            while len(self.windows) >= config.idle_block_rows and self._make_block(config, now_ms, committed):
                pass

    def take_back(self, on_disk: Iterable[IdleBlock], committed: int) -> None:
        """Replace windows by the blocks on the disk that have the same rows, after a start.

        So the table names the same blocks as before the restart. The newest blocks come first, and an older row of the
        same producer is hidden. A block is left out if most of its rows differ from the windows, or if it contradicts
        an older block.

        Args:
            on_disk: Blocks, in any order.
            committed: The offset of the commit that this member knows. A batch above it may be cut, so its producer
                keeps its window.
        """
        known = {block.id for block in self.blocks}
        differ: set[bytes] = set()
        taken: list[IdleBlock] = []
        for block in sorted(on_disk, key=lambda block: (block.newest_ms, block.id), reverse=True):
            rows = {} if block.id in known else dict(block.rows())
            found = {producer: self.window(producer) or b"" for producer in rows}
            same = [
                producer
                for producer, row in rows.items()
                if found[producer].endswith(row) and producer not in differ and newest_of(row).offset < committed
            ]
            others = rows.keys() - set(same)
            contradicts = any(found[producer] and producer not in self.windows for producer in others)
            if contradicts or len(others) >= len(same):
                continue
            taken.append(block)
            for producer in same:
                if producer in self.windows:
                    self.windows = drop(self.windows, producer)
                else:
                    self._come_back(producer)  # hide its row in an older block
            if others:
                differ |= others
                bits = sum(1 << at for at, producer in enumerate(rows) if producer in others)
                self.hidden = put(self.hidden, block.id, bits)
        self.blocks = (*self.blocks, *reversed(taken))

    def tidy(
        self, config: BrokerConfig, before_ms: int, now_ms: int, committed: int, *, may_forget: bool = True
    ) -> tuple[bytes, ...]:
        """Keep less of idle producers and forget expired ones. Called with each batch; acts once in each `tidy_ms`.

        Args:
            config: The limits.
            before_ms: Append time of the batch before.
            now_ms: Append time of this batch.
            committed: The offset of the commit that this member knows. A batch above it may be cut, so its producer is
                not idle yet.
            may_forget: False if a batch with which append time leapt may be cut. Then windows follow the next leap, and
                the table keeps all.

        Returns:
            The producers that have no window any more.
        """
        if before_ms // config.tidy_ms == now_ms // config.tidy_ms:
            return ()
        leapt = leaps(config, before_ms, now_ms)
        if self._unread is not None and not leapt:
            return ()  # its windows are being made, within a fraction of a second; the next call tidies
        if leapt:
            self._bridge(config, before_ms, now_ms)
        if not may_forget:
            return ()
        gone: tuple[bytes, ...] = ()
        if len(self.windows) >= config.idle_block_rows:
            gone = self._make_block(config, now_ms, committed)
        self._drop_blocks(config, now_ms)
        if before_ms // config.producer_idle_ms != now_ms // config.producer_idle_ms:
            gone = (*gone, *self._trim(config, now_ms, committed))
        return gone

    def _bridge(self, config: BrokerConfig, before_ms: int, now_ms: int) -> None:
        """Append time leapt by more than `producer_idle_ms`, or back: count the leap as half of that for all producers.

        Either no producer sent for that time, or a clock was set. Without it (I9):
          1. A master's clock is years ahead for a moment.
          2. All its producers seem to have been idle for years, and are forgotten.
          3. One of them resends its first batch, whose reply was lost. It is stored twice.
        If a leap counted as nothing, no producer would become idle in a partition that gets one batch an hour.
        """
        future = [block for block in self.blocks if block.newest_ms > now_ms]
        for block in future:  # the clock was set back, so their append times cannot be true
            self.windows = {**dict(block.rows(self.hidden.get(block.id, 0))), **self.windows}
            self._drop_block(block)
        changes: dict[bytes, Window | None] = {}
        for producer, window in self.windows.items():
            age_ms = before_ms - append_time_of(window)
            if age_ms < config.producer_idle_ms or append_time_of(window) > now_ms:
                time_ms = min(now_ms, now_ms - age_ms - config.producer_idle_ms // 2)
                changes[producer] = window[:-TIME_BYTES] + _TIME.pack(time_ms)
        self.change(changes)

    def _drop_blocks(self, config: BrokerConfig, now_ms: int) -> None:
        """Drop the expired blocks; if there are too many producers, also the oldest ones that may be evicted."""
        # Rule `forgotten-early` (I9): only after `producer_expiry_ms` (7 days), or after `producer_evict_ms` (1 hour)
        # if the partition knows `producer_count_max` producers. Without it:
        #   1. P sends its first batch a, and gets no answer. It is cut off for 6 minutes.
        #   2. The table forgets P, because P was idle for 5 minutes.
        #   3. P resends a as its first batch, and a is stored twice.
        while self.blocks:
            idle_ms = now_ms - self.blocks[0].newest_ms
            too_many = self.producer_count >= config.producer_count_max
            if idle_ms < (config.producer_evict_ms if too_many else config.producer_expiry_ms):
                return
            self._drop_block(self.blocks[0])

    def _drop_block(self, block: IdleBlock) -> None:
        self.hidden = drop(self.hidden, block.id)
        self.blocks = tuple(other for other in self.blocks if other is not block)

    def _make_block(self, config: BrokerConfig, now_ms: int, committed: int) -> tuple[bytes, ...]:
        """Make a block of the windows that were idle for longest, if all of them are idle and committed.

        If at least half of the producers of an older block came back, its other rows go into the new block. So at least
        half of all rows are in use.
        """
        oldest = list(islice(self.windows.items(), config.idle_block_rows))
        if not all(_is_idle(window, now_ms - config.producer_idle_ms, committed) for _, window in oldest):
            return ()
        gone = tuple(producer for producer, _ in oldest)
        for producer in gone:
            self.windows = drop(self.windows, producer)
        for block in self.blocks:
            hidden = self.hidden.get(block.id, 0)
            if 2 * hidden.bit_count() >= block.producer_count:
                expired_ms = now_ms - config.producer_expiry_ms
                rest = [(producer, row) for producer, row in block.rows(hidden) if append_time_of(row) > expired_ms]
                self._drop_block(block)
                oldest = [*rest, *oldest]
                break
        self.blocks = (*self.blocks, IdleBlock.of(oldest))
        if self.windows and sys.getsizeof(self.windows) > DICT_BYTES_MAX * len(self.windows):
            self.windows = dict(self.windows)  # a dict does not give back the memory of deleted items
        return gone

    def _trim(self, config: BrokerConfig, now_ms: int, committed: int) -> tuple[bytes, ...]:
        """Idle windows that are too few for a block: drop expired ones, cut the others to their newest entry."""
        expired_ms = now_ms - config.producer_expiry_ms
        changes: dict[bytes, Window | None] = {}
        for producer, window in islice(self.windows.items(), config.idle_block_rows):
            if not _is_idle(window, now_ms - config.producer_idle_ms, committed):
                break
            if append_time_of(window) <= expired_ms:
                changes[producer] = None
            elif len(window) > ROW_BYTES:
                changes[producer] = window[-ROW_BYTES:]
        self.change(changes)
        return tuple(producer for producer, window in changes.items() if window is None)


def leaps(config: BrokerConfig, before_ms: int, now_ms: int) -> bool:
    """Whether append time goes back, or forward by more than `producer_idle_ms`: a clock may have been set."""
    return not 0 <= now_ms - before_ms <= config.producer_idle_ms


def _is_idle(window: Window, idle_since_ms: int, committed: int) -> bool:
    offset, time_ms = _ROW.unpack_from(window, len(window) - ROW_BYTES)
    return bool(time_ms <= idle_since_ms and offset < committed)


def merge(tables: Iterable[ProducerTable]) -> ProducerTable:
    """One table of several, with the window of the highest producer epoch, then sequence, for each producer.

    Used behind unsettled segments, where tables do not continue one another.
    """
    best: dict[bytes, Window] = {}
    for table in tables:
        for producer, window in table.items():
            known = best.get(producer)
            if known is None or _rank(window) > _rank(known):
                best[producer] = window
    merged = ProducerTable()
    merged.windows = best or NOTHING
    return merged


def _rank(window: Window) -> tuple[int, int]:
    newest = newest_of(window)
    return newest.epoch, newest.last_sequence
