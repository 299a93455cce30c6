"""Consume streams: one for each consumer and broker, for all partitions that the broker serves to the consumer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from seriatim_api.batch import BatchHeader
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.frames import FrameError, read_delivery_frame
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2

from seriatim._core.credit import CreditAccount
from seriatim._transport.append import PROTOCOL, report_unexpected
from seriatim._transport.channels import Channels

OPEN_DEADLINE_S: Final = 1.0

MANY_MAX: Final = 1_000
MANY_BYTES_MAX: Final = 256 << 10
"""At most so many requests, and bytes of them, leave in one frame."""

_PATH: Final = "/seriatim.v1.Consuming/Consume"


class ConsumeListener(Protocol):
    """A consumer, as its links see it."""

    def consume_link_up(self, link: ConsumeLink) -> None:
        """The stream is up."""

    def consume_link_down(self, link: ConsumeLink, reason: SeriatimError) -> None:
        """The stream has ended, or could not be opened."""

    def arrived(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> None:
        """An event of a subscription came, with its batches if it has any."""


class ConsumeLink:
    """One stream to one broker, from its opening to its end. The consumer owns it, and awaits `close`."""

    def __init__(
        self,
        channels: Channels,
        listener: ConsumeListener,
        address: str,
        stream: int,
        client_name: str,
        credit_bytes: int,
        credit_bytes_max: int,
    ) -> None:
        self.address = address
        self.stream = stream
        self.is_up = False
        self.answers_pings = False  # whether the broker has said that it answers heartbeats
        self.takes_many = False  # whether the broker has said that it takes many requests in a frame
        self.told_alive_at_us = 0  # when the newest heartbeat was sent whose answer the subscriptions know of
        self._is_over = False
        self._is_ending = False
        self.heard_at = asyncio.get_running_loop().time()
        self._channels = channels
        self._channel: Any = None  # set when the stream is opened
        self._listener = listener
        self._hello = broker_pb2.ConsumerHello(protocol=PROTOCOL, client=client_name, credit_bytes=credit_bytes)
        self._credit = CreditAccount(credit_bytes, credit_bytes_max, _now_us())
        self._requests: deque[broker_pb2.ConsumeRequest] = deque()
        self._ping: broker_pb2.ConsumeRequest | None = None  # the heartbeat that waits to be written
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"consume link {address}")
        self._task.add_done_callback(report_unexpected)

    def write(self, request: broker_pb2.ConsumeRequest) -> None:
        """Queue a request. The number of partitions and the rate of acknowledgements limit the queue."""
        if not self._is_ending:
            self._requests.append(request)
            self._wake.set()

    def give_credit(self, size_bytes: int) -> None:
        """Give credit back: the application took so many bytes, or the client dropped them."""
        if not self._is_over and (granted := self._credit.free(size_bytes, _now_us())):
            self.write(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=granted)))

    def ping(self, session_ms: int) -> None:
        """Send a heartbeat before all requests that wait, unless one waits already: then the stream is stuck.

        Without the turn before others: 1. The application fails on 3,000 messages a second, so requests wait at each
        moment. 2. No heartbeat is sent. 3. After its session the consumer takes the server for dead and complains, and
        a healthy broker group loses the open segment.
        """
        if self._ping is None and not self._is_ending:
            ping = broker_pb2.Ping(number=_now_us(), session_ms=session_ms)  # the answer has the same number
            self._ping = broker_pb2.ConsumeRequest(ping=ping)
            self._wake.set()

    async def drain(self) -> None:
        """Send all queued requests, close the client's side, and wait until the broker has ended the stream.

        The broker ends it when it has read everything. If the client cancelled the stream instead, the requests that
        the broker has not read yet would be lost: the last acknowledgements.
        """
        self._is_ending = True
        self._wake.set()
        if self.is_up and not self._is_over:
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """End the stream."""
        self._task.cancel()

    async def close(self) -> None:
        """End the stream, and wait until it has ended."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    def give_up(self) -> None:
        """End the stream and its connection, because the broker may be gone."""
        if self._channel is not None:
            self._channels.drop(self.address, "consume", self._channel)

    async def _run(self) -> None:
        reason: SeriatimError = UnavailableError(f"the stream to {self.address} was given up")
        call = None
        try:
            # An aio stream reports nothing before the first message. So it counts as up when its connection is.
            channel = self._channel = self._channels.get(self.address, "consume")
            async with asyncio.timeout(OPEN_DEADLINE_S):
                call = channel.stream_stream(_PATH)()
                await call.write(broker_pb2.ConsumeRequest(hello=self._hello).SerializeToString())
                await call.wait_for_connection()
            self.is_up = True
            self.heard_at = asyncio.get_running_loop().time()
            self._listener.consume_link_up(self)
            await self._serve(call)
        except grpc.aio.AioRpcError as exc:
            reason = from_status(exc.code(), exc.details(), exc.trailing_metadata())
            exc.with_traceback(None)
        except (TimeoutError, DecodeError, FrameError, asyncio.InvalidStateError) as exc:
            reason = UnavailableError(f"{self.address}: {exc or 'no answer in time'}")
            self._channels.drop(self.address, "consume", self._channel)
        except SeriatimError as exc:
            reason = exc.with_traceback(None)  # its frames refer to the call, which keeps the whole channel alive
        finally:
            if call is not None:
                call.cancel()
            self._is_over = True
            self._listener.consume_link_down(self, reason)

    async def _serve(self, call: Any) -> None:
        tasks = [
            asyncio.create_task(self._write(call), name=f"consume writer {self.address}"),
            asyncio.create_task(self._read(call), name=f"consume reader {self.address}"),
        ]
        try:
            done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await asyncio.gather(*others)  # all is written: the broker ends the stream, and so the reader ends
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (request := self._next_request()) is not None:
                await call.write(request.SerializeToString())
            if self._is_ending:
                await call.done_writing()
                return

    def _next_request(self) -> broker_pb2.ConsumeRequest | None:
        """Take what is written next: a heartbeat before all others, and these together if the broker takes that."""
        if self._ping is not None:
            ping, self._ping = self._ping, None
            return ping
        requests = self._requests
        if not requests:
            return None
        first = requests.popleft()
        if not requests or not self.takes_many:
            return first
        together, size_bytes = [first], first.ByteSize()
        while requests and len(together) < MANY_MAX:
            size_bytes += requests[0].ByteSize()
            if size_bytes > MANY_BYTES_MAX:
                break
            together.append(requests.popleft())
        if len(together) == 1:
            return first
        return broker_pb2.ConsumeRequest(many=broker_pb2.Requests(requests=together))

    async def _read(self, call: Any) -> None:
        loop, silence = asyncio.get_running_loop(), self._channels.silence
        while (data := await call.read()) is not grpc.aio.EOF:
            self.heard_at = loop.time()
            if silence.is_feared:
                silence.ends(self.address)
            frame = read_delivery_frame(data)
            at = 0
            for raw in frame.events:
                event = broker_pb2.DeliveryEvent.FromString(raw)
                kind = event.WhichOneof("event")
                count = event.batches.batch_count if kind == "batches" else int(kind == "granted")
                self._listener.arrived(self, event, frame.batches[at : at + count])
                at += count
            if at != len(frame.batches):
                raise FrameError("the events of a delivery account for all its batches")
        raise from_status(await call.code(), await call.details(), await call.trailing_metadata())


def _now_us() -> int:
    return time.monotonic_ns() // 1000
