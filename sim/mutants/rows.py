"""Planted bugs that are a change of text: which function, its text, and the text that replaces it.

    name [promises profile]: the rule that is left out
    @ core.module.Class.function
      text that stays
    - old text
    + new text

In brackets is what is not as in the brackets above all rows: the promises that may break first (`+`: these too), and
the profile, world, layer, and count of batches of `Mutation`.

What stays and the old text must occur exactly once in the source of the function. All lines are indented from the line
in which that begins. A function with new text only has that as its body. A row may have more texts, and more functions.

The edited function is compiled, and its code takes the place of the real code *in the function object*. So every module
that imported the function by name, and every table that holds it, runs the bug. Defaults, decorators and the class cell
(`super`) stay those of the real function. What a code object cannot change is refused: arguments, decorators, variables
of a closure, whether the function is a generator. Refused are also names that the function's module does not have, and
imports that fail: otherwise the bug breaks a promise by its `NameError`, and not by the rule that is left out. Or it
does nothing, because the error ends a task whose result the world does not need.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import functools
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from .mutation import LOSS, Mutation, Patch

PACKAGES = ("adapters", "core", "rpc", "runtime", "testing")
"""Of the broker: their functions are named without `seriatim_broker`."""

KINDS = {
    **dict.fromkeys(("cores", "brokers", "disks", "groups"), "world"),
    **dict.fromkeys(("core", "client", "runtime", "storage"), "layer"),
}
"""By word: the attribute of `Mutation`. Every other word in lower case is a profile."""

SETS = {"LOSS": LOSS}

TITLE = re.compile(r"([a-z0-9-]+)(?: \[(.*)\])?: (.*)", re.DOTALL)

_FUTURES = __future__.annotations.compiler_flag
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class RowError(Exception):
    """A row cannot be planted: its function or its old text is not there any more, or its new text is refused."""


class Edit:
    """A function, and pairs of old and new text."""

    def __init__(self, text: str) -> None:
        self.where, *lines = text.split("\n")
        self.texts: list[tuple[list[str], list[str]]] = []
        last = "+"
        for line in lines:
            mark = line[0]
            if last == "+" != mark or not self.texts:  # old text after new text begins the next pair
                self.texts.append(([], []))
            for texts, other in zip(self.texts[-1], "+-", strict=True):
                if mark != other:
                    texts.append(line[2:])
            last = mark


def mutations(rows: str) -> dict[str, Mutation]:
    """The planted bugs of these rows, by name."""
    found = {}
    usual: dict[str, Any] = {"breaks": LOSS}
    for row in re.split(r"\n(?=[a-z[])", rows.strip()):
        if row[0] == "[":
            usual |= _said(row[1:-1], ())
            continue
        title, *edits = row.split("\n@ ")
        match = TITLE.fullmatch(title)
        assert match is not None, title
        name, said, rule = match.groups()
        patches = functools.cache(functools.partial(_patches, [Edit(edit) for edit in edits]))
        found[name] = Mutation(" ".join(rule.split()), patches, **{**usual, **_said(said or "", usual["breaks"])})
    return found


def _said(words: str, usual: tuple[str, ...]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for word in words.split():
        if word.isdecimal():
            said["batch_count"] = int(word)
        elif word == "+" or word.isupper():
            said["breaks"] = (*said.get("breaks", ()), *SETS.get(word, usual if word == "+" else (word,)))
        else:
            said[KINDS.get(word, "profile")] = word
    return said


def _patches(edits: list[Edit]) -> list[Patch]:
    functions = [function_at(edit.where) for edit in edits]
    assert len(set(functions)) == len(edits), "a function stands once in a row"
    return [(function, "__code__", planted(edit, function)) for edit, function in zip(edits, functions, strict=True)]


def function_at(where: str) -> FunctionType:
    """The function or method of that name, without its decorators."""
    path = f"seriatim_broker.{where}" if where.partition(".")[0] in PACKAGES else where
    owner, _, name = path.rpartition(".")
    try:
        found = inspect.getattr_static(pkgutil.resolve_name(owner), name)
    except (AttributeError, ImportError) as exc:
        raise RowError(f"{where} is not there: {exc}") from exc
    if isinstance(found, property):
        found = found.fget
    function = inspect.unwrap(getattr(found, "__func__", found), stop=lambda each: hasattr(each, "cache_clear"))
    if not isinstance(function, FunctionType):
        raise RowError(f"{where} is no function that a row can edit: {function!r}")
    home = f"{function.__module__}.{function.__qualname__}"
    if home != path:
        raise RowError(f"{where} is {home}: name it there")
    return function


def planted(edit: Edit, function: FunctionType) -> CodeType:
    """The code of the function with the bug.

    Raises:
        RowError: The old text does not occur once, or the new text cannot be planted.
    """
    source = edited = inspect.getsource(function)
    body: list[str] = []
    for old, new in edit.texts:
        if old:
            edited = _replaced(edited, old, new, edit.where)
        else:
            body = new
    real, bug = (_parsed(text, function.__code__.co_firstlineno) for text in (source, edited))
    if body:
        bug.body = ast.parse("\n".join(body)).body
    if _signature(real) != _signature(bug):
        raise RowError(f"{edit.where}: a row cannot change the name, the arguments or the decorators")
    code = _code_of(bug, function)
    known = function.__code__
    if code.co_freevars != known.co_freevars:
        raise RowError(f"{edit.where}: the closure has {known.co_freevars}, the bug needs {code.co_freevars}")
    if (code.co_flags ^ known.co_flags) & _GENERATOR:
        raise RowError(f"{edit.where}: a row cannot make a generator of a function, or a function of a generator")
    unknown = [name for name in _globals_of(code) if name not in {**function.__globals__, **vars(builtins)}]
    if unknown:
        raise RowError(f"{edit.where}: {function.__module__} has no {', '.join(unknown)}: import it in the new text")
    for each in ast.walk(bug):
        if isinstance(each, ast.Import | ast.ImportFrom):
            _check_import(each, function, edit.where)
    return code


def _check_import(statement: ast.Import | ast.ImportFrom, function: FunctionType, where: str) -> None:
    try:
        exec(compile(ast.Module([statement], []), where, "exec"), dict(function.__globals__))  # noqa: S102 - our own text
    except ImportError as exc:
        raise RowError(f"{where}: {ast.unparse(statement)}: {exc}") from exc


def _replaced(source: str, old: list[str], new: list[str], where: str) -> str:
    found = []
    for match in re.finditer(re.escape(old[0]), source):
        line = source[source.rfind("\n", 0, match.start()) + 1 :]
        margin = "\n" + " " * (len(line) - len(line.lstrip()))
        if source.startswith(margin.join(old), match.start()):
            found.append((match.start(), margin))
    if len(found) != 1:
        text = "\n".join(old)
        raise RowError(f"{where}: the old text occurs {len(found)} times, and must occur once:\n{text}")
    [(start, margin)] = found
    return source[:start] + margin.join(new) + source[start + len(margin.join(old)) :]


def _parsed(source: str, first_line: int) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """A method is not dedented, because that changes strings of several lines."""
    above = "\n" * (first_line - 1)
    [found] = ast.parse(f"{above[1:]}if True:\n{source}" if source[0].isspace() else above + source).body
    if isinstance(found, ast.If):
        [found] = found.body
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    return found


def _signature(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[object, ...]:
    return type(tree), tree.name, ast.dump(tree.args), [ast.dump(each) for each in tree.decorator_list]


def _code_of(tree: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType) -> CodeType:
    tree.decorator_list = []
    within: ast.stmt = tree
    for name in reversed(function.__qualname__.split(".")[:-1]):  # names with two underscores are those of the class
        [owner] = ast.parse(f"class {name}: pass").body
        assert isinstance(owner, ast.ClassDef)
        owner.body, within = [within], owner
    file, flags = function.__code__.co_filename, function.__code__.co_flags & _FUTURES
    code = compile(ast.Module([within], []), file, "exec", flags, dont_inherit=True)
    return next(each for each in _codes_in(code) if each.co_name == tree.name)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes_in(each)


def _globals_of(code: CodeType) -> list[str]:
    found = (each for part in _codes_in(code) for each in dis.get_instructions(part))
    return [each.argval for each in found if each.opname == "LOAD_GLOBAL"]
