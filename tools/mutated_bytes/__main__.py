"""The command; see the package."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from .child import PLACE, decoders_of, input_of

INPUTS_DEFAULT: Final = 1_000_000
MODULE: Final = "tools.mutated_bytes.decoders"
CHILD_S_MAX: Final = 3600.0
ROOT: Final = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """What happened to the inputs of one decoder."""

    name: str
    inputs: int
    accepted: int
    refused: int
    grown_bytes: int
    slowest_s: float
    problems: list[str]


def examine(
    names: Sequence[str], seed: int, begin: int, count: int, *, module: str = MODULE, deadline_s: float = CHILD_S_MAX
) -> list[Outcome]:
    """Give inputs to some decoders, all in one process. If it ends too early, those after get none."""
    with tempfile.NamedTemporaryFile() as told:
        told.write(PLACE.pack(0, -1))
        told.flush()
        arguments = [module, ",".join(names), str(seed), str(begin), str(count), told.name]
        command = [sys.executable, "-m", "tools.mutated_bytes.child", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=deadline_s, check=False)
        except subprocess.TimeoutExpired:
            problem = f"it did not end within {deadline_s:.0f} s"
        else:
            if done.returncode == 0:
                found = json.loads(done.stdout)
                return [_outcome(name, count, each) for name, each in zip(names, found, strict=True)]
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
            problem = f"the process ended with {how}: {done.stderr.strip()[-300:]}"
        at, number = PLACE.unpack(Path(told.name).read_bytes())
    data = input_of(decoders_of(module)[names[at]], seed, number)
    problems = [f"input {number}: {problem}; {data[:200].hex()}"]
    return [Outcome(names[at], max(number - begin, 0), 0, 0, 0, 0.0, problems)]


def _outcome(name: str, count: int, found: dict[str, Any]) -> Outcome:
    problems = [f"input {red['number']}: {red['problem']}; {red['input']}" for red in found["red"]]
    if found["red_count"] > len(problems):
        problems.append(f"and {found['red_count'] - len(problems)} more")
    return Outcome(name, count, found["accepted"], found["refused"], found["grown_bytes"], found["slowest_s"], problems)


def main() -> int:
    """Examine the decoders, one after another. Returns 1 if an input was red."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutated_bytes", description="mutated inputs for decoders")
    parser.add_argument("--inputs", type=int, default=INPUTS_DEFAULT, help="for all decoders together")
    parser.add_argument("--only", default="", help="decoders with this in their names")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="begin", type=int, default=0, help="the number of the first input")
    wanted = parser.parse_args()
    decoders = decoders_of(MODULE)
    names = [name for name in decoders if wanted.only in name]
    if not names:
        parser.error(f"no decoder has {wanted.only!r} in its name: {', '.join(decoders)}")
    outcomes = []
    for name in names:
        (outcome,) = examine([name], wanted.seed, wanted.begin, max(wanted.inputs // len(names), 1))
        outcomes.append(outcome)
        print(
            f"{name:24} {outcome.inputs:9,} inputs, {outcome.accepted:8,} accepted, {outcome.refused:8,} refused, "
            f"memory +{outcome.grown_bytes >> 20} MiB, slowest {outcome.slowest_s * 1000:.0f} ms",
            flush=True,
        )
        for problem in outcome.problems:
            print(f"    RED {problem}", flush=True)
    red = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{sum(outcome.inputs for outcome in outcomes):,} inputs, {len(outcomes)} decoders, {red} of them red")
    return int(red > 0)


if __name__ == "__main__":
    sys.exit(main())
