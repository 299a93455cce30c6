"""ASKED: a producer that finds its frozen master silent, and asks, knows the next master 25 ms after it opened.

This holds in worlds in which only masters freeze, and only questions about silent masters move segments. There the
broker that was asked runs the switch, so it knows the next segment as soon as it is open. A producer that has to ask
again hears of it up to half of `Options.suspicious_us` later.
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.chain import Chain

from .seen import Seen

KNOWN_US_MAX = 25_000
"""Time from the transaction that opens a segment to the producer that knows it: three messages and their work."""


class Suspicions:
    """Remembers which producers asked about which segments, and when the next ones were opened."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._asked: dict[tuple[str, PartitionId], int] = {}  # by producer: the segment about which it asked
        self._opened_us: dict[tuple[PartitionId, int], int] = {}  # segments that replaced one with a frozen master

    def asked(self, who: str, partition: PartitionId, segment_no: int) -> None:
        """A producer finds the master of a segment silent, and asks another broker."""
        if not self._is_opened_after(partition, segment_no):
            self._asked[who, partition] = segment_no

    def _is_opened_after(self, partition: PartitionId, segment_no: int) -> bool:
        chains = self._seen.history.get(partition)
        return chains is not None and chains[-1].open_segment.no > segment_no

    def opened(self, before: Chain, after: Chain) -> None:
        """The record says that another segment is open."""
        if not self._asked:
            return
        process = self._seen.brokers[before.open_segment.master.broker].process
        if process is not None and process.frozen:
            self._opened_us[after.partition, after.open_segment.no] = self._seen.schedule.now_us

    def knows(self, who: str, partition: PartitionId, segment_no: int) -> None:
        """A producer knows the master of a segment."""
        asked = self._asked.get((who, partition))
        if asked is None or segment_no <= asked:
            return
        del self._asked[who, partition]
        opened_us = self._opened_us.get((partition, asked + 1))
        if opened_us is None:
            return
        self._seen.states.add("notified of the next master")
        took_us = self._seen.schedule.now_us - opened_us
        if took_us > KNOWN_US_MAX:
            what = f"{who} asked about segment {asked}, whose master was frozen"
            self._seen.fail("ASKED", f"{what}, and hears of the next one {took_us / 1000:.1f} ms after it opened")
