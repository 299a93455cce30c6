"""Cancels delayed messages. Each question goes to the broker that answered the last one about the same segment.

While two questions about a segment are under way, further messages of it wait, and the next question has all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from seriatim_api.delayed import CancelOutcome
from seriatim_api.errors import DeadlineExceededError, NotServingError, SeriatimError
from seriatim_api.ids import split_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import delayed_pb2

from seriatim._transport.unary import Caller

SEGMENTS_MAX: Final = 10_000
"""Maximum number of segments of which the server is remembered."""

QUESTIONS_MAX: Final = 2
"""Maximum number of questions about a segment that are under way."""

MESSAGES_MAX: Final = 256
"""Maximum number of messages in a question."""

PAUSE_S: Final = 0.02

_OUTCOMES: Final = {
    delayed_pb2.CANCEL_RESULT_CANCELLED: CancelOutcome.CANCELLED,
    delayed_pb2.CANCEL_RESULT_TOO_LATE: CancelOutcome.TOO_LATE,
    delayed_pb2.CANCEL_RESULT_NOT_FOUND: CancelOutcome.NOT_FOUND,
}

Place = tuple[str, int, int]
"""Topic, partition and segment."""

_Answer = asyncio.Future[delayed_pb2.CancelledMessage | None]
"""None: the one that waits asks now."""


@dataclass(slots=True, eq=False)
class _Segment:
    """Who is asked about a segment, how many questions are under way, and the offsets that wait for the next one."""

    server: str | None = None
    under_way: int = 0
    waiting: deque[tuple[int, _Answer]] = field(default_factory=deque)

    def end(self) -> None:
        """A question has ended: the first of those that wait asks the next one."""
        self.under_way -= 1
        while self.waiting:
            _, answer = self.waiting.popleft()
            if not answer.done():
                self.under_way += 1
                answer.set_result(None)
                return


class Cancellations:
    """Asks brokers to cancel delayed messages."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._segments: dict[Place, _Segment] = {}

    async def cancel(self, topic: str, partition: int, origin: int, timeout_s: float) -> CancelOutcome:
        """Cancel a message. A request that is repeated has the same answer, so it may be sent again.

        Raises:
            SeriatimError: A broker refused the request, or none could answer it in time.
        """
        place = topic, partition, split_offset(origin)[0]
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            try:
                answer = await self._ask(place, origin, max(until - loop.time(), 0.001))
                if answer.HasField("error"):
                    raise error_from_proto(answer.error)
                return _OUTCOMES[answer.result]
            except SeriatimError as exc:
                may_succeed = exc.retriable or isinstance(exc, DeadlineExceededError)
                pause_s = max(PAUSE_S, (exc.retry_after_ms or 0) / 1000)
                if not may_succeed or loop.time() + pause_s >= until:
                    raise
            await asyncio.sleep(pause_s)

    async def _ask(self, place: Place, origin: int, left_s: float) -> delayed_pb2.CancelledMessage:
        """Ask about a message, with others of its segment if they wait."""
        segment = self._segment(place)
        if segment.under_way < QUESTIONS_MAX:
            segment.under_way += 1
        else:
            answer: _Answer = asyncio.get_running_loop().create_future()
            segment.waiting.append((origin, answer))
            try:
                async with asyncio.timeout(left_s):
                    found = await answer
            except BaseException as exc:
                if answer.done() and not answer.cancelled() and not answer.exception() and answer.result() is None:
                    segment.end()
                if isinstance(exc, TimeoutError):
                    raise NotServingError("no broker answered in time whether the message was cancelled") from None
                raise
            if found is not None:
                return found
        others: list[tuple[int, _Answer]] = []
        while segment.waiting and len(others) < MESSAGES_MAX - 1:
            others.append(segment.waiting.popleft())
        try:
            return await self._send(place, segment, origin, [one for one in others if not one[1].done()], left_s)
        finally:
            segment.end()

    async def _send(
        self, place: Place, segment: _Segment, origin: int, others: list[tuple[int, _Answer]], left_s: float
    ) -> delayed_pb2.CancelledMessage:
        """Ask about a message and others. These get their answers, or the error."""
        topic, partition, _ = place
        request = delayed_pb2.CancelDelayedRequest(
            topic=topic, partition=partition, offsets=[origin, *(offset for offset, _ in others)]
        )
        error: SeriatimError = NotServingError("the question that was to cancel this message too was given up")
        try:
            told: delayed_pb2.CancelDelayedResponse
            told = await self._caller.delayed("CancelDelayed", request, left_s, first=segment.server)
            segment.server = told.server_address or None
            for (_, answer), message in zip(others, told.messages[1:], strict=True):
                if not answer.done():
                    answer.set_result(message)
            return told.messages[0]
        except SeriatimError as exc:
            segment.server, error = None, exc
            raise
        finally:
            for _, answer in others:
                if not answer.done():
                    answer.set_exception(error)

    def _segment(self, place: Place) -> _Segment:
        segment = self._segments.pop(place, None) or _Segment()
        self._segments[place] = segment
        if len(self._segments) > SEGMENTS_MAX:
            del self._segments[next(iter(self._segments))]
        return segment
