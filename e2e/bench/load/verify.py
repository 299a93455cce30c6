"""Checks that what a benchmark counts as acknowledged is stored."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from seriatim import Client

from e2e.bench.load.setup import DEADLINE_S

READ_S: Final = 5.0
"""Seconds without a message after which reading back ends."""


async def stored(client: Client, topic: str, wanted: dict[int, int], details: dict[str, object], *, whole: bool) -> str:
    """Check that everything acknowledged is stored: read all of it back (`whole`), or ask the servers for lengths.

    Args:
        client: Reads.
        topic: Its partitions have nothing else in them.
        wanted: How many messages each partition acknowledged.
        details: Gets the rate at which messages were read back.
        whole: Whether to read everything.

    Returns:
        What is missing, or in the wrong place; empty if all is there.
    """
    if whole:
        return await _read_back(client, topic, wanted, details)
    async with client.consumer(topic, "verify", start="latest") as consumer:
        async with asyncio.timeout(DEADLINE_S):
            while len(consumer.joined) < len(wanted):
                await consumer.fetch(timeout_s=0.05)
            described = await client.admin().describe_group(topic, "verify")
    ends = {row.partition: row.end_position for row in described.partitions if row.error is None}
    short = [partition for partition, count in wanted.items() if ends.get(partition, -1) < count]
    return f"{len(short)} partitions hold less than was acknowledged" if short else ""


async def _read_back(client: Client, topic: str, wanted: dict[int, int], details: dict[str, object]) -> str:
    """Read everything back, and check that offsets follow one another."""
    left = dict(wanted)
    follows: dict[int, int] = {}
    begin = time.monotonic()
    async with client.consumer(topic, "verify") as consumer:
        while any(count > 0 for count in left.values()):
            fetched = await consumer.fetch_table(timeout_s=READ_S)
            if fetched is None:
                return f"{sum(left.values()):,} acknowledged messages did not come back"
            if follows.get(fetched.partition, fetched.offset) != fetched.offset:
                return f"offset {fetched.offset} came where {follows[fetched.partition]} should"
            follows[fetched.partition] = fetched.offset + fetched.table.num_rows
            left[fetched.partition] -= fetched.table.num_rows
            await consumer.ack(fetched)
    details["read_back_per_s"] = round(sum(wanted.values()) / (time.monotonic() - begin))
    return ""
