"""How a consumer group is served, in the brokers' units: what an object asks for, and what the brokers have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..spec.consumer_group import BackOff, ConsumerGroup, GroupMode, Spread, WhenExhausted
from ..spec.values import format_pause

KEYED_MODES: Final = ("KeyOrdered", "Shared")
"""The modes in which messages wait key by key, and in which a retry policy counts."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """What happens to a message on which a consumer fails. The fields are those of the brokers' `RetryPolicy`."""

    attempts_max: int
    back_off: BackOff
    delays_ms: tuple[int, ...]
    jitter_percent: int
    exhausted: WhenExhausted
    dead_letter_topic: str
    grant_ms: int

    @property
    def text(self) -> str:
        """The policy in a few words, such as `5 attempts, then ParkKey; Exponential 1s 5m`."""
        if self.attempts_max:
            attempts = f"{self.attempts_max} attempts, then {self.exhausted}"
        else:
            attempts = "no limit" if self.exhausted == "Block" else f"no limit, {self.exhausted} after GiveUp"
        return f"{attempts}; {self.back_off} {' '.join(map(format_pause, self.delays_ms))}"


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """How a consumer group is served.

    Attributes:
        mode: How its consumers share the messages: a value of `spec.mode`, or another word that a newer broker has.
        at_most_once: Messages are acknowledged when they are given out.
        retry: The retry policy; None: the mode has none, or an object leaves it to others.
        spread: Which consumer reads which partition: a value of `spec.spread`; None: an object leaves it to others.
    """

    mode: GroupMode | str
    at_most_once: bool
    retry: RetrySettings | None
    spread: Spread | None = None

    @property
    def is_keyed(self) -> bool:
        """Whether messages wait key by key."""
        return self.mode in KEYED_MODES

    @property
    def is_default(self) -> bool:
        """Whether it is what a consumer group has that was made without settings."""
        default = ConsumerGroupSettings("Exclusive", at_most_once=False, retry=None)
        return self in (default, replace(default, spread="Even"))


def wanted_settings(item: ConsumerGroup) -> ConsumerGroupSettings:
    """The settings that an object asks for."""
    retry, spec = item.spec.retry, item.spec
    return ConsumerGroupSettings(
        mode=spec.mode,
        at_most_once=spec.delivery == "AtMostOnce",
        retry=None
        if retry is None
        else RetrySettings(
            attempts_max=retry.attempts or 0,
            back_off=retry.back_off,
            delays_ms=retry.delays_ms,
            jitter_percent=retry.jitter_percent,
            exhausted=retry.when_exhausted,
            dead_letter_topic=item.dead_letter_topic,
            grant_ms=retry.grant_ms,
        ),
        spread=spec.spread,
    )


def differences(wanted: ConsumerGroupSettings, there: tuple[ConsumerGroupSettings, ...]) -> tuple[str, ...]:
    """The fields of the spec in which some partition differs from what is wanted. A retry policy may be left to others.

    Args:
        wanted: What the object asks for.
        there: The different settings that partitions have.
    """
    found = []
    if any(one.mode != wanted.mode for one in there):
        found.append("mode")
    if any(one.at_most_once != wanted.at_most_once for one in there):
        found.append("delivery")
    if wanted.retry is not None and any(one.retry != wanted.retry for one in there):
        found.append("retry")
    if wanted.spread is not None and any(one.spread != wanted.spread for one in there):
        found.append("spread")
    return tuple(found)
