"""The consumer as users see it. `_consuming` has how deliveries come and how acknowledgements go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Literal

from seriatim_api.errors import (
    BadRequestError,
    ClientFailureError,
    PartitionOutOfRangeError,
    PreconditionError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.v1 import common_pb2, records_pb2

from seriatim._alarms import Alarms
from seriatim._arguments import check_number, check_whole
from seriatim._consuming.inbox import FetchedTable, Inbox
from seriatim._consuming.servers import Servers
from seriatim._consuming.streams import Streams
from seriatim._consuming.subscription import Shared, Subscription
from seriatim._consuming.unserved import UnservedWatch
from seriatim._core.consumer_types import ConsumerConfig
from seriatim._failure import Failure, attempt
from seriatim._growth import Growth
from seriatim._recording import Recorder
from seriatim._records import Assignment, Gap, GroupChange, Message, Topic
from seriatim._settings import ConsumerSettings, Start, Target
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller

_FAILED_MEANS: Final = (
    "It acknowledges nothing more: messages that it did not acknowledge are delivered again, to another consumer of "
    "the group or to a new one."
)


MODES: Final = {
    "exclusive": records_pb2.CONSUMER_MODE_EXCLUSIVE,
    "broadcast": records_pb2.CONSUMER_MODE_BROADCAST,
}


def start_of(settings: ConsumerSettings, mode: str) -> Target:
    """Where a consumer group without a cursor begins: in broadcast mode at the end, if nothing else was said."""
    if settings.start is not None:
        return settings.start
    return "latest" if mode == "broadcast" else "earliest"


class Consumer:
    """Reads a topic in a consumer group, in exclusive or broadcast mode. Get one from `Client.consumer`.

    In broadcast mode each consumer gets all messages, and its acknowledgements count for itself alone. What follows is
    about exclusive mode.

    The brokers deliver each partition to one consumer of the consumer group at a time, in its order. The others are
    standbys there. If the consumers read all partitions of the topic, the partitions are spread over them evenly. If a
    consumer comes or goes, some partitions move to another consumer, each when all that was delivered is acknowledged.

    If a consumer dies, a standby takes over where the acknowledgements ended: messages that were delivered and not
    acknowledged then come again.

    When the topic is deleted, the consumer ends: the next call raises `UnknownTopicError`, also if a new topic gets the
    same name. Make a new consumer to read the new topic. It has other messages, and the consumer group has other
    cursors there.
    """

    def __init__(
        self,
        topic: Topic,
        group: str,
        name: str,
        partitions: Sequence[int] | None,
        settings: ConsumerSettings,
        channels: Channels,
        caller: Caller,
        client_name: str,
        recorder: Recorder | None,
        on_gap: Callable[[Gap], None] | None,
        on_assignment: Callable[[Assignment], None] | None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        mode: Literal["exclusive", "broadcast"] = "exclusive",
    ) -> None:
        self.topic = topic.name
        self.group = group
        self.name = name
        self.mode = mode
        # In broadcast mode each consumer has a position of its own, and is alone there.
        of = f"{group}/{name}" if mode == "broadcast" else group
        self.settings = settings
        self._recorder = recorder
        numbers = wanted_numbers(topic, partitions)
        self._inbox = Inbox(topic.name, None if recorder is None else self._record)
        what = f"the consumer {name} of group {group} on topic {topic.name}"
        self._growth: Growth | None = None  # a failure may end the consumer before it has one
        self._unserved: UnservedWatch | None = None
        self._failure = Failure(what, _FAILED_MEANS, self._break_off)
        failed = self._failure.happened
        self._servers = Servers(caller, of, self._end, failed, MODES[mode])
        self._streams = Streams(channels, self._servers, client_name, settings.credit, settings.session_ms, failed)
        self._alarms: Alarms[Subscription] = Alarms(Subscription.timer_due, failed)
        self._check_home = channels.home.check
        self._closed = False
        self._left = asyncio.Event()
        self._shared = Shared(
            topic=topic.name,
            group=of,
            name=name,
            mode=MODES[mode],
            fail=self._inbox.fail,
            end=self._end,
            streams=self._streams,
            servers=self._servers,
            alarms=self._alarms,
            recorder=recorder,
            on_gap=on_gap,
            on_assignment=on_assignment,
            on_group_change=on_group_change,
            failure=self._failure,
        )
        self._subscriptions: dict[int, Subscription] = {}
        self._reads_all = mode == "exclusive" and len(numbers) == topic.partition_count
        for number in numbers:
            # For an offset or a time, `Client.consumer` has made the consumer group there just before.
            start: Start = "latest" if start_of(settings, mode) == "latest" else "earliest"
            self._subscribe(number, topic, start)
        self._follows_growth = partitions is None
        self._growth = Growth(caller, topic, self._grow, failed, self._look_found_gone)
        self._unserved = UnservedWatch(caller, topic.name, of, self._subscriptions, self._inbox.interrupt, failed)

    def expect_servers(self, addresses: Iterable[str]) -> None:
        """Brokers at these addresses are probably servers of this consumer; see `Streams.expect`. `Client` calls it."""
        self._streams.expect(filter(None, addresses))

    def _subscribe(self, number: int, topic: Topic, start: Start) -> None:
        config = ConsumerConfig(ack_interval_ms=self.settings.ack_interval_ms, session_ms=self.settings.session_ms)
        over = topic.partition_count if self._reads_all else 0
        subscription = Subscription(self._shared, self._inbox, number, topic.partition_ids[number], start, config, over)
        self._subscriptions[number] = subscription
        self._streams.register(subscription)
        subscription.start()

    def _look_found_gone(self, made_again: bool) -> None:
        self._stop_asking()
        self._inbox.fail(deleted_error(self.topic, made_again=made_again))

    def _stop_asking(self) -> None:
        self._servers.stop()
        if self._unserved is not None:
            self._unserved.stop()

    def _end(self, error: SeriatimError) -> None:
        """A partition cannot be read any more: the next call raises `error`, and no broker is asked again."""
        self._stop_asking()
        self._inbox.fail(deleted_error(self.topic) if isinstance(error, UnknownTopicError) else error)

    def _grow(self, topic: Topic, _routes: Sequence[common_pb2.Route]) -> None:
        """Read the added partitions from their beginning: all messages in them are younger than this consumer."""
        if not self._follows_growth:
            return
        before = list(self._subscriptions.values())
        for number in range(len(self._subscriptions), topic.partition_count):
            self._subscribe(number, topic, "earliest")
        for subscription in before if self._reads_all else ():
            subscription.grown(topic.partition_count)

    @property
    def paused(self) -> tuple[int, ...]:
        """Partitions on which the consumer group is paused. Nothing is delivered there until it is resumed."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.core.paused)

    @property
    def unserved(self) -> tuple[int, ...]:
        """Partitions of which this consumer was served nothing for 10 s or more, though messages wait for it there.

        The log says what the consumer waits for. A program may show the number as a metric.
        """
        return self._unserved.unserved if self._unserved is not None else ()

    # ---- reading -------------------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[int, ...]:
        """Partitions that are delivered to this consumer now."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.is_active)

    @property
    def yielding(self) -> tuple[int, ...]:
        """Partitions that this consumer reads, and that another one of the group is to read.

        It gets nothing more of them. When the program has acknowledged all that it was given of a partition, the other
        consumer goes on there. If that takes longer than 10 s, this one goes on, and is asked again later.
        """
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.core.yielding)

    @property
    def joined(self) -> tuple[int, ...]:
        """Partitions whose server knows this consumer, as the active one or as a standby."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.is_joined)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages, one at a time, until the consumer is closed. Then the iteration ends.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer goes on trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
        """
        self._check_home()
        take_open = self._inbox.take_open if self._recorder is None else _nothing
        while True:
            message = take_open()
            if message is None:
                try:
                    (message,) = await self._fetch(1, None)
                except PreconditionError:
                    if self._inbox.is_closed:
                        return
                    raise
            yield message

    async def fetch(self, max_messages: int = 500, timeout_s: float = 1.0) -> list[Message]:
        """Wait until there is a message, and return all that have arrived: a long poll.

        Args:
            max_messages: The most messages to return, at least 1.
            timeout_s: Seconds to wait for the first message. Then the call returns an empty list. 0: do not wait.

        Raises:
            BadRequestError: An argument is beyond its limits.
            SeriatimError: A partition cannot be read any more; the error says why. Each later call raises it too.
                Messages that were returned before can still be acknowledged.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer goes on trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            PreconditionError: The consumer is closed.

        If the call is cancelled, no message is lost: the next call returns them.
        """
        self._check_home()
        check_whole("max_messages", max_messages, 1)
        check_number("timeout_s", timeout_s, 0, "seconds")
        return await self._fetch(max_messages, _deadline(timeout_s))

    async def _fetch(self, max_messages: int, deadline: float | None) -> list[Message]:
        # An unexpected exception ends the consumer. Without that: 1. `_fetch` takes messages off the inbox. 2. It
        # raises, so the application never gets them. 3. The application acknowledges a later message, and with it
        # these.
        try:
            first = await self._inbox.next(deadline)
            if first is None:
                return []
            messages = [first]
            self._inbox.take_more(messages, max_messages)
            if self._recorder is not None:
                self._record(messages)
        except SeriatimError:
            raise
        except Exception as exc:
            self._failure.raise_for(exc)
        return messages

    async def fetch_table(self, timeout_s: float = 1.0) -> FetchedTable | None:
        """Wait for a batch, and return it as an Arrow table. Its values are views of the received bytes, not copies.

        Before a program changes to this form of reading, it uses up all messages that the other forms returned.

        Args:
            timeout_s: Seconds to wait. Then the call returns None. 0: do not wait.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why. Each later call raises it too.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer goes on trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            PreconditionError: The consumer is closed.

        If the call is cancelled, no batch is lost.
        """
        self._check_home()
        check_number("timeout_s", timeout_s, 0, "seconds")
        try:
            return await self._inbox.next_table(_deadline(timeout_s))
        except SeriatimError:
            raise
        except Exception as exc:
            self._failure.raise_for(exc)

    def _record(self, messages: Sequence[Message]) -> None:
        assert self._recorder is not None
        self._recorder.deliveries(messages, self._shared.group, self.name)

    # ---- acknowledging -------------------------------------------------------------------------------

    async def ack(self, message: Message | FetchedTable | int, partition: int | None = None) -> bool:
        """Acknowledge a message and all messages before it in its partition. With a table: all its rows.

        The consumer sends the acknowledgement within `ack_interval_ms`. The call does not wait for the broker. In an
        at-most-once group nothing needs to be acknowledged.

        Args:
            message: The message or table that was delivered, or an offset (then `partition` is required).
            partition: The partition's number; only with an offset.

        Returns:
            False if, since the delivery, another consumer has taken the partition over or the consumer group was
            moved. Then the acknowledgement does not count, and the message comes again, here or elsewhere.

        Raises:
            BadRequestError: The offset was not delivered to this consumer, or comes without a known partition. Or
                `message` is none of the three.
            ClientFailureError: The consumer has ended because its own code failed.
        """
        self._check_home()
        if isinstance(message, int):
            if partition is None or partition not in self._subscriptions:
                raise BadRequestError("to acknowledge an offset, name a partition that this consumer reads")
            subscription = self._subscriptions[partition]
            return subscription.acknowledge(subscription.core.grant, message)
        if not isinstance(message, Message | FetchedTable):
            raise BadRequestError(f"acknowledge a message or a table of this consumer, or an offset, not {message!r}")
        offset = message.offset
        if isinstance(message, FetchedTable):
            offset += message.table.num_rows - 1
        return self._subscriptions[message.partition].acknowledge(message.grant, offset)

    async def ack_all(self) -> None:
        """Acknowledge all messages that this consumer has given to the application so far."""
        self._check_home()
        for subscription in self._subscriptions.values():
            subscription.acknowledge_taken()

    # ---- ending --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send the last acknowledgements and leave. A standby takes over at once.

        Iterations end then, without an error; other calls raise `PreconditionError`. A second call waits until the
        first one has ended.

        If the call is cancelled, the consumer has left, perhaps without its last acknowledgements. The messages without
        an acknowledgement then come again.
        """
        self._check_home()
        if self._closed:
            await self._left.wait()  # or the block of the client could end before the last acknowledgements are sent
            return
        self._closed = True
        try:
            await self._leave()
        finally:
            self._left.set()

    async def _leave(self) -> None:
        self._inbox.close()
        for subscription in self._subscriptions.values():
            subscription.leave()
        self._alarms.cancel()
        self._servers.stop()
        for watch in (self._growth, self._unserved):
            if watch is not None:
                watch.stop()
        try:
            await self._streams.close()
        finally:
            self._streams.stop()
        await self._servers.close()
        for watch in (self._growth, self._unserved):
            if watch is not None:
                await watch.close()

    def _break_off(self, error: ClientFailureError) -> None:
        """The consumer's own code failed: each call of the application raises, and it leaves the brokers at once."""
        attempt(self._inbox.fail, error)
        attempt(self._alarms.cancel)
        attempt(self._servers.stop)
        attempt(self._streams.stop)
        for watch in (self._growth, self._unserved):
            if watch is not None:
                attempt(watch.stop)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _nothing() -> None:
    return None


def deleted_error(topic: str, *, made_again: bool = False) -> UnknownTopicError:
    """The error with which the consumer of a deleted topic ends. It does not go on in a new topic of the same name.

    The new topic has other messages and other partitions, and the consumer group has other cursors there. Only the
    application can say whether the new messages belong behind those that it has read.
    """
    again = " and made again; this consumer belongs to the deleted one" if made_again else ""
    remedy = "make a new consumer" if made_again else "if it is made again, make a new consumer"
    return UnknownTopicError(
        f"topic {topic!r} was deleted{again}: what was not read is gone with it; {remedy} to read the new topic",
        topic=topic,
    )


def _deadline(timeout_s: float) -> float:
    return asyncio.get_running_loop().time() + timeout_s


def wanted_numbers(topic: Topic, partitions: Sequence[int] | None) -> Sequence[int]:
    """The numbers of the partitions to read, each once."""
    numbers = range(topic.partition_count) if partitions is None else list(dict.fromkeys(partitions))
    for number in numbers:
        if not 0 <= number < topic.partition_count:
            raise PartitionOutOfRangeError(f"{topic.name} has partitions 0 to {topic.partition_count - 1}")
    return numbers
