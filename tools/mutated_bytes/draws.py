"""How inputs are made, and what a decoder is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from msgspec import inspect, msgpack

Draw = Callable[[Random], bytes]
"""Makes one input."""


class Decoder(NamedTuple):
    """A decoder.

    Attributes:
        name: Its name.
        draw: Makes an input.
        decode: Decodes it, and looks at all that the product looks at.
        errors: The typed errors with which it may refuse an input.
    """

    name: str
    draw: Draw
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


ODD_NUMBERS: Final = (0, 1, 2, 7, 8, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
_TEXTS: Final = ("", "a", "topic/3", "1:2", "99999999999:1", "\x1b[2J", "\N{EURO SIGN}" * 40, "f" * 32)
STEPS_MAX: Final = 4
REPEATED_MAX: Final = 3
DEPTH_MAX: Final = 5


def mutated(random: Random, seed: bytes, others: Sequence[bytes]) -> bytes:
    """The bytes, changed in one to four places. One of eight stays as it is, so that decoders are seen to accept."""
    data = bytearray(seed)
    if random.random() < 0.125:
        return bytes(data)
    for _ in range(random.randint(1, STEPS_MAX)):
        _change(random, data, others)
    return bytes(data)


def _change(random: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    if random.random() < 0.5:
        at = min(at, random.randrange(1024))  # metadata, counts and lengths stand at the beginning
    match random.randrange(8):
        case 0 if data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        case 1 if data:
            data[at % len(data)] = random.randrange(256)
        case 2 | 3:
            size = random.choice((1, 2, 4, 4, 8, 8))
            number = random.choice(ODD_NUMBERS) * random.choice((1, 1, -1)) + random.choice((0, 0, 1, -1))
            at -= at % random.choice((1, size))
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, random.choice(("little", "little", "big")))
        case 4:
            del data[at : at + random.choice((1, 4, 8, 64, len(data)))]
        case 5:
            data[at:at] = random.randbytes(random.choice((1, 4, 8, 64)))
        case 6:
            piece = data[at : at + random.choice((1, 8, 64))]
            data[at:at] = piece * random.choice((1, 2, 100))
        case _:
            other = random.choice(others)
            begin = random.randrange(len(other) + 1)
            data[at : at + 64] = other[begin : begin + 64]


def of_seeds(seeds: Sequence[bytes]) -> Draw:
    """Mutated copies of these inputs."""
    return lambda random: mutated(random, random.choice(seeds), seeds)


def of_form(wires: Sequence[type], bytes_of: Draw, pairs: Sequence[tuple[bytes, bytes]]) -> Draw:
    """Values in a form of the broker (`interfaces.forms`) with odd fields. Every third one is mutated besides.

    Args:
        wires: What msgspec reads of each kind.
        bytes_of: Makes the values of fields of bytes.
        pairs: Two bytes that fit together: a header with its body, a table with the names of its blocks.
    """
    kinds = [inspect.type_info(wire) for wire in wires]

    def draw(random: Random) -> bytes:
        data = msgpack.encode(_element(random, random.choice(kinds), bytes_of, pairs))
        return mutated(random, data, (data,)) if random.random() < 0.33 else data

    return draw


def _element(random: Random, kind: inspect.Type, bytes_of: Draw, pairs: Sequence[tuple[bytes, bytes]]) -> Any:
    """A value of that type, or in one of 100 cases another one."""
    if random.random() < 0.01:
        return random.choice((None, -1, 2**64 - 1, 1.5, True, "", b"", [], {}, [[[[[]]]]], "f" * 70_000, [0] * 70_000))
    match kind:
        case inspect.StructType():
            row = [_element(random, field.type, bytes_of, pairs) for field in kind.fields]
            least = sum(field.required for field in kind.fields)
            row = row[: random.randint(least, len(row))] + [0] * (random.random() < 0.01)
            return row if kind.tag is None else [kind.tag, *row]
        case inspect.TupleType():
            if random.random() < 0.8 and all(isinstance(each, inspect.BytesType) for each in kind.item_types):
                return random.choice(pairs)
            return [_element(random, each, bytes_of, pairs) for each in kind.item_types]
        case inspect.VarTupleType():
            return [
                _element(random, kind.item_type, bytes_of, pairs) for _ in range(random.randrange(REPEATED_MAX + 1))
            ]
        case inspect.UnionType():
            return _element(random, random.choice(kind.types), bytes_of, pairs)
        case inspect.EnumType():
            return random.choice([*(each.value for each in kind.cls), 99])
        case inspect.IntType():
            number = random.choice(ODD_NUMBERS) + random.choice((0, 0, 1))
            return number if kind.le is None else min(number, kind.le) * random.choice((1, -1 if kind.ge else 1))
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.StrType():
            return random.choice(_TEXTS)
        case inspect.BytesType():
            return bytes_of(random)
    return None


def of_message(*kinds: type[Message]) -> Draw:
    """Messages of protobuf with odd fields. Every second one is mutated besides."""

    def draw(random: Random) -> bytes:
        message = random.choice(kinds)()
        fill(random, message, 0)
        data = message.SerializeToString()
        return mutated(random, data, (data,)) if random.random() < 0.5 else data

    return draw


def of_records(kind: type[Message], seeds: Sequence[bytes]) -> Draw:
    """Messages like these, with a few odd fields. Every fourth one is mutated besides.

    Of a message whose fields must fit together, `of_message` makes few that are accepted.
    """

    def draw(random: Random) -> bytes:
        message = kind.FromString(random.choice(seeds))
        for _ in range(random.randrange(STEPS_MAX)):
            _change_field(random, message)
        data = message.SerializeToString()
        return mutated(random, data, seeds) if random.random() < 0.25 else data

    return draw


def _change_field(random: Random, message: Message) -> None:
    """Clear a field, or give it an odd value: of the message, or of one in it."""
    inside = [value for field, value in message.ListFields() if field.message_type is not None]
    if inside and random.random() < 0.75:
        value = random.choice(inside)
        _change_field(random, value if isinstance(value, Message) else random.choice(value))
        return
    field: Any = random.choice(message.DESCRIPTOR.fields)
    if random.random() < 0.3 or field.message_type is not None:
        message.ClearField(field.name)
    elif field.is_repeated:
        getattr(message, field.name).append(_value(random, field, None))
    else:
        setattr(message, field.name, _value(random, field, None))


def fill(random: Random, message: Message, depth: int, bytes_of: Draw | None = None) -> None:
    """Set fields of a message to odd values.

    Args:
        random: Draws the values.
        message: The message.
        depth: How deep the message is in another one.
        bytes_of: Makes the values of fields of bytes; None: short random ones.
    """
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.3:
            continue
        if not field.is_repeated:
            if field.message_type is None:
                setattr(message, field.name, _value(random, field, bytes_of))
            elif depth < DEPTH_MAX:
                getattr(message, field.name).SetInParent()
                fill(random, getattr(message, field.name), depth + 1, bytes_of)
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        repeated = getattr(message, field.name)
        for _ in range(random.randrange(REPEATED_MAX + 1)):
            if field.message_type is None:
                repeated.append(_value(random, field, bytes_of))
            elif depth < DEPTH_MAX:
                fill(random, repeated.add(), depth + 1, bytes_of)


_BITS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (31, True),
    FieldDescriptor.CPPTYPE_INT64: (63, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}


def _value(random: Random, field: Any, bytes_of: Draw | None) -> Any:
    kind = field.cpp_type
    if kind in _BITS:
        bits, is_signed = _BITS[kind]
        number = (random.choice(ODD_NUMBERS) + random.choice((0, 0, 1))) % (1 << bits)
        return -number if is_signed and random.random() < 0.3 else number
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return random.choice((*field.enum_type.values_by_number, 99))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return random.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(_TEXTS)
    if bytes_of is not None and random.random() < 0.7:
        return bytes_of(random)
    return random.randbytes(random.choice((0, 1, 4, 8, 16, 16, 16, 24, 40)))
