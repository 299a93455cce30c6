"""What a broker reports to a rebuild is read, or refused as damage."""

from __future__ import annotations

import msgspec
import pytest
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import operations_pb2
from seriatim_broker.core.control.rebuild import KnownWriter
from seriatim_broker.core.values.chain import Opening, create
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode
from seriatim_broker.core.values.log import CursorState
from seriatim_broker.interfaces import forms
from seriatim_broker.rpc.servicers import rebuild_reports

MEMBERS = MemberId("g0-0", "5e" * 16), MemberId("g0-1", "5f" * 16)
CHAIN = create(PartitionId(7), "t", 0, True, ("g0",), Opening(b"a" * 16, "g0", MEMBERS, 1, False), 0)
CURSOR = CursorState(1, "g", 3, 4, 9, settings=ConsumerGroupSettings(ConsumerMode.KEY_ORDERED), serial=2)
KNOWN = rebuild_reports.KnownPartition(CHAIN, (CURSOR,), (KnownWriter(b"p" * 16, 3, 4, 5),))


def page(form: bytes) -> operations_pb2.TellKnownResponse:
    partition = operations_pb2.KnownPartition(partition_id=7, form=form)
    return operations_pb2.TellKnownResponse(cluster="c", partitions=[partition], is_last=True)


def test_a_broker_tells_all_that_a_rebuild_needs() -> None:
    told = rebuild_reports.read("g0-0", [page(forms.encode(KNOWN))])
    assert told.chains == {7: CHAIN}
    assert told.cursors == {7: (CURSOR,)}
    assert told.writers == {7: KNOWN.writers}


@pytest.mark.parametrize("wrong", [None, [], [99], [2, [3, 99]], [2, [3, 1, [], 0, 99]]], ids=repr)
def test_a_control_record_without_settings_that_are_known_is_damage(wrong: object) -> None:
    row = msgspec.msgpack.decode(forms.encode(KNOWN))
    settings_at = 8
    assert row[1][0][settings_at] == [2]
    row[1][0][settings_at] = wrong
    if wrong == []:
        del row[1][0][settings_at:]
    with pytest.raises(CorruptionError, match="g0-0"):
        rebuild_reports.read("g0-0", [page(msgspec.msgpack.encode(row))])
