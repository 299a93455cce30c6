"""Calls of plain functions in the threads or processes of a pool.

A call waits for a free worker here, and not in the pool. So the consumer knows which functions have begun: only these
are attempts on their messages, and only these have a time limit. What waits can go back to the brokers as it came.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from seriatim._consuming.handlers import NOT_PLAIN, Failed, FailedElsewhereError, HandlerEndedError, call_in_pool
from seriatim._consuming.process_marks import ProcessMarks, call_marked

T = TypeVar("T")

_OTHER_INTERPRETERS: Final = getattr(concurrent.futures, "InterpreterPoolExecutor", None)  # from Python 3.14 on

LOOK_S: Final = 0.02
"""So often the consumer looks which functions have begun in other processes."""


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
        # A thread of this interpreter says when a function begins, and a process marks it. What is given to the free
        # worker of any other pool counts as begun.
        is_elsewhere = _OTHER_INTERPRETERS is not None and isinstance(pool, _OTHER_INTERPRETERS)
        self._tells = isinstance(pool, ThreadPoolExecutor) and not is_elsewhere
        self._marks: ProcessMarks | None = None
        if isinstance(pool, ProcessPoolExecutor) and self.worker_count and hasattr(os, "pread"):
            with suppress(OSError):  # there is no place for temporary files
                self._marks = ProcessMarks(self.worker_count)
        self._unbegun: dict[tuple[int, int], Callable[[], None]] = {}  # in processes, not marked when last looked
        self._look: asyncio.TimerHandle | None = None
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
            self._release(None)
            return False
        mark = self._marks.take() if self._marks is not None else None
        has_begun = False
        try:
            async with asyncio.timeout(None) as limit:

                def begun() -> None:
                    nonlocal has_begun
                    if outcome.done():
                        return  # it is over, or is not waited for any more
                    has_begun = True
                    self.begun_at = self._loop.time()
                    begin()
                    if self._timeout_s is not None:
                        limit.reschedule(self.begun_at + self._timeout_s)

                outcome = asyncio.wrap_future(self._submit(given, mark, begun))
                if mark is not None:
                    self._unbegun[mark] = begun
                    self._look_soon()
                elif not self._tells:
                    begun()
                failed = await outcome
                if not has_begun:  # it was over before the consumer looked
                    begin()
        except (BrokenExecutor, asyncio.CancelledError) as exc:
            # A process has died. Another call, which got its free worker, may hear of it first, and cancel this one.
            if not has_begun and mark is not None and self._marks is not None and self._marks.has_begun(mark):
                begin()
            if isinstance(exc, asyncio.CancelledError):
                raise
            raise HandlerEndedError(is_pool=True) from exc
        except TimeoutError as exc:
            if not limit.expired():
                raise
            reason = f"the handler took longer than {self._timeout_s:g} s"
            raise FailedElsewhereError(Failed(None, reason, False)) from exc
        finally:
            if mark is not None:
                self._unbegun.pop(mark, None)
        if failed == NOT_PLAIN:
            raise HandlerEndedError(is_pool=False)
        if failed is not None:
            raise FailedElsewhereError(Failed(*failed))
        return True

    def close(self) -> None:
        """No call is waited for any more. Functions that run continue."""
        if self._look is not None:
            self._look.cancel()
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    def _look_soon(self) -> None:
        if self._look is None and self._unbegun:
            self._look = self._loop.call_later(LOOK_S, self._look_now)

    def _look_now(self) -> None:
        """See which functions have begun in other processes."""
        self._look = None
        assert self._marks is not None
        for mark, begun in list(self._unbegun.items()):
            if self._marks.has_begun(mark):
                del self._unbegun[mark]
                begun()
        self._look_soon()

    def is_stuck(self, after_s: float) -> bool:
        """Whether calls wait for a worker, and no function has begun for this long."""
        return self.waiting > 0 and self._loop.time() - self.begun_at >= after_s

    def _submit(self, given: T, mark: tuple[int, int] | None, begun: Callable[[], None]) -> Future[Any]:
        try:
            if self._tells:
                future = self._pool.submit(call_in_thread, self._function, given, self._loop, begun)
            elif mark is not None and self._marks is not None:
                future = self._pool.submit(call_marked, self._function, given, self._marks.path, mark)
            else:
                future = self._pool.submit(call_in_pool, self._function, given)
        except BaseException as exc:
            self._release(mark)
            if isinstance(exc, RuntimeError):  # it is broken, or was shut down
                raise HandlerEndedError(is_pool=True) from exc
            raise
        future.add_done_callback(partial(self._worker_is_free, mark))
        return future

    def _worker_is_free(self, mark: tuple[int, int] | None, _future: Future[Any]) -> None:
        """A function has ended, also one that took too long. The pool calls this in any thread."""
        with suppress(RuntimeError):  # the program has closed the event loop, and nothing waits
            self._loop.call_soon_threadsafe(self._release, mark)

    def _release(self, mark: tuple[int, int] | None) -> None:
        if mark is not None and self._marks is not None:
            self._marks.give(mark)
        if self._free is not None:
            self._free.release()


def call_in_thread(
    function: Callable[[Any], object], given: Any, loop: asyncio.AbstractEventLoop, begun: Callable[[], None]
) -> tuple[float | None, str, bool] | str | None:
    """Call a function in a thread, and notify the event loop before that it begins."""
    try:
        loop.call_soon_threadsafe(begun)
    except RuntimeError:
        return None  # the event loop is closed: the consumer is gone, and has nothing for the function to do
    return call_in_pool(function, given)


@contextmanager
def threads(count: int, pool: Executor | None) -> Iterator[Executor]:
    """The pool, or this many threads until the end of the block. Functions that run then continue to their ends."""
    if pool is not None:
        yield pool
        return
    threads = ThreadPoolExecutor(count, "seriatim handler")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
