"""Restarting: whether a member may be stopped now, decided from what the other members say of their copies. Pure.

The chain records say which members to ask about which segments. The answers decide. A missing answer, or one that
differs from the record, counts as not safe.

Rule `gate-asks-nobody` (GATE): the gate asks the members, and does not trust the record. Without it:
  1. The record says that Am and As have the open segment. As is out of step, and lacks committed messages.
  2. The gate allows that Am is stopped.
  3. As fails. The last messages are on the disk of a broker that is stopped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from seriatim_api.ids import MemberId, PartitionId

from ..values.chain import Chain
from ..values.messages import CopyReport, Standing
from ..values.segment import SegmentState
from .controller import holders


class Verdict(enum.IntEnum):
    """Whether a member may be stopped. Of all segments the verdict that comes first here decides, except SAFE.

    The numbers are those on the wire.

    LAST_COPY: no proof that another disk has all of it. NO_OTHER_GROUP: no other broker group can take an open segment.
    PEER_AWAY: another member of a segment is not there, or lacks messages. UNKNOWN: a member that is needed does not
    answer.
    """

    SAFE = 1
    LAST_COPY = 2
    NO_OTHER_GROUP = 3
    PEER_AWAY = 4
    UNKNOWN = 5


class Need(NamedTuple):
    """A segment that the member is part of, and the members to ask about it.

    If there are no members to ask, the member cannot be stopped.
    """

    partition: PartitionId
    name: str  # of the partition, for humans
    segment_no: int
    epoch: int
    state: SegmentState
    ask: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one segment: the verdict, a human-readable text, and the index up to which the other copy is
    complete."""

    verdict: Verdict
    text: str
    need: Need
    index: int = 0


Reports = Mapping[tuple[MemberId, PartitionId, int], CopyReport]
"""The answers, by the member that answered, partition and segment."""


def needs(chain: Chain, member: MemberId) -> list[Need]:
    """The segments of a partition that the member is part of, each with the members to ask.

    For the open segment that is the master, for a sealed one the other members.
    """
    found: list[Need] = []
    for segment in chain.segments:
        if member not in holders(segment):
            continue
        if segment.state is SegmentState.OPEN:
            ask: tuple[MemberId, ...] = (segment.master,)
        elif segment.state is SegmentState.SEALED:
            ask = tuple(dict.fromkeys(m for m in (*segment.eligible, *segment.members) if m != member))
        else:
            ask = ()
        found.append(Need(chain.partition, chain.name, segment.no, chain.epoch, segment.state, ask))
    return found


def judge(need: Need, reports: Reports, is_there: Callable[[MemberId], bool]) -> Finding:
    """The finding for one segment.

    Args:
        need: The segment.
        reports: The answers.
        is_there: Whether a member is admitted and runs, as far as is known.
    """
    place = f"segment {need.segment_no} of {need.name}"
    if need.state is SegmentState.UNSETTLED:
        return Finding(Verdict.LAST_COPY, f"the length of {place} is not known yet, and this disk may be needed", need)
    answers = {
        member: reports[member, need.partition, need.segment_no]
        for member in need.ask
        if (member, need.partition, need.segment_no) in reports
    }
    if need.state is SegmentState.OPEN:
        return _judge_open(need, answers.get(need.ask[0]), place)
    for member, report in answers.items():
        if report.standing is Standing.IN_SYNC and is_there(member):
            return Finding(Verdict.SAFE, f"{member.broker} holds the whole of {place}", need, report.index)
    away = [member.broker for member in need.ask if not is_there(member)]
    silent = [member.broker for member in need.ask if member not in answers and is_there(member)]
    if silent:
        return Finding(Verdict.UNKNOWN, f"{silent[0]} does not answer what it holds of {place}", need)
    index = max((report.index for report in answers.values()), default=0)
    if len(away) == len(need.ask) and away:
        return Finding(Verdict.PEER_AWAY, f"{away[0]}, which should also hold {place}, is not there", need)
    return Finding(Verdict.LAST_COPY, f"no other disk holds the whole of {place}", need, index)


def _judge_open(need: Need, report: CopyReport | None, place: str) -> Finding:
    master = need.ask[0].broker
    if report is None or report.standing in (Standing.UNKNOWN, Standing.IN_SYNC, Standing.PARTIAL):
        return Finding(
            Verdict.UNKNOWN,
            f"{master}, the master of {place}, does not answer which messages the other members have",
            need,
        )
    if report.standing is Standing.OUT_OF_STEP:
        text = f"a member of {place} is not linked to its master {master}, or lacks committed messages"
        return Finding(Verdict.PEER_AWAY, text, need, report.index)
    if report.standing is Standing.NOWHERE_TO_GO:
        return Finding(Verdict.NO_OTHER_GROUP, f"no other complete group could take {place}", need, report.index)
    assert report.standing is Standing.IN_STEP
    return Finding(Verdict.SAFE, f"all members of {place} have all messages below its commit", need, report.index)


def decide(findings: list[Finding]) -> Finding | None:
    """The finding that decides: the worst one; if all are safe, the one of the newest open segment.

    None: no findings.
    """
    bad = [finding for finding in findings if finding.verdict is not Verdict.SAFE]
    if bad:
        return min(bad, key=lambda finding: finding.verdict)
    open_ones = [finding for finding in findings if finding.need.state is SegmentState.OPEN]
    safe = open_ones or findings
    return safe[-1] if safe else None
