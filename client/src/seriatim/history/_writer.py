"""Writes a history while the system runs, with one line for each batch.

A history in a file and a history in memory have the same methods. So a simulation keeps in a list the same lines that a
process writes to disk.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from seriatim.history import _format as f
from seriatim.history._format import MessageId

Outcome = Literal["ok", "failed", "unknown"]
Way = Literal["rewind", "skip", "mode"]
PersonAct = Literal["release", "skip", "dead_letter", "replay", "drop", "move", "delete"]
TopicAct = Literal["delete", "publish"]
CancelAnswer = Literal["cancelled", "too_late", "not_found"]
Offset = int | str
"""An integer of 63 bits, as `seriatim_api.ids` makes it, or a text `segment:index`."""

BUFFER_SIZE_BYTES: Final = 256 << 10
"""Without a flush, one system call writes some thousand lines."""

_OUTCOMES: Final = ("ok", "failed", "unknown")
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class _Recorder(ABC):
    """The methods that make lines. If no time is given, they read it from the recorder's clock."""

    def __init__(self, process: str, clock: Callable[[], float]) -> None:
        assert process, "a history names the process that wrote it"
        self.process = process
        self._clock = clock

    @abstractmethod
    def _emit(self, event: dict[str, object]) -> None:
        """Write or keep one line."""

    def now(self) -> float:
        """The time of the recorder's clock, in seconds. Use it for `at` if something happened before the call."""
        return self._clock()

    def _line(self, kind: str, at: float | None, **fields: object) -> None:
        event: dict[str, object] = {"k": kind, "at": round(self._clock() if at is None else at, 6)}
        event.update(fields)
        self._emit(event)

    def send(
        self,
        message: MessageId,
        *,
        producer: str,
        topic: str,
        partition: int,
        sequence: int,
        epoch: int = 0,
        key: str | bytes | None = None,
        due: float | None = None,
        at: float | None = None,
    ) -> None:
        """Record that a message is about to be sent. Call it before the send."""
        self.sends(
            (message,), producer=producer, topic=topic, partition=partition, sequence=sequence, epoch=epoch,
            keys=(key.encode() if isinstance(key, str) else key,), due=due, at=at,
        )  # fmt: skip

    def sends(
        self,
        messages: Sequence[MessageId],
        *,
        producer: str,
        topic: str,
        partition: int,
        sequence: int,
        epoch: int = 0,
        keys: Sequence[bytes | None] | None = None,
        due: float | None = None,
        at: float | None = None,
        **more: object,
    ) -> None:
        """Record that messages of one producer to one partition are about to be sent, in this order.

        Args:
            messages: Their ids, at least one. A `range` costs nothing.
            producer: A name for the producer. It keeps its sends in order.
            topic: The topic's name.
            partition: The partition's number in the topic.
            sequence: The number of messages that this producer has sent to this partition before, in this epoch.
            epoch: The producer epoch. Sequences of a later epoch come after all sequences of an earlier one.
            keys: The key of each message; None: they have none, or are read by no group in which order is by key.
            due: When no consumer may get them before, in seconds of the recorder's clock; None: they are not delayed.
            at: The time, if it was before the call.
            more: More keys of the line.
        """
        assert partition >= 0
        assert sequence >= 0
        assert epoch >= 0
        fields: dict[str, object] = {"p": producer, "t": topic, "q": partition, "s": sequence}
        if epoch:
            fields["e"] = epoch
        if keys is not None:
            fields.update(f.encode_keys(keys))
        if due is not None:
            fields["due"] = round(due, 6)
        self._line(f.SEND, at, **fields, **f.encode_ids(messages), **more)

    def outcome(
        self, message: MessageId, outcome: Outcome, *, offset: Offset | None = None, at: float | None = None
    ) -> None:
        """Record that the application got the outcome of a message."""
        self.outcomes((message,), outcome, offset=offset, at=at)

    def outcomes(
        self,
        messages: Sequence[MessageId],
        outcome: Outcome,
        *,
        offset: Offset | None = None,
        at: float | None = None,
    ) -> None:
        """Record one outcome of several messages. `offset` is that of the first; the others follow one by one."""
        assert outcome in _OUTCOMES, outcome
        assert offset is None or outcome == "ok", "only what is stored has an offset"
        place = {} if offset is None else {"o": _text(offset)}
        self._line(f.OUTCOME, at, x=outcome, **f.encode_ids(messages), **place)

    def deliver(
        self,
        message: MessageId,
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        offset: Offset,
        attempt: int = 1,
        maybe_repeated: bool = False,
        key: bytes | None = None,
        token: int | None = None,
        group_epoch: int = 0,
        at_most_once: bool = False,
        at: float | None = None,
    ) -> None:
        """Record that a consumer got a message. See `deliveries`."""
        self.deliveries(
            (message,), group=group, consumer=consumer, topic=topic, partition=partition, offset=offset,
            attempt=attempt, maybe_repeated=maybe_repeated, keys=(key,), token=token, group_epoch=group_epoch,
            at_most_once=at_most_once, at=at,
        )  # fmt: skip

    def deliveries(
        self,
        messages: Sequence[MessageId],
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        offset: Offset,
        attempt: int = 1,
        maybe_repeated: bool = False,
        keys: Sequence[bytes | None] = (),
        token: int | None = None,
        group_epoch: int = 0,
        at_most_once: bool = False,
        at: float | None = None,
    ) -> None:
        """Record that a consumer got messages at consecutive offsets, in this order. `offset` is that of the first.

        Delivery attempts from 2 on, and flagged deliveries, may repeat a message. All others are first delivery
        attempts. Call `flush` before you acknowledge the messages to the broker.

        Args:
            messages: Their ids.
            group: The consumer group. In mode `broadcast`: the group and the consumer, `group/consumer`.
            consumer: The consumer's name.
            topic: The topic's name.
            partition: The partition's number in the topic.
            offset: The offset of the first message.
            attempt: The delivery attempt. With a token: of the first message.
            maybe_repeated: Whether they are flagged.
            keys: In mode `key_ordered`, the key of each message. Otherwise leave it empty.
            token: In modes `key_ordered` and `shared`, the token of the grant that the messages are of.
            group_epoch: With a token: the epoch of the group, if it is known.
            at_most_once: Whether the group is at most once.
            at: The time, if it was before the call.
        """
        assert partition >= 0
        assert attempt >= 1
        fields: dict[str, object] = {"g": group, "c": consumer, "t": topic, "q": partition, "o": _text(offset)}
        if attempt > 1:
            fields["a"] = attempt
        if maybe_repeated:
            fields["r"] = 1
        if token is not None:
            fields["u"] = token
            if group_epoch:
                fields["v"] = group_epoch
            if keys:
                fields.update(f.encode_keys(keys))
        if at_most_once:
            fields["b"] = 1
        self._line(f.DELIVER, at, **fields, **f.encode_ids(messages))

    def ack(self, *, group: str, topic: str, partition: int, offset: Offset, at: float | None = None) -> None:
        """Record that a consumer acknowledged an offset, and so all offsets below it in the partition."""
        self._line(f.ACK, at, g=group, t=topic, q=partition, o=_text(offset))

    def ack_single(
        self,
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        offsets: Sequence[Offset],
        tokens: Sequence[int],
        at: float | None = None,
    ) -> None:
        """Record that a consumer acknowledges messages, each under its token. Call it before that is sent."""
        self._line(f.ACK, at, g=group, c=consumer, t=topic, q=partition, **_singles(offsets, tokens))

    def confirm(
        self,
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        offsets: Sequence[Offset],
        tokens: Sequence[int],
        group_epoch: int = 0,
        at: float | None = None,
    ) -> None:
        """Record that the brokers confirmed acknowledgements of single messages: these must not come again."""
        epoch = {"v": group_epoch} if group_epoch else {}
        self._line(f.CONFIRM, at, g=group, c=consumer, t=topic, q=partition, **_singles(offsets, tokens), **epoch)

    def nack(
        self,
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        offset: Offset,
        token: int,
        is_last: bool = False,
        at: float | None = None,
    ) -> None:
        """Record that a consumer failed on a message, and gives its grant back. Call it before that is sent."""
        last = {"last": 1} if is_last else {}
        self._line(f.NACK, at, g=group, c=consumer, t=topic, q=partition, **_singles((offset,), (token,)), **last)

    def void(
        self,
        *,
        group: str,
        consumer: str,
        topic: str,
        partition: int,
        tokens: Sequence[int],
        at: float | None = None,
    ) -> None:
        """Record that a consumer knows that grants have ended: it gave them back, or lost them."""
        self._line(f.VOID, at, g=group, c=consumer, t=topic, q=partition, u=list(tokens))

    def parked(
        self,
        *,
        group: str,
        topic: str,
        partition: int,
        key: bytes | None,
        first: Offset,
        messages: int,
        state: str = "parked",
        at: float | None = None,
    ) -> None:
        """Record that a key waits, as a broker listed it: its messages are not done with, and are not lost.

        Args:
            group: The consumer group.
            topic: The topic's name.
            partition: The partition's number in the topic.
            key: The key; None: a message without a key.
            first: The offset of its first message.
            messages: How many of its messages wait.
            state: `parked`, `delayed` or `forwarding`.
            at: The time, if it was before the call.
        """
        text = {} if key is None else {"y": f.text_of_key(key)}
        self._line(f.PARKED, at, g=group, t=topic, q=partition, o=_text(first), n=messages, x=state, **text)

    def dead_letter(
        self,
        message: MessageId,
        *,
        group: str,
        topic: str,
        partition: int,
        offset: Offset,
        stored_at: str,
        maybe_repeated: bool = False,
        at: float | None = None,
    ) -> None:
        """Record a dead letter, as it is read from its topic.

        Args:
            message: The id of its message.
            group: The consumer group that failed on it, as its headers say, like all that follows.
            topic: The topic of its message.
            partition: The number of the partition there.
            offset: The offset of the message there.
            stored_at: Where the dead letter is: for example topic, partition and offset.
            maybe_repeated: Its topic may have it a second time.
            at: The time, if it was before the call.
        """
        flag = {"r": 1} if maybe_repeated else {}
        place = {"o": _text(offset), "w": stored_at}
        self._line(f.DEAD, at, g=group, t=topic, q=partition, m=message, **place, **flag)

    def person(
        self,
        act: PersonAct,
        *,
        group: str,
        topic: str,
        partition: int,
        offset: Offset | None = None,
        key: bytes | None = None,
        done: bool = False,
        at: float | None = None,
        way: Way | None = None,
        end: Offset | None = None,
    ) -> None:
        """Record what an administrator, or a program for one, does to a consumer group.

        Record it before the request is sent, because its answer may be lost, and once more with `done` when the answer
        says that it was carried out.

        Args:
            act: `release`, `skip` or `dead_letter` of a waiting key; `replay` or `drop` of a dead letter; `move` of the
                group, see `way`; `delete` of the group.
            group: The consumer group.
            topic: The topic's name.
            partition: The partition's number in the topic.
            offset: Of the message that it is about; None: of the whole partition. Of a `move`, see `way`.
            key: The key that it is about; None: none.
            done: Whether the answer came.
            at: The time, if it was before the call.
            way: Of a `move`, and only of one: a `rewind` to `offset`, a `skip` from `offset` to `end`, or another
                `mode`, which explains everything before its answer came.
            end: Of a skip: where it leads.
        """
        fields: dict[str, object] = {} if offset is None else {"o": _text(offset)}
        if key is not None:
            fields["y"] = f.text_of_key(key)
        if way is not None:
            fields["d"] = way
        if end is not None:
            fields["z"] = _text(end)
        if done:
            fields["done"] = 1
        self._line(f.PERSON, at, g=group, t=topic, q=partition, x=act, **fields)

    def cancel(
        self,
        *,
        topic: str,
        partition: int,
        offset: Offset,
        answer: CancelAnswer | None = None,
        at: float | None = None,
    ) -> None:
        """Record that a delayed message is to be cancelled. Call it before the request is sent, and with the answer.

        Args:
            topic: The topic's name.
            partition: The partition's number in the topic.
            offset: The offset in the outcome of the message.
            answer: What a broker answered; None: it is about to be asked.
            at: The time, if it was before the call.
        """
        fields: dict[str, object] = {} if answer is None else {"x": answer}
        self._line(f.CANCEL, at, t=topic, q=partition, o=_text(offset), **fields)

    def topic(self, act: TopicAct, topic: str, *, at: float | None = None) -> None:
        """Record what a program does with a topic, before the request is sent.

        Args:
            act: `delete`, or `publish`: it publishes rows, which no producer sends.
            topic: The topic's name.
            at: The time, if it was before the call.
        """
        self._line(f.TOPIC, at, t=topic, x=act)

    def gap(
        self,
        *,
        topic: str,
        partition: int,
        first: Offset,
        end: Offset,
        why: str,
        group: str | None = None,
        at: float | None = None,
    ) -> None:
        """Record that the system declared that the offsets [first, end) will not be delivered.

        Args:
            topic: The topic's name.
            partition: The partition's number in the topic.
            first: The first offset that is missing.
            end: The first offset after the gap.
            why: The reason, for humans: lost, retention, started later.
            group: The consumer group; None: every consumer group.
            at: The time, if it was before the call.
        """
        self._range(f.GAP, topic, partition, first, end, why, group, at)

    def skip(
        self,
        *,
        topic: str,
        partition: int,
        first: Offset,
        end: Offset,
        why: str = "",
        group: str | None = None,
        at: float | None = None,
    ) -> None:
        """Record that the server skipped repeats in [first, end). Missing messages in it still count as lost."""
        self._range(f.SKIP, topic, partition, first, end, why, group, at)

    def _range(
        self,
        kind: str,
        topic: str,
        partition: int,
        first: Offset,
        end: Offset,
        why: str,
        group: str | None,
        at: float | None,
    ) -> None:
        more: dict[str, object] = {"why": why} if why else {}
        if group is not None:
            more["g"] = group
        self._line(kind, at, t=topic, q=partition, o=_text(first), z=_text(end), **more)

    def fault(
        self,
        name: str,
        victim: str,
        *,
        phase: Literal["inject", "heal"] = "inject",
        at: float | None = None,
        **details: str | int | float | bool,
    ) -> None:
        """Record that a test caused or ended a fault. Findings cite the last fault before them."""
        self._line(f.FAULT, at, name=name, victim=victim, phase=phase, **details)

    def end(
        self,
        group: str | None = None,
        *,
        topic: str | None = None,
        drained: bool = True,
        waiting: str = "",
        at: float | None = None,
    ) -> None:
        """Record that a group expects no more messages: it has all of them, or it has stopped waiting.

        Args:
            group: The consumer group; None: every consumer group in the history.
            topic: The topic that it reads; None: the topics of its deliveries in the history.
            drained: Whether the group got all messages that were sent.
            waiting: If not drained: what it waits for, for humans.
            at: The time, if it was before the call.
        """
        fields: dict[str, object] = {"drained": drained}
        if group is not None:
            fields["g"] = group
        if topic is not None:
            fields["t"] = topic
        if waiting:
            fields["waiting"] = waiting
        self._line(f.END, at, **fields)


def _singles(offsets: Sequence[Offset], tokens: Sequence[int]) -> dict[str, object]:
    assert len(offsets) == len(tokens) > 0
    if len(offsets) == 1:
        return {"o": _text(offsets[0]), "u": tokens[0]}
    return {"o": [_text(offset) for offset in offsets], "u": list(tokens)}


def _text(offset: Offset) -> str:
    return offset if isinstance(offset, str) else f.format_offset(offset)


class MemoryHistory(_Recorder):
    """A history in a list, for simulations and tests. `check_events(history.events)` checks it.

    Args:
        process: A name for the process that records.
        clock: Returns seconds that never go back. A simulation gives its own clock.
    """

    def __init__(self, process: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(process, clock)
        self.events: list[dict[str, object]] = []

    def _emit(self, event: dict[str, object]) -> None:
        self.events.append(event)


class HistoryWriter(_Recorder):
    """A history in a file. Do not use it from several threads at once.

    The writer appends to the file. So a process that is started again continues in the file of its earlier life, also
    if a kill left a torn line there.

    Args:
        path: The file. Its directory must exist.
        process: A name for the process that records.

    Raises:
        OSError: The file cannot be opened. Later calls raise it if the file cannot be written.
    """

    def __init__(self, path: str | Path, process: str) -> None:
        super().__init__(process, time.monotonic)
        self.path = Path(path)
        self._file = self.path.open("ab", buffering=BUFFER_SIZE_BYTES)
        if self._file.tell() and not _ends_with_newline(self.path):
            self._file.write(b"\n")  # a torn line of a killed process stays a separate line
        self._emit({"k": f.HISTORY, "version": f.VERSION, "process": process, "clock": "monotonic"})

    def _emit(self, event: dict[str, object]) -> None:
        self._file.write(_encode(event).encode() + b"\n")

    def flush(self) -> None:
        """Write all lines to the kernel. From now on a kill of this process loses none of them."""
        self._file.flush()

    def close(self) -> None:
        """Write that the process ended by itself, and close the file. A second call does nothing."""
        if not self._file.closed:
            self._line(f.CLOSE, None)
            self._file.close()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()  # without a `close` line, because the process did not end cleanly


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
