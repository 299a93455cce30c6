"""Where the concrete classes meet: one broker put together, started, and stopped in the right order."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import SystemRandom

import grpc
import structlog
from seriatim_api.errors import PreconditionError, RunOverError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.tls import TlsSource
from seriatim_api.troubles import COORDINATOR_BEHIND, COORDINATOR_REFUSES, DISK_CONTRADICTS
from seriatim_api.v1 import broker_pb2_grpc, operations_pb2_grpc, publications_pb2_grpc

from .adapters.crc import crc32c
from .adapters.etcd import EtcdConfig, EtcdCoordinator, EtcdTls
from .adapters.passport import DataDirectory, KnownMember, boot_id, judge, open_directory
from .adapters.rocks.settings import RocksSettings
from .adapters.rocks.storage import RocksStorage
from .adapters.system_clock import SystemClock
from .bugs import ServedCalls
from .core.broker import BrokerCore
from .core.peers import behind
from .core.values.effects import Note
from .core.values.events import PlanSwitch
from .health import AdminPort
from .interfaces.link import PeerIdentity, PeerRefusedError, PeerSilentError
from .metrics import BrokerCollector, Counters, Exposition
from .rpc import known
from .rpc.admin import AdminServicer
from .rpc.balancing import BalancingServicer, measure_traffic
from .rpc.consuming import ConsumingServicer
from .rpc.limits import SERVER_OPTIONS
from .rpc.operations import OperationsServicer
from .rpc.outbound import BrokerCalls
from .rpc.peer import GrpcDialer, PeerServicer
from .rpc.peer_names import PeerNames
from .rpc.places import Places
from .rpc.producing import ProducingServicer
from .rpc.publications import PublicationsServicer
from .rpc.publishing import Publisher
from .rpc.ranges import RangesServicer
from .rpc.routing import RoutingServicer
from .rpc.services import Services
from .rpc.staging import Staging
from .rpc.transport import PLAIN, TlsTransport, Transport
from .runtime.assembly import Ground, Runtime
from .runtime.balancer import BalancerSettings
from .runtime.caretaker import CaretakerSettings
from .runtime.keys import Keys
from .runtime.membership import KnownDisk, Place, Seen, join, mark_clean
from .runtime.retention import RetentionSettings
from .runtime.traffic import Measured
from .settings import BrokerSettings
from .status_file import StatusFile
from .tls import admin_context, open_source, server_credentials

EXIT_STATUS_CRASHED = 70
"""A step of the core failed: EX_SOFTWARE of sysexits.h."""

EXIT_STATUS_RUN_OVER = 77
"""The run is certified to be over, or its data directory is gone (`RunOverError`): EX_NOPERM of sysexits.h."""

DIRECTORY_CHECK_S = 1.0
"""Between two looks whether the data directory is still there, and still the one that was opened."""

RUNNING_DEADLINE_S = 1.0
"""How long a start asks whether the last run of its disk still answers. A machine that is gone costs it."""

LAG_PERIOD_S = 0.05
"""How often the loop's lag is measured; one timer for the process."""

STOP_GRACE_S = 0.3
SWITCHES_AT_ONCE = (4, 64)
"""Of a graceful stop: fewest and most. A partition accepts nothing while it is switched, and switches side by side take
each other's time; so there are few at once, as long as all are done well before the deadline."""

SWITCHES_IN_A_ROW = 25
"""As many as fit into the deadline's first half, at some 50 ms each."""

_log = structlog.get_logger(__name__)


def end_process(error: BaseException) -> None:
    """What a failed step, or a run that is over, leads to: the process ends at once, and other members take over."""
    if isinstance(error, RunOverError):
        sys.stderr.write(f"seriatim: {error}\n")
    sys.stderr.flush()
    os._exit(EXIT_STATUS_RUN_OVER if isinstance(error, RunOverError) else EXIT_STATUS_CRASHED)


@dataclass(slots=True)
class _Disk:
    """The data directory as `runtime.membership` wants it."""

    directory: DataDirectory

    @property
    def member(self) -> MemberId:
        """Whose disk it is."""
        assert self.directory.passport is not None
        return self.directory.passport.member

    @property
    def run(self) -> int:
        """The number of the last run that began on it."""
        assert self.directory.passport is not None
        return self.directory.passport.run

    @property
    def suspect_before_run(self) -> int:
        """The run that followed the last one that did not end in order."""
        assert self.directory.passport is not None
        return self.directory.passport.suspect_before_run

    @property
    def has_data(self) -> bool:
        """Whether anything was ever stored on it."""
        return self.directory.has_data

    @property
    def seen(self) -> Seen:
        """What the passport keeps of the coordinator."""
        passport = self.directory.passport
        assert passport is not None
        return Seen(passport.registered_run, passport.coordinator_revision, passport.coordinator_rebuilt_at_ms)

    def raise_run(self) -> int:
        """Begin a run."""
        return self.directory.raise_run()

    def note_seen(self, seen: Seen) -> None:
        """Keep it in the passport."""
        self.directory.note_coordinator(seen.registered_run, seen.revision, seen.rebuilt_at_ms)


def _is_new(directory: DataDirectory, slot: KnownMember | None) -> bool:
    """Whether it is empty, or was taken by a start that ended before the slot was registered to it."""
    if directory.passport is None:
        return True
    is_other = slot is None or slot.incarnation != directory.passport.incarnation
    return is_other and not directory.has_data


def _coordinator_config(settings: BrokerSettings) -> EtcdConfig:
    files = settings.coordinator_tls_files
    return EtcdConfig(settings.coordinator, EtcdTls(files) if files is not None else None)


class Broker:
    """One broker in this process.

    Args:
        settings: Checked already.
        exposition: Where its samples are shown.
        die: Called when a step of the core failed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        exposition: Exposition,
        *,
        die: Callable[[BaseException], None] = end_process,
    ) -> None:
        self.settings = settings
        self._exposition = exposition
        self._end = die
        self._clock = SystemClock()
        self._keys = Keys(settings.cluster)
        self._status = StatusFile(settings.status_file, settings.broker)
        self.tls: TlsSource | None = None
        self._coordinator = EtcdCoordinator(_coordinator_config(settings))
        self._directory: DataDirectory | None = None
        self._storage: RocksStorage | None = None
        self._server: grpc.aio.Server | None = None
        self._duties: asyncio.Task[None] | None = None
        self._is_assembled = False
        self._is_joining = False
        self._is_serving = False
        self.counters = Counters()

    # ---- start ------------------------------------------------------------------------------------------

    def open_certificates(self) -> None:
        """Read the files of TLS, if there are any; `start` does it otherwise.

        Raises:
            SeriatimError: They cannot be used; the text says why and what to do.
        """
        if self.settings.tls_files is None or self.tls is not None:
            return
        try:
            self.tls = open_source(self.settings.tls_files, self.settings.broker)
        except BaseException as exc:
            self._status.failed(exc)
            raise

    async def start(self) -> None:
        """Join the cluster and serve.

        Raises:
            SeriatimError: It cannot; the text says why and what to do. Nothing is left running.
        """
        try:
            await self._start()
        except BaseException as exc:
            self._status.failed(exc)
            await self._abandon()
            raise

    async def _start(self) -> None:
        settings = self.settings
        self.open_certificates()
        self._transport: Transport = TlsTransport(self.tls) if self.tls is not None else PLAIN
        place = Place(
            settings.cluster,
            settings.group,
            settings.slot,
            settings.client_address,
            settings.replace_disk,
            settings.replace_disk_of,
        )
        self._is_joining = True
        try:
            self.identity = await join(
                self._coordinator,
                self._keys,
                place,
                self._open_disk,
                boot_id(),
                deadline_s=settings.join_deadline_s,
                is_running=self._is_running,
            )
        except TimeoutError as exc:
            addresses = ", ".join(settings.coordinator)
            why = await self._coordinator.trouble() or "is it running?"
            raise PreconditionError(f"the coordinator at {addresses} did not answer; {why}") from exc
        finally:
            self._is_joining = False
        self._status.joined(self.identity)
        self._open_storage()
        self._assemble()
        self._runtime.start()
        await self._listen()
        self._duties = asyncio.create_task(self._do_duties(), name=f"duties of {settings.broker}")
        self._is_serving = True
        _log.info("serving", broker=settings.broker, listen=settings.listen, advertise=settings.client_address)

    async def _is_running(self, cluster_id: str, address: str, run: RunId) -> bool:
        """Whether a process at that address says that it is that run."""
        identity = PeerIdentity(cluster_id, run.member, run.run)
        try:
            connection = await GrpcDialer(identity, self._transport).dial(address, RUNNING_DEADLINE_S)
        except (PeerRefusedError, PeerSilentError):
            return False
        await connection.abandon("it was only asked who it is")
        return (connection.peer.member, connection.peer.run) == (run.member, run.run)

    def _open_disk(self, cluster_id: str, known: KnownDisk | None, may_replace: bool) -> _Disk:
        directory = open_directory(self.settings.data, self.settings.broker, cluster_id, crc32c)
        self._directory = directory
        slot = KnownMember(known.incarnation, known.run) if known else None
        if not (may_replace and _is_new(directory, slot)):
            judge(directory.passport, slot)
        if directory.passport is None:
            directory.create(cluster_id, self.settings.broker)
        return _Disk(directory)

    def _open_storage(self) -> None:
        assert self._directory is not None
        rocks = RocksSettings(
            head_cache_size_bytes_max=self.settings.head_cache_size_bytes_max,
            reserve_percent=self.settings.disk_reserve_percent,
            reserve_bytes_min=self.settings.disk_reserve_size_bytes_min,
        )
        directory = self._directory
        storage = RocksStorage.open(
            directory.path, rocks, crc32c, is_expected=directory.has_storage, on_closed=directory.mark_clean
        )
        assert storage.room is not None
        storage.on_adopted = self._count_adopted
        self._storage, self._room = storage, storage.room
        directory.note_storage()

    def _assemble(self) -> None:
        """The parts, each with the ones that it needs."""
        settings, identity = self.settings, self.identity
        assert self._storage is not None
        self._core = BrokerCore(
            settings.core_config(),
            identity.member,
            identity.run,
            secrets.token_bytes(12),
            crc32c,
            self._storage.recover(),
            identity.suspect_before_run,
        )
        peer = PeerIdentity(identity.cluster_id, identity.member, identity.run)
        ground = Ground(
            self._storage,
            self._coordinator,
            GrpcDialer(peer, self._transport),
            self._clock,
            SystemRandom(),
            self.counters,
            self._die,
            self._measure_traffic,
            self._remember,
        )
        healing = CaretakerSettings(heal_after_s=settings.heal_after_s, deleted_kept_s=settings.deleted_kept_s)
        retention = RetentionSettings(
            settings.retention_look_s, settings.segment_age_s_max, settings.segment_size_bytes_max
        )
        runtime = self._runtime = Runtime(
            identity, self._keys, self._core, ground, settings.peers, healing, _balancing(settings), retention
        )
        self._driver = runtime.driver
        self._links = runtime.links
        self._directory_of_members = runtime.directory
        self._controller = runtime.controller
        self._names = self._peer_names()
        self._peer_servicer = PeerServicer(peer, self._links.carry_accepted, self._names)
        self._calls = BrokerCalls(self._directory_of_members, self._transport, settings.broker)
        self._services = Services(
            identity=identity,
            driver=self._driver,
            storage=self._storage,
            directory=self._directory_of_members,
            coordinator=self._coordinator,
            keys=self._keys,
            counters=self.counters,
            traffic=runtime.traffic,
            checksum=crc32c,
            batch_bytes_max=settings.batch_size_bytes_max,
            in_flight_bytes_max=settings.in_flight_size_bytes_max,
            disk_state=self._core.disk_state,
            quarantined_logs=self._core.quarantined_logs,
            is_alive=self._links.is_alive,
        )
        self._driver.on_note(self._count_note)
        places = Places(self._services, self._calls)
        self._staging = Staging(self._services, self._calls, places)
        self._publisher = Publisher(self._services, self._calls, places, self._staging)
        self._driver.on_fetch(self._staging.fetch)
        runtime.stage_floors.on_read(self._staging.manifest)
        runtime.taking_up.on_finish(self._publisher.finish_again)
        self._is_assembled = True
        self._exposition.add(BrokerCollector(settings.broker, self.counters, self._gauges()))

    async def _measure_traffic(self, broker: str, deadline_s: float) -> Measured:
        return await measure_traffic(self._calls, broker, deadline_s)

    def _peer_names(self) -> PeerNames | None:
        """Certificates can be checked where they are asked for."""
        if self.tls is None:
            return None
        if self.settings.tls_client_auth != "required":
            _log.warning("client_certificates_optional", note="neither clients nor brokers are asked who they are")
            return None
        directory = self._directory_of_members
        return PeerNames(
            lambda broker: filter(None, (directory.client_address(broker), directory.peer_address(broker))),
            directory.loaded,
        )

    async def _listen(self) -> None:
        server = grpc.aio.server(interceptors=(ServedCalls(),), options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers(
            (
                self._peer_servicer.handler(),
                ProducingServicer(self._services).handler(),
                ConsumingServicer(self._services).handler(),
                RangesServicer(self._services, self._calls).handler(),
            )
        )
        routing = RoutingServicer(self._services)
        admin = AdminServicer(self._services, self._controller, self._calls)
        operations = OperationsServicer(
            self._services,
            self._runtime.groups,
            self._runtime.gate,
            lambda after: known.tell(
                self._core, self.identity, self.settings.cluster, self.settings.client_address, after
            ),
        )
        broker_pb2_grpc.add_RoutingServicer_to_server(routing, server)  # type: ignore[no-untyped-call]
        broker_pb2_grpc.add_AdminServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
        operations_pb2_grpc.add_OperationsServicer_to_server(operations, server)  # type: ignore[no-untyped-call]
        publications = PublicationsServicer(
            self._services, self._controller, self._calls, self._publisher, self._staging, self._names
        )
        publications_pb2_grpc.add_PublicationsServicer_to_server(publications, server)  # type: ignore[no-untyped-call]
        balancing = BalancingServicer(self._services, self._controller, self._calls)
        operations_pb2_grpc.add_BalancingServicer_to_server(balancing, server)  # type: ignore[no-untyped-call]
        try:
            if self.tls is None:
                server.add_insecure_port(self.settings.listen)
            else:
                # The library keeps no reference to the credentials, which it calls at each handshake.
                self._credentials = server_credentials(self.tls, self.settings.tls_client_auth)
                server.add_secure_port(self.settings.listen, self._credentials)
        except RuntimeError as exc:
            raise PreconditionError(
                f"the broker cannot listen on {self.settings.listen}: it is taken, or not an address of this machine"
            ) from exc
        self._server = server
        await server.start()

    # ---- run --------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until something that must run has failed; that is then raised."""
        assert self._duties is not None
        try:
            await asyncio.shield(self._duties)
        except Exception as exc:
            problem = self._directory.problem(self.identity.run) if self._directory is not None else ""
            if problem:
                self._end_without_directory(problem)  # another duty met it first
            self._status.failed(exc)
            raise

    def _die(self, error: BaseException) -> None:
        """A step of the core failed."""
        self._status.failed(error)
        self._end(error)

    def not_ready(self) -> str:
        """Why this broker is not ready; empty if it is: admitted and serving."""
        if self._is_joining:
            return f"{self.settings.broker} waits for the coordinator at {', '.join(self.settings.coordinator)}"
        if not self._is_serving:
            return f"{self.settings.broker} is not serving"
        why = behind.reason(self._core.state)
        if why:
            return f"{self.settings.broker}: {COORDINATOR_BEHIND.line(why)}"
        if not self._core.ready:
            return f"{self.settings.broker} is still fencing what earlier runs left open"
        if not self._directory_of_members.is_admitted(self.identity.member):
            return f"{self.settings.broker} is not admitted yet"
        if missing := self._runtime.missing_link():
            return f"{self.settings.broker} has no link yet to {missing} of its group, which is live"
        stall_s = self._disk_stall_s()
        if stall_s * 1000 > self.settings.disk_hang_ms:
            return (
                f"the disk of {self.settings.broker} has completed no write for {stall_s:.1f} s: it hangs. The other "
                "members go on without this broker; look at the disk"
            )
        return ""

    def warnings(self) -> str:
        """What is wrong though this broker is ready, a line for each; empty if nothing is."""
        if not self._is_serving:
            return ""
        refusal = COORDINATOR_REFUSES.line(self._runtime.refusals.warning)
        quarantine = DISK_CONTRADICTS.line(self._quarantine_warning())
        return "\n".join(filter(None, (refusal, self._disk_warning(), quarantine)))

    def _quarantine_warning(self) -> str:
        """What to say of segments that the chain contradicts; empty if there are none."""
        kept = self._core.quarantined
        if not kept:
            return ""
        (partition, segment), count = next(iter(kept.items()))
        return (
            f"{len(kept)} segments on {self.settings.broker} end elsewhere than the cluster decided, because an older "
            f"copy of another disk decided it; the first is segment {segment} of partition {partition}, of which "
            f"{count} messages are kept here. This broker does not serve them. Keep this disk, and see the runbook "
            "disk-contradicts"
        )

    def _disk_warning(self) -> str:
        """What to say of a disk that is full; empty while there is room."""
        if not self._core.is_disk_full:
            return ""
        return (
            f"the disk of {self.settings.broker} has reached its reserve ({self._room.free_bytes >> 20} MiB of "
            f"{self._room.reserve_bytes >> 20} MiB are free): it takes no new messages, and heads move to groups with "
            "room. Add disks or broker groups, or delete topics that are not needed"
        )

    def not_alive(self) -> str:
        """Why a supervisor should end this process; empty if it should go on."""
        stall_s = self._disk_stall_s()
        if not 0 < self.settings.disk_hang_dead_s < stall_s:
            return ""
        return f"the disk of {self.settings.broker} has completed no write for {stall_s:.0f} s"

    def _disk_stall_s(self) -> float:
        """For how long the disk has completed nothing although a write waits."""
        return self._core.disk_stall_us(self._clock.monotonic_us()) / 1e6 if self._is_assembled else 0.0

    async def _do_duties(self) -> None:
        duties = [
            *self._runtime.duties(),
            ("loop lag", self._measure_lag()),
            ("watch over the data directory", self._watch_directory()),
        ]
        async with asyncio.TaskGroup() as group:
            for name, duty in duties:
                group.create_task(duty, name=f"{name} of {self.settings.broker}")

    async def _watch_directory(self) -> None:
        """End this run if its data directory is gone, or is another one by now (rule `directory-gone`, I12).

        Deleted files can be written as long as they are open. Each flush succeeds, and nothing of it can be read again
        once the process ends: a message would be acknowledged with one copy. A disk that hangs only delays the look.
        """
        directory = self._directory
        assert directory is not None
        while True:
            await asyncio.sleep(DIRECTORY_CHECK_S)
            problem = await asyncio.to_thread(directory.problem, self.identity.run)
            if problem:
                self._end_without_directory(problem)
                return

    async def _remember(self, seen: Seen) -> None:
        """Keep on the disk what was seen of the coordinator."""
        assert self._directory is not None
        await asyncio.to_thread(_Disk(self._directory).note_seen, seen)

    def _end_without_directory(self, problem: str) -> None:
        """End this run at once: a stop in order would write to a directory that is gone."""
        error = RunOverError(
            f"{problem}. What was acknowledged as replicated is on other members too; what this run would "
            "write from now on could not be read again. Remedy: if the disk can be brought back, start the "
            "broker with it; if not, start once with an empty directory and --replace-disk",
            member=str(self.identity.member),
            run=self.identity.run,
        )
        _log.critical("run_over", error=str(error))
        self._die(error)

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.counters.loop_lag_s.observe(max(0.0, loop.time() - due_s))

    def _count_note(self, note: Note) -> None:
        fields = dict(note.fields)
        if note.name == "trimmed":
            messages, size_bytes = fields["messages"], fields["bytes"]
            assert isinstance(messages, int)
            assert isinstance(size_bytes, int)
            self.counters.retention_trims += 1
            self.counters.retention_dropped_messages += messages
            self.counters.retention_dropped_bytes += size_bytes
        if note.name == "switched":
            self.counters.add(self.counters.switches, str(fields.get("reason", "unknown")))
            took_us = fields.get("took_us")
            if isinstance(took_us, int):
                self.counters.switch_gap_s.observe(took_us / 1e6)

    def _count_adopted(self, size_bytes: int) -> None:
        self.counters.adopted_bytes += size_bytes

    def _gauges(self) -> dict[str, tuple[str, Callable[[], float]]]:
        assert self._storage is not None
        storage = self._storage
        return {
            "partitions": ("Partitions that this broker keeps in memory", lambda: len(self._core.partitions)),
            "producers": ("Producers that its open segments remember", lambda: sum(self._producer_counts())),
            "producers_max": (
                "The same of the partition that remembers most",
                lambda: max(self._producer_counts(), default=0),
            ),
            "streams": ("Append and consume streams", lambda: self._services.stream_count),
            "in_flight_bytes": ("Batches taken and not answered", lambda: self._services.in_flight_bytes),
            "links_up": ("Links to other brokers that stand", lambda: self._links.up_count),
            "storage_queue": ("Writes handed to the storage and not durable", lambda: self._driver.unflushed_count),
            "storage_saturated": ("Whether appends are refused for the disk", lambda: float(storage.is_saturated)),
            "kept_scans": ("Places of sequential readers that the storage keeps", lambda: storage.reader.scan_count),
            "read_ahead_bytes": ("Read ahead of them, or being read", lambda: storage.reader.bytes_ahead),
            "retained_bytes": (
                "Kept, on one disk, of the partitions with retention that this broker leads",
                lambda: self._runtime.retention.figures.retained_bytes,
            ),
            "retained_seconds": (
                "Age of the oldest message that is kept of them",
                lambda: self._runtime.retention.figures.retained_s,
            ),
            "retention_unread_ratio": (
                "How near the oldest message of them that a group has not read is to being dropped; 1: it goes",
                lambda: self._runtime.retention.figures.unread_ratio,
            ),
            "retention_unread_seconds": (
                "Until that message is dropped for its age; infinite if none is",
                lambda: self._runtime.retention.figures.unread_s,
            ),
            "publications_waiting": (
                "Publications that are decided and not finished, as the controller sees them",
                lambda: self._runtime.taking_up.waiting_count,
            ),
            "publications_waiting_seconds": (
                "For how long the oldest of them has been decided",
                lambda: self._runtime.taking_up.waiting_s,
            ),
            "publication_bytes": (
                "Staged batches in memory for publications that are carried out here, fetched or not committed",
                lambda: self._core.state.carried_bytes,
            ),
            "disk_full": ("Whether the disk has reached its reserve", lambda: float(self._core.is_disk_full)),
            "disk_free_bytes": ("Free on the disk", lambda: self._room.free_bytes),
            "disk_reserve_bytes": ("Kept free of new messages on the disk", lambda: self._room.reserve_bytes),
            "quarantined_segments": (
                "Segments that are kept and not served, because the chain contradicts this disk",
                lambda: len(self._core.quarantined),
            ),
            "disk_stall_seconds": (
                "For how long the disk has completed nothing although a write waits",
                self._disk_stall_s,
            ),
            "posted_events": ("Events that wait for their slice of the loop", lambda: self._driver.posted_count),
            "coordinator_behind": (
                "Whether the coordinator has lost decisions that this broker knows of",
                lambda: float(bool(self._core.state.coordinator.behind)),
            ),
            "coordinator_refuses": (
                "Whether the coordinator answers and refuses to write",
                lambda: float(self._runtime.refusals.is_refusing),
            ),
            "coordinator_transactions": ("Transactions under way", lambda: self._runtime.work.pending_count),
            "balance_excess": (
                "How much the busiest group is above the mean, as a ratio, at the last look of this controller",
                lambda: self._controller.balancer.excess,
            ),
            "controller": ("Whether this broker is the controller", lambda: float(self._controller.election.is_leader)),
            "ready": ("Whether this broker is admitted and serving", lambda: float(not self.not_ready())),
        }

    def _producer_counts(self) -> Iterator[int]:
        """How many producers each open segment here remembers."""
        for partition in self._core.partitions.values():
            log = partition.open_log()
            if log is not None and log.table is not None:
                yield log.table.producer_count

    # ---- stop -------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hand over, then end in order: whatever was acknowledged is durable and marked clean. Idempotent."""
        if not self._is_serving:
            return
        _log.info("stopping", broker=self.settings.broker)
        self._is_serving = False
        self._services.is_stopping = True
        await self._controller.election.resign()
        await self._hand_over()
        await self._end_duties()
        assert self._server is not None
        await self._server.stop(STOP_GRACE_S)
        await self._links.close()
        await self._driver.stop()
        await self._runtime.work.close()
        await self._calls.close()
        assert self._storage is not None
        await self._storage.close()
        try:
            await mark_clean(self._coordinator, self._keys, self.identity.run_id)
        except SeriatimError as exc:
            _log.warning("clean_mark_not_registered", error=str(exc))
        await self._runtime.lease.revoke()
        await self._coordinator.close()
        assert self._directory is not None
        self._directory.release()
        _log.info("stopped", broker=self.settings.broker)

    async def _hand_over(self) -> None:
        """Planned switches of all open segments that this broker is a member of, within the deadline."""
        mine = [
            partition.id
            for partition in self._core.partitions.values()
            if partition.chain is not None and self.identity.member in partition.chain.open_segment.members
        ]
        if not mine or not self.settings.stop_deadline_s:
            return
        fewest, most = SWITCHES_AT_ONCE
        slots = asyncio.Semaphore(min(most, max(fewest, len(mine) // SWITCHES_IN_A_ROW)))
        moved = 0

        async def move(partition: PartitionId) -> None:
            nonlocal moved
            async with slots:
                try:
                    reply = await self._services.ask_core(
                        lambda number: PlanSwitch(number, partition), self.settings.stop_deadline_s
                    )
                    moved += getattr(reply, "error", None) is None
                except SeriatimError as exc:
                    _log.info("not_handed_over", partition=partition, error=str(exc))

        tasks = [asyncio.create_task(move(partition), name=f"hand over {partition}") for partition in mine]
        await asyncio.wait(tasks, timeout=self.settings.stop_deadline_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _log.info("handed_over", segments=moved, of=len(mine))

    async def _end_duties(self) -> None:
        if self._duties is not None:
            self._duties.cancel()
            await asyncio.gather(self._duties, return_exceptions=True)

    async def _abandon(self) -> None:
        """Give back what a failed start has taken. The run began, and is certified by the next one."""
        await self._end_duties()
        if self._server is not None:
            await self._server.stop(None)
        if self._is_assembled:
            await self._links.close()
            await self._driver.stop()
            await self._runtime.work.close()
            await self._calls.close()
        if self._storage is not None:
            await self._storage.close()
        if self._directory is not None:
            self._directory.release()
        await self._coordinator.close()


def _balancing(settings: BrokerSettings) -> BalancerSettings:
    return BalancerSettings(
        settings.balance_interval_s,
        settings.balance_moves_per_s,
        settings.balance_threshold,
        settings.balance_floor_bytes_per_s,
        settings.balance_steady_s,
        settings.balance_move_again_s,
    )


async def serve_admin(address: str, exposition: Exposition, brokers: list[Broker]) -> AdminPort | None:
    """The admin port of a process, with the certificates of its first broker; None if no address is given."""
    if not address:
        return None
    tls = brokers[0].tls

    def not_ready() -> str:
        return "\n".join(filter(None, (broker.not_ready() for broker in brokers)))

    def warnings() -> str:
        return "\n".join(filter(None, (broker.warnings() for broker in brokers)))

    def not_alive() -> str:
        return "; ".join(filter(None, (broker.not_alive() for broker in brokers)))

    context = admin_context(tls) if tls is not None else None
    port = AdminPort(exposition.page, not_ready, not_alive, context, warnings)
    await port.start(address)
    return port
