"""A world of whole brokers: production core and runtime, on fakes; everything else as in a world of bare cores.

This world runs what the world of bare cores leaves out: the driver and its order of effects, links that are dialed from
both sides, gathered transactions, the directory and its watches, leases, the election, and starts that join. Here the
controller makes topics, admits members and heals copies. A seed costs about ten times as much as with bare cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seriatim_api.errors import DirectoryInUseError, ForeignDiskError, OldDiskError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.runtime import archive, records
from seriatim_broker.testing.memory_network import MemoryNetwork
from seriatim_broker.testing.simulated_storage import SimulatedStorage

from ..faults import Options, draw_for_brokers, draw_latency_us
from ..schedule import Violation
from ..world import World
from .brokers import READ_US, START_AGAIN_US, ProcessStorage, RuntimeBroker, RuntimeProcess
from .coordinator import RuntimeCoordinator
from .groups_again import GroupMaker
from .injector import RuntimeInjector
from .restoring import Person
from .topics import FORGOTTEN_US, TOPIC, TOPIC_DEADLINE_S, TopicMaker

LOOK_US = 20_000


class RuntimeNetwork(MemoryNetwork):
    """The brokers' network, as the injector knows it."""

    def process_ended(self, process: RuntimeProcess, *, silent: bool) -> None:
        """All connections of a process end. With `silent` (its machine went down) the other ends are not told."""
        self.ended(process.broker.address, silent=silent)


class RuntimeWorld(World):
    """Everything of one run."""

    linked_us = 1_500_000
    event_count_max = 3_000_000
    create_us_max = 30_000_000
    drift_ppm_max = 5_000
    injector_kind = RuntimeInjector

    brokers: dict[str, Any]
    network: RuntimeNetwork
    coordinator: RuntimeCoordinator

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.displaced: list[RuntimeBroker] = []  # a process with a copy of its directory took the slot of each
        super().__init__(*arguments, **options)
        self.topics = TopicMaker(self)
        self.person = Person(self)
        self.groups_again = GroupMaker(self)
        self.coordinator.label_of = self.groups_again.label_of
        self.clients.look = self.topics.look if self.options.kinds.get("remake_topic") else None

    def _draw(self, profile: str, batch_count: int) -> Options:
        return draw_for_brokers(self.schedule.rng, profile, batch_count, self._more())

    def _make_broker(self, name: str, group: str) -> Any:
        return RuntimeBroker(name, group, self._incarnation())

    def _make_network(self) -> Any:
        rng, options = self.schedule.rng, self.options
        return RuntimeNetwork(self.schedule.time, lambda: draw_latency_us(rng, options), rng)

    def _make_coordinator(self) -> Any:
        return RuntimeCoordinator(self.schedule, self.options, self.judge)

    # ---- disks --------------------------------------------------------------------------------------

    def open_storage(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""
        broker, rng = process.broker, self.schedule.rng
        return SimulatedStorage(
            broker.disk, self.schedule.time, lambda: self.sync_us(broker), lambda: rng.randint(*READ_US)
        )

    def replace_disk(self, broker: Any) -> None:
        """The slot gets an empty disk; the operator says so at its next start."""
        self._lost_disks += 1
        self.past_runs.extend(RunId(broker.member, run) for run in range(1, broker.run + 1))
        self.judge.seen.graveyard.append((broker.member, broker.real_disk.durable.twin()))
        broker.given_up = None
        broker.disk.wipe()
        broker.directory.wipe(self._incarnation())
        broker.replace_disk = True
        broker.joined_run = 0
        self.schedule.tell("FAULT", f"{broker.name} has lost its disk and will be {broker.member}")

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
            self.judge.fail("ALARM", f"{what}, though the coordinator had confirmed run {process.confirmed_before}")
        before = self.brokers[broker.name]
        if before.copy is broker:
            self._displace(before, broker)

    def _displace(self, before: RuntimeBroker, copy: RuntimeBroker) -> None:
        """From now on the copy is the broker, whether or not the process with the original has ended."""
        self.schedule.tell("FAULT", f"{copy.name} is the process at {copy.address} now")
        self.judge.seen.states.add("copy took over")
        self.brokers[copy.name] = copy
        before.copy = None
        self.displaced.append(before)
        self.judge.seen.displaced.append((before.member, before.disk.durable))
        if copy.process is None:
            copy.start(self)

    def check_one_ends(self) -> None:
        """TWO: of two processes with copies of one directory, only one goes on."""
        for broker in self.displaced:
            if broker.process is not None:
                self.judge.fail("TWO", f"{broker.name} runs on, and so does a later run of {broker.member}")

    def run_over(self, process: Any) -> None:
        """As in a world of bare cores. If a copy has taken the slot, nothing is started again."""
        broker = process.broker
        if broker.copy is not None:
            self._displace(broker, broker.copy)
        super().run_over(process)

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A process could not join: its supervisor reaps it, certifies the end of its run, and starts it again."""
        process = broker.process
        if process is None:
            return
        original = self.brokers[broker.name]
        if original.copy is broker:
            self.judge.seen.states.add("copy refused" if isinstance(error, DirectoryInUseError) else "copy failed")
            self.network.process_ended(process, silent=False)
            process.end()
            original.copy = None
            return
        self.judge.seen.states.add(f"start failed: {type(error).__name__}")
        self.network.process_ended(process, silent=False)
        process.end()
        if broker.run:
            self.coordinator.certify(RunId(broker.member, broker.run))
        if isinstance(error, OldDiskError):
            broker.take_back()  # the operator brings the right disk
        elif isinstance(error, ForeignDiskError):
            broker.replace_disk = True  # it took an empty directory and ended before it was registered: say so again
        self.schedule.after(START_AGAIN_US, self._start_again, broker)

    def _start_again(self, broker: RuntimeBroker) -> None:
        if self.brokers[broker.name] is not broker:
            return
        self.disturbed()
        if broker.hung_until_us > self.schedule.now_us:
            self.schedule.at(broker.hung_until_us, self._start_again, broker)
        elif broker.process is None:
            broker.start(self)

    def others_dismiss(self, run: RunId) -> bool:
        """Whether all other brokers have read the certificate of a run, by their watches."""
        others = [broker.process for broker in self.brokers.values() if broker.name != run.member.broker]
        return all(process is not None and process.dismisses(run) for process in others)

    def tell_false_certificates(self) -> None:
        """Brokers read them by themselves."""

    def control(self) -> None:
        """The elected broker does that here."""

    def _is_drained(self) -> bool:
        """Also every broker is back, and the topic is there."""
        if self.topics.is_busy or self.groups_again.is_busy:
            return False
        if any(broker.process is not None for broker in self.displaced):
            return False
        return super()._is_drained() and all(_serves(broker.process) for broker in self.brokers.values())

    def _stuck(self) -> str:
        """Also the brokers that are not back."""
        away = [name for name, broker in self.brokers.items() if not _serves(broker.process)]
        return super()._stuck() + (f"; not serving: {away}" if away else "")

    # ---- the topic ----------------------------------------------------------------------------------

    def _create(self) -> None:
        settings = records_pb2.TopicSettings(
            flush=self.options.flush,
            chain_width=self.options.group_count,
            retention_ms=self.options.retention_ms,
            retention_acts=bool(self.options.retention_ms),
        )
        asking: list[asyncio.Task[Any]] = []

        async def create(process: RuntimeProcess) -> None:
            runtime = process.simulated.runtime
            assert runtime is not None
            try:
                await runtime.controller.topics.create(
                    TOPIC, self.options.partition_count, settings, TOPIC_DEADLINE_S, "the-only-one"
                )
            except SeriatimError as exc:
                self.schedule.tell("world", f"topic not made: {exc!r}")

        while not self._is_created():
            if self.schedule.now_us > self.create_us_max:
                raise Violation("I13", "the partitions were never created")
            self._run_until(self.schedule.now_us + LOOK_US)
            leader = self.leader()
            if leader is not None and self._all_admitted(leader) and all(task.done() for task in asking):
                leader.loop.call_soon(_begin, asking, leader, create)

    def leader(self) -> RuntimeProcess | None:
        """The controller, if there is one."""
        return next((broker.process for broker in self.brokers.values() if _leads(broker.process)), None)

    def topic_made(self, partitions: list[PartitionId]) -> None:
        """There is a topic with other partitions: the application makes producers and consumers for it."""
        self.partitions = partitions
        self._start_producers(max(1, self.options.batches_per_producer // 2))
        for group in self.groups:
            self.add_consumer(group, self.clients.number())

    def _run(self) -> None:
        super()._run()
        if self.judge.seen.gone:
            self._run_until(self.schedule.now_us + FORGOTTEN_US)
            self.topics.check()

    def _is_created(self) -> bool:
        return all(self.coordinator.chain(partition)[0] is not None for partition in self.partitions)

    def _all_admitted(self, process: RuntimeProcess) -> bool:
        runtime = process.simulated.runtime
        assert runtime is not None
        admitted: set[MemberId] = {member for members in runtime.directory.groups().values() for member in members}
        return admitted == {broker.member for broker in self.brokers.values()}

    def run(self) -> Any:
        """As in a world of bare cores; the processes are ended before the world is left to the garbage collector."""
        try:
            with _short_records(self.options.record_segments_max):
                return super().run()
        finally:
            machines = [*self.brokers.values(), *self.displaced]
            for broker in (*machines, *(broker.copy for broker in machines if broker.copy is not None)):
                if broker.process is not None:
                    broker.process.end()
            self.person.close()
            self.coordinator.close()


@contextmanager
def _short_records(segments_max: int) -> Iterator[None]:
    """Records of chains hold only so many segments, and pages twice as many; with 0 as many as in production."""
    before = archive.RECORD_SEGMENTS_MIN, archive.RECORD_SEGMENTS_MAX, records.PAGE_SEGMENTS
    if segments_max:
        _lay_out(segments_max // 2, segments_max, 2 * segments_max)
    try:
        yield
    finally:
        _lay_out(*before)


def _lay_out(segments_min: int, segments_max: int, page_segments: int) -> None:
    archive.RECORD_SEGMENTS_MIN, archive.RECORD_SEGMENTS_MAX = segments_min, segments_max
    for module in (archive, records):
        vars(module)["PAGE_SEGMENTS"] = page_segments


def _serves(process: RuntimeProcess | None) -> bool:
    return process is not None and process.is_serving


def _leads(process: RuntimeProcess | None) -> bool:
    return process is not None and process.is_leader


def _begin(asking: list[asyncio.Task[Any]], process: RuntimeProcess, create: Any) -> None:
    asking.append(process.loop.create_task(create(process), name="topic"))
