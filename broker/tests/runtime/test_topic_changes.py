"""Calls that wait for news of a topic: what wakes them, and what does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.errors import UnknownTopicError
from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2
from seriatim_broker.interfaces.coordinator import Delete, Put
from seriatim_broker.rpc.calls.services import Services
from seriatim_broker.rpc.servicers.routing import RoutingServicer
from seriatim_broker.runtime.coordinator import topic_changes
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.topic_changes import Known, TopicChanges
from seriatim_broker.runtime.coordinator.topic_limits import TopicLimits
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

KEYS = Keys("c")
KNOWN = Known("i", 2)
LONG_S = 30.0


class World:
    """A coordinator with topics in it, and what follows them."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.is_connected = True
        self.limits = TopicLimits(1 << 20)
        self.news = TopicChanges(self.coordinator, KEYS, lambda: self.is_connected, self.limits)

    async def put(self, name: str, known: Known, state: Any = records_pb2.TOPIC_STATE_READY) -> None:
        record = records_pb2.TopicRecord(
            name=name, incarnation=known.incarnation, partition_ids=range(1, known.partition_count + 1), state=state
        )
        await self.coordinator.txn((), [Put(KEYS.topic(name), record.SerializeToString())])

    async def waits(self, name: str, known: Known = KNOWN) -> asyncio.Task[bool]:
        """A call that waits."""
        before = self.news.waiting_count
        task = asyncio.create_task(self.news.unchanged(name, known, LONG_S))
        await until(lambda: self.news.waiting_count > before)
        return task


async def nothing_lost() -> str:
    return ""


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event of its own
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def following() -> AsyncIterator[World]:
    world = World()
    await world.put("t", KNOWN)
    await world.put("u", KNOWN)
    task = asyncio.create_task(world.news.run())
    try:
        await until(lambda: world.news._is_followed)
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (Known("i", 3), records_pb2.TOPIC_STATE_READY),
        (Known("another", 2), records_pb2.TOPIC_STATE_READY),
        (KNOWN, records_pb2.TOPIC_STATE_DELETING),
        (None, None),
    ],
    ids=["grown", "made again", "being deleted", "deleted"],
)
async def test_calls_for_a_topic_are_woken_when_it_changes_and_no_others(known: Any, state: Any) -> None:
    async with following() as world:
        calls, other = [await world.waits("t") for _ in range(3)], await world.waits("u")
        if known is None:
            await world.coordinator.txn((), [Delete(KEYS.topic("t"))])
        else:
            await world.put("t", known, state)
        assert await asyncio.wait_for(asyncio.gather(*calls), 5) == [False] * 3
        assert not other.done()
        assert world.news.waiting_count == 1
        assert await world.news.unchanged("t", KNOWN, LONG_S) is False  # who asks later is notified at once
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert (world.news.waiting_count, world.news._waiting) == (0, {})


async def test_what_changes_nothing_for_clients_wakes_no_call() -> None:
    async with following() as world:
        call = await world.waits("t")
        record = records_pb2.TopicRecord(
            name="t", incarnation="i", partition_ids=[1, 2], state=records_pb2.TOPIC_STATE_READY,
            settings=records_pb2.TopicSettings(message_size_bytes_max=1000),
        )  # fmt: skip
        await world.coordinator.txn((), [Put(KEYS.topic("t"), record.SerializeToString())])
        other = await world.waits("u")
        await world.put("u", Known("i", 3))
        assert await other is False
        assert not call.done()
        call.cancel()
    assert await world.news.unchanged("t", KNOWN, 0.001) is False, "a broker that does not follow lets no call wait"


async def test_a_call_ends_when_its_time_is_over_and_all_end_when_the_broker_stops() -> None:
    async with following() as world:
        assert await world.news.unchanged("t", KNOWN, 0.001) is True
        call = await world.waits("t")
    assert await asyncio.wait_for(call, 60) is False


async def test_a_broker_that_is_cut_off_from_the_coordinator_does_not_say_that_nothing_has_changed() -> None:
    async with following() as world:
        store = world.coordinator.store
        call = asyncio.create_task(world.news.unchanged("t", KNOWN, 0.001))
        await until(lambda: world.news.waiting_count)
        store.is_away = True  # the watch gets no events any more, and says nothing
        world.is_connected = False
        store.txn((), [Delete(KEYS.topic("t"))], ())
        assert await asyncio.wait_for(call, 60) is False, "a call that waited"
        assert await world.news.unchanged("t", KNOWN, 0.001) is False, "a call that comes later"
        world.is_connected = True
        assert await world.news.unchanged("t", KNOWN, 0.001) is True, "a short silence of the coordinator counts little"


async def test_no_more_calls_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "WAITING_MAX", 2)
    async with following() as world:
        calls = [await world.waits("t") for _ in range(2)]
        assert await asyncio.wait_for(world.news.unchanged("t", KNOWN, LONG_S), 5) is False
        await world.put("t", Known("i", 3))
        await asyncio.gather(*calls)


async def test_calls_that_wake_together_share_one_answer_and_later_ones_do_not() -> None:
    async with following() as world:
        asked: list[str] = []

        async def topic(name: str) -> records_pb2.TopicRecord:
            asked.append("topic")
            return await Services.topic(services, name)

        async def chains(partitions: list[int]) -> list[int]:
            asked.append("chains")
            await asyncio.sleep(0)
            return partitions

        addresses: Any = SimpleNamespace(all=list, route_of=lambda id_: common_pb2.Route(partition_id=id_))
        services: Any = SimpleNamespace(
            coordinator=world.coordinator,
            keys=KEYS,
            topic=topic,
            chains=chains,
            is_stopping=False,
            identity=SimpleNamespace(cluster_id="id"),
        )
        routing = RoutingServicer(cast(Any, services), addresses, world.news)
        get = RoutingServicer.GetTopic.__wrapped__  # type: ignore[attr-defined]
        context = SimpleNamespace(time_remaining=lambda: 10.0, invocation_metadata=lambda: ())

        async def ask(known_count: int) -> broker_pb2.GetTopicResponse:
            request = broker_pb2.GetTopicRequest(
                topic="t", known_incarnation="i", known_partition_count=known_count, wait_ms=60_000
            )
            answer = await get(routing, request, context)
            assert isinstance(answer, broker_pb2.GetTopicResponse)
            return answer

        calls = [asyncio.create_task(ask(2)) for _ in range(50)]
        await until(lambda: world.news.waiting_count == 50)
        calls[0].cancel()
        await world.put("t", Known("i", 3))
        await until(lambda: "topic" in asked)
        await world.put("t", Known("i", 4))
        calls[1].cancel()
        answers = await asyncio.wait_for(asyncio.gather(*calls[2:]), 5)
        assert asked == ["topic", "chains"]
        assert {len(answer.routes) for answer in answers} <= {3, 4}
        assert len((await asyncio.wait_for(ask(3), 5)).routes) == 4
        assert asked == ["topic", "chains"] * 2
        assert not routing._shared


async def test_answers_of_get_topic_say_whether_the_broker_waited() -> None:
    async with following() as world:
        addresses: Any = SimpleNamespace(all=lambda: [broker_pb2.BrokerAddress(broker="b", address="b:1")])
        services: Any = SimpleNamespace(coordinator=world.coordinator, keys=KEYS, chains=None, is_stopping=False)
        services.topic, services.lost = lambda name: Services.topic(services, name), nothing_lost
        routing = RoutingServicer(cast(Any, services), addresses, world.news)
        left_s = 10.0

        async def ask(wait_ms: int) -> broker_pb2.GetTopicResponse:
            request = broker_pb2.GetTopicRequest(
                topic="t", known_incarnation="i", known_partition_count=2, wait_ms=wait_ms
            )
            get = RoutingServicer.GetTopic.__wrapped__  # type: ignore[attr-defined]
            answer = await get(
                routing, request, SimpleNamespace(time_remaining=lambda: left_s, invocation_metadata=lambda: ())
            )
            assert isinstance(answer, broker_pb2.GetTopicResponse)
            return answer

        assert await ask(1) == broker_pb2.GetTopicResponse(waited=True, brokers=addresses.all())
        assert await ask(0) == broker_pb2.GetTopicResponse()
        world.is_connected = False
        assert await ask(60_000) == broker_pb2.GetTopicResponse(), "the coordinator was asked"
        services.is_stopping, services.topic = True, None
        assert await ask(60_000) == broker_pb2.GetTopicResponse(), "a broker that stops does not ask the coordinator"
        services.is_stopping, services.topic = False, lambda name: Services.topic(services, name)
        world.is_connected = True
        left_s = 0.1  # too little time is left to wait
        assert await ask(60_000) == broker_pb2.GetTopicResponse()
        left_s = 10.0
        call = asyncio.create_task(ask(60_000))
        await until(lambda: world.news.waiting_count)
        await world.coordinator.txn((), [Delete(KEYS.topic("t"))])
        with pytest.raises(UnknownTopicError):
            await asyncio.wait_for(call, 60)


async def test_the_limits_of_topics_are_followed() -> None:
    async with following() as world:
        record = records_pb2.TopicRecord(name="small", partition_ids=[8], growing_partition_ids=[9])
        record.settings.message_size_bytes_max = 1000
        record.settings.delay_max_ms = 0
        record.settings.retention_bytes = 70
        await world.coordinator.txn((), [Put(KEYS.topic("small"), record.SerializeToString())])
        await until(lambda: world.limits.of(8) is not None)
        assert world.limits.of(8) == world.limits.of(9) == (1 << 20, 1000)
        assert world.limits.delays(8).limits.delay_max_ms == world.limits.delays(9).limits.delay_max_ms == 0
        assert world.limits.of(1) is None, "it has no limit below the broker's"
        assert world.limits.is_current()
        world.is_connected = False
        assert not world.limits.is_current()
        world.is_connected = True
        record.settings.message_size_bytes_max = 0
        await world.coordinator.txn((), [Put(KEYS.topic("small"), record.SerializeToString())])
        await until(lambda: world.limits.of(8) is None)
        assert [world.limits.delays(no).retention_bytes for no in (1, 8, 9)] == [0, 70, 70]
        record.settings.retention_bytes = 90
        await world.coordinator.txn((), [Put(KEYS.topic("small"), record.SerializeToString())])
        await until(lambda: world.limits.delays(8).retention_bytes == 90)
