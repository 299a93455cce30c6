"""Clusters of whole brokers in virtual time: no broken promise, the same each time, no lie of the runtime unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim.mutations import MUTATIONS
from sim.run import Task, run_seed, run_seeds, shrink

SEED_COUNT = 80
QUICK_SEED_COUNT = 4
SEEDS_A_MUTANT = 60
REPOSITORY = Path(__file__).parents[2]
Seeds = tuple[int, ...]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seeds", [range(QUICK_SEED_COUNT), pytest.param(range(QUICK_SEED_COUNT, SEED_COUNT), marks=pytest.mark.slow)]
)
def test_seeds_keep_every_promise(seeds: range) -> None:
    broken: list[str] = []
    switches = accepted = 0
    states: dict[str, int] = {}
    for result in run_seeds(seeds, world="brokers"):
        switches += result.switch_count
        accepted += result.accepted_count
        for state in result.states:
            states[state] = states.get(state, 0) + 1
        if result.violation:
            broken.append(f"seed {result.seed} (python -m sim --seed {result.seed}): {result.violation}")
        assert len(broken) < 10, "\n".join(broken)
    assert not broken, "\n".join(broken)
    # About half of what was seen when this was written: a world in which little happens proves little.
    assert accepted > 150 * len(seeds)
    assert switches > len(seeds)
    rare = {"opened over": 8, "settled": 8, "server taken": 20, "tail copied": 20, "copy listed": 4}  # of all seeds
    least = {name: count * len(seeds) // SEED_COUNT for name, count in rare.items()}
    assert {name: states.get(name, 0) for name in least if states.get(name, 0) < least[name]} == {}


@pytest.mark.parametrize("profile", ["", "keyed-dropped"])
def test_a_seed_runs_the_same_each_time_and_when_it_is_told(profile: str) -> None:
    first, second = (
        run_seed(3, world="brokers", profile=profile, batch_count=60, detailed=True, trace=trace)
        for trace in (False, True)
    )
    assert second.story
    assert first == replace(second, story=[])
    assert first.accepted_count > 0
    assert first.digest != run_seed(4, world="brokers", profile=profile, batch_count=60, detailed=True).digest


def _digests(hash_seed: str, brokers: Seeds, disks: Seeds) -> str:
    script = (
        "from sim.run import run_seed\n"
        f"print([run_seed(s, world='brokers', detailed=True).digest for s in {brokers}])\n"
        f"print([run_seed(s, world='disks', detailed=True).digest for s in {disks}])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("brokers", "disks"), [((2,), (1,)), pytest.param((10, 31, 40, 41), (9, 11), marks=pytest.mark.slow)]
)
def test_a_seed_runs_the_same_in_every_process(brokers: Seeds, disks: Seeds) -> None:
    assert _digests("1", brokers, disks) == _digests("2", brokers, disks)


def test_a_failing_seed_is_shrunk() -> None:
    mutant = MUTATIONS["chain-compare"]
    task = next(
        task
        for seed in range(SEEDS_A_MUTANT)
        if (task := Task(seed, "brokers", "chain-compare", mutant.profile, batch_count=60)).run().rule in mutant.breaks
    )
    failed = task.run()
    smaller, result = shrink(task, failed)
    assert result.rule == failed.rule
    assert len(smaller.left_out) >= failed.fault_count // 2, "most of the plan has nothing to do with it"
    assert smaller.run().rule == failed.rule
