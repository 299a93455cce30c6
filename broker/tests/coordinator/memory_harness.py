"""The coordinators in memory, for the contract suite: the plain one and the simulator's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

from seriatim_broker.interfaces.coordinator import Coordinator
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore
from seriatim_broker.testing.simulated_coordinator import CoordinatorFaults, CoordinatorServer
from seriatim_broker.testing.virtual_time import LoopTimers

from .harness import until


class MemoryHarness:
    """One store; a restart or a crash changes nothing but that leases count from zero."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    async def start(self) -> None:
        """Nothing to start."""

    def client(self) -> Coordinator:
        return MemoryCoordinator(self._store)

    async def restart(self) -> None:
        self._store.restart()

    async def crash(self) -> None:
        self._store.restart()

    async def compact(self, revision: int) -> None:
        self._store.compact(revision)

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        self._store.is_away = True
        try:
            yield
        finally:
            self._store.is_away = False

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
        await until(condition, within_s)

    async def close(self) -> None:
        """Nothing to give back."""


class SimulatedHarness:
    """The simulator's server, in real time and without faults of its own. A frozen one is an outage."""

    def __init__(self) -> None:
        self._server = CoordinatorServer(LoopTimers(), Random(1), CoordinatorFaults())
        self._count = 0

    async def start(self) -> None:
        """Nothing to start."""

    def client(self) -> Coordinator:
        self._count += 1
        return self._server.client(f"client {self._count}")

    async def restart(self) -> None:
        self._server.restart()

    async def crash(self) -> None:
        self._server.restart()

    async def compact(self, revision: int) -> None:
        self._server.compact(revision)

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        self._server.is_down = True
        try:
            yield
        finally:
            self._server.is_down = False

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
        await until(condition, within_s)

    async def close(self) -> None:
        """Nothing to give back."""
