"""Reads what was fired of a segment: the volleys are in the logs of this segment and of all later ones.

Any member that has a segment in full lists its volleys. The chain record is read for each question. It must name every
segment that the volleys can be in, so it is read after the fence of the server is stored (`core.delayed.volley_fence`).
"""

from __future__ import annotations

import time
from typing import Final

import structlog
from seriatim_api.delayed import MOVE_MARK, fire_producer, move_producer
from seriatim_api.errors import DeadlineExceededError, NotServingError, RoutingError, SeriatimError, UnavailableError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import delayed_pb2

from ...core.values.delayed import spans_in
from ...core.values.delayed_messages import CompleteListed, FiredRead, ListComplete, ReadFired
from ...core.values.log import StoredVolley
from ...core.values.segment import Segment, SegmentState
from ..calls.outbound import BrokerCalls
from ..calls.services import Services, answered

READ_DEADLINE_S: Final = 25.0
"""A question ends after this long. The server asks again."""

CALL_DEADLINE_S: Final = 2.0
"""Time for one page of one member."""

ROWS_PER_READ: Final = 1_000

ROWS_PER_CALL_MAX: Final = 50_000
"""A call reads at most this many rows of volleys."""

_ELSEWHERE: Final = (RoutingError, UnavailableError, DeadlineExceededError)

_log = structlog.get_logger(__name__)


class FiredReads:
    """Asks the members of segments for volleys, and answers such questions."""

    def __init__(self, services: Services, calls: BrokerCalls) -> None:
        self._services = services
        self._calls = calls
        self._own = services.identity.member.broker

    # ---- the server of a segment asks -----------------------------------------------------------------

    async def read(self, effect: ReadFired) -> FiredRead:
        """What was fired or moved of a segment. Raises nothing."""
        until = time.monotonic() + READ_DEADLINE_S
        try:
            fired, last_epoch = await self._fired(effect, until)
            moved = [
                (volley.index, volley.origin, volley.message_count)
                for volley in await self._volleys(effect.partition, effect.segment_no, 0, None)
                if volley.producer.endswith(MOVE_MARK) and volley.message_count
            ]
        except SeriatimError as exc:
            _log.warning("fired_messages_not_read", partition=effect.partition, error=str(exc))
            return FiredRead(effect.serial, effect.partition, effect.segment_no, (), 0, exc)
        spans = spans_in(effect.segment_no, fired, moved)
        return FiredRead(effect.serial, effect.partition, effect.segment_no, spans, last_epoch, None)

    async def _fired(self, effect: ReadFired, until: float) -> tuple[list[tuple[int, int]], int]:
        chains = await self._services.chains([effect.partition])
        if not chains or chains[0].epoch < effect.chain_epoch:
            raise NotServingError("the coordinator is behind this broker", retry_after_ms=200)
        chain = chains[0]
        if any(not segment.is_settled for segment in chain.segments if segment is not chain.open_segment):
            raise NotServingError("a segment is not settled", retry_after_ms=200)
        segments = [
            segment
            for segment in chain.segments
            if segment.no >= effect.segment_no and segment.state is not SegmentState.LOST and not segment.is_stub
        ]
        found: list[tuple[int, int]] = []
        last_epoch = 0
        for make in (fire_producer, move_producer):
            producer, epoch_min = make(effect.partition, effect.segment_no), 0
            for segment in segments:
                # Rule `skipped-is-not-fired` (D1): what readers skip does not count. Without it:
                #   1. B has stored its fence in segment 2, which is opened over. A's volley with d comes late, and the
                #      master of segment 3 takes it, because it does not know of the fence.
                #   2. Segment 2 is settled. Readers skip the volley, because its producer epoch is over.
                #   3. B finds d in segment 3, and passes it. No reader ever has it.
                request = delayed_pb2.ListFiredRequest(
                    partition_id=effect.partition, segment=segment.no, producer=producer, epoch_min=epoch_min
                )
                while True:
                    page = await self._page(segment, request, until)
                    found += [(row.origin, row.message_count) for row in page.messages]
                    fence = page.last_fence_epoch
                    last_epoch = max(last_epoch, page.last_epoch, fence if fence != effect.epoch else 0)
                    epoch_min = max(epoch_min, page.last_epoch, fence)
                    if not page.HasField("next_index"):
                        break
                    request.from_index = page.next_index
        return found, last_epoch

    async def _page(
        self, segment: Segment, request: delayed_pb2.ListFiredRequest, until: float
    ) -> delayed_pb2.ListFiredResponse:
        """A page of the first member that has the segment in full."""
        members = [segment.master] if segment.state is SegmentState.OPEN else [segment.server, *segment.eligible]
        error: SeriatimError = NotServingError(f"no member of segment {segment.no} answers", retry_after_ms=200)
        for broker in dict.fromkeys(member.broker for member in members):
            left_s = min(until - time.monotonic(), CALL_DEADLINE_S)
            if left_s <= 0:
                raise DeadlineExceededError(f"the members of segment {segment.no} did not answer in time")
            try:
                if broker == self._own:
                    return await self.list_here(request, left_s)
                answer: delayed_pb2.ListFiredResponse
                answer = await self._calls.delayed(broker, "ListFired", request, left_s)
            except _ELSEWHERE as exc:
                error = exc
            else:
                return answer
        raise error

    # ---- a member answers -----------------------------------------------------------------------------

    async def list_here(self, request: delayed_pb2.ListFiredRequest, left_s: float) -> delayed_pb2.ListFiredResponse:
        """A page of the volleys of a producer in a segment.

        Raises:
            NotServingError: This member may not have everything that is committed there.
        """
        partition, no = PartitionId(request.partition_id), request.segment
        asked = await self._services.ask_core(lambda number: ListComplete(number, partition, (no,)), left_s)
        length = dict(answered(asked, CompleteListed).lengths).get(no)
        if length is None:
            raise NotServingError(f"this broker may not have all of segment {no}", retry_after_ms=200)
        page = delayed_pb2.ListFiredResponse()
        volleys = await self._volleys(partition, no, request.from_index, ROWS_PER_CALL_MAX)
        for volley in volleys:
            if volley.producer != request.producer or volley.index >= length or volley.epoch < request.epoch_min:
                continue
            if not volley.message_count:
                page.last_fence_epoch = max(page.last_fence_epoch, volley.epoch)
                continue
            page.last_epoch = max(page.last_epoch, volley.epoch)
            last = page.messages[-1] if page.messages else None
            if last is not None and last.origin + last.message_count == volley.origin:
                last.message_count += volley.message_count
            else:
                page.messages.add(origin=volley.origin, message_count=volley.message_count)
        if len(volleys) >= ROWS_PER_CALL_MAX:
            page.next_index = volleys[-1].index + 1
        return page

    async def _volleys(
        self, partition: PartitionId, no: int, from_index: int, count_max: int | None
    ) -> list[StoredVolley]:
        found: list[StoredVolley] = []
        while count_max is None or len(found) < count_max:
            rows = await self._services.storage.read_volleys(partition, no, from_index, ROWS_PER_READ)
            found += rows
            if len(rows) < ROWS_PER_READ:
                break
            from_index = rows[-1].index + 1
        return found
