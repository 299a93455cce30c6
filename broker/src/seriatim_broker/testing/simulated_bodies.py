"""Bodies of the simulation: the number of the first message; the others follow. A message's number says its key."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from seriatim_api.batch import FLAG_CONTROL, FLAG_FIRED
from seriatim_api.dead_letters import DeadLetterOrigin

from ..core.values.keyed import DeadLetterRow
from ..core.values.log import Batch
from ..interfaces.bodies import OpenedBody

KEYS = 6
"""How many keys there are. About one message in ten has none."""


NUMBER_BYTES = 8


def key_of(message: int) -> bytes | None:
    """The key of a message."""
    drawn = zlib.crc32(message.to_bytes(8, "big"))
    return None if drawn % 10 == 0 else b"k%d" % (drawn // 10 % KEYS)


def messages_in(body: bytes) -> list[int]:
    """The messages of a body that `join` made."""
    return [int.from_bytes(body[at : at + 8], "big") for at in range(0, len(body), 8)]


def messages_of(batch: Batch) -> Sequence[int]:
    """The messages of a batch. A body of messages that were fired together has the number of each."""
    if batch.header.flags & FLAG_CONTROL:
        return ()
    if batch.header.flags & FLAG_FIRED and len(batch.body) > NUMBER_BYTES:
        return messages_in(batch.body)
    first = int.from_bytes(batch.body[:NUMBER_BYTES], "big")
    return range(first, first + batch.header.message_count)


class SimulatedBodies:
    """The bodies of the simulation."""

    def prepare(self) -> None:
        """Nothing must be loaded."""

    def check(self, body: bytes, message_count: int, flags: int) -> None:
        """All bodies can be read."""

    def largest_message(self, body: bytes, message_count: int) -> int:
        """A message has eight bytes."""
        return 8

    def keys(self, batch: Batch) -> tuple[bytes | None, ...]:
        """The key of each message."""
        return tuple(map(key_of, self.open(batch).rows))

    def open(self, batch: Batch) -> OpenedBody:
        """The numbers of the messages."""
        return OpenedBody(messages_of(batch), batch.size_bytes)

    def open_joined(self, body: bytes) -> OpenedBody:
        """The numbers of the messages."""
        return OpenedBody(messages_in(body), len(body))

    def size_of(self, body: OpenedBody, rows: range) -> int:
        """Eight bytes for each number."""
        return 8 * len(rows)

    def single(self, key: bytes | None, value: bytes, timestamp_ms: int, headers: Sequence[tuple[str, bytes]]) -> bytes:
        """A body with one message: its value."""
        return value

    def dead_letter(self, body: OpenedBody, row: int, origin: DeadLetterOrigin) -> DeadLetterRow:
        """The number of the message."""
        message: int = body.rows[row]
        return DeadLetterRow(message.to_bytes(8, "big"), 0, key_of(message) is not None)

    def join(self, parts: Sequence[tuple[OpenedBody, range]]) -> bytes:
        """The numbers of these messages, one after another."""
        return b"".join(body.rows[row].to_bytes(8, "big") for body, rows in parts for row in rows)
