"""What clients and other brokers ask about publications: nothing that they say reaches the core unchecked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from seriatim_api import errors
from seriatim_api.ids import INDEX_MAX, PartitionId, make_offset
from seriatim_api.publications import PRODUCER_MARK, SEQUENCE_MAX, Manifest, ManifestPart, StagedBatch
from seriatim_api.v1 import publications_pb2, records_pb2
from seriatim_broker.rpc.outbound import FORWARDED_KEY
from seriatim_broker.rpc.peer_names import PeerNames
from seriatim_broker.rpc.publications import PublicationsServicer
from seriatim_broker.rpc.publishing import Carried

PLACE = records_pb2.ManifestReference(
    stage_partition_id=90, offsets=[make_offset(1, 0)], length=80, crc=1, id=b"m" * 16
)
PRODUCER = b"w" * 8 + PRODUCER_MARK
PARTS = (ManifestPart(3, 10, (StagedBatch(90, 2, make_offset(1, 5), b"c" * 16),)),)


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
        self.servicer = PublicationsServicer(*cast(Any, (SimpleNamespace(), None, None, self, self, names)))

    async def check_decided(self, *_arguments: Any) -> None:
        if self.error is not None:
            raise self.error

    async def manifest(self, _place: Any) -> Manifest:
        return Manifest("ab" * 16, PARTS)

    async def carry_out_here(self, *_arguments: Any) -> list[Carried]:
        return [Carried(3, 77, 2, 0)]

    async def read_here(self, staged: StagedBatch) -> Any:
        self.read.append(staged)
        raise errors.StagedDataGoneError("gone")


def question(**changed: Any) -> publications_pb2.CarryOutRequest:
    """A question to a master, right but for what is changed."""
    right: dict[str, Any] = {
        "incarnation": "ab" * 16, "writer": "nightly", "producer": PRODUCER, "sequence": 1, "manifest": PLACE,
        "partition_ids": [3],
    }  # fmt: skip
    return publications_pb2.CarryOutRequest(**{**right, **changed})


def place(**changed: Any) -> records_pb2.ManifestReference:
    """A manifest's place, right but for what is changed."""
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
