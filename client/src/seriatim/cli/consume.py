"""`seriatim consume`: a topic in order, as a consumer of a group; what is printed is acknowledged, nothing else.

Notes about standing by, taking over and crossing segments go to stderr, so that the output is the messages alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import DeadlineExceededError, SeriatimError, UnknownGroupError
from seriatim_api.ids import format_offset

from seriatim.cli import _connect
from seriatim.cli._end import TopicEnd
from seriatim.cli._places import HELP, PlaceType, Written
from seriatim.cli._ports import AdminPort, ConsumerPort, Delivered, Note
from seriatim.cli._printing import Format, print_note, render
from seriatim.cli._range import RangeOptions, print_range
from seriatim.cli._running import first_of, interruptible, run
from seriatim.cli._settings import Settings
from seriatim.history import HistoryWriter

if TYPE_CHECKING:
    from seriatim._settings import Target

IDLE_S: Final = 1.0
"""When the user ends it: silence for so long means, for the history, that the group had read everything."""

LOOK_S: Final = 0.25
"""With --no-follow: how often the brokers are asked whether the group has reached the end."""

STALLED_S: Final = 60.0
"""With --no-follow: how long the group may stand still before its end. Failovers take seconds."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What the command line asks for."""

    topic: str
    group: str
    start: Target
    count: int | None
    follow: bool
    output: Format


@click.command()
@click.argument("topic")
@click.option(
    "--group", "-g", help="The consumer group: it goes on where it stopped. Without one nothing is remembered."
)
@click.option(
    "--from",
    "start",
    type=PlaceType(),
    default="earliest",
    show_default=True,
    help=f"Where to begin: {HELP}. With a group only if it has never consumed, and not at an offset.",
)
@click.option("--until", type=PlaceType(), help="Without a group: end before this place. [default: the end]")
@click.option("--last", type=click.IntRange(1), help="Without a group: only the last so many messages of a partition.")
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(0), multiple=True, help="Without a group: only this."
)
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Wait for more messages at the end. --no-follow ends when what each partition held at the start was read. "
    "[default: --follow with a group, --no-follow without]",
)
@click.option(
    "--output",
    "output",
    type=click.Choice(["raw", "json", "pretty"]),
    help="raw: values only, a line each; json: a line each; pretty: segment:index, key, value. [default: pretty]",
)
@click.option("--history", "history_path", type=click.Path(dir_okay=False, path_type=Path), help="Record for `check`.")
@click.pass_obj
def consume(
    settings: Settings,
    topic: str,
    group: str | None,
    start: Written,
    until: Written | None,
    last: int | None,
    partitions: tuple[int, ...],
    count: int | None,
    follow: bool | None,
    output: Format | None,
    history_path: Path | None,
) -> None:
    """Print the messages of TOPIC in order.

    With --group, as a consumer of it: what was printed is acknowledged. One consumer of a group is active on a
    partition; more of them stand by, and take over when it ends.

    Without a group, from one place to another, one partition after the other: nothing is acknowledged, and no group is
    made or moved. A time is that at which the broker took a message.
    """
    chosen: Format = output or ("json" if settings.as_json else "pretty")
    if group is None:
        if history_path is not None:
            raise click.UsageError("--history goes with --group: what no group consumes is not judged")
        asked = RangeOptions(topic, partitions, start, until, last, count, bool(follow), chosen)
        count_printed = run(print_range(settings, asked))
    else:
        begin = _group_start(start, until, last, partitions)
        options = ConsumeOptions(topic, group, begin, count, follow is not False, chosen)
        with ExitStack() as stack:
            history = None
            if history_path is not None:
                history = stack.enter_context(HistoryWriter(history_path, f"consume-{group}-{time.time_ns()}"))
            count_printed = run(_consume(settings, options, history))
    if not settings.as_json:
        click.echo(f"{count_printed:,} message{'s' * (count_printed != 1)}", err=True)


def _group_start(start: Written, until: Written | None, last: int | None, partitions: tuple[int, ...]) -> Target:
    """Where a group begins that has never consumed.

    Raises:
        click.UsageError: Something was given that only goes without a group.
    """
    given = {"--until": until, "--last": last, "--partition": partitions or None}
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise click.UsageError(f"{wrong} goes without --group: a group reads all partitions, from where it stopped on")
    if start.is_offset:
        raise click.UsageError(
            "an offset is of one partition: make the group first, with `seriatim group create --start --partition`"
        )
    return start.target


async def _consume(settings: Settings, options: ConsumeOptions, history: HistoryWriter | None) -> int:
    notes = _note_printer(settings, options, history)
    port_of = _connect.consumer(settings, options.topic, options.group, start=options.start, on_note=notes)
    async with AsyncExitStack() as stack:
        admin = None
        if not options.follow:
            admin = await stack.enter_async_context(_connect.admin(settings))
        port = await stack.enter_async_context(port_of)
        stop = await stack.enter_async_context(interruptible())
        consumption = Consumption(options, port, history, sys.stdout.buffer.write, sys.stdout.buffer.flush, admin)
        if await first_of(stop, consumption.run()) is None:
            consumption.interrupted()
        return consumption.count


class Consumption:
    """One run of the command: prints, records, and then acknowledges.

    Args:
        options: What to do.
        port: The consumer.
        history: Where to record; None: nowhere.
        write: Takes the output.
        flush: Hands the output on, before it is acknowledged.
        admin: Tells how far the group is; wanted without --follow.
    """

    def __init__(
        self,
        options: ConsumeOptions,
        port: ConsumerPort,
        history: HistoryWriter | None,
        write: Callable[[bytes], Any],
        flush: Callable[[], Any],
        admin: AdminPort | None = None,
    ) -> None:
        assert options.follow or admin is not None
        self._options = options
        self._admin = admin
        self._end: TopicEnd | None = None  # without --follow, once it is known
        self._port = port
        self._history = history
        self._write = write
        self._flush = flush
        self._last_at = time.monotonic()
        self.count = 0

    async def run(self) -> bool:
        """Consume until the count is reached, or without --follow until the end at the beginning.

        Raises:
            DeadlineExceededError: Without --follow: for `STALLED_S` seconds the group came no nearer to the end.
        """
        watching = None
        if self._admin is not None:
            watching = asyncio.create_task(self._watch_end(self._admin), name="end-of-topic")
        try:
            async for batch in _steadily(self._port.batches(), LOOK_S):
                if batch:
                    await self._take(batch)
                    self._last_at = time.monotonic()
                    if self._options.count is not None and self.count >= self._options.count:
                        return True
                if watching is not None and watching.done():
                    watching.result()
                    assert self._end is not None
                    self._record_end(drained=self._end.is_drained)
                    return True
            return True
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait((watching,))

    async def _watch_end(self, admin: AdminPort) -> None:
        """Return when the group has reached the end of each partition, as it was at the beginning."""
        topic, group = self._options.topic, self._options.group
        seen: tuple[int, tuple[int, ...]] = (-1, ())
        seen_at, failure = time.monotonic(), ""
        while True:
            try:
                if self._end is None:
                    _, chains = await admin.describe_topic(topic)
                    self._end = TopicEnd({chain.partition: chain.segments[-1].no for chain in chains})
                self._end.see(await admin.describe_group(topic, group))
                failure = ""
            except UnknownGroupError:
                pass  # its first consumer, this one, is only joining
            except SeriatimError as error:
                if not error.retriable:
                    raise
                failure = f": {error}"
            if self._end is not None and not self._end.behind:
                return
            now = (self.count, () if self._end is None else self._end.progress)
            if now != seen:
                seen, seen_at = now, time.monotonic()
            elif time.monotonic() - seen_at > STALLED_S:
                raise DeadlineExceededError(self._stalled(failure))
            await asyncio.sleep(LOOK_S)

    def _stalled(self, failure: str) -> str:
        behind = "" if self._end is None else ", ".join(map(str, self._end.behind))
        where = f"partitions {behind} have" if "," in behind else f"partition {behind or '?'} has"
        return (
            f"{where} messages that this group has not read, and the group made no progress for {STALLED_S:g} s"
            f"{failure}. What was printed is acknowledged; see "
            f"`seriatim group describe {self._options.topic} {self._options.group}`"
        )

    async def _take(self, batch: list[Delivered]) -> None:
        if self._options.count is not None:
            batch = batch[: self._options.count - self.count]
        for message in batch:
            self._write(render(message, self._options.output))
        self._flush()
        self._record(batch)
        self.count += len(batch)
        last = {message.partition: message for message in batch}
        for message in last.values():
            if self._history is not None:
                self._history.flush()  # a delivery that is acknowledged must not be forgotten by a kill
            acked = await self._port.ack(message)
            if acked and self._history is not None:
                self._history.ack(
                    group=self._options.group,
                    topic=self._options.topic,
                    partition=message.partition,
                    offset=message.offset,
                )

    def _record(self, batch: list[Delivered]) -> None:
        if self._history is None:
            return
        for message in batch:
            self._history.deliver(
                message.message_id or f"{message.partition}/{format_offset(message.offset)}",
                group=self._options.group,
                consumer=self._port.name,
                topic=self._options.topic,
                partition=message.partition,
                offset=message.offset,
                attempt=message.attempt,
                maybe_repeated=message.maybe_repeated,
            )

    def interrupted(self) -> None:
        """The user ends it: in the history that is the end of the topic only if nothing had come for a while."""
        self._record_end(drained=self._idle_s() >= IDLE_S)

    def _idle_s(self) -> float:
        return time.monotonic() - self._last_at

    def _record_end(self, *, drained: bool) -> None:
        if self._history is not None:
            waiting = "" if drained else "interrupted by its user"
            self._history.end(self._options.group, topic=self._options.topic, drained=drained, waiting=waiting)


async def _steadily(batches: AsyncIterator[list[Delivered]], pause_s: float) -> AsyncIterator[list[Delivered]]:
    """The batches, and an empty one whenever none came for `pause_s` seconds."""
    coming: asyncio.Task[list[Delivered]] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.create_task(_next(batches), name="next-batch")
            done, _ = await asyncio.wait((coming,), timeout=pause_s)
            if not done:
                yield []
                continue
            finished, coming = coming, None
            try:
                batch = finished.result()
            except _ExhaustedError:
                return
            yield batch
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait((coming,))


async def _next(batches: AsyncIterator[list[Delivered]]) -> list[Delivered]:
    try:
        return await anext(batches)
    except StopAsyncIteration:
        raise _ExhaustedError from None  # StopAsyncIteration cannot leave a task


class _ExhaustedError(Exception):
    """The consumer has ended."""


def _note_printer(settings: Settings, options: ConsumeOptions, history: HistoryWriter | None) -> Callable[[Note], None]:
    def take(note: Note) -> None:
        if history is not None and note.kind == "gap":
            assert note.offset is not None
            assert note.end_offset is not None
            history.gap(
                topic=options.topic,
                partition=note.partition,
                first=note.offset,
                end=note.end_offset,
                why=note.text,
                group=options.group,
            )
        print_note(settings, note)

    return take
