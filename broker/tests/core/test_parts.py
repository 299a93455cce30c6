"""The parts of the core have an order, so that a developer can change one part without knowing the whole."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import seriatim_broker.core

CORE = Path(seriatim_broker.core.__path__[0])


def _imported(module: Path) -> set[Path]:
    """The core's modules that one of them imports when it is loaded; what only types need does not count."""
    found: set[Path] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = module.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            inside = [folder / f"{name.name}.py" for name in node.names] if folder.is_dir() else [folder]
            found.update(path.with_suffix(".py") for path in inside)
    return {path for path in found if CORE in path.parents}


def test_no_part_knows_one_that_knows_it() -> None:
    graph = {module: _imported(module) for module in CORE.rglob("*.py")}
    assert all(imported in graph for others in graph.values() for imported in others)
    assert len(graph[CORE / "consumers" / "groups" / "serving.py"]) > 10
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    state, right = CORE / "state" / "partition.py", CORE / "peers" / "right.py"
    assert order.index(state) < order.index(right) < order.index(CORE / "broker.py")
