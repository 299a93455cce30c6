"""Worlds that `.ci/run` simulates for a change: which they are, and that they keep every promise."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sim import chosen
from sim.chosen import FIXED, RUNS, SEEDS_MAX, choose, of_this_checkout
from sim.faults import PROFILES
from sim.run import WORLDS, run_all

CHOICE = of_this_checkout()
EVERYTHING = choose(1, None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pair", CHOICE.pairs, ids=lambda pair: f"{pair[0] or 'drawn'}-{pair[1]}")
def test_worlds_of_this_change_keep_every_promise(pair: tuple[str, str]) -> None:
    tasks = list(CHOICE.tasks(pair))
    results = zip(tasks, run_all(tasks, processes=1), strict=True)
    broken = [f"{task.command}: {result.violation}" for task, result in results if result.violation]
    assert not broken, "\n".join(broken)


def test_nothing_is_left_out_if_nothing_is_known() -> None:
    assert {profile for profile, _ in EVERYTHING.pairs} == {"", *PROFILES}
    assert {world for _, world in EVERYTHING.pairs} == set(WORLDS)
    assert choose(1, ["docs/x.md", "broker/src/seriatim_broker/core/x.py"]).pairs == EVERYTHING.pairs


def test_a_change_elsewhere_has_worlds_as_they_are_drawn() -> None:
    choice = choose(1, ["operator/src/x.py", "README.md"])
    assert choice.pairs == tuple(("", world) for world in WORLDS)
    assert [len(list(choice.tasks(pair))) for pair in choice.pairs] == [min(SEEDS_MAX, RUNS[w]) for w in WORLDS]


def test_a_profile_is_chosen_by_the_module_that_draws_it() -> None:
    choice = choose(1, ["sim/faults/dead_letters.py"])
    profiles = {profile for profile, _ in choice.pairs}
    assert profiles >= {"", "dead-letters", "letters-lost"}
    assert not profiles & {"keyed", "retention", "anything"}
    storage = choose(1, ["broker/src/seriatim_broker/adapters/rocks/x.py"])
    assert {world for profile, world in storage.pairs if profile} == {"disks"}


def test_paths_of_the_table_are_there() -> None:
    assert [path for path, *_ in chosen.CONCERNS if not (chosen.ROOT / path).exists()] == []


def test_each_profile_has_seeds_of_this_commit_unless_a_fault_is_known() -> None:
    choice = choose(7, None)
    firsts = {pair[0]: next(choice.tasks(pair)).seed for pair in choice.pairs}
    assert {profile for profile, first in firsts.items() if first == 0} == set(FIXED)
    assert {first for profile, first in firsts.items() if profile not in FIXED} == {7}


def test_without_git_everything_is_simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SIM_FIRST", "SIM_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chosen, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert of_this_checkout() == choose(0, None)

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    assert of_this_checkout() == choose(0, None)


def test_on_the_main_branch_all_changes_of_a_day_count(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"rev-parse": "abc", "merge-base": "abc", "show": "1000000", "rev-list": "old", "diff": "broker/src/x.py"}
    asked: list[tuple[str, ...]] = []

    def git(*arguments: str) -> str | None:
        asked.append(arguments)
        return said[arguments[0]]

    for name in ("SIM_FIRST", "SIM_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chosen, "_git", git)
    assert of_this_checkout() == choose(0xABC, ["broker/src/x.py"])
    assert ("rev-list", "-1", "--before=913600", "HEAD") in asked
    assert ("diff", "--name-only", "old") in asked
    said["rev-list"] = ""
    assert of_this_checkout() == choose(0xABC, None)
