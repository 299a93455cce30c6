"""What a broker tells to a rebuild is read, or refused as damage."""

from __future__ import annotations

import pytest
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import operations_pb2, records_pb2
from seriatim_broker.core.values.chain import Opening, create
from seriatim_broker.rpc import known
from seriatim_broker.runtime.records import chain_to_record

MEMBERS = MemberId("g0-0", "5e" * 16), MemberId("g0-1", "5f" * 16)
CHAIN = create(PartitionId(7), "t", 0, True, ("g0",), Opening(b"a" * 16, "g0", MEMBERS, 1, False), 0)


def page(*cursors: operations_pb2.KnownCursor) -> operations_pb2.TellKnownResponse:
    partition = operations_pb2.KnownPartition(chain=chain_to_record(CHAIN), cursors=cursors)
    return operations_pb2.TellKnownResponse(cluster="c", partitions=[partition], is_last=True)


def settings(**fields: int) -> records_pb2.GroupSettings:
    written = records_pb2.GroupSettings(mode=records_pb2.CONSUMER_MODE_KEY_ORDERED)
    for name, number in fields.items():
        setattr(written.retry, name, number)
    return written


def test_a_control_record_is_told_with_its_settings() -> None:
    told = known.read("g0-0", [page(operations_pb2.KnownCursor(segment=1, group="g", settings=settings()))])
    ((cursor,),) = told.cursors.values()
    assert cursor.settings.mode.is_keyed


@pytest.mark.parametrize("wrong", [None, settings(exhausted=99), settings(back_off=99)])
def test_a_control_record_without_settings_that_are_known_is_damage(wrong: records_pb2.GroupSettings | None) -> None:
    with pytest.raises(CorruptionError, match="consumer group g"):
        known.read("g0-0", [page(operations_pb2.KnownCursor(segment=1, group="g", settings=wrong))])
