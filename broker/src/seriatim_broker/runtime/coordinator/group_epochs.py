"""The floor of group epochs: what stays of consumer groups whose deleted cursors were removed.

A deleted cursor keeps the last group epoch of its consumer group, because members still have acknowledgements of that
epoch on their disks. A consumer group of the same name begins above it. When the controller removes the cursor
(`expiry`), it raises the floor in the same transaction. A consumer group without a cursor begins above the floor. The
transaction that makes a cursor compares the floor.

Rule `above-the-floor` (I1). Without it:

    1. Consumer group g has acknowledged 100 messages in group epoch 1, and is deleted.
    2. Its cursor is removed. g is made again, and begins in group epoch 1.
    3. Its server finds 100 acknowledged messages of g in group epoch 1 on its disk. The new g never gets them.

The module `expiry` keeps the other half, rule `expires-without-floor`: the removal of a cursor raises the floor.

Rule `none-begins-in-a-rebuild` (K3, I8): while a rebuild writes, no consumer group without a cursor begins, nor one
whose cursor is deleted. Without it:

    1. The coordinator is restored as it was before consumer group g was made. g has acknowledged 100 messages, and k:5
       was granted under a token of term 6.
    2. The rebuild writes the chain. A broker reads that, finds no cursor of g, and makes one: it begins at the first
       message, in term 5.
    3. The rebuild does not write over a newer cursor. k:5 is granted under a lower token, and no message has the flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seriatim_api.v1 import records_pb2

from ...core.values.events import CursorRecord
from ...interfaces.coordinator import Compare, KeyValue, Put, mod_revision_is
from .keys import Keys


@dataclass(frozen=True, slots=True)
class EpochFloor:
    """The floor as it was read.

    Attributes:
        floor: A consumer group without a cursor begins in a higher group epoch.
        expired: The highest group epoch of a cursor that was removed; at most `floor`.
        count: How many cursors were removed.
        term_base: At least the term base of each cursor that was removed, and one; 0 if none had tokens with a term.
        revision: The record's revision in the coordinator; 0 if there is no record.
        is_rebuilding: A rebuild has begun and not ended, so no consumer group without a cursor begins.
    """

    floor: int = 0
    expired: int = 0
    count: int = 0
    revision: int = 0
    term_base: int = 0
    is_rebuilding: bool = False

    @classmethod
    def of(cls, item: KeyValue | None) -> EpochFloor:
        """The floor in the coordinator's record."""
        if item is None:
            return NO_FLOOR
        record = records_pb2.GroupEpochRecord.FromString(item.value)
        revision = item.mod_revision
        return cls(record.floor, record.expired, record.count, revision, record.term_base, record.rebuilding)

    @property
    def last(self) -> CursorRecord | None:
        """What is left of each consumer group without a cursor, as the record of a deleted one; None: nothing."""
        if not self.floor:
            return None
        return CursorRecord(0, self.floor, 0, "", deleted=True, term_base=self.term_base)

    def above(self, records: Sequence[CursorRecord]) -> EpochFloor:
        """The floor when these cursors are removed."""
        highest = max(record.group_epoch for record in records)
        bases = [record.next_term_base(0) for record in records]
        return replace(
            self,
            floor=max(self.floor, highest),
            expired=max(self.expired, highest),
            count=self.count + len(records),
            term_base=max(self.term_base, *bases),
        )

    def unchanged(self, keys: Keys) -> Compare:
        """The comparison that the floor has not changed since it was read."""
        return mod_revision_is(keys.group_epoch, self.revision)

    def put(self, keys: Keys) -> Put:
        """The operation that writes it."""
        assert self.expired <= self.floor, self
        record = records_pb2.GroupEpochRecord(
            floor=self.floor,
            expired=self.expired,
            count=self.count,
            term_base=self.term_base,
            rebuilding=self.is_rebuilding,
        )
        return Put(keys.group_epoch, record.SerializeToString())


NO_FLOOR = EpochFloor()
"""Nothing was ever removed."""
