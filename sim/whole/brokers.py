"""A complete broker in the simulation: the production runtime in a process of its own, with its own clock.

It takes the place of `brokers.Broker` and `brokers.Process`, which a world of bare cores has. So faults, clients and
the judge are the same in both.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeGuard

from seriatim_api.errors import OverloadedError, RunOverError, SeriatimError, UnavailableError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import Append, ConsumerGone, Event, PlanSwitch
from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.interfaces.storage import Storage
from seriatim_broker.runtime.controller.balancer import BalancerSettings
from seriatim_broker.runtime.controller.caretaker import CaretakerSettings
from seriatim_broker.runtime.driver.traffic import Measured
from seriatim_broker.runtime.duties.retention import RetentionSettings
from seriatim_broker.runtime.membership.registration import Identity, Place
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.memory_network import MemoryNetwork
from seriatim_broker.testing.simulated_broker import Machine, SimulatedBroker
from seriatim_broker.testing.simulated_directory import SimulatedDirectory
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop

from ..basics.interfaces import WALL_MS_START, checksum
from ..basics.schedule import Schedule, Violation
from ..basics.setting import Setting
from ..faults import Options
from ..judge.watched_core import WatchedCore
from ..scene import Scene
from .coordinator import CLUSTER, RuntimeCoordinator

HEAL_AFTER_S = 1.0
HAND_OVER_S = 0.3
TIDY_S = 0.1
FORGET_S = 0.2
RETENTION = RetentionSettings(look_s=0.05, segment_age_s_max=1.5)
READ_US = (20, 500)
MEASURE_US = (200, 5_000)
BALANCING = BalancerSettings(
    interval_s=0.06, moves_per_s=30, threshold=0.1, floor_bytes_per_s=0, steady_s=0.05, move_again_s=0.15
)
"""So eager that open segments always move: the judge checks only order and liveness here, not the balance."""

NO_BALANCING = BalancerSettings(interval_s=0)
DRIFT_PPM_MAX = 5_000
START_AGAIN_US = 100_000
"""A process that could not join is started again by its supervisor."""


class ProcessStorage(Storage, Protocol):
    """A storage that ends with its process, and whose room the world decides."""

    look_full: Callable[[], bool]

    def end(self) -> None:
        """From now on no submitted write becomes durable by itself."""


class Disks(Protocol):
    """What writes to the disks."""

    def open(self, process: RuntimeProcess) -> ProcessStorage:
        """What a process writes to."""


class Home(Protocol):
    """The cluster, as its brokers and all that changes them require it."""

    setting: Setting
    schedule: Schedule
    scene: Scene
    network: MemoryNetwork
    coordinator: RuntimeCoordinator
    brokers: dict[str, RuntimeBroker]

    @property
    def disks(self) -> Disks:
        """What writes to the disks."""

    def joined(self, broker: RuntimeBroker) -> None:
        """A process has begun its run."""

    def run_over(self, process: RuntimeProcess) -> None:
        """A process ended itself."""

    def start_failed(self, broker: RuntimeBroker, error: BaseException) -> None:
        """A process could not join."""

    def controller(self) -> RuntimeProcess | None:
        """The controller, if there is one."""

    def topic_made(self, partitions: list[PartitionId]) -> None:
        """There is a topic with other partitions."""


class RuntimeBroker:
    """A slot of a group: its name, its machine with the disk, and the process that runs on it, if any."""

    def __init__(self, cluster: Home, name: str, group: str, incarnation: str) -> None:
        self._cluster = cluster
        self.name = name
        self.address = name
        self.group = group
        self.disk = MemoryDisk()
        self.directory = SimulatedDirectory(name, incarnation)
        self.process: RuntimeProcess | None = None
        self.refuses = True
        self.is_replaced = False  # the operator says at the next start that the disk was replaced
        self.joined_run = 0  # the last that the coordinator knows of
        self.is_awaited = False  # it is not there yet: an operator may add its broker group
        self.slow_until_us = 0
        self.slow_reads_until_us = 0  # reads are never slow here
        self.hung_until_us = 0
        self.full_since_us = 0
        self.full_until_us = 0
        self.backup: tuple[MemoryDisk, SimulatedDirectory] | None = None
        self.put_away: tuple[MemoryDisk, SimulatedDirectory] | None = None
        self.given_up: MemoryDisk | None = None
        self.copy: RuntimeBroker | None = None  # another machine with a copy of the directory, made while this one ran

    @property
    def member(self) -> MemberId:
        """Whose disk it is, or will be when a process takes it."""
        return MemberId(self.name, self.directory.incarnation or self.directory.next_incarnation)

    @property
    def run(self) -> int:
        """The last run that began."""
        return self.directory.run

    @property
    def suspect_before_run(self) -> int:
        """See `SimulatedDirectory`."""
        return self.directory.suspect_before_run

    @property
    def real_disk(self) -> MemoryDisk:
        """The disk at which the judge looks: the newest one, also while an older copy is in its place.

        Writes to a directory that was deleted are on no disk.
        """
        if self.given_up is not None:
            return self.given_up
        return self.put_away[0] if self.put_away is not None else self.disk

    def give_up(self) -> None:
        """The directory is deleted under the process that runs on it, which continues and notices nothing."""
        self.given_up = self.disk.twin()

    def ended_badly(self, *, machine: bool) -> None:
        """The run was ended by a fault: its directory is not marked clean, and perhaps the machine boots again."""
        if machine:
            self.directory.boot_now += 1

    def copied(self, address: str) -> RuntimeBroker:
        """Make another machine, with a copy of this disk and of the directory."""
        copy = RuntimeBroker(self._cluster, self.name, self.group, self.directory.incarnation)
        copy.disk, copy.directory = self.disk.twin(), self.directory.twin()
        copy.disk.crash(0)
        copy.address = address
        return copy

    def put_back(self, backup: tuple[MemoryDisk, SimulatedDirectory]) -> None:
        """An older copy takes the place of the disk, which is put away."""
        assert self.process is None
        self.put_away = (self.disk, self.directory)
        self.disk, self.directory = backup
        self.backup = None

    def take_back(self) -> None:
        """The disk that was put away is there again."""
        assert self.put_away is not None
        (self.disk, self.directory), self.put_away = self.put_away, None

    def replace_disk(self) -> None:
        """The slot gets an empty disk; the operator says so at its next start."""
        scene = self._cluster.scene
        scene.health.disk_is_lost(self)
        self.given_up = None
        self.disk.wipe()
        self.directory.wipe(self._cluster.setting.new_incarnation())
        self.is_replaced = True
        self.joined_run = 0
        self._cluster.schedule.tell("FAULT", f"{self.name} has lost its disk and will be {self.member}")

    def start(self) -> RuntimeProcess:
        """Start the next run on this disk; a violation if the broker is not there yet."""
        if self.is_awaited:
            raise Violation("WORLD", f"{self.name} is not there yet")
        assert self.process is None
        self.process = RuntimeProcess(self._cluster, self)
        self._cluster.network.machine_is_up(self.address)
        self._cluster.coordinator.knows(self.member)
        self.process.start()
        return self.process

    def start_again(self) -> None:
        """The supervisor starts it, unless a copy of its directory has taken the slot."""
        scene = self._cluster.scene
        if self._cluster.brokers[self.name] is not self:
            return
        scene.health.disturbed()
        if self.hung_until_us > self._cluster.schedule.now_us:
            self._cluster.schedule.at(self.hung_until_us, self.start_again)
        elif self.process is None:
            self.start()


class RuntimeProcess:
    """One run of a broker."""

    def __init__(self, cluster: Home, broker: RuntimeBroker) -> None:
        scene = cluster.scene
        self.broker = broker
        self.name = broker.name
        self.alive = True
        self.frozen = False
        self.is_stopping = False
        self._has_joined = False
        self._run_before = broker.run
        self.confirmed_before = broker.directory.seen.registered_run
        self._cluster = cluster
        self._scene = scene
        self._schedule = schedule = cluster.schedule
        rng = schedule.rng
        drift = rng.randint(-DRIFT_PPM_MAX, DRIFT_PPM_MAX)
        wall_ms = WALL_MS_START + rng.randint(-500, 500)
        self.clock = ProcessClock(schedule.time, rng.randint(1_000_000, 50_000_000), wall_ms, drift, rng)
        self.jump_wall = self.clock.jump
        self.loop = ProcessLoop(schedule.time, self.clock, self.name)
        self.watched: WatchedCore | None = None
        self._simulated: SimulatedBroker | None = None
        self._storage: ProcessStorage | None = None
        self._task: asyncio.Task[None] | None = None
        self._notes: list[asyncio.Task[None]] = []
        self._requests: dict[int, int] = {}
        self._streams: dict[int, int] = {}

    @property
    def member(self) -> MemberId:
        """Which disk it runs on."""
        return self.broker.member

    @property
    def run(self) -> int:
        """The run that it is; 0 until it has begun one."""
        return self.broker.run if self._has_joined or self.broker.run != self._run_before else 0

    @property
    def is_serving(self) -> bool:
        """Whether clients find it."""
        return self._simulated is not None and self._simulated.is_serving

    @property
    def durable_sequence(self) -> int:
        """How far its disk is durable."""
        assert self._storage is not None
        return self._storage.durable_sequence

    def note_watermark(self) -> None:
        """Have it note now how far its disk is durable, as it does from time to time."""
        runtime = self.simulated.runtime
        assert runtime is not None
        note = runtime.watermarks.note

        async def quietly() -> None:
            with contextlib.suppress(SeriatimError):  # the coordinator may be away
                await note()

        self.loop.call_soon(lambda: self._notes.append(self.loop.create_task(quietly(), name=f"note of {self.name}")))

    def dismisses(self, run: RunId) -> bool:
        """Whether it has read that this run is over."""
        runtime = self._simulated.runtime if self._simulated is not None else None
        return runtime is not None and runtime.directory.is_dismissed(run)

    @property
    def is_controller(self) -> bool:
        """Whether it is the controller, as far as it knows."""
        runtime = self._simulated.runtime if self._simulated is not None else None
        return self.is_serving and runtime is not None and runtime.controller.election.is_controller

    @property
    def simulated(self) -> SimulatedBroker:
        """The broker, once the process has begun."""
        assert self._simulated is not None
        return self._simulated

    def to_mono(self, time_us: int) -> int:
        """A virtual time on this process's monotonic clock."""
        return self.clock.at(time_us)

    # ---- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._schedule.mark(self.name, "start")
        self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        cluster, broker = self._cluster, self.broker
        rng = self._schedule.rng
        group, _, slot = self.name.rpartition("-")
        address = broker.address
        place = Place(CLUSTER, group, int(slot), address, replace_disk=broker.is_replaced, link_address=address)
        self._storage = cluster.disks.open(self)
        self._storage.look_full = lambda: broker.full_until_us > self._schedule.now_us
        machine = Machine(
            broker.directory,
            self._storage,
            cluster.network,
            cluster.coordinator.client(broker.address),
            self.clock,
            rng,
            _controlled(cluster.setting.options),
            BALANCING if cluster.setting.options.balanced else NO_BALANCING,
            self._measure_traffic,
            RETENTION if cluster.setting.options.retention_ms else RetentionSettings(),
        )
        self._simulated = SimulatedBroker(place, machine, self._make_core, self._die)
        self._task = self.loop.create_task(self._simulated.run(), name=f"broker {self.name}")
        self._task.add_done_callback(self._ended)

    def _make_core(self, identity: Identity, recovered: list[RecoveredPartition]) -> WatchedCore:
        scene = self._scene
        if self.broker.put_away is not None:
            scene.judge.fail("I14", f"{self.name} began run {identity.run} on an older copy of its disk")
        self._cluster.joined(self.broker)
        self.broker.is_replaced = False
        self.broker.joined_run = identity.run
        self._has_joined = True
        setting = self._cluster.setting
        core = setting.core_kind(
            setting.config,
            identity.member,
            identity.run,
            self._schedule.rng.randbytes(12),
            checksum,
            recovered,
            identity.suspect_before_run,
        )
        self._schedule.tell(self.name, f"joined as run {identity.run} of {identity.member}")
        self.watched = WatchedCore(core, self, self._schedule, scene.judge)
        return self.watched

    def _die(self, error: BaseException) -> None:
        """The broker's own code ended the process. It must if its run is certified falsely, and never otherwise."""
        if not self.alive:
            return
        if isinstance(error, RunOverError) and RunId(self.member, self.run) in self._scene.judge.seen.certified_falsely:
            self._schedule.after(0, self._run_over)
            return
        if isinstance(error, RunOverError):
            error = Violation("CERT", f"{self.name} lives, and was told that its run is over: {error}")
        self._schedule.time.fail(error)

    def _run_over(self) -> None:
        if self.alive:
            self._cluster.run_over(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing ends a broker but its machine or its supervisor, and a start that could not join."""
        if not self.alive or self.is_stopping:
            return
        error = None if task.cancelled() else task.exception()
        self._schedule.tell(self.name, f"ends by itself: {error!r}")
        if isinstance(error, Violation):
            self._schedule.time.fail(error)
            return
        if not isinstance(error, SeriatimError | TimeoutError) or self.is_serving:
            text = "".join(traceback.format_exception(error)) if error is not None else "no error"
            self._schedule.time.fail(Violation("CORE", f"{self.name} ended by itself: {text}"))
            return
        self._schedule.after(0, self._cluster.start_failed, self.broker, error)

    def stop(self, stopped: Callable[[], None]) -> None:
        """End cleanly: hand over, then close; `stopped` is called."""
        self.is_stopping = True
        self.loop.call_soon(self._begin_stop, stopped)

    def _begin_stop(self, stopped: Callable[[], None]) -> None:
        self._stop_task = self.loop.create_task(self._stop(stopped), name=f"stop {self.name}")

    async def _stop(self, stopped: Callable[[], None]) -> None:
        assert self._task is not None
        runtime = self.simulated.runtime
        assert runtime is not None
        for partition in self._cluster.setting.partitions:
            request = runtime.driver.new_request(lambda _reply: None)
            runtime.driver.feed(PlanSwitch(request, partition))
        await asyncio.sleep(HAND_OVER_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(SeriatimError):  # the coordinator may be away
            await self.simulated.stop()
        self._schedule.after(0, stopped)

    def freeze(self) -> None:
        """Do nothing until `thaw`."""
        self.frozen = True
        self.loop.freeze()

    def thaw(self) -> None:
        """Continue, with all that has come meanwhile."""
        self.frozen = False
        self.loop.thaw()

    def look_for_room(self) -> None:
        """A complete broker looks by itself."""

    def leave_network(self, *, silent: bool) -> None:
        """All its connections end. With `silent` (its machine went down) the other ends are not notified."""
        self._cluster.network.ended(self.broker.address, silent=silent)

    def end(self) -> None:
        """The process is no more."""
        self.alive = False
        self.broker.process = None
        if self._storage is not None:
            self._storage.end()
        self.loop.kill()

    async def _measure_traffic(self, broker: str, deadline_s: float) -> Measured:
        """What another broker took, if it answers in time. Its answer may be on its way while it dies."""
        rng = self._schedule.rng
        await asyncio.sleep(rng.randint(*MEASURE_US) / 1e6)
        asked = self._cluster.brokers[broker].process
        if asked is None or not asked.is_serving or asked.frozen:
            await asyncio.sleep(deadline_s)
            raise UnavailableError(f"{broker} does not say what it takes")
        runtime = asked.simulated.runtime
        assert runtime is not None
        measured: Measured = runtime.traffic.measure()
        await asyncio.sleep(rng.randint(*MEASURE_US) / 1e6)
        return measured

    # ---- clients ------------------------------------------------------------------------------------

    def asked_as(self, request: int) -> int:
        """The client's number of the request that the core knows as `request`; 0 if the runtime asked."""
        return self._requests.get(request, 0)

    def deliver(self, event: Event) -> None:
        """Something that a client (or a fault) asks of this broker."""
        if self.alive and self.is_serving:
            self.loop.call_soon(self._take, event)

    def _take(self, event: Any) -> None:
        runtime = self.simulated.runtime
        assert runtime is not None
        driver = runtime.driver
        request = getattr(event, "request", None)
        if request is not None:
            number = driver.new_request(lambda effect: self._reply(number, request, effect))
            self._requests[number] = request
            if isinstance(event, Append):
                runtime.traffic.add(event.partition, len(event.header.raw) + len(event.body))
                event = replace(event, request=number, refuse=self._overload())
            else:
                event = replace(event, request=number)
        stream = getattr(event, "stream", None)
        if stream is not None:
            known = self._streams.get(stream)
            if known is None:
                if isinstance(event, ConsumerGone):
                    return
                known = driver.new_stream(
                    lambda subscription, what: self._scene.clients.delivery(
                        self, fx.Deliver(stream, subscription, what)
                    )
                )
                self._streams[stream] = known
            if isinstance(event, ConsumerGone):
                driver.forget_stream(known)
                del self._streams[stream]
            event = replace(event, stream=known)
        driver.feed(event)

    def _overload(self) -> SeriatimError | None:
        """The servicer's question to the storage before it hands a batch in."""
        assert self._storage is not None
        if self._storage.is_saturated:
            return OverloadedError("the disk is behind", retry_after_ms=20)
        return None

    def _reply(self, number: int, request: int, effect: Any) -> None:
        del self._requests[number]
        self._scene.clients.answer(self, request, effect)


def serves(process: RuntimeProcess | None) -> TypeGuard[RuntimeProcess]:
    """Whether there is a process that clients find."""
    return process is not None and process.is_serving


def _controlled(options: Options) -> CaretakerSettings:
    """Times of the controller; if deleted records expire early, it looks often."""
    if options.deleted_kept_s is None:
        return CaretakerSettings(heal_after_s=HEAL_AFTER_S)
    return CaretakerSettings(
        heal_after_s=HEAL_AFTER_S, deleted_kept_s=options.deleted_kept_s, tidy_s=TIDY_S, forget_s=FORGET_S
    )
