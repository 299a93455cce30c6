"""No rule could be left out: each planted bug is found, within this many seeds, by a promise that it may break."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.mutants.catalogue import MUTATIONS
from sim.mutants.rows import RowError
from sim.mutants.slow import SLOW
from sim.run import MUTANTS, Task, find, rows_of

SEEDS_A_MUTANT = 600
"""At the most; nearly all are found within twenty."""

PLACED = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "planted-bugs.md"
FOUND_BEFORE = rows_of(PAGE)
"""The world that showed each bug when `make mutants` ran last. It is tried first: most changes leave it as it was."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MUTATIONS]
)
@pytest.mark.timeout(1800)
def test_a_removed_rule_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    found = find(name, (*([FOUND_BEFORE[name]] if name in FOUND_BEFORE else []), *range(SEEDS_A_MUTANT)))
    assert found is not None, f"nothing shows that this rule is needed: {mutation.rule}"
    without = Task(found.seed, mutation.world, "", mutation.profile, mutation.batch_count).run()
    assert not without.violation, f"seed {found.seed} breaks {without.rule} with all rules, too"


def test_texts_of_planted_bugs_are_those_of_the_product() -> None:
    """Without it, a bug that the product has outgrown is noticed only when its world is run."""
    refused = []
    for name, mutation in MUTANTS.items():
        try:
            mutation.patches()
        except RowError as exc:
            refused.append(f"{name}: {exc}")
    assert not refused, "\n".join(refused)


def test_replacements_of_planted_bugs_take_the_same_arguments() -> None:
    """Without it, a call that the real function takes raises within the core, and the bug itself is never tried."""
    refused = [
        f"{name}: {attribute}{inspect.signature(value)} for {inspect.signature(real)}"
        for name, mutation in MUTANTS.items()
        for owner, attribute, value in mutation.patches()
        if callable(value) and callable(real := getattr(owner, attribute))
        if not _takes_arguments_of(value, real)
    ]
    assert not refused, "\n".join(refused)


def _takes_arguments_of(replacement: Callable[..., object], real: Callable[..., object]) -> bool:
    """Whether all calls of the real function are calls of its replacement: options may be named or not."""
    parameters = inspect.signature(real).parameters.values()
    placed = [each.name for each in parameters if each.kind in PLACED]
    named = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    optional = [each.name for each in parameters if each.kind in PLACED and each.default is not inspect.Parameter.empty]
    required = [name for name in placed if name not in optional]
    signature = inspect.signature(replacement)
    try:
        signature.bind(*placed, **dict.fromkeys(named))
        signature.bind(*required, **dict.fromkeys([*optional, *named]))
    except TypeError:
        return False
    return True


def test_slow_bugs_are_planted_bugs() -> None:
    assert not SLOW - set(MUTATIONS)


def test_bugs_are_planted_in_every_layer() -> None:
    layers = Counter(mutation.layer for mutation in MUTATIONS.values())
    assert set(layers) == {"core", "client", "runtime", "storage"}
    assert min(layers.values()) >= 3
