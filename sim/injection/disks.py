"""Faults of disks: slow, hung, full, or replaced by an older copy."""

from __future__ import annotations

from collections.abc import Callable

from seriatim_api.ids import RunId

from ..basics.interfaces import Broker
from .strikes import Strikes

HANG_US_MORE = 2_000_000
"""A hang that outlasts the other faults ends this long after the time that a run may take to continue without the
disk."""

CONTRADICTED_US_MORE = 600_000
"""A member comes back this long after the time for which a started disk waits for it: others have switched by then."""


class DiskFaults(Strikes):
    """The faults of disks."""

    def inject_slow_disk(self) -> None:
        """Each flush of a disk takes longer."""
        broker = self._victim()
        self._tell(f"the disk of {broker.name} is slow")
        broker.slow_until_us = self._schedule.now_us + self._outage_us()

    def inject_hung_disk(self) -> None:
        """A disk completes no write: for a moment, or until long after all else has healed. One disk at a time."""
        scene, broker = self._scene, self._victim()
        if scene.health.hung_brokers():
            return
        options = self._options
        rest_us = options.fault_span_us + options.drain_us + scene.population.backlog_us() + HANG_US_MORE
        moment_us = self._rng.randint(200_000, 1_500_000)
        hang_us = self._rng.choice((moment_us, rest_us))
        if not self._copies_are_in_sync():
            hang_us = moment_us
        self._tell(f"the disk of {broker.name} hangs for {hang_us / 1e6:.1f} s")
        broker.hung_until_us = self._schedule.now_us + hang_us

    def _copies_are_in_sync(self) -> bool:
        """Whether no copy of a segment is damaged or lost. If the other one hangs to the end too, none is left."""
        return not self._scene.health.lacks_copies

    def inject_full_disk(self) -> None:
        """A disk has reached its reserve, or all disks of a broker group have, until long after all else has healed."""
        scene, victim = self._scene, self._victim()
        if scene.health.full_brokers():
            return
        mates = [broker for broker in scene.cluster.brokers.values() if broker.group == victim.group]
        for broker in mates if self._rng.random() < 0.3 else [self._rng.choice(mates)]:
            self._fill(broker)

    def _fill(self, broker: Broker) -> None:
        scene = self._scene
        options = self._options
        rest_us = options.fault_span_us + options.drain_us + scene.population.backlog_us() + HANG_US_MORE
        self._tell(f"the disk of {broker.name} is full for {rest_us / 1e6:.1f} s")
        broker.full_since_us = self._schedule.now_us
        broker.full_until_us = self._schedule.now_us + rest_us
        self._look_for_room(broker)
        self._schedule.after(rest_us + 1, self._look_for_room, broker)

    def _look_for_room(self, broker: Broker) -> None:
        if broker.process is not None:
            broker.process.look_for_room()

    def inject_older_disk(self) -> None:
        """The disk of a member of the open segment is copied, and a moment later the copy takes its place. Once.

        Both members end, and are back within the time that the first one waits for the second.
        """
        self._older_disk(lambda _older: self._rng.randint(5_000, 120_000))

    def inject_contradicted(self) -> None:
        """The same, but the other members come back long after the copy has decided alone."""
        late_us = self._scene.setting.config.second_member_us + CONTRADICTED_US_MORE
        self._older_disk(lambda is_older: self._rng.randint(5_000, 60_000) + (0 if is_older else late_us))

    def _older_disk(self, back_us: Callable[[bool], int]) -> None:
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        if chain is None or self._scene.judge.seen.graveyard:
            return
        segment = chain.open_segment
        brokers = [self._scene.cluster.brokers[member.broker] for member in segment.members]
        older = self._rng.choice(brokers)
        copy, run = older.disk.twin(), older.run
        self._tell(f"the disk of {older.name} is copied")

        def put_back() -> None:
            now = self._scene.cluster.coordinator.records.chain(chain.partition)[0]
            is_same = now is not None and now.open_segment.no == segment.no
            if self._healing or not is_same or older.run != run or any(broker.process is None for broker in brokers):
                return
            if self._scene.judge.seen.graveyard:  # both members with older copies cannot be told apart (ADR 0030)
                return
            self._tell(f"{[broker.name for broker in brokers]} end, and {older.name} gets its older copy")
            for broker in brokers:
                assert broker.process is not None
                self._end(broker, broker.process)
            self._scene.judge.seen.graveyard.append((older.member, older.disk.durable.twin()))
            self._scene.judge.seen.states.add("older disk")
            copy.crash(0)
            older.disk = copy
            waits = [back_us(broker is older) for broker in brokers]
            if max(waits) > self._scene.setting.config.second_member_us:
                self._scene.judge.seen.contradicted[chain.partition, segment.no] = 0
            for broker, wait_us in zip(brokers, waits, strict=True):
                self._schedule.after(wait_us, self._restart, broker)

        self._schedule.after(self._rng.randint(20_000, 250_000), put_back)

    def restart_hung(self, broker: Broker) -> None:
        """A supervisor ends a process whose disk hangs. The next one can begin no run before the disk continues."""
        process = broker.process
        if process is None:
            return
        self._tell(f"{broker.name} is ended by its supervisor, because its disk hangs")
        run = RunId(broker.member, broker.run)
        self._end(broker, process)
        self._scene.cluster.coordinator.certify(run)
        self._restart(broker)
