"""One run of a broker in virtual time: the production runtime over a simulated disk, network, coordinator and clock.

It does what `composition.Broker` does, in the same order: join, recover the disk, assemble, begin, listen, do the
duties. Clients reach its driver directly; there are no servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from seriatim_api.ids import MemberId, RunId

from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.interfaces.clock import Clock
from seriatim_broker.interfaces.coordinator import Coordinator
from seriatim_broker.interfaces.link import PeerIdentity, PeerRefusedError, PeerSilentError
from seriatim_broker.interfaces.storage import Storage
from seriatim_broker.metrics import Counters
from seriatim_broker.runtime.assembly import Ground, Runtime
from seriatim_broker.runtime.balancer import BalancerSettings
from seriatim_broker.runtime.caretaker import CaretakerSettings
from seriatim_broker.runtime.driver import Core
from seriatim_broker.runtime.keys import Keys
from seriatim_broker.runtime.membership import Identity, Place, Seen, join, mark_clean
from seriatim_broker.runtime.retention import RetentionSettings
from seriatim_broker.runtime.traffic import MeasureTraffic

from .memory_network import MemoryNetwork
from .simulated_directory import SimulatedDirectory

JOIN_DEADLINE_S = 30.0
RUNNING_DEADLINE_S = 1.0
"""For so long a starting broker waits for an answer from the address in its record."""

MakeCore = Callable[[Identity, list[RecoveredPartition]], Core]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process finds on the machine that it starts on."""

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
    """See the module. Made and run on the process's own event loop.

    Args:
        make_core: Given who the broker is and what its disk holds.
        die: Called when a step of the core failed.

    Attributes:
        runtime: Once it has joined.
        is_serving: Whether clients find it.
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
        """Join and serve, until something that must run has failed.

        Raises:
            SeriatimError: It could not join.
        """
        machine = self._machine
        directory = machine.directory
        boot = f"boot {directory.boot_now}"
        identity = await join(
            machine.coordinator,
            self._keys,
            self.place,
            directory.open,
            boot,
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
        """As `composition.Broker` asks."""
        dialer = self._machine.network.dialer(PeerIdentity(cluster_id, run.member, run.run), self.place.advertise)
        try:
            connection = await dialer.dial(address, RUNNING_DEADLINE_S)
        except (PeerRefusedError, PeerSilentError):
            return False
        await connection.abandon("it was only asked who it is")
        return (connection.peer.member, connection.peer.run) == (run.member, run.run)

    async def _remember(self, seen: Seen) -> None:
        self._machine.directory.note_seen(seen)

    @property
    def member(self) -> MemberId:
        """Which disk it runs on."""
        return self._machine.directory.member

    async def stop(self) -> None:
        """End in order, as the production broker does once it has handed over; `run` is cancelled by the caller."""
        machine, runtime = self._machine, self.runtime
        assert runtime is not None
        self.is_serving = False
        await runtime.controller.election.resign()
        await runtime.links.close()
        await runtime.driver.stop()
        await runtime.work.close()
        await machine.storage.close()
        machine.directory.clean = True
        await mark_clean(machine.coordinator, self._keys, runtime.identity.run_id)
        await runtime.lease.revoke()
        await machine.coordinator.close()
