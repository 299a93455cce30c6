"""The demo's data: the file's events in the order of time, and the fold, whose bytes must equal those of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pyarrow as pa
import pytest

from e2e.demo import flights
from e2e.demo.flights import event_number, load_events, read_csv
from e2e.demo.rebuild import Rebuilder, canonical, differences, digest, expected

PART = 20_000


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The file is unpacked and read once for all tests of this module, not by each call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flights, "_read_flights", cache(flights._read_flights))
        yield


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return load_events(PART)


def rebuilt(events: pa.Table) -> Rebuilder:
    rebuilder = Rebuilder()
    rebuilder.apply_all(events["key"].to_pylist(), events["value"].to_pylist())
    return rebuilder


def test_all_events_are_told_once() -> None:
    """The numbers are counted by hand from the file's columns: 8,255 flights without departure, 8,713 without arrival
    time, …
    """
    everything = load_events()
    assert len(everything) == 1_264_226
    text = b"".join(everything["value"].to_pylist()).decode()
    counts = {kind: text.count(f'"event":"{kind}"') for kind in flights.KINDS}
    assert counts == {
        "scheduled": 336_776,
        "departed": 328_521,
        "arrived": 328_063,
        "cancelled": 8_255,
        "delayed": 128_432,
        "overdue": 133_004,
        "diverted": 1_175,
    }


def test_columns_fit_together(events: pa.Table) -> None:
    assert len(events) == PART
    assert all(a <= b for a, b in pairwise(events["timestamp"].to_pylist()))
    assert [event_number(value) for value in events["value"].to_pylist()] == list(range(PART))
    sizes = [len(value) for value in events["value"].to_pylist()]
    assert min(sizes) > 80
    assert max(sizes) < 150
    first = json.loads(events["value"][0].as_py())
    assert first["event"] == "scheduled"
    assert first["n"] == 0


def test_a_part_is_the_beginning_of_the_whole(events: pa.Table) -> None:
    assert load_events(100).equals(events.slice(0, 100))
    assert len(load_events(0)) == 0


def test_a_flight_tells_its_story(events: pa.Table) -> None:
    """The first row of the file is the flight of 5:15 to Houston.

    It leaves 2 minutes late and arrives 11 minutes late.
    """
    story = [
        json.loads(value)
        for key, value in zip(events["key"].to_pylist(), events["value"].to_pylist(), strict=True)
        if key == b"N14228" and b"UA1545" in value and b"2013-01-01" in value
    ]
    assert [(event["event"], event["late"]) for event in story] == [
        ("scheduled", None),
        ("delayed", None),
        ("departed", 2),
        ("overdue", None),
        ("arrived", 11),
    ]


def test_rebuilt_equals_the_file(events: pa.Table) -> None:
    wanted = expected(PART)
    result = rebuilt(events)
    assert differences(result.histories(), wanted) == []
    assert result.to_bytes() == canonical(wanted)
    assert result.digest() == digest(wanted)
    assert result.event_count == PART


@pytest.mark.slow
def test_everything_rebuilt_equals_the_file() -> None:
    assert rebuilt(load_events()).to_bytes() == canonical(expected())


def spoiled(events: pa.Table, fault: str) -> tuple[list[bytes], list[bytes]]:
    """Swap two successive events of one aircraft in the middle of the stream, or spoil one of them."""
    keys, values = events["key"].to_pylist(), events["value"].to_pylist()
    first = next(n for n in range(PART // 2, PART) if keys[n] in keys[n + 1 :])
    second = keys.index(keys[first], first + 1)
    if fault == "swap":
        values[first], values[second] = values[second], values[first]
    elif fault == "drop":
        del keys[first], values[first]
    elif fault == "double":
        keys.insert(second, keys[first])
        values.insert(second, values[first])
    else:
        keys[first] = b"N00000"
    return keys, values


@pytest.mark.parametrize("fault", ["swap", "drop", "double", "another aircraft"])
def test_every_fault_of_order_changes_the_bytes(events: pa.Table, fault: str) -> None:
    wanted = rebuilt(events)
    result = Rebuilder()
    keys, values = spoiled(events, fault)
    result.apply_all(keys, values)
    assert result.digest() != wanted.digest()
    assert differences(result.histories(), wanted.histories())


def test_every_pair_of_neighbours_counts(events: pa.Table) -> None:
    """If any two successive events of an aircraft are swapped, the bytes change."""
    keys, values = events["key"].to_pylist(), events["value"].to_pylist()
    busiest = max(set(keys), key=keys.count)
    story = [value for key, value in zip(keys, values, strict=True) if key == busiest]
    assert len(story) > 10
    whole = Rebuilder()
    whole.apply_all([busiest] * len(story), story)
    for n in range(len(story) - 1):
        swapped = Rebuilder()
        swapped.apply_all([busiest] * len(story), [*story[:n], story[n + 1], story[n], *story[n + 2 :]])
        assert swapped.digest() != whole.digest()


def test_aircraft_may_interleave_in_any_way(events: pa.Table) -> None:
    """Partitions are read in parallel, so only the order within an aircraft is promised."""
    pairs = list(zip(events["key"].to_pylist(), events["value"].to_pylist(), strict=True))
    pairs.sort(key=lambda pair: hash(pair[0]) % 6)  # this sort is stable: one partition after the other
    result = Rebuilder()
    result.apply_all([key for key, _ in pairs], [value for _, value in pairs])
    assert result.digest() == rebuilt(events).digest()


def test_missing_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(flights.FlightsError, match="pip install"):
        read_csv()
