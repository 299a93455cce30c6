"""Reads of single messages: a body that cannot be read is named, and spoils no other message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.batch import FLAG_CONTROL
from seriatim_api.errors import UnreadableBodyError
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.keyed import KeyColumn
from seriatim_broker.core.values.log import Batch
from seriatim_broker.interfaces.bodies import OpenedBody
from seriatim_broker.runtime.driver import keyed_reads, retry_cache
from seriatim_broker.runtime.driver.keyed_reads import KeyedReads
from seriatim_broker.testing.simulated_bodies import SimulatedBodies, messages_in
from seriatim_broker.testing.virtual_time import in_virtual_time

P = PartitionId(1)
MIB = 1 << 20


class SomeUnreadable(SimulatedBodies):
    """Bodies that begin with these messages cannot be read."""

    def __init__(self, *bad: bytes) -> None:
        self._bad = bad

    def open(self, batch: Batch) -> OpenedBody:
        """The numbers of the messages."""
        if batch.body in self._bad:
            raise UnreadableBodyError("no record batch")
        return super().open(batch)


class Disk:
    """It gives the batch with an index."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self.indexes: list[int] = []

    @property
    def reads(self) -> int:
        """How often it was read."""
        return len(self.indexes)

    async def read(self, _partition: PartitionId, _no: int, index: int, *_: Any, **__: Any) -> list[Batch]:
        self.indexes.append(index)
        return [batch for batch in self._batches if batch.header.base_index <= index < batch.header.end_index]


def batch_at(base: int, count: int) -> Batch:
    """A batch of segment 1, whose messages have the numbers of their indexes."""
    header = SimpleNamespace(segment=1, base_index=base, end_index=base + count, message_count=count, flags=0)
    return cast(Batch, SimpleNamespace(header=header, body=base.to_bytes(8, "big"), size_bytes=100))


def test_the_messages_of_an_unreadable_body_are_named() -> None:
    batches = [batch_at(0, 2), batch_at(2, 3), batch_at(5, 1)]
    disk = Disk(batches)
    reads = KeyedReads(cast(Any, disk), SomeUnreadable(batches[1].body))
    offsets = tuple(make_offset(1, index) for index in (0, 2, 4, 5))
    answer = asyncio.run(reads.rows(fx.ReadRows(1, P, offsets, MIB)))
    assert (answer.body, answer.unreadable) == (None, (offsets[1], offsets[2]))
    assert disk.reads == 3  # the unreadable batch once
    answer = asyncio.run(reads.rows(fx.ReadRows(2, P, (offsets[0], offsets[3]), MIB)))
    assert answer.body is not None
    assert messages_in(answer.body) == [0, 5]
    assert answer.unreadable == ()


def test_the_body_of_a_control_batch_is_not_read_for_its_keys() -> None:
    batch = batch_at(0, 1)
    batch.header.flags = FLAG_CONTROL  # type: ignore[misc]
    reads = KeyedReads(cast(Any, Disk([batch])), SomeUnreadable(batch.body))
    assert asyncio.run(reads.keys(fx.ReadKeys(1, P, 1, 0, 1, MIB))).columns == (KeyColumn(batch.header, None),)


def test_messages_come_in_the_order_in_which_they_are_asked_for() -> None:
    reads = KeyedReads(cast(Any, Disk([batch_at(0, 4), batch_at(4, 3), batch_at(7, 9)])), SimulatedBodies())
    for indexes in ([1, 2, 3, 4, 5, 6, 7, 8], [6, 7, 0, 1, 15, 3, 4, 2], [5], [2, 1, 0]):
        answer = asyncio.run(reads.rows(fx.ReadRows(1, P, tuple(make_offset(1, index) for index in indexes), MIB)))
        assert answer.body is not None
        assert messages_in(answer.body) == indexes


BIG = [batch_at(base, 10) for base in range(0, 100, 10)]
"""Of 100 bytes each."""

OFFSETS = tuple(make_offset(1, index) for index in range(100))


def kept(reads: KeyedReads, index: int, delay_ms: int = 0) -> None:
    """A consumer failed on a message."""
    reads.keep(fx.KeepMessage(P, OFFSETS[index], delay_ms))


async def numbers(reads: KeyedReads, *indexes: int) -> list[int]:
    """The messages of a read."""
    answer = await reads.rows(fx.ReadRows(1, P, tuple(OFFSETS[index] for index in indexes), MIB))
    assert answer.body is not None
    return messages_in(answer.body)


def small(disk: Disk, batches_max: int = 2, retry_cache_bytes_max: int = 10_000, is_needed: bool = True) -> KeyedReads:
    """Reads whose cache has room for this many batches."""
    return KeyedReads(
        cast(Any, disk), SimulatedBodies(), 100 * batches_max, retry_cache_bytes_max, lambda _partition: is_needed
    )


def test_a_message_that_failed_is_not_read_from_the_disk_again() -> None:
    async def go() -> None:
        disk = Disk(BIG)
        reads = small(disk)
        await numbers(reads, 5)
        kept(reads, 5)
        await numbers(reads, 15, 25, 35)  # the batch of the first one is not in memory any more
        count = disk.reads
        assert await numbers(reads, 36, 5, 37) == [36, 5, 37]
        kept(reads, 5)  # it fails again
        assert await numbers(reads, 5) == [5]
        assert disk.reads == count
        assert await numbers(reads, 6) == [6]
        assert disk.reads == count + 1, "only the message is kept, and not its batch"
        reads.retry_cache.close()

    asyncio.run(go())


def test_a_message_whose_batch_was_gone_when_it_failed_is_read_once() -> None:
    async def go() -> None:
        disk = Disk(BIG)
        reads = small(disk)
        kept(reads, 5)  # its handler took long
        assert disk.reads == 0
        for _ in range(3):
            assert await numbers(reads, 5) == [5]
            await numbers(reads, 15, 25, 35)
        assert disk.indexes.count(5) == 1
        reads.retry_cache.close()

    asyncio.run(go())


def test_messages_that_are_not_in_memory_are_read_batch_by_batch_and_come_in_the_order_of_the_read() -> None:
    async def go() -> None:
        disk = Disk(BIG)
        reads = small(disk)
        wanted = [5, 15, 25, 35, 6, 16, 26, 36, 37, 38, 7]
        assert await numbers(reads, *wanted) == wanted
        assert disk.reads == 4, "each batch once, although two are in memory at once"
        assert await numbers(reads, 36, 5, 37, 39, 95) == [36, 5, 37, 39, 95]

    asyncio.run(go())


def test_a_read_of_many_batches_does_not_hold_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_reads, "HELD_BYTES_MAX", 250)
    joined: list[int] = []

    class Watched(SimulatedBodies):
        def join(self, parts: Sequence[tuple[OpenedBody, range]]) -> bytes:
            joined.append(sum(len(body.rows) for body, _ in parts))
            return super().join(parts)

    reads = KeyedReads(cast(Any, Disk(BIG)), Watched(), 100)
    wanted = [95, 5, 15, 25, 26, 35, 6]
    assert asyncio.run(numbers(reads, *wanted)) == wanted
    # Two batches of 10 are held, and one or two messages of each of the others. The last join has a part for each run.
    assert joined[:-1] == [10, 10, 10]
    assert joined[-1] == sum([1, 10, 10, 2, 1, 10])


@pytest.mark.parametrize("taken_max", [24, 1 << 20])
def test_a_read_gives_the_first_messages_that_fit(monkeypatch: pytest.MonkeyPatch, taken_max: int) -> None:
    """A message has 8 bytes. Also if more must be read than may be in memory, the first ones come."""
    monkeypatch.setattr(keyed_reads, "TAKEN_BYTES_MAX", taken_max)

    async def go() -> None:
        reads = small(Disk(BIG))
        wanted = [95, 5, 6, 7, 25, 26, 35, 36, 8, 9]
        for bytes_max, count in ((0, 1), (8, 1), (15, 1), (16, 2), (24, 3), (39, 4)):
            for offsets in (wanted, wanted[::-1]):
                effect = fx.ReadRows(1, P, tuple(OFFSETS[index] for index in offsets), bytes_max)
                answer = await reads.rows(effect)
                assert answer.body is not None
                assert answer.count is not None
                assert messages_in(answer.body) == offsets[: answer.count]
                assert answer.count == count if taken_max > 24 else 1 <= answer.count <= count
        reads.retry_cache.close()

    asyncio.run(go())


def test_a_read_of_messages_that_fit_in_memory_reads_no_others() -> None:
    async def go() -> None:
        disk = Disk(BIG)
        reads = small(disk)
        await numbers(reads, 5)
        answer = await reads.rows(fx.ReadRows(1, P, (OFFSETS[5], OFFSETS[6], OFFSETS[7], OFFSETS[55]), 16))
        assert (answer.count, disk.reads) == (2, 1)

    asyncio.run(go())


def test_a_dead_letter_is_made_of_a_message_that_failed() -> None:
    async def go() -> None:
        disk = Disk(BIG)
        reads = small(disk)
        await numbers(reads, 5)
        kept(reads, 5)
        await numbers(reads, 15, 25)
        count = disk.reads
        letter = await reads.dead_letter(fx.ReadDeadLetter(2, P, OFFSETS[5], cast(Any, None)))
        assert (letter.row.body if letter.row else None, disk.reads) == ((5).to_bytes(8, "big"), count)
        letter = await reads.dead_letter(fx.ReadDeadLetter(3, P, OFFSETS[6], cast(Any, None)))
        assert (letter.row.body if letter.row else None, disk.reads) == ((6).to_bytes(8, "big"), count + 1)
        reads.retry_cache.close()

    asyncio.run(go())


@pytest.mark.parametrize("bytes_max", [0, 300, 1_000])
def test_the_memory_for_messages_that_failed_is_limited(bytes_max: int) -> None:
    async def go() -> None:
        disk = Disk(BIG)
        reads = small(disk, retry_cache_bytes_max=bytes_max)
        for index in range(0, 100, 10):
            await numbers(reads, index)
            kept(reads, index)
            assert reads.retry_cache.size_bytes <= bytes_max
        assert len(reads.retry_cache) == bytes_max // (8 + retry_cache.OVERHEAD_BYTES)
        assert await numbers(reads, *range(0, 100, 10)) == list(range(0, 100, 10))
        reads.retry_cache.close()

    asyncio.run(go())


def test_what_was_not_used_for_longest_goes_first() -> None:
    async def go() -> None:
        reads = small(Disk(BIG), retry_cache_bytes_max=2 * (8 + retry_cache.OVERHEAD_BYTES))
        for index in (5, 15):
            await numbers(reads, index)
            kept(reads, index)
        await numbers(reads, 5)
        await numbers(reads, 25)
        kept(reads, 25)
        assert [reads.retry_cache.find(P, OFFSETS[index]) is not None for index in (5, 15, 25)] == [True, False, True]
        reads.retry_cache.close()

    asyncio.run(go())


def test_messages_that_do_not_come_again_are_let_go() -> None:
    async def go() -> None:
        reads = small(Disk(BIG))
        for index, delay_s in ((5, 0), (15, 200), (25, 1_000)):
            await numbers(reads, index)
            kept(reads, index, 1_000 * delay_s)
        cache = reads.retry_cache
        assert [cache.find(P, OFFSETS[index]) is not None for index in (5, 15, 25)] == [True, True, False]
        await asyncio.sleep(retry_cache.GRACE_S + 2 * retry_cache.SWEEP_S)
        assert len(cache) == 1, "the first one was acknowledged meanwhile, as far as the cache knows"
        await asyncio.sleep(200)
        assert (len(cache), cache.size_bytes) == (0, 0)

    in_virtual_time(go())


def test_messages_of_partitions_that_are_not_served_any_more_are_let_go() -> None:
    async def go() -> None:
        reads = small(Disk(BIG), is_needed=False)
        await numbers(reads, 5)
        kept(reads, 5, 300_000)
        assert len(reads.retry_cache) == 1
        await asyncio.sleep(2 * retry_cache.SWEEP_S)
        assert (len(reads.retry_cache), reads.retry_cache.size_bytes) == (0, 0)

    in_virtual_time(go())
