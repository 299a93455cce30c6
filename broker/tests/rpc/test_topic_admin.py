"""Topics as their servicer lists them, and sends them on a stream."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.calls.limits import MESSAGE_SIZE_BYTES_MAX
from seriatim_broker.rpc.calls.services import Services
from seriatim_broker.rpc.servicers import topic_admin
from seriatim_broker.rpc.servicers.admin import AdminServicer
from seriatim_broker.rpc.servicers.topic_admin import TopicAdmin
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.topic_feed import TopicFeed, WatchedTopics
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore


async def test_a_quiet_stream_says_that_it_is_there_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_admin, "WATCH_HEARTBEAT_S", 0.01)
    admin = TopicAdmin(cast(Any, None), cast(Any, None), cast(Any, None), TopicFeed(cast(Any, None), cast(Any, None)))
    mirror = WatchedTopics(cast(Any, None), cast(Any, None))
    monkeypatch.setattr(TopicFeed, "watch", _watching(mirror))
    stream = admin.WatchTopics(broker_pb2.WatchTopicsRequest(), None)
    assert await anext(stream) == broker_pb2.WatchTopicsResponse()
    topics = {"t": records_pb2.TopicRecord(name="t", partition_ids=[1])}
    for watcher in mirror.watchers:
        watcher.begin(topics, {})
    responses = [await anext(stream) for _ in range(3)]
    told = [response for response in responses if response.changed]
    assert [summary.topic.name for response in told for summary in response.changed] == ["t"]
    assert [response.is_whole for response in told] == [True]
    await stream.aclose()


async def test_a_broker_group_that_was_removed_is_not_named_as_the_next_one() -> None:
    keys, coordinator = Keys("c"), MemoryCoordinator(MemoryStore())
    topic = records_pb2.TopicRecord(name="t", state=records_pb2.TOPIC_STATE_READY, partition_ids=[1])
    segment = records_pb2.SegmentRecord(no=1, group="g0")
    record = records_pb2.ChainRecord(partition_id=1, send_chain=["g0", "g3", "g1"], segments=[segment])
    puts = [
        Put(keys.topic("t"), topic.SerializeToString()),
        Put(keys.chain(PartitionId(1)), record.SerializeToString()),
    ]
    await coordinator.txn((), puts)
    there: dict[str, tuple[MemberId, ...]] = {}
    services: Any = Services.__new__(Services)
    services.coordinator, services.keys = coordinator, keys
    services.directory = SimpleNamespace(broker_groups=lambda: there)
    admin: Any = AdminServicer.__new__(AdminServicer)
    admin._services = services
    ask = broker_pb2.DescribeChainRequest(topic="t", partition=0)

    async def told() -> list[list[str]]:
        described = await admin.DescribeTopic(broker_pb2.DescribeTopicRequest(name="t"), None)
        chain = await admin.DescribeChain(ask, None)
        watched = await anext(admin.WatchChain(ask, None))
        return [list(each.send_chain) for each in (described.chains[0], chain, watched)]

    assert await told() == [["g0", "g3", "g1"]] * 3, "this broker has not heard of any broker group yet"
    there.update({"g0": (), "g1": ()})
    assert await told() == [["g0", "g1"]] * 3


async def test_topics_are_listed_by_pages_that_fit_into_a_message() -> None:
    keys, coordinator = Keys("c"), MemoryCoordinator(MemoryStore())
    names = ["_schemas", *(f"t{number:04}" for number in range(1500)), "_stage"]
    full = records_pb2.TopicSettings(attributes={"a": "x" * 4095})
    for name in names:
        record = records_pb2.TopicRecord(name=name, settings=full)
        await coordinator.txn((), [Put(keys.topic(name), record.SerializeToString())])
    admin: Any = AdminServicer.__new__(AdminServicer)
    admin._services = SimpleNamespace(coordinator=coordinator, keys=keys)
    after, found, sizes = "", [], []
    while page := (await admin.ListTopics(broker_pb2.ListTopicsRequest(after=after), None)):
        if not page.topics:
            break
        found += [topic.name for topic in page.topics]
        sizes.append((len(page.topics), page.ByteSize() < MESSAGE_SIZE_BYTES_MAX // 4))
        after = found[-1]
    assert found == sorted(set(names) - {"_stage"})
    assert sizes == [(1000, True), (501, True)], "the hidden topic takes no place of a page"


def _watching(mirror: WatchedTopics) -> Any:
    @asynccontextmanager
    async def watch(_feed: Any) -> Any:
        yield mirror.add_watcher()

    return watch
