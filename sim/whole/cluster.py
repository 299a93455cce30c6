"""A cluster of complete brokers: production core and runtime, on fakes; everything else is as with bare cores.

It runs what bare cores leave out: the driver and its order of effects, links that are dialed from both sides, gathered
transactions, the directory and its watches, leases, the election, and starts that join. Here the controller makes
topics, admits members and heals copies. A seed costs about ten times as much as with bare cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from seriatim_api.errors import DirectoryInUseError, ForeignDiskError, OldDiskError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId, TopicIncarnation
from seriatim_api.v1 import records_pb2
from seriatim_broker.runtime.coordinator import chain_layout, records
from seriatim_broker.testing.memory_network import MemoryNetwork

from ..basics.interfaces import Look
from ..basics.schedule import Violation
from ..basics.setting import Setting
from ..faults import draw_latency_us
from ..judge import Judge
from ..scene import Scene
from .brokers import START_AGAIN_US, Home, RuntimeBroker, RuntimeProcess, serves
from .coordinator import RuntimeCoordinator
from .disks import MemoryDisks
from .operator import BrokerGroupOperator
from .rebuilds import Person
from .remade_consumer_groups import ConsumerGroupMaker
from .remade_topics import FORGOTTEN_US, TOPIC, TOPIC_DEADLINE_S, TopicMaker
from .topic_growth import TopicGrowth

LOOK_US = 20_000
CREATE_US_MAX = 30_000_000


class WholeCluster:
    """Brokers that are complete.

    Args:
        setting: The time and the chance of their world.
        disks: What writes to their disks.
        has_operator: Whether an operator changes what it wants of broker groups.

    Attributes:
        displaced: Brokers whose slots were taken by a process with a copy of the directory.
    """

    linked_us = 1_500_000

    network: MemoryNetwork
    coordinator: RuntimeCoordinator
    scene: Scene

    def __init__(
        self,
        setting: Setting,
        disks: Callable[[Home], MemoryDisks] = MemoryDisks,
        *,
        has_operator: bool = False,
    ) -> None:
        self.setting = setting
        self.schedule = setting.schedule
        self.displaced: list[RuntimeBroker] = []
        self.disks = disks(self)
        self.brokers: dict[str, RuntimeBroker] = {}
        self.event_count_max = 6_000_000 if has_operator else 3_000_000
        for name, group in setting.slots():
            self.brokers[name] = broker = RuntimeBroker(self, name, group, self.setting.new_incarnation())
            broker.disk = self.disks.make()
        self.topics = TopicMaker(self)
        self.growth = TopicGrowth(self, self.topics)
        self.person = Person(self)
        self.groups_again = ConsumerGroupMaker(self)
        self.operator = BrokerGroupOperator(self) if has_operator else None

    def connect(self, judge: Judge) -> None:
        """Make the network and the coordinator."""
        schedule, options = self.schedule, self.setting.options
        self.network = MemoryNetwork(schedule.time, lambda: draw_latency_us(schedule.rng, options), schedule.rng)
        self.coordinator = RuntimeCoordinator(schedule, options, judge)
        self.coordinator.label_of = self.groups_again.label_of

    def enter(self, scene: Scene) -> None:
        """All parts of the world are there."""
        self.scene = scene

    @property
    def look(self) -> Look | None:
        """How clients look whether their topic is there, if topics are deleted."""
        return self.topics.look if self.setting.options.kinds.get("remake_topic") else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Records of chains may be short; all processes are ended before the garbage collector gets the world."""
        try:
            with _short_records(self.setting.options.record_segments_max):
                yield
        finally:
            machines = [*self.brokers.values(), *self.displaced]
            for broker in (*machines, *(broker.copy for broker in machines if broker.copy is not None)):
                if broker.process is not None:
                    broker.process.end()
            self.person.close()
            self.coordinator.close()
            if self.operator is not None:
                self.operator.close()

    def first_brokers(self) -> Iterator[RuntimeBroker]:
        """Without those that an operator may add later."""
        return (broker for broker in self.brokers.values() if not broker.is_awaited)

    # ---- copies of a living broker's directory ------------------------------------------------------

    def joined(self, broker: RuntimeBroker) -> None:
        """A process has begun its run. With a copy of a directory it takes the place of the one that has the other.

        ALARM: it did not register over a record that lost one of its runs. That record is the proof of the loss.
        """
        process = broker.process
        assert process is not None
        run, run_before = self.coordinator.registrations.get(broker.member, (0, 0))
        if run == broker.run and run_before < process.confirmed_before:
            what = f"{broker.name} registered as run {run} over run {run_before}"
            self.scene.judge.fail(
                "ALARM", f"{what}, though the coordinator had confirmed run {process.confirmed_before}"
            )
        before = self.brokers[broker.name]
        if before.copy is broker:
            self._displace(before, broker)

    def _displace(self, before: RuntimeBroker, copy: RuntimeBroker) -> None:
        """From now on the copy is the broker, whether or not the process with the original has ended."""
        self.schedule.tell("FAULT", f"{copy.name} is the process at {copy.address} now")
        self.scene.judge.seen.states.add("copy took over")
        self.brokers[copy.name] = copy
        before.copy = None
        self.displaced.append(before)
        self.scene.judge.seen.displaced.append((before.member, before.disk.durable))
        if copy.process is None:
            copy.start()

    def check_one_ends(self) -> None:
        """TWO: of two processes with copies of one directory, only one continues."""
        for broker in self.displaced:
            if broker.process is not None:
                self.scene.judge.fail("TWO", f"{broker.name} runs on, and so does a later run of {broker.member}")

    def run_over(self, process: RuntimeProcess) -> None:
        """A process ended itself. If a copy has taken the slot, nothing is started again."""
        broker = process.broker
        if broker.copy is not None:
            self._displace(broker, broker.copy)
        self.scene.health.run_over(process)

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A process could not join."""
        self._reap(broker, error)
        self.disks.start_failed(broker, error)

    def _reap(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A process could not join: its supervisor reaps it, certifies the end of its run, and starts it again."""
        process = broker.process
        if process is None:
            return
        original = self.brokers[broker.name]
        if original.copy is broker:
            self.scene.judge.seen.states.add(
                "copy refused" if isinstance(error, DirectoryInUseError) else "copy failed"
            )
            process.leave_network(silent=False)
            process.end()
            original.copy = None
            return
        self.scene.judge.seen.states.add(f"start failed: {type(error).__name__}")
        process.leave_network(silent=False)
        process.end()
        if broker.run:
            self.coordinator.certify(RunId(broker.member, broker.run))
        if isinstance(error, OldDiskError):
            broker.take_back()  # the operator brings the right disk
        elif isinstance(error, ForeignDiskError):
            broker.is_replaced = True  # it took an empty directory and ended before it was registered: say so again
        self.schedule.after(START_AGAIN_US, broker.start_again)

    def others_dismiss(self, run: RunId) -> bool:
        """Whether all other brokers have read the certificate of a run, by their watches."""
        others = [broker.process for broker in self.brokers.values() if broker.name != run.member.broker]
        return all(process is not None and process.dismisses(run) for process in others)

    def tell_false_certificates(self) -> None:
        """Brokers read them by themselves."""

    def control(self) -> None:
        """The elected broker does that here."""

    # ---- the topic ----------------------------------------------------------------------------------

    def create(self) -> None:
        """The controller makes the topic, when all members are admitted."""
        settings = records_pb2.TopicSettings(
            flush=self.setting.options.flush,
            chain_width=self.setting.options.group_count,
            retention_ms=self.setting.options.retention_ms,
            retain_unread=self.setting.options.retain_unread,
        )
        asking: list[asyncio.Task[None]] = []

        async def create(process: RuntimeProcess) -> None:
            runtime = process.simulated.runtime
            assert runtime is not None
            try:
                await runtime.controller.topics.create(
                    TOPIC, self.setting.options.partition_count, settings, TOPIC_DEADLINE_S, TopicIncarnation("f" * 32)
                )
            except SeriatimError as exc:
                self.schedule.tell("world", f"topic not made: {exc!r}")

        while not self._is_created():
            if self.schedule.now_us > CREATE_US_MAX:
                raise Violation("I13", "the partitions were never created")
            self.scene.draining.run_until(self.schedule.now_us + LOOK_US)
            controller = self.controller()
            if controller is not None and self._all_admitted(controller) and all(task.done() for task in asking):
                controller.loop.call_soon(_begin, asking, controller, create)

    def controller(self) -> RuntimeProcess | None:
        """The controller, if there is one."""
        return next((broker.process for broker in self.brokers.values() if _leads(broker.process)), None)

    def topic_made(self, partitions: list[PartitionId]) -> None:
        """There is a topic with other partitions: the application makes producers and consumers for it."""
        scene = self.scene
        self.setting.partitions = partitions
        scene.population.start_producers(max(1, self.setting.options.batches_per_producer // 2))
        for group in scene.population.groups:
            scene.population.add_consumer(group, scene.clients.number())

    def _is_created(self) -> bool:
        return all(self.coordinator.chain(partition)[0] is not None for partition in self.setting.partitions)

    def _all_admitted(self, process: RuntimeProcess) -> bool:
        runtime = process.simulated.runtime
        assert runtime is not None
        admitted: set[MemberId] = {
            member for members in runtime.directory.broker_groups().values() for member in members
        }
        return admitted == {broker.member for broker in self.first_brokers()}

    # ---- the end ------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a topic grows or is made again, or a consumer group is, or a process without its slot runs on."""
        if self.topics.is_busy or self.growth.is_busy or self.groups_again.is_busy:
            return True
        return any(broker.process is not None for broker in self.displaced)

    def missing(self) -> list[str]:
        """Brokers that are not back, and what they have not done of what the operator wants."""
        away = [name for name, broker in self.brokers.items() if not serves(broker.process)]
        left = self.operator.left_on_groups() if self.operator is not None else []
        return [f"not serving: {away}"] * bool(away) + [f"not left: {left}"] * bool(left)

    def finish(self) -> None:
        """After some time brokers know what the coordinator has, and nothing of deleted topics is left."""
        self.person.check_copies()
        if self.scene.judge.seen.gone:
            self.scene.draining.run_until(self.schedule.now_us + FORGOTTEN_US)
            self.topics.check()


@contextmanager
def _short_records(segments_max: int) -> Iterator[None]:
    """Records of chains hold only this many segments, and pages twice as many; with 0 as many as in production."""
    before = chain_layout.RECORD_SEGMENTS_MIN, chain_layout.RECORD_SEGMENTS_MAX, records.PAGE_SEGMENTS
    if segments_max:
        _lay_out(segments_max // 2, segments_max, 2 * segments_max)
    try:
        yield
    finally:
        _lay_out(*before)


def _lay_out(segments_min: int, segments_max: int, page_segments: int) -> None:
    chain_layout.RECORD_SEGMENTS_MIN, chain_layout.RECORD_SEGMENTS_MAX = segments_min, segments_max
    for module in (chain_layout, records):
        vars(module)["PAGE_SEGMENTS"] = page_segments


def _leads(process: RuntimeProcess | None) -> bool:
    return process is not None and process.is_controller


def _begin(
    asking: list[asyncio.Task[None]],
    process: RuntimeProcess,
    create: Callable[[RuntimeProcess], Coroutine[Any, Any, None]],
) -> None:
    asking.append(process.loop.create_task(create(process), name="topic"))
