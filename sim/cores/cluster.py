"""A cluster of bare cores: the simulator itself is the runtime, the controller and the supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.control.controller import plan_growth, plan_heals
from seriatim_broker.core.values.chain import Chain, Opening, Seal, seal_and_open
from seriatim_broker.core.values.effects import Resolved
from seriatim_broker.core.values.events import CertificateSeen, CreatePartition, CursorRecord, DirectoryChanged
from seriatim_broker.core.values.log import Preparation, PutPreparation
from seriatim_broker.core.values.producers import NO_TABLE
from seriatim_broker.core.values.segment import Segment

from ..basics.interfaces import WALL_MS_START
from ..basics.schedule import Violation
from ..basics.setting import Setting
from ..judge import Judge
from ..scene import Scene
from .brokers import Broker
from .coordinator import SimCoordinator
from .network import Network

CREATE_US_MAX = 5_000_000
CONTROL_US = 150_000


class CoreCluster:
    """Brokers that are a core each."""

    linked_us = 400_000
    event_count_max = 200_000
    look = None
    is_busy = False

    network: Network
    coordinator: SimCoordinator

    scene: Scene

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.schedule = setting.schedule
        self.brokers: dict[str, Broker] = {}
        for name, group in setting.slots():
            self.brokers[name] = Broker(self, name, group, setting.new_incarnation())

    def connect(self, judge: Judge) -> None:
        """Make the network and the coordinator."""
        setting = self.setting
        self.network = Network(
            setting.schedule, setting.options, self.brokers, setting.distances, judge.seen.states, setting.forms
        )
        self.coordinator = SimCoordinator(setting.schedule, setting.options, self.brokers, judge)
        self.coordinator.tidies = setting.updates.random() < 0.5

    def enter(self, scene: Scene) -> None:
        """All parts of the world are there."""
        self.scene = scene

    def running(self) -> AbstractContextManager[None]:
        """Nothing surrounds a run."""
        return nullcontext()

    def first_brokers(self) -> Iterator[Broker]:
        """All."""
        return iter(self.brokers.values())

    def directory(self) -> DirectoryChanged:
        """The admitted members, by group, and the runs that they registered last."""
        groups: dict[str, list[Broker]] = {}
        for broker in self.brokers.values():
            groups.setdefault(broker.group, []).append(broker)
        return DirectoryChanged(
            tuple((group, tuple(broker.member for broker in members)) for group, members in sorted(groups.items())),
            tuple((broker.member, broker.run) for broker in self.brokers.values() if broker.run),
            forms=self.setting.forms,
        )

    # ---- certificates that are a fault --------------------------------------------------------------

    def others_dismiss(self, run: RunId) -> bool:
        """Whether all other brokers have read the certificate of a run: they read it at once."""
        return run in self.scene.judge.seen.certified_falsely

    def tell_false_certificates(self) -> None:
        """Each broker that has not read one of the false certificates reads it now."""
        for run in list(self.scene.judge.seen.certified_falsely):
            for broker in list(self.brokers.values()):
                if broker.process is not None:
                    broker.process.deliver(CertificateSeen(run))

    # ---- what the controller does -------------------------------------------------------------------

    def control(self) -> None:
        """What the controller does about lost disks: have their segments copied to present ones."""
        scene = self.scene
        dead = {member for member, _ in scene.judge.seen.graveyard}
        live: dict[str, list[MemberId]] = {}
        for broker in self.brokers.values():
            if broker.process is not None and not broker.process.frozen:
                live.setdefault(broker.group, []).append(broker.member)
        copies = self.setting.options.member_count
        for partition in self.setting.partitions:
            if self.setting.options.grows:
                self._grow(scene.copies.chain(partition), live)
            for heal in plan_heals(scene.copies.chain(partition), dead, live, live, copies=copies, min_copies=2):
                name = self.schedule.rng.choice([member.broker for members in live.values() for member in members])
                process = self.brokers[name].process
                assert process is not None
                self.schedule.tell("control", f"heal {heal.partition}:{heal.segment_no} on {heal.member} at {name}")
                process.deliver(heal)
        self.schedule.after(CONTROL_US, self.control)

    def _grow(self, chain: Chain, live: dict[str, list[MemberId]]) -> None:
        """Have the open segment get the members that it lacks, as the controller does in the only group of three."""
        processes = {name: broker.process for name, broker in self.brokers.items()}
        apart = {
            frozenset({one.broker, other.broker})
            for members in live.values()
            for one in members
            for other in members
            if one != other and not processes[one.broker].core.state.is_linked(other)  # type: ignore[union-attr]
        }
        self.scene.judge.rules.growth.look(apart)
        move = plan_growth(chain, live, self.setting.options.member_count, {name for pair in apart for name in pair})
        if move is not None:
            process = processes[move.master.broker]
            self.schedule.tell("control", f"members for {move.partition}:{move.segment_no}")
            if process is not None:
                process.deliver(move)

    def create(self) -> None:
        """Make the partitions, and perhaps give their chains a long past."""
        scene = self.scene
        scene.draining.run_until(20_000)
        for partition in self.setting.partitions:
            self._ask_to_create(partition)
        while any(self.coordinator.records.chain(partition)[0] is None for partition in self.setting.partitions):
            scene.draining.run_until(self.schedule.now_us + 2_000)
            if self.schedule.now_us > CREATE_US_MAX:
                raise Violation("I13", "the partitions were never created")
        if self.setting.options.old_segments:
            self._grow_old()

    def _ask_to_create(self, partition: PartitionId) -> None:
        """Ask some broker, and again if it says so: between members far from each other it may take too long once."""
        scene = self.scene
        process = self.brokers[self.schedule.rng.choice(sorted(self.brokers))].process
        assert process is not None
        groups = sorted({broker.group for broker in self.brokers.values()})
        order = tuple(self.schedule.rng.sample(groups, len(groups)))

        def answered(answer: Resolved) -> None:
            if answer.error is not None and self.coordinator.records.chain(partition)[0] is None:
                scene.judge.seen.states.add("asked again to create")
                self._ask_to_create(partition)

        request = scene.clients.ask(None, answered)
        process.deliver(CreatePartition(request, partition, "topic", partition - 1, self.setting.options.flush, order))

    def _grow_old(self) -> None:
        """While no broker runs, the chains get a long past: empty segments, on one group after the other.

        The last one is open under an attempt that an earlier run prepared, so the members fence it and move on.
        """
        for broker in self.brokers.values():
            process = broker.process
            assert process is not None
            process.leave_network(silent=False)
            process.end()
            broker.disk.crash(broker.disk.pending_count)
        for partition in self.setting.partitions:
            self._give_past(partition)
        for broker in self.brokers.values():
            for run in range(1, broker.run + 1):
                self.coordinator.records.write_certificate(RunId(broker.member, run))
            broker.start()

    def _give_past(self, partition: PartitionId) -> None:
        seen, rng = self.scene.judge.seen, self.schedule.rng
        chain, _ = self.coordinator.records.chain(partition)
        assert chain is not None
        groups = sorted({broker.group for broker in self.brokers.values()})
        past: list[Segment] = []
        for number in range(self.setting.options.old_segments):
            group = groups[number % len(groups)]
            members = tuple(broker.member for broker in self.brokers.values() if broker.group == group)
            turned = (*members[number % len(members) :], *members[: number % len(members)])
            opening = Opening(rng.randbytes(16), group, turned, 1, incomplete_table=False)
            old = chain.open_segment
            seen.sealed[partition, old.no] = (0, 0)
            chain = seal_and_open(chain, Seal(0, 0, old.server, old.members, None, (), 0), opening, WALL_MS_START)
            past.append(replace(chain.segments[-2], folded=0))  # none has left, as if something had kept each of them
        chain = replace(chain, segments=(*past, chain.open_segment))
        self.coordinator.records.put_chain(chain)
        for segment in chain.segments[-3:]:  # their tables may be asked for, those of all others are forgotten
            prepared = Preparation(
                segment.no,
                segment.switch_attempt,
                segment.members,
                chain.flush,
                incomplete_table=False,
                table=NO_TABLE,
                tail=None,
                member_run=1,
            )
            for member in segment.members:
                disk = self.brokers[member.broker].disk
                disk.flush(disk.submit([PutPreparation(partition, prepared)]))
        seen.history[partition].append(chain)
        for group in ("early", "late"):
            first = chain.open_segment.no - rng.randint(0, 5)
            self.coordinator.records.write_cursor(partition, group, CursorRecord(first, 1, 0, chain.topic), 0)

    # ---- the end ------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Nothing but what the world sees itself."""
        return []

    def finish(self) -> None:
        """There is nothing more to check."""
