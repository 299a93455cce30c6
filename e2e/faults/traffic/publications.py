"""Publications beside the load of a case (PUBLISH=1): a program publishes while the fault lasts, and is also killed.

At the end the topic must have the rows of all publications: each row once, and in order in each partition.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from seriatim import Client, TopicSettings, partition_of_key

from e2e.faults.traffic.load import BEGIN_DEADLINE_S, DRAIN_DEADLINE_S
from e2e.faults.traffic.publisher import WRITER, rows_of
from e2e.workers import Worker, start_worker

PARTITIONS: Final = 4
LOOK_S: Final = 0.2
KILLED_AFTER_S: Final = (1.0, 5.0)
"""The program is killed after this many seconds, and started again. The last run lives to its end."""


class Publishing:
    """The program of one case, and its judgement. The caller must `end` it.

    Args:
        bootstrap: The addresses of the cluster.
        case: The number of the case.
        dice: Dice of its own, because the number of kills depends on the time that things take.
        directory: The directory for the program's log.
    """

    def __init__(self, bootstrap: Sequence[str], case: int, dice: random.Random, directory: Path) -> None:
        self.topic = f"case-{case}-published"
        self.kill_count = 0
        self.lost_count = 0
        self.last = 0  # at the end, the number of the last publication that is done
        self._bootstrap = list(bootstrap)
        self.seed = dice.randrange(1 << 30)
        self._dice = dice
        self._log = directory / "publisher.log"
        self._stack = AsyncExitStack()
        self._worker: Worker | None = None
        self._killing: asyncio.Task[None] | None = None
        self._failure = ""
        self._is_over = asyncio.Event()

    async def end(self) -> None:
        """End the program, and the task that kills it."""
        await self._live()
        await self._stack.aclose()

    async def begin(self) -> None:
        """Make the topic, and start the program.

        Raises:
            SeriatimError, WorkerError: The topic could not be made, or the program did not begin.
        """
        async with Client.connect(self._bootstrap, name="suite") as client:
            await client.admin().create_topic(self.topic, PARTITIONS, TopicSettings(flush=True))
        await self._start()
        assert self._worker is not None  # made just before
        await self._worker.wait_for("published", BEGIN_DEADLINE_S)
        self._killing = asyncio.create_task(self._kill(), name="kills of the program that publishes")

    async def finish(self) -> list[str]:
        """Let the program end, and judge its publications. Return what is wrong.

        Raises:
            SeriatimError, WorkerError, TimeoutError: The program is stuck, or its topic cannot be read.
        """
        await self._live()
        if self._worker is None:
            return []  # `begin` failed and said so
        if self._failure:
            return [f"the program that publishes has ended: {self._failure}"]
        self._worker.tell(do="stop")
        stopped = await self._worker.wait_for("stopped", DRAIN_DEADLINE_S)
        self.last = stopped["sequence"]
        async with asyncio.timeout(DRAIN_DEADLINE_S), Client.connect(self._bootstrap, name="suite") as client:
            # A run may have decided the last publication before it was killed. Then the cluster finishes it.
            while True:
                known = await client.admin().describe_writer(self.topic, WRITER)
                if known.state != "DECIDED":
                    break
                await asyncio.sleep(LOOK_S)
            if (known.state, known.sequence) != ("DONE", self.last):
                return [f"the writer says {known.state} {known.sequence}, and {self.last} was published"]
            wrong = [await self._judge(client, partition) for partition in range(PARTITIONS)]
        return [text for text in wrong if text]

    async def _judge(self, client: Client, partition: int) -> str:
        """Say what is wrong with a partition; empty if nothing is."""
        async with client.read_range(self.topic, partition) as reader:
            found = [message.value async for message in reader]
        wanted = [
            value
            for sequence in range(1, self.last + 1)
            for value, key in zip(*rows_of(self.seed, sequence), strict=True)
            if partition_of_key(key, PARTITIONS) == partition
        ]
        if found == wanted:
            return ""
        if self.lost_count and _is_part_of(found, wanted):  # the program was notified of the loss
            return ""
        at = next((i for i, both in enumerate(zip(found, wanted, strict=False)) if both[0] != both[1]), min(
            len(found), len(wanted)))  # fmt: skip
        return (
            f"published rows of partition {partition} differ from row {at} on: {len(found)} instead of {len(wanted)}, "
            f"{found[at : at + 1]!r} instead of {wanted[at : at + 1]!r}"
        )

    # ---- the program ----

    async def _start(self) -> None:
        arguments = [part for address in self._bootstrap for part in ("--bootstrap", address)]
        arguments += ["--topic", self.topic, "--seed", str(self.seed)]
        self._worker = await self._stack.enter_async_context(
            start_worker("publisher", "e2e.faults.traffic.publisher", arguments, log=self._log, on_line=self._take)
        )

    def _take(self, line: dict[str, Any]) -> None:
        if line["k"] == "published" and line["lost"] != "0":
            self.lost_count += 1
        elif line["k"] == "failed":
            self._failure = line["error"]

    async def _kill(self) -> None:
        """Kill the program at random times, and start it again."""
        while True:
            try:
                async with asyncio.timeout(self._dice.uniform(*KILLED_AFTER_S)):
                    await self._is_over.wait()
                return
            except TimeoutError:
                pass
            assert self._worker is not None
            if self._failure:
                return
            os.kill(self._worker.pid, signal.SIGKILL)
            self.kill_count += 1
            await self._start()

    async def _live(self) -> None:
        """Stop the kills, and wait until the last one is over. Then a run lives."""
        self._is_over.set()
        killing, self._killing = self._killing, None
        if killing is not None:
            await asyncio.gather(killing, return_exceptions=True)


def _is_part_of(found: Sequence[bytes], wanted: Sequence[bytes]) -> bool:
    """Whether `found` is `wanted` with some values left out."""
    rest = iter(wanted)
    return all(value in rest for value in found)
