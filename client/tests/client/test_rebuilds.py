"""Consumers and producers while the coordinator lacks decisions, until an administrator has rebuilt it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import grpc
import pytest
from seriatim import Client, Consumer, Producer, _client
from seriatim._admin import admin
from seriatim._consuming.servers import Servers
from seriatim._core.consumer_types import Place
from seriatim._transport import unary
from seriatim._values.topics import is_same, topic_of
from seriatim_api.errors import CoordinatorBehindError, SeriatimError, UnknownTopicError
from seriatim_api.v1 import broker_pb2, records_pb2

from ..fake_broker import abort, connected, running, until
from .test_consumer import fill, read

FOR_EVER = 1 << 30
BEHIND = CoordinatorBehindError("the coordinator has lost decisions")


class Caller:
    """Answers with errors, and then with a server."""

    def __init__(self, *errors: SeriatimError) -> None:
        self._errors = list(errors)

    async def routing(self, *_arguments: object, **_options: object) -> broker_pb2.ResolveConsumerResponse:
        if self._errors:
            raise self._errors.pop(0)
        return broker_pb2.ResolveConsumerResponse(segment=2, server_address="a:1", server_epoch=5)

    def learn(self, _addresses: object) -> None:
        """It asks no broker."""


async def test_a_question_is_asked_again_and_its_reason_kept_meanwhile() -> None:
    ends: list[SeriatimError] = []
    servers = Servers(cast(Any, Caller(BEHIND, UnknownTopicError("deleted"))), "g", ends.append, print)
    assert await servers.ask(7, "earliest", None, None) is None
    assert (ends, servers.why_untold(7), servers.why_untold(8)) == ([], BEHIND.message, "")
    assert await servers.ask(7, "earliest", None, None) is None
    assert [type(error) for error in ends] == [UnknownTopicError]
    assert await servers.ask(7, "earliest", None, None) == Place(2, "a:1", 5)
    assert servers.why_untold(7) == ""


async def test_a_running_consumer_goes_on_after_the_rebuild() -> None:
    async with running(2) as cluster:
        cluster.create_topic("t")
        server, other = cluster.brokers
        async with (
            Client.connect(other.address) as client,
            client.producer("t") as producer,
            client.consumer("t", "g") as consumer,
        ):
            await fill(producer, 0, 1)
            await consumer.ack((await read(consumer, 1))[-1])
            cluster.behind_count = FOR_EVER
            await server.stop()
            subscription = consumer._subscriptions[0]
            await until(lambda: BEHIND.message in subscription.waits_for)
            assert subscription.waits_for.startswith("brokers to name its server")
            await server.restart()
            cluster.behind_count = 0
            await fill(producer, 1, 2)
            assert len(await read(consumer, 1)) == 1


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_a_beginning_waits_for_the_rebuild(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(unary, "REBUILD_PAUSE_S", 0.001)
    async with connected() as (cluster, client):

        def begin() -> Any:
            return client.producer("t") if kind == "producer" else client.consumer("t", "g")

        cluster.behind_count = 3
        async with begin():
            assert cluster.behind_count == 0
        told = [line for line in caplog.messages if BEHIND.message in line]
        assert len(told) == 1
        cluster.behind_count = FOR_EVER
        monkeypatch.setattr(_client, "TOPIC_DEADLINE_S", 0.5)
        with pytest.raises(CoordinatorBehindError, match="lost decisions"):
            await begin()


@pytest.mark.parametrize("kind", ["range", "group", "progress"])
async def test_a_range_and_a_group_that_begin_wait_for_the_rebuild(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(unary, "REBUILD_PAUSE_S", 0.001)
    async with Asked() as asked, Client.connect(asked.address) as client:

        async def begin() -> Any:
            if kind == "range":
                return await client.offsets("t", timeout_s=2)
            if kind == "group":
                return await client.admin().create_group("t", "g")
            return await client.report_progress("t", "g", {0: 1 << 40}, timeout_s=2)

        asked.behind_count = 3
        await begin()
        assert asked.behind_count == 0
        assert len([line for line in caplog.messages if BEHIND.message in line]) == 1
        asked.behind_count = FOR_EVER
        monkeypatch.setattr(unary, "REBUILD_PAUSE_S", 60.0)  # so no question is under way at the deadline
        monkeypatch.setattr(admin, "DEADLINE_S", 1.0)
        with pytest.raises(CoordinatorBehindError, match="lost decisions"):
            await (begin() if kind == "group" else client.offsets("t", timeout_s=1.0))
        with pytest.raises(CoordinatorBehindError):
            await asyncio.wait_for(
                client.admin().create_topic("u"), 60
            )  # what an administrator does is refused at once
        assert asked.refused["CreateTopic"] == 1


class Asked:
    """A broker that answers every call, or that the coordinator has lost decisions."""

    def __init__(self) -> None:
        self.behind_count = 0
        self.refused: Counter[str] = Counter()

    async def __aenter__(self) -> Asked:
        self._server = grpc.aio.server()
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.add_generic_rpc_handlers((_Handler(self),))
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def answer(self, method: str, context: Any) -> bytes:
        """Nothing was asked for that would be in the answer."""
        if self.behind_count:
            self.behind_count -= 1
            self.refused[method] += 1
            await abort(context, BEHIND)
        return b""


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]

        async def answer(_request: bytes, context: Any) -> bytes:
            return await self._asked.answer(method, context)

        return grpc.unary_unary_rpc_method_handler(answer)


async def test_clients_go_on_in_a_topic_that_was_rebuilt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule `rebuilt-is-the-same`."""
    monkeypatch.setattr("seriatim._topic_changes.LOOK_S", 0.0)
    async with running() as cluster:
        topic = cluster.create_topic("t", 2)
        async with (
            Client.connect(cluster.brokers[0].address) as client,
            client.producer("t") as producer,
            client.consumer("t", "g") as consumer,
        ):
            await until(lambda: cluster.waiting == 1)
            topic.incarnation = "rebuilt"
            cluster.tell()
            await until(lambda: len([line for line in caplog.messages if "there again after a rebuild" in line]) == 2)
            await until(lambda: cluster.waiting == 1)
            cluster.deleted.add(topic.partition_ids[0])  # its master knows no such partition for a moment
            delivery = await producer.send(b"a", partition=0)
            await until(lambda: producer._partitions[0].core.producer_run > 1)
            cluster.deleted.clear()
            await asyncio.wait_for(delivery, 60)
            (message,) = await consumer.fetch(1, 10)
            assert message.value == b"a"
            cluster.grow_topic("t", 3)
            await until(lambda: producer.partition_count == 3)


@pytest.mark.parametrize(
    "kind", ["producer", "consumer", "consumer of one partition", "keyed", "keyed of one partition"]
)
async def test_clients_of_a_cluster_that_was_replaced_end(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The new cluster counts partitions from the same number, and has a topic of the same name."""
    monkeypatch.setattr("seriatim._topic_changes.LOOK_S", 0.0)
    async with running() as cluster:
        topic = cluster.create_topic("t", 2)
        async with Client.connect(cluster.brokers[0].address) as client:
            begin: Any
            if kind == "producer":
                begin = client.producer("t")
            else:
                mode: Any = "key_ordered" if kind.startswith("keyed") else "exclusive"
                begin = client.consumer("t", "g", mode=mode, partitions=[1] if "partition" in kind else None)
            async with begin as running_client:
                await until(lambda: cluster.waiting == 1)
                cluster.id, topic.incarnation = "another", "another"
                cluster.tell()
                with pytest.raises(UnknownTopicError, match="made again"):
                    await asyncio.wait_for(_goes_on(running_client), 60)


async def _goes_on(running_client: Any) -> None:
    if isinstance(running_client, Producer):
        await until(lambda: running_client._backlog.is_closed)
        await running_client.send(b"a")
    elif isinstance(running_client, Consumer):
        await running_client.fetch(1, 10)
    else:
        await running_client.receive(1)


@pytest.mark.parametrize(
    ("before", "after", "is_the_same"), [("a", "b", False), ("a", "a", True), ("", "b", True), ("a", "", True)]
)
def test_topic_of_another_cluster_is_another_one(before: str, after: str, is_the_same: bool) -> None:
    record = records_pb2.TopicRecord(name="t", incarnation="i", partition_ids=(1, 2))
    assert is_same(topic_of(record, before), topic_of(record, after)) is is_the_same


@pytest.mark.parametrize(
    ("found", "is_the_same"), [((1, 2), True), ((1, 2, 9), True), ((1,), True), ((3, 4), False), ((1, 4), False)]
)
def test_topic_is_known_by_its_partition_ids(found: tuple[int, ...], is_the_same: bool) -> None:
    known, other = (
        topic_of(records_pb2.TopicRecord(name="t", incarnation=incarnation, partition_ids=ids))
        for incarnation, ids in (("a", (1, 2)), ("b", found))
    )
    assert is_same(known, other) is is_the_same
