"""The demo's consumer, a process of its own: rebuilds each aircraft's history from the deliveries, in their order.

`python -m e2e.demo.consumer --help`. It prints `ready` when it is the active consumer of every partition, and
`progress` several times a second. After `finish` it writes the histories and prints `done`. It writes every delivery to
its history file before it acknowledges it. If a delivery is flagged as a possible repeat and its offset was seen
before, the consumer leaves it out. It leaves nothing else out, and sorts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any, Final

from seriatim import Assignment, Client, Consumer, FetchedTable
from seriatim.history import HistoryWriter

from e2e.demo.expect import write_histories
from e2e.demo.flights import event_number
from e2e.demo.rebuild import Rebuilder
from e2e.workers import Parent

FETCH_S: Final = 0.1
SAY_S: Final = 0.25
JOIN_DEADLINE_S: Final = 60.0


class Reading:
    """Folds deliveries into histories. (The client's recorder writes each delivery down.)"""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # by partition: the highest offset applied
        self.rebuilder = Rebuilder()
        self.repeated_count = 0
        self.by_partition: dict[int, int] = {}
        self.last_at = 0.0

    def take(self, fetched: FetchedTable) -> None:
        """Apply rows of one partition, without those that are known repeats."""
        at = time.monotonic()
        values = fetched.table.column("value")
        count = len(values)
        skipped = self._known(fetched.partition, fetched.offset, count) if fetched.maybe_repeated else 0
        self.repeated_count += skipped
        if skipped == count:
            return
        keys = fetched.table.column("key").slice(skipped).to_pylist()
        self.rebuilder.apply_all(keys, values.slice(skipped).to_pylist())
        self._seen[fetched.partition] = fetched.offset + count - 1
        self.by_partition[fetched.partition] = self.by_partition.get(fetched.partition, 0) + count - skipped
        self.last_at = at

    def _known(self, partition: int, offset: int, count: int) -> int:
        """Return how many of the rows, from `offset` on, have an offset up to the highest that was applied."""
        return min(max(self._seen.get(partition, -1) - offset + 1, 0), count)


async def _read(consumer: Consumer, reading: Reading) -> None:
    while True:
        fetched = await consumer.fetch_table(timeout_s=FETCH_S)
        if fetched is None:
            continue
        reading.take(fetched)
        await consumer.ack(fetched)


async def _report(reading: Reading, parent: Parent) -> None:
    while True:
        parent.say(
            "progress", delivered=reading.rebuilder.event_count, repeated=reading.repeated_count,
            by_partition=list(reading.by_partition.items()),
        )  # fmt: skip
        await asyncio.sleep(SAY_S)


async def _main(arguments: argparse.Namespace) -> None:
    finish = asyncio.Event()
    assigned: set[int] = set()
    complete = asyncio.Event()
    partition_count = 0

    def told(line: dict[str, Any]) -> None:
        if line.get("finish"):
            finish.set()

    def assignment(now: Assignment) -> None:
        (assigned.add if now.active else assigned.discard)(now.partition)
        if len(assigned) == partition_count:
            complete.set()

    parent = Parent(told)
    with HistoryWriter(arguments.history, "consumer") as history:
        reading = Reading()
        async with Client.connect(arguments.bootstrap, recorder=history, message_id=event_number) as client:
            partition_count = (await client.admin().describe_topic(arguments.topic)).topic.partition_count
            consumer = await client.consumer(
                arguments.topic, arguments.group, name="consumer-1", on_assignment=assignment
            )
            listening = asyncio.create_task(parent.listen(), name="commands")
            work = asyncio.create_task(_read(consumer, reading), name="reading")
            saying = asyncio.create_task(_report(reading, parent), name="progress")
            finishing = asyncio.create_task(finish.wait(), name="finish")
            tasks = (listening, work, saying, finishing)
            try:
                async with asyncio.timeout(JOIN_DEADLINE_S):
                    await complete.wait()
                parent.say("ready")
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await consumer.close()
        if finish.is_set():
            write_histories(arguments.histories, reading.rebuilder.histories())
            parent.say(
                "done", delivered=reading.rebuilder.event_count, repeated=reading.repeated_count,
                last_delivery_at=reading.last_at,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo.consumer", description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port,...")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--histories", type=Path, required=True, help="where the rebuilt histories go")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
