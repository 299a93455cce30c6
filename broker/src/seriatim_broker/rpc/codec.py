"""The messages between brokers, as bytes.

A table has one `PeerMessage` for each value of `core.values.messages`. Only `Replicate` is not in it: its batches
travel as runs of a `ReplicateFrame`, which `rpc.peer_frames` makes. Bytes that do not decode to exactly one known
message are the peer's mistake: `BadRequestError`, and the link is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from seriatim_api.batch import parse_header
from seriatim_api.errors import BadRequestError, SeriatimError
from seriatim_api.frames import FrameError, read_batches
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.publications import StagedBatch
from seriatim_api.v1 import common_pb2, peer_pb2

from ..core.values import messages as m
from ..core.values.kinds import PrepareRefusal, ReplicateRefusal
from ..core.values.log import Batch, CursorState, HandOverId, HandOverState, LedgerChange, TailCopy
from ..core.values.producers import (
    IdleBlock,
    Table,
    pack_names,
    read_names,
)
from ..interfaces.settings_records import known_settings, settings_to_proto
from ..runtime.records import (
    chain_from_record,
    chain_to_record,
    member_from_record,
    member_to_record,
    members_from_record,
)

Pb = Any
"""A generated message. The generated classes of the contract have no useful common static type."""


def encode(message: m.Message) -> bytes:
    """One message as an encoded `PeerMessage`."""
    name, write, _ = _TABLE[type(message)]
    packed = peer_pb2.PeerMessage()
    field = getattr(packed, name)
    field.SetInParent()
    write(message, field)
    return packed.SerializeToString()


def decode(data: bytes) -> m.Message:
    """The message that `encode` was given.

    Raises:
        BadRequestError: Not a message that this version knows.
    """
    try:
        packed = peer_pb2.PeerMessage.FromString(data)
        name = packed.WhichOneof("kind")
        if name is None:
            raise BadRequestError("a peer sent a message of a kind that is not known here")
        message: m.Message = _READERS[name](getattr(packed, name))
        return message
    except (DecodeError, FrameError, ValueError, SeriatimError) as exc:
        if isinstance(exc, BadRequestError):
            raise
        raise BadRequestError(f"a peer's message cannot be read: {exc}") from exc


# ---- messages with many rows ----------------------------------------------------------------------------


class _RowFields(NamedTuple):
    """The fields of a message that have the rows of a ledger."""

    names: str
    values: str
    deleted: str = ""


_ROW_FIELDS: Final = {
    "hand_over": _RowFields("names", "values"),
    "replicate_ledger": _RowFields("put_names", "put_values", "deleted_names"),
}
_ROW_BYTES: Final = 16  # at least what the encoding of a row has beside its name and its value


def pieces_of(message: m.Message, size_bytes: int) -> Sequence[Callable[[], bytes]]:
    """The encodings of a message with many rows, in pieces of at most `size_bytes` and what is in it beside the rows.

    Put one behind the other, the pieces are an encoding of the whole message.

    Rule `rows-in-pieces` (I13): such a message is not encoded, or decoded, in one go. Without it:
      1. 100,000 keys wait, and a broker takes the right over. It sends their rows to another member.
      2. To encode and to decode 200,000 rows takes a third of a second, or more on a busy machine.
      3. Neither broker answers heartbeats meanwhile, and both count as silent.

    Returns:
        For each piece a call that encodes it; empty: the message has few rows, or none.
    """
    deletes: tuple[bytes, ...] = ()
    if isinstance(message, m.HandOver):
        name, rows = "hand_over", message.handover.rows
        rest: m.Message = replace(message, handover=replace(message.handover, rows=()))
    elif isinstance(message, m.ReplicateLedger):
        name, rows, deletes = "replicate_ledger", message.change.puts, message.change.deletes
        rest = replace(message, change=replace(message.change, puts=(), deletes=()))
    else:
        return ()
    row_ends = _ends((len(row) + len(value) for row, value in rows), size_bytes)
    deleted_ends = _ends(map(len, deletes), size_bytes)
    if len(row_ends) <= 1 and len(deleted_ends) <= 1:
        return ()
    pieces: list[Callable[[], bytes]] = [lambda: encode(rest)]
    pieces += [partial(_piece, name, rows[a:b], ()) for a, b in pairwise((0, *row_ends))]
    pieces += [partial(_piece, name, (), deletes[a:b]) for a, b in pairwise((0, *deleted_ends))]
    return pieces


def _ends(sizes: Iterable[int], size_bytes: int) -> list[int]:
    """Where the pieces of some rows end, so that none has more bytes."""
    ends: list[int] = []
    at, left = 0, size_bytes
    for size in sizes:
        left -= size + _ROW_BYTES
        if left < 0 and at:
            ends.append(at)
            left = size_bytes - size - _ROW_BYTES
        at += 1
    return [*ends, at] if at else []


def _piece(name: str, rows: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> bytes:
    packed = peer_pb2.PeerMessage()
    field, fields = getattr(packed, name), _ROW_FIELDS[name]
    getattr(field, fields.names).extend(row for row, _ in rows)
    getattr(field, fields.values).extend(value for _, value in rows)
    if deletes:
        getattr(field, fields.deleted).extend(deletes)
    return packed.SerializeToString()


class Pieces:
    """Reads a message that comes in pieces: each is decoded when it comes."""

    def __init__(self) -> None:
        self._name = ""
        self._rest: Pb = None
        self._rows: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []

    def add(self, data: bytes) -> None:
        """The next piece has come.

        Raises:
            BadRequestError: It is no piece of that message.
        """
        try:
            packed = peer_pb2.PeerMessage.FromString(data)
        except DecodeError as exc:
            raise BadRequestError(f"a piece of a peer's message cannot be read: {exc}") from exc
        name = packed.WhichOneof("kind") or ""
        if name not in _ROW_FIELDS or self._name not in ("", name):
            raise BadRequestError(f"a peer sent a piece of {name or 'nothing'}, which has none, or is another message")
        field, fields = getattr(packed, name), _ROW_FIELDS[name]
        self._rows += _rows(getattr(field, fields.names), getattr(field, fields.values))
        self._deletes += getattr(field, fields.deleted) if fields.deleted else ()
        if not self._name:
            for one in filter(None, fields):
                field.ClearField(one)
            self._name, self._rest = name, field

    def message(self) -> m.Message:
        """The message, when all pieces have come.

        Raises:
            BadRequestError: The pieces are no message.
        """
        message = decode(peer_pb2.PeerMessage(**{self._name: self._rest}).SerializeToString())
        if isinstance(message, m.HandOver):
            return replace(message, handover=replace(message.handover, rows=tuple(self._rows)))
        assert isinstance(message, m.ReplicateLedger)
        return replace(message, change=replace(message.change, puts=tuple(self._rows), deletes=tuple(self._deletes)))


# ---- parts ----------------------------------------------------------------------------------------------


def _write_batches(batches: Iterable[Batch], field: Pb) -> None:
    rows = tuple(batches)
    field.headers = b"".join(batch.header.raw for batch in rows)
    field.bodies = b"".join(batch.body for batch in rows)


def _read_batches(field: Pb) -> tuple[Batch, ...]:
    rows = read_batches(memoryview(field.headers), memoryview(field.bodies))
    return tuple(Batch(header, bytes(body)) for header, body in rows)


def _write_table(table: Table, field: Pb) -> None:
    field.packed = table.rows
    if table.blocks:
        field.blocks = pack_names(table.blocks)


def _read_table(field: Pb) -> Table:
    table = Table(field.packed, read_names(field.blocks))
    if not table.is_sound:
        raise BadRequestError(f"a packed producer table of {table.size_bytes} bytes has another length than it says")
    return table


def _write_tail(tail: TailCopy, field: Pb) -> None:
    field.segment = tail.segment_no
    field.from_index = tail.from_index
    field.length = tail.length
    _write_batches(tail.batches, field.batches)


def _read_tail(field: Pb) -> TailCopy:
    return TailCopy(field.segment, field.from_index, field.length, _read_batches(field.batches))


def _members(members: Iterable[MemberId]) -> list[common_pb2.Member]:
    return [member_to_record(member) for member in members]


def _segment(message: Any, field: Pb) -> None:
    """Write the two numbers with which nearly every message begins."""
    field.partition_id = message.partition
    field.segment = message.segment_no


def _place(field: Pb) -> tuple[PartitionId, int]:
    return PartitionId(field.partition_id), field.segment


# ---- one pair of functions for each message -------------------------------------------------------------


def _write_heartbeat(message: m.Heartbeat, field: Pb) -> None:
    field.sent_us = message.sent_us


def _read_heartbeat(field: Pb) -> m.Heartbeat:
    return m.Heartbeat(field.sent_us)


def _write_heartbeat_answer(message: m.HeartbeatAnswer, field: Pb) -> None:
    field.sent_us = message.sent_us
    field.refused_partition.extend(partition for partition, _ in message.refused)
    field.refused_segment.extend(segment for _, segment in message.refused)
    field.disk_stall_us = message.disk_stall_us
    field.disk_is_full = message.disk_is_full
    field.data_count = message.data_count


def _read_heartbeat_answer(field: Pb) -> m.HeartbeatAnswer:
    refused = zip(field.refused_partition, field.refused_segment, strict=True)
    segments = tuple((PartitionId(partition), segment) for partition, segment in refused)
    return m.HeartbeatAnswer(field.sent_us, segments, field.disk_stall_us, field.disk_is_full, field.data_count)


def _write_fence_request(message: m.FenceRequest, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.switch = message.switch


def _read_fence_request(field: Pb) -> m.FenceRequest:
    return m.FenceRequest(*_place(field), field.attempt, field.switch)


def _write_quiesce_request(message: m.QuiesceRequest, field: Pb) -> None:
    _segment(message, field)
    field.switch = message.switch


def _write_fence_answer(message: m.FenceAnswer, field: Pb) -> None:
    _segment(message, field)
    field.switch = message.switch
    field.fenced = message.fenced
    if message.length is not None:
        field.length = message.length
    field.checksum = message.checksum
    field.unbroken = message.unbroken
    field.commit = message.commit
    field.last_append_ms = message.last_append_ms
    _write_table(message.table, field.table)
    field.incomplete_table = message.incomplete_table
    _write_batches(message.tail, field.tail)
    field.from_disk = message.from_disk
    field.coordinator_behind = message.coordinator_behind
    if message.size_bytes is not None:
        field.size_bytes = message.size_bytes


def _write_fence_progress(message: m.FenceProgress, field: Pb) -> None:
    _segment(message, field)
    field.switch = message.switch
    field.size_bytes = message.size_bytes


def _read_fence_answer(field: Pb) -> m.FenceAnswer:
    if field.HasField("length") != field.HasField("size_bytes"):
        raise BadRequestError("an answer to a fence has length and size, or neither")
    return m.FenceAnswer(
        *_place(field),
        field.switch,
        field.fenced,
        field.length if field.HasField("length") else None,
        field.checksum,
        field.unbroken,
        field.commit,
        field.last_append_ms,
        _read_table(field.table),
        field.incomplete_table,
        _read_batches(field.tail),
        field.from_disk,
        field.coordinator_behind,
        field.size_bytes if field.HasField("size_bytes") else None,
    )


def _write_prepare_request(message: m.PrepareRequest, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.members.extend(_members(message.members))
    field.flush = message.flush
    field.incomplete_table = message.incomplete_table
    if message.source is not None:
        field.source.CopyFrom(member_to_record(message.source))
    _write_table(message.table, field.table)
    if message.tail is not None:
        field.tail.SetInParent()
        _write_tail(message.tail, field.tail)
    field.replaces.extend(message.replaces)


def _read_prepare_request(field: Pb) -> m.PrepareRequest:
    return m.PrepareRequest(
        *_place(field),
        field.attempt,
        members_from_record(field.members),
        field.flush,
        field.incomplete_table,
        _read_table(field.table),
        _read_tail(field.tail) if field.HasField("tail") else None,
        tuple(field.replaces),
        member_from_record(field.source) if field.HasField("source") else None,
    )


def _write_prepare_answer(message: m.PrepareAnswer, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.run = message.member_run
    field.refusal = message.refusal
    field.missing_bytes = message.missing_bytes


def _read_prepare_answer(field: Pb) -> m.PrepareAnswer:
    return m.PrepareAnswer(
        *_place(field), field.attempt, field.run, PrepareRefusal.told(field.refusal), field.missing_bytes
    )


def _write_block_offer(message: m.BlockOffer, field: Pb) -> None:
    _segment(message, field)
    field.blocks.extend(message.blocks)


def _write_block_request(message: m.BlockRequest, field: Pb) -> None:
    field.partition_id = message.partition
    field.blocks.extend(message.blocks)


def _write_block_answer(message: m.BlockAnswer, field: Pb) -> None:
    field.partition_id = message.partition
    field.contents.extend(message.contents)


def _read_block_answer(field: Pb) -> m.BlockAnswer:
    if not all(map(IdleBlock.is_sound, field.contents)):
        raise BadRequestError("a peer sent an idle block that does not consist of rows")
    return m.BlockAnswer(PartitionId(field.partition_id), tuple(field.contents))


def _write_chain_update(message: m.ChainUpdate, field: Pb) -> None:
    field.chain.CopyFrom(chain_to_record(message.chain))
    field.revision = message.revision


def _read_chain_update(field: Pb) -> m.ChainUpdate:
    return m.ChainUpdate(chain_from_record(field.chain), field.revision)


def _write_chain_changes(message: m.ChainChanges, field: Pb) -> None:
    field.chain.CopyFrom(chain_to_record(message.chain))
    field.revision = message.revision
    field.since = message.since
    field.gone.extend(message.gone)
    field.digest = message.digest


def _read_chain_changes(field: Pb) -> m.ChainChanges:
    chain = chain_from_record(field.chain)
    return m.ChainChanges(chain, field.revision, field.since, tuple(field.gone), field.digest)


def _write_quiesce_answer(message: m.QuiesceAnswer, field: Pb) -> None:
    _segment(message, field)
    field.switch = message.switch
    field.quiet = message.quiet


def _write_replicate_ack(message: m.ReplicateAck, field: Pb) -> None:
    field.partition_id = message.partition
    field.segment = message.segment_no
    field.attempt = message.switch_attempt
    field.received = message.received
    field.durable = message.durable


def _read_replicate_ack(field: Pb) -> m.ReplicateAck:
    return m.ReplicateAck(field.partition_id, field.segment, field.attempt, field.received, field.durable)


def _write_replicate_staged(message: m.ReplicateStaged, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.commit = message.commit
    field.header = message.header.raw
    staged = message.staged
    field.stage_partition, field.rows, field.offset, field.chunk = staged


def _read_replicate_staged(field: Pb) -> m.ReplicateStaged:
    staged = StagedBatch(field.stage_partition, field.rows, field.offset, field.chunk)
    return m.ReplicateStaged(*_place(field), field.attempt, field.commit, parse_header(field.header), staged)


def _write_replicate_refused(message: m.ReplicateRefused, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.reason = message.reason


def _write_tail_request(message: m.TailRequest, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt


def _write_tail_answer(message: m.TailAnswer, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.tail = message.tail
    field.checksum = message.checksum
    field.durable = message.durable


def _read_tail_answer(field: Pb) -> m.TailAnswer:
    return m.TailAnswer(*_place(field), field.attempt, field.tail, field.checksum, field.durable)


def _write_copy_request(message: m.CopyRequest, field: Pb) -> None:
    _segment(message, field)
    field.from_index = message.from_index
    field.bytes_max = message.max_bytes
    field.want_table = message.want_table
    field.want_end_table = message.want_end_table


def _write_copy_answer(message: m.CopyAnswer, field: Pb) -> None:
    _segment(message, field)
    field.from_index = message.from_index
    field.available = message.available
    _write_batches(message.batches, field.batches)
    if message.table is not None:
        field.table.SetInParent()
        _write_table(message.table, field.table)
    field.is_end_table = message.is_end_table


def _read_copy_answer(field: Pb) -> m.CopyAnswer:
    table = _read_table(field.table) if field.HasField("table") else None
    batches = _read_batches(field.batches)
    return m.CopyAnswer(*_place(field), field.from_index, field.available, batches, table, field.is_end_table)


def _write_store_tail(message: m.StoreTail, field: Pb) -> None:
    field.partition_id = message.partition
    field.settle = message.settle
    _write_tail(message.tail, field.tail)


def _read_store_tail(field: Pb) -> m.StoreTail:
    return m.StoreTail(PartitionId(field.partition_id), field.settle, _read_tail(field.tail))


def _write_tail_stored(message: m.TailStored, field: Pb) -> None:
    _segment(message, field)
    field.settle = message.settle


def _write_suspect_tail(message: m.SuspectTail, field: Pb) -> None:
    _segment(message, field)
    field.length = message.length
    field.compares = message.compares
    field.commit = message.commit


def _read_suspect_tail(field: Pb) -> m.SuspectTail:
    return m.SuspectTail(*_place(field), field.length, field.compares, field.commit)


def _write_table_answer(message: m.TableAnswer, field: Pb) -> None:
    _segment(message, field)
    if message.table is not None:
        field.table.SetInParent()
        _write_table(message.table, field.table)


def _read_table_answer(field: Pb) -> m.TableAnswer:
    return m.TableAnswer(*_place(field), _read_table(field.table) if field.HasField("table") else None)


def _write_replicate_cursors(message: m.ReplicateCursors, field: Pb) -> None:
    _segment(message, field)
    field.server_epoch = message.server_epoch
    field.serial = message.serial
    for cursor in message.cursors:
        _write_cursor(cursor, field.cursors.add())


def _read_replicate_cursors(field: Pb) -> m.ReplicateCursors:
    cursors = tuple(map(_read_cursor, field.cursors))
    return m.ReplicateCursors(*_place(field), field.server_epoch, field.serial, cursors)


def _write_cursor(cursor: CursorState, field: Pb) -> None:
    field.segment = cursor.segment_no
    field.group = cursor.consumer_group
    field.group_epoch = cursor.group_epoch
    field.acked = cursor.acked
    field.reserved = cursor.reserved
    field.oldest = cursor.oldest
    field.untold = cursor.untold
    field.settings.CopyFrom(settings_to_proto(cursor.settings))
    field.term_base = cursor.term_base


def _read_cursor(field: Pb) -> CursorState:
    """A control record; the message that has it says of which server epoch it is, and has its serial."""
    if not field.HasField("settings"):
        raise BadRequestError(f"a control record of consumer group {field.group} does not say how the group is served")
    return CursorState(
        field.segment,
        field.group,
        field.group_epoch,
        field.acked,
        field.reserved,
        oldest=field.oldest,
        untold=field.untold,
        settings=known_settings(field.settings),
        term_base=field.term_base,
    )


def _write_replicate_ledger(message: m.ReplicateLedger, field: Pb) -> None:
    _segment(message, field)
    field.server_epoch = message.server_epoch
    field.serial = message.serial
    field.previous = message.previous + 1  # -1 comes before the first one
    _write_cursor(message.cursor, field.cursor)
    change = message.change
    field.is_full = change.is_full
    field.put_names.extend(name for name, _ in change.puts)
    field.put_values.extend(value for _, value in change.puts)
    field.deleted_names.extend(change.deletes)


def _read_replicate_ledger(field: Pb) -> m.ReplicateLedger:
    puts = _rows(field.put_names, field.put_values)
    return m.ReplicateLedger(
        *_place(field),
        field.server_epoch,
        field.serial,
        field.previous - 1,
        _read_cursor(field.cursor),
        LedgerChange(puts, tuple(field.deleted_names), field.is_full),
    )


def _rows(names: Pb, values: Pb) -> tuple[tuple[bytes, bytes], ...]:
    if len(names) != len(values):
        raise BadRequestError("a message about a ledger has as many values as names of rows")
    return tuple(zip(names, values, strict=True))


def _write_ledger_wanted(message: m.LedgerWanted, field: Pb) -> None:
    _segment(message, field)
    field.server_epoch = message.server_epoch
    field.group = message.consumer_group


def _write_hand_over(message: m.HandOver, field: Pb) -> None:
    handover = message.handover
    field.partition_id = message.partition
    field.segment = handover.segment_no
    field.group = handover.consumer_group
    field.group_epoch = handover.group_epoch
    field.handover_epoch, field.handover_no = handover.id
    field.names.extend(name for name, _ in handover.rows)
    field.values.extend(value for _, value in handover.rows)


def _read_hand_over(field: Pb) -> m.HandOver:
    rows = _rows(field.names, field.values)
    id_ = HandOverId(field.handover_epoch, field.handover_no)
    state = HandOverState(field.segment, field.group, field.group_epoch, id_, rows)
    return m.HandOver(PartitionId(field.partition_id), state)


def _write_hand_over_kept(message: m.HandOverKept, field: Pb) -> None:
    _segment(message, field)
    field.group = message.consumer_group
    field.group_epoch = message.group_epoch
    field.handover_epoch, field.handover_no = message.id


def _read_hand_over_kept(field: Pb) -> m.HandOverKept:
    id_ = HandOverId(field.handover_epoch, field.handover_no)
    return m.HandOverKept(*_place(field), field.group, field.group_epoch, id_)


def _write_cursors_replicated(message: m.CursorsReplicated, field: Pb) -> None:
    _segment(message, field)
    field.server_epoch = message.server_epoch
    field.serial = message.serial


def _write_take_over(message: m.TakeOver, field: Pb) -> None:
    _segment(message, field)
    field.server_epoch = message.server_epoch
    if message.sent_us is not None:
        field.sent_us = message.sent_us


def _read_take_over(field: Pb) -> m.TakeOver:
    return m.TakeOver(*_place(field), field.server_epoch, field.sent_us if field.HasField("sent_us") else None)


def _write_server_heard(message: m.ServerHeard, field: Pb) -> None:
    _segment(message, field)
    field.server_epoch = message.server_epoch
    field.sent_us = message.sent_us
    field.before_us = message.before_us


def _write_heal_request(message: m.HealRequest, field: Pb) -> None:
    _segment(message, field)
    if message.replaces is not None:
        field.replaces.CopyFrom(member_to_record(message.replaces))


def _read_heal_request(field: Pb) -> m.HealRequest:
    return m.HealRequest(*_place(field), member_from_record(field.replaces) if field.HasField("replaces") else None)


def _write_keep_producer(message: m.KeepProducer, field: Pb) -> None:
    _segment(message, field)
    field.attempt = message.switch_attempt
    field.producer = message.producer
    field.append_time_ms = message.append_time_ms


def _write_pass_request(message: m.PassRequest, field: Pb) -> None:
    _segment(message, field)
    field.group = message.consumer_group


def _write_release_request(message: m.ReleaseRequest, field: Pb) -> None:
    field.partition_id = message.partition
    field.segment.extend(message.segment_nos)
    field.leaving.extend(_members(message.leaving))


def _read_release_request(field: Pb) -> m.ReleaseRequest:
    return m.ReleaseRequest(PartitionId(field.partition_id), tuple(field.segment), members_from_record(field.leaving))


def _write_copies_question(message: m.CopiesQuestion, field: Pb) -> None:
    field.serial = message.serial
    field.without.CopyFrom(member_to_record(message.without))
    field.partition.extend(partition for partition, _ in message.segments)
    field.segment.extend(segment for _, segment in message.segments)


def _read_copies_question(field: Pb) -> m.CopiesQuestion:
    segments = zip(map(PartitionId, field.partition), field.segment, strict=True)
    return m.CopiesQuestion(field.serial, member_from_record(field.without), tuple(segments))


def _write_copies_answer(message: m.CopiesAnswer, field: Pb) -> None:
    field.serial = message.serial
    for report in message.reports:
        field.standing.append(report.standing)
        field.index.append(report.index)
        field.epoch.append(report.epoch)


def _read_copies_answer(field: Pb) -> m.CopiesAnswer:
    rows = zip(map(_standing, field.standing), field.index, field.epoch, strict=True)
    return m.CopiesAnswer(field.serial, tuple(m.CopyReport(*row) for row in rows))


def _standing(number: int) -> m.Standing:
    """An answer of a newer version that this one does not know proves nothing."""
    return m.Standing(number) if number in _STANDINGS else m.Standing.UNKNOWN


_STANDINGS = frozenset(map(int, m.Standing))

_TABLE: dict[type, tuple[str, Callable[[Any, Pb], None], Callable[[Pb], Any]]] = {
    m.Heartbeat: ("heartbeat", _write_heartbeat, _read_heartbeat),
    m.HeartbeatAnswer: ("heartbeat_answer", _write_heartbeat_answer, _read_heartbeat_answer),
    m.LaneProbe: ("lane_probe", lambda message, field: None, lambda f: m.LaneProbe()),
    m.FenceRequest: ("fence_request", _write_fence_request, _read_fence_request),
    m.FenceAnswer: ("fence_answer", _write_fence_answer, _read_fence_answer),
    m.PrepareRequest: ("prepare_request", _write_prepare_request, _read_prepare_request),
    m.PrepareAnswer: ("prepare_answer", _write_prepare_answer, _read_prepare_answer),
    m.BlockOffer: (
        "block_offer",
        _write_block_offer,
        lambda f: m.BlockOffer(*_place(f), tuple(f.blocks)),
    ),
    m.BlockRequest: (
        "block_request",
        _write_block_request,
        lambda f: m.BlockRequest(PartitionId(f.partition_id), tuple(f.blocks)),
    ),
    m.BlockAnswer: ("block_answer", _write_block_answer, _read_block_answer),
    m.ChainUpdate: ("chain_update", _write_chain_update, _read_chain_update),
    m.ChainChanges: ("chain_changes", _write_chain_changes, _read_chain_changes),
    m.QuiesceRequest: (
        "quiesce_request",
        _write_quiesce_request,
        lambda f: m.QuiesceRequest(*_place(f), f.switch),
    ),
    m.FenceProgress: (
        "fence_progress",
        _write_fence_progress,
        lambda f: m.FenceProgress(*_place(f), f.switch, f.size_bytes),
    ),
    m.QuiesceAnswer: (
        "quiesce_answer",
        _write_quiesce_answer,
        lambda f: m.QuiesceAnswer(*_place(f), f.switch, f.quiet),
    ),
    m.ReplicateStaged: ("replicate_staged", _write_replicate_staged, _read_replicate_staged),
    m.ReplicateAck: ("replicate_ack", _write_replicate_ack, _read_replicate_ack),
    m.ReplicateRefused: (
        "replicate_refused",
        _write_replicate_refused,
        lambda f: m.ReplicateRefused(*_place(f), f.attempt, ReplicateRefusal.told(f.reason)),
    ),
    m.TailRequest: (
        "resume_replica",
        _write_tail_request,
        lambda f: m.TailRequest(*_place(f), f.attempt),
    ),
    m.TailAnswer: ("replica_tail", _write_tail_answer, _read_tail_answer),
    m.CopyRequest: (
        "copy_request",
        _write_copy_request,
        lambda f: m.CopyRequest(*_place(f), f.from_index, f.bytes_max, f.want_table, f.want_end_table),
    ),
    m.CopyAnswer: ("copy_answer", _write_copy_answer, _read_copy_answer),
    m.StoreTail: ("store_tail", _write_store_tail, _read_store_tail),
    m.TailStored: ("tail_stored", _write_tail_stored, lambda f: m.TailStored(*_place(f), f.settle)),
    m.SuspectTail: ("suspect_tail", _write_suspect_tail, _read_suspect_tail),
    m.TableRequest: ("table_request", _segment, lambda f: m.TableRequest(*_place(f))),
    m.TableAnswer: ("table_answer", _write_table_answer, _read_table_answer),
    m.ReplicateCursors: ("cursor_sync", _write_replicate_cursors, _read_replicate_cursors),
    m.CursorsReplicated: (
        "cursor_synced",
        _write_cursors_replicated,
        lambda f: m.CursorsReplicated(*_place(f), f.server_epoch, f.serial),
    ),
    m.ReplicateLedger: ("replicate_ledger", _write_replicate_ledger, _read_replicate_ledger),
    m.LedgerWanted: (
        "ledger_wanted",
        _write_ledger_wanted,
        lambda f: m.LedgerWanted(*_place(f), f.server_epoch, f.group),
    ),
    m.HandOver: ("hand_over", _write_hand_over, _read_hand_over),
    m.HandOverKept: ("hand_over_kept", _write_hand_over_kept, _read_hand_over_kept),
    m.EligibleRequest: ("eligible_request", _segment, lambda f: m.EligibleRequest(*_place(f))),
    m.TakeOver: ("take_over", _write_take_over, _read_take_over),
    m.ServerHeard: (
        "server_heard",
        _write_server_heard,
        lambda f: m.ServerHeard(*_place(f), f.server_epoch, f.sent_us, f.before_us),
    ),
    m.HealRequest: ("heal_request", _write_heal_request, _read_heal_request),
    m.MoveRequest: ("move_request", _segment, lambda f: m.MoveRequest(*_place(f))),
    m.KeepProducer: (
        "keep_producer",
        _write_keep_producer,
        lambda f: m.KeepProducer(*_place(f), f.attempt, f.producer, f.append_time_ms),
    ),
    m.PassRequest: ("pass_request", _write_pass_request, lambda f: m.PassRequest(*_place(f), f.group)),
    m.ReleaseRequest: ("release_request", _write_release_request, _read_release_request),
    m.CopiesQuestion: ("copies_question", _write_copies_question, _read_copies_question),
    m.CopiesAnswer: ("copies_answer", _write_copies_answer, _read_copies_answer),
}

_READERS: dict[str, Callable[[Pb], Any]] = {name: read for name, _, read in _TABLE.values()}
