"""`python -m e2e.bench.load.keyed_holder`: a child of `e2e.bench.consume` that takes messages and never ends its work.

Its parent kills it, and measures how long the others wait for its keys.
"""

from __future__ import annotations

import asyncio
import sys

from seriatim import Client, Message

from e2e.workers import Parent


async def _main(topic: str, group: str, wanted: int, bootstrap: list[str]) -> None:
    parent = Parent(lambda _message: None)
    listening = asyncio.create_task(parent.listen(), name="commands")
    held: list[int] = []

    async def hold(message: Message) -> None:
        held.append(message.offset)
        if len(held) == wanted:
            parent.say("holds")
        await asyncio.Event().wait()

    try:
        async with (
            Client.connect(bootstrap) as client,
            client.consumer(topic, group, mode="key_ordered", in_flight_max=wanted) as consumer,
        ):
            await consumer.run(hold, concurrency=wanted)
    finally:
        listening.cancel()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
