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


def test_maps_of_packages_name_every_module(found: list[lines.Module]) -> None:
    assert lines.maps_without(found) == {}


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


def test_a_map_lacks_the_modules_that_its_docstring_does_not_name() -> None:
    package = module("p/__init__.py", '"""P.\n\n    a  one\n    b  two; `d` helps\n    c  three\n\nMore.\n"""\n')
    rest = [module(f"p/{name}.py", "") for name in ("a", "b", "c", "d", "e", "__main__")]
    assert lines.maps_without([package, *rest]) == {"p/__init__.py": ["e"]}
    assert lines.maps_without([package, *rest[2:]]) == {}, "a docstring with one row of a module is no map"
