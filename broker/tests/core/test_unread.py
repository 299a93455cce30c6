"""How near retention is to what a group has not read, and how much is kept: on records, without a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.control.retention import Limits, Policy, Reader, dropped
from seriatim_broker.core.values.chain import Chain, declare_lost, trim
from seriatim_broker.core.values.effects import Led
from seriatim_broker.core.values.positions import BatchPlace
from seriatim_broker.core.values.segment import AT_ZERO, SegmentState, Start
from seriatim_broker.runtime.duties.unread import (
    NO_END_S,
    Figures,
    Nearness,
    Unread,
    figures_of,
    nearness,
    retained,
    unread_messages,
)

from .support import first_chain

NOW_MS = 1_000_000
_OPEN = first_chain().open_segment


def chain_of(sealed_at_ms: tuple[int, ...], *, begin: Start = AT_ZERO) -> Chain:
    """Sealed segments of ten messages and 100 bytes each, and an open one."""
    sealed = (
        replace(
            _OPEN, no=no, base=10 * (no - 1), state=SegmentState.SEALED, sealed_len=10, sealed_checksum=7,
            sealed_bytes=100, sealed_at_ms=at_ms, opened_at_ms=at_ms - 1000,
        )
        for no, at_ms in enumerate(sealed_at_ms, 1)
    )  # fmt: skip
    no = len(sealed_at_ms) + 1
    last = replace(_OPEN, no=no, base=10 * (no - 1), begin=begin, opened_at_ms=NOW_MS - 500)
    return replace(first_chain(), segments=(*sealed, last))


def led_of(chain: Chain, flushed: int = 20, size_bytes: int = 200) -> Led:
    return Led(chain.partition, chain, flushed, size_bytes, ())


async def find(index: int) -> BatchPlace | None:
    """Each message is a batch of 10 bytes; they came 10 ms after each other, the first one 400 ms ago."""
    return BatchPlace(index, index + 1, 10 * index, 10, NOW_MS - 400 + 10 * index, 0)


AGE = Policy(Limits(age_ms=1000))


def reader(no: int, index: int, group: str = "g") -> Reader:
    return Reader(group, no, make_offset(no, index))


async def test_the_group_that_is_furthest_behind_counts() -> None:
    led = led_of(chain_of((NOW_MS - 900, NOW_MS - 500)))
    near = await nearness(led, AGE, [reader(2, 0, "quick"), reader(1, 5, "slow")], NOW_MS, find)
    assert near == Nearness("slow", 0.9, 0.1), "segment 1 goes as a whole when its last message is old enough"


async def test_what_is_read_to_the_end_of_a_segment_is_not_in_danger() -> None:
    led = led_of(chain_of((NOW_MS - 900, NOW_MS - 500)))
    assert await nearness(led, AGE, [reader(1, 10)], NOW_MS, find) == Nearness("g", 0.5, 0.5)


async def test_in_the_open_segment_the_first_unread_message_counts() -> None:
    led = led_of(chain_of(()))
    assert await nearness(led, AGE, [reader(1, 20)], NOW_MS, find) is None, "all is read"
    assert await nearness(led, AGE, [reader(1, 10)], NOW_MS, find) == Nearness("g", 0.3, 0.7)


async def test_a_group_that_went_on_while_cursors_were_read_is_in_no_danger() -> None:
    """The partition was switched meanwhile: the cursor names a segment that the record here does not have yet."""
    led = led_of(chain_of((NOW_MS - 900,)))
    assert await nearness(led, AGE, [reader(3, 0)], NOW_MS, find) is None
    assert await nearness(led, AGE, [reader(3, 0), reader(1, 0, "slow")], NOW_MS, find) == Nearness("slow", 0.9, 0.1)


async def test_a_group_before_the_first_message_that_is_kept_is_at_that_one() -> None:
    led = led_of(trim(chain_of((NOW_MS - 900, NOW_MS - 500)), 2, None, 1))
    assert await nearness(led, AGE, [reader(1, 3)], NOW_MS, find) == Nearness("g", 0.5, 0.5)


async def test_nearness_by_size_is_what_lies_behind_as_a_part_of_the_limit() -> None:
    led = led_of(chain_of((1, 2)))
    by_size = Policy(Limits(size_bytes=400))
    assert await nearness(led, by_size, [reader(1, 0)], NOW_MS, find) == Nearness("g", 0.75, NO_END_S)
    assert await nearness(led, by_size, [reader(3, 10)], NOW_MS, find) == Nearness("g", 0.25, NO_END_S)


async def test_with_unread_kept_its_own_limits_count() -> None:
    led = led_of(chain_of((NOW_MS - 900,)))
    kept = Policy(Limits(age_ms=1000), True, Limits(age_ms=9000))
    assert await nearness(led, kept, [reader(1, 0)], NOW_MS, find) == Nearness("g", 0.1, 8.1)
    for_ever = Policy(Limits(age_ms=1000), True)
    assert await nearness(led, for_ever, [reader(1, 0)], NOW_MS, find) is None


async def test_a_lost_segment_is_passed_and_an_unsettled_one_says_nothing() -> None:
    chain = chain_of((NOW_MS - 900, NOW_MS - 500))
    lost = led_of(declare_lost(chain, 1))
    assert await nearness(lost, AGE, [reader(1, 0)], NOW_MS, find) == Nearness("g", 0.5, 0.5)
    first, *others = chain.segments
    unsettled = replace(first, state=SegmentState.UNSETTLED, sealed_len=None, sealed_checksum=None)
    behind = [replace(segment, base=None) for segment in others]
    stuck = led_of(replace(chain, segments=(unsettled, *behind)))
    assert await nearness(stuck, AGE, [reader(1, 0)], NOW_MS, find) is None


async def test_what_is_kept_is_measured() -> None:
    chain = chain_of((NOW_MS - 900, NOW_MS - 500))
    assert await retained(led_of(chain), NOW_MS, find) == (400, 1.9)
    assert await retained(led_of(trim(chain, 3, Start(4, 9, 40), 3)), NOW_MS, find) == (160, 0.36)
    empty = led_of(chain_of(()), flushed=0, size_bytes=0)
    assert await retained(empty, NOW_MS, find) == (0, 0.0)


def test_figures_are_summed_up() -> None:
    assert figures_of((), ()) == Figures(0, 0.0, 0.0, NO_END_S)
    near = (Nearness("g", 0.5, 8.0), Nearness("h", 0.9, NO_END_S))
    assert figures_of(((7, 3.0), (5, 4.0)), near) == Figures(12, 4.0, 0.9, 8.0)


@pytest.mark.parametrize(
    ("trimmed", "expected"),
    [
        ((1, None, 1), (0, 0)),
        ((2, None, 1), (10, 100)),
        ((2, None, 2), (10, 100)),
        ((3, None, 3), (20, 200)),
        ((3, Start(4, 9, 40), 3), (24, 240)),
    ],
)
def test_what_a_trim_dropped_is_counted(trimmed: tuple[int, Start | None, int], expected: tuple[int, int]) -> None:
    chain = chain_of((1, 2))
    assert dropped(chain, trim(chain, *trimmed)) == expected


def test_what_was_dropped_before_is_not_counted_again() -> None:
    before = trim(chain_of((1, 2)), 3, Start(4, 9, 40), 1)
    assert dropped(before, trim(before, 3, Start(6, 9, 60), 3)) == (2, 20)


async def test_unread_messages_are_counted_for_each_group_that_a_broker_serves() -> None:
    led = led_of(chain_of((NOW_MS - 900, NOW_MS - 500)))
    readers = [
        reader(1, 5, "slow"),
        reader(3, 20, "done"),
        reader(2, 0, "screens/one"),
        replace_served(reader(1, 0, "external")),
        reader(4, 0, "ahead of this record"),
    ]
    assert await unread_messages(led, readers, find) == {"slow": Unread(35, NOW_MS - 900)}, "segment 1 was sealed then"


async def test_what_is_lost_or_dropped_is_not_counted_as_unread() -> None:
    chain = chain_of((NOW_MS - 900, NOW_MS - 700, NOW_MS - 500))
    for record in (chain, declare_lost(chain, 1)):
        led = led_of(trim(record, 3, Start(4, 7, 40), 1))
        assert await unread_messages(led, [reader(1, 0)], find) == {"g": Unread(6 + 20, NOW_MS - 500)}


async def test_the_age_of_an_unread_message_of_the_open_segment_is_its_own() -> None:
    led = led_of(chain_of((NOW_MS - 900,)))
    at_end, inside = reader(1, 10, "at the end of a sealed segment"), reader(2, 7, "inside")
    assert await unread_messages(led, [at_end, inside], find) == {
        "at the end of a sealed segment": Unread(20, NOW_MS - 400),
        "inside": Unread(13, NOW_MS - 330),
    }


async def test_of_many_groups_only_some_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_broker.runtime.duties.unread.TIMED_MAX", 1)
    found = await unread_messages(led_of(chain_of(())), [reader(1, 0, "a"), reader(1, 0, "b")], find)
    assert found == {"a": Unread(20, NOW_MS - 400), "b": Unread(20, 0)}
    assert found["a"].with_more(found["b"]) == Unread(40, NOW_MS - 400, 2)


def replace_served(one: Reader) -> Reader:
    """The same reader, which no broker serves."""
    return one._replace(is_served=False)
