"""Frames of links over TCP, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.wire.frame_reader import (
    BUFFER_SIZE_BYTES,
    KEPT_SIZE_BYTES_MAX,
    PREFIX_SIZE_BYTES,
    FrameReader,
    with_prefix,
)
from seriatim_api.wire.frames import FrameError

LIMIT = 300_000


def frame(kind: int, content: bytes) -> bytes:
    return b"".join(with_prefix(kind, (content,)))


def receive(reader: FrameReader, data: bytes, at_once: int) -> list[tuple[int, bytes]]:
    """Give the reader the bytes, at most this many at a time, as a socket does."""
    found = []
    while data:
        room = reader.room()
        count = min(len(room), at_once, len(data))
        assert count, "there is always room"
        room[:count] = data[:count]
        data = data[count:]
        reader.received(count)
        while (read := reader.read()) is not None:
            found.append((read[0], bytes(read[1])))
    return found


def content(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


sizes = st.one_of(st.integers(0, 200), st.integers(0, LIMIT), st.sampled_from([BUFFER_SIZE_BYTES - PREFIX_SIZE_BYTES]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), sizes), max_size=8), st.integers(1, 200_000))
def test_any_split_of_the_bytes_gives_the_same_frames(frames: list[tuple[int, int]], at_once: int) -> None:
    sent = [(kind, content(size)) for kind, size in frames]
    data = b"".join(frame(kind, body) for kind, body in sent)
    at_once = max(at_once, len(data) // 2_000)
    assert receive(FrameReader(LIMIT), data, at_once) == sent


@given(st.binary(max_size=3_000), st.integers(1, 500))
def test_any_bytes_are_frames_or_an_error_and_take_no_more_memory_than_is_allowed(data: bytes, at_once: int) -> None:
    reader = FrameReader(LIMIT)
    try:
        receive(reader, data, at_once)
    except FrameError as exc:
        assert str(LIMIT) in str(exc)  # noqa: PT017 - both ends are right
    assert reader.size_bytes <= LIMIT + PREFIX_SIZE_BYTES + BUFFER_SIZE_BYTES


@pytest.mark.parametrize("length", [LIMIT + 1, 1 << 31, (1 << 32) - 1])
def test_a_frame_that_is_too_large_is_refused_before_memory_is_taken_for_it(length: int) -> None:
    reader = FrameReader(LIMIT)
    with pytest.raises(FrameError, match="at most 300000 bytes"):
        receive(reader, length.to_bytes(4, "little") + bytes([4]), 5)
    assert reader.size_bytes == BUFFER_SIZE_BYTES


def test_a_large_frame_is_received_where_it_is_read_and_nothing_behind_it_is() -> None:
    reader = FrameReader(LIMIT)
    data = frame(4, content(LIMIT))
    receive(reader, data[:1_000], 1_000)
    assert len(reader.room()) == len(data) - 1_000
    assert receive(reader, data[1_000:], LIMIT) == [(4, content(LIMIT))]


def test_a_place_that_was_very_large_is_given_back() -> None:
    reader = FrameReader(2 * KEPT_SIZE_BYTES_MAX)
    body = bytes(KEPT_SIZE_BYTES_MAX)
    assert receive(reader, frame(4, body), 1 << 20) == [(4, body)]
    assert reader.size_bytes > KEPT_SIZE_BYTES_MAX
    assert receive(reader, frame(4, b"x"), 1 << 20) == [(4, b"x")]
    assert reader.size_bytes == BUFFER_SIZE_BYTES


def test_small_frames_come_in_small_portions_also_after_a_large_one() -> None:
    """All that was received is taken in one turn of the event loop."""
    reader = FrameReader(2 * KEPT_SIZE_BYTES_MAX)
    receive(reader, frame(4, bytes(KEPT_SIZE_BYTES_MAX // 2)), 1 << 20)
    assert reader.size_bytes > BUFFER_SIZE_BYTES
    assert len(reader.room()) <= BUFFER_SIZE_BYTES
