"""Copies the fields that a value of the core and a message both have, under the same name. The caller gives the others.

Only single numbers, texts and bytes are copied: no lists, no messages, no enumerations, and no field that a message may
have or not.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

_Message = TypeVar("_Message", bound=Message)


@cache
def _shared(described: Descriptor, kind: Any) -> tuple[str, ...]:
    names = getattr(kind, "_fields", None) or kind.__dataclass_fields__
    return tuple(
        field.name
        for field in described.fields
        if field.name in names
        and field.message_type is None
        and field.enum_type is None
        and not field.has_presence
        and not isinstance(field.default_value, list)
    )


def fill(message: _Message, value: Any, **others: Any) -> _Message:
    """Set the fields of a message, and return it."""
    kind: Any = type(value)
    for name in _shared(message.DESCRIPTOR, kind):
        setattr(message, name, getattr(value, name))
    for name, item in others.items():
        setattr(message, name, item)
    return message
