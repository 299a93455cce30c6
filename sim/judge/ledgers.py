"""Consumer groups in which order is by key, as disks have them: J1, J2 and J5.

J1  what a disk says is passed was acknowledged by the application under the newest token that the server had given for
    it, or is in the list of its key, or is gone, or the consumer group was moved past it
J2  failed attempts that every eligible member has on its disk stay counted
J5  when the cursor moves to the next segment, every eligible member there has the handoff that it names. What the
    cursor leaves behind is finished, or in the lists of that handoff (J1)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import NamedTuple

from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED
from seriatim_api.ids import MemberId, PartitionId, format_offset, make_offset, split_offset
from seriatim_api.key_names import name_of_key, name_of_offset
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import ConsumerMode
from seriatim_broker.core.values.ledger_rows import BLOCK_INDEXES, LedgerRows, read_rows
from seriatim_broker.core.values.log import NO_HAND_OVER, UNKNOWN_HAND_OVER, CursorState
from seriatim_broker.core.values.segment import Segment, SegmentState
from seriatim_broker.testing.memory_disk import PartitionImage
from seriatim_broker.testing.simulated_bodies import key_of

from .keyed import Keyed
from .seen import Seen
from .views import messages_of


class _Failures(NamedTuple):
    """Failed attempts on the first message of a key, as a member has them."""

    offset: int
    failed: int


class Ledgers:
    """Looks at control records, their rows and handoffs on the disks of eligible members."""

    def __init__(self, seen: Seen, keyed: Keyed) -> None:
        self._seen = seen
        self._keyed = keyed
        self._places: dict[tuple[PartitionId, int, bool], list[int]] = {}  # of each message, where it is fired or not
        self._flags: dict[tuple[PartitionId, int], int] = {}  # of the batch at an offset
        self._placed_count = 0
        self._numbers: dict[tuple[PartitionId, int], dict[int, int]] = {}  # message by index
        self._finished: dict[tuple[PartitionId, str, int, int], dict[int, tuple[list[int], int]]] = {}
        """By partition, group, group epoch and term: offsets that were found finished, with the tokens of the message
        and how many these were. Only another token can undo that."""

    def look(self, partition: PartitionId, group: str, record: CursorRecord | None) -> None:
        """Compare what all eligible members of the cursor segment have on their disks with what was done."""
        chain = self._seen.history[partition][-1] if partition in self._seen.history else None
        if record is None or record.deleted or chain is None or partition in self._seen.gone:
            return
        segment = chain.segment(record.segment_no)
        if segment is None or segment.state not in (SegmentState.OPEN, SegmentState.SEALED):
            return
        found: list[dict[bytes, _Failures]] = []
        newest = self._newest_server_epoch(partition, group, record, segment)
        for member in segment.eligible:
            image = self._image(member, partition)
            state = image.cursors.get((record.segment_no, group)) if image is not None else None
            if image is None or state is None or state.group_epoch != record.group_epoch:
                found.append({})
                continue
            rows = read_rows(tuple(image.rows.get((record.segment_no, group), {}).items()))
            found.append(self._attempts(rows) if state.server_epoch >= newest else {})
            self._check(str(member), partition, group, record, state, rows)
        self._common_attempts(partition, group, record, found)

    def _newest_server_epoch(self, partition: PartitionId, group: str, record: CursorRecord, segment: Segment) -> int:
        """Of the chain record, and of the control records on all disks of the segment.

        What a disk has from an earlier server epoch is about to be replaced, so it does not count as known. It may have
        failures that the server of a later epoch lost when its process ended, and if that server leaves the eligible
        members then, the disk is the only one to look at. The chain record alone does not say it, because the
        coordinator may be restored from an older copy. The disks alone do not say it either:
          1. A counts an attempt. It is on the disk of B. The process of A ends before its own disk has it.
          2. A serves again, in server epoch 2, and sends all its rows to B, which replaces its own with them.
          3. Before any disk has that, B takes the right, in server epoch 3, and is the only eligible member.
          4. B serves with the rows of A. Its disk still has the attempt for some milliseconds.
        """
        images = (self._image(member, partition) for member in segment.members)
        states = (image.cursors.get((record.segment_no, group)) for image in images if image is not None)
        same = (state.server_epoch for state in states if state is not None and state.group_epoch == record.group_epoch)
        return max((segment.server_epoch, *same))

    def _image(self, member: MemberId, partition: PartitionId) -> PartitionImage | None:
        image = self._seen.image(member)
        return image.partitions.get(partition) if image is not None else None

    # ---- J1 -----------------------------------------------------------------------------------------

    def _check(
        self, who: str, partition: PartitionId, group: str, record: CursorRecord, state: CursorState, rows: LedgerRows
    ) -> None:
        what = f"{who} has of {group} in {record.segment_no} of partition {partition}"
        base = record.term_base if state.settings is None else state.term_base  # the record may be of an older copy
        term = base + state.server_epoch
        listed = self._check_lists(what, partition, rows, record.mode)
        finished = self._finished.setdefault((partition, group, record.group_epoch, term), {})
        for index in _passed(state, rows, record):
            offset = make_offset(record.segment_no, index)
            if offset in listed or _stays(finished.get(offset)):
                continue
            message = self.message_at(partition, offset)
            if message is None or self._is_repeat(partition, offset, message):
                continue
            why = self._keyed.unfinished(group, partition, record.group_epoch, offset, message, term)
            if why:
                self._seen.fail("J1", f"{what} that {message} at {format_offset(offset)} is passed, and {why}")
            tokens = self._keyed.tokens(group, partition, record.group_epoch, message)
            if tokens:
                finished[offset] = (tokens, len(tokens))

    def _check_lists(self, what: str, partition: PartitionId, rows: LedgerRows, mode: ConsumerMode) -> set[int]:
        """Each offset is in one list, that of its key, and lists are in their order."""
        listed: set[int] = set()
        for name, chunks in rows.asides.items():
            offsets = [offset for chunk in sorted(chunks) for offset in chunks[chunk]]
            if any(one >= other for one, other in pairwise(offsets)):
                self._seen.fail("J1", f"{what} the list {offsets} of {name!r}, which is not in its order")
            if name not in rows.keys:
                self._seen.fail("J1", f"{what} a list of {name!r}, and no record of that key")
            for offset in offsets:
                message = self.message_at(partition, offset)
                is_by_key = message is not None and mode is ConsumerMode.KEY_ORDERED
                key = key_of(message) if message is not None and is_by_key else None
                if message is not None and name != (name_of_offset(offset) if key is None else name_of_key(key)):
                    self._seen.fail(
                        "J1", f"{what} {format_offset(offset)} in the list of {name!r}, and it is of {key!r}"
                    )
                if offset in listed:
                    self._seen.fail("J1", f"{what} {format_offset(offset)} in two lists")
                listed.add(offset)
        if listed:
            self._seen.states.add("set aside")
        return listed

    def message_at(self, partition: PartitionId, offset: int) -> int | None:
        """The message at an offset; None if nothing was ever written there."""
        no, index = split_offset(offset)
        known = self._numbers.setdefault((partition, no), {})
        if index not in known:
            at = index
            while at >= 0 and (partition, no, at) not in self._seen.placed:
                at -= 1
            batch = self._seen.placed.get((partition, no, at))
            if batch is None or index >= batch.header.end_index:
                return None
            for place, message in enumerate(messages_of(batch)):
                known[batch.header.base_index + place] = message
        return known.get(index)  # a control batch has no message

    def _is_repeat(self, partition: PartitionId, offset: int, message: int) -> bool:
        """Whether readers pass the message there: it is delayed, or it is earlier in the order, too.

        What is fired repeats only what was fired before.
        """
        placed = self._seen.placed
        for of, no, base in islice(placed, self._placed_count, None):
            flags = placed[of, no, base].header.flags
            for place, one in enumerate(messages_of(placed[of, no, base])):
                at = make_offset(no, base + place)
                self._places.setdefault((of, one, bool(flags & FLAG_FIRED)), []).append(at)
                self._flags[of, at] = flags
        self._placed_count = len(placed)
        flags = self._flags[partition, offset]
        if flags & FLAG_DELAYED:
            return True
        places = self._places[partition, message, bool(flags & FLAG_FIRED)]
        earlier = (split_offset(known) for known in places if known < offset)
        return any(index < self._seen.sealed.get((partition, no), (0, None))[0] for no, index in earlier)

    # ---- J2 -----------------------------------------------------------------------------------------

    def _attempts(self, rows: LedgerRows) -> dict[bytes, _Failures]:
        found: dict[bytes, _Failures] = {}
        for name, key in rows.keys.items():
            chunks = rows.asides.get(name)
            first = chunks[min(chunks)][0] if chunks else key.aside_first
            found[name] = _Failures(first, key.attempts)
        return found

    def _common_attempts(
        self, partition: PartitionId, group: str, record: CursorRecord, found: list[dict[bytes, _Failures]]
    ) -> None:
        for name, (first, count) in found[0].items() if found else ():
            everywhere = [rows[name] for rows in found if name in rows]
            if len(everywhere) == len(found) and count and all(row.offset == first for row in everywhere):
                least = min(row.failed for row in everywhere)
                self._keyed.counted(group, partition, record.group_epoch, name, first, least)

    # ---- J5 -----------------------------------------------------------------------------------------

    def moved(self, partition: PartitionId, group: str, old: CursorRecord, new: CursorRecord) -> None:
        """The cursor moves, and no administrator moved it: its handoff is on all disks, and nothing is left
        behind."""
        seen = self._seen
        if (new.segment_no, new.start_index, new.group_epoch) == (old.segment_no, old.start_index, old.group_epoch):
            return
        what = f"the cursor of {group} goes from segment {old.segment_no} to {new.segment_no}:{new.start_index}"
        segment = seen.history[partition][-1].segment(new.segment_no)
        listed: set[int] = set()
        if new.handoff not in (NO_HAND_OVER, UNKNOWN_HAND_OVER) and segment is not None:
            seen.states.add("handed over")
            for member in segment.eligible:
                image = self._image(member, partition)
                handoff = image.handoffs.get((new.segment_no, group)) if image is not None else None
                if handoff is None or (handoff.group_epoch, handoff.id) != (new.group_epoch, new.handoff):
                    seen.fail("J5", f"{what} with {new.handoff}, and {member} has {handoff}")
                rows = read_rows(handoff.rows)
                if rows.grants:
                    seen.states.add("grants handed over")
                listed = self._check_lists(f"{member} was handed over", partition, rows, new.mode)
                if min(listed, default=0) != new.oldest:
                    seen.fail("J5", f"{what}, whose oldest message is {new.oldest}, and {member} has {sorted(listed)}")
        elif new.oldest and segment is not None:
            # The coordinator was rebuilt. The lists are beside the control records that the members reported, and a
            # server that lacks them goes back.
            for member in segment.members:
                image = self._image(member, partition)
                state = image.cursors.get((new.segment_no, group)) if image is not None else None
                if image is not None and state is not None and state.group_epoch == new.group_epoch:
                    rows = read_rows(tuple(image.rows.get((new.segment_no, group), {}).items()))
                    listed |= self._check_lists(f"{member} reported", partition, rows, new.mode)
        if new.segment_no < old.segment_no:
            seen.states.add("went back")
        for offset, message in self._before(partition, make_offset(new.segment_no, new.start_index)):
            if offset in listed or self._is_repeat(partition, offset, message):
                continue
            why = self._keyed.unfinished(group, partition, new.group_epoch, offset, message, None)
            if why:
                seen.fail("J1", f"{what}, {message} at {format_offset(offset)} is left behind, and {why}")

    def _before(self, partition: PartitionId, end: int) -> Iterator[tuple[int, int]]:
        """The messages before an offset, as far as they are there, with their offsets."""
        for segment in self._seen.history[partition][-1].segments:
            length = segment.sealed_len if segment.state is SegmentState.SEALED else None
            for batch in self._seen.batches(partition, segment.no, length or 0):
                for place, message in enumerate(messages_of(batch)):
                    offset = make_offset(segment.no, batch.header.base_index + place)
                    if offset < end:
                        yield offset, message


def _stays(found: tuple[list[int], int] | None) -> bool:
    """Whether a message was found finished, and was given to no consumer since."""
    return found is not None and len(found[0]) == found[1]


def _passed(state: CursorState, rows: LedgerRows, record: CursorRecord) -> Iterable[int]:
    """The indexes that a control record and its rows say are passed, from the place on at which the group began."""
    yield from range(record.start_index, state.acked)
    for block, bits in rows.blocks.items():
        for bit in range(bits.bit_length()):
            index = block * BLOCK_INDEXES + bit
            if bits >> bit & 1 and index >= state.acked:
                yield index
