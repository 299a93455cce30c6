"""Checks, before anything is downloaded, that this machine has Java 17 or newer, which Spark needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17


def java() -> str | None:
    """Return the Java program that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = Path(home) / "bin" / "java"
        return str(found) if found.exists() else None
    return shutil.which("java")


def version_of(text: str) -> int | None:
    """Read the major version from the output of `java -version`: 17 from `openjdk version "17.0.15"`."""
    found = re.search(r'version "(\d+)', text)
    return int(found[1]) if found else None


def main() -> int:
    """Return 1 if there is no Java, or only one that is too old."""
    program = java()
    wanted = f"Spark needs Java {OLDEST} or newer (Debian: apt install openjdk-{OLDEST}-jre-headless)"
    if program is None:
        print(f"{wanted}. This machine has no Java at JAVA_HOME or in PATH.", file=sys.stderr)
        return 1
    told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = version_of(told.stderr + told.stdout)
    if version is None or version < OLDEST:
        print(f"{wanted}, and {program} is version {version or 'unknown'}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
