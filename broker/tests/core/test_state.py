"""Copying and freezing: every stateful class of the core lists its whole state, copies are twins, freezes compare."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import deque
from operator import attrgetter
from typing import Any

import pytest
import seriatim_broker.core
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_broker.core.values.states import NOTHING, State, copy_value, drop, freeze_value, put

QUICK = settings(max_examples=100, deadline=None)


class Leaf(State):
    """A small state for the tests."""

    __slots__ = ("items", "name")

    def __init__(self, name: str, items: dict[int, list[int]]) -> None:
        self.name = name
        self.items = items


class Branch(Leaf):
    """A state that inherits slots, and holds states."""

    __slots__ = ("fixed", "leaves", "queue", "seen")

    def __init__(self, name: str, items: dict[int, list[int]], leaves: dict[str, Leaf]) -> None:
        super().__init__(name, items)
        self.leaves = leaves
        self.queue: deque[tuple[int, bytes]] = deque([(1, b"x")])
        self.seen = {1, 2}
        self.fixed = (Leaf("fixed", {}),)


def _all_states() -> list[type[State]]:
    for module in pkgutil.walk_packages(seriatim_broker.core.__path__, "seriatim_broker.core."):
        importlib.import_module(module.name)
    found: list[type[State]] = []
    waiting = list(State.__subclasses__())
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        # Until Python 3.11.4 a class is still listed that `@dataclass(slots=True)` has replaced.
        is_current = attrgetter(kind.__qualname__)(sys.modules[kind.__module__]) is kind
        if kind.__module__.startswith("seriatim_broker.") and is_current:
            found.append(kind)
    return sorted(found, key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("kind", _all_states(), ids=lambda kind: kind.__qualname__)
def test_a_state_has_no_attributes_outside_its_slots(kind: type[State]) -> None:
    for base in kind.__mro__[:-1]:
        assert "__slots__" in vars(base), f"{base} has a __dict__, which copy and freeze do not see"
    names = kind._slot_names()
    assert len(names) == len(set(names))


leaves = st.builds(
    Leaf, st.text(max_size=3), st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 9), max_size=3), max_size=4)
)
branches = st.builds(
    Branch,
    st.text(max_size=3),
    st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 9), max_size=3), max_size=4),
    st.dictionaries(st.text(max_size=2), leaves, max_size=3),
)


@QUICK
@given(branches)
def test_a_copy_freezes_alike_and_lives_alone(state: Branch) -> None:
    twin = state.copy()
    frozen = state.freeze()
    assert twin.freeze() == frozen
    hash(frozen)
    twin.items[99] = [1]
    twin.queue.append((2, b"y"))
    twin.seen.add(3)
    for leaf in twin.leaves.values():
        leaf.items[7] = [7]
    twin.fixed[0].items[7] = [7]
    assert state.freeze() == frozen
    assert twin.freeze() != frozen


@QUICK
@given(branches)
def test_the_order_in_which_a_dict_was_filled_does_not_count(state: Branch) -> None:
    twin = state.copy()
    twin.items = dict(reversed(list(state.items.items())))
    twin.leaves = dict(reversed(list(state.leaves.items())))
    assert twin.freeze() == state.freeze()


@pytest.mark.parametrize("value", [[1, [2]], {"a": [1]}, deque([[1]]), {1, 2}, (1, 2), b"x", None, 1.5])
def test_values_are_copied_deep_enough(value: Any) -> None:
    twin = copy_value(value)
    assert twin == value
    assert freeze_value(twin) == freeze_value(value)
    if isinstance(value, list | deque):
        twin[-1].append(3)
    elif isinstance(value, dict):
        twin["a"].append(3)
    elif isinstance(value, set):
        twin.add(3)
    else:
        return
    assert freeze_value(twin) != freeze_value(value)


def test_an_empty_map_is_one_for_all_and_freezes_as_any_other() -> None:
    one, other = Leaf("one", {}), Leaf("one", {})
    one.items = put(NOTHING, 1, [1])  # type: ignore[assignment]
    assert put(one.items, 2, [2]) is one.items
    assert (dict(one.items), dict(NOTHING)) == ({1: [1], 2: [2]}, {})
    assert drop(drop(one.items, 1), 1) is one.items
    one.items = drop(one.items, 2)  # type: ignore[assignment]
    assert one.items is NOTHING
    assert drop(NOTHING, 1) is NOTHING
    assert copy_value(NOTHING) is NOTHING
    assert one.freeze() == other.freeze()
    with pytest.raises(TypeError):
        NOTHING[1] = 1  # type: ignore[index]


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(TypeError, match="must not hold"):
        freeze_value(object())
