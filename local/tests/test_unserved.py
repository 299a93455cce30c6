"""The status counts the partitions on which messages wait and no consumer reads."""

from __future__ import annotations

from typing import Any, cast

import pytest
from seriatim_api.errors import NotServingError, SeriatimError
from seriatim_api.v1 import broker_pb2, common_pb2
from seriatim_local.brokers import unserved
from seriatim_local.brokers.unserved import Unserved, lag_without_consumer


def row(lag: int, **more: Any) -> broker_pb2.GroupPartition:
    return broker_pb2.GroupPartition(has_cursor=True, position=5, end_position=5 + lag, **more)


class Broker:
    """Knows groups by topic."""

    def __init__(self, groups: dict[str, dict[str, list[broker_pb2.GroupPartition] | SeriatimError]]) -> None:
        self.groups = groups

    async def list_groups(self, topic: str, **_: Any) -> list[str]:
        return list(self.groups[topic])

    async def describe_group(self, topic: str, group: str, **_: Any) -> list[broker_pb2.GroupPartition]:
        found = self.groups[topic][group]
        if isinstance(found, SeriatimError):
            raise found
        return found


async def count(groups: dict[str, Any]) -> Unserved:
    found = Unserved()
    await unserved._count(cast(Any, Broker(groups)), groups, found)
    return found


@pytest.mark.parametrize(
    ("known", "lag"),
    [
        (row(7), 7),
        (row(7, standby_consumers=["c1"]), 7),
        (row(7, passed_messages=3, aside_messages=2), 6),
        (row(0), 0),
        (row(7, active_consumer="c1"), 0),
        (row(7, consumers=["c1"]), 0),
        (row(7, external=True), 0),
        (row(7, error=common_pb2.Error(number=300)), 0),
        (broker_pb2.GroupPartition(end_position=7), 0),
    ],
)
def test_the_lag_of_a_partition_without_a_consumer(known: broker_pb2.GroupPartition, lag: int) -> None:
    assert lag_without_consumer(known) == lag


async def test_partitions_of_all_groups_are_counted() -> None:
    found = await count(
        {
            "orders": {"readers": [row(7), row(3), row(9, active_consumer="c1")], "screens/c1": [row(4)]},
            "flights": {"reports": [row(0)], "idle": [row(1)]},
        }
    )
    assert found == Unserved(3, 11, ["flights idle", "orders readers"])
    assert found.line.startswith("no consumer reads 3 partitions on which messages wait (11): flights idle, orders")
    assert Unserved().line == ""


async def test_a_count_that_is_not_complete_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await count({"orders": {"a": NotServingError("moves"), "b": [row(7)]}})
    assert (found.partitions, found.is_at_least) == (1, True)
    assert "no consumer reads 1+ partition on" in found.line
    monkeypatch.setattr(unserved, "GROUPS_MAX", 1)
    found = await count({"orders": {"b": [row(7)], "c": [row(7)]}})
    assert (found.partitions, found.is_at_least) == (1, True)


async def test_no_count_without_brokers() -> None:
    assert await unserved.count_unserved([], None) is None
