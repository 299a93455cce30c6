"""I6: no message at or above the sealed length of a segment is acknowledged or delivered, before the seal or after it.

KEPT: if a disk contradicts the chain because of an older copy, the disk keeps what it has.
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import Segment

from .excuses import Excuse
from .losses import Place
from .seen import Seen


class SealedLengths:
    """Remembers below which index each segment was promised."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._flushed: dict[Place, int] = {}  # promised, to be on disks

    def promised(self, what: str, partition: PartitionId, segment_no: int, end: int) -> None:
        """Everything below an index of a segment is acknowledged or delivered."""
        place = (partition, segment_no)
        sealed = self._seen.sealed.get(place)
        if sealed is not None and end > sealed[0]:
            self._seen.fail("I6", f"{what}, and the segment is sealed at {sealed[0]}")
        self._seen.promised[place] = max(self._seen.promised.get(place, 0), end)

    def flushed(self, partition: PartitionId, segment_no: int, end: int) -> None:
        """What is acknowledged below the index is promised to be on disks."""
        place = (partition, segment_no)
        self._flushed[place] = max(self._flushed.get(place, 0), end)

    def sealed(self, what: str, partition: PartitionId, segment: Segment) -> None:
        """A segment is sealed, not below what was promised."""
        length = segment.sealed_len
        assert length is not None
        promised = self._seen.promised.get((partition, segment.no), 0)
        if length < promised:
            self._forgive(partition, segment.no, length, promised, what)
        self._seen.sealed[partition, segment.no] = (length, segment.sealed_checksum)

    def _forgive(self, partition: PartitionId, no: int, length: int, promised: int, what: str) -> None:
        """I6, unless no member with more is left: then what was promised above the length is gone for ever."""
        seen, place = self._seen, (partition, no)
        if place in seen.contradicted:
            known = max(image.known_commit for image in seen.logs(place))
            if known > length:
                seen.excuse(Excuse.CONTRADICTED)
            else:
                seen.excuse(Excuse.CUT_ABOVE_COMMIT)
            seen.contradicted[place] = promised if known > length else 0  # a quarantined log is kept as it is
            seen.losses.cut[place] = length
            self.forget_deliveries(partition, no, length)
            return
        if seen.flush:
            seen.fail("I6", f"{what}, and all below {promised} was acknowledged or delivered")
        if length < self._flushed.get(place, 0):
            seen.fail("I6", f"{what}, and all below {self._flushed[place]} was acknowledged, flushed")
        left = min(seen.losses.longest(place), promised)
        if length < left:
            seen.fail("I6", f"{what}; all below {promised} was acknowledged or delivered, and {left} of it is left")
        seen.states.add("promised and gone")
        seen.excuse(Excuse.MEMORIES_LOST)
        seen.losses.cut[place] = length
        self.forget_deliveries(partition, no, length)

    def forget_deliveries(self, partition: PartitionId, no: int, length: int) -> None:
        """Messages at and above a length are gone. Consumer groups that had them may get them again, after a resend."""
        for view in self._seen.views(partition):
            first, behind = make_offset(no, length), make_offset(no + 1, 0)
            for offset, message in view.firsts:
                if first <= offset < behind:
                    view.seen.discard(message)
                    view.first_at.pop(message, None)
            view.firsts = [pair for pair in view.firsts if not first <= pair[0] < behind]

    def rebuilt(self, after: Chain) -> None:
        """An administrator rewrites a record after the coordinator lost it: no segment is shorter than what was
        promised."""
        for segment in after.segments:
            promised = self._seen.promised.get((after.partition, segment.no), 0)
            what = f"the rebuild writes segment {segment.no} of partition {after.partition} as"
            if segment.sealed_len is not None and segment.sealed_len < promised:
                self._seen.fail("I6", f"{what} sealed at {segment.sealed_len}, and all below {promised} was promised")

    def final(self, partition: PartitionId) -> None:
        """KEPT: messages that the chain lacks because of an older copy are on another disk, marked for an
        administrator."""
        for place, promised in self._seen.contradicted.items():
            if place[0] != partition or not promised:
                continue
            if not any(log.record.quarantined and log.tail >= promised for log in self._seen.logs(place)):
                self._seen.fail("KEPT", f"no disk keeps what was acknowledged of segment {place[1]}, below {promised}")
            self._seen.states.add("quarantined")
