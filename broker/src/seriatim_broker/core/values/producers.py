"""The producer table: the last batches of each producer in a partition, with their offsets.

It recognises repeats, finds gaps and travels with each switch. What it knows is a function of the committed log: the
log is read batch by batch, a batch makes its producer the newest one, and if there are more producers than the limit,
the one whose last batch lies furthest back goes. No clock has a part in it (docs/adr/0086).

The table has two layers. The committed part (`Room`) holds the newest `WINDOW_BATCHES` batches of each producer. The
batches above the commit (`_pending`) are beside it. `fold` moves them over when the commit moves, and only then a
producer may go, so a cut never has to bring one back. Questions are answered as if everything were committed: a
producer that will go when a batch above the commit is committed is not known any more (`_gone`).

Writers of publications, forwarders of dead letters and of delayed messages, and replays have a room of their own each,
with a quarter of the limit, and exclusive producers one with a 64th. A producer pushes out only producers of its room.
The end of its id says which room that is. Its first batch says how many of those that would go first stay (`spared`),
because they were heard lately.

A partition may have 100,000 producers, and a switch waits for their table. So a window is packed bytes in memory, on
the disk and on the wire, and a table at rest is one string of bytes. Most producers fell silent long ago. If many have
windows, the 4,096 that lie furthest back become a *block*, which never changes and travels before a switch. A producer
that comes back has a window again, which hides its row. A block has complete windows, so it changes nothing of what the
table knows.

    window  n entries of 24 bytes, oldest first: epoch u32, base sequence u64, messages u32, offset u64
            append time of the newest batch, ms, i64
    rows    count n u32, n producer ids of 16 bytes, n entry counts u8, n windows
    block   rows, sorted by producer id
    names   one after another: block id (16 bytes), producers u32, bytes of the block u64, bytes u16 of the bits that
            follow, bits of the hidden rows (little-endian, the first row is the lowest bit)
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, pairwise
from typing import Any, Final, NamedTuple, Self

from seriatim_api.batch import SPARED_ALL, BatchHeader
from seriatim_api.dead_letters import FORWARDER_MARK, REPLAY_MARK
from seriatim_api.delayed import FIRE_MARK
from seriatim_api.exclusive import EXCLUSIVE_MARK
from seriatim_api.ids import make_offset
from seriatim_api.publications import PRODUCER_MARK

from .segment import PRODUCERS_MAX
from .states import NOTHING, State, add, drop, put

WINDOW_BATCHES: Final = 16
"""How many batches of one producer on one partition may be unacknowledged; the client's window is not larger."""

_ENTRY: Final = struct.Struct("<IQIQ")
_OFFSET: Final = struct.Struct("<Q")  # at the end of an entry
_TIME: Final = struct.Struct("<q")
_COUNT: Final = struct.Struct("<I")

ENTRY_BYTES: Final = _ENTRY.size
TIME_BYTES: Final = _TIME.size
PRODUCER_BYTES: Final = 16

ROW_BYTES: Final = ENTRY_BYTES + TIME_BYTES
"""A window of one entry."""

_NEWEST: Final = struct.Struct("<Qq")  # at the end of a window: offset and append time of the newest batch


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

Changes = tuple[tuple[bytes, Window | None], ...]
"""Producers with their new windows; None for those that were forgotten."""


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
    return (
        len(data) % ENTRY_BYTES == TIME_BYTES and ENTRY_BYTES < len(data) <= WINDOW_BATCHES * ENTRY_BYTES + TIME_BYTES
    )


def _offset_of(window: Window) -> int:
    """The offset of the newest batch."""
    found: int = _NEWEST.unpack_from(window, len(window) - _NEWEST.size)[0]
    return found


# ---- rooms ----------------------------------------------------------------------------------------------

ROOMS: Final = (0, 1, 2, 3, 4)
ORDINARY, WRITERS, FORWARDERS, REPLAYS, OWNERS = ROOMS

_ROOM_OF: Final = {
    PRODUCER_MARK: WRITERS,
    **dict.fromkeys((FORWARDER_MARK, FIRE_MARK), FORWARDERS),
    REPLAY_MARK: REPLAYS,
    EXCLUSIVE_MARK: OWNERS,
}

SHARES: Final = {ORDINARY: 1, WRITERS: 4, FORWARDERS: 4, REPLAYS: 4, OWNERS: 64}
"""A room has place for the limit divided by this."""

MARK_BYTES: Final = 8

FORGOTTEN_MARK: Final = b"/forgot/"
"""The end of the id under which a disk keeps how far a room has forgotten. Brokers refuse a client's batch with it."""


def room_of(producer: bytes) -> int:
    """The number of the room to which a producer belongs."""
    return _ROOM_OF.get(producer[-MARK_BYTES:], ORDINARY)


def _forgotten_id(room: int) -> bytes:
    return bytes([room]) + bytes(PRODUCER_BYTES - 1 - len(FORGOTTEN_MARK)) + FORGOTTEN_MARK


# ---- blocks ---------------------------------------------------------------------------------------------

BLOCK_ID_BYTES: Final = 16

UNBLOCKED_SHARE: Final = 4
"""A block is made when four times as many producers have windows as it has rows. So producers that send again and again
stay out of blocks, unless there are more of them than this."""

_ENTRIES_OF_BYTES: Final = [size // ENTRY_BYTES for size in range(WINDOW_BATCHES * ENTRY_BYTES + TIME_BYTES + 1)]


def _pack_rows(windows: Mapping[bytes, Window]) -> bytes:
    found = windows.values()
    counts = bytes(map(_ENTRIES_OF_BYTES.__getitem__, map(len, found)))
    return b"".join((_COUNT.pack(len(windows)), *windows.keys(), counts, *found))


def _starts(rows: bytes, count: int) -> Iterator[int]:
    """Where each window begins, and the end of the last one."""
    counts_from = _COUNT.size + PRODUCER_BYTES * count
    sizes = (ENTRY_BYTES * entries + TIME_BYTES for entries in rows[counts_from : counts_from + count])
    return accumulate(sizes, initial=counts_from + count)


class IdleBlock(State):
    """Producers that fell silent, with their windows. It never changes; `id` is a digest of its content."""

    __slots__ = ("_ends", "_keys", "_order", "data", "id")

    def __init__(self, data: bytes) -> None:
        assert self.is_sound(data), len(data)
        self.data = data
        self.id = hashlib.blake2b(data, digest_size=BLOCK_ID_BYTES).digest()
        count: int = _COUNT.unpack_from(data)[0]
        keys = array("Q", data[_COUNT.size : _COUNT.size + PRODUCER_BYTES * count])[::2]
        if sys.byteorder == "little":
            keys.byteswap()
        self._keys = keys  # the first half of each id, as a number: ids are random, so it is nearly always unique
        self._ends = array("I", _starts(data, count))
        self._order: tuple[int, ...] = ()

    @staticmethod
    def is_sound(data: bytes) -> bool:
        """Whether these bytes have the length of a block."""
        return bool(data) and Table(data).is_sound

    @classmethod
    def of(cls, rows: Iterable[tuple[bytes, Window]]) -> IdleBlock:
        """The block of these producers."""
        return cls(_pack_rows(dict(sorted(rows))))

    @property
    def producer_count(self) -> int:
        """The number of producers in it."""
        return len(self._keys)

    @property
    def order(self) -> tuple[int, ...]:
        """The places of its producers, the one whose last batch lies furthest back first."""
        if not self._order:
            self._order = tuple(sorted(range(self.producer_count), key=lambda at: _offset_of(self.window(at))))
        return self._order

    def find(self, producer: bytes) -> int:
        """The place of a producer in the block; -1 if it is not in it."""
        keys, key = self._keys, int.from_bytes(producer[:8], "big")
        at = bisect_left(keys, key)
        while at < len(keys) and keys[at] == key:
            if self.producer(at) == producer:
                return at
            at += 1
        return -1

    def producer(self, at: int) -> bytes:
        """The id of the producer at that place."""
        return self.data[_COUNT.size + PRODUCER_BYTES * at : _COUNT.size + PRODUCER_BYTES * (at + 1)]

    def window(self, at: int) -> Window:
        """The window of the producer at that place."""
        return self.data[self._ends[at] : self._ends[at + 1]]

    def rows(self, hidden: int = 0) -> Iterator[tuple[bytes, Window]]:
        """All producers with their windows, in their order, without those whose bit is set in `hidden`."""
        for at in self.order:
            if not hidden >> at & 1:
                yield self.producer(at), self.window(at)

    def copy(self, twins: dict[int, Any] | None = None) -> Self:
        """Itself: it never changes."""
        return self

    def freeze(self) -> Hashable:
        """Its id, which is a digest of its content."""
        return (type(self).__name__, self.id)


# ---- tables at rest -------------------------------------------------------------------------------------


class BlockName(NamedTuple):
    """A block as a table names it: its id, and what a member needs to know without its content."""

    id: bytes
    producer_count: int
    size_bytes: int
    hidden: int


_NAME: Final = struct.Struct("<16sIQH")


def pack_names(names: Iterable[BlockName]) -> bytes:
    """The names packed as the module describes."""
    found = bytearray()
    for name in names:
        bits = name.hidden.to_bytes((name.hidden.bit_length() + 7) // 8, "little")
        found += _NAME.pack(name.id, name.producer_count, name.size_bytes, len(bits)) + bits
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
        block, count, size_bytes, size = _NAME.unpack_from(packed, at)
        at += _NAME.size + size
        hidden = int.from_bytes(packed[at - size : at], "little")
        if at > len(packed) or hidden.bit_length() > count:
            raise ValueError("the name of an idle block hides more rows than the block has producers")
        names.append(BlockName(block, count, size_bytes, hidden))
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Table:
    """A table at rest: `rows` packed as the module describes, empty without producers; blocks by name.

    The rows of a room are in the order of the last batches. To make a live table of it takes the blocks themselves; see
    `core.switching.idle_blocks`.
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
        if not count or len(counts) != count or not 0 < min(counts) <= max(counts) <= WINDOW_BATCHES:
            return False
        size = _COUNT.size + (PRODUCER_BYTES + 1 + TIME_BYTES) * count + ENTRY_BYTES * sum(counts)
        return len(rows) == size

    def __iter__(self) -> Iterator[tuple[bytes, Window]]:
        """Each producer that is in no block, with its window, in the table's order."""
        rows, count = self.rows, self.row_count
        ids = range(_COUNT.size, _COUNT.size + PRODUCER_BYTES * count, PRODUCER_BYTES)
        places = pairwise(_starts(rows, count)) if rows else ()
        for at, (start, end) in zip(ids, places, strict=True):
            yield rows[at : at + PRODUCER_BYTES], rows[start:end]


NO_TABLE: Final = Table()


def pack_table(windows: Mapping[bytes, Window] | Iterable[tuple[bytes, Window]]) -> Table:
    """The table of these producers, in this order."""
    known = windows if isinstance(windows, Mapping) else dict(windows)
    return Table(_pack_rows(known)) if known else NO_TABLE


# ---- the live table -------------------------------------------------------------------------------------

DICT_BYTES_MAX: Final = 250
"""Bytes of a dict for each key, above which it is copied: 50 to 150 are usual, and a dict that has shrunk has more."""

_WINDOW_OVERHEAD_BYTES: Final = 180
"""About what a window takes in memory beside its bytes, with its producer's id."""

_ROW_OVERHEAD_BYTES: Final = 12


class Room(State):
    """The committed producers of one room.

    `windows` are in the order of their last batches. `blocks` are in this order too, and all their rows are older than
    all windows. A bit of `hidden` is set for each row of a block that does not count any more. All producers with a
    last batch at or below the offset `forgotten` are gone, but those that were spared.
    """

    __slots__ = ("_front", "_window_bytes", "blocks", "forgotten", "hidden", "windows")

    def __init__(self) -> None:
        self.windows: Mapping[bytes, Window] = NOTHING
        self.blocks: tuple[IdleBlock, ...] = ()
        self.hidden: Mapping[bytes, int] = NOTHING  # block id -> bits of its hidden rows
        self.forgotten = -1
        self._front = 0  # all rows before this one in the order of the first block are hidden
        self._window_bytes = 0

    @property
    def producer_count(self) -> int:
        """The number of its producers."""
        idle = sum(block.producer_count for block in self.blocks)
        return len(self.windows) + idle - sum(bits.bit_count() for bits in self.hidden.values())

    @property
    def row_bytes(self) -> int:
        """The bytes of its windows at rest."""
        return self._window_bytes + len(self.windows) * (PRODUCER_BYTES + 1)

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory."""
        blocks = sum(len(block.data) + _ROW_OVERHEAD_BYTES * block.producer_count for block in self.blocks)
        return blocks + self._window_bytes + _WINDOW_OVERHEAD_BYTES * len(self.windows)

    def window(self, producer: bytes) -> Window | None:
        """The window of a producer, wherever it is; None if the room does not know it."""
        # Rule `row-hides-window` (I9): the window of a producer that came back comes before its row in a block.
        # Without it:
        #   1. P was idle and is in a block, with its batch of sequence 10. It comes back and sends 11 and 12.
        #   2. The table finds P's row, and believes that 10 was its last sequence.
        #   3. It refuses 13 as a gap, and stores a resend of 11 again.
        window = self.windows.get(producer)
        if window is None and self.blocks:
            found = self._row(producer)
            return found[0].window(found[1]) if found is not None else None
        return window

    def _row(self, producer: bytes) -> tuple[IdleBlock, int] | None:
        """The block with a producer's row, and its place there; None if there is none, or it is hidden."""
        for block in reversed(self.blocks):
            at = block.find(producer)
            if at >= 0 and not self.hidden.get(block.id, 0) >> at & 1:
                return block, at
        return None

    def items(self) -> Iterator[tuple[bytes, Window]]:
        """Each producer with its window, the one whose last batch lies furthest back first."""
        rows = (block.rows(self.hidden.get(block.id, 0)) for block in self.blocks)
        return chain(chain.from_iterable(rows), self.windows.items())

    def oldest(self) -> Iterator[tuple[bytes, int]]:
        """Each producer with the offset of its last batch, the one that goes first at the beginning."""
        for number, block in enumerate(self.blocks):
            hidden = self.hidden.get(block.id, 0)
            for at in islice(block.order, self._front if not number else 0, None):
                if not hidden >> at & 1:
                    yield block.producer(at), _offset_of(block.window(at))
        for producer, window in self.windows.items():
            yield producer, _offset_of(window)

    def put_window(self, producer: bytes, window: Window) -> None:
        """Give a producer that has none a window, which is the newest one."""
        self.windows = put(self.windows, producer, window)
        self._window_bytes += len(window)

    def record(self, producer: bytes, entry: bytes, append_time_ms: int) -> Window:
        """Add a committed batch; returns the producer's new window."""
        known = self.windows.get(producer)
        if known is not None:
            self._drop_window(producer, known)  # so that its window comes after all others
        elif self.blocks and (found := self._row(producer)) is not None:
            known = found[0].window(found[1])
            self._hide_row(*found)
        kept = (
            known[max(0, len(known) - ROW_BYTES - (WINDOW_BATCHES - 2) * ENTRY_BYTES) : -TIME_BYTES] if known else b""
        )
        window = b"".join((kept, entry, _TIME.pack(append_time_ms)))
        self.put_window(producer, window)
        return window

    def forget_oldest(self, spared: int = 0) -> tuple[bytes, int]:
        """Forget the producer whose last batch lies furthest back; returns it, and the offset of that batch.

        `spared` of them stay, so it is the next one that goes.
        """
        if self.blocks:
            assert not spared, "no room with blocks spares producers"
            block = self.blocks[0]
            hidden, order = self.hidden.get(block.id, 0), block.order
            while hidden >> order[self._front] & 1:
                self._front += 1
            at = order[self._front]
            producer, self.forgotten = block.producer(at), _offset_of(block.window(at))
            self._hide_row(block, at)
        else:
            producer, window = next(islice(self.windows.items(), spared, None))
            offset = _offset_of(window)
            self.forgotten = max(self.forgotten, offset)
            self._drop_window(producer, window)
            return producer, offset
        return producer, self.forgotten

    def _drop_window(self, producer: bytes, window: Window) -> None:
        self.windows = drop(self.windows, producer)
        self._window_bytes -= len(window)

    def _hide_row(self, block: IdleBlock, at: int) -> None:
        bits = self.hidden.get(block.id, 0) | 1 << at
        if bits.bit_count() == block.producer_count:
            self._drop_block(block)
        else:
            self.hidden = put(self.hidden, block.id, bits)

    def _drop_block(self, block: IdleBlock) -> None:
        if block is self.blocks[0]:
            self._front = 0
        self.hidden = drop(self.hidden, block.id)
        self.blocks = tuple(other for other in self.blocks if other is not block)

    def take_blocks(
        self, blocks: Iterable[IdleBlock], hidden: Mapping[bytes, int], newer: Mapping[bytes, object]
    ) -> None:
        """Take the blocks of a table at rest, without what was forgotten since and the producers with newer windows."""
        self.blocks = tuple(blocks)
        self.hidden = {block.id: hidden[block.id] for block in self.blocks if hidden.get(block.id)} or NOTHING
        for block in self.blocks if newer or self.forgotten >= 0 else ():
            known = self.hidden.get(block.id, 0)
            for at in range(block.producer_count):
                if known >> at & 1:
                    continue
                if block.producer(at) in newer or _offset_of(block.window(at)) <= self.forgotten:
                    self._hide_row(block, at)

    def make_blocks(self, row_count: int) -> bool:
        """Make blocks of the windows that lie furthest back, if there are many; returns whether there is a new one.

        With each new block, two neighbours that fit into one are joined. So about half of all rows count.
        """
        is_new = False
        while len(self.windows) > UNBLOCKED_SHARE * row_count:
            oldest = list(islice(self.windows.items(), row_count))
            for producer, window in oldest:
                self._drop_window(producer, window)
            self.blocks = (*self.blocks, IdleBlock.of(oldest))
            self._join(row_count)
            is_new = True
        if is_new and sys.getsizeof(self.windows) > DICT_BYTES_MAX * len(self.windows):
            self.windows = dict(self.windows)  # a dict does not give back the memory of deleted items
        return is_new

    def _join(self, row_count: int) -> None:
        for one, other in pairwise(self.blocks):
            hidden = [self.hidden.get(block.id, 0) for block in (one, other)]
            left = one.producer_count + other.producer_count - sum(bits.bit_count() for bits in hidden)
            if left <= row_count:
                joined = IdleBlock.of([*one.rows(hidden[0]), *other.rows(hidden[1])])
                self.blocks = tuple(joined if block is one else block for block in self.blocks if block is not other)
                self.hidden = drop(drop(self.hidden, one.id), other.id)
                self._front = 0
                return

    def names(self) -> tuple[BlockName, ...]:
        """The names of its blocks."""
        return tuple(
            BlockName(block.id, block.producer_count, len(block.data), self.hidden.get(block.id, 0))
            for block in self.blocks
        )


_EMPTY: Final = Room()
"""Stands for a room that is not in use. It never changes."""


class _Pending(NamedTuple):
    """A batch above the commit."""

    producer: bytes
    entry: bytes
    append_time_ms: int
    offset: int
    spared: int


class ProducerTable(State):
    """The live table of a segment.

    Args:
        table: The table at rest from which it is made.
        newer: What the disk has of the segment itself: windows that replace those of the table at rest, and how far
            each room has forgotten.
        blocks: Blocks by id, among them all that the table names.
        limit: How many producers it remembers.
    """

    __slots__ = ("_above", "_gone", "_live_counts", "_pending", "limit", "rooms", "unwritten")

    def __init__(
        self,
        table: Table = NO_TABLE,
        newer: Rows = (),
        blocks: Mapping[bytes, IdleBlock] = NOTHING,
        limit: int = PRODUCERS_MAX,
    ) -> None:
        self.limit = limit
        self.rooms: Mapping[int, Room] = NOTHING  # by number; only those that are in use
        windows = dict(newer)
        for number in ROOMS if windows else ():
            forgotten = windows.pop(_forgotten_id(number), None)
            if forgotten is not None:
                self._room(number).forgotten = _offset_of(forgotten)
        if table.blocks:
            # A block that is missing here is a bug of the broker (rule `block-missing`, see `idle_blocks.wait_for`).
            named = [blocks[name.id] for name in table.blocks]
            self._room(ORDINARY).take_blocks(named, {name.id: name.hidden for name in table.blocks}, windows)
        for producer, window in table:
            room = self._room(room_of(producer))
            if producer not in windows and _offset_of(window) > room.forgotten:
                room.put_window(producer, window)
        for producer, window in sorted(windows.items(), key=_by_offset):
            self._room(room_of(producer)).put_window(producer, window)
        for number, room in self.rooms.items() if windows else ():
            # Rule `spared-stay-first` (I9, J4): those that were spared lie further back than the rest of the table at
            # rest, so they come first again. Without it: 1. Forwarder F is spared. A member restarts, and puts F after
            # the others. 2. The next segment opens with its table. G is pushed out before F, so the disk says that all
            # up to G are forgotten. 3. A member restarts, and takes F for forgotten. F's dead letter is stored again.
            if number != ORDINARY:
                room.windows = dict(sorted(room.windows.items(), key=_by_offset)) or NOTHING
        self.unwritten: Mapping[bytes, Window | None] = NOTHING  # what a disk does not have yet
        self._begin_live(())

    def _room(self, number: int) -> Room:
        room = self.rooms.get(number)
        if room is None:
            room = Room()
            self.rooms = put(self.rooms, number, room)
        return room

    def _begin_live(self, pending: Iterable[_Pending]) -> None:
        self._pending: Sequence[_Pending] = ()
        self._above: Mapping[bytes, bytes] = NOTHING  # producer -> entries above the commit; in the order of the last
        self._gone: Mapping[bytes, int] = NOTHING  # producer -> not known up to this offset, although it is committed
        self._live_counts: Mapping[int, int] = NOTHING  # of each room, as if everything were committed
        for number, room in self.rooms.items():
            self._live_counts = put(self._live_counts, number, room.producer_count)
        for batch in pending:
            self._add(batch)

    # ---- questions ----

    @property
    def _in_order(self) -> Iterator[Room]:
        """The rooms in the order in which a table at rest has them."""
        return (self.rooms[number] for number in reversed(ROOMS) if number in self.rooms)

    @property
    def blocks(self) -> tuple[IdleBlock, ...]:
        """The blocks: only the ordinary room has some."""
        return self.rooms.get(ORDINARY, _EMPTY).blocks

    @property
    def windows(self) -> dict[bytes, Window]:
        """All committed windows that are in no block."""
        return {producer: window for room in self._in_order for producer, window in room.windows.items()}

    @property
    def window_count(self) -> int:
        """The number of producers that have a window, or batches above the commit."""
        return sum(len(room.windows) for room in self.rooms.values()) + len(self._above)

    @property
    def size_bytes(self) -> int:
        """About its bytes at rest, without the content of its blocks."""
        above = len(self._above) * (PRODUCER_BYTES + 1 + ROW_BYTES)
        return above + sum(room.row_bytes + Table(b"", room.names()).size_bytes for room in self.rooms.values())

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory."""
        return sum(room.memory_bytes for room in self.rooms.values())

    @property
    def producer_count(self) -> int:
        """The number of producers that it knows."""
        return sum(self._live_counts.values())

    def count_of(self, room: int) -> int:
        """How many producers of a room it knows."""
        return self._live_counts.get(room, 0)

    def limit_of(self, room: int) -> int:
        """How many producers a room remembers."""
        return max(1, self.limit // SHARES[room])

    def window(self, producer: bytes) -> Window | None:
        """The window of a producer, with its batches above the commit; None if the table does not know it."""
        known = self.rooms.get(room_of(producer), _EMPTY).window(producer)
        if known is not None and self._gone and self._gone.get(producer, -1) >= _offset_of(known):
            known = None
        above = self._above.get(producer)
        if above is None:
            return known
        return b"".join((known[:-TIME_BYTES] if known is not None else b"", above, bytes(TIME_BYTES)))

    def last(self, producer: bytes) -> Entry | None:
        """The newest batch of a producer; None if the table does not know the producer."""
        window = self.window(producer)
        return newest_of(window) if window is not None else None

    def entries(self, producer: bytes) -> tuple[Entry, ...]:
        """The batches of a producer that are known here, oldest first."""
        window = self.window(producer)
        return entries_of(window) if window is not None else ()

    def has_pending(self, producer: bytes, count: int) -> bool:
        """Whether at least `count` batches of a producer are above the commit."""
        return len(self._above.get(producer, b"")) >= count * ENTRY_BYTES

    def find(self, header: BatchHeader) -> Entry | None:
        """The entry of a batch that was stored before; None if it is older than the window or was never stored."""
        for entry in reversed(self.entries(header.producer)):
            if entry.epoch == header.producer_epoch and entry.base_sequence == header.base_sequence:
                return entry if entry.message_count == header.message_count else None
        return None

    def covers(self, header: BatchHeader) -> bool:
        """Whether a batch is at or below the table. After an unsettled segment, readers skip such a batch."""
        newest = self.last(header.producer)
        if newest is None:
            return False
        return (header.producer_epoch, header.last_sequence) <= (newest.epoch, newest.last_sequence)

    def items(self) -> Iterator[tuple[bytes, Window]]:
        """Each producer with its window, as if everything were committed."""
        if self._pending:
            return self._folded(None).items()
        return chain.from_iterable(room.items() for room in self._in_order)

    def pushed_out_by(self, producer: bytes, spared: int = 0) -> list[tuple[bytes, int]]:
        """The producers that go if this one, which is not known, comes; with the offsets of their last batches.

        `spared`: as in the header of its batch.
        """
        room = room_of(producer)
        excess = self.count_of(room) + 1 - self.limit_of(room)
        if excess <= 0 or spared == SPARED_ALL:
            return []
        return list(islice(self.oldest(room), spared, spared + min(2, excess)))

    def oldest(self, room: int) -> Iterator[tuple[bytes, int]]:
        """The producers of a room in the order in which they go, as if everything were committed."""
        for producer, offset in self.rooms.get(room, _EMPTY).oldest():
            if producer not in self._above and self._gone.get(producer, -1) < offset:
                yield producer, offset
        for producer, entries in self._above.items():
            if room_of(producer) == room:
                yield producer, _OFFSET.unpack_from(entries, len(entries) - _OFFSET.size)[0]

    # ---- growing, and going back ----

    def add(self, header: BatchHeader) -> None:
        """Add a batch that is appended and not committed yet."""
        offset = make_offset(header.segment, header.base_index)
        entry = _ENTRY.pack(header.producer_epoch, header.base_sequence, header.message_count, offset)
        self._add(_Pending(header.producer, entry, header.append_time_ms, offset, header.spared))

    def _add(self, batch: _Pending) -> None:
        self._pending = add(self._pending, batch)
        producer = batch.producer
        above = self._above.get(producer)
        if above is not None:
            self._above = drop(self._above, producer)
        elif self.window(producer) is None:
            room = room_of(producer)
            # Rule `two-at-most` (I9): above the limit, each new producer pushes out two, and no more. Without it:
            #   1. P sends its first batch, and gets no answer. An administrator lowers the limit, and the segment is
            #      switched.
            #   2. The next new producer pushes out half of the table at once, P too. P was silent for a second.
            #   3. P sends its batch again, and it is stored twice.
            for gone, offset in self.pushed_out_by(producer, batch.spared):
                self._gone = put(self._gone, gone, offset)
                self._above = drop(self._above, gone)
                self._live_counts = put(self._live_counts, room, self._live_counts[room] - 1)
            self._live_counts = put(self._live_counts, room, self.count_of(room) + 1)
        self._above = put(self._above, producer, (above or b"") + batch.entry)

    def fold(self, below: int) -> list[bytes]:
        """All batches below this offset are committed: producers may go now. Returns those that went."""
        # Rule `gone-when-committed` (I9): a producer goes when the batch that pushes it out is committed. Without it:
        #   1. P sends its first batch, which is committed. P gets no answer.
        #   2. Q is new, and pushes P out. Q's batch is on the master only, and a switch cuts it.
        #   3. P is forgotten, although the log says that there is room for it. P's batch comes again.
        went: list[bytes] = []
        count = 0
        for batch in self._pending:
            if batch.offset >= below:
                break
            count += 1
            went += self._fold(batch)
        if count:
            self._pending = self._pending[count:] or ()
        return went

    def _fold(self, batch: _Pending) -> list[bytes]:
        producer = batch.producer
        above = self._above.get(producer)
        if above is not None and _ENTRY.unpack_from(above)[3] == batch.offset:
            if len(above) > ENTRY_BYTES:
                self._above = put(self._above, producer, above[ENTRY_BYTES:])
            else:
                self._above = drop(self._above, producer)
        number = room_of(producer)
        room, limit = self._room(number), self.limit_of(number)
        spared, forgotten, leaving = batch.spared, room.forgotten, 0
        if room.window(producer) is None and spared != SPARED_ALL:
            count = room.producer_count
            leaving = min(2, count + 1 - limit, count - spared)
        went = [room.forget_oldest(spared) for _ in range(leaving)]
        for stays, window in islice(room.windows.items(), spared) if went and spared else ():
            # Rule `spared-are-written` (I9): a window at or below `forgotten` is one that this segment wrote. Without
            # it: 1. Writer W is spared, and X goes. W's window is in the table with which the segment was opened. 2.
            # The member restarts, and takes W for one that went, too. 3. W's publication is asked for, and its rows are
            # stored again.
            if _offset_of(window) > forgotten:
                self.unwritten = put(self.unwritten, stays, window)
        self.unwritten = put(self.unwritten, producer, room.record(producer, batch.entry, batch.append_time_ms))
        for gone, offset in went:
            self.unwritten = put(self.unwritten, gone, None)
            if self._gone.get(gone) == offset:
                self._gone = drop(self._gone, gone)
        if went:
            frontier = pack_window([Entry(0, 0, 1, room.forgotten)])
            self.unwritten = put(self.unwritten, _forgotten_id(number), frontier)
        return [gone for gone, _ in went]

    def record(self, header: BatchHeader) -> Window:
        """Add a committed batch; returns the producer's new window."""
        self.add(header)
        self.fold(make_offset(header.segment, header.base_index) + 1)
        window = self._room(room_of(header.producer)).window(header.producer)
        assert window is not None
        return window

    def cut(self, limit: int) -> None:
        """Take back the batches at and above an offset. None of them is committed."""
        if self._pending and self._pending[-1].offset >= limit:
            self._begin_live([batch for batch in self._pending if batch.offset < limit])

    def take_unwritten(self) -> Changes:
        """What a disk does not have yet; it counts as written now."""
        changes, self.unwritten = tuple(self.unwritten.items()), NOTHING
        return changes

    def make_blocks(self, row_count: int) -> bool:
        """Make blocks if many producers have windows; returns whether there is a new one."""
        return ORDINARY in self.rooms and self.rooms[ORDINARY].make_blocks(row_count)

    def take_up(self, table: Table) -> None:
        """Add the producers that this table does not know; the windows that it has are newer and stay."""
        assert not self.blocks, "only the table of an open segment has blocks, and it is complete"
        pending, unwritten = self._pending, self.unwritten
        forgotten = tuple(
            (_forgotten_id(number), pack_window([Entry(0, 0, 1, room.forgotten)]))
            for number, room in self.rooms.items()
            if room.forgotten >= 0
        )
        self.rooms = ProducerTable(table, (*self.windows.items(), *forgotten)).rooms
        self._begin_live(pending)
        self.unwritten = unwritten

    # ---- at rest ----

    def _folded(self, below: int | None) -> ProducerTable:
        twin = self.copy()
        twin.fold(below if below is not None else self._pending[-1].offset + 1)
        return twin

    def as_of(self, below: int) -> Table:
        """The table at rest as of the end of the batches below an offset, at which a switch may cut."""
        if self._pending and self._pending[0].offset < below:
            return self._folded(below).at_rest()
        return self.at_rest()

    def at_rest(self) -> Table:
        """The committed table at rest, with its blocks by name."""
        return replace(pack_table(self.windows), blocks=self.rooms.get(ORDINARY, _EMPTY).names())

    def spelled_out(self, size_bytes_max: int) -> Table | None:
        """The committed table with the rows of its blocks in it; None if it is larger than `size_bytes_max`.

        If complete windows are too large, each producer keeps only its newest batch.
        """
        rows = [item for room in self._in_order for item in room.items()]
        fixed_bytes = _COUNT.size + len(rows) * (PRODUCER_BYTES + 1)
        if fixed_bytes + sum(len(window) for _, window in rows) <= size_bytes_max:
            return pack_table(rows)
        if fixed_bytes + len(rows) * ROW_BYTES > size_bytes_max:
            return None
        return pack_table((producer, window[-ROW_BYTES:]) for producer, window in rows)


def merge(tables: Iterable[ProducerTable]) -> ProducerTable:
    """One table of several, with the window of the highest producer epoch, then sequence, for each producer.

    Used after unsettled segments, where tables do not continue one another.
    """
    best: dict[bytes, Window] = {}
    for table in tables:
        for producer, window in table.items():
            known = best.get(producer)
            if known is None or _rank(window) > _rank(known):
                best[producer] = window
    return ProducerTable(NO_TABLE, tuple(best.items()))


def _by_offset(item: tuple[bytes, Window]) -> int:
    return _offset_of(item[1])


def _rank(window: Window) -> tuple[int, int]:
    newest = newest_of(window)
    return newest.epoch, newest.last_sequence
