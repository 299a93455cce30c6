"""The producer: room, partitions, timers and questions around the pure cores.

One producer has one id and one core for each partition that it sends to. There is no task for a partition and none
for a message: partitions with something to do are queued, and one callback in a turn of the loop serves them all.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from seriatim_api.errors import (
    BadRequestError,
    MessageTooLargeError,
    OverloadedError,
    PartitionOutOfRangeError,
    PreconditionError,
    SeriatimError,
)
from seriatim_api.v1 import broker_pb2

from seriatim import _batch
from seriatim._batch import Compression, Headers
from seriatim._core.producer import Outcome, ProducerConfig, Resolve, Route, Timer
from seriatim._partition import PartitionSender, route_of
from seriatim._partitioner import Partitioner, partition_of_key
from seriatim._pending import MESSAGE_OVERHEAD_BYTES, Cut, split_rows
from seriatim._records import AckLevel, Topic
from seriatim._sending import Deliveries, Delivery, Settlement
from seriatim._transport import AppendLink, AppendLinks, Caller, Channels

__all__ = ["FlushResult", "Producer", "ProducerSettings"]

BATCH_SIZE_BYTES_MAX: Final = 512 << 10

BATCH_BYTES_DEFAULT: Final = 1 << 20
"""The brokers' limit of a body, where the topic names none."""

BATCH_OVERHEAD_BYTES: Final = 4096
"""Room in a body for what surrounds a single message: metadata, offsets, headers, padding."""

COMPLAINT_DEADLINE_S: Final = 2.0
"""A broker answers a complaint when the chain has moved, or then."""

QUESTION_DEADLINE_S: Final = 1.0

_BYTES: Final[set[type]] = {bytes}
_BYTES_OR_NONE: Final[set[type]] = {bytes, type(None)}

YIELD_BYTES: Final = 256 << 10
"""A sender that never waits for anything lets the loop turn after so much."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer sends; each has the default of `Client.producer`."""

    ack_level: AckLevel = AckLevel.REPLICATED_FLUSHED
    """When a send counts as done. Only the replicated levels carry the promise."""
    linger_ms: float = 5.0
    """How long a batch may wait to grow while another is on its way. With none on its way it goes at once."""
    batch_size_bytes: int = 256 << 10
    """Payload at which a batch goes without waiting; at most 512 KiB. A larger message has a batch of its own."""
    compression: Compression | None = None
    """Of bodies: None, "lz4" or "zstd"."""
    window_batches: int = 16
    """Batches on their way for each partition."""
    buffer_size_bytes: int = 32 << 20
    """Messages taken and not settled; over it `send` waits."""
    delivery_timeout_ms: int = 120_000
    """Until a message that nobody acknowledges is given up, as failed or unknown."""
    reply_timeout_ms: int = 1000
    """Silence of a master before another broker is told."""
    partitioner: Partitioner = partition_of_key
    """Which partition a key goes to."""

    def __post_init__(self) -> None:
        if not 0 < self.batch_size_bytes <= BATCH_SIZE_BYTES_MAX:
            raise BadRequestError(f"batch_size_bytes is from 1 to {BATCH_SIZE_BYTES_MAX}")
        if self.compression not in (None, "lz4", "zstd"):
            raise BadRequestError(f"there is no compression {self.compression!r}: lz4, zstd or None")
        if min(self.window_batches, self.buffer_size_bytes, self.delivery_timeout_ms, self.reply_timeout_ms) <= 0:
            raise BadRequestError("windows, buffers and timeouts are above 0")


class FlushResult(NamedTuple):
    """How many messages ended how since the last flush."""

    ok: int
    failed: int
    unknown: int


class MessageRecorder(Protocol):
    """What a producer writes down of its batches; see `_recording`."""

    def sends(self, cut: Cut, topic: str, partition: int, producer: str, position: int) -> Sequence[Any]:
        """A batch is about to be sent; returns the ids of its messages."""

    def outcomes(self, ids: Sequence[Any], settlement: Settlement) -> None:
        """The messages of a batch are settled."""


class Producer:
    """Sends messages to a topic, in order for each partition. Get one from `Client.producer`.

    Messages of one producer to one partition are stored in the order of the calls, retries and failovers included.
    Use it from one event loop.
    """

    def __init__(
        self,
        topic: Topic,
        routes: Sequence[Route],
        settings: ProducerSettings,
        channels: Channels,
        caller: Caller,
        links: AppendLinks,
        recorder: MessageRecorder | None,
    ) -> None:
        self.topic = topic.name
        self.producer_id = os.urandom(16)
        self.settings = settings
        self.batch_size_bytes = settings.batch_size_bytes
        self.compression = settings.compression
        self.linger_s = settings.linger_ms / 1000
        self.ack_level = int(settings.ack_level)
        self.links = links
        fits_in_batch = max(1, (topic.settings.batch_size_bytes_max or BATCH_BYTES_DEFAULT) - BATCH_OVERHEAD_BYTES)
        self.message_size_bytes_max = min(topic.settings.message_size_bytes_max or fits_in_batch, fits_in_batch)
        self._channels = channels
        self._caller = caller
        self._recorder = recorder
        config = ProducerConfig(
            window_batches_max=settings.window_batches,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            reply_timeout_ms=settings.reply_timeout_ms,
        )
        self._partitions = [
            PartitionSender(self, number, partition_id, config, route)
            for number, (partition_id, route) in enumerate(zip(topic.partition_ids, routes, strict=True))
        ]
        for partition in self._partitions:
            links.register(partition.partition_id, self.producer_id, partition)
        self._sticky = int.from_bytes(self.producer_id[:4], "little") % len(self._partitions)
        self._loop = asyncio.get_running_loop()
        self._ready: deque[PartitionSender] = deque()
        self._turn_is_due = False
        self._lingering: list[tuple[float, int, PartitionSender]] = []
        self._linger_timer: asyncio.TimerHandle | None = None
        self._timers: list[tuple[int, int, PartitionSender]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_us = 0
        self._timer_count = itertools.count()
        self._questions: set[asyncio.Task[None]] = set()
        self._asked_about: set[PartitionSender] = set()
        self._buffered_bytes = 0
        self._unsettled_count = 0
        self._since_yield_bytes = 0
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._flush_waiters: list[asyncio.Future[None]] = []
        self._counts = dict.fromkeys(Outcome, 0)
        self._counts_at_flush = dict(self._counts)
        self._closed = False

    @property
    def partition_count(self) -> int:
        """How many partitions the topic had when the producer was made."""
        return len(self._partitions)

    @property
    def buffered_bytes(self) -> int:
        """Payload taken and not settled."""
        return self._buffered_bytes

    @property
    def unsettled_count(self) -> int:
        """Messages taken and not settled."""
        return self._unsettled_count

    # ---- sending -------------------------------------------------------------------------------------

    async def send(
        self,
        value: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
    ) -> Delivery:
        """Take a message once there is room for it; the delivery that is returned settles later.

        Args:
            value: The payload, at most `message_size_bytes_max` together with its key.
            key: Messages of one key go to one partition, in order.
            partition: Number in the topic; overrides the key.
            timestamp_ms: The message's own time; now if absent.
            headers: Names and values.
            tag: A word to filter by.

        Raises:
            MessageTooLargeError: Over the limit; nothing was taken.
            PartitionOutOfRangeError: The topic has fewer partitions.
            PreconditionError: The producer is closed.

        If cancelled, the message was not taken.
        """
        size = self._checked_size(value, key)
        if not self._has_room(size):
            await self._wait_for_room(size)
        self._since_yield_bytes += size
        delivery = self.send_nowait(value, key, partition, timestamp_ms, headers, tag, _may_wait=True)
        if self._since_yield_bytes >= YIELD_BYTES:
            self._since_yield_bytes = 0
            await asyncio.sleep(0)
        return delivery

    def send_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        *,
        _may_wait: bool = False,
    ) -> Delivery:
        """As `send`, without waiting.

        Raises:
            OverloadedError: `buffer_size_bytes` are on their way, or others wait for room.
        """
        size = self._checked_size(value, key)
        if not _may_wait and not self._has_room(size):
            raise OverloadedError(f"{self._buffered_bytes} bytes are on their way already")
        check_headers(headers, tag)
        target = self._partition(key, partition)
        delivery = Delivery()
        now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        target.pending.add_one(value, key, now_ms, headers, tag, delivery, size, time.monotonic())
        self._took(target, 1, size)
        return delivery

    async def send_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
    ) -> Deliveries:
        """Take many messages at once, in their order: far cheaper than one by one.

        Args:
            values: The payloads; the other sequences, if given, are as long.
            keys: A key for each, or None.
            partition: One for all, overrides the keys. Without it and without keys all go to one partition.
            timestamps_ms: A time for each; now if absent.
            headers: Headers for each.
            tags: A tag for each.

        Raises:
            MessageTooLargeError: One is over the limit; none was taken.
            BadRequestError: The sequences differ in length.
            PartitionOutOfRangeError: The topic has fewer partitions.
            PreconditionError: The producer is closed.

        If cancelled, none was taken.
        """
        count = len(values)
        for column in (keys, timestamps_ms, headers, tags):
            if column is not None and len(column) != count:
                raise BadRequestError(f"{count} values, and a column of {len(column)} beside them")
        for row in headers or ():
            check_headers(row, None)
        for tag in tags or ():
            check_headers(None, tag)
        deliveries = Deliveries(count)
        if not count:
            return deliveries
        size = self._checked_sizes(values, keys)
        groups = self._groups(keys, partition, count)
        if not self._has_room(size):
            await self._wait_for_room(size)
        if timestamps_ms is None:
            timestamps_ms = [int(time.time() * 1000)] * count
        now = time.monotonic()
        for target, at in groups:
            sink = deliveries.slice(at)
            if len(at) == count:
                target.pending.add_many(values, keys, timestamps_ms, headers, tags, sink, size, now)
                self._took(target, count, size)
                continue
            picked, picked_keys = _pick(values, at), _pick(keys, at)
            part_size = _payload_bytes(picked, picked_keys)
            target.pending.add_many(
                picked, picked_keys, _pick(timestamps_ms, at), _pick(headers, at), _pick(tags, at), sink, part_size, now
            )
            self._took(target, len(at), part_size)
        await self._yield(size)
        return deliveries

    async def send_table(
        self, table: pa.Table | pa.RecordBatch, partition: int | None = None, key_column: str = "key"
    ) -> Deliveries:
        """Take the rows of an Arrow table, in their order, without copying values.

        Columns: key, value, timestamp, headers, tag; only `value` must be there. Slices of the table become batches as
        they are. With keys and no `partition`, rows are grouped by partition first, which copies them once.

        Args:
            table: Rows to send.
            partition: One for all rows; without it and without keys all go to one partition.
            key_column: The column that holds the key, if it is not called key.

        Raises:
            TypeError: A column is missing, unknown or of a wrong type.
            MessageTooLargeError: A row is over the limit; none was taken.
            PartitionOutOfRangeError: The topic has fewer partitions.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if key_column != "key":
            table = table.rename_columns(["key" if name == key_column else name for name in table.column_names])
        table = _batch.conform(table, int(time.time() * 1000))
        deliveries = Deliveries(table.num_rows)
        keyed = table.column(0).null_count < table.num_rows
        keys = table.column(0).to_pylist() if keyed and partition is None else None
        base = 0
        groups = self._groups(keys, partition, table.num_rows) if table.num_rows else []
        for target, positions in groups:
            part = table if len(groups) == 1 else table.take(_batch.row_numbers(positions))
            base = 0
            for chunk in part.to_batches():
                for piece in split_rows(chunk, self.batch_size_bytes):
                    await self._send_piece(target, piece, deliveries, positions[base : base + piece.num_rows], keyed)
                    base += piece.num_rows
        return deliveries

    async def _send_piece(
        self, target: PartitionSender, piece: Any, deliveries: Deliveries, positions: Sequence[int], keyed: bool
    ) -> None:
        size = piece.nbytes + piece.num_rows
        if size > self.message_size_bytes_max and piece.num_rows == 1:
            raise MessageTooLargeError(f"a row of {size} bytes, at most {self.message_size_bytes_max}")
        if not self._has_room(size):
            await self._wait_for_room(size)
        target.pending.add_record_batch(piece, deliveries.slice(positions), 0, keyed, time.monotonic())
        self._took(target, piece.num_rows, size)
        await self._yield(size)

    async def flush(self) -> FlushResult:
        """Send what lingers, and wait until all that was taken is settled.

        If cancelled, sending goes on.
        """
        for partition in self._partitions:
            if partition.pending:
                self.make_ready(partition)
        if self._unsettled_count:
            waiter = self._loop.create_future()
            self._flush_waiters.append(waiter)
            self._schedule_turn()
            try:
                await waiter
            finally:
                if waiter in self._flush_waiters:
                    self._flush_waiters.remove(waiter)
        counts, before = dict(self._counts), self._counts_at_flush
        self._counts_at_flush = counts
        return FlushResult(*(counts[outcome] - before[outcome] for outcome in Outcome))

    async def close(self, timeout_s: float | None = None) -> FlushResult:
        """Flush, for at most `timeout_s` (None: until the delivery timeout), then end. What is left is settled.

        A second call does nothing.
        """
        if self._closed:
            return FlushResult(0, 0, 0)
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                result = await self.flush()
        except TimeoutError:
            before = self._counts_at_flush
            for partition in self._partitions:
                partition.abandon()
            result = FlushResult(*(self._counts[outcome] - before[outcome] for outcome in Outcome))
        finally:
            await self._end()
        return result

    async def _end(self) -> None:
        for partition in self._partitions:
            partition.abandon()
            self.links.forget(partition.partition_id, self.producer_id)
        for timer in (self._timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        for task in self._questions:
            task.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_exception(PreconditionError("the producer is closed"))

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None if kind is None else 0)

    # ---- room and places -----------------------------------------------------------------------------

    def _checked_size(self, value: bytes, key: bytes | None) -> int:
        if not isinstance(value, bytes) or not (key is None or isinstance(key, bytes)):
            raise TypeError(f"keys and values are bytes, not {type(key).__name__} and {type(value).__name__}")
        size = len(value) + MESSAGE_OVERHEAD_BYTES + (0 if key is None else len(key))
        if size - MESSAGE_OVERHEAD_BYTES > self.message_size_bytes_max:
            raise MessageTooLargeError(
                f"a message of {size - MESSAGE_OVERHEAD_BYTES} bytes, at most {self.message_size_bytes_max}",
                size_bytes=size - MESSAGE_OVERHEAD_BYTES,
                size_bytes_max=self.message_size_bytes_max,
            )
        if self._closed:
            raise PreconditionError("the producer is closed")
        return size

    def _checked_sizes(self, values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> int:
        if self._closed:
            raise PreconditionError("the producer is closed")
        if not set(map(type, values)) <= _BYTES or not (keys is None or set(map(type, keys)) <= _BYTES_OR_NONE):
            raise TypeError("keys and values are bytes")
        largest = max(map(len, values))
        if keys is not None:
            largest += max((len(key) for key in keys if key is not None), default=0)
        if largest > self.message_size_bytes_max:
            for value, key in zip(values, keys or itertools.repeat(None), strict=False):
                self._checked_size(value, key)
        return _payload_bytes(values, keys)

    def _has_room(self, size: int) -> bool:
        if self._room_waiters:
            return False
        return self._buffered_bytes + size <= self.settings.buffer_size_bytes or not self._buffered_bytes

    async def _wait_for_room(self, size: int) -> None:
        """Wait in line until the message fits (or nothing else is on its way)."""
        first = True
        while True:
            waiter = self._loop.create_future()
            if first:
                self._room_waiters.append(waiter)
            else:
                self._room_waiters.appendleft(waiter)  # it keeps its place in the line
            first = False
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake_room()
                raise
            finally:
                if waiter in self._room_waiters:
                    self._room_waiters.remove(waiter)
            if self._buffered_bytes + size <= self.settings.buffer_size_bytes or not self._buffered_bytes:
                self._loop.call_soon(self._wake_room)  # there may be room for the next one as well
                return

    def _wake_room(self) -> None:
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _partition(self, key: bytes | None, partition: int | None) -> PartitionSender:
        if partition is not None:
            return self._numbered(partition)
        if key is not None:
            return self._numbered(self.settings.partitioner(key, len(self._partitions)))
        current = self._partitions[self._sticky]
        if current.pending.payload_bytes >= self.batch_size_bytes:
            self._next_sticky()
            current = self._partitions[self._sticky]
        return current

    def _next_sticky(self) -> None:
        self._sticky = (self._sticky + 1) % len(self._partitions)

    def _numbered(self, partition: int) -> PartitionSender:
        if not 0 <= partition < len(self._partitions):
            raise PartitionOutOfRangeError(
                f"{self.topic} has partitions 0 to {len(self._partitions) - 1}, not {partition}",
                partition=partition,
                partition_count=len(self._partitions),
            )
        return self._partitions[partition]

    def _groups(
        self, keys: Sequence[bytes | None] | None, partition: int | None, count: int
    ) -> list[tuple[PartitionSender, Sequence[int]]]:
        """Which messages of a call go where, by position."""
        if partition is not None or keys is None or len(self._partitions) == 1:
            if partition is None and keys is not None:
                partition = 0
            target = self._partition(None, partition)
            if partition is None:
                self._next_sticky()
            return [(target, range(count))]
        partitioner, partition_count = self.settings.partitioner, len(self._partitions)
        groups: dict[int, list[int]] = {}
        keyless = self._sticky
        for position, key in enumerate(keys):
            number = keyless if key is None else partitioner(key, partition_count)
            group = groups.get(number)
            if group is None:
                groups[number] = [position]
            else:
                group.append(position)
        return [(self._numbered(number), positions) for number, positions in groups.items()]

    def _took(self, target: PartitionSender, count: int, size: int) -> None:
        self._buffered_bytes += size
        self._unsettled_count += count
        if not target.is_ready:
            self.make_ready(target)

    async def _yield(self, size: int) -> None:
        self._since_yield_bytes += size
        if self._since_yield_bytes >= YIELD_BYTES:
            self._since_yield_bytes = 0
            await asyncio.sleep(0)

    # ---- turns and timers, for the partitions --------------------------------------------------------

    @property
    def is_flushing(self) -> bool:
        """Whether somebody waits for all to be sent."""
        return bool(self._flush_waiters)

    def make_ready(self, partition: PartitionSender) -> None:
        """The partition may have something to cut: serve it at the end of this turn of the loop."""
        if not partition.is_ready:
            partition.is_ready = True
            self._ready.append(partition)
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        for _ in range(len(self._ready)):
            partition = self._ready.popleft()
            partition.is_ready = False
            partition.pump()

    def was_cut(self, partition: PartitionSender) -> None:
        """A batch left: messages without a key go on with the next partition."""
        if partition is self._partitions[self._sticky]:
            self._next_sticky()

    def linger(self, partition: PartitionSender, until: float) -> None:
        """Look at the partition again at `until`, in monotonic seconds; an earlier wish stands."""
        if partition.lingers_until is not None and partition.lingers_until <= until:
            return
        partition.lingers_until = until
        heapq.heappush(self._lingering, (until, next(self._timer_count), partition))
        if self._linger_timer is None or self._lingering[0][2] is partition:
            if self._linger_timer is not None:
                self._linger_timer.cancel()
            self._linger_timer = self._loop.call_later(max(0.0, until - time.monotonic()), self._lingered)

    def _lingered(self) -> None:
        self._linger_timer = None
        now = time.monotonic()
        while self._lingering:
            until, _, partition = self._lingering[0]
            if until > now:
                self._linger_timer = self._loop.call_later(until - now, self._lingered)
                return
            heapq.heappop(self._lingering)
            if partition.lingers_until == until:
                partition.lingers_until = None
                if partition.pending:
                    self.make_ready(partition)

    def set_timer(self, partition: PartitionSender, at_us: int | None) -> None:
        """Wake the partition's core at `at_us`; earlier wishes may wake it too."""
        if at_us is None or (partition.timer_at_us is not None and partition.timer_at_us <= at_us):
            return
        partition.timer_at_us = at_us
        heapq.heappush(self._timers, (at_us, next(self._timer_count), partition))
        self._arm()

    def _arm(self) -> None:
        if not self._timers:
            return
        at_us = self._timers[0][0]
        if self._timer is not None:
            if self._timer_at_us <= at_us:
                return
            self._timer.cancel()
        self._timer_at_us = at_us
        delay_s = max(0.0, at_us / 1e6 - time.monotonic())
        self._timer = self._loop.call_later(delay_s, self._timers_due)

    def _timers_due(self) -> None:
        self._timer = None
        now_us = time.monotonic_ns() // 1000
        while self._timers and self._timers[0][0] <= now_us:
            at_us, _, partition = heapq.heappop(self._timers)
            if partition.timer_at_us != at_us:
                continue  # an earlier wish took its place
            partition.timer_at_us = None
            wanted = partition.core.wake_at_us
            if wanted is not None and wanted <= now_us:
                partition.step(Timer())
            self.set_timer(partition, partition.core.wake_at_us)
        self._arm()

    # ---- questions and outcomes, for the partitions --------------------------------------------------

    def resolve(self, partition: PartitionSender, effect: Resolve) -> None:
        """Ask where the partition is; the answer goes to the partition."""
        task = asyncio.create_task(self._resolve(partition, effect), name=f"resolve {self.topic}/{partition.number}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _resolve(self, partition: PartitionSender, effect: Resolve) -> None:
        partition.resolved(await self._ask(partition, effect))

    async def _ask(
        self, partition: PartitionSender, effect: Resolve, silent_segment: int | None = None
    ) -> Route | None:
        request = broker_pb2.ResolveProducerRequest(
            partition_id=partition.partition_id,
            known_epoch=effect.known_epoch,
            failed_segment=effect.failed_segment,
            silent_segment=silent_segment,
        )
        known = partition.core.route
        first = known.next_addresses[0] if known is not None and known.next_addresses else None
        timeout_s = QUESTION_DEADLINE_S if effect.failed_segment is None else COMPLAINT_DEADLINE_S
        try:
            answer = await self._caller.routing(
                "ResolveProducer", request, timeout_s, first=first, avoid=effect.avoid_address
            )
        except SeriatimError:
            return None  # the core asks again, less and less often, until the delivery timeout
        return route_of(answer)

    def ask_about(self, partition: PartitionSender, link: AppendLink) -> None:
        """A link is silent: ask, once at a time, and if this partition has left, ask for the link's others as well."""
        if partition in self._asked_about:
            return
        self._asked_about.add(partition)
        task = asyncio.create_task(self._ask_about(partition, link), name=f"ask {self.topic}/{partition.number}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _ask_about(self, partition: PartitionSender, link: AppendLink) -> None:
        known = partition.core.route
        assert known is not None
        try:
            route = await self._ask(partition, Resolve(None, known.epoch, link.address), silent_segment=known.segment)
        finally:
            self._asked_about.discard(partition)
        if route is not None and partition.route_known(route):
            for user in list(link.users):
                user.link_is_silent(link)

    def route_changed(self, _partition: PartitionSender, route: Route) -> None:
        """Keep a connection warm to the group that would be next."""
        if route.next_addresses:
            self._caller.learn(route.next_addresses)
            self._channels.warm(route.next_addresses[0])

    def record_sends(self, partition: int, position: int, cut: Cut) -> Sequence[Any] | None:
        """Write down that a batch is about to be sent."""
        if self._recorder is None:
            return None
        return self._recorder.sends(cut, self.topic, partition, self.producer_id.hex(), position)

    def settled(self, size: int, count: int, settlement: Settlement, ids: Sequence[Any] | None) -> None:
        """A batch is settled: there is room again."""
        self._buffered_bytes -= size
        self._unsettled_count -= count
        assert self._buffered_bytes >= 0
        self._counts[settlement.outcome] += count
        if self._recorder is not None and ids is not None:
            self._recorder.outcomes(ids, settlement)
        if self._room_waiters:
            self._wake_room()
        if not self._unsettled_count:
            for waiter in self._flush_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._flush_waiters = []


def check_headers(headers: Headers | None, tag: str | None) -> None:
    """Refuse what a body cannot hold, before it shares a batch with others.

    Raises:
        TypeError: A header's name or a tag is not a string, or a header's value is not bytes.
    """
    if tag is not None and not isinstance(tag, str):
        raise TypeError("a tag is a string")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError("headers are strings, their values bytes")


def _payload_bytes(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> int:
    size = sum(map(len, values)) + MESSAGE_OVERHEAD_BYTES * len(values)
    if keys is not None:
        size += sum(len(key) for key in keys if key is not None)
    return size


def _pick(column: Any, positions: Sequence[int]) -> Any:
    return None if column is None else [column[position] for position in positions]
