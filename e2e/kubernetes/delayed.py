"""Delayed messages beside the traffic of a case: sent all the time, read all the time, and judged at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from seriatim import Client, Producer, Tls
from seriatim_api.errors import SeriatimError

from e2e.kubernetes.release import topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import bootstrap_of, wait_topic_ready
from e2e.lateness import Arrivals, value_of

PERIOD_S: Final = 0.05
DELAY_MS_MIN: Final = 500
DELAY_MS_MAX: Final = 5_000
LAST_S: Final = 60.0
"""How long the last messages may take to come."""


class DelayedTraffic:
    """What was sent, what was refused, and what came.

    Attributes:
        arrivals: What came.
        due_ms: When each acknowledged message is due, by number.
        refused_count: How many were refused before the first was stored. Brokers refuse delayed messages as long as one
            of them does not know them.
        refusal: What the last one of these was refused with.
        failed_count: How many failed afterwards. They may come all the same.
        is_stopping: Whether no more are to be sent.
    """

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.due_ms: dict[int, int] = {}
        self.refused_count = 0
        self.refusal = ""
        self.failed_count = 0
        self.is_stopping = False
        self._delays = random.Random(1)

    async def send(self, producer: Producer) -> None:
        """Send a message every 50 ms until `is_stopping`. Then wait for the answers."""
        number = 0
        async with asyncio.TaskGroup() as tasks:
            while not self.is_stopping:
                number += 1
                tasks.create_task(self._send(producer, number))
                await asyncio.sleep(PERIOD_S)

    async def _send(self, producer: Producer, number: int) -> None:
        delay_ms = self._delays.randint(DELAY_MS_MIN, DELAY_MS_MAX)
        try:
            receipt = await (await producer.send(value_of(number), partition=number % 2, delay_ms=delay_ms))
        except SeriatimError as error:
            if self.due_ms:
                self.failed_count += 1
            else:
                self.refused_count += 1
                self.refusal = str(error)
        else:
            self.due_ms[number] = receipt.due_ms or 0

    def judge(self, stage: Stage) -> None:
        """Report figures, and as problems what was lost, came twice or too early."""
        late_ms = sorted(late for _, late in self.arrivals.late(self.due_ms))
        stage.note(
            f"delayed messages: {self.refused_count:,} were refused before the first was stored ({self.refusal}), "
            f"{len(self.due_ms):,} were stored, {self.failed_count:,} failed then"
        )
        if late_ms:
            stage.figure("delayed messages late, longest", late_ms[-1] / 1000)
        for problem in self.arrivals.problems(self.due_ms):
            stage.problem(f"delayed messages: {problem}")


@asynccontextmanager
async def delayed_traffic(stage: Stage) -> AsyncIterator[DelayedTraffic]:
    """Send and read delayed messages of a topic of their own for as long as the block lasts. Then read the last ones,
    and judge.

    Raises:
        StillNotError: The topic is not ready in time.
    """
    topic = f"delayed-{stage.number}"
    await stage.place.apply(topic_manifest(stage.place.namespace, topic, 2))
    await wait_topic_ready(stage.place, topic)
    traffic = DelayedTraffic()
    tls = Tls(**await stage.certificates())
    async with (
        Client.connect(bootstrap_of(stage.place), name="delayed", tls=tls) as client,
        client.consumer(topic, "late", start="earliest") as consumer,
        client.producer(topic) as producer,
    ):
        reading = asyncio.create_task(traffic.arrivals.read(consumer))
        sending = asyncio.create_task(traffic.send(producer))
        try:
            yield traffic
            traffic.is_stopping = True
            await asyncio.wait([sending])
            await traffic.arrivals.wait_for(len(traffic.due_ms), LAST_S)
        finally:
            sending.cancel()
            reading.cancel()
            ends = await asyncio.gather(sending, reading, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                stage.problem(f"delayed messages: {end}")
    traffic.judge(stage)
