"""What a broker knows of segments that it copies, repairs or settles, and of producer tables of other members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seriatim_api.ids import MemberId

from ..values.producers import ProducerTable
from ..values.states import State


@dataclass(slots=True, eq=False)
class Copying(State):
    """One segment that this broker is completing."""

    replaces: MemberId | None = None
    asked: MemberId | None = None
    asked_us: int = 0
    differed: bool = False  # a copy was complete once, but its checksum was not the sealed one
    token: int = 0  # of the newest write of this copy's batches and table
    failures: int = 0
    pause_us: int = 0
    wake_us: int = 0


KnownTables = Mapping[int, ProducerTable]
"""Segment number -> the merged producer table of all segments before it. Kept only for segments with an incomplete
table, and for LOST segments, which have no table of their own. The table that was used last is last, because
`producer_tables._keep_before` drops the first ones.
"""


class TableWait(NamedTuple):
    """Another member waits for the producer table as of the end of a segment."""

    segment_no: int
    member: MemberId


@dataclass(slots=True, eq=False)
class Repair(State):
    """One damaged segment that is being rewritten; all below `next_index` has been written."""

    next_index: int = 0
    checksum: int = 0  # the value of the checksum chain at `next_index`
    is_asking: bool = False
    asked: MemberId | None = None
    failures: int = 0
    foreign_count: int = 0  # batches that came from other members
    pause_us: int = 0
    wake_us: int = 0


@dataclass(slots=True, eq=False)
class Settlement(State):
    """One segment that this member is settling."""

    id: bytes = b""
    fenced: bool = False  # durably, with everything below the tail
    asked: tuple[MemberId, ...] = ()
    stored: dict[MemberId, None] = field(default_factory=dict)
    suspects: dict[MemberId, int] = field(default_factory=dict)  # the tails of other members that are suspects too
    tails: dict[MemberId, int] = field(default_factory=dict)  # the tails of other members of a flushed segment
    answered: dict[MemberId, None] = field(default_factory=dict)  # notified of the own tail since they were linked
    began_us: int = 0
    is_behind: bool = False  # another member has more messages than this one
    pause_us: int = 0
    wake_us: int = 0
    writing: bool = False
