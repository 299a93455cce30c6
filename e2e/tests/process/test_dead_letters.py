"""Dead letters on processes: their replay, and their topic that is gone. (The demo of orders kills masters.)"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from seriatim import Client, GroupSettings, Message, RetryPolicy
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

POISON_EVERY = 50
DEADLINE_S = 90.0


class Application:
    """A handler that fails on every message whose number is divisible by `POISON_EVERY`, until it is mended."""

    def __init__(self) -> None:
        self.finished: dict[bytes, list[int]] = defaultdict(list)
        self.is_mended = False
        self._values: set[int] = set()
        self._progress = asyncio.Condition()

    async def handle(self, message: Message) -> None:
        """Work on one message."""
        assert message.key is not None
        value = int(message.value)
        if value % POISON_EVERY == 0 and not self.is_mended:
            raise ValueError("poison")
        self.finished[message.key].append(value)
        self._values.add(value)
        async with self._progress:
            self._progress.notify_all()

    async def until(self, count: int) -> None:
        """Wait until this many different messages are finished."""
        async with asyncio.timeout(DEADLINE_S), self._progress:
            await self._progress.wait_for(lambda: len(self._values) >= count)


async def test_replay_puts_messages_at_the_tail_of_their_key_once_and_for_their_group_only(
    cluster: LocalCluster,
) -> None:
    app, other = Application(), Application()
    other.is_mended = True
    topic, dead = "replayed", "replayed.billing.dead"
    policy = RetryPolicy(attempts_max=1, back_off="fixed", delays_ms=(50,), exhausted="dead_letter")
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic(topic, 1)
        await admin.create_group(topic, "billing", settings=GroupSettings(mode="key_ordered", retry=policy))
        await admin.create_group(topic, "audit", settings=GroupSettings(mode="key_ordered"))
        async with client.producer(topic) as producer:
            for number in range(200):
                await producer.send(b"%d" % number, key=b"k%d" % (number % 2), headers={"n": b"%d" % number})
        consumer = await client.consumer(topic, "billing", mode="key_ordered")
        auditor = await client.consumer(topic, "audit", mode="key_ordered")
        exclusive = await client.consumer(topic, "reports")
        running = [asyncio.create_task(consumer.run(app.handle, 4)), asyncio.create_task(auditor.run(other.handle, 4))]
        poison = [0, 50, 100, 150]
        await app.until(200 - len(poison))
        async with asyncio.timeout(DEADLINE_S):
            while len(letters := [letter async for letter in admin.dead_letters(dead)]) < len(poison):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert [int(letter.value) for letter in letters] == poison
        assert [letter.headers for letter in letters] == [{"n": b"%d" % number} for number in poison]
        assert all(letter.attempts == 1 and letter.group == "billing" for letter in letters)
        app.is_mended = True
        await admin.drop_dead_letters(dead, letters[3:])
        replayed = await admin.replay_dead_letters(dead, letters[2:3])
        assert [copy.offset for copy in replayed] == [letter.offset for letter in letters[:3]], "earlier ones too"
        assert await admin.replay_dead_letters(dead, letters[:3]) == []
        assert [letter async for letter in admin.dead_letters(dead)] == []
        await app.until(199)
        assert app.finished[b"k0"][-3:] == poison[:3], "at the tail of their key, in their order"
        async with client.producer(topic) as producer:
            await producer.send(b"1000", key=b"k1")
        seen = []
        async for message in exclusive:
            seen.append(int(message.value))
            await exclusive.ack(message)
            if seen[-1] == 1000:
                break
        assert seen == [*range(200), 1000], "an exclusive group skips the copies"
        await other.until(201)
        assert sum(map(len, other.finished.values())) == 201, "another group does not get the copies"
        for each in (consumer, auditor, exclusive):
            await each.close()
        await asyncio.gather(*running)


async def test_while_the_dead_letter_topic_is_gone_only_those_keys_wait_and_nothing_is_lost(
    cluster: LocalCluster,
) -> None:
    app = Application()
    topic, dead = "homeless", "homeless.billing.dead"
    policy = RetryPolicy(attempts_max=1, back_off="fixed", delays_ms=(50,), exhausted="dead_letter")
    async with Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic(topic, 1)
        await admin.create_group(topic, "billing", settings=GroupSettings(mode="key_ordered", retry=policy))
        await admin.delete_topic(dead)
        consumer = await client.consumer(topic, "billing", mode="key_ordered")
        running = asyncio.create_task(consumer.run(app.handle, 4))
        async with client.producer(topic) as producer:
            for number in range(100):
                await producer.send(b"%d" % number, key=b"k%d" % (number % 25))
        await app.until(96)  # after 0 wait 25, 50 and 75
        async with asyncio.timeout(DEADLINE_S):
            while not (keys := [key async for key in admin.group_keys(topic, "billing", states=["forwarding"])]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while dead not in keys[0].error:
                await asyncio.sleep(0.1)
                keys = [key async for key in admin.group_keys(topic, "billing", states=["forwarding"])]
        assert [key.key for key in keys] == [b"k0"]
        await admin.create_topic(dead, 1)
        await app.until(98)
        letters: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(letters) < 2:
                letters = [int(letter.value) async for letter in admin.dead_letters(dead)]
                await asyncio.sleep(0.05)
        assert letters == [0, 50]
        await consumer.close()
        await running
