"""Reports every condition that is not as it should be: of the cluster, its broker groups, Brokers and topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..spec.base import Condition, Resource, Status
from ..status.remedies import remedy
from .findings import Finding, bad, warning, well
from .look import Look

NAMED_MAX: Final = 5
"""How many objects with the same condition are named. The others are counted."""

WELL: Final = frozenset(
    {
        "Ready",
        "Stable",
        "ExternalReady",
        "AuthoritySettled",
        "EtcdHealthy",
        "Whole",
        "Scheduled",
        "StorageBound",
        "DiskHealthy",
        "ChainHealthy",
    }
)
"""Conditions that should be True."""

TOLD_ELSEWHERE: Final = frozenset({("ConsumerGroup", "Ready"), ("Broker", "DiskHealthy")})
"""Kinds and conditions of which other checks report more if they are False."""


def check_conditions(look: Look) -> list[Finding]:
    """Report the conditions that should be True and are not, one finding for all objects with the same reason."""
    held = [broker for broker in look.brokers if broker.status.disk_lost is None]
    objects: list[Resource] = [look.cluster, *look.groups, *held, *look.topics, *look.consumer_groups]
    found: dict[tuple[str, str, str, str], list[tuple[Resource, Condition]]] = {}
    count = 0
    for item in objects:
        for condition in _conditions(item):
            count += 1
            is_told = (item.KIND, condition.type) in TOLD_ELSEWHERE and condition.status == "False"
            if condition.status != "True" and not is_told and not item.metadata.is_deleted:
                key = (item.KIND, condition.type, condition.status, condition.reason)
                found.setdefault(key, []).append((item, condition))
    findings = [_tell(*key, rows) for key, rows in found.items()]
    return findings or [well("conditions", f"{count:,} are as they should be")]


def _conditions(item: Resource) -> Iterable[Condition]:
    status: Status = item.status  # type: ignore[attr-defined]
    return (condition for condition in status.conditions if condition.type in WELL)


def _tell(kind: str, type_: str, status: str, reason: str, rows: list[tuple[Resource, Condition]]) -> Finding:
    names = ", ".join(item.name for item, _ in rows[:NAMED_MAX])
    more = f" and {len(rows) - NAMED_MAX:,} more" if len(rows) > NAMED_MAX else ""
    text = f"{type_} is {status} ({reason}) for {names}{more}: {rows[0][1].message}"
    make = bad if type_ == "Ready" else warning
    return make(f"{kind} {type_}", text, remedy(*rows[0]))
