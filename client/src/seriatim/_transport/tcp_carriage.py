"""Carries one stream over a TCP or TLS connection of its own, without gRPC (`seriatim_api.wire.stream_frames`).

A frame is handled in the turn of the event loop in which it arrives, and what a turn has to send leaves at its end. No
thread and no task is woken for it.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError
from seriatim_api.errors import BadRequestError, SeriatimError, UnavailableError
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import broker_pb2, common_pb2
from seriatim_api.wire.framed_connection import ConnectionEndedError, FramedConnection
from seriatim_api.wire.frames import FrameError
from seriatim_api.wire.stream_frames import END, FINISHED, HELLO, MESSAGE, OPENED

from seriatim._transport.carriage import CarriedStream
from seriatim._transport.channels import Channels
from seriatim._transport.stream_ports import StreamPort

FRAME_SIZE_BYTES_MAX: Final = 32 << 20
"""The largest frame that a client takes, as over gRPC."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 6), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 12_000))
"""A warm stream to a machine that has vanished ends within 12 s: seconds until the first probe and between probes, the
number of probes, and the time in ms for which sent bytes may be unconfirmed. Without it:

1. A broker's machine vanishes, and comes back.
2. Nothing notifies the client, which sends nothing on its warm stream.
3. A partition moves to that broker, and gets this stream.
4. The stream breaks, and the partition complains of a healthy master.
"""


class PortFailedError(Exception):
    """The broker's port for streams cannot be used. This says nothing about the broker."""


class _Connection(FramedConnection):
    """The connection of one stream."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._stream: CarriedStream | None = None
        self._has_finished = False
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def carry(self, stream: CarriedStream) -> None:
        self._stream = stream
        self.begin_frames(FRAME_SIZE_BYTES_MAX)
        await self._over

    def pump(self) -> None:
        """See `FramedConnection`."""
        stream = self._stream
        if stream is None or self._has_finished:
            return
        while not self.is_full:
            pieces = stream.next_frame()
            if pieces is not None:
                self.write(MESSAGE, *pieces)
                continue
            if stream.is_finishing:
                self._has_finished = True
                self.write(FINISHED)
            return

    def frame_arrived(self, kind: int, content: memoryview) -> None:
        """See `FramedConnection`."""
        if self._over.done():
            return
        if kind == MESSAGE:
            assert self._stream is not None
            try:
                self._stream.take(content)
            except DecodeError as exc:
                raise FrameError(str(exc)) from exc
        elif kind == END:
            error = _error_in(content)
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)
        else:
            raise FrameError(f"a frame of kind {kind} does not come here")

    def garbage_arrived(self, error: FrameError) -> None:
        """See `FramedConnection`."""
        self.failed(error)

    def failed(self, error: Exception) -> None:
        """See `FramedConnection`."""
        if not self._over.done():
            self._over.set_exception(error)

    def ended(self, reason: str) -> None:
        """See `FramedConnection`."""
        self.failed(UnavailableError(f"{self._where}: {reason}"))


class TcpCarriage:
    """See `carriage.Carriage`.

    Args:
        channels: Has the certificates.
        port: Where the broker takes the stream.
    """

    def __init__(self, channels: Channels, port: StreamPort) -> None:
        self._channels = channels
        self._port = port
        self._connection: _Connection | None = None
        self.round_trip_us = 0

    async def open(self, hello: broker_pb2.ClientHello | broker_pb2.ConsumerHello) -> None:
        """See `carriage.Carriage`.

        Raises:
            SeriatimError: The broker refuses the stream.
            PortFailedError: The port cannot be used.
        """
        try:
            connection = await self._dial()
            asked_ns = time.monotonic_ns()
            connection.write(HELLO, self._hello(hello).SerializeToString())
            kind, content = await connection.read()
            self.round_trip_us = (time.monotonic_ns() - asked_ns) // 1000
        except (OSError, UnicodeError, ConnectionEndedError, FrameError) as exc:
            error: Exception = PortFailedError(f"{self._where}: {exc}")
        else:
            if kind == OPENED:
                return
            refused = _error_in(content) if kind == END else None
            if refused is None or isinstance(refused, BadRequestError):  # another process has the port
                error = PortFailedError(f"{self._where}: {refused or f'a frame of kind {kind} answers a hello'}")
            else:
                error = refused
        raise error

    @property
    def _where(self) -> str:
        return f"{self._port.host}:{self._port.port}"

    def _hello(self, hello: broker_pb2.ClientHello | broker_pb2.ConsumerHello) -> broker_pb2.StreamHello:
        whole = broker_pb2.StreamHello(cluster_id=self._port.cluster_id, broker=self._port.broker)
        if isinstance(hello, broker_pb2.ClientHello):
            whole.append.CopyFrom(hello)
        else:
            whole.consume.CopyFrom(hello)
        return whole

    async def _dial(self) -> _Connection:
        """A connection to the first address of the host that takes one.

        Raises:
            OSError: There is none, or TLS failed.
            UnicodeError: The host cannot be one.
        """
        host = self._port.host
        context, server_name = self._channels.dialing()
        tls: dict[str, Any] = {}
        if context is not None:
            tls = {"ssl": context, "server_hostname": server_name or host.rstrip(".")}
        failure = OSError(f"{host} has no address")
        for where in await self._channels.lookup.addresses(host):
            connection = self._connection = _Connection(self._where)
            try:
                await asyncio.get_running_loop().create_connection(
                    partial(_itself, connection), where, self._port.port, **tls
                )
            except OSError as exc:
                failure = exc
            else:
                connection.keep_alive(KEEPALIVE)
                return connection
        raise failure

    async def read(self) -> bytes:
        """See `carriage.Carriage`."""
        assert self._connection is not None
        try:
            kind, content = await self._connection.read()
        except ConnectionEndedError as exc:
            error: SeriatimError | None = UnavailableError(f"{self._where}: {exc}")
        else:
            if kind == MESSAGE:
                return content
            error = _error_in(content) if kind == END else None
        raise error or UnavailableError(f"{self._where} ended the stream")

    async def carry(self, stream: CarriedStream) -> None:
        """See `carriage.Carriage`."""
        assert self._connection is not None
        await self._connection.carry(stream)

    def wake(self) -> None:
        """See `carriage.Carriage`."""
        if self._connection is not None:
            self._connection.wake()

    def close(self) -> None:
        """See `carriage.Carriage`."""
        if self._connection is not None:
            self._connection.abort("the stream was closed")

    def give_up(self) -> None:
        """See `carriage.Carriage`. The connection has only this stream."""
        self.close()


def _itself(connection: _Connection) -> _Connection:
    return connection


def _error_in(content: bytes | memoryview) -> SeriatimError | None:
    """The error in an `END`; None if it has none."""
    if not content:
        return None
    try:
        return error_from_proto(common_pb2.Error.FromString(bytes(content)))
    except DecodeError:
        return UnavailableError("the broker ended the stream, and its reason cannot be read")
