"""Asks the servers of segments up to where retention may drop messages, because nothing is delayed there any more."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import delayed_pb2

from ...core.values.delayed_messages import AskPending, PendingFound
from ...core.values.segment import Segment
from ..calls.outbound import BrokerCalls
from ..calls.services import Services, answered

DEADLINE_S: Final = 2.0
PAUSE_S: Final = 0.05
"""A server takes a segment up when it is first asked. It is asked again until then."""


async def first_here(services: Services, partition: PartitionId, no: int, move_below: int, deadline_s: float) -> int:
    """The first pending index of a segment that this broker serves. What is pending below `move_below` is moved.

    Raises:
        NotServingError: It does not serve the segment, or does not know what was done there.
        DeadlineExceededError: The core did not answer in time.
    """
    asked = await services.ask_core(lambda number: AskPending(number, partition, no, move_below), deadline_s)
    return answered(asked, PendingFound).first


class PendingCalls:
    """Finds what is pending at the servers of segments."""

    def __init__(self, services: Services, calls: BrokerCalls) -> None:
        self._services = services
        self._calls = calls

    async def first(self, partition: PartitionId, segment: Segment, move_below: int) -> int:
        """The first pending index of a segment. Have its server move what is pending below `move_below`.

        Raises:
            SeriatimError: It is not known within the deadline.
        """
        until = time.monotonic() + DEADLINE_S
        while True:
            left_s = max(until - time.monotonic(), 0.001)
            try:
                if segment.server == self._services.identity.member:
                    return await first_here(self._services, partition, segment.no, move_below, left_s)
                request = delayed_pb2.FirstPendingRequest(
                    partition_id=partition, segment=segment.no, move_below=move_below
                )
                answer = await self._calls.delayed(segment.server.broker, "FirstPending", request, left_s)
            except SeriatimError as exc:
                if not exc.retriable or time.monotonic() + PAUSE_S >= until:
                    raise
            else:
                first: int = answer.first
                return first
            await asyncio.sleep(PAUSE_S)
