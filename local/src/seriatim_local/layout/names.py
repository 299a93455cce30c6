"""The names of victims and of ends of cuts, and the processes and directed pairs that they mean. No I/O.

A name is a broker (`g0-1`), a broker group (`g0`), `coordinator`, `clients`, `brokers`, or `all`.
"""

from __future__ import annotations

from typing import Final

from seriatim_api.errors import BadRequestError

from seriatim_local.layout.plan import CLIENTS, COORDINATOR, ClusterPlan

ALL: Final = "all"
BROKERS: Final = "brokers"

Path = tuple[str, str]
"""A direction in which bytes flow: from the first to the second."""


def victims(plan: ClusterPlan, names: tuple[str, ...]) -> tuple[str, ...]:
    """The processes that `names` mean, each once, in the cluster's order. Only its own name means the coordinator.

    Raises:
        BadRequestError: A name has no meaning in this cluster.
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
    """The directions between two ends. If a process belongs to both ends, it counts for one of them only.

    `g0 all` means all links between a member of g0 and a process that is none. `g0 g0` means the links between the
    members of g0.

    Raises:
        BadRequestError: A name has no meaning in this cluster, or there is no link between the two.
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
