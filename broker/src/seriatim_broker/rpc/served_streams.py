"""Streams of clients: what their carriages need of them, and the carriage over gRPC. The one over TCP is `tcp_streams`.

A stream (`producing.AppendStream`, `consuming.ConsumeStream`) takes frames and has frames to send. It does not know how
they travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import grpc
import structlog
from seriatim_api.errors import BadRequestError, NotServingError, SeriatimError, TooManyStreamsError

from ..bugs import end_at_bug
from .limits import WARM_SHARE
from .services import Services, abort

HELLO_DEADLINE_S: Final = 10.0
"""A stream over gRPC is ended if its first frame does not come within this time."""

_log = structlog.get_logger(__name__)


class ServedStream(Protocol):
    """One stream of a client."""

    drains: bool
    """Whether a client that has finished still waits for frames, as long as the stream `owes` them."""

    frame_size_bytes_max: int
    """The largest frame that it takes."""

    @property
    def owes(self) -> bool:
        """Whether answers are still to come."""

    @property
    def waiting_count(self) -> int:
        """Answers and events that wait for `next_frame`."""

    def take(self, frame: bytes | memoryview) -> Iterator[None]:
        """Take a frame. It is taken when the iterator ends. Between two steps of it, other work has its turn.

        The frame stays valid until then.

        Raises:
            SeriatimError: The client must not send this. The stream ends.
        """

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """The next frame to send, in pieces; None if nothing waits."""

    def end(self) -> None:
        """The stream has ended."""


@contextmanager
def counted(services: Services, *, is_warm: bool = False) -> Iterator[None]:
    """A stream counts while it is open. For warm ones the limit is lower; see `WARM_SHARE`.

    Raises:
        NotServingError: The broker is stopping.
        TooManyStreamsError: It has as many streams as it may have.
    """
    if services.is_stopping:
        raise NotServingError("this broker is stopping: ask another one")
    limit = services.stream_count_max // (WARM_SHARE if is_warm else 1)
    if services.stream_count >= limit:
        raise TooManyStreamsError(f"this broker has {limit} streams already, its limit", retry_after_ms=1000)
    services.stream_count += 1
    try:
        yield
    finally:
        services.stream_count -= 1


def log_refusal(what: str, peer: str, error: SeriatimError) -> None:
    """Log that a stream was refused. That this broker takes no more streams is ordinary, and its clients try again."""
    is_ordinary = isinstance(error, (NotServingError, TooManyStreamsError))
    (_log.debug if is_ordinary else _log.warning)(f"{what}_stream_refused", peer=peer, error=str(error))


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
