"""Reads the settings of the demo of delayed messages from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from e2e.demo.settings import Settings, read_common


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedSettings(Settings):
    """One run of the demo of delayed messages. `hits_min` is the number of brokers that are killed.

    Attributes:
        message_count: How many messages are sent.
        cancelled_count: How many of them are called back.
        delay_s: The shortest and the longest delay, in seconds.
    """

    message_count: int
    cancelled_count: int
    delay_s: tuple[float, float] = (1.0, 20.0)


def read_settings(environment: Mapping[str, str]) -> DelayedSettings:
    """Read the settings from the environment.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    common = read_common(environment, "demo-delayed-out")
    count = 2_000 if common["quick"] else 10_000
    return DelayedSettings(
        event_limit=count, message_count=count, cancelled_count=count // 20, rate=500.0 if count > 2_000 else 200.0,
        hits_min=3, fault_s=6.0, partition_count=3, **common,
    )  # fmt: skip
