"""Settings from the environment: QUICK, MINUTES, SEED, ONLY, OUT, KEEP, NETWORK, RETENTION, PUBLISH."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

NetworkChoice = Literal["auto", "namespaces", "proxy"]

SEED_MAX: Final = 999_999
"""The largest seed that the program draws itself: few digits, because people type it again."""


class SettingsError(ValueError):
    """The environment says something that means nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        quick: A fixed choice of faults, each once.
        minutes: For how long cases are begun; None: until each fault came once.
        seed: Of the schedule.
        only: Words that a fault's name must contain, any of them; empty: all faults.
        keep: Whether cases that went well leave their histories and logs, too.
        network: How processes are linked. `auto`: by namespaces for faults of links, where they can be made, else
            through the proxy.
        out: Where the report and what failed cases left goes.
        retention_s: How long topics keep messages, in seconds; 0: for ever. Then readers that fall behind are told what
            they missed, no group comes late, and brokers look every second.
        publish: Whether a program publishes beside the load of each case, on a topic of its own.
    """

    quick: bool
    minutes: float | None
    seed: int
    only: tuple[str, ...]
    out: Path
    keep: bool = False
    network: NetworkChoice = "auto"
    retention_s: int = 0
    publish: bool = False


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that the environment asks for.

    Raises:
        SettingsError: SEED, MINUTES or RETENTION is no number, or NETWORK no way of linking.
    """
    minutes_text, seed_text = environment.get("MINUTES", ""), environment.get("SEED", "")
    try:
        minutes = float(minutes_text) if minutes_text else None
    except ValueError:
        raise SettingsError(f"MINUTES is a number, not {minutes_text!r}") from None
    if minutes is not None and not 0 < minutes < float("inf"):
        raise SettingsError(f"MINUTES is above 0, not {minutes_text}")
    try:
        seed = int(seed_text) if seed_text else random.SystemRandom().randint(1, SEED_MAX)
    except ValueError:
        raise SettingsError(f"SEED is a whole number, not {seed_text!r}") from None
    retention_text = environment.get("RETENTION", "") or "0"
    if not retention_text.isdigit():
        raise SettingsError(f"RETENTION is a whole number of seconds, not {retention_text!r}")
    network = next((name for name in get_args(NetworkChoice) if name == (environment.get("NETWORK") or "auto")), None)
    if network is None:
        raise SettingsError(f"NETWORK is one of {', '.join(get_args(NetworkChoice))}, not {environment['NETWORK']!r}")
    return Settings(
        quick=_is_on(environment.get("QUICK", "")),
        minutes=minutes,
        seed=seed,
        only=tuple(part.strip() for part in environment.get("ONLY", "").split(",") if part.strip()),
        out=Path(environment.get("OUT") or "faults-out"),
        keep=_is_on(environment.get("KEEP", "")),
        network=network,
        retention_s=int(retention_text),
        publish=_is_on(environment.get("PUBLISH", "")),
    )


def _is_on(text: str) -> bool:
    return text not in ("", "0", "no", "false")
