"""A cluster in memory with the methods of the public classes that the commands call: no network and no broker.

It keeps messages in order and redelivers what was not acknowledged; nothing in it fails unless a test says so.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from seriatim import (
    Assignment,
    Balance,
    Broker,
    BrokerGroup,
    BrokerGroupMember,
    CancelOutcome,
    Chain,
    Cluster,
    Damage,
    DeadLetter,
    DelayedMessages,
    DelayedStats,
    GroupDescription,
    GroupKey,
    GroupPartition,
    GroupSettings,
    KeyResult,
    LostRange,
    Message,
    MovePlan,
    NameOwner,
    OperatedPartition,
    OwnerDescription,
    PartitionOffset,
    PlannedMove,
    ProducerSettings,
    QuarantinedMessage,
    RangePiece,
    RangePlan,
    Receipt,
    ReplayedDeadLetter,
    RestartCheck,
    RetainedRange,
    RetryPolicy,
    ScrubProgress,
    Segment,
    SendError,
    Topic,
    TopicDescription,
    TopicSettings,
    WriterDescription,
)
from seriatim._recorder import Place, Recorder
from seriatim._values.headers import HeaderList, headers_of
from seriatim_api.errors import (
    NotServingError,
    PositionUnknownError,
    PreconditionError,
    TopicExistsError,
    UnavailableError,
    UnknownGroupError,
    UnknownTopicError,
)
from seriatim_api.ids import make_offset, split_offset

SEGMENT = 3
FIRST_S = 1_700_000_000


def message_at(
    topic: str,
    partition: int,
    index: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: HeaderList | None = None,
) -> Message:
    return Message(
        topic, partition, make_offset(SEGMENT, index), key, value or b"", FIRST_S * 1000, headers_of(headers), None, 1,
        False, 0, value is None,
    )  # fmt: skip


def segment_of(
    no: int, group: str, members: tuple[str, ...], state: str, sealed_len: int | None, **more: Any
) -> Segment:
    plain: dict[str, Any] = {
        "base": None, "sealed_checksum": None, "tail_from": None, "tail_copies": (), "incomplete_table": False,
        "server": members[0], "server_epoch": 1, "eligible": members, "opened_at_ms": 0, "sealed_at_ms": 0,
        "state": state,
    }  # fmt: skip
    return Segment(no=no, group=group, members=members, sealed_len=sealed_len, **(plain | more))


def chain_of(
    topic: str, partition: int, epoch: int, send_chain: tuple[str, ...], segments: tuple[Segment, ...], pages: int = 0
) -> Chain:
    return Chain(topic, partition, partition + 1, epoch, send_chain, segments, True, pages)


def place_of(partition: int, segment: int, index: int, lag: int, **more: Any) -> GroupPartition:
    plain: dict[str, Any] = {
        "partition_id": partition + 1, "has_cursor": True, "segment": segment, "acked_index": index, "position": index,
        "end_position": index + lag, "server_broker": "g0-0", "active_consumer": "c1", "standby_consumers": (),
        "group_epoch": 4, "error": None,
    }  # fmt: skip
    return GroupPartition(partition=partition, **(plain | more))


def broker_group_of(name: str, live: int, heads: int, segments: int, **more: Any) -> BrokerGroup:
    """A broker group of two brokers, of which `live` run."""
    members = tuple(BrokerGroupMember(f"{name}-{slot}", "", 1, slot < live, False) for slot in range(2))
    plain: dict[str, Any] = {"intent": "active", "weight": 1.0, "members": members}
    return BrokerGroup(name=name, heads=heads, segments=segments, **(plain | more))


@dataclass
class MemoryCluster:
    """What all commands of a test talk to.

    Attributes:
        places: Of a consumer group and a partition: what `describe_group` says beside the place.
        refuse: Of a message's value: the error it gets instead of being stored.
        older: The segments of each partition before the open one. If there are any, a page has older ones.
        dead: What was declared dead.
        removed: Which brokers were forgotten.
        delays: Messages that were sent with a delay or a due time, with both.
        brokers: The brokers.
        broker_groups: By name; one that is not active loses a segment each time that it is counted.
        checks: What the gate says of each broker.
        gaps: What was declared a gap.
        damages: What a scrub finds.
        quarantined: What brokers keep in quarantine.
        balance: What the controller would do.
        balanced: How often it was told to.
        operated: What was done to groups.
        settings: Of groups, by topic and group.
        waiting: Keys that wait, by topic and group.
        letters: Dead letters of the topic `flights.keyed.dead`.
        delayed: Delayed messages of the topic `flights`.
        owners: Owners of names.
        described: What `owner show` finds of a name in `flights`.
        unserved: Segments without a server, by partition.
        remade: The dead letters are of a topic that was deleted and made again.
        unanswered: Partitions whose server does not answer when a group is moved.
        dropped: Of a partition: how many of its first messages retention dropped.
        blocked: Partitions with a segment that is not settled.
        silent: Topics of which no broker reports what is kept.
    """

    topics: dict[str, Topic] = field(default_factory=dict)
    logs: dict[tuple[str, int], list[Message]] = field(default_factory=dict)
    cursors: dict[tuple[str, str, int], int] = field(default_factory=dict)
    places: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    writers: dict[tuple[str, str], WriterDescription] = field(default_factory=dict)
    refuse: dict[bytes, SendError] = field(default_factory=dict)
    older: tuple[Segment, ...] = ()
    dead: list[tuple[str | int, ...]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    delays: list[tuple[bytes | None, int | None, int | None]] = field(default_factory=list)
    brokers: tuple[Broker, ...] = (
        Broker("g0-0", "0123456789abcdef", "g0", 0, 4, "127.0.0.2:7000", admitted=True, live=True),
    )
    broker_groups: dict[str, BrokerGroup] = field(default_factory=dict)
    checks: dict[str, RestartCheck] = field(default_factory=dict)
    gaps: list[tuple[str, int, int, str]] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    quarantined: list[QuarantinedMessage] = field(default_factory=list)
    started_at: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)
    balance: Balance = field(default_factory=lambda: Balance((), (), (), "all is even"))
    balanced: int = 0
    operated: list[Any] = field(default_factory=list)
    settings: dict[tuple[str, str], GroupSettings] = field(default_factory=dict)
    waiting: dict[tuple[str, str], tuple[GroupKey, ...]] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    delayed: list[DelayedMessages] = field(default_factory=list)
    owners: list[NameOwner] = field(default_factory=list)
    described: dict[str, OwnerDescription] = field(default_factory=dict)
    unserved: dict[int, tuple[int, ...]] = field(default_factory=dict)
    remade: bool = False
    unanswered: tuple[int, ...] = ()
    dropped: dict[int, int] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)

    def make(self, name: str, partitions: int = 1, settings: TopicSettings | None = None) -> None:
        plain = TopicSettings(message_size_bytes_max=1 << 20, chain_width=5, retention_ms=0)
        ids = tuple(range(1, partitions + 1))
        self.topics[name] = Topic(name, "i1", "READY", ids, settings or plain, FIRST_S * 1000)
        for partition in range(partitions):
            self.logs[name, partition] = []

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
        return self.topics[name]

    def partitions(self, topic: str) -> range:
        return range(self.topic(topic).partition_count)

    @asynccontextmanager
    async def client(self, _settings: Any, recorder: Recorder | None = None) -> AsyncIterator[MemoryClient]:
        yield MemoryClient(self, recorder)


class MemoryClient:
    """A message of 1 MiB a second was taken since `FIRST_S`; what is below `dropped` of a partition is gone."""

    def __init__(self, cluster: MemoryCluster, recorder: Recorder | None) -> None:
        self._cluster = cluster
        self._recorder = recorder

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self._cluster, self._recorder)

    @asynccontextmanager
    async def producer(self, topic: str) -> AsyncIterator[MemoryProducer]:
        yield MemoryProducer(self._cluster, self._cluster.topic(topic))

    @asynccontextmanager
    async def consumer(
        self, topic: str, group: str, *, start: str, on_assignment: Callable[[Assignment], None], mode: str, **_: Any
    ) -> AsyncIterator[MemoryConsumer]:
        self._cluster.started_at.append(start)
        self._cluster.modes.append(mode)
        for partition in self._cluster.partitions(topic):
            on_assignment(Assignment(topic, partition, True, make_offset(SEGMENT, 0)))
        is_keyed = mode in ("key_ordered", "shared")
        yield (MemoryKeyedConsumer if is_keyed else MemoryConsumer)(self._cluster, topic, group, self._recorder)

    async def cancel(self, topic: str, partition: int, origin: int) -> CancelOutcome:
        self._cluster.topic(topic)
        if partition in self._cluster.unserved:
            raise NotServingError("segment 3 is about to be served")
        before, self._cluster.delayed = (
            self._cluster.delayed,
            [row for row in self._cluster.delayed if (row.partition, row.offset) != (partition, origin)],
        )
        return CancelOutcome.CANCELLED if before != self._cluster.delayed else CancelOutcome.TOO_LATE

    def _kept(self, topic: str, partition: int) -> tuple[int, int]:
        return self._cluster.dropped.get(partition, 0), len(self._cluster.logs[topic, partition])

    async def offsets(
        self, topic: str, at: Literal["earliest", "end"] | datetime, *, partitions: Sequence[int] | None = None
    ) -> tuple[PartitionOffset, ...]:
        rows = []
        for partition in self._cluster.partitions(topic) if partitions is None else partitions:
            first, length = self._kept(topic, partition)
            index = length if at == "end" else first
            if isinstance(at, datetime):
                index = min(max(math.ceil(at.timestamp() - FIRST_S), first), length)
            found = isinstance(at, datetime) and index < length
            blocked = at == "end" and partition in self._cluster.blocked
            offset = make_offset(SEGMENT, index)
            rows.append(PartitionOffset(topic, "i1", partition, partition + 1, offset, index, None, blocked, found))
        return tuple(rows)

    async def retained(self, topic: str, *, timeout_s: float = 10.0) -> tuple[RetainedRange, ...]:
        assert timeout_s > 0
        if topic in self._cluster.silent:
            raise PositionUnknownError("no broker reports")
        rows = []
        for partition in self._cluster.partitions(topic):
            first, length = self._kept(topic, partition)
            count, offset = length - first, make_offset(SEGMENT, first)
            since_ms = (FIRST_S + first) * 1000 if count else None
            rows.append(RetainedRange(topic, partition, offset, count, count << 20, since_ms))
        return tuple(rows)

    async def plan_range(self, topic: str, partition: int, start: int, end: int, *, cut_bytes: int = 0) -> RangePlan:
        cuts = [*range(start, end, max(cut_bytes >> 20, 1) if cut_bytes else 4), end]
        pieces = (
            RangePiece(one, other, other - one, (other - one) << 20, ("g0-0",), ("127.0.0.2:7000",))
            for one, other in itertools.pairwise(cuts)
        )
        return RangePlan(topic, "i1", partition, start, end, tuple(pieces), ())

    @asynccontextmanager
    async def read_range(
        self, topic: str, partition: int, start: int, end: int, *, on_loss: Callable[[LostRange], None]
    ) -> AsyncIterator[MemoryReader]:
        first = make_offset(SEGMENT, self._cluster.dropped.get(partition, 0))
        if start < first:
            on_loss(LostRange(topic, partition, start, first, "dropped"))
        log = self._cluster.logs[topic, partition]
        yield MemoryReader([message for message in log if max(start, first) <= message.offset < end])


class MemoryReader:
    def __init__(self, messages: list[Message]) -> None:
        self._left = messages

    async def fetch(self) -> list[Message]:
        found, self._left = self._left[:3], self._left[3:]
        return found


class MemoryProducer:
    producer_id = b"in memory"

    def __init__(self, cluster: MemoryCluster, topic: Topic) -> None:
        self._cluster = cluster
        self._topic = topic.name
        self.partition_count = topic.partition_count
        self.settings = ProducerSettings(partitioner=lambda key, count: sum(key) % count)

    async def send(
        self, value: bytes | None, key: bytes | None, partition: int, *, headers: HeaderList | None,
        delay_ms: int | None, due_ms: int | None,
    ) -> asyncio.Future[Receipt]:  # fmt: skip
        if delay_ms is not None or due_ms is not None:
            self._cluster.delays.append((value, delay_ms, due_ms))
        delivery: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        error = self._cluster.refuse.get(value or b"")
        if error is not None:
            delivery.set_exception(error)
        else:
            log = self._cluster.logs[self._topic, partition]
            log.append(message_at(self._topic, partition, len(log), value, key, headers))
            due_ms = due_ms or (FIRST_S * 1000 + delay_ms if delay_ms is not None else 0)
            delivery.set_result(Receipt(partition, log[-1].offset, FIRST_S * 1000, True, due_ms))
        return delivery

    def master_of(self, partition: int) -> str:
        return "g0-0"

    async def flush(self) -> None:
        await asyncio.sleep(0)


class MemoryConsumer:
    name = "memory-consumer"

    def __init__(self, cluster: MemoryCluster, topic: str, group: str, recorder: Recorder | None = None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._group = group
        self._recorder = recorder
        self._read: dict[int, int] = {}

    async def fetch(self, max_messages: int, timeout_s: float) -> list[Message]:
        for partition in self._cluster.partitions(self._topic):
            cursor = self._cluster.cursors.get((self._topic, self._group, partition), 0)
            begin = self._read.get(partition, cursor)
            found = self._cluster.logs[self._topic, partition][begin:][:max_messages]
            if found:
                self._read[partition] = begin + len(found)
                return self._given(found)
        await asyncio.sleep(min(timeout_s, 0.01))
        return []

    def _given(self, messages: list[Message]) -> list[Message]:
        if self._recorder is not None:
            self._recorder.deliveries(messages, self._group, self.name)
        return messages

    async def ack(self, message: Message) -> bool:
        if self._recorder is not None:
            self._recorder.acked(self._group, self._topic, message.partition, message.offset)
        log = self._cluster.logs[self._topic, message.partition]
        self._cluster.cursors[self._topic, self._group, message.partition] = log.index(message) + 1
        return True


class MemoryKeyedConsumer(MemoryConsumer):
    """Its messages come in the order of the partition; what is acknowledged singly is in `acked`."""

    def place(self, partition: int) -> Place:
        return Place(self._group, self.name, self._topic, partition)

    def _given(self, messages: list[Message]) -> list[Message]:
        messages = [message._replace(grant=at) for at, message in enumerate(messages, len(self._cluster.acked) + 1)]
        if self._recorder is not None:
            place = self.place(messages[0].partition)
            self._recorder.granted(place, messages, 1, by_key=True, at_most_once=False)
        return messages

    async def receive(self, max_messages: int, timeout_s: float) -> list[Any]:
        return [MemoryItem(self, message) for message in await self.fetch(max_messages, timeout_s)]


class MemoryItem:
    def __init__(self, consumer: MemoryKeyedConsumer, message: Message) -> None:
        self._consumer = consumer
        self._message = message

    def peek(self) -> Message:
        return self._message

    @property
    def message(self) -> Message:
        raise AssertionError("to print a message is not to begin to work on it")

    def ack(self) -> bool:
        message, consumer = self._message, self._consumer
        if consumer._recorder is not None:
            consumer._recorder.acked_single(consumer.place(message.partition), [message.offset], [message.grant])
        consumer._cluster.acked.append((message.partition, split_offset(message.offset)[1]))
        log = consumer._cluster.logs[consumer._topic, message.partition]
        place = consumer._topic, consumer._group, message.partition
        consumer._cluster.cursors[place] = log.index(message._replace(grant=log[0].grant)) + 1
        return True


class MemoryAdmin:
    def __init__(self, cluster: MemoryCluster, recorder: Recorder | None = None) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._watched: set[int] = set()
        self._is_interrupted = False

    async def create_topic(self, name: str, partition_count: int, settings: TopicSettings) -> Topic:
        if name in self._cluster.topics:
            raise TopicExistsError(f"there is a topic {name!r} already", topic=name)
        self._cluster.make(name, partition_count, replace(settings, retention_ms=settings.retention_ms or 0))
        return self._cluster.topics[name]

    async def update_topic(self, name: str, partition_count: int | None = None, **settings: Any) -> Topic:
        topic = self._cluster.topic(name)
        given = {field: value for field, value in settings.items() if value is not None}
        changes = {**topic.settings.attributes, **given.pop("attribute_changes", {})}
        given["attributes"] = {name: text for name, text in changes.items() if text is not None}
        changed = replace(topic.settings, **given)
        if partition_count is not None:
            self._cluster.make(name, partition_count)
        self._cluster.topics[name] = replace(self._cluster.topics[name], settings=changed)
        return self._cluster.topics[name]

    async def list_topics(self) -> list[Topic]:
        return sorted(self._cluster.topics.values(), key=lambda topic: topic.name)

    async def describe_topic(self, name: str) -> TopicDescription:
        chains = [await self.describe_chain(name, partition) for partition in self._cluster.partitions(name)]
        return TopicDescription(self._cluster.topic(name), tuple(chains))

    async def delete_topic(self, name: str) -> None:
        del self._cluster.topics[self._cluster.topic(name).name]

    async def describe_chain(self, topic: str, partition: int) -> Chain:
        segment = segment_of(SEGMENT, "g0", ("g0-0", "g0-1"), "OPEN", None)
        older = self._cluster.older
        return chain_of(topic, partition, 7, ("g0", "g1"), (*older, segment), pages=int(bool(older)))

    async def watch_chain(self, topic: str, partition: int) -> AsyncIterator[Chain]:
        """The stream breaks once; when one is watched again, the user presses Ctrl-C once."""
        yield await self.describe_chain(topic, partition)
        if partition not in self._watched:
            self._watched.add(partition)
            raise UnavailableError("the stream broke")
        if not self._is_interrupted:  # a second one would end the process, as it should
            self._is_interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    async def list_groups(self, topic: str) -> list[str]:
        return sorted({group for name, group, _ in self._cluster.cursors if name == topic})

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        self._check_no_broadcast(topic, group)
        rows = []
        for partition in self._cluster.partitions(topic):
            acked = self._cluster.cursors.get((topic, group, partition), 0)
            lag = len(self._cluster.logs[topic, partition]) - acked
            more: dict[str, Any] = {"settings": self._cluster.settings.get((topic, group))}
            more |= self._cluster.places.get((group, partition), {})
            rows.append(place_of(partition, SEGMENT, acked, lag, **{"standby_consumers": ("c2",), **more}))
        return GroupDescription(topic, group, tuple(rows))

    async def plan_move(
        self,
        topic: str,
        group: str,
        to: Any,
        *,
        partitions: Sequence[int] | None = None,
        operation: Literal["rewind", "skip"],
    ) -> MovePlan:
        moves = []
        for partition in self._cluster.partitions(topic) if partitions is None else partitions:
            here = self._cluster.cursors.get((topic, group, partition), 0)
            end = len(self._cluster.logs[topic, partition])
            there = split_offset(to)[1] if isinstance(to, int) else end if to == "latest" else 0
            active = "c1" if partition == 0 else ""
            place = place_of(partition, SEGMENT, here, end - here, active_consumer=active)
            moves.append(
                PlannedMove(place, None, None, None, "[125] it lies beyond the end", 125)
                if there > end
                else PlannedMove(place, operation, make_offset(SEGMENT, there), abs(here - there), None)
            )
        return MovePlan(topic, group, tuple(moves))

    async def move_group(
        self, plan: MovePlan, *, request_id: bytes, drop_aside: bool = False
    ) -> list[OperatedPartition]:
        assert not drop_aside
        self._cluster.operated.append((plan.topic, plan.group, plan.moves[0].operation, request_id))
        return [
            OperatedPartition(move.group.partition, False, None, None, "[600] silent", 600)
            if move.group.partition in self._cluster.unanswered
            else OperatedPartition(move.group.partition, False, 5, move.to_offset, None)
            for move in plan.moves
        ]

    async def pause_group(
        self, topic: str, _group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        return self._hold(topic, "pause", partitions)

    async def resume_group(
        self, topic: str, _group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        return self._hold(topic, "resume", partitions)

    def _hold(self, topic: str, operation: str, partitions: Sequence[int] | None) -> list[OperatedPartition]:
        chosen = self._cluster.partitions(topic) if partitions is None else partitions
        was = operation in self._cluster.operated
        self._cluster.operated.append(operation)
        return [OperatedPartition(partition, was, 4, make_offset(SEGMENT, 0), None) for partition in chosen]

    async def create_group(
        self,
        topic: str,
        group: str,
        start: Any,
        *,
        partitions: Sequence[int] | None,
        settings: GroupSettings | None = None,
    ) -> bool:
        assert partitions != ()
        if settings is not None:
            self._cluster.settings[topic, group] = settings
        created = (topic, group, 0) not in self._cluster.cursors
        begin = len(self._cluster.logs[topic, 0]) if start == "latest" else 0
        self._cluster.cursors.setdefault((topic, group, 0), begin)
        return created

    async def configure_group(
        self,
        topic: str,
        group: str,
        *,
        mode: Any,
        retry: RetryPolicy | None,
        at_most_once: bool | None,
        partitions: Sequence[int] | None,
        drop_aside: bool,
        spread: Any = None,
    ) -> list[OperatedPartition]:
        known = self._cluster.settings.get((topic, group), GroupSettings())
        once = known.at_most_once if at_most_once is None else at_most_once
        self._cluster.settings[topic, group] = GroupSettings(
            mode or known.mode, retry or known.retry, once, spread or known.spread
        )
        self._cluster.operated.append(("configure", drop_aside))
        return [
            OperatedPartition(partition, False, None, None, "[130] c1 is in it", 130)
            if mode is not None and mode != known.mode and partition in self._cluster.unanswered
            else OperatedPartition(partition, False, 4, make_offset(SEGMENT, 0), None)
            for partition in (self._cluster.partitions(topic) if partitions is None else partitions)
        ]

    async def group_keys(
        self,
        topic: str,
        group: str,
        *,
        partition: int | None = None,
        states: Sequence[str] | None = None,
        key: bytes | None = None,
    ) -> AsyncIterator[GroupKey]:
        for found in self._cluster.waiting.get((topic, group), ()):
            fits = partition in (None, found.partition) and key in (None, found.key)
            if fits and (states is None or found.state in states):
                if self._recorder is not None:
                    self._recorder.waiting(topic, group, found)
                yield found

    async def release_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        return self._operate_keys("release", keys)

    async def skip_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        return self._operate_keys("skip", keys)

    async def dead_letter_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        return self._operate_keys("dead-letter", keys)

    async def dead_letters(
        self,
        topic: str,
        group: str | None = None,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        after: int | None = None,
    ) -> AsyncIterator[DeadLetter]:
        if not topic.endswith(".dead"):
            raise UnknownTopicError(f"there is no topic {topic!r}")
        for letter in list(self._cluster.letters):
            fits = partition in (None, letter.partition) and key in (None, letter.key)
            if fits and group in (None, letter.group) and (after is None or letter.offset > after):
                yield letter

    async def replay_dead_letters(
        self, topic: str, letters: Sequence[DeadLetter], *, into_new_topic: bool = False
    ) -> list[ReplayedDeadLetter]:
        done = self._cluster.letters
        if self._cluster.remade and not into_new_topic:
            raise PreconditionError("of a topic that was deleted: Nothing was replayed. --into-new-topic")
        self._cluster.letters = [letter for letter in done if letter not in letters]
        return [
            ReplayedDeadLetter(
                letter.partition, letter.offset, letter.origin_topic, letter.origin_partition, letter.offset + 90
            )
            for letter in letters
        ]

    async def drop_dead_letters(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        self._cluster.letters = [letter for letter in self._cluster.letters if letter not in letters]

    async def delayed(
        self,
        topic: str,
        partition: int | None = None,
        until: datetime | None = None,
        *,
        on_unserved: Callable[[int, tuple[int, ...]], None],
    ) -> AsyncIterator[DelayedMessages]:
        self._cluster.topic(topic)
        for row in self._cluster.delayed:
            is_due = until is None or row.due_ms <= until.timestamp() * 1000
            if topic == "flights" and partition in (None, row.partition) and is_due:
                yield row
        for number, segments in self._cluster.unserved.items():
            if topic == "flights" and partition in (None, number):
                on_unserved(number, segments)

    async def owners(self, topic: str | None = None) -> AsyncIterator[NameOwner]:
        for one in self._cluster.owners:
            if topic in (None, one.topic):
                yield one

    async def describe_owner(self, topic: str, name: str) -> OwnerDescription:
        self._cluster.partitions(topic)
        return self._cluster.described.get(name, OwnerDescription(None, False, (), (), ""))

    async def release_owner(self, topic: str, name: str, epoch: int = 0) -> NameOwner:
        found = [one for one in self._cluster.owners if (one.topic, one.name) == (topic, name)]
        if not found or epoch not in (0, found[0].epoch):
            raise PreconditionError(f"{name!r} never had an owner in {topic}, or has another epoch")
        return replace(found[0], is_released=name != "mover")

    async def delayed_stats(self, topic: str) -> list[DelayedStats]:
        found = []
        for number in self._cluster.partitions(topic):
            rows = [row async for row in self.delayed(topic, number, on_unserved=lambda *_: None)]
            figures = sum(row.message_count for row in rows), sum(row.size_bytes for row in rows)
            due_ms = min((row.due_ms for row in rows), default=None)
            found.append(DelayedStats(number, *figures, due_ms, number, self._cluster.unserved.get(number, ())))
        return found

    def _operate_keys(self, operation: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        results = []
        for key in keys:
            was_done = (operation, key.name) in self._cluster.operated
            error = "[130] a consumer works on it" if key.partition in self._cluster.unanswered else None
            results.append(KeyResult(key, was_done, error, 130 if error else None))
            self._cluster.operated.append((operation, key.name))
        return results

    def _check_no_broadcast(self, topic: str, group: str) -> None:
        if any(name == topic and one.startswith(f"{group}/") for name, one, _ in self._cluster.cursors):
            raise UnknownGroupError(f"no consumer group {group!r} on topic {topic!r}")

    async def delete_group(self, topic: str, group: str) -> None:
        self._check_no_broadcast(topic, group)
        del self._cluster.cursors[topic, group, 0]

    async def list_writers(self, topic: str | None) -> list[WriterDescription]:
        return [row for row in self._cluster.writers.values() if topic in (None, row.topic)]

    async def describe_writer(self, topic: str, writer: str) -> WriterDescription:
        return self._cluster.writers[topic, writer]

    async def delete_writer(self, topic: str, writer: str) -> None:
        del self._cluster.writers[topic, writer]

    async def balance(self, *, run: bool) -> Balance:
        if run:
            self._cluster.balanced += 1
        return self._cluster.balance

    async def describe_cluster(self) -> Cluster:
        return Cluster("memory", "id", "g0-0", self._cluster.brokers)

    async def declare_dead(
        self, broker: str, run: int, issuer: str, *, incarnation: str | None = None, evidence: str = ""
    ) -> None:
        self._cluster.dead.append((broker, run, issuer, *filter(None, (incarnation, evidence))))

    async def list_broker_groups(self, *, with_counts: bool) -> list[BrokerGroup]:
        if with_counts:  # one more thing has left each time that a caller looks
            for name, row in self._cluster.broker_groups.items():
                if row.intent != "active":
                    left = max((row.segments or 0) - 1, 0)
                    self._cluster.broker_groups[name] = replace(row, heads=min(row.heads or 0, left), segments=left)
            return list(self._cluster.broker_groups.values())
        return [replace(row, heads=None, segments=None) for row in self._cluster.broker_groups.values()]

    async def set_broker_group(self, name: str, intent: Any, *, weight: float | None = None) -> BrokerGroup:
        row = replace(self._cluster.broker_groups[name], intent=intent)
        self._cluster.broker_groups[name] = replace(row, weight=row.weight if weight is None else weight)
        return self._cluster.broker_groups[name]

    async def remove_broker_group(self, name: str) -> None:
        del self._cluster.broker_groups[name]

    async def remove_member(self, broker: str) -> None:
        self._cluster.removed.append(broker)

    async def check_restart(self, broker: str) -> RestartCheck:
        return self._cluster.checks[broker]

    async def scrub(self, broker: str) -> AsyncIterator[ScrubProgress]:
        yield ScrubProgress(2_000_000, 3, ())
        yield ScrubProgress(1_000_000, 1, tuple(row for row in self._cluster.damages if row.broker == broker))

    async def read_quarantined(self, broker: str) -> AsyncIterator[QuarantinedMessage]:
        for row in self._cluster.quarantined:
            if row.broker == broker:
                yield row

    async def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        self._cluster.gaps.append((topic, partition, segment, issuer))
