"""What is staged, found again: who is asked, what counts as gone, and which manifests are believed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api import errors, publications
from seriatim_api.batch import FLAG_PUBLISH, FLAG_STAGED, BatchHeader, parse_header, place
from seriatim_api.ids import MemberId, PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import Manifest, ManifestPart, StagedBatch, StagedBatches, write_manifest
from seriatim_api.v1 import publications_pb2
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import ReadRange
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.core.values.writers import ManifestPlace
from seriatim_broker.rpc.distributed import staged_data
from seriatim_broker.rpc.distributed.staged_data import FETCHES_AT_ONCE, StagedData
from seriatim_broker.testing.simulated_bodies import SimulatedBodies

from broker.tests.headers import header_of

OWN = MemberId("g0-0", "a" * 32)
OTHER = MemberId("g0-1", "b" * 32)
THIRD = MemberId("g1-0", "c" * 32)
STAGE = PartitionId(90)
CHUNK = b"c" * 16
STAGED = StagedBatch(STAGE, 1, make_offset(2, 7), CHUNK)


def batch_of(body: bytes, flags: int = FLAG_STAGED, stage: bytes = CHUNK, index: int = 7) -> Batch:
    """A batch as it is in the stage topic."""
    raw = header_of(body, partition=STAGE, producer=b"t" * 16, flags=flags, stage=stage)
    return Batch(_placed(parse_header(raw), index), body)


def _placed(header: BatchHeader, index: int) -> BatchHeader:
    return place(header, segment=2, base_index=index, append_time_ms=1, previous_checksum=0, checksum=crc32c)


class Cluster:
    """This broker's core, other brokers, and a chain of the stage partition."""

    def __init__(self, members: tuple[MemberId, ...] = (OWN, OTHER, THIRD)) -> None:
        self.identity = SimpleNamespace(member=OWN)
        self.checksum = crc32c
        self.bodies = SimulatedBodies()
        self.members = members
        self.state = SegmentState.SEALED
        self.here: dict[int, Any] = {}  # offset -> batch, event or error
        self.there: dict[str, Any] = {}  # broker -> batch, "gone" or error
        self.asked: list[str] = []
        self.surveys = 0
        self.storage = SimpleNamespace(is_saturated=False)
        self.staging = StagedData(cast(Any, self), cast(Any, self), cast(Any, self))

    async def ask_core(self, event_of: Callable[[int], Any], _deadline_s: float) -> fx.RangeRead:
        event = event_of(1)
        assert isinstance(event, ReadRange)
        assert event.raw
        assert event.staged
        self.asked.append("here")
        found = self.here.get(make_offset(*event.start))
        if isinstance(found, errors.SeriatimError):
            return fx.RangeRead(1, (), event.start, False, (), found)
        if isinstance(found, Batch):
            found = fx.RangeBatches(2, (found,))
        return fx.RangeRead(1, (found,) if found is not None else (), event.start, True, (), None)

    async def publications(self, broker: str, method: str, _request: Any, _deadline_s: float) -> Any:
        assert method == "ReadStaged"
        self.asked.append(broker)
        found = self.there.get(broker, errors.NotServingError("not here"))
        if isinstance(found, errors.SeriatimError):
            raise found
        if found == "gone":
            return publications_pb2.ReadStagedResponse(is_gone=True)
        return publications_pb2.ReadStagedResponse(header=found.header.raw, body=found.body)

    async def survey(self, partition: int, _epoch: int, _deadline_s: float) -> Any:
        assert partition == STAGE
        self.surveys += 1
        first, *others = self.members
        segment = SimpleNamespace(no=2, state=self.state, server=first, eligible=self.members, members=tuple(others))
        return SimpleNamespace(chain=SimpleNamespace(from_no=lambda no: segment if no <= 2 else None))

    async def survey_all(self, partitions: Sequence[int], deadline_s: float) -> dict[int, Any]:
        return {partition: await self.survey(partition, 1, deadline_s) for partition in partitions}


async def test_the_own_disk_is_asked_first() -> None:
    cluster = Cluster(members=(OTHER, OWN))
    cluster.here[STAGED.offset] = batch_of(b"rows")
    assert (await cluster.staging.read(STAGED)).body == b"rows"
    assert cluster.asked == ["here"]


async def test_members_are_asked_one_after_another() -> None:
    cluster = Cluster()
    cluster.there = {"g0-1": errors.UnavailableError("down"), "g1-0": batch_of(b"rows")}
    assert (await cluster.staging.read(STAGED)).body == b"rows"
    assert cluster.asked == ["here", "g0-1", "g1-0"]
    await cluster.staging.read(STAGED)
    assert cluster.surveys == 1, "who has it is known for a second"


async def test_a_fetch_says_whether_this_disk_has_it() -> None:
    cluster = Cluster()
    cluster.there = {"g0-1": batch_of(b"rows"), "g1-0": batch_of(b"rows")}
    assert not (await cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED))).is_here
    cluster.here[STAGED.offset] = batch_of(b"rows")
    assert (await cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED))).is_here


async def test_a_follower_asks_no_other_broker_and_waits_for_no_disk() -> None:
    cluster = Cluster()
    cluster.storage.is_saturated = True
    cluster.there = {"g0-1": batch_of(b"rows")}
    effect = fx.FetchStaged(3, PartitionId(1), STAGED, only_here=True)
    assert (await cluster.staging.fetch(effect)).batch is None
    assert cluster.asked == ["here", "here"], "once more, because the commit may be reported late"
    cluster.here[STAGED.offset] = batch_of(b"rows")
    fetched = await cluster.staging.fetch(effect)
    assert (fetched.batch, fetched.is_here) == (batch_of(b"rows"), True)


async def test_what_no_member_gives_may_come_back() -> None:
    cluster = Cluster()
    with pytest.raises(errors.UnavailableError):
        await cluster.staging.read(STAGED)
    fetched = await cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED))
    assert (fetched.serial, fetched.batch, fetched.is_gone) == (3, None, False)
    assert cluster.surveys == 2, "the chain is read again"


@pytest.mark.parametrize("event", [fx.RangeGap(2, 0, "lost"), fx.RangeDropped(cast(Any, None), cast(Any, None))])
async def test_what_is_lost_or_dropped_is_gone(event: Any) -> None:
    cluster = Cluster()
    cluster.here[STAGED.offset] = event
    assert (await cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED))).is_gone
    cluster = Cluster(members=(OTHER,))
    cluster.there["g0-1"] = "gone"
    assert (await cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED))).is_gone


class NoneReadable(SimulatedBodies):
    def check(self, body: bytes, message_count: int, flags: int) -> None:
        raise errors.UnreadableBodyError("no record batch")


async def test_a_staged_batch_that_no_reader_could_read_is_gone() -> None:
    cluster = Cluster()
    cluster.here[STAGED.offset] = batch_of(b"rows")
    effect = fx.FetchStaged(3, PartitionId(1), STAGED)
    assert not (await cluster.staging.fetch(effect)).is_gone
    cluster.bodies = NoneReadable()
    assert (await cluster.staging.fetch(effect)).is_gone


async def test_a_batch_that_differs_on_all_members_is_gone() -> None:
    cluster = Cluster(members=(OWN, OTHER))
    other = batch_of(b"rows", stage=b"x" * 16)
    cluster.here[STAGED.offset], cluster.there["g0-1"] = other, errors.UnavailableError("down")
    effect = fx.FetchStaged(3, PartitionId(1), STAGED)
    fetched = await cluster.staging.fetch(effect)
    assert (fetched.batch, fetched.is_gone) == (None, False), "another member may have it"
    cluster.there["g0-1"] = batch_of(b"rows")
    fetched = await cluster.staging.fetch(effect)
    assert fetched.batch is not None
    cluster.there["g0-1"] = other
    assert (await cluster.staging.fetch(effect)).is_gone


async def test_a_lost_segment_without_members_is_gone() -> None:
    cluster = Cluster(members=(OTHER,))
    cluster.state = SegmentState.LOST
    cluster.here[STAGED.offset] = fx.RangeGap(2, 0, "lost")
    with pytest.raises(errors.StagedDataGoneError):
        await cluster.staging.read(STAGED)


async def test_only_so_many_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    under_way = most = 0
    go_on = asyncio.Event()

    async def read(_staged: StagedBatch, **_named: bool) -> tuple[Batch, bool]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        return batch_of(b"rows"), True

    monkeypatch.setattr(cluster.staging, "_read", read)
    fetches = [
        asyncio.create_task(cluster.staging.fetch(fx.FetchStaged(number, PartitionId(1), STAGED)))
        for number in range(2 * FETCHES_AT_ONCE)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*fetches)
    assert most == FETCHES_AT_ONCE


# ---- manifests ------------------------------------------------------------------------------------------

MANIFEST = Manifest(
    TopicIncarnation("ab" * 16),
    (ManifestPart(3, 10, StagedBatches([STAGED])), ManifestPart(4, 20, StagedBatches([STAGED, STAGED]))),
)
ID = b"m" * 16
PIECE = FLAG_STAGED | FLAG_PUBLISH


def staged_manifest(cluster: Cluster, pieces: int = 2) -> ManifestPlace:
    """Stage it in this many pieces."""
    data = write_manifest(MANIFEST)
    size = -(-len(data) // pieces)
    offsets = []
    for number in range(pieces):
        offset = make_offset(2, 10 + number)
        cluster.here[offset] = batch_of(data[number * size : (number + 1) * size], PIECE, ID, 10 + number)
        offsets.append(offset)
    return ManifestPlace(STAGE, tuple(offsets), len(data), crc32c(0, data), ID)


@pytest.mark.parametrize("large_bytes", [1, 1 << 20])
async def test_a_manifest_is_read_once(monkeypatch: pytest.MonkeyPatch, large_bytes: int) -> None:
    monkeypatch.setattr(staged_data, "LARGE_BYTES", large_bytes)
    cluster = Cluster()
    place = staged_manifest(cluster)
    read_in: list[threading.Thread] = []

    def read_manifest(data: bytes) -> Manifest:
        read_in.append(threading.current_thread())
        return publications.read_manifest(data)

    monkeypatch.setattr(staged_data, "read_manifest", read_manifest)
    assert await cluster.staging.manifest(place) == MANIFEST
    assert await cluster.staging.manifest(place) == MANIFEST
    (thread,) = read_in
    is_large = large_bytes < place.length
    assert (thread is threading.main_thread()) is not is_large, "a large one keeps the event loop free"
    assert cluster.asked == ["here", "here"], "both pieces, once"


async def test_nothing_is_fetched_while_the_own_disk_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_data, "DISK_LOOK_S", 0.0)
    cluster = Cluster()
    cluster.here[STAGED.offset] = batch_of(b"rows")
    cluster.storage.is_saturated = True
    fetching = asyncio.create_task(cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not cluster.asked
    cluster.storage.is_saturated = False
    assert (await fetching).batch is not None
    cluster.storage.is_saturated = True
    monkeypatch.setattr(staged_data, "READ_DEADLINE_S", 0.0)
    found = await cluster.staging.fetch(fx.FetchStaged(3, PartitionId(1), STAGED))
    assert (found.batch, found.is_gone) == (None, False)


async def test_a_manifest_that_is_forgotten_is_read_again() -> None:
    cluster = Cluster()
    place = staged_manifest(cluster, 1)
    await cluster.staging.manifest(place)
    cluster.here[place.offsets[0]] = fx.RangeGap(2, 0, "lost")
    await cluster.staging.manifest(place)
    cluster.staging.forget_manifest(place)
    cluster.staging.forget_manifest(place)
    with pytest.raises(errors.StagedDataGoneError):
        await cluster.staging.manifest(place)


@pytest.mark.parametrize("limit", ["MANIFESTS_KEPT_BYTES_MAX", "MANIFESTS_KEPT_MAX"])
async def test_few_manifests_are_kept(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    cluster = Cluster()
    place = staged_manifest(cluster)
    monkeypatch.setattr(staged_data, limit, 2 * MANIFEST.size_bytes - 1 if "BYTES" in limit else 1)
    other = replace(place, id=b"o" * 16)
    for offset in place.offsets:
        cluster.here[offset] = batch_of(cluster.here[offset].body, PIECE, ID)
    await cluster.staging.manifest(place)
    for offset in place.offsets:
        cluster.here[offset] = batch_of(cluster.here[offset].body, PIECE, other.id)
    await cluster.staging.manifest(other)
    with pytest.raises(errors.UnavailableError):
        await cluster.staging.manifest(place)


@pytest.mark.parametrize("wrong", ["crc", "length", "id", "flags", "cut"])
async def test_a_manifest_that_is_another_one_is_not_believed(wrong: str) -> None:
    """It is not known whether the staged manifest is gone, so a decided publication is not given up."""
    cluster = Cluster()
    place = staged_manifest(cluster)
    if wrong == "crc":
        place = replace(place, crc=place.crc ^ 1)
    elif wrong == "length":
        place = replace(place, length=place.length + 1)
    elif wrong == "id":
        place = replace(place, id=b"o" * 16)
    elif wrong == "flags":
        cluster.here[place.offsets[0]] = batch_of(cluster.here[place.offsets[0]].body, FLAG_STAGED, ID)
    else:
        place = replace(place, offsets=place.offsets[:1])
    with pytest.raises(errors.UnavailableError):
        await cluster.staging.manifest(place)
