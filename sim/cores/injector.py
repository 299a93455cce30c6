"""Faults of clusters of bare cores: an older copy of the coordinator, late operations, and retention by hand."""

from __future__ import annotations

from functools import partial

from seriatim_api.ids import make_offset
from seriatim_broker.core.control import retention
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.effects import DeliveryEvent, Granted, Joined
from seriatim_broker.core.values.messages import HandOverKept, Message, ReplicateLedger
from seriatim_broker.core.values.positions import Measure
from seriatim_broker.core.values.segment import Start

from ..basics.interfaces import COORDINATOR_TIMEOUT_US
from ..injection import Injector
from ..programs.clients import Stream
from ..programs.keyed_consumers import SimKeyedConsumer
from ..scene import Scene
from .brokers import Broker, Process
from .cluster import CoreCluster

TOLD_US = 80_000
"""Within this time a record is told to the members that must know it, and is on their disks."""

HALF_STATE_US = 1_000_000
"""How long a member takes to join again at the most, and how slow the link is then."""

HALF_STATE_ENDS_US = (10_000, 40_000)
"""When the server ends after it has sent half of its state."""


BEGUN_ALONE_US = 300_000
"""How long the fault waits for a handoff, and for the server that begins with it."""

BEGUN_ALONE_GIVES_US = (1_000, 12_000)
"""When that server ends after it has given messages of such a grant to another consumer, which no server should."""

BEGUN_ALONE_ENDS_US = (40_000, 120_000)
"""When it ends otherwise, after it has begun. Without answers of other members it may give nothing after that time."""


LATE_ALONE_US = 150_000
"""This long after the write counts as unanswered, the next consumers come."""

LATE_SILENT_US = 1_200_000
"""How long a server hears nothing from a member that it has to remove."""


class CoreInjector(Injector):
    """The faults of any cluster, and those of bare cores only."""

    def __init__(self, scene: Scene, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(scene, left_out)
        assert isinstance(scene.cluster, CoreCluster)
        self._cluster = scene.cluster

    # ---- an older copy of the coordinator -----------------------------------------------------------

    def _all_are_ready(self) -> bool:
        return all(
            broker.process is not None and broker.process.core.ready for broker in self._cluster.brokers.values()
        )

    def _go_back(self) -> None:
        """The coordinator is away, and comes back with an earlier state of its records."""
        coordinator = self._cluster.coordinator
        coordinator.is_down = True
        back_us = self._rng.randint(20_000, 200_000)
        share = self._rng.choice((0.0, 0.3, 1.0))
        for broker in self._cluster.brokers.values():
            if self._rng.random() < share:
                self._schedule.after(self._rng.randint(0, back_us), self._end_unless_fresh, broker)
        self._schedule.after(back_us, self._restored)

    def _end_unless_fresh(self, broker: Broker) -> None:
        """A process ends and is back soon, unless a chain was written just now, and few disks have that (ADR 0026)."""
        if self._schedule.now_us - self._cluster.coordinator.chain_written_us < TOLD_US:
            self._scene.judge.seen.states.add("spared: a record is fresh")
        else:
            self.crash_and_return(broker)

    def _restored(self) -> None:
        coordinator = self._cluster.coordinator
        is_empty = self._rng.random() < 0.25
        snapshot = None if is_empty or not self._snapshots else self._rng.choice(self._snapshots)
        self._tell("the coordinator is back, empty" if snapshot is None else "an older copy of the coordinator is back")
        coordinator.records.restore(snapshot)
        self._scene.judge.rules.operations.went_back(self._scene.people.paused(), self._scene.people.cursor)
        self._scene.judge.seen.waits_for_rebuild = True
        coordinator.is_down = False
        for broker in self._cluster.brokers.values():
            self._schedule.after(self._rng.randint(1_000, 800_000), self._noticed, broker)
        for _ in range(self._rng.choice((0, 1, 2))):
            self._schedule.after(self._rng.randint(0, 300_000), self._complain, 1)
        self._schedule.after(self._rng.randint(100_000, 1_500_000), self._rebuild)

    def _noticed(self, broker: Broker) -> None:
        """The broker could not reach the coordinator, and can again."""
        if broker.process is not None:
            broker.process.deliver(ev.CompareChains())

    def _rebuild(self) -> None:
        processes = [broker.process for broker in self._cluster.brokers.values()]
        ready = [process for process in processes if process is not None and process.core.ready and not process.frozen]
        if len(ready) < len(processes):
            self._schedule.after(20_000, self._rebuild)
            return
        if any(process.core.state.coordinator.behind for process in ready):
            self._scene.judge.seen.states.add("coordinator behind")
        self._cluster.coordinator.rebuild(ready)
        self._snapshots.clear()
        # Brokers notice it when they look at the coordinator. Until then a server may still follow an older cursor.
        for process in ready:
            self._schedule.after(self._rng.randint(0, COORDINATOR_TIMEOUT_US), process.deliver, ev.CoordinatorRebuilt())
        self._schedule.after(COORDINATOR_TIMEOUT_US + 1, self._all_have_noticed)

    def _all_have_noticed(self) -> None:
        self._is_restoring = False
        self._scene.judge.rules.operations.rebuilt(self._scene.people.cursor)

    def inject_needless_rebuild(self) -> None:
        """An administrator rebuilds a coordinator that has lost nothing, while a cursor is written without an
        answer."""

        def late(process: Process) -> None:
            self._cluster.coordinator.on_late = None
            self._tell(f"{process.name} reads that the coordinator was rebuilt, and nothing was lost")
            self._schedule.after(self._rng.randint(0, COORDINATOR_TIMEOUT_US), process.deliver, ev.CoordinatorRebuilt())

        self._cluster.coordinator.on_late = late

    def inject_late_alone(self) -> None:
        """A cursor is written without an answer. All consumers of the groups by key end, and as many come soon."""

        def late(process: Process) -> None:
            self._cluster.coordinator.on_late = None
            self._tell(f"{process.name} gets no answer, and all its consumers end")
            population = self._scene.population
            for consumer in population.consumers:
                if consumer.alive and consumer.group in population.keyed_groups:
                    consumer.crash()
                    back_us = COORDINATOR_TIMEOUT_US + self._rng.randint(1_000, LATE_ALONE_US)
                    self._schedule.after(back_us, population.replace_consumer, consumer.group, consumer.partition)

        self._cluster.coordinator.on_late = late

    def inject_late_and_silent(self) -> None:
        """A cursor is written without an answer by a server that must remove a silent member before it may deliver.

        1  the server writes the cursor, which is carried out late; it hears nothing from one other eligible member
        2  it does not reach the coordinator at first, so it reads the old cursor when it may not deliver any more
        3  it does not reach the coordinator again: it removes the silent member after the cursor has moved
        """

        def late(process: Process) -> None:
            self._cluster.coordinator.on_late = None
            chain, _ = self._cluster.coordinator.records.chain(self._partition())
            served = [one for one in chain.segments if one.server.broker == process.name] if chain is not None else []
            others = sorted({m.broker for one in served for m in one.eligible if m != one.server})
            if not others:
                return
            silent = self._rng.choice(others)
            self._tell(f"{process.name} gets no answer, and hears nothing from {silent}")
            self._scene.judge.seen.states.add("late and silent")
            self._one_way(silent, process.name, LATE_SILENT_US)
            self._isolate(silent, LATE_SILENT_US)  # otherwise it may take over
            self._isolate(process.name, COORDINATOR_TIMEOUT_US + 10_000)
            again_us = 2 * COORDINATOR_TIMEOUT_US + self._rng.randint(20_000, 80_000)
            self._schedule.after(again_us, self._isolate, process.name, self._rng.randint(100_000, 350_000))
            for after_us in range(again_us, LATE_SILENT_US, 100_000):
                self._schedule.after(after_us, self._scene.clients.break_some, 0.3)

        self._cluster.coordinator.on_late = late

    # ---- what a joining member is sent ---------------------------------------------------------------

    def inject_half_state(self) -> None:
        """A member joins and gets the first message of a server's state in time. The next one takes long.

        1  another eligible member than the server ends, and comes back
        2  the server sends it the rows of a keyed group, and everything that follows them is slow
        3  the server ends, and the member may take over
        """
        self._with_server(self._half_state)

    def _half_state(self, server: str, others: list[str]) -> None:
        other, network = self._rng.choice(others), self._cluster.network
        path = (server, other)
        if network.on_sent is not None:
            return
        self._tell(f"{other} ends; when it joins {server} again, it gets half of the state")
        self._crash_named(other)

        def sent(source: str, target: str, message: Message) -> None:
            if (source, target) == path and isinstance(message, ReplicateLedger) and message.change.is_full:
                network.on_sent = None
                network.slow_us[path] = HALF_STATE_US
                self._scene.judge.seen.states.add("half of a state")
                self._schedule.after(self._rng.randint(*HALF_STATE_ENDS_US), self._crash_named, server)

        def over() -> None:
            network.on_sent = None
            network.slow_us.pop(path, None)

        network.on_sent = sent
        self._schedule.after(HALF_STATE_US, over)

    # ---- what a server begins with -------------------------------------------------------------------

    def inject_begun_alone(self) -> None:
        """A server begins with what was handed over, and ends before any other member knows that it has begun.

        1  the server of the next segment answers that all members keep what was handed over
        2  one consumer whose grants continue there asks to join, and loses its connection before it gets the answer
        3  the server begins, and nothing that it sends to other members arrives
        4  it ends; another member takes over, or it starts again
        """
        network, clients = self._cluster.network, self._scene.clients
        if network.on_sent is not None or clients.on_told is not None:
            return

        def over() -> None:
            if network.on_sent is not None:  # no server has begun
                network.on_sent = clients.on_told = None

        network.on_sent = self._look_for_a_handoff
        self._schedule.after(BEGUN_ALONE_US, over)

    def _look_for_a_handoff(self, source: str, _target: str, message: Message) -> None:
        if not isinstance(message, HandOverKept):
            return
        chain, _ = self._cluster.coordinator.records.chain(message.partition)
        segment = chain.segment(message.segment_no) if chain is not None else None
        if segment is None or segment.server.broker != source:
            return  # another member that keeps it answers
        of = message.consumer_group, message.partition
        readers = [one for one in self._scene.population.consumers if one.alive and (one.group, one.partition) == of]
        carrying = [one for one in readers if isinstance(one, SimKeyedConsumer) and one.carried]
        others = [member.broker for member in segment.eligible if member != segment.server]
        if carrying and len(readers) > 1 and others:
            self._begin_alone(source, others, message, self._rng.choice(carrying))

    def _begin_alone(self, server: str, others: list[str], kept: HandOverKept, lost: SimKeyedConsumer) -> None:
        network, clients = self._cluster.network, self._scene.clients

        def ends() -> None:
            if clients.on_told is told:
                clients.on_told = None
                self._crash_named(server)

        def told(source: str, stream: Stream, event: DeliveryEvent) -> None:
            if source == server and isinstance(event, Joined) and lost.has(stream):
                clients.break_stream(stream)
            elif source == server and isinstance(event, Granted) and not lost.carried.isdisjoint(event.offsets):
                self._schedule.after(self._rng.randint(*BEGUN_ALONE_GIVES_US), ends)

        def sent(source: str, _target: str, message: Message) -> None:
            if source != server or not isinstance(message, ReplicateLedger):
                return
            cursor = message.cursor
            if (cursor.segment_no, cursor.consumer_group) == (kept.segment_no, kept.consumer_group):
                self._tell(f"{server} begins with {cursor.consumer_group}, reaches neither {others} nor {lost.name}")
                self._scene.judge.seen.states.add("begun alone")
                network.on_sent = None
                for other in others:
                    self._one_way(server, other, 2 * BEGUN_ALONE_ENDS_US[1])
                self._schedule.after(self._rng.randint(*BEGUN_ALONE_ENDS_US), ends)

        clients.on_told, network.on_sent = told, sent

    # ---- consumer groups ----------------------------------------------------------------------------

    def inject_late_operation(self) -> None:
        """A rewind is written late, without an answer; meanwhile its server may be cut off, and another one serve."""
        scene = self._scene
        partition = self._partition()
        chain, _ = self._cluster.coordinator.records.chain(partition)
        group = self._rng.choice(scene.population.groups)
        record, _ = self._cluster.coordinator.records.cursor(partition, group)
        segment = chain.segment(record.segment_no) if chain is not None and record is not None else None
        if segment is None:
            return
        server = segment.server.broker
        self._cluster.coordinator.late_next[server] = self._rng.randint(
            COORDINATOR_TIMEOUT_US, COORDINATOR_TIMEOUT_US + 600_000
        )
        self._tell(f"what {server} writes next of {group} comes late")
        scene.people.move_back(partition, group, self._rng)
        if self._rng.random() < 0.6:
            others = [name for name in sorted(scene.cluster.brokers) if name != server]
            self._schedule.after(self._rng.randint(20_000, 60_000), self._island, [server], others, True)
            for after_us in (300_000, 420_000):  # later than what is taken for silence
                self._schedule.after(after_us, scene.clients.break_some, 0.7)

    # ---- retention ----------------------------------------------------------------------------------

    def inject_trim(self) -> None:
        """The master of the open segment decides to drop all messages before some place, however young they are."""
        rng = self._rng
        partition = self._partition()
        known, _ = self._cluster.coordinator.records.chain(partition)
        process = self._cluster.brokers[known.open_segment.master.broker].process if known is not None else None
        part = process.core.partitions.get(partition) if process is not None else None
        log = part.open_log() if part is not None else None
        if process is None or part is None or part.chain is None or log is None:
            return
        chain = part.chain
        settled = [segment.no for segment in chain.segments if chain.settled_before(segment.no)]
        no = rng.choice((*settled, settled[-1], settled[-1]))
        start = None
        if no == chain.open_segment.no and log.flushed > log.start:
            index = rng.randint(log.start, log.flushed - 1)
            place = process.broker.disk.find(partition, no, log.flushed, Measure.INDEX, index)
            if place is not None and place.index > log.start:
                start = Start(place.index, place.previous_checksum, place.bytes_before)
        self._scene.delayed.spare(process, chain, no, start, partial(self._trim, process, chain))

    def _trim(self, process: Process, chain: Chain, no: int, start: Start | None) -> None:
        """Drop all before a place."""
        rng, partition = self._rng, chain.partition
        records = self._cluster.coordinator.records
        readers = [
            retention.Reader(group, record.segment_no, make_offset(record.segment_no, record.start_index))
            for of, group, record in records.cursors()
            if of == partition and not record.deleted
        ]
        kept = retention.first_kept(chain, no, readers)
        self._tell(f"{process.name} trims {partition} before {no}:{start.first if start else 0}, keeps from {kept} on")
        event = ev.Trim(partition, chain.epoch, no, start, kept, records.revision)
        self._schedule.after(rng.choice((0, 1_000, 30_000)), process.deliver, event)
        for reader in readers:
            if reader.segment_no < chain.open_segment.no:  # it may be a stub by then
                passed = ev.PassConsumerGroup(partition, reader.segment_no, reader.consumer_group)
                self._schedule.after(rng.randint(0, 150_000), process.deliver, passed)
