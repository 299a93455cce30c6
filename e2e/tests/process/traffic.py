"""Steady traffic through a real cluster while a test breaks it, and the checker's judgement at the end.

Every message is a number. A producer sends the next ones every few milliseconds, a consumer reads and acknowledges
them, and both write down what they see. A test waits until a number of messages has passed, and never for a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from seriatim import Client, Consumer, Delivery, Producer, Segment, SendError, Tls, TopicSettings
from seriatim.history import HistoryWriter, check, render
from seriatim_api.errors import TopicExistsError
from seriatim_local import LocalCluster

from e2e.observe import Observer, Snapshot

SEND_S: Final = 0.004
PARTITION_COUNT: Final = 2
PROGRESS_DEADLINE_S: Final = 30.0
GROUP: Final = "readers"


class Traffic:
    """The running traffic, and what a test may ask of it.

    Attributes:
        observer: The observer of the topic and of the consumer group.
        acknowledged: The number of messages with the outcome ok.
        not_ok: The number of messages with another outcome.
        delivered: The number of messages that the consumer got, repeats included.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.acknowledged = 0
        self.not_ok = 0
        self.delivered = 0
        self.sending = True
        self._outstanding = 0
        self._changed = asyncio.Condition()

    async def look(self) -> Snapshot:
        """Read a snapshot of the cluster."""
        return await self.observer.look()

    async def master(self, partition: int = 0) -> str:
        """Return the broker that accepts the partition's messages now."""
        return (await self.look()).chains[partition].open_segment.members[0]

    async def moved_past(self, segment_no: int, partition: int = 0) -> Segment:
        """Wait until a segment after that one is open. Other partitions may continue meanwhile."""
        await self.observer.wait_until(
            lambda now: now.chains[partition].open_segment.no > segment_no,
            "the partition has moved",
            PROGRESS_DEADLINE_S,
        )
        return (await self.look()).chains[partition].open_segment

    async def goes_on(self, count: int = 100) -> None:
        """Wait until `count` more messages are acknowledged and delivered."""
        acknowledged, delivered = self.acknowledged + count, self.delivered + count
        await self._until(lambda: self.acknowledged >= acknowledged and self.delivered >= delivered)

    async def accepts(self, count: int = 100) -> None:
        """Wait until `count` more messages are acknowledged. Deliveries do not matter."""
        wanted = self.acknowledged + count
        await self._until(lambda: self.acknowledged >= wanted)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PROGRESS_DEADLINE_S), self._changed:
            await self._changed.wait_for(holds)

    async def finish(self) -> None:
        """Stop sending. Wait until the group has acknowledged all that was sent."""
        self.sending = False
        await self.observer.wait_until(
            lambda now: self._outstanding == 0 and now.settled() and now.drained(), "all is read", PROGRESS_DEADLINE_S
        )

    async def changed(self) -> None:
        """Wake the waiting tests, because a number has changed."""
        async with self._changed:
            self._changed.notify_all()

    async def send(self, producer: Producer) -> None:
        """Send numbers until `finish` is called. Return when all have an outcome."""
        number = 0
        async with asyncio.TaskGroup() as settling:
            while self.sending:
                for partition in range(producer.partition_count):
                    delivery = await producer.send(str(number).encode(), partition=partition)
                    self._outstanding += 1
                    settling.create_task(self._settle(delivery), name=f"outcome of {number}")
                    number += 1
                await asyncio.sleep(SEND_S)

    async def _settle(self, delivery: Delivery) -> None:
        try:
            await delivery
        except SendError:
            self.not_ok += 1
        else:
            self.acknowledged += 1
        self._outstanding -= 1
        await self.changed()

    async def read(self, consumer: Consumer) -> None:
        """Read and acknowledge until the task is cancelled."""
        while True:
            messages = await consumer.fetch(timeout_s=1.0)
            for message in messages:
                await consumer.ack(message)
            self.delivered += len(messages)
            await self.changed()


@asynccontextmanager
async def traffic(
    cluster: LocalCluster, topic: str, directory: Path, *, reads: bool = True, reply_timeout_ms: int = 1000
) -> AsyncIterator[Traffic]:
    """Send and read on a new topic for as long as the block lasts. Then check that everything is there, once and in
    order.

    Args:
        cluster: The cluster that gets the traffic.
        topic: Its name; this function makes it.
        directory: For the histories; all histories in it are judged together at the end.
        reads: Whether a consumer reads here; otherwise the caller reads for the consumer group.
        reply_timeout_ms: After this time without a reply the producer complains of a master.
    """
    with HistoryWriter(directory / "traffic.jsonl", "traffic") as history:
        client_tls = tls_of(cluster)
        async with Client.connect(cluster.bootstrap, tls=client_tls, recorder=history, message_id=int) as client:
            admin = client.admin()
            with suppress(TopicExistsError):  # the answer to the first attempt was lost
                await admin.create_topic(topic, PARTITION_COUNT, settings=TopicSettings(flush=True))
            await Observer(admin, topic).wait_until(Snapshot.settled, f"{topic} accepts", PROGRESS_DEADLINE_S)
            running = Traffic(Observer(admin, topic, GROUP))
            async with (
                client.producer(topic, reply_timeout_ms=reply_timeout_ms) as producer,
                asyncio.TaskGroup() as tasks,
            ):
                sending = tasks.create_task(running.send(producer), name="sending")
                if reads:
                    consumer = await client.consumer(topic, GROUP, name="reader")
                    reading = tasks.create_task(running.read(consumer), name="reading")
                    await running.goes_on(20)
                else:
                    await running.accepts(20)
                yield running
                await running.finish()
                await sending
                if reads:
                    reading.cancel()
        history.end(GROUP, topic=topic)
    _judge(directory)


def tls_of(cluster: LocalCluster) -> Tls | None:
    """Return the certificates for clients of a cluster; None if it speaks plain text."""
    if cluster.tls is None:
        return None
    files = cluster.tls.client
    assert files.cert is not None
    assert files.key is not None
    return Tls(files.ca, files.cert, files.key)


def _judge(directory: Path) -> None:
    report = check(sorted(directory.glob("*.jsonl")))
    assert report.ok, render(report)
    assert report.counts["ok"] == report.counts["sent"] == report.counts["delivered"] > 0, render(report)
