"""Runs the loads of `make bench` on a cluster, and returns what was measured.

Every load checks that what it counts was acknowledged. The messages of `batches` on one partition and of `sends` are
also read back. With many partitions, `batches` compares their lengths.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from seriatim import AckLevel, Client, Consumer, Delivery, Producer, SendError
from seriatim_local import LocalCluster

from e2e.bench.load import verify
from e2e.bench.load.bulk import Count, pieces, send_for
from e2e.bench.load.setup import DEADLINE_S, MESSAGE_SIZE_BYTES
from e2e.bench.measures.latency import Latency
from e2e.bench.measures.usage import UsageClock, Used
from e2e.bench.workloads import Batches, Idle, OneAtATime, Paced, Sends, Workload

WARM_UP_S: Final = 1.0
IDLE_FIRST_S: Final = 5.0
"""Seconds after which brokers that have just started are idle."""
USAGE_FIRST_S: Final = 0.2
"""At a fixed rate, the counting of usage begins so much earlier than that of latencies, because reading /proc takes
milliseconds, which delay messages."""
TIME_BYTES: Final = 8
UNSETTLED_SENDS_MAX: Final = 20_000
"""Messages that `send()` may have under way before the sender waits for the oldest ones."""


@dataclass(slots=True)
class Measured:
    """What one run of a workload gave.

    Attributes:
        values: Each measure's value, in the unit that its name gives.
        latencies: The histograms, by what they count.
        used: What each role used.
        messages: The messages that were sent and acknowledged while `used` was counted.
        seconds: How long that took.
        details: Other facts.
        problem: Why the figures do not count; empty if they count.
    """

    values: dict[str, float] = field(default_factory=dict)
    latencies: dict[str, Latency] = field(default_factory=dict)
    used: dict[str, Used] = field(default_factory=dict)
    messages: int = 0
    seconds: float = 0.0
    details: dict[str, object] = field(default_factory=dict)
    problem: str = ""


async def run_load(workload: Workload, topic: str, client: Client, cluster: LocalCluster) -> Measured:
    """Run the load of a workload on a topic that has nothing in it.

    Raises:
        SeriatimError: The cluster did not do what the load needs.
        TimeoutError: It did not do it in time.
    """
    roles = await _roles(cluster, topic, workload.partitions)
    run = _Run(topic, workload.partitions, client, roles, is_flushed=workload.flush)
    match workload.load:
        case OneAtATime() as load:
            return await run.one_at_a_time(load)
        case Paced() as load:
            return await run.paced(load)
        case Idle() as load:
            return await run.idle(load)
        case Batches() as load:
            return await run.batches(load)
        case Sends() as load:
            return await run.sends(load)
        case _:
            raise AssertionError(f"{workload.load.kind} is no load of a cluster that stays complete")


async def _roles(cluster: LocalCluster, topic: str, partitions: int) -> dict[str, list[int]]:
    """The processes by role: the client, and the brokers by what they are for the partition, if there is one."""
    brokers = {name: pid for name in cluster.broker_names if (pid := cluster.pid(name)) is not None}
    roles = {"client": [os.getpid()]}
    if partitions == 1:
        _, members = await cluster.open_members(topic, 0)
        roles |= {role: [brokers.pop(name)] for role, name in zip(("master", "slave"), members, strict=False)}
    if brokers:
        roles["other brokers" if "master" in roles else "brokers"] = list(brokers.values())
    return roles


@dataclass(slots=True)
class _Run:
    topic: str
    partitions: int
    client: Client
    roles: dict[str, list[int]]
    is_flushed: bool = True

    def producer(self) -> AbstractAsyncContextManager[Producer]:
        """A producer whose messages are acknowledged when both members have them on disk, or only in memory.

        On a topic that does not flush first, the level alone decides: at `REPLICATED_FLUSHED`, which is the default, an
        acknowledgement still waits for both disks.
        """
        level = AckLevel.REPLICATED_FLUSHED if self.is_flushed else AckLevel.REPLICATED
        return self.client.producer(self.topic, ack_level=level)

    async def one_at_a_time(self, load: OneAtATime) -> Measured:
        value = random.Random(2).randbytes(MESSAGE_SIZE_BYTES)
        latency = Latency()

        async def send_for_s(duration_s: float, latency: Latency) -> None:
            until = time.perf_counter() + duration_s
            while (sent_at := time.perf_counter()) < until:
                await (await producer.send(value))
                latency.add(time.perf_counter() - sent_at)

        async with self.producer() as producer:
            await send_for_s(WARM_UP_S, Latency())
            clock = UsageClock(self.roles)
            await send_for_s(load.seconds, latency)
            found = _with_use(clock, latency.count)
        found.latencies["published"] = latency
        found.values = {"p50_ms": latency.ms(50), "p99_ms": latency.ms(99)}
        return found

    async def paced(self, load: Paced) -> Measured:
        """Send at a fixed rate. A latency begins when the message was due."""
        noise = random.Random(3).randbytes(MESSAGE_SIZE_BYTES - TIME_BYTES)
        published, end_to_end, warm = Latency(), Latency(), Latency()
        count = round(load.rate * (WARM_UP_S + load.seconds))
        warm_count = round(load.rate * WARM_UP_S)
        unused_count = round(load.rate * (WARM_UP_S - USAGE_FIRST_S))
        under_way: asyncio.Queue[tuple[float, Delivery]] = asyncio.Queue()
        refused = 0
        clock: UsageClock | None = None

        async def send(producer: Producer, begin: float) -> None:
            nonlocal clock
            for number in range(count):
                due = begin + number / load.rate
                if (wait_s := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                if number == unused_count:
                    clock = UsageClock(self.roles)
                value = round(due * 1e9).to_bytes(TIME_BYTES, "big") + noise
                under_way.put_nowait((due, await producer.send(value, partition=number % self.partitions)))

        async def note() -> None:
            nonlocal refused
            for number in range(count):
                due, delivery = await under_way.get()
                try:
                    await delivery
                except SendError:
                    refused += 1
                (published if number >= warm_count else warm).add(time.monotonic() - due)

        async def read(consumer: Consumer) -> None:
            taken = 0
            while taken < count:
                for message in await consumer.fetch(timeout_s=DEADLINE_S):
                    late_s = time.monotonic() - int.from_bytes(message.value[:TIME_BYTES], "big") / 1e9
                    (end_to_end if taken >= warm_count else warm).add(late_s)
                    taken += 1
                await consumer.ack_all()

        async with (
            self.producer() as producer,
            _reader(self.client, self.topic, is_wanted=load.is_read) as consumer,
            asyncio.timeout(WARM_UP_S + load.seconds + DEADLINE_S),
        ):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send(producer, time.monotonic()), name="send")
                tasks.create_task(note(), name="note")
                if consumer is not None:
                    tasks.create_task(read(consumer), name="read")
            assert clock is not None
            found = _with_use(clock, count - unused_count)
        found.latencies["published"] = published
        found.values = {
            "published_p50_ms": published.ms(50),
            "published_p99_ms": published.ms(99),
            "cpu_ms_per_message": sum(used.cpu_s for used in found.used.values()) * 1000 / found.messages,
        }
        if load.is_read:
            found.latencies["end to end"] = end_to_end
            found.values |= {"end_to_end_p50_ms": end_to_end.ms(50), "end_to_end_p99_ms": end_to_end.ms(99)}
        found.problem = f"{refused:,} messages were not acknowledged" if refused else ""
        return found

    async def idle(self, load: Idle) -> Measured:
        await asyncio.sleep(IDLE_FIRST_S)
        clock = UsageClock({role: pids for role, pids in self.roles.items() if role != "client"})
        await asyncio.sleep(load.seconds)
        found = _with_use(clock, 0)
        found.values = {
            "cpu_ms_per_s": sum(used.cpu_s for used in found.used.values()) * 1000 / found.seconds,
            "wakeups_per_s": sum(used.wakeups for used in found.used.values()) / found.seconds,
        }
        return found

    async def batches(self, load: Batches) -> Measured:
        to_send = pieces(load.rows)
        async with self.producer() as producer:
            warm = await send_for(producer, to_send, self.partitions, WARM_UP_S)
            clock = UsageClock(self.roles)
            begin = time.monotonic()
            count = await send_for(producer, to_send, self.partitions, load.seconds)
            found = _with_use(clock, max(count.ok, 1))
        found.values = {"messages_per_s": count.ok / (count.last_ack_at - begin)}
        wanted = _sum(warm, count)
        lost = warm.not_ok + count.not_ok
        found.problem = f"{lost:,} messages were not acknowledged" if lost else ""
        found.problem = found.problem or await verify.stored(
            self.client, self.topic, wanted, found.details, whole=self.partitions == 1
        )
        return found

    async def sends(self, load: Sends) -> Measured:
        value = random.Random(4).randbytes(MESSAGE_SIZE_BYTES)
        keys = [f"key {number}".encode() for number in range(load.keys)]
        by_partition: dict[int, int] = {}
        refused = 0

        async def send_for_s(producer: Producer, duration_s: float) -> int:
            nonlocal refused
            under_way: list[Delivery] = []
            sent = taken = 0
            until = time.monotonic() + duration_s
            while time.monotonic() < until:
                for _ in range(100):
                    under_way.append(await producer.send(value, key=keys[sent % load.keys]))
                    sent += 1
                if len(under_way) >= UNSETTLED_SENDS_MAX:
                    half = len(under_way) // 2
                    taken += await settle(under_way[:half])
                    del under_way[:half]
            return taken + await settle(under_way)

        async def settle(deliveries: list[Delivery]) -> int:
            nonlocal refused
            ok = 0
            for delivery in deliveries:
                try:
                    receipt = await delivery
                except SendError:
                    refused += 1
                else:
                    by_partition[receipt.partition] = by_partition.get(receipt.partition, 0) + 1
                    ok += 1
            return ok

        async with self.producer() as producer:
            await send_for_s(producer, WARM_UP_S)
            clock = UsageClock(self.roles)
            begin = time.monotonic()
            ok = await send_for_s(producer, load.seconds)
            took_s = time.monotonic() - begin
            found = _with_use(clock, max(ok, 1))
        found.values = {"messages_per_s": ok / took_s}
        found.problem = f"{refused:,} messages were not acknowledged" if refused else ""
        found.problem = found.problem or await verify.stored(
            self.client, self.topic, by_partition, found.details, whole=True
        )
        return found


def _with_use(clock: UsageClock, messages: int) -> Measured:
    """Note what was used. It is called before clients close, so that it counts no more than the messages."""
    seconds = clock.seconds
    return Measured(used=clock.used(), messages=messages, seconds=seconds)


@asynccontextmanager
async def _reader(client: Client, topic: str, *, is_wanted: bool) -> AsyncIterator[Consumer | None]:
    """A consumer that is served, or None."""
    if not is_wanted:
        yield None
        return
    async with client.consumer(topic, "reader") as consumer:
        async with asyncio.timeout(DEADLINE_S):
            while not consumer.joined:
                await consumer.fetch(timeout_s=0.05)
        yield consumer


def _sum(*counts: Count) -> dict[int, int]:
    total: dict[int, int] = {}
    for count in counts:
        for partition, ok in count.ok_by_partition.items():
            total[partition] = total.get(partition, 0) + ok
    return total
