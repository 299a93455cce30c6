"""How often the controller scans all chains for segments that lack copies."""

from __future__ import annotations

from seriatim_api.ids import MemberId
from seriatim_broker.runtime.controller.heal_pace import HealPace, Lost

A, B, C = (MemberId(f"g0-{number}", f"disk-{number}") for number in range(3))
ALL = frozenset({A, B, C})
LOST = Lost(registered=ALL)


def scans(pace: HealPace, until_s: int, took_us: int = 0, *, wanted: int = 0, grows: bool = True) -> int:
    """How many scans begin within this time, if nothing changes."""
    now_us = count = 0
    while now_us < until_s * 1_000_000:
        if pace.is_due(now_us, LOST, ALL, grows=grows):
            count += 1
            pace.note(now_us, now_us + took_us, LOST, ALL, wanted)
            now_us += took_us
        now_us += 100_000
    return count


def test_fruitless_scans_wait_longer_each_time() -> None:
    assert scans(HealPace(), 600, wanted=3, grows=False) < 50, "0.5 s, 1 s, 2 s, then 15 s"
    assert scans(HealPace(), 600, 2_000_000, wanted=3) < 20, "a scan of 2 s comes every 40 s"


def test_scans_with_no_result_come_on_a_timer_only_in_groups_that_grow() -> None:
    assert scans(HealPace(), 600, grows=False) == 1
    assert scans(HealPace(), 600) == 40
    assert scans(HealPace(), 600, 2_000_000) == 15


def test_progress_and_changes_of_members_shorten_the_pause() -> None:
    pace = HealPace()
    for wanted in (9, 9, 9, 9, 8):
        pace.note(0, 0, LOST, ALL, wanted)
    assert pace.pause_us(0) == 500_000, "one was copied"
    assert not pace.is_due(0, LOST, ALL, grows=True)
    assert pace.is_due(0, LOST, ALL - {A}, grows=False), "a member went or came"
    assert pace.is_due(0, Lost(frozenset({A}), ALL), ALL, grows=False), "a disk is lost"
    pace.note(0, 0, LOST, ALL, 0)
    assert not pace.is_due(0, LOST, ALL - {A}, grows=False), "nothing lacks a copy in groups of two"
