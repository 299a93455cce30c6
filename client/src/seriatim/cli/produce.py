"""`seriatim produce`: sends lines, or generated messages, to a topic, and prints figures that show a switch.

It hands messages to the client one by one, in order. The client makes batches of them, and resends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click
from seriatim_api.errors import MessageTooLargeError
from seriatim_api.ids import format_offset

from seriatim.cli import _connect
from seriatim.cli._meter import SendMeter, describe
from seriatim.cli._ports import ProducerPort, SendResult
from seriatim.cli._running import first_of, interruptible, live_line, run
from seriatim.cli._settings import Settings
from seriatim.cli._sources import LineTooLongError, Message, Pace, generate, parse_rate, read_lines, split_key
from seriatim.history import HistoryWriter

GENERATED_AT_A_TIME: Final = 100
ERRORS_SHOWN_MAX: Final = 5
TERMINAL_HINT: Final = "each line that you type is a message; Ctrl-D ends; --size N generates messages instead"


if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:
    _FloatType = click.ParamType  # not generic at run time before click 8.4


class _Rate(_FloatType):
    name = "N/s"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_rate(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--key", help="The key of every message.")
@click.option("--key-separator", help="The text between the key and the value in each line, for example ':'.")
@click.option(
    "--partition", type=click.IntRange(0), help="Send all to this partition. [default: by key; without keys in turn]"
)
@click.option("--rate", type=_Rate(), help="The most messages per second: 500/s or 2k/s, say. [default: no limit]")
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@click.option("--size", "size_bytes", type=click.IntRange(0), help="Generate messages of this many bytes, read none.")
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
    topic: str,
    file: BinaryIO | None,
    key: str | None,
    key_separator: str | None,
    partition: int | None,
    rate: float | None,
    count: int | None,
    size_bytes: int | None,
    history_path: Path | None,
    verbose: bool,
) -> None:
    """Send the lines of FILE (or of the standard input) to TOPIC, each as one message.

    At the end, or at Ctrl-C, the command waits until all messages are settled. Then it prints the outcomes, the
    latencies, and the longest time without an acknowledgement. Exit status 1 if a message failed or its outcome is
    unknown.
    """
    if size_bytes is not None and (file is not None or key_separator is not None):
        raise click.UsageError("--size generates messages: it cannot be used with FILE or --key-separator")
    options = ProduceOptions(
        topic=topic,
        key=None if key is None else key.encode(),
        key_separator=None if key_separator is None else key_separator.encode(),
        partition=partition,
        rate=rate,
        count=count,
        size_bytes=size_bytes,
        verbose=verbose,
    )
    if file is None and size_bytes is None and sys.stdin.isatty():
        click.echo(TERMINAL_HINT, err=True)
    source = (file or sys.stdin).fileno()
    with ExitStack() as stack:
        history = stack.enter_context(_history(history_path, topic)) if history_path is not None else None
        all_ok = run(_produce(settings, options, source, history))
    if not all_ok:
        click.get_current_context().exit(1)


def _history(path: Path, topic: str) -> HistoryWriter:
    return HistoryWriter(path, f"produce-{topic}-{time.time_ns()}")


async def _produce(settings: Settings, options: ProduceOptions, source: int, history: HistoryWriter | None) -> bool:
    async with _connect.producer(settings, options.topic) as port, interruptible() as stop:
        production = Production(settings, options, port, history)
        async with live_line(settings, production.line):
            await first_of(stop, production.send_all(messages(options, source), stop))
            await port.flush()
    return production.finish()


async def messages(options: ProduceOptions, descriptor: int) -> AsyncIterator[Iterable[Message]]:
    """All messages, at most `count`. Each item holds the messages that arrived together.

    Args:
        options: The command's options.
        descriptor: The file descriptor from which lines are read.

    Raises:
        MessageTooLargeError: A line is over 64 MiB, so no topic takes it.
    """
    left = options.count
    if options.size_bytes is not None:
        generated = generate(options.size_bytes, options.key)
        while left is None or left > 0:
            group = list(islice(generated, GENERATED_AT_A_TIME if left is None else min(left, GENERATED_AT_A_TIME)))
            left = None if left is None else left - len(group)
            yield group
        return
    try:
        async for lines in read_lines(descriptor):
            taken = lines if left is None else lines[:left]
            yield [split_key(line, options.key_separator, options.key) for line in taken]
            if left is not None:
                left -= len(taken)
                if left == 0:
                    return
    except LineTooLongError as error:
        raise MessageTooLargeError(str(error)) from error


class Production:
    """One use of the command: it sends in order, counts, records and prints."""

    def __init__(
        self, settings: Settings, options: ProduceOptions, port: ProducerPort, history: HistoryWriter | None
    ) -> None:
        self._settings = settings
        self._options = options
        self._port = port
        self._history = history
        self._meter = SendMeter(time.monotonic())
        self._sequences: dict[int, int] = {}
        self._errors: dict[str, int] = {}

    def line(self) -> str:
        """The line on a terminal that shows the figures while the command runs."""
        return self._meter.line(time.monotonic())

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

    async def _send(self, message: Message) -> None:
        partition = self._options.partition
        if partition is None:
            partition = self._port.partition_of(message)
        message_id = self._record_send(message, partition)
        sent_at = time.monotonic()
        self._meter.send(sent_at)

        def done(result: SendResult) -> None:
            now = time.monotonic()
            self._meter.outcome(result.outcome, sent_at, now)
            if self._history is not None and message_id is not None:
                self._history.outcome(message_id, result.outcome, offset=result.offset)
            if result.error:
                self._errors[result.error] = self._errors.get(result.error, 0) + 1
            if self._options.verbose:
                self._print_receipt(result, (now - sent_at) * 1000)

        await self._port.send(message, partition, message_id, done)

    def _record_send(self, message: Message, partition: int) -> str | None:
        if self._history is None:
            return None
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        message_id = f"{self._port.name}/{partition}/{sequence}"
        self._history.send(
            message_id,
            producer=self._port.name,
            topic=self._options.topic,
            partition=partition,
            sequence=sequence,
            key=None if message.key is None else message.key.decode(errors="replace"),
        )
        return message_id

    def _print_receipt(self, result: SendResult, latency_ms: float) -> None:
        offset = None if result.offset is None else format_offset(result.offset)
        if self._settings.as_json:
            self._settings.emit(
                {
                    "outcome": result.outcome,
                    "partition": result.partition,
                    "offset": offset,
                    "ms": round(latency_ms, 2),
                    "error": result.error,
                }
            )
        else:
            where = f"{result.partition}  {offset or '-':<12}"
            click.echo(f"{result.outcome:<7} {where} {latency_ms:8.2f} ms  {result.error}".rstrip())

    def finish(self) -> bool:
        """Print the summary. Returns whether every message is ok."""
        summary = self._meter.summary()
        if self._settings.as_json:
            self._settings.emit({**asdict(summary), "errors": self._errors})
        else:
            click.echo(describe(summary), err=True)
            for error, number in sorted(self._errors.items(), key=lambda item: -item[1])[:ERRORS_SHOWN_MAX]:
                click.echo(f"  {number:,} × {error}", err=True)
        return summary.ok == summary.sent
