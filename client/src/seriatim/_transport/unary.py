"""Questions to brokers: unary calls with a deadline, tried at one address after another."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio
from seriatim_api.errors import (
    CoordinatorUnavailableError,
    DeadlineExceededError,
    RoutingError,
    SeriatimError,
    UnavailableError,
)
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2_grpc

from seriatim._transport.channels import Channels

ATTEMPT_DEADLINE_S: Final = 1.0
"""For one broker's answer, where another may be asked; a frozen one costs that much."""

ROUND_PAUSE_S: Final = 0.05
"""Between two rounds over all addresses, while the deadline lasts."""

_PREAMBLE: Final = re.compile(r"^failed to connect to all addresses; last error: [A-Z]+: ipv[46]:[^ ]*: ")

ASKED_AT_ONCE_MAX: Final = 64
"""Questions of one client under way at once: after the loss of a master with a thousand partitions, a queue here
rather than at the brokers."""


class Caller:
    """Asks any broker that answers.

    Args:
        channels: Where connections come from.
        bootstrap: Addresses to begin with; more are learned.
    """

    def __init__(self, channels: Channels, bootstrap: Iterable[str]) -> None:
        self._channels = channels
        self._addresses: dict[str, None] = dict.fromkeys(bootstrap)
        self._good: str | None = None
        self._room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        assert self._addresses

    def learn(self, addresses: Iterable[str]) -> None:
        """Addresses that a broker named."""
        self._addresses.update(dict.fromkeys(address for address in addresses if address))

    async def routing(
        self, method: str, request: Any, timeout_s: float, *, first: str | None = None, avoid: str | None = None
    ) -> Any:
        """A call of the routing service; see `_call`."""
        return await self._call(broker_pb2_grpc.RoutingStub, method, request, timeout_s, first, avoid)

    async def admin(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the admin service. One that may have been taken is not sent again."""
        return await self._call(broker_pb2_grpc.AdminStub, method, request, timeout_s, None, None, once=True)

    async def _call(
        self,
        stub: Callable[[Any], Any],
        method: str,
        request: Any,
        timeout_s: float,
        first: str | None,
        avoid: str | None,
        *,
        once: bool = False,
    ) -> Any:
        """Ask brokers in turn until one answers.

        Raises:
            SeriatimError: What the broker says of the request itself, at once.
            UnavailableError: Nobody answered within `timeout_s`; the last reason.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        error: SeriatimError = DeadlineExceededError(f"no broker answered {method} within {timeout_s:.1f} s")
        async with self._room:
            while True:
                for address in self._order(first, avoid):
                    left_s = deadline - loop.time()
                    if left_s <= 0:
                        raise error
                    attempt_s = left_s if once else min(left_s, ATTEMPT_DEADLINE_S)
                    try:
                        answer = await self._ask(stub, address, method, request, attempt_s)
                    except SeriatimError as exc:
                        if not _another_may_answer(exc) or (once and isinstance(exc, DeadlineExceededError)):
                            raise
                        error = exc
                        if self._good == address:
                            self._good = None
                    else:
                        self._good = address
                        return answer
                await asyncio.sleep(min(ROUND_PAUSE_S, max(0.0, deadline - loop.time())))
                if loop.time() >= deadline:
                    raise error

    def _order(self, first: str | None, avoid: str | None) -> list[str]:
        """Who is asked: the one that should know, the one that answered last, then the others; who is avoided, last."""
        wanted = [address for address in (first, self._good) if address]
        order = list(dict.fromkeys([*wanted, *self._addresses]))
        if avoid in order:
            order.remove(avoid)
            order.append(avoid)
        return order

    async def _ask(self, stub: Callable[[Any], Any], address: str, method: str, request: Any, timeout_s: float) -> Any:
        call = getattr(stub(self._channels.get(address, "ask")), method)
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise from_status(exc.code(), f"{address}: {_reason(exc.details())}", exc.trailing_metadata()) from exc

    async def admin_stream(self, method: str, request: Any) -> AsyncIterator[Any]:
        """A stream of the admin service from the first broker that answers.

        Raises:
            SeriatimError: The stream broke; what was given out stands.
        """
        error: SeriatimError = UnavailableError("no broker answered")
        stub: Callable[[Any], Any] = broker_pb2_grpc.AdminStub
        for address in self._order(None, None):
            call = getattr(stub(self._channels.get(address, "ask")), method)(request)
            begun = False
            try:
                async for answer in call:
                    begun = True
                    yield answer
            except grpc.aio.AioRpcError as exc:
                error = from_status(exc.code(), exc.details(), exc.trailing_metadata())
                if begun or not _another_may_answer(error):
                    raise error from exc
            else:
                return
            finally:
                call.cancel()
        raise error


def _reason(details: str | None) -> str:
    """Why a call failed, without gRPC's preamble, which names the address again, twice, before it says why."""
    return _PREAMBLE.sub("", details or "no reason given")


def _another_may_answer(error: SeriatimError) -> bool:
    return isinstance(error, (UnavailableError, RoutingError)) and not isinstance(error, CoordinatorUnavailableError)
