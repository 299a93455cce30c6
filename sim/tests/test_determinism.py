"""The same seed is the same run: traced or not, and in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sim.mutants.catalogue import MUTATIONS
from sim.run import Task, main, run_seed, shrink

NIGHT = (pytest.mark.slow, pytest.mark.night)
SEEDS_A_MUTANT = 60
REPOSITORY = Path(__file__).parents[2]
Runs = tuple[tuple[str, str, int], ...]

QUICK: Runs = (
    ("cores", "", 1), ("cores", "", 11), ("brokers", "", 2), ("brokers", "retention", 5), ("disks", "", 1),
    ("groups", "groups-change", 3),
)  # fmt: skip
"""World, profile and seed."""

MORE: Runs = (
    *(("cores", "", seed) for seed in (2, 3, 30, 57)),
    *(("brokers", "", seed) for seed in (10, 31, 40, 41)),
    *(("disks", "", seed) for seed in (5, 9, 11)),
)


@pytest.mark.parametrize(
    ("world", "profile", "seed"),
    [
        ("cores", "", 57),
        ("brokers", "keyed-dropped", 3),
        pytest.param("brokers", "revisions-again", 102, marks=pytest.mark.slow),
    ],
)
def test_a_seed_runs_the_same_each_time_and_when_it_is_told(world: str, profile: str, seed: int) -> None:
    first, second = (
        run_seed(seed, world=world, profile=profile, batch_count=60, detailed=True, trace=trace)
        for trace in (False, True)
    )
    assert second.story
    assert first == replace(second, story=[])
    assert first.accepted_count > 0
    assert first.digest != run_seed(seed + 1, world=world, profile=profile, batch_count=60, detailed=True).digest


@pytest.mark.parametrize("runs", [pytest.param(QUICK, marks=pytest.mark.slow), pytest.param(MORE, marks=NIGHT)])
def test_a_seed_runs_the_same_in_every_process(runs: Runs) -> None:
    assert _digests("1", runs) == _digests("2", runs)


def _digests(hash_seed: str, runs: Runs) -> str:
    script = (
        "from sim.run import run_seed\n"
        f"for world, profile, seed in {runs}:\n"
        "    print(run_seed(seed, world=world, profile=profile, batch_count=100, detailed=True).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == len(runs)
    return done.stdout


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


def test_a_mutation_is_looked_for_in_worlds_of_its_own_kind(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = MUTATIONS["refusals-stay"]
    in_its_world = Task(0, wanted.world, "refusals-stay", wanted.profile, wanted.batch_count).run()
    main(["--mutation", "refusals-stay", "--seed", "0"])
    assert f"digest {in_its_world.digest:08x}" in capsys.readouterr().out
