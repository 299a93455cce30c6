"""`seriatim consume` without a group: prints the messages from one place to another, one partition after the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import format_offset, make_offset, split_offset
from seriatim_api.terminal.safe_text import echo

import seriatim
from seriatim.cli._execution import connection
from seriatim.cli._execution.coroutines import first_of, interruptible
from seriatim.cli._options.places import Written
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.notes import Note, print_note
from seriatim.cli._rendering.output import Format, render

if TYPE_CHECKING:
    from seriatim import Client, LostRange, PartitionOffset

SEGMENTS_BACK: Final = 8
"""With --last: the command first looks at the last segment and this many before it, then at four times as many before
it, and so on."""

LOOK_S: Final = 0.25
"""With --follow: seconds between two questions to the brokers whether there are more messages."""


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """The options of the command line.

    Attributes:
        topic: The topic's name.
        partitions: Numbers of partitions; empty: all.
        start: Where the range begins.
        until: Where the range ends; None: at the end of each partition.
        last: Only this many messages before the end of the range; None: all.
        count: End after this many messages; None: no limit.
        follow: Whether to wait for more messages at the end.
        output: The form in which messages are printed.
    """

    topic: str
    partitions: tuple[int, ...]
    start: Written
    until: Written | None
    last: int | None
    count: int | None
    follow: bool
    output: Format

    def check(self) -> None:
        """Refuse options that contradict one another.

        Raises:
            click.UsageError: Two options contradict each other. The text names them.
        """
        if self.last is not None and self.start.at != "earliest":
            raise click.UsageError("--last counts back from the end of the range: give it or --from")
        if self.follow and self.until is not None:
            raise click.UsageError("--follow has no end: give it or --until")
        places = [place for place in (self.start, self.until) if place is not None]
        if len(self.partitions) != 1 and any(place.is_offset for place in places):
            raise click.UsageError("an offset is of one partition: say which, with --partition N")


async def print_range(settings: Settings, options: RangeOptions) -> int:
    """Print the range. Returns the number of messages printed."""
    options.check()
    for place in (options.start, options.until):
        text = place.explain() if place is not None else None
        if text is not None and not settings.as_json:
            echo(f"# {text}", err=True)
    async with connection.client(settings) as client, interruptible() as stop:
        printing = RangePrinter(settings, options, client, sys.stdout.buffer.write, sys.stdout.buffer.flush)
        await first_of(stop, printing.run())
        return printing.count


@dataclass(slots=True, eq=False)
class RangePrinter:
    """One use of the command.

    Args:
        settings: The form in which notes are printed.
        options: What to print.
        client: Reads from the cluster.
        write: Takes the output.
        flush: Flushes the output.
    """

    _settings: Settings
    _options: RangeOptions
    _client: Client
    _write: Callable[[bytes], Any]
    _flush: Callable[[], Any]
    count: int = 0

    async def run(self) -> bool:
        """Print until the end of the range, or until the count is reached. Returns True.

        Raises:
            BadRequestError: The range begins at a given offset that is after its end. Not with --follow.
        """
        options = self._options
        partitions = list(dict.fromkeys(options.partitions)) or None
        ends = await self._resolve(options.until or Written("latest", "end"), partitions)
        starts = await self._starts(partitions, ends)
        self._tell_blocked(ends)
        for row in ends:
            start = starts[row.partition]
            if start > row.offset and not options.follow and isinstance(options.start.at, int):
                raise BadRequestError(
                    f"the range begins at {format_offset(start)}, after its end at {format_offset(row.offset)}"
                )
            if await self._print(row.partition, start, max(start, row.offset)):
                return True
        places = {row.partition: max(starts[row.partition], row.offset) for row in ends}
        while options.follow:
            await asyncio.sleep(LOOK_S)
            for row in await self._client.offsets(options.topic, "end", partitions=partitions):
                begun = places[row.partition]
                if row.offset > begun:
                    places[row.partition] = row.offset
                    if await self._print(row.partition, begun, row.offset):
                        return True
        return True

    async def _starts(self, partitions: Sequence[int] | None, ends: Sequence[PartitionOffset]) -> dict[int, int]:
        if self._options.last is None:
            starts = await self._resolve(self._options.start, partitions)
            return {row.partition: row.offset for row in starts}
        firsts = await self._client.offsets(self._options.topic, "earliest", partitions=partitions)
        return {
            first.partition: await self._back(first, end.offset, self._options.last)
            for first, end in zip(firsts, ends, strict=True)
        }

    async def _back(self, first: PartitionOffset, end: int, count: int) -> int:
        """The offset that is `count` messages before the end. If fewer are kept, the first kept offset."""
        if end <= first.offset:
            return end
        last_segment, _ = split_offset(end)
        window = SEGMENTS_BACK
        while True:  # a chain may be long, so look only at its newest segments if they have enough messages
            begin = max(first.offset, make_offset(max(last_segment - window, 0), 0))
            left = count
            plan = await self._client.plan_range(self._options.topic, first.partition, begin, end)
            for piece in reversed(plan.pieces):
                if piece.rows >= left:
                    return piece.end - left
                left -= piece.rows
            if begin == first.offset:
                break
            window *= 4
        if not self._settings.as_json:
            found = count - left
            noun = "message" if found == 1 else "messages"
            echo(f"# partition {first.partition} has only {found:,} {noun}", err=True)
        return first.offset

    async def _resolve(self, place: Written, partitions: Sequence[int] | None) -> Sequence[PartitionOffset]:
        topic, at = self._options.topic, place.at
        if isinstance(at, int):
            assert partitions is not None
            return [seriatim.PartitionOffset(topic, "", partitions[0], 0, at, 0, None, blocked=False, found=True)]
        return await self._client.offsets(topic, at, partitions=partitions)

    def _tell_blocked(self, ends: Sequence[PartitionOffset]) -> None:
        for row in ends:
            if row.blocked and not self._settings.as_json:
                echo(
                    f"# partition {row.partition}: messages after {format_offset(row.offset)} cannot be read until "
                    f"that segment is settled, see `seriatim chain show {self._options.topic} {row.partition}`",
                    err=True,
                )

    async def _print(self, partition: int, start: int, end: int) -> bool:
        """Print a part of the range. Returns whether the count was reached."""
        options = self._options
        if start == end:
            return False
        to_terminal = sys.stdout.isatty()
        async with self._client.read_range(options.topic, partition, start, end, on_loss=self._lose) as reader:
            while messages := await reader.fetch():
                wanted = messages if options.count is None else messages[: options.count - self.count]
                for message in wanted:
                    self._write(render(message, options.output, to_terminal=to_terminal))
                self._flush()
                self.count += len(wanted)
                if options.count is not None and self.count >= options.count:
                    return True
        return False

    def _lose(self, loss: LostRange) -> None:
        reason = "declared lost" if loss.reason == "lost" else "dropped by retention"
        print_note(self._settings, Note("gap", loss.partition, loss.start, loss.end, reason))
