"""Whose answer comes first counts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from seriatim_api.network.hedging import first_answer

SOON_S = 0.001
Attempt = Callable[[], Coroutine[Any, Any, str]]


class Peers:
    """Attempts of each kind, and what became of them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.both_begun = asyncio.Event()

    def answers(self, name: str) -> Attempt:
        async def attempt() -> str:
            self.begun.append(name)
            return name

        return attempt

    def fails(self, name: str, error: Exception) -> Attempt:
        async def attempt() -> str:
            self.begun.append(name)
            raise error

        return attempt

    def is_silent(self, name: str) -> Attempt:
        async def attempt() -> str:
            self.begun.append(name)
            if len(self.begun) == 2:
                self.both_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(name)
            raise AssertionError

        return attempt


@pytest.fixture
def peers() -> Peers:
    return Peers()


def passing(error: BaseException) -> bool:
    return isinstance(error, ConnectionError)


async def ask(*attempts: Attempt, patience_s: float | None = SOON_S) -> str:
    async with asyncio.timeout(10):
        return await first_answer(attempts, patience_s, is_passing=passing)


async def test_one_that_answers_is_the_only_one_asked(peers: Peers) -> None:
    assert await ask(peers.answers("a"), peers.answers("b"), patience_s=None) == "a"
    assert peers.begun == ["a"]


async def test_a_silent_one_is_overtaken_and_cancelled(peers: Peers) -> None:
    assert await ask(peers.is_silent("a"), peers.is_silent("b"), peers.answers("c")) == "c"
    assert peers.begun == ["a", "b", "c"]
    assert sorted(peers.cancelled) == ["a", "b"]


async def test_after_a_failure_the_next_begins_without_waiting(peers: Peers) -> None:
    assert await ask(peers.fails("a", ConnectionError()), peers.answers("b"), patience_s=None) == "b"


async def test_who_has_begun_may_answer_after_all_others_have_failed(peers: Peers) -> None:
    late = asyncio.Event()

    async def answers_late() -> str:
        await late.wait()
        return "late"

    async def fails_last() -> str:
        late.set()
        raise ConnectionError

    assert await ask(answers_late, fails_last) == "late"


async def test_a_failure_at_the_moment_of_the_answer_is_not_reported_as_forgotten() -> None:
    forgotten: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(str(context["message"])))
    begun = asyncio.Event()

    async def answers() -> str:
        await begun.wait()
        return "answer"

    async def fails() -> str:
        begun.set()
        await asyncio.sleep(0)
        raise ConnectionError

    # Both end in one turn of the loop. Which of them is looked at first differs from time to time: they are in a set.
    assert {await ask(answers, fails) for _ in range(50)} == {"answer"}
    gc.collect()
    assert forgotten == []


async def test_what_another_cannot_answer_either_is_raised_at_once(peers: Peers) -> None:
    with pytest.raises(LookupError):
        await ask(peers.is_silent("a"), peers.fails("b", LookupError()), peers.answers("c"))
    assert peers.begun == ["a", "b"]
    assert peers.cancelled == ["a"]


async def test_the_last_failure_is_raised_when_all_have_failed(peers: Peers) -> None:
    with pytest.raises(ConnectionError, match="second"):
        await ask(peers.fails("a", ConnectionError("first")), peers.fails("b", ConnectionError("second")))


async def test_cancelling_cancels_all(peers: Peers) -> None:
    asked = asyncio.create_task(ask(peers.is_silent("a"), peers.is_silent("b")))
    await peers.both_begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert sorted(peers.cancelled) == ["a", "b"]
