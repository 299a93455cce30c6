"""Heartbeats of consume streams: an idle consumer asks no broker, a silent server is left, old deliveries dropped."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from seriatim import Client, _topic_changes
from seriatim._consuming import streams
from seriatim._consuming.servers import Servers
from seriatim._core.consumer_types import Place
from seriatim._transport.consume import ConsumeLink
from seriatim._values.settings import ConsumerSettings
from seriatim_api import errors
from seriatim_api.network.round_trips import RoundTrips
from seriatim_api.v1 import broker_pb2

from ..fake_broker import FakeBroker, connected, running, until

pytestmark = pytest.mark.usefixtures("carriage")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.01)
    monkeypatch.setattr(streams, "SILENCE_S", 0.2)
    monkeypatch.setattr(streams, "ALIVE_US", 0)


class FakeLink:
    """A stream that no subscription uses."""

    def __init__(self, address: str) -> None:
        self.address, self.heard_at, self.answers_pings, self.is_given_up = address, 0.0, True, False

    def give_up(self) -> None:
        self.is_given_up = True

    async def close(self) -> None:
        """It has nothing to close."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The questions of consumers to brokers; each of them may cost a read at the coordinator."""
    found: list[int] = []
    real = Servers.ask

    async def ask(self: Servers, partition_id: int, *rest: object) -> object:
        found.append(partition_id)
        return await real(self, partition_id, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Servers, "ask", ask)
    return found


def pings(broker: FakeBroker) -> int:
    return sum(stream.pings for stream in broker.consume_streams)


async def test_an_idle_consumer_asks_no_broker(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE_S", 1.0)  # longer than a busy machine keeps a program from its turn
    async with connected() as (cluster, client), client.consumer("t", "g") as consumer:
        broker = cluster.brokers[0]
        await until(lambda: len(consumer.joined) == 1)
        before = len(asked)
        await until(lambda: pings(broker) >= 150)  # one and a half times the silence
        assert len(asked) == before


async def test_the_first_heartbeat_follows_the_first_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker takes a consumer that has sent none for one that never does, and waits for it without an end."""
    monkeypatch.setattr(streams, "PING_S", 3600.0)
    async with connected(2) as (cluster, client), client.consumer("t", "g") as consumer:
        broker = cluster.brokers[0]
        await until(lambda: len(consumer.joined) == 2 and pings(broker) > 0)
        assert pings(broker) == 1, "one for the stream"


async def test_a_server_that_is_not_sure_of_its_right_is_asked_about(asked: list[int]) -> None:
    async with connected(2) as (cluster, client), client.consumer("t", "g") as consumer:
        broker = cluster.brokers[0]
        await until(lambda: len(consumer.joined) == 2)
        before = len(asked)
        broker.unserved = [77, consumer._subscriptions[1].core.subscription]
        await until(lambda: len(asked) > before)
        assert set(asked[before:]) == {consumer._subscriptions[1].partition_id}
        assert len(consumer.joined) == 2, "it serves all the same"


async def test_a_group_that_moved_on_costs_no_stream_while_news_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule `crossing-is-told`."""

    async def ask(self: Servers, partition_id: int, start: str, failed: int | None, avoid: str | None) -> Place:
        return place

    async with running(2) as cluster:
        cluster.create_topic("t")
        broker, other = cluster.brokers
        async with Client.connect(broker.address) as client, client.consumer("t", "g") as consumer:
            await until(lambda: len(consumer.joined) == 1)
            subscription = consumer._subscriptions[0]
            served = subscription.core.place
            assert served is not None
            link = consumer._streams._links[served.address]
            elsewhere = other if served.address == broker.address else broker
            place = Place(served.segment + 1, elsewhere.address, served.server_epoch)
            monkeypatch.setattr(Servers, "ask", ask)
            left = FakeLink("a:1")
            await consumer._streams._check(cast(ConsumeLink, left), subscription)
            assert not left.is_given_up, "the subscription has left that stream meanwhile"
            link.heard_at += 3600  # not silent
            await consumer._streams._check(link, subscription)
            assert consumer._streams._links.get(served.address) is link
            place = Place(served.segment, served.address, served.server_epoch)
            await consumer._streams._check(link, subscription)
            assert consumer._streams._links.get(served.address) is link, "the broker it asked knew less"
            place = Place(served.segment + 1, elsewhere.address, served.server_epoch)
            await consumer._streams._check(link, subscription)
            assert consumer._streams._links.get(served.address) is not link, "it did not report"
            place = served


async def test_two_partitions_of_an_outdated_server_are_both_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule `crossing-is-told`, if the client looks at one of them and at the other in turns."""

    async def ask(self: Servers, partition_id: int, start: str, failed: int | None, avoid: str | None) -> Place:
        served = next(one.core.place for one in both if one.partition_id == partition_id)
        assert served is not None
        return Place(served.segment + 1, "127.0.0.1:1", served.server_epoch)

    async with connected(2) as (_, client), client.consumer("t", "g") as consumer:
        await until(lambda: len(consumer.joined) == 2)
        both = list(consumer._subscriptions.values())
        first = both[0].core.place
        assert first is not None
        with monkeypatch.context() as patched:
            patched.setattr(Servers, "ask", ask)
            link = consumer._streams._links[first.address]
            link.heard_at += 3600  # not silent
            for one in both:
                await consumer._streams._check(link, one)
            assert consumer._streams._links.get(first.address) is link
            await consumer._streams._check(link, both[0])
            assert consumer._streams._links.get(first.address) is not link, "it did not report"


async def test_a_stream_whose_heartbeats_stay_unanswered_is_given_up(asked: list[int]) -> None:
    async with (
        connected() as (cluster, client),
        client.producer("t") as producer,
        client.consumer("t", "g", session_ms=2000) as consumer,
    ):
        broker = cluster.brokers[0]
        await until(lambda: len(consumer.joined) == 1)
        first = broker.consume_streams[0]
        first.tell = lambda *_: None  # type: ignore[method-assign]
        await until(lambda: first not in broker.consume_streams)
        await (await producer.send(b"a"))
        assert [message.value for message in await consumer.fetch(1, 10)] == [b"a"]


async def test_batches_of_a_lapsed_grant_do_not_reach_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a pause of the whole process: the messages lie in its memory, and others have continued with them."""
    async with connected() as (_, client), client.producer("t") as producer, client.consumer("t", "g") as consumer:
        await (await producer.send_many([b"a", b"b", b"c"]))
        (first,) = await consumer.fetch(1, 10)
        assert (first.value, first.attempt) == (b"a", 1)
        await consumer.ack(first)
        core = consumer._subscriptions[0].core
        core._alive_us = time.monotonic_ns() // 1000 - 6_000_000
        assert core.has_lapsed(time.monotonic_ns() // 1000)
        again = await consumer.fetch(2, 10)
        assert [(message.value, message.attempt) for message in again] == [(b"b", 2), (b"c", 2)]


async def test_heartbeats_go_before_requests_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that fails on thousands of messages a second always has requests that wait to be written."""
    real = ConsumeLink.ping

    def ping(link: ConsumeLink, session_ms: int) -> None:
        for _ in range(10):
            link.write(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=1)))
            real(link, session_ms)  # but the first one, all of this turn say the same

    monkeypatch.setattr(ConsumeLink, "ping", ping)
    async with connected() as (cluster, client), client.consumer("t", "g") as consumer:
        broker = cluster.brokers[0]
        await until(lambda: len(consumer.joined) == 1)
        (stream,) = broker.consume_streams
        before, pings_before = stream.credit, pings(broker)
        await until(lambda: pings(broker) - pings_before >= 3)
        await until(lambda: stream.credit - before >= 10)
        # A heartbeat may have overtaken what was written with the one before it, too.
        assert 10 * (pings(broker) - pings_before) <= stream.credit - before + 20


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_consumer_of_a_deleted_topic_ends_and_asks_no_more(asked: list[int], is_told: bool) -> None:
    """Reported by its server, or by the answer to its question after the server was lost."""
    async with running(2) as cluster:
        cluster.create_topic("t", 2)
        bootstrap = [broker.address for broker in cluster.brokers]
        async with Client.connect(bootstrap) as client, client.consumer("t", "g", partitions=[0, 1]) as consumer:
            await until(lambda: len(consumer.joined) == 2)
            if not is_told:
                for partition in cluster.partitions.values():
                    partition.groups["g"].consumers = []
            cluster.delete_topic("t")
            if not is_told:
                await cluster.brokers[0].stop()
            with pytest.raises(errors.UnknownTopicError, match="topic 't' was deleted: what was not read is gone"):
                await consumer.fetch(1, 10)
            before = len(asked)
            alive = cluster.brokers[1]
            heartbeats = pings(alive)
            await until(lambda: pings(alive) >= heartbeats + 60)  # three times the longest pause between questions
            assert len(asked) == before
            with pytest.raises(errors.UnknownTopicError):
                await consumer.fetch(1, 0)


async def test_a_consumer_does_not_continue_in_a_recreated_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_topic_changes, "LOOK_S", 0.01)
    async with connected() as (cluster, client), client.producer("t") as producer:
        await (await producer.send(b"old"))
        async with client.consumer("t", "g") as consumer:
            assert len(await consumer.fetch(1, 10)) == 1
            for partition in cluster.partitions.values():
                partition.groups["g"].consumers = []  # the server says nothing of it
            cluster.delete_topic("t")
            cluster.create_topic("t", 2).incarnation = "another"
            with pytest.raises(errors.UnknownTopicError, match="made again; this consumer belongs to the deleted"):
                await consumer.fetch(1, 10)
        async with client.consumer("t", "g") as consumer, client.producer("t") as again:
            await (await again.send(b"new"))
            assert [message.value for message in await consumer.fetch(1, 10)] == [b"new"]


def test_a_session_has_a_shortest_time() -> None:
    from seriatim._values.settings import ConsumerSettings

    with pytest.raises(errors.BadRequestError, match="session_ms is at least 2000"):
        ConsumerSettings(session_ms=10)


@pytest.mark.parametrize(("round_trip_s", "opened"), [(0.2, ["b", "a"]), (0.005, []), (None, [])])
async def test_streams_to_far_brokers_are_opened_during_the_question(
    monkeypatch: pytest.MonkeyPatch, round_trip_s: float | None, opened: list[str]
) -> None:
    found: list[str] = []

    class Opened(FakeLink):
        is_up = False

        def __init__(self, _carriages: object, _listener: object, address: str, *_rest: object) -> None:
            super().__init__(address)
            found.append(address)

        async def drain(self) -> None: ...

        def stop(self) -> None: ...

    class Carriages:
        class channels:  # noqa: N801 - an attribute
            round_trips = RoundTrips()

    if round_trip_s is not None:
        Carriages.channels.round_trips.took("another one", round_trip_s)
    monkeypatch.setattr(streams, "ConsumeLink", Opened)
    credit = ConsumerSettings().credit
    made = streams.Streams(cast(Any, Carriages), cast(Any, None), "me", credit, 5_000, pytest.fail)
    made.expect(["b", "a", "b"])
    assert found == opened
    assert made.open("a") is None
    assert found.count("a") == 1, "the partitions that a broker serves share its stream"
    await made.close()


async def test_a_consumer_expects_its_servers_where_masters_are(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[list[str]] = []
    monkeypatch.setattr(streams.Streams, "expect", lambda _self, addresses: expected.append(list(addresses)))
    async with connected(2) as (cluster, client):
        async with client.consumer("t", "g") as consumer:
            await until(lambda: len(consumer.joined) == 2)
        async with client.consumer("t", "k", mode="key_ordered", partitions=[1]):
            pass
    address = cluster.brokers[0].address
    assert expected == [[address] * 2, [address]]
