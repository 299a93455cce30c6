"""Settings from the environment: QUICK, MINUTES, SEED, ONLY, OUT, KEEP, MEMBERS, NETWORK, RETENTION, PUBLISH, FEATURES,
LOAD, LATENCY and JITTER.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from seriatim_local import LinkDelay
from seriatim_local.links.delays import NO_DELAY

from e2e.distance import read_rough_delay
from e2e.usage import SettingsError, is_on, read_seed

NetworkChoice = Literal["auto", "namespaces", "proxy"]
MEMBERS: Final = ("2", "3", "4", "5")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        quick: Whether to run a fixed choice of faults, each once.
        minutes: For how long new cases begin; None: until each fault came once.
        seed: The seed of the schedule.
        only: A fault's name must contain one of these words; empty: all faults.
        keep: Whether cases without problems also leave their histories and logs.
        network: How processes are linked. `auto`: faults of links use namespaces if this machine can make them. All
            others use the proxy.
        out: The directory for the report and for the files of failed cases.
        retention_s: How long topics keep messages, in seconds; 0: for ever. If it is set, readers that fall behind are
            told what they missed, no group comes late, and brokers look every second.
        publish: Whether a program publishes beside the load of each case, on a topic of its own.
        features: Whether an administrator uses features beside the load of each case, on a topic of its own.
        load: The name of the load of all cases; empty: another one each time that a fault comes.
        delay: The delay of all links, each way. With one, all faults use the proxy.
        members: The number of members in each broker group.
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
    features: bool = False
    load: str = ""
    delay: LinkDelay = NO_DELAY
    members: int = 2


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: SEED, MINUTES, RETENTION, LATENCY or JITTER is no number, MEMBERS or NETWORK is an unknown word,
            or LATENCY is set with NETWORK=namespaces.
    """
    minutes_text = environment.get("MINUTES", "")
    try:
        minutes = float(minutes_text) if minutes_text else None
    except ValueError:
        raise SettingsError(f"MINUTES is a number, not {minutes_text!r}") from None
    if minutes is not None and not 0 < minutes < float("inf"):
        raise SettingsError(f"MINUTES is above 0, not {minutes_text}")
    retention_text = environment.get("RETENTION", "") or "0"
    if not retention_text.isdigit():
        raise SettingsError(f"RETENTION is a whole number of seconds, not {retention_text!r}")
    members_text = environment.get("MEMBERS") or "2"
    if members_text not in MEMBERS:
        raise SettingsError(f"MEMBERS is one of {', '.join(MEMBERS)}, not {members_text!r}")
    network = next((name for name in get_args(NetworkChoice) if name == (environment.get("NETWORK") or "auto")), None)
    if network is None:
        raise SettingsError(f"NETWORK is one of {', '.join(get_args(NetworkChoice))}, not {environment['NETWORK']!r}")
    delay = read_rough_delay(environment)
    if delay and network == "namespaces":
        raise SettingsError("only the proxy delays links: LATENCY needs NETWORK=proxy, or none")
    return Settings(
        quick=is_on(environment, "QUICK"),
        minutes=minutes,
        seed=read_seed(environment),
        only=tuple(part.strip() for part in environment.get("ONLY", "").split(",") if part.strip()),
        out=Path(environment.get("OUT") or "faults-out"),
        keep=is_on(environment, "KEEP"),
        network="proxy" if delay else network,
        retention_s=int(retention_text),
        publish=is_on(environment, "PUBLISH"),
        features=is_on(environment, "FEATURES"),
        load=environment.get("LOAD", ""),
        delay=delay,
        members=int(members_text),
    )
