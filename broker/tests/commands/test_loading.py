"""What is imported, and when: others wait for the processors that a start takes.

The commands' modules are loaded by `seriatim --help` and by every typo: they bring no library of the broker. A server
brings its libraries, but not what they would take with them.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

LIBRARIES = ("grpc", "google.protobuf", "rocksdict", "aetcd", "structlog", "msgspec", "rich", "asyncio")


def test_commands_are_found_without_what_they_run() -> None:
    points = [point for point in entry_points(group="seriatim.commands") if point.value.startswith("seriatim_broker.")]
    assert {point.name for point in points} == {"broker", "cluster", "coordinator", "standalone"}
    imports = "; ".join(f"import {point.module}" for point in points)
    program = f"import sys; {imports}; print(*(name for name in {LIBRARIES} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


LEFT_OUT = ("rich", "pydantic", "attr", "pyarrow", "numpy")


def test_a_server_leaves_out_what_would_cost_its_start() -> None:
    program = (
        "import sys; from seriatim_broker.process_start import prepare_process; prepare_process();"
        f"import seriatim_broker.serving; print(*(name for name in {LEFT_OUT} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
