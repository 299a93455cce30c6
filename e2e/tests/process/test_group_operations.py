"""A group is rewound, skipped and paused while its consumer runs and its servers are killed."""

from __future__ import annotations

import asyncio

import pytest
import seriatim
from seriatim_api.errors import StaleGroupEpochError
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(90)]

MESSAGE_COUNT = 300


class Reader:
    """A consumer that notes its messages, for each epoch of its group."""

    def __init__(self, client: seriatim.Client, topic: str) -> None:
        self._opening = client.consumer(topic, "g", on_group_change=self._changed)
        self.changes: list[str] = []
        self.epochs: list[list[int]] = [[]]
        self.came = asyncio.Event()

    def _changed(self, change: seriatim.GroupChange) -> None:
        self.changes.append(change.what)
        if change.what not in ("pause", "resume"):
            self.epochs.append([])

    async def run(self) -> None:
        """Read and acknowledge until the task is cancelled."""
        async with self._opening as consumer:
            while True:
                for message in await consumer.fetch(20, 0.2):
                    number = int(message.value)
                    if number not in self.epochs[-1]:
                        self.epochs[-1].append(number)
                    await consumer.ack(message)
                self.came.set()

    async def until_it_has(self, last: int) -> None:
        """Wait until the reader has that message in the newest epoch."""
        async with asyncio.timeout(30):
            while not self.epochs[-1] or self.epochs[-1][-1] != last:
                self.came.clear()
                await self.came.wait()


async def test_a_group_is_moved_under_its_running_consumer(cluster: LocalCluster) -> None:
    async with seriatim.Client.connect(cluster.bootstrap) as client:
        admin = client.admin()
        await admin.create_topic("moved", 1)
        async with client.producer("moved") as producer:
            for number in range(MESSAGE_COUNT):
                await producer.send(str(number).encode())
        reader = Reader(client, "moved")
        reading = asyncio.create_task(reader.run())
        await reader.until_it_has(MESSAGE_COUNT - 1)

        for _ in range(2):
            described = await admin.describe_group("moved", "g")
            server = described.partitions[0].server_broker
            await cluster.kill(server)
            await rewind(admin)
            await cluster.start_again(server)
            await reader.until_it_has(MESSAGE_COUNT - 1)
            assert reader.epochs[-1] == list(range(MESSAGE_COUNT))

        (paused,) = await admin.pause_group("moved", "g")
        assert paused.error is None
        done = await rewind(admin)
        (skipped,) = await admin.skip_group("moved", "g", behind(done.offset, 100), partitions=[0])
        assert skipped.error is None
        await admin.resume_group("moved", "g")
        await reader.until_it_has(MESSAGE_COUNT - 1)
        assert reader.epochs[-1] == list(range(100, MESSAGE_COUNT))
        changes = [change for change in reader.changes if change != "moved"]
        # A consumer that was looking for its new server during a rewind may be notified `moved` for it.
        assert set(changes[:-4]) <= {"rewind"}
        assert changes[-4:] == ["pause", "rewind", "skip", "resume"]
        reading.cancel()
        await asyncio.wait((reading,))


async def rewind(admin: seriatim.Admin) -> seriatim.OperatedPartition:
    """Rewind to the beginning. Try again if a killed server makes the group lose its place meanwhile."""
    while True:
        (done,) = await admin.rewind_group("moved", "g", "earliest")
        if done.error_number != StaleGroupEpochError.number:
            assert done.error is None
            return done


def behind(start: int | None, count: int) -> int:
    """Return the offset `count` messages after an offset, in the same segment."""
    assert start is not None
    return start + count
