"""`seriatim produce`: sends lines, or generated messages, to a topic, and prints figures that show a switch.

It hands messages to the client one by one, in order. The client makes batches of them, and resends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import click
from seriatim_api.errors import BadRequestError, MessageTooLargeError, SeriatimError
from seriatim_api.ids import format_offset
from seriatim_api.terminal.safe_text import echo

import seriatim
from seriatim.cli._execution import connection
from seriatim.cli._execution.coroutines import first_of, interruptible, live_line, run, say
from seriatim.cli._operations.message_sources import (
    LineTooLongError,
    Message,
    NoKeyError,
    Pace,
    generate,
    parse_header,
    parse_rate,
    read_lines,
    split_key,
)
from seriatim.cli._options.amounts import DELAY
from seriatim.cli._options.keys import KEY
from seriatim.cli._options.places import TIME, Written
from seriatim.cli._options.settings import Settings
from seriatim.cli._options.written import WrittenType
from seriatim.cli._rendering.meter import OutcomeName, SendMeter, describe
from seriatim.cli._rendering.times import utc
from seriatim.history import HistoryWriter

STICKY_COUNT: Final = 100
"""How many messages without a key go to one partition before the next partition gets its turn: large batches, spread
evenly."""

GENERATED_AT_A_TIME: Final = 100
ERRORS_SHOWN_MAX: Final = 5
SIZE_BYTES_MAX: Final = 32 << 20
"""No topic takes larger messages."""

TERMINAL_HINT: Final = "each line that you type is a message; Ctrl-D ends; --size N generates messages instead"


_RATE: Final = WrittenType("N/s", float, parse_rate)
_HEADER: Final = WrittenType("name[=value]", tuple, parse_header)


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The options of the command line. `size_bytes` None: the messages are lines of the input."""

    topic: str
    key: bytes | None
    key_separator: bytes | None
    partition: int | None
    rate: float | None
    count: int | None
    size_bytes: int | None
    verbose: bool
    header: tuple[tuple[str, bytes | None], ...] = ()
    delay_ms: int | None = None
    due_ms: int | None = None
    null: bytes | None = None
    """The value of a line that is sent as a message without a value."""
    typed: bool = False
    """Whether a user types the messages. Meanwhile no live line is shown, because it would run into what is
    typed."""


class _Lines(click.File):
    """A file whose lines are messages. If a message is in its place, the error says how to send it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Open the file."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = "FILE has the messages, a line each; to send one message, give it to the standard input"
            raise click.BadParameter(f"{error.message}. {hint}", ctx, param) from error


@click.command()
@click.argument("topic")
@click.argument("file", type=_Lines("rb"), required=False)
@click.option("--key", type=KEY, help="The key of every message. With --key-separator, of lines without a separator.")
@click.option(
    "--key-separator",
    help="The text between the key and the value in each line, for example ':'. A line without it ends the command.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Send all to this partition. [default: by key; without keys, 100 messages to each partition in turn]",
)
@click.option(
    "--header",
    type=_HEADER,
    multiple=True,
    help="A header of every message. May be repeated, also with the same name. Without =VALUE its value is null.",
)
@click.option("--null", help="Send a line whose value is this text as a message without a value.")
@click.option(
    "--delay",
    "delay_ms",
    type=DELAY,
    metavar="DURATION",
    help="Give each message to consumers this long after it is stored, not at once: 500ms, 30s, 12h, 40d.",
)
@click.option("--at", type=TIME, help="Give the messages to consumers at this time: 2026-12-01T10:00 (Z or +01:00).")
@click.option("--rate", type=_RATE, help="The most messages per second: 500/s or 2k/s, say. [default: no limit]")
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(0, SIZE_BYTES_MAX),
    help="Generate messages of this many bytes, read none.",
)
@click.option(
    "--history",
    "history_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a history to this file, for `seriatim check`.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the outcome of each message.")
@click.pass_obj
def produce(
    settings: Settings,
    /,
    file: BinaryIO | None,
    key_separator: str | None,
    null: str | None,
    size_bytes: int | None,
    history_path: Path | None,
    delay_ms: int | None,
    at: Written | None,
    **given: Any,
) -> None:
    """Send the lines of FILE (or of the standard input) to TOPIC, each as one message.

    At the end, or at Ctrl-C, the command waits until all messages are settled. Then it prints the outcomes, the
    latencies, and the longest time without an acknowledgement. A second Ctrl-C ends it at once. Exit status 1 if a
    message failed or its outcome is unknown.

    Messages with --delay or --at wait on the disks of the brokers until they are due. If the time of --at is over, the
    messages are ordinary ones.
    """
    due_ms = _due_ms(settings, delay_ms, at, is_recorded=history_path is not None)
    if size_bytes is not None and (file is not None or key_separator is not None or null is not None):
        raise click.UsageError("--size generates messages: it cannot be used with FILE, --key-separator or --null")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty: give the text between the key and the value, for example ':'")
    options = ProduceOptions(
        key_separator=None if key_separator is None else key_separator.encode(),
        null=None if null is None else null.encode(),
        size_bytes=size_bytes,
        delay_ms=delay_ms,
        due_ms=due_ms,
        **given,
        typed=file is None and size_bytes is None and sys.stdin is not None and sys.stdin.isatty(),
    )
    if size_bytes is None and file is None and sys.stdin is None:
        raise click.UsageError("the standard input is closed: name a FILE, or use --size")
    if options.typed:
        echo(TERMINAL_HINT, err=True)
    source = -1 if file is None and sys.stdin is None else (file or sys.stdin).fileno()
    with ExitStack() as stack:
        history = stack.enter_context(_history(history_path, options.topic)) if history_path is not None else None
        all_ok = run(_produce(settings, options, source, history))
    if not all_ok:
        click.get_current_context().exit(1)


def _due_ms(settings: Settings, delay_ms: int | None, at: Written | None, *, is_recorded: bool) -> int | None:
    """The time of `--at` in ms since 1970. Says on stderr which time was understood.

    Raises:
        click.UsageError: The options contradict each other.
    """
    if (delay_ms is not None or at is not None) and is_recorded:
        raise click.UsageError("--history is for messages in their order, and delayed ones have none: leave one out")
    if at is None:
        return None
    if delay_ms is not None:
        raise click.UsageError("give --delay or --at, not both: a message has one time")
    if not settings.as_json:
        echo(f"# {at.explain()}", err=True)
    return int(cast(datetime, at.at).timestamp() * 1000)


def _history(path: Path, topic: str) -> HistoryWriter:
    return HistoryWriter(path, f"produce-{topic}-{time.time_ns()}")


async def _produce(settings: Settings, options: ProduceOptions, source: int, history: HistoryWriter | None) -> bool:
    source_error: SourceError | None = None
    async with (
        connection.client(settings) as client,
        client.producer(options.topic) as producer,
        interruptible() as stop,
        asyncio.TaskGroup() as tasks,
    ):
        production = Production(settings, options, producer, history, tasks)
        try:
            async with AsyncExitStack() as shown:
                line = live_line(settings, lambda: production.line(ending=stop.is_set()))
                if not options.typed:
                    await shown.enter_async_context(line)
                try:
                    await first_of(stop, production.send_all(messages(options, source), stop))
                except SourceError as error:
                    source_error = error
                if options.typed:  # nothing is typed any more
                    await shown.enter_async_context(line)
                await production.flush()
        except asyncio.CancelledError:  # the second Ctrl-C, or an outcome that cannot be printed or recorded
            production.finish()
            raise
        finally:
            await production.close()
    all_ok = production.finish()
    if source_error is not None:
        raise source_error.reason
    return all_ok


class SourceError(Exception):
    """The input has no more messages because it is wrong. What came before it is sent.

    Attributes:
        reason: The error to print.
    """

    def __init__(self, reason: SeriatimError | OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def messages(options: ProduceOptions, descriptor: int) -> AsyncIterator[Iterable[Message]]:
    """All messages, at most `count`. Each item holds the messages that arrived together.

    Args:
        options: The command's options.
        descriptor: The file descriptor from which lines are read.

    Raises:
        SourceError: The input cannot be read; a line is over 64 MiB, so no topic takes it; or a line has no key.
    """
    left = options.count
    if options.size_bytes is not None:
        generated = generate(options.size_bytes, options.key)
        while left is None or left > 0:
            group = list(islice(generated, GENERATED_AT_A_TIME if left is None else min(left, GENERATED_AT_A_TIME)))
            left = None if left is None else left - len(group)
            yield group
        return
    line_no = 0
    try:
        async for lines in read_lines(descriptor):
            found: list[Message] = []
            for line in lines if left is None else lines[:left]:
                line_no += 1
                try:
                    message = split_key(line, options.key_separator, options.key)
                    found.append(replace(message, value=None) if message.value == options.null else message)
                except NoKeyError as error:
                    yield found
                    text = f"line {line_no} {error}: it and all lines after it are not sent; those before it are"
                    raise SourceError(BadRequestError(text)) from error
            yield found
            if left is not None:
                left -= len(found)
                if left == 0:
                    return
    except LineTooLongError as error:
        raise SourceError(MessageTooLargeError(str(error))) from error
    except OSError as error:
        raise SourceError(error) from error


class _Sent(NamedTuple):
    """A message that waits for its outcome."""

    delivery: seriatim.Delivery
    message_id: str | None
    at: float


class Production:
    """One use of the command: it sends in order, counts, records and prints.

    One task for each partition in use waits for the outcomes, in their order.

    Args:
        settings: The root command's options.
        options: The command's options.
        producer: Takes the messages.
        history: Where sends and outcomes are recorded; None: nowhere.
        tasks: The group of the tasks that wait. If an outcome cannot be printed or recorded, because the reader of
            the output has ended or a disk is full, the group cancels the command.
    """

    def __init__(
        self,
        settings: Settings,
        options: ProduceOptions,
        producer: seriatim.Producer,
        history: HistoryWriter | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._tasks = tasks
        self._settings = settings
        self._options = options
        self._producer = producer
        self._name = producer.producer_id.hex()
        self._history = history
        self._meter = SendMeter(time.monotonic())
        self._sequences: dict[int, int] = {}
        self._errors: dict[str, int] = {}
        self._turn = 0
        self._waiting: dict[int, deque[_Sent]] = {}
        self._settling: dict[int, asyncio.Task[None]] = {}

    def line(self, *, ending: bool = False) -> str:
        """The line on a terminal that shows the figures while the command runs.

        Args:
            ending: Whether the user has pressed Ctrl-C, and messages still wait for their outcomes.
        """
        if ending:
            return f"{self._meter.waiting:,} messages wait for their outcomes; Ctrl-C again ends without them"
        return self._meter.line(time.monotonic(), self._producer.master_of)

    async def send_all(self, groups: AsyncIterator[Iterable[Message]], stop: asyncio.Event) -> bool:
        """Send everything at the wanted rate, until `stop` is set. It does not wait for outcomes.

        Returns:
            Whether everything was sent.
        """
        rate = self._options.rate
        pace = None if rate is None else Pace(rate, time.monotonic())
        async for group in groups:
            for message in group:
                if pace is not None:
                    wait_s = pace.take(time.monotonic())
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                if stop.is_set():
                    return False
                await self._send(message)
            await asyncio.sleep(0)  # without it, a source that is always ready leaves no time for acknowledgements
        return True

    async def flush(self) -> None:
        """Wait until every message has its outcome, at most for the producer's delivery time-out."""
        await self._producer.flush()
        await asyncio.gather(*self._settling.values())

    async def close(self) -> None:
        """Wait for no more outcomes."""
        for settling in tuple(self._settling.values()):
            settling.cancel()
        await asyncio.gather(*self._settling.values(), return_exceptions=True)

    def _partition_of(self, message: Message) -> int:
        if self._options.partition is not None:
            return self._options.partition
        if message.key is not None:
            return self._producer.settings.partitioner(message.key, self._producer.partition_count)
        self._turn += 1
        return (self._turn - 1) // STICKY_COUNT % self._producer.partition_count

    async def _send(self, message: Message) -> None:
        partition = self._partition_of(message)
        message_id = self._record_send(message, partition)
        sent_at = time.monotonic()
        self._meter.send(partition, sent_at)
        headers = list(self._options.header)
        if message_id is not None:
            headers.append((connection.MESSAGE_ID_HEADER, message_id.encode()))
        delivery = await self._producer.send(
            message.value,
            message.key,
            partition,
            headers=headers or None,
            delay_ms=self._options.delay_ms,
            due_ms=self._options.due_ms,
        )
        self._waiting.setdefault(partition, deque()).append(_Sent(delivery, message_id, sent_at))
        if partition not in self._settling:
            settling = self._tasks.create_task(self._settle(partition), name=f"outcomes-{partition}")
            self._settling[partition] = settling

    async def _settle(self, partition: int) -> None:
        waiting = self._waiting[partition]
        while waiting:
            sent = waiting[0]
            outcome: OutcomeName = "ok"
            receipt, error = None, ""
            try:
                receipt = await sent.delivery
            except seriatim.SendError as failure:
                outcome, error = "failed" if failure.outcome == "failed" else "unknown", str(failure)
            waiting.popleft()
            now = time.monotonic()
            self._meter.outcome(partition, outcome, sent.at, now)
            if self._history is not None and sent.message_id is not None:
                self._history.outcome(sent.message_id, outcome, offset=None if receipt is None else receipt.offset)
            if error:
                self._errors[error] = self._errors.get(error, 0) + 1
            if self._options.verbose:
                self._print_outcome(outcome, partition, receipt, (now - sent.at) * 1000, error)
        del self._settling[partition]

    def _record_send(self, message: Message, partition: int) -> str | None:
        if self._history is None:
            return None
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        message_id = f"{self._name}/{partition}/{sequence}"
        self._history.send(
            message_id,
            producer=self._name,
            topic=self._options.topic,
            partition=partition,
            sequence=sequence,
            key=None if message.key is None else message.key.decode(errors="replace"),
        )
        return message_id

    def _print_outcome(
        self, outcome: OutcomeName, partition: int, receipt: seriatim.Receipt | None, latency_ms: float, error: str
    ) -> None:
        place = None if receipt is None else format_offset(receipt.offset)
        due_ms = receipt.due_ms if receipt is not None else 0
        if self._settings.as_json:
            told = {
                "outcome": outcome,
                "partition": partition,
                "offset": place,
                "ms": round(latency_ms, 2),
                "error": error,
            }
            self._settings.emit({**told, "due_ms": due_ms} if due_ms else told)
        else:
            where = f"{partition}  {place or '-':<12}"
            due = f"due {utc(due_ms)}" if due_ms else ""
            say(f"{outcome:<7} {where} {latency_ms:8.2f} ms  {error}{due}".rstrip())

    def finish(self) -> bool:
        """Print the summary. Returns whether every message is ok."""
        summary = self._meter.summary()
        if self._settings.as_json:
            self._settings.emit({**asdict(summary), "errors": self._errors})
        else:
            echo(describe(summary), err=True)
            for error, number in sorted(self._errors.items(), key=lambda item: -item[1])[:ERRORS_SHOWN_MAX]:
                echo(f"  {number:,} × {error}", err=True)
        return summary.ok == summary.sent
