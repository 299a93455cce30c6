"""Delayed messages: batches that are stored and not due, and the volleys in which a server fires them.

The server of a segment fires what is delayed in that segment. What it has done is in its *delay ledger*: a control
record named `/delayed/<segment>`, which is no legal name of a consumer group, with these rows beside it:

    name                    value
    "b" block (u64)         the passed bits of 1,024 indexes, as in the ledger of a consumer group
    "c" block (u64)         the bits of those that were cancelled; they are passed too
    "m" block (u64)         the bits of those that were moved; they are passed too
    "n" number              a volley that was given this number: the latest due time in it (i64, ms since 1970), whether
                            it is moved and not fired (u8), and its messages: of those that follow one another, the
                            first index (u64) and how many (u32)
    "f"                     the next number
    "l"                     what was fired is to be read in the log before anything more is fired
    "d"                     the segment is sealed, and nothing of it is left to be fired

A number is a producer epoch (u32), which belongs to one server of the segment, and the sequence of the first message in
this epoch (u64). Sequence 0 is that of the fence. Numbers are big-endian. An index is passed when nothing more is to be
done with its message in this segment: it was fired, moved, cancelled, or is a repeat that readers skip.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from seriatim_api.batch import BatchHeader
from seriatim_api.delayed import FIRE_MARK
from seriatim_api.ids import split_offset

from .ledger_rows import LedgerRowError

NAME_PREFIX: Final = "/delayed/"

VOLLEY_MESSAGES_MAX: Final = 1_024
VOLLEY_BYTES_MAX: Final = 1 << 20
ALONE_BYTES: Final = 16 << 10
"""A batch of this size or more is a volley by itself: to join it with others would cost more than it saves."""

_PASSED: Final = b"b"
_CANCELLED: Final = b"c"
_MOVED: Final = b"m"
_VOLLEY: Final = b"n"
_NEXT: Final = b"f"
LEARNS: Final = b"l"
DONE: Final = b"d"
"""The name of the row that says that nothing is left."""

_NUMBER: Final = struct.Struct(">Q")
_VOLLEY_NUMBER: Final = struct.Struct(">IQ")
_SEQUENCE_BITS: Final = 64
_OF_VOLLEY: Final = struct.Struct(">q?")
_SPAN: Final = struct.Struct(">QI")


def first_number(producer_epoch: int) -> int:
    """The first number of a volley in a producer epoch. Its sequence is 1, because the fence has sequence 0."""
    return producer_epoch << _SEQUENCE_BITS | 1


def parts_of(number: int) -> tuple[int, int]:
    """The producer epoch and the base sequence of the batch with a number."""
    return number >> _SEQUENCE_BITS, number & ((1 << _SEQUENCE_BITS) - 1)


def ledger_name(segment_no: int) -> str:
    """The name of a segment's delay ledger."""
    return f"{NAME_PREFIX}{segment_no}"


def is_ledger_name(name: str) -> bool:
    """Whether a control record of this name is a delay ledger, and not one of a consumer group."""
    return name.startswith(NAME_PREFIX)


class Span(NamedTuple):
    """Messages of a segment that follow one another: the first index, and how many."""

    first: int
    message_count: int

    @property
    def indexes(self) -> range:
        """Their indexes."""
        return range(self.first, self.first + self.message_count)


class Fired(NamedTuple):
    """Messages that are in a volley.

    Attributes:
        origins: The offsets where they were stored first.
        below: They were delayed below this index, in the segment that fires them.
        is_moved: They were moved, and not fired.
    """

    origins: Span
    below: int
    is_moved: bool


class VolleyRecord(NamedTuple):
    """A volley as the ledger has it.

    Attributes:
        number: Its number.
        due_ms: The latest due time in it.
        spans: Its messages, in the order in which they are fired.
        is_move: They are moved, and not fired.
    """

    number: int
    due_ms: int
    spans: tuple[Span, ...]
    is_move: bool = False


class Amount(NamedTuple):
    """Delayed messages, and their bytes with headers."""

    messages: int
    size_bytes: int

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.messages + other.messages, self.size_bytes + other.size_bytes)


NONE_WAIT: Final = Amount(0, 0)


class VolleyRow(NamedTuple):
    """The body of a volley, and what the header of its batch says about it.

    Attributes:
        body: The body. That of a volley of one complete batch is the body of the batch, byte for byte.
        body_crc: Its CRC-32C.
        flags: `FLAG_KEYED` and others that describe the body.
        key_hash: As in the header of the batch; 0 if several were joined.
        message_count: How many messages it has: the first ones of those that were asked for, as many as fit.
        first_timestamp_ms: The first timestamp of its messages.
        last_timestamp_ms: The last one.
        origin: The partition and the offset where its first message was stored first.
        origins: The offsets where its messages were stored first: of those that follow one another, the first one and
            how many.
        headers: Those of all batches that have messages that were asked for.
    """

    body: bytes
    body_crc: int
    flags: int
    key_hash: int
    message_count: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    origin: tuple[int, int]
    origins: tuple[Span, ...]
    headers: tuple[BatchHeader, ...]


def write_origins(spans: Iterable[Span]) -> bytes:
    """The body of the list of a volley: for each span its first offset (u64) and its count (u32), big-endian."""
    return b"".join(_SPAN.pack(*span) for span in spans)


def read_origins(body: bytes) -> tuple[Span, ...]:
    """What `write_origins` wrote.

    Raises:
        struct.error: The body is cut short.
    """
    return tuple(Span(*span) for span in _SPAN.iter_unpack(body))


def is_control_body(header: BatchHeader, body: bytes) -> bool:
    """Whether a control batch may have this body: nothing, or a list of no more spans than a volley has messages."""
    if header.message_count != 1 or not body:
        return header.message_count == 1
    is_list = header.producer.endswith(FIRE_MARK) and header.base_sequence > 0
    return is_list and len(body) % _SPAN.size == 0 and len(body) <= _SPAN.size * VOLLEY_MESSAGES_MAX


def cancelled_name(block: int) -> bytes:
    """The name of the row with the cancelled indexes of a block."""
    return _CANCELLED + _NUMBER.pack(block)


def write_cancelled(block: int, bits: int) -> tuple[bytes, bytes]:
    """The row with the cancelled indexes of a block: bit i says that the index 1,024 * block + i was cancelled."""
    return cancelled_name(block), _bits(bits)


def write_moved(block: int, bits: int) -> tuple[bytes, bytes]:
    """The row with the moved indexes of a block, as `write_cancelled` writes it."""
    return _MOVED + _NUMBER.pack(block), _bits(bits)


def _bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def volley_name(number: int) -> bytes:
    """The name of the row of a volley."""
    return _VOLLEY + _VOLLEY_NUMBER.pack(*parts_of(number))


def write_volley(volley: VolleyRecord) -> tuple[bytes, bytes]:
    """The row of a volley."""
    return volley_name(volley.number), _OF_VOLLEY.pack(volley.due_ms, volley.is_move) + write_origins(volley.spans)


def write_next_number(number: int) -> tuple[bytes, bytes]:
    """The row with the next number."""
    return _NEXT, _VOLLEY_NUMBER.pack(*parts_of(number))


class DelayRows(NamedTuple):
    """The rows of a delay ledger.

    Attributes:
        passed: Bits by block.
        cancelled: Bits by block.
        moved: Bits by block.
        volleys: The volleys that were given a number and are not known to be stored, by their numbers.
        next_number: The next number.
        learns: What was fired is to be read in the log first.
    """

    passed: dict[int, int]
    cancelled: dict[int, int]
    moved: dict[int, int]
    volleys: tuple[VolleyRecord, ...]
    next_number: int
    learns: bool = False


def read_delay_rows(rows: Iterable[tuple[bytes, bytes]]) -> DelayRows:
    """Read the rows of a delay ledger.

    Raises:
        LedgerRowError: A row is of a kind that is not known here, or cut short.
    """
    passed: dict[int, int] = {}
    cancelled: dict[int, int] = {}
    moved: dict[int, int] = {}
    volleys: list[VolleyRecord] = []
    next_number, learns = 1, False
    for name, value in rows:
        kind = name[:1]
        try:
            if kind == _VOLLEY:
                due_ms, is_move = _OF_VOLLEY.unpack_from(value)
                spans = read_origins(value[_OF_VOLLEY.size :])
                if not spans:
                    raise LedgerRowError(f"the row {name[:40]!r} of a delay ledger names no message")
                volleys.append(VolleyRecord(_read_number(name[1:]), due_ms, spans, is_move))
            elif kind == _NEXT:
                next_number = _read_number(value)
            elif kind == _CANCELLED:
                cancelled[_NUMBER.unpack(name[1:])[0]] = int.from_bytes(value, "little")
            elif kind == _MOVED:
                moved[_NUMBER.unpack(name[1:])[0]] = int.from_bytes(value, "little")
            elif name == DONE:
                continue
            elif name == LEARNS:
                learns = True
            elif kind == _PASSED:
                passed[_NUMBER.unpack(name[1:])[0]] = int.from_bytes(value, "little")
            else:
                raise LedgerRowError(f"a row of a delay ledger begins with {kind!r}")
        except struct.error as exc:
            raise LedgerRowError(f"the row {name[:40]!r} of a delay ledger cannot be read: {exc}") from exc
    return DelayRows(passed, cancelled, moved, tuple(sorted(volleys)), next_number, learns)


def _read_number(value: bytes) -> int:
    producer_epoch, sequence = _VOLLEY_NUMBER.unpack(value)
    return int(producer_epoch) << _SEQUENCE_BITS | int(sequence)


def spans_in(segment_no: int, fired: Iterable[Fired], moved: Iterable[tuple[int, Span]]) -> tuple[Span, ...]:
    """Where messages that were fired or moved are delayed in a segment.

    Args:
        segment_no: The number of the segment.
        fired: What volleys say of it.
        moved: What was moved into the segment: the index, and where the messages were stored first.

    Rule `volley-is-later` (D1): a volley says nothing of the places after it. Without it:
      1. d was moved into segment 3, and from there to the end of segment 3, under the same origin.
      2. Another server has to learn what was fired of segment 3. The second move says that d is done in both places.
      3. d is never fired.
    """
    found: list[Span] = []
    into = sorted(moved, key=lambda row: row[1])
    begins = [span.first for _, span in into]
    longest = max((span.message_count for _, span in into), default=0)
    for (origin, count), below, _ in fired:
        no, index = split_offset(origin)
        if no == segment_no and index < below:
            found.append(Span(index, min(count, below - index)))
        for to, (begin, length) in into[bisect_right(begins, origin - longest) : bisect_left(begins, origin + count)]:
            first, until = max(origin, begin), min(origin + count, begin + length)
            if first < until and to < below:
                found.append(Span(to + first - begin, until - first))
    return merged(found)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same messages in as few spans as they are, by index."""
    found: list[Span] = []
    for first, count in sorted(spans):
        last = found[-1] if found else None
        if last is not None and first <= last.indexes.stop:
            found[-1] = Span(last.first, max(last.indexes.stop, first + count) - last.first)
        else:
            found.append(Span(first, count))
    return tuple(found)
