"""Writes the sends, deliveries and acknowledgements of a client into a history, for the checker (`seriatim.history`).

In the history a message has an id, which is the same for the sender and for the reader. So the id comes from the
message: the application's function `message_id` makes it from the value. A line is about a batch, not about a message.
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
    """The methods of `seriatim.history.HistoryWriter` and `MemoryHistory` that a client calls."""

    def sends(self, messages: Sequence[MessageId], *, producer: str, topic: str, partition: int, sequence: int) -> None:
        """The client is about to send these messages."""

    def outcomes(self, messages: Sequence[MessageId], outcome: OutcomeName, *, offset: int | None = None) -> None:
        """These messages are settled."""

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
        """The client got messages at consecutive offsets."""

    def ack(self, *, group: str, topic: str, partition: int, offset: int) -> None:
        """The application acknowledged all messages up to and including an offset."""

    def gap(self, *, topic: str, partition: int, first: int, end: int, why: str, group: str | None = None) -> None:
        """A broker said that messages will not be delivered."""

    def skip(self, *, topic: str, partition: int, first: int, end: int, group: str | None = None) -> None:
        """The server skipped repeats."""


class Recorder:
    """Writes into a history, with the message ids that the application makes.

    Args:
        history: A `seriatim.history.HistoryWriter` or `MemoryHistory`.
        message_id: Returns the id of a message from its value; unique in the history.
    """

    def __init__(self, history: HistoryLike, message_id: MessageIdOf) -> None:
        self._history = history
        self._message_id = message_id
        self.has_failed = False

    def _record(self, write: Callable[[], T]) -> T | None:
        """Write a line, unless an earlier line could not be written: a history with a hole proves nothing.

        `message_id` and the history belong to the application. If they raise, the client logs the exception and ends
        the recording. Sends and deliveries go on.
        """
        if self.has_failed:
            return None
        try:
            return write()
        except Exception:
            self.has_failed = True
            _log.exception("the history cannot be written, so the recording ends here; sends and deliveries go on")
            return None

    def sends(self, cut: Cut, topic: str, partition: int, producer: str, position: int) -> Sequence[MessageId] | None:
        """Note that a batch is about to be sent. Returns its messages' ids, or None if the recording has ended."""
        return self._record(lambda: self._sends(cut, topic, partition, producer, position))

    def _sends(self, cut: Cut, topic: str, partition: int, producer: str, position: int) -> Sequence[MessageId]:
        values = cut.batch.column(1).to_pylist() if cut.values is None else cut.values
        ids = [self._message_id(value) for value in values]
        self._history.sends(ids, producer=producer, topic=topic, partition=partition, sequence=position)
        return ids

    def outcomes(self, ids: Sequence[MessageId], settlement: Settlement) -> None:
        """Note the outcome of the messages of a batch."""
        is_ok = settlement.outcome.value == "ok"
        offset = settlement.offset if is_ok else None
        self._record(lambda: self._history.outcomes(ids, settlement.outcome.value, offset=offset))

    def deliveries(self, messages: Sequence[Message], group: str, consumer: str) -> None:
        """Note the messages that the application gets. Consecutive messages of a partition share a line."""
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
        """Note that the application acknowledged all up to `offset`. The lines of the deliveries are written before."""

        def write() -> None:
            self._history.ack(group=group, topic=topic, partition=partition, offset=offset)
            flush = getattr(self._history, "flush", None)
            if flush is not None:
                flush()

        self._record(write)

    def gap(self, group: str, topic: str, partition: int, first: int, end: int, why: str) -> None:
        """Note that the messages from offset `first` up to `end` will not be delivered."""
        self._record(
            lambda: self._history.gap(topic=topic, partition=partition, first=first, end=end, why=why, group=group)
        )

    def skip(self, group: str, topic: str, partition: int, segment: int, first: int, end: int) -> None:
        """Note that the server skipped repeats."""
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
