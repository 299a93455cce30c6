"""The client for programs without asyncio: the same names, and calls that wait.

    with Client.connect("127.0.0.1:7000") as client:
        with client.producer("flights") as producer:
            receipt = producer.send(b"departed", key=b"N14228").result()
        with client.consumer("flights", "history") as consumer:
            for message in consumer:
                consumer.ack(message)

Each client has a thread with an event loop for itself, in which the asynchronous client runs. A call here runs there,
and the calling thread waits for it. Several threads may call. The sends of one thread keep their order. The
asynchronous class of the same name documents the arguments and errors of each call, and what it promises.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, Unpack, overload

from seriatim_api.errors import BadRequestError, PreconditionError

import seriatim._client as asynchronous
from seriatim import _admin, _consumer, _keyed_consumer, _producer, _writer
from seriatim._batch import BytesLike, Headers
from seriatim._broker_groups import BrokerGroup, Intent, RestartCheck
from seriatim._consumer_group_settings import (
    GroupKey,
    GroupMode,
    GroupSettings,
    KeyResult,
    KeyState,
    RetryPolicy,
    Spread,
)
from seriatim._consuming import handlers
from seriatim._consuming.inbox import FetchedTable
from seriatim._dead_letters import DeadLetter, ReplayedDeadLetter
from seriatim._descriptions import (
    Balance,
    Chain,
    Cluster,
    GroupDescription,
    MovePlan,
    OperatedPartition,
    QuarantinedMessage,
    Route,
    ScrubProgress,
    TopicDescription,
    WriterDescription,
)
from seriatim._home import check_process
from seriatim._partitioner import Partitioner
from seriatim._producing import deliveries as asynchronous_deliveries
from seriatim._producing.backlog import FlushResult
from seriatim._publishing.chunks import Chunk, Published
from seriatim._ranges import QUESTION_DEADLINE_S, reading
from seriatim._ranges.questions import At
from seriatim._ranges.reading import RangeTable
from seriatim._ranges.records import LostRange, PartitionOffset, RangePlan, RetainedRange
from seriatim._recording import MessageIdOf
from seriatim._records import Assignment, Gap, GroupChange, Message, Part, Receipt, Topic, TopicSettings
from seriatim._settings import Compression, ConsumerOptions, ProducerOptions, Target
from seriatim._tls import Tls

if TYPE_CHECKING:
    import pyarrow as pa

    from seriatim.history import HistoryWriter, MemoryHistory

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "Deliveries",
    "Delivery",
    "KeyedBatch",
    "KeyedConsumer",
    "KeyedMessage",
    "Producer",
    "RangeReader",
    "Writer",
]

T = TypeVar("T")


class _Loop:
    """An event loop in a thread. It runs until the process ends, or until `close`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="seriatim client", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop the loop, and wait for the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


IDLE_LOOPS_MAX: Final = 16
"""At most so many event loops of closed clients are kept for the next ones. One has three file descriptors."""

_idle: list[_Loop] = []
_idle_lock = threading.Lock()


def _take_loop() -> _Loop:
    """An event loop that no client uses.

    A loop is used again and not closed. Without it: 1. A client is closed, and its loop with it. 2. gRPC has an event
    for that loop, such as the end of a watch on a channel to which an exception still refers. 3. The loop of another
    client passes the event on, and prints `RuntimeError: Event loop is closed`.
    """
    with _idle_lock:
        while _idle:
            found = _idle.pop()
            if found.pid == os.getpid() and found.thread.is_alive():  # else this process was forked
                return found
    return _Loop()


def _give_loop(loop: _Loop) -> None:
    with _idle_lock:
        if len(_idle) < IDLE_LOOPS_MAX:
            _idle.append(loop)
            return
    loop.close()


class _LoopThread:
    """The event loop of one client, in a thread, until `close` is called."""

    def __init__(self) -> None:
        self._lent = _take_loop()
        self._is_closed = False
        self._closing = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for it here. An exception here, such as an interrupt, cancels it.

        Raises:
            PreconditionError: The client was closed, or it is in the process from which this one was forked, or a
                callback of this client makes the call; nothing was run.
        """
        try:
            check_process(self._lent.pid)
            if threading.current_thread() is self._lent.thread:
                raise PreconditionError(
                    "a callback, such as on_gap, runs in the client's own thread and cannot call this client: let "
                    "another thread make the call"
                )
            with self._closing:
                if self._is_closed:
                    raise PreconditionError("the client is closed: connect another one")
                future = asyncio.run_coroutine_threadsafe(coroutine, self._lent.loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function in the loop's thread, and wait for it here."""

        async def there() -> T:
            return function(*args, **kwargs)

        return self.run(there())

    def is_here(self) -> bool:
        """Whether the client can be called, in this process."""
        return os.getpid() == self._lent.pid and not self._is_closed

    def close(self) -> None:
        """Take no more calls. If another thread still waits in a call, that call is cancelled."""
        check_process(self._lent.pid)
        with self._closing:
            self._is_closed = True
            ended = asyncio.run_coroutine_threadsafe(_cancel_all(), self._lent.loop)
        ended.result()
        _give_loop(self._lent)


async def _cancel_all() -> None:
    """Cancel all other tasks of the loop. Otherwise a thread that waits for one of them would wait for ever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Delivery:
    """The delivery of one message: call `result` for its receipt."""

    def __init__(self, thread: _LoopThread, delivery: asynchronous_deliveries.Delivery) -> None:
        self._thread = thread
        self._delivery = delivery

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._delivery.done

    @property
    def outcome(self) -> str | None:
        """`ok`, `failed` or `unknown`; None until the message is settled."""
        return self._delivery.outcome

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt.

        Args:
            timeout_s: Seconds to wait; None: until the message is settled.

        Raises:
            SendFailedError: The message is provably not stored, and is never delivered.
            SendUnknownError: The message may be stored or not.
            TimeoutError: The message is not settled within `timeout_s`. Call again to wait further.
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
        """Wait until all messages are settled. It never raises because of an outcome.

        Raises:
            TimeoutError: A message is not settled within `timeout_s` seconds. Call again to wait further.
        """

        async def wait() -> tuple[Part, ...]:
            async with asyncio.timeout(timeout_s):
                return await self._deliveries.settled()

        return self._thread.run(wait())

    def result(self, timeout_s: float | None = None) -> tuple[Part, ...]:
        """Wait until all messages are settled.

        Raises:
            SendUnknownError: A message may be stored or not.
            SendFailedError: A message is provably not stored. Raised if no outcome is unknown.
            TimeoutError: A message is not settled within `timeout_s` seconds. Call again to wait further.
        """

        async def wait() -> tuple[Part, ...]:
            async with asyncio.timeout(timeout_s):
                return await self._deliveries

        return self._thread.run(wait())


class _Held(Generic[T]):
    """Base of the wrappers: the asynchronous object, and the thread in which it lives."""

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
        """Take one message when there is room for it. Arguments and errors are those of `seriatim.Producer.send`.

        If a KeyboardInterrupt ends the call, the message may have been taken.
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
        """Take many messages at once, in their order. See `seriatim.Producer.send_many`."""
        sent = self._thread.run(self._inner.send_many(values, keys, partition, timestamps_ms, headers, tags))
        return Deliveries(self._thread, sent)

    def send_table(self, table: Any, partition: int | None = None, key_column: str = "key") -> Deliveries:
        """Take the rows of an Arrow table, in their order. See `seriatim.Producer.send_table`."""
        return Deliveries(self._thread, self._thread.run(self._inner.send_table(table, partition, key_column)))

    def flush(self) -> FlushResult:
        """Send all messages that linger, and wait until every message that was taken is settled."""
        return self._thread.run(self._inner.flush())

    def close(self, timeout_s: float | None = None) -> FlushResult:
        """Flush for at most `timeout_s` seconds, then end. Messages that are left are settled as failed or unknown."""
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
    def yielding(self) -> tuple[int, ...]:
        """Partitions that another consumer of the group is to read. See `seriatim.Consumer.yielding`."""
        return self._inner.yielding

    @property
    def unserved(self) -> tuple[int, ...]:
        """See `seriatim.Consumer.unserved`."""
        return self._inner.unserved

    @property
    def paused(self) -> tuple[int, ...]:
        """Partitions on which the consumer group is paused. Nothing is delivered there until it is resumed."""
        return self._inner.paused

    def __iter__(self) -> Iterator[Message]:
        """Messages, one at a time, until the consumer is closed."""
        items = aiter(self._inner)

        async def next_one() -> Message | None:
            return await anext(items, None)

        while (message := self._thread.run(next_one())) is not None:
            yield message

    def fetch(self, max_messages: int = 500, timeout_s: float = 1.0) -> list[Message]:
        """Wait until there is a message, and return all that have arrived. See `seriatim.Consumer.fetch`."""
        return self._thread.run(self._inner.fetch(max_messages, timeout_s))

    def fetch_table(self, timeout_s: float = 1.0) -> FetchedTable | None:
        """Wait for a batch, and return it as an Arrow table; None after `timeout_s` seconds."""
        return self._thread.run(self._inner.fetch_table(timeout_s))

    def ack(self, message: Message | FetchedTable | int, partition: int | None = None) -> bool:
        """Acknowledge a message and all before it in its partition. See `seriatim.Consumer.ack`."""
        return self._thread.run(self._inner.ack(message, partition))

    def ack_all(self) -> None:
        """Acknowledge all messages that this consumer has given to the application so far."""
        self._thread.run(self._inner.ack_all())

    def close(self) -> None:
        """Send the last acknowledgements and leave. A standby takes over at once."""
        self._thread.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyedMessage:
    """A message that is being worked on: `with keyed_message as message`. See `seriatim.KeyedMessage`."""

    def __init__(self, thread: _LoopThread, inner: _keyed_consumer.KeyedMessage) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def message(self) -> Message:
        """The message. Who reads it begins to work on it: if this process ends then, that is a failed attempt."""
        if not self._inner.has_begun and self._thread.is_here():
            self._thread.call(self._inner.begin)
        return self._inner.peek()

    def peek(self) -> Message:
        """The message, to look at it without beginning to work on it."""
        return self._inner.peek()

    @property
    def is_current(self) -> bool:
        """Whether an acknowledgement would still count, as far as this consumer knows."""
        return self._inner.is_current

    def ack(self) -> bool:
        """Acknowledge the message. Returns False if its grant has ended: then it comes again, here or elsewhere."""
        return self._thread.call(self._inner.ack)

    def nack(self, delay_s: float | None = None, reason: str = "", *, is_last: bool = False) -> None:
        """Give the message back. It comes again after a delay, before all later messages of its key."""
        self._thread.call(self._inner.nack, delay_s, reason, is_last=is_last)

    def extend(self, hold_s: float) -> bool:
        """Keep the message for so many seconds from now. Returns False if its grant has ended."""
        return self._thread.call(self._inner.extend, hold_s)

    def __enter__(self) -> Message:
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._inner.leave, error)


class KeyedBatch:
    """Messages of many keys that came together. See `seriatim.KeyedBatch`."""

    def __init__(self, thread: _LoopThread, batch: _keyed_consumer.KeyedBatch) -> None:
        self._thread = thread
        self._batch = batch
        self.topic = batch.topic
        self.partition = batch.partition

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each message."""
        return self._batch.offsets

    @property
    def messages(self) -> Sequence[Message]:
        """The messages."""
        return self._thread.call(lambda: self._batch.messages)

    @property
    def table(self) -> pa.Table:
        """The messages as the columns key, value, timestamp, headers and tag."""
        return self._thread.call(lambda: self._batch.table)

    def fail(self, message: Message, delay_s: float | None = None, reason: str = "", *, is_last: bool = False) -> None:
        """Give one message back. See `seriatim.KeyedBatch.fail`."""
        self._thread.call(lambda: self._batch.fail(message, delay_s, reason, is_last=is_last))


class KeyedConsumer(_Held[_keyed_consumer.KeyedConsumer]):
    """See `seriatim.KeyedConsumer`."""

    @property
    def joined(self) -> tuple[int, ...]:
        """Partitions whose server knows this consumer."""
        return self._inner.joined

    @property
    def unserved(self) -> tuple[int, ...]:
        """See `KeyedConsumer.unserved`."""
        return self._inner.unserved

    def run(
        self,
        handler: Callable[[Message], object],
        concurrency: int = 64,
        *,
        timeout_s: float | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Call a handler with each message, until another thread closes the consumer. See `seriatim.KeyedConsumer.run`.

        The handler runs in threads, or in `pool`. It may call this client. A KeyboardInterrupt ends the call: handlers
        that run go on to their ends in their threads, and their messages come again.

        Raises:
            BadRequestError: The handler is a coroutine function: use the asynchronous client. Or an argument is beyond
                its limits.
        """
        if handlers.is_coroutine_function(handler):
            raise BadRequestError("the synchronous client calls plain functions, and this is a coroutine function")
        self._thread.run(self._inner.run(handler, concurrency, timeout_s=timeout_s, pool=pool))

    def run_batches(
        self, handler: Callable[[KeyedBatch], object], concurrency: int = 4, *, timeout_s: float | None = None
    ) -> None:
        """Call a handler with batches of messages, until another thread closes the consumer.

        See `seriatim.KeyedConsumer.run_batches`. The handler runs in threads. It may call this client. If it takes
        longer than `timeout_s`, or the call is interrupted, it goes on to its end in its thread, and its messages come
        again.

        Raises:
            BadRequestError: The handler is a coroutine function: use the asynchronous client. Or an argument is beyond
                its limits.
        """
        if handlers.is_coroutine_function(handler):
            raise BadRequestError("the synchronous client calls plain functions, and this is a coroutine function")
        handlers.check_handler(handler, None)

        def call(batch: _keyed_consumer.KeyedBatch) -> object:
            return handler(KeyedBatch(self._thread, batch))

        self._thread.run(self._inner.run_batches_in_threads(call, concurrency, timeout_s))

    def receive(
        self, max_messages: int = 10, timeout_s: float = 20.0, *, hold_s: float | None = None
    ) -> list[KeyedMessage]:
        """Ask for messages, and wait until some are here: a long poll. See `seriatim.KeyedConsumer.receive`."""
        received = self._thread.run(self._inner.receive(max_messages, timeout_s, hold_s=hold_s))
        return [KeyedMessage(self._thread, item) for item in received]

    def __iter__(self) -> Iterator[KeyedMessage]:
        """Messages, one at a time, until the consumer is closed. Several threads may iterate.

        Work on each in `with`, or call its `ack` or `nack`.
        """
        items = aiter(self._inner)

        async def next_one() -> _keyed_consumer.KeyedMessage | None:
            return await anext(items, None)

        try:
            while (item := self._thread.run(next_one())) is not None:
                yield KeyedMessage(self._thread, item)
        finally:
            if self._thread.is_here():
                self._thread.run(items.aclose())

    def close(self, drain_s: float = 5.0) -> None:
        """Let running handlers end, send the last acknowledgements, and leave."""
        self._thread.run(self._inner.close(drain_s))

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
        """The topic's name."""
        return self._inner.topic

    @property
    def incarnation(self) -> str:
        """The incarnation of the topic that is read."""
        return self._inner.incarnation

    @property
    def partition(self) -> int:
        """The partition's number in the topic."""
        return self._inner.partition

    @property
    def start(self) -> int:
        """The first offset of the range."""
        return self._inner.start

    @property
    def end(self) -> int:
        """The first offset behind the range."""
        return self._inner.end

    @property
    def offset(self) -> int:
        """The offset at which the reader goes on.

        A loop over the reader takes all messages of a batch at once. So this offset is behind the whole batch, also
        while the loop is in the middle of it.
        """
        return self._inner.offset

    @property
    def skipped(self) -> int:
        """The number of messages of the range that the reader has skipped so far, because they repeat earlier ones."""
        return self._inner.skipped

    def __iter__(self) -> Iterator[Message]:
        while messages := self.fetch():
            yield from messages

    def fetch(self) -> list[Message]:
        """The messages of the next batch; an empty list: the range is read to its end."""
        return self._thread.run(self._inner.fetch())

    def tables(self) -> Iterator[RangeTable]:
        """The rows of each batch as an Arrow table."""
        while (table := self.fetch_table()) is not None:
            yield table

    def fetch_table(self) -> RangeTable | None:
        """The rows of the next batch; None: the range is read to its end."""
        return self._thread.run(self._inner.fetch_table())

    def close(self) -> None:
        """End the reader. Later calls raise `PreconditionError`."""
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
        """Create a topic and wait until all its partitions accept messages."""
        return self._thread.run(self._inner.create_topic(name, partition_count, settings))

    def list_writers(self, topic: str | None = None) -> list[WriterDescription]:
        """The writers of a topic, or of all topics if `topic` is None."""
        return self._thread.run(self._inner.list_writers(topic))

    def describe_writer(self, topic: str, writer: str) -> WriterDescription:
        """A writer and its last publication."""
        return self._thread.run(self._inner.describe_writer(topic, writer))

    def delete_writer(self, topic: str, writer: str) -> None:
        """Delete the record of a writer."""
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
        """Delete a topic with all its messages. They do not come back."""
        self._thread.run(self._inner.delete_topic(name))

    def list_topics(self) -> list[Topic]:
        """All topics, sorted by name."""
        return self._thread.run(self._inner.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic and the chains of its partitions."""
        return self._thread.run(self._inner.describe_topic(name))

    def describe_chain(self, topic: str, partition: int) -> Chain:
        """The chain record of a partition."""
        return self._thread.run(self._inner.describe_chain(topic, partition))

    def watch_chain(self, topic: str, partition: int) -> Iterator[Chain]:
        """The chain record now, and again after each change, until the program leaves the iteration."""
        changes = self._inner.watch_chain(topic, partition)

        async def next_one() -> Chain | None:
            return await anext(changes, None)

        while (chain := self._thread.run(next_one())) is not None:
            yield chain

    def list_groups(self, topic: str) -> list[str]:
        """The names of the consumer groups that have a cursor on at least one partition of a topic."""
        return self._thread.run(self._inner.list_groups(topic))

    def describe_group(self, topic: str, group: str) -> GroupDescription:
        """The place of a consumer group in each partition."""
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
        """Plan the move of a consumer group, and change nothing."""
        return self._thread.run(self._inner.plan_move(topic, group, to, partitions=partitions, operation=operation))

    def move_group(
        self, plan: MovePlan, *, request_id: bytes | None = None, drop_aside: bool = False
    ) -> list[OperatedPartition]:
        """Carry out a plan of `plan_move`."""
        return self._thread.run(self._inner.move_group(plan, request_id=request_id, drop_aside=drop_aside))

    def rewind_group(
        self,
        topic: str,
        group: str,
        to: Target,
        *,
        partitions: Sequence[int] | None = None,
        drop_aside: bool = False,
    ) -> list[OperatedPartition]:
        """Plan a rewind and carry it out: all messages from `to` on come again."""
        return self._thread.run(
            self._inner.rewind_group(topic, group, to, partitions=partitions, drop_aside=drop_aside)
        )

    def skip_group(
        self,
        topic: str,
        group: str,
        to: Target,
        *,
        partitions: Sequence[int] | None = None,
        drop_aside: bool = False,
    ) -> list[OperatedPartition]:
        """Plan a skip and carry it out: messages before `to` are not delivered any more."""
        return self._thread.run(self._inner.skip_group(topic, group, to, partitions=partitions, drop_aside=drop_aside))

    def pause_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Deliver nothing more to a consumer group until it is resumed."""
        return self._thread.run(self._inner.pause_group(topic, group, partitions=partitions))

    def resume_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Let a paused consumer group go on."""
        return self._thread.run(self._inner.resume_group(topic, group, partitions=partitions))

    def create_group(
        self,
        topic: str,
        group: str,
        start: Target = "earliest",
        *,
        partitions: Sequence[int] | None = None,
        settings: GroupSettings | None = None,
    ) -> bool:
        """Make the cursors of a consumer group before a consumer joins it."""
        return self._thread.run(self._inner.create_group(topic, group, start, partitions=partitions, settings=settings))

    def configure_group(
        self,
        topic: str,
        group: str,
        *,
        mode: GroupMode | None = None,
        retry: RetryPolicy | None = None,
        at_most_once: bool | None = None,
        partitions: Sequence[int] | None = None,
        drop_aside: bool = False,
        spread: Spread | None = None,
    ) -> list[OperatedPartition]:
        """Change the settings of a consumer group. What is None stays as it is."""
        return self._thread.run(
            self._inner.configure_group(
                topic, group, mode=mode, retry=retry, at_most_once=at_most_once, partitions=partitions,
                drop_aside=drop_aside, spread=spread,
            )
        )  # fmt: skip

    def group_keys(
        self,
        topic: str,
        group: str,
        *,
        partition: int | None = None,
        states: Sequence[KeyState] | None = None,
        key: bytes | None = None,
    ) -> Iterator[GroupKey]:
        """The keys of a consumer group that wait, by partition and name."""
        found = self._inner.group_keys(topic, group, partition=partition, states=states, key=key)

        async def next_one() -> GroupKey | None:
            return await anext(found, None)

        while (waiting := self._thread.run(next_one())) is not None:
            yield waiting

    def release_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        """Let keys go on: their first messages are delivered again, with all their attempts."""
        return self._thread.run(self._inner.release_keys(topic, group, keys))

    def skip_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        """Pass over the first message of each key."""
        return self._thread.run(self._inner.skip_keys(topic, group, keys))

    def dead_letter_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        """Send the first message of each key to the group's dead-letter topic."""
        return self._thread.run(self._inner.dead_letter_keys(topic, group, keys))

    def dead_letters(
        self,
        topic: str,
        group: str | None = None,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        after: int | None = None,
    ) -> Iterator[DeadLetter]:
        """The dead letters of a dead-letter topic that were neither replayed nor dropped."""
        found = self._inner.dead_letters(topic, group, partition=partition, key=key, after=after)

        async def next_one() -> DeadLetter | None:
            return await anext(found, None)

        while (letter := self._thread.run(next_one())) is not None:
            yield letter

    def replay_dead_letters(
        self, topic: str, letters: Sequence[DeadLetter], *, into_new_topic: bool = False
    ) -> list[ReplayedDeadLetter]:
        """Copy dead letters to the ends of the partitions from which they came, for their consumer groups only."""
        return self._thread.run(self._inner.replay_dead_letters(topic, letters, into_new_topic=into_new_topic))

    def drop_dead_letters(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        """Say that dead letters are done with."""
        self._thread.run(self._inner.drop_dead_letters(topic, letters))

    def delete_group(self, topic: str, group: str) -> None:
        """Delete the cursors of a consumer group."""
        self._thread.run(self._inner.delete_group(topic, group))

    def balance(self, *, run: bool = False) -> Balance:
        """The load of each master, and the open segments that should move. With `run`, the moves begin."""
        return self._thread.run(self._inner.balance(run=run))

    def describe_cluster(self) -> Cluster:
        """The cluster's brokers, and which of them is the controller."""
        return self._thread.run(self._inner.describe_cluster())

    def switch_partition(self, partition_id: int, group: str | None = None, master: str | None = None) -> Route:
        """Do a planned switch, to the next broker group of the send chain or to a chosen one."""
        return self._thread.run(self._inner.switch_partition(partition_id, group, master))

    def declare_dead(
        self, broker: str, run: int, issuer: str, *, incarnation: str | None = None, evidence: str = ""
    ) -> None:
        """Write a death certificate: a member run of a broker has ended and will never send anything again."""
        self._thread.run(self._inner.declare_dead(broker, run, issuer, incarnation=incarnation, evidence=evidence))

    def list_broker_groups(self, *, with_counts: bool = False) -> list[BrokerGroup]:
        """All broker groups, sorted by name."""
        return self._thread.run(self._inner.list_broker_groups(with_counts=with_counts))

    def set_broker_group(self, name: str, intent: Intent | None = None, *, weight: float | None = None) -> BrokerGroup:
        """Set the intent or the weight of a broker group, and return at once."""
        return self._thread.run(self._inner.set_broker_group(name, intent, weight=weight))

    def remove_broker_group(self, name: str) -> None:
        """Remove a drained broker group whose brokers have ended."""
        self._thread.run(self._inner.remove_broker_group(name))

    def remove_member(self, broker: str) -> None:
        """Remove a broker that has a death certificate and whose disk no segment needs."""
        self._thread.run(self._inner.remove_member(broker))

    def check_restart(self, broker: str) -> RestartCheck:
        """Ask the other brokers whether this one may be stopped without leaving anything on one disk only."""
        return self._thread.run(self._inner.check_restart(broker))

    def scrub(self, broker: str) -> Iterator[ScrubProgress]:
        """Have a broker read everything on its disk: one part with each step of the iteration."""
        steps = self._inner.scrub(broker)

        async def next_one() -> ScrubProgress | None:
            return await anext(steps, None)

        while (progress := self._thread.run(next_one())) is not None:
            yield progress

    def read_quarantined(self, broker: str) -> Iterator[QuarantinedMessage]:
        """Read the messages that a broker keeps in quarantined segments, above the lengths that the chain decided."""
        messages = self._inner.read_quarantined(broker)

        async def next_one() -> QuarantinedMessage | None:
            return await anext(messages, None)

        while (message := self._thread.run(next_one())) is not None:
            yield message

    def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        """Declare that all disks of a segment are lost for good. Readers go on behind it without its messages."""
        self._thread.run(self._inner.declare_gap(topic, partition, segment, issuer))


class Writer(_Held[_writer.Writer]):
    """See `seriatim.Writer`."""

    @property
    def epoch(self) -> int:
        """The epoch that `open` gave; 0: not opened."""
        return self._inner.epoch

    def open(self, timeout_s: float = _writer.OPEN_TIMEOUT_S) -> int | None:
        """Take the writer over, and return the sequence that was decided last."""
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
        """Send rows to the brokers, where they wait for `publish` for at most 24 hours."""
        return self._thread.run(self._inner.stage(values, keys, partition, timestamps_ms, headers, tags))

    def stage_table(
        self,
        table: Any,
        partition: int | Sequence[int] | Callable[[int], int] | None = None,
        key_column: str = "key",
    ) -> Chunk:
        """Stage the rows of an Arrow table."""
        return self._thread.run(self._inner.stage_table(table, partition, key_column))

    def publish(
        self,
        sequence: int,
        chunks: Sequence[Chunk],
        *,
        ephemeral: bool = False,
        timeout_s: float = _writer.PUBLISH_TIMEOUT_S,
    ) -> Published:
        """Have all rows of these chunks appended, or none. The call returns when all of them are committed."""
        return self._thread.run(self._inner.publish(sequence, chunks, ephemeral=ephemeral, timeout_s=timeout_s))

    def close(self) -> None:
        """Take no more calls. The brokers finish a publication that is decided."""
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
    def connect(
        cls,
        bootstrap: str | Sequence[str],
        *,
        name: str | None = None,
        tls: Tls | None = None,
        recorder: HistoryWriter | MemoryHistory | None = None,
        message_id: MessageIdOf | None = None,
    ) -> Self:
        """A client with its thread. `with` closes it at the end of the block, or call `close`.

        See `seriatim.Client.connect`.
        """
        opening = asynchronous.Client.connect(bootstrap, name=name, tls=tls, recorder=recorder, message_id=message_id)

        async def begin() -> asynchronous.Client:
            return await opening

        thread = _LoopThread()
        try:
            return cls(thread, thread.run(begin()))
        except BaseException:
            thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    def close(self, *, flush: bool = True) -> None:
        """Close all that the program opened with this client and did not close, and end its thread.

        A second call does nothing. So does a call in a process that was forked: the client belongs to the other one.
        See `seriatim.Client.close`.
        """
        if not self._thread.is_here():
            return
        try:
            self._thread.run(self._inner.close(flush=flush))
        finally:
            self._thread.close()

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
        """A writer of a topic. It publishes sets of rows whole."""
        opening = self._inner.writer(
            topic, name, epoch=epoch, owner=owner, compression=compression, partitioner=partitioner
        )

        async def begin() -> _writer.Writer:
            return await opening

        return Writer(self._thread, self._thread.run(begin()))

    @overload
    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Literal["exclusive", "broadcast"] = "exclusive",
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Literal["key_ordered", "shared"],
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> KeyedConsumer: ...

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: asynchronous.Mode = "exclusive",
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer | KeyedConsumer:
        """A consumer of a topic. The callbacks run in the client's thread and must not call this client."""
        opening: Any = self._inner.consumer(
            topic, group, mode=mode, partitions=partitions, name=name, on_gap=on_gap, on_assignment=on_assignment,
            on_group_change=on_group_change, **options,
        )  # fmt: skip

        async def begin() -> Any:
            return await opening

        begun = self._thread.run(begin())
        if isinstance(begun, _consumer.Consumer):
            return Consumer(self._thread, begun)
        return KeyedConsumer(self._thread, begun)

    def offsets(
        self,
        topic: str,
        at: At = "end",
        *,
        partitions: Sequence[int] | None = None,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> tuple[PartitionOffset, ...]:
        """Ask for a place in partitions of a topic: their beginning, their end, or the place of a time."""
        asked = self._inner.offsets(topic, at, partitions=partitions, incarnation=incarnation, timeout_s=timeout_s)
        return self._thread.run(asked)

    def retained(
        self, topic: str, *, incarnation: str = "", timeout_s: float = QUESTION_DEADLINE_S
    ) -> tuple[RetainedRange, ...]:
        """Ask which messages of each partition of a topic are kept."""
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
        """Divide [start, end) of a partition into pieces that can be read separately, and name the messages gone."""
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
        credit_bytes: int | None = None,
        read_timeout_s: float = 30.0,
    ) -> RangeReader:
        """A reader of [start, end) of a partition. `on_loss` runs in the client's thread and must not call it."""
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
        """Report how far a program that reads ranges has read, under the name of an external group."""
        self._thread.run(
            self._inner.report_progress(topic, group, offsets, incarnation=incarnation, timeout_s=timeout_s)
        )

    def admin(self) -> Admin:
        """Administration of the cluster."""
        return Admin(self._thread, self._inner.admin())
