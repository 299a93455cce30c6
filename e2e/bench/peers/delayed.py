"""`python -m e2e.bench.peers.delayed`, or `make bench-peers DELAYED=1`: delayed messages of three brokers.

Each keeps two copies, on disk before a message is acknowledged. NATS has schedules: each is a message in a subject of
its own, which the server stores again at its time. RabbitMQ has none. A message waits in a queue until its time to live
is over, and goes to another queue as a dead letter; but a queue looks at its first message only. Kafka has no delayed
messages. None of the others says whether a message was called back in time: NATS removes a schedule with its subject,
and a message of RabbitMQ cannot be called back.

Figures go to `peers-delayed.json`, the lateness to `peers-delayed.svg`, both in `bench-out/` (OUT= another directory).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from rich.console import Console

from e2e.bench.measures.curves import draw
from e2e.bench.measures.figures import Figure
from e2e.bench.measures.latency import Latency
from e2e.bench.peers import rabbitmq
from e2e.bench.peers.nats import Nats
from e2e.bench.peers.peer import ask
from e2e.bench.peers.run import US, side_by_side
from e2e.bench.program import Progress, exact_loop, run, told
from e2e.bench.run import try_workload
from e2e.bench.workloads import Due, DueAtOnce, choose, read_workloads

_log = structlog.get_logger(__name__)

COPIES: Final = 2
ROWS: Final = {
    "late_p50_ms": "due at random: late, p50",
    "late_p99_ms": "due at random: late, p99",
    "messages_per_s": "due at once: until all are read",
}

Cluster = Callable[[Path], AbstractAsyncContextManager[list[str]]]
"""Runs a cluster in a directory, and gives the first words of its client's command."""


@asynccontextmanager
async def _nats(directory: Path) -> AsyncIterator[list[str]]:
    peer = Nats()
    async with peer.cluster(directory, peer.servers, flush=True) as cluster:
        yield cluster.client()


def _rabbitmq(directory: Path) -> AbstractAsyncContextManager[list[str]]:
    return rabbitmq.cluster(directory, COPIES)


PEERS: Final[dict[str, Cluster]] = {"NATS": _nats, "RabbitMQ": _rabbitmq}


async def measure_peer(
    name: str, cluster: Cluster, directory: Path, due: Due, at_once: tuple[DueAtOnce, int], progress: Progress
) -> list[Figure]:
    """Measure a peer with the same loads. If a server or the client fails, the last figure says so."""
    figures: list[Figure] = []
    load, partitions = at_once
    commands = {
        "due": ("due", COPIES, due.rate, due.within_ms, round(due.seconds)),
        "at_once": ("at_once", COPIES, partitions, load.messages),
    }
    for kind, command in commands.items():
        try:
            async with cluster(directory / f"{name}-{kind}") as words:
                progress(f"{name}: {kind}")
                answer = await ask([*words, *map(str, command)])
            figures += _late(name, answer) if kind == "due" else [_rate(name, answer)]
        except Exception as error:  # also a mistake with one peer must not cost the figures of all others
            _log.exception("peer_failed", peer=name)
            figures.append(Figure(f"{name}.{kind}", f"{name}: {kind}", None, "", problem=f"FAILED: {told(error)}"))
        shutil.rmtree(directory / f"{name}-{kind}", ignore_errors=True)
    return figures


def _late(name: str, answer: dict[str, Any]) -> list[Figure]:
    latency = Latency()
    for late_ms in answer["late_ms"]:
        latency.add(late_ms / 1000)
    details = {
        "histograms": {"late": latency.encoded()}, "max_ms": latency.max_ms, "earliest_ms": min(answer["late_ms"]),
    }  # fmt: skip
    problem = f"{answer['failed']:,} messages did not come" if answer["failed"] else ""
    return [
        Figure(f"{name}.{row}", f"{name}: {ROWS[row]}", latency.ms(share), "ms", details=found, problem=problem)
        for row, share, found in (("late_p50_ms", 50, details), ("late_p99_ms", 99, {}))
    ]


def _rate(name: str, answer: dict[str, Any]) -> Figure:
    problem = f"{answer['failed']:,} messages did not come" if answer["failed"] else ""
    if answer["stored_before_s"] < 0:
        problem = problem or f"the last one was stored {-answer['stored_before_s']:.1f} s after it was due"
    rate = answer["messages"] / answer["seconds"] if answer["seconds"] else None
    text = f"{name}: {ROWS['messages_per_s']}"
    return Figure(f"{name}.messages_per_s", text, rate, "msg/s", None, True, dict(answer), problem)


def main() -> int:
    """Measure all three."""
    parser = argparse.ArgumentParser(prog="make bench-peers DELAYED=1", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter as long")
    is_quick = parser.parse_args().quick
    found = choose(read_workloads(), ["due", "due_at_once"])
    due, at_once = (workload.quick() for workload in found) if is_quick else found
    assert isinstance(due.load, Due)
    assert isinstance(at_once.load, DueAtOnce)
    loads = due.load, (at_once.load, at_once.partitions)

    async def measure(directory: Path, progress: Progress) -> list[Figure]:
        figures = [
            replace(figure, name=f"{US}.{figure.name.partition('.')[2]}", aim=None, details=details)
            for workload, shown in ((due, True), (at_once, False))
            for figure in await try_workload(workload, directory, progress)
            for details in [figure.details if shown else {}]  # the picture has one curve for each broker
        ]
        for name, cluster in PEERS.items():
            figures += await measure_peer(name, cluster, directory, *loads, progress)
        return figures

    def show(console: Console, figures: Sequence[Figure], out: Path) -> None:
        console.print(f"NATS {Nats().version}, 2 replicas on 3 servers, sync_interval always", highlight=False)
        console.print(f"RabbitMQ {rabbitmq.version()}, quorum queues on 2 nodes, dead letters at least once")
        console.print("Kafka has no delayed messages.")
        if draw(figures, out / "peers-delayed.svg"):
            console.print(f"lateness: {out / 'peers-delayed.svg'}", highlight=False)

    title = "delayed messages of 512 B, two copies, flushed"
    shown = partial(side_by_side, rows=ROWS)
    return run("peers-delayed", measure, title, loop_factory=exact_loop, after=show, shown=shown)


if __name__ == "__main__":
    sys.exit(main())
