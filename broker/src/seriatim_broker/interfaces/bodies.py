"""Bodies of batches, as far as a broker looks into them: it checks what others sent, and reads keys and single messages
for consumer groups in which order is by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from seriatim_api.dead_letters import DeadLetterOrigin

from ..core.values.keyed import DeadLetterRow
from ..core.values.log import Batch


class OpenedBody(NamedTuple):
    """A body that was taken apart, and about how many bytes it takes in memory."""

    rows: Any
    size_bytes: int


class Bodies(Protocol):
    """Checks bodies, reads keys, and takes single messages out of bodies."""

    def prepare(self) -> None:
        """Load what the other methods need. It may take a second, so a broker does it in a thread before it serves."""

    def check(self, body: bytes, message_count: int, flags: int) -> None:
        """Check that readers will be able to read a body that another process sent.

        Args:
            body: The body.
            message_count: The number of messages that the header of the batch says.
            flags: The flags of the header.

        Raises:
            BatchMismatchError: It has another number of messages.
            UnreadableBodyError: It cannot be read, or it is compressed in another way than the flags say.
        """

    def largest_message(self, body: bytes, message_count: int) -> int:
        """The bytes of the key and the value of the largest message in a body that was checked.

        Raises:
            UnreadableBodyError: The body cannot be read.
        """

    def keys(self, batch: Batch) -> tuple[bytes | None, ...] | None:
        """The key of each message; None if none of them has a key.

        Raises:
            UnreadableBodyError: The body cannot be read.
        """

    def open(self, batch: Batch) -> OpenedBody:
        """Take a body apart.

        Raises:
            UnreadableBodyError: The body cannot be read.
        """

    def open_joined(self, body: bytes) -> OpenedBody:
        """Take a body apart that `join` made."""

    def size_of(self, body: OpenedBody, rows: range) -> int:
        """About how many bytes these rows of an opened body take in a body that `join` makes. It takes microseconds."""

    def single(self, key: bytes | None, value: bytes, timestamp_ms: int, headers: Sequence[tuple[str, bytes]]) -> bytes:
        """A body with one message."""

    def dead_letter(self, body: OpenedBody, row: int, origin: DeadLetterOrigin) -> DeadLetterRow:
        """The copy of one message for the dead-letter topic: all that it has, and the headers of `origin`."""

    def join(self, parts: Sequence[tuple[OpenedBody, range]]) -> bytes:
        """A body with these rows of opened bodies, in this order. It is not compressed.

        Args:
            parts: Rows that follow one another in a body, at least one in each part.
        """
