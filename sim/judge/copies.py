"""COPY: a member that is listed as a copy has the segment, and a member of an opened segment has prepared it.

LEAVE: a copy leaves a record only if two stay.
GATE: a member that may be stopped holds nothing alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.control.controller import holders
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import Preparation
from seriatim_broker.core.values.segment import Segment, SegmentState

from .disks import holds, own_tail
from .seen import SETTLED, Seen


class Copies:
    """Looks on the disks of the members that a record names."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def changed(self, what: str, partition: PartitionId, old: Segment, new: Segment) -> None:
        """The record of a settled segment changed."""
        if old.state not in SETTLED:
            return
        for member in new.members:
            if member not in old.members and not self._seen.is_in_sync(partition, new, member):
                self._seen.fail("COPY", f"{what}: {member} was listed as a copy and does not have all of it")
        self._check_leaving(partition, old, new, what)

    def _check_leaving(self, partition: PartitionId, old: Segment, new: Segment, what: str) -> None:
        """LEAVE: a copy of a member that runs leaves a record only if two in-sync copies stay."""
        seen = self._seen
        left = {*old.members, *old.tail_copies} - {*new.members, *new.tail_copies}
        there = [member for member in left if seen.is_present(member) and seen.brokers[member.broker].process]
        if not there or new.state is not SegmentState.SEALED:
            return
        seen.states.add("copy left")
        whole = [m for m in new.members if seen.is_present(m) and seen.is_in_sync(partition, new, m)]
        if len(whole) < 2:
            seen.fail("LEAVE", f"{what}: {there} left, and only {whole} hold the whole of it")

    def sealed(self, what: str, partition: PartitionId, segment: Segment) -> None:
        """A segment is sealed: each member that is listed for its tail has the tail."""
        for member in segment.tail_copies:
            assert segment.tail_from is not None
            assert segment.sealed_len is not None
            image = self._seen.image(member)
            if image is None or not holds(image, partition, segment.no, segment.tail_from, segment.sealed_len):
                self._seen.fail("COPY", f"{what}: {member} is listed for its tail and has none")

    def prepared(self, partition: PartitionId, segment: Segment, member: MemberId) -> Preparation:
        """A segment is opened on a member: return what the member prepared for it."""
        image = self._seen.image(member)
        found = image.partitions.get(partition) if image is not None else None
        preparation = found.preparations.get((segment.no, segment.switch_attempt)) if found is not None else None
        if preparation is None:
            what = f"segment {segment.no} was opened under an attempt that {member} did not prepare"
            self._seen.fail("COPY", what)
        if preparation.members != segment.members or preparation.incomplete_table != segment.incomplete_table:
            self._seen.fail("COPY", f"segment {segment.no} was opened as {segment}, prepared as {preparation}")
        return preparation

    def said_safe(self, member: MemberId, chains: Iterable[Chain]) -> None:
        """GATE: each message that a stoppable member holds is also on another member."""
        seen = self._seen
        seen.states.add("said safe")
        for chain in chains:
            for segment in chain.segments:
                what = f"{member} may be stopped, and segment {segment.no} of partition {chain.partition}"
                if member not in holders(segment):
                    continue
                others = [other for other in (*segment.members, *segment.eligible) if other != member]
                if segment.state is SegmentState.SEALED:
                    if not any(seen.is_in_sync(chain.partition, segment, other) for other in others):
                        seen.fail("GATE", f"{what} is complete nowhere else")
                elif segment.state is SegmentState.OPEN:
                    promised = seen.promised.get((chain.partition, segment.no), 0)
                    images = [image for other in others if (image := seen.image(other)) is not None]
                    if not any(own_tail(image, chain.partition, segment.no) >= promised for image in images):
                        seen.fail("GATE", f"{what} is acknowledged up to {promised}, and no other member has that")
                else:
                    seen.fail("GATE", f"{what} is not settled")
