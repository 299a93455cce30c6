"""One run: a cluster, its clients and a fault plan in virtual time, all from one seed.

Here all parts of a world are put together. A run creates the partitions, sends messages under faults, and heals
everything. Then consumers must drain all segments within a bound. The judge looks on throughout and compares everything
at the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from seriatim_broker.core.broker import BrokerCore

from .basics.schedule import Schedule, Violation
from .basics.setting import Setting
from .condition.copies import Copies
from .condition.draining import Draining
from .condition.health import Health
from .cores.kind import CORES
from .judge import Judge
from .judge.modes import SHARED
from .people.operations import People
from .people.parked_keys import KeyPeople
from .programs.carrier import Carrier
from .programs.clients import Clients
from .programs.dead_letters import Forwards
from .programs.delayed import Delayed
from .programs.population import Population
from .programs.spread_consumers import SpreadConsumers
from .publishing.environment import Publishing
from .scene import ClusterKind, Faults, Scene

CHECK_US = 20_000


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
        profile: A name of `faults.profiles.PROFILES`, or empty for any.
        core_kind: The class of the brokers' cores.
        batch_count: Batches of a run of complete brokers; 0: drawn.
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
        schedule = schedule or Schedule(seed, trace=trace, detailed=detailed)
        options = kind.draw(schedule.rng, profile, batch_count, more_chance(seed))
        self._kind = kind
        self._left_out = left_out
        self.setting = setting = Setting(seed, schedule, options, core_kind)
        self.cluster = cluster = kind.make(setting)
        self.judge = judge = self._make_judge(judge_kind)
        cluster.connect(judge)
        self.clients = clients = Clients(
            schedule, options, cluster.brokers, cluster.network, judge, setting.distances, look=cluster.look
        )
        self.population = Population(setting, clients, judge, cluster.coordinator)
        self.people = People(setting, cluster, judge, clients, self.population)
        clients.other_mode = self.people.begin_again
        self.key_people = self._make_key_people()
        self.publishing = Publishing(setting, cluster, judge, clients)
        if options.writers:
            judge.publications = self.publishing.judge
        carrier = Carrier(setting, cluster, judge, clients)
        self.forwards = Forwards(setting, judge, carrier)
        self.delayed = Delayed(setting, cluster, judge, clients, carrier)
        clients.on_delayed = self.delayed.stored
        self.copies = Copies(setting, cluster, judge)
        self.health = Health(setting, cluster, judge, clients, self.copies)
        self.draining = Draining(
            setting, cluster, judge, self.copies, self.population, self.people, self.publishing, self.delayed
        )
        self.scene = Scene(
            setting, cluster, judge, clients, self.population, self.people, self.key_people, self.publishing,
            self.forwards, self.delayed, self.copies, self.health, self.draining,
        )  # fmt: skip
        cluster.enter(self.scene)

    def _make_judge(self, judge_kind: type[Judge]) -> Judge:
        options, config = self.setting.options, self.setting.config
        judge = judge_kind(
            self.setting.schedule,
            self.cluster.brokers,
            flush=options.flush,
            levels=options.levels,
            ahead_ms_max=config.append_time_ahead_ms_max,
            limits=config,
        )
        judge.rules.calm.is_promised = options.nothing_fails
        judge.rules.retention.retains_unread = options.retain_unread
        judge.rules.calm.only_frozen = options.suspicious_us > 0
        return judge

    def _make_key_people(self) -> list[KeyPeople]:
        options = self.setting.options
        if not options.keyed_attempts and not options.keyed_waits:
            return []
        groups = [*self.population.keyed_groups, *([SHARED] if options.mode_consumers else [])]
        return [KeyPeople(self.setting, self.cluster, self.judge, self.clients, group) for group in groups]

    # ---- the run ------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run to the end; a broken promise is in the result, not raised."""
        with self.cluster.running():
            return self._result()

    def _result(self) -> Result:
        result = Result(self.setting.seed)
        try:
            self._run()
        except Violation as violation:
            result.violation, result.rule = str(violation), violation.rule
        except RecursionError:
            raise
        except AssertionError as error:
            result.violation, result.rule = f"CORE: {error!r}", "CORE"
            if self.setting.schedule.trace:
                raise
        result.digest = self.setting.schedule.digest
        result.event_count = self.setting.schedule.event_count
        result.virtual_us = self.setting.schedule.now_us
        result.accepted_count = self.judge.rules.outcomes.accepted_count
        for chains in self.judge.seen.history.values():
            result.segment_count += len(chains[-1].segments)
            result.switch_count += chains[-1].open_segment.no - 1
        result.fault_count = self.setting.options.fault_count
        for fate in self.judge.seen.fates.values():
            outcome = fate.outcome or "open"
            result.outcomes[outcome] = result.outcomes.get(outcome, 0) + 1
        result.states = sorted(self.judge.seen.states)
        result.story = self.setting.schedule.lines
        return result

    def _run(self) -> None:
        options = self.setting.options
        for broker in self.cluster.first_brokers():
            broker.start()
        self.cluster.create()
        self._start_clients()
        self.cluster.coordinator.is_faulty = True
        faults = self._kind.injector(self.scene, self._left_out)
        faults.plan()
        controls = options.disk_loss_max > 1 or options.grows
        if controls:
            self.cluster.control()
        self.draining.run_until(self.setting.schedule.now_us + options.fault_span_us)
        faults.heal()
        self._end_people()
        self._go_on_without(faults)
        if not controls and (self.health.lost_disks or options.member_count > 2):
            self.cluster.control()  # with more members, what was open while one was away needs another copy
        self._drain()
        self._judge_the_end()

    def _start_clients(self) -> None:
        options, population = self.setting.options, self.population
        population.start_producers(options.batches_per_producer)
        if options.writers:
            self.publishing.start()
        if options.delayed_share:
            self.delayed.start()
        population.start_readers()
        SpreadConsumers(self.setting, self.clients, self.judge, population).start()
        for people in self.key_people if options.keyed_attempts else ():
            people.begin()
        population.start_consumers()

    def _end_people(self) -> None:
        self.publishing.end()
        self.forwards.is_away = False
        if self.setting.options.kinds.get("operate_group"):
            self.people.end()
        for people in self.key_people:
            people.end()

    def _go_on_without(self, faults: Faults) -> None:
        """With a hung disk or a full broker group, and no other fault, everything is delivered within a bound."""
        until_us = self.setting.schedule.now_us + self.setting.options.drain_us + self.population.backlog_us()
        while (self.health.hung_brokers() or self.health.full_brokers()) and not self.draining.flows():
            self.judge.seen.states.add("hung at the end" if self.health.hung_brokers() else "full at the end")
            for broker in self.health.hung_brokers():
                if self.draining.is_only_eligible(broker.member):
                    faults.restart_hung(broker)
            if self.setting.schedule.now_us > until_us:
                hung, full = (
                    [broker.name for broker in some]
                    for some in (self.health.hung_brokers(), self.health.full_brokers())
                )
                raise Violation(
                    "I13", f"the disks of {hung} hang, those of {full} are full, and {self.draining.stuck()}"
                )
            self.draining.run_until(self.setting.schedule.now_us + CHECK_US)
        until_us = max(max(broker.hung_until_us, broker.full_until_us) for broker in self.cluster.brokers.values())
        if until_us > self.setting.schedule.now_us:
            self.draining.run_until(until_us + 1)

    def _drain(self) -> None:
        bound_us = self.setting.options.drain_us + self.population.backlog_us()
        until_us = self.setting.schedule.now_us + bound_us
        while not self.draining.is_drained():
            if self.setting.schedule.now_us > until_us:
                self.draining.check_pending()
                raise Violation("I13", f"not drained {bound_us} us after the last fault: {self.draining.stuck()}")
            self.draining.send_behind_gaps()
            self.draining.run_until(self.setting.schedule.now_us + CHECK_US)

    def _judge_the_end(self) -> None:
        for partition in self.setting.partitions:
            chain = self.copies.chain(partition)
            length = self.copies.open_length(chain)
            self.judge.final(chain, length, self.population.readers, self.population.keyed_groups)
            if self.setting.options.dead_letters and partition == self.forwards.dead:
                self.judge.rules.dead_letters.final(self.judge.replay(chain, length))
            self.publishing.judge.final(partition, chain, length)
        self.cluster.finish()


def more_chance(seed: int) -> random.Random:
    """The chance by which a world gets something more than an ordinary one, apart from all other chance."""
    return random.Random(f"more {seed}")
