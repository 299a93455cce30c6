"""Retention on the command line: how it is written and shown, and that a shorter one says first what goes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim import TopicSettings
from seriatim.cli._operations import retention_change
from seriatim.cli._options.amounts import NUMBER_MAX, format_duration, format_size, parse_duration_ms, parse_size
from seriatim_api.ids import make_offset

from .memory import FIRST_S, SEGMENT, MemoryCluster
from .test_commands import Run, cluster, run

__all__ = ["cluster", "run"]

DAY_MS = 86_400_000


# ---- amounts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("72h", 3 * DAY_MS),
        ("7d", 7 * DAY_MS),
        ("90s", 90_000),
        ("1d12h", 36 * 3_600_000),
        ("1.5 hours", 5_400_000),
        ("2 weeks", 14 * DAY_MS),
        ("10 Min", 600_000),
        ("250ms", 250),
        ("forever", 0),
        ("none", 0),
        ("0", 0),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("10GiB", 10 << 30),
        ("10Gi", 10 << 30),
        ("500MB", 500_000_000),
        ("500m", 500_000_000),
        ("1.5 TiB", 3 << 39),
        ("1048576", 1 << 20),
        ("64 kib", 64 << 10),
        ("7b", 7),
        ("none", 0),
        ("0", 0),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "7", "-7d", "7 fortnights", "d", "7d-", "1e9d", "999999999999999d", "7d 3x", "0s"]
)
def test_what_is_no_duration_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s, 12h, 7d or 1d12h; or forever"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "10 XB", "10iB", "1e3", "9999999999EiB", "ten"])
def test_what_is_no_size_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="such as 500MB, 10GiB or 1048576; or none"):
        parse_size(text)


@given(st.integers(1, NUMBER_MAX // 1000))
def test_a_duration_is_shown_as_it_is_read(seconds: int) -> None:
    shown = format_duration(seconds * 1000)
    assert parse_duration_ms(shown) == seconds * 1000


@given(st.integers(1, NUMBER_MAX // 2))
def test_a_size_is_shown_to_one_digit(size_bytes: int) -> None:
    assert abs(parse_size(format_size(size_bytes)) - size_bytes) <= size_bytes * 0.051


# ---- in words -------------------------------------------------------------------------------------------


def keeping(ms: int = 0, size_bytes: int = 0, unread: bool = False, **more: Any) -> TopicSettings:
    return TopicSettings(retention_ms=ms, retention_bytes=size_bytes, retain_unread=unread, **more)


@pytest.mark.parametrize(
    ("retention", "words"),
    [
        (keeping(), "for ever"),
        (keeping(3 * DAY_MS), "3d"),
        (keeping(3 * DAY_MS, 10 << 30), "3d or 10GiB a partition"),
        (keeping(0, 1 << 20, True), "1MiB a partition, unread for ever"),
        (
            keeping(3 * DAY_MS, 0, True, unread_ms_max=7 * DAY_MS, unread_bytes_max=50 << 30),
            "3d, unread 7d or 50GiB a partition",
        ),
    ],
)
def test_retention_is_told_in_words(retention: TopicSettings, words: str) -> None:
    assert retention_change.kept(retention) == words


# ---- which change is shorter ----------------------------------------------------------------------------

UNREAD = keeping(DAY_MS, 0, True, unread_ms_max=7 * DAY_MS)


@pytest.mark.parametrize(
    ("before", "change", "shorter"),
    [
        (keeping(), {"retention_ms": DAY_MS}, True),
        (keeping(DAY_MS), {"retention_ms": 2 * DAY_MS}, False),
        (keeping(DAY_MS), {"retention_ms": 0}, False),
        (keeping(DAY_MS), {"retention_ms": DAY_MS - 1}, True),
        (keeping(DAY_MS), {"retention_bytes": 1 << 30}, True),
        (keeping(0, 1 << 30), {"retention_bytes": 1 << 31}, False),
        (UNREAD, {"retain_unread": False}, True),
        (UNREAD, {"unread_ms_max": 2 * DAY_MS}, True),
        (UNREAD, {"unread_ms_max": 0}, False),
        (keeping(DAY_MS), {"retain_unread": True, "unread_ms_max": 2 * DAY_MS}, False),
    ],
)
def test_a_change_is_shorter_if_messages_may_go_that_would_stay(
    before: TopicSettings, change: dict[str, Any], shorter: bool
) -> None:
    assert retention_change.is_shorter(before, retention_change.after(before, change)) is shorter


# ---- what goes ------------------------------------------------------------------------------------------


@pytest.fixture
def filled(run: Run, cluster: MemoryCluster) -> MemoryCluster:
    """Ten messages of 1 MiB, of a second each, on each of two partitions; group g has read four of partition 0."""
    cluster.make("t", 2)
    run("produce", "t", "--size", "10", "--count", "20")
    cluster.cursors["t", "g", 0] = 4
    return cluster


async def losses(
    cluster: MemoryCluster, wanted: TopicSettings, now_s: int = FIRST_S + 10
) -> list[retention_change.Loss]:
    async with cluster.client(None) as client:
        asked: Any = client
        return await retention_change.losses(asked, "t", wanted, datetime.fromtimestamp(now_s, UTC))


async def test_what_goes_by_age_is_told_with_who_has_not_read_it(filled: MemoryCluster) -> None:
    found = await losses(filled, keeping(3000))
    assert [(f.partition, f.start, f.end, f.messages) for f in found] == [
        (number, make_offset(SEGMENT, 0), make_offset(SEGMENT, 7), 7) for number in (0, 1)
    ]
    assert [f.unread_by for f in found] == [("g",), ("g",)]
    (only,) = (f for f in await losses(filled, keeping(6000)) if f.partition == 0)
    assert (only.messages, only.unread_by, only.since_ms) == (4, (), FIRST_S * 1000)


async def test_what_goes_by_size_is_told(filled: MemoryCluster) -> None:
    filled.dropped[1] = 8
    (only,) = await losses(filled, keeping(0, 3 << 20))
    assert (only.partition, only.end, only.messages) == (0, make_offset(SEGMENT, 7), 7)


async def test_what_is_not_read_stays_up_to_its_own_limits(filled: MemoryCluster) -> None:
    (only,) = await losses(filled, keeping(1000, unread=True))
    assert (only.partition, only.messages, only.unread_by) == (0, 4, ()), "of partition 1 the group has read nothing"
    found = await losses(filled, keeping(1000, 0, True, unread_ms_max=3000))
    assert [(f.messages, f.unread_by) for f in found] == [(7, ("g",)), (7, ("g",))], "older than the cap"
    found = await losses(filled, keeping(1000, 0, True, unread_bytes_max=5 << 20))
    assert [f.messages for f in found] == [5, 5]


async def test_nothing_goes_of_what_is_within_all_limits(filled: MemoryCluster) -> None:
    assert await losses(filled, keeping(60_000, 100 << 20)) == []
    assert await losses(filled, keeping(NUMBER_MAX)) == []


def test_where_no_broker_says_what_goes_the_command_asks_all_the_same(run: Run, filled: MemoryCluster) -> None:
    filled.silent.add("t")
    status, _, err = run("topic", "alter", "t", "--retention", "7d")
    assert (status, "# which messages are dropped is not known now: no broker reports" in err) == (2, True)
    assert run("topic", "alter", "t", "--retention", "7d", "--yes")[1] == "t has 2 partitions, kept: 7d\n"
    status, out, err = run("topic", "describe", "t")
    assert (status, "# which messages are kept is not known now: no broker reports" in err) == (0, True)
    assert "kept: 7d" in out
