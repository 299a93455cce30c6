"""The floor of group epochs: what stays of consumer groups whose deleted cursors were removed.

A deleted cursor keeps the last epoch of its group, because members still have acknowledgements of that epoch on disk. A
group of the same name begins above it. When the controller removes the cursor (`expiry`), it raises the floor in the
same transaction, and a group without a cursor begins above the floor. The transaction that makes a cursor compares the
floor. What would happen without that, rule `above-the-floor`:

    1  Group g has acknowledged 100 messages in epoch 1, and is deleted.
    2  Its cursor is removed. A group g is made, and begins in epoch 1 again.
    3  The server finds 100 acknowledged messages of g in epoch 1 on its disk, and the new group never gets them (I1).
"""

from __future__ import annotations

from dataclasses import dataclass

from seriatim_api.v1 import records_pb2

from ..interfaces.coordinator import Compare, KeyValue, Put, mod_revision_is
from .keys import Keys


@dataclass(frozen=True, slots=True)
class EpochFloor:
    """The floor as it was read.

    Attributes:
        floor: A group without a cursor begins in a higher epoch.
        expired: The highest epoch of a cursor that was removed; at most `floor`.
        count: How many were removed.
        revision: The record's revision in the coordinator; 0 if there is no record.
    """

    floor: int = 0
    expired: int = 0
    count: int = 0
    revision: int = 0

    @classmethod
    def of(cls, item: KeyValue | None) -> EpochFloor:
        """The floor in the coordinator's record."""
        if item is None:
            return NO_FLOOR
        record = records_pb2.GroupEpochRecord.FromString(item.value)
        return cls(record.floor, record.expired, record.count, item.mod_revision)

    def unchanged(self, keys: Keys) -> Compare:
        """That it is still so."""
        return mod_revision_is(keys.group_epoch, self.revision)

    def put(self, keys: Keys) -> Put:
        """Write it."""
        assert self.expired <= self.floor, self
        record = records_pb2.GroupEpochRecord(floor=self.floor, expired=self.expired, count=self.count)
        return Put(keys.group_epoch, record.SerializeToString())


NO_FLOOR = EpochFloor()
"""Nothing was ever removed."""
