"""The exhaustive small model: it finds each removed rule by a shortest trace, and nothing if no rule is removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.explore.checks import Checks
from sim.explore.model import Model
from sim.explore.mutants import (
    LOST_WRITE,
    MUTANTS,
    QUIET,
    RACE,
    RESTART,
    TALK,
    UNSETTLED,
    UNSETTLED_ACKNOWLEDGED,
    hunt,
    table,
)
from sim.explore.search import Found, explore, report
from sim.explore.state import Draft, Limits, State
from sim.mutants.catalogue import MUTATIONS, applied


def _explored(limits: Limits, states_max: int, rule: str = "") -> Found:
    with applied(MUTATIONS[rule] if rule else None):
        return explore(limits, states_max)


# ---- rules that are taken away ---------------------------------------------------------------------------

STEPS = {
    "every-member": 2,
    "slave-flushes": 4,
    "failed-early": 5,
    "tail-copy": 10,
    "table": 10,
    "known-commit": 10,
    "tail-first": 11,
    "fence-freezes-commit": 11,
    "unknown-outcome": 11,
    "certificate": 11,
    "settle-copy": 10,
    "settle-tail": 10,
    "mark-inherited": 15,
    "attempt-id": 14,
    "start-fence": 15,
    "unbroken": 15,
    "own-commit": 16,
}


SLOW = ("certificate", "attempt-id", "start-fence", "own-commit", "unbroken")
"""Half of the states of all. Worlds show these bugs too (`test_mutants`)."""

QUICK_FIRST = [pytest.param(rule, marks=pytest.mark.slow) if rule in SLOW else rule for rule in MUTANTS]


@pytest.mark.parametrize("rule", QUICK_FIRST)
def test_a_rule_that_is_taken_away_is_missed(rule: str) -> None:
    found = hunt(rule)
    assert found.rule in MUTATIONS[rule].breaks, report(found)
    assert found.depth == STEPS[rule] - 1, report(found)  # breadth first: no trace is shorter
    assert sum(line[:3].strip().isdigit() for line in found.trace) == STEPS[rule], report(found)
    assert not found.exhausted


def test_the_table_says_what_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.explore.mutants.MUTANTS", {"every-member": (QUIET, 10), "attempt-id": (QUIET, 10)})
    found, missed = (line.split() for line in table()[1:3])
    assert found[:3] == ["every-member", "I12", "1"]
    assert missed[:3] == ["attempt-id", "-", "-"]


# ---- rules that stand ------------------------------------------------------------------------------------


def test_thousands_of_states_keep_every_promise() -> None:
    talk = _explored(TALK, 2_500)
    race = _explored(replace(RACE, timeouts=1), 2_000)
    for found in (talk, race):
        assert not found.violation, report(found)
        assert not found.exhausted
        assert "bound reached: not exhausted" in report(found)
    assert talk.states >= 2_500
    assert talk.seen["acknowledged"] > 0
    assert talk.seen["switched"] > 0
    assert talk.seen["transaction without answer"] > 0
    assert race.seen["switched"] > 0


def test_a_world_without_misfortune_is_exhausted() -> None:
    """Two batches go through, and there is nothing else to do."""
    found = _explored(replace(QUIET, messages=2, quick_disks=0), 4_000)
    assert not found.violation, report(found)
    assert found.exhausted
    assert found.seen["reported ok"] > 0
    assert "the frontier was exhausted" in report(found)
    (end,) = found.ends
    assert [(p.segment, p.base) for p in end.promises] == [(1, 0), (1, 1)]


def test_a_restart_of_the_first_master_is_explored_to_the_end() -> None:
    found = _explored(RESTART, 20_000)
    assert not found.violation, report(found)
    assert found.exhausted, report(found)
    for situation in ("restarted", "switched", "tail copied"):
        assert found.seen[situation] > 0, report(found)
    sealed = {end.chain[0][3] for end in found.ends}
    assert sealed == {0, 1}  # the message came too late, or was sealed in


@pytest.mark.parametrize("limits", [UNSETTLED, UNSETTLED_ACKNOWLEDGED])
def test_a_segment_that_nobody_answered_for_is_settled_in_every_way(limits: Limits) -> None:
    found = _explored(limits, 20_000)
    assert not found.violation, report(found)
    assert found.exhausted, report(found)
    for situation in ("opened over", "settled", "tail copied"):
        assert found.seen[situation] > 0, report(found)
    # One of the two comes back, so it never stays unsettled; open if the certificate was not there when asked for.
    assert {end.chain[0][2] for end in found.ends} == {"open", "sealed"}


def test_a_prelude_must_be_possible() -> None:
    with pytest.raises(ValueError, match="no crash at A1"):
        _explored(replace(QUIET, prelude="crash:A1"), 10)


def test_the_same_exploration_twice_is_the_same() -> None:
    first, second = (_explored(TALK, 500) for _ in range(2))
    assert (first.states, first.transitions, first.seen) == (second.states, second.transitions, second.seen)


# ---- reductions ------------------------------------------------------------------------------------------


def _reached(model: Model, reducing: bool) -> set[State]:
    model.reducing = False
    start = model.start()
    model.reducing = reducing
    known, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        for action in model.actions(state):
            draft = Draft(state)
            model.take(draft, action)
            after = draft.done()
            if after not in known:
                known.add(after)
                waiting.append(after)
    return known


SMALL_WORLDS = [
    replace(QUIET, messages=3, quick_disks=0),
    pytest.param(RESTART, marks=pytest.mark.slow),
    LOST_WRITE,
    replace(LOST_WRITE, victims="A2", slow_disks="A2"),
    replace(QUIET, messages=0, complaints=1, timeouts=1),
    replace(QUIET, messages=2, quick_disks=0, timers=2),
    pytest.param(UNSETTLED, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("limits", SMALL_WORLDS)
def test_a_reduced_world_has_the_same_states_but_for_what_is_taken_out(limits: Limits) -> None:
    """What is reached step by step without what is taken out is what is left of all that is reached with it."""
    model = Model(limits, Checks())
    all_states = _reached(model, reducing=False)
    reduced = _reached(model, reducing=True)
    assert {model.reduced(state) for state in all_states} == {model.reduced(state) for state in reduced}
    assert len(reduced) <= len(all_states)


@pytest.mark.parametrize(
    "limits",
    [*SMALL_WORLDS, pytest.param(replace(QUIET, crashes=1, victims="A1", questions=1), marks=pytest.mark.slow)],
)
def test_a_reduced_world_comes_to_the_same_ends(limits: Limits) -> None:
    reduced, plain = _explored(limits, 60_000), _explored(replace(limits, reduced=0), 60_000)
    assert reduced.exhausted
    assert plain.exhausted
    assert reduced.ends == plain.ends
    assert reduced.states <= plain.states


@pytest.mark.slow
@pytest.mark.parametrize("rule", [rule for rule in MUTANTS if rule not in ("certificate", "attempt-id")])
def test_without_reductions_the_same_trace_is_the_shortest(rule: str) -> None:
    limits, states_max = MUTANTS[rule]
    plain = _explored(replace(limits, reduced=0), 4 * states_max, rule)
    assert plain.rule in MUTATIONS[rule].breaks, report(plain)
    assert plain.depth == STEPS[rule] - 1, report(plain)
