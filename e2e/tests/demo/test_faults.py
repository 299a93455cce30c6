"""The plan of a seed, the choice of victims, the lengths of gaps, and whether a fault hit: with made-up clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.demo.faults import KINDS, PlannedFault, choose, cut_ends, plan
from e2e.demo.gaps import AckTimes
from e2e.demo.settings import SettingsError, read_settings
from e2e.observe import ChainNow, ReaderNow, SegmentNow, Snapshot, still_struck

MEMBERS = {group: (f"{group}-0", f"{group}-1") for group in ("g0", "g1", "g2")}


def segment(no: int, group: str, *, master: int = 0, state: str = "OPEN", sealed_at_ms: int = 0) -> SegmentNow:
    members = MEMBERS[group] if master == 0 else MEMBERS[group][::-1]
    return SegmentNow(no, group, members, state, 0, None, members[1], 1000 * no, sealed_at_ms)


def snapshot() -> Snapshot:
    """Partition 0 is on g0 (master g0-0), partition 1 on g1 (master g1-1); g2-0 serves a consumer of partition 1."""
    return Snapshot(
        chains=(
            ChainNow(0, 1, (segment(1, "g0"),)),
            ChainNow(1, 3, (segment(1, "g2", state="SEALED", sealed_at_ms=1500), segment(2, "g1", master=1))),
        ),
        readers=(
            ReaderNow(0, 1, "g0-1", "", 5, 5, True),
            ReaderNow(1, 1, "g2-0", "consumer-1", 5, 9, True),
        ),
    )


def test_a_seed_gives_one_plan_and_each_kind_early() -> None:
    first, again = list(islice(plan(7), 40)), list(islice(plan(7), 40))
    assert first == again
    assert first != list(islice(plan(8), 40))
    assert {fault.kind for fault in first[: len(KINDS)]} == set(KINDS)
    ends = Counter(fault.cut_from for fault in first if fault.kind == "cut")
    assert set(ends) == {"peer", "all", "clients"}


@given(st.integers(0, 10_000))
def test_what_is_frozen_or_cut_stays_so_long_enough_to_be_noticed(seed: int) -> None:
    for fault in islice(plan(seed), 12):
        if fault.kind in ("freeze", "cut"):
            assert 1.0 <= fault.hold_s <= 2.0
        if fault.kind == "kill both":
            assert fault.role == "master"


@pytest.mark.parametrize("pick", [0.0, 0.3, 0.5, 0.99])
def test_a_victim_holds_a_head_or_serves_a_consumer(pick: float) -> None:
    now = snapshot()
    chosen = choose(PlannedFault("kill", "master", 1, pick), now, MEMBERS)
    assert chosen is not None
    assert chosen.brokers[0] in ("g0-0", "g1-1")
    assert chosen.role == "master"
    server = choose(PlannedFault("freeze", "server", 1, pick), now, MEMBERS)
    assert server is not None
    assert server.brokers == ("g2-0",), "g0-1 serves no consumer"
    assert server.role == "server"


def test_both_members_of_a_group_that_holds_a_head() -> None:
    both = choose(PlannedFault("kill both", "master", 1, 0.9), snapshot(), MEMBERS)
    assert both is not None
    assert both.brokers == MEMBERS["g1"]


def test_without_a_consumer_a_master_is_struck_instead_and_without_chains_nobody() -> None:
    idle = replace(snapshot(), readers=())
    victim = choose(PlannedFault("kill", "server", 1, 0.0), idle, MEMBERS)
    assert victim is not None
    assert victim.role == "master"
    assert choose(PlannedFault("kill", "master", 1, 0.0), Snapshot(), MEMBERS) is None


def test_the_ends_of_a_cut() -> None:
    for end, other in (("peer", "g0-1"), ("all", "all"), ("clients", "clients")):
        fault = PlannedFault("cut", "master", 1, 0.0, end)  # type: ignore[arg-type]
        victim = choose(fault, snapshot(), MEMBERS)
        assert victim is not None
        assert cut_ends(fault, victim, MEMBERS) == ("g0-0", other)
        assert victim.name == f"g0-0 from {other}"


def test_partitions_are_struck_through_any_member_of_their_open_segment() -> None:
    assert snapshot().partitions_on(["g1-0"]) == (1,)
    assert snapshot().partitions_on(["g2-0"]) == (), "it holds a sealed segment only"


def test_a_head_that_had_moved_on_before_the_blow_was_not_hit() -> None:
    before = ChainNow(0, 1, (segment(1, "g0"),))
    gone = ChainNow(0, 2, (segment(1, "g0", state="SEALED", sealed_at_ms=900), segment(2, "g1")))
    struck = ChainNow(0, 2, (segment(1, "g0", state="SEALED", sealed_at_ms=1100), segment(2, "g1")))
    assert not still_struck(before, gone, struck_at_ms=1000)
    assert still_struck(before, struck, struck_at_ms=1000)
    assert still_struck(before, before, struck_at_ms=1000)
    assert not still_struck(before, None, struck_at_ms=1000)


def test_a_cluster_with_an_unsettled_segment_is_not_settled() -> None:
    now = snapshot()
    assert now.settled()
    unsettled = ChainNow(0, 2, (segment(1, "g0", state="UNSETTLED"), segment(2, "g1")))
    assert not replace(now, chains=(unsettled, now.chains[1])).settled()
    assert not Snapshot().settled()


def test_drained_needs_the_servers_word() -> None:
    now = snapshot()
    assert not now.drained()
    behind = tuple(replace(reader, position=reader.end_position) for reader in now.readers)
    assert not replace(now, readers=behind).drained(), "the group of partition 1 has yet to cross to segment 2"
    level = (behind[0], replace(behind[1], segment=2))
    assert replace(now, readers=level).drained()
    assert not replace(now, readers=(replace(level[0], known=False), level[1])).drained()


def acks(*times: float) -> AckTimes:
    found = AckTimes()
    for at in times:
        found.add(0, at)
    return found


def test_a_gap_counts_from_the_last_acknowledgement_before_the_fault() -> None:
    times = acks(0.9, 1.0, 1.4, 1.45, 1.9, 2.5)
    assert times.gap_s(0, 1.1, 1.8) == pytest.approx(0.45), "it began before the end of the window"
    assert times.gap_s(0, 1.1, 1.42) == pytest.approx(0.4)
    assert times.gap_s(0, 1.1, 3.0) == pytest.approx(0.6)


def test_a_gap_that_never_ends_lasts_until_the_end() -> None:
    assert acks(1.0).gap_s(0, 1.1, 5.0) == pytest.approx(4.0)
    assert AckTimes().gap_s(0, 1.0, 5.0) == pytest.approx(4.0)
    assert acks(6.0).gap_s(0, 1.0, 5.0) == pytest.approx(5.0), "nothing before, so it began with the fault"
    assert acks(1.0).worst_gap_s([], 1.0, 2.0) is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(0, 1000), st.integers(1, 1000))
def test_gaps_are_those_of_a_plain_search(found: list[int], begin: int, lasts: int) -> None:
    end = begin + lasts
    times = sorted(found)
    wanted = 0.0
    edges = [*times, max(end, times[-1])]
    if times[0] > begin:
        edges = [begin, *edges]
    for before, after in pairwise(edges):
        if before < end and after > begin:
            wanted = max(wanted, after - before)
    assert acks(*map(float, times)).gap_s(0, begin, end) == pytest.approx(wanted)


def test_the_environment() -> None:
    settings = read_settings({"QUICK": "1", "SEED": "12", "OUT": "elsewhere"})
    assert (settings.quick, settings.seed, settings.out, settings.hits_min) == (True, 12, Path("elsewhere"), 6)
    whole = read_settings({})
    assert (whole.quick, whole.event_limit, whole.hits_min) == (False, None, 20)
    assert whole.seed > 0
    assert not read_settings({"QUICK": "0"}).quick
    with pytest.raises(SettingsError, match="SEED"):
        read_settings({"SEED": "twelve"})
