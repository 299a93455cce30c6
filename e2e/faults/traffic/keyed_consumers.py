"""A group of workers beside the load of a case: consumers by key, whose handlers fail and whose processes are killed.

The suite is also the administrator of this group: it releases and skips parked keys, or replays dead letters, while the
fault lasts. At the end no message fails any more, and each must be acknowledged, or be a dead letter, or have been
skipped. The checker judges all of it by the histories of the workers and of the administrator.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from seriatim import Admin, Client, GroupKey, GroupPartition, GroupSettings, RetryPolicy
from seriatim.history import HistoryWriter
from seriatim_api.errors import DeadlineExceededError, SeriatimError
from seriatim_api.retry import dead_letter_topic_of

from e2e.faults.systems.namespaces import Namespaces
from e2e.faults.traffic.client import number_of, opened
from e2e.faults.traffic.keyed_worker import CRASHED
from e2e.faults.traffic.load import BEGIN_DEADLINE_S, DRAIN_DEADLINE_S
from e2e.workers import Worker, WorkerError, start_worker

GROUP: Final = "workers"
PROCESSES: Final = 2

LOOK_S: Final = 0.5
"""The time between two looks at the keys and dead letters."""

KILLED_AFTER_S: Final = (0.8, 2.5)
"""A process is killed after this many seconds, and replaced. Then the next one is."""

KILLS_MAX: Final = 2
"""At most this many processes end in a case, those that a handler ends included: a new one takes a second to start."""

CRASH_AFTER: Final = (50, 300)
"""A handler ends the first process when it was called so often, from when all consumers have joined."""

SKIPPED_SHARE: Final = 0.2
"""The share of parked keys whose first message is skipped. The others are released, and mostly park again."""

PARKING: Final = RetryPolicy(
    attempts_max=3, back_off="list", delays_ms=(40, 120), exhausted="park_key", grant_ms=10_000
)  # fmt: skip
DEAD_LETTERING: Final = RetryPolicy(
    attempts_max=3, back_off="list", delays_ms=(40, 120), exhausted="dead_letter", grant_ms=10_000
)  # fmt: skip


class Workers:
    """The processes of workers, which serve one case after another. Those that ended are replaced.

    Args:
        log: The file for their stderr.
        network: The network in which they live; None: the network of this process.
    """

    def __init__(self, log: Path, network: Namespaces | None = None) -> None:
        self._log = log
        self._network = network
        self._stacks: dict[int, AsyncExitStack] = {}
        self._workers: dict[int, Worker] = {}

    async def end(self) -> None:
        """End all processes."""
        for stack in self._stacks.values():
            await stack.aclose()
        self._stacks.clear()

    async def get(self, number: int) -> Worker:
        """Return the process of that number, a new one if there was none yet, or it was forgotten.

        Raises:
            WorkerError: It did not start.
        """
        if number not in self._workers:
            stack = self._stacks[number] = AsyncExitStack()
            place = () if self._network is None else ("--namespace", self._network.namespace("reader"))
            self._workers[number] = await stack.enter_async_context(
                start_worker(f"worker {number}", "e2e.faults.traffic.keyed_worker", place, log=self._log)
            )
            await self._workers[number].wait_for("ready", BEGIN_DEADLINE_S)
        return self._workers[number]

    async def forget(self, number: int) -> None:
        """The process has ended, or hangs: it is not used any more."""
        self._workers.pop(number, None)
        stack = self._stacks.pop(number, None)
        if stack is not None:
            await stack.aclose()


class Crew:
    """The group of workers of one case. The caller must `end` it.

    Args:
        workers: The processes.
        bootstrap: The addresses of the brokers.
        case: The number of the case.
        topic: Its topic.
        partitions: The number of partitions of the topic.
        dice: Dice of its own, because the number of draws depends on the time that things take.
        directory: The directory for the histories.
    """

    def __init__(
        self,
        workers: Workers,
        bootstrap: Sequence[str],
        case: int,
        topic: str,
        partitions: int,
        dice: random.Random,
        directory: Path,
    ) -> None:
        self.kill_count = 0
        self.crash_count = 0
        self._workers = workers
        self._bootstrap = list(bootstrap)
        self._case = case
        self._topic = topic
        self._partitions = partitions
        self._dice = dice
        self._directory = directory
        self._policy = dice.choice((PARKING, DEAD_LETTERING))
        self._seed = f"{dice.random()}"
        self._starts = 0
        self._is_mended = False
        self._is_over = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._admin: Admin | None = None
        self._acts = {"released": 0, "skipped": 0, "replayed": 0}

    @property
    def summary(self) -> str:
        """What happened, for humans."""
        acts = ", ".join(f"{count} {name}" for name, count in self._acts.items() if count)
        return (
            f"workers by key ({self._policy.exhausted}): {self.kill_count} killed, {self.crash_count} crashed; "
            f"{acts or 'no key parked'}"
        )

    async def begin(self) -> None:
        """Make the group, and let the workers work. Then the kills begin, and the administrator acts.

        Raises:
            SeriatimError, WorkerError: The group could not be made, or a worker did not begin.
        """
        history = self._stack.enter_context(HistoryWriter(self._directory / "person.jsonl", "person"))
        client = await self._stack.enter_async_context(
            Client.connect(self._bootstrap, name="person", recorder=history, message_id=number_of)
        )
        self._admin = client.admin()
        settings = GroupSettings("key_ordered", self._policy)
        await opened(lambda: client.admin().create_group(self._topic, GROUP, settings=settings))
        await asyncio.gather(*(self._begin(number) for number in range(PROCESSES)))
        for number in range(PROCESSES):
            await (await self._workers.get(number)).wait_for(f"joined {self._case}", BEGIN_DEADLINE_S)
        (await self._workers.get(0)).tell(do="crash", case=self._case, after=self._dice.randint(*CRASH_AFTER))
        self._tasks = [
            asyncio.create_task(self._kill(), name="kills of workers"),
            asyncio.create_task(self._be_the_person(), name="administrator of the workers"),
        ]

    async def _begin(self, number: int) -> None:
        self._starts += 1
        name = f"worker-{number}-{self._starts}"
        (await self._workers.get(number)).tell(
            do="begin",
            case=self._case,
            name=name,
            bootstrap=self._bootstrap,
            topic=self._topic,
            group=GROUP,
            partitions=self._partitions,
            history=str(self._directory / f"{name}.jsonl"),
            seed=self._seed,
            mended=self._is_mended,
            tls=None,
        )

    async def _kill(self) -> None:
        """Kill one process after another, and replace also those that a handler has ended."""
        number = 0
        while not self._is_over.is_set() and self.kill_count + self.crash_count < KILLS_MAX:
            worker = await self._workers.get(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._dice.uniform(*KILLED_AFTER_S)):
                    await _first(worker.wait_ended(), self._is_over.wait())
            if worker.has_ended:
                status = await worker.status()
                if status != CRASHED:
                    raise WorkerError(f"{worker.name} ended by itself (status {status})")
                self.crash_count += 1
            elif self._is_over.is_set():
                return
            else:
                worker.send_signal(signal.SIGKILL)
                self.kill_count += 1
            await self._workers.forget(number)
            await self._begin(number)
            number = (number + 1) % PROCESSES

    async def _be_the_person(self) -> None:
        while not self._is_over.is_set():
            with suppress(SeriatimError):  # a broker is away: the next look reports
                await self._act()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_over.wait()

    async def _act(self) -> None:
        """Do what an administrator does: release parked keys, skip the first messages of some, replay dead letters."""
        assert self._admin is not None
        keys = [key async for key in self._admin.group_keys(self._topic, GROUP, states=["parked"])]
        skipped = [] if self._is_mended else [key for key in keys if self._dice.random() < SKIPPED_SHARE]
        await self._operate("skipped", skipped)
        await self._operate("released", [key for key in keys if key not in skipped])
        if self._policy.exhausted == "dead_letter":
            topic = dead_letter_topic_of(self._topic, GROUP)
            letters = [letter async for letter in self._admin.dead_letters(topic, GROUP)]
            if letters and (self._is_mended or self._dice.random() < 0.5):
                self._acts["replayed"] += len(await self._admin.replay_dead_letters(topic, letters))

    async def _operate(self, act: str, keys: list[GroupKey]) -> None:
        assert self._admin is not None
        if keys:
            operate = self._admin.skip_keys if act == "skipped" else self._admin.release_keys
            results = await operate(self._topic, GROUP, keys)
            self._acts[act] += sum(result.error is None for result in results)

    # ---- the end -------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Stop the kills, mend the handlers, and wait until the group is done with all messages.

        Raises:
            DeadlineExceededError: It is not, in time.
            WorkerError: A worker did not begin.
        """
        await self._stop()
        assert self._admin is not None  # `begin` made it
        self._is_mended = True
        for number in range(PROCESSES):
            worker = await self._workers.get(number)
            if worker.has_ended:  # a handler ended it after the last kill
                self.crash_count += 1
                await self._workers.forget(number)
                await self._begin(number)
            worker.tell(do="mend", case=self._case)
        until, waits = time.monotonic() + DRAIN_DEADLINE_S, "the group is not known"
        while waits:
            if time.monotonic() > until:
                raise DeadlineExceededError(f"the workers are not done after {DRAIN_DEADLINE_S:g} s: {waits}")
            try:
                await self._act()
                waits = await self._what_waits()
            except SeriatimError as error:
                waits = str(error)
            if waits:
                await asyncio.sleep(LOOK_S / 2)

    async def _what_waits(self) -> str:
        """Say what the group is not done with, as human-readable text; empty if it is done with all."""
        assert self._admin is not None
        if self._policy.exhausted == "dead_letter":
            topic = dead_letter_topic_of(self._topic, GROUP)
            if [letter async for letter in self._admin.dead_letters(topic, GROUP)]:
                return "dead letters are not replayed"
        return what_waits((await self._admin.describe_group(self._topic, GROUP)).partitions)

    async def _stop(self) -> None:
        self._is_over.set()
        tasks, self._tasks = self._tasks, []
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    async def end(self) -> None:
        """Let the processes close their histories. Those that do not are replaced."""
        with suppress(SeriatimError, WorkerError):
            await self._stop()
        for number in range(PROCESSES):
            try:
                worker = await self._workers.get(number)
                worker.tell(do="end", case=self._case)
                await worker.wait_for(f"ended {self._case}", BEGIN_DEADLINE_S)
            except Exception:  # its history has no last line, so the checker knows that it is cut short
                await self._workers.forget(number)
        await self._stack.aclose()


def what_waits(rows: Sequence[GroupPartition]) -> str:
    """Say what a consumer group is not done with, as human-readable text; empty if it is done with all."""
    for row in rows:
        if row.error is not None or row.end_is_at_least or row.position is None:
            return f"partition {row.partition}: {row.error or 'its end is not known'}"
        counts = {
            "behind": (row.end_position or 0) - row.position,
            "in flight": row.in_flight_messages,
            "set aside": row.aside_messages,
            "parked": row.parked_keys,
            "delayed": row.delayed_keys,
            "forwarding": row.forwarding_keys,
        }
        if any(counts.values()):
            return f"partition {row.partition}: " + ", ".join(f"{n} {what}" for what, n in counts.items() if n)
    return ""


async def _first(*waits: object) -> None:
    """Wait for the first of these. The others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
