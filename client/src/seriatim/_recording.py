"""Writes what a client does into a history, for the checker (`seriatim.history`).

The history knows messages by ids that are the same at the sender and at the reader, so they come from the message: the
application says how (`message_id`). Lines are written for batches, not for messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from seriatim_api.ids import make_offset

from seriatim._records import Message, OutcomeName

if TYPE_CHECKING:
    from seriatim._producing.deliveries import Settlement
    from seriatim._producing.pending import Cut

_log = logging.getLogger("seriatim")

T = TypeVar("T")

MessageId = int | str
MessageIdOf = Callable[[bytes], MessageId]


class HistoryLike(Protocol):
    """What is used of `seriatim.history.HistoryWriter` and `MemoryHistory`."""

    def sends(self, messages: Sequence[MessageId], *, producer: str, topic: str, partition: int, sequence: int) -> None:
        """Messages are about to be sent."""

    def outcomes(self, messages: Sequence[MessageId], outcome: OutcomeName, *, offset: int | None = None) -> None:
        """They are settled."""

    def deliveries(
        self,
        messages: Sequence[MessageId],
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        offset: int,
        attempt: int = 1,
        maybe_repeated: bool = False,
    ) -> None:
        """Messages at consecutive offsets came."""

    def ack(self, *, group: str, topic: str, partition: int, offset: int) -> None:
        """All up to an offset is acknowledged."""

    def gap(self, *, topic: str, partition: int, first: int, end: int, why: str, group: str | None = None) -> None:
        """A gap was declared."""

    def skip(self, *, topic: str, partition: int, first: int, end: int, group: str | None = None) -> None:
        """Repeats were passed over."""


class Recorder:
    """A history, and how messages are called in it.

    Args:
        history: A `seriatim.history.HistoryWriter` or `MemoryHistory`.
        message_id: The id of a message, from its value; unique in the history.
    """

    def __init__(self, history: HistoryLike, message_id: MessageIdOf) -> None:
        self._history = history
        self._message_id = message_id
        self.has_failed = False

    def _record(self, write: Callable[[], T]) -> T | None:
        """Write, unless an earlier line could not be written: behind a hole a history proves nothing.

        `message_id` and the history belong to the application. What they raise is logged, and ends the recording; the
        messages go on.
        """
        if self.has_failed:
            return None
        try:
            return write()
        except Exception:
            self.has_failed = True
            _log.exception("the history cannot be written, so the recording ends here; the messages go on")
            return None

    def sends(self, cut: Cut, topic: str, partition: int, producer: str, position: int) -> Sequence[MessageId] | None:
        """A batch is about to be sent; returns the ids of its messages, or None if the recording has ended."""
        return self._record(lambda: self._sends(cut, topic, partition, producer, position))

    def _sends(self, cut: Cut, topic: str, partition: int, producer: str, position: int) -> Sequence[MessageId]:
        values = cut.batch.column(1).to_pylist() if cut.values is None else cut.values
        ids = [self._message_id(value) for value in values]
        self._history.sends(ids, producer=producer, topic=topic, partition=partition, sequence=position)
        return ids

    def outcomes(self, ids: Sequence[MessageId], settlement: Settlement) -> None:
        """The messages of a batch are settled."""
        is_ok = settlement.outcome.value == "ok"
        offset = settlement.offset if is_ok else None
        self._record(lambda: self._history.outcomes(ids, settlement.outcome.value, offset=offset))

    def deliveries(self, messages: Sequence[Message], group: str, consumer: str) -> None:
        """Messages are handed to the application. Consecutive ones of a partition share a line."""
        begin = 0
        for at in range(1, len(messages) + 1):
            if at == len(messages) or not _follows(messages[at - 1], messages[at]):
                part = messages[begin:at]
                self._record(partial(self._deliver, part, group, consumer))
                begin = at

    def _deliver(self, messages: Sequence[Message], group: str, consumer: str) -> None:
        first = messages[0]
        self._history.deliveries(
            [self._message_id(message.value) for message in messages],
            group=group,
            consumer=consumer,
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
            attempt=first.attempt,
            maybe_repeated=first.maybe_repeated,
        )

    def acked(self, group: str, topic: str, partition: int, offset: int) -> None:
        """The application acknowledged all up to `offset`; what was delivered is in the file before that."""

        def write() -> None:
            self._history.ack(group=group, topic=topic, partition=partition, offset=offset)
            flush = getattr(self._history, "flush", None)
            if flush is not None:
                flush()

        self._record(write)

    def gap(self, group: str, topic: str, partition: int, first: int, end: int, why: str) -> None:
        """What lies from offset `first` up to `end` will not be delivered."""
        self._record(
            lambda: self._history.gap(topic=topic, partition=partition, first=first, end=end, why=why, group=group)
        )

    def skip(self, group: str, topic: str, partition: int, segment: int, first: int, end: int) -> None:
        """The server passed over repeats."""
        self._record(
            lambda: self._history.skip(
                topic=topic,
                partition=partition,
                first=make_offset(segment, first),
                end=make_offset(segment, end),
                group=group,
            )
        )


def _follows(before: Message, message: Message) -> bool:
    return (
        message.partition == before.partition
        and message.offset == before.offset + 1
        and message.attempt == before.attempt
        and message.maybe_repeated == before.maybe_repeated
    )
