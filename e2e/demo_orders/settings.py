"""Reads the settings of the demo of orders from its environment: QUICK, SEED, OUT, LATENCY and JITTER."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seriatim_local import LinkDelay
from seriatim_local.delays import NO_DELAY

from e2e.demo.settings import read_distance, read_quick, read_seed

OUT: Final = "demo-orders-out"

PLANTED: Final = ("acks-early", "out-of-order", "no-fence")
"""Faults of the consumers' program that the demo must find. Tests ask for them with PLANT."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the demo.

    Attributes:
        quick: Whether only a part of the events is sent, with few faults.
        seed: The seed of all that is drawn.
        out: The directory for report, picture and histories.
        event_limit: The number of events that are sent.
        broker_hits: How many faults must hit brokers.
        consumer_faults: How many faults strike processes with consumers.
        rate: Events in a second when the faults begin. Later the rate follows the time that the faults take.
        faults_s: After so many seconds, only a fault of each kind must hit brokers: the machine is slow.
        fault_s: A first guess at the time from one fault of a broker to the next, in seconds.
        parked_s: For how long the parked aircraft waits until it is released, in seconds.
        parked_max_s: How long the demo waits for the aircraft to be parked, in seconds.
        stalled_s: If the store takes nothing for so long, in seconds, the demo does not wait for more.
        partition_count: The number of partitions of the topic.
        process_count: The number of processes with consumers.
        consumers_each: The number of consumers in each of them.
        concurrency: How many handlers each consumer runs at once.
        planted: A fault of `PLANTED`; empty: none.
        delay: The delay of all links, each way.
    """

    quick: bool
    seed: int
    out: Path
    event_limit: int
    broker_hits: int
    consumer_faults: int
    rate: float
    fault_s: float
    parked_s: float
    faults_s: float = 120.0
    parked_max_s: float = 90.0
    stalled_s: float = 40.0
    partition_count: int = 3
    group_count: int = 3
    member_count: int = 2
    process_count: int = 4
    consumers_each: int = 4
    concurrency: int = 8
    planted: str = ""
    delay: LinkDelay = NO_DELAY

    @property
    def consumer_count(self) -> int:
        """The number of consumers that work at the same time."""
        return self.process_count * self.consumers_each


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    quick = read_quick(environment)
    return Settings(
        quick=quick,
        seed=read_seed(environment),
        out=Path(environment.get("OUT") or OUT),
        event_limit=15_000 if quick else 60_000,
        broker_hits=4 if quick else 10,
        consumer_faults=3 if quick else 8,
        rate=500.0 if quick else 900.0,
        fault_s=5.0,
        faults_s=120.0 if quick else 400.0,
        parked_s=4.0 if quick else 10.0,
        planted=environment.get("PLANT", ""),
        delay=read_distance(environment),
    )
