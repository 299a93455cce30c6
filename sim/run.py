"""Runs of the simulation from the command line: many seeds at once, or the story of one.

python -m sim --minutes 10            seeds on all cores for ten minutes; what fails is shrunk and reported
python -m sim --seeds 200             seeds 0 to 199
python -m sim --seed 17 --trace       what happened in seed 17, step by step
python -m sim --mutation NAME         seeds until the mutant is found
python -m sim --mutants               the table of planted bugs: seeds until each is found, and by which promise
python -m sim --mutants --stale --page PAGE    the same for the rows whose world does not show the bug any more

There are four worlds: complete brokers (`--world brokers`); bare cores without the runtime, which simulate less and are
ten times faster (`cores`); complete brokers whose disks the real storage adapter writes (`disks`); and complete brokers
with an operator that changes what it wants of broker groups (`groups`). Some profiles are about something that not
every kind simulates. There they would test something else, so the command says which kind to name, and ends with status
2.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from .cores.kind import CORES
from .faults import PROFILES, NotSimulatedError, check_world
from .mutants.catalogue import MUTATIONS, OVERLAPPING, applied
from .scene import ClusterKind
from .whole.kinds import BROKERS, DISKS, GROUPS
from .world import Result, World

CHUNK = 25

RUNS_HERE_MAX = 16
"""Another process takes as long to start as some runs do."""
SHRINK_RUNS_MAX = 60
DISKS_EVERY = 3
"""One of this many seeds has the storage adapter, unless the command line names the world."""

STORY_LINES = 60
"""Of a failing seed's story, when it is not asked for by itself."""

MUTANTS = {**MUTATIONS, **OVERLAPPING}

WORLDS: dict[str, ClusterKind] = {"cores": CORES, "brokers": BROKERS, "disks": DISKS, "groups": GROUPS}


@dataclass(frozen=True, slots=True)
class Task:
    """One run of the simulation.

    Attributes:
        world: A name of `WORLDS`.
        mutation: The rule that is left out, or empty.
        profile: A name of `faults.profiles.PROFILES`, or empty for any.
        batch_count: Batches of a run of complete brokers; 0: drawn.
        left_out: Faults of the plan that do not strike.
        trace: Whether the result holds the story.
        detailed: Whether every value is mixed into the digest.
    """

    seed: int
    world: str = "cores"
    mutation: str = ""
    profile: str = ""
    batch_count: int = 0
    left_out: frozenset[int] = frozenset()
    trace: bool = False
    detailed: bool = False

    def run(self) -> Result:
        """Run it.

        Raises:
            NotSimulatedError: The world does not simulate what the profile is about.
        """
        check_world(self.profile, self.world)
        silence()
        began_s = time.process_time()
        with applied(MUTANTS[self.mutation] if self.mutation else None):
            result = World(
                self.seed,
                WORLDS[self.world],
                profile=self.profile,
                trace=self.trace,
                detailed=self.detailed,
                batch_count=self.batch_count,
                left_out=self.left_out,
            ).run()
        result.cpu_s = time.process_time() - began_s
        return result

    @property
    def command(self) -> str:
        """How to see it again."""
        words = [f"python -m sim --seed {self.seed}"]
        words += [f"--world {self.world}"] if self.world != "brokers" and not self.mutation else []
        words += [
            f"--{name} {value}" for name, value in (("mutation", self.mutation), ("profile", self.profile)) if value
        ]
        words += [f"--steps {self.batch_count}"] if self.batch_count else []
        words += [f"--without {','.join(map(str, sorted(self.left_out)))}"] if self.left_out else []
        return " ".join([*words, "--trace"])


def silence() -> None:
    """What brokers log is part of the story already; formatting it would cost more than all else in a run."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=True,
    )


def run_seed(seed: int, **options: object) -> Result:
    """One run; `options` are those of `Task`."""
    return Task(seed, **options).run()  # type: ignore[arg-type]


def run_all(tasks: Sequence[Task], processes: int | None = None, chunk: int = CHUNK) -> Iterator[Result]:
    """Many runs, in their order.

    Args:
        tasks: The runs.
        processes: On this many processes. None: two, or this one if the runs are few.
        chunk: How many runs go to a process at once.
    """
    if processes is None:
        processes = min(2, os.cpu_count() or 1) if len(tasks) > RUNS_HERE_MAX else 1
    if processes == 1:
        yield from map(Task.run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(Task.run, tasks, chunksize=chunk)


def run_seeds(seeds: Iterable[int], *, world: str = "cores", processes: int | None = None) -> Iterator[Result]:
    """Many seeds."""
    yield from run_all([Task(seed, world) for seed in seeds], processes)


def find(mutation: str, seeds: Iterable[int]) -> Result | None:
    """The first seed in which a mutant breaks what it is expected to break; None if none does.

    The worlds are of the mutant's own kind and profile, and a broken I13 (something got stuck) does not count.
    """
    wanted = MUTANTS[mutation]
    for seed in seeds:
        result = Task(seed, wanted.world, mutation, wanted.profile, wanted.batch_count).run()
        if result.rule in wanted.breaks:
            return result
    return None


def shrink(task: Task, failed: Result) -> tuple[Task, Result]:
    """The same seed with as few faults as still break the same rule: halves of them are left out first, then less."""
    kept = [number for number in range(failed.fault_count) if number not in task.left_out]
    runs = 0
    size = max(1, len(kept) // 2)
    while runs < SHRINK_RUNS_MAX:
        for chosen in _batched(kept, size):
            runs += 1
            smaller = replace(task, left_out=task.left_out | set(chosen))
            result = smaller.run()
            if result.rule == failed.rule:
                task, failed = smaller, result
                kept = [number for number in kept if number not in chosen]
            if runs >= SHRINK_RUNS_MAX:
                break
        if size == 1:
            break
        size = max(1, size // 2)
    return task, failed


def _batched(numbers: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(numbers[start : start + size]) for start in range(0, len(numbers), size)]


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
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--minutes", type=float, default=0.0, help="run seeds for this long instead")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--steps", type=int, help="batches of a run of complete brokers; left out: the bug's or drawn")
    parser.add_argument("--world", default="", choices=["", *WORLDS], help="what is simulated")
    parser.add_argument("--mutants", action="store_true", help="look for every planted bug, and print the table")
    parser.add_argument("--page", type=Path, help="with --mutants: the page whose rows are replaced")
    parser.add_argument(
        "--stale", action="store_true", help="with --page: only rows whose world does not show the bug any more"
    )
    parser.add_argument("--without", default="", help="numbers of faults that do not strike, as a shrunk seed says")
    parser.add_argument("--trace", action="store_true", help="print the story")
    parser.add_argument("--last", type=int, default=0, help="of the story only the last lines")
    parser.add_argument(
        "--mutation",
        default="",
        choices=["", *MUTANTS],
        metavar="BUG",
        help="plant this bug (docs/internals/planted-bugs.md)",
    )
    parser.add_argument(
        "--profile",
        choices=["", *PROFILES],
        metavar="PROFILE",
        help="worlds of this kind only (sim/faults/profiles.py); left out: the bug's",
    )
    parser.add_argument("--processes", type=int, default=0, help="how many run seeds; left out: one a processor")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the fifth failing seed")
    options = parser.parse_args(arguments)
    mutation = MUTANTS.get(options.mutation)
    if options.mutants:
        if options.stale and options.page is None:
            parser.error("--stale needs --page")
        processes = options.processes or os.cpu_count() or 1
        return _table_of_mutants(options.seeds, processes, options.page, only_stale=options.stale)
    if options.profile is None:
        options.profile = mutation.profile if mutation else ""
    if options.steps is None:
        options.steps = mutation.batch_count if mutation else 0
    world = options.world or (mutation.world if mutation else _world_of(options.profile))
    left_out = frozenset(int(number) for number in options.without.split(",") if number)
    task = Task(
        options.seed or 0, world, options.mutation, options.profile, options.steps, left_out, trace=options.trace
    )
    try:
        check_world(task.profile, task.world)
        return _one(task, options.last) if options.seed is not None else _many(task, options)
    except NotSimulatedError as error:
        print(f"sim: {error}", file=sys.stderr)
        return 2


def _world_of(profile: str) -> str:
    """The kind of world, unless the command line names one: complete brokers, if they have what the profile is
    about."""
    only = PROFILES[profile].only if profile else None
    return "brokers" if only is None or "brokers" in only.worlds else only.worlds[0]


def _one(task: Task, last: int) -> int:
    result = task.run()
    if result.violation and not task.trace and not task.mutation:
        _tell(task, result, last)
    else:
        _print_story(result, last)
    return 1 if result.violation else 0


def _tell(task: Task, failed: Result, last: int = 0) -> None:
    """Shrink a failing seed and print the end of its story."""
    smallest, _ = shrink(task, failed)
    result = replace(smallest, trace=True).run()
    left = result.fault_count - len(smallest.left_out)
    print(f"--- shrunk from {failed.fault_count} faults to {left}: {smallest.command}")
    _print_story(result, last or STORY_LINES)


def _task_of(task: Task, options: argparse.Namespace, seed: int) -> Task:
    """One of many runs: each third seed has the storage adapter, unless the command line names the world."""
    mixed = task.world == "brokers" and not options.world and not task.mutation and seed % DISKS_EVERY == 0
    return replace(task, seed=seed, trace=False, world="disks" if mixed else task.world)


def _tasks(task: Task, options: argparse.Namespace, began_s: float) -> Iterator[Task]:
    last = options.first + options.seeds
    for seed in itertools.count(options.first):
        over = time.monotonic() - began_s > options.minutes * 60 if options.minutes else seed >= last
        if over:
            return
        yield _task_of(task, options, seed)


def _waves(task: Task, options: argparse.Namespace, processes: int) -> Iterator[Result]:
    """All results; in waves, so that a run with a deadline ends soon after it."""
    began_s = time.monotonic()
    chunk = CHUNK if task.world == "cores" else 4
    tasks = _tasks(task, options, began_s)
    if processes == 1:
        yield from map(Task.run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        while wave := list(itertools.islice(tasks, processes * chunk * 4)):
            yield from pool.imap(Task.run, wave, chunksize=chunk)


def rows_of(page: Path) -> dict[str, int]:
    """By planted bug: the seed that showed it when its row was written."""
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \|.*\| (\d+) \| [A-Z0-9-]+ \|$", page.read_text(encoding="utf-8"))
    return {name: int(count) - 1 for name, count in rows}


def _table_of_mutants(seed_count: int, processes: int, page: Path | None, *, only_stale: bool) -> int:
    """Markdown: where each bug is planted, what is left out, the first seed that shows it, and the broken promise.

    With `page`, the rows of the page are replaced too; with `only_stale`, those whose world shows the bug stay.
    """
    print("| planted bug | in | rule that is left out | seeds until found | broken first |")
    print("|---|---|---|---|---|")
    missed = 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        names = list(MUTATIONS)
        if only_stale and page is not None:
            known = rows_of(page)
            own = [(name, range(known[name], known[name] + 1)) for name in names if name in known]
            shown = {name for (name, _), found in zip(own, pool.imap(_search, own), strict=True) if found is not None}
            names = [name for name in names if name not in shown]
        searches = [(name, range(seed_count)) for name in names]
        for name, found in zip(names, pool.imap(_search, searches), strict=True):
            mutation = MUTATIONS[name]
            missed += found is None
            seeds, rule = (str(found.seed + 1), found.rule) if found is not None else (f"not within {seed_count}", "")
            row = f"| `{name}` | {mutation.layer} | {mutation.rule} | {seeds} | {rule} |"
            print(row, flush=True)
            if page is not None:
                _replace_row(page, name, row)
    return int(missed > 0)


def _replace_row(page: Path, name: str, row: str) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    lines = [row if line.startswith(f"| `{name}` | ") and line.count("|") == row.count("|") else line for line in lines]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _search(search: tuple[str, range]) -> Result | None:
    return find(*search)


def _many(task: Task, options: argparse.Namespace) -> int:
    processes = options.processes or os.cpu_count() or 1
    failures: list[Result] = []
    states: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    cpu_s = virtual_s = 0.0
    began_s = time.monotonic()
    for result in _waves(task, options, processes):
        totals.update(
            seeds=1, events=result.event_count, accepted=result.accepted_count, switches=result.switch_count,
            faults=result.fault_count,
        )  # fmt: skip
        cpu_s += result.cpu_s
        virtual_s += result.virtual_us / 1e6
        states.update(result.states)
        if result.violation:
            failures.append(result)
            print(_summary(result), flush=True)
            if len(failures) >= 5 and not options.keep_going:
                break
    counted = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{counted}, {len(failures)} broken, {virtual_s:.0f} s virtual, {time.monotonic() - began_s:.1f} s")
    print(
        f"a second of one core: {totals['accepted'] / cpu_s:.0f} acknowledged batches, "
        f"{totals['switches'] / cpu_s:.1f} switches"
    )
    print("notes seen: " + ", ".join(f"{name} {seen}" for name, seen in sorted(states.items())))
    print("rules broken: " + ", ".join(f"{rule} {n}" for rule, n in Counter(f.rule for f in failures).most_common()))
    if failures and not task.mutation:
        _tell(_task_of(task, options, failures[0].seed), failures[0])
    found = bool(failures)
    return int(found if not task.mutation else not found)


if __name__ == "__main__":
    sys.exit(main())
