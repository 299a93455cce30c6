"""One member run of a broker in virtual time: the real runtime over a simulated disk, network, coordinator and clock.

It does what `composition.Broker` does, in the same order: join, recover the disk, assemble, start, listen, do the
duties. It has no gRPC server: clients use its driver directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from seriatim_api.ids import MemberId, RunId

from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.counters.broker import Counters
from seriatim_broker.interfaces.clock import Clock
from seriatim_broker.interfaces.coordinator import Coordinator
from seriatim_broker.interfaces.link import PeerIdentity
from seriatim_broker.interfaces.storage import Storage
from seriatim_broker.runtime.assembly import Ground, Runtime
from seriatim_broker.runtime.controller.balancer import BalancerSettings
from seriatim_broker.runtime.controller.caretaker import CaretakerSettings
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.driver.driver import Core
from seriatim_broker.runtime.driver.traffic import MeasureTraffic
from seriatim_broker.runtime.duties.retention import RetentionSettings
from seriatim_broker.runtime.membership.registration import Identity, Place, Seen, is_running, join, mark_clean

from .memory_network import MemoryNetwork
from .simulated_bodies import SimulatedBodies
from .simulated_directory import SimulatedDirectory

JOIN_DEADLINE_S = 30.0
MakeCore = Callable[[Identity, list[RecoveredPartition]], Core]


@dataclass(frozen=True, slots=True)
class Machine:
    """The simulated machine on which a process starts."""

    directory: SimulatedDirectory
    storage: Storage
    network: MemoryNetwork
    coordinator: Coordinator
    clock: Clock
    chance: Random
    settings: CaretakerSettings
    balancing: BalancerSettings
    measure: MeasureTraffic
    retention: RetentionSettings = field(default_factory=RetentionSettings)


class SimulatedBroker:
    """One member run of a broker. It is made and run on the process's own event loop.

    Args:
        place: The slot of the broker.
        machine: The simulated machine.
        make_core: Makes the core, from the broker's identity and the data of its disk.
        die: Called when a step of the core failed.

    Attributes:
        runtime: The runtime; None until the broker has joined.
        is_serving: Whether clients find the broker.
    """

    def __init__(
        self, place: Place, machine: Machine, make_core: MakeCore, die: Callable[[BaseException], None]
    ) -> None:
        self.place = place
        self.runtime: Runtime | None = None
        self.is_serving = False
        self._keys = Keys(place.cluster)
        self._machine = machine
        self._make_core = make_core
        self._die = die

    async def run(self) -> None:
        """Join and serve, until a duty fails or this is cancelled.

        Raises:
            SeriatimError: The broker could not join.
        """
        machine = self._machine
        directory = machine.directory
        directory.sequence = machine.storage.durable_sequence
        boot = f"boot {directory.boot_now}"
        identity = await join(
            machine.coordinator,
            self._keys,
            self.place,
            directory.open,
            boot,
            machine.clock,
            deadline_s=JOIN_DEADLINE_S,
            is_running=self._is_running,
        )
        directory.has_data = True
        core = self._make_core(identity, list(machine.storage.recover()))
        peer = PeerIdentity(identity.cluster_id, identity.member, identity.run)
        ground = Ground(
            machine.storage,
            machine.coordinator,
            machine.network.dialer(peer, self.place.advertise),
            machine.clock,
            machine.chance,
            Counters(),
            self._die,
            machine.measure,
            self._remember,
            SimulatedBodies(),
        )
        runtime = self.runtime = Runtime(
            identity, self._keys, core, ground, {}, machine.settings, machine.balancing, machine.retention
        )
        runtime.start()
        machine.network.listen(peer, runtime.links.carry_accepted, self.place.advertise)
        self.is_serving = True
        async with asyncio.TaskGroup() as group:
            for name, duty in runtime.duties():
                group.create_task(duty, name=f"{name} of {self.place.broker}")

    async def _is_running(self, cluster_id: str, address: str, run: RunId) -> bool:
        """See `runtime.membership.registration.is_running`."""
        dialer = self._machine.network.dialer(PeerIdentity(cluster_id, run.member, run.run), self.place.advertise)
        return await is_running(dialer, address, run)

    async def _remember(self, seen: Seen) -> None:
        self._machine.directory.note_seen(seen)

    @property
    def member(self) -> MemberId:
        """The member: this broker with its disk's incarnation."""
        return self._machine.directory.member

    async def stop(self) -> None:
        """End cleanly, as the real broker does after it has handed over. The caller then cancels `run`."""
        machine, runtime = self._machine, self.runtime
        assert runtime is not None
        self.is_serving = False
        await runtime.controller.election.resign()
        await runtime.links.close()
        await runtime.driver.stop()
        await runtime.work.close()
        await machine.storage.close()
        machine.directory.clean = True
        sequence = machine.storage.durable_sequence
        await mark_clean(machine.coordinator, self._keys, runtime.identity.run_id, sequence, machine.clock.wall_ms())
        await runtime.lease.revoke()
        await machine.coordinator.close()
