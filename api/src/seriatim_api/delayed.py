"""Delayed messages: the producers under which brokers store them a second time.

A delayed message is stored when it is sent, and readers pass it. When it is due, the server of its segment *fires* it:
it appends a copy, which readers get. Before retention drops one that is not due yet, its server *moves* it: it appends
a copy that is delayed too, under the same producer id. The *origin* of a delayed message is the offset where it was
stored first.

Nothing in this module does I/O.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

FIRE_MARK: Final = b"/firerun"
"""The last 8 bytes of the producer ids of fired and moved messages. Batches of clients with such an id are refused."""

EARLY_MS_MAX: Final = 100
"""A message may be fired this long before the clock of the partition's master says that it is due."""


def fire_producer(partition: int, segment: int) -> bytes:
    """The producer id under which the delayed messages of a segment are fired, or moved to the partition's end."""
    return hashlib.blake2b(f"{partition}/{segment}".encode(), digest_size=8, person=b"fire").digest() + FIRE_MARK


class CancelOutcome(enum.StrEnum):
    """What became of a delayed message that a client cancelled. Each of these answers is final."""

    CANCELLED = "cancelled"
    """No consumer is ever given it."""

    TOO_LATE = "too late"
    """It was due: consumers are given it, or were."""

    NOT_FOUND = "not found"
    """There is no delayed message at this offset, or there is none any more."""
