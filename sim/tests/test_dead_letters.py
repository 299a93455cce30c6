"""Messages go to a dead-letter topic in virtual time, under all faults: each once, and in no other way."""

from __future__ import annotations

import pytest

from sim.run import Task, run_all


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 200), marks=pytest.mark.slow)])
def test_dead_letters_are_stored_once_through_all_faults(seeds: range) -> None:
    states: dict[str, int] = {}
    broken: list[str] = []
    for result in run_all([Task(seed, "cores", "", "dead-letters") for seed in seeds], chunk=2):
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (--world cores --profile dead-letters): {result.violation}")
    assert not broken, "\n".join(broken)
    assert states.get("a dead letter is stored", 0) >= len(seeds) // 2
    assert states.get("several dead letters", 0) >= len(seeds) // 4
