"""What 10,000 sealed segments of a partition cost a broker that starts: recovered from the disk, and the chain read.

Measured is what Python allocates: the storage's tables, the core, the chain and what the coordinator's side keeps of
it.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values.chain import Chain, Opening, create
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.effects import Effect, Persist
from seriatim_broker.core.values.events import ChainRead, Moment, Persisted
from seriatim_broker.core.values.log import LocalSegment, PutBatch, PutPreparation, PutSegment, Write
from seriatim_broker.core.values.segment import Segment, SegmentState
from seriatim_broker.runtime.coordinator.chain_layout import ChainArchive
from seriatim_broker.runtime.coordinator.records import page_numbers, parse_record

from .build import MEMBERS, SegmentBuilder, preparation
from .harness import RocksHarness
from .test_space import _SETTINGS

P = PartitionId(1)
SEGMENT_COUNT = 10_000
SEGMENT_SIZE_BYTES_MAX = 1_160
"""1,120 were seen, whether or not the version before had left a producer table with each segment."""

OTHERS = (MemberId("g1-0", "c" * 32), MemberId("g1-1", "d" * 32))


def _chain(builders: list[SegmentBuilder]) -> Chain:
    opening = Opening(b"a" * 16, "g0", MEMBERS, 1, False)
    first = create(P, "orders", 0, True, ("g0", "g1"), opening, 1_700_000_000_000)
    segments: list[Segment] = []
    for at, builder in enumerate(builders):
        segments.append(
            replace(
                first.open_segment, no=builder.segment, switch_attempt=_attempt(builder.segment), base=300 + at,
                state=SegmentState.SEALED, sealed_len=1, sealed_checksum=builder.checksum, sealed_at_ms=first.epoch,
                server=MEMBERS[at % 2], server_epoch=at + 1, opened_at_ms=1_700_000_000_000 + at, sealed_bytes=292,
            )
        )  # fmt: skip
    last = replace(first.open_segment, no=len(builders) + 1, members=OTHERS, eligible=OTHERS, server=OTHERS[0])
    return replace(first, epoch=2 * len(builders), segments=(*segments, replace(last, base=300 + len(builders))))


def _attempt(no: int) -> bytes:
    return no.to_bytes(16, "big")


async def _fill(harness: RocksHarness, with_tables: bool) -> Chain:
    """Segments as a member's disk has them, those of the version before with a producer table each."""
    builders: list[SegmentBuilder] = []
    ticket = 0
    for start in range(1, SEGMENT_COUNT + 1, 500):
        writes: list[Write] = []
        for no in range(start, start + 500):
            builder = SegmentBuilder(P, no)
            batch = builder.batch()
            record = LocalSegment(no, _attempt(no), MEMBERS, True, False, 1, True, 1, builder.checksum)
            writes += [PutSegment(P, record), PutBatch(P, batch, 1, builder.windows if with_tables else ())]
            if with_tables:
                writes.append(PutPreparation(P, preparation(no, attempt=_attempt(no))))
            builders.append(builder)
        ticket = harness.storage.submit(writes)
    await harness.durable(ticket)
    return _chain(builders)


def _values(chain: Chain) -> tuple[bytes, list[bytes]]:
    """The chain as the coordinator has it."""
    archive = ChainArchive()
    pages: dict[int, bytes] = {}
    record = b""
    for _ in range(SEGMENT_COUNT // 1000 + 1):  # in steps that fit into a transaction
        layout = archive.lay_out(chain)
        archive.written(layout, 1)
        pages.update((number, value) for number, value in layout.pages if value is not None)
        record = layout.record
    return record, [pages[number] for number in page_numbers(parse_record(record))]


async def _persist(harness: RocksHarness, core: BrokerCore, effects: list[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Persist):
            await harness.durable(harness.storage.submit(effect.writes))
            core.step(Persisted(effect.token), Moment(1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("with_tables", [False, True])
async def test_a_sealed_segment_is_small_to_a_broker_that_starts(tmp_path: Path, with_tables: bool) -> None:
    harness = RocksHarness(tmp_path, _SETTINGS)
    record, pages = _values(await _fill(harness, with_tables))
    await harness.storage.close()
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        harness._open()
        core = BrokerCore(BrokerConfig(), MEMBERS[0], 2, b"n" * 12, crc32c, harness.recovered.values())
        harness.recovered.clear()
        archive = ChainArchive()
        now = Moment(1, 1)
        await _persist(harness, core, core.start(now))
        await _persist(harness, core, core.step(ChainRead(P, archive.parse(record, 1, pages), 1, False), now))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    partition = core.partitions[P]
    assert len(partition.logs) == SEGMENT_COUNT
    assert all(log.table is None for no, log in partition.logs.items() if no < SEGMENT_COUNT)
    assert (after - before) / SEGMENT_COUNT < SEGMENT_SIZE_BYTES_MAX
    await harness.close()
