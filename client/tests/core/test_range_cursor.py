"""A reader of a range finds out by itself that something is missing, came twice, or is not what was sealed."""

from __future__ import annotations

import zlib

import pytest
from seriatim._core.ranges import Loss, RangeCursor
from seriatim_api.batch import BatchHeader, make_header, parse_header, place
from seriatim_api.errors import OrderViolationError
from seriatim_api.ids import make_offset

_P = 7


def _crc(seed: int, data: bytes) -> int:
    return zlib.crc32(data, seed)


def _batches(segment: int, *counts: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    index = value = 0
    for count in counts:
        raw = make_header(
            partition=_P, message_count=count, producer=b"p" * 16, producer_epoch=0, base_sequence=index,
            first_timestamp_ms=0, last_timestamp_ms=0, body_length=4, body_crc=index,
        )  # fmt: skip
        where = {"segment": segment, "base_index": index, "append_time_ms": 5, "previous_checksum": value}
        header = place(parse_header(raw), **where, checksum=_crc)
        found.append(header)
        index, value = header.end_index, header.checksum
    return found


def _cursor(start: tuple[int, int] = (1, 0), end: tuple[int, int] = (3, 0)) -> RangeCursor:
    return RangeCursor(_P, make_offset(*start), make_offset(*end), _crc)


def test_batches_of_two_segments_follow_one_another() -> None:
    first, second = _batches(1, 3, 2), _batches(2, 4)
    cursor = _cursor()
    assert [cursor.take(header) for header in first] == [(0, 3), (0, 2)]
    cursor.end_segment(1, 5, first[-1].checksum)
    assert [cursor.take(header) for header in second] == [(0, 4)]
    cursor.end_segment(2, 4, second[-1].checksum)
    assert cursor.is_done


def test_a_range_begins_and_ends_within_batches() -> None:
    first = _batches(1, 3, 4)
    cursor = _cursor((1, 1), (1, 5))
    assert [cursor.take(header) for header in first] == [(1, 3), (0, 2)]
    assert cursor.is_done


def test_a_batch_that_is_missing_or_comes_again_is_refused() -> None:
    first = _batches(1, 3, 2, 2)
    cursor = _cursor()
    cursor.take(first[0])
    for wrong in (first[2], first[0]):
        with pytest.raises(OrderViolationError):
            cursor.take(wrong)
    cursor.take(first[1])
    assert cursor.offset == make_offset(1, 5)


def test_a_batch_of_another_chain_is_refused() -> None:
    ours, others = _batches(1, 3, 2), _batches(1, 2, 1, 2)
    cursor = _cursor()
    cursor.take(ours[0])
    with pytest.raises(OrderViolationError):
        cursor.take(others[2])


def test_a_first_batch_that_does_not_begin_a_chain_is_refused() -> None:
    cursor = _cursor()
    header = _batches(1, 1)[0]
    later = place(header, segment=1, base_index=0, append_time_ms=5, previous_checksum=9, checksum=_crc)
    with pytest.raises(OrderViolationError):
        cursor.take(later)


def test_a_damaged_header_and_another_partition_are_refused() -> None:
    (header,) = _batches(1, 3)
    with pytest.raises(OrderViolationError):
        _cursor().take(header._replace(checksum=header.checksum ^ 1))
    with pytest.raises(OrderViolationError):
        RangeCursor(_P + 1, make_offset(1, 0), make_offset(2, 0), _crc).take(header)


def test_a_segment_does_not_end_before_all_of_it_was_read() -> None:
    first = _batches(1, 3, 2)
    cursor = _cursor()
    cursor.take(first[0])
    with pytest.raises(OrderViolationError):
        cursor.end_segment(1, 5, first[1].checksum)
    with pytest.raises(OrderViolationError):
        cursor.take(_batches(2, 1)[0])
    cursor.take(first[1])
    with pytest.raises(OrderViolationError):
        cursor.end_segment(1, 5, first[1].checksum ^ 1)
    cursor.end_segment(1, 5, first[1].checksum)
    assert cursor.offset == make_offset(2, 0)


def test_a_skip_carries_the_chain_over_what_is_skipped() -> None:
    first = _batches(2, 3, 2, 2)
    cursor = _cursor((2, 0), (3, 0))
    assert cursor.skip(2, 0, 3, first[0].checksum) == 3
    with pytest.raises(OrderViolationError):
        cursor.skip(2, 0, 3, first[0].checksum)
    with pytest.raises(OrderViolationError):
        cursor.take(first[2])
    assert cursor.take(first[1]) == (0, 2)


def test_only_what_lies_in_the_range_counts_as_skipped() -> None:
    first = _batches(2, 5, 5)
    cursor = _cursor((2, 2), (2, 7))
    assert cursor.skip(2, 0, 5, first[0].checksum) == 3
    assert cursor.skip(2, 5, 10, first[1].checksum) == 2
    assert cursor.is_done


def test_numbers_of_empty_segments_are_passed_over_between_segments_only() -> None:
    first, third = _batches(1, 3), _batches(3, 2)
    cursor = _cursor((1, 0), (4, 0))
    cursor.take(first[0])
    with pytest.raises(OrderViolationError):
        cursor.take(third[0])
    cursor.end_segment(1, 3, first[0].checksum)
    assert cursor.take(third[0]) == (0, 2)


def test_the_end_of_a_segment_without_messages_may_be_that_of_several() -> None:
    cursor = _cursor((1, 3), (6, 0))
    cursor.end_segment(1, 3, 77)
    cursor.end_segment(5, 0, 0)
    assert cursor.is_done


def test_behind_what_was_dropped_the_chain_of_checksums_goes_on() -> None:
    first = _batches(1, 3, 2, 4)
    cursor = _cursor()
    cursor.drop(make_offset(1, 0), make_offset(1, 3), first[0].checksum)
    with pytest.raises(OrderViolationError):
        cursor.take(first[2])
    assert cursor.take(first[1]) == (0, 2)
    other = _cursor()
    other.drop(make_offset(1, 0), make_offset(1, 3), first[0].checksum ^ 1)
    with pytest.raises(OrderViolationError):
        other.take(first[1])


def test_what_is_lost_is_told_as_far_as_the_range_reaches() -> None:
    cursor = _cursor((1, 2), (2, 7))
    assert cursor.lose(1, 2) == Loss(make_offset(1, 2), make_offset(2, 0), declared=True)
    dropped = cursor.drop(make_offset(1, 2), make_offset(2, 9), 77)
    assert dropped == Loss(make_offset(2, 0), make_offset(2, 7), declared=False)
    assert cursor.is_done
    with pytest.raises(OrderViolationError):
        _cursor((1, 2)).lose(1, 4)
