"""A cluster of real processes on this machine, run from an event loop: started, hurt, healed, and ended.

The commands `seriatim cluster ...`, the demo, the benchmark and the process tests all stand on `LocalCluster`. It
reaps its processes the moment they end and certifies their deaths. What the faults are good for, and whether the
cluster lived up to its promise, is for others to judge.
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
from seriatim_broker.local import broker_groups, chains, health, names
from seriatim_broker.local.certificates import CertificateWriter
from seriatim_broker.local.faults import FaultKind, FaultListener, FaultPhase, FaultRecord
from seriatim_broker.local.health import Health
from seriatim_broker.local.names import Path as LinkPath
from seriatim_broker.local.network import Network
from seriatim_broker.local.plan import COORDINATOR, LOOPBACK, ClusterPlan, make_plan
from seriatim_broker.local.ports import PortRange, first_taken
from seriatim_broker.local.process import ManagedProcess
from seriatim_broker.local.procfs import ProcessState, boot_id, identify
from seriatim_broker.local.programs import CoordinatorKind, Programs, SeriatimPrograms
from seriatim_broker.local.proxy import CutMode
from seriatim_broker.local.proxy_process import ProxyProcess
from seriatim_broker.local.state import (
    ClusterState,
    DirectoryLock,
    ProcessEntry,
    end_leftovers,
    read_state,
    write_state,
)
from seriatim_broker.local.tls import DIRECTORY_NAME as TLS_DIRECTORY_NAME
from seriatim_broker.local.tls import LocalTls
from seriatim_broker.local.tls import make as make_certificates

START_DEADLINE_S: Final = 90.0
"""For the coordinator to answer and for all brokers to be ready: Python alone takes a second each on a busy core."""

STOP_GRACE_S: Final = 10.0
"""What a process that was asked to end may take before it is killed."""

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
    """One broker as it is now.

    Attributes:
        pid: None if no process of it runs.
        run: The run of its data directory; None before its first start.
        ready: What its admin port says; False for a process that does not answer.
        cuts: Ends that it is cut off from, `>x` for what it sends, `<x` for what it hears, `x` for both.
        troubles: What it says that a person has to do something about, and what: `seriatim_api.troubles`.
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
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as it is now.

    Attributes:
        certificates_pending: Deaths that the coordinator does not know of yet.
        proxy_bytes: What the proxy has forwarded; None without one.
    """

    cluster: str
    directory: str
    coordinator: str
    coordinator_kind: str
    coordinator_state: ProcessState
    certificates_pending: int
    proxy_bytes: int | None
    brokers: tuple[BrokerStatus, ...]


class LocalCluster:
    """Groups of brokers with a coordinator, as an asynchronous context: ready when entered, all ended when left.

    Names of victims and ends are those of `names`: a broker, a group, `coordinator`, and for cuts also `clients`,
    `brokers` and `all`.

    Args:
        directory: Where data, logs and the state file are; made if absent. What an earlier cluster left in it is
            taken up again, with its ports.
        groups: Broker groups.
        members: Members of each.
        proxy: Whether links go through the forwarding proxy; without it there are no cuts, and no cost.
        network: In place of the proxy and of loopback addresses: where the processes run, and what cuts their links.
            The caller removes it when the cluster has stopped.
        coordinator: The embedded coordinator as a process, or a real etcd.
        name: The cluster's name.
        base_port: The first of its ports; None takes the one used before in the directory, or finds one.
        programs: What to run; None for the real broker with `broker_options`.
        broker_options: Further options of each broker, as on its command line.
        environment: Of all processes; None for this process's.
        on_fault: Told of each fault as it happens.
        tls: Whether everything speaks TLS, with certificates made at the start.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        groups: int = 3,
        members: int = 2,
        proxy: bool = True,
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
        self._network = network
        self._base_port = base_port
        self._coordinator_kind: CoordinatorKind = coordinator
        self._programs: Programs = programs or SeriatimPrograms(coordinator, tuple(broker_options))
        self._wants_tls = tls
        self.tls: LocalTls | None = None  # from the start on, if it is wanted
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
        """Who is in it, and where; there once `start` has begun."""
        assert self._plan is not None, "not started"
        return self._plan

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """Where clients begin, `host:port`."""
        return self.plan.bootstrap

    @property
    def broker_names(self) -> tuple[str, ...]:
        """All brokers, in order."""
        return tuple(broker.name for broker in self.plan.brokers)

    def data_directory(self, name: str) -> Path:
        """Where a broker, or the coordinator, keeps its data."""
        return self.directory / "data" / name

    def log_file(self, name: str) -> Path:
        """Where a process's output goes: a broker's, the coordinator's or the proxy's."""
        return self.directory / "logs" / f"{name}.log"

    def pid(self, name: str) -> int | None:
        """The process of a broker, or of the coordinator, now."""
        process = self._processes.get(name)
        return None if process is None or process.ended else process.pid

    # ---- its life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every process, and wait until the coordinator answers; brokers may take longer (`wait_ready`).

        If it fails, or is cancelled, nothing is left running.

        Raises:
            PreconditionError: The directory is in use, a port is taken, or a program does not start.
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
        """Heal what is cut and frozen, let the brokers end in good order, then everything else. Never raises for a
        process that does not want to: it is killed after `STOP_GRACE_S`. A second call waits for the first."""
        async with self._stopping:  # held over nothing but stopping
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
                    f"start it so, or choose another directory"
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
            # The addresses of another network cannot be bound from here, and nobody else has them.
            taken = first_taken(plan.listen_addresses) if self._network is None else None
            if taken is None:
                return ports, plan
            ports.release()
            if base_port is not None:
                raise PreconditionError(f"{taken} is taken by another program: end it, or choose another --base-port")
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
        """A child was reaped. First the certificate: others wait for it."""
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
        except SeriatimError as error:  # no certificate is safe, a wrong one is not
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
        """Wait until the brokers named (all, if none is) say that they are ready.

        Raises:
            PreconditionError: One of them has ended; the message has the end of its log.
            DeadlineExceededError: Not ready after `deadline_s` seconds.
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
        # Made anew for each question: a test may have replaced the files.
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
        """Wait for `holds`, as long as all processes that it needs are there."""
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
            raise DeadlineExceededError(f"waited {deadline_s:g} s in vain until {what}") from None

    def _last_words(self, name: str) -> str:
        """What a process said at its end: its one line if it refused to start, else the end of its log."""
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
        """Send the victims a signal, all at once; after SIGKILL return when all are reaped.

        Those that do not run are passed over. Another signal than SIGKILL is sent and not waited for.
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
        """Ask the victims to end (SIGTERM): a broker hands over first. Returns when they have ended, one way or the
        other, at most `STOP_GRACE_S` later."""
        running = [(name, self._running(name)) for name in names.victims(self.plan, victims)]
        records = [self._record("stop", name, "inject") for name, process in running if process is not None]
        await self._end([process for _, process in running if process is not None])
        return tuple(records)

    async def freeze(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Stop the victims where they are (SIGSTOP): connections stay open, nothing is answered."""
        records = []
        for name, process in self._all_running(victims):
            records.append(self._record("freeze", name, "inject"))
            self._frozen.add(process)
            process.send(signal.SIGSTOP)
        return tuple(records)

    async def thaw(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Let frozen victims go on. Victims that are not frozen are passed over."""
        records = []
        for name, process in self._all_running(victims):
            if process in self._frozen or process.state == "frozen":  # the second: another program froze it
                records.append(self._record("freeze", name, "heal"))
            self._frozen.discard(process)
            process.send(signal.SIGCONT)
        return tuple(records)

    async def start_again(self, *victims: str) -> tuple[FaultRecord, ...]:
        """Start those victims that do not run, on the data that they left. Does not wait until they are ready."""
        records = []
        for name in names.victims(self.plan, victims):
            if self._running(name) is None:
                records.append(self._record("kill", name, "heal"))
                self._spawn(name)
        self.save_state()
        return tuple(records)

    async def restart(self, *victims: str) -> tuple[FaultRecord, ...]:
        """`kill`, then `start_again`."""
        killed = await self.kill(*victims)
        return killed + await self.start_again(*victims)

    async def cut(
        self, source: str, destination: str, *, one_way: bool = False, reset: bool = False
    ) -> tuple[FaultRecord, ...]:
        """Let nothing through between two ends, or one way from `source` to `destination`.

        Connections stay open and hear nothing, as behind a cut cable; with `reset` they are broken instead.

        Raises:
            PreconditionError: The cluster runs without the proxy, and on no network of its own.
        """
        links = self._links_to_cut()
        found = names.paths(self.plan, source, destination, one_way=one_way)
        mode: CutMode = "reset" if reset else "silent"
        record = self._record("cut", _link_name(source, destination, one_way), "inject", details=mode)
        await links.cut(found, mode)
        self._cuts |= set(found)
        return (record,)

    async def heal(self, source: str | None = None, destination: str | None = None) -> tuple[FaultRecord, ...]:
        """End the cuts between two ends, in both directions; between one end and all others; or all there are."""
        links = self._links_to_cut()
        found = set(names.paths(self.plan, source or names.ALL, destination or names.ALL, one_way=False)) & self._cuts
        if not found:
            return ()
        record = self._record("cut", _link_name(source or names.ALL, destination or names.ALL, False), "heal")
        await links.heal(sorted(found))
        self._cuts -= found
        return (record,)

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
        """Start one more broker group, of as many members as the others; its name. Does not wait until it is ready.

        Brokers that run already reach the new ones where clients do, until they are started again: a cut between two of
        them has no effect before that.

        Raises:
            PreconditionError: The cluster speaks TLS or is on a network of its own, or an address is taken.
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
            raise PreconditionError(f"{taken} is taken by another program")
        if self._proxy is not None:
            await self._proxy.add([link for link in plan.links if link not in set(old.links)])
        self._plan, self._shape = plan, (groups + 1, members)
        for name in plan.brokers_of(f"g{groups}"):
            self.data_directory(name).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._spawn(name)
        self.save_state()
        return f"g{groups}"

    async def drain_group(self, group: str, *, deadline_s: float = DRAIN_DEADLINE_S) -> None:
        """Have everything leave a broker group, and wait until nothing lies on it.

        Raises:
            DeadlineExceededError: Something is left; it goes on. PreconditionError: No broker of another group runs.
        """
        await broker_groups.drain(self._asked_about(group), group, deadline_s=deadline_s)

    async def remove_group(self, group: str) -> tuple[FaultRecord, ...]:
        """Stop the brokers of a drained group, have it forgotten, and delete what is on their disks.

        Started again (`start_again`), they are new members.

        Raises:
            PreconditionError: Something lies on it, or no broker of another group runs.
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
        """A running broker of another group."""
        if self.tls is not None:
            raise PreconditionError("with TLS: `seriatim broker-group drain`, then `cluster stop`, then `remove`")
        for broker in self.plan.brokers:
            if broker.group != group and self._running(broker.name) is not None:
                return str(broker.advertised)
        raise PreconditionError(f"no broker of another group than {group} runs")

    # ---- what others read ------------------------------------------------------------------------------------

    async def open_members(self, topic: str, partition: int) -> tuple[str, tuple[str, ...]]:
        """The broker group that accepts messages of a partition now, and its members, the master first.

        Raises:
            UnknownTopicError: There is no such topic.
            PartitionOutOfRangeError: The topic has fewer partitions.
            UnavailableError: No running broker answered.
        """
        running = [
            str(broker.listen)  # not through the proxy: a cut does not hide who is in charge
            for broker in self.plan.brokers
            if (process := self._running(broker.name)) is not None and process.state == "running"
        ]
        tls = None if self.tls is None else self.tls.client
        return await chains.open_members(running, tls, topic, partition)

    async def status(self) -> ClusterStatus:
        """How everything is now; takes at most about `READY_DEADLINE_S`."""
        answers = await asyncio.gather(*(self._health_now(name) for name in self.broker_names))
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
            cuts=_cuts_of(name, self._cuts),
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
        """Write the state file; `control` names the runner's socket from now on."""
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


def _link_name(source: str, destination: str, one_way: bool) -> str:
    return f"{source}{'>' if one_way else '-'}{destination}"


def _cuts_of(name: str, cuts: set[LinkPath]) -> tuple[str, ...]:
    sends = {b for a, b in cuts if a == name}
    hears = {a for a, b in cuts if b == name}
    return tuple(
        other if other in sends and other in hears else f">{other}" if other in sends else f"<{other}"
        for other in sorted(sends | hears)
    )


def _environment_of_servers(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what is meant for clients: SERIATIM_TLS_... would be settings of a broker as well."""
    kept = {name: value for name, value in environment.items() if not name.startswith("SERIATIM_TLS_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}
