"""A batch and its attempts: what is known of whether it is stored. Pure.

Each Send is an attempt, named by its run. It ends as ok, as proven not stored (an error whose class says
`outcome_known`: refused or truncated), or as unknown (any other error, or its stream broke). Until then it is open. A
batch with an open or an unknown attempt is *doubtful*; only one that is not may be called `failed`.
"""

from __future__ import annotations

from typing import Final

from .producer_types import Enqueue, ReplyError
from .state import State

_NEVER_SENT: Final = 0


class Batch(State):
    """A batch that is not settled, or was acknowledged out of its turn."""

    __slots__ = (
        "acked",
        "base_sequence",
        "batch_id",
        "deadline_us",
        "epoch",
        "first_run",
        "last_error",
        "message_count",
        "open_runs",
        "size_bytes",
        "unknown_end",
    )

    def __init__(self, event: Enqueue, deadline_us: int, epoch: int, base_sequence: int) -> None:
        self.batch_id = event.batch_id
        self.message_count = event.message_count
        self.size_bytes = event.size_bytes
        self.deadline_us = deadline_us
        self.epoch = epoch
        self.base_sequence = base_sequence
        self.first_run = _NEVER_SENT  # with its present number
        self.open_runs: tuple[int, ...] = ()
        self.unknown_end = False
        self.acked = False
        self.last_error: ReplyError | None = None

    @property
    def doubtful(self) -> bool:
        """Whether some attempt may have stored it, for all we know."""
        return self.unknown_end or bool(self.open_runs)

    def was_sent_in(self, run: int) -> bool:
        """Whether a reply to the run can speak of it: of earlier runs, the number meant another batch."""
        return _NEVER_SENT < self.first_run <= run

    def begin_attempt(self, run: int) -> None:
        """It goes out in `run`."""
        assert run not in self.open_runs
        if self.first_run == _NEVER_SENT:
            self.first_run = run
        self.open_runs = (*self.open_runs, run)

    def end_attempt(self, run: int, *, proven: bool) -> bool:
        """End the attempt of `run`; whether it was open. If not `proven`, nobody will ever know how it ended."""
        if run not in self.open_runs:
            return False
        self.open_runs = tuple(other for other in self.open_runs if other != run)
        self.unknown_end = self.unknown_end or not proven
        return True

    def renumber(self, epoch: int, base_sequence: int) -> None:
        """Take another number. Only a batch that is nowhere may: under the new number it is a new batch."""
        assert not self.doubtful
        assert not self.acked
        self.epoch = epoch
        self.base_sequence = base_sequence
        self.first_run = _NEVER_SENT
