"""The readers of partitions: shares are even, and few partitions move when a consumer comes or goes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim_api.spreading import PAIRS_MAX, reader_of, readers

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12, unique=True).map(sorted)


@given(st.integers(1, 60), NAMES)
def test_shares_differ_by_one_partition_at_most(partition_count: int, names: list[str]) -> None:
    found = readers(partition_count, tuple(names))
    assert len(found) == partition_count
    assert set(found) <= set(names)
    shares = Counter(found)
    assert {shares[name] for name in names} <= {partition_count // len(names), -(-partition_count // len(names))}


@pytest.mark.parametrize(("partition_count", "count"), [(4, 3), (16, 3), (64, 5), (64, 16), (256, 10)])
def test_moved_partitions_are_few(partition_count: int, count: int) -> None:
    drawn = random.Random(7)
    moved = 0
    for _ in range(40):
        names = sorted(f"consumer-{drawn.getrandbits(40):x}" for _ in range(count + 1))
        gone = drawn.choice(names)
        before = readers(partition_count, tuple(names))
        after = readers(partition_count, tuple(name for name in names if name != gone))
        moved += sum(one != other for one, other in zip(before, after, strict=True))
    assert moved / 40 <= 2 * partition_count / (count + 1)


def test_readers_of_large_groups_have_even_shares_too() -> None:
    names = tuple(sorted(f"consumer-{number}" for number in range(300)))
    assert 1_000 * len(names) > PAIRS_MAX
    assert set(Counter(readers(1_000, names)).values()) == {3, 4}


def test_readers_are_the_same_in_all_processes() -> None:
    """Brokers of all versions must agree. If this changes, servers of two versions hand partitions back and forth."""
    assert [reader_of(number, 8, ["a", "b", "c"]) for number in range(8)] == list("acbcacbb")
