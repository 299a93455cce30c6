"""The way of batches from the server of a segment or of a consumer group to the master of a partition, and the answer.

A request comes late, twice, to a former master, or not at all, and a few answers are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import DeadlineExceededError, NotServingError, SeriatimError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import AckLevel, Append, Event

from ..basics.interfaces import Cluster, CoreProcess

if TYPE_CHECKING:
    from ..basics.setting import Setting
    from ..judge import Judge
    from .clients import Clients

ANSWER_US: Final = 400_000
"""How long a request waits for its answer."""

Batches = Sequence[tuple[BatchHeader, bytes]]
"""Headers and bodies."""

Accepted = Callable[[str, int, int], None]
"""Hears that a broker says that the batch with a number in the request is stored; the offset is 0 if it has none."""

Done = Callable[[int, SeriatimError | None], Event]
"""Makes the answer: how many batches are stored, and why the next one is not known to be."""


class Carrier:
    """Carries requests to masters."""

    def __init__(self, setting: Setting, cluster: Cluster, judge: Judge, clients: Clients) -> None:
        self.schedule = setting.schedule
        self._cluster = cluster
        self._judge = judge
        self._clients = clients
        self._run = 0

    def carry(
        self,
        process: CoreProcess,
        partition: PartitionId,
        batches: Batches,
        accepted: Accepted,
        done: Done,
        *,
        is_away: bool = False,
    ) -> None:
        """Route a request of a process, perhaps to a broker that was the master. `is_away`: none gets it."""
        rng = self.schedule.rng
        request = _Request(self.schedule, process, len(batches), done)
        self.schedule.after(ANSWER_US, request.finish, DeadlineExceededError("no answer"))
        history = self._judge.seen.history.get(partition, ())
        if not history or is_away or rng.random() < 0.05:
            return  # it is lost on its way
        chain = history[-1] if rng.random() < 0.8 else rng.choice(history[-4:])
        master = chain.open_segment.master.broker
        delays = [rng.randint(100, 3_000) if rng.random() < 0.9 else rng.randint(50_000, 300_000)]
        if rng.random() < 0.1:
            delays.append(rng.randint(1_000, 600_000))  # it arrives twice
        for delay in delays:
            self.schedule.after(delay, self._arrive, master, partition, batches, accepted, request)

    def _arrive(
        self, master: str, partition: PartitionId, batches: Batches, accepted: Accepted, request: _Request
    ) -> None:
        target = self._cluster.brokers[master].process
        if target is None or not target.is_serving:
            request.finish(NotServingError("no process listens"))
            return
        self._run += 1
        is_one_producer = len({header.producer for header, _ in batches}) == 1
        for at, (header, body) in enumerate(batches):
            starts_run = at == 0 or not is_one_producer
            number = self._clients.ask(None, partial(self._answered, request, at, accepted))
            target.deliver(
                Append(
                    number,
                    partition,
                    header,
                    body,
                    self._run,
                    starts_run,
                    AckLevel.REPLICATED_FLUSHED,
                    is_forward=True,
                )
            )

    def _answered(self, request: _Request, at: int, accepted: Accepted, answer: Any) -> None:
        if isinstance(answer, tuple):  # it leaves the broker
            name, answer = answer
            assert isinstance(answer, fx.AppendAccepted)
            accepted(name, at, answer.offset)
        elif isinstance(answer, fx.AppendAccepted):
            request.stored(at)
        else:
            request.refused(at, answer.error)


class _Request:
    """One request on its way, which is answered once."""

    def __init__(self, schedule: Any, process: CoreProcess, count: int, done: Done) -> None:
        self._schedule = schedule
        self._process = process
        self._count = count
        self._done = done
        self._stored: set[int] = set()
        self._errors: dict[int, SeriatimError] = {}
        self._is_over = False

    @property
    def _stored_count(self) -> int:
        count = 0
        while count in self._stored:
            count += 1
        return count

    def stored(self, at: int) -> None:
        """A batch is stored."""
        self._stored.add(at)
        self._look()

    def refused(self, at: int, error: SeriatimError) -> None:
        """A batch was refused."""
        self._errors.setdefault(at, error)
        self._look()

    def _look(self) -> None:
        count = self._stored_count
        if count == self._count:
            self.finish(None)
        elif count in self._errors:
            self.finish(self._errors[count])

    def finish(self, error: SeriatimError | None) -> None:
        """The answer leaves; a few are lost."""
        if self._is_over:
            return
        rng = self._schedule.rng
        if error is None and rng.random() < 0.1:
            return  # the answer is lost: the deadline ends it, as if nothing were known
        self._is_over = True
        count = 0 if isinstance(error, DeadlineExceededError) else self._stored_count
        self._schedule.after(rng.randint(10, 2_000), self._process.deliver, self._done(count, error))
