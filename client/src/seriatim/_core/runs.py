"""Runs: which attempts are on their way together, within the window, and when a run is over. Pure.

After a refusal, a broken stream or a move, the next run begins with the oldest batch that is not settled, and all
others follow in order before any new one. A batch that was acknowledged while an earlier one was not stays in the queue
and goes along, for a broker that has lost the table would find a gap in its place.

Attempts of earlier runs may still be open; only those of the current run count for the window.
"""

from __future__ import annotations

from collections.abc import Iterable

from .attempts import Batch
from .producer_types import Send
from .state import State


class Run(State):
    """The current run."""

    __slots__ = (
        "_streams",
        "alive",
        "epoch",
        "in_flight_bytes",
        "in_flight_count",
        "number",
        "reply_due_us",
        "sent_count",
        "window_batches",
        "window_bytes",
    )

    def __init__(self, window_batches: int, window_bytes: int) -> None:
        self.number = 0
        self.alive = False  # whether it may carry more
        self.epoch = 0  # of all its batches
        self.sent_count = 0  # how many batches at the front of the queue went out in it
        self.in_flight_count = 0  # of those, not answered in it
        self.in_flight_bytes = 0
        self.reply_due_us = 0  # of the oldest in flight, or since the last answer
        self.window_batches = window_batches
        self.window_bytes = window_bytes
        self._streams: dict[int, int] = {}  # by run; of all that may have open attempts

    @property
    def silence_due_us(self) -> int | None:
        """When the master will have been silent for too long; None if nothing is in flight."""
        return self.reply_due_us if self.alive and self.in_flight_count else None

    def start(self, epoch: int, batches: Iterable[Batch]) -> None:
        """The next run begins, with nothing sent; `batches` are all that may have open attempts of earlier ones."""
        used = {run for batch in batches for run in batch.open_runs}
        self._streams = {run: stream for run, stream in self._streams.items() if run in used}
        self.number += 1
        self.alive = True
        self.epoch = epoch
        self.sent_count = self.in_flight_count = self.in_flight_bytes = 0

    def has_room(self, batch: Batch) -> bool:
        """Whether the window takes the batch; one may always be in flight."""
        if self.in_flight_count == 0:
            return True
        return (
            self.in_flight_count < self.window_batches and self.in_flight_bytes + batch.size_bytes <= self.window_bytes
        )

    def attempt(self, batch: Batch, stream: int, route_epoch: int) -> Send:
        """Send the next batch of the queue."""
        assert self.alive
        assert batch.epoch == self.epoch
        starts_run = self.number not in self._streams
        self._streams[self.number] = stream
        batch.begin_attempt(self.number)
        self.sent_count += 1
        self.in_flight_count += 1
        self.in_flight_bytes += batch.size_bytes
        return Send(
            stream,
            batch.batch_id,
            batch.message_count,
            batch.epoch,
            batch.base_sequence,
            self.number,
            starts_run,
            route_epoch,
        )

    def end_attempt(self, batch: Batch, run: int, *, proven: bool) -> bool:
        """The attempt of a batch in `run`, this one or an earlier one, has ended; whether it was open."""
        if not batch.end_attempt(run, proven=proven):
            return False
        if run == self.number:
            self.in_flight_count -= 1
            self.in_flight_bytes -= batch.size_bytes
        return True

    def end_stream(self, stream: int, batches: Iterable[Batch]) -> None:
        """No reply comes from there any more: its open attempts have an unknown end."""
        for run in [run for run, used in self._streams.items() if used == stream]:
            del self._streams[run]
            for batch in batches:
                self.end_attempt(batch, run, proven=False)

    def forget(self, batch: Batch, at: int) -> None:
        """The batch at position `at` leaves the queue."""
        if self.number in batch.open_runs:
            self.in_flight_count -= 1
            self.in_flight_bytes -= batch.size_bytes
        if at < self.sent_count:
            self.sent_count -= 1

    def abandon(self) -> None:
        """All batches leave the queue."""
        self.alive = False
        self.sent_count = self.in_flight_count = self.in_flight_bytes = 0
