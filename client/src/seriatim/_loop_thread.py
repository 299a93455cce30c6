"""What `seriatim.sync` stands on: an event loop in a thread, and methods that wait here for asynchronous ones.

`waits`, `gives`, `calls` and `iterates` make a method of a synchronous class from one of the asynchronous class. It has
the same name, arguments and documentation, for `help` and for type checkers.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from seriatim_api.errors import PreconditionError

from seriatim._runtime.home import check_process

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Loop:
    """An event loop in a thread. It runs until the process ends, or until `close`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="seriatim client", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop the loop, and wait for the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


IDLE_LOOPS_MAX: Final = 16
"""Maximum number of event loops of closed clients that are kept for the next ones. One has three file descriptors."""

_idle: list[_Loop] = []
_idle_lock = threading.Lock()


def _take_loop() -> _Loop:
    """An event loop that no client uses.

    A loop is used again and not closed. Without it: 1. A client is closed, and its loop with it. 2. gRPC has an event
    for that loop, such as the end of a watch on a channel to which an exception still refers. 3. The loop of another
    client passes the event on, and prints `RuntimeError: Event loop is closed`.
    """
    with _idle_lock:
        while _idle:
            found = _idle.pop()
            if found.pid == os.getpid() and found.thread.is_alive():  # else this process was forked
                return found
    return _Loop()


def _give_loop(loop: _Loop) -> None:
    with _idle_lock:
        if len(_idle) < IDLE_LOOPS_MAX:
            _idle.append(loop)
            return
    loop.close()


class LoopThread:
    """The event loop of one client, in a thread, until `close` is called."""

    def __init__(self) -> None:
        self._lent = _take_loop()
        self._is_closed = False
        self._closing = threading.Lock()

    def run(self, awaitable: Awaitable[T]) -> T:
        """Await something in the loop, and wait for it here. An exception here, such as an interrupt, cancels it.

        Raises:
            PreconditionError: The client was closed, or it is in the process from which this one was forked, or a
                callback of this client makes the call; nothing was run.
        """
        coroutine = awaitable if isinstance(awaitable, Coroutine) else _wait_for(awaitable)
        try:
            check_process(self._lent.pid)
            if threading.current_thread() is self._lent.thread:
                raise PreconditionError(
                    "a callback, such as on_gap, runs in the client's own thread and cannot call this client: let "
                    "another thread make the call"
                )
            with self._closing:
                if self._is_closed:
                    raise PreconditionError("the client is closed: connect another one")
                future = asyncio.run_coroutine_threadsafe(coroutine, self._lent.loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the loop's thread, and wait for it here."""

        async def there() -> T:
            return function(*args, **kwargs)

        return self.run(there())

    def run_within(self, timeout_s: float | None, awaitable: Awaitable[T]) -> T:
        """As `run`.

        Raises:
            TimeoutError: It took longer than `timeout_s` seconds. None: there is no limit.
        """

        async def wait() -> T:
            async with asyncio.timeout(timeout_s):
                return await awaitable

        return self.run(wait())

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iteration, one at a time. If the program leaves this one, that one ends, too."""

        async def next_one() -> tuple[T, ...]:
            async for item in items:
                return (item,)
            return ()

        while found := self.run(next_one()):
            try:
                yield found[0]
            except GeneratorExit:  # an interrupt in `run` has ended it already, and may not have come through yet
                if isinstance(items, AsyncGenerator):
                    with suppress(PreconditionError):  # closed or forked; or garbage is collected in the loop's thread
                        self.run(items.aclose())
                raise

    def is_here(self) -> bool:
        """Whether the client can be called, in this process."""
        return os.getpid() == self._lent.pid and not self._is_closed

    def close(self) -> None:
        """Take no more calls. If another thread still waits in a call, that call is cancelled."""
        check_process(self._lent.pid)
        with self._closing:
            self._is_closed = True
            ended = asyncio.run_coroutine_threadsafe(_cancel_all(), self._lent.loop)
        ended.result()
        _give_loop(self._lent)


async def _wait_for(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _cancel_all() -> None:
    """Cancel all other tasks of the loop. Otherwise a thread that waits for one of them would wait for ever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Held(Generic[A_co]):
    """Base of the synchronous classes: the asynchronous object, and the thread in which it lives."""

    def __init__(self, thread: LoopThread, inner: A_co) -> None:
        self._thread = thread
        self._inner = inner


def waits(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Held[A], P], T]:
    """A method that waits for an asynchronous one."""

    @wraps(method)
    def call(self: Held[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return call


def gives(
    kind: Callable[[LoopThread, T], S], method: Callable[Concatenate[A, P], Awaitable[T]]
) -> Callable[Concatenate[Held[A], P], S]:
    """A method that waits for an asynchronous one, and gives its result as the synchronous class `kind`."""

    @wraps(method)
    def call(self: Held[A], /, *args: P.args, **kwargs: P.kwargs) -> S:
        return kind(self._thread, self._thread.run(method(self._inner, *args, **kwargs)))

    return _returning(getattr(kind, "__name__"), call)  # noqa: B009 - a class is a Callable with a name


def calls(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Held[A], P], T]:
    """A method that calls a plain one in the loop's thread, and waits for it."""

    @wraps(method)
    def call(self: Held[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method, self._inner, *args, **kwargs)

    return call


def iterates(method: Callable[Concatenate[A, P], AsyncIterator[T]]) -> Callable[Concatenate[Held[A], P], Iterator[T]]:
    """A method that iterates over what an asynchronous one iterates over."""

    @wraps(method)
    def call(self: Held[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._thread.each(method(self._inner, *args, **kwargs))

    call.__name__ = call.__name__.replace("__aiter__", "__iter__")
    return _returning("Iterator", call)


def _returning(annotation: str, call: Callable[P, T]) -> Callable[P, T]:
    """Have `help` name what a method returns here, and not what the asynchronous one does."""
    setattr(call, "__signature__", inspect.signature(call).replace(return_annotation=annotation))  # noqa: B010
    return call


class _Closes(Protocol):
    @property
    def close(self) -> Callable[[], object]:
        """End it, and free what it holds."""


class Closed(Held[A_co]):
    """Base of the synchronous classes that `with` closes at the end of the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Closes, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
