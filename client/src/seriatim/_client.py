"""The client: what producers, consumers and administration share, and their beginning and end.

What producers and consumers need is loaded when the first one is made: Arrow alone takes longer to load than most
administration to do.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeVar, Unpack

from seriatim_api.errors import BadRequestError, IllegalNameError, UnsupportedModeError
from seriatim_api.ids import is_legal_name
from seriatim_api.v1 import broker_pb2

from seriatim._admin import Admin, topic_of
from seriatim._ranges import questions
from seriatim._ranges.questions import QUESTION_DEADLINE_S, At
from seriatim._recording import HistoryLike, MessageIdOf, Recorder
from seriatim._records import Assignment, Gap, GroupChange, LostRange, PartitionOffset, RangePlan, RetainedRange
from seriatim._settings import Compression, ConsumerOptions, ConsumerSettings, ProducerOptions, ProducerSettings
from seriatim._tls import Tls
from seriatim._transport.channels import Channels
from seriatim._transport.unary import Caller

if TYPE_CHECKING:
    from seriatim._consumer import Consumer
    from seriatim._partitioner import Partitioner
    from seriatim._producer import Producer
    from seriatim._ranges.reading import RangeReader
    from seriatim._transport.append import AppendLinks
    from seriatim._writer import Writer

STAGED_BATCH_BYTES: Final = 512 << 10

TOPIC_DEADLINE_S: Final = 10.0
"""For the first question about a topic: a cluster that is just starting answers by then."""


class _Closable(Protocol):
    async def close(self) -> Any:
        """End."""


T = TypeVar("T", bound=_Closable)


class Opening(Generic[T]):
    """A producer or consumer that begins when it is awaited, or entered with `async with`."""

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._begin = begin
        self._begun: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()

    async def __aenter__(self) -> T:
        self._begun = await self._begin()
        enter = getattr(self._begun, "__aenter__")  # noqa: B009 - the protocol names only what all share
        await enter()
        return self._begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = getattr(self._begun, "__aexit__")  # noqa: B009
        await leave(kind, error, trace)


class Client:
    """A connection to a cluster. `async with Client.connect("host:port") as client: ...`"""

    def __init__(self, bootstrap: Sequence[str], name: str, recorder: Recorder | None, tls: Tls | None) -> None:
        self.name = name
        self._recorder = recorder
        self._channels = Channels(tls)
        self._caller = Caller(self._channels, bootstrap)
        self._links: AppendLinks | None = None  # until there is a producer
        self._closers: list[Callable[[bool], Awaitable[Any]]] = []  # of what was opened; told whether to flush

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        bootstrap: str | Sequence[str],
        *,
        name: str = "",
        tls: Tls | None = None,
        recorder: HistoryLike | None = None,
        message_id: MessageIdOf | None = None,
    ) -> AsyncIterator[Self]:
        """A client of the cluster that these brokers belong to. Connections are made when they are needed.

        What was opened with the client and not closed is closed at the end: producers flush first, unless an error
        leaves the block.

        Args:
            bootstrap: Addresses `host:port`, one that answers is enough; a string may hold several with commas.
            name: For the brokers' logs.
            tls: How to speak TLS; None speaks plain text.
            recorder: A `seriatim.history.HistoryWriter`, to have all that this client does checked later.
            message_id: With a recorder: the id of a message from its value, unique in the history.

        Raises:
            BadRequestError: Not addresses.
            PreconditionError: Certificates that cannot be used.
        """
        addresses = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        addresses = [address.strip() for address in addresses if address.strip()]
        if not addresses or not all(_is_address(address) for address in addresses):
            raise BadRequestError(f"bootstrap is host:port, or several: {bootstrap!r}")
        if (recorder is None) != (message_id is None):
            raise BadRequestError("a recorder comes with a message_id")
        told = Recorder(recorder, message_id) if recorder is not None and message_id is not None else None
        client = cls(addresses, name or f"seriatim-{os.getpid()}", told, tls)
        try:
            yield client
        except BaseException:
            await client._close(flush=False)
            raise
        await client._close(flush=True)

    async def _close(self, *, flush: bool) -> None:
        """Close what was opened, all of it, also if closing one raises or is cancelled; raises the first error then."""
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
            topic: Its name.
            options: The fields of `ProducerSettings`.

        Raises (when it begins):
            UnknownTopicError: There is no such topic.
            IllegalNameError: Nothing can be called so.
            UnavailableError: No broker answered.
        """
        settings = ProducerSettings(**options)

        async def begin() -> Producer:
            answer = await self._ask_for_topic(topic)
            from seriatim._producer import Producer
            from seriatim._producing.routes import route_of
            from seriatim._transport.append import AppendLinks

            if self._links is None:
                self._links = AppendLinks(self._channels, self.name)
            producer = Producer(
                topic_of(answer.topic), list(map(route_of, answer.routes)), settings, self._channels, self._caller,
                self._links, self._recorder,
            )  # fmt: skip
            self._closers.append(lambda flush: producer.close(None if flush else 0))
            return producer

        return Opening(begin)

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
        """A writer of a topic: `async with client.writer("t", "nightly") as writer`. Sets of rows, all or nothing.

        Nothing is asked of the brokers before its first call. Call `open` first in the program that publishes; tasks in
        other processes only stage, and need not.

        Args:
            topic: Its name.
            name: The writer's: what it has published, and up to which sequence, is kept under this name.
            epoch: From `open` in another process, to publish here; 0: the writer is opened here, or never.
            owner: What only one program has, such as the id of a query: another owner is refused. Empty: not compared.
            compression: Of what is staged: None, "lz4" or "zstd".
            partitioner: Which partition a key goes to; as of `producer`.

        Raises (when it begins):
            IllegalNameError: Nothing can be called so.
        """

        async def begin() -> Writer:
            from seriatim._partitioner import partition_of_key
            from seriatim._publishing.staging import Stager
            from seriatim._transport.append import AppendLinks
            from seriatim._writer import Writer

            settings = ProducerSettings(
                batch_size_bytes=STAGED_BATCH_BYTES,
                compression=compression,
                linger_ms=0,
                partitioner=partitioner or partition_of_key,
            )
            if self._links is None:
                self._links = AppendLinks(self._channels, self.name)
            stager = Stager(topic, settings, self._channels, self._caller, self._links, self.name)
            return Writer(topic, name, epoch, owner, stager, self._caller)

        return Opening(begin)

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: Literal["exclusive"] = "exclusive",
        partitions: Sequence[int] | None = None,
        name: str | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        on_group_change: Callable[[GroupChange], None] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer]:
        """A consumer of a topic, a member of a consumer group: `async with client.consumer("t", "g") as consumer`.

        Args:
            topic: Its name.
            group: The consumer group's name.
            mode: `exclusive`: one consumer at a time for each partition, the others stand by.
            partitions: Numbers to ask for; all of them if absent.
            name: Unique in the group; made up if absent.
            on_gap: Called when messages are declared gone.
            on_assignment: Called when a partition begins or ceases to be delivered here.
            on_group_change: Called when the group was rewound, skipped, paused or resumed on a partition, before the
                first message that is delivered since.
            options: The fields of `ConsumerSettings`.

        Raises (when it begins):
            UnknownTopicError: There is no such topic.
            UnsupportedModeError: A mode that is not served.
            IllegalNameError: The topic's or the group's name.
            PartitionOutOfRangeError: The topic has fewer partitions.
            OffsetOutOfRangeError: `start` is no place in the topic, or a time in the future.
            UnavailableError: No broker answered.
        """
        _check_group(group, mode)
        settings = ConsumerSettings(**options)

        async def begin() -> Consumer:
            answer = await self._ask_for_topic(topic)
            from seriatim._consumer import Consumer

            if settings.start not in ("earliest", "latest"):
                await self.admin().create_group(topic, group, settings.start, partitions=partitions)
            unique_name = name or f"consumer-{os.urandom(6).hex()}"
            consumer = Consumer(
                topic_of(answer.topic), group, unique_name, partitions, settings, self._channels,
                self._caller, self.name, self._recorder, on_gap, on_assignment, on_group_change,
            )  # fmt: skip
            self._closers.append(lambda _flush: consumer.close())
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
        """A place in partitions of a topic: where they begin, where they end, or where a time is.

        All that was acknowledged before the call lies before the end that it returns. A time is compared with the
        brokers' clocks when they took the messages, not with the messages' own timestamps. If all messages are older,
        the place is the end, and `found` is False; if all are younger, it is the first one that is kept.

        Args:
            topic: Its name.
            at: "earliest", "end", or a time with a zone.
            partitions: Numbers; all if absent.
            incarnation: Of the topic that is meant; empty: whichever has the name.
            timeout_s: For the answer.

        Returns:
            One place for each partition, in the order of `partitions`.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: Another topic has the name.
            PartitionOutOfRangeError: The topic has fewer partitions.
            BadRequestError: A time without a zone, or before 1970.
            PositionUnknownError: No broker could tell the place in one of the partitions in time.
            UnavailableError: No broker answered.
        """
        return await questions.offsets(self._caller, topic, at, partitions, incarnation, timeout_s)

    async def retained(
        self, topic: str, *, incarnation: str = "", timeout_s: float = QUESTION_DEADLINE_S
    ) -> tuple[RetainedRange, ...]:
        """What is kept of each partition of a topic: from which message on, since when, how many messages and bytes.

        Args:
            topic: Its name.
            incarnation: Of the topic that is meant; empty: whichever has the name.
            timeout_s: For the answer.

        Returns:
            One range for each partition, by number.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: Another topic has the name.
            PositionUnknownError: No broker could tell it of one of the partitions in time.
            UnavailableError: No broker answered.
        """
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
        """What lies between two offsets of a partition: pieces that can be read apart, and what is gone.

        Below the end of the partition nothing changes but what retention drops, so the same range has the same pieces.

        Args:
            topic: Its name.
            partition: Number in the topic.
            start: The first offset.
            end: The first one behind the range; not behind the end of the partition.
            cut_bytes: A piece ends with the first batch at or above this size; 0: pieces are whole segments.
            incarnation: Of the topic that is meant; empty: whichever has the name.
            timeout_s: For each page of the answer.

        Raises:
            OffsetOutOfRangeError: The range ends behind the end of the partition, or one of its ends lies behind that
                of its segment; `details["end"]` is the offset of that end.
            BadRequestError: No range, or pieces of less than 64 KiB.
            UnknownTopicError, PreconditionError, PartitionOutOfRangeError, UnavailableError: As of `offsets`.
        """
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
        credit_bytes: int = 8 << 20,
        read_timeout_s: float = 30.0,
    ) -> Opening[RangeReader]:
        """A reader of [start, end) of a partition: `async with client.read_range("t", 0) as reader`.

        It needs no consumer group. Where it begins and ends is found out once, when it begins: messages that come later
        are not read. If a broker is lost in the middle, it goes on at another one exactly where it was.

        Args:
            topic: Its name.
            partition: Number in the topic.
            start: An offset, "earliest", "end", or a time with a zone: the first message at or after it.
            end: The first offset that is not read, given alike.
            incarnation: Of the topic that is meant; empty: whichever has the name.
            raw: Whether to read also what readers otherwise skip, because it repeats what stands earlier.
            on_loss: Called with what was declared lost, or dropped by retention. If absent, such a range raises.
            credit_bytes: Bytes that are read ahead, at least 64 KiB.
            read_timeout_s: For so long without a broker that has the next messages it keeps trying.

        Raises (when it begins):
            OffsetOutOfRangeError: The range ends behind the end of the partition, which `details["end"]` names.
            BadRequestError: The range ends before it begins; a time without a zone, or before 1970.
            UnknownTopicError, PreconditionError, PartitionOutOfRangeError, UnavailableError: As of `offsets`.
        """

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
        """Say how far a program is that reads ranges, under the name of a consumer group without consumers.

        The group is shown with its lag as others are (`Admin.describe_group`, `seriatim group describe`), and retention
        that spares unread messages spares those that it has not read. It is removed if it reports nothing for
        `deleted_kept_s` (7 days), or with `Admin.delete_group`.

        Args:
            topic: Its name.
            group: The group's name; consumers cannot join it.
            offsets: By partition number: of the next message that the program will read.
            incarnation: Of the topic that is meant; empty: whichever has the name.
            timeout_s: For the answer.

        Raises:
            PreconditionError: The group has consumers; or another topic has the name.
            OffsetOutOfRangeError: A partition has no such offset.
            IllegalNameError, UnknownTopicError, PartitionOutOfRangeError, UnavailableError: As of `offsets`.
        """
        await questions.report_progress(self._caller, topic, group, offsets, incarnation, timeout_s)

    def admin(self) -> Admin:
        """Administration of the cluster."""
        return Admin(self._caller)

    async def _ask_for_topic(self, name: str) -> broker_pb2.GetTopicResponse:
        if not is_legal_name(name):
            raise IllegalNameError(f"{name!r} cannot name a topic")
        request = broker_pb2.GetTopicRequest(topic=name)
        answer: broker_pb2.GetTopicResponse = await self._caller.routing("GetTopic", request, TOPIC_DEADLINE_S)
        self._caller.learn(broker.address for broker in answer.brokers)
        return answer


def _check_group(group: str, mode: str) -> None:
    """Refuse what no broker would take.

    Raises:
        IllegalNameError: The group's name.
        UnsupportedModeError: A mode that is not served.
    """
    if not is_legal_name(group):
        raise IllegalNameError(f"{group!r} cannot name a consumer group")
    if mode != "exclusive":
        raise UnsupportedModeError(f"mode {mode!r} is not served by this version: exclusive is")


def _is_address(text: str) -> bool:
    host, separator, port = text.rpartition(":")
    return bool(host and separator and port.isdecimal() and 0 < int(port) < 1 << 16)
