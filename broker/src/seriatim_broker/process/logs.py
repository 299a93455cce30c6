"""Logs on stderr: one JSON object in each line, or lines for humans if stderr is a terminal.

A broker works on if stderr takes nothing, because its disk is full, or because the program at the other end of the pipe
does not read. Without it: 1. A broker logs that a slave is silent. 2. The pipe is full, so the write waits. 3. The
broker answers nothing, and others take it for dead. Or: 2. The write raises in the middle of a step, and the broker
ends.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog
from seriatim_api.log_repeats import WithoutRepeats

_NAMED: Final = ("partition", "stage_partition")
_name_of: list[Callable[[int], str | None]] = []

REPEATED_S: Final = 1.0
"""The same line, field by field, is written once in this time, in seconds. Each partition may ask a coordinator that
does not answer, and each of them would say so."""

LINES_MAX: Final = 1_000
"""Maximum number of lines that wait for stderr to take them. The oldest ones are dropped then, and counted."""

LINE_BYTES_MAX: Final = 4_096
"""A pipe that is ready takes this many bytes at once without a wait. A longer line is written in parts."""


def name_partitions(name_of: Callable[[int], str | None]) -> None:
    """From now on lines name partitions by this function of their id. It returns None for an id without a name."""
    _name_of.append(name_of)


def named(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Give the partitions of a line their names for humans: `topic/number`. An id without a name is called an id."""
    for field in _NAMED:
        if isinstance(id_ := event.get(field), int):
            name = next(filter(None, (name_of(id_) for name_of in _name_of)), None)
            if name is None:
                event[f"{field}_id"] = event.pop(field)
            else:
                event[field] = name
    return event


class LogFile:
    """Lines for a file descriptor. `write` neither waits nor raises.

    What the file does not take waits here, up to `LINES_MAX` lines, and goes before the next line. If lines were
    dropped, a line says how many.

    Args:
        descriptor: The file descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._rest = b""  # of the line that is being written
        self.dropped = 0

    def write(self, text: str) -> None:
        """Write a line, or keep it until the file takes lines again."""
        self._waiting.append(text.encode(errors="replace"))
        while len(self._waiting) > LINES_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the file takes it now."""
        # If it raises, the disk is full, or the reader has gone: nothing can be reported, and the work continues.
        with suppress(OSError):
            while (self._rest or self._waiting or self.dropped) and self._is_ready():
                if not self._rest and self.dropped:
                    self._rest = b'{"event": "log_lines_dropped", "count": %d}\n' % self.dropped
                    self.dropped = 0
                elif not self._rest:
                    self._rest = self._waiting.popleft()
                written = os.write(self._descriptor, self._rest[:LINE_BYTES_MAX])
                self._rest = self._rest[written:]

    def _is_ready(self) -> bool:
        """Whether a write would not wait. One that would fail does not wait either."""
        return bool(self._poll.poll(0))


class _AnyFile:
    """A stand-in of stderr that is no file of the system: what it raises is dropped."""

    def write(self, text: str) -> None:
        """Write a line."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Nothing waits here."""


def say(text: str) -> None:
    """Send an administrator something on stderr, if it takes anything."""
    _stderr().write(f"{text}\n")


def _stderr() -> LogFile | _AnyFile:
    try:
        return LogFile(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return _AnyFile()


class _Guarded:
    """Renders a line. If a field cannot be rendered, the line has only its event."""

    def __init__(self, render: structlog.typing.Processor) -> None:
        self._render = render

    def __call__(
        self, logger: structlog.typing.WrappedLogger, name: str, fields: structlog.typing.EventDict
    ) -> structlog.typing.ProcessorReturnValue:
        event = fields.get("event")
        try:
            return self._render(logger, name, fields)
        except Exception as exc:  # the text of a foreign object
            return self._render(logger, name, {"event": f"{event}", "unrendered": type(exc).__name__, "level": name})


def configure(level: str = "info", **context: object) -> None:
    """Set up structlog for this process.

    Args:
        level: The least severe level that is written, for example `info`.
        context: Fields that each line gets.

    Raises:
        ValueError: There is no such level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"there is no log level {level!r}")
    is_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(default=str)
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        named,
        structlog.processors.add_log_level,
        WithoutRepeats(REPEATED_S, structlog.DropEvent),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not is_terminal:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, _Guarded(renderer)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _stderr())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)
