"""What consumers of all modes share: how they begin, follow their topic, end, and leave."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from seriatim_api.errors import ClientFailureError, PartitionOutOfRangeError, SeriatimError, UnknownTopicError
from seriatim_api.v1 import common_pb2

from seriatim._consuming.servers import Servers
from seriatim._consuming.streams import Streams
from seriatim._consuming.subscription import Shared, Subscribed
from seriatim._consuming.unserved import UnservedWatch
from seriatim._core.consumer_types import ConsumerConfig
from seriatim._recorder import Recorder
from seriatim._runtime.alarms import Alarms
from seriatim._runtime.closing import Closing
from seriatim._runtime.failure import Failure, attempt
from seriatim._runtime.watch import Watch
from seriatim._topic_changes import TopicChanges
from seriatim._transport.carriages import Carriages
from seriatim._transport.unary import Caller
from seriatim._values.consumer_group_settings import MODES
from seriatim._values.records import Assignment, Gap, GroupChange, Topic
from seriatim._values.settings import ConsumerSettings, Start, Target

S = TypeVar("S", bound=Subscribed)


class Waiting(Protocol):
    """What waits in a consumer for the application."""

    def fail(self, error: SeriatimError) -> None:
        """Have each later call of the application raise an error."""

    def interrupt(self, error: SeriatimError | None) -> None:
        """Have one call of the application raise an error, if it would wait. The next one waits again."""


class ConsumerBase(Closing, Generic[S]):
    """A consumer of one topic in one consumer group. How messages are given to the application is up to the mode."""

    _FAILED_MEANS: ClassVar[str]

    def __init__(
        self,
        topic: Topic,
        group: str,
        name: str,
        partitions: Sequence[int] | None,
        settings: ConsumerSettings,
        carriages: Carriages,
        caller: Caller,
        client_name: str,
        recorder: Recorder | None,
        on_gap: Callable[[Gap], None] | None,
        on_assignment: Callable[[Assignment], None] | None,
        on_group_change: Callable[[GroupChange], None] | None,
        mode: Literal["exclusive", "key_ordered", "shared", "broadcast"],
    ) -> None:
        self.topic = topic.name
        self.group = group
        self.name = name
        self.mode = mode
        self.settings = settings
        self.check_home = carriages.channels.home.check
        # In broadcast mode each consumer has a position of its own, and is alone there.
        of = f"{group}/{name}" if mode == "broadcast" else group
        self._recorder = recorder
        self._closed = False
        self._left = asyncio.Event()
        self._follows_growth = partitions is None
        self._subscriptions: dict[int, S] = {}
        numbers = wanted_numbers(topic, partitions)
        self._waiting = self._open(topic, numbers)
        self._topic_changes: TopicChanges | None = None  # a failure may end the consumer before it has one
        self._unserved: UnservedWatch | None = None
        what = f"the consumer {name} of group {group} on topic {topic.name}"
        failure = self._failure = Failure(what, self._FAILED_MEANS, self._break_off)
        self._servers = Servers(caller, of, self._end, failure.happened, MODES[mode])
        self._streams = Streams(
            carriages, self._servers, client_name, settings.credit, settings.session_ms, failure.happened
        )
        self._alarms: Alarms[Subscribed] = Alarms(Subscribed.timer_due, failure.happened)
        self._shared = Shared(
            topic=topic.name,
            group=of,
            name=name,
            mode=MODES[mode],
            fail=self._waiting.fail,
            end=self._end,
            streams=self._streams,
            servers=self._servers,
            alarms=self._alarms,
            recorder=recorder,
            on_gap=on_gap,
            on_assignment=on_assignment,
            on_group_change=on_group_change,
            failure=failure,
        )
        # For an offset or a time, `Client.consumer` has made the consumer group there just before.
        start: Start = "latest" if _start_of(settings, mode) == "latest" else "earliest"
        for number in numbers:
            self._subscribe(number, topic, start)
        self._topic_changes = TopicChanges(caller, topic, self._grow, failure.happened, self._look_found_gone)
        self._unserved = UnservedWatch(
            caller, topic.name, of, self._subscriptions, self._waiting.interrupt, failure.happened
        )

    @abstractmethod
    def _open(self, topic: Topic, numbers: Sequence[int]) -> Waiting:
        """Make what the mode has of its own, before the partitions with these numbers are subscribed to."""

    @abstractmethod
    def _subscription(self, number: int, topic: Topic, start: Start, config: ConsumerConfig) -> S:
        """The subscription of a partition, not started yet."""

    def expect_servers(self, addresses: Iterable[str]) -> None:
        """Brokers at these addresses are probably servers of this consumer; see `Streams.expect`. `Client` calls it."""
        self._streams.expect(filter(None, addresses))

    def _subscribe(self, number: int, topic: Topic, start: Start) -> S:
        config = ConsumerConfig(ack_interval_ms=self.settings.ack_interval_ms, session_ms=self.settings.session_ms)
        subscription = self._subscriptions[number] = self._subscription(number, topic, start, config)
        self._streams.register(subscription)
        subscription.start()
        return subscription

    def _look_found_gone(self, made_again: bool) -> None:
        self._stop_asking()
        self._waiting.fail(_deleted_error(self.topic, made_again=made_again))

    def _stop_asking(self) -> None:
        self._servers.stop()
        if self._unserved is not None:
            self._unserved.stop()

    def _end(self, error: SeriatimError) -> None:
        """A partition cannot be read any more: the next call raises `error`, and no broker is asked again."""
        self._stop_asking()
        self._waiting.fail(_deleted_error(self.topic) if isinstance(error, UnknownTopicError) else error)

    def _grow(self, topic: Topic, _routes: Sequence[common_pb2.Route]) -> None:
        """Read the added partitions from their beginning: all messages in them are younger than this consumer."""
        if self._follows_growth:
            for number in range(len(self._subscriptions), topic.partition_count):
                self._subscribe(number, topic, "earliest")

    @property
    def unserved(self) -> tuple[int, ...]:
        """Partitions of which this consumer was served nothing for 10 s or more, though messages wait for it there.

        The log says what the consumer waits for. A program may show the number as a metric.
        """
        return self._unserved.unserved if self._unserved is not None else ()

    @property
    def _watches(self) -> list[Watch]:
        return [watch for watch in (self._topic_changes, self._unserved) if watch is not None]

    # ---- ending --------------------------------------------------------------------------------------

    async def _close(self, end: Callable[[], Awaitable[None]], *, waits: bool = True) -> None:
        """Close the consumer, or wait until another call has closed it.

        Args:
            end: Ends what the application does with the consumer.
            waits: Whether to wait for the other call.
        """
        self.check_home()
        if self._closed:
            # Without the wait: 1. A signal closes the consumer. 2. `run` ends, and with it the block of the client.
            # 3. The connection is closed before the last acknowledgements are sent.
            if waits:
                await self._left.wait()
            return
        self._closed = True
        try:
            await self._leave(end)
        finally:
            self._left.set()

    async def _leave(self, end: Callable[[], Awaitable[None]]) -> None:
        try:
            try:
                await end()
            finally:
                for subscription in self._subscriptions.values():
                    subscription.leave()
                self._alarms.cancel()
                self._servers.stop()
                for watch in self._watches:
                    watch.stop()
            await self._streams.close()
        finally:
            self._streams.stop()
        await self._servers.close()
        for watch in self._watches:
            await watch.close()

    def _break_off(self, error: ClientFailureError) -> None:
        """The consumer's own code failed: each call of the application raises, and it leaves the brokers at once."""
        attempt(self._waiting.fail, error)
        attempt(self._alarms.cancel)
        attempt(self._servers.stop)
        attempt(self._streams.stop)
        for watch in self._watches:
            attempt(watch.stop)


def wanted_numbers(topic: Topic, partitions: Sequence[int] | None) -> Sequence[int]:
    """The numbers of the partitions to read, each once."""
    numbers = range(topic.partition_count) if partitions is None else list(dict.fromkeys(partitions))
    for number in numbers:
        if not 0 <= number < topic.partition_count:
            raise PartitionOutOfRangeError(f"{topic.name} has partitions 0 to {topic.partition_count - 1}")
    return numbers


def _start_of(settings: ConsumerSettings, mode: str) -> Target:
    """Where a consumer group without a cursor begins: in broadcast mode at the end, if nothing else was said."""
    if settings.start is not None:
        return settings.start
    return "latest" if mode == "broadcast" else "earliest"


def _deleted_error(topic: str, *, made_again: bool = False) -> UnknownTopicError:
    """The error with which the consumer of a deleted topic ends. It does not continue in a new topic of the same name.

    The new topic has other messages and other partitions, and the consumer group has other cursors there. Only the
    application can say whether the new messages belong after those that it has read.
    """
    again = " and made again; this consumer belongs to the deleted one" if made_again else ""
    remedy = "make a new consumer" if made_again else "if it is made again, make a new consumer"
    return UnknownTopicError(
        f"topic {topic!r} was deleted{again}: what was not read is gone with it; {remedy} to read the new topic",
        topic=topic,
    )
