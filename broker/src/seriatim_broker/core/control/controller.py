"""Decisions of the controller, as pure functions of what it knows: which broker groups to leave, what to heal.

The asynchronous half (election, watches, paging over chains) is `runtime.controller`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from seriatim_api.ids import MemberId

from ..values.chain import Chain, may_join
from ..values.events import Heal, MoveOpenSegment, Release, SwitchAwayFrom
from ..values.placement import healer, healers
from ..values.segment import Segment, SegmentState


@dataclass(frozen=True, slots=True)
class MemberView:
    """What the controller knows of a registered member.

    `is_live`: it has a live key in the coordinator, or it is linked. `is_certified`: the member run that it registered
    last has a death certificate.
    """

    member: MemberId
    broker_group: str
    admitted: bool
    is_live: bool
    is_certified: bool


def lost_broker_groups(members: Iterable[MemberView]) -> frozenset[str]:
    """The broker groups of which no member runs: each is certified dead, or neither live nor linked."""
    running: dict[str, bool] = {}
    for view in members:
        if view.admitted:
            runs = view.is_live and not view.is_certified
            running[view.broker_group] = running.get(view.broker_group, False) or runs
    return frozenset(group for group, any_runs in running.items() if not any_runs)


def switch_away(chain: Chain, lost: Set[str]) -> SwitchAwayFrom | None:
    """The event for a partition whose open segment is on a lost broker group; else None."""
    segment = chain.open_segment
    return SwitchAwayFrom(chain.partition, segment.no) if segment.broker_group in lost else None


def plan_heals(
    chain: Chain,
    dead: Set[MemberId],
    live: Mapping[str, Sequence[MemberId]],
    expected: Mapping[str, Sequence[MemberId]],
    *,
    copies: int,
    min_copies: int,
) -> list[Heal]:
    """The copies that a partition needs: of sealed segments with fewer than `copies` members that are not dead.

    A segment with `min_copies` waits for an expected member of its broker group. It lacks a copy because it was open
    while that member was away.

    Args:
        chain: The partition.
        dead: Members that have been away for longer than `heal_after` (10 minutes unless set).
        live: Running, admitted members by broker group.
        expected: Admitted members by broker group that are not dead, running or not.
        copies: How many copies a segment should have.
        min_copies: Below this number a segment does not wait.
    """
    heals: list[Heal] = []
    running = {member for members in live.values() for member in members}
    for segment in chain.segments:
        if segment.state is not SegmentState.SEALED:
            continue
        left = [member for member in segment.members if member not in dead]
        if not left or len(left) >= copies:
            continue
        replaced = next((member for member in segment.members if member in dead), None)
        there = live if len(left) < min_copies else expected
        candidates = filter(running.__contains__, _candidates(segment.broker_group, set(segment.members), there))
        member = healer(chain.partition, segment.no, list(candidates))
        if member is not None:
            heals.append(Heal(chain.partition, segment.no, member, replaced))
    return heals


def _candidates(group: str, holding: Set[MemberId], live: Mapping[str, Sequence[MemberId]]) -> list[MemberId]:
    """Members of the segment's own broker group; if there is none, members of the others."""
    own = [member for member in live.get(group, ()) if member not in holding]
    if own:
        return own
    brokers = {member.broker for member in holding}
    return [
        member
        for _, members in sorted(live.items())
        for member in members
        if member not in holding and member.broker not in brokers
    ]


def plan_growth(
    chain: Chain, live: Mapping[str, Sequence[MemberId]], copies: int, cut_off: Set[str]
) -> MoveOpenSegment | None:
    """The move of an open segment that has fewer members than it should, if a broker group could take it with all.

    Args:
        chain: The partition.
        live: The members of each broker group that run.
        copies: How many members it should have.
        cut_off: The brokers that have no link to a live member of their broker group.

    Rule `grows-when-linked` (I13): no broker group with such a member counts. Without it:
      1. In the only broker group, m0 and m1 do not hear each other, and m2 hears both. The segment has m2 and m0.
      2. It grows: m1 becomes its master, and stands still, because m0 does not answer. After 0.4 s it opens another
         one without m0.
      3. That one has two members, so it grows. This repeats as long as the link is cut.
    """
    segment = chain.open_segment
    could = [own for own in live.values() if len(own) >= copies and not any(one.broker in cut_off for one in own)]
    if len(segment.members) >= copies or not could:
        return None
    return MoveOpenSegment(chain.partition, segment.no, segment.master)


def wants_copies(segment: Segment, gone: Set[MemberId], copies: int) -> bool:
    """Whether too few of a segment's members are left, and healing can do something about it now or later.

    A segment that is not sealed yet counts even if no member of it is left. The controller would not hear otherwise
    that it was sealed, or that a member is back.
    """
    left = sum(member not in gone for member in segment.members)
    if segment.state is SegmentState.LOST:
        return False
    return left < copies if segment.state is not SegmentState.SEALED else 0 < left < copies


def holders(segment: Segment) -> set[MemberId]:
    """The members whose disks a segment still needs, to keep its messages or to serve them; none if it is LOST.

    Rule `tails-forgotten` (I13): a drained broker group gives away tail copies as well. Without it:
      1. A member of a drained broker group keeps only a tail copy of a segment. The controller does not count it.
      2. The record still names the member, so the broker group never becomes empty.
    """
    if segment.state is SegmentState.LOST:
        return set()
    return {*segment.members, *segment.eligible, *segment.tail_copies, segment.server}


def plan_release(
    chain: Chain,
    is_leaving: Callable[[MemberId], bool],
    is_there: Callable[[MemberId], bool],
    *,
    min_copies: int,
) -> Release | None:
    """The sealed segments whose records some members can leave now, and the server that carries it out; None: none.

    If the server of a segment does not run, another member takes the right first, even if too few others are eligible:
    only a server makes a new copy eligible. If several servers have such segments, the one with the most comes first,
    because two transactions on one chain would conflict.

    Rules `leaves-when-one-stays` and `leaves-when-listed` (LEAVE): a copy leaves a record only if two in-sync copies
    stay, and only an eligible member counts as an in-sync copy. `leaving.staying_copies` checks both again. Without
    them:
      1. Group A is drained. Segment 1 has an in-sync copy on A and one on B. A third copy on C is listed as a member,
         but is still being made.
      2. The copy on A leaves the record, and its disk is removed.
      3. The disk of B is lost. No disk has the rest of segment 1.

    Args:
        chain: The partition.
        is_leaving: Whether a member should leave.
        is_there: Whether a member is admitted and runs, as far as is known.
        min_copies: How many in-sync copies must stay.
    """
    by_server: dict[MemberId, list[int]] = {}
    leaving: set[MemberId] = set()
    for segment in chain.segments:
        gone = set(filter(is_leaving, holders(segment)))
        if segment.state is not SegmentState.SEALED or not gone:
            continue
        whole = [member for member in segment.eligible if member not in gone and is_there(member)]
        if is_there(segment.server):
            server = segment.server if len(whole) >= min_copies else None
        else:
            server = next(filter(is_there, (*whole, *segment.eligible, *segment.members)), None)
        if server is not None:
            by_server.setdefault(server, []).append(segment.no)
            leaving |= gone
    if not by_server:
        return None
    by = max(sorted(by_server), key=lambda member: len(by_server[member]))
    nos: list[int] = []
    for no in by_server[by]:
        if may_join(nos, no):
            nos.append(no)
    return Release(chain.partition, tuple(nos), by, tuple(sorted(leaving)))


def plan_copies_elsewhere(
    chain: Chain,
    is_leaving: Callable[[MemberId], bool],
    live: Mapping[str, Sequence[MemberId]],
    *,
    min_copies: int,
) -> list[Heal]:
    """The copies that sealed segments need before the leaving members can leave.

    Args:
        chain: The partition.
        is_leaving: Whether a member should leave.
        live: Running, admitted members by broker group, of the broker groups that may get new copies.
        min_copies: How many in-sync copies there should be without the leaving members.
    """
    steps: list[Heal] = []
    there = {member for members in live.values() for member in members}
    for segment in chain.segments:
        if segment.state is not SegmentState.SEALED or not any(map(is_leaving, holders(segment))):
            continue
        listed = [member for member in segment.members if member in there and not is_leaving(member)]
        brokers = {member.broker for member in segment.members}  # a holder of a tail copy only may get the rest too
        free = [member for _, members in sorted(live.items()) for member in members if member.broker not in brokers]
        for member in healers(chain.partition, segment.no, free, min_copies - len(listed)):
            steps.append(Heal(chain.partition, segment.no, member, None))
    return steps
