"""Servers: asking brokers who serves a consumer group's head of a partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2

from seriatim._core.consumer_types import Place, Resolve
from seriatim._settings import Start
from seriatim._transport.unary import Caller

QUESTION_DEADLINE_S: Final = 2.0

_log = logging.getLogger("seriatim")

STARTS: Final = {
    "earliest": broker_pb2.START_POSITION_EARLIEST,
    "latest": broker_pb2.START_POSITION_LATEST,
}


class Servers:
    """Asks for all partitions of one consumer; see `close`.

    Args:
        caller: Asks any broker.
        group: The consumer group.
        fail: Told of an answer that no other question will mend.
        failed: Told of a question that failed in an unexpected way.
    """

    def __init__(
        self,
        caller: Caller,
        group: str,
        fail: Callable[[SeriatimError], None],
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._caller = caller
        self._group = group
        self._fail = fail
        self._failed = failed
        self._questions: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def ask(
        self, partition_id: int, start: Start, failed_server_epoch: int | None, avoid: str | None
    ) -> Place | None:
        """Who serves the group's head; None if nobody could say, or after `stop`.

        Args:
            partition_id: Of which partition.
            start: Where the group begins there, if it was never there.
            failed_server_epoch: A complaint about the server that serves since then.
            avoid: An address that is not to be asked before others.
        """
        if self._is_over:
            return None
        request = broker_pb2.ResolveConsumerRequest(
            partition_id=partition_id,
            group=self._group,
            failed_server_epoch=failed_server_epoch,
            start=STARTS[start],
        )
        try:
            answer = await self._caller.routing(
                "ResolveConsumer",
                request,
                QUESTION_DEADLINE_S,
                avoid=avoid,
                is_complaint=failed_server_epoch is not None,
            )
        except SeriatimError as exc:
            if not exc.retriable:
                self._fail(exc)
            return None
        except Exception:
            # A question changes nothing, so it can be asked again, whatever failed.
            _log.warning("asking who serves partition %d to %s failed", partition_id, self._group, exc_info=True)
            return None
        self._caller.learn([answer.server_address])
        return Place(answer.segment, answer.server_address, answer.server_epoch)

    def resolve(self, partition_id: int, start: Start, effect: Resolve, tell: Callable[[Place | None], None]) -> None:
        """Answer a core's question, in the background."""

        if self._is_over:
            return  # a core without an answer asks no more

        async def ask() -> None:
            place = await self.ask(partition_id, start, effect.failed_server_epoch, effect.avoid_address)
            if not self._is_over:
                tell(place)

        task = asyncio.create_task(ask(), name=f"resolve {self._group} {partition_id}")
        self._questions.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._questions.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def stop(self) -> None:
        """End all questions; none is answered any more, and none is asked."""
        self._is_over = True
        for task in self._questions:
            if task is not asyncio.current_task():
                task.cancel()

    async def close(self) -> None:
        """End all questions, and wait until they have ended."""
        self.stop()
        await asyncio.gather(*self._questions, return_exceptions=True)
