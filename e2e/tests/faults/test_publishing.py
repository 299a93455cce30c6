"""The judgement of publications that a program made during faults."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from seriatim import partition_of_key

from e2e.faults.traffic.publications import PARTITIONS, Publishing
from e2e.faults.traffic.publisher import rows_of


def expected(seed: int, last: int) -> list[list[bytes]]:
    """Return the rows of publications 1 to `last`, by partition."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for sequence in range(1, last + 1):
        for value, key in zip(*rows_of(seed, sequence), strict=True):
            found[partition_of_key(key, PARTITIONS)].append(value)
    return found


class Stored:
    """A client that reads these rows."""

    def __init__(self, rows: list[list[bytes]]) -> None:
        self.rows = rows
        self._values: list[bytes] = []

    def read_range(self, _topic: str, partition: int) -> Self:
        self._values = list(self.rows[partition])
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if not self._values:
            raise StopAsyncIteration
        return SimpleNamespace(value=self._values.pop(0))


def program(tmp_path: Path, last: int = 6) -> Publishing:
    """Return a program that has made `last` publications."""
    made = Publishing(("nowhere:1",), 3, random.Random(1), tmp_path)
    made.last = last
    return made


async def wrong(made: Publishing, rows: list[list[bytes]]) -> list[str]:
    """Return what the judgement finds wrong with these stored rows."""
    stored = cast(Any, Stored(rows))
    return [text for partition in range(PARTITIONS) if (text := await made._judge(stored, partition))]


def test_a_run_that_begins_anew_makes_the_same_rows() -> None:
    assert rows_of(7, 3) == rows_of(7, 3)
    assert rows_of(7, 3) != rows_of(7, 4)


async def test_all_rows_once_and_in_order_are_right(tmp_path: Path) -> None:
    made = program(tmp_path)
    assert await wrong(made, expected(made.seed, 6)) == []


@pytest.mark.parametrize("fault", ["missing", "repeated", "swapped", "another"])
async def test_what_is_missing_repeated_or_in_another_order_is_found(tmp_path: Path, fault: str) -> None:
    made = program(tmp_path)
    rows = expected(made.seed, 6)
    longest = max(rows, key=len)
    if fault == "missing":
        del longest[3]
    elif fault == "repeated":
        longest.append(longest[-1])
    elif fault == "swapped":
        longest[1], longest[2] = longest[2], longest[1]
    else:
        longest[0] = b"?"
    (said,) = await wrong(made, rows)
    assert "differ from row" in said


async def test_rows_may_be_missing_only_after_the_program_was_told(tmp_path: Path) -> None:
    made = program(tmp_path)
    rows = expected(made.seed, 6)
    longest = max(rows, key=len)
    del longest[3]
    assert len(await wrong(made, rows)) == 1
    made.lost_count = 1
    assert await wrong(made, rows) == []
    longest.append(longest[0])
    assert len(await wrong(made, rows)) == 1, "but not repeated"
