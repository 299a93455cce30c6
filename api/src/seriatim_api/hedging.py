"""Asking those who could all answer: another one while the first is silent; whose answer comes first counts.

A peer that has died without a word answers nothing, and closes nothing: whoever waits for it alone waits for a
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
    """Begin attempts one after another until one is answered.

    Args:
        attempts: At least one. Taken one at a time, each when it is to begin.
        patience_s: For how long all that have begun may be silent until another begins. It doubles each time, so that
            peers which are slow, and not dead, are not asked all at once. None: only a failure begins another.
        is_passing: Whether after this failure another may still answer.

    Raises:
        BaseException: What an attempt raised that is not passing, at once; the last one's, if all have failed.

    Attempts under way at the end, or when this is cancelled, are cancelled and awaited.
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
                assert failure is not None, "there is nobody to ask"
                raise failure
            timeout_s = None if attempt is None else patience_s
            done, asking = await asyncio.wait(asking, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done and patience_s is not None:
                patience_s *= 2
            failures = [(task, task.exception()) for task in done]  # all are read, or asyncio reports the others
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
