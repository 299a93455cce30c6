"""The settings of consumer groups as messages of the brokers, and back."""

from __future__ import annotations

from typing import Final

from seriatim_api.v1 import records_pb2

from ..plan.consumer_group_settings import ConsumerGroupSettings, RetrySettings
from ..spec.consumer_group import BackOff, Spread, WhenExhausted

GRANT_MS_DEFAULT: Final = 30_000

_MODES: Final = {
    "Exclusive": records_pb2.CONSUMER_MODE_EXCLUSIVE,
    "KeyOrdered": records_pb2.CONSUMER_MODE_KEY_ORDERED,
    "Shared": records_pb2.CONSUMER_MODE_SHARED,
}
_MODE_NAMES: Final = {
    **{number: name for name, number in _MODES.items()},
    records_pb2.CONSUMER_MODE_UNSPECIFIED: "Exclusive",
    records_pb2.CONSUMER_MODE_BROADCAST: "Broadcast",
}
_BACK_OFFS: Final[dict[int, BackOff]] = {
    records_pb2.BACK_OFF_UNSPECIFIED: "Exponential",
    records_pb2.BACK_OFF_FIXED: "Fixed",
    records_pb2.BACK_OFF_EXPONENTIAL: "Exponential",
    records_pb2.BACK_OFF_LIST: "List",
}
_EXHAUSTED: Final[dict[int, WhenExhausted]] = {
    records_pb2.EXHAUSTED_UNSPECIFIED: "Block",
    records_pb2.EXHAUSTED_BLOCK: "Block",
    records_pb2.EXHAUSTED_PARK_KEY: "ParkKey",
    records_pb2.EXHAUSTED_DEAD_LETTER: "DeadLetter",
}
_BACK_OFF_NUMBERS: Final = {name: number for number, name in _BACK_OFFS.items() if number}
_EXHAUSTED_NUMBERS: Final = {name: number for number, name in _EXHAUSTED.items() if number}


def settings_message(settings: ConsumerGroupSettings, changed: tuple[str, ...]) -> records_pb2.GroupSettings:
    """The settings as a message for the brokers.

    Args:
        settings: What is wanted.
        changed: Fields of the spec to set: `mode`, `delivery`, `retry`, `spread`. Brokers keep the others as they are.
            Another delivery is set with the mode.
    """
    message = records_pb2.GroupSettings()
    if "mode" in changed or "delivery" in changed:
        message.mode = _MODES[settings.mode]
        message.at_most_once = settings.at_most_once
    if "retry" in changed and settings.retry is not None:
        retry = settings.retry
        message.retry.attempts_max = retry.attempts_max
        message.retry.back_off = _BACK_OFF_NUMBERS[retry.back_off]  # type: ignore[assignment]
        message.retry.delays_ms.extend(retry.delays_ms)
        message.retry.jitter_percent = retry.jitter_percent
        message.retry.exhausted = _EXHAUSTED_NUMBERS[retry.exhausted]  # type: ignore[assignment]
        message.retry.dead_letter_topic = retry.dead_letter_topic
        message.retry.grant_ms = retry.grant_ms
    if "spread" in changed and settings.spread is not None:
        message.spread = records_pb2.SPREAD_EVEN if settings.spread == "Even" else records_pb2.SPREAD_NONE
    return message


def settings_from_message(message: records_pb2.GroupSettings) -> ConsumerGroupSettings:
    """The settings that the brokers reported."""
    retry, mode = message.retry, _MODE_NAMES.get(message.mode, f"{message.mode}")
    spread: Spread = "None" if message.spread == records_pb2.SPREAD_NONE else "Even"
    return ConsumerGroupSettings(
        mode=mode,
        at_most_once=message.at_most_once,
        retry=RetrySettings(
            attempts_max=retry.attempts_max,
            back_off=_BACK_OFFS.get(retry.back_off, "Exponential"),
            delays_ms=tuple(retry.delays_ms),
            jitter_percent=retry.jitter_percent,
            exhausted=_EXHAUSTED.get(retry.exhausted, "Block"),
            dead_letter_topic=retry.dead_letter_topic,
            grant_ms=retry.grant_ms or GRANT_MS_DEFAULT,
        )
        if message.HasField("retry")
        else None,
        spread=spread if mode == "Exclusive" else None,
    )
