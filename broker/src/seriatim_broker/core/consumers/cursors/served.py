"""A consumer group in one step: what every function about it needs, in one object, with nothing that may be missing.

A `Seat` is for whatever concerns a consumer group here, also while the place of its cursor is not known. A `Served` is
only made while this broker serves the consumer group, and a `KeyedServed` only if that is done key by key. All of them
live for one step: what lasts is the state of the consumer group (`state.consumers`).
"""

from __future__ import annotations

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase
from ...state.keyed.dispatcher import KeyedDispatcher
from ...state.partition import Partition
from ...state.segment_log import SegmentLog
from ...values.chain import Chain
from ...values.effects import ReadCursor
from ...values.events import CursorRecord
from ...values.kinds import TimerKind
from ...values.segment import Segment


class Seat:
    """A consumer group on one partition of this broker.

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
        self.broker.out.emit(ReadCursor(self.partition.id, self.group.name, self.group.cursor_revision))

    def serving(self) -> Served | None:
        """The consumer group, if messages may be delivered to it here."""
        return serving_of(self.broker, self.partition, self.group)

    def has_right(self) -> bool:
        """Whether this member may deliver at this moment. If not, it seeks the right.

        Everything that gives messages to consumers, or says what was done with them, asks here first.
        """
        if right.may_deliver(self.broker, self.partition, self.group.segment_no):
            return True
        right.seek(self.broker, self.partition, self.group.segment_no)
        return False


class Served(Seat):
    """A consumer group that is served here: the cursor segment is on this disk, and its chain record is known.

    So it is until the cursor has moved on. While it moves, `is_serving` is false: nothing is delivered then.

    Attributes:
        segment: The cursor segment, as the chain record has it.
        log: The cursor segment on this disk.
        ledger: What is acknowledged, and who has that on disk.
        dispatcher: Which consumer is active, and how far it was given messages.
    """

    __slots__ = ("dispatcher", "ledger", "log", "segment")

    def __init__(
        self, broker: BrokerState, partition: Partition, group: ConsumerGroup, segment: Segment, log: SegmentLog
    ) -> None:
        self.broker = broker
        self.partition = partition
        self.group = group
        self.segment = segment
        self.log = log
        self.ledger = group.ledger
        self.dispatcher = group.dispatcher


class KeyedServed(Served):
    """A consumer group that is served here key by key.

    So it is also while a handoff is on its way and the outcome is not known: nothing changes then (`frozen-waits`).

    Attributes:
        keyed: Its keys.
    """

    __slots__ = ("keyed",)

    keyed: KeyedDispatcher


def served_of(broker: BrokerState, partition: Partition, group: ConsumerGroup | None) -> Served | None:
    """The consumer group, if it is served here; None while the place of its cursor is not known, or is elsewhere."""
    if group is None or partition.chain is None:
        return None
    keyed = group.keyed
    if keyed is None and group.phase is ConsumerGroupPhase.LOADING:
        return None
    segment, log = partition.chain.segment(group.segment_no), partition.logs.get(group.segment_no)
    if segment is None or log is None:
        return None
    if keyed is None:
        return Served(broker, partition, group, segment, log)
    served = KeyedServed(broker, partition, group, segment, log)
    served.keyed = keyed
    return served


def serving_of(broker: BrokerState, partition: Partition, group: ConsumerGroup | None) -> Served | None:
    """The consumer group, if messages may be delivered to it here."""
    return (
        served_of(broker, partition, group) if group is not None and group.phase is ConsumerGroupPhase.SERVING else None
    )


def keyed_of(broker: BrokerState, partition: Partition, group: ConsumerGroup | None) -> KeyedServed | None:
    """The consumer group, if it is served here key by key."""
    served = served_of(broker, partition, group)
    return served if isinstance(served, KeyedServed) else None
