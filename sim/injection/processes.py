"""Faults of processes: they end, freeze, lose their disks, or are certified dead while they live."""

from __future__ import annotations

from seriatim_api.ids import RunId
from seriatim_broker.core.values.segment import SegmentState

from ..basics.interfaces import Broker, Process
from .strikes import Strikes

OWN_FLUSH_US = 300_000
"""The wait before the directory of a falsely certified run is deleted. Before the other members cut their links to the
run, they may have acknowledged batches that it has not flushed yet. In this time it flushes them, or it never will. If
the directory were deleted earlier, the only copy would be lost, and no broker could prevent that."""

WALL_JUMP_MS_MAX = 10_000
"""Five times the difference that a member accepts (`append_time_ahead_ms_max` of `limits.SIM_CONFIG`, 2 s)."""

FROZEN_US = (450_000, 600_000)
"""For how long a master freezes whose clients ask about it: longer than their questions and a switch take."""

SERVER_AWAITED_US = 400_000

SERVER_LOOK_US = 1_000
"""`inject_lose_server` looks every `SERVER_LOOK_US` for a sealed segment with one eligible member, and gives up after
`SERVER_AWAITED_US`."""


class ProcessFaults(Strikes):
    """The faults of processes."""

    def inject_crash(self) -> None:
        """A process or its machine ends; it comes back, perhaps with another disk."""
        self.crash(self._victim())

    def inject_crash_group(self) -> None:
        """All members of a broker group end within 20 ms."""
        group = self._victim().group
        for broker in self._scene.cluster.brokers.values():
            if broker.group == group:
                self._schedule.after(self._rng.randint(0, 20_000), self.crash, broker)

    def inject_crash_torn(self) -> None:
        """The link from the master to the slave of an open segment is cut while batches come; then both end.

        In half of the cases the other direction is cut too.
        """
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        if chain is None:
            return
        names = [member.broker for member in chain.open_segment.members]
        pairs = [(names[0], names[1])]
        if self._rng.random() < 0.5:
            pairs.append((names[1], names[0]))
        self._tell(f"cut {pairs}, and then both end")
        self._hold(pairs, breaks=False)
        for name in names:
            self._schedule.after(self._rng.randint(5_000, 60_000), self.crash, self._scene.cluster.brokers[name])

    def inject_lose_group(self) -> None:
        """All members of a broker group end, and their disks are lost for ever."""
        group = self._victim().group
        members = [broker for broker in self._scene.cluster.brokers.values() if broker.group == group]
        if all(broker.process is not None for broker in members) and self._scene.health.may_lose_a_group():
            self._tell(f"all disks of {group} are lost")
            for broker in members:
                self.crash(broker, wipes=True)

    def inject_lose_server(self) -> None:
        """The server of a sealed segment loses its disk while it is the only eligible member."""
        self._lose_server(self._schedule.now_us + SERVER_AWAITED_US)

    def _lose_server(self, until_us: int) -> None:
        if self._healing or self._schedule.now_us > until_us:
            return
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        alone = [
            self._scene.cluster.brokers[segment.server.broker]
            for segment in (chain.segments if chain is not None else ())
            if segment.state is SegmentState.SEALED and len(segment.eligible) == 1
        ]
        alone = [broker for broker in alone if broker.process is not None]
        if alone and self._scene.health.may_lose_a_disk(alone[-1]):
            self.crash(alone[-1], wipes=True)
        else:
            self._schedule.after(SERVER_LOOK_US, self._lose_server, until_us)

    def inject_false_certificate(self) -> None:
        """A run that lives is certified to have ended, and perhaps its directory is deleted soon after.

        In half of the cases it is first cut off from the other brokers. Such a cut may heal before the run reads the
        certificate.
        """
        broker, scene = self._victim(), self._scene
        process = broker.process
        if self._healing or process is None or not scene.health.is_calm() or not process.run:
            return
        scene.health.disturbed()
        if self._rng.random() < 0.5:
            self._cut([(broker.name, name) for name in sorted(scene.cluster.brokers) if name != broker.name], both=True)
        is_lost = self._rng.random() < self._options.wipe_share and scene.health.may_lose_a_disk(broker)
        own_us = self._rng.randint(20_000, 2 * self._options.outage_us_max)
        self._tell(f"{broker.name} is certified to have ended{', its directory is deleted' if is_lost else ''}")
        self._schedule.after(self._rng.randint(0, 30_000), self._certify_falsely, broker, process.run, own_us)
        if is_lost:
            self._schedule.after(OWN_FLUSH_US, self._give_up, broker, process, process.run, False)

    def _certify_falsely(self, broker: Broker, run: int, own_us: int) -> None:
        if broker.process is not None and broker.run == run:
            self._scene.judge.seen.certified_falsely[RunId(broker.member, run)] = None
            self._scene.cluster.coordinator.certify_falsely(RunId(broker.member, run), own_us)

    def _give_up(self, broker: Broker, process: Process, run: int, is_known: bool) -> None:
        """Delete the directory, at least `OWN_FLUSH_US` after all other brokers have read the certificate."""
        if broker.process is None or broker.process is not process or not process.alive:
            return
        if is_known:
            broker.give_up()
        else:
            is_known = self._scene.cluster.others_dismiss(RunId(broker.member, run))
            self._schedule.after(OWN_FLUSH_US, self._give_up, broker, process, run, is_known)

    def inject_freeze(self) -> None:
        """A process does nothing, and then continues."""
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

    def inject_freeze_master(self) -> None:
        """The master of an open segment freezes while all other brokers run and are linked."""
        chain, _ = self._scene.cluster.coordinator.records.chain(self._partition())
        process = self._scene.cluster.brokers[chain.open_segment.master.broker].process if chain is not None else None
        if process is None or not self._scene.health.is_calm():
            return
        self._tell(f"{process.name}, a master, freezes")
        process.freeze()

        def thaw() -> None:
            self._scene.health.disturbed()
            if process.alive and process.frozen:
                self._tell(f"{process.name} thaws")
                heard_us = self._schedule.now_us + self._options.latency_us_max
                self._scene.judge.rules.calm.thawed(process.name, heard_us)
                process.thaw()

        self._schedule.after(self._rng.randint(*FROZEN_US), thaw)

    def inject_clock_jump(self) -> None:
        """A wall clock jumps by at most 10 s, in three of ten cases by at most 1,000 s, ahead or back."""
        process = self._victim().process
        if process is None:
            return
        jump_ms = self._rng.randint(-WALL_JUMP_MS_MAX, WALL_JUMP_MS_MAX)
        if self._rng.random() < 0.3:
            jump_ms *= 100
        self._tell(f"the wall clock of {process.name} jumps by {jump_ms} ms")
        process.jump_wall(jump_ms)
