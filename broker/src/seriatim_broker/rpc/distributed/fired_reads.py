"""Reads what was fired of a segment: the volleys are in the logs of this segment and of all later ones.

Any member that has a segment in full lists its volleys. The chain record is read for each question. It must name every
segment that the volleys can be in, so it is read after the fence of the server is stored (`core.delayed.volley_fence`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from seriatim_api.delayed import fire_producer
from seriatim_api.errors import (
    CorruptionError,
    DeadlineExceededError,
    NotServingError,
    RoutingError,
    SeriatimError,
    UnavailableError,
)
from seriatim_api.ids import PartitionId, split_offset
from seriatim_api.v1 import delayed_pb2

from ...core.values.chain import Chain
from ...core.values.delayed import Span, spans_in
from ...core.values.delayed_messages import CompleteListed, FiredRead, ListComplete, ReadFired
from ...core.values.log import FiredIn, StoredVolley, fired_in, moved_to
from ...core.values.segment import Segment, SegmentState
from ..calls.outbound import BrokerCalls
from ..calls.services import Services, answered

READ_DEADLINE_S: Final = 25.0
"""A question is answered within this time. If the read takes longer, the server asks again."""

CALL_DEADLINE_S: Final = 2.0
"""Time for one page of one member."""

SEARCHES_MAX: Final = 2
"""Maximum number of searches for moved messages at the same time, of each port for clients. Each reads the rows of all
later volleys.
"""

ROWS_PER_READ: Final = 200

ORIGINS_PER_CALL_MAX: Final = 100_000
"""A call ends after this many volleys and origins: about 1 MB."""

_ELSEWHERE: Final = (RoutingError, UnavailableError, DeadlineExceededError, CorruptionError)

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Read:
    """A read that is under way, or whose result waits, and when it was last asked for (monotonic, in seconds)."""

    task: asyncio.Task[FiredRead]
    asked_at: float = 0.0

    @property
    def is_forgotten(self) -> bool:
        """Whether it is over, and nothing has asked for the result for long."""
        return self.task.done() and time.monotonic() - self.asked_at > 2 * READ_DEADLINE_S


class FiredReads:
    """Asks the members of segments for volleys, and answers such questions."""

    def __init__(self, services: Services, calls: BrokerCalls) -> None:
        self._services = services
        self._calls = calls
        self._own = services.identity.member.broker
        self._searches = asyncio.Semaphore(SEARCHES_MAX)
        self._turn = asyncio.Semaphore(1)  # one segment at a time is learned
        self._reads: dict[tuple[PartitionId, int, int], _Read] = {}

    # ---- the server of a segment asks -----------------------------------------------------------------

    async def read(self, effect: ReadFired) -> FiredRead:
        """What was fired or moved of a segment. Raises nothing.

        After `READ_DEADLINE_S` the answer is an error, and the read continues: the same question, when it comes again,
        waits for the rest. A cancelled call leaves it, too. It ends if the question does not come again.
        """
        key = effect.partition, effect.segment_no, effect.epoch
        for other in [other for other, one in self._reads.items() if one.is_forgotten]:
            del self._reads[other]
        known = self._reads.get(key)
        if known is None:
            known = self._reads[key] = _Read(asyncio.create_task(self._read(effect), name="fired messages"))
        known.asked_at = time.monotonic()
        await asyncio.wait([known.task], timeout=READ_DEADLINE_S)
        if not known.task.done():
            error = DeadlineExceededError("what was fired is still being read")
            return FiredRead(effect.serial, effect.partition, effect.segment_no, (), 0, error)
        self._reads.pop(key, None)
        return replace(known.task.result(), serial=effect.serial)

    async def _read(self, effect: ReadFired) -> FiredRead:
        place = effect.partition, effect.segment_no
        try:
            async with self._turn:
                chain = await self._chain(effect.partition, effect.chain_epoch)
                volleys = await self._of_producer(
                    chain, effect.segment_no, fire_producer(*place), None, self._until(effect)
                )
                moved_here = [
                    (volley.index, volley.origins[0])
                    for volley in await self._volleys(*place, 0, None)
                    if volley.is_moved
                ]
                found, fired, moved = await asyncio.to_thread(_evaluated, effect, volleys, moved_here)
        except SeriatimError as exc:
            _log.warning("fired_messages_not_read", partition=effect.partition, error=str(exc))
            return FiredRead(effect.serial, *place, (), 0, exc)
        if not found.is_fenced:
            error = NotServingError("the fence of this server is in no log that was read", retry_after_ms=200)
            return FiredRead(effect.serial, *place, (), 0, error)
        return FiredRead(effect.serial, *place, fired, found.last_epoch, None, moved)

    def _until(self, effect: ReadFired) -> Callable[[], float]:
        """Until when a call of a read may take: it ends with the last question."""
        read = self._reads[effect.partition, effect.segment_no, effect.epoch]
        return lambda: read.asked_at + 2 * READ_DEADLINE_S

    async def moved_to(self, partition: PartitionId, origin: int, left_s: float) -> int:
        """Where a message was moved to last.

        It may have been moved often, and retention may have dropped all places but the last one. So no former place
        leads to it.

        Args:
            partition: The partition.
            origin: The offset where the message was stored first.
            left_s: Seconds to wait.

        Returns:
            The offset; 0: it was not moved, or retention has dropped that place.

        Raises:
            SeriatimError: It is not known.
        """
        chain = await self._chain(partition, 0)
        until = time.monotonic() + left_s
        try:
            async with asyncio.timeout(left_s), self._searches:
                found = await self._of_producer(chain, split_offset(origin)[0], b"", origin, lambda: until)
        except TimeoutError as exc:
            raise DeadlineExceededError("the place that the message was moved to was not found in time") from exc
        return moved_to(found, origin)

    async def _chain(self, partition: PartitionId, epoch: int) -> Chain:
        """The chain record, in that chain epoch or a later one, if all its segments are settled."""
        chains = await self._services.chains([partition])
        if not chains or chains[0].epoch < epoch:
            raise NotServingError("the coordinator is behind this broker", retry_after_ms=200)
        chain = chains[0]
        if any(not segment.is_settled for segment in chain.segments if segment is not chain.open_segment):
            raise NotServingError("a segment is not settled", retry_after_ms=200)
        return chain

    async def _of_producer(
        self, chain: Chain, from_no: int, producer: bytes, moved_origin: int | None, until: Callable[[], float]
    ) -> list[tuple[int, list[StoredVolley]]]:
        """The volleys of a producer, or those that moved a message, by segment: in the logs of the segment with a
        number and all later ones.
        """
        found: list[tuple[int, list[StoredVolley]]] = []
        for segment in chain.segments:
            if segment.no < from_no or segment.state is SegmentState.LOST or segment.is_stub:
                continue
            request = delayed_pb2.ListFiredRequest(
                partition_id=chain.partition, segment=segment.no, producer=producer, moved_origin=moved_origin
            )
            volleys: list[StoredVolley] = []
            while True:
                page = await self._page(segment, request, until())
                for row in page.volleys:
                    origins = tuple(map(Span, row.origins, row.message_counts))
                    volleys.append(StoredVolley(row.index, producer, row.epoch, origins, row.is_list, row.is_moved))
                if not page.HasField("next_index"):
                    break
                request.from_index = page.next_index
            found.append((segment.no, volleys))
        return found

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
        volleys = await self._volleys(partition, no, request.from_index, ORIGINS_PER_CALL_MAX)
        page.volleys.extend(
            delayed_pb2.FiredVolley(
                epoch=volley.epoch,
                is_list=volley.is_list,
                origins=(origin for origin, _ in volley.origins),
                message_counts=(count for _, count in volley.origins),
                is_moved=volley.is_moved,
                index=volley.index,
            )
            for volley in volleys
            if volley.index < length
            and (
                volley.is_moved and _has(volley, request.moved_origin)
                if request.HasField("moved_origin")
                else volley.producer == request.producer
            )
        )
        if _weight(volleys) >= ORIGINS_PER_CALL_MAX:
            page.next_index = volleys[-1].index + 1
        return page

    async def _volleys(
        self, partition: PartitionId, no: int, from_index: int, weight_max: int | None
    ) -> list[StoredVolley]:
        found: list[StoredVolley] = []
        weight = 0
        while weight_max is None or weight < weight_max:
            rows = await self._services.storage.read_volleys(partition, no, from_index, ROWS_PER_READ)
            found += rows
            weight += _weight(rows)
            if len(rows) < ROWS_PER_READ:
                break
            from_index = rows[-1].index + 1
        return found


def _evaluated(
    effect: ReadFired, volleys: list[tuple[int, list[StoredVolley]]], moved_here: list[tuple[int, Span]]
) -> tuple[FiredIn, tuple[Span, ...], tuple[Span, ...]]:
    """What the volleys say, and which messages of the segment were fired or moved, and which of these were moved."""
    found = fired_in(volleys, effect.segment_no, effect.epoch)
    fired = spans_in(effect.segment_no, found.fired, moved_here)
    moved = spans_in(effect.segment_no, (one for one in found.fired if one.is_moved), moved_here)
    return found, fired, moved


def _has(volley: StoredVolley, origin: int) -> bool:
    return any(origin in span.indexes for span in volley.origins)


def _weight(volleys: Sequence[StoredVolley]) -> int:
    """How many origins volleys have, and each volley counts as one more."""
    return sum(1 + len(volley.origins) for volley in volleys)
