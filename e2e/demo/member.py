"""What the processes with consumers of all demos do in the same way: they join, say `ready`, work, and finish.

Such a process prints `ready` when the servers of all partitions know all its consumers, and `progress` several times a
second. After the line `finish` from its parent, it leaves the consumer group and prints `done`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from seriatim import Assignment, Client, Consumer, KeyedConsumer

from e2e.workers import Parent

SAY_S: Final = 0.25
JOIN_DEADLINE_S: Final = 60.0


class Member:
    """A process with consumers.

    Args:
        progress: The fields of `progress` and of `done`.
        on_line: Called with each line of the parent.
    """

    def __init__(
        self, progress: Callable[[], dict[str, object]], on_line: Callable[[dict[str, Any]], None] = lambda _line: None
    ) -> None:
        self._progress = progress
        self._on_line = on_line
        self._parent = Parent(self._told)
        self._joined: set[tuple[str, int]] = set()
        self._wanted = 0
        self._complete, self._finish = asyncio.Event(), asyncio.Event()

    def _told(self, line: dict[str, Any]) -> None:
        self._on_line(line)
        if line.get("finish"):
            self._finish.set()

    async def expect(self, client: Client, topic: str, consumer_count: int) -> None:
        """Expect that each consumer is known on each partition. Call it before there are consumers."""
        self._wanted = consumer_count * (await client.admin().describe_topic(topic)).topic.partition_count

    def assigned(self, name: str, now: Assignment) -> None:
        """Take an assignment of the consumer with that name."""
        (self._joined.add if now.active else self._joined.discard)((name, now.partition))
        if len(self._joined) == self._wanted:
            self._complete.set()

    async def work(
        self, consumers: Sequence[Consumer | KeyedConsumer], work: Sequence[Coroutine[Any, Any, None]]
    ) -> bool:
        """Work until the parent says `finish`, and close the consumers. Return False if the parent is gone.

        Raises:
            Exception: What the work raised.
        """
        endless = (*work, self._parent.listen(), self._report(), self._finish.wait())
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(one) for one in endless]
        try:
            async with asyncio.timeout(JOIN_DEADLINE_S):
                await self._complete.wait()
            self._parent.say("ready")
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await asyncio.gather(*(consumer.close() for consumer in consumers))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._finish.is_set()

    async def _report(self) -> None:
        while True:
            self._parent.say("progress", **self._progress())
            await asyncio.sleep(SAY_S)

    def done(self, **more: object) -> None:
        """Say that the process has finished."""
        self._parent.say("done", **self._progress(), **more)


def command_line(program: str, about: str | None) -> argparse.ArgumentParser:
    """The options that all these programs have, and the producer."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--bootstrap", required=True, help="host:port,...")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history", type=Path, required=True)
    return parser
