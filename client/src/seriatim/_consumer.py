"""The consumer: partitions' cores, the streams they share, and what waits for the application.

Deliveries wait as batches and are unpacked when they are asked for. Credit goes back to the broker when they are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import (
    BadRequestError,
    IllegalNameError,
    PartitionOutOfRangeError,
    PreconditionError,
    SeriatimError,
    UnsupportedModeError,
    make_error,
)
from seriatim_api.ids import is_legal_name, make_offset, split_offset
from seriatim_api.v1 import broker_pb2, records_pb2

from seriatim import _batch
from seriatim._core import consumer_types as ct
from seriatim._core.consumer import CreditAccount, PartitionConsumer, Phase
from seriatim._core.producer_types import ReplyError
from seriatim._recording import Recorder
from seriatim._records import Assignment, Gap, Message, Topic
from seriatim._transport import Caller, Channels, ConsumeLink

Start = Literal["earliest", "latest"]

QUESTION_DEADLINE_S: Final = 2.0

SILENCE_S: Final = 1.0
"""A stream that brought nothing for so long is checked on: another broker is asked who serves one of its partitions.
An idle partition is silent as well, so silence alone proves nothing."""

_NO_HEADERS: Final[dict[str, bytes]] = {}
_STARTS: Final = {"earliest": broker_pb2.START_POSITION_EARLIEST, "latest": broker_pb2.START_POSITION_LATEST}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer reads; each has the default of `Client.consumer`."""

    start: Start = "earliest"
    """Where a group that was never here begins."""
    credit_bytes: int = 4 << 20
    """Bytes that each broker may send before the application has taken them."""
    ack_interval_ms: int = 5
    """Acknowledgements within this time go as one."""

    def __post_init__(self) -> None:
        if self.start not in _STARTS:
            raise BadRequestError(f"a group starts at earliest or latest, not {self.start!r}")
        if self.credit_bytes < 1 << 16:
            raise BadRequestError("credit_bytes is at least 64 KiB")


class FetchedTable(NamedTuple):
    """Rows of one partition, as they came.

    Attributes:
        topic: Their topic.
        partition: Number in the topic.
        offset: Of the first row; the others follow one by one.
        table: Columns key, value, timestamp, headers, tag; no value was copied.
        attempt: As of `Message`.
        maybe_repeated: Whether any row may have been delivered before by another server.
        grant: For `ack`.
    """

    topic: str
    partition: int
    offset: int
    table: pa.Table
    attempt: int
    maybe_repeated: bool
    grant: int


class _Chunk(NamedTuple):
    """A batch that waits for the application."""

    subscription: _Subscription
    grant: int
    segment: int
    from_index: int
    maybe_repeated_below: int
    attempt: int
    header: BatchHeader
    body: memoryview
    link: ConsumeLink


class _Subscription:
    """One partition of a consumer."""

    def __init__(self, number: int, partition_id: int, core: PartitionConsumer) -> None:
        self.number = number
        self.partition_id = partition_id
        self.core = core
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at_us = 0
        self.taken: tuple[int, int, int] | None = None  # grant, segment and index behind what the application took
        self.durable: tuple[int, int] = (0, 0)


class Consumer:
    """Reads a topic as a member of a consumer group, in exclusive mode. Get one from `Client.consumer`.

    Each partition is delivered to one consumer of the group at a time, in its order; others stand by and take over
    where the acknowledgements ended. What was delivered and not acknowledged then comes again.
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
    ) -> None:
        self.topic = topic.name
        self.group = group
        self.name = name
        self.settings = settings
        self.on_gap = on_gap
        self.on_assignment = on_assignment
        self._channels = channels
        self._caller = caller
        self._client_name = client_name
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, ConsumeLink] = {}
        self._credits: dict[ConsumeLink, CreditAccount] = {}
        self._stream_count = 0
        self._questions: set[asyncio.Task[None]] = set()
        self._chunks: deque[_Chunk] = deque()
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._error: SeriatimError | None = None
        self._closed = False
        numbers = range(topic.partition_count) if partitions is None else list(dict.fromkeys(partitions))
        for number in numbers:
            if not 0 <= number < topic.partition_count:
                raise PartitionOutOfRangeError(f"{topic.name} has partitions 0 to {topic.partition_count - 1}")
        config = ct.ConsumerConfig(ack_interval_ms=settings.ack_interval_ms)
        self._subscriptions = {
            number: _Subscription(
                number, topic.partition_ids[number], PartitionConsumer(config, subscription_base=number << 32)
            )
            for number in numbers
        }
        self._watch = asyncio.create_task(self._watch_silence(), name=f"consumer watch {self.topic}")
        for subscription in self._subscriptions.values():
            self._step(subscription, ct.Timer())

    # ---- reading -------------------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[int, ...]:
        """Partitions that are delivered to this consumer now."""
        return tuple(n for n, s in self._subscriptions.items() if s.core.phase is Phase.ACTIVE)

    @property
    def joined(self) -> tuple[int, ...]:
        """Partitions whose server knows this consumer, active or standing by."""
        return tuple(n for n, s in self._subscriptions.items() if s.core.phase in (Phase.ACTIVE, Phase.STANDBY))

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            message = await self._next(None)
            assert message is not None
            if self._recorder is not None:
                self._recorder.deliveries([message], self.group, self.name)
            yield message

    async def fetch(self, max_messages: int = 500, timeout_s: float = 1.0) -> list[Message]:
        """Wait until there is a message, and return what is there: a long poll.

        Args:
            max_messages: At most so many.
            timeout_s: Then an empty list is returned. 0 does not wait.

        Raises:
            SeriatimError: A partition cannot be read any more (and why).
            PreconditionError: The consumer is closed.

        If cancelled, nothing is lost.
        """
        assert max_messages > 0
        first = await self._next(self._loop.time() + timeout_s)
        if first is None:
            return []
        messages = [first]
        while len(messages) < max_messages and (message := self._take()) is not None:
            messages.append(message)
        if self._recorder is not None:
            self._recorder.deliveries(messages, self.group, self.name)
        return messages

    async def fetch_table(self, timeout_s: float = 1.0) -> FetchedTable | None:
        """Wait for a batch, and return it as an Arrow table whose values are views of what came; None at the deadline.

        Do not mix with the other forms of reading before all that they took is used up.
        """
        deadline = self._loop.time() + timeout_s
        while True:
            self._check()
            while self._chunks:
                chunk = self._chunks.popleft()
                self._free(chunk)
                if chunk.grant != chunk.subscription.core.grant:
                    continue
                return self._table(chunk)
            if not await self._wait(deadline):
                return None

    def _table(self, chunk: _Chunk) -> FetchedTable:
        header = chunk.header
        batch = _batch.decode(chunk.body, header.message_count, header.body_crc)
        first = chunk.from_index - header.base_index
        chunk.subscription.taken = (chunk.grant, chunk.segment, header.end_index)
        table = FetchedTable(
            self.topic,
            chunk.subscription.number,
            make_offset(chunk.segment, chunk.from_index),
            pa.Table.from_batches([batch.slice(first)]),
            chunk.attempt,
            chunk.from_index < chunk.maybe_repeated_below,
            chunk.grant,
        )
        if self._recorder is not None:
            self._recorder.deliveries(list(self._unpack(chunk, batch)), self.group, self.name)
        return table

    async def _next(self, deadline: float | None) -> Message | None:
        while True:
            self._check()
            message = self._take()
            if message is not None:
                return message
            if not await self._wait(deadline):
                return None

    async def _wait(self, deadline: float | None) -> bool:
        self._arrived.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise PreconditionError("the consumer is closed")

    def _take(self) -> Message | None:
        """The next message that is still ours to deliver."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                subscription = self._subscriptions[message.partition]
                if message.grant == subscription.core.grant:
                    segment, index = split_offset(message.offset)
                    subscription.taken = (message.grant, segment, index + 1)
                    return message
            if not self._chunks:
                return None
            chunk = self._chunks.popleft()
            self._free(chunk)
            if chunk.grant == chunk.subscription.core.grant:
                batch = _batch.decode(chunk.body, chunk.header.message_count, chunk.header.body_crc)
                self._messages.extend(self._unpack(chunk, batch))

    def _unpack(self, chunk: _Chunk, batch: Any) -> list[Message]:
        header = chunk.header
        first = chunk.from_index - header.base_index
        rows = batch.slice(first) if first else batch
        keys, values, timestamps, headers, tags = rows.columns
        count = rows.num_rows
        offset = make_offset(chunk.segment, chunk.from_index)
        split = min(max(chunk.maybe_repeated_below - chunk.from_index, 0), count)
        return list(
            map(
                Message,
                itertools.repeat(self.topic),
                itertools.repeat(chunk.subscription.number),
                range(offset, offset + count),
                _column(keys, count),
                values.to_pylist(),
                timestamps.to_pylist(),
                _header_column(headers, count),
                _column(tags, count),
                itertools.repeat(chunk.attempt),
                itertools.chain(itertools.repeat(True, split), itertools.repeat(False, count - split)),
                itertools.repeat(chunk.grant),
            )
        )

    def _free(self, chunk: _Chunk) -> None:
        self._give_credit(chunk.link, HEADER_SIZE_BYTES + chunk.header.body_length)

    def _give_credit(self, link: ConsumeLink, size_bytes: int) -> None:
        account = self._credits.get(link)
        if account is not None and (granted := account.free(size_bytes)):
            link.write(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=granted)))

    # ---- acknowledging -------------------------------------------------------------------------------

    async def ack(self, message: Message | FetchedTable | int, partition: int | None = None) -> bool:
        """Acknowledge a message and all before it in its partition; of a table, all its rows.

        Args:
            message: What was delivered, or its offset (then with `partition`).
            partition: Only with an offset.

        Returns:
            False if the partition was taken over, or begun anew, since: the message comes again, here or elsewhere.

        Raises:
            BadRequestError: An offset that was not delivered.
        """
        if isinstance(message, int):
            if partition is None or partition not in self._subscriptions:
                raise BadRequestError("an offset is acknowledged with its partition")
            subscription = self._subscriptions[partition]
            grant, offset = subscription.core.grant, message
        else:
            subscription = self._subscriptions[message.partition]
            grant, offset = message.grant, message.offset
            if isinstance(message, FetchedTable):
                offset += message.table.num_rows - 1
        return self._acknowledge(subscription, grant, offset)

    def _acknowledge(self, subscription: _Subscription, grant: int, offset: int) -> bool:
        core = subscription.core
        segment, index = split_offset(offset)
        if core.phase is not Phase.ACTIVE or grant != core.grant or segment != core.segment:
            return False
        if subscription.taken is None or subscription.taken[0] != grant or index >= subscription.taken[2]:
            raise BadRequestError(f"offset {segment}:{index} was not delivered to this consumer")
        if self._recorder is not None:
            self._recorder.acked(self.group, self.topic, subscription.number, offset)
        self._step(subscription, ct.Acknowledge(grant, segment, index + 1))
        return True

    async def ack_all(self) -> None:
        """Acknowledge all that the application has been given so far."""
        for subscription in self._subscriptions.values():
            if subscription.taken is not None:
                grant, segment, index = subscription.taken
                if grant == subscription.core.grant and subscription.core.phase is Phase.ACTIVE and index:
                    self._acknowledge(subscription, grant, make_offset(segment, index - 1))

    # ---- ending --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send the last acknowledgements and leave; a standby takes over at once. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._watch.cancel()
        for subscription in self._subscriptions.values():
            self._step(subscription, ct.Leave())
            if subscription.timer is not None:
                subscription.timer.cancel()
        for task in self._questions:
            task.cancel()
        await asyncio.gather(self._watch, *self._questions, return_exceptions=True)
        links = list(self._links.values())
        try:
            async with asyncio.timeout(1.0):
                await asyncio.gather(*(link.drain() for link in links))
        except TimeoutError:
            pass  # a broker that does not read will find the stream closed instead
        await asyncio.gather(*(link.close() for link in links))
        self._arrived.set()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- the links -----------------------------------------------------------------------------------

    def consume_link_up(self, link: ConsumeLink) -> None:
        """A stream is up: those who wait for it join."""
        for subscription in self._subscriptions.values():
            self._step(subscription, ct.Connected(link.address, link.stream))

    def consume_link_down(self, link: ConsumeLink, reason: SeriatimError) -> None:
        """A stream is over."""
        del reason  # what to do is the same; the next question tells whether it was for good
        if self._links.get(link.address) is link:
            del self._links[link.address]
        self._credits.pop(link, None)
        if self._closed:
            return
        stream = link.stream if link.is_up else None
        for subscription in self._subscriptions.values():
            self._step(subscription, ct.Disconnected(link.address, stream))

    def arrived(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> None:
        """The broker said something of a subscription."""
        subscription = self._subscriptions.get(event.subscription >> 32)
        if event.HasField("batches"):
            accepted = subscription is not None and self._take_in(subscription, link, event, batches)
            if not accepted:
                for header, _ in batches:
                    self._give_credit(link, HEADER_SIZE_BYTES + header.body_length)
        elif subscription is not None:
            self._step(subscription, _core_event(event))

    def _take_in(
        self,
        subscription: _Subscription,
        link: ConsumeLink,
        event: broker_pb2.DeliveryEvent,
        batches: Sequence[tuple[BatchHeader, memoryview]],
    ) -> bool:
        """Let the core judge a delivery; whether it is to be handed out."""
        told = event.batches
        deliver = self._step(
            subscription,
            ct.Delivered(
                event.subscription,
                told.segment,
                tuple((header.base_index, header.message_count) for header, _ in batches),
                told.from_index,
                told.maybe_repeated_below,
                told.attempt,
                told.server_epoch,
            ),
        )
        if deliver is None:
            return False
        from_index = deliver.from_index
        for header, body in batches:
            self._chunks.append(
                _Chunk(
                    subscription, deliver.grant, deliver.segment, max(from_index, header.base_index),
                    deliver.maybe_repeated_below, deliver.attempt, header, body, link,
                )
            )  # fmt: skip
        self._arrived.set()
        return True

    async def _watch_silence(self) -> None:
        """Find out whether a silent stream still leads to the server."""
        while True:
            await asyncio.sleep(SILENCE_S / 2)
            now = self._loop.time()
            for link in list(self._links.values()):
                if link.is_up and now - link.heard_at >= SILENCE_S:
                    await self._check_on(link)

    async def _check_on(self, link: ConsumeLink) -> None:
        for subscription in self._subscriptions.values():
            core = subscription.core
            if core.phase not in (Phase.ACTIVE, Phase.STANDBY) or core.place is None:
                continue
            if core.place.address != link.address:
                continue
            place = await self._ask(subscription, None, link.address)
            if place is not None and (place.segment, place.server_epoch) > (
                core.place.segment,
                core.place.server_epoch,
            ):
                link.give_up()  # another has the right: this one is frozen, or cut off from us
                await link.close()
            else:
                link.heard_at = self._loop.time()
            return

    # ---- the cores -----------------------------------------------------------------------------------

    def _step(self, subscription: _Subscription, event: ct.Event) -> ct.Deliver | None:
        """Feed a core and do what it says; a Deliver is left to the caller."""
        now_us = time.monotonic_ns() // 1000
        deliver = None
        try:
            effects = subscription.core.step(event, now_us, random.random())  # noqa: S311 - spreads retries
        except SeriatimError as exc:
            self._fail(exc)
            return None
        for effect in effects:
            if isinstance(effect, ct.Deliver):
                deliver = effect
            else:
                self._do(subscription, effect)
        self._set_timer(subscription)
        return deliver

    def _do(self, subscription: _Subscription, effect: ct.Effect) -> None:
        match effect:
            case ct.SendAck():
                ack = broker_pb2.Ack(subscription=effect.subscription, token=effect.token, offset=effect.offset)
                self._write(effect.stream, broker_pb2.ConsumeRequest(ack=ack))
            case ct.AckedDurably():
                subscription.durable = (effect.segment, effect.index)
            case ct.SendJoin():
                self._write(effect.stream, broker_pb2.ConsumeRequest(join=self._join(subscription, effect)))
            case ct.SendLeave():
                leave = broker_pb2.Leave(subscription=effect.subscription)
                self._write(effect.stream, broker_pb2.ConsumeRequest(leave=leave))
            case ct.OpenStream():
                self._open(subscription, effect.address)
            case ct.Resolve():
                self._resolve(subscription, effect)
            case ct.Assigned():
                self._assigned(subscription, effect)
            case ct.GapFound():
                self._gap(subscription, effect)
            case ct.Passed():
                if self._recorder is not None:
                    self._recorder.skip(
                        self.group, self.topic, subscription.number, effect.segment, effect.from_index, effect.to_index
                    )
            case ct.Ended():
                if effect.error is not None:
                    self._fail(make_error(effect.error.number, effect.error.message))

    def _join(self, subscription: _Subscription, effect: ct.SendJoin) -> broker_pb2.Join:
        return broker_pb2.Join(
            partition_id=subscription.partition_id,
            group=self.group,
            consumer=self.name,
            mode=records_pb2.CONSUMER_MODE_EXCLUSIVE,
            start=_STARTS[self.settings.start],
            subscription=effect.subscription,
            was_active=effect.was_active,
        )

    def _write(self, stream: int, request: broker_pb2.ConsumeRequest) -> None:
        for link in self._links.values():
            if link.stream == stream:
                link.write(request)

    def _open(self, subscription: _Subscription, address: str) -> None:
        link = self._links.get(address)
        if link is None:
            self._stream_count += 1
            link = ConsumeLink(
                self._channels, self, address, self._stream_count, self._client_name, self.settings.credit_bytes
            )
            self._links[address] = link
            self._credits[link] = CreditAccount(self.settings.credit_bytes)
        elif link.is_up:
            self._step(subscription, ct.Connected(address, link.stream))

    def _resolve(self, subscription: _Subscription, effect: ct.Resolve) -> None:
        async def ask() -> None:
            place = await self._ask(subscription, effect.failed_server_epoch, effect.avoid_address)
            self._step(subscription, ct.Resolved(place))

        task = asyncio.create_task(ask(), name=f"resolve {self.group} {self.topic}/{subscription.number}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _ask(
        self, subscription: _Subscription, failed_server_epoch: int | None, avoid: str | None
    ) -> ct.Place | None:
        request = broker_pb2.ResolveConsumerRequest(
            partition_id=subscription.partition_id,
            group=self.group,
            failed_server_epoch=failed_server_epoch,
            start=_STARTS[self.settings.start],
        )
        try:
            answer = await self._caller.routing("ResolveConsumer", request, QUESTION_DEADLINE_S, avoid=avoid)
        except SeriatimError as exc:
            if not exc.retriable:
                self._fail(exc)
            return None
        self._caller.learn([answer.server_address])
        return ct.Place(answer.segment, answer.server_address, answer.server_epoch)

    def _set_timer(self, subscription: _Subscription) -> None:
        at_us = None if self._closed else subscription.core.wake_at_us
        if subscription.timer is not None:
            if at_us is not None and subscription.timer_at_us <= at_us:
                return  # it looks again when it fires
            subscription.timer.cancel()
            subscription.timer = None
        if at_us is not None:
            subscription.timer_at_us = at_us
            delay_s = max(0.0, at_us / 1e6 - time.monotonic())
            subscription.timer = self._loop.call_later(delay_s, self._timer_due, subscription)

    def _timer_due(self, subscription: _Subscription) -> None:
        subscription.timer = None
        self._step(subscription, ct.Timer())

    def _assigned(self, subscription: _Subscription, effect: ct.Assigned) -> None:
        subscription.taken = None
        if self.on_assignment is not None and not self._closed:
            offset = make_offset(effect.segment, effect.index)
            self.on_assignment(Assignment(self.topic, subscription.number, effect.active, offset))

    def _gap(self, subscription: _Subscription, effect: ct.GapFound) -> None:
        if self._recorder is not None:
            self._recorder.gap(
                self.group, self.topic, subscription.number, effect.segment, effect.from_index, effect.reason
            )
        if self.on_gap is not None:
            offset = make_offset(effect.segment, effect.from_index)
            self.on_gap(Gap(self.topic, subscription.number, offset, effect.reason))

    def _fail(self, error: SeriatimError) -> None:
        """Order cannot be kept, or the group cannot be read: the application learns it from its next call."""
        if self._error is None:
            self._error = error
        self._arrived.set()


def _column(column: Any, count: int) -> Any:
    return itertools.repeat(None, count) if column.null_count == count else column.to_pylist()


def _header_column(column: Any, count: int) -> Any:
    if column.null_count == count:
        return itertools.repeat(_NO_HEADERS, count)
    return [dict(row) if row else _NO_HEADERS for row in column.to_pylist()]


def _core_event(event: broker_pb2.DeliveryEvent) -> ct.Event:
    """The one place that branches over what a broker tells, but for batches."""
    sub = event.subscription
    match event.WhichOneof("event"):
        case "ack_confirmed":
            return ct.AckConfirmed(sub, event.ack_confirmed.segment, event.ack_confirmed.index)
        case "joined":
            told = event.joined
            return ct.Joined(
                sub, told.active, told.segment, told.index, told.token, told.group_epoch, told.server_epoch
            )
        case "skip":
            return ct.Skipped(sub, event.skip.segment, event.skip.from_index, event.skip.to_index)
        case "end_of_segment":
            end = event.end_of_segment
            return ct.SegmentEnded(sub, end.segment, end.sealed_len, end.next_segment, end.next_server_address)
        case "refused":
            return ct.Refused(sub, _error(event.refused.error), event.refused.server_address)
        case "revoked":
            return ct.Refused(sub, _error(event.revoked.error))
        case "gap":
            return ct.GapDeclared(sub, event.gap.segment, event.gap.from_index, event.gap.reason)
        case _:
            return ct.Timer()  # of a newer broker; nothing that an exclusive consumer needs


def _error(error: Any) -> ReplyError:
    return ReplyError(error.number, error.message, error.retry_after_ms)


def check_group(group: str, mode: str) -> None:
    """Refuse what no broker would take.

    Raises:
        IllegalNameError: The group's name.
        UnsupportedModeError: A mode that is not served.
    """
    if not is_legal_name(group):
        raise IllegalNameError(f"{group!r} cannot name a consumer group")
    if mode != "exclusive":
        raise UnsupportedModeError(f"mode {mode!r} is not served by this version: exclusive is")


def make_consumer_name() -> str:
    """Unique in any group."""
    return f"consumer-{os.urandom(6).hex()}"
