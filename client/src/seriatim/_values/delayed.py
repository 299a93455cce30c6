"""Delayed messages that wait, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """Messages of one batch that are still delayed. They are due at the same time.

    Attributes:
        partition: The number of their partition.
        offset: The offset of the first one, which cancels it. The others have the following offsets, without those that
            were cancelled.
        due_ms: When they are due, in ms since 1970.
        message_count: How many they are.
        size_bytes: The size of the batch, with messages of it that were cancelled.
    """

    partition: int
    offset: int
    due_ms: int
    message_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DelayedStats:
    """What is delayed in a partition.

    Attributes:
        partition: The number of the partition.
        message_count: How many messages are still delayed.
        size_bytes: The size of their batches.
        oldest_due_ms: When the first of them is due, in ms since 1970; None if there is none.
        cancelled_count: How many messages that the partition still keeps were cancelled.
        unserved: Segments that no broker serves now. What is delayed in them is not counted.
    """

    partition: int
    message_count: int
    size_bytes: int
    oldest_due_ms: int | None
    cancelled_count: int
    unserved: tuple[int, ...]
