"""A consumer in a process of its own, for tests that kill it: `python -m e2e.tests.process.reader`.

It reads and acknowledges until its stdin ends. It says `ready` when the server knows it, as active or standby consumer.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from seriatim import Client, Consumer
from seriatim.history import HistoryWriter

from e2e.workers import Parent


async def _read(consumer: Consumer, partition_count: int, parent: Parent) -> None:
    ready = False
    while True:
        for message in await consumer.fetch(timeout_s=0.05):
            await consumer.ack(message)
        if not ready and len(consumer.joined) == partition_count:
            ready = True
            parent.say("ready")


async def _main(arguments: argparse.Namespace) -> None:
    parent = Parent(lambda _line: None)
    with HistoryWriter(arguments.history, arguments.name) as history:
        async with (
            Client.connect(arguments.bootstrap, recorder=history, message_id=int) as client,
            client.consumer(arguments.topic, arguments.group, name=arguments.name) as consumer,
        ):
            reading = asyncio.create_task(_read(consumer, arguments.partitions, parent), name="reading")
            listening = asyncio.create_task(parent.listen(), name="parent")
            await asyncio.wait([reading, listening], return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await listening


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
