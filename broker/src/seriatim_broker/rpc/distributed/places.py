"""Finds places of messages for clients: in this broker's own segments, and by asking the brokers that have the others.

The master of the open segment knows the whole chain of the partition. So it answers without a read of a long chain from
the coordinator. What a segment holds is asked of a member that has the segment in full.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    NotServingError,
    RoutingError,
    SeriatimError,
    UnavailableError,
)
from seriatim_api.ids import PartitionId, split_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import ranges_pb2

from ...core.values.chain import Chain
from ...core.values.effects import PartitionSurveyed
from ...core.values.events import SurveyPartition
from ...core.values.positions import BatchPlace, Measure, Place, first_kept, segments_for_time
from ...core.values.segment import Segment, SegmentState
from ..calls.outbound import BrokerCalls
from ..calls.services import Services, answered

ASK_DEADLINE_S = 0.4
"""Time for one member's answer, if another member can be asked."""

ELSEWHERE = (RoutingError, UnavailableError)
"""Errors after which another broker may answer: it is not here."""

CUTS_MAX = 256
"""Cuts of one segment in one answer."""


class Surveyed(NamedTuple):
    """A partition's chain, and what this broker knows of its open segment."""

    chain: Chain
    commit: int | None
    """Of the open segment; None if another broker is its master."""


class Places:
    """Finds places in partitions, for clients and for other brokers."""

    def __init__(self, services: Services, calls: BrokerCalls) -> None:
        self._services = services
        self._calls = calls

    # ---- the chain ----

    async def survey(self, partition: int, epoch: int, deadline_s: float) -> Surveyed:
        """The chain as this broker knows it, at that chain epoch or a later one.

        Raises:
            UnknownTopicError: There is no such partition.
            DeadlineExceededError, CoordinatorUnavailableError: The chain could not be read in time.
        """
        told = await self._survey(partition, epoch, 0, deadline_s)
        assert told.chain is not None
        return Surveyed(told.chain, told.readable_below if told.is_master else None)

    async def survey_all(self, partitions: Sequence[int], deadline_s: float) -> dict[int, Surveyed]:
        """Chains as the coordinator has them, or newer ones. Those that it does not have are left out.

        Raises:
            UnknownTopicError: A partition was deleted at the same time.
            DeadlineExceededError, CoordinatorUnavailableError: The chains could not be read in time.
        """
        until = time.monotonic() + deadline_s
        chain_records = await self._services.chain_records(partitions)
        left_s = max(until - time.monotonic(), 0.05)
        surveyed = await asyncio.gather(
            *(self.survey(chain_record.partition_id, chain_record.epoch, left_s) for chain_record in chain_records)
        )
        return {told.chain.partition: told for told in surveyed}

    async def _survey(self, partition: int, epoch: int, segment_no: int, deadline_s: float) -> PartitionSurveyed:
        until_us = time.monotonic_ns() // 1000 + int(deadline_s * 0.9e6)
        asked = await self._services.ask_core(
            lambda number: SurveyPartition(number, PartitionId(partition), epoch, segment_no, until_us), deadline_s
        )
        return answered(asked, PartitionSurveyed)

    # ---- ends ----

    def end(self, surveyed: Surveyed) -> tuple[Place, bool]:
        """The end of a partition, and whether an unsettled segment is in the way.

        Raises:
            NotServingError: Another broker is the master of the open segment.
        """
        chain = surveyed.chain
        if chain.open_segment.base is None:
            unsettled = next(segment for segment in chain.segments if segment.state is SegmentState.UNSETTLED)
            return Place(unsettled.no, 0), True
        # Rule `range-end-by-any` (RANGE). Without it: 1. A slave knows the commit 100, and the master has acknowledged
        # 120. 2. A job asks the slave for the end, and reads to 100. 3. The job says that it has read everything that
        # was sent before it began, and 20 messages are missing.
        if surveyed.commit is None:
            raise NotServingError(f"{chain.name} is moving to another broker", retry_after_ms=50)
        return Place(chain.open_segment.no, surveyed.commit), False

    async def end_of(self, chain: Chain, deadline_s: float) -> int:
        """The position of a partition's end. The master of its open segment reports it.

        Raises:
            NotServingError: The partition is moving.
            UnavailableError: The master does not answer.
        """
        master = chain.open_segment.master
        if master == self._services.identity.member:
            surveyed = await self.survey(chain.partition, chain.epoch, deadline_s)
            place, _ = self.end(surveyed)
            segment = surveyed.chain.segment(place.segment_no)
            assert segment is not None
            return (segment.base or 0) + place.index
        request = ranges_pb2.GetOffsetsRequest(
            topic=chain.topic, partitions=[chain.number], at=ranges_pb2.OFFSET_AT_END, epochs=[chain.epoch]
        )
        answer: ranges_pb2.GetOffsetsResponse = await self._calls.ranges(
            master.broker, "GetOffsets", request, deadline_s
        )
        (row,) = answer.partitions
        if row.HasField("error"):
            raise error_from_proto(row.error)
        return row.position

    def earliest(self, surveyed: Surveyed) -> Place:
        """The place of the first message that is kept."""
        return first_kept(surveyed.chain)

    async def at_time(self, surveyed: Surveyed, time_ms: int, deadline_s: float) -> Place | None:
        """The first message whose append time is not below `time_ms`; None if all below the end are older.

        Raises:
            NotServingError: Another broker is the master of the open segment.
            UnavailableError: No member answers that has a segment in which the message may be.
        """
        chain = surveyed.chain
        end, _ = self.end(surveyed)
        until = time.monotonic() + deadline_s
        for segment in segments_for_time(chain, time_ms):
            length = (end.index if segment.no == end.segment_no else segment.sealed_len) or 0
            if length <= segment.start or segment.no > end.segment_no:
                continue
            if time.monotonic() > until:
                raise DeadlineExceededError(f"the message at {time_ms} was not found in time")
            request = ranges_pb2.FindPlacesRequest(
                partition_id=chain.partition,
                segment=segment.no,
                from_index=segment.start,
                to_index=length,
                time_ms=time_ms,
            )
            found = await self.find(chain, segment, request, until - time.monotonic())
            if found.places:
                return Place(segment.no, found.places[0].index)
        return None

    # ---- within a segment ----

    async def find(
        self, chain: Chain, segment: Segment, request: ranges_pb2.FindPlacesRequest, deadline_s: float
    ) -> ranges_pb2.FindPlacesResponse:
        """The answer to the request about a segment, from this broker or another one that has the segment in full.

        Raises:
            UnavailableError: None of them answers.
        """
        own = self._services.identity.member
        until = time.monotonic() + deadline_s
        said: SeriatimError | None = None
        members = dict.fromkeys((segment.server, *segment.eligible, *segment.members))
        for member in sorted(members, key=lambda member: member != own):
            left_s = min(until - time.monotonic(), ASK_DEADLINE_S)
            if left_s <= 0:
                break
            try:
                if member == own:
                    return await self.find_here(request, left_s)
                answer: ranges_pb2.FindPlacesResponse = await self._calls.ranges(
                    member.broker, "FindPlaces", request, left_s
                )
                return answer
            except ELSEWHERE as exc:
                said = exc
        names = ", ".join(member.broker for member in segment.members)
        raise UnavailableError(
            f"segment {segment.no} of {chain.name} is on {names}, and none of them answers"
            + (f" ({said.message})" if said is not None else "")
        )

    async def find_here(
        self, request: ranges_pb2.FindPlacesRequest, deadline_s: float
    ) -> ranges_pb2.FindPlacesResponse:
        """The answer to the request, if this broker has the segment in full, or open and committed so far.

        Raises:
            NotServingError: It does not.
        """
        partition, no = PartitionId(request.partition_id), request.segment
        if not no:
            raise BadRequestError("the request names no segment: set `segment`")
        told = await self._survey(partition, 0, no, deadline_s)
        if told.readable_below is None or told.readable_below < request.to_index:
            raise NotServingError(f"segment {no} is not complete on this broker", retry_after_ms=50)
        storage, until = self._services.storage, request.to_index
        if request.HasField("time_ms"):
            found = await storage.find(partition, no, until, Measure.TIME, request.time_ms)
            if found is None:
                return ranges_pb2.FindPlacesResponse()
            index = max(found.index, request.from_index)
            return ranges_pb2.FindPlacesResponse(places=[_found(index, found.bytes_before, found)])
        return await self._cut(partition, request)

    async def append_time_here(self, partition: PartitionId, offset: int) -> int:
        """The append time of a message in ms since 1970, from its batch's header on this disk; 0 if it is not here."""
        no, index = split_offset(offset)
        try:
            found = await self._services.storage.find(partition, no, index + 1, Measure.INDEX, index)
        except SeriatimError:
            return 0
        return found.append_time_ms if found is not None else 0

    async def _cut(
        self, partition: PartitionId, request: ranges_pb2.FindPlacesRequest
    ) -> ranges_pb2.FindPlacesResponse:
        """The batches at which pieces of about `cut_bytes` begin, and the end of the last piece."""
        storage, no, until = self._services.storage, request.segment, request.to_index
        first = await storage.find(partition, no, until, Measure.INDEX, request.from_index)
        if first is None:
            return ranges_pb2.FindPlacesResponse()
        places = [_found(request.from_index, first.bytes_before, first)]
        cuts_max = min(request.cuts_max or CUTS_MAX, CUTS_MAX)
        while request.cut_bytes:
            wanted = places[-1].bytes_before + request.cut_bytes
            cut = await storage.find(partition, no, until, Measure.BYTES, wanted)
            if cut is None:
                break
            places.append(_found(cut.index, cut.bytes_before, cut))
            if len(places) > cuts_max:
                return ranges_pb2.FindPlacesResponse(places=places, is_cut_short=True)
        last = await storage.find(partition, no, until, Measure.INDEX, until - 1)
        if last is None:
            raise NotServingError(f"segment {no} was changed meanwhile", retry_after_ms=50)
        places.append(_found(until, last.bytes_before + last.size_bytes, last))
        return ranges_pb2.FindPlacesResponse(places=places)


def _found(index: int, bytes_before: int, place: BatchPlace) -> ranges_pb2.FoundPlace:
    return ranges_pb2.FoundPlace(index=index, bytes_before=bytes_before, append_time_ms=place.append_time_ms)
