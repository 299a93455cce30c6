"""Writes the sends, deliveries and acknowledgements of a client into a history, for the checker (`seriatim.history`).

In the history a message has an id, which is the same for the sender and for the reader. So the id comes from the
message: the application's function `message_id` makes it from the value. A line is about a batch, not about a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from seriatim_api.ids import format_offset, make_offset

if TYPE_CHECKING:
    from seriatim_api.delayed import CancelOutcome

    from seriatim._core.producer_types import Outcome
    from seriatim._values.consumer_group_settings import GroupKey
    from seriatim._values.dead_letters import DeadLetter
    from seriatim._values.records import Message
    from seriatim.history import HistoryWriter, MemoryHistory
    from seriatim.history._writer import CancelAnswer, PersonAct, TopicAct, Way
from seriatim._runtime.logs import guarded

_log = guarded()

T = TypeVar("T")

MessageId = int | str
MessageIdOf = Callable[[bytes], MessageId]


class Place(NamedTuple):
    """One partition of a consumer that is given messages under tokens."""

    group: str
    consumer: str
    topic: str
    partition: int


class Recorder:
    """Writes into a history, with the message ids that the application makes.

    Args:
        history: A `seriatim.history.HistoryWriter` or `MemoryHistory`.
        message_id: Returns the id of a message from its value; unique in the history.
    """

    def __init__(self, history: HistoryWriter | MemoryHistory, message_id: MessageIdOf) -> None:
        self._history = history
        self._message_id = message_id
        self.has_failed = False

    def _record(self, write: Callable[[], T]) -> T | None:
        """Write a line, unless an earlier line could not be written: a history with a hole proves nothing.

        `message_id` and the history belong to the application. If they raise, the client logs the exception and ends
        the recording. Sends and deliveries continue.
        """
        if self.has_failed:
            return None
        try:
            return write()
        except Exception:
            self.has_failed = True
            _log.exception("the history cannot be written, so the recording ends here; sends and deliveries continue")
            return None

    def id_of(self, message: Message | DeadLetter) -> MessageId:
        """The id of a message that the application gets, or of which it lists the dead letter."""
        return self._message_id(message.value)

    def sends(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        topic: str,
        partition: int,
        producer: str,
        position: int,
        due_time_ms: int = 0,
    ) -> Sequence[MessageId] | None:
        """Note that a batch is about to be sent. Returns its messages' ids, or None if the recording has ended.

        `due_time_ms` is as in the header: a time, or a duration below 0. 0: the batch is not delayed.
        """

        def write() -> Sequence[MessageId]:
            ids = [self._message_id(value or b"") for value in values]
            due = None
            if due_time_ms:
                delay_ms = -due_time_ms if due_time_ms < 0 else due_time_ms - time.time() * 1000
                due = self._history.now() + delay_ms / 1000
            self._history.sends(
                ids, producer=producer, topic=topic, partition=partition, sequence=position, keys=keys, due=due
            )
            return ids

        return self._record(write)

    def outcomes(self, ids: Sequence[MessageId], outcome: Outcome, offset: int) -> None:
        """Note the outcome of the messages of a batch. The offset counts if the outcome is `ok`."""
        at = offset if outcome.value == "ok" else None
        self._record(lambda: self._history.outcomes(ids, outcome.value, offset=at))

    def deliveries(self, messages: Sequence[Message], group: str, consumer: str) -> None:
        """Note the messages that the application gets. Consecutive messages of a partition share a line."""
        for part in _parts(messages, _follows):
            self._deliver(Place(group, consumer, part[0].topic, part[0].partition), part)

    def granted(
        self, place: Place, messages: Sequence[Message], group_epoch: int, *, by_key: bool, at_most_once: bool
    ) -> None:
        """Note the messages that the application gets under tokens. Those of a grant that follow each other share a
        line."""
        for part in _parts(messages, _is_same_grant):
            keys = [message.key for message in part] if by_key else ()
            self._deliver(
                place, part, keys=keys, token=part[0].grant, group_epoch=group_epoch, at_most_once=at_most_once
            )

    def _deliver(self, place: Place, messages: Sequence[Message], **more: Any) -> None:
        first = messages[0]
        self._record(
            lambda: self._history.deliveries(
                [self.id_of(message) for message in messages],
                **place._asdict(),
                offset=first.offset,
                attempt=first.attempt,
                maybe_repeated=first.maybe_repeated,
                **more,
            )
        )

    def acked(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Note that the application acknowledged all up to `offset`. The lines of the deliveries are written before."""
        self._record(lambda: self._history.ack(group=group, topic=topic, partition=partition, offset=offset))
        self._flush()

    def acked_single(self, place: Place, offsets: Sequence[int], tokens: Sequence[int]) -> None:
        """Note that the application acknowledged messages. Their deliveries are written out before it is sent."""
        if offsets:
            self._record(lambda: self._history.ack_single(**place._asdict(), offsets=offsets, tokens=tokens))
            self._flush()

    def confirmed(self, place: Place, offsets: Sequence[int], tokens: Sequence[int], group_epoch: int) -> None:
        """Note that a broker confirmed acknowledgements."""
        if offsets:
            self._record(
                lambda: self._history.confirm(
                    **place._asdict(), offsets=offsets, tokens=tokens, group_epoch=group_epoch
                )
            )

    def failed(self, place: Place, offset: int, token: int, *, is_last: bool) -> None:
        """Note that the application failed on a message."""
        self._record(lambda: self._history.nack(**place._asdict(), offset=offset, token=token, is_last=is_last))
        self._flush()

    def ended(self, place: Place, tokens: Sequence[int]) -> None:
        """Note that the client knows that grants have ended."""
        self._record(lambda: self._history.void(**place._asdict(), tokens=tokens))

    def waiting(self, topic: str, group: str, key: GroupKey) -> None:
        """Note a key that a broker listed as one that waits."""
        if not key.first_offset:
            return  # it is not known where it stands
        self._record(
            lambda: self._history.parked(
                group=group,
                topic=topic,
                partition=key.partition,
                key=key.key,
                first=key.first_offset,
                messages=key.messages,
                state=key.state,
            )
        )

    def dead_letter(self, letter: DeadLetter) -> None:
        """Note a dead letter that was listed."""
        self._record(
            lambda: self._history.dead_letter(
                self.id_of(letter),
                group=letter.group,
                topic=letter.origin_topic,
                partition=letter.origin_partition,
                offset=letter.origin_offset,
                stored_at=f"{letter.topic}/{letter.partition} {format_offset(letter.offset)}",
                maybe_repeated=letter.maybe_repeated,
            )
        )

    def person(
        self,
        act: PersonAct,
        group: str,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        key: bytes | None = None,
        done: bool = False,
        way: Way | None = None,
        end: int | None = None,
    ) -> None:
        """Note what a program does for an administrator: before the request is sent, and with `done` when it was
        done."""
        self._record(
            lambda: self._history.person(
                act, group=group, topic=topic, partition=partition, offset=offset, key=key, done=done, way=way, end=end
            )
        )
        self._flush()

    def cancels(self, topic: str, partition: int, offset: int, outcome: CancelOutcome | None = None) -> None:
        """Note that the application cancels a delayed message: before the request is sent, and with the answer."""
        answer = None if outcome is None else cast("CancelAnswer", outcome.name.lower())
        self._record(lambda: self._history.cancel(topic=topic, partition=partition, offset=offset, answer=answer))
        self._flush()

    def topic(self, act: TopicAct, topic: str) -> None:
        """Note what a program does with a topic, before the request is sent."""
        self._record(lambda: self._history.topic(act, topic))
        self._flush()

    def _flush(self) -> None:
        flush = getattr(self._history, "flush", None)
        if flush is not None:
            self._record(flush)

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


def _parts(
    messages: Sequence[Message], belong_together: Callable[[Message, Message], bool]
) -> Iterator[Sequence[Message]]:
    begin = 0
    for at in range(1, len(messages) + 1):
        if at == len(messages) or not belong_together(messages[at - 1], messages[at]):
            yield messages[begin:at]
            begin = at


def _is_same_grant(before: Message, message: Message) -> bool:
    return (
        message.grant == before.grant
        and message.partition == before.partition
        and message.offset == before.offset + 1
        and message.attempt == 1
        and message.maybe_repeated == before.maybe_repeated
    )


def _follows(before: Message, message: Message) -> bool:
    return (
        message.partition == before.partition
        and message.offset == before.offset + 1
        and message.attempt == before.attempt
        and message.maybe_repeated == before.maybe_repeated
    )
