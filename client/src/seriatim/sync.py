"""The client for programs without asyncio: the same names, and calls that wait.

    with Client.connect("127.0.0.1:7000") as client:
        with client.producer("flights") as producer:
            receipt = producer.send(b"departed", key=b"N14228").result()
        with client.consumer("flights", "history") as consumer:
            for message in consumer:
                consumer.ack(message)

A client has a thread of its own in which an event loop runs the asynchronous client; every call is handed over there.
Calls may come from several threads; sends of one thread keep their order. What a call does, raises and promises is
told at the asynchronous class of the same name.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

import seriatim._client as asynchronous
from seriatim import _admin, _consumer, _producer, _writer
from seriatim._batch import BytesLike, Headers
from seriatim._broker_groups import BrokerGroup, Intent, RestartCheck
from seriatim._consuming.inbox import FetchedTable
from seriatim._partitioner import Partitioner
from seriatim._producing import deliveries as asynchronous_deliveries
from seriatim._producing.backlog import FlushResult
from seriatim._publishing.chunks import Chunk, Published
from seriatim._ranges import reading
from seriatim._ranges.questions import QUESTION_DEADLINE_S, At
from seriatim._ranges.reading import RangeTable
from seriatim._recording import HistoryLike, MessageIdOf
from seriatim._records import (
    Assignment,
    Balance,
    Chain,
    Cluster,
    Gap,
    GroupChange,
    GroupDescription,
    LostRange,
    Message,
    MovePlan,
    OperatedPartition,
    Part,
    PartitionOffset,
    QuarantinedMessage,
    RangePlan,
    Receipt,
    RetainedRange,
    Route,
    ScrubProgress,
    Topic,
    TopicDescription,
    TopicSettings,
    WriterDescription,
)
from seriatim._settings import Compression, ConsumerOptions, ProducerOptions, Target
from seriatim._tls import Tls

__all__ = ["Admin", "Client", "Consumer", "Deliveries", "Delivery", "Producer", "RangeReader", "Writer"]

T = TypeVar("T")


class _LoopThread:
    """An event loop in a thread. It ends when `close` is called."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="seriatim client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run there and wait here; an interrupt here cancels it there."""
        assert threading.current_thread() is not self._thread, "callbacks must not call the synchronous client"
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and wait for the thread. A call that another thread still waits in is cancelled."""
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    """End all other tasks of the loop: a stopped loop would leave those who wait for them waiting for ever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Delivery:
    """The delivery of one message."""

    def __init__(self, thread: _LoopThread, delivery: asynchronous_deliveries.Delivery) -> None:
        self._thread = thread
        self._delivery = delivery

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._delivery.done

    @property
    def outcome(self) -> str | None:
        """ok, failed or unknown; None as long as it is not settled."""
        return self._delivery.outcome

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt.

        Raises:
            SendFailedError: Provably not stored.
            SendUnknownError: Nobody knows.
            TimeoutError: Not settled within `timeout_s`; it may be asked again.
        """

        async def wait() -> Receipt:
            async with asyncio.timeout(timeout_s):
                return await self._delivery

        return self._thread.run(wait())


class Deliveries:
    """The deliveries of one `send_many` or `send_table`."""

    def __init__(self, thread: _LoopThread, deliveries: asynchronous_deliveries.Deliveries) -> None:
        self._thread = thread
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._deliveries.done

    def settled(self, timeout_s: float | None = None) -> tuple[Part, ...]:
        """Wait until all is settled; never raises for an outcome."""

        async def wait() -> tuple[Part, ...]:
            async with asyncio.timeout(timeout_s):
                return await self._deliveries.settled()

        return self._thread.run(wait())

    def result(self, timeout_s: float | None = None) -> tuple[Part, ...]:
        """As `settled`, and raises if a part is not ok."""

        async def wait() -> tuple[Part, ...]:
            async with asyncio.timeout(timeout_s):
                return await self._deliveries

        return self._thread.run(wait())


class _Held(Generic[T]):
    """What all wrappers share."""

    def __init__(self, thread: _LoopThread, inner: T) -> None:
        self._thread = thread
        self._inner = inner


class Producer(_Held[_producer.Producer]):
    """See `seriatim.Producer`."""

    def send(
        self,
        value: BytesLike,
        key: BytesLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
    ) -> Delivery:
        """Take a message once there is room for it. The types of all arguments are those of `seriatim.Producer.send`.

        After a KeyboardInterrupt in the middle of the call the message may be taken or not.
        """
        sent = self._thread.run(self._inner.send(value, key, partition, timestamp_ms, headers, tag))
        return Delivery(self._thread, sent)

    def send_many(
        self,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike | None] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
    ) -> Deliveries:
        """Take many messages at once, in their order."""
        sent = self._thread.run(self._inner.send_many(values, keys, partition, timestamps_ms, headers, tags))
        return Deliveries(self._thread, sent)

    def send_table(self, table: Any, partition: int | None = None, key_column: str = "key") -> Deliveries:
        """Take the rows of an Arrow table, in their order."""
        return Deliveries(self._thread, self._thread.run(self._inner.send_table(table, partition, key_column)))

    def flush(self) -> FlushResult:
        """Wait until all that was taken is settled."""
        return self._thread.run(self._inner.flush())

    def close(self, timeout_s: float | None = None) -> FlushResult:
        """Flush, for at most `timeout_s`, and end."""
        return self._thread.run(self._inner.close(timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else 0)


class Consumer(_Held[_consumer.Consumer]):
    """See `seriatim.Consumer`."""

    @property
    def assigned(self) -> tuple[int, ...]:
        """Partitions that are delivered to this consumer now."""
        return self._inner.assigned

    @property
    def paused(self) -> tuple[int, ...]:
        """Partitions on which the group is paused: nothing is delivered until it is resumed."""
        return self._inner.paused

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield from self.fetch(1, 3600.0)

    def fetch(self, max_messages: int = 500, timeout_s: float = 1.0) -> list[Message]:
        """Wait until there is a message, and return what is there."""
        return self._thread.run(self._inner.fetch(max_messages, timeout_s))

    def fetch_table(self, timeout_s: float = 1.0) -> FetchedTable | None:
        """Wait for a batch, and return it as an Arrow table."""
        return self._thread.run(self._inner.fetch_table(timeout_s))

    def ack(self, message: Message | FetchedTable | int, partition: int | None = None) -> bool:
        """Acknowledge a message and all before it in its partition."""
        return self._thread.run(self._inner.ack(message, partition))

    def ack_all(self) -> None:
        """Acknowledge all that was given out so far."""
        self._thread.run(self._inner.ack_all())

    def close(self) -> None:
        """Send the last acknowledgements and leave."""
        self._thread.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RangeReader(_Held[reading.RangeReader]):
    """See `seriatim.RangeReader`."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._inner.topic

    @property
    def incarnation(self) -> str:
        """Of the topic that is read."""
        return self._inner.incarnation

    @property
    def partition(self) -> int:
        """Number in the topic."""
        return self._inner.partition

    @property
    def start(self) -> int:
        """The first offset."""
        return self._inner.start

    @property
    def end(self) -> int:
        """The first offset behind the range."""
        return self._inner.end

    @property
    def offset(self) -> int:
        """Where it goes on. A message that was given to a loop over the reader with others of its batch is below it."""
        return self._inner.offset

    @property
    def skipped(self) -> int:
        """Messages of the range that were passed over so far, because they repeat earlier ones."""
        return self._inner.skipped

    def __iter__(self) -> Iterator[Message]:
        while messages := self.fetch():
            yield from messages

    def fetch(self) -> list[Message]:
        """The messages of the next batch; none: the range is read to its end."""
        return self._thread.run(self._inner.fetch())

    def tables(self) -> Iterator[RangeTable]:
        """The rows of each batch as an Arrow table."""
        while (table := self.fetch_table()) is not None:
            yield table

    def fetch_table(self) -> RangeTable | None:
        """The rows of the next batch; None: the range is read to its end."""
        return self._thread.run(self._inner.fetch_table())

    def close(self) -> None:
        """Read no further."""
        self._thread.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Admin(_Held[_admin.Admin]):
    """See `seriatim.Admin`."""

    def create_topic(self, name: str, partition_count: int = 1, settings: TopicSettings | None = None) -> Topic:
        """Create a topic and wait until all its partitions accept."""
        return self._thread.run(self._inner.create_topic(name, partition_count, settings))

    def list_writers(self, topic: str = "") -> list[WriterDescription]:
        """The writers of a topic, or of all."""
        return self._thread.run(self._inner.list_writers(topic))

    def describe_writer(self, topic: str, writer: str) -> WriterDescription:
        """What a writer has published."""
        return self._thread.run(self._inner.describe_writer(topic, writer))

    def delete_writer(self, topic: str, writer: str) -> None:
        """Forget a writer."""
        self._thread.run(self._inner.delete_writer(topic, writer))

    def update_topic(
        self,
        name: str,
        partition_count: int | None = None,
        *,
        message_size_bytes_max: int | None = None,
        batch_size_bytes_max: int | None = None,
        retention_ms: int | None = None,
        chain_width: int | None = None,
        retention_bytes: int | None = None,
        retain_unread: bool | None = None,
        unread_ms_max: int | None = None,
        unread_bytes_max: int | None = None,
    ) -> Topic:
        """Add partitions to a topic, or change its settings."""
        update = self._inner.update_topic(
            name,
            partition_count,
            message_size_bytes_max=message_size_bytes_max,
            batch_size_bytes_max=batch_size_bytes_max,
            retention_ms=retention_ms,
            chain_width=chain_width,
            retention_bytes=retention_bytes,
            retain_unread=retain_unread,
            unread_ms_max=unread_ms_max,
            unread_bytes_max=unread_bytes_max,
        )
        return self._thread.run(update)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all that is in it."""
        self._thread.run(self._inner.delete_topic(name))

    def list_topics(self) -> list[Topic]:
        """All topics, by name."""
        return self._thread.run(self._inner.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic and its chains."""
        return self._thread.run(self._inner.describe_topic(name))

    def describe_chain(self, topic: str, partition: int) -> Chain:
        """A partition's chain."""
        return self._thread.run(self._inner.describe_chain(topic, partition))

    def watch_chain(self, topic: str, partition: int) -> Iterator[Chain]:
        """The chain now, and again after each change."""
        changes = self._inner.watch_chain(topic, partition)

        async def next_one() -> Chain | None:
            return await anext(changes, None)

        while (chain := self._thread.run(next_one())) is not None:
            yield chain

    def list_groups(self, topic: str) -> list[str]:
        """Names of the consumer groups that have a position on some partition of a topic."""
        return self._thread.run(self._inner.list_groups(topic))

    def describe_group(self, topic: str, group: str) -> GroupDescription:
        """Where a consumer group stands on each partition."""
        return self._thread.run(self._inner.describe_group(topic, group))

    def plan_move(
        self,
        topic: str,
        group: str,
        to: Target,
        *,
        partitions: Sequence[int] | None = None,
        operation: Literal["rewind", "skip"] | None = None,
    ) -> MovePlan:
        """Look what it takes to move a consumer group, and change nothing."""
        return self._thread.run(self._inner.plan_move(topic, group, to, partitions=partitions, operation=operation))

    def move_group(self, plan: MovePlan, *, request_id: bytes | None = None) -> list[OperatedPartition]:
        """Carry out a plan of `plan_move`."""
        return self._thread.run(self._inner.move_group(plan, request_id=request_id))

    def rewind_group(
        self, topic: str, group: str, to: Target, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Have a consumer group read again all from `to` on."""
        return self._thread.run(self._inner.rewind_group(topic, group, to, partitions=partitions))

    def skip_group(
        self, topic: str, group: str, to: Target, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Have a consumer group pass over all that lies before `to`."""
        return self._thread.run(self._inner.skip_group(topic, group, to, partitions=partitions))

    def pause_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Deliver nothing more to a consumer group until it is resumed."""
        return self._thread.run(self._inner.pause_group(topic, group, partitions=partitions))

    def resume_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Go on delivering to a consumer group that was paused."""
        return self._thread.run(self._inner.resume_group(topic, group, partitions=partitions))

    def create_group(
        self, topic: str, group: str, start: Target = "earliest", *, partitions: Sequence[int] | None = None
    ) -> bool:
        """Let a consumer group begin before anybody joins."""
        return self._thread.run(self._inner.create_group(topic, group, start, partitions=partitions))

    def delete_group(self, topic: str, group: str) -> None:
        """Forget where a consumer group is."""
        self._thread.run(self._inner.delete_group(topic, group))

    def balance(self, *, run: bool = False) -> Balance:
        """Which heads should stand elsewhere; with `run` that is begun."""
        return self._thread.run(self._inner.balance(run=run))

    def describe_cluster(self) -> Cluster:
        """The cluster's brokers."""
        return self._thread.run(self._inner.describe_cluster())

    def switch_partition(self, partition_id: int, group: str = "", master: str = "") -> Route:
        """A planned switch, to the next group of the send chain or to a chosen one."""
        return self._thread.run(self._inner.switch_partition(partition_id, group, master))

    def declare_dead(self, broker: str, run: int, issuer: str, *, incarnation: str = "", evidence: str = "") -> None:
        """Certify that a run of a broker has ended."""
        self._thread.run(self._inner.declare_dead(broker, run, issuer, incarnation=incarnation, evidence=evidence))

    def list_broker_groups(self, *, with_counts: bool = False) -> list[BrokerGroup]:
        """All broker groups."""
        return self._thread.run(self._inner.list_broker_groups(with_counts=with_counts))

    def set_broker_group(self, name: str, intent: Intent | None = None, *, weight: float | None = None) -> BrokerGroup:
        """Say what is wanted of a broker group."""
        return self._thread.run(self._inner.set_broker_group(name, intent, weight=weight))

    def remove_broker_group(self, name: str) -> None:
        """Forget a broker group that is drained and has ended."""
        self._thread.run(self._inner.remove_broker_group(name))

    def remove_member(self, broker: str) -> None:
        """Forget a broker that is certified dead and whose disk nobody needs."""
        self._thread.run(self._inner.remove_member(broker))

    def check_restart(self, broker: str) -> RestartCheck:
        """Whether a broker may be stopped without leaving anything on one disk only."""
        return self._thread.run(self._inner.check_restart(broker))

    def scrub(self, broker: str) -> Iterator[ScrubProgress]:
        """Have a broker read all that it holds, a part with each step."""
        steps = self._inner.scrub(broker)

        async def next_one() -> ScrubProgress | None:
            return await anext(steps, None)

        while (progress := self._thread.run(next_one())) is not None:
            yield progress

    def read_quarantined(self, broker: str) -> Iterator[QuarantinedMessage]:
        """What a broker keeps above the lengths that the cluster decided."""
        messages = self._inner.read_quarantined(broker)

        async def next_one() -> QuarantinedMessage | None:
            return await anext(messages, None)

        while (message := self._thread.run(next_one())) is not None:
            yield message

    def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        """Declare that all disks of a segment are lost for good."""
        self._thread.run(self._inner.declare_gap(topic, partition, segment, issuer))


class Writer(_Held[_writer.Writer]):
    """See `seriatim.Writer`."""

    @property
    def epoch(self) -> int:
        """From `open`; 0: not opened."""
        return self._inner.epoch

    def open(self, timeout_s: float = _writer.OPEN_TIMEOUT_S) -> int | None:
        """Take the writer over; returns the sequence that was decided last."""
        return self._thread.run(self._inner.open(timeout_s))

    def stage(
        self,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
    ) -> Chunk:
        """Send rows to the brokers, where they wait for `publish`."""
        return self._thread.run(self._inner.stage(values, keys, partition, timestamps_ms, headers, tags))

    def stage_table(self, table: Any, partition: int | Sequence[int] | None = None, key_column: str = "key") -> Chunk:
        """The same for the rows of an Arrow table."""
        return self._thread.run(self._inner.stage_table(table, partition, key_column))

    def publish(
        self,
        sequence: int,
        chunks: Sequence[Chunk],
        *,
        ephemeral: bool = False,
        timeout_s: float = _writer.PUBLISH_TIMEOUT_S,
    ) -> Published:
        """Have all rows of these chunks appended, or none."""
        return self._thread.run(self._inner.publish(sequence, chunks, ephemeral=ephemeral, timeout_s=timeout_s))

    def close(self) -> None:
        """Take no more calls."""
        self._thread.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(_Held[asynchronous.Client]):
    """See `seriatim.Client`."""

    @classmethod
    @contextmanager
    def connect(
        cls,
        bootstrap: str | Sequence[str],
        *,
        name: str = "",
        tls: Tls | None = None,
        recorder: HistoryLike | None = None,
        message_id: MessageIdOf | None = None,
    ) -> Iterator[Self]:
        """A client, with its thread, for the time of the block."""
        thread = _LoopThread()
        try:
            context = asynchronous.Client.connect(
                bootstrap, name=name, tls=tls, recorder=recorder, message_id=message_id
            )

            async def enter() -> asynchronous.Client:
                return await context.__aenter__()

            client = cls(thread, thread.run(enter()))
            try:
                yield client
            except BaseException as exc:
                thread.run(_leave(context, exc))
                raise
            thread.run(_leave(context, None))
        finally:
            thread.close()

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer for a topic."""
        opening = self._inner.producer(topic, **options)

        async def begin() -> _producer.Producer:
            return await opening

        return Producer(self._thread, self._thread.run(begin()))

    def writer(
        self,
        topic: str,
        name: str,
        *,
        epoch: int = 0,
        owner: str = "",
        compression: Compression | None = None,
        partitioner: Partitioner | None = None,
    ) -> Writer:
        """A writer of a topic: sets of rows, all or nothing."""
        opening = self._inner.writer(
            topic, name, epoch=epoch, owner=owner, compression=compression, partitioner=partitioner
        )

        async def begin() -> _writer.Writer:
            return await opening

        return Writer(self._thread, self._thread.run(begin()))

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Literal["exclusive"] = "exclusive",
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer of a topic. The callbacks are called in the client's thread and must not call back."""
        opening = self._inner.consumer(
            topic, group, mode=mode, partitions=partitions, name=name, on_gap=on_gap, on_assignment=on_assignment,
            on_group_change=on_group_change, **options,
        )  # fmt: skip

        async def begin() -> _consumer.Consumer:
            return await opening

        return Consumer(self._thread, self._thread.run(begin()))

    def offsets(
        self,
        topic: str,
        at: At = "end",
        *,
        partitions: Sequence[int] | None = None,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> tuple[PartitionOffset, ...]:
        """A place in partitions of a topic: where they begin, where they end, or where a time is."""
        asked = self._inner.offsets(topic, at, partitions=partitions, incarnation=incarnation, timeout_s=timeout_s)
        return self._thread.run(asked)

    def retained(
        self, topic: str, *, incarnation: str = "", timeout_s: float = QUESTION_DEADLINE_S
    ) -> tuple[RetainedRange, ...]:
        """What is kept of each partition of a topic."""
        return self._thread.run(self._inner.retained(topic, incarnation=incarnation, timeout_s=timeout_s))

    def plan_range(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        cut_bytes: int = 0,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> RangePlan:
        """What lies between two offsets of a partition: pieces that can be read apart, and what is gone."""
        asked = self._inner.plan_range(
            topic, partition, start, end, cut_bytes=cut_bytes, incarnation=incarnation, timeout_s=timeout_s
        )
        return self._thread.run(asked)

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int | At = "earliest",
        end: int | At = "end",
        *,
        incarnation: str = "",
        raw: bool = False,
        on_loss: Callable[[LostRange], None] | None = None,
        credit_bytes: int = 8 << 20,
        read_timeout_s: float = 30.0,
    ) -> RangeReader:
        """A reader of [start, end) of a partition. `on_loss` is called in the client's thread, and must not call it."""
        opening = self._inner.read_range(
            topic, partition, start, end, incarnation=incarnation, raw=raw, on_loss=on_loss, credit_bytes=credit_bytes,
            read_timeout_s=read_timeout_s,
        )  # fmt: skip

        async def begin() -> reading.RangeReader:
            return await opening

        return RangeReader(self._thread, self._thread.run(begin()))

    def report_progress(
        self,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        *,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> None:
        """Say how far a program is that reads ranges, under the name of a consumer group without consumers."""
        self._thread.run(
            self._inner.report_progress(topic, group, offsets, incarnation=incarnation, timeout_s=timeout_s)
        )

    def admin(self) -> Admin:
        """Administration of the cluster."""
        return Admin(self._thread, self._inner.admin())


async def _leave(context: Any, error: BaseException | None) -> None:
    """Leave the asynchronous block as the synchronous one was left; the error goes on at the caller's."""
    try:
        await context.__aexit__(type(error) if error is not None else None, error, None)
    except BaseException as exc:
        if exc is not error:
            raise
