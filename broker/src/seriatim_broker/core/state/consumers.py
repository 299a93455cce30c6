"""What a broker knows of the consumer groups on one partition, and of the readers of ranges.

A `ConsumerGroup` is here as long as something of it is. It has a `Served` while this broker serves it, and only then.
Functions about a consumer group take it as a `Seat`, or as a `Served` if they need one.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from seriatim_api.ids import MemberId

from ..values.chain import Chain
from ..values.effects import KeysListed, KeysOperated, RangeEvent, ReadCursor, WriteCursor
from ..values.events import (
    ConsumerGroupOperation,
    CursorRecord,
    ListKeys,
    OperateConsumerGroup,
    OperateKeys,
    ReadRange,
    StartPosition,
)
from ..values.keyed import ConsumerMode
from ..values.kinds import TimerKind
from ..values.log import HandOverState
from ..values.positions import Place
from ..values.segment import Segment
from ..values.states import State, freeze_value, nothing
from ..values.tokens import first_of
from .broker import BrokerState
from .dispatcher import Consumer, Dispatcher
from .keyed.dispatcher import KeyedDispatcher
from .keyed.handoff import OutgoingHandoff
from .ledger import Ledger
from .segment_log import SegmentLog

if TYPE_CHECKING:  # it has the consumer groups
    from .partition import Partition


class ConsumerGroupPhase(enum.Enum):
    """What this broker does with a consumer group's cursor segment."""

    LOADING = "loading"
    SERVING = "serving"
    CROSSING = "crossing"


@dataclass(slots=True, eq=False)
class Question(State):
    """A request that only asks where the consumer group's cursor is.

    Attributes:
        failed_epoch: The server epoch of the server that the consumer complains of; None: no complaint.
        heard: Another member has heard that server since the complaint arrived.
    """

    request: int
    failed_epoch: int | None
    deadline_us: int
    describe: bool
    asked_us: int = 0
    heard: bool = False


@dataclass(slots=True, eq=False)
class Operation(State):
    """A rewind, skip, pause, resume or change of settings; `consumers.groups.operations` has the rules."""

    event: OperateConsumerGroup
    is_begun: bool = False  # its transaction was sent, and may be carried out or not
    is_answered: bool = False
    tries: int = 0

    @property
    def is_pausing(self) -> bool:
        """Whether it pauses the consumer group, and may be carried out already."""
        return self.is_begun and self.event.operation is ConsumerGroupOperation.PAUSE


@dataclass(slots=True, eq=False)
class KeyRequest(State):
    """A request about keys that wait; `consumers.keyed.waiting_keys` has the rules.

    Attributes:
        event: The request.
        serial: Of the control record with all that the answer says; 0: it was not carried out yet.
        reply: The answer, which leaves when every member that must keep that control record has it.
    """

    event: ListKeys | OperateKeys
    serial: int = 0
    reply: KeysListed | KeysOperated | None = None


class Beginning(NamedTuple):
    """How a consumer group begins that has no cursor yet, as a consumer of it says."""

    start: StartPosition
    mode: ConsumerMode


@dataclass(slots=True, eq=False)
class ConsumerGroup(State):
    """What this broker knows of one consumer group on one partition.

    That is where its cursor is, whether this broker serves it, and who waits for it. Of the dispatcher, only how fast
    the consumers read and when they came outlives the time in which it is served here.
    """

    name: str
    begins: Beginning | None = None  # if it has no cursor; None: no consumer has said so
    phase: ConsumerGroupPhase = ConsumerGroupPhase.LOADING
    consumers: list[Consumer] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    segment_no: int = 0
    group_epoch: int = 0
    cursor: CursorRecord | None = None  # as this broker read or wrote it last
    cursor_revision: int = 0
    served: Served | None = None  # while it is served here
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    passes_alone: bool = False  # the consumer group leaves a segment without messages, even without consumers
    forwards_alone: bool = False  # it is loaded only because dead letters are on their way; until its keys are read
    tokens_from: int = 0  # the counter of tokens of this member run when the present term began
    cursor_write: WriteCursor | None = None  # the transaction on the cursor that is under way
    reads_chain_first: bool = False  # a transaction found that the cursor or the chain had changed
    # a revision of the cursor, and how many reads of the chain must end after that one
    chain_reads: tuple[int, int] = (-1, 0)
    operations: list[Operation] = field(default_factory=list)  # oldest first; the first one may be under way
    key_requests: list[KeyRequest] = field(default_factory=list)  # oldest first

    @property
    def serving(self) -> Served | None:
        """The consumer group as it is served here, if its cursor is not moved on at this moment."""
        return self.served if self.phase is ConsumerGroupPhase.SERVING else None

    @property
    def keyed(self) -> KeyedDispatcher | None:
        """Its keys, if it is served here key by key."""
        return self.served.keyed if isinstance(self.served, KeyedServed) else None

    @property
    def outgoing(self) -> OutgoingHandoff | None:
        """What this server hands over to the next one, until it is known that the cursor has moved, or has not."""
        keyed = self.keyed
        return keyed.handoff.outgoing if keyed is not None else None

    @property
    def read_from(self) -> int:
        """A read of the cursor that gives a lower revision came late, if it began before this one was known."""
        outgoing = self.outgoing
        return self.cursor_revision + (outgoing is not None and outgoing.has_conflict)

    @property
    def is_asked(self) -> bool:
        """Whether administrators or consumers wait for an answer."""
        return bool(self.questions or self.operations or self.key_requests)

    @property
    def is_forwarding(self) -> bool:
        """Whether dead letters are on their way, or may be: the group continues with them, also without consumers."""
        return self.forwards_alone or (self.keyed is not None and bool(self.keyed.forwarder.waiting))

    @property
    def writing(self) -> Operation | None:
        """The operation whose transaction is under way, or ended without an answer."""
        first = self.operations[0] if self.operations else None
        return first if first is not None and first.is_begun else None

    @property
    def is_held(self) -> bool:
        """Whether nothing may be delivered, because the consumer group is paused or about to be."""
        is_pausing = bool(self.operations) and self.operations[0].is_pausing
        return is_pausing or (self.cursor is not None and self.cursor.paused)

    def look_again(self) -> None:
        """Stop serving until the cursor is read again, because its place is not known. The consumers stay.

        Rule `forwards-are-wanted` (J4, I13): a group whose dead letters are on their way continues when its place is
        known, also if no consumer is left. Without it:
          1. The dead letter of k:5 is on its way. The state of the keys is handed over, and all consumers end.
          2. The transaction of the cursor finds that the chain has changed. The server reads both, and has no consumer.
          3. So it does not begin. But it keeps the group, because of k:5. Its dead letter is not sent.
          4. A consumer joins. The group seems to wait for its cursor, so none is read: the consumer waits for ever.
        """
        self.forwards_alone = self.is_forwarding
        self.drop_deliveries()
        self.phase = ConsumerGroupPhase.LOADING

    def drop_deliveries(self) -> None:
        """Stop delivering: drop the batches that were read, and ignore confirmations of earlier control records.

        Rule `still-active` (I9): the consumer that was active is active again, if it is still there. Without it:
          1. c1 is active, and works on 1:5. The server starts to cross, and the transaction finds that the chain has
             changed.
          2. The server starts over in the same segment. c2 joined first, so it is active, and is given 1:5 too.
        """
        if self.dispatcher.active is not None:
            for consumer in self.consumers:
                consumer.was_active = consumer is self.dispatcher.active
        self.dispatcher.stop()
        self.served = None
        for request in self.key_requests:  # it is not known what was kept of what was done for them
            request.serial, request.reply = 0, None
        for consumer in self.consumers:
            consumer.in_flight = consumer.read_serial = 0
            consumer.ack_confirmed = consumer.ack_number  # what these requests changed may be forgotten


class Seat(State):
    """A consumer group on one partition of this broker, also while the place of its cursor is not known.

    Attributes:
        broker: This broker.
        partition: The partition.
        group: The state of the consumer group.
    """

    __slots__ = ("broker", "group", "partition")

    def __init__(self, broker: BrokerState, partition: Partition, group: ConsumerGroup) -> None:
        self.broker = broker
        self.partition = partition
        self.group = group

    @property
    def cursor(self) -> CursorRecord:
        """The cursor, which this broker has read."""
        assert self.group.cursor is not None
        return self.group.cursor

    @property
    def chain(self) -> Chain:
        """The chain record, which this broker has read."""
        assert self.partition.chain is not None
        return self.partition.chain

    @property
    def segment(self) -> Segment | None:
        """The cursor segment; None if the chain record is not known, or does not have it."""
        chain = self.partition.chain
        return chain.segment(self.group.segment_no) if chain is not None else None

    @property
    def is_serving(self) -> bool:
        """Whether this broker serves the consumer group, and does not move it on at this moment."""
        return self.group.phase is ConsumerGroupPhase.SERVING

    def poll(self, after_us: int, kind: TimerKind) -> None:
        """Look at the consumer group again after a time, unless that is due sooner."""
        self.broker.poll(after_us, kind, self.partition.id, self.group.name)

    def retry_in(self, after_us: int) -> None:
        """Try again to deliver in the cursor segment after a time, unless that is due sooner."""
        self.broker.poll(after_us, TimerKind.PUMP, self.partition.id, self.group.segment_no)

    def go_on_next_step(self, kind: TimerKind) -> None:
        """Continue in the next step."""
        self.broker.go_on_next_step(kind, self.partition.id, self.group.name)

    def note(self, name: str, /, **values: object) -> None:
        """Note something about the consumer group in the journal."""
        self.broker.out.note(name, self.partition.id, group=self.group.name, **values)

    def read_cursor(self) -> None:
        """Ask the coordinator for the cursor."""
        self.broker.out.emit(ReadCursor(self.partition.id, self.group.name, self.group.read_from))


class Served(Seat):
    """A consumer group that is served here: the cursor segment is on this disk, and its chain record is known.

    So it is until the cursor has moved on. While it moves, `is_serving` is false: nothing is delivered then.

    Attributes:
        cursor: The cursor, as this broker read or wrote it last.
        settings: How the consumer group is served, as that cursor says.
        server_epoch: The server epoch in which this broker began to serve it.
        segment: The cursor segment, as the newest chain record has it.
        log: The cursor segment on this disk.
        ledger: What is acknowledged, and who has that on disk.
        dispatcher: Which consumer is active, and how far it was given messages.
    """

    __slots__ = ("cursor", "dispatcher", "ledger", "log", "segment", "server_epoch", "settings")

    cursor: CursorRecord
    segment: Segment

    def __init__(self, seat: Seat, cursor: CursorRecord, segment: Segment, ledger: Ledger) -> None:
        super().__init__(seat.broker, seat.partition, seat.group)
        self.cursor, self.settings = cursor, cursor.settings
        self.segment = segment
        self.server_epoch = segment.server_epoch
        self.log: SegmentLog = seat.partition.logs[segment.no]
        self.ledger = ledger
        self.dispatcher = seat.group.dispatcher

    def take_up(self, cursor: CursorRecord, revision: int) -> None:
        """The cursor was read, or written, in the same place as before."""
        self.group.cursor, self.group.cursor_revision = cursor, revision
        self.cursor, self.settings = cursor, cursor.settings

    def freeze(self) -> Hashable:
        """Only what no other part of the core has."""
        return (type(self).__name__, self.ledger.freeze(), freeze_value(self.segment))


class KeyedServed(Served):
    """A consumer group that is served here key by key.

    So it is also while a handoff is on its way and the outcome is not known: nothing changes then (`frozen-waits`).

    Attributes:
        keyed: Its keys.
        term: The present term of its tokens.
        token_base: The highest token that was given in this term is this plus `ConsumerStreams.tokens`.
    """

    __slots__ = ("keyed", "term", "token_base")

    def __init__(
        self, seat: Seat, cursor: CursorRecord, segment: Segment, ledger: Ledger, keyed: KeyedDispatcher
    ) -> None:
        super().__init__(seat, cursor, segment, ledger)
        self.keyed = keyed
        self._begin_term()

    def take_up(self, cursor: CursorRecord, revision: int) -> None:
        """With its term."""
        super().take_up(cursor, revision)
        self._begin_term()

    def _begin_term(self) -> None:
        self.term = self.cursor.term_base + self.server_epoch
        self.token_base = first_of(self.term) - self.group.tokens_from

    def freeze(self) -> Hashable:
        """With its keys."""
        return (super().freeze(), self.keyed.freeze())


class RecordRead(enum.Enum):
    """Whether the chain record was read in the coordinator after a request had come."""

    NOT_NEEDED = "not needed"
    WANTED = "wanted"
    UNDER_WAY = "under way"
    DONE = "done"


class RangeWait(NamedTuple):
    """A step of a range read that waits for the disk, for a producer table, or for the chain record.

    Attributes:
        event: The request.
        place: Where the reader waits.
        passed: The events that it found on the way to `place`.
        due_us: When it is answered in any case, by the monotonic clock.
        reading: The serial of the read of the disk; 0 if none is under way.
        record: Whether the chain record was read after the request had come.
    """

    event: ReadRange
    place: Place
    passed: tuple[RangeEvent, ...]
    due_us: int
    reading: int = 0
    record: RecordRead = RecordRead.NOT_NEEDED


@dataclass(slots=True, eq=False)
class Handing(State):
    """A handoff on its way to the members that must keep it.

    Attributes:
        handoff: The handoff.
        sender: The server of the segment before, which waits for the answer.
        waiting: The members that have not said that they have it, among them this one.
        serial: Of its write on this disk.
    """

    handoff: HandOverState
    sender: MemberId
    waiting: dict[MemberId, None]
    serial: int


HAS_ALL = 0
"""In `Right.joining`, in place of a serial."""


@dataclass(slots=True, eq=False)
class Right(State):
    """The right of this member to serve one segment.

    Attributes:
        confirmed: The right was given to this member run. Tokens of an earlier member run must not be used again.
        from_us: Nothing is delivered before that monotonic time.
        old_server: The server before, if its certified end makes the wait needless.
        blind: At some time no member was left that had the control records. So every message above what this member
            knows to be acknowledged may be a repeat.
        renewed: If `blind`: the group epoch that each consumer group must reach.
        joining: Members that have the whole segment and are receiving the control records: the serial of the
            `ReplicateCursors` that each must confirm; `HAS_ALL`: it has confirmed it, and waits for the transaction.
        listing: Members that a transaction of this member may have listed as eligible. No newer record has arrived
            that says whether it did.
    """

    confirmed: bool
    from_us: int
    old_server: MemberId | None
    blind: bool = False
    renewed: Mapping[str, int] = field(default_factory=nothing)
    listing: tuple[MemberId, ...] = ()
    joining: Mapping[MemberId, int] = field(default_factory=nothing)
