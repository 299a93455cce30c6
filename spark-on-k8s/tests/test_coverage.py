"""An audit must find each kind of damage, and nothing in what is complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.audits.coverage import FINDINGS_MAX, Cover, CoverCheck, Finding, cover_from, put_together

A, B = b"a" * 16, b"b" * 16
Row = dict[str, Any]


def rows_of(start: int, count: int, segment: int = 1, producer: bytes = A, sequence: int | None = None) -> list[Row]:
    first = start if sequence is None else sequence
    return [
        {
            "offset": make_offset(segment, start + n), "append_time": 1000 + start + n, "producer": producer,
            "epoch": 1, "sequence": first + n, "passed": 0,
        }
        for n in range(count)
    ]  # fmt: skip


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    schema = pa.schema(
        [
            ("offset", pa.int64()), ("append_time", pa.timestamp("us", "UTC")), ("producer", pa.binary()),
            ("epoch", pa.int64()), ("sequence", pa.int64()), ("passed", pa.int64()),
        ]
    )  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def check(rows: list[Row], start: int, end: int, cut: int = 3) -> tuple[Cover, list[Finding]]:
    """Check rows that come in batches of `cut`."""
    found = CoverCheck(Cover("t", "id", 0, start, end))
    for at in range(0, len(rows), cut):
        found.take(batch_of(rows[at : at + cut]))
    return found.finish(), found.findings


WHOLE = [*rows_of(10, 5), *rows_of(15, 5, producer=B, sequence=0), *rows_of(0, 4, segment=2, sequence=15)]
START, END = make_offset(1, 10), make_offset(2, 4)
for number, row in enumerate(WHOLE):
    row["append_time"] = 1000 + number // 2


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 100])
def test_what_is_whole_has_no_findings(cut: int) -> None:
    cover, findings = check(WHOLE, START, END, cut)
    assert findings == []
    assert (cover.rows, cover.passed) == (14, 0)
    assert cover.producers == {A.hex(): (1, 10, 1, 18), B.hex(): (1, 0, 1, 4)}
    assert cover_from(json.loads(json.dumps(cover.as_dict()))) == cover


def test_repeats_that_readers_pass_over_are_no_holes() -> None:
    rows = [*rows_of(10, 5), *rows_of(18, 2, sequence=15), *rows_of(0, 4, segment=2, sequence=17)]
    rows[5]["passed"] = 3
    for row in rows:
        row["append_time"] = 1000
    cover, findings = check(rows, START, END)
    assert findings == []
    assert cover.passed == 3


def _without(at: int) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: rows[:at] + rows[at + 1 :]


DAMAGE: dict[str, tuple[str, Callable[[list[Row]], list[Row]]]] = {
    "a row in the middle is missing": ("hole", _without(4)),
    "the first row is missing": ("hole", _without(0)),
    "the last row is missing": ("hole", _without(13)),
    "the first row of a segment is missing": ("hole", _without(10)),
    "a row stands twice": ("order", lambda rows: [*rows[:4], rows[3], *rows[4:]]),
    "two rows changed places": ("order", lambda rows: [*rows[:3], rows[4], rows[3], *rows[5:]]),
    "a time goes back": ("time", lambda rows: [*rows[:6], rows[6] | {"append_time": 999}, *rows[7:]]),
    "a sequence comes again": ("repeat", lambda rows: [*rows[:12], rows[12] | {"sequence": 11}, *rows[13:]]),
    "an epoch goes back": ("epoch", lambda rows: [*rows[:13], rows[13] | {"epoch": 0}]),
    "more was passed over than there is": ("order", lambda rows: [*rows[:4], rows[4] | {"passed": 2}, *rows[5:]]),
    "a row lies after the range": ("range", lambda rows: [*rows, *rows_of(4, 1, segment=2, sequence=30)]),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("cut", [1, 4, 100])
def test_each_damage_is_found(name: str, cut: int) -> None:
    kind, damage = DAMAGE[name]
    _, findings = check(damage([dict(row) for row in WHOLE]), START, END, cut)
    assert kind in {finding.kind for finding in findings}, findings
    assert all(finding.count > 0 for finding in findings)


def test_a_million_findings_are_counted_and_not_kept() -> None:
    rows = rows_of(0, 2 * FINDINGS_MAX + 50)[::2]
    _, findings = check(rows, make_offset(1, 0), rows[-1]["offset"] + 1, 1000)
    holes = [finding for finding in findings if finding.kind == "hole"]
    assert len(holes) == FINDINGS_MAX + 1
    assert sum(finding.count for finding in holes) == len(rows) - 1


def cover(start: int, end: int, **more: Any) -> Cover:
    made = Cover("t", "id", 0, make_offset(1, start), make_offset(1, end), rows=end - start)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def kinds(*covers: Cover) -> list[str]:
    (report,) = put_together(covers, [])
    return [finding.kind for finding in report.findings]


def test_covers_one_behind_the_other_in_any_order_of_arrival() -> None:
    covers = [cover(10, 20), cover(0, 10), cover(20, 25)]
    (report,) = put_together(covers, [])
    assert report.findings == []
    assert (report.start, report.end, report.rows) == (make_offset(1, 0), make_offset(1, 25), 25)


def test_covers_that_do_not_fit_are_found() -> None:
    assert kinds(cover(0, 10), cover(12, 20)) == ["uncovered"]
    assert kinds(cover(0, 10), cover(5, 20)) == ["twice"]
    assert kinds(cover(0, 10), cover(0, 10)) == ["twice"]
    assert kinds(cover(0, 10, first_time=5, last_time=9), cover(10, 20, first_time=8, last_time=9)) == ["time"]
    first, second = {"p": (1, 0, 1, 9)}, {"p": (1, 5, 1, 19)}
    assert kinds(cover(0, 10, producers=first), cover(10, 20, producers=second)) == ["repeat"]
    assert kinds(cover(0, 10, producers=first), cover(10, 20, producers={"p": (0, 10, 0, 19)})) == ["epoch"]
    assert kinds(cover(0, 10, producers=first), cover(10, 20, producers={"p": (2, 0, 2, 9)})) == []


def test_partitions_and_topics_made_again_are_kept_apart() -> None:
    other = Cover("t", "id-2", 0, make_offset(1, 0), make_offset(1, 5), rows=5)
    reports = put_together([cover(0, 10), other], [Finding("footer", "", "", 0, 0, 1, "x")])
    assert [len(report.findings) for report in reports] == [1, 0, 0]
    assert np.sum([report.rows for report in reports]) == 15
