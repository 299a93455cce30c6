"""Virtual time for a world: the planned events, the one source of random numbers, and the record of what happened."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

from seriatim_broker.testing.virtual_time import Handle, VirtualTime


class Violation(AssertionError):  # noqa: N818 - a finding, named as in the protocol
    """A promise of docs/internals/protocol.md was broken.

    Attributes:
        rule: `I1` to `I14`, `RT` (real time) or `CORE` (the core itself failed).
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Schedule:
    """Events by virtual time, ties in the order in which they were made.

    Attributes:
        witness: If set, is shown each step of a core: the broker, the event (None: its start), and the effects.
    """

    def __init__(self, seed: int, *, trace: bool = False, detailed: bool = False) -> None:
        self.time = VirtualTime()
        self.rng = random.Random(seed)
        self.trace = trace
        self.detailed = detailed
        self.lines: list[str] = []
        self.witness: Callable[[str, Any, list[Any]], object] | None = None
        self.digest = 0

    @property
    def now_us(self) -> int:
        """The virtual time."""
        return self.time.now_us

    @property
    def event_count(self) -> int:
        """How much has happened."""
        return self.time.call_count

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call later; never earlier than what was scheduled for the same time before."""
        self.time.add(self.time.now_us + delay_us, Handle(None, call, arguments))

    def at(self, when_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call at a time, which must not have passed."""
        self.time.add(when_us, Handle(None, call, arguments))

    def run_until(self, until_us: int, event_count_max: int) -> bool:
        """Let everything happen up to a time; False if that needs more events than the limit."""
        return self.time.run_until(until_us, event_count_max)

    def mark(self, who: str, what: str) -> None:
        """Mix into the digest that something happened."""
        self.digest = zlib.crc32(f"{self.time.now_us} {who} {what}".encode(), self.digest)

    def tell(self, who: str, text: str) -> None:
        """A line of the story; callers test `trace` first if making the text costs anything."""
        if self.trace:
            self.lines.append(f"{self.now_us / 1000:10.3f} {who:<10} {text}")
