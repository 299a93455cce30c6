"""The table, the last line and the exit status. A figure over its limit fails a case only with strict limits."""

from __future__ import annotations

import io
import json

from rich.console import Console

from e2e.kubernetes.report import CaseResult, Figure, RunResult, exit_status, print_run, summary_line, to_json


def run_of(*results: CaseResult) -> RunResult:
    return RunResult(results, 1.0, (0.5, 1.5), 2)


def test_a_figure_at_its_limit_is_not_over_it() -> None:
    assert not Figure("gap", 0.3, limit=0.3).is_over
    assert Figure("gap", 0.301, limit=0.3).is_over
    assert not Figure("gap", 1000.0).is_over


def test_the_closing_line_counts_cases_and_one_failure_fails_the_run() -> None:
    good, bad = CaseResult("a", "passed"), CaseResult("b", "failed")
    left_out = CaseResult("c", "skipped")

    assert summary_line(run_of(good, bad, left_out)) == "1 passed, 1 failed, 1 skipped"
    assert exit_status(run_of(good, left_out)) == 0
    assert exit_status(run_of(good, bad)) == 1


def test_a_run_in_which_nothing_was_shown_is_no_success() -> None:
    assert exit_status(run_of()) == 1
    assert exit_status(run_of(CaseResult("c", "skipped"))) == 1


def test_table_and_json_have_figures_and_problems() -> None:
    figures = (Figure("gap", 0.25, limit=0.3), Figure("memory", 151.2, "MB", 150.0))
    run = run_of(CaseResult("pod", "passed", figures), CaseResult("install", "failed", problems=("no etcd",)))
    console = Console(width=140, record=True, file=io.StringIO())
    print_run(console, run)
    text = " ".join(console.export_text().split())
    for words in ("pod gap 0.25 s ≤ 0.3 s", "memory 151 MB ≤ 150 MB over the limit", "install: no etcd"):
        assert words in text
    told = json.loads(to_json(run))
    assert told["results"][0]["figures"][0] == {"name": "gap", "value": 0.25, "unit": "s", "limit": 0.3}
