"""Decides which task reads which units. Pure: the result depends only on ranges and options, so a repeated micro-batch
has the same tasks.

Tasks are in the order of their units: by topic, partition and offset. So the index of a task gives the order of its
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROWS_PER_TASK: Final = 250_000
"""A task costs Spark about 30 ms. To read this many rows takes ten times as long."""

SMALL_TASKS: Final = 32
"""If there are few rows, partitions share tasks, but there are at least this many tasks."""


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """Messages [start, end) of a partition that one task reads.

    Attributes:
        rows: The approximate number of messages, to balance the tasks.
    """

    topic: str
    partition: int
    start: int
    end: int
    incarnation: str
    rows: int


def pack(units: Sequence[Unit], min_partitions: int | None) -> list[tuple[Unit, ...]]:
    """Put units in order, and neighbours together into tasks with about the same number of rows.

    Args:
        units: Units in any order. Those without rows are left out.
        min_partitions: The wanted number of tasks. If there are fewer units, each unit is a task. None: one task for
            `ROWS_PER_TASK` rows, but at least `SMALL_TASKS`.
    """
    ordered = sorted(unit for unit in units if unit.rows > 0)
    if not ordered:
        return []
    total = sum(unit.rows for unit in ordered)
    wanted = max(SMALL_TASKS, -(-total // ROWS_PER_TASK)) if min_partitions is None else min_partitions
    wanted = min(wanted, len(ordered))
    tasks: list[list[Unit]] = [[]]
    held, left = 0, total
    for index, unit in enumerate(ordered):
        open_tasks = wanted - len(tasks) + 1  # this task and those to come
        share = (held + left) / open_tasks
        must = len(ordered) - index <= wanted - len(tasks)  # each task to come needs one of the units that are left
        if tasks[-1] and open_tasks > 1 and (must or held + unit.rows / 2 > share):
            tasks.append([])
            held = 0
        tasks[-1].append(unit)
        held += unit.rows
        left -= unit.rows
    return [tuple(task) for task in tasks]
