"""Limits of a topic for delayed messages: how long a delay may be, and how many messages may wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

from seriatim_api.errors import BadRequestError

DAY_MS: Final = 86_400_000
DELAY_MAX_MS_DEFAULT: Final = 40 * DAY_MS
DELAY_MAX_MS_MAX: Final = 366 * DAY_MS
DELAYED_PENDING_MAX_DEFAULT: Final = 10_000_000


class DelayLimits(NamedTuple):
    """The limits of a topic, called as its settings are.

    Attributes:
        delay_max_ms: The longest delay of a message. 0: the topic takes no delayed messages.
        delayed_pending_max: Maximum number of delayed messages of a partition that are not due yet.
    """

    delay_max_ms: int = DELAY_MAX_MS_DEFAULT
    delayed_pending_max: int = DELAYED_PENDING_MAX_DEFAULT


class Settings(Protocol):
    """`TopicSettings` of the API. The core uses this module, so it does not load protobuf messages."""

    delay_max_ms: int
    delayed_pending_max: int

    def HasField(self, name: Literal["delay_max_ms"], /) -> bool:  # noqa: N802 - protobuf's name
        """Whether the field is set."""


def delay_limits_of(settings: Settings) -> DelayLimits:
    """The limits in a topic's record. One that an earlier version wrote has none, so the defaults count.

    An earlier version also stores a number that this one would refuse. Such a delay is cut to 366 days.
    """
    delay_max_ms, pending_max = DelayLimits()
    if settings.HasField("delay_max_ms"):
        delay_max_ms = min(settings.delay_max_ms, DELAY_MAX_MS_MAX)
    return DelayLimits(delay_max_ms, settings.delayed_pending_max or pending_max)


def check_delay_limits(settings: Mapping[str, object]) -> None:
    """Refuse settings with limits that no topic can have. Settings that are left out are not checked.

    Raises:
        BadRequestError: A limit is not a whole number, or outside its bounds.
    """
    for name, least, most, meaning in (
        ("delay_max_ms", 0, DELAY_MAX_MS_MAX, "0 (the topic takes no delayed messages) to 366 days in ms"),
        ("delayed_pending_max", 1, (1 << 63) - 1, "at least 1 message"),
    ):
        value = settings.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequestError(f"{name} is a whole number, not {value!r:.40}")
        if not least <= value <= most:
            raise BadRequestError(f"{name} is {value}: it is {meaning}")
