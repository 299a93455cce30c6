"""Sends tables as fast as possible. Several benchmarks fill their partitions with it."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from seriatim import Deliveries, Part, Producer

from e2e.bench.load.setup import MESSAGE_SIZE_BYTES

ROWS: Final = 8_192
"""Rows of the table that is sent again and again. They are random, so that nothing on the way can compress them."""

UNSETTLED_MESSAGES_MAX: Final = 60_000


def pieces(rows: int) -> list[pa.Table]:
    """Make tables of `rows` messages each, all different."""
    noise = random.Random(1).randbytes(ROWS * MESSAGE_SIZE_BYTES)
    values = [noise[at : at + MESSAGE_SIZE_BYTES] for at in range(0, len(noise), MESSAGE_SIZE_BYTES)]
    whole = pa.table({"value": pa.array(values, pa.binary()), "timestamp": pa.array([0] * ROWS, pa.int64())})
    return [whole.slice(at, rows) for at in range(0, ROWS - rows + 1, rows)]


class Count:
    """Counts the messages that were sent, by outcome."""

    def __init__(self) -> None:
        self.ok_by_partition: dict[int, int] = {}
        self.not_ok = 0
        self.last_ack_at = 0.0
        self._under_way: deque[tuple[Deliveries, int]] = deque()
        self._unsettled = 0

    @property
    def ok(self) -> int:
        """The number of acknowledged messages."""
        return sum(self.ok_by_partition.values())

    async def add(self, deliveries: Deliveries) -> None:
        """Add a send that is under way. If too many messages have no outcome yet, wait."""
        self._under_way.append((deliveries, len(deliveries)))
        self._unsettled += len(deliveries)
        while self._unsettled > UNSETTLED_MESSAGES_MAX:
            await self._settle_one()

    async def finish(self) -> None:
        """Wait until every send has an outcome."""
        while self._under_way:
            await self._settle_one()

    async def _settle_one(self) -> None:
        deliveries, count = self._under_way.popleft()
        for part in await deliveries.settled():
            self._took(part)
        self._unsettled -= count
        self.last_ack_at = time.monotonic()

    def _took(self, part: Part) -> None:
        if part.outcome == "ok":
            self.ok_by_partition[part.partition] = self.ok_by_partition.get(part.partition, 0) + len(part.positions)
        else:
            self.not_ok += len(part.positions)


async def send_while(
    producer: Producer, pieces: Sequence[pa.Table], partition_count: int, goes_on: Callable[[int], bool]
) -> Count:
    """Send piece after piece, to one partition after the other, as long as `goes_on(messages sent)` is true."""
    count = Count()
    number = sent = 0
    while goes_on(sent):
        piece = pieces[number % len(pieces)]
        await count.add(await producer.send_table(piece, partition=number % partition_count))
        number += 1
        sent += piece.num_rows
    await count.finish()
    return count


async def send_for(producer: Producer, pieces: Sequence[pa.Table], partition_count: int, duration_s: float) -> Count:
    """Call `send_while` for `duration_s` seconds."""
    until = time.monotonic() + duration_s
    return await send_while(producer, pieces, partition_count, lambda _sent: time.monotonic() < until)
