"""The benchmark's arithmetic, its table and its JSON, from made-up figures."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from e2e.bench.measures.figures import Figure, percentile, to_json, write_json
from e2e.bench.measures.machine import CpuClock, cpu_s, is_profiled, machine_facts, python_told

FIGURES = (
    Figure("fast", "throughput", 75_000, "msg/s", 150_000, higher_is_better=True,
           details={"cpu_s_per_million": {"brokers": 9.5, "client": 1.5}, "work_ms": 5.234}),
    Figure("latency", "latency, p50", 1.0, "ms", 1.2, details={"p99_ms": 3.14159, "max_ms": 8.0}),
    Figure("broken", "not verified", 99.0, "ms", 1.0, problem="3 messages were not acknowledged"),
)  # fmt: skip


def test_ratios_are_above_one_when_the_aim_is_reached() -> None:
    assert FIGURES[0].ratio == pytest.approx(0.5)
    assert FIGURES[1].ratio == pytest.approx(1.2)
    assert FIGURES[2].ratio is None
    assert Figure("x", "x", None, "ms", 1.0).ratio is None


def test_json_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "new" / "smoke.json"
    write_json(path, to_json(FIGURES, machine_facts(tmp_path), 12.34, benchmark="smoke"))
    data = json.loads(path.read_text())
    assert data["figures"]["fast"]["ratio"] == 0.5
    assert data["figures"]["broken"]["problem"]
    assert data["machine"]["cores"] >= 1
    assert data["took_s"] == 12.3


@pytest.mark.parametrize(
    ("built", "schemes", "said"),
    [
        ({"CONFIG_ARGS": "'--enable-shared' '--enable-optimizations'"}, ("posix_prefix",), "built with profile"),
        ({"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, (), "built WITHOUT profile"),
        ({"CONFIG_ARGS": "'--enable-shared'"}, ("posix_prefix", "deb_system"), "built with profile"),
        ({"CONFIG_ARGS": "''", "CONFIGURE_CFLAGS": "-O3 -fprofile-use=x"}, (), "built with profile"),
        ({}, (), "perhaps built without profile"),
    ],
)
def test_how_python_was_built_is_told(built: dict[str, object], schemes: tuple[str, ...], said: str) -> None:
    assert said in python_told({"python": "3.13.1", "python_is_profiled": is_profiled(built, schemes)})


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([5], 0.99) == 5


def test_processor_time_is_counted_in_less_than_a_hundredth_of_a_second() -> None:
    before = time.process_time()
    counted = cpu_s(os.getpid())
    assert before <= counted <= time.process_time(), "it is the clock of this process"
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_s(2**22 + 1)


def test_processor_time_is_counted_from_the_start() -> None:
    clock = CpuClock.start({"me": [os.getpid()]})
    before = cpu_s(os.getpid())
    while cpu_s(os.getpid()) - before < 0.05:
        sum(range(10_000))
    assert 0.04 <= clock.used_s()["me"] < 5
    assert clock.per_million(1_000_000)["me"] == pytest.approx(clock.used_s()["me"], abs=0.1)
