"""What a broker knows of switches: its own, those of others that ask it, and who waits for them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
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
    group: str
    members: tuple[MemberId, ...]
    flush: bool
    incomplete_table: bool
    table: Table
    tail: TailCopy | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to open a segment.

    `compared`: the newest revision that a transaction of it compared, without a word since that it cannot be carried
    out any more; None: there is no such transaction. `voided`: a member will not open under this id, or may forget it.
    """

    id: bytes
    content: Content
    compared: int | None = None
    voided: bool = False


class FenceTurn(NamedTuple):
    """The switcher that gets a large table now, and those that ask for it meanwhile."""

    switcher: MemberId
    segment_no: int
    until_us: int
    waiting: tuple[tuple[MemberId, FenceRequest], ...] = ()


class Offer(NamedTuple):
    """What the master of a segment has, and this member may need."""

    member: MemberId
    segment_no: int
    blocks: tuple[bytes, ...]


class Awaiting(NamedTuple):
    """A preparation that waits for blocks."""

    sender: MemberId
    request: PrepareRequest


class Asked(NamedTuple):
    """Blocks that were asked for, of whom and when."""

    member: MemberId
    blocks: tuple[bytes, ...]
    at_us: int


class Waiter(NamedTuple):
    """Somebody who asked for a route and waits until the chain is past a segment."""

    request: int
    past: int | None
    asked_us: int
    deadline_us: int


class SwitchKind(enum.Enum):
    """Why a switch runs."""

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


class Genesis(State):
    """What a first segment is made from."""

    __slots__ = ("flush", "number", "refused", "send_chain", "topic", "width")

    def __init__(self, topic: str, number: int, flush: bool, send_chain: tuple[str, ...], width: int) -> None:
        self.topic = topic
        self.number = number
        self.flush = flush
        self.send_chain = send_chain
        self.width = width
        self.refused = False  # the transaction did not hold


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
"""From each phase of a switch the phases that may follow. A switch may end in any phase."""


class SealPlan(State):
    """What a switch knows of the segment that it seals."""

    __slots__ = ("answers", "certificate", "first_answer_us", "pending", "source", "table", "table_complete")

    def __init__(self) -> None:
        self.table = NO_TABLE
        self.renew()

    def renew(self) -> None:
        """Forget the answers: the chain record is read again, and they speak of the one before."""
        self.answers: dict[MemberId, FenceAnswer] = {}
        self.pending: dict[MemberId, bool] = {}  # asked and not answered -> whether the question was sent
        self.first_answer_us: int | None = None
        self.source: MemberId | None = None  # whose answer decides the length
        self.certificate: RunId | None = None  # that proves the end of the master's run
        self.table_complete = True


class OpenPlan(State):
    """What a switch knows of the segment that it opens."""

    __slots__ = ("attempt", "attempt_is_new", "group", "groups_left", "members", "prepared")

    def __init__(self) -> None:
        self.groups_left: list[str] = []  # that were not asked yet, in their order
        self.group = ""  # that is asked now
        self.members: tuple[MemberId, ...] = ()  # of it, the future master first
        self.attempt = b""
        self.attempt_is_new = True
        self.prepared: dict[MemberId, int] = {}  # -> the run in which it prepared

    def awaits(self, member: MemberId) -> bool:
        """Whether that member was asked and has not prepared."""
        return member in self.members and member not in self.prepared


class Switch(State):
    """One switch of one partition, run by this broker."""

    __slots__ = (
        "chain",
        "contradicted",
        "deadline_us",
        "fenced",
        "genesis",
        "id",
        "kind",
        "opening",
        "pause_us",
        "phase",
        "reason",
        "request",
        "sealing",
        "segment_no",
        "started_us",
        "target_group",
        "target_master",
        "tries",
    )

    def __init__(self, kind: SwitchKind, reason: SwitchReason, segment_no: int, request: int | None) -> None:
        self.kind = kind
        self.reason = reason
        self.segment_no = segment_no
        self.request = request
        self.genesis: Genesis | None = None
        self.phase = SwitchPhase.READING
        self.id = b""
        self.chain: Chain | None = None  # the record that the transaction will be compared with
        self.sealing = SealPlan()
        self.opening = OpenPlan()
        self.fenced = False  # by this switch: it must come to an end now
        self.contradicted = False  # a member holds what should not be there yet, and the record was read again since
        self.deadline_us = 0  # of the phase
        self.pause_us = 0
        self.tries = 0  # that found no group: each gives the members twice the time of the one before
        self.started_us = 0
        self.target_group = ""  # of a planned switch: where it should go, if that was said
        self.target_master = ""

    @property
    def is_planned(self) -> bool:
        """Whether all members are alive and the switch may be dropped at no cost."""
        return self.kind is not SwitchKind.FAILOVER

    def enter(self, phase: SwitchPhase) -> None:
        """Go on to another phase."""
        assert phase in PHASES[self.phase], f"a switch cannot go from {self.phase.value} to {phase.value}"
        self.phase = phase
