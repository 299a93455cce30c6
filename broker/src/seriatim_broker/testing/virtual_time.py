# ruff: noqa: SLF001 - asyncio has no public way to set the running loop, or to make a task be forgotten
"""Virtual time for many simulated processes in one real one: a queue of timers, and an event loop for each process.

When nothing is ready, time jumps to the next timer, so that an idle hour costs nothing. Callbacks that are due at the
same moment run in the order in which they were asked for. So the same calls give the same run, in each process and
under each hash seed.

Each simulated process has its own `ProcessLoop` over the common `VirtualTime`. So it can be frozen (its callbacks wait)
or killed (they never run), and its clock may be faster or slower than the others'.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, Protocol

BURIAL_CALLBACKS_MAX = 10_000
"""Limit for the callbacks that a killed process runs to end its tasks. More mean that a task cannot be cancelled."""


BURIAL_ROUNDS_MAX = 20


class Timers(Protocol):
    """The time that the fakes use: virtual, or (in the contract tests) the time of a real event loop."""

    @property
    def now_us(self) -> int:
        """Microseconds since the beginning."""

    def after(self, delay_us: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call later. Calls that are due at the same moment run in the order of the calls of `after`."""


class LoopTimers:
    """`Timers` over a real event loop, so that the contract tests can check a fake outside of virtual time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def now_us(self) -> int:
        """The loop's time."""
        return int(self._loop.time() * 1e6)

    def after(self, delay_us: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call later, and never at once."""
        self._loop.call_later(delay_us / 1e6, call, *arguments)


class Handle:
    """A callback that waits for its turn. It has the methods that asyncio needs of a handle."""

    __slots__ = ("arguments", "call", "context", "due_s", "is_cancelled", "loop")

    def __init__(
        self,
        loop: ProcessLoop | None,
        call: Callable[..., object],
        arguments: tuple[Any, ...],
        context: Context | None = None,
        due_s: float = 0.0,
    ) -> None:
        self.loop = loop
        self.call = call
        self.arguments = arguments
        self.context = context
        self.due_s = due_s
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not make the call any more."""
        self.is_cancelled = True
        self.arguments = ()

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.is_cancelled

    def when(self) -> float:
        """The time of the loop at which the call is due."""
        return self.due_s


class VirtualTime:
    """The callbacks that are ready, and the timers that are due later.

    Attributes:
        now_us: Microseconds since the beginning.
        call_count: Callbacks that were run.
        failure: The error that stops the run.
        ready: Callbacks that are ready.
        current: The loop of the process that is running; None outside of any process.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.call_count = 0
        self.failure: BaseException | None = None
        self.ready: deque[Handle] = deque()
        self.current: ProcessLoop | None = None
        self._timers: list[tuple[int, int, Handle]] = []
        self._serial = 0

    def enter(self, loop: ProcessLoop | None) -> None:
        """Let this process run from now on. None: callbacks that belong to no process."""
        if loop is not self.current:
            self.current = loop
            events._set_running_loop(loop)

    def after(self, delay_us: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call later, outside of any process."""
        self.add(self.now_us + delay_us, Handle(None, call, arguments))

    def add(self, when_us: int, handle: Handle) -> None:
        """Add a timer."""
        assert when_us >= self.now_us, "that time has passed"
        self._serial += 1
        heapq.heappush(self._timers, (when_us, self._serial, handle))

    def fail(self, failure: BaseException) -> None:
        """Stop the run: `run_until` raises this error after the present callback. Later errors do not count."""
        if self.failure is None:
            self.failure = failure

    def run_until(self, until_us: int, call_count_max: int) -> bool:
        """Run all callbacks up to and including a time.

        Returns:
            False if there were more than `call_count_max` callbacks.

        Raises:
            BaseException: The error that `fail` was given, or that a callback outside of any process raised.
        """
        ready, timers = self.ready, self._timers
        outer = events._get_running_loop()
        events._set_running_loop(None)
        self.current = None
        try:
            while self.call_count < call_count_max:
                while ready:
                    self._run(ready.popleft())
                    if self.failure is not None:
                        raise self.failure
                if not timers or timers[0][0] > until_us:
                    self.now_us = until_us
                    return True
                self.now_us = timers[0][0]
                while timers and timers[0][0] == self.now_us:
                    handle = heapq.heappop(timers)[2]
                    if not handle.is_cancelled:
                        ready.append(handle)
            return False
        finally:
            self.current = None  # `kill` may be called later, and must not enter a loop that ran here
            events._set_running_loop(outer)

    def _run(self, handle: Handle) -> None:
        if handle.is_cancelled:
            return
        self.call_count += 1
        loop = handle.loop
        if loop is None:
            if self.current is not None:
                self.enter(None)
            handle.call(*handle.arguments)
            return
        if loop.is_dead:
            return
        if loop.waiting is not None:
            loop.waiting.append(handle)
            return
        loop.run_handle(handle)


class ProcessClock:
    """The `interfaces.clock.Clock` of one simulated process.

    Args:
        time: The virtual time.
        monotonic_us: The monotonic clock at virtual time 0.
        wall_ms: The wall clock at virtual time 0.
        drift_ppm: Microseconds that the monotonic clock gains in a second; negative if it loses.
        chance: Draws the duration of steps while `stalls_us_max` is not 0.

    Attributes:
        stalls_us_max: If it is not 0, at most this many microseconds pass between two readings of the clock in the same
            callback. After that callback the process does nothing until this time has come.
        ahead_us: The microseconds that have passed in this way in the present callback.
    """

    def __init__(
        self, time: VirtualTime, monotonic_us: int, wall_ms: int, drift_ppm: int = 0, chance: Random | None = None
    ) -> None:
        self.stalls_us_max = 0
        self.ahead_us = 0
        self._chance = chance
        self._time = time
        self._monotonic_us = monotonic_us
        self._wall_ms = wall_ms
        self._drift_ppm = drift_ppm

    def at(self, virtual_us: int) -> int:
        """The monotonic clock at a virtual time."""
        return self._monotonic_us + virtual_us + virtual_us * self._drift_ppm // 1_000_000

    def monotonic_us(self) -> int:
        """See `Clock`."""
        if self.stalls_us_max and self._chance is not None:
            self.ahead_us += self._chance.randint(0, self.stalls_us_max)
        return self.at(self._time.now_us + self.ahead_us)

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._wall_ms + self._time.now_us // 1000

    def jump(self, wall_ms: int) -> None:
        """Set the wall clock forward, or back if `wall_ms` is negative."""
        self._wall_ms += wall_ms

    def virtual_us(self, duration_s: float) -> int:
        """The virtual time that a duration of this clock takes. It is rounded up, so that no timer fires early."""
        return max(0, math.ceil(duration_s * 1e6 * 1_000_000 / (1_000_000 + self._drift_ppm)))


class ProcessTask(asyncio.Task[Any]):
    """A task with a number, so that sets of tasks are iterated in the same order in each run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: ProcessLoop, **options: Any) -> None:
        self.serial = loop.next_serial()
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.serial


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process. `VirtualTime` runs all of these loops.

    It uses nothing of the base class: it has no selector, no threads and no sockets.

    Attributes:
        waiting: While the process is frozen, the callbacks that wait; None otherwise.
        is_dead: Whether the process was killed.
        work_us: Draws the duration of work in an executor, in microseconds; None: such work is not allowed.
    """

    def __init__(self, time: VirtualTime, clock: ProcessClock, name: str) -> None:
        # The base class is not initialized, because it would make a selector and sockets.
        self._time = time
        self._clock = clock
        self._queue = time.ready
        self._serial = 0
        self._buried: list[Any] = []
        self._is_frozen = False
        self.name = name
        self.waiting: list[Handle] | None = None
        self.is_dead = False
        self.work_us: Callable[[], int] | None = None

    def __del__(self) -> None:
        """Do nothing: the base class would warn about a loop that was not closed."""

    def next_serial(self) -> int:
        """The next number for a task."""
        self._serial += 1
        return self._serial

    # ---- what asyncio asks for ----------------------------------------------------------------------

    def time(self) -> float:
        """The monotonic clock of this process, in seconds."""
        return self._clock.monotonic_us() / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Call in this turn."""
        handle = Handle(self, callback, args, context)
        self._queue.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Call when `delay` seconds have passed on the clock of this process."""
        handle = Handle(self, callback, args, context, self.time() + delay)
        if not self.is_dead:
            self._time.add(self._time.now_us + self._clock.virtual_us(delay), handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Call at a time of this process's clock."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        """A task of this process."""
        return ProcessTask(coro, self, name=name, context=context)

    def get_debug(self) -> bool:
        """Always false."""
        return False

    def is_running(self) -> bool:
        """Always true, because only callbacks of this loop use it."""
        return True

    def is_closed(self) -> bool:
        """Always false."""
        return False

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Call in this turn: there is only one thread."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run work outside of the process, at a time that `work_us` draws. A thread would make runs random."""
        assert self.work_us is not None, f"no threads in virtual time: {func}"
        future = self.create_future()
        self._time.after(self.work_us(), self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[Any], func: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self.is_dead:
            return
        try:
            result = func(*arguments)
        except Exception as error:
            self.call_soon(_give, future, None, error)
        else:
            self.call_soon(_give, future, result, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Stop the run at an error that no code caught."""
        error = context.get("exception")
        if self.is_dead or error is None or "never retrieved" in str(context.get("message", "")):
            return
        self._time.fail(error)

    # ---- what happens to processes ------------------------------------------------------------------

    def run_handle(self, handle: Handle) -> None:
        """Run one callback as this process."""
        if self._time.current is not self:
            self._time.enter(self)
        try:
            if handle.context is None:
                handle.call(*handle.arguments)
            else:
                handle.context.run(handle.call, *handle.arguments)
        except Exception as error:
            self.call_exception_handler({"exception": error, "message": "a callback failed"})
        if self._clock.ahead_us:
            self._rest()

    def _rest(self) -> None:
        """Let the process do nothing until the time that the last callback took has passed."""
        after_us, self._clock.ahead_us = self._clock.ahead_us, 0
        if self.waiting is None and not self.is_dead:
            self.waiting = []
            self._time.after(after_us, self._rested)

    def _rested(self) -> None:
        if not self._is_frozen and not self.is_dead:
            self._go_on()

    def _go_on(self) -> None:
        waiting, self.waiting = self.waiting, None
        self._time.ready.extend(waiting or ())

    def freeze(self) -> None:
        """Freeze the process: none of its callbacks runs until `thaw`."""
        self._is_frozen = True
        if self.waiting is None:
            self.waiting = []

    def thaw(self) -> None:
        """Let a frozen process continue. Callbacks that came in the meantime run in order."""
        self._is_frozen = False
        self._go_on()

    def kill(self) -> None:
        """Kill the process. Its tasks are ended at once, and nothing that they still do has an effect.

        Without this, the garbage collector would end them, and their `finally` blocks would run at any time.
        """
        assert not self.is_dead
        self.is_dead = True
        held, self.waiting = self.waiting or [], None
        ready = list(self._time.ready)
        self._time.ready.clear()  # not replaced by a new object, because the loops have references to it
        self._time.ready.extend(handle for handle in ready if handle.loop is not self)
        self._queue = deque([*held, *(handle for handle in ready if handle.loop is self)])
        before = self._time.current
        for _ in range(BURIAL_ROUNDS_MAX):  # a task that ends may start another one
            tasks = sorted(asyncio.all_tasks(self), key=hash)
            if not tasks:
                break
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.cancel()
            self._bury()
        self._buried = sorted(asyncio.all_tasks(self), key=hash)
        self._time.enter(before)

    def _bury(self) -> None:
        for _ in range(BURIAL_CALLBACKS_MAX):
            if not self._queue:
                return
            handle = self._queue.popleft()
            if not handle.is_cancelled:
                self.run_handle(handle)


def _give(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def in_virtual_time(live: Coroutine[Any, Any, None]) -> None:
    """Run it in a process of its own, and jump to the next timer when nothing is ready.

    Raises:
        Exception: What the coroutine raised.
    """
    time = VirtualTime()
    process = ProcessLoop(time, ProcessClock(time, 5_000_000, 0), "a")
    task = process.create_task(live)
    while not task.done():
        assert time.run_until(time.now_us + 1_000_000, 100_000), "it turns in circles"
    task.result()
    process.kill()
