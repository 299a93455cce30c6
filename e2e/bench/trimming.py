"""`python -m e2e.bench.trimming`: how much retention slows producers, and how long a search for a time takes.

    trimming_p99     the 99th percentile of the time from a send to its acknowledgement while retention drops the
                     beginnings of another topic on the same brokers, as a multiple of the same while that topic keeps
                     everything. The producers send one message at a time. Both topics are sent to all the time;
                     keeping and dropping take turns.
    offsets_by_time  the time that `Client.offsets` takes to find a time in a chain of many segments, at a client

SEGMENTS=1000 (of the long chain; 3,000 take five minutes). Prints a table and writes `trimming.json` in `bench-out/`
(OUT= another directory).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from seriatim import Client, Producer, SendError, TopicSettings
from seriatim_api.errors import SeriatimError
from seriatim_local import LocalCluster

from e2e.bench.figures import Figure, percentile
from e2e.bench.program import Progress, run
from e2e.bench.steady import DEADLINE_S, MESSAGE_SIZE_BYTES, make_topic
from e2e.observe import Observer, Snapshot

DROPPED: Final = "dropped"
STEADY: Final = "steady"
LONG: Final = "long"
DROPPED_PARTITIONS: Final = 20
STEADY_PARTITIONS: Final = 4
KEPT_MS: Final = 12_000
LOOK_S: Final = 5
"""The time after which a broker looks again for messages that it may drop.

So twenty partitions are trimmed 240 times a minute.
"""

TURN_S: Final = 30.0
SETTLE_S: Final = 15.0
"""The time from a change of retention until the turn counts."""

TURNS: Final = 4
SEND_PAUSE_S: Final = 0.01
DROPPED_PAUSE_S: Final = 0.25
LOOKS: Final = 50

AIM_P99_RATIO: Final = 1.3
AIM_LOOK_MS: Final = 20.0


async def _send(producer: Producer, partition: int, pause_s: float, taken: list[tuple[float, float]]) -> None:
    """Send one message at a time until the task is cancelled. Note when each was sent, and how many seconds it took."""
    value = random.Random(partition).randbytes(MESSAGE_SIZE_BYTES)
    while True:
        sent_at = time.monotonic()
        try:
            await (await producer.send(value, partition=partition))
        except SendError:
            continue
        taken.append((sent_at, time.monotonic() - sent_at))
        await asyncio.sleep(pause_s)


async def _begins(client: Client) -> list[tuple[int, int]]:
    """Return the first segment of each partition of the topic that drops, and the first index in it."""
    chains = [await client.admin().describe_chain(DROPPED, index) for index in range(DROPPED_PARTITIONS)]
    return [(chain.segments[0].no, chain.segments[0].start) for chain in chains]


async def _count_trims(client: Client, seconds: float) -> int:
    """Count how often partitions of that topic are trimmed in the next `seconds`."""
    trims, until = 0, time.monotonic() + seconds
    before = await _begins(client)
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, LOOK_S))
        now = await _begins(client)
        trims += sum(a != b for a, b in zip(before, now, strict=True))
        before = now
    return trims


async def _keep(client: Client, kept_ms: int) -> None:
    await client.admin().update_topic(DROPPED, retention_ms=kept_ms)
    await asyncio.sleep(SETTLE_S)


async def _trimming(client: Client, progress: Progress) -> Figure:
    await client.admin().create_topic(DROPPED, DROPPED_PARTITIONS, settings=TopicSettings(flush=True))
    await Observer(client.admin(), DROPPED).wait_until(Snapshot.settled, "it accepts", DEADLINE_S)
    await make_topic(client.admin(), STEADY, STEADY_PARTITIONS)
    taken: list[tuple[float, float]] = []
    turns: dict[bool, list[float]] = {False: [], True: []}
    trims, dropping_s = 0, 0.0
    async with client.producer(STEADY) as steady, client.producer(DROPPED) as other, asyncio.TaskGroup() as tasks:
        senders = [
            *(tasks.create_task(_send(steady, no, SEND_PAUSE_S, taken)) for no in range(STEADY_PARTITIONS)),
            *(tasks.create_task(_send(other, no, DROPPED_PAUSE_S, [])) for no in range(DROPPED_PARTITIONS)),
        ]
        for turn in range(TURNS):
            drops = turn % 2 == 1
            progress(f"turn {turn + 1} of {TURNS}: {'dropping' if drops else 'keeping'}")
            await _keep(client, KEPT_MS if drops else 0)
            begin = time.monotonic()
            count = await _count_trims(client, TURN_S)
            end = time.monotonic()
            turns[drops].append(percentile([took for at, took in taken if begin <= at < end] or [0.0], 0.99) * 1000)
            if drops:
                trims += count
                dropping_s += end - begin
        for task in senders:
            task.cancel()
    a_minute = trims / dropping_s * 60
    return Figure(
        "trimming_p99", "producers' p99 while partitions are trimmed, times as long",
        sum(turns[True]) / sum(turns[False]), "x", AIM_P99_RATIO, problem="" if trims else "nothing was dropped",
        details={"keeping_ms": [round(ms, 2) for ms in turns[False]],
                 "dropping_ms": [round(ms, 2) for ms in turns[True]],
                 "trims_a_minute": round(a_minute)},
    )  # fmt: skip


async def _long_chain(client: Client, count: int, progress: Progress) -> Figure:
    await make_topic(client.admin(), LONG, 1)
    partition = (await client.admin().describe_topic(LONG)).topic.partition_ids[0]
    began_at = time.monotonic()
    async with client.producer(LONG) as producer:
        made = 1
        while made < count:
            await (await producer.send(b"one message"))
            try:
                await client.admin().switch_partition(partition)
            except SeriatimError:  # the next round tries again
                continue
            made += 1
            if made % 100 == 0:
                progress(f"{made:,} of {count:,} segments")
    segments = (await client.admin().describe_chain(LONG, 0)).segments
    ended_at = datetime.now(UTC)
    taken = []
    for look in range(LOOKS):
        at = ended_at - timedelta(seconds=(time.monotonic() - began_at) * look / LOOKS)
        began_s = time.perf_counter()
        await client.offsets(LONG, at)
        taken.append((time.perf_counter() - began_s) * 1000)
    return Figure(
        "offsets_by_time", f"a time found in {len(segments):,} segments, p50", percentile(taken, 0.5), "ms",
        AIM_LOOK_MS, details={"p99_ms": percentile(taken, 0.99)},
    )  # fmt: skip


async def measure(directory: Path, progress: Progress) -> list[Figure]:
    """Measure both figures on one cluster."""
    count = int(os.environ.get("SEGMENTS") or 1_000)
    looks = ("--set", f"retention_look_s={LOOK_S}")
    async with (
        LocalCluster(directory / "trimming", groups=2, proxy=False, name="bench", broker_options=looks) as cluster,
        Client.connect(cluster.bootstrap) as client,
    ):
        return [await _trimming(client, progress), await _long_chain(client, count, progress)]


def main() -> int:
    return run("trimming", measure, "what retention costs")


if __name__ == "__main__":
    sys.exit(main())
