"""Logs on stderr, as JSON, in which no line comes again and again.

What fails is tried again every few seconds, and each try logs. So a line that is the same in all its fields is written
once in 10 s, and the next one says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

REPEATED_S: Final = 10.0
"""The same line is written once in this time, in seconds."""

LINES_MAX: Final = 500
"""So many lines are remembered. Then the oldest one is forgotten, and would be written again."""


class Repeats:
    """A processor that drops a line which was written less than 10 s ago, and counts it.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: dict[tuple[tuple[str, str], ...], tuple[float, int]] = {}

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, _method: str, fields: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Return the line to write.

        Raises:
            DropEvent: It is not written.
        """
        line = tuple(sorted((name, str(value)) for name, value in fields.items()))
        now_s = self._clock()
        written_s, left_out = self._written.get(line, (now_s - REPEATED_S, 0))
        if now_s - written_s < REPEATED_S:
            self._written[line] = written_s, left_out + 1
            raise structlog.DropEvent
        self._written.pop(line, None)
        self._written[line] = now_s, 0
        if len(self._written) > LINES_MAX:
            del self._written[next(iter(self._written))]
        more: dict[str, Any] = {"repeated": left_out} if left_out else {}
        return {**fields, **more}


def configure_logs(level: str) -> None:
    """Set up structlog for this process. A level that there is not counts as `info`."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            Repeats(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
