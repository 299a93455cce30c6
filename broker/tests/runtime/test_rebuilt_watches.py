"""Copies of the coordinator's records, when the coordinator went back and was rebuilt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest
from seriatim_api.errors import CompactedError
from seriatim_broker.interfaces.coordinator import Listing, Put
from seriatim_broker.runtime.coordinator.mirror import mirror
from seriatim_broker.runtime.coordinator.rebuilt_watches import RebuiltWatches
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore, StoreCopy

pytestmark = pytest.mark.asyncio


class World:
    """A coordinator with the members a and b, and a copy of them that a watch keeps current."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.coordinator = RebuiltWatches(MemoryCoordinator(self.store))
        self.copy: dict[str, bytes] = {}
        for number in range(20):
            self.put("m/a", b"%d" % number)
        self.older = self.store.copy()
        self.put("m/b", b"1")

    def put(self, key: str, value: bytes) -> None:
        self.store.txn((), [Put(key, value)], ())

    def changed(self, values: Mapping[str, bytes], _keys: Sequence[str]) -> None:
        self.copy = dict(values)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what it waits for has no event of its own
                await asyncio.sleep(0)

    def has_read(self, count: int) -> Callable[[], bool]:
        """Whether the watch had its turn that often since the last write."""
        left = count

        def condition() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        return condition


@contextlib.asynccontextmanager
async def followed() -> AsyncIterator[World]:
    world = World()
    task = asyncio.create_task(mirror(world.coordinator, "m/", world.changed))
    try:
        await world.until(lambda: world.copy == {"m/a": b"19", "m/b": b"1"})
        world.put("m/b", b"2")
        await world.until(lambda: world.copy["m/b"] == b"2")
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("is_empty", [False, True])
async def test_copy_of_members_follows_a_rebuild(*, is_empty: bool) -> None:
    """Rule `rebuilt-is-listed`: nothing leaves the copy before the rebuild, and all is right after it."""
    async with followed() as world:
        world.store.restore(StoreCopy() if is_empty else world.older)
        world.put("m/b", b"3")
        world.put("m/a", b"20")
        await world.until(world.has_read(100))
        assert world.copy == {"m/a": b"19", "m/b": b"2"}, "the old revision has not come again"
        world.coordinator.end_watches()
        await world.until(lambda: world.copy == {"m/a": b"20", "m/b": b"3"})
        world.put("m/c", b"1")
        await world.until(lambda: "m/c" in world.copy)


async def test_what_was_not_rebuilt_leaves_the_copy() -> None:
    async with followed() as world:
        world.store.restore(world.older)
        world.coordinator.end_watches()
        await world.until(lambda: world.copy == {"m/a": b"19"})


async def test_watch_ends_also_between_two_changes() -> None:
    """The caller works on a change when the rebuild is read."""
    world = World()
    watch = world.coordinator.watch("m/", start_revision=2, prefix=True)
    async with contextlib.aclosing(watch) as batches:
        assert await anext(batches)
        world.coordinator.end_watches()
        with pytest.raises(CompactedError, match="rebuilt"):
            await anext(batches)
    again = world.coordinator.watch("m/b", start_revision=2)
    async with contextlib.aclosing(again) as batches:
        assert (await anext(batches)).events[0].item.value == b"1"


async def test_list_that_a_rebuild_overtakes_is_made_again() -> None:
    """It was answered before the restore. A watch from its revision on would be silent."""
    world = World()
    inner, restores = world.coordinator._coordinator, [world.older]
    listed = inner.list

    async def slow(prefix: str) -> Listing:
        listing = await listed(prefix)
        while restores:
            world.store.restore(restores.pop())
            world.coordinator.end_watches()
        return listing

    inner.list = slow  # type: ignore[method-assign, assignment]
    assert [item.key for item in (await world.coordinator.list("m/")).items] == ["m/a"]


async def test_watch_that_is_read_after_the_rebuild_ends() -> None:
    """Its caller delivers the list first."""
    coordinator = World().coordinator
    watch = coordinator.watch("m/", start_revision=900, prefix=True)
    coordinator.end_watches()
    with pytest.raises(CompactedError, match="rebuilt"):
        await anext(watch)


async def test_time_of_the_caller_is_no_rebuild() -> None:
    world = World()
    watch = world.coordinator.watch("m/none", start_revision=2)
    async with contextlib.aclosing(watch) as batches:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(batches)
