"""Topics and chains for programs that watch all of them: first everything, then what changes.

There is one watch on topics and one on chains, and only while there is a watcher, or the metrics of the cluster are
read. All share them. For each watcher the feed keeps the names of what changed, not a queue of events. So a slow
watcher gets the newest version of each change once, and its backlog is never longer than the list of topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

import structlog
from seriatim_api.errors import CompactedError, CorruptionError, OverloadedError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_api.publications import STAGE_TOPIC
from seriatim_api.v1 import broker_pb2, records_pb2

from ...interfaces.coordinator import Coordinator, Event, EventKind, KeyValue, WatchBatch
from .keys import CHAINS_PER_PAGE, Keys, partition_of
from .pages import read_whole
from .records import join_pages, members_from_record, record_name

WATCHERS_MAX = 64
"""Watchers are operators and consoles. There are few of them."""

CHAINS_PER_TAKE_MAX = 2000
"""About 200 KB."""

TOPICS_PER_TAKE_MAX = 500
RETRY_S = 0.2
"""Pause after a listing that failed, because the coordinator is away."""

_SETTLED = (records_pb2.SEGMENT_STATE_SEALED, records_pb2.SEGMENT_STATE_LOST)

_log = structlog.get_logger(__name__)

Watch = AsyncGenerator[WatchBatch, None]


class Copies(NamedTuple):
    """The members of a segment.

    Attributes:
        listed: All of them. One that came back may lack the end of the segment, until it has copied it.
        in_sync: Those whose copies are surely in sync: the eligible ones of a sealed segment
            (`Segment.has_two_copies`). Under load a member may be left out for a moment. A segment that is not sealed
            has no others than the listed ones.
    """

    listed: frozenset[MemberId]
    in_sync: frozenset[MemberId]


class Standing(NamedTuple):
    """Who has a partition, by its record. Partitions of one cluster share a few of these.

    Attributes:
        open_members: The members of the open segment. Without one of them the partition accepts no messages.
        copies: For each segment with messages, its members. Segments with the same members share an entry.
        is_unsettled: Whether a segment is not settled.
        is_lost: Whether a segment was declared lost.
    """

    open_members: tuple[MemberId, ...]
    copies: frozenset[Copies]
    is_unsettled: bool
    is_lost: bool


class TopicFeed:
    """Makes watchers, and follows the coordinator while there is one."""

    def __init__(self, coordinator: Coordinator, keys: Keys) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._mirror: WatchedTopics | None = None
        self._following: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def follow(self) -> AsyncIterator[WatchedTopics]:
        """Keep all topics and chains current until the block ends."""
        if self._mirror is None:
            self._mirror = WatchedTopics(self._coordinator, self._keys)
            self._following = asyncio.create_task(self._mirror.run(), name="topic feed")
        mirror = self._mirror
        mirror.followers += 1
        try:
            yield mirror
        finally:
            mirror.followers -= 1
            if not mirror.followers and mirror is self._mirror:
                following, self._following, self._mirror = self._following, None, None
                assert following is not None
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[TopicWatcher]:
        """Watch until the block ends.

        Raises:
            OverloadedError: There are 64 watchers already.
        """
        async with self.follow() as mirror:
            watcher = mirror.add_watcher()
            try:
                yield watcher
            finally:
                mirror.watchers.discard(watcher)


class TopicWatcher:
    """What one watcher has not taken yet."""

    def __init__(self) -> None:
        self._changed: dict[str, set[int]] = {}  # topics -> partition ids of the chains that changed
        self._deleted: set[str] = set()
        self._first: set[str] | None = None  # topics of the first list that were not taken yet
        self._is_whole = False
        self._news = asyncio.Event()
        self._topics: dict[str, records_pb2.TopicRecord] = {}
        self._chains: dict[int, broker_pb2.ChainSummary] = {}

    async def take(self) -> broker_pb2.WatchTopicsResponse:
        """Wait until something changed, and take all or a part of it. If the call is cancelled, nothing was taken."""
        while self._first is None or not (self._changed or self._deleted or (not self._first and not self._is_whole)):
            self._news.clear()
            await self._news.wait()
        response = broker_pb2.WatchTopicsResponse(deleted=sorted(self._deleted))
        self._deleted.clear()
        chain_count = 0
        for name in list(self._changed)[:TOPICS_PER_TAKE_MAX]:
            if chain_count >= CHAINS_PER_TAKE_MAX:
                break
            chain_count += self._take_topic(name, response.changed.add(), CHAINS_PER_TAKE_MAX - chain_count)
        if not self._first and not self._is_whole:
            self._is_whole = response.is_whole = True
        return response

    def _take_topic(self, name: str, summary: broker_pb2.TopicSummary, count_max: int) -> int:
        """Fill in a topic with at most `count_max` chains. The others are taken by the next call."""
        assert self._first is not None
        record = self._topics[name]
        summary.topic.CopyFrom(record)
        wanted = self._changed[name]
        chains = [self._chains[id_] for id_ in record.partition_ids if id_ in wanted and id_ in self._chains]
        summary.chains.extend(chains[:count_max])
        if len(chains) > count_max:
            self._changed[name] = {chain.partition_id for chain in chains[count_max:]}
        else:
            del self._changed[name]
            self._first.discard(name)
        return len(summary.chains)

    # ---- reported by the mirror ----

    def begin(self, topics: dict[str, records_pb2.TopicRecord], chains: dict[int, broker_pb2.ChainSummary]) -> None:
        """Everything has been listed. The mirror keeps the two dictionaries current."""
        self._topics, self._chains = topics, chains
        self._changed = {name: set(record.partition_ids) for name, record in topics.items()}
        self._first = set(topics)
        self._news.set()

    def topic_changed(self, name: str, chains: Iterable[int]) -> None:
        """A topic's record or some of its chains changed."""
        if self._first is not None:
            self._deleted.discard(name)
            self._changed.setdefault(name, set()).update(chains)
            self._news.set()

    def topic_deleted(self, name: str) -> None:
        """The topic does not exist any more."""
        if self._first is not None:
            self._changed.pop(name, None)
            self._first.discard(name)
            self._deleted.add(name)
            self._news.set()


class WatchedTopics:
    """All topics and chains in memory, kept current until `run` is cancelled."""

    def __init__(self, coordinator: Coordinator, keys: Keys) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self.watchers: set[TopicWatcher] = set()
        self.followers = 0  # blocks of `TopicFeed.follow` that have not ended
        self.standings: Counter[Standing] = Counter()  # how many partitions have it; none has 0
        self._topics: dict[str, records_pb2.TopicRecord] = {}
        self._chains: dict[int, broker_pb2.ChainSummary] = {}
        self._owners: dict[int, str] = {}  # partition -> its topic
        self._revisions: dict[int, int] = {}  # of the chains' records
        self._standing: dict[int, Standing] = {}  # by partition
        self._shared: dict[Standing, Standing] = {}  # one object for all equal ones, to save memory
        self._is_listed = False

    @property
    def is_listed(self) -> bool:
        """Whether everything was listed once."""
        return self._is_listed

    @property
    def topic_count(self) -> int:
        """How many topics there are, without the hidden one of publications."""
        return len(self._topics)

    def add_watcher(self) -> TopicWatcher:
        """Add a watcher.

        Raises:
            OverloadedError: There are 64 already.
        """
        if len(self.watchers) >= WATCHERS_MAX:
            raise OverloadedError(f"{WATCHERS_MAX} watch the topics already", retry_after_ms=1000)
        watcher = TopicWatcher()
        self.watchers.add(watcher)
        if self._is_listed:
            watcher.begin(self._topics, self._chains)
        return watcher

    async def run(self) -> None:
        """List and follow until cancelled, also over outages of the coordinator and compactions of its history."""
        while True:
            pause_s = RETRY_S
            try:
                await self._follow(*await self._list())
            except* CompactedError:
                pause_s = 0.0
            except* SeriatimError as exc:
                _log.warning("topic_feed_interrupted", error=str(exc.exceptions[0]))
            await asyncio.sleep(pause_s)

    # ---- everything ----

    async def _list(self) -> tuple[Watch, Watch]:
        """Read everything. Returns watches of topics and chains, from a revision up to which nothing is missing."""
        listing = await self._coordinator.list(self._keys.topics)
        topics, chains = (
            self._coordinator.watch(prefix, start_revision=listing.revision + 1, prefix=True)
            for prefix in (self._keys.topics, self._keys.chains)
        )
        for item in listing.items:
            self._put_topic(item)
        found: set[int] = set()
        counter = await self._coordinator.get(self._keys.partition_counter)
        end = records_pb2.CounterRecord.FromString(counter.value).next if counter is not None else 0
        for first in range(0, end, CHAINS_PER_PAGE):
            page = await self._coordinator.list(self._keys.chains_page(PartitionId(first)), deadline_s=10.0)
            for number, item in enumerate(page.items):
                found.add(partition_of(item.key))
                await self._put_chain(item, is_listed=True)
                if number % 50 == 49:
                    await asyncio.sleep(0)  # a long list must not hold up the event loop
        for name in self._topics.keys() - {item.key.removeprefix(self._keys.topics) for item in listing.items}:
            self._drop_topic(name)
        for partition in self._chains.keys() - found:
            self._drop_chain(partition)
        if not self._is_listed:
            self._is_listed = True
            for watcher in self.watchers:
                watcher.begin(self._topics, self._chains)
        return topics, chains

    # ---- and what changes ----

    async def _follow(self, topics: Watch, chains: Watch) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(topics, self._on_topics), name="topics")
            group.create_task(self._take(chains, self._on_chains), name="chains")

    async def _take(self, watch: Watch, take: Callable[[Sequence[Event]], Awaitable[None]]) -> None:
        async with contextlib.aclosing(watch) as batches:
            async for batch in batches:
                await take(batch.events)

    async def _on_topics(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind is EventKind.PUT:
                self._put_topic(event.item)
            else:
                self._drop_topic(event.item.key.removeprefix(self._keys.topics))

    async def _on_chains(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind is EventKind.PUT:
                await self._put_chain(event.item)
            else:
                self._drop_chain(partition_of(event.item.key))

    def _put_topic(self, item: KeyValue) -> None:
        record = records_pb2.TopicRecord.FromString(item.value)
        if record.name == STAGE_TOPIC:
            return  # it is hidden
        known = self._topics.get(record.name)
        if known == record:
            return
        new = set(record.partition_ids)
        if known is not None:
            self._forget_owner(known)
            if known.incarnation == record.incarnation:
                new.difference_update(known.partition_ids)
        self._topics[record.name] = record
        self._owners.update(dict.fromkeys(record.partition_ids, record.name))
        for watcher in self.watchers:
            watcher.topic_changed(record.name, new)

    def _drop_topic(self, name: str) -> None:
        record = self._topics.pop(name, None)
        if record is not None:
            self._forget_owner(record)
            for watcher in self.watchers:
                watcher.topic_deleted(name)

    def _forget_owner(self, record: records_pb2.TopicRecord) -> None:
        for partition in record.partition_ids:
            if self._owners.get(partition) == record.name:
                del self._owners[partition]

    async def _put_chain(self, item: KeyValue, *, is_listed: bool = False) -> None:
        """Take a chain's record. One that is listed counts even if it is older: the coordinator may have gone back."""
        partition = partition_of(item.key)
        if not is_listed and item.mod_revision <= self._revisions.get(partition, 0):
            return
        try:
            whole = await read_whole(self._coordinator, self._keys, item)
            if whole is None:
                return  # it was deleted meanwhile, and the watch says so
            record = join_pages(whole.item.value, whole.pages)
            summary = summary_of(record)
        except CorruptionError as exc:
            _log.error("chain_unreadable", key=item.key, error=str(exc))
            return
        self._revisions[partition] = whole.item.mod_revision
        standing = standing_of(record)
        if (self._chains.get(partition), self._standing.get(partition)) == (summary, standing):
            return
        self._chains[partition] = summary
        self._stand(partition, standing)
        owner = self._owners.get(partition)
        if owner is not None:
            for watcher in self.watchers:
                watcher.topic_changed(owner, (partition,))

    def _drop_chain(self, partition: int) -> None:
        """Do not notify watchers: the topic is being deleted, and its own event says so."""
        self._chains.pop(partition, None)
        self._revisions.pop(partition, None)
        self._stand(partition, None)

    def _stand(self, partition: int, standing: Standing | None) -> None:
        before = self._standing.pop(partition, None)
        if before is not None:
            self.standings[before] -= 1
            if not self.standings[before]:
                del self.standings[before], self._shared[before]
        if standing is not None:
            standing = self._shared.setdefault(standing, standing)
            self._standing[partition] = standing
            self.standings[standing] += 1


def summary_of(record: records_pb2.ChainRecord) -> broker_pb2.ChainSummary:
    """The short form of a chain."""
    if not record.segments:
        raise CorruptionError(f"the chain record of {record_name(record)} has no segment")
    states = [segment.state for segment in record.segments]
    last = record.segments[-1]
    settled = record.segments[0].base
    for segment in record.segments:
        if segment.state not in _SETTLED:
            break
        settled += segment.sealed_len
    first = next((segment for segment in record.segments if not _is_stub(segment)), last)
    summary = broker_pb2.ChainSummary(
        partition=record.partition,
        partition_id=record.partition_id,
        epoch=record.epoch,
        segment=last.no,
        group=last.group,
        master=last.members[0].broker if last.members else "",
        segment_count=len(record.segments),
        one_copy_count=sum(
            segment.state == records_pb2.SEGMENT_STATE_SEALED and len(segment.members) < 2
            for segment in record.segments
        ),
        unsettled_count=states.count(records_pb2.SEGMENT_STATE_UNSETTLED),
        lost_count=states.count(records_pb2.SEGMENT_STATE_LOST),
        sealed_messages=settled,
        first_offset=make_offset(first.no, first.start),
    )
    if first.HasField("base"):
        summary.dropped_messages = first.base + first.start
    told: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for one, count in copies_of(record).items():
        disks = tuple(sorted(map(str, one.in_sync)))  # a broker with a new disk has nothing of what was on the old one
        told[tuple(sorted(member.broker for member in one.listed)), disks] += count
    for (listed, in_sync), count in sorted(told.items()):
        summary.copies.add(brokers=listed, segment_count=count, in_sync=in_sync)
    return summary


def standing_of(record: records_pb2.ChainRecord) -> Standing:
    """Who has the messages of a chain, by its record."""
    states = {segment.state for segment in record.segments}
    return Standing(
        members_from_record(record.segments[-1].members),
        frozenset(copies_of(record)),
        records_pb2.SEGMENT_STATE_UNSETTLED in states,
        records_pb2.SEGMENT_STATE_LOST in states,
    )


def copies_of(record: records_pb2.ChainRecord) -> Counter[Copies]:
    """How many segments of a chain are on which members. Segments that are lost or have no messages do not count."""
    counts: Counter[Copies] = Counter()
    for segment in record.segments:
        if segment.state == records_pb2.SEGMENT_STATE_LOST or _is_stub(segment):
            continue
        listed = frozenset(members_from_record(segment.members))
        is_sealed = segment.state == records_pb2.SEGMENT_STATE_SEALED
        counts[Copies(listed, frozenset(members_from_record(segment.eligible)) if is_sealed else listed)] += 1
    return counts


def _is_stub(segment: records_pb2.SegmentRecord) -> bool:
    return segment.state == records_pb2.SEGMENT_STATE_SEALED and segment.start == segment.sealed_len
