"""Builds the preloaded library of `tools/slowdisk`, and the environment of a process that gets it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[3] / "tools" / "slowdisk" / "slowdisk.c"


def build(directory: Path) -> Path:
    """The library, built in `directory`; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: the slow disk cannot be built")
    library = directory / "slowdisk.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return library


def environment(library: Path, prefix: Path, settings: str, control: Path) -> dict[str, str]:
    """What a process needs to have this disk below `prefix`; `control` may change the settings later."""
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "SLOWDISK": settings,
        "SLOWDISK_PREFIX": str(prefix),
        "SLOWDISK_CONTROL": str(control),
    }
