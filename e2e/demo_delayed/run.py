"""What a run of the demo of delayed messages is, from an empty directory to the outcome.

    send       at a fixed rate, each message with a delay at random, to all partitions
    call back  some of them, at random moments before they are due
    strike     the master of a partition is killed, and started again; then that of the next one
    judge      each message came once, not too early, and none that was cancelled came

This process sends and reads. It ends every process that it started, also if it is interrupted.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from seriatim import CancelOutcome, Client, Producer, SendError, TopicSettings
from seriatim_api.errors import SeriatimError
from seriatim_local import LocalCluster

from e2e.demo.live import Scene, View
from e2e.demo.report import DemoFault, Told
from e2e.demo.run import workshop
from e2e.demo_delayed import picture
from e2e.demo_delayed.fates import Fates
from e2e.demo_delayed.settings import DelayedSettings
from e2e.lateness import Arrivals, now_ms, value_of
from e2e.observe import Observer, Snapshot

TOPIC: Final = "reminders"
PICTURE: Final = "picture.svg"

DEADLINE_S: Final = 90.0
DRAIN_S: Final = 60.0
"""The demo ends if nothing came for this long, in seconds."""

DOWN_S: Final = 2.0
"""A killed broker is started again after this time."""

DUE_LATER_MS: Final = 500
"""A message is called back at least this long before it is due."""

SHOW_S: Final = 0.2


@dataclass(slots=True)
class DelayedScene(Scene):
    """What is shown of the run."""

    title: ClassVar[str] = "Delayed messages"
    counted: ClassVar[str] = "fired"

    fired: int = 0
    cancelled: int = 0

    @property
    def done(self) -> int:
        """How many came or never come."""
        return self.fired + self.cancelled

    def more(self) -> str:
        """How many were called back."""
        return f"  {self.cancelled:,} cancelled"


class DelayedDemo:
    """One run. `run` may be called once."""

    def __init__(self, settings: DelayedSettings, view: View | None = None) -> None:
        self._settings = settings
        self._view = view
        self._scene = DelayedScene(settings.hits_min)
        self._chance = random.Random(settings.seed)
        self._arrivals = Arrivals()
        self._due_ms: dict[int, int] = {}
        self._outcomes: dict[int, CancelOutcome] = {}
        self._faults: list[DemoFault] = []
        self._begin = 0.0

    async def run(self) -> Told:
        """Run the demo, and say what the report reports.

        Raises:
            SeriatimError: The cluster did not come up, or did not come back after a fault.
        """
        settings = self._settings
        (settings.out / PICTURE).unlink(missing_ok=True)
        with workshop(settings.out) as data:
            self._say("starting six brokers and the coordinator")
            groups, members = settings.group_count, settings.member_count
            async with (
                LocalCluster(data, name="demo", groups=groups, members=members, delay=settings.delay) as cluster,
                Client.connect(cluster.bootstrap) as client,
            ):
                await self._on(cluster, client)
            shutil.rmtree(data, ignore_errors=True)
        fates = Fates(
            sent_count=settings.message_count, due_ms=self._due_ms, outcomes=self._outcomes,
            arrivals=self._arrivals, faults=self._faults, cancelled_min=settings.cancelled_count,
            hits_min=settings.hits_min, seed=settings.seed, quick=settings.quick,
            duration_s=max(1.0, *(arrival.at - self._begin for arrival in self._arrivals.came[-1:])),
        )  # fmt: skip
        picture.draw(settings.out / PICTURE, fates, self._begin)
        return fates.told(PICTURE)

    async def _on(self, cluster: LocalCluster, client: Client) -> None:
        settings, admin = self._settings, client.admin()
        await admin.create_topic(TOPIC, settings.partition_count, settings=TopicSettings(flush=True))
        observer = Observer(admin, TOPIC)
        await observer.wait_until(Snapshot.settled, "the topic accepts", DEADLINE_S)
        async with client.consumer(TOPIC, "readers") as consumer, client.producer(TOPIC) as producer:
            async with asyncio.timeout(DEADLINE_S):
                while len(consumer.joined) < settings.partition_count:
                    await consumer.fetch(timeout_s=0.05)
            self._begin = time.monotonic()
            self._scene.total = settings.message_count
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(work) for work in (self._arrivals.read(consumer), self._show())]
                sending = tasks.create_task(self._send(producer, client))
                await self._strike(cluster, observer)
                await sending
                self._say("waiting for the last messages")
                cancelled = sum(said is CancelOutcome.CANCELLED for said in self._outcomes.values())
                await self._arrivals.wait_for(len(self._due_ms) - cancelled, DRAIN_S)
                for task in beside:
                    task.cancel()

    # ---- messages ------------------------------------------------------------------------------------------

    async def _send(self, producer: Producer, client: Client) -> None:
        """Send all messages, and call some back. Return when each has an outcome."""
        settings = self._settings
        back = set(self._chance.sample(range(1, settings.message_count + 1), settings.cancelled_count))
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, settings.message_count + 1):
                at = self._begin + number / settings.rate
                if (wait_s := at - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                shortest, longest = settings.delay_s
                delay_s = self._chance.uniform((shortest + longest) / 2 if number in back else shortest, longest)
                tasks.create_task(self._one(producer, client, number, round(delay_s * 1000), is_back=number in back))

    async def _one(self, producer: Producer, client: Client, number: int, delay_ms: int, *, is_back: bool) -> None:
        partition = number % self._settings.partition_count
        try:
            receipt = await (await producer.send(value_of(number), partition=partition, delay_ms=delay_ms))
        except SendError:
            return
        self._due_ms[number] = receipt.due_ms or 0
        if is_back:
            left_ms = self._due_ms[number] - now_ms() - DUE_LATER_MS
            await asyncio.sleep(self._chance.uniform(0, max(left_ms, 0)) / 1000)
            while number not in self._outcomes:
                try:
                    self._outcomes[number] = await client.cancel(TOPIC, partition, receipt.offset)
                except SeriatimError as error:  # it was cancelled or not: the same call says which
                    if not error.retriable:
                        raise

    # ---- faults --------------------------------------------------------------------------------------------

    async def _strike(self, cluster: LocalCluster, observer: Observer) -> None:
        """Kill the masters of partitions, one after the other, and start each again."""
        settings = self._settings
        for number in range(settings.hits_min):
            until = self._begin + settings.fault_s * (number + 1)
            await asyncio.sleep(max(until - time.monotonic(), 0))
            chains = (await observer.look()).chains
            victim = self._chance.choice(chains).open_segment.members[0]
            struck_at = time.monotonic()
            await cluster.kill(victim)
            self._faults.append(DemoFault("kill", victim, "master", struck_at - self._begin))
            self._say(f"{victim} is killed")
            await asyncio.sleep(DOWN_S)
            await cluster.start_again(victim)
            await cluster.wait_ready(victim, deadline_s=DEADLINE_S)
            await observer.wait_until(Snapshot.settled, "the topic is settled", DEADLINE_S)
            gap_ms = self._arrivals.gap_s(struck_at) * 1000
            healed_at_s = time.monotonic() - self._begin
            self._faults[-1] = replace(self._faults[-1], healed_at_s=healed_at_s, gap_ms=gap_ms)
            self._say("")

    # ---- what is seen meanwhile ------------------------------------------------------------------------------

    def _say(self, doing: str) -> None:
        self._scene.doing = doing
        if self._view is not None:
            self._view.scene(self._scene)

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(SHOW_S)
            scene, fired = self._scene, len(self._arrivals.came)
            scene.at_s = time.monotonic() - self._begin
            scene.count(scene.at_s, fired - scene.fired)
            scene.fired, scene.faults = fired, self._faults
            scene.cancelled = sum(said is CancelOutcome.CANCELLED for said in self._outcomes.values())
            self._say(scene.doing)
