"""The client's logger. A handler that the program gave to `logging` belongs to the program, and may raise.

Without the guard: 1. The disk of the program's log is full, and its handler raises. 2. The client logs a warning in the
middle of a step. 3. The step is not done, and the consumer waits for ever.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

_has_told = False


class GuardedLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as the logger does, and raises nothing. The first failure of a handler is reported on stderr."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Give a record to the logger's handlers. All other methods call this one."""
        if not self.isEnabledFor(level):
            return
        kwargs.setdefault("stacklevel", 2)
        try:
            self.logger.log(level, msg, *args, **kwargs)
        except Exception as exc:
            _tell(exc)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """A record is as it was given."""
        return msg, kwargs


def _tell(exc: Exception) -> None:
    global _has_told
    if _has_told:
        return
    _has_told = True
    with suppress(Exception):  # stderr may take nothing either, or be closed
        sys.stderr.write(
            f"a handler of the logger 'seriatim' raised {type(exc).__name__}: the client continues, and lines of its "
            "log may be missing\n"
        )


def guarded(name: str = "seriatim") -> GuardedLogger:
    """A logger that raises nothing."""
    return GuardedLogger(logging.getLogger(name))
