"""What the log says of a consumer that is served nothing: after which time, what it waits for, and where."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim import Message
from seriatim._consuming.subscription import Subscribed
from seriatim._consuming.unserved import UnservedWatch
from seriatim._core.consumer import ConsumerPhase, PartitionConsumer
from seriatim._core.consumer_types import Connected, ConsumerConfig, Place, Resolved, Timer
from seriatim._core.unserved import ServiceWatch, Waiting
from seriatim_api.errors import UnavailableError
from seriatim_api.v1 import broker_pb2

from ..fake_broker import connected, until
from .test_consumer import fill, read
from .test_keyed_consumer import add, consuming, handling


class Caller:
    """Answers that this many messages wait on each partition, or that no broker is there."""

    def __init__(self, lag: int | None) -> None:
        self.lag = lag
        self.asked: list[list[int]] = []

    def tls_error(self) -> None:
        return None

    async def admin(self, _method: str, request: Any, _timeout_s: float) -> Any:
        self.asked.append(list(request.partitions))
        if self.lag is None:
            raise UnavailableError("no broker answered")
        rows = [
            broker_pb2.GroupPartition(partition=number, has_cursor=True, end_position=self.lag)
            for number in request.partitions
        ]
        return broker_pb2.DescribeGroupResponse(partitions=rows)


class Partition:
    """A partition of a consumer as far as the watch looks at it."""

    def __init__(self, core: PartitionConsumer) -> None:
        self.core = core
        self.is_joined = False
        self.waits_since: Any = ""

    @property
    def waits_for(self) -> str:
        return self.core.waits_for


def joining() -> PartitionConsumer:
    core = PartitionConsumer(ConsumerConfig())
    core.step(Timer(), 0)
    core.step(Resolved(Place(1, "a:1", 5)), 0)
    return core


async def watched(caller: Caller, partitions: dict[int, Partition], *times: float) -> UnservedWatch:
    subscriptions = cast(dict[int, Subscribed], partitions)
    watch = UnservedWatch(cast(Any, caller), "t", "g", subscriptions, lambda error: None, print)
    watch.stop()  # the test says when it looks
    for time_s in times:
        await watch.look(lambda now=time_s: now)  # type: ignore[misc]
    return watch


async def test_the_log_says_what_the_consumer_waits_for_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    partition = Partition(joining())
    watch = await watched(Caller(800), {3: partition}, 0, 5, 10)
    assert watch.unserved == (3,)
    (line,) = caplog.messages
    assert line == (
        "group g was served nothing of t/3 for 10 s, and 800 messages wait there: this consumer waits for a stream to "
        "its server at a:1"
    )
    partition.waits_since = None
    await watch.look(lambda: 15)
    assert caplog.messages[1:] == ["group g has no unserved messages of t/3 any more, after 15 s"]
    assert watch.unserved == ()


async def test_the_join_and_the_question_are_named_with_their_tries(caplog: pytest.LogCaptureFixture) -> None:
    core = joining()
    core.step(Connected("a:1", 3), 0)
    partition = Partition(core)
    watch = await watched(Caller(None), {3: partition}, 0, 10)
    assert "an unknown number of messages waits" in caplog.messages[0]
    assert caplog.messages[0].endswith("this consumer waits for the answer of its server at a:1 to its join")
    core.step(Timer(), 60_000_000)
    assert core.phase is ConsumerPhase.RESOLVING
    await watch.look(lambda: 20)
    assert caplog.messages[1].endswith(
        "brokers to name its server, other than the one at a:1, of which it complained (try 2)"
    )


async def test_many_partitions_are_told_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    partitions = {number: Partition(joining()) for number in range(50)}
    caller = Caller(8)
    await watched(caller, partitions, 0, 10)
    assert len(caller.asked) == 1
    assert len(caplog.messages) == 4
    assert "47 more partitions" in caplog.messages[3]


async def test_nothing_is_said_of_a_partition_without_messages(caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller(0)
    await watched(caller, {3: Partition(joining())}, *range(0, 100, 5))
    assert len(caller.asked) == 4, "after 10, 20, 40 and 80 s"
    assert caplog.messages == []


async def test_a_consumer_waits_only_without_work() -> None:
    async with connected() as (_, client), client.producer("t") as producer:
        await fill(producer, 0, 20)
        async with client.consumer("t", "g") as consumer:
            subscription = consumer._subscriptions[0]
            assert subscription.waits_since == (0, 0)
            messages = await read(consumer, 20, ack=False)
            assert subscription.waits_since is None, "the application has messages"
            await consumer.ack(messages[-1])
            mark = subscription.waits_since
            assert mark is not None
            async with client.consumer("t", "g") as second:
                await until(lambda: second.joined == (0,))
                assert second._subscriptions[0].waits_since is None, "it stands by"
                await fill(producer, 20, 30)
                await consumer.ack((await read(consumer, 10))[-1])
                assert subscription.waits_since not in (None, mark)
                subscription.core.paused = True
                assert subscription.waits_since is None
                subscription.core.paused = False


async def test_a_keyed_consumer_waits_only_if_it_asked() -> None:
    from seriatim._consuming.keyed_subscription import KeyedSubscription
    from seriatim._core.keyed_consumer import KeyedPartitionConsumer

    core = KeyedPartitionConsumer(ConsumerConfig(), on_demand=True)
    core.phase = ConsumerPhase.ACTIVE
    subscription = cast(KeyedSubscription, SimpleNamespace(core=core))
    has_work = KeyedSubscription._has_work.fget
    assert has_work is not None
    assert has_work(subscription), "the application asked for nothing"
    core._demand = 5
    assert not has_work(subscription)
    core.grants = {7: 1}
    assert has_work(subscription)


async def test_a_keyed_consumer_that_is_granted_messages_is_served() -> None:
    async def handle(_message: Message) -> None:
        """Has nothing to do."""

    async with consuming("a") as (group, consumer), handling(consumer, handle, 2):
        await until(lambda: not group.values_left)
        (subscription,) = consumer._subscriptions.values()
        await until(lambda: subscription.waits_since is not None)
        mark = subscription.waits_since
        add(group, group.cluster, "b")
        await until(lambda: not group.values_left)
        await until(lambda: subscription.waits_since is not None)
        assert subscription.waits_since != mark


async def test_service_between_looks_at_a_consumer_without_a_stream() -> None:
    # In a minute of broken connections each look may find the consumer on its way to its server.
    async with (
        connected() as (cluster, client),
        client.producer("t") as producer,
        client.consumer("t", "g") as consumer,
    ):
        (broker,) = cluster.brokers
        subscription, watch, asked = consumer._subscriptions[0], ServiceWatch(), []
        for look in range(4):
            await fill(producer, look, look + 1)
            await consumer.ack((await read(consumer, 1))[-1])
            await broker.stop()
            await until(lambda: not subscription.is_joined)
            asked += watch.look(5.0 * look, [Waiting(0, subscription.waits_since, False)])
            await broker.restart()
        assert asked == []
        assert watch.look(25.0, [Waiting(0, subscription.waits_since, False)]) == [0], "10 s without a message"


async def test_a_watch_ends_with_its_consumer() -> None:
    async with connected() as (_, client):
        consumer = await client.consumer("t", "g")
        assert consumer.unserved == ()
        await consumer.close()
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "unserved partitions of t" not in names
