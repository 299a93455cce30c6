"""Carries one stream over a gRPC call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from seriatim_api.errors import SeriatimError
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import write_field

from seriatim._transport.carriage import CarriedStream
from seriatim._transport.channels import Channels, StreamPurpose

_PATHS: Final = {"append": "/seriatim.v1.Producing/Append", "consume": "/seriatim.v1.Consuming/Consume"}
_FIELD_HELLO: Final = 1
_T = TypeVar("_T")


class GrpcCarriage:
    """See `carriage.Carriage`.

    Args:
        channels: The gRPC connections.
        address: The broker's address.
        purpose: The kind of the stream.
    """

    def __init__(self, channels: Channels, address: str, purpose: StreamPurpose) -> None:
        self._channels = channels
        self._address = address
        self._purpose = purpose
        self._channel: Any = None
        self._call: Any = None
        self._wake = asyncio.Event()
        self.round_trip_us = 0

    async def open(self, hello: broker_pb2.ClientHello | broker_pb2.ConsumerHello) -> None:
        """See `carriage.Carriage`. An aio stream reports nothing before its first message. It counts as open
        when it connects."""
        self._channel = self._channels.get(self._address, self._purpose)
        self._call = self._channel.stream_stream(_PATHS[self._purpose])()
        if isinstance(hello, broker_pb2.ClientHello):
            frame = b"".join(write_field(_FIELD_HELLO, [hello.SerializeToString()]))
        else:
            frame = broker_pb2.ConsumeRequest(hello=hello).SerializeToString()
        asked_ns = time.monotonic_ns()
        await _typed(self._call.write(frame))
        await _typed(self._call.wait_for_connection())
        self.round_trip_us = (time.monotonic_ns() - asked_ns) // 1000  # with the time to connect, if it was not

    async def read(self) -> bytes:
        """See `carriage.Carriage`."""
        frame = await _typed(self._call.read())
        if frame is grpc.aio.EOF:
            raise await self._status()
        return bytes(frame)

    async def carry(self, stream: CarriedStream) -> None:
        """See `carriage.Carriage`."""
        writer = asyncio.create_task(self._write(stream), name=f"{self._purpose} writer {self._address}")
        reader = asyncio.create_task(self._read(stream), name=f"{self._purpose} reader {self._address}")
        try:
            await asyncio.wait((writer, reader), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            await reader  # if all is written, the broker ends the stream, and so the reader ends
        finally:
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)

    async def _write(self, stream: CarriedStream) -> None:
        while True:
            while (pieces := stream.next_frame()) is not None:
                await _typed(self._call.write(b"".join(pieces)))
            if stream.is_finishing:
                await _typed(self._call.done_writing())
                return
            await self._wake.wait()
            self._wake.clear()

    async def _read(self, stream: CarriedStream) -> None:
        while (frame := await _typed(self._call.read())) is not grpc.aio.EOF:
            stream.take(frame)
        error = await self._status()
        if await self._call.code() is not grpc.StatusCode.OK:
            raise error

    async def _status(self) -> SeriatimError:
        call = self._call
        return from_status(await call.code(), await call.details(), await call.trailing_metadata())

    def wake(self) -> None:
        """See `carriage.Carriage`."""
        self._wake.set()

    def close(self) -> None:
        """See `carriage.Carriage`. The call is forgotten: as long as it is referred to, gRPC keeps the whole channel,
        and reports its end when the event loop may be closed."""
        call, self._call, self._channel = self._call, None, None
        if call is not None:
            call.cancel()

    def give_up(self) -> None:
        """See `carriage.Carriage`. Other streams on the connection end too."""
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            self._channels.drop(self._address, self._purpose, self._channel)


async def _typed(call: Awaitable[_T]) -> _T:
    """Await something of a call.

    Raises:
        SeriatimError: The call has failed. The error does not refer to the call, which keeps the whole channel alive.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as exc:
        error: Exception = from_status(exc.code(), exc.details(), exc.trailing_metadata())
    except asyncio.InvalidStateError as exc:  # the call has ended, perhaps with its connection
        error = TimeoutError(str(exc))
    raise error
