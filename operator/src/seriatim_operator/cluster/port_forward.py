"""A port of a pod as a port of this machine, for as long as a block lasts: what `kubectl port-forward` does.

Each connection that is made here becomes a websocket of its own to the API server, and through it to the pod's kubelet.
The kubernetes client has that too, in a thread for each connection that leaves its websocket open; this is its protocol
(`v4.channel.k8s.io`) on the event loop: each message begins with the number of a channel, 0 for data and 1 for a
complaint, and the first message of each channel repeats the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from kubernetes import client

PROTOCOL = "v4.channel.k8s.io"
DATA, COMPLAINT = 0, 1
PORT_BYTES = 2
CHUNK_BYTES = 64 << 10
MESSAGE_BYTES_MAX = 16 << 20
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
    async with aiohttp.ClientSession() as session:
        road = _Road(session, configuration, namespace, pod, port)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A task of our own: the server would report one of its own that is cancelled as an error.
            task = asyncio.create_task(road.join(reader, writer), name=f"forward {pod}:{port}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        await (await road.open()).close()
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Road:
    """The way to one port of one pod."""

    def __init__(
        self, session: aiohttp.ClientSession, configuration: client.Configuration, namespace: str, pod: str, port: int
    ) -> None:
        self._session = session
        self._configuration = configuration
        self._what = f"port {port} of pod {namespace}/{pod}"
        self._url = f"{configuration.host}/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
        self._tls = _tls_context(configuration)

    async def open(self) -> aiohttp.ClientWebSocketResponse:
        """A websocket to the port.

        Raises:
            ForwardFailedError: It is not let through.
        """
        configuration = self._configuration
        headers: dict[str, str] = {}
        client.ApiClient(configuration).update_params_for_auth(headers, [], ["BearerToken"], self._url, "GET", None)
        try:
            async with asyncio.timeout(OPEN_S):
                return await self._session.ws_connect(
                    self._url,
                    protocols=(PROTOCOL,),
                    headers=headers,
                    ssl=self._tls,
                    server_hostname=configuration.tls_server_name or None,
                    proxy=configuration.proxy or None,
                    max_msg_size=MESSAGE_BYTES_MAX,
                )
        except (aiohttp.ClientError, OSError) as exc:  # a time-out is an OSError as well
            raise ForwardFailedError(f"no way to {self._what}: {str(exc) or type(exc).__name__}") from exc

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes both ways between a connection here and the port, until one side ends."""
        try:
            there = await self.open()
            ways = [asyncio.create_task(_send(reader, there)), asyncio.create_task(_receive(there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                await there.close()
        except ForwardFailedError:
            pass  # whoever connected sees the connection end, and says so
        finally:
            writer.close()


async def _send(reader: asyncio.StreamReader, there: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await there.send_bytes(bytes((DATA,)) + data)


async def _receive(there: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    begun: set[int] = set()
    async for message in there:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            return
        channel, data = message.data[0], message.data[1:]
        if channel not in begun:
            begun.add(channel)
            data = data[PORT_BYTES:]
        if channel == COMPLAINT and data:
            return  # nobody listens there, or the pod has gone
        if channel == DATA and data:
            writer.write(data)
            await writer.drain()


def _tls_context(configuration: Any) -> ssl.SSLContext:
    """TLS as the kubernetes client would do it."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
