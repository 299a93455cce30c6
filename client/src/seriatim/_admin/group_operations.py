"""Administration of the cursors of consumer groups: rewind, skip, pause, resume.

A rewind or a skip is planned first, and then carried out exactly as planned. The plan has an offset and the group epoch
for each partition. If the consumer group was moved since, its group epoch is higher, and the broker refuses that
partition. Each operation has a random id. If no answer comes, the client repeats the request with the same id, and the
brokers carry it out once.
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
from seriatim_api.ids import OFFSET_MAX, make_offset
from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2

from seriatim._admin.broker_groups import BrokerGroupAdmin
from seriatim._admin.descriptions import GroupDescription, GroupPartition, MovePlan, OperatedPartition, PlannedMove
from seriatim._values.arguments import check_partitions
from seriatim._values.consumer_group_settings import STARTS, settings_of
from seriatim._values.conversion import value_of

if TYPE_CHECKING:
    from seriatim._values.settings import Target

DEADLINE_S: Final = 10.0
OPERATE_DEADLINE_S: Final = 20.0
"""Seconds for an operation with all its repetitions. Another broker replaces a dead one within a few seconds."""
RETRY_PAUSE_S: Final = 0.2
PLAN_PATIENCE_S: Final = 5.0
"""Seconds for which the client asks for a plan again, while another server replaces a dead one."""
PARTITIONS_PER_CALL: Final = 1000

_OPERATIONS: Final = {
    "rewind": records_pb2.GROUP_OPERATION_REWIND,
    "skip": records_pb2.GROUP_OPERATION_SKIP,
    "pause": records_pb2.GROUP_OPERATION_PAUSE,
    "resume": records_pb2.GROUP_OPERATION_RESUME,
    "configure": records_pb2.GROUP_OPERATION_CONFIGURE,
}
_NAMES: Final[dict[int, str]] = {number: name for name, number in _OPERATIONS.items()}


class GroupOperations(BrokerGroupAdmin):
    """The part of `Admin` that moves, pauses and resumes consumer groups."""

    async def list_groups(self, topic: str) -> list[str]:
        """The names of the consumer groups that have a cursor on at least one partition of a topic, sorted.

        Raises:
            UnknownTopicError: The cluster has no such topic.
        """
        request = broker_pb2.ListConsumerGroupsRequest(topic=topic)
        return list((await self._caller.admin("ListConsumerGroups", request, DEADLINE_S)).groups)

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        """The place of a consumer group in each partition. If no broker could report it, the partition has an `error`.

        Raises:
            UnknownGroupError: The topic has no such consumer group.
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
        """Plan the move of a consumer group, and change nothing. Give the plan to `move_group` to carry it out.

        Args:
            topic: The topic's name.
            group: The consumer group's name.
            to: "earliest", "latest" (the end at the time of the call), a datetime with a time zone (the first message
                with this append time or a later one), or an offset in one partition, as in `Message.offset`.
            partitions: Numbers in the topic; None: all. With an offset: exactly one.
            operation: "rewind" or "skip": a partition that needs the other operation gets an error. None: each
                partition gets the operation that it needs.

        Returns:
            A row for each partition. If the consumer group cannot go there, the row has an `error`.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            UnknownGroupError: The topic has no such consumer group.
            PartitionOutOfRangeError: The topic has fewer partitions.
            BadRequestError: There is no such target.
        """
        check_partitions(partitions)
        request = broker_pb2.PlanGroupMoveRequest(
            topic=topic,
            group=group,
            to=target_to_proto(to),
            partitions=partitions,
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

    async def move_group(
        self, plan: MovePlan, *, request_id: bytes | None = None, drop_aside: bool = False
    ) -> list[OperatedPartition]:
        """Carry out a plan of `plan_move`.

        On each partition the consumer group begins at the planned offset, in a new group epoch. Its earlier
        acknowledgements there do not count any more. Running consumers continue: `on_group_change` notifies each of
        them before it gets the first message. They can no longer acknowledge messages that they got before.

        Args:
            plan: A plan in which no row has an error.
            request_id: 16 random bytes; made up if None. If an operation is repeated with its id, the brokers carry it
                out once, unless 8 or more other operations on the partition came after it.
            drop_aside: Drop parked keys, and messages that were set aside and would come no more. Without it, a
                partition with such keys has a `PreconditionError`.

        Returns:
            The result on each partition. If the consumer group was moved there since the plan was made, the result has
            a `StaleGroupEpochError`: nothing was changed on that partition, so plan again.

        Raises:
            SeriatimError: The first error of a row of the plan. Nothing was changed.
            UnavailableError: No broker answered in time. The operation may have been carried out: repeat it with the
                same id.

        If the call is cancelled, the operation may have been carried out on any of the partitions.
        """
        wrong = [move for move in plan.moves if move.error is not None]
        if wrong:
            first = wrong[0]
            text = f"nothing was changed: partition {first.group.partition}: {first.error}"
            raise make_error(first.error_number or PreconditionError.number, text)
        for move in plan.moves:
            self._record_move(plan, move)
        done: list[OperatedPartition] = []
        for name in ("rewind", "skip"):
            rows = [
                broker_pb2.OperatedPartition(
                    partition=move.group.partition, group_epoch=move.group.group_epoch, offset=move.to_offset
                )
                for move in plan.moves
                if move.operation == name and move.to_offset is not None
            ]
            id_ = os.urandom(16) if request_id is None else request_id
            done += await self._operate(plan.topic, plan.group, name, rows, id_, drop_aside=drop_aside)
        carried_out = {row.partition for row in done if row.error is None}
        for move in plan.moves:
            if move.group.partition in carried_out:
                self._record_move(plan, move, done=True)
        return sorted(done, key=lambda row: row.partition)

    def _record_move(self, plan: MovePlan, move: PlannedMove, *, done: bool = False) -> None:
        if self._recorder is not None:
            here, to = make_offset(move.group.segment, move.group.acked_index), move.to_offset
            first, end = (here, to) if move.operation == "skip" else (to, None)
            self._recorder.person(
                "move", plan.group, plan.topic, move.group.partition, offset=first, end=end, way=move.operation,
                done=done,
            )  # fmt: skip

    async def rewind_group(
        self,
        topic: str,
        group: str,
        to: Target,
        *,
        partitions: Sequence[int] | None = None,
        drop_aside: bool = False,
    ) -> list[OperatedPartition]:
        """Plan a rewind and carry it out: all messages from `to` on come again. See `plan_move` and `move_group`.

        Raises:
            OffsetOutOfRangeError: On at least one partition the consumer group cannot go there, or that would be a
                skip. Nothing was changed.
        """
        plan = await self.plan_move(topic, group, to, partitions=partitions, operation="rewind")
        return await self.move_group(plan, drop_aside=drop_aside)

    async def skip_group(
        self,
        topic: str,
        group: str,
        to: Target,
        *,
        partitions: Sequence[int] | None = None,
        drop_aside: bool = False,
    ) -> list[OperatedPartition]:
        """Plan a skip and carry it out: messages before `to` are not delivered any more. See `rewind_group`."""
        plan = await self.plan_move(topic, group, to, partitions=partitions, operation="skip")
        return await self.move_group(plan, drop_aside=drop_aside)

    async def pause_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Deliver nothing more to a consumer group until it is resumed, also after restarts and changes of server.

        Messages that were delivered before can still be acknowledged. If the consumer group is paused already, nothing
        changes (`was_done`). Partitions on which it has no cursor yet are not paused.

        Raises:
            UnknownGroupError: The topic has no such consumer group.
        """
        return await self._hold(topic, group, "pause", partitions)

    async def resume_group(
        self, topic: str, group: str, *, partitions: Sequence[int] | None = None
    ) -> list[OperatedPartition]:
        """Let a paused consumer group continue. If it is not paused, nothing changes (`was_done`)."""
        return await self._hold(topic, group, "resume", partitions)

    async def _hold(
        self, topic: str, group: str, name: str, partitions: Sequence[int] | None
    ) -> list[OperatedPartition]:
        rows = await self._rows_of(topic, group, partitions)
        return await self._operate(topic, group, name, rows, os.urandom(16))

    async def _rows_of(
        self, topic: str, group: str, partitions: Sequence[int] | None
    ) -> list[broker_pb2.OperatedPartition]:
        """These partitions, or all on which the consumer group has a cursor.

        Raises:
            BadRequestError: There is no such number.
        """
        check_partitions(partitions)
        if partitions is None:
            described = await self.describe_group(topic, group)
            partitions = [row.partition for row in described.partitions if row.has_cursor]
            if not partitions:
                raise UnknownGroupError(f"no consumer group {group!r} on topic {topic!r}")
        return [broker_pb2.OperatedPartition(partition=number) for number in dict.fromkeys(partitions)]

    async def _operate(
        self,
        topic: str,
        group: str,
        name: str,
        rows: Sequence[broker_pb2.OperatedPartition],
        request_id: bytes,
        *,
        settings: records_pb2.GroupSettings | None = None,
        drop_aside: bool = False,
    ) -> list[OperatedPartition]:
        """Have the operation carried out. Where the outcome is not known, repeat it with the same id."""
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
                    settings=settings,
                    drop_aside=drop_aside,
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
    """Refuse an offset that does not come with exactly one partition.

    Raises:
        BadRequestError: `to` is an offset, and `partitions` does not name exactly one partition.
    """
    if isinstance(to, int) and (partitions is None or len(set(partitions)) != 1):
        raise BadRequestError("an offset is of one partition: say which")


def target_to_proto(to: Target) -> broker_pb2.GroupTarget:
    """The target in the form in which brokers read it.

    Raises:
        BadRequestError: There is no such target, a time has no zone, or it is before 1970.
    """
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise BadRequestError(
                "the time has no time zone: give it one, for example datetime(..., tzinfo=timezone.utc)"
            )
        time_ms = int(to.timestamp() * 1000)
        if time_ms < 0:
            raise BadRequestError(f"{to} is before 1970: there was no message then")
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
    return value_of(
        GroupPartition,
        row,
        error=_text_of(row.error) if row.HasField("error") else None,
        error_number=row.error.number if row.HasField("error") else None,
        begun_by=_NAMES.get(row.begun_by),
        settings=None if row.external else settings_of(row.settings),
    )
