"""What the controller decides, as pure functions of what it knows: whom to switch away from, what to heal.

The asynchronous half (election, watches, paging over chains) is `runtime.controller`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from seriatim_api.ids import MemberId

from ..values.chain import Chain, Segment, SegmentState
from ..values.events import Heal, Release, SwitchAwayFrom
from ..values.placement import healer, healers


@dataclass(frozen=True, slots=True)
class MemberView:
    """What the controller knows of a registered member.

    `is_live`: its live key stands, or it is linked. `is_certified`: the run that it registered last has a death
    certificate.
    """

    member: MemberId
    group: str
    admitted: bool
    is_live: bool
    is_certified: bool


def lost_groups(members: Iterable[MemberView]) -> frozenset[str]:
    """Groups of which no member runs: certified dead, or neither live nor linked."""
    running: dict[str, bool] = {}
    for view in members:
        if view.admitted:
            runs = view.is_live and not view.is_certified
            running[view.group] = running.get(view.group, False) or runs
    return frozenset(group for group, any_runs in running.items() if not any_runs)


def switch_away(chain: Chain, lost: Set[str]) -> SwitchAwayFrom | None:
    """The event for a partition whose open segment is on a lost group."""
    segment = chain.open_segment
    return SwitchAwayFrom(chain.partition, segment.no) if segment.group in lost else None


def plan_heals(
    chain: Chain,
    dead: Set[MemberId],
    live: Mapping[str, Sequence[MemberId]],
    *,
    min_copies: int,
) -> list[Heal]:
    """What to copy of a partition: sealed segments with fewer than `min_copies` copies that are not dead.

    Args:
        chain: The partition.
        dead: Members that were away for longer than `heal_after`.
        live: Running, admitted members by group.
        min_copies: How many copies there should be.
    """
    heals: list[Heal] = []
    for segment in chain.segments:
        if segment.state is not SegmentState.SEALED:
            continue
        left = [member for member in segment.members if member not in dead]
        if not left or len(left) >= min_copies:
            continue
        replaced = next((member for member in segment.members if member in dead), None)
        candidates = _candidates(segment.group, set(segment.members), live)
        member = healer(chain.partition, segment.no, candidates)
        if member is not None:
            heals.append(Heal(chain.partition, segment.no, member, replaced))
    return heals


def _candidates(group: str, holding: Set[MemberId], live: Mapping[str, Sequence[MemberId]]) -> list[MemberId]:
    """Members of the segment's own group first, others only if there is none: copies stay together while they can."""
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


def wants_copies(segment: Segment, gone: Set[MemberId], min_copies: int) -> bool:
    """Whether too few of a segment's members are left, and something can or will be done about it.

    A segment that is not sealed yet counts, even if nobody of it is left: nothing else would tell that it was sealed,
    or that a member is back.
    """
    left = sum(member not in gone for member in segment.members)
    if segment.state is SegmentState.LOST:
        return False
    return left < min_copies if segment.state is not SegmentState.SEALED else 0 < left < min_copies


def holders(segment: Segment) -> set[MemberId]:
    """Whose disks a segment still needs, for its messages or to serve them; a lost one needs nobody's."""
    if segment.state is SegmentState.LOST:
        return set()
    return {*segment.members, *segment.eligible, *segment.tail_copies, segment.server}


RELEASED_AT_ONCE_MAX = 64
"""Segments of a partition in one request: their pages still go into one transaction."""


def plan_release(
    chain: Chain,
    is_leaving: Callable[[MemberId], bool],
    is_there: Callable[[MemberId], bool],
    *,
    min_copies: int,
) -> Release | None:
    """The sealed segments whose records some members can leave, for enough others hold the whole of them and run.

    The server does it; if it does not run, another one takes the right first, also while too few others are eligible:
    nobody but a server makes a new copy eligible. Of several servers the one with the most such segments comes first:
    transactions on one chain would be in each other's way.

    Args:
        chain: The partition.
        is_leaving: Whether a member should leave.
        is_there: Whether a member is admitted and runs, as far as is known.
        min_copies: How many whole copies must stay.
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
    return Release(chain.partition, tuple(by_server[by][:RELEASED_AT_ONCE_MAX]), by, tuple(sorted(leaving)))


def plan_copies_elsewhere(
    chain: Chain,
    is_leaving: Callable[[MemberId], bool],
    live: Mapping[str, Sequence[MemberId]],
    *,
    min_copies: int,
) -> list[Heal]:
    """Copies that sealed segments need so that the leaving members can be spared.

    Args:
        chain: The partition.
        is_leaving: Whether a member should leave.
        live: Running, admitted members by group, of the groups that new copies may go to.
        min_copies: How many whole copies there should be without them.
    """
    steps: list[Heal] = []
    there = {member for members in live.values() for member in members}
    for segment in chain.segments:
        if segment.state is not SegmentState.SEALED or not any(map(is_leaving, holders(segment))):
            continue
        listed = [member for member in segment.members if member in there and not is_leaving(member)]
        brokers = {member.broker for member in segment.members}  # a holder of its tail only may get the rest as well
        free = [member for _, members in sorted(live.items()) for member in members if member.broker not in brokers]
        for member in healers(chain.partition, segment.no, free, min_copies - len(listed)):
            steps.append(Heal(chain.partition, segment.no, member, None))
    return steps
