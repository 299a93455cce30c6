"""Failures of the client's own code, and of what the application gave it to call: nothing hangs, nothing is false."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from seriatim import Client, Gap, SendUnknownError
from seriatim._bodies.arrow import encode
from seriatim_api import errors
from seriatim_api.batch import make_header, parse_header
from seriatim_api.errors import ClientFailureError
from seriatim_api.v1 import broker_pb2

from ..fake_broker import AppendStream, FakeCluster, connected, running, until
from ..fake_keyed import FakeKeyed

pytestmark = pytest.mark.usefixtures("carriage")


async def test_a_turn_that_fails_ends_the_producer_and_settles_all_as_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Any:
        raise ZeroDivisionError("planted")

    async with connected(2) as (cluster, client), client.producer("t") as producer:
        stored = await producer.send(b"stored", partition=0)
        await stored
        monkeypatch.setattr("seriatim._producing.pending.encode", fails)
        lost = [await producer.send(b"%d" % n, partition=n % 2) for n in range(4)]
        many = await producer.send_many([b"a", b"b"])
        waiting = asyncio.create_task(_wait(lost[0]))
        assert await asyncio.wait_for(producer.flush(), 60) == (1, 0, 6)
        assert isinstance(await waiting, SendUnknownError)
        assert {delivery.outcome for delivery in lost} == {"unknown"}
        with pytest.raises(SendUnknownError, match="planted") as caught:
            await many
        assert caught.value.cause_number == ClientFailureError.number == 206
        for send in (producer.send(b"later"), producer.send_many([b"later"])):
            with pytest.raises(ClientFailureError, match="make a new producer"):
                await asyncio.wait_for(send, 60)
        with pytest.raises(ClientFailureError):
            producer.send_nowait(b"later")
        assert stored.outcome == "ok"
        assert await asyncio.wait_for(producer.flush(), 60) == (0, 0, 0)
    assert cluster.values("t") == [b"stored"]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "seriatim"
    assert record.exc_info
    assert "unknown" in record.getMessage()


async def _wait(delivery: Any) -> Any:
    try:
        return await delivery
    except SendUnknownError as exc:
        return exc


async def test_one_producer_that_fails_leaves_others_of_the_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (cluster, client), client.producer("t") as bad, client.producer("t") as good:
        await (await bad.send(b"0"))
        await (await good.send(b"1"))

        def fails(_event: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(bad._partitions[0], "_step", fails)
        lost = await bad.send(b"2")
        with pytest.raises(SendUnknownError):
            await asyncio.wait_for(lost, 60)
        await asyncio.wait_for(await good.send(b"3"), 5)
    assert cluster.values("t") == [b"0", b"1", b"3"]


async def test_senders_that_wait_for_room_hear_of_the_failure() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        cluster.partition("t").stall = True
        address = cluster.brokers[0].address
        async with Client.connect(address) as client, client.producer("t", buffer_size_bytes=1000) as producer:
            await producer.send(bytes(900))
            waiting = asyncio.create_task(producer.send(bytes(900)))
            await until(lambda: cluster.brokers[0].frame_count > 0)
            producer._failure.happened(ZeroDivisionError("planted"))
            with pytest.raises(ClientFailureError):
                await asyncio.wait_for(waiting, 60)


async def test_a_link_that_cannot_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (_, client), client.producer("t") as producer:
        channels = client._channels
        get_channel, dialing, failures = channels.get, channels.dialing, 0

        def fail() -> None:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise errors.PreconditionError("certificates cannot be read now")

        def get(address: str, purpose: Any) -> Any:
            if purpose != "ask":
                fail()
            return get_channel(address, purpose)

        def dial() -> Any:
            fail()
            return dialing()

        monkeypatch.setattr(channels, "get", get)
        monkeypatch.setattr(channels, "dialing", dial)
        await asyncio.wait_for(await producer.send(b"a"), 5)
        assert failures == 3
        failures = 0
        async with client.consumer("t", "g") as consumer:
            assert [message.value for message in await consumer.fetch(1, 5)] == [b"a"]
        assert failures == 3


async def test_a_question_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(brokers=2) as (cluster, client), client.producer("t") as producer:
        await (await producer.send(b"a"))
        real, failures = client._caller.routing, 0

        async def routing(method: str, *arguments: Any, **options: Any) -> Any:
            nonlocal failures
            if method.startswith("Resolve") and failures < 3:
                failures += 1
                raise ZeroDivisionError("planted")
            return await real(method, *arguments, **options)

        monkeypatch.setattr(client._caller, "routing", routing)
        cluster.partition("t").refuse.append(errors.NotServingError("elsewhere, perhaps"))
        await asyncio.wait_for(await producer.send(b"b"), 5)
        failures = 0
        async with client.consumer("t", "g") as consumer:
            assert [message.value for message in await consumer.fetch(1, 5)] == [b"a"]


async def test_callbacks_of_the_application_that_raise_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []

    def raises(event: object) -> None:
        told.append(event)
        raise ZeroDivisionError("the application's")

    async with connected() as (cluster, client), client.producer("t") as producer:
        await (await producer.send(b"a"))
        async with client.consumer("t", "g", on_assignment=raises, on_gap=raises) as consumer:
            [message] = await consumer.fetch(1, 5)
            event = broker_pb2.DeliveryEvent(subscription=consumer._subscriptions[0].core.subscription)
            event.gap.segment, event.gap.reason = 5, "declared"
            consumer._subscriptions[0].told(event)
            await consumer.ack(message)
            group = cluster.partition("t").groups["g"]
            await until(lambda: group.acked == 1)
    assert any(isinstance(event, Gap) for event in told)
    assert len(told) >= 2
    assert all("on_" in record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)


class FullDisk(logging.Handler):
    """A handler of the program's that cannot write."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(28, "no space left on device")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """The program's log takes nothing."""
    logger, handler = logging.getLogger("seriatim"), FullDisk()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("mode", ["exclusive", "key_ordered"])
async def test_a_log_and_callbacks_that_raise_stop_no_messages(full_disk: None, mode: Any) -> None:
    def raises(_event: object) -> None:
        raise ZeroDivisionError("the application's")

    async with running() as cluster:
        cluster.create_topic("t")
        if mode == "key_ordered":
            FakeKeyed(cluster).add(next(iter(cluster.topics["t"].partition_ids)), [(b"k", b"a")])
        async with Client.connect(cluster.brokers[0].address) as client, client.producer("t") as producer:
            await (await producer.send(b"a"))
            async with client.consumer("t", "g", mode=mode, on_assignment=raises) as consumer:
                found = await (consumer.fetch(1, 5) if mode == "exclusive" else consumer.receive(1, 5))
                assert len(found) == 1


async def test_a_failure_of_the_client_reaches_the_caller_if_the_log_raises(
    full_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Any:
        raise ZeroDivisionError("planted")

    async with connected() as (_, client):
        monkeypatch.setattr("seriatim._core.consumer.PartitionConsumer.step", fails)
        async with client.consumer("t", "g") as consumer:
            with pytest.raises(ClientFailureError, match="planted"):
                await asyncio.wait_for(consumer.fetch(1, 5), 60)


async def test_a_callback_that_returns_a_coroutine_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def never_run() -> None:
        raise AssertionError

    async with running() as cluster:
        cluster.create_topic("t")
        told: Any = lambda _told: never_run()  # noqa: E731 - `async def` itself is refused
        async with (
            Client.connect(cluster.brokers[0].address) as client,
            client.consumer("t", "g", on_assignment=told) as consumer,
        ):
            await until(lambda: bool(consumer.assigned))
    assert "on_assignment returned a coroutine" in caplog.text


async def test_a_history_that_cannot_be_written_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def __getattr__(self, name: str) -> Any:
            def write(*_arguments: object, **_options: object) -> None:
                raise OSError("no space left on device")

            return write

    async with running() as cluster:
        cluster.create_topic("t")
        address = cluster.brokers[0].address
        async with (
            Client.connect(address, recorder=Full(), message_id=lambda value: value.hex()) as client,
            client.producer("t") as producer,
            client.consumer("t", "g") as consumer,
        ):
            for value in (b"a", b"b"):
                await (await producer.send(value))
                [message] = await consumer.fetch(1, 5)
                await consumer.ack(message)
                assert message.value == value
    assert len([record for record in caplog.records if "recording ends" in record.getMessage()]) == 1


def _poison(cluster: FakeCluster) -> None:
    """A batch whose body is no record batch: a broker that knows nothing of Arrow would have taken it."""
    import google_crc32c

    partition = cluster.partition("t")
    body = b"nothing"
    header = make_header(
        partition=partition.id, message_count=2, producer=b"p" * 16, producer_epoch=0, base_sequence=0,
        first_timestamp_ms=1, last_timestamp_ms=1, body_length=len(body), body_crc=google_crc32c.value(body),
    )  # fmt: skip
    AppendStream(cluster.brokers[0], None)._append(partition, parse_header(header), memoryview(body))


@pytest.mark.parametrize("form", ["fetch", "fetch_table", "iterate"])
async def test_nothing_behind_a_batch_that_cannot_be_read_is_given_out(form: str) -> None:
    async with connected() as (cluster, client), client.producer("t") as producer:
        await (await producer.send(b"before"))
        _poison(cluster)
        await (await producer.send(b"after"))
        async with client.consumer("t", "g") as consumer:
            if form == "fetch_table":
                table = await consumer.fetch_table(5)
                assert table is not None
                assert table.table.column("value").to_pylist() == [b"before"]
            else:
                messages = await consumer.fetch(100, 5)
                assert [message.value for message in messages] == [b"before"]
            for _ in range(3):  # an application that catches the error and continues
                read = {
                    "fetch": lambda: consumer.fetch(100, 5),
                    "fetch_table": lambda: consumer.fetch_table(5),
                    "iterate": lambda: anext(consumer.__aiter__()),
                }[form]
                with pytest.raises(errors.BadRequestError, match="cannot be read"):
                    await read()
                await consumer.ack_all()
        group = cluster.partition("t").groups["g"]
        await until(lambda: group.acked > 0 and not group.consumers)  # it has left, and its last word is there
        assert group.acked == 1


def test_encode_is_what_the_producer_calls() -> None:
    """The test above replaces it."""
    from seriatim._producing import pending

    assert pending.encode is encode


async def test_a_client_closes_all_that_it_opened_also_if_one_of_them_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise ZeroDivisionError("planted")

    async def use(address: str) -> None:
        async with Client.connect(address) as client:
            consumer = await client.consumer("t", "g")
            producer = await client.producer("t")
            real = consumer.close
            monkeypatch.setattr(consumer, "close", fails)
            deliveries.append(await producer.send(b"a"))
            client._closers.append(lambda _flush: real())

    deliveries: list[Any] = []
    async with running() as cluster:
        cluster.create_topic("t")
        with pytest.raises(ZeroDivisionError):
            await use(cluster.brokers[0].address)
    assert deliveries[0].done


def test_closing_the_synchronous_client_ends_a_call_of_another_thread() -> None:
    from seriatim._loop_thread import LoopThread

    thread = LoopThread()
    begun, ended = threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(concurrent.futures.CancelledError):
            thread.run(forever())
        ended.set()

    other = threading.Thread(target=wait)
    other.start()
    assert begun.wait(10)
    thread.close()
    assert ended.wait(10)
    other.join()


def test_an_interrupt_of_a_synchronous_iteration_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was waited for takes some turns of the loop to end. Meanwhile nothing else may ask the iteration to end."""
    from seriatim._loop_thread import LoopThread

    begun = threading.Event()

    async def items() -> AsyncIterator[int]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
        yield 1

    def interrupt(_future: object, _timeout: float | None = None) -> None:
        assert begun.wait(10)
        monkeypatch.undo()
        raise KeyboardInterrupt

    thread = LoopThread()
    monkeypatch.setattr(concurrent.futures.Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(thread.each(items()))
    thread.close()
