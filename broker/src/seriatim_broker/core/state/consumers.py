"""What a broker knows of consumer groups on one partition, and of those who read ranges of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from seriatim_api.ids import MemberId

from ..values.effects import RangeEvent
from ..values.events import ConsumerJoin, CursorRecord, GroupOperation, OperateGroup, ReadRange, StartPosition
from ..values.log import Batch
from ..values.positions import Place
from ..values.states import NOTHING, State


class GroupPhase(enum.Enum):
    """Where a group's head is on this broker."""

    LOADING = "loading"
    SERVING = "serving"
    CROSSING = "crossing"


class Consumer(State):
    """A subscription of this group."""

    __slots__ = ("name", "stream", "subscription", "was_active")

    def __init__(self, join: ConsumerJoin) -> None:
        self.name = join.consumer
        self.stream = join.stream
        self.subscription = join.subscription
        self.was_active = join.was_active


class Question(State):
    """Somebody who only asks where the group's head is."""

    __slots__ = ("deadline_us", "describe", "failed_epoch", "request")

    def __init__(self, request: int, failed_epoch: int | None, deadline_us: int, describe: bool) -> None:
        self.request = request
        self.failed_epoch = failed_epoch
        self.deadline_us = deadline_us
        self.describe = describe


class Operation(State):
    """What a person wants done to the group; `operations` has the rules."""

    __slots__ = ("event", "is_answered", "is_begun", "tries")

    def __init__(self, event: OperateGroup) -> None:
        self.event = event
        self.is_begun = False  # a transaction was sent, and whether it was carried out is not known yet
        self.is_answered = False
        self.tries = 0


class Sync(State):
    """A control record on its way to the other eligible members."""

    __slots__ = ("acked", "reserved", "waiting")

    def __init__(self, acked: int, reserved: int, waiting: dict[MemberId, None]) -> None:
        self.acked = acked
        self.reserved = reserved
        self.waiting = waiting  # those that have not confirmed, this member among them


class Given(State):
    """Up to where the grants of a group gave messages that are not acknowledged; `attempts` has the rules."""

    __slots__ = ("below", "ends", "group_epoch", "segment_no")

    def __init__(self, segment_no: int, group_epoch: int) -> None:
        self.segment_no = segment_no
        self.group_epoch = group_epoch
        self.ends: tuple[tuple[int, int], ...] = ()  # (end, how many grants ended there), of those that are over
        self.below = 0  # what the present grant has given; 0: nothing yet


class GroupHead(State):
    """What this broker knows of one group on one partition."""

    __slots__ = (
        "acked",
        "active",
        "consumers",
        "crossing_serial",
        "cursor",
        "cursor_revision",
        "delivered",
        "dirty",
        "dropped_from",
        "dropped_position",
        "eligible",
        "found_acked",
        "given",
        "group",
        "group_epoch",
        "held_back",
        "operations",
        "passes_alone",
        "phase",
        "questions",
        "reading",
        "reads_chain_first",
        "repeated_below",
        "reserved",
        "safe_acked",
        "safe_reserved",
        "segment_no",
        "server_epoch",
        "silent_rounds",
        "start",
        "syncs",
        "token",
    )

    def __init__(self, group: str, start: StartPosition) -> None:
        self.group = group
        self.start = start
        self.phase = GroupPhase.LOADING
        self.consumers: list[Consumer] = []
        self.questions: list[Question] = []
        self.active: Consumer | None = None
        self.segment_no = 0
        self.group_epoch = 0
        self.server_epoch = 0
        self.cursor: CursorRecord | None = None  # as the coordinator had it last
        self.cursor_revision = 0
        self.acked = 0  # acknowledged here
        self.safe_acked = 0  # acknowledged, and durable on every eligible member
        self.found_acked = 0  # what this member's disk said when it began to serve: below it some may be confirmed
        self.reserved = 0
        self.safe_reserved = 0
        self.delivered = 0  # to the active consumer
        self.given: Given | None = None  # once this broker serves
        self.repeated_below = 0  # what another server may have delivered
        self.dropped_from = 0  # as in the cursor's record: as long as nothing behind it is acknowledged
        self.dropped_position = 0
        self.passes_alone = False  # leaves a segment without messages, with or without consumers
        self.token = 0
        self.silent_rounds = 0  # looks in a row that found the active consumer silent
        self.reading = 0  # serial of the read under way
        self.held_back: tuple[Batch, ...] = ()  # read, and waiting for a reservation
        self.dirty = False
        self.eligible: tuple[MemberId, ...] = ()  # that the newest control record went to
        self.syncs: dict[int, Sync] = {}
        self.crossing_serial = 0  # of the transaction on the cursor that is under way
        self.reads_chain_first = False  # a transaction met another cursor, or another chain, than was read
        self.operations: list[Operation] = []  # of people, oldest first: the first one may be under way

    @property
    def writing(self) -> Operation | None:
        """The operation whose transaction is under way, or ended without an answer."""
        first = self.operations[0] if self.operations else None
        return first if first is not None and first.is_begun else None

    @property
    def is_held(self) -> bool:
        """Whether nothing may be given out, because the group is paused or about to be."""
        writing = self.writing
        is_pausing = writing is not None and writing.event.operation is GroupOperation.PAUSE
        return is_pausing or (self.cursor is not None and self.cursor.paused)

    def look_again(self) -> None:
        """The group's place has to be found anew; its consumers stay."""
        for consumer in self.consumers:
            consumer.was_active = consumer is self.active
        self.drop_deliveries()
        self.phase = GroupPhase.LOADING

    def drop_deliveries(self) -> None:
        """What was read is not delivered, and what was on its way to other members counts for nothing any more."""
        self.active = None
        self.syncs = {}
        self.held_back = ()
        self.reading = 0


class RangeWait(NamedTuple):
    """A step that cannot be answered yet: the disk is read, a producer table or the chain is asked for.

    `passed` was found on the way to `place`, where it waits. `reading`: the serial of the read under way, else 0.
    """

    event: ReadRange
    place: Place
    passed: tuple[RangeEvent, ...]
    reading: int = 0


class Right(State):
    """The right of this member to serve one segment.

    `confirmed`: it was given in this run (an earlier run's tokens must not be used again). Nothing is delivered before
    `from_us`. `blind`: nobody who had the control records was left at some time, so whatever stands above this
    member's own cursor may be a repeat; `renewed` says which epoch each group must reach for it. `joining`: members
    that hold the whole segment and are being given the control records. `listing`: those that a transaction of this
    member may have listed as eligible, without a record since that says so or not.
    """

    __slots__ = ("blind", "confirmed", "from_us", "joining", "listing", "old_server", "renewed")

    def __init__(self, confirmed: bool, from_us: int, old_server: MemberId | None, blind: bool = False) -> None:
        self.blind = blind
        self.renewed: Mapping[str, int] = NOTHING
        self.confirmed = confirmed
        self.from_us = from_us
        self.old_server = old_server
        self.listing: tuple[MemberId, ...] = ()
        self.joining: Mapping[MemberId, int] = NOTHING  # -> serial of the cursor sync that it must confirm
