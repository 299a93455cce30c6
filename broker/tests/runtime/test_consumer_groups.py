"""Cursors of a consumer group: written once, marked when forgotten, and only for the newest operator."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.errors import NotServingError, SeriatimError
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.runtime.controller.consumer_groups import CURSORS_PER_TXN, ConsumerGroupCursors
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.operator_lease import guard_of
from seriatim_broker.runtime.coordinator.records import cursor_from_value, cursor_to_value
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

KEYS = Keys("c")
NOW_MS = 1_700_000_000_000
IDS = [PartitionId(number) for number in range(1, CURSORS_PER_TXN + 20)]
STARTS = dict.fromkeys(IDS, (1, 0))


def store_with_chains() -> MemoryStore:
    store = MemoryStore()
    for partition in IDS:
        store.txn((), [Put(KEYS.chain(partition), b"chain")], ())
    return store


async def read(store: MemoryStore, epoch: int | None = None) -> ConsumerGroupCursors:
    coordinator = MemoryCoordinator(store)
    guards = () if epoch is None else (guard_of(coordinator, KEYS, epoch),)
    cursors = ConsumerGroupCursors(coordinator, KEYS, "g", *guards)
    await cursors.read(IDS)
    return cursors


def record_in(store: MemoryStore, partition: int = 1) -> CursorRecord:
    return cursor_from_value(store.items[KEYS.cursor(PartitionId(partition), "g")].value)


async def test_a_group_that_was_forgotten_begins_anew_under_a_higher_epoch() -> None:
    store = store_with_chains()
    assert await (await read(store)).create("t", STARTS)
    assert record_in(store) == CursorRecord(1, 1, 0, "t")
    await (await read(store)).delete(NOW_MS)
    assert record_in(store).deleted
    again = await read(store)
    assert not any(map(again.has, IDS))
    assert await again.create("t", dict.fromkeys(IDS, (3, 5)))
    assert record_in(store, IDS[-1]) == CursorRecord(3, 2, 5, "t")


async def test_tokens_of_a_group_that_is_made_again_are_above_all_of_the_deleted_one() -> None:
    """Rule `begins-above`: the deleted one may have had tokens of term 7 + 20, and the new one begins at epoch 5."""
    store = store_with_chains()
    keyed = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED)
    assert await (await read(store)).create("t", STARTS, keyed)
    moved = replace(record_in(store), segment_no=9, term_base=7)
    store.txn((), [Put(KEYS.cursor(IDS[0], "g"), cursor_to_value(moved))], ())
    await (await read(store)).delete(NOW_MS)
    known = SimpleNamespace(last_server_epoch=lambda _no: 20, segment=lambda _no: SimpleNamespace(server_epoch=5))
    assert await (await read(store)).create("t", STARTS, keyed, chains=dict.fromkeys(IDS, cast(Any, known)))
    assert record_in(store).term_base + 5 == 7 + 20 + 1
    assert record_in(store, IDS[1]).term_base + 5 == 20 + 1


async def test_who_was_slower_writes_nothing() -> None:
    store = store_with_chains()
    slow = await read(store)
    assert await (await read(store)).create("t", STARTS)
    assert not await slow.create("t", STARTS)
    forgetting = await read(store)
    moved = cursor_to_value(CursorRecord(2, 1, 0, "t"))
    store.txn((), [Put(KEYS.cursor(PartitionId(1), "g"), moved)], ())
    with pytest.raises(NotServingError):
        await forgetting.delete(NOW_MS)
    assert not record_in(store).deleted


async def test_an_older_operator_changes_nothing() -> None:
    store = store_with_chains()
    older, newer = await read(store, 4), await read(store, 5)
    assert await newer.create("t", STARTS)
    with pytest.raises(SeriatimError):
        await older.create("t", STARTS)
    with pytest.raises(SeriatimError):
        await (await read(store, 4)).delete(NOW_MS)
    assert record_in(store) == CursorRecord(1, 1, 0, "t")
