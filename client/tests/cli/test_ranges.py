"""`seriatim consume` without a group, and `seriatim topic offsets`, over a cluster in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from seriatim.cli import _connect
from seriatim.cli._places import parse
from seriatim.cli._root import main
from seriatim.cli._times import span, utc
from seriatim_api.ids import make_offset

from .memory import FIRST_S, MemoryCluster, message_at

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Topic `t` with partitions of 10 and 5 messages, a message a second."""
    found = MemoryCluster()
    monkeypatch.setattr(_connect, "client", found.client)
    found.make("t", 2)
    for partition, count in ((0, 10), (1, 5)):
        for index in range(count):
            found.logs["t", partition].append(message_at("t", partition, index, b"%d-%d" % (partition, index)))
    return found


@pytest.fixture
def run(cluster: MemoryCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls a command; its status, output and notes."""

    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str, str]:
        status = 0
        try:
            main(list(words))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call


def _values(out: str) -> list[str]:
    return out.split()


def test_without_a_group_all_partitions_are_printed_to_their_ends(run: Run) -> None:
    status, out, err = run("consume", "t", "--output", "raw")
    assert status == 0
    assert _values(out) == [f"0-{n}" for n in range(10)] + [f"1-{n}" for n in range(5)]
    assert "15 messages" in err


def test_a_range_has_a_beginning_and_an_end(run: Run) -> None:
    words = ("consume", "t", "--partition", "0", "--from", "3:2", "--until", "3:5", "--output", "raw")
    assert _values(run(*words)[1]) == ["0-2", "0-3", "0-4"]
    at = datetime.fromtimestamp(FIRST_S + 7, UTC).isoformat()
    status, out, err = run("consume", "t", "-p", "0", "--from", at, "--output", "raw")
    assert (status, _values(out)) == (0, ["0-7", "0-8", "0-9"])
    assert "is 2023-11-14 22:13:27 UTC" in err
    assert _values(run("consume", "t", "-p", "1", "--from", "latest", "--output", "raw")[1]) == []


def test_a_time_without_a_zone_says_which_one_was_taken(run: Run) -> None:
    _, _, err = run("consume", "t", "--from", "2023-11-14T22:13:27", "--output", "raw")
    assert "is taken in this machine's zone" in err
    _, _, err = run("consume", "t", "--from", "-15m", "--output", "raw")
    assert "# -15m is 20" in err


def test_the_last_messages_of_each_partition(run: Run, cluster: MemoryCluster) -> None:
    assert _values(run("consume", "t", "--last", "2", "--output", "raw")[1]) == ["0-8", "0-9", "1-3", "1-4"]
    status, out, err = run("consume", "t", "--last", "7", "--output", "raw")
    assert (status, len(_values(out))) == (0, 12)
    assert "partition 1 has only 5 messages" in err
    words = ("consume", "t", "-p", "0", "--last", "2", "--until", "3:5", "--output", "raw")
    assert _values(run(*words)[1]) == ["0-3", "0-4"]
    cluster.dropped[0] = 9
    status, out, err = run("consume", "t", "-p", "0", "--last", "3", "--output", "raw")
    assert (status, _values(out)) == (0, ["0-9"])
    assert "only 1 message" in err


def test_what_retention_dropped_is_noted(run: Run, cluster: MemoryCluster) -> None:
    cluster.dropped[0] = 4
    status, out, err = run("consume", "t", "-p", "0", "--from", "3:1", "--output", "raw")
    assert (status, _values(out)[0]) == (0, "0-4")
    assert "from 3:1 to 3:4: dropped by retention" in err


def test_a_count_ends_it(run: Run) -> None:
    assert _values(run("consume", "t", "--count", "12", "--output", "raw")[1])[-1] == "1-1"


def test_a_segment_in_the_way_of_the_end_is_told(run: Run, cluster: MemoryCluster) -> None:
    cluster.blocked.add(1)
    assert "partition 1: messages behind 3:5 cannot be read" in run("consume", "t")[2]
    assert "3:5*" in run("topic", "offsets", "t")[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--from", "3:2"), "an offset is of one partition"),
        (("--from", "yesterday"), "is none of"),
        (("--from", "2026-13-01"), "is none of"),
        (("--from", "-99999999999d"), "before 1970"),
        (("--last", "3", "--from", "-1h"), "--last counts back"),
        (("--last", "0"), "--last"),
        (("--follow", "--until", "-1h"), "--follow has no end"),
        (("--group", "g", "--last", "3"), "goes without --group"),
        (("--group", "g", "--partition", "1"), "goes without --group"),
        (("--group", "g", "--from", "1:5"), "an offset is of one partition"),
        (("--history", "x"), "goes with --group"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, words: tuple[str, ...], text: str) -> None:
    status, out, err = run("consume", "t", *words)
    assert status == 2
    assert not out
    assert text in " ".join(err.replace("│", " ").split())


def test_a_beginning_behind_the_end_is_refused(run: Run) -> None:
    status, _, err = run("consume", "t", "-p", "0", "--from", "3:5", "--until", "3:2")
    assert status != 0
    assert "behind its end at 3:2" in err


def test_offsets_are_shown(run: Run) -> None:
    status, out, _ = run("topic", "offsets", "t")
    assert status == 0
    assert out.splitlines()[1].split() == ["0", "3:0", "3:10", "10"]
    at = datetime.fromtimestamp(FIRST_S + 7, UTC).isoformat()
    out = run("topic", "offsets", "t", "--at", at)[1]
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["3:7", "-"]
    rows = json.loads(run("--output", "json", "topic", "offsets", "t", "--at", at)[1])
    assert rows[1] == {"partition": 1, "earliest": "3:0", "end": "3:5", "messages": 5, "blocked": False, "at": None}
    assert run("topic", "offsets", "t", "--at", "3:1")[0] == 2


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
