"""Faults of clusters of bare cores: an older copy of the coordinator, late operations, and retention by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seriatim_api.ids import make_offset
from seriatim_broker.core.control import retention
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.messages import Message, ReplicateLedger
from seriatim_broker.core.values.positions import Measure
from seriatim_broker.core.values.segment import Start

from ..injecting import Injector
from .brokers import Broker, Process
from .coordinator import TIMEOUT_US

if TYPE_CHECKING:
    from .cluster import CoreCluster

TOLD_US = 80_000
"""Within this time a record is told to the members that must know it, and is on their disks."""

HALF_STATE_US = 1_000_000
"""How long a member takes to join again at the most, and how slow the link is then."""

HALF_STATE_ENDS_US = (10_000, 40_000)
"""When the server ends after it has sent half of its state."""


class CoreInjector(Injector):
    """The faults of any cluster, and those of bare cores only."""

    def __init__(self, cluster: CoreCluster, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(cluster.world, left_out)
        self._cluster = cluster

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
            self._world.judge.seen.states.add("spared: a record is fresh")
        else:
            self.crash_and_return(broker)

    def _restored(self) -> None:
        coordinator = self._cluster.coordinator
        is_empty = self._rng.random() < 0.25
        snapshot = None if is_empty or not self._snapshots else self._rng.choice(self._snapshots)
        self._tell("the coordinator is back, empty" if snapshot is None else "an older copy of the coordinator is back")
        coordinator.records.restore(snapshot)
        self._world.judge.seen.waits_for_rebuild = True
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
            self._world.judge.seen.states.add("coordinator behind")
        self._cluster.coordinator.rebuild(ready)
        self._snapshots.clear()
        # Brokers notice it when they look at the coordinator. Until then a server may still follow an older cursor.
        for process in ready:
            self._schedule.after(self._rng.randint(0, TIMEOUT_US), process.deliver, ev.CoordinatorRebuilt())
        self._schedule.after(TIMEOUT_US + 1, self._all_have_noticed)

    def _all_have_noticed(self) -> None:
        self._is_restoring = self._world.judge.seen.waits_for_rebuild = False

    def inject_needless_rebuild(self) -> None:
        """A person rebuilds a coordinator that has lost nothing, while a cursor is written without an answer."""

        def late(process: Process) -> None:
            self._cluster.coordinator.on_late = None
            self._tell(f"{process.name} reads that the coordinator was rebuilt, and nothing was lost")
            self._schedule.after(self._rng.randint(0, TIMEOUT_US), process.deliver, ev.CoordinatorRebuilt())

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
                self._world.judge.seen.states.add("half of a state")
                self._schedule.after(self._rng.randint(*HALF_STATE_ENDS_US), self._crash_named, server)

        def over() -> None:
            network.on_sent = None
            network.slow_us.pop(path, None)

        network.on_sent = sent
        self._schedule.after(HALF_STATE_US, over)

    # ---- consumer groups ----------------------------------------------------------------------------

    def inject_late_operation(self) -> None:
        """A rewind is written late, without an answer; meanwhile its server may be cut off, and another one serve."""
        world = self._world
        partition = self._partition()
        chain, _ = self._cluster.coordinator.records.chain(partition)
        group = self._rng.choice(world.groups)
        record, _ = self._cluster.coordinator.records.cursor(partition, group)
        segment = chain.segment(record.segment_no) if chain is not None and record is not None else None
        if segment is None:
            return
        server = segment.server.broker
        self._cluster.coordinator.late_next[server] = self._rng.randint(TIMEOUT_US, TIMEOUT_US + 600_000)
        self._tell(f"what {server} writes next of {group} comes late")
        world.people.move_back(partition, group, self._rng)
        if self._rng.random() < 0.6:
            others = [name for name in sorted(world.brokers) if name != server]
            self._schedule.after(self._rng.randint(20_000, 60_000), self._island, [server], others, True)
            for after_us in (300_000, 420_000):  # later than what is taken for silence
                self._schedule.after(after_us, world.clients.break_some, 0.7)

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
