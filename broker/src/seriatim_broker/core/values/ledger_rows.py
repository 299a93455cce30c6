"""The rows of a ledger as bytes: which messages are passed, and what is known of keys on which consumers failed.

    name                      value
    "b" block (u64)           the passed bits of 1,024 indexes, little-endian, without zero bytes at the end
    "k" key's name            phase (u8), turn (u32), attempts (u32), ready at (u64, ms since 1970), forward sequence
                              (u64; in phase RETRY: the delay in ms), number of the first offset in the list (u64;
                              without a list: the offset of its first message), offsets in the list (u64), last error
    "a" chunk (u64) name      the offsets with the numbers chunk * 1,024 and following: the first as u64, then varints
                              of the differences
    "g" token (u64)           a grant that is handed over to the next segment, with the first messages of the key's
                              list: their count (u32), milliseconds left (u32), 1 if started + 2 if its messages are
                              acknowledged already and not in the list (u8), bytes of the consumer's name (u16), that
                              name and the key's name
    "f"                       the forwarder's next number (u64): the term, and a count in it (32 bits)

Numbers are big-endian, so that a disk keeps blocks and chunks in their order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from .keyed import ERROR_BYTES_MAX, KeyCounts, KeyPhase

BLOCK_INDEXES: Final = 1_024
CHUNK_OFFSETS: Final = 1_024

_BLOCK: Final = b"b"
_KEY: Final = b"k"
_ASIDE: Final = b"a"
_GRANT: Final = b"g"
_FORWARDER: Final = b"f"
_FORWARDING: Final = bytes((KeyPhase.FORWARDING,))
_NUMBER = struct.Struct(">Q")
_RECORD = struct.Struct(">BIIQQQQ")
_PHASES: Final = {int(phase): phase for phase in KeyPhase}
_CARRIED = struct.Struct(">IIBH")
_STARTED: Final = 1
_PASSED: Final = 2


class LedgerRowError(ValueError):
    """The bytes are not a row of a ledger."""


class KeyRecord(NamedTuple):
    """What is durably known of one key.

    Attributes:
        phase: Its state.
        turn: How often an administrator released the key.
        attempts: How many attempts on its first message have failed.
        ready_at_ms: When the next attempt may begin, by the wall clock.
        sequence: If its first message is forwarded: the number that the forwarder gave it; 0: none yet. In phase RETRY:
            the delay before the next attempt in milliseconds; 0: not known.
        aside_first: The number of the first offset of its list, counted from the first one that the list ever had.
            Without a list: the offset of its first message.
        aside_count: How many offsets its list has.
        error: The last error, for humans.
    """

    phase: KeyPhase
    turn: int
    attempts: int
    ready_at_ms: int
    sequence: int
    aside_first: int
    aside_count: int
    error: str


def block_name(block: int) -> bytes:
    """The name of the row of a block."""
    return _BLOCK + _NUMBER.pack(block)


def write_block(block: int, bits: int) -> tuple[bytes, bytes]:
    """The name and value of the row of a block: bit i says that the index 1,024 * block + i is passed."""
    return _BLOCK + _NUMBER.pack(block), bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def key_name(name: bytes) -> bytes:
    """The name of the row of a key."""
    return _KEY + name


def write_key(record: KeyRecord) -> bytes:
    """The value of a key's row."""
    fixed = _RECORD.pack(*record[:-1])
    return fixed + record.error.encode()[:ERROR_BYTES_MAX]


def aside_name(name: bytes, chunk: int) -> bytes:
    """The name of the row with a chunk of a key's list."""
    return _ASIDE + _NUMBER.pack(chunk) + name


def write_aside(offsets: Sequence[int]) -> bytes:
    """The value of a chunk: ascending offsets."""
    out = bytearray(_NUMBER.pack(offsets[0]))
    steps = [offset - before for before, offset in pairwise(offsets)]
    assert min(steps, default=1) > 0
    if max(steps, default=0) < 0x80:  # each step is a byte
        return bytes(out) + bytes(steps)
    for step in steps:
        while step > 0x7F:
            out.append(step & 0x7F | 0x80)
            step >>= 7
        out.append(step)
    return bytes(out)


class CarriedGrant(NamedTuple):
    """A grant that the server of the segment before made, and that continues in this one.

    Attributes:
        token: Its token.
        name: The key's name.
        consumer: The consumer's name.
        message_count: How many messages it has that are not acknowledged.
        left_ms: Until its deadline.
        is_started: The consumer has begun to work on the first of its messages.
        is_passed: Its messages are acknowledged already, and in no list.
    """

    token: int
    name: bytes
    consumer: str
    message_count: int
    left_ms: int
    is_started: bool
    is_passed: bool = False


def write_grant(grant: CarriedGrant) -> tuple[bytes, bytes]:
    """The name and value of the row of a grant."""
    consumer = grant.consumer.encode()
    flags = _STARTED * grant.is_started | _PASSED * grant.is_passed
    fixed = _CARRIED.pack(grant.message_count, min(grant.left_ms, 0xFFFFFFFF), flags, len(consumer))
    return _GRANT + _NUMBER.pack(grant.token), fixed + consumer + grant.name


def write_forwarder(next_number: int) -> tuple[bytes, bytes]:
    """The name and value of the forwarder's row."""
    return _FORWARDER, _NUMBER.pack(next_number)


def has_forwards(rows: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the first message of a key is on its way to the dead-letter topic, in the rows of a ledger."""
    return any(name[:1] == _KEY and value[:1] == _FORWARDING for name, value in rows)


def count_keys(rows: Iterable[tuple[bytes, bytes]], floor: int, gone: Mapping[bytes, int] | None = None) -> KeyCounts:
    """How many keys wait, by their state, in the rows of a ledger that is not served.

    Args:
        rows: The rows.
        floor: The first index that is not passed.
        gone: By key, how many messages of its list are dropped or lost. A key does not wait if all of them are.

    Raises:
        LedgerRowError: A row of a key cannot be read.
    """
    counts, aside, passed = dict.fromkeys(KeyPhase, 0), 0, 0
    for name, value in rows:
        try:
            if name[:1] == _BLOCK:
                below = min(max(floor - BLOCK_INDEXES * _NUMBER.unpack(name[1:])[0], 0), BLOCK_INDEXES)
                passed += (int.from_bytes(value, "little") >> below).bit_count()
            elif name[:1] == _KEY:
                phase, *_, count = _RECORD.unpack_from(value)
                left = count - gone.get(name[1:], 0) if gone else count
                counts[KeyPhase(phase)] += left > 0 or not count
                aside += left
        except (struct.error, ValueError) as exc:
            raise _unreadable(name, exc) from exc
    return KeyCounts(counts[KeyPhase.PARKED], counts[KeyPhase.RETRY], counts[KeyPhase.FORWARDING], aside, passed)


class LedgerRows(NamedTuple):
    """The rows of a ledger by their kind.

    Attributes:
        blocks: Bits by block.
        grants: Grants that were handed over.
        next_number: The forwarder's next number.
        rest: Rows of lists, and after them those of keys. They must still be read.
    """

    blocks: dict[int, int]
    grants: tuple[CarriedGrant, ...]
    next_number: int
    rest: tuple[tuple[bytes, bytes], ...]

    @property
    def keys(self) -> dict[bytes, KeyRecord]:
        """The records of all keys. They are read now: a server reads some at a time."""
        return dict(read_key_row(*row) for row in self.rest if row[0][:1] == _KEY)

    @property
    def asides(self) -> dict[bytes, dict[int, list[int]]]:
        """The chunks of all lists, by key. They are read now."""
        found: dict[bytes, dict[int, list[int]]] = {}
        for name, number, offsets in filter(None, (read_list_row(*row) for row in self.rest)):
            found.setdefault(name, {})[number] = offsets
        return found


def read_rows(rows: Iterable[tuple[bytes, bytes]]) -> LedgerRows:
    """Read the rows of a ledger, except those of keys and of their lists, which may be many.

    Raises:
        LedgerRowError: A row is of a kind that is not known here, or cut short.
    """
    blocks: dict[int, int] = {}
    grants: list[CarriedGrant] = []
    lists: list[tuple[bytes, bytes]] = []
    keys: list[tuple[bytes, bytes]] = []
    next_number = 1
    for row in rows:
        name, value = row
        kind = name[:1]
        if kind == _KEY:
            keys.append(row)
        elif kind == _ASIDE:
            lists.append(row)
        else:
            try:
                if kind == _BLOCK:
                    blocks[_NUMBER.unpack(name[1:])[0]] = int.from_bytes(value, "little")
                elif kind == _GRANT:
                    grants.append(_read_grant(name, value))
                elif name == _FORWARDER:
                    next_number = _NUMBER.unpack(value)[0]
                else:
                    raise LedgerRowError(f"a row of a ledger begins with {kind!r}")
            except (struct.error, ValueError) as exc:
                raise _unreadable(name, exc) from exc
    return LedgerRows(blocks, tuple(grants), next_number, (*lists, *keys))


def read_list_row(name: bytes, value: bytes) -> tuple[bytes, int, list[int]] | None:
    """The key, the number and the offsets of a chunk of a list; None: it is the row of a key.

    Raises:
        LedgerRowError: The row is cut short.
    """
    if name[:1] != _ASIDE:
        return None
    try:
        return name[1 + _NUMBER.size :], _NUMBER.unpack_from(name, 1)[0], _read_aside(value)
    except (struct.error, IndexError) as exc:
        raise _unreadable(name, exc) from exc


def read_key_row(name: bytes, value: bytes) -> tuple[bytes, KeyRecord]:
    """The key and its record.

    Raises:
        LedgerRowError: The row is cut short.
    """
    try:
        phase, turn, attempts, ready_at_ms, sequence, first, count = _RECORD.unpack_from(value)
        error = value[_RECORD.size :].decode(errors="replace") if len(value) > _RECORD.size else ""
        return name[1:], KeyRecord(_PHASES[phase], turn, attempts, ready_at_ms, sequence, first, count, error)
    except (struct.error, KeyError) as exc:
        raise _unreadable(name, exc) from exc


def handed_rows(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The rows that are handed over to the next segment.

    Bits are those of indexes of this segment, and the forwarder's next number is of this term.
    """
    return [row for row in rows if row[0][:1] not in (_BLOCK, _FORWARDER)]


def without_grants(rows: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """The rows that stay after a handoff: all but the grants."""
    return tuple([row for row in rows if row[0][:1] != _GRANT])


def _unreadable(name: bytes, error: Exception) -> LedgerRowError:
    return LedgerRowError(f"the row {name[:40]!r} of a ledger cannot be read: {error}")


def _read_grant(name: bytes, value: bytes) -> CarriedGrant:
    count, left_ms, flags, length = _CARRIED.unpack_from(value)
    names = value[_CARRIED.size :]
    token, consumer = _NUMBER.unpack(name[1:])[0], names[:length].decode()
    return CarriedGrant(token, names[length:], consumer, count, left_ms, bool(flags & _STARTED), bool(flags & _PASSED))


def _read_aside(value: bytes) -> list[int]:
    offsets = [_NUMBER.unpack_from(value)[0]]
    at = _NUMBER.size
    if max(value[at:], default=0) < 0x80:  # each byte is a step
        return list(accumulate(value[at:], initial=offsets[0]))
    while at < len(value):
        step = shift = 0
        while True:
            byte = value[at]
            at += 1
            step |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        offsets.append(offsets[-1] + step)
    return offsets
