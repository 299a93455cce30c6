"""Runs the loads of `make bench` with delayed messages, and returns what was measured.

Every load checks that what was acknowledged is read, at one place of the log only, and not before it is due.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Options, Rdict
from seriatim import CancelOutcome, Client, Deliveries, Delivery, Producer, SendError
from seriatim_local import LocalCluster

from e2e.bench.load.bulk import Count
from e2e.bench.load.measurement import Measured
from e2e.bench.load.setup import DEADLINE_S, make_topic
from e2e.bench.measures.figures import percentile
from e2e.bench.measures.latency import Latency
from e2e.bench.measures.usage import UsageClock
from e2e.bench.workloads import Cancel, DelayedLoad, Due, DueAtOnce, DueKill, Pending
from e2e.lateness import Arrivals, now_ms, value_of
from e2e.observe import Observer, Snapshot

DAY_MS: Final = 86_400_000
APPEND_PER_S: Final = 8_000
"""Messages that are due at once are due when this rate has stored them, and a second later."""

UNSETTLED_MAX: Final = 2_000
"""Messages without an outcome with which a sender waits. Then the machine is too slow for the rate."""

RATE_SHARE: Final = 0.9
"""If a sender reaches less than this share of its rate, its figures are of another load."""

PIECE: Final = 500
USUAL_S: Final = 4.0
DRAIN_S: Final = 60.0
KILL_AFTER_S: Final = 3.0
CANCELLED_AT_ONCE: Final = 64


Send = Callable[[Producer, int], Awaitable[Delivery]]


@dataclass(slots=True)
class Sent:
    """What was sent one by one, and when each acknowledged message is due, by its number."""

    due_ms: dict[int, int] = field(default_factory=dict)
    published: Latency = field(default_factory=Latency)
    not_ok: int = 0
    _under_way: asyncio.Queue[tuple[int, float, Delivery]] = field(default_factory=lambda: asyncio.Queue(UNSETTLED_MAX))

    @asynccontextmanager
    async def sending(self, producer: Producer, rate: float, send: Send) -> AsyncIterator[None]:
        """Send at a rate, or slower, for as long as the block lasts, and wait until each message has an outcome.

        Args:
            producer: It sends.
            rate: Messages in a second.
            send: Gets the number of the message, from 1.
        """
        async with _running(self._note()):
            async with _running(self._pace(producer, rate, send)):
                yield
            async with asyncio.timeout(DRAIN_S):
                await self._under_way.join()

    async def _pace(self, producer: Producer, rate: float, send: Send) -> None:
        begin = time.monotonic()
        number = 0
        while True:
            number += 1
            at = begin + number / rate
            if (wait_s := at - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            await self._under_way.put((number, at, await send(producer, number)))

    async def _note(self) -> None:
        while True:
            number, at, delivery = await self._under_way.get()
            try:
                receipt = await delivery
            except SendError:
                self.not_ok += 1
            else:
                self.due_ms[number] = receipt.due_ms or 0
                self.published.add(time.monotonic() - at)
            self._under_way.task_done()


@dataclass(slots=True)
class DelayedRun:
    """A run of one of these loads on a topic that has nothing in it."""

    topic: str
    partitions: int
    client: Client
    cluster: LocalCluster
    progress: Callable[[str], None]

    async def run(self, load: DelayedLoad) -> Measured:
        """Run the load.

        Raises:
            SeriatimError: The cluster did not do what the load needs.
            TimeoutError: It did not do it in time.
        """
        match load:
            case Due():
                return await self._due(load)
            case DueAtOnce():
                return await self._due_at_once(load)
            case Pending():
                return await self._pending(load)
            case DueKill():
                return await self._due_kill(load)
            case Cancel():
                return await self._cancel(load)

    # ---- one by one ------------------------------------------------------------------------------------

    async def _due(self, load: Due) -> Measured:
        sent = Sent()
        async with self._reading() as arrivals, self.client.producer(self.topic) as producer:
            async with sent.sending(producer, load.rate, _with_delay(load.within_ms)):
                await asyncio.sleep(load.seconds)
            await arrivals.wait_for(len(sent.due_ms), DRAIN_S)
        found = _told(Measured(), arrivals, sent)
        late = found.latencies["late"]
        found.values = {"late_p50_ms": late.ms(50), "late_p99_ms": late.ms(99)}
        sent_per_s = len(sent.due_ms) / load.seconds
        if sent_per_s < load.rate * RATE_SHARE and not found.problem:
            waits = f"p50 {late.ms(50):,.0f}, p99 {late.ms(99):,.0f} ms late"
            found.problem = f"the brokers took only {sent_per_s:,.0f} of {load.rate:,} msg/s: {waits}"
        return found

    async def _due_kill(self, load: DueKill) -> Measured:
        sent, gaps_ms = Sent(), []
        observer = Observer(self.client.admin(), self.topic)
        async with self._reading() as arrivals, self.client.producer(self.topic) as producer:
            async with sent.sending(producer, load.rate, _with_delay(load.within_ms)):
                for number in range(load.times):
                    await asyncio.sleep(load.within_ms / 1000 + 1)  # until as many are due as are sent
                    before = (await observer.look()).chains[0].open_segment
                    master = before.members[0]
                    self.progress(f"kill {number + 1} of {load.times}: {master}")
                    killed_at = time.monotonic()
                    await self.cluster.kill(master)
                    left = partial(_has_left, segment_no=before.no)
                    await observer.wait_until(left, "the partition continues in a later segment", DEADLINE_S)
                    await asyncio.sleep(KILL_AFTER_S)
                    gaps_ms.append(arrivals.gap_s(killed_at) * 1000)
                    await self.cluster.start_again(master)
                    await observer.wait_until(Snapshot.settled, "the partition accepts again", DEADLINE_S)
                    await self.cluster.wait_ready(deadline_s=DEADLINE_S)
            await arrivals.wait_for(len(sent.due_ms), DRAIN_S)
        found = Measured(values={"firing_gap_ms": percentile(gaps_ms, 0.5)})
        found.details = {"gaps_ms": [round(gap, 1) for gap in gaps_ms]}
        return _told(found, arrivals, sent)

    # ---- many ------------------------------------------------------------------------------------------

    async def _due_at_once(self, load: DueAtOnce) -> Measured:
        usual, meanwhile = Sent(), Sent()
        async with self._reading() as arrivals, self.client.producer(self.topic) as producer:
            async with usual.sending(producer, load.rate, self._ordinary):
                await asyncio.sleep(USUAL_S)
            due_ms = now_ms() + 1000 + load.messages * 1000 // APPEND_PER_S
            count = Count()
            for at in range(1, load.messages + 1, PIECE):
                values = [value_of(number) for number in range(at, min(at + PIECE, load.messages + 1))]
                where = at // PIECE % self.partitions
                await count.add(await producer.send_many(values, partition=where, due_ms=[due_ms] * len(values)))
            await count.finish()
            left_s = due_ms / 1000 - time.time()
            await asyncio.sleep(max(left_s, 0))
            begin = time.monotonic()
            async with meanwhile.sending(producer, load.rate, self._ordinary):
                await arrivals.wait_for(count.ok, DRAIN_S)
        found = Measured(values={
            "messages_per_s": len(arrivals.places) / (arrivals.last_at - begin),
            "ordinary_p99_ratio": meanwhile.published.ms(99) / usual.published.ms(99),
        })  # fmt: skip
        found.details = {"ordinary_p99_ms": {"usual": usual.published.ms(99), "meanwhile": meanwhile.published.ms(99)}}
        told = _told(found, arrivals, meanwhile, dict.fromkeys(range(1, load.messages + 1), due_ms))
        if count.not_ok or usual.not_ok or left_s < 0:
            told.problem = f"{count.not_ok + usual.not_ok:,} were not acknowledged; stored {left_s:.1f} s before due"
        return told

    async def _ordinary(self, producer: Producer, number: int) -> Delivery:
        return await producer.send(value_of(0), partition=number % self.partitions)

    async def _pending(self, load: Pending) -> Measured:
        other = f"{self.topic}_ordinary"
        await make_topic(self.client.admin(), other, 1)
        _, (_, slave) = await self.cluster.open_members(self.topic, 0)
        details: dict[str, object] = {}
        found: dict[str, tuple[float, float, float]] = {}
        row_bytes = 0
        for name, topic, due_ms in (("ordinary", other, 1), ("delayed", self.topic, now_ms() + DAY_MS)):
            self.progress(f"{load.messages:,} {name} messages")
            rate = await self._append(topic, load, due_ms)
            memory_mib = self._memory_mib(slave)
            await self.cluster.stop_gracefully(slave)
            row_bytes = _bytes_of_rows(self.cluster.data_directory(slave))
            begin = time.monotonic()
            await self.cluster.start_again(slave)
            await self.cluster.wait_ready(slave, deadline_s=DEADLINE_S)
            start_s = time.monotonic() - begin
            await Observer(self.client.admin(), topic).wait_until(Snapshot.settled, f"{topic} accepts", DEADLINE_S)
            found[name] = (rate, memory_mib, start_s)
            details[name] = {
                "messages_per_s": round(rate), "memory_mib": memory_mib, "start_s": round(start_s, 3),
                "memory_mib_after_start": self._memory_mib(slave),
            }  # fmt: skip
        usual, delayed = found["ordinary"], found["delayed"]
        stats = await self.client.admin().delayed_stats(self.topic)
        waiting = sum(partition.message_count for partition in stats)
        values = {
            "append_ratio": delayed[0] / usual[0],
            "more_memory_mib": delayed[1] - usual[1],
            "longer_start_s": delayed[2] - usual[2],
            "row_bytes_per_batch": row_bytes / (load.messages / load.rows),
        }
        problem = "" if waiting == load.messages else f"{waiting:,} of {load.messages:,} messages are delayed"
        return Measured(values=values, details=details, problem=problem)

    async def _append(self, topic: str, load: Pending, due_ms: int) -> float:
        """Send all batches, each with a due time of its own, and return the rate. 1970: the messages are ordinary."""
        values = [value_of(0)] * load.rows
        count = Count()
        async with self.client.producer(topic) as producer:
            begin = time.monotonic()
            for number in range(load.messages // load.rows):
                await count.add(await producer.send_many(values, partition=0, due_ms=[due_ms + number] * load.rows))
            await count.finish()
        return count.ok / (count.last_ack_at - begin)

    def _memory_mib(self, broker: str) -> float:
        pid = self.cluster.pid(broker)
        assert pid is not None
        return UsageClock({broker: [pid]}).used()[broker].memory_mib

    # ---- cancelling ------------------------------------------------------------------------------------

    async def _cancel(self, load: Cancel) -> Measured:
        due_ms = now_ms() + DAY_MS
        latency, outcomes = Latency(), list[CancelOutcome]()
        async with self.client.producer(self.topic) as producer:
            origins = await self._stored(producer, round(load.seconds * 10_000), due_ms)

            async def cancel(until: float) -> None:
                while (begin := time.perf_counter()) < until:
                    outcomes.append(await self.client.cancel(self.topic, 0, next(origins)))
                    latency.add(time.perf_counter() - begin)

            await cancel(time.perf_counter() + load.seconds)
            p50_ms, single_count = latency.ms(50), len(outcomes)
            begin = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CANCELLED_AT_ONCE):
                    tasks.create_task(cancel(begin + load.seconds))
            rate = (len(outcomes) - single_count) / (time.perf_counter() - begin)
        wrong = sum(outcome is not CancelOutcome.CANCELLED for outcome in outcomes)
        problem = f"{wrong:,} of {len(outcomes):,} messages were not cancelled" if wrong else ""
        return Measured(values={"cancel_p50_ms": p50_ms, "cancels_per_s": rate}, problem=problem)

    async def _stored(self, producer: Producer, count: int, due_ms: int) -> Iterator[int]:
        """Send delayed messages, and return their origins."""
        sends: list[Deliveries] = []
        for at in range(0, count, PIECE):
            size = min(PIECE, count - at)
            sends.append(await producer.send_many([value_of(0)] * size, partition=0, due_ms=[due_ms + at] * size))
        parts = [part for deliveries in sends for part in await deliveries.settled()]
        return (part.offset + row for part in parts if part.outcome == "ok" for row in range(len(part.positions)))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Arrivals]:
        """Read the topic from its begin for as long as the block lasts."""
        arrivals = Arrivals()
        async with self.client.consumer(self.topic, "reader") as consumer:
            async with asyncio.timeout(DEADLINE_S):
                while len(consumer.joined) < self.partitions:
                    await consumer.fetch(timeout_s=0.05)
            async with _running(arrivals.read(consumer)):
                yield arrivals


def _with_delay(within_ms: int) -> Send:
    """Sends a message that is due at random, to the first partition."""
    chance = random.Random(within_ms)

    async def send(producer: Producer, number: int) -> Delivery:
        return await producer.send(value_of(number), partition=0, delay_ms=chance.randint(1, within_ms))

    return send


@asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run a coroutine as a task for as long as the block lasts."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()


def _told(found: Measured, arrivals: Arrivals, sent: Sent, due_ms: Mapping[int, int] | None = None) -> Measured:
    """Add what each of these loads checks. `due_ms` has the delayed messages if `sent` has ordinary ones."""
    due_ms = sent.due_ms if due_ms is None else due_ms
    late_ms = [late_ms for _, late_ms in arrivals.late(due_ms)]
    found.latencies["late"] = latency = Latency()
    for late in late_ms:
        latency.add(late / 1000)
    found.details |= {"fired": len(arrivals.came), "earliest_ms": round(min(late_ms, default=0.0), 1)}
    found.problem = "; ".join(arrivals.problems(due_ms))
    if sent.not_ok and not found.problem:
        found.problem = f"{sent.not_ok:,} messages were not acknowledged"
    return found


def _has_left(found: Snapshot, segment_no: int) -> bool:
    return found.chains[0].open_segment.no > segment_no


def _bytes_of_rows(directory: Path) -> int:
    """Bytes of keys and values of all rows about delayed messages, on the disk of a broker that has ended."""
    path, raw = str(directory / "log"), Options(raw_mode=True)
    names = [name for name in Rdict.list_cf(path, raw) if name != "default"]
    database = Rdict(path, raw, dict.fromkeys(names, raw), access_type=AccessType.read_only())
    size = 0
    for key, value in database.get_column_family("delay").items():
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        size += len(key) + len(value)
    database.close()
    return size
