"""One partition of a keyed consumer, and the grants that wait for the application."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.v1 import broker_pb2

from seriatim import _batch
from seriatim._consuming.inbox import messages_of
from seriatim._consuming.subscription import Shared, Subscribed
from seriatim._core import consumer_types as ct
from seriatim._core.keyed_consumer import KeyedPartitionConsumer
from seriatim._failure import entry
from seriatim._records import Message
from seriatim._settings import Start
from seriatim._transport.consume import ConsumeLink

NEXT_OPENED_BYTES: Final = 256 << 10


class Grant:
    """A grant that came: messages of one key, which are worked on in their order.

    Attributes:
        subscription: The partition.
        token: The grant's token.
        messages: Its messages.
        at: How many of them the application is done with.
        is_over: It does not count any more.
    """

    __slots__ = ("at", "is_over", "messages", "subscription", "token")

    def __init__(self, subscription: KeyedSubscription, token: int, messages: list[Message]) -> None:
        self.subscription = subscription
        self.token = token
        self.messages = messages
        self.at = 0
        self.is_over = False

    @property
    def is_at_most_once(self) -> bool:
        """Whether its messages are acknowledged already, and do not come again."""
        return self.subscription.core.at_most_once

    def begin(self) -> bool:
        """The application begins to work on the next message. Returns whether the grant counts."""
        return not self.is_over and self.subscription.begin(self.token)

    def hold(self, hold_s: float | None, *, is_manual: bool) -> bool:
        """The application needs the grant for so many seconds from now. Returns whether the grant counts.

        Args:
            hold_s: Seconds; None: the deadline stays as it is.
            is_manual: It is extended only when the application asks.
        """
        if not self.is_over:
            self.subscription.hold(self.token, hold_s, is_manual=is_manual)
        return not self.is_over

    def release(self) -> None:
        """The application does not work on it: others may have its messages now."""
        if not self.is_over:
            self.subscription.release(self.token)
        self.is_over = True

    def acknowledge(self) -> bool:
        """The application is done with the next message. Returns whether that counts."""
        message = self.messages[self.at]
        self.at += 1
        return not self.is_over and self.subscription.acknowledge(self.token, message.offset)

    def fail(self, delay_s: float | None, reason: str, *, is_last: bool) -> None:
        """The application failed on the next message: give the grant back."""
        if not self.is_over:
            self.subscription.fail(self.token, self.messages[self.at].offset, delay_s, reason, is_last=is_last)
        self.is_over = True


class KeyedSubscription(Subscribed):
    """One partition of a keyed consumer.

    Args:
        shared: What the partitions of the consumer share.
        take: Called with runs that came.
        number: The partition's number in the topic.
        partition_id: Its id in the cluster.
        start_at: Where the consumer group begins if it has no cursor.
        config: Times.
        in_flight_max: At most so many messages are granted and not acknowledged.
        run_max: At most so many messages are in one grant; 0: as many as the broker likes.
    """

    core: KeyedPartitionConsumer

    def __init__(
        self,
        shared: Shared,
        take: Callable[[Iterator[Grant]], None],
        number: int,
        partition_id: int,
        start_at: Start,
        config: ct.ConsumerConfig,
        in_flight_max: int,
        run_max: int,
    ) -> None:
        core = KeyedPartitionConsumer(config, subscription_base=number << 32, on_demand=True)
        super().__init__(shared, number, partition_id, start_at, core)
        self._take = take
        self._in_flight_max = in_flight_max
        self._run_max = run_max
        self._runs: dict[int, Grant] = {}  # by token
        self._accepted: tuple[tuple[int, int, bool, tuple[int, ...]], ...] | None = None

    # ---- from the application ------------------------------------------------------------------------

    def begin(self, token: int) -> bool:
        """The application begins to work on a grant. Returns whether it counts."""
        now_us = time.monotonic_ns() // 1000
        if self.core.has_lapsed(now_us):
            self.timer_due()
        is_held = self.core.begin(token, now_us)
        self._wake()
        return is_held

    def acknowledge(self, token: int, offset: int) -> bool:
        """The application is done with a message. Returns whether that counts."""
        counts = self.core.acknowledge(token, offset, time.monotonic_ns() // 1000)
        if counts:
            if token not in self.core.grants:
                self._runs.pop(token, None)
            self._wake()
            if self._shared.recorder is not None:
                self._shared.recorder.acked(self._shared.group, self._shared.topic, self.number, offset)
        return counts

    @entry
    def fail(self, token: int, offset: int, delay_s: float | None, reason: str, *, is_last: bool) -> None:
        """The application failed on a message."""
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        self._step(ct.Fail(token, offset, delay_ms, reason, is_last))

    @entry
    def hold(self, token: int, hold_s: float | None, *, is_manual: bool) -> None:
        """The application needs a grant for so many seconds from now."""
        self._step(ct.Hold(token, None if hold_s is None else max(round(hold_s * 1000), 1), is_manual))

    @entry
    def release(self, token: int) -> None:
        """The application gives a grant back, and did not fail on it."""
        self._step(ct.Release(token))

    @entry
    def demand(self, messages: int, run_max: int = 0) -> None:
        """The application asks for so many messages from now on."""
        self._step(ct.Demanded(messages, run_max))

    def _wake(self) -> None:
        due_us = self.core.wake_at_us
        if due_us is not None:
            self._shared.alarms.set(self, due_us / 1e6)

    # ---- from the streams ----------------------------------------------------------------------------

    def _delivered(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> bool:
        granted = event.granted
        offsets = iter(granted.offset)
        runs = tuple(
            (token, attempt, repeated, tuple(islice(offsets, count)))
            for token, count, attempt, repeated in zip(
                granted.token, granted.count, granted.attempt, granted.maybe_repeated, strict=True
            )
        )
        (header, body) = batches[0]
        if header.message_count != len(granted.offset):
            raise BadRequestError("a broker sent grants with another number of messages than offsets")
        self._accepted = None
        self._step(ct.Granted(event.subscription, runs, granted.server_epoch))
        accepted = self._accepted
        link.give_credit(HEADER_SIZE_BYTES + header.body_length)
        if accepted is not None:
            self._take(self._opened(runs, header, body))
        return True

    def _opened(
        self, runs: tuple[tuple[int, int, bool, tuple[int, ...]], ...], header: BatchHeader, body: memoryview
    ) -> Iterator[Grant]:
        rows = _batch.decode(body, header.message_count, header.body_crc)
        messages = messages_of(self._shared.topic, self.number, 0, rows)
        for token, attempt, repeated, offsets in runs:
            mine = [
                message._replace(offset=offset, attempt=attempt if at == 0 else 1, maybe_repeated=repeated, grant=token)
                for at, (offset, message) in enumerate(zip(offsets, messages, strict=False))
            ]
            run = self._runs[token] = Grant(self, token, mine)
            yield run

    # ---- the core ------------------------------------------------------------------------------------

    def _do_own(self, effect: ct.Effect) -> None:
        write = self._shared.streams.write
        match effect:
            case ct.SendAcks():
                ack = broker_pb2.Ack(
                    subscription=effect.subscription,
                    number=effect.number,
                    tokens=effect.tokens,
                    offsets=effect.offsets,
                    started=effect.started,
                )
                write(effect.stream, broker_pb2.ConsumeRequest(ack=ack))
            case ct.SendNack():
                failure = effect.failure
                nack = broker_pb2.Nack(
                    subscription=effect.subscription,
                    token=failure.token,
                    offset=failure.offset,
                    delay_ms=failure.delay_ms,
                    reason=failure.reason,
                    is_last=failure.is_last,
                )
                write(effect.stream, broker_pb2.ConsumeRequest(nack=nack))
            case ct.SendExtend():
                extend = broker_pb2.Extend(
                    subscription=effect.subscription, tokens=effect.tokens, grant_ms=effect.grant_ms
                )
                write(effect.stream, broker_pb2.ConsumeRequest(extend=extend))
            case ct.SendDemand():
                demand = broker_pb2.Demand(
                    subscription=effect.subscription, messages=effect.messages, run_max=effect.run_max
                )
                write(effect.stream, broker_pb2.ConsumeRequest(demand=demand))
            case ct.TakeGrants():
                self._accepted = effect.runs
            case ct.GrantsEnded():
                for token in effect.tokens:
                    run = self._runs.pop(token, None)
                    if run is not None:
                        run.is_over = True
            case _:
                pass

    def _join(self, effect: ct.SendJoin) -> broker_pb2.Join:
        join = super()._join(effect)
        join.in_flight_max = self._in_flight_max
        join.run_max = self._run_max
        join.on_demand = self.core.on_demand
        return join


class WaitingGrants:
    """WaitingGrants that wait for the application, in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: deque[Grant] = deque()
        self.error: SeriatimError | None = None
        self.is_closed = False
        self._wakers: deque[Callable[[], None]] = deque()

    def put(self, runs: Iterator[Grant]) -> None:
        """Add runs, and wake those who wait for one."""
        before = len(self.waiting)
        self.waiting.extend(runs)
        self._wake(len(self.waiting) - before)

    def _wake(self, count: int) -> None:
        while count > 0 and self._wakers:
            self._wakers.popleft()()
            count -= 1

    def fail(self, error: SeriatimError) -> None:
        """Have each later call of the application raise an error."""
        if self.error is None:
            self.error = error
        self._wake(len(self._wakers))

    def close(self) -> None:
        """Wake all who wait: nothing comes any more."""
        self.is_closed = True
        self._wake(len(self._wakers))

    def take(self) -> Grant | None:
        """The next run that counts; None if none is here."""
        while self.waiting:
            run = self.waiting.popleft()
            if not run.is_over:
                return run
        return None

    @property
    def has_run(self) -> bool:
        """Whether a run that counts is here."""
        while self.waiting and self.waiting[0].is_over:
            self.waiting.popleft()
        return bool(self.waiting)

    def wake_me(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when a run comes, or the error, or the end."""
        self._wakers.append(wake)

    def do_not_wake(self, wake: Callable[[], None]) -> None:
        """Do not call `wake` any more, if it was not called yet."""
        if wake in self._wakers:
            self._wakers.remove(wake)
