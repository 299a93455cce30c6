"""Streams of range reads: the core is asked for one step after another, and frames are made of its answers.

The next step is under way while the one before is written. So at most two steps are in memory. The client's credit
bounds what is sent.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.ids import INDEX_BITS, SEGMENT_BITS, PartitionId, make_offset, split_offset
from seriatim_api.protocol import check_protocol
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import ranges_pb2
from seriatim_api.wire.frames import write_delivery_frame

from ...core.values import effects as fx
from ...core.values.events import ReadRange
from ...core.values.log import Batch
from ...core.values.positions import Place
from ...interfaces.same_names import fill
from ..calls.addresses import Addresses
from ..calls.services import Services, abort
from .served import counted

OPEN_DEADLINE_S: Final = 10.0
STEP_DEADLINE_S: Final = 10.0
"""Time for one step: a read of the disk, and perhaps a producer table from another broker."""

STEP_BYTES: Final = 2 << 20
"""Bytes of batches in one step, which is one frame: as much as one delivery to a consumer group."""

_log = structlog.get_logger(__name__)


class RangeReader:
    """Serves `seriatim.v1.Ranges/ReadRange` with frames as raw bytes."""

    def __init__(self, services: Services, addresses: Addresses) -> None:
        self._services = services
        self._addresses = addresses

    async def serve(self, _requests: object, context: Any) -> None:
        """Serve one stream to its end."""
        try:
            with counted(self._services):
                await _RangeStream(self._services, self._addresses, context).run()
        except SeriatimError as exc:
            _log.info("range_refused", peer=context.peer(), error=str(exc))
            await abort(context, exc)


class _RangeStream:
    """One range of one client."""

    def __init__(self, services: Services, addresses: Addresses, context: Any) -> None:
        self._services = services
        self._addresses = addresses
        self._context = context
        self._credit_bytes = 0
        self._credit = asyncio.Event()

    async def run(self) -> None:
        """Read the range, and tell the client how it ended.

        Raises:
            BadRequestError: The client sent something that is no request.
            UnsupportedVersionError: The client speaks another protocol.
            OffsetOutOfRangeError: The range is not in the partition.
            UnknownTopicError: There is no such partition.
        """
        try:
            async with asyncio.timeout(OPEN_DEADLINE_S):
                frame = await self._context.read()
        except TimeoutError as exc:
            raise BadRequestError("a stream begins with the range to read") from exc
        if frame is grpc.aio.EOF:
            return
        request = _parse(frame)
        if request.WhichOneof("request") != "open":
            raise BadRequestError("the first request of a stream names the range")
        check_protocol(request.open.protocol, "the client", "the broker")
        start, until = place_of(request.open.from_offset), place_of(request.open.to_offset)
        if start > until:
            raise BadRequestError("the range begins after its end")
        self._take_credit(request.open.credit_bytes)
        reading = asyncio.create_task(self._take_requests(), name="range credit")
        writing = asyncio.create_task(self._send(request.open, start, until), name="range")
        try:
            await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, writing):
                if task.done():
                    task.result()
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    # ---- in ----

    async def _take_requests(self) -> None:
        """Take credit until the client ends the stream."""
        while (frame := await self._context.read()) is not grpc.aio.EOF:
            request = _parse(frame)
            if request.WhichOneof("request") != "credit":
                raise BadRequestError("after the first request of a stream only credit may come")
            self._take_credit(request.credit.bytes)

    def _take_credit(self, size_bytes: int) -> None:
        self._credit_bytes += size_bytes
        if self._credit_bytes > 0:
            self._credit.set()

    # ---- out ----

    async def _send(self, request: ranges_pb2.OpenRange, start: Place, until: Place) -> None:
        step = asyncio.create_task(self._step(request, start, until), name="range step")
        try:
            while True:
                answer = await step
                events, batches, size_bytes = _encode(answer)
                self._credit_bytes -= size_bytes
                self._count(batches, size_bytes)
                is_over = answer.is_done or bool(answer.brokers) or answer.error is not None
                if is_over:
                    _check_told(answer)
                    events.append(self._end(answer).SerializeToString())
                else:
                    step = asyncio.create_task(self._step(request, answer.place, until), name="range step")
                await self._context.write(write_delivery_frame(events, batches))
                if is_over:
                    return
        finally:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)

    async def _step(self, request: ranges_pb2.OpenRange, start: Place, until: Place) -> fx.RangeRead:
        if self._credit_bytes <= 0:
            self._credit.clear()
            await self._credit.wait()  # the client may take its time; it ends the stream when it wants no more
        deadline_us = time.monotonic_ns() // 1000 + int(STEP_DEADLINE_S * 0.9e6)
        size_bytes = min(self._credit_bytes, STEP_BYTES)
        answer = await self._services.ask_core(
            lambda number: ReadRange(
                number,
                PartitionId(request.partition_id),
                start,
                until,
                size_bytes,
                request.raw,
                deadline_us,
                epoch=request.epoch,
            ),
            STEP_DEADLINE_S,
        )
        assert isinstance(answer, fx.RangeRead)
        return answer

    def _count(self, batches: list[tuple[bytes, bytes]], size_bytes: int) -> None:
        counters = self._services.counters
        counters.range_batches += len(batches)
        counters.range_bytes += size_bytes

    def _end(self, answer: fx.RangeRead) -> ranges_pb2.RangeEvent:
        out = ranges_pb2.RangeEvent()
        out.end.offset = make_offset(*answer.place)
        out.end.is_complete = answer.is_done
        out.end.addresses.extend(self._addresses.known(answer.brokers))
        if answer.error is not None:
            out.end.error.CopyFrom(error_to_proto(answer.error))
        return out


def _check_told(answer: fx.RangeRead) -> None:
    """Raise an error that every broker would answer, unless something was read before it."""
    if answer.error is not None and not answer.events and not answer.error.retriable:
        raise answer.error


def place_of(offset: int) -> Place:
    """The place of an offset.

    Raises:
        BadRequestError: No offset has that value.
    """
    if offset >= 1 << (SEGMENT_BITS + INDEX_BITS):
        raise BadRequestError(f"there is no offset {offset}: offsets have 63 bits")
    return Place(*split_offset(offset))


def _parse(frame: bytes) -> ranges_pb2.ReadRangeRequest:
    try:
        return ranges_pb2.ReadRangeRequest.FromString(frame)
    except DecodeError as exc:
        raise BadRequestError("not a request of a range") from exc


def _encode(answer: fx.RangeRead) -> tuple[list[bytes], list[tuple[bytes, bytes]], int]:
    """The events of a step, its batches, and their size."""
    events: list[bytes] = []
    batches: list[Batch] = []
    for event in answer.events:
        out = ranges_pb2.RangeEvent()
        match event:
            case fx.RangeBatches():
                out.batches.segment = event.segment_no
                out.batches.batch_count = len(event.batches)
                batches += event.batches
            case fx.RangeSkip():
                fill(out.skip, event, segment=event.segment_no)
            case fx.RangeSegmentEnd():
                fill(out.segment_end, event, segment=event.segment_no)
            case fx.RangeGap():
                fill(out.gap, event, segment=event.segment_no)
            case fx.RangeDropped():
                out.dropped.from_offset = make_offset(*event.start)
                out.dropped.to_offset = make_offset(*event.until)
                out.dropped.checksum = event.checksum
        events.append(out.SerializeToString())
    rows = [(batch.header.raw, batch.body) for batch in batches]
    return events, rows, sum(batch.size_bytes for batch in batches)
