"""Logs on stderr, as JSON, in which no line comes again and again.

What fails is tried again every few seconds, and each try logs. So a line that is the same in all its fields is written
once in 10 s, and the next one says how many were left out.
"""

from __future__ import annotations

import logging
from typing import Final

import structlog
from seriatim_api.log_repeats import WithoutRepeats

REPEATED_S: Final = 10.0
"""The same line is written once in this time, in seconds."""


def configure_logs(level: str) -> None:
    """Set up structlog for this process. A level that there is not counts as `info`."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            WithoutRepeats(REPEATED_S, structlog.DropEvent),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
