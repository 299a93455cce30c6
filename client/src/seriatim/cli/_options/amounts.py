"""Reads durations and sizes that users write, and shows them in the same form.

90s  12h  7d  1d12h  "2 weeks"  forever          1048576  500MB  10GiB  10Gi  none
"""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Final

from seriatim_api.delay_limits import DELAY_MAX_MS_MAX

from seriatim.cli._options.written import WrittenType

NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number that fits into a topic's record."""

DURATION_FORMS: Final = "a number and a unit (s, m, h, d, w), such as 90s, 12h, 7d or 1d12h; or forever"
SIZE_FORMS: Final = "a number of bytes with a unit or without, such as 500MB, 10GiB or 1048576; or none"

_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORDS: Final = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_PART: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)\s*")
_SIZE: Final = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*([kmgtpe]?i?)b?", re.IGNORECASE)
_POWERS: Final = {letter: power for power, letter in enumerate(("", "k", "m", "g", "t", "p", "e"))}
_NO_LIMIT: Final = ("0", "none", "no limit", "forever", "for ever", "unlimited")


def parse_duration_ms(text: str) -> int:
    """Read a duration. Returns milliseconds; 0 for `forever`.

    Raises:
        ValueError: The text is not a duration. The error says how to write one.
    """
    wanted = text.strip().lower()
    if wanted in _NO_LIMIT:
        return 0
    total, place = Decimal(0), 0
    while place < len(wanted):
        found = _PART.match(wanted, place)
        unit = _unit(found[2]) if found is not None else None
        if found is None or unit is None:
            raise ValueError(f"{text!r} is no duration: write {DURATION_FORMS}")
        total += Decimal(found[1]) * _MS[unit]
        place = found.end()
    if not wanted or not 0 < total <= NUMBER_MAX:
        raise ValueError(f"{text!r} is no duration that a topic can have: write {DURATION_FORMS}")
    return max(int(total), 1)


def _unit(word: str) -> str | None:
    singular = word.removesuffix("s") if len(word) > 2 else word
    unit = _WORDS.get(singular, word)
    return unit if unit in _MS else None


def parse_size(text: str) -> int:
    """Read a size. Returns bytes; 0 for `none`. `10GB` and `10G` count in 1,000s, `10GiB` and `10Gi` in 1,024s.

    Raises:
        ValueError: The text is not a size. The error says how to write one.
    """
    wanted = text.strip()
    if wanted.lower() in _NO_LIMIT:
        return 0
    found = _SIZE.fullmatch(wanted)
    if found is None:
        raise ValueError(f"{text!r} is no size: write {SIZE_FORMS}")
    unit = found[2].lower()
    if unit == "i":
        raise ValueError(f"{text!r} is no size: write {SIZE_FORMS}")
    total = Decimal(found[1]) * (1024 if unit.endswith("i") else 1000) ** _POWERS[unit.removesuffix("i")]
    if not 0 < total <= NUMBER_MAX:
        raise ValueError(f"{text!r} is no size that a topic can have: write {SIZE_FORMS}")
    return max(int(total), 1)


def format_duration(milliseconds: int) -> str:
    """A duration in the form that `parse_duration_ms` reads: `3d`, `1d12h`, `1.5s`."""
    left, parts = milliseconds, []
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    if left or not parts:
        parts.append(f"{left / 1000:g}s")
    return "".join(parts)


def format_size(size_bytes: int) -> str:
    """A size in the form that `parse_size` reads, in 1,024s with at most one decimal: `10GiB`, `1.5MiB`, `900B`."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f}".removesuffix(".0") + units[0]


def _read_duration(text: str) -> int:
    found = parse_duration_ms(text)
    if 0 < found < _MS["s"]:
        raise ValueError(f"{text!r} is too short: at least 1s, or forever")
    return found


DURATION: Final = WrittenType("DURATION", int, _read_duration)
"""A duration, in ms."""


def _read_delay(text: str, what: str, or_else: str = "") -> int:
    with suppress(ValueError):
        found = parse_duration_ms(text)
        if 0 < found <= DELAY_MAX_MS_MAX:
            return found
    raise ValueError(f"{text!r} is no {what}: write 500ms, 12h, 40d or the like, at most 366d{or_else}")


def _read_delay_max(text: str) -> int:
    if text.strip().lower() in ("0", "none"):
        return 0
    return _read_delay(text, "limit of delays", "; or 0 for no delays")


DELAY: Final = WrittenType("DURATION", int, lambda text: _read_delay(text, "delay"))
"""The delay of a message, in ms."""

DELAY_MAX: Final = WrittenType("DURATION", int, _read_delay_max)
"""The longest delay of a topic, in ms; 0: no delayed messages."""


def size_type(least: int) -> WrittenType[int]:
    """The type of options that take a size, in bytes: at least this many."""

    def read(text: str) -> int:
        found = parse_size(text)
        if 0 < found < least:
            raise ValueError(f"{text!r} is too small: at least {format_size(least)}, or none")
        return found

    return WrittenType("SIZE", int, read)
