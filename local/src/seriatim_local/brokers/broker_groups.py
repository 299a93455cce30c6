"""Requests of the runner to brokers about broker groups: drain one, check that one is empty, forget one."""

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
    """The operations service of one broker. Its refusals are raised as errors of the catalogue."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = operations_pb2_grpc.OperationsStub(channel)  # type: ignore[no-untyped-call]
        try:
            yield stub
        except grpc.aio.AioRpcError as exc:
            raise from_status(exc.code(), exc.details(), exc.trailing_metadata()) from exc


async def drain(address: str, group: str, *, deadline_s: float) -> None:
    """Have all open segments and copies leave a broker group, and wait until it has none.

    Args:
        address: The address of any broker of the cluster.
        group: The broker group to drain.
        deadline_s: Seconds to wait. The drain continues afterwards.

    Raises:
        DeadlineExceededError: Segments are left after the deadline.
        BadRequestError: There is no such broker group.
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
        text = f"{found.segments} segments are left on {group}{because}; the drain continues, ask again"
        raise DeadlineExceededError(text, segments=found.segments)


async def _described(stub: Any, group: str) -> operations_pb2.BrokerGroupDescription:
    request = operations_pb2.ListBrokerGroupsRequest(with_counts=True)
    answer: operations_pb2.ListBrokerGroupsResponse = await stub.ListBrokerGroups(request, timeout=CALL_DEADLINE_S)
    for found in answer.groups:
        if found.record.group == group:
            return found
    raise BadRequestError(f"there is no broker group {group!r}", group=group)


async def check_empty(address: str, group: str) -> None:
    """Check that a broker group has no segments.

    Raises:
        PreconditionError: It has segments.
    """
    async with _calls(address) as stub:
        left = (await _described(stub, group)).segments
    if left:
        raise PreconditionError(f"{left} segments are on {group}: drain it first", group=group, segments=left)


async def forget(address: str, group: str) -> None:
    """Have the cluster forget a broker group. Its brokers must have ended, with death certificates."""
    async with _calls(address) as stub:
        request = operations_pb2.RemoveBrokerGroupRequest(group=group)
        await stub.RemoveBrokerGroup(request, timeout=CALL_DEADLINE_S)
