"""Virtual time: a heap of what happens when, one source of chance, and the record of what happened."""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from typing import Any


class Violation(AssertionError):  # noqa: N818 - a finding, named as in the protocol
    """A promise of PROTOCOL's section 8 was broken.

    Attributes:
        rule: `I1` to `I14`, `RT` (real time) or `CORE` (the core itself failed).
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Schedule:
    """Events by virtual time, ties in the order in which they were made."""

    def __init__(self, seed: int, *, trace: bool = False, detailed: bool = False) -> None:
        self.now_us = 0
        self.rng = random.Random(seed)
        self.trace = trace
        self.detailed = detailed
        self.lines: list[str] = []
        self.event_count = 0
        self.digest = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call later; never earlier than what was scheduled for the same time before."""
        self.at(self.now_us + delay_us, call, *arguments)

    def at(self, when_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call at a time, which must not have passed."""
        assert when_us >= self.now_us
        self._serial += 1
        heapq.heappush(self._heap, (when_us, self._serial, call, arguments))

    def run_one(self) -> bool:
        """Let the next thing happen; False if there is nothing."""
        if not self._heap:
            return False
        self.now_us, _, call, arguments = heapq.heappop(self._heap)
        self.event_count += 1
        call(*arguments)
        return True

    def mark(self, who: str, what: str) -> None:
        """Mix into the digest that something happened."""
        self.digest = zlib.crc32(f"{self.now_us} {who} {what}".encode(), self.digest)

    def tell(self, who: str, text: str) -> None:
        """A line of the story; callers test `trace` first where making the text costs anything."""
        if self.trace:
            self.lines.append(f"{self.now_us / 1000:10.3f} {who:<10} {text}")
