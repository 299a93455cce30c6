"""The composition root: it makes one broker out of the concrete classes, starts it, and stops it in the right order."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import SystemRandom

import grpc
import structlog
from seriatim_api.errors import PreconditionError, RunOverError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.network.tls import TlsSource
from seriatim_api.network.tls_contexts import TlsContexts
from seriatim_api.troubles import COORDINATOR_BEHIND, COORDINATOR_REFUSES, DISK_CONTRADICTS
from seriatim_api.v1 import (
    broker_pb2_grpc,
    dead_letters_pb2_grpc,
    delayed_pb2_grpc,
    operations_pb2_grpc,
    publications_pb2_grpc,
)

from .adapters.arrow_bodies import ArrowBodies
from .adapters.crc import crc32c
from .adapters.etcd import EtcdConfig, EtcdCoordinator, EtcdTls
from .adapters.identity_file import DataDirectory, KnownMember, boot_id, judge, open_directory
from .adapters.rocks.settings import RocksSettings
from .adapters.rocks.storage import RocksStorage, log_end
from .adapters.system_clock import SystemClock
from .core.broker import BrokerCore
from .core.peers import lost_decisions
from .core.values.effects import Note
from .core.values.events import PlanSwitch
from .counters.broker import Counters
from .interfaces.link import PeerIdentity
from .metrics.broker import BrokerCollector, Exposition
from .metrics.certificate_ends import CertificateEnds
from .metrics.cluster import ClusterMeter
from .metrics.consumer_groups import ConsumerGroupMeter
from .metrics.topics import TopicMeter
from .process.health import AdminPort
from .process.settings import BrokerSettings
from .process.status_file import StatusFile
from .process.tls import admin_context, open_source, server_credentials
from .rpc.calls.addresses import Addresses
from .rpc.calls.broken_assertions import ServedCalls
from .rpc.calls.limits import SERVER_OPTIONS
from .rpc.calls.outbound import BrokerCalls
from .rpc.calls.services import Services
from .rpc.calls.transport import PLAIN, TlsTransport, Transport
from .rpc.distributed.fired_reads import FiredReads
from .rpc.distributed.forwards import Forwards
from .rpc.distributed.master_appends import MasterAppends
from .rpc.distributed.pending import PendingCalls
from .rpc.distributed.places import Places
from .rpc.distributed.publisher import Publisher
from .rpc.distributed.staged_data import StagedData
from .rpc.links.link import LinkDialer, LinkListener
from .rpc.links.listening_sockets import Bound, bind
from .rpc.links.peer_names import PeerNames
from .rpc.servicers import rebuild_reports
from .rpc.servicers.admin import AdminServicer
from .rpc.servicers.balancing import BalancingServicer, measure_traffic
from .rpc.servicers.dead_letters import DeadLettersServicer
from .rpc.servicers.delayed import DelayedServicer, count_delayed
from .rpc.servicers.operations import OperationsServicer
from .rpc.servicers.owners import OwnersServicer
from .rpc.servicers.publications import PublicationsServicer
from .rpc.servicers.ranges import RangesServicer
from .rpc.servicers.routing import RoutingServicer
from .rpc.streams.over_grpc import GrpcStreams
from .rpc.streams.over_tcp import TcpStreams
from .runtime.assembly import Ground, Runtime
from .runtime.controller.balancer import BalancerSettings
from .runtime.controller.caretaker import CaretakerSettings
from .runtime.coordinator.keys import Keys
from .runtime.coordinator.topic_changes import TopicChanges
from .runtime.coordinator.topic_feed import TopicFeed
from .runtime.coordinator.topic_limits import TopicLimits
from .runtime.driver.traffic import Measured
from .runtime.duties.retention import RetentionSettings
from .runtime.membership.external_address import ExternalAddress
from .runtime.membership.lost_records import LostRecords
from .runtime.membership.registration import KnownDisk, Place, Seen, is_running, join, mark_clean

EXIT_STATUS_CRASHED = 70
"""A step of the core failed: EX_SOFTWARE of sysexits.h."""

EXIT_STATUS_RUN_OVER = 77
"""This member run is certified to be over, or its data directory is gone (`RunOverError`): EX_NOPERM of sysexits.h."""

DIRECTORY_CHECK_S = 1.0
"""Between two checks that the data directory is still there, and is still the one that this member run opened."""

STOP_GRACE_S = 0.3
"""How long a stop lets calls and streams end by themselves."""

SWITCHES_AT_ONCE = (4, 64)
"""Fewest and most switches that a graceful stop runs side by side.

A partition accepts nothing during its switch, and switches side by side slow each other down. So a stop runs few at
once, if all of them can still end well before the deadline."""

SWITCHES_IN_A_ROW = 25
"""The number of switches, one after another, that fit into the first half of the deadline, at about 50 ms each."""

_COUNTED_NOTES = {
    "dead_lettered": "dead_letters",
    "grants_expired": "expired_grants",
    "key_parked": "keys_parked",
}
"""Notes of the core that are counted for a consumer group, with the count."""

_log = structlog.get_logger(__name__)


def end_process(error: BaseException) -> None:
    """End the process at once, after a failed step or at the end of this member run. Other members take over.

    The exit status is 77 for a `RunOverError`, and 70 for any other error.
    """
    if isinstance(error, RunOverError):
        sys.stderr.write(f"seriatim: {error}\n")
    sys.stderr.flush()
    os._exit(EXIT_STATUS_RUN_OVER if isinstance(error, RunOverError) else EXIT_STATUS_CRASHED)


@dataclass(slots=True)
class _Disk:
    """The data directory, as seen through the interface that `runtime.membership` wants."""

    directory: DataDirectory
    storage: RocksSettings

    @property
    def member(self) -> MemberId:
        """The member to which this disk belongs."""
        assert self.directory.identity_file is not None
        return self.directory.identity_file.member

    @property
    def run(self) -> int:
        """The number of the last member run that began on this disk."""
        assert self.directory.identity_file is not None
        return self.directory.identity_file.run

    @property
    def suspect_before_run(self) -> int:
        """The member run after the last one that did not end cleanly."""
        assert self.directory.identity_file is not None
        return self.directory.identity_file.suspect_before_run

    @property
    def has_data(self) -> bool:
        """Whether a broker ever stored data on this disk."""
        return self.directory.has_data

    @property
    def seen(self) -> Seen:
        """What the identity file keeps about the coordinator."""
        identity_file = self.directory.identity_file
        assert identity_file is not None
        return Seen(
            identity_file.registered_run, identity_file.coordinator_revision, identity_file.coordinator_rebuilt_at_ms
        )

    def log_end(self, enough: int) -> int:
        """Up to which sequence number the database has writes; 0 on a new disk."""
        return log_end(self.directory.path, self.storage, crc32c, enough)

    def raise_run(self) -> int:
        """Begin a member run: write the next number into the identity file, and return it."""
        return self.directory.raise_run()

    def note_seen(self, seen: Seen) -> None:
        """Write it into the identity file."""
        self.directory.note_coordinator(seen.registered_run, seen.revision, seen.rebuilt_at_ms)


async def _lost(lost_records: LostRecords, core: BrokerCore) -> str:
    """See `Services.lost`.

    Raises:
        CoordinatorUnavailableError: The coordinator does not answer.
    """
    lost = await lost_records.lost()
    return lost_decisions.reason(core.state) or (lost_decisions.told(lost) if lost else "")


def _is_new(directory: DataDirectory, slot: KnownMember | None) -> bool:
    """Whether the directory is empty, or a start took it but ended before it registered the directory for its slot."""
    if directory.identity_file is None:
        return True
    is_other = slot is None or slot.incarnation != directory.identity_file.incarnation
    return is_other and not directory.has_data


def _coordinator_config(settings: BrokerSettings) -> EtcdConfig:
    files = settings.coordinator_tls_files
    return EtcdConfig(settings.coordinator, EtcdTls(files) if files is not None else None)


class Broker:
    """One broker in this process.

    Args:
        settings: From `settings.load`, which has checked them.
        exposition: The metrics page to which this broker adds its samples.
        die: Called when a step of the core failed, or when this member run is over.
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
        self._rocks = RocksSettings(
            head_cache_size_bytes_max=settings.head_cache_size_bytes_max,
            reserve_percent=settings.disk_reserve_percent,
            reserve_bytes_min=settings.disk_reserve_size_bytes_min,
        )
        self._bodies = ArrowBodies()
        self._storage: RocksStorage | None = None
        self._servers: list[grpc.aio.Server] = []
        self._streams: TcpStreams | None = None
        self._bound_links: Bound | None = None
        self._credentials: list[grpc.ServerCredentials] = []
        self._duties: asyncio.Task[None] | None = None
        self._is_assembled = False
        self._is_joining = False
        self._is_serving = False
        self.counters = Counters()

    # ---- start ------------------------------------------------------------------------------------------

    def open_certificates(self) -> None:
        """Read the TLS files, if the settings name any. If you do not call this, `start` does.

        Raises:
            SeriatimError: The files cannot be used; the text says why and what to do.
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

        If this call fails or is cancelled, it ends what it had started. Its member run may have begun: then the next
        start on this disk certifies that it has ended.

        Raises:
            SeriatimError: The broker cannot start; the text says why and what to do.
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
        self._tls_contexts = TlsContexts(self.tls, settings.tls_client_auth) if self.tls is not None else None
        if settings.links.endswith(":0"):  # other brokers are sent the port, so it is taken before the broker joins
            self._bound_links = await bind(settings.links, "links")
        self._place = Place(
            settings.cluster,
            settings.group,
            settings.slot,
            settings.client_address,
            settings.replace_disk,
            settings.replace_disk_of,
            settings.link_address(self._bound_links.address if self._bound_links else settings.links),
            settings.stream_port,
        )
        self._is_joining = True
        try:
            joining = join(
                self._coordinator,
                self._keys,
                self._place,
                self._open_disk,
                boot_id(),
                self._clock,
                deadline_s=settings.join_deadline_s,
                is_running=self._is_running,
            )
            # Each batch that comes is checked by what is loaded here, so nothing is served before.
            self.identity, _ = await asyncio.gather(joining, asyncio.to_thread(self._bodies.prepare))
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
        """See `runtime.membership.registration.is_running`."""
        identity = PeerIdentity(cluster_id, run.member, run.run)
        return await is_running(LinkDialer(identity, self._tls_contexts), address, run)

    def _open_disk(self, cluster_id: str, known: KnownDisk | None, may_replace: bool) -> _Disk:
        directory = open_directory(self.settings.data, self.settings.broker, cluster_id, crc32c)
        self._directory = directory
        slot = KnownMember(known.incarnation, known.run) if known else None
        if not (may_replace and _is_new(directory, slot)):
            judge(directory.identity_file, slot)
        if directory.identity_file is None:
            directory.create(cluster_id, self.settings.broker)
        return _Disk(directory, self._rocks)

    def _open_storage(self) -> None:
        assert self._directory is not None
        directory = self._directory
        storage = RocksStorage.open(
            directory.path, self._rocks, crc32c, is_expected=directory.has_storage, on_closed=directory.mark_clean
        )
        assert storage.room is not None
        storage.on_adopted = self._count_adopted
        self._storage, self._room = storage, storage.room
        directory.note_storage()

    def _assemble(self) -> None:
        """Make the parts of the broker, each with the parts that it needs."""
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
            LinkDialer(peer, self._tls_contexts),
            self._clock,
            SystemRandom(),
            self.counters,
            self._die,
            self._measure_traffic,
            self._remember,
            self._bodies,
        )
        healing = CaretakerSettings(heal_after_s=settings.heal_after_s, deleted_kept_s=settings.deleted_kept_s)
        retention = RetentionSettings(
            settings.retention_look_s, settings.segment_age_s_max, settings.segment_size_bytes_max
        )
        runtime = self._runtime = Runtime(
            identity,
            self._keys,
            self._core,
            ground,
            settings.peers,
            healing,
            _balancing(settings),
            retention,
            settings.retry_cache_size_bytes_max,
            settings.link_peers,
        )
        self._driver = runtime.driver
        self._links = runtime.links
        self._directory_of_members = runtime.directory
        self._controller = runtime.controller
        self._names = self._peer_names()
        self._listener = LinkListener(peer, self._links.carry_accepted, self._names, self._tls_contexts)
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
            bodies=self._bodies,
            batch_bytes_max=settings.batch_size_bytes_max,
            topic_limits=(topic_limits := TopicLimits(settings.batch_size_bytes_max)),
            in_flight_bytes_max=settings.in_flight_size_bytes_max,
            disk_state=self._core.disk_state,
            lost=partial(_lost, runtime.lost_records, self._core),
            note_revision=runtime.lost_records.note,
            quarantined_logs=self._core.quarantined_logs,
            is_alive=self._links.is_alive,
        )
        self._driver.on_note(self._count_note)
        places = Places(self._services, self._calls)
        self._staging = StagedData(self._services, self._calls, places)
        self._publisher = Publisher(self._services, self._calls, places, self._staging)
        self._driver.on_fetch(self._staging.fetch)
        self._forwards = Forwards(self._services, MasterAppends(self._services, self._calls))
        runtime.retention.on_pending(PendingCalls(self._services, self._calls).first)
        read_fired = FiredReads(self._services, self._calls).read
        self._driver.on_forward(self._forwards.forward, self._forwards.fire, read_fired)
        runtime.stage_floors.on_read(self._staging.manifest)
        runtime.unfinished_publications.on_finish(self._publisher.finish_again)
        self._is_assembled = True
        self._exposition.add(BrokerCollector(settings.broker, self.counters, self.gauges(), self._certificate_ends()))
        self._meter = ConsumerGroupMeter(
            settings.broker, self._core, self._storage, self._clock.wall_ms, self.counters.groups,
            lambda: runtime.retention.unread(self._leads), settings.group_series_max,
        )  # fmt: skip
        self._topic_meter = TopicMeter(settings.broker, self._core, settings.topic_series_max, runtime.delayed.by_topic)
        self._feed = TopicFeed(runtime.coordinator, self._keys)
        self._news = TopicChanges(runtime.coordinator, self._keys, lambda: runtime.lease.is_held, topic_limits)
        self._cluster_meter = ClusterMeter(
            settings.broker, self._feed, self._directory_of_members, runtime.is_there,
            lambda: self._controller.election.is_controller, runtime.copies_wanted, self._clock,
        )  # fmt: skip
        for collector in (self._meter, self._topic_meter, self._cluster_meter):
            self._exposition.add(collector)

    async def _measure_traffic(self, broker: str, deadline_s: float) -> Measured:
        return await measure_traffic(self._calls, broker, deadline_s)

    def _peer_names(self) -> PeerNames | None:
        """The check of other brokers' certificates. None if there is no TLS, or if clients need no certificate."""
        if self.tls is None:
            return None
        if self.settings.tls_client_auth != "required":
            _log.warning(
                "client_certificates_optional",
                note="every program that reaches this port can do what a broker can do: neither clients nor brokers "
                "must show a certificate. To require one, set tls_client_auth to required",
            )
            return None
        directory = self._directory_of_members
        return PeerNames(
            lambda broker: filter(None, (directory.client_address(broker), directory.peer_address(broker))),
            directory.loaded,
        )

    async def _listen(self) -> None:
        """Open all ports. Clients outside have a port of their own, and streams over gRPC only."""
        owners = OwnersServicer(self._services, self._forwards.masters, self._leads)
        self._runtime.delayed.on_ask(partial(count_delayed, self._calls))
        members = self._directory_of_members
        inside = Addresses(members, members.client_address, members.stream_port)
        self._streams = TcpStreams(self._services, inside, self._tls_contexts)
        stream_port = 0
        if self.settings.stream_listen:
            stream_port = int((await self._streams.start(self.settings.stream_listen)).rpartition(":")[2])
            stream_port = self.settings.stream_advertise_port or stream_port
        await self._serve(self.settings.listen, inside, owners, stream_port)
        await self._listener.start(self._bound_links or self.settings.links)
        if self.settings.external_listen:
            await self._serve(self.settings.external_listen, Addresses(members, members.external_address), owners, 0)

    async def _serve(self, listen: str, addresses: Addresses, owners: OwnersServicer, stream_port: int) -> None:
        server = grpc.aio.server(interceptors=(ServedCalls(),), options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers(
            (
                *GrpcStreams(self._services, addresses).handlers(),
                RangesServicer(self._services, self._calls, addresses).handler(),
            )
        )
        routing = RoutingServicer(self._services, addresses, self._news, stream_port)
        admin = AdminServicer(self._services, self._controller, self._calls, self._feed, addresses)
        operations = OperationsServicer(
            self._services,
            self._runtime.groups,
            self._runtime.gate,
            lambda after: rebuild_reports.tell(self._core, self.identity, self._place, after),
        )
        broker_pb2_grpc.add_RoutingServicer_to_server(routing, server)  # type: ignore[no-untyped-call]
        broker_pb2_grpc.add_AdminServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
        operations_pb2_grpc.add_OperationsServicer_to_server(operations, server)  # type: ignore[no-untyped-call]
        publications = PublicationsServicer(
            self._services, self._controller, self._calls, self._publisher, self._staging, self._names, addresses
        )
        publications_pb2_grpc.add_PublicationsServicer_to_server(publications, server)  # type: ignore[no-untyped-call]
        dead_letters = DeadLettersServicer(self._services, self._forwards, self._bodies, self._names)
        dead_letters_pb2_grpc.add_DeadLettersServicer_to_server(dead_letters, server)  # type: ignore[no-untyped-call]
        delayed = DelayedServicer(self._services, self._calls, addresses, self._runtime.delayed.pending)
        delayed_pb2_grpc.add_DelayedServicer_to_server(delayed, server)  # type: ignore[no-untyped-call]
        owners.add_to(server)
        balancing = BalancingServicer(self._services, self._controller, self._calls)
        operations_pb2_grpc.add_BalancingServicer_to_server(balancing, server)  # type: ignore[no-untyped-call]
        self._open_port(server, listen)
        self._servers.append(server)
        await server.start()

    def _open_port(self, server: grpc.aio.Server, listen: str) -> None:
        try:
            if self.tls is None:
                server.add_insecure_port(listen)
            else:
                # gRPC calls the credentials at each handshake, but keeps no reference to them.
                credentials = server_credentials(self.tls, self.settings.tls_client_auth)
                self._credentials.append(credentials)
                server.add_secure_port(listen, credentials)
        except RuntimeError as exc:
            raise PreconditionError(
                f"the broker cannot listen on {listen}: another process uses this port, or it is not an address of "
                "this machine"
            ) from exc

    # ---- run --------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until one of the broker's duties fails, and raise its error. Cancelling ends only the wait."""
        assert self._duties is not None
        try:
            await asyncio.shield(self._duties)
        except Exception as exc:
            problem = self._directory.problem(self.identity.run) if self._directory is not None else ""
            if problem:
                self._end_without_directory(problem)  # another duty failed because of it before the check found it
            self._status.failed(exc)
            raise

    def _die(self, error: BaseException) -> None:
        """Write the error into the status file, and end."""
        self._status.failed(error)
        self._end(error)

    def not_ready(self) -> str:
        """Why this broker is not ready; empty if it is ready, which means admitted and serving."""
        if self._is_joining:
            return f"{self.settings.broker} waits for the coordinator at {', '.join(self.settings.coordinator)}"
        if not self._is_serving:
            return f"{self.settings.broker} is not serving"
        why = lost_decisions.reason(self._core.state)
        if why:
            return f"{self.settings.broker}: {COORDINATOR_BEHIND.line(why)}"
        if not self._core.ready:
            return f"{self.settings.broker} is still fencing the segments that earlier member runs left open"
        if not self._directory_of_members.is_admitted(self.identity.member):
            return f"{self.settings.broker} is not admitted yet"
        if missing := self._runtime.missing_link():
            return f"{self.settings.broker} has no link yet to {missing} of its broker group, which is live"
        stall_s = self._disk_stall_s()
        if stall_s * 1000 > self.settings.disk_hang_ms:
            return (
                f"the disk of {self.settings.broker} has completed no write for {stall_s:.1f} s: it hangs. The other "
                "members continue without this broker; look at the disk"
            )
        return ""

    def warnings(self) -> str:
        """What is wrong although this broker is ready, one line for each thing; empty if nothing is wrong."""
        if not self._is_serving:
            return ""
        refusal = COORDINATOR_REFUSES.line(self._runtime.refusals.warning)
        quarantine = DISK_CONTRADICTS.line(self._quarantine_warning())
        return "\n".join(filter(None, (refusal, self._disk_warning(), quarantine)))

    def partition_name(self, partition: int) -> str | None:
        """What users call a partition; None if this broker has no record of it."""
        known = self._core.partitions.get(PartitionId(partition))
        record = None if known is None else known.chain or known.kept
        return None if record is None else record.name

    def _quarantine_warning(self) -> str:
        """The warning about quarantined segments; empty if there are none."""
        kept = self._core.quarantined
        if not kept:
            return ""
        (partition, segment), count = next(iter(kept.items()))
        name = self.partition_name(partition) or f"partition id {partition}"
        return (
            f"{len(kept)} segments on {self.settings.broker} have messages beyond the length that the chain decided, "
            "because an older copy of another disk gave that length; the first is segment "
            f"{segment} of {name}, of which {count} messages are kept here. This broker keeps these "
            "segments and does not serve them. Keep this disk, and follow the runbook disk-contradicts"
        )

    def _disk_warning(self) -> str:
        """The warning about a full disk; empty while there is room."""
        if not self._core.is_disk_full:
            return ""
        return (
            f"the disk of {self.settings.broker} has reached its reserve ({self._room.free_bytes >> 20} MiB of "
            f"{self._room.reserve_bytes >> 20} MiB are free): it takes no new messages, and its open segments move to "
            "broker groups with room. Nothing is lost. Add disks or broker groups, or delete topics that are not needed"
        )

    def not_alive(self) -> str:
        """Why a supervisor should end this process; empty if the process should continue."""
        stall_s = self._disk_stall_s()
        if not 0 < self.settings.disk_hang_dead_s < stall_s:
            return ""
        return f"the disk of {self.settings.broker} has completed no write for {stall_s:.0f} s"

    def _disk_stall_s(self) -> float:
        """For how many seconds the disk has completed no write although one waits; 0 if none waits."""
        return self._core.disk_stall_us(self._clock.monotonic_us()) / 1e6 if self._is_assembled else 0.0

    async def _do_duties(self) -> None:
        duties = [
            *self._runtime.duties(),
            ("figures of consumer groups", self._meter.run()),
            ("figures of topics", self._topic_meter.run()),
            ("figures of the cluster", self._cluster_meter.run()),
            ("news of topics", self._news.run()),
            ("watch over the data directory", self._watch_directory()),
        ]
        if self.settings.external_listen:
            external = ExternalAddress(
                self._coordinator,
                self._keys,
                self.identity,
                self.settings.external_address,
                lambda: self._directory_of_members.external_address(self.settings.broker),
            )
            duties.append(("external address", external.run()))
        async with asyncio.TaskGroup() as group:
            for name, duty in duties:
                group.create_task(duty, name=f"{name} of {self.settings.broker}")

    async def _watch_directory(self) -> None:
        """End this member run when its data directory is gone, or is another one (rule `directory-gone`, I12).

        Without it:

        1. An administrator deletes the data directory of a running broker. The broker's files stay open.
        2. The broker continues: it writes to the deleted files, and each flush succeeds.
        3. A message is acknowledged, because both members have flushed it.
        4. The process ends, and its files are gone. The message is on one disk only.

        If the disk hangs, the check only comes later.
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
        """Write to the identity file what this broker has seen of the coordinator."""
        assert self._directory is not None
        await asyncio.to_thread(
            self._directory.note_coordinator, seen.registered_run, seen.revision, seen.rebuilt_at_ms
        )

    def _end_without_directory(self, problem: str) -> None:
        """End this member run at once, because a clean stop would write to a directory that is gone."""
        error = RunOverError(
            f"{problem}. Messages that were acknowledged as replicated are on other members too. This broker ends, "
            "because nothing that it wrote from now on could be read again. Remedy: if the disk can be brought back, "
            "start the broker with it; if not, start once with an empty directory and --replace-disk",
            member=str(self.identity.member),
            run=self.identity.run,
        )
        _log.critical("run_over", error=str(error))
        self._die(error)

    def _count_note(self, note: Note) -> None:
        fields = dict(note.fields)
        if note.name == "trimmed":
            messages, size_bytes = fields["messages"], fields["bytes"]
            assert isinstance(messages, int)
            assert isinstance(size_bytes, int)
            self.counters.retention_trims += 1
            self.counters.retention_dropped_messages += messages
            self.counters.retention_dropped_bytes += size_bytes
        count = _COUNTED_NOTES.get(note.name)
        if count is not None:
            number = fields.get("count", 1)
            assert isinstance(number, int)
            counts = self.counters.groups.of(note.partition, str(fields["group"]))
            setattr(counts, count, getattr(counts, count) + number)
        if note.name == "switched":
            self.counters.add(self.counters.switches, str(fields.get("reason", "unknown")))
            took_us = fields.get("took_us")
            if isinstance(took_us, int):
                self.counters.switch_gap_s.observe(took_us / 1e6)

    def _count_adopted(self, size_bytes: int) -> None:
        self.counters.adopted_bytes += size_bytes

    def gauges(self) -> dict[str, Callable[[], float]]:
        """What reads each gauge of `metrics.broker.BrokerCollector`."""
        assert self._storage is not None
        storage, runtime, room = self._storage, self._runtime, self._room
        core, services, election = self._core, self._services, self._controller.election
        return {
            "partitions": lambda: len(core.partitions),
            "producers": lambda: sum(self._producer_counts()),
            "producers_max": lambda: max(self._producer_counts(), default=0),
            "streams": lambda: services.stream_count,
            "tcp_streams": lambda: self._streams.count if self._streams is not None else 0,
            "in_flight_bytes": lambda: services.in_flight_bytes,
            "links_up": lambda: self._links.up_count,
            "storage_queue": lambda: self._driver.unflushed_count,
            "storage_saturated": lambda: float(storage.is_saturated),
            "kept_scans": lambda: storage.reader.scan_count,
            "read_ahead_bytes": lambda: storage.reader.bytes_ahead,
            "retained_bytes": lambda: runtime.retention.figures.retained_bytes,
            "retained_seconds": lambda: runtime.retention.figures.retained_s,
            "retention_unread_ratio": lambda: runtime.retention.figures.unread_ratio,
            "retention_unread_seconds": lambda: runtime.retention.figures.unread_s,
            "publications_waiting": lambda: runtime.unfinished_publications.waiting_count,
            "publications_waiting_seconds": lambda: runtime.unfinished_publications.waiting_s,
            "publication_bytes": lambda: core.state.carried_bytes,
            "delayed_overdue_seconds": lambda: runtime.delayed.overdue_s,
            "disk_full": lambda: float(core.is_disk_full),
            "disk_size_bytes": lambda: room.size_bytes,
            "disk_free_bytes": lambda: room.free_bytes,
            "disk_reserve_bytes": lambda: room.reserve_bytes,
            "quarantined_segments": lambda: len(core.quarantined),
            "disk_stall_seconds": self._disk_stall_s,
            "posted_events": lambda: self._driver.posted_count,
            "coordinator_behind": lambda: float(bool(core.state.coordinator.behind)),
            "coordinator_refuses": lambda: float(runtime.refusals.is_refusing),
            "coordinator_transactions": lambda: runtime.work.pending_count,
            "balance_excess": lambda: self._controller.balancer.excess,
            "controller": lambda: float(election.is_controller),
            "ready": lambda: float(not self.not_ready()),
        }

    def _leads(self, partition: PartitionId) -> bool:
        """Whether this broker is the master of the partition's open segment."""
        known = self._core.partitions.get(partition)
        log = known.open_log() if known is not None else None
        return log is not None and log.active and log.unbroken

    def _certificate_ends(self) -> Callable[[], dict[str, float]]:
        return CertificateEnds(self.tls).all if self.tls is not None else dict

    def _producer_counts(self) -> Iterator[int]:
        """For each open segment of this broker, the number of producers in its producer table."""
        for partition in self._core.partitions.values():
            log = partition.open_log()
            if log is not None and log.table is not None:
                yield log.table.producer_count

    # ---- stop -------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hand over open segments, then end cleanly, so that the disk is marked clean. Idempotent.

        A cancelled stop leaves this member run without a clean mark. No acknowledged message is lost.
        """
        if not self._is_serving:
            return
        _log.info("stopping", broker=self.settings.broker)
        self._is_serving = False
        self._services.is_stopping = True
        await self._controller.election.resign()
        await self._handoff()
        await self._end_duties()
        assert self._streams is not None
        await asyncio.gather(self._streams.stop(STOP_GRACE_S), *(server.stop(STOP_GRACE_S) for server in self._servers))
        await self._close_parts()
        assert self._storage is not None
        await self._storage.close()
        try:
            sequence, now_ms = self._storage.durable_sequence, self._clock.wall_ms()
            await mark_clean(self._coordinator, self._keys, self.identity.run_id, sequence, now_ms)
        except SeriatimError as exc:
            _log.warning("clean_mark_not_registered", error=str(exc))
        await self._runtime.lease.revoke()
        await self._coordinator.close()
        assert self._directory is not None
        self._directory.release()
        _log.info("stopped", broker=self.settings.broker)

    async def _handoff(self) -> None:
        """Run planned switches of all open segments of which this broker is a member, within `stop_deadline_s`."""
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

    async def _close_parts(self) -> None:
        await self._links.close()
        await self._listener.close()
        await self._driver.stop()
        await self._runtime.work.close()
        await self._calls.close()

    async def _abandon(self) -> None:
        """Give back what a failed start has taken. If its member run began, the next start certifies its end."""
        await self._end_duties()
        for server in self._servers:
            await server.stop(None)
        if self._streams is not None:
            await self._streams.stop(0.0)
        if self._is_assembled:
            await self._close_parts()
        if self._bound_links is not None:
            self._bound_links.close()
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
    """Start the admin port of a process, with the certificates of its first broker. None if no address is given.

    Raises:
        PreconditionError: The port cannot listen on this address.
    """
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
