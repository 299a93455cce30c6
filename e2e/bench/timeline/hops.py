"""Hops: from the stamps of three processes to the timeline of each message, and to medians over all messages.

One message is in flight. So the stamps of a message are those between its begin and its end, and each hop is the first
stamp of its kind after the hop before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from e2e.bench.measures.figures import percentile
from e2e.bench.timeline.stamps import REPLY_WRITTEN, Times

Role = Literal["client", "master", "slave"]

SLOWEST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a message.

    Attributes:
        name: Its key in the JSON.
        text: What has happened then.
        role: The process in which it happens.
        stamp: The name of its stamp; empty: the program itself reads the clock.
    """

    name: str
    text: str
    role: Role
    stamp: str


HOPS: Final = (
    Hop("client_writes", "the client writes the encoded message", "client", "frame made"),
    Hop("master_has", "the master has it", "master", "append taken"),
    Hop("master_sends", "the master sends it to the slave", "master", "batch sent"),
    Hop("slave_has", "the slave has it", "slave", "batch taken"),
    Hop("submitted", "the slave's write is submitted", "slave", "submitted"),
    Hop("flush_begins", "the slave's flush begins", "slave", "flush begun"),
    Hop("flush_ends", "… and ends", "slave", "flush ended"),
    Hop("slave_answers", "the slave's event loop knows it, and answers", "slave", "answer sent"),
    Hop("master_hears", "the master has the answer", "master", "answer taken"),
    Hop("reply_made", "the master has made the reply", "master", "reply made"),
    Hop("reply_written", "the master writes it", "master", REPLY_WRITTEN),
    Hop("client_has", "the client has it", "client", "reply taken"),
    Hop("program", "the program continues", "client", ""),
)
"""The way of a message, in order."""

ASIDE: Final = (
    Hop("master_submitted", "the master's own write is submitted", "master", "submitted"),
    Hop("master_flush_begins", "its flush begins", "master", "flush begun"),
    Hop("master_flush_ends", "… and ends", "master", "flush ended"),
)
"""What the master does meanwhile, from the moment at which it has the message."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One message: µs since the program began to send, of each of `HOPS` and, if all were seen, of `ASIDE`."""

    at_us: tuple[float, ...]
    aside_us: tuple[float, ...]

    @property
    def took_us(self) -> tuple[float, ...]:
        """The time from the hop before to each hop."""
        return tuple(later - earlier for earlier, later in zip((0.0, *self.at_us), self.at_us, strict=False))


@dataclass(frozen=True, slots=True)
class Measured:
    """One hop over all messages, in µs.

    Attributes:
        hop: Which one.
        at_us: The median of the time since the program began to send.
        took_us: The median of the time since the hop before.
        took_p99_us: The time since the hop before that 99 per cent did not exceed.
        slowest_us: The mean time since the hop before, of the slowest hundredth of all messages. These means add up.
    """

    hop: Hop
    at_us: float
    took_us: float
    took_p99_us: float
    slowest_us: float


def timelines(messages: Sequence[tuple[int, int]], times: Mapping[Role, Times]) -> list[Timeline]:
    """The timelines of the messages of which each hop was seen.

    Args:
        messages: When the program began to send each, and when it continued, in ns.
        times: The stamps of each role.
    """
    found = []
    for begin_ns, end_ns in messages:
        at = _follow(HOPS[:-1], times, begin_ns, end_ns)
        if at is None:
            continue
        aside = _follow(ASIDE, times, at[1], end_ns) or ()
        found.append(
            Timeline(
                tuple((moment - begin_ns) / 1000 for moment in (*at, end_ns)),
                tuple((moment - begin_ns) / 1000 for moment in aside),
            )
        )
    return found


def _follow(hops: Sequence[Hop], times: Mapping[Role, Times], begin_ns: int, end_ns: int) -> list[int] | None:
    """The first stamp of each hop after that of the hop before; None if one is missing."""
    found = []
    moment = begin_ns
    for hop in hops:
        stamps = times[hop.role][hop.stamp]
        number = bisect_left(stamps, moment)
        if number == len(stamps) or stamps[number] > end_ns:
            return None
        moment = stamps[number]
        found.append(moment)
    return found


def measured(found: Sequence[Timeline]) -> list[Measured]:
    """Each of `HOPS` over all messages. There must be at least one."""
    count = max(1, round(len(found) * SLOWEST_SHARE))
    slowest = sorted(found, key=lambda timeline: timeline.at_us[-1])[-count:]
    rows = []
    for number, hop in enumerate(HOPS):
        took = [timeline.took_us[number] for timeline in found]
        rows.append(
            Measured(
                hop,
                percentile([timeline.at_us[number] for timeline in found], 0.5),
                percentile(took, 0.5),
                percentile(took, 0.99),
                fmean(timeline.took_us[number] for timeline in slowest),
            )
        )
    return rows


def aside(found: Sequence[Timeline]) -> list[tuple[Hop, float]]:
    """Each of `ASIDE` with the median of its time since the program began to send; empty if it was never seen in
    full."""
    seen = [timeline.aside_us for timeline in found if timeline.aside_us]
    return [(hop, percentile([row[number] for row in seen], 0.5)) for number, hop in enumerate(ASIDE)] if seen else []
