"""Checks the broker settings that users may write into `spec.settings`: a closed list.

A broker with a bad setting refuses to start. A rolling change would stop at the first such broker, but one member would
be down because of a misspelling. So the API server refuses them with rules made from this list (`SETTINGS_RULES`). An
object may be older than these rules, so the operator makes the same checks, and reports errors in a condition. The
operator itself decides addresses, paths and names, so they are not in the list. A change of any of these settings needs
a restart of the brokers.

    SettingsError
    ├── UnknownSettingError    there is no such setting, or users may not write it
    └── InvalidSettingError    the setting cannot have this value
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .rules import Rule

_MIB: Final = 1 << 20

SettingValue = int | float | str


class SettingsError(Exception):
    """`spec.settings` cannot be given to a broker.

    Attributes:
        name: The name of the setting.
    """

    def __init__(self, name: str, problem: str) -> None:
        """Make the error for the setting `name`; `problem` is its text."""
        super().__init__(problem)
        self.name = name


class UnknownSettingError(SettingsError):
    """There is no such setting.

    Attributes:
        nearest: The known setting with the most similar name.
    """

    def __init__(self, name: str, nearest: str) -> None:
        """Make the error with both names."""
        super().__init__(name, f"there is no setting {name!r}; the nearest is {nearest!r}")
        self.nearest = nearest


class InvalidSettingError(SettingsError):
    """The setting cannot have this value, or two settings contradict each other."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A number from `low` to `high`, both included. With `over` it must be above `low`."""

    low: float
    high: float = math.inf
    is_whole: bool = True
    over: bool = False

    def parse(self, text: str) -> SettingValue:
        try:
            value = int(text) if self.is_whole else float(text)
        except ValueError:
            raise ValueError("a whole number" if self.is_whole else "a number") from None
        if not (self.low < value if self.over else self.low <= value) or not value <= self.high or math.isnan(value):
            raise ValueError(self.words())
        return value

    def words(self) -> str:
        """What the value may be."""
        kind = "a whole number" if self.is_whole else "a number"
        low = f"{'above' if self.over else 'of at least'} {_plain(self.low)}"
        return f"{kind} {low}" + ("" if self.high == math.inf else f" and at most {_plain(self.high)}")

    def cel(self, value: str) -> str:
        """The same check as an expression. If the text is no number, the API server says so with the rule's message.

        A pattern would say it better, but the API server does not know how long the texts of a map are, and refuses
        the rule because it might take too long.
        """
        number, dot = ("int", "") if self.is_whole else ("double", ".0")
        checks = [f"{number}({value}) {'>' if self.over else '>='} {_plain(self.low)}{dot}"]
        if self.high != math.inf:
            checks.append(f"{number}({value}) <= {_plain(self.high)}{dot}")
        return " && ".join(checks)


@dataclass(frozen=True, slots=True)
class _Choice:
    """One word of a list."""

    choices: tuple[str, ...]

    def parse(self, text: str) -> SettingValue:
        if text not in self.choices:
            raise ValueError(self.words())
        return text

    def words(self) -> str:
        """What the value may be."""
        return "one of " + ", ".join(self.choices)

    def cel(self, value: str) -> str:
        """The same check as an expression."""
        return f"{value} in {_listed(self.choices)}"


def _listed(words: Iterable[str]) -> str:
    """A list of texts as an expression."""
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def _plain(number: float) -> str:
    """A limit without an exponent. All limits are whole numbers."""
    assert number == int(number)
    return str(int(number))


USER_SETTINGS: Final[Mapping[str, _Number | _Choice]] = {
    "balance_floor_bytes_per_s": _Number(0, is_whole=False),
    "balance_interval_s": _Number(0, is_whole=False),
    "balance_move_again_s": _Number(0, is_whole=False),
    "balance_moves_per_s": _Number(0, 100, is_whole=False, over=True),
    "balance_steady_s": _Number(0, is_whole=False),
    "balance_threshold": _Number(0, 10, is_whole=False, over=True),
    "batch_size_bytes_max": _Number(1024, _MIB),
    "forwarding_size_bytes_max": _Number(_MIB),
    "group_series_max": _Number(0, 1000),
    "head_cache_size_bytes_max": _Number(0),
    "heal_after_s": _Number(0, is_whole=False, over=True),
    "disk_hang_dead_s": _Number(0, is_whole=False),
    "disk_hang_ms": _Number(100),
    "disk_reserve_percent": _Number(1, 50),
    "disk_reserve_size_bytes_min": _Number(0),
    "heartbeat_ms": _Number(10),
    "in_flight_size_bytes_max": _Number(_MIB),
    "join_deadline_s": _Number(0, is_whole=False, over=True),
    "log_level": _Choice(("debug", "info", "warning", "error")),
    "planned_switch_ms": _Number(10),
    "retention_look_s": _Number(0, is_whole=False, over=True),
    "producer_protect_s": _Number(600, 86_400),
    "producer_tables_size_bytes_max": _Number(16 * _MIB),
    "producers_remembered": _Number(2_000, 1_000_000),
    "retry_cache_size_bytes_max": _Number(0),
    "segment_age_s_max": _Number(0, is_whole=False, over=True),
    "segment_size_bytes_max": _Number(16 * _MIB),
    "serve_lease_ms": _Number(50),
    "silence_ms": _Number(50),
    "stop_deadline_s": _Number(0, is_whole=False),
    "topic_series_max": _Number(0, 1000),
    "tls_client_auth": _Choice(("required", "optional")),
}

STOP_DEADLINE_DEFAULT_S: Final = 3.0
_HEARTBEAT_DEFAULT_MS: Final = 100
_SERVE_LEASE_DEFAULT_MS: Final = 300


def _rules() -> tuple[Rule, ...]:
    """The rules of `spec.settings`, from the list above."""
    known = Rule(
        f"self.all(key, key in {_listed(USER_SETTINGS)})",
        f"there is no such setting; the settings are {', '.join(sorted(USER_SETTINGS))}",
    )
    values = [
        Rule(f"!('{name}' in self) || ({kind.cel(f'self.{name}')})", f"{name} must be {kind.words()}")
        for name, kind in USER_SETTINGS.items()
    ]
    heartbeat, lease = (
        f"('{name}' in self ? int(self.{name}) : {default})"
        for name, default in (("heartbeat_ms", _HEARTBEAT_DEFAULT_MS), ("serve_lease_ms", _SERVE_LEASE_DEFAULT_MS))
    )
    text = "heartbeat_ms must be below serve_lease_ms, because a lease must outlast a heartbeat"
    defaults = f"the defaults are {_HEARTBEAT_DEFAULT_MS} and {_SERVE_LEASE_DEFAULT_MS}"
    return known, *values, Rule(f"{heartbeat} < {lease}", f"{text} ({defaults})")


SETTINGS_RULES: Final = _rules()


def parse_settings(settings: Mapping[str, str]) -> dict[str, SettingValue]:
    """The values of the settings by name.

    Raises:
        UnknownSettingError: There is no such setting, or users may not write it.
        InvalidSettingError: A setting cannot have its value, or `heartbeat_ms` is not below `serve_lease_ms`.
    """
    values = {name: _parse(name, text) for name, text in sorted(settings.items())}
    heartbeat = values.get("heartbeat_ms", _HEARTBEAT_DEFAULT_MS)
    lease = values.get("serve_lease_ms", _SERVE_LEASE_DEFAULT_MS)
    assert isinstance(heartbeat, int)
    assert isinstance(lease, int)
    if heartbeat >= lease:
        raise InvalidSettingError(
            "heartbeat_ms",
            f"heartbeat_ms ({heartbeat}) must be below serve_lease_ms ({lease}): a lease must outlast a heartbeat",
        )
    return values


def is_good(name: str, text: str) -> bool:
    """Whether there is a setting of this name, and it can have this value."""
    try:
        _parse(name, text)
    except SettingsError:
        return False
    return True


def _parse(name: str, text: str) -> SettingValue:
    kind = USER_SETTINGS.get(name)
    if kind is None:
        raise UnknownSettingError(name, difflib.get_close_matches(name, USER_SETTINGS, 1, 0.0)[0])
    try:
        return kind.parse(text)
    except ValueError as exc:
        raise InvalidSettingError(name, f"{name} must be {exc}, not {text!r}") from None
