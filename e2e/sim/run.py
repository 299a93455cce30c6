"""Runs of the simulation from the command line: many seeds at once, or the story of one.

python -m e2e.sim --seeds 2000            seeds 0 to 1999 on all cores
python -m e2e.sim --seed 17 --trace       what happened in seed 17, step by step
python -m e2e.sim --mutation NAME         seeds until the mutant is found
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from .faults import PROFILES
from .mutations import MUTATIONS, OVERLAPPING, applied
from .world import Result, World

CHUNK = 25


def run_seed(
    seed: int, *, trace: bool = False, detailed: bool = False, mutation: str = "", profile: str = ""
) -> Result:
    """One run. With `trace` the result holds its story; `detailed` mixes every value into the digest."""
    with applied(mutation):
        return World(seed, profile=profile, trace=trace, detailed=detailed).run()


def _run_quietly(task: tuple[int, str, str]) -> Result:
    seed, mutation, profile = task
    return run_seed(seed, mutation=mutation, profile=profile)


def run_seeds(
    seeds: Iterable[int], *, mutation: str = "", profile: str = "", processes: int | None = None
) -> Iterator[Result]:
    """Many runs, on several processes, in the order of the seeds."""
    tasks = [(seed, mutation, profile) for seed in seeds]
    count = processes or os.cpu_count() or 1
    if count == 1:
        yield from map(_run_quietly, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield from pool.imap(_run_quietly, tasks, chunksize=CHUNK)


def find(mutation: str, seeds: Iterable[int]) -> Result | None:
    """The first seed in which a mutant breaks what it is expected to break; None if none does.

    The worlds are of the mutant's own profile, and a broken I13 (something got stuck) does not count.
    """
    wanted = MUTATIONS[mutation]
    for seed in seeds:
        result = run_seed(seed, mutation=mutation, profile=wanted.profile)
        if result.rule in wanted.breaks:
            return result
    return None


def _print_story(result: Result, last: int) -> None:
    lines = result.story[-last:] if last else result.story
    print("\n".join(lines))
    print(_summary(result))


def _summary(result: Result) -> str:
    ending = result.violation or "nothing broken"
    return (
        f"seed {result.seed}: {ending}\n  {result.event_count} events, {result.virtual_us / 1e6:.2f} s virtual, "
        f"{result.segment_count} segments, {result.accepted_count} accepted, outcomes {result.outcomes}, "
        f"digest {result.digest:08x}"
    )


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a promise was broken (with `--mutation`: if none was)."""
    parser = argparse.ArgumentParser(prog="python -m e2e.sim", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="print the story")
    parser.add_argument("--last", type=int, default=0, help="of the story only the last lines")
    parser.add_argument("--mutation", default="", choices=["", *MUTATIONS, *OVERLAPPING], help="break this rule")
    parser.add_argument("--profile", default="", choices=["", *PROFILES], help="worlds of this kind only")
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the fifth failing seed")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        result = run_seed(options.seed, trace=options.trace, mutation=options.mutation, profile=options.profile)
        _print_story(result, options.last)
        return 1 if result.violation else 0
    return _many(options)


def _many(options: argparse.Namespace) -> int:
    began = time.monotonic()
    failures: list[Result] = []
    states: Counter[str] = Counter()
    events = count = segments = 0
    seeds = range(options.first, options.first + options.seeds)
    processes = options.processes or None
    for result in run_seeds(seeds, mutation=options.mutation, profile=options.profile, processes=processes):
        count += 1
        events += result.event_count
        segments += result.segment_count
        states.update(result.states)
        if result.violation:
            failures.append(result)
            print(_summary(result), flush=True)
            if len(failures) >= 5 and not options.keep_going:
                break
    seconds = time.monotonic() - began
    print(f"{count} seeds, {len(failures)} broken, {events} events, {segments} segments, {seconds:.1f} s")
    print("notes seen: " + ", ".join(f"{name} {seen}" for name, seen in sorted(states.items())))
    print("rules broken: " + ", ".join(f"{rule} {n}" for rule, n in Counter(f.rule for f in failures).most_common()))
    found = bool(failures)
    return int(found if not options.mutation else not found)


if __name__ == "__main__":
    sys.exit(main())
