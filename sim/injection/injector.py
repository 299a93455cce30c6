"""Faults: when they strike, which broker they hit, and how they heal.

Most victims are brokers that have a role at that moment, such as the master of an open segment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from seriatim_api.ids import RunId

from ..faults import DISK_KINDS, GROUP_KINDS, KINDS, MORE_KINDS, RUNTIME_KINDS, SERVING_KINDS
from ..scene import Scene
from .coordinator import CoordinatorFaults
from .disks import DiskFaults
from .links import LinkFaults
from .processes import ProcessFaults
from .servers import ServerFaults
from .switches import SwitchFaults


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the plan. Its own chance decides the rest, so that leaving out another one changes little."""

    at_us: int
    kind: str
    seed: int


class NoSuchFaultError(ValueError):
    """The profile draws a fault that worlds of this kind do not have."""


class Injector(ProcessFaults, DiskFaults, LinkFaults, CoordinatorFaults, SwitchFaults, ServerFaults):
    """Draws faults over the fault span, and undoes each of them when `heal` is called or earlier.

    Args:
        left_out: Numbers of the plan's faults that do not strike. Shrinking a failing seed leaves out faults that made
            no difference.
    """

    def __init__(self, scene: Scene, left_out: frozenset[int] = frozenset()) -> None:
        super().__init__(scene)
        self._left_out = left_out

    def plan(self) -> None:
        """Schedule the faults.

        Raises:
            NoSuchFaultError: The profile draws a fault that worlds of this kind do not have.
        """
        weights = self._options.kinds
        every = (*KINDS, *RUNTIME_KINDS, *MORE_KINDS, *DISK_KINDS, *GROUP_KINDS, *SERVING_KINDS)
        kinds = [kind for kind in every for _ in range(weights.get(kind, 0))]
        now = self._schedule.now_us
        if weights.get("restore"):
            self.take_snapshots()
        for number in range(self._options.fault_count):
            kind = self._rng.choice(kinds)
            if not hasattr(self, f"inject_{kind}"):
                raise NoSuchFaultError(f"worlds of this kind do not have the fault {kind}")
            fault = Fault(now + self._rng.randint(0, self._options.fault_span_us), kind, self._rng.getrandbits(32))
            if number not in self._left_out:
                self._schedule.at(fault.at_us, self._inject, fault)

    def _inject(self, fault: Fault) -> None:
        if self._healing or self._is_restoring:
            return
        self._rng = random.Random(fault.seed)
        method: Callable[[], None] = getattr(self, f"inject_{fault.kind}")
        method()

    def heal(self) -> None:
        """Undo everything: all brokers run, all paths are open, every ended run is certified."""
        self._healing = True
        scene = self._scene
        self._tell("everything heals")
        scene.cluster.coordinator.is_faulty = scene.cluster.coordinator.is_down = (
            scene.cluster.coordinator.is_refusing
        ) = False
        scene.cluster.coordinator.isolated.clear()
        scene.cluster.network.heal_all()
        scene.clients.cut.clear()
        for consumer in scene.population.consumers:
            consumer.forget_what_is_held()
        for ended in scene.health.past_runs:
            scene.cluster.coordinator.certify(ended)
        scene.cluster.tell_false_certificates()
        for broker in scene.cluster.brokers.values():
            broker.slow_until_us = 0
            for run in range(1, broker.run + (0 if broker.process else 1)):
                scene.cluster.coordinator.certify(RunId(broker.member, run))
            if broker.process is None:
                self._restart(broker)
            elif broker.process.frozen:
                broker.process.thaw()

    def inject_operate_group(self) -> None:
        """An administrator rewinds, skips, pauses or resumes a group."""
        self._scene.people.act(self._rng)

    def inject_producer_crash(self) -> None:
        """A producer ends with batches under way, and another one sends the rest."""
        self._scene.population.crash_producer()

    def inject_consumer_crash(self) -> None:
        """A consumer ends without a word, and another of its group takes over."""
        self._scene.population.crash_consumer()

    def inject_group_leaves(self) -> None:
        """All consumers of a consumer group end, and others come much later."""
        self._scene.population.consumers_leave(self._rng)

    def inject_change_mode(self) -> None:
        """A consumer group gets another mode while it has no consumers, and then its own one again."""
        self._scene.people.change_mode(self._rng)
