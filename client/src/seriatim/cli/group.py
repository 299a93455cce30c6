"""`seriatim group ...`: list and describe consumer groups; create, configure, rewind, pause and delete them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click
from seriatim_api.errors import PositionUnknownError, SeriatimError, StaleGroupEpochError, make_error
from seriatim_api.terminal.safe_text import echo

from seriatim.cli import consumer_group_keys
from seriatim.cli._execution.confirmation import confirm, confirm_first
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._operations import broadcast_consumers
from seriatim.cli._options.consumer_group_settings import (
    Command,
    SettingsOptions,
    settings_fields,
    settings_lines,
    settings_options,
    waiting_line,
)
from seriatim.cli._options.places import HELP, PLACE, Written, next_offset
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import draw, offset_field, pick, shown_offset

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Admin, GroupPartition, GroupSettings, OperatedPartition, PlannedMove

MoveName = Literal["rewind", "skip"]

LAGS_MAX: Final = 500
"""The most groups whose lag `group list` asks for. Each costs a question to the brokers."""

LAGS_AT_ONCE: Final = 16
_DROP_ASIDE: Final = "Drop parked keys, and messages that were set aside. Without it, they stop the command."


def _partitions(where: str) -> Callable[[Command], Command]:
    return click.option(
        "--partition",
        "-p",
        "partitions",
        type=click.IntRange(0),
        multiple=True,
        help=f"{where} this partition. May be repeated. [default: all]",
    )


_PARTITIONS, _ON = _partitions("Only"), _partitions("Only on")


@click.group()
def group() -> None:
    """List, describe, create, configure, rewind, skip, pause and delete consumer groups."""


group.add_command(consumer_group_keys.parked)
group.add_command(consumer_group_keys.release)
group.add_command(consumer_group_keys.dead_letter)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.pass_obj
def describe(settings: Settings, topic: str, name: str) -> None:
    """Show the place of GROUP in each partition of TOPIC, its active consumer and its standbys.

    A `+` after a number means that the true number may be higher. A `?` means that no broker knows it; the reason is
    below the table. The lag is the number of messages that are not acknowledged, with those of keys that wait.
    Below the table are the group's mode, its retry policy, and what waits.

    Of a broadcast group, the table has a line for each consumer. GROUP/CONSUMER is the position of one of them.
    """
    found = call_admin(settings, lambda admin: broadcast_consumers.find(admin, topic, name))
    if found.group is None:
        if settings.as_json:
            settings.emit({one.group: list(map(_fields, one.partitions)) for one in found.consumers})
        else:
            settings.show(broadcast_consumers.render(found))
            echo(broadcast_consumers.last_line(found))
        return
    rows = found.group.partitions
    if settings.as_json:
        settings.emit(list(map(_fields, rows)))
    else:
        settings.show(render(rows))
        for line in [*_reasons(rows), *settings_lines(rows)]:
            echo(line)
        if (lacking := _lacking_line(rows)) is not None:
            echo(lacking)
        if (waiting := waiting_line(rows, time.time_ns() // 1_000_000)) is not None:
            echo(waiting)


def _fields(row: GroupPartition) -> dict[str, Any]:
    return {
        "partition": row.partition,
        "next_offset": offset_field(next_offset(row)),
        **pick(row, "lag", "server=server_broker"),
        "active": _active(row),
        "standbys": row.standby_consumers,
        "problem": row.error or "",
        "lag_is_at_least": row.end_is_at_least,
        "next_is_at_least": _next_is_at_least(row),
        "paused": row.paused,
        **settings_fields(row.settings),
        **pick(row, "oldest_append_ms", "in_flight_messages", "aside_messages", "parked_keys", "delayed_keys"),
        **pick(row, "forwarding_keys", "consumers", "lacks_consumer"),
    }


def _active(row: GroupPartition) -> str:
    return row.active_consumer or "(reports)" * row.external


def _lacking_line(rows: Sequence[GroupPartition]) -> str | None:
    """How much waits on partitions without a consumer, in one line; None if there is no such partition."""
    lacking = [row for row in rows if row.lacks_consumer]
    if not lacking:
        return None
    count, lag = len(lacking), sum(row.lag or 0 for row in lacking)
    return (
        f"no consumer reads {count} partition{'s' * (count > 1)} with {lag:,} unacknowledged message{'s' * (lag > 1)}"
    )


def _none(row: GroupPartition) -> str:
    """What the table says if there is no active consumer. If order is by key, no consumer is the only active one."""
    return "?" if row.error else "(no consumer)" if row.lacks_consumer else "-"


def _next_is_at_least(row: GroupPartition) -> bool:
    """Whether no broker knows the group's place: it is at `next_offset` or after it."""
    return row.has_cursor and row.error is not None


@group.command("list")
@click.argument("topic", required=False)
@click.pass_obj
def list_(settings: Settings, topic: str | None) -> None:
    """List the consumer groups that have a cursor on TOPIC, or on any topic, each with its lag.

    A `+` after a lag means that the true lag may be higher. Of a broadcast group there is one line, `GROUP/`, with the
    number of its consumers. With --output json, each of them is named. The lag of the first 500 groups is asked for.
    """

    async def work(admin: Admin) -> list[Listed]:
        topics = [topic] if topic is not None else [found.name for found in await admin.list_topics()]
        names = [(one, name) for one in topics for name in await admin.list_groups(one)]
        return await _with_lags(admin, names, as_json=settings.as_json)

    found = call_admin(settings, work)
    if settings.as_json:
        settings.emit([{"topic": row.topic, "group": row.name, **(row.lag or UNKNOWN).fields()} for row in found])
        return
    if not found:
        echo(f"no consumer group has a position on {'any topic' if topic is None else topic}", err=True)
        return
    lines = ((row.topic, row.name, "-" if row.lag is None else str(row.lag)) for row in found)
    columns = ("topic~", "group~", ">lag~")
    settings.show(draw(columns, lines) if topic is None else draw(columns[1:], (line[1:] for line in lines)))


class Lag(NamedTuple):
    """The lag of a consumer group on all partitions together, in messages.

    Attributes:
        messages: The sum of what is known; None: nothing is known.
        is_at_least: Whether the true lag may be higher.
    """

    messages: int | None
    is_at_least: bool

    def __str__(self) -> str:
        return "?" if self.messages is None else f"{self.messages:,}{'+' * self.is_at_least}"

    def fields(self) -> dict[str, Any]:
        """The lag for JSON."""
        return {"lag": self.messages, "lag_is_at_least": self.is_at_least}


UNKNOWN: Final = Lag(None, is_at_least=True)


def lag_of(rows: Sequence[GroupPartition]) -> Lag:
    """The lag of all partitions together."""
    lags = [row.lag for row in rows if row.lag is not None]
    is_at_least = len(lags) < len(rows) or any(row.end_is_at_least for row in rows)
    return Lag(sum(lags) if lags else None, is_at_least)


class Listed(NamedTuple):
    """A consumer group of a topic, or a broadcast group with its consumers (`lag` is None)."""

    topic: str
    name: str
    lag: Lag | None


async def _with_lags(admin: Admin, names: Sequence[tuple[str, str]], *, as_json: bool) -> list[Listed]:
    """The lines of the list. The consumers of a broadcast group are gathered into one line, unless `as_json`."""
    asked = [pair for pair in names if as_json or "/" not in pair[1]][:LAGS_MAX]
    turns = asyncio.Semaphore(LAGS_AT_ONCE)

    async def ask(topic: str, name: str) -> Lag:
        async with turns:
            try:
                return lag_of((await admin.describe_group(topic, name)).partitions)
            except SeriatimError:  # it was deleted meanwhile, or no broker answers
                return UNKNOWN

    lags = dict(zip(asked, await asyncio.gather(*(ask(*pair) for pair in asked)), strict=True))
    if as_json:
        return [Listed(topic, name, lags.get((topic, name))) for topic, name in names]
    found = []
    for topic in dict.fromkeys(topic for topic, _ in names):
        lines = broadcast_consumers.lines_of([name for of, name in names if of == topic])
        found += [Listed(topic, line, lags.get((topic, line), None if "/" in line else UNKNOWN)) for line in lines]
    return found


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option("--start", type=PLACE, default="earliest", show_default=True, help=f"Where the group begins: {HELP}.")
@_ON
@settings_options(at_least_once=False)
@click.pass_obj
def create(
    settings: Settings, /, topic: str, name: str, start: Written, partitions: tuple[int, ...], **options: Any
) -> None:
    """Create GROUP on TOPIC before a consumer joins it.

    The broker looks up the start once, now. An offset needs exactly one --partition. On partitions where the group
    exists already, nothing changes. Without a --mode the group is exclusive. A retry policy needs the mode key-ordered
    or shared, and at-least-once delivery. A dead-letter topic that is not there is created too.
    """
    _check_target(start, partitions)
    wanted = _settings_of(SettingsOptions(**options))
    created = call_admin(
        settings,
        lambda admin: admin.create_group(topic, name, start.target, partitions=partitions or None, settings=wanted),
    )
    text = f"{'created' if created else 'there was already'} {name} on {topic}"
    settings.tell({"topic": topic, "group": name, "created": created}, text)


def _settings_of(options: SettingsOptions) -> GroupSettings | None:
    """The settings of a new group; None if no option was given."""
    from seriatim import GroupSettings, RetryPolicy

    if not options.is_given:
        return None
    retry = options.policy_over(RetryPolicy()) if options.has_policy else None
    return GroupSettings(options.mode_name or "exclusive", retry, bool(options.at_most_once), options.spread or "even")


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@settings_options(at_least_once=True)
@click.option("--drop-aside", is_flag=True, help=_DROP_ASIDE)
@_ON
@click.pass_obj
def configure(
    settings: Settings, /, topic: str, name: str, partitions: tuple[int, ...], drop_aside: bool, **options: Any
) -> None:
    """Change how GROUP is served on TOPIC. What no option names stays as it is.

    Another retry policy or --spread counts at once. Another --mode, and --at-most-once, need that no consumer is in the
    group. Then the group continues at the first message that is not acknowledged, and messages after it may come
    again.
    """
    wanted = SettingsOptions(**options)
    if not wanted.is_given:
        raise click.UsageError("say what to change, for example --attempts 5 --when-exhausted park-key")

    async def work(admin: Admin) -> list[OperatedPartition]:
        from seriatim import GroupSettings, RetryPolicy

        retry = None
        if wanted.has_policy:
            found = (await admin.describe_group(topic, name)).settings or GroupSettings()
            base = None if wanted.at_most_once else found.retry  # its retries end
            retry = wanted.policy_over(base or RetryPolicy())
        return await admin.configure_group(
            topic, name, mode=wanted.mode_name, retry=retry, at_most_once=wanted.at_most_once,
            partitions=partitions or None, drop_aside=drop_aside, spread=wanted.spread,
        )  # fmt: skip

    _report(settings, topic, name, "configure", call_admin(settings, work), None)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, topic: str, name: str, yes: bool) -> None:
    """Delete GROUP on TOPIC. A consumer that joins it later starts over. Stop its consumers first.

    Of a broadcast group, the positions of all its consumers are deleted.
    """
    if not yes:
        confirm_first(f"Forget what {name} has acknowledged on {topic}?", otherwise=f"{name} on {topic} is not deleted")
    count = call_admin(settings, lambda admin: broadcast_consumers.delete(admin, topic, name))
    positions = f": the positions of {count:,} consumers" if count else ""
    fields = {"topic": topic, "deleted": name} | ({"consumers": count} if count else {})
    settings.tell(fields, f"deleted {name} on {topic}{positions}")


_TO = click.option(
    "--to", required=True, type=PLACE, help=f"The new place: {HELP}. An offset needs exactly one --partition."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_EPOCH = click.option(
    "--expected-epoch",
    type=click.IntRange(1),
    help="Move the group only if it has this group epoch (see --dry-run) on each partition, so was not moved since.",
)
_REQUEST_ID = click.option(
    "--request-id",
    help="32 hexadecimal digits. If you repeat a command with the same id, it is carried out once. [default: random]",
)
_ASIDE = click.option("--drop-aside", is_flag=True, help=_DROP_ASIDE)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_TO
@_PARTITIONS
@_DRY_RUN
@_YES
@_EPOCH
@_REQUEST_ID
@_ASIDE
@click.pass_obj
def rewind(settings: Settings, /, topic: str, name: str, **options: Any) -> None:
    """Have GROUP read TOPIC again from an earlier place.

    The command first shows the old and the new place in each partition, and how many messages come again. Then it asks.
    Running consumers continue from the new place. Their acknowledgements after it do not count any more.
    """
    _move(settings, topic, name, "rewind", MoveOptions(**options))


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@click.option("--to", type=PLACE, help=f"The new place: {HELP}. An offset needs exactly one --partition.")
@consumer_group_keys.KEYS
@consumer_group_keys.ALL_PARKED
@_PARTITIONS
@_DRY_RUN
@_YES
@_EPOCH
@_REQUEST_ID
@_ASIDE
@click.pass_obj
def skip(
    settings: Settings, /, topic: str, name: str, keys: tuple[bytes, ...], all_parked: bool, **options: Any
) -> None:
    """Have GROUP skip messages of TOPIC: it continues at a later place, or passes over the first message of a key.

    With --to, the command first shows the old and the new place in each partition, and how many messages the group
    never gets. Then it asks. With --key or --all-parked, it passes over one message of each key that waits: the first
    one. All other messages of the key are delivered.
    """
    move = MoveOptions(**options)
    if (move.to is not None) + bool(keys) + all_parked != 1:
        raise click.UsageError("give one of --to, --key and --all-parked")
    if move.to is not None:
        _move(settings, topic, name, "skip", move)
        return
    if move.dry_run or move.expected_epoch is not None or move.request_id is not None or move.drop_aside:
        raise click.UsageError("--dry-run, --expected-epoch, --request-id and --drop-aside go with --to")
    if len(move.partitions) > 1:
        raise click.UsageError("with --key or --all-parked, give --partition at most once")
    partition = move.partitions[0] if move.partitions else None
    consumer_group_keys.operate(settings, topic, name, "skip", keys, all_parked, partition, yes=move.yes)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_PARTITIONS
@click.pass_obj
def pause(settings: Settings, topic: str, name: str, partitions: tuple[int, ...]) -> None:
    """Deliver nothing more of TOPIC to GROUP until it is resumed.

    Its consumers can still acknowledge the messages that they have. The pause stays when consumers or brokers restart.
    """
    _hold(settings, topic, name, "pause", partitions)


@group.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@_PARTITIONS
@click.pass_obj
def resume(settings: Settings, topic: str, name: str, partitions: tuple[int, ...]) -> None:
    """Let GROUP continue with the messages of TOPIC after a pause."""
    _hold(settings, topic, name, "resume", partitions)


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """The options of a rewind or a skip."""

    to: Written | None
    partitions: tuple[int, ...]
    dry_run: bool
    yes: bool
    expected_epoch: int | None
    request_id: str | None
    drop_aside: bool


def _move(settings: Settings, topic: str, name: str, operation: MoveName, options: MoveOptions) -> None:
    to = options.to
    assert to is not None
    _check_target(to, options.partitions)
    request_id = _request_id(options.request_id)

    async def work(admin: Admin) -> list[OperatedPartition]:
        plan = await admin.plan_move(topic, name, to.target, partitions=options.partitions or None, operation=operation)
        if options.dry_run and settings.as_json:
            settings.emit(list(map(_move_fields, plan.moves)))
        elif not settings.as_json:
            if (meaning := to.explain()) is not None:
                echo(f"# {meaning}", err=True)
            settings.show(render_plan(plan.moves, operation))
        _check(plan.moves, options.expected_epoch)
        if not settings.as_json:
            echo(_summary(plan.moves, operation))
        if options.dry_run:
            return []
        if not options.yes:
            await confirm(f"{operation.capitalize()} {name} on {topic}?", otherwise="nothing was changed")
        return await admin.move_group(plan, request_id=request_id, drop_aside=options.drop_aside)

    done = call_admin(settings, work)
    if not options.dry_run:
        _report(settings, topic, name, operation, done, request_id.hex())


def _move_fields(move: PlannedMove) -> dict[str, Any]:
    return {
        "partition": move.group.partition,
        "from_offset": offset_field(next_offset(move.group)),
        "to_offset": offset_field(move.to_offset),
        "messages": move.message_count,
        "epoch": move.group.group_epoch,
        "active": move.group.active_consumer,
        "problem": move.error or "",
        "problem_number": move.error_number or 0,
    }


def _check_target(to: Written, partitions: tuple[int, ...]) -> None:
    if to.is_offset and len(set(partitions)) != 1:
        raise click.UsageError("an offset is of one partition: say which with --partition")


def _request_id(text: str | None) -> bytes:
    if text is None:
        return os.urandom(16)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise click.UsageError(f"--request-id is 32 hexadecimal digits, not {text!r}")
    return found


def _check(moves: Sequence[PlannedMove], expected_epoch: int | None) -> None:
    """Refuse a plan that cannot be carried out.

    Raises:
        SeriatimError: On at least one partition the group cannot go there.
        StaleGroupEpochError: The group has another group epoch than the expected one.
    """
    for move in moves:
        partition, epoch = move.group.partition, move.group.group_epoch
        if move.error:
            raise make_error(move.error_number or 0, f"nothing was changed: partition {partition}: {move.error}")
        if expected_epoch is not None and epoch != expected_epoch:
            text = f"the group is in epoch {epoch} on partition {partition}, not {expected_epoch}"
            raise StaleGroupEpochError(f"nothing was changed: {text}: it was moved since you looked")


def _hold(
    settings: Settings, topic: str, name: str, operation: Literal["pause", "resume"], partitions: tuple[int, ...]
) -> None:
    async def work(admin: Admin) -> list[OperatedPartition]:
        hold = admin.pause_group if operation == "pause" else admin.resume_group
        return await hold(topic, name, partitions=partitions or None)

    _report(settings, topic, name, operation, call_admin(settings, work), None)


_DONE: Final = {
    "rewind": "rewound",
    "skip": "skipped",
    "pause": "paused",
    "resume": "resumed",
    "configure": "configured",
}


def _report(
    settings: Settings, topic: str, name: str, operation: str, rows: Sequence[OperatedPartition], request_id: str | None
) -> None:
    """Print the results.

    Raises:
        PositionUnknownError: On at least one partition the operation was not carried out, or the outcome is not known.
    """
    failed = [row for row in rows if row.error]
    if settings.as_json:
        settings.emit(
            [
                {
                    **pick(row, "partition", "was_done", "epoch=group_epoch"),
                    "offset": offset_field(row.offset),
                    "problem": row.error or "",
                }
                for row in rows
            ]
        )
    else:
        count = len(rows) - len(failed)
        before = sum(row.was_done for row in rows)
        note = f" ({before} before)" if before and operation in ("rewind", "skip") else ""
        note = f" ({before} already were)" if before and operation in ("pause", "configure") else note
        note = f" ({before} were not paused)" if before and operation == "resume" else note
        echo(f"{_DONE[operation]} {name} on {topic}: {count} partition{'s' * (count != 1)}{note}")
    if failed:
        texts = "; ".join(f"partition {row.partition}: {row.error}" for row in failed[:5])
        again = "" if request_id is None else f". To repeat it safely, add --request-id {request_id}"
        raise PositionUnknownError(
            f"the group may not be {_DONE[operation]} on {len(failed)} of {len(rows)} partitions: {texts}{again}"
        )


def render_plan(moves: Sequence[PlannedMove], operation: MoveName) -> Table:
    """A table of what would happen on each partition."""
    lines = (
        (
            str(move.group.partition),
            shown_offset(next_offset(move.group)),
            shown_offset(move.to_offset),
            "?" if move.message_count is None else f"{move.message_count:,}",
            str(move.group.group_epoch or "-"),
            f"({move.error})" if move.error else move.group.active_consumer or "-",
        )
        for move in moves
    )
    count = "come again" if operation == "rewind" else "passed over"
    return draw((">partition", ">from", ">to", f">{count}", ">epoch", "active~"), lines)


def _summary(moves: Sequence[PlannedMove], operation: MoveName) -> str:
    """The plan in one sentence."""
    known = sum(move.message_count or 0 for move in moves)
    more = " or more" * any(move.message_count is None for move in moves)
    what = "are delivered again" if operation == "rewind" else "are never delivered to this group"
    active = sum(bool(move.group.active_consumer) for move in moves)
    reads = f"; consumers read {active} of the partitions now, and continue from there" if active else ""
    return f"{known:,}{more} message{'s' * (known != 1)} {what}{reads}"


def _reasons(rows: Sequence[GroupPartition]) -> list[str]:
    """Why something is not known: a line for each reason."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row.error is not None:
            found.setdefault(row.error, []).append(row.partition)
    return [
        f"?      partition{'s' * (len(of) > 1)} {', '.join(map(str, of))}: {reason}" for reason, of in found.items()
    ]


def render(rows: Sequence[GroupPartition]) -> Table:
    """A table of the group's places. The last line has the sum of the lags."""
    lines = (
        (
            str(row.partition),
            shown_offset(next_offset(row)) + "+" * (_next_is_at_least(row) and next_offset(row) is not None),
            "?" if row.lag is None else f"{row.lag:,}{'+' * row.end_is_at_least}",
            row.server_broker or "-",
            (_active(row) or _none(row)) + " (paused)" * row.paused,
            ", ".join(row.standby_consumers) or "-",
        )
        for row in rows
    )
    table = draw((">partition", ">next", ">lag", "server", "active~", "standing by~"), lines, show_footer=True)
    table.columns[0].footer, table.columns[2].footer = "all", str(lag_of(rows))
    return table
