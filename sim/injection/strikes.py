"""What all faults need: a victim, and the ways in which processes, paths and requests are struck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seriatim_api.ids import PartitionId, RunId
from seriatim_broker.core.values import events as ev

from ..basics.interfaces import Broker, Process
from ..scene import Scene


class Strikes:
    """Strikes a world. `Injector` inherits the faults, each of which is a method `inject_<kind>`."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._schedule = scene.setting.schedule
        self._rng = scene.setting.schedule.rng
        self._options = scene.setting.options
        self._healing = False
        self._is_restoring = False

    def _tell(self, text: str) -> None:
        self._schedule.mark("fault", text)
        self._schedule.tell("FAULT", text)

    def _outage_us(self) -> int:
        return self._rng.randint(5_000, self._options.outage_us_max)

    def _victim(self) -> Broker:
        """A broker: mostly a member of an open segment, often its master, sometimes a server of an older one."""
        scene = self._scene
        chain, _ = scene.cluster.coordinator.records.chain(self._partition())
        names = sorted(scene.cluster.brokers)
        draw = self._rng.random()
        if chain is not None and draw < 0.7:
            segment = chain.open_segment
            if draw < 0.1 and len(chain.segments) > 1:
                segment = chain.segments[-2]
            member = segment.master if self._rng.random() < 0.5 else self._rng.choice(segment.members)
            return scene.cluster.brokers[member.broker]
        return scene.cluster.brokers[self._rng.choice(names)]

    def _partition(self) -> PartitionId:
        return self._rng.choice(self._scene.setting.partitions)

    def _pair(self) -> tuple[str, str]:
        first = self._victim().name
        others = [name for name in sorted(self._scene.cluster.brokers) if name != first]
        if self._rng.random() < 0.5:
            others = [
                name
                for name in others
                if self._scene.cluster.brokers[name].group == self._scene.cluster.brokers[first].group
            ]
        return first, self._rng.choice(others)

    def _open_members(self) -> list[str]:
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        return [member.broker for member in chain.open_segment.members] if chain is not None else []

    def crash(self, broker: Broker, *, wipes: bool = False) -> None:
        """End a process. Its disk may lose its unflushed writes from some point on, or be lost as a whole."""
        process = broker.process
        if process is None or self._healing:
            return
        machine = self._rng.random() < self._options.machine_share
        kept = self._rng.randint(0, broker.disk.pending_count)
        self._tell(f"{broker.name} ends ({'machine' if machine else 'process'}) and keeps {kept} unflushed writes")
        run = RunId(broker.member, broker.run)
        self._end(broker, process, machine=machine, kept=kept)
        if self._rng.random() >= self._options.certificate_never_share and run.run:  # 0: it had not begun one
            self._schedule.after(
                self._rng.randint(1_000, self._options.certificate_us_max), self._scene.cluster.coordinator.certify, run
            )
        is_lost = self._rng.random() < self._options.wipe_share and self._scene.health.may_lose_a_disk(broker)
        if wipes or is_lost:
            broker.replace_disk()
        self._schedule.after(self._rng.randint(10_000, self._options.restart_us_max), self._restart, broker)

    def _end(self, broker: Broker, process: Process, *, machine: bool = False, kept: int = 0) -> None:
        """The process ends, perhaps with its machine. Its disk keeps this many writes that were not flushed."""
        process.leave_network(silent=machine)
        process.end()
        broker.refuses = not machine
        broker.disk.crash(kept)
        broker.ended_badly(machine=machine)
        self._scene.clients.process_ended(process, silent=machine)

    def _restart(self, broker: Broker) -> None:
        if broker.process is not None or self._scene.cluster.brokers[broker.name] is not broker:
            return
        if broker.hung_until_us > self._schedule.now_us:
            self._schedule.at(broker.hung_until_us, self._restart, broker)  # its run's number cannot be written before
            return
        self._tell(f"{broker.name} starts again")
        for run in range(1, broker.run + 1):
            if self._rng.random() < 0.7:  # a later run of the same incarnation may say that the earlier ones ended
                self._scene.cluster.coordinator.certify(RunId(broker.member, run))
        broker.refuses = True
        broker.start()

    def _cut(self, pairs: list[tuple[str, str]], *, both: bool) -> None:
        paths = pairs + ([(b, a) for a, b in pairs] if both else [])
        self._tell(f"cut {paths}")
        self._hold(paths, breaks=self._rng.random() < 0.4)

    def _hold(self, paths: list[tuple[str, str]], *, breaks: bool) -> None:
        """Cut paths, and heal them later."""
        network = self._scene.cluster.network
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

    def _island(self, members: list[str], others: list[str], is_isolated: bool) -> None:
        if self._healing:
            return
        self._cut([(member, other) for member in members for other in others], both=True)
        if is_isolated:
            self._tell(f"{members} cannot reach the coordinator")
            self._shut_out(self._scene.cluster.coordinator.isolated, members)

    def _shut_out(self, counts: dict[str, int], names: list[str]) -> None:
        """For some time these brokers are in `counts` of what cannot be reached."""
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        self._schedule.after(self._outage_us(), self._let_in, counts, names)

    def _let_in(self, counts: dict[str, int], names: list[str]) -> None:
        for name in names:
            counts[name] = max(0, counts.get(name, 0) - 1)

    def _complain(self, count: int) -> None:
        partition = self._partition()
        chain, _ = self._scene.cluster.coordinator.records.chain(partition)
        if chain is None:
            return
        no = chain.open_segment.no
        names = self._rng.sample(sorted(self._scene.cluster.brokers), count)
        self._tell(f"complaints about segment {no} at {names}")
        for name in names:
            self._ask(name, lambda request, until: ev.ResolveProducer(request, partition, no, until))

    def _ask(self, name: str, make: Callable[[int, int], ev.Event], kind: str = "") -> None:
        process = self._scene.cluster.brokers[name].process
        if process is None:
            return

        def answered(answer: Any) -> None:
            if kind and answer.error is None:
                self._scene.judge.seen.states.add(kind)

        request = self._scene.clients.ask(None, answered)
        until = process.to_mono(self._schedule.now_us + self._rng.randint(50_000, 400_000))
        self._schedule.after(self._rng.randint(0, 3_000), process.deliver, make(request, until))
