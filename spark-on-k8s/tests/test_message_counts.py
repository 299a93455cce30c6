"""Counting across segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim_api.ids import make_offset
from seriatim_spark.reading.message_counts import Lengths, Span


def test_in_one_segment_nothing_needs_to_be_known() -> None:
    known = Lengths()
    start, end = make_offset(4, 10), make_offset(4, 30)
    assert known.suffice(start, end)
    assert known.count(start, end) == 20
    assert known.advance(start, end, 5) == make_offset(4, 15)
    assert known.advance(start, end, 500) == end


def test_two_forms_of_one_place_have_nothing_between() -> None:
    known = Lengths(make_offset(1, 0), make_offset(2, 0), [Span(1, 0, 800)])
    assert known.count(make_offset(1, 800), make_offset(2, 0)) == 0
    assert known.count(make_offset(1, 799), make_offset(2, 0)) == 1


def test_what_is_not_known_is_said() -> None:
    known = Lengths(make_offset(2, 0), make_offset(4, 0), [Span(2, 0, 5), Span(3, 0, 5)])
    assert known.suffice(make_offset(2, 1), make_offset(4, 9))
    assert not known.suffice(make_offset(1, 1), make_offset(4, 9))
    assert not known.suffice(make_offset(2, 1), make_offset(5, 0))
    with pytest.raises(AssertionError):
        known.count(make_offset(1, 1), make_offset(4, 9))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_counting_and_going_on_agree_with_a_list_of_all_messages(lengths: list[int], data: st.DataObject) -> None:
    everything = [make_offset(no, index) for no, length in enumerate(lengths, 1) for index in range(length)]
    start = make_offset(1, 0)
    end = make_offset(len(lengths), lengths[-1])
    known = Lengths(start, end, [Span(no, 0, length) for no, length in enumerate(lengths, 1) if length])
    begin = data.draw(st.sampled_from([*everything, start, end]))
    rest = [offset for offset in everything if offset >= begin]
    assert known.count(begin, end) == len(rest)
    count = data.draw(st.integers(0, len(everything) + 1))
    reached = known.advance(begin, end, count)
    assert known.count(begin, reached) == min(count, len(rest))
    assert [offset for offset in rest if offset < reached] == rest[:count]
