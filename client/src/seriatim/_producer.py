"""The producer as users see it. What happens to a message once it is taken is told in `_producing`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
from seriatim_api.errors import OverloadedError
from seriatim_api.v1 import common_pb2

from seriatim import _batch
from seriatim._batch import Headers
from seriatim._core.producer import ProducerConfig, Route
from seriatim._growth import Growth
from seriatim._producing import checks
from seriatim._producing.backlog import Backlog, FlushResult
from seriatim._producing.batching import Batching
from seriatim._producing.deliveries import Deliveries, Delivery
from seriatim._producing.partition import PartitionSender, Shared
from seriatim._producing.partitioning import Partitioning
from seriatim._producing.pending import Messages, split_rows
from seriatim._producing.routes import Routes, route_of
from seriatim._producing.turns import Turns
from seriatim._recording import Recorder
from seriatim._records import Topic
from seriatim._settings import ProducerSettings
from seriatim._transport.append import AppendLinks
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller

BATCH_BYTES_DEFAULT: Final = 1 << 20
"""The brokers' limit of a body, where the topic names none."""

BATCH_OVERHEAD_BYTES: Final = 4096
"""Room in a body for what surrounds a single message: metadata, offsets, headers, padding."""

YIELD_BYTES: Final = 256 << 10
"""A sender that never waits for anything lets the loop turn after so much."""


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
        recorder: Recorder | None,
    ) -> None:
        self.topic = topic.name
        self.producer_id = os.urandom(16)
        self.settings = settings
        fits_in_batch = max(1, (topic.settings.batch_size_bytes_max or BATCH_BYTES_DEFAULT) - BATCH_OVERHEAD_BYTES)
        self.message_size_bytes_max = min(topic.settings.message_size_bytes_max or fits_in_batch, fits_in_batch)
        self._links = links
        self._backlog = Backlog(settings.buffer_size_bytes)
        self._turns = Turns()
        self._routes = Routes(topic.name, caller, channels)
        self._partitions = self._make_partitions(topic, routes, recorder)
        self._partitioning = Partitioning(
            topic.name,
            self._partitions,
            settings.partitioner,
            settings.batch_size_bytes,
            int.from_bytes(self.producer_id[:4], "little") % len(self._partitions),
        )
        self._since_yield_bytes = 0
        self._growth = Growth(caller, topic, self._grow)

    def _make_partitions(
        self, topic: Topic, routes: Sequence[Route], recorder: Recorder | None
    ) -> list[PartitionSender]:
        settings = self.settings
        self._shared = Shared(
            topic=topic.name,
            producer_id=self.producer_id,
            settings=settings,
            links=self._links,
            turns=self._turns,
            routes=self._routes,
            backlog=self._backlog,
            batching=Batching(settings, self._turns, self._backlog),
            recorder=recorder,
        )
        return [
            self._make_partition(number, partition_id, route)
            for number, (partition_id, route) in enumerate(zip(topic.partition_ids, routes, strict=True))
        ]

    def _make_partition(self, number: int, partition_id: int, route: Route) -> PartitionSender:
        config = ProducerConfig(
            window_batches_max=self.settings.window_batches,
            delivery_timeout_ms=self.settings.delivery_timeout_ms,
            reply_timeout_ms=self.settings.reply_timeout_ms,
        )
        partition = PartitionSender(self._shared, number, partition_id, config, route)
        self._links.register(partition_id, self.producer_id, partition)
        return partition

    def _grow(self, topic: Topic, routes: Sequence[common_pb2.Route]) -> None:
        """Use the partitions that were added. From now on keys are spread over all of them."""
        for number in range(len(self._partitions), topic.partition_count):
            self._partitions.append(self._make_partition(number, topic.partition_ids[number], route_of(routes[number])))

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has, as far as is known here; it grows within seconds after the topic has."""
        return len(self._partitions)

    @property
    def buffered_bytes(self) -> int:
        """Payload taken and not settled."""
        return self._backlog.size_bytes

    @property
    def unsettled_count(self) -> int:
        """Messages taken and not settled."""
        return self._backlog.message_count

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
        size = checks.message_size(value, key, self.message_size_bytes_max)
        if not self._backlog.has_room(size):
            await self._backlog.wait_for_room(size)
        delivery = self._take(size, value, key, partition, timestamp_ms, headers, tag)
        self._since_yield_bytes += size
        if self._since_yield_bytes >= YIELD_BYTES:
            await self._yield()
        return delivery

    def send_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
    ) -> Delivery:
        """As `send`, without waiting.

        Raises:
            OverloadedError: `buffer_size_bytes` are on their way, or others wait for room.
        """
        size = checks.message_size(value, key, self.message_size_bytes_max)
        if not self._backlog.has_room(size):
            raise OverloadedError(f"{self._backlog.size_bytes} bytes are on their way already")
        return self._take(size, value, key, partition, timestamp_ms, headers, tag)

    def _take(
        self,
        size: int,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        tag: str | None,
    ) -> Delivery:
        if headers is not None or tag is not None:
            checks.check_headers(headers, tag)
        target = self._partitioning.of_one(key, partition)
        delivery = Delivery()
        now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        target.pending.add_one(value, key, now_ms, headers, tag, delivery, size, time.monotonic())
        self._backlog.take(1, size)
        if not target.is_ready:
            self._turns.make_ready(target)
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
        checks.check_lengths(count, keys, timestamps_ms, headers, tags)
        for row in headers or ():
            checks.check_headers(row, None)
        for tag in tags or ():
            checks.check_headers(None, tag)
        deliveries = Deliveries(count)
        if not count:
            return deliveries
        size = checks.message_sizes(values, keys, self.message_size_bytes_max)
        groups = self._partitioning.of_many(keys, partition, count)
        if not self._backlog.has_room(size):
            await self._backlog.wait_for_room(size)
        if timestamps_ms is None:
            timestamps_ms = [int(time.time() * 1000)] * count
        messages = Messages(values, keys, timestamps_ms, headers, tags)
        now = time.monotonic()
        for target, positions in groups:
            part = messages.at(positions)
            part_size = size if part is messages else checks.payload_bytes(part.values, part.keys)
            target.pending.add_many(part, deliveries.slice(positions), part_size, now)
            self._backlog.take(len(positions), part_size)
            self._turns.make_ready(target)
        self._since_yield_bytes += size
        await self._yield()
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
        groups = self._partitioning.of_many(keys, partition, table.num_rows) if table.num_rows else []
        for target, positions in groups:
            part = table if len(groups) == 1 else table.take(_batch.row_numbers(positions))
            base = 0
            for chunk in part.to_batches():
                for piece in split_rows(chunk, self.settings.batch_size_bytes):
                    await self._send_piece(target, piece, deliveries, positions[base : base + piece.num_rows], keyed)
                    base += piece.num_rows
        return deliveries

    async def _send_piece(
        self, target: PartitionSender, piece: Any, deliveries: Deliveries, positions: Sequence[int], keyed: bool
    ) -> None:
        size = checks.row_size(piece, self.message_size_bytes_max)
        if not self._backlog.has_room(size):
            await self._backlog.wait_for_room(size)
        target.pending.add_record_batch(piece, deliveries.slice(positions), 0, keyed, time.monotonic())
        self._backlog.take(piece.num_rows, size)
        self._turns.make_ready(target)
        self._since_yield_bytes += size
        await self._yield()

    async def _yield(self) -> None:
        if self._since_yield_bytes >= YIELD_BYTES:
            self._since_yield_bytes = 0
            await asyncio.sleep(0)

    # ---- ending --------------------------------------------------------------------------------------

    async def flush(self) -> FlushResult:
        """Send what lingers, and wait until all that was taken is settled.

        If cancelled, sending goes on.
        """
        await self._settle_all()
        return self._backlog.result()

    async def _settle_all(self) -> None:
        for partition in self._partitions:
            if partition.pending:
                self._turns.make_ready(partition)
        await self._backlog.until_settled()

    async def close(self, timeout_s: float | None = None) -> FlushResult:
        """Flush, for at most `timeout_s` (None: until the delivery timeout), then end. What is left is settled.

        A second call does nothing.
        """
        if self._backlog.is_closed:
            return FlushResult(0, 0, 0)
        self._backlog.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._settle_all()
        except TimeoutError:
            pass  # what is left is settled as what is known of it
        finally:
            await self._end()
        return self._backlog.result()

    async def _end(self) -> None:
        await self._growth.close()
        for partition in self._partitions:
            partition.abandon()
            self._links.forget(partition.partition_id, self.producer_id)
        self._turns.cancel()
        await self._routes.close()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None if kind is None else 0)
