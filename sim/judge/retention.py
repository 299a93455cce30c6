"""RETAIN: retention drops what it may drop, and a segment leaves the record only when no reader or member needs it."""

from __future__ import annotations

from seriatim_api.ids import PartitionId, format_offset, make_offset
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import Segment, SegmentState

from .disks import own_tail
from .excuses import Excuse
from .gaps import Gaps
from .seen import SETTLED, Seen


class Retention:
    """Looks at what retention drops."""

    def __init__(self, seen: Seen, gaps: Gaps) -> None:
        self._seen = seen
        self._gaps = gaps
        self.retains_unread = False
        # up to which offset each drop reached, and the consumer groups that had a cursor then
        self._drops: dict[PartitionId, list[tuple[int, frozenset[str]]]] = {}

    def left_record(self, after: Chain, old: Segment) -> None:
        """A segment leaves the record at the old end, when no consumer group is in it or before it."""
        seen = self._seen
        seen.states.add("left the record")
        self._note_drop(after.partition, make_offset(old.no + 1, 0))
        what = f"segment {old.no} of partition {after.partition} leaves the record"
        if old.state not in SETTLED:
            seen.fail("RETAIN", f"{what}, and it is {old.state.value}")
        for (group, of), no in seen.cursors.items():
            if of != after.partition or no > old.no or group in seen.cursorless:
                continue
            if (group, of) not in seen.forgotten_cursors:
                seen.fail("RETAIN", f"{what}, and {group} stands in {no}")
            seen.excuse(Excuse.FORGOTTEN_CURSOR)
        first, *later = after.segments[:2]
        needing = [first, *(later if first.state is SegmentState.LOST else [])]
        if any(segment.incomplete_table for segment in needing):
            seen.fail("RETAIN", f"{what}, and readers of {needing[-1].no} need its producer table")
        groups = [name for name, of in seen.cursors if of == after.partition and name not in seen.cursorless]
        for group, no in self._gaps.untold(after.partition, groups):
            if no == old.no and old.state is SegmentState.LOST:
                seen.fail("RETAIN", f"{what}, and {group} was not told that it is lost")
        seen.left.setdefault(after.partition, []).append(old)

    def changed(self, partition: PartitionId, old: Segment, new: Segment) -> None:
        """If the record moves a segment's start, every member had the dropped messages, and the start is right."""
        if new.begin == old.begin:
            return
        seen = self._seen
        self._note_drop(partition, make_offset(new.no, new.start))
        what = f"segment {new.no} of partition {partition} begins at {new.begin}"
        seen.states.add("trimmed open" if new.state is SegmentState.OPEN else "trimmed sealed")
        if new.start <= old.start or new.state not in (SegmentState.OPEN, SegmentState.SEALED):
            seen.fail("RETAIN", f"{what}, and began at {old.begin}: {new.state.value}")
        below = seen.batches(partition, new.no, new.start)
        size_bytes = sum(batch.size_bytes for batch in below)
        checksum = below[-1].header.checksum
        if (new.begin.checksum, new.begin.size_bytes) != (checksum, size_bytes) and new.sealed_bytes is not None:
            seen.fail("RETAIN", f"{what}, and the log has {checksum} and {size_bytes} bytes there")
        for member in new.members if new.state is SegmentState.OPEN else ():
            image = seen.image(member)
            if image is not None and own_tail(image, partition, new.no) < new.start:
                seen.fail("RETAIN", f"{what}, and {member} has not all of it on its disk")

    def rebuilt(self, after: Chain) -> None:
        """An administrator rewrites a record: it has no message that retention has dropped from the disk of a broker
        that runs."""
        seen = self._seen
        for broker in seen.brokers.values():
            known = broker.real_disk.durable.partitions.get(after.partition)
            if known is None or broker.process is None:
                continue
            for image in known.segments.values():
                begin, segment = image.record.begin, after.segment(image.record.no)
                is_same = segment is not None and image.record.switch_attempt == segment.switch_attempt
                if segment is not None and is_same and begin.first > segment.start:
                    what = f"segment {segment.no} of partition {after.partition} begins at {segment.start}"
                    seen.fail("I1", f"the rebuild says that {what}, and {broker.member} has dropped it to {begin}")

    def told(self, group: str, partition: PartitionId, first: int, end: int) -> None:
        """I1: a consumer of the group is told that retention dropped the messages between two offsets: it did."""
        seen = self._seen
        chain = seen.history[partition][-1]
        what = f"{group} is told that {format_offset(first)} to {format_offset(end)} is gone"
        seen.states.add("notified of dropped messages")
        is_reader = self.retains_unread and self._stood_before(group, partition, first, end)
        if is_reader and seen.cursor_epochs.get((group, partition), 1) == 1:
            # J7. In a later group epoch a blind server began at the coordinator's cursor, because all disks that knew
            # more are gone. The messages before were confirmed once.
            seen.fail("RETAIN", f"{what}, and the topic keeps what the group has not read")
        decided = self._drops.get(partition, [(0, frozenset[str]())])[-1][0]  # perhaps in a record that is lost by now
        for of, no, index in seen.placed:
            if of != partition or not max(first, decided) <= make_offset(no, index) < end:
                continue
            segment = chain.segment(no)
            is_cut = (partition, no) in seen.sealed and index >= seen.sealed[partition, no][0]
            is_gone = no < chain.segments[0].no or (partition, no) in seen.losses.declared
            if not is_cut and not is_gone and (segment is None or index >= segment.start):
                seen.fail("I1", f"{what}, and {no}:{index} is there")
        seen.excuse(Excuse.DROPPED_UNREAD)
        seen.view(group, partition).dropped.append((first, end))

    def _note_drop(self, partition: PartitionId, below: int) -> None:
        """The record says that all below an offset is dropped. A restored or rebuilt one may say so again."""
        drops = self._drops.setdefault(partition, [])
        if not drops or below > drops[-1][0]:
            seen = self._seen
            groups = (group for group, of in seen.cursors if of == partition and group not in seen.cursorless)
            drops.append((below, frozenset(groups)))
            seen.dropped_below[partition] = below

    def _stood_before(self, group: str, partition: PartitionId, first: int, end: int) -> bool:
        """Whether the consumer group had a cursor when something between the offsets was dropped.

        Else it began later, in an older copy of the coordinator, whose record did not have the drop.
        """
        begin = 0
        for below, groups in self._drops.get(partition, ()):
            if group in groups and first < below and begin < end:
                return True
            begin = below
        return False
