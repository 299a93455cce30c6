"""No rule could be left out: each planted bug is found, within so many seeds, by a promise that it may break."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from sim.mutations import MUTATIONS
from sim.run import Task, find

SEEDS_A_MUTANT = 600
"""At the most; nearly all are found within twenty."""

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "planted-bugs.md"
FOUND_BEFORE = {
    name: int(count) - 1
    for name, count in re.findall(r"(?m)^\| `([a-z0-9-]+)` \|.*\| (\d+) \| [A-Z0-9]+ \|$", PAGE.read_text("utf-8"))
}
"""The world that showed each bug when `make mutants` ran last. It is tried first: most changes leave it as it was."""


SLOW = {
    "back-is-flagged",
    "blind-goes-back",
    "conflict-done",
    "epoch-compare",
    "first-reads",
    "folds-unsettled",
    "folds-with-table",
    "folds-with-tail",
    "gate-asks-nobody",
    "hand-over-stays",
    "keys-said-when-durable",
    "last-confirms",
    "later-stays",
    "lease-from-receipt",
    "not-registered-again",
    "numbered-is-durable",
    "older-server",
    "one-count",
    "range-parts",
    "refusals-stay",
    "reserved-by-one",
    "under-way-stays",
    "unknown-done",
}
"""If the world of the page no longer shows them, a search takes up to minutes: looked for by `make test-slow`."""


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


def test_bugs_are_planted_in_every_layer() -> None:
    layers = Counter(mutation.layer for mutation in MUTATIONS.values())
    assert set(layers) == {"core", "client", "runtime", "storage"}
    assert min(layers.values()) >= 3
