"""Bodies of staged batches that another log adopts: written once, and there as long as either log needs them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from seriatim_api.batch import FLAG_STAGED
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId
from seriatim_broker.adapters.rocks import RocksSettings, RocksStorage
from seriatim_broker.adapters.rocks.extents import RUNS_APART_MAX, Extent
from seriatim_broker.adapters.rocks.floor import DELETE, extent_name
from seriatim_broker.adapters.rocks.keys import body_key
from seriatim_broker.core.values.log import Batch, DropSegment, PutBatch, PutSegment, TrimLog, Truncate, Write
from seriatim_broker.core.values.positions import Measure

from .build import SegmentBuilder, segment_record
from .contract import put, read_all
from .harness import MIB, RocksHarness
from .in_memory import InMemoryHarness
from .test_adapter_in_simulation import AdapterHarness

_SETTINGS = RocksSettings(
    extents=16,
    extent_size_bytes_max=MIB,
    extent_memtable_size_bytes=MIB,
    extent_copy_size_bytes_min=MIB // 2,
    head_cache_size_bytes_max=1,  # so that everything is read from the extents
    apart_size_bytes_min=50,
    reserve_bytes_min=0,
)

STAGE, ORDERS, OTHERS = 90, 1, 2


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RocksHarness]:
    """A storage with small extents."""
    harness = RocksHarness(tmp_path, _SETTINGS)
    yield harness
    await harness.close()


async def _logs(harness: RocksHarness | AdapterHarness, *partitions: int) -> list[SegmentBuilder]:
    builders = [SegmentBuilder(number, seed=number) for number in partitions]
    await put(harness, [PutSegment(builder.partition, segment_record()) for builder in builders])
    return builders


async def _look_at(storage: RocksStorage, staged: Batch) -> None:
    header = staged.header
    (found,) = await storage.read(
        PartitionId(header.partition), header.segment, header.base_index, header.end_index, MIB
    )
    assert found == staged


async def _staged_and_adopted(
    harness: RocksHarness, stage: SegmentBuilder, orders: SegmentBuilder, count: int = 3, size_bytes: int = 50_000
) -> None:
    """How many batches are staged, read and adopted."""
    writes = [stage.stage(size_bytes, 5) for _ in range(count)]
    await put(harness, writes)
    for write in writes:
        await _look_at(harness.storage, write.batch)
        await put(harness, [orders.adopt(write.batch)])


async def test_an_adopted_body_is_not_written_again_and_reads_as_any_other(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    await _staged_and_adopted(harness, stage, orders)
    assert harness.storage.adopted_bytes == 150_000
    for crash in (True, False):
        assert await read_all(harness, orders) == orders.batches
        assert await read_all(harness, stage) == stage.batches
        await harness.reopen(crash=crash)
    place = await harness.storage.find(orders.partition, 1, orders.index, Measure.INDEX, 7)
    assert place is not None
    assert (place.index, place.size_bytes) == (5, orders.batches[1].size_bytes)


async def test_what_was_not_read_here_is_written(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    write = stage.stage(50_000)
    await put(harness, [write])
    await put(harness, [orders.adopt(write.batch)])
    assert not harness.storage.adopted_bytes
    assert await read_all(harness, orders) == orders.batches


async def test_what_was_read_before_the_stage_log_was_cut_is_written(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    first = stage.stage(50_000)
    await put(harness, [first])
    await _look_at(harness.storage, first.batch)
    await put(harness, [Truncate(stage.partition, 1, 0, None)])
    stage.rewind(0)
    await put(harness, [stage.stage(50_000)])  # another one in its place
    await put(harness, [orders.adopt(first.batch)])
    assert not harness.storage.adopted_bytes
    assert await read_all(harness, orders) == orders.batches


async def test_another_body_is_never_adopted(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    one, other = stage.stage(50_000), stage.stage(50_000)
    await put(harness, [one, other])
    await _look_at(harness.storage, one.batch)
    write = orders.adopt(other.batch)
    await put(harness, [replace(write, adopts=one.batch.header)])
    await _look_at(harness.storage, one.batch)
    await put(harness, [replace(orders.adopt(one.batch), adopts=one.batch.header._replace(raw=bytes(192)))])
    assert not harness.storage.adopted_bytes
    assert await read_all(harness, orders) == orders.batches


async def test_a_body_stays_when_its_stage_log_goes_and_goes_with_the_log_that_adopted_it(
    harness: RocksHarness,
) -> None:
    stage, orders, others = await _logs(harness, STAGE, ORDERS, OTHERS)
    await _staged_and_adopted(harness, stage, orders, 30)
    await put(harness, [DropSegment(stage.partition, 1)])
    await put(harness, [others.put(50_000) for _ in range(30)])  # begins other extents
    await harness.storage.settle()
    assert await read_all(harness, orders) == orders.batches
    await harness.reopen(crash=False)
    await harness.storage.settle()
    assert await read_all(harness, orders) == orders.batches
    with_bodies = harness.storage.extent_count
    await put(harness, [DropSegment(orders.partition, 1)])
    await harness.storage.settle()
    assert harness.storage.extent_count < with_bodies
    assert await read_all(harness, others) == others.batches


async def test_the_few_bodies_that_are_left_in_an_extent_are_copied_out_of_it(harness: RocksHarness) -> None:
    stage, orders, others = await _logs(harness, STAGE, ORDERS, OTHERS)
    await put(harness, [stage.stage(50_000) for _ in range(20)])
    for batch in stage.batches[4:6]:
        await _look_at(harness.storage, batch)
        await put(harness, [orders.adopt(batch)])
    await put(harness, [others.put(50_000) for _ in range(20)])
    assert harness.storage.adopted_bytes == 100_000
    await put(harness, [TrimLog(stage.partition, 1, stage.index, sum(batch.size_bytes for batch in stage.batches))])
    await harness.storage.settle()
    assert harness.storage.extent_count == 2  # that of the others, and the one after it
    assert await read_all(harness, orders) == orders.batches
    await harness.reopen(crash=True)
    assert await read_all(harness, orders) == orders.batches


async def test_a_missing_body_is_damage(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    await _staged_and_adopted(harness, stage, orders)
    engine = harness.storage._engine  # as a disk would lose it
    engine.write([(DELETE, engine.family(extent_name(1)), body_key(stage.batches[1].header), None)])
    assert await harness.storage.read(orders.partition, 1, 0, 15, MIB) == orders.batches[:1]
    with pytest.raises(CorruptionError, match="its body is missing"):
        await harness.storage.read(orders.partition, 1, 5, 15, MIB)


async def test_two_batches_that_a_client_gave_the_same_names_keep_their_bodies(harness: RocksHarness) -> None:
    """The chunk, the numbers and the producer are the client's to choose, and so is a body with the same checksum."""
    one, other = await _logs(harness, STAGE, STAGE + 1)
    first = one.batch(flags=FLAG_STAGED, body=b"a" * 100)
    second = other.batch(flags=FLAG_STAGED, body=b"b" * 100)
    same = second.header._replace(body_crc=first.header.body_crc)
    assert body_key(first.header) != body_key(same)
    await put(
        harness, [PutBatch(one.partition, first, 0, one.windows), PutBatch(other.partition, second, 0, other.windows)]
    )
    assert await read_all(harness, one) == [first]
    assert await read_all(harness, other) == [second]


async def test_a_small_body_is_written_again(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    await _staged_and_adopted(harness, stage, orders, 3, _SETTINGS.apart_size_bytes_min - 1)
    assert not harness.storage.adopted_bytes
    assert await read_all(harness, orders) == orders.batches
    assert await read_all(harness, stage) == stage.batches


async def test_a_log_has_a_limited_number_of_runs_for_bodies_that_stand_apart(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    for _ in range(RUNS_APART_MAX + 10):
        await _staged_and_adopted(harness, stage, orders, 1, 100)
        await put(harness, [orders.put(100)])
    log = harness.storage._table.log(orders.partition, 1)
    assert log is not None
    assert len(log.runs) == 2 * RUNS_APART_MAX
    assert harness.storage.adopted_bytes == 100 * RUNS_APART_MAX
    assert await read_all(harness, orders) == orders.batches


async def test_what_is_copied_forward_hinders_no_adopting(harness: RocksHarness) -> None:
    """A log that was copied has a run for each slice."""
    stage, orders = await _logs(harness, STAGE, ORDERS)
    log = harness.storage._table.ensure_log(orders.partition, 1)
    writes = [orders.put(10) for _ in range(RUNS_APART_MAX + 1)]
    for write in writes:
        await put(harness, [write])
        log.runs = (*log.runs, log.runs[-1]._replace(start=write.batch.header.end_index, position=log.position))
    log.runs = log.runs[:-1]
    await _staged_and_adopted(harness, stage, orders, 1)
    assert harness.storage.adopted_bytes == 50_000


def _extent(harness: RocksHarness, number: int) -> Extent:
    return harness.storage._table.extents[number]


async def test_an_extent_counts_what_it_took_and_what_is_in_use(harness: RocksHarness) -> None:
    stage, orders, others = await _logs(harness, STAGE, ORDERS, OTHERS)
    await _staged_and_adopted(harness, stage, orders, 10, 10_000)
    one = _extent(harness, 1)
    assert 100_000 < one.size_bytes < 110_000, "each body once"
    size_bytes = sum(batch.size_bytes for batch in stage.batches)
    assert one.live_bytes == 2 * size_bytes, "of each log that needs it"
    await put(harness, [DropSegment(stage.partition, 1)])
    assert one.live_bytes == size_bytes
    harness.storage.rotate()
    await put(harness, [orders.put(50_000)])
    two = _extent(harness, 2)
    assert (one.live_bytes, two.live_bytes, two.size_bytes) == (size_bytes, 50_192, 50_192)
    await put(harness, [DropSegment(orders.partition, 1)])
    assert (one.live_bytes, two.live_bytes) == (0, 0)
    assert not others.batches


async def test_headers_in_another_extent_than_their_bodies_are_in_use(harness: RocksHarness) -> None:
    stage, orders = await _logs(harness, STAGE, ORDERS)
    await put(harness, [stage.stage(50_000) for _ in range(5)])
    harness.storage.rotate()
    for batch in stage.batches:
        await _look_at(harness.storage, batch)
        await put(harness, [orders.adopt(batch)])
    two = _extent(harness, 2)
    assert not two.is_sparse(_SETTINGS.extent_live_percent_min), "nothing would be won by copying it"


def _twins(logs: dict[int, SegmentBuilder]) -> dict[int, SegmentBuilder]:
    return {partition: log.twin() for partition, log in logs.items()}


class _Harness(AdapterHarness):
    def open(self) -> None:
        """What a start finds is compared with the model; sizes are not, which are estimated where much was cut."""
        InMemoryHarness.open(self)


class _Model:
    """What the logs should hold, as of each submit that may not be durable yet."""

    def __init__(self, harness: AdapterHarness, builders: list[SegmentBuilder]) -> None:
        self.harness = harness
        self.logs: dict[int, SegmentBuilder] = {builder.partition: builder for builder in builders}
        self._earlier: list[tuple[int, dict[int, SegmentBuilder]]] = []
        self._keep(harness.reported)

    def _keep(self, ticket: int) -> None:
        self._earlier.append((ticket, _twins(self.logs)))
        durable = [number for number, (at, _) in enumerate(self._earlier) if at <= self.harness.reported]
        del self._earlier[: durable[-1] if durable else 0]

    async def submit(self, *writes: Write, wait: bool = False) -> None:
        ticket = self.harness.storage.submit(writes)
        self._keep(ticket)
        if wait:
            await self.harness.durable(ticket)

    def staged(self) -> list[Batch]:
        return [batch for log in self.logs.values() if log.partition >= STAGE for batch in log.batches]

    async def is_there(self, logs: dict[int, SegmentBuilder]) -> bool:
        for log in logs.values():
            begin = log.batches[0].header.base_index if log.batches else log.index
            if await read_all(self.harness, log, begin) != log.batches:
                return False
        return True

    async def restart(self, *, crash: bool) -> None:
        """The process ends; what it had not flushed may be gone, from some submit on."""
        await self.harness.reopen(crash=crash)
        for ticket, logs in reversed(self._earlier):
            if await self.is_there(logs):
                self.logs = logs
                self._earlier = [(0, _twins(logs))]
                return
            assert crash, f"what was submitted under {ticket} is gone"
        raise AssertionError("what was durable is gone")


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_to_either_log_both_keep_what_they_have(seed: int) -> None:
    """Stage, adopt, append, trim, cut, drop, begin again, crash: all that is there reads as it was written."""
    rng = Random(seed)
    harness = _Harness()
    model = _Model(harness, await _logs(harness, STAGE, STAGE + 1, ORDERS, OTHERS))
    adopted = 0
    for _ in range(120):
        log = model.logs[rng.choice(list(model.logs))]
        what = rng.random()
        if what < 0.55:
            writes: list[Write] = []
            for _ in range(rng.randint(1, 4)):
                staged = rng.choice(model.staged() or [None])
                if log.partition >= STAGE:
                    writes.append(log.stage(rng.randint(1, 900), rng.randint(1, 3)))
                elif staged is not None and rng.random() < 0.8:
                    if rng.random() < 0.8:
                        await _look_at(harness.storage.rocks, staged)
                    writes.append(log.adopt(staged))
                else:
                    writes.append(log.put(rng.randint(1, 900)))
            await model.submit(*writes, wait=rng.random() < 0.4)
        elif what < 0.65 and len(log.batches) > 1:
            begin = log.trim(rng.randrange(1, len(log.batches)))
            record = replace(segment_record(), begin=begin)
            await model.submit(
                PutSegment(log.partition, record), TrimLog(log.partition, 1, begin.first, begin.size_bytes)
            )
        elif what < 0.72 and len(log.batches) > 1:
            length = rng.choice(log.batches[1:]).header.base_index
            log.rewind(length)
            await model.submit(Truncate(log.partition, 1, length, ()))
        elif what < 0.77:
            model.logs[log.partition] = SegmentBuilder(log.partition, seed=rng.randrange(1 << 30))
            await model.submit(DropSegment(log.partition, 1), PutSegment(log.partition, segment_record()))
        elif what < 0.85:
            await harness.storage.rocks.settle()
        elif what < 0.92:
            adopted += harness.storage.rocks.adopted_bytes
            await model.restart(crash=rng.random() < 0.8)
        assert await model.is_there(model.logs)
    adopted += harness.storage.rocks.adopted_bytes
    assert adopted, "nothing was adopted"
    await model.submit(*(DropSegment(log.partition, 1) for log in model.logs.values()))
    await harness.storage.rocks.settle()
    assert harness.storage.rocks.extent_count <= 1, "nothing is needed any more"
