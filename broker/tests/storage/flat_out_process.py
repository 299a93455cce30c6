"""A process that writes flat out for some seconds and watches for how long its event loop stands still.

    python flat_out_process.py DIRECTORY SECONDS [FAULT FOUND_MS]

The process prints `ready` when the storage is open: then is the time to make the disk slow. A line on standard input
begins the writing. Everything happens at once: memtables fill, small column families are compacted, segments are
dropped, extents are copied forward, emptied and used again, and older messages are read. The last line is JSON:
`write_ms` is the longest write of the engine in the whole run, and `pause_ms` the longest time between two beats of the
loop. The other numbers say how often each expected thing happened.

Both times leave out what the machine causes, and not the storage:

* the time for which threads of this process were ready to run and waited for a processor (others are at work on it),
* the time that the hypervisor took from the machine. It reports, in steps of 10 ms, but not all. So if the thread did
  not once go to sleep, it waited for nothing, and only its processor time counts.

FAULT makes the storage do what it must not, to see that it is seen: see `FAULTS`. The writing ends then as soon as a
pause of FOUND_MS was seen (of a write as well, if the fault is in writes): it depends on the load of the
machine how soon a memtable is full and a write waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage, options
from seriatim_broker.adapters.rocks import storage as storage_module
from seriatim_broker.adapters.rocks.engine import Engine
from seriatim_broker.adapters.rocks.floor import Op
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT
from seriatim_broker.core.values.log import CursorState, DropSegment, PutCursor, PutSegment, Write

from broker.tests.storage.build import SegmentBuilder, segment_record

_BEAT_MS = 1.0
_LOOK_MS_MIN = 5.0
_BODY_BYTES = 100_000
_BATCHES_A_SEGMENT_MIN = 5
_NEVER_DROPPED = 4
_MIB = 1 << 20

SETTINGS = RocksSettings(
    extents=8,
    extent_size_bytes_max=4 * _MIB,
    extent_copy_size_bytes_min=_MIB,
    extent_memtable_size_bytes=_MIB,
    meta_memtable_size_bytes=64 << 10,
    memtables_size_bytes_max=24 * _MIB,
    level0_files_compaction=1,
    memtables_count_max=2,
    wal_size_bytes_max=16 * _MIB,
    queued_size_bytes_max=8 * _MIB,
    head_cache_size_bytes_max=2 * _MIB,
    reserve_bytes_min=0,
)
"""Small memtables, small extents and low triggers: flushes, compactions, new logs and refusals all the time."""


class Watch:
    """How long something held the event loop's thread, between two looks at the clocks."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._stolen = os.open("/proc/stat", os.O_RDONLY)

    def begin(self) -> None:
        """Look: from here on."""
        self._waited = self._waited_s()
        self._stolen_before = self._stolen_s()
        self._sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self._processor_time = time.thread_time()
        self._time = time.monotonic()

    def held_ms(self, *, sleeps: int = 0) -> float:
        """Look again; meanwhile the thread was meant to sleep `sleeps` times."""
        seconds = time.monotonic() - self._time
        if resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - self._sleeps <= sleeps:
            return (time.thread_time() - self._processor_time) * 1000
        if seconds * 1000 > _LOOK_MS_MIN:
            waited = self._waited_s()
            seconds -= sum(waited[thread] - self._waited[thread] for thread in waited.keys() & self._waited.keys())
            seconds -= self._stolen_s() - self._stolen_before
        return seconds * 1000

    def _waited_s(self) -> dict[int, float]:
        """How long each thread that may hold the interpreter lock was ready to run but had no processor."""
        waited = {}
        for thread in threading.enumerate():
            number = thread.native_id
            with contextlib.suppress(OSError, IndexError):  # it has just begun or ended
                assert number is not None
                if number not in self._files:
                    self._files[number] = os.open(f"/proc/self/task/{number}/schedstat", os.O_RDONLY)
                waited[number] = int(os.pread(self._files[number], 100, 0).split()[1]) / 1e9
        return waited

    def _stolen_s(self) -> float:
        """How long the hypervisor gave a processor of this machine to others."""
        return int(os.pread(self._stolen, 200, 0).split()[8]) / 100


class TimedEngine(Engine):
    """Measures its writes."""

    watch = Watch()
    write_ms = 0.0
    emptied = 0

    def write(self, ops: Iterable[Op]) -> int:
        """Write, with a look at the clocks before and after."""
        self.watch.begin()
        try:
            return self.write_by_fault(ops)
        finally:
            self.write_ms = max(self.write_ms, self.watch.held_ms())

    def write_by_fault(self, ops: Iterable[Op]) -> int:
        """Write."""
        return super().write(ops)

    def empty_extent(self, extent: int) -> bool:
        """Count."""
        self.emptied += 1
        return super().empty_extent(extent)


class Heart:
    """Beats on the loop and keeps the longest pause."""

    def __init__(self) -> None:
        self.pause_ms = 0.0
        self._watch = Watch()
        self._watch.begin()

    def beat(self) -> None:
        """Look at the clocks; ask for the next beat."""
        self.pause_ms = max(self.pause_ms, self._watch.held_ms(sleeps=1) - _BEAT_MS)
        self._watch.begin()
        asyncio.get_running_loop().call_later(_BEAT_MS / 1000, self.beat)


# ---- faults ---------------------------------------------------------------------------------------------


def wait_in_writes(engine: TimedEngine) -> None:
    """Without `no_slowdown` a write waits until there is room."""
    engine._write_options.no_slowdown = False


def flush_in_writes(engine: TimedEngine) -> None:
    """A write is flushed where it is made, on the loop."""
    write = engine.write_by_fault

    def write_and_flush(ops: Iterable[Op]) -> int:
        try:
            return write(ops)
        finally:
            engine._db.flush_wal(True)

    vars(engine)["write_by_fault"] = write_and_flush


def make_a_family(engine: TimedEngine) -> None:
    """A column family is made, in another thread but with the interpreter lock."""
    timer = threading.Timer(0.5, lambda: engine._db.create_column_family("another", options.raw()))
    timer.start()


FAULTS: dict[str, Callable[[TimedEngine], None]] = {
    "wait_in_writes": wait_in_writes,
    "flush_in_writes": flush_in_writes,
    "make_a_family": make_a_family,
}

# ---- the work -------------------------------------------------------------------------------------------


class Work:
    """Twenty partitions that are written to in turn; each drops its segment from time to time and begins the next."""

    def __init__(self, storage: RocksStorage, is_over: Callable[[], bool]) -> None:
        self._storage = storage
        self._is_over = is_over
        self._reported = asyncio.Event()
        self._builders = [SegmentBuilder(partition, seed=partition) for partition in range(1, 21)]
        self.batches = 0
        self.reads = 0
        storage.on_durable(lambda _ticket: self._reported.set())
        for builder in self._builders:
            storage.submit([PutSegment(builder.partition, segment_record())])

    async def write(self) -> None:
        """As fast as the storage takes it."""
        while not self._is_over():
            at = self.batches % len(self._builders)
            builder = self._builders[at]
            cursor = CursorState(
                builder.segment,
                f"group-{self.batches % 50}",
                1,
                builder.index,
                builder.index,
                settings=SETTINGS_DEFAULT,
            )
            writes: list[Write] = [builder.put(_BODY_BYTES), PutCursor(builder.partition, cursor)]
            builder.batches.clear()
            # The last partitions drop nothing: they are what is copied forward.
            if builder.index >= _BATCHES_A_SEGMENT_MIN + at // 2 and at < len(self._builders) - _NEVER_DROPPED:
                following = SegmentBuilder(builder.partition, builder.segment + 1, seed=self.batches)
                writes.append(DropSegment(builder.partition, builder.segment))
                writes.append(PutSegment(builder.partition, segment_record(following.segment)))
                self._builders[at] = following
            self._storage.submit(writes)
            self.batches += 1
            if self._storage.is_saturated:
                self._reported.clear()
                await self._reported.wait()
            await asyncio.sleep(0)

    async def read(self) -> None:
        """Somewhere after the head, again and again."""
        chance = random.Random(1)
        while not self._is_over():
            builder = chance.choice(self._builders)
            if builder.index:
                begin = chance.randrange(builder.index)
                found = await self._storage.read(builder.partition, builder.segment, begin, builder.index, _MIB)
                self.reads += bool(found)
            await asyncio.sleep(0.005)


async def main(directory: Path, seconds: float, fault: str | None, found_ms: float) -> None:
    """Work until the time is up, close, and print the figures."""
    vars(storage_module)["Engine"] = TimedEngine  # the same, with a watch
    storage = RocksStorage.open(directory, SETTINGS, crc32c)
    engine = storage._engine
    assert isinstance(engine, TimedEngine)
    list(storage.recover())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if fault is not None:
        FAULTS[fault](engine)
    heart = Heart()
    heart.beat()
    until = time.monotonic() + seconds

    def is_over() -> bool:
        in_writes = engine.write_ms if fault is not None and fault.endswith("in_writes") else found_ms
        is_found = fault is not None and min(heart.pause_ms, in_writes) >= found_ms
        return is_found or time.monotonic() >= until

    work = Work(storage, is_over)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work.write())
        tasks.create_task(work.read())
    figures = {
        "write_ms": round(engine.write_ms, 1),
        "pause_ms": round(heart.pause_ms, 1),
        "mb": work.batches * _BODY_BYTES // 1_000_000,
        "reads": work.reads,
        "emptied": engine.emptied,
        "refusals": storage.refusals,
    }
    await storage.close()
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    fault, found_ms = sys.argv[3:] or (None, "inf")
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), fault, float(found_ms)))
