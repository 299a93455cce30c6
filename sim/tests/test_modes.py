"""Shared and at-most-once groups in virtual time, under all faults but a rewind: nothing is left out, nothing twice."""

from __future__ import annotations

import pytest

from sim.run import Task, run_all

PROFILES = (("modes", 200, 10), ("modes-blind", 100, 6))
"""Profile, and of how many seeds, slow and quick."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("profile", "seeds"),
    [
        *((profile, range(quick)) for profile, _, quick in PROFILES),
        *(pytest.param(profile, range(quick, slow), marks=pytest.mark.slow) for profile, slow, quick in PROFILES),
    ],
)
def test_shared_messages_are_worked_on_and_at_most_once_ones_never_come_twice(profile: str, seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all([Task(seed, "cores", "", profile) for seed in seeds], chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world cores --profile {profile}): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("granted again", 0) >= len(seeds) // 2
    assert states.get("granted once", 0) >= len(seeds) // 2
    assert states.get("a message was lost", 0) >= len(seeds) // 3
