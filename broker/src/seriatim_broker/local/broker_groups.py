"""What the runner asks brokers about broker groups: drained, empty, forgotten. The rest is up to the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from seriatim_api.errors import BadRequestError, DeadlineExceededError, PreconditionError
from seriatim_api.status import from_status
from seriatim_api.v1 import operations_pb2, operations_pb2_grpc, records_pb2

CALL_DEADLINE_S: Final = 10.0
LOOK_S: Final = 0.25


@asynccontextmanager
async def _calls(address: str) -> AsyncIterator[Any]:
    """The service of one broker; what it refuses is raised as it said it."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = operations_pb2_grpc.OperationsStub(channel)  # type: ignore[no-untyped-call]
        try:
            yield stub
        except grpc.aio.AioRpcError as exc:
            metadata = [(key, value) for key, value in exc.trailing_metadata() or ()]
            raise from_status(exc.code(), exc.details(), metadata) from exc


async def drain(address: str, group: str, *, deadline_s: float) -> None:
    """Have everything leave a group, and wait until nothing lies on it.

    Args:
        address: Of a broker, of whichever group.
        group: To be drained.
        deadline_s: How long to wait; it goes on afterwards.

    Raises:
        DeadlineExceededError: Something is left.
        BadRequestError: There is no such group.
    """
    async with _calls(address) as stub:
        intent = records_pb2.BROKER_GROUP_INTENT_DRAINING
        request = operations_pb2.SetBrokerGroupRequest(group=group, intent=intent)
        await stub.SetBrokerGroup(request, timeout=CALL_DEADLINE_S)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        while True:
            found = await _described(stub, group)
            if not found.segments or loop.time() > until_s:
                break
            await asyncio.sleep(LOOK_S)
    if found.segments:
        because = f" ({found.waits_for})" if found.waits_for else ""
        text = f"{found.segments} segments are left on {group}{because}; it goes on, ask again"
        raise DeadlineExceededError(text, segments=found.segments)


async def _described(stub: Any, group: str) -> operations_pb2.BrokerGroupDescription:
    request = operations_pb2.ListBrokerGroupsRequest(with_counts=True)
    answer: operations_pb2.ListBrokerGroupsResponse = await stub.ListBrokerGroups(request, timeout=CALL_DEADLINE_S)
    for found in answer.groups:
        if found.record.group == group:
            return found
    raise BadRequestError(f"there is no broker group {group!r}", group=group)


async def check_empty(address: str, group: str) -> None:
    """See that nothing lies on a group.

    Raises:
        PreconditionError: Something does.
    """
    async with _calls(address) as stub:
        left = (await _described(stub, group)).segments
    if left:
        raise PreconditionError(f"{left} segments lie on {group}: drain it first", group=group, segments=left)


async def forget(address: str, group: str) -> None:
    """Have the cluster forget a group whose brokers have ended and are certified dead."""
    async with _calls(address) as stub:
        request = operations_pb2.RemoveBrokerGroupRequest(group=group)
        await stub.RemoveBrokerGroup(request, timeout=CALL_DEADLINE_S)
