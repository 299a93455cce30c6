"""The comparisons and pictures of the Spark demo. `make demo-spark` is the run itself."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pyarrow as pa

from e2e.demo.report import DemoFault
from e2e.demo_spark.comparing import compare_states
from e2e.demo_spark.picture import draw
from e2e.demo_spark.strikes import Course
from e2e.spark_faults.processes import workers_of


def test_the_last_event_of_each_aircraft_is_its_state() -> None:
    events = pa.table({"key": [b"a", b"b", b"a"], "value": [b"1", b"2", b"3"]})
    right = pa.table({"key": pa.array([b"b", b"a"]), "value": pa.array([b"2", b"3"])})
    assert compare_states(right, events).problems == []
    assert compare_states(right, events).rows == 2
    for wrong in (right.slice(0, 1), right.set_column(1, "value", pa.array([b"2", b"1"]))):
        (problem,) = compare_states(wrong, events).problems
        assert "1 aircraft" in problem
        assert "b'a'" in problem


def test_kills_are_drawn_over_the_rows(tmp_path: Path) -> None:
    kills = [DemoFault(kind, f"<{kind}>", "none", at_s, at_s) for kind, at_s in (("driver", 3.0), ("broker", 5.0))]
    draw(tmp_path / "replay.svg", Course(kills, [(0.0, 0), (2.0, 500)], 2, 10.0), 1_000)
    drawn = (tmp_path / "replay.svg").read_text()
    ElementTree.fromstring(drawn)
    assert "driver &lt;driver&gt; (none) at 3.0 s" in drawn
    assert drawn.count('stroke-dasharray="4 3"') == 2


def test_a_process_without_spark_has_no_workers() -> None:
    assert workers_of(os.getpid()) == []
