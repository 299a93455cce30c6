"""The messages between brokers, as bytes: arrays that begin with the number of the kind (`interfaces.forms`).

The number of a kind is its place in `core.values.messages.Message`. Only `Replicate` has no bytes here: its batches
travel as runs of a `ReplicateFrame`, which `rpc.links.peer_frames` makes. Bytes that do not decode to exactly one known
message are the peer's mistake: `BadRequestError`, and the link is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, Union, get_args

from msgspec.msgpack import Decoder, Encoder
from seriatim_api.errors import BadRequestError

from ...core.values import messages as m
from ...core.values.log import LedgerChange
from ...interfaces.forms import FormError, Way, read, way_of

NUMBERS: Final = {kind: number for number, kind in enumerate(get_args(m.Message), 1)}
WAYS: Final[dict[type, Way]] = {
    kind: way_of(kind, number) for kind, number in NUMBERS.items() if kind is not m.Replicate
}

_DOWN: Final[dict[type, Any]] = {kind: way.down for kind, way in WAYS.items()}
_UP: Final[dict[type, Any]] = {way.wire: way.up for way in WAYS.values()}
_decoder: Final = Decoder(Union[tuple(_UP)])  # noqa: UP007 - it is made at run time
_encode: Final = Encoder().encode


def encode(message: m.Message) -> bytes:
    """One message as bytes."""
    return _encode(_DOWN[type(message)](message))


def decode(data: bytes) -> m.Message:
    """The message that `encode` was given.

    Raises:
        BadRequestError: Not a message that this version knows.
    """
    try:
        message: m.Message = read(_decoder, _made, data)
        return message
    except FormError as error:
        raise BadRequestError(f"a peer's message cannot be read: {error}") from error


def _made(read: object) -> m.Message:
    message: m.Message = _UP[type(read)](read)
    return message


# ---- messages with many rows ----------------------------------------------------------------------------

_ROW_BYTES: Final = 16  # at least what the encoding of a row has beside its name and its value
_Rows = tuple[tuple[bytes, bytes], ...]
_piece_decoder: Final = Decoder(tuple[int, _Rows, tuple[bytes, ...]])
"""A piece after the first one: the number of the message's kind, rows to put, names of rows to delete."""


def pieces_of(message: m.Message, size_bytes: int) -> Sequence[Callable[[], bytes]]:
    """The encodings of a message with many rows, in pieces of at most `size_bytes` and what is in it beside the rows.

    The first piece is the message without its rows. `Pieces` reads them.

    Rule `rows-in-pieces` (I13): such a message is not encoded, or decoded, in one go. Without it:
      1. 100,000 keys wait, and a broker takes the right over. It sends their rows to another member.
      2. To encode and to decode 200,000 rows takes a third of a second, or more on a busy machine.
      3. Neither broker answers heartbeats meanwhile, and both count as silent.

    Returns:
        For each piece a call that encodes it; empty: the message has few rows, or none.
    """
    if isinstance(message, m.HandOver):
        change = LedgerChange(message.handover.rows)
    elif isinstance(message, m.ReplicateLedger):
        change = message.change
    else:
        return ()
    row_ends = _ends((len(row) + len(value) for row, value in change.puts), size_bytes)
    deleted_ends = _ends(map(len, change.deletes), size_bytes)
    if len(row_ends) <= 1 and len(deleted_ends) <= 1:
        return ()
    pieces: list[Callable[[], bytes]] = [lambda: encode(_with_rows(message, (), ()))]
    number = NUMBERS[type(message)]
    pieces += [partial(_piece, number, change.puts[a:b], ()) for a, b in pairwise((0, *row_ends))]
    pieces += [partial(_piece, number, (), change.deletes[a:b]) for a, b in pairwise((0, *deleted_ends))]
    return pieces


def _ends(sizes: Iterable[int], size_bytes: int) -> list[int]:
    """Where the pieces of some rows end, so that none has more bytes."""
    ends: list[int] = []
    at, left = 0, size_bytes
    for size in sizes:
        left -= size + _ROW_BYTES
        if left < 0 and at:
            ends.append(at)
            left = size_bytes - size - _ROW_BYTES
        at += 1
    return [*ends, at] if at else []


def _piece(number: int, puts: _Rows, deletes: tuple[bytes, ...]) -> bytes:
    return _encode((number, puts, deletes))


def _with_rows(message: m.HandOver | m.ReplicateLedger, puts: _Rows, deletes: tuple[bytes, ...]) -> m.Message:
    if isinstance(message, m.HandOver):
        return replace(message, handover=replace(message.handover, rows=puts))
    return replace(message, change=replace(message.change, puts=puts, deletes=deletes))


class Pieces:
    """Reads a message that comes in pieces: each is decoded when it comes."""

    def __init__(self) -> None:
        self._rest: m.HandOver | m.ReplicateLedger | None = None
        self._puts: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []

    def add(self, data: bytes) -> None:
        """The next piece has come.

        Raises:
            BadRequestError: It is no piece of that message.
        """
        if self._rest is None:
            first = decode(data)
            if not isinstance(first, m.HandOver | m.ReplicateLedger):
                raise BadRequestError(f"a peer sent a {type(first).__name__} in pieces, which has none")
            self._rest = first
            return
        try:
            number, puts, deletes = read(_piece_decoder, tuple, data)
        except FormError as error:
            raise BadRequestError(f"a piece of a peer's message cannot be read: {error}") from error
        if number != NUMBERS[type(self._rest)]:
            raise BadRequestError(f"a peer sent a piece of another message than a {type(self._rest).__name__}")
        self._puts += puts
        self._deletes += deletes

    def message(self) -> m.Message:
        """The message, when all pieces have come.

        Raises:
            BadRequestError: There is none.
        """
        if self._rest is None:
            raise BadRequestError("a peer sent a message in pieces without the first one")
        return _with_rows(self._rest, tuple(self._puts), tuple(self._deletes))
