"""Virtual time leaves the event loop of its caller as it was."""

from __future__ import annotations

import asyncio
from asyncio import events

from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop, VirtualTime


def test_a_process_that_is_killed_after_a_run_leaves_no_loop_running() -> None:
    time = VirtualTime()
    first, second = (ProcessLoop(time, ProcessClock(time, 0, 0), name) for name in ("first", "second"))
    ran: list[str] = []

    async def wait(loop: ProcessLoop) -> None:
        ran.append(loop.name)
        await asyncio.Event().wait()

    for loop in (first, second):
        loop.create_task(wait(loop))
    assert time.run_until(1, 100)
    first.kill()
    second.kill()
    assert ran == ["first", "second"]
    assert events._get_running_loop() is None


async def test_a_run_inside_of_a_loop_gives_it_back() -> None:
    time = VirtualTime()
    process = ProcessLoop(time, ProcessClock(time, 0, 0), "process")
    process.call_soon(lambda: None)
    assert time.run_until(1, 100)
    assert asyncio.get_running_loop() is not process
