"""What was reported as gone is a set of offsets: only what is new is reported, and it is counted once."""

from __future__ import annotations

import pytest
from seriatim_api import reported_gaps as module
from seriatim_api.ids import make_offset as at
from seriatim_api.reported_gaps import Told, tell, told_below


def told_of(*gaps: Told) -> tuple[Told, ...]:
    told: tuple[Told, ...] = ()
    for gap in gaps:
        told, _ = tell(told, gap)
    return told


SOME = told_of(Told(at(1, 10), at(1, 20), 10), Told(at(1, 30), at(1, 40), 10))


@pytest.mark.parametrize(
    ("gap", "parts"),
    [
        (Told(at(1, 0), at(1, 5), 5), [Told(at(1, 0), at(1, 5), 5)]),
        (Told(at(1, 12), at(1, 20), 8), []),
        (Told(at(1, 5), at(1, 15), 10), [Told(at(1, 5), at(1, 10), 5)]),
        (Told(at(1, 15), at(1, 35), 20), [Told(at(1, 20), at(1, 30), 10)]),
        (
            Told(at(1, 0), at(1, 50), 50),
            [Told(at(1, 0), at(1, 10), 10), Told(at(1, 20), at(1, 30), 10), Told(at(1, 40), at(1, 50), 10)],
        ),
        (Told(at(1, 30), at(2, 7), 22), [Told(at(1, 40), at(2, 7), 12)]),
        (Told(at(1, 30), at(2, 0), 10), []),
        (Told(at(1, 35), at(2, 0)), [Told(at(1, 40), at(2, 0))]),
        (Told(at(1, 50), at(1, 50), 0), []),
    ],
    ids=[
        "apart", "inside", "grows down", "joins two", "around all", "into the next segment",
        "to the end of the segment, which is the same place", "unknown number", "empty",
    ],
)  # fmt: skip
def test_parts_of_a_gap_that_are_new(gap: Told, parts: list[Told]) -> None:
    told, new = tell(SOME, gap)
    assert new == parts
    assert tell(told, gap) == (told, []), "it is reported once"


def test_growth_over_segments_is_counted_once() -> None:
    told, parts = tell((), Told(at(1, 8), at(3, 0), 45))
    assert [part.messages for part in parts] == [45]
    _, parts = tell(told, Told(at(1, 8), at(4, 0), 50))
    assert parts == [Told(at(3, 0), at(4, 0), 5)]


def test_part_is_told_although_the_numbers_do_not_fit() -> None:
    """The number of a gap that begins in a segment that left the record is a guess."""
    told, _ = tell((), Told(at(2, 0), at(3, 4), 22))
    _, parts = tell(told, Told(at(1, 8), at(3, 4), 5))
    assert parts == [Told(at(1, 8), at(2, 0), 0)]


def test_ranges_that_touch_are_one() -> None:
    assert told_of(*(Told(at(1, index), at(1, index + 1), 1) for index in (0, 2, 1))) == (Told(at(1, 0), at(1, 3), 3),)


def test_lowest_ranges_are_forgotten_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_MAX", 2)
    told = told_of(*(Told(at(1, index), at(1, index + 1), 1) for index in (0, 4, 8)))
    assert told == (Told(at(1, 4), at(1, 5), 1), Told(at(1, 8), at(1, 9), 1))
    _, parts = tell(told, Told(at(1, 0), at(1, 9), 9))
    assert sum(part.messages for part in parts) == 7, "nothing is left out"


@pytest.mark.parametrize(
    ("offset", "kept"),
    [
        (at(1, 50), SOME),
        (at(1, 40), SOME),
        (at(1, 35), (SOME[0], Told(at(1, 30), at(1, 35)))),
        (at(1, 30), SOME[:1]),
        (at(1, 0), ()),
    ],
)
def test_what_is_read_anew_is_not_told(offset: int, kept: tuple[Told, ...]) -> None:
    assert told_below(SOME, offset) == kept
