"""The chain record of a partition and its transitions.

One record for each partition, in one key of the coordinator: so every transition here is one compare-and-swap there.
The functions are pure: they take a record and give the next one, whose epoch is one higher. `check` holds what is true
of every record; each transition asserts it of its result.

    OPEN ──seal_and_open──▶ SEALED ──declare_lost──▶ LOST
      └────open_over──────▶ UNSETTLED ──settle──▶ SEALED
                                 └───declare_lost──▶ LOST
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from seriatim_api.ids import MemberId, PartitionId, RunId

from .placement import CHAIN_WIDTH_DEFAULT


class SegmentState(enum.Enum):
    """Where a segment is in its life."""

    OPEN = "open"
    SEALED = "sealed"
    UNSETTLED = "unsettled"
    LOST = "lost"


LEGAL_TRANSITIONS: dict[SegmentState, frozenset[SegmentState]] = {
    SegmentState.OPEN: frozenset({SegmentState.SEALED, SegmentState.UNSETTLED}),
    SegmentState.UNSETTLED: frozenset({SegmentState.SEALED, SegmentState.LOST}),
    SegmentState.SEALED: frozenset({SegmentState.LOST}),
    SegmentState.LOST: frozenset(),
}


class IllegalTransitionError(AssertionError):
    """A transition that the table does not have: a bug of ours."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One tenure of one broker group.

    `members` are fixed while OPEN; the first is the master, in its run `master_run`. `base` is the number of messages
    in all segments before (None behind an unsettled one). `tail_from`/`tail_copies`: what lies in
    [tail_from, sealed_len) is also on those members of the next segment. `records_lost`: at some time nobody was left
    who had the groups' control records of this segment, so whatever its servers deliver may be a repeat.
    """

    no: int
    attempt: bytes
    group: str
    members: tuple[MemberId, ...]
    master_run: int
    state: SegmentState
    base: int | None
    server: MemberId
    server_epoch: int
    eligible: tuple[MemberId, ...]
    opened_at_ms: int
    sealed_len: int | None = None
    sealed_checksum: int | None = None
    tail_from: int | None = None
    tail_copies: tuple[MemberId, ...] = ()
    incomplete_table: bool = False
    sealed_at_ms: int = 0
    records_lost: bool = False

    @property
    def master(self) -> MemberId:
        """The member that appends."""
        return self.members[0]

    @property
    def master_run_id(self) -> RunId:
        """The run whose death certificate proves that nobody acknowledges here any more."""
        return RunId(self.members[0], self.master_run)

    @property
    def is_settled(self) -> bool:
        """Whether its length will never change: sealed, or declared lost."""
        return self.state in (SegmentState.SEALED, SegmentState.LOST)

    def to_state(self, state: SegmentState) -> SegmentState:
        """`state`, if the table allows to go there."""
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"segment {self.no} cannot go from {self.state} to {state}: {self}")
        return state


@dataclass(frozen=True, slots=True)
class Chain:
    """The record: the send chain (at most `width` groups), and the segments from the oldest to the open one."""

    partition: PartitionId
    epoch: int
    topic: str
    number: int
    flush: bool
    send_chain: tuple[str, ...]
    segments: tuple[Segment, ...]
    width: int = CHAIN_WIDTH_DEFAULT

    @property
    def open_segment(self) -> Segment:
        """The last segment, where the partition accepts messages."""
        return self.segments[-1]

    def segment(self, no: int) -> Segment | None:
        """The segment of that number, or None if it is not (or no longer) in the record."""
        position = no - self.segments[0].no
        return self.segments[position] if 0 <= position < len(self.segments) else None

    def settled_before(self, no: int) -> bool:
        """Whether every segment before `no` is settled."""
        return all(segment.is_settled for segment in self.segments if segment.no < no)


@dataclass(frozen=True, slots=True)
class Seal:
    """What a switch decided about the old segment."""

    length: int
    checksum: int
    server: MemberId
    eligible: tuple[MemberId, ...]
    tail_from: int | None
    tail_copies: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """What a switch prepared for the new segment, and the send chain from then on (empty: the old one, turned)."""

    attempt: bytes
    group: str
    members: tuple[MemberId, ...]
    master_run: int
    incomplete_table: bool
    send_chain: tuple[str, ...] = ()


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


def seal_and_open(chain: Chain, seal: Seal, opening: Opening, now_ms: int) -> Chain:
    """Seal the open segment and open the next one behind it: the switch's one transaction."""
    epoch = chain.epoch + 1
    old = chain.open_segment
    sealed = replace(
        old,
        state=old.to_state(SegmentState.SEALED),
        sealed_len=seal.length,
        sealed_checksum=seal.checksum,
        tail_from=seal.tail_from,
        tail_copies=seal.tail_copies,
        server=seal.server,
        server_epoch=old.server_epoch if seal.server == old.server else epoch,
        eligible=seal.eligible,
        sealed_at_ms=now_ms,
        records_lost=_loses_records(old, seal.server),
    )
    base = None if old.base is None else old.base + seal.length
    return _moved(chain, sealed, _open(opening, old.no + 1, base, epoch, now_ms), opening.send_chain)


def open_over(chain: Chain, opening: Opening, now_ms: int) -> Chain:
    """Open the next segment though nobody could say how long the open one is: it becomes UNSETTLED."""
    assert opening.incomplete_table
    old = chain.open_segment
    unsettled = replace(old, state=old.to_state(SegmentState.UNSETTLED), sealed_at_ms=now_ms)
    return _moved(chain, unsettled, _open(opening, old.no + 1, None, chain.epoch + 1, now_ms), opening.send_chain)


def settle(chain: Chain, no: int, seal: Seal) -> Chain:
    """Give an UNSETTLED segment its length, and the segments behind it their bases."""
    epoch = chain.epoch + 1
    old = _require(chain, no)
    settled = replace(
        old,
        state=old.to_state(SegmentState.SEALED),
        sealed_len=seal.length,
        sealed_checksum=seal.checksum,
        tail_from=seal.tail_from,
        tail_copies=seal.tail_copies,
        server=seal.server,
        server_epoch=old.server_epoch if seal.server == old.server else epoch,
        eligible=seal.eligible,
        records_lost=_loses_records(old, seal.server),
    )
    return _with_bases(_replace_segment(chain, settled, epoch))


def declare_lost(chain: Chain, no: int) -> Chain:
    """Declare that no disk will ever give this segment back."""
    old = _require(chain, no)
    lost = replace(old, state=old.to_state(SegmentState.LOST), sealed_len=old.sealed_len or 0)
    return _with_bases(_replace_segment(chain, lost, chain.epoch + 1))


def change_server(chain: Chain, no: int, server: MemberId, silent: Iterable[MemberId]) -> Chain:
    """Give the serving right of a segment to `server`, and take the silent ones from `eligible`."""
    epoch = chain.epoch + 1
    old = _require(chain, no)
    gone = set(silent)
    assert server not in gone
    eligible = tuple(member for member in old.eligible if member not in gone)
    if server not in eligible:
        eligible = (*eligible, server)
    taken = replace(old, server=server, server_epoch=epoch, eligible=eligible, records_lost=_loses_records(old, server))
    return _replace_segment(chain, taken, epoch)


def _loses_records(old: Segment, server: MemberId) -> bool:
    """Whether control records are gone for good: a server that was not eligible has none of them.

    It stands in the record, and not on the server's disk alone, because this must outlive it: the next server would
    otherwise take what it gets from this one for all that there is.
    """
    return old.records_lost or server not in old.eligible


def remove_eligible(chain: Chain, no: int, silent: Iterable[MemberId]) -> Chain:
    """The server goes on without members that do not answer it."""
    old = _require(chain, no)
    gone = set(silent)
    assert old.server not in gone
    eligible = tuple(member for member in old.eligible if member not in gone)
    return _replace_segment(chain, replace(old, eligible=eligible), chain.epoch + 1)


def add_eligible(chain: Chain, no: int, member: MemberId) -> Chain:
    """The server lists a member that has the whole segment and its control records."""
    old = _require(chain, no)
    assert member not in old.eligible
    return _replace_segment(chain, replace(old, eligible=(*old.eligible, member)), chain.epoch + 1)


def add_copy(chain: Chain, no: int, member: MemberId) -> Chain:
    """List a new whole copy of a sealed segment."""
    old = _require(chain, no)
    assert old.state is SegmentState.SEALED
    assert member not in old.members
    return _replace_segment(chain, replace(old, members=(*old.members, member)), chain.epoch + 1)


def replace_copy(chain: Chain, no: int, member: MemberId, dead: MemberId) -> Chain:
    """List a new whole copy in place of the copy of a dead member, in one step."""
    old = _require(chain, no)
    assert old.state is SegmentState.SEALED
    assert member not in old.members
    assert dead != old.server
    members = (*(other for other in old.members if other != dead), member)
    eligible = tuple(other for other in old.eligible if other != dead)
    tail_copies = tuple(other for other in old.tail_copies if other != dead)
    return _replace_segment(
        chain, replace(old, members=members, eligible=eligible, tail_copies=tail_copies), chain.epoch + 1
    )


def release_copies(chain: Chain, leaving: Iterable[MemberId], successors: Mapping[int, MemberId | None]) -> Chain:
    """Members whose copies are needed no more leave the records of sealed segments, in every role that they have.

    Args:
        chain: The partition.
        leaving: Who leaves.
        successors: Of each segment, who serves it from now on where its server leaves: nobody leaves that record yet.
    """
    epoch = chain.epoch + 1
    gone = set(leaving)
    segments: list[Segment] = []
    for old in chain.segments:
        if old.no not in successors:
            segments.append(old)
            continue
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
    released = replace(chain, epoch=epoch, segments=tuple(segments))
    check(released)
    return released


def drop_oldest(chain: Chain, first_kept: int) -> Chain:
    """Let go of the segments before `first_kept`: retention. Only settled ones ever go."""
    assert chain.settled_before(first_kept)
    kept = tuple(segment for segment in chain.segments if segment.no >= first_kept)
    assert kept
    dropped = replace(chain, epoch=chain.epoch + 1, segments=kept)
    check(dropped)
    return dropped


def check(chain: Chain) -> None:
    """Assert what is true of every chain record (invariants I5 and I7 in one record)."""
    assert chain.segments, "a chain has at least one segment"
    assert chain.open_segment.state is SegmentState.OPEN, "the last segment is open"
    previous: Segment | None = None
    for segment in chain.segments:
        assert segment is chain.open_segment or segment.state is not SegmentState.OPEN, "one open segment"
        assert segment.members, "a segment has members"
        assert len(set(segment.members)) == len(segment.members)
        assert segment.server_epoch <= chain.epoch
        assert segment.state is not SegmentState.SEALED or segment.sealed_len is not None
        assert segment.state is not SegmentState.OPEN or segment.sealed_len is None
        if previous is not None:
            assert segment.no == previous.no + 1, "segment numbers have no gap"
            if previous.base is not None and previous.sealed_len is not None and previous.is_settled:
                assert segment.base == previous.base + previous.sealed_len, "positions are continuous"
            else:
                assert segment.base is None, "nothing behind an unsettled segment has a position"
        previous = segment


def _open(opening: Opening, no: int, base: int | None, epoch: int, now_ms: int) -> Segment:
    return Segment(
        no=no,
        attempt=opening.attempt,
        group=opening.group,
        members=opening.members,
        master_run=opening.master_run,
        state=SegmentState.OPEN,
        base=base,
        server=opening.members[0],
        server_epoch=epoch,
        eligible=opening.members,
        opened_at_ms=now_ms,
        incomplete_table=opening.incomplete_table,
    )


def _moved(chain: Chain, old: Segment, new: Segment, send_chain: tuple[str, ...]) -> Chain:
    """The head moves: the failed group goes to the tail of the send chain, the new one to the front."""
    others = tuple(group for group in chain.send_chain if group not in (old.group, new.group))
    rest = (old.group,) if old.group != new.group else ()
    send_chain = send_chain or (new.group, *others, *rest)
    assert send_chain[0] == new.group, "the head of the send chain owns the open segment"
    assert len(set(send_chain)) == len(send_chain)
    moved = replace(
        chain,
        epoch=chain.epoch + 1,
        send_chain=send_chain,
        segments=(*chain.segments[:-1], old, new),
    )
    check(moved)
    return moved


def _require(chain: Chain, no: int) -> Segment:
    segment = chain.segment(no)
    assert segment is not None, f"segment {no} is not in the chain of partition {chain.partition}"
    return segment


def _replace_segment(chain: Chain, changed: Segment, epoch: int) -> Chain:
    segments = tuple(changed if segment.no == changed.no else segment for segment in chain.segments)
    replaced = replace(chain, epoch=epoch, segments=segments)
    if changed.is_settled:
        return replaced  # bases may follow; `_with_bases` checks
    check(replaced)
    return replaced


def _with_bases(chain: Chain) -> Chain:
    """Fill in the bases that are known now: up to the first segment that is not settled, and the one behind."""
    segments: list[Segment] = []
    base: int | None = chain.segments[0].base
    for segment in chain.segments:
        segments.append(segment if segment.base == base else replace(segment, base=base))
        known = base is not None and segment.is_settled and segment.sealed_len is not None
        base = base + segment.sealed_len if known and base is not None and segment.sealed_len is not None else None
    filled = replace(chain, segments=tuple(segments))
    check(filled)
    return filled
