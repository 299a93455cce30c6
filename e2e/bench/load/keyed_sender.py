"""`python -m e2e.bench.load.keyed_sender`: a child of `e2e.bench.consume` that sends messages with keys.

It sends as fast as it can, up to the count that its parent said last. So the parent decides how far the sender is ahead
of the consumers. At the end it says how many messages were acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any, Final

import pyarrow as pa
from seriatim import Client

from e2e.bench.load.bulk import Count
from e2e.bench.load.setup import MESSAGE_SIZE_BYTES
from e2e.workers import Parent

PIECE_ROWS: Final = 2_000
PIECES: Final = 100
"""The sender repeats this many pieces. Each has other keys, drawn at random."""

HOT_KEY: Final = b"hot"


def key_of(number: int) -> bytes:
    """The key with that number."""
    return b"key-%06d" % number


def keyed_pieces(key_count: int, *, has_hot_key: bool) -> list[pa.Table]:
    """Tables of messages with random keys. With a hot key, every other message has that key."""
    chance = random.Random(key_count)
    noise = chance.randbytes(PIECE_ROWS * MESSAGE_SIZE_BYTES)
    values = [noise[at : at + MESSAGE_SIZE_BYTES] for at in range(0, len(noise), MESSAGE_SIZE_BYTES)]
    columns = {"value": pa.array(values, pa.binary()), "timestamp": pa.array([0] * PIECE_ROWS, pa.int64())}
    pieces = []
    for _ in range(PIECES):
        keys = [key_of(chance.randrange(key_count)) for _ in range(PIECE_ROWS)]
        if has_hot_key:
            keys[::2] = [HOT_KEY] * len(keys[::2])
        pieces.append(pa.table({"key": pa.array(keys, pa.binary()), **columns}))
    return pieces


class _Sender:
    def __init__(self) -> None:
        self.limit = 0
        self.raised = asyncio.Event()
        self.parent = Parent(self._take)

    def _take(self, message: dict[str, Any]) -> None:
        self.limit = message["to"]
        self.raised.set()

    async def run(self, bootstrap: list[str], topic: str, pieces: list[pa.Table], total: int) -> None:
        """Send `total` messages, each when the parent allows it."""
        count, sent = Count(), 0
        async with Client.connect(bootstrap) as client, client.producer(topic) as producer:
            self.parent.say("ready")
            while sent < total:
                while sent >= self.limit:
                    self.raised.clear()
                    await self.raised.wait()
                await count.add(await producer.send_table(pieces[sent // PIECE_ROWS % len(pieces)], partition=0))
                sent += PIECE_ROWS
            await count.finish()
        self.parent.say("sent", ok=count.ok, not_ok=count.not_ok)


async def _main(arguments: list[str]) -> None:
    topic, key_count, hot, total, *bootstrap = arguments
    sender = _Sender()
    listening = asyncio.create_task(sender.parent.listen(), name="commands")
    try:
        pieces = keyed_pieces(int(key_count), has_hot_key=hot == "hot")
        await sender.run(bootstrap, topic, pieces, int(total))
        await sender.parent.gone.wait()
    finally:
        listening.cancel()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
