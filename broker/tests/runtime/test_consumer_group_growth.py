"""The consumer groups of a topic that grows: each new partition has their settings before it belongs to the topic."""

from __future__ import annotations

import contextlib

import pytest
from seriatim_api.errors import UnavailableError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode, Exhausted, RetryPolicy
from seriatim_broker.runtime import consumer_group_growth
from seriatim_broker.runtime.consumer_groups import ConsumerGroupCursors
from seriatim_broker.runtime.records import cursor_from_value
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_topics import KEYS, SETTINGS, Controller, topic_in, unchanged

PARKS = RetryPolicy(3, delays_ms=(100, 1_000), exhausted=Exhausted.PARK_KEY)
KEYED = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, PARKS)


async def make(
    store: MemoryStore, group: str, settings: ConsumerGroupSettings, partitions: range, **options: bool
) -> None:
    cursors = ConsumerGroupCursors(MemoryCoordinator(store), KEYS, group)
    ids = [PartitionId(number) for number in partitions]
    await cursors.read(ids)
    assert await cursors.create("t", dict.fromkeys(ids, (1, 0)), settings, **options)


def cursors_of(store: MemoryStore, group: str) -> dict[int, CursorRecord]:
    found: dict[int, CursorRecord] = {}
    for partition in topic_in(store).partition_ids:
        item = store.items.get(KEYS.cursor(PartitionId(partition), group))
        if item is not None:
            found[partition] = cursor_from_value(item.value)
    return found


async def test_new_partitions_have_the_settings_of_groups_that_have_some() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 2, SETTINGS, 5)
        await make(store, "keyed", KEYED, range(1, 3), paused=True)
        await make(store, "plain", ConsumerGroupSettings(), range(1, 3))
        await topics.update("t", "", 4, unchanged, 5)
    keyed = cursors_of(store, "keyed")
    assert sorted(keyed) == [1, 2, 3, 4]
    assert {record.settings for record in keyed.values()} == {KEYED}
    assert [(keyed[number].segment_no, keyed[number].start_index) for number in (3, 4)] == [(1, 0), (1, 0)]
    assert keyed[4].paused, "a paused group is paused there too"
    assert sorted(cursors_of(store, "plain")) == [1, 2], "its consumers begin where they say"


@pytest.mark.parametrize("last_is_done", [True, False])
@pytest.mark.parametrize("writes", range(1, 7))
async def test_no_partition_belongs_to_the_topic_without_them_whichever_controller_ends(
    writes: int, last_is_done: bool
) -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await make(store, "keyed", KEYED, range(1, 2))
    async with Controller(store, writes_max=writes, last_is_done=last_is_done) as topics:
        with contextlib.suppress(UnavailableError, TimeoutError):
            await topics.update("t", "", 3, unchanged, 0.5)
        assert sorted(cursors_of(store, "keyed")) == list(topic_in(store).partition_ids)
    async with Controller(store) as topics:
        await topics.finish_topics()
        await topics.update("t", "", 3, unchanged, 5)
    assert sorted(cursors_of(store, "keyed")) == list(topic_in(store).partition_ids)
    assert len(cursors_of(store, "keyed")) == 3


async def test_a_group_that_was_deleted_meanwhile_gets_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await make(store, "keyed", KEYED, range(1, 2))
        real = ConsumerGroupCursors.read

        async def read(self: ConsumerGroupCursors, partitions: list[PartitionId]) -> None:
            monkeypatch.setattr(ConsumerGroupCursors, "read", real)
            other = ConsumerGroupCursors(MemoryCoordinator(store), KEYS, "keyed")
            await other.read([PartitionId(1)])
            await other.delete(7)
            await real(self, partitions)

        monkeypatch.setattr(ConsumerGroupCursors, "read", read)
        await topics.update("t", "", 2, unchanged, 5)
    assert [record.deleted for record in cursors_of(store, "keyed").values()] == [True]


async def test_the_dead_letter_topic_grows_too() -> None:
    store = MemoryStore()
    dead = RetryPolicy(3, exhausted=Exhausted.DEAD_LETTER, dead_letter_topic="d")
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await topics.create("d", 1, SETTINGS, 5)
        await make(store, "keyed", ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, dead), range(1, 2))
        await topics.update("t", "", 3, unchanged, 5)
        grown = await topics.update("d", "", 3, unchanged, 5)
    assert len(grown.partition_ids) == 3


async def test_groups_are_looked_for_on_every_partition() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 3, SETTINGS, 5)
        await make(store, "late", KEYED, range(3, 4))
        found = await consumer_group_growth.groups_with_settings(
            MemoryCoordinator(store), KEYS, [PartitionId(1), PartitionId(2), PartitionId(3)]
        )
    assert list(found) == ["late"]
