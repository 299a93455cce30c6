"""A port of a pod as a port of this machine, for as long as a block lasts: what `kubectl port-forward` does.

Each connection that is made here becomes a websocket of its own to the API server, and through it to the pod's kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

CHUNK_BYTES = 64 << 10
OPEN_S = 10.0


class ForwardFailedError(Exception):
    """The pod's port cannot be reached through the API server."""


@contextlib.asynccontextmanager
async def forward(configuration: client.Configuration, namespace: str, pod: str, port: int) -> AsyncIterator[str]:
    """Yields `127.0.0.1:<port>`, which leads to the pod's.

    Raises:
        ForwardFailedError: The API server does not let it through; found out by a first connection.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.to_thread(_open, configuration, namespace, pod, port)
            await _join(reader, writer, *await asyncio.open_connection(sock=there))
        except (ForwardFailedError, OSError):
            pass  # whoever connected sees the connection end, and says so
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the server would report one of its own that is cancelled as an error.
        task = asyncio.create_task(serve(reader, writer), name=f"forward {pod}:{port}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    probe = await asyncio.to_thread(_open, configuration, namespace, pod, port)
    probe.close()
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _open(configuration: client.Configuration, namespace: str, pod: str, port: int) -> Any:
    """A socket that leads to the pod's port. Blocks."""
    threading.excepthook = _quiet
    api = client.CoreV1Api(client.ApiClient(configuration))
    try:
        way = portforward(
            api.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port), _request_timeout=OPEN_S
        )
    except (ApiException, OSError) as exc:
        raise ForwardFailedError(f"no way to port {port} of pod {namespace}/{pod}: {_short(exc)}") from exc
    # The library wraps its end in a class of its own; the event loop wants the socket.
    there = way.socket(port)._socket  # noqa: SLF001
    there.setblocking(False)
    return there


async def _join(
    near_in: asyncio.StreamReader,
    near_out: asyncio.StreamWriter,
    far_in: asyncio.StreamReader,
    far_out: asyncio.StreamWriter,
) -> None:
    """Bytes both ways until one side ends."""
    ways = [asyncio.create_task(_pump(near_in, far_out)), asyncio.create_task(_pump(far_in, near_out))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        far_out.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()


def _short(exc: Exception) -> str:
    return str(exc).splitlines()[0] if str(exc) else type(exc).__name__


_previous_hook = threading.excepthook


def _quiet(arguments: threading.ExceptHookArgs) -> None:
    """The library's threads end with an exception when a connection does; that is no news."""
    if arguments.thread is not None and arguments.thread.name.startswith("Kubernetes port forward"):
        return
    _previous_hook(arguments)
