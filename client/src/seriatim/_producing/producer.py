"""The producer as users see it. `_producing` has what happens to a message after the producer has taken it."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

import pyarrow as pa
from seriatim_api.errors import (
    ClientFailureError,
    MessageTooLargeError,
    OverloadedError,
    PartitionOutOfRangeError,
    PreconditionError,
    ProducerFencedError,
    SeriatimError,
)
from seriatim_api.v1 import common_pb2

from seriatim._bodies import arrow
from seriatim._core.producer import Outcome, ProducerConfig, ReplyError, Route
from seriatim._producing import checks
from seriatim._producing.backlog import Backlog, FlushResult
from seriatim._producing.batching import Batching
from seriatim._producing.checks import Checked, Limits
from seriatim._producing.deliveries import Deliveries, Delivery, Settlement
from seriatim._producing.partition import PartitionSender, Shared
from seriatim._producing.partitioning import Partitioning
from seriatim._producing.pending import Messages, split_rows
from seriatim._producing.routes import Routes, deleted, route_of
from seriatim._producing.turns import Turns
from seriatim._recorder import Recorder
from seriatim._runtime.failure import Failure, attempt
from seriatim._runtime.logs import guarded
from seriatim._topic_changes import TopicChanges
from seriatim._transport.append import AppendLinks
from seriatim._transport.ownership import Ownership
from seriatim._transport.unary import Caller
from seriatim._values.headers import BytesLike, Headers
from seriatim._values.records import Topic
from seriatim._values.settings import ProducerSettings
from seriatim._values.topics import is_same

BATCH_BYTES_DEFAULT: Final = 1 << 20
ROOM_SHARE: Final = 16
"""A sixteenth of what the topic allows for a batch stays free over a distance, because a batch has more than its
payload."""
"""The brokers' limit of a body, used if the topic sets none."""

BATCH_OVERHEAD_BYTES: Final = 4096
"""Room in a body for what surrounds a single message: metadata, offsets, headers, padding."""

YIELD_BYTES: Final = 256 << 10
"""After taking this many bytes without a wait, `send` gives the event loop a turn."""

_log = guarded()

_T = TypeVar("_T")

_FAILED_MEANS: Final = (
    "Messages that it had taken and that are not settled are unknown: they may be stored or not. "
    "It takes nothing more; make a new producer."
)


def _warn_of_unsettled(backlog: Backlog, topic: str, pid: int) -> None:
    """The program has ended, or has dropped the producer, without closing it."""
    if backlog.message_count and os.getpid() == pid:
        _log.warning(
            "%d messages to topic %s were not settled when the program let go of their producer: they may be stored or "
            "not. Close the producer (`async with client.producer(...)`), or wait for `flush()`",
            backlog.message_count, topic,
        )  # fmt: skip


class Producer:
    """Sends messages to a topic, in order for each partition. Get one from `Client.producer`.

    Brokers store the messages of one producer to one partition in the order of the calls, also across resends and
    failovers. Use a producer from one event loop only.

    When the topic is deleted, the producer ends, also if a new topic gets the same name. Messages that are not settled
    become failed, or unknown if they may have been stored, with an `UnknownTopicError` as their cause. Later sends
    raise that error.
    """

    def __init__(
        self,
        topic: Topic,
        routes: Sequence[Route],
        settings: ProducerSettings,
        caller: Caller,
        links: AppendLinks,
        recorder: Recorder | None,
        stage: bytes = b"",
        ownership: Ownership | None = None,
    ) -> None:
        self._stage = stage
        self.topic = topic.name
        self._ownership = ownership
        self.producer_id = os.urandom(16) if ownership is None else ownership.producer_id
        self.settings = settings
        self._known = topic
        self._take_limits(topic)
        self._links = links
        self._check_home = links.channels.home.check
        self._failure = Failure(f"the producer for topic {topic.name}", _FAILED_MEANS, self._break_off)
        self._backlog = Backlog(settings.buffer_size_bytes)
        self._unclosed = weakref.finalize(self, _warn_of_unsettled, self._backlog, topic.name, os.getpid())
        self._turns = Turns(self._failure)
        self._routes = Routes(topic, caller, links, self._topic_gone, self._failure.happened)
        self._partitions = self._make_partitions(topic, routes, recorder)
        self._partitioning = Partitioning(
            topic.name,
            self._partitions,
            settings.partitioner,
            settings.full_batch_bytes,
            int.from_bytes(self.producer_id[:4], "little") % len(self._partitions),
        )
        self._since_yield_bytes = 0
        self._is_closed = self._is_ended = False
        self._topic_changes = TopicChanges(caller, topic, self._grow, self._failure.happened, self._look_found_gone)
        if ownership is not None:
            ownership.on_lost(self._end_with)
        growth, backlog = self._topic_changes, self._backlog
        self._routes.watch(self._partitions[0], lambda: not growth.is_told and not backlog.message_count)

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
            batch_bytes_max=self._batch_bytes_max,
            recorder=recorder,
            failure=self._failure,
            epoch=self.epoch,
            ended=self._owner_ended,
            stage=self._stage,
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
            epoch=self.epoch,
        )
        partition = PartitionSender(self._shared, number, partition_id, config, route)
        self._links.register(partition_id, self.producer_id, partition)
        return partition

    def _take_limits(self, topic: Topic) -> None:
        fits_in_batch = max(1, (topic.settings.batch_size_bytes_max or BATCH_BYTES_DEFAULT) - BATCH_OVERHEAD_BYTES)
        self.message_size_bytes_max = min(topic.settings.message_size_bytes_max or fits_in_batch, fits_in_batch)
        self._limits = Limits(self.message_size_bytes_max, fits_in_batch)
        self._batch_bytes_max = fits_in_batch - fits_in_batch // ROOM_SHARE

    async def _look_again(self) -> None:
        """Before a refusal: the topic may have more partitions by now, or higher limits."""
        topic = await self._topic_changes.look()
        if is_same(self._known, topic):
            self._take_limits(topic)

    async def _allowed(self, check: Callable[[], _T]) -> _T:
        """What `check` returns. If it refuses by what this producer knows of the topic, the topic is read first."""
        try:
            return check()
        except (MessageTooLargeError, PartitionOutOfRangeError):
            await self._look_again()
        return check()

    def _grow(self, topic: Topic, routes: Sequence[common_pb2.Route]) -> None:
        """Use the partitions that were added to the topic. From now on keys are spread over all partitions."""
        for number in range(len(self._partitions), topic.partition_count):
            self._partitions.append(self._make_partition(number, topic.partition_ids[number], route_of(routes[number])))

    @property
    def epoch(self) -> int:
        """With `owner`: the epoch of this program, which is higher than that of each earlier owner. Otherwise 0."""
        return self._ownership.epoch if self._ownership is not None else 0

    @property
    def partition_count(self) -> int:
        """The number of partitions that this producer knows. Brokers tell it when some are added."""
        return len(self._partitions)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the messages that were taken and are not settled, with an allowance for each message's overhead."""
        return self._backlog.size_bytes

    @property
    def unsettled_count(self) -> int:
        """The number of messages that were taken and are not settled."""
        return self._backlog.message_count

    def master_of(self, partition: int) -> str | None:
        """The broker that accepts messages of a partition, as far as this producer knows; None: it does not know it.

        Args:
            partition: The partition's number in the topic.

        Raises:
            PartitionOutOfRangeError: The producer knows no such partition.
        """
        if not 0 <= partition < len(self._partitions):
            raise PartitionOutOfRangeError(f"{self.topic} has partitions 0 to {len(self._partitions) - 1}")
        route = self._partitions[partition].route
        return route.master_broker if route is not None else None

    def _look_found_gone(self, made_again: bool) -> None:
        self._topic_gone(deleted(self.topic, made_again=made_again))

    def _topic_gone(self, error: SeriatimError) -> None:
        """The topic was deleted, or a broker speaks another protocol."""
        self._end_with(error)

    def _owner_ended(self, error: ReplyError, details: dict[str, str]) -> None:
        """A partition refuses this program, or one of its messages is unknown. No later one can have a number then."""
        assert self._ownership is not None
        if error.number == ProducerFencedError.number:
            self._end_with(self._ownership.fenced(error.message, details))
        else:
            self._end_with(
                PreconditionError(
                    f"the producer has ended, because an outcome is not known ({error.message}): make a new one"
                )
            )

    def _end_with(self, error: SeriatimError) -> None:
        """Settle everything, and refuse later sends with this error."""
        if self._is_ended:
            return
        self._is_ended = True
        self._backlog.close(error)
        reason = ReplyError(error.number, error.message)
        for partition in self._partitions:
            partition.abandon(reason)

    # ---- sending -------------------------------------------------------------------------------------

    async def send(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        *,
        delay_ms: int | None = None,
        due_ms: int | None = None,
    ) -> Delivery:
        """Take one message when there is room for it, and return its delivery, which settles later.

        The call waits while `buffer_size_bytes` of messages are not settled.

        Args:
            value: The payload: bytes, or a bytearray or memoryview, which is copied. Encode text first. Value and key
                together have at most `message_size_bytes_max` bytes. None: the message has no value, which says to
                some readers that its key is deleted.
            key: Messages with the same key go to the same partition and keep their order. Types as for `value`.
            partition: The partition's number in the topic. It overrides the key.
            timestamp_ms: The message's own time in whole milliseconds since 1970, in 64 bits. None: now.
            headers: Names (str) and values (types as for `value`, or None), as a mapping, or as a list of pairs. In a
                list a name may come several times. Readers get them in this order. They are copied.
            tag: A word to filter by, a str.
            delay_ms: Readers get the message about this many milliseconds after it was stored, 366 days at most: the
                broker that stores it counts them. 0: at once. The topic's `delay_max_ms` may allow less. A delayed
                message is in no order with others, not even with those of its key. Its receipt has the time at which
                it is due, and its origin. Messages with the same delay may share a batch.
            due_ms: The time at which readers get the message, in milliseconds since 1970, in place of `delay_ms`. If
                it has passed, they get it at once.

        Raises:
            IllegalMessageError: An argument has a type or a value that a message cannot hold; nothing was taken. It is
                a `TypeError` and a `ValueError` too.
            MessageTooLargeError: Key and value are over the limit, or the message with its headers and its tag is too
                large for one batch; nothing was taken.
            PartitionOutOfRangeError: The topic has fewer partitions; nothing was taken.
            PreconditionError: The producer is closed; nothing was taken.
            UnknownTopicError: The topic was deleted; nothing was taken.
            UnavailableError: The message is over the limit, or the topic has fewer partitions, as far as the producer
                knows, and no broker reported whether that has changed; nothing was taken.
            ClientFailureError: The producer has ended because its own code failed.

        An exception that the application's partitioner raises goes to the caller; nothing was taken.

        If the call is cancelled, the message was not taken and is never stored.
        """
        self._check_home()
        due_time_ms = checks.check_delay(delay_ms, due_ms)
        try:
            message = checks.check_message(value, key, timestamp_ms, headers, tag, self._limits)
            if partition is not None:
                self._partitioning.numbered(partition)
        except (MessageTooLargeError, PartitionOutOfRangeError):
            await self._look_again()
            message = checks.check_message(value, key, timestamp_ms, headers, tag, self._limits)
        if self._since_yield_bytes >= YIELD_BYTES or not self._backlog.has_room(message[0]):
            await self._wait_for_room(message[0])
        return self._take(message, partition, due_time_ms)

    def send_nowait(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        *,
        delay_ms: int | None = None,
        due_ms: int | None = None,
    ) -> Delivery:
        """Take one message at once, or refuse it. Arguments and errors are those of `send`.

        It cannot ask a broker. So it refuses by the limits and partitions that the producer knows, where `send` asks
        first whether they have changed.

        Raises:
            OverloadedError: `buffer_size_bytes` of messages are not settled, or other senders wait for room; nothing
                was taken.
        """
        self._check_home()
        due_time_ms = checks.check_delay(delay_ms, due_ms)
        message = checks.check_message(value, key, timestamp_ms, headers, tag, self._limits)
        if not self._backlog.has_room(message[0]):
            raise OverloadedError(
                f"{self._backlog.size_bytes} bytes of messages are not settled yet: the message was not taken; "
                "send it again when some are settled, or raise buffer_size_bytes"
            )
        return self._take(message, partition, due_time_ms)

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Wait in line for at least one turn of the loop. The message is not taken yet, so cancelling loses nothing."""
        self._since_yield_bytes = 0
        await self._backlog.wait_for_room(size_bytes)

    def _take(self, message: Checked, partition: int | None, due_time_ms: int) -> Delivery:
        target = self._partitioning.of_one(message[2], partition)
        size, value, key, timestamp_ms, headers, tag = message
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        delivery = Delivery()
        try:
            target.pending.add_one(value, key, timestamp_ms, headers, tag, delivery, size, due_time_ms)
            self._backlog.take(1, size)
            if not target.is_ready:
                self._turns.make_ready(target)
        except BaseException as exc:
            self._failure.raise_for(exc)
        self._since_yield_bytes += size
        return delivery

    async def send_many(
        self,
        values: Sequence[BytesLike | None],
        keys: Sequence[BytesLike | None] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
        *,
        due_ms: Sequence[int | None] | None = None,
    ) -> Deliveries:
        """Take many messages at once, in their order. This costs far less than one `send` for each.

        Args:
            values: The payloads. The other sequences, if given, have the same length. All items have the types of
                `send`.
            keys: A key for each message, or None for a message without a key.
            partition: One partition for all messages; it overrides the keys. Without it and without keys, all messages
                go to one partition.
            timestamps_ms: A time for each message, in milliseconds since 1970. None: now.
            headers: Headers for each message.
            tags: A tag for each message.
            due_ms: A due time for each message, as for `send`. 0 or None: the message is an ordinary one. Messages with
                different due times are in different batches, which costs as much as one `send` for each.

        Raises:
            IllegalMessageError: A part of a message has a type or a value that a message cannot hold; none was taken.
            MessageTooLargeError: A message is over the limit; none was taken.
            BadRequestError: The sequences differ in length; none was taken.
            PartitionOutOfRangeError: The topic has fewer partitions; none was taken.
            PreconditionError: The producer is closed; none was taken.
            UnknownTopicError: The topic was deleted; none was taken.
            ClientFailureError: The producer has ended because its own code failed.

        If the call is cancelled, no message was taken.
        """
        self._check_home()

        def checked() -> tuple[Messages, int, list[tuple[PartitionSender, Sequence[int]]]]:
            messages, size = checks.check_messages(values, keys, timestamps_ms, headers, tags, self._limits)
            return messages, size, self._partitioning.of_many(messages.keys, partition, len(messages.values))

        messages, size, groups = await self._allowed(checked)
        count = len(messages.values)
        dues = checks.check_due_times(due_ms, count)
        deliveries = Deliveries(count)
        if not count:
            return deliveries
        if self._since_yield_bytes >= YIELD_BYTES or not self._backlog.has_room(size):
            await self._wait_for_room(size)
        if timestamps_ms is None:
            messages = messages._replace(timestamps_ms=[int(time.time() * 1000)] * count)
        try:
            for target, positions, due_time_ms in _by_due_time(groups, dues):
                part = messages.at(positions)
                part_size = size if part is messages else part.size_bytes()
                target.pending.add_many(part, deliveries.slice(positions), part_size, due_time_ms)
                self._backlog.take(len(positions), part_size)
                self._turns.make_ready(target)
        except BaseException as exc:
            self._failure.raise_for(exc)
        self._since_yield_bytes += size
        return deliveries

    async def send_table(
        self, table: pa.Table | pa.RecordBatch, partition: int | None = None, key_column: str = "key"
    ) -> Deliveries:
        """Take the rows of an Arrow table, in their order, without copying values.

        The columns are key, value, timestamp, headers and tag. Only `value` is required. A null in it is a message
        without a value. The producer reads text columns as UTF-8 and Arrow timestamps as milliseconds. A null in
        `timestamp` means now. Headers are maps, or lists of structs with a name and a value.

        Slices of the table become batches without a copy. With keys and no `partition`, the producer first groups the
        rows by partition, which copies them once.

        Args:
            table: The rows to send.
            partition: One partition for all rows. Without it and without keys, all rows go to one partition.
            key_column: The name of the column with the keys, if it is not `key`.

        Raises:
            IllegalMessageError: `table` is not a table, or a column is missing, unknown or of a wrong type, or it has a
                null that a message cannot hold; no row was taken.
            MessageTooLargeError: A row is over the limit; no row was taken.
            PartitionOutOfRangeError: The topic has fewer partitions; no row was taken.
            PreconditionError: The producer is closed; no row was taken. If it is closed in the middle of the call, the
                rows that were not taken are settled as failed.
            UnknownTopicError: The topic was deleted; no row was taken. In the middle of the call: as above.
            ClientFailureError: The producer has ended because its own code failed.

        If the call is cancelled, some of the rows may have been taken: for each partition the first ones, in their
        order.
        """
        self._check_home()
        table = checks.check_table(table, key_column, int(time.time() * 1000))
        deliveries = Deliveries(table.num_rows)
        keyed = table.column(0).null_count < table.num_rows
        keys = table.column(0).to_pylist() if keyed and partition is None else None

        def checked() -> list[tuple[PartitionSender, Any, int, Sequence[int]]]:
            groups = self._partitioning.of_many(keys, partition, table.num_rows)
            pieces = list(self._pieces(table, groups)) if table.num_rows else []
            for _, piece, size, _ in pieces:
                checks.check_rows(piece, size, self._limits)
            return pieces

        pieces = await self._allowed(checked)
        for number, (target, piece, size, positions) in enumerate(pieces):
            try:
                if self._since_yield_bytes >= YIELD_BYTES or not self._backlog.has_room(size):
                    await self._wait_for_room(size)
            except SeriatimError as exc:
                if not number:
                    raise
                _refuse_rest(pieces[number:], deliveries, exc)
                break
            try:
                target.pending.add_record_batch(piece, deliveries.slice(positions), keyed, size)
                self._backlog.take(piece.num_rows, size)
                self._turns.make_ready(target)
            except BaseException as exc:
                self._failure.raise_for(exc)
            self._since_yield_bytes += size
        return deliveries

    async def send_body(self, body: arrow.Body, partition: int) -> Deliveries:
        """Take an encoded body as one batch. `Writer.publish` uses it for the pieces of a manifest.

        Raises:
            PartitionOutOfRangeError: The topic has fewer partitions; nothing was taken.
            PreconditionError: The producer is closed; nothing was taken.
            UnknownTopicError: The topic was deleted; nothing was taken.
            ClientFailureError: The producer has ended because its own code failed.

        If the call is cancelled, nothing was taken.
        """
        self._check_home()
        deliveries = Deliveries(body.message_count)
        ((target, positions),) = self._partitioning.of_many(None, partition, body.message_count)
        if not self._backlog.has_room(len(body.data)):
            await self._wait_for_room(len(body.data))
        try:
            target.pending.add_body(body, deliveries.slice(positions))
            self._backlog.take(body.message_count, len(body.data))
            self._turns.make_ready(target)
        except BaseException as exc:
            self._failure.raise_for(exc)
        return deliveries

    def _pieces(
        self, table: Any, groups: Sequence[tuple[PartitionSender, Sequence[int]]]
    ) -> Iterator[tuple[PartitionSender, Any, int, Sequence[int]]]:
        """Pieces of the table: for each the partition, its rows, their size, and their positions in the table.

        A piece has at most a near batch. To a broker that is far, several leave in one batch (`pending`).
        """
        for target, positions in groups:
            part = table if len(groups) == 1 else table.take(arrow.row_numbers(positions))
            base = 0
            for chunk in part.to_batches():
                for piece, size in split_rows(chunk, self.settings.full_batch_bytes):
                    yield target, piece, size, positions[base : base + piece.num_rows]
                    base += piece.num_rows

    # ---- ending --------------------------------------------------------------------------------------

    async def flush(self) -> FlushResult:
        """Send all messages that linger, and wait until every message that was taken is settled.

        It never raises because of an outcome. If the producer has ended because its own code failed, the messages that
        were on their way count as unknown. If the call is cancelled, sending continues.
        """
        self._check_home()
        await self._settle_all()
        return self._backlog.result()

    async def _settle_all(self) -> None:
        for partition in self._partitions:
            if partition.pending:
                self._turns.make_ready(partition)
        await self._backlog.until_settled()

    async def close(self, timeout_s: float | None = None) -> FlushResult:
        """Flush for at most `timeout_s` seconds (None: until the delivery timeout), then end.

        Messages that are left then are settled: as failed if no broker can have stored them, else as unknown. A second
        call does nothing. If the call is cancelled, the producer has ended, and all messages are settled in this way.
        """
        if self._is_closed:
            return FlushResult(0, 0, 0)
        self._check_home()
        self._is_closed = True
        self._unclosed.detach()
        try:
            self._backlog.close()
            async with asyncio.timeout(timeout_s):
                await self._settle_all()
        except TimeoutError:
            pass  # `_end` settles what is left, by what is known of it
        finally:
            try:
                self._end()  # it waits for nothing, so a cancelled call leaves nothing unsettled
            except BaseException as exc:
                self._failure.raise_for(exc)
        await self._topic_changes.close()
        await self._routes.close()
        if self._ownership is not None:
            await self._ownership.close()
        return self._backlog.result()

    def _end(self) -> None:
        self._topic_changes.stop()
        for partition in self._partitions:
            partition.abandon()
        self._stop()

    def _stop(self) -> None:
        """Let nothing call the partitions any more. Everything is settled already."""
        for partition in self._partitions:
            attempt(self._links.forget, partition.partition_id, self.producer_id)
        attempt(self._turns.cancel)
        attempt(self._routes.stop)

    def _break_off(self, error: ClientFailureError) -> None:
        """The producer's own code failed: settle everything as unknown, and take nothing more."""
        attempt(self._backlog.close, error)
        reason = ReplyError(error.number, error.message)
        for partition in self._partitions:
            attempt(partition.break_off, reason)
        attempt(self._backlog.break_off)
        attempt(self._topic_changes.stop)
        self._stop()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None if kind is None else 0)


def _by_due_time(
    groups: Sequence[tuple[PartitionSender, Sequence[int]]], dues: Sequence[int] | None
) -> Iterator[tuple[PartitionSender, Sequence[int], int]]:
    """The messages of each partition, divided by their due times: a batch has only one."""
    for target, positions in groups:
        if dues is None:
            yield target, positions, 0
            continue
        by_due_time: dict[int, list[int]] = {}
        for position in positions:
            by_due_time.setdefault(dues[position], []).append(position)
        for due_time_ms, found in by_due_time.items():
            yield target, found, due_time_ms


def _refuse_rest(
    pieces: Sequence[tuple[PartitionSender, Any, int, Sequence[int]]], deliveries: Deliveries, error: SeriatimError
) -> None:
    """Settle the rows that were not taken, because the producer closed in the middle of their call, as failed."""
    reason = ReplyError(error.number, error.message)
    for target, _, _, positions in pieces:
        deliveries.settle_positions(positions, 0, Settlement(Outcome.FAILED, target.number, 0, 0, reason))
