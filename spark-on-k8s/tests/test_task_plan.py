"""Which task reads what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from seriatim_spark.reading.task_plan import ROWS_PER_TASK, SMALL_TASKS, Unit, pack


def units(*rows: int) -> list[Unit]:
    return [Unit("t", number, 0, count, "x", count) for number, count in enumerate(rows)]


def test_as_many_tasks_as_asked_for_with_neighbours_together() -> None:
    tasks = pack(units(*[10] * 9), 3)
    assert [[unit.partition for unit in task] for task in tasks] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_large_partition_does_not_take_small_ones_with_it() -> None:
    tasks = pack(units(1, 1, 1000, 1, 1), 3)
    assert [[unit.partition for unit in task] for task in tasks] == [[0, 1], [2], [3, 4]]


def test_there_is_a_task_for_each_unit_at_most() -> None:
    assert len(pack(units(5, 0, 5), 10)) == 2
    assert pack(units(0, 0), 4) == []


def test_ten_thousand_idle_partitions_are_not_ten_thousand_tasks() -> None:
    assert len(pack(units(*[1] * 10_000), None)) == SMALL_TASKS
    assert len(pack(units(*[ROWS_PER_TASK] * 100), None)) == 100


@given(st.lists(st.integers(0, 1000), max_size=40), st.none() | st.integers(1, 50), st.randoms())
def test_tasks_in_their_order_are_the_units_in_theirs(rows: list[int], wanted: int | None, random) -> None:  # type: ignore[no-untyped-def]
    given_units = units(*rows)
    shuffled = given_units[:]
    random.shuffle(shuffled)
    tasks = pack(shuffled, wanted)
    assert tasks == pack(given_units, wanted)
    assert [unit for task in tasks for unit in task] == [unit for unit in given_units if unit.rows]
    assert all(tasks)
    filled = sum(1 for count in rows if count)
    assert len(tasks) == min(filled, wanted) if wanted else len(tasks) <= max(filled, SMALL_TASKS)
