"""Runs a replay and kills its processes again and again: its driver, the Python workers of its tasks, and brokers.

The driver is a process of its own, as with `spark-submit`. It is started again until it ends with status 0.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from seriatim import Client
from seriatim_api.errors import SeriatimError
from seriatim_local import LocalCluster

from e2e.demo.report import DemoFault
from e2e.spark_faults.processes import workers_of

DEADLINE_S: Final = 900.0
"""The longest time that one driver may run, in seconds."""

POLL_S: Final = 0.1
STARTS_MAX: Final = 30
KINDS: Final = ("worker", "broker", "driver")


class ReplayFailedError(RuntimeError):
    """The replay did not reach its end."""


@dataclass(slots=True)
class Course:
    """How a replay went.

    Attributes:
        strikes: What was killed, and when, in seconds since the replay began.
        rows: Pairs: seconds since the replay began, and the number of rows that were published by then.
        starts: How often the driver was started.
    """

    strikes: list[DemoFault] = field(default_factory=list)
    rows: list[tuple[float, float]] = field(default_factory=list)
    starts: int = 0
    took_s: float = 0.0


@dataclass(eq=False)
class StruckReplay:
    """Runs a replay to its end. A seed chooses after which publications something is killed.

    Attributes:
        arguments: The arguments of `python -m seriatim_spark`; the first is `replay`.
        writer: The replay's id.
        publications: The number of publications that it will make, with `rows` rows each.
        strikes: The number of kills.
        on_change: Called when the course continues.
    """

    cluster: LocalCluster
    client: Client
    topic: str
    arguments: Sequence[str]
    _: KW_ONLY
    writer: str
    publications: int
    rows: int
    strikes: int
    seed: int
    log: Path
    on_change: Callable[[], None]
    course: Course = field(default_factory=Course)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        places = self._random.sample(range(self.publications - 1), min(self.strikes, self.publications - 1))
        # The driver is the last of each three kinds, because a start takes it ten seconds. The others are killed while
        # it runs.
        self._plan = [(place, KINDS[number % 3]) for number, place in enumerate(sorted(places))]
        self._begun_at = 0.0

    async def run(self) -> Course:
        """Run until the replay is done.

        Raises:
            ReplayFailedError: It was started too often.
            TimeoutError: A driver ran for too long.
        """
        self._begun_at = time.monotonic()
        while self.course.starts < STARTS_MAX:
            driver = await self._start()
            try:
                status = await asyncio.wait_for(self._follow(driver), DEADLINE_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                await driver.wait()
            await self._heal()
            if status == 0:
                self.course.took_s = self._now()
                return self.course
        raise ReplayFailedError(f"the replay was started {STARTS_MAX} times and is not done; see {self.log}")

    async def _start(self) -> asyncio.subprocess.Process:
        self.course.starts += 1
        environment = {
            **os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
            # Spark tries a task again when its worker is killed. Without the second number a local Spark gives up at
            # once.
            "PYSPARK_SUBMIT_ARGS": "--master local[2,4] --conf spark.ui.enabled=false "
            "--conf spark.python.authenticate.socketTimeout=60s pyspark-shell",
        }  # fmt: skip
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "seriatim_spark", *self.arguments, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip

    async def _follow(self, driver: asyncio.subprocess.Process) -> int:
        """Watch until this driver has ended, by itself or because it was killed. Return its exit status."""
        ended = asyncio.create_task(driver.wait())
        try:
            while not ended.done():
                done = await self._published()
                self.course.rows.append((self._now(), done * self.rows))
                self.on_change()
                if self._plan and done > self._plan[0][0]:
                    await self._strike(driver)
                await asyncio.wait([ended], timeout=POLL_S)
            return await ended
        finally:
            ended.cancel()

    async def _published(self) -> int:
        try:
            known = await self.client.admin().describe_writer(self.topic, self.writer)
        except SeriatimError:  # the replay has not begun yet, or a broker is down
            return round(self.course.rows[-1][1] / self.rows) if self.course.rows else 0
        return 0 if known.sequence is None else known.sequence + 1

    async def _strike(self, driver: asyncio.subprocess.Process) -> None:
        _, kind = self._plan[0]
        victim = ""
        if kind == "worker":
            workers = workers_of(driver.pid)
            if not workers:  # no task runs at this moment; the next look tries again
                return
            pid = self._random.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                victim = f"worker {pid}"
        elif kind == "broker":
            await self._heal()
            partition = self._random.randrange(6)
            chain = await self.client.admin().describe_chain(self.topic, partition)
            victim = chain.segments[-1].members[0]
            await self.cluster.kill(victim)
        else:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            victim = f"driver {driver.pid}"
        self._plan.pop(0)
        if victim:
            self.course.strikes.append(DemoFault(kind, victim, "none", self._now(), self._now()))

    async def _heal(self) -> None:
        await self.cluster.start_again("brokers")
        await self.cluster.wait_ready()

    def _now(self) -> float:
        return time.monotonic() - self._begun_at
