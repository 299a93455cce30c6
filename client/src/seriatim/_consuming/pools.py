"""Calls of plain functions in the threads or processes of a pool.

A call waits for a free worker here, and not in the pool. So the consumer knows which functions have begun: only these
are attempts on their messages, and only these have a time limit. What waits can go back to the brokers as it came.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from types import CoroutineType
from typing import Any, Final, Generic, TypeVar

from seriatim._consuming.handlers import Failed, FailedElsewhereError, HandlerEndedError, failed_by

T = TypeVar("T")

_OTHER_INTERPRETERS: Final = getattr(concurrent.futures, "InterpreterPoolExecutor", None)  # from Python 3.14 on

NOT_PLAIN: Final = "not plain"
"""What `call_in_pool` returns if the result would have to be awaited or iterated: the function's work is not done."""


class PoolCalls(Generic[T]):
    """Calls one function in a pool.

    Args:
        function: A plain function.
        pool: Its workers.
        timeout_s: Seconds after which a function that runs counts as failed; None: none. It cannot be stopped, and
            keeps its worker.

    Attributes:
        waiting: How many calls wait for a worker.
        begun_at: When the last function began, in seconds of the event loop's clock.
    """

    def __init__(self, function: Callable[[T], object], pool: Executor, timeout_s: float | None) -> None:
        self._function = function
        self._pool = pool
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # No pool says how many workers it has, but those of the standard library have this attribute. Another pool may
        # have any number of workers: what waits in it counts as begun.
        self.worker_count: int | None = getattr(pool, "_max_workers", None)
        self._free = asyncio.Semaphore(self.worker_count) if self.worker_count else None
        # Only a thread of this interpreter can say when it begins. A process that is not busy begins at once.
        is_elsewhere = _OTHER_INTERPRETERS is not None and isinstance(pool, _OTHER_INTERPRETERS)
        self._tells = isinstance(pool, ThreadPoolExecutor) and not is_elsewhere
        self.waiting = 0
        self.begun_at = self._loop.time()

    async def call(self, given: T, counts: Callable[[], bool], begin: Callable[[], Any]) -> bool:
        """Wait for a worker, and call the function there.

        Args:
            given: Its argument.
            counts: Whether it should still be called. Asked when a worker is free.
            begin: Called when the function begins.

        Returns:
            Whether it was called.

        Raises:
            FailedElsewhereError: It failed, or took too long.
            HandlerEndedError: The pool has ended, or the function is no plain one.
        """
        if self._free is not None:
            self.waiting += 1
            try:
                await self._free.acquire()
            finally:
                self.waiting -= 1
        if not counts():
            self._release()
            return False
        try:
            async with asyncio.timeout(None) as limit:

                def begun() -> None:
                    if outcome.done():
                        return  # it is over, or is not waited for any more
                    self.begun_at = self._loop.time()
                    begin()
                    if self._timeout_s is not None:
                        limit.reschedule(self.begun_at + self._timeout_s)

                outcome = asyncio.wrap_future(self._submit(given, begun))
                if not self._tells:
                    begun()
                failed = await outcome
        except BrokenExecutor as exc:
            raise HandlerEndedError(is_pool=True) from exc
        except TimeoutError as exc:
            if not limit.expired():
                raise
            reason = f"the handler took longer than {self._timeout_s:g} s"
            raise FailedElsewhereError(Failed(None, reason, False)) from exc
        if failed == NOT_PLAIN:
            raise HandlerEndedError(is_pool=False)
        if failed is not None:
            raise FailedElsewhereError(Failed(*failed))
        return True

    def is_stuck(self, after_s: float) -> bool:
        """Whether calls wait for a worker, and no function has begun for so long."""
        return self.waiting > 0 and self._loop.time() - self.begun_at >= after_s

    def _submit(self, given: T, begun: Callable[[], None]) -> Future[Any]:
        try:
            if self._tells:
                future = self._pool.submit(call_in_thread, self._function, given, self._loop, begun)
            else:
                future = self._pool.submit(call_in_pool, self._function, given)
        except BaseException as exc:
            self._release()
            if isinstance(exc, RuntimeError):  # it is broken, or was shut down
                raise HandlerEndedError(is_pool=True) from exc
            raise
        future.add_done_callback(self._worker_is_free)
        return future

    def _worker_is_free(self, _future: Future[Any]) -> None:
        """A function has ended, also one that took too long. The pool calls this in any thread."""
        with suppress(RuntimeError):  # the program has closed the event loop, and nothing waits
            self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if self._free is not None:
            self._free.release()


def call_in_thread(
    function: Callable[[Any], object], given: Any, loop: asyncio.AbstractEventLoop, begun: Callable[[], None]
) -> tuple[float | None, str, bool] | str | None:
    """Call a function in a thread, and tell the event loop before that it begins."""
    try:
        loop.call_soon_threadsafe(begun)
    except RuntimeError:
        return None  # the event loop is closed: the consumer is gone, and has nothing for the function to do
    return call_in_pool(function, given)


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
