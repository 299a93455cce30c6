"""The demo's consumer, a process of its own: rebuilds each aircraft's history from the deliveries, in their order.

`python -m e2e.demo.consumer --help`. `member` has what it says, and what its parent says. At its end it writes the
histories. It writes every delivery to its history file before it acknowledges it. If a delivery is flagged as a
possible repeat and its offset was seen before, the consumer leaves it out. It leaves nothing else out, and sorts
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Final

from seriatim import Client, Consumer, FetchedTable
from seriatim.history import HistoryWriter

from e2e.demo.flights import event_number
from e2e.demo.member import Member, command_line
from e2e.demo.rebuild import Rebuilder, write_histories

FETCH_S: Final = 0.1


class Reading:
    """Folds deliveries into histories. (The client's recorder writes each delivery down.)"""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # by partition: the highest offset applied
        self.rebuilder = Rebuilder()
        self.by_partition: dict[int, int] = {}
        self.last_at = 0.0

    def take(self, fetched: FetchedTable) -> None:
        """Apply rows of one partition, without those that are known repeats."""
        at = time.monotonic()
        values = fetched.table.column("value")
        count = len(values)
        skipped = self._known(fetched.partition, fetched.offset, count) if fetched.maybe_repeated else 0
        if skipped == count:
            return
        keys = fetched.table.column("key").slice(skipped).to_pylist()
        self.rebuilder.apply_all(keys, values.slice(skipped).to_pylist())
        self._seen[fetched.partition] = fetched.offset + count - 1
        self.by_partition[fetched.partition] = self.by_partition.get(fetched.partition, 0) + count - skipped
        self.last_at = at

    def progress(self) -> dict[str, object]:
        """What is reported to the parent."""
        return {"delivered": self.rebuilder.event_count, "by_partition": list(self.by_partition.items())}

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


async def _main(arguments: argparse.Namespace) -> None:
    reading = Reading()
    member = Member(reading.progress)
    with HistoryWriter(arguments.history, "consumer") as history:
        async with Client.connect(arguments.bootstrap, recorder=history, message_id=event_number) as client:
            await member.expect(client, arguments.topic, 1)
            consumer = await client.consumer(
                arguments.topic,
                arguments.group,
                name="consumer-1",
                on_assignment=partial(member.assigned, "consumer-1"),
            )
            has_finished = await member.work([consumer], [_read(consumer, reading)])
    if has_finished:
        write_histories(arguments.histories, reading.rebuilder.histories())
        member.done(last_delivery_at=reading.last_at)


def main() -> None:
    parser = command_line("e2e.demo.consumer", __doc__)
    parser.add_argument("--group", required=True)
    parser.add_argument("--histories", type=Path, required=True, help="where the rebuilt histories go")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
