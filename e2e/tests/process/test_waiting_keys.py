"""Administrators and a failing key, on processes: settings, parked keys, release and skip, with brokers that are
killed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from seriatim import Client, GroupKey, GroupSettings, Message, RetryPolicy
from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

PARKS = RetryPolicy(2, back_off="fixed", delays_ms=(50,), jitter_percent=0, exhausted="park_key")
BLOCKS = replace(PARKS, exhausted="block")


class Application:
    """A handler that fails on the key `bad` as long as it is told to, and notes what it finished."""

    def __init__(self) -> None:
        self.fails = True
        self.finished: list[tuple[bytes, bytes]] = []
        self._progress = asyncio.Condition()

    async def handle(self, message: Message) -> None:
        """Work on one message."""
        assert message.key is not None
        if message.key == b"bad" and self.fails:
            raise ValueError("no such aircraft")
        self.finished.append((message.key, bytes(message.value)))
        async with self._progress:
            self._progress.notify_all()

    async def until(self, count: int) -> None:
        """Wait until this many messages are finished."""
        async with asyncio.timeout(30), self._progress:
            await self._progress.wait_for(lambda: len(self.finished) >= count)


async def parked(client: Client, topic: str, count: int) -> list[GroupKey]:
    """The parked keys, when there are this many."""
    async with asyncio.timeout(30):
        while True:
            keys = [key async for key in client.admin().group_keys(topic, "g", states=["parked"])]
            if len(keys) == count:
                return keys
            await asyncio.sleep(0.05)


async def test_a_failing_key_is_parked_outlives_its_server_and_is_released(cluster: LocalCluster) -> None:
    app = Application()
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("waiting", 1)
        assert await admin.create_group("waiting", "g", settings=GroupSettings("key_ordered", PARKS))
        assert not await admin.create_group("waiting", "g", settings=GroupSettings("key_ordered", PARKS))
        with pytest.raises(PreconditionError, match="configure it"):
            await admin.create_group("waiting", "g", settings=GroupSettings("shared"))
        consumer = await client.consumer("waiting", "g", mode="key_ordered")
        running = asyncio.create_task(consumer.run(app.handle, 4))
        async with client.producer("waiting") as producer:
            for number in range(6):
                await producer.send(b"%d" % number, key=b"bad" if number % 2 else b"good")
        await app.until(3)
        (key,) = await parked(client, "waiting", 1)
        assert (key.key, key.attempts, key.messages, key.error) == (b"bad", 2, 3, "ValueError: no such aircraft")

        (row,) = (await admin.describe_group("waiting", "g")).partitions
        assert row.settings == GroupSettings("key_ordered", PARKS)
        assert (row.parked_keys, row.aside_messages, len(row.consumers)) == (1, 3, 1)
        assert row.oldest_append_ms > 0
        (refused,) = await admin.configure_group("waiting", "g", mode="shared", retry=BLOCKS)
        assert refused.error is not None
        assert "is in group g" in refused.error

        await cluster.kill(row.server_broker)
        await cluster.start_again(row.server_broker)
        assert (await parked(client, "waiting", 1))[0].first_offset == key.first_offset, "it outlives its server"

        (skipped,) = await admin.skip_keys("waiting", "g", await parked(client, "waiting", 1))
        assert skipped.error is None
        (again,) = await admin.skip_keys("waiting", "g", [key])
        assert again.was_done, "asked again, it passes over nothing more"
        (key,) = await parked(client, "waiting", 1)
        assert (key.messages, key.turn) == (2, 1)
        await consumer.close()
        await running

        app.fails = False
        (released,) = await admin.release_keys("waiting", "g", [key])
        assert released.error is None, "without consumers"
        (row,) = (await admin.describe_group("waiting", "g")).partitions
        assert (row.parked_keys, row.delayed_keys, row.aside_messages) == (0, 1, 2)
        consumer = await client.consumer("waiting", "g", mode="key_ordered")
        running = asyncio.create_task(consumer.run(app.handle, 4))
        await app.until(5)
        assert [value for name, value in app.finished if name == b"bad"] == [b"3", b"5"]
        assert [key async for key in admin.group_keys("waiting", "g")] == []
        await consumer.close()
        await running

        (refused,) = await admin.configure_group("waiting", "g", mode="shared")
        assert refused.error_number == BadRequestError.number, "the policy parks keys"
        (changed,) = await admin.configure_group("waiting", "g", mode="shared", retry=BLOCKS)
        assert changed.error is None
        grown = await admin.update_topic("waiting", 3)
        assert grown.partition_count == 3
        rows = (await admin.describe_group("waiting", "g")).partitions
        assert {row.settings for row in rows} == {GroupSettings("shared", BLOCKS)}
        assert all(row.has_cursor for row in rows)
