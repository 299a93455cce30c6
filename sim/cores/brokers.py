"""A broker in the simulation: a disk that outlives its processes, and one process at a time around a `BrokerCore`.

A process carries out the effects of its core and gives it events. A frozen process lets events wait, and takes all of
them when it thaws. The numbers in messages to clients (of requests and streams) are given by `programs.clients`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seriatim_api.ids import MemberId, split_offset
from seriatim_broker.core.values import delayed_messages as dm
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import (
    DiskRoom,
    Event,
    KeysRead,
    LogRead,
    Moment,
    Persisted,
    RowsRead,
    Tick,
)
from seriatim_broker.core.values.keyed import KeyColumn
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_bodies import SimulatedBodies

from ..basics.interfaces import WALL_MS_START, checksum
from ..basics.schedule import Violation
from ..judge.watched_core import WatchedCore

if TYPE_CHECKING:
    from .cluster import CoreCluster
    from .network import End

Read = (
    fx.ReadLog
    | fx.ReadKeys
    | fx.ReadRows
    | fx.ReadDeadLetter
    | dm.ReadDue
    | dm.ReadPending
    | dm.ReadVolley
    | dm.FindDelayed
)


class Broker:
    """A slot of a group: its name, its disk, and the process that runs on it, if any."""

    def __init__(self, cluster: CoreCluster, name: str, group: str, incarnation: str) -> None:
        self._cluster = cluster
        self.name = name
        self.group = group
        self.member = MemberId(name, incarnation)
        self.disk = MemoryDisk()
        self.run = 0
        self.process: Process | None = None
        self.refuses = True  # a connection to it is refused while no process is there, not just lost
        self.suspect_before_run = 0
        self.slow_until_us = 0
        self.slow_reads_until_us = 0
        self.given_up: MemoryDisk | None = None
        self.hung_until_us = 0
        self.full_since_us = 0
        self.full_until_us = 0
        self._lost_memory = False

    @property
    def real_disk(self) -> MemoryDisk:
        """The disk at which the judge looks. Writes to a directory that was deleted are on no disk."""
        return self.given_up if self.given_up is not None else self.disk

    def give_up(self) -> None:
        """The directory is deleted under the process that runs on it, which continues and notices nothing."""
        self.given_up = self.disk.twin()

    def ended_badly(self, *, machine: bool) -> None:
        """A fault ended the run. Its unflushed writes may be gone, and the next run knows that."""
        self._lost_memory = True

    def replace_disk(self) -> None:
        """The slot gets an empty disk: another member, which has run never, and has to be admitted."""
        cluster, scene = self._cluster, self._cluster.scene
        scene.health.disk_is_lost(self)
        self.disk.wipe()
        self.member = MemberId(self.name, scene.setting.new_incarnation())
        self.run = self.suspect_before_run = 0
        self.given_up = None
        self._lost_memory = False
        scene.setting.schedule.tell("FAULT", f"{self.name} has lost its disk and is {self.member} now")
        for other in cluster.brokers.values():
            if other.process is not None:
                other.process.deliver(cluster.directory())

    def start(self) -> Process:
        """Start the next run on this disk."""
        assert self.process is None
        self.run += 1
        if self._lost_memory:
            self.suspect_before_run, self._lost_memory = self.run, False
        self.process = Process(self._cluster, self)
        self.process.start()
        self._cluster.coordinator.tell_certificates(self.name)
        return self.process

    def start_again(self) -> None:
        """The supervisor starts it, if no process is there."""
        self._cluster.scene.health.disturbed()
        if self.process is None:
            self.start()


class Process:
    """One run of a broker."""

    def __init__(self, cluster: CoreCluster, broker: Broker) -> None:
        scene = cluster.scene
        self.broker = broker
        self.name = broker.name
        self.member = broker.member
        self.run = broker.run
        self.alive = True
        self.is_serving = True
        self.frozen = False
        self.links: dict[str, End] = {}
        self.wanted: dict[str, bool] = {}
        self._cluster = cluster
        self._scene = scene
        self._schedule = scene.setting.schedule
        rng = scene.setting.schedule.rng
        self._mono_offset_us = rng.randint(1_000_000, 50_000_000)
        wrong_ms = rng.randint(-500, 500)
        self._wall_offset_ms = WALL_MS_START + (0 if scene.setting.clock_is_right(self.name) else wrong_ms)
        self._inbox: list[Event] = []
        self._wake_at_us: int | None = None
        self._flushing = False
        self._tokens: list[tuple[int, int]] = []
        self._durable_token = 0
        self._reported_token = 0
        self._handlers = self._make_handlers()
        self.core = scene.setting.core_kind(
            scene.setting.config,
            broker.member,
            broker.run,
            rng.randbytes(12),
            checksum,
            broker.disk.recover(),
            broker.suspect_before_run,
        )
        self.watched = WatchedCore(self.core, self, self._schedule, scene.judge)

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        """What carries out each effect."""
        return {
            fx.Persist: self._persist,
            fx.Send: self._send,
            fx.Connect: self._connect,
            fx.Disconnect: self._disconnect,
            fx.ReadLog: self._read_log,
            fx.ReadKeys: self._read_log,
            fx.ReadRows: self._read_log,
            fx.KeepMessage: lambda _effect: None,
            fx.ReadDeadLetter: self._read_log,
            fx.ForwardBatches: lambda effect: self._scene.forwards.send(self, effect),
            dm.ReadDue: self._read_log,
            dm.ReadPending: self._read_log,
            dm.ReadVolley: self._read_log,
            dm.FindDelayed: self._read_log,
            dm.FireVolleys: lambda effect: self._scene.delayed.fire(self, effect),
            dm.ReadFired: lambda effect: self._scene.delayed.read_fired(self, effect),
            dm.DelayedCancelled: self._answer_client,
            dm.PendingFound: self._answer_client,
            fx.ReadChain: self._ask_coordinator,
            fx.WriteChain: self._ask_coordinator,
            fx.ReadCertificate: self._ask_coordinator,
            fx.ReadCursor: self._ask_coordinator,
            fx.WriteCursor: self._ask_coordinator,
            fx.AppendAccepted: self._answer_client,
            fx.AppendRefused: self._answer_client,
            fx.Resolved: self._answer_client,
            fx.ConsumerResolved: self._answer_client,
            fx.ConsumerGroupDescribed: self._answer_client,
            fx.RangeRead: self._answer_client,
            fx.PartitionSurveyed: self._answer_client,
            fx.ConsumerGroupOperated: self._answer_client,
            fx.KeysListed: self._answer_client,
            fx.KeysOperated: self._answer_client,
            fx.CarriedOut: self._answer_client,
            fx.FetchStaged: lambda effect: self._scene.publishing.fetch(self, effect),
            fx.ReadWriter: lambda effect: self._scene.publishing.read_writer(self, effect),
            fx.Deliver: self._deliver_to_consumer,
            fx.Note: lambda effect: self._scene.forwards.noted(self, effect),
            fx.EndMemberRun: self._end_run,
        }

    def _moment(self) -> Moment:
        now = self._schedule.now_us
        return Moment(now + self._mono_offset_us, self.wall_ms)

    @property
    def wall_ms(self) -> int:
        """What its wall clock shows."""
        return self._schedule.now_us // 1000 + self._wall_offset_ms

    def asked_as(self, request: int) -> int:
        """The core is given the clients' numbers as they are."""
        return request

    def to_mono(self, time_us: int) -> int:
        """A virtual time on this process's monotonic clock."""
        return time_us + self._mono_offset_us

    def start(self) -> None:
        """Begin; the directory is known at once, as a process reads it before it serves."""
        self._schedule.mark(self.name, f"start {self.run}")
        self._carry_out(self.watched.start(self._moment()))
        self.deliver(self._cluster.directory())
        if self.broker.full_until_us > self._schedule.now_us:
            self.look_for_room()

    def jump_wall(self, by_ms: int) -> None:
        """The wall clock is set."""
        self._wall_offset_ms += by_ms

    def look_for_room(self) -> None:
        """Tell the core whether the disk is full."""
        self.deliver(DiskRoom(self.broker.full_until_us > self._schedule.now_us))

    # ---- events -------------------------------------------------------------------------------------

    def deliver(self, event: Event) -> None:
        """Hand an event to the core, now or when the process thaws."""
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(event)
            return
        self._carry_out(self.watched.step(event, self._moment()))

    def freeze(self) -> None:
        """Do nothing until `thaw`."""
        self.frozen = True

    def thaw(self) -> None:
        """Continue, with all that has come meanwhile."""
        self.frozen = False
        waiting, self._inbox = self._inbox, []
        if self._schedule.rng.random() < 0.5:
            waiting.insert(0, Tick())
        for event in waiting:
            self.deliver(event)
        self._wake_at_us = None
        self._set_timer()

    def leave_network(self, *, silent: bool) -> None:
        """All its links end. With `silent` (its machine went down) its peers are not notified."""
        self._cluster.network.process_ended(self, silent=silent)

    def end(self) -> None:
        """The process is no more."""
        self.alive = False
        self.broker.process = None

    def _set_timer(self) -> None:
        wake = self.core.next_wake_us()
        if wake is None:
            return
        at = max(wake - self._mono_offset_us, self._schedule.now_us + 1)
        if self._wake_at_us is None or at < self._wake_at_us:
            self._wake_at_us = at
            self._schedule.at(at, self._wake, at)

    def _wake(self, at: int) -> None:
        if self._wake_at_us != at or not self.alive or self.frozen:
            return
        self._wake_at_us = None
        self.deliver(Tick())

    # ---- effects ------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if not self.alive:
                return
            handler = self._handlers.get(type(effect))
            assert handler is not None, f"no handler for {effect}"
            handler(effect)
        if self.alive and not self.frozen:
            self._set_timer()

    def _persist(self, effect: fx.Persist) -> None:
        try:
            ticket = self.broker.disk.submit(effect.writes)
        except AssertionError as error:
            raise Violation("CORE", f"{self.name} writes {effect.writes}: {error}") from error
        self._tokens.append((ticket, effect.token))
        if not self._flushing:
            self._begin_flush()

    def _begin_flush(self) -> None:
        self._flushing = True
        ticket, _ = self._tokens[-1]
        self._schedule.after(self._scene.setting.flush_us(self.broker), self._flushed, ticket)

    def _flushed(self, ticket: int) -> None:
        if not self.alive:
            return
        self.broker.disk.flush(ticket)
        token = 0
        while self._tokens and self._tokens[0][0] <= ticket:
            token = self._tokens.pop(0)[1]
        self._flushing = False
        if self._tokens:
            self._begin_flush()
        self._durable_token = token
        if self._schedule.rng.random() < 0.3:
            self._schedule.after(self._schedule.rng.randint(10, 500), self._report_durable)
        else:
            self._report_durable()

    def _report_durable(self) -> None:
        """Tell the core how far its writes are on the disk: some time after they are, and never twice."""
        if self._reported_token < self._durable_token:
            self._reported_token = self._durable_token
            self.deliver(Persisted(self._durable_token))

    def _send(self, effect: fx.Send) -> None:
        self._cluster.network.send(self, effect.broker, effect.message)

    def _connect(self, effect: fx.Connect) -> None:
        self.wanted[effect.broker] = True
        self._cluster.network.dial(self, effect.broker)

    def _disconnect(self, effect: fx.Disconnect) -> None:
        self._cluster.network.disconnect(self, effect.broker, effect.session)

    def _read_log(self, effect: Read) -> None:
        slow = self.broker.slow_reads_until_us > self._schedule.now_us
        self._schedule.after(
            self._schedule.rng.randint(*((300_000, 900_000) if slow else (20, 500))), self._read, effect
        )

    def _read(self, effect: Read) -> None:
        if not self.alive:
            return
        if isinstance(effect, fx.ReadDeadLetter):
            self._scene.forwards.read(self, effect)
            return
        if isinstance(effect, dm.ReadDue | dm.ReadPending | dm.ReadVolley | dm.FindDelayed):
            self._scene.delayed.read(self, effect)
            return
        if isinstance(effect, fx.ReadRows):
            body = self._rows(effect)
            self.deliver(RowsRead(effect.serial, body, count=len(body) // 8 if body is not None else None))
        elif isinstance(effect, fx.ReadKeys):
            found = self.broker.disk.read(
                effect.partition, effect.segment_no, effect.from_index, effect.until_index, effect.max_bytes
            )
            bodies = SimulatedBodies()
            self.deliver(KeysRead(effect.serial, tuple(KeyColumn(one.header, bodies.keys(one)) for one in found)))
        else:
            batches = self.broker.disk.read(
                effect.partition, effect.segment_no, effect.from_index, effect.until_index, effect.max_bytes
            )
            self.deliver(LogRead(effect.serial, tuple(batches)))

    def _rows(self, effect: fx.ReadRows) -> bytes | None:
        """A body with these messages; None if one of them is not here."""
        bodies = SimulatedBodies()
        parts = []
        for offset in effect.offsets[: max(effect.bytes_max // 8, 1)]:  # a message has 8 bytes
            no, index = split_offset(offset)
            found = [batch for batch in effect.batches if batch.header.segment == no]
            found += self.broker.disk.read(effect.partition, no, index, index + 1, 1)
            one = next((one for one in found if one.header.base_index <= index < one.header.end_index), None)
            if one is None:
                return None
            row = index - one.header.base_index
            parts.append((bodies.open(one), range(row, row + 1)))
        return bodies.join(parts)

    def _ask_coordinator(self, effect: Any) -> None:
        self._cluster.coordinator.request(self, effect)

    def _answer_client(self, effect: Any) -> None:
        self._scene.clients.answer(self, effect.request, effect)

    def _end_run(self, _effect: fx.EndMemberRun) -> None:
        self._scene.health.run_over(self)

    def _deliver_to_consumer(self, effect: fx.Deliver) -> None:
        self._scene.clients.delivery(self, effect)
