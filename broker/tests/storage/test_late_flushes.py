"""When the writer flushes: at once, or some milliseconds later if nothing waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from seriatim_broker.adapters.rocks.floor import PUT, Floor, WriteRefusedError
from seriatim_broker.adapters.rocks.settings import RocksSettings
from seriatim_broker.adapters.rocks.writer import Writer
from seriatim_broker.testing.virtual_time import in_virtual_time

SETTINGS = RocksSettings()
LATE_S = SETTINGS.flush_late_ms / 1000


class Parts:
    """A database, a flusher and a mark: flushes take 1 ms, and are written down."""

    def __init__(self) -> None:
        self.written = 0
        self.flushes: list[tuple[int, float]] = []  # ticket, and when it began
        self.refuses = 0
        self._work: Callable[[int, int], None] = lambda _ticket, _sequence: None

    def write(self, ops: list[Any]) -> int:
        """Take a group."""
        if self.refuses:
            self.refuses -= 1
            raise WriteRefusedError
        self.written += len(ops)
        return self.written

    def sequence(self) -> int:
        """The number of the newest write."""
        return self.written

    def flush_wal(self) -> None:
        """Flush."""

    def note(self, sequence: int) -> None:
        """Note it."""

    def start(self, work: Callable[[int, int], None]) -> None:
        """Set what a flush does."""
        self._work = work

    def put(self, ticket: int, sequence: int) -> None:
        """Have one flush done, in 1 ms."""
        loop = asyncio.get_running_loop()
        self.flushes.append((ticket, loop.time()))
        loop.call_later(0.001, self._work, ticket, sequence)

    async def close(self) -> None:
        """Nothing is under way."""

    def die(self, reason: str, error: BaseException | None) -> Any:
        """Fail the test."""
        raise AssertionError(reason) from error


class Bench:
    """A writer over these parts."""

    def __init__(self) -> None:
        self.parts = Parts()
        self.writer = Writer(cast(Floor, _Floor(self.parts, self.parts, self.parts, self.parts.die)), SETTINGS)

        self._flushed = asyncio.Event()
        self.writer.on_flushed = lambda _ticket: self._flushed.set()

    async def durable(self, ticket: int) -> None:
        """Wait until it is reported, without asking for it: `Writer.wait` asks."""
        async with asyncio.timeout(1):
            while self.writer.durable_ticket < ticket:
                self._flushed.clear()
                await self._flushed.wait()

    def submit(self, size_bytes: int = 100, *, may_wait: bool = True) -> int:
        """Submit one operation."""
        return self.writer.submit(
            lambda group: group.add((PUT, cast(Any, None), b"k", b"v"), size_bytes), may_wait=may_wait
        )


class _Floor:
    def __init__(self, database: Any, mark: Any, flusher: Any, die: Callable[..., Any]) -> None:
        self.database, self.mark, self.flusher, self.die = database, mark, flusher, die


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_batches_that_nothing_waits_for_are_written_at_once_and_flushed_together_10_ms_later() -> None:
    async def go() -> None:
        bench, began_s = Bench(), now_s()
        for count in range(1, 6):
            bench.submit()
            assert bench.parts.written == count
        await bench.durable(5)
        [(ticket, at_s)] = bench.parts.flushes
        assert ticket == 5
        assert LATE_S - 0.0005 <= at_s - began_s <= LATE_S + 0.0005
        assert bench.writer.queued_bytes == 0

    in_virtual_time(go())


def test_a_write_that_something_waits_for_takes_all_earlier_ones_with_it() -> None:
    async def go() -> None:
        bench, began_s = Bench(), now_s()
        bench.submit()
        bench.submit(may_wait=False)
        assert bench.parts.flushes == [(2, began_s)]
        bench.submit()  # during the flush
        await bench.durable(3)
        assert bench.parts.flushes[1][1] - began_s > LATE_S
        assert bench.writer.queued_bytes == 0

    in_virtual_time(go())


@pytest.mark.parametrize("may_wait", [(True, False), (False, True)])
def test_what_comes_during_a_flush_is_flushed_at_once_if_something_waits_for_a_part_of_it(
    may_wait: tuple[bool, bool],
) -> None:
    async def go() -> None:
        bench, began_s = Bench(), now_s()
        bench.submit(may_wait=False)
        for part in may_wait:
            bench.submit(may_wait=part)
        await bench.durable(3)
        assert [ticket for ticket, _ in bench.parts.flushes] == [1, 3]
        assert now_s() - began_s < LATE_S / 2

    in_virtual_time(go())


def test_a_waiter_that_came_during_a_flush_does_not_wait_for_the_time() -> None:
    async def go() -> None:
        bench, began_s = Bench(), now_s()
        bench.submit(may_wait=False)
        await bench.writer.wait(bench.submit())
        assert now_s() - began_s < LATE_S / 2

    in_virtual_time(go())


def test_many_bytes_are_flushed_before_the_time() -> None:
    async def go() -> None:
        bench, began_s = Bench(), now_s()
        for _ in range(3):
            bench.submit(SETTINGS.late_size_bytes_max // 2)
        await bench.durable(2)
        assert bench.parts.flushes[0] == (2, began_s)

    in_virtual_time(go())


def test_a_waiter_and_a_close_do_not_wait_for_the_time() -> None:
    async def go() -> None:
        bench, began_s = Bench(), now_s()
        await bench.writer.wait(bench.submit())
        assert now_s() - began_s < LATE_S / 2
        bench.submit()
        await bench.writer.close()
        assert now_s() - began_s < LATE_S / 2
        assert bench.writer.durable_ticket == 2

    in_virtual_time(go())


def test_groups_that_the_engine_refuses_for_the_moment_come_after_a_flush_that_began_meanwhile() -> None:
    async def go() -> None:
        bench = Bench()
        first = bench.submit()
        bench.parts.refuses = 1
        second = bench.submit()  # is tried again after 5 ms
        assert bench.parts.written == 1
        await bench.writer.wait(first)
        assert bench.writer.durable_ticket == first
        await bench.durable(second)
        assert bench.parts.written == 2
        assert bench.writer.queued_bytes == 0

    in_virtual_time(go())


def test_large_groups_that_wait_behind_a_flush_are_all_written() -> None:
    async def go() -> None:
        bench = Bench()
        bench.submit(may_wait=False)
        for _ in range(3):
            bench.submit(SETTINGS.group_size_bytes_max)
        await bench.durable(4)
        assert bench.writer.queued_bytes == 0

    in_virtual_time(go())


def test_a_late_flush_that_cannot_begin_ends_the_process() -> None:
    async def go() -> None:
        bench, died = Bench(), asyncio.get_running_loop().create_future()
        bench.submit()
        floor = cast(Any, bench.writer)._floor
        floor.flusher, floor.die = None, lambda reason, _error: died.set_result(reason)
        async with asyncio.timeout(1):
            assert await died == "a late flush could not begin"

    in_virtual_time(go())
