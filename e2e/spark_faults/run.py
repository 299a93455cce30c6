"""Runs of the sink: a topic is copied in micro-batches. A seed chooses what is killed, and at which moment.

Each run is a query with a checkpoint and a target of its own. If its driver is killed or frozen, another driver
continues with the checkpoint. When the target is complete, a frozen driver wakes up and continues too. Then each
partition of the target must hold the rows of the source: all of them, once, in order.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from seriatim import Client
from seriatim_local import LocalCluster

from e2e.demo_spark.comparing import rows_of
from e2e.spark_faults.processes import Driver, DriverEndedError
from e2e.spark_faults.striking import MOMENTS, REACHED, ask, let_go

PARTITIONS: Final = 2
BATCHES: Final = 3
ROWS: Final = 300
VALUE_BYTES: Final = (8, 3_000)
"""The sizes of values: small rows, and rows so large that a task stages several batches."""

SOURCES: Final = {"small": VALUE_BYTES[0], "large": VALUE_BYTES[1]}
WHILE: Final = "while publishing"
ALL_MOMENTS: Final = (*MOMENTS[:3], WHILE, MOMENTS[3])
PUBLISHING_S: Final = 0.12
"""About the length of a publication. Faults of `while publishing` come at a random time within it."""

KINDS: Final = {"worker": 3, "broker": 3, "driver": 1, "zombie": 2}
"""What is struck, and how often. Drivers are struck less often, because a new one takes 10 s to start."""

FAULTS_MAX: Final = 3
STARTS_MAX: Final = 15
RUN_DEADLINE_S: Final = 400.0
ZOMBIE_DEADLINE_S: Final = 120.0
POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Fault:
    """What is struck, and at which moment of a micro-batch: of this one, or of a later one if this one does not reach
    it.
    """

    kind: str
    moment: str
    batch: int


@dataclass(slots=True)
class Course:
    """The course of one run.

    Attributes:
        hit: Faults that were struck. A fault is not struck if the query ends before.
        starts: How often the query was started.
        errors: Errors that ended a query, each with the kind of the last fault before.
        zombies: For each driver that was frozen: the error that ended its query; None if it succeeded.
        problems: What is wrong with the target.
    """

    seed: int
    hit: list[Fault] = field(default_factory=list)
    starts: int = 0
    rows: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    zombies: list[str | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    took_s: float = 0.0


def plan_of(chance: random.Random) -> list[Fault]:
    """Draw the faults of a run, in their order."""
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=chance.randint(1, FAULTS_MAX))
    batches = sorted(chance.randrange(BATCHES) for _ in kinds)
    return [Fault(kind, chance.choice(ALL_MOMENTS), batch) for kind, batch in zip(kinds, batches, strict=True)]


def differences(where: str, sent: Sequence[bytes], found: Sequence[bytes]) -> list[str]:
    """Describe what is wrong with a partition, as human-readable texts."""
    if list(sent) == list(found):
        return []
    counts, expected = Counter(found), Counter(sent)
    told = {
        "rows are there more than once": sum((counts - expected).values()),
        "rows are missing": sum((expected - counts).values()),
    }
    wrong = [f"{where}: {count} {text}" for text, count in told.items() if count]
    return wrong or [f"{where}: the order differs"]


class Runs:
    """All runs on one cluster, one after the other. Drivers are used again until they are killed.

    Args:
        directory: For checkpoints, and for the files that ask for faults.
        log: The file for the output of drivers.
    """

    def __init__(self, cluster: LocalCluster, client: Client, directory: Path, log: Path) -> None:
        self._cluster = cluster
        self._client = client
        self._directory = directory
        self._asked = directory / "asked"
        self._log = log
        self._sent: dict[str, dict[int, list[bytes]]] = {}
        self._idle: deque[Driver] = deque()
        self._starting: deque[asyncio.Task[Driver]] = deque()
        self._frozen: list[Driver] = []
        self._all: list[Driver] = []

    async def prepare(self) -> None:
        """Fill the sources, and start two drivers."""
        self._asked.mkdir()
        self._start_driver()
        self._start_driver()
        for name, size in SOURCES.items():
            await self._client.admin().create_topic(name, PARTITIONS)
            async with self._client.producer(name) as producer:
                for partition in range(PARTITIONS):
                    values = [b"%d/%d " % (partition, number) + bytes(size) for number in range(ROWS)]
                    keys = [b"key-%d" % (number % 7) for number in range(ROWS)]
                    await (await producer.send_table(pa.table({"key": keys, "value": values}), partition))
                    self._sent.setdefault(name, {})[partition] = values

    async def close(self) -> None:
        """End all drivers."""
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for driver in self._all:
            await driver.kill()

    def _start_driver(self) -> None:
        async def start() -> Driver:
            driver = await Driver.start(self._asked, self._log)
            self._all.append(driver)
            await driver.wait_ready()
            return driver

        self._starting.append(asyncio.create_task(start(), name="starts a driver"))

    async def _end(self, driver: Driver) -> None:
        self._all.remove(driver)
        await driver.kill()

    async def _driver(self) -> Driver:
        """Return a driver that is idle."""
        if self._idle:
            return self._idle.popleft()
        if not self._starting:
            self._start_driver()
        return await self._starting.popleft()

    async def run(self, seed: int) -> Course:
        """Do one run."""
        chance = random.Random(seed)
        course = Course(seed)
        source, target = chance.choice(list(SOURCES)), f"run-{seed}"
        faults = deque(plan_of(chance))
        begun = time.monotonic()
        await self._client.admin().create_topic(target, PARTITIONS)
        job = {
            "bootstrap": ",".join(self._cluster.bootstrap), "source": source, "target": target, "writer": "copy",
            "batch_rows": -(-PARTITIONS * ROWS // BATCHES), "checkpoint": str(self._directory / target),
        }  # fmt: skip
        try:
            async with asyncio.timeout(RUN_DEADLINE_S):
                last = ""
                while course.starts < STARTS_MAX:
                    course.starts += 1
                    ended = await self._query(job, faults, course, chance)
                    if ended is None:
                        break
                    last = ended
                else:
                    course.problems.append(f"the query was started {STARTS_MAX} times: {last}")
                await self._judge(source, target, course)
                await self._wake(course)
                if course.zombies:
                    await self._judge(source, target, course)
        except TimeoutError:
            course.problems.append(f"not done after {RUN_DEADLINE_S:g} s")
        await self._cluster.start_again("brokers")
        for left in self._asked.iterdir():  # requests that killed workers did not take
            left.unlink()
        if not course.problems:
            await self._client.admin().delete_topic(target)
            shutil.rmtree(self._directory / target, ignore_errors=True)
        course.took_s = time.monotonic() - begun
        return course

    async def _query(
        self, job: dict[str, object], faults: deque[Fault], course: Course, chance: random.Random
    ) -> str | None:
        """Start the query once. Return what ended it; None if it succeeded."""
        driver = await self._driver()
        driver.give(job)
        answer = asyncio.create_task(driver.answer(), name="waits for a query")
        last = "no fault"
        try:
            while True:
                fault = faults[0] if faults else None
                if fault is not None:
                    self._ask(fault)
                reached = await self._reached(answer)
                if reached is None:
                    error = answer.result()
                    self._idle.append(driver)
                    if error is not None:
                        course.errors.append((last, error))
                    return error
                assert fault is not None
                faults.popleft()
                course.hit.append(fault)
                last = fault.kind
                if await self._strike(fault, driver, reached, job, chance):
                    return f"{fault.kind} {fault.moment}"
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
            for moment in (*MOMENTS, REACHED):
                (self._asked / moment).unlink(missing_ok=True)

    def _ask(self, fault: Fault) -> None:
        moment = "before publishing" if fault.moment == WHILE else fault.moment
        ask(self._asked, moment, fault.batch, wait=True)

    async def _reached(self, answer: asyncio.Task[str | None]) -> int | None:
        """Wait until a worker reaches the moment of the fault. Return its process id; None if the query ends before."""
        path = self._asked / REACHED
        while not answer.done():
            if path.exists():
                pid = int(path.read_text().split()[0])
                path.unlink()
                return pid
            await asyncio.wait([answer], timeout=POLL_S)
        return None

    async def _strike(
        self, fault: Fault, driver: Driver, worker: int, job: dict[str, object], chance: random.Random
    ) -> bool:
        """Inject the fault, and let the worker continue. Return whether the driver is killed or frozen."""
        victim = ""
        if fault.kind == "broker":
            victim = await self._victim(str(job["target"]), chance)
        if fault.moment == WHILE:
            let_go(self._asked, worker)
            await asyncio.sleep(chance.uniform(0, PUBLISHING_S))
        match fault.kind:
            case "worker":
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            case "broker":
                await self._cluster.kill(victim)
            case "driver":
                await self._end(driver)
                self._start_driver()
            case "zombie":
                driver.signal(signal.SIGSTOP)
                self._frozen.append(driver)
                if not self._idle and not self._starting:
                    self._start_driver()
        if fault.moment != WHILE:
            let_go(self._asked, worker)
        return fault.kind in ("driver", "zombie")

    async def _victim(self, target: str, chance: random.Random) -> str:
        """Start all brokers. Return a broker that holds a partition of the target."""
        await self._cluster.start_again("brokers")
        await self._cluster.wait_ready()
        chain = await self._client.admin().describe_chain(target, chance.randrange(PARTITIONS))
        return chance.choice(chain.segments[-1].members)

    async def _wake(self, course: Course) -> None:
        """Let frozen drivers continue, and wait until they have ended their query."""
        while self._frozen:
            driver = self._frozen.pop()
            driver.signal(signal.SIGCONT)
            try:
                async with asyncio.timeout(ZOMBIE_DEADLINE_S):
                    course.zombies.append(await driver.answer())
            except (TimeoutError, DriverEndedError) as exc:
                course.zombies.append(f"{type(exc).__name__}: {exc}")
                await self._end(driver)
            else:
                self._idle.append(driver)

    async def _judge(self, source: str, target: str, course: Course) -> None:
        course.rows = 0
        for partition, sent in self._sent[source].items():
            table, _ = await rows_of(self._client, target, partition)
            found = table.column("value").to_pylist()
            course.rows += len(found)
            course.problems += differences(f"{target}, partition {partition}", sent, found)


Progress = Callable[[Course], None]


async def run_all(directory: Path, log: Path, seeds: Sequence[int], until_s: float, progress: Progress) -> list[Course]:
    """Do all runs, or as many as begin before `until_s`. Each result has the problems of its run.

    Args:
        directory: For data that is thrown away.
        until_s: No run begins after this time of the monotonic clock.
    """
    found: list[Course] = []
    async with LocalCluster(directory / "cluster", groups=2, members=2, proxy=False, name="faults") as cluster:
        await cluster.wait_ready()
        async with Client.connect(cluster.bootstrap) as client:
            runs = Runs(cluster, client, directory, log)
            try:
                await runs.prepare()
                for seed in seeds:
                    if time.monotonic() > until_s:
                        break
                    found.append(await runs.run(seed))
                    progress(found[-1])
            finally:
                await runs.close()
    return found
