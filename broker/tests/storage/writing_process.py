"""A process that writes until it is killed; its output says what was durable. Run by the crash and fault tests.

    python writing_process.py DIRECTORY

Each line is `durable <partition> <length>`, printed when the storage reported it; `ready` comes first.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.core.values.log import PutSegment

from broker.tests.storage.build import SegmentBuilder, segment_record

_PARTITIONS = 5
_TURNS_MAX = 1_000_000


async def main(directory: Path) -> None:
    """Append to five partitions as fast as the disk takes it."""
    settings = RocksSettings(
        extents=16, extent_size_bytes_max=1 << 20, extent_memtable_size_bytes=1 << 20, reserve_bytes_min=0
    )
    storage = RocksStorage.open(directory, settings, crc32c)
    list(storage.recover())
    lengths: dict[int, list[int]] = {}
    reported = asyncio.Event()

    def report(ticket: int) -> None:
        for known in [known for known in lengths if known <= ticket]:
            partition, length = lengths.pop(known)
            sys.stdout.write(f"durable {partition} {length}\n")
        sys.stdout.flush()
        reported.set()

    storage.on_durable(report)
    builders = [SegmentBuilder(partition, seed=partition) for partition in range(1, _PARTITIONS + 1)]
    for builder in builders:
        storage.submit([PutSegment(builder.partition, segment_record())])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for turn in range(_TURNS_MAX):
        builder = builders[turn % _PARTITIONS]
        ticket = storage.submit([builder.put(2000 + turn % 7 * 1000, count=1 + turn % 3, commit=builder.index)])
        lengths[ticket] = [builder.partition, builder.index]
        if len(lengths) > 20:
            reported.clear()
            await reported.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
