"""How long an asker waits beyond the time that a broker may hold its question."""

from __future__ import annotations

import pytest
from seriatim_api.network.round_trips import (
    ADDRESSES_MAX,
    KEPT,
    LATE_S,
    TRIPS,
    UNKNOWN_S,
    WAY_S_MAX,
    RoundTrips,
    way_metadata,
    way_of,
)

HERE, THERE = "a:1", "b:1"


def test_the_way_follows_the_shortest_of_the_newest_measurements() -> None:
    trips = RoundTrips()
    assert trips.way_s(HERE) == LATE_S + TRIPS * UNKNOWN_S
    for took_s in (0.3, 0.05, 2.0):
        trips.took(HERE, took_s)
    trips.took(THERE, 0.001)
    assert trips.round_trip_s(HERE) == 0.05
    assert trips.way_s(HERE) == LATE_S + TRIPS * 0.05
    for _ in range(KEPT):
        trips.took(HERE, 0.2)
    assert trips.round_trip_s(HERE) == 0.2, "the path has become longer"


def test_an_unknown_address_is_as_far_as_the_farthest_known_one() -> None:
    trips = RoundTrips()
    trips.took(HERE, 0.001)
    assert trips.round_trip_s(THERE) == UNKNOWN_S
    trips.took(HERE, 0.5)
    assert trips.round_trip_s(THERE) == UNKNOWN_S, "the shortest of each address counts"
    trips.took("c:1", 0.4)
    assert (trips.round_trip_s(HERE), trips.round_trip_s(THERE)) == (0.001, 0.4)


def test_a_late_answer_doubles_the_way_until_one_comes_in_time() -> None:
    trips = RoundTrips()
    trips.took(HERE, 0.0)
    for expected in (2, 4, 4):
        trips.late(HERE)
        assert trips.way_s(HERE) == expected * LATE_S
    assert trips.round_trip_s(HERE) == 0.0
    trips.answered(HERE)
    assert trips.way_s(HERE) == LATE_S


def test_measurements_have_limits() -> None:
    trips = RoundTrips()
    trips.took(HERE, 3600.0)
    assert trips.way_s(HERE) == WAY_S_MAX
    for number in range(ADDRESSES_MAX):
        trips.took(f"c:{number}", -1.0)
        trips.late(f"c:{number}")
    assert trips.round_trip_s(HERE) == UNKNOWN_S, "the first one is forgotten"
    assert trips.round_trip_s("c:1") == 0.0


@pytest.mark.parametrize(
    ("text", "way_s"),
    [("0", 0.0), ("250", 0.25), ("99999", 10.0), ("1" * 30, None), ("-1", None), ("", None), ("²", None), (None, None)],
)
def test_what_a_caller_says_is_read_or_left_out(text: str | None, way_s: float | None) -> None:
    assert way_of(text) == way_s


def test_what_is_written_is_read_again() -> None:
    assert way_of(way_metadata(0.3)[1]) == 0.3
