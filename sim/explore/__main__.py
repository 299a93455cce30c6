"""`python -m sim.explore`: narrow worlds that go deep, then the whole small world, or one world by its options."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import replace

from ..mutants.catalogue import MUTATIONS, OVERLAPPING, applied
from .mutants import GROUP_DIES, LOST_WRITE, QUIET, RACE, RESTART, TALK, UNSETTLED_ACKNOWLEDGED, table
from .search import RARE, STATES_DEFAULT, explore, report
from .state import Limits

WORLDS = {
    "calm": (0.01, replace(QUIET, messages=3, quick_disks=0)),
    "restart": (0.01, RESTART),
    "lost write": (0.04, replace(LOST_WRITE, questions=1)),
    "race": (0.15, RACE),
    "complaint": (0.29, TALK),
    "unsettled": (0.01, UNSETTLED_ACKNOWLEDGED),
    "group dies": (0.29, GROUP_DIES),
    "everything": (0.2, Limits(messages=3, crashes=2, restarts=1, timeouts=1, complaints=1, timers=1)),
}
"""By name: the share of the states, and what may happen. Of 400,000 states, the first six need no more."""


def main() -> int:
    """Explore, print, and fail if a promise was broken."""
    arguments = _parse()
    if arguments.mutants:
        lines = table()
        print("\n".join(lines))
        return int(any(line.split()[1] == "-" for line in lines[1:-1]))
    worlds = _worlds(arguments)
    mutation = {**MUTATIONS, **OVERLAPPING}[arguments.mutation] if arguments.mutation else None
    reached: set[str] = set()
    states, exhausted = 0, 0
    for name, (share, world) in worlds.items():
        print(f"--- {name}: {world}")
        with applied(mutation):
            found = explore(world, round(arguments.states * share))
        print(report(found), flush=True)
        if found.violation:
            return 1
        states += found.states
        exhausted += found.exhausted
        reached |= {situation for situation in RARE if found.seen[situation]}
    missed = [situation for situation in RARE if situation not in reached]
    print(f"--- {states:,} states in {len(worlds)} worlds, {exhausted} of them exhausted; no violation")
    print(f"reached: {', '.join(sorted(reached)) or 'nothing rare'}; not reached: {', '.join(missed) or 'none'}")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All interleavings of a small world, breadth first.")
    parser.add_argument("--states", type=int, default=STATES_DEFAULT, help="stop when this many were found, in all")
    parser.add_argument("--mutation", choices=sorted({**MUTATIONS, **OVERLAPPING}), help="remove this rule first")
    parser.add_argument(
        "--mutants", action="store_true", help="remove one rule after the other: which are missed how soon"
    )
    parser.add_argument("--world", choices=sorted(WORLDS), help="only this one")
    limits = parser.add_argument_group("a world of one's own, instead of those by name")
    for field in dataclasses.fields(Limits):
        limits.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), help=f"({field.default})")
    return parser.parse_args()


def _worlds(arguments: argparse.Namespace) -> dict[str, tuple[float, Limits]]:
    """The worlds that are explored, by name, each with its share of the states."""
    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Limits)}
    own = {name: value for name, value in given.items() if value is not None}
    if own:
        return {"own": (1.0, Limits(**own))}
    if arguments.world:
        return {arguments.world: (1.0, WORLDS[arguments.world][1])}
    return WORLDS


if __name__ == "__main__":
    sys.exit(main())
