"""A user runs the whole demo, and also interrupts it: then nothing of it may be left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from seriatim import Segment

from e2e.demo.segments import spans
from e2e.observe import ChainNow, ReaderNow, Snapshot
from e2e.workers import processes_that_name

DEADLINE_S = 240


def segment(no: int, state: Any, base: int | None, length: int | None, opened: int, sealed: int) -> Segment:
    return Segment(no, f"g{no}", ("a", "b"), state, base, length, None, None, (), False, "a", 0, (), opened, sealed)


def test_segments_along_the_axis_of_time() -> None:
    chain = ChainNow(
        3,
        9,
        (
            segment(1, "SEALED", 0, 100, 500, 2_000),
            segment(2, "UNSETTLED", 100, None, 2_000, 0),
            segment(3, "OPEN", None, None, 3_000, 0),
        ),
    )
    settled = ChainNow(4, 1, (segment(1, "OPEN", 0, None, 900, 0),))
    readers = tuple(ReaderNow(partition, 1, "a", "c", 5, 130, True) for partition in (3, 4))
    first, second, third, other = spans(Snapshot((chain, settled), readers), begin_ms=1_000)
    assert (first.opened_at_s, first.sealed_at_s, first.length) == (-0.5, 1.0, 100)
    assert (second.sealed_at_s, second.length) == (2.0, None), "it ends for the eye where the next one begins"
    assert (third.sealed_at_s, third.length) == (None, None), "its begin is not known"
    assert other.length == 130


def heed_interrupts() -> None:
    """Take SIGINT again. A shell's background process ignores it, and so do all processes that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(out: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "e2e.demo"],
        env={**os.environ, "OUT": str(out), "QUICK": "1", "SEED": "5", **environment},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )


@pytest.mark.faults
@pytest.mark.timeout(DEADLINE_S)
def test_a_quick_run(tmp_path: Path) -> None:
    demo = start(tmp_path)
    text, _ = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 0, text
    figures = json.loads(text.strip().splitlines()[-1])
    assert figures["ok"]
    assert figures["lost"] == figures["reordered"] == figures["repeated"] == 0
    assert figures["histories_equal"]
    assert figures["faults_hit"] >= 6
    assert figures["seed"] == 5
    assert set(figures["gap_by_kind"]) == {"kill", "kill both", "freeze", "cut", "stop"}
    assert (tmp_path / "segments.svg").read_text().startswith("<svg")
    assert not processes_that_name(str(tmp_path))


@pytest.mark.faults
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "loading the flights" in line:
            break
    assert processes_that_name(str(tmp_path)), "brokers run"
    demo.send_signal(number)
    demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert not processes_that_name(str(tmp_path))
    assert not list(tmp_path.glob("cluster-*")), "no data is left"
