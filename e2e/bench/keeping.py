"""`python -m e2e.bench.keeping`: a topic keeps one minute of messages, under load for an hour. Its use of space
must stop growing.

One partition takes messages of 512 bytes at a steady rate, and its open segment moves to another broker group every
minute. A reader that is always behind is told which messages it missed. Every five seconds the benchmark notes the
bytes on all brokers' disks and in their memory, the segments of the chain record, and the bytes on the coordinator's
disk.

MINUTES=60 RATE=20000 COORDINATOR=etcd (or embedded). Prints the figures, and writes `keeping.json` and the picture
`keeping.svg` in `bench-out/` (OUT= another directory).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from seriatim import Client, Gap, TopicSettings
from seriatim_api.errors import SeriatimError
from seriatim_local import LocalCluster

from e2e.bench.bulk import pieces
from e2e.bench.figures import Figure
from e2e.bench.program import run
from e2e.bench.steady import DEADLINE_S, MESSAGE_SIZE_BYTES
from e2e.observe import Observer, Snapshot

TOPIC: Final = "keeping"
KEPT_S: Final = 60
SAMPLE_S: Final = 5.0
SWITCH_S: Final = 60.0
PIECE_ROWS: Final = 500
SLOW_READ_S: Final = 0.2
"""The time between two tables that the slow reader takes."""

DISK_MINUTES_MAX: Final = 2.5
"""The aim for the disks of the two members of the open segment: how many minutes of traffic they may hold."""


class Sample(NamedTuple):
    """The use of space at one time, in seconds since the beginning."""

    at_s: float
    disk_bytes: int
    memory_bytes: int
    segments: int
    coordinator_bytes: int


async def _send(client: Client, rate: float, until: float, count: list[int]) -> None:
    to_send = pieces(PIECE_ROWS)
    async with client.producer(TOPIC) as producer:
        begin, sent = time.monotonic(), 0
        while time.monotonic() < until:
            await producer.send_table(to_send[sent // PIECE_ROWS % len(to_send)])
            sent += PIECE_ROWS
            count[0] = sent
            await asyncio.sleep(max(begin + sent / rate - time.monotonic(), 0))
        await producer.flush()


async def _read_slowly(client: Client, until: float, missed: list[Gap]) -> None:
    async with client.consumer(TOPIC, "slow", on_gap=missed.append) as consumer:
        while time.monotonic() < until:
            fetched = await consumer.fetch_table(timeout_s=1.0)
            if fetched is not None:
                await consumer.ack(fetched)
            await asyncio.sleep(SLOW_READ_S)


async def _switch(client: Client, until: float) -> None:
    partition = (await client.admin().describe_topic(TOPIC)).topic.partition_ids[0]
    while time.monotonic() + SWITCH_S < until:
        await asyncio.sleep(SWITCH_S)
        with suppress(SeriatimError):  # the next round tries again
            await client.admin().switch_partition(partition)


def _held(directory: Path) -> int:
    held = 0
    for file in directory.rglob("*"):
        with suppress(FileNotFoundError):
            held += file.stat().st_size if file.is_file() else 0
    return held


def _resident(pid: int | None) -> int:
    with suppress(OSError):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024
    return 0


async def _sample(cluster: LocalCluster, client: Client, begin: float, until: float, found: list[Sample],
                  progress: Callable[[str], None]) -> None:  # fmt: skip
    while time.monotonic() < until:
        chain = await client.admin().describe_chain(TOPIC, 0)
        found.append(
            Sample(
                time.monotonic() - begin,
                sum(_held(cluster.data_directory(name)) for name in cluster.broker_names),
                sum(_resident(cluster.pid(name)) for name in cluster.broker_names),
                len(chain.segments),
                _held(cluster.data_directory("coordinator")),
            )
        )
        progress(f"{(time.monotonic() - begin) / 60:.0f} min, {found[-1].disk_bytes / 1e6:,.0f} MB on disks")
        await asyncio.sleep(SAMPLE_S)


async def measure(directory: Path, progress: Callable[[str], None]) -> list[Figure]:
    """Send for `MINUTES`, and meanwhile note the use of space."""
    minutes, rate = float(os.environ.get("MINUTES") or 60), float(os.environ.get("RATE") or 20_000)
    kind = "etcd" if os.environ.get("COORDINATOR", "etcd") == "etcd" else "embedded"
    samples: list[Sample] = []
    missed: list[Gap] = []
    sent = [0]
    async with (
        LocalCluster(directory / "keeping", groups=2, proxy=False, name="bench", coordinator=kind) as cluster,  # type: ignore[arg-type]
        Client.connect(cluster.bootstrap) as client,
    ):
        await client.admin().create_topic(TOPIC, 1, settings=TopicSettings(retention_ms=KEPT_S * 1000))
        await Observer(client.admin(), TOPIC).wait_until(Snapshot.settled, "it accepts", DEADLINE_S)
        begin = time.monotonic()
        until = begin + 60 * minutes
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send(client, rate, until, sent), name="send")
            tasks.create_task(_read_slowly(client, until, missed), name="read")
            tasks.create_task(_switch(client, until), name="switch")
            tasks.create_task(_sample(cluster, client, begin, until, samples, progress), name="sample")
    out = Path(os.environ.get("OUT") or "bench-out")
    (out / "keeping.svg").write_text(draw(samples, f"{rate:,.0f} messages a second, {KEPT_S} s kept"))
    (out / "keeping-samples.json").write_text(json.dumps([sample._asdict() for sample in samples]))
    return _figures(samples, missed, sent[0], time.monotonic() - begin)


def _figures(samples: Sequence[Sample], missed: Sequence[Gap], sent: int, took_s: float) -> list[Figure]:
    bytes_per_s = 2 * sent / took_s * MESSAGE_SIZE_BYTES
    late = [sample for sample in samples if sample.at_s > 4 * KEPT_S] or samples
    empty_bytes = samples[0].disk_bytes
    most = max(late, key=lambda sample: sample.disk_bytes)
    kept_minutes = (most.disk_bytes - empty_bytes) / bytes_per_s / 60
    usual = sorted(sample.disk_bytes for sample in late)[len(late) // 2]
    told = sum(gap.messages or 0 for gap in missed)
    half = len(late) // 2
    memory = [sorted(sample.memory_bytes for sample in part)[len(part) // 2] for part in (late[:half], late[half:])]
    coordinator = [max(sample.coordinator_bytes for sample in part) for part in (late[:half], late[half:])]
    return [
        Figure("disk", "most on disks, minutes of traffic", kept_minutes, "min", DISK_MINUTES_MAX,
               details={"at_s": round(most.at_s), "median": f"{(usual - empty_bytes) / bytes_per_s / 60:.2f} min",
                        "megabytes": round(most.disk_bytes / 1e6), "sent": sent, "took_s": round(took_s)}),
        Figure("segments", "most segments in the record", float(max(s.segments for s in late)), "", 10.0),
        Figure("memory", "median of all brokers, later half", memory[1] / 1e6, "MB", memory[0] / 1e6 * 1.2,
               details={"earlier_half_mb": round(memory[0] / 1e6)}),
        Figure("coordinator", "most on its disk, later half", coordinator[1] / 1e6, "MB", coordinator[0] / 1e6 * 1.5,
               details={"earlier_half_mb": round(coordinator[0] / 1e6, 1)}),
        Figure("told", "messages that the slow reader was told it missed", float(told), "", 1.0, higher_is_better=True,
               details={"events": len(missed)}),
    ]  # fmt: skip


# ---- the picture ----------------------------------------------------------------------------------------

_WIDTH, _PANEL, _LEFT = 900, 150, 90
_PANELS: Final[tuple[tuple[str, str, float], ...]] = (
    ("disk_bytes", "disks of all brokers, MB", 1e6),
    ("memory_bytes", "memory of all brokers, MB", 1e6),
    ("segments", "segments in the chain record", 1.0),
    ("coordinator_bytes", "disk of the coordinator, MB", 1e6),
)


def draw(samples: Sequence[Sample], title: str) -> str:
    """Return the picture as the text of an SVG file. It has a panel for each figure, all over the same time."""
    height = 60 + len(_PANELS) * _PANEL
    svg = ET.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {height}", width=str(_WIDTH),
        height=str(height), attrib={"font-family": "sans-serif", "font-size": "13"},
    )  # fmt: skip
    ET.SubElement(svg, "rect", width=str(_WIDTH), height=str(height), fill="#fff")
    _label(svg, _LEFT, 28, f"A minute is kept: {title}", "17")
    end_s = max(samples[-1].at_s, 1.0)
    for number, (field, name, unit) in enumerate(_PANELS):
        values = [getattr(sample, field) / unit for sample in samples]
        top, most = 60 + number * _PANEL, max(*values, 1e-9) * 1.1
        bottom = top + _PANEL - 50
        _label(svg, _LEFT, top - 4, name, "13")
        for share in (0.0, 0.5, 1.0):
            y = bottom - (bottom - top) * share
            ET.SubElement(svg, "line", x1=str(_LEFT), x2=str(_WIDTH - 20), y1=f"{y}", y2=f"{y}", stroke="#ddd")
            _label(svg, 10, y + 4, f"{most * share:,.0f}", "12")
        points = " ".join(
            f"{_LEFT + (_WIDTH - 20 - _LEFT) * sample.at_s / end_s:.1f},{bottom - (bottom - top) * value / most:.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        ET.SubElement(svg, "polyline", points=points, fill="none", stroke="#1f6feb", attrib={"stroke-width": "2"})
        for minute in range(0, int(end_s / 60) + 1, max(1, round(end_s / 600))):
            _label(svg, _LEFT + (_WIDTH - 20 - _LEFT) * minute * 60 / end_s, bottom + 18, f"{minute} min", "11")
    return ET.tostring(svg, encoding="unicode") + "\n"


def _label(svg: ET.Element, x: float, y: float, text: str, size: str) -> None:
    ET.SubElement(svg, "text", x=f"{x:.1f}", y=f"{y:.1f}", fill="#333", attrib={"font-size": size}).text = text


def main() -> int:
    return run("keeping", measure, "what a topic with a minute of retention holds")


if __name__ == "__main__":
    sys.exit(main())
