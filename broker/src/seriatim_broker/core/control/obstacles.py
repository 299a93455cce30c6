"""Why a group that is to be left is not empty yet: what does not leave by itself, and what it waits for, for people.

Whatever moves heads and copies (`controller`, `leaving`) goes by events and asks again; it never knows that something
will not happen. This looks at a chain and at who is there, and tells it from what is merely not done yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from seriatim_api.ids import MemberId

from ..values.chain import Chain, Segment, SegmentState
from .controller import holders


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of everybody at this moment.

    Attributes:
        closed: Groups that no head is to stand on.
        is_leaving: Whether a member is to keep nothing.
        is_there: Whether a member is admitted and runs, as far as is known.
        is_replaced: Whether its slot has another disk, or nobody: it never comes back.
        takers: Live brokers of groups that are not closed: new copies go to them.
        has_whole_group: Whether a group that is not closed has all its members there: heads go to such.
        min_copies: Of a segment.
    """

    closed: Set[str]
    is_leaving: Callable[[MemberId], bool]
    is_there: Callable[[MemberId], bool]
    is_replaced: Callable[[MemberId], bool]
    takers: Set[str]
    has_whole_group: bool
    min_copies: int


def obstacles(chain: Chain, around: Around) -> Iterator[tuple[Segment, str]]:
    """The segments that should leave and do not without help, each with what it waits for.

    What leaves at this moment, or is about to, is not among them.
    """
    for segment in chain.segments:
        if segment.state is SegmentState.OPEN:
            text = _head(segment, around) if segment.group in around.closed else ""
        elif any(map(around.is_leaving, holders(segment))):
            text = _unsettled(segment, around) if segment.state is SegmentState.UNSETTLED else _sealed(segment, around)
        else:
            text = ""
        if text:
            yield segment, f"segment {segment.no} of {chain.topic}, partition {chain.number}, {text}"


def _head(segment: Segment, around: Around) -> str:
    if not any(map(around.is_there, segment.members)):
        back = _who_may_return(segment.members, around)
        proof = f"{segment.master.broker}'s end be proven (declare-dead)"
        return f"is open and none of its brokers is live: {f'{back} must come back, or ' if back else ''}{proof}"
    return "" if around.has_whole_group else "is open, and no other group is whole and takes heads"


def _unsettled(segment: Segment, around: Around) -> str:
    if any(map(around.is_there, segment.members)):
        return ""
    if back := _who_may_return(segment.members, around):
        return f"has no settled length: {back} must come back"
    return "has no settled length and all its disks are replaced: only chain declare-gap goes on without it"


def _sealed(segment: Segment, around: Around) -> str:
    if not any(map(around.is_there, segment.eligible)):
        if back := _who_may_return(segment.eligible, around):
            return f"is served by nobody: {back} must come back"
        if not any(map(around.is_there, segment.members)):
            back = _who_may_return(segment.members, around)
            return f"is on no live broker: {back or 'none of its disks'} can come back"
    staying = {member.broker for member in segment.members if around.is_there(member) and not around.is_leaving(member)}
    count = len(staying | around.takers)
    return "" if count >= around.min_copies else f"wants {around.min_copies} copies, and {count} other brokers are live"


def _who_may_return(members: Iterable[MemberId], around: Around) -> str:
    """Those whose disks may come back, by name; empty if there is none."""
    return " or ".join(sorted(member.broker for member in members if not around.is_replaced(member)))
