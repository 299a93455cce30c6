"""Exclusive producers: a name in a topic under which one program at a time sends, to all partitions.

The *owner* of a name has an epoch, which is the producer epoch of its batches. When the owner changes, a control batch
with the next epoch goes to every partition. After it no partition takes a batch of an earlier owner. Brokers write the
control batch at sequence 0, so the messages of an owner begin at sequence 1.

Nothing in this module does I/O.
"""

from __future__ import annotations

import hashlib
from typing import Final

EXCLUSIVE_MARK: Final = b"/exclusv"
"""The last 8 bytes of the producer ids of exclusive producers. Only the owner of a name may send under one."""

FIRST_SEQUENCE: Final = 1
"""The sequence of an owner's first message in a partition."""


def exclusive_producer(partition: int, name: str) -> bytes:
    """The producer id of a name in a topic, the same in all partitions. `partition` is the id of its partition 0.

    No other topic ever has a partition with that id. The incarnation of the topic is another one after a rebuild of the
    coordinator. With it:
      1. Owner 5 is frozen. The coordinator loses its data, and is rebuilt.
      2. Another program acquires the name, under another producer id.
      3. Program 5 wakes up. The partitions know it as the newest owner of its producer id, and take its messages.
    """
    text = f"{partition}/{name}"
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"exclusive").digest() + EXCLUSIVE_MARK


def is_exclusive(producer: bytes) -> bool:
    """Whether the id is that of an exclusive producer."""
    return producer.endswith(EXCLUSIVE_MARK)
