"""Places and times as users write them. `recorded/plain.txt` has the commands that take them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from seriatim.cli._options.places import parse
from seriatim.cli._rendering.times import span, utc
from seriatim_api.ids import make_offset

from .memory import FIRST_S, MemoryCluster
from .test_commands import Run, cluster, run

__all__ = ["cluster", "run"]


def test_a_time_without_a_zone_says_which_one_was_taken(run: Run, cluster: MemoryCluster) -> None:
    cluster.make("t")
    _, _, err = run("consume", "t", "--from", "2023-11-14T22:13:27", "--output", "raw")
    assert "is taken in this machine's zone" in err
    _, _, err = run("consume", "t", "--from", "-15m", "--output", "raw")
    assert "# -15m is 20" in err


Zone = Callable[[str], None]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Sets the zone of this machine, in the form of POSIX, which needs no files."""

    def set_zone(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


_NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone(timedelta(hours=2), "EET"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("earliest", "earliest"),
        ("latest", "end"),
        ("3:1200", make_offset(3, 1200)),
        ("-15m", _NOW - timedelta(minutes=15)),
        ("2h ago", _NOW - timedelta(hours=2)),
        ("1 d ago", _NOW - timedelta(days=1)),
        ("2026-11-22T10:00", datetime(2026, 11, 22, 10, tzinfo=_NOW.tzinfo)),
        ("2026-11-22", datetime(2026, 11, 22, tzinfo=_NOW.tzinfo)),
        ("2026-11-22T10:00Z", datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("2026-11-22 10:00:30.5+01:00", datetime(2026, 11, 22, 9, 0, 30, 500_000, tzinfo=UTC)),
    ],
)
def test_places_are_written_as_people_write_them(here: Zone, text: str, wanted: object) -> None:
    here("EET-2")
    assert parse(text, _NOW).at == wanted


def test_the_zone_of_a_time_is_explained(here: Zone) -> None:
    here("EET-2")
    ours = parse("2026-11-22T10:00", _NOW).explain()
    assert ours == "2026-11-22T10:00 is taken in this machine's zone, EET: 2026-11-22 08:00:00 UTC"
    assert parse("2026-11-22T10:00Z", _NOW).explain() == "2026-11-22T10:00Z is 2026-11-22 10:00:00 UTC"
    assert parse("3:4", _NOW).explain() is None


_ZURICH, _NEW_YORK = "CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0"


@pytest.mark.parametrize(
    ("zone", "now", "text", "wanted"),
    [
        (_ZURICH, "2026-01-15", "2025-07-01T10:00", "2025-07-01 08:00:00 UTC"),
        (_ZURICH, "2026-07-15", "2026-01-31T10:00", "2026-01-31 09:00:00 UTC"),
        (_ZURICH, "2026-10-26", "2026-10-24T10:00", "2026-10-24 08:00:00 UTC"),
        (_NEW_YORK, "2026-03-09", "2026-03-07T10:00", "2026-03-07 15:00:00 UTC"),
        ("IST-5:30", "2026-01-15", "2025-07-01T10:00", "2025-07-01 04:30:00 UTC"),
    ],
)
def test_a_written_time_has_the_offset_of_its_own_date(here: Zone, zone: str, now: str, text: str, wanted: str) -> None:
    here(zone)
    told = parse(text, datetime.fromisoformat(now).astimezone()).explain()
    assert told is not None
    assert told.endswith(wanted)


@pytest.mark.parametrize("zone", ["UTC0", _ZURICH, _NEW_YORK])
@pytest.mark.parametrize(
    "text", ["0001-01-01", "0001-01-01T00:00+01:00", "9999-12-31T23:59-05:00", "1969-12-31", "-99999w", f"-{'9' * 30}d"]
)
def test_times_that_no_message_has_are_refused(here: Zone, zone: str, text: str) -> None:
    here(zone)
    with pytest.raises(ValueError, match=r"there (is|was) no message"):
        parse(text, _NOW)


def test_durations_have_three_digits_and_the_unit_that_fits() -> None:
    measured = (0.0000123, 0.01606, 0.0999, 0.85, 0.9996, 1.234, 9.999, 42.824, 125.4, 4000)
    assert [span(seconds) for seconds in measured] == [
        "0.0123 ms", "16.1 ms", "99.9 ms", "850 ms", "1.00 s", "1.23 s", "10.0 s", "42.8 s", "125 s", "4,000 s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (FIRST_S * 1000, "2023-11-14 22:13:20 UTC"),
        (2**63 - 1, f"{2**63 - 1} ms since 1970"),
        (-(2**63), f"-{2**63} ms since 1970"),
    ],
)
def test_each_time_of_a_message_can_be_shown(time_ms: int, text: str) -> None:
    assert utc(time_ms) == text
