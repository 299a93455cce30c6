"""The faults of `make faults-spark`, and its comparison of the target with the source."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from e2e.spark_faults.__main__ import figures_of, read_number, table_of
from e2e.spark_faults.run import ALL_MOMENTS, BATCHES, FAULTS_MAX, KINDS, Course, Fault, differences, plan_of

SENT = [b"1", b"2", b"3"]


def test_a_seed_is_a_plan_and_all_plans_together_strike_everything_everywhere() -> None:
    plans = [plan_of(random.Random(seed)) for seed in range(1, 201)]
    assert plans == [plan_of(random.Random(seed)) for seed in range(1, 201)]
    assert all(1 <= len(plan) <= FAULTS_MAX for plan in plans)
    assert all([fault.batch for fault in plan] == sorted(fault.batch for fault in plan) for plan in plans)
    faults = [fault for plan in plans for fault in plan]
    assert {fault.batch for fault in faults} == set(range(BATCHES))
    struck = {(fault.kind, fault.moment) for fault in faults}
    assert struck == {(kind, moment) for kind in KINDS for moment in ALL_MOMENTS}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([b"1", b"2", b"2", b"3"], ["t/0: 1 rows are there more than once"]),
        ([b"1", b"3"], ["t/0: 1 rows are missing"]),
        ([b"1", b"3", b"2"], ["t/0: the order differs"]),
        ([b"1", b"2", b"2"], ["t/0: 1 rows are there more than once", "t/0: 1 rows are missing"]),
        (SENT, []),
    ],
)
def test_what_is_wrong_with_a_partition_is_told(found: list[bytes], told: list[str]) -> None:
    assert differences("t/0", SENT, found) == told


def test_a_run_that_is_not_exact_is_seen_in_the_table_and_fails_the_program() -> None:
    good = Course(1, hit=[Fault("worker", "task begins", 0)], starts=1, rows=6)
    bad = Course(2, hit=[Fault("zombie", "before publishing", 1)], starts=2, rows=7, problems=["1 row too many"])
    bad.zombies.append("WriterConflictError: writer 'copy' was opened again")
    figures = figures_of([good, bad])
    assert figures["problems"] == ["SEED=2: 1 row too many"]
    assert (figures["runs"], figures["zombies_refused"]) == (2, 1)
    console = Console(width=150, file=io.StringIO(), record=True)
    console.print(table_of([good, bad]))
    *_, zombies, total = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in console.export_text().splitlines()
        if line.startswith("│")
    ]
    assert zombies == ["zombie", "0", "0", "1", "0", "0", "1", "1", "0"]
    assert total[-2:] == ["2", "1"]


def test_a_number_that_is_none_is_named() -> None:
    assert read_number({"RUNS": ""}, "RUNS", 200) == 200
    with pytest.raises(ValueError, match="RUNS is a whole number above 0"):
        read_number({"RUNS": "many"}, "RUNS", 200)
