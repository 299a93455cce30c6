"""Delayed messages: which a master takes from a client, and when they are due.

The limits of the topic are those that the broker of the master knows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from seriatim_api.batch import FLAG_DELAYED, FLAG_PUBLISH, FLAG_STAGED, BatchHeader
from seriatim_api.delay_limits import DAY_MS, DelayLimits
from seriatim_api.errors import BadRequestError, OverloadedError, SeriatimError
from seriatim_api.retry import DEAD_LETTER_END

from .delayed import Amount


class KnownDelayLimits(NamedTuple):
    """The limits of a topic, and whether they are surely those of its record.

    Attributes:
        limits: The limits.
        are_current: Whether the broker follows the topics, and the coordinator has answered within the last seconds.
        retention_bytes: What retention keeps of a partition; 0: no limit.
    """

    limits: DelayLimits = DelayLimits()
    are_current: bool = True
    retention_bytes: int = 0

    def refusal(self, delay_ms: int) -> SeriatimError | None:
        """The error of a batch with this delay, more than 0; None if the topic takes it.

        A limit that may be old refuses for the moment only (as in rule `topic-limits`).
        """
        most_ms = self.limits.delay_max_ms
        if delay_ms <= most_ms:
            return None
        if not self.are_current:
            return OverloadedError(
                "a delay is over the limit that this broker knows, and the coordinator does not tell it whether that "
                "was raised: nothing was stored; the producer sends it again",
                retry_after_ms=200,
            )
        if not most_ms:
            return BadRequestError(
                "the topic takes no delayed messages, because its delay_max_ms is 0: nothing was stored. Send without "
                "a delay, or raise delay_max_ms"
            )
        return BadRequestError(
            f"the delay is {delay_ms} ms, and delay_max_ms of the topic is {most_ms} ({most_ms / DAY_MS:g} days): "
            "nothing was stored. Send later or with a shorter delay, or raise delay_max_ms"
        )

    def refusal_if_full(self, pending: Amount) -> SeriatimError | None:
        """The error of one more delayed batch, if this much waits in the partition; None if the topic takes it.

        What waits may take half of `retention_bytes`. Retention keeps it beyond all limits, so without that a topic
        with a small limit could fill the disk.
        """
        most = self.limits.delayed_pending_max
        if pending.messages >= most:
            why = f"{pending.messages:,} delayed messages wait in the partition, and delayed_pending_max is {most:,}"
            remedy = "delayed_pending_max"
        elif self.retention_bytes and pending.size_bytes * 2 >= self.retention_bytes:
            why = (
                f"delayed messages of {pending.size_bytes:,} bytes wait in the partition, which is half of its "
                f"retention_bytes ({self.retention_bytes:,}) or more"
            )
            remedy = "retention_bytes"
        else:
            return None
        return OverloadedError(
            f"{why}: nothing was stored; the producer sends it again. Wait until messages are due, cancel some, or "
            f"raise {remedy} of the topic",
            retry_after_ms=1_000,
        )


DELAYS_DEFAULT: Final = KnownDelayLimits()
"""The limits of a topic whose settings say nothing of them."""


def refusal(header: BatchHeader, topic: str) -> BadRequestError | None:
    """The refusal of a client's batch whose delay is no delay, or is not possible there; None if it is not delayed."""
    if not header.flags & FLAG_DELAYED:
        why = "the batch has a due time, but not the flag DELAYED" if header.due_time_ms else ""
    elif not header.due_time_ms:
        why = "the batch has the flag DELAYED, but no due time"
    elif header.flags & (FLAG_STAGED | FLAG_PUBLISH):
        why = "what is published together has no delay: send it with a producer, or without the flag DELAYED"
    elif topic.endswith(DEAD_LETTER_END):
        why = "dead letters are not delayed: send to another topic, or without the flag DELAYED"
    else:
        return None
    return BadRequestError(f"{why}; nothing was stored") if why else None


def due_time_at(header: BatchHeader, now_ms: int) -> int | None:
    """When the batch is due if it is appended now; 0: it is not delayed any more; None: as its header says.

    The master's wall clock counts, and not the append time. That may be ahead of it, if an earlier master's clock was.

    Rule `relative-by-master` (D4): the master counts a delay from the append on, by its own clock. Without it:
      1. A client's clock is an hour behind. It asks for a delay of ten minutes, and sends the time that it makes of it.
      2. The master finds that time in the past, and stores an ordinary batch: readers have it at once.

    What brokers move keeps its due time, also if that has passed: it is fired like any other one.
    """
    if not header.flags & FLAG_DELAYED or any(header.origin):
        return None
    due_ms = now_ms - header.due_time_ms if header.due_time_ms < 0 else header.due_time_ms
    return due_ms if due_ms > now_ms else 0
