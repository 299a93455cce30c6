"""Topics are made, grow and go, even if any controller dies in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from seriatim_api.errors import (
    BadRequestError,
    CoordinatorUnavailableError,
    NotServingError,
    PreconditionError,
    SeriatimError,
    UnavailableError,
    UnknownTopicError,
)
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.effects import Resolved
from seriatim_broker.core.values.events import CreatePartition
from seriatim_broker.interfaces.coordinator import Compare, Operation, Put, TxnResult, absent
from seriatim_broker.runtime.controller import topics as topics_of_controller
from seriatim_broker.runtime.controller.topics import Topics
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

KEYS = Keys("c")
SETTINGS = records_pb2.TopicSettings(flush=True, chain_width=2, retention_ms=5)
A, B = MemberId("g0-0", "a"), MemberId("g0-1", "b")


class Coordinator(MemoryCoordinator):
    """One that the process loses after this many writes; the last of them is carried out, or not."""

    def __init__(self, store: MemoryStore, writes_max: int = 1000, *, last_is_done: bool = True) -> None:
        super().__init__(store)
        self._left = writes_max
        self._last_is_done = last_is_done
        self.error: BaseException = CoordinatorUnavailableError("lost")

    def lose_after(self, writes: int) -> None:
        self._left = writes

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], *args: Any, deadline_s: float | None = None
    ) -> TxnResult:
        writes = any(isinstance(operation, Put) for operation in then)
        if self._left <= 0:
            raise self.error
        self._left -= writes
        if writes and not self._left:
            if self._last_is_done:
                await super().txn(compares, then, *args, deadline_s=deadline_s)
            raise self.error
        return await super().txn(compares, then, *args, deadline_s=deadline_s)


class Partitions:
    """Makes partitions as a core does, in the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._replies: dict[int, Callable[[Any], None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.hold = asyncio.Event()
        self.hold.set()

    def new_request(self, reply: Callable[[Any], None]) -> int:
        self._replies[len(self._replies) + 1] = reply
        return len(self._replies)

    def forget_request(self, request: int) -> None:
        pass

    def feed(self, event: CreatePartition) -> None:
        self._tasks.append(asyncio.ensure_future(self._make(event)))

    async def _make(self, event: CreatePartition) -> None:
        await self.hold.wait()
        error: SeriatimError | None = None
        record = records_pb2.ChainRecord(partition_id=event.partition, topic=event.topic, partition=event.number)
        key = KEYS.chain(event.partition)
        try:
            compares = [absent(key), absent(KEYS.tombstone(event.partition))]
            await self._coordinator.txn(compares, [Put(key, record.SerializeToString())])
        except SeriatimError as exc:
            error = exc
        self._replies[event.request](Resolved(event.request, None, error))


class Directory:
    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}

    def placeable(self) -> list[str]:
        return ["g0", "g1"]


class Clock:
    def wall_ms(self) -> int:
        return 7


class Controller:
    """A controller of which only the topics are there."""

    def __init__(self, store: MemoryStore, **options: Any) -> None:
        self.coordinator = Coordinator(store, **options)
        self.partitions = Partitions(self.coordinator)
        parts: list[Any] = [self.coordinator, KEYS, self.partitions, Directory(), self.coordinator, Clock()]
        self.topics = Topics(*parts)

    async def __aenter__(self) -> Topics:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self.topics.begin(self._group)
        return self.topics

    async def __aexit__(self, *_: object) -> None:
        self.topics.end()
        for task in list(self.topics._finishing.values()):
            task.cancel()
        await self._group.__aexit__(None, None, None)


def topic_in(store: MemoryStore) -> records_pb2.TopicRecord:
    return records_pb2.TopicRecord.FromString(store.items[KEYS.topic("t")].value)


def chains_in(store: MemoryStore) -> dict[int, int]:
    """Numbers in the topic by partition."""
    records = [records_pb2.ChainRecord.FromString(item.value) for item in store.under(KEYS.chains)]
    return {record.partition_id: record.partition for record in records}


async def until(condition: Callable[[], bool]) -> None:
    """Let the others run until it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is about what the store holds
            await asyncio.sleep(0)


def unchanged(_settings: records_pb2.TopicSettings) -> None:
    pass


def check_whole(store: MemoryStore, count: int) -> None:
    record = topic_in(store)
    assert record.state == records_pb2.TOPIC_STATE_READY
    assert not record.growing_partition_ids
    assert len(set(record.partition_ids)) == count
    assert chains_in(store) == {partition: number for number, partition in enumerate(record.partition_ids)}


async def test_a_topic_grows_and_its_old_partitions_stay_what_they_are() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        made = await topics.create("t", 2, SETTINGS, 5)
        await topics.create("other", 3, SETTINGS, 5)
        grown = await topics.update("t", made.incarnation, 5, unchanged, 5)
        assert grown == topic_in(store)
        assert list(grown.partition_ids)[:2] == list(made.partition_ids)
        assert list(grown.partition_ids)[2:] == [6, 7, 8]
        again = await topics.update("t", None, 5, unchanged, 5)
        assert again == grown
        assert (await topics.update("t", None, 0, unchanged, 5)) == grown


async def test_settings_change_in_the_same_write() -> None:
    store = MemoryStore()

    def shorter(settings: records_pb2.TopicSettings) -> None:
        settings.retention_ms = 1

    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        revision = store.revision
        updated = await topics.update("t", None, 0, shorter, 5)
        assert updated.settings.retention_ms == 1
        assert store.revision == revision + 1
        await topics.update("t", None, 0, shorter, 5)
        assert store.revision == revision + 1, "the same again writes nothing"


async def test_changes_of_two_attributes_at_once_are_both_kept() -> None:
    store = MemoryStore()

    def setting(name: str) -> Callable[[records_pb2.TopicSettings], None]:
        return lambda settings: settings.attributes.update({name: "x"})

    names = [f"a{number}" for number in range(8)]
    async with Controller(store) as topics:
        await topics.create("t", 1, SETTINGS, 5)
        revision = store.revision
        await asyncio.gather(*(topics.update("t", None, 0, setting(name), 5) for name in names))
        assert dict(topic_in(store).settings.attributes) == dict.fromkeys(names, "x")
        assert store.revision == revision + len(names)
        for name in names:
            await topics.update("t", None, 0, setting(name), 5)
        assert store.revision == revision + len(names), "the same again writes nothing"


async def test_topics_that_are_made_at_once_take_their_partition_ids_in_turn() -> None:
    store = MemoryStore()
    controller = Controller(store, writes_max=100_000)
    carry_out, tries = controller.coordinator.txn, 0

    async def txn(compares: Sequence[Compare], then: Sequence[Operation], *more: Any, **named: Any) -> TxnResult:
        nonlocal tries
        tries += any(isinstance(operation, Put) and operation.key == KEYS.partition_counter for operation in then)
        return await carry_out(compares, then, *more, **named)

    controller.coordinator.txn = txn  # type: ignore[method-assign]
    async with controller as topics:
        await topics.create("t", 1, SETTINGS, 5)
        made = (topics.create(f"t{number}", 1, SETTINGS, 5) for number in range(40))
        await asyncio.gather(*made, *(topics.update("t", None, count, unchanged, 5) for count in (2, 3, 4)))
    assert tries == 44, "no try fails because another one came first"


async def test_a_topic_that_is_made_again_has_no_attributes_of_the_one_before() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 1, records_pb2.TopicSettings(chain_width=2, attributes={"owner": "a"}), 5)
        assert dict(topic_in(store).settings.attributes) == {"owner": "a"}
        await topics.delete("t")
        await topics.create("t", 1, SETTINGS, 5)
        assert not topic_in(store).settings.attributes


async def test_what_cannot_be_is_refused() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        with pytest.raises(UnknownTopicError):
            await topics.update("t", None, 2, unchanged, 5)
        await topics.create("t", 3, SETTINGS, 5)
        before = store.revision
        with pytest.raises(BadRequestError, match="taken away"):
            await topics.update("t", None, 2, unchanged, 5)
        with pytest.raises(PreconditionError, match="recreated"):
            await topics.update("t", "another", 4, unchanged, 5)
        assert store.revision == before


@pytest.mark.parametrize("last_is_done", [True, False])
@pytest.mark.parametrize("writes", range(1, 7))
async def test_growth_that_one_controller_left_half_done_is_finished_by_the_next(
    writes: int, last_is_done: bool
) -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        await topics.create("t", 2, SETTINGS, 5)
    first = Controller(store, writes_max=writes, last_is_done=last_is_done)
    async with first as topics:  # ids, three partitions, the record: five writes
        try:
            await topics.update("t", None, 5, unchanged, 0.5)
            assert writes == 6
        except (UnavailableError, TimeoutError):
            assert writes < 6
    async with Controller(store) as topics:
        await topics.finish_topics()
        begun = writes > 1 or last_is_done
        check_whole(store, 5 if begun else 2)
        await topics.update("t", None, 5, unchanged, 5)
        check_whole(store, 5)


async def test_more_growth_while_it_grows_is_waited_for() -> None:
    store = MemoryStore()
    controller = Controller(store)
    async with controller as topics:
        await topics.create("t", 1, SETTINGS, 5)
        controller.partitions.hold.clear()
        one = asyncio.create_task(topics.update("t", None, 3, unchanged, 5))
        await until(lambda: len(topic_in(store).growing_partition_ids) == 2)
        assert list(topic_in(store).partition_ids) == [1]
        other = asyncio.create_task(topics.update("t", None, 6, unchanged, 5))
        await until(lambda: len(topic_in(store).growing_partition_ids) == 5)
        controller.partitions.hold.set()
        assert len((await other).partition_ids) == 6
        assert len((await one).partition_ids) == 6
        check_whole(store, 6)


async def test_a_topic_that_is_deleted_while_it_grows_leaves_no_partition_behind() -> None:
    store = MemoryStore()
    controller = Controller(store)
    async with controller as topics:
        await topics.create("t", 1, SETTINGS, 5)
        controller.partitions.hold.clear()
        growing = asyncio.create_task(topics.update("t", None, 3, unchanged, 5))
        await until(lambda: bool(topic_in(store).growing_partition_ids))
        await topics.delete("t")
        with pytest.raises(NotServingError):
            await growing
        controller.partitions.hold.set()
        await asyncio.gather(*controller.partitions._tasks)
        assert chains_in(store) == {}
        assert len(store.under(KEYS.tombstones)) == 3


async def test_a_topic_whose_creation_failed_half_way_is_deleted() -> None:
    store = MemoryStore()
    async with Controller(store, writes_max=3) as topics:  # the topic's record, and one of its partitions
        with pytest.raises(SeriatimError):
            await topics.create("t", 3, SETTINGS, 0.5)
    assert topic_in(store).state == records_pb2.TOPIC_STATE_CREATING
    assert 0 < len(chains_in(store)) < 3
    async with Controller(store) as topics:
        await topics.delete("t")
        with pytest.raises(UnknownTopicError):
            await topics.delete("t")
        assert chains_in(store) == {}
        assert KEYS.topic("t") not in store.items
        assert len(store.under(KEYS.tombstones)) == 3
        assert len((await topics.create("t", 1, SETTINGS, 5)).partition_ids) == 1, "the name is free again"


async def test_a_topic_that_is_deleted_while_it_is_made_leaves_no_partition_behind() -> None:
    store = MemoryStore()
    controller = Controller(store)
    async with controller as topics:
        controller.partitions.hold.clear()
        making = asyncio.create_task(topics.create("t", 3, SETTINGS, 5))
        await until(lambda: KEYS.topic("t") in store.items)
        await topics.delete("t")
        with pytest.raises(NotServingError):
            await making
        controller.partitions.hold.set()
        await asyncio.gather(*controller.partitions._tasks)
        assert chains_in(store) == {}
        assert len(store.under(KEYS.tombstones)) == 3


@pytest.mark.parametrize("writes_max", [1, 2])
async def test_a_deletion_that_failed_half_way_is_gone_on_with(writes_max: int) -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        made = await topics.create("t", 1, SETTINGS, 5)
    async with Controller(store, writes_max=writes_max) as topics:
        with pytest.raises(CoordinatorUnavailableError):
            await topics.delete("t", incarnation=made.incarnation)
    assert topic_in(store).state == records_pb2.TOPIC_STATE_DELETING
    async with Controller(store) as topics:
        await topics.delete("t", incarnation=made.incarnation)
    assert KEYS.topic("t") not in store.items
    assert chains_in(store) == {}
    assert len(store.under(KEYS.tombstones)) == 1


async def test_only_the_incarnation_that_is_meant_is_deleted() -> None:
    store = MemoryStore()
    async with Controller(store) as topics:
        made = await topics.create("t", 1, SETTINGS, 5)
        with pytest.raises(PreconditionError, match="deleted and recreated"):
            await topics.delete("t", incarnation="0" * 32)
        assert topic_in(store) == made
        await topics.delete("t", incarnation=made.incarnation)
        assert chains_in(store) == {}


@pytest.mark.parametrize(("writes", "error"), [(2, CoordinatorUnavailableError("lost")), (1, asyncio.CancelledError())])
async def test_a_failed_growth_is_finished_by_the_same_controller(
    monkeypatch: pytest.MonkeyPatch, writes: int, error: BaseException
) -> None:
    """The ids are set aside, with 2 writes the partition is made too, and the topic is not ready."""
    monkeypatch.setattr(topics_of_controller, "AGAIN_S_MIN", 0.01)
    store = MemoryStore()
    controller = Controller(store)
    async with controller as topics:
        await topics.create("t", 1, SETTINGS, 5)
        duty = asyncio.ensure_future(topics.keep_finishing())
        controller.coordinator.error = error
        controller.coordinator.lose_after(writes)
        with pytest.raises(type(error)):
            await topics.update("t", None, 2, unchanged, 5)
        assert list(topic_in(store).growing_partition_ids) == [2]
        controller.coordinator.lose_after(1000)
        async with asyncio.timeout(60):
            while topic_in(store).growing_partition_ids:
                await store.changed.wait()
        duty.cancel()
    assert list(topic_in(store).partition_ids) == [1, 2]


async def test_a_failed_deletion_is_finished_by_the_same_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_of_controller, "AGAIN_S_MIN", 0.01)
    store = MemoryStore()
    controller = Controller(store)
    async with controller as topics:
        await topics.create("t", 1, SETTINGS, 5)
        duty = asyncio.ensure_future(topics.keep_finishing())
        controller.coordinator.lose_after(1)  # the topic is marked as deleted, and no more
        with pytest.raises(CoordinatorUnavailableError):
            await topics.delete("t")
        controller.coordinator.lose_after(1000)
        async with asyncio.timeout(60):
            while KEYS.topic("t") in store.items:
                await store.changed.wait()
        duty.cancel()
