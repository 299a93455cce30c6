"""A cluster in memory behind the commands' ports: topics, chains, producers and consumers, no network and no broker.

It keeps messages in order and redelivers what was not acknowledged; nothing in it fails unless a test says so.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from seriatim._settings import Target
from seriatim.cli._ports import (
    At,
    BalanceView,
    BrokerGroupRow,
    ChainView,
    DamageRow,
    Delivered,
    GroupMoveRow,
    GroupRow,
    IntentName,
    MemberRow,
    Note,
    OffsetRow,
    OperatedRow,
    PieceRow,
    QuarantinedRow,
    RestartView,
    RetainedRow,
    Retention,
    ScrubStep,
    SegmentView,
    SendResult,
    TopicView,
    WriterRow,
)
from seriatim.cli._retention import after
from seriatim.cli._sources import Message
from seriatim_api.errors import PositionUnknownError, TopicExistsError, UnknownTopicError
from seriatim_api.ids import make_offset, split_offset

SEGMENT = 3
FIRST_S = 1_700_000_000


@dataclass
class MemoryCluster:
    """What all commands of a test talk to.

    Attributes:
        refuse: Of a message's value: the result it gets instead of being stored.
        dead: What was declared dead.
        removed: Which brokers were forgotten.
        broker_groups: By name; one that is not active loses a segment each time that it is counted.
        checks: What the gate says of each broker.
        gaps: What was declared a gap.
        damages: What a scrub finds.
        quarantined: What brokers keep in quarantine.
        balance: What the controller would do.
        balanced: How often it was told to.
        operated: What was done to groups.
        unanswered: Partitions whose server does not answer when a group is moved.
        dropped: Of a partition: how many of its first messages retention dropped.
        blocked: Partitions with a segment that is not settled.
        silent: Topics of which no broker tells what is kept.
    """

    topics: dict[str, TopicView] = field(default_factory=dict)
    logs: dict[tuple[str, int], list[Delivered]] = field(default_factory=dict)
    cursors: dict[tuple[str, str, int], int] = field(default_factory=dict)
    writers: dict[tuple[str, str], WriterRow] = field(default_factory=dict)
    refuse: dict[bytes, SendResult] = field(default_factory=dict)
    dead: list[tuple[str | int, ...]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    broker_groups: dict[str, BrokerGroupRow] = field(default_factory=dict)
    checks: dict[str, RestartView] = field(default_factory=dict)
    gaps: list[tuple[str, int, int, str]] = field(default_factory=list)
    damages: list[DamageRow] = field(default_factory=list)
    quarantined: list[QuarantinedRow] = field(default_factory=list)
    started_at: list[str] = field(default_factory=list)
    balance: BalanceView = field(default_factory=lambda: BalanceView((), (), "all is even"))
    balanced: int = 0
    operated: list[Any] = field(default_factory=list)
    unanswered: tuple[int, ...] = ()
    dropped: dict[int, int] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)

    def make(self, name: str, partitions: int = 1) -> None:
        self.topics[name] = TopicView(name, "READY", partitions, True, 1 << 20, Retention(), 5, 1_700_000_000_000)
        for partition in range(partitions):
            self.logs[name, partition] = []

    def topic(self, name: str) -> TopicView:
        if name not in self.topics:
            raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
        return self.topics[name]

    @asynccontextmanager
    async def producer(self, _settings: Any, topic: str) -> AsyncIterator[MemoryProducer]:
        yield MemoryProducer(self, topic, self.topic(topic).partitions)

    @asynccontextmanager
    async def consumer(
        self, _settings: Any, topic: str, group: str, *, start: str, on_note: Callable[[Note], None]
    ) -> AsyncIterator[MemoryConsumer]:
        self.started_at.append(start)
        for partition in range(self.topic(topic).partitions):
            on_note(Note("active", partition, make_offset(SEGMENT, 0)))
        yield MemoryConsumer(self, topic, group)

    @asynccontextmanager
    async def ranges(self, _settings: Any) -> AsyncIterator[MemoryRanges]:
        yield MemoryRanges(self)

    @asynccontextmanager
    async def admin(self, _settings: Any) -> AsyncIterator[MemoryAdmin]:
        yield MemoryAdmin(self)


class MemoryProducer:
    name = "memory-producer"

    def __init__(self, cluster: MemoryCluster, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._next = 0

    def partition_of(self, message: Message) -> int:
        if message.key is not None:
            return sum(message.key) % self._partitions
        self._next += 1
        return (self._next - 1) % self._partitions

    async def send(
        self, message: Message, partition: int, message_id: str | None, done: Callable[[SendResult], None]
    ) -> None:
        result = self._cluster.refuse.get(message.value)
        if result is None:
            log = self._cluster.logs[self._topic, partition]
            offset = make_offset(SEGMENT, len(log))
            log.append(Delivered(partition, offset, message.key, message.value, 1_700_000_000_000, message_id))
            result = SendResult("ok", partition, offset)
        asyncio.get_running_loop().call_soon(done, result)

    async def flush(self) -> None:
        await asyncio.sleep(0)


class MemoryConsumer:
    name = "memory-consumer"

    def __init__(self, cluster: MemoryCluster, topic: str, group: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._group = group
        self._read: dict[int, int] = {}

    async def batches(self) -> AsyncIterator[list[Delivered]]:
        while True:
            for partition in range(self._cluster.topic(self._topic).partitions):
                cursor = self._cluster.cursors.get((self._topic, self._group, partition), 0)
                begin = self._read.get(partition, cursor)
                found = self._cluster.logs[self._topic, partition][begin:]
                if found:
                    self._read[partition] = begin + len(found)
                    yield found
            await asyncio.sleep(0.01)

    async def ack(self, last: Delivered) -> bool:
        log = self._cluster.logs[self._topic, last.partition]
        self._cluster.cursors[self._topic, self._group, last.partition] = log.index(last) + 1
        return True


@dataclass
class MemoryPlan:
    cluster: MemoryCluster
    what: tuple[str, str, str]
    rows: tuple[GroupMoveRow, ...]

    async def carry_out(self, request_id: bytes) -> list[OperatedRow]:
        self.cluster.operated.append((*self.what, request_id))
        return [
            OperatedRow(row.partition, False, None, None, "[600] silent")
            if row.partition in self.cluster.unanswered
            else OperatedRow(row.partition, False, 5, row.to_offset)
            for row in self.rows
        ]


class MemoryRanges:
    """A message of 1 MiB a second was taken since `FIRST_S`; what is below `dropped` of a partition is gone."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    async def offsets(self, topic: str, at: At, partitions: Sequence[int] | None = None) -> list[OffsetRow]:
        rows = []
        for partition in range(self._cluster.topic(topic).partitions) if partitions is None else partitions:
            length, first = len(self._cluster.logs[topic, partition]), self._cluster.dropped.get(partition, 0)
            index = length if at == "end" else first
            if isinstance(at, datetime):
                index = min(max(math.ceil(at.timestamp() - FIRST_S), first), length)
            found = isinstance(at, datetime) and index < length
            blocked = at == "end" and partition in self._cluster.blocked
            rows.append(OffsetRow(partition, make_offset(SEGMENT, index), index, blocked, found))
        return rows

    async def retained(self, topic: str, _timeout_s: float | None = None) -> list[RetainedRow]:
        if topic in self._cluster.silent:
            raise PositionUnknownError("no broker tells")
        rows = []
        for partition in range(self._cluster.topic(topic).partitions):
            length, first = len(self._cluster.logs[topic, partition]), self._cluster.dropped.get(partition, 0)
            since_ms = (FIRST_S + first) * 1000 if length > first else None
            rows.append(
                RetainedRow(partition, make_offset(SEGMENT, first), length - first, (length - first) << 20, since_ms)
            )
        return rows

    async def pieces(self, topic: str, partition: int, start: int, end: int, cut_bytes: int = 0) -> list[PieceRow]:
        cuts = [*range(start, end, max(cut_bytes >> 20, 1) if cut_bytes else 4), end]
        return [PieceRow(one, other, other - one, (other - one) << 20) for one, other in itertools.pairwise(cuts)]

    async def read(
        self, topic: str, partition: int, start: int, end: int, on_note: Callable[[Note], None]
    ) -> AsyncIterator[list[Delivered]]:
        first = make_offset(SEGMENT, self._cluster.dropped.get(partition, 0))
        if start < first:
            on_note(Note("gap", partition, start, first, "dropped by retention"))
        found = [row for row in self._cluster.logs[topic, partition] if max(start, first) <= row.offset < end]
        for at in range(0, len(found), 3):
            yield found[at : at + 3]


class MemoryAdmin:
    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    async def create_topic(self, name: str, partitions: int, **settings: Any) -> TopicView:
        if name in self._cluster.topics:
            raise TopicExistsError(f"there is a topic {name!r} already", topic=name)
        self._cluster.make(name, partitions)
        made = replace(self._cluster.topics[name], retention=after(Retention(), settings["retention"]))
        self._cluster.topics[name] = made
        return self._cluster.topics[name]

    async def alter_topic(self, name: str, partitions: int | None, **settings: Any) -> TopicView:
        topic = self._cluster.topic(name)
        if partitions is not None:
            self._cluster.make(name, partitions)
        self._cluster.topics[name] = replace(
            self._cluster.topics[name],
            retention=after(topic.retention, settings["retention"]),
        )
        return self._cluster.topics[name]

    async def list_topics(self) -> list[TopicView]:
        return sorted(self._cluster.topics.values(), key=lambda topic: topic.name)

    async def describe_topic(self, name: str) -> tuple[TopicView, list[ChainView]]:
        topic = self._cluster.topic(name)
        return topic, [await self.chain(name, partition) for partition in range(topic.partitions)]

    async def delete_topic(self, name: str) -> None:
        del self._cluster.topics[self._cluster.topic(name).name]

    async def chain(self, topic: str, partition: int) -> ChainView:
        segment = SegmentView(SEGMENT, "g0", ("g0-0", "g0-1"), "OPEN", None, "g0-0")
        return ChainView(topic, partition, 7, ("g0", "g1"), (segment,))

    async def watch_chain(self, topic: str, partition: int) -> AsyncIterator[ChainView]:
        yield await self.chain(topic, partition)

    async def list_groups(self, topic: str) -> list[str]:
        return sorted({group for name, group, _ in self._cluster.cursors if name == topic})

    async def describe_group(self, topic: str, group: str) -> list[GroupRow]:
        rows = []
        for partition in range(self._cluster.topic(topic).partitions):
            acked = self._cluster.cursors.get((topic, group, partition), 0)
            lag = len(self._cluster.logs[topic, partition]) - acked
            rows.append(GroupRow(partition, make_offset(SEGMENT, acked), lag, "g0-0", "c1", ("c2",)))
        return rows

    async def plan_move(
        self, topic: str, group: str, to: Target, partitions: Sequence[int], operation: str
    ) -> MemoryPlan:
        rows = []
        for partition in partitions or range(self._cluster.topic(topic).partitions):
            here = self._cluster.cursors.get((topic, group, partition), 0)
            end = len(self._cluster.logs[topic, partition])
            there = split_offset(to)[1] if isinstance(to, int) else end if to == "latest" else 0
            problem = "[125] it lies beyond the end" if there > end else ""
            rows.append(
                GroupMoveRow(
                    partition,
                    make_offset(SEGMENT, here),
                    None if problem else make_offset(SEGMENT, there),
                    None if problem else abs(here - there),
                    4,
                    "c1" if partition == 0 else "",
                    problem,
                    125 if problem else 0,
                )
            )
        return MemoryPlan(self._cluster, (topic, group, operation), tuple(rows))

    async def hold_group(self, topic: str, group: str, operation: str, partitions: Sequence[int]) -> list[OperatedRow]:
        chosen = partitions or range(self._cluster.topic(topic).partitions)
        was = operation in self._cluster.operated
        self._cluster.operated.append(operation)
        return [OperatedRow(partition, was, 4, make_offset(SEGMENT, 0)) for partition in chosen]

    async def create_group(self, topic: str, group: str, start: Target, _partitions: Sequence[int]) -> bool:
        created = (topic, group, 0) not in self._cluster.cursors
        begin = len(self._cluster.logs[topic, 0]) if start == "latest" else 0
        self._cluster.cursors.setdefault((topic, group, 0), begin)
        return created

    async def delete_group(self, topic: str, group: str) -> None:
        del self._cluster.cursors[topic, group, 0]

    async def list_writers(self, topic: str) -> list[WriterRow]:
        return [row for row in self._cluster.writers.values() if topic in ("", row.topic)]

    async def describe_writer(self, topic: str, writer: str) -> WriterRow:
        return self._cluster.writers[topic, writer]

    async def delete_writer(self, topic: str, writer: str) -> None:
        del self._cluster.writers[topic, writer]

    async def balance(self, *, run: bool) -> BalanceView:
        if run:
            self._cluster.balanced += 1
        return self._cluster.balance

    async def members(self) -> list[MemberRow]:
        return [MemberRow("g0-0", "g0", "0123456789abcdef", 4, "127.0.0.2:7000", live=True, admitted=True)]

    async def declare_dead(self, broker: str, run: int, issuer: str, incarnation: str, evidence: str) -> None:
        self._cluster.dead.append((broker, run, issuer, *filter(None, (incarnation, evidence))))

    async def broker_groups(self, *, with_counts: bool) -> list[BrokerGroupRow]:
        if with_counts:  # one more thing has left each time that a caller looks
            for name, row in self._cluster.broker_groups.items():
                if row.intent != "active":
                    left = max((row.segments or 0) - 1, 0)
                    self._cluster.broker_groups[name] = replace(row, heads=min(row.heads or 0, left), segments=left)
        return list(self._cluster.broker_groups.values())

    async def set_broker_group(self, name: str, intent: IntentName, weight: float | None) -> BrokerGroupRow:
        row = replace(self._cluster.broker_groups[name], intent=intent)
        self._cluster.broker_groups[name] = replace(row, weight=row.weight if weight is None else weight)
        return self._cluster.broker_groups[name]

    async def remove_broker_group(self, name: str) -> None:
        del self._cluster.broker_groups[name]

    async def remove_member(self, broker: str) -> None:
        self._cluster.removed.append(broker)

    async def check_restart(self, broker: str) -> RestartView:
        return self._cluster.checks[broker]

    async def scrub(self, broker: str) -> AsyncIterator[ScrubStep]:
        yield ScrubStep(2_000_000, 3, ())
        yield ScrubStep(1_000_000, 1, tuple(row for row in self._cluster.damages if row.broker == broker))

    async def read_quarantined(self, broker: str) -> AsyncIterator[QuarantinedRow]:
        for row in self._cluster.quarantined if broker == "g0-0" else ():
            yield row

    async def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        self._cluster.gaps.append((topic, partition, segment, issuer))
