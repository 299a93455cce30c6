"""What a broker knows of segments that it copies, repairs or settles, and of producer tables of other members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from seriatim_api.ids import MemberId

from ..values.producers import ProducerTable
from ..values.states import State


class Copying(State):
    """One segment that this broker is completing."""

    __slots__ = ("asked", "asked_us", "differed", "failures", "pause_us", "replaces", "wake_us")

    def __init__(self, replaces: MemberId | None = None) -> None:
        self.asked: MemberId | None = None
        self.asked_us = 0
        self.differed = False  # a copy was complete once, but its checksum was not the sealed one
        self.failures = 0
        self.pause_us = 0
        self.wake_us = 0
        self.replaces = replaces


KnownTables = Mapping[int, ProducerTable]
"""Segment number -> the merged producer table of all segments before it. Kept only for segments with an incomplete
table, and for LOST segments, which have no table of their own. The one that was used last is last; see `_keep_before`.
"""


class TableWait(NamedTuple):
    """Another member waits for the producer table as of the end of a segment."""

    segment_no: int
    member: MemberId


class Repair(State):
    """One damaged segment that is being written anew; all below `next_index` has been written."""

    __slots__ = ("asked", "checksum", "failures", "foreign_count", "is_asking", "next_index", "pause_us", "wake_us")

    def __init__(self, next_index: int = 0, checksum: int = 0) -> None:
        self.next_index = next_index
        self.checksum = checksum  # the value of the checksum chain at `next_index`
        self.is_asking = False
        self.asked: MemberId | None = None
        self.failures = 0
        self.foreign_count = 0  # batches that came from other members
        self.pause_us = 0
        self.wake_us = 0


class Settlement(State):
    """One segment that this member is settling."""

    __slots__ = (
        "asked", "began_us", "fenced", "id", "is_behind", "pause_us", "stored", "suspects", "tails", "wake_us",
        "writing",
    )  # fmt: skip

    def __init__(self) -> None:
        self.id = b""
        self.fenced = False  # durably, with everything below the tail
        self.asked: tuple[MemberId, ...] = ()
        self.stored: dict[MemberId, None] = {}
        self.suspects: dict[MemberId, int] = {}  # the tails of other members that are suspects too
        self.tails: dict[MemberId, int] = {}  # the tails of other members of a flushed segment
        self.began_us = 0
        self.is_behind = False  # another member has more messages than this one
        self.pause_us = 0
        self.wake_us = 0
        self.writing = False
