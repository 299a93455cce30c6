"""I8: a cursor passes a segment only if the segment is settled and the consumer group drained it.

I11: a cursor goes only forward within one group epoch, and so do deliveries.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import PartitionId, make_offset, split_offset
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.segment import Segment, SegmentState

from .deliveries import Deliveries
from .excuses import Excuse
from .ledgers import Ledgers
from .modes import ONCE_EXCLUSIVE
from .operations import Operations
from .seen import SETTLED, Seen
from .views import ConsumerGroupView

PERSON = "person"
"""The name under which an administrator rebuilds a coordinator that lost decisions, in a world of complete brokers."""


class Cursors:
    """Compares each cursor with the one before, and with what the consumer group has acknowledged."""

    def __init__(self, seen: Seen, deliveries: Deliveries, operations: Operations, ledgers: Ledgers) -> None:
        self._seen = seen
        self._deliveries = deliveries
        self._operations = operations
        self._ledgers = ledgers

    def written(
        self, who: str, partition: PartitionId, group: str, old: CursorRecord | None, new: CursorRecord
    ) -> None:
        """The coordinator takes a cursor; `old` is the one before it."""
        seen = self._seen
        if partition in seen.gone:
            seen.states.add("cursor of a deleted partition written")
        was_forgotten = (group, partition) in seen.forgotten_cursors
        seen.cursors[group, partition] = new.segment_no
        seen.forgotten_cursors.discard((group, partition))
        seen.cursor_epochs[group, partition] = new.group_epoch
        seen.untold_from[group, partition] = new.dropped_from
        if old is None and who == PERSON and (group, partition) in seen.groups:
            # the group epoch is the same, so all that the cursor passes must be drained
            begun_in = split_offset(seen.groups[group, partition].start)[0] or 1
            old = replace(new, segment_no=min(begun_in, new.segment_no), start_index=0)
        if old is None:
            begins = make_offset(new.segment_no, new.start_index)
            known = seen.groups.get((group, partition))
            on_disks = seen.place_on_disks(partition, group)
            was_forgotten = was_forgotten and on_disks < (new.group_epoch, new.segment_no, new.start_index)
            if was_forgotten and make_offset(1, 0) < begins <= seen.dropped_below.get(partition, 0):
                seen.excuse(Excuse.FORGOTTEN_CURSOR)
                seen.groups[group, partition] = ConsumerGroupView(new.group_epoch, begins)
                return
            is_same = known is not None and seen.waits_for_rebuild and max(known.group_epoch, 1) == new.group_epoch
            if is_same and on_disks[0] >= new.group_epoch:
                return  # an older copy of the coordinator lacks it; what disks have of this group epoch still counts
            is_again = known is not None and seen.waits_for_rebuild and new.group_epoch < known.group_epoch
            if known is not None and is_again:
                seen.past_views.setdefault((group, partition), []).append(known)
            if is_again or begins > make_offset(1, 0):  # retention dropped all before
                seen.groups[group, partition] = ConsumerGroupView(new.group_epoch, begins)
            return
        if who == PERSON and seen.waits_for_rebuild and new.group_epoch > old.group_epoch:
            self._bring_back(partition, group, new.group_epoch)
        what = f"the cursor of {group} goes from segment {old.segment_no} to {new.segment_no}"
        if new.requests != old.requests and not old.deleted:
            self._operations.written(who, partition, group, old, new)
            if group in seen.keyed_groups and new.mode is not old.mode:
                self._ledgers.moved(partition, group, old, new)
            return
        if new.paused != old.paused and not (old.deleted or new.deleted):
            seen.fail("PAUSE", f"{who} writes {new} over {old}, and no administrator paused or resumed the group")
        if (new.group_epoch, new.segment_no) == (old.group_epoch, old.segment_no) and new.start_index < old.start_index:
            seen.fail("I11", f"{what}, from index {old.start_index} to {new.start_index} in one epoch")
        if new.group_epoch < old.group_epoch or (
            new.group_epoch == old.group_epoch and new.segment_no < old.segment_no
        ):
            seen.fail("I11", what)
        if group in seen.keyed_groups:
            self._ledgers.moved(partition, group, old, new)
        elif group != ONCE_EXCLUSIVE:  # what it passes may be lost
            self._check_passed(what, partition, old, new, seen.view(group, partition))

    def _bring_back(self, partition: PartitionId, group: str, group_epoch: int) -> None:
        """A rebuild brings back the cursor that was lost, after a broker made the consumer group again without it."""
        past = self._seen.past_views.get((group, partition), [])
        back = next((view for view in reversed(past) if view.group_epoch == group_epoch), None)
        if back is not None:
            past.remove(back)
            past.append(self._seen.view(group, partition))
            self._seen.groups[group, partition] = back
            self._seen.states.add("consumer group brought back")

    def _check_passed(
        self, what: str, partition: PartitionId, old: CursorRecord, new: CursorRecord, view: ConsumerGroupView
    ) -> None:
        """I8: each segment that the cursor passes is settled, and the consumer group has drained it."""
        seen = self._seen
        for segment in seen.history[partition][-1].segments:
            if not old.segment_no <= segment.no < new.segment_no:
                continue
            segment = self._as_disks_know(partition, segment)
            if segment.state not in SETTLED or segment.sealed_len is None:
                seen.fail("I8", f"{what}, and segment {segment.no} is not settled")
            is_drained = self._deliveries.is_drained
            if segment.state is SegmentState.LOST:
                drained = (partition, segment.no) in seen.sealed and is_drained(view, partition, segment)
                if not drained and new.group_epoch == old.group_epoch:
                    seen.fail("I8", f"{what} in one group epoch, and {segment.no} was lost before it was read")
            elif not is_drained(view, partition, segment) and not _says_dropped(segment, new, view):
                seen.fail("I8", f"{what}, and of {segment.no} it acknowledged {view.acked.get(segment.no, 0)}")

    def _as_disks_know(self, partition: PartitionId, segment: Segment) -> Segment:
        """The segment as it was before an older copy of the coordinator came back, if it was sealed then.

        A broker that was told the newer record follows that, and not the copy.
        """
        sealed = self._seen.sealed.get((partition, segment.no))
        if not self._seen.waits_for_rebuild or sealed is None or segment.state is not SegmentState.OPEN:
            return segment
        return replace(segment, state=SegmentState.SEALED, sealed_len=sealed[0], sealed_checksum=sealed[1])

    def confirmed(self, group: str, partition: PartitionId, group_epoch: int, segment_no: int, index: int) -> None:
        """A server confirms that everything below `index` is acknowledged, durably on every eligible copy."""
        known = self._seen.view(group, partition, group_epoch).confirmed
        known[group_epoch, segment_no] = max(known.get((group_epoch, segment_no), 0), index)

    def begun(self, group: str, partition: PartitionId, group_epoch: int, segment_no: int, index: int) -> None:
        """I11: the first delivery under a grant, if not flagged, is not below what was confirmed in its group epoch."""
        for (epoch, no), confirmed in self._seen.view(group, partition, group_epoch).confirmed.items():
            if epoch == group_epoch and (no, confirmed) > (segment_no, index):
                what = f"{group} is put at {segment_no}:{index}"
                self._seen.fail("I11", f"{what}, and {no}:{confirmed} was confirmed to it")


def _says_dropped(segment: Segment, cursor: CursorRecord, view: ConsumerGroupView) -> bool:
    """Whether a cursor that leaves an emptied segment says from which offset on its readers are notified of the
    drop."""
    first = max(make_offset(segment.no, view.acked.get(segment.no, 0)), view.start)
    return segment.is_stub and 0 < cursor.dropped_from <= first
