"""Real processes, killed while they write: what was reported durable is there, and nothing is half there."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
from seriatim_api.ids import PartitionId
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.core.values.log import RecoveredPartition
from seriatim_broker.core.values.producers import newest_of

from .build import SegmentBuilder

_SCRIPT = Path(__file__).with_name("writing_process.py")
_DEADLINE_S = 30.0


async def _write_until(directory: Path, lines_wanted: int) -> dict[int, int]:
    """Let a process write until so much was durable, kill it; returns the durable length of each partition."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_SCRIPT), str(directory), stdout=asyncio.subprocess.PIPE
    )
    durable: dict[int, int] = {}
    try:
        async with asyncio.timeout(_DEADLINE_S):
            status = await _follow(process, durable, lines_wanted)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert status == -9
    return durable


async def _follow(process: asyncio.subprocess.Process, durable: dict[int, int], lines_wanted: int) -> int:
    assert process.stdout is not None
    lines = 0
    while line := await process.stdout.readline():
        words = line.decode().split()
        if words[0] == "durable" and line.endswith(b"\n"):
            durable[int(words[1])] = int(words[2])
        lines += 1
        if lines == lines_wanted:
            process.kill()
    return await process.wait()


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_durable_survives_a_kill(tmp_path: Path, seed: int) -> None:
    durable = await _write_until(tmp_path, random.Random(seed).randrange(200, 900))
    storage = RocksStorage.open(tmp_path, RocksSettings(head_cache_size_bytes_max=1), crc32c)
    recovered: dict[int, RecoveredPartition] = {found.partition: found for found in storage.recover()}
    for partition, length in durable.items():
        (segment,) = recovered[partition].segments
        assert segment.tail >= length
        index, checksum = 0, 0
        while index < segment.tail:
            batches = await storage.read(PartitionId(partition), 1, index, segment.tail, 1 << 20)
            for batch in batches:
                assert (batch.header.base_index, batch.header.previous_checksum) == (index, checksum)
                index, checksum = batch.header.end_index, batch.header.checksum
        assert (index, checksum) == (segment.tail, segment.tail_checksum)
        ((producer, window),) = segment.windows
        assert producer == SegmentBuilder(1).producer
        assert newest_of(window).last_sequence + 1 == segment.tail
    await storage.close()
