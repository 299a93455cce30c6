"""Cancels delayed messages. Each question goes to the broker that answered the last one about the same segment."""

from __future__ import annotations

import asyncio
from typing import Final

from seriatim_api.delayed import CancelOutcome
from seriatim_api.errors import DeadlineExceededError, SeriatimError
from seriatim_api.ids import split_offset
from seriatim_api.v1 import delayed_pb2

from seriatim._transport.unary import Caller

SERVERS_MAX: Final = 10_000
"""Maximum number of segments of which the server is remembered."""

PAUSE_S: Final = 0.02

_OUTCOMES: Final = {
    delayed_pb2.CANCEL_RESULT_CANCELLED: CancelOutcome.CANCELLED,
    delayed_pb2.CANCEL_RESULT_TOO_LATE: CancelOutcome.TOO_LATE,
    delayed_pb2.CANCEL_RESULT_NOT_FOUND: CancelOutcome.NOT_FOUND,
}


class Cancellations:
    """Asks brokers to cancel delayed messages."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._servers: dict[tuple[str, int, int], str] = {}  # topic, partition and segment -> address

    async def cancel(self, topic: str, partition: int, origin: int, timeout_s: float) -> CancelOutcome:
        """Cancel a message. A request that is repeated has the same answer, so it may be sent again.

        Raises:
            SeriatimError: A broker refused the request, or none could answer it in time.
        """
        request = delayed_pb2.CancelDelayedRequest(topic=topic, partition=partition, offset=origin)
        place = topic, partition, split_offset(origin)[0]
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            try:
                answer: delayed_pb2.CancelDelayedResponse
                left_s = max(until - loop.time(), 0.001)
                answer = await self._caller.delayed("CancelDelayed", request, left_s, first=self._servers.get(place))
            except SeriatimError as exc:
                self._servers.pop(place, None)
                may_succeed = exc.retriable or isinstance(exc, DeadlineExceededError)
                pause_s = max(PAUSE_S, (exc.retry_after_ms or 0) / 1000)
                if not may_succeed or loop.time() + pause_s >= until:
                    raise
                await asyncio.sleep(pause_s)
            else:
                self._remember(place, answer.server_address)
                return _OUTCOMES[answer.result]

    def _remember(self, place: tuple[str, int, int], address: str) -> None:
        self._servers.pop(place, None)
        if address:
            self._servers[place] = address
            if len(self._servers) > SERVERS_MAX:
                del self._servers[next(iter(self._servers))]
