"""A cluster of real processes on this machine, which an event loop starts, hurts, heals and ends.

The commands `seriatim cluster ...`, the demo, the benchmark and the process tests use `LocalCluster`. It reaps its
processes at the moment when they end, and certifies their deaths. It does not check whether the cluster kept its
promise under the faults.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final

import structlog
from seriatim_api import troubles
from seriatim_api.errors import DeadlineExceededError, PreconditionError, SeriatimError, UnavailableError
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator, EtcdTls

from seriatim_local.brokers import broker_groups, health, open_segments
from seriatim_local.brokers.health import Health
from seriatim_local.brokers.unserved import Unserved, count_unserved
from seriatim_local.death_certificates import CertificateWriter
from seriatim_local.fault_records import FaultKind, FaultListener, FaultPhase, FaultRecord
from seriatim_local.layout import names
from seriatim_local.layout.names import Path as LinkPath
from seriatim_local.layout.plan import COORDINATOR, LOOPBACK, ClusterPlan, make_plan
from seriatim_local.layout.ports import PortRange, first_taken
from seriatim_local.layout.programs import CoordinatorKind, Programs, SeriatimPrograms
from seriatim_local.links.delays import NO_DELAY, LinkDelay
from seriatim_local.links.network import Network
from seriatim_local.links.proxy import CutMode
from seriatim_local.links.proxy_process import ProxyProcess
from seriatim_local.processes.process import ManagedProcess
from seriatim_local.processes.procfs import ProcessState, boot_id, identify
from seriatim_local.state import (
    ClusterState,
    DirectoryLock,
    ProcessEntry,
    end_leftovers,
    read_state,
    write_state,
)
from seriatim_local.tls import DIRECTORY_NAME as TLS_DIRECTORY_NAME
from seriatim_local.tls import LocalTls
from seriatim_local.tls import make as make_certificates

START_DEADLINE_S: Final = 90.0
"""Until the coordinator answers, and until all brokers are ready. Python alone takes a second each on a busy core."""

STOP_GRACE_S: Final = 10.0
"""How long a process may take to end after SIGTERM. Then it is killed."""

KILL_DEADLINE_S: Final = 10.0
DRAIN_DEADLINE_S: Final = 60.0
READY_POLL_S: Final = 0.05
READY_DEADLINE_S: Final = 0.5
_SILENT: Final = Health(ready=False, page="")
CERTIFICATE_DEADLINE_S: Final = 2.0
LOG_TAIL_BYTES: Final = 2000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The present state of one broker.

    Attributes:
        name: The broker's name.
        group: The name of its broker group.
        pid: Its process; None if none runs.
        run: The member run of its data directory; None before its first start.
        state: Whether its process runs, is frozen, or has ended.
        ready: The answer of its admin port; False if it does not answer.
        address: The address for clients.
        admin: The address of its admin port.
        cuts: The ends from which it is cut off: `>x` if its bytes do not reach x, `<x` if x's bytes do not reach it,
            `x` if both.
        delays: The delays of its links, for example `clients 25ms`. The ends have the marks of cuts. `all 25ms` means
            that all its links have this delay, in both directions.
        troubles: Its troubles that need an administrator, each with what to do: see `seriatim_api.troubles`.
    """

    name: str
    group: str
    pid: int | None
    run: int | None
    state: ProcessState
    ready: bool
    address: str
    admin: str
    cuts: tuple[str, ...]
    delays: tuple[str, ...]
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The present state of the cluster.

    Attributes:
        cluster: The cluster's name.
        directory: Its directory.
        coordinator: The coordinator's address.
        coordinator_kind: `embedded` or `etcd`.
        coordinator_state: Whether the coordinator's process runs, is frozen, or has ended.
        certificates_pending: Death certificates that are not in the coordinator yet.
        proxy_bytes: Bytes that the proxy has forwarded; None if there is no proxy.
        brokers: The brokers, in order.
        unserved: The partitions on which messages wait and no consumer reads; None: no broker reported.
    """

    cluster: str
    directory: str
    coordinator: str
    coordinator_kind: str
    coordinator_state: ProcessState
    certificates_pending: int
    proxy_bytes: int | None
    brokers: tuple[BrokerStatus, ...]
    unserved: Unserved | None = None


class LocalCluster:
    """Broker groups with a coordinator, as an asynchronous context.

    Entering it starts the processes and waits until all brokers are ready. Leaving it ends all processes. Victims and
    ends of cuts have the names of `names`: a broker, a broker group, `coordinator`, and for cuts also `clients`,
    `brokers` and `all`.

    Args:
        directory: The directory for data, logs and the state file. It is made if it does not exist. If it has the data
            of an earlier cluster, this cluster continues with them, at the same ports.
        groups: The number of broker groups.
        members: The number of members in each broker group.
        proxy: Whether links go through the forwarding proxy. Without it, nothing can be cut or delayed, and links are
            faster.
        delay: The delay that all links have in both directions from the start on; it needs the proxy. `heal` brings
            links back to it.
        network: Used in place of the proxy and of loopback addresses: the machines of the processes, with links that it
            can cut. The caller removes it when the cluster has stopped.
        coordinator: The embedded coordinator in a process of its own, or a real etcd.
        name: The cluster's name.
        base_port: The first of its ports; None: the one that the directory had, or a free one.
        programs: The programs to run; None: the real broker with `broker_options`.
        broker_options: More words for each broker's command line.
        environment: The environment of all processes; None: the environment of this process.
        on_fault: Called for each fault when it happens.
        tls: Whether all connections use TLS, with certificates that the start makes.

    Attributes:
        failed: Set when the proxy ends without having been asked to. Then the cluster is of no more use.
        faults: All faults so far, in order.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        groups: int = 3,
        members: int = 2,
        proxy: bool = True,
        delay: LinkDelay = NO_DELAY,
        network: Network | None = None,
        coordinator: CoordinatorKind = "embedded",
        name: str = "local",
        base_port: int | None = None,
        programs: Programs | None = None,
        broker_options: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        on_fault: FaultListener | None = None,
        tls: bool = False,
    ) -> None:
        self.directory = Path(directory).resolve()
        self._shape = (groups, members)
        self._name = name
        self._proxied = proxy and network is None
        self._delay = delay
        self._network = network
        self._base_port = base_port
        self._coordinator_kind: CoordinatorKind = coordinator
        self._programs: Programs = programs or SeriatimPrograms(coordinator, tuple(broker_options))
        self._wants_tls = tls
        self.tls: LocalTls | None = None  # `start` sets it if TLS is wanted
        self._environment = _environment_of_servers(os.environ if environment is None else environment)
        self._on_fault = on_fault
        self._plan: ClusterPlan | None = None
        self._lock: DirectoryLock | None = None
        self._ports: PortRange | None = None
        self._proxy: ProxyProcess | None = None
        self._coordinator: EtcdCoordinator | None = None
        self._certificates: CertificateWriter | None = None
        self._certificates_task: asyncio.Task[None] | None = None
        self._processes: dict[str, ManagedProcess] = {}
        self._asked_to_end: set[ManagedProcess] = set()
        self._frozen: set[ManagedProcess] = set()
        self._cuts: set[LinkPath] = set()
        self._delays: dict[LinkPath, LinkDelay] = {}
        self._control = ""
        self._stopping = asyncio.Lock()
        self.failed = asyncio.Event()
        self.faults: list[FaultRecord] = []

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        try:
            await self.wait_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- what it is ------------------------------------------------------------------------------------------

    @property
    def plan(self) -> ClusterPlan:
        """The processes of the cluster and their addresses. It exists when `start` has begun."""
        assert self._plan is not None, "not started"
        return self._plan

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """The addresses for clients to connect to, `host:port`."""
        return self.plan.bootstrap

    @property
    def broker_names(self) -> tuple[str, ...]:
        """The names of all brokers, in order."""
        return tuple(broker.name for broker in self.plan.brokers)

    def data_directory(self, name: str) -> Path:
        """The data directory of a broker or of the coordinator."""
        return self.directory / "data" / name

    def log_file(self, name: str) -> Path:
        """The file that gets the output of a process: a broker, the coordinator or the proxy."""
        return self.directory / "logs" / f"{name}.log"

    def pid(self, name: str) -> int | None:
        """The process id of a broker or of the coordinator; None if it does not run."""
        process = self._processes.get(name)
        return None if process is None or process.ended else process.pid

    # ---- its life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all processes, and wait until the coordinator answers. Brokers may take longer: see `wait_ready`.

        If this fails or is cancelled, no process is left.

        Raises:
            PreconditionError: The directory is in use, a port is in use, or a program does not start.
            DeadlineExceededError: The coordinator does not answer within 90 s.
        """
        assert self._lock is None, "started twice"
        self._lock = DirectoryLock.acquire(self.directory)
        try:
            self._lay_out()
            await self._start_processes()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Heal all cuts, let the brokers end cleanly (frozen ones too), then end the other processes.

        A process that does not end by itself is killed after `STOP_GRACE_S` (10 s). A second call waits for the first.
        """
        async with self._stopping:  # no other method takes this lock
            if self._lock is not None:
                await self._stop()

    async def _stop(self) -> None:
        if self._cuts and not (self._proxy is not None and self._proxy.process.ended):
            try:
                await self.heal()
            except SeriatimError as error:
                _log.warning("heal_at_stop_failed", error=str(error))
        brokers = [process for name, process in self._processes.items() if name != COORDINATOR]
        await self._end(brokers)
        if self._certificates is not None and self._certificates_task is not None:
            coordinator = self._processes.get(COORDINATOR)
            if coordinator is not None and coordinator.state == "running":
                await self._certificates.flush(CERTIFICATE_DEADLINE_S)
            self._certificates_task.cancel()
            await asyncio.gather(self._certificates_task, return_exceptions=True)
        if self._coordinator is not None:
            await self._coordinator.close()
        await self._end([process for name, process in self._processes.items() if name == COORDINATOR])
        if self._proxy is not None:
            self._asked_to_end.add(self._proxy.process)
            await self._proxy.close()
        self._give_back()

    def _lay_out(self) -> None:
        earlier = read_state(self.directory)
        base_port = self._base_port
        if earlier is not None:
            for entry in end_leftovers(earlier):
                _log.warning("leftover_killed", process=entry.name, pid=entry.pid)
            if earlier.coordinator_kind != self._coordinator_kind:
                raise PreconditionError(
                    f"{self.directory} has the data of a cluster whose coordinator is {earlier.coordinator_kind}: "
                    f"start it with that coordinator, or choose another directory"
                )
            base_port = base_port or earlier.base_port
        self._ports, self._plan = self._find_ports(base_port)
        for name in (*self.broker_names, COORDINATOR):
            self.data_directory(name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log_file(COORDINATOR).parent.mkdir(exist_ok=True)
        if self._wants_tls:
            self._make_certificates()

    def _make_certificates(self) -> None:
        hosts = [address.host for address in self.plan.listen_addresses]
        self.tls = make_certificates(self.directory / TLS_DIRECTORY_NAME, hosts)
        if isinstance(self._programs, SeriatimPrograms):
            self._programs = replace(self._programs, tls=self.tls.server)

    def _find_ports(self, base_port: int | None) -> tuple[PortRange, ClusterPlan]:
        above = 0
        while True:
            ports = PortRange.reserve(base_port, above=above)
            plan = make_plan(
                name=self._name,
                group_count=self._shape[0],
                member_count=self._shape[1],
                base_port=ports.base,
                proxy=self._proxied,
                hosts=LOOPBACK if self._network is None else self._network.hosts,
            )
            # This process cannot bind the addresses of another network, and no other program uses them.
            taken = first_taken(plan.listen_addresses) if self._network is None else None
            if taken is None:
                return ports, plan
            ports.release()
            if base_port is not None:
                raise PreconditionError(f"another program uses {taken}: end it, or choose another --base-port")
            above = ports.base

    async def _start_processes(self) -> None:
        plan = self.plan
        if plan.proxy:
            self._proxy = await ProxyProcess.start(
                plan.links,
                log_path=self.log_file("proxy"),
                environment=self._environment,
                on_end=self._ended,
            )
        await self._delay_links(_both_ways(plan), self._delay)
        tls = EtcdTls(self.tls.client) if self.tls is not None else None
        self._coordinator = EtcdCoordinator(EtcdConfig((str(plan.coordinator),), tls))
        self._certificates = CertificateWriter(self._coordinator, plan.name)
        self._certificates_task = asyncio.create_task(self._certificates.run(), name="certificates")
        self._spawn(COORDINATOR)
        await self._until(self._coordinator_answers, (COORDINATOR,), START_DEADLINE_S, "the coordinator answers")
        for name in self.broker_names:
            self._spawn(name)
        self.save_state()

    def _spawn(self, name: str) -> None:
        earlier = self._processes.get(name)
        assert earlier is None or earlier.ended, f"{name} runs"
        data = self.data_directory(name)
        argv = (
            self._programs.coordinator(self.plan, data)
            if name == COORDINATOR
            else self._programs.broker(self.plan, self.plan.broker(name), data)
        )
        if self._network is not None:
            argv = self._network.command(name, argv)
        self._processes[name] = ManagedProcess(
            name, argv, log_path=self.log_file(name), environment=self._environment, on_end=self._ended
        )
        _log.info("process_started", process=name, pid=self._processes[name].pid)

    def _ended(self, process: ManagedProcess) -> None:
        """A child was reaped. The certificate comes first, because switches may wait for it."""
        asked = process in self._asked_to_end
        self._asked_to_end.discard(process)
        name, how = process.name, process.describe_end()
        if self._processes.get(name) is process and name != COORDINATOR:
            self._certify(name, f"pid {process.pid} reaped: {how}")
        _log.info("process_ended", process=name, pid=process.pid, how=how, asked=asked)
        if not asked:
            self._record("end", name, "inject", details=how)
            if self._proxy is not None and process is self._proxy.process:
                self.failed.set()
        if self._certificates_task is not None:
            self.save_state()

    def _certify(self, name: str, evidence: str) -> None:
        assert self._certificates is not None
        try:
            run = self._programs.last_run(self.data_directory(name), name)
        except SeriatimError as error:  # a missing certificate is safe, and a wrong one is not
            _log.error("passport_unreadable", broker=name, error=str(error))
            return
        if run is not None:
            self._certificates.submit(run, evidence)

    async def _end(self, processes: Iterable[ManagedProcess]) -> None:
        alive = [process for process in processes if not process.ended]
        self._asked_to_end.update(alive)
        await asyncio.gather(*(process.end(grace_s=STOP_GRACE_S) for process in alive))

    def _give_back(self) -> None:
        if self._certificates_task is not None:
            self.save_state(control="")
        self._certificates_task = None
        if self._ports is not None:
            self._ports.release()
        assert self._lock is not None
        self._lock.release()
        self._lock = None

    # ---- waiting ---------------------------------------------------------------------------------------------

    async def wait_ready(self, *victims: str, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until the named brokers are ready; all brokers if none is named.

        Raises:
            PreconditionError: One of them has ended. The message has the end of its log.
            DeadlineExceededError: One of them is not ready after `deadline_s` seconds.
        """
        wanted = names.victims(self.plan, victims or (names.BROKERS,))
        waiting = [name for name in wanted if name != COORDINATOR]

        async def ready() -> bool:
            answers = await asyncio.gather(*(self._health_of(name) for name in waiting))
            waiting[:] = [name for name, answer in zip(waiting, answers, strict=True) if not answer.ready]
            return not waiting

        await self._until(ready, tuple(waiting), deadline_s, f"{', '.join(waiting)} are ready")

    async def _health_of(self, name: str) -> Health:
        if self.pid(name) is None:
            return _SILENT
        # A new context for each request, because a test may have replaced the files.
        tls = ssl.create_default_context(cafile=str(self.tls.ca)) if self.tls is not None else None
        return await health.ask(self.plan.broker(name).admin, deadline_s=READY_DEADLINE_S, tls=tls)

    async def _coordinator_answers(self) -> bool:
        assert self._coordinator is not None
        try:
            await self._coordinator.get("/seriatim", deadline_s=READY_DEADLINE_S)
        except UnavailableError:
            return False
        return True

    async def _until(
        self, holds: Callable[[], Awaitable[bool]], victims: tuple[str, ...], deadline_s: float, what: str
    ) -> None:
        """Wait until `holds` says yes, as long as all processes that it needs run."""
        try:
            async with asyncio.timeout(deadline_s):
                while not await holds():
                    for name in victims:
                        process = self._processes[name]
                        if process.ended:
                            how = f"{name} {process.describe_end()}"
                            raise PreconditionError(f"{how}{self._last_words(name)}")
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            raise DeadlineExceededError(f"waited {deadline_s:g} s, and this did not come about: {what}") from None

    def _last_words(self, name: str) -> str:
        """The last words of a process, for an error: its one line if it refused to start, otherwise its log's end."""
        path = self.log_file(name)
        try:
            text = path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return "; it left no log"
        lines = text.splitlines()
        if lines and lines[-1].startswith("seriatim: ["):
            return f"; {lines[-1].removeprefix('seriatim: ')} (log: {path})"
        return f"; the end of {path}:\n" + "\n".join(lines[1:] or lines)

    # ---- faults ----------------------------------------------------------------------------------------------

    async def kill(self, *victims: str, number: signal.Signals = signal.SIGKILL) -> tuple[FaultRecord, ...]:
        """Send a signal to all victims at the same moment. Victims that do not run are skipped.

        After SIGKILL this returns when all of them are reaped. After another signal it does not wait.
        """
        records, processes = [], []
        for name in names.victims(self.plan, victims):
            process = self._running(name)
            if process is None:
                continue
            self._asked_to_end.add(process)
            records.append(self._record("kill", name, "inject", details=number.name))
            process.send(number)
            processes.append(process)
        if number is signal.SIGKILL:
            await asyncio.gather(*(process.wait(KILL_DEADLINE_S) for process in processes))
        return tuple(records)

    async def stop_gracefully(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Ask the victims to end (SIGTERM). A broker first hands over its open segments.

        Returns when all of them have ended. A victim that still runs after `STOP_GRACE_S` (10 s) is killed.
        """
        running = [(name, self._running(name)) for name in names.victims(self.plan, victims)]
        records = [self._record("stop", name, "inject") for name, process in running if process is not None]
        await self._end([process for _, process in running if process is not None])
        return tuple(records)

    async def freeze(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Freeze the victims (SIGSTOP). Their connections stay open, and they answer nothing."""
        records = []
        for name, process in self._all_running(victims):
            records.append(self._record("freeze", name, "inject"))
            self._frozen.add(process)
            process.send(signal.SIGSTOP)
        return tuple(records)

    async def thaw(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Let frozen victims continue (SIGCONT). Victims that are not frozen are skipped."""
        records = []
        for name, process in self._all_running(victims):
            if process in self._frozen or process.state == "frozen":  # another program may have frozen it
                records.append(self._record("freeze", name, "heal"))
            self._frozen.discard(process)
            process.send(signal.SIGCONT)
        return tuple(records)

    async def start_again(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Start the victims that do not run, with the data that they had. Does not wait until they are ready."""
        records = []
        for name in names.victims(self.plan, victims):
            if self._running(name) is None:
                records.append(self._record("kill", name, "heal"))
                self._spawn(name)
        self.save_state()
        return tuple(records)

    async def restart(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Kill the victims that run, then start them. Does not wait until they are ready."""
        killed = await self.kill(*victims)
        return killed + await self.start_again(*victims)

    async def cut(
        self, source: str, destination: str, *, one_way: bool = False, reset: bool = False
    ) -> tuple[FaultRecord, ...]:
        """Cut the links between two ends; with `one_way` only the direction from `source` to `destination`.

        Connections stay open and carry nothing, as after a cut cable. With `reset` they are broken instead.

        Raises:
            BadRequestError: An end has no meaning here, or there is no link between the two.
            PreconditionError: The cluster has neither the proxy nor a network of its own.
        """
        links = self._links_to_cut()
        found = names.paths(self.plan, source, destination, one_way=one_way)
        mode: CutMode = "reset" if reset else "silent"
        record = self._record("cut", _link_name(source, destination, one_way), "inject", details=mode)
        await links.cut(found, mode)
        self._cuts |= set(found)
        return (record,)

    async def heal(self, source: str | None = None, destination: str | None = None) -> tuple[FaultRecord, ...]:
        """End the cuts and the lags between two ends, in both directions. With one end: all its. With none: all."""
        links = self._links_to_cut()
        source = names.ALL if source is None else source
        destination = names.ALL if destination is None else destination
        paths, victim = names.paths(self.plan, source, destination, one_way=False), _link_name(source, destination)
        cut = [path for path in paths if path in self._cuts]
        delayed = [path for path in paths if self._delays.get(path, NO_DELAY) != self._delay]
        records = []
        if cut:
            records.append(self._record("cut", victim, "heal"))
            await links.heal(cut)
            self._cuts.difference_update(cut)
        if delayed:
            records.append(self._record("lag", victim, "heal"))
            await self._delay_links(delayed, self._delay)
        return tuple(records)

    async def lag(
        self, source: str, destination: str, delay: LinkDelay, *, one_way: bool = False
    ) -> tuple[FaultRecord, ...]:
        """Delay the links between two ends; with `one_way` only the direction from `source` to `destination`.

        Args:
            source: One end.
            destination: The other end.
            delay: How much later bytes arrive, each way. It replaces an earlier delay. No delay ends it.
            one_way: Whether only what `source` sends is delayed.

        Raises:
            BadRequestError: An end has no meaning here, or there is no link between the two.
            PreconditionError: The cluster has no proxy.
        """
        found = names.paths(self.plan, source, destination, one_way=one_way)
        if all(self._delays.get(path, NO_DELAY) == delay for path in found):
            return ()
        self._delayed_by()
        victim = _link_name(source, destination, one_way)
        record = self._record("lag", victim, "inject" if delay else "heal", details=str(delay) if delay else "")
        await self._delay_links(found, delay)
        return (record,)

    async def _delay_links(self, paths: Iterable[LinkPath], delay: LinkDelay) -> None:
        found = tuple(paths)
        if not delay and not any(path in self._delays for path in found):
            return
        await self._delayed_by().delay(found, delay)
        for path in found:
            self._delays.pop(path, None)
        if delay:
            self._delays.update(dict.fromkeys(found, delay))

    def _delayed_by(self) -> ProxyProcess:
        if self._proxy is None:
            where = "without the proxy: start it with --proxy" if self._network is None else "on a network of its own"
            raise PreconditionError(f"links can be delayed only by the proxy, and this cluster runs {where}")
        return self._proxy

    def _links_to_cut(self) -> ProxyProcess | Network:
        if self._network is not None:
            return self._network
        if self._proxy is None:
            raise PreconditionError("this cluster runs without the proxy, so nothing can be cut: start it with --proxy")
        return self._proxy

    def _all_running(self, victims: tuple[str, ...]) -> list[tuple[str, ManagedProcess]]:
        found = [(name, self._running(name)) for name in names.victims(self.plan, victims)]
        return [(name, process) for name, process in found if process is not None]

    def _running(self, name: str) -> ManagedProcess | None:
        process = self._processes.get(name)
        return None if process is None or process.ended else process

    def _record(self, kind: FaultKind, victim: str, phase: FaultPhase, *, details: str = "") -> FaultRecord:
        record = FaultRecord(kind, victim, phase, details=details)
        self.faults.append(record)
        if self._on_fault is not None:
            self._on_fault(record)
        return record

    # ---- groups that come and go -----------------------------------------------------------------------------

    async def add_group(self) -> str:
        """Start one more broker group, with as many members as the others. Does not wait until it is ready.

        Brokers that already run use the clients' addresses for the new brokers until they are started again. So a cut
        between an old and a new broker has no effect before that.

        Returns:
            The name of the new broker group.

        Raises:
            PreconditionError: The cluster uses TLS or is on a network of its own, or an address is in use.
        """
        if self.tls is not None or self._network is not None:
            raise PreconditionError("only a cluster on loopback addresses and without TLS can grow: start a larger one")
        groups, members = self._shape
        old = self.plan
        plan = make_plan(
            name=old.name, group_count=groups + 1, member_count=members, base_port=old.base_port, proxy=old.proxy
        )
        taken = first_taken(sorted(set(plan.listen_addresses) - set(old.listen_addresses)))
        if taken is not None:
            raise PreconditionError(f"another program uses {taken}: end it, and add the broker group again")
        if self._proxy is not None:
            await self._proxy.add([link for link in plan.links if link not in set(old.links)])
            await self._delay_links(set(_both_ways(plan)) - set(_both_ways(old)), self._delay)
        self._plan, self._shape = plan, (groups + 1, members)
        for name in plan.brokers_of(f"g{groups}"):
            self.data_directory(name).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._spawn(name)
        self.save_state()
        return f"g{groups}"

    async def drain_group(self, group: str, *, deadline_s: float = DRAIN_DEADLINE_S) -> None:
        """Have all open segments and copies leave a broker group, and wait until it has none.

        Raises:
            DeadlineExceededError: Segments are left after `deadline_s` seconds. The drain continues.
            PreconditionError: No broker of another broker group runs, or the cluster uses TLS.
        """
        await broker_groups.drain(self._asked_about(group), group, deadline_s=deadline_s)

    async def remove_group(self, group: str) -> tuple[FaultRecord, ...]:
        """Stop the brokers of a drained broker group, have the cluster forget it, and delete the data of its brokers.

        If they are started again (`start_again`), they are new members.

        Raises:
            PreconditionError: The broker group has segments, no broker of another broker group runs, or the cluster
                uses TLS.
        """
        address = self._asked_about(group)
        await broker_groups.check_empty(address, group)
        records = await self.stop_gracefully(group)
        assert self._certificates is not None
        await self._certificates.flush(CERTIFICATE_DEADLINE_S)
        await broker_groups.forget(address, group)
        for name in self.plan.brokers_of(group):
            await asyncio.to_thread(shutil.rmtree, self.data_directory(name), ignore_errors=True)
            self.data_directory(name).mkdir(mode=0o700)
        return records

    def _asked_about(self, group: str) -> str:
        """The address of a running broker of another broker group."""
        if self.tls is not None:
            raise PreconditionError("with TLS: `seriatim broker-group drain`, then `cluster stop`, then `remove`")
        for broker in self.plan.brokers:
            if broker.group != group and self._running(broker.name) is not None:
                return str(broker.advertised)
        raise PreconditionError(f"no broker outside of broker group {group} runs: start one first")

    # ---- what others read ------------------------------------------------------------------------------------

    async def open_members(self, topic: str, partition: int) -> tuple[str, tuple[str, ...]]:
        """The broker group that now has a partition's open segment, and its members, with the master first.

        Raises:
            UnknownTopicError: There is no such topic.
            PartitionOutOfRangeError: The topic has fewer partitions.
            UnavailableError: No running broker answered.
        """
        running = [
            str(broker.listen)  # not through the proxy, so that a cut does not prevent the answer
            for broker in self.plan.brokers
            if (process := self._running(broker.name)) is not None and process.state == "running"
        ]
        tls = None if self.tls is None else self.tls.client
        return await open_segments.open_members(running, tls, topic, partition)

    async def status(self) -> ClusterStatus:
        """The present state of the cluster. The call takes at most 3 s: `READY_DEADLINE_S`, and `count_unserved`."""
        answers = await asyncio.gather(*(self._health_now(name) for name in self.broker_names))
        ready = [
            str(self.plan.broker(name).listen)
            for name, answer in zip(self.broker_names, answers, strict=True)
            if answer.ready
        ]
        unserved = await count_unserved(ready, None if self.tls is None else self.tls.client)
        figures = None if self._proxy is None or self._proxy.process.ended else await self._proxy.figures()
        coordinator = self._processes.get(COORDINATOR)
        return ClusterStatus(
            cluster=self.plan.name,
            directory=str(self.directory),
            coordinator=str(self.plan.coordinator),
            coordinator_kind=self._coordinator_kind,
            coordinator_state="dead" if coordinator is None else coordinator.state,
            certificates_pending=0 if self._certificates is None else self._certificates.pending_count,
            proxy_bytes=None if figures is None else figures.forwarded_bytes,
            brokers=tuple(
                self._broker_status(name, answer) for name, answer in zip(self.broker_names, answers, strict=True)
            ),
            unserved=unserved,
        )

    async def _health_now(self, name: str) -> Health:
        process = self._running(name)
        return await self._health_of(name) if process is not None and process.state == "running" else _SILENT

    def _broker_status(self, name: str, answer: Health) -> BrokerStatus:
        plan, process = self.plan.broker(name), self._processes.get(name)
        return BrokerStatus(
            name=name,
            group=plan.group,
            pid=self.pid(name),
            run=self._run_number(name),
            state="dead" if process is None else process.state,
            ready=answer.ready,
            address=str(plan.advertised),
            admin=str(plan.admin),
            cuts=_marked(name, self._cuts),
            delays=_delays_of(name, self.plan, self._delays),
            troubles=tuple(
                f"{trouble.line(text)}. To do: {trouble.remedy}" for trouble, text in troubles.read(answer.page)
            ),
        )

    def _run_number(self, name: str) -> int | None:
        try:
            run = self._programs.last_run(self.data_directory(name), name)
        except SeriatimError:
            return None
        return None if run is None else run.run

    def save_state(self, *, control: str | None = None) -> None:
        """Write the state file. `control` sets the path of the runner's socket; None leaves it as it is."""
        if control is not None:
            self._control = control
        own = identify(os.getpid())
        assert own is not None
        children = [*self._processes.values(), *([self._proxy.process] if self._proxy is not None else [])]
        write_state(
            self.directory,
            ClusterState(
                cluster=self.plan.name,
                boot=boot_id(),
                base_port=self.plan.base_port,
                group_count=self._shape[0],
                member_count=self._shape[1],
                proxy=self.plan.proxy,
                coordinator_kind=self._coordinator_kind,
                coordinator=str(self.plan.coordinator),
                bootstrap=self.bootstrap,
                control=self._control,
                tls_directory=str(self.directory / TLS_DIRECTORY_NAME) if self.tls is not None else "",
                processes=(
                    ProcessEntry("runner", own.pid, own.started_ticks),
                    *(
                        ProcessEntry(child.name, child.identity.pid, child.identity.started_ticks)
                        for child in children
                        if not child.ended
                    ),
                ),
            ),
        )


def _link_name(source: str, destination: str, one_way: bool = False) -> str:
    return f"{source}{'>' if one_way else '-'}{destination}"


def _both_ways(plan: ClusterPlan) -> tuple[LinkPath, ...]:
    """All directions of all links."""
    return tuple(dict.fromkeys(path for pair in plan.pairs for path in (pair, pair[::-1])))


def _delays_of(name: str, plan: ClusterPlan, delays: Mapping[LinkPath, LinkDelay]) -> tuple[str, ...]:
    own = [path for path in _both_ways(plan) if name in path]
    found = []
    for delay in dict.fromkeys(delays[path] for path in own if path in delays):
        paths = {path for path in own if delays.get(path) == delay}
        ends = (names.ALL,) if len(paths) == len(own) else _marked(name, paths)
        found.append(f"{', '.join(ends)} {delay}")
    return tuple(found)


def _marked(name: str, paths: set[LinkPath]) -> tuple[str, ...]:
    """The other ends of a process's paths: `>x` if the path leads to x, `<x` if it leads from x, `x` if both do."""
    sends = {b for a, b in paths if a == name}
    hears = {a for a, b in paths if b == name}
    return tuple(
        other if other in sends and other in hears else f">{other}" if other in sends else f"<{other}"
        for other in sorted(sends | hears)
    )


def _environment_of_servers(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables SERIATIM_TLS_..., which are for clients: a broker would read them too."""
    kept = {name: value for name, value in environment.items() if not name.startswith("SERIATIM_TLS_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}
