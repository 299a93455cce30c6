"""Members and segments of a chain as protobuf messages, and back. The coordinator's records and the disk have them.

Thousands of idle partitions name the same few members and broker groups. So all that is read here shares one object for
each of these.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import common_pb2, records_pb2

from ..core.values.segment import AT_ZERO, PRODUCERS_MAX, Segment, SegmentState, Start, shared_limit

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    RepeatedMembers: TypeAlias = RepeatedCompositeFieldContainer[common_pb2.Member]

SHARED_COUNT_MAX = 4096
"""Limit for the members, and for the tuples of members, that chains share. A cluster has a few hundred."""

_STATE_TO_RECORD = {
    SegmentState.OPEN: records_pb2.SEGMENT_STATE_OPEN,
    SegmentState.SEALED: records_pb2.SEGMENT_STATE_SEALED,
    SegmentState.UNSETTLED: records_pb2.SEGMENT_STATE_UNSETTLED,
    SegmentState.LOST: records_pb2.SEGMENT_STATE_LOST,
}
_STATE_FROM_RECORD = {number: state for state, number in _STATE_TO_RECORD.items()}


def member_to_record(member: MemberId) -> common_pb2.Member:
    """The member as a message."""
    return common_pb2.Member(broker=member.broker, incarnation=member.incarnation)


@lru_cache(SHARED_COUNT_MAX)
def shared_member(broker: str, incarnation: str) -> MemberId:
    return MemberId(broker, incarnation)


@lru_cache(SHARED_COUNT_MAX)
def shared_members(members: tuple[MemberId, ...]) -> tuple[MemberId, ...]:
    return members


def member_from_record(record: common_pb2.Member) -> MemberId:
    """The member of a message that `member_to_record` made."""
    return shared_member(record.broker, record.incarnation)


def members_from_record(records: Iterable[common_pb2.Member]) -> tuple[MemberId, ...]:
    """The members of several messages, in their order."""
    return shared_members(tuple(map(member_from_record, records)))


def write_segment(record: records_pb2.SegmentRecord, segment: Segment) -> None:
    """Write a segment into a message. Fields that a newer version added to the message stay."""
    record.no = segment.no
    record.attempt = segment.switch_attempt
    record.group = segment.broker_group
    _write_members(record.members, segment.members)
    record.master_run = segment.master_run
    record.state = _STATE_TO_RECORD[segment.state]
    for name in ("base", "sealed_len", "sealed_checksum", "sealed_bytes", "tail_from"):
        value = getattr(segment, name)
        if value is None:
            record.ClearField(name)
        else:
            setattr(record, name, value)
    _write_members(record.tail_copies, segment.tail_copies)
    record.incomplete_table = segment.incomplete_table
    record.server.broker = segment.server.broker
    record.server.incarnation = segment.server.incarnation
    record.server_epoch = segment.server_epoch
    _write_members(record.eligible, segment.eligible)
    record.opened_at_ms = segment.opened_at_ms
    record.sealed_at_ms = segment.sealed_at_ms
    record.records_lost = segment.records_lost
    record.append_floor_ms = segment.append_floor_ms
    record.folded = segment.folded
    record.producers_max = segment.producers_max
    record.delayed_until_ms = segment.delayed_until_ms
    record.start, record.start_checksum, record.start_bytes = segment.begin


def _write_members(field: RepeatedMembers, members: tuple[MemberId, ...]) -> None:
    if members_from_record(field) == members:
        return  # so that fields which a newer version added to a member stay
    del field[:]
    field.extend(member_to_record(member) for member in members)


def read_segment(record: records_pb2.SegmentRecord) -> Segment:
    """The segment of a message.

    Raises:
        CorruptionError: The segment is in a state that this version does not know, or is sealed and does not say how.
    """
    state = _STATE_FROM_RECORD.get(record.state)
    if state is None:
        raise CorruptionError(f"segment {record.no} is in state {record.state}, which this version does not know")
    if state is SegmentState.SEALED and not (
        record.HasField("sealed_len") and record.HasField("sealed_checksum") and record.HasField("sealed_bytes")
    ):
        raise CorruptionError(f"segment {record.no} is sealed, and its record lacks length, checksum or size")
    if not 0 < record.producers_max <= PRODUCERS_MAX:
        raise CorruptionError(
            f"the record of segment {record.no} says that it remembers {record.producers_max} producers"
        )
    return Segment(
        no=record.no,
        switch_attempt=record.attempt,
        broker_group=sys.intern(record.group),
        members=members_from_record(record.members),
        master_run=record.master_run,
        state=state,
        base=record.base if record.HasField("base") else None,
        server=member_from_record(record.server),
        server_epoch=record.server_epoch,
        eligible=members_from_record(record.eligible),
        opened_at_ms=record.opened_at_ms,
        sealed_len=record.sealed_len if record.HasField("sealed_len") else None,
        sealed_checksum=record.sealed_checksum if record.HasField("sealed_checksum") else None,
        tail_from=record.tail_from if record.HasField("tail_from") else None,
        tail_copies=members_from_record(record.tail_copies),
        incomplete_table=record.incomplete_table,
        sealed_at_ms=record.sealed_at_ms,
        records_lost=record.records_lost,
        append_floor_ms=record.append_floor_ms,
        folded=record.folded,
        begin=Start(record.start, record.start_checksum, record.start_bytes) if record.start else AT_ZERO,
        sealed_bytes=record.sealed_bytes if record.HasField("sealed_bytes") else None,
        producers_max=shared_limit(record.producers_max),
        delayed_until_ms=record.delayed_until_ms,
    )
