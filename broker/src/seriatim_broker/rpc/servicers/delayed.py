"""Calls about delayed messages: cancel them, and list what waits.

The server of a segment knows what became of the delayed messages in it. Any broker finds it: its own core names the
server, or else the coordinator. A call that another broker passed on stays here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from seriatim_api.delayed import CancelOutcome
from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    NotServingError,
    PartitionOutOfRangeError,
    SeriatimError,
    UnavailableError,
)
from seriatim_api.ids import INDEX_MAX, OFFSET_MAX, PartitionId, check_name, make_offset, split_offset
from seriatim_api.status import error_from_proto, error_to_proto
from seriatim_api.v1 import delayed_pb2, delayed_pb2_grpc

from ...core.values.delayed import Amount
from ...core.values.delayed_messages import (
    CancelDelayed,
    DelayedCancelled,
    DelayedFiltered,
    FilterDelayed,
    FiringListed,
    ListFiring,
)
from ...core.values.log import DueRow
from ...core.values.segment import SegmentState
from ...runtime.driver.delayed_reads import DUE_MS_MAX
from ..calls.addresses import Addresses
from ..calls.outbound import BrokerCalls, is_forwarded
from ..calls.services import Services, answered, remaining_s, typed_errors
from ..distributed.fired_reads import FiredReads
from ..distributed.pending import first_here

ROUND_PAUSE_S: Final = 0.02
"""Pause before a cancellation that cannot be answered now is tried again, until the deadline."""

CANCELS_PER_CALL_MAX: Final = 1_000

TRY_S: Final = 2.0
"""A broker that does not answer within this time is asked again: it may have been replaced."""

TAKE_UP_ROUNDS: Final = 10
TAKE_UP_PAUSE_S: Final = 0.05
"""A server takes a segment up when it is first asked, or something is due. The first page waits for that."""

ROWS_PER_PAGE_DEFAULT: Final = 1_000
ROWS_PER_PAGE_MAX: Final = 10_000
ROWS_PER_READ: Final = 1_000

ROWS_PER_CALL_MAX: Final = 20_000
"""A call reads that many rows of a segment at most. What was fired or cancelled has a row until retention drops it."""

Place = tuple[int, int]
"""A due time, and an offset or an index."""

_RESULTS: Final = {
    CancelOutcome.CANCELLED: delayed_pb2.CANCEL_RESULT_CANCELLED,
    CancelOutcome.TOO_LATE: delayed_pb2.CANCEL_RESULT_TOO_LATE,
    CancelOutcome.NOT_FOUND: delayed_pb2.CANCEL_RESULT_NOT_FOUND,
}


class DelayedServicer(delayed_pb2_grpc.DelayedServicer):
    """Serves `seriatim.v1.Delayed`.

    Args:
        services: Of this broker.
        calls: Calls to other brokers.
        addresses: What the clients of this port learn about where brokers are.
        pending: What waits in a segment that this broker serves (`DelayedCounts.pending`).
    """

    def __init__(
        self,
        services: Services,
        calls: BrokerCalls,
        addresses: Addresses,
        pending: Callable[[tuple[PartitionId, int]], Amount | None],
    ) -> None:
        self._fired_reads = FiredReads(services, calls)
        self._services = services
        self._calls = calls
        self._addresses = addresses
        self._pending = pending
        self._own = services.identity.member.broker

    async def _partition(self, topic: str, number: int) -> PartitionId:
        """The id of a partition. The coordinator is asked only if this broker does not know the topic."""
        check_name(topic, "topic")
        known: Sequence[int] = self._services.topic_limits.partitions_of(topic)
        if number >= len(known):
            known = (await self._services.topic(topic)).partition_ids
        if number >= len(known):
            raise PartitionOutOfRangeError(f"{topic} has partitions 0 to {len(known) - 1}, not {number}")
        return PartitionId(known[number])

    # ---- cancel -----------------------------------------------------------------------------------------

    @typed_errors
    async def CancelDelayed(  # noqa: N802 - the contract's names
        self, request: delayed_pb2.CancelDelayedRequest, context: Any
    ) -> delayed_pb2.CancelDelayedResponse:
        """Have the servers of the messages' segments cancel them. To ask again is harmless: each answer is final."""
        until = time.monotonic() + remaining_s(context) * 0.9
        if not 1 <= len(request.offsets) <= CANCELS_PER_CALL_MAX:
            raise BadRequestError(
                f"a call cancels 1 to {CANCELS_PER_CALL_MAX:,} messages, not {len(request.offsets):,}"
            )
        if max(request.offsets) > OFFSET_MAX:
            raise BadRequestError(f"{max(request.offsets)} is no offset")
        partition = await self._partition(request.topic, request.partition)
        stays = is_forwarded(context)
        found = await asyncio.gather(
            *(self._outcome(partition, request, offset, until, stays=stays) for offset in request.offsets)
        )
        return delayed_pb2.CancelDelayedResponse(
            messages=(message for message, _ in found), server_address=self._addresses.of(found[0][1])
        )

    async def _outcome(
        self,
        partition: PartitionId,
        request: delayed_pb2.CancelDelayedRequest,
        offset: int,
        until: float,
        *,
        stays: bool,
    ) -> tuple[delayed_pb2.CancelledMessage, str]:
        """What becomes of one message, and which broker says it. `stays`: no other broker is asked."""
        origin, is_repeat = offset, False
        while True:
            try:
                if stays:
                    return await self._cancel_here(partition, offset, until), self._own
                answer, server = await self._cancel(partition, request, offset, until)
                if answer.may_be_moved:
                    left_s = max(until - time.monotonic(), 0.001)
                    place = await self._fired_reads.moved_to(partition, origin, left_s)
                    if place not in (0, offset):
                        offset = place
                        continue
                if answer.result == delayed_pb2.CANCEL_RESULT_NOT_FOUND and is_repeat and not answer.may_be_moved:
                    # It is there, because a producer table says so, and not delayed: it was due when it was stored.
                    answer.result = delayed_pb2.CANCEL_RESULT_TOO_LATE
                if answer.result:
                    return answer, server
                offset = origin = answer.stored_at
                is_repeat = True
                continue
            except SeriatimError as exc:
                may_succeed = exc.retriable or isinstance(exc, UnavailableError | DeadlineExceededError)
                pause_s = max(ROUND_PAUSE_S, (exc.retry_after_ms or 0) / 1000)
                if stays or not may_succeed or time.monotonic() + pause_s >= until:
                    return delayed_pb2.CancelledMessage(error=error_to_proto(exc)), ""
            await asyncio.sleep(pause_s)

    async def _cancel(
        self, partition: PartitionId, request: delayed_pb2.CancelDelayedRequest, offset: int, until: float
    ) -> tuple[delayed_pb2.CancelledMessage, str]:
        """Ask the own core, and the server if that is another broker."""
        try:
            return await self._cancel_here(partition, offset, until), self._own
        except SeriatimError as exc:
            server = exc.details.get("server") or await self._server_of(partition, offset)
            if server is None:
                return delayed_pb2.CancelledMessage(result=delayed_pb2.CANCEL_RESULT_NOT_FOUND, may_be_moved=True), ""
            if server in ("", self._own):
                raise
        left_s = max(min(until - time.monotonic(), TRY_S), 0.001)
        asked = delayed_pb2.CancelDelayedRequest(topic=request.topic, partition=request.partition, offsets=[offset])
        answer: delayed_pb2.CancelledMessage
        (answer,) = (await self._calls.delayed(server, "CancelDelayed", asked, left_s)).messages
        if answer.HasField("error"):
            raise error_from_proto(answer.error)
        return answer, server

    async def _cancel_here(self, partition: PartitionId, offset: int, until: float) -> delayed_pb2.CancelledMessage:
        asked = await self._services.ask_core(
            lambda number: CancelDelayed(number, partition, offset), max(until - time.monotonic(), 0.001)
        )
        assert isinstance(asked, DelayedCancelled)
        if asked.outcome is not None:
            self._services.counters.delayed_cancelled += asked.outcome is CancelOutcome.CANCELLED
            return delayed_pb2.CancelledMessage(result=_RESULTS[asked.outcome], may_be_moved=asked.may_be_moved)
        if asked.offset:
            return delayed_pb2.CancelledMessage(stored_at=asked.offset)
        assert asked.error is not None
        if asked.server:
            asked.error.details["server"] = asked.server
        raise asked.error

    async def _server_of(self, partition: PartitionId, offset: int) -> str | None:
        """The server of the segment with an offset, as the coordinator says.

        Empty: the segment is not known yet. None: all its messages are lost, or retention has dropped it.
        """
        no = split_offset(offset)[0]
        for chain in await self._services.chains([partition]):
            segment = chain.segment(no)
            if segment is not None and segment.state is not SegmentState.LOST:
                return segment.server.broker
            if no < chain.open_segment.no:
                return None
        return ""

    # ---- retention ----------------------------------------------------------------------------------------

    @typed_errors
    async def FirstPending(  # noqa: N802
        self, request: delayed_pb2.FirstPendingRequest, context: Any
    ) -> delayed_pb2.FirstPendingResponse:
        """How far retention may go in a segment that this broker serves."""
        left_s = remaining_s(context) * 0.9
        if request.move_below and not is_forwarded(context):
            raise BadRequestError("only brokers have delayed messages moved")
        partition = PartitionId(request.partition_id)
        first = await first_here(self._services, partition, request.segment, request.move_below, left_s)
        return delayed_pb2.FirstPendingResponse(first=first)

    # ---- what was fired, for other brokers -------------------------------------------------------------

    @typed_errors
    async def ListFired(  # noqa: N802
        self, request: delayed_pb2.ListFiredRequest, context: Any
    ) -> delayed_pb2.ListFiredResponse:
        """A page of the volleys of a producer in a segment that this broker has in full."""
        return await self._fired_reads.list_here(request, remaining_s(context) * 0.9)

    # ---- list -------------------------------------------------------------------------------------------

    @typed_errors
    async def ListDelayed(  # noqa: N802
        self, request: delayed_pb2.ListDelayedRequest, context: Any
    ) -> delayed_pb2.ListDelayedResponse:
        """A page of what is still delayed in a partition. Each server lists its segments, and this broker merges."""
        left_s = remaining_s(context) * 0.9
        if request.limit > ROWS_PER_PAGE_MAX:
            raise BadRequestError(f"a page has at most {ROWS_PER_PAGE_MAX:,} rows, not {request.limit:,}")
        if request.until_ms < 0 or request.after.due_ms < 0 or request.after.offset > OFFSET_MAX:
            raise BadRequestError("times are after 1970, and a page begins after one that was listed")
        request.limit = request.limit or ROWS_PER_PAGE_DEFAULT
        partition = await self._partition(request.topic, request.partition)
        if is_forwarded(context):
            return await self._list_here(partition, request, left_s)
        chains = await self._services.chains([partition])
        if not chains:
            raise NotServingError(f"{request.topic} has no chain", retry_after_ms=50)
        by_server: dict[str, list[int]] = {}
        unserved: list[int] = []
        for segment in chains[0].segments:
            if segment.state is SegmentState.UNSETTLED:
                unserved.append(segment.no)
            elif segment.state is not SegmentState.LOST:
                by_server.setdefault(segment.server.broker, []).append(segment.no)
        parts = await asyncio.gather(
            *(self._part(server, partition, request, own, left_s) for server, own in by_server.items())
        )
        found = merged(parts, request.limit)
        found.unserved[:] = sorted({*unserved, *found.unserved})
        return found

    async def _part(
        self,
        server: str,
        partition: PartitionId,
        request: delayed_pb2.ListDelayedRequest,
        segments: Sequence[int],
        left_s: float,
    ) -> delayed_pb2.ListDelayedResponse:
        """What a server lists. If it cannot, its segments have no server now."""
        asked = delayed_pb2.ListDelayedRequest()
        asked.CopyFrom(request)
        asked.segments[:] = segments
        try:
            if server == self._own:
                return await self._list_here(partition, asked, left_s)
            answer: delayed_pb2.ListDelayedResponse
            answer = await self._calls.delayed(server, "ListDelayed", asked, left_s * 0.9)
        except SeriatimError as exc:
            if not (exc.retriable or isinstance(exc, UnavailableError | DeadlineExceededError)):
                raise
            await self._firing(partition, tuple(segments), left_s)  # this core has another member serve them
            return delayed_pb2.ListDelayedResponse(unserved=segments)
        return answer

    async def _list_here(
        self, partition: PartitionId, request: delayed_pb2.ListDelayedRequest, left_s: float
    ) -> delayed_pb2.ListDelayedResponse:
        """A page of what is delayed in those of the segments that this broker serves."""
        listed = await self._firing(partition, tuple(request.segments), left_s)
        for _ in range(0 if request.HasField("after") else TAKE_UP_ROUNDS):
            if not listed.unserved:
                break
            await asyncio.sleep(TAKE_UP_PAUSE_S)
            listed = await self._firing(partition, tuple(request.segments), left_s)
        after = (request.after.due_ms, request.after.offset)
        until_ms = min(request.until_ms or DUE_MS_MAX, DUE_MS_MAX)
        page = delayed_pb2.ListDelayedResponse(unserved=listed.unserved)
        if not request.HasField("after"):
            page.cancelled_count = listed.cancelled_count
        for no, begin in listed.segments:
            start = max(begin, _in_segment(after, no))
            try:
                part = await self._rows(partition, no, start, until_ms, request.limit, left_s)
            except NotServingError:
                page.unserved.append(no)
                continue
            page = merged((page, part), request.limit)
        return page

    async def _firing(self, partition: PartitionId, segments: tuple[int, ...], left_s: float) -> FiringListed:
        asked = await self._services.ask_core(lambda number: ListFiring(number, partition, segments), left_s)
        return answered(asked, FiringListed)

    async def _rows(
        self, partition: PartitionId, no: int, after: Place, until_ms: int, limit: int, left_s: float
    ) -> delayed_pb2.ListDelayedResponse:
        """What is still delayed in a segment that this broker serves, in the order of the rows."""
        page = delayed_pb2.ListDelayedResponse()
        read_count = 0
        while True:
            rows = await self._services.storage.read_due(partition, no, after, until_ms, ROWS_PER_READ)
            read_count += len(rows)
            if not rows:
                return page
            left = answered(await self._filter(partition, no, rows, left_s), DelayedFiltered).rows
            page.rows.extend(
                delayed_pb2.DelayedMessages(
                    due_ms=row.due_ms,
                    offset=make_offset(no, row.index),
                    message_count=row.message_count,
                    size_bytes=row.size_bytes,
                    origin=row.origin,
                )
                for row in left
            )
            after = rows[-1].due_ms, rows[-1].index
            if len(rows) < ROWS_PER_READ:
                return page
            if len(page.rows) >= limit or read_count >= ROWS_PER_CALL_MAX:
                page.next.due_ms, page.next.offset = after[0], make_offset(no, after[1])
                return page

    async def _filter(self, partition: PartitionId, no: int, rows: Sequence[DueRow], left_s: float) -> Any:
        return await self._services.ask_core(lambda number: FilterDelayed(number, partition, no, tuple(rows)), left_s)

    @typed_errors
    async def CountDelayed(  # noqa: N802
        self, request: delayed_pb2.CountDelayedRequest, _context: Any
    ) -> delayed_pb2.CountDelayedResponse:
        """What waits in segments that this broker serves."""
        found = (self._pending((PartitionId(one.partition_id), one.segment)) for one in request.segments)
        return delayed_pb2.CountDelayedResponse(
            counts=[
                delayed_pb2.DelayedCount()
                if one is None
                else delayed_pb2.DelayedCount(is_known=True, message_count=one.messages, size_bytes=one.size_bytes)
                for one in found
            ]
        )


async def count_delayed(
    calls: BrokerCalls, broker: str, segments: Sequence[tuple[PartitionId, int]], deadline_s: float
) -> list[Amount | None]:
    """Ask another broker what waits in segments that it serves. None: it does not know."""
    request = delayed_pb2.CountDelayedRequest(
        segments=[delayed_pb2.DelayedSegment(partition_id=partition, segment=no) for partition, no in segments]
    )
    told: delayed_pb2.CountDelayedResponse = await calls.delayed(broker, "CountDelayed", request, deadline_s)
    return [Amount(one.message_count, one.size_bytes) if one.is_known else None for one in told.counts]


def _in_segment(after: Place, no: int) -> Place:
    """The due time and the index in a segment after which a page begins that begins after an offset."""
    due_ms, offset = after
    last_no, index = split_offset(offset)
    if no == last_no:
        return due_ms, index
    return (due_ms, INDEX_MAX) if no < last_no else (max(due_ms - 1, 0), INDEX_MAX if due_ms else 0)


def merged(parts: Sequence[delayed_pb2.ListDelayedResponse], limit: int) -> delayed_pb2.ListDelayedResponse:
    """One page from pages of different segments. It ends where the first of them ends that is not the last page."""
    rows = sorted((row for part in parts for row in part.rows), key=_place)
    ends = [_place(part.next) for part in parts if part.HasField("next")]
    if ends:
        rows = [row for row in rows if _place(row) <= min(ends)]
    if len(rows) > limit:
        rows = rows[:limit]
        ends = [_place(rows[-1])]
    page = delayed_pb2.ListDelayedResponse(
        rows=rows,
        unserved=[no for part in parts for no in part.unserved],
        cancelled_count=sum(part.cancelled_count for part in parts),
    )
    if ends:
        page.next.due_ms, page.next.offset = min(ends)
    return page


def _place(row: delayed_pb2.DelayedMessages | delayed_pb2.DelayedPlace) -> Place:
    return row.due_ms, row.offset
