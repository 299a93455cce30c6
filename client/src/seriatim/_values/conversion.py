"""Makes plain values of API messages: what has the same name in both is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

T = TypeVar("T")


def value_of(kind: type[T], message: Message, **given: Any) -> T:
    """A value of a dataclass: the fields that are given, and the others as the message has them.

    A list becomes a tuple, and a map a dictionary. A field that a message may have or not becomes None if it does not
    have it.
    """
    described = message.DESCRIPTOR.fields_by_name
    for name in [field.name for field in fields(kind) if field.name not in given]:  # type: ignore[arg-type]
        value = getattr(message, name)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            value = tuple(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        elif described[name].has_presence and not message.HasField(name):
            value = None
        given[name] = value
    return kind(**given)
