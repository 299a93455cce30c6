"""Servers: asks brokers which broker serves a consumer group's cursor segment of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from seriatim_api.errors import CoordinatorBehindError, SeriatimError
from seriatim_api.v1 import broker_pb2, records_pb2

from seriatim._core.consumer_types import Place, Resolve
from seriatim._runtime.logs import guarded
from seriatim._transport.unary import Caller
from seriatim._values.consumer_group_settings import STARTS
from seriatim._values.settings import Start

QUESTION_DEADLINE_S: Final = 2.0

_log = guarded()


@dataclass(slots=True, eq=False)
class Servers:
    """Asks for all partitions of one consumer, until `close` is called.

    Args:
        caller: Asks any broker.
        group: The consumer group's name.
        fail: Called with an error that a retry cannot change.
        failed: Called with an unexpected exception of a question.
        mode: The mode of a consumer group that has no cursor.
    """

    _caller: Caller
    _group: str
    _fail: Callable[[SeriatimError], None]
    _failed: Callable[[BaseException], Any]
    _mode: records_pb2.ConsumerMode.ValueType = records_pb2.CONSUMER_MODE_EXCLUSIVE
    _questions: set[asyncio.Task[None]] = field(default_factory=set)
    _untold: dict[int, str] = field(default_factory=dict)  # why brokers could not name the server, by partition id
    _is_over: bool = False

    def why_untold(self, partition_id: int) -> str:
        """Why the last question about a partition had no answer, for humans; empty if it had one."""
        return self._untold.get(partition_id, "")

    async def ask(
        self, partition_id: int, start: Start, failed_server_epoch: int | None, avoid: str | None
    ) -> Place | None:
        """The server of the consumer group's cursor segment; None if no broker could tell, or after `stop`.

        Args:
            partition_id: The partition's id in the cluster.
            start: Where the consumer group begins there if it has no cursor.
            failed_server_epoch: None: a question. Else a complaint about the server that has this server epoch.
            avoid: The address of a broker to ask last.
        """
        if self._is_over:
            return None
        request = broker_pb2.ResolveConsumerRequest(
            partition_id=partition_id,
            group=self._group,
            failed_server_epoch=failed_server_epoch,
            start=STARTS[start],
            mode=self._mode,
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
            self._untold[partition_id] = exc.message
            # Rule `waits-for-a-rebuild` (I13): a consumer asks again while the coordinator lacks decisions. Without it:
            #   1. The coordinator comes back as an older copy. Brokers answer that it has lost decisions.
            #   2. An administrator rebuilds it, as the runbook says. All consumers that asked meanwhile have ended.
            if not (exc.retriable or isinstance(exc, CoordinatorBehindError)):
                self._fail(exc)
            return None
        except Exception:
            # A question changes nothing, so it can be asked again, whatever failed.
            _log.warning(
                "the client could not ask for the server of partition id %d for group %s; it asks again",
                partition_id,
                self._group,
                exc_info=True,
            )
            return None
        self._untold.pop(partition_id, None)
        self._caller.learn([answer.server_address])
        return Place(answer.segment, answer.server_address, answer.server_epoch, answer.confirmed)

    def resolve(self, partition_id: int, start: Start, effect: Resolve, tell: Callable[[Place | None], None]) -> None:
        """Ask a core's question in the background, and give the answer to `tell`."""

        if self._is_over:
            return  # until a core gets an answer, it does not ask again

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
        """Cancel all questions. No core gets an answer any more, and no question is asked any more."""
        self._is_over = True
        for task in self._questions:
            if task is not asyncio.current_task():
                task.cancel()

    async def close(self) -> None:
        """Cancel all questions, and wait until they have ended."""
        self.stop()
        await asyncio.gather(*self._questions, return_exceptions=True)
