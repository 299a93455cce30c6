"""The problems that fail a case or a run, and how the report prints them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console
from seriatim.history import MemoryHistory, Report, check_events

from e2e.faults.report import CaseResult, RunResult, exit_status, judge, print_run, rows, summary_line, to_json

GOOD = CaseResult(
    number=1, fault="kill master", workload="ordered", repetition=0, seed=7, sent=100, acknowledged=100, delivered=100,
    gap_s=0.3, two_copies_s=4.0, duration_s=9.0,
)  # fmt: skip


def history(
    outcomes: dict[int, str], delivered: list[int], *, closed: bool = True, gap: tuple[int, int] | None = None
) -> Report:
    """Judge a history: these messages were sent, settled with these outcomes (empty: without one), and delivered.

    The reader was notified of the gap `gap`.
    """
    clock = iter(range(1, 1_000_000))
    events: list[dict[str, object]] = []
    sender, reader = (MemoryHistory(name, lambda: float(next(clock))) for name in ("sender", "reader"))
    for number, outcome in outcomes.items():
        sender.send(number, producer="p", topic="t", partition=0, sequence=number)
        if outcome:
            sender.outcome(number, outcome, offset=number if outcome == "ok" else None)  # type: ignore[arg-type]
    if gap is not None:
        reader.gap(topic="t", partition=0, first=gap[0], end=gap[1], why="declared lost", group="g")
    for number in delivered:
        reader.deliver(number, group="g", consumer="c", topic="t", partition=0, offset=number)
    reader.end("g", topic="t")
    header = {"k": "history", "version": 1, "process": "sender", "clock": "monotonic"}
    for name, recorded in (("sender", sender.events), ("reader", reader.events)):
        events += [{**header, "process": name}, *recorded]
        if closed or name == "reader":
            events.append({"k": "close", "at": float(next(clock))})
    return check_events(events)


def ok(count: int) -> dict[int, str]:
    return dict.fromkeys(range(count), "ok")


def problems(report: Report, *, producer_killed: bool = False) -> tuple[str, ...]:
    found = judge(report, producer_killed=producer_killed)["problems"]
    assert isinstance(found, tuple)
    return found


def test_a_clean_history_has_no_problem() -> None:
    report = history(ok(100), list(range(100)))
    assert problems(report) == ()
    assert judge(report, producer_killed=False)["acknowledged"] == 100


@pytest.mark.parametrize(
    ("delivered", "word"),
    [
        ([*range(50), *range(51, 100)], "lost"),
        ([*range(100), 99], "repeated"),
        ([*range(50), 51, 50, *range(52, 100)], "reordered"),
    ],
)
def test_a_broken_promise_is_a_problem(delivered: list[int], word: str) -> None:
    found = problems(history(ok(100), delivered))
    assert any(problem.endswith(word) for problem in found), found


def test_a_gap_excuses_what_lies_in_it_where_one_was_declared() -> None:
    told = history(ok(100), list(range(40, 100)), gap=(0, 40))
    assert judge(told, producer_killed=False, declares_gaps=True)["problems"] == ()
    assert judge(told, producer_killed=False, declares_gaps=True)["given_up"] == 40
    assert problems(told) == ("readers were notified of 1 gaps, and none was declared",)
    more = history(ok(100), list(range(41, 100)), gap=(0, 40))
    assert judge(more, producer_killed=False, declares_gaps=True)["problems"] == ("1 lost",)


def test_too_many_unknown_outcomes_are_a_problem() -> None:
    unknown = {98: "unknown", 99: "unknown"}
    assert problems(history({**ok(98), **unknown}, list(range(98)))) == ("2.00% of the outcomes are unknown",)
    assert problems(history({**ok(398), 398: "unknown"}, list(range(398)))) == ()


def test_sends_without_outcome_count_as_unknown_unless_their_producer_was_killed() -> None:
    report = history({**ok(10), 10: ""}, list(range(10)), closed=False)
    assert any("unknown" in problem for problem in problems(report))
    assert problems(report, producer_killed=True) == ()


def test_a_case_in_which_nothing_happened_shows_nothing() -> None:
    assert set(problems(history({}, []))) >= {"nothing was acknowledged", "nothing was delivered"}


def test_rows_gather_cases_of_a_fault_and_show_the_worst() -> None:
    other = replace(GOOD, number=2, lost=1, unknown_share=0.02, gap_s=None, two_copies_s=9.0, problems=("1 lost",))
    row, freeze = rows([GOOD, other, replace(GOOD, fault="freeze master")])
    assert (row.fault, row.runs, row.failed_runs, row.acknowledged, row.lost) == ("kill master", 2, 1, 200, 1)
    assert (row.unknown_share, row.gap_s, row.two_copies_s) == (0.02, 0.3, 9.0)
    assert freeze.runs == 1


def run_of(*results: CaseResult) -> RunResult:
    return RunResult(seed=7, quick=True, duration_s=60.0, results=results, left_out={"full disk": "not root"})


def test_one_failed_case_fails_the_run_and_so_does_none_at_all() -> None:
    failed = replace(GOOD, problems=("everything has not two copies again",))
    assert exit_status(run_of(GOOD)) == 0
    assert exit_status(run_of(GOOD, failed)) == 1
    assert exit_status(run_of()) == 1


def test_the_last_line_can_be_added_up() -> None:
    failed = replace(GOOD, problems=("1 lost",))
    assert summary_line(run_of(GOOD, GOOD, failed)) == "2 passed, 1 failed, 1 skipped"


def test_json_and_table_say_what_failed_and_what_was_left_out() -> None:
    cut = replace(GOOD, number=2, fault="cut master-slave", lost=3, problems=("3 lost",), network="namespaces")
    run = replace(run_of(GOOD, cut), no_namespaces="not root")
    document = json.loads(to_json(run))
    assert (document["ok"], document["seed"], len(document["cases"])) == (False, 7, 2)
    assert document["faults"][1]["lost"] == 3
    assert document["cases"][1]["problems"] == ["3 lost"]
    assert document["networks"] == {"proxy": 1, "namespaces": 1}
    console = Console(record=True, width=160)
    print_run(console, run)
    text = console.export_text()
    for words in (
        "cut master-slave",
        "left out: full disk: not root",
        "FAILED case 2",
        "SEED=7",
        "4.0 s",
        "no namespaces: not root",
    ):
        assert words in text
