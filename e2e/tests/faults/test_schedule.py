"""Schedules follow from the seed alone, and a part of one can be replayed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from e2e.faults.run import cases
from e2e.faults.schedule import WORKLOADS, Case, Planned, case, plan
from e2e.faults.settings import Settings, read_settings
from e2e.usage import SettingsError

FAULTS = [Planned("kill"), Planned("freeze"), Planned("cut", ("ordered", "late"))]


def first(seed: int, count: int) -> list[Case]:
    return list(islice(plan(seed, FAULTS), count))


def test_the_same_seed_gives_the_same_cases_and_another_seed_others() -> None:
    assert first(7, 30) == first(7, 30)
    assert first(7, 30) != first(8, 30)


def test_each_round_has_each_fault_once_and_in_another_order() -> None:
    rounds = [first(7, 30)[at : at + 3] for at in range(0, 30, 3)]
    assert all({found.fault for found in each} == {"kill", "freeze", "cut"} for each in rounds)
    assert [found.repetition for each in rounds for found in each] == [number for number in range(10) for _ in range(3)]
    assert len({tuple(found.fault for found in each) for each in rounds}) > 1


def test_faults_that_need_the_same_cluster_come_after_each_other() -> None:
    mixed = [Planned(f"{place}-{number}", (), place) for number in range(5) for place in ("proxy", "namespaces")]
    order = [found.fault.split("-")[0] for found in islice(plan(7, mixed), 30)]
    assert order == ["namespaces"] * 5 + ["proxy"] * 10 + ["namespaces"] * 10 + ["proxy"] * 5


def test_a_fault_replayed_alone_gets_the_same_load_and_the_same_dice() -> None:
    whole = [found for found in first(7, 30) if found.fault == "kill"]
    alone = list(islice(plan(7, FAULTS[:1]), 10))
    for there, here in zip(whole, alone, strict=True):
        assert (there.workload, there.hold_s, there.seed) == (here.workload, here.hold_s, here.seed)
        assert there.dice().random() == here.dice().random()


def test_a_fault_comes_with_all_its_loads_and_with_no_other() -> None:
    loads = {name: {found.workload.name for found in first(7, 60) if found.fault == name} for name in ("kill", "cut")}
    assert loads["kill"] == {load.name for load in WORKLOADS}
    assert loads["cut"] == {"ordered", "late"}


def test_dice_differ_from_repetition_to_repetition() -> None:
    rolls = {case(7, FAULTS[0], repetition).dice().random() for repetition in range(10)}
    assert len(rolls) == 10


def settings(minutes: float | None) -> Settings:
    return Settings(quick=False, minutes=minutes, seed=7, only=(), out=Path("out"))


def test_without_minutes_each_fault_comes_once() -> None:
    assert len(list(cases(settings(None), FAULTS, lambda: 0.0))) == 3


def test_no_case_begins_after_the_minutes_are_over() -> None:
    clock = iter([100.0, *(100.0 + 7.0 * number for number in range(100))])
    found = list(cases(settings(1.0), FAULTS, lambda: next(clock)))
    assert len(found) == 9, "the ninth begins after 56 seconds, the tenth would after 63"


def test_settings_are_read_from_the_environment() -> None:
    found = read_settings({"QUICK": "1", "SEED": "5", "MINUTES": "2.5", "ONLY": "kill, cut ", "OUT": "/tmp/x"})
    assert found == Settings(quick=True, minutes=2.5, seed=5, only=("kill", "cut"), out=Path("/tmp/x"))
    assert read_settings({}).seed > 0
    assert not read_settings({"QUICK": "0"}).quick
    assert read_settings({"NETWORK": ""}).network == "auto"
    assert read_settings({"NETWORK": "proxy"}).network == "proxy"


@pytest.mark.parametrize(
    "environment", [{"SEED": "x"}, {"MINUTES": "x"}, {"MINUTES": "0"}, {"MINUTES": "inf"}, {"NETWORK": "vlan"}]
)
def test_settings_that_mean_nothing_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        read_settings(environment)
