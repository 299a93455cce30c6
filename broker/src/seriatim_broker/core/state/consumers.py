"""What a broker knows of the consumer groups on one partition, and of the readers of ranges."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seriatim_api.ids import MemberId

from ..values.effects import KeysListed, KeysOperated, RangeEvent, WriteCursor
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
from ..values.log import HandOverState
from ..values.positions import Place
from ..values.states import State, nothing
from .dispatcher import Consumer, Dispatcher
from .keyed.dispatcher import KeyedDispatcher
from .ledger import Ledger


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

    This is its seat: where its cursor is, whether this broker serves it, and who waits for it. The ledger and the
    dispatcher count only while it is served here.
    """

    name: str
    begins: Beginning | None = None  # if it has no cursor; None: no consumer has said so
    phase: ConsumerGroupPhase = ConsumerGroupPhase.LOADING
    consumers: list[Consumer] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    segment_no: int = 0
    group_epoch: int = 0
    server_epoch: int = 0
    cursor: CursorRecord | None = None  # as this broker read or wrote it last
    cursor_revision: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    keyed: KeyedDispatcher | None = None  # while it is served here, if order is by key
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
    def term(self) -> int:
        """The term of the tokens of its keys."""
        assert self.cursor is not None
        return self.cursor.term_base + self.server_epoch

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
        writing = self.writing
        is_pausing = writing is not None and writing.event.operation is ConsumerGroupOperation.PAUSE
        return is_pausing or (self.cursor is not None and self.cursor.paused)

    @property
    def is_at_most_once(self) -> bool:
        """Whether messages are acknowledged before they are given."""
        return self.cursor is not None and self.cursor.at_most_once

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
        self.ledger.replications = {}
        self.keyed = None
        for request in self.key_requests:  # it is not known what was kept of what was done for them
            request.serial, request.reply = 0, None
        for consumer in self.consumers:
            consumer.in_flight = consumer.read_serial = 0
            consumer.ack_confirmed = consumer.ack_number  # what these requests changed may be forgotten


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
