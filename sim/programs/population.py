"""The producers, consumers and readers of ranges of a world: those that are there, and those that come and go."""

from __future__ import annotations

import random
from collections.abc import Sequence

from seriatim._core import producer as producing
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import StartPosition

from ..basics.interfaces import Coordinator
from ..basics.setting import Setting
from ..judge import Judge
from ..judge.modes import ONCE, ONCE_EXCLUSIVE, SHARED
from .clients import Clients
from .consumers import SimConsumer
from .keyed_consumers import KEYED_GROUPS, SimKeyedConsumer
from .mode_consumers import MODES, SimModeConsumer, SimOnceConsumer
from .producers import SimProducer
from .range_readers import SimRangeReader

LEDGERS_US = 25_000

BATCH_US_MAX = 100_000
"""How long a batch may take when all faults are over, with slow disks and nothing else in flight."""

AWAY_US = (500_000, 3_000_000)
"""How long a consumer group is without consumers: longer than its delays, and than administrators and brokers take for
most."""

CHANGING_US = 50_000
"""So often a consumer looks whether the mode of its group is its own again."""

LEAVES_SHARE = 0.5
"""Of the consumers that all end at once, this many say so."""

RANGE = "range"
"""What the judge calls the readers of ranges: the label of a consumer group without a cursor."""


class Population:
    """All that sends and reads in one world.

    Attributes:
        groups: The exclusive consumer groups, by the labels that the judge knows them by.
        keyed_groups: The consumer groups in which order is by key.
        away_until_us: Groups whose consumers have all ended, and when others come.
        changing: Groups whose mode administrators change: no consumer comes meanwhile.
        there_before: Of added partitions: the groups that were there before.
    """

    def __init__(self, setting: Setting, clients: Clients, judge: Judge, coordinator: Coordinator) -> None:
        self._setting = setting
        self._clients = clients
        self._judge = judge
        self._coordinator = coordinator
        options = setting.options
        self.producers: list[SimProducer] = []
        self.consumers: list[SimConsumer] = []
        self.range_readers: list[SimRangeReader] = []
        self.groups: list[str] = []
        self.keyed_groups = list(KEYED_GROUPS[: options.keyed_groups]) if options.keyed_consumers else []
        self.away_until_us: dict[str, int] = {}
        self.changing: set[str] = set()
        self.there_before: dict[PartitionId, frozenset[str]] = {}

    def backlog_us(self) -> int:
        """How long batches without an outcome, and consumers that take each batch slowly, may take without faults."""
        unsettled = sum(producer.unsettled_count for producer in self.producers)
        return (
            BATCH_US_MAX * unsettled
            + self._setting.options.take_us * self._setting.options.batches_per_producer * len(self.producers)
        )

    def start_producers(self, batch_count: int, partitions: Sequence[PartitionId] = ()) -> None:
        """Start the producers of each of these partitions, or of all, with this many batches each."""
        config = producing.ProducerConfig(
            window_batches_max=self._setting.options.window_batches,
            delivery_timeout_ms=self._setting.options.delivery_timeout_ms,
            reply_timeout_ms=1_000 if self._setting.options.suspicious_us or self._setting.options.far_us_max else 150,
            backoff_ms_min=2,
            backoff_ms_max=60,
        )
        for partition in partitions or self._setting.partitions:
            for number in range(self._setting.options.producer_count):
                producer = SimProducer(self._clients, partition, f"p{partition}.{number}", config, batch_count)
                self.producers.append(producer)
                producer.start(self._setting.options.producers_start_us)

    def add_range_reader(self, partition: PartitionId) -> None:
        """A reader of ranges of a partition, if the world has them."""
        if self._setting.options.range_readers:
            rng = random.Random(f"ranges {self._setting.seed} {partition}")
            reader = SimRangeReader(self._clients, self._judge, self._coordinator, partition, RANGE, rng)
            self.range_readers.append(reader)
            reader.start()

    def start_readers(self) -> None:
        """The readers of ranges begin, and the consumers of groups with a mode of their own come."""
        setting = self._setting
        self.groups = ["early", "late"] if setting.options.late_group else ["early"]
        for partition in setting.partitions:
            self.add_range_reader(partition)
        self._judge.seen.keyed_groups.update(self.keyed_groups)
        for group in self.keyed_groups:
            for number in range(setting.options.keyed_consumers):
                delay_us = setting.schedule.rng.randint(0, 300_000)
                setting.schedule.after(delay_us, self.add_keyed_consumer, group, number)
        if self.keyed_groups:
            self._look_at_ledgers()
        self._start_mode_consumers()

    def start_consumers(self) -> None:
        """The consumers of the exclusive groups come: two of the early one, and one of the late one."""
        options, schedule = self._setting.options, self._setting.schedule
        for group in self.groups:
            delay = 0 if group == "early" else schedule.rng.randint(0, options.fault_span_us * 2)
            delay += options.readers_after_us
            for number in range(2 if group == "early" else 1):
                schedule.after(delay, self.add_consumer, group, number)

    def add(self, consumer: SimConsumer) -> None:
        """A consumer comes."""
        self.consumers.append(consumer)
        consumer.start()

    def add_consumer(self, group: str, number: int) -> None:
        """A consumer for each partition, if the group was not deleted meanwhile."""
        if group not in self.groups:
            return
        for partition in self._setting.partitions:
            self.add_consumer_of(partition, group, number)

    def add_consumer_of(self, partition: PartitionId, group: str, number: int) -> None:
        """A consumer of a partition, if the group was not deleted meanwhile.

        If the group was there before the partition was added, the consumer asks to begin at the end. The cursor that
        the group must have there counts instead.
        """
        if group not in self.groups:
            return
        start = self._start_of(partition, group)
        self.add(SimConsumer(self._clients, self._judge, partition, group, f"{group}.{number}", start))

    def add_keyed_consumer(self, group: str, number: int) -> None:
        """A consumer of a group in which order is by key, for each partition."""
        if group in self.changing:
            self._setting.schedule.after(CHANGING_US, self.add_keyed_consumer, group, number)
            return
        for partition in self._setting.partitions:
            self.add_keyed_consumer_of(partition, group, number)

    def add_keyed_consumer_of(self, partition: PartitionId, group: str, number: int) -> None:
        """A consumer of such a group on one partition; see `add_consumer_of`."""
        name, start = f"{group}.{number}", self._start_of(partition, group)
        self.add(SimKeyedConsumer(self._clients, self._judge, partition, group, name, start))

    def _start_of(self, partition: PartitionId, group: str) -> StartPosition:
        is_there = group in self.there_before.get(partition, ())
        return StartPosition.LATEST if is_there else StartPosition.EARLIEST

    def _look_at_ledgers(self) -> None:
        """The judge compares what is on the disks of eligible members with what the applications did."""
        for partition in self._setting.partitions:
            for group in self.keyed_groups:
                record, _ = self._coordinator.records.cursor(partition, group)
                self._judge.rules.ledgers.look(partition, group, record)
        self._setting.schedule.after(LEDGERS_US, self._look_at_ledgers)

    def crash_producer(self) -> None:
        """One producer ends. The outcomes of its batches stay unknown, and a new producer sends the next batches."""
        running = [producer for producer in self.producers if not producer.is_done]
        if not running:
            return
        victim = self._setting.schedule.rng.choice(running)
        self._setting.schedule.tell("FAULT", f"{victim.name} ends")
        victim.crash()
        successor = SimProducer(
            self._clients, victim.partition, f"p{victim.partition}.{self._clients.number()}", victim.config, victim.left
        )
        victim.left = 0
        self.producers.append(successor)
        self._setting.schedule.after(self._setting.schedule.rng.randint(1_000, 100_000), successor.start)

    def crash_consumer(self) -> None:
        """One consumer ends, mostly an active one; another comes for it, sooner or later."""
        running = [consumer for consumer in self.consumers if consumer.alive]
        active = [consumer for consumer in running if consumer.is_active]
        if not running:
            return
        victim = self._setting.schedule.rng.choice(active or running)
        self._setting.schedule.tell("FAULT", f"{victim.name} ends")
        victim.crash()
        self._setting.schedule.after(
            self._setting.schedule.rng.randint(1_000, self._setting.options.consumer_away_us_max),
            self.replace_consumer,
            victim.group,
            victim.partition,
        )

    def consumers_leave(self, rng: random.Random) -> None:
        """All consumers of a group end, some of them in order; as many come much later, and none before."""
        labels = sorted({consumer.group for consumer in self.consumers if consumer.alive})
        if not labels:
            return
        group = rng.choice(labels)
        back_us = self._setting.schedule.now_us + rng.randint(*AWAY_US)
        self.away_until_us[group] = max(back_us, self.away_until_us.get(group, 0))
        self._setting.schedule.tell("FAULT", f"all consumers of {group} end, and come back at {back_us / 1000:.0f} ms")
        self._judge.seen.states.add("group without consumers")
        for consumer in self.consumers:
            if consumer.alive and consumer.group == group:
                end = consumer.leave if rng.random() < LEAVES_SHARE else consumer.crash
                end()
                self._setting.schedule.at(back_us, self.replace_consumer, group, consumer.partition)

    def is_away(self, group: str) -> bool:
        """Whether no consumer of the group may come now."""
        return self.away_until_us.get(group, 0) > self._setting.schedule.now_us

    def replace_consumer(self, group: str, partition: PartitionId, *, too_early: bool = False) -> None:
        """Another consumer comes, unless its group is away, or another mode is given to it."""
        if group in self.changing and not too_early:
            self._setting.schedule.after(CHANGING_US, self.replace_consumer, group, partition)
            return
        if self.is_away(group):
            self._setting.schedule.at(self.away_until_us[group], self.replace_consumer, group, partition)
            return
        if group in MODES:
            self._add_mode_consumer(group, partition)
            return
        if group in self.keyed_groups:
            self.add_keyed_consumer_of(partition, group, self._clients.number())
            return
        self.add_consumer_of(partition, group, self._clients.number())

    @property
    def readers(self) -> list[str]:
        """All that must get every message: the consumer groups, and the readers of ranges."""
        return [*self.groups, RANGE] if self.range_readers else self.groups

    # ---- consumers of other modes -------------------------------------------------------------------

    def _start_mode_consumers(self) -> None:
        """Consumers of all groups of other modes come, one after another."""
        setting, count = self._setting, self._setting.options.mode_consumers
        for group in MODES if count else ():
            if group != ONCE_EXCLUSIVE:
                self._judge.seen.keyed_groups.add(group)
            for number in range(count):
                for partition in setting.partitions:
                    delay_us = setting.schedule.rng.randint(0, 300_000)
                    setting.schedule.after(delay_us, self._add_mode_consumer, group, partition, f"{group}.{number}")

    def _add_mode_consumer(self, group: str, partition: PartitionId, name: str = "") -> None:
        """One consumer comes."""
        name = name or f"{group}.{self._clients.number()}"
        kind = SimOnceConsumer if group == ONCE_EXCLUSIVE else SimModeConsumer
        self.add(kind(self._clients, self._judge, partition, group, name))

    def mode_lacks(self, partition: PartitionId, chain: Chain, open_length: int) -> list[int]:
        """The messages that the shared group and the at-most-once group have not finished."""
        if not self._setting.options.mode_consumers:
            return []
        order, keyed = self._judge.replay(chain, open_length), self._judge.rules.keyed
        return [message for group in (SHARED, ONCE) for message in keyed.lacks(group, partition, order)]
