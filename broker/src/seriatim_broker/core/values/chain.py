"""The chain record of a partition and its transitions.

Each partition has one record, in one key of the coordinator. So every transition here is one compare-and-swap there.
The functions are pure: they take a record and return the next one, whose chain epoch is one higher. `check` asserts
what is true of every record, and each transition checks its result.

    OPEN ──seal_and_open──▶ SEALED ──declare_lost──▶ LOST
      └────open_over──────▶ UNSETTLED ──settle──▶ SEALED
                                 └───declare_lost──▶ LOST
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from seriatim_api.ids import MemberId, PartitionId, partition_name

from .placement import CHAIN_WIDTH_DEFAULT
from .segment import PRODUCERS_DEFAULT, Segment, SegmentState, Start
from .segments import Changes, Segments

FOLDED_MAX = 4
"""Maximum number of segments that leave the record in one transaction. Each transaction adds one segment. So a chain
does not grow by empty segments, and it loses those that could not leave before, some at a time. The number is small,
because members are sent the numbers of these segments."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The record: the send chain (at most `width` broker groups), and the segments from the oldest to the open one."""

    partition: PartitionId
    epoch: int
    topic: str
    number: int
    flush: bool
    send_chain: tuple[str, ...]
    segments: Sequence[Segment]
    width: int = CHAIN_WIDTH_DEFAULT

    def __post_init__(self) -> None:
        if not isinstance(self.segments, Segments):
            object.__setattr__(self, "segments", Segments.of(self.segments))

    @property
    def name(self) -> str:
        """What the partition is called, for humans."""
        return partition_name(self.topic, self.number)

    @property
    def parts(self) -> Segments:
        """The segments, typed as `Segments`."""
        assert isinstance(self.segments, Segments)
        return self.segments

    @property
    def open_segment(self) -> Segment:
        """The last segment, where the partition accepts messages."""
        return self.parts.newest

    def segment(self, no: int) -> Segment | None:
        """The segment of that number, or None if it is not (or no longer) in the record."""
        segments = self.segments
        assert isinstance(segments, Segments)
        return segments.at(no)

    def before(self, no: int) -> Segment | None:
        """The segment before that one in the record, or None if it is the oldest or not in the record."""
        position = self.parts.position(no)
        return self.segments[position - 1] if position else None

    def after(self, no: int) -> Segment | None:
        """The segment after that one in the record, or None if it is the open one or not in the record."""
        following = self.following(no, 1)
        return following[0] if following else None

    def following(self, no: int, count: int) -> tuple[Segment, ...]:
        """Up to `count` segments after that one, in their order."""
        position = self.parts.position(no)
        return self.parts[position + 1 : position + 1 + count] if position is not None else ()

    def reads_table_of(self, no: int) -> bool:
        """Whether a segment after that one is opened so that its readers need the producer table of that one.

        They need the table of the segment before theirs, and of the one before that if that one is lost.
        """
        return any(segment.incomplete_table for segment in self.following(no, 2))

    def last_server_epoch(self, no: int) -> int:
        """No server epoch of that segment was higher until now, also if the segment is not in the record any more.

        Server epochs of a segment only grow. So this is a bound for all that was before this record was read.
        """
        segment = self.segment(no)
        return segment.server_epoch if segment is not None else self.epoch

    def from_no(self, no: int) -> Segment | None:
        """The segment of that number, else the next one in the record; None if the number is above the open one's."""
        place = self.parts.place(no)
        return self.segments[place] if place < len(self.segments) else None

    def is_folded(self, no: int) -> bool:
        """Whether that number belonged to an empty segment that left the record."""
        segment = self.from_no(no)
        return segment is not None and segment.previous_no < no < segment.no

    def settled_before(self, no: int) -> bool:
        """Whether every segment before `no` is settled."""
        segment = self.segment(no)
        if segment is not None:
            return segment.base is not None
        return all(segment.is_settled for segment in self.segments if segment.no < no)

    def sharing(self, known: Chain | None) -> Chain:
        """This record, with the objects of an earlier one in place of equal ones, to save memory."""
        return self if known is None else replace(self, segments=self.parts.sharing(known.parts))

    def changes_since(self, known: Chain | None) -> Changes:
        """The segments that differ from an earlier record, and the numbers of those that are gone.

        Without an earlier record, all segments count as changed.
        """
        return Changes(tuple(self.segments), ()) if known is None else self.parts.changes_since(known.parts)


@dataclass(frozen=True, slots=True)
class Seal:
    """What a switch decided about the old segment."""

    length: int
    checksum: int
    server: MemberId
    eligible: tuple[MemberId, ...]
    tail_from: int | None
    tail_copies: tuple[MemberId, ...]
    size_bytes: int
    delayed_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """What a switch prepared for the new segment, and the send chain from then on.

    If `send_chain` is empty, the old one is used: the new broker group moves to the front, the old one to the end.
    """

    switch_attempt: bytes
    broker_group: str
    members: tuple[MemberId, ...]
    master_run: int
    incomplete_table: bool
    send_chain: tuple[str, ...] = ()
    producers_max: int = PRODUCERS_DEFAULT


def create(
    partition: PartitionId,
    topic: str,
    number: int,
    flush: bool,
    send_chain: tuple[str, ...],
    opening: Opening,
    now_ms: int,
    width: int = CHAIN_WIDTH_DEFAULT,
) -> Chain:
    """The first record of a partition, with its first segment open."""
    first = _open(opening, no=1, base=0, epoch=1, now_ms=now_ms)
    chain = Chain(partition, 1, topic, number, flush, send_chain, (first,), width)
    check(chain)
    return chain


def seal_and_open(chain: Chain, seal: Seal, opening: Opening, now_ms: int, floor_ms: int = 0) -> Chain:
    """Seal the open segment and open the next one after it: the switch's one transaction.

    Args:
        chain: The record that was read.
        seal: How the open segment is sealed.
        opening: The next segment.
        now_ms: The switcher's wall clock.
        floor_ms: The append time at which the next segment begins.
    """
    epoch = chain.epoch + 1
    old = chain.open_segment
    sealed = replace(
        old,
        state=old.to_state(SegmentState.SEALED),
        sealed_len=seal.length,
        sealed_checksum=seal.checksum,
        sealed_bytes=seal.size_bytes,
        delayed_until_ms=seal.delayed_until_ms,
        tail_from=seal.tail_from,
        tail_copies=seal.tail_copies,
        server=seal.server,
        server_epoch=old.server_epoch if seal.server == old.server else epoch,
        eligible=seal.eligible,
        sealed_at_ms=now_ms,
        records_lost=_loses_records(old, seal.server),
    )
    base = None if old.base is None else old.base + seal.length
    gone = foldable(chain, opening.incomplete_table)
    opened = _open(opening, old.no + 1, base, epoch, now_ms, floor_ms)
    return _moved(chain, sealed, opened, opening.send_chain, gone)


def open_over(chain: Chain, opening: Opening, now_ms: int, floor_ms: int = 0) -> Chain:
    """Open the next segment although no member gave the length of the open one, which becomes UNSETTLED."""
    assert opening.incomplete_table
    old = chain.open_segment
    unsettled = replace(old, state=old.to_state(SegmentState.UNSETTLED), sealed_at_ms=now_ms)
    opened = _open(opening, old.no + 1, None, chain.epoch + 1, now_ms, floor_ms)
    return _moved(chain, unsettled, opened, opening.send_chain, ())


def settle(chain: Chain, no: int, seal: Seal) -> Chain:
    """Give an UNSETTLED segment its length, and the segments after it their bases."""
    epoch = chain.epoch + 1
    old = _require(chain, no)
    settled = replace(
        old,
        state=old.to_state(SegmentState.SEALED),
        sealed_len=seal.length,
        sealed_checksum=seal.checksum,
        sealed_bytes=seal.size_bytes,
        delayed_until_ms=seal.delayed_until_ms,
        tail_from=seal.tail_from,
        tail_copies=seal.tail_copies,
        server=seal.server,
        server_epoch=old.server_epoch if seal.server == old.server else epoch,
        eligible=seal.eligible,
        records_lost=_loses_records(old, seal.server),
    )
    return _settled(chain, settled, epoch)


def declare_lost(chain: Chain, no: int) -> Chain:
    """Declare a segment lost, because no disk has it any more; its length stays if it was known.

    Rule `lost-has-start` (I5): otherwise it ends where retention began it. Without it: retention drops the first
    messages of the open segment, the segment becomes UNSETTLED, and all its disks are lost. A length of 0 lies before
    its start, so no record could say that it is lost, and consumers would stop there for ever.
    """
    old = _require(chain, no)
    length = old.start if old.sealed_len is None else old.sealed_len
    lost = replace(old, state=old.to_state(SegmentState.LOST), sealed_len=length)
    return _settled(chain, lost, chain.epoch + 1)


def change_server(chain: Chain, no: int, server: MemberId, silent: Iterable[MemberId]) -> Chain:
    """Give the serving right of a segment to `server`, and remove the silent members from `eligible`."""
    epoch = chain.epoch + 1
    old = _require(chain, no)
    gone = set(silent)
    assert server not in gone
    eligible = tuple(member for member in old.eligible if member not in gone)
    if server not in eligible:
        eligible = (*eligible, server)
    taken = replace(old, server=server, server_epoch=epoch, eligible=eligible, records_lost=_loses_records(old, server))
    return _changed(chain, epoch, taken)


def _loses_records(old: Segment, server: MemberId) -> bool:
    """Whether control records are lost for good, because a member becomes the server that was not eligible.

    The chain record says so, not only the server's disk. Otherwise the next server would get this one's control
    records, and treat them as complete.
    """
    return old.records_lost or server not in old.eligible


def remove_eligible(chain: Chain, no: int, silent: Iterable[MemberId]) -> Chain:
    """The server removes members that do not answer it from `eligible`, and continues."""
    old = _require(chain, no)
    gone = set(silent)
    assert old.server not in gone
    eligible = tuple(member for member in old.eligible if member not in gone)
    return _changed(chain, chain.epoch + 1, replace(old, eligible=eligible))


def add_eligible(chain: Chain, no: int, *members: MemberId) -> Chain:
    """The server lists members as eligible, because they have the whole segment and its control records."""
    old = _require(chain, no)
    assert not set(members) & set(old.eligible)
    return _changed(chain, chain.epoch + 1, replace(old, eligible=(*old.eligible, *members)))


def add_copy(chain: Chain, no: int, member: MemberId) -> Chain:
    """List a member that has a new in-sync copy of a sealed segment."""
    old = _require(chain, no)
    assert old.state is SegmentState.SEALED
    assert member not in old.members
    return _changed(chain, chain.epoch + 1, replace(old, members=(*old.members, member)))


def replace_copy(chain: Chain, no: int, member: MemberId, dead: MemberId) -> Chain:
    """List a member that has a new in-sync copy, in place of a dead member, in one step."""
    old = _require(chain, no)
    assert old.state is SegmentState.SEALED
    assert member not in old.members
    assert dead != old.server
    members = (*(other for other in old.members if other != dead), member)
    eligible = tuple(other for other in old.eligible if other != dead)
    tail_copies = tuple(other for other in old.tail_copies if other != dead)
    changed = replace(old, members=members, eligible=eligible, tail_copies=tail_copies)
    return _changed(chain, chain.epoch + 1, changed)


def release_copies(chain: Chain, leaving: Iterable[MemberId], successors: Mapping[int, MemberId | None]) -> Chain:
    """Remove members from the records of sealed segments, because their copies are not needed any more.

    Args:
        chain: The record.
        leaving: The members that leave.
        successors: By segment number. A member: the server leaves, so this member becomes the server, and no member is
            removed yet. None: the members are removed.
    """
    epoch = chain.epoch + 1
    gone = set(leaving)
    segments: list[Segment] = []
    for no in sorted(successors):
        old = _require(chain, no)
        assert old.state is SegmentState.SEALED
        successor = successors[old.no]
        if successor is not None:
            assert successor in old.eligible
            segments.append(replace(old, server=successor, server_epoch=epoch))
            continue
        assert old.server not in gone, "the server hands its right over first"
        members = tuple(member for member in old.members if member not in gone)
        eligible = tuple(member for member in old.eligible if member not in gone)
        tail_copies = tuple(member for member in old.tail_copies if member not in gone)
        segments.append(replace(old, members=members, eligible=eligible, tail_copies=tail_copies))
    return _changed(chain, epoch, *segments)


CHANGED_AT_ONCE_MAX = 64
"""Maximum number of old segments that are changed in one transaction."""

CHANGED_APART_MAX = 256
"""Any two of their numbers are at most so far apart. So they are in at most two pages of the record. A page takes up to
300 KB, if all its segments have four copies on members with names of 40 characters, and the coordinator takes 1.5 MB in
one transaction."""


def may_join(nos: Collection[int], no: int, at_once_max: int = CHANGED_AT_ONCE_MAX) -> bool:
    """Whether a change of segment `no` may go into one transaction with changes of these; see `merged`."""
    return len(nos) < at_once_max and max((no, *nos)) - min((no, *nos)) <= CHANGED_APART_MAX


def merged(chain: Chain, changes: Mapping[int, Chain]) -> Chain:
    """One next record with all of these changes.

    Args:
        chain: The record.
        changes: By segment number: a next record of `chain`, in which only that segment differs.
    """
    assert all(changed.epoch == chain.epoch + 1 for changed in changes.values())
    return _changed(chain, chain.epoch + 1, *(_require(changed, no) for no, changed in sorted(changes.items())))


def trim(chain: Chain, no: int, start: Start | None, first_kept: int) -> Chain:
    """Retention: drop all messages before a place, and remove the segments that no consumer group needs any more.

    Args:
        chain: The record. No segment before `no` is open or unsettled.
        no: The segment of the first message that is kept. Every sealed segment before it becomes a stub.
        start: Where that segment begins from now on; None: it does not change.
        first_kept: Segments with lower numbers leave the record. No cursor is in them or before them.
    """
    assert first_kept <= no
    assert chain.settled_before(no)
    changed: list[Segment] = []
    gone: list[int] = []
    for segment in chain.segments:
        if segment.no > no:
            break
        if segment.no < first_kept:
            gone.append(segment.no)
        elif segment.no == no and start is not None:
            assert start.first >= segment.start, "a start only moves forward"
            changed.append(replace(segment, begin=start))
        elif segment.no < no and segment.state is SegmentState.SEALED and not segment.is_stub:
            changed.append(as_stub(segment))
    return _changed(chain, chain.epoch + 1, *changed, gone=tuple(gone))


def as_stub(segment: Segment) -> Segment:
    """The sealed segment without any message."""
    assert segment.sealed_len is not None
    assert segment.sealed_checksum is not None
    assert segment.sealed_bytes is not None
    return replace(segment, begin=Start(segment.sealed_len, segment.sealed_checksum, segment.sealed_bytes))


def foldable(chain: Chain, next_is_incomplete: bool) -> tuple[Segment, ...]:
    """The empty segments right before the open one that leave the record when the next segment opens, newest first.

    A switch may leave an empty segment behind, for example after each complaint of a client that reaches no master. An
    empty segment has nothing for readers, but would stay in the record and on disks as long as the segments before it.
    The open segment itself is not folded in the transaction that seals it, because its members learn its length from
    the record.

    Args:
        chain: The record before the transaction.
        next_is_incomplete: Whether the next segment opens with an incomplete table.
    """
    marks = (chain.open_segment.incomplete_table, next_is_incomplete)
    found: list[Segment] = []
    for place in range(len(chain.segments) - 2, max(-1, len(chain.segments) - 2 - FOLDED_MAX), -1):
        segment, before = chain.segments[place], chain.segments[place - 1] if place else None
        if not may_fold(segment, before, marks):
            break
        found.append(segment)
    return tuple(found)


def may_fold(segment: Segment, before: Segment | None, marks_behind: tuple[bool, bool]) -> bool:
    """Whether this segment may be folded, because nothing is lost if it leaves the record.

    Args:
        segment: The segment.
        before: The segment before it in the record, if there is one.
        marks_behind: Whether each of the next two segments has an incomplete table.
    """
    # Rule `folds-any-sealed` (I8): only a segment with no message. Without it:
    #   1. Segment 2 is sealed with a message, and folded.
    #   2. A consumer group finishes segment 1 and continues at segment 3.
    #   3. It never gets the message of segment 2 (I1).
    #
    # Rule `folds-unsettled` (I1): only a SEALED one, because its length never changes (I5). Without it:
    #   1. Segment 2 is UNSETTLED. It has no length, and is folded as if it were empty.
    #   2. Its members come back, with acknowledged messages. The record has no segment to settle.
    # A LOST segment is not folded either, because it is a gap, and readers must be notified of it.
    if segment.state is not SegmentState.SEALED or segment.sealed_len != 0:
        return False
    # Rule `folds-with-tail` (I12): not while its members keep the uncertain tail of the segment before. Without it:
    #   1. Segment 1 is sealed with a message that only one of its members has. The members of segment 2 have a copy.
    #   2. Segment 2 stays empty and is folded. Its members drop everything that they prepared for it.
    #   3. The message is on one disk.
    if before is not None and before.tail_from is not None and not before.has_two_copies:
        return False
    # Rule `folds-with-table` (I9): not right before an incomplete segment, whose readers ask for its table. Without it:
    #   1. Segments 1 and 2 have complete tables, so members have forgotten the table of segment 1.
    #   2. Segment 3 is incomplete: its readers skip repeats by the table of segment 2.
    #   3. Segment 2 is folded. The readers ask for the table of segment 1, and get an empty one, or none for ever.
    #   4. They are given repeats as first deliveries, or nothing (I13).
    return (segment.incomplete_table and before is not None) or not any(marks_behind)


def check(chain: Chain) -> None:
    """Assert what is true of every chain record: the parts of I5 and I7 that one record shows."""
    assert chain.segments, "a chain has at least one segment"
    assert chain.open_segment.state is SegmentState.OPEN, "the last segment is open"
    previous: Segment | None = None
    for segment in chain.segments:
        _check_segment(chain, previous, segment)
        previous = segment


def _check_around(chain: Chain, changed: Iterable[Segment]) -> None:
    """As `check`, but only for the changed segments and the ones right after them. All others were checked before."""
    assert chain.open_segment.state is SegmentState.OPEN, "the last segment is open"
    for segment in changed:
        _check_segment(chain, chain.before(segment.no), segment)
        following = chain.after(segment.no)
        if following is not None:
            _check_segment(chain, segment, following)


def _check_segment(chain: Chain, previous: Segment | None, segment: Segment) -> None:
    assert segment is chain.open_segment or segment.state is not SegmentState.OPEN, "one open segment"
    assert segment.members, "a segment has members"
    assert len(set(segment.members)) == len(segment.members)
    assert segment.server_epoch <= chain.epoch
    assert segment.state is not SegmentState.SEALED or segment.sealed_len is not None
    assert segment.state is not SegmentState.OPEN or segment.sealed_len is None
    assert segment.sealed_len is None or segment.start <= segment.sealed_len, "a segment begins before its end"
    if previous is None:
        return
    assert segment.previous_no == previous.no, "segment numbers have no gap, unless empty segments were folded"
    assert not segment.start or previous.is_stub or previous.state is SegmentState.LOST, "the oldest go first"
    if previous.base is not None and previous.sealed_len is not None and previous.is_settled:
        assert segment.base == previous.base + previous.sealed_len, "positions are continuous"
    else:
        assert segment.base is None, "nothing after an unsettled segment has a position"


def _open(opening: Opening, no: int, base: int | None, epoch: int, now_ms: int, floor_ms: int = 0) -> Segment:
    return Segment(
        no=no,
        switch_attempt=opening.switch_attempt,
        broker_group=opening.broker_group,
        members=opening.members,
        master_run=opening.master_run,
        state=SegmentState.OPEN,
        base=base,
        server=opening.members[0],
        server_epoch=epoch,
        eligible=opening.members,
        opened_at_ms=now_ms,
        append_floor_ms=floor_ms,
        incomplete_table=opening.incomplete_table,
        producers_max=opening.producers_max,
    )


def _moved(chain: Chain, old: Segment, new: Segment, send_chain: tuple[str, ...], folded: tuple[Segment, ...]) -> Chain:
    """The next record of a switch: the old broker group goes to the end of the send chain, the new one to the front."""
    others = tuple(group for group in chain.send_chain if group not in (old.broker_group, new.broker_group))
    rest = (old.broker_group,) if old.broker_group != new.broker_group else ()
    send_chain = send_chain or (new.broker_group, *others, *rest)
    assert send_chain[0] == new.broker_group, "the head of the send chain owns the open segment"
    assert len(set(send_chain)) == len(send_chain)
    old = replace(old, folded=old.folded + sum(1 + segment.folded for segment in folded))
    gone = tuple(segment.no for segment in folded)
    return _changed(replace(chain, send_chain=send_chain), chain.epoch + 1, old, new, gone=gone)


def _require(chain: Chain, no: int) -> Segment:
    segment = chain.segment(no)
    assert segment is not None, f"segment {no} is not in the chain of {chain.name}"
    return segment


def _changed(chain: Chain, epoch: int, *changed: Segment, gone: tuple[int, ...] = ()) -> Chain:
    """The next record, in which these segments are new or changed, and those with the numbers in `gone` are gone."""
    segments = chain.parts.with_changes(Changes(changed, gone))
    assert segments, "a chain has at least one segment"
    following = replace(chain, epoch=epoch, segments=segments)
    _check_around(following, changed)
    return following


def _settled(chain: Chain, settled: Segment, epoch: int) -> Chain:
    """The next record, in which a segment has its length, and the segments after it have their bases.

    If a later segment is not settled, the segments after that one get no base yet.
    """
    changed = [settled]
    base, known = settled.base, settled
    position = chain.parts.position(settled.no)
    assert position is not None
    for segment in chain.parts[position + 1 :]:
        length = known.sealed_len if known.is_settled else None
        base = base + length if base is not None and length is not None else None
        if segment.base == base:
            break
        known = replace(segment, base=base)
        changed.append(known)
    return _changed(chain, epoch, *changed)
