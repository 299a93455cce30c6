"""A network of kernel namespaces. Each broker, the coordinator and each client process has a namespace of its own, as
if it had a machine. A cable leads from each namespace to one bridge.

A cut drops packets, not bytes in a proxy. The sender gets a permanent neighbour entry for the receiver, with a MAC
address that no interface has. So its frames to the receiver, with TCP's acknowledgements, are lost, and neither end
gets an error. This needs root, `ip` and `ss`. All names contain the token of the test run. `remove` takes everything
away again, and the next run removes what a killed run left behind.

    sr<token>        the bridge, with the address that this process has
    sr<token>v<n>    the bridge's end of a cable; the other end is `eth0` in its namespace
    sr<token>-<who>  a namespace
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from seriatim_api.errors import PreconditionError
from seriatim_local import Hosts

BROKER_COUNT_MAX: Final = 60
CLIENTS: Final = ("producer", "reader")
"""The client processes. Together they are the end `clients` of a cut."""

_SUBNET: Final = "10.213"
_SUBNETS: Final = range(1, 255)
_NOBODY: Final = "02:00:00:00:00:01"
"""A locally administered MAC address that no cable here has."""

_NAMESPACES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
_COMMAND_DEADLINE_S: Final = 30
_COUNT_MAX: Final = 256
"""The number of networks of one process whose names differ. Names of interfaces have at most 15 characters."""

LinkPath = tuple[str, str]
Command = list[str]


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace: its name, the bridge's end of its cable, and its address."""

    namespace: str
    cable: str
    address: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and addresses of one network. Pure.

    Attributes:
        token: The token of the run; hexadecimal.
        subnet: The third number of its addresses.
        machines: The machine of each process.
    """

    token: str
    subnet: int
    machines: dict[str, Machine]

    @property
    def bridge(self) -> str:
        """The bridge's name."""
        return f"sr{self.token}"

    @property
    def here(self) -> str:
        """The address of this process."""
        return f"{_SUBNET}.{self.subnet}.254"

    @property
    def hosts(self) -> Hosts:
        """Return the addresses of the cluster's machines."""
        brokers = [name for name in self.machines if name not in (*CLIENTS, "coordinator")]
        return Hosts(self.machines["coordinator"].address, tuple(self.machines[name].address for name in brokers))

    def ends(self, name: str) -> list[Machine]:
        """Return the machines of one end of a cut."""
        return [self.machines[one] for one in (CLIENTS if name == "clients" else (name,))]

    def make(self) -> list[Command]:
        """Return the commands that make the network, in this order. They are not run by a shell."""
        commands = [
            ["ip", "link", "add", "name", self.bridge, "type", "bridge"],
            ["ip", "addr", "add", f"{self.here}/24", "dev", self.bridge],
            ["ip", "link", "set", self.bridge, "up"],
        ]
        for one in self.machines.values():
            inside = ["ip", "-n", one.namespace]
            commands += [
                ["ip", "netns", "add", one.namespace],
                [
                    "ip",
                    "link",
                    "add",
                    "name",
                    one.cable,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    one.namespace,
                ],
                ["ip", "link", "set", one.cable, "master", self.bridge, "up"],
                [*inside, "addr", "add", f"{one.address}/24", "dev", "eth0"],
                [*inside, "link", "set", "lo", "up"],
                [*inside, "link", "set", "eth0", "up"],
            ]
        return commands

    def remove(self) -> list[Command]:
        """Return the commands that remove the network, also if it was made half-way. Each command may fail."""
        commands: list[Command] = []
        for one in self.machines.values():  # the cables first: processes that still end may hold their namespaces
            commands += [["ip", "link", "del", one.cable], ["ip", "netns", "del", one.namespace]]
        return [*commands, ["ip", "link", "del", self.bridge]]

    def silence(self, paths: Iterable[LinkPath]) -> list[Command]:
        """Return the commands that drop the packets of these directions."""
        return [
            ["ip", "-n", source.namespace, "neigh", "replace", to.address, "lladdr", _NOBODY, "dev", "eth0",
             "nud", "permanent"]
            for source, to in self._directions(paths)
        ]  # fmt: skip

    def restore(self, paths: Iterable[LinkPath]) -> list[Command]:
        """Return the commands that let the packets of these directions through again."""
        return [
            ["ip", "-n", source.namespace, "neigh", "del", to.address, "dev", "eth0"]
            for source, to in self._directions(paths)
        ]

    def reset(self, paths: Iterable[LinkPath]) -> list[Command]:
        """Return the commands that break all connections of these pairs. Each runs at one end, which is enough."""
        pairs = sorted({(min(path), max(path)) for path in paths})
        peers: dict[str, list[str]] = {}
        for source, to in self._directions(pairs):
            peers.setdefault(source.namespace, []).append(to.address)
        return [
            ["ip", "netns", "exec", namespace, "ss", "-4", "-t", "-K", " or ".join(f"dst {peer}" for peer in found)]
            for namespace, found in peers.items()
        ]

    def _directions(self, paths: Iterable[LinkPath]) -> list[tuple[Machine, Machine]]:
        return [(source, to) for a, b in paths for source in self.ends(a) for to in self.ends(b)]


def lay_out(token: str, subnet: int, brokers: Sequence[str]) -> Layout:
    """Lay out a network for these brokers, the coordinator and the clients."""
    assert len(brokers) <= BROKER_COUNT_MAX
    numbers = {"coordinator": 1, **{name: 2 + number for number, name in enumerate(brokers)}}
    numbers |= {name: 200 + number for number, name in enumerate(CLIENTS)}
    machines = {
        name: Machine(f"sr{token}-{name}", f"sr{token}v{number}", f"{_SUBNET}.{subnet}.{number}")
        for name, number in numbers.items()
    }
    return Layout(token, subnet, machines)


def token_of(pid: int, count: int) -> str:
    """Return the token of the `count`th network of a process.

    It has eight characters, so that names of cables stay below 16.
    """
    assert pid < 1 << 24
    return f"{pid:06x}{count % _COUNT_MAX:02x}"


def leftovers(names: Iterable[str], is_alive: Callable[[int], bool]) -> list[str]:
    """Return those names of interfaces or namespaces that are ours and whose process has ended."""
    found = []
    for name in names:
        match = re.fullmatch(r"sr([0-9a-f]{6})[0-9a-f]{2}(v\d+|-[\w-]+)?", name)
        if match is not None and not is_alive(int(match[1], 16)):
            found.append(name)
    return found


def missing() -> str:
    """Say what this machine lacks for such a network; empty if nothing."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "ss"):
        if shutil.which(program) is None:
            return f"no {program}"
    trial = lay_out(token_of(os.getpid(), _COUNT_MAX - 1), 0, ())
    try:
        _do_all([command for command in trial.make() if "addr" not in command])
    except PreconditionError as error:
        return str(error)
    finally:
        _try_all(trial.remove())
    return "" if _can_break_connections() else "ss -K breaks no connection (CONFIG_INET_DIAG_DESTROY)"


def _can_break_connections() -> bool:
    """Whether the kernel lets `ss` break connections. This is tried on a connection of this process to itself."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as peer,
    ):
        try:
            _run(["ss", "-4", "-t", "-K", f"sport = :{peer.getsockname()[1]}"])
            peer.send(b"x")
        except PreconditionError:
            return False
        except ConnectionError:
            return True
    return False


def enter(namespace: str) -> None:
    """Move this process to a namespace. Call this before it starts other threads, because they would not move."""
    with (_NAMESPACES / namespace).open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}: {os.strerror(ctypes.get_errno())}")


class Namespaces:
    """A network of namespaces that exists; a `seriatim_local.Network`. Make it with `create`."""

    _count = 0

    def __init__(self, layout: Layout, reservation: socket.socket) -> None:
        self.layout = layout
        self._reservation = reservation
        self._silent: set[LinkPath] = set()

    @classmethod
    async def create(cls, brokers: Sequence[str]) -> Namespaces:
        """Make a network for these brokers, the coordinator and the clients.

        Raises:
            PreconditionError: The network cannot be made. Nothing of it is left.
        """
        await asyncio.to_thread(_sweep)
        subnet, reservation = await asyncio.to_thread(_reserve)
        network = cls(lay_out(token_of(os.getpid(), cls._count), subnet, brokers), reservation)
        cls._count += 1
        try:
            await _run_all(network.layout.make())
        except BaseException:
            await network.remove()
            raise
        return network

    @property
    def hosts(self) -> Hosts:
        """The addresses of the machines, in the form of the cluster's plan."""
        return self.layout.hosts

    def namespace(self, client: Literal["producer", "reader"]) -> str:
        """Return the namespace of a client's process."""
        return self.layout.machines[client].namespace

    def command(self, process: str, argv: Sequence[str]) -> Sequence[str]:
        """Put `ip netns exec` before the command; the program replaces it."""
        return ["ip", "netns", "exec", self.layout.machines[process].namespace, *argv]

    async def cut(self, paths: Iterable[LinkPath], mode: Literal["silent", "reset"]) -> None:
        """Drop all that is sent in these directions (`silent`), or break the connections and allow new ones (`reset`).

        Raises:
            PreconditionError: A command failed. No direction is cut.
        """
        found = list(paths)
        if mode == "reset":
            await _run_all(self.layout.reset(found))
            return
        try:
            await _run_all(self.layout.silence(found))
        except PreconditionError:
            await asyncio.to_thread(_try_all, self.layout.restore(found))
            raise
        self._silent |= set(found)

    async def heal(self, paths: Iterable[LinkPath]) -> None:
        """Let packets through again. TCP sends the lost ones again."""
        found = self._silent & set(paths)
        await _run_all(self.layout.restore(sorted(found)))
        self._silent -= found

    async def remove(self) -> None:
        """Remove everything of the network that exists."""
        await asyncio.shield(asyncio.to_thread(_try_all, self.layout.remove()))
        self._reservation.close()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_COMMAND_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreconditionError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise PreconditionError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _do_all(commands: Sequence[Command]) -> None:
    for command in commands:
        _run(command)


def _try_all(commands: Sequence[Command]) -> None:
    for command in commands:
        try:
            _run(command)
        except PreconditionError:  # as a rule the object does not exist
            continue


async def _run_all(commands: Sequence[Command]) -> None:
    await asyncio.to_thread(_do_all, commands)


def _words(text: str) -> list[str]:
    """Return the first word of each line."""
    return [line.split()[0] for line in text.splitlines() if line.split()]


def _sweep() -> None:
    """Remove what killed runs left behind."""
    interfaces = [line.split(":")[1].strip().split("@")[0] for line in _run(["ip", "-o", "link"]).splitlines()]
    gone = leftovers(interfaces, _is_alive)
    _try_all([["ip", "link", "del", name] for name in gone])
    _try_all([["ip", "netns", "del", name] for name in leftovers(_words(_run(["ip", "netns", "list"])), _is_alive)])


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _reserve() -> tuple[int, socket.socket]:
    """Reserve a subnet that no interface here uses. A socket's name reserves it, because the kernel frees it even after
    a crash.
    """
    used = _run(["ip", "-o", "-4", "addr"])
    for subnet in _SUBNETS:
        if f" {_SUBNET}.{subnet}." in used:
            continue
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            reservation.bind(f"\0seriatim-faults-network-{subnet}")
        except OSError:
            reservation.close()
            continue
        return subnet, reservation
    raise PreconditionError(f"all subnets of {_SUBNET} are in use")
