"""`seriatim chain show|watch|declare-gap|recover`: draws chains, declares gaps, shows quarantined messages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import getpass
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from seriatim_api.errors import SeriatimError
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution import connection
from seriatim.cli._execution.confirmation import confirm_first
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._execution.coroutines import first_of, interruptible, run
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.chain_view import ROWS_DEFAULT, draw_chain, draw_ribbons, who_waits
from seriatim.cli._rendering.output import chain_fields, header_fields, pick

if TYPE_CHECKING:
    from rich.console import RenderableType

    from seriatim import Admin, Chain, Cluster, QuarantinedMessage

WATCH_ALL_PARTITIONS_MAX = 64
"""The most partitions that are watched at a time. Each takes a stream and a line."""

LOOK_S: Final = 1.0
"""Seconds between two looks whether the brokers of open segments answer."""

WATCH_PAUSE_S: Final = 0.2
WATCH_PATIENCE_S: Final = 30.0
"""If no broker answers a watch for this many seconds, the command gives up."""

_all = click.option("--all", "show_all", is_flag=True, help=f"Draw all segments, not the newest {ROWS_DEFAULT} rows.")


@click.group()
def chain() -> None:
    """Draw chains, declare a lost segment a gap, read quarantined messages."""


@chain.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0), required=False)
@_all
@click.pass_obj
def show(settings: Settings, topic: str, partition: int | None, show_all: bool) -> None:
    """Draw the chain of PARTITION, or one line for each partition of TOPIC.

    A box is a segment: number, broker group, state, length, members (* is the master), and the server. Consumers read
    from left to right. The last segment, the open one, accepts messages.
    """

    chains = call_admin(settings, lambda admin: _chains(admin, topic, partition))
    if settings.as_json:
        settings.emit(list(map(chain_fields, chains)))
        return
    settings.show(_draw(chains, settings.console.width, show_all=show_all))


async def _chains(admin: Admin, topic: str, partition: int | None) -> Sequence[Chain]:
    if partition is not None:
        return [await admin.describe_chain(topic, partition)]
    return (await admin.describe_topic(topic)).chains


@chain.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0), required=False)
@_all
@click.pass_obj
def watch(settings: Settings, topic: str, partition: int | None, show_all: bool) -> None:
    """Draw as `show` does, and redraw at each change until Ctrl-C.

    With --output json, or if the output is not a terminal, print each change when it comes.
    """
    run(_watch(settings, topic, partition, show_all))


async def _watch(settings: Settings, topic: str, partition: int | None, show_all: bool) -> None:
    async with connection.client(settings) as client, interruptible() as stop:
        admin = client.admin()
        chains = await _chains(admin, topic, partition)
        known = {view.partition: view for view in chains[:WATCH_ALL_PARTITIONS_MAX]}
        console = settings.console
        if settings.as_json or not console.is_terminal:

            def changed(view: Chain) -> None:
                if settings.as_json:
                    settings.emit(chain_fields(view))
                else:
                    settings.show(draw_ribbons([view], width=console.width))
                waits.judge()

            told: dict[int, str] = {}

            def tell() -> None:
                for partition in sorted(waits.lines.keys() | told.keys()):
                    if (line := waits.lines.get(partition)) != told.get(partition):
                        text = line or f"partition {partition} waits for no broker any more"
                        as_json = json.dumps({"note": "waits", "partition": partition, "text": text})
                        echo(as_json if settings.as_json else f"# {text}", err=True)
                told.clear()
                told.update(waits.lines)

            waits = _Waits(admin, known, tell)
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(waits.look(), name="who waits")
                await first_of(stop, _follow(admin, topic, known, changed))
                looking.cancel()
            return
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        def draw() -> RenderableType:
            drawn = _draw(list(known.values()), console.width, show_all=show_all)
            return Group(drawn, *(Text(line, style="bold") for line in waits.lines.values()))

        def redraw() -> None:
            live.update(draw(), refresh=True)

        def follow(_changed: Chain) -> None:
            waits.judge()
            redraw()

        waits = _Waits(admin, known, redraw)
        with Live(
            draw(),
            console=console,
            auto_refresh=False,
            redirect_stderr=sys.stderr.isatty(),  # warnings go above the picture
        ) as live:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(waits.look(), name="who waits")
                await first_of(stop, _follow(admin, topic, known, follow))
                looking.cancel()


class _Waits:
    """Which partitions wait for brokers that do not answer.

    Args:
        admin: Says which brokers answer.
        known: The present chains, by partition. The owner keeps them up to date.
        changed: Called when `lines` have changed.

    Attributes:
        lines: A line for humans for each partition that waits.
    """

    def __init__(self, admin: Admin, known: dict[int, Chain], changed: Callable[[], None]) -> None:
        self._admin = admin
        self._known = known
        self._changed = changed
        self._cluster: Cluster | None = None
        self.lines: dict[int, str] = {}

    async def look(self) -> None:
        """Look at the brokers every `LOOK_S`. It runs until it is cancelled."""
        while True:
            with contextlib.suppress(SeriatimError):  # the watches say it if no broker answers
                self._cluster = await self._admin.describe_cluster()
                self.judge()
            await asyncio.sleep(LOOK_S)

    def judge(self) -> None:
        """Compare the chains with the newest look. Call it when a chain has changed: another group may have it now."""
        if self._cluster is None:
            return
        lines = who_waits(list(self._known.values()), self._cluster)
        if lines != self.lines:
            self.lines = lines
            self._changed()


async def _follow(admin: Admin, topic: str, known: dict[int, Chain], changed: Callable[[Chain], None]) -> None:
    """Keep `known` up to date, and call `changed` at each change. It runs until it is cancelled or a watch fails."""

    async def one(partition: int) -> None:
        epoch, failing_since = -1, None
        while True:
            try:
                async for view in admin.watch_chain(topic, partition):
                    failing_since = None
                    if view.epoch > epoch:
                        epoch = view.epoch
                        known[partition] = view
                        changed(view)
            except SeriatimError as error:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                if not error.retriable or now - failing_since > WATCH_PATIENCE_S:
                    raise
            await asyncio.sleep(WATCH_PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for partition in known:
            group.create_task(one(partition), name=f"watch-{topic}-{partition}")


def _draw(chains: Sequence[Chain], width: int, *, show_all: bool) -> RenderableType:
    if len(chains) == 1:
        return draw_chain(chains[0], width=width, row_count_max=None if show_all else ROWS_DEFAULT)
    return draw_ribbons(chains, width=width)


@chain.command("declare-gap")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("segment", type=click.IntRange(1))
@click.option("--issuer", default=getpass.getuser, show_default="your user name", help="The administrator who says so.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def declare_gap(settings: Settings, topic: str, partition: int, segment: int, issuer: str, yes: bool) -> None:
    """Declare SEGMENT of PARTITION a gap, because all disks that had it are lost for good.

    Consumer groups whose cursor is in it continue after it, and their consumers are notified. They never get its
    messages. If one of its disks returns later, brokers refuse it. You cannot take this back.
    """
    if not yes:
        confirm_first(
            f"Are all disks of segment {segment} of {topic}/{partition} lost for good?",
            otherwise=f"segment {segment} of {topic}/{partition} is not declared a gap",
        )
    call_admin(settings, lambda admin: admin.declare_gap(topic, partition, segment, issuer))
    settings.tell(
        {"declared_gap": {"topic": topic, "partition": partition, "segment": segment}},
        f"segment {segment} of {topic}/{partition} is declared a gap",
    )


@chain.command()
@click.argument("broker")
@click.option(
    "--export",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the messages to this file, one JSON object for each line. Keys, values and headers are in base64.",
)
@click.pass_obj
def recover(settings: Settings, broker: str, file: Path | None) -> None:
    """Show the messages that BROKER keeps in quarantine, or write them to a file.

    A broker keeps messages in quarantine if it knows that they were committed, but the chain decided a shorter length
    for their segment. They were probably acknowledged, and new consumer groups do not get them. The command changes
    nothing and sends no message again: only you can say whether it was processed, and what came after it.
    """
    counts: Counter[tuple[int, int]] = Counter()

    async def work(admin: Admin) -> None:
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(file.open("w", encoding="utf-8")) if file is not None else None
            async for row in admin.read_quarantined(broker):
                counts[row.partition_id, row.segment] += 1
                if out is not None:
                    out.write(json.dumps(_exported(row)) + "\n")

    call_admin(settings, work)
    if settings.as_json:
        settings.emit([{"partition_id": p, "segment": s, "messages": count} for (p, s), count in counts.items()])
        return
    for (partition_id, segment), count in counts.items():
        echo(f"{broker}: partition id {partition_id}, segment {segment}: {count:,} messages")
    if not counts:
        echo(f"{broker}: nothing is in quarantine")


def _exported(row: QuarantinedMessage) -> dict[str, object]:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        **pick(row, "partition_id", "segment", "index", "timestamp_ms"),
        "key": text(row.key) if row.key is not None else None,
        "value": None if row.value_is_null else text(row.value),
        **header_fields(row.header_list, text),
    }
