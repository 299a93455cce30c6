"""The limits of `tools.lines`, for this repository."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tools import lines


@pytest.fixture(scope="module")
def found() -> list[lines.Module]:
    return lines.modules()


def module(name: str, text: str) -> lines.Module:
    return lines.Module(name, text, ast.parse(text))


def test_what_is_above_a_limit_is_listed_and_only_shrinks(found: list[lines.Module]) -> None:
    given = lines.limits()
    for kind, rows in lines.above(found, given["limits"]).items():
        listed = given["above"][kind]
        grown = {name: size for name, size in rows.items() if size > listed.get(name, 0)}
        assert not grown, f"{kind} above {given['limits'][kind]}, or above what tools/limits.toml lists: divide it"
        assert not set(listed) - set(rows), f"{kind}: below the limit by now; take it out of tools/limits.toml"


def test_maps_of_packages_name_what_is_there_and_nothing_else(found: list[lines.Module]) -> None:
    assert lines.wrong_maps(found) == {}, "a docstring has a row `    name  what` for each module, and no other rows"


def test_checks_do_not_outgrow_the_product(found: list[lines.Module]) -> None:
    ratio = lines.ratio(lines.counted(found))
    assert ratio <= lines.limits()["ratio"], "let something else go (tools/lines.py), or add to the product"


def test_comments_docstrings_and_blank_lines_are_no_code() -> None:
    text = '"""What.\n\nMore.\n"""\n\nimport os  # why\n\n\n# a comment\ndef go():\n    return (\n        1\n    )\n'
    assert lines.code_lines(module("api/src/a.py", text)) == 5


def test_product_and_checks_are_counted_apart() -> None:
    found = [module(f"{name}.py", "a = 1\n") for name in ("api/src/a/b", "api/tests/test_b", "sim/src/c")]
    counted = lines.counted(found)
    assert counted == {"api": Counter(product=1, checks=1), "sim": Counter(checks=1)}
    assert lines.ratio(counted) == 2


def test_a_class_has_its_fields_and_what_it_assigns_to_itself() -> None:
    text = "class C:\n    a: int\n    def f(self):\n        self.b, self.c = 1, 2\n        self.b.d = self.e\n"
    limits = {"module_lines": 9, "function_lines": 9, "class_attributes": 2}
    assert lines.above([module("x.py", text)], limits)["class_attributes"] == {"x.py: C": 3}


MODULES = ("a", "b", "c", "d", "__main__", "inner/e", "tests/f")


def planted(place: str, rows: str, names: tuple[str, ...] = MODULES) -> dict[str, list[str]]:
    """What is wrong with the map of a planted package."""
    package = module(f"{place}/__init__.py", f'"""P.\n\n{rows}\n\nWhat it is for.\n"""\n')
    return lines.wrong_maps([package, *(module(f"{place}/{name}.py", "") for name in names)])


@pytest.mark.parametrize("place", ["api/src/p", "sim/p", "e2e/p", "tools/p"])
def test_a_map_with_a_row_for_each_module_is_right(place: str) -> None:
    assert planted(place, "    a     one\n    b, c  two\n\n    d     four\n    inner  more") == {}
    assert planted(place, "a  one\nb  two\nc  three\nd  four") == {}, "a formatter takes the spaces away"


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ("    a  one\n    b  two\n    c  three; `d` helps", ["lacks d"]),
        ("    a  one\n    b, d, moved  two\n    c  three\n    gone  four", ["has no gone", "has no moved"]),
        ("    a  one\n    inner  more\n    other  less", ["lacks b", "lacks c", "lacks d", "has no other"]),
        ("More.", ["lacks a", "lacks b", "lacks c", "lacks d"]),
    ],
)
def test_a_map_is_wrong_in_both_directions(rows: str, wrong: list[str]) -> None:
    assert planted("sim/p", rows) == {"sim/p": wrong}


def test_other_tables_are_no_maps() -> None:
    assert planted("sim/p", "    a, b  one\n    c, d  two\n\n    FIRST   a rule\n    second  a rule") == {}


def test_packages_with_three_modules_need_no_map_but_a_true_one() -> None:
    three = ("a", "b", "c")
    assert planted("sim/p", "Three.", three) == {}
    assert planted("sim/p", "    a  one\n    d  four", three) == {"sim/p": ["lacks b", "lacks c", "has no d"]}


def test_packages_of_tests_and_scripts_need_no_map() -> None:
    assert planted("api/tests/p", "Four.") == planted("sim/tests/p", "Four.") == planted("docs/p", "Four.") == {}
