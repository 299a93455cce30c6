"""Lines of a log that come again and again. What fails is tried again, and each try would log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

LINES_MAX: Final = 500
"""Maximum number of lines that are remembered. Above it the oldest one is forgotten, and would be written again."""


@dataclass(slots=True, eq=False)
class WithoutRepeats:
    """A processor of structlog that drops a line if the same one was written a moment ago. The next line that is
    written has their count as `repeated`. Lines with different exceptions are different lines.

    Args:
        within_s: The same line is written once in this many seconds.
        dropped: What to raise for a line that is not written: `structlog.DropEvent`. This package does not import it.
        clock: A monotonic clock, in seconds.
    """

    _within_s: float
    _dropped: type[BaseException]
    _clock: Callable[[], float] = time.monotonic
    _written: dict[tuple[tuple[str, str], ...], tuple[float, int]] = field(default_factory=dict)

    def __call__(self, _logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the line to write.

        Raises:
            BaseException: `dropped`: it is not written.
        """
        try:
            left_out = self._take(fields)
        except Exception:  # the text of a foreign object: the renderer says so
            return fields
        if left_out is None:
            raise self._dropped
        return {**fields, "repeated": left_out} if left_out else fields

    def _take(self, fields: Mapping[str, object]) -> int | None:
        """Take a line: None if it is to be left out; otherwise how many such lines were left out before it."""
        texts = {name: str(value) for name, value in fields.items()}
        if fields.get("exc_info") is True:
            texts["exc_info"] = repr(sys.exc_info()[1])
        line = tuple(sorted(texts.items()))
        now_s = self._clock()
        written_s, left_out = self._written.get(line, (now_s - self._within_s, 0))
        if now_s - written_s < self._within_s:
            self._written[line] = written_s, left_out + 1
            return None
        self._written.pop(line, None)
        self._written[line] = now_s, 0
        if len(self._written) > LINES_MAX:
            del self._written[next(iter(self._written))]
        return left_out
