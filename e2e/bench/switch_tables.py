"""Measures how much longer a partition with many producers accepts nothing when its master is killed.

    python -m e2e.bench.switch_tables [--producers 100000] [--batches 1] [--rounds 2] [--kills 3]

The cluster has two groups, and each broker is a process. This process speaks the append protocol for all producers over
one stream. It does not make 100,000 producers of the client, because then it would measure the client. Each producer
sends `--batches` batches of one message within some minutes, so the table has all of them as windows. Then one producer
of the client sends a message every millisecond, and the master is killed (SIGKILL). The gap is the longest time between
two acknowledgements. The same is measured with 16 producers that send as many batches together. The two cases take
turns (A B A B), each on a cluster of its own.

The figure is the difference of the medians. Memory is how much more the members of the partition use after all sends
than in the case of 16 producers. (Both cases have the same log.) It prints a table and writes `switch_tables.json` in
`bench-out/` (OUT= another directory). Exit status 1 if the aim was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import google_crc32c
import grpc
import grpc.aio
import pyarrow as pa
import structlog
from rich.console import Console
from seriatim import Client
from seriatim_api.batch import make_header
from seriatim_api.bodies import SCHEMA
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.frames import AppendEntry, write_append_frame, write_field
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2, common_pb2
from seriatim_local import LocalCluster

from e2e.bench.figures import Figure, percentile, table, to_json, write_json
from e2e.bench.machine import machine_facts
from e2e.bench.steady import DEADLINE_S, SteadySender, bench_cluster, make_topic
from e2e.observe import Observer, Snapshot

TOPIC: Final = "producers"
AIM_MS: Final = 300.0
"""A switch may take so much longer than with few producers."""

PRODUCER_COUNT: Final = 100_000
FEW: Final = 16
FRAME_BATCHES: Final = 200
WINDOW_BATCHES: Final = 16
"""The most batches of one producer that may have no answer yet."""

IN_FLIGHT_BATCHES: Final = 2_000
"""The most batches of all producers that may have no answer yet.

They have about 1 MB. A broker allows more for a stream and a partition.
"""

REPLY_DEADLINE_S: Final = 5.0
RETRY_S: Final = 0.2
SEND_DEADLINE_S: Final = 900.0

_APPEND: Final = "/seriatim.v1.Producing/Append"
_GET_TOPIC: Final = "/seriatim.v1.Routing/GetTopic"


# ---- producers that are only an id ----------------------------------------------------------------------


async def _route(cluster: LocalCluster) -> common_pb2.Route:
    """Ask where the partition takes messages."""
    async with grpc.aio.insecure_channel(cluster.bootstrap[0]) as channel:
        ask = channel.unary_unary(
            _GET_TOPIC,
            request_serializer=broker_pb2.GetTopicRequest.SerializeToString,
            response_deserializer=broker_pb2.GetTopicResponse.FromString,
        )
        found: common_pb2.Route = (await ask(broker_pb2.GetTopicRequest(topic=TOPIC))).routes[0]
        return found


class _Appender:
    """Sends batches of all producers, with at most `IN_FLIGHT_BATCHES` unanswered. Sends refused batches again."""

    def __init__(self, cluster: LocalCluster, producer_count: int) -> None:
        self._cluster = cluster
        chance = random.Random(1)
        self._producers = [chance.randbytes(16) for _ in range(producer_count)]
        rows = pa.RecordBatch.from_pylist([{"value": b"x", "timestamp": 0}], schema=SCHEMA)
        self._body = rows.serialize().to_pybytes()
        self._crc = google_crc32c.value(self._body)
        self._run = 0  # each stream has a new one, so that a producer may begin again on any member

    async def send_all(self, batch_count: int) -> None:
        """Send `batch_count` batches of every producer: first the first batch of each, then the second of each."""
        left = dict.fromkeys((producer, sequence) for sequence in range(batch_count) for producer in self._producers)
        async with asyncio.timeout(SEND_DEADLINE_S):
            while left:
                self._run += 1
                route = await _route(self._cluster)
                async with grpc.aio.insecure_channel(route.master_address) as channel:
                    call = channel.stream_stream(_APPEND)()
                    try:
                        await self._send(call, route.partition_id, left)
                    except (grpc.aio.AioRpcError, UnavailableError, TimeoutError):
                        await asyncio.sleep(RETRY_S)
                    finally:
                        call.cancel()

    async def _send(self, call: Any, partition: int, left: dict[tuple[bytes, int], None]) -> None:
        hello = broker_pb2.ClientHello(protocol=PROTOCOL, client="bench").SerializeToString()
        await call.write(b"".join(write_field(1, [hello])))
        await call.read()  # credits
        waiting = list(left)
        begun: set[bytes] = set()
        in_flight_max = min(IN_FLIGHT_BATCHES, WINDOW_BATCHES * len(self._producers))
        frame_batches = min(FRAME_BATCHES, in_flight_max)
        for at in range(0, len(waiting), frame_batches):
            rows = []
            for producer, sequence in waiting[at : at + frame_batches]:
                rows.append(self._batch(partition, producer, sequence, producer not in begun))
                begun.add(producer)
            while at + len(rows) - (len(waiting) - len(left)) > in_flight_max:
                await self._take_replies(call, left)
            await call.write(write_append_frame(rows))
        while left:
            await self._take_replies(call, left)

    async def _take_replies(self, call: Any, left: dict[tuple[bytes, int], None]) -> None:
        async with asyncio.timeout(REPLY_DEADLINE_S):
            data = await call.read()
        if data is grpc.aio.EOF:
            raise UnavailableError("the broker ended the stream")
        for reply in broker_pb2.AppendReplies.FromString(data).replies:
            if reply.HasField("error"):
                raise UnavailableError(reply.error.message)
            left.pop((reply.producer, reply.base_sequence), None)

    def _batch(
        self, partition: int, producer: bytes, sequence: int, starts_run: bool
    ) -> tuple[AppendEntry, bytes, bytes]:
        header = make_header(
            partition=partition, message_count=1, producer=producer, producer_epoch=0, base_sequence=sequence,
            first_timestamp_ms=0, last_timestamp_ms=0, body_length=len(self._body), body_crc=self._crc,
        )  # fmt: skip
        return AppendEntry(self._run, 0, starts_run, 0), header, self._body


async def make_producers(cluster: LocalCluster, producer_count: int, batch_count: int) -> float:
    """Let `producer_count` producers send `batch_count` batches each. Return how many seconds that took."""
    begin = time.monotonic()
    await _Appender(cluster, producer_count).send_all(batch_count)
    return time.monotonic() - begin


# ---- memory ---------------------------------------------------------------------------------------------


def _memory_bytes(cluster: LocalCluster) -> dict[str, int]:
    """Return the resident memory of each broker."""
    found = {}
    for name in cluster.broker_names:
        pid = cluster.pid(name)
        with suppress(OSError):
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            found[name] = int(fields["VmRSS"].split()[0]) * 1024
    return found


# ---- the switch -----------------------------------------------------------------------------------------


async def _gaps_ms(client: Client, cluster: LocalCluster, kills: int, progress: Callable[[str], None]) -> list[float]:
    """Kill the master again and again while one producer sends. Return the gaps in ms."""
    observer = Observer(client.admin(), TOPIC)
    gaps: list[float] = []
    async with client.producer(TOPIC) as producer, asyncio.TaskGroup() as tasks:
        sender = SteadySender(producer)
        running = [tasks.create_task(sender.send(), name="send"), tasks.create_task(sender.note(), name="note")]
        for number in range(kills):
            await sender.wait_for_ack_after(time.monotonic())
            before = (await observer.look()).chains[0].open_segment
            progress(f"kill {number + 1} of {kills}: {before.members[0]}")
            killed_at = time.monotonic()
            await cluster.kill(before.members[0])
            await sender.wait_for_ack_after(time.monotonic())
            gaps.append(sender.gap_s(killed_at) * 1000)
            await cluster.start_again(before.members[0])
            await observer.wait_until(Snapshot.settled, "the partition accepts again", DEADLINE_S)
            await cluster.wait_ready(deadline_s=DEADLINE_S)
        for task in running:
            task.cancel()
    if sender.not_ok:
        raise UnavailableError(f"{sender.not_ok} messages were not acknowledged")
    return gaps


async def measure_one(
    directory: Path, producer_count: int, batch_count: int, kills: int, progress: Callable[[str], None]
) -> dict[str, object]:
    """Measure one case on a cluster: make the producers, measure the memory, kill the master."""
    async with bench_cluster(directory, 2) as (cluster, client):
        await make_topic(client.admin(), TOPIC, 1)
        before = _memory_bytes(cluster)
        progress(f"{producer_count:,} producers send {batch_count:,} batches each")
        took_s = await make_producers(cluster, producer_count, batch_count)
        after = _memory_bytes(cluster)
        grown = {name: after[name] - before[name] for name in after if name in before}
        gaps = await _gaps_ms(client, cluster, kills, progress)
        now = _memory_bytes(cluster)
    return {
        "producers": producer_count,
        "batches_each": batch_count,
        "took_s": round(took_s, 1),
        "gaps_ms": [round(gap, 1) for gap in gaps],
        "grown_mb": {name: round(size / 1e6, 1) for name, size in grown.items()},
        "after_kills_mb": {name: round(size / 1e6, 1) for name, size in now.items()},
        "member_grown_mb": round(max(grown.values(), default=0) / 1e6, 1),
    }


async def _run(arguments: argparse.Namespace, out: Path, progress: Callable[[str], None]) -> list[dict[str, object]]:
    found = []
    for number in range(2 * arguments.rounds):
        directory = Path(tempfile.mkdtemp(prefix="bench-", dir=out))
        count = arguments.producers if number % 2 else FEW
        batches = arguments.batches if number % 2 else arguments.batches * arguments.producers // FEW
        try:
            found.append(await measure_one(directory, count, batches, arguments.kills, progress))
        finally:
            if not arguments.keep:
                shutil.rmtree(directory, ignore_errors=True)
        progress(str(found[-1]))
    return found


def _figures(found: list[dict[str, Any]], producer_count: int) -> list[Figure]:
    one = [gap for case in found[::2] for gap in case["gaps_ms"]]
    many = [gap for case in found[1::2] for gap in case["gaps_ms"]]
    base, slow = percentile(one, 0.5), percentile(many, 0.5)
    few_mb, many_mb = (percentile([case["member_grown_mb"] for case in found[turn::2]], 0.5) for turn in (0, 1))
    return [
        Figure("few", f"gap at kill -9 with {FEW} producers, median", base, "ms", details={"gaps_ms": one}),
        Figure("many", f"the same with {producer_count:,} producers", slow, "ms", details={"gaps_ms": many}),
        Figure("added", "what they add", max(slow - base, 0.1), "ms", AIM_MS),
        Figure("memory", "memory of a member for each of them", (many_mb - few_mb) * 1e6 / producer_count, "B"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="the gap at kill -9 with many producers against few")
    parser.add_argument("--producers", type=int, default=PRODUCER_COUNT, help="how many of them (100,000)")
    parser.add_argument("--batches", type=int, default=1, help="how many batches each has sent (1)")
    parser.add_argument("--rounds", type=int, default=2, help="how often both cases are measured (2)")
    parser.add_argument("--kills", type=int, default=3, help="how often a master is killed in each (3)")
    parser.add_argument("--keep", action="store_true", help="keep the clusters' directories, with the brokers' logs")
    arguments = parser.parse_args()
    console = Console()
    out = Path(os.environ.get("OUT") or "bench-out")
    out.mkdir(parents=True, exist_ok=True)
    machine = machine_facts(out)
    begin = time.monotonic()
    with (out / "switch_tables.log").open("w") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log), cache_logger_on_first_use=False)
        try:
            found = asyncio.run(_run(arguments, out, lambda doing: console.print(doing, highlight=False)))
        except SeriatimError as error:
            console.print(f"FAILED {error}", highlight=False, markup=False)
            return 1
    took_s = time.monotonic() - begin
    figures = _figures(found, arguments.producers)
    console.print(table(figures, f"kill -9 of the master, {machine['cores']} cores ({took_s:.0f} s)"))
    facts = {**machine, "cases": found}
    write_json(out / "switch_tables.json", to_json(figures, facts, took_s, benchmark="switch_tables"))
    return int((figures[2].value or 0) > AIM_MS)


if __name__ == "__main__":
    raise SystemExit(main())
