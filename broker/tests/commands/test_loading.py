"""What is imported, and when: others wait for the processors that a start takes.

The commands' modules are loaded by `seriatim --help` and by every typo: they bring no library of the broker. A server
brings its libraries, but not what they would take with them.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner
from seriatim_broker.commands import coordinator

LIBRARIES = ("grpc", "google.protobuf", "rocksdict", "aetcd", "structlog", "msgspec", "rich", "asyncio")


def test_commands_are_found_without_what_they_run() -> None:
    ours = ("seriatim_broker.", "seriatim_local.")
    points = [point for point in entry_points(group="seriatim.commands") if point.value.startswith(ours)]
    assert {point.name for point in points} == {"broker", "cluster", "coordinator", "standalone"}
    imports = "; ".join(f"import {point.module}" for point in points)
    program = f"import sys; {imports}; print(*(name for name in {LIBRARIES} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


LEFT_OUT = ("rich", "pydantic", "attr", "pyarrow", "numpy")
REFUSED = {
    "broker": ["--cluster", "c"],
    "coordinator": ["--data", "d", "--listen", "nowhere"],
    "standalone": ["--data", "d", "--listen", "nowhere"],
}
"""Arguments with which each command imports all it needs, and then refuses to start."""


@pytest.mark.parametrize("command", sorted(REFUSED))
def test_a_server_leaves_out_what_would_cost_its_start(command: str, tmp_path: Path) -> None:
    program = f"""
import sys
from importlib.metadata import entry_points
(point,) = entry_points(group="seriatim.commands", name="{command}")
try:
    point.load()({REFUSED[command]}, standalone_mode=False)
except SystemExit as exit:
    print(exit.code, "grpc" in sys.modules, *(name for name in {LEFT_OUT} if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout.split() == ["2", "True"], done


def test_without_its_package_the_embedded_coordinator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    done = CliRunner().invoke(coordinator, ["--data", "d", "--listen", "127.0.0.1:0"])
    assert done.exit_code == 2
    assert "Install it (in a clone: pip install ./api ./broker ./local), or run etcd" in done.output
