"""Faults of the coordinator: it is away, refuses to write, or goes back in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..basics.interfaces import Broker
from ..scene import Scene
from .strikes import Strikes

REFUSAL_US_MAX = 3_000_000
"""For this long the coordinator refuses to write."""


class CoordinatorFaults(Strikes):
    """The faults of the coordinator."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._snapshots: list[Any] = []

    def inject_isolate(self) -> None:
        """A broker cannot reach the coordinator."""
        name = self._victim().name
        self._tell(f"{name} cannot reach the coordinator")
        self._shut_out(self._scene.cluster.coordinator.isolated, [name])

    def inject_coordinator_down(self) -> None:
        """No broker can reach the coordinator."""
        self._tell("the coordinator is away")
        self._scene.cluster.coordinator.is_down = True

        def heal() -> None:
            self._scene.cluster.coordinator.is_down = False

        self._schedule.after(self._outage_us(), heal)

    def inject_coordinator_refuses(self) -> None:
        """The coordinator reads and refuses to write, as etcd over its quota; a member of an open segment may end."""
        coordinator = self._scene.cluster.coordinator
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
            master = self._scene.cluster.brokers[chain.open_segment.master.broker]
            self._schedule.after(self._rng.randint(0, 100_000), self.crash, master)

    def inject_restore(self) -> None:
        """The coordinator is restored as it was some time ago, or comes back empty; then an administrator rebuilds it.

        All brokers run, and nothing else goes wrong meanwhile. A record that no running broker knows cannot be rebuilt.
        So it does not strike while a disk hangs: if that broker ends, it cannot start again before its disk continues.
        """
        if self._scene.health.hung_brokers():
            return
        self._is_restoring = True
        self._restore_when_quiet(self._schedule.now_us)

    def take_snapshots(self) -> None:
        """Take a copy of the coordinator every 20 to 200 ms."""
        self._snapshots.append(self._scene.cluster.coordinator.records.snapshot())
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
