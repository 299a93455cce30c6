"""The demo's settings from its environment: QUICK, SEED and OUT."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEED_MAX: Final = 999_999
"""The largest seed that the program draws itself: few digits, because people type it again."""


class SettingsError(ValueError):
    """The environment says something that means nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the demo.

    Attributes:
        quick: A part of the events, and few faults.
        seed: Of the fault plan.
        out: Where report, picture and histories go.
        event_limit: How many events are sent; None: all.
        hits_min: How many faults must hit.
        rate: Events a second while faults go on, at first; it follows the time that the faults take.
        fault_s: What one fault is thought to take, from blow to blow, before anything is known, in seconds.
        partition_count: Of the topic.
    """

    quick: bool
    seed: int
    out: Path
    event_limit: int | None
    hits_min: int
    rate: float
    fault_s: float
    partition_count: int = 6
    group_count: int = 3
    member_count: int = 2


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that the environment asks for.

    Raises:
        SettingsError: SEED is no number.
    """
    quick = environment.get("QUICK", "") not in ("", "0", "no", "false")
    text = environment.get("SEED", "")
    try:
        seed = int(text) if text else random.SystemRandom().randint(1, SEED_MAX)
    except ValueError:
        raise SettingsError(f"SEED is a whole number, not {text!r}") from None
    return Settings(
        quick=quick,
        seed=seed,
        out=Path(environment.get("OUT") or "demo-out"),
        event_limit=200_000 if quick else None,
        hits_min=6 if quick else 20,
        rate=5_000.0 if quick else 8_000.0,
        fault_s=4.0 if quick else 5.0,
    )
