"""Parts of several benchmarks: a cluster of processes, a topic on it, and a producer whose gaps are measured."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from seriatim import Admin, Client, Delivery, Producer, SendError, TopicSettings
from seriatim_local import LocalCluster
from seriatim_local.links.delays import NO_DELAY

from e2e.distance import read_delay
from e2e.observe import Observer, Snapshot

MESSAGE_SIZE_BYTES: Final = 512
SETTINGS: Final = TopicSettings(flush=True)

SEND_PAUSE_S: Final = 0.001
"""The time between two messages while a master is killed. The gap is measured with about this error."""

DEADLINE_S: Final = 30.0


class SteadySender:
    """Sends a message every `SEND_PAUSE_S` and notes when each was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._under_way: asyncio.Queue[Delivery] = asyncio.Queue()
        self._acknowledged = asyncio.Event()
        self.ack_times: list[float] = []
        self.not_ok = 0

    async def send(self) -> None:
        """Send until the task is cancelled."""
        value = random.Random(3).randbytes(MESSAGE_SIZE_BYTES)
        while True:
            self._under_way.put_nowait(await self._producer.send(value))
            await asyncio.sleep(SEND_PAUSE_S)

    async def note(self) -> None:
        """Note outcomes until the task is cancelled.

        It waits for them in the order of sending, because the outcomes of one partition come in this order.
        """
        while True:
            delivery = await self._under_way.get()
            try:
                await delivery
            except SendError:
                self.not_ok += 1
            else:
                self.ack_times.append(time.monotonic())
                self._acknowledged.set()

    async def wait_for_ack_after(self, at: float) -> None:
        """Wait until a message was acknowledged after `at`."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.ack_times or self.ack_times[-1] <= at:
                self._acknowledged.clear()
                await self._acknowledged.wait()

    def gap_s(self, at: float) -> float:
        """Return the longest time between two acknowledgements of which the later came after `at`."""
        return max(later - earlier for earlier, later in pairwise(self.ack_times) if later > at)


@asynccontextmanager
async def bench_cluster(directory: Path, groups: int, members: int = 2) -> AsyncIterator[tuple[LocalCluster, Client]]:
    """Start a cluster of `groups` broker groups of `members` each in a new directory, and a client of it.

    Both end with the block. With LATENCY in the environment, all links go through the proxy, which delays them; with
    LATENCY=0 by nothing.
    """
    delay, place = read_delay(os.environ), directory / f"groups-{groups}"
    async with (
        LocalCluster(
            place, groups=groups, members=members, proxy=delay is not None, delay=delay or NO_DELAY, name="bench"
        ) as cluster,
        Client.connect(cluster.bootstrap) as client,
    ):
        yield cluster, client


async def make_topic(admin: Admin, name: str, partition_count: int) -> None:
    """Make a topic that flushes, and wait until it accepts messages."""
    await admin.create_topic(name, partition_count, settings=SETTINGS)
    await Observer(admin, name).wait_until(Snapshot.settled, f"{name} accepts", DEADLINE_S)
