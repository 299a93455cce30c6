"""A process with consumers of a group in which order is by key. Their handlers fail, and may end the process.

`python -m e2e.faults.traffic.keyed_worker [--namespace NAME]`. Its parent tells it what to do, line by line, as it does
with `e2e.faults.traffic.client`:

    begin → `joined 3`, crash: a handler ends the process soon, mend: no handler fails any more, end → `ended 3`

How a handler ends follows from the seed, the message and the attempt, so it does not matter which consumer has it. The
client library's own recorder writes the history.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from functools import partial
from typing import Any, Final, Literal

from seriatim import Assignment, Client, GiveUp, KeyedConsumer, Message, Retry

from e2e.faults.traffic.client import number_of, opened, recorded_client, serve
from e2e.workers import Parent

CONSUMERS: Final = 2
"""Consumers in a process."""

CONCURRENCY: Final = 8
IN_FLIGHT_MAX: Final = 64
SESSION_MS: Final = 2_000
CRASHED: Final = 70
"""The exit status of a process that a handler has ended."""

WORK_S: Final = (0.0, 0.004)
AGAIN_S: Final = (0.02, 0.2)
"""The delay that a handler asks for, in seconds."""

Fate = Literal["works", "asks again", "raises", "gives up", "fails always"]

CHANCES: Final[tuple[tuple[float, Fate], ...]] = (
    (0.02, "asks again"),
    (0.03, "raises"),
    (0.033, "gives up"),
    (0.038, "fails always"),
)
"""Below each share, a handler ends so. Above the last one it works."""


def fate_of(seed: str, number: int, attempt: int, *, is_mended: bool) -> Fate:
    """Return how a handler ends.

    Args:
        seed: The seed of the case.
        number: The number of the message.
        attempt: The number of the attempt, from 1. Only the first ones fail by chance.
        is_mended: Whether no attempt fails any more.
    """
    drawn = random.Random(f"{seed}/{number}").random()
    fate: Fate = next((fate for below, fate in CHANCES if drawn < below), "works")
    if is_mended or (attempt > 1 and fate not in ("fails always", "gives up")):
        return "works"
    return fate


class Working:
    """The consumers of one case."""

    def __init__(self, parent: Parent, begin: dict[str, Any]) -> None:
        self._parent = parent
        self._begin = begin
        self._case = begin["case"]
        self._is_mended = begin["mended"]
        self._crash_at = 0  # the handler ends the process when it is called for this time; 0: never
        self._dice = random.Random(begin["name"])
        self._count = 0
        self._joined: set[tuple[str, int]] = set()
        self._over = asyncio.Event()

    def told(self, command: dict[str, Any]) -> None:
        """Take a command for this case."""
        if command["do"] == "mend":
            self._is_mended, self._crash_at = True, 0
        elif command["do"] == "crash":
            self._crash_at = self._count + command["after"]
        elif command["do"] == "end":
            self._over.set()

    async def run(self) -> None:
        """Work until the parent says `end`."""
        begin = self._begin
        async with recorded_client(begin) as (client, _history):
            names = [f"{begin['name']}.{at}" for at in range(CONSUMERS)]
            consumers = [await opened(partial(self._open, client, name)) for name in names]
            tasks = [asyncio.create_task(one.run(self._handle, CONCURRENCY), name=one.name) for one in consumers]
            ending = asyncio.create_task(self._over.wait(), name="end")
            done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
            for one in consumers:
                await one.close()
            for task in (*tasks, ending):
                task.cancel()
            await asyncio.gather(*tasks, ending, return_exceptions=True)
            if ending not in done:
                for task in done:
                    task.result()
        self._parent.say(f"ended {self._case}")

    async def _open(self, client: Client, name: str) -> KeyedConsumer:
        begin = self._begin
        return await client.consumer(
            begin["topic"], begin["group"], mode="key_ordered", name=name, session_ms=SESSION_MS,
            in_flight_max=IN_FLIGHT_MAX, on_assignment=partial(self._assigned, name),
        )  # fmt: skip

    def _assigned(self, name: str, now: Assignment) -> None:
        """Say when the servers of all partitions know all consumers."""
        (self._joined.add if now.active else self._joined.discard)((name, now.partition))
        if len(self._joined) == CONSUMERS * self._begin["partitions"]:
            self._parent.say(f"joined {self._case}")

    async def _handle(self, message: Message) -> None:
        number = number_of(message.value)
        await asyncio.sleep(self._dice.uniform(*WORK_S))
        self._count += 1
        if self._crash_at and self._count >= self._crash_at:
            os._exit(CRASHED)
        fate = fate_of(self._begin["seed"], number, message.attempt, is_mended=self._is_mended)
        if fate == "asks again":
            raise Retry(self._dice.uniform(*AGAIN_S), "not yet")
        if fate == "gives up":
            raise GiveUp("no attempt can succeed")
        if fate != "works":
            raise ValueError("not valid")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.faults.traffic.keyed_worker", description=__doc__)
    parser.add_argument("--namespace", help="the network namespace to live in; default: where it was started")
    options = parser.parse_args()
    serve(Working, options.namespace)


if __name__ == "__main__":
    main()
