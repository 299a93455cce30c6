"""`python -m e2e.bench.drain [--quick]`, or `make bench-drain` (QUICK=1): how fast old messages are read and copied.

The messages have 512 bytes. They are in one partition, replicated and flushed, on real broker processes without a
proxy:

    tables, fetch, single   messages a second of one consumer that reads the partition from its first message on: as
                            Arrow tables, by `fetch` (500 at once), and one by one with `async for`
    range                   the same partition as Arrow tables, by a reader of the range from its beginning to its end
    healing                 megabytes of messages in a second that a new, empty disk gets from the other member
    healing_p99             the 99th percentile of the time from a send to its acknowledgement while a disk is healed,
                            as a multiple of the same before. These producers send one message at a time.

The benchmark checks that no message is missing: offsets follow one another, and each message is counted. It drains 1.5
million messages (--quick: 150,000), and heals as many. LATENCY=25 delays all links but those of healing by 25 ms each
way. It prints a table and writes `drain.json` in `bench-out/` (OUT= another directory). Exit status 1 if a figure was
not verified.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from seriatim import Client, Consumer
from seriatim_local import LocalCluster

from e2e.bench.healing import measure_healing
from e2e.bench.load.bulk import pieces, send_while
from e2e.bench.load.setup import MESSAGE_SIZE_BYTES, bench_cluster, make_topic
from e2e.bench.measures.figures import Figure
from e2e.bench.measures.machine import CpuClock
from e2e.bench.program import Progress, run
from e2e.distance import read_delay, told

MESSAGES: Final = 1_500_000
QUICK_MESSAGES: Final = 150_000
PIECE_ROWS: Final = 2_000
FETCH_MESSAGES: Final = 500
PAUSE_MESSAGES: Final = 100_000
"""How many messages the reader that takes one at a time takes before it acknowledges."""

RANGE: Final = "range"

AIMS: Final = {RANGE: 1_200_000.0, "tables": 1_200_000.0, "fetch": 450_000.0, "single": 450_000.0}
TOPIC: Final = "drained"
READ_DEADLINE_S: Final = 10.0


class _Follower:
    """Counts messages, and checks that each offset follows the one before."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.problem = ""
        self._next: int | None = None

    def take(self, offset: int, count: int) -> None:
        """Note that `count` messages came, the first at `offset`."""
        if self._next is not None and offset != self._next and not self.problem:
            self.problem = f"offset {offset} came where {self._next} should"
        self._next = offset + count
        self.left -= count


async def _tables(consumer: Consumer, follower: _Follower) -> None:
    while follower.left > 0:
        fetched = await consumer.fetch_table(timeout_s=READ_DEADLINE_S)
        if fetched is None:
            return
        follower.take(fetched.offset, fetched.table.num_rows)
        await consumer.ack(fetched)


async def _fetch(consumer: Consumer, follower: _Follower) -> None:
    while follower.left > 0:
        messages = await consumer.fetch(FETCH_MESSAGES, timeout_s=READ_DEADLINE_S)
        if not messages:
            return
        follower.take(messages[0].offset, messages[-1].offset - messages[0].offset + 1)
        if len(messages) != messages[-1].offset - messages[0].offset + 1:
            follower.problem = f"a fetch from offset {messages[0].offset} on has a hole"
        await consumer.ack(messages[-1])


async def _single(consumer: Consumer, follower: _Follower) -> None:
    expected = None
    count = 0
    async with asyncio.timeout(None) as deadline:
        loop = asyncio.get_running_loop()
        deadline.reschedule(loop.time() + READ_DEADLINE_S)
        async for message in consumer:
            offset = message.offset
            if offset != expected and expected is not None:
                follower.problem = follower.problem or f"offset {offset} came where {expected} should"
            expected = offset + 1
            count += 1
            if count % PAUSE_MESSAGES == 0 or count == follower.left:
                await consumer.ack(message)
                deadline.reschedule(loop.time() + READ_DEADLINE_S)
                if count == follower.left:
                    break
    follower.left -= count


READERS: Final[Mapping[str, tuple[str, Callable[[Consumer, _Follower], Awaitable[None]]]]] = {
    "tables": ("as Arrow tables", _tables),
    "fetch": (f"by fetch({FETCH_MESSAGES})", _fetch),
    "single": ("as single messages", _single),
}


async def _drain(client: Client, cluster: LocalCluster, name: str, count: int) -> Figure:
    text, reader = READERS[name]
    follower = _Follower(count)
    brokers = [pid for broker in cluster.broker_names if (pid := cluster.pid(broker)) is not None]
    async with client.consumer(TOPIC, name) as consumer:
        clock = CpuClock.start({"brokers": brokers, "client": [os.getpid()]})
        begin = time.monotonic()
        try:
            await reader(consumer, follower)
        except TimeoutError:
            follower.problem = follower.problem or f"nothing came for {READ_DEADLINE_S:g} s"
        took_s = time.monotonic() - begin
        cpu = clock.per_million(count)
    problem = follower.problem or (f"{follower.left:,} messages did not come" if follower.left else "")
    details: dict[str, object] = {"count": count, "took_s": round(took_s, 3), "cpu_s_per_million": cpu}
    return Figure(
        name, text, count / took_s, "msg/s", AIMS[name], higher_is_better=True, details=details, problem=problem
    )


async def _read_range(client: Client, cluster: LocalCluster, count: int) -> Figure:
    follower = _Follower(count)
    brokers = [pid for broker in cluster.broker_names if (pid := cluster.pid(broker)) is not None]
    clock = CpuClock.start({"brokers": brokers, "client": [os.getpid()]})
    begin = time.monotonic()
    async with client.read_range(TOPIC, 0, read_timeout_s=READ_DEADLINE_S) as reader:
        async for table in reader.tables():
            follower.take(table.offset, table.table.num_rows)
    took_s = time.monotonic() - begin
    details: dict[str, object] = {
        "count": count,
        "took_s": round(took_s, 3),
        "cpu_s_per_million": clock.per_million(count),
    }
    problem = follower.problem or (f"{follower.left:,} messages did not come" if follower.left else "")
    text = "of a range, as Arrow tables"
    return Figure(
        RANGE, text, count / took_s, "msg/s", AIMS[RANGE], higher_is_better=True, details=details, problem=problem
    )


async def _measure(directory: Path, progress: Progress, count: int, only: list[str]) -> list[Figure]:
    figures = []
    if not only or set(only) & {*READERS, RANGE}:
        async with bench_cluster(directory, 1) as (cluster, client):
            await make_topic(client.admin(), TOPIC, 1)
            progress(f"sending {count:,} messages")
            async with client.producer(TOPIC) as producer:
                sent = await send_while(producer, pieces(PIECE_ROWS), 1, lambda sent: sent < count)
            for name in READERS:
                if not only or name in only:
                    progress(f"draining: {READERS[name][0]}")
                    figures.append(await _drain(client, cluster, name, sent.ok))
            if not only or RANGE in only:
                progress("reading the range")
                figures.append(await _read_range(client, cluster, sent.ok))
    if not only or "healing" in only:
        figures += await measure_healing(directory, progress, count)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="how fast old messages are read, and copied to a new disk")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MESSAGES:,} messages instead of {MESSAGES:,}")
    parser.add_argument(
        "only", nargs="*", choices=[[], *READERS, RANGE, "healing"], help="what to measure; default: all"
    )
    arguments = parser.parse_args()
    count = QUICK_MESSAGES if arguments.quick else MESSAGES
    only: list[str] = list(arguments.only)
    title = f"{count:,} messages of {MESSAGE_SIZE_BYTES} B of one partition{told(read_delay(os.environ))}"
    return run("drain", lambda directory, progress: _measure(directory, progress, count, only), title)


if __name__ == "__main__":
    sys.exit(main())
