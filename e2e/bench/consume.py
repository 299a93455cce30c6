"""thin"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final

from seriatim import Client, KeyedConsumer, Message
from seriatim_local import LocalCluster

from e2e.bench.figures import Figure
from e2e.bench.machine import CpuClock
from e2e.bench.program import Progress, run
from e2e.bench.steady import MESSAGE_SIZE_BYTES, bench_cluster, make_topic
from e2e.workers import start_worker

AHEAD: Final = 60_000


class _Done:
    def __init__(self) -> None:
        self.count = 0


async def _through(client, cluster, directory, name, total, *, keys=100_000, hot=False, consumers=8, batches=False):
    await make_topic(client.admin(), name, 1)
    done = _Done()

    async def handle(message: Message) -> None:
        done.count += 1

    async def handle_batch(batch) -> None:
        done.count += len(batch)

    log = directory / f"{name}.log"
    arguments = [name, str(keys), "hot" if hot else "even", str(total), *cluster.bootstrap]
    async with start_worker("sender", "e2e.bench.keyed_sender", arguments, log=log) as sender:
        await sender.wait_for("ready", 30)
        opened = [await client.consumer(name, "g", mode="key_ordered").__aenter__() for _ in range(consumers)]
        running = [
            asyncio.create_task(
                consumer.run_batches(handle_batch) if batches else consumer.run(handle), name=f"run {n}"
            )
            for n, consumer in enumerate(opened)
        ]
        while not all(consumer.joined for consumer in opened):
            await asyncio.sleep(0.05)
        brokers = [pid for broker in cluster.broker_names if (pid := cluster.pid(broker)) is not None]
        clock = CpuClock.start(
            {**{f"broker{n}": [pid] for n, pid in enumerate(brokers)}, "client": [os.getpid()], "sender": [sender.pid]}
        )
        begin = time.monotonic()
        if os.environ.get("PYSPY"):
            for who, pid in [*((f"broker{n}", pid) for n, pid in enumerate(brokers)), ("client", os.getpid())]:
                await asyncio.create_subprocess_exec(".venv/bin/py-spy", "record", "-r", "150", "-d", "6", "-f", "raw", "-t", "-o", f"/tmp/sp/{who}.raw", "-p", str(pid), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
        while done.count < total:
            sender.tell(to=min(done.count + AHEAD, total))
            await asyncio.sleep(0.02)
            for task in running:
                if task.done():
                    task.result()
            if time.monotonic() - begin > 120:
                break
        took_s = time.monotonic() - begin
        cpu = clock.per_million(max(done.count, 1))
        if os.environ.get("THREADS"):
            with open("/tmp/sp/threads.txt", "w") as f:
                for pid in brokers:
                    rows = []
                    for t in Path(f"/proc/{pid}/task").iterdir():
                        st = (t / "stat").read_text().rpartition(")")[2].split()
                        rows.append(((int(st[11]), int(st[12])), (t / "comm").read_text().strip(), t.name))
                    rows.sort(key=lambda r: -sum(r[0]))
                    print(pid, sum(map(lambda r: sum(r[0]), rows)), *rows[:14], sep="\n", file=f)
        await sender.wait_for("sent", 60)
        for consumer in opened:
            await consumer.__aexit__(None, None, None)
        await asyncio.gather(*running, return_exceptions=True)
    details = {"cpu_s_per_million": cpu, "took_s": took_s, "count": done.count}
    return Figure(name, name, done.count / took_s, "msg/s", 40_000, higher_is_better=True, details=details)


async def _measure(directory: Path, progress: Progress, total: int, only: list[str]) -> list[Figure]:
    figures = []
    async with bench_cluster(directory, 1) as (cluster, client):
        if "single" in only:
            progress("single")
            figures.append(await _through(client, cluster, directory, "single", total))
        if "batch" in only:
            progress("batch")
            figures.append(await _through(client, cluster, directory, "batch", total, batches=True))
        if "hot" in only:
            figures.append(await _through(client, cluster, directory, "hot", total, hot=True))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--total", type=int, default=400_000)
    parser.add_argument("only", nargs="*")
    a = parser.parse_args()
    return run("consume", lambda d, p: _measure(d, p, a.total, a.only), "consume")


if __name__ == "__main__":
    sys.exit(main())
