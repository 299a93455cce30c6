"""The exhaustive small model: it finds rules that are taken away, by a shortest trace, and nothing while they stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.sim.explore.search import Found, explore, report
from e2e.sim.explore.state import Limits
from e2e.sim.mutations import MUTATIONS, applied

TALK = Limits(
    messages=1, crashes=0, restarts=0, timeouts=1, complaints=1, timers=0, questions=1, hearers="B1", quick_disks=1
)
"""A complaint on the other side, nobody crashes, and the outcome of one transaction is not told."""

SLOW_DISKS = replace(TALK, quick_disks=0)

RESTART = replace(TALK, crashes=1, restarts=1, timeouts=0, complaints=0, questions=0, victims="A1")
"""The first master crashes and starts again."""


def _explored(limits: Limits, states_max: int, rule: str = "") -> Found:
    with applied(MUTATIONS[rule] if rule else None):
        return explore(limits, states_max)


@pytest.mark.parametrize(
    ("rule", "limits", "states_max", "steps"),
    [
        ("every-member", SLOW_DISKS, 50, 2),
        ("slave-flushes", SLOW_DISKS, 100, 4),
        ("failed-early", SLOW_DISKS, 200, 5),
        ("tail-first", TALK, 500, 11),
        ("fence-freezes-commit", TALK, 1_000, 11),
        ("unknown-outcome", TALK, 1_500, 11),
        ("table", RESTART, 2_000, 10),
        ("unbroken", RESTART, 4_000, 15),
    ],
)
def test_a_rule_that_is_taken_away_is_missed(rule: str, limits: Limits, states_max: int, steps: int) -> None:
    found = _explored(limits, states_max, rule)
    assert found.rule in MUTATIONS[rule].breaks, report(found)
    assert found.depth == steps - 1, report(found)  # breadth first: no trace is shorter
    assert sum(line[:3].strip().isdigit() for line in found.trace) == steps, report(found)
    assert not found.exhausted


def test_thousands_of_states_keep_every_promise() -> None:
    talk = _explored(TALK, 2_500)
    restart = _explored(replace(RESTART, timeouts=1, complaints=1), 2_000)
    for found in (talk, restart):
        assert not found.violation, report(found)
        assert not found.exhausted
    assert talk.states >= 2_500
    assert talk.seen["acknowledged"] > 0
    assert talk.seen["switched"] > 0
    assert talk.seen["transaction without answer"] > 0
    assert restart.seen["restarted"] > 0


def test_a_world_without_misfortune_is_exhausted() -> None:
    """Two batches go through, and there is nothing else to do."""
    calm = Limits(messages=2, crashes=0, restarts=0, timeouts=0, complaints=0, timers=0, questions=0)
    found = _explored(calm, 4_000)
    assert not found.violation, report(found)
    assert found.exhausted
    assert found.seen["told ok"] > 0
    assert "the frontier was exhausted" in report(found)


def test_a_restart_of_the_first_master_is_explored_to_the_end() -> None:
    found = _explored(RESTART, 20_000)
    assert not found.violation, report(found)
    assert found.exhausted, report(found)
    for situation in ("restarted", "switched", "tail copied"):
        assert found.seen[situation] > 0, report(found)


def test_the_same_exploration_twice_is_the_same() -> None:
    first, second = (_explored(TALK, 500) for _ in range(2))
    assert (first.states, first.transitions, first.seen) == (second.states, second.transitions, second.seen)
