"""`python -m e2e.bench.consume [--quick]`, or `make bench-consume` (QUICK=1): how fast a partition is consumed by key.

The messages have 512 bytes. They are in one partition, replicated and flushed, on real broker processes without a
proxy. A process of its own produces them while consumers of this process consume them. A figure counts messages from
the first send to the end of the work on the last message. All handlers do nothing, if nothing else is said.

    batches, single   messages a second of 8 consumers and 100,000 keys, with `run_batches` and with `run`
    hot               the other keys' messages a second if one key has half of all messages; the aim is 0.8 of what they
                      would be at the rate of `single`
    failing           the other keys' messages a second if 1,000 keys fail again and again; likewise
    work              messages a second of 64 consumers that work 5 ms on each message, one at a time, and 10,000 keys;
                      each holds up to 256 messages. The work is `asyncio.sleep`; the table says how long it took
    idle              processor time of the brokers for a message, with 20 consumer groups that do not read, as a
                      multiple of the same without them
    consumer_killed   how long the keys of a consumer whose process is killed wait for another consumer: until the last
                      of 500 keys is worked on, median of five
    broker_killed     how long no message is worked on when the partition's master is killed, median of three

Garbage collections are rare in the consumers' process, as in brokers (`program.settle_objects`).

The benchmark checks that the consumer groups have acknowledged everything at the end, except where keys fail. It prints
a table and writes `consume.json` in `bench-out/` (OUT= another directory). Exit status 1 if a figure was not verified.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from seriatim import Client, KeyedBatch, KeyedConsumer, Message, Retry, RetryPolicy
from seriatim_local import LocalCluster

from e2e.bench.load.bulk import pieces, send_while
from e2e.bench.load.keyed_sender import HOT_KEY, PIECE_ROWS, key_of
from e2e.bench.load.setup import DEADLINE_S, MESSAGE_SIZE_BYTES, bench_cluster, make_topic
from e2e.bench.measures.figures import Figure, percentile
from e2e.bench.measures.machine import CpuClock
from e2e.bench.program import Progress, exact_loop, run, settle_objects
from e2e.observe import Observer, Snapshot
from e2e.workers import start_worker

MESSAGES: Final = 1_000_000
QUICK_SHARE: Final = 10
WARM_UP: Final = 10_000
"""How many messages are consumed before the clock starts: brokers load Arrow for the first ones."""

KEYS: Final = 100_000
CONSUMERS: Final = 8
AHEAD: Final = 60_000
"""The sender is at most this many messages ahead of the consumers."""

HELD: Final = 4_000
"""Each consumer holds up to this many messages, and is given a fourth of them at once."""

FAILING_KEYS: Final = 1_000
WORKERS: Final = 64
WORK_S: Final = 0.005
WORK_KEYS: Final = 10_000
WORK_HELD: Final = 256
WORK_ACK_MS: Final = 400
"""Each consumer holds up to 256 messages, which are 1.4 s of work (the default is 1,000 messages). It acknowledges a
fourth of them at once, or what it has after 400 ms. A request costs a broker as much as some hundred messages."""

WORK_MESSAGES_MIN: Final = 60_000
"""Fewer take so few seconds that the first and the last moment count for much, when some consumers have no work."""

IDLE_GROUPS: Final = 20
IDLE_ROUNDS: Final = 8
HELD_KEYS: Final = 500
SOON: Final = RetryPolicy(back_off="fixed", delays_ms=(1,), jitter_percent=0)
"""The work on the messages had begun, so the retry policy delays them. This one does not."""

CONSUMER_KILLS: Final = 5
BROKER_KILLS: Final = 3
STALLED_S: Final = 60.0

AIM_BATCHES: Final = 80_000.0
AIM_SINGLE: Final = 40_000.0
AIM_OTHERS: Final = 0.8
AIM_WORK: Final = 0.9 * WORKERS / WORK_S
AIM_IDLE: Final = 1.05
AIM_CONSUMER_MS: Final = 500.0
AIM_BROKER_MS: Final = 1_000.0

GROUP: Final = "bench"

Work = Callable[[KeyedConsumer], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Tally:
    """Messages whose work has ended. Only those count that `wanted` says."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class _Load:
    """What is produced.

    Attributes:
        name: The topic's name, and the figure's.
        total: Messages after the warm-up.
        keys: How many keys there are.
        counted: The share of the messages whose work is counted.
        is_hot: One key has half of all messages.
        is_whole: Everything is acknowledged at the end.
    """

    name: str
    total: int
    keys: int = KEYS
    counted: float = 1.0
    is_hot: bool = False
    is_whole: bool = True


async def _poll(holds: Callable[[], bool]) -> None:
    """Wait until something is true that can only be looked at."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _consumers(
    client: Client, topic: str, count: int, work: Work, **options: Any
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Consumers of one group at work, all joined."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(client.consumer(topic, GROUP, mode="key_ordered", **options))
            for _ in range(count)
        ]
        running = [asyncio.create_task(work(consumer), name=f"consumer {n}") for n, consumer in enumerate(opened)]
        try:
            await _poll(lambda: all(consumer.joined for consumer in opened))
            yield running
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _throughput(
    client: Client,
    cluster: LocalCluster,
    directory: Path,
    load: _Load,
    tally: _Tally,
    work: Work,
    consumers: int,
    text: str,
    aim: float | None,
    **options: Any,
) -> Figure:
    await make_topic(client.admin(), load.name, 1)
    total = load.total + WARM_UP
    arguments = [load.name, str(load.keys), "hot" if load.is_hot else "even", str(total), *cluster.bootstrap]
    problem = ""
    async with (
        _consumers(client, load.name, consumers, work, **options) as running,
        start_worker("sender", "e2e.bench.load.keyed_sender", arguments, log=directory / f"{load.name}.log") as sender,
    ):
        await sender.wait_for("ready", DEADLINE_S)
        sender.tell(to=WARM_UP)
        await _until(tally, running, round(WARM_UP * load.counted * 0.95))
        settle_objects()
        brokers = {name: [pid] for name in cluster.broker_names if (pid := cluster.pid(name)) is not None}
        clock = CpuClock.start({**brokers, "client": [os.getpid()], "sender": [sender.pid]})
        begin, before = time.monotonic(), tally.count
        wanted = round(total * load.counted * (1.0 if load.is_whole else 0.999))
        allowed = WARM_UP

        def allow() -> None:
            nonlocal allowed
            to = min(round(tally.count / load.counted) + AHEAD, total)
            if to - allowed >= PIECE_ROWS or to == total > allowed:  # it sends this many at once
                allowed = to
                sender.tell(to=to)

        if not await _until(tally, running, wanted, allow):
            problem = f"only {tally.count:,} of {wanted:,} messages were worked on"
        took_s = time.monotonic() - begin
        count = tally.count - before
        cpu = clock.per_million(max(round(count / load.counted), 1))
        sent = await sender.wait_for("sent", DEADLINE_S)
        if sent["not_ok"]:
            problem = problem or f"{sent['not_ok']:,} messages were not stored"
        if load.is_whole:
            problem = problem or await _verify(client, load.name, total)
    details: dict[str, object] = {"count": count, "took_s": round(took_s, 3), "cpu_s_per_million": cpu}
    return Figure(
        load.name, text, count / took_s, "msg/s", aim, higher_is_better=True, details=details, problem=problem
    )


async def _until(
    tally: _Tally, running: list[asyncio.Task[None]], wanted: int, allow: Callable[[], None] = lambda: None
) -> bool:
    """Wait until this many messages are worked on. Return False if nothing happens for `STALLED_S`."""
    seen, at = tally.count, time.monotonic()
    while tally.count < wanted:
        allow()
        await asyncio.sleep(0.02)
        for task in running:
            if task.done():
                task.result()
        if tally.count > seen:
            seen, at = tally.count, time.monotonic()
        elif time.monotonic() - at > STALLED_S:
            return False
    return True


async def _verify(client: Client, topic: str, total: int) -> str:
    """Ask the server until the consumer group has acknowledged everything. Return what is wrong; empty: nothing."""
    position = -1
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        (row,) = (await client.admin().describe_group(topic, GROUP)).partitions
        position = row.position if row.error is None else position
        if position == total:
            return ""
        await asyncio.sleep(0.05)
    return f"{position:,} of {total:,} messages are acknowledged"


# ---- throughput -----------------------------------------------------------------------------------------


async def _batches(client: Client, cluster: LocalCluster, directory: Path, total: int) -> Figure:
    tally = _Tally()

    async def handle(batch: KeyedBatch) -> None:
        tally.count += len(batch)

    text = f"{KEYS:,} keys, {CONSUMERS} consumers, in batches"
    return await _throughput(
        client, cluster, directory, _Load("batches", total), tally, lambda consumer: consumer.run_batches(handle),
        CONSUMERS, text, AIM_BATCHES, in_flight_max=HELD,
    )  # fmt: skip


async def _single(client: Client, cluster: LocalCluster, directory: Path, total: int) -> Figure:
    tally = _Tally()

    async def handle(_message: Message) -> None:
        tally.count += 1

    return await _throughput(
        client, cluster, directory, _Load("single", total), tally, lambda consumer: consumer.run(handle), CONSUMERS,
        "the same, singly", AIM_SINGLE, in_flight_max=HELD,
    )  # fmt: skip


async def _hot(client: Client, cluster: LocalCluster, directory: Path, total: int, single: float | None) -> Figure:
    tally = _Tally()

    async def handle(message: Message) -> None:
        tally.count += message.key != HOT_KEY

    load = _Load("hot", total, counted=0.5, is_hot=True)
    aim = single * AIM_OTHERS * 0.5 if single is not None else None
    return await _throughput(
        client, cluster, directory, load, tally, lambda consumer: consumer.run(handle), CONSUMERS,
        "other keys, one key has half", aim, in_flight_max=HELD,
    )  # fmt: skip


async def _failing(client: Client, cluster: LocalCluster, directory: Path, total: int, single: float | None) -> Figure:
    tally = _Tally()
    failing = {key_of(number) for number in range(FAILING_KEYS)}

    async def handle(message: Message) -> None:
        if message.key in failing:
            raise Retry(reason="it always fails")
        tally.count += 1

    counted = 1 - FAILING_KEYS / KEYS
    load = _Load("failing", total, counted=counted, is_whole=False)
    aim = single * AIM_OTHERS * counted if single is not None else None
    return await _throughput(
        client, cluster, directory, load, tally, lambda consumer: consumer.run(handle), CONSUMERS,
        f"other keys, {FAILING_KEYS:,} keys fail", aim, in_flight_max=HELD,
    )  # fmt: skip


async def _work(client: Client, cluster: LocalCluster, directory: Path, total: int) -> Figure:
    tally = _Tally()

    worked_s = 0.0

    async def handle(_message: Message) -> None:
        nonlocal worked_s
        begin = time.monotonic()
        await asyncio.sleep(WORK_S)
        worked_s += time.monotonic() - begin
        tally.count += 1

    figure = await _throughput(
        client, cluster, directory, _Load("work", total, keys=WORK_KEYS), tally,
        lambda consumer: consumer.run(handle, concurrency=1), WORKERS, f"{WORKERS} consumers, 5 ms of work each",
        AIM_WORK, in_flight_max=WORK_HELD, run_max=8, ack_interval_ms=WORK_ACK_MS,
    )  # fmt: skip
    return replace(figure, details={**figure.details, "work_ms": round(1000 * worked_s / max(tally.count, 1), 2)})


# ---- groups that do not read ----------------------------------------------------------------------------


async def _idle(client: Client, cluster: LocalCluster, total: int) -> Figure:
    """Produce without consumer groups, and with many that have a cursor and no consumers, in turns."""
    used: dict[str, list[float]] = {"alone": [], "idle": []}
    brokers = {"brokers": [pid for name in cluster.broker_names if (pid := cluster.pid(name)) is not None]}
    for topic in used:
        await make_topic(client.admin(), topic, 1)
    for number in range(IDLE_GROUPS):
        async with client.consumer("idle", f"idle-{number}", mode="key_ordered") as consumer:
            await _joined(consumer)
    to_send, each = pieces(PIECE_ROWS), max(total // IDLE_ROUNDS, 40_000)
    for _ in range(IDLE_ROUNDS):
        for topic, seen in used.items():
            async with client.producer(topic) as producer:
                clock = CpuClock.start(brokers)
                count = await send_while(producer, to_send, 1, lambda sent: sent < each)
                seen.append(clock.used_s()["brokers"] * 1e6 / count.ok)
    alone, idle = (percentile(used[topic], 0.5) for topic in ("alone", "idle"))
    details: dict[str, object] = {"us_alone": round(alone, 2), "us_with_groups": round(idle, 2)}
    text = f"processor time, {IDLE_GROUPS} groups that do not read"
    return Figure("idle", text, idle / alone, "x", AIM_IDLE, details=details)


async def _run(handler: Callable[[Message], Coroutine[Any, Any, None]], consumer: KeyedConsumer) -> None:
    await consumer.run(handler)


async def _joined(consumer: KeyedConsumer) -> None:
    await _poll(lambda: bool(consumer.joined))


# ---- take-over ------------------------------------------------------------------------------------------


async def _consumer_killed(client: Client, cluster: LocalCluster, directory: Path) -> Figure:
    """Kill a process that holds keys. Measure until another consumer works on the last of them."""
    taken_ms: list[float] = []
    for number in range(CONSUMER_KILLS):
        topic = f"consumer_killed_{number}"
        await make_topic(client.admin(), topic, 1)
        async with client.producer(topic) as producer:
            deliveries = [await producer.send(b"x" * MESSAGE_SIZE_BYTES, key=key_of(n)) for n in range(HELD_KEYS)]
            for delivery in deliveries:
                await delivery
        seen: set[bytes | None] = set()
        all_seen = asyncio.Event()

        async def take(message: Message, seen: set[bytes | None] = seen, done: asyncio.Event = all_seen) -> None:
            seen.add(message.key)
            if len(seen) == HELD_KEYS:
                done.set()

        arguments = [topic, GROUP, str(HELD_KEYS), *cluster.bootstrap]
        async with start_worker(
            "holder", "e2e.bench.load.keyed_holder", arguments, log=directory / "holder.log"
        ) as holder:
            await holder.wait_for("holds", DEADLINE_S)
            await client.admin().configure_group(topic, GROUP, retry=SOON)
            async with _consumers(client, topic, 1, partial(_run, take)):
                killed_at = time.monotonic()
                os.kill(holder.pid, 9)
                async with asyncio.timeout(DEADLINE_S):
                    await all_seen.wait()
                taken_ms.append((time.monotonic() - killed_at) * 1000)
    details = {"taken_ms": [round(taken, 1) for taken in taken_ms], "max_ms": round(max(taken_ms), 1)}
    text = f"a consumer is killed, {HELD_KEYS} keys"
    return Figure("consumer_killed", text, percentile(taken_ms, 0.5), "ms", AIM_CONSUMER_MS, details=details)


async def _broker_killed(client: Client, cluster: LocalCluster, progress: Progress) -> Figure:
    """Kill the master again and again, while messages with keys are produced and consumed."""
    topic = "broker_killed"
    await make_topic(client.admin(), topic, 1)
    observer = Observer(client.admin(), topic)
    times: list[float] = []

    async def take(_message: Message) -> None:
        times.append(time.monotonic())

    async def send() -> None:
        async with client.producer(topic) as producer:
            number = 0
            while True:
                await producer.send(b"x" * MESSAGE_SIZE_BYTES, key=key_of(number % WORK_KEYS))
                number += 1
                await asyncio.sleep(0.001)

    async def worked_after(at: float) -> None:
        await _poll(lambda: bool(times) and times[-1] > at)

    gaps_ms: list[float] = []
    async with _consumers(client, topic, 2, lambda consumer: consumer.run(take)):
        sending = asyncio.create_task(send(), name="send")
        try:
            for number in range(BROKER_KILLS):
                await worked_after(time.monotonic())
                master = (await observer.look()).chains[0].open_segment.members[0]
                progress(f"kill {number + 1} of {BROKER_KILLS}: {master}")
                killed_at = time.monotonic()
                await cluster.kill(master)
                await worked_after(time.monotonic())
                await cluster.start_again(master)
                await observer.wait_until(Snapshot.settled, "the partition accepts again", DEADLINE_S)
                await cluster.wait_ready(deadline_s=DEADLINE_S)
                await worked_after(time.monotonic())
                gaps_ms.append(1000 * max(later - earlier for earlier, later in pairwise(times) if later > killed_at))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    details = {"gaps_ms": [round(gap, 1) for gap in gaps_ms], "max_ms": round(max(gaps_ms), 1)}
    text = f"a master is killed, median of {BROKER_KILLS}"
    return Figure("broker_killed", text, percentile(gaps_ms, 0.5), "ms", AIM_BROKER_MS, details=details)


# ---- the program ----------------------------------------------------------------------------------------

ROWS: Final = ("batches", "single", "hot", "failing", "work", "idle", "consumer_killed", "broker_killed")


async def _measure(directory: Path, progress: Progress, total: int, only: list[str]) -> list[Figure]:
    wanted = set(only or ROWS)
    figures: list[Figure] = []
    async with bench_cluster(directory, 1) as (cluster, client):
        if "batches" in wanted:
            progress("in batches")
            figures.append(await _batches(client, cluster, directory, total))
        single = None
        if wanted & {"single", "hot", "failing"}:
            progress("singly")
            figures.append(await _single(client, cluster, directory, total))
            single = figures[-1].value
        if "hot" in wanted:
            progress("one key has half of the messages")
            figures.append(await _hot(client, cluster, directory, total, single))
        if "failing" in wanted:
            progress(f"{FAILING_KEYS:,} keys fail")
            figures.append(await _failing(client, cluster, directory, total, single))
        if "work" in wanted:
            progress("64 consumers with work")
            figures.append(await _work(client, cluster, directory, max(total // 5, WORK_MESSAGES_MIN)))
        if "idle" in wanted:
            progress("groups that do not read")
            figures.append(await _idle(client, cluster, total))
        if "consumer_killed" in wanted:
            progress("killing consumers")
            figures.append(await _consumer_killed(client, cluster, directory))
    if "broker_killed" in wanted:
        async with bench_cluster(directory, 2) as (cluster, client):
            figures.append(await _broker_killed(client, cluster, progress))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="how fast consumers share a partition by key")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK_SHARE}th of the messages")
    parser.add_argument("only", nargs="*", choices=[[], *ROWS], help="what to measure; default: all")
    arguments = parser.parse_args()
    total = MESSAGES // QUICK_SHARE if arguments.quick else MESSAGES
    only: list[str] = list(arguments.only)
    title = f"{total:,} messages of {MESSAGE_SIZE_BYTES} B of one partition, consumed by key"
    measure = partial(_measure, total=total, only=only)
    return run("consume", measure, title, loop_factory=exact_loop)


if __name__ == "__main__":
    sys.exit(main())
