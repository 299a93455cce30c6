"""That no broker answers is said once, soon, and with its cause; and not while one does."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from seriatim import Client
from seriatim._admin import admin
from seriatim._consuming import streams
from seriatim._transport import reasons, silence, unary
from seriatim_api import errors
from seriatim_api.v1 import broker_pb2

from ..fake_broker import abort, connected, running, until

pytestmark = pytest.mark.usefixtures("carriage")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "NOTICE_S", 0)


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that takes connections and says nothing, as a frozen broker does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "seriatim"]


async def test_it_is_said_once_with_every_address_and_why(caplog: pytest.LogCaptureFixture) -> None:
    found = silence.Silence()
    for _ in range(3):
        found.begins(["h1:1", "h2:1"])
        found.goes_on("h1:1", "Connection refused")
    await until(lambda: len(notices(caplog)) == 1)
    found.goes_on("h2:1", "Connection refused")
    assert found.error(["h1:1", "h2:1"]).message == "no broker answers at h1:1, h2:1: Connection refused"
    found.begins(["h1:1", "h2:1"])
    assert found.is_feared
    found.ends("h2:1")
    found.begins(["h1:1", "h2:1"])
    await until(lambda: len(notices(caplog)) == 3)
    assert notices(caplog) == [
        "no broker answers at h1:1 (Connection refused), h2:1 (no answer in time); still trying",
        "the broker at h2:1 answers",
        "no broker answers at h1:1, h2:1: no answer in time; still trying",
    ]


async def test_a_failure_of_tls_stays_the_cause_when_time_ends_during_the_next_handshake() -> None:
    found = silence.Silence()
    found.goes_on("h1:1", "the certificate has expired", is_tls=True)
    assert found.note_late("h1:1") == "the certificate has expired"
    assert isinstance(found.error(["h1:1"]), errors.TlsHandshakeError)
    found.goes_on("h1:1", "Connection refused")
    assert found.note_late("h1:1") == "no answer in time"
    assert not isinstance(found.error(["h1:1"]), errors.TlsHandshakeError)
    found.goes_on("h1:1", "the certificate has expired", is_tls=True)
    found.ends("h1:1")
    found.note_late("h1:1")
    assert found.error(["h1:1"]).message == "no broker answers at h1:1: no answer in time"


async def test_the_question_about_tls_stays_when_time_ends_during_the_next_handshake() -> None:
    found = silence.Silence()
    reason, is_tls = reasons.explain(
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:h1:1: Socket closed", None
    )
    found.goes_on("h1:1", reason, is_tls=is_tls)
    assert "does the broker ask for TLS?" in found.note_late("h1:1")
    found.ends("h1:1")
    assert found.note_late("h1:1") == "no answer in time"


async def test_nobody_there_is_the_error(caplog: pytest.LogCaptureFixture) -> None:
    async with Client.connect("127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(
            errors.UnavailableError, match=r"no broker answers at 127\.0\.0\.1:1.*127\.0\.0\.1:2"
        ) as caught:
            await client._caller.routing("GetTopic", broker_pb2.GetTopicRequest(), 0.3)
    assert caught.value.number == 600
    assert len(notices(caplog)) == 1


async def test_a_broker_that_is_back_is_said_as_well(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "NOTICE_S", 60)
    async with running() as cluster:
        cluster.create_topic("t")
        broker = cluster.brokers[0]
        async with Client.connect(broker.address) as client, client.producer("t") as producer:
            await (await producer.send(b"a"))
            await broker.stop()
            monkeypatch.setattr(silence, "NOTICE_S", 0)
            delivery = await producer.send(b"b")
            await until(lambda: len(notices(caplog)) == 1)
            monkeypatch.setattr(silence, "NOTICE_S", 60)
            await broker.restart()
            await asyncio.wait_for(delivery, 60)
            await until(lambda: len(notices(caplog)) == 2)
        first, second = notices(caplog)
        assert first.startswith(f"no broker answers at {broker.address}: ")
        assert second == f"the broker at {broker.address} answers"
        assert cluster.values("t") == [b"a", b"b"]


async def test_one_that_answers_is_enough(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "NOTICE_S", 60)
    async with running(2) as cluster:
        cluster.create_topic("t")
        alive, dead = cluster.brokers
        await dead.stop()
        async with Client.connect([dead.address, alive.address]) as client, client.producer("t") as producer:
            for _ in range(5):
                await (await producer.send(b"a"))
                await client._caller.routing("GetTopic", broker_pb2.GetTopicRequest(topic="t"), 1.0)
            assert not client._channels.silence.is_feared  # nothing is about to be said either
        assert notices(caplog) == []


async def test_a_complaint_that_a_broker_thinks_about_is_no_silence(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (cluster, client):
        complaint = broker_pb2.ResolveProducerRequest(partition_id=1, known_epoch=1, failed_segment=1)
        await client._caller.routing("ResolveProducer", complaint, 2.0, is_complaint=True)
        assert not client._channels.silence.is_feared
    assert cluster.complaints == [1]
    assert notices(caplog) == []


@pytest.mark.parametrize("reads", [False, True])
async def test_what_comes_over_a_stream_ends_the_silence(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    monkeypatch.setattr(silence, "NOTICE_S", 60)
    monkeypatch.setattr(streams, "SILENCE_S", 60)  # else a question would
    async with connected() as (cluster, client), client.producer("t") as producer:
        address = cluster.brokers[0].address
        await (await producer.send(b"a"))
        if reads:
            async with client.consumer("t", "g") as consumer:
                assert len(await consumer.fetch(1, 10)) == 1
                client._channels.silence.begins([address])
                await consumer.ack_all()  # and the broker confirms it
                await until(lambda: not client._channels.silence.is_feared)
        else:
            client._channels.silence.begins([address])
            await (await producer.send(b"b"))
            assert not client._channels.silence.is_feared


async def test_beside_a_silent_broker_another_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "ATTEMPT_WAIT_S", 60.0)
    async with running(2) as cluster:
        cluster.create_topic("t")
        frozen, alive = cluster.brokers
        is_asked = asyncio.Event()

        async def never(_request: object, _context: object) -> None:
            is_asked.set()
            await asyncio.Event().wait()

        frozen.GetTopic = never  # type: ignore[method-assign,assignment]
        await frozen.stop()
        await frozen.restart()
        async with Client.connect([frozen.address, alive.address]) as client, asyncio.timeout(10):
            question = broker_pb2.GetTopicRequest(topic="t")
            assert (await client._caller.routing("GetTopic", question, 60.0)).topic.name == "t"
            assert is_asked.is_set()
            assert client._caller._order(None, None)[0] == alive.address


async def test_what_may_have_been_done_is_not_asked_of_another(mute: str) -> None:
    async with Client.connect([mute, "127.0.0.1:1"]) as client:
        with pytest.raises(errors.DeadlineExceededError) as caught:
            await client._caller.admin("DeleteTopic", broker_pb2.DeleteTopicRequest(name="t"), 0.1)
    assert caught.value.message == f"{mute} did not answer DeleteTopic within 0.1 s; it may have been done"


@pytest.mark.parametrize(
    "error", [errors.NotServingError("topic 't' is being created"), errors.UnavailableError("the broker is starting")]
)
async def test_what_a_broker_says_of_itself_goes_before_the_silence_of_others(error: errors.SeriatimError) -> None:
    async with running() as cluster:
        broker = cluster.brokers[0]

        async def refuse(_request: object, context: object) -> None:
            await abort(context, error)

        broker.GetTopic = refuse  # type: ignore[method-assign,assignment]
        await broker.stop()
        await broker.restart()
        async with Client.connect([broker.address, "127.0.0.1:1"]) as client:
            with pytest.raises(type(error)) as caught:
                await client._caller.routing("GetTopic", broker_pb2.GetTopicRequest(topic="t"), 1.0)
            assert caught.value.message == error.message


async def test_what_only_reads_is_asked_of_another_broker_when_one_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "READ_PATIENCE_S", 0.0)
    async with running(2) as cluster, Client.connect([broker.address for broker in cluster.brokers]) as client:
        cluster.brokers[0].is_frozen = True
        assert await client.admin().list_topics() == []


async def test_what_changes_something_is_asked_of_one_broker_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "READ_PATIENCE_S", 0.0)
    monkeypatch.setattr(admin, "DEADLINE_S", 0.2)
    async with running(2) as cluster, Client.connect([broker.address for broker in cluster.brokers]) as client:
        cluster.brokers[0].is_frozen = True
        with pytest.raises(errors.DeadlineExceededError, match="it may have been done"):
            await client.admin().create_topic("t")
        assert not cluster.topics
        monkeypatch.setattr(admin, "DEADLINE_S", 10.0)
        await client.admin().create_topic("t")  # the next question begins at another one
        assert set(cluster.topics) == {"t"}


async def test_a_broker_that_answered_before_and_froze_is_not_the_first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(2) as cluster, Client.connect([broker.address for broker in cluster.brokers]) as client:
        await client.admin().create_topic("t")
        monkeypatch.setattr(admin, "DEADLINE_S", 0.2)
        cluster.brokers[0].is_frozen = True
        with pytest.raises(errors.DeadlineExceededError, match="it may have been done"):
            await client.admin().create_topic("u")
        monkeypatch.setattr(admin, "DEADLINE_S", 10.0)
        await client.admin().create_topic("u")
        assert set(cluster.topics) == {"t", "u"}


def test_of_many_addresses_some_are_named() -> None:
    found = silence.Silence().error(f"h{n}:1" for n in range(9))
    assert found.message == "no broker answers at h0:1, h1:1, h2:1, h3:1 and 5 others: no answer in time"


def test_a_program_without_logging_has_it_on_stderr() -> None:
    program = """
import asyncio
from seriatim import Client
from seriatim._admin import admin
from seriatim._consuming import streams
from seriatim._transport import silence

silence.NOTICE_S, admin.DEADLINE_S = 0, 0.3

async def main():
    async with Client.connect("127.0.0.1:1") as client:
        try:
            await client.admin().list_topics()
        except Exception as error:
            print(error)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("[600] no broker answers at 127.0.0.1:1: ")
    assert "no broker answers at 127.0.0.1:1: " in done.stderr
    assert "; still trying\n" in done.stderr
