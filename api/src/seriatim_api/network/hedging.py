"""Asks several peers that could all answer: if the first one is silent, it asks another too. The first answer counts.

A peer that died without closing its connections never answers. A caller that asked only this peer would wait until its
deadline. (The idea is known as hedged requests: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


async def first_answer(
    attempts: Iterable[Callable[[], Coroutine[Any, Any, _Answer]]],
    patience_s: float | None,
    *,
    is_passing: Callable[[BaseException], bool],
) -> _Answer:
    """Begin attempts one after another until one returns an answer.

    Args:
        attempts: At least one. Each is taken from the iterable when it begins.
        patience_s: If no attempt answers for this many seconds, another one begins. The time doubles with each, so that
            slow peers are not all asked at once. None: another one begins only after a failure.
        is_passing: Whether another peer may still answer after this failure.

    Raises:
        BaseException: The first failure that is not passing, at once. Or the last failure, if all attempts have failed.

    At the end, or if the call is cancelled, the attempts that are under way are cancelled and awaited.
    """
    upcoming = iter(attempts)
    failure: BaseException | None = None
    asking: set[asyncio.Task[_Answer]] = set()
    try:
        while True:
            attempt = next(upcoming, None)
            if attempt is not None:
                asking.add(asyncio.create_task(attempt(), name="attempt"))
            elif not asking:
                assert failure is not None, "there is no broker to ask"
                raise failure
            timeout_s = None if attempt is None else patience_s
            done, asking = await asyncio.wait(asking, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done and patience_s is not None:
                patience_s *= 2
            failures = [(task, task.exception()) for task in done]  # read all, because asyncio reports unread ones
            for task, error in failures:
                if error is None:
                    return task.result()
            for _, failure in failures:
                assert failure is not None
                if not is_passing(failure):
                    raise failure
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
