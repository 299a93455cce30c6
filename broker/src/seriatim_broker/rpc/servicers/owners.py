"""Calls about owners of names: become the owner and stay it, list owners, and take a name away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from seriatim_api.errors import BadRequestError, NotServingError, PreconditionError, SeriatimError
from seriatim_api.ids import PartitionId, check_name
from seriatim_api.v1 import owners_pb2, owners_pb2_grpc, records_pb2

from ...core.values.owners import OwnerStanding, Standing
from ..calls.broken_assertions import end_at_bug
from ..calls.services import Services, abort, remaining_s, typed_errors
from ..distributed.master_appends import MasterAppends
from ..distributed.owner_elections import Hosted, OwnerElections, Seat
from ..streams.served import counted, log_refusal

FIRST_DEADLINE_S: Final = 10.0
"""A call is ended if its first request does not come within this time."""

OWNERS_PER_PAGE: Final = 500

PARTITIONS_TOLD: Final = 100

PAUSE_S: Final = 0.02
"""Pause between two looks whether a name was released."""

_STATES: Final = {
    OwnerStanding.QUEUED: owners_pb2.OWNER_STATE_QUEUED,
    OwnerStanding.STARTING: owners_pb2.OWNER_STATE_STARTING,
    OwnerStanding.OWNED: owners_pb2.OWNER_STATE_OWNED,
    OwnerStanding.LOST: owners_pb2.OWNER_STATE_LOST,
}


class OwnersServicer(owners_pb2_grpc.OwnersServicer):
    """Serves `seriatim.v1.Owners`. The arguments are those of `OwnerElections`."""

    def __init__(self, services: Services, masters: MasterAppends, leads: Callable[[PartitionId], bool]) -> None:
        self._services = services
        self._elections = OwnerElections(services, masters, leads)

    def add_to(self, server: Any) -> None:
        """Serve the calls of a port."""
        owners_pb2_grpc.add_OwnersServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    # ---- programs -----------------------------------------------------------------------------------------

    async def Acquire(self, _requests: object, context: Any) -> None:  # noqa: N802 - the contract's names
        """Have a program wait for a name, and keep it while its heartbeats come."""
        try:
            with counted(self._services):
                await self._attend(context)
        except SeriatimError as exc:
            log_refusal("owner", context.peer(), exc)
            await abort(context, exc)

    async def _attend(self, context: Any) -> None:
        try:
            async with asyncio.timeout(FIRST_DEADLINE_S):
                request = await context.read()
        except TimeoutError as exc:
            raise BadRequestError("a call begins with what the program wants") from exc
        if request is grpc.aio.EOF:
            return
        seat = await self._elections.enter(request)
        writer = asyncio.create_task(_write(seat, context), name="owner stream writer")
        writer.add_done_callback(end_at_bug)
        is_released = False
        try:
            while not writer.done():
                request = await context.read()
                if request is grpc.aio.EOF or request.is_released:
                    is_released = request is not grpc.aio.EOF
                    break
                self._elections.heard(seat)
            if writer.done():
                writer.result()
        finally:
            self._elections.leave(seat, is_released=is_released)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    # ---- administrators -------------------------------------------------------------------------------------

    @typed_errors
    async def ListOwners(  # noqa: N802
        self, request: owners_pb2.ListOwnersRequest, _context: Any
    ) -> owners_pb2.ListOwnersResponse:
        """A page of the owners of names."""
        if request.topic:
            check_name(request.topic, "topic")
        keys = self._services.keys
        if len(request.after) not in (0, 16):
            raise BadRequestError("a page begins after the producer id of 16 bytes that the page before named")
        after = keys.owner(request.after) if request.after else ""
        listing = await self._services.coordinator.list(keys.owners, after=after, count_max=OWNERS_PER_PAGE)
        answer = owners_pb2.ListOwnersResponse()
        for item in listing.items:
            record = records_pb2.OwnerRecord.FromString(item.value)
            if request.topic in ("", record.topic):
                answer.owners.append(record)
        if len(listing.items) == OWNERS_PER_PAGE:
            answer.next = bytes.fromhex(listing.items[-1].key.removeprefix(keys.owners))
        return answer

    @typed_errors
    async def DescribeOwner(  # noqa: N802
        self, request: owners_pb2.DescribeOwnerRequest, context: Any
    ) -> owners_pb2.DescribeOwnerResponse:
        """A name, its owner, and who waits. The host answers."""
        hosted = await self._elections.host(request.topic, request.name)
        record = await self._record(hosted)
        election = hosted.election
        answer = owners_pb2.DescribeOwnerResponse(
            is_here=election.owner is not None,
            waiting=[one.text for one in election.candidates.values() if not one.told_epoch],
        )
        if record is not None:
            answer.owner.CopyFrom(record)
        for one in election.candidates.values():
            if one.standing is not None and one.standing.kind is OwnerStanding.STARTING:
                answer.starting.CopyFrom(_reply(one.standing))
        return answer

    @typed_errors
    async def ReleaseOwner(  # noqa: N802
        self, request: owners_pb2.ReleaseOwnerRequest, context: Any
    ) -> owners_pb2.ReleaseOwnerResponse:
        """Take a name away from its owner. The call ends when the record says so, or has another owner."""
        until = time.monotonic() + remaining_s(context) * 0.9
        hosted = await self._elections.host(request.topic, request.name)
        first: records_pb2.OwnerRecord | None = None
        while True:
            record = await self._record(hosted)
            if record is None:
                raise PreconditionError(f"{request.name!r} never had an owner in {request.topic}")
            if first is None and request.epoch not in (0, record.epoch):
                raise PreconditionError(
                    f"{request.name!r} is in epoch {record.epoch} now ({record.owner_text}), not {request.epoch}: "
                    "nothing was changed"
                )
            first = first or record
            if record.is_released or record.epoch != first.epoch:
                return owners_pb2.ReleaseOwnerResponse(owner=record)
            if time.monotonic() >= until:
                raise NotServingError("the host could not release the name in time: look at it, and try again")
            self._elections.release(hosted)
            await asyncio.sleep(PAUSE_S)

    async def _record(self, hosted: Hosted) -> records_pb2.OwnerRecord | None:
        item = await self._services.coordinator.get(self._services.keys.owner(hosted.producer))
        return records_pb2.OwnerRecord.FromString(item.value) if item is not None else None


async def _write(seat: Seat, context: Any) -> None:
    """Report where the program stands, whenever that changes. Ends after it lost the name."""
    while True:
        await seat.wake.wait()
        seat.wake.clear()
        standing, seat.standing = seat.standing, None
        if standing is not None:
            await context.write(_reply(standing))
            if standing.kind is OwnerStanding.LOST:
                return
        if seat.error is not None:
            raise seat.error


def _reply(standing: Standing) -> owners_pb2.AcquireReply:
    return owners_pb2.AcquireReply(
        state=_STATES[standing.kind],
        epoch=standing.epoch,
        owner_text=standing.text,
        position=standing.position,
        partitions=standing.partitions[:PARTITIONS_TOLD],
        partition_count=len(standing.partitions),
        reason=standing.reason,
    )
