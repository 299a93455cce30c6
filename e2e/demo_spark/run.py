"""The demo's run: flights go into a topic, an archive and a table. The archive is audited. Then a replay copies all
rows into a second topic while its processes are killed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from seriatim import Client
from seriatim_local import LocalCluster
from seriatim_spark.pipelines.command_line import last_line

from e2e.demo.flights import load_events
from e2e.demo.live import Scene, View
from e2e.demo.report import Told, verdict
from e2e.demo.run import workshop
from e2e.demo.settings import Settings, read_common
from e2e.demo_spark.comparing import compare_states, compare_topics
from e2e.demo_spark.picture import draw
from e2e.demo_spark.strikes import Course, StruckReplay
from e2e.spark_session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST: Final = "flights"
SECOND: Final = "flights-again"
PARTITIONS: Final = 6
BATCH: Final = 500
REPLAY: Final = "again"


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


@dataclass(slots=True)
class ReplayScene(Scene):
    """The scene of this demo: rows that are replayed, and what is killed."""

    title: ClassVar[str] = "Seriatim and Spark"
    counted: ClassVar[str] = "rows replayed"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    common = read_common(environment, "demo-spark-out")
    limit, hits_min, rate = (60_000, 3, 6_000.0) if common["quick"] else (None, 9, 20_000.0)
    return Settings(event_limit=limit, hits_min=hits_min, rate=rate, **common)


def start_spark(log: Path) -> SparkSession:
    """Start a session on two cores, for all pipelines but the replay.

    Args:
        log: The file for the standard error of Java and of Spark's Python workers.
    """
    terminal = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        return start_session(
            "demo", "local[2]", sql__shuffle__partitions="2", driver__extraJavaOptions="-XX:+UseSerialGC",
            python__authenticate__socketTimeout="60s",
        )  # fmt: skip
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


async def send(client: Client, events: pa.Table, rate: float) -> None:
    """Send all events in their order, at `rate` events in a second."""
    begun = time.monotonic()
    async with client.producer(FIRST) as producer:
        under_way = []
        for at in range(0, len(events), BATCH):
            under_way.append(await producer.send_table(events.slice(at, BATCH)))
            await asyncio.sleep(max(0.0, begun + (at + BATCH) / rate - time.monotonic()))
        for deliveries in under_way:
            await deliveries


class SparkRun:
    """One run of this demo."""

    def __init__(self, settings: Settings, view: View) -> None:
        self._settings = settings
        self._rows = 3_000 if settings.quick else 40_000  # of a publication
        self._out = settings.out
        self._view = view
        self._scene = ReplayScene(settings.hits_min)

    def _say(self, doing: str) -> None:
        self._scene.doing = doing
        self._view.scene(self._scene)

    async def run(self) -> Told:
        """Run the whole demo.

        Raises:
            RuntimeError: Something failed.
        """
        begun = time.monotonic()
        try:
            with workshop(self._out) as directory:
                outcome = await self._run(directory)
        except Exception as error:  # Spark raises errors of many types
            raise RuntimeError(last_line(error)) from error
        outcome.took_s = time.monotonic() - begun
        draw(self._out / "replay.svg", outcome.course, outcome.events)
        if outcome.copied != outcome.events:
            outcome.problems.append(f"{outcome.copied} rows in {SECOND}, and {outcome.events} events were sent")
        return tell(outcome, self._settings.seed)

    async def _run(self, directory: Path) -> Outcome:
        self._say("reading the flights")
        events = await asyncio.to_thread(load_events, self._settings.event_limit)
        outcome = Outcome(len(events))
        self._say("starting Spark and four brokers")
        # Spark first: it forks, which a process with gRPC's threads should not do.
        spark = await asyncio.to_thread(start_spark, self._out / "spark.log")
        try:
            await self._with_brokers(directory, events, outcome)
        finally:
            await asyncio.to_thread(spark.stop)
        return outcome

    async def _with_brokers(self, directory: Path, events: pa.Table, outcome: Outcome) -> None:
        async with LocalCluster(directory / "cluster", groups=2, members=2, proxy=False, name="demo-spark") as cluster:
            await cluster.wait_ready()
            async with Client.connect(cluster.bootstrap) as client:
                for topic in (FIRST, SECOND):
                    await client.admin().create_topic(topic, PARTITIONS)
                sending = asyncio.create_task(send(client, events, self._settings.rate))
                try:
                    await self._read(cluster, directory, events, sending, outcome)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                outcome.course = await self._replay(cluster, client, directory, len(events))
                if not outcome.course.strikes:
                    outcome.problems.append("nothing was killed while the replay ran: nothing is shown")
                self._say("comparing the two topics, row by row")
                compared = await compare_topics(client, FIRST, SECOND, PARTITIONS)
                outcome.copied = compared.rows
                outcome.problems += compared.problems

    async def _read(
        self, cluster: LocalCluster, directory: Path, events: pa.Table, sending: asyncio.Task[None],
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

        self._say("flights flow: into Parquet and into a table of aircraft")
        outcome.archived += await asyncio.to_thread(archive_now)
        await asyncio.to_thread(apply_now)
        await sending
        span_s = time.monotonic() - sent_at
        outcome.archived += await asyncio.to_thread(archive_now)
        self._say("looking at the traffic, while the table is behind")
        found = await asyncio.to_thread(lambda: traffic.run(source, last_s=span_s + 5.0, top=8))
        (self._out / "traffic.svg").write_text(traffic.picture(found))
        lags = {group.group: group.lag for group in found.groups}
        if lags.keys() != {"archive", "states"} or lags["archive"]:
            outcome.problems.append(f"groups should be archive, which has read all, and states, and are {lags}")
        await asyncio.to_thread(apply_now)
        compared = compare_states(read_table(states), events)
        outcome.aircraft = compared.rows
        outcome.problems += compared.problems
        self._say("auditing the archive")
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
        self._say("replaying into a second topic, while workers, brokers and drivers are killed")
        bootstrap = ",".join(cluster.bootstrap)
        arguments = (
            "replay", "--bootstrap", bootstrap, "--topic", FIRST, "--to-topic", SECOND, "--id", REPLAY, "--checkpoint",
            str(directory / "replay-checkpoint"), "--rows-per-publication", str(self._rows), "--to-partitions",
            "same",
        )  # fmt: skip
        begun, scene = time.monotonic(), self._scene
        replay = StruckReplay(
            cluster, client, SECOND, arguments, writer=REPLAY, publications=-(-count // self._rows),
            rows=self._rows, strikes=self._settings.hits_min, seed=self._settings.seed, log=self._out / "replay.log",
            on_change=lambda: self._replayed(replay.course, time.monotonic() - begun),
        )  # fmt: skip
        scene.total = count
        return await replay.run()

    def _replayed(self, course: Course, at_s: float) -> None:
        """Show how far the replay is."""
        scene, rows = self._scene, min(round(course.rows[-1][1]), self._scene.total)
        scene.at_s, scene.faults = at_s, course.strikes
        scene.count(at_s, rows - scene.acknowledged)
        scene.acknowledged = rows
        self._view.scene(scene)


def tell(outcome: Outcome, seed: int) -> Told:
    """Say what the report reports."""
    kinds = Counter(strike.kind for strike in outcome.course.strikes)
    killed = ", ".join(f"{kind}s: {count}" for kind, count in sorted(kinds.items()))
    rows = [
        ("events sent", f"{outcome.events:,}", ""),
        ("rows in Parquet", f"{outcome.audited:,}", "audited"),
        ("aircraft", f"{outcome.aircraft:,}", "whose state in the table is the last event"),
        ("kills", str(kinds.total()), f"during the replay: {killed or 'none'}"),
        ("drivers", str(outcome.course.starts), "that the replay took"),
        ("rows replayed", f"{outcome.copied:,}", f"into {SECOND}, in the order of {FIRST}"),
        ("what differs", verdict(len(outcome.problems)), ""),
    ]
    figures = {
        "events": outcome.events, "archived": outcome.archived, "audited": outcome.audited,
        "aircraft": outcome.aircraft, "copied": outcome.copied, "killed": dict(kinds),
        "drivers": outcome.course.starts, "replay_s": round(outcome.course.took_s, 1),
        "seconds": round(outcome.took_s, 1),
    }  # fmt: skip
    good = "each row is there once and in order, and the table has the last events"
    return Told(seed, outcome.problems, good, rows, (), figures, "traffic.svg, audit.svg, replay.svg")
