"""A consumer that is asked to yield a partition: its application gets nothing more, and what it had is kept for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from seriatim import Consumer
from seriatim._transport.consume import ConsumeLink
from seriatim_api.ids import split_offset
from seriatim_api.v1 import broker_pb2

from ..fake_broker import ConsumeStream, FakeCluster, FakeGroup, connected, joined, until


class Asked:
    """A consumer that has 100 messages in batches of 10 in its inbox, and its server."""

    def __init__(self, cluster: FakeCluster, consumer: Consumer) -> None:
        self.cluster = cluster
        self.consumer = consumer

    @property
    def group(self) -> FakeGroup:
        return self.cluster.partition("t").groups["g"]

    @property
    def stream(self) -> ConsumeStream:
        return self.group.consumers[0][0]

    def ask(self, number: int, *, is_over: bool = False) -> None:
        event = broker_pb2.DeliveryEvent(subscription=self.group.consumers[0][1])
        event.yield_asked.number, event.yield_asked.is_over = number, is_over
        self.stream.tell(event)

    async def answer(self, number: int) -> int:
        await until(lambda: any(row.number == number for row in self.stream.yielded))
        (row,) = (row for row in self.stream.yielded if row.number == number)
        assert row.token == self.group.token
        return split_offset(row.offset)[1]

    async def read(self, count: int) -> list[int]:
        return [int(message.value) for message in await self.consumer.fetch(count, 0.02)]


@asynccontextmanager
async def asked(*, at_most_once: bool = False) -> AsyncIterator[Asked]:
    async with connected() as (cluster, client), client.producer("t") as producer:
        for begin in range(0, 100, 10):
            await (await producer.send_many([b"%d" % n for n in range(begin, begin + 10)]))
        async with client.consumer("t", "g") as consumer:
            found = Asked(cluster, consumer)
            await until(lambda: len(consumer._inbox.chunks) == 10)
            consumer._subscriptions[0].core.at_most_once = at_most_once
            yield found


async def test_application_gets_nothing_more_and_then_exactly_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []
    give_credit = ConsumeLink.give_credit

    def counted(link: ConsumeLink, size_bytes: int) -> None:
        given_back.append(size_bytes)
        give_credit(link, size_bytes)

    monkeypatch.setattr(ConsumeLink, "give_credit", counted)
    async with asked() as bench:
        assert await bench.read(3) == [0, 1, 2]
        bench.ask(1)
        assert await bench.answer(1) == 3
        assert bench.consumer.yielding == (0,)
        assert await bench.read(10) == []
        await bench.consumer.ack_all()
        await until(lambda: bench.group.acked == 3)
        bench.ask(1, is_over=True)
        await until(lambda: not bench.consumer.yielding)
        assert await bench.read(200) == list(range(3, 100))
        assert len(given_back) == 10, "once for each batch, also for the one that was opened twice"


async def test_standby_gives_the_rest_to_no_application() -> None:
    async with asked() as bench:
        await bench.read(13)
        bench.ask(1)
        assert await bench.answer(1) == 13
        stream, subscription, _ = bench.group.consumers[0]
        joined(bench.group, stream, subscription, active=False)
        await until(lambda: not bench.consumer.assigned)
        assert await bench.read(200) == []


async def test_consumer_without_a_message_yields_where_its_grant_began() -> None:
    async with asked() as bench:
        bench.ask(1)
        assert await bench.answer(1) == 0
        bench.ask(1, is_over=True)
        await until(lambda: not bench.consumer.yielding)
        bench.ask(2)
        assert await bench.answer(2) == 0
        bench.ask(2, is_over=True)
        await until(lambda: not bench.consumer.yielding)
        assert await bench.read(200) == list(range(100))
        bench.ask(3)
        assert await bench.answer(3) == 100


async def test_at_most_once_the_application_gets_all_before_the_answer() -> None:
    async with asked(at_most_once=True) as bench:
        await bench.read(5)
        bench.ask(1)
        await until(lambda: bool(bench.consumer.yielding))
        assert await bench.read(90) == list(range(5, 95))
        assert not bench.stream.yielded
        assert await bench.read(90) == list(range(95, 100))
        assert await bench.answer(1) == 100


async def test_tables_of_an_at_most_once_group_are_all_given_before_the_answer() -> None:
    async with asked(at_most_once=True) as bench:
        bench.ask(1)
        await until(lambda: bool(bench.consumer.yielding))
        for _ in range(10):
            assert await bench.consumer.fetch_table(0.02) is not None
        assert not bench.stream.yielded, "the program works on the last one"
        assert await bench.consumer.fetch_table(0.02) is None
        assert await bench.answer(1) == 100
