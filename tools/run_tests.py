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
_FILES = ["-n", "2", "--dist", "loadfile"]
_TESTS = ["-n", "2", "--dist", "worksteal"]
_WAITING = ["-n", "3", "--dist", "worksteal"]
PARALLEL = {
    "quick": {
        **dict.fromkeys(("client", "local", "operator", "e2e"), _FILES),
        "broker": _WAITING,  # a third of its time its tests wait, for example until a lease has ended
        "sim": _TESTS,
    },
    "slow": dict.fromkeys(("client", "sim"), _TESTS),
    "faults": {"e2e": _FILES},  # they mostly wait, and each process has a cluster of its own
}
"""Packages whose tests may run at the same time, file by file or test by test. The slow tests of the others start
processes that need both processors."""

SHOWN_S = 10
"""Tests that take longer are named: the longest ten of a package."""

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


def run(package: str, kind: str, extra: list[str], *, second_try: bool = False) -> dict[str, int]:
    """Run one package's tests, and return their counts. `second_try`: run those that failed once more, alone."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", package, "-q", "-rs", "-m", MARKERS[kind], *extra]
        pytest += [f"--junit-xml={report}", "-o", f"cache_dir={scratch}/cache"]
        pytest += ["--durations=10", f"--durations-min={SHOWN_S}"]
        started = time.monotonic()
        result = _counted([*pytest, *([] if extra else PARALLEL.get(kind, {}).get(package, []))], report)
        if second_try and result["failed"]:
            print(f"needed a second try: {result['failed']} of {package}", flush=True)
            again = _counted([*pytest, "--last-failed", "--last-failed-no-failures=none"], report)
            failed = max(again["failed"], result["failed"] - again["passed"])  # what the second try left out has failed
            result = {**result, "passed": result["passed"] + again["passed"], "failed": failed}
        print(f"{package}: {result['passed']} passed in {time.monotonic() - started:.0f} s\n", flush=True)
        return result


def _counted(command: list[str], report: Path) -> dict[str, int]:
    """Run pytest, and count what it reports."""
    report.unlink(missing_ok=True)
    status = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ}).returncode
    result = counts(report)
    if status not in (0, 5) and not result["failed"]:
        result["failed"] = 1  # an internal error or an interruption counts as a failure
    return result


def main() -> int:
    """Run the chosen tests. Return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=MARKERS, default="quick", help="which tests, by their marks")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only this package (may be repeated)")
    parser.add_argument("--second-try", action="store_true", help="run the tests that failed once more, and say so")
    arguments, extra = parser.parse_known_args()
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for package in arguments.package or PACKAGES:
        for name, count in run(package, arguments.kind, extra, second_try=arguments.second_try).items():
            total[name] += count
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
