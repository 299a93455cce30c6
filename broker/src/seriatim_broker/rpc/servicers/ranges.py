"""Offsets, plans and reads of ranges. Any broker answers, and asks the brokers that have the messages.

The master of its open segment reports the end of a partition. After the question came, the broker reads in the
coordinator which broker is the master. So everything that was acknowledged before the question is below the end
(`GetOffsets`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
from seriatim_api.errors import (
    BadRequestError,
    NotServingError,
    OffsetOutOfRangeError,
    PartitionOutOfRangeError,
    PreconditionError,
    SeriatimError,
)
from seriatim_api.ids import PartitionId, check_name, format_offset, make_offset, partition_name
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import ranges_pb2, records_pb2

from ...core.values.chain import Chain
from ...core.values.positions import Place, bytes_before, is_dropped, kept_bytes
from ...core.values.segment import Segment, SegmentState
from ...runtime.controller.consumer_groups import ConsumerGroupCursors
from ..calls.addresses import Addresses
from ..calls.outbound import BrokerCalls, is_forwarded
from ..calls.services import Services, remaining_s, typed_errors
from ..distributed.places import CUTS_MAX, ELSEWHERE, Places, Surveyed
from ..streams.read_range import RangeReader, place_of

PIECES_MAX: Final = 256
"""Pieces in one page of a plan."""

SEGMENTS_MAX: Final = 64
"""Segments that are read for one page of a plan."""

REPORT_ROUNDS_MAX: Final = 5
"""Tries of a report. It is tried again if another program writes the same cursor at the same time."""

CUT_BYTES_MIN: Final = 1 << 16

ROUND_PAUSE_S: Final = 0.05
"""Pause before a partition that is moving is asked for again, until the deadline."""

_ATS = (ranges_pb2.OFFSET_AT_EARLIEST, ranges_pb2.OFFSET_AT_END, ranges_pb2.OFFSET_AT_TIME)


class RangesServicer:
    """Serves `seriatim.v1.Ranges`."""

    def __init__(self, services: Services, calls: BrokerCalls, addresses: Addresses) -> None:
        self._services = services
        self._addresses = addresses
        self._calls = calls
        self._places = Places(services, calls)
        self._reader = RangeReader(services, addresses)

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to register with a server."""
        unary: dict[str, tuple[Any, Any]] = {
            "GetOffsets": (self.GetOffsets, ranges_pb2.GetOffsetsRequest),
            "PlanRange": (self.PlanRange, ranges_pb2.PlanRangeRequest),
            "ReportProgress": (self.ReportProgress, ranges_pb2.ReportProgressRequest),
            "FindPlaces": (self.FindPlaces, ranges_pb2.FindPlacesRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=kind.FromString, response_serializer=_serialize
            )
            for name, (method, kind) in unary.items()
        }
        handlers["ReadRange"] = grpc.stream_stream_rpc_method_handler(self._reader.serve)
        return grpc.method_handlers_generic_handler("seriatim.v1.Ranges", handlers)

    # ---- offsets ----------------------------------------------------------------------------------------

    @typed_errors
    async def GetOffsets(  # noqa: N802 - the contract's names
        self, request: ranges_pb2.GetOffsetsRequest, context: Any
    ) -> ranges_pb2.GetOffsetsResponse:
        """Where partitions begin or end, or where a time is in them."""
        if request.at not in _ATS:
            raise BadRequestError("offsets are asked for at the earliest message, at the end, or at a time")
        if request.at == ranges_pb2.OFFSET_AT_TIME and request.time_ms < 0:
            raise BadRequestError(f"{request.time_ms} ms is before 1970: there was no message then")
        until = time.monotonic() + remaining_s(context) * 0.9
        return await self.offsets(request, until, is_forwarded=is_forwarded(context))

    async def offsets(
        self, request: ranges_pb2.GetOffsetsRequest, until: float, *, is_forwarded: bool = False
    ) -> ranges_pb2.GetOffsetsResponse:
        """Answer by `until` on the monotonic clock, also for this broker itself. A forwarded question stays here."""
        topic = await self._topic(request.topic, request.incarnation)
        numbers = list(request.partitions) or list(range(len(topic.partition_ids)))
        _check_partitions(topic, numbers)
        found: dict[int, ranges_pb2.PartitionOffset] = {}
        if is_forwarded:
            if len(request.epochs) != len(numbers):
                raise BadRequestError("a broker that passes the question on names the epoch of each chain")
            for number, epoch in zip(numbers, request.epochs, strict=True):
                found[number] = await self._offset_here(request, number, topic.partition_ids[number], epoch, until)
        else:
            await self._ask_masters(request, topic, numbers, found, until)
        return ranges_pb2.GetOffsetsResponse(
            incarnation=topic.incarnation, partitions=[found[number] for number in numbers]
        )

    async def _ask_masters(
        self,
        request: ranges_pb2.GetOffsetsRequest,
        topic: records_pb2.TopicRecord,
        numbers: Sequence[int],
        found: dict[int, ranges_pb2.PartitionOffset],
        until: float,
    ) -> None:
        """Ask the master of each open segment. Partitions that move are asked for again until the deadline."""
        waiting = list(dict.fromkeys(numbers))
        while waiting:
            chain_records = await self._services.chain_records([topic.partition_ids[number] for number in waiting])
            by_master: dict[str, list[records_pb2.ChainRecord]] = {}
            for chain_record in chain_records:
                by_master.setdefault(chain_record.segments[-1].members[0].broker, []).append(chain_record)
            gone = set(waiting) - {chain_record.partition for chain_record in chain_records}
            for number in gone:
                error = NotServingError(f"{partition_name(topic.name, number)} has no chain", retry_after_ms=50)
                found[number] = _failed(number, topic.partition_ids[number], error)
            answers = await asyncio.gather(
                *(self._ask_master(master, request, topic, own, until) for master, own in by_master.items())
            )
            found.update((row.partition, row) for rows in answers for row in rows)
            waiting = [number for number in waiting if found[number].HasField("error")]
            if waiting and time.monotonic() + ROUND_PAUSE_S >= until:
                return
            if waiting:
                await asyncio.sleep(ROUND_PAUSE_S)

    async def _ask_master(
        self,
        master: str,
        request: ranges_pb2.GetOffsetsRequest,
        topic: records_pb2.TopicRecord,
        chain_records: Sequence[records_pb2.ChainRecord],
        until: float,
    ) -> list[ranges_pb2.PartitionOffset]:
        if master == self._services.identity.member.broker:
            return [
                await self._offset_here(
                    request, chain_record.partition, chain_record.partition_id, chain_record.epoch, until
                )
                for chain_record in chain_records
            ]
        passed_on = ranges_pb2.GetOffsetsRequest(
            topic=request.topic,
            incarnation=topic.incarnation,
            partitions=[chain_record.partition for chain_record in chain_records],
            at=request.at,
            time_ms=request.time_ms,
            epochs=[chain_record.epoch for chain_record in chain_records],
            with_kept=request.with_kept,
        )
        try:
            left_s = max(until - time.monotonic(), 0.05)
            answer: ranges_pb2.GetOffsetsResponse = await self._calls.ranges(master, "GetOffsets", passed_on, left_s)
        except ELSEWHERE as exc:
            return [_failed(chain_record.partition, chain_record.partition_id, exc) for chain_record in chain_records]
        return list(answer.partitions)

    async def _offset_here(
        self, request: ranges_pb2.GetOffsetsRequest, number: int, partition_id: int, epoch: int, until: float
    ) -> ranges_pb2.PartitionOffset:
        try:
            surveyed = await self._places.survey(partition_id, epoch, max(until - time.monotonic(), 0.05))
            return await self._offset(request, surveyed, until)
        except ELSEWHERE as exc:
            return _failed(number, partition_id, exc)

    async def _offset(
        self, request: ranges_pb2.GetOffsetsRequest, surveyed: Surveyed, until: float
    ) -> ranges_pb2.PartitionOffset:
        places, chain = self._places, surveyed.chain
        place: Place | None
        is_blocked = False
        if request.at == ranges_pb2.OFFSET_AT_EARLIEST:
            place = places.earliest(surveyed)
        else:
            place, is_blocked = places.end(surveyed)
        is_found = False
        if request.at == ranges_pb2.OFFSET_AT_TIME:
            at = await places.at_time(surveyed, request.time_ms, max(until - time.monotonic(), 0.05))
            is_found, place = at is not None, at or place
        segment = chain.segment(place.segment_no)
        assert segment is not None
        row = ranges_pb2.PartitionOffset(
            partition=chain.number,
            partition_id=chain.partition,
            offset=make_offset(*place),
            position=(segment.base or 0) + place.index,
            blocked=is_blocked,
            found=is_found,
            epoch=chain.epoch,
        )
        before = await self._bytes_before(chain, segment, place, until)
        if before is not None:
            row.bytes_before = before
        if request.with_kept and request.at == ranges_pb2.OFFSET_AT_EARLIEST:
            row.kept.CopyFrom(await self._kept(surveyed, place, until))
        return row

    async def _kept(self, surveyed: Surveyed, first: Place, until: float) -> ranges_pb2.KeptRange:
        """The messages that are kept from the first place on."""
        chain = surveyed.chain
        end, is_blocked = self._places.end(surveyed)
        begins, ends = chain.segment(first.segment_no), chain.segment(end.segment_no)
        assert begins is not None
        assert ends is not None
        if end <= first:
            return ranges_pb2.KeptRange(bytes=0)
        kept = ranges_pb2.KeptRange(messages=(ends.base or 0) + end.index - (begins.base or 0) - first.index)
        end_bytes = 0 if is_blocked else await self._bytes_below(chain, ends, end.index, until)
        size_bytes = None if end_bytes is None else kept_bytes(chain, end, end_bytes)
        if size_bytes is not None:
            kept.bytes = size_bytes
        request = ranges_pb2.FindPlacesRequest(
            partition_id=chain.partition, segment=first.segment_no, from_index=first.index, to_index=first.index + 1
        )
        try:
            found = await self._places.find(chain, begins, request, max(until - time.monotonic(), 0.05))
        except ELSEWHERE:
            return kept
        if found.places:
            kept.append_time_ms = found.places[0].append_time_ms
        return kept

    async def _bytes_before(self, chain: Chain, segment: Segment, place: Place, until: float) -> int | None:
        """Bytes of batches before a place; None if no member reports it."""
        earlier = bytes_before(chain, segment.no)
        if earlier is None or not place.index:
            return earlier
        within = await self._bytes_below(chain, segment, place.index, until)
        return None if within is None else earlier + within

    async def _bytes_below(self, chain: Chain, segment: Segment, index: int, until: float) -> int | None:
        """Bytes of a segment's batches below an index, with dropped ones; None if no member reports it."""
        if index <= segment.start:
            return segment.begin.size_bytes if index == segment.start else None
        request = ranges_pb2.FindPlacesRequest(
            partition_id=chain.partition, segment=segment.no, from_index=index - 1, to_index=index
        )
        try:
            found = await self._places.find(chain, segment, request, max(until - time.monotonic(), 0.05))
        except ELSEWHERE:
            return None
        return found.places[-1].bytes_before if found.places else None

    # ---- plans ------------------------------------------------------------------------------------------

    @typed_errors
    async def PlanRange(  # noqa: N802
        self, request: ranges_pb2.PlanRangeRequest, context: Any
    ) -> ranges_pb2.PlanRangeResponse:
        """A page of the pieces and losses in a range."""
        start, end = place_of(request.from_offset), place_of(request.to_offset)
        if start > end:
            raise BadRequestError("the range begins after its end")
        if 0 < request.cut_bytes < CUT_BYTES_MIN:
            raise BadRequestError(f"pieces of less than {CUT_BYTES_MIN} bytes are not planned")
        topic = await self._topic(request.topic, request.incarnation)
        _check_partitions(topic, [request.partition])
        until = time.monotonic() + remaining_s(context) * 0.9
        partition_id = topic.partition_ids[request.partition]
        if is_forwarded(context):
            surveyed = await self._places.survey(partition_id, request.epoch, max(until - time.monotonic(), 0.05))
            return await self._plan(request, topic, surveyed, start, end, until)
        name = partition_name(topic.name, request.partition)
        said: SeriatimError = NotServingError(f"{name} has no chain", retry_after_ms=50)
        while time.monotonic() < until:
            for chain_record in await self._services.chain_records([partition_id]):
                try:
                    return await self._plan_at_master(request, topic, chain_record, start, end, until)
                except ELSEWHERE as exc:
                    said = exc
            await asyncio.sleep(ROUND_PAUSE_S)
        raise said

    async def _plan_at_master(
        self,
        request: ranges_pb2.PlanRangeRequest,
        topic: records_pb2.TopicRecord,
        chain_record: records_pb2.ChainRecord,
        start: Place,
        end: Place,
        until: float,
    ) -> ranges_pb2.PlanRangeResponse:
        master, left_s = chain_record.segments[-1].members[0].broker, max(until - time.monotonic(), 0.05)
        if master == self._services.identity.member.broker:
            surveyed = await self._places.survey(chain_record.partition_id, chain_record.epoch, left_s)
            return await self._plan(request, topic, surveyed, start, end, until)
        passed_on = ranges_pb2.PlanRangeRequest()
        passed_on.CopyFrom(request)
        passed_on.incarnation, passed_on.epoch = topic.incarnation, chain_record.epoch
        answer: ranges_pb2.PlanRangeResponse = await self._calls.ranges(master, "PlanRange", passed_on, left_s)
        return answer

    async def _plan(
        self,
        request: ranges_pb2.PlanRangeRequest,
        topic: records_pb2.TopicRecord,
        surveyed: Surveyed,
        start: Place,
        end: Place,
        until: float,
    ) -> ranges_pb2.PlanRangeResponse:
        chain = surveyed.chain
        last, _ = self._places.end(surveyed)
        if end > last:
            raise OffsetOutOfRangeError(
                f"offset {_text(end)} is after the end of {chain.name}, which is {_text(last)}",
                end=make_offset(*last),
            )
        page = ranges_pb2.PlanRangeResponse(incarnation=topic.incarnation, partition_id=chain.partition)
        earliest = self._places.earliest(surveyed)
        if start < end and is_dropped(chain, start, earliest):
            _lose(page, start, min(earliest, end), is_gap=False)
        wanted = _segments_between(chain, max(start, earliest), end, page)
        rows = await asyncio.gather(*(self._pieces(chain, row, request.cut_bytes, until) for row in wanted))
        for pieces, cut_off in rows:
            room = PIECES_MAX - len(page.pieces)
            page.pieces.extend(pieces[:room])
            if len(pieces) > room or cut_off is not None:
                at = pieces[room] if len(pieces) > room else None
                begins = at.from_index if at is not None else cut_off
                page.next_offset = make_offset(pieces[0].segment, begins or 0)
                _keep_losses_before(page)
                break
        return page

    async def _pieces(
        self, chain: Chain, wanted: tuple[Segment, int, int], cut_bytes: int, until: float
    ) -> tuple[list[ranges_pb2.RangePiece], int | None]:
        """The pieces of one segment. If these are not all, also the index at which the next page continues."""
        segment, from_index, to_index = wanted
        request = ranges_pb2.FindPlacesRequest(
            partition_id=chain.partition,
            segment=segment.no,
            from_index=from_index,
            to_index=to_index,
            cut_bytes=cut_bytes,
            cuts_max=CUTS_MAX,
        )
        try:
            found = await self._places.find(chain, segment, request, max(until - time.monotonic(), 0.05))
        except ELSEWHERE:
            return [self._piece(segment, from_index, to_index, None)], None
        pieces = [
            self._piece(segment, one.index, following.index, following.bytes_before - one.bytes_before)
            for one, following in zip(found.places, found.places[1:], strict=False)
        ]
        return pieces, found.places[-1].index if found.is_cut_short else None

    def _piece(self, segment: Segment, from_index: int, to_index: int, size: int | None) -> ranges_pb2.RangePiece:
        brokers = [m.broker for m in dict.fromkeys((segment.server, *segment.eligible, *segment.members))]
        piece = ranges_pb2.RangePiece(
            segment=segment.no,
            from_index=from_index,
            to_index=to_index,
            rows=to_index - from_index,
            brokers=brokers,
            addresses=self._addresses.known(brokers),
        )
        if size is not None:
            piece.bytes = max(size, 0)
        return piece

    # ---- progress ---------------------------------------------------------------------------------------

    @typed_errors
    async def ReportProgress(  # noqa: N802
        self, request: ranges_pb2.ReportProgressRequest, _context: Any
    ) -> ranges_pb2.ReportProgressResponse:
        """Note how far an external group is, in cursors like those of consumer groups with consumers."""
        check_name(request.group, "consumer group")
        topic = await self._topic(request.topic, request.incarnation)
        numbers = [row.partition for row in request.partitions]
        _check_partitions(topic, numbers)
        if len(set(numbers)) != len(numbers):
            raise BadRequestError("a report names each partition once")
        ids = {number: PartitionId(topic.partition_ids[number]) for number in numbers}
        chain_records = {
            chain_record.partition: chain_record
            for chain_record in await self._services.chain_records(list(ids.values()))
        }
        places: dict[PartitionId, tuple[int, int]] = {}
        for row in request.partitions:
            places[ids[row.partition]] = _reported(topic.name, row, chain_records.get(row.partition))
        cursors = ConsumerGroupCursors(self._services.coordinator, self._services.keys, request.group)
        for _ in range(REPORT_ROUNDS_MAX):
            await cursors.read(list(ids.values()))
            if await cursors.report(request.topic, places, time.time_ns() // 1_000_000):
                return ranges_pb2.ReportProgressResponse()
        raise NotServingError(
            f"the position of {request.group!r} was changed by others at every try: report again", retry_after_ms=100
        )

    # ---- between brokers --------------------------------------------------------------------------------

    @typed_errors
    async def FindPlaces(  # noqa: N802
        self, request: ranges_pb2.FindPlacesRequest, context: Any
    ) -> ranges_pb2.FindPlacesResponse:
        """Places in a segment that this broker has whole."""
        return await self._places.find_here(request, remaining_s(context))

    # ---- what all have in common ------------------------------------------------------------------------

    async def _topic(self, name: str, incarnation: str) -> records_pb2.TopicRecord:
        """The record of the topic that is meant.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: It was deleted, and another topic has its name.
        """
        topic = await self._services.topic(name)
        if incarnation and topic.incarnation != incarnation:
            raise PreconditionError(
                f"topic {name!r} was deleted and made again: its offsets started over, and the old messages are gone",
                topic=name,
                incarnation=topic.incarnation,
            )
        return topic


def _reported(
    topic: str, row: ranges_pb2.PartitionProgress, chain_record: records_pb2.ChainRecord | None
) -> tuple[int, int]:
    """The place that an external group reports.

    Raises:
        OffsetOutOfRangeError: There is no such place in the partition.
        NotServingError: The partition has no chain yet.
    """
    name = partition_name(topic, row.partition)
    if chain_record is None:
        raise NotServingError(f"{name} has no chain", retry_after_ms=50)
    place = place_of(row.offset)
    segment = next((segment for segment in chain_record.segments if segment.no == place.segment_no), None)
    is_long = segment is not None and segment.HasField("sealed_len") and place.index > segment.sealed_len
    if not 0 < place.segment_no <= chain_record.segments[-1].no or is_long:
        raise OffsetOutOfRangeError(f"{name} has no offset {_text(place)}", partition=row.partition)
    return place


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _check_partitions(topic: records_pb2.TopicRecord, numbers: Sequence[int]) -> None:
    count = len(topic.partition_ids)
    beyond = [number for number in numbers if number >= count]
    if beyond:
        raise PartitionOutOfRangeError(
            f"topic {topic.name!r} has the partitions 0 to {count - 1}, and no {beyond[0]}", partition=beyond[0]
        )


def _failed(number: int, partition_id: int, error: SeriatimError) -> ranges_pb2.PartitionOffset:
    return ranges_pb2.PartitionOffset(partition=number, partition_id=partition_id, error=error_to_proto(error))


def _lose(page: ranges_pb2.PlanRangeResponse, start: Place, end: Place, *, is_gap: bool) -> None:
    page.losses.add(from_offset=make_offset(*start), to_offset=make_offset(*end), is_gap=is_gap)


def _keep_losses_before(page: ranges_pb2.PlanRangeResponse) -> None:
    """If a page ends earlier than planned, keep only the losses before its end."""
    kept = [loss for loss in page.losses if loss.from_offset < page.next_offset]
    del page.losses[:]
    page.losses.extend(kept)


def _segments_between(
    chain: Chain, start: Place, end: Place, page: ranges_pb2.PlanRangeResponse
) -> list[tuple[Segment, int, int]]:
    """The segments from `start` to `end`, each with the indexes where the range begins and ends in it.

    What the range has of lost segments, and where the next page continues, is written into `page`.

    Raises:
        OffsetOutOfRangeError: `start` or `end` is an offset after the end of its segment.
    """
    wanted: list[tuple[Segment, int, int]] = []
    for segment in chain.segments[chain.parts.place(start.segment_no) :]:
        if Place(segment.no, 0) >= end:
            break
        from_index = start.index if segment.no == start.segment_no else segment.start
        length = end.index if segment.no == end.segment_no else segment.sealed_len or 0
        if segment.state is SegmentState.LOST:
            _lose(page, Place(segment.no, from_index), min(Place(segment.no + 1, 0), end), is_gap=True)
        elif segment.sealed_len is not None and max(from_index, length) > segment.sealed_len:
            offset = make_offset(segment.no, segment.sealed_len)
            raise OffsetOutOfRangeError(
                f"segment {segment.no} ends at {format_offset(offset)}: an offset after that is in no segment",
                end=offset,
            )
        elif from_index < length and len(wanted) == SEGMENTS_MAX:
            page.next_offset = make_offset(segment.no, from_index)
            break
        elif from_index < length:
            wanted.append((segment, from_index, length))
    return wanted


def _text(place: Place) -> str:
    return format_offset(make_offset(*place))
