"""Calls from one broker to another on behalf of a client: to the controller, to a server, or to a master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from seriatim_api.errors import NotServingError, SeriatimError
from seriatim_api.network.round_trips import RoundTrips, way_metadata
from seriatim_api.status import METADATA_KEY, from_status
from seriatim_api.v1 import (
    broker_pb2_grpc,
    dead_letters_pb2_grpc,
    delayed_pb2_grpc,
    operations_pb2_grpc,
    publications_pb2_grpc,
    ranges_pb2_grpc,
)

from ...runtime.membership.directory import Directory
from .transport import PLAIN, Transport

RETIRED_GRACE_S = 60.0
"""Time that calls have to end on a channel whose certificates are out of date: longer than any call may take."""

FORWARDED_KEY = "seriatim-forwarded"
"""Metadata of a call that another broker passed on, with its name. It is answered here and never passed on again."""

OPERATOR_EPOCH_KEY = "seriatim-operator-epoch"
"""Metadata of an operator's call: the epoch of its Lease. It stays with the call when a broker passes that on."""


class BrokerCalls:
    """Channels to other brokers, made when they are first needed and kept until the certificates change.

    Args:
        directory: Has the addresses of other brokers.
        transport: Makes the channels.
        broker: The name of the broker that calls.
    """

    def __init__(self, directory: Directory, transport: Transport = PLAIN, broker: str = "") -> None:
        self._broker = broker
        self._directory = directory
        self._transport = transport
        self._generation = transport.generation
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._trips = RoundTrips()

    async def admin(
        self, broker: str, method: str, request: Any, deadline_s: float, operator: str | None = None
    ) -> Any:
        """Call a method of `Admin` at another broker. The call is marked as forwarded, and names `operator` if given.

        Raises:
            SeriatimError: The other broker's error, or an error that says that it did not answer.
        """
        return await self._call(broker_pb2_grpc.AdminStub, broker, method, request, deadline_s, operator)

    async def balancing(
        self, broker: str, method: str, request: Any, deadline_s: float, operator: str | None = None
    ) -> Any:
        """Call a method of `Balancing` in the same way."""
        return await self._call(operations_pb2_grpc.BalancingStub, broker, method, request, deadline_s, operator)

    async def ranges(self, broker: str, method: str, request: Any, deadline_s: float) -> Any:
        """Call a method of `Ranges` in the same way."""
        return await self._call(ranges_pb2_grpc.RangesStub, broker, method, request, deadline_s, None)

    async def publications(self, broker: str, method: str, request: Any, deadline_s: float) -> Any:
        """Call a method of `Publications` in the same way."""
        return await self._call(publications_pb2_grpc.PublicationsStub, broker, method, request, deadline_s, None)

    async def dead_letters(self, broker: str, method: str, request: Any, deadline_s: float) -> Any:
        """Call a method of `DeadLetters` in the same way."""
        return await self._call(dead_letters_pb2_grpc.DeadLettersStub, broker, method, request, deadline_s, None)

    async def delayed(self, broker: str, method: str, request: Any, deadline_s: float) -> Any:
        """Call a method of `Delayed` in the same way."""
        return await self._call(delayed_pb2_grpc.DelayedStub, broker, method, request, deadline_s, None)

    async def _call(
        self,
        stub: Callable[[grpc.aio.Channel], Any],
        broker: str,
        method: str,
        request: Any,
        deadline_s: float,
        operator: str | None,
    ) -> Any:
        address = self._directory.peer_address(broker)
        if address is None:
            raise NotServingError(f"the address of {broker} is not known", broker=broker)
        call = getattr(stub(self._channel(address)), method)
        way_s = min(self._trips.way_s(address), deadline_s / 2)
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            answer = await call(request, timeout=deadline_s, metadata=self._forwarded(operator, way_s))
        except grpc.aio.AioRpcError as exc:
            if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._trips.late(address)
            raise _error_of(exc, broker, deadline_s) from exc
        self._trips.answered(address)
        self._trips.took(address, loop.time() - asked_s)
        return answer

    def _forwarded(self, operator: str | None, way_s: float) -> tuple[tuple[str, str], ...]:
        forwarded = ((FORWARDED_KEY, self._broker), way_metadata(way_s))
        return forwarded if operator is None else (*forwarded, (OPERATOR_EPOCH_KEY, operator))

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._transport.generation != self._generation:
            self._generation = self._transport.generation
            self._retire_all()
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._transport.channel(address)
        return channel

    def _retire_all(self) -> None:
        """Close all channels. Calls that are under way may still end on them."""
        channels, self._channels = self._channels, {}
        for address, channel in channels.items():
            task = asyncio.create_task(channel.close(RETIRED_GRACE_S), name=f"close {address}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all channels now."""
        channels, self._channels = self._channels, {}
        for task in self._closing:
            task.cancel()
        await asyncio.gather(
            *(channel.close() for channel in channels.values()), *self._closing, return_exceptions=True
        )


def _error_of(exc: grpc.aio.AioRpcError, broker: str, deadline_s: float) -> SeriatimError:
    """What the other broker answered. If it did not answer, an error that administrators can read: it may reach a
    terminal."""
    error = from_status(exc.code(), exc.details(), exc.trailing_metadata())
    if any(key == METADATA_KEY for key, _ in exc.trailing_metadata() or ()):
        return error
    if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return type(error)(f"{broker} did not answer within {deadline_s:.3g} s: it is frozen, cut off or very busy")
    if exc.code() is grpc.StatusCode.UNAVAILABLE:
        return type(error)(f"{broker} cannot be reached")
    return error


def is_forwarded(context: Any) -> bool:
    """Whether another broker passed this call on."""
    return any(key == FORWARDED_KEY for key, _ in context.invocation_metadata() or ())


def calling_broker(context: Any) -> str:
    """The broker that makes the call, as the call says; empty if it does not say it."""
    return said(context, FORWARDED_KEY) or ""


def operator_epoch(context: Any) -> str | None:
    """The epoch that an operator names with this call, as it wrote it; None if no operator makes the call."""
    return said(context, OPERATOR_EPOCH_KEY)


def said(context: Any, wanted: str) -> str | None:
    """What the caller of a call says under this metadata key; None: nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == wanted:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return None
