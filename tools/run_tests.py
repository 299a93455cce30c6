"""Runs the tests of each package on its own, and prints one line with the sums at the end.

Each package gets a pytest of its own. So packages are separate as in production, and the package named `operator` does
not hide that of the standard library.

Two packages at a time are too many, because brokers and clients of the tests have deadlines. Worlds of the simulator
have a virtual clock: they run at the lowest priority beside all others, and take the processor time that others leave.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tools import searches

PACKAGES = ("api", "broker", "client", "local", "operator", "spark-on-k8s", "tools", "sim", "e2e")
_FILES = ["-n", "2", "--dist", "loadfile"]
_WAITING_FILES = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]  # files with few tests wait longest
_TESTS = ["-n", "2", "--dist", "worksteal"]
_WAITING = ["-n", "3", "--dist", "worksteal"]
PARALLEL = {
    "quick": {
        "local": _FILES,
        "operator": _WAITING_FILES,  # for members of etcd, and for operators with an API server
        **dict.fromkeys(("broker", "client"), _WAITING),  # half of their time they wait, for example for a lease to end
        "e2e": _TESTS,
        "sim": _TESTS,
    },
    "slow": dict.fromkeys(("client", "sim"), _TESTS),
    "night": {"sim": _TESTS},
    "faults": {"e2e": _FILES},  # they mostly wait, and each process has a cluster of its own
}
"""Packages whose tests may run at the same time, file by file or test by test. The slow tests of the others start
processes that need both processors."""

BESIDE = "sim"
"""The package whose tests run beside those of the others. Its worlds have a virtual clock, so they may be slow."""

_LOWEST_PRIORITY = ["nice", "-n", "19"]
BESIDE_TIMEOUT_S = 900
"""For each test of `BESIDE`: beside busy tests, ten seconds of processor time take minutes."""

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


def summary(result: dict[str, int]) -> str:
    """What `counts` counted, for humans."""
    return f"{result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped"


MARKERS = {
    "quick": "not slow and not faults and not kubernetes and not spark",
    "slow": "slow and not night and not faults and not kubernetes and not spark",
    "night": "night",
    "faults": "faults",
    "spark": "spark",
    "spark-quick": "spark and not slow",
}


def run(
    package: str, kind: str, extra: list[str], *, second_try: bool = False, beside: IO[str] | None = None
) -> dict[str, int]:
    """Run one package's tests, and return their counts.

    Args:
        package: A name of `PACKAGES`.
        kind: A name of `MARKERS`.
        extra: More arguments for pytest.
        second_try: Run the tests that failed once more, alone.
        beside: Run them at the lowest priority, and write all output here.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", package, "-q", "-rs", "-m", MARKERS[kind], *extra]
        pytest += [f"--junit-xml={report}", "-o", f"cache_dir={scratch}/cache"]
        pytest += ["--durations=10", f"--durations-min={SHOWN_S}"]
        if kind == "slow":
            pytest += ["-p", searches.__name__, f"--hypothesis-profile={searches.SEARCH_PROFILE}"]
        if package == BESIDE:
            pytest += [f"--timeout={BESIDE_TIMEOUT_S}"]
        if beside:
            pytest = [*_LOWEST_PRIORITY, *pytest]
        started = time.monotonic()
        result = _counted([*pytest, *([] if extra else PARALLEL.get(kind, {}).get(package, []))], report, beside)
        if second_try and result["failed"]:
            print(f"needed a second try: {result['failed']} of {package}", file=beside, flush=True)
            again = _counted([*pytest, "--last-failed", "--last-failed-no-failures=none"], report, beside)
            failed = max(again["failed"], result["failed"] - again["passed"])  # what the second try left out has failed
            result = {**result, "passed": result["passed"] + again["passed"], "failed": failed}
        print(f"{package}: {summary(result)} in {time.monotonic() - started:.0f} s\n", file=beside, flush=True)
        return result


def _counted(command: list[str], report: Path, output: IO[str] | None) -> dict[str, int]:
    """Run pytest, and count what it reports."""
    report.unlink(missing_ok=True)
    done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ}, stdout=output, stderr=output)
    result = counts(report)
    if done.returncode not in (0, 5) and not result["failed"]:
        result["failed"] = 1  # an internal error or an interruption counts as a failure
    return result


def run_all(packages: Sequence[str], kind: str, extra: list[str], *, second_try: bool) -> Iterator[dict[str, int]]:
    """Run the packages one after the other, but `BESIDE` beside them; its output comes last. Return their counts."""
    with ThreadPoolExecutor(1) as thread, tempfile.TemporaryFile("w+") as output:
        waiting: Future[dict[str, int]] | None = None
        if BESIDE in packages and len(packages) > 1:
            packages = [package for package in packages if package != BESIDE]
            waiting = thread.submit(run, BESIDE, kind, extra, second_try=second_try, beside=output)
        for package in packages:
            yield run(package, kind, extra, second_try=second_try)
        if waiting:
            yield waiting.result()
            output.seek(0)
            sys.stdout.write(output.read())


def main() -> int:
    """Run the chosen tests. Return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=MARKERS, default="quick", help="which tests, by their marks")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only this package (may be repeated)")
    parser.add_argument("--without", action="append", choices=PACKAGES, default=[], help="not this package")
    parser.add_argument("--second-try", action="store_true", help="run the tests that failed once more, and say so")
    arguments, extra = parser.parse_known_args()
    total = {"passed": 0, "failed": 0, "skipped": 0}
    packages = [package for package in arguments.package or PACKAGES if package not in arguments.without]
    for result in run_all(packages, arguments.kind, extra, second_try=arguments.second_try):
        for name, count in result.items():
            total[name] += count
    print(summary(total))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
