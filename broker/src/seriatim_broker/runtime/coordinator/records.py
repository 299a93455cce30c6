"""Converts the core's values to records of the coordinator, and back.

A record that a newer broker wrote may have fields that this version does not know. So each `..._to_record` takes the
message that was read before and changes it, and the fields survive. `chain_layout` remembers that message, and which
segments of a long chain are in pages.

Thousands of idle partitions name the same few members, broker groups and topics. What is read here shares one object
for each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from seriatim_api.errors import BadRequestError, CorruptionError
from seriatim_api.ids import SEGMENT_NO_MAX, PartitionId, partition_name
from seriatim_api.publications import RowLayout
from seriatim_api.v1 import common_pb2, records_pb2

from ...core.values.chain import Chain
from ...core.values.deleted import NONE_DELETED, DeletedPartitions
from ...core.values.events import ConsumerGroupOperation, CursorRecord
from ...core.values.keyed import RETRY_DEFAULT, ConsumerMode
from ...core.values.log import HandOverId
from ...core.values.owners import Claim, OwnerRecord
from ...core.values.placement import CHAIN_WIDTH_DEFAULT, BrokerGroupSpec, Intent
from ...core.values.segment import Segment
from ...core.values.writers import ManifestPlace, WriterRecord, WriterState
from ...interfaces.coordinator import Compare, Put, value_begins_with
from ...interfaces.same_names import fill
from ...interfaces.segment_records import SHARED_COUNT_MAX, read_segment, write_segment
from ...interfaces.segment_records import member_from_record as member_from_record
from ...interfaces.segment_records import member_to_record as member_to_record
from ...interfaces.segment_records import members_from_record as members_from_record
from ...interfaces.settings_records import (
    mode_from_number,
    mode_to_number,
    retry_from_proto,
    retry_to_proto,
    spread_to_number,
)
from .keys import Keys

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    RepeatedSegments: TypeAlias = RepeatedCompositeFieldContainer[records_pb2.SegmentRecord]
    RepeatedMembers: TypeAlias = RepeatedCompositeFieldContainer[common_pb2.Member]

PAGE_SEGMENTS = 256
"""A segment that left its chain's record is in page `no // PAGE_SEGMENTS`, for ever. A full page has about 80 KB."""

PAGES_MAX = SEGMENT_NO_MAX // PAGE_SEGMENTS + 1
"""No chain has more pages."""

_BEGINNINGS = (records_pb2.GROUP_OPERATION_REWIND, records_pb2.GROUP_OPERATION_SKIP)

_Record = TypeVar("_Record", bound=Message)

_INTENT_FROM_RECORD = {
    records_pb2.BROKER_GROUP_INTENT_UNSPECIFIED: Intent.ACTIVE,
    records_pb2.BROKER_GROUP_INTENT_ACTIVE: Intent.ACTIVE,
    records_pb2.BROKER_GROUP_INTENT_CORDONED: Intent.CORDONED,
    records_pb2.BROKER_GROUP_INTENT_DRAINING: Intent.DRAINING,
}


@lru_cache(SHARED_COUNT_MAX)
def _shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return names


def has_unknown_fields(message: Message) -> bool:
    """Whether it has fields, at any depth, that a newer version wrote and this one does not know."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.ByteSize() != message.ByteSize()


def chain_to_record(
    chain: Chain,
    over: records_pb2.ChainRecord | None = None,
    segments_over: Mapping[int, records_pb2.SegmentRecord] | None = None,
    *,
    paged_count: int = 0,
) -> records_pb2.ChainRecord:
    """A chain as a record, without the oldest `paged_count` segments.

    With `over`, that record is changed, and with `segments_over`, the segments of those numbers. Their unknown fields
    stay.
    """
    record = records_pb2.ChainRecord()
    if over is not None:
        record.CopyFrom(over)
        del record.segments[:]
    record.partition_id = chain.partition
    record.epoch = chain.epoch
    record.topic = chain.topic
    record.partition = chain.number
    record.flush = chain.flush
    record.chain_width = chain.width
    record.send_chain[:] = chain.send_chain
    record.page_count = 0
    del record.page_numbers[:]
    segments_to_record(record.segments, chain.segments[paged_count:], segments_over or {})
    return record


def segments_to_record(
    field: RepeatedSegments, segments: Iterable[Segment], over: Mapping[int, records_pb2.SegmentRecord]
) -> None:
    """Append segments to a record or a page. A segment that is in `over` is changed there; its unknown fields stay."""
    for segment in segments:
        written = field.add()
        if segment.no in over:
            written.CopyFrom(over[segment.no])
        write_segment(written, segment)


def is_of_epoch(key: str, partition: PartitionId, epoch: int) -> tuple[Compare, Compare]:
    """The key has the record of that partition's chain at that chain epoch.

    The coordinator compares the first bytes of the value: protobuf writes these two fields first, and the next byte is
    the tag of another field, which is below 255.
    """
    beginning = records_pb2.ChainRecord(partition_id=partition, epoch=epoch).SerializeToString()
    return value_begins_with(key, beginning)


def is_in_group_epoch(key: str, segment_no: int, group_epoch: int) -> tuple[Compare, Compare]:
    """The key has a cursor in that segment and that group epoch; compared as `is_of_epoch` is."""
    beginning = records_pb2.CursorRecord(segment=segment_no, group_epoch=group_epoch).SerializeToString()
    return value_begins_with(key, beginning)


def page_numbers(record: records_pb2.ChainRecord) -> Sequence[int]:
    """The pages of a chain: the last ones before the oldest segment of the record, unless the record names them.

    If many segments were folded, a page may be empty. An empty page is not written.

    Raises:
        CorruptionError: The record counts pages that are impossible.
    """
    if not record.page_count:
        return range(0)
    if record.page_count > PAGES_MAX:
        raise CorruptionError(f"the chain record of {record_name(record)} says {record.page_count} pages")
    last = (record.segments[0].no - 1) // PAGE_SEGMENTS if record.segments else -1
    numbers: Sequence[int] = range(last + 1 - record.page_count, last + 1)
    if record.page_numbers:
        numbers = tuple(record.page_numbers)
    is_ascending = all(earlier < later for earlier, later in pairwise(numbers))
    if len(numbers) != record.page_count or numbers[0] < 0 or numbers[-1] > last or not is_ascending:
        raise CorruptionError(f"the chain record of {record_name(record)} cannot have that many pages")
    return numbers


def put_page_numbers(record: records_pb2.ChainRecord, numbers: Sequence[int]) -> None:
    """Write the numbers of the pages into the record, which has its segments already."""
    record.page_count = len(numbers)
    del record.page_numbers[:]
    if numbers and list(numbers) != list(page_numbers(record)):
        record.page_numbers[:] = numbers


def join_pages(value: bytes, pages: Sequence[bytes]) -> records_pb2.ChainRecord:
    """The record with the segments of its pages, as if it never had pages.

    Raises:
        CorruptionError: A value cannot be parsed, or these are not the record's pages.
    """
    record = parse_record(value)
    numbers = page_numbers(record)
    parsed = [parse_page(page) for page in pages]
    if [(page.partition_id, page.page) for page in parsed] != [(record.partition_id, number) for number in numbers]:
        raise CorruptionError(f"the pages of {record_name(record)} are not those of its record")
    if not parsed:
        return record
    newest = list(record.segments)
    del record.segments[:]
    for page in parsed:
        record.segments.extend(page.segments)
    record.segments.extend(newest)
    record.page_count = 0
    del record.page_numbers[:]
    if any(later.no != earlier.no + 1 + later.folded for earlier, later in pairwise(record.segments)):
        raise CorruptionError(f"segments of {record_name(record)} are missing between its pages")
    return record


def record_name(record: records_pb2.ChainRecord) -> str:
    """What the partition of a chain record is called, for humans."""
    return partition_name(record.topic, record.partition)


def chain_from_record(record: records_pb2.ChainRecord) -> Chain:
    """The chain of a record.

    Raises:
        CorruptionError: It has a segment state that this version does not know, or no segment at all.
    """
    if not record.segments:
        raise CorruptionError(f"the chain record of {record_name(record)} has no segment")
    return Chain(
        partition=PartitionId(record.partition_id),
        epoch=record.epoch,
        topic=sys.intern(record.topic),
        number=record.partition,
        flush=record.flush,
        send_chain=_shared_names(tuple(map(sys.intern, record.send_chain))),
        segments=segments_from_record(record.segments),
        width=record.chain_width or CHAIN_WIDTH_DEFAULT,
    )


def segments_from_record(records: Iterable[records_pb2.SegmentRecord]) -> tuple[Segment, ...]:
    """The segments of a record or a page.

    Raises:
        CorruptionError: A segment has a state that this version does not know.
    """
    return tuple(map(read_segment, records))


def parse_record(value: bytes) -> records_pb2.ChainRecord:
    """A chain's record as it was written, without its pages.

    Raises:
        CorruptionError: The value is no chain record.
    """
    return _parse(records_pb2.ChainRecord, value)


def parse_page(value: bytes) -> records_pb2.ChainPage:
    """A page of a chain.

    Raises:
        CorruptionError: The value is no page.
    """
    return _parse(records_pb2.ChainPage, value)


def parse_chain(value: bytes, pages: Sequence[bytes] = ()) -> Chain:
    """The chain in a coordinator's value and in those of all its pages.

    Raises:
        CorruptionError: The value is no chain record, or these are not its pages.
    """
    return chain_from_record(join_pages(value, pages))


def operation_to_number(operation: ConsumerGroupOperation | None) -> records_pb2.GroupOperation.ValueType:
    """An operation as records and clients have it. None is unspecified."""
    return records_pb2.GroupOperation.ValueType(operation or 0)


def cursor_to_value(record: CursorRecord, over: bytes | None = None) -> bytes:
    """A consumer group's cursor as a coordinator's value. With `over`, that value is changed."""
    written = records_pb2.CursorRecord.FromString(over) if over else records_pb2.CursorRecord()
    fill(
        written,
        record,
        segment=record.segment_no,
        begun_by=operation_to_number(record.begun_by),
        mode=mode_to_number(record.mode),
        spread=spread_to_number(record.is_spread),
    )
    written.requests[:] = record.requests
    written.handover_epoch, written.handover_no = record.handoff
    if record.mode is not ConsumerMode.EXCLUSIVE:
        written.retry.CopyFrom(retry_to_proto(record.retry))
    else:
        written.ClearField("retry")
    return written.SerializeToString()


def cursor_from_value(value: bytes) -> CursorRecord:
    """The cursor in a coordinator's value.

    Raises:
        CorruptionError: The value is no cursor record.
    """
    record = _parse(records_pb2.CursorRecord, value)
    try:
        mode = mode_from_number(record.mode)
        retry = retry_from_proto(record.retry) if record.HasField("retry") else RETRY_DEFAULT
    except ValueError as exc:
        raise CorruptionError(f"a cursor record was written by a newer version, or is damaged: {exc}") from exc
    return CursorRecord(
        record.segment,
        record.group_epoch,
        record.start_index,
        sys.intern(record.topic),
        record.deleted,
        record.deleted_at_ms,
        record.paused,
        ConsumerGroupOperation(record.begun_by) if record.begun_by in _BEGINNINGS else None,
        tuple(record.requests),
        record.dropped_from,
        record.dropped_position,
        record.external,
        record.reported_at_ms,
        mode,
        retry,
        record.term_base,
        record.oldest,
        HandOverId(record.handover_epoch, record.handover_no),
        record.at_most_once,
        record.repeated_to,
        record.spread != records_pb2.SPREAD_NONE,
        record.repeated_index,
    )


def manifest_place_from(reference: records_pb2.ManifestReference) -> ManifestPlace:
    """The place of a staged manifest, from the message of records and calls."""
    return ManifestPlace(
        PartitionId(reference.stage_partition_id),
        tuple(reference.offsets),
        reference.length,
        reference.crc,
        reference.id,
        reference.content_digest,
        layout_from(reference.layout),
    )


def manifest_place_to(place: ManifestPlace) -> records_pb2.ManifestReference:
    """The message of records and calls for that place."""
    return records_pb2.ManifestReference(
        stage_partition_id=place.partition, offsets=place.offsets, length=place.length, crc=place.crc, id=place.id,
        content_digest=place.content_digest, layout=layout_to(place.layout),
    )  # fmt: skip


def writer_to_record(record: WriterRecord, over: bytes | None = None) -> records_pb2.WriterRecord:
    """A writer as a record. With `over`, that value is changed, so that fields of a newer version stay."""
    written = records_pb2.WriterRecord.FromString(over) if over else records_pb2.WriterRecord()
    fill(written, record, state=records_pb2.WriterState.ValueType(record.state))
    written.manifest.CopyFrom(manifest_place_to(record.manifest))
    del written.rebuilt[:]
    for partition, rows in record.rebuilt:
        written.rebuilt.add(partition_id=partition, rows=rows)
    return written


def layout_to(layout: RowLayout) -> records_pb2.RowLayout:
    """The message of records and calls for that layout."""
    return records_pb2.RowLayout(partition_count=layout.partition_count, batch_bytes=layout.batch_bytes)


def layout_from(message: records_pb2.RowLayout) -> RowLayout:
    """The layout of records and calls."""
    return RowLayout(message.partition_count, message.batch_bytes)


def writer_from_value(value: bytes) -> WriterRecord:
    """The writer in a coordinator's value.

    Raises:
        CorruptionError: The value is no writer record, or has a state that this version does not know.
    """
    record = _parse(records_pb2.WriterRecord, value)
    try:
        state = WriterState(record.state)
    except ValueError as exc:
        raise CorruptionError(f"a writer is in state {record.state}, which this version does not know") from exc
    return WriterRecord(
        record.producer,
        sys.intern(record.topic),
        record.epoch,
        record.owner,
        state,
        record.sequence,
        manifest_place_from(record.manifest),
        record.rows,
        record.digest,
        record.decided_at_ms,
        record.done_at_ms,
        record.lost_rows,
        record.ephemeral,
        record.opened_at_ms,
        tuple((part.partition_id, part.rows) for part in record.rebuilt),
    )


def owner_from_value(value: bytes) -> OwnerRecord:
    """The owner in a coordinator's value.

    Raises:
        CorruptionError: The value is no record of an owner.
    """
    record = _parse(records_pb2.OwnerRecord, value)
    return OwnerRecord(sys.intern(record.topic), record.name, record.epoch, record.owner_text)


def claim_from_value(value: bytes, partition: PartitionId, name: str) -> Claim:
    """What the host of a name reads of its record. `partition`: the id of the topic's partition 0.

    Raises:
        CorruptionError: The value is no record of an owner.
        BadRequestError: It is that of another name, which has the same producer id.
    """
    record = _parse(records_pb2.OwnerRecord, value)
    if (record.partition_id, record.name) != (partition, name):
        raise BadRequestError(
            f"{name!r} cannot be the name of an owner here, because {record.name!r} has the same producer id: choose "
            "another name"
        )
    return Claim(record.epoch, record.owner, record.owner_text, record.session_ms * 1000, record.is_released)


def claim_to_value(claim: Claim, topic: str, partition: PartitionId, name: str, now_ms: int) -> bytes:
    """The record of a name; see `claim_from_value`."""
    return records_pb2.OwnerRecord(
        topic=topic,
        partition_id=partition,
        name=name,
        epoch=claim.epoch,
        owner=claim.owner,
        owner_text=claim.text,
        acquired_at_ms=now_ms,
        is_released=claim.is_released,
        session_ms=claim.session_us // 1000,
    ).SerializeToString()


def deleted_partitions_from(value: bytes | None) -> DeletedPartitions:
    """The ranges of deleted partitions in the coordinator's record.

    Raises:
        CorruptionError: The value is no such record.
    """
    if value is None:
        return NONE_DELETED
    ends = tuple(accumulate(_parse(records_pb2.DeletedPartitionsRecord, value).steps))
    if len(ends) % 2:
        raise CorruptionError("the record of the deleted partitions has half a range")
    return DeletedPartitions(tuple(zip(ends[::2], ends[1::2], strict=True)))


def put_deleted_partitions(keys: Keys, deleted: DeletedPartitions) -> Put:
    """The operation that writes the ranges: counts of ids that are not deleted and that are, in turn."""
    ends = [0, *(end for pair in deleted.ranges for end in pair)]
    record = records_pb2.DeletedPartitionsRecord(steps=[end - before for before, end in pairwise(ends)])
    return Put(keys.deleted_partitions, record.SerializeToString())


def spec_from_value(value: bytes) -> BrokerGroupSpec:
    """Intent and weight of a broker group. An intent that this version does not know counts as CORDONED."""
    record = _parse(records_pb2.BrokerGroupRecord, value)
    return BrokerGroupSpec(_INTENT_FROM_RECORD.get(record.intent, Intent.CORDONED), record.weight or 1.0)


def _parse(kind: type[_Record], value: bytes) -> _Record:
    try:
        return kind.FromString(value)
    except DecodeError as exc:
        raise CorruptionError(f"a value in the coordinator is no {kind.DESCRIPTOR.name}") from exc
