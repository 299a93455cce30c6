"""The plan of a seed, the choice of victims, the lengths of gaps, and whether a fault hit: with made-up clusters."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim import Segment

from e2e.demo.faults import KINDS, PlannedFault, choose, plan
from e2e.demo.gaps import Silences, Waits
from e2e.demo.run import PACE_S, Pace
from e2e.demo.settings import read_settings
from e2e.demo.striking import Striker
from e2e.observe import ChainNow, ReaderNow, Snapshot, still_struck
from e2e.usage import SettingsError

MEMBERS = {group: (f"{group}-0", f"{group}-1") for group in ("g0", "g1", "g2")}


def segment(no: int, group: str, *, master: int = 0, state: Any = "OPEN", sealed_at_ms: int = 0) -> Segment:
    members = MEMBERS[group] if master == 0 else MEMBERS[group][::-1]
    return Segment(
        no, group, members, state, 0, None, None, None, (), False, members[1], 0, (), 1000 * no, sealed_at_ms
    )


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
        assert (*victim.brokers, victim.cut_from) == ("g0-0", other)
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


def test_a_silence_lasts_only_while_messages_wait() -> None:
    waits = Waits()
    waits.send(0, 1.0, 3)
    assert waits.acknowledge(0, 1.2) == 1.0
    waits.settle(0, 2)
    assert waits.since == {0: 1.2}, "one still waits"
    assert waits.acknowledge(0, 1.5) == 1.2
    waits.settle(0, 1)
    assert waits.since == {}
    waits.send(0, 40.0, 1)
    assert waits.acknowledge(0, 40.1) == 40.0, "nothing waited from 1.5 to 40"
    waits.settle(0, 1)
    assert waits.longest_s == pytest.approx(0.3)
    waits.send(1, 50.0, 1)
    waits.settle(1, 1)  # it failed
    assert waits.since == {}
    assert waits.longest_s == pytest.approx(0.3)


def silences(*found: tuple[float, float]) -> Silences:
    made = Silences()
    for begin, end in found:
        made.add(0, begin, end)
    return made


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(0, 1000), st.integers(1, 1000))
def test_gaps_are_those_of_a_plain_search(found: list[int], begin: int, lasts: int) -> None:
    pairs = list(pairwise(sorted(found)))
    wanted = max((end - start for start, end in pairs if end >= begin and start <= begin + lasts), default=0)
    assert silences(*pairs).gap_s(0, begin, begin + lasts) == wanted


def test_a_gap_ends_with_the_work() -> None:
    found = silences((0.9, 1.0), (1.0, 1.4), (1.4, 1.9))
    assert found.gap_s(0, 1.1, 60.0) == pytest.approx(0.5), "nothing was sent after 1.9"
    assert found.gap_s(0, 1.95, 60.0) == 0
    assert found.gap_s(0, 1.0, 1.2) == pytest.approx(0.4), "from its true begin to its true end"
    found.lasting({0: 3.0}, 7.0)
    assert found.gap_s(0, 1.1, 7.0) == pytest.approx(4.0), "it lasts"
    assert found.gap_s(0, 1.1, 7.1) == pytest.approx(4.0), "the age of the report is no silence"
    assert found.worst_gap_s([1, 0], 1.1, 7.0) == pytest.approx(4.0)
    assert found.worst_gap_s([], 1.1, 7.0) is None


@pytest.mark.parametrize(
    ("struck_at", "is_hit"),
    [(0.5, False), (1.2, True), (1.8, True), (1.95, False), (30.0, False), (50.1, True)],
)
def test_a_fault_hits_only_between_messages_that_are_under_way(struck_at: float, is_hit: bool) -> None:
    found = silences((1.0, 1.4), (1.4, 1.9)) if struck_at < 50 else silences((1.0, 1.9), (50.0, 50.7))
    assert found.was_struck(0, struck_at) is is_hit
    assert not found.was_struck(1, struck_at)


def test_a_message_that_waits_is_under_way() -> None:
    found = silences((1.0, 1.4))
    found.lasting({0: 9.0}, 9.4)
    assert found.is_under_way(0, 9.5)
    assert not found.was_struck(0, 9.5), "it may never be acknowledged"
    found.add(0, 9.0, 12.0)
    assert found.was_struck(0, 9.5)


class _Cluster:
    """Brokers that restart at once. What a fault does to them is noted."""

    plan = SimpleNamespace(
        groups=tuple(MEMBERS), brokers=[SimpleNamespace(name=n, group=g) for g, names in MEMBERS.items() for n in names]
    )

    def __init__(self, on_start: Callable[[], None]) -> None:
        self.struck: list[str] = []
        self._on_start = on_start

    async def kill(self, *brokers: str) -> None:
        self.struck += brokers

    async def start_again(self, *_brokers: str) -> None:
        self._on_start()

    async def wait_ready(self, *, deadline_s: float) -> None:
        pass


class _Observer:
    def __init__(self, now: Snapshot) -> None:
        self._now = now

    async def wait_until(self, holds: Callable[[Snapshot], bool], _what: str, _deadline_s: float) -> Snapshot:
        assert holds(self._now)
        return self._now


def _read_everywhere() -> Snapshot:
    now = snapshot()
    return replace(now, readers=tuple(replace(reader, active="consumer-1") for reader in now.readers))


@pytest.mark.parametrize("goes_on", [True, False])
async def test_faults_after_the_last_message_do_not_count(goes_on: bool) -> None:
    found, is_sending = Silences(), True
    now = time.monotonic()
    for partition in (0, 1):
        found.add(partition, now - 0.01, now)

    def started() -> None:
        nonlocal is_sending
        is_sending = goes_on
        for partition in (0, 1) if goes_on else ():
            at = time.monotonic()
            found.add(partition, at - 0.15, at)

    cluster = _Cluster(started)
    striker = Striker(
        cluster, _Observer(_read_everywhere()), found,  # type: ignore[arg-type]
        hits_min=2, time_s=60, begin=now, faults=itertools.repeat(PlannedFault("kill", "master", 0.0, 0.0)),
        kinds=("kill",), is_sending=lambda: is_sending,
    )  # fmt: skip
    await striker.run()
    assert [record.hit for record in striker.records] == ([True, True] if goes_on else [False])
    gap_ms = striker.records[-1].gap_ms
    assert gap_ms == (pytest.approx(150, abs=20) if goes_on else 0)


async def test_a_slow_machine_needs_one_fault_of_each_kind() -> None:
    found, now = Silences(), time.monotonic()
    for partition in (0, 1):
        found.add(partition, now - 0.01, now)

    def started() -> None:
        for partition in (0, 1):
            found.add(partition, now, time.monotonic())

    striker = Striker(
        _Cluster(started), _Observer(_read_everywhere()), found,  # type: ignore[arg-type]
        hits_min=20, time_s=0, begin=now, faults=itertools.repeat(PlannedFault("kill", "master", 0.0, 0.0)),
        kinds=("kill",),
    )  # fmt: skip
    await striker.run()
    assert (striker.hit_count, striker.hits_min) == (1, 1)


def test_the_pace_follows_the_machine() -> None:
    pace = Pace(4.0, 200.0, 12_000.0)
    first = pace.rate(0.0, 0, 6, 184_000, 0)
    assert first == pytest.approx(184_000 / 24)
    slow = [pace.rate(at_s, 0, 6, 100_000, 0) for at_s in (10.0, 60.0, 600.0)]
    assert slow == sorted(slow, reverse=True), "the longer a fault lasts, the slower"
    assert slow[-1] == 200.0, "but messages stay under way"
    assert pace.rate(24.0, 6, 1, 50_000, 0) == 12_000.0
    assert pace.rate(24.0, 6, 1, 50_000, 30_000) == 200.0, "the machine does not keep up"


def test_events_outlast_the_time_for_faults_even_if_no_fault_ends() -> None:
    pace, left, at_s = Pace(4.0, 200.0, 12_000.0), 184_000.0, 0.0
    while left > 0 and at_s < 1_000_000:
        left -= pace.rate(at_s, 0, 6, left, 0) * PACE_S
        at_s += PACE_S
    assert at_s > 120, "longer than the time for faults"


def test_the_environment() -> None:
    settings = read_settings({"QUICK": "1", "SEED": "12", "OUT": "elsewhere"})
    assert (settings.quick, settings.seed, settings.out, settings.hits_min) == (True, 12, Path("elsewhere"), 6)
    whole = read_settings({})
    assert (whole.quick, whole.event_limit, whole.hits_min) == (False, None, 20)
    assert whole.seed > 0
    assert not read_settings({"QUICK": "0"}).quick
    with pytest.raises(SettingsError, match="SEED"):
        read_settings({"SEED": "twelve"})
