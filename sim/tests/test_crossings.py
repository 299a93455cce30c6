"""Worlds in which several features meet keep every promise, and the features are there."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.run import Task


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("world", "seed_count", "rare"),
    [
        (
            "cores",
            24,
            {
                "trimmed": 5,
                "group without consumers": 9,
                "group rewound": 3,
                "told of a gap": 2,
                "publication decided": 4,
                "a dead letter is stored": 2,
                "a key was parked": 2,
                "coordinator behind": 1,
            },
        ),
        ("brokers", 2, {"group without consumers": 1}),
        pytest.param(
            *("cores", 300, {"declared lost": 10, "coordinator behind": 20, "told of dropped messages": 60}),
            marks=pytest.mark.slow,
        ),
        pytest.param(*("brokers", 30, {"topic grew": 8, "coordinator rebuilt": 2}), marks=pytest.mark.slow),
    ],
)
def test_worlds_with_several_features_keep_every_promise(world: str, seed_count: int, rare: dict[str, int]) -> None:
    states: Counter[str] = Counter()
    for seed in range(seed_count):
        task = Task(seed, world, profile="crossings")
        result = task.run()
        assert not result.violation, f"{task.command}: {result.violation}"
        states.update(result.states)
    assert {name: states[name] for name in rare if states[name] < rare[name]} == {}
