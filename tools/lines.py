"""Counts the code, and what of it is larger than the limits: python -m tools.lines

A line of code has something that is neither a comment nor a docstring. *Product* is what users run: the `src` of each
package. *Checks* are its tests, the simulator, e2e and tools. Generated modules do not count.

`limits.toml` has the limits and what is above them today, and a test compares. What is above a limit and not listed is
refused, and so is what has grown. What is below the limit by now leaves the list: so it can only shrink. The ratio of
checks to product may only fall.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIMITS: Final = ROOT / "tools" / "limits.toml"
CHECKS: Final = ("sim", "e2e", "tools", "images", "docs")
"""Folders of the repository that have no product."""

_GENERATED: Final = ("_pb2.py", "_pb2_grpc.py")
_MAP_ROW: Final = re.compile(r"^ {0,4}(\w+(?:, \w+)*) {2,}\S", re.MULTILINE)
"""A row `    name  what` or `    name, name  what` of a map."""
_MAP_MODULES_MIN: Final = 4
"""A package with this many modules has a map in its docstring."""
_MAPPED: Final = ("sim", "e2e", "tools")
"""Folders whose packages have maps, beside all products."""


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the repository.

    Attributes:
        name: Its path from the root.
        text: Its source.
        tree: The same, parsed.
    """

    name: str
    text: str
    tree: ast.Module = field(repr=False)

    @property
    def package(self) -> str:
        """The folder of the repository that it is in."""
        return self.name.partition("/")[0]

    @property
    def is_product(self) -> bool:
        """Whether users run it."""
        return self.package not in CHECKS and "/src/" in self.name


def modules(root: Path = ROOT) -> list[Module]:
    """All modules that git knows, without generated ones."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    names = [name for name in listed.stdout.splitlines() if not name.endswith(_GENERATED) and (root / name).exists()]
    texts = ((name, (root / name).read_text()) for name in names)
    gc.disable()  # a collection looks at all trees so far again: with them it takes six times as long
    try:
        return [Module(name, text, ast.parse(text)) for name, text in texts]
    finally:
        gc.freeze()
        gc.enable()


def code_lines(module: Module) -> int:
    """The lines of a module with code."""
    strings: set[int] = set()
    for node in (module.tree, *_statements(module.tree)):
        for part in _body(node):
            value = part.value if isinstance(part, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                strings.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    texts = (line.strip() for line in module.text.splitlines())
    return sum(number not in strings and line[:1] not in ("", "#") for number, line in enumerate(texts, 1))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements in a node. Most of a tree are expressions, and a walk over them takes five times as long."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        inside = getattr(node, name, ())
        for part in inside if isinstance(inside, list) else ():
            if isinstance(part, ast.stmt):
                yield part
            yield from _statements(part)


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", [])
    return body if isinstance(body, list) else []


def above(found: list[Module], limits: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What is larger than its limit, with its size, by the kind of the limit."""
    sizes: dict[str, dict[str, int]] = {"module_lines": {}, "function_lines": {}, "class_attributes": {}}
    for module in found:
        sizes["module_lines"][module.name] = module.text.count("\n")
        for node in _statements(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                rows = sizes["function_lines"]
                rows[f"{module.name}: {node.name}"] = max(lines, rows.get(f"{module.name}: {node.name}", 0))
            elif isinstance(node, ast.ClassDef):
                sizes["class_attributes"][f"{module.name}: {node.name}"] = len(set(_attributes(node)))
    return {kind: {name: size for name, size in rows.items() if size > limits[kind]} for kind, rows in sizes.items()}


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """The names of a class's fields, and of what its methods assign to `self`."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
    for statement in _statements(node):
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        for inner in (inner for target in targets if target is not None for inner in ast.walk(target)):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
                yield inner.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def wrong_maps(found: list[Module]) -> dict[str, list[str]]:
    """For each package whose map is wrong: the modules that it lacks, and what it has that is not there.

    A map has a row for each module, and may have rows for packages inside. `__main__` is not in it.
    """
    inside: dict[str, set[str]] = {}
    modules_of: dict[str, set[str]] = {}
    for module in found:
        *folders, file = module.name.split("/")
        for depth, folder in enumerate(folders):
            inside.setdefault("/".join(folders[:depth]), set()).add(folder)
        if not file.startswith("__"):
            modules_of.setdefault("/".join(folders), set()).add(file.removesuffix(".py"))
    wrong: dict[str, list[str]] = {}
    for module in found:
        folder, _, file = module.name.rpartition("/")
        is_mapped = (module.is_product or module.package in _MAPPED) and "tests" not in folder.split("/")
        if file != "__init__.py" or not is_mapped:
            continue
        there, packages = modules_of.get(folder, set()), inside.get(folder, set())
        rows = _map_rows(ast.get_docstring(module.tree) or "", there | packages)
        if rows or len(there) >= _MAP_MODULES_MIN:
            differences = [f"lacks {name}" for name in sorted(there - rows)]
            differences += [f"has no {name}" for name in sorted(rows - there - packages)]
            wrong |= {folder: differences} if differences else {}
    return wrong


def _map_rows(text: str, names: set[str]) -> set[str]:
    """The names in the rows of a map. A block of rows of which none names what is there is another table."""
    blocks = ({name for row in _MAP_ROW.findall(block) for name in row.split(", ")} for block in text.split("\n\n"))
    return {name for block in blocks if block & names for name in block}


def counted(found: list[Module]) -> dict[str, Counter[str]]:
    """Lines of code by package, of its product and its checks."""
    lines: dict[str, Counter[str]] = {}
    for module in found:
        kind = "product" if module.is_product else "checks"
        lines.setdefault(module.package, Counter())[kind] += code_lines(module)
    return lines


def ratio(lines: Mapping[str, Counter[str]]) -> float:
    """Lines of checks for each line of the product."""
    total = sum(lines.values(), Counter())
    return total["checks"] / total["product"]


def limits() -> dict[str, Any]:
    """What `limits.toml` has."""
    return tomllib.loads(LIMITS.read_text())


def main() -> None:
    """Print the counts, and what is above the limits."""
    found = modules()
    lines = counted(found)
    total = sum(lines.values(), Counter())
    print(f"{'':16}{'product':>10}{'checks':>10}{'ratio':>8}")
    for package, counts in [*sorted(lines.items()), ("total", total)]:
        share = f"{counts['checks'] / counts['product']:.2f}" if counts["product"] else "-"
        print(f"{package:16}{counts['product']:10,}{counts['checks']:10,}{share:>8}")
    given = limits()
    for kind, rows in above(found, given["limits"]).items():
        print(f"\n{kind}, at most {given['limits'][kind]}:")
        for name, size in sorted(rows.items(), key=lambda row: -row[1]):
            print(f"{size:6} {name}")


if __name__ == "__main__":
    main()
