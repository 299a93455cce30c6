"""No pattern lets a line feed through at the end of a text: `$` stands for the end, and for the place before it too.

`re.match("^[a-z]+$", "orders\\n")` matches. So a name that was read with its line feed, for example from a mounted
secret, is taken for a legal one. A pattern for a whole text is used with `fullmatch`; one for the end of a text says
`\\Z`. With `re.MULTILINE` a `$` stands for the end of a line, which is what its author means.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("*/src", "sim", "e2e", "tools", "images")

_DOLLAR = re.compile(r"(?:[^\\\[$]|\\.|\[\^?\]?(?:[^\\\]]|\\.)*\])*\$", re.DOTALL)
"""A text up to its first `$` that is neither escaped nor in a class."""


def wrong_lines(source: str) -> list[int]:
    """The lines of calls of `re` with a `$` that a line feed may follow."""
    tree = ast.parse(source)
    texts = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    names = {id(value): name for name, value in texts.items()}
    used: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
    return [
        call.lineno
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).startswith("re.")
        and call.args
        and ast.unparse(call.func) != "re.fullmatch"
        and has_dollar(call, texts)
        and used.get(names.get(id(call), "")) != {"fullmatch"}
    ]


def has_dollar(call: ast.Call, texts: dict[str, ast.expr]) -> bool:
    """Whether the pattern of a call has a `$` that stands for the end of the text."""
    pattern = call.args[0]
    if isinstance(pattern, ast.Name):
        pattern = texts.get(pattern.id, pattern)
    given = [part.value for part in ast.walk(pattern) if isinstance(part, ast.Constant)]
    flags = " ".join(ast.unparse(each) for each in (*call.args[1:], *(word.value for word in call.keywords)))
    text = "".join(part for part in given if isinstance(part, str))
    is_multiline = "MULTILINE" in flags or "re.M" in flags or re.match(r"\(\?[a-zA-Z]*m", text) is not None
    return not is_multiline and _DOLLAR.match(text) is not None


def sources() -> Iterator[Path]:
    for place in PLACES:
        for directory in ROOT.glob(place):
            yield from (
                path for path in directory.rglob("*.py") if "tests" not in path.parts and "_pb2" not in path.name
            )


def test_patterns_end_at_the_end_of_the_text() -> None:
    paths = list(sources())
    assert len(paths) > 500
    found = [f"{path.relative_to(ROOT)}:{line}" for path in paths for line in wrong_lines(path.read_text("utf-8"))]
    assert found == [], r"use `fullmatch`, or `\Z` in place of `$`"


@pytest.mark.parametrize(
    "source",
    [
        're.match("^[a-z]+$", name)',
        're.search(r"[0-9]+$", name)',
        'X = re.compile(r"[a-z]\\\\$|b$")\nX.fullmatch(a)\nX.match(b)',
        'P = "^a$"\nX = re.compile(P)\nX.match(b)',
        'X: Final = re.compile(f"^{P}$")\nX.search(b)',
        're.sub("(a[$])$", "", text)',
    ],
)
def test_a_pattern_that_lets_a_line_feed_through_is_found(source: str) -> None:
    assert len(wrong_lines(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        're.match(r"[a-z]+\\Z", name)',
        'X = re.compile("^[a-z]+$")\nX.fullmatch(name)',
        're.fullmatch("^a$", name)',
        're.findall("^a$", page, re.MULTILINE)',
        're.findall("(?m)^a$", page)',
        're.search(r"\\$[a$]", name)',
    ],
)
def test_other_patterns_are_left_alone(source: str) -> None:
    assert wrong_lines(source) == []
