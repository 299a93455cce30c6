"""`python -m e2e.bench.run`, or `make bench`: single messages, fixed rates, bulk, an idle cluster, gaps at faults,
and delayed messages.

    make bench                   all workloads but those of nights, in about six minutes
    make bench-smoke             four of them, in a minute
    make bench QUICK=1           all, a quarter as long
    make bench ONLY="start one_in_flight"
    make bench LATENCY=25        all links take 25 ms each way (JITTER=100: and 5 % of the chunks up to 100 ms more)

`workloads.yaml` says what is run. Each workload has a new cluster of real broker processes without a proxy, and one
producer in this process. With LATENCY, links go through the proxy; LATENCY=0 is the proxy without a delay. What is
counted as acknowledged is checked: batches and sends are read back.

The benchmark prints the figures beside their aims, and what each role used. It writes `bench.json` (`smoke.json` with
`--smoke`), with all histograms in it, and a picture of the latencies, `bench.svg`, in `bench-out/` (OUT= another
directory). Exit status 1 if a figure was not verified.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import structlog
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from seriatim import Client, TopicSettings
from seriatim_local import LocalCluster

from e2e.bench.first_message import start_ms
from e2e.bench.gaps import run_faults
from e2e.bench.load.delayed import DelayedRun
from e2e.bench.load.measurement import Measured, run_load
from e2e.bench.load.setup import DEADLINE_S, MESSAGE_SIZE_BYTES, bench_cluster
from e2e.bench.measures.curves import draw
from e2e.bench.measures.figures import Figure, amount, narrow_table, percentile, share
from e2e.bench.members import beside_two
from e2e.bench.program import Measure as MeasureAll
from e2e.bench.program import Progress, exact_loop, run, told
from e2e.bench.workloads import (
    BesideTwo,
    Cancel,
    Due,
    DueAtOnce,
    DueKill,
    Fault,
    Measure,
    Pending,
    Start,
    Workload,
    WorkloadError,
    choose,
    read_workloads,
)
from e2e.distance import DistanceError, read_delay
from e2e.distance import told as told_distance
from e2e.observe import Observer, Snapshot

_log = structlog.get_logger(__name__)

SHOWN: Final[dict[Measure, tuple[str, str, bool]]] = {
    "p50_ms": ("p50", "ms", False),
    "p99_ms": ("p99", "ms", False),
    "published_p50_ms": ("published, p50", "ms", False),
    "published_p99_ms": ("published, p99", "ms", False),
    "end_to_end_p50_ms": ("end to end, p50", "ms", False),
    "end_to_end_p99_ms": ("end to end, p99", "ms", False),
    "cpu_ms_per_message": ("processor time a message", "ms", False),
    "cpu_ms_per_s": ("processor time a second", "ms", False),
    "wakeups_per_s": ("wake-ups", "/s", False),
    "messages_per_s": ("", "msg/s", True),
    "start_ms": ("median", "ms", False),
    "gap_ms": ("gap, median", "ms", False),
    "late_p50_ms": ("due until read, p50", "ms", False),
    "late_p99_ms": ("due until read, p99", "ms", False),
    "ordinary_p99_ratio": ("ordinary sends, p99 to usual", "x", False),
    "append_ratio": ("appended, to undelayed", "x", True),
    "more_memory_mib": ("a broker's memory, more", "MiB", False),
    "longer_start_s": ("a broker's start, longer", "s", False),
    "row_bytes_per_batch": ("rows of a batch", "B", False),
    "firing_gap_ms": ("nothing is fired, median", "ms", False),
    "cancel_p50_ms": ("one in flight, p50", "ms", False),
    "cancels_per_s": ("64 in flight", "/s", True),
    "p50_ratio": ("one in flight, p50", "x", False),
    "rate_ratio": ("batches, one partition", "x", True),
    "more_gap_ms": ("gap at kill -9, more", "ms", False),
}
"""Of each measure: its label, its unit, and whether more is better."""


async def run_workload(workload: Workload, directory: Path, progress: Progress) -> list[Figure]:
    """Run one workload on a new cluster, and return its figures.

    Raises:
        SeriatimError: The cluster did not come up, or did not do what the workload needs.
    """
    progress(workload.text)

    async def on_cluster(part: Workload, members: int) -> Measured:
        return await _on_cluster(part, members, directory, progress)

    if isinstance(workload.load, BesideTwo):
        return figures_of(workload, await beside_two(workload.load, on_cluster))
    return figures_of(workload, await on_cluster(workload, 2))


async def _on_cluster(workload: Workload, members: int, directory: Path, progress: Progress) -> Measured:
    """Run a workload on a new cluster whose broker groups have that many members."""
    place = directory / workload.name
    async with bench_cluster(place, workload.groups, members) as (cluster, client):
        topic = workload.name
        await client.admin().create_topic(topic, workload.partitions, settings=TopicSettings(flush=workload.flush))
        await Observer(client.admin(), topic).wait_until(Snapshot.settled, f"{topic} accepts", DEADLINE_S)
        measured = await _measured(workload, topic, client, cluster, progress)
    shutil.rmtree(place, ignore_errors=True)  # or the kernel writes it while the next cluster is measured
    return measured


async def try_workload(workload: Workload, directory: Path, progress: Progress) -> list[Figure]:
    """Run one workload. If it fails, each of its figures has the failure as its problem: those of others are kept."""
    try:
        return await run_workload(workload, directory, progress)
    except Exception as error:  # also a mistake of one workload must not cost the figures of all others
        _log.exception("workload_failed", workload=workload.name)
        return [replace(figure, problem=f"FAILED: {told(error)}") for figure in _not_measured(workload)]


def _not_measured(workload: Workload) -> list[Figure]:
    """The figures that a workload shows, without values."""
    figures = []
    for measure, aim in workload.measures.items():
        label, unit, higher_is_better = SHOWN[measure]
        name = workload.name if len(workload.measures) == 1 else f"{workload.name}.{measure}"
        text = f"{workload.text}: {label}" if label else workload.text
        figures.append(Figure(name, text, None, unit, aim, higher_is_better))
    return figures


async def _measured(
    workload: Workload, topic: str, client: Client, cluster: LocalCluster, progress: Progress
) -> Measured:
    match workload.load:
        case Fault() as load:
            return await run_faults(load, topic, client, cluster, progress)
        case Due() | DueAtOnce() | Pending() | DueKill() | Cancel() as load:
            return await DelayedRun(topic, workload.partitions, client, cluster, progress).run(load)
        case Start() as load:
            taken = [await start_ms(topic, cluster.bootstrap) for _ in range(load.times)]
            return Measured(values={"start_ms": percentile(taken, 0.5)}, details={"max_ms": max(taken)})
        case _:
            return await run_load(workload, topic, client, cluster)


def figures_of(workload: Workload, measured: Measured) -> list[Figure]:
    """The figures that a workload shows. The first one has everything else that was measured in its details."""
    details: dict[str, object] = dict(measured.details)
    if measured.used:
        details["used"] = {role: asdict(used) for role, used in measured.used.items()}
        details |= {"messages": measured.messages, "seconds": round(measured.seconds, 3)}
    if measured.latencies:
        details["histograms"] = {name: latency.encoded() for name, latency in measured.latencies.items()}
        details["max_ms"] = max(latency.max_ms for latency in measured.latencies.values())
    figures = [
        replace(figure, value=measured.values[measure], problem=measured.problem)
        for figure, measure in zip(_not_measured(workload), workload.measures, strict=True)
    ]
    return [replace(figures[0], details=details), *figures[1:]]


def workload_table(figures: Sequence[Figure], title: str) -> Table:
    """Show the figures beside their aims, below the workload that gave them. It fits into 80 columns."""
    drawn = narrow_table(title, "measured", "aim", "of the aim")
    for text, rows in _by_workload(figures):
        labels = [figure.text.removeprefix(text).removeprefix(": ") for figure in rows]
        if any(labels):
            drawn.add_row(f"[bold]{text}[/]")
        for label, figure in zip(labels, rows, strict=True):
            aim = "–" if figure.aim is None else amount(figure.aim, figure.unit)
            measured = "–" if figure.value is None or figure.problem else amount(figure.value, figure.unit)
            shown = f"  {label}" if label else f"[bold]{text}[/]"
            drawn.add_row(shown, measured, aim, share(figure.ratio))
        if isinstance(longest := rows[0].details.get("max_ms"), float):
            drawn.add_row("  longest", amount(longest, "ms"))
        for problem in dict.fromkeys(figure.problem for figure in rows if figure.problem):
            drawn.add_row(f"  [bold red]{escape(problem)}[/]")
    return drawn


def usage_table(figures: Sequence[Figure]) -> Table:
    """What each role used, for each workload that counted it. It fits into 80 columns."""
    drawn = narrow_table("what it took", "processor", "wake-ups/s", "written/B", "memory")
    for _, rows in _by_workload(figures):
        used, messages, seconds = (rows[0].details.get(name) for name in ("used", "messages", "seconds"))
        if not isinstance(used, dict) or not isinstance(messages, int) or not isinstance(seconds, float):
            continue
        drawn.add_row(f"[bold]{rows[0].name.partition('.')[0]}[/]")
        for role, row in used.items():
            cpu_us = row["cpu_s"] * 1e6
            cpu = f"{cpu_us / messages:,.1f} µs/msg" if messages else f"{cpu_us / seconds / 1000:,.1f} ms/s"
            accepted = messages * MESSAGE_SIZE_BYTES
            written = f"{row['written_bytes'] / accepted:.2f} B" if accepted else "–"
            wakeups = f"{row['wakeups'] / seconds:,.0f}"
            drawn.add_row(f"  {role}", cpu, wakeups, written, f"{row['memory_mib']:,.0f} MiB")
    return drawn


def _by_workload(figures: Sequence[Figure]) -> list[tuple[str, list[Figure]]]:
    """The figures of each workload, with its text."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.name.partition(".")[0], []).append(figure)
    return [(rows[0].text.partition(": ")[0], rows) for rows in found.values()]


def _measure_all(workloads: Sequence[Workload]) -> MeasureAll:
    async def measure(directory: Path, progress: Progress) -> list[Figure]:
        figures: list[Figure] = []
        for workload in workloads:
            figures += await try_workload(workload, directory, progress)
        return figures

    return measure


def main() -> int:
    """Run the chosen workloads."""
    parser = argparse.ArgumentParser(prog="make bench", description="the speed of Seriatim on this machine")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORKLOAD", help="run these workloads")
    parser.add_argument("--smoke", action="store_true", help="run the four workloads that guide work on the data path")
    parser.add_argument("--quick", action="store_true", help="run each workload a quarter as long")
    arguments = parser.parse_args()
    try:
        workloads = choose(read_workloads(), arguments.only)
        distance = told_distance(read_delay(os.environ))
    except (WorkloadError, DistanceError) as error:
        parser.error(str(error))
    if arguments.smoke:
        workloads = [workload for workload in workloads if workload.smoke]
    if not workloads:
        parser.error("none of these workloads is one of --smoke")
    if arguments.quick:
        workloads = [workload.quick() for workload in workloads]

    def show(console: Console, figures: Sequence[Figure], out: Path) -> None:
        if (used := usage_table(figures)).row_count:
            console.print(used)
            console.print("written/B: bytes given to the disk for each byte of a message", highlight=False)
        if draw(figures, out / f"{name}.svg"):
            console.print(f"latencies: {out / name}.svg", highlight=False)

    name = "smoke" if arguments.smoke else "bench"
    title = f"{MESSAGE_SIZE_BYTES} B, two copies of each message, one producer{distance}"
    return run(name, _measure_all(workloads), title, loop_factory=exact_loop, after=show, shown=workload_table)


if __name__ == "__main__":
    sys.exit(main())
