"""A user who asks a program for help gets it, and no run begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("program", ["e2e.faults", "e2e.demo", "e2e.demo_orders"])
def test_help_begins_no_run(program: str, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out"), "PYTHONPATH": str(Path(__file__).parents[3])}
    for option, status in (("--help", 0), ("QUICK=1", 2)):
        run = subprocess.run(
            [sys.executable, "-m", program, option], capture_output=True, text=True, timeout=60, env=environment,
            check=False,
        )  # fmt: skip
        assert run.returncode == status
        assert f"usage: python -m {program}" in run.stdout + run.stderr
    assert not (tmp_path / "out").exists()
