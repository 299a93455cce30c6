"""Texts with a unit: quantities as Kubernetes writes them, durations as people do."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from .errors import InvalidDurationError, InvalidQuantityError

FOREVER: Final = "Forever"
"""A retention that drops nothing."""

DURATION_PATTERN: Final = r"^([0-9]{1,9}(d|h|m|s)){1,4}$"
"""What the API server lets through; units may come in any order, and add up."""

_QUANTITY: Final = re.compile(r"^([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(|[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)$")
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


def parse_quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for; bytes for storage, cores for processors.

    Raises:
        InvalidQuantityError: It stands for none.
    """
    found = _QUANTITY.match(text)
    if found is None:
        raise InvalidQuantityError(text)
    number, unit = found.groups()
    if unit in _FACTORS:
        return Decimal(number) * _FACTORS[unit]
    return Decimal(f"{number}{unit}")


def parse_duration_s(text: str) -> int:
    """The seconds of a duration such as `72h` or `1d12h`.

    Raises:
        InvalidDurationError: It is none.
    """
    if _DURATION.match(text) is None:
        raise InvalidDurationError(text)
    return sum(int(part[:-1]) * _SECONDS[part[-1]] for part in re.findall(r"[0-9]+[dhms]", text))


def parse_retention_ms(text: str) -> int:
    """The milliseconds of a retention; 0, as the brokers say it, for `Forever`.

    Raises:
        InvalidDurationError: It is neither a duration nor `Forever`.
    """
    return 0 if text == FOREVER else parse_duration_s(text) * 1000
