"""Rewind, skip, pause and resume of consumer groups, through any broker, and plans of what they would do.

A plan is made first: where the consumer group is, and which offset the target has now. The operation then names offsets
and group epochs of the plan. So it does what the plan showed, or nothing. The server of each partition's cursor segment
carries it out (`core.consumers.groups.operations`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from seriatim_api.errors import (
    BadRequestError,
    GroupHeadElsewhereError,
    NotServingError,
    OffsetOutOfRangeError,
    PartitionOutOfRangeError,
    PreconditionError,
    SeriatimError,
    UnknownGroupError,
)
from seriatim_api.ids import make_offset
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2

from ...core.values.chain import Chain
from ...core.values.effects import ConsumerGroupOperated
from ...core.values.events import ConsumerGroupOperation, CursorRecord, OperateConsumerGroup
from ...core.values.keyed import ConsumerMode, WantedSettings
from ...core.values.positions import Place
from ...core.values.targets import named, place_of
from ...runtime.coordinator.records import operation_to_number
from ..calls.outbound import is_forwarded, operator_epoch
from ..calls.services import answered, check_group, guard_of_call, remaining_s, typed_errors
from .consumer_group_admin import ConsumerGroupAdmin, chosen_chains, row_of, unknown_consumer_group
from .consumer_group_settings import check_dead_letter_topic, wanted_from
from .consumer_group_targets import Found, place_from

PARTITIONS_PER_CALL_MAX = 1000
REQUEST_ID_BYTES = 16

ROUNDS_MAX = 5
ROUND_PAUSE_S = 0.1
"""Rounds, and the pause between. A round fails on a partition if the consumer group crosses or its server changes."""

_AT_ONCE_MAX = 64
"""Partitions of one call that are operated on at once."""


class ConsumerGroupOperations(ConsumerGroupAdmin):
    """The part of `seriatim.v1.Admin` that moves, pauses, resumes and configures consumer groups."""

    @typed_errors
    async def PlanGroupMove(  # noqa: N802 - the contract's names
        self, request: broker_pb2.PlanGroupMoveRequest, context: Any
    ) -> broker_pb2.PlanGroupMoveResponse:
        """Where the consumer group is, where the target is, and how many messages are between."""
        check_group(request.group)
        wanted = _operation(request.operation, moves=True) if request.operation else None
        topic = await self._services.topic(request.topic)
        chains = chosen_chains(await self._services.chains(topic.partition_ids), request.partitions, request.topic)
        cursors = await self._cursors(chains, request.group)
        if not any(cursors.has(chain.partition) for chain in chains):
            raise unknown_consumer_group(request.topic, request.group)
        # First where the group is. If the end were asked first, a group that reads on meanwhile would be after it,
        # and a skip to the end would be refused as a rewind.
        rows = await self._describe(request.topic, request.group, chains, cursors, context)
        places = await self._targets.find(request.topic, chains, request.to, remaining_s(context) * 0.8)
        by_number = {chain.number: chain for chain in chains}
        return broker_pb2.PlanGroupMoveResponse(
            moves=[_planned(by_number[row.partition], row, places[row.partition], wanted) for row in rows]
        )

    @typed_errors
    async def OperateGroup(  # noqa: N802
        self, request: broker_pb2.OperateGroupRequest, context: Any
    ) -> broker_pb2.OperateGroupResponse:
        """Have the servers of the cursor segments carry the operation out. Each partition has its own outcome."""
        check_group(request.group)
        operation = _operation(request.operation)
        if len(request.request_id) != REQUEST_ID_BYTES:
            raise BadRequestError(f"a request id has {REQUEST_ID_BYTES} bytes")
        wanted_settings = WantedSettings()
        if operation is ConsumerGroupOperation.CONFIGURE:
            wanted_settings = wanted_from(request.settings, request.topic, request.group)
            if wanted_settings.mode is not None:
                check_group(request.group, is_broadcast=wanted_settings.mode is ConsumerMode.BROADCAST)
            if wanted_settings == WantedSettings():
                raise BadRequestError("nothing is to be configured: name a mode, a retry policy, or both")
        numbers = [row.partition for row in request.partitions]
        if not numbers or len(set(numbers)) < len(numbers):
            raise BadRequestError("an operation names at least one partition, and each once")
        for row in request.partitions:
            place_from(row.offset)
        await guard_of_call(self._services, context)()
        topic = await self._services.topic(request.topic)
        if not is_forwarded(context):
            await check_dead_letter_topic(self._services, wanted_settings.retry, len(topic.partition_ids))
        wanted = {row.partition: row for row in request.partitions}
        results: dict[int, broker_pb2.OperatedGroup] = {}
        for round_no in range(1, ROUNDS_MAX + 1):
            left = [number for number in numbers if number not in results or _is_elsewhere(results[number])]
            ids = [topic.partition_ids[number] for number in _checked(left, len(topic.partition_ids), request.topic)]
            chains = await self._services.chains(ids)
            results.update(await self._operate(request, operation, wanted_settings, chains, wanted, context))
            if is_forwarded(context) or round_no == ROUNDS_MAX or not any(map(_is_elsewhere, results.values())):
                break
            await asyncio.sleep(ROUND_PAUSE_S)
        return broker_pb2.OperateGroupResponse(results=[results[number] for number in numbers])

    # ---- carrying out --------------------------------------------------------------------------------

    async def _operate(
        self,
        request: broker_pb2.OperateGroupRequest,
        operation: ConsumerGroupOperation,
        settings: WantedSettings,
        chains: Sequence[Chain],
        wanted: Mapping[int, broker_pb2.OperatedPartition],
        context: Any,
    ) -> dict[int, broker_pb2.OperatedGroup]:
        """One round: this broker does what it serves and asks the other servers. A forwarded call stays here."""
        cursors = await self._cursors(chains, request.group)
        results: dict[int, broker_pb2.OperatedGroup] = {}
        by_server: dict[str, list[Chain]] = {}
        own = self._services.identity.member.broker
        for chain in chains:
            cursor = cursors.standing(chain.partition)
            if cursor is None:
                error = UnknownGroupError(f"group {request.group} has no position on {chain.name} yet")
                results[chain.number] = _failed(chain.number, error)
                continue
            if cursor.external:
                results[chain.number] = _failed(chain.number, _external(request.group))
                continue
            server = own if is_forwarded(context) else row_of(chain, cursor).server_broker
            by_server.setdefault(server, []).append(chain)
        room = asyncio.Semaphore(_AT_ONCE_MAX)

        async def here(chain: Chain) -> None:
            async with room:
                results[chain.number] = await self._operate_here(request, operation, settings, chain, wanted, context)

        async def there(server: str, theirs: Sequence[Chain]) -> None:
            results.update(await self._operate_there(server, request, theirs, wanted, context))

        local = [here(chain) for chain in by_server.pop(own, [])]
        await asyncio.gather(*local, *(there(server, theirs) for server, theirs in by_server.items()))
        return results

    async def _operate_here(
        self,
        request: broker_pb2.OperateGroupRequest,
        operation: ConsumerGroupOperation,
        settings: WantedSettings,
        chain: Chain,
        wanted: Mapping[int, broker_pb2.OperatedPartition],
        context: Any,
    ) -> broker_pb2.OperatedGroup:
        row = wanted[chain.number]
        segment_no, index = place_from(row.offset)
        try:
            length: int | SeriatimError = 0
            if operation.moves:
                left_s = remaining_s(context) * 0.5
                lengths = await self._targets.known_lengths(request.topic, [chain], segment_no, left_s)
                length = lengths[chain.number]
            if isinstance(length, SeriatimError):
                raise length
            known_len = length
            deadline_s = remaining_s(context) * 0.9
            deadline_us = time.monotonic_ns() // 1000 + int(deadline_s * 0.9 * 1e6)
            asked = await self._services.ask_core(
                lambda number: OperateConsumerGroup(
                    number, chain.partition, request.group, operation, request.request_id, row.group_epoch,
                    segment_no, index, known_len, deadline_us, settings, request.drop_aside, chain.epoch,
                ),
                deadline_s,
            )  # fmt: skip
            reply = answered(asked, ConsumerGroupOperated)
            assert reply.record is not None
        except SeriatimError as exc:
            return _failed(chain.number, exc)
        return _operated(chain.number, reply.record, reply.was_done)

    async def _operate_there(
        self,
        server: str,
        request: broker_pb2.OperateGroupRequest,
        chains: Sequence[Chain],
        wanted: Mapping[int, broker_pb2.OperatedPartition],
        context: Any,
    ) -> dict[int, broker_pb2.OperatedGroup]:
        numbers = [chain.number for chain in chains]
        passed_on = broker_pb2.OperateGroupRequest()
        passed_on.CopyFrom(request)
        del passed_on.partitions[:]
        passed_on.partitions.extend(wanted[number] for number in numbers)
        try:
            answer = await self._calls.admin(
                server, "OperateGroup", passed_on, remaining_s(context) * 0.9, operator_epoch(context)
            )
        except SeriatimError as exc:
            return {number: _failed(number, exc) for number in numbers}
        return {row.partition: row for row in answer.results}


def _planned(
    chain: Chain,
    row: broker_pb2.GroupPartition,
    place: Found,
    wanted: ConsumerGroupOperation | None,
) -> broker_pb2.PlannedGroupMove:
    """The move from where the consumer group is to the target."""
    move = broker_pb2.PlannedGroupMove(group=row)
    if row.HasField("error"):
        move.error.CopyFrom(row.error)
        return move
    if isinstance(place, SeriatimError):
        move.error.CopyFrom(error_to_proto(place))
        return move
    if row.external:
        move.error.CopyFrom(error_to_proto(_external("the group")))
        return move
    here = Place(row.segment, row.acked_index)
    there = place_of(chain, here.segment_no, here.index, here.index)  # after the end of a segment comes the next one
    operation = wanted or (ConsumerGroupOperation.SKIP if place > there else ConsumerGroupOperation.REWIND)
    if (place > there and operation is ConsumerGroupOperation.REWIND) or (
        place < there and operation is ConsumerGroupOperation.SKIP
    ):
        other = "a skip" if operation is ConsumerGroupOperation.REWIND else "a rewind"
        text = f"the group is at {named(there)}; to go to {named(place)} is {other}"
        move.error.CopyFrom(error_to_proto(OffsetOutOfRangeError(text, here=named(there))))
        return move
    _fill(move, chain, place)
    move.operation = operation_to_number(operation)
    return move


def _fill(move: broker_pb2.PlannedGroupMove, chain: Chain, place: Place) -> None:
    segment = chain.segment(place.segment_no)
    move.to_offset = make_offset(*place)
    if segment is not None and segment.base is not None:
        move.to_position = segment.base + place.index
        move.to_position_is_known = True


def _checked(numbers: Sequence[int], count: int, topic: str) -> Sequence[int]:
    if len(numbers) > PARTITIONS_PER_CALL_MAX:
        raise BadRequestError(f"an operation names at most {PARTITIONS_PER_CALL_MAX} partitions")
    for number in numbers:
        if not 0 <= number < count:
            raise PartitionOutOfRangeError(f"{topic} has partitions 0 to {count - 1}, not {number}")
    return numbers


def _operation(number: int, *, moves: bool = False) -> ConsumerGroupOperation:
    try:
        operation = ConsumerGroupOperation(number)
    except ValueError as exc:
        raise BadRequestError(f"there is no operation {number} on a consumer group") from exc
    if moves and not operation.moves:
        raise BadRequestError("only a rewind or a skip has a target")
    return operation


def _is_elsewhere(result: broker_pb2.OperatedGroup) -> bool:
    return result.error.number in (GroupHeadElsewhereError.number, NotServingError.number)


def _external(group: str) -> PreconditionError:
    return PreconditionError(f"{group} has no consumers: it reads ranges, and begins where its reader says")


def _failed(number: int, error: SeriatimError) -> broker_pb2.OperatedGroup:
    result = broker_pb2.OperatedGroup(partition=number)
    result.error.CopyFrom(error_to_proto(error))
    return result


def _operated(number: int, record: CursorRecord, was_done: bool) -> broker_pb2.OperatedGroup:
    return broker_pb2.OperatedGroup(
        partition=number,
        was_done=was_done,
        group_epoch=record.group_epoch,
        offset=make_offset(record.segment_no, record.start_index),
        paused=record.paused,
    )
