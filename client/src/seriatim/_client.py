"""The client: it makes producers, consumers and the administration, shares connections among them, and ends them.

The modules of producers, consumers and administration are imported when the first one is made. Arrow alone takes
longer to load than most calls of `Admin` take. And a program that only sends does not load administration.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, Unpack, get_args, overload

from seriatim_api.errors import (
    BadRequestError,
    IllegalNameError,
    PreconditionError,
    UnsupportedModeError,
)
from seriatim_api.ids import OFFSET_MAX, check_name
from seriatim_api.v1 import broker_pb2, common_pb2

from seriatim._ranges import QUESTION_DEADLINE_S
from seriatim._recorder import MessageIdOf, Recorder
from seriatim._runtime.opening import Opening
from seriatim._transport.carriages import Carriages
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller
from seriatim._values.arguments import (
    NUMBER_MAX,
    check_callback,
    check_number,
    check_partitions,
    check_text,
    check_whole,
    settings_of,
)
from seriatim._values.settings import (
    Compression,
    ConsumerOptions,
    ConsumerSettings,
    ProducerOptions,
    ProducerSettings,
    Target,
)
from seriatim._values.topics import told_topic

if TYPE_CHECKING:
    from seriatim_api.delayed import CancelOutcome

    from seriatim._admin.admin import Admin
    from seriatim._consuming.consumer import Consumer
    from seriatim._consuming.keyed_consumer import KeyedConsumer
    from seriatim._core.producer import Route
    from seriatim._producing.producer import Producer
    from seriatim._publishing.writer import Writer
    from seriatim._ranges.questions import At
    from seriatim._ranges.reader import RangeReader
    from seriatim._ranges.records import LostRange, PartitionOffset, RangePlan, RetainedRange
    from seriatim._transport.append import AppendLinks
    from seriatim._transport.cancellations import Cancellations
    from seriatim._transport.ownership import Ownership
    from seriatim._values.partitioner import Partitioner
    from seriatim._values.records import Assignment, Gap, GroupChange, Topic
    from seriatim._values.tls import Tls
    from seriatim.history import HistoryWriter, MemoryHistory

Mode = Literal["exclusive", "key_ordered", "shared", "broadcast"]
"""How the consumers of a consumer group share the messages."""

STAGED_BATCH_BYTES: Final = 512 << 10

TOPIC_DEADLINE_S: Final = 10.0
"""Seconds for the first question about a topic. A cluster that is just starting answers in this time."""


L = TypeVar("L")


class Client:
    """A connection to a cluster. `async with Client.connect("host:port") as client: ...`"""

    def __init__(self, bootstrap: Sequence[str], name: str, recorder: Recorder | None, tls: Tls | None) -> None:
        self.name = name
        self._recorder = recorder
        self._channels = Channels(tls)
        self._carriages = Carriages(self._channels)
        self._caller = Caller(self._channels, bootstrap)
        self._links: AppendLinks | None = None  # until there is a producer
        self._cancellations: Cancellations | None = None  # until a message is cancelled
        self._is_closed = False
        self._closers: list[Callable[[bool], Awaitable[Any]]] = []  # one for each that was opened; True: flush first

    @classmethod
    def connect(
        cls,
        bootstrap: str | Sequence[str],
        *,
        name: str | None = None,
        tls: Tls | None = None,
        recorder: HistoryWriter | MemoryHistory | Recorder | None = None,
        message_id: MessageIdOf | None = None,
    ) -> Opening[Self]:
        """A client of the cluster to which these brokers belong. It connects to a broker when it first needs it.

        `async with Client.connect(...) as client` closes it at the end of the block. Or `await` it, and close it
        yourself. A client works in the event loop and in the process in which it was connected.

        Args:
            bootstrap: Addresses `host:port`: a sequence of them, or a string with commas between them. It is enough if
                one of them answers.
            name: The client's name in the brokers' logs; None: a name from the process id.
            tls: The certificates for TLS; None: plain text.
            recorder: A `seriatim.history.HistoryWriter`. The client writes all its sends, deliveries and
                acknowledgements into it, and what its `Admin` lists and does of waiting keys and dead letters. The
                history checker can check them later.
            message_id: Given exactly if `recorder` is: a function that returns the id of a message from its value,
                which is b"" if it is null. The id is unique in the history.

        Raises:
            BadRequestError: `bootstrap` is not one or more addresses `host:port`, or only one of `recorder` and
                `message_id` was given.
            PreconditionError: The files of `tls` cannot be used. Or this process was forked while a client was open, so
                gRPC cannot be used in it. Raised when the client begins.
        """
        addresses = _addresses_of(bootstrap)
        check_callback("message_id", message_id)
        check_text("name", name, "to get a name from the process id")
        told: Recorder | None = None
        if isinstance(recorder, Recorder):  # of the command, whose ids are in headers
            told = recorder
        elif (recorder is None) != (message_id is None):
            raise BadRequestError("give both of recorder and message_id, or none of them")
        elif recorder is not None and message_id is not None:
            told = Recorder(recorder, message_id)

        async def begin() -> Self:
            return cls(addresses, f"seriatim-{os.getpid()}" if name is None else name, told, tls)

        return Opening(begin)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    async def close(self, *, flush: bool = True) -> None:
        """Close all that the program opened with this client and did not close, and end all connections.

        A second call does nothing. If the call is cancelled, the client has ended, perhaps without the last
        acknowledgements of its consumers.

        Args:
            flush: Whether producers flush first. A block that an error or a cancellation leaves does not flush.

        Raises:
            BaseException: The first error of what was closed. Everything else was closed all the same.
            PreconditionError: The client was connected in another event loop or process.
        """
        self._channels.home.check()
        if self._is_closed:
            return
        self._is_closed = True
        await self._close(flush=flush)

    async def _close(self, *, flush: bool) -> None:
        """Close everything, even if one close raises or is cancelled. Then raise the first error."""
        first: BaseException | None = None
        for close in self._closers:
            try:
                await close(flush and first is None)
            except BaseException as exc:
                first = first or exc
        try:
            if self._links is not None:
                await self._links.close()
        finally:
            await self._channels.close()
        if first is not None:
            raise first

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Opening[Producer]:
        """A producer for a topic: `async with client.producer("t") as producer`, or `await` it and close it yourself.

        Args:
            topic: The topic's name.
            options: The fields of `ProducerSettings`.

        Raises:
            BadRequestError: An option is over its limit. The call itself raises it.
            UnknownTopicError: The cluster has no such topic. This and the next three errors are raised when the
                producer begins.
            IllegalNameError: A topic cannot have this name.
            CoordinatorBehindError: The coordinator has lost the topic, and was not rebuilt within 10 s.
            UnavailableError: No broker answered within 10 s.
            DeadlineExceededError: With `owner`: another program still has the name after `acquire_timeout_s`, or a
                partition has no master. The text names it.
            PreconditionError: With `owner`: another producer of this process has the name or waits for it.
        """
        settings = settings_of(ProducerSettings, options, "a producer")

        async def begin() -> Producer:
            answer, (kind, route_of, links) = await self._ask_and_load(topic, _load_producer)
            if self._links is None:
                self._links = links(self._carriages, self.name)
            ownership = await self._acquire(told_topic(answer), settings) if settings.owner is not None else None
            producer = kind(
                told_topic(answer), list(map(route_of, answer.routes)), settings, self._caller, self._links,
                self._recorder, ownership=ownership,
            )  # fmt: skip
            self._closers.append(lambda flush: producer.close(None if flush else 0))
            return producer

        return Opening(begin)

    async def _acquire(self, topic: Topic, settings: ProducerSettings) -> Ownership:
        """Wait until this program is the owner of a name."""
        from seriatim._transport.ownership import Ownership

        assert settings.owner is not None
        ownership = Ownership(
            topic, settings.owner, settings.session_ms, take_over=settings.take_over, caller=self._caller,
            channels=self._channels,
        )  # fmt: skip
        await ownership.acquire(settings.acquire_timeout_s)
        return ownership

    def writer(
        self,
        topic: str,
        name: str,
        *,
        epoch: int = 0,
        owner: str = "",
        compression: Compression | None = None,
        partitioner: Partitioner | None = None,
    ) -> Opening[Writer]:
        """A writer of a topic: `async with client.writer("t", "nightly") as writer`. It publishes sets of rows whole.

        The writer asks no broker before its first call. A program that publishes calls `open` first. Tasks in other
        processes only stage, and do not need to call it.

        Args:
            topic: The topic's name.
            name: The writer's name. The cluster keeps under it which publication was the last.
            epoch: The epoch that `open` returned in another process, to publish here under it. 0: `open` is called
                here, or this process only stages.
            owner: A text that only one program has, such as the id of a query. Brokers refuse a publication by another
                owner. Empty: they do not compare owners.
            compression: Of the staged batches: None, "lz4" or "zstd".
            partitioner: Chooses the partition for a key; by default the same as a producer's.

        Raises:
            IllegalNameError: A writer cannot have this name. Raised when the writer begins.
        """

        async def begin() -> Writer:
            from seriatim._publishing.staging import Stager
            from seriatim._publishing.writer import Writer
            from seriatim._transport.append import AppendLinks
            from seriatim._values.partitioner import partition_of_key

            settings = ProducerSettings(
                batch_size_bytes=STAGED_BATCH_BYTES,
                compression=compression,
                linger_ms=0,
                partitioner=partitioner or partition_of_key,
            )
            if self._links is None:
                self._links = AppendLinks(self._carriages, self.name)
            stager = Stager(topic, settings, self._caller, self._links, self.name)
            return Writer(topic, name, epoch, owner, stager, self._caller, self._recorder)

        return Opening(begin)

    @overload
    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Literal["exclusive", "broadcast"] = "exclusive",
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer]: ...

    @overload
    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Literal["key_ordered", "shared"],
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[KeyedConsumer]: ...

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Mode = "exclusive",
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer] | Opening[KeyedConsumer]:
        """A consumer of a topic, in a consumer group: `async with client.consumer("t", "g") as consumer`.

        Args:
            topic: The topic's name.
            group: The consumer group's name.
            mode: `exclusive`: one consumer at a time reads a partition, and the others are standbys. `key_ordered`: any
                number of consumers share a partition, and order counts within a key. `shared`: the same without any
                order. `broadcast`: each consumer gets all messages.
            partitions: Numbers of the partitions to read; None: all, also those that are added later.
            name: The consumer's name, unique in the consumer group; made up if None. In broadcast mode the consumer's
                position is kept under this name for a week after it was there last. Without a name it begins at the
                end each time.
            on_gap: Called when messages will not be delivered, because they were declared lost or retention dropped
                them.
            on_assignment: Called when the brokers begin or cease to deliver a partition to this consumer.
            on_group_change: Called when the consumer group was rewound, skipped, paused or resumed on a partition. The
                call comes before the first message that is delivered after the change.
            options: The fields of `ConsumerSettings`.

        Raises:
            UnsupportedModeError: There is no such mode. The call itself raises this.
            IllegalNameError: A topic or a consumer group cannot have this name. For the group's name, the call itself
                raises it.
            BadRequestError: An option is over its limit (the call raises it), or `start` is an offset for more than one
                partition.
            UnknownTopicError: The cluster has no such topic. This error and the next four are raised when the consumer
                begins.
            PartitionOutOfRangeError: The topic has fewer partitions.
            OffsetOutOfRangeError: `start` is no place in the topic, or a time in the future.
            CoordinatorBehindError: The coordinator has lost the topic, and was not rebuilt within 10 s.
            UnavailableError: No broker answered within 10 s.
        """
        _check_group(group, mode, name)
        check_partitions(partitions)
        check_callback("on_gap", on_gap)
        check_callback("on_assignment", on_assignment)
        check_callback("on_group_change", on_group_change)
        settings = settings_of(ConsumerSettings, options, "a consumer")

        async def begin() -> Any:
            answer, kind = await self._ask_and_load(topic, lambda: _load_consumer(mode))
            unique_name = f"consumer-{os.urandom(6).hex()}" if name is None else name
            if settings.start not in (None, "earliest", "latest"):
                named = f"{group}/{unique_name}" if mode == "broadcast" else group
                await self._begin_group(topic, named, settings.start, mode, partitions)
            consumer = kind(
                told_topic(answer), group, unique_name, partitions, settings, self._carriages,
                self._caller, self.name, self._recorder, on_gap, on_assignment, on_group_change, mode,
            )  # fmt: skip
            self._closers.append(lambda _flush: consumer.close())
            masters = [route.master_address for route in answer.routes]
            consumer.expect_servers(masters if partitions is None else [masters[number] for number in partitions])
            return consumer

        return Opening(begin)

    async def offsets(
        self,
        topic: str,
        at: At = "end",
        *,
        partitions: Sequence[int] | None = None,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> tuple[PartitionOffset, ...]:
        """Ask for a place in partitions of a topic: their beginning, their end, or the place of a time.

        All messages that were acknowledged before the call are below the end that it returns. A time is compared with
        the messages' append times (the brokers' clocks), not with their own timestamps. If all messages are older than
        the time, the place is the end, and `found` is False. If all are younger, the place is the first message that is
        kept.

        Args:
            topic: The topic's name.
            at: "earliest", "end", or a time with a zone.
            partitions: Numbers in the topic; None: all.
            incarnation: The incarnation of the topic; empty: of the topic that has the name now.
            timeout_s: Seconds to wait for the answer (default 10).

        Returns:
            One place for each partition, in the order of `partitions`.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: Another topic has the name.
            PartitionOutOfRangeError: The topic has fewer partitions.
            BadRequestError: The time has no zone, or is before 1970.
            PositionUnknownError: No broker could report the place in one of the partitions in time.
            UnavailableError: No broker answered in time.

        The call changes nothing; it may be cancelled at any time.
        """
        from seriatim._ranges import questions

        return await questions.offsets(self._caller, topic, at, partitions, incarnation, timeout_s)

    async def retained(
        self, topic: str, *, incarnation: str = "", timeout_s: float = QUESTION_DEADLINE_S
    ) -> tuple[RetainedRange, ...]:
        """Ask which messages of each partition are kept: from which offset on, since when, how many, and their bytes.

        Args:
            topic: The topic's name.
            incarnation: The incarnation of the topic; empty: of the topic that has the name now.
            timeout_s: Seconds to wait for the answer (default 10).

        Returns:
            One range for each partition, by number.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: Another topic has the name.
            PositionUnknownError: No broker could report the range of one of the partitions in time.
            UnavailableError: No broker answered in time.
        """
        from seriatim._ranges import questions

        return await questions.retained(self._caller, topic, incarnation, timeout_s)

    async def plan_range(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        cut_bytes: int = 0,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> RangePlan:
        """Divide [start, end) of a partition into pieces that can be read separately, and find the gone messages.

        The same range always has the same pieces, unless retention drops some of its messages. Nothing else changes
        below the end of a partition.

        Args:
            topic: The topic's name.
            partition: Number in the topic.
            start: The first offset of the range.
            end: The first offset after the range. It is at most the end of the partition.
            cut_bytes: A piece ends with the batch that brings it to this size or above it, at least 64 KiB; 0: each
                piece is a whole segment.
            incarnation: The incarnation of the topic; empty: of the topic that has the name now.
            timeout_s: Seconds to wait for each page of the answer (default 10).

        Raises:
            OffsetOutOfRangeError: The range ends after the end of the partition, or `start` or `end` is after the
                end of its segment. `details["end"]` is the offset of the end that was passed.
            BadRequestError: `start` and `end` are no range, or `cut_bytes` is less than 64 KiB and not 0.
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: Another topic has the name.
            PartitionOutOfRangeError: The topic has fewer partitions.
            UnavailableError: No broker answered in time.
        """
        from seriatim._ranges import questions

        return await questions.plan_range(self._caller, topic, partition, start, end, cut_bytes, incarnation, timeout_s)

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int | At = "earliest",
        end: int | At = "end",
        *,
        incarnation: str = "",
        raw: bool = False,
        on_loss: Callable[[LostRange], None] | None = None,
        credit_bytes: int | None = None,
        read_timeout_s: float = 30.0,
    ) -> Opening[RangeReader]:
        """A reader of [start, end) of a partition: `async with client.read_range("t", 0) as reader`.

        It needs no consumer group. The reader asks once, when it begins, where the range starts and ends. It does not
        read messages that come later. If a broker is lost in the middle, the reader continues at another one, from
        exactly the same place.

        Args:
            topic: The topic's name.
            partition: Number in the topic.
            start: An offset, "earliest", "end", or a time with a zone: then the first message at or after it.
            end: The first offset that is not read, given in the same way.
            incarnation: The incarnation of the topic; empty: of the topic that has the name now.
            raw: Whether to read repeats too. Other readers skip them, because the same messages come earlier.
            on_loss: Called with each range of messages that was declared lost or that retention dropped. If None, the
                reader raises `MessagesGoneError` there.
            credit_bytes: Bytes that a broker may send ahead of the application, at least 64 KiB. None: 8 MiB, and over
                a distance more, up to 64 MiB.
            read_timeout_s: Seconds for which the reader looks for a broker that has the next messages, before it
                raises `UnavailableError` (default 30).

        Raises:
            OffsetOutOfRangeError: The range ends after the end of the partition. `details["end"]` is that end. This
                and all errors below are raised when the reader begins.
            BadRequestError: The range ends before it begins, a time has no zone or is before 1970, or `credit_bytes` or
                `read_timeout_s` is below its limit.
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: Another topic has the name.
            PartitionOutOfRangeError: The topic has fewer partitions.
            PositionUnknownError: No broker could report the place of `start` or `end` in time.
            UnavailableError: No broker answered within 10 s.
        """
        check_whole("partition", partition, 0)
        if credit_bytes is not None:
            check_whole("credit_bytes", credit_bytes, 1)

        async def begin() -> RangeReader:
            from seriatim._ranges.opening import open_range

            reader = await open_range(
                self._caller, self._channels, self.name, topic, partition, start, end, incarnation,
                raw=raw, on_loss=on_loss, credit_bytes=credit_bytes, read_timeout_s=read_timeout_s,
            )  # fmt: skip

            def close(_flush: bool) -> Awaitable[None]:
                return reader.close()

            self._closers.append(close)
            reader.on_closed = lambda: self._closers.remove(close)
            return reader

        return Opening(begin)

    async def report_progress(
        self,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        *,
        incarnation: str = "",
        timeout_s: float = QUESTION_DEADLINE_S,
    ) -> None:
        """Report how far a program that reads ranges has read, under the name of an external group.

        An external group is a consumer group without consumers. `Admin.describe_group` and `seriatim group describe`
        show it with its lag, like any other. If the topic's retention keeps unread messages, it also keeps those that
        this group has not read. The cluster forgets the group if it reports nothing for `deleted_kept_s` (7 days), or
        when `Admin.delete_group` is called.

        Args:
            topic: The topic's name.
            group: The external group's name. Consumers cannot join it.
            offsets: For each partition number, the offset of the next message that the program will read.
            incarnation: The incarnation of the topic; empty: of the topic that has the name now.
            timeout_s: Seconds to wait for the answer (default 10).

        Raises:
            PreconditionError: The consumer group has consumers, or another topic has the name.
            OffsetOutOfRangeError: A partition has no such offset.
            IllegalNameError: A topic or a consumer group cannot have this name.
            UnknownTopicError: The cluster has no such topic.
            PartitionOutOfRangeError: The topic has fewer partitions.
            UnavailableError: No broker answered in time.

        If cancelled, or after `UnavailableError`, the report may have been stored. To report again does no harm.
        """
        from seriatim._ranges import questions

        await questions.report_progress(self._caller, topic, group, offsets, incarnation, timeout_s)

    async def cancel(
        self, topic: str, partition: int, origin: int, *, timeout_s: float = QUESTION_DEADLINE_S
    ) -> CancelOutcome:
        """Call a delayed message back.

        Args:
            topic: The topic's name.
            partition: The number of the message's partition.
            origin: The offset in the receipt of the message. Each message of a batch has its own.
            timeout_s: Seconds to wait for the answer (default 10).

        Returns:
            `CANCELLED`: no consumer is ever given the message. `TOO_LATE`: it was due, and consumers are given it, or
            were. `NOT_FOUND`: there is no delayed message at this offset, or there is none any more. Each answer is
            final: the same call again has the same answer, as long as the partition keeps the message.

        Raises:
            BadRequestError: `origin` is no offset, or another argument is over its limit.
            UnknownTopicError: The cluster has no such topic.
            IllegalNameError: A topic cannot have this name.
            PartitionOutOfRangeError: The topic has fewer partitions.
            RoutingError: No broker could cancel the message in time, for example because a segment before it is not
                settled. It was cancelled or not: make the same call again.
            UnavailableError: No broker answered in time. The same is true.

        If the call is cancelled, the message may have been cancelled.
        """
        check_name(topic, "topic")
        check_whole("partition", partition, 0, NUMBER_MAX)
        check_whole("origin", origin, 0, OFFSET_MAX)
        check_number("timeout_s", timeout_s, 0.001, "seconds")
        if self._cancellations is None:
            from seriatim._transport.cancellations import Cancellations

            self._cancellations = Cancellations(self._caller)
        if self._recorder is None:
            return await self._cancellations.cancel(topic, partition, origin, timeout_s)
        self._recorder.cancels(topic, partition, origin)
        outcome = await self._cancellations.cancel(topic, partition, origin, timeout_s)
        self._recorder.cancels(topic, partition, origin, outcome)
        return outcome

    def admin(self) -> Admin:
        """The administration of the cluster. It shares this client's connections and ends with the client."""
        from seriatim._admin.admin import Admin

        return Admin(self._caller, self.read_range, self._recorder)

    async def _begin_group(
        self, topic: str, group: str, start: Target, mode: Mode, partitions: Sequence[int] | None
    ) -> None:
        """Make the cursors of a consumer group, in that mode. If it is there on some partitions, its settings stay."""
        from seriatim._values.consumer_group_settings import GroupSettings

        admin = self.admin()
        if mode == "exclusive":
            await admin.create_group(topic, group, start, partitions=partitions)
            return
        try:
            await admin.create_group(topic, group, start, partitions=partitions, settings=GroupSettings(mode))
        except PreconditionError:
            known = (await admin.describe_group(topic, group)).settings
            if known is None or known.mode != mode:
                raise
            await admin.create_group(topic, group, start, partitions=partitions, settings=known)

    async def _ask_for_topic(self, name: str) -> broker_pb2.GetTopicResponse:
        check_name(name, "topic")
        request = broker_pb2.GetTopicRequest(topic=name)
        answer: broker_pb2.GetTopicResponse = await self._caller.routing(
            "GetTopic", request, TOPIC_DEADLINE_S, waits_for_rebuild=True
        )
        self._caller.learn(broker.address for broker in answer.brokers)
        self._carriages.learn(answer)
        return answer

    async def _ask_and_load(self, topic: str, load: Callable[[], L]) -> tuple[broker_pb2.GetTopicResponse, L]:
        """Ask for a topic, and import in a thread what is needed then. So the event loop is not held up either.

        Raises:
            SeriatimError: As `_ask_for_topic`.
        """
        loading = asyncio.create_task(asyncio.to_thread(load), name="imports")
        try:
            answer = await self._ask_for_topic(topic)
            return answer, await loading
        finally:
            loading.cancel()


def _load_producer() -> tuple[type[Producer], Callable[[common_pb2.Route], Route], type[AppendLinks]]:
    from seriatim._producing.producer import Producer
    from seriatim._producing.routes import route_of
    from seriatim._transport.append import AppendLinks

    return Producer, route_of, AppendLinks


def _load_consumer(mode: Mode) -> Any:
    if mode in ("key_ordered", "shared"):
        from seriatim._consuming.keyed_consumer import KeyedConsumer

        return KeyedConsumer
    from seriatim._consuming.consumer import Consumer

    return Consumer


def _check_group(group: str, mode: str, name: str | None) -> None:
    """Refuse a name or a mode that no broker would accept.

    Raises:
        IllegalNameError: A consumer group cannot have this name, or a consumer.
        UnsupportedModeError: There is no such mode.
    """
    check_name(group, "consumer group")
    if mode not in get_args(Mode):
        raise UnsupportedModeError(f"there is no mode {mode!r}: use {', '.join(get_args(Mode))}")
    if name is not None and not (isinstance(name, str) and name):
        raise IllegalNameError(f"{name!r} cannot name a consumer: name it by a text, or leave the name out to get one")
    if mode == "broadcast" and name is not None:
        check_name(name, "consumer of a broadcast group")


def _addresses_of(bootstrap: object) -> list[str]:
    """The addresses that a program named.

    Raises:
        BadRequestError: They are none.
    """
    given = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    if isinstance(given, Sequence) and not isinstance(given, bytes) and all(isinstance(item, str) for item in given):
        if any("://" in address for address in given):
            raise BadRequestError(
                f"bootstrap is host:port, or several with commas between them, not {bootstrap!r}: leave https:// out, "
                "and give the certificates for TLS (tls=Tls(...) in a program, --tls-ca in the command)"
            )
        addresses = [address.strip() for address in given if address.strip()]
        if addresses and all(map(_is_address, addresses)):
            return addresses
    raise BadRequestError(f"bootstrap is host:port, or several with commas between them, not {bootstrap!r}")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_host = bool(host) and not set(host) & set("/@?#;, \t")
    return is_host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
