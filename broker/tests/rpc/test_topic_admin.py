"""The stream of topics as its servicer sends it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.rpc import topic_admin
from seriatim_broker.rpc.topic_admin import TopicAdmin
from seriatim_broker.runtime.topic_feed import TopicFeed, WatchedTopics


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


def _watching(mirror: WatchedTopics) -> Any:
    @asynccontextmanager
    async def watch(_feed: Any) -> Any:
        yield mirror.add_watcher()

    return watch
