"""TIME: append time never goes back in a partition, and is never far ahead of the clock of the master that appends."""

from __future__ import annotations

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import Segment, SegmentState

from .excuses import Excuse
from .losses import Place
from .seen import Seen


class AppendTime:
    """Remembers the newest append time of each segment.

    Args:
        seen: The record of the run.
        ahead_ms_max: How far append time may be ahead of the wall clock of the master that appends.
    """

    def __init__(self, seen: Seen, ahead_ms_max: int) -> None:
        self._seen = seen
        self._ahead_ms_max = ahead_ms_max
        self._newest_ms: dict[Place, int] = {}  # newest append time in a segment, also of batches that were cut
        self._opened_over: set[Place] = set()

    def found(self, place: Place, batch: Batch) -> None:
        """A batch is on a disk, and the judge did not see the write."""
        self._newest_ms[place] = max(self._newest_ms.get(place, 0), batch.header.append_time_ms)

    def appended(self, who: str, partition: PartitionId, batch: Batch, wall_ms: int) -> None:
        """A master appends a batch: its append time is not far ahead of the master's clock."""
        header = batch.header
        key = (partition, header.segment, header.base_index)
        if key in self._seen.placed:
            return
        place = (partition, header.segment)
        time_ms, limit_ms = header.append_time_ms, self._ahead_ms_max
        if time_ms > wall_ms + limit_ms:
            what = f"{who} appends {header.segment}:{header.base_index} at {time_ms}"
            self._seen.fail("TIME", f"{what}, {time_ms - wall_ms} ms ahead of its clock")
        records = (chain.segment(header.segment) for chain in reversed(self._seen.history[partition]))
        known = next(filter(None, records), None)  # one that was folded since is in an older record
        if known is None:
            self._seen.fail("I7", f"{who} appends to {header.segment}, which no record has")
        if max(self._newest_ms.get(place, 0), known.append_floor_ms) > wall_ms + limit_ms:
            self._seen.set_back.add(key)
        self._newest_ms[place] = max(self._newest_ms.get(place, 0), time_ms)

    def changed(self, partition: PartitionId, old: Segment, new: Segment) -> None:
        """The record of a segment changed: note if the segment was opened over."""
        if old.state is SegmentState.OPEN and new.state is SegmentState.UNSETTLED:
            self._opened_over.add((partition, old.no))

    def opened(self, partition: PartitionId, segment: Segment) -> None:
        """A segment is opened: it begins at the newest append time before it, at the latest."""
        newest_ms = max((ms for (of, _), ms in self._newest_ms.items() if of == partition), default=0)
        if segment.append_floor_ms > newest_ms:
            what = f"segment {segment.no} begins at {segment.append_floor_ms}"
            self._seen.fail("TIME", f"{what}, and nothing was appended after {newest_ms}")

    def final(self, chain: Chain, open_length: int) -> None:
        """Append time never goes back, unless the master could not believe the time before.

        After a segment that was opened over it may go back below that one's times: no member that knew them answered.
        """
        seen = self._seen
        newest_ms = unknown_ms = 0
        for segment in chain.segments:
            length = open_length if segment.state is SegmentState.OPEN else segment.sealed_len
            if segment.state is SegmentState.LOST or length is None:
                continue
            before_ms = newest_ms
            for batch in seen.batches(chain.partition, segment.no, length):
                header = batch.header
                key = (chain.partition, header.segment, header.base_index)
                if header.append_time_ms < newest_ms and key in seen.set_back:
                    seen.excuse(Excuse.TIME_SET_BACK)
                elif header.append_time_ms < newest_ms:
                    back_ms = newest_ms - header.append_time_ms
                    seen.fail("TIME", f"append time goes back by {back_ms} ms at {segment.no}:{header.base_index}")
                if header.append_time_ms < unknown_ms:
                    seen.excuse(Excuse.TIME_UNKNOWN)
                newest_ms = header.append_time_ms
            if (chain.partition, segment.no) in self._opened_over:
                unknown_ms, newest_ms = max(unknown_ms, newest_ms), min(newest_ms, before_ms)
