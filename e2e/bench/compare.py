"""`python -m e2e.bench.compare COMMIT`, or `make bench-compare BASE=COMMIT`: is this checkout faster than that commit?

The commit's code gets a checkout and an environment of its own, in `bench-out/base-COMMIT`, which the next comparison
with it uses again (`git worktree list` shows it). Then both run the same workloads in turns: A B A B, with the
benchmark of this checkout. A is the commit, B this checkout. A machine changes its speed from minute to minute, so only
runs beside one another count.

The table shows each figure of each run, and for each the ratio of B's median to A's: above 1 is better, whether more
or less of it is wanted. It writes `compare.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from e2e.bench.measures.figures import narrow_table, rounded, tell_below, write_json
from e2e.bench.measures.machine import machine_facts

ROOT: Final = Path(__file__).resolve().parents[2]
ROUNDS: Final = 2

NEEDED: Final = "hdrhistogram"
"""What the benchmark of this checkout needs, and the environments of older commits do not have."""


class CompareError(Exception):
    """The comparison cannot be made. The text says why."""


def checkout(commit: str, out: Path) -> Path:
    """Return a checkout of a commit with its environment, and make both if they are missing. Both use the same Python.

    Raises:
        CompareError: There is no such commit, its environment cannot be made, or it was made with another Python.
    """
    name = _say(["git", "-C", str(ROOT), "rev-parse", "--verify", "--short=12", f"{commit}^{{commit}}"]).strip()
    place = (out / f"base-{name}").resolve()
    if not (place / ".git").exists():
        _say(["git", "-C", str(ROOT), "worktree", "prune"])
        _say(["git", "-C", str(ROOT), "worktree", "add", "--detach", str(place), name])
    _say(["git", "-C", str(place), "reset", "--hard", name])  # an interrupted checkout has only some of the files
    # Not the commit's own way: it may not know a Python without pip.
    _say([str(ROOT / "tools" / "environment.sh"), ".venv", str(Path(sys.executable).resolve())], place)
    python = str(place / ".venv" / "bin" / "python")
    version = _say([python, "-c", "import sys; print(sys.version)"]).strip()
    if version != sys.version.strip():
        raise CompareError(f"{place}/.venv has Python {version}, and this checkout {sys.version}: remove {place}/.venv")
    needed = f"{NEEDED}=={metadata.version(NEEDED)}"
    _say([str(place / ".venv" / "bin" / "uv"), "pip", "install", "--python", python, needed], place)
    return place


def _say(command: Sequence[str], place: Path = ROOT) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # uv is there
    environment = os.environ | {"PATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=environment)
    if done.returncode != 0:
        raise CompareError(f"{' '.join(command)}: {done.stderr.strip()[-800:]}")
    return done.stdout


def run_once(python: Path, arguments: Sequence[str], out: Path) -> dict[str, dict[str, Any]]:
    """Run this checkout's benchmark with the packages of a Python's environment. Return the figures by name.

    Raises:
        CompareError: It did not write its figures.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = out / "bench.json"
    written.unlink(missing_ok=True)
    command = [str(python), "-m", "e2e.bench.run", *arguments]
    said = run_to_its_end(command, os.environ | {"OUT": str(out)})
    if not written.exists():
        raise CompareError(f"{python}: no figures: {said.strip()[-800:]}")
    figures: dict[str, dict[str, Any]] = json.loads(written.read_text())["figures"]
    return figures


def run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a program, and return what it wrote: its errors if there are any.

    The program has a session of its own, so that Ctrl-C does not reach it twice. If this call is interrupted, it
    interrupts the program once, and waits until the program has ended everything that it started.
    """
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        try:
            said, errors = running.communicate()
        except BaseException:
            running.send_signal(signal.SIGINT)
            running.communicate()
            raise
    return errors or said


def ratio(a: Sequence[float], b: Sequence[float], *, higher_is_better: bool) -> float:
    """How much better B is than A, by medians: 1.1 is a tenth better."""
    return median(b) / median(a) if higher_is_better else median(a) / median(b)


def compare_table(runs: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]]) -> tuple[Table, dict[str, float]]:
    """The table of all runs, and the ratio of each figure that was verified in all of them.

    Below the table are the problems of the others. The table of two rounds fits into 80 columns.
    """
    drawn = narrow_table("A: the commit, B: this checkout", *(side for side, _ in runs), "B better")
    ratios: dict[str, float] = {}
    above = ""
    for name, first in runs[0][1].items():
        row = [figures.get(name) for _, figures in runs]
        shown = [_shown(figure) for figure in row]
        sides: dict[str, list[float]] = {"A": [], "B": []}
        for (side, _), figure in zip(runs, row, strict=True):
            if figure is not None and figure["value"] and not figure["problem"]:
                sides[side].append(figure["value"])
        said = "–"
        if all(len(values) == len(runs) // 2 for values in sides.values()):
            ratios[name] = ratio(sides["A"], sides["B"], higher_is_better=first["higher_is_better"])
            said = f"{ratios[name]:.2f}"
        workload, _, label = first["text"].partition(": ")
        if workload != above:
            drawn.add_row(f"[bold]{workload}[/]")
            above = workload
        drawn.add_row(f"  {label or 'rate'}, {first['unit']}", *shown, said)
    problems = [
        f"{side}: {figure['text']}: {figure['problem']}"
        for side, figures in runs
        for figure in figures.values()
        if figure["problem"]
    ]
    tell_below(drawn, list(dict.fromkeys(problems)))
    return drawn, ratios


def _shown(figure: Mapping[str, Any] | None) -> str:
    if figure is None or figure["value"] is None or figure["problem"]:
        return "–"
    return rounded(float(figure["value"]))


def main() -> int:
    """Compare. Return 1 if a figure was not verified in each run, 2 if there is no comparison, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make bench-compare", description="this checkout beside another commit")
    parser.add_argument("commit", help="the commit to compare with (A)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each side runs (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run each workload a quarter as long")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORKLOAD", help="run these workloads")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    out = Path(os.environ.get("OUT") or "bench-out").resolve()
    out.mkdir(parents=True, exist_ok=True)
    passed = (["--quick"] if arguments.quick else []) + (["--only", *arguments.only] if arguments.only else [])
    begin = time.monotonic()
    machine = machine_facts(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run as Ctrl-C does
    runs: list[tuple[str, dict[str, dict[str, Any]]]] = []
    try:
        with console.status("making the environment of the commit") as status:
            base = checkout(arguments.commit, out)
            # B's is the Python of this process, whose environment may be another one than .venv (`make VENV=`).
            sides = {"A": (base.name, base / ".venv" / "bin" / "python"), "B": (ROOT.name, Path(sys.executable))}
            for number in range(arguments.rounds):
                for side, (name, python) in sides.items():
                    status.update(f"round {number + 1} of {arguments.rounds}: {side} ({name})")
                    runs.append((side, run_once(python, passed, out / f"compare-{side}{number + 1}")))
    except CompareError as error:
        console.print(f"[bold red]FAILED[/] {escape(str(error))}", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        return 130
    drawn, ratios = compare_table(runs)
    console.print(drawn)
    figures = [{"side": side, "figures": found} for side, found in runs]
    text = {"base": base.name, "machine": machine, "took_s": round(time.monotonic() - begin, 1)}
    write_json(out / "compare.json", json.dumps(text | {"ratios": ratios, "runs": figures}, indent=2))
    console.print(f"figures: {out / 'compare.json'}", highlight=False)
    return int(len(ratios) < len(runs[0][1]))


if __name__ == "__main__":
    sys.exit(main())
