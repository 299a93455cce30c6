"""Finds the frames in the bytes of a TCP connection: of a link between brokers, or of a stream of a client.

A frame is a prefix of five bytes, and its content:

    4 bytes   length of the content, little-endian
    1 byte    kind of the content

The reader gives the place to which the next bytes are received. A large frame is received into the place where it is
read: nothing gathers it from pieces. A frame's length is checked before memory is taken for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from seriatim_api.wire.frames import FrameError

HELLO_SIZE_BYTES_MAX: Final = 4 << 10
"""Largest content before the hello was read: a stranger can make a broker keep only so much."""

BUFFER_SIZE_BYTES: Final = 64 << 10
"""The place for received bytes, unless a larger frame comes."""

KEPT_SIZE_BYTES_MAX: Final = 4 << 20
"""A place that grew above it is given back as soon as it is empty."""

_PREFIX: Final = struct.Struct("<IB")
PREFIX_SIZE_BYTES: Final = _PREFIX.size


def with_prefix(kind: int, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The pieces of a frame, of the pieces of its content."""
    return [_PREFIX.pack(sum(map(len, pieces)), kind), *pieces]


class FrameReader:
    """Reads the frames of one connection in their order.

    Args:
        content_size_bytes_max: Largest content that is accepted. It may be raised later.
    """

    __slots__ = ("_buffer", "_end", "_start", "content_size_bytes_max")

    def __init__(self, content_size_bytes_max: int = HELLO_SIZE_BYTES_MAX) -> None:
        self.content_size_bytes_max = content_size_bytes_max
        self._buffer = memoryview(bytearray(BUFFER_SIZE_BYTES))
        self._start = self._end = 0  # of the bytes that were received and not read

    @property
    def size_bytes(self) -> int:
        """Bytes of the place."""
        return len(self._buffer)

    def room(self) -> memoryview:
        """The place for the next bytes. Frames that were read before are not valid any more.

        Call it only if `read` has just returned None, or at the beginning.
        """
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_SIZE_BYTES_MAX:
                self._buffer = memoryview(bytearray(BUFFER_SIZE_BYTES))
        frame_bytes = self._frame_size_bytes()
        if self._start + frame_bytes > len(self._buffer):
            self._make_room(frame_bytes)
        frame_end = self._start + frame_bytes
        # The bytes after a large frame stay in the socket, so that they are not moved when the next frame is large.
        # Small frames come in at most `BUFFER_SIZE_BYTES` at a time, also after a large one has made the place large:
        # all that was received is taken in one turn of the event loop, and everything else waits meanwhile.
        return self._buffer[self._end : max(frame_end, self._end + BUFFER_SIZE_BYTES)]

    def received(self, count: int) -> None:
        """This many bytes were written to the beginning of `room`."""
        self._end += count
        assert self._end <= len(self._buffer)

    def read(self) -> tuple[int, memoryview] | None:
        """Kind and content of the next frame, if it has arrived as a whole. The content is valid until `room`.

        Raises:
            FrameError: The next frame is larger than allowed.
        """
        if self._end - self._start < PREFIX_SIZE_BYTES:
            return None
        length, kind = _PREFIX.unpack_from(self._buffer, self._start)
        if length > self.content_size_bytes_max:
            raise FrameError(f"a frame has at most {self.content_size_bytes_max} bytes, not {length}")
        begin = self._start + PREFIX_SIZE_BYTES
        if self._end - begin < length:
            return None
        self._start = begin + length
        return kind, self._buffer[begin : begin + length]

    def _frame_size_bytes(self) -> int:
        """Bytes of the frame that has begun, as far as it is known."""
        if self._end - self._start < PREFIX_SIZE_BYTES:
            return PREFIX_SIZE_BYTES
        length: int = _PREFIX.unpack_from(self._buffer, self._start)[0]
        assert length <= self.content_size_bytes_max, "`read` has refused it"
        return PREFIX_SIZE_BYTES + length

    def _make_room(self, frame_bytes: int) -> None:
        """Move the frame that has begun to the beginning of the place, or of a larger one."""
        rest = self._buffer[self._start : self._end]
        if frame_bytes > len(self._buffer):
            self._buffer = memoryview(bytearray(frame_bytes + BUFFER_SIZE_BYTES))
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
