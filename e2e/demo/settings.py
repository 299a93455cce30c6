"""Reads the settings of the demos from the environment: QUICK, SEED, OUT, LATENCY and JITTER."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seriatim_local import LinkDelay
from seriatim_local.links.delays import NO_DELAY

from e2e.distance import read_rough_delay
from e2e.usage import is_on, read_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run of a demo.

    Attributes:
        quick: Whether only a part of the events is sent, with few faults.
        seed: The seed of all that is drawn.
        out: The directory for report, picture and histories.
        event_limit: The number of events that are sent; None: all.
        hits_min: The number of faults that must hit brokers.
        consumer_faults: How many faults strike processes with consumers.
        rate: Events in a second when the faults begin. Later the rate follows the time that the faults take.
        fault_s: A first guess at the time from one fault to the next, in seconds.
        faults_s: After this many seconds, only a fault of each kind must hit: the machine is slow.
        partition_count: The number of partitions of the topic.
        group_count: The number of broker groups.
        member_count: The number of brokers in each of them.
        delay: The delay of all links, each way.
    """

    quick: bool
    seed: int
    out: Path
    event_limit: int | None
    hits_min: int
    consumer_faults: int = 0
    rate: float
    fault_s: float = 5.0
    faults_s: float = 120.0
    partition_count: int = 6
    group_count: int = 3
    member_count: int = 2
    delay: LinkDelay = NO_DELAY


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings of the demo of histories from the environment.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    common = read_common(environment, "demo-out")
    if common["quick"]:
        return Settings(event_limit=200_000, hits_min=6, rate=5_000.0, fault_s=4.0, **common)
    return Settings(event_limit=None, hits_min=20, rate=8_000.0, **common)


def read_common(environment: Mapping[str, str], out: str) -> dict[str, Any]:
    """Read the settings that all demos take from the environment. `out` is the directory if OUT is not set.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    quick = is_on(environment, "QUICK")
    return {
        "quick": quick,
        "seed": read_seed(environment),
        "out": Path(environment.get("OUT") or out),
        "faults_s": 120.0 if quick else 400.0,
        "delay": read_rough_delay(environment),
    }
