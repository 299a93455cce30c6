"""Implements the commands' ports (`_ports`) with the client's public names, which no other module here uses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import click
from seriatim_api.ids import split_offset

import seriatim
from seriatim.cli._ports import (
    At,
    ConsumerPort,
    Delivered,
    Note,
    OffsetRow,
    OutcomeName,
    PieceRow,
    ProducerPort,
    RangePort,
    SendResult,
)
from seriatim.cli._running import run
from seriatim.cli._settings import Settings
from seriatim.cli._sources import Message

if TYPE_CHECKING:
    from seriatim._settings import Target

T = TypeVar("T")

MESSAGE_ID_HEADER: Final = "seriatim-id"
"""The header that carries a message's id for histories."""

STICKY_COUNT: Final = 100
"""How many messages without a key go to one partition before the next partition gets its turn: large batches, spread
evenly."""

FETCH_MESSAGE_COUNT: Final = 500
FETCH_TIMEOUT_S: Final = 1.0

CEASED_S: Final = 0.5
"""If a partition has no grant for this many seconds, a note says that it was revoked, or that this is a standby."""


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


@asynccontextmanager
async def consumer(
    settings: Settings,
    topic: str,
    group: str,
    *,
    start: Target,
    on_note: Callable[[Note], None],
) -> AsyncIterator[ConsumerPort]:
    """A consumer of `topic` in the consumer group `group`. At the end of the block its acknowledgements are sent."""
    notes = _Notes(on_note)
    async with (
        client(settings) as opened,
        opened.consumer(
            topic,
            group,
            start=start,
            on_gap=notes.gap,
            on_assignment=notes.assignment,
            on_group_change=notes.group_change,
        ) as found,
    ):
        try:
            yield _Consumer(found)
        finally:
            notes.close()


class _Notes:
    """Makes notes for people from the consumer's callbacks.

    Between two segments a partition has no grant for a moment. So a note says that it was taken away only if it has no
    grant for `CEASED_S`.
    """

    def __init__(self, on_note: Callable[[Note], None]) -> None:
        self._on_note = on_note
        self._segments: dict[int, int] = {}
        self._ceased: dict[int, asyncio.TimerHandle] = {}

    def gap(self, gap: seriatim.Gap) -> None:
        """Note that messages will not be delivered."""
        count = "" if gap.messages is None else f", {gap.messages:,} messages at most"
        self._on_note(Note("gap", gap.partition, gap.offset, gap.end_offset, gap.reason + count))

    def assignment(self, assignment: seriatim.Assignment) -> None:
        """Note that the delivery of a partition begins, goes on in the next segment, or ceases."""
        partition, (segment, _) = assignment.partition, split_offset(assignment.offset)
        ceased = self._ceased.pop(partition, None)
        if ceased is not None:
            ceased.cancel()
        if not assignment.active:
            later = asyncio.get_running_loop().call_later(CEASED_S, self._has_ceased, partition)
            self._ceased[partition] = later
            return
        before = self._segments.get(partition)
        self._segments[partition] = segment
        crossed = before is not None and segment > before
        self._on_note(Note("crossed" if crossed else "active", partition, assignment.offset))

    def group_change(self, change: seriatim.GroupChange) -> None:
        """Note that the consumer group was moved, paused or resumed."""
        self._segments.pop(change.partition, None)  # so the next assignment is not taken for a crossing
        self._on_note(Note(change.what, change.partition, change.offset))

    def _has_ceased(self, partition: int) -> None:
        was_active = self._segments.pop(partition, None) is not None
        self._on_note(Note("revoked" if was_active else "standby", partition))

    def close(self) -> None:
        """Make no more notes."""
        for ceased in self._ceased.values():
            ceased.cancel()


class _Consumer:
    """The `ConsumerPort`."""

    def __init__(self, consumer: seriatim.Consumer) -> None:
        self.name = consumer.name
        self._consumer = consumer

    async def batches(self) -> AsyncIterator[list[Delivered]]:
        while True:
            messages = await self._consumer.fetch(FETCH_MESSAGE_COUNT, FETCH_TIMEOUT_S)
            yield [_delivered(message) for message in messages]

    async def ack(self, last: Delivered) -> bool:
        return await self._consumer.ack(last.handle)


def _delivered(message: seriatim.Message) -> Delivered:
    message_id = message.headers.get(MESSAGE_ID_HEADER)
    return Delivered(
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        timestamp_ms=message.timestamp_ms,
        message_id=None if message_id is None else message_id.decode(errors="replace"),
        maybe_repeated=message.maybe_repeated,
        attempt=message.attempt,
        handle=message,
    )


@asynccontextmanager
async def ranges(settings: Settings) -> AsyncIterator[RangePort]:
    """A port to read ranges, without a consumer group."""
    async with client(settings) as opened:
        yield _Ranges(opened)


class _Ranges:
    """The `RangePort`."""

    def __init__(self, client: seriatim.Client) -> None:
        self._client = client

    async def offsets(self, topic: str, at: At, partitions: Sequence[int] | None = None) -> list[OffsetRow]:
        found = await self._client.offsets(topic, at, partitions=partitions)
        return [OffsetRow(row.partition, row.offset, row.position, row.blocked, row.found) for row in found]

    async def pieces(self, topic: str, partition: int, start: int, end: int, cut_bytes: int = 0) -> list[PieceRow]:
        plan = await self._client.plan_range(topic, partition, start, end, cut_bytes=cut_bytes)
        return [PieceRow(piece.start, piece.end, piece.rows, piece.size_bytes) for piece in plan.pieces]

    async def read(
        self, topic: str, partition: int, start: int, end: int, on_note: Callable[[Note], None]
    ) -> AsyncIterator[list[Delivered]]:
        def lose(loss: seriatim.LostRange) -> None:
            reason = "declared lost" if loss.reason == "lost" else "dropped by retention"
            on_note(Note("gap", partition, loss.start, loss.end, reason))

        async with self._client.read_range(topic, partition, start, end, on_loss=lose) as reader:
            while messages := await reader.fetch():
                yield [_delivered(message) for message in messages]
