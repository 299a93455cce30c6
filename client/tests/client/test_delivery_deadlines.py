"""Deliveries settle within the delivery timeout, whatever waits in front of them. All of it in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from seriatim import SendError, SendUnknownError
from seriatim._producing.producer import Producer
from seriatim._producing.routes import route_of
from seriatim._publishing.staging import Stager
from seriatim._transport.append import AppendLinks
from seriatim._values.settings import ProducerSettings
from seriatim._values.topics import topic_of
from seriatim_api import errors
from seriatim_api.ids import make_offset
from seriatim_api.v1 import broker_pb2, publications_pb2

from ..fake_broker import FakePartition
from ..in_process import InProcess, run

pytestmark = pytest.mark.usefixtures("carriage")

TIMEOUT_S = 5.0
EARLY_S = TIMEOUT_S / 64
"""Messages that came within this time may share a batch, and so its deadline."""

LATE_S = 0.002

FULL = "the disk has 3 % free and the reserve is 5 %"


class _Place(InProcess):
    """Brokers that can be out of reach."""

    is_reachable = True

    async def _connect(self, make: Any, host: str, port: int) -> tuple[Any, Any]:
        if not self.is_reachable:
            raise OSError("out of reach")
        return await super()._connect(make, host, port)

    def get(self, address: str, purpose: str) -> Any:
        if not self.is_reachable:
            raise errors.UnavailableError("out of reach")
        return super().get(address, purpose)

    async def routing(self, method: str, request: Any, _timeout_s: float, **options: Any) -> Any:
        if not self.is_reachable:
            raise errors.UnavailableError("out of reach")
        return await super().routing(method, request, _timeout_s, **options)

    async def publications(self, method: str, _request: Any, timeout_s: float) -> Any:
        assert method == "PrepareStaging"
        stage = await self.routing("GetTopic", broker_pb2.GetTopicRequest(topic="stage"), timeout_s)
        return publications_pb2.PrepareStagingResponse(stage=stage, groups=[""] * len(stage.routes))


class _Application:
    """Sends messages, and notes after which time each of them was settled, and how."""

    def __init__(self, place: _Place, partition: FakePartition, producer: Producer, links: AppendLinks) -> None:
        self.place = place
        self.links = links
        self.partition = partition
        self.producer = producer
        self.settled: list[tuple[float, str, str]] = []
        self._waiting: list[asyncio.Task[None]] = []

    async def send(self, value: bytes, partition: int = 0) -> None:
        delivery = await self.producer.send(value, partition=partition)
        self._waiting.append(asyncio.create_task(self._settle(delivery, time.monotonic())))

    async def _settle(self, delivery: Any, taken_at: float) -> None:
        try:
            await delivery
            text = ""
        except SendError as error:
            text = str(error)
        self.settled.append((time.monotonic() - taken_at, delivery.outcome, text))

    async def all_settled(self) -> list[tuple[float, str, str]]:
        await asyncio.gather(*self._waiting)
        assert self.producer.unsettled_count == 0
        assert self.producer.buffered_bytes == 0
        return self.settled

    # ---- how brokers fail ----

    def be_silent(self) -> None:
        for partition in self.place.cluster.partitions.values():
            partition.hold_commit = True

    def be_full(self) -> None:
        self.partition.refuse = [errors.OverloadedError(FULL, retry_after_ms=50)] * 100_000

    def be_gone(self) -> None:
        self.place.is_reachable = False
        for link in list(self.links._tasks.values()):
            link.cancel()


@asynccontextmanager
async def _application(
    partition_count: int = 1, timeout_s: float = TIMEOUT_S, **settings: Any
) -> AsyncIterator[_Application]:
    place = _Place(1)
    record = place.cluster.create_topic("t", partition_count)
    partition = place.cluster.partition("t")
    links = AppendLinks(place.carriages, "test")
    producer = Producer(
        topic_of(record),
        [route_of(place.cluster.partitions[number].route(place.cluster.brokers)) for number in record.partition_ids],
        ProducerSettings(delivery_timeout_ms=int(timeout_s * 1000), **settings),
        place, links, None,  # type: ignore[arg-type]
    )  # fmt: skip
    try:
        yield _Application(place, partition, producer, links)
    finally:
        await producer.close(0)
        await links.close()


WAYS = pytest.mark.parametrize("fail", [_Application.be_silent, _Application.be_full, _Application.be_gone])


@WAYS
def test_the_last_of_a_hundred_batches_settles_in_time(
    fail: Callable[[_Application], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with _application() as application:
            await (await application.producer.send(b"first"))
            fail(application)
            for _ in range(100):
                await application.send(b"x" * 300_000)
            found = await application.all_settled()
        assert max(after_s for after_s, _, _ in found) <= TIMEOUT_S + LATE_S
        outcomes = [outcome for _, outcome, _ in found]
        assert "ok" not in outcomes
        # The window may be stored. What waited behind it was never sent, so the application may send it again.
        assert outcomes.count("failed") >= 84
        if fail is _Application.be_full:
            assert outcomes.count("failed") == 100
            assert sum("not sent within 5000 ms" in text for _, _, text in found) >= 84
            assert all(text.endswith(FULL) for _, _, text in found)

    run(scenario(), monkeypatch)


@WAYS
def test_messages_that_come_one_after_another_settle_in_time(
    fail: Callable[[_Application], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with _application(window_batches=2) as application:
            await (await application.producer.send(b"first"))
            fail(application)
            for number in range(300):
                await application.send(b"%d" % number)
                await asyncio.sleep(0.05)
            found = await application.all_settled()
        assert max(after_s for after_s, _, _ in found) <= TIMEOUT_S + LATE_S
        early = [outcome for after_s, outcome, _ in found if after_s < TIMEOUT_S - EARLY_S]
        assert set(early) <= {"unknown"}  # those that were under way together with one that was given up

    run(scenario(), monkeypatch)


def test_partitions_without_room_on_their_link_settle_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        # The link is given up after 3 s. Until then it takes 128 batches.
        async with _application(400, timeout_s=2.0) as application:
            for number in range(400):
                await application.send(b"x", number)
            await application.all_settled()
            application.settled.clear()
            application.be_silent()
            for number in range(400):
                await application.send(b"x", number)
            found = await application.all_settled()
        assert max(after_s for after_s, _, _ in found) <= 2.0 + LATE_S
        assert {outcome for _, outcome, _ in found} == {"failed", "unknown"}

    run(scenario(), monkeypatch)


def test_messages_of_the_last_seconds_outlive_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with _application() as application:
            application.be_gone()
            for number in range(160):
                await application.send(b"%d" % number)
                await asyncio.sleep(0.05)
            application.place.is_reachable = True
            found = await application.all_settled()
        outcomes = [outcome for _, outcome, _ in found]
        assert set(outcomes) == {"ok", "failed"}
        # 160 messages in 8 s: those of the last 5 s are stored, unless a reconnection took a part of a second.
        assert 90 <= outcomes.count("ok") <= 101
        assert outcomes[-90:] == ["ok"] * 90

    run(scenario(), monkeypatch)


@pytest.mark.parametrize("call", [Producer.flush, Producer.close])
@WAYS
def test_flush_and_close_end_in_time(
    fail: Callable[[_Application], None], call: Callable[[Producer], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with _application() as application:
            await (await application.producer.send(b"first"))
            fail(application)
            for _ in range(60):
                await application.send(b"x" * 300_000)
            begun_at = time.monotonic()
            result = await call(application.producer)
            assert time.monotonic() - begun_at <= TIMEOUT_S + LATE_S
            assert (result.ok, result.failed + result.unknown) == (1, 60)

    run(scenario(), monkeypatch)


def test_waiting_messages_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with _application(buffer_size_bytes=1 << 30, batch_size_bytes=1000) as application:
            await (await application.producer.send(b"first"))
            application.be_silent()
            values = [b"x" * 10] * 100_000
            deliveries = await application.producer.send_many(values)
            await asyncio.sleep(0.1)
            timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
            assert len(timers) < 20
            parts = await deliveries.settled()
        assert sum(len(part.positions) for part in parts) == 100_000
        assert {part.outcome for part in parts} == {"failed", "unknown"}

    run(scenario(), monkeypatch)


def test_staging_ends_with_the_first_rows_that_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        place = _Place(1)
        place.cluster.create_topic("t")
        place.cluster.create_topic("stage")
        place.cluster.partition("stage").hold_commit = True
        links = AppendLinks(place.carriages, "test")
        settings = ProducerSettings(delivery_timeout_ms=5000, buffer_size_bytes=2 << 20)
        stager = Stager("t", settings, place, links, "test")  # type: ignore[arg-type]
        rows = pa.table({"value": [b"x" * 100_000] * 100})  # five times the buffer
        begun_at = time.monotonic()
        with pytest.raises(SendUnknownError):
            await stager.stage(rows, 0, "key", "nightly")
        assert time.monotonic() - begun_at <= TIMEOUT_S + 0.1
        await links.close()

    run(scenario(), monkeypatch)


def test_staged_rows_of_each_partition_are_a_batch_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them wait for the first connection. A manifest names a batch by its place and its number of rows."""

    async def scenario() -> None:
        place = _Place(1)
        place.cluster.create_topic("t", 5)
        place.cluster.create_topic("stage")
        links = AppendLinks(place.carriages, "test")
        stager = Stager("t", ProducerSettings(), place, links, "test")  # type: ignore[arg-type]
        rows = pa.table({"value": [b"%d" % number for number in range(50)]})
        chunk = await stager.stage(rows, [number % 5 for number in range(50)], "key", "nightly")
        await links.close()
        named = sorted((batch.offset, batch.rows) for part in chunk.parts for batch in part.batches)
        headers = [batch.header for segment in place.cluster.partition("stage").segments for batch in segment.batches]
        assert named == [(make_offset(h.segment, h.base_index), h.message_count) for h in headers]
        assert len(named) == 5

    run(scenario(), monkeypatch)
