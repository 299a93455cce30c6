"""I1 for lost segments: only a segment that is lost, and that an administrator named, is declared lost.

Each consumer group that had not read all of it is notified.
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.segment import Segment, SegmentState

from .keyed import Keyed
from .losses import Place
from .seen import Seen
from .views import messages_of


class Gaps:
    """Remembers which segments an administrator named, and which consumer groups were notified.

    Attributes:
        asked: The segments that an administrator named as lost.
    """

    def __init__(self, seen: Seen, keyed: Keyed) -> None:
        self.asked: set[Place] = set()
        self._seen = seen
        self._keyed = keyed
        self._passed: dict[Place, frozenset[str]] = {}  # a lost segment: groups that had left it before
        self._told: set[tuple[str, PartitionId, int]] = set()

    def declared_lost(self, partition: PartitionId, old: Segment) -> None:
        """The record says that a segment is lost."""
        seen, place = self._seen, (partition, old.no)
        what = f"segment {old.no} of partition {partition} was declared lost"
        if place not in self.asked:
            seen.fail("I1", f"{what}, and no request was for that")
        for member in old.members:
            if seen.is_present(member):
                seen.fail("I1", f"{what}, and {member} is there")
        seen.states.add("declared lost" if old.state is SegmentState.SEALED else "declared lost unsettled")
        seen.losses.declared.add(place)
        passed = {group for (group, of), no in seen.cursors.items() if of == partition and no > old.no}
        self._passed[place] = frozenset(passed)

    def told(self, group: str, partition: PartitionId, segment_no: int) -> None:
        """A consumer of the group is told that it cannot be given a segment, or the rest of it."""
        if (partition, segment_no) not in self._seen.losses.declared:
            self._seen.fail("I1", f"{group} is told that segment {segment_no} of partition {partition} is lost")
        self._seen.states.add("notified of a gap")
        self._told.add((group, partition, segment_no))

    def untold(self, partition: PartitionId, groups: list[str]) -> list[tuple[str, int]]:
        """Groups that had not left a segment when it was declared lost, and have not been notified of it."""
        return [
            (group, no)
            for (of, no), passed in self._passed.items()
            for group in groups
            if of == partition and (group, partition, no) not in self._told
            if group not in passed or self._left_some(group, of, no)
            if self._seen.view(group, partition).start < make_offset(no + 1, 0)  # else the group was moved past it
            if not self._had_read_all(group, partition, no) and not self._is_told_as_dropped(group, partition, no)
        ]

    def _is_told_as_dropped(self, group: str, partition: PartitionId, no: int) -> bool:
        """Whether a consumer was told that messages from the lost segment on are dropped.

        Or the cursor says so, and the next consumer is told: retention dropped all that was after the segment too.
        """
        behind = make_offset(no + 1, 0)
        untold_from = self._seen.untold_from.get((group, partition), 0)
        told = self._seen.view(group, partition).dropped
        return 0 < untold_from < behind or any(first < behind <= end for first, end in told)

    def _had_read_all(self, group: str, partition: PartitionId, no: int) -> bool:
        """Whether a reader of ranges had all of a segment. It has no cursor, and may hear of the end after the loss."""
        length = self._seen.sealed.get((partition, no), (0, None))[0]
        acked = self._seen.view(group, partition).acked.get(no, 0)
        return group in self._seen.cursorless and 0 < length <= acked

    def _left_some(self, group: str, partition: PartitionId, no: int) -> bool:
        """Whether a consumer group had left a segment, with messages in lists, which were lost with it."""
        length = self._seen.sealed.get((partition, no), (0, None))[0]
        if group not in self._seen.keyed_groups or not length:
            return False
        return any(
            self._keyed.is_due(group, partition, make_offset(no, batch.header.base_index + place), message)
            for batch in self._seen.batches(partition, no, length)
            for place, message in enumerate(messages_of(batch))
        )

    def final(self, partition: PartitionId, groups: list[str]) -> None:
        """All consumer groups were notified of all lost segments."""
        for group, no in self.untold(partition, groups):
            self._seen.fail("I1", f"segment {no} was declared lost, and {group} was never notified")
