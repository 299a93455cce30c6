"""Which segments may hold the first message at or after a time, against a look at all messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from seriatim_broker.core.values.chain import Chain, trim
from seriatim_broker.core.values.positions import (
    BatchPlace,
    Measure,
    Place,
    first_kept,
    kept_bytes,
    segments_for_time,
)
from seriatim_broker.core.values.segment import Segment, SegmentState, Start

from .support import first_chain

_OPEN = first_chain().open_segment
_Times = Sequence[Sequence[int]]


def _chain(times: _Times, unknown: frozenset[int] = frozenset()) -> Chain:
    """Segments with messages of these times; those in `unknown` were opened over, and were settled later."""
    segments: list[Segment] = []
    floor_ms, is_incomplete = 0, False
    for place, own in enumerate(times):
        state = SegmentState.OPEN if place == len(times) - 1 else SegmentState.SEALED
        segments.append(
            replace(
                _OPEN,
                no=place + 1,
                state=state,
                sealed_len=len(own) if state is SegmentState.SEALED else None,
                append_floor_ms=floor_ms,
                incomplete_table=is_incomplete,
            )
        )
        if place in unknown:
            is_incomplete = True
        else:
            floor_ms = max((floor_ms, *own))
    return replace(first_chain(), segments=tuple(segments))


def _first_at(chain: Chain, times: _Times, time_ms: int) -> tuple[int, int] | None:
    for segment in segments_for_time(chain, time_ms):
        for index, own_ms in enumerate(times[segment.no - 1]):
            if own_ms >= time_ms:
                return segment.no, index
    return None


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_the_first_message_at_or_after_a_time_is_found(steps: list[list[int]], opened_over: set[int]) -> None:
    now_ms = 10
    times: list[list[int]] = []
    for row in steps:
        times.append([])
        for step in row:
            now_ms += step
            times[-1].append(now_ms)
    chain = _chain(times, frozenset(opened_over))
    for time_ms in (-1, 0, *range(9, now_ms + 2)):
        every = [
            (no, index) for no, own in enumerate(times, 1) for index, own_ms in enumerate(own) if own_ms >= time_ms
        ]
        assert _first_at(chain, times, time_ms) == (every[0] if every else None), time_ms


def test_it_looks_into_one_segment_of_ten_thousand() -> None:
    times = [[10 * no] for no in range(10_000)]
    chain = _chain(times)
    assert next(segments_for_time(chain, 50_000)).no == 5_001


def test_an_unsettled_segment_ends_the_search_and_a_lost_one_is_passed_over() -> None:
    times = [[10], [20], [30], [40]]
    chain = _chain(times)
    first, second, third, last = chain.segments
    lost = replace(second, state=SegmentState.LOST)
    assert _first_at(replace(chain, segments=(first, lost, third, last)), times, 15) == (3, 0)
    unsettled = replace(third, state=SegmentState.UNSETTLED, sealed_len=None)
    assert _first_at(replace(chain, segments=(first, second, unsettled, last)), times, 25) is None


def test_a_batch_reaches_an_index_that_it_holds_and_a_time_and_bytes_from_which_it_begins() -> None:
    place = BatchPlace(10, 15, 700, 90, 5_000, 0)
    assert place.reaches(Measure.INDEX, 14)
    assert not place.reaches(Measure.INDEX, 15)
    assert place.reaches(Measure.TIME, 5_000)
    assert not place.reaches(Measure.TIME, 5_001)
    assert place.reaches(Measure.BYTES, 700)
    assert not place.reaches(Measure.BYTES, 701)


def test_the_earliest_message_lies_behind_the_stubs_and_what_is_kept_is_counted_from_there() -> None:
    chain = _chain([[1, 1], [], [2, 2, 2], [3]])
    sizes = {1: 20, 2: 0, 3: 30}
    chain = replace(
        chain,
        segments=tuple(
            replace(s, base={1: 0, 2: 2, 3: 2, 4: 5}[s.no], sealed_bytes=sizes.get(s.no), sealed_checksum=7)
            for s in chain.segments
        ),
    )
    end = Place(4, 1)
    assert (first_kept(chain), kept_bytes(chain, end, 10)) == (Place(1, 0), 60)
    cut = trim(chain, 3, Start(1, 0, 10), 1)
    assert (first_kept(cut), kept_bytes(cut, end, 10)) == (Place(3, 1), 30)
    assert next(s.no for s in segments_for_time(cut, 1)) == 3, "a stub is not asked for a time"
    gone = trim(chain, 4, None, 1)
    assert (first_kept(gone), kept_bytes(gone, end, 10)) == (Place(4, 0), 10)
    unsaid = replace(chain, segments=(replace(chain.segments[0], sealed_bytes=None), *chain.segments[1:]))
    assert kept_bytes(unsaid, end, 10) is None, "its size is not known"
