"""The core's values as records of the coordinator, and back.

A record that a newer broker wrote may hold fields that this build does not know. They survive a rewrite: `ChainArchive`
remembers the raw record of each partition whose last reading had such fields, and writes the core's chain over it, the
segments matched by number.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import common_pb2, records_pb2

from ..core.chain import Chain, Segment, SegmentState
from ..core.events import CursorRecord

_Record = TypeVar("_Record", bound=Message)

_STATE_TO_RECORD = {
    SegmentState.OPEN: records_pb2.SEGMENT_STATE_OPEN,
    SegmentState.SEALED: records_pb2.SEGMENT_STATE_SEALED,
    SegmentState.UNSETTLED: records_pb2.SEGMENT_STATE_UNSETTLED,
    SegmentState.LOST: records_pb2.SEGMENT_STATE_LOST,
}
_STATE_FROM_RECORD = {number: state for state, number in _STATE_TO_RECORD.items()}


def member_to_record(member: MemberId) -> common_pb2.Member:
    """A member as a message."""
    return common_pb2.Member(broker=member.broker, incarnation=member.incarnation)


def member_from_record(record: common_pb2.Member) -> MemberId:
    """The member that `member_to_record` was given."""
    return MemberId(record.broker, record.incarnation)


def chain_to_record(chain: Chain, over: records_pb2.ChainRecord | None = None) -> records_pb2.ChainRecord:
    """A chain as a record; with `over`, that record changed, its unknown fields kept."""
    record = records_pb2.ChainRecord()
    known: dict[int, records_pb2.SegmentRecord] = {}
    if over is not None:
        record.CopyFrom(over)
        known = {segment.no: segment for segment in over.segments}
    record.partition_id = chain.partition
    record.epoch = chain.epoch
    record.topic = chain.topic
    record.partition = chain.number
    record.flush = chain.flush
    record.send_chain[:] = chain.send_chain
    del record.segments[:]
    for segment in chain.segments:
        written = record.segments.add()
        if segment.no in known:
            written.CopyFrom(known[segment.no])
        _write_segment(written, segment)
    return record


def chain_from_record(record: records_pb2.ChainRecord) -> Chain:
    """The chain of a record.

    Raises:
        CorruptionError: A segment state that this build does not know, or no segment at all.
    """
    if not record.segments:
        raise CorruptionError(f"the chain record of partition {record.partition_id} has no segment")
    return Chain(
        partition=PartitionId(record.partition_id),
        epoch=record.epoch,
        topic=record.topic,
        number=record.partition,
        flush=record.flush,
        send_chain=tuple(record.send_chain),
        segments=tuple(_read_segment(segment) for segment in record.segments),
    )


def parse_chain(value: bytes) -> Chain:
    """The chain in a coordinator's value.

    Raises:
        CorruptionError: The value is no chain record.
    """
    return chain_from_record(_parse(records_pb2.ChainRecord, value))


def cursor_to_value(record: CursorRecord, over: bytes | None = None) -> bytes:
    """A consumer group's cursor as a coordinator's value; with `over`, that value changed."""
    written = records_pb2.CursorRecord.FromString(over) if over else records_pb2.CursorRecord()
    written.segment = record.segment_no
    written.group_epoch = record.group_epoch
    written.start_index = record.start_index
    written.topic = record.topic
    written.mode = records_pb2.CONSUMER_MODE_EXCLUSIVE
    return written.SerializeToString()


def cursor_from_value(value: bytes) -> CursorRecord:
    """The cursor in a coordinator's value.

    Raises:
        CorruptionError: The value is no cursor record.
    """
    record = _parse(records_pb2.CursorRecord, value)
    return CursorRecord(record.segment, record.group_epoch, record.start_index, record.topic)


class ChainArchive:
    """Chains to and from the coordinator's values, keeping the fields that this build does not know.

    It remembers at which revision it last saw each record; a record that somebody else wrote since must be read again
    before it is written over, or what only that one knew would be lost.
    """

    def __init__(self) -> None:
        self._raw: dict[PartitionId, records_pb2.ChainRecord] = {}
        self._revisions: dict[PartitionId, int] = {}

    def parse(self, value: bytes, revision: int) -> Chain:
        """The chain in `value`, remembering what `serialize` must keep.

        Raises:
            CorruptionError: The value is no chain record.
        """
        record = _parse(records_pb2.ChainRecord, value)
        chain = chain_from_record(record)
        # Serialized from the fields known here it has the same size exactly if there are no others (page_count is
        # a field that the core does not carry: such a record is kept as well).
        if chain_to_record(chain).ByteSize() == len(value):
            self._raw.pop(chain.partition, None)
        else:
            self._raw[chain.partition] = record
        self._revisions[chain.partition] = revision
        return chain

    def has_seen(self, partition: PartitionId, revision: int) -> bool:
        """Whether `serialize` knows all of the record that stands at `revision` (0: there is none)."""
        return revision == 0 or self._revisions.get(partition) == revision

    def serialize(self, chain: Chain) -> bytes:
        """The value to write over the one last seen."""
        return chain_to_record(chain, self._raw.get(chain.partition)).SerializeToString()

    def written(self, partition: PartitionId, revision: int) -> None:
        """What was serialized last stands at `revision` now."""
        self._revisions[partition] = revision

    def forget(self, partition: PartitionId) -> None:
        """The partition is no more."""
        self._raw.pop(partition, None)
        self._revisions.pop(partition, None)


def _write_segment(record: records_pb2.SegmentRecord, segment: Segment) -> None:
    record.no = segment.no
    record.attempt = segment.attempt
    record.group = segment.group
    _write_members(record.members, segment.members)
    record.master_run = segment.master_run
    record.state = _STATE_TO_RECORD[segment.state]
    for name in ("base", "sealed_len", "sealed_checksum", "tail_from"):
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


def _write_members(field: object, members: tuple[MemberId, ...]) -> None:
    del field[:]  # type: ignore[attr-defined]
    field.extend(member_to_record(member) for member in members)  # type: ignore[attr-defined]


def _read_segment(record: records_pb2.SegmentRecord) -> Segment:
    state = _STATE_FROM_RECORD.get(record.state)
    if state is None:
        raise CorruptionError(f"segment {record.no} is in state {record.state}, which this version does not know")
    return Segment(
        no=record.no,
        attempt=record.attempt,
        group=record.group,
        members=tuple(map(member_from_record, record.members)),
        master_run=record.master_run,
        state=state,
        base=record.base if record.HasField("base") else None,
        server=member_from_record(record.server),
        server_epoch=record.server_epoch,
        eligible=tuple(map(member_from_record, record.eligible)),
        opened_at_ms=record.opened_at_ms,
        sealed_len=record.sealed_len if record.HasField("sealed_len") else None,
        sealed_checksum=record.sealed_checksum if record.HasField("sealed_checksum") else None,
        tail_from=record.tail_from if record.HasField("tail_from") else None,
        tail_copies=tuple(map(member_from_record, record.tail_copies)),
        incomplete_table=record.incomplete_table,
        sealed_at_ms=record.sealed_at_ms,
    )


def _parse(kind: type[_Record], value: bytes) -> _Record:
    try:
        return kind.FromString(value)
    except DecodeError as exc:
        raise CorruptionError(f"a value in the coordinator is no {kind.DESCRIPTOR.name}") from exc
