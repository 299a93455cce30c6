"""Copying and freezing of core state, for exploration and comparison.

Every class of the core whose objects change derives from `State`, and its slots are its whole state. `copy()` returns
an independent twin. `freeze()` returns a hashable value that is equal for equal states, in whatever order dicts were
filled.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

_ATOMS = (int, str, bytes, float, bool, type(None), enum.Enum)

_K = TypeVar("_K")
_V = TypeVar("_V")

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The one empty map, to save memory: a partition has a dozen maps that are nearly always empty, and a broker has 10,000
partitions. An attribute is `NOTHING` until the first `put`, and again after the last `drop`."""


def nothing() -> Mapping[Any, Any]:
    """`NOTHING`, as the default of a field: a dataclass takes no default that cannot be hashed."""
    return NOTHING


def put(known: Mapping[_K, _V], key: _K, value: _V) -> Mapping[_K, _V]:
    """Put an item into a map; the caller assigns the result, which is a new map if it was `NOTHING`."""
    if not known:
        return {key: value}
    cast("dict[_K, _V]", known)[key] = value
    return known


def drop(known: Mapping[_K, _V], key: _K) -> Mapping[_K, _V]:
    """Remove a key from a map, if it is there; the caller assigns the result, which is `NOTHING` if it was the last."""
    if key in known:
        del cast("dict[_K, _V]", known)[key]
    return known or NOTHING


def add(known: Sequence[_V], item: _V) -> Sequence[_V]:
    """Append an item to a list; the caller assigns the result, which is a new list if it was `()`.

    An empty list is `()` to save memory, as an empty map is `NOTHING`.
    """
    if not known:
        return [item]
    cast("list[_V]", known).append(item)
    return known


def copy_value(value: Any, twins: dict[int, Any] | None = None) -> Any:
    """A twin of `value` that shares only objects that cannot change; an object in two places has one twin."""
    twins = {} if twins is None else twins
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, State):
        return value.copy(twins)
    if isinstance(value, dict):
        return {key: copy_value(item, twins) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_value(item, twins) for item in value]
    if isinstance(value, deque):
        return deque(copy_value(item, twins) for item in value)
    if isinstance(value, (set, bytearray)):
        return type(value)(value)
    if isinstance(value, tuple) and value and isinstance(value[0], State):
        return tuple(copy_value(item, twins) for item in value)
    return value  # other tuples, frozen dataclasses, `NOTHING`, functions: shared


def freeze_value(value: Any) -> Hashable:
    """A hashable value that is equal for equal states."""
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, State):
        return value.freeze()
    if isinstance(value, (dict, MappingProxyType)):
        return ("d", frozenset((freeze_value(key), freeze_value(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple, deque)):
        return ("l", tuple(freeze_value(item) for item in value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (set, frozenset)):
        return ("s", frozenset(freeze_value(item) for item in value))
    if isinstance(value, Sequence):
        return ("l", tuple(freeze_value(item) for item in value))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(freeze_value(getattr(value, field.name)) for field in fields(value)))
    if callable(value):
        return None
    raise TypeError(f"a core state must not hold a {type(value).__name__}")


class State:
    """Base of the core's mutable classes; subclasses list all attributes in `__slots__`."""

    __slots__ = ()

    @classmethod
    def _slot_names(cls) -> list[str]:
        return [name for kind in reversed(cls.__mro__) for name in getattr(kind, "__slots__", ())]

    def copy(self, twins: dict[int, Any] | None = None) -> Self:
        """An independent twin: a step of one does not change the other.

        Args:
            twins: The objects that the same call has copied already, by identity; callers leave it out.
        """
        twins = {} if twins is None else twins
        known: Self | None = twins.get(id(self))
        if known is not None:
            return known
        twin = twins[id(self)] = object.__new__(type(self))
        for name in self._slot_names():
            setattr(twin, name, copy_value(getattr(self, name), twins))
        return twin

    def freeze(self) -> Hashable:
        """A hashable value that is equal for two states that behave in the same way."""
        return (type(self).__name__, *(freeze_value(getattr(self, name)) for name in self._slot_names()))
