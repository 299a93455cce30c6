"""`python -m sim.stories`: find the shortest story of each broken promise, and write the page that tells them."""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..mutations import MUTATIONS, applied
from ..run import silence
from .draw import diagram
from .promises import PROMISES, Promise
from .world import StoryWorld

PAGE: Final = Path("docs/internals/broken-promises.md")
SEEDS_DEFAULT: Final = 400
WIDTH: Final = 118
LINES_ENOUGH: Final = 24
"""A story as short as this is not looked further for."""

BEGINNING: Final = """\
# Broken promises

This page has the promises of the broker, and for each promise the story of a bug that breaks it. The bugs are planted:
one rule of the product is left out, and the simulator runs small worlds until the promise is broken. A tool draws the
diagrams from what happened in these worlds, and takes the shortest story that it finds. Nothing in them was made up.
`make stories` looks for them anew and writes this page.

Messages are letters. `p1.0` and `p1.1` are producers, `g0-0` is the first member of broker group g0, `early.0` is a
consumer of the consumer group *early*; `1:2` is index 2 of segment 1. A *commit* is what every member has; a *tail* is
what one member has. The pages [switch](switch.md), [append](append.md), [consume](consume.md) and [coming
back](coming-back.md) have the rules behind the promises.

"""


TAIL: Final = """\
## Other rules of the judge

These rules have no story here. Some need what the small worlds of this page do not have: whole brokers, topics that are
deleted, disks that the storage adapter writes. The others guard what the promises above depend on. Planted bugs break
each of them, and [planted-bugs.md](planted-bugs.md) names the bugs beside the rule.

- `GONE`: of a deleted topic each send has an outcome. A broker that knows that the topic was deleted acknowledges and
  serves nothing of it, writes no chain record of it, and keeps nothing of it on the disk. Left out in
  `deleted-unanswered` and `deleted-kept`.
- `LATE`: a delivery settles within its timeout, counted from when the application gave the message, whatever waits in
  front of it. Left out in `client-counts-the-wait`.
- Publications have ten rules. A row is appended only for a manifest that is decided (`PUB`), in the cuts of that
  manifest (`CUTS`). For a writer and a sequence only one manifest is decided (`ONE`). The next one is decided only when
  all of the one before is committed (`NEXT`), and *ok* says the same of this one (`DONE`). Nothing is decided for an
  earlier opening of the writer (`FENCE`), for another owner (`OWNER`), or from rows that were spread over different
  numbers of partitions (`SPREAD`). What is decided is not dropped (`KEPT-STAGE`), and becomes whole, once and in order
  (`WHOLE`).
- Dead letters have one rule (`J4`). Each number of a forwarder is of one message, and a message has one number. What
  was sent under a number is not granted any more. A message is passed only when a master said that its dead letter is
  stored. What masters said so is in the dead-letter topic at the end.
- Consumer groups in which order is by key have six rules. The first grant of a message comes only when all earlier
  ones of its key that were granted are acknowledged (`K1`). What was confirmed is not granted again in the group epoch
  (`K2`). The tokens of a key grow, and a message on which its consumer failed comes again (`K3`). What was
  granted comes again with the flag only, unless its consumer failed on it or on a message before it, or said that its
  application got none of them (`K4`). An attempt on a message counts only if an application has begun to work on it
  (`K5`). What is granted at once has at most the bytes of one delivery, or is one message (`K6`).
  The judge also looks at the disks of all eligible members, forty times a second. What a disk says is passed was
  acknowledged under the newest token, or is in one list, or is gone (`J1`). Failed attempts that all of them have stay
  counted (`J2`). When the cursor moves, each of them has the hand-over that it names (`J5`), and nothing is left behind
  (`J1`).
- Shared groups have three rules. A grant has one message (`S1`). What was confirmed is not granted again in the group
  epoch (`S2`). The tokens of a message grow, and a message on which its consumer failed comes again (`S3`).
- At-most-once groups have two rules. No message is granted twice, also not in another group epoch, unless a person
  rewinds the group or declares the place lost where it was granted (`O1`). Messages of a key are granted in their order
  (`O2`).
- All others: `ASKED`, `CALM`, `RT`, `TABLE`, `COPY`, `CERT`, `GAP`, `SERVER`, `DISK`, `TIME`, `LEAVE`, `TWO`, `KEPT`,
  `FULL`, `PLACE`, `GATE`, `LIMIT`, `TWICE`, `ALARM`, `EPOCH`, `OPERATOR`, `RANGE`, `RETAIN`, `TOLD`, `VOID`, `PAUSE`,
  `ONCE`, `REPEAT` and `CORE`, each with its meaning on that page.
"""


@dataclass(frozen=True, slots=True)
class Story:
    """A world in which a promise is broken."""

    bug: str
    seed: int
    violation: str
    lines: tuple[str, ...]
    fault_count: int
    left_out: frozenset[int] = frozenset()


def tell(promise: Promise, bug: str, seed: int, left_out: frozenset[int] = frozenset()) -> Story | None:
    """Run one world; None if that promise is not what is broken in it."""
    mutation = MUTATIONS[bug]
    world = StoryWorld(seed, profile=mutation.profile, only=promise.rule, left_out=left_out)
    with applied(mutation):
        result = world.run()
    if result.rule != promise.rule:
        return None
    lines = tuple(diagram(world.seen, result.violation.partition(": ")[2]))
    return Story(bug, seed, result.violation, lines, result.fault_count, left_out)


def shorter(promise: Promise, story: Story) -> Story:
    """The same without the faults that have nothing to do with it."""
    for number in range(story.fault_count):
        again = tell(promise, story.bug, story.seed, story.left_out | {number})
        if again is not None and len(again.lines) <= len(story.lines):
            story = again
    return story


def shortest(promise: Promise, seed_count: int) -> Story | None:
    """The shortest story of a promise, over all its bugs and so many worlds of each."""
    best: Story | None = None
    for bug in promise.bugs:
        for seed in range(seed_count):
            story = tell(promise, bug, seed)
            if story is not None and (best is None or len(story.lines) < len(best.lines)):
                best = shorter(promise, story)
                if len(best.lines) <= LINES_ENOUGH:
                    return best
    return best


def section(promise: Promise, story: Story) -> str:
    """A promise and its story, as Markdown."""
    drawn = "\n".join(story.lines)
    told = f"*Left out:* {MUTATIONS[story.bug].rule} (`{story.bug}`). *Without it*: {promise.bugs[story.bug]}"
    paragraphs = [textwrap.fill(text, WIDTH) for text in (promise.promise, told)]
    return "\n\n".join([f"## {promise.rule}: {promise.title}", *paragraphs, f"```mermaid\n{drawn}\n```", ""])


def main() -> int:
    """Write the page; 1 if a promise has no story."""
    parser = argparse.ArgumentParser(description="Tell how each promise is broken.")
    parser.add_argument("--seeds", type=int, default=SEEDS_DEFAULT, help="worlds to look at for each bug")
    parser.add_argument("--only", default="", help="one promise, printed instead of written")
    options = parser.parse_args()
    silence()
    sections: list[str] = []
    missing: list[str] = []
    for promise in PROMISES:
        if options.only not in ("", promise.rule):
            continue
        story = shortest(promise, options.seeds)
        if story is None:
            missing.append(promise.rule)
            continue
        print(f"{promise.rule}: {story.bug}, seed {story.seed}, {len(story.lines)} lines", flush=True)
        sections.append(section(promise, story))
    if options.only:
        print("\n".join(sections))
    elif not missing:
        PAGE.write_text(BEGINNING + "\n".join(sections).rstrip() + "\n\n" + TAIL)
    print(f"without a story: {', '.join(missing)}" if missing else "all told")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
