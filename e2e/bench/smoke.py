"""`python -m e2e.bench.smoke`, or `make bench-smoke`: the four figures that guide all work on the data path.

The messages have 512 bytes. One producer sends them to real broker processes without a proxy. They are replicated and
flushed on both members:

    one_partition     messages a second on one partition
    many_partitions   messages a second spread over 1,000 partitions
    one_in_flight     latency of one message at a time, median and 99th percentile
    kill_gap          how long a partition accepts nothing when its master is killed (SIGKILL), five times

A figure counts acknowledged messages, from the first send to the last acknowledgement. The benchmark checks that they
are stored: it reads the log of the one partition back whole, and asks the servers of the others for their lengths. It
takes less than a minute, prints a table and writes `smoke.json` in `bench-out/` (OUT= another directory). Exit status 1
if a figure was not verified.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from seriatim import Client
from seriatim_local import LocalCluster

from e2e.bench.bulk import pieces, send_for
from e2e.bench.figures import Figure, percentile
from e2e.bench.machine import CpuClock
from e2e.bench.program import run
from e2e.bench.steady import DEADLINE_S, MESSAGE_SIZE_BYTES, SteadySender, bench_cluster, make_topic
from e2e.observe import Observer, Snapshot

ONE_PARTITION_S: Final = 6.0
MANY_PARTITIONS_S: Final = 6.0
MANY_PARTITIONS: Final = 1000
ONE_IN_FLIGHT_S: Final = 4.0
WARM_UP_S: Final = 1.0
KILL_COUNT: Final = 5

AIMS: Final = {"one_partition": 150_000.0, "many_partitions": 80_000.0, "one_in_flight": 1.2, "kill_gap": 150.0}

PIECE_ROWS: Final = 2_000
ROUND_ROWS: Final = 50
"""Messages that one of many partitions gets before the next one's turn, and so the size of a batch.

At the aim of 80,000 messages a second, a partition gets so many in 0.6 s.
"""


async def _throughput(
    name: str, text: str, client: Client, cluster: LocalCluster, partition_count: int, rows: int, duration_s: float
) -> Figure:
    to_send = pieces(rows)
    async with client.producer(name) as producer:
        warm = await send_for(producer, to_send, partition_count, WARM_UP_S)
        clock = CpuClock.start(_pids(cluster))
        begin = time.monotonic()
        count = await send_for(producer, to_send, partition_count, duration_s)
        took_s = count.last_ack_at - begin
        cpu = clock.per_million(max(count.ok, 1))
    for partition, ok in warm.ok_by_partition.items():
        count.ok_by_partition[partition] = count.ok_by_partition.get(partition, 0) + ok
    rate = (count.ok - warm.ok) / took_s
    details: dict[str, object] = {
        "acknowledged": count.ok - warm.ok,
        "took_s": round(took_s, 3),
        "megabytes_per_s": round(rate * MESSAGE_SIZE_BYTES / 1e6, 1),
        "cpu_s_per_million": cpu,
    }
    problem = f"{count.not_ok + warm.not_ok:,} messages were not acknowledged" if count.not_ok + warm.not_ok else ""
    problem = problem or await _verify(client, name, count.ok_by_partition, details, whole=partition_count == 1)
    return Figure(name, text, rate, "msg/s", AIMS[name], higher_is_better=True, details=details, problem=problem)


def _pids(cluster: LocalCluster) -> dict[str, list[int]]:
    """Return the processes by role.

    All brokers are one role, because each is master of some partitions and slave of others.
    """
    brokers = [pid for name in cluster.broker_names if (pid := cluster.pid(name)) is not None]
    return {"brokers": brokers, "client": [os.getpid()]}


async def _verify(
    client: Client, topic: str, wanted: dict[int, int], details: dict[str, object], *, whole: bool
) -> str:
    """Check that everything acknowledged is stored: read all of it back (`whole`), or ask the servers.

    Return what is missing; empty if nothing is.
    """
    if whole:
        return await _read_back(client, topic, wanted, details)
    async with client.consumer(topic, "verify", start="latest") as consumer:
        async with asyncio.timeout(DEADLINE_S):
            while len(consumer.joined) < len(wanted):
                await consumer.fetch(timeout_s=0.05)
            described = await client.admin().describe_group(topic, "verify")
    ends = {row.partition: row.end_position for row in described.partitions if row.error is None}
    short = [partition for partition, count in wanted.items() if ends.get(partition, -1) < count]
    return f"{len(short)} partitions hold less than was acknowledged" if short else ""


async def _read_back(client: Client, topic: str, wanted: dict[int, int], details: dict[str, object]) -> str:
    """Read everything back, and check that offsets follow one another."""
    left = dict(wanted)
    follows: dict[int, int] = {}
    begin = time.monotonic()
    async with client.consumer(topic, "verify") as consumer:
        while any(count > 0 for count in left.values()):
            fetched = await consumer.fetch_table(timeout_s=5.0)
            if fetched is None:
                return f"{sum(left.values()):,} acknowledged messages did not come back"
            if follows.get(fetched.partition, fetched.offset) != fetched.offset:
                return f"offset {fetched.offset} came where {follows[fetched.partition]} should"
            follows[fetched.partition] = fetched.offset + fetched.table.num_rows
            left[fetched.partition] -= fetched.table.num_rows
            await consumer.ack(fetched)
    details["read_back_per_s"] = round(sum(wanted.values()) / (time.monotonic() - begin))
    return ""


async def _one_in_flight(client: Client) -> Figure:
    """Send one message after the other, each when the one before is acknowledged."""
    value = random.Random(2).randbytes(MESSAGE_SIZE_BYTES)
    taken_ms: list[float] = []
    async with client.producer("one_in_flight") as producer:
        begin = time.monotonic()
        while (sent_at := time.monotonic()) - begin < WARM_UP_S + ONE_IN_FLIGHT_S:
            await (await producer.send(value))
            if sent_at - begin >= WARM_UP_S:
                taken_ms.append((time.monotonic() - sent_at) * 1000)
    p50, p99 = percentile(taken_ms, 0.5), percentile(taken_ms, 0.99)
    details = {"count": len(taken_ms), "p99_ms": round(p99, 3), "max_ms": round(max(taken_ms), 3)}
    return Figure("one_in_flight", "one message in flight, p50", p50, "ms", AIMS["one_in_flight"], details=details)


async def _kill_gap(client: Client, cluster: LocalCluster, progress: Callable[[str], None]) -> Figure:
    """Kill the master of a partition again and again while a producer sends to it."""
    admin = client.admin()
    observer = Observer(admin, "kill_gap")
    gaps_ms: list[float] = []
    async with client.producer("kill_gap") as producer, asyncio.TaskGroup() as tasks:
        sender = SteadySender(producer)
        running = [tasks.create_task(sender.send(), name="send"), tasks.create_task(sender.note(), name="note")]
        for number in range(KILL_COUNT):
            await sender.wait_for_ack_after(time.monotonic())
            before = (await observer.look()).chains[0].open_segment
            progress(f"kill {number + 1} of {KILL_COUNT}: {before.members[0]}")
            killed_at = time.monotonic()
            await cluster.kill(before.members[0])
            await sender.wait_for_ack_after(time.monotonic())
            await cluster.start_again(before.members[0])
            after = await observer.wait_until(Snapshot.settled, "the partition accepts again", DEADLINE_S)
            assert after.chains[0].open_segment.no > before.no, "the killed master's segment was left"
            gaps_ms.append(sender.gap_s(killed_at) * 1000)
            await cluster.wait_ready(deadline_s=DEADLINE_S)
        for task in running:
            task.cancel()
    details = {"gaps_ms": [round(gap, 1) for gap in gaps_ms], "max_ms": round(max(gaps_ms), 1)}
    problem = f"{sender.not_ok} messages were not acknowledged" if sender.not_ok else ""
    median = percentile(gaps_ms, 0.5)
    text = f"gap at kill -9, median of {KILL_COUNT}"
    return Figure("kill_gap", text, median, "ms", AIMS["kill_gap"], details=details, problem=problem)


async def measure(directory: Path, progress: Callable[[str], None]) -> list[Figure]:
    """Measure all four figures, on clusters in `directory`.

    Raises:
        SeriatimError: A cluster did not come up, or a topic could not be made.
    """
    figures = []
    async with bench_cluster(directory, 1) as (cluster, client):
        admin = client.admin()
        await make_topic(admin, "one_in_flight", 1)
        progress("one message in flight")
        figures.append(await _one_in_flight(client))
        await make_topic(admin, "one_partition", 1)
        progress("one partition")
        one = await _throughput("one_partition", "one partition", client, cluster, 1, PIECE_ROWS, ONE_PARTITION_S)
        progress(f"{MANY_PARTITIONS:,} partitions")
        await make_topic(admin, "many_partitions", MANY_PARTITIONS)
        many = await _throughput(
            "many_partitions", f"{MANY_PARTITIONS:,} partitions", client, cluster, MANY_PARTITIONS, ROUND_ROWS,
            MANY_PARTITIONS_S,
        )  # fmt: skip
        figures = [one, many, *figures]
    async with bench_cluster(directory, 2) as (cluster, client):
        await make_topic(client.admin(), "kill_gap", 1)
        figures.append(await _kill_gap(client, cluster, progress))
    return figures


def main() -> int:
    return run("smoke", measure, f"{MESSAGE_SIZE_BYTES} B, replicated and flushed, one producer")


if __name__ == "__main__":
    sys.exit(main())
