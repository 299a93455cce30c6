"""`python -m e2e.sim.explore`."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from ..mutations import MUTATIONS, OVERLAPPING, applied
from .model import Limits
from .search import STATES_DEFAULT, explore, report


def main() -> int:
    """Explore, print, and fail if a promise was broken."""
    parser = argparse.ArgumentParser(description="All interleavings of a small world, breadth first.")
    parser.add_argument("--states", type=int, default=STATES_DEFAULT, help="stop when so many were found")
    parser.add_argument("--mutation", choices=sorted({**MUTATIONS, **OVERLAPPING}), help="remove this rule first")
    for field in dataclasses.fields(Limits):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = parser.parse_args()
    limits = Limits(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Limits)})
    print(limits)
    mutation = {**MUTATIONS, **OVERLAPPING}[arguments.mutation] if arguments.mutation else None
    with applied(mutation):
        found = explore(limits, arguments.states)
    print(report(found))
    return 1 if found.violation else 0


if __name__ == "__main__":
    sys.exit(main())
