"""Delayed messages on real brokers: listed, counted, cancelled, and fired when they are due."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from seriatim import CancelOutcome, Client, TopicSettings
from seriatim_api.errors import PartitionOutOfRangeError, UnknownTopicError

from tools.ports import free_ports

from .test_standalone import HOST, gauge, standalone

LATE_MS = 3_600_000
SOON_MS = 300

SOON_COUNTED = "import seriatim_broker.runtime.duties.delayed_counts as d; d.LOOK_S = d.WRITTEN_S = 0.1"


async def test_delayed_messages_are_listed_cancelled_and_fired(tmp_path: Path) -> None:
    async with standalone(tmp_path, 0) as port, Client.connect(f"{HOST}:{port}") as client:
        admin = client.admin()
        await admin.create_topic("t", 2)
        async with client.producer("t") as producer:
            late = [await (await producer.send(b"late", partition=0, delay_ms=LATE_MS)) for _ in range(3)]
            soon = await (await producer.send(b"soon", partition=1, delay_ms=SOON_MS))
        first, second, third = (receipt.offset for receipt in late)
        assert await client.cancel("t", 0, second) is CancelOutcome.CANCELLED
        assert await client.cancel("t", 0, second) is CancelOutcome.CANCELLED
        assert await client.cancel("t", 0, third + 1) is CancelOutcome.NOT_FOUND
        rows = [row async for row in admin.delayed("t", 0)]
        assert [(row.offset, row.due_ms) for row in rows] == [(first, late[0].due_ms), (third, late[2].due_ms)]
        async with client.consumer("t", "g", start="earliest") as consumer:
            async with asyncio.timeout(60):
                message = await anext(aiter(consumer))
        assert (message.value, message.partition) == (b"soon", 1)
        assert await client.cancel("t", 1, soon.offset) is CancelOutcome.TOO_LATE
        stats = await admin.delayed_stats("t")
        assert [(row.message_count, row.cancelled_count, row.oldest_due_ms) for row in stats] == [
            (2, 1, late[0].due_ms), (0, 0, None),
        ]  # fmt: skip
        with pytest.raises(UnknownTopicError):
            await client.cancel("nowhere", 0, first)
        with pytest.raises(PartitionOutOfRangeError):
            await client.cancel("t", 2, first)


async def test_what_waits_is_limited_and_shown(tmp_path: Path) -> None:
    async with standalone(tmp_path, port := free_ports(4)[0], SOON_COUNTED), Client.connect(f"{HOST}:{port}") as client:
        await client.admin().create_topic("t", 1, TopicSettings(delayed_pending_max=3))

        async def until(name: str, value: float) -> None:
            async with asyncio.timeout(60):
                while await asyncio.to_thread(gauge, port + 3, name) < value:  # noqa: ASYNC110 - metrics have no event
                    await asyncio.sleep(0.05)

        async with client.producer("t") as producer:
            await (await producer.send(b"soon", delay_ms=1))
            await until("delayed_late_seconds_count", 1)
            receipts = [await (await producer.send(b"late", delay_ms=LATE_MS)) for _ in range(3)]
            await until("topic_delayed_pending", 3)
            fourth = await producer.send(b"late", delay_ms=LATE_MS)
            await until("refused_total", 1)
            assert await client.cancel("t", 0, receipts[1].offset) is CancelOutcome.CANCELLED
            assert (await fourth).due_ms is not None
        await until("topic_delayed_pending", 3)
        assert gauge(port + 3, "delayed_cancelled_total") == 1
