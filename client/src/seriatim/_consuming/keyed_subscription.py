"""One partition of a keyed consumer, and the grants that wait for the application."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import BadRequestError, PreconditionError, SeriatimError
from seriatim_api.ids import OFFSET_MAX, format_offset
from seriatim_api.v1 import broker_pb2, records_pb2

from seriatim._bodies import arrow
from seriatim._consuming import handlers
from seriatim._consuming.events import core_event
from seriatim._consuming.handlers import Failed
from seriatim._consuming.inbox import granted_messages
from seriatim._consuming.subscription import Shared, Subscribed
from seriatim._core import consumer_types as ct
from seriatim._core.keyed_consumer import KeyedPartitionConsumer
from seriatim._recorder import Place
from seriatim._runtime.failure import entry
from seriatim._transport.consume import ConsumeLink
from seriatim._values.records import Message
from seriatim._values.settings import Start

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Grant:
    """A grant that came: messages of one key, which are worked on in their order.

    Attributes:
        subscription: The partition.
        token: The grant's token.
        messages: Its messages.
        at: How many of them the application is done with.
        begun: The place of the message that the application has begun; -1: none.
    """

    __slots__ = ("_is_given_back", "at", "begun", "messages", "subscription", "token")

    def __init__(self, subscription: KeyedSubscription, token: int, messages: list[Message]) -> None:
        self.subscription = subscription
        self.token = token
        self.messages = messages
        self.at = 0
        self.begun = -1
        self._is_given_back = False

    @property
    def offset(self) -> int:
        """The offset of the message that is worked on."""
        return self.messages[min(self.at, len(self.messages) - 1)].offset

    @property
    def is_over(self) -> bool:
        """Whether it does not count any more."""
        return self._is_given_back or self.token not in self.subscription.core.grants

    @property
    def is_at_most_once(self) -> bool:
        """Whether its messages are acknowledged already, and do not come again."""
        return self.subscription.core.at_most_once

    def begin(self) -> bool:
        """The application begins to work on the next message. Returns whether the grant counts.

        Rule `started-when-begun` (K5): a message is reported as begun when the application begins it. Without it:
          1. A consumer is given k:1. It waits for a handler that is busy, but is reported as begun.
          2. The process dies. This counts as a failed attempt of k:1.
          3. After some such deaths k:1 is parked or a dead letter, and no application has ever worked on it.
        """
        self.begun = self.at
        return not self._is_given_back and self.subscription.begin(self.token)

    def hold(self, hold_s: float | None, *, is_manual: bool) -> bool:
        """The application needs the grant for this many seconds from now. Returns whether the grant counts.

        Args:
            hold_s: Seconds; None: the deadline stays as it is.
            is_manual: It is extended only when the application asks.
        """
        if not self.is_over:
            self.subscription.hold(self.token, hold_s, is_manual=is_manual)
        return not self.is_over

    def release(self, *, is_unseen: bool) -> None:
        """The application does not work on it: others may have its messages now.

        Args:
            is_unseen: The application did not get the next message, nor those after it.
        """
        if not self.is_over:
            self.subscription.release((self.token,), is_unseen=is_unseen)
        self._is_given_back = True

    def acknowledge(self) -> bool:
        """The application is done with the next message. Returns whether that counts."""
        message = self.messages[self.at]
        self.at += 1
        return not self._is_given_back and self.subscription.acknowledge(self.token, message.offset)

    def fail(self, delay_s: float | None, reason: str, *, is_last: bool) -> None:
        """The application failed on the next message: give the grant back."""
        if not self.is_over:
            self.subscription.fail(self.token, self.messages[self.at].offset, delay_s, reason, is_last=is_last)
        self._is_given_back = True


@dataclass(slots=True, eq=False)
class GrantFrame:
    """Grants that came together, with one body. It is unpacked when the application asks for it.

    Attributes:
        subscription: The partition.
        tokens: The token of each grant.
        counts: How many messages each grant has.
        offsets: Of all messages, grant after grant.
    """

    subscription: KeyedSubscription
    tokens: Sequence[int]
    counts: Sequence[int]
    offsets: Sequence[int]
    _attempts: Sequence[int]
    _repeated: Sequence[bool]
    _unread: tuple[BatchHeader, memoryview]
    _rows: pa.RecordBatch | None = None

    @property
    def offset(self) -> int:
        """The offset of the first message."""
        return self.offsets[0]

    @property
    def is_at_most_once(self) -> bool:
        """Whether its messages are acknowledged already, and do not come again."""
        return self.subscription.core.at_most_once

    @property
    def is_single(self) -> bool:
        """Whether each grant has one message."""
        return len(self.tokens) == len(self.offsets)

    def rows(self) -> pa.RecordBatch:
        """The messages as columns.

        Raises:
            SeriatimError: The body cannot be read.
        """
        if self._rows is None:
            header, body = self._unread
            self._rows = arrow.decode(body, header.message_count, header.body_crc)
        return self._rows

    def current(self) -> GrantFrame | None:
        """The grants of it that count; None if none does.

        Raises:
            SeriatimError: The body cannot be read.
        """
        held = self.subscription.held()
        if all(map(held.__contains__, self.tokens)):
            return self
        kept = [at for at, token in enumerate(self.tokens) if token in held]
        if not kept:
            return None
        begins = list(accumulate(self.counts, initial=0))
        wanted = [row for at in kept for row in range(begins[at], begins[at] + self.counts[at])]
        frame = GrantFrame(
            self.subscription,
            [self.tokens[at] for at in kept],
            [self.counts[at] for at in kept],
            [self.offsets[row] for row in wanted],
            [self._attempts[at] for at in kept],
            [self._repeated[at] for at in kept],
            self._unread,
        )
        frame._rows = self.rows().take(wanted)
        return frame

    def messages(self) -> list[Message]:
        """The messages, grant after grant.

        Raises:
            SeriatimError: The body cannot be read.
        """
        columns: tuple[Sequence[int], Sequence[int], Sequence[bool]] = (self.tokens, self._attempts, self._repeated)
        if not self.is_single:
            tokens: list[int] = []
            attempts: list[int] = []
            repeated: list[bool] = []
            for token, count, attempt, again in zip(
                self.tokens, self.counts, self._attempts, self._repeated, strict=True
            ):
                tokens += repeat(token, count)
                attempts += (attempt, *repeat(1, count - 1))
                repeated += repeat(again, count)
            columns = (tokens, attempts, repeated)
        tokens_of, attempts_of, repeated_of = columns
        of = self.subscription
        return list(
            granted_messages(of.topic, of.number, self.offsets, self.rows(), attempts_of, repeated_of, tokens_of)
        )

    def grants(self) -> Iterator[Message | Grant]:
        """Each grant. One with a single message is only the message.

        Raises:
            SeriatimError: The body cannot be read.
        """
        messages = self.messages()
        if self.is_single:
            return iter(messages)
        return self._grants(iter(messages))

    def release(self, *, is_unseen: bool) -> None:
        """The application works on none of them: others may have their messages now.

        Args:
            is_unseen: The application got none of them.
        """
        self.subscription.release(tuple(self.tokens), is_unseen=is_unseen)

    def _grants(self, messages: Iterator[Message]) -> Iterator[Message | Grant]:
        for token, count in zip(self.tokens, self.counts, strict=True):
            mine = list(islice(messages, count))
            yield mine[0] if count == 1 else Grant(self.subscription, token, mine)


class HeldBatch:
    """Grants that the application works on as one batch, and which of them failed.

    Args:
        frame: The grants.
    """

    def __init__(self, frame: GrantFrame) -> None:
        self.frame = frame
        self.has_begun = False
        self._failed: dict[int, tuple[int, float | None, str, bool]] = {}  # token -> (offset, delay, reason, is last)

    def has(self, message: Message) -> bool:
        """Whether a message is in it."""
        frame = self.frame
        return message.partition == frame.subscription.number and message.offset in frame.offsets

    def begin(self) -> None:
        """The application works on it, and does not end at once."""
        self.has_begun = True
        self.frame.subscription.begin_all(self.frame.tokens)

    def fail(self, token: int, offset: int, delay_s: float | None, reason: str, *, is_last: bool) -> None:
        """The application failed on a message. The first one of a grant counts."""
        known = self._failed.get(token)
        if known is None or offset < known[0]:
            self._failed[token] = (offset, delay_s, reason, is_last)

    def fail_all(self, failed: Failed) -> None:
        """The application failed on all messages."""
        offsets, first = self.frame.offsets, 0
        for token, count in zip(self.frame.tokens, self.frame.counts, strict=True):
            self.fail(token, offsets[first], failed.delay_s, failed.reason, is_last=failed.is_last)
            first += count

    def finish(self) -> None:
        """Acknowledge what did not fail, and give the rest back."""
        frame, subscription = self.frame, self.frame.subscription
        if not self._failed:
            subscription.acknowledge_all(frame.tokens)
            return
        offsets = iter(frame.offsets)
        for token, count in zip(frame.tokens, frame.counts, strict=True):
            failed = self._failed.get(token)
            for offset in islice(offsets, count):
                if failed is None or offset < failed[0]:
                    subscription.acknowledge(token, offset)
            if failed is not None:
                offset, delay_s, reason, is_last = failed
                subscription.fail(token, offset, delay_s, reason, is_last=is_last)


class KeyedBatch:
    """Messages of many keys that came together. `KeyedConsumer.run_batches` gives them to its handler.

    The messages of one key are in their order. Later messages of these keys come in later batches, when this one is
    acknowledged. `len(batch)` is the number of messages.

    Attributes:
        topic: The topic's name.
        partition: The partition's number in the topic.
    """

    def __init__(self, held: HeldBatch, opened: Callable[[GrantFrame, Callable[[GrantFrame], Any]], Any]) -> None:
        self.topic = held.frame.subscription.topic
        self.partition = held.frame.subscription.number
        self._held = held
        self._opened = opened
        self._messages: Sequence[Message] | None = None

    def __len__(self) -> int:
        return len(self._held.frame.offsets)

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each message."""
        return self._held.frame.offsets

    @property
    def messages(self) -> Sequence[Message]:
        """The messages.

        Raises:
            SeriatimError: They cannot be read. The consumer stops.
        """
        if self._messages is None:
            self._messages = self._opened(self._held.frame, GrantFrame.messages)
        return self._messages

    @property
    def table(self) -> pa.Table:
        """The messages as the columns key, value, timestamp, headers and tag. No value was copied.

        Raises:
            SeriatimError: They cannot be read. The consumer stops.
        """
        import pyarrow as pa

        return pa.Table.from_batches([self._opened(self._held.frame, GrantFrame.rows)])

    def fail(self, message: Message, delay_s: float | None = None, reason: str = "", *, is_last: bool = False) -> None:
        """Give one message back. It comes again after a delay, and later messages of its key come after it.

        Earlier messages of its key in the batch are acknowledged with the batch, and so are all other keys.

        Args:
            message: A message of this batch.
            delay_s: Seconds; None: as the consumer group's policy says.
            reason: What went wrong, for humans: at most 200 bytes are kept.
            is_last: No other attempt can succeed.

        Raises:
            BadRequestError: The message is not of this batch, or the delay is negative or longer than 40 days.
            PreconditionError: The consumer group is at most once: the message does not come again.
        """
        handlers.check_delay(delay_s)
        handlers.check_reason(reason)
        if self._held.frame.is_at_most_once:
            raise PreconditionError("the group is at most once: the message was acknowledged before it was given")
        if not self._held.has(message):
            raise BadRequestError(f"the message at {format_offset(message.offset)} is not of this batch")
        self._held.fail(message.grant, message.offset, delay_s, handlers.cut(reason), is_last=is_last)


class KeyedSubscription(Subscribed):
    """One partition of a keyed consumer.

    Args:
        shared: What the partitions of the consumer share.
        take: Called with grants that came.
        number: The partition's number in the topic.
        partition_id: Its id in the cluster.
        start_at: Where the consumer group begins if it has no cursor.
        config: Times.
        in_flight_max: Maximum number of messages that are granted and not acknowledged.
        run_max: Maximum number of messages that are in one grant; 0: as many as the broker likes.
    """

    core: KeyedPartitionConsumer

    def __init__(
        self,
        shared: Shared,
        take: Callable[[GrantFrame], None],
        number: int,
        partition_id: int,
        start_at: Start,
        config: ct.ConsumerConfig,
        in_flight_max: int,
        run_max: int,
    ) -> None:
        core = KeyedPartitionConsumer(
            config, subscription_base=number << 32, on_demand=True, in_flight_max=in_flight_max
        )
        super().__init__(shared, number, partition_id, start_at, core)
        self._take = take
        self._in_flight_max = in_flight_max
        self._run_max = run_max
        self._is_accepted = False
        self._void_acks: set[int] = set()  # only for a recorder: tokens of which the server said that they do not count

    @property
    def _has_work(self) -> bool:
        return not self.core.wants_more

    # ---- from the application ------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._shared.topic

    def begin(self, token: int) -> bool:
        """The application begins to work on a grant. Returns whether it counts."""
        now_us = time.monotonic_ns() // 1000
        if self.core.has_lapsed(now_us):
            self.timer_due()
        is_first = not self.core.has_unsent
        is_held = self.core.begin(token, now_us)
        if is_first:  # else it is awake in time for what waits already
            self._wake()
        return is_held

    def begin_all(self, tokens: Iterable[int]) -> None:
        """The application begins to work on grants."""
        now_us = time.monotonic_ns() // 1000
        for token in tokens:
            self.core.begin(token, now_us)
        self._wake()

    def held(self) -> Collection[int]:
        """The tokens of the grants that count."""
        if self.core.has_lapsed(time.monotonic_ns() // 1000):
            self.timer_due()
        return self.core.grants

    def holds(self, token: int, now_us: int) -> bool:
        """Whether a grant counts."""
        if self.core.has_lapsed(now_us):
            self.timer_due()
        return token in self.core.grants

    def acknowledge(self, token: int, offset: int, now_us: int = 0) -> bool:
        """The application is done with a message. Returns whether that counts."""
        core = self.core
        is_first = not core.has_unsent
        counts = core.acknowledge(token, offset, now_us or time.monotonic_ns() // 1000)
        if counts:
            if is_first or core.is_enough_unsent:
                self._wake()
            if self._shared.recorder is not None:
                self._shared.recorder.acked_single(self._place, [offset], [token])
        return counts

    def acknowledge_all(self, tokens: Sequence[int]) -> int:
        """The application is done with all messages of grants. Returns of how many messages that counts."""
        now_us = time.monotonic_ns() // 1000
        if self._shared.recorder is not None:
            self._shared.recorder.acked_single(self._place, *self.core.held_rows(tokens))
        count = self.core.acknowledge_all(tokens, now_us)
        self.hurry(now_us, at_once=True)
        return count

    def record(self, messages: Sequence[Message]) -> None:
        """Note in the history that the application gets these messages."""
        shared = self._shared
        if shared.recorder is not None:
            by_key = shared.mode == records_pb2.CONSUMER_MODE_KEY_ORDERED
            epoch = self.core.group_epoch
            shared.recorder.granted(self._place, messages, epoch, by_key=by_key, at_most_once=self.core.at_most_once)

    @property
    def _place(self) -> Place:
        return Place(self._shared.group, self._shared.name, self._shared.topic, self.number)

    def hurry(self, now_us: int, *, at_once: bool = False) -> None:
        """Send what is acknowledged soon, because nothing more waits for the application."""
        if self.core.has_unsent:
            self.core.hurry(now_us, at_once=at_once)
            self._wake()

    @entry
    def fail(self, token: int, offset: int, delay_s: float | None, reason: str, *, is_last: bool) -> None:
        """The application failed on a message."""
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        if self._shared.recorder is not None and token in self.core.grants:
            self._shared.recorder.failed(self._place, offset, token, is_last=is_last)
        self._step(ct.Fail(token, offset, delay_ms, reason, is_last))

    @entry
    def hold(self, token: int, hold_s: float | None, *, is_manual: bool) -> None:
        """The application needs a grant for this many seconds from now."""
        self._step(ct.Hold(token, None if hold_s is None else max(round(hold_s * 1000), 1), is_manual))

    @entry
    def release(self, tokens: tuple[int, ...], *, is_unseen: bool) -> None:
        """The application gives grants back, and did not fail on them."""
        self._step(ct.Release(tokens, is_unseen))

    @entry
    def demand(self, messages: int, run_max: int = 0) -> None:
        """The application asks for this many messages from now on."""
        self._step(ct.Demanded(messages, run_max))

    def _wake(self) -> None:
        due_us = self.core.wake_at_us
        if due_us is not None:
            self._shared.alarms.set(self, due_us / 1e6)

    # ---- from the streams ----------------------------------------------------------------------------

    @entry
    def told(self, event: broker_pb2.DeliveryEvent) -> None:
        """An event came that is not a delivery."""
        offsets: list[int] = []
        tokens: list[int] = []
        if self._shared.recorder is not None and event.subscription == self.core.subscription:
            if event.tokens_void.tokens:
                _, unconfirmed = self.core.confirmed_by(OFFSET_MAX)
                self._void_acks = self._void_acks.union(event.tokens_void.tokens).intersection(unconfirmed)
            offsets, tokens = self.core.confirmed_by(event.acks_confirmed.number)
        self._step(core_event(event))
        if self._shared.recorder is not None and tokens:
            kept = [at for at, token in enumerate(tokens) if token not in self._void_acks]
            rows = [offsets[at] for at in kept], [tokens[at] for at in kept]
            self._shared.recorder.confirmed(self._place, *rows, self.core.group_epoch)
            self._void_acks.difference_update(tokens)

    def _delivered(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> bool:
        granted = event.granted
        (header, body) = batches[0]
        # Protobuf makes the numbers of a column again each time that it is read.
        tokens, counts, offsets = list(granted.token), list(granted.count), list(granted.offset)
        if not len(counts) == len(tokens) == len(granted.attempt) == len(granted.maybe_repeated):
            raise BadRequestError("a broker sent grants whose columns have different lengths")
        if not header.message_count == len(offsets) == sum(counts) or min(counts, default=0) < 1:
            raise BadRequestError("a broker sent grants with another number of messages than offsets")
        self._is_accepted = False
        self._step(ct.Granted(event.subscription, tokens, counts, offsets, granted.server_epoch))
        link.give_credit(HEADER_SIZE_BYTES + header.body_length)
        if self._is_accepted:
            self._take(
                GrantFrame(self, tokens, counts, offsets, granted.attempt, granted.maybe_repeated, (header, body))
            )
        return True

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
                    subscription=effect.subscription,
                    tokens=effect.tokens,
                    grant_ms=effect.grant_ms,
                    unseen=effect.is_unseen,
                )
                write(effect.stream, broker_pb2.ConsumeRequest(extend=extend))
            case ct.SendDemand():
                demand = broker_pb2.Demand(
                    subscription=effect.subscription, messages=effect.messages, run_max=effect.run_max
                )
                write(effect.stream, broker_pb2.ConsumeRequest(demand=demand))
            case ct.TakeGrants():
                self._is_accepted = True
            case ct.GrantsEnded():
                if self._shared.recorder is not None:
                    self._shared.recorder.ended(self._place, effect.tokens)
            case _:
                pass

    def _join(self, effect: ct.SendJoin) -> broker_pb2.Join:
        join = super()._join(effect)
        join.in_flight_max = self._in_flight_max
        join.run_max = self._run_max
        join.on_demand = self.core.on_demand
        return join


class WaitingGrants:
    """Grants that wait for the application, in the order in which they came.

    One of those who wait is woken when grants come. Who takes one, and then waits for something else, wakes the next
    one with `wake_next`.

    Args:
        subscriptions: By number of the partition.
    """

    def __init__(self, subscriptions: Mapping[int, KeyedSubscription]) -> None:
        self.error: SeriatimError | None = None
        self.is_closed = False
        self._interruption: SeriatimError | None = None
        self._subscriptions = subscriptions
        self._frames: deque[GrantFrame] = deque()
        self._opened: Iterator[Message | Grant] = iter(())
        self._again: deque[Grant] = deque()  # their first messages are done
        self._next: Message | Grant | None = None  # of `_opened`
        self._wakers: deque[Callable[[], None]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._next is None and not (self._again or self._frames)

    @property
    def frame_count(self) -> int:
        """How often grants came that nothing was taken of."""
        return len(self._frames)

    def put(self, frame: GrantFrame) -> None:
        """Add grants that came."""
        self._frames.append(frame)
        self._interruption = None
        self._wake(1)

    def put_again(self, grant: Grant) -> None:
        """The next message of a grant can be worked on."""
        self._again.append(grant)
        self._wake(1)

    def _wake(self, count: int) -> None:
        while count > 0 and self._wakers:
            self._wakers.popleft()()
            count -= 1

    def wake_next(self) -> None:
        """If something waits here, wake one of those who wait for it."""
        if self._wakers and not self.is_empty:
            self._wake(1)

    def fail(self, error: SeriatimError) -> None:
        """Have each later call of the application raise an error."""
        if self.error is None:
            self.error = error
        self._wake(len(self._wakers))

    def interrupt(self, error: SeriatimError | None) -> None:
        """Have one call of the application raise an error, if it would wait. The next one waits again."""
        self._interruption = error
        if error is not None:
            self._wake(1)

    def check_interruption(self) -> None:
        """A call would wait.

        Raises:
            SeriatimError: It is the one that is interrupted.
        """
        if self._interruption is not None:
            error, self._interruption = self._interruption, None
            raise error

    def close(self) -> None:
        """Give back what waits, and wake all who wait: nothing comes any more."""
        self.is_closed = True
        self.give_back()
        self._wake(len(self._wakers))

    def give_back(self) -> None:
        """Give back all that waits: the application got none of it, and others may have it now."""
        frames, again, opened = list(self._frames), list(self._again), self._opened
        found = self._next
        self._frames.clear()
        self._again.clear()
        self._opened, self._next = iter(()), None
        for frame in frames:
            frame.release(is_unseen=True)
        for grant in again:
            grant.release(is_unseen=True)
        singles: dict[int, list[int]] = {}
        while found is not None:
            if isinstance(found, Grant):
                found.release(is_unseen=True)
            else:
                singles.setdefault(found.partition, []).append(found.grant)
            found = next(opened, None)
        for partition, tokens in singles.items():
            self._subscriptions[partition].release(tuple(tokens), is_unseen=True)

    def take(self) -> Message | Grant | None:
        """The next grant; None if none is here. It may have ended. One with a single message is only the message.

        Raises:
            SeriatimError: A body cannot be read. Each later call raises it too.
        """
        if self._again:
            return self._again.popleft()
        found = self._next
        if found is None:
            if not self._frames:
                return None
            self._opened = iter(self.opened(self._frames.popleft(), GrantFrame.grants))
            found = next(self._opened)
        self._next = next(self._opened, None)
        return found

    def opened(self, frame: GrantFrame, unpack: Callable[[GrantFrame], T]) -> T:
        """Unpack grants.

        Raises:
            SeriatimError: The body cannot be read. Each later call of the application raises it too.
        """
        try:
            return unpack(frame)
        except SeriatimError as exc:
            self.fail(exc)
            raise
        except Exception as exc:
            place = f"{frame.subscription.topic}/{frame.subscription.number} at {format_offset(frame.offsets[0])}"
            error = BadRequestError(f"messages in {place} cannot be read: {type(exc).__name__}: {exc}")
            self.fail(error)
            raise error from exc

    def take_frame(self) -> GrantFrame | None:
        """The next grants that came together; None if there are none."""
        return self._frames.popleft() if self._frames else None

    def wake_me(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when a grant comes, or the error, or the end."""
        self._wakers.append(wake)

    def do_not_wake(self, wake: Callable[[], None]) -> bool:
        """Do not call `wake` any more. Returns whether it was called already."""
        if wake in self._wakers:
            self._wakers.remove(wake)
            return False
        return True
