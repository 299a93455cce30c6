"""Suspicions of a producer: its master owes answers and sends none, so it asks another broker about the master.

It does what the links of a client do (`seriatim._transport.append`, `AppendLink._watch`), in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable

from seriatim._core import producer as core
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import Event, ResolveProducer

from .clients import Clients


class Suspicions:
    """Watches the streams of one producer.

    Args:
        clients: Carry the questions.
        partition: The producer's partition.
        name: The producer's name.
        route: What the producer knows of the master.
        learned: Takes the route that a broker answered.
        is_over: Whether the producer sends nothing more.
    """

    def __init__(
        self,
        clients: Clients,
        partition: PartitionId,
        name: str,
        route: Callable[[], core.Route | None],
        learned: Callable[[fx.RouteInfo], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._clients = clients
        self._partition = partition
        self._name = name
        self._route = route
        self._learned = learned
        self._is_over = is_over
        self._owed: dict[int, int] = {}  # request -> stream
        self._heard_us = 0
        self._is_asking = False
        self._look_later(self._pause_us)

    @property
    def _pause_us(self) -> int:
        return self._clients.options.suspicious_us // 2

    def sent(self, request: int, stream: int) -> None:
        """A batch is on its way."""
        if not self._owed:
            self._heard_us = self._clients.schedule.now_us
        self._owed[request] = stream

    def answered(self, request: int) -> None:
        """It was answered."""
        self._heard_us = self._clients.schedule.now_us
        self._owed.pop(request, None)

    def closed(self, stream: int) -> None:
        """Nothing more comes on a stream."""
        self._owed = {request: of for request, of in self._owed.items() if of != stream}

    def stepped(self) -> None:
        """The producer may know another master."""
        route = self._route()
        if route is not None:
            self._clients.judge.rules.suspicions.knows(self._name, self._partition, route.segment)

    def _look_later(self, after_us: int) -> None:
        self._clients.schedule.after(after_us, self._look)

    def _look(self) -> None:
        if self._is_over():
            return
        silent_us = self._clients.schedule.now_us - self._heard_us
        suspicious_us = self._clients.options.suspicious_us
        if self._owed and silent_us >= suspicious_us:
            self._ask()
        elif self._owed:
            self._look_later(min(self._pause_us, suspicious_us - silent_us))
            return
        self._look_later(self._pause_us)

    def _ask(self) -> None:
        route = self._route()
        if route is None or self._is_asking:
            return
        self._is_asking = True
        self._clients.judge.rules.suspicions.asked(self._name, self._partition, route.segment)

        def make(request: int, deadline_us: int) -> Event:
            return ResolveProducer(request, self._partition, None, deadline_us, route.segment)

        def answered(answer: fx.Resolved | None) -> None:
            self._is_asking = False
            if answer is not None and answer.route is not None:
                self._learned(answer.route)

        self._clients.unary(route.master_address, make, answered)
