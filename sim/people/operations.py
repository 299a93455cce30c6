"""Administrators who rewind, skip, pause and resume consumer groups while everything else goes wrong.

An administrator asks the broker that the coordinator names as the server of the consumer group, or another broker. Each
operation has an id of its own. If the answer leaves the outcome open, the administrator asks again with the same id,
sometimes twice at once. At the end every consumer group is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import (
    ConsumerGroupOperation,
    CursorRecord,
    OperateConsumerGroup,
)
from seriatim_broker.core.values.keyed import NOTHING_WANTED, ConsumerMode, Exhausted, WantedSettings
from seriatim_broker.core.values.segment import Segment, SegmentState

from ..basics.interfaces import Cluster
from ..basics.setting import Setting
from ..judge import Judge
from ..programs.clients import Clients
from ..programs.consumers import name_of
from ..programs.population import CHANGING_US, LEAVES_SHARE, Population

ANSWER_US = 900_000
"""An administrator waits this long for an answer, and then asks again."""

EARLY_SHARE = 0.5
"""So often a consumer of the group's own mode begins while the group has another one."""

EARLY_US = 200_000
"""How long before administrators give the group its own mode again."""

TRIES_MAX = 5
"""So often an administrator asks, unless the group must be resumed."""


@dataclass
class Wish:
    """One operation on a consumer group, as an administrator asks for it.

    Attributes:
        must_be: It is asked for until it is done.
        until_known: It is asked for until it is known whether it was done.
        then: What the administrator does after that.
    """

    partition: PartitionId
    group: str
    operation: ConsumerGroupOperation
    id: bytes
    group_epoch: int
    segment_no: int
    index: int
    known_len: int
    tries: int = 0
    must_be: bool = False
    wanted: WantedSettings = NOTHING_WANTED
    until_known: bool = False
    then: Callable[[], None] | None = None


class People:
    """All administrators of a world."""

    def __init__(
        self, setting: Setting, cluster: Cluster, judge: Judge, clients: Clients, population: Population
    ) -> None:
        self._setting = setting
        self._schedule = setting.schedule
        self._cluster = cluster
        self._judge = judge
        self._clients = clients
        self._population = population
        self._waiting: list[Wish] = []
        self._is_over = False
        self._own: dict[str, WantedSettings] = {}  # of groups whose mode was changed: what they had before

    @property
    def is_busy(self) -> bool:
        """Whether an administrator waits for an answer, or a consumer group is paused or gets another mode."""
        return bool(self._waiting) or bool(self._population.changing) or bool(self.paused())

    def act(self, rng: random.Random) -> None:
        """An administrator starts one operation on a consumer group."""
        partition = rng.choice(self._setting.partitions)
        groups = [*self._population.groups, *self._population.keyed_groups, *self._population.keyed_groups]
        group = name_of(rng.choice(groups)) if groups else ""
        record, _ = self._cluster.coordinator.records.cursor(partition, group)
        chain, _ = self._cluster.coordinator.records.chain(partition)
        if record is None or record.deleted or chain is None:
            return
        if rng.random() < 0.3:
            operation = ConsumerGroupOperation.RESUME if record.paused else ConsumerGroupOperation.PAUSE
            place, known_len = (record.segment_no, 0), 0
        else:
            segment = rng.choice(chain.segments)
            known_len = self._length(chain, segment)
            place = (segment.no, rng.randint(0, known_len) + (5 if rng.random() < 0.05 else 0))
            operation = rng.choice((ConsumerGroupOperation.REWIND, ConsumerGroupOperation.SKIP))
            if rng.random() < 0.8:
                here = (record.segment_no, record.start_index)
                operation = ConsumerGroupOperation.SKIP if place > here else ConsumerGroupOperation.REWIND
        epoch = rng.choice((0, record.group_epoch, record.group_epoch, record.group_epoch, record.group_epoch - 1))
        self._begin(Wish(partition, group, operation, rng.randbytes(16), epoch, *place, known_len), rng)

    def move_back(self, partition: PartitionId, group: str, rng: random.Random) -> None:
        """An administrator rewinds a consumer group to the beginning of its cursor segment, and asks once."""
        record, _ = self._cluster.coordinator.records.cursor(partition, name_of(group))
        if record is not None and not record.deleted:
            wish = Wish(
                partition, name_of(group), ConsumerGroupOperation.REWIND, rng.randbytes(16), 0, record.segment_no, 0, 0,
                tries=TRIES_MAX - 1,
            )  # fmt: skip
            self._begin(wish, rng)

    def change_mode(self, rng: random.Random) -> None:
        """All consumers of a group end; administrators give it another mode and its own one again; then as many
        come."""
        population = self._population
        mine = (
            population.keyed_groups
            if self._setting.options.spread_consumers
            else (*population.groups, *population.keyed_groups)
        )
        labels = sorted(
            {one.group for one in population.consumers if one.alive and one.group in mine} - population.changing
        )
        if not labels:
            return
        group = rng.choice(labels)
        self._schedule.tell("FAULT", f"all consumers of {group} end, and its mode changes")
        population.changing.add(group)
        for consumer in population.consumers:
            if consumer.alive and consumer.group == group:
                end = consumer.leave if rng.random() < LEAVES_SHARE else consumer.crash
                end()
                population.replace_consumer(group, consumer.partition)
        self._change_modes(name_of(group), partial(population.changing.discard, group))

    def begin_again(self, group: str, partition: PartitionId) -> bool:
        """A consumer asked for another mode than its group has. It is begun again if administrators have changed the
        mode.

        A partition that was added while they changed it may have got the mode of that time: they change it back.
        """
        if group not in self._population.changing and not self._change_back(partition, name_of(group)):
            return False
        self._judge.seen.states.add("consumer begun again after a change of the mode")
        self._schedule.after(CHANGING_US, self._population.replace_consumer, group, partition)
        return True

    def _change_modes(self, group: str, then: Callable[[], None]) -> None:
        """A consumer group without consumers gets another mode on each partition, and then its own mode again."""
        records, left = self._cluster.coordinator.records, 0

        def back(partition: PartitionId, own: WantedSettings) -> None:
            change = partial(self._configure, partition, group, own, done, must_be=True)
            rng = self._schedule.rng
            if self._setting.options.early_consumers and rng.random() < EARLY_SHARE:
                self._population.replace_consumer(group, partition, too_early=True)
                self._schedule.after(rng.randint(0, EARLY_US), change)
            else:
                change()

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        known = [(partition, records.cursor(partition, group)[0]) for partition in self._setting.partitions]
        found = [(at, record) for at, record in known if record is not None and not record.deleted]
        left = len(found) + 1
        for partition, record in found:
            shared = WantedSettings(ConsumerMode.SHARED, replace(record.retry, exhausted=Exhausted.BLOCK))
            own = WantedSettings(record.mode, record.retry if record.mode.is_keyed else None)
            own = self._own.setdefault(group, own)
            self._configure(partition, group, shared, partial(back, partition, own))
        done()

    def _change_back(self, partition: PartitionId, group: str) -> bool:
        """Give a group its own mode again on a partition. Returns whether administrators have ever changed it."""
        if group in self._own:
            self._configure(partition, group, self._own[group], lambda: None, must_be=True)
        return group in self._own

    def _configure(
        self,
        partition: PartitionId,
        group: str,
        wanted: WantedSettings,
        then: Callable[[], None],
        *,
        must_be: bool = False,
    ) -> None:
        rng = self._schedule.rng
        wish = Wish(
            partition, group, ConsumerGroupOperation.CONFIGURE, rng.randbytes(16), 0, 0, 0, 0, must_be=must_be,
            wanted=wanted, until_known=True, then=then,
        )  # fmt: skip
        self._begin(wish, rng)

    def end(self) -> None:
        """The faults are over: administrators resume each consumer group that they paused."""
        self._is_over = True
        self._resume()

    def _resume(self) -> None:
        for partition, group in self.paused():
            if not any((wish.partition, wish.group) == (partition, group) for wish in self._waiting):
                rng = self._schedule.rng
                wish = Wish(
                    partition, group, ConsumerGroupOperation.RESUME, rng.randbytes(16), 0, 0, 0, 0, must_be=True
                )
                self._begin(wish, rng)
        self._schedule.after(100_000, self._resume)

    def cursor(self, partition: PartitionId, group: str) -> CursorRecord | None:
        """The cursor of a consumer group, as the coordinator has it."""
        record: CursorRecord | None = self._cluster.coordinator.records.cursor(partition, name_of(group))[0]
        return record

    def paused(self) -> list[tuple[PartitionId, str]]:
        """The consumer groups that are paused, as the coordinator says."""
        found: list[tuple[PartitionId, str]] = []
        for partition in self._setting.partitions:
            for group in dict.fromkeys(map(name_of, (*self._population.groups, *self._population.keyed_groups))):
                record = self.cursor(partition, group)
                if record is not None and record.paused and not record.deleted:
                    found.append((partition, group))
        return found

    def _length(self, chain: Chain, segment: Segment) -> int:
        """The index below which a segment can be read, as its master says."""
        if segment.sealed_len is not None:
            return segment.sealed_len
        process = self._cluster.brokers[segment.master.broker].process
        watched = process.watched if process is not None else None
        if watched is None or segment.state is not SegmentState.OPEN:
            return 0
        return watched.commit_of(chain.partition, segment.no)

    # ---- asking -------------------------------------------------------------------------------------

    def _begin(self, wish: Wish, rng: random.Random) -> None:
        self._waiting.append(wish)
        self._schedule.tell("person", f"wants {wish}")
        self._ask(wish)
        if rng.random() < 0.2:
            self._schedule.after(rng.randint(0, 50_000), self._send, wish)

    def _ask(self, wish: Wish) -> None:
        if wish not in self._waiting:
            return
        wish.tries += 1
        if wish.tries > TRIES_MAX and not (wish.must_be or wish.until_known):
            self._waiting.remove(wish)
            return
        self._send(wish)
        self._schedule.after(ANSWER_US, self._ask, wish)

    def _send(self, wish: Wish) -> None:
        rng = self._schedule.rng
        record, _ = self._cluster.coordinator.records.cursor(wish.partition, wish.group)
        chain, _ = self._cluster.coordinator.records.chain(wish.partition)
        name = rng.choice(sorted(self._cluster.brokers))
        if record is not None and chain is not None and rng.random() < 0.85:
            segment = chain.from_no(record.segment_no) or chain.open_segment
            name = segment.server.broker
        self._schedule.after(self._cluster.network.latency_us(), self._arrive, name, wish)

    def _arrive(self, name: str, wish: Wish) -> None:
        process = self._cluster.brokers[name].process
        if process is None or not process.is_serving or self._clients.cut.get(name) or wish not in self._waiting:
            return

        def answered(effect: Any) -> None:
            self._answered(wish, effect)

        deadline_us = process.to_mono(self._schedule.now_us + ANSWER_US * 2 // 3)
        process.deliver(
            OperateConsumerGroup(
                self._clients.ask(None, answered), wish.partition, wish.group, wish.operation, wish.id,
                wish.group_epoch, wish.segment_no, wish.index, wish.known_len, deadline_us, wish.wanted,
            )
        )  # fmt: skip

    def _answered(self, wish: Wish, effect: Any) -> None:
        error = effect.error
        self._schedule.tell("person", f"{wish.operation.name} of {wish.group}: {error or effect.record}")
        if wish not in self._waiting:
            return
        if error is not None and error.retriable:
            return  # asked again when the time is over
        if error is not None and (not error.outcome_known or wish.must_be):
            return
        self._waiting.remove(wish)
        if error is None:
            self._judge.operated(wish.group, wish.operation, wish.id, was_done=effect.was_done)
        else:
            self._judge.seen.states.add(f"operation refused: {type(error).__name__}")
        if wish.then is not None:
            wish.then()
