"""Copies and fingerprints of core state, for exploration and comparison in tests and in the simulator.

A class of the core lists its state in `__slots__` and derives from `State`. A slot may have only immutable
values, other `State`s, and dicts, lists and deques of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, Self


class State:
    """Base of the core's mutable classes."""

    __slots__: tuple[str, ...] = ()

    @classmethod
    def _slot_names(cls) -> list[str]:
        return [name for kind in reversed(cls.__mro__) for name in getattr(kind, "__slots__", ())]

    def copy(self) -> Self:
        """An independent copy: a step of one does not change the other."""
        twin = object.__new__(type(self))
        for name in self._slot_names():
            setattr(twin, name, _twin(getattr(self, name)))
        return twin

    def freeze(self) -> Hashable:
        """A hashable value. It is equal for two states that will behave in the same way."""
        return (type(self).__name__, *(_frozen(getattr(self, name)) for name in self._slot_names()))


def _twin(value: Any) -> Any:
    if isinstance(value, State):
        return value.copy()
    if isinstance(value, dict):
        return {key: _twin(item) for key, item in value.items()}
    if isinstance(value, (list, deque)):
        return type(value)(_twin(item) for item in value)
    return value


def _frozen(value: Any) -> Hashable:
    if isinstance(value, State):
        return value.freeze()
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, deque)):
        return tuple(_frozen(item) for item in value)
    assert isinstance(value, Hashable), f"a core state must not hold a {type(value).__name__}"
    return value
