"""Values of the core as bytes, and back: for disks, and for messages between brokers.

A value is a MessagePack array of its fields in the order of its class, made from the types of the fields. msgspec
checks types, limits and lengths while it reads, so hostile bytes make nothing but a `FormError`. It reads arrays only
into Structs. So each class gets a Struct for reading, made once, and the core stays free of msgspec (ADR 0087).

Fields are only appended to a class, with a default. Fields at the end that have their defaults are not written. So
code without a new field reads all values that do not use it, and refuses those that do: an array that is longer than it
knows. `docs/contributing/formats.md` says how a field is added and dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, MsgspecError, defstruct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import astuple
from seriatim_api.batch import BatchHeader, parse_header
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.publications import StagedBatch

from ..core.values import messages as m
from ..core.values.chain import Chain
from ..core.values.keyed import ConsumerGroupSettings
from ..core.values.log import Batch, HandOverId
from ..core.values.producers import IdleBlock, Table, pack_names, read_names
from ..core.values.segment import PRODUCERS_MAX, Segment, SegmentState
from .segment_records import SHARED_COUNT_MAX, shared_member, shared_members

_T = TypeVar("_T")

_U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_U64 = Annotated[int, Meta(ge=0)]
_I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_OF_32_BITS: Final = frozenset((
    "segment_no", "segment_nos", "no", "number", "checksum", "sealed_checksum", "gone", "refused", "segments", "folded",
    "width", "attempts_max", "delays_ms", "jitter_percent", "grant_ms", "sequence",
))  # fmt: skip
_SIGNED: Final = frozenset((
    "previous", "revision", "last_append_ms", "append_time_ms", "opened_at_ms", "sealed_at_ms", "append_floor_ms",
    "delayed_until_ms",
))  # fmt: skip
"""Fields with whole numbers that are not of 64 bits without a sign, as all others are. Partition ids have 32."""
_INTERNED: Final = frozenset(("topic", "broker_group", "send_chain"))
_encode = Encoder().encode


class FormError(ValueError):
    """The bytes are not the form of a value that this version knows."""


class Way(NamedTuple):
    """How values of a type are written and read.

    Attributes:
        wire: The type that msgspec reads.
        down: Makes what msgspec writes of a value; None: the value itself.
        up: Makes a value of what msgspec has read; None: that itself.
    """

    wire: Any
    down: Any = None
    up: Any = None


def encode(value: object) -> bytes:
    """A value as bytes."""
    kind: Any = type(value)
    return _encode(way_of(kind).down(value))


def decode(kind: type[_T], data: bytes) -> _T:
    """The value that `encode` was given.

    Raises:
        FormError: The bytes are no such value.
    """
    of: Any = kind
    found: _T = read(_decoder(of), way_of(of).up, data)
    return found


def read(decoder: Decoder[Any], up: Callable[[Any], _T], data: bytes) -> _T:
    """What a decoder reads, as a value.

    Raises:
        FormError: The bytes are no such value.
    """
    try:
        return up(decoder.decode(data))
    except (MsgspecError, ValueError, RecursionError) as error:
        raise FormError(str(error)) from error


@cache
def _decoder(kind: Any) -> Decoder[Any]:
    return Decoder(way_of(kind).wire)


@cache
def way_of(kind: Any, number: int | None = None) -> Way:
    """The way of a dataclass or named tuple. With a number, the number is the first element of the array."""
    hints, (names, defaults) = get_type_hints(kind), _fields(kind)
    ways = [_way(hints[name], name) for name in names]
    first = () if number is None else (number,)
    downs = [(at, way.down) for at, way in enumerate(ways, len(first)) if way.down]
    ups = [(at, way.up, defaults.get(name)) for at, (name, way) in enumerate(zip(names, ways, strict=True)) if way.up]
    required = max((at for at, name in enumerate(names, 1) if name not in defaults), default=0) + len(first)
    ends = [*first, *(defaults.get(name) for name in names)]
    row_of = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]
    is_right, problem = _CHECKS.get(kind, (None, ""))
    types = [(name, way.wire) for name, way in zip(names, ways, strict=True)]
    struct = defstruct(
        kind.__name__, [(*each, defaults[each[0]]) if each[0] in defaults else each for each in types],
        array_like=True, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=number,
    )  # fmt: skip
    by_name = is_dataclass(kind) and any(field.kw_only for field in fields(kind))

    def down(value: Any) -> list[Any]:
        row = [*first, *row_of(value)]
        while len(row) > required and row[-1] == ends[len(row) - 1]:
            row.pop()
        for at, change in downs:
            if at < len(row):
                row[at] = change(row[at])
        return row

    def up(read: Any) -> Any:
        row: Any = astuple(read)
        if ups:
            row = [*row]
            for at, change, default in ups:
                if row[at] is not default:
                    row[at] = change(row[at])
        value = kind(**dict(zip(names, row, strict=True))) if by_name else kind(*row)
        if is_right is not None and not is_right(value):
            raise FormError(problem)
        return value

    return Way(struct, down, up)


def _fields(kind: Any) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The names of the fields of a dataclass or named tuple, and the defaults of those that have one."""
    if not is_dataclass(kind):
        return kind._fields, kind._field_defaults
    found = fields(kind)
    return tuple(each.name for each in found), {
        each.name: each.default for each in found if each.default is not MISSING
    }


def _way(hint: Any, name: str) -> Way:
    """The way of a field with that type and name."""
    origin, of = get_origin(hint), get_args(hint)
    if hint in _HOOKS:
        return _HOOKS[hint]
    if name == "producers_max":
        return Way(Annotated[int, Meta(ge=1, le=PRODUCERS_MAX)])
    if hint is int:
        return Way(_U32 if name in _OF_32_BITS else _I64 if name in _SIGNED else _U64)
    if hint is str and name in _INTERNED:
        return Way(str, None, sys.intern)
    if NoneType in of:
        inner = _way(of[0], name)
        return Way(inner.wire | None, *map(_unless_none, inner[1:]))
    if origin is tuple and of[-1] is not Ellipsis:
        return Way(tuple[tuple(_way(each, name).wire for each in of)])  # type: ignore[misc] # it is made at run time
    if origin in (tuple, Sequence):
        inner = _way(of[0], name)
        return Way(tuple[inner.wire, ...], *map(_each, inner[1:]))  # type: ignore[name-defined]
    return way_of(hint) if is_dataclass(hint) or hasattr(hint, "_fields") else Way(hint)


def _unless_none(change: Any) -> Any:
    return change and (lambda value: None if value is None else change(value))


def _each(change: Any) -> Any:
    return change and (lambda values: tuple(map(change, values)))


# ---- what a type alone does not say ---------------------------------------------------------------------


def _read_table(row: tuple[bytes, bytes]) -> Table:
    table = Table(row[0], read_names(row[1]))
    if not table.is_sound:
        raise FormError(f"a packed producer table of {table.size_bytes} bytes has another length than it says")
    return table


def _read_batch(row: tuple[bytes, bytes]) -> Batch:
    header, body = parse_header(row[0]), row[1]
    if header.body_length != len(body):
        raise FormError(f"the body of a batch has {len(body)} bytes, not {header.body_length}")
    return Batch(header, body)


@lru_cache(SHARED_COUNT_MAX)
def _shared_settings(settings: ConsumerGroupSettings) -> ConsumerGroupSettings:
    return settings


def _says_how_it_is_sealed(segment: Segment) -> bool:
    numbers = segment.sealed_len, segment.sealed_checksum, segment.sealed_bytes
    return segment.state is not SegmentState.SEALED or None not in numbers


_CHECKS: Final[Mapping[type, tuple[Callable[[Any], bool], str]]] = {
    Segment: (_says_how_it_is_sealed, "a segment is sealed, and its record lacks length, checksum or size"),
    Chain: (lambda chain: bool(chain.segments), "a chain record has no segment"),
    m.FenceAnswer: (
        lambda answer: (answer.length is None) == (answer.size_bytes is None),
        "an answer to a fence has length and size, or neither",
    ),
    m.BlockAnswer: (
        lambda answer: all(map(IdleBlock.is_sound, answer.contents)), "an idle block does not consist of rows"
    ),
}  # fmt: skip
_member: Final = Way(tuple[str, str], attrgetter("broker", "incarnation"), lambda row: shared_member(*row))
_HOOKS: Final[dict[Any, Way]] = {
    PartitionId: Way(_U32),
    MemberId: _member,
    tuple[MemberId, ...]: Way(
        tuple[tuple[str, str], ...], _each(_member.down), lambda rows: shared_members(tuple(map(_member.up, rows)))
    ),
    Batch: Way(tuple[bytes, bytes], lambda batch: (batch.header.raw, batch.body), _read_batch),
    BatchHeader: Way(bytes, attrgetter("raw"), parse_header),
    HandOverId: Way(tuple[_U64, _U64], None, HandOverId._make),
    StagedBatch: Way(tuple[_U32, _U32, _U64, bytes], None, StagedBatch._make),
    Table: Way(tuple[bytes, bytes], lambda table: (table.rows, pack_names(table.blocks)), _read_table),
}
_settings: Final = way_of(ConsumerGroupSettings)
_HOOKS[ConsumerGroupSettings] = _settings._replace(up=lambda read: _shared_settings(_settings.up(read)))
