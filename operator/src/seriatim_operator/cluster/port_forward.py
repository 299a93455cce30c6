"""Opens a port of this machine that leads to a port of a pod, as `kubectl port-forward` does.

Each connection to the local port gets its own websocket to the API server, which connects it to the pod's kubelet. The
kubernetes client can do this too, but it needs a thread for each connection and leaves the websocket open. This module
has the same protocol (`v4.channel.k8s.io`) on the event loop. Each message begins with the number of a channel: 0 for
data, 1 for an error. The first message of each channel repeats the port.
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
    """Yield `127.0.0.1:<port>`, which leads to the pod's port. The end of the block closes all connections.

    Raises:
        ForwardFailedError: A first connection through the API server failed or took longer than 10 s.
    """
    tasks: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession() as session:
        road = _Road(session, configuration, namespace, pod, port)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # The server reports a cancelled task of its own as an error, so the connection gets a task of ours.
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
    """Makes connections to one port of one pod."""

    def __init__(
        self, session: aiohttp.ClientSession, configuration: client.Configuration, namespace: str, pod: str, port: int
    ) -> None:
        self._session = session
        self._configuration = configuration
        self._what = f"port {port} of pod {namespace}/{pod}"
        self._url = f"{configuration.host}/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
        self._tls = _tls_context(configuration)

    async def open(self) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket to the port.

        Raises:
            ForwardFailedError: The API server or the kubelet refuses it, or does not answer within 10 s.
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
        """Copy bytes in both directions between a local connection and the port, until one side ends."""
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
            pass  # the local client sees its connection end, and reports that
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
            return  # no process listens on the port, or the pod is gone
        if channel == DATA and data:
            writer.write(data)
            await writer.drain()


def _tls_context(configuration: Any) -> ssl.SSLContext:
    """The TLS settings that the kubernetes client would use."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
