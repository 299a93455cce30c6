"""Credit of a stream: bounded, never lost, large for a reader that is fast."""

from __future__ import annotations

import random
from collections import deque

import pytest
from seriatim._core.credit import (
    CREDIT_SPAN_US,
    FAR_BYTES_MAX,
    GRANT_BYTES_MAX,
    MEASURED_COUNT,
    CreditAccount,
    CreditPool,
)

KIB = 1 << 10
MIB = 1 << 20
SLOW_US = 10_000_000
"""For each piece of a slow reader: its window stays the least."""


def test_a_slow_reader_gets_back_what_it_took_in_quarters_of_the_window() -> None:
    rng = random.Random(1)
    account = CreditAccount(1000, 4000, 0)
    granted = freed = 0
    for turn in range(500):
        size = rng.randint(1, 100)
        freed += size
        grant = account.free(size, turn * SLOW_US)
        assert grant == 0 or grant >= 250
        granted += grant
        assert 0 <= freed - granted < 250 + 100
    assert account.window_bytes == 1000


def test_what_is_out_never_exceeds_the_largest_window_and_grows_with_the_pace() -> None:
    rng = random.Random(2)
    account = CreditAccount(4 * MIB, 16 * MIB, 0)
    out = 4 * MIB
    now_us = 0
    for bytes_per_us in (10, 10_000, 300, 20, 10_000, 1):
        for _ in range(2_000):
            taken = min(rng.randint(1, 256 * KIB), out)
            now_us += max(1, taken // bytes_per_us)
            out += account.free(taken, now_us) - taken
            assert 0 < out <= 16 * MIB
        wanted = min(max(bytes_per_us * CREDIT_SPAN_US, 4 * MIB), 16 * MIB)
        assert abs(account.window_bytes - wanted) < wanted / 4, bytes_per_us
        assert out > account.window_bytes - GRANT_BYTES_MAX - 256 * KIB, "none is lost"


def test_one_quick_moment_makes_a_window_larger_by_no_more_than_was_taken() -> None:
    account = CreditAccount(4 * MIB, 16 * MIB, 0)
    assert account.free(MIB, 0) == 2 * MIB
    assert account.window_bytes == 5 * MIB


def test_a_reader_that_waited_for_long_has_the_least_window_soon() -> None:
    account = CreditAccount(4 * MIB, 16 * MIB, 0)
    for _ in range(30):
        account.free(MIB, 1)
    assert account.window_bytes == 16 * MIB
    granted = sum(account.free(MIB, turn * SLOW_US) for turn in range(1, 31))
    assert account.window_bytes == 4 * MIB
    assert granted == 30 * MIB - 12 * MIB


def rate_over(round_trip_us: int, account: CreditAccount, bytes_per_us: int, seconds: int = 5) -> float:
    """The share of its pace that a reader reaches: bytes come a round trip after their credit was granted."""
    account.begin()
    piece, now_us, taken = 64 * KIB, 0, 0
    arrivals = deque([(0, account.window_bytes)])
    while now_us < seconds * 1_000_000:
        at_us, size = arrivals.popleft()
        now_us = max(now_us, at_us)
        while size:
            part = min(size, piece)
            now_us += part // bytes_per_us
            size, taken = size - part, taken + part
            if granted := account.free(part, now_us):
                arrivals.append((now_us + round_trip_us, granted))
    return taken / now_us / bytes_per_us


FAR_US = (50_000, 100_000, 200_000)


@pytest.mark.parametrize("round_trip_us", [500, *FAR_US])
def test_a_far_reader_keeps_its_pace(round_trip_us: int) -> None:
    account = CreditAccount(4 * MIB, 16 * MIB, 0, CreditPool())
    account.measured(round_trip_us)
    assert rate_over(round_trip_us, account, 500) > 0.9


@pytest.mark.parametrize("round_trip_us", FAR_US)
def test_a_far_reader_begins_with_what_its_way_takes(round_trip_us: int) -> None:
    """Without a distance the first credit lasts for `CREDIT_SPAN_US`; over a distance for two round trips more."""
    account = CreditAccount(4 * MIB, 16 * MIB, 0, CreditPool())
    account.measured(round_trip_us)
    granted = account.begin()
    assert account.window_bytes == 4 * MIB + granted
    pace = 4 * MIB / CREDIT_SPAN_US
    assert account.window_bytes >= int(pace * (CREDIT_SPAN_US + round_trip_us))
    assert account.begin() == 0, "a second time there is nothing to add"


def test_a_near_reader_begins_with_the_least_window() -> None:
    pool = CreditPool()
    account = CreditAccount(4 * MIB, 16 * MIB, 0, pool)
    assert account.begin() == 0, "nothing was measured"
    account.measured(2_000)
    assert account.begin() == 0
    rate_over(2_000, account, 500)
    assert account.window_bytes == 4 * MIB or pool.left_bytes >= FAR_BYTES_MAX - 4 * MIB


@pytest.mark.parametrize("most", [4, 16, 1_000])
def test_a_limit_of_the_application_holds_over_a_distance(most: int) -> None:
    account = CreditAccount(4 * MIB, most * MIB, 0)
    account.measured(200_000)
    assert account.begin() <= (most - 4) * MIB
    rate_over(200_000, account, 500)
    assert account.limit_bytes == most * MIB
    assert account.window_bytes <= most * MIB


def test_far_streams_together_stay_within_the_pool() -> None:
    rng, pool = random.Random(5), CreditPool(100 * MIB)
    accounts = [CreditAccount(4 * MIB, 16 * MIB, 0, pool) for _ in range(12)]
    for account in accounts:
        account.measured(100_000)
        account.begin()
    now_us = 0
    for _ in range(3_000):
        account = rng.choice(accounts)
        now_us += rng.choice((20, 200, 2_000))
        account.free(account.window_bytes // rng.randint(1, 4), now_us)
        more = [max(each.window_bytes - 16 * MIB, 0) for each in accounts]
        assert sum(more) + pool.left_bytes == 100 * MIB
        assert pool.left_bytes >= 0
    assert max(account.window_bytes for account in accounts) > 16 * MIB
    for account in accounts:
        account.close()
    assert pool.left_bytes == 100 * MIB, "the ends of streams give all of it back"
    for number in range(40):
        accounts[0].free(4 * MIB, now_us + number)
    assert pool.left_bytes == 100 * MIB, "what the application takes after the end takes nothing of it"


def test_the_shortest_of_the_newest_round_trips_counts() -> None:
    account = CreditAccount(4 * MIB, 16 * MIB, 0, CreditPool())
    account.measured(50_000)
    far = account.limit_bytes
    account.measured(1_000_000)  # it waited behind other bytes
    assert account.limit_bytes == far
    for _ in range(MEASURED_COUNT - 1):
        account.measured(1_000)
    assert account.limit_bytes < 18 * MIB
