"""`seriatim dead-letter ...`: list and show messages on which consumer groups failed, replay them, and drop them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from seriatim_api.errors import PreconditionError
from seriatim_api.ids import format_offset, parse_offset
from seriatim_api.key_names import NO_KEY, escaped, key_to_text
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.confirmation import confirm
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._options.keys import KEY, listed, shown_key
from seriatim.cli._options.settings import Settings
from seriatim.cli._options.written import WrittenType
from seriatim.cli._rendering.output import NULL, data_field, draw, header_fields, offset_field, pick
from seriatim.cli._rendering.times import utc

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Admin, DeadLetter

LIMIT_DEFAULT: Final = 100
CHOSEN_MAX: Final = 100_000
VALUE_SHOWN: Final = 500
"""How many bytes of a value are shown as text."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


OFFSET = WrittenType("offset", int, parse_offset)
TOPIC = click.argument("topic", metavar="DEAD_LETTER_TOPIC")
GROUP = click.option("--group", metavar="GROUP", help="Only dead letters of this consumer group. [default: all]")
PARTITION = click.option("--partition", "-p", type=click.IntRange(0), help="Only of this partition. [default: all]")


def _choice(command: _Command) -> _Command:
    """The options that choose dead letters to replay or drop."""
    for option in reversed(
        (
            click.option(
                "--offset", "offsets", type=OFFSET, metavar="SEGMENT:INDEX", multiple=True,
                help="A dead letter, as `dead-letter list` shows it. May be repeated. With --partition.",
            ),
            click.option("--key", type=KEY, metavar="KEY", help="All dead letters with this key."),
            click.option("--all", "is_all", is_flag=True, help="All dead letters."),
            GROUP,
            PARTITION,
            click.option("--yes", is_flag=True, help="Do not ask."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.group("dead-letter")
def dead_letter() -> None:
    """List, show, replay and drop dead letters: messages on which a consumer group failed for the last time.

    DEAD_LETTER_TOPIC is the topic in the retry policy of the group, by default `TOPIC.GROUP.dead`.
    """


@dead_letter.command("list")
@TOPIC
@GROUP
@PARTITION
@click.option("--key", type=KEY, metavar="KEY", help="Only dead letters with this key. [default: all]")
@click.option(
    "--after", type=OFFSET, metavar="SEGMENT:INDEX", help="Only dead letters after this one. With --partition."
)
@click.option(
    "--limit", type=click.IntRange(1), default=LIMIT_DEFAULT, show_default=True, help="Maximum number to show."
)
@click.pass_obj
def list_(
    settings: Settings,
    topic: str,
    group: str | None,
    partition: int | None,
    key: bytes | None,
    after: int | None,
    limit: int,
) -> None:
    """List the dead letters that were neither replayed nor dropped, the oldest of each partition first."""
    if after is not None and partition is None:
        raise click.UsageError("an offset is of one partition: say which with --partition")

    async def work(admin: Admin) -> list[DeadLetter]:
        letters = admin.dead_letters(topic, group, partition=partition, key=key, after=after)
        return await _first(letters, limit + 1)

    found = call_admin(settings, work)
    if settings.as_json:
        settings.emit([_fields(letter) for letter in found[:limit]])
    elif found:
        settings.show(render(found[:limit]))
    else:
        echo(f"{topic} has no dead letters{_limits(group, partition, key)}", err=True)
    if len(found) > limit:
        last = found[limit - 1]
        place = f"--partition {last.partition} --after {format_offset(last.offset)}"
        echo(f"there are more: raise --limit, or continue with {place}", err=True)


@dead_letter.command()
@TOPIC
@click.option("--partition", "-p", type=click.IntRange(0), required=True, help="The partition.")
@click.option("--offset", type=OFFSET, metavar="SEGMENT:INDEX", required=True, help="The dead letter.")
@click.pass_obj
def show(settings: Settings, topic: str, partition: int, offset: int) -> None:
    """Show one dead letter: where its message was, what failed, its headers, and the beginning of its value."""

    async def work(admin: Admin) -> DeadLetter:
        async for letter in admin.dead_letters(topic, partition=partition, after=offset - 1):
            if letter.offset == offset:
                return letter
            break
        raise PreconditionError(
            f"{format_offset(offset)} of partition {partition} of {topic} is no dead letter, or was replayed or dropped"
        )

    letter = call_admin(settings, work)
    if settings.as_json:
        settings.emit({**_fields(letter), **_content(letter)})
        return
    lines = [
        (
            "message",
            f"{letter.origin_topic} partition {letter.origin_partition} at {format_offset(letter.origin_offset)}",
        ),
        ("group", letter.group),
        ("key", shown_key(letter.key)),
        ("attempts", f"{letter.attempts:,}, the last one at {utc(letter.failed_at_ms)}"),
        ("error", escaped(letter.reason.encode()) or "-"),
    ]
    if letter.maybe_repeated:
        lines.append(("note", "the topic may have it a second time"))
    lines += [
        ("before", f"{entry.get('attempts')} attempts at {entry.get('offset')}: {entry.get('reason')}")
        for entry in letter.history
    ]
    lines += [
        ("header", f"{escaped(name.encode())}: {NULL if value is None else escaped(value)}")
        for name, value in letter.header_list
    ]
    value = NULL if letter.value_is_null else escaped(letter.value[:VALUE_SHOWN])
    more = f" … ({len(letter.value):,} bytes)" if len(letter.value) > VALUE_SHOWN else ""
    for name, text in [*lines, ("value", value + more)]:
        echo(f"{name:8}  {text}")


@dead_letter.command()
@TOPIC
@_choice
@click.option(
    "--into-new-topic",
    is_flag=True,
    help="Also replay what came from a deleted topic, into the topic that has its name now.",
)
@click.pass_obj
def replay(
    settings: Settings,
    /,
    topic: str,
    group: str | None,
    partition: int | None,
    yes: bool,
    into_new_topic: bool,
    **choice: Any,
) -> None:
    """Give dead letters to their consumer groups again, each at the end of its partition, after all of its key.

    Choose with --offset, --key or --all. Earlier dead letters of the same key are replayed too, before the chosen ones.
    Other consumer groups do not get the copies. If the topic of a dead letter was deleted and made again since, it is
    refused without --into-new-topic.
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        chosen = await _chosen(admin, topic, group, partition, **choice)
        question = f"Replay {_count(chosen)} of {topic} to their groups ({_keys(chosen)})?"
        await _confirm(question, "nothing was replayed", chosen, yes)
        copies = await admin.replay_dead_letters(topic, chosen, into_new_topic=into_new_topic) if chosen else []
        return [
            {
                "partition": copy.partition,
                "offset": offset_field(copy.offset),
                **pick(copy, "copy_topic", "copy_partition"),
                "copy_offset": offset_field(copy.copy_offset or None),
            }
            for copy in copies
        ]

    replayed = call_admin(settings, work)
    if settings.as_json:
        settings.emit(replayed)
    elif replayed:
        echo(f"replayed {_count(replayed)} of {topic}")
    else:
        echo(f"{topic} has no dead letters{_limits(group, partition)}: nothing was replayed")


@dead_letter.command()
@TOPIC
@_choice
@click.pass_obj
def drop(settings: Settings, /, topic: str, group: str | None, partition: int | None, yes: bool, **choice: Any) -> None:
    """Say that dead letters are done with: they are not listed any more, and cannot be replayed.

    Choose with --offset, --key or --all. They stay in the topic until its retention drops them.
    """

    async def work(admin: Admin) -> int:
        chosen = await _chosen(admin, topic, group, partition, **choice)
        question = f"Drop {_count(chosen)} of {topic}, so that they cannot be replayed ({_keys(chosen)})?"
        await _confirm(question, "nothing was dropped", chosen, yes)
        if chosen:
            await admin.drop_dead_letters(topic, chosen)
        return len(chosen)

    count = call_admin(settings, work)
    if settings.as_json:
        settings.emit({"topic": topic, "dropped": count})
    elif count:
        echo(f"dropped {_count(range(count))} of {topic}")
    else:
        echo(f"{topic} has no dead letters{_limits(group, partition)}: nothing was dropped")


# ---- choosing -------------------------------------------------------------------------------------------


async def _first(letters: AsyncIterator[DeadLetter], count: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    async for letter in letters:
        found.append(letter)
        if len(found) == count:
            break
    return found


async def _chosen(
    admin: Admin,
    topic: str,
    group: str | None,
    partition: int | None,
    *,
    offsets: Sequence[int],
    key: bytes | None,
    is_all: bool,
) -> list[DeadLetter]:
    """The dead letters that the options choose. Only with `--all` there may be none.

    Raises:
        PreconditionError: There is no dead letter at one of the offsets, or with the key, or there are too many.
    """
    if (bool(offsets), key is not None, is_all).count(True) != 1:
        raise click.UsageError("give one of --offset, --key and --all")
    if offsets and partition is None:
        raise click.UsageError("an offset is of one partition: say which with --partition")
    wanted = set(offsets)
    found: list[DeadLetter] = []
    async for letter in admin.dead_letters(topic, group, partition=partition, key=key):
        if wanted and letter.offset not in wanted:
            continue
        if len(found) == CHOSEN_MAX:
            raise PreconditionError(f"more than {CHOSEN_MAX:,} dead letters: choose fewer, for example by --partition")
        found.append(letter)
    missing = sorted(wanted - {letter.offset for letter in found})
    if missing:
        raise PreconditionError(
            f"nothing was changed: {format_offset(missing[0])} of partition {partition} of {topic} is no dead letter, "
            f"or was replayed or dropped; `seriatim dead-letter list {topic}` lists the dead letters"
        )
    if key is not None and not found:
        raise PreconditionError(
            f"nothing was changed: {topic} has no dead letter{_limits(group, partition, key)}, or each was replayed or "
            f"dropped; `seriatim dead-letter list {topic}` lists the dead letters"
        )
    return found


def _limits(group: str | None, partition: int | None, key: bytes | None = None) -> str:
    """What the options say which dead letters are meant, as the end of a sentence."""
    parts = [
        f" with key {key_to_text(key)}" if key is not None else "",
        f" of group {group}" if group is not None else "",
        f" on partition {partition}" if partition is not None else "",
    ]
    return "".join(parts)


async def _confirm(question: str, otherwise: str, chosen: Sequence[DeadLetter], yes: bool) -> None:
    if chosen and not yes:
        await confirm(question, otherwise=otherwise)


# ---- printing -------------------------------------------------------------------------------------------


def _count(things: Sequence[object]) -> str:
    return f"{len(things):,} dead letter{'s' * (len(things) != 1)}"


def _keys(letters: Sequence[DeadLetter]) -> str:
    """Their keys, for a question. A dead letter without a key is named by its place."""
    return "keys: " + listed(
        [
            key_to_text(letter.key) if letter.key is not None else f"{NO_KEY} at {format_offset(letter.offset)}"
            for letter in letters
        ]
    )


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "partition": letter.partition,
        "offset": offset_field(letter.offset),
        "key": key_to_text(letter.key) if letter.key is not None else None,
        **pick(letter, "group", "origin_topic", "origin_partition"),
        "origin_offset": offset_field(letter.origin_offset),
        **pick(letter, "attempts", "reason", "failed_at_ms", "maybe_repeated"),
        "size_bytes": len(letter.value),
    }


def _content(letter: DeadLetter) -> dict[str, Any]:
    return {
        **pick(letter, "timestamp_ms", "tag"),
        **header_fields(letter.header_list),
        "history": [dict(entry) for entry in letter.history],
        "value": None if letter.value_is_null else data_field(letter.value),
    }


def render(letters: Sequence[DeadLetter]) -> Table:
    """A table of dead letters."""
    from rich.text import Text

    lines = (
        (
            str(letter.partition),
            format_offset(letter.offset),
            Text(shown_key(letter.key)),
            letter.group,
            format_offset(letter.origin_offset),
            f"{letter.attempts:,}",
            utc(letter.failed_at_ms),
            Text(escaped(letter.reason.encode()) or "-"),
        )
        for letter in letters
    )
    columns = (">partition", ">offset", "key~", "group", ">message", ">attempts", "failed at", "error~")
    return draw(columns, lines)
