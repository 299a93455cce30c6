"""One key that has messages or a record."""

from __future__ import annotations

from collections import deque
from typing import Final

from ...values.keyed import KeyPhase
from ...values.states import State

STALE_ENTRIES_MAX: Final = 10_000
"""How many entries of a heap that do not count any more are kept, and as many as count."""

RECORD_BYTES: Final = 256
"""About the bytes of a record of a key, or of its list, without the name. A key that is delayed has one, a key with a
list two."""


class Key(State):
    """One key that has messages or a record.

    Attributes:
        name: Its name.
        live: Indexes of its messages in the cursor segment that are read and not passed, ascending.
        aside: Offsets that were set aside, older than `live`; () as long as there were none.
        aside_first: The number of the first of them, counted from the first one that the list ever had.
        first: The offset of its first message, as its record says, until that is read; 0: it is known otherwise.
        phase: None: the key has no record.
        turn: How often an administrator released it.
        attempts: How many attempts on its first message have failed.
        ready_at_ms: When the next attempt may begin, by the wall clock. If it is forwarded: when the last one failed.
        delay_ms: How long the next attempt waits from the failure on; 0: not known.
        sequence: The number that the forwarder gave the first message; 0: none.
        error: The last error.
        token: Of its grant; 0: no consumer works on it.
        given_below: A consumer was given its messages below this offset, and it is not said by `attempts`; 0: none was.
        ready_us: When it becomes ready, by the monotonic clock; 0: it does not wait for a time. See `wait_until`.
        is_delayed: It has an entry in `delayed` for that time.
        is_queued: It is among the ready keys.
    """

    __slots__ = (
        "aside",
        "aside_first",
        "attempts",
        "delay_ms",
        "error",
        "first",
        "given_below",
        "is_delayed",
        "is_queued",
        "live",
        "name",
        "phase",
        "ready_at_ms",
        "ready_us",
        "sequence",
        "token",
        "turn",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.live: list[int] = []
        self.aside: deque[int] | tuple[()] = ()
        self.aside_first = 0
        self.first = 0
        self.phase: KeyPhase | None = None
        self.turn = 0
        self.attempts = 0
        self.ready_at_ms = 0
        self.delay_ms = 0
        self.sequence = 0
        self.error = ""
        self.token = 0
        self.given_below = 0
        self.ready_us = 0
        self.is_delayed = False
        self.is_queued = False

    @property
    def is_held(self) -> bool:
        """Whether an administrator or the forwarder must act before its messages are given out."""
        return self.phase in (KeyPhase.PARKED, KeyPhase.FORWARDING)

    @property
    def aside_end(self) -> int:
        """The number after the last offset of its list."""
        return self.aside_first + len(self.aside)

    def note_given(self, offset: int) -> None:
        """A consumer was given its messages up to this one, and may have worked on them: they come again flagged."""
        self.given_below = max(self.given_below, offset + 1)
