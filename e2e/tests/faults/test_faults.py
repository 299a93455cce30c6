"""The catalogue and its page have the same faults; faults heal; which segments count as having two copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from seriatim import Segment
from seriatim_local import FaultRecord

from e2e.faults.case import ended_by_themselves
from e2e.faults.catalogue import QUICK, all_faults, by_name
from e2e.faults.kinds.fault import Fault, NotStruckError, Scene, injected, lacks_copies
from e2e.faults.kinds.loss import lost_with
from e2e.faults.kinds.network import ends_of
from e2e.faults.run import QUICK_FEATURES, chosen, has_features, place_of
from e2e.faults.schedule import WORKLOADS
from e2e.faults.settings import Settings
from e2e.faults.traffic.client import due_of, marker_of, number_of, value_of
from e2e.observe import ChainNow, ReaderNow, Snapshot
from e2e.usage import SettingsError

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "faults.md"


def test_names_are_unique_and_the_quick_choice_is_among_them() -> None:
    names = [fault.name for fault in all_faults()]
    assert len(names) == len(set(names))
    assert set(QUICK) <= set(names)
    assert all(make().name == name for name, make in by_name().items())


def test_every_fault_goes_with_loads_that_exist() -> None:
    known = {load.name for load in WORKLOADS}
    assert all(set(fault.workloads) <= known for fault in all_faults())


def test_every_fault_is_documented() -> None:
    page = PAGE.read_text()
    missing = [fault.name for fault in all_faults() if f"`{fault.name}`" not in page]
    assert not missing, f"not in {PAGE}: {missing}"


def choice(*, quick: bool = False, only: tuple[str, ...] = ()) -> list[str]:
    settings = Settings(quick=quick, minutes=None, seed=1, only=only, out=Path("out"))
    planned, left_out = chosen(settings)
    return [fault.name for fault in planned] + list(left_out)


def test_what_is_chosen() -> None:
    assert sorted(choice()) == sorted(fault.name for fault in all_faults())
    assert sorted(choice(quick=True)) == sorted(QUICK)
    assert choice(only=("kill both", "freeze both")) == ["kill both", "freeze both"]
    (with_two, with_three) = (chosen(Settings(False, None, 1, ("slave-other",), Path(), members=n)) for n in (2, 3))
    assert (list(with_two[1]), with_three[1]) == (["cut slave-other slave"], {})
    with pytest.raises(SettingsError):
        choice(only=("no such fault",))


def test_a_load_is_chosen_for_the_faults_that_go_with_it() -> None:
    settings = Settings(quick=False, minutes=None, seed=1, only=("kill", "hung"), out=Path("out"), load="slow")
    planned, left_out = chosen(settings)
    assert {fault.workloads for fault in planned} == {("slow",)}
    assert "kill both" in {fault.name for fault in planned}
    assert {name for name, why in left_out.items() if "load slow" in why} == {
        "hung disk of master",
        "hung disk of slave",
    }
    with pytest.raises(SettingsError):
        chosen(replace(settings, load="heavy"))


def test_a_third_of_the_cases_of_a_quick_run_has_features() -> None:
    whole = Settings(quick=False, minutes=None, seed=1, only=(), out=Path("out"), features=True)
    quick = replace(whole, quick=True)
    numbers = range(1, len(QUICK) + 1)
    assert all(has_features(whole, number) for number in numbers)
    assert all(has_features(replace(quick, only=("kill",)), number) for number in numbers)
    assert not any(has_features(replace(quick, features=False), number) for number in numbers)
    drawn = [{n for n in numbers if has_features(replace(quick, seed=seed), n)} for seed in range(QUICK_FEATURES)]
    assert all(len(cases) == len(QUICK) // QUICK_FEATURES for cases in drawn)
    assert set.union(*drawn) == set(numbers)


def test_links_are_cut_in_namespaces_where_there_can_be_some() -> None:
    cut, kill = (by_name()[name]() for name in ("cut master-slave", "kill master"))
    auto = Settings(quick=False, minutes=None, seed=1, only=(), out=Path("out"))
    assert (place_of(cut, auto, ""), place_of(kill, auto, "")) == ("namespaces", "proxy")
    assert place_of(cut, auto, "not root") == "proxy"
    assert place_of(cut, replace(auto, network="proxy"), "") == "proxy"
    assert place_of(kill, replace(auto, network="namespaces"), "") == "namespaces"


class Recorded(Fault):
    """Writes down what happens to it, and fails on request."""

    name = "recorded"

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.deeds: list[str] = []

    async def inject(self, scene: Scene) -> None:
        self.deeds.append("inject")
        if self.fails:
            raise NotStruckError("nothing was struck")

    async def heal(self, scene: Scene) -> None:
        self.deeds.append("heal")


NOWHERE = cast("Scene", None)


async def test_a_fault_heals_when_its_block_ends_however_it_ends() -> None:
    fault = Recorded(fails=False)
    with pytest.raises(KeyError):
        async with injected(fault, NOWHERE):
            raise KeyError
    assert fault.deeds == ["inject", "heal"]


async def test_a_fault_heals_also_if_it_was_injected_half_way() -> None:
    fault = Recorded(fails=True)
    with pytest.raises(NotStruckError):
        async with injected(fault, NOWHERE):
            raise AssertionError("never reached")
    assert fault.deeds == ["inject", "heal"]


def segment(no: int, state: Any, members: tuple[str, ...], eligible: tuple[str, ...]) -> Segment:
    length = None if state in ("OPEN", "UNSETTLED") else 10
    return Segment(no, "g0", members, state, 0, length, None, None, (), False, "a", 0, eligible, 1, 0)


def lacking(*segments: Segment, count: int = 2) -> str:
    return lacks_copies(Snapshot((ChainNow(0, 1, segments),)), count)


def test_two_copies_are_two_members_that_may_serve_in_each_segment() -> None:
    both = ("a", "b")
    whole = segment(2, "OPEN", both, both)
    assert lacking(segment(1, "SEALED", both, both), whole) == ""
    assert "can be served by" in lacking(segment(1, "SEALED", both, ("a",)), whole)
    assert "has the members" in lacking(segment(1, "SEALED", ("a",), ("a",)), whole)
    assert lacking(segment(1, "UNSETTLED", both, both), whole) == "a segment is not settled"
    assert "accepts nothing" in lacking(segment(1, "SEALED", both, both))
    assert lacking(segment(1, "LOST", ("a",), ()), whole) == "", "of what is declared lost there is no copy"
    assert "has the members" in lacking(segment(1, "SEALED", both, both), whole, count=3)
    assert lacks_copies(Snapshot(), 2) != "", "a cluster that is not described has no copies"


def test_lost_with_both_disks_is_what_nobody_else_has() -> None:
    both, others = ("g0-1", "g0-0"), ("g1-0", "g1-1")
    segments = (
        segment(1, "SEALED", both, both),
        segment(2, "SEALED", others, others),
        segment(3, "SEALED", ("g0-0", "g1-0"), others),
        segment(4, "LOST", both, ()),
        segment(5, "UNSETTLED", both, both),
        segment(6, "OPEN", both, both),
    )
    now = Snapshot((ChainNow(0, 1, (segment(1, "OPEN", others, others),)), ChainNow(1, 1, segments)))
    assert lost_with(now, ("g0-0", "g0-1")) == {(1, 1): "SEALED", (1, 5): "UNSETTLED"}


def test_a_group_that_has_yet_to_cross_has_not_read_everything() -> None:
    both = ("a", "b")
    chain = ChainNow(0, 1, (segment(1, "SEALED", both, both), segment(2, "OPEN", both, both)))

    def drained(no: int, position: int, end: int, *, known: bool = True) -> bool:
        return Snapshot((chain,), (ReaderNow(0, no, "a", "c", position, end, known),)).drained()

    assert drained(2, 30, 30)
    assert not drained(2, 29, 30)
    assert not drained(2, 30, 30, known=False)
    assert not drained(1, 0, 0), "the server of an old segment does not know where the partition ends"


def test_a_broker_that_ends_unasked_is_a_problem() -> None:
    deeds = [
        FaultRecord("kill", "g0-0", "inject"),
        FaultRecord("end", "g0-1", "inject", details="exited with status 70"),
        FaultRecord("kill", "g0-1", "heal"),
    ]
    assert ended_by_themselves(deeds) == ["g0-1 ended by itself: exited with status 70"]


def test_ends_of_a_cut_follow_the_open_segment() -> None:
    open_segment = segment(1, "OPEN", ("g0-1", "g0-0"), ())
    assert ends_of(open_segment, "master", ("g0", "g1")) == ("g0-1",)
    assert ends_of(open_segment, "slave", ("g0", "g1")) == ("g0-0",)
    three = segment(1, "OPEN", ("g0-1", "g0-2", "g0-0"), ())
    assert [ends_of(three, end, ()) for end in ("slave", "other slave")] == [("g0-0",), ("g0-2",)]
    assert ends_of(open_segment, "others", ("g0", "g1", "g2")) == ("g1", "g2")
    assert ends_of(open_segment, "coordinator", ("g0",)) == ("coordinator",)


def test_a_message_names_its_number_and_its_topic() -> None:
    value = value_of(42, "case-7", 60)
    assert number_of(value) == 42
    assert marker_of("case-7") in value
    assert marker_of("case-7") not in value_of(42, "case-71", 60)
    assert len(value) == 60
    assert (due_of(value), due_of(value_of(42, "case-7", 60, 17))) == (0, 17)
