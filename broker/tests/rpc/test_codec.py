"""Every message between brokers survives the wire, alone and in frames. Other bytes are refused."""

from __future__ import annotations

import tracemalloc
import typing
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.batch import FLAG_HELD, parse_header
from seriatim_api.errors import BadRequestError, CorruptionError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.publications import StagedBatch
from seriatim_api.wire.frames import ReplicateRun, replicate_frame_pieces
from seriatim_broker.adapters.rocks import codec as rocks_codec
from seriatim_broker.core.values import messages as m
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.keyed import (
    SETTINGS_DEFAULT,
    BackOff,
    ConsumerGroupSettings,
    ConsumerMode,
    Exhausted,
    RetryPolicy,
)
from seriatim_broker.core.values.kinds import PrepareRefusal, ReplicateRefusal
from seriatim_broker.core.values.log import Batch, CursorState, HandOverId, HandOverState, LedgerChange, TailCopy
from seriatim_broker.core.values.producers import BlockName, Entry, IdleBlock, Table, pack_table, pack_window
from seriatim_broker.core.values.segment import AT_ZERO, Segment, SegmentState, Start
from seriatim_broker.rpc.links import codec, peer_frames
from seriatim_broker.runtime.coordinator.chain_layout import ChainArchive
from seriatim_broker.runtime.coordinator.records import chain_to_record, parse_chain

from broker.tests.headers import header_of

KINDS = typing.get_args(m.Message)

u32 = st.integers(0, 2**32 - 1)
u63 = st.integers(0, 2**63 - 1)
ids16 = st.binary(min_size=16, max_size=16)
texts = st.text(max_size=12)
members = st.builds(MemberId, texts, texts)
entries = st.builds(Entry, u32, u63, st.integers(1, 1000), u63)
windows = st.builds(pack_window, st.lists(entries, min_size=1, max_size=3), u63)
spelled_out = st.dictionaries(ids16, windows, max_size=3).map(pack_table)
names = st.builds(BlockName, ids16, st.integers(9, 9000), u63, st.integers(0, 511))
blocks = st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=3, unique=True).map(
    lambda ids: IdleBlock.of((producer, pack_window([Entry(0, 1, 1, 7)], 5)) for producer in ids).data
)
tables = st.builds(lambda table, blocks: replace(table, blocks=tuple(blocks)), spelled_out, st.lists(names, max_size=3))


def make_batch(body: bytes, sequence: int) -> Batch:
    raw = header_of(body, partition=7, message_count=2, producer_epoch=1, base_sequence=sequence, body_crc=5)
    return Batch(parse_header(raw), body)


batches = st.lists(st.builds(make_batch, st.binary(max_size=40), u32), max_size=3).map(tuple)
tails = st.builds(TailCopy, u32, u63, u63, batches)
policies = st.builds(
    RetryPolicy,
    u32,
    st.sampled_from(BackOff),
    st.lists(u32, min_size=1, max_size=3).map(tuple),
    u32,
    st.sampled_from(Exhausted),
    texts,
    st.integers(1, 2**31),
)
group_settings = st.builds(
    ConsumerGroupSettings,
    st.sampled_from([mode for mode in ConsumerMode if mode is not ConsumerMode.EXCLUSIVE]),
    policies,
    st.booleans(),
) | st.builds(ConsumerGroupSettings, at_most_once=st.booleans())
cursor_states = st.builds(
    CursorState, u32, texts, u63, u63, u63, oldest=u63, untold=u63, settings=group_settings, term_base=u63
)
cursors = st.lists(cursor_states, max_size=3).map(tuple)
row_names = st.binary(max_size=20)
rows = st.lists(st.tuples(row_names, st.binary(max_size=40)), max_size=3).map(tuple)
changes = st.builds(LedgerChange, rows, st.lists(row_names, max_size=3).map(tuple), st.booleans())
handover_ids = st.builds(HandOverId, u63, u63)


def as_sealed(segment: Segment) -> Segment:
    """If it is sealed, its record says how."""
    if segment.state is not SegmentState.SEALED:
        return segment
    numbers = ("sealed_len", "sealed_checksum", "sealed_bytes")
    return replace(segment, **{name: getattr(segment, name) or 0 for name in numbers})


segments = st.builds(
    Segment,
    no=u32,
    switch_attempt=ids16,
    broker_group=texts,
    members=st.lists(members, min_size=1, max_size=3).map(tuple),
    master_run=u63,
    state=st.sampled_from(SegmentState),
    base=st.none() | u63,
    server=members,
    server_epoch=u63,
    eligible=st.lists(members, max_size=3).map(tuple),
    opened_at_ms=u63,
    sealed_len=st.none() | u63,
    sealed_checksum=st.none() | u32,
    tail_from=st.none() | u63,
    tail_copies=st.lists(members, max_size=2).map(tuple),
    incomplete_table=st.booleans(),
    sealed_at_ms=u63,
    append_floor_ms=u63,
    begin=st.just(AT_ZERO) | st.builds(Start, st.integers(1, 2**63 - 1), u32, u63),
    sealed_bytes=st.none() | u63,
    delayed_until_ms=u63,
).map(as_sealed)
chains = st.builds(
    Chain,
    partition=u32,
    epoch=u63,
    topic=texts,
    number=u32,
    flush=st.booleans(),
    send_chain=st.lists(texts, max_size=3).map(tuple),
    segments=st.lists(segments, min_size=1, max_size=3, unique_by=lambda s: s.no).map(tuple),
    width=st.integers(1, 100),
)

BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "partition": u32,
    "segment_no": u32,
    "checksum": u32,
    "switch": ids16,
    "switch_attempt": ids16,
    "producer": ids16,
    "settle": ids16,
    "members": st.lists(members, max_size=3).map(tuple),
    "batches": batches,
    "cursors": cursors,
    "cursor": cursor_states,
    "change": changes,
    "previous": st.integers(-1, 2**62),
    "id": handover_ids,
    "handover": st.builds(HandOverState, u32, texts, u63, handover_ids, rows),
    "chain": chains,
    "refused": st.lists(st.tuples(u32, u32), max_size=3).map(tuple),
    "replaces": st.none() | members,
    "segment_nos": st.lists(u32, max_size=3).map(tuple),
    "leaving": st.lists(members, max_size=3).map(tuple),
    "without": members,
    "segments": st.lists(st.tuples(u32, u32), max_size=3).map(tuple),
    "reports": st.lists(st.builds(m.CopyReport, st.sampled_from(m.Standing), u63, u63), max_size=3).map(tuple),
    "max_bytes": u32,
    "gone": st.lists(u32, max_size=3).map(tuple),
    "header": st.builds(make_batch, st.binary(max_size=40), u32).map(lambda batch: batch.header),
    "staged": st.builds(StagedBatch, u32, u32, u63, ids16),
}
BY_KIND_AND_NAME: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (m.FenceAnswer, "table"): tables,
    (m.FenceAnswer, "tail"): batches,
    (m.FenceAnswer, "length"): st.none() | u63,
    (m.FenceAnswer, "size_bytes"): st.none() | u63,
    (m.PrepareRequest, "table"): tables,
    (m.PrepareRequest, "tail"): st.none() | tails,
    (m.PrepareRequest, "replaces"): st.lists(ids16, max_size=3).map(tuple),
    (m.StoreTail, "tail"): tails,
    (m.PrepareRequest, "source"): st.none() | members,
    (m.BlockOffer, "blocks"): st.lists(ids16, max_size=3).map(tuple),
    (m.BlockRequest, "blocks"): st.lists(ids16, max_size=3).map(tuple),
    (m.BlockAnswer, "contents"): st.lists(blocks, max_size=3).map(tuple),
    (m.PrepareRequest, "producers_max"): st.integers(1, 1_000_000),
    (m.CopyAnswer, "table"): st.none() | tables,
    (m.TableAnswer, "table"): st.none() | tables,
    (m.TailAnswer, "tail"): u63,
    (m.TakeOver, "sent_us"): st.none() | u63,
}
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: u63,
    bool: st.booleans(),
    str: texts,
    PrepareRefusal: st.sampled_from(PrepareRefusal),
    ReplicateRefusal: st.sampled_from(ReplicateRefusal),
}


def messages_of(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    arguments = {}
    for field in fields(kind):
        default = BY_NAME.get(field.name, BY_TYPE.get(hints[field.name]))
        strategy = BY_KIND_AND_NAME.get((kind, field.name), default)
        assert strategy is not None, (kind, field.name)
        arguments[field.name] = strategy
    if kind is m.FenceAnswer:
        return st.builds(kind, **arguments).map(
            lambda answer: replace(answer, size_bytes=None if answer.length is None else answer.size_bytes or 0)
        )
    return st.builds(kind, **arguments)


def test_a_refusal_of_a_later_version_is_understood_as_another_one() -> None:
    refused = m.ReplicateRefused(PartitionId(1), 2, b"a", ReplicateRefusal.GAP)
    data = codec.encode(refused).replace(b"\xa3gap", b"\xa4moon")
    assert codec.decode(data) == replace(refused, reason=ReplicateRefusal.OTHER)
    answer = m.PrepareAnswer(PartitionId(1), 2, b"a", 3, PrepareRefusal.VOIDED)
    data = codec.encode(answer).replace(b"\xa6voided", b"\xa4moon")
    assert codec.decode(data) == replace(answer, refusal=PrepareRefusal.OTHER)


def test_a_standing_of_a_later_version_proves_nothing() -> None:
    answer = m.CopiesAnswer(1, (m.CopyReport(m.Standing.IN_SYNC, 5, 6),))
    rows = msgspec.msgpack.decode(codec.encode(answer))
    rows[-1][0][0] = 77
    assert codec.decode(msgspec.msgpack.encode(rows)) == m.CopiesAnswer(1, (m.CopyReport(m.Standing.UNKNOWN, 5, 6),))


ENCODED_KINDS = [kind for kind in KINDS if kind is not m.Replicate]


@pytest.mark.parametrize("kind", ENCODED_KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_each_message_survives(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("cut", [1, 3, 20, 30, 60])
def test_a_packed_table_that_is_not_whole_is_refused(cut: int) -> None:
    table = pack_table({b"a" * 16: pack_window([Entry(0, 0, 1, 5)], 7), b"b" * 16: pack_window([Entry(0, 0, 1, 6)], 8)})
    good = m.TableAnswer(PartitionId(1), 2, table)
    assert codec.decode(codec.encode(good)) == good
    with pytest.raises(BadRequestError):
        codec.decode(codec.encode(replace(good, table=Table(table.rows[:-cut]))))
    with pytest.raises(BadRequestError):
        codec.decode(codec.encode(replace(good, table=Table(table.rows + bytes(cut)))))


def test_the_size_of_a_message_counts_its_table() -> None:
    table = pack_table({bytes([number]) * 16: pack_window([Entry(0, 0, 1, 5)]) for number in range(200)})
    for message in (
        m.TableAnswer(PartitionId(1), 2, table),
        m.FenceAnswer(PartitionId(1), 2, b"s", True, 0, 0, True, 0, 0, table, False, ()),
        m.PrepareRequest(PartitionId(1), 2, b"a", (), True, False, table, None),
    ):
        assert abs(peer_frames.size_of(message) - len(codec.encode(message))) < 100


def test_the_size_of_a_message_counts_its_batches() -> None:
    batches = make_batch(bytes(10_000), 0), make_batch(bytes(10_000), 1)
    tail = TailCopy(2, 0, 4, batches)
    for message in (
        m.Replicate(PartitionId(1), 2, b"a", 0, batches),
        m.CopyAnswer(PartitionId(1), 2, 0, True, batches, None),
        m.FenceAnswer(PartitionId(1), 2, b"s", True, 0, 0, True, 0, 0, Table(), False, batches),
        m.PrepareRequest(PartitionId(1), 2, b"a", (), True, False, Table(), tail),
        m.StoreTail(PartitionId(1), b"s", tail),
        m.BlockAnswer(PartitionId(1), (bytes(10_192), bytes(10_192))),
    ):
        assert 2 * 10_192 < peer_frames.size_of(message) < 2 * 10_192 + 200
    assert 0 < peer_frames.size_of(m.StoreTail(PartitionId(1), b"s", replace(tail, batches=()))) < 200


def about(partition: int, messages: list[Any]) -> list[Any]:
    """Those about a partition, in their order."""
    return [message for message in messages if getattr(message, "partition", None) == partition]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(*(messages_of(kind) for kind in m.DATA)), max_size=8))
def test_data_frames_keep_the_order_of_each_partition(sent: list[Any]) -> None:
    frames = peer_frames.write_data_frames(sent)
    arrived = [message for frame in frames for message in peer_frames.read_data_frame(frame)]
    assert sorted(map(repr, arrived)) == sorted(map(repr, sent))
    for partition in {message.partition for message in sent if not isinstance(message, m.LaneProbe)}:
        # Messages before a run of their partition may not fall behind it, nor the other way round.
        assert about(partition, arrived) == about(partition, sent)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(*(messages_of(kind) for kind in KINDS if kind not in m.DATA)), max_size=8))
def test_control_frames_keep_the_order(sent: list[Any]) -> None:
    frames = list(peer_frames.write_control_frames(sent))
    assert [message for frame in frames for message in peer_frames.ControlReader().read(frame)] == sent


def test_frames_are_bounded() -> None:
    batch = make_batch(bytes(300_000), 1)
    sent = [m.Replicate(partition, 1, bytes(16), 0, (batch,)) for partition in range(1, 9)]
    frames = list(peer_frames.write_data_frames(sent))
    assert len(frames) == 3
    assert all(len(frame) <= peer_frames.FRAME_SIZE_BYTES + 4096 for frame in frames)


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"", b"\x0a\x05abc", b"hello, broker", b"\x91\x7f", b"\x91" * 5000])
def test_garbage_is_a_bad_request(garbage: bytes) -> None:
    with pytest.raises(BadRequestError):
        codec.decode(garbage)
    if garbage:
        with pytest.raises(BadRequestError):
            peer_frames.read_data_frame(garbage)


@settings(max_examples=40, deadline=None)
@given(chains)
def test_a_chain_survives_the_coordinator(chain: Chain) -> None:
    value = chain_to_record(chain).SerializeToString()
    assert parse_chain(value) == chain
    archive = ChainArchive()
    assert archive.parse(value, 1) == chain
    assert archive.lay_out(chain).record == value


@settings(max_examples=20, deadline=None)
@given(chains, u63)
def test_fields_of_a_newer_version_survive_a_rewrite(chain: Chain, epoch: int) -> None:
    unknown = b"\xc2\x3e\x05newer"  # field 1000, length-delimited
    record = chain_to_record(chain)
    record.segments[0].MergeFromString(unknown)
    value = record.SerializeToString() + unknown
    archive = ChainArchive()
    assert archive.parse(value, 1) == chain
    rewritten = archive.lay_out(typing.cast("Any", chain).__class__(**{**_fields(chain), "epoch": epoch})).record
    assert rewritten.count(unknown) == 2
    assert parse_chain(rewritten).epoch == epoch


def _fields(chain: Chain) -> dict[str, Any]:
    return {field.name: getattr(chain, field.name) for field in fields(chain)}


NUMBER_HOSTILE = [-1, 2**32, 2**64 - 1, 1.0, True, "1", None, b"", []]


@pytest.mark.parametrize("number", NUMBER_HOSTILE, ids=repr)
def test_what_is_no_number_of_a_segment_is_refused(number: object) -> None:
    row = msgspec.msgpack.decode(codec.encode(m.TableRequest(PartitionId(1), 2)))
    with pytest.raises(BadRequestError, match="int"):
        codec.decode(msgspec.msgpack.encode([*row[:-1], number]))


@pytest.mark.parametrize(
    "data",
    [b"\xdd\xff\xff\xff\xff\x0b", b"\x93\x0b\x01\xdd\xff\xff\xff\xff", b"\x93\x0b\x01\xdd\x08\x00\x00\x00",
     b"\x93\x0b\x01\x91\xc6\xff\xff\xff\xff"],
    ids=["array", "list", "list of a GB", "bytes"],
)  # fmt: skip
def test_a_length_that_lies_takes_no_memory(data: bytes) -> None:
    assert codec.NUMBERS[m.BlockAnswer] == 0x0B
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError):
            codec.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ENCODED_KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_message_that_is_cut_or_longer_is_refused(kind: type, data: st.DataObject) -> None:
    whole = codec.encode(data.draw(messages_of(kind)))
    row = msgspec.msgpack.decode(whole)
    longest = len(fields(kind)) + 1
    for wrong in (whole[:-1], whole + b"\0", msgspec.msgpack.encode([*row, *[None] * (longest + 1 - len(row))])):
        with pytest.raises(BadRequestError):
            codec.decode(wrong)


@pytest.mark.parametrize("field", ["length", "size_bytes"])
def test_answer_to_a_fence_with_half_of_what_it_needs_is_refused(field: str) -> None:
    message = m.FenceAnswer(PartitionId(1), 2, b"s" * 16, True, 5, 6, True, 5, 0, Table(), False, (), size_bytes=9)
    assert codec.decode(codec.encode(message)) == message
    half: Any = replace(message, **{field: None})  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="length and size"):
        codec.decode(codec.encode(half))


def test_control_record_without_settings_is_refused() -> None:
    message = m.ReplicateCursors(PartitionId(1), 2, 3, 4, (CursorState(2, "g", 1, 0, 0, settings=SETTINGS_DEFAULT),))
    row = msgspec.msgpack.decode(codec.encode(message))
    for cut in (row[-1][0][:-1], [*row[-1][0][:-1], None]):
        with pytest.raises(BadRequestError):
            codec.decode(msgspec.msgpack.encode([*row[:-1], [cut]]))


@pytest.mark.parametrize("wrong", [{"state": SegmentState.SEALED, "sealed_len": None}, {"segments": ()}], ids=repr)
def test_a_chain_that_lacks_what_it_must_say_is_refused(wrong: dict[str, Any]) -> None:
    member = MemberId("a", "b")
    segment = Segment(1, b"a", "g", (member,), 1, SegmentState.OPEN, 0, member, 1, (member,), 5)
    chain = Chain(PartitionId(1), 2, "t", 0, True, ("g",), (segment,))
    assert codec.decode(codec.encode(m.ChainUpdate(chain, 3))) == m.ChainUpdate(chain, 3)
    kept = wrong.get("segments", (replace(segment, **wrong),) if "state" in wrong else None)
    with pytest.raises(BadRequestError, match="segment"):
        codec.decode(codec.encode(m.ChainUpdate(replace(chain, segments=kept), 3)))


def test_a_batch_with_a_body_of_another_length_is_refused() -> None:
    batch = make_batch(b"a body", 1)
    answer = m.CopyAnswer(PartitionId(1), 2, 0, True, (batch,), None)
    assert codec.decode(codec.encode(answer)) == answer
    for body in (b"a bod", b"a body,"):
        with pytest.raises(BadRequestError, match="body"):
            codec.decode(codec.encode(replace(answer, batches=(batch._replace(body=body),))))


def test_an_idle_block_that_is_not_made_of_rows_is_refused() -> None:
    for content in (b"", bytes(47), bytes(49)):
        with pytest.raises(BadRequestError, match="rows"):
            codec.decode(codec.encode(m.BlockAnswer(PartitionId(1), (content,))))


def test_a_batch_with_a_flag_of_a_later_version_is_neither_stored_nor_replicated() -> None:
    raw = bytearray(make_batch(b"a body", 1).header.raw)
    raw[4:8] = FLAG_HELD.to_bytes(4, "little")
    run = ReplicateRun(partition=7, segment=2, commit=0, attempt=bytes(16), batch_count=1)
    frame = b"".join(replicate_frame_pieces([], [(run, [(bytes(raw), b"a body")])]))
    with pytest.raises(BadRequestError, match="HELD"):
        peer_frames.read_data_frame(frame)
    stored = b"".join(rocks_codec.batch_parts(make_batch(b"a body", 1), 0, 0))
    with pytest.raises(CorruptionError, match="HELD"):
        rocks_codec.read_header(stored.replace(make_batch(b"a body", 1).header.raw, bytes(raw)))
