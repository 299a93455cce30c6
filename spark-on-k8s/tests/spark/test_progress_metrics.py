"""A pipeline that continues tells Prometheus what it has read and written, and how much waits, while it does
nothing."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from seriatim import sync

from tools.ports import free_port

from .conftest import Brokers
from .filling import Filled

DEADLINE_S = 150.0
POLL_S = 0.2
NEVER = "1000 hours"
"""Between two micro-batches: what comes after the first one of the driver waits."""


def told(listen: str) -> dict[str, float]:
    """Without the part of the names that all have; empty as long as nothing listens."""
    try:
        with urllib.request.urlopen(f"http://{listen}/metrics", timeout=DEADLINE_S) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
    except urllib.error.URLError:
        return {}
    return {name.removeprefix("seriatim_pipeline_"): float(value) for name, value in lines}


@pytest.mark.parametrize(
    "pipeline",
    ["archive", pytest.param("apply", marks=pytest.mark.slow), pytest.param("mirror", marks=pytest.mark.slow)],
)
def test_a_driver_tells_its_progress_and_what_waits(
    client: sync.Client, brokers: Brokers, tmp_path: Path, pipeline: str
) -> None:
    topic = Filled(client, brokers.bootstrap, f"progress-{pipeline}", 2)
    topic.send([3_000, 1_000])
    target = ("--to", str(tmp_path / "out"))
    if pipeline == "apply":  # the partitions have the same keys
        target = (*target, "--order-by", "append_time")
    elif pipeline == "mirror":
        client.admin().create_topic("progress-target", 2)
        target = ("--to-topic", "progress-target", "--to-bootstrap", brokers.bootstrap, "--shared")
    listen = f"127.0.0.1:{free_port()}"
    driver = subprocess.Popen(
        [
            sys.executable, "-m", "seriatim_spark", pipeline, "--bootstrap", brokers.bootstrap, "--topic", topic.name,
            *target, "--checkpoint", str(tmp_path / "checkpoint"), "--every", NEVER, "--metrics-listen", listen,
        ]
    )  # fmt: skip
    try:
        until = time.monotonic() + DEADLINE_S
        found: dict[str, float] = {}
        # The driver may still take the first of these messages. After that it reads nothing more.
        while (found.get("rows_read_total"), found.get("lag_messages")) != (topic.rows - 1, 1):
            assert driver.poll() is None, "the driver has ended"
            assert time.monotonic() < until, found
            if (found.get("rows_read_total"), found.get("lag_messages")) == (topic.rows, 0):
                topic.send([0, 1])
            time.sleep(POLL_S)
            found = told(listen)
        assert found["lag_messages_max"] == 1
        if pipeline == "apply":  # there are seven keys, and a change writes whole files again
            assert found["rows_written_total"] >= 7
        else:
            assert found["rows_written_total"] == topic.rows - 1
        assert 0 <= time.time() - found["progress_timestamp_seconds"] < DEADLINE_S
        driver.terminate()
        assert driver.wait(DEADLINE_S) == 0
    finally:
        driver.kill()
        driver.wait()
