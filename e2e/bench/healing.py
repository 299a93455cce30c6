"""Measures how fast a new disk gets the copies of a lost one, and how much that slows producers. Part of
`e2e.bench.drain`.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from seriatim import Client, Producer, SendError
from seriatim_api.ids import RunId
from seriatim_local import LocalCluster
from seriatim_local.layout.plan import BrokerPlan, ClusterPlan
from seriatim_local.layout.programs import SeriatimPrograms

from e2e.bench.load.bulk import pieces, send_while
from e2e.bench.load.setup import DEADLINE_S, MESSAGE_SIZE_BYTES, make_topic
from e2e.bench.measures.figures import Figure, percentile
from e2e.bench.program import Progress
from e2e.observe import Observer, Snapshot

HEALED: Final = "healed"
STEADY: Final = "steady"
STEADY_PARTITIONS: Final = 4
CALM_S: Final = 5.0
"""How long the producers' latency is measured before the disk is lost."""

PIECE_ROWS: Final = 2_000
HEAL_DEADLINE_S: Final = 180.0
LOOK_S: Final = 0.02
BEGUN_BYTES: Final = 4 << 20
"""If a new disk has this many bytes, copies are arriving on it. An empty log has fewer bytes."""

AIM_MB_PER_S: Final = 300.0
AIM_P99_RATIO: Final = 2.0
SEND_PAUSE_S: Final = 0.005


@dataclass(slots=True)
class _Programs:
    """The real programs. A broker in `new_disks` is started once with `--replace-disk`, which declares its empty
    directory a new disk.
    """

    inner: SeriatimPrograms
    new_disks: set[str] = field(default_factory=set)

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        """Return the command line of `seriatim broker`."""
        argv = self.inner.broker(plan, broker, data)
        if broker.name in self.new_disks:
            self.new_disks.remove(broker.name)
            return [*argv, "--replace-disk"]
        return argv

    def coordinator(self, plan: ClusterPlan, data: Path) -> Sequence[str]:
        """Return the command line of `seriatim coordinator`."""
        return self.inner.coordinator(plan, data)

    def last_run(self, data: Path, broker: str) -> RunId | None:
        """Read the last member run as the real programs do."""
        return self.inner.last_run(data, broker)


class _Latency:
    """A producer that sends one message at a time. It notes when it sent each, and how many seconds each took."""

    def __init__(self, producer: Producer, partition: int) -> None:
        self._producer = producer
        self._partition = partition
        self.taken: list[tuple[float, float]] = []

    async def send(self) -> None:
        """Send until the task is cancelled."""
        value = random.Random(self._partition).randbytes(MESSAGE_SIZE_BYTES)
        while True:
            sent_at = time.monotonic()
            try:
                await (await self._producer.send(value, partition=self._partition))
            except SendError:
                continue
            self.taken.append((sent_at, time.monotonic() - sent_at))
            await asyncio.sleep(SEND_PAUSE_S)


def _p99_ms(senders: Sequence[_Latency], begin: float, end: float) -> float:
    """Return the 99th percentile over all messages that were sent in [begin, end), in ms."""
    taken = [took_s for sender in senders for sent_at, took_s in sender.taken if begin <= sent_at < end]
    return percentile(taken or [0.0], 0.99) * 1000


def _held_bytes(data: Path) -> int:
    held = 0
    for file in data.rglob("*"):
        try:
            held += file.stat().st_size
        except FileNotFoundError:
            continue
    return held


async def measure_healing(directory: Path, progress: Progress, count: int) -> list[Figure]:
    """Fill a partition, lose the disk of a member that holds it, and give the slot a new one.

    Raises:
        SeriatimError: The cluster did not come up, or the new disk was not filled in time.
    """
    programs = _Programs(SeriatimPrograms("embedded"))
    async with (
        LocalCluster(directory / "healing", groups=2, proxy=False, name="bench", programs=programs) as cluster,
        Client.connect(cluster.bootstrap) as client,
    ):
        await make_topic(client.admin(), HEALED, 1)
        await make_topic(client.admin(), STEADY, STEADY_PARTITIONS)
        progress(f"sending {count:,} messages")
        async with client.producer(HEALED) as producer:
            sent = await send_while(producer, pieces(PIECE_ROWS), 1, lambda sent: sent < count)
        async with client.producer(STEADY) as producer, asyncio.TaskGroup() as tasks:
            senders = [_Latency(producer, partition) for partition in range(STEADY_PARTITIONS)]
            running = [tasks.create_task(sender.send(), name="steady sender") for sender in senders]
            progress("producers without healing")
            await asyncio.sleep(CALM_S)
            calm_ms = _p99_ms(senders, time.monotonic() - CALM_S, time.monotonic())
            progress("healing")
            begin, end = await _heal(cluster, client, programs, sent.ok)
            for task in running:
                task.cancel()
        healing_ms = _p99_ms(senders, begin, end)
    megabytes = sent.ok * MESSAGE_SIZE_BYTES / 1e6
    return [
        Figure(
            "healing", "a new disk is filled", megabytes / (end - begin), "MB/s", AIM_MB_PER_S, higher_is_better=True,
            details={"count": sent.ok, "took_s": round(end - begin, 3)},
        ),
        Figure(
            "healing_p99", "producers' p99 meanwhile, times as long", healing_ms / calm_ms, "x", AIM_P99_RATIO,
            details={"p99_ms": round(healing_ms, 3), "p99_before_ms": round(calm_ms, 3)},
        ),
    ]  # fmt: skip


async def _heal(cluster: LocalCluster, client: Client, programs: _Programs, length: int) -> tuple[float, float]:
    """Give the slot of a killed member a new disk.

    Return when the disk began to be filled, and when it had everything.
    """
    observer = Observer(client.admin(), HEALED)
    open_segment = (await observer.look()).chains[0].open_segment
    lost = open_segment.members[1]
    await cluster.kill(lost)
    await observer.wait_until(
        lambda now: now.chains[0].open_segment.no > open_segment.no, "the partition moved on", DEADLINE_S
    )
    data = cluster.data_directory(lost)
    await asyncio.to_thread(shutil.rmtree, data)
    data.mkdir(mode=0o700)
    programs.new_disks.add(lost)
    begun_at = asyncio.create_task(asyncio.to_thread(_filling_begins, data), name="look at the new disk")
    await cluster.start_again(lost)

    def is_whole(now: Snapshot) -> bool:
        (segment,) = (segment for segment in now.chains[0].segments if segment.no == open_segment.no)
        assert segment.sealed_len is None or segment.sealed_len == length, "the segment holds what was acknowledged"
        return begun_at.done() and lost in segment.members and lost in segment.eligible

    try:
        await observer.wait_until(is_whole, "the new disk has everything", HEAL_DEADLINE_S)
    finally:
        begin = await begun_at
    return begin, time.monotonic()


def _filling_begins(data: Path) -> float:
    """Wait until the disk holds `BEGUN_BYTES`. Return the time. Blocks the thread."""
    until = time.monotonic() + DEADLINE_S
    while _held_bytes(data) < BEGUN_BYTES and time.monotonic() < until:
        time.sleep(LOOK_S)
    return time.monotonic()
