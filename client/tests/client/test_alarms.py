"""One timer for many: each is woken once for the earliest time that it asked for."""

from __future__ import annotations

import asyncio
import time

from seriatim._runtime.alarms import Alarms

HOUR_S = 3600.0


async def rung(woken: list[str], count: int) -> None:
    async with asyncio.timeout(5):
        while len(woken) < count:  # noqa: ASYNC110 - what is waited for is what the loop does next
            await asyncio.sleep(0)


async def test_the_earliest_wish_counts_and_only_once() -> None:
    woken: list[str] = []
    failures: list[BaseException] = []
    alarms: Alarms[str] = Alarms(woken.append, failures.append)
    now = time.monotonic()
    alarms.set("never", now + HOUR_S)
    alarms.set("a", now + HOUR_S)
    alarms.set("b", now + 0.002)
    alarms.set("a", now + 0.001)
    alarms.set("a", now + 0.003)  # later than what it asked for: nothing
    alarms.set("a", now)
    await rung(woken, 2)
    assert woken == ["a", "b"]
    alarms.set("c", now + 0.004)  # after the wishes that others took the place of
    await rung(woken, 3)
    assert woken == ["a", "b", "c"]
    alarms.cancel()


async def test_who_is_woken_may_ask_again() -> None:
    woken: list[str] = []
    failures: list[BaseException] = []

    def wake(sleeper: str) -> None:
        woken.append(sleeper)
        if len(woken) < 5:
            alarms.set(sleeper, time.monotonic() + 0.0005)

    alarms: Alarms[str] = Alarms(wake, failures.append)
    alarms.set("a", time.monotonic())
    await rung(woken, 5)
    assert woken == ["a"] * 5


async def test_cancelled_alarms_wake_nobody() -> None:
    woken: list[str] = []
    failures: list[BaseException] = []
    alarms: Alarms[str] = Alarms(woken.append, failures.append)
    alarms.set("a", time.monotonic())
    alarms.cancel()
    alarms.set("b", time.monotonic())
    await rung(woken, 1)
    assert woken == ["b"]


async def test_who_raises_does_not_keep_the_others_from_being_woken() -> None:
    woken: list[str] = []
    failures: list[BaseException] = []

    def wake(sleeper: str) -> None:
        woken.append(sleeper)
        if sleeper == "bad":
            raise ZeroDivisionError

    alarms: Alarms[str] = Alarms(wake, failures.append)
    for sleeper in ("bad", "good"):
        alarms.set(sleeper, time.monotonic())
    await rung(woken, 2)
    alarms.set("later", time.monotonic() + 0.001)
    await rung(woken, 3)
    assert woken == ["bad", "good", "later"]
    assert [type(error) for error in failures] == [ZeroDivisionError]
