"""One run of the demo, from an empty directory to the outcome: six brokers, a producer, a consumer, and faults.

    prepare      start the cluster, make the topic, load the events, begin the expected histories in the background
    faults       pace the producer so that its events last as long as the faults do
    drain        heal all, send the other events at full speed; wait until every send has an outcome and all is read
    judge        check the histories of all processes, compare the rebuilt histories byte for byte

The main process sends and receives no messages: it strikes, watches and draws. It ends every process that it started,
also if it is interrupted. `__main__` prints the report.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from seriatim.history import HistoryWriter, Report, check
from seriatim_api.errors import SeriatimError
from seriatim_local import LocalCluster

from e2e.demo.expect import read_histories
from e2e.demo.faults import KINDS
from e2e.demo.gaps import Silences
from e2e.demo.live import Scene
from e2e.demo.rebuild import differences, digest
from e2e.demo.report import DemoFault, Outcome, RateSample, SegmentSpan, Silence
from e2e.demo.settings import Settings
from e2e.demo.staging import (
    EXPECT_DEADLINE_S,
    GROUP,
    HISTORY,
    LOAD_DEADLINE_S,
    PACE_S,
    TOPIC,
    Pace,
    expecting,
    guard,
    staged,
    started,
    workshop,
)
from e2e.demo.striking import Striker
from e2e.observe import Observer, Snapshot
from e2e.workers import Worker

_log = structlog.get_logger(__name__)

LOOK_S: Final = 0.5
"""The time between two looks at the cluster for the view."""

DRAIN_DEADLINE_S: Final = 180.0

RESERVE_SHARE: Final = 0.08
"""The share of events that is sent after the last fault. They show the pace of a whole cluster."""

RATE_MIN: Final = 200.0
"""The fewest events in a second while faults go on, so that messages are under way on each partition."""

STEP_S: Final = 0.1
"""The time between two samples of the picture's rate, so that a gap of a partition can be seen."""

SAMPLES_MAX: Final = 1_000
SILENCE_SHOWN_S: Final = 0.1
"""The picture shows silences of a partition that last at least so long."""

RATE_MAX: Final = 12_000.0
"""The most events in a second while faults go on. Two cores are shared with everything that is broken and restarted."""

HISTORY_FILES: Final = (HISTORY, "producer.jsonl", "consumer.jsonl")
LOG_FILES: Final = ("producer.log", "consumer.log", "expect.log")


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run, and what only the picture needs.

    Attributes:
        outcome: The outcome.
        rates: How many events were acknowledged in a second.
        silences: By partition, from when to when it acknowledged nothing while events waited.
        duration_s: The end of the axis of time. It holds all events and all faults.
    """

    outcome: Outcome
    rates: tuple[RateSample, ...]
    silences: tuple[Silence, ...]
    duration_s: float


class Demo:
    """One run. `run` may be called once.

    Args:
        settings: The settings of the run.
        on_scene: Called after each change that is worth drawing.
        on_fault: Called with each fault once its gap is known.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_scene: Callable[[Scene], None] = lambda _scene: None,
        on_fault: Callable[[DemoFault], None] = lambda _fault: None,
    ) -> None:
        self._settings = settings
        self._on_scene = on_scene
        self._out = settings.out
        self._silences = Silences()
        self._counts: Counter[int] = Counter()  # acknowledged events, by step of `STEP_S`
        self._begin = 0.0
        self._begin_ms = 0
        self._event_count = 0
        self._pace = Pace(settings.fault_s, RATE_MIN, RATE_MAX, on_fault)
        self.scene = Scene("Seriatim", total=0, hits_min=settings.hits_min)

    async def run(self) -> Result:
        """Run the whole demo.

        Raises:
            SeriatimError: The cluster did not come up, or did not drain.
            WorkerError: The producer or the consumer ended.
        """
        stale = (*HISTORY_FILES, *LOG_FILES, "rebuilt.json", "expected.json")
        with workshop(self._out, (self._out / name for name in stale)) as (data, history):
            drained = await self._run(data, history)
        return await self._judge(drained)

    # ---- the run ---------------------------------------------------------------------------------------------

    async def _run(self, data: Path, history: HistoryWriter) -> _Drained:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self._say("starting six brokers and the coordinator")
            shape = self._settings
            expect = await enter(expecting(self._out, shape.event_limit))
            stage = await enter(staged(data, shape, history))
            cluster, admin = stage.cluster, stage.admin
            observer = Observer(admin, TOPIC, GROUP)
            limit = () if shape.event_limit is None else ("--limit", str(shape.event_limit))
            producer = await enter(started("producer", self._out, cluster, self._producer_says, *limit))
            places = ("--group", GROUP, "--histories", str(self._out / "rebuilt.json"))
            consumer = await enter(started("consumer", self._out, cluster, self._consumer_says, *places))
            self._say("loading the flights of 2013")
            self._event_count = (await producer.wait_for("ready", LOAD_DEADLINE_S))["events"]
            await consumer.wait_for("ready", LOAD_DEADLINE_S)
            self.scene.total = self._event_count
            self._begin, self._begin_ms = time.monotonic(), time.time_ns() // 1_000_000
            producer.tell(rate=shape.rate, go=True)
            drained = await self._faults_and_drain(cluster, observer, producer, consumer, history)
            self._say("waiting for the histories computed from the file")
            await expect.wait_for("done", EXPECT_DEADLINE_S)
            return drained

    async def _faults_and_drain(
        self, cluster: LocalCluster, observer: Observer, producer: Worker, consumer: Worker, history: HistoryWriter
    ) -> _Drained:
        settings = self._settings
        striker = Striker(
            cluster, observer, self._silences,
            seed=settings.seed, hits_min=settings.hits_min, time_s=settings.faults_s, begin=self._begin,
            on_change=self._say, is_sending=lambda: self.scene.sent < self._event_count,
        )  # fmt: skip
        self.scene.faults = striker.records
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(Observer(observer.admin, TOPIC, GROUP)), name="watching")
            guards = [
                tasks.create_task(guard(worker), name=f"guard of {worker.name}") for worker in (producer, consumer)
            ]
            pacing = tasks.create_task(self._keep_pace(striker, producer), name="pace")
            await striker.run(after_each=lambda: self._pace.report(striker.records))
            pacing.cancel()
            self.scene.hits_min = striker.hits_min
            self._say("everything is mended: sending the rest at full speed")
            await cluster.heal()
            producer.tell(rate=None)
            sent = await producer.wait_for("done", DRAIN_DEADLINE_S)
            self._say("waiting until the consumer is level")
            try:
                last = await observer.wait_until(
                    lambda snapshot: snapshot.settled() and snapshot.drained(), "the group is level", DRAIN_DEADLINE_S
                )
                is_drained, waiting = True, ""
            except SeriatimError as error:
                last, is_drained, waiting = observer.latest, False, str(error)
            drained_at = time.monotonic()
            watching.cancel()
            for task in guards:
                task.cancel()
        self._watched(last)
        consumer.tell(finish=True)
        done = await consumer.wait_for("done", DRAIN_DEADLINE_S)
        history.end(GROUP, topic=TOPIC, drained=is_drained, waiting=waiting)
        return _Drained(
            hits_min=striker.hits_min,
            longest_silence_s=sent["longest_silence_s"],
            faults=tuple(striker.records),
            segments=tuple(self.scene.segments),
            duration_s=sent["last_ack_at"] - sent["first_send_at"],
            drained_s=min(done["last_delivery_at"] or drained_at, drained_at) - sent["first_send_at"],
        )

    async def _keep_pace(self, striker: Striker, producer: Worker) -> None:
        """Pace the producer so that its events last for the faults that are left."""
        while True:
            await asyncio.sleep(PACE_S)
            scene = self.scene
            left = self._event_count * (1 - RESERVE_SHARE) - scene.sent
            done = sum(fault.healed_at_s is not None for fault in striker.records)
            waiting = scene.sent - scene.acknowledged - scene.unknown
            elapsed_s = time.monotonic() - self._begin
            producer.tell(rate=self._pace.rate(elapsed_s, done, striker.left_count, left, waiting))

    # ---- what is seen meanwhile ------------------------------------------------------------------------------

    async def _watch(self, observer: Observer) -> None:
        while True:
            try:
                self._watched(await observer.look())
            except SeriatimError as error:
                self.scene.doing = self.scene.doing or f"cannot look: {error}"
            self._changed()
            await asyncio.sleep(LOOK_S)

    def _watched(self, snapshot: Snapshot) -> None:
        self.scene.segments = spans(snapshot, self._begin_ms)

    def _producer_says(self, line: dict[str, Any]) -> None:
        if line["k"] != "progress":
            return
        scene = self.scene
        scene.sent, scene.acknowledged, scene.unknown = line["sent"], line["ok"], line["unknown"]
        for partition, at, count, since in line["acks"]:
            self._silences.add(partition, since, at)
            scene.accepted[partition] = scene.accepted.get(partition, 0) + count
            self._counts[max(0, int((at - self._begin) / STEP_S))] += count
            step = max(0, int((at - self._begin) / scene.rate_step_s))
            scene.rates += [0] * (step + 1 - len(scene.rates))
            scene.rates[step] += count
        self._silences.lasting(dict(line["waiting"]), line["at"])

    def _consumer_says(self, line: dict[str, Any]) -> None:
        if line["k"] == "progress":
            self.scene.delivered = line["delivered"]
            self.scene.consumed = dict(line["by_partition"])

    def _say(self, doing: str) -> None:
        if doing != self.scene.doing:
            _log.info("doing", what=doing)
        self.scene.doing = doing
        self._changed()

    def _changed(self) -> None:
        self.scene.at_s = time.monotonic() - self._begin if self._begin else 0.0
        self._on_scene(self.scene)

    # ---- the end ---------------------------------------------------------------------------------------------

    async def _judge(self, drained: _Drained) -> Result:
        self._say("checking the history")
        report = await asyncio.to_thread(_check, [self._out / name for name in HISTORY_FILES])
        rebuilt = read_histories(self._out / "rebuilt.json")
        wanted = read_histories(self._out / "expected.json")
        different = differences(rebuilt, wanted)
        settings = self._settings
        outcome = Outcome(
            check=report,
            event_count=self._event_count,
            duration_s=drained.duration_s,
            drained_s=drained.drained_s,
            histories_equal=not different and rebuilt == wanted,
            differences=different,
            digest=digest(rebuilt),
            faults=drained.faults,
            segments=drained.segments,
            seed=settings.seed,
            quick=settings.quick,
            hits_min=drained.hits_min,
            hits_planned=settings.hits_min,
            longest_silence_s=drained.longest_silence_s,
            kinds_wanted=KINDS,
        )
        mended_s = max((fault.healed_at_s or fault.at_s for fault in drained.faults), default=0.0)
        duration_s = max(drained.duration_s, drained.drained_s, mended_s, 1.0)
        return Result(outcome, rate_samples(self._counts, duration_s), self._shown_silences(), duration_s)

    def _shown_silences(self) -> tuple[Silence, ...]:
        return tuple(
            Silence(partition, begin - self._begin, end - self._begin)
            for partition in range(self._settings.partition_count)
            for begin, end in self._silences.of(partition)
            if end - begin >= SILENCE_SHOWN_S
        )


@dataclass(frozen=True, slots=True)
class _Drained:
    """The figures of a drained run that the judgement needs."""

    hits_min: int
    longest_silence_s: float
    faults: tuple[DemoFault, ...]
    segments: tuple[SegmentSpan, ...]
    duration_s: float
    drained_s: float


def rate_samples(counts: Mapping[int, int], duration_s: float) -> tuple[RateSample, ...]:
    """The rates over time, with a sample for each step in which nothing was acknowledged too.

    Args:
        counts: What was acknowledged in each step of `STEP_S`, by its number.
        duration_s: The end of the axis. At most `SAMPLES_MAX` samples are made of it.
    """
    merged = max(1, math.ceil(duration_s / STEP_S / SAMPLES_MAX))
    step_s, sums = merged * STEP_S, Counter[int]()
    for number, count in counts.items():
        sums[number // merged] += count
    last = max(sums, default=-1)
    return tuple(RateSample((number + 0.5) * step_s, sums[number] / step_s) for number in range(last + 1))


def spans(snapshot: Snapshot, begin_ms: int) -> tuple[SegmentSpan, ...]:
    """Return all segments of a snapshot along an axis of time that begins at `begin_ms` of the wall clock."""
    ends = {reader.partition: reader.end_position for reader in snapshot.readers if reader.known}
    found = []
    for chain in snapshot.chains:
        for segment in chain.segments:
            length = segment.length
            if (
                length is None
                and segment.base is not None
                and segment is chain.open_segment
                and chain.partition in ends
            ):
                length = max(0, ends[chain.partition] - segment.base)
            found.append(
                SegmentSpan(
                    partition=chain.partition,
                    segment_no=segment.no,
                    group=segment.group,
                    state=segment.state,
                    opened_at_s=(segment.opened_at_ms - begin_ms) / 1000,
                    sealed_at_s=(segment.sealed_at_ms - begin_ms) / 1000 if segment.sealed_at_ms else None,
                    length=length,
                )
            )
    return tuple(_without_open_ends(found))


def _without_open_ends(found: list[SegmentSpan]) -> list[SegmentSpan]:
    """Give each unsettled segment an end for the picture: the time at which the next segment was opened.

    The record has none.
    """
    result = []
    for span, following in zip(found, [*found[1:], None], strict=True):
        if span.sealed_at_s is None and following is not None and following.partition == span.partition:
            span = SegmentSpan(
                span.partition, span.segment_no, span.group, span.state, span.opened_at_s, following.opened_at_s,
                span.length,
            )  # fmt: skip
        result.append(span)
    return result


def _check(paths: list[Path]) -> Report:
    return check(paths)
