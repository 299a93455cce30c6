"""Obstacles: why a broker group that is to be left is not empty yet. A human-readable text.

The modules that move open segments and copies (`controller`, `drain`) react to events and try again. They never know
that a move cannot happen. This module looks at a chain and at the brokers that are live. It finds the segments that
wait for a broker or for an administrator, and leaves out those that will leave by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from seriatim_api.ids import MemberId

from ..values.chain import Chain
from ..values.segment import Segment, SegmentState
from .controller import holders


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of all brokers and broker groups at this moment.

    Attributes:
        closed: Broker groups that are to have no open segment.
        is_leaving: Whether a member is to keep nothing.
        is_there: Whether a member is admitted and runs, as far as is known.
        is_replaced: Whether the slot of a member has another disk, or none: the member never comes back.
        takers: Live brokers of broker groups that are not closed. New copies go to them.
        has_whole_broker_group: Whether a broker group that is not closed is complete. Open segments go to such a
            one.
        min_copies: The number of in-sync copies that a segment needs.
    """

    closed: Set[str]
    is_leaving: Callable[[MemberId], bool]
    is_there: Callable[[MemberId], bool]
    is_replaced: Callable[[MemberId], bool]
    takers: Set[str]
    has_whole_broker_group: bool
    min_copies: int


def obstacles(chain: Chain, around: Around) -> Iterator[tuple[Segment, str]]:
    """The segments that should leave and cannot leave by themselves, each with a text that says what it waits for.

    Segments that leave at this moment, or are about to, are not among them.
    """
    for segment in chain.segments:
        if segment.state is SegmentState.OPEN:
            text = _open_segment(segment, around) if segment.broker_group in around.closed else ""
        elif any(map(around.is_leaving, holders(segment))):
            text = _unsettled(segment, around) if segment.state is SegmentState.UNSETTLED else _sealed(segment, around)
        else:
            text = ""
        if text:
            yield segment, f"segment {segment.no} of {chain.name} {text}"


def _open_segment(segment: Segment, around: Around) -> str:
    if not any(map(around.is_there, segment.members)):
        back = _who_may_return(segment.members, around)
        proof = f"an administrator must say that {segment.master.broker} has ended (declare-dead)"
        return f"is open and none of its brokers is live: {f'{back} must come back, or ' if back else ''}{proof}"
    return "" if around.has_whole_broker_group else "is open, and no other group is complete and takes open segments"


def _unsettled(segment: Segment, around: Around) -> str:
    if any(map(around.is_there, segment.members)):
        return ""
    if back := _who_may_return(segment.members, around):
        return f"has no settled length: {back} must come back"
    return "has no settled length and all its disks are replaced: only chain declare-gap can end the wait for it"


def _sealed(segment: Segment, around: Around) -> str:
    if not any(map(around.is_there, segment.eligible)):
        if back := _who_may_return(segment.eligible, around):
            return f"has no live server: {back} must come back"
        if not any(map(around.is_there, segment.members)):
            back = _who_may_return(segment.members, around)
            return f"is on no live broker: {back or 'none of its disks'} can come back"
    staying = {member.broker for member in segment.members if around.is_there(member) and not around.is_leaving(member)}
    count = len(staying | around.takers)
    return "" if count >= around.min_copies else f"needs {around.min_copies} copies, and {count} other brokers are live"


def _who_may_return(members: Iterable[MemberId], around: Around) -> str:
    """The names of the members whose disks may come back, joined by "or"; empty if there is none."""
    return " or ".join(sorted(member.broker for member in members if not around.is_replaced(member)))
