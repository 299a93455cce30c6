"""Handlers: how a function of the application is called with a message, and what its failure says about the message.

A handler in another process gets the message pickled, and only a small tuple of plain values comes back. So what a
handler returns or raises does not need to be picklable, and this process unpickles nothing but its own types.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from types import CoroutineType
from typing import Any, Final, NamedTuple, TypeVar

from seriatim_api.errors import BadRequestError, PreconditionError

from seriatim._records import Message

Handler = Callable[[Message], Awaitable[None]] | Callable[[Message], object]
"""A function that works on one message. It may be a coroutine function or a plain one."""

T = TypeVar("T")

REASON_BYTES_MAX: Final = 200

DELAY_S_MAX: Final = 40 * 86_400
"""The longest delay that a broker takes."""


class Retry(Exception):  # noqa: N818 - not an error: the handler asks for another attempt
    """Raise it in a handler to choose when the message comes again.

    Args:
        delay_s: Seconds until then, up to 40 days; None: as the consumer group's policy says. The policy counts too if
            no broker could keep the delay.
        reason: What went wrong, for people.
    """

    def __init__(self, delay_s: float | None = None, reason: str = "") -> None:
        super().__init__(delay_s, reason)
        self.delay_s = delay_s
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class GiveUp(Exception):  # noqa: N818 - not an error of the handler's code
    """Raise it in a handler to say that no other attempt can succeed.

    Then the broker does with the message what the consumer group's policy says of exhausted messages.
    """


class Failed(NamedTuple):
    """What the failure of a handler says about its message.

    Attributes:
        delay_s: Seconds until the next attempt; None: as the policy says.
        reason: What went wrong, for people.
        is_last: No other attempt can succeed.
    """

    delay_s: float | None
    reason: str
    is_last: bool


class FailedElsewhereError(Exception):
    """A handler failed in the pool."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed


class PoolEndedError(BaseException):
    """The pool takes no more calls. Says nothing about any message, so it is no `Exception` of a handler."""


def failed_by(error: BaseException) -> Failed:
    """What an exception of a handler says about its message."""
    if isinstance(error, FailedElsewhereError):
        return error.failed
    if isinstance(error, Retry):
        try:
            check_delay(error.delay_s)
        except BadRequestError as exc:  # a handler's mistake ends no consumer: the policy has a delay
            return Failed(None, cut(f"{exc}: {error.reason}"), False)
        return Failed(error.delay_s, cut(error.reason or "the handler asked for another attempt"), False)
    if isinstance(error, asyncio.CancelledError):
        return Failed(None, "the handler was cancelled", False)
    return Failed(None, cut(f"{type(error).__name__}: {error}"), isinstance(error, GiveUp))


def check_delay(delay_s: float | None) -> None:
    """Refuse a delay that is negative or too long.

    Raises:
        BadRequestError: It is.
    """
    if delay_s is not None and not 0 <= delay_s <= DELAY_S_MAX:
        raise BadRequestError(f"a delay is between 0 and 40 days, not {delay_s} s")


def cut(reason: str) -> str:
    """The beginning of a reason, in at most 200 bytes of UTF-8."""
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")


def call_in_pool(handler: Callable[[Message], object], message: Message) -> tuple[float | None, str, bool] | None:
    """Call a handler in a thread or process of a pool. Returns None, or how it failed."""
    try:
        handler(message)
    except Exception as error:
        failed = failed_by(error)
        return failed.delay_s, failed.reason, failed.is_last
    return None


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Whether the handler is a coroutine function, or an object with an asynchronous `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


def caller_of(
    handler: Handler, timeout_s: float | None, pool: Executor | None
) -> Callable[[Message], Awaitable[object]]:
    """How the handler is called with a message.

    Args:
        handler: A coroutine function, or a plain function.
        timeout_s: Seconds after which the call fails; None: none.
        pool: Where a plain function runs.

    Raises:
        BadRequestError: A coroutine function and a pool, or a function that cannot be sent to another process.
    """
    call: Callable[[Message], Any] = handler
    if is_coroutine_function(handler):
        if pool is not None:
            raise BadRequestError("a pool calls plain functions, and the handler is a coroutine function")
    else:
        if isinstance(pool, ProcessPoolExecutor):
            _check_picklable(handler)

        async def call_there(message: Message) -> None:
            loop = asyncio.get_running_loop()
            try:
                failed = await _submitted(loop, pool, handler, message)
            except BrokenExecutor as exc:
                raise PoolEndedError from exc
            if failed is not None:
                raise FailedElsewhereError(Failed(*failed))

        call = call_there
    return limited(call, timeout_s)


def limited(call: Callable[[T], Awaitable[object]], timeout_s: float | None) -> Callable[[T], Awaitable[object]]:
    """How a handler is called that may take so many seconds; None: as long as it likes."""
    if timeout_s is None:
        return call

    async def within(given: T) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await call(given)
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise FailedElsewhereError(Failed(None, f"the handler took longer than {timeout_s:g} s", False)) from exc

    return within


def first_step(result: Awaitable[object]) -> Awaitable[object] | None:
    """Begin to run a handler. Returns what is left of it to be awaited; None if it ended without a wait.

    Most handlers of fast programs end at once, and then no broker has to be told that they began. What the handler
    raises goes to the caller.
    """
    if type(result) is not CoroutineType:
        return result
    try:
        waits_for = result.send(None)
    except StopIteration:
        return None
    return Rest(result, waits_for)


async def raised(error: BaseException) -> None:
    """What is left of a handler that raised at once: it raises that."""
    raise error


class Rest:
    """A coroutine that was begun, and what it waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, object]:
        coroutine, waits_for = self._coroutine, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as exc:
                    waits_for = coroutine.throw(exc)
                else:
                    waits_for = coroutine.send(sent)
        except StopIteration as end:
            return end.value


def _submitted(loop: asyncio.AbstractEventLoop, pool: Executor | None, handler: Any, message: Message) -> Any:
    try:
        return loop.run_in_executor(pool, call_in_pool, handler, message)
    except RuntimeError as exc:  # it is broken, or was shut down
        raise PoolEndedError from exc


def _check_picklable(handler: Handler) -> None:
    try:
        pickle.dumps(handler)
    except Exception as exc:
        raise BadRequestError(
            f"the handler cannot be sent to another process ({exc}): define it at the top of a module"
        ) from exc


def pool_ended() -> PreconditionError:
    """What `run` raises when the pool takes no more calls."""
    return PreconditionError(
        "the pool of the handlers has ended: one of its processes died, or it was shut down. The messages that were "
        "worked on come again. Call run again with a new pool to go on"
    )
