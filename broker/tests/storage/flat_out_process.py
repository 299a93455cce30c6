"""A process that writes flat out for some seconds and watches how long its event loop stands still.

    python flat_out_process.py DIRECTORY SECONDS

`ready` is printed when the storage is open: the time to make the disk slow; a line on standard input begins the
writing. The last line is JSON: the time is cut into `WINDOWS` windows, `writes_ms` is the longest write of the engine
in each, `lags_ms` the longest time between two beats of the loop, less the time for which the machine's scheduler kept
this process' Python threads waiting for a processor (others may be at work on it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.adapters.rocks import storage as storage_module
from seriatim_broker.adapters.rocks.engine import Engine, Op
from seriatim_broker.core.log import CursorState, PutCursor, PutSegment

from storage.build import SegmentBuilder, segment_record

_BEAT_S = 0.001
_BODY_BYTES = 100_000
_MIB = 1 << 20
WINDOWS = 6

SETTINGS = RocksSettings(
    extent_size_bytes_max=1024 * _MIB,
    spare_extents=8,
    extent_memtable_size_bytes=_MIB,
    meta_memtable_size_bytes=64 << 10,
    memtables_size_bytes_max=24 * _MIB,
    level0_files_compaction=1,
    memtables_count_max=2,
    wal_size_bytes_max=16 * _MIB,
    queued_size_bytes_max=8 * _MIB,
    reserve_bytes_min=0,
)
"""Small memtables and low triggers: flushes, compactions, new logs and refusals all the time."""


class Windows:
    """The greatest value in each window of time."""

    def __init__(self, seconds: float) -> None:
        self._begin = time.monotonic()
        self._seconds = seconds / WINDOWS
        self.values = [0.0] * WINDOWS

    def add(self, value: float) -> None:
        """Take a value up now."""
        at = int((time.monotonic() - self._begin) / self._seconds)
        if at < WINDOWS:
            self.values[at] = max(self.values[at], round(value, 2))


class TimedEngine(Engine):
    """Measures its writes."""

    windows: Windows | None = None

    def write(self, ops: Iterable[Op]) -> int:
        """Write, with a look at the clock before and after."""
        begin, waited = time.monotonic(), _waited_for_processor_ns()
        try:
            return super().write(ops)
        finally:
            took_ms = (time.monotonic() - begin) * 1000 - (_waited_for_processor_ns() - waited) / 1e6
            if TimedEngine.windows is not None:
                TimedEngine.windows.add(took_ms)


class Heart:
    """Beats on the loop and keeps the longest pauses."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._due = 0.0
        self._waited = 0

    def beat(self) -> None:
        """Look at the clock; ask for the next beat."""
        now, waited = time.monotonic(), _waited_for_processor_ns()
        if self._due:
            self._windows.add((now - self._due) * 1000 - (waited - self._waited) / 1e6)
        self._due, self._waited = now + _BEAT_S, waited
        asyncio.get_running_loop().call_later(_BEAT_S, self.beat)


def _waited_for_processor_ns() -> int:
    """How long the threads that may hold the interpreter lock were ready to run but had no processor."""
    total = 0
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):  # it has just ended
            total += int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[1])
    return total


async def main(directory: Path, seconds: float) -> None:
    """Write until the time is up, close, and print the figures."""
    vars(storage_module)["Engine"] = TimedEngine  # the same, with a watch
    storage = RocksStorage.open(directory, SETTINGS, crc32c)
    list(storage.recover())
    reported = asyncio.Event()
    storage.on_durable(lambda _ticket: reported.set())
    builders = [SegmentBuilder(partition, seed=partition) for partition in range(1, 21)]
    for builder in builders:
        storage.submit([PutSegment(builder.partition, segment_record())])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    writes, lags = Windows(seconds), Windows(seconds)
    TimedEngine.windows = writes
    Heart(lags).beat()
    until = time.monotonic() + seconds
    turns = saturated = 0
    while time.monotonic() < until:
        builder = builders[turns % len(builders)]
        cursor = CursorState(1, f"group-{turns % 50}", 1, builder.index, builder.index)
        storage.submit([builder.put(_BODY_BYTES), PutCursor(builder.partition, cursor)])
        builder.batches.clear()
        turns += 1
        if storage.is_saturated:
            saturated += 1
            reported.clear()
            await reported.wait()
        await asyncio.sleep(0)
    figures = {
        "writes_ms": writes.values,
        "lags_ms": lags.values,
        "mb": turns * _BODY_BYTES // 1_000_000,
        "saturated": saturated,
        "refusals": storage.refusals,
    }
    await storage.close()
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
