"""The commands' modules are loaded by `seriatim --help` and by every typo: they bring no library of the broker."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

LIBRARIES = ("grpc", "google.protobuf", "rocksdict", "aetcd", "structlog", "pydantic", "rich", "asyncio")


def test_commands_are_found_without_what_they_run() -> None:
    points = [point for point in entry_points(group="seriatim.commands") if point.value.startswith("seriatim_broker.")]
    assert {point.name for point in points} == {"broker", "cluster", "coordinator", "standalone"}
    imports = "; ".join(f"import {point.module}" for point in points)
    program = f"import sys; {imports}; print(*(name for name in {LIBRARIES} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
