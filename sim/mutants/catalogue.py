"""All planted bugs: rules of the product, removed one at a time, each of which the simulation must find.

A mutant replaces named decision points for the time of a run. Each mutant lists the promises that the judge may report
as broken. `python -m sim --mutation NAME` looks for seeds, `python -m sim --mutants` prints the table of all.
"""

from __future__ import annotations

from . import (
    client,
    coordinator,
    copies,
    crossings,
    dead_letters,
    delayed,
    empty_segments,
    groups,
    keyed,
    modes,
    operations,
    producer_tables,
    publishing,
    ranges,
    reading,
    retention,
    runtime,
    servers,
    silence,
    storage,
    topics,
    writing,
)
from .mutation import Mutation, applied
from .rows import mutations

MODULES = (
    writing,
    reading,
    client,
    runtime,
    storage,
    groups,
    servers,
    coordinator,
    producer_tables,
    empty_segments,
    topics,
    operations,
    ranges,
    retention,
    copies,
    publishing,
    keyed,
    modes,
    dead_letters,
    delayed,
    silence,
    crossings,
)

MUTATIONS: dict[str, Mutation] = {name: mutation for module in MODULES for name, mutation in module.MUTATIONS.items()}
"""By name. No two modules have the same name."""

OVERLAPPING: dict[str, Mutation] = servers.OVERLAPPING | mutations("""
[restarts]
fence-at-start: a start fences
@ core.switching.fencing.fence_unsealed
+ pass
void-at-start: a start voids
@ core.switching.preparing.void_switch_attempts
+ pass
""")
"""Rules whose absence shows nowhere, because another covers for each (see `mutants.writing`); for `--mutation`."""

__all__ = ["MUTATIONS", "OVERLAPPING", "Mutation", "applied"]
