"""`seriatim consume`: prints a topic, as a consumer of a group. It acknowledges exactly what it has printed.

Notes (the consumer is a standby, takes over, crosses into a segment) go to stderr. So stdout has only messages.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource
from seriatim_api.errors import CoordinatorBehindError, DeadlineExceededError, SeriatimError, UnknownGroupError
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution import connection
from seriatim.cli._execution.coroutines import first_of, interruptible, run
from seriatim.cli._operations.range_output import RangeOptions, print_range
from seriatim.cli._operations.topic_end import TopicEnd
from seriatim.cli._options.consumer_group_settings import MODES, WordType
from seriatim.cli._options.places import HELP, PLACE, Written
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.notes import Notes, print_note
from seriatim.cli._rendering.output import Format, render
from seriatim.history import HistoryWriter

if TYPE_CHECKING:
    from seriatim import Admin, Consumer, KeyedConsumer, KeyedMessage, Message
    from seriatim._client import Mode
    from seriatim._recorder import Recorder
    from seriatim._values.settings import Target

IDLE_S: Final = 1.0
"""If no message came in this many seconds before the user ends the command, the history says that the group had read
everything."""

FETCH_MESSAGE_COUNT: Final = 500

LOOK_S: Final = 0.25
"""Seconds that a fetch waits for messages. With --no-follow also: seconds between two questions to the brokers whether
the group has reached the end."""

STALLED_S: Final = 60.0
"""With --no-follow: if the group makes no progress for this many seconds, the command fails. Failovers take seconds."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The options of the command line."""

    topic: str
    group: str
    start: Target | None
    count: int | None
    follow: bool
    output: Format
    mode: Mode = "exclusive"
    name: str | None = None


@click.command()
@click.argument("topic")
@click.option(
    "--group", "-g", help="The consumer group. It continues where it stopped. Without a group nothing is remembered."
)
@click.option(
    "--from",
    "start",
    type=PLACE,
    default="earliest",
    show_default=True,
    help=f"Where to begin: {HELP}. With a group: used only if it has never consumed; no offset. With --mode broadcast "
    "the default is latest.",
)
@click.option(
    "--mode",
    type=WordType(MODES),
    help="With a group: how its consumers share a partition. exclusive: one reads, the others are standbys; "
    "key-ordered: in order within each key; shared: in no order; broadcast: each gets all messages, from the end on. "
    "[default: exclusive]",
)
@click.option(
    "--name",
    help="With a group: the name of this consumer. With --mode broadcast its position is kept under this name until it "
    "was away for a week. [default: a new name]",
)
@click.option("--until", type=PLACE, help="Without a group: end before this place. [default: the end]")
@click.option("--last", type=click.IntRange(1), help="Without a group: only this many last messages of each partition.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Without a group: only this partition. May be repeated. [default: all]",
)
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Wait for more messages at the end. --no-follow ends when it has read all messages that were there at its "
    "start. [default: --follow with a group, --no-follow without]",
)
@click.option(
    "--output",
    "output",
    type=click.Choice(["raw", "json", "pretty"]),
    help="One line for each message. raw: the value; json: an object; pretty: partition, segment:index, key, value. "
    "[default: pretty]",
)
@click.option(
    "--history",
    "history_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With a group: write a history to this file, for `seriatim check`.",
)
@click.pass_obj
def consume(
    settings: Settings,
    topic: str,
    group: str | None,
    start: Written,
    mode: str | None,
    name: str | None,
    until: Written | None,
    last: int | None,
    partitions: tuple[int, ...],
    count: int | None,
    follow: bool | None,
    output: Format | None,
    history_path: Path | None,
) -> None:
    """Print the messages of TOPIC, in order unless the mode says otherwise.

    With --group, the command is a consumer of this group, and acknowledges the messages that it has printed. In mode
    exclusive, the partitions are spread over the consumers of the group. One consumer is active on each partition. The
    others are standbys there, and one of them takes over when it ends. The other modes share a partition among
    consumers, or give each of them all messages.

    Without --group, the command reads from one place to another, one partition after the other. It acknowledges
    nothing, and makes or moves no group. Times are append times: when the broker took a message.
    """
    chosen: Format = output or ("json" if settings.as_json else "pretty")
    repeat_count = 0  # without a group, nothing comes twice
    if group is None:
        if history_path is not None:
            raise click.UsageError("--history goes with --group: a history judges what a group consumes")
        if mode is not None or name is not None:
            raise click.UsageError("--mode and --name go with --group: without a group there are no consumers")
        asked = RangeOptions(topic, partitions, start, until, last, count, bool(follow), chosen)
        count_printed = run(print_range(settings, asked))
    else:
        begin: Target | None = _group_start(start, until, last, partitions)
        is_given = click.get_current_context().get_parameter_source("start") is not ParameterSource.DEFAULT
        options = ConsumeOptions(
            topic,
            group,
            begin if is_given or mode != "broadcast" else None,
            count,
            follow is not False,
            chosen,
            cast("Mode", "exclusive" if mode is None else mode.replace("-", "_")),
            name,
        )
        with ExitStack() as stack:
            history = None
            if history_path is not None:
                history = stack.enter_context(HistoryWriter(history_path, f"consume-{group}-{time.time_ns()}"))
            count_printed, repeat_count = run(_consume(settings, options, history))
    if not settings.as_json:
        repeats = f", {repeat_count:,} of them maybe repeated" if repeat_count else ""
        echo(f"{count_printed:,} message{'s' * (count_printed != 1)}{repeats}", err=True)


def _group_start(start: Written, until: Written | None, last: int | None, partitions: tuple[int, ...]) -> Target:
    """The place at which the group begins if it has never consumed.

    Raises:
        click.UsageError: An option was given that can be used only without a group.
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


async def _consume(settings: Settings, options: ConsumeOptions, history: HistoryWriter | None) -> tuple[int, int]:
    """Consume, and return how many messages were printed, and how many of them may be repeats."""
    recorder: Recorder | None = None
    if history is not None:
        from seriatim.cli._operations.history_recorder import HistoryRecorder

        recorder = HistoryRecorder(history)
    notes = Notes(partial(print_note, settings))
    async with (
        connection.client(settings, recorder) as client,
        client.consumer(
            options.topic,
            options.group,
            mode=cast("Any", options.mode),
            name=options.name,
            start=options.start,
            on_gap=notes.gap,
            on_assignment=notes.assignment,
            on_group_change=notes.group_change,
        ) as consumer,
        interruptible() as stop,
    ):
        admin = None if options.follow else client.admin()
        received = Received(consumer) if options.mode in ("key_ordered", "shared") else consumer
        consumption = Consumption(options, received, history, sys.stdout.buffer.write, sys.stdout.buffer.flush, admin)
        try:
            if await first_of(stop, consumption.run()) is None:
                consumption.interrupted()
        finally:
            notes.close()
        return consumption.count, consumption.repeat_count


class Received:
    """A consumer that asks for messages, with the calls of one that is given them in the order of the partition."""

    def __init__(self, consumer: KeyedConsumer) -> None:
        self._consumer = consumer
        self._items: dict[tuple[int, int], KeyedMessage] = {}
        self.name = consumer.name

    async def fetch(self, max_messages: int, timeout_s: float) -> list[Message]:
        """Ask for messages."""
        items = await self._consumer.receive(max_messages, timeout_s)
        # To print a message is not to work on it: if the command ends before it has acknowledged what it printed, that
        # is no failed attempt. Without it, `consume | head -1` would send what it did not show to the dead letters.
        messages = [item.peek() for item in items]
        self._items = {(message.partition, message.offset): item for message, item in zip(messages, items, strict=True)}
        return messages

    async def ack(self, message: Message) -> bool:
        """Acknowledge one message of the last `fetch`."""
        return self._items[message.partition, message.offset].ack()


class Consumption:
    """One use of the command: it prints messages, and then acknowledges them.

    Args:
        options: The command's options.
        consumer: The consumer.
        history: Where the end is recorded; the client records what comes before it. None: nowhere.
        write: Takes the output.
        flush: Flushes the output. Called before the messages are acknowledged.
        admin: Says how far the group is; required without --follow.
    """

    def __init__(
        self,
        options: ConsumeOptions,
        consumer: Consumer | Received,
        history: HistoryWriter | None,
        write: Callable[[bytes], Any],
        flush: Callable[[], Any],
        admin: Admin | None = None,
    ) -> None:
        assert options.follow or admin is not None
        self._options = options
        self._admin = admin
        self._end: TopicEnd | None = None  # only without --follow, and when it is known
        self._consumer = consumer
        self._history = history
        self._write = write
        self._to_terminal = sys.stdout.isatty()
        self._flush = flush
        self._last_at = time.monotonic()
        self.count = 0
        self.repeat_count = 0

    async def run(self) -> bool:
        """Consume until the count is reached. Without --follow also: until the end that the topic had at the start.

        Raises:
            DeadlineExceededError: Without --follow: the group made no progress for `STALLED_S` seconds.
        """
        watching = None
        if self._admin is not None:
            watching = asyncio.create_task(self._watch_end(self._admin), name="end-of-topic")
        try:
            while True:
                batch = await self._consumer.fetch(self._wanted(), LOOK_S)
                if batch:
                    await self._take(batch)
                    self._last_at = time.monotonic()
                    if self._options.count is not None and self.count >= self._options.count:
                        return True
                if watching is not None and watching.done():
                    watching.result()
                    assert self._end is not None
                    await self._list_waiting()
                    self._record_end(drained=self._end.is_drained)
                    return True
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait((watching,))

    def _wanted(self) -> int:
        """How many messages to fetch at once."""
        if self._options.count is None or not isinstance(self._consumer, Received):
            return FETCH_MESSAGE_COUNT
        return min(self._options.count - self.count, FETCH_MESSAGE_COUNT)

    async def _watch_end(self, admin: Admin) -> None:
        """Wait until the group has reached the end that each partition had at the start of the command.

        Raises:
            DeadlineExceededError: The group made no progress for `STALLED_S` seconds.
        """
        topic, group = self._options.topic, self._own_group
        seen: tuple[int, tuple[int, ...]] = (-1, ())
        seen_at, failure = time.monotonic(), ""
        while True:
            try:
                if self._end is None:
                    chains = (await admin.describe_topic(topic)).chains
                    self._end = TopicEnd({chain.partition: chain.segments[-1].no for chain in chains})
                self._end.see((await admin.describe_group(topic, group)).partitions)
                failure = ""
            except UnknownGroupError:
                pass  # this is its first consumer, and it is still joining
            except SeriatimError as error:
                if not (error.retriable or isinstance(error, CoordinatorBehindError)):
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

    async def _take(self, batch: list[Message]) -> None:
        if self._options.count is not None:
            batch = batch[: self._options.count - self.count]
        for message in batch:
            self._write(render(message, self._options.output, to_terminal=self._to_terminal))
        self._flush()
        self.count += len(batch)
        self.repeat_count += sum(message.maybe_repeated for message in batch)
        single = isinstance(self._consumer, Received)
        last = {(message.partition, message.offset if single else 0): message for message in batch}
        for message in last.values():
            await self._consumer.ack(message)

    @property
    def _own_group(self) -> str:
        """The group that has the position of this consumer."""
        group = self._options.group
        return f"{group}/{self._consumer.name}" if self._options.mode == "broadcast" else group

    async def _list_waiting(self) -> None:
        """Have the client record parked keys and dead letters: their messages are not lost."""
        topic, group = self._options.topic, self._options.group
        if self._history is None or self._admin is None or self._options.mode not in ("key_ordered", "shared"):
            return
        async for _key in self._admin.group_keys(topic, group, states=["parked"]):
            pass
        settings = (await self._admin.describe_group(topic, group)).settings
        policy = settings.retry if settings is not None else None
        if policy is not None and policy.dead_letter_topic:
            async for _letter in self._admin.dead_letters(policy.dead_letter_topic, group):
                pass

    def interrupted(self) -> None:
        """Record that the user ends the command.

        It counts as the end of the topic if no message came for `IDLE_S`. A consumer that shares its partitions cannot
        know that: messages may wait for another consumer, for their next attempt, or for an administrator.
        """
        self._record_end(drained=self._idle_s() >= IDLE_S and not isinstance(self._consumer, Received))

    def _idle_s(self) -> float:
        return time.monotonic() - self._last_at

    def _record_end(self, *, drained: bool) -> None:
        if self._history is not None:
            waiting = "" if drained else "interrupted by its user"
            self._history.end(self._own_group, topic=self._options.topic, drained=drained, waiting=waiting)
