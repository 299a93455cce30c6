"""Streams of range reads: one for each range and broker. The broker sends ahead as far as the credit allows."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import from_status
from seriatim_api.v1 import ranges_pb2
from seriatim_api.wire.frames import FrameError, read_delivery_frame

from seriatim._core.credit import CreditAccount
from seriatim._transport.channels import Channels
from seriatim._values.settings import Credit

OPEN_DEADLINE_S: Final = 1.0

SILENCE_S: Final = 2.0
"""If a broker sends nothing for this many seconds, although it has credit, the reader goes to another one. A read of
its disk and a producer table from another broker mostly take less."""

_PATH: Final = "/seriatim.v1.Ranges/ReadRange"

Event = tuple[ranges_pb2.RangeEvent, Sequence[tuple[BatchHeader, memoryview]]]
_Item = Event | SeriatimError | None


class RangeCall:
    """One stream, used with `async with`. `events` yields its events, and gives credit back for those that were taken.

    Args:
        channels: The connections.
        address: The broker's address.
        request: The range to read.
        credit: Bytes that the broker may send while the application has not taken them.
    """

    def __init__(self, channels: Channels, address: str, request: ranges_pb2.OpenRange, credit: Credit) -> None:
        self._channels = channels
        self._address = address
        self._request = request
        self._request.protocol = PROTOCOL
        pool = None if credit.is_fixed else channels.credit_pool
        self._credit = CreditAccount(credit.least_bytes, credit.most_bytes, _now_us(), pool)
        self._items: deque[tuple[_Item, int]] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        self._channel: Any = None

    async def __aenter__(self) -> RangeCall:
        self._task = asyncio.create_task(self._run(), name=f"range from {self._address}")
        return self

    async def __aexit__(self, *_exception: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def events(self) -> AsyncIterator[Event]:
        """The events of the stream in their order, until it ends.

        Raises:
            SeriatimError: The broker's error; or the broker was not reached, or is silent.
        """
        while True:
            while self._items:
                item, size_bytes = self._items.popleft()
                if item is None:
                    return
                if isinstance(item, SeriatimError):
                    raise item
                yield item
                await self._give_back(size_bytes)
            self._arrived.clear()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._arrived.wait()
            except TimeoutError as exc:
                self._channels.drop(self._address, "range", self._channel)
                raise UnavailableError(f"{self._address} sent nothing for {SILENCE_S:g} s") from exc

    async def _give_back(self, size_bytes: int) -> None:
        granted = self._credit.free(size_bytes, _now_us())
        if granted and self._task is not None and not self._task.done():
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._grant(granted)  # else the stream has ended: its end is among the items

    async def _grant(self, size_bytes: int) -> None:
        credit = ranges_pb2.ReadRangeRequest(credit=ranges_pb2.RangeCredit(bytes=size_bytes))
        await self._call.write(credit.SerializeToString())

    async def _run(self) -> None:
        end: SeriatimError | None = UnavailableError(f"the stream from {self._address} was given up")
        try:
            channel = self._channel = self._channels.get(self._address, "range")
            async with asyncio.timeout(OPEN_DEADLINE_S + self._channels.round_trips.way_s(self._address)):
                self._call = channel.stream_stream(_PATH)()
                asked_us = _now_us()
                await self._call.write(ranges_pb2.ReadRangeRequest(open=self._request).SerializeToString())
                await self._call.wait_for_connection()
                self._credit.measured(_now_us() - asked_us)  # with the time to connect, if it was not
                if granted := self._credit.begin():
                    await self._grant(granted)
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._take(data)
            code = await self._call.code()
            end = None
            if code is not grpc.StatusCode.OK:
                end = from_status(code, await self._call.details(), await self._call.trailing_metadata())
        except grpc.aio.AioRpcError as exc:
            end = from_status(exc.code(), f"{self._address}: {exc.details()}", exc.trailing_metadata())
        except (TimeoutError, DecodeError, FrameError, asyncio.InvalidStateError) as exc:
            end = UnavailableError(f"{self._address}: {exc or 'no answer in time'}")
            self._channels.drop(self._address, "range", self._channel)
        except SeriatimError as exc:
            end = exc
        finally:
            if self._call is not None:
                self._call.cancel()
            self._credit.close()
            self._put(end, 0)

    def _take(self, data: bytes) -> None:
        frame = read_delivery_frame(data)
        at = 0
        for raw in frame.events:
            event = ranges_pb2.RangeEvent.FromString(raw)
            count = event.batches.batch_count if event.HasField("batches") else 0
            batches = frame.batches[at : at + count]
            at += count
            self._put((event, batches), sum(HEADER_SIZE_BYTES + header.body_length for header, _ in batches))
        if at != len(frame.batches):
            raise FrameError("the events of a range do not match its batches")

    def _put(self, item: _Item, size_bytes: int) -> None:
        self._items.append((item, size_bytes))
        self._arrived.set()


def _now_us() -> int:
    return time.monotonic_ns() // 1000
