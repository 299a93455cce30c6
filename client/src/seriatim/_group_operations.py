"""Administration of where consumer groups stand: rewind, skip, pause, resume.

A rewind or skip is planned first and carried out as planned: the plan names offsets, and the group's epoch on each
partition. If the group was moved since, the epoch is another one, and that partition is refused. Each operation has a
random id; the client repeats what was not answered with the same id, and the brokers carry it out once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from seriatim_api.errors import (
    CATALOGUE,
    BadRequestError,
    NotServingError,
    PreconditionError,
    SeriatimError,
    UnavailableError,
    UnknownGroupError,
    make_error,
)
from seriatim_api.ids import OFFSET_MAX
from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2

from seriatim._broker_groups import BrokerGroupAdmin
from seriatim._records import GroupDescription, GroupPartition, MovePlan, OperatedPartition, PlannedMove

if TYPE_CHECKING:
    from seriatim._settings import Target

DEADLINE_S: Final = 10.0
OPERATE_DEADLINE_S: Final = 20.0
"""For an operation with all its repetitions: a broker that died is replaced within a few seconds."""
RETRY_PAUSE_S: Final = 0.2
PLAN_PATIENCE_S: Final = 5.0
"""For so long a plan is made again, while a server that died is being replaced."""
PARTITIONS_PER_CALL: Final = 1000

_OPERATIONS: Final = {
    "rewind": records_pb2.GROUP_OPERATION_REWIND,
    "skip": records_pb2.GROUP_OPERATION_SKIP,
    "pause": records_pb2.GROUP_OPERATION_PAUSE,
    "resume": records_pb2.GROUP_OPERATION_RESUME,
}
_NAMES: Final[dict[int, str]] = {number: name for name, number in _OPERATIONS.items()}
STARTS: Final = {
    "earliest": broker_pb2.START_POSITION_EARLIEST,
    "latest": broker_pb2.START_POSITION_LATEST,
}


class GroupOperations(BrokerGroupAdmin):
    """The part of `Admin` that moves, pauses and resumes consumer groups."""

    async def list_groups(self, topic: str) -> list[str]:
        """Names of the consumer groups that have a position on some partition of a topic, sorted.

        Raises:
            UnknownTopicError: There is none.
        """
        request = broker_pb2.ListConsumerGroupsRequest(topic=topic)
        return list((await self._caller.admin("ListConsumerGroups", request, DEADLINE_S)).groups)

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        """Where a consumer group stands on each partition. A partition that nobody could describe has an `error`.

        Raises:
            UnknownGroupError: It was never there.
        """
        request = broker_pb2.DescribeGroupRequest(topic=topic, group=group)
        answer = await self._caller.admin("DescribeGroup", request, DEADLINE_S)
        return GroupDescription(topic, group, tuple(map(_group_partition_of, answer.partitions)))

    async def plan_move(
        self,
        topic: str,
        group: str,
        to: Target,
        *,
        partitions: Sequence[int] | None = None,
        operation: Literal["rewind", "skip"] | None = None,
    ) -> MovePlan:
        """Look what it takes to move a consumer group, and change nothing. Give the plan to `move_group`.

        Args:
            topic: Its name.
            group: The consumer group.
            to: "earliest", "latest", a datetime with a time zone (the first message that was appended then or later),
                or an offset of one partition, as `Message.offset`. With "latest" it is the end as it is by now.
            partitions: Numbers in the topic; None: all.
            operation: "rewind" or "skip": a partition that needs the other one has an error. None: whichever it takes.

        Returns:
            A row for each partition; one where the group cannot go there has an `error`.

        Raises:
            UnknownTopicError, UnknownGroupError, PartitionOutOfRangeError: As they say.
            BadRequestError: No such target.
        """
        request = broker_pb2.PlanGroupMoveRequest(
            topic=topic,
            group=group,
            to=target_to_proto(to),
            partitions=partitions or (),
            operation=cast("Any", _OPERATIONS[operation] if operation is not None else 0),
        )
        check_one_partition(to, partitions)
        loop = asyncio.get_running_loop()
        until = loop.time() + PLAN_PATIENCE_S
        while True:
            answer = await self._caller.admin("PlanGroupMove", request, DEADLINE_S)
            if loop.time() >= until or not any(_may_succeed(move.error) for move in answer.moves):
                return MovePlan(topic, group, tuple(map(_planned_of, answer.moves)))
            await asyncio.sleep(RETRY_PAUSE_S)

    async def move_group(self, plan: MovePlan, *, request_id: bytes | None = None) -> list[OperatedPartition]:
        """Carry out a plan of `plan_move`.

        The group begins at the planned offset of each partition, in a new epoch. All that it acknowledged there counts
        no more. Consumers that run go on: each is told (`on_group_change`) before it is given the first message. What
        they were given before, and have not acknowledged, they cannot acknowledge any more.

        Args:
            plan: Every row without an error.
            request_id: 16 random bytes; made up if absent. An operation that is repeated with its id is carried out
                once, as long as fewer than 8 others came after it on the partition.

        Returns:
            What became of each partition. A group that was moved since the plan was made has `StaleGroupEpochError`
            there: nothing was changed, so plan again. If cancelled, it may have been carried out anywhere.

        Raises:
            SeriatimError: A row of the plan has an error, and this is the first; nothing was changed.
            UnavailableError: No broker answered in time; it may have been carried out. Repeat it with the same id.
        """
        wrong = [move for move in plan.moves if move.error is not None]
        if wrong:
            first = wrong[0]
            text = f"nothing was changed: partition {first.group.partition}: {first.error}"
            raise make_error(first.error_number or PreconditionError.number, text)
        done: list[OperatedPartition] = []
        for name in ("rewind", "skip"):
            rows = [
                broker_pb2.OperatedPartition(
                    partition=move.group.partition, group_epoch=move.group.group_epoch, offset=move.to_offset or 0
                )
                for move in plan.moves
                if move.operation == name
            ]
            done += await self._operate(plan.topic, plan.group, name, rows, request_id or os.urandom(16))
        return sorted(done, key=lambda row: row.partition)

    async def rewind_group(
        self, topic: str, group: str, to: Target, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Plan a rewind and carry it out: all from `to` on is delivered again. See `plan_move` and `move_group`.

        Raises:
            OffsetOutOfRangeError: The group cannot go there on some partition, or it would be a skip; nothing was
                changed.
        """
        return await self.move_group(await self.plan_move(topic, group, to, partitions=partitions, operation="rewind"))

    async def skip_group(
        self, topic: str, group: str, to: Target, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Plan a skip and carry it out: what lies before `to` is not delivered any more. See `rewind_group`."""
        return await self.move_group(await self.plan_move(topic, group, to, partitions=partitions, operation="skip"))

    async def pause_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Deliver nothing more to a consumer group until it is resumed, also after restarts and changes of server.

        What was delivered can still be acknowledged. A group that is paused already stays so (`was_done`). Partitions
        on which the group has no position yet are not paused.

        Raises:
            UnknownGroupError: The group was never there.
        """
        return await self._hold(topic, group, "pause", partitions)

    async def resume_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Go on delivering to a group that was paused; one that is not paused stays as it is (`was_done`)."""
        return await self._hold(topic, group, "resume", partitions)

    async def _hold(
        self, topic: str, group: str, name: str, partitions: Sequence[int] | None
    ) -> list[OperatedPartition]:
        if partitions is None:
            described = await self.describe_group(topic, group)
            partitions = [row.partition for row in described.partitions if row.has_cursor]
            if not partitions:
                raise UnknownGroupError(f"no consumer group {group!r} on topic {topic!r}")
        rows = [broker_pb2.OperatedPartition(partition=number) for number in dict.fromkeys(partitions)]
        return await self._operate(topic, group, name, rows, os.urandom(16))

    async def _operate(
        self, topic: str, group: str, name: str, rows: Sequence[broker_pb2.OperatedPartition], request_id: bytes
    ) -> list[OperatedPartition]:
        """Have it carried out, and repeat what may not have been, with the same id."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OPERATE_DEADLINE_S
        done: list[OperatedPartition] = []
        for start in range(0, len(rows), PARTITIONS_PER_CALL):
            left = {row.partition: row for row in rows[start : start + PARTITIONS_PER_CALL]}
            while left:
                request = broker_pb2.OperateGroupRequest(
                    topic=topic,
                    group=group,
                    operation=cast("Any", _OPERATIONS[name]),
                    request_id=request_id,
                    partitions=left.values(),
                )
                is_last = loop.time() + RETRY_PAUSE_S >= deadline
                try:
                    answer = await self._caller.admin("OperateGroup", request, min(DEADLINE_S, OPERATE_DEADLINE_S))
                except SeriatimError as exc:
                    if is_last or not isinstance(exc, (UnavailableError, NotServingError)):
                        raise
                else:
                    for result in answer.results:
                        if is_last or not _may_succeed(result.error):
                            done.append(_operated_of(result))
                            del left[result.partition]
                if left:
                    await asyncio.sleep(RETRY_PAUSE_S)
        return done


def check_one_partition(to: Target, partitions: Sequence[int] | None) -> None:
    """Refuse an offset for more than one partition.

    Raises:
        BadRequestError: It is.
    """
    if isinstance(to, int) and len(set(partitions or ())) != 1:
        raise BadRequestError("an offset is of one partition: say which")


def target_to_proto(to: Target) -> broker_pb2.GroupTarget:
    """A target as brokers read it.

    Raises:
        BadRequestError: There is no such target.
    """
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise BadRequestError("a time has a time zone: datetime(..., tzinfo=timezone.utc), for example")
        time_ms = int(to.timestamp() * 1000)
        if time_ms < 0:
            raise BadRequestError(f"{to} lies before 1970")
        return broker_pb2.GroupTarget(time_ms=time_ms)
    if isinstance(to, int) and not isinstance(to, bool):
        if not 0 <= to <= OFFSET_MAX:
            raise BadRequestError(f"{to} is no offset")
        return broker_pb2.GroupTarget(offset=to)
    if to not in STARTS:
        raise BadRequestError(f"there is no target {to!r}: it is earliest, latest, an offset or a time")
    return broker_pb2.GroupTarget(position=STARTS[to])


def _may_succeed(error: common_pb2.Error) -> bool:
    kind = CATALOGUE.get(error.number)
    return kind is not None and kind.retriable


def _text_of(error: common_pb2.Error) -> str:
    return f"[{error.number}] {error.message}"


def _planned_of(row: broker_pb2.PlannedGroupMove) -> PlannedMove:
    group = _group_partition_of(row.group)
    if row.HasField("error"):
        return PlannedMove(group, None, None, None, _text_of(row.error), row.error.number)
    count = abs(row.to_position - group.position) if row.to_position_is_known and group.error is None else None
    return PlannedMove(group, cast("Any", _NAMES.get(row.operation)), row.to_offset, count, None)


def _operated_of(row: broker_pb2.OperatedGroup) -> OperatedPartition:
    if row.HasField("error"):
        return OperatedPartition(row.partition, False, None, None, _text_of(row.error), row.error.number)
    return OperatedPartition(row.partition, row.was_done, row.group_epoch, row.offset, None)


def _group_partition_of(row: broker_pb2.GroupPartition) -> GroupPartition:
    return GroupPartition(
        partition=row.partition,
        partition_id=row.partition_id,
        has_cursor=row.has_cursor,
        segment=row.segment,
        acked_index=row.acked_index,
        position=row.position,
        end_position=row.end_position,
        server_broker=row.server_broker,
        active_consumer=row.active_consumer,
        standby_consumers=tuple(row.standby_consumers),
        group_epoch=row.group_epoch,
        error=_text_of(row.error) if row.HasField("error") else None,
        end_is_at_least=row.end_is_at_least,
        error_number=row.error.number if row.HasField("error") else None,
        paused=row.paused,
        begun_by=cast("Any", _NAMES.get(row.begun_by)),
        external=row.external,
        reported_at_ms=row.reported_at_ms,
    )
