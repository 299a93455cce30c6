"""The ports of the commands: what they need from a cluster. `_connect` implements them with the client's public names.

Tests run the commands with a cluster in memory behind these ports. The process tests run them with a real one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from seriatim.cli._sources import Message

if TYPE_CHECKING:
    pass

OutcomeName = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of a message.

    Attributes:
        outcome: `ok`, `failed` or `unknown`.
        partition: The partition's number in the topic.
        offset: The message's offset, as in `seriatim_api.ids`; None unless `ok`.
        error: A text for people; empty if `ok`.
    """

    outcome: OutcomeName
    partition: int
    offset: int | None
    error: str = ""


class ProducerPort(Protocol):
    """A producer of one topic."""

    name: str

    def partition_of(self, message: Message) -> int:
        """The partition of a message for which the user named none. Call it once for each message, before its send."""
        ...

    async def send(
        self, message: Message, partition: int, message_id: str | None, done: Callable[[SendResult], None]
    ) -> None:
        """Hand a message over, in order. The call returns when there was room for it.

        Args:
            message: Key and value.
            partition: The partition's number in the topic.
            message_id: An id for histories, which is sent in a header; None: no id.
            done: Called once with the outcome, in the event loop.
        """
        ...

    async def flush(self) -> None:
        """Wait until every message has its outcome, at most for the producer's delivery time-out."""
        ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message that was delivered.

    Attributes:
        message_id: The id that `ProducerPort.send` added; None if there is none.
        maybe_repeated: It may have been delivered before, to this consumer or another one of the group.
        attempt: The delivery attempt.
        handle: A value of the port, which `ack` needs.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int
    message_id: str | None = None
    maybe_repeated: bool = False
    attempt: int = 1
    handle: Any = None


@dataclass(frozen=True, slots=True)
class Note:
    """An event of a consumer that is not a message.

    Attributes:
        kind: `active` (it begins, or takes over), `standby`, `crossed` (into a segment), `gap`, `revoked`. Or an
            operation on the group: `rewind`, `skip`, `pause`, `resume`, or `moved` for another reason.
        partition: The partition's number in the topic.
        offset: The offset at which it happens; None if there is none.
        end_offset: For a gap, the first offset behind it.
        text: More, for people; may be empty.
    """

    kind: Literal["active", "standby", "crossed", "gap", "revoked", "rewind", "skip", "pause", "resume", "moved"]
    partition: int
    offset: int | None = None
    end_offset: int | None = None
    text: str = ""


class ConsumerPort(Protocol):
    """A consumer of one topic, in one consumer group."""

    name: str

    def batches(self) -> AsyncIterator[list[Delivered]]:
        """The messages that come, in the order of each partition. An empty list if none came for about a second."""
        ...

    async def ack(self, last: Delivered) -> bool:
        """Acknowledge this message and everything before it in its partition.

        Returns False if another consumer took the partition over, or the group was moved, since the delivery. Then the
        message comes again, here or elsewhere.
        """
        ...


At = Literal["earliest", "end"] | datetime
"""A place that exists in each partition."""


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A place in a partition.

    Attributes:
        partition: The partition's number in the topic.
        offset: The place.
        position: The number of messages before it since the partition was made.
        blocked: A segment that is not settled is before the true end.
        found: If a time was asked for: whether there is a message at or after it.
    """

    partition: int
    offset: int
    position: int
    blocked: bool = False
    found: bool = False


@dataclass(frozen=True, slots=True)
class PieceRow:
    """The `rows` messages from one offset to another, in one segment. `size_bytes` is None if it is not known."""

    start: int
    end: int
    rows: int
    size_bytes: int | None = None


class RangePort(Protocol):
    """Reads between two offsets, without a consumer group."""

    async def offsets(self, topic: str, at: At, partitions: Sequence[int] | None = None) -> list[OffsetRow]:
        """A place in these partitions; None: in all partitions."""
        ...

    async def pieces(self, topic: str, partition: int, start: int, end: int, cut_bytes: int = 0) -> list[PieceRow]:
        """The pieces of a range, in its order. Each has about `cut_bytes`; 0: it is a whole segment."""
        ...

    def read(
        self, topic: str, partition: int, start: int, end: int, on_note: Callable[[Note], None]
    ) -> AsyncIterator[list[Delivered]]:
        """The messages of a range. `on_note` gets a note about each part that is gone."""
        ...
