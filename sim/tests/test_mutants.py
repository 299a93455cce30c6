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
    "above-floors",
    "answered-anew",
    "asks-members",
    "compares-floors",
    "conflict-done",
    "dismissed-run",
    "eligible-at-once",
    "epochs-grow",
    "first-reads",
    "folds-unsettled",
    "folds-with-table",
    "folds-with-tail",
    "gate-asks-nobody",
    "hand-over-stays",
    "keys-said-when-durable",
    "last-confirms",
    "lease-from-receipt",
    "leaves-when-listed",
    "leaves-when-one-stays",
    "no-second-look",
    "not-registered-again",
    "old-certificate",
    "range-end-by-any",
    "old-pages-stay",
    "older-chain",
    "one-count",
    "operation-once",
    "own-death",
    "record-if-unknown",
    "numbered-is-durable",
    "older-server",
    "reserved-by-one",
    "rest-is-enough",
    "says-what-is-lost",
    "serve-lease",
    "storage-cut-in-memory",
    "storage-damage-is-end",
    "storage-flushes-again",
    "tails-forgotten",
    "unknown-done",
    "follows-as-staged",
    "alone-tells-lists",
    "followers-keep",
    "under-way-stays",
    "unreachable-is-gone",
}
"""They take about 50 worlds, or large ones, some ten seconds or minutes each: looked for by `make test-slow`."""


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
