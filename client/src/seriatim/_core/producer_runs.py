"""Producer runs: which send attempts are on their way together, within the window, and when a run ends. Pure.

After a refusal, a broken stream or a move, the next producer run begins with the oldest batch that is not settled. All
other batches follow in order before any new one. If a batch was acknowledged while an earlier one was not, it stays in
the queue and is sent again with the others. Otherwise a broker that has lost the producer table would find a sequence
gap in its place.

Send attempts of earlier producer runs may still be open. Only those of the current one count for the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .producer_types import Send
from .send_attempts import Batch
from .state import State

LATE_US: Final = 20_000
"""A client that notices a silence so much later than the silence was due did not run meanwhile."""


class ProducerRun(State):
    """The current producer run, and the streams of earlier ones with open send attempts."""

    __slots__ = (
        "_streams",
        "alive",
        "epoch",
        "in_flight_bytes",
        "in_flight_count",
        "is_excused",
        "number",
        "reply_due_us",
        "sent_count",
        "window_batches",
        "window_bytes",
    )

    def __init__(self, window_batches: int, window_bytes: int) -> None:
        self.number = 0
        self.alive = False  # whether more batches may be sent in it
        self.epoch = 0  # the producer epoch of all its batches
        self.sent_count = 0  # how many batches at the front of the queue were sent in it
        self.in_flight_count = 0  # how many of those have no answer in it
        self.in_flight_bytes = 0
        self.reply_due_us = 0  # counted from the oldest batch in flight, or from the last answer
        self.is_excused = False  # this silence was counted again once, because the client did not run
        self.window_batches = window_batches
        self.window_bytes = window_bytes
        self._streams: dict[int, int] = {}  # by producer run; of all that may have open send attempts

    @property
    def silence_due_us(self) -> int | None:
        """The time from which the master is silent for too long; None if nothing is in flight."""
        return self.reply_due_us if self.alive and self.in_flight_count else None

    def expect_reply(self, due_us: int) -> None:
        """The master has sent a reply, or owes one from now on. If nothing comes until `due_us`, it is silent."""
        self.reply_due_us = due_us
        self.is_excused = False

    def excuse(self, now_us: int, due_us: int) -> bool:
        """A silence is noticed. Returns whether it does not count, because the client itself did not run.

        Then it counts from now on, until `due_us`. Without it:

        1. The application blocks the event loop for more than `reply_timeout_ms`, or the whole machine stands still.
        2. The master's replies arrive meanwhile. The client sends the next batch before it reads them.
        3. It complains of a master that has answered all, and the partition moves.

        This happens once for a silence. Otherwise a client whose event loop is always late would never complain.
        """
        if self.is_excused or now_us - self.reply_due_us <= LATE_US:
            return False
        self.reply_due_us = due_us
        self.is_excused = True
        return True

    def start(self, epoch: int, batches: Iterable[Batch]) -> None:
        """Begin the next producer run, with nothing sent. `batches` has all with open earlier send attempts."""
        used = {run for batch in batches for run in batch.open_producer_runs}
        self._streams = {run: stream for run, stream in self._streams.items() if run in used}
        self.number += 1
        self.alive = True
        self.epoch = epoch
        # Rule `client-forgets` (GAP, I13): a producer run begins with the oldest batch that is not settled. Without it:
        # 1. P sends a. The partition moves to broker group B before a master has stored a.
        # 2. P begins the next producer run after a, with b.
        # 3. Bm, the new master, expects a's sequence, and refuses b as a gap. P never sends a again.
        self.sent_count = self.in_flight_count = self.in_flight_bytes = 0

    def has_room(self, batch: Batch) -> bool:
        """Whether the window has room for the batch. One batch may always be in flight."""
        if self.in_flight_count == 0:
            return True
        return (
            self.in_flight_count < self.window_batches and self.in_flight_bytes + batch.size_bytes <= self.window_bytes
        )

    def begin_send_attempt(self, batch: Batch, stream: int, route_epoch: int) -> Send:
        """Send the next batch of the queue."""
        assert self.alive
        assert batch.epoch == self.epoch
        starts_run = self.number not in self._streams
        self._streams[self.number] = stream
        batch.begin_send_attempt(self.number)
        self.sent_count += 1
        self.in_flight_count += 1
        self.in_flight_bytes += batch.size_bytes
        # Rule `client-cut-anew` (GAP): a batch keeps its number and its messages over all send attempts. Without it:
        # 1. P sends messages 0, 1 and 2 as one batch. The master stores it, but P gets no answer.
        # 2. P resends messages 0 and 1 as one batch, and message 2 as another.
        # 3. The master knows only a batch of 3 messages. It refuses both parts, although their messages are in the log.
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

    def end_send_attempt(self, batch: Batch, run: int, *, proven: bool) -> bool:
        """End a batch's send attempt in producer run `run`, current or earlier. Returns whether it was open."""
        if not batch.end_send_attempt(run, proven=proven):
            return False
        if run == self.number:
            self.in_flight_count -= 1
            self.in_flight_bytes -= batch.size_bytes
        return True

    def end_stream(self, stream: int, batches: Iterable[Batch]) -> None:
        """The stream has ended, so no reply comes on it: its open send attempts end as unknown."""
        for run in [run for run, used in self._streams.items() if used == stream]:
            del self._streams[run]
            for batch in batches:
                self.end_send_attempt(batch, run, proven=False)

    def forget(self, batch: Batch, at: int) -> None:
        """The batch at position `at` leaves the queue."""
        if self.number in batch.open_producer_runs:
            self.in_flight_count -= 1
            self.in_flight_bytes -= batch.size_bytes
        if at < self.sent_count:
            self.sent_count -= 1

    def abandon(self) -> None:
        """All batches leave the queue."""
        self.alive = False
        self.sent_count = self.in_flight_count = self.in_flight_bytes = 0
