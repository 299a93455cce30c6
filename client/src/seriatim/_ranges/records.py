"""The plain values that programs get which ask for places and ranges of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seriatim_api.ids import format_offset


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """A place in a partition.

    Attributes:
        topic: The topic's name.
        incarnation: The topic's incarnation. A later topic of the same name has another one, and other offsets.
        partition: The partition's number in the topic.
        partition_id: The partition's id in the cluster.
        offset: The offset of the place: of the next message at or after it.
        position: The number of messages before the place since the partition was made.
        bytes_before: The bytes of their batches; None: not known.
        blocked: A segment is UNSETTLED, so the messages after it have no place in the order yet. The end is then the
            beginning of that segment, until one of its members is back.
        found: If a time was asked for: whether there is a message at or after it. If not, `offset` is the end.
        epoch: The chain epoch of the record by which the broker answered.
    """

    topic: str
    incarnation: str
    partition: int
    partition_id: int
    offset: int
    position: int
    bytes_before: int | None
    blocked: bool
    found: bool
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """The messages of a partition that are kept: from the first one to the partition's end.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
        offset: The offset of the first message that is kept. If there is none, the offset of the next message.
        messages: The number of messages from there to the end. Repeats that readers skip count too.
        size_bytes: The bytes of their batches on one disk; None: not known.
        since_ms: The append time of the first message, in ms since 1970; None: there is no message, or it is not known.
    """

    topic: str
    partition: int
    offset: int
    messages: int
    size_bytes: int | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class RangePiece:
    """A part of a range that can be read separately: [start, end), all in one segment.

    Attributes:
        start: The first offset.
        end: The first offset after the piece.
        rows: The number of messages. Repeats that readers skip count too.
        size_bytes: The bytes of their batches. None: no broker that has them answered, so the piece is not cut.
        brokers: The names of the brokers that have the messages, as the chain record says.
        addresses: The addresses of those brokers.
    """

    start: int
    end: int
    rows: int
    size_bytes: int | None
    brokers: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostRange:
    """The offsets [start, end), whose messages are gone: `lost` with their disks, or `dropped` by retention."""

    topic: str
    partition: int
    start: int
    end: int
    reason: Literal["lost", "dropped"]

    def __str__(self) -> str:
        what = "declared lost" if self.reason == "lost" else "dropped by retention"
        where = f"{format_offset(self.start)} to {format_offset(self.end)}"
        return f"messages {where} of {self.topic}/{self.partition} were {what}"


@dataclass(frozen=True, slots=True)
class RangePlan:
    """A range of a partition, divided: the pieces in their order, and the losses between them."""

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    pieces: tuple[RangePiece, ...]
    losses: tuple[LostRange, ...]
