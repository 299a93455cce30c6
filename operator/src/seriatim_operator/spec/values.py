"""Texts with a unit: quantities such as `100Gi`, as Kubernetes writes them, and durations such as `72h`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from .errors import InvalidDurationError, InvalidQuantityError

FOREVER: Final = "Forever"
"""The retention with which brokers drop nothing because of its age."""

DURATION_PATTERN: Final = r"^([0-9]{1,9}(d|h|m|s)){1,4}$"
"""A duration that the API server accepts. Units may come in any order; they are added."""

PAUSE_PATTERN: Final = r"^([0-9]{1,9}(h|ms|m|s)){1,3}$"
"""A duration of a retry policy: whole numbers with units that the API server's own durations have, so not days."""

_QUANTITY: Final = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(|[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)")
_FACTORS: Final = {
    "": Decimal(1),
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION: Final = re.compile(DURATION_PATTERN)
_MILLISECONDS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PAUSE: Final = re.compile(PAUSE_PATTERN)


def parse_quantity(text: str) -> Decimal:
    """The number in a Kubernetes quantity: bytes for storage, cores for processors.

    Raises:
        InvalidQuantityError: The text is not a quantity.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise InvalidQuantityError(text)
    number, unit = found.groups()
    if unit in _FACTORS:
        return Decimal(number) * _FACTORS[unit]
    return Decimal(f"{number}{unit}")


def parse_duration_s(text: str) -> int:
    """The seconds in a duration such as `72h` or `1d12h`.

    Raises:
        InvalidDurationError: The text is not a duration.
    """
    if _DURATION.fullmatch(text) is None:
        raise InvalidDurationError(text)
    return sum(int(part[:-1]) * _SECONDS[part[-1]] for part in re.findall(r"[0-9]+[dhms]", text))


def parse_retention_ms(text: str) -> int:
    """The milliseconds in a retention. `Forever` gives 0, which means no limit to the brokers.

    Raises:
        InvalidDurationError: The text is neither a duration nor `Forever`.
    """
    return 0 if text == FOREVER else parse_duration_s(text) * 1000


def parse_pause_ms(text: str) -> int:
    """The milliseconds in a duration of a retry policy, such as `500ms` or `1m30s`.

    Raises:
        InvalidDurationError: The text is not such a duration.
    """
    if _PAUSE.fullmatch(text) is None:
        raise InvalidDurationError(text)
    return sum(int(number) * _MILLISECONDS[unit] for number, unit in re.findall(r"([0-9]+)(h|ms|m|s)", text))


def format_pause(milliseconds: int) -> str:
    """The shortest text that `parse_pause_ms` reads as this many milliseconds, such as `1m30s`."""
    parts, left = "", milliseconds
    for unit, size in _MILLISECONDS.items():
        count, left = divmod(left, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"
