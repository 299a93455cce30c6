"""What is loaded for what: the command's help and administration must not wait for libraries that they do not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = ("grpc", "google.protobuf", "pyarrow", "numpy", "rich", "asyncio")


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*(name for name in {LIBRARIES} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        ("import seriatim", set()),
        ("import seriatim.history", set()),
        ("import seriatim.cli", set()),
        ("import seriatim.cli.topic, seriatim.cli.group, seriatim.cli.member", {"asyncio"}),
        ("import seriatim.cli.produce, seriatim.cli.consume", {"asyncio"}),
        ("from seriatim import Admin, Client", {"asyncio", "grpc", "google.protobuf"}),
    ],
)
def test_only_what_is_needed_is_loaded(code: str, libraries: set[str]) -> None:
    assert loaded_by(code) == libraries
