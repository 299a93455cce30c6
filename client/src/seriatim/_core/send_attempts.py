"""A batch and its send attempts: whether the client knows that it is stored. Pure.

Each `Send` is a send attempt. Its producer run names it. It ends in one of three ways: as ok; as proven not stored (an
error whose class has `outcome_known`: refused or truncated); or as unknown (any other error, or its stream broke).
Until then it is open.

A batch with an open or an unknown send attempt is *doubtful*. Only a batch that is not doubtful may be called `failed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .producer_types import ReplyError
from .state import State

_NEVER_SENT: Final = 0


@dataclass(slots=True, eq=False)
class Batch(State):
    """A batch that is not settled, or that was acknowledged before an earlier one."""

    batch_id: int
    message_count: int
    size_bytes: int
    deadline_us: int
    epoch: int
    base_sequence: int
    first_producer_run: int = _NEVER_SENT  # the first producer run in which it had its present number
    open_producer_runs: tuple[int, ...] = ()
    unknown_end: bool = False
    acked: bool = False
    last_error: ReplyError | None = None

    @property
    def doubtful(self) -> bool:
        """Whether a send attempt may have stored it, as far as the client knows."""
        return self.unknown_end or bool(self.open_producer_runs)

    def was_sent_in(self, run: int) -> bool:
        """Whether a reply to this producer run can be about it. In earlier ones, its number was another batch's."""
        return _NEVER_SENT < self.first_producer_run <= run

    def begin_send_attempt(self, run: int) -> None:
        """Note that it is sent in the producer run `run`."""
        assert run not in self.open_producer_runs
        if self.first_producer_run == _NEVER_SENT:
            self.first_producer_run = run
        self.open_producer_runs = (*self.open_producer_runs, run)

    def end_send_attempt(self, run: int, *, proven: bool) -> bool:
        """End the send attempt of the producer run `run`. Returns whether it was open.

        Args:
            run: The producer run.
            proven: Whether the outcome is known. If not, it stays unknown for ever.
        """
        if run not in self.open_producer_runs:
            return False
        self.open_producer_runs = tuple(other for other in self.open_producer_runs if other != run)
        # Rule `client-last-attempt` (I10): a batch is failed only if every send attempt failed. Without it:
        # 1. P sends a. Am stores it in segment 1, but P gets no answer. Both members of broker group A die.
        # 2. Segment 2 opens on broker group B. P resends a, and Bm stores it there. It is not committed.
        # 3. Segment 2 is sealed below a, so Bm answers `failed`. P calls a failed.
        # 4. Am comes back, and segment 1 is settled with a in it. Consumers get a.
        self.unknown_end = self.unknown_end or not proven
        return True

    def renumber(self, epoch: int, base_sequence: int) -> None:
        """Get another number. Allowed only if no broker can have the batch: under the new number it is a new batch."""
        assert not self.doubtful
        assert not self.acked
        self.epoch = epoch
        self.base_sequence = base_sequence
        self.first_producer_run = _NEVER_SENT
