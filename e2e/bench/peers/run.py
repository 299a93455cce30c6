"""`python -m e2e.bench.peers.run`, or `make bench-peers`: Seriatim, Kafka and NATS in one run.

Each keeps two copies of a message, once on disk before it is acknowledged (flushed), and once in memory and the page
cache. For each: one message in flight, as many as it takes, reading all of these back in order, and the longest pause
after a `kill -9` of the leader, with a message a millisecond. Messages have 512 bytes. All processes of a broker, its
client and its disk share this machine, and no other broker runs meanwhile.

Reading back begins right after sending has ended, so all three read from memory (their own, or the page cache).

`reference.yaml` says what the peers reach on a quiet machine. If a peer reaches less than 0.8 of that, the figure has a
problem and the run is void. Figures go to `peers.json`, the latencies to `peers.svg`, both in `bench-out/` (OUT=
another directory).
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog
import yaml
from rich.console import Console
from rich.table import Table

from e2e.bench.measures.curves import draw
from e2e.bench.measures.figures import Figure, narrow_table, percentile, rounded, tell_below
from e2e.bench.measures.latency import Latency
from e2e.bench.peers.kafka import Kafka
from e2e.bench.peers.nats import Nats
from e2e.bench.peers.peer import Peer, Probe, ask
from e2e.bench.program import Progress, exact_loop, run, told
from e2e.bench.run import try_workload
from e2e.bench.workloads import choose, read_workloads

_log = structlog.get_logger(__name__)

REFERENCE: Final = Path(__file__).with_name("reference.yaml")
VOID_BELOW: Final = 0.8

SECONDS: Final = 8
STEADY_RATE: Final = 1000
KILL_AFTER_S: Final = 4.0
STEADY_S: Final = 25
KILLS: Final = 3

OURS: Final = {
    "one_in_flight.p50_ms": "single_flushed.p50_ms",
    "one_in_flight.p99_ms": "single_flushed.p99_ms",
    "one_in_flight_replicated.p50_ms": "single.p50_ms",
    "one_in_flight_replicated.p99_ms": "single.p99_ms",
    "one_partition": "bulk_flushed",
    "one_partition_replicated": "bulk",
    "kill_gap": "gap_ms",
}
"""Our workloads' figures, and what the same figure of a peer is called."""

ROWS: Final = {
    "single_flushed.p50_ms": "one in flight, flushed: p50",
    "single_flushed.p99_ms": "one in flight, flushed: p99",
    "bulk_flushed": "as many as it takes, flushed",
    "drain": "these read back in order",
    "single.p50_ms": "one in flight: p50",
    "single.p99_ms": "one in flight: p99",
    "bulk": "as many as it takes",
    "gap_ms": "gap after kill -9, median",
}
US: Final = "Seriatim"


async def measure_peer(peer: Peer, directory: Path, seconds: int, kills: int, progress: Progress) -> list[Figure]:
    """Measure a peer. If a server or a client fails, the last figure says so, and those before it are kept."""
    figures: list[Figure] = []
    try:
        await _measure_peer(peer, directory, seconds, kills, progress, figures)
    except Exception as error:  # also a mistake with one peer must not cost the figures of all others
        _log.exception("peer_failed", peer=peer.name)
        figures.append(Figure(f"{peer.name}.failed", peer.name, None, "", problem=f"FAILED: {told(error)}"))
    return figures


async def _measure_peer(
    peer: Peer, directory: Path, seconds: int, kills: int, progress: Progress, figures: list[Figure]
) -> None:
    for flush in (True, False):
        kind = "_flushed" if flush else ""
        place = directory / f"{peer.name}{kind}"
        async with peer.cluster(place, peer.servers, flush=flush) as cluster:
            await cluster.create("single", 2)
            progress(f"{peer.name}: one in flight{', flushed' if flush else ''}")
            figures += _singles(peer.name, f"single{kind}", await ask(cluster.client("single", "single", str(seconds))))
            await cluster.create("bulk", 2)
            progress(f"{peer.name}: as many as it takes{', flushed' if flush else ''}")
            answer = await ask(cluster.client("bulk", "bulk", str(seconds), *peer.bulk))
            figures.append(_rate(peer.name, f"bulk{kind}", answer, "failed"))
            if flush:
                progress(f"{peer.name}: reads back")
                read = await ask(cluster.client("drain", "bulk"))
                figures.append(checked_drain(_rate(peer.name, "drain", read, "gaps"), int(answer["messages"])))
        shutil.rmtree(place, ignore_errors=True)  # or the kernel writes it while the next cluster is measured
    figures[0] = replace(figures[0], details={**figures[0].details, "version": peer.version, "settings": peer.settings})
    gaps = [await _gap(peer, directory / f"{peer.name}-kill-{number}", number, progress) for number in range(kills)]
    gap_ms = percentile([float(gap["gap_ms"]) for gap in gaps], 0.5)
    details = {"gaps_ms": [gap["gap_ms"] for gap in gaps], "failed": [gap["failed"] for gap in gaps]}
    figures.append(Figure(f"{peer.name}.gap_ms", f"{peer.name}: {ROWS['gap_ms']}", gap_ms, "ms", details=details))


async def _gap(peer: Peer, directory: Path, number: int, progress: Progress) -> dict[str, Any]:
    """Kill the leader of three servers while a message a millisecond is sent. Return the client's last answer."""
    async with peer.cluster(directory, 3, flush=True) as cluster:
        victim = await cluster.create("steady", 3)
        progress(f"{peer.name}: kill {number + 1}: {victim}")
        probe = await Probe.start(cluster.client("steady", "steady", str(STEADY_RATE), str(STEADY_S)))
        try:
            await probe.answer()
            await asyncio.sleep(KILL_AFTER_S)
            await cluster.kill(victim)
            return await probe.answer()
        finally:
            await probe.end()


def checked_drain(drain: Figure, acknowledged: int) -> Figure:
    """Give a problem to the figure of reading back if it read fewer messages than were acknowledged."""
    read = drain.details["messages"]
    assert isinstance(read, int)
    if drain.problem or read >= acknowledged:
        return drain
    return replace(drain, problem=f"{read:,} messages were read, but {acknowledged:,} were acknowledged")


def _singles(peer: str, name: str, answer: Mapping[str, Any]) -> list[Figure]:
    latency = Latency()
    for taken_us in answer["latencies_us"]:
        latency.add(taken_us / 1e6)
    details = {"histograms": {"published": latency.encoded()}, "count": latency.count, "max_ms": latency.max_ms}
    return [
        Figure(f"{peer}.{name}.p50_ms", f"{peer}: {ROWS[f'{name}.p50_ms']}", latency.ms(50), "ms", details=details),
        Figure(f"{peer}.{name}.p99_ms", f"{peer}: {ROWS[f'{name}.p99_ms']}", latency.ms(99), "ms"),
    ]


def _rate(peer: str, name: str, answer: Mapping[str, Any], wrong: str) -> Figure:
    problem = f"{answer[wrong]} {wrong}" if answer[wrong] else ""
    rate = answer["messages"] / answer["seconds"]
    text = f"{peer}: {ROWS[name]}"
    return Figure(f"{peer}.{name}", text, rate, "msg/s", None, True, {"messages": answer["messages"]}, problem)


async def measure_us(directory: Path, *, is_quick: bool, progress: Progress) -> list[Figure]:
    """The same of Seriatim, from the workloads of `make bench`."""
    names = sorted({name.partition(".")[0] for name in OURS})
    figures: list[Figure] = []
    for workload in choose(read_workloads(), names):
        chosen = workload.quick() if is_quick else workload
        for figure in await try_workload(chosen, directory, progress):
            if figure.name in OURS:
                figures.append(replace(figure, name=f"{US}.{OURS[figure.name]}", text=f"{US}: {figure.text}", aim=None))
    return [*figures, our_drain(next(figure for figure in figures if figure.name == f"{US}.bulk_flushed"))]


def our_drain(bulk: Figure) -> Figure:
    """Our figure of reading back. The workload of batches reads back what it sent, and notes the rate."""
    read = bulk.details.get("read_back_per_s")
    value = float(read) if isinstance(read, int) else None
    problem = bulk.problem or ("" if value else "nothing was read back")
    return Figure(f"{US}.drain", f"{US}: {ROWS['drain']}", value, "msg/s", None, True, problem=problem)


def judge(figures: Sequence[Figure], reference: Mapping[str, float]) -> list[Figure]:
    """Give a problem to each figure of a peer that is far below what this peer reaches on a quiet machine."""
    judged = []
    for figure in figures:
        quiet = reference.get(figure.name)
        if quiet is not None and not figure.problem:
            value = figure.value or 0.0
            share = 0.0 if value == 0 else value / quiet if figure.higher_is_better else quiet / value
            if share < VOID_BELOW:
                said = f"{value:,.2f}: only {share:.2f} of what a quiet machine gives, so this run is void"
                judged.append(replace(figure, problem=said))
                continue
        judged.append(figure)
    return judged


def side_by_side(figures: Sequence[Figure], title: str, rows: Mapping[str, str] = ROWS) -> Table:
    """A row for each measure of `rows`, a column for each broker, and below them the problems."""
    found = {figure.name: figure for figure in figures}
    brokers = list(dict.fromkeys(figure.name.partition(".")[0] for figure in figures))
    drawn = narrow_table(title, *brokers)
    for name, text in rows.items():
        drawn.add_row(text, *(_cell(found.get(f"{broker}.{name}")) for broker in brokers))
    tell_below(drawn, [f"(!) {figure.text}: {figure.problem}" for figure in figures if figure.problem])
    return drawn


def kills_told(figures: Sequence[Figure]) -> list[str]:
    """For each peer a line about its kills: each gap, and how many messages were not acknowledged."""
    lines = []
    for figure in figures:
        gaps, failed = figure.details.get("gaps_ms"), figure.details.get("failed")
        if isinstance(gaps, list) and isinstance(failed, list):
            each = ", ".join(f"{gap:,.0f} ms ({count:,})" for gap, count in zip(gaps, failed, strict=True))
            lines.append(f"{figure.name.partition('.')[0]}: gap after each kill -9 (messages that failed): {each}")
    return lines


def _cell(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "–"
    return f"{rounded(figure.value)} {figure.unit}" + (" [red](!)[/]" if figure.problem else "")


def main() -> int:
    """Measure all three."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description="Seriatim beside Kafka and NATS")
    parser.add_argument("--quick", action="store_true", help="a quarter as long, and one kill")
    is_quick = parser.parse_args().quick
    reference = yaml.safe_load(REFERENCE.read_text())
    seconds, kills = (SECONDS // 4, 1) if is_quick else (SECONDS, KILLS)
    peers: list[Peer] = [Kafka(), Nats()]

    async def measure(directory: Path, progress: Progress) -> list[Figure]:
        figures = await measure_us(directory, is_quick=is_quick, progress=progress)
        for peer in peers:
            figures += await measure_peer(peer, directory, seconds, kills, progress)
        return judge(figures, reference)

    def show(console: Console, figures: Sequence[Figure], out: Path) -> None:
        for peer in peers:
            console.print(f"{peer.name} {peer.version}: {peer.settings}", highlight=False)
        for line in kills_told(figures):
            console.print(line, highlight=False)
        if draw(figures, out / "peers.svg"):
            console.print(f"latencies: {out / 'peers.svg'}", highlight=False)

    title = "512 B, two copies, one producer"
    return run("peers", measure, title, loop_factory=exact_loop, after=show, shown=side_by_side)


if __name__ == "__main__":
    sys.exit(main())
