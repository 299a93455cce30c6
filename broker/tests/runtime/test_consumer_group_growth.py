"""The consumer groups of a topic that grows: each new partition has their cursors before it belongs to the topic."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from seriatim_api.errors import CoordinatorBehindError, UnavailableError
from seriatim_api.ids import PartitionId
from seriatim_api.publications import STAGE_TOPIC
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode, Exhausted, RetryPolicy
from seriatim_broker.interfaces.coordinator import Delete, Put, TxnResult
from seriatim_broker.runtime.controller import consumer_group_growth
from seriatim_broker.runtime.controller import topics as topics_of_controller
from seriatim_broker.runtime.controller.consumer_groups import ConsumerGroupCursors
from seriatim_broker.runtime.coordinator.group_epochs import EpochFloor
from seriatim_broker.runtime.coordinator.records import cursor_from_value
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_topics import KEYS, SETTINGS, Controller, topic_in, unchanged, until

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


SHARED = ConsumerGroupSettings(ConsumerMode.SHARED)
ONCE = ConsumerGroupSettings(at_most_once=True)
BROADCAST = ConsumerGroupSettings(ConsumerMode.BROADCAST)


async def test_new_partitions_have_each_group_in_its_state() -> None:
    store = MemoryStore()
    groups = {"keyed": KEYED, "plain": ConsumerGroupSettings(), "shared": SHARED, "once": ONCE, "all/web-1": BROADCAST}
    async with Controller(store) as topics:
        await topics.create("t", 2, SETTINGS, 5)
        for group, settings in groups.items():
            await make(store, group, settings, range(1, 3), paused=group == "keyed")
        await topics.update("t", None, 4, unchanged, 5)
    for group, settings in groups.items():
        found = cursors_of(store, group)
        assert sorted(found) == [1, 2, 3, 4], group
        assert {record.settings for record in found.values()} == {settings}
        assert [(found[number].segment_no, found[number].start_index) for number in (3, 4)] == [(1, 0), (1, 0)]
        assert found[4].paused == (group == "keyed"), "a paused group is paused there too"


async def test_a_partition_that_the_coordinator_has_lost_is_not_added() -> None:
    """An older copy of it was restored, and a broker says that the partition is there."""
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await make(store, "g", KEYED, range(1, 2))
        with pytest.MonkeyPatch.context() as patch:

            async def not_written(*_: object, **__: object) -> bool:
                return False

            patch.setattr(ConsumerGroupCursors, "_write", not_written)
            with pytest.raises(UnavailableError, match="has not grown"):
                await topics.update("t", None, 2, unchanged, 5)
        assert sorted(cursors_of(store, "g")) == list(topic_in(store).partition_ids) == [1]
        await topics.update("t", None, 2, unchanged, 5)
    assert sorted(cursors_of(store, "g")) == [1, 2]


async def test_an_external_group_has_a_place_on_new_partitions() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        cursors = ConsumerGroupCursors(MemoryCoordinator(store), KEYS, "spark")
        await cursors.read([PartitionId(1)])
        assert await cursors.report("t", {PartitionId(1): (3, 7)}, 1_000)
        await topics.update("t", None, 2, unchanged, 5)
    new = cursors_of(store, "spark")[2]
    assert (new.external, new.segment_no, new.start_index, new.reported_at_ms) == (True, 1, 0, 1_000)


async def test_a_deleted_group_gets_no_cursor() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await make(store, "gone", ConsumerGroupSettings(), range(1, 2))
        cursors = ConsumerGroupCursors(MemoryCoordinator(store), KEYS, "gone")
        await cursors.read([PartitionId(1)])
        await cursors.delete(7)
        await topics.update("t", None, 2, unchanged, 5)
    assert sorted(cursors_of(store, "gone")) == [1]


async def make_while_it_grows(monkeypatch: pytest.MonkeyPatch, store: MemoryStore, times: int) -> list[str]:
    """The topic grows, and at each of this many tries a group is made right after the groups were listed."""
    real, made = consumer_group_growth.groups_on, list[str]()

    async def groups_on(*args: Any) -> Any:
        found = await real(*args)
        if len(made) < times:
            made.append(f"new-{len(made)}")
            await make(store, made[-1], ConsumerGroupSettings(), range(1, 2))
        return found

    monkeypatch.setattr(topics_of_controller, "groups_on", groups_on)
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await topics.update("t", None, 2, unchanged, 5)
    return made


async def test_a_group_made_behind_the_look_gets_a_cursor_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    (group,) = await make_while_it_grows(monkeypatch, store, 1)
    given = store.items[KEYS.cursor(PartitionId(2), group)]
    assert given.mod_revision < store.items[KEYS.topic("t")].mod_revision, "the partition belongs to the topic later"


async def test_a_topic_grows_while_groups_are_made_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    made = await make_while_it_grows(monkeypatch, store, topics_of_controller.GROUP_TRIES_MAX + 1)
    assert len(topic_in(store).partition_ids) == 2
    assert [sorted(cursors_of(store, group)) for group in made] == [[1, 2]] * len(made)


async def test_many_groups_cost_two_transactions_each() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 3, SETTINGS, 5)
        for number in range(40):
            await make(store, f"g{number}", ConsumerGroupSettings(), range(1, 4))
    controller, calls = Controller(store), 0
    real = controller.coordinator.txn

    async def counted(*args: Any, **options: Any) -> TxnResult:
        nonlocal calls
        calls += 1
        return await real(*args, **options)

    controller.coordinator.txn = counted  # type: ignore[method-assign]
    async with controller as topics:
        await topics.update("t", None, 5, unchanged, 5)
    assert sorted(cursors_of(store, "g39")) == [1, 2, 3, 4, 5]
    assert calls < 2 * 40 + 20


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
            await topics.update("t", None, 3, unchanged, 0.5)
        assert sorted(cursors_of(store, "keyed")) == list(topic_in(store).partition_ids)
    async with Controller(store) as topics:
        await topics.finish_topics()
        await topics.update("t", None, 3, unchanged, 5)
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
        await topics.update("t", None, 2, unchanged, 5)
    assert [record.deleted for record in cursors_of(store, "keyed").values()] == [True]


async def test_the_dead_letter_topic_grows_too() -> None:
    store = MemoryStore()
    dead = RetryPolicy(3, exhausted=Exhausted.DEAD_LETTER, dead_letter_topic="d")
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await topics.create("d", 1, SETTINGS, 5)
        await make(store, "keyed", ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, dead), range(1, 2))
        await topics.update("t", None, 3, unchanged, 5)
        grown = await topics.update("d", None, 3, unchanged, 5)
    assert len(grown.partition_ids) == 3


async def test_groups_are_looked_for_on_every_partition() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 3, SETTINGS, 5)
        await make(store, "late", KEYED, range(3, 4))
        await topics.update("t", None, 4, unchanged, 5)
    assert sorted(cursors_of(store, "late")) == [3, 4]


@pytest.mark.parametrize("is_lost", [False, True], ids=["known", "lost"])
async def test_growth_during_a_rebuild_waits_for_its_end(monkeypatch: pytest.MonkeyPatch, *, is_lost: bool) -> None:
    """Rule `growth-after-rebuild`: the older copy may lack the group, whose cursor the rebuild writes again."""
    monkeypatch.setattr(topics_of_controller, "AGAIN_S_MIN", 0.01)
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        await make(store, "keyed", KEYED, range(1, 2))
        cursor = store.items[KEYS.cursor(PartitionId(1), "keyed")]
        lost = [Delete(cursor.key)] if is_lost else []
        store.txn([], [*lost, EpochFloor(is_rebuilding=True).put(KEYS)], [])
        with pytest.raises(CoordinatorBehindError, match="has not grown"):
            await topics.update("t", None, 2, unchanged, 5)
        assert list(topic_in(store).partition_ids) == [1]
        assert sorted(cursors_of(store, "keyed")) == [1] * (not is_lost)
        assert KEYS.cursor(PartitionId(2), "keyed") not in store.items
        store.txn([], [Put(cursor.key, cursor.value), EpochFloor(floor=5).put(KEYS)], [])
        finishing = asyncio.create_task(topics.keep_finishing())
        await until(lambda: len(topic_in(store).partition_ids) == 2)
        finishing.cancel()
    assert {record.settings for record in cursors_of(store, "keyed").values()} == {KEYED}
    assert sorted(cursors_of(store, "keyed")) == [1, 2]


async def test_rebuild_that_begins_while_a_topic_grows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, real = MemoryStore(), consumer_group_growth.groups_on

    async def groups_on(*args: Any) -> Any:
        store.txn([], [EpochFloor(is_rebuilding=True).put(KEYS)], [])
        return await real(*args)

    monkeypatch.setattr(topics_of_controller, "groups_on", groups_on)
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        with pytest.raises(CoordinatorBehindError, match="has not grown"):
            await topics.update("t", None, 2, unchanged, 5)
    assert list(topic_in(store).partition_ids) == [1]


async def test_stage_topic_grows_during_a_rebuild() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create(STAGE_TOPIC, 1, SETTINGS, 5)
        store.txn([], [EpochFloor(is_rebuilding=True).put(KEYS)], [])
        assert list((await topics.update(STAGE_TOPIC, None, 2, unchanged, 5)).partition_ids) == [1, 2]
