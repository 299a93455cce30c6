"""How near retention is to messages that a consumer group has not read. It is a figure for humans; no decision uses it.

Of the consumer groups of a partition only the one that is furthest behind counts, because its unread messages go first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from seriatim_api.ids import split_offset

from ...core.control import retention as rules
from ...core.control.retention import Policy, Reader
from ...core.values.chain import Chain
from ...core.values.effects import Led
from ...core.values.positions import BatchPlace, Place, first_kept
from ...core.values.segment import Segment, SegmentState

WARN_RATIO: Final = 0.8
"""From this `Nearness.ratio` on, the log names the consumer group."""

TIMED_MAX: Final = 16
"""Consumer groups of one partition for which a scan finds how old their unread messages are. Each takes a binary search
on the disk."""

NO_END_S: Final = float("inf")
"""There is no limit on the age of unread messages."""

FindIndex = Callable[[int], Awaitable[BatchPlace | None]]
"""The batch of the open segment with that index."""


class Nearness(NamedTuple):
    """How near the oldest message that a consumer group has not read is to being dropped.

    Attributes:
        consumer_group: The consumer group that is furthest behind.
        ratio: The message's age as a part of its limit, or the bytes after it as a part of theirs, whichever is more.
            At 1 the message is dropped.
        left_s: Seconds until its age drops it; infinite without such a limit, below 0 when it is due.
    """

    consumer_group: str
    ratio: float
    left_s: float


class Figures(NamedTuple):
    """Figures over all partitions with retention that this broker leads, as of the last scan.

    Attributes:
        retained_bytes: Kept bytes, on one disk.
        retained_s: The highest age, in seconds, of an oldest kept message.
        unread_ratio: The highest `Nearness.ratio`; 0 if every consumer group has read everything.
        unread_s: The lowest `Nearness.left_s`.
    """

    retained_bytes: int = 0
    retained_s: float = 0.0
    unread_ratio: float = 0.0
    unread_s: float = NO_END_S


def figures_of(
    retained: Sequence[tuple[int, float]], near: Sequence[Nearness]
) -> Figures:  # fmt: skip
    """Sum up bytes, ages, and how near retention is to unread messages, over partitions."""
    return Figures(
        sum(size_bytes for size_bytes, _ in retained),
        max((age_s for _, age_s in retained), default=0.0),
        max((one.ratio for one in near), default=0.0),
        min((one.left_s for one in near), default=NO_END_S),
    )


async def retained(led: Led, now_ms: int, find: FindIndex) -> tuple[int, float]:
    """Kept bytes of a partition, and the age of the oldest kept message in seconds; 0 if there is none."""
    chain = led.chain
    size_bytes = _later_bytes(led, chain.segments)
    segment = chain.segment(first_kept(chain).segment_no)
    assert segment is not None
    if segment.state is not SegmentState.OPEN:
        return size_bytes, max(now_ms - segment.opened_at_ms, 0) / 1000
    oldest = await find(segment.start) if led.flushed > segment.start else None
    return size_bytes, 0.0 if oldest is None else max(now_ms - oldest.append_time_ms, 0) / 1000


async def nearness(
    led: Led, policy: Policy, readers: Sequence[Reader], now_ms: int, find: FindIndex
) -> Nearness | None:  # fmt: skip
    """How near retention is to the oldest unread message of a consumer group; None: retention drops none of them."""
    limits = policy.unread_limits if policy.keeps_unread else policy.limits
    spared = [reader for reader in readers if reader.is_spared]
    if not limits.any or not spared:
        return None
    chain = led.chain
    reader = min(spared, key=lambda one: one.wanted)
    if reader.segment_no > chain.open_segment.no:
        return None  # cursors are read after the chain: all consumer groups are already in a newer segment
    place = _first_unread(chain, max(Place(*split_offset(reader.wanted)), first_kept(chain)))
    segment = chain.segment(place.segment_no)
    assert segment is not None
    if segment.state is SegmentState.OPEN:
        found = await find(place.index) if place.index < led.flushed else None
        if found is None:
            return None
        goes_ms, behind_bytes = found.append_time_ms, led.size_bytes - found.bytes_before
    elif segment.state is SegmentState.SEALED:
        # It goes as a whole: when its last message is old enough, or when the bytes after it reach the limit.
        behind = chain.segments[chain.parts.place(segment.no) + 1 :]
        goes_ms, behind_bytes = segment.sealed_at_ms, _later_bytes(led, behind)
    else:
        return None
    ratio, left_s = 0.0, NO_END_S
    if limits.age_ms:
        ratio = max(now_ms - goes_ms, 0) / limits.age_ms
        left_s = (goes_ms + limits.age_ms - now_ms) / 1000
    if limits.size_bytes:
        ratio = max(ratio, behind_bytes / limits.size_bytes)
    return Nearness(reader.consumer_group, ratio, left_s)


class Unread(NamedTuple):
    """What a consumer group has not read of one partition, or of several.

    Attributes:
        messages: Messages after its place.
        oldest_ms: The append time of the oldest one, in Unix milliseconds. If that message is in a sealed segment, it
            is the time when that segment was sealed: the message is at least so old. 0: not known.
        partitions: How many partitions these are.
    """

    messages: int
    oldest_ms: int
    partitions: int = 1

    def with_more(self, other: Unread) -> Unread:
        """Both together."""
        oldest = [time for time in (self.oldest_ms, other.oldest_ms) if time]
        return Unread(self.messages + other.messages, min(oldest, default=0), self.partitions + other.partitions)


async def unread_messages(led: Led, readers: Sequence[Reader], find: FindIndex) -> dict[str, Unread]:
    """What is after the place of each consumer group that has any such message and that a broker serves.

    Consumers of broadcast groups (`group/consumer`) do not count: those that are gone are not waited for.

    If a consumer group stands in a sealed segment that this broker does not have, its place is only known as the one
    where it entered the segment.
    """
    chain, behind = led.chain, dict[str, Unread]()
    last = chain.open_segment
    for reader in readers:
        place = Place(*split_offset(reader.acked))
        if not reader.is_served or "/" in reader.consumer_group or place.segment_no > last.no:
            continue
        place = _first_unread(chain, max(place, first_kept(chain)))
        segment = chain.segment(place.segment_no)
        if segment is None or segment.base is None or last.base is None:
            continue
        count = last.base + led.flushed - segment.base - max(place.index, segment.start)
        if count > 0:
            is_timed = len(behind) < TIMED_MAX
            oldest_ms = await _appended_ms(led, place, find) if is_timed else 0
            behind[reader.consumer_group] = Unread(count, oldest_ms)
    return behind


async def _appended_ms(led: Led, place: Place, find: FindIndex) -> int:
    """When the message at that place, which is the first unread one, was appended, or at the latest; 0: not known."""
    segment = led.chain.segment(place.segment_no)
    assert segment is not None
    if segment.state is not SegmentState.OPEN:
        return segment.sealed_at_ms
    found = await find(place.index) if place.index < led.flushed else None
    return 0 if found is None else found.append_time_ms


def _first_unread(chain: Chain, place: Place) -> Place:
    """From the end of a settled segment, the place in the next one that has a message or is not settled."""
    segment = chain.from_no(place.segment_no)
    assert segment is not None
    index = place.index if segment.no == place.segment_no else segment.start
    while segment.is_settled and (segment.state is SegmentState.LOST or index >= (segment.sealed_len or 0)):
        following = chain.after(segment.no)
        assert following is not None, "the last segment is open"
        segment, index = following, following.start
    return Place(segment.no, index)


def _later_bytes(led: Led, segments: Sequence[Segment]) -> int:
    """Kept bytes of these segments, the open one among them."""
    kept_bytes = max(led.size_bytes - led.chain.open_segment.begin.size_bytes, 0)
    return kept_bytes + sum(map(rules.size_bytes, segments))
