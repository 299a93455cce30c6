"""Administration of consumer groups: made, described and deleted through any broker.

The servers of its cursor segments describe a consumer group. If it begins at the end of a partition, the master of the
open segment says where that is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seriatim_api.errors import (
    BadRequestError,
    NotServingError,
    PartitionOutOfRangeError,
    PositionUnknownError,
    PreconditionError,
    SeriatimError,
    UnavailableError,
    UnknownGroupError,
)
from seriatim_api.ids import PartitionId, partition_name
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2, records_pb2

from ...core.values.chain import Chain
from ...core.values.effects import ConsumerGroupDescribed, LogsListed
from ...core.values.events import CursorRecord, DescribeConsumerGroup, ListLogs
from ...core.values.keyed import SETTINGS_DEFAULT, ConsumerGroupSettings, KeyCounts
from ...core.values.positions import end_of_drops, first_kept
from ...interfaces.settings_records import settings_to_proto
from ...runtime.controller.consumer_groups import ConsumerGroupCursors
from ...runtime.controller.controller import Controller
from ...runtime.coordinator.keys import group_of
from ...runtime.coordinator.operator_lease import Guard, unguarded
from ...runtime.coordinator.records import cursor_from_value, operation_to_number
from ...runtime.coordinator.topic_feed import TopicFeed
from ..calls.addresses import Addresses
from ..calls.outbound import BrokerCalls, is_forwarded, operator_epoch
from ..calls.services import Services, answered, check_group, guard_of_call, remaining_s, typed_errors
from ..distributed.places import Places
from .consumer_group_settings import check_dead_letter_topic, settings_from
from .consumer_group_targets import ConsumerGroupTargets, Found
from .ranges import RangesServicer
from .topic_admin import TopicAdmin

CREATE_ROUNDS_MAX = 10
"""Tries to make a consumer group. A try fails if a partition moves or a consumer joins meanwhile."""

DELETE_ROUNDS_MAX = 5
"""Rounds of a deletion. One more is needed each time that the topic has grown meanwhile."""

LISTS_AT_ONCE = 32
"""Partitions whose cursors are read from the coordinator at the same time."""

DESCRIBE_ROUNDS_MAX = 3
DESCRIBE_PAUSE_S = 0.05
"""Tries, and the pause between, if a consumer group moves while it is described."""

SERVER_DEADLINE_S = 2.0
SERVER_PARTITION_S = 0.002
"""A server that describes a consumer group has this many seconds, and this many more for each of its partitions. An
administrator waits for the answer, and what the other servers say is of use without it."""


class ConsumerGroupAdmin(TopicAdmin):
    """The part of `seriatim.v1.Admin` for consumer groups."""

    def __init__(
        self, services: Services, controller: Controller, calls: BrokerCalls, feed: TopicFeed, addresses: Addresses
    ) -> None:
        super().__init__(services, controller, calls, feed)
        self._addresses = addresses
        self._targets = ConsumerGroupTargets(RangesServicer(services, calls, addresses))

    @typed_errors
    async def CreateConsumerGroup(  # noqa: N802 - the contract's names
        self, request: broker_pb2.CreateConsumerGroupRequest, context: Any
    ) -> broker_pb2.CreateConsumerGroupResponse:
        """Write the consumer group's cursors on all partitions of the topic on which it has none."""
        check_group(request.group, is_broadcast=request.settings.mode == records_pb2.CONSUMER_MODE_BROADCAST)
        settings = SETTINGS_DEFAULT
        if request.HasField("settings"):
            settings = settings_from(request.settings, request.topic, request.group)
        created, guard = False, guard_of_call(self._services, context)
        if request.at.HasField("offset") and len(request.partitions) != 1:
            raise BadRequestError("an offset belongs to one partition: name exactly one")
        for _ in range(CREATE_ROUNDS_MAX):
            # Rule `group-follows-growth`: partitions that are being added count too, if they exist, and the topic is
            # read again after each write. Without it:
            #   1. The controller makes partition 8, and sees no consumer group whose settings it should have.
            #   2. The consumer group is made, on the partitions 0 to 7. Then partition 8 belongs to the topic.
            #   3. A consumer joins there, and makes a cursor with the default policy.
            topic = await self._services.topic(request.topic)
            ids = [*topic.partition_ids, *topic.growing_partition_ids]
            if not is_forwarded(context):
                await check_dead_letter_topic(self._services, settings.retry, len(topic.partition_ids))
            chains = chosen_chains(await self._services.chains(ids), request.partitions, request.topic)
            cursors = await self._cursors(chains, request.group, guard)
            missing = [chain for chain in chains if not cursors.has(chain.partition)]
            if request.HasField("settings"):
                _check_same_settings(chains, cursors, settings, request.group)
            if not missing:
                return broker_pb2.CreateConsumerGroupResponse(created=created)
            # The server epochs must be of a time after the cursors, or tokens could fall (`begins-above`).
            told = await self._services.chains([chain.partition for chain in missing])
            known = {chain.partition: chain for chain in told}
            if request.HasField("at"):
                found = await self._targets.find(request.topic, missing, request.at, remaining_s(context) * 0.8)
                created |= await cursors.create(
                    request.topic, _starts(missing, found), settings, now_ms=_now_ms(), chains=known
                )
            elif request.start == broker_pb2.START_POSITION_LATEST:
                created |= await self._begin_at_the_end(cursors, missing, known, request, settings, context)
                if is_forwarded(context):
                    break
            else:
                firsts = ((chain.partition, first_kept(chain)) for chain in missing)
                starts = {partition: (first.segment_no, first.index) for partition, first in firsts}
                created |= await cursors.create(request.topic, starts, settings, now_ms=_now_ms(), chains=known)
        if is_forwarded(context):
            return broker_pb2.CreateConsumerGroupResponse(created=created)
        raise NotServingError(
            f"partitions of {request.topic!r} moved at every try: the consumer group may be on some of them only; "
            "call again",
            retry_after_ms=200,
        )

    async def _begin_at_the_end(
        self,
        cursors: ConsumerGroupCursors,
        missing: Sequence[Chain],
        known: Mapping[PartitionId, Chain],
        request: broker_pb2.CreateConsumerGroupRequest,
        settings: ConsumerGroupSettings,
        context: Any,
    ) -> bool:
        """Begin at the ends, which only masters know. A call that was passed on does only this master's partitions."""
        by_master: dict[str, list[Chain]] = {}
        for chain in missing:
            by_master.setdefault(chain.open_segment.master.broker, []).append(chain)
        starts = {
            chain.partition: (chain.open_segment.no, await self._end_of(chain, remaining_s(context)))
            for chain in by_master.pop(self._services.identity.member.broker, ())
        }
        created = bool(starts) and await cursors.create(request.topic, starts, settings, now_ms=_now_ms(), chains=known)
        if not is_forwarded(context):
            for master in by_master:
                left_s, operator = remaining_s(context) * 0.9, operator_epoch(context)
                answer = await self._calls.admin(master, "CreateConsumerGroup", request, left_s, operator)
                created |= answer.created
        return created

    async def _end_of(self, chain: Chain, deadline_s: float) -> int:
        """The commit of the open segment. A switch never seals it shorter."""
        partition, no = chain.partition, chain.open_segment.no
        listed = await self._services.ask_core(lambda number: ListLogs(number, partition, no - 1, 1), deadline_s)
        assert isinstance(listed, LogsListed)
        return next((length for id_, segment, length in listed.logs if (id_, segment) == (partition, no)), 0)

    @typed_errors
    async def DeleteConsumerGroup(  # noqa: N802
        self, request: broker_pb2.DeleteConsumerGroupRequest, context: Any
    ) -> broker_pb2.DeleteConsumerGroupResponse:
        """Delete the consumer group's cursors, unless it has consumers.

        The topic is read again after each write, with the partitions that are being added: the controller may have
        given the group a cursor there meanwhile. Without it, the group would live on at that partition alone.
        """
        check_group(request.group)
        guard, done = guard_of_call(self._services, context), set[PartitionId]()
        for _ in range(DELETE_ROUNDS_MAX):
            topic = await self._services.topic(request.topic)
            # No client knows of a partition that is being added, so no consumer reads it.
            growing = await self._services.chains([id_ for id_ in topic.growing_partition_ids if id_ not in done])
            chains = await self._services.chains([id_ for id_ in topic.partition_ids if id_ not in done])
            cursors = await self._cursors([*chains, *growing], request.group, guard)
            if not any(cursors.has(chain.partition) for chain in (*chains, *growing)):
                if not done:
                    raise unknown_consumer_group(request.topic, request.group)
                return broker_pb2.DeleteConsumerGroupResponse()
            await self._check_is_idle(request, chains, cursors, context)
            await cursors.delete(_now_ms())
            done.update(chain.partition for chain in (*chains, *growing))
        raise NotServingError(f"topic {request.topic!r} grows: call again", retry_after_ms=200)

    async def _check_is_idle(
        self,
        request: broker_pb2.DeleteConsumerGroupRequest,
        chains: Sequence[Chain],
        cursors: ConsumerGroupCursors,
        context: Any,
    ) -> None:
        """Check that no consumer reads one of these partitions.

        Raises:
            PreconditionError: A consumer does.
            UnavailableError: A server does not say.
        """
        for row in await self._describe(request.topic, request.group, chains, cursors, context):
            if not row.has_cursor:
                continue  # it cannot have consumers there
            name = partition_name(request.topic, row.partition)
            if row.HasField("error") and row.error.number != PositionUnknownError.number:
                raise UnavailableError(
                    f"{row.server_broker} does not say whether a consumer reads {name}: {row.error.message}"
                )
            if row.active_consumer or row.standby_consumers:
                who = row.active_consumer or row.standby_consumers[0]
                raise PreconditionError(f"{who} reads {name}: nothing was deleted; stop the group's consumers first")

    @typed_errors
    async def ListConsumerGroups(  # noqa: N802
        self, request: broker_pb2.ListConsumerGroupsRequest, _context: Any
    ) -> broker_pb2.ListConsumerGroupsResponse:
        """The consumer groups with a cursor on at least one partition of the topic."""
        topic = await self._services.topic(request.topic)
        groups: set[str] = set()
        for start in range(0, len(topic.partition_ids), LISTS_AT_ONCE):
            page = topic.partition_ids[start : start + LISTS_AT_ONCE]
            prefixes = [self._services.keys.cursors_of(PartitionId(id_)) for id_ in page]
            for listing in await asyncio.gather(*map(self._services.coordinator.list, prefixes)):
                standing = (item for item in listing.items if not cursor_from_value(item.value).deleted)
                groups.update(group_of(item.key) for item in standing)
        return broker_pb2.ListConsumerGroupsResponse(groups=sorted(groups))

    @typed_errors
    async def DescribeGroup(  # noqa: N802
        self, request: broker_pb2.DescribeGroupRequest, context: Any
    ) -> broker_pb2.DescribeGroupResponse:
        """Where a consumer group is. The servers of its cursor segments report it; the other rows have an error."""
        check_group(request.group)
        topic = await self._services.topic(request.topic)
        for round_no in range(1, DESCRIBE_ROUNDS_MAX + 1):
            ids: Sequence[int] = topic.partition_ids
            if request.partitions:
                numbers = sorted(set(request.partitions))
                if numbers[-1] >= len(ids):
                    raise PartitionOutOfRangeError(
                        f"{request.topic} has partitions 0 to {len(ids) - 1}, not {numbers[-1]}"
                    )
                ids = [ids[number] for number in numbers]
            chains = await self._services.chains(ids)
            cursors = await self._cursors(chains, request.group)
            if not is_forwarded(context) and not any(cursors.has(chain.partition) for chain in chains):
                raise unknown_consumer_group(request.topic, request.group)
            rows = await self._describe(
                request.topic, request.group, chains, cursors, context, partitions=request.partitions
            )
            moved = any(row.error.number == NotServingError.number for row in rows)
            if is_forwarded(context) or not moved or round_no == DESCRIBE_ROUNDS_MAX:
                break
            await asyncio.sleep(DESCRIBE_PAUSE_S)
        return broker_pb2.DescribeGroupResponse(partitions=rows)

    async def _describe(
        self,
        topic: str,
        group: str,
        chains: Sequence[Chain],
        cursors: ConsumerGroupCursors,
        context: Any,
        partitions: Sequence[int] = (),
    ) -> list[broker_pb2.GroupPartition]:
        rows = {chain.number: row_of(chain, cursors.standing(chain.partition)) for chain in chains}
        own = self._services.identity.member.broker
        by_server: dict[str, list[Chain]] = {}
        for chain in chains:
            if not rows[chain.number].external:
                by_server.setdefault(rows[chain.number].server_broker, []).append(chain)
        deadline_s = remaining_s(context) * 0.8
        asked = [self._describe_here(chain, group, rows, deadline_s) for chain in by_server.pop(own, [])]
        if not is_forwarded(context):
            request = broker_pb2.DescribeGroupRequest(topic=topic, group=group, partitions=partitions)
            asked += [self._describe_there(server, request, rows, deadline_s) for server in by_server if server]
            asked += [self._find_end(chain, rows[chain.number], deadline_s) for chain in chains]
        await asyncio.gather(*asked)
        for chain in chains:
            _pass_dropped(rows[chain.number], chain)
        return [rows[number] for number in sorted(rows)]

    async def _find_end(self, chain: Chain, row: broker_pb2.GroupPartition, deadline_s: float) -> None:
        """The lag of an external group: the master of the open segment knows the end."""
        if not row.external:
            return
        try:
            end = await Places(self._services, self._calls).end_of(chain, min(deadline_s, SERVER_DEADLINE_S))
        except SeriatimError as exc:
            row.error.CopyFrom(error_to_proto(exc))
            return
        row.ClearField("error")
        row.end_position = max(row.position, end)

    async def _cursors(self, chains: Sequence[Chain], group: str, guard: Guard = unguarded) -> ConsumerGroupCursors:
        cursors = ConsumerGroupCursors(self._services.coordinator, self._services.keys, group, guard)
        await cursors.read([chain.partition for chain in chains])
        return cursors

    async def _describe_here(
        self, chain: Chain, group: str, rows: dict[int, broker_pb2.GroupPartition], deadline_s: float
    ) -> None:
        row = rows[chain.number]
        try:
            asked = await self._services.ask_core(
                lambda number: DescribeConsumerGroup(number, chain.partition, group), deadline_s
            )
            reply = answered(asked, ConsumerGroupDescribed)
        except SeriatimError as exc:
            row.error.CopyFrom(error_to_proto(exc))
            return
        row.ClearField("error")
        begun = (reply.segment_no, reply.group_epoch) != (row.segment, row.group_epoch) or reply.acked > row.acked_index
        row.segment = reply.segment_no
        if begun:  # otherwise no consumer has read since the cursor was written, and the server has nothing to add
            row.acked_index = reply.acked
            row.position = reply.position or 0
        if reply.position is None:
            row.error.CopyFrom(error_to_proto(_position_unknown(chain, reply.segment_no)))
        row.end_is_at_least = reply.end_position is None
        known_end = chain.open_segment.base if reply.end_position is None else reply.end_position
        row.end_position = max(row.position, known_end or 0)
        row.group_epoch = reply.group_epoch
        row.active_consumer = reply.active
        row.standby_consumers[:] = reply.standbys
        row.consumers[:] = reply.consumers
        row.in_flight_messages = reply.in_flight
        if reply.oldest is not None:
            row.oldest_append_ms = await Places(self._services, self._calls).append_time_here(
                chain.partition, reply.oldest
            )
        counts = reply.keys or KeyCounts()
        row.aside_messages, row.passed_messages, row.parked_keys = counts.aside, counts.passed, counts.parked
        row.delayed_keys, row.forwarding_keys = counts.delayed, counts.forwarding

    async def _describe_there(
        self,
        server: str,
        request: broker_pb2.DescribeGroupRequest,
        rows: dict[int, broker_pb2.GroupPartition],
        deadline_s: float,
    ) -> None:
        count = sum(row.server_broker == server for row in rows.values())
        try:
            limit_s = min(deadline_s, SERVER_DEADLINE_S + SERVER_PARTITION_S * count)
            response = await self._calls.admin(server, "DescribeGroup", request, limit_s)
        except SeriatimError as exc:
            for row in rows.values():
                if row.server_broker == server:
                    row.error.CopyFrom(error_to_proto(exc))
            return
        for found in response.partitions:
            mine = rows.get(found.partition)
            if mine is not None and mine.server_broker == server and found.server_broker == server:
                rows[found.partition] = found  # otherwise the row keeps its first error


def _check_same_settings(
    chains: Sequence[Chain], cursors: ConsumerGroupCursors, settings: ConsumerGroupSettings, group: str
) -> None:
    """Refuse to make a consumer group that is there with other settings.

    Raises:
        PreconditionError: It is there with other settings on one of the partitions.
    """
    for chain in chains:
        cursor = cursors.standing(chain.partition)
        if cursor is None:
            continue
        if cursor.mode is not settings.mode:
            what = f"in mode {cursor.mode.name.lower()}"
        elif cursor.settings != settings:
            what = "with another retry policy, or another setting of at most once or of spread"
        else:
            continue
        raise PreconditionError(f"group {group} exists on {chain.name} {what}: configure it instead of making it again")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def chosen_chains(chains: Sequence[Chain], numbers: Sequence[int], topic: str) -> list[Chain]:
    """The chains of these partitions, each once, by number. Without numbers, all chains.

    Raises:
        PartitionOutOfRangeError: The topic has fewer partitions.
    """
    by_number = {chain.number: chain for chain in chains}
    for number in numbers:
        if number not in by_number:
            raise PartitionOutOfRangeError(f"{topic} has partitions 0 to {len(by_number) - 1}, not {number}")
    return [by_number[number] for number in sorted(set(numbers) or by_number)]


def _starts(chains: Sequence[Chain], found: Mapping[int, Found]) -> dict[PartitionId, tuple[int, int]]:
    """Where the consumer group begins.

    Raises:
        SeriatimError: It cannot begin there on one of the partitions.
    """
    starts: dict[PartitionId, tuple[int, int]] = {}
    for chain in chains:
        place = found[chain.number]
        if isinstance(place, SeriatimError):
            raise place
        starts[chain.partition] = place
    return starts


def row_of(chain: Chain, cursor: CursorRecord | None) -> broker_pb2.GroupPartition:
    """What the coordinator knows. A consumer group without a cursor is shown where a new one would begin."""
    row = broker_pb2.GroupPartition(partition=chain.number, partition_id=chain.partition, has_cursor=cursor is not None)
    segment = chain.segments[0]
    if cursor is not None:  # a cursor in a folded segment is at the beginning of the next one
        cursor = cursor if chain.segment(cursor.segment_no) is not None else replace(cursor, start_index=0)
        segment = chain.from_no(cursor.segment_no) or chain.segments[0]
    row.segment = segment.no
    row.server_broker = segment.server.broker if cursor is not None and not cursor.external else ""
    error: SeriatimError
    if cursor is not None:
        row.acked_index = cursor.start_index
        row.group_epoch = cursor.group_epoch
        row.paused = cursor.paused
        row.settings.CopyFrom(settings_to_proto(cursor.settings))
        row.begun_by = operation_to_number(cursor.begun_by)
        row.position = (segment.base or 0) + cursor.start_index
        row.external, row.reported_at_ms = cursor.external, cursor.reported_at_ms
        error = NotServingError(f"{row.server_broker} does not serve segment {segment.no} any more; ask again")
    else:
        error = UnknownGroupError("the consumer group has no position on this partition until a consumer joins there")
    row.error.CopyFrom(error_to_proto(error))  # until the server has filled the row
    return row


def _pass_dropped(row: broker_pb2.GroupPartition, chain: Chain) -> None:
    """What retention dropped, or what was lost before it, is no backlog: the position is at least after that."""
    first = end_of_drops(chain)
    segment = chain.segment(first.segment_no)
    if row.has_cursor and segment is not None and segment.base is not None:
        row.position = max(row.position, segment.base + first.index)
        row.end_position = max(row.position, row.end_position)


def _position_unknown(chain: Chain, segment_no: int) -> PositionUnknownError:
    segment = chain.segment(segment_no)
    if segment is not None and segment.base is None:
        text = f"a segment before segment {segment_no} is not settled, so the messages before it cannot be counted"
    else:
        text = f"the new server of segment {segment_no} is still asking the other members what was acknowledged"
    return PositionUnknownError(text, segment=segment_no)


def unknown_consumer_group(topic: str, group: str) -> UnknownGroupError:
    return UnknownGroupError(f"no consumer group {group!r} on topic {topic!r}", group=group)
