"""What a round trip adds to the limits of a producer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from seriatim._core.distance import ANSWER_TRIPS, NEAR_US, RATE_BYTES_PER_S, WINDOW_BATCHES, distance_of


@pytest.mark.parametrize("round_trip_us", [0, 500, NEAR_US])
def test_a_broker_that_is_near_adds_nothing(round_trip_us: int) -> None:
    assert distance_of(round_trip_us) == (0, 0, 0)


@pytest.mark.parametrize("round_trip_us", [50_000, 200_000])
def test_a_full_window_lasts_until_the_answer_of_a_far_broker(round_trip_us: int) -> None:
    found = distance_of(round_trip_us)
    answer_s = 2 * round_trip_us / 1e6  # over the master to another member and back
    assert WINDOW_BATCHES * found.batch_bytes >= RATE_BYTES_PER_S * answer_s
    assert found.link_bytes >= WINDOW_BATCHES * found.batch_bytes
    assert found.link_bytes <= RATE_BYTES_PER_S * ANSWER_TRIPS * round_trip_us / 1e6


def test_a_larger_round_trip_never_adds_less() -> None:
    found = [distance_of(round_trip_us) for round_trip_us in range(0, 400_000, 7_000)]
    for earlier, later in pairwise(found):
        assert all(small <= large for small, large in zip(earlier, later, strict=True))
