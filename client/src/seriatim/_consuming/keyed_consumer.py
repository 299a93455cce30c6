"""The consumer of a consumer group in which order is by key, as users see it. `keyed_subscription` has the grants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, cast

from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_api.ids import format_offset

from seriatim._consuming import handlers
from seriatim._consuming.base import ConsumerBase
from seriatim._consuming.handlers import GiveUp, Handler, HandlerEndedError, Retry
from seriatim._consuming.keyed_subscription import (
    Grant,
    GrantFrame,
    HeldBatch,
    KeyedBatch,
    KeyedSubscription,
    WaitingGrants,
)
from seriatim._consuming.pools import PoolCalls, threads
from seriatim._core.consumer_types import ConsumerConfig
from seriatim._core.demand import Demand
from seriatim._core.keyed_consumer import ALL_MESSAGES
from seriatim._runtime.logs import guarded
from seriatim._values.arguments import check_number, check_whole
from seriatim._values.records import Message, Topic
from seriatim._values.settings import Start

CONCURRENCY_MAX: Final = 10_000
TURN_US: Final = 1_000
"""If handlers do not wait for anything, one after another is called for this long, and then others have their turn."""

RECEIVE_MAX: Final = 1_000
"""The most messages of one `receive`."""

RECEIVE_S_MAX: Final = 3_600.0
HOLD_S_MAX: Final = 86_400.0

GATHER_S: Final = 0.005
"""When the first message of a `receive` is here, those of other partitions have this many seconds to come with it."""

ASK_ALL_S: Final = 0.02
"""If the partitions that a `receive` asked have given nothing after this many seconds, all are asked."""

REST_S: Final = 1.0
"""If no handler, iteration or `receive` has used the consumer for this many seconds, what waits in it goes back."""

SLOW_S: Final = 60.0
"""A handler that works on one message for this long is named in the log, because its key waits."""

_log = guarded()


class KeyedMessage:
    """A message that is being worked on: `async with consumer_message as message`.

    If the block ends, the message is acknowledged. If the block raises, the message comes again later, before all later
    messages of its key, and the exception propagates to the caller.

    Or call `ack` or `nack`, once: further calls change nothing.
    """

    def __init__(self, consumer: KeyedConsumer, run: Grant) -> None:
        self._consumer = consumer
        self._run = run
        self._at = run.at
        self._has_counted = False
        self._message = run.messages[run.at]

    def __del__(self) -> None:
        """The program has let go of it without a word: no part of it works on the message."""
        run = getattr(self, "_run", None)
        if run is not None and run.at == self._at and not run.is_over:
            self._consumer.let_go(run)

    @property
    def message(self) -> Message:
        """The message. Who reads it begins to work on it: if this process ends then, that is a failed attempt."""
        self.begin()
        return self._message

    def peek(self) -> Message:
        """The message, to look at it without beginning to work on it."""
        return self._message

    @property
    def has_begun(self) -> bool:
        """Whether the program has begun to work on the message, or its grant has ended."""
        return self._run.begun == self._at or not self.is_current

    def begin(self) -> None:
        """The program begins to work on the message. Reading `message` and entering the block do the same."""
        if not self.has_begun:
            self._run.begin()

    @property
    def is_current(self) -> bool:
        """Whether an acknowledgement would still count, as far as this consumer knows."""
        return not self._run.is_over and self._run.at == self._at

    async def __aenter__(self) -> Message:
        return self.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """The block of the message has ended, with that exception."""
        if error is None:
            self.ack()
        elif isinstance(error, Exception) and self.is_current and self._consumer.has_failed(self._run, error):
            self._consumer.go_on_with(self._run)
        # Anything else, such as a cancellation or Ctrl-C, says nothing about the message.

    def ack(self) -> bool:
        """Acknowledge the message. Returns False if its grant has ended: then it comes again, here or elsewhere."""
        self._consumer.check_home()
        if self._run.at == self._at:  # else it was acknowledged before, and the run is at a later message
            self._has_counted = self._run.acknowledge()
            self._consumer.go_on_with(self._run)
        return self._has_counted

    def nack(self, delay_s: float | None = None, reason: str = "", *, is_last: bool = False) -> None:
        """Give the message back. It comes again after a delay, before all later messages of its key.

        Args:
            delay_s: Seconds; None: as the consumer group's policy says.
            reason: What went wrong, for humans: at most 200 bytes are kept.
            is_last: No other attempt can succeed.

        Raises:
            BadRequestError: The delay is negative, or longer than 40 days.
            PreconditionError: The consumer group is at most once: the message does not come again.
        """
        self._consumer.check_home()
        handlers.check_delay(delay_s)
        handlers.check_reason(reason)
        if self._run.is_at_most_once:
            raise PreconditionError(
                f"group {self._consumer.group} is at most once: the message was acknowledged before it was given, and "
                "does not come again"
            )
        if self.is_current:
            self._run.fail(delay_s, handlers.cut(reason), is_last=is_last)

    def extend(self, hold_s: float) -> bool:
        """Keep the message for this many seconds from now, also if that is less than before.

        A message of `receive` comes again if it is not acknowledged until then. Messages of an iteration or a handler
        are kept by themselves as long as the event loop runs and the program has this object; use this before work that
        stops the event loop.

        Returns:
            False if its grant has ended: then the message comes again, here or elsewhere.

        Raises:
            BadRequestError: The time is not above 0, or over a day.
        """
        self._consumer.check_home()
        check_hold(hold_s)
        self.begin()
        return self.is_current and self._run.hold(hold_s, is_manual=False)


def check_hold(hold_s: float | None) -> None:
    """Refuse a time that is not above 0 or too long.

    Raises:
        BadRequestError: It is.
    """
    if hold_s is not None:
        check_number("hold_s", hold_s, 0, "seconds")
    if hold_s is not None and not 0 < hold_s <= HOLD_S_MAX:
        raise BadRequestError(f"a message is kept for more than 0 s and at most {HOLD_S_MAX:g} s, not {hold_s} s")


class KeyedConsumer(ConsumerBase[KeyedSubscription]):
    """Reads a topic in a consumer group in which order is by key, or that has no order. Get one from `Client.consumer`.

    Any number of consumers share the partitions. In mode `key_ordered`, messages of a key are given to one consumer at
    a time, in their order. A message on which the application fails comes again later, and holds up its own key and
    nothing else. In mode `shared` each message is on its own.

    A consumer is used in one of two ways: brokers push messages to `run` and to an iteration, or `receive` asks for
    them.
    """

    _FAILED_MEANS = "It acknowledges nothing more: other consumers of the group get what it did not acknowledge."

    def _open(self, topic: Topic, numbers: Sequence[int]) -> WaitingGrants:
        self._runs = WaitingGrants(self._subscriptions)
        self._loop = asyncio.get_running_loop()
        self._workers: set[asyncio.Task[None]] = set()
        self._worker_count = 0
        self._working: dict[int, tuple[Grant | GrantFrame, float]] = {}  # by worker, and since when
        self._usage = ""  # "push" or "pull", once it is known
        self._wanted = 0  # messages that calls of `receive` wait for
        self._receivers = 0
        self._partition_demand = Demand()
        self._pushed = 0  # calls of `run` and iterations that continue
        self._rest: asyncio.TimerHandle | None = None
        return self._runs

    def _subscription(self, number: int, topic: Topic, start: Start, config: ConsumerConfig) -> KeyedSubscription:
        limits = self.settings.in_flight_max, self.settings.run_max
        return KeyedSubscription(self._shared, self._take, number, topic.partition_ids[number], start, config, *limits)

    def _subscribe(self, number: int, topic: Topic, start: Start) -> KeyedSubscription:
        subscription = super()._subscribe(number, topic, start)
        if self._pushed:
            subscription.demand(ALL_MESSAGES)
        return subscription

    def _take(self, frame: GrantFrame) -> None:
        """Grants came. Those for which no part of the program waits any more go back at once."""
        if self._closed or not (self._pushed or self._receivers or self._rest is not None):
            frame.release(is_unseen=True)
            return
        if self._usage == "pull":
            self._partition_demand.came(frame.subscription.number)
        self._runs.put(frame)

    def _use(self, usage: Literal["push", "pull"]) -> None:
        """From now on the consumer is used in that way.

        Raises:
            PreconditionError: It is used in the other one, or in another event loop or process than its client.
        """
        self.check_home()
        if self._usage not in ("", usage):
            raise PreconditionError(
                "brokers push messages to this consumer, because it runs handlers or is iterated: make another one for "
                "receive"
                if usage == "pull"
                else "this consumer asks for messages with receive: make another one to run handlers or to iterate"
            )
        self._usage = usage

    @contextmanager
    def _pushing(self) -> Iterator[None]:
        """Brokers push messages to this consumer until the end of the block."""
        self._use("push")
        self._pushed += 1
        if self._pushed == 1 and self._rest is None:
            self._demand(ALL_MESSAGES)
        elif self._rest is not None:
            self._rest.cancel()
            self._rest = None
        try:
            yield
        finally:
            self._pushed -= 1
            if not self._pushed and not self._closed and self._rest is None:
                self._rest = asyncio.get_running_loop().call_later(REST_S, self._begin_rest)

    def _begin_rest(self) -> None:
        """No part of the program takes messages now. Those that wait here would wait for ever, so they go back.

        Without it: 1. `run` ends, because a handler raised `SystemExit` or the call was cancelled. 2. The program
        continues with something else, and does not close the consumer. 3. It extends the grants of 4,000 messages for
        ever, and no other consumer gets their keys.
        """
        self._rest = None
        self._demand(0)
        self._runs.give_back()

    def _demand(self, messages: int) -> None:
        for subscription in self._subscriptions.values():
            subscription.demand(messages)

    @property
    def joined(self) -> tuple[int, ...]:
        """Partitions whose server knows this consumer."""
        return tuple(number for number, subscription in self._subscriptions.items() if subscription.is_joined)

    # ---- reading -------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[KeyedMessage, None]:
        """Messages, one at a time, until the consumer is closed. Work on each in `async with`, or call `ack` or `nack`.

        The next message of the same key comes only when this one is acknowledged. So several tasks may each take the
        next message. When the consumer is closed, the iteration ends, as `run` does. A second after the last iteration
        has ended, what waits in the consumer goes back to the brokers.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            PreconditionError: The consumer is used with `receive`.
        """
        with self._pushing():
            while True:
                run = await self._next_run()
                if run is None:
                    return
                run = self._grant_of(run)
                self._runs.wake_next()
                if run.begin():
                    self._record(run)
                    yield KeyedMessage(self, run)

    async def receive(
        self, max_messages: int = 10, timeout_s: float = 20.0, *, hold_s: float | None = None
    ) -> list[KeyedMessage]:
        """Ask for messages, and wait until some are here: a long poll.

        Between two calls the consumer holds nothing but what it has returned, so other consumers get the other
        messages. Each message that is returned is of another key (in mode `shared`: any messages). Call `ack` or `nack`
        of each, in any order. If neither comes in time, the message comes again. That is a failed attempt if the
        program has read its `message`.

        Args:
            max_messages: The most messages to return, 1 to 1,000.
            timeout_s: Seconds to wait for the first message, above 0. Then the call returns an empty list.
            hold_s: Seconds for which each message is kept for this consumer, above 0; `extend` moves the end. None: as
                the consumer group's policy says (30 s).

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            BadRequestError: An argument is beyond its limits.
            PreconditionError: The consumer is closed, or handlers or an iteration use it.

        If the call is cancelled, what came for it goes back, and does not count as an attempt.
        """
        check_whole("max_messages", max_messages, 1, RECEIVE_MAX)
        check_number("timeout_s", timeout_s, 0, "seconds")
        if not 0 < timeout_s <= RECEIVE_S_MAX:
            raise BadRequestError(f"timeout_s is above 0 and at most {RECEIVE_S_MAX:g}, not {timeout_s}")
        check_hold(hold_s)
        self._use("pull")
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._ask(max_messages)
        self._receivers += 1
        try:
            while await self._wait_for_asked(deadline):
                if len(self._subscriptions) > 1:
                    await asyncio.sleep(GATHER_S)
                received: list[KeyedMessage] = []
                while len(received) < max_messages and (found := self._runs.take()) is not None:
                    run = self._grant_of(found)
                    if run.hold(hold_s, is_manual=True):
                        self._record(run)
                        received.append(KeyedMessage(self, run))
                if received:
                    return received
        finally:
            self._receivers -= 1
            self._ask(-max_messages)
            self._runs.wake_next()
            if not self._receivers:
                self._runs.give_back()
        if self._runs.is_closed:
            raise PreconditionError("the consumer is closed")
        return []

    def _ask(self, more: int) -> None:
        """Ask the brokers for this many messages more, or fewer: each partition for its share."""
        self._wanted += more
        for number, share in self._partition_demand.shares(self._wanted, list(self._subscriptions)).items():
            self._subscriptions[number].demand(share, 1)

    async def _wait_for_asked(self, deadline: float) -> bool:
        """Wait as `_wait_for_run` does. If the partitions that were asked give nothing, all are asked."""
        if len(self._subscriptions) > 1:
            soon = min(deadline, asyncio.get_running_loop().time() + ASK_ALL_S)
            if await self._wait_for_run(soon):
                return True
            self._partition_demand.nothing_came()
            self._ask(0)
        return await self._wait_for_run(deadline)

    def _grant_of(self, found: Message | Grant) -> Grant:
        """What waited, as a grant."""
        if isinstance(found, Grant):
            return found
        return Grant(self._subscriptions[found.partition], found.grant, [found])

    async def _next_run(self) -> Message | Grant | None:
        """The next grant; None if the consumer is closed. One with a single message is only the message."""
        while True:
            found = self._runs.take()
            if found is not None and self._runs.error is None:
                return found
            if not await self._wait_for_run(None):
                return None

    async def _wait_for_run(self, deadline: float | None) -> bool:
        """Wait until a grant is here. Returns False if the consumer is closed, or at the deadline."""
        loop, runs = asyncio.get_running_loop(), self._runs
        while True:
            if runs.error is not None:
                raise runs.error.with_traceback(None)  # or it would have the frames of all workers
            if not runs.is_empty:
                return True
            if runs.is_closed or (deadline is not None and loop.time() >= deadline):
                return False
            runs.check_interruption()
            now_us = time.monotonic_ns() // 1000
            for subscription in self._subscriptions.values():
                subscription.hurry(now_us)
            arrived = loop.create_future()

            def wake(arrived: asyncio.Future[None] = arrived) -> None:
                if not arrived.done():
                    arrived.set_result(None)

            runs.wake_me(wake)
            timer = loop.call_at(deadline, wake) if deadline is not None else None
            try:
                await arrived
            except BaseException:
                if runs.do_not_wake(wake):
                    runs.wake_next()  # this one takes nothing, so another one must
                raise
            finally:
                runs.do_not_wake(wake)
                if timer is not None:
                    timer.cancel()

    def let_go(self, run: Grant) -> None:
        """The program has dropped the object of the next message of a run. It is called in any thread.

        Without it: 1. A loop takes a message, and an exception ends the loop before the message is acknowledged. 2. The
        consumer extends the grant for ever, and no consumer gets the key again.
        """
        with suppress(RuntimeError):  # the event loop is closed, and with it the consumer
            self._loop.call_soon_threadsafe(self._stop_extending, run, run.at)

    @staticmethod
    def _stop_extending(run: Grant, at: int) -> None:
        if run.at == at:
            run.hold(None, is_manual=True)

    def go_on_with(self, run: Grant) -> None:
        """The next message of a run can be worked on, or the run is done."""
        if run.at < len(run.messages) and not run.is_over:
            self._runs.put_again(run)

    def has_failed(self, run: Grant, error: BaseException) -> bool:
        """The application failed on the next message of a run: give it back. Returns whether the run continues.

        In an at-most-once group the message is lost, and the run continues with the next one.
        """
        failed = handlers.failed_by(error)
        if run.is_at_most_once:
            message = run.messages[run.at]
            _log.warning(
                "a handler failed on message %s of %s/%d, which does not come again because group %s is at most once: "
                "%s",
                format_offset(message.offset), self.topic, message.partition, self.group, failed.reason,
            )  # fmt: skip
            run.acknowledge()
            return True
        run.fail(failed.delay_s, failed.reason, is_last=failed.is_last)
        return False

    def _has_failed_all(self, held: HeldBatch, error: BaseException) -> None:
        """The application failed on a batch: give it back. In an at-most-once group its messages are lost."""
        failed, frame = handlers.failed_by(error), held.frame
        if frame.is_at_most_once:
            _log.warning(
                "a handler failed on %d messages of %s/%d, the first one %s, which do not come again because group %s "
                "is at most once: %s",
                len(frame.offsets), self.topic, frame.subscription.number, format_offset(frame.offset), self.group,
                failed.reason,
            )  # fmt: skip
        else:
            held.fail_all(failed)

    def _record(self, run: Grant) -> None:
        if self._recorder is not None:
            run.subscription.record([run.messages[run.at]])

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
        the exception `Retry`), before all later messages of its key. While a handler runs, its grant is extended. A
        handler that works on one message for more than a minute is named in the log.

        Args:
            handler: A coroutine function, or a plain function, which is called in a thread, or in `pool`.
            concurrency: For how many keys the handler may run at once, 1 to 10,000.
            timeout_s: If a coroutine handler takes longer than this, it is cancelled, and its message comes again.
                None: it may take as long as it likes. A plain function cannot be cancelled; its message comes again.
            pool: Where a plain function runs, for example a `ProcessPoolExecutor` if it needs processors; None: as many
                threads as `concurrency` says. The caller ends the pool.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            BadRequestError: The concurrency is not between 1 and 10,000, the timeout is not above 0, or the handler
                cannot be called in the pool.
            PreconditionError: The consumer is used with `receive`. Or the pool has ended, for example because one of
                its processes died: the messages that were worked on come again; a new call with a new pool continues.
            BaseException: What a handler raised that is not an `Exception`, such as `KeyboardInterrupt`. Its message
                comes again, here or at another consumer. A handler that is cancelled has failed, like one that raises.

        If the call is cancelled, the handlers are cancelled too, and their messages come again.
        """
        _check_limits(concurrency, timeout_s)
        handlers.check_handler(handler, pool)
        if handlers.is_coroutine_function(handler):
            call = handlers.limited(cast("Callable[[Message], Awaitable[object]]", handler), timeout_s)
            await self._run_workers(lambda number: self._work(call, None, number), concurrency)
            return
        with threads(concurrency, pool) as workers, closing(PoolCalls(handler, workers, timeout_s)) as calls:
            await self._run_workers(lambda number: self._work(None, calls, number), concurrency, calls)

    async def run_batches(
        self, handler: Callable[[KeyedBatch], Awaitable[None]], concurrency: int = 4, *, timeout_s: float | None = None
    ) -> None:
        """Call a handler with batches of messages of many keys, until the consumer is closed.

        Use it instead of `run` if the work on many messages at once costs little more than the work on one, for example
        one write to a database. When the handler returns, all messages of its batch are acknowledged, except those that
        it gave back with `batch.fail`. When it raises, each of them comes again. While it runs, its grants are
        extended. No two handlers work on the same key at once.

        Args:
            handler: A coroutine function.
            concurrency: How many batches are worked on at once, 1 to 10,000.
            timeout_s: If the handler takes longer than this, it is cancelled, and its messages come again. None: it may
                take as long as it likes.

        Raises:
            SeriatimError: A partition cannot be read any more; the error says why.
            TlsHandshakeError: No broker was reached for some seconds, because of TLS. The consumer keeps trying: call
                again, or close it.
            ClientFailureError: The consumer has ended because its own code failed.
            BadRequestError: The concurrency is not between 1 and 10,000, the timeout is not above 0, or the handler is
                no coroutine function.
            PreconditionError: The consumer is used with `receive`.
            BaseException: What a handler raised that is not an `Exception`, such as `KeyboardInterrupt`. Its messages
                come again, here or at another consumer. A handler that is cancelled has failed, like one that raises.

        If the call is cancelled, the handlers are cancelled too, and their messages come again.
        """
        _check_limits(concurrency, timeout_s)
        if not handlers.is_coroutine_function(handler):
            raise BadRequestError("the handler of run_batches is a coroutine function: async def")
        call = handlers.limited(handler, timeout_s)
        await self._run_workers(lambda number: self._work_on_batches(call, None, number), concurrency)

    async def run_batches_in_threads(
        self, handler: Callable[[KeyedBatch], object], concurrency: int, timeout_s: float | None
    ) -> None:
        """As `run_batches`, with a plain function: for the client for programs without asyncio."""
        _check_limits(concurrency, timeout_s)
        with threads(concurrency, None) as workers, closing(PoolCalls(handler, workers, timeout_s)) as calls:
            await self._run_workers(lambda number: self._work_on_batches(None, calls, number), concurrency, calls)

    async def _run_workers(
        self,
        work: Callable[[int], Coroutine[Any, Any, None]],
        concurrency: int,
        calls: PoolCalls[Any] | None = None,
    ) -> None:
        """Have this many tasks do the same work, until one of them fails or all are done."""
        with self._pushing():
            numbers = range(self._worker_count, self._worker_count + concurrency)  # another call may run
            self._worker_count += concurrency
            workers = [asyncio.create_task(work(number), name=f"handler {number}") for number in numbers]
            watch = asyncio.create_task(self._watch_slow(numbers, calls), name="slow handlers")
            self._workers.update(workers)
            try:
                done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    if not task.cancelled():  # by `close`, because its handler took longer than `drain_s`
                        task.result()
            finally:
                for task in (*workers, watch):
                    task.cancel()
                await asyncio.gather(*workers, watch, return_exceptions=True)
                self._workers.difference_update(workers)

    async def _work(
        self, call: Callable[[Message], Awaitable[object]] | None, calls: PoolCalls[Message] | None, number: int
    ) -> None:
        """Call the handler with one message after another, here or in a pool. Others do the same beside it."""
        me, turn_ends_us = asyncio.current_task(), 0
        assert me is not None
        while (found := await self._next_run()) is not None:
            now_us = time.monotonic_ns() // 1000
            has_waited = False
            if calls is not None:
                has_waited = await self._work_in_pool(calls, self._grant_of(found), number, me)
                continue
            assert call is not None
            if isinstance(found, Grant):
                has_waited = await self._work_on(call, found, number, me)
            else:
                subscription = self._subscriptions[found.partition]
                if not subscription.holds(found.grant, now_us):
                    continue
                # Most messages are worked on without a wait, and need no object for their grant.
                if self._recorder is not None:
                    subscription.record([found])
                try:
                    waits = handlers.first_step(call(found))
                except Exception as error:
                    self.has_failed(self._grant_of(found), error)
                except BaseException as error:
                    await self._work_on(call, self._grant_of(found), number, me, handlers.raised(error))
                else:
                    if waits is None:
                        subscription.acknowledge(found.grant, found.offset, now_us)
                    else:
                        has_waited = await self._work_on(call, self._grant_of(found), number, me, waits)
            now_us = time.monotonic_ns() // 1000
            if has_waited:
                turn_ends_us = now_us + TURN_US
            elif now_us > turn_ends_us:  # the handler may never wait, and others must have their turn
                await asyncio.sleep(0)
                turn_ends_us = time.monotonic_ns() // 1000 + TURN_US

    async def _work_on(
        self,
        call: Callable[[Message], Awaitable[object]],
        run: Grant,
        number: int,
        me: asyncio.Task[Any],
        waits: Awaitable[object] | None = None,
    ) -> bool:
        """Call the handler with the messages of a grant. With the first one it was called already if it `waits`.

        Returns:
            Whether the handler waited for the last one, so that others had their turn.
        """
        loop = asyncio.get_running_loop()
        has_waited = False
        try:
            while run.at < len(run.messages) and not run.is_over:
                self._working[number] = run, loop.time()
                try:
                    if waits is None:
                        self._record(run)
                        waits = handlers.first_step(call(run.messages[run.at]))
                    has_waited = False
                    if waits is not None:
                        run.begin()
                        self._runs.wake_next()
                        await waits
                        has_waited = isinstance(waits, handlers.Rest)  # others may end without a wait
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and me.cancelling():
                        raise  # the call of `run` ends
                    if not self.has_failed(run, error):
                        break
                else:
                    run.acknowledge()
                waits = None
        finally:
            self._working.pop(number, None)
            if run.at < len(run.messages):
                run.release(is_unseen=False)
        return has_waited

    async def _work_in_pool(self, calls: PoolCalls[Message], run: Grant, number: int, me: asyncio.Task[Any]) -> bool:
        """Have a pool call the handler with the messages of a grant. A message is begun when its function begins.

        Returns:
            True: others had their turn.
        """
        loop = asyncio.get_running_loop()

        def begin() -> None:
            self._record(run)
            run.begin()
            self._working[number] = run, loop.time()

        self._runs.wake_next()
        try:
            while run.at < len(run.messages) and not run.is_over:
                try:
                    if not await calls.call(run.messages[run.at], lambda: not run.is_over, begin):
                        break
                except HandlerEndedError as error:
                    raise handlers.ended(error) from error.__cause__
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and me.cancelling():
                        raise  # the call of `run` ends
                    if not self.has_failed(run, error):
                        break
                else:
                    run.acknowledge()
                self._working.pop(number, None)
        finally:
            self._working.pop(number, None)
            if run.at < len(run.messages):
                run.release(is_unseen=run.begun != run.at)
        return True

    async def _work_on_batches(
        self,
        call: Callable[[KeyedBatch], Awaitable[object]] | None,
        calls: PoolCalls[KeyedBatch] | None,
        number: int,
    ) -> None:
        """Call the handler with one batch after another, here or in a pool. Others do the same beside it."""
        me = asyncio.current_task()
        assert me is not None
        while await self._wait_for_run(None):
            frame = self._runs.take_frame()
            current = self._runs.opened(frame, GrantFrame.current) if frame is not None else None
            if current is None:
                continue
            held = HeldBatch(current)
            batch = KeyedBatch(held, self._runs.opened)
            try:
                if calls is not None:
                    self._runs.wake_next()
                    if not await calls.call(
                        batch, partial(_counts, current), partial(self._begin_batch, held, batch, number)
                    ):
                        current.release(is_unseen=True)
                        continue
                else:
                    assert call is not None
                    if self._recorder is not None:
                        current.subscription.record(batch.messages)
                    waits = handlers.first_step(call(batch))
                    if waits is not None:
                        held.begin()
                        self._runs.wake_next()
                        self._working[number] = current, asyncio.get_running_loop().time()
                        await waits
            except HandlerEndedError as error:
                current.release(is_unseen=False)
                raise handlers.ended(error) from error.__cause__
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and me.cancelling():
                    current.release(is_unseen=calls is not None and not held.has_begun)
                    raise  # the call of `run_batches` ends
                self._has_failed_all(held, error)
            except BaseException:
                current.release(is_unseen=False)
                raise
            finally:
                self._working.pop(number, None)
            held.finish()
            await asyncio.sleep(0)  # a handler that never waits leaves others their turn

    def _begin_batch(self, held: HeldBatch, batch: KeyedBatch, number: int) -> None:
        """A pool begins to work on a batch."""
        if self._recorder is not None:
            held.frame.subscription.record(batch.messages)
        held.begin()
        self._working[number] = held.frame, asyncio.get_running_loop().time()

    async def _watch_slow(self, numbers: range, calls: PoolCalls[Any] | None) -> None:
        """Name handlers in the log that work on one message for long, each once, and a pool without a free worker."""
        loop = asyncio.get_running_loop()
        told: dict[int, float] = {}
        told_of_pool = -1.0
        while True:
            await asyncio.sleep(SLOW_S / 2)
            if calls is not None and calls.is_stuck(SLOW_S) and told_of_pool != calls.begun_at:
                told_of_pool = calls.begun_at
                _log.warning(
                    "%d handlers of group %s on %s wait for a free worker of the pool, and none has begun for "
                    "%.0f s: all %s workers are busy, perhaps with handlers that took longer than timeout_s and did "
                    "not end. The messages wait until one ends; close the consumer to give them to others",
                    calls.waiting, self.group, self.topic, loop.time() - calls.begun_at, calls.worker_count,
                )  # fmt: skip
            for number in numbers:
                run, since = self._working.get(number, (None, 0.0))
                if run is None or loop.time() - since < SLOW_S or told.get(number) == since:
                    continue
                told[number] = since
                _log.warning(
                    "a handler of group %s has worked on message %s of %s/%d for %.0f s: later messages of its key "
                    "wait; give run a timeout_s to end such handlers",
                    self.group, format_offset(run.offset), self.topic, run.subscription.number, loop.time() - since,
                )  # fmt: skip

    # ---- ending --------------------------------------------------------------------------------------

    async def close(self, drain_s: float = 5.0) -> None:
        """Let running handlers end, send the last acknowledgements, and leave.

        `run` and iterations end then, without an error. So a program may call this when it gets a signal. A second call
        waits until the first one has ended, unless a handler makes it.

        Args:
            drain_s: Seconds to wait for the handlers that run. Those that run longer are cancelled.

        If the call is cancelled, the consumer has left, perhaps without its last acknowledgements.
        """
        current = asyncio.current_task()
        workers = [task for task in self._workers if task is not current]
        await self._close(partial(self._end_work, workers, drain_s), waits=current not in self._workers)

    async def _end_work(self, workers: Sequence[asyncio.Task[None]], drain_s: float) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._demand(0)
        self._runs.close()
        try:
            if workers:
                await asyncio.wait(workers, timeout=drain_s)
        finally:
            # Also if this call is cancelled, which web frameworks do when they end. Without it: 1. The call is
            # cancelled while a handler runs. 2. The consumer has not left. It extends its grants for ever, and no
            # other consumer gets their keys.
            for task in workers:
                task.cancel()


def _counts(frame: GrantFrame) -> bool:
    """Whether all grants of a batch are held. If one has ended, what is left of it is taken again."""
    held = frame.subscription.held()
    return all(token in held for token in frame.tokens)


def _check_limits(concurrency: int, timeout_s: float | None) -> None:
    check_whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
    if timeout_s is not None:
        check_number("timeout_s", timeout_s, 0, "seconds")
    if timeout_s is not None and timeout_s <= 0:
        raise BadRequestError(f"a timeout is above 0, not {timeout_s} s")


__all__ = ["GiveUp", "Handler", "KeyedBatch", "KeyedConsumer", "KeyedMessage", "Retry"]
