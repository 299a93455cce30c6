"""I14: only a member that holds all of a segment serves it, and another server begins with a higher server epoch.

SERVER: no broker delivers under a server epoch after a later one began.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.segment import Segment

from .disks import own_tail
from .excuses import Excuse
from .losses import Place
from .seen import Seen


class Servers:
    """Remembers the server epoch of the last delivery from each segment."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._servers: dict[Place, int] = {}

    def changed(self, what: str, partition: PartitionId, old: Segment, new: Segment) -> None:
        """The record of a segment changed."""
        if new.server_epoch < old.server_epoch or (new.server != old.server and new.server_epoch == old.server_epoch):
            self._seen.fail("I14", f"{what}: the server changed from {old.server} to {new.server} without a new epoch")
        if old.server != new.server and old.state is new.state and not self._holds_all(partition, new, new.server):
            self._seen.fail("I14", f"{what}: {new.server} becomes its server and does not hold all of it")

    def _holds_all(self, partition: PartitionId, segment: Segment, member: MemberId) -> bool:
        """Whether a member has all of a sealed segment, in memory at least."""
        broker = self._seen.brokers[member.broker]
        is_whole = self._seen.is_in_sync(partition, segment, member)
        if segment.sealed_len is None or broker.member != member or broker.process is None:
            return is_whole
        if not is_whole:
            self._seen.excuse(Excuse.NOT_YET_FLUSHED)
        return own_tail(broker.real_disk.visible, partition, segment.no) >= segment.sealed_len

    def sealed(self, what: str, partition: PartitionId, segment: Segment) -> None:
        """A segment is sealed: its server and each eligible member have it."""
        if not self._seen.is_in_sync(partition, segment, segment.server):
            self._seen.fail("I14", f"{what}, and its server {segment.server} does not hold it")
        for member in segment.eligible:
            if not self._seen.is_in_sync(partition, segment, member):
                self._seen.fail("I14", f"{what}, and {member} is eligible and does not hold it")

    def served(self, who: str, place: Place, server_epoch: int) -> None:
        """SERVER, for a batch that a broker puts on a consumer's stream."""
        newest = self._servers.get(place, 0)
        if server_epoch < newest:
            self._seen.fail("SERVER", f"{who} delivers under {server_epoch} after another did under {newest}")
        self._servers[place] = server_epoch
