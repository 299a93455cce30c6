"""Handlers: how a function of the application is called with a message, and what its failure says about the message.

A handler in another process gets the message pickled, and only a small tuple of plain values comes back. So what a
handler returns or raises does not need to be picklable, and this process unpickles nothing but its own types.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor, ProcessPoolExecutor
from types import CoroutineType
from typing import Any, Final, NamedTuple, TypeVar

from seriatim_api.errors import BadRequestError, PreconditionError

from seriatim._runtime.failure import described
from seriatim._values.records import Message

Handler = Callable[[Message], Awaitable[None]] | Callable[[Message], object]
"""A function that works on one message. It may be a coroutine function or a plain one."""

T = TypeVar("T")

REASON_BYTES_MAX: Final = 200

DELAY_S_MAX: Final = 40 * 86_400
"""The longest delay that a broker takes."""


NOT_PLAIN: Final = "not plain"
"""What `call_in_pool` returns if the result would have to be awaited or iterated: the function's work is not done."""


class Retry(Exception):  # noqa: N818 - not an error: the handler asks for another attempt
    """Raise it in a handler to choose when the message comes again.

    Args:
        delay_s: Seconds until then, up to 40 days; None: as the consumer group's policy says. The policy counts too if
            no broker could keep the delay.
        reason: What went wrong, for humans.
    """

    def __init__(self, delay_s: float | None = None, reason: str = "") -> None:
        super().__init__(delay_s, reason)
        self.delay_s = delay_s
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}"


class GiveUp(Exception):  # noqa: N818 - not an error of the handler's code
    """Raise it in a handler to say that no other attempt can succeed.

    Then the broker does with the message what the consumer group's policy says of exhausted messages.
    """


class Failed(NamedTuple):
    """What the failure of a handler says about its message.

    Attributes:
        delay_s: Seconds until the next attempt; None: as the policy says.
        reason: What went wrong, for humans.
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


class HandlerEndedError(BaseException):
    """No handler can be called any more. Says nothing about any message, so it is no `Exception` of a handler.

    Args:
        is_pool: The pool takes no more calls. Otherwise the handler is no plain function, and its work is not done.
    """

    def __init__(self, *, is_pool: bool) -> None:
        super().__init__(is_pool)
        self.is_pool = is_pool


def failed_by(error: BaseException) -> Failed:
    """What an exception of a handler says about its message. A mistake in the exception ends no consumer."""
    try:
        return _failed_by(error)
    except Exception:  # the handler's exception has a text, or attributes, that cannot be read
        return Failed(None, cut(described(error)), isinstance(error, GiveUp))


def _failed_by(error: BaseException) -> Failed:
    if isinstance(error, FailedElsewhereError):
        return error.failed
    if isinstance(error, Retry):
        reason = f"{error.reason}"
        try:
            check_delay(error.delay_s)
        except BadRequestError as exc:  # the policy has a delay
            return Failed(None, cut(f"{exc}: {reason}"), False)
        return Failed(error.delay_s, cut(reason or "the handler asked for another attempt"), False)
    if isinstance(error, asyncio.CancelledError):
        return Failed(None, "the handler was cancelled", False)
    return Failed(None, cut(described(error)), isinstance(error, GiveUp))


def check_delay(delay_s: object) -> None:
    """Refuse a delay that is no number, negative or too long.

    Raises:
        BadRequestError: It is.
    """
    if delay_s is None:
        return
    if not isinstance(delay_s, int | float) or isinstance(delay_s, bool) or not 0 <= delay_s <= DELAY_S_MAX:
        raise BadRequestError(f"a delay is between 0 and 40 days, in seconds, not {delay_s!r}")


def check_reason(reason: object) -> None:
    """Refuse a reason that is no text.

    Raises:
        BadRequestError: It is none.
    """
    if not isinstance(reason, str):
        raise BadRequestError(f"a reason is a text, not {reason!r}")


def cut(reason: str) -> str:
    """The beginning of a reason, in at most 200 bytes of UTF-8."""
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")


def call_in_pool(function: Callable[[Any], object], given: Any) -> tuple[float | None, str, bool] | str | None:
    """Call a function in a thread or process of a pool. Returns None, how it failed, or `NOT_PLAIN`."""
    try:
        result = function(given)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if isinstance(result, CoroutineType):
                result.close()
            return NOT_PLAIN
    except Exception as error:
        failed = failed_by(error)
        return failed.delay_s, failed.reason, failed.is_last
    return None


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Whether the handler is a coroutine function, or an object with an asynchronous `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )


def check_handler(handler: object, pool: Executor | None) -> None:
    """Refuse what cannot be called with messages, or not in this pool.

    Raises:
        BadRequestError: The text says what to do.
    """
    if not callable(handler):
        raise BadRequestError(f"the handler is a function, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise BadRequestError("the handler is a generator function, which does nothing when it is called: use no yield")
    if pool is None:
        return
    if is_coroutine_function(handler):
        raise BadRequestError("a pool calls plain functions, and the handler is a coroutine function")
    if not isinstance(pool, Executor):
        raise BadRequestError(f"the pool is an Executor of concurrent.futures, not {pool!r}")
    if isinstance(pool, ProcessPoolExecutor):
        _check_picklable(handler)


def limited(call: Callable[[T], Awaitable[object]], timeout_s: float | None) -> Callable[[T], Awaitable[object]]:
    """How a handler is called that may take this many seconds; None: as long as it likes."""
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


def _check_picklable(handler: Callable[..., object]) -> None:
    try:
        pickle.dumps(handler)
    except Exception as exc:
        raise BadRequestError(
            f"the handler cannot be sent to another process ({exc}): define it at the top of a module"
        ) from exc


def ended(error: HandlerEndedError) -> PreconditionError | BadRequestError:
    """What `run` raises when no handler can be called any more."""
    if error.is_pool:
        return PreconditionError(
            "the pool of the handlers has ended: one of its processes died, or it was shut down. The messages that "
            "were worked on come again. Call run again with a new pool to continue"
        )
    return BadRequestError(
        "the handler returned a coroutine or a generator, so its work was not done: its message comes again. Pass the "
        "coroutine function itself (async def), or a plain function that returns when the work is done"
    )
