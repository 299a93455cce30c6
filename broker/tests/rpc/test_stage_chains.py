"""Staged data, found again: on this broker's disk or on another one's, by chains that may be old here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api import errors
from seriatim_api.batch import FLAG_STAGED
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_api.publications import StagedBatch
from seriatim_api.v1 import publications_pb2, records_pb2
from seriatim_broker.core.values.effects import PartitionSurveyed
from seriatim_broker.core.values.events import SurveyPartition
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.rpc.distributed.places import Places
from seriatim_broker.rpc.distributed.staged_data import StagedData

from broker.tests.headers import header_of

STAGE = PartitionId(90)
OWN = MemberId("g0-0", "a" * 32)
OTHER = MemberId("g1-0", "b" * 32)
THIRD = MemberId("g2-0", "c" * 32)
STAGED = StagedBatch(STAGE, 2, make_offset(3, 100), b"c" * 16)


def chain_of(epoch: int, *members: MemberId) -> Any:
    """A chain whose segments, from 1 on, are on these brokers."""
    segments = [
        SimpleNamespace(no=no, server=member, eligible=(), members=(member,), state=SegmentState.SEALED)
        for no, member in enumerate(members, 1)
    ]

    def from_no(no: int) -> Any:
        return next((segment for segment in segments if segment.no >= no), None)

    return SimpleNamespace(partition=STAGE, epoch=epoch, from_no=from_no)


class Cluster:
    """A broker whose core knows an old chain, a coordinator with the newest one, and brokers that have batches."""

    def __init__(self, known: Any, newest: Any) -> None:
        self.known, self.newest = known, newest
        self.identity = SimpleNamespace(member=OWN)
        self.holders = {THIRD.broker}
        self.asked: list[str] = []  # brokers
        self.records_read = 0
        self.is_away = False  # the coordinator
        self.staging = StagedData(cast(Any, self), cast(Any, self), Places(cast(Any, self), cast(Any, None)))

    async def ask_core(self, event_of: Callable[[int], Any], _deadline_s: float) -> PartitionSurveyed:
        event = event_of(1)
        assert isinstance(event, SurveyPartition)
        if event.epoch > self.known.epoch:
            self.known = self.newest  # the core reads it
        return PartitionSurveyed(1, self.known, None, False, None)

    async def chain_records(self, partitions: Sequence[int]) -> list[records_pb2.ChainRecord]:
        if self.is_away:
            raise errors.CoordinatorUnavailableError("away")
        self.records_read += 1
        return [records_pb2.ChainRecord(partition_id=id_, epoch=self.newest.epoch) for id_ in partitions]

    async def publications(self, broker: str, _method: str, _request: Any, _deadline_s: float) -> Any:
        self.asked.append(broker)
        if broker not in self.holders:
            raise errors.NotServingError("not here")
        header = header_of(
            b"x", partition=STAGE, message_count=2, producer=b"t" * 16, flags=FLAG_STAGED, stage=b"c" * 16
        )
        return publications_pb2.ReadStagedResponse(header=header, body=b"x")


@pytest.mark.parametrize("known", [chain_of(2, OWN, OTHER), chain_of(2, OWN, OTHER, OTHER)])
async def test_what_the_known_chain_does_not_have_is_looked_for_in_the_newest(known: Any) -> None:
    """This broker has the first segment, so no broker notified it of the third segment, or where the batch is by
    now."""
    cluster = Cluster(known, chain_of(9, OWN, OTHER, THIRD))
    assert (await cluster.staging.read(STAGED)).body == b"x"
    assert cluster.records_read == 1


async def test_what_the_known_chain_has_needs_no_coordinator() -> None:
    cluster = Cluster(chain_of(2, OWN, OTHER, THIRD), chain_of(9, OWN))
    cluster.is_away = True
    assert (await cluster.staging.read(STAGED)).body == b"x"


async def test_what_nobody_gives_is_not_called_gone_and_not_looked_up_each_time() -> None:
    cluster = Cluster(chain_of(2, OWN, OTHER), chain_of(9, OWN, OTHER, THIRD))
    cluster.holders.clear()
    for _ in range(3):
        with pytest.raises(errors.UnavailableError):
            await cluster.staging.read(STAGED)
    assert cluster.records_read == 1
    assert cluster.asked == [THIRD.broker] * 3
