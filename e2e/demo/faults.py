"""Decides which fault comes next and which broker it strikes, from the seed and from the cluster at that moment.

This module is pure. `plan` makes an endless row of faults from a seed, and `choose` takes a victim from a snapshot. The
kinds, their order, their durations and every random number follow from the seed alone. Which broker has which role
depends on the run. So the same seed gives the same plan, but not the same victims. `striking` carries the faults out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from e2e.demo.report import Role
from e2e.observe import Snapshot

Kind = Literal["kill", "kill both", "freeze", "cut", "stop"]
CutEnd = Literal["peer", "all", "clients"]

KINDS: Final[tuple[Kind, ...]] = ("kill", "kill both", "freeze", "cut", "stop")
_LATER_BLOCK: Final[tuple[Kind, ...]] = ("kill", "kill", "kill both", "freeze", "cut", "cut", "stop")
_CUT_ENDS: Final[tuple[CutEnd, ...]] = ("peer", "all", "clients")
_HOLD_S: Final[dict[Kind, tuple[float, float]]] = {
    "kill": (0.2, 1.0),
    "kill both": (0.5, 1.5),
    "freeze": (1.0, 2.0),
    "cut": (1.0, 2.0),
    "stop": (0.1, 0.5),
}
"""How long a fault lasts, in seconds.

It is longer than `silence_us` of the brokers, so that they notice freezes and cuts.
"""

_SERVER_SHARE: Final = 0.3
"""The share of kills, freezes and cuts of one broker that strike a broker which serves a consumer.

All others strike a master.
"""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of the plan.

    Attributes:
        kind: What is done to the victim.
        role: The role that the victim should have at that moment.
        hold_s: The time until the fault is mended, in seconds.
        pick: A number from 0 to 1 that picks one of the possible victims.
        cut_from: The other end of a cut; for cuts only.
    """

    kind: Kind
    role: Role
    hold_s: float
    pick: float
    cut_from: CutEnd = "peer"


@dataclass(frozen=True, slots=True)
class Victim:
    """The brokers that a fault strikes.

    Attributes:
        brokers: One broker, or both members of a group.
        role: Their role at this moment.
        cut_from: The other end of a cut, in the words of `LocalCluster.cut`.
        name: The victim's name in reports.
    """

    brokers: tuple[str, ...]
    role: Role
    name: str
    cut_from: str = ""


def plan(seed: int) -> Iterator[PlannedFault]:
    """The faults of this seed, without end.

    Each kind comes once at first. Then come blocks of all kinds, with kills and cuts twice in each.
    """
    draw = random.Random(seed)
    ends = _shuffled_for_ever(draw, _CUT_ENDS)
    block = KINDS
    while True:
        for kind in draw.sample(block, len(block)):
            low, high = _HOLD_S[kind]
            serves = draw.random() < _SERVER_SHARE and kind not in ("kill both", "stop")
            yield PlannedFault(
                kind=kind,
                role="server" if serves else "master",
                hold_s=draw.uniform(low, high),
                pick=draw.random(),
                cut_from=next(ends) if kind == "cut" else "peer",
            )
        block = _LATER_BLOCK


def _shuffled_for_ever(draw: random.Random, values: tuple[CutEnd, ...]) -> Iterator[CutEnd]:
    while True:
        yield from draw.sample(values, len(values))


def choose(fault: PlannedFault, snapshot: Snapshot, members: Mapping[str, tuple[str, ...]]) -> Victim | None:
    """Choose the broker that the fault strikes now; None if no broker is master of an open segment.

    Args:
        fault: A fault of the plan.
        snapshot: The cluster, read just now.
        members: The brokers of each group.
    """
    if fault.kind == "kill both":
        group = _pick(snapshot.open_broker_groups(), fault.pick)
        return None if group is None else Victim(members[group], "master", group)
    masters, servers = snapshot.masters(), snapshot.servers()
    broker = _pick(servers if fault.role == "server" and servers else masters, fault.pick)
    if broker is None:
        return None
    other = _peer_of(broker, members, fault.cut_from)
    name = f"{broker} from {other}" if fault.kind == "cut" else broker
    role: Role = "server" if broker in servers and (fault.role == "server" or broker not in masters) else "master"
    return Victim((broker,), role, name, other)


def _peer_of(broker: str, members: Mapping[str, tuple[str, ...]], end: CutEnd) -> str:
    if end != "peer":
        return end
    group = next(group for group in members.values() if broker in group)
    return next((other for other in group if other != broker), "all")


def _pick(candidates: tuple[str, ...], share: float) -> str | None:
    return candidates[int(share * len(candidates))] if candidates else None
