"""Reads the demo's settings from its environment: QUICK, SEED, OUT, LATENCY and JITTER."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seriatim_local import LinkDelay
from seriatim_local.delays import NO_DELAY

from e2e.distance import DistanceError, read_rough_delay

SEED_MAX: Final = 999_999
"""The largest seed that the program draws itself. It has few digits, because people type it again."""


class SettingsError(ValueError):
    """A variable of the environment has a value without a meaning."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the demo.

    Attributes:
        quick: Whether only a part of the events is sent, with few faults.
        seed: The seed of the fault plan.
        out: The directory for report, picture and histories.
        event_limit: The number of events that are sent; None: all.
        hits_min: The number of faults that must hit.
        faults_s: After so many seconds, only a fault of each kind must hit: the machine is slow.
        rate: Events in a second when the faults begin. Later the rate follows the time that the faults take.
        fault_s: A first guess at the time from one fault to the next, in seconds.
        partition_count: The number of partitions of the topic.
        delay: The delay of all links, each way.
    """

    quick: bool
    seed: int
    out: Path
    event_limit: int | None
    hits_min: int
    rate: float
    fault_s: float
    faults_s: float = 120.0
    partition_count: int = 6
    group_count: int = 3
    member_count: int = 2
    delay: LinkDelay = NO_DELAY


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: SEED, LATENCY or JITTER is no number.
    """
    quick = read_quick(environment)
    return Settings(
        quick=quick,
        seed=read_seed(environment),
        out=Path(environment.get("OUT") or "demo-out"),
        event_limit=200_000 if quick else None,
        hits_min=6 if quick else 20,
        rate=5_000.0 if quick else 8_000.0,
        fault_s=4.0 if quick else 5.0,
        faults_s=120.0 if quick else 400.0,
        delay=read_distance(environment),
    )


def read_quick(environment: Mapping[str, str]) -> bool:
    """Whether QUICK asks for a part of the run."""
    return environment.get("QUICK", "") not in ("", "0", "no", "false")


def read_distance(environment: Mapping[str, str]) -> LinkDelay:
    """Read LATENCY and JITTER.

    Raises:
        SettingsError: One of them is no number of ms.
    """
    try:
        return read_rough_delay(environment)
    except DistanceError as error:
        raise SettingsError(str(error)) from None


def read_seed(environment: Mapping[str, str]) -> int:
    """Read SEED, or draw a seed.

    Raises:
        SettingsError: SEED is no number.
    """
    text = environment.get("SEED", "")
    try:
        return int(text) if text else random.SystemRandom().randint(1, SEED_MAX)
    except ValueError:
        raise SettingsError(f"SEED is a whole number, not {text!r}") from None
