"""The dispatcher of a consumer group: which consumer is given messages, and how far. It is only in memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..values.events import ConsumerJoin
from ..values.log import Batch
from ..values.states import State


class Consumer(State):
    """A subscription of a consumer of this consumer group."""

    __slots__ = ("name", "stream", "subscription", "was_active")

    def __init__(self, join: ConsumerJoin) -> None:
        self.name = join.consumer
        self.stream = join.stream
        self.subscription = join.subscription
        self.was_active = join.was_active


@dataclass(slots=True, eq=False)
class Given(State):
    """The grants that gave messages that are not acknowledged yet: the index at which each one ended.

    `consumers.delivery_attempts` has the rules.
    """

    segment_no: int
    group_epoch: int
    ends: tuple[tuple[int, int], ...] = ()  # (end, how many grants ended there), of grants that are over
    below: int = 0  # the present grant has given all below; 0: nothing yet


class Dispatcher(State):
    """What the active consumer was given under its token, and what was read for it."""

    __slots__ = ("active", "delivered", "given", "held_back", "reading", "silent_rounds", "token")

    def __init__(self) -> None:
        self.active: Consumer | None = None
        self.token = 0
        self.delivered = 0  # the active consumer was given all below this index
        self.given: Given | None = None  # set when this broker serves
        self.reading = 0  # serial of the read under way
        self.held_back: tuple[Batch, ...] = ()  # read, and waiting for a reservation
        self.silent_rounds = 0  # how often in a row the active consumer was found silent

    def grant(self, consumer: Consumer, token: int, begin_index: int) -> None:
        """Give a consumer everything from `begin_index` on, under a new token."""
        self.active = consumer
        self.silent_rounds = 0
        self.token = token
        self.delivered = begin_index
        self.drop_read()

    def pass_to(self, index: int) -> None:
        """The active consumer was given, or told of, everything below `index`."""
        self.delivered = index
        if self.given is not None:
            self.given.below = max(self.given.below, index)

    def drop_read(self) -> None:
        """Forget what was read and not delivered, and the read under way."""
        self.held_back = ()
        self.reading = 0

    def stop(self) -> None:
        """End the grant."""
        self.active = None
        self.drop_read()
