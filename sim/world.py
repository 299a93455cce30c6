"""One run: a cluster, its clients and a fault plan in virtual time, all from one seed.

A run creates the partitions, sends messages under faults, and heals everything. Then consumers must drain all segments
within a bound. The judge looks on throughout and compares everything at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from seriatim._core import producer as producing
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.events import DeclareGap, StartPosition
from seriatim_broker.core.values.keyed import Exhausted
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.testing.simulated_bodies import key_of

from . import mode_consumers, spread_consumers
from .clients import Clients, SimProducer
from .cluster import Broker, ClusterKind, Coordinator, Network, Process
from .consumers import SimConsumer, name_of
from .cores.cluster import CORES
from .distances import Distances
from .forwards import Forwards
from .injecting import Injector
from .judge import Judge, own_tail
from .judge.modes import SHARED
from .key_people import KeyPeople
from .keyed_consumers import (
    DELAYED_KEY,
    DELAYED_LIMITS,
    FORWARDED_RETRY,
    KEYED_GROUPS,
    KEYED_LIMITS,
    KEYED_RETRY,
    SimKeyedConsumer,
)
from .people import People
from .publishing.surroundings import Publishing
from .ranges import SimRangeReader
from .schedule import Schedule, Violation

CHECK_US = 20_000
LEDGERS_US = 25_000
WHOLE_CHAIN_SEGMENTS = (1, 1, 2, 64)
"""Of how many segments a record is told whole, drawn for each world: with few, the changes of short chains are told."""

BATCH_US_MAX = 100_000
"""How long a batch may take when all faults are over, with slow disks and nothing else in flight."""

SIM_CONFIG = BrokerConfig(
    keys_at_once=2,
    adopted_bytes_min=0,
    heartbeat_us=100_000,
    slow_heartbeat_us=400_000,
    slow_silence_us=1_600_000,
    silence_us=250_000,
    lane_probe_us=200_000,
    lane_stall_us=1_500_000,  # longer than `slow_link` makes a link
    disk_hang_us=400_000,
    disk_full_grace_us=1_000_000,
    restless_us=500_000,
    patience_us=40_000,
    vain_patience_us_max=300_000,
    resume_us=120_000,
    serve_lease_us=160_000,
    serve_margin_us=15_000,
    fenced_us=150_000,
    planned_switch_us=80_000,
    fence_wait_us=10_000,
    fence_timeout_us=100_000,
    prepare_timeout_us=100_000,
    table_timeout_us=80_000,
    retry_us=30_000,
    retry_us_max=300_000,
    refused_us=30_000,
    refused_us_max=200_000,
    commit_idle_us=5_000,
    flapping_us=600_000,
    deliver_bytes=600,
    ack_replication_us=15_000,
    append_time_ahead_ms_max=2_000,
    spread_calm_us=80_000,
    spread_return_us=150_000,
    spread_yield_us=120_000,
    spread_retry_us=100_000,
    spread_retry_us_max=400_000,
)


AWAY_US = (500_000, 3_000_000)
"""So long a consumer group is without consumers: longer than its delays, and than people and brokers take for most."""

CHANGING_US = 50_000
"""So often a consumer looks whether the mode of its group is its own again."""

LEAVES_SHARE = 0.5
"""Of the consumers that all end at once, so many say so."""

RANGE = "range"
"""What the judge calls the readers of ranges: the label of a consumer group without a cursor."""

IDLE_LIMITS: dict[str, Any] = {
    "producer_protect_us": 600_000,
    "idle_block_rows": 2,
    "before_tables_bytes_max": 500,
}
"""In worlds in which producers are forgotten: few are remembered, each for longer than it tries to deliver a batch."""


ASKED_LIMITS: dict[str, Any] = {"silence_us": 500_000, "probe_us": 60_000}
"""In worlds in which producers ask about silent masters: brokers ask the master and switch before its slave finds it
silent itself, as between real processes."""


def over_distances(config: BrokerConfig) -> BrokerConfig:
    """The same limits, and all times as in production: those of other worlds are shorter than a long round trip."""
    production = BrokerConfig()
    times = {one.name: getattr(production, one.name) for one in fields(production) if "_us" in one.name}
    return replace(config, **times)


@dataclass(slots=True)
class Result:
    """How a run ended."""

    seed: int
    violation: str = ""
    rule: str = ""
    digest: int = 0
    event_count: int = 0
    virtual_us: int = 0
    segment_count: int = 0
    switch_count: int = 0
    fault_count: int = 0
    cpu_s: float = field(default=0.0, compare=False)
    accepted_count: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)


class World:
    """Everything of one run.

    Args:
        seed: Decides everything that is drawn.
        kind: What the brokers are made of.
        profile: A name of `faults.PROFILES`, or empty for any.
        core_kind: The class of the brokers' cores.
        batch_count: Batches of a run of whole brokers; 0: drawn.
        left_out: Faults of the plan that do not strike.
        schedule: The virtual time of this seed; without it the world makes one.
        judge_kind: The class of the judge.
    """

    def __init__(
        self,
        seed: int,
        kind: ClusterKind = CORES,
        *,
        profile: str = "",
        core_kind: type[BrokerCore] = BrokerCore,
        trace: bool = False,
        detailed: bool = False,
        batch_count: int = 0,
        left_out: frozenset[int] = frozenset(),
        schedule: Schedule | None = None,
        judge_kind: type[Judge] = Judge,
    ) -> None:
        self.seed = seed
        self._left_out = left_out
        self.schedule = schedule or Schedule(seed, trace=trace, detailed=detailed)
        self.options = kind.draw(self.schedule.rng, profile, batch_count, more_chance(seed))
        self.updates = random.Random(f"updates {seed}")
        self.config = replace(
            SIM_CONFIG,
            reservation_messages=self.options.reservation_messages,
            whole_chain_segments_max=self.updates.choice(WHOLE_CHAIN_SEGMENTS),
            copy_bytes=self.options.copy_bytes,
            second_member_us=self.options.second_member_us,
            told_segments_max=self.updates.choice((0, 1, 2, 16)),
        )
        if self.options.producers_max:
            self.config = replace(self.config, **IDLE_LIMITS, producers_max=self.options.producers_max)
        if self.options.keyed_consumers or self.options.mode_consumers:
            self.config = replace(self.config, retry=KEYED_RETRY)
        if self.options.keyed_limits:
            limits = DELAYED_LIMITS if self.options.keyed_delayed else KEYED_LIMITS
            self.config = replace(self.config, **limits)
        if self.options.frame_bytes:
            self.config = replace(self.config, deliver_bytes=self.options.frame_bytes, term_tokens_max=30)
        if self.options.keyed_attempts:
            parking = replace(KEYED_RETRY, attempts_max=self.options.keyed_attempts, exhausted=Exhausted.PARK_KEY)
            self.config = replace(self.config, retry=parking)
        if self.options.dead_letters:
            self.config = replace(self.config, retry=FORWARDED_RETRY)
        if self.options.suspicious_us:
            self.config = replace(self.config, **ASKED_LIMITS)
        if self.options.part_bytes:
            self.config = replace(self.config, fence_turn_bytes=self.options.part_bytes, fence_turn_us=40_000)
        self.core_kind = core_kind
        self.partitions = [PartitionId(number + 1) for number in range(self.options.partition_count)]
        if self.options.far_us_max:
            self.config = over_distances(self.config)
        self.distances = Distances(seed, self.options)
        self.cluster = kind.make(self)
        self.judge = judge_kind(
            self.schedule,
            self.brokers,
            flush=self.options.flush,
            levels=self.options.levels,
            ahead_ms_max=self.config.append_time_ahead_ms_max,
            limits=self.config,
        )
        self.judge.rules.calm.is_promised = self.options.nothing_fails
        self.judge.rules.retention.retains_unread = self.options.retain_unread
        self.judge.rules.calm.only_frozen = self.options.suspicious_us > 0
        self.cluster.connect()
        self.clients = Clients(self.schedule, self.options, self.brokers, self.network, self.judge, self.distances)
        self.clients.look = self.cluster.look
        self.clients.other_mode = self._begin_again
        self.producers: list[SimProducer] = []
        self.consumers: list[SimConsumer] = []
        self.range_readers: list[SimRangeReader] = []
        self.groups: list[str] = []
        self.away_until_us: dict[str, int] = {}  # groups whose consumers have all ended, and when others come
        self.changing: set[str] = set()  # groups whose mode people change: no consumer comes meanwhile
        self.there_before: dict[PartitionId, frozenset[str]] = {}  # of added partitions: groups that were there before
        self.keyed_groups = list(KEYED_GROUPS[: self.options.keyed_groups]) if self.options.keyed_consumers else []
        self.people = People(self)
        has_people = self.options.keyed_attempts or self.options.keyed_waits
        people_of = [*self.keyed_groups, *([SHARED] if self.options.mode_consumers else [])]
        self.key_people = [KeyPeople(self, group) for group in people_of if has_people]
        self.publishing = Publishing(self, self.options.writers, self.options.publications)
        if self.options.writers:
            self.judge.publications = self.publishing.judge
        self.forwards = Forwards(self)
        self.past_runs: list[RunId] = []
        self._sent_behind: set[tuple[PartitionId, int]] = set()  # open segments behind gaps that got a message
        self._lost_disks = 0
        self._calm_from_us = 0
        self._has_lost_a_group = False

    # ---- what the cluster is made from --------------------------------------------------------------

    def slots(self) -> Iterator[tuple[str, str]]:
        """The name and the broker group of each broker."""
        for group in range(self.options.group_count):
            for slot in range(self.options.member_count):
                yield f"g{group}-{slot}", f"g{group}"

    def new_incarnation(self) -> str:
        """The incarnation of an empty disk."""
        return self.schedule.rng.randbytes(16).hex()

    # ---- what processes reach -----------------------------------------------------------------------

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """All slots, by name."""
        return self.cluster.brokers

    @property
    def network(self) -> Network:
        """What connects the brokers."""
        return self.cluster.network

    @property
    def coordinator(self) -> Coordinator:
        """What the brokers share."""
        return self.cluster.coordinator

    def flush_us(self, broker: Broker) -> int:
        """How long the next flush takes."""
        rng = self.schedule.rng
        if broker.hung_until_us > self.schedule.now_us:
            return broker.hung_until_us - self.schedule.now_us
        if broker.slow_until_us > self.schedule.now_us:
            return rng.randint(20_000, 150_000)
        return rng.randint(self.options.flush_us_min, self.options.flush_us_max)

    # ---- hung disks ---------------------------------------------------------------------------------

    def hung_brokers(self) -> list[Broker]:
        """Brokers whose disks complete no write now."""
        return [broker for broker in self.brokers.values() if broker.hung_until_us > self.schedule.now_us]

    def full_brokers(self) -> list[Broker]:
        """Brokers whose disks have reached their reserve now."""
        return [broker for broker in self.brokers.values() if broker.full_until_us > self.schedule.now_us]

    def _go_on_without(self, injector: Injector) -> None:
        """With a hung disk or a full broker group, and no other fault, everything is delivered within a bound."""
        until_us = self.schedule.now_us + self.options.drain_us + self.backlog_us()
        while (self.hung_brokers() or self.full_brokers()) and not self._flows():
            self.judge.seen.states.add("hung at the end" if self.hung_brokers() else "full at the end")
            for broker in self.hung_brokers():
                if self._is_only_eligible(broker.member):
                    injector.restart_hung(broker)
            if self.schedule.now_us > until_us:
                hung, full = ([broker.name for broker in some] for some in (self.hung_brokers(), self.full_brokers()))
                raise Violation("I13", f"the disks of {hung} hang, those of {full} are full, and {self._stuck()}")
            self.run_until(self.schedule.now_us + CHECK_US)
        until_us = max(max(broker.hung_until_us, broker.full_until_us) for broker in self.brokers.values())
        if until_us > self.schedule.now_us:
            self.run_until(until_us + 1)

    def _flows(self) -> bool:
        """Whether every producer is done, and every group was given everything."""
        if (
            not all(producer.is_done for producer in self.producers)
            or self.judge.seen.waits_for_rebuild
            or self.people.is_busy
        ):
            return False
        for partition in self.partitions:
            chain = self.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            length = self._open_length(chain)
            if any(self._lacks(group, partition, chain, length) for group in self.groups):
                return False
        return True

    def _lacks(self, group: str, partition: PartitionId, chain: Chain, open_length: int) -> bool:
        """Whether a group has not been given everything."""
        seen = len(self.judge.view(group, partition).firsts)
        return seen < self.judge.wanted(group, chain, open_length)

    def _keyed_lack(self, partition: PartitionId, chain: Chain, open_length: int) -> dict[str, list[int]]:
        """The messages that groups in which order is by key have not finished, by group."""
        order = self.judge.replay(chain, open_length) if self.keyed_groups else []
        if self.options.keyed_delayed:
            order = [place for place in order if key_of(place[1]) != DELAYED_KEY]
        lacking = {group: self.judge.rules.keyed.lacks(group, partition, order) for group in self.keyed_groups}
        return {group: messages for group, messages in lacking.items() if messages}

    def _is_only_eligible(self, member: MemberId) -> bool:
        """Whether no other member may serve some segment: then only the certified end of its run helps."""
        return any(
            segment.eligible == (member,) and segment.state is not SegmentState.LOST
            for partition in self.partitions
            for segment in self.chain(partition).segments
        )

    # ---- lost disks ---------------------------------------------------------------------------------

    def may_lose_a_disk(self, broker: Broker) -> bool:
        """One disk may go, because two copies are promised. In some worlds another may go when there are two again.

        None goes while another one hangs: that one may have the only other copy, and nothing goes on before it does.
        """
        if any(hung is not broker for hung in self.hung_brokers()):
            return False
        if self._lost_disks == 0:
            return True
        return self._lost_disks < self.options.disk_loss_max and self._is_repaired()

    @property
    def lacks_copies(self) -> bool:
        """Whether a lost disk may have had one of two copies, and the other one is still alone."""
        return self._lost_disks > 0 and not self._is_repaired()

    def lost_a_disk(self) -> None:
        """A disk will be missing, or its last writes."""
        self._lost_disks += 1

    def may_lose_a_group(self) -> bool:
        """Once in a run, while nothing else is missing, all disks of a group may go: a person will declare a gap."""
        if not self.options.may_lose_groups or self._has_lost_a_group:
            return False
        if self.lacks_copies:
            return False
        self._has_lost_a_group = True
        self.schedule.after(self._operator_us(), self._operate)
        return True

    def _is_repaired(self) -> bool:
        """Whether every segment has two copies on present disks, as far as it is not lost for good."""
        for partition in self.partitions:
            chain = self.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            if any(self._is_gone(member) for member in chain.open_segment.members) or not self._has_two_copies(chain):
                return False
            sealed = [segment for segment in chain.segments if segment.state is SegmentState.SEALED]
            if any(sum(not self._is_gone(member) for member in segment.members) < 2 for segment in sealed):
                return False  # also of an empty segment, a member must know that it is sealed
        return True

    def is_calm(self) -> bool:
        """Whether all brokers run, reach each other and the coordinator, and have their disks: one fault at a time."""
        if self.coordinator.is_down or any(self.coordinator.isolated.values()):
            return False
        if self.schedule.now_us < self._calm_from_us:
            return False
        processes = [broker.process for broker in self.brokers.values()]
        for broker, process in zip(self.brokers.values(), processes, strict=True):
            if process is None or process.frozen or not process.is_serving:
                return False
            if RunId(broker.member, broker.run) in self.judge.seen.certified_falsely:
                return False
        return all(broker.given_up is None for broker in self.brokers.values())

    def disturbed(self) -> None:
        """Note that something happened that takes time to be over; see `is_calm`."""
        self._calm_from_us = self.schedule.now_us + self.cluster.linked_us

    def run_over(self, process: Process) -> None:
        """A process ended itself: it is started again, on another disk if its own was given up."""
        broker = process.broker
        self.schedule.tell("FAULT", f"{process.name} ends itself")
        self.judge.seen.states.add("ended itself")
        process.leave_network(silent=False)
        process.end()
        broker.disk.crash(self.schedule.rng.randint(0, broker.disk.pending_count))
        broker.ended_badly(machine=False)
        self.clients.process_ended(process, silent=False)
        if broker.given_up is not None:
            broker.replace_disk()
        self.schedule.after(self.schedule.rng.randint(1_000, self.options.restart_us_max), broker.start_again)

    def _is_gone(self, member: MemberId) -> bool:
        return self.brokers[member.broker].member != member

    def _operator_us(self) -> int:
        return self.schedule.rng.randint(20_000, 400_000)

    def _operate(self) -> None:
        """A person looks which segments are lost for good, and declares them so, until the record says it."""
        running = [broker.process for broker in self.brokers.values() if broker.process is not None]
        for partition in self.partitions:
            for segment in self.chain(partition).segments:
                is_over = segment.state in (SegmentState.SEALED, SegmentState.UNSETTLED)
                if is_over and running and all(self._is_gone(member) for member in segment.members):
                    process = self.schedule.rng.choice(running)
                    self.schedule.tell("operator", f"declares {partition}:{segment.no} lost at {process.name}")
                    self.judge.rules.gaps.asked.add((partition, segment.no))
                    request = self.clients.ask(None, lambda _answer: None)
                    process.deliver(DeclareGap(request, partition, segment.no))
        self.schedule.after(self._operator_us(), self._operate)

    def disk_is_lost(self, broker: Broker) -> None:
        """The slot will have an empty disk: remember what was on the other one."""
        self._lost_disks += 1
        self.past_runs.extend(RunId(broker.member, run) for run in range(1, broker.run + 1))
        self.judge.seen.graveyard.append((broker.member, broker.real_disk.durable.twin()))

    # ---- the run ------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run to the end; a broken promise is in the result, not raised."""
        with self.cluster.running():
            return self._result()

    def _result(self) -> Result:
        result = Result(self.seed)
        try:
            self._run()
        except Violation as violation:
            result.violation, result.rule = str(violation), violation.rule
        except RecursionError:
            raise
        except AssertionError as error:
            result.violation, result.rule = f"CORE: {error!r}", "CORE"
            if self.schedule.trace:
                raise
        result.digest = self.schedule.digest
        result.event_count = self.schedule.event_count
        result.virtual_us = self.schedule.now_us
        result.accepted_count = self.judge.rules.outcomes.accepted_count
        for chains in self.judge.seen.history.values():
            result.segment_count += len(chains[-1].segments)
            result.switch_count += chains[-1].open_segment.no - 1
        result.fault_count = self.options.fault_count
        for fate in self.judge.seen.fates.values():
            outcome = fate.outcome or "open"
            result.outcomes[outcome] = result.outcomes.get(outcome, 0) + 1
        result.states = sorted(self.judge.seen.states)
        result.story = self.schedule.lines
        return result

    def _run(self) -> None:
        for broker in self.cluster.first_brokers():
            broker.start()
        self.cluster.create()
        self._start_clients()
        self.coordinator.is_faulty = True
        injector = self.cluster.injector(self._left_out)
        injector.plan()
        if self.options.disk_loss_max > 1:
            self.cluster.control()
        until = self.schedule.now_us + self.options.fault_span_us
        self.run_until(until)
        injector.heal()
        self.publishing.end()
        self.forwards.is_away = False
        if self.options.kinds.get("operate_group"):
            self.people.end()
        for people in self.key_people:
            people.end()
        self._go_on_without(injector)
        if self._lost_disks and self.options.disk_loss_max == 1:
            self.cluster.control()
        bound_us = self.options.drain_us + self.backlog_us()
        until_us = self.schedule.now_us + bound_us
        while not self._is_drained():
            if self.schedule.now_us > until_us:
                raise Violation("I13", f"not drained {bound_us} us after the last fault: {self._stuck()}")
            self._send_behind_gaps()
            self.run_until(self.schedule.now_us + CHECK_US)
        for partition in self.partitions:
            chain, length = self.chain(partition), self._open_length(self.chain(partition))
            self.judge.final(chain, length, self.readers, self.keyed_groups)
            if self.options.dead_letters and partition == self.forwards.dead:
                self.judge.rules.forwarding.final(self.judge.replay(chain, length))
            self.publishing.judge.final(partition, chain, length)
        self.cluster.finish()

    def _send_behind_gaps(self) -> None:
        """A group with state of keys is told of a lost segment by the server of the next one that has messages."""
        for partition in self.partitions:
            opened = (partition, self.chain(partition).open_segment.no)
            is_empty = self._open_length(self.chain(partition)) == 0
            if is_empty and opened not in self._sent_behind and self.judge.untold(partition, self.keyed_groups):
                self._sent_behind.add(opened)
                self.start_producers(1, (partition,))

    def backlog_us(self) -> int:
        """How long batches without an outcome, and consumers that take each batch slowly, may take without faults."""
        unsettled = sum(producer.unsettled_count for producer in self.producers)
        return BATCH_US_MAX * unsettled + self.options.take_us * self.options.batches_per_producer * len(self.producers)

    def run_until(self, until_us: int) -> None:
        """Let time pass. A violation, if there are too many events."""
        count_max = self.cluster.event_count_max
        if not self.schedule.run_until(until_us, count_max):
            raise Violation("I13", f"{count_max} events: something turns in circles; {self._stuck()}")

    def _start_clients(self) -> None:
        self.start_producers(self.options.batches_per_producer)
        if self.options.writers:
            self.publishing.start()
        self.groups = ["early", "late"] if self.options.late_group else ["early"]
        for partition in self.partitions:
            self.add_range_reader(partition)
        self.judge.seen.keyed_groups.update(self.keyed_groups)
        for group in self.keyed_groups:
            for number in range(self.options.keyed_consumers):
                self.schedule.after(self.schedule.rng.randint(0, 300_000), self.add_keyed_consumer, group, number)
        if self.keyed_groups:
            self._look_at_ledgers()
        mode_consumers.start(self)
        spread_consumers.start(self)
        for people in self.key_people if self.options.keyed_attempts else ():
            people.begin()
        for group in self.groups:
            delay = 0 if group == "early" else self.schedule.rng.randint(0, self.options.fault_span_us * 2)
            delay += self.options.readers_after_us
            for number in range(2 if group == "early" else 1):
                self.schedule.after(delay, self.add_consumer, group, number)

    def add_range_reader(self, partition: PartitionId) -> None:
        """A reader of ranges of a partition, if the world has them."""
        if self.options.range_readers:
            reader = SimRangeReader(self, self.clients, self.judge, partition, RANGE)
            self.range_readers.append(reader)
            reader.start()

    def watch_partition(self, partition: PartitionId) -> None:
        """A partition was added: readers of ranges read it too, and people look at its keys."""
        self.add_range_reader(partition)
        for people in self.key_people:
            people.begin_on(partition)

    def start_producers(self, batch_count: int, partitions: Sequence[PartitionId] = ()) -> None:
        """Start the producers of each of these partitions, or of all, with so many batches each."""
        config = producing.ProducerConfig(
            window_batches_max=self.options.window_batches,
            delivery_timeout_ms=self.options.delivery_timeout_ms,
            reply_timeout_ms=1_000 if self.options.suspicious_us or self.options.far_us_max else 150,
            backoff_ms_min=2,
            backoff_ms_max=60,
        )
        for partition in partitions or self.partitions:
            for number in range(self.options.producer_count):
                producer = SimProducer(self.clients, partition, f"p{partition}.{number}", config, batch_count)
                self.producers.append(producer)
                producer.start(self.options.producers_start_us)

    def add_consumer(self, group: str, number: int) -> None:
        """A consumer for each partition, if the group was not deleted meanwhile."""
        if group not in self.groups:
            return
        for partition in self.partitions:
            self.add_consumer_of(partition, group, number)

    def add_consumer_of(self, partition: PartitionId, group: str, number: int) -> None:
        """A consumer of a partition, if the group was not deleted meanwhile.

        If the group was there before the partition was added, the consumer asks to begin at the end. The cursor that
        the group must have there counts instead.
        """
        if group not in self.groups:
            return
        start = self._start_of(partition, group)
        consumer = SimConsumer(self.clients, self.judge, partition, group, f"{group}.{number}", start)
        self.consumers.append(consumer)
        consumer.start()

    def add_keyed_consumer(self, group: str, number: int) -> None:
        """A consumer of a group in which order is by key, for each partition."""
        if group in self.changing:
            self.schedule.after(CHANGING_US, self.add_keyed_consumer, group, number)
            return
        for partition in self.partitions:
            self.add_keyed_consumer_of(partition, group, number)

    def add_keyed_consumer_of(self, partition: PartitionId, group: str, number: int) -> None:
        """A consumer of such a group on one partition; see `add_consumer_of`."""
        name, start = f"{group}.{number}", self._start_of(partition, group)
        consumer = SimKeyedConsumer(self.clients, self.judge, partition, group, name, start)
        self.consumers.append(consumer)
        consumer.start()

    def _start_of(self, partition: PartitionId, group: str) -> StartPosition:
        is_there = group in self.there_before.get(partition, ())
        return StartPosition.LATEST if is_there else StartPosition.EARLIEST

    def _look_at_ledgers(self) -> None:
        """The judge compares what is on the disks of eligible members with what the applications did."""
        for partition in self.partitions:
            for group in self.keyed_groups:
                record, _ = self.coordinator.records.cursor(partition, group)
                self.judge.rules.ledgers.look(partition, group, record)
        self.schedule.after(LEDGERS_US, self._look_at_ledgers)

    def crash_producer(self) -> None:
        """One producer ends. The outcomes of its batches stay unknown, and a new producer sends the next batches."""
        running = [producer for producer in self.producers if not producer.is_done]
        if not running:
            return
        victim = self.schedule.rng.choice(running)
        self.schedule.tell("FAULT", f"{victim.name} ends")
        victim.crash()
        successor = SimProducer(
            self.clients, victim.partition, f"p{victim.partition}.{self.clients.number()}", victim.config, victim.left
        )
        victim.left = 0
        self.producers.append(successor)
        self.schedule.after(self.schedule.rng.randint(1_000, 100_000), successor.start)

    def crash_consumer(self) -> None:
        """One consumer ends, mostly an active one; another comes for it, sooner or later."""
        running = [consumer for consumer in self.consumers if consumer.alive]
        active = [consumer for consumer in running if consumer.is_active]
        if not running:
            return
        victim = self.schedule.rng.choice(active or running)
        self.schedule.tell("FAULT", f"{victim.name} ends")
        victim.crash()
        self.schedule.after(
            self.schedule.rng.randint(1_000, self.options.consumer_away_us_max),
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
        back_us = self.schedule.now_us + rng.randint(*AWAY_US)
        self.away_until_us[group] = max(back_us, self.away_until_us.get(group, 0))
        self.schedule.tell("FAULT", f"all consumers of {group} end, and come back at {back_us / 1000:.0f} ms")
        self.judge.seen.states.add("group without consumers")
        for consumer in self.consumers:
            if consumer.alive and consumer.group == group:
                end = consumer.leave if rng.random() < LEAVES_SHARE else consumer.crash
                end()
                self.schedule.at(back_us, self.replace_consumer, group, consumer.partition)

    def change_mode(self, rng: random.Random) -> None:
        """All consumers of a group end; people give it another mode and its own one again; then as many come."""
        mine = self.keyed_groups if self.options.spread_consumers else (*self.groups, *self.keyed_groups)
        labels = sorted({one.group for one in self.consumers if one.alive and one.group in mine} - self.changing)
        if not labels:
            return
        group = rng.choice(labels)
        self.schedule.tell("FAULT", f"all consumers of {group} end, and its mode changes")
        self.changing.add(group)
        for consumer in self.consumers:
            if consumer.alive and consumer.group == group:
                end = consumer.leave if rng.random() < LEAVES_SHARE else consumer.crash
                end()
                self.replace_consumer(group, consumer.partition)
        self.people.change_mode(name_of(group), partial(self.changing.discard, group))

    def _begin_again(self, group: str, partition: PartitionId) -> bool:
        """A consumer asked for another mode than its group has. It is begun again if people have changed the mode.

        A partition that was added while they changed it may have got the mode of that time: they change it back.
        """
        if group not in self.changing and not self.people.change_back(partition, name_of(group)):
            return False
        self.judge.seen.states.add("consumer begun again after a change of the mode")
        self.schedule.after(CHANGING_US, self.replace_consumer, group, partition)
        return True

    def is_away(self, group: str) -> bool:
        """Whether no consumer of the group may come now."""
        return self.away_until_us.get(group, 0) > self.schedule.now_us

    def replace_consumer(self, group: str, partition: PartitionId, *, too_early: bool = False) -> None:
        """Another consumer comes, unless its group is away, or another mode is given to it."""
        if group in self.changing and not too_early:
            self.schedule.after(CHANGING_US, self.replace_consumer, group, partition)
            return
        if self.is_away(group):
            self.schedule.at(self.away_until_us[group], self.replace_consumer, group, partition)
            return
        if group in mode_consumers.MODES:
            mode_consumers.add(self, group, partition)
            return
        if group in self.keyed_groups:
            self.add_keyed_consumer_of(partition, group, self.clients.number())
            return
        self.add_consumer_of(partition, group, self.clients.number())

    # ---- the end ------------------------------------------------------------------------------------

    @property
    def readers(self) -> list[str]:
        """All that must get every message: the consumer groups, and the readers of ranges."""
        return [*self.groups, RANGE] if self.range_readers else self.groups

    def known_chain(self, partition: PartitionId) -> Chain | None:
        """The record as the coordinator answers it now; None if it does not answer."""
        return None if self.coordinator.is_down else self.coordinator.records.chain(partition)[0]

    def chain(self, partition: PartitionId) -> Chain:
        """The record, also while the coordinator lacks it."""
        chain = self.coordinator.records.chain(partition)[0]
        return chain if chain is not None else self.judge.seen.history[partition][-1]  # back empty, and not rebuilt yet

    def _open_length(self, chain: Chain) -> int:
        segment = chain.open_segment
        tails = []
        for member in segment.members:
            broker = self.brokers[member.broker]
            if broker.member == member:
                tails.append(own_tail(broker.disk.durable, chain.partition, segment.no))
        return min(tails, default=0)

    def _is_drained(self) -> bool:
        if self.cluster.is_busy:
            return False
        if (
            not all(producer.is_done for producer in self.producers)
            or self.judge.seen.waits_for_rebuild
            or self.people.is_busy
        ):
            return False
        if not self.publishing.is_done:
            return False
        for partition in self.partitions:
            chain = self.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            if not self._open_segment_is_quiet(chain):
                return False
            length = self._open_length(chain)
            if any(self._lacks(group, partition, chain, length) for group in self.readers):
                return False
            if self._keyed_lack(partition, chain, length):
                return False
            if mode_consumers.lacks(self, partition, chain, length):
                return False
            if not self._has_two_copies(chain) or self.judge.untold(partition, [*self.readers, *self.keyed_groups]):
                return False
        return not self.cluster.missing()

    def _open_segment_is_quiet(self, chain: Chain) -> bool:
        """Whether the members of the open segment are the current ones and hold the same."""
        segment = chain.open_segment
        tails = set()
        for member in segment.members:
            broker = self.brokers[member.broker]
            if broker.member != member or broker.process is None:
                return False
            tails.add(own_tail(broker.disk.durable, chain.partition, segment.no))
        if not self.options.flush:
            tails.add(self.judge.seen.losses.longest((chain.partition, segment.no)))  # messages in memory will come
        return len(tails) == 1

    def _has_two_copies(self, chain: Chain) -> bool:
        """Whether each settled segment is whole on two of the present disks that the chain names."""
        contradicted = self.judge.seen.contradicted
        for segment in chain.segments:
            if segment.state is not SegmentState.SEALED or not segment.sealed_len:
                continue
            whole = 0
            for member in segment.members:
                broker = self.brokers[member.broker]
                if broker.member == member:
                    tail = own_tail(broker.disk.durable, chain.partition, segment.no)
                    keeps_more = (
                        chain.partition,
                        segment.no,
                    ) in contradicted and tail > segment.sealed_len
                    whole += tail == segment.sealed_len or keeps_more
            if whole < 2:
                return False
        return True

    def _stuck(self) -> str:
        """The reasons why the run is not drained yet."""
        parts = [f"{producer.name} waits" for producer in self.producers if not producer.is_done]
        parts += ["an operation on a group is not done"] if self.people.is_busy else []
        parts += [] if self.publishing.is_done else [self.publishing.stuck]
        for partition in self.partitions:
            chain = self.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                parts.append(f"partition {partition} is unsettled")
                continue
            if not self._open_segment_is_quiet(chain):
                parts.append(f"the open segment of partition {partition} is not quiet")
            for group in self.readers:
                seen = len(self.judge.view(group, partition).firsts)
                wanted = self.judge.wanted(group, chain, self._open_length(chain))
                if seen < wanted:
                    parts.append(f"{group} has {seen} of {wanted} in partition {partition}")
            lack_too = mode_consumers.lacks(self, partition, chain, self._open_length(chain))
            if lack_too:
                parts.append(f"the shared group lacks {len(lack_too)} in partition {partition}: {lack_too[:5]}")
            for group, lack in self._keyed_lack(partition, chain, self._open_length(chain)).items():
                parts.append(f"{group} lacks {len(lack)} in partition {partition}: {lack[:5]}")
            if not self._has_two_copies(chain):
                parts.append(f"partition {partition} has not two copies of everything")
            for group, no in self.judge.untold(partition, [*self.readers, *self.keyed_groups]):
                parts.append(f"{group} was not told that segment {no} of partition {partition} is lost")
        return "; ".join([*parts, *self.cluster.missing()])


def more_chance(seed: int) -> random.Random:
    """The chance by which a world gets something more than an ordinary one, apart from all other chance."""
    return random.Random(f"more {seed}")
