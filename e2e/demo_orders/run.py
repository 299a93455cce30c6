"""One run of the demo of orders, from an empty directory to the outcome.

    prepare      start the cluster, make the topic and the consumer group, start the consumers, load the events
    faults       brokers fail, processes with consumers fail, one aircraft is parked and released, another one is
                 dead-lettered; the producer is paced so that its events last as long
    drain        heal all, send the other events at full speed; wait until all is worked on
    replay       mend the consumers, and replay the dead letters
    judge        check the histories of all processes, compare the aircraft's histories byte for byte

The main process sends and receives no messages. It ends every process that it started, also if it is interrupted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from seriatim.history import HistoryWriter, check
from seriatim_api.errors import SeriatimError
from seriatim_local import LocalCluster

from e2e.demo.expect import read_histories
from e2e.demo.flights import load_events
from e2e.demo.gaps import Silences
from e2e.demo.report import DemoFault
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
from e2e.demo_orders.crew import Crew, place_names
from e2e.demo_orders.delivery_attempts import read_attempts
from e2e.demo_orders.judging import judge
from e2e.demo_orders.live import Scene
from e2e.demo_orders.picture import Story
from e2e.demo_orders.planning import (
    BROKER_KINDS,
    CONSUMER_KINDS,
    RESERVE_SHARE,
    broker_faults,
    choose_poison,
    consumer_faults,
)
from e2e.demo_orders.report import Outcome
from e2e.demo_orders.settings import Settings
from e2e.demo_orders.store import Store
from e2e.demo_orders.troubles import SETTINGS, Troubles
from e2e.observe import Observer
from e2e.workers import Worker

_log = structlog.get_logger(__name__)

DRAIN_DEADLINE_S: Final = 120.0
LEVEL_DEADLINE_S: Final = 30.0
POLL_S: Final = 0.3

RATE_MIN: Final = 60.0
"""The fewest events in a second while faults go on, so that messages are under way on each partition."""

RATE_MAX: Final = 1_500.0
"""The most events in a second while faults go on. Two cores are shared with everything that is broken and restarted."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run, and what only the picture needs."""

    outcome: Outcome
    story: Story


@dataclass(frozen=True, slots=True)
class _Drained:
    """What the judgement needs of a run that is drained."""

    crew: Crew
    faults: tuple[DemoFault, ...]
    faults_min: int
    longest_silence_s: float


class Demo:
    """One run. `run` may be called once.

    Args:
        settings: The settings of the run.
        on_scene: Called after each change that is worth drawing.
        on_fault: Called with each fault of a broker once its gap is known.
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
        self._begin = 0.0
        self._event_count = 0
        self._pace = Pace(settings.fault_s, RATE_MIN, RATE_MAX, on_fault)
        self._broker_kinds = BROKER_KINDS if settings.broker_hits else ()
        self._striker: Striker | None = None
        self._held_from = math.inf
        self._is_held = False  # all but the reserve is sent
        faults_min = settings.broker_hits + settings.consumer_faults
        self.scene = Scene("Seriatim: order within a key", total=0, faults_min=faults_min)

    async def run(self) -> Result:
        """Run the whole demo.

        Raises:
            SeriatimError: The cluster did not come up, or did not drain.
            WorkerError: The producer or a process with consumers ended.
        """
        stale = (path for kind in ("*.jsonl", "store.sqlite*", "*.log") for path in self._out.glob(kind))
        with workshop(self._out, (path for path in stale if path.name != "demo.log")) as (data, history):
            drained = await self._run(data, history)
        return await self._judge(drained)

    # ---- the run -------------------------------------------------------------------------------------

    async def _run(self, data: Path, history: HistoryWriter) -> _Drained:
        settings = self._settings
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self._say("starting six brokers and the coordinator")
            expect = await enter(expecting(self._out, settings.event_limit))
            loading = asyncio.create_task(asyncio.to_thread(load_events, settings.event_limit), name="events")
            stage = await enter(staged(data, settings, history))
            cluster, admin = stage.cluster, stage.admin
            self._say("loading the flights of 2013, starting the consumers")
            limit = ("--limit", str(settings.event_limit), "--final-places")
            producer = await enter(started("producer", self._out, cluster, self._producer_says, *limit))
            self._producer = producer
            crew = await enter(Crew(settings, cluster.bootstrap, TOPIC, GROUP, on_change=self._changed))
            events = await loading
            poisoned = choose_poison(events, settings.seed)
            troubles = Troubles(admin, TOPIC, GROUP, crew, poisoned, on_change=self._changed)
            self._crew, self._troubles = crew, troubles
            await admin.create_group(TOPIC, GROUP, settings=SETTINGS)
            troubles.begin()
            await crew.start()
            self._event_count = (await producer.wait_for("ready", LOAD_DEADLINE_S))["events"]
            self.scene.total = self._event_count
            self._held_from = self._event_count * (1 - RESERVE_SHARE)
            self._begin = time.monotonic()
            producer.tell(rate=settings.rate, go=True)
            drained = await self._faults_and_drain(cluster, Observer(admin, TOPIC, GROUP), producer, crew, history)
            self._say("waiting for the histories computed from the file")
            await expect.wait_for("done", EXPECT_DEADLINE_S)
            return drained

    async def _faults_and_drain(
        self, cluster: LocalCluster, observer: Observer, producer: Worker, crew: Crew, history: HistoryWriter
    ) -> _Drained:
        settings = self._settings
        striker = Striker(
            cluster, observer, self._silences, seed=settings.seed, hits_min=settings.broker_hits,
            time_s=settings.faults_s, begin=self._begin, on_change=self._say, is_sending=lambda: not self._is_held,
            faults=broker_faults(settings.seed), kinds=self._broker_kinds,
        )  # fmt: skip
        self._striker = striker
        async with asyncio.TaskGroup() as tasks:
            guards = [
                tasks.create_task(crew.guard(), name="guard of the consumers"),
                tasks.create_task(guard(producer), name="guard of the producer"),
            ]
            consumers = tasks.create_task(
                crew.strike(consumer_faults(settings.seed, settings.consumer_faults), self._begin),
                name="consumers fail",
            )
            parking = tasks.create_task(self._park_and_dead_letter(), name="aircraft fail")
            pacing = tasks.create_task(self._keep_pace(striker, producer), name="pace")
            await striker.run(after_each=lambda: self._pace.report(striker.records))
            self.scene.faults_min = striker.hits_min + settings.consumer_faults
            await consumers
            await parking
            pacing.cancel()
            self._say("everything is mended: sending the rest at full speed")
            await cluster.heal()
            producer.tell(rate=None)
            sent = await producer.wait_for("done", DRAIN_DEADLINE_S)
            self._say("waiting until all is worked on, but the dead letters")
            await self._work_done()
            self._say("replaying the dead letters")
            await self._troubles.replay(settings.stalled_s)
            self._say("waiting until all is worked on")
            is_drained, waiting = await self._drain(observer)
            for task in guards:
                task.cancel()
        await crew.finish(DRAIN_DEADLINE_S)
        history.end(GROUP, topic=TOPIC, drained=is_drained, waiting=waiting)
        crew.judge_hits()
        faults = (*striker.records, *crew.records)
        return _Drained(crew, faults, self.scene.faults_min, sent["longest_silence_s"])

    async def _park_and_dead_letter(self) -> None:
        await self._troubles.park_and_release(self._settings.parked_s, self._settings.parked_max_s)
        await self._troubles.dead_letter()

    async def _work_done(self) -> None:
        """Wait until each event is in the store, or is a dead letter."""

        async def is_done(count: int) -> bool:
            return count + len(await self._troubles.letters()) >= self._event_count

        await self._wait_store(is_done)

    async def _drain(self, observer: Observer) -> tuple[bool, str]:
        """Wait until the store has taken all events. Return whether it has, and otherwise what is missing.

        The place of the consumer group says too little: it is behind a message that waits in the list of its key.
        """

        async def is_done(count: int) -> bool:
            return count >= self._event_count

        missing = self._event_count - await self._wait_store(is_done)
        if missing > 0:
            return False, f"{missing:,} events are not in the store"
        try:
            await observer.wait_until(
                lambda snapshot: snapshot.settled() and snapshot.drained(), "the group is level", LEVEL_DEADLINE_S
            )
        except SeriatimError as error:
            return False, str(error)
        return True, ""

    async def _wait_store(self, is_done: Callable[[int], Awaitable[bool]]) -> int:
        """Wait until the number of events in the store is enough, or does not grow any more. Return the number."""
        with closing(Store(self._out / "store.sqlite")) as store:
            count, grown_at = 0, time.monotonic()
            while True:
                taken = store.taken()
                before, count = count, sum(taken.values())
                if count != before:
                    grown_at = time.monotonic()
                self._crew.take_finished(taken)
                if await is_done(count) or time.monotonic() - grown_at >= self._settings.stalled_s:
                    return count
                await asyncio.sleep(POLL_S)

    async def _keep_pace(self, striker: Striker, producer: Worker) -> None:
        """Pace the producer so that its events last for all that is to come."""
        while True:
            await asyncio.sleep(PACE_S)
            scene, crew = self.scene, self._crew
            done = sum(fault.healed_at_s is not None for fault in striker.records)
            consumer_faults_left = self._settings.consumer_faults - len(crew.records)
            to_come = max(striker.left_count, consumer_faults_left)
            waiting = scene.sent - scene.acknowledged
            elapsed_s = time.monotonic() - self._begin
            rate = self._pace.rate(elapsed_s, done, to_come, self._held_from - scene.sent, waiting)
            if not self._is_held:
                producer.tell(rate=rate)

    # ---- what is seen meanwhile ----------------------------------------------------------------------

    def _producer_says(self, line: dict[str, Any]) -> None:
        if line["k"] == "progress":
            self.scene.sent, self.scene.acknowledged = line["sent"], line["ok"]
            for partition, at, _count, since in line["acks"]:
                self._silences.add(partition, since, at)
            self._silences.lasting(dict(line["waiting"]), line["at"])
            if self.scene.sent >= self._held_from and not self._is_held:
                self._is_held = True
                self._producer.tell(rate=0)

    def _say(self, doing: str) -> None:
        if doing != self.scene.doing:
            _log.info("doing", what=doing)
        self.scene.doing = doing
        self._changed()

    def _changed(self) -> None:
        scene = self.scene
        scene.at_s = time.monotonic() - self._begin if self._begin else 0.0
        if self._begin:
            scene.count(self._crew.finished)
            scene.aircraft = self._troubles.states
            if self._striker is not None:
                scene.faults = [*self._striker.records, *self._crew.records]
        self._on_scene(scene)

    # ---- the end -------------------------------------------------------------------------------------

    async def _judge(self, drained: _Drained) -> Result:
        self._say("checking the history")
        settings, crew, troubles = self._settings, drained.crew, self._troubles
        paths = [self._out / HISTORY, self._out / "producer.jsonl", *crew.files("history")]
        report = await asyncio.to_thread(lambda: check(paths, groups=[GROUP]))
        attempts = read_attempts(crew.files("attempts"))
        wanted = read_histories(self._out / "expected.json")
        with closing(Store(self._out / "store.sqlite")) as store:
            judgement = judge(
                store.entries(), attempts, wanted, strikes=crew.strikes, parked=troubles.parked, dead=troubles.dead
            )
        last = max((attempt.ended_at or 0.0 for attempt in attempts), default=self._begin)
        mended_s = max((fault.healed_at_s or fault.at_s for fault in drained.faults), default=0.0)
        work_s = max(last - self._begin, 1.0)
        outcome = Outcome(
            check=report,
            judgement=judgement,
            event_count=self._event_count,
            duration_s=work_s,
            partition_count=settings.partition_count,
            consumer_count=settings.consumer_count,
            process_count=settings.process_count,
            process_starts=crew.starts,
            faults=drained.faults,
            parked=troubles.parked,
            dead=troubles.dead,
            seed=settings.seed,
            quick=settings.quick,
            faults_min=drained.faults_min,
            longest_silence_s=drained.longest_silence_s,
            kinds_wanted=(*self._broker_kinds, *(CONSUMER_KINDS if settings.consumer_faults else ())),
            planted=settings.planted,
        )
        story = Story(
            attempts,
            place_names(settings),
            drained.faults,
            troubles.parked,
            troubles.dead,
            self._begin,
            max(work_s, mended_s),
        )
        return Result(outcome, story)
