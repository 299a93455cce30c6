"""An exception at each call of the client's own code in turn: nothing hangs, nothing settles falsely, all is settled.

What must hold after an exception at any place: an outcome is ok only with the offset at which its message is stored,
and failed only if its message is stored nowhere. All outcomes are settled when the producer is closed. A consumer
acknowledges only messages that the application got, and the next consumer gets the messages that it passed over.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from seriatim._bodies.arrow import decode, encode
from seriatim._consuming.consumer import Consumer
from seriatim._producing.producer import Producer
from seriatim._producing.routes import route_of
from seriatim._transport.append import AppendLinks
from seriatim._values.settings import ConsumerSettings, ProducerSettings
from seriatim._values.topics import topic_of
from seriatim_api import errors
from seriatim_api.batch import make_header, parse_header

from ..fake_broker import AppendStream, FakePartition
from ..in_process import Injector, InProcess, quiet_hooks, run

pytestmark = pytest.mark.usefixtures("carriage")

STEP = 7
"""The quick tests try one of this many calls; the slow one tries all, and those of built-in functions too."""


def stored(partition: FakePartition) -> dict[int, bytes]:
    """All messages of a partition, by offset."""
    found: dict[int, bytes] = {}
    for segment in partition.segments:
        for batch in segment.batches:
            rows = decode(batch.body, batch.header.message_count, batch.header.body_crc).column(1).to_pylist()
            for number, value in enumerate(rows):
                found[segment.no << 40 | batch.header.base_index + number] = value
    return found


# ---- producer -------------------------------------------------------------------------------------------


class _Application:
    """Send as much as possible through a producer, and check the outcomes."""

    def __init__(self, place: InProcess) -> None:
        self.place = place
        self.sent: list[tuple[list[bytes], Any]] = []  # with what the call gave back
        self.waiting: list[asyncio.Task[None]] = []

    async def attempt(self, call: Coroutine[Any, Any, Any], values: list[bytes]) -> None:
        try:
            delivery = await call
        except Exception:
            return  # the application knows that this call failed
        self.sent.append((values, delivery))
        self.waiting.append(asyncio.create_task(_wait(delivery)))

    async def scenario(self, injector: Injector) -> None:
        place = self.place
        record = place.cluster.create_topic("t", 2)
        partitions = [place.cluster.partitions[number] for number in record.partition_ids]
        links = AppendLinks(place.carriages, "test")
        routes = [route_of(partition.route(place.cluster.brokers)) for partition in partitions]
        settings = ProducerSettings(batch_size_bytes=300, delivery_timeout_ms=20_000)
        producer = Producer(
            topic_of(record), routes, settings, place, links, None,  # type: ignore[arg-type]
        )  # fmt: skip
        with injector:
            with suppress(Exception):
                await self._send(producer, partitions)
            with suppress(Exception):
                await producer.flush()
            for _ in range(2):  # the exception may come before the first call has begun
                with suppress(Exception):
                    await producer.close()
        await links.close()
        await asyncio.sleep(0.001)

    async def _send(self, producer: Producer, partitions: list[FakePartition]) -> None:
        cluster = self.place.cluster
        for n in range(4):
            value, headers = b"s%d" % n, {"h": b"1"} if n else None
            await self.attempt(producer.send(value, partition=n % 2, headers=headers), [value])
        await asyncio.sleep(0.001)
        values = [b"m%d" % n for n in range(20)]
        await self.attempt(producer.send_many(values, keys=[b"k%d" % (n % 3) for n in range(20)]), values)
        cluster.switch(partitions[0], cluster.brokers[1])
        await asyncio.sleep(0.002)
        rows = [b"t%d" % n for n in range(10)]
        await self.attempt(producer.send_table(pa.table({"value": rows, "key": rows})), rows)
        partitions[1].refuse.append(errors.OverloadedError("busy", retry_after_ms=5))
        await self.attempt(producer.send(b"last", partition=1, tag="x"), [b"last"])

    def judge(self) -> None:
        messages = [stored(partition) for partition in self.place.cluster.partitions.values()]
        everywhere = [value for partition in messages for value in partition.values()]
        assert len(everywhere) == len(set(everywhere)), "a message is stored twice"
        for (values, delivery), waiting in zip(self.sent, self.waiting, strict=True):
            assert delivery.done, f"{values} is not settled"
            assert waiting.done(), f"{values} is waited for"
            for value, outcome, partition, offset in _outcomes(values, delivery):
                if outcome == "ok":
                    assert messages[partition].get(offset) == value, f"{value!r} has the receipt of another message"
                elif outcome == "failed":
                    assert value not in everywhere, f"{value!r} is failed and stored"


async def _wait(delivery: Any) -> None:
    with suppress(errors.SeriatimError):
        await delivery


def _outcomes(values: list[bytes], delivery: Any) -> list[tuple[bytes, str, int, int]]:
    if len(values) == 1:
        receipt = delivery.result() if delivery.outcome == "ok" else None
        return [(values[0], delivery.outcome, receipt.partition if receipt else 0, receipt.offset if receipt else 0)]
    parts = delivery.parts
    assert sorted(at for part in parts for at in part.positions) == list(range(len(values)))
    return [
        (values[at], part.outcome, part.partition, part.offset + n)
        for part in parts
        for n, at in enumerate(part.positions)
    ]


def _produce(monkeypatch: pytest.MonkeyPatch, at: int, *, built_in: bool) -> tuple[_Application, Injector]:
    application = _Application(InProcess())
    injector = Injector(at, built_in=built_in)
    try:
        run(application.scenario(injector), monkeypatch)
        application.judge()
    except BaseException as exc:
        exc.add_note(f"injected at {injector.where}")
        raise
    return application, injector


# ---- consumer -------------------------------------------------------------------------------------------

MESSAGES = [b"%d" % n for n in range(30)]


class _Reader:
    """Reads a partition with one consumer, which may fail, and the rest with another of the same group."""

    def __init__(self, place: InProcess) -> None:
        self.place = place
        self.seen: list[bytes] = []
        self.events: list[Any] = []

    def _consumer(self, name: str) -> Consumer:
        place = self.place
        topic = topic_of(place.cluster.topics["t"])
        return Consumer(
            topic, "g", name, None, ConsumerSettings(), place.carriages, place, "test",  # type: ignore[arg-type]
            None, self.events.append, self.events.append, None, "exclusive",
        )  # fmt: skip

    async def scenario(self, injector: Injector) -> None:
        place = self.place
        place.cluster.create_topic("t", 1)
        partition = place.cluster.partition("t")
        fill(partition, range(2))
        with injector, suppress(Exception):
            consumer = self._consumer("first")
            with suppress(Exception):
                await self._read(consumer, partition)
            for _ in range(2):
                with suppress(Exception):
                    await consumer.close()
        if not partition.segments[0].sealed:
            place.cluster.switch(partition, place.cluster.brokers[1])
        if not partition.open_segment.batches:
            fill(partition, range(2, 6))
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()  # of a consumer that was not even made, or of what was not closed
        await asyncio.sleep(1)
        rest = self._consumer("second")
        while len(set(self.seen)) < len(MESSAGES):
            messages = await rest.fetch(100, 30.0)
            assert messages, "messages are missing, and do not come again"
            self.take([message.value for message in messages])
            await rest.ack_all()
        await rest.close()

    async def _read(self, consumer: Consumer, partition: FakePartition) -> None:
        cluster = self.place.cluster
        errors_in_a_row = 0
        while len(set(self.seen)) < len(MESSAGES) and errors_in_a_row < 3:
            try:
                messages = await consumer.fetch(7, 5.0)
                self.take([message.value for message in messages])
                await consumer.ack_all()
                if len(self.seen) >= 8 and not partition.segments[0].sealed:
                    cluster.switch(partition, cluster.brokers[1])
                    fill(partition, range(2, 6))
                errors_in_a_row = 0 if messages else errors_in_a_row + 1
            except Exception:
                errors_in_a_row += 1  # an application that continues
            self.judge()

    def take(self, values: list[bytes]) -> None:
        """First deliveries come in order; what came before may come again."""
        for value in values:
            if value not in self.seen:
                assert value == MESSAGES[len(set(self.seen))], f"{value!r} came too early"
            self.seen.append(value)

    def judge(self) -> None:
        """What is acknowledged is what was given out."""
        group = self.place.cluster.partition("t").groups.get("g")
        if group is not None:
            acked = group.acked + (10 if group.segment > 1 else 0)
            assert acked <= len(set(self.seen)), f"{acked} are acknowledged, {len(set(self.seen))} were given out"


BODIES = [encode(MESSAGES[at : at + 5], None, [1] * 5) for at in range(0, len(MESSAGES), 5)]


def fill(partition: FakePartition, batches: range) -> None:
    """Store messages, five in a batch, without a producer."""
    stream = AppendStream(partition.open_segment.broker, None)
    for number in batches:
        body = BODIES[number]
        header = make_header(
            partition=partition.id, message_count=5, producer=bytes(16), producer_epoch=0, base_sequence=5 * number,
            first_timestamp_ms=1, last_timestamp_ms=1, body_length=len(body.data), body_crc=body.crc, flags=body.flags,
        )  # fmt: skip
        stream._append(partition, parse_header(header), memoryview(body.data))


def _consume(monkeypatch: pytest.MonkeyPatch, at: int, *, built_in: bool) -> tuple[_Reader, Injector]:
    reader = _Reader(InProcess())
    injector = Injector(at, built_in=built_in)
    try:
        run(reader.scenario(injector), monkeypatch)
        reader.judge()
    except BaseException as exc:
        exc.add_note(f"injected at {injector.where}")
        raise
    return reader, injector


# ---- tests ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, "seriatim")
    with quiet_hooks():
        yield


@pytest.mark.filterwarnings("ignore:coroutine")
def test_coroutine_in_a_cycle_is_dropped_in_the_same_test() -> None:
    with quiet_hooks():
        cycle: list[Any] = [asyncio.sleep(0)]
        cycle.append(cycle)
        left = weakref.ref(cycle[0])
        del cycle
    assert left() is None


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_producer_survives_an_exception_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    application, injector = _produce(monkeypatch, 0, built_in=False)
    assert len(application.sent) == 7
    for values, delivery in application.sent:
        assert all(outcome == "ok" for _, outcome, *_ in _outcomes(values, delivery))
    for at in range(1, injector.count + 1, STEP):
        _produce(monkeypatch, at, built_in=False)


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_consumer_survives_an_exception_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, injector = _consume(monkeypatch, 0, built_in=False)
    assert reader.seen == MESSAGES
    for at in range(1, injector.count + 1, STEP):
        _consume(monkeypatch, at, built_in=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("scenario", [_produce, _consume])
def test_the_same_with_each_call_of_a_built_in(monkeypatch: pytest.MonkeyPatch, scenario: Any) -> None:
    _, injector = scenario(monkeypatch, 0, built_in=True)
    for at in range(1, injector.count + 1):
        scenario(monkeypatch, at, built_in=True)
