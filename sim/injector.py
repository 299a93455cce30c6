"""Faults: when they strike, which broker they hit, and how they heal.

Most victims are brokers that have a role at that moment, such as the master of an open segment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seriatim_api.ids import PartitionId, RunId
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.messages import FORM_LANE_PROBES
from seriatim_broker.core.values.segment import SegmentState

from .cluster import Broker, Process
from .faults import DISK_KINDS, GROUP_KINDS, KINDS, MORE_KINDS, RUNTIME_KINDS, SERVING_KINDS
from .serving_faults import ServingFaults

if TYPE_CHECKING:
    from .world import World

HELD_US = (1_300_000, 6_000_000)
"""For how long a consumer is cut off: longer than its session (`consumers.CONFIG`)."""

HANG_US_MORE = 2_000_000
"""A hang that outlasts the other faults ends so long after the time that a run may take to go on without the disk."""


CONTRADICTED_US_MORE = 600_000
"""A member comes back so long after the time for which a started disk waits for it: others have switched by then."""


OWN_FLUSH_US = 300_000
"""After this time a run has flushed what another member acknowledged to it before that member cut the link, or it never
will. If the directory is deleted earlier, the only copy is lost, and no broker can prevent that."""


WALL_JUMP_MS_MAX = 10_000
"""A few times the limit that a member believes (`append_time_ahead_ms_max` of `world.SIM_CONFIG`)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the plan. Its own chance decides the rest, so that leaving out another one changes little."""

    at_us: int
    kind: str
    seed: int


CONTROL_LANE, DATA_LANE = 0, 1
LANE_NAMES = ("control", "data")


REFUSAL_US_MAX = 3_000_000
"""For so long the coordinator refuses to write."""


SERVER_AWAITED_US = 400_000
SERVER_LOOK_US = 1_000
"""How long `lose_server` waits for a segment with one eligible member, and how often it looks."""


class Injector(ServingFaults):
    """Draws faults over the fault span, and undoes each of them when `heal` is called or earlier.

    Args:
        left_out: Numbers of the plan's faults that do not strike. Shrinking a failing seed leaves out faults that made
            no difference.
    """

    def __init__(self, world: World, left_out: frozenset[int] = frozenset()) -> None:
        self._left_out = left_out
        self._world = world
        self._schedule = world.schedule
        self._rng = world.schedule.rng
        self._options = world.options
        self._healing = False
        self._is_restoring = False
        self._snapshots: list[Any] = []

    def plan(self) -> None:
        """Schedule the faults."""
        weights = self._options.kinds
        every = (*KINDS, *RUNTIME_KINDS, *MORE_KINDS, *DISK_KINDS, *GROUP_KINDS, *SERVING_KINDS)
        kinds = [kind for kind in every for _ in range(weights.get(kind, 0))]
        now = self._schedule.now_us
        if weights.get("restore"):
            self.take_snapshots()
        for number in range(self._options.fault_count):
            kind = self._rng.choice(kinds)
            fault = Fault(now + self._rng.randint(0, self._options.fault_span_us), kind, self._rng.getrandbits(32))
            if number not in self._left_out:
                self._schedule.at(fault.at_us, self._inject, fault)

    def _inject(self, fault: Fault) -> None:
        if self._healing or self._is_restoring:
            return
        self._rng = random.Random(fault.seed)
        method: Callable[[], None] = getattr(self, f"inject_{fault.kind}")
        method()

    def _tell(self, text: str) -> None:
        self._schedule.mark("fault", text)
        self._schedule.tell("FAULT", text)

    def _outage_us(self) -> int:
        return self._rng.randint(5_000, self._options.outage_us_max)

    def heal(self) -> None:
        """Undo everything: all brokers run, all paths are open, every ended run is certified."""
        self._healing = True
        world = self._world
        self._tell("everything heals")
        world.coordinator.is_faulty = world.coordinator.is_down = world.coordinator.is_refusing = False
        world.coordinator.isolated.clear()
        world.network.heal_all()
        world.clients.cut.clear()
        for consumer in world.consumers:
            consumer.forget_what_is_held()
        for ended in world.past_runs:
            world.coordinator.certify(ended)
        world.cluster.tell_false_certificates()
        for broker in world.brokers.values():
            broker.slow_until_us = 0
            for run in range(1, broker.run + (0 if broker.process else 1)):
                world.coordinator.certify(RunId(broker.member, run))
            if broker.process is None:
                self._restart(broker)
            elif broker.process.frozen:
                broker.process.thaw()

    # ---- victims ------------------------------------------------------------------------------------

    def _victim(self) -> Broker:
        """A broker: mostly a member of an open segment, often its master, sometimes a server of an older one."""
        world = self._world
        chain, _ = world.coordinator.records.chain(self._partition())
        names = sorted(world.brokers)
        draw = self._rng.random()
        if chain is not None and draw < 0.7:
            segment = chain.open_segment
            if draw < 0.1 and len(chain.segments) > 1:
                segment = chain.segments[-2]
            member = segment.master if self._rng.random() < 0.5 else self._rng.choice(segment.members)
            return world.brokers[member.broker]
        return world.brokers[self._rng.choice(names)]

    def _partition(self) -> PartitionId:
        return self._rng.choice(self._world.partitions)

    def _pair(self) -> tuple[str, str]:
        first = self._victim().name
        others = [name for name in sorted(self._world.brokers) if name != first]
        if self._rng.random() < 0.5:
            others = [name for name in others if self._world.brokers[name].group == self._world.brokers[first].group]
        return first, self._rng.choice(others)

    # ---- processes ----------------------------------------------------------------------------------

    def inject_crash(self) -> None:
        """A process or its machine ends; it comes back, perhaps with another disk."""
        self.crash(self._victim())

    def inject_crash_group(self) -> None:
        """All members of a group end at nearly the same time."""
        group = self._victim().group
        for broker in self._world.brokers.values():
            if broker.group == group:
                self._schedule.after(self._rng.randint(0, 20_000), self.crash, broker)

    def inject_crash_torn(self) -> None:
        """The members of an open segment are cut from each other while batches come, and then all end."""
        chain, _ = self._world.coordinator.records.chain(self._partition())
        if chain is None:
            return
        names = [member.broker for member in chain.open_segment.members]
        pairs = [(names[0], names[1])]
        if self._rng.random() < 0.5:
            pairs.append((names[1], names[0]))
        self._tell(f"cut {pairs}, and then both end")
        self._hold(pairs, breaks=False)
        for name in names:
            self._schedule.after(self._rng.randint(5_000, 60_000), self.crash, self._world.brokers[name])

    def inject_lonely(self) -> None:
        """A server is cut off from all brokers, but not from its consumers. Some of these look for another server."""
        chain, _ = self._world.coordinator.records.chain(self._partition())
        if chain is None:
            return
        server = self._rng.choice(chain.segments[-2:]).server.broker
        others = [name for name in sorted(self._world.brokers) if name != server]
        self._cut([(server, name) for name in others], both=True)
        self._schedule.after(self._rng.randint(0, 100_000), self._world.clients.break_some, 0.4)

    def inject_two_servers(self) -> None:
        """The server of a sealed segment reaches only consumers. Some of them stay while another member takes over."""
        chain, _ = self._world.coordinator.records.chain(self._partition())
        if chain is None or len(chain.segments) < 2:
            return
        server = chain.segments[-2].server.broker
        others = [name for name in sorted(self._world.brokers) if name != server]
        self._island([server], others, is_isolated=True)
        for after_us in (300_000, 420_000):  # later than what is taken for silence
            self._schedule.after(after_us, self._world.clients.break_some, 0.5)

    def inject_held_frames(self) -> None:
        """An active consumer is cut off in silence, perhaps its server ends, another goes on; then the cut heals.

        The cut lasts longer than the session of consumers: within it late deliveries count, see docs/adr/0028.
        """
        active = [consumer for consumer in self._world.consumers if consumer.server]
        if not active:
            return
        consumer = self._rng.choice(active)
        self._tell(f"{consumer.name} is cut off, and what is sent to it is held")
        consumer.cut_off()
        if self._rng.random() < 0.6:
            ends_after_us = self._rng.randint(20_000, 200_000)
            self._schedule.after(ends_after_us, self.crash, self._world.brokers[consumer.server])

        def heal() -> None:
            if not self._healing:
                self._tell(f"{consumer.name} gets what was held")
                consumer.reach_again()

        self._schedule.after(self._rng.randint(*HELD_US), heal)

    def inject_lose_group(self) -> None:
        """All members of a broker group end, and their disks are lost for ever."""
        group = self._victim().group
        members = [broker for broker in self._world.brokers.values() if broker.group == group]
        if all(broker.process is not None for broker in members) and self._world.may_lose_a_group():
            self._tell(f"all disks of {group} are lost")
            for broker in members:
                self.crash(broker, wipes=True)

    def inject_lose_server(self) -> None:
        """The server of a sealed segment loses its disk; shortly after the seal, if it is the only eligible member."""
        self._lose_server(self._schedule.now_us + SERVER_AWAITED_US)

    def _lose_server(self, until_us: int) -> None:
        if self._healing or self._schedule.now_us > until_us:
            return
        chain, _ = self._world.coordinator.records.chain(self._partition())
        alone = [
            self._world.brokers[segment.server.broker]
            for segment in (chain.segments if chain is not None else ())
            if segment.state is SegmentState.SEALED and len(segment.eligible) == 1
        ]
        alone = [broker for broker in alone if broker.process is not None]
        if alone and self._world.may_lose_a_disk(alone[-1]):
            self.crash(alone[-1], wipes=True)
        else:
            self._schedule.after(SERVER_LOOK_US, self._lose_server, until_us)

    def inject_operate_group(self) -> None:
        """A person rewinds, skips, pauses or resumes a group."""
        self._world.people.act(self._rng)

    def crash(self, broker: Broker, *, wipes: bool = False) -> None:
        """End a process. Its disk may lose its unflushed writes from some point on, or be lost as a whole."""
        process = broker.process
        if process is None or self._healing:
            return
        machine = self._rng.random() < self._options.machine_share
        kept = self._rng.randint(0, broker.disk.pending_count)
        self._tell(f"{broker.name} ends ({'machine' if machine else 'process'}) and keeps {kept} unflushed writes")
        run = RunId(broker.member, broker.run)
        process.leave_network(silent=machine)
        process.end()
        broker.refuses = not machine
        broker.disk.crash(kept)
        broker.ended_badly(machine=machine)
        self._world.clients.process_ended(process, silent=machine)
        if self._rng.random() >= self._options.certificate_never_share and run.run:  # 0: it had not begun one
            self._schedule.after(
                self._rng.randint(1_000, self._options.certificate_us_max), self._world.coordinator.certify, run
            )
        is_lost = self._rng.random() < self._options.wipe_share and self._world.may_lose_a_disk(broker)
        if wipes or is_lost:
            broker.replace_disk()
        self._schedule.after(self._rng.randint(10_000, self._options.restart_us_max), self._restart, broker)

    def inject_false_certificate(self) -> None:
        """A run that lives is certified to have ended, and perhaps its directory is deleted soon after.

        It is linked, or cut off. Then its links come back before it reads the certificate itself.
        """
        broker, world = self._victim(), self._world
        process = broker.process
        if self._healing or process is None or not world.is_calm() or not process.run:
            return
        world.disturbed()
        if self._rng.random() < 0.5:
            self._cut([(broker.name, name) for name in sorted(world.brokers) if name != broker.name], both=True)
        is_lost = self._rng.random() < self._options.wipe_share and world.may_lose_a_disk(broker)
        own_us = self._rng.randint(20_000, 2 * self._options.outage_us_max)
        self._tell(f"{broker.name} is certified to have ended{', its directory is deleted' if is_lost else ''}")
        self._schedule.after(self._rng.randint(0, 30_000), self._certify_falsely, broker, process.run, own_us)
        if is_lost:
            self._schedule.after(OWN_FLUSH_US, self._give_up, broker, process, process.run, False)

    def _certify_falsely(self, broker: Broker, run: int, own_us: int) -> None:
        if broker.process is not None and broker.run == run:
            self._world.judge.seen.certified_falsely[RunId(broker.member, run)] = None
            self._world.coordinator.certify_falsely(RunId(broker.member, run), own_us)

    def _give_up(self, broker: Broker, process: Process, run: int, is_known: bool) -> None:
        """Delete the directory, some time after all others have read the certificate."""
        if broker.process is None or broker.process is not process or not process.alive:
            return
        if is_known:
            broker.give_up()
        else:
            is_known = self._world.cluster.others_dismiss(RunId(broker.member, run))
            self._schedule.after(OWN_FLUSH_US, self._give_up, broker, process, run, is_known)

    def _restart(self, broker: Broker) -> None:
        if broker.process is not None or self._world.brokers[broker.name] is not broker:
            return
        if broker.hung_until_us > self._schedule.now_us:
            self._schedule.at(broker.hung_until_us, self._restart, broker)  # its run's number cannot be written before
            return
        self._tell(f"{broker.name} starts again")
        for run in range(1, broker.run + 1):
            if self._rng.random() < 0.7:  # a later run of the same incarnation may say that the earlier ones ended
                self._world.coordinator.certify(RunId(broker.member, run))
        broker.refuses = True
        broker.start()

    def inject_freeze(self) -> None:
        """A process does nothing, and then goes on."""
        process = self._victim().process
        if process is None or process.frozen:
            return
        self._tell(f"{process.name} freezes")
        process.freeze()

        def thaw() -> None:
            if process.alive and process.frozen:
                self._tell(f"{process.name} thaws")
                process.thaw()

        self._schedule.after(self._outage_us(), thaw)

    def inject_clock_jump(self) -> None:
        """A wall clock is set: mostly by as much as two machines may differ, sometimes by far more."""
        process = self._victim().process
        if process is None:
            return
        jump_ms = self._rng.randint(-WALL_JUMP_MS_MAX, WALL_JUMP_MS_MAX)
        if self._rng.random() < 0.3:
            jump_ms *= 100
        self._tell(f"the wall clock of {process.name} jumps by {jump_ms} ms")
        process.jump_wall(jump_ms)

    def inject_slow_disk(self) -> None:
        """Each flush of a disk takes longer."""
        broker = self._victim()
        self._tell(f"the disk of {broker.name} is slow")
        broker.slow_until_us = self._schedule.now_us + self._outage_us()

    def inject_hung_disk(self) -> None:
        """A disk completes no write: for a moment, or until long after all else has healed. One disk at a time."""
        world, broker = self._world, self._victim()
        if world.hung_brokers():
            return
        options = self._options
        rest_us = options.fault_span_us + options.drain_us + world.backlog_us() + HANG_US_MORE
        moment_us = self._rng.randint(200_000, 1_500_000)
        hang_us = self._rng.choice((moment_us, rest_us))
        if not self._copies_are_whole():
            hang_us = moment_us
        self._tell(f"the disk of {broker.name} hangs for {hang_us / 1e6:.1f} s")
        broker.hung_until_us = self._schedule.now_us + hang_us

    def _copies_are_whole(self) -> bool:
        """Whether no copy of a segment is damaged. If one of two hangs to the end and one is damaged, none is left."""
        return True

    def inject_full_disk(self) -> None:
        """A disk has reached its reserve, or all disks of a broker group have, until long after all else has healed."""
        world, victim = self._world, self._victim()
        if world.full_brokers():
            return
        mates = [broker for broker in world.brokers.values() if broker.group == victim.group]
        for broker in mates if self._rng.random() < 0.3 else [self._rng.choice(mates)]:
            self._fill(broker)

    def _fill(self, broker: Broker) -> None:
        world = self._world
        options = self._options
        rest_us = options.fault_span_us + options.drain_us + world.backlog_us() + HANG_US_MORE
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
        late_us = self._world.config.second_member_us + CONTRADICTED_US_MORE
        self._older_disk(lambda is_older: self._rng.randint(5_000, 60_000) + (0 if is_older else late_us))

    def _older_disk(self, back_us: Callable[[bool], int]) -> None:
        chain, _ = self._world.coordinator.records.chain(self._partition())
        if chain is None or self._world.judge.seen.graveyard:
            return
        segment = chain.open_segment
        brokers = [self._world.brokers[member.broker] for member in segment.members]
        older = self._rng.choice(brokers)
        copy, run = older.disk.twin(), older.run
        self._tell(f"the disk of {older.name} is copied")

        def put_back() -> None:
            now = self._world.coordinator.records.chain(chain.partition)[0]
            is_same = now is not None and now.open_segment.no == segment.no
            if self._healing or not is_same or older.run != run or any(broker.process is None for broker in brokers):
                return
            self._tell(f"{[broker.name for broker in brokers]} end, and {older.name} gets its older copy")
            for broker in brokers:
                self._end_at_once(broker)
            self._world.judge.seen.graveyard.append((older.member, older.disk.durable.twin()))
            self._world.judge.seen.states.add("older disk")
            copy.crash(0)
            older.disk = copy
            waits = [back_us(broker is older) for broker in brokers]
            if max(waits) > self._world.config.second_member_us:
                self._world.judge.seen.contradicted[chain.partition, segment.no] = 0
            for broker, wait_us in zip(brokers, waits, strict=True):
                self._schedule.after(wait_us, self._restart, broker)

        self._schedule.after(self._rng.randint(20_000, 250_000), put_back)

    def _end_at_once(self, broker: Broker) -> None:
        """The process ends, and its disk keeps what was flushed."""
        process = broker.process
        assert process is not None
        process.leave_network(silent=False)
        process.end()
        broker.refuses = True
        broker.disk.crash(0)
        broker.ended_badly(machine=False)
        self._world.clients.process_ended(process, silent=False)

    def restart_hung(self, broker: Broker) -> None:
        """A supervisor ends a process whose disk hangs. The next one can begin no run before the disk goes on."""
        process = broker.process
        if process is None:
            return
        self._tell(f"{broker.name} is ended by its supervisor, because its disk hangs")
        run = RunId(broker.member, broker.run)
        process.leave_network(silent=False)
        process.end()
        broker.refuses = True
        broker.disk.crash(0)
        broker.ended_badly(machine=False)
        self._world.clients.process_ended(process, silent=False)
        self._world.coordinator.certify(run)
        self._restart(broker)

    # ---- paths --------------------------------------------------------------------------------------

    def inject_cut(self) -> None:
        """Nothing gets through between two brokers; sometimes a broker is cut off from all others."""
        first, second = self._pair()
        if self._rng.random() < 0.3:
            self._cut([(first, name) for name in sorted(self._world.brokers) if name != first], both=True)
        else:
            self._cut([(first, second)], both=True)

    def inject_cut_one_way(self) -> None:
        """What one broker sends to another does not arrive."""
        first, second = self._pair()
        self._cut([(first, second) if self._rng.random() < 0.5 else (second, first)], both=False)

    def _cut(self, pairs: list[tuple[str, str]], *, both: bool) -> None:
        paths = pairs + ([(b, a) for a, b in pairs] if both else [])
        self._tell(f"cut {paths}")
        self._hold(paths, breaks=self._rng.random() < 0.4)

    def _hold(self, paths: list[tuple[str, str]], *, breaks: bool) -> None:
        """Cut paths, and heal them later."""
        network = self._world.network
        for source, target in paths:
            network.cut(source, target)

        def heal() -> None:
            if self._healing:
                return
            self._tell(f"healed {paths}")
            for source, target in paths:
                if breaks:
                    network.break_link(source, target)
                network.heal(source, target)

        self._schedule.after(self._outage_us(), heal)

    def inject_break(self) -> None:
        """A connection between two brokers breaks."""
        first, second = self._pair()
        self._tell(f"the link {first} {second} breaks")
        self._world.network.break_link(first, second)

    def inject_stalled_lane(self) -> None:
        """One lane of a link carries nothing more, one way or both ways, until the link ends; the other goes on.

        Never the data lane to a broker of an older version. Such a broker does not say what it received on that lane,
        so the sender cannot notice (ADR 0035).
        """
        first, second = self._pair()
        lane = self._rng.choice((CONTROL_LANE, DATA_LANE, DATA_LANE))
        paths = [(first, second), (second, first)]
        for source, target in paths if self._rng.random() < 0.5 else [self._rng.choice(paths)]:
            if lane == DATA_LANE and not self._world.brokers[target].forms & FORM_LANE_PROBES:
                continue
            if self._world.network.stall_lane(source, target, lane):
                self._tell(f"the {LANE_NAMES[lane]} lane from {source} to {target} is stalled")

    def inject_client_break(self) -> None:
        """Streams of clients break, and perhaps clients cannot reach a broker for some time."""
        self._tell("streams of clients break")
        self._world.clients.break_some(0.5)
        if self._rng.random() < 0.5:
            name = self._victim().name
            cut = self._world.clients.cut
            self._tell(f"clients cannot reach {name}")
            cut[name] = cut.get(name, 0) + 1

            def heal() -> None:
                cut[name] = max(0, cut.get(name, 0) - 1)

            self._schedule.after(self._outage_us(), heal)

    # ---- the coordinator ----------------------------------------------------------------------------

    def inject_isolate(self) -> None:
        """A broker cannot reach the coordinator."""
        name = self._victim().name
        isolated = self._world.coordinator.isolated
        self._tell(f"{name} cannot reach the coordinator")
        isolated[name] = isolated.get(name, 0) + 1

        def heal() -> None:
            isolated[name] = max(0, isolated.get(name, 0) - 1)

        self._schedule.after(self._outage_us(), heal)

    def _open_members(self) -> list[str]:
        chain, _ = self._world.coordinator.records.chain(self._partition())
        return [member.broker for member in chain.open_segment.members] if chain is not None else []

    def inject_island(self) -> None:
        """The members of the open segment reach only each other and their clients."""
        members = self._open_members()
        others = [name for name in sorted(self._world.brokers) if name not in members]
        self._island(members, others, self._rng.random() < 0.7)

    def _island(self, members: list[str], others: list[str], is_isolated: bool) -> None:
        if self._healing:
            return
        self._cut([(member, other) for member in members for other in others], both=True)
        isolated = self._world.coordinator.isolated
        if is_isolated:
            self._tell(f"{members} cannot reach the coordinator")
            for member in members:
                isolated[member] = isolated.get(member, 0) + 1
            self._schedule.after(self._outage_us(), self._reached_again, members)

    def _reached_again(self, members: list[str]) -> None:
        isolated = self._world.coordinator.isolated
        for member in members:
            isolated[member] = max(0, isolated.get(member, 0) - 1)

    def inject_coordinator_down(self) -> None:
        """No broker can reach the coordinator."""
        self._tell("the coordinator is away")
        self._world.coordinator.is_down = True

        def heal() -> None:
            self._world.coordinator.is_down = False

        self._schedule.after(self._outage_us(), heal)

    def inject_coordinator_refuses(self) -> None:
        """The coordinator reads and refuses to write, as etcd over its quota; a member of an open segment may end."""
        coordinator = self._world.coordinator
        if coordinator.is_refusing:
            return
        coordinator.is_refusing = True
        coordinator.keeps_next = self._rng.random() < 0.5
        self._tell(f"the coordinator refuses to write{', and keeps one write' if coordinator.keeps_next else ''}")

        def heal() -> None:
            if coordinator.is_refusing:
                self._tell("the coordinator takes writes again")
            coordinator.is_refusing = coordinator.keeps_next = False

        self._schedule.after(self._rng.randint(200_000, REFUSAL_US_MAX), heal)
        chain, _ = coordinator.records.chain(self._partition())
        if chain is not None and self._rng.random() < 0.6:  # and then a switch has to write
            master = self._world.brokers[chain.open_segment.master.broker]
            self._schedule.after(self._rng.randint(0, 100_000), self.crash, master)

    # ---- an older copy of the coordinator ----

    def inject_restore(self) -> None:
        """The coordinator is restored as it was some time ago, or comes back empty; then a person rebuilds it.

        All brokers run, and nothing else goes wrong meanwhile. A record that no running broker knows cannot be rebuilt.
        """
        self._is_restoring = True
        self._restore_when_quiet(self._schedule.now_us)

    def take_snapshots(self) -> None:
        """Take a copy of the coordinator every 20 to 200 ms."""
        self._snapshots.append(self._world.coordinator.records.snapshot())
        if not self._healing:
            self._schedule.after(self._rng.randint(20_000, 200_000), self.take_snapshots)

    def _restore_when_quiet(self, since_us: int) -> None:
        if self._healing:
            return
        if not self._all_are_ready():
            since_us = self._schedule.now_us + 10_000
        if self._schedule.now_us - since_us < 150_000:
            self._schedule.after(10_000, self._restore_when_quiet, since_us)
            return
        self._go_back()

    def _all_are_ready(self) -> bool:
        """Whether every broker can do everything."""
        raise NotImplementedError

    def _go_back(self) -> None:
        """The coordinator is away, and comes back with an earlier state of its records."""
        raise NotImplementedError

    def crash_and_return(self, broker: Broker) -> None:
        """A process ends and is back soon."""
        before = self._options
        self._options = replace(before, machine_share=0.0, wipe_share=0.0, restart_us_max=60_000)
        self.crash(broker)
        self._options = before

    # ---- requests that cause switches ---------------------------------------------------------------

    def inject_complaint(self) -> None:
        """A client complains about a healthy master, at some broker."""
        self._complain(1)

    def inject_two_complaints(self) -> None:
        """The same at two or three brokers at once: several switchers."""
        self._complain(self._rng.choice((2, 2, 3)))

    def _complain(self, count: int) -> None:
        partition = self._partition()
        chain, _ = self._world.coordinator.records.chain(partition)
        if chain is None:
            return
        no = chain.open_segment.no
        names = self._rng.sample(sorted(self._world.brokers), count)
        self._tell(f"complaints about segment {no} at {names}")
        for name in names:
            self._ask(name, lambda request, until: ev.ResolveProducer(request, partition, no, until))

    def inject_race(self) -> None:
        """Two brokers of other groups switch at once, each reaching only one member of the open segment."""
        partition = self._partition()
        chain, _ = self._world.coordinator.records.chain(partition)
        if chain is None:
            return
        segment = chain.open_segment
        members = [member.broker for member in segment.members]
        others = [name for name in sorted(self._world.brokers) if name not in members]
        if len(others) < 2:
            return
        first, second = self._rng.sample(others, 2)
        pairs = [(first, members[0]), (members[0], first), (second, members[1]), (members[1], second)]
        self._tell(f"{first} and {second} race for segment {segment.no}, cut {pairs}")
        self._hold(pairs, breaks=False)
        for name in (first, second):
            self._ask(name, lambda request, until: ev.ResolveProducer(request, partition, segment.no, until))

    def inject_fenced_apart(self) -> None:
        """A switcher reaches one member of the open segment only, which restarts; both are alone with their clients."""
        partition = self._partition()
        chain, _ = self._world.coordinator.records.chain(partition)
        if chain is None:
            return
        segment = chain.open_segment
        members = [member.broker for member in segment.members]
        others = [name for name in sorted(self._world.brokers) if name not in members]
        fenced = self._world.brokers[members[-1]]
        switcher = self._rng.choice(others)
        self._tell(f"{switcher} switches segment {segment.no} by {fenced.name} alone, which restarts")
        self._hold([(switcher, members[0]), (members[0], switcher)], breaks=False)
        self._ask(switcher, lambda request, until: ev.ResolveProducer(request, partition, segment.no, until))
        after_us = self._rng.randint(4_000, 40_000)
        self._schedule.after(after_us, self._island, members, others, True)
        self._schedule.after(after_us, self.crash, fenced)

    def inject_prepared_restart(self) -> None:
        """A member that is prepared to be the next master restarts before it is master. Later it reaches only its slave
        and clients.
        """
        partition = self._partition()
        chain, _ = self._world.coordinator.records.chain(partition)
        if chain is None:
            return
        no, group = chain.open_segment.no, chain.open_segment.group
        nexts = sorted(name for name, broker in self._world.brokers.items() if broker.group != group)[:2]
        others = [name for name in sorted(self._world.brokers) if name not in nexts]
        turn = (partition + no) % len(nexts)
        master, slave = self._world.brokers[nexts[turn]], self._world.brokers[nexts[turn - 1]]
        self._tell(f"{others[0]} switches away from segment {no}; {master.name} restarts while {slave.name} is slow")
        slave.slow_until_us = self._schedule.now_us + 100_000

        def complain(of: int) -> None:
            self._ask(others[0], lambda request, until: ev.ResolveProducer(request, partition, of, until))

        complain(no)
        self._schedule.after(self._rng.randint(5_000, 25_000), self.crash, master)
        apart_us = self._rng.randint(200_000, 300_000)
        self._schedule.after(apart_us, self._island, nexts, others, True)
        for later_us in (10_000, 150_000, 300_000):
            self._schedule.after(apart_us + later_us, complain, no + 1)

    def inject_plan(self) -> None:
        """A planned switch, asked of some broker."""
        partition = self._partition()
        name = self._victim().name
        self._tell(f"a planned switch at {name}")
        self._ask(name, lambda request, _until: ev.PlanSwitch(request, partition), "planned switch")

    def inject_switch_away(self) -> None:
        """The controller tells a broker that the open segment's group has no live member, rightly or not."""
        partition = self._partition()
        chain, _ = self._world.coordinator.records.chain(partition)
        if chain is None:
            return
        no = chain.open_segment.no
        name = self._rng.choice(sorted(self._world.brokers))
        self._tell(f"{name} is told to switch away from segment {no}")
        self._ask(name, lambda _request, _until: ev.SwitchAwayFrom(partition, no))

    def _ask(self, name: str, make: Callable[[int, int], ev.Event], kind: str = "") -> None:
        process = self._world.brokers[name].process
        if process is None:
            return

        def answered(answer: Any) -> None:
            if kind and answer.error is None:
                self._world.judge.seen.states.add(kind)

        request = self._world.clients.ask(None, answered)
        until = process.to_mono(self._schedule.now_us + self._rng.randint(50_000, 400_000))
        self._schedule.after(self._rng.randint(0, 3_000), process.deliver, make(request, until))

    # ---- producers and consumers --------------------------------------------------------------------

    def inject_producer_crash(self) -> None:
        """A producer ends with batches under way, and another one sends the rest."""
        self._world.crash_producer()

    def inject_consumer_crash(self) -> None:
        """A consumer ends without a word, and another of its group takes over."""
        self._world.crash_consumer()
