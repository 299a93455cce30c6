"""How many messages a consumer asks each partition for."""

from __future__ import annotations

import pytest
from seriatim._core.demand import Demand


def test_partitions_share_what_is_wanted_and_take_turns() -> None:
    demand, asked = Demand(), []
    for _ in range(4):
        shares = demand.shares(1, range(4))
        assert sum(shares.values()) == 1
        asked += [number for number, share in shares.items() if share]
        demand.came(asked[-1])
        assert not any(demand.shares(0, range(4)).values())
    assert sorted(asked) == [0, 1, 2, 3]


@pytest.mark.parametrize(("wanted", "most"), [(5, 2), (8, 2), (3, 1), (1_000, 250)])
def test_shares_are_as_even_as_they_can_be(wanted: int, most: int) -> None:
    shares = Demand().shares(wanted, range(4))
    assert sum(shares.values()) == wanted
    assert max(shares.values()) == most
    assert max(shares.values()) - min(shares.values()) <= 1


def test_all_partitions_are_asked_when_some_give_nothing() -> None:
    demand = Demand()
    demand.shares(1, range(4))
    demand.nothing_came()
    assert demand.shares(1, range(4)) == dict.fromkeys(range(4), 1)
    assert demand.shares(6, range(4)) == dict.fromkeys(range(4), 2)


def test_dry_partitions_are_asked_too_until_they_give_something() -> None:
    demand = Demand()
    demand.shares(4, range(4))
    demand.came(2)
    demand.nothing_came()
    demand.came(2)
    demand.shares(0, range(4))
    assert demand.shares(3, range(4)) == {0: 1, 1: 1, 2: 3, 3: 1}
    demand.came(3)
    demand.shares(0, range(4))
    shares = demand.shares(4, range(4))
    assert (shares[2], shares[3]) == (2, 2)
