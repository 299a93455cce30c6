"""Implements the commands' ports (`_ports`) with the client's public names, which no other module here uses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click

import seriatim
from seriatim.cli._ports import (
    OutcomeName,
    ProducerPort,
    SendResult,
)
from seriatim.cli._running import run
from seriatim.cli._settings import Settings
from seriatim.cli._sources import Message

if TYPE_CHECKING:
    pass

T = TypeVar("T")

MESSAGE_ID_HEADER: Final = "seriatim-id"
"""The header that carries a message's id for histories."""

STICKY_COUNT: Final = 100
"""How many messages without a key go to one partition before the next partition gets its turn: large batches, spread
evenly."""


@asynccontextmanager
async def client(settings: Settings) -> AsyncIterator[seriatim.Client]:
    """A client whose warnings are printed on stderr, for example that no broker answers."""
    logger, warnings = logging.getLogger("seriatim"), _WarningNotes(settings)
    logger.addHandler(warnings)
    try:
        asked = settings.tls
        tls = None
        if asked is not None and asked.ca is not None:
            tls = seriatim.Tls(asked.ca, asked.cert, asked.key, asked.server_name)
        async with seriatim.Client.connect(settings.bootstrap, name="cli", tls=tls) as opened:
            yield opened
    finally:
        logger.removeHandler(warnings)


def call_admin(settings: Settings, call: Callable[[seriatim.Admin], Awaitable[T]]) -> T:
    """Make one call of the administration, and return its answer."""

    async def work() -> T:
        async with client(settings) as opened:
            return await call(opened.admin())

    return run(work())


class _WarningNotes(logging.Handler):
    """Prints the client's warnings in the form of `consume`'s notes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(logging.WARNING)
        self._as_json = settings.as_json

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        click.echo(json.dumps({"note": "warning", "text": text}) if self._as_json else f"# {text}", err=True)


@asynccontextmanager
async def producer(settings: Settings, topic: str) -> AsyncIterator[ProducerPort]:
    """A producer of `topic`. At the end of the block every message has its outcome."""
    async with client(settings) as opened, opened.producer(topic) as found:
        port = _Producer(found)
        try:
            yield port
        finally:
            await port.close()


class _Producer:
    """The `ProducerPort`. One task for each partition in use waits for the outcomes, in their order."""

    def __init__(self, producer: seriatim.Producer) -> None:
        self.name = producer.producer_id.hex()
        self._producer = producer
        self._turn = 0
        self._waiting: dict[int, deque[tuple[seriatim.Delivery, Callable[[SendResult], None]]]] = {}
        self._settling: dict[int, asyncio.Task[None]] = {}

    def partition_of(self, message: Message) -> int:
        if message.key is not None:
            return self._producer.settings.partitioner(message.key, self._producer.partition_count)
        self._turn += 1
        return (self._turn - 1) // STICKY_COUNT % self._producer.partition_count

    async def send(
        self, message: Message, partition: int, message_id: str | None, done: Callable[[SendResult], None]
    ) -> None:
        headers = None if message_id is None else {MESSAGE_ID_HEADER: message_id.encode()}
        delivery = await self._producer.send(message.value, message.key, partition, headers=headers)
        self._waiting.setdefault(partition, deque()).append((delivery, done))
        if partition not in self._settling:
            settling = asyncio.create_task(self._settle(partition), name=f"outcomes-{partition}")
            self._settling[partition] = settling

    async def _settle(self, partition: int) -> None:
        waiting = self._waiting[partition]
        while waiting:
            delivery, done = waiting[0]
            result = await _result(delivery, partition)
            waiting.popleft()
            done(result)
        del self._settling[partition]

    async def flush(self) -> None:
        await self._producer.flush()
        await asyncio.gather(*self._settling.values())

    async def close(self) -> None:
        for settling in tuple(self._settling.values()):
            settling.cancel()
        await asyncio.gather(*self._settling.values(), return_exceptions=True)


async def _result(delivery: seriatim.Delivery, partition: int) -> SendResult:
    try:
        receipt = await delivery
    except seriatim.SendError as error:
        outcome: OutcomeName = "failed" if error.outcome == "failed" else "unknown"
        return SendResult(outcome, partition, None, str(error))
    return SendResult("ok", receipt.partition, receipt.offset)
