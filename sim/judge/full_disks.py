"""FULL: a master that takes a batch has no member whose disk has been full for more than 3 s."""

from __future__ import annotations

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import Segment

from .losses import Place
from .seen import Seen

FULL_US_MAX = 3_000_000
"""A disk that has been full for this long takes no new batch: its broker looks, notifies its master, and that one
moves."""


class FullDisks:
    """Remembers since when each segment is open."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._opened_us: dict[Place, int] = {}

    def opened(self, partition: PartitionId, segment: Segment) -> None:
        """A segment is opened."""
        self._opened_us[partition, segment.no] = self._seen.schedule.now_us

    def taken(self, batch: Batch) -> None:
        """A master takes a batch."""
        seen, header = self._seen, batch.header
        place = (PartitionId(header.partition), header.segment)
        chains = seen.history.get(place[0])
        segment = chains[-1].segment(header.segment) if chains else None
        now_us = seen.schedule.now_us
        for member in segment.members if segment is not None else ():
            broker = seen.brokers[member.broker]
            full_us = now_us - max(broker.full_since_us, self._opened_us.get(place, 0))
            if broker.full_until_us > now_us and full_us > FULL_US_MAX and seen.is_present(member):
                what = f"{header.segment}:{header.base_index} is taken, and the disk of {member.broker}"
                seen.fail("FULL", f"{what} has been full for {full_us / 1e6:.1f} s")
