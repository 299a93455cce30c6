"""Which task reads what. Pure: depends on the ranges and the options only, so that a repeated batch has the same tasks.

Tasks are sorted as their ranges are, by topic, partition and offset: the index of a task is an order of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROWS_PER_TASK: Final = 250_000
"""A task costs Spark about 30 ms, which is a tenth of the time that this many rows take."""

SMALL_TASKS: Final = 32
"""Partitions with few rows share tasks down to this many."""


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """Messages [start, end) of a partition that one task reads.

    Attributes:
        rows: About how many, for the balance of tasks.
    """

    topic: str
    partition: int
    start: int
    end: int
    incarnation: str
    rows: int


def pack(units: Sequence[Unit], min_partitions: int | None) -> list[tuple[Unit, ...]]:
    """Units in order, those that are neighbours together, in tasks with about the same number of rows.

    Args:
        units: In any order; those without rows are left out.
        min_partitions: Tasks wanted; there are as many, or one for each unit if there are fewer units. None: one for
            `ROWS_PER_TASK` rows, but at least `SMALL_TASKS`.
    """
    ordered = sorted(unit for unit in units if unit.rows > 0)
    if not ordered:
        return []
    total = sum(unit.rows for unit in ordered)
    wanted = min_partitions or max(SMALL_TASKS, -(-total // ROWS_PER_TASK))
    wanted = min(wanted, len(ordered))
    tasks: list[list[Unit]] = [[]]
    held, left = 0, total
    for index, unit in enumerate(ordered):
        open_tasks = wanted - len(tasks) + 1  # this one and those to come
        share = (held + left) / open_tasks
        must = len(ordered) - index <= wanted - len(tasks)  # what is left is needed for one unit each
        if tasks[-1] and open_tasks > 1 and (must or held + unit.rows / 2 > share):
            tasks.append([])
            held = 0
        tasks[-1].append(unit)
        held += unit.rows
        left -= unit.rows
    return [tuple(task) for task in tasks]
