"""Questions to brokers: unary calls with a deadline, tried at one address after another.

Producers and consumers ask only the routing service. The stubs of the other services are imported at the first call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from seriatim_api.errors import (
    CoordinatorBehindError,
    CoordinatorUnavailableError,
    DeadlineExceededError,
    RoutingError,
    SeriatimError,
    TlsHandshakeError,
    UnavailableError,
)
from seriatim_api.network.hedging import first_answer
from seriatim_api.network.round_trips import way_metadata
from seriatim_api.status import METADATA_KEY, from_status
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc

from seriatim._runtime.logs import guarded
from seriatim._transport.channels import Channels

_log = guarded()

ATTEMPT_WAIT_S: Final = 1.0
"""Seconds for which one broker may hold a question, if another broker may be asked. The client waits longer: until the
answer has come back; see `seriatim_api.network.round_trips`."""

PATIENCE_S: Final = 0.2
"""After this many seconds and a round trip without an answer another broker is asked too. So a frozen or dead broker
costs this time."""

COMPLAINT_PATIENCE_S: Final = 0.6
"""The same for complaints and other slow questions. A broker answers a complaint when the partition has moved, which
mostly takes less."""

READ_PATIENCE_S: Final = 2.0
"""The same for methods in `READS`, because the answer may take long on a broker with many partitions."""

READS: Final = frozenset(
    {
        "DescribeChain",
        "DescribeCluster",
        "DescribeGroup",
        "DescribeTopic",
        "DescribeWriter",
        "ListBrokerGroups",
        "ListConsumerGroups",
        "ListTopics",
        "ListWriters",
        "PlanGroupMove",
        "PrepareStaging",
    }
)
"""Methods that change nothing. Any broker may be asked, and asked again."""

ROUND_PAUSE_S: Final = 0.05
"""Seconds between two rounds over all addresses, until the deadline."""

REBUILD_PAUSE_S: Final = 0.5
"""The same while brokers answer that the coordinator lacks decisions: an administrator may be rebuilding it."""

ASKED_AT_ONCE_MAX: Final = 64
"""The most questions of one client that are under way at once. After the loss of a master with a thousand partitions,
the other questions wait here and not at the brokers. In addition, as many publications may be under way. They have
their own limit, because they wait for disks, and a producer's question for its route must not wait for them."""

ADDRESSES_MAX: Final = 500
"""The most addresses that a client remembers, without those that it was given. Beyond it, it forgets those that it
learned first. Brokers name the addresses of all brokers again and again, and no longer those that are gone."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A question, for any broker.

    Attributes:
        stub: Makes the service's stub from a channel.
        method: The name of the method.
        request: The request.
        timeout_s: Seconds until the deadline of the whole question. If it may be sent again, brokers may hold it until
            then, and it ends when the last answer should have come back.
        is_slow: A broker may answer late, so a missing answer proves nothing yet.
        once: It must not be sent again if a broker may have taken it.
        is_long: It may wait for disks that are away.
        reads: It may be sent again, and may take long, for example because the answer is large: each broker that is
            asked has all the time that is left.
        waits_for_rebuild: The answer that the coordinator lacks decisions is no refusal: it is asked again until the
            deadline. Something is about to begin here, and a running consumer would wait too.
    """

    stub: Callable[[Any], Any]
    method: str
    request: Any
    timeout_s: float
    is_slow: bool = False
    once: bool = False
    is_long: bool = False
    reads: bool = False
    waits_for_rebuild: bool = False

    @property
    def patience_s(self) -> float | None:
        """Seconds after which another broker is asked too; None: only after this one has failed."""
        if self.once:
            return None
        if self.reads:
            return READ_PATIENCE_S
        return COMPLAINT_PATIENCE_S if self.is_slow else PATIENCE_S


@dataclass(slots=True)
class _Shared:
    """A question that was asked at `asked_s`, and how many callers wait for its answer."""

    task: asyncio.Task[Any]
    asked_s: float
    users: int = 0


class _NoAnswerError(Exception):
    """A broker did not answer, or answered that it cannot answer now. Another broker must be asked.

    Attributes:
        reason: Why, for humans.
        may_be_taken: Whether the broker may have taken the request.
        told: The error that the broker answered; None if it was not reached, or not in time.
    """

    def __init__(self, reason: str, *, may_be_taken: bool, told: SeriatimError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_be_taken = may_be_taken
        self.told = told


def _managing(stub: Callable[[Any], Any], method: str, request: Any, timeout_s: float) -> _Call:
    reads = method in READS
    return _Call(stub, method, request, timeout_s, is_slow=True, once=not reads, reads=reads)


class Caller:
    """Asks brokers, one after another, until one answers.

    Args:
        channels: The connections.
        bootstrap: Addresses of brokers to begin with. The caller learns more.
    """

    def __init__(self, channels: Channels, bootstrap: Iterable[str]) -> None:
        self._channels = channels
        self._addresses: dict[str, None] = dict.fromkeys(bootstrap)
        self._bootstrap = tuple(self._addresses)
        self._good: str | None = None
        self._room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        self._long_room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        self._silence = channels.silence
        self._trips = channels.round_trips
        self._lately: dict[bytes, tuple[float, Any]] = {}  # the newest answer to a request, and when it was asked for
        self._waiting: dict[bytes, _Shared] = {}  # questions without an answer so far
        assert self._addresses

    def learn(self, addresses: Iterable[str]) -> None:
        """Remember addresses that a broker named."""
        self._addresses.update(dict.fromkeys(address for address in addresses if address))
        excess = len(self._addresses) - len(self._bootstrap) - ADDRESSES_MAX
        if excess > 0:
            for address in [address for address in self._addresses if address not in self._bootstrap][:excess]:
                del self._addresses[address]

    def tls_error(self) -> TlsHandshakeError | None:
        """The error for a call that waits without a deadline; see `Silence.tls_error`."""
        return self._silence.tls_error(self._addresses)

    async def routing(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        first: str | None = None,
        avoid: str | None = None,
        is_complaint: bool = False,
        waits_for_rebuild: bool = False,
    ) -> Any:
        """A call of the routing service; see `_call`.

        Args:
            method: The name of the method.
            request: The request.
            timeout_s: Seconds until the deadline.
            first: The address of the broker to ask first.
            avoid: The address of a broker to ask last.
            is_complaint: Whether it is a complaint, which brokers answer later than other questions.
            waits_for_rebuild: Whether it is asked again while the coordinator lacks decisions.
        """
        call = _Call(
            broker_pb2_grpc.RoutingStub, method, request, timeout_s, is_slow=is_complaint,
            waits_for_rebuild=waits_for_rebuild,
        )  # fmt: skip
        return await self._call(call, first, avoid)

    async def topic(self, request: broker_pb2.GetTopicRequest, timeout_s: float, within_s: float) -> Any:
        """Ask `GetTopic`, unless another one of this client asked the same at most `within_s` seconds ago, or waits.

        So 64 consumers of a topic ask about as often as one. Only answers are shared: an error is the caller's own,
        unless they wait for the same question.

        Args:
            request: The request. With `wait_ms`, one broker is asked, and no other one if it does not answer.
            timeout_s: Seconds until the deadline.
            within_s: Seconds since the question of an answer that counts. The caller knows nothing newer than that.
        """
        now, question = asyncio.get_running_loop().time(), request.SerializeToString(deterministic=True)
        self._lately = {asked: known for asked, known in self._lately.items() if now - known[0] <= within_s}
        if question in self._lately:
            return self._lately[question][1]
        if request.wait_ms:
            return await self._wait_with_others(question, partial(self._ask_waiting, request, timeout_s))
        return await self._wait_with_others(question, partial(self._ask_now, question, request, timeout_s), within_s)

    async def _wait_with_others(
        self, question: bytes, ask: Callable[[], Coroutine[Any, Any, Any]], within_s: float = math.inf
    ) -> Any:
        """Ask, or wait for the answer to the same question of that time. If all callers are cancelled, it is too."""
        shared, now = self._waiting.get(question), asyncio.get_running_loop().time()
        if shared is None or now - shared.asked_s > within_s:
            shared = self._waiting[question] = _Shared(asyncio.create_task(ask(), name="news of a topic"), now)
        shared.users += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.users -= 1
            if shared.task.done() or not shared.users:
                if self._waiting.get(question) is shared:
                    del self._waiting[question]
                shared.task.cancel()

    async def _ask_now(self, question: bytes, request: broker_pb2.GetTopicRequest, timeout_s: float) -> Any:
        """Ask any broker, and keep its answer for those who ask the same soon after."""
        asked_s = asyncio.get_running_loop().time()
        answer = await self.routing("GetTopic", request, timeout_s)
        self._lately[question] = asked_s, answer
        return answer

    async def _ask_waiting(self, request: broker_pb2.GetTopicRequest, timeout_s: float) -> Any:
        """Ask the broker that answered last. The question does not count as one that is under way: it may take long."""
        self._channels.home.check_open()
        call = _Call(broker_pb2_grpc.RoutingStub, "GetTopic", request, timeout_s, is_slow=True)
        address = self._order(None, None)[0]
        try:
            return await self._ask(call, address, timeout_s + self._trips.way_s(address))
        except _NoAnswerError as exc:
            self._pass_over(address)
            raise UnavailableError(f"{address}: {exc.reason}") from exc

    async def ranges(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the ranges service; see `_call`."""
        from seriatim_api.v1 import ranges_pb2_grpc

        call = _Call(ranges_pb2_grpc.RangesStub, method, request, timeout_s, is_slow=True, waits_for_rebuild=True)
        return await self._call(call, None, None)

    async def dead_letters(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the dead letters service. It may be sent again, because it does the same only once.

        A broker appends up to 4 MiB for it, so it has all the time that is left. Without it: 1. A busy broker needs 1.5
        s. 2. All brokers are asked in turn, and each is given up after a second.
        """
        from seriatim_api.v1 import dead_letters_pb2_grpc

        call = _Call(dead_letters_pb2_grpc.DeadLettersStub, method, request, timeout_s, is_slow=True, reads=True)
        return await self._call(call, None, None)

    async def delayed(self, method: str, request: Any, timeout_s: float, first: str | None = None) -> Any:
        """A call of the service for delayed messages. It may be sent again, because each answer is final.

        Args:
            method: The name of the method.
            request: The request.
            timeout_s: Seconds until the deadline.
            first: The address of the broker to ask first.
        """
        from seriatim_api.v1 import delayed_pb2_grpc

        call = _Call(delayed_pb2_grpc.DelayedStub, method, request, timeout_s, is_slow=True, reads=True)
        return await self._call(call, first, None)

    async def owners(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the service for owners of names. A broker that does not elect answers that another one does."""
        from seriatim_api.v1 import owners_pb2_grpc

        once = method == "ReleaseOwner"
        call = _Call(owners_pb2_grpc.OwnersStub, method, request, timeout_s, is_slow=True, once=once, reads=not once)
        return await self._call(call, None, None)

    async def publications(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the publications service. One outside `READS` is not sent again if a broker may have taken it."""
        from seriatim_api.v1 import publications_pb2_grpc

        call = replace(
            _managing(publications_pb2_grpc.PublicationsStub, method, request, timeout_s),
            is_long=method == "Publish",
        )
        return await self._call(call, None, None)

    async def admin(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the admin service. One outside `READS` is not sent again if a broker may have taken it."""
        call = _managing(broker_pb2_grpc.AdminStub, method, request, timeout_s)
        # A program that begins makes its consumer group first. What else an administrator does is refused at once.
        return await self._call(replace(call, waits_for_rebuild=method == "CreateConsumerGroup"), None, None)

    async def balancing(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the balancing service; see `_call`. It is not sent again if a broker may have taken it."""
        from seriatim_api.v1 import operations_pb2_grpc

        call = _Call(operations_pb2_grpc.BalancingStub, method, request, timeout_s, is_slow=True, once=True)
        return await self._call(call, None, None)

    async def operations(self, method: str, request: Any, timeout_s: float) -> Any:
        """A call of the operations service. One outside `READS` is not sent again if a broker may have taken it."""
        from seriatim_api.v1 import operations_pb2_grpc

        return await self._call(_managing(operations_pb2_grpc.OperationsStub, method, request, timeout_s), None, None)

    async def _call(self, call: _Call, first: str | None, avoid: str | None) -> Any:
        """Ask brokers in turn until one answers.

        A call that changes something is not sent again if a broker may have taken it.

        Raises:
            SeriatimError: A broker refused the request itself (raised at once). Or brokers answered that they cannot
                answer now, until the deadline.
            UnavailableError: No broker answered before the deadline, or no address is that of a broker.
            DeadlineExceededError: A broker may have taken a call that must not be sent again, and did not answer.
        """
        self._channels.home.check_open()
        deadline = asyncio.get_running_loop().time() + call.timeout_s
        told: SeriatimError | None = None
        is_behind = False

        async def attempt(address: str) -> Any:
            nonlocal told
            try:
                answer = await self._ask_once(call, address, deadline)
            except _NoAnswerError as exc:
                told = exc.told or told
                self._pass_over(address)
                raise
            except DeadlineExceededError:  # the next question begins at another broker
                self._pass_over(address)
                raise
            self._good = address
            return answer

        async with self._long_room if call.is_long else self._room:
            while True:
                order = self._order(first, avoid)
                with suppress(_NoAnswerError):
                    attempts = (partial(attempt, address) for address in order)
                    return await first_answer(attempts, self._patience_s(call, order[0]), is_passing=_is_no_answer)
                if self._silence.is_foreign(order):
                    raise self._silence.error(order)
                pause_s = ROUND_PAUSE_S
                if isinstance(told, CoordinatorBehindError):
                    pause_s = REBUILD_PAUSE_S
                    if not is_behind:
                        _log.warning("%s; the client asks again for %.0f s", told.message, _left_s(deadline))
                    is_behind = True
                await asyncio.sleep(min(pause_s, max(0.0, _left_s(deadline))))
                if _left_s(deadline) <= 0:
                    raise told or self._silence.error(self._addresses)

    def _patience_s(self, call: _Call, address: str) -> float | None:
        """Seconds after which another broker is asked too; None: only after this one has failed."""
        return None if call.patience_s is None else call.patience_s + self._trips.round_trip_s(address)

    def _pass_over(self, address: str) -> None:
        """A broker gave no answer: ask it last from now on."""
        if self._good == address:
            self._good = None
        if address in self._addresses:
            del self._addresses[address]
            self._addresses[address] = None

    async def _ask_once(self, call: _Call, address: str, deadline: float) -> Any:
        """Ask one broker.

        Raises:
            _NoAnswerError: Another broker may answer.
            SeriatimError: Every other broker would answer the same, or no other may be asked.
        """
        left_s = _left_s(deadline)
        if left_s <= 0:
            raise _NoAnswerError("no time is left", may_be_taken=False)
        try:
            if not (call.once or call.reads):
                left_s = min(left_s, ATTEMPT_WAIT_S) + self._trips.way_s(address)
            return await self._ask(call, address, left_s)
        except _NoAnswerError as exc:
            if call.once and exc.may_be_taken:
                late = f"{address} did not answer {call.method} within {call.timeout_s:g} s"
                raise DeadlineExceededError(f"{late}; it may have been done") from exc
            raise
        except SeriatimError as exc:
            is_behind = call.waits_for_rebuild and isinstance(exc, CoordinatorBehindError)
            if not (is_behind or _another_may_answer(exc)) or (call.once and isinstance(exc, DeadlineExceededError)):
                raise
            raise _NoAnswerError(exc.message, may_be_taken=False, told=exc) from exc

    def _order(self, first: str | None, avoid: str | None) -> list[str]:
        """The order of brokers: `first`, the one that answered last, the others, and `avoid` at the end."""
        wanted = [address for address in (first, self._good) if address]
        order = list(dict.fromkeys([*wanted, *self._addresses]))
        if avoid in order:
            order.remove(avoid)
            order.append(avoid)
        return order

    async def _ask(self, call: _Call, address: str, timeout_s: float) -> Any:
        """Ask one broker, and wait for `timeout_s`. It may hold the question for less: by the way of its answer."""
        if not call.is_slow:
            self._silence.begins(self._addresses)
        method = getattr(call.stub(self._channels.get(address, "ask")), call.method)
        way_s = min(self._trips.way_s(address), timeout_s / 2)
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            answer = await method(call.request, timeout=timeout_s, metadata=(way_metadata(way_s),))
        except grpc.aio.AioRpcError as exc:
            raise self._failure(address, exc) from exc
        self._silence.ends(address)
        self._trips.answered(address)
        if not call.is_slow:
            self._trips.took(address, loop.time() - asked_s)
        return answer

    def _failure(self, address: str, exc: grpc.aio.AioRpcError) -> SeriatimError | _NoAnswerError:
        """Why a call failed: the error that the broker answered, or that it did not answer."""
        code, metadata = exc.code(), exc.trailing_metadata()
        reason, is_tls = self._channels.explain(exc.details())
        error = from_status(code, f"{address}: {reason}", metadata)
        is_said = any(key == METADATA_KEY for key, _ in metadata or ())
        if is_said or not isinstance(error, UnavailableError):
            self._silence.ends(address)
            self._trips.answered(address)
            return error
        is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
        if is_late:
            self._trips.late(address)
            reason = self._silence.note_late(address)
        else:
            self._silence.goes_on(address, reason, is_tls=is_tls)
        self._silence.begins(self._addresses)
        return _NoAnswerError(reason, may_be_taken=is_late)

    async def admin_stream(self, method: str, request: Any) -> AsyncIterator[Any]:
        """A stream of the admin service, from the first broker that answers.

        Raises:
            SeriatimError: The broker refused, no broker answered, or the stream broke. The items before stay valid.
        """
        told: SeriatimError | None = None
        stub: Callable[[Any], Any] = broker_pb2_grpc.AdminStub
        for address in self._order(None, None):
            call = getattr(stub(self._channels.get(address, "ask")), method)(request)
            begun = False
            try:
                async for answer in call:
                    if not begun:
                        self._silence.ends(address)
                    begun = True
                    yield answer
            except grpc.aio.AioRpcError as exc:
                error = self._failure(address, exc)
                if isinstance(error, SeriatimError):
                    told = error
                    if begun or not _another_may_answer(error):
                        raise error from exc
                elif begun:
                    raise UnavailableError(f"{address}: {error.reason}") from exc
            else:
                return
            finally:
                call.cancel()
        raise told or self._silence.error(self._addresses)


def _is_no_answer(error: BaseException) -> bool:
    return isinstance(error, _NoAnswerError)


def _left_s(deadline: float) -> float:
    return deadline - asyncio.get_running_loop().time()


def _another_may_answer(error: SeriatimError) -> bool:
    return isinstance(error, (UnavailableError, RoutingError)) and not isinstance(error, CoordinatorUnavailableError)
