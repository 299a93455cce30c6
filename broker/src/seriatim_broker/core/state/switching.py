"""What a broker knows of switches: its own, those of other switchers, and the requests that wait for them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seriatim_api.ids import MemberId, RunId

from ..values.chain import Chain
from ..values.kinds import SwitchReason
from ..values.log import TailCopy
from ..values.messages import FenceAnswer, FenceRequest, PrepareRequest
from ..values.producers import NO_TABLE, Table
from ..values.states import State


@dataclass(frozen=True, slots=True)
class Content:
    """What members are asked to prepare for a segment."""

    segment_no: int
    broker_group: str
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    table: Table
    tail: TailCopy | None
    producers_max: int


@dataclass(frozen=True, slots=True)
class SwitchAttempt:
    """One switch attempt of this broker.

    Attributes:
        id: Its random id.
        content: What the members are asked to prepare.
        compared: The newest revision that a transaction of it compared, if that transaction may still be carried out;
            None: no such transaction exists.
        voided: The id is not used again, because a member will not open under it, or may have forgotten it.
    """

    id: bytes
    content: Content
    compared: int | None = None
    voided: bool = False


class FenceTurn(NamedTuple):
    """The switcher that is being given a large table, and the switchers that wait for their turn."""

    switcher: MemberId
    segment_no: int
    until_us: int
    waiting: tuple[tuple[MemberId, FenceRequest], ...] = ()


class Offer(NamedTuple):
    """The idle blocks that the master of the open segment has, and that this member may need."""

    member: MemberId
    segment_no: int
    blocks: tuple[bytes, ...]


class Awaiting(NamedTuple):
    """A preparation that waits for idle blocks."""

    sender: MemberId
    request: PrepareRequest


class Asked(NamedTuple):
    """The idle blocks that this member asked for, the member that it asked, and when."""

    member: MemberId
    blocks: tuple[bytes, ...]
    at_us: int


class Probed(NamedTuple):
    """A segment whose master this broker has asked for a sign of life, and when it asked."""

    segment_no: int
    at_us: int
    again: bool = False


class Waiter(NamedTuple):
    """A request for a route; with `past`, it waits until a segment after that one is open.

    With `silent`, it waits until the master of that segment was heard, or a segment after that one is open.
    """

    request: int
    past: int | None
    asked_us: int
    deadline_us: int
    silent: int | None = None


class SwitchKind(enum.Enum):
    """The kinds of switches."""

    FAILOVER = "failover"
    PLANNED = "planned"
    GENESIS = "genesis"


class SwitchPhase(enum.Enum):
    """What a switch waits for."""

    READING = "reading"
    QUIESCING = "quiescing"
    FENCING = "fencing"
    TABLES = "tables"
    CERTIFYING = "certifying"
    PREPARING = "preparing"
    WRITING = "writing"
    PAUSED = "paused"


@dataclass(slots=True, eq=False)
class Genesis(State):
    """The content of a partition that is being made with its first segment."""

    topic: str
    number: int
    flush: bool
    send_chain: tuple[str, ...]
    width: int
    refused: bool = False  # the transaction failed: another broker made or deleted the partition


PHASES: Final = {
    SwitchPhase.READING: {SwitchPhase.READING, SwitchPhase.PREPARING, SwitchPhase.FENCING, SwitchPhase.PAUSED},
    SwitchPhase.QUIESCING: {SwitchPhase.READING, SwitchPhase.FENCING},
    SwitchPhase.FENCING: {
        SwitchPhase.READING,
        SwitchPhase.TABLES,
        SwitchPhase.CERTIFYING,
        SwitchPhase.PREPARING,
        SwitchPhase.PAUSED,
    },
    SwitchPhase.TABLES: {SwitchPhase.READING, SwitchPhase.PREPARING, SwitchPhase.PAUSED},
    SwitchPhase.CERTIFYING: {SwitchPhase.PREPARING, SwitchPhase.PAUSED},
    SwitchPhase.PREPARING: {
        SwitchPhase.READING,
        SwitchPhase.PREPARING,
        SwitchPhase.QUIESCING,
        SwitchPhase.WRITING,
        SwitchPhase.PAUSED,
    },
    SwitchPhase.WRITING: {SwitchPhase.READING, SwitchPhase.PAUSED},
    SwitchPhase.PAUSED: {SwitchPhase.READING, SwitchPhase.PAUSED},
}
"""For each phase of a switch, the phases that may follow. A switch may end in any phase."""


class SealPlan(State):
    """What a switch knows of the segment that it seals."""

    __slots__ = ("answers", "certificate", "first_answer_us", "pending", "source", "table", "table_complete")

    def __init__(self) -> None:
        self.table = NO_TABLE
        self.renew()

    def renew(self) -> None:
        """Forget the answers, because the chain record is read again and they belong to the one before."""
        self.answers: dict[MemberId, FenceAnswer] = {}
        self.pending: dict[MemberId, bool] = {}  # members without an answer -> whether the question was sent
        self.first_answer_us: int | None = None
        self.source: MemberId | None = None  # the member whose answer decides the length
        self.certificate: RunId | None = None  # the certificate that proves the end of the master's member run
        self.table_complete = True


@dataclass(slots=True, eq=False)
class OpenPlan(State):
    """What a switch knows of the segment that it opens."""

    broker_groups_left: list[str] = field(default_factory=list)  # broker groups that were not asked yet, best first
    broker_group: str = ""  # the broker group that is asked now
    members: tuple[MemberId, ...] = ()  # its members, the future master first
    switch_attempt: bytes = b""
    switch_attempt_is_new: bool = True
    prepared: dict[MemberId, int] = field(default_factory=dict)  # -> the member run in which it prepared

    def awaits(self, member: MemberId) -> bool:
        """Whether this switch waits for that member to prepare."""
        return member in self.members and member not in self.prepared


@dataclass(slots=True, eq=False)
class Switch(State):
    """One switch of one partition, run by this broker."""

    kind: SwitchKind
    reason: SwitchReason
    segment_no: int
    request: int | None
    genesis: Genesis | None = None
    phase: SwitchPhase = SwitchPhase.READING
    id: bytes = b""
    chain: Chain | None = None  # the record whose revision the transaction compares
    sealing: SealPlan = field(default_factory=SealPlan)
    opening: OpenPlan = field(default_factory=OpenPlan)
    fenced: bool = False  # this switch has fenced a member, so it must not be dropped any more
    contradicted: bool = False  # a member had the next segment already, so the record is read again
    deadline_us: int = 0  # of the phase
    pause_us: int = 0
    tries: int = 0  # pauses after a try, up to a limit; each doubles the time that members get
    started_us: int = 0
    target_broker_group: str = ""  # of a planned switch: the broker group that was asked for, or empty
    target_master: str = ""

    @property
    def is_planned(self) -> bool:
        """Whether it is not a failover: all members are alive, and the switch may be dropped without harm."""
        return self.kind is not SwitchKind.FAILOVER

    def enter(self, phase: SwitchPhase) -> None:
        """Go to another phase; it must be one that `PHASES` allows."""
        assert phase in PHASES[self.phase], f"a switch cannot go from {self.phase.value} to {phase.value}"
        self.phase = phase
