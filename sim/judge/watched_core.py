"""A broker's core with the judge beside it: the judge sees each event and each effect, and changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from seriatim_api.errors import TooManyProducersError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import Append, DropDeleted, DropPartitionData, Event, Moment
from seriatim_broker.core.values.log import PutBatch

from ..basics.schedule import Schedule, Violation
from ..basics.story import brief, is_noise

if TYPE_CHECKING:
    from . import Judge


class Watched(Protocol):
    """A process whose core is watched."""

    name: str
    alive: bool

    def asked_as(self, request: int) -> int:
        """The client's number of the request that the core knows as `request`."""
        ...


class WatchedCore:
    """Steps a core, and shows the judge its writes and where it put each batch."""

    __slots__ = ("_core", "_gone", "_judge", "_process", "_schedule", "_waiting", "next_wake_us")

    def __init__(self, core: BrokerCore, process: Watched, schedule: Schedule, judge: Judge) -> None:
        self._core = core
        self._process = process
        self._schedule = schedule
        self._judge = judge
        self._gone: set[PartitionId] = set()  # it knows that their topics were deleted
        self._waiting: dict[int, PartitionId] = {}  # appends without an answer, by request
        self.next_wake_us = core.next_wake_us

    @property
    def core(self) -> BrokerCore:
        """The core itself."""
        return self._core

    @property
    def partitions(self) -> dict[PartitionId, Partition]:
        """The partitions that the core knows."""
        return self._core.partitions

    @property
    def has_delayed(self) -> bool:
        """Whether a log has delayed batches."""
        return self._core.has_delayed

    def start(self, now: Moment) -> list[fx.Effect]:
        """The first effects."""
        return self._stepped(None, now)

    def step(self, event: Event, now: Moment) -> list[fx.Effect]:
        """Advance by one event. A process that has ended does nothing any more."""
        return self._stepped(event, now) if self._process.alive else []

    def _stepped(self, event: Event | None, now: Moment) -> list[fx.Effect]:
        name, schedule = self._process.name, self._schedule
        was_behind = bool(self._core.state.coordinator.behind)
        try:
            effects = self._core.start(now) if event is None else self._core.step(event, now)
        except Exception as error:  # a core must not raise any error
            raise Violation("CORE", f"{name} on {event}: {error!r}") from error
        if isinstance(event, Append):
            self._waiting[event.request] = event.partition
        elif isinstance(event, DropPartitionData | DropDeleted):
            self._note_gone(event)
        is_behind = bool(self._core.state.coordinator.behind)
        for effect in effects:
            self._check_gone(effect)
            if was_behind and is_behind:
                self._check_silent(effect)
            if isinstance(effect, fx.Persist):
                self._judge.writes(name, effect.writes, now.wall_ms)
                if self._judge.publications is not None:
                    self._judge.publications.wrote(name, effect.writes)
                if isinstance(event, Append):
                    self._note_place(event, effect)
            elif isinstance(effect, fx.Note):
                self._judge.note(effect)
            elif isinstance(event, Append) and isinstance(effect, fx.AppendRefused):
                if isinstance(effect.error, TooManyProducersError):
                    self._judge.seen.states.add("producer not admitted")
            elif isinstance(effect, fx.Disconnect):
                self._judge.rules.calm.cut(name, effect.broker, schedule.now_us)
        if schedule.witness is not None:
            schedule.witness(name, event, effects)
        if schedule.trace:
            self._tell(event, effects)
        if schedule.detailed:
            schedule.mark(name, f"{event} {effects}")
        else:
            schedule.mark(name, f"{type(event).__name__} {len(effects)}")
        return effects

    def _note_gone(self, event: DropPartitionData | DropDeleted) -> None:
        """From now on the broker acknowledges nothing of these, except replies that wait for the disk already."""
        ranges = event.deleted.ranges if isinstance(event, DropDeleted) else ((event.partition, event.partition + 1),)
        self._gone.update(PartitionId(number) for first, end in ranges for number in range(first, end))
        for _, what in self._core.state.out.held:
            if isinstance(what, fx.AppendAccepted):
                self._waiting.pop(what.request, None)

    def _check_gone(self, effect: fx.Effect) -> None:
        """GONE: a broker that knows that a topic was deleted acknowledges and serves nothing of it."""
        if isinstance(effect, fx.AppendAccepted | fx.AppendRefused):
            partition = self._waiting.pop(effect.request, None)
            if partition in self._gone and isinstance(effect, fx.AppendAccepted):
                self._judge.fail("GONE", f"{self._process.name} acknowledges for {partition}, whose topic was deleted")
        elif isinstance(effect, fx.Deliver) and isinstance(effect.event, fx.Batches):
            for batch in effect.event.batches:
                if batch.header.partition in self._gone:
                    self._judge.fail("GONE", f"{self._process.name} serves {batch}, whose topic was deleted")

    def _check_silent(self, effect: fx.Effect) -> None:
        """ALARM: a broker that knows of lost decisions acknowledges nothing, and writes nothing to the coordinator."""
        if isinstance(effect, fx.AppendAccepted | fx.WriteChain | fx.WriteCursor):
            what = f"{self._process.name} knows that the coordinator is behind ({self._core.state.coordinator.behind})"
            self._judge.fail("ALARM", f"{what}, and does {effect}")

    def commit_of(self, partition: PartitionId, segment_no: int) -> int:
        """The commit of a segment, as far as this broker knows it."""
        known = self._core.partitions.get(partition)
        log = known.logs.get(segment_no) if known is not None else None
        return log.commit if log is not None else 0

    def has_consumers(self, group: str) -> bool:
        """Whether a consumer of the group has joined here, as far as this broker knows."""
        consumer_groups = (partition.consumer_groups.get(group) for partition in self._core.partitions.values())
        return any(consumer_group is not None and consumer_group.consumers for consumer_group in consumer_groups)

    def check_answered(self, gone: Collection[PartitionId]) -> None:
        """GONE: no append waits for a partition that was deleted. Asked late: an answer may wait for a slow disk."""
        left = [partition for partition in self._waiting.values() if partition in gone]
        if left:
            what = f"{self._process.name} leaves {len(left)} appends to partition {left[0]} without an answer"
            self._judge.fail("GONE", f"{what}, whose topic was deleted")

    def _note_place(self, event: Append, effect: fx.Persist) -> None:
        """Tell the judge where the master put the batch of a request."""
        for write in effect.writes:
            if isinstance(write, PutBatch) and write.batch.body == event.body:
                self._judge.appended(self._process.asked_as(event.request), write.batch)
                self._judge.check_room(write.batch)

    def _tell(self, event: Event | None, effects: list[Any]) -> None:
        if event is not None and is_noise(event) and all(is_noise(effect) for effect in effects):
            return
        name = self._process.name
        if event is None or not is_noise(event):
            self._schedule.tell(name, "◀ " + ("start" if event is None else brief(event)))
        for effect in effects:
            if not is_noise(effect):
                self._schedule.tell(name, "    ▶ " + brief(effect))
