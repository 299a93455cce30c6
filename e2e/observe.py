"""A snapshot of a cluster from outside, as plain values: chains, and the server of each cursor segment.

The demo chooses its victims from snapshots, draws them, and waits for them; the process tests wait for them. `Observer`
reads a snapshot from a cluster. Plain functions answer questions about it (which broker has an open segment, whether
everything is whole), so tests of them need no cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from seriatim import Chain, GroupDescription, GroupPartition, TopicDescription
from seriatim_api.errors import DeadlineExceededError, SeriatimError

LOOK_DEADLINE_S: Final = 5.0
"""For one look: a server that does not answer is waited for by the broker that was asked, and machines are busy."""

POLL_S: Final = 0.1
"""Between two looks of `Observer.wait_until`: describing costs the brokers little, but not nothing."""

OPEN: Final = "OPEN"
UNSETTLED: Final = "UNSETTLED"


@dataclass(frozen=True, slots=True)
class SegmentNow:
    """A segment as its chain's record has it.

    Attributes:
        members: Brokers, the master first.
        base: Messages before it; None: a segment before it is not settled.
        length: None while it is open or not settled.
        opened_at_ms: Wall clock.
        sealed_at_ms: Wall clock; 0: not sealed.
        eligible: Brokers that have all of it, control records too, and may serve it.
    """

    no: int
    group: str
    members: tuple[str, ...]
    state: str
    base: int | None
    length: int | None
    server: str
    opened_at_ms: int
    sealed_at_ms: int
    eligible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainNow:
    """A partition's chain, its newest segments, oldest first."""

    partition: int
    epoch: int
    segments: tuple[SegmentNow, ...]

    @property
    def head(self) -> SegmentNow:
        """The segment that accepts messages."""
        return self.segments[-1]


@dataclass(frozen=True, slots=True)
class ReaderNow:
    """A consumer group on one partition.

    Attributes:
        server: The broker that serves it; empty if no broker does.
        active: The consumer that gets its messages; empty if no consumer does.
        position: Messages acknowledged.
        end_position: Messages committed in the partition; meaningless where `known` is False.
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
    """Everything at one moment. `readers` is empty where no group was asked for."""

    chains: tuple[ChainNow, ...] = ()
    readers: tuple[ReaderNow, ...] = ()

    def masters(self) -> tuple[str, ...]:
        """The brokers that are master of an open segment, sorted."""
        return tuple(sorted({chain.head.members[0] for chain in self.chains if chain.head.members}))

    def head_groups(self) -> tuple[str, ...]:
        """The groups that hold an open segment, sorted."""
        return tuple(sorted({chain.head.group for chain in self.chains}))

    def servers(self) -> tuple[str, ...]:
        """The brokers that serve a consumer at this moment, sorted."""
        return tuple(sorted({reader.server for reader in self.readers if reader.server and reader.active}))

    def partitions_on(self, brokers: Iterable[str]) -> tuple[int, ...]:
        """The partitions whose open segment has one of `brokers` as a member."""
        wanted = set(brokers)
        return tuple(chain.partition for chain in self.chains if wanted.intersection(chain.head.members))

    def settled(self) -> bool:
        """Whether every chain ends with an open segment, and no length in them is unknown."""
        return bool(self.chains) and all(
            chain.head.state == OPEN and all(segment.state != UNSETTLED for segment in chain.segments)
            for chain in self.chains
        )

    def drained(self) -> bool:
        """Whether the group has acknowledged everything that is committed, and its servers say so themselves.

        Only the server of the open segment knows where the partition ends: one of an earlier segment, whose group has
        yet to cross, may answer with an end of 0.
        """
        heads = {chain.partition: chain.head.no for chain in self.chains}
        return bool(self.readers) and all(
            reader.known and reader.segment == heads.get(reader.partition) and reader.position == reader.end_position
            for reader in self.readers
        )


def still_struck(before: ChainNow, after: ChainNow | None, struck_at_ms: int, slack_ms: int = 0) -> bool:
    """Whether the head of `before` was still the head when the blow fell: it is open yet, or was sealed afterwards.

    Args:
        before: The chain as it was read before the blow.
        after: As it was read after it; None: not known, which counts as no.
        struck_at_ms: The wall clock just before the blow.
        slack_ms: By how much the clock of the record may be behind, at most.
    """
    if after is None:
        return False
    for segment in after.segments:
        if segment.no == before.head.no:
            return segment.sealed_at_ms == 0 or segment.sealed_at_ms + slack_ms >= struck_at_ms
    return False


def chain_now(chain: Chain) -> ChainNow:
    """A chain as the client describes it."""
    return ChainNow(
        chain.partition,
        chain.epoch,
        tuple(
            SegmentNow(
                no=segment.no,
                group=segment.group,
                members=segment.members,
                state=segment.state,
                base=segment.base,
                length=segment.sealed_len,
                server=segment.server,
                opened_at_ms=segment.opened_at_ms,
                sealed_at_ms=segment.sealed_at_ms,
                eligible=segment.eligible,
            )
            for segment in chain.segments
        ),
    )


def reader_now(partition: GroupPartition) -> ReaderNow:
    """A consumer group's partition as the client describes it."""
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
    """What a look needs of an `Admin`."""

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic and its chains."""

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        """Where a consumer group stands."""


class Observer:
    """Reads snapshots of one topic, and of one consumer group on it. Not for use by two tasks at once.

    Args:
        admin: Of the cluster.
        topic: Whose chains.
        group: Of consumers; None: chains only.
    """

    def __init__(self, admin: Describing, topic: str, group: str | None = None) -> None:
        self.admin = admin
        self._topic = topic
        self._group = group
        self.latest = Snapshot()

    async def look(self, deadline_s: float = LOOK_DEADLINE_S) -> Snapshot:
        """The cluster now.

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
        """Look again and again until `holds`.

        Raises:
            DeadlineExceededError: Not within `deadline_s` seconds.
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
