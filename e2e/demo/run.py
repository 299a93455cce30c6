"""What a run of the demos with flights is, from an empty directory to the outcome.

    prepare      start the cluster, make the topic, load the events, begin the expected histories in the background
    faults       pace the producer so that its events last as long as the faults do
    drain        heal all, send the other events at full speed; wait until every send has an outcome and all is read
    judge        check the histories of all processes, compare the rebuilt histories byte for byte

The main process sends and receives no messages: it strikes, watches and draws. It ends every process that it started,
also if it is interrupted.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import structlog
from seriatim import Admin, Client, TopicSettings
from seriatim.history import HistoryWriter, check
from seriatim_api.errors import SeriatimError, TopicExistsError
from seriatim_local import FaultRecord as ClusterFault
from seriatim_local import LocalCluster

from e2e.demo.faults import KINDS, Kind, PlannedFault, plan
from e2e.demo.flights import event_number
from e2e.demo.gaps import Silences
from e2e.demo.live import Scene, View
from e2e.demo.report import DemoFault, Outcome, Told
from e2e.demo.settings import Settings
from e2e.demo.striking import Striker
from e2e.observe import Observer, Snapshot
from e2e.workers import Worker, start_worker

_log = structlog.get_logger(__name__)

TOPIC: Final = "flights"
GROUP: Final = "histories"

HISTORY: Final = "demo.jsonl"
"""The history of the main process: the faults, the end, and what its `Admin` does."""

STALE: Final = ("demo.jsonl", "producer.*", "consumer*.*", "expect*", "rebuilt.json", "store.sqlite*")
"""Files of an earlier run in the same directory."""

LOAD_DEADLINE_S: Final = 90.0
EXPECT_DEADLINE_S: Final = 180.0
DRAIN_DEADLINE_S: Final = 180.0

RESERVE_SHARE: Final = 0.08
"""The share of events that is sent after the last fault. They show the pace of a whole cluster."""

PACE_S: Final = 0.5
"""Seconds between two changes of the rate."""

BACKLOG_S: Final = 2.0
"""If more messages wait than this many seconds of the present rate, the machine is slower than the rate."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Says how fast to send so that the events last for the faults that are left.

    Attributes:
        fault_s: A first guess at the time from one fault to the next, in seconds.
        rate_min: The fewest events in a second while faults continue, so that messages are under way on each partition.
        rate_max: The most. Two cores are shared with everything that is broken and restarted.
    """

    fault_s: float
    rate_min: float
    rate_max: float

    def rate(self, elapsed_s: float, done: int, to_come: int, left: float, waiting: int) -> float:
        """The rate from now on, in events a second. It follows the machine: ask every `PACE_S`.

        Args:
            elapsed_s: Seconds since the first message.
            done: The number of faults that are over.
            to_come: The number of faults that must still hit, the present one included.
            left: How many events are to last for these faults.
            waiting: How many events are sent and not acknowledged.
        """
        # The first guess counts as two faults, so that one slow fault does not stop the flow.
        fault_s = (elapsed_s + 2 * self.fault_s) / (done + 2)
        rate = min(max(left / (max(to_come, 1) * fault_s), self.rate_min), self.rate_max)
        return self.rate_min if waiting > BACKLOG_S * rate else rate


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """A directory for the data of a run (hundreds of megabytes). At the end only the brokers' logs stay."""
    data = Path(tempfile.mkdtemp(prefix="cluster-", dir=out))
    try:
        yield data
    finally:
        shutil.rmtree(out / "logs", ignore_errors=True)
        if (data / "logs").exists():
            shutil.copytree(data / "logs", out / "logs")
        shutil.rmtree(data, ignore_errors=True)


class FlightsRun:
    """One run. `run` may be called once. Each demo has its own consumers, troubles, drain and judgement.

    Args:
        settings: The settings of the run.
        scene: What is shown of it.
        view: Where it is shown; None: nowhere.
    """

    final_places: ClassVar[bool] = False
    """Whether the producer's history names places only if it is certain that readers find messages there."""

    rates: ClassVar[tuple[float, float]] = (200.0, 12_000.0)
    kinds: ClassVar[Sequence[Kind]] = KINDS

    admin: Admin
    cluster: LocalCluster
    observer: Observer
    producer: Worker
    striker: Striker
    sent: dict[str, Any]

    def __init__(self, settings: Settings, scene: Scene, view: View | None) -> None:
        self._settings = settings
        self._scene = scene
        self._view = view
        self._reported = 0
        self.out = settings.out
        self.silences = Silences()
        self.begin = 0.0

    # ---- what each demo has of its own -----------------------------------------------------------------------

    def plan(self) -> Iterator[PlannedFault]:
        """The faults of brokers, without end."""
        return plan(self._settings.seed)

    def faults(self) -> Sequence[DemoFault]:
        """All faults so far, in the order of time."""
        return self.striker.records if hasattr(self, "striker") else ()

    def consumer_faults_left(self) -> int:
        """How many faults of consumers are to come."""
        return 0

    def is_sending(self) -> bool:
        """Whether the producer still has events to send while there are faults."""
        return self._scene.sent < self._scene.total

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Start the consumers, and wait until they are ready. The producer loads its events meanwhile."""

    def beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What continues beside the faults and until all is drained."""
        return ()

    def troubles(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What else must be over before the rest is sent."""
        return ()

    async def drain(self) -> str:
        """Wait until all is read. Return what is missing."""
        return await self.level(DRAIN_DEADLINE_S)

    async def finish(self) -> None:
        """Let the consumers end."""

    def acknowledged(self, partition: int, at: float, count: int) -> None:
        """Take note of an acknowledgement."""

    def judge(self) -> Outcome:
        """Judge the run by what its processes wrote."""
        raise NotImplementedError

    def tell(self, outcome: Outcome) -> Told:
        """Draw the picture, and say what the report reports."""
        raise NotImplementedError

    # ---- the run ---------------------------------------------------------------------------------------------

    async def run(self) -> Told:
        """Run the whole demo, and say what the report reports.

        Raises:
            SeriatimError: The cluster did not come up, or did not drain.
            WorkerError: The producer or a consumer ended.
        """
        return self.tell(await self.outcome())

    async def outcome(self) -> Outcome:
        """Run the whole demo but for its report. It raises what `run` raises."""
        self.out.mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in STALE for path in self.out.glob(pattern)):
            path.unlink(missing_ok=True)
        with workshop(self.out) as data, HistoryWriter(self.out / HISTORY, "demo") as history:
            async with AsyncExitStack() as stack:
                await self._run(data, history, stack)
        self.say("checking the history")
        return await asyncio.to_thread(self.judge)

    async def _run(self, data: Path, history: HistoryWriter, stack: AsyncExitStack) -> None:
        settings, scene, enter = self._settings, self._scene, stack.enter_async_context
        self.say("starting six brokers and the coordinator")
        limit = () if settings.event_limit is None else ("--limit", str(settings.event_limit))
        expected = [str(self.out / "expected.json"), *limit]
        expect = await enter(start_worker("expect", "e2e.demo.rebuild", expected, log=self.out / "expect.log"))

        def noted(record: ClusterFault) -> None:
            history.fault(record.kind, record.victim, phase=record.phase, at=record.at, details=record.details)

        groups, members = settings.group_count, settings.member_count
        self.cluster = await enter(
            LocalCluster(data, name="demo", groups=groups, members=members, delay=settings.delay, on_fault=noted)
        )
        client = await enter(Client.connect(self.cluster.bootstrap, recorder=history, message_id=event_number))
        self.admin = client.admin()
        self.observer = Observer(self.admin, TOPIC, GROUP)
        with suppress(TopicExistsError):  # the client asked twice, because an answer was lost
            await self.admin.create_topic(TOPIC, settings.partition_count, settings=TopicSettings(flush=True))
        await Observer(self.admin, TOPIC).wait_until(Snapshot.settled, "the topic accepts", LOAD_DEADLINE_S)
        self.say("loading the flights of 2013, starting the consumers")
        places = ("--final-places",) if self.final_places else ()
        self.producer = await enter(self.started("producer", self._producer_says, *limit, *places))
        await self.prepare(stack)
        scene.total = (await self.producer.wait_for("ready", LOAD_DEADLINE_S))["events"]
        self.begin = time.monotonic()
        self.producer.tell(rate=settings.rate, go=True)
        await self._fail_and_drain(history)
        self.say("waiting for the histories computed from the file")
        await expect.wait_for("done", EXPECT_DEADLINE_S)

    def started(
        self, name: str, on_line: Callable[[dict[str, Any]], None], *arguments: str, module: str = "e2e.demo"
    ) -> AbstractAsyncContextManager[Worker]:
        """A process of the demo, with its history and its log."""
        common = ["--bootstrap", ",".join(self.cluster.bootstrap), "--history", str(self.out / f"{name}.jsonl")]
        options = [*common, "--topic", TOPIC, *arguments]
        return start_worker(name, f"{module}.{name}", options, log=self.out / f"{name}.log", on_line=on_line)

    async def _fail_and_drain(self, history: HistoryWriter) -> None:
        settings = self._settings
        striker = self.striker = Striker(
            self.cluster, self.observer, self.silences, faults=self.plan(), hits_min=settings.hits_min,
            time_s=settings.faults_s, begin=self.begin, kinds=self.kinds if settings.hits_min else (),
            on_change=self.say, is_sending=self.is_sending,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(work) for work in (self._guard(self.producer), *self.beside())]
            troubles = [tasks.create_task(work) for work in self.troubles()]
            pacing = tasks.create_task(self._keep_pace(), name="pace")
            await striker.run(after_each=self._report_faults)
            self._scene.hits_min = striker.hits_min + settings.consumer_faults
            for task in troubles:
                await task
            pacing.cancel()
            self.say("everything is mended: sending the rest at full speed")
            await self.cluster.heal()
            self.producer.tell(rate=None)
            self.sent = await self.producer.wait_for("done", DRAIN_DEADLINE_S)
            waiting = await self.drain()
            for task in beside:
                task.cancel()
        await self.finish()
        history.end(GROUP, topic=TOPIC, drained=not waiting, waiting=waiting)

    async def _guard(self, worker: Worker) -> None:
        """Fail the run if a worker ends before it has said `done`."""
        await worker.wait_for("done", None)

    async def level(self, deadline_s: float) -> str:
        """Wait until the consumer group has read all. Return what is missing."""
        try:
            await self.observer.wait_until(
                lambda now: now.settled() and now.drained(), "the group is level", deadline_s
            )
        except SeriatimError as error:
            return str(error)
        return ""

    async def _keep_pace(self) -> None:
        """Pace the producer so that its events last for all that is to come."""
        pace = Pace(self._settings.fault_s, *self.rates)
        while True:
            await asyncio.sleep(PACE_S)
            scene = self._scene
            left = scene.total * (1 - RESERVE_SHARE) - scene.sent
            done = sum(fault.healed_at_s is not None for fault in self.striker.records)
            to_come = max(self.striker.left_count, self.consumer_faults_left())
            waiting = scene.sent - scene.acknowledged - scene.unknown
            rate = pace.rate(time.monotonic() - self.begin, done, to_come, left, waiting)
            if self.is_sending():
                self.producer.tell(rate=rate)

    # ---- what is seen meanwhile ------------------------------------------------------------------------------

    def _producer_says(self, line: dict[str, Any]) -> None:
        if line["k"] == "progress":
            scene = self._scene
            scene.sent, scene.acknowledged, scene.unknown = line["sent"], line["ok"], line["unknown"]
            for partition, at, count, since in line["acks"]:
                self.silences.add(partition, since, at)
                self.acknowledged(partition, at - self.begin, count)
            self.silences.lasting(dict(line["waiting"]), line["at"])

    def _report_faults(self) -> None:
        for fault in self.striker.records[self._reported :]:
            self._reported += 1
            if self._view is not None:
                self._view.fault(fault)

    def say(self, doing: str) -> None:
        """Show what the demo does now."""
        if doing != self._scene.doing:
            _log.info("doing", what=doing)
        self._scene.doing = doing
        self.changed()

    def changed(self) -> None:
        """Show the scene as it is now."""
        if self.begin:
            self._scene.at_s = time.monotonic() - self.begin
            self._scene.faults = self.faults()
        if self._view is not None:
            self._view.scene(self._scene)

    # ---- the end ---------------------------------------------------------------------------------------------

    def common(self, histories: Iterable[Path]) -> dict[str, Any]:
        """The fields of the outcome that are the same for all demos. It checks these histories, and takes a while."""
        return {
            "check": check([self.out / HISTORY, self.out / "producer.jsonl", *histories], groups=[GROUP]),
            "event_count": self._scene.total,
            "faults": tuple(self.faults()),
            "seed": self._settings.seed,
            "quick": self._settings.quick,
            "hits_min": self._scene.hits_min,
            "longest_silence_s": self.sent["longest_silence_s"],
        }
