"""The processes with consumers: starts them, tells them what they must know, kills and freezes them, replaces them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from e2e.demo.report import DemoFault
from e2e.demo_orders.delivery_attempts import TRY_MARK
from e2e.demo_orders.fates import Poison, poison_to_plain
from e2e.demo_orders.judging import Strike
from e2e.demo_orders.planning import ConsumerFault
from e2e.demo_orders.settings import Settings
from e2e.workers import Worker, WorkerError, start_worker

READY_DEADLINE_S: Final = 90.0


def place_names(settings: Settings) -> list[list[str]]:
    """The names of the consumers' places, by process: c01, c02, …"""
    each = settings.consumers_each
    return [
        [f"c{number:02}" for number in range(process * each + 1, (process + 1) * each + 1)]
        for process in range(settings.process_count)
    ]


class Crew:
    """All processes with consumers. As a context manager, it ends them.

    Args:
        settings: The settings of the run.
        bootstrap: The addresses of the brokers.
        topic: The topic that is consumed.
        group: The consumer group.
        on_change: Called when the figures have changed.

    Attributes:
        finished: By the consumers' places: how many messages they have finished.
        records: The faults so far.
        strikes: The same faults, as the judge needs them.
    """

    def __init__(
        self,
        settings: Settings,
        bootstrap: Sequence[str],
        topic: str,
        group: str,
        *,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._on_change = on_change
        self._places = place_names(settings)
        self._starts = [0] * len(self._places)
        self._workers: list[Worker] = []
        self._struck: set[Worker] = set()
        self._by_name: dict[str, int] = {}
        self._poison: dict[str, Poison] = {}
        self._stack = AsyncExitStack()
        self._watchers: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._why = ""
        self.records: list[DemoFault] = []
        self._finished_at: list[int] = []  # by fault: how many messages were finished when it struck
        self.strikes: list[Strike] = []

    async def __aenter__(self) -> Crew:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._stack.aclose()
        finally:
            for task in self._watchers:
                task.cancel()
            await asyncio.gather(*self._watchers, return_exceptions=True)

    @property
    def finished(self) -> dict[str, int]:
        """By the consumers' places: how many messages they have finished, those of killed processes included."""
        sums = {name: 0 for names in self._places for name in names}
        for name, count in self._by_name.items():
            sums[name.partition(TRY_MARK)[0]] += count
        return sums

    @property
    def starts(self) -> int:
        """How many processes were started."""
        return sum(self._starts)

    def files(self, kind: str) -> list[Path]:
        """The files of that kind (`attempts` or `history`) of all processes so far."""
        return [
            self._file(process, start, kind)
            for process, starts in enumerate(self._starts)
            for start in range(1, starts + 1)
        ]

    def _file(self, process: int, start: int, kind: str) -> Path:
        return self._settings.out / f"consumers-{process + 1}{TRY_MARK}{start}-{kind}.jsonl"

    async def start(self) -> None:
        """Start all processes, and wait until the brokers know all consumers.

        Raises:
            WorkerError: A process ended, or took too long.
        """
        for process in range(len(self._places)):
            self._workers.append(await self._start(process))
        for worker in self._workers:
            await worker.wait_for("ready", READY_DEADLINE_S)

    async def _start(self, process: int) -> Worker:
        settings = self._settings
        self._starts[process] += 1
        start = self._starts[process]
        names = [name if start == 1 else f"{name}{TRY_MARK}{start}" for name in self._places[process]]
        arguments = [
            "--bootstrap", ",".join(self._bootstrap), "--topic", self._topic, "--group", self._group,
            "--names", ",".join(names), "--concurrency", str(settings.concurrency), "--seed", str(settings.seed),
            "--poison", json.dumps(poison_to_plain(self._poison)), "--store", str(settings.out / "store.sqlite"),
            "--attempts", str(self._file(process, start, "attempts")),
            "--history", str(self._file(process, start, "history")), "--plant", settings.planted,
        ]  # fmt: skip
        log = settings.out / f"consumers-{process + 1}.log"
        worker = await self._stack.enter_async_context(
            start_worker(f"consumers {process + 1}", "e2e.demo_orders.consumer", arguments, log=log, on_line=self._says)
        )
        self._watchers.append(asyncio.create_task(self._watch(worker, log), name=f"end of {worker.name}"))
        return worker

    def _says(self, line: dict[str, Any]) -> None:
        if line["k"] in ("progress", "done"):
            self._by_name.update(line["finished"])
            self._on_change()

    def take_finished(self, by_consumer: Mapping[str, int]) -> None:
        """Take how many messages each consumer has finished, from the store.

        A process that was killed did not say its last figures.
        """
        self._by_name.update(by_consumer)
        self._on_change()

    def tell_poison(self, poison: Mapping[str, Poison]) -> None:
        """Tell all consumers, also those that will be started, which aircraft fail from now on."""
        self._poison = dict(poison)
        for worker in self._workers:
            worker.tell(poison=poison_to_plain(poison))

    async def guard(self) -> None:
        """Wait until a process ends that was neither struck nor told to finish.

        Raises:
            WorkerError: One did.
        """
        await self._ended.wait()
        raise WorkerError(self._why)

    async def _watch(self, worker: Worker, log: Path) -> None:
        await worker.wait_ended()
        if worker not in self._struck:
            self._why = f"{worker.name} ended; see {log}"
            self._ended.set()

    # ---- faults --------------------------------------------------------------------------------------

    async def strike(self, faults: Sequence[ConsumerFault], begin: float) -> None:
        """Carry the faults out, one after another.

        Args:
            faults: The faults in their order.
            begin: When the demo began to send, on the monotonic clock, in seconds.
        """
        for fault in faults:
            await asyncio.sleep(fault.pause_s)  # the time between two faults
            process = int(fault.pick * len(self._workers))
            names = self._places[process]
            struck_at = time.monotonic()
            self.strikes.append(Strike(fault.kind, tuple(names), struck_at))
            victim = f"{names[0]} to {names[-1]}"
            self.records.append(DemoFault(fault.kind, victim, "consumer", struck_at - begin, None, True, None))
            self._finished_at.append(sum(self.finished.values()))
            self._on_change()
            if fault.kind == "kill consumers":
                await self._kill(process)
            else:
                await self._freeze(process, fault.hold_s)
            self.records[-1] = replace(self.records[-1], healed_at_s=time.monotonic() - begin)
            self._on_change()

    def judge_hits(self) -> None:
        """A fault counts only if messages were finished before it and after it."""
        total = sum(self.finished.values())
        self.records = [
            replace(record, hit=0 < count < total)
            for record, count in zip(self.records, self._finished_at, strict=True)
        ]

    async def _kill(self, process: int) -> None:
        worker = self._workers[process]
        self._struck.add(worker)
        worker.send_signal(signal.SIGKILL)
        await worker.wait_ended()
        following = await self._start(process)
        await following.wait_for("ready", READY_DEADLINE_S)
        following.tell(poison=poison_to_plain(self._poison))  # what it was told while it started
        self._workers[process] = following

    async def _freeze(self, process: int, hold_s: float) -> None:
        worker = self._workers[process]
        worker.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(hold_s)  # this is how long the freeze lasts
        finally:
            worker.send_signal(signal.SIGCONT)

    async def finish(self, deadline_s: float) -> None:
        """Let all consumers leave, and wait until they have.

        Raises:
            WorkerError: A process did not end in order.
        """
        for worker in self._workers:
            worker.tell(finish=True)
        for worker in self._workers:
            await worker.wait_for("done", deadline_s)
