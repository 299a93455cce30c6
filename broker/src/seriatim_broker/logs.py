"""Logs on stderr: one JSON object in each line, or lines for people if stderr is a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


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
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not is_terminal:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)
