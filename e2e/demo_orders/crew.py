"""The processes with consumers: starts them, tells them what they must know, kills and freezes them, replaces them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from e2e.demo.report import DemoFault
from e2e.demo.run import GROUP, TOPIC
from e2e.demo_orders.delivery_attempts import TRY_MARK
from e2e.demo_orders.fates import Poison
from e2e.demo_orders.judging import Kill
from e2e.demo_orders.planning import ConsumerFault
from e2e.demo_orders.settings import OrderSettings
from e2e.workers import Worker, start_worker

READY_DEADLINE_S: Final = 90.0
GUARD_S: Final = 0.2


@dataclass(eq=False)
class Crew:
    """All processes with consumers.

    Attributes:
        settings: The settings of the run.
        stack: Ends the processes.
        bootstrap: The addresses of the brokers.
        on_change: Called when the figures have changed.
        records: The faults so far.
        kills: The kills among them, as the judge needs them.
    """

    settings: OrderSettings
    stack: AsyncExitStack
    bootstrap: Sequence[str]
    on_change: Callable[[], None]
    records: list[DemoFault] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    _finished_at: list[int] = field(default_factory=list)  # by fault: how many messages were finished when it struck
    _workers: list[Worker] = field(default_factory=list)
    _struck: set[Worker] = field(default_factory=set)
    _by_name: dict[str, int] = field(default_factory=dict)
    _poison: Poison | None = None

    def __post_init__(self) -> None:
        self._places = self.settings.places
        self._starts = [0] * len(self._places)

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
        return self.settings.out / f"consumers-{process + 1}{TRY_MARK}{start}-{kind}.jsonl"

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
        settings = self.settings
        self._starts[process] += 1
        start = self._starts[process]
        names = [name if start == 1 else f"{name}{TRY_MARK}{start}" for name in self._places[process]]
        arguments = [
            "--bootstrap", ",".join(self.bootstrap), "--topic", TOPIC, "--group", GROUP,
            "--names", ",".join(names), "--concurrency", str(settings.concurrency), "--seed", str(settings.seed),
            "--poison", json.dumps({"poison": self._poison}), "--store", str(settings.out / "store.sqlite"),
            "--attempts", str(self._file(process, start, "attempts")),
            "--history", str(self._file(process, start, "history")), "--plant", settings.planted,
        ]  # fmt: skip
        log = settings.out / f"consumers-{process + 1}.log"
        return await self.stack.enter_async_context(
            start_worker(f"consumers {process + 1}", "e2e.demo_orders.consumer", arguments, log=log, on_line=self._says)
        )

    def _says(self, line: dict[str, Any]) -> None:
        if line["k"] in ("progress", "done"):
            self._by_name.update(line["finished"])
            self.on_change()

    def take_finished(self, by_consumer: Mapping[str, int]) -> None:
        """Take how many messages each consumer has finished, from the store.

        A process that was killed did not say its last figures.
        """
        self._by_name.update(by_consumer)
        self.on_change()

    def tell_poison(self, poison: Poison | None) -> None:
        """Notify all consumers, also those that will be started, which aircraft fails from now on."""
        self._poison = poison
        for worker in self._workers:
            worker.tell(poison=poison)

    async def guard(self) -> None:
        """Wait until a process ends that was neither struck nor told to finish.

        Raises:
            WorkerError: One did.
        """
        while True:
            for worker in self._workers:
                if worker.has_ended and worker not in self._struck:
                    await worker.wait_for("done", 0)
            await asyncio.sleep(GUARD_S)

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
            victim = f"{names[0]} to {names[-1]}"
            self.records.append(DemoFault(fault.kind, victim, "consumer", struck_at - begin))
            self._finished_at.append(sum(self.finished.values()))
            self.on_change()
            if fault.kind == "kill consumers":
                self.kills.append((names, struck_at))
                await self._kill(process)
            else:
                await self._freeze(process, fault.hold_s)
            self.records[-1] = replace(self.records[-1], healed_at_s=time.monotonic() - begin)
            self.on_change()

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
        following.tell(poison=self._poison)  # what was reported to it while it started
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
            WorkerError: A process did not end cleanly.
        """
        for worker in self._workers:
            worker.tell(finish=True)
        for worker in self._workers:
            await worker.wait_for("done", deadline_s)
