"""Processes that outlive their starter: started once, ended exactly, and no other process with their pid."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kubernetes.layout import Layout
from tools.kubernetes.processes import Processes

SLEEP = ["sleep", "300"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(Layout(tmp_path, tmp_path))
    yield found
    for name in found.names():
        found.end(name, grace_s=0)


def test_a_process_is_started_once_and_ended(processes: Processes) -> None:
    processes.start("sleeper", SLEEP)
    pid = processes.pid("sleeper")
    assert pid is not None
    assert os.getsid(pid) == pid, "it must not get our terminal's signals"
    processes.start("sleeper", SLEEP)
    assert processes.pid("sleeper") == pid
    processes.end("sleeper")
    assert not Path(f"/proc/{pid}").exists()
    assert processes.names() == []


def test_one_that_does_not_listen_is_killed(processes: Processes) -> None:
    argv = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
    processes.start("deaf", argv)
    while "ready" not in processes.log_path("deaf").read_text():
        assert processes.is_running("deaf")
    processes.end("deaf", grace_s=0.1)
    assert not processes.is_running("deaf")


def test_a_pid_that_means_another_process_by_now_is_left_alone(processes: Processes, tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP) as other:
        try:
            processes.start("sleeper", SLEEP)
            processes.end("sleeper")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            record = {"name": "sleeper", "pid": other.pid, "started_ticks": 1, "boot": boot}
            (tmp_path / "processes" / "sleeper.json").write_text(json.dumps(record))
            assert not processes.is_running("sleeper")
            processes.end("sleeper")
            assert other.poll() is None
        finally:
            other.kill()


def test_a_process_of_an_earlier_boot_does_not_run(processes: Processes, tmp_path: Path) -> None:
    processes.start("sleeper", SLEEP)
    path = tmp_path / "processes" / "sleeper.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "boot": "another"}))
    assert not processes.is_running("sleeper")
    path.write_text(json.dumps(record))
    assert [found.name for found in processes.alive()] == ["sleeper"]
