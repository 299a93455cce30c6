"""A program that publishes while faults continue, one publication after another:
`python -m e2e.faults.traffic.publisher`.

It continues after its writer's last publication, so it may be killed at any moment and started again. The number of a
publication determines its rows. It prints `publishing`, then `published` after each publication, and `stopped` after
the command `stop`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import Any, Final

from seriatim import Chunk, Client, SendFailedError, SendUnknownError, Writer
from seriatim_api.errors import (
    CapacityError,
    PublishedWithLossError,
    RoutingError,
    SeriatimError,
    StagedDataGoneError,
    UnavailableError,
    WriterFencedError,
)

from e2e.workers import Parent

WRITER: Final = "faults"
ROWS: Final = (1, 20, 200, 1000)
KEYS: Final = 60
SIZE_BYTES: Final = 120
RETRY_S: Final = 0.1
TRY_S: Final = 20.0
"""The deadline of one call. Then the same publication is asked for again."""

_PASSES: Final = (UnavailableError, RoutingError, CapacityError, SendFailedError, SendUnknownError)
"""Errors that a fault may cause. The call is made again."""


def rows_of(seed: int, sequence: int) -> tuple[list[bytes], list[bytes]]:
    """Return values and keys of a publication. They are the same in each run."""
    dice = random.Random(f"{seed} {sequence}")
    count = dice.choice(ROWS)
    values = [(b"%d %d " % (sequence, number)).ljust(SIZE_BYTES, b".") for number in range(count)]
    return values, [b"key-%d" % dice.randrange(KEYS) for _ in range(count)]


async def _staged(writer: Writer, seed: int, sequence: int) -> list[Chunk]:
    """Stage the rows of a publication, as two tasks of a job do."""
    values, keys = rows_of(seed, sequence)
    half = (len(values) + 1) // 2
    while True:
        try:
            return [await writer.stage(values[:half], keys[:half]), await writer.stage(values[half:], keys[half:])]
        except _PASSES:
            await asyncio.sleep(RETRY_S)


async def _publish(parent: Parent, writer: Writer, seed: int, sequence: int) -> None:
    chunks = await _staged(writer, seed, sequence)
    while True:
        try:
            await writer.publish(sequence, chunks, timeout_s=TRY_S)
        except StagedDataGoneError:
            chunks = await _staged(writer, seed, sequence)
        except WriterFencedError:  # an earlier call that opened the writer was carried out late
            await _open(writer)
        except PublishedWithLossError as error:
            parent.say("published", sequence=sequence, lost=error.details.get("lost_rows", "?"))
            return
        except _PASSES:
            await asyncio.sleep(RETRY_S)
        else:
            parent.say("published", sequence=sequence, lost="0")
            return


async def _open(writer: Writer) -> int:
    while True:
        try:
            return await writer.open() or 0
        except _PASSES:
            await asyncio.sleep(RETRY_S)


async def _run(parent: Parent, stop: asyncio.Event, options: argparse.Namespace) -> None:
    async with Client.connect(options.bootstrap, name="publisher") as client:
        while True:
            try:
                writer = await client.writer(options.topic, WRITER)
                break
            except _PASSES:
                await asyncio.sleep(RETRY_S)
        async with writer:
            sequence = await _open(writer)
            parent.say("publishing", behind=sequence)
            while not stop.is_set():
                sequence += 1
                await _publish(parent, writer, options.seed, sequence)
            parent.say("stopped", sequence=sequence)


async def _main(options: argparse.Namespace) -> None:
    stop = asyncio.Event()

    def told(command: dict[str, Any]) -> None:
        if command["do"] == "stop":
            stop.set()

    parent = Parent(told)
    listening = asyncio.create_task(parent.listen(), name="parent")
    working = asyncio.create_task(_run(parent, stop, options), name="publisher")
    try:
        await asyncio.wait([listening, working], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            try:
                working.result()
            except SeriatimError as error:
                parent.say("failed", error=f"{type(error).__name__}: {error}")
                raise
            await listening  # until the parent has closed the pipe
    finally:
        for task in (listening, working):
            task.cancel()
        await asyncio.gather(listening, working, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.faults.traffic.publisher", description=__doc__)
    parser.add_argument("--bootstrap", action="append", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seed", type=int, required=True)
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
