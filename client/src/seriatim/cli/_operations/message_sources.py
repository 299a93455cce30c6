"""The sources of `produce`: lines of a file or a pipe as they come, or generated messages; and the pace of sends.

A source ends at the end of the input, or when its caller stops reading. It knows nothing about topics.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

READ_SIZE_BYTES: Final = 256 << 10
LINE_SIZE_BYTES_MAX: Final = 64 << 20
"""The longest line. The command refuses a longer one, because no topic takes such a message."""

_PAD: Final = b"abcdefghijklmnopqrstuvwxyz0123456789" * 30


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. The value None is null."""

    key: bytes | None
    value: bytes | None


class LineTooLongError(ValueError):
    """A line of the input is longer than `LINE_SIZE_BYTES_MAX`."""


class NoKeyError(ValueError):
    """A line of the input has no separator, so it has no key."""


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines of a file descriptor, without their line ends. Each item has the lines that one read returned.

    Lines from a terminal or a pipe come at once. The last line may lack its line end.

    Raises:
        LineTooLongError: A line is over `LINE_SIZE_BYTES_MAX`.
        OSError: The descriptor cannot be read.
    """
    rest = b""
    while True:
        chunk = await _read(descriptor)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_SIZE_BYTES_MAX:
            raise LineTooLongError(f"a line is longer than {LINE_SIZE_BYTES_MAX:,} bytes")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def _read(descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a regular file is always ready, and epoll refuses it
        await _readable(descriptor)
    return os.read(descriptor, READ_SIZE_BYTES)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # devices such as /dev/null are always ready, and epoll refuses them
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def split_key(line: bytes, separator: bytes | None, key: bytes | None) -> Message:
    """The message of a line. With a `separator`, the text before it is the key. Otherwise `key` is.

    Raises:
        NoKeyError: The line has no separator, and there is no `key` either.
    """
    if separator is None:
        return Message(key, line)
    before, found, after = line.partition(separator)
    if not found and key is None:  # without a key, the message would not be in order with others of its key
        raise NoKeyError(f"has no {separator.decode(errors='replace')!r}")
    return Message(before, after) if found else Message(key, line)


def parse_header(text: str) -> tuple[str, bytes | None]:
    """Read a header: `NAME=VALUE`, or `NAME` for a null value.

    Raises:
        ValueError: It is not text.
    """
    name, found, value = text.partition("=")
    name.encode()  # raises if the terminal's bytes were no text
    return name, value.encode() if found else None


def generate(size_bytes: int, key: bytes | None) -> Iterator[Message]:
    """Endless numbered messages of `size_bytes` bytes each, or longer if the number needs more."""
    for number in itertools.count():
        prefix = b"%d " % number
        yield Message(key, (prefix + _PAD * (size_bytes // len(_PAD) + 1))[: max(size_bytes, len(prefix) - 1)])


_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)([kM]?)(?:/s)?")
_UNITS: Final = {"": 1, "k": 1_000, "M": 1_000_000}


def parse_rate(text: str) -> float:
    """Read a rate in messages per second: `500`, `500/s`, `2k/s`.

    Raises:
        ValueError: The text is not such a rate, or it is zero.
    """
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if rate <= 0:
        raise ValueError(f"a rate is written like 500/s or 2k/s, not {text!r}")
    return rate


class Pace:
    """Spreads sends evenly over time. After a delay it catches up at most one second's worth of messages.

    Args:
        rate: Messages per second.
        now: The time at the start, in seconds of a monotonic clock.
    """

    def __init__(self, rate: float, now: float) -> None:
        assert rate > 0
        self._rate = rate
        self._due = now

    def take(self, now: float) -> float:
        """Take the next place in time. Returns the seconds to wait for it (0 or less: it is due now)."""
        self._due = max(self._due, now - 1.0)
        wait_s = self._due - now
        self._due += 1 / self._rate
        return wait_s
