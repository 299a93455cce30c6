"""Reads places in a partition that users write: an offset, an end, a time, or how long ago.

earliest  latest  3:1200  -15m  "2h ago"  2026-11-22T10:00  2026-11-22T10:00Z  2026-11-22
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from seriatim_api.ids import make_offset, parse_offset

from seriatim.cli._options.written import WrittenType

if TYPE_CHECKING:
    from seriatim import GroupPartition

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO: Final = re.compile(r"-\s*(?P<minus>\d+)\s*(?P<unit>[smhdw])|(?P<past>\d+)\s*(?P<word>[smhdw])\s+ago")
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET: Final = re.compile(r"\d+:\d+")

HELP: Final = (
    "earliest, latest, an offset (3:1200), a time (2026-11-22T10:00, with Z or +01:00), or how long ago (-15m)"
)


@dataclass(frozen=True, slots=True)
class Written:
    """A place that a user wrote: one of the ends, an offset, or a time.

    Attributes:
        text: The text that was written.
        at: The place.
        zone_is_ours: Whether the text had no zone, so that this machine's zone was used.
    """

    text: str
    at: Literal["earliest", "end"] | int | datetime
    zone_is_ours: bool = False

    @property
    def is_offset(self) -> bool:
        """Whether it is an offset, which is a place in one partition only."""
        return isinstance(self.at, int)

    @property
    def target(self) -> Literal["earliest", "latest"] | int | datetime:
        """The place in the form that consumer groups take: the end is called "latest"."""
        return "latest" if self.at == "end" else self.at

    def explain(self) -> str | None:
        """A line that says which time was understood; None if the place is not a time."""
        if not isinstance(self.at, datetime):
            return None
        utc = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if self.zone_is_ours:  # its offset is that of the written date, which may have summer time when today has not
            return f"{self.text} is taken in this machine's zone, {self.at.tzname()}: {utc}"
        return f"{self.text} is {utc}"


def parse(text: str, now: datetime) -> Written:
    """Read a place.

    Args:
        text: The text that a user wrote.
        now: The time of this machine, with its zone.

    Raises:
        ValueError: The text is not a place. The error says how to write one.
    """
    wanted = text.strip()
    if wanted == "earliest":
        return Written(wanted, "earliest")
    if wanted in ("latest", "end"):
        return Written(wanted, "end")
    if _OFFSET.fullmatch(wanted):
        return Written(wanted, parse_offset(wanted))
    ago = _AGO.fullmatch(wanted)
    if ago is not None:
        count = int(ago["minus"] or ago["past"])
        try:
            return Written(wanted, _possible(now - timedelta(**{_UNITS[ago["unit"] or ago["word"]]: count})))
        except OverflowError:
            raise ValueError(f"{wanted!r} is before 1970: there was no message then") from None
    try:
        time = datetime.fromisoformat(wanted)
    except ValueError:
        raise ValueError(f"{wanted!r} is none of: {HELP}") from None
    is_ours = time.tzinfo is None
    try:
        # The zone of this machine has another offset from UTC in summer than in winter: take that of the written date.
        return Written(wanted, _possible(time.astimezone() if is_ours else time), zone_is_ours=is_ours)
    except (OverflowError, ValueError):
        raise ValueError(f"{wanted!r} is not between 1970 and 9999: there is no message of that time") from None


def _possible(time: datetime) -> datetime:
    """The time, if UTC has it and it is not before 1970.

    Raises:
        OverflowError: It is outside.
    """
    if time.astimezone(UTC) < _FIRST:
        raise OverflowError
    return time


def next_offset(row: GroupPartition) -> int | None:
    """The first offset that a consumer group has not acknowledged; None if it has no cursor there."""
    return make_offset(row.segment, row.acked_index) if row.has_cursor else None


PLACE: Final = WrittenType("place", Written, lambda text: parse(text, datetime.now().astimezone()))
"""A place."""


def _time(text: str) -> Written:
    with suppress(ValueError):
        found = parse(text, datetime.now().astimezone())
        if isinstance(found.at, datetime):
            return found
    raise ValueError(f"{text!r} is no time: write 2026-11-22T10:00, with Z or +01:00, or how long ago (-15m)")


TIME: Final = WrittenType("time", Written, _time)
"""A place that is a time."""
