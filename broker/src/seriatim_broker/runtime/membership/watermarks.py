"""The watermark of a broker's disk, in the coordinator: how far the disk was durable when its broker noted it last.

The number of a member run does not reveal an older copy of a disk that was made within its last run, for example a
snapshot of the volume. The watermark does: the durable content of such a copy ends below it. So a start compares its
disk with the watermark, and refuses the copy (ADR 0030).

While the disk is written to, its broker notes the watermark every 10 s, and once more when it stops cleanly. An idle
broker writes nothing, and no acknowledgement waits for a note. What is left: a copy that is younger than the last note
is not recognised.

The record has a key of its own, which no broker watches: a note would otherwise wake all brokers of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from seriatim_api.errors import OldDiskError, SeriatimError
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import records_pb2

from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator, Get, KeyValue, Put, mod_revision_is
from ..coordinator.keys import Keys
from ..coordinator.records import member_from_record, member_to_record

NOTE_S = 10.0
NOTE_DEADLINE_S = 2.0
"""A note that the coordinator does not take within this time is left to the next one."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Watermarks:
    """The duty of one broker."""

    _coordinator: Coordinator
    _keys: Keys
    _run: RunId
    _durable_sequence: Callable[[], int]
    _clock: Clock
    _noted: int = 0

    async def run(self) -> None:
        """Note every 10 s, until cancelled. A note that is under way then may still be carried out."""
        while True:
            await asyncio.sleep(NOTE_S)
            try:
                await self.note()
            except SeriatimError as exc:
                _log.warning("watermark_not_noted", error=str(exc))  # the last one is a lower bound

    async def note(self) -> None:
        """Note how far the disk is, if it was written to since the last note.

        Rule `watermark-of-this-run` (I1): only the newest run of a disk notes. Without it: 1. g0-0 is frozen, and a
        second process starts with a copy of its directory, as its next run. 2. The frozen one continues, and notes a
        watermark that the copy has not reached. 3. The copy restarts, and is refused, with messages that it alone took.

        Raises:
            SeriatimError: The coordinator did not take it.
        """
        sequence = self._durable_sequence()
        if sequence <= self._noted:
            return
        broker = self._run.member.broker
        read = await self._coordinator.txn(
            (), [Get(self._keys.member(broker)), Get(self._keys.watermark(broker))], deadline_s=NOTE_DEADLINE_S
        )
        member, known = (response.item for response in read.responses)
        if member is None or not is_record_of(member, self._run):
            return  # `lost_records` says so, and `later-run` ends this run
        if sequence > sequence_of(known, self._run.member):
            put = watermark(self._keys, self._run.member, sequence, self._clock.wall_ms())
            written = await self._coordinator.txn(
                [mod_revision_is(member.key, member.mod_revision)], [put], deadline_s=NOTE_DEADLINE_S
            )
            if not written.succeeded:
                return  # the member's record was changed meanwhile: the next note reads it
        self._noted = sequence


def is_record_of(item: KeyValue, run: RunId) -> bool:
    """Whether this member record names this run as the newest of its disk."""
    record = records_pb2.MemberRecord.FromString(item.value)
    return RunId(member_from_record(record.member), record.run) == run


def sequence_of(item: KeyValue | None, member: MemberId) -> int:
    """The watermark of this disk; 0 if the slot has none, or has that of another disk."""
    if item is None:
        return 0
    record = records_pb2.WatermarkRecord.FromString(item.value)
    return record.sequence if record.member.incarnation == member.incarnation else 0


def watermark(keys: Keys, member: MemberId, sequence: int, now_ms: int) -> Put:
    """The write of a watermark."""
    record = records_pb2.WatermarkRecord(member=member_to_record(member), sequence=sequence, noted_at_ms=now_ms)
    return Put(keys.watermark(member.broker), record.SerializeToString())


def check(item: KeyValue | None, member: MemberId, log_end: Callable[[int], int]) -> None:
    """Refuse a disk that ends below its watermark. Blocks, if the disk must be read.

    A watermark below the disk's end says nothing: the coordinator may be older, or the disk was written to since.

    Rule `below-the-watermark` (I1, I14): such a disk is an older copy of itself. Without it:
      1. Am and As have a, and a is acknowledged. Both die, and the disk of As is replaced by a copy of a minute ago.
      2. As comes back, and Am does not within 3 s. The segment is sealed at the length that As answers.
      3. New consumer groups pass over a. Am keeps it in quarantine.

    Args:
        item: The slot's watermark.
        member: Whose disk starts.
        log_end: `log_end(enough)`: see `registration.Disk`.

    Raises:
        OldDiskError: The disk is an older copy.
        StorageError: The disk cannot be read.
    """
    known = sequence_of(item, member)
    found = log_end(known) if known else 0
    if found >= known:
        return
    raise OldDiskError(
        f"the directory is an older copy: its log ends at {found}, and this disk was durable up to {known}; the "
        "messages that were acknowledged since are not on it. Nothing was changed. Remedy: bring the newest state of "
        "this disk back; if it is lost, give the slot a new, empty directory (a new incarnation), to which the other "
        "members' data is copied",
        found=found,
        expected=known,
    )
