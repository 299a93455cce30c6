"""The dispatcher of a consumer group: which consumer is given messages, and how far. It is only in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from seriatim_api.ids import INDEX_MAX, PartitionId
from seriatim_api.reported_gaps import Told

from ..values.events import ConsumerJoin, StartPosition
from ..values.log import Batch
from ..values.states import State

ALL: Final = INDEX_MAX
"""The demand of a consumer that asks for no number of messages: a segment has no more of them."""


class Consumer(State):
    """A subscription of a consumer of this consumer group. `in_flight` and its like count only if order is by key.

    Attributes:
        name: The consumer's name.
        stream: Its stream.
        subscription: Its number on the stream.
        was_active: It was active before this server served the consumer group.
        was_standby: Another consumer was active then.
        spread_over: It reads all partitions of the topic, and knows of this many; 0: it counts for no spread.
        number: With `spread_over`: the partition's number in the topic.
        mode: The mode that it asks for.
        in_flight_max: Maximum number of messages that are granted to it and not acknowledged.
        run_max: Maximum number of messages that are in one of its grants; 0: no limit of its own.
        is_on_demand: It asks for messages. Otherwise it is given as many as `in_flight_max` allows.
        demand: How many more messages it asks for; `ALL` if it is not on demand.
        in_flight: How many messages are granted to it and not acknowledged.
        read_serial: The serial of the read of messages for it; 0: none is under way.
        ack_number: The number of its last request with acknowledgements.
        ack_confirmed: The highest number that was confirmed to it.
        silent_rounds: How often in a row it was found silent.
        grant_ms: How long its grants last, as it was told when it joined; 0: it was notified of nothing.
        reported_gaps: What it knows to be gone since it learned that it has joined, or is active.
    """

    __slots__ = (
        "ack_confirmed",
        "ack_number",
        "demand",
        "grant_ms",
        "in_flight",
        "in_flight_max",
        "is_on_demand",
        "mode",
        "name",
        "number",
        "read_serial",
        "reported_gaps",
        "run_max",
        "silent_rounds",
        "spread_over",
        "stream",
        "subscription",
        "was_active",
        "was_standby",
    )

    def __init__(self, join: ConsumerJoin) -> None:
        self.name = join.consumer
        self.stream = join.stream
        self.subscription = join.subscription
        self.was_active = join.was_active
        self.was_standby = join.was_standby
        self.spread_over = join.spread_over
        self.number = join.number
        self.mode = join.mode
        self.in_flight_max = join.in_flight_max
        self.run_max = join.run_max
        self.is_on_demand = join.on_demand
        self.demand = 0 if join.on_demand else ALL
        self.in_flight = 0
        self.read_serial = 0
        self.ack_number = 0
        self.ack_confirmed = 0
        self.silent_rounds = 0
        self.grant_ms = 0
        self.reported_gaps: tuple[Told, ...] = ()

    @classmethod
    def absent(cls, name: str) -> Consumer:
        """A consumer that has grants and has not joined here."""
        return cls(ConsumerJoin(0, 0, PartitionId(0), "", name, StartPosition.EARLIEST, False))

    @property
    def is_absent(self) -> bool:
        """Whether it has not joined here."""
        return self.stream == 0


@dataclass(slots=True, eq=False)
class Given(State):
    """The grants that gave messages that are not acknowledged yet: the index at which each one ended.

    `consumers.cursors.delivery_attempts` has the rules.
    """

    segment_no: int = 0
    group_epoch: int = 0
    ends: tuple[tuple[int, int], ...] = ()  # (end, how many grants ended there), of grants that are over
    below: int = 0  # the present grant has given all below; 0: nothing yet
    sent_to: tuple[int, int] = (0, 0)  # stream and subscription of the consumer that was active last
    sent_below: int = 0  # the end of the last message that was sent to it; what it was only notified of does not count


@dataclass(slots=True, eq=False)
class Yielding(State):
    """The active consumer is to yield the partition to another one. `consumers.exclusive.assignment` has the rules.

    Attributes:
        to: The other one.
        until_us: If it is not done by then, the active one continues.
        number: Of this attempt; the consumer's answer repeats it. 0: it was not asked yet, because a read is under way.
        below: The active consumer's application gets nothing from this index on; None: it has not answered.
    """

    to: Consumer
    until_us: int
    number: int = 0
    below: int | None = None


RESERVED_LATE_US: Final = 10_000
"""A reservation that is durable within this time makes no reader wait for long."""

RESERVED_TIMES_MAX: Final = 128
"""A reservation covers at most this multiple of `reservation_messages`: about what a fast reader takes in a second."""

RESERVED_FIRST_MAX: Final = 16
"""The first one covers at most this multiple of `reservation_messages`."""


@dataclass(slots=True, eq=False)
class ReservationPace(State):
    """How many messages the next reservation covers: more if a reader waits for it, and soon needs the one after it.

    It is durable only when other members have it, so over a distance it takes their round trip. Without it:

    1. Members are 25 ms from each other. A reservation of 10,000 messages takes 50 ms.
    2. A consumer could take 500,000 messages a second, 25,000 in these 50 ms.
    3. It gets 10,000 of them, and waits.
    """

    times: int = 1
    _asked_us: int = 0  # when the newest reservation was asked for; 0: none was
    _durable_us: int = 0  # when it was found to be durable; 0: it is not yet
    _is_awaited: bool = False  # whether messages waited for it

    def begin(self, round_trip_us: int) -> None:
        """A question to the other members and its answer take this long: the first reservation should last as long.

        A fast reader takes `reservation_messages` in `RESERVED_LATE_US` (10 ms).
        """
        if not self._asked_us:
            self.times = min(max(round_trip_us // RESERVED_LATE_US, 1), RESERVED_FIRST_MAX)

    def ask(self, now_us: int) -> None:
        """The next reservation is asked for."""
        if self._asked_us and self._durable_us:
            took_us, lasted_us = self._durable_us - self._asked_us, now_us - self._durable_us
            if self._is_awaited and took_us > RESERVED_LATE_US and lasted_us < took_us:
                self.times = min(2 * self.times, RESERVED_TIMES_MAX)
            elif lasted_us > 4 * took_us:
                self.times = max(self.times // 2, 1)
        self._asked_us, self._durable_us, self._is_awaited = now_us, 0, False

    def awaited(self) -> None:
        """Messages wait until the newest reservation is durable."""
        self._is_awaited = True

    def is_durable(self, now_us: int) -> None:
        """The newest reservation is durable."""
        self._durable_us = self._durable_us or now_us


@dataclass(slots=True, eq=False)
class Dispatcher(State):
    """What the active consumer was given under its token, and what was read for it."""

    active: Consumer | None = None
    token: int = 0
    delivered: int = 0  # the active consumer was given all below this index
    given: Given = field(default_factory=Given)
    reading: int = 0  # serial of the read under way
    held_back: tuple[Batch, ...] = ()  # read, and waiting for a reservation
    reservation: ReservationPace = field(default_factory=ReservationPace)
    changed_us: int = 0  # when a consumer came, went, fell silent or was heard again
    silent_count: int = 0  # consumers that were silent when they were looked at last
    returns_until_us: int = 0  # no consumer is active until the one that was has joined, or until then; 0: no wait
    # index and time: it may work this long on dropped messages if it acknowledges no more
    works_until: tuple[int, int] = (-1, 0)
    yielding: Yielding | None = None
    yields_failed: int = 0  # attempts of the active consumer to yield
    yield_again_us: int = 0  # not before this time

    def grant(self, consumer: Consumer, token: int, begin_index: int) -> None:
        """Give a consumer everything from `begin_index` on, under a new token."""
        self.end_grant()
        self.active = consumer
        self.returns_until_us = self.yields_failed = self.yield_again_us = 0
        self.works_until = (-1, 0)
        consumer.silent_rounds = 0
        self.token = token
        self.delivered = begin_index
        self.drop_read()
        if self.given.sent_to != (consumer.stream, consumer.subscription):
            self.given.sent_to, self.given.sent_below = (consumer.stream, consumer.subscription), 0

    def pass_to(self, index: int) -> None:
        """The active consumer was given, or notified of, everything below `index`."""
        self.delivered = index
        self.given.below = max(self.given.below, index)

    def end_grant(self) -> None:
        """No consumer is active."""
        self.active = None
        self.yielding = None

    def take_back(self, below: int) -> None:
        """The active consumer gives its application nothing from this index on, so it was given only what is below."""
        self.delivered = below
        self.given.below = min(self.given.below, below)
        self.given.sent_below = min(self.given.sent_below, below)

    def drop_read(self) -> None:
        """Forget what was read and not delivered, and the read under way."""
        self.held_back = ()
        self.reading = 0

    def stop(self) -> None:
        """End the grant."""
        self.end_grant()
        self.drop_read()
