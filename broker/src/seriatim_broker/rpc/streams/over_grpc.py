"""Streams of clients over gRPC: a call carries one stream. Over TCP it is `over_tcp`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.v1 import broker_pb2

from ..calls.addresses import Addresses
from ..calls.broken_assertions import end_at_bug
from ..calls.services import Services, abort
from .append import AppendStream, read_frame
from .consume import ConsumeStream, read_request
from .served import ServedStream, counted, log_refusal

HELLO_DEADLINE_S: Final = 10.0
"""A stream is ended if its first frame does not come within this time."""


class GrpcStreams:
    """Serves `Append` and `Consume` with frames as raw bytes.

    Args:
        services: The broker.
        addresses: What clients of this port learn about where brokers are.
    """

    def __init__(self, services: Services, addresses: Addresses) -> None:
        self._services = services
        self._addresses = addresses

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The handlers to register with a server."""
        append = grpc.stream_stream_rpc_method_handler(self._append)
        consume = grpc.stream_stream_rpc_method_handler(self._consume)
        return (
            grpc.method_handlers_generic_handler("seriatim.v1.Producing", {"Append": append}),
            grpc.method_handlers_generic_handler("seriatim.v1.Consuming", {"Consume": consume}),
        )

    async def _append(self, _requests: object, context: Any) -> None:
        carriage = GrpcCarriage(context)

        def begin(frame: bytes) -> AppendStream:
            return AppendStream(self._services, self._addresses, _append_hello(frame), carriage.wake)

        await carriage.serve(self._services, begin, "append", takes_first=True)

    async def _consume(self, _requests: object, context: Any) -> None:
        carriage = GrpcCarriage(context)

        def begin(frame: bytes) -> ConsumeStream:
            return ConsumeStream(self._services, self._addresses, _consume_hello(frame), carriage.wake)

        await carriage.serve(self._services, begin, "consume")


class GrpcCarriage:
    """Carries one stream over a gRPC call.

    Args:
        context: Of the call.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._wake = asyncio.Event()
        self._is_draining = False

    def wake(self) -> None:
        """The stream has frames to send."""
        self._wake.set()

    async def serve(
        self, services: Services, begin: Callable[[bytes], ServedStream], what: str, *, takes_first: bool = False
    ) -> None:
        """Carry the stream until the client ends it.

        Args:
            services: The broker.
            begin: Makes the stream from its first frame.
            what: The kind of the stream, for the log.
            takes_first: Whether the first frame may have more than the hello.
        """
        try:
            with counted(services):
                await self._run(begin, takes_first)
        except SeriatimError as exc:
            log_refusal(what, self._context.peer(), exc)
            await abort(self._context, exc)

    async def _run(self, begin: Callable[[bytes], ServedStream], takes_first: bool) -> None:
        try:
            async with asyncio.timeout(HELLO_DEADLINE_S):
                frame = await self._context.read()
        except TimeoutError as exc:
            raise BadRequestError("a stream begins with a hello") from exc
        if frame is grpc.aio.EOF:
            return
        stream = begin(frame)
        writer = asyncio.create_task(self._write(stream), name="stream writer")
        writer.add_done_callback(end_at_bug)
        try:
            if not takes_first:
                frame = await self._context.read()
            while frame is not grpc.aio.EOF and not writer.done():
                for _ in stream.take(frame):
                    await asyncio.sleep(0)  # other work has its turn
                frame = await self._context.read()
            if stream.drains:
                self._is_draining = True
                self._wake.set()
                await asyncio.wait([writer])
        finally:
            stream.end()  # before anything is awaited: gRPC cancels this task when the client is gone
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, stream: ServedStream) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (pieces := stream.next_frame()) is not None:
                await self._context.write(b"".join(pieces))
            if self._is_draining and not stream.owes:
                return


def _append_hello(frame: bytes) -> broker_pb2.ClientHello:
    hello = read_frame(frame).hello
    if not hello:
        raise BadRequestError("the first frame of a stream holds a hello")
    try:
        return broker_pb2.ClientHello.FromString(hello)
    except DecodeError as exc:
        raise BadRequestError("the hello of the stream cannot be read") from exc


def _consume_hello(frame: bytes) -> broker_pb2.ConsumerHello:
    request = read_request(frame)
    if request.WhichOneof("request") != "hello":
        raise BadRequestError("the first request of a stream is a hello")
    return request.hello
