"""`python -m e2e.bench.timeline.run`, or `make bench-timeline`: where the time of one message goes.

    make bench-timeline             two brokers, 2,000 messages, in half a minute
    make bench-timeline SIX=1       six brokers
    make bench-timeline QUICK=1     a tenth of the messages

One client sends one message after another to a partition of a new cluster of real broker processes, and each process
reads the clock at named functions (`stamps.py`). A message whose way was not seen in full does not count; if these are
more than `LEFT_OUT_SHARE`, the exit status is 1.

It prints the hops, and writes `timeline.json` and the picture `timeline.svg` to `bench-out/` (OUT= another directory).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from seriatim import Client, TopicSettings
from seriatim_local import LocalCluster
from seriatim_local.layout.plan import BrokerPlan, ClusterPlan
from seriatim_local.layout.programs import SeriatimPrograms

from e2e.bench.load.setup import DEADLINE_S, MESSAGE_SIZE_BYTES
from e2e.bench.measures.figures import Figure, narrow_table, percentile
from e2e.bench.program import Progress, exact_loop, run
from e2e.bench.timeline import stamps
from e2e.bench.timeline.hops import ASIDE, HOPS, Measured, Role, Timeline, aside, measured, timelines
from e2e.bench.timeline.picture import picture
from e2e.bench.timeline.stamps import Times
from e2e.observe import Observer, Snapshot

MESSAGES: Final = 2000
QUICK_SHARE: Final = 10
WARM_UP_MESSAGES: Final = 1000
LEFT_OUT_SHARE: Final = 0.02
GROUPS: Final = 1
MANY_GROUPS: Final = 3
TOPIC: Final = "timeline"

_ROOT: Final = Path(__file__).resolve().parents[3]
_REAL: Final = ("-m", "seriatim_broker")


@dataclass(frozen=True, slots=True)
class StampedPrograms(SeriatimPrograms):
    """The real brokers, with stamps.

    Attributes:
        directory: Takes a file of each broker when it has ended.
    """

    directory: Path = Path()

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        """The command of `SeriatimPrograms`, with another module."""
        python, *rest = SeriatimPrograms.broker(self, plan, broker, data)
        assert tuple(rest[:2]) == _REAL
        return [python, "-m", "e2e.bench.timeline.broker", str(self.file(broker.name)), *rest[2:]]

    def file(self, broker: str) -> Path:
        """Where the stamps of a broker are."""
        return self.directory / f"{broker}.json"


async def measure_timelines(directory: Path, groups: int, count: int, progress: Progress) -> tuple[list[Timeline], int]:
    """Send messages to a new cluster.

    Returns:
        The timelines that were seen in full, and how many messages were sent.

    Raises:
        PlaceGoneError: A stamped function is not there any more.
        NotMeasuredError: A broker left no stamps.
        SeriatimError: The cluster did not come up, or did not take a message.
    """
    stamps.check()  # brokers would say it in their logs
    programs = StampedPrograms(directory=directory)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    messages: list[tuple[int, int]] = []
    with stamps.installed(stamps.CLIENT) as client_times:
        async with (
            LocalCluster(
                directory / "cluster", groups=groups, proxy=False, name="bench", programs=programs,
                environment=environment,
            ) as cluster,
            Client.connect(cluster.bootstrap) as client,
        ):  # fmt: skip
            await client.admin().create_topic(TOPIC, 1, settings=TopicSettings(flush=True))
            await Observer(client.admin(), TOPIC).wait_until(Snapshot.settled, f"{TOPIC} accepts", DEADLINE_S)
            progress(f"one message in flight, {count:,} times")
            value = random.Random(2).randbytes(MESSAGE_SIZE_BYTES)
            async with client.producer(TOPIC) as producer:
                for number in range(WARM_UP_MESSAGES + count):
                    begin_ns = time.monotonic_ns()
                    await (await producer.send(value))
                    if number >= WARM_UP_MESSAGES:
                        messages.append((begin_ns, time.monotonic_ns()))
            _, (master, slave) = await cluster.open_members(TOPIC, 0)
    times: dict[Role, Times] = {
        "client": client_times,
        "master": stamps.read(programs.file(master)),
        "slave": stamps.read(programs.file(slave)),
    }
    return timelines(messages, times), len(messages)


def figures_of(found: Sequence[Timeline], sent: int) -> list[Figure]:
    """A figure for each hop, in µs since the program began to send."""
    left_out = sent - len(found)
    problem = f"{left_out} of {sent} messages were not seen in full" if left_out > LEFT_OUT_SHARE * sent else ""
    if not found:
        return [Figure(hop.name, hop.text, None, "µs", problem=problem) for hop in HOPS]
    figures = [
        Figure(
            row.hop.name, row.hop.text, round(row.at_us, 1), "µs", problem=problem,
            details={
                "took_us": round(row.took_us, 1),
                "took_p99_us": round(row.took_p99_us, 1),
                "slowest_us": round(row.slowest_us, 1),
            },
        )
        for row in measured(found)
    ]  # fmt: skip
    figures += [Figure(hop.name, hop.text, round(at_us, 1), "µs") for hop, at_us in aside(found)]
    p99_us = percentile([timeline.at_us[-1] for timeline in found], 0.99)
    facts = {"messages": len(found), "left_out": left_out, "p99_us": round(p99_us, 1)}
    return [replace(figures[0], details=dict(figures[0].details) | facts), *figures[1:]]


def hop_table(figures: Sequence[Figure], title: str) -> Table:
    """The hops for humans. It fits into 80 columns."""
    drawn = narrow_table(title, "at", "took", "p99", "slowest", first="µs")
    names = {hop.name for hop in ASIDE}
    for figure in figures:
        if figure.name == ASIDE[0].name:
            drawn.add_section()
        values = [figure.value, *(figure.details.get(name) for name in ("took_us", "took_p99_us", "slowest_us"))]
        cells = [f"{value:,.0f}" if isinstance(value, float) else "" for value in values]
        drawn.add_row(figure.text, *cells, style="dim" if figure.name in names else "")
    for problem in dict.fromkeys(figure.problem for figure in figures if figure.problem):
        drawn.add_row(f"[bold red]{problem}[/]")
    return drawn


def _after(console: Console, figures: Sequence[Figure], out: Path, title: str) -> None:
    console.print(
        "at: median since the program began to send; took, p99: since the hop before;\n"
        "slowest: took, mean of the slowest hundredth of the messages",
        highlight=False,
    )
    hops = {hop.name: hop for hop in (*HOPS, *ASIDE)}
    rows = [
        Measured(hops[figure.name], figure.value, float(str(figure.details["took_us"])), 0, 0)
        for figure in figures
        if figure.value is not None and "took_us" in figure.details
    ]
    if not rows:
        return
    meanwhile = [
        (hops[figure.name], figure.value)
        for figure in figures
        if figure.value is not None and "took_us" not in figure.details
    ]
    details = figures[0].details
    console.print(
        f"{details['messages']:,} messages, {details['left_out']} left out; p99 of the whole way"
        f" {float(str(details['p99_us'])) / 1000:.2f} ms",
        highlight=False,
    )
    file = out / "timeline.svg"
    picture(rows, meanwhile, title).save(file)
    console.print(f"picture: {file}", highlight=False)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="make bench-timeline", description="where the time of one message goes")
    parser.add_argument("--six", action="store_true", help="six brokers and not two")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICK_SHARE}th of the messages")
    arguments = parser.parse_args()
    groups = MANY_GROUPS if arguments.six else GROUPS
    count = MESSAGES // QUICK_SHARE if arguments.quick else MESSAGES
    title = f"One message in flight, flushed on two {'of six ' if arguments.six else ''}brokers"

    async def measure(directory: Path, progress: Progress) -> list[Figure]:
        found, sent = await measure_timelines(directory, groups, count, progress)
        return figures_of(found, sent)

    return run("timeline", measure, title, loop_factory=exact_loop, after=partial(_after, title=title), shown=hop_table)


if __name__ == "__main__":
    sys.exit(main())
