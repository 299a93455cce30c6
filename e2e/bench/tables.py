"""Measures how much longer a switch takes if a partition has many producers: each step that handles the table, one by
one.

    python -m e2e.bench.tables [--quick]

Between two brokers the table goes through four steps: the fence answer (made, encoded, decoded), the prepare request
(encoded for each of two members, decoded by both), the preparation on each disk, and the opening of the next segment.
All steps run in this process, one after
another and without a network. So their sum is the most that they add to a switch on one core. In a cluster three
processes share them. If there are many producers, most are in idle blocks, which members get before a switch.
Their cost is measured apart, and does not count. The benchmark prints a table and writes `tables.json`.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_broker.adapters.rocks import codec as disk_codec
from seriatim_broker.core.values import messages as m
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Preparation
from seriatim_broker.core.values.producers import (
    WINDOW_BATCHES,
    BlockName,
    Entry,
    IdleBlock,
    ProducerTable,
    pack_table,
    pack_window,
)
from seriatim_broker.rpc.links import peer_frames

from .measures.figures import Figure, table, to_json, write_json
from .measures.machine import machine_facts

_T = TypeVar("_T")

AIM_MS = 300.0
"""A switch may take so much longer than with one producer."""

CASES = (
    ("1 producer", 1, 1, 0),
    ("3,000 full windows", 3_000, WINDOW_BATCHES, 0),
    ("100,000 producers, the usual limit", 16_384, 1, 83_616),
    ("1,000,000 producers, the highest limit", 16_384, 1, 983_616),
)

PARTITION = PartitionId(7)

MEMBERS = (MemberId("g1-0", "a" * 32), MemberId("g1-1", "b" * 32))


class Steps:
    """Runs steps, and notes how many ms each took."""

    def __init__(self) -> None:
        self.took_ms: dict[str, float] = {}

    def run(self, name: str, step: Callable[[], _T]) -> _T:
        """Run a step. If several steps have the same name, add their times."""
        begin = time.perf_counter()
        result = step()
        self.took_ms[name] = self.took_ms.get(name, 0.0) + 1000 * (time.perf_counter() - begin)
        return result


def live_table(producer_count: int, entry_count: int, idle_count: int) -> ProducerTable:
    """Make a table with that many producers in windows, and with `idle_count` others in blocks. Ids are random, as
    clients make them.
    """
    chance = random.Random(1)
    windows = {}
    for at in range(producer_count):
        entries = [Entry(0, 7 * e, 7, make_offset(2, 7 * e + at)) for e in range(entry_count)]
        windows[chance.randbytes(16)] = pack_window(entries, 1_700_000_000_000 + at)
    row = pack_window([Entry(0, 0, 1, make_offset(1, 0))], 1_700_000_000_000)
    rows = BrokerConfig().idle_block_rows
    blocks = [
        IdleBlock.of((chance.randbytes(16), row) for _ in range(min(rows, idle_count - begin)))
        for begin in range(0, idle_count, rows)
    ]
    names = tuple(BlockName(block.id, block.producer_count, len(block.data), 0) for block in blocks)
    return ProducerTable(replace(pack_table(windows), blocks=names), (), {block.id: block for block in blocks})


def send_ahead(live: ProducerTable) -> dict[str, float]:
    """Send all blocks to one member, as it is done ahead of a switch. Return the ms of each step."""
    steps = Steps()
    for block in live.blocks:
        answer = m.BlockAnswer(PARTITION, (block.data,))
        frames = steps.run("sent", lambda sent=answer: list(peer_frames.write_data_frames([sent])))  # type: ignore[misc]
        (arrived,) = steps.run("received", lambda got=frames[0]: peer_frames.read_data_frame(got))  # type: ignore[misc]
        assert isinstance(arrived, m.BlockAnswer)
        steps.run("looked into", lambda got=arrived.contents[0]: IdleBlock(got))  # type: ignore[misc]
    return steps.took_ms


def over_the_wire(steps: Steps, message: m.Message) -> m.Message:
    """Encode and decode the message. Return it as it arrives."""
    name = type(message).__name__
    frames = steps.run(f"{name} encoded", lambda: list(peer_frames.write_control_frames([message])))
    reader = peer_frames.ControlReader()
    (arrived,) = steps.run(f"{name} decoded", lambda: [found for frame in frames for found in reader.read(frame)])
    return arrived


def switch(live: ProducerTable) -> dict[str, float]:
    """Do everything that a switch does with a table. Return the ms of each step."""
    steps = Steps()
    partition = PARTITION
    known = {block.id: block for block in live.blocks}
    at_rest = steps.run("made for the fence answer", lambda: live.at_rest())
    answer = m.FenceAnswer(partition, 1, b"s" * 16, True, 5, 0, True, 5, 0, at_rest, False, (), size_bytes=9)
    arrived = over_the_wire(steps, answer)
    assert isinstance(arrived, m.FenceAnswer)
    prepared = arrived.table
    for _ in MEMBERS:
        request = m.PrepareRequest(partition, 2, b"a" * 16, MEMBERS, True, False, arrived.table, None)
        received = over_the_wire(steps, request)
        assert isinstance(received, m.PrepareRequest)
        prepared = received.table
        preparation = Preparation(2, b"a" * 16, MEMBERS, True, False, prepared, None, 1)
        steps.run("Preparation for the disk", lambda kept=preparation: disk_codec.write(kept))  # type: ignore[misc]
    opened = steps.run("opened", lambda: ProducerTable(prepared, (), known))
    assert opened.windows == live.windows, "the next segment knows what this one knew"
    assert opened.producer_count == live.producer_count
    return steps.took_ms


def measure(live: ProducerTable, repeat_count: int) -> dict[str, float]:
    """Run several switches, and return the steps of the quickest, because other processes slow some of them down."""
    gc.collect()
    return min((switch(live) for _ in range(repeat_count)), key=lambda took: sum(took.values()))


def main() -> int:
    """Measure all cases. Return 1 if one is over the aim."""
    parser = argparse.ArgumentParser(description="how much a producer table adds to a switch")
    parser.add_argument("--quick", action="store_true", help="measure each case once, and not five times")
    arguments = parser.parse_args()
    begin_s = time.perf_counter()
    figures = []
    baseline_ms = 0.0
    for name, producer_count, entry_count, idle_count in CASES:
        live = live_table(producer_count, entry_count, idle_count)
        took = measure(live, 1 if arguments.quick else 5)
        total_ms = sum(took.values())
        baseline_ms = baseline_ms or total_ms
        details = {step: round(ms, 1) for step, ms in took.items()}
        if live.blocks:
            details |= {f"ahead, {step}": round(ms, 1) for step, ms in send_ahead(live).items()}
        key = f"{producer_count + idle_count}_producers"
        figures.append(Figure(key, name, round(total_ms - baseline_ms, 2), "ms", AIM_MS, details=details))
    console = Console()
    console.print(table(figures, "time that the producer table adds to a switch"))
    for figure in figures:
        console.print(figure.text, dict(figure.details))
    out = Path(os.environ.get("OUT", "bench-out"))
    out.mkdir(parents=True, exist_ok=True)
    took_s = time.perf_counter() - begin_s
    write_json(out / "tables.json", to_json(figures, machine_facts(out), took_s, benchmark="tables"))
    return int(any(figure.value is None or figure.value > AIM_MS for figure in figures))


if __name__ == "__main__":
    raise SystemExit(main())
