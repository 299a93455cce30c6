"""No `x or default` on what a caller may leave out: it takes zero, an empty text or an empty list for nothing given.

`group skip --key ''` passed over messages of all keys, because the client wrote `key or b""` (ADR 0073). What is left
out is None, so the right form is `default if x is None else x`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CAN_BE_EMPTY = {
    "bytes",
    "int",
    "float",
    "str",
    "Sequence",
    "Iterable",
    "Collection",
    "Mapping",
    "list",
    "tuple",
    "dict",
}

EXCEPTIONS = {
    "api/src/seriatim_api/status.py: error.retry_after_ms or 0": "0 ms is no advice, as None",
    "api/src/seriatim_api/status.py: text or 'no reason given'": "gRPC gives an empty text if there is none",
    "client/src/seriatim/_transport/reasons.py: details or 'no reason given'": "gRPC gives an empty text too",
    "operator/src/seriatim_operator/plugin/checks.py: text or '1970-01-01T00:00:00Z'": "a field that has no time",
}
"""`path: expression`, and why empty means the same as None there."""


def wrong_lines(source: str) -> list[tuple[int, str]]:
    """The lines of `x or default`, where x is an argument that may be None, or the result is a field of a message."""
    if " or " not in source:
        return []
    tree = ast.parse(source)
    tested = {id(part) for node in ast.walk(tree) for part in _tested_only(node)}
    found = {
        (choice.lineno, ast.unparse(choice))
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for names in (_may_be_left_out(function.args),)
        if names
        for choice in ast.walk(function)
        if isinstance(choice, ast.BoolOp) and isinstance(choice.op, ast.Or) and id(choice) not in tested
        if any(isinstance(value, ast.Name) and value.id in names for value in choice.values[:-1])
        if not _adds_nothing(choice.values[-1])
    } | {
        (word.value.lineno, ast.unparse(word.value))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call.keywords
        for word in call.keywords
        if isinstance(word.value, ast.BoolOp)
        and isinstance(word.value.op, ast.Or)
        and "_pb2." in ast.unparse(call.func)
        if isinstance(word.value.values[0], ast.Name | ast.Attribute)
    }
    return sorted(found)


def _may_be_left_out(arguments: ast.arguments) -> set[str]:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    kinds = {each.arg: _kinds(each.annotation) for each in every if each.annotation is not None}
    return {name for name, of in kinds.items() if "None" in of and of & CAN_BE_EMPTY}


def _kinds(annotation: ast.expr) -> set[str]:
    if isinstance(annotation, ast.BinOp):
        return _kinds(annotation.left) | _kinds(annotation.right)
    return {ast.unparse(annotation.value if isinstance(annotation, ast.Subscript) else annotation)}


def _adds_nothing(default: ast.expr) -> bool:
    """`for one in rows or ()`: an empty one is read as None is."""
    return isinstance(default, ast.Tuple | ast.List | ast.Dict) and not ast.unparse(default).strip("()[]{}")


def _tested_only(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield from _parts(node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _parts(test)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _parts(node.operand)


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    yield test
    for part in test.values if isinstance(test, ast.BoolOp) else ():
        yield from _parts(part)


def sources() -> Iterator[Path]:
    for directory in ROOT.glob("*/src"):
        yield from (path for path in directory.rglob("*.py") if "_pb2" not in path.name)


def test_what_is_empty_is_not_taken_for_absent() -> None:
    paths = list(sources())
    assert len(paths) > 500
    found = [
        (f"{path.relative_to(ROOT)}: {text}", line)
        for path in paths
        for line, text in wrong_lines(path.read_text("utf-8"))
    ]
    assert [row for row in found if row[0] not in EXCEPTIONS] == [], "write `default if x is None else x`"
    assert EXCEPTIONS.keys() <= {name for name, _ in found}, "an exception that nothing needs"


@pytest.mark.parametrize(
    "source",
    [
        'def f(key: bytes | None): g(key or b"")',
        "async def f(*, count: None | int = None): return count or 5",
        "def f(of: Sequence[int] | None): return list(of or range(3))",
        "def f(name: str | None): x = name or a or make()",
        "broker_pb2.OperatedKey(turn=key.turn or 0)",
        "broker_pb2.ListGroupKeysRequest(partitions=partitions or ())",
    ],
)
def test_an_empty_value_that_becomes_the_default_is_found(source: str) -> None:
    assert len(wrong_lines(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'def f(key: bytes | None): g(b"" if key is None else key)',
        "def f(count: int | None):\n    if count or other: pass",
        "def f(a: Thing | None): return a or Thing()",
        "def f(rows: list[int] | None): return [row for row in rows or ()]",
        "def f(a: str | None): return not (a or b)",
        "records_pb2.ClusterRecord(made_at_ms=least_of(chains) or now_ms())",
    ],
)
def test_other_choices_are_left_alone(source: str) -> None:
    assert wrong_lines(source) == []
