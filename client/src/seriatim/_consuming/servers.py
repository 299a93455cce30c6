"""Servers: asking brokers who serves a consumer group's head of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2

from seriatim._core.consumer_types import Place, Resolve
from seriatim._settings import Start
from seriatim._transport.unary import Caller

QUESTION_DEADLINE_S: Final = 2.0

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
    """

    def __init__(self, caller: Caller, group: str, fail: Callable[[SeriatimError], None]) -> None:
        self._caller = caller
        self._group = group
        self._fail = fail
        self._questions: set[asyncio.Task[None]] = set()

    async def ask(
        self, partition_id: int, start: Start, failed_server_epoch: int | None, avoid: str | None
    ) -> Place | None:
        """Who serves the group's head; None if nobody could say.

        Args:
            partition_id: Of which partition.
            start: Where the group begins there, if it was never there.
            failed_server_epoch: A complaint about the server that serves since then.
            avoid: An address that is not to be asked before others.
        """
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
        self._caller.learn([answer.server_address])
        return Place(answer.segment, answer.server_address, answer.server_epoch)

    def resolve(self, partition_id: int, start: Start, effect: Resolve, tell: Callable[[Place | None], None]) -> None:
        """Answer a core's question, in the background."""

        async def ask() -> None:
            tell(await self.ask(partition_id, start, effect.failed_server_epoch, effect.avoid_address))

        task = asyncio.create_task(ask(), name=f"resolve {self._group} {partition_id}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def close(self) -> None:
        """End all questions; none is answered any more."""
        for task in self._questions:
            task.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)
