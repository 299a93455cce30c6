"""Rules of the protocol whose removal the exploration finds: for each mutant a narrow world, and a trace.

The worlds are as narrow as the story of the rule allows, so that the search finds the shortest trace in seconds. Rules
about consumers, serving, copies of lost disks and producer runs are not here, because the exploration has none of
these.
"""

from __future__ import annotations

from dataclasses import replace

from ..mutants.catalogue import MUTATIONS, OVERLAPPING, applied
from .search import Found, explore
from .state import Limits

QUIET = Limits(
    messages=1, crashes=0, restarts=0, timeouts=0, complaints=0, timers=0, questions=0, quick_disks=1, hearers="B1"
)
"""One message, disks that are durable at once, and no misfortune."""

SLOW_DISKS = replace(QUIET, quick_disks=0, complaints=1)
"""A client complains to the other broker group, and writes take time."""

TALK = replace(QUIET, timeouts=1, complaints=1, questions=1)
"""A client complains to the other broker group, no broker crashes, and the outcome of one transaction is not
reported."""

RESTART = replace(QUIET, crashes=1, restarts=1, victims="A1")
"""The first master crashes and starts again."""

LOST_WRITE = replace(QUIET, crashes=1, victims="A1", slow_disks="A1")
"""The first master crashes before its write is durable: the slave has the only copy."""

RACE = replace(QUIET, crashes=1, complaints=1, victims="A1")
"""Two switches at once: of the slave whose master crashed, and of one in the other group that heard a complaint."""

GROUP_DIES = replace(QUIET, messages=0, crashes=2, restarts=1, complaints=1, victims="A1,A2")
"""Both members crash, so that no member of the open segment answers. One comes back."""

_ALL_DEAD = "crash:A1,crash:A2,notice:A1,notice:A2"

UNSETTLED = replace(QUIET, crashes=2, restarts=1, complaints=1, victims="A1,A2", prelude=f"append:A1,{_ALL_DEAD}")
"""Only the master had written the message when both crashed. A client complains, and one of the two comes back."""

UNSETTLED_ACKNOWLEDGED = replace(UNSETTLED, prelude=f"append:A1,deliver:A2,deliver:A1,{_ALL_DEAD}")
"""The same, but the message was acknowledged."""

OPENED_OVER = replace(UNSETTLED, messages=0, restarts=0, complaints=2, prelude=_ALL_DEAD)
"""Both are dead for good, and the segment that is opened over theirs is complained of as well."""

MUTANTS: dict[str, tuple[Limits, int]] = {
    "every-member": (LOST_WRITE, 1_000),
    "slave-flushes": (SLOW_DISKS, 1_000),
    "failed-early": (SLOW_DISKS, 1_000),
    "tail-copy": (LOST_WRITE, 2_000),
    "table": (RESTART, 4_000),
    "known-commit": (RESTART, 4_000),
    "tail-first": (TALK, 5_000),
    "fence-freezes-commit": (TALK, 5_000),
    "unknown-outcome": (TALK, 5_000),
    "certificate": (GROUP_DIES, 20_000),
    "settle-copy": (UNSETTLED, 20_000),
    "settle-tail": (UNSETTLED_ACKNOWLEDGED, 20_000),
    "mark-inherited": (OPENED_OVER, 20_000),
    "attempt-id": (RACE, 20_000),
    "start-fence": (RESTART, 20_000),
    "unbroken": (RESTART, 20_000),
    "own-commit": (RESTART, 20_000),
}
"""By name: the world in which it is missed, and a number of states that is enough."""


def hunt(name: str) -> Found:
    """Explore the world of a mutant until the missing rule shows."""
    limits, states_max = MUTANTS[name]
    with applied({**MUTATIONS, **OVERLAPPING}[name]):
        return explore(limits, states_max)


def table() -> list[str]:
    """One line for each mutant: which promise breaks, after how many steps, how many states that took."""
    lines = [f"{'rule':22} {'broken':6} {'steps':>5} {'states':>8} {'core s':>7}"]
    for name in MUTANTS:
        found = hunt(name)
        steps = str(found.depth + 1) if found.violation else "-"
        lines.append(f"{name:22} {found.rule or '-':6} {steps:>5} {found.states:8,} {found.cpu_s:7.1f}")
    others = [name for name in MUTATIONS if name not in MUTANTS]
    lines.append(f"not looked for here: {', '.join(others)}")
    return lines
