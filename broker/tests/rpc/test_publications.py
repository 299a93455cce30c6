"""What clients and other brokers ask about publications: nothing that they say reaches the core unchecked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from seriatim_api import errors
from seriatim_api.ids import INDEX_MAX, PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import PRODUCER_MARK, SEQUENCE_MAX, Manifest, ManifestPart, StagedBatch, StagedBatches
from seriatim_api.v1 import broker_pb2, common_pb2, publications_pb2, records_pb2
from seriatim_broker.interfaces.coordinator import Put
from seriatim_broker.rpc.calls.outbound import FORWARDED_KEY
from seriatim_broker.rpc.distributed.publisher import Carried
from seriatim_broker.rpc.links.peer_names import PeerNames
from seriatim_broker.rpc.servicers.publications import PublicationsServicer
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.stage import stage_settings
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

PLACE = records_pb2.ManifestReference(
    stage_partition_id=90,
    offsets=[make_offset(1, 0)],
    length=80,
    crc=1,
    id=b"m" * 16,
    content_digest=b"c" * 16,
    layout=records_pb2.RowLayout(partition_count=2, batch_bytes=1000),
)
PRODUCER = b"w" * 8 + PRODUCER_MARK
PARTS = (ManifestPart(3, 10, StagedBatches([StagedBatch(90, 2, make_offset(1, 5), b"c" * 16)])),)


class RefusedError(Exception):
    """The call was ended with a status."""


class Call:
    """A call's context."""

    def time_remaining(self) -> float:
        return 5.0

    def __init__(self, broker: str = "", host: str = "") -> None:
        self.broker, self.host = broker, host

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((FORWARDED_KEY, self.broker),) if self.broker else ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_dns": [self.host.encode()]} if self.host else {}

    async def abort(self, code: grpc.StatusCode, text: str, _metadata: Any) -> None:
        raise RefusedError(code.name, text)


class Inside:
    """The publisher and staging: they answer, or raise, what the test says."""

    def __init__(self, names: PeerNames | None = None) -> None:
        self.error: errors.SeriatimError | None = None
        self.read: list[StagedBatch] = []
        self.servicer = PublicationsServicer(*cast(Any, (SimpleNamespace(), None, None, self, self, names, self)))

    async def check_decided(self, *_arguments: Any) -> None:
        if self.error is not None:
            raise self.error

    async def manifest(self, _place: Any) -> Manifest:
        return Manifest(TopicIncarnation("ab" * 16), PARTS)

    async def carry_out_here(self, *_arguments: Any) -> list[Carried]:
        return [Carried(3, 77, 2, 0)]

    async def read_here(self, staged: StagedBatch) -> Any:
        self.read.append(staged)
        raise errors.StagedDataGoneError("gone")


def question(**changed: Any) -> publications_pb2.CarryOutRequest:
    """A question to a master, right except for the changes."""
    right: dict[str, Any] = {
        "incarnation": "ab" * 16, "writer": "nightly", "producer": PRODUCER, "sequence": 1, "manifest": PLACE,
        "partition_ids": [3],
    }  # fmt: skip
    return publications_pb2.CarryOutRequest(**{**right, **changed})


def place(**changed: Any) -> records_pb2.ManifestReference:
    """A manifest's place, right except for the changes."""
    found = records_pb2.ManifestReference()
    found.CopyFrom(PLACE)
    for name, value in changed.items():
        found.ClearField(cast(Any, name))
        found.MergeFrom(records_pb2.ManifestReference(**{name: value}))
    return found


async def test_a_master_answers_for_each_partition() -> None:
    answer = await Inside().servicer.CarryOut(question(), Call())
    assert [(part.partition_id, part.first_offset, part.rows) for part in answer.parts] == [(3, 77, 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        question(sequence=SEQUENCE_MAX + 1),
        question(producer=b"short"),
        question(producer=b"w" * 16),
        question(partition_ids=[]),
        question(partition_ids=[3, 3]),
        question(partition_ids=[4]),
        question(manifest=place(id=b"short")),
        question(manifest=place(offsets=[])),
        question(manifest=place(offsets=[1 << 63])),
        question(manifest=place(offsets=[make_offset(1, INDEX_MAX)])),
        question(manifest=place(length=0)),
    ],
)
async def test_a_question_that_cannot_be_is_refused(wrong: publications_pb2.CarryOutRequest) -> None:
    with pytest.raises(RefusedError, match="INVALID_ARGUMENT"):
        await Inside().servicer.CarryOut(wrong, Call())


async def test_what_a_master_cannot_do_now_is_told_and_is_no_silence() -> None:
    inside = Inside()
    inside.error = errors.CoordinatorUnavailableError("away")
    answer = await inside.servicer.CarryOut(question(), Call())
    assert [part.error.number for part in answer.parts] == [errors.CoordinatorUnavailableError.number]


@pytest.mark.parametrize(
    ("offset", "rows"), [(make_offset(2, INDEX_MAX), 1), (make_offset(2, 0), 0), (1 << 63, 1), (make_offset(2, 9), 0)]
)
async def test_a_staged_batch_that_cannot_be_is_not_asked_for(offset: int, rows: int) -> None:
    inside = Inside()
    request = publications_pb2.ReadStagedRequest(partition_id=PartitionId(90), offset=offset, rows=rows)
    with pytest.raises(RefusedError, match="INVALID_ARGUMENT"):
        await inside.servicer.ReadStaged(request, Call())
    assert not inside.read


class Owner:
    """A broker with a coordinator, as far as writers and the stage topic need it."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryStore())
        self.keys = Keys("c")
        self.listed: list[int] = []
        self.directory = SimpleNamespace(broker_groups=lambda: {"g": ("b",)}, members={})
        self.records: list[records_pb2.ChainRecord] = []
        self.servicer = PublicationsServicer(*cast(Any, (self, None, None, self, None, None, self)))

    async def topic(self, name: str) -> Any:
        incarnation = {"orders": "ab" * 16, "others": "cd" * 16}[name]
        return SimpleNamespace(incarnation=incarnation, partition_ids=[70, 71, 72, 73, 74])

    async def chain_records(self, partitions: Any) -> list[records_pb2.ChainRecord]:
        return [record for record in self.records if record.partition_id in partitions]

    def all(self) -> list[broker_pb2.BrokerAddress]:
        return []

    def route_of(self, chain: Any) -> common_pb2.Route:
        return common_pb2.Route(partition_id=chain.partition, segment=chain.open_segment.no)


async def test_writers_are_listed_a_page_at_a_time_and_no_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    known = [("ab" * 16, f"w{number}") for number in range(5)] + [("cd" * 16, "x")]
    await owner.coordinator.txn((), [Put(owner.keys.writer(*each), b"") for each in known])
    read, lists = [], owner.coordinator.list

    async def counted(*arguments: Any, **named: Any) -> Any:
        listing = await lists(*arguments, **named)
        read.append(len(listing.items))
        return listing

    monkeypatch.setattr(owner.coordinator, "list", counted)

    async def pages(topic: str | None) -> list[list[str]]:
        found, after = [], ""
        while not found or after:
            request = publications_pb2.ListWritersRequest(topic=topic, after=after, limit=2)
            answer = await owner.servicer.ListWriters(request, Call())
            found.append([writer.writer for writer in answer.writers])
            after = answer.next_after
        return found

    assert await pages("orders") == [["w0", "w1"], ["w2", "w3"], ["w4"]]
    assert await pages(None) == [["w0", "w1"], ["w2", "w3"], ["w4", "x"]]
    assert await pages("others") == [["x"]]
    assert max(read) == 3


async def test_where_to_stage_is_told_from_the_newest_segments_alone() -> None:
    """A chain of the stage topic has a segment for each switch of a day; each call that stages asks for all chains."""
    owner = Owner()
    member = common_pb2.Member(broker="b", incarnation="d" * 32)
    for partition in (90, 91):
        record = records_pb2.ChainRecord(partition_id=partition, epoch=9, page_count=3)
        record.segments.add(
            no=200 + partition, group="g", members=[member], state=records_pb2.SEGMENT_STATE_OPEN, producers_max=1
        )
        owner.records.append(record)
    topic = records_pb2.TopicRecord(
        name="_stage", state=records_pb2.TOPIC_STATE_READY, partition_ids=[90, 91], settings=stage_settings()
    )
    await owner.coordinator.txn((), [Put(owner.keys.topic("_stage"), topic.SerializeToString())])
    answer = await owner.servicer.PrepareStaging(publications_pb2.PrepareStagingRequest(), Call())
    assert [route.segment for route in answer.stage.routes] == [290, 291]
    assert list(answer.groups) == ["g", "g"]
    owner.records.pop()
    with pytest.raises(RefusedError):
        await owner.servicer.PrepareStaging(publications_pb2.PrepareStagingRequest(), Call())


async def test_who_stages_is_told_how_the_last_publication_was_laid_out() -> None:
    owner = Owner()
    member = common_pb2.Member(broker="b", incarnation="d" * 32)
    owner.records = [records_pb2.ChainRecord(partition_id=id_, epoch=9) for id_ in (90, 91)]
    for record in owner.records:
        record.segments.add(no=2, group="g", members=[member], state=records_pb2.SEGMENT_STATE_OPEN, producers_max=1)
    begun = [(1, 0, 100), (9, 7, 5000), (2, 0, 2001), (1, 0, 2002), (1, 0, 3000)]
    for number, (no, base, opened_ms) in enumerate(begun):
        grown = records_pb2.ChainRecord(partition_id=70 + number, epoch=9)
        grown.segments.add(no=no, base=base, opened_at_ms=opened_ms, group="g", members=[member], producers_max=1)
        owner.records.append(grown)
    stage = records_pb2.TopicRecord(
        name="_stage", state=records_pb2.TOPIC_STATE_READY, partition_ids=[90, 91], settings=stage_settings()
    )
    layout = records_pb2.RowLayout(partition_count=2, batch_bytes=1000)
    laid_out = records_pb2.ManifestReference(layout=layout)
    records = {
        "new": records_pb2.WriterRecord(state=records_pb2.WRITER_STATE_NEW),
        "nightly": records_pb2.WriterRecord(state=records_pb2.WRITER_STATE_DONE, digest=b"d" * 16, manifest=laid_out),
    }
    puts = [Put(owner.keys.writer("ab" * 16, name), one.SerializeToString()) for name, one in records.items()]
    await owner.coordinator.txn((), [Put(owner.keys.topic("_stage"), stage.SerializeToString()), *puts])

    async def earlier(writer: str) -> list[records_pb2.RowLayout]:
        request = publications_pb2.PrepareStagingRequest(topic="orders", writer=writer)
        return list((await owner.servicer.PrepareStaging(request, Call())).earlier)

    assert await earlier("nightly") == [layout]
    assert await earlier("new") == await earlier("unknown") == await earlier("") == []


@pytest.mark.parametrize("call", [Call(), Call("b", "elsewhere"), Call("", "b.example"), Call("c", "b.example")])
async def test_who_is_no_broker_asks_no_master(call: Call) -> None:
    loaded = asyncio.Event()
    loaded.set()
    inside = Inside(PeerNames(lambda broker: ["b.example:7000"] if broker == "b" else [], loaded))
    with pytest.raises(RefusedError, match="FAILED_PRECONDITION"):
        await inside.servicer.CarryOut(question(), call)
    with pytest.raises(RefusedError, match="FAILED_PRECONDITION"):
        await inside.servicer.ReadStaged(publications_pb2.ReadStagedRequest(partition_id=90, offset=5, rows=1), call)
    assert (await inside.servicer.CarryOut(question(), Call("b", "b.example"))).parts
