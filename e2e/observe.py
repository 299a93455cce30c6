"""A snapshot of a cluster from outside, as plain values: chains, and which broker serves each consumer group.

The demo chooses its victims from snapshots, and draws the snapshots. The demo and the process tests also wait until a
snapshot has a certain state. `Observer` reads a snapshot from a cluster. Plain functions answer questions about it
(which broker has an open segment, whether everything is complete), so tests of them need no cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from seriatim import Chain, GroupDescription, GroupPartition, Segment, TopicDescription
from seriatim_api.errors import DeadlineExceededError, SeriatimError

LOOK_DEADLINE_S: Final = 5.0
"""The deadline of one look. The asked broker waits for a server that does not answer, and the machine is busy."""

POLL_S: Final = 0.1
"""The time between two looks of `Observer.wait_until`. Each look costs the brokers a little."""

OPEN: Final = "OPEN"
UNSETTLED: Final = "UNSETTLED"


@dataclass(frozen=True, slots=True)
class ChainNow:
    """The chain of a partition: its newest segments, oldest first."""

    partition: int
    epoch: int
    segments: tuple[Segment, ...]

    @property
    def open_segment(self) -> Segment:
        """The segment that accepts messages."""
        return self.segments[-1]


@dataclass(frozen=True, slots=True)
class ReaderNow:
    """A consumer group on one partition.

    Attributes:
        server: The broker that serves the consumer group; empty if no broker does.
        active: The consumer that gets the messages; empty if no consumer does.
        position: The number of acknowledged messages.
        end_position: The number of committed messages in the partition. It means nothing if `known` is False.
        known: Whether the server itself answered.
    """

    partition: int
    segment: int
    server: str
    active: str
    position: int
    end_position: int
    known: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment. `readers` is empty if the observer has no group."""

    chains: tuple[ChainNow, ...] = ()
    readers: tuple[ReaderNow, ...] = ()

    def masters(self) -> tuple[str, ...]:
        """The brokers that are master of an open segment, sorted."""
        return tuple(sorted({chain.open_segment.members[0] for chain in self.chains if chain.open_segment.members}))

    def open_broker_groups(self) -> tuple[str, ...]:
        """The groups that hold an open segment, sorted."""
        return tuple(sorted({chain.open_segment.group for chain in self.chains}))

    def servers(self) -> tuple[str, ...]:
        """The brokers that serve a consumer at this moment, sorted."""
        return tuple(sorted({reader.server for reader in self.readers if reader.server and reader.active}))

    def partitions_on(self, brokers: Iterable[str]) -> tuple[int, ...]:
        """The partitions whose open segment has one of `brokers` as a member."""
        wanted = set(brokers)
        return tuple(chain.partition for chain in self.chains if wanted.intersection(chain.open_segment.members))

    def partitions_served_by(self, brokers: Iterable[str]) -> tuple[int, ...]:
        """The partitions of which one of `brokers` serves a consumer."""
        wanted = set(brokers)
        return tuple(reader.partition for reader in self.readers if reader.active and reader.server in wanted)

    def settled(self) -> bool:
        """Whether every chain ends with an open segment, and no length in them is unknown."""
        return bool(self.chains) and all(
            chain.open_segment.state == OPEN and all(segment.state != UNSETTLED for segment in chain.segments)
            for chain in self.chains
        )

    def drained(self) -> bool:
        """Whether the consumer group has acknowledged all committed messages, as its servers say.

        Only the server of the open segment knows where the partition ends. While the consumer group is in an earlier
        segment, its server may answer with an end of 0. So the group must be in the open segment.
        """
        open_segments = {chain.partition: chain.open_segment.no for chain in self.chains}
        return bool(self.readers) and all(
            reader.known
            and reader.segment == open_segments.get(reader.partition)
            and reader.position == reader.end_position
            for reader in self.readers
        )


def still_struck(before: ChainNow, after: ChainNow | None, struck_at_ms: int, slack_ms: int = 0) -> bool:
    """Whether the open segment of `before` was still open when the fault began: it is open now, or was sealed
    afterwards.

    Args:
        before: The chain, read before the fault.
        after: The chain, read after the fault; None: not known, then the answer is no.
        struck_at_ms: The wall clock just before the fault.
        slack_ms: The most that the clock of the record may be behind.
    """
    if after is None:
        return False
    for segment in after.segments:
        if segment.no == before.open_segment.no:
            return segment.sealed_at_ms == 0 or segment.sealed_at_ms + slack_ms >= struck_at_ms
    return False


def chain_now(chain: Chain) -> ChainNow:
    """Convert a chain from the client's description."""
    return ChainNow(chain.partition, chain.epoch, chain.segments)


def reader_now(partition: GroupPartition) -> ReaderNow:
    """Convert a partition of a consumer group from the client's description."""
    return ReaderNow(
        partition=partition.partition,
        segment=partition.segment,
        server=partition.server_broker,
        active=partition.active_consumer,
        position=partition.position,
        end_position=partition.end_position,
        known=partition.error is None,
    )


class Describing(Protocol):
    """The methods of `Admin` that a look needs."""

    async def describe_topic(self, name: str) -> TopicDescription:
        """Describe a topic and its chains."""

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        """Describe where a consumer group is."""


class Observer:
    """Reads snapshots of one topic, and of one consumer group on it. Only one task may use it at a time.

    Args:
        admin: The `Admin` of the cluster.
        topic: The topic to observe.
        group: The consumer group to observe; None: observe chains only.
    """

    def __init__(self, admin: Describing, topic: str, group: str | None = None) -> None:
        self.admin = admin
        self._topic = topic
        self._group = group
        self.latest = Snapshot()

    async def look(self, deadline_s: float = LOOK_DEADLINE_S) -> Snapshot:
        """Read a snapshot of the cluster.

        Raises:
            SeriatimError: No broker described the cluster within `deadline_s` seconds.
        """
        try:
            async with asyncio.timeout(deadline_s):
                described = await self.admin.describe_topic(self._topic)
                readers: Sequence[GroupPartition] = ()
                if self._group is not None:
                    readers = (await self.admin.describe_group(self._topic, self._group)).partitions
        except TimeoutError:
            raise DeadlineExceededError(f"no broker described {self._topic} within {deadline_s:g} s") from None
        self.latest = Snapshot(
            tuple(chain_now(chain) for chain in described.chains), tuple(reader_now(reader) for reader in readers)
        )
        return self.latest

    async def wait_until(self, holds: Callable[[Snapshot], bool], what: str, deadline_s: float) -> Snapshot:
        """Look again and again until `holds` is true of the snapshot. Return that snapshot.

        Raises:
            DeadlineExceededError: It was not true within `deadline_s` seconds.
        """
        failure = ""
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        snapshot = await self.look()
                    except SeriatimError as error:
                        failure = f"; the last look: {error}"
                    else:
                        failure = ""
                        if holds(snapshot):
                            return snapshot
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise DeadlineExceededError(f"waited {deadline_s:g} s until {what}, without success{failure}") from None
