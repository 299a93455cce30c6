"""Runs the tests of each package on its own, and prints one line with the sums at the end.

Each package gets a pytest of its own. So packages are separate as in production, and the package named `operator` does
not hide that of the standard library.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PACKAGES = ("api", "broker", "client", "local", "operator", "spark-on-k8s", "tools", "sim", "e2e")
_BESIDE = ("broker", "client", "local", "operator", "sim", "e2e")
PARALLEL = {package: ["-n", "2", "--dist", "loadfile"] for package in _BESIDE}
"""Packages whose test files may run at the same time. The tests of e2e and local start processes of their own."""

ROOT = Path(__file__).resolve().parent.parent


def counts(report: Path) -> dict[str, int]:
    """Count passed, failed and skipped tests in a JUnit report. If a run left no report, it counts as one failure."""
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):  # noqa: S314 - our own file
        for name in totals:
            totals[name] += int(suite.get(name, "0"))
    failed = totals["failures"] + totals["errors"]
    return {"passed": totals["tests"] - failed - totals["skipped"], "failed": failed, "skipped": totals["skipped"]}


MARKERS = {
    "quick": "not slow and not faults and not kubernetes and not spark",
    "slow": "slow and not faults and not kubernetes and not spark",
    "faults": "faults",
    "spark": "spark",
    "spark-quick": "spark and not slow",
}


def run(package: str, kind: str, extra: list[str]) -> dict[str, int]:
    """Run one package's tests, and return their counts."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        marker = MARKERS[kind]
        command = [sys.executable, "-m", "pytest", package, "-q", "-rs", "-m", marker, f"--junit-xml={report}"]
        command += [*([] if kind != "quick" or extra else PARALLEL.get(package, [])), *extra]
        started = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ}).returncode
        result = counts(report)
        if status not in (0, 5) and not result["failed"]:
            result["failed"] = 1  # an internal error or an interruption counts as a failure
        print(f"{package}: {result['passed']} passed in {time.monotonic() - started:.0f} s\n", flush=True)
        return result


def main() -> int:
    """Run the chosen tests. Return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=MARKERS, default="quick", help="which tests, by their marks")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only this package (may be repeated)")
    arguments, extra = parser.parse_known_args()
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for package in arguments.package or PACKAGES:
        for name, count in run(package, arguments.kind, extra).items():
            total[name] += count
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
