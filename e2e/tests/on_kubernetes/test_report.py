"""The table, the last line and the exit status. A figure over its limit fails a case only with strict limits."""

from __future__ import annotations

import json

from rich.console import Console

from e2e.kubernetes.report import CaseResult, Figure, RunResult, exit_status, print_run, summary_line, to_json


def run_of(*results: CaseResult) -> RunResult:
    return RunResult(results, 1.0, (0.5, 1.5), 2)


def printed(run: RunResult) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - it lives as long as the test
    print_run(console, run)
    console.file.close()
    return console.export_text()


def test_a_figure_at_its_limit_is_not_over_it() -> None:
    assert not Figure("gap", 0.3, limit=0.3).is_over
    assert Figure("gap", 0.301, limit=0.3).is_over
    assert not Figure("gap", 1000.0).is_over


def test_each_figure_has_a_row_with_its_limit() -> None:
    figures = (Figure("gap", 0.25, limit=0.3), Figure("memory", 151.2, "MB", 150.0), Figure("took", 3.0))
    text = printed(run_of(CaseResult("pod", "passed", figures, acknowledged=12_345)))

    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert ["pod", "gap", "0.25", "s", "≤", "0.3", "s", "12,345", "ok"] in rows
    assert ["memory", "151", "MB", "≤", "150", "MB", "over", "the", "limit"] in rows
    assert ["took", "3.00", "s"] in rows


def test_a_case_without_figures_has_a_row_and_its_problem_is_told() -> None:
    text = printed(run_of(CaseResult("install", "failed", problems=("no etcd",))))

    assert "FAILED" in text
    assert "install: no etcd" in text


def test_the_closing_line_counts_cases_and_one_failure_fails_the_run() -> None:
    good, bad = CaseResult("a", "passed"), CaseResult("b", "failed")
    left_out = CaseResult("c", "skipped")

    assert summary_line(run_of(good, bad, left_out)) == "1 passed, 1 failed, 1 skipped"
    assert exit_status(run_of(good, left_out)) == 0
    assert exit_status(run_of(good, bad)) == 1


def test_a_run_in_which_nothing_was_shown_is_no_success() -> None:
    assert exit_status(run_of()) == 1
    assert exit_status(run_of(CaseResult("c", "skipped"))) == 1


def test_json_has_what_the_table_has() -> None:
    told = json.loads(to_json(run_of(CaseResult("pod", "passed", (Figure("gap", 0.25, limit=0.3),)))))

    assert told["results"][0]["figures"][0] == {"name": "gap", "value": 0.25, "unit": "s", "limit": 0.3}
    assert told["processors"] == 2
