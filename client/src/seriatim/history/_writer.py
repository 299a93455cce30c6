"""Writing a history while the system runs, at the cost of a line for each batch.

The file form and the in-memory form share their methods, so that what a simulation keeps in a list and what a process
writes to disk are the same lines.
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
"""63 bits as `seriatim_api.ids` makes them, or `segment:index`."""

BUFFER_SIZE_BYTES: Final = 256 << 10
"""One system call for some thousand lines, where nobody asks for a flush."""

_OUTCOMES: Final = ("ok", "failed", "unknown")
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class _Recorder(ABC):
    """The methods that make lines. Where the time is not given it is read here, from the recorder's clock."""

    def __init__(self, process: str, clock: Callable[[], float]) -> None:
        assert process, "a history names the process that wrote it"
        self.process = process
        self._clock = clock

    @abstractmethod
    def _emit(self, event: dict[str, object]) -> None:
        """Take one line."""

    def now(self) -> float:
        """The recorder's clock, in seconds; for `at`, where the moment is not the moment of the call."""
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
        """A message is about to be sent; call it before you hand the message over."""
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
        """Several messages of one producer to one partition, in this order, are about to be sent.

        Args:
            messages: Their ids, at least one; a `range` costs nothing.
            producer: Who sends: one that keeps its sends in order.
            topic: The topic.
            partition: The partition in the topic.
            sequence: Of the first one: how many this producer has sent to this partition before (in this epoch).
            epoch: The producer's epoch; sequences of a later epoch come after all of an earlier one.
            at: When, if earlier than now.
            more: Further keys of the line.
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
        """The application was told what became of a message."""
        self.outcomes((message,), outcome, offset=offset, at=at)

    def outcomes(
        self,
        messages: Sequence[MessageId],
        outcome: Outcome,
        *,
        offset: Offset | None = None,
        at: float | None = None,
    ) -> None:
        """The same became of several messages; `offset` is that of the first, the others follow it one by one."""
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
        """A message came to a consumer."""
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
        """Messages at consecutive offsets came to a consumer, in this order; `offset` is that of the first.

        Attempts from 2 on, and whatever is flagged, may repeat; the rest are first attempts. `flush` before you
        acknowledge them to the broker.
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
        """A consumer acknowledged an offset (and in partition order all below it)."""
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
        """The system declared that offsets from `first` up to, not including, `end` will not be delivered.

        Args:
            topic: The topic.
            partition: The partition in the topic.
            first: The first offset that is missing.
            end: The first offset after the gap.
            why: For people: lost, retention, started later.
            group: The consumer group; None: every group.
            at: When, if earlier than now.
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
        """The server passed over repeats in `first` up to, not including, `end`. It excuses no missing message."""
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
        """Something was broken, or mended, on purpose; findings cite the last fault before them."""
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
        """Nothing more is coming: the group has everything, or has given up waiting.

        Args:
            group: The consumer group; None: every group in the history.
            topic: The topic that it reads; None: those of which the history holds deliveries to it.
            drained: Whether the group reached the end of all that was sent.
            waiting: If not: what it waits for, as far as anybody knows.
            at: When, if earlier than now.
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
    """A history kept in a list, for simulations and tests; `check_events(history.events)` judges it.

    Args:
        process: Who records.
        clock: Seconds that never go back; a simulation gives its own.
    """

    def __init__(self, process: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(process, clock)
        self.events: list[dict[str, object]] = []

    def _emit(self, event: dict[str, object]) -> None:
        self.events.append(event)


class HistoryWriter(_Recorder):
    """A history written to a file. Not for use from several threads at once.

    The file is appended to: a process that is started again goes on in the file of its earlier run, after whatever a
    kill left there.

    Args:
        path: The file; its directory must exist.
        process: Who records.

    Raises:
        OSError: The file cannot be opened; later calls: it cannot be written.
    """

    def __init__(self, path: str | Path, process: str) -> None:
        super().__init__(process, time.monotonic)
        self.path = Path(path)
        self._file = self.path.open("ab", buffering=BUFFER_SIZE_BYTES)
        if self._file.tell() and not _ends_with_newline(self.path):
            self._file.write(b"\n")  # the torn line of a killed run stays a line of its own
        self._emit({"k": f.HISTORY, "version": f.VERSION, "process": process, "clock": "monotonic"})

    def _emit(self, event: dict[str, object]) -> None:
        self._file.write(_encode(event).encode() + b"\n")

    def flush(self) -> None:
        """Hand everything to the kernel: from now on a kill of this process loses none of it."""
        self._file.flush()

    def close(self) -> None:
        """Write that the process ended of itself, and close the file. A second call does nothing."""
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
            self._file.close()  # no `close` line: this run was cut short


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
