"""Consumers share partitions key by key in virtual time, under all faults: the order within a key is kept."""

from __future__ import annotations

import pytest

from sim.run import Task, run_all

WORLDS = (("cores", 300, 8), ("brokers", 24, 2))
"""World, and of how many seeds, slow and quick."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("world", "seeds"),
    [
        *((world, range(quick)) for world, _, quick in WORLDS),
        *(pytest.param(world, range(quick, slow), marks=pytest.mark.slow) for world, slow, quick in WORLDS),
    ],
)
def test_order_within_a_key_outlives_all_faults(world: str, seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all([Task(seed, world, "", "keyed") for seed in seeds], chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world {world} --profile keyed): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("a message failed", 0) >= len(seeds) // 2
    assert states.get("granted again", 0) >= len(seeds) // 2


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 120), marks=pytest.mark.slow)])
def test_what_people_are_told_of_parked_keys_stays_so(seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all([Task(seed, "cores", "", "keyed-parked") for seed in seeds], chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world cores --profile keyed-parked): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("a key was parked", 0) >= len(seeds) // 3
    assert states.get("a key: release", 0) >= len(seeds) // 3
    assert states.get("a key: skip", 0)


MORE = (
    ("keyed-moved", 30, 4),
    ("keyed-dropped", 60, 7),
    ("keyed-lost", 60, 4),
    ("keyed-full", 28, 2),
    ("keyed-delayed", 28, 2),
    ("keyed-frames", 28, 2),
    ("keyed-halves", 24, 2),
    ("keyed-slow", 40, 4),
    ("keyed-late", 30, 3),
    ("keyed-further", 40, 4),
    ("keyed-begins", 40, 4),
    ("keyed-words", 40, 4),
)
"""Profile, and of how many seeds, slow and quick."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("profile", "seeds"),
    [
        *((profile, range(quick)) for profile, _, quick in MORE),
        *(pytest.param(profile, range(quick, slow), marks=pytest.mark.slow) for profile, slow, quick in MORE),
    ],
)
def test_lists_outlive_moves_losses_and_small_limits(profile: str, seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all([Task(seed, "cores", "", profile) for seed in seeds], chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world cores --profile {profile}): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("set aside", 0) >= len(seeds) // 3
    assert states.get("attempts counted", 0) >= len(seeds) // 4


RESTORED = (("cores", 2300, 2500, 12), ("brokers", 0, 16, 2))
"""World, the first seed and the one behind the last, and how many of them are quick."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("world", "seeds"),
    [
        *((world, range(first, first + quick)) for world, first, _, quick in RESTORED),
        *(pytest.param(world, range(a + quick, b), marks=pytest.mark.slow) for world, a, b, quick in RESTORED),
    ],
)
def test_groups_outlive_a_coordinator_that_lost_them(world: str, seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    tasks = [Task(seed, world, "", "keyed-restored") for seed in seeds]
    for result in run_all(tasks, chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world {world} --profile keyed-restored): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("set aside", 0) >= len(seeds) // 3
    assert states.get("coordinator behind", 0) >= len(seeds) // 6
