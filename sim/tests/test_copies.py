"""Disks are lost at the worst moments: what two disks have is still read, and gets two whole copies again."""

from __future__ import annotations

import pytest

from sim.run import Task, run_all

PROFILES = ("servers-lost", "stubs-copied", "torn-and-chatty")
QUICK, SLOW = 8, 200


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("profile", "seeds"),
    [
        *((profile, range(QUICK)) for profile in PROFILES),
        *(pytest.param(profile, range(QUICK, SLOW), marks=pytest.mark.slow) for profile in PROFILES),
    ],
)
def test_what_two_disks_have_outlives_one(profile: str, seeds: range) -> None:
    results = list(run_all([Task(seed, "cores", "", profile) for seed in seeds], chunk=2))
    assert len(results) == len(seeds)
    broken = [f"seed {result.seed} (--profile {profile}): {result.violation}" for result in results if result.violation]
    assert not broken, "\n".join(broken)
