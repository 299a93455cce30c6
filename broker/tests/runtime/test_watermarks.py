"""Watermarks: what a broker notes of its disk, and which disks a start refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from seriatim_api.errors import OldDiskError, StorageError
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import member_to_record
from seriatim_broker.runtime.membership.registration import KnownDisk, Place, join, mark_clean
from seriatim_broker.runtime.membership.watermarks import Watermarks, sequence_of
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_membership import NOW_MS, FakeDisk

pytestmark = pytest.mark.asyncio

KEYS = Keys("c")
ME = MemberId("g0-0", "a" * 32)


class Bench:
    """A broker in run 3, its disk, and a coordinator that has its record."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.disk = 0
        self.marks = self.of_run(3)

    def of_run(self, run: int) -> Watermarks:
        return Watermarks(self.coordinator, KEYS, RunId(ME, run), lambda: self.disk, SystemClock())

    async def write_member(self, run: int = 3, incarnation: str = ME.incarnation) -> None:
        record = records_pb2.MemberRecord(member=member_to_record(MemberId(ME.broker, incarnation)), run=run)
        await self.coordinator.txn((), [Put(KEYS.member(ME.broker), record.SerializeToString())])

    async def noted(self, member: MemberId = ME) -> int:
        return sequence_of(await self.coordinator.get(KEYS.watermark(ME.broker)), member)

    async def revision(self) -> int:
        return (await self.coordinator.txn((), ())).revision


async def test_a_disk_that_was_written_to_is_noted_and_an_idle_one_is_not() -> None:
    bench = Bench()
    await bench.write_member()
    await bench.marks.note()
    assert await bench.noted() == 0, "nothing was written"
    bench.disk = 7
    await bench.marks.note()
    assert await bench.noted() == 7
    before = await bench.revision()
    await bench.marks.note()
    assert await bench.revision() == before


async def test_a_watermark_never_falls() -> None:
    bench = Bench()
    await bench.write_member()
    bench.disk = 7
    await bench.marks.note()
    bench.disk = 5
    await bench.of_run(3).note()
    assert await bench.noted() == 7


async def test_a_run_that_is_not_the_newest_notes_nothing() -> None:
    """Rule `watermark-of-this-run`: a copy of the directory has taken the slot."""
    bench = Bench()
    await bench.write_member(run=4)
    bench.disk = 9
    await bench.marks.note()
    assert await bench.noted() == 0


async def test_a_run_that_is_overtaken_while_it_reads_notes_nothing() -> None:
    bench = Bench()
    await bench.write_member()
    txn = bench.coordinator.txn

    async def overtaken(*arguments: object, **options: object) -> object:
        answer = await txn(*arguments, **options)  # type: ignore[arg-type]
        bench.coordinator.txn = txn  # type: ignore[method-assign]
        await bench.write_member(run=4)
        return answer

    bench.coordinator.txn = overtaken  # type: ignore[method-assign, assignment]
    bench.disk = 9
    await bench.marks.note()
    assert await bench.noted() == 0


async def test_the_disk_of_another_incarnation_has_no_watermark() -> None:
    bench = Bench()
    await bench.write_member()
    bench.disk = 9
    await bench.marks.note()
    assert await bench.noted(MemberId(ME.broker, "b" * 32)) == 0


# ---- starts ---------------------------------------------------------------------------------------------


async def start(bench: Bench, disk: FakeDisk) -> int:
    def open_disk(_cluster_id: str, _known: KnownDisk | None, _may_replace: bool) -> FakeDisk:
        return disk

    place = Place("c", "g0", 0, "127.0.0.1:7000")
    return (await join(bench.coordinator, KEYS, place, open_disk, "boot", SystemClock(), deadline_s=10)).run


async def test_a_disk_below_its_watermark_is_refused_and_not_touched() -> None:
    bench = Bench()
    disk = FakeDisk(ME)
    run = await start(bench, disk)
    await mark_clean(bench.coordinator, KEYS, RunId(ME, run), 40, NOW_MS)
    copy = FakeDisk(ME, run=run, sequence=39)
    before = await bench.revision()
    with pytest.raises(OldDiskError, match=r"its log ends at 39, and this disk was durable up to 40") as refused:
        await start(bench, copy)
    assert (refused.value.number, copy.run, await bench.revision()) == (702, run, before)
    disk.sequence = 40
    assert await start(bench, disk) == run + 1, "the true disk is taken afterwards"


async def test_a_coordinator_that_is_older_than_the_disk_changes_nothing() -> None:
    bench = Bench()
    disk = FakeDisk(ME)
    run = await start(bench, disk)
    await mark_clean(bench.coordinator, KEYS, RunId(ME, run), 40, NOW_MS)
    disk.sequence = 90
    assert await start(bench, disk) == run + 1


async def test_a_new_disk_in_the_slot_has_nothing_to_reach() -> None:
    bench = Bench()
    run = await start(bench, FakeDisk(ME))
    await mark_clean(bench.coordinator, KEYS, RunId(ME, run), 40, NOW_MS)
    assert await start(bench, FakeDisk(MemberId(ME.broker, "b" * 32))) == 1


async def test_a_disk_that_cannot_be_read_begins_no_run() -> None:
    bench = Bench()
    disk = FakeDisk(ME)
    run = await start(bench, disk)
    await mark_clean(bench.coordinator, KEYS, RunId(ME, run), 40, NOW_MS)

    def fails(_enough: int) -> int:
        raise StorageError("EIO")

    read: Callable[[int], int] = fails
    disk.log_end = read  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="EIO"):
        await start(bench, disk)
    assert disk.run == run


async def test_the_duty_goes_on_without_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.write_member()
    monkeypatch.setattr("seriatim_broker.runtime.membership.watermarks.NOTE_S", 0.0)
    monkeypatch.setattr("seriatim_broker.runtime.membership.watermarks.NOTE_DEADLINE_S", 0.0)
    store, asked, noted = bench.coordinator.store, 0, asyncio.Event()
    answer = store.answer
    store.on_write(lambda _batch: noted.set())

    async def counted(deadline_s: float | None) -> None:
        nonlocal asked
        asked += 1
        store.is_away = asked < 3
        await answer(deadline_s)

    monkeypatch.setattr(store, "answer", counted)
    bench.disk = 7
    duty = asyncio.create_task(bench.marks.run())
    try:
        async with asyncio.timeout(60):
            await noted.wait()
        assert KEYS.watermark(ME.broker) in store.items
        assert asked >= 3, "it failed before"
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
