"""A name that one program at a time has: a call at the broker that elects the owner, as long as the program wants it.

The master of partition 0 elects. If the call ends, the program looks for that broker again, and says in which epoch
it was the owner. Messages do not wait for any of this: masters compare the epoch of each batch.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from seriatim_api.errors import (
    BadRequestError,
    DeadlineExceededError,
    OverloadedError,
    PreconditionError,
    ProducerFencedError,
    RoutingError,
    SeriatimError,
    UnavailableError,
    UnknownTopicError,
)
from seriatim_api.exclusive import exclusive_producer
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2, owners_pb2, owners_pb2_grpc

from seriatim._runtime.logs import guarded
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller
from seriatim._values.records import Topic
from seriatim._values.topics import is_same, told_topic

PAUSE_S: Final = 0.05
"""Pause before the broker that elects is looked for again."""

QUESTION_DEADLINE_S: Final = 2.0

RELEASE_DEADLINE_S: Final = 1.0
"""How long the end of a producer waits until the broker knows that the name is free."""

BEATS_PER_SESSION: Final = 4

_log = guarded()

_held: dict[tuple[int, bytes], Ownership] = {}
"""Names that this process wants or has: its process id, because a fork copies the table, and the producer id."""


class Ownership:
    """The name of an owner in a topic.

    Args:
        topic: The topic.
        name: The name.
        session_ms: Without a heartbeat for this time, another program may become the owner.
        take_over: Whether to take the name away from its owner.
        caller: Asks brokers.
        channels: The connections.

    Attributes:
        producer_id: The id under which the owner sends.
        epoch: That of this program; 0: it is not the owner.

    Raises:
        PreconditionError: Another producer of this process wants the name, or has it.
    """

    def __init__(
        self, topic: Topic, name: str, session_ms: int, *, take_over: bool, caller: Caller, channels: Channels
    ) -> None:
        self.topic, self.name = topic, name
        self.producer_id = exclusive_producer(topic.partition_ids[0], name)
        self.epoch = 0
        self._key = os.getpid(), self.producer_id
        if self._key in _held:
            raise PreconditionError(
                f"another producer of this program has the name {name!r} in {topic.name}, or waits for it: the owner "
                "is this program. Use that producer, or close it first"
            )
        _held[self._key] = self
        self._owner = os.urandom(16)
        self._text = f"{socket.gethostname()}:{os.getpid()}"[:200]
        self._session_s = session_ms / 1000
        self._take_over = take_over
        self._caller, self._channels = caller, channels
        self._reply: owners_pb2.AcquireReply | None = None  # the newest one
        self._problem: SeriatimError | None = None  # why the last call ended
        self._ends = asyncio.Event()
        self._owned: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._on_lost: Callable[[SeriatimError], None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def acquire(self, timeout_s: float | None) -> int:
        """Wait until this program is the owner, and return its epoch. If it raises or is cancelled, it wants no more.

        Raises:
            DeadlineExceededError: It was not within `timeout_s` seconds; the text says why.
            SeriatimError: The brokers refuse the name, or the topic was deleted.
        """
        self._task = asyncio.create_task(self._hold(), name=f"owner {self.name}")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._owned)
        except TimeoutError as exc:
            await self.close()
            raise DeadlineExceededError(
                f"this program is not the owner of {self.name!r} in {self.topic.name} after {timeout_s:g} s: "
                f"{self._standing()}",
                name=self.name,
                partitions=",".join(map(str, self._reply.partitions)) if self._reply is not None else "",
            ) from exc
        except BaseException:
            await self.close()
            raise

    def on_lost(self, tell: Callable[[SeriatimError], None]) -> None:
        """`tell` gets the error when another program is the owner, or the topic was deleted."""
        self._on_lost = tell
        if self._task is not None and self._task.done() and self._problem is not None:
            tell(self._problem)

    async def close(self) -> None:
        """Give the name up, and say so to the broker that elects. If it is cancelled, the end of the call says so."""
        self._ends.set()
        self._forget()
        if self._task is None:
            return
        try:
            async with asyncio.timeout(RELEASE_DEADLINE_S):
                await asyncio.shield(self._task)
        except (TimeoutError, SeriatimError):
            pass
        finally:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def fenced(self, message: str, details: dict[str, str]) -> ProducerFencedError:
        """The error of a producer whose owner has lost the name."""
        epoch, owner = details.get("epoch", "0"), details.get("owner", "")
        if self._reply is not None and self._reply.state == owners_pb2.OWNER_STATE_LOST:
            epoch, owner = str(self._reply.epoch), owner or self._reply.owner_text
        return ProducerFencedError(message, name=self.name, epoch=epoch, owner=owner)

    # ---- the call -----------------------------------------------------------------------------------------

    def _standing(self) -> str:
        reply = self._reply
        if reply is None:
            return f"no broker answered{f' ({self._problem.message})' if self._problem is not None else ''}"
        if reply.state == owners_pb2.OWNER_STATE_STARTING:
            numbers = ", ".join(map(str, reply.partitions))
            more = f" and {reply.partition_count - len(reply.partitions)} more" * (
                reply.partition_count > len(reply.partitions)
            )
            reason = f" ({reply.reason})" if reply.reason else ""
            return f"it is next, and waits for partitions {numbers}{more}{reason}"
        owner = f"{reply.owner_text} is the owner, in epoch {reply.epoch}" if reply.owner_text else "none is the owner"
        return f"{owner}; {reply.position} programs are before this one"

    async def _hold(self) -> None:
        """Keep a call at the host, until the name is given up or lost."""
        while not self._ends.is_set():
            try:
                if await self._call(await self._host()):
                    return
            except SeriatimError as exc:
                self._problem = exc
                if not _may_succeed(exc):
                    self._lost(exc)
                    return
            except Exception:
                _log.warning("the call for the name %s failed; it is made again", self.name, exc_info=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._ends.wait()

    def _lost(self, error: SeriatimError) -> None:
        self._problem = error
        self._forget()
        if not self._owned.done():
            self._owned.set_exception(error)
        elif self._on_lost is not None:
            self._on_lost(error)

    def _forget(self) -> None:
        if _held.get(self._key) is self:
            del _held[self._key]

    async def _host(self) -> str:
        """The address of the broker that elects."""
        answer = await self._caller.routing(
            "GetTopic", broker_pb2.GetTopicRequest(topic=self.topic.name), QUESTION_DEADLINE_S
        )
        if not is_same(self.topic, told_topic(answer)):
            raise UnknownTopicError(f"topic {self.topic.name!r} was deleted and made again", topic=self.topic.name)
        address = str(answer.routes[0].master_address)
        if not address:
            raise UnavailableError(f"partition 0 of {self.topic.name} has no master now")
        return address

    async def _call(self, address: str) -> bool:
        """One call. True: nothing is wanted any more.

        Raises:
            SeriatimError: The call ended.
        """
        stub = owners_pb2_grpc.OwnersStub(self._channels.get(address, "ask"))  # type: ignore[no-untyped-call]
        call = stub.Acquire()
        beats: asyncio.Task[None] | None = None
        try:
            request = owners_pb2.AcquireRequest(
                topic=self.topic.name,
                partition_id=self.topic.partition_ids[0],
                name=self.name,
                owner=self._owner,
                owner_text=self._text,
                session_ms=round(self._session_s * 1000),
                take_over=self._take_over and not self.epoch,
                epoch=self.epoch,
            )
            await self._within(call.write(request), address)
            beats = asyncio.create_task(self._beat(call), name=f"heartbeats {self.name}")
            while True:
                reply = await self._within(call.read(), address)
                if reply is grpc.aio.EOF:
                    if self._ends.is_set():
                        return True
                    code = await call.code()
                    raise from_status(code, await call.details(), await call.trailing_metadata())
                if self._take(reply):
                    return True
        except grpc.aio.AioRpcError as exc:
            raise from_status(exc.code(), f"{address}: {exc.details()}", exc.trailing_metadata()) from exc
        except asyncio.InvalidStateError as exc:  # the call has ended
            raise UnavailableError(f"{address}: the call ended") from exc
        finally:
            if beats is not None:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)
            call.cancel()

    async def _within(self, work: Any, address: str) -> Any:
        """The host answers each heartbeat. If it is silent for half a session, another broker may elect by now."""
        try:
            async with asyncio.timeout(self._session_s / 2):
                return await work
        except TimeoutError as exc:
            raise DeadlineExceededError(f"{address} did not answer a heartbeat") from exc

    async def _beat(self, call: Any) -> None:
        """Heartbeats, and at the end that the name is free. A call that ended is seen where it is read."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while not self._ends.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._session_s / BEATS_PER_SESSION):
                        await self._ends.wait()
                await call.write(owners_pb2.AcquireRequest(is_released=self._ends.is_set()))
            await call.done_writing()

    def _take(self, reply: owners_pb2.AcquireReply) -> bool:
        """A reply of the host. True: the name is lost."""
        self._reply = reply
        if reply.state == owners_pb2.OWNER_STATE_OWNED:
            self.epoch = self.epoch or reply.epoch
            if not self._owned.done():
                self._owned.set_result(reply.epoch)
        if reply.state != owners_pb2.OWNER_STATE_LOST:
            return False
        by = f"{reply.owner_text} is the owner now" if reply.owner_text else "the name was taken away"
        text = f"this program is not the owner of {self.name!r} in {self.topic.name} any more: {by}"
        self._lost(self.fenced(text, {}))
        return True


def _may_succeed(error: SeriatimError) -> bool:
    """Whether another call for the name may succeed although nothing else changes."""
    if isinstance(error, BadRequestError | PreconditionError | UnknownTopicError):
        return False
    return error.retriable or isinstance(error, RoutingError | UnavailableError | OverloadedError)
