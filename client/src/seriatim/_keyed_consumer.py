"""The consumer of a consumer group in which order is by key, as users see it. `_consuming.keyed` has the grants."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Final

from seriatim_api.errors import (
    BadRequestError,
    ClientFailureError,
    NotActiveError,
    PreconditionError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.v1 import common_pb2, records_pb2

from seriatim._alarms import Alarms
from seriatim._consumer import deleted_error, wanted_numbers
from seriatim._consuming.keyed import Grant, KeyedSubscription, WaitingGrants
from seriatim._consuming.servers import Servers
from seriatim._consuming.streams import Streams
from seriatim._consuming.subscription import Shared, Subscribed
from seriatim._core.consumer_types import ConsumerConfig
from seriatim._failure import Failure, attempt
from seriatim._growth import Growth
from seriatim._recording import Recorder
from seriatim._records import Assignment, Gap, GroupChange, Message, Topic
from seriatim._settings import ConsumerSettings, Start
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller

Handler = Callable[[Message], Awaitable[None]] | Callable[[Message], object]
"""A function that works on one message. It may be a coroutine function or a plain one."""

REASON_BYTES_MAX: Final = 200
CONCURRENCY_MAX: Final = 10_000

_FAILED_MEANS: Final = "It acknowledges nothing more: other consumers of the group get what it did not acknowledge."


class Retry(Exception):  # noqa: N818 - not an error: the handler asks for another attempt
    """Raise it in a handler to choose when the message comes again.

    Args:
        delay_s: Seconds until then; None: as the consumer group's policy says.
        reason: What went wrong, for people.
    """

    def __init__(self, delay_s: float | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_s = delay_s
        self.reason = reason


class GiveUp(Exception):  # noqa: N818 - not an error of the handler's code
    """Raise it in a handler to say that no other attempt can succeed.

    Then the broker does with the message what the consumer group's policy says of exhausted messages.
    """


class KeyedMessage:
    """A message that is being worked on: `async with consumer_message as message`.

    If the block ends, the message is acknowledged. If the block raises, the message comes again later, before all later
    messages of its key, and the exception goes on to the caller.
    """

    def __init__(self, consumer: KeyedConsumer, run: Grant) -> None:
        self._consumer = consumer
        self._run = run
        self.message = run.messages[run.at]

    @property
    def is_current(self) -> bool:
        """Whether an acknowledgement would still count, as far as this consumer knows."""
        return not self._run.is_over

    async def __aenter__(self) -> Message:
        return self.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self._consumer.give_back(self._run, error)
        # Anything else, such as a cancellation or Ctrl-C, says nothing about the message.

    def ack(self) -> bool:
        """Acknowledge the message. Returns False if its grant has ended: then it comes again, here or elsewhere."""
        counts = self._run.acknowledge()
        self._consumer.go_on_with(self._run)
        return counts

    def nack(self, delay_s: float | None = None, reason: str = "", *, is_last: bool = False) -> None:
        """Give the message back. It comes again after a delay, before all later messages of its key.

        Args:
            delay_s: Seconds; None: as the consumer group's policy says.
            reason: What went wrong, for people: at most 200 bytes are kept.
            is_last: No other attempt can succeed.

        Raises:
            BadRequestError: The delay is negative, or longer than 40 days.
        """
        check_delay(delay_s)
        self._run.fail(delay_s, _cut(reason), is_last=is_last)


def check_delay(delay_s: float | None) -> None:
    """Refuse a delay that is negative or too long.

    Raises:
        BadRequestError: It is.
    """
    if delay_s is not None and not 0 <= delay_s <= 40 * 86_400:
        raise BadRequestError(f"a delay is between 0 and 40 days, not {delay_s} s")


class KeyedConsumer:
    """Reads a topic in a consumer group in which order is by key. Get one from `Client.consumer`.

    Any number of consumers share the partitions. Messages of a key are given to one consumer at a time, in their order.
    A message on which the application fails comes again later, and holds up its own key and nothing else.
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
    ) -> None:
        self.topic = topic.name
        self.group = group
        self.name = name
        self.settings = settings
        self._recorder = recorder
        numbers = wanted_numbers(topic, partitions)
        self._runs = WaitingGrants()
        what = f"the consumer {name} of group {group} on topic {topic.name}"
        self._failure = Failure(what, _FAILED_MEANS, self._break_off)
        failed = self._failure.happened
        self._servers = Servers(caller, group, self._end, failed, records_pb2.CONSUMER_MODE_KEY_ORDERED)
        self._streams = Streams(
            channels, self._servers, client_name, *settings.credit_range_bytes, settings.session_ms, failed
        )
        self._alarms: Alarms[Subscribed] = Alarms(Subscribed.timer_due, failed)
        self._closed = False
        self._workers: set[asyncio.Task[None]] = set()
        self._shared = Shared(
            topic=topic.name,
            group=group,
            name=name,
            mode=records_pb2.CONSUMER_MODE_KEY_ORDERED,
            fail=self._runs.fail,
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
        self._subscriptions: dict[int, KeyedSubscription] = {}
        for number in numbers:
            start: Start = "latest" if settings.start == "latest" else "earliest"
            self._subscribe(number, topic.partition_ids[number], start)
        self._growth = Growth(caller, topic, self._grow, failed, self._look_found_gone) if partitions is None else None

    def _subscribe(self, number: int, partition_id: int, start: Start) -> None:
        settings = self.settings
        config = ConsumerConfig(ack_interval_ms=settings.ack_interval_ms, session_ms=settings.session_ms)
        subscription = KeyedSubscription(
            self._shared,
            self._runs.put,
            number,
            partition_id,
            start,
            config,
            settings.in_flight_max,
            settings.run_max,
        )
        self._subscriptions[number] = subscription
        self._streams.register(subscription)
        subscription.start()

    def _look_found_gone(self, made_again: bool) -> None:
        self._servers.stop()
        self._runs.fail(deleted_error(self.topic, made_again=made_again))

    def _end(self, error: SeriatimError) -> None:
        self._servers.stop()
        self._runs.fail(deleted_error(self.topic) if isinstance(error, UnknownTopicError) else error)

    def _grow(self, topic: Topic, _routes: Sequence[common_pb2.Route]) -> None:
        """Read the added partitions from their beginning: all messages in them are younger than this consumer."""
        for number in range(len(self._subscriptions), topic.partition_count):
            self._subscribe(number, topic.partition_ids[number], "earliest")

    @property
    def joined(self) -> tuple[int, ...]:
        """Partitions whose server knows this consumer."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.is_joined)

    # ---- reading -------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[KeyedMessage]:
        """Messages, one at a time. Work on each in `async with`, or call its `ack` or `nack`.

        The next message of the same key comes only when this one is acknowledged. So several tasks may each take the
        next message.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            ClientFailureError: The consumer has ended because its own code failed.
            PreconditionError: The consumer is closed.
        """
        while True:
            run = await self._next_run()
            if run is None:
                raise PreconditionError("the consumer is closed")
            if run.begin():
                self._record(run)
                yield KeyedMessage(self, run)

    async def _next_run(self) -> Grant | None:
        """The next run; None if the consumer is closed."""
        while True:
            if self._runs.error is not None:
                raise self._runs.error
            run = self._runs.take()
            if run is not None:
                return run
            if self._runs.is_closed:
                return None
            arrived = asyncio.get_running_loop().create_future()

            def wake(arrived: asyncio.Future[None] = arrived) -> None:
                if not arrived.done():
                    arrived.set_result(None)

            self._runs.wake_me(wake)
            try:
                await arrived
            finally:
                self._runs.do_not_wake(wake)

    def go_on_with(self, run: Grant) -> None:
        """The next message of a run can be worked on, or the run is done."""
        if run.at < len(run.messages) and not run.is_over:
            self._runs.put(iter((run,)))

    def give_back(self, run: Grant, error: BaseException) -> None:
        """The application failed on the next message of a run."""
        delay_s, reason, is_last = None, f"{type(error).__name__}: {error}", isinstance(error, GiveUp)
        if isinstance(error, Retry):
            delay_s, reason = error.delay_s, error.reason or "the handler asked for another attempt"
        run.fail(delay_s, _cut(reason), is_last=is_last)

    def _record(self, run: Grant) -> None:
        if self._recorder is not None:
            self._recorder.deliveries([run.messages[run.at]], self.group, self.name)

    # ---- handlers ------------------------------------------------------------------------------------

    async def run(
        self,
        handler: Handler,
        concurrency: int = 64,
        *,
        timeout_s: float | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Call a handler with each message, until the consumer is closed.

        Messages of one key are worked on one after another, in their order. When the handler returns, its message is
        acknowledged. When it raises, the message comes again after the delay that the consumer group's policy says (or
        the exception `Retry`), before all later messages of its key. While a handler runs, its grant is extended.

        Args:
            handler: A coroutine function, or a plain function, which is called in a thread, or in `pool`.
            concurrency: For how many keys the handler may run at once, 1 to 10,000.
            timeout_s: If a coroutine handler takes longer than this, it is cancelled, and its message comes again.
                None: it may take as long as it likes. A plain function cannot be cancelled; its message comes again.
            pool: Where a plain function runs, for example a `ProcessPoolExecutor` if it needs processors; None: threads
                of the event loop.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            ClientFailureError: The consumer has ended because its own code failed.
            BadRequestError: The concurrency is not between 1 and 10,000, or the timeout is not above 0.
            BaseException: What a handler raised that is not an `Exception`, such as `KeyboardInterrupt`. Its message
                was neither acknowledged nor given back, and comes again to another consumer.

        If the call is cancelled, the handlers are cancelled too, and nothing is said about their messages.
        """
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise BadRequestError(f"concurrency is between 1 and {CONCURRENCY_MAX}, not {concurrency}")
        if timeout_s is not None and timeout_s <= 0:
            raise BadRequestError(f"a timeout is above 0, not {timeout_s} s")
        call = _caller(handler, timeout_s, pool)
        workers = [asyncio.create_task(self._work(call), name=f"handler {n}") for n in range(concurrency)]
        self._workers.update(workers)
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self._workers.difference_update(workers)

    async def _work(self, call: Callable[[Message], Awaitable[object] | None]) -> None:
        while (run := await self._next_run()) is not None:
            if not run.begin():
                continue
            while run.at < len(run.messages) and not run.is_over:
                self._record(run)
                try:
                    result = call(run.messages[run.at])
                    if result is not None:
                        await result
                except Exception as error:
                    self.give_back(run, error)
                    break
                run.acknowledge()
            await asyncio.sleep(0)

    # ---- ending --------------------------------------------------------------------------------------

    async def close(self, drain_s: float = 5.0) -> None:
        """Let running handlers end, send the last acknowledgements, and leave. A second call does nothing.

        Args:
            drain_s: Seconds to wait for the handlers that run. Those that run longer are cancelled.

        If the call is cancelled, the consumer has left, perhaps without its last acknowledgements.
        """
        if self._closed:
            return
        self._closed = True
        self._runs.waiting.clear()
        self._runs.close()
        current = asyncio.current_task()
        workers = [task for task in self._workers if task is not current]
        if workers:
            await asyncio.wait(workers, timeout=drain_s)
            for task in workers:
                task.cancel()
        for subscription in self._subscriptions.values():
            subscription.leave()
        self._alarms.cancel()
        self._servers.stop()
        if self._growth is not None:
            self._growth.stop()
        try:
            await self._streams.close()
        finally:
            self._streams.stop()
        await self._servers.close()
        if self._growth is not None:
            await self._growth.close()

    def _break_off(self, error: ClientFailureError) -> None:
        """The consumer's own code failed: each call of the application raises, and it leaves the brokers at once."""
        attempt(self._runs.fail, error)
        attempt(self._alarms.cancel)
        attempt(self._servers.stop)
        attempt(self._streams.stop)
        if self._growth is not None:
            attempt(self._growth.stop)

    async def __aenter__(self) -> KeyedConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _caller(
    handler: Handler, timeout_s: float | None, pool: Executor | None
) -> Callable[[Message], Awaitable[object] | None]:
    """How the handler is called with a message."""
    is_coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object with an asynchronous `__call__`
    )
    if is_coroutine:
        if pool is not None:
            raise BadRequestError("a pool calls plain functions, and the handler is a coroutine function")
        call: Callable[[Message], Any] = handler
    else:

        def call(message: Message) -> Awaitable[object]:
            return asyncio.get_running_loop().run_in_executor(pool, handler, message)

    if timeout_s is None:
        return call

    async def limited(message: Message) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await call(message)
        except TimeoutError as exc:
            raise NotActiveError(f"the handler took longer than {timeout_s:g} s") from exc

    return limited


def _cut(reason: str) -> str:
    """The beginning of a reason, in at most 200 bytes of UTF-8."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
