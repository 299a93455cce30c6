"""Reads the settings of the demo of orders from its environment: those of all demos, and PLANT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from e2e.demo.settings import Settings, read_common

PLANTED: Final = ("acks-early", "out-of-order", "no-fence")
"""Faults of the consumers' program that the demo must find. Tests ask for them with PLANT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings(Settings):
    """One run of the demo of orders.

    Attributes:
        parked_s: For how long the parked aircraft waits until it is released, in seconds.
        parked_max_s: How long the demo waits for the aircraft to be parked, in seconds.
        stalled_s: If the store takes nothing for this long, in seconds, the demo does not wait for more.
        process_count: The number of processes with consumers.
        consumers_each: The number of consumers in each of them.
        concurrency: How many handlers each consumer runs at once.
        planted: A fault of `PLANTED`; empty: none.
    """

    parked_s: float
    parked_max_s: float = 90.0
    stalled_s: float = 40.0
    process_count: int = 4
    consumers_each: int = 4
    concurrency: int = 8
    planted: str = ""

    @property
    def consumer_count(self) -> int:
        """The number of consumers that work at the same time."""
        return self.process_count * self.consumers_each

    @property
    def places(self) -> list[list[str]]:
        """The names of the consumers' places, by process: c01, c02, …"""
        names = [f"c{number:02}" for number in range(1, self.consumer_count + 1)]
        return [names[at : at + self.consumers_each] for at in range(0, len(names), self.consumers_each)]


def read_settings(environment: Mapping[str, str]) -> OrderSettings:
    """Read the settings from the environment.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    common = read_common(environment, "demo-orders-out")
    quick, planted = common["quick"], environment.get("PLANT", "")
    limit, hits_min, faults, rate, parked_s = (15_000, 4, 3, 500.0, 4.0) if quick else (60_000, 10, 8, 900.0, 10.0)
    return OrderSettings(
        event_limit=limit, hits_min=hits_min, consumer_faults=faults, rate=rate, parked_s=parked_s, planted=planted,
        partition_count=3, **common,
    )  # fmt: skip
