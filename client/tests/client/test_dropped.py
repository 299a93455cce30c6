"""Retention dropped what a group has not read: its consumer is notified before it gets what follows."""

from __future__ import annotations

import asyncio

import pytest
from seriatim import Client, Gap, history, sync
from seriatim.cli._rendering.notes import Note, Notes
from seriatim_api import errors
from seriatim_api.ids import make_offset

from ..fake_broker import FakeCluster, connected, running, until

pytestmark = pytest.mark.usefixtures("carriage")

GAP = Gap("t", 0, make_offset(1, 0), "dropped by retention", make_offset(1, 2), 2)


async def fill(cluster: FakeCluster, client: Client, start: int = 2) -> None:
    """Four messages, of which retention dropped the first two."""
    async with client.producer("t") as producer:
        for value in (b"0", b"1", b"2", b"3"):
            await (await producer.send(value))
    cluster.partition("t").open_segment.start = start


async def test_the_consumer_is_told_and_goes_on_behind_it() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        gaps: list[Gap] = []
        told = history.MemoryHistory("test")
        address = cluster.brokers[0].address
        async with Client.connect(address, recorder=told, message_id=bytes.decode) as client:
            await fill(cluster, client)
            async with client.consumer("t", "g", on_gap=gaps.append) as consumer:
                messages = await consumer.fetch(10, 5)
                await consumer.ack(messages[-1])
                await until(lambda: cluster.partition("t").groups["g"].acked == 4)
    assert [message.value for message in messages] == [b"2", b"3"]
    assert gaps == [GAP]
    told.end("g")
    report = history.check_events(told.events)
    assert report.ok, history.render(report)
    assert report.counts["in_gaps"] == 2
    silent = [event for event in told.events if event["k"] != "gap"]
    assert history.check_events(silent).counts["lost"] == 2, "the same, with nothing said"


async def test_a_consumer_without_on_gap_says_it_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (cluster, client):
        await fill(cluster, client)
        async with client.consumer("t", "g") as consumer:
            assert [message.value for message in await consumer.fetch(10, 5)] == [b"2", b"3"]
    assert any("dropped by retention" in record.getMessage() for record in caplog.records)


async def test_a_synchronous_consumer_is_told() -> None:
    def read(address: str) -> tuple[list[Gap], list[bytes]]:
        gaps: list[Gap] = []
        with sync.Client.connect(address) as client, client.consumer("t", "g", on_gap=gaps.append) as consumer:
            messages = consumer.fetch(10, 5)
        return gaps, [message.value for message in messages]

    async with connected() as (cluster, client):
        await fill(cluster, client)
        assert await asyncio.to_thread(read, cluster.brokers[0].address) == ([GAP], [b"2", b"3"])


async def test_a_broker_that_jumps_and_says_nothing_is_found_out() -> None:
    async with connected() as (cluster, client):
        await fill(cluster, client, start=0)
        del cluster.partition("t").open_segment.batches[:2]
        async with client.consumer("t", "g", on_gap=lambda gap: pytest.fail(str(gap))) as consumer:
            with pytest.raises(errors.OrderViolationError):
                await consumer.fetch(10, 5)


def test_the_command_notes_from_where_to_where_and_how_many() -> None:
    notes: list[Note] = []
    Notes(notes.append).gap(GAP)
    assert notes == [Note("gap", 0, make_offset(1, 0), make_offset(1, 2), "dropped by retention, 2 messages at most")]
