"""Faults that only complete brokers can meet: clocks, the coordinator's history and leases, older copies, stops."""

from __future__ import annotations

import random
from collections.abc import Iterable

from seriatim_api.ids import PartitionId, RunId
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.testing.adapter_storage import AdapterDisk

from ..injection import Injector
from ..scene import Scene
from .brokers import RuntimeBroker, RuntimeProcess, serves
from .cluster import WholeCluster
from .coordinator import Snapshot
from .operator import NEEDED_SHARE, BrokerGroupOperator
from .rebuilds import NOTICED_US

AWAY_US = (100_000, 400_000)
"""For this long the coordinator is away before an older copy of it comes back: nothing is under way to it any more."""

EMPTY_SHARE = 0.25
"""Of the times that it goes back, so often it comes back empty."""

EARLY_SHARE = 0.4
"""So often the administrator comes before all brokers have noticed."""

UNNOTICED_US = (20_000, 200_000)
"""This long after an older copy came back, most brokers have not noticed it."""

ALONE_LOOK_US = 1_000
"""How often it is looked whether one broker alone knows what it wrote."""

TOLD_US = 80_000
"""Within this time a broker that reports a record has reported it, over every link that is up."""

NOTED_US = 30_000
"""This long after a broker was asked to note the watermark of its disk, it has usually done so."""

STOP_US_MAX = 4_000_000
"""How long an orderly stop may take before its supervisor kills the process."""

NEEDED_US_MAX = 400_000

NEEDED_LOOK_US = 1_000
"""`inject_gated_roll` looks every `NEEDED_LOOK_US` for a broker that must not be stopped, and asks about another one
after `NEEDED_US_MAX`."""

ONE_ENDS_US = 3_000_000
"""This long after everything has healed, of two processes with one directory only one may run."""


class RuntimeInjector(Injector):
    """The faults of bare cores and, with `inject_...` below, those of `faults.kinds.RUNTIME_KINDS`."""

    def __init__(self, scene: Scene, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(scene, left_out)
        assert isinstance(scene.cluster, WholeCluster)
        self._cluster = scene.cluster
        self._flipped: set[tuple[PartitionId, int]] = set()

    def heal(self) -> None:
        """Undo all faults, also those of complete brokers only."""
        for broker in self._cluster.brokers.values():
            if broker.process is not None:
                broker.process.clock.stalls_us_max = 0
        super().heal()
        for broker in self._cluster.displaced:
            if broker.process is not None and broker.process.frozen:
                broker.process.thaw()
        self._schedule.after(ONE_ENDS_US, self._cluster.check_one_ends)

    def inject_remake_topic(self) -> None:
        """The topic is deleted and made again under its name; clients of the old one are not notified."""
        if not self._healing and not self._cluster.topics.is_busy:
            self._tell("the topic is deleted, and made again")
            self._cluster.topics.remake()

    def inject_grow_topic(self) -> None:
        """The topic gets one more partition."""
        if not self._healing and not self._cluster.growth.is_busy:
            self._tell("the topic grows")
            self._cluster.growth.grow()

    # ---- an older copy of the coordinator ----

    def _all_are_ready(self) -> bool:
        return all(serves(broker.process) and not broker.process.frozen for broker in self._brokers())

    def inject_restore(self) -> None:
        """As with bare cores; or when one broker alone knows what it wrote, because the answer was lost."""
        if self._options.restores_when_alone:
            self._restore_when_alone()
        else:
            super().inject_restore()

    def _restore_when_alone(self) -> None:
        """Wait until a broker alone has read its own transaction. It runs on for `TOLD_US`, and then ends.

        No broker else can read the record: the coordinator is away at once, and comes back as it was before.
        """
        if self._healing or self._is_restoring:
            return
        found = self._alone() if self._all_are_ready() else None
        if found is None:
            self._schedule.after(ALONE_LOOK_US, self._restore_when_alone)
            return
        broker, snapshot = found
        self._is_restoring = True
        self._tell(f"{broker.name} alone knows what it wrote; the coordinator is away")
        self._scene.judge.seen.states.add("known to one")
        self._cluster.coordinator.is_down = True
        self._schedule.after(TOLD_US, self.crash, broker)
        self._schedule.after(TOLD_US + self._rng.randint(*AWAY_US), self._is_back, snapshot)

    def _alone(self) -> tuple[RuntimeBroker, Snapshot] | None:
        """A broker that alone knows the newest segment, which it opened itself, and a snapshot without that segment."""
        coordinator = self._cluster.coordinator
        for partition in self._scene.setting.partitions:
            chain, _ = coordinator.chain(partition)
            knowing = self._knowing(partition)
            older = [
                snapshot
                for snapshot in self._snapshots
                if chain is not None
                and partition in snapshot[1]
                and snapshot[1][partition][0].open_segment.no < chain.open_segment.no
            ]
            if chain is None or len(knowing) != 1 or not older:
                continue
            (broker,) = knowing
            assert broker.process is not None
            assert broker.process.watched is not None
            writes = broker.process.watched.core.partitions[partition].writes.values()
            is_own = coordinator.writers[partition] == broker.name and any(
                sent.epoch == chain.epoch for _, _, sent in writes
            )
            # Another broker may have opened it, and this one read that and changed an older segment, and reported no
            # other.
            before = self._scene.judge.seen.history[partition][-2:-1]
            if is_own and before and before[0].open_segment.no < chain.open_segment.no:
                return broker, older[-1]
        return None

    def _knowing(self, partition: PartitionId) -> list[RuntimeBroker]:
        """The running brokers that know which segment of a partition is open."""
        chain, _ = self._cluster.coordinator.chain(partition)
        found: list[RuntimeBroker] = []
        for broker in self._brokers():
            watched = broker.process.watched if broker.process is not None else None
            part = watched.core.partitions.get(partition) if watched is not None else None
            known = part.decided if part is not None else None
            if chain is not None and known is not None and known.open_segment.no >= chain.open_segment.no:
                found.append(broker)
        return found

    def _go_back(self) -> None:
        """As with bare cores. If it comes back empty, no broker starts before the rebuild: it would be refused.

        Otherwise at most one member of each broker group restarts, and none that alone knows a lost decision. If all
        brokers that know it restart, a switcher that does not know it may open its number again before it hears from
        them (ADR 0026).
        """
        self._cluster.coordinator.is_down = True
        back_us = self._rng.randint(*AWAY_US)
        is_empty = self._rng.random() < EMPTY_SHARE
        snapshot = None if is_empty or not self._snapshots else self._rng.choice(self._snapshots)
        share = self._rng.choice((0.0, 0.5, 1.0)) if snapshot is not None else 0.0
        for group in sorted({broker.group for broker in self._brokers()}):
            broker = self._rng.choice([broker for broker in self._brokers() if broker.group == group])
            if self._rng.random() < share:
                self._schedule.after(self._rng.randint(0, back_us), self._end_unless_alone, broker)
        self._schedule.after(back_us, self._is_back, snapshot)

    def _end_unless_alone(self, broker: RuntimeBroker) -> None:
        """A process ends and is back soon, unless no other one knows which segment is open."""
        if any(self._knowing(partition) == [broker] for partition in self._scene.setting.partitions):
            self._scene.judge.seen.states.add("spared: known to one")
        else:
            self.crash_and_return(broker)

    def _is_back(self, snapshot: Snapshot | None) -> None:
        scene = self._scene
        self._tell("the coordinator is back, empty" if snapshot is None else "an older copy of the coordinator is back")
        scene.judge.seen.states.add("coordinator empty" if snapshot is None else "coordinator older")
        self._cluster.person.note_seen()
        self._cluster.coordinator.restore_snapshot(snapshot)
        scene.judge.rules.operations.went_back(scene.people.paused(), scene.people.cursor)
        scene.judge.seen.waits_for_rebuild = True
        scene.cluster.coordinator.is_down = False
        for _ in range(self._rng.choice((0, 1, 2))):
            self._schedule.after(self._rng.randint(0, 300_000), self._complain, 1)
        if self._options.revisions_again:
            self._schedule.after(self._rng.randint(*UNNOTICED_US), self._rebuild)
        elif self._rng.random() < EARLY_SHARE:
            self._schedule.after(self._rng.randint(100_000, NOTICED_US), self._rebuild)
        else:
            self._schedule.after(NOTICED_US + self._rng.randint(1, 1_000_000), self._rebuild, True)

    def _rebuild(self, have_looked: bool = False) -> None:
        """An administrator rebuilds; with `have_looked` only after all brokers have had the time to look."""
        if have_looked:
            self._cluster.person.check_alarm()
        self._cluster.person.rebuild(self._rebuilt)

    def _rebuilt(self) -> None:
        self._tell("the coordinator is rebuilt")
        self._snapshots.clear()
        self._is_restoring = False
        self._scene.judge.rules.operations.rebuilt(self._scene.people.cursor)

    def _brokers(self) -> Iterable[RuntimeBroker]:
        return self._cluster.brokers.values()

    def _victim(self) -> RuntimeBroker:
        return self._cluster.brokers[super()._victim().name]

    def inject_remake_group(self) -> None:
        """A consumer group is deleted when its consumers have ended, and made again under its name."""
        if not self._healing and not self._cluster.groups_again.is_busy:
            self._tell("a consumer group is deleted, and made again")
            self._cluster.groups_again.remake()

    def inject_starve(self) -> None:
        """A process gets little of its processor: each of its steps takes long."""
        process = self._victim().process
        if process is None:
            return
        process.clock.stalls_us_max = self._rng.choice((300, 1_000, 3_000))
        self._tell(f"{process.name} is starved, up to {process.clock.stalls_us_max} us a step")
        self._schedule.after(self._outage_us(), self._fed_again, process)

    def _fed_again(self, process: RuntimeProcess) -> None:
        process.clock.stalls_us_max = 0

    def inject_disk_full(self) -> None:
        """A disk has reached its reserve."""
        broker = self._victim()
        self._tell(f"the disk of {broker.name} is full")
        broker.full_since_us = self._schedule.now_us
        broker.full_until_us = max(broker.full_until_us, self._schedule.now_us + self._outage_us())

    def inject_compact(self) -> None:
        """The coordinator forgets its history, under a watch that could not keep up."""
        self.inject_isolate()
        self._schedule.after(self._rng.randint(1_000, 100_000), self._compact)

    def _compact(self) -> None:
        self._tell("the coordinator's history is compacted")
        self._cluster.coordinator.compact()

    def inject_leases_end(self) -> None:
        """All leases end at once, as after a stall of the coordinator."""
        store = self._cluster.coordinator.store
        self._tell("all leases end")
        for lease in sorted(store.leases):
            store.end_lease(lease)

    def inject_older_copy(self) -> None:
        """A disk is copied; after a later run that the coordinator knows of the copy takes its place. It is refused."""
        broker = self._victim()
        if broker.put_away is not None:
            return  # an older copy is in its place already, unnoticed: it cannot reach the coordinator
        backup = broker.backup
        if (
            backup is None
            or backup[1].incarnation != broker.directory.incarnation
            or broker.joined_run <= backup[1].run
        ):
            if broker.run:
                self._tell(f"the disk of {broker.name} is copied")
                broker.backup = (broker.disk.twin(), broker.directory.twin())
            return
        self.crash(broker)
        if broker.process is None and not broker.is_replaced:
            self._tell(f"{broker.name} gets its older copy")
            broker.put_back(backup)

    def inject_recent_copy(self) -> None:
        """A disk is copied. After more writes and a note of its watermark the copy takes its place, and is refused."""
        broker = self._victim()
        process = broker.process
        if broker.put_away is not None or process is None or not process.is_serving or process.frozen:
            return
        backup = (broker.disk.twin(), broker.directory.twin())
        copied_at = process.durable_sequence
        self._tell(f"the disk of {broker.name} is copied at {copied_at}")

        def note() -> None:
            if broker.process is process and not self._healing and process.durable_sequence > copied_at:
                process.note_watermark()
                self._schedule.after(NOTED_US, put_back)

        def put_back() -> None:
            noted = self._cluster.coordinator.watermark(broker.member)
            if broker.process is not process or self._healing or noted <= copied_at or broker.put_away is not None:
                return
            self.crash(broker)
            if broker.process is None and not broker.is_replaced:
                self._tell(f"{broker.name} gets the copy of its disk, which ends at {copied_at}, below {noted}")
                self._scene.judge.seen.states.add("recent copy")
                broker.put_back(backup)

        self._schedule.after(self._rng.randint(20_000, 200_000), note)

    def inject_bit_flip(self) -> None:
        """A bit of a sealed segment changes on one disk, while the other copy is in sync and no disk is lost."""
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        sealed = [s for s in chain.segments if s.state is SegmentState.SEALED and s.sealed_len] if chain else []
        if not sealed or self._options.wipe_share or self._options.may_lose_groups:
            return
        segment = self._rng.choice(sealed)
        if (partition, segment.no) in self._flipped:
            return
        self._flipped.add((partition, segment.no))
        broker = self._cluster.brokers[self._rng.choice(segment.members).broker]
        batches = broker.disk.read(partition, segment.no, 0, segment.sealed_len or 0, 1 << 30)
        if batches and not self._scene.health.hung_brokers() and self._may_be_damaged(broker):
            base_index = self._rng.choice(batches).header.base_index
            self._tell(f"a bit flips on {broker.name} at {segment.no}:{base_index}")
            broker.disk.flip(partition, segment.no, base_index)

    def _copies_are_in_sync(self) -> bool:
        return not self._flipped and super()._copies_are_in_sync()

    def _may_be_damaged(self, broker: RuntimeBroker) -> bool:
        """Whether all other copies of the segments on this disk are complete, and stay."""
        return True

    def inject_started_copy(self) -> None:
        """A copy of a living broker's directory is started on another machine; the original may not answer it.

        At another address: the two reach each other (the copy must be refused), or they do not, or the original reaches
        no broker for some time, or it is frozen. Or the address leads to the machine of the copy, and the original
        keeps its connections.
        """
        scene, cluster, broker = self._scene, self._cluster, self._victim()
        process = broker.process
        if (
            process is None
            or not scene.health.is_calm()
            or broker.copy is not None
            or cluster.displaced
            or self._healing
        ):
            return
        how = self._rng.choice(("linked", "apart", "alone", "frozen", "moved"))
        if how != "linked" and not scene.health.may_lose_a_disk(broker):
            return
        elsewhere = f"{broker.name}'"
        if how != "linked":  # its run will be certified while it lives
            scene.health.lost_a_disk()
            scene.judge.seen.certified_falsely[RunId(broker.member, broker.run)] = None
        copy = broker.copied(broker.name if how == "moved" else elsewhere)
        broker.copy = copy
        self._tell(f"a copy of the directory of {broker.name} is started at {copy.address}: {how}")
        scene.judge.seen.states.add(f"copy started, {how}")
        scene.health.disturbed()
        if how == "moved":
            cluster.network.move_away(broker.address, elsewhere)
            broker.address = elsewhere
        elif how == "apart":
            self._cut([(elsewhere, broker.name)], both=True)
        elif how == "alone":
            others = [name for name in sorted(scene.cluster.brokers) if name != broker.name]
            self._island([broker.name], [*others, elsewhere], True)
        elif how == "frozen":
            process.freeze()
            self._schedule.after(self._outage_us(), self._thaw, process)
        self._schedule.after(self._rng.randint(0, 20_000), self._start_copy, broker, copy)

    def _start_copy(self, broker: RuntimeBroker, copy: RuntimeBroker) -> None:
        if broker.copy is copy and copy.process is None:
            copy.start()

    def _thaw(self, process: RuntimeProcess) -> None:
        if process.alive and process.frozen:
            self._tell(f"{process.name} thaws")
            process.thaw()

    def inject_roll(self) -> None:
        """A broker is stopped cleanly and started again."""
        broker = self._victim()
        if broker.process is not None:
            self.roll(broker, broker.process)

    def roll(self, broker: RuntimeBroker, process: RuntimeProcess) -> None:
        """Stop that process cleanly, if it is still the one; it is started again."""
        if broker.process is not process or process.frozen or not process.is_serving or self._healing:
            return
        self._tell(f"{broker.name} is stopped")
        process.stop(lambda: self._stopped(broker, process, "in order"))
        self._schedule.after(STOP_US_MAX, self._stopped, broker, process, "by force")

    def _stopped(self, broker: RuntimeBroker, process: RuntimeProcess, how: str) -> None:
        if broker.process is not process or not process.is_stopping:
            return
        self._tell(f"{broker.name} has stopped {how}")
        process.leave_network(silent=False)
        process.end()
        broker.refuses = True
        broker.disk.crash(broker.disk.pending_count)
        self._scene.clients.process_ended(process, silent=False)
        self._scene.cluster.coordinator.certify(RunId(broker.member, broker.run))
        self._schedule.after(self._rng.randint(5_000, 100_000), self._restart, broker)


class DisksInjector(RuntimeInjector):
    """Adds faults of the disk: a failed flush, and a flipped bit."""

    _damaged: RuntimeBroker | None = None

    def _may_be_damaged(self, broker: RuntimeBroker) -> bool:
        """One disk only: a start that finds damage is refused, and then the whole disk is replaced."""
        self._damaged = self._damaged or broker
        return broker is self._damaged

    def inject_fsync_error(self) -> None:
        """A flush fails, and the writes that it should have made durable are gone."""
        broker = self._victim()
        if broker.process is not None:
            assert isinstance(broker.disk, AdapterDisk)
            self._tell(f"the next flush of {broker.name} fails")
            broker.disk.database.fails_next_flush = True


class BrokerGroupsInjector(RuntimeInjector):
    """Adds what an operator does to broker groups."""

    @property
    def _operator(self) -> BrokerGroupOperator:
        operator = self._cluster.operator
        assert operator is not None
        return operator

    def inject_cordon(self) -> None:
        """Want no open segments on a broker group any more."""
        self._want("cordon")

    def inject_drain(self) -> None:
        """And no copies."""
        self._want("drain")

    def inject_activate(self) -> None:
        """A group is as good as any other again."""
        self._want("activate")

    def _want(self, what: str, epoch_back: int = 0) -> None:
        group = self._victim().group
        self._tell(f"an operator wants {group} to {what}" + (f", {epoch_back} Leases too late" if epoch_back else ""))
        self._operator.want(group, what, epoch_back=epoch_back)

    def inject_older_operator(self) -> None:
        """An operator that was deposed continues beside its successor."""
        self._want("activate")
        self._want("drain", epoch_back=1)

    def inject_add_group(self) -> None:
        """A group that was not there at the beginning."""
        self._operator.add_group()

    def inject_gated_roll(self) -> None:
        """A broker is stopped cleanly if the gate says that it may be; any broker is asked.

        Mostly it is one that must not be stopped, as soon as there is one: soon another broker has a copy as well.
        """
        is_aimed = self._rng.random() < NEEDED_SHARE
        self._ask_gate(self._rng, self._schedule.now_us + (NEEDED_US_MAX if is_aimed else 0))

    def _ask_gate(self, rng: random.Random, until_us: int) -> None:
        if self._healing:
            return
        needed = self._operator.needed() if self._schedule.now_us < until_us else []
        if self._schedule.now_us < until_us and not needed:
            self._schedule.after(NEEDED_LOOK_US, self._ask_gate, rng, until_us)
            return
        victim = rng.choice(needed) if needed else self._victim()
        process = victim.process
        serving = [broker.process for broker in self._cluster.brokers.values() if serves(broker.process)]
        if process is None or process.frozen or not process.is_serving or not serving:
            return
        self._operator.ask_gate(rng.choice(serving), victim.name, lambda: self.roll(victim, process))

    def heal(self) -> None:
        """Also bring all brokers back, and let at least one broker group take open segments."""
        for broker in self._cluster.brokers.values():
            broker.is_awaited = False
        super().heal()
        self._operator.settle_intents(self._rng)
