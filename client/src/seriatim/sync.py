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

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from seriatim_api.errors import BadRequestError

import seriatim._client as asynchronous
from seriatim._admin import admin
from seriatim._consuming import consumer, handlers, keyed_consumer
from seriatim._loop_thread import Closed, Held, LoopThread, calls, gives, iterates, waits
from seriatim._producing import deliveries, producer
from seriatim._publishing import writer
from seriatim._ranges import reader
from seriatim._ranges.reader import RangeTable
from seriatim._recorder import MessageIdOf
from seriatim._values.records import Assignment, Gap, GroupChange, Message, Part, Receipt
from seriatim._values.settings import ConsumerOptions
from seriatim._values.tls import Tls

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


class Delivery(Held[deliveries.Delivery]):
    """The delivery of one message: call `result` for its receipt."""

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._inner.done

    @property
    def outcome(self) -> str | None:
        """`ok`, `failed` or `unknown`; None until the message is settled."""
        return self._inner.outcome

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt.

        Args:
            timeout_s: Seconds to wait; None: until the message is settled.

        Raises:
            SendFailedError: The message is provably not stored, and is never delivered.
            SendUnknownError: The message may be stored or not.
            TimeoutError: The message is not settled within `timeout_s`. Call again to wait further.
        """
        return self._thread.run_within(timeout_s, self._inner)


class Deliveries(Held[deliveries.Deliveries]):
    """The deliveries of one `send_many` or `send_table`."""

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._inner.done

    def settled(self, timeout_s: float | None = None) -> tuple[Part, ...]:
        """Wait until all messages are settled. It never raises because of an outcome.

        Raises:
            TimeoutError: A message is not settled within `timeout_s` seconds. Call again to wait further.
        """
        return self._thread.run_within(timeout_s, self._inner.settled())

    def result(self, timeout_s: float | None = None) -> tuple[Part, ...]:
        """Wait until all messages are settled.

        Raises:
            SendUnknownError: A message may be stored or not.
            SendFailedError: A message is provably not stored. Raised if no outcome is unknown.
            TimeoutError: A message is not settled within `timeout_s` seconds. Call again to wait further.
        """
        return self._thread.run_within(timeout_s, self._inner)


class Producer(Held[producer.Producer]):
    """See `seriatim.Producer`. If a KeyboardInterrupt ends `send`, the message may have been taken."""

    send = gives(Delivery, producer.Producer.send)
    send_many = gives(Deliveries, producer.Producer.send_many)
    send_table = gives(Deliveries, producer.Producer.send_table)
    flush = waits(producer.Producer.flush)
    close = waits(producer.Producer.close)

    @property
    def epoch(self) -> int:
        """See `seriatim.Producer.epoch`."""
        return self._inner.epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else 0)


class Consumer(Closed[consumer.Consumer]):
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

    __iter__ = iterates(consumer.Consumer.__aiter__)
    fetch = waits(consumer.Consumer.fetch)
    fetch_table = waits(consumer.Consumer.fetch_table)
    ack = waits(consumer.Consumer.ack)
    ack_all = waits(consumer.Consumer.ack_all)
    close = waits(consumer.Consumer.close)


class KeyedMessage(Held[keyed_consumer.KeyedMessage]):
    """A message that is being worked on: `with keyed_message as message`. See `seriatim.KeyedMessage`."""

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

    ack = calls(keyed_consumer.KeyedMessage.ack)
    nack = calls(keyed_consumer.KeyedMessage.nack)
    extend = calls(keyed_consumer.KeyedMessage.extend)

    def __enter__(self) -> Message:
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._inner.leave, error)


class KeyedBatch(Held[keyed_consumer.KeyedBatch]):
    """Messages of many keys that came together. See `seriatim.KeyedBatch`."""

    def __init__(self, thread: LoopThread, inner: keyed_consumer.KeyedBatch) -> None:
        super().__init__(thread, inner)
        self.topic = inner.topic
        self.partition = inner.partition

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each message."""
        return self._inner.offsets

    @property
    def messages(self) -> Sequence[Message]:
        """The messages."""
        return self._thread.call(lambda: self._inner.messages)

    @property
    def table(self) -> pa.Table:
        """The messages as the columns key, value, timestamp, headers and tag."""
        return self._thread.call(lambda: self._inner.table)

    fail = calls(keyed_consumer.KeyedBatch.fail)


class KeyedConsumer(Closed[keyed_consumer.KeyedConsumer]):
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
        that run continue to their ends in their threads, and their messages come again.

        Raises:
            BadRequestError: The handler is a coroutine function: use the asynchronous client. Or an argument is beyond
                its limits.
        """
        _check_plain(handler)
        self._thread.run(self._inner.run(handler, concurrency, timeout_s=timeout_s, pool=pool))

    def run_batches(
        self, handler: Callable[[KeyedBatch], object], concurrency: int = 4, *, timeout_s: float | None = None
    ) -> None:
        """Call a handler with batches of messages, until another thread closes the consumer.

        See `seriatim.KeyedConsumer.run_batches`. The handler runs in threads. It may call this client. If it takes
        longer than `timeout_s`, or the call is interrupted, it continues to its end in its thread, and its messages
        come again.

        Raises:
            BadRequestError: The handler is a coroutine function: use the asynchronous client. Or an argument is beyond
                its limits.
        """
        _check_plain(handler)
        handlers.check_handler(handler, None)

        def call(batch: keyed_consumer.KeyedBatch) -> object:
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
        return (KeyedMessage(self._thread, item) for item in self._thread.each(aiter(self._inner)))

    close = waits(keyed_consumer.KeyedConsumer.close)


def _check_plain(handler: Callable[..., object]) -> None:
    if handlers.is_coroutine_function(handler):
        raise BadRequestError("the synchronous client calls plain functions, and this is a coroutine function")


class RangeReader(Closed[reader.RangeReader]):
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
        """The first offset after the range."""
        return self._inner.end

    @property
    def offset(self) -> int:
        """The offset at which the reader continues.

        A loop over the reader takes all messages of a batch at once. So this offset is after the whole batch, also
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

    fetch = waits(reader.RangeReader.fetch)
    fetch_table = waits(reader.RangeReader.fetch_table)
    close = waits(reader.RangeReader.close)

    def tables(self) -> Iterator[RangeTable]:
        """The rows of each batch as an Arrow table."""
        while (table := self.fetch_table()) is not None:
            yield table


class Admin(Held[admin.Admin]):
    """See `seriatim.Admin`."""

    create_topic = waits(admin.Admin.create_topic)
    update_topic = waits(admin.Admin.update_topic)
    delete_topic = waits(admin.Admin.delete_topic)
    list_topics = waits(admin.Admin.list_topics)
    describe_topic = waits(admin.Admin.describe_topic)
    describe_chain = waits(admin.Admin.describe_chain)
    watch_chain = iterates(admin.Admin.watch_chain)

    list_writers = waits(admin.Admin.list_writers)
    describe_writer = waits(admin.Admin.describe_writer)
    delete_writer = waits(admin.Admin.delete_writer)

    list_groups = waits(admin.Admin.list_groups)
    describe_group = waits(admin.Admin.describe_group)
    create_group = waits(admin.Admin.create_group)
    configure_group = waits(admin.Admin.configure_group)
    delete_group = waits(admin.Admin.delete_group)
    plan_move = waits(admin.Admin.plan_move)
    move_group = waits(admin.Admin.move_group)
    rewind_group = waits(admin.Admin.rewind_group)
    skip_group = waits(admin.Admin.skip_group)
    pause_group = waits(admin.Admin.pause_group)
    resume_group = waits(admin.Admin.resume_group)

    group_keys = iterates(admin.Admin.group_keys)
    release_keys = waits(admin.Admin.release_keys)
    skip_keys = waits(admin.Admin.skip_keys)
    dead_letter_keys = waits(admin.Admin.dead_letter_keys)
    dead_letters = iterates(admin.Admin.dead_letters)
    replay_dead_letters = waits(admin.Admin.replay_dead_letters)
    drop_dead_letters = waits(admin.Admin.drop_dead_letters)
    owners = iterates(admin.Admin.owners)
    describe_owner = waits(admin.Admin.describe_owner)
    release_owner = waits(admin.Admin.release_owner)
    delayed = iterates(admin.Admin.delayed)
    delayed_stats = waits(admin.Admin.delayed_stats)

    balance = waits(admin.Admin.balance)
    describe_cluster = waits(admin.Admin.describe_cluster)
    switch_partition = waits(admin.Admin.switch_partition)
    declare_dead = waits(admin.Admin.declare_dead)
    declare_gap = waits(admin.Admin.declare_gap)
    list_broker_groups = waits(admin.Admin.list_broker_groups)
    set_broker_group = waits(admin.Admin.set_broker_group)
    remove_broker_group = waits(admin.Admin.remove_broker_group)
    remove_member = waits(admin.Admin.remove_member)
    check_restart = waits(admin.Admin.check_restart)
    scrub = iterates(admin.Admin.scrub)
    read_quarantined = iterates(admin.Admin.read_quarantined)


class Writer(Closed[writer.Writer]):
    """See `seriatim.Writer`."""

    @property
    def epoch(self) -> int:
        """The epoch that `open` gave; 0: not opened."""
        return self._inner.epoch

    open = waits(writer.Writer.open)
    stage = waits(writer.Writer.stage)
    stage_table = waits(writer.Writer.stage_table)
    publish = waits(writer.Writer.publish)
    close = waits(writer.Writer.close)


class Client(Held[asynchronous.Client]):
    """See `seriatim.Client`. Callbacks, such as `on_gap`, run in the client's thread and must not call the client."""

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
        thread = LoopThread()
        try:
            return cls(thread, thread.run(opening))
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

    producer = gives(Producer, asynchronous.Client.producer)
    writer = gives(Writer, asynchronous.Client.writer)
    read_range = gives(RangeReader, asynchronous.Client.read_range)
    offsets = waits(asynchronous.Client.offsets)
    retained = waits(asynchronous.Client.retained)
    plan_range = waits(asynchronous.Client.plan_range)
    cancel = waits(asynchronous.Client.cancel)
    report_progress = waits(asynchronous.Client.report_progress)

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

    @wraps(asynchronous.Client.consumer)
    def consumer(self, *args: Any, **options: Any) -> Consumer | KeyedConsumer:
        begun: Any = self._thread.run(self._inner.consumer(*args, **options))
        return (Consumer if isinstance(begun, consumer.Consumer) else KeyedConsumer)(self._thread, begun)

    def admin(self) -> Admin:
        """Administration of the cluster."""
        return Admin(self._thread, self._inner.admin())
