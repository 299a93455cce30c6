"""The demo's run: flights go into a topic, an archive and a table. The archive is audited. Then a replay copies all
rows into a second topic while its processes are killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from seriatim import Client
from seriatim_local import LocalCluster

from e2e.demo.flights import Events, load_events
from e2e.demo.settings import Settings
from e2e.demo_spark import picture
from e2e.demo_spark.comparing import Comparison, compare_states, compare_topics
from e2e.demo_spark.strikes import Course, StruckReplay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST: Final = "flights"
SECOND: Final = "flights-again"
PARTITIONS: Final = 6
BATCH: Final = 500
REPLAY: Final = "again"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run: `rate` is events in a second, `rows` is the rows of one publication."""

    events: int | None
    rate: float
    rows: int
    strikes: int


QUICK: Final = Plan(60_000, 6_000.0, 3_000, 3)
WHOLE: Final = Plan(None, 20_000.0, 40_000, 9)


@dataclass(slots=True)
class Outcome:
    """The figures and the problems that the demo found."""

    events: int
    archived: int = 0
    aircraft: int = 0
    audited: int = 0
    course: Course = field(default_factory=Course)
    copied: int = 0
    problems: list[str] = field(default_factory=list)
    took_s: float = 0.0


def start_spark(log: Path) -> SparkSession:
    """Start a session on two cores, for all pipelines but the replay.

    Args:
        log: The file for the standard error of Java and of Spark's Python workers.
    """
    terminal = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        return _session()
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("demo")
    for name, value in {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR", "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC", "spark.python.authenticate.socketTimeout": "60s",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    return builder.getOrCreate()


async def send(client: Client, events: Events, rate: float) -> None:
    """Send all events in their order, at `rate` events in a second."""
    begun = time.monotonic()
    sent = 0
    async with client.producer(FIRST) as producer:
        under_way = []
        for part in events.batches(BATCH):
            table = pa.table({"key": part.keys, "value": part.values, "timestamp": part.timestamps_ms})
            under_way.append(await producer.send_table(table))
            sent += len(part)
            await asyncio.sleep(max(0.0, begun + sent / rate - time.monotonic()))
        for deliveries in under_way:
            await deliveries


class Demo:
    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._plan = QUICK if settings.quick else WHOLE
        self._out = settings.out
        self._progress = progress

    async def run(self, directory: Path) -> Outcome:
        """Run the whole demo. `directory` is for data that is thrown away afterwards."""
        begun = time.monotonic()
        self._progress("reading the flights")
        events = await asyncio.to_thread(load_events, self._plan.events)
        outcome = Outcome(len(events))
        self._progress("starting Spark and four brokers")
        # Spark first: it forks, which a process with gRPC's threads should not do.
        spark = await asyncio.to_thread(start_spark, self._out / "spark.log")
        try:
            await self._with_brokers(directory, events, outcome)
        finally:
            await asyncio.to_thread(spark.stop)
        (self._out / "replay.svg").write_text(picture.draw(outcome.course, len(events)))
        if outcome.copied != len(events):
            outcome.problems.append(f"{outcome.copied} rows in {SECOND}, and {len(events)} events were sent")
        outcome.took_s = time.monotonic() - begun
        return outcome

    async def _with_brokers(self, directory: Path, events: Events, outcome: Outcome) -> None:
        async with LocalCluster(directory / "cluster", groups=2, members=2, proxy=False, name="demo-spark") as cluster:
            await cluster.wait_ready()
            async with Client.connect(cluster.bootstrap) as client:
                admin = client.admin()
                await admin.create_topic(FIRST, PARTITIONS)
                await admin.create_topic(SECOND, PARTITIONS)
                sending = asyncio.create_task(send(client, events, self._plan.rate))
                try:
                    await self._read(cluster, directory, events, sending, outcome)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                outcome.course = await self._replay(cluster, client, directory, len(events))
                if not outcome.course.strikes:
                    outcome.problems.append("nothing was killed while the replay ran: nothing is shown")
                self._progress("comparing the two topics, row by row")
                self._take(outcome, await compare_topics(client, FIRST, SECOND, PARTITIONS))

    async def _read(
        self, cluster: LocalCluster, directory: Path, events: Events, sending: asyncio.Task[None],
        outcome: Outcome,
    ) -> None:  # fmt: skip
        from seriatim_spark.applying import read_table
        from seriatim_spark.pipelines import apply, archive, audit, traffic

        sent_at = time.monotonic()
        source = {"bootstrap": ",".join(cluster.bootstrap), "topic": FIRST}
        files, states = str(directory / "archive"), str(directory / "states")

        def archive_now() -> int:
            return archive.run(
                source, files, str(directory / "archive-checkpoint"), every=None, file_rows=500_000, group="archive"
            )

        def apply_now() -> Any:
            return apply.run(
                source, states, str(directory / "states-checkpoint"), every=None, buckets=4, order_by="offset",
                delete_header=None, delete_value="d", tombstones_kept_s=86_400.0, group="states",
            )  # fmt: skip

        self._progress("flights flow: into Parquet and into a table of aircraft")
        outcome.archived += await asyncio.to_thread(archive_now)
        await asyncio.to_thread(apply_now)
        await sending
        span_s = time.monotonic() - sent_at
        outcome.archived += await asyncio.to_thread(archive_now)
        self._progress("looking at the traffic, while the table is behind")
        found = await asyncio.to_thread(lambda: traffic.run(source, last_s=span_s + 5.0, top=8))
        (self._out / "traffic.svg").write_text(traffic.picture(found))
        lags = {group.group: group.lag for group in found.groups}
        if lags.keys() != {"archive", "states"} or lags["archive"]:
            outcome.problems.append(f"groups should be archive, which has read all, and states, and are {lags}")
        await asyncio.to_thread(apply_now)
        compared = compare_states(read_table(states), events)
        outcome.aircraft = compared.rows
        outcome.problems += compared.problems
        self._progress("auditing the archive")
        report = await asyncio.to_thread(
            lambda: audit.run({}, files, whole=True, per_key=False, key_sequence=None, output=None, run_name="demo")
        )
        (self._out / "audit.svg").write_text(audit.picture(report))
        outcome.audited = sum(one.rows for one in report)
        outcome.problems += [finding.text for finding in audit.findings_of(report)]
        if not outcome.archived == outcome.audited == len(events):
            outcome.problems.append(
                f"{len(events)} events were sent, {outcome.archived} archived, {outcome.audited} audited"
            )

    async def _replay(self, cluster: LocalCluster, client: Client, directory: Path, count: int) -> Course:
        self._progress("replaying into a second topic, while workers, brokers and drivers are killed")
        bootstrap = ",".join(cluster.bootstrap)
        arguments = (
            "replay", "--bootstrap", bootstrap, "--topic", FIRST, "--to-topic", SECOND, "--id", REPLAY, "--checkpoint",
            str(directory / "replay-checkpoint"), "--rows-per-publication", str(self._plan.rows), "--to-partitions",
            "same",
        )  # fmt: skip
        replay = StruckReplay(
            cluster, client, SECOND, arguments, writer=REPLAY, publications=-(-count // self._plan.rows),
            rows=self._plan.rows, strikes=self._plan.strikes, seed=self._settings.seed, log=self._out / "replay.log",
        )  # fmt: skip
        return await replay.run()

    @staticmethod
    def _take(outcome: Outcome, compared: Comparison) -> None:
        outcome.copied = compared.rows
        outcome.problems += compared.problems
