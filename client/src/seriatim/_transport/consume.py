"""Consume streams: one for each consumer and broker, for all partitions that the broker serves to the consumer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from seriatim_api.batch import BatchHeader
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import FrameError, read_delivery_frame

from seriatim._core.credit import CreditAccount
from seriatim._transport.append import report_unexpected
from seriatim._transport.carriage import Carriage
from seriatim._transport.carriages import Carriages
from seriatim._values.settings import Credit

OPEN_DEADLINE_S: Final = 1.0
"""Seconds until a stream is up, besides the way to the broker."""

MANY_MAX: Final = 1_000
MANY_BYTES_MAX: Final = 256 << 10
"""At most this many requests, and bytes of them, leave in one frame."""


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
        carriages: Carriages,
        listener: ConsumeListener,
        address: str,
        stream: int,
        client_name: str,
        credit: Credit,
    ) -> None:
        self.address = address
        self.stream = stream
        self.is_up = False
        self.told_alive_at_us = 0  # when the newest heartbeat was sent whose answer the subscriptions know of
        self.is_finishing = False
        self._is_over = False
        self.heard_at = asyncio.get_running_loop().time()
        self._carriages = carriages
        self._channels = carriages.channels
        self._carriage: Carriage | None = None  # set when the stream is opened
        self._listener = listener
        self._hello = broker_pb2.ConsumerHello(protocol=PROTOCOL, client=client_name, credit_bytes=credit.least_bytes)
        pool = None if credit.is_fixed else self._channels.credit_pool
        self._credit = CreditAccount(credit.least_bytes, credit.most_bytes, _now_us(), pool)
        self._requests: deque[broker_pb2.ConsumeRequest] = deque()
        self._ping: broker_pb2.ConsumeRequest | None = None  # the heartbeat that waits to be written
        self._task = asyncio.create_task(self._run(), name=f"consume link {address}")
        self._task.add_done_callback(report_unexpected)

    @property
    def round_trip_us(self) -> int:
        """How long a question and its answer are on their way to this broker and back, in µs."""
        return int(self._channels.round_trips.round_trip_s(self.address) * 1e6)

    def write(self, request: broker_pb2.ConsumeRequest) -> None:
        """Queue a request. The number of partitions and the rate of acknowledgements limit the queue."""
        if not self.is_finishing:
            self._requests.append(request)
            self._wake()

    def give_credit(self, size_bytes: int) -> None:
        """Give credit back: the application took this many bytes, or the client dropped them."""
        if not self._is_over and (granted := self._credit.free(size_bytes, _now_us())):
            self.write(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=granted)))

    def ping(self, session_ms: int) -> None:
        """Send a heartbeat before all requests that wait, unless one waits already: then the stream is stuck.

        Without the turn before others: 1. The application fails on 3,000 messages a second, so requests wait at each
        moment. 2. No heartbeat is sent. 3. After its session the consumer takes the server for dead and complains, and
        a healthy broker group loses the open segment.
        """
        if self._ping is None and not self.is_finishing:
            ping = broker_pb2.Ping(number=_now_us(), session_ms=session_ms)  # the answer has the same number
            self._ping = broker_pb2.ConsumeRequest(ping=ping)
            self._wake()

    def measured(self, pong: broker_pb2.Pong) -> None:
        """The answer to a heartbeat is here."""
        round_trip_us = _now_us() - pong.number
        self._credit.measured(round_trip_us)
        self._channels.round_trips.took(self.address, round_trip_us / 1e6)

    async def drain(self) -> None:
        """Send all queued requests, close the client's side, and wait until the broker has ended the stream.

        The broker ends it when it has read everything. If the client cancelled the stream instead, the requests that
        the broker has not read yet would be lost: the last acknowledgements.
        """
        self.is_finishing = True
        self._wake()
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
        if self._carriage is not None:
            self._carriage.give_up()

    def _wake(self) -> None:
        if self._carriage is not None:
            self._carriage.wake()

    async def _run(self) -> None:
        reason: SeriatimError = UnavailableError(f"the stream to {self.address} was given up")
        try:
            async with asyncio.timeout(OPEN_DEADLINE_S + self._channels.round_trips.way_s(self.address)):
                self._carriage = await self._carriages.choose(self.address, "consume")
                await self._carriage.open(self._hello)
            self._credit.measured(self._carriage.round_trip_us)
            if granted := self._credit.begin():
                self.write(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=granted)))
            self.is_up = True
            self.heard_at = asyncio.get_running_loop().time()
            self._listener.consume_link_up(self)
            await self._carriage.carry(self)
        except (TimeoutError, DecodeError, FrameError) as exc:
            reason = UnavailableError(f"{self.address}: {exc or 'no answer in time'}")
            self.give_up()
        except SeriatimError as exc:
            reason = exc.with_traceback(None)  # its frames refer to the carriage
        finally:
            if self._carriage is not None:
                self._carriage.close()
            self._is_over = True
            self._credit.close()
            self._listener.consume_link_down(self, reason)

    def next_frame(self) -> Sequence[bytes] | None:
        """See `CarriedStream`."""
        request = self._next_request()
        return None if request is None else (request.SerializeToString(),)

    def _next_request(self) -> broker_pb2.ConsumeRequest | None:
        """Take what is written next: a heartbeat before all others, and these together."""
        if self._ping is not None:
            ping, self._ping = self._ping, None
            return ping
        requests = self._requests
        if not requests:
            return None
        first = requests.popleft()
        if not requests:
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

    def take(self, frame: bytes | memoryview) -> None:
        """See `CarriedStream`. The frame has events, and the application keeps their batches."""
        self.heard_at = asyncio.get_running_loop().time()
        if self._channels.silence.is_feared:
            self._channels.silence.ends(self.address)
        delivery = read_delivery_frame(bytes(frame))
        at = 0
        for raw in delivery.events:
            event = broker_pb2.DeliveryEvent.FromString(raw)
            kind = event.WhichOneof("event")
            count = event.batches.batch_count if kind == "batches" else int(kind == "granted")
            self._listener.arrived(self, event, delivery.batches[at : at + count])
            at += count
        if at != len(delivery.batches):
            raise FrameError("the events of a delivery account for all its batches")


def _now_us() -> int:
    return time.monotonic_ns() // 1000
