"""The feed of topics: everything first, then what changes, for slow watchers and over compactions as well."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from seriatim_api.errors import OverloadedError
from seriatim_api.ids import PartitionId, make_offset
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.core.values.chain import declare_lost, trim
from seriatim_broker.core.values.segment import SegmentState as State
from seriatim_broker.core.values.segment import Start
from seriatim_broker.interfaces.coordinator import Delete, KeyValue, Put
from seriatim_broker.rpc.calls.limits import MESSAGE_SIZE_BYTES_MAX
from seriatim_broker.runtime.coordinator.chain_layout import ChainArchive
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.rebuilt_watches import RebuiltWatches
from seriatim_broker.runtime.coordinator.records import chain_to_record
from seriatim_broker.runtime.coordinator.topic_feed import (
    CHAINS_PER_TAKE_MAX,
    WATCHERS_MAX,
    Copies,
    Standing,
    TopicFeed,
    TopicWatcher,
    standing_of,
    summary_of,
)
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_archive import longer, switched
from .test_planning import CHAIN

KEYS = Keys("c")


class World:
    """A coordinator with topics in it, and a feed."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.coordinator = RebuiltWatches(MemoryCoordinator(self.store))
        self.feed = TopicFeed(self.coordinator, KEYS)
        self.next = 1

    def put_topic(
        self, name: str, ids: list[int], growing: list[int] | None = None, inc: str = "i", value: str = ""
    ) -> None:
        record = records_pb2.TopicRecord(
            name=name, incarnation=inc, state=records_pb2.TOPIC_STATE_READY, partition_ids=ids,
            growing_partition_ids=growing or [], settings=records_pb2.TopicSettings(attributes={"a": value}),
        )  # fmt: skip
        self.store.txn((), [Put(KEYS.topic(name), record.SerializeToString())], ())

    def put_chain(self, partition: int, number: int = 0, epoch: int = 1) -> None:
        chain = replace(CHAIN, partition=PartitionId(partition), number=number, epoch=epoch)
        value = chain_to_record(chain).SerializeToString()
        self.next = max(self.next, partition + 1)
        counter = records_pb2.CounterRecord(next=self.next).SerializeToString()
        puts = [Put(KEYS.chain(PartitionId(partition)), value), Put(KEYS.partition_counter, counter)]
        self.store.txn((), puts, ())

    def make(self, name: str, *ids: int, value: str = "") -> None:
        self.put_topic(name, list(ids), value=value)
        for number, partition in enumerate(ids):
            self.put_chain(partition, number)

    def delete(self, name: str, *ids: int) -> None:
        self.store.txn((), [Delete(KEYS.chain(PartitionId(id_))) for id_ in ids], ())
        self.store.txn((), [Delete(KEYS.topic(name))], ())


class Seen:
    """What was reported to a watcher, put together."""

    def __init__(self, watcher: TopicWatcher) -> None:
        self.watcher = watcher
        self.topics: dict[str, records_pb2.TopicRecord] = {}
        self.epochs: dict[int, int] = {}
        self.deleted: list[str] = []
        self.responses: list[broker_pb2.WatchTopicsResponse] = []

    async def take(self) -> broker_pb2.WatchTopicsResponse:
        async with asyncio.timeout(60):
            response = await self.watcher.take()
        self.responses.append(response)
        for name in response.deleted:
            self.deleted.append(name)
            self.topics.pop(name, None)
        for summary in response.changed:
            self.topics[summary.topic.name] = summary.topic
            self.epochs.update({chain.partition_id: chain.epoch for chain in summary.chains})
        return response

    async def take_all(self) -> None:
        while not (await self.take()).is_whole:
            pass

    async def until(self, name: str, epoch: int, partition: int) -> None:
        while name not in self.topics or self.epochs.get(partition) != epoch:
            await self.take()


@contextlib.asynccontextmanager
async def watching(world: World) -> AsyncIterator[Seen]:
    async with world.feed.watch() as watcher:
        yield Seen(watcher)


async def test_everything_comes_first_and_once_then_what_changes() -> None:
    world = World()
    world.make("a", 1, 2)
    world.make("b", 3)
    async with watching(world) as seen:
        await seen.take_all()
        assert {name: list(topic.partition_ids) for name, topic in seen.topics.items()} == {"a": [1, 2], "b": [3]}
        assert seen.epochs == {1: 1, 2: 1, 3: 1}
        assert sum(len(response.changed) for response in seen.responses) == 2
        world.put_chain(2, 1, epoch=5)
        response = await seen.take()
        assert [(entry.topic.name, [chain.partition for chain in entry.chains]) for entry in response.changed] == [
            ("a", [1])
        ]
        assert not response.is_whole
        world.delete("b", 3)
        while "b" in seen.topics:
            await seen.take()
        assert seen.deleted == ["b"]


async def test_without_topics_the_first_answer_says_that_this_is_all() -> None:
    world = World()
    async with watching(world) as seen:
        assert (await seen.take()).is_whole
        world.make("a", 1)
        await seen.until("a", 1, 1)


async def test_a_partition_that_is_being_added_is_not_shown_before_it_belongs_to_the_topic() -> None:
    world = World()
    world.make("a", 1)
    async with watching(world) as seen:
        await seen.take_all()
        world.put_topic("a", [1], growing=[2])
        world.put_chain(2, 1)
        await seen.take()
        assert 2 not in seen.epochs
        world.put_topic("a", [1, 2])
        await seen.until("a", 1, 2)


async def test_a_slow_watcher_finds_the_newest_version_once() -> None:
    world = World()
    world.make("a", 1)
    world.make("b", 2)
    async with watching(world) as seen, watching(world) as quick:
        await seen.take_all()
        await quick.take_all()
        for epoch in range(2, 60):
            world.put_chain(1, 0, epoch)
        await quick.until("a", 59, 1)
        response = await seen.take()
        assert [chain.epoch for entry in response.changed for chain in entry.chains] == [59]


async def test_a_topic_made_anew_under_its_name_comes_with_its_own_chains() -> None:
    world = World()
    world.make("a", 1)
    async with watching(world) as seen:
        await seen.take_all()
        world.delete("a", 1)
        world.put_topic("a", [9], inc="other")
        world.put_chain(9, 0, epoch=4)
        await seen.until("a", 4, 9)
        assert seen.topics["a"].incarnation == "other"


async def test_after_a_compaction_it_lists_again_and_says_what_changed_meanwhile() -> None:
    world = World()
    world.make("a", 1)
    world.make("b", 2)
    async with watching(world) as seen:
        await seen.take_all()
        world.put_chain(1, 0, epoch=7)  # in one turn of the loop: no watch has seen any of it
        world.delete("b", 2)
        world.make("c", 3)
        world.store.compact(world.store.revision)
        while seen.epochs.get(1) != 7 or "b" in seen.topics or 3 not in seen.epochs:
            await seen.take()
        assert set(seen.topics) == {"a", "c"}


async def test_after_a_rebuild_a_chain_of_a_lower_revision_counts_and_the_same_one_is_not_told() -> None:
    world = World()
    world.make("a", 1)
    world.make("b", 2)
    older = world.store.copy()
    async with watching(world) as seen:
        await seen.take_all()
        for epoch in range(2, 6):
            world.put_chain(1, 0, epoch)
        await seen.until("a", 5, 1)
        told = len(seen.responses)
        world.store.restore(older)
        world.put_chain(1, 0, epoch=6)
        world.coordinator.end_watches()
        await seen.until("a", 6, 1)
        assert [entry.topic.name for one in seen.responses[told:] for entry in one.changed] == ["a"]


async def test_rebuild_while_everything_is_listed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.make("a", 1)
    older, get = world.store.copy(), world.coordinator.get
    world.make("b", 2)

    async def counter(key: str) -> KeyValue | None:
        monkeypatch.undo()
        world.store.restore(older)
        world.coordinator.end_watches()
        return await get(key)

    monkeypatch.setattr(world.coordinator, "get", counter)
    async with watching(world) as seen:
        await seen.take_all()
        world.make("c", 3)
        await seen.until("c", 1, 3)


async def test_the_next_watcher_gets_everything_and_the_watches_end_with_the_last_one() -> None:
    world = World()
    world.make("a", 1)
    async with watching(world) as first:
        await first.take_all()
        async with watching(world) as second:
            await second.take_all()
            assert second.epochs == {1: 1}
    assert world.feed._following is None
    async with watching(world) as third:
        await third.take_all()
        assert third.epochs == {1: 1}


async def test_a_large_topic_comes_in_parts() -> None:
    world = World()
    count = CHAINS_PER_TAKE_MAX + 500
    world.make("a", *range(1, count + 1))
    async with watching(world) as seen:
        await seen.take_all()
        assert len(seen.epochs) == count
        assert [sum(len(entry.chains) for entry in response.changed) for response in seen.responses] == [
            CHAINS_PER_TAKE_MAX, 500,
        ]  # fmt: skip


async def test_topics_with_many_attributes_come_in_messages_that_fit() -> None:
    world = World()
    for number in range(1, 1201):
        world.make(f"t{number}", number, value="x" * 4095)
    async with watching(world) as seen:
        await seen.take_all()
        assert len(seen.epochs) == 1200
        assert {topic.settings.attributes["a"] for topic in seen.topics.values()} == {"x" * 4095}
        assert max(response.ByteSize() for response in seen.responses) < MESSAGE_SIZE_BYTES_MAX // 8
        world.put_topic("t7", [7], value="y")
        await seen.take()
        assert (len(seen.topics), seen.topics["t7"].settings.attributes["a"]) == (1200, "y")


async def test_too_many_watchers_are_refused() -> None:
    world = World()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(WATCHERS_MAX):
            await stack.enter_async_context(watching(world))
        with pytest.raises(OverloadedError):
            await stack.enter_async_context(watching(world))


async def test_two_thousand_topics_are_listed_within_a_second() -> None:
    world = World()
    for number in range(1, 2001):
        world.make(f"topic-{number}", number)
    began = time.process_time()
    async with watching(world) as seen:
        await seen.take_all()
    took_s = time.process_time() - began
    assert len(seen.epochs) == 2000
    assert took_s < 1.0, f"{took_s:.2f} s of processor time"  # 0.1 as a rule


def test_a_summary_counts_over_pages() -> None:
    chain = switched(longer(40), 100)
    assert ChainArchive().lay_out(chain).pages, "a chain as long as this one has pages"
    summary = summary_of(chain_to_record(chain))
    assert (summary.segment_count, summary.segment) == (140, 140)
    assert summary.sealed_messages == chain.open_segment.base
    assert summary.master == chain.open_segment.master.broker


def test_a_summary_tells_which_brokers_have_the_segments() -> None:
    chain = longer(3)
    told = {tuple(copies.brokers): copies.segment_count for copies in summary_of(chain_to_record(chain)).copies}
    assert sum(told.values()) == 3
    assert set(told) == {tuple(sorted(member.broker for member in segment.members)) for segment in chain.segments}
    cut = trim(chain, chain.segments[2].no, Start(0, 0, 0), chain.segments[0].no)
    kept = {tuple(copies.brokers): copies.segment_count for copies in summary_of(chain_to_record(cut)).copies}
    assert sum(kept.values()) < 3, "dropped segments have no copies"


def test_a_summary_tells_an_old_disk_of_a_broker_from_its_new_one() -> None:
    chain = longer(3)
    first, second, last = chain.segments
    server, other = first.members
    older = replace(other, incarnation=f"old{other.incarnation}")
    mixed = replace(
        chain,
        segments=(
            replace(first, members=(server, older), eligible=(server, older)),
            replace(second, members=(server, other), eligible=(server,)),
            replace(last, members=(server, other)),
        ),
    )
    copies = summary_of(chain_to_record(mixed)).copies
    names = sorted((server.broker, other.broker))
    assert [list(one.brokers) for one in copies] == [names] * 3
    disks = [[str(server)], sorted(map(str, (server, other))), sorted(map(str, (server, older)))]
    assert sorted(list(one.in_sync) for one in copies) == sorted(disks)


def test_a_summary_counts_segments_together_that_differ_only_in_a_disk_that_may_lack_their_end() -> None:
    chain = longer(3)
    first, second, last = chain.segments
    server, other = first.members
    older = replace(other, incarnation=f"old{other.incarnation}")
    mixed = replace(
        chain,
        segments=(
            replace(first, members=(server, older), eligible=(server,)),
            replace(second, members=(server, other), eligible=(server,)),
            last,
        ),
    )
    told = {tuple(one.in_sync): one.segment_count for one in summary_of(chain_to_record(mixed)).copies}
    assert told[(str(server),)] == 2


def test_a_summary_tells_who_has_segments_whole() -> None:
    chain = longer(2)
    sealed, last = chain.segments
    assert sealed.sealed_len, "it has messages"
    behind = replace(chain, segments=(replace(sealed, eligible=(sealed.server,)), last))
    both = sorted(member.broker for member in sealed.members)
    disks = sorted(map(str, sealed.members))

    def told() -> list[tuple[list[str], list[str], int]]:
        copies = summary_of(chain_to_record(behind)).copies
        return [(list(one.brokers), list(one.in_sync), one.segment_count) for one in copies]

    assert told() == [(both, [str(sealed.server)], 1), (both, disks, 1)]
    behind = replace(chain, segments=(replace(sealed, eligible=(sealed.server,), state=State.UNSETTLED), last))
    assert told() == [(both, disks, 2)], "an unsettled segment is on the disks of its members, as an open one"
    behind = declare_lost(behind, sealed.no)
    assert told() == [(both, disks, 1)], "a lost one is nowhere"


def test_a_summary_tells_what_is_kept() -> None:
    chain = longer(3)
    whole = summary_of(chain_to_record(chain))
    assert (whole.first_offset, whole.dropped_messages) == (make_offset(chain.segments[0].no, 0), 0)
    cut = trim(chain, chain.segments[1].no, Start(4, 7, 99), chain.segments[0].no)
    told = summary_of(chain_to_record(cut))
    assert (told.first_offset, told.dropped_messages) == (make_offset(chain.segments[1].no, 4), 14)


def test_a_standing_says_who_has_messages() -> None:
    chain = longer(2)
    sealed, last = chain.segments
    assert sealed.sealed_len, "it has messages"
    both = frozenset(sealed.members)
    standing = standing_of(chain_to_record(chain))
    assert standing == Standing(last.members, frozenset({Copies(both, both)}), False, False)
    silent = replace(chain, segments=(replace(sealed, eligible=(sealed.server,)), last))
    assert standing_of(chain_to_record(silent)).copies == {Copies(both, both), Copies(both, frozenset({sealed.server}))}
    emptied = replace(silent, segments=(replace(silent.segments[0], begin=Start(sealed.sealed_len, 1, 1)), last))
    assert standing_of(chain_to_record(emptied)).copies == {Copies(both, both)}, "retention dropped its messages"
    lost = standing_of(chain_to_record(declare_lost(silent, sealed.no)))
    assert (lost.is_lost, lost.copies) == (True, {Copies(both, both)})


async def test_partitions_are_counted_by_who_has_them_as_long_as_they_exist() -> None:
    world = World()
    world.make("a", 1, 2)
    standing = standing_of(chain_to_record(CHAIN))
    async with world.feed.follow() as mirror, watching(world) as seen:
        await seen.take_all()
        assert (mirror.is_listed, mirror.topic_count, mirror.standings) == (True, 1, {standing: 2})
        other = chain_to_record(replace(longer(3), partition=PartitionId(2), number=1))
        value = other.SerializeToString()
        world.store.txn((), [Put(KEYS.chain(PartitionId(2)), value)], ())
        await seen.take()
        assert mirror.standings == {standing: 1, standing_of(other): 1}
        world.delete("a", 1, 2)
        while "a" in seen.topics:
            await seen.take()
        assert mirror.standings == {}
        assert mirror._shared == {}
