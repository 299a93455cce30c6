"""Finds the place of a target (earliest, latest, an offset or a time) in each partition, for a consumer group.

The masters of the open segments report ends and times, as for range reads (`ranges`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from seriatim_api.errors import BadRequestError, OffsetOutOfRangeError, SeriatimError
from seriatim_api.ids import OFFSET_MAX, split_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import broker_pb2, ranges_pb2

from ...core.values.chain import Chain
from ...core.values.positions import Place
from ...core.values.targets import first_place, place_of
from .ranges import RangesServicer

Found = Place | SeriatimError
"""A place, or why there is none."""


class ConsumerGroupTargets:
    """Finds targets with the help of the brokers that know them."""

    def __init__(self, ranges: RangesServicer) -> None:
        self._ranges = ranges

    async def find(
        self, topic: str, chains: Sequence[Chain], target: broker_pb2.GroupTarget, deadline_s: float
    ) -> dict[int, Found]:
        """The place of the target, by the number of the partition.

        Raises:
            BadRequestError: There is no such target.
            OffsetOutOfRangeError: The target is a time in the future.
        """
        until = time.monotonic() + deadline_s
        match target.WhichOneof("target"):
            case "offset":
                place = place_from(target.offset)
                lengths = await self.known_lengths(topic, chains, place.segment_no, deadline_s)
                return {chain.number: _place_of(chain, place, lengths[chain.number]) for chain in chains}
            case "time_ms":
                check_time(target.time_ms)
                request = ranges_pb2.GetOffsetsRequest(at=ranges_pb2.OFFSET_AT_TIME, time_ms=target.time_ms)
                return await self._ask(topic, chains, request, until)
            case "position" if target.position == broker_pb2.START_POSITION_LATEST:
                return await self._ask(topic, chains, ranges_pb2.GetOffsetsRequest(at=ranges_pb2.OFFSET_AT_END), until)
            case "position" if target.position == broker_pb2.START_POSITION_EARLIEST:
                return {chain.number: first_place(chain) for chain in chains}
            case _:
                raise BadRequestError("a target is earliest, latest, an offset or a time")

    async def known_lengths(
        self, topic: str, chains: Sequence[Chain], segment_no: int, deadline_s: float
    ) -> dict[int, int | SeriatimError]:
        """By partition: if the segment is the open one, the index below which it can be read; otherwise 0."""
        lengths: dict[int, int | SeriatimError] = dict.fromkeys((chain.number for chain in chains), 0)
        asked = [chain for chain in chains if chain.open_segment.no == segment_no]
        if asked:
            request = ranges_pb2.GetOffsetsRequest(at=ranges_pb2.OFFSET_AT_END)
            for number, end in (await self._ask(topic, asked, request, time.monotonic() + deadline_s)).items():
                if isinstance(end, SeriatimError):
                    lengths[number] = end
                elif end.segment_no == segment_no:
                    lengths[number] = end.index
        return lengths

    async def _ask(
        self, topic: str, chains: Sequence[Chain], request: ranges_pb2.GetOffsetsRequest, until: float
    ) -> dict[int, Found]:
        request.topic = topic
        request.partitions[:] = [chain.number for chain in chains]
        answer = await self._ranges.offsets(request, until)
        return {
            row.partition: error_from_proto(row.error) if row.HasField("error") else Place(*split_offset(row.offset))
            for row in answer.partitions
        }


def place_from(offset: int) -> Place:
    """The place of an offset that a client names.

    Raises:
        BadRequestError: It is no offset.
    """
    if offset > OFFSET_MAX:
        raise BadRequestError(f"{offset} is no offset")
    return Place(*split_offset(offset))


def check_time(time_ms: int) -> None:
    """Refuse a time at which no message can have been appended.

    Raises:
        BadRequestError: The time is before 1970.
        OffsetOutOfRangeError: The time is in the future, by this broker's clock.
    """
    now_ms = time.time_ns() // 1_000_000
    if time_ms < 0:
        raise BadRequestError(f"{time_ms} ms is before 1970: there was no message then")
    if time_ms > now_ms:
        ahead_s = (time_ms - now_ms) / 1000
        raise OffsetOutOfRangeError(f"the time is {ahead_s:.0f} s in the future: no message has it yet; use latest")


def _place_of(chain: Chain, place: Place, known_len: int | SeriatimError) -> Found:
    if isinstance(known_len, SeriatimError):
        return known_len
    try:
        return place_of(chain, place.segment_no, place.index, known_len)
    except SeriatimError as exc:
        return exc
