"""Partitions are spread over consumers that come and go, in virtual time: no message comes twice because of that."""

from __future__ import annotations

import pytest

from sim.run import Task, run_all

PROFILE = "yields"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)])
def test_partitions_move_without_a_repeat(seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all([Task(seed, "cores", "", PROFILE) for seed in seeds], chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world cores --profile {PROFILE}): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("yielded", 0) >= len(seeds) // 2
    assert states.get("an attempt to yield ended", 0) >= len(seeds) // 5
    assert states.get("granted once", 0) >= len(seeds) // 5, "at-most-once groups are among them"
