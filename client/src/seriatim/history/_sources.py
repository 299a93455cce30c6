"""The sources of lines: files that are read in one pass, or events in memory.

The checker keeps only numbers. A finding names its lines by references, and the few lines that are shown are read a
second time. So a history of a gigabyte is never in memory as a whole.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seriatim.history import _format as f
from seriatim.history._format import HistoryFormatError

Event = Mapping[str, object]
Take = Callable[[Event, int, int], None]
"""`take(event, source number, reference of the line)`. If the event is malformed, it raises one of `_MALFORMED`."""

_MALFORMED = (KeyError, TypeError, ValueError, OverflowError, AttributeError)
_NO_OBJECT = "not a JSON object"


@dataclass(slots=True)
class SourceState:
    """The name of a source, and the number of its torn lines."""

    name: str
    torn_lines: int = 0


class Lines(Protocol):
    """All lines of a history."""

    sources: list[SourceState]

    def read(self, take: Take) -> None:
        """Give every line to `take`, one source after another.

        Raises:
            HistoryFormatError: A line is not a line of a history, and no kill explains it.
        """

    def event_of(self, reference: int) -> Event:
        """Read the line of a reference again."""

    def place_of(self, reference: int) -> tuple[str, int]:
        """The source of a line, and the line's number there, counted from 1."""


class MemoryLines:
    """Events in memory, in the order in which they happened, from one recorder that was not killed."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: Sequence[Event] = events if isinstance(events, list) else list(events)
        self.sources = [SourceState("events")]

    def read(self, take: Take) -> None:
        for number, event in enumerate(self._events):
            try:
                take(event, 0, number)
            except _MALFORMED as error:
                raise HistoryFormatError("events", number + 1, _reason(error)) from error

    def event_of(self, reference: int) -> Event:
        return self._events[reference]

    def place_of(self, reference: int) -> tuple[str, int]:
        return "events", reference + 1


class FileLines:
    """Files of JSON lines. Each file is one source.

    Raises:
        HistoryFormatError: A file is given twice, which would look as if everything was sent twice.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)
        for path in self._paths:
            if sum(path.resolve() == other.resolve() for other in self._paths) > 1:
                raise HistoryFormatError(str(path), 0, "given twice")
        self.sources = [SourceState(str(path)) for path in self._paths]
        # One entry for each line. A line of a batch has many messages, so these arrays stay small.
        self._source = array("H")
        self._line = array("I")
        self._position = array("Q")

    def read(self, take: Take) -> None:
        for number in range(len(self._paths)):
            self._read_file(number, take)

    def _read_file(self, number: int, take: Take) -> None:
        path, state = self._paths[number], self.sources[number]
        line = position = 0
        torn_at = 0  # a line that could not be parsed; the next line shows whether a kill explains it
        raw = b""
        with path.open("rb") as file:
            while piece := file.readline(f.LINE_SIZE_BYTES_MAX + 1):
                raw = piece
                line += 1
                if len(raw) > f.LINE_SIZE_BYTES_MAX:
                    raise HistoryFormatError(state.name, line, f"longer than {f.LINE_SIZE_BYTES_MAX} bytes")
                event = _parse(raw)
                if torn_at:
                    # A kill explains it if the process was started again: then it continues with a new `history` line.
                    if event is None or event.get("k") != f.HISTORY:
                        raise HistoryFormatError(state.name, torn_at, _NO_OBJECT)
                    state.torn_lines += 1
                torn_at = 0
                if event is None:
                    torn_at = line
                else:
                    self._take(event, number, line, position, take)
                position += len(raw)
        if not line:
            raise HistoryFormatError(state.name, 0, "empty: not even a `history` line")
        if torn_at and raw.endswith(b"\n"):  # the line was written to its end, so a kill does not explain it
            raise HistoryFormatError(state.name, torn_at, _NO_OBJECT)
        state.torn_lines += bool(torn_at)

    def _take(self, event: dict[str, object], number: int, line: int, position: int, take: Take) -> None:
        name = self.sources[number].name
        if line == 1 and event.get("k") != f.HISTORY:
            raise HistoryFormatError(name, 1, "a history begins with a `history` line")
        reference = len(self._source)
        self._source.append(number)
        self._line.append(line)
        self._position.append(position)
        try:
            take(event, number, reference)
        except _MALFORMED as error:
            raise HistoryFormatError(name, line, _reason(error)) from error

    def event_of(self, reference: int) -> Event:
        with self._paths[self._source[reference]].open("rb") as file:
            file.seek(self._position[reference])
            event = _parse(file.readline())
        assert event is not None, "the history changed while it was checked"
        return event

    def place_of(self, reference: int) -> tuple[str, int]:
        return self.sources[self._source[reference]].name, self._line[reference]


def _parse(raw: bytes) -> dict[str, object] | None:
    try:
        event = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no {error.args[0]!r}"
    return str(error)
