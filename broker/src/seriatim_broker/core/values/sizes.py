"""How large batches and messages of a topic may be. One rule for what is appended and for what is published.

What is staged is not for the stage topic, so its own limits say nothing. A chunk's id says how large its batches and
messages are at most, and the master of the stage topic keeps them below that. So the publisher compares the ids in the
manifest with the limits of the target topic, and reads no batch.
"""

from __future__ import annotations

from typing import NamedTuple

from seriatim_api.errors import MessageTooLargeError
from seriatim_api.publications import chunk_sizes

BATCH_OVERHEAD_BYTES = 4096
"""A body has less than this beside its messages. So a topic's limit of a batch counts from here on."""


class SizeLimits(NamedTuple):
    """The bytes that a body of a batch, and a message (its key and its value), have at most."""

    batch_bytes: int
    message_bytes: int


def limits_of_chunk(chunk: bytes) -> SizeLimits:
    """The limits that the id of a chunk says.

    Raises:
        BadRequestError: It does not say them.
    """
    return SizeLimits(*chunk_sizes(chunk))


def refusal(limits: SizeLimits, batch_bytes: int, message_bytes: int) -> MessageTooLargeError | None:
    """The error of a batch that is over the limits; None if it is not.

    Args:
        limits: Of the topic, or of the chunk.
        batch_bytes: Of the body.
        message_bytes: Of its largest message, or at most.

    Rule `topic-limits` (LIMITS): a batch over the limits of its topic is not stored, whichever program sent it. Without
    it:
      1. A topic allows messages of 1,000 bytes, and its consumers rely on that.
      2. A program that does not use our client sends, or publishes, a message of 100,000 bytes.
      3. It is acknowledged, and each consumer fails on it.
    """
    for what, size_bytes, size_bytes_max in (
        ("message", message_bytes, limits.message_bytes),
        ("batch", batch_bytes, max(limits.batch_bytes, BATCH_OVERHEAD_BYTES)),
    ):
        if size_bytes > size_bytes_max:
            return MessageTooLargeError(
                f"a {what} has {size_bytes} bytes, and {size_bytes_max} are allowed here: nothing was stored. Send "
                "smaller ones, or raise the topic's limit",
                size_bytes=size_bytes,
                size_bytes_max=size_bytes_max,
            )
    return None
