"""How the answers of several servers become one: what none of them filled is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from seriatim_api.errors import (
    DeadlineExceededError,
    NotServingError,
    PositionUnknownError,
    SeriatimError,
    UnavailableError,
    UnknownGroupError,
)
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.effects import ConsumerGroupDescribed
from seriatim_broker.core.values.events import ConsumerGroupOperation, CursorRecord
from seriatim_broker.core.values.positions import Place
from seriatim_broker.core.values.segment import Segment, SegmentState, Start
from seriatim_broker.rpc.calls.outbound import BrokerCalls
from seriatim_broker.rpc.servicers.consumer_group_admin import ConsumerGroupAdmin, _pass_dropped, row_of
from seriatim_broker.rpc.servicers.consumer_group_operations import ConsumerGroupOperations
from seriatim_broker.runtime.coordinator.records import operation_to_number

SERVER = MemberId("g0-0", b"0" * 16)


def chain(number: int = 0, base: int | None = 100) -> Chain:
    segment = Segment(1, b"a" * 16, "g0", (SERVER,), 1, SegmentState.OPEN, base, SERVER, 1, (SERVER,), 0)
    return Chain(PartitionId(number + 1), 1, "t", number, True, ("g0",), (segment,))


CURSOR = CursorRecord(1, 1, 7, "t")


class Calls:
    """What the other broker answers."""

    def __init__(self, answer: list[broker_pb2.GroupPartition] | SeriatimError) -> None:
        self._answer = answer
        self.deadlines_s: list[float] = []

    async def admin(self, _server: str, _method: str, _request: object, deadline_s: float) -> Any:
        self.deadlines_s.append(deadline_s)
        if isinstance(self._answer, SeriatimError):
            raise self._answer
        return broker_pb2.DescribeGroupResponse(partitions=self._answer)


class Services:
    """The own core's answer."""

    def __init__(self, reply: ConsumerGroupDescribed) -> None:
        self._reply = reply

    async def ask_core(self, _make: object, _deadline_s: float) -> ConsumerGroupDescribed:
        return self._reply


async def told(answer: list[broker_pb2.GroupPartition] | SeriatimError) -> broker_pb2.GroupPartition:
    admin: Any = ConsumerGroupAdmin.__new__(ConsumerGroupAdmin)
    admin._calls = Calls(answer)
    rows = {0: row_of(chain(), CURSOR)}
    await admin._describe_there("g0-0", broker_pb2.DescribeGroupRequest(), rows, 1.0)
    return rows[0]


async def told_here(reply: ConsumerGroupDescribed, base: int | None = 100) -> broker_pb2.GroupPartition:
    admin: Any = ConsumerGroupAdmin.__new__(ConsumerGroupAdmin)
    admin._services = Services(reply)
    rows = {0: row_of(chain(base=base), CURSOR)}
    await admin._describe_here(chain(base=base), "g", rows, 1.0)
    return rows[0]


def test_a_row_begins_as_an_error() -> None:
    assert row_of(chain(), CURSOR).error.number == NotServingError.number
    assert row_of(chain(), None).error.number == UnknownGroupError.number


@pytest.mark.parametrize("first", [SegmentState.LOST, SegmentState.SEALED])
def test_what_is_dropped_is_no_backlog(first: SegmentState) -> None:
    """Segment 1 has 5 messages, and segment 2 has 3. If segment 1 was not lost, they are dropped too."""
    (last,) = chain(base=8).segments
    stub = replace(
        last, no=2, base=5, state=SegmentState.SEALED, sealed_len=3, sealed_checksum=7, begin=Start(3, 7, 30)
    )
    gone = replace(last, base=0, state=first, sealed_len=5, sealed_checksum=7, begin=Start(5, 7, 50))
    kept = replace(chain(), segments=(gone, stub, replace(last, no=3)))
    row = row_of(kept, replace(CURSOR, start_index=2))
    row.end_position = 12
    _pass_dropped(row, kept)
    assert (row.position, row.end_position) == (8, 12)


async def test_what_the_server_says_counts() -> None:
    filled = broker_pb2.GroupPartition(partition=0, server_broker="g0-0", position=120, end_position=130)
    row = await told([filled])
    assert not row.HasField("error")
    assert (row.position, row.end_position) == (120, 130)


async def test_a_row_that_the_asked_broker_did_not_fill_is_an_error() -> None:
    assert (await told([])).error.number == NotServingError.number
    elsewhere = broker_pb2.GroupPartition(partition=0, server_broker="g1-0")  # the group has moved on meanwhile
    row = await told([elsewhere])
    assert row.error.number == NotServingError.number
    assert row.position == 107, "what the coordinator knows, and the least"


async def test_a_silent_server_is_an_error() -> None:
    assert (await told(UnavailableError("silent"))).error.number == UnavailableError.number


async def test_a_frozen_server_costs_two_seconds_and_not_the_whole_call() -> None:
    admin: Any = ConsumerGroupAdmin.__new__(ConsumerGroupAdmin)
    admin._calls = calls = Calls([])
    for count in (1, 2000):
        rows = {number: row_of(chain(number), CURSOR) for number in range(count)}
        await admin._describe_there("g0-0", broker_pb2.DescribeGroupRequest(), rows, 8.0)
    await admin._describe_there("g0-0", broker_pb2.DescribeGroupRequest(), rows, 0.5)
    assert calls.deadlines_s == pytest.approx([2.002, 6.0, 0.5]), "one with many partitions needs longer"


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (
            grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError,
            "g0-0 did not answer within 2 s: it is frozen, cut off or very busy",
        ),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError, "g0-0 cannot be reached"),
    ],
)  # fmt: skip
async def test_a_server_without_an_answer_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode, kind: type[SeriatimError], text: str
) -> None:
    class Stub:
        def __init__(self, _channel: object) -> None: ...

        async def DescribeGroup(self, *_: object, **__: object) -> None:  # noqa: N802 - the contract's name
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "ipv4:127.0.0.2:7000: recvmsg")

    monkeypatch.setattr("seriatim_broker.rpc.calls.outbound.broker_pb2_grpc.AdminStub", Stub)
    directory: Any = SimpleNamespace(peer_address=lambda _broker: "127.0.0.2:7000")
    calls = BrokerCalls(directory)
    with pytest.raises(kind) as error:
        await calls.admin("g0-0", "DescribeGroup", broker_pb2.DescribeGroupRequest(), 2.002)
    await calls.close()
    assert error.value.message == text


async def test_the_own_core_fills_a_row() -> None:
    row = await told_here(ConsumerGroupDescribed(1, 1, 9, 109, 115, 1, "c", (), None))
    assert not row.HasField("error")
    assert (row.acked_index, row.position, row.end_position) == (9, 109, 115)
    row = await told_here(ConsumerGroupDescribed(1, 1, 0, 100, 115, 1, "c", (), None))
    assert (row.acked_index, row.position) == (7, 107), "no consumer has read since the cursor was written"


async def test_a_position_that_cannot_be_counted_is_an_error() -> None:
    row = await told_here(ConsumerGroupDescribed(1, 1, 9, None, None, 1, "c", ("d",), None), base=None)
    assert row.error.number == PositionUnknownError.number
    assert "is not settled" in row.error.message
    assert (row.active_consumer, list(row.standby_consumers)) == ("c", ["d"])
    row = await told_here(ConsumerGroupDescribed(1, 1, 0, None, 115, 1, "c", (), None))
    assert "asking the other members" in row.error.message
    assert row.position == 107


class Described:
    """A topic with three partitions, as far as a description of some of them needs it."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    async def topic(self, _name: str) -> records_pb2.TopicRecord:
        return records_pb2.TopicRecord(name="t", partition_ids=[1, 2, 3])

    async def chains(self, ids: Sequence[int]) -> list[Chain]:
        self.read.append(list(ids))
        return [chain(id_ - 1) for id_ in ids]


async def test_only_the_partitions_that_a_question_names_are_described() -> None:
    admin: Any = ConsumerGroupAdmin.__new__(ConsumerGroupAdmin)
    admin._services = services = Described()
    passed_on: list[list[int]] = []

    async def cursors(_chains: object, _group: str) -> Any:
        return SimpleNamespace(has=lambda _: True)

    async def describe(_t: str, _g: str, chains: Sequence[Chain], *_: object, partitions: Sequence[int]) -> list[Any]:
        passed_on.append(list(partitions))
        return [broker_pb2.GroupPartition(partition=one.number) for one in chains]

    admin._cursors, admin._describe = cursors, describe
    context: Any = SimpleNamespace(invocation_metadata=tuple)

    async def asked(*numbers: int) -> list[int]:
        request = broker_pb2.DescribeGroupRequest(topic="t", group="g", partitions=numbers)
        return [row.partition for row in (await admin.DescribeGroup(request, context)).partitions]

    assert await asked() == [0, 1, 2]
    assert await asked(2, 0, 2) == [0, 2]
    assert services.read == [[1, 2, 3], [1, 3]]
    assert passed_on == [[], [2, 0, 2]]


async def test_skip_to_the_end_of_a_group_that_reads_on_is_planned() -> None:
    """Between two questions the group reads five messages, to the end of the partition."""
    one = chain(base=0)
    end = 10

    async def describe(*_arguments: Any) -> list[broker_pb2.GroupPartition]:
        nonlocal end
        row = broker_pb2.GroupPartition(partition=one.number, has_cursor=True, segment=1, acked_index=end)
        end += 5
        return [row]

    async def find(*_arguments: Any) -> dict[int, Place]:
        nonlocal end
        place = Place(1, end)
        end += 5
        return {one.number: place}

    async def found(*_arguments: Any) -> Any:
        return SimpleNamespace(partition_ids=[one.partition], has=lambda _partition: True)

    async def chains(_partitions: Sequence[int]) -> list[Chain]:
        return [one]

    admin = SimpleNamespace(
        _services=SimpleNamespace(topic=found, chains=chains),
        _cursors=found,
        _describe=describe,
        _targets=SimpleNamespace(find=find),
    )
    request = broker_pb2.PlanGroupMoveRequest(
        topic="t",
        group="g",
        operation=cast("Any", operation_to_number(ConsumerGroupOperation.SKIP)),
        to=broker_pb2.GroupTarget(position=broker_pb2.START_POSITION_LATEST),
    )
    plan = ConsumerGroupOperations.PlanGroupMove.__wrapped__  # type: ignore[attr-defined]
    (move,) = (
        await plan(admin, request, SimpleNamespace(time_remaining=lambda: 10.0, invocation_metadata=lambda: ()))
    ).moves
    assert not move.HasField("error")
    assert move.to_offset == make_offset(1, 15)
