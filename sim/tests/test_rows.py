"""A planted bug that is a change of text: what of a function it can change, who runs it, and what is refused."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sim.mutants.mutation import LOSS, Mutation, applied
from sim.mutants.rows import RowError, mutations

SOURCE = '''
import functools
from contextlib import contextmanager
from dataclasses import dataclass

LIMIT = 5

def below(number, limit=LIMIT):
    """Whether it is below; the limit does not count."""
    is_below = number < limit
    return is_below

def numbers():
    yield 1
    yield 2

async def later():
    return "later"

@contextmanager
def within(seen):
    seen.append("begin")
    yield
    seen.append("end")

@functools.cache
def kept():
    return 1

def outer():
    return [number for number in (1, 2)]

class Base:
    def name(self):
        return "base"

@dataclass(frozen=True, slots=True)
class Slots:
    value: int

    def shown(self):
        return self.value

@dataclass(frozen=True)
class Row(Base):
    value: int

    def name(self):
        text = f"""{self.value}
of row"""
        return super().name() + text

    @property
    def double(self):
        return 2 * self.value

    @classmethod
    def of(cls, value):
        return cls(value)

    @staticmethod
    def plain(value):
        return value

    def __hidden(self):
        return self.value

    def shown(self):
        return self.__hidden()
'''


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module, and `user`, which imported functions of it by name before any bug is planted."""
    (tmp_path / "rows_product.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "rows_user.py").write_text("from rows_product import below\nTABLE = {'below': below}\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("rows_product")
    module.user = importlib.import_module("rows_user")
    yield module
    for name in ("rows_product", "rows_user"):
        del sys.modules[name]


def _row(where: str, *lines: str) -> Mutation:
    return mutations("\n".join([f"bug: a rule\n@ rows_product.{where}", *lines]))["bug"]


def test_the_bug_runs_wherever_the_function_is_known(product: ModuleType) -> None:
    with applied(_row("below", "- number < limit", "+ number <= limit")):
        assert product.below(5)
        assert product.user.below(5)
        assert product.user.TABLE["below"](5)
    assert not product.below(5)


def test_defaults_of_a_function_stay(product: ModuleType) -> None:
    with applied(_row("below", "  is_below = number < limit", "+ is_below = (is_below, limit)")):
        assert product.below(5) == (False, 5)


def test_a_class_cell_and_strings_of_methods_stay(product: ModuleType) -> None:
    with applied(_row("Row.name", "- super().name() + text", "+ text + super().name()")):
        assert product.Row(1).name() == "1\nof rowbase"


@pytest.mark.parametrize(
    ("where", "lines", "expected"),
    [
        ("Row.double", ["- 2 *", "+ 3 *"], 9),
        ("Row.of", ["- cls(value)", "+ cls(value + 1)"], 8),
        ("Row.plain", ["+ return -value"], -3),
        ("Row.shown", ["- self.__hidden()", "+ self.__hidden() + 1"], 4),
        ("Slots.shown", ["- self.value", "+ -self.value"], -3),
        ("numbers", ["- yield 2", "+ yield 7"], [1, 7]),
        ("outer", ["- number for", "+ number + LIMIT for"], [6, 7]),
        ("later", ["+ return 'bug'"], "bug"),
        ("within", ['- "end"', '+ "bug"'], ["begin", "bug"]),
    ],
)
def test_each_kind_of_function_can_have_a_bug(product: Any, where: str, lines: list[str], expected: object) -> None:
    row = product.Row(3)
    seen: list[str] = []
    with applied(_row(where, *lines)):
        if where == "within":
            with product.within(seen):
                pass
        found = {
            "Row.double": lambda: row.double,
            "Row.of": lambda: row.of(3).double,
            "Row.plain": lambda: row.plain(3),
            "Row.shown": row.shown,
            "Slots.shown": product.Slots(3).shown,
            "numbers": lambda: list(product.numbers()),
            "outer": product.outer,
            "later": lambda: asyncio.run(product.later()),
            "within": lambda: seen,
        }[where]()
    assert found == expected


@pytest.mark.parametrize(
    ("where", "lines", "why"),
    [
        ("below", ["- number > limit", "+ True"], "occurs 0 times"),
        ("below", ["- limit", "+ LIMIT"], "occurs 3 times"),
        ("below", ["- is_below = number < limit", "- return True", "+ return False"], "occurs 0 times"),
        ("below", ["- number, limit=LIMIT", "+ number, limit=7"], "arguments"),
        ("Row.double", ["- @property", "+ @staticmethod"], "decorators"),
        ("numbers", ["+ return []"], "generator"),
        ("Row.name", ["+ return 'row'"], "closure"),
        ("Row.shown", ["+ return super().name()"], "closure"),
        ("below", ["- limit)", "+ limit) "], "occurs 0 times"),
        ("below", ["- number < limit", "+ number < LIMITS"], "has no LIMITS"),
        ("below", ["+ from rows_user import LIMITS", "+ return LIMITS"], "import name 'LIMITS'"),
        ("below", ["+ from rows_gone import LIMIT", "+ return LIMIT"], "No module named 'rows_gone'"),
        ("kept", ["+ return 2"], "no function"),
        ("above", ["+ return 2"], "is not there"),
        ("LIMIT", ["+ return 2"], "no function"),
        ("user.below", ["+ return 2"], "is rows_product.below"),
    ],
)
def test_what_a_row_cannot_change_is_refused(product: Any, where: str, lines: list[str], why: str) -> None:
    with pytest.raises(RowError, match=why), applied(_row(where, *lines)):
        pass


def test_new_lines_are_indented_from_the_old_ones(product: Any) -> None:
    row = _row(
        "below",
        "  is_below = number < limit",
        "+ if number == 7:",
        "+     return 'bug'",
        "- return is_below",
        "+ return 1",
    )
    with applied(row):
        assert (product.below(7), product.below(8)) == ("bug", 1)


def test_settings_in_brackets_replace_those_above() -> None:
    body = "\n@ rows_product.below\n+ return True\n"
    found = mutations(
        f"""one: rule{body}two [I1 I2 brokers]: rule{body}[I1 I2 brokers]
three [+ I3 clocks runtime 90]: a rule
  of three{body}four [LOSS I7]: rule{body}"""
    )
    assert found["one"].breaks == LOSS
    assert (found["two"].breaks, found["two"].world, found["two"].profile) == (("I1", "I2"), "brokers", "anything")
    three = found["three"]
    assert (three.rule, three.breaks) == ("a rule of three", ("I1", "I2", "I3"))
    assert (three.world, three.profile, three.layer, three.batch_count) == ("brokers", "clocks", "runtime", 90)
    assert found["four"].breaks == (*LOSS, "I7")
