"""One segment of a partition: its states, where it begins, and its row in the chain record."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from seriatim_api.ids import MemberId, RunId


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
    """A transition that `LEGAL_TRANSITIONS` does not have: a bug of the broker."""


class Start(NamedTuple):
    """Where a segment begins: its first index, the value of the checksum chain there, and the bytes of all batches
    below."""

    first: int
    checksum: int
    size_bytes: int


PRODUCERS_DEFAULT: Final = 100_000
"""How many producers a partition remembers."""

PRODUCERS_MAX: Final = 1_000_000
"""The most producers that a partition may be told to remember."""


def shared_limit(producers_max: int) -> int:
    """The same number, as one object if it is the usual one: a partition may have 10,000 segments."""
    return PRODUCERS_DEFAULT if producers_max == PRODUCERS_DEFAULT else producers_max


AT_ZERO = Start(0, 0, 0)
"""The start of a segment of which nothing was dropped."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One tenure of one broker group.

    Attributes:
        no: Its number in the partition, never reused.
        switch_attempt: The id of the switch attempt that opened it.
        broker_group: The broker group.
        members: The members; fixed while the segment is OPEN. The first one is the master.
        master_run: The member run in which the master prepared it.
        state: Its state.
        base: The number of messages in all segments before; None after an unsettled one.
        server: The member that serves consumers.
        server_epoch: The chain epoch that made it the server.
        eligible: The members that may serve.
        opened_at_ms: The switcher's clock at the opening, for humans and for the age of the segment.
        sealed_len: Its length; None while it is not known.
        sealed_checksum: The value of the checksum chain at that length.
        tail_from: The batches in [tail_from, sealed_len) are also on `tail_copies`.
        tail_copies: Members of the next segment.
        incomplete_table: It was opened without the producer table of all segments before.
        sealed_at_ms: The switcher's clock at the end of its tenure, not before its newest append time.
        records_lost: At some time no member was left that had the control records of consumer groups. So everything
            that its servers deliver may be a repeat.
        append_floor_ms: The newest append time before the segment, as far as the switcher knew; no clock of the
            switcher is in it.
        folded: How many numbers right before this one belonged to empty segments that left the record.
        begin: Retention dropped all messages below.
        sealed_bytes: Bytes of all batches below `sealed_len`, including dropped ones; None while it is not sealed, or
            if it was declared lost before that.
        producers_max: How many producers its producer table remembers.
        delayed_until_ms: No delayed message of it is due later; 0: it has none, or is not sealed.
    """

    no: int
    switch_attempt: bytes
    broker_group: str
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
    append_floor_ms: int = 0
    folded: int = 0
    begin: Start = AT_ZERO
    sealed_bytes: int | None = None
    producers_max: int = PRODUCERS_DEFAULT
    delayed_until_ms: int = 0

    @property
    def start(self) -> int:
        """The first index that is kept."""
        return self.begin.first

    @property
    def previous_no(self) -> int:
        """The number of the segment before this one; 0 of the first one."""
        return self.no - 1 - self.folded

    @property
    def master(self) -> MemberId:
        """The member that appends."""
        return self.members[0]

    @property
    def master_run_id(self) -> RunId:
        """The member run whose death certificate proves that nothing is acknowledged in this segment any more."""
        return RunId(self.members[0], self.master_run)

    @property
    def parties(self) -> tuple[MemberId, ...]:
        """The members that must exchange heartbeats often: those of an open segment, else the eligible ones."""
        return self.members if self.state is SegmentState.OPEN else self.eligible

    @property
    def has_two_copies(self) -> bool:
        """Whether two members surely have the whole segment, because they are eligible; or it is LOST."""
        return self.state is SegmentState.LOST or (self.state is SegmentState.SEALED and len(self.eligible) >= 2)

    @property
    def is_settled(self) -> bool:
        """Whether its length never changes any more: it is sealed, or declared lost."""
        return self.state in (SegmentState.SEALED, SegmentState.LOST)

    @property
    def is_stub(self) -> bool:
        """Whether it is sealed and has no message, because there were none or retention dropped them all."""
        return self.state is SegmentState.SEALED and self.start == self.sealed_len

    def to_state(self, state: SegmentState) -> SegmentState:
        """`state`, if `LEGAL_TRANSITIONS` allows it.

        Raises:
            IllegalTransitionError: It does not.
        """
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"segment {self.no} cannot go from {self.state} to {state}: {self}")
        return state
