"""Each profile is simulated only in worlds that have what it is about; `faults.profiles` says in which."""

from __future__ import annotations

import random

import pytest

from sim.cores.injector import CoreInjector
from sim.faults import PROFILES, NotSimulatedError, Options, check_world, draw, draw_for_brokers
from sim.injection import Injector
from sim.run import MUTANTS, WORLDS, Task, main
from sim.whole.injector import BrokerGroupsInjector, DisksInjector, RuntimeInjector

INJECTORS: dict[str, type[Injector]] = {
    "cores": CoreInjector,
    "brokers": RuntimeInjector,
    "disks": DisksInjector,
    "groups": BrokerGroupsInjector,
}
CORES_HAVE = (
    "part_bytes",
    "old_segments",
    "dead_letters",
    "delayed_share",
    "moves_delayed",
    "mode_consumers",
    "spread_consumers",
    "writers",
    "far_us_max",
    "grows",
)
"""Options that mean nothing in complete brokers."""

DRAWS = 60


def _drawn(profile: str, world: str) -> list[Options]:
    pick = draw if world == "cores" else draw_for_brokers
    return [pick(random.Random(seed), profile) for seed in range(DRAWS)]


def _worlds(profile: str) -> tuple[str, ...]:
    only = PROFILES[profile].only
    return only.worlds if only is not None else tuple(WORLDS)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_draws_nothing_that_its_worlds_do_not_have(profile: str) -> None:
    for world in _worlds(profile):
        for options in _drawn(profile, world):
            kinds = [kind for kind, weight in options.kinds.items() if weight]
            assert kinds
            assert not [kind for kind in kinds if not hasattr(INJECTORS[world], f"inject_{kind}")]
            assert world == "cores" or not [name for name in CORES_HAVE if getattr(options, name)]


ABOUT = {
    "balance": "balanced",
    "long-chains": "record_segments_max",
    "restored-alone": "restores_when_alone",
    "revisions-again": "revisions_again",
    "unread-kept": "retain_unread",
}
"""Profiles about an option that means nothing among bare cores."""


@pytest.mark.parametrize("profile", [name for name, profile in PROFILES.items() if profile.only is not None])
def test_a_world_that_is_refused_lacks_something_that_the_profile_always_draws(profile: str) -> None:
    for world in set(WORLDS) - set(_worlds(profile)):
        for options in _drawn(profile, "cores"):
            faults = [kind for kind, weight in options.kinds.items() if weight]
            lacks = [kind for kind in faults if not hasattr(INJECTORS[world], f"inject_{kind}")]
            if world == "cores":
                lacks += [ABOUT[profile]] if profile in ABOUT and getattr(options, ABOUT[profile]) else []
            else:
                lacks += [name for name in CORES_HAVE if getattr(options, name)]
            assert lacks, f"{profile} means something in worlds of {world}"


def test_planted_bugs_are_looked_for_in_worlds_that_have_what_they_need() -> None:
    for mutation in MUTANTS.values():
        check_world(mutation.profile, mutation.world)


def test_each_third_seed_of_whole_brokers_may_have_the_storage_adapter() -> None:
    assert all("disks" in _worlds(profile) for profile in PROFILES if "brokers" in _worlds(profile))


@pytest.mark.parametrize("which", [["--seed", "0"], ["--seeds", "3"]])
def test_the_command_refuses_a_profile_that_means_nothing_there(
    capsys: pytest.CaptureFixture[str], which: list[str]
) -> None:
    assert main(["--profile", "modes", "--world", "brokers", *which]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "sim: the profile modes is about at-most-once groups, which an administrator makes, and --world brokers does "
        "not simulate that: use --world cores\n"
    )
    assert not said.out


def test_a_sweep_of_tasks_is_told_as_well() -> None:
    with pytest.raises(NotSimulatedError, match="use --world brokers or --world disks or --world groups"):
        Task(0, "cores", profile="balance").run()


def test_without_a_world_the_command_takes_one_that_has_what_the_profile_is_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--profile", "modes", "--seed", "0"]) == 0
    assert "nothing broken" in capsys.readouterr().out
