"""What people may write for a victim or for an end of a cut, and which processes and directed pairs that means.

Pure. A name is a broker (`g0-1`), a broker group (`g0`), `coordinator`, `clients`, `brokers`, or `all`.
"""

from __future__ import annotations

from typing import Final

from seriatim_api.errors import BadRequestError

from seriatim_broker.local.plan import CLIENTS, COORDINATOR, ClusterPlan

ALL: Final = "all"
BROKERS: Final = "brokers"

Path = tuple[str, str]
"""A direction that bytes flow in: from the first to the second."""


def victims(plan: ClusterPlan, names: tuple[str, ...]) -> tuple[str, ...]:
    """The processes that `names` mean, each once, in the cluster's order; the coordinator only by its own name.

    Raises:
        BadRequestError: A name means nothing here.
    """
    wanted: set[str] = set()
    for name in names:
        ends = set(_ends(plan, name))
        if name != COORDINATOR:
            ends -= {COORDINATOR, CLIENTS}
        if not ends:
            raise BadRequestError(f"{name!r} is no process of this cluster", name=name)
        wanted |= ends
    return tuple(name for name in (*_brokers(plan), COORDINATOR) if name in wanted)


def paths(plan: ClusterPlan, source: str, destination: str, *, one_way: bool) -> tuple[Path, ...]:
    """The directions between two ends, without those inside of what both name have in common.

    `g0 all` is everything between a member of g0 and one that is not; `g0 g0` is what its members say to each other.

    Raises:
        BadRequestError: A name means nothing here, or there is no link between the two.
    """
    left, right = set(_ends(plan, source)), set(_ends(plan, destination))
    if left != right:
        left, right = (left - right, right) if left - right else (left, right)
        right -= left
    known = set(plan.pairs)
    found = {(a, b) for a in left for b in right if (a, b) in known or (b, a) in known}
    if not found:
        raise BadRequestError(f"there is no link between {source} and {destination}", source=source, to=destination)
    if not one_way:
        found |= {(b, a) for a, b in found}
    return tuple(sorted(found))


def _ends(plan: ClusterPlan, name: str) -> tuple[str, ...]:
    if name == ALL:
        return (*_brokers(plan), COORDINATOR, CLIENTS)
    if name == BROKERS:
        return _brokers(plan)
    if name in (COORDINATOR, CLIENTS):
        return (name,)
    members = tuple(broker.name for broker in plan.brokers if name in (broker.name, broker.group))
    if not members:
        known = ", ".join((*_brokers(plan), *plan.groups, COORDINATOR, CLIENTS, BROKERS, ALL))
        raise BadRequestError(f"{name!r} means nothing in this cluster; known are {known}", name=name)
    return members


def _brokers(plan: ClusterPlan) -> tuple[str, ...]:
    return tuple(broker.name for broker in plan.brokers)
