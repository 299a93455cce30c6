"""The decoders of bytes that other processes wrote, each with its inputs and its typed errors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import google_crc32c
import grpc
import pyarrow as pa
from google.protobuf.message import DecodeError
from msgspec import msgpack
from seriatim._admin.dead_letters import _letter_of, _replayed
from seriatim._bodies import arrow
from seriatim._consuming.inbox import granted_messages, messages_of
from seriatim._values.records import Message
from seriatim_api import dead_letters, ids, publications, status, troubles
from seriatim_api.batch import FLAG_KEYED, FLAG_LZ4, FLAG_ZSTD, HeaderError, make_header, parse_header
from seriatim_api.bodies import SCHEMA
from seriatim_api.errors import CorruptionError, RequestError, SeriatimError
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2, common_pb2, operations_pb2, peer_pb2, ranges_pb2, records_pb2
from seriatim_api.wire import frame_reader
from seriatim_api.wire.frames import (
    AppendEntry,
    FrameError,
    ReplicateRun,
    read_delivery_frame,
    replicate_frame_pieces,
    write_append_frame,
    write_delivery_frame,
    write_field,
)
from seriatim_broker.adapters.arrow_bodies import ArrowBodies
from seriatim_broker.adapters.rocks import codec as stored
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values import ledger_rows, messages, producers
from seriatim_broker.core.values.keyed import KeyPhase
from seriatim_broker.core.values.log import Batch, CursorState, HandOverState, LocalSegment, Preparation, TailCopy
from seriatim_broker.core.values.segment import Segment
from seriatim_broker.interfaces import forms
from seriatim_broker.rpc.links import codec, peer_frames, peer_hello
from seriatim_broker.rpc.servicers import rebuild_reports
from seriatim_broker.rpc.streams import append, read_range
from seriatim_broker.rpc.streams.consume import ConsumeStream, read_request
from seriatim_broker.runtime.coordinator import records

from .draws import Decoder, Draw, mutated, of_form, of_message, of_records, of_seeds

# ---- bodies ---------------------------------------------------------------------------------------------

_PREFIX: Final = struct.Struct("<II")  # what the header of the batch says: the number of messages, and flags


@cache
def _bodies() -> ArrowBodies:
    bodies = ArrowBodies()
    bodies.prepare()
    return bodies


def _body_seeds() -> list[bytes]:
    found = []
    for count in (1, 3, 40):
        values = [b"value %d" % at * (at % 5) if at % 7 else None for at in range(count)]
        keys = [b"key %d" % (at % 3) if at % 4 else None for at in range(count)]
        pairs = (("name", b"content"), ("\N{EURO SIGN}", b""), ("name", None))
        headers = [pairs if at % 3 else None for at in range(count)]
        tags = ["tag" if at % 2 else None for at in range(count)]
        for compression in (None, "lz4", "zstd"):
            for columns in ((None, None, None), (keys, None, None), (keys, headers, tags)):
                times = list(range(count))
                body = arrow.encode(values, columns[0], times, columns[1], columns[2], cast("Any", compression))
                found.append(_PREFIX.pack(count, body.flags) + body.data)
    for size in (3 << 20, 64 << 20):  # a key of zeros, which a few hundred bytes unpack to
        for compression in ("lz4", "zstd"):
            body = arrow.encode([b"v"], [bytes(size)], [1], None, None, cast("Any", compression))
            found.append(_PREFIX.pack(1, body.flags) + body.data)
    others = [
        pa.record_batch({"key": pa.array(["a", "b", "a"]).dictionary_encode()}),
        pa.record_batch({"value": pa.array([b"a" * 40] * 3, pa.binary_view())}),
        pa.record_batch({"value": pa.array([[1], [2], []])}),
        pa.record_batch({f"c{at}": [1, 2, 3] for at in range(50)}),
    ]
    found += [_PREFIX.pack(3, 0) + other.serialize().to_pybytes() for other in others]
    found.append(_PREFIX.pack(3, 0) + SCHEMA.serialize().to_pybytes())
    return found


def _check_body(data: bytes) -> None:
    count, flags = _PREFIX.unpack(data[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
    _bodies().check(data[_PREFIX.size :], count, flags)


_ORIGIN: Final = dead_letters.DeadLetterOrigin("topic", 3, 1 << 40, "group", 5, "a reason", 99)


def _stored_body(data: bytes) -> None:
    count, flags = _PREFIX.unpack(data[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
    body = data[_PREFIX.size :]
    flags &= FLAG_KEYED | FLAG_LZ4 | FLAG_ZSTD
    header = _header(body, max(count, 1), flags)
    bodies, batch = _bodies(), Batch(parse_header(header), body)
    keys = bodies.keys(batch)
    assert keys is None or sum(map(len, filter(None, keys))) <= 5 << 20
    opened = bodies.open(batch)
    last = max(count, 1) - 1
    joined = bodies.join([(opened, range(1)), (opened, range(last, last + 1)), (opened, range(last + 1))])
    bodies.join([(bodies.open_joined(joined), range(1))])
    bodies.dead_letter(opened, last, _ORIGIN)


def _header(body: bytes, count: int, flags: int = 0) -> bytes:
    return make_header(
        partition=7, message_count=count, producer=b"p" * 16, producer_epoch=1, base_sequence=4, first_timestamp_ms=1,
        last_timestamp_ms=2, body_length=len(body), body_crc=google_crc32c.value(body), flags=flags,
    )  # fmt: skip


def _received_body(data: bytes) -> None:
    count, _ = _PREFIX.unpack(data[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
    body = data[_PREFIX.size :]
    rows = arrow.decode(body, count, google_crc32c.value(body))
    for message in messages_of("topic", 0, 0, rows):
        _look_at(message)
    numbers = range(count)
    list(granted_messages("topic", 0, numbers, rows, [1] * count, [False] * count, [1] * count))
    arrow.row_sizes(rows)
    arrow.value_bytes(rows)
    arrow.conform(pa.Table.from_batches([rows]), 5)


def _look_at(message: Message) -> None:
    assert isinstance(message.value, bytes)
    for name, content in message.headers.items():
        name.encode(), len(content)
    letter = _letter_of("topic", message)
    if letter is not None:
        _replayed(letter)


# ---- frames ---------------------------------------------------------------------------------------------


def _append_seeds() -> list[bytes]:
    body = arrow.encode([b"value"], [b"key"], [1]).data
    rows = [(AppendEntry(1, 5, True, 3), _header(body, 1, FLAG_KEYED), body)] * 2
    hello = broker_pb2.ClientHello(protocol=PROTOCOL, client="c").SerializeToString()
    return [write_append_frame(rows), b"".join(write_field(1, [hello])), write_append_frame(rows[:1])]


def _data_seeds() -> list[bytes]:
    body = b"a body"
    rows = [(_header(body, 1), body)] * 2
    packed = codec.encode(messages.ReplicateAck(ids.PartitionId(7), 1, b"a" * 16, 5, 5))
    runs = [(ReplicateRun(7, 1, 5, b"a" * 16, 2), rows)]
    return [b"".join(replicate_frame_pieces([], runs)), b"".join(replicate_frame_pieces([packed], runs))]


def _delivery_seeds() -> list[bytes]:
    event = broker_pb2.DeliveryEvent(subscription=3)
    event.batches.batch_count = 1
    body = b"a body"
    return [write_delivery_frame([event.SerializeToString()], [(_header(body, 1), body)])]


def _read_delivery(data: bytes) -> None:
    for raw in read_delivery_frame(data).events:
        broker_pb2.DeliveryEvent.FromString(raw)


@cache
def _of_form(*wires: Any) -> Draw:
    body = b"a body"
    batches = [(_header(body, 1), body), (_header(b"", 1), b"")]
    tables = [(_parts()[1], b""), (_parts()[1], _parts()[2]), (b"", _parts()[2]), (b"", b"")]
    return of_form(wires, _part, [*batches, *tables])


def _peer_message(random: Random) -> bytes:
    return peer_pb2.PeerFrame(
        messages=[_of_form(*(way.wire for way in codec.WAYS.values()))(random)]
    ).SerializeToString()


def _draw_pieces(random: Random) -> bytes:
    """Two pieces of a message with many rows, the length of the first one before them."""
    rows = [(_part(random), _part(random)) for _ in range(3)]
    number = random.choice([codec.NUMBERS[messages.HandOver], codec.NUMBERS[messages.ReplicateLedger]])
    second = msgpack.encode((number, rows, [_part(random)]))
    first = _of_form(*(codec.WAYS[kind].wire for kind in (messages.HandOver, messages.ReplicateLedger)))(random)
    second = mutated(random, second, (second,)) if random.random() < 0.5 else second
    return struct.pack("<I", len(first)) + first + second


def _read_pieces(data: bytes) -> None:
    size, pieces = int.from_bytes(data[:4], "little"), codec.Pieces()
    pieces.add(data[4 : 4 + size])
    pieces.add(data[4 + size :])
    pieces.message()


def _part(random: Random) -> bytes:
    """Bytes that messages between brokers have: headers, packed tables, names of blocks, rows of ledgers."""
    return mutated(random, random.choice(_parts()), _parts())


@cache
def _parts() -> list[bytes]:
    entries = [producers.Entry(1, 0, 5, 7), producers.Entry(1, 5, 2, 12)]
    table = producers.pack_table(
        {b"p" * 16: producers.pack_window(entries, 9), b"q" * 16: producers.pack_window(entries)}
    )
    block = producers.IdleBlock.of([(b"i" * 16, producers.pack_window(entries, 9))])
    names = producers.pack_names([producers.BlockName(block.id, 9, 5, 3)])
    return [_header(b"", 1), table.rows, names, block.data, b"", b"g" * 16, *(part for row in _rows() for part in row)]


def _draw_hello(random: Random) -> bytes:
    hello = peer_pb2.PeerHello(
        protocol=PROTOCOL, cluster_id="a", broker="g0-0", incarnation="5e" * 16, run=3, session=b"s" * 16
    ).SerializeToString()
    content = mutated(random, hello, [hello]) if random.random() < 0.5 else of_message(peer_pb2.PeerHello)(random)
    return b"".join(write_field(1, [content]))


def _read_control(data: bytes) -> None:
    for message in peer_frames.ControlReader().read(data):
        table = getattr(message, "table", None)
        if isinstance(table, producers.Table):
            list(table)


def _feed_frames(data: bytes) -> None:
    reader = frame_reader.FrameReader(1 << 16)
    at = 0
    while True:
        while reader.read() is not None:
            pass
        if at >= len(data):
            return
        room = reader.room()
        count = min(len(room), len(data) - at)
        room[:count] = data[at : at + count]
        reader.received(count)
        at += count


class _Driver:
    """Takes what a stream translates."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def new_stream(self, _deliver: object) -> int:
        return 1

    def feed(self, event: object) -> None:
        self.events.append(event)


def _consume(data: bytes) -> None:
    groups = SimpleNamespace(join=lambda *_: SimpleNamespace(joined=0, acked_messages=0, failed_attempts=0))
    services = SimpleNamespace(driver=_Driver(), counters=SimpleNamespace(groups=groups))
    hello = broker_pb2.ConsumerHello(protocol=PROTOCOL)
    stream = ConsumeStream(cast("Any", services), cast("Any", None), hello, lambda: None)
    read_request(data)
    list(stream.take(data))


# ---- ledgers and producer tables ------------------------------------------------------------------------


@cache
def _rows() -> list[tuple[bytes, bytes]]:
    record = ledger_rows.KeyRecord(KeyPhase.PARKED, 1, 2, 3, 4, 5, 6, "an error")
    grant = ledger_rows.CarriedGrant(5, b"key", "consumer", 2, 30_000, True)
    return [
        ledger_rows.write_block(3, 0b1011),
        (ledger_rows.key_name(b"key"), ledger_rows.write_key(record)),
        (ledger_rows.aside_name(b"key", 2), ledger_rows.write_aside([1, 5, 90, 5000])),
        (ledger_rows.aside_name(b"key", 3), ledger_rows.write_aside([1, 5, 90])),
        ledger_rows.write_grant(grant),
        ledger_rows.write_forwarder(9),
    ]


def _draw_rows(random: Random) -> bytes:
    found = []
    for name, value in random.sample(_rows(), 3):
        found += [mutated(random, name, [name]), mutated(random, value, [value])]
    return b"".join(struct.pack("<H", len(part) & 0xFFFF) + part[:0xFFFF] for part in found)


def _parts_in(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return parts


def _read_rows(data: bytes) -> None:
    parts = _parts_in(data)
    rows = list(zip(parts[::2], parts[1::2], strict=False))
    ledger_rows.has_forwards(rows)
    ledger_rows.handed_rows(rows)
    ledger_rows.without_grants(rows)
    ledger_rows.count_keys(rows, 5)
    read = ledger_rows.read_rows(rows)
    assert len(read.keys) + len(read.asides) <= len(rows)


def _read_table(data: bytes) -> None:
    table = producers.Table(data, producers.read_names(data[-40:]))
    if table.is_sound:
        for _, window in producers.Table(data):
            producers.entries_of(window)
        producers.ProducerTable(producers.Table(data)).last(b"p" * 16)
    if producers.IdleBlock.is_sound(data):
        list(producers.IdleBlock(data).rows())


# ---- publications, dead letters -------------------------------------------------------------------------


def _manifest_seeds() -> list[bytes]:
    batches = publications.StagedBatches(
        [publications.StagedBatch(90, 5, ids.make_offset(2, 7 * at), b"c" * 16) for at in range(9)]
    )
    parts = (publications.ManifestPart(3, 70, batches), publications.ManifestPart(4, 70, batches[:2]))
    manifest = publications.Manifest(ids.TopicIncarnation("5e" * 16), parts)
    return [publications.write_manifest(manifest)]


def _read_manifest(data: bytes) -> None:
    manifest = publications.read_manifest(data)
    assert manifest.spans
    assert manifest.size_bytes > 0
    manifest.names_a_batch_twice  # noqa: B018 - it is computed
    for part in manifest.parts:
        assert part.rows > 0
        list(part.batches)
    publications.digest_of(manifest.parts)


_NUMBERS: Final = (b"3", b"-1", b"99999999999999999999", b"1_0", b" 7", b"9" * 5000, b"\xff", b"\xd9\xa3", b"")
_TEXTS: Final = (b"topic", b"", b"\xff", b"a\n", b"\x1b[2J", b"a" * 5000)
_OFFSETS: Final = (b"1:2", b"9999999999:1", b"1:", b"\xc2\xb2:1", b"-1:2", b"1:9999999999999")
_HISTORIES: Final = (
    b'[{"offset": "1:2", "group": "g", "attempts": 3, "reason": "r", "time_ms": 5}]',
    b"[" * 100_000, b'{"a":' * 50_000, b"[1, null]", b"[1e999]", b'[{"a": "\\ud800"}]', b'[{"offset": 7}]', b"[{}]",
    b"[" + b"9" * 5000 + b"]", b"\xff\xfe[\x00]\x00",
)  # fmt: skip
_LETTER: Final = [name for name, _ in _ORIGIN.headers()]


def _draw_letter(random: Random) -> bytes:
    choices: Mapping[str, Iterable[bytes]] = {
        name: {"partition": _NUMBERS, "attempts": _NUMBERS, "time": _NUMBERS, "offset": _OFFSETS}.get(
            name.rpartition("-")[2], _TEXTS
        )
        for name in _LETTER
    }
    values = dict(_ORIGIN.headers())
    for name in random.sample(_LETTER, random.randrange(3)):
        values[name] = random.choice(tuple(choices[name]))
    history = random.choice(_HISTORIES)
    values[dead_letters._HISTORY] = mutated(random, history, _HISTORIES) if len(history) < 1000 else history
    return b"".join(struct.pack("<H", min(len(value), 0xFFFF)) + value[:0xFFFF] for value in values.values())


def _read_letter(data: bytes) -> None:
    headers = dict(zip((*_LETTER, dead_letters._HISTORY), _parts_in(data), strict=False))
    message = Message("dead", 3, 5, b"key", b"value", 7, headers, None, 1, False, 0)
    _look_at(message)
    dead_letters.replayed_headers(list(headers.items()))
    dead_letters.dead_letter_headers(list(headers.items()), _ORIGIN)
    dead_letters.resolved_by({**headers, dead_letters.resolution_headers("dropped")[0][0]: b""}, data)


# ---- records --------------------------------------------------------------------------------------------


def _read_error(data: bytes) -> None:
    error = status.from_status(grpc.StatusCode.INTERNAL, "text", [(status.METADATA_KEY, data)])
    str(error)
    status.error_to_proto(error)


def _draw_known(random: Random) -> bytes:
    partition = operations_pb2.KnownPartition(
        partition_id=7, form=_of_form(forms.way_of(rebuild_reports.KnownPartition).wire)(random)
    )
    return operations_pb2.TellKnownResponse(partitions=[partition]).SerializeToString()


def _read_known(data: bytes) -> None:
    page = operations_pb2.TellKnownResponse.FromString(data)
    rebuild_reports.read("g0-0", [page])


def _member(name: str) -> ids.MemberId:
    return ids.MemberId(name, "5e" * 16)


def _chain_seeds() -> list[bytes]:
    """Records as brokers write them."""
    members = (_member("g0-0"), _member("g0-1"))
    opening = chains.Opening(b"a" * 16, "g0", members, 3, incomplete_table=False)
    chain = chains.create(ids.PartitionId(7), "topic", 2, True, ("g0", "g1"), opening, 5)
    found = [chain]
    for length in (5, 0, 90):
        tail_from, copies = (3, members) if length else (None, ())
        seal = chains.Seal(length, 9, members[0], members, tail_from, copies, 1000 * length)
        chain = chains.seal_and_open(chain, seal, replace(opening, switch_attempt=bytes([length]) * 16), 6)
        found.append(chain)
    return [records.chain_to_record(each).SerializeToString() for each in found]


_COORDINATOR: Final[dict[str, tuple[type[Any], Callable[[bytes], object]]]] = {
    "chain": (records_pb2.ChainRecord, records.parse_chain),
    "cursor": (records_pb2.CursorRecord, records.cursor_from_value),
    "writer": (records_pb2.WriterRecord, records.writer_from_value),
    "owner": (records_pb2.OwnerRecord, records.owner_from_value),
    "deleted": (records_pb2.DeletedPartitionsRecord, records.deleted_partitions_from),
    "group": (records_pb2.BrokerGroupRecord, records.spec_from_value),
}


def _stored_chain() -> chains.Chain:
    opening = chains.Opening(b"a" * 16, "g0", (_member("g0-0"),), 3, incomplete_table=False)
    return chains.create(ids.PartitionId(7), "topic", 2, True, ("g0", "g1"), opening, 5)


_STORED_BARE: Final = stored.write_bare_chain(_stored_chain())
_STORED_SEGMENT: Final = stored.write(_stored_chain().segments[0])


_DISK: Final[dict[str, tuple[Any, Callable[[bytes], object]]]] = {
    "segment": (LocalSegment, lambda data: stored.read_segment(1, data)),
    "preparation": (Preparation, lambda data: stored.read_preparation(1, b"a" * 16, data)),
    "tail": (TailCopy, stored.read_tail),
    "cursor": (CursorState, lambda data: stored.read_cursor(1, "g", data)),
    "hand-over": (HandOverState, lambda data: stored.read_handoff(1, "g", data)),
    "chain": (stored.BareChain, lambda data: stored.read_chain(data, {1: _STORED_SEGMENT})),
    "segment of a chain": (Segment, lambda data: stored.read_chain(_STORED_BARE, {1: data})),
    "extent": (stored.Extent, stored.read_extent),
}
"""How the values of each kind are read, under a key that says segment 1, and group "g" or the switch attempt."""


def _of_disk() -> Iterable[Decoder]:
    for name, (kind, decode) in _DISK.items():
        draw = _of_form(forms.way_of(kind).wire)
        yield Decoder(f"disk {name}", _of_the_key(kind, draw), decode, (CorruptionError,))


def _of_the_key(kind: type[Any], draw: Draw) -> Draw:
    """Three of four that can be read become values of the key that the decoder is given."""
    names = {"no": 1, "segment_no": 1, "switch_attempt": b"a" * 16, "consumer_group": "g"}

    def drawn(random: Random) -> bytes:
        data = draw(random)
        if random.random() < 0.25:
            return data
        try:
            value = forms.decode(kind, data)
        except forms.FormError:
            return data
        changed = {name: of for name, of in names.items() if hasattr(value, name)}
        return data if isinstance(value, tuple) else forms.encode(replace(value, **changed))

    return drawn


_SEEDS: Final[dict[type[Any], Callable[[], list[bytes]]]] = {records_pb2.ChainRecord: _chain_seeds}


def _of_kinds(prefix: str, kinds: Mapping[str, tuple[type[Any], Callable[[bytes], object]]]) -> Iterable[Decoder]:
    for name, (kind, decode) in kinds.items():
        draw = of_message(kind)
        if kind in _SEEDS:
            draw = of_records(kind, _SEEDS[kind]())
        yield Decoder(f"{prefix} {name}", draw, decode, (CorruptionError,))


def _read_places(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    ids.parse_offset(text)


def _open_range(data: bytes) -> None:
    request = read_range._parse(data)
    read_range.place_of(request.open.from_offset)
    read_range.place_of(request.open.to_offset)


def _read_header(data: bytes) -> None:
    header = parse_header(data)
    assert header.end_index > header.base_index
    header.for_group, header.origin, header.last_sequence  # noqa: B018 - they are computed


def _stored_batch(data: bytes) -> None:
    stored.read_prefix(data)
    stored.read_header(data)
    stored.read_body(data)


def _read_page(data: bytes) -> None:
    troubles.read(data.decode(errors="replace"))


def _stored_window(data: bytes) -> None:
    producers.entries_of(stored.read_window(data))


def _seeded(name: str, seeds: list[bytes], decode: Callable[[bytes], object], *refusals: type[Exception]) -> Decoder:
    return Decoder(name, of_seeds(seeds), decode, refusals)


_ALL: Final = (
    _seeded("body at append", _body_seeds(), _check_body, RequestError),
    _seeded("body in a broker", _body_seeds(), _stored_body, SeriatimError),
    _seeded("body in a client", _body_seeds(), _received_body, SeriatimError),
    _seeded("batch header", [_header(b"body", 3, 5)], _read_header, HeaderError),
    _seeded("append frame", _append_seeds(), append.read_frame, RequestError),
    _seeded("data frame", _data_seeds(), peer_frames.read_data_frame, RequestError),
    _seeded("delivery", _delivery_seeds(), _read_delivery, FrameError, DecodeError),
    _seeded(
        "connection", [b"".join(map(bytes, frame_reader.with_prefix(4, [b"content"]))) * 3], _feed_frames, FrameError
    ),
    _seeded("producer table", _parts(), _read_table, ValueError),
    _seeded("manifest", _manifest_seeds(), _read_manifest, RequestError),
    _seeded("offset", [b"1:2", b"8388607:1099511627775"], _read_places, ValueError),
    _seeded("page of troubles", [b"disk_full: the disk is full\nready\n"], _read_page),
    _seeded("disk batch", [bytes(16) + _header(b"body", 1) + b"body"], _stored_batch, CorruptionError),
    _seeded("disk run", [bytes(16), bytes(24)], lambda data: stored.read_run(1, data), CorruptionError),
    _seeded("disk row by due time", [bytes(8)], lambda data: stored.read_delayed(1, 1, data), CorruptionError),
    _seeded("disk row by index", [bytes(8)], stored.read_due, CorruptionError),
    _seeded("disk row of a volley", [bytes(20)], lambda data: stored.read_stored_volley(1, data), CorruptionError),
    _seeded("disk window", [producers.pack_window([producers.Entry(1, 0, 5, 7)], 9)], _stored_window, CorruptionError),
    Decoder("control frame", _peer_message, _read_control, (RequestError,)),
    Decoder(
        "hello of a link",
        _draw_hello,
        lambda data: peer_hello.read_hello(data, "a"),
        (RequestError,),
    ),
    Decoder("request of a consumer", of_message(broker_pb2.ConsumeRequest), _consume, (RequestError,)),
    Decoder("request of a range", of_message(ranges_pb2.ReadRangeRequest), _open_range, (RequestError,)),
    Decoder("rows of a ledger", _draw_rows, _read_rows, (ledger_rows.LedgerRowError,)),
    Decoder("dead letter", _draw_letter, _read_letter, (SeriatimError,)),
    Decoder("error of a call", of_message(common_pb2.Error), _read_error, ()),
    Decoder("what a broker knows", _draw_known, _read_known, (CorruptionError, DecodeError)),
    Decoder("pieces of a message", _draw_pieces, _read_pieces, (RequestError,)),
    *_of_kinds("coordinator", _COORDINATOR),
    *_of_disk(),
)
DECODERS: Final = {decoder.name: decoder for decoder in _ALL}
