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
        key: str | None = None,
        at: float | None = None,
    ) -> None:
        """Record that a message is about to be sent. Call it before the send."""
        more: dict[str, object] = {} if key is None else {"y": key}
        self.sends(
            (message,), producer=producer, topic=topic, partition=partition, sequence=sequence, epoch=epoch, at=at,
            **more,
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
            at: The time, if it was before the call.
            more: More keys of the line.
        """
        assert partition >= 0
        assert sequence >= 0
        assert epoch >= 0
        fields: dict[str, object] = {"p": producer, "t": topic, "q": partition, "s": sequence}
        if epoch:
            fields["e"] = epoch
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
        at: float | None = None,
    ) -> None:
        """Record that a consumer got a message."""
        self.deliveries(
            (message,), group=group, consumer=consumer, topic=topic, partition=partition, offset=offset,
            attempt=attempt, maybe_repeated=maybe_repeated, at=at,
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
        at: float | None = None,
    ) -> None:
        """Record that a consumer got messages at consecutive offsets, in this order. `offset` is that of the first.

        Delivery attempts from 2 on, and flagged deliveries, may repeat a message. All others are first delivery
        attempts. Call `flush` before you acknowledge the messages to the broker.
        """
        assert partition >= 0
        assert attempt >= 1
        fields: dict[str, object] = {"g": group, "c": consumer, "t": topic, "q": partition, "o": _text(offset)}
        if attempt > 1:
            fields["a"] = attempt
        if maybe_repeated:
            fields["r"] = 1
        self._line(f.DELIVER, at, **fields, **f.encode_ids(messages))

    def ack(self, *, group: str, topic: str, partition: int, offset: Offset, at: float | None = None) -> None:
        """Record that a consumer acknowledged an offset, and so all offsets below it in the partition."""
        self._line(f.ACK, at, g=group, t=topic, q=partition, o=_text(offset))

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
            end: The first offset behind the gap.
            why: The reason, for people: lost, retention, started later.
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
            waiting: If not drained: what it waits for, for people.
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

    The writer appends to the file. So a process that is started again goes on in the file of its earlier life, also if
    a kill left a torn line there.

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
            self._file.close()  # without a `close` line, because the process did not end in order


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
