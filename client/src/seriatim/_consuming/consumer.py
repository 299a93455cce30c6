"""The consumer as users see it. `_consuming` has how deliveries come and how acknowledgements go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from seriatim_api.errors import BadRequestError, PreconditionError, SeriatimError
from seriatim_api.v1 import common_pb2

from seriatim._consuming.base import ConsumerBase
from seriatim._consuming.inbox import FetchedTable, Inbox
from seriatim._consuming.subscription import Subscription
from seriatim._core.consumer_types import ConsumerConfig
from seriatim._values.arguments import check_number, check_whole
from seriatim._values.records import Message, Topic
from seriatim._values.settings import Start


class Consumer(ConsumerBase[Subscription]):
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

    _FAILED_MEANS = (
        "It acknowledges nothing more: messages that it did not acknowledge are delivered again, to another consumer "
        "of the group or to a new one."
    )

    def _open(self, topic: Topic, numbers: Sequence[int]) -> Inbox:
        self._reads_all = self.mode == "exclusive" and len(numbers) == topic.partition_count
        self._inbox = Inbox(topic.name, None if self._recorder is None else self._record)
        return self._inbox

    def _subscription(self, number: int, topic: Topic, start: Start, config: ConsumerConfig) -> Subscription:
        over = topic.partition_count if self._reads_all else 0
        return Subscription(self._shared, self._inbox, number, topic.partition_ids[number], start, config, over)

    def _grow(self, topic: Topic, routes: Sequence[common_pb2.Route]) -> None:
        before = list(self._subscriptions.values())
        super()._grow(topic, routes)
        for subscription in before if self._follows_growth and self._reads_all else ():
            subscription.grown(topic.partition_count)

    @property
    def paused(self) -> tuple[int, ...]:
        """Partitions on which the consumer group is paused. Nothing is delivered there until it is resumed."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.core.paused)

    # ---- reading -------------------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[int, ...]:
        """Partitions that are delivered to this consumer now."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.is_active)

    @property
    def yielding(self) -> tuple[int, ...]:
        """Partitions that this consumer reads, and that another one of the group is to read.

        It gets nothing more of them. When the program has acknowledged all that it was given of a partition, the other
        consumer continues there. If that takes longer than 10 s, this one continues, and is asked again later.
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
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
        """
        self.check_home()
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
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            PreconditionError: The consumer is closed.

        If the call is cancelled, no message is lost: the next call returns them.
        """
        self.check_home()
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
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            PreconditionError: The consumer is closed.

        If the call is cancelled, no batch is lost.
        """
        self.check_home()
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
        self.check_home()
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
        self.check_home()
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
        await self._close(self._end_calls)

    async def _end_calls(self) -> None:
        self._inbox.close()


def _nothing() -> None:
    return None


def _deadline(timeout_s: float) -> float:
    return asyncio.get_running_loop().time() + timeout_s
