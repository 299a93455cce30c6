"""`python -m sim.chosen`: which worlds `.ci/run` simulates for a change, and with which seeds.

The profiles are those that the changed files concern (`CONCERNS`); all, if a core has changed or nothing is known. The
first seed comes from the commit, so each commit runs other seeds, and the same commit runs the same again.
SIM_FIRST=n runs those of another commit; SIM_BASE=commit says since when files count as changed. `make night` runs all
profiles.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .faults import PROFILES
from .run import WORLDS, Task

ROOT: Final = Path(__file__).resolve().parents[1]
WHOLE: Final = ("brokers", "disks", "groups")
SHORT: Final = 100
"""Batches of a run of complete brokers."""

ALL: Final = ("*",)
NOTHING: Final = ()

CONCERNS: Final = (
    ("sim/tests/", NOTHING, NOTHING),
    ("sim/explore/", NOTHING, NOTHING),
    *((f"sim/faults/{family}.py", (family,), ALL) for family in ("keyed", "dead_letters", "retention", "crossings")),
    *((f"sim/faults/{family}.py", (family,), ALL) for family in ("producers", "servers", "chains", "links", "disks")),
    ("sim/whole/", ALL, WHOLE),
    ("sim/", ALL, ALL),
    ("broker/src/seriatim_broker/adapters/rocks/", ALL, ("disks",)),
    ("broker/src/seriatim_broker/adapters/", NOTHING, NOTHING),
    ("broker/src/seriatim_broker/runtime/", ALL, WHOLE),
    ("broker/src/seriatim_broker/rpc/", NOTHING, NOTHING),
    ("broker/src/", ALL, ALL),
    ("client/src/seriatim/_core/", ALL, ALL),
    ("client/src/seriatim/_publishing/", ("producers", "crossings"), ("cores",)),
    ("api/src/", ALL, ALL),
    ("uv.lock", ALL, ALL),
)
"""Beginnings of paths, the modules of `sim.faults` whose profiles they concern, and the kinds of worlds. The first one
that fits counts. A path that none fits is nothing that worlds run."""

FIXED: Final = {
    "dropped-restored": "ADR 0026 says which of its faults are not mended",
    "restored-alone": "ADR 0026 says which of its faults are not mended",
}
"""Profiles whose seeds do not change, because a fault is known in some, and why."""

FIRST_MAX: Final = 1_000_000
RUNS: Final = {"cores": 600, "brokers": 120, "disks": 60, "groups": 40}
"""About this many runs in worlds of each kind, shared among the profiles that were chosen."""
DAY_S: Final = 86_400
SEEDS_MAX: Final = 40
"""Of one profile in one kind of world."""


@dataclass(frozen=True)
class Choice:
    """What is simulated for a change.

    Attributes:
        pairs: Profile and kind of world.
        first: The first seed of each.
        why: For humans.
    """

    pairs: tuple[tuple[str, str], ...]
    first: int
    why: str

    def tasks(self, pair: tuple[str, str]) -> Iterator[Task]:
        """The runs of one pair."""
        profile, world = pair
        share = RUNS[world] // sum(each == world for _, each in self.pairs)
        first = 0 if profile in FIXED else self.first
        for seed in range(first, first + min(SEEDS_MAX, max(1, share))):
            yield Task(seed, world, profile=profile, batch_count=0 if world == "cores" else SHORT)


def choose(first: int, changed: Iterable[str] | None) -> Choice:
    """The worlds for these changed files; None: for all that there is."""
    if changed is None:
        return Choice(tuple(_pairs(ALL, ALL)), first, "it is not known what has changed")
    found = {("", world) for world in WORLDS}
    reasons: list[str] = []
    for path in changed:
        families, worlds = next(
            ((families, worlds) for begin, families, worlds in CONCERNS if path.startswith(begin)), (NOTHING, NOTHING)
        )
        before = len(found)
        found.update(_pairs(families, worlds))
        reasons += [path] if len(found) > before else []
    pairs = tuple(pair for pair in _pairs(ALL, ALL) if pair in found)
    return Choice(pairs, first, ", ".join(reasons) or "no changed file concerns a profile")


def _pairs(families: tuple[str, ...], worlds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for world in WORLDS:
        if worlds == ALL or world in worlds:
            yield "", world
            for name, profile in PROFILES.items():
                family = profile.draw.__module__.rpartition(".")[2]
                if (families == ALL or family in families) and (profile.only is None or world in profile.only.worlds):
                    yield name, world


def of_this_checkout() -> Choice:
    """The worlds for what this checkout has changed since it left the main branch, or on it in the last day."""
    if os.environ.get("SIM_FIRST"):
        first = int(os.environ["SIM_FIRST"])
    else:
        first = int((_git("rev-parse", "HEAD") or "0")[:10], 16) % FIRST_MAX
    base = os.environ.get("SIM_BASE") or _base()
    changed = None if base is None else _git("diff", "--name-only", base)
    return choose(first, None if changed is None else changed.split())


def _base() -> str | None:
    newest = _git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        base = _git("merge-base", "HEAD", main)
        if base is not None and base != newest:
            return base
    committed = _git("show", "-s", "--format=%ct", "HEAD")
    return None if committed is None else _git("rev-list", "-1", f"--before={int(committed) - DAY_S}", "HEAD") or None


def _git(*arguments: str) -> str | None:
    """What git says; None if it is not there, or refuses."""
    try:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    CHOICE = of_this_checkout()
    print(f"simulated worlds, because of: {CHOICE.why}")
    for world in WORLDS:
        print(f"{world}: {', '.join(profile or 'as drawn' for profile, where in CHOICE.pairs if where == world)}")
    print(f"first seed {CHOICE.first}: SIM_FIRST={CHOICE.first} runs the same again")
