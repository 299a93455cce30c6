"""Floors of staged data: raised first, and nothing is dropped that a decided publication names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from seriatim_api.errors import UnavailableError
from seriatim_api.ids import PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import STAGE_TOPIC, Manifest, ManifestPart, StagedBatch, StagedBatches
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.events import Trim
from seriatim_broker.core.values.writers import ManifestPlace, WriterRecord, WriterState
from seriatim_broker.interfaces.coordinator import Put, unchanged_under
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import writer_to_record
from seriatim_broker.runtime.duties import stage_floors
from seriatim_broker.runtime.duties.stage_floors import StageFloors
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_retention import Bench

pytestmark = pytest.mark.asyncio

KEYS = Keys("c")
STAGE = PartitionId(90)
INCARNATION = TopicIncarnation("ab" * 16)
PLACE = ManifestPlace(PartitionId(91), (make_offset(1, 500),), 80, 1, b"m" * 16)


class Stage:
    """A coordinator with one writer record, and a manifest that names one staged batch."""

    def __init__(self, at: int = make_offset(1, 100)) -> None:
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.floors = StageFloors(self.coordinator, KEYS)
        self.floors.on_read(self._read)
        self.is_readable = True
        batch = StagedBatch(STAGE, 2, at, b"c" * 16)
        self._manifest = Manifest(INCARNATION, (ManifestPart(3, 10, StagedBatches([batch])),))

    async def _read(self, place: ManifestPlace) -> Manifest:
        assert place == PLACE
        if not self.is_readable:
            raise UnavailableError("no broker has it")
        return self._manifest

    async def write(self, state: WriterState, writer: str = "nightly") -> None:
        """The writer's record."""
        record = WriterRecord(b"w" * 16, "orders", 1, "", state, 7, PLACE)
        put = Put(KEYS.writer(INCARNATION, writer), writer_to_record(record).SerializeToString())
        await self.coordinator.txn((), [put])

    async def floor(self) -> int:
        """As it is written."""
        item = await self.coordinator.get(KEYS.stage_floor(STAGE))
        return records_pb2.StageFloorRecord.FromString(item.value).offset if item is not None else 0


async def test_what_nobody_needs_may_go_and_the_floor_says_so() -> None:
    stage = Stage()
    assert await stage.floors.may_drop(STAGE, make_offset(1, 50))
    assert await stage.floor() == make_offset(1, 50)


async def test_many_records_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100,000 writers this broker answers others meanwhile."""
    stage = Stage()
    for number in range(7):
        await stage.write(WriterState.DONE, f"w{number}")
    turns: list[float] = []

    async def sleep(seconds: float) -> None:
        turns.append(seconds)

    monkeypatch.setattr(stage_floors, "RECORDS_PER_TURN", 2)
    monkeypatch.setattr(stage_floors, "asyncio", SimpleNamespace(sleep=sleep))
    assert await stage.floors.may_drop(STAGE, make_offset(3, 0))
    assert len(turns) == 3


async def test_what_is_decided_is_waited_for() -> None:
    stage = Stage()
    await stage.write(WriterState.DECIDED)
    assert not await stage.floors.may_drop(STAGE, make_offset(1, 101))
    assert await stage.floor() == make_offset(1, 101), "nothing new is decided below"
    await stage.write(WriterState.DONE)
    assert await stage.floors.may_drop(STAGE, make_offset(1, 101))


@pytest.mark.parametrize("state", [WriterState.NEW, WriterState.DONE])
async def test_what_is_not_decided_is_not_waited_for(state: WriterState) -> None:
    stage = Stage()
    await stage.write(state)
    assert await stage.floors.may_drop(STAGE, make_offset(1, 101))


async def test_a_manifest_that_lies_above_is_not_waited_for() -> None:
    stage = Stage()
    await stage.write(WriterState.DECIDED)
    assert await stage.floors.may_drop(STAGE, make_offset(1, 100))
    assert await stage.floors.may_drop(PartitionId(92), make_offset(9, 0))


async def test_a_manifest_that_cannot_be_read_is_waited_for() -> None:
    stage = Stage()
    stage.is_readable = False
    await stage.write(WriterState.DECIDED)
    assert not await stage.floors.may_drop(STAGE, make_offset(1, 50))


async def test_the_manifest_itself_is_not_dropped() -> None:
    stage = Stage()
    await stage.write(WriterState.DECIDED)
    assert not await stage.floors.may_drop(PLACE.partition, make_offset(1, 501))
    assert await stage.floors.may_drop(PLACE.partition, make_offset(1, 500))


async def test_a_record_that_cannot_be_read_is_waited_for() -> None:
    stage = Stage()
    await stage.coordinator.txn((), [Put(KEYS.writer(INCARNATION, "newer"), b"\xff\xff")])
    assert not await stage.floors.may_drop(STAGE, make_offset(1, 50))


async def test_a_decision_that_is_under_way_meets_the_floor() -> None:
    stage = Stage()
    as_of = (await stage.coordinator.list(KEYS.stage_floors)).revision
    assert await stage.floors.may_drop(STAGE, make_offset(1, 101))
    result = await stage.coordinator.txn([unchanged_under(KEYS.stage_floors, as_of)], [Put("x", b"")])
    assert not result.succeeded


async def test_a_floor_never_falls() -> None:
    stage = Stage()
    await stage.floors.may_drop(STAGE, make_offset(1, 101))
    await stage.floors.may_drop(STAGE, make_offset(1, 50))
    assert await stage.floor() == make_offset(1, 101)


async def test_retention_of_the_stage_topic_asks_first() -> None:
    bench = Bench({90: 60})
    led = bench.led[90]
    bench.led[90] = replace(led, chain=replace(led.chain, topic=STAGE_TOPIC))
    stage = Stage(make_offset(1, 100))
    bench.floors.on_read(stage._read)
    record = WriterRecord(b"w" * 16, "orders", 1, "", WriterState.DECIDED, 7, PLACE)
    key = KEYS.writer(INCARNATION, "nightly")
    await bench.coordinator.txn((), [Put(key, writer_to_record(record).SerializeToString())])
    events, _ = await bench.look_at(80.55)
    assert events == []
    done = replace(record, state=WriterState.DONE)
    await bench.coordinator.txn((), [Put(key, writer_to_record(done).SerializeToString())])
    events, _ = await bench.look_at(180)
    assert isinstance(events[0], Trim)
