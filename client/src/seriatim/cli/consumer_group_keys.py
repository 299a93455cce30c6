"""`seriatim group parked` and `release`, and `skip` with a key: keys of consumer groups that wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from seriatim_api.errors import PositionUnknownError, PreconditionError
from seriatim_api.key_names import escaped, key_of_name, name_to_text
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._execution.confirmation import confirm
from seriatim.cli._execution.connection import call_admin
from seriatim.cli._options.keys import KEY_NAME, listed
from seriatim.cli._options.settings import Settings
from seriatim.cli._rendering.output import draw, offset_field, pick, shown_offset

if TYPE_CHECKING:
    from rich.table import Table

    from seriatim import Admin, GroupKey, KeyResult

KeyOperation = Literal["release", "skip", "dead-letter"]

_DONE: Final = {
    "release": "released",
    "skip": "skipped the first message of",
    "dead-letter": "sent to the dead-letter topic the first message of",
}

PARTITION = click.option(
    "--partition", "-p", type=click.IntRange(0), help="Only keys of this partition. [default: all]"
)
KEYS = click.option(
    "--key",
    "keys",
    type=KEY_NAME,
    metavar="KEY",
    multiple=True,
    help="A key, as `group parked` shows it. May be repeated.",
)
ALL_PARKED = click.option("--all-parked", is_flag=True, help="All keys that are parked.")


@click.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@PARTITION
@click.option("--all-states", is_flag=True, help="Also keys that wait for their next attempt, or are forwarded.")
@click.pass_obj
def parked(settings: Settings, topic: str, name: str, partition: int | None, all_states: bool) -> None:
    """List the keys of GROUP that are parked: they wait until an administrator releases them.

    Give a key to `group release` to have its messages delivered again, or to `group skip --key` to pass over its first
    message.
    """

    async def work(admin: Admin) -> list[GroupKey]:
        states: Any = None if all_states else ["parked"]
        return [key async for key in admin.group_keys(topic, name, partition=partition, states=states)]

    found = call_admin(settings, work)
    if settings.as_json:
        settings.emit(list(map(fields_of, found)))
    elif found:
        settings.show(render(found, with_states=all_states))
    else:
        echo(f"no key of {name} on {topic} {'waits' if all_states else 'is parked'}", err=True)


@click.command()
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@KEYS
@ALL_PARKED
@PARTITION
@click.pass_obj
def release(
    settings: Settings, topic: str, name: str, keys: tuple[bytes, ...], all_parked: bool, partition: int | None
) -> None:
    """Let keys of GROUP continue: their first messages are delivered again, with all their attempts.

    Give --key or --all-parked. A key that only waits for its next attempt is tried at once.
    """
    operate(settings, topic, name, "release", keys, all_parked, partition, yes=True)


@click.command("dead-letter")
@click.argument("topic")
@click.argument("name", metavar="GROUP")
@KEYS
@ALL_PARKED
@PARTITION
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def dead_letter(
    settings: Settings,
    topic: str,
    name: str,
    keys: tuple[bytes, ...],
    all_parked: bool,
    partition: int | None,
    yes: bool,
) -> None:
    """Send the first message of keys of GROUP to the group's dead-letter topic. The keys continue after it.

    Give --key or --all-parked. `seriatim dead-letter` lists and replays what is there.
    """
    operate(settings, topic, name, "dead-letter", keys, all_parked, partition, yes=yes)


def operate(
    settings: Settings,
    topic: str,
    name: str,
    operation: KeyOperation,
    keys: Sequence[bytes],
    all_parked: bool,
    partition: int | None,
    *,
    yes: bool,
) -> None:
    """Find the keys, ask unless `yes`, carry the operation out, and print the results.

    Raises:
        PreconditionError: A key does not wait.
        PositionUnknownError: On at least one key the operation was not carried out.
    """
    if bool(keys) == all_parked:
        raise click.UsageError("give --key or --all-parked")

    async def work(admin: Admin) -> list[KeyResult]:
        found = await _find(admin, topic, name, keys, partition)
        if found and not yes:
            count = f"{len(found):,} key{'s' * (len(found) != 1)}"
            what = "Pass over" if operation == "skip" else "Send to the dead-letter topic"
            question = f"{what} the first message of {count} of {name} on {topic} ({listed(_places(found))})?"
            await confirm(question, otherwise="nothing was changed")
        acts = {"release": admin.release_keys, "skip": admin.skip_keys, "dead-letter": admin.dead_letter_keys}
        return await acts[operation](topic, name, found) if found else []

    results = call_admin(settings, work)
    failed = [result for result in results if result.error]
    if settings.as_json:
        settings.emit(
            [
                {**pick(row.key, "partition", "key=shown"), "was_done": row.was_done, "problem": row.error or ""}
                for row in results
            ]
        )
    elif not results:  # only with --all-parked
        where = f" on partition {partition}" if partition is not None else ""
        echo(f"no key of {name} on {topic} is parked{where}: nothing was changed")
    else:
        count, before = len(results) - len(failed), sum(result.was_done for result in results)
        note = f" ({before} before)" if before else ""
        echo(f"{_DONE[operation]} {count:,} key{'s' * (count != 1)} of {name} on {topic}{note}")
    if failed:
        texts = "; ".join(f"{result.key.shown}: {result.error}" for result in failed[:5])
        raise PositionUnknownError(f"{len(failed)} of {len(results)} keys were left as they are: {texts}")


def _places(keys: Sequence[GroupKey]) -> list[str]:
    """Keys by their texts; with their partitions if they are in more than one."""
    if len({key.partition for key in keys}) == 1:
        return [key.shown for key in keys]
    return [f"{key.shown} on partition {key.partition}" for key in keys]


async def _find(admin: Admin, topic: str, name: str, wanted: Sequence[bytes], partition: int | None) -> list[GroupKey]:
    """The keys that wait, by their names; all parked ones if there are no names.

    Raises:
        PreconditionError: A key does not wait, or a message without a key waits on each of several partitions.
    """
    if not wanted:
        return [key async for key in admin.group_keys(topic, name, partition=partition, states=["parked"])]
    found: list[GroupKey] = []
    for one in wanted:
        # A key without a name of its own bytes cannot be asked for: it is looked for among all.
        every = admin.group_keys(topic, name, partition=partition, key=key_of_name(one))
        mine = [key async for key in every if key.name == one]
        text = name_to_text(one)
        if len(mine) > 1 and key_of_name(one) is None:
            where = " and ".join(str(key.partition) for key in mine)
            raise PreconditionError(
                f"nothing was changed: {text} of {name} waits on partitions {where}: say which with --partition"
            )
        if not mine:
            where = f" on partition {partition}" if partition is not None else ""
            raise PreconditionError(
                f"nothing was changed: key {text} of {name} does not wait{where}; "
                f"`seriatim group parked {topic} {name} --all-states` lists the keys that do"
            )
        found += mine
    return list(dict.fromkeys(found))


def fields_of(key: GroupKey) -> dict[str, Any]:
    """A key as fields of JSON."""
    return {
        **pick(key, "partition", "key=shown", "state", "attempts", "turn"),
        "first_offset": offset_field(key.first_offset or None),
        **pick(key, "messages", "ready_at_ms", "error"),
    }


def render(keys: Sequence[GroupKey], *, with_states: bool) -> Table:
    """A table of keys that wait."""
    from rich.text import Text

    lines: Iterable[Sequence[str | Text]] = (
        (
            str(key.partition),
            Text(key.shown),
            *([key.state] if with_states else []),
            f"{key.attempts:,}",
            shown_offset(key.first_offset or None, "?"),
            f"{key.messages:,}",
            Text(escaped(key.error.encode()) or "-"),
        )
        for key in keys
    )
    states = ["state"] if with_states else []
    return draw((">partition", "key~", *states, ">attempts", ">first", ">messages", "last error~"), lines)
