"""Messages are dropped by retention in virtual time, under all faults: readers are told, and nothing else is lost."""

from __future__ import annotations

import pytest

from sim.run import Task, run_all, run_seed

WORLDS = (("cores", "retention", 150, 12), ("cores", "unread", 40, 8), ("brokers", "retention", 24, 4))
"""World, profile, and of how many seeds, slow and quick."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("world", "profile", "seeds"),
    [
        *((world, profile, range(quick)) for world, profile, _, quick in WORLDS),
        *(
            pytest.param(world, profile, range(quick, slow), marks=pytest.mark.slow)
            for world, profile, slow, quick in WORLDS
        ),
    ],
)
def test_what_is_dropped_is_said_and_nothing_else_is_lost(world: str, profile: str, seeds: range) -> None:
    tasks = [Task(seed, world, "", profile) for seed in seeds]
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all(tasks, chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world {world} --profile {profile}): {result.violation}")
    assert not broken, "\n".join(broken)
    # Half of what was seen in 150 seeds when this was written, in the rarest of the three.
    share = {"trimmed": 0.5, "trimmed open": 0.3, "trimmed sealed": 0.13, "left the record": 0.27}
    least = {name: int(part * len(seeds)) for name, part in share.items()}
    assert {name: states.get(name, 0) for name in least if states.get(name, 0) < least[name]} == {}
    assert states.get("told of dropped messages", 0) >= len(seeds) // 6


def test_a_seed_runs_the_same_each_time() -> None:
    first, second = (run_seed(5, world="brokers", profile="retention", detailed=True) for _ in range(2))
    assert first == second
