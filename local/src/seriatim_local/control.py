"""The control of a running cluster. Its runner listens on a unix socket that only its user may open.

A connection carries one request, as JSON lines (`json_lines`). The client side is synchronous, because the commands
that use it have nothing else to do while they wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    PreconditionError,
    UnavailableError,
)

from seriatim_local import json_lines
from seriatim_local.brokers.open_segments import parse_partition
from seriatim_local.fault_records import FaultRecord
from seriatim_local.links.delays import LinkDelay
from seriatim_local.state import ClusterState, is_running, read_state

if TYPE_CHECKING:
    from seriatim_local.cluster import LocalCluster  # imports gRPC, which the commands do not need

SOCKET_NAME: Final = "control.sock"
_SOCKET_PATH_LENGTH_MAX: Final = 100
"""In bytes. The kernel takes at most 107."""


class ControlServer:
    """Serves requests of other processes about a cluster.

    Args:
        cluster: The cluster. It must be started.
        down: Called for the request `down`, after the cluster has stopped and before the answer is sent.
    """

    def __init__(self, cluster: LocalCluster, *, down: Callable[[], None]) -> None:
        self._cluster = cluster
        self._down = down

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Path]:
        """Listen while the context is open. At its end, running requests are cancelled. Gives the socket's path."""
        path = _socket_path(self._cluster.directory)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            requests: set[asyncio.Task[None]] = set()

            def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                request = asyncio.create_task(json_lines.serve(reader, writer, self._handle), name="control-request")
                requests.add(request)
                request.add_done_callback(requests.discard)

            server = await asyncio.start_unix_server(arrive, sock=listener, limit=json_lines.LINE_SIZE_BYTES_MAX)
            self._cluster.save_state(control=str(path))
            try:
                yield path
            finally:
                server.close()
                await server.wait_closed()
                for request in tuple(requests):
                    request.cancel()
                await asyncio.gather(*requests, return_exceptions=True)
                path.unlink(missing_ok=True)

    async def _handle(self, command: str, arguments: json_lines.Arguments) -> Any:
        cluster, victims = self._cluster, await self._victims(arguments)
        match command:
            case "status":
                return asdict(await cluster.status())
            case "faults":
                return _faults(tuple(cluster.faults))
            case "kill":
                return _faults(await cluster.kill(*victims, number=_signal(arguments["signal"])))
            case "stop":
                return _faults(await cluster.stop_gracefully(*victims))
            case "freeze":
                return _faults(await cluster.freeze(*victims))
            case "thaw":
                return _faults(await cluster.thaw(*victims))
            case "start":
                return await self._start(victims, arguments["wait_s"], again=False)
            case "restart":
                return await self._start(victims, arguments["wait_s"], again=True)
            case "add-group":
                return await self._add_group(arguments["wait_s"])
            case "drain-group":
                return await cluster.drain_group(arguments["group"], deadline_s=arguments["wait_s"])
            case "remove-group":
                return _faults(await cluster.remove_group(arguments["group"]))
            case "cut":
                return _faults(
                    await cluster.cut(
                        arguments["source"],
                        arguments["destination"],
                        one_way=arguments["one_way"],
                        reset=arguments["reset"],
                    )
                )
            case "lag":
                return _faults(
                    await cluster.lag(
                        arguments["source"],
                        arguments["destination"],
                        LinkDelay(arguments["delay_s"], arguments["jitter_s"]),
                        one_way=arguments["one_way"],
                    )
                )
            case "heal":
                return _faults(await cluster.heal(arguments["source"], arguments["destination"]))
            case "down":
                await cluster.stop()
                self._down()
                return None
            case _:
                raise BadRequestError(f"the cluster does not know {command!r}")

    async def _victims(self, arguments: json_lines.Arguments) -> tuple[str, ...]:
        """The named victims, and those that have a partition's open segment at this moment."""
        found = list(arguments.get("victims", ()))
        for partition in arguments.get("masters_of", ()):
            _, members = await self._cluster.open_members(*parse_partition(partition))
            found.append(members[0])
        for partition in arguments.get("groups_of", ()):
            group, _ = await self._cluster.open_members(*parse_partition(partition))
            found.append(group)
        return tuple(found)

    async def _add_group(self, wait_s: float) -> str:
        group = await self._cluster.add_group()
        if wait_s > 0:
            await self._cluster.wait_ready(group, deadline_s=wait_s)
        return group

    async def _start(self, victims: tuple[str, ...], wait_s: float, *, again: bool) -> Any:
        cluster = self._cluster
        records = await (cluster.restart(*victims) if again else cluster.start_again(*victims))
        if wait_s > 0:
            await cluster.wait_ready(*victims, deadline_s=wait_s)
        return _faults(records)


def _signal(name: str) -> signal.Signals:
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise BadRequestError(f"there is no signal {name!r}") from None


def _faults(records: tuple[FaultRecord, ...]) -> list[dict[str, object]]:
    return [asdict(record) for record in records]


def _socket_path(directory: Path) -> Path:
    path = directory / SOCKET_NAME
    if len(os.fsencode(path)) <= _SOCKET_PATH_LENGTH_MAX:
        return path
    return Path(tempfile.mkdtemp(prefix="seriatim-")) / SOCKET_NAME  # mkdtemp's directories are private


def find_running(directory: Path) -> ClusterState:
    """The state of the cluster that runs in a directory and takes commands.

    Raises:
        PreconditionError: No cluster runs there, or it has no control socket.
    """
    state = read_state(directory)
    if state is None or not is_running(directory):
        ended = "" if state is None else " (there was one, and its runner has ended)"
        raise PreconditionError(f"no cluster runs in {directory}{ended}: 'seriatim cluster up' starts one")
    if not state.control:
        raise PreconditionError(f"the cluster in {directory} takes no commands: it belongs to another program")
    return state


def request(state: ClusterState, command: str, arguments: json_lines.Arguments, *, deadline_s: float) -> Any:
    """Send a request to a running cluster, and wait for its answer.

    Raises:
        SeriatimError: The cluster answered with this error.
        UnavailableError: The runner cannot be reached, or ended before it answered.
        DeadlineExceededError: No answer came within `deadline_s` seconds. The request may still be carried out.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(deadline_s)
            sock.connect(state.control)
            sock.sendall(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
            with sock.makefile("rb") as file:
                line = file.readline(json_lines.LINE_SIZE_BYTES_MAX)
    except TimeoutError as error:
        raise DeadlineExceededError(f"the runner did not answer within {deadline_s:g} s") from error
    except OSError as error:
        raise UnavailableError(f"the runner cannot be reached at {state.control}: {error}") from error
    if not line.endswith(b"\n"):
        raise UnavailableError("the runner ended before it answered")
    return json_lines.result_of(line)
