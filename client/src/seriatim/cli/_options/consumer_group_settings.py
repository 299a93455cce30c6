"""The options of commands that set how a consumer group is served, and how its settings are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from seriatim_api.retry import AT_MOST_ONCE_HAS_NO_RETRY

from seriatim.cli._options.amounts import format_duration, parse_duration_ms
from seriatim.cli._options.written import WrittenType

if TYPE_CHECKING:
    from seriatim import GroupPartition, GroupSettings, RetryPolicy

MODES: Final = ("exclusive", "key-ordered", "shared", "broadcast")
_BACK_OFFS: Final = ("exponential", "fixed", "list")
_EXHAUSTED: Final = ("block", "park-key", "dead-letter")

Command = TypeVar("Command", bound=Callable[..., Any])

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # in click 8.1 it takes no argument


class WordType(_Choice):
    """The type of options that take one of some words: `key-ordered`, and also `key_ordered`, as programs write it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the word, or fail with a text that lists the words."""
        return super().convert(value.replace("_", "-"), param, ctx)


def _read_delay(text: str) -> int:
    try:
        found = parse_duration_ms(text)
    except ValueError:
        found = 0
    if not found:
        raise ValueError(f"{text!r} is no delay: write a number and a unit (ms, s, m, h, d), such as 500ms, 30s or 5m")
    return found


_DELAY: Final = WrittenType("DURATION", int, _read_delay)
"""A delay, in ms, 1 ms at the least."""


@dataclass(frozen=True, slots=True)
class SettingsOptions:
    """The options as they were given; None, or no delay: not given."""

    mode: str | None
    attempts: int | None
    back_off: str | None
    delays: tuple[int, ...]
    jitter: int | None
    when_exhausted: str | None
    dead_letter_topic: str | None
    grant: int | None
    at_most_once: bool | None
    spread: Any = None

    @property
    def mode_name(self) -> Any:
        """The mode as the library names it."""
        return self.mode.replace("-", "_") if self.mode is not None else None

    @property
    def has_retries(self) -> bool:
        """Whether an option was given that says what happens to a message that failed."""
        given = (self.attempts, self.back_off, self.jitter, self.when_exhausted, self.dead_letter_topic)
        return bool(self.delays) or any(value is not None for value in given)

    @property
    def has_policy(self) -> bool:
        """Whether an option of the retry policy was given."""
        return self.has_retries or self.grant is not None

    @property
    def is_given(self) -> bool:
        """Whether any option was given."""
        return any((self.has_policy, self.mode is not None, self.at_most_once is not None, self.spread is not None))

    def policy_over(self, base: RetryPolicy) -> RetryPolicy:
        """That policy with what the options change.

        Raises:
            UsageError: The options do not fit together.
            BadRequestError: A value is out of its range.
        """
        back_off = self.back_off or base.back_off
        exhausted = self.when_exhausted.replace("-", "_") if self.when_exhausted is not None else base.exhausted
        attempts = base.attempts_max if self.attempts is None else self.attempts
        if self.at_most_once and self.has_retries:
            raise click.UsageError(AT_MOST_ONCE_HAS_NO_RETRY)
        if exhausted not in ("block", base.exhausted) and self.attempts is None and not attempts:
            raise click.UsageError(
                f"--when-exhausted {exhausted.replace('_', '-')} needs --attempts: after this many failed attempts it "
                "counts. With --attempts 0 only a handler that raises GiveUp brings it about"
            )
        topic = self.dead_letter_topic or (base.dead_letter_topic if exhausted == "dead_letter" else "")
        return replace(
            base,
            attempts_max=attempts,
            back_off=cast("Any", back_off),
            delays_ms=self.delays or _delays_for(base, back_off),
            jitter_percent=base.jitter_percent if self.jitter is None else self.jitter,
            exhausted=cast("Any", exhausted),
            dead_letter_topic=topic,
            grant_ms=base.grant_ms if self.grant is None else self.grant,
        )


def _delays_for(base: RetryPolicy, back_off: str) -> tuple[int, ...]:
    if back_off == base.back_off:
        return base.delays_ms
    if back_off == "list":
        raise click.UsageError("--back-off list needs its delays: --delay 1s --delay 10s --delay 1m")
    first = base.delays_ms[0]
    return (first,) if back_off == "fixed" else (first, max(first, 300_000))


def settings_options(*, at_least_once: bool) -> Callable[[Command], Command]:
    """The options, for a command whose function takes them by name. `at_least_once`: it can take at most once back."""
    once = "--at-most-once/--at-least-once" if at_least_once else "--at-most-once"
    options = (
        click.option(
            "--mode",
            type=WordType(MODES),
            help="How consumers share a partition: one gets all (exclusive), all share it in order within each key "
            "(key-ordered) or in no order (shared), or each gets all (broadcast).",
        ),
        click.option(
            "--attempts",
            type=click.IntRange(0, 1000),
            help="Attempts of a message; 0: no limit, and only a handler that gives up ends them. "
            "[default in a new group: 0]",
        ),
        click.option(
            "--back-off",
            type=click.Choice(_BACK_OFFS),
            help="How the delay grows with the attempts. [default in a new group: exponential]",
        ),
        click.option(
            "--delay",
            "delays",
            type=_DELAY,
            multiple=True,
            help="A delay, such as 500ms, 30s or 5m. Exponential: give the first and the longest one. Fixed: give "
            "one. List: give each. [default in a new group: 1s and 5m]",
        ),
        click.option(
            "--jitter",
            type=click.IntRange(0, 100),
            help="Percent by which a delay is longer or shorter. [default in a new group: 20]",
        ),
        click.option(
            "--when-exhausted",
            type=WordType(_EXHAUSTED),
            help="After the last attempt: try for ever, park the key until an administrator releases it, or send the "
            "message to the dead-letter topic. [default in a new group: block]",
        ),
        click.option("--dead-letter-topic", metavar="TOPIC", help="Where dead letters go. [default: TOPIC.GROUP.dead]"),
        click.option(
            "--grant",
            type=_DELAY,
            help="How long a consumer has for a message if it does not say more, 1s to 24h. "
            "[default in a new group: 30s]",
        ),
        click.option(
            once,
            "at_most_once",
            is_flag=True,
            default=None,
            help="Acknowledge messages when they are given out: a failure loses them, and nothing comes twice.",
        ),
        click.option(
            "--spread",
            type=click.Choice(("even", "none")),
            help="Only exclusive groups. even: the partitions are spread over the consumers. none: a consumer reads "
            "what it came to first. [default: even]",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# ---- showing --------------------------------------------------------------------------------------------

_MODE_TEXTS: Final = {
    "exclusive": "exclusive: one consumer gets all of a partition, in order",
    "key_ordered": "key-ordered: consumers share a partition, in order within each key",
    "shared": "shared: consumers share a partition, in no order",
    "broadcast": "broadcast: each consumer gets all",
}


def settings_fields(settings: GroupSettings | None) -> dict[str, Any]:
    """The settings as fields of JSON."""
    if settings is None:
        return {"mode": None, "retry": None, "at_most_once": None, "spread": None}
    retry = settings.retry
    return {
        "mode": settings.mode,
        "retry": None if retry is None else asdict(retry),
        "at_most_once": settings.at_most_once,
        "spread": settings.spread if settings.mode == "exclusive" else None,
    }


def settings_lines(rows: Sequence[GroupPartition]) -> list[str]:
    """The settings as text, each line at most 80 characters. If partitions differ, each setting names its own."""
    found: dict[GroupSettings, list[int]] = {}
    for row in rows:
        if row.has_cursor and row.settings is not None:
            found.setdefault(row.settings, []).append(row.partition)
    lines: list[str] = []
    for settings, partitions in found.items():
        if len(found) > 1:
            lines.append(f"partition{'s' * (len(partitions) > 1)} {_ranges(partitions)}:")
        lines.append(f"mode   {_MODE_TEXTS[settings.mode]}")
        if settings.spread == "none":
            lines.append("       spread none: a consumer reads the partitions to which it came first")
        if settings.at_most_once:
            lines.append("       at most once: a message is acknowledged when it is given out")
            if settings.retry is not None:
                lines.append(f"       nothing is tried again; a grant lasts {format_duration(settings.retry.grant_ms)}")
        elif settings.retry is not None:
            lines += _policy_lines(settings.retry)
    return lines


def _policy_lines(retry: RetryPolicy) -> list[str]:
    delays = [format_duration(delay_ms) for delay_ms in retry.delays_ms]
    if retry.back_off == "exponential":
        apart = f"{delays[0]} apart, then twice that, up to {delays[1]}"
    elif retry.back_off == "fixed":
        apart = f"{delays[0]} apart"
    else:
        apart = f"{', '.join(delays[:6])}{', ...' * (len(delays) > 6)} apart"
    jitter = f" (jitter {retry.jitter_percent} %)" if retry.jitter_percent else ""
    count = f"{retry.attempts_max:,} attempt{'s' * (retry.attempts_max != 1)}" if retry.attempts_max else "no limit"
    then = {
        "block": "the message is tried for ever",
        "park_key": "its key is parked",
        "dead_letter": f"it goes to {retry.dead_letter_topic or 'the dead-letter topic'}",
    }[retry.exhausted]
    if retry.attempts_max:
        last = f"after them {then}"
    elif retry.exhausted == "block":
        last = then
    else:
        last = f"if a handler gives up on the message, {then}"
    return [f"retry  {count}, {apart}{jitter}", f"       {last}; a grant lasts {format_duration(retry.grant_ms)}"]


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in short form: 0-3, 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def waiting_line(rows: Sequence[GroupPartition], now_ms: int) -> str | None:
    """What waits, in one line; None if nothing does."""
    counts = [
        (sum(row.parked_keys for row in rows), "key", "parked"),
        (sum(row.delayed_keys for row in rows), "key", "delayed"),
        (sum(row.forwarding_keys for row in rows), "key", "forwarding"),
        (sum(row.aside_messages for row in rows), "message", "set aside"),
        (sum(row.in_flight_messages for row in rows), "message", "in flight"),
    ]
    parts = [f"{count:,} {what}{'s' * (count != 1)} {how}" for count, what, how in counts if count]
    oldest = min((row.oldest_append_ms for row in rows if row.oldest_append_ms), default=0)
    if oldest:
        parts.append(f"oldest {format_duration(max(now_ms - oldest, 0) // 1000 * 1000)}")
    return f"waits  {', '.join(parts)}" if parts else None
