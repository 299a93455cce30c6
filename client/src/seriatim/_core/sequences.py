"""The queue: all batches that are not settled, in their order, with their numbers. Pure.

A number is a producer epoch and a base sequence. In a producer epoch the numbers follow one another without a hole. A
batch keeps its number over all send attempts. Only `abandonment` changes it.

*A refusal also ends the batches after it in the producer run.* After a broker refused a batch of a producer run, it
takes no later batch of that run. And when it truncates a batch, it truncates everything above it too. So if an answer
proves that batch b of run r is not stored, it proves the same for each later batch of run r. No other reply is needed.

It follows: if a batch is not doubtful, no batch after it is, because each of their send attempts was after one of its
send attempts. (`abandonment.give_up` asserts this.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .producer_runs import ProducerRun
from .producer_types import Enqueue, Replied, ReplyError
from .send_attempts import Batch
from .state import State


@dataclass(slots=True, eq=False)
class BatchQueue(State):
    """The batches of a producer on a partition, oldest first, and the run that sends them."""

    producer_run: ProducerRun
    batches: deque[Batch] = field(default_factory=deque)
    size_bytes: int = 0
    epoch: int = 0  # the producer epoch of the next batch; below, its sequence
    next_sequence: int = 0
    is_owned: bool = False  # the producer epoch is that of an owner, and no other one may begin here
    ended: ReplyError | None = None  # so the producer has ended

    def append(self, event: Enqueue, deadline_us: int) -> None:
        """Number a new batch and put it after all others."""
        count, size_bytes = event.message_count, event.size_bytes
        self.batches.append(Batch(event.batch_id, count, size_bytes, deadline_us, self.epoch, self.next_sequence))
        self.size_bytes += size_bytes
        self.next_sequence += count

    def find(self, reply: Replied) -> Batch | None:
        """The batch that the reply is about; None if no batch has this number any more."""
        for batch in self.batches:
            if batch.base_sequence == reply.base_sequence and batch.epoch == reply.producer_epoch:
                return batch if batch.was_sent_in(reply.producer_run) else None
        return None

    def acknowledge(self, batch: Batch) -> None:
        """The batch is stored. It stays in the queue until all batches before it have left. It may be sent again."""
        batch.acked = True
        self.drop_acked()

    def end_send_attempts(self, reply: Replied, error: ReplyError) -> None:
        """End the refused send attempt. If the error proves something, end those after it in the run as well."""
        for batch in self.batches:
            if batch.epoch != reply.producer_epoch:
                continue
            named = batch.base_sequence == reply.base_sequence
            behind = batch.base_sequence > reply.base_sequence and error.outcome_known
            if named or behind:
                self.producer_run.end_send_attempt(batch, reply.producer_run, proven=error.outcome_known)

    def drop_acked(self) -> None:
        """Forget acknowledged batches at the front."""
        while self.batches and self.batches[0].acked:
            self.forget(0)

    def forget(self, at: int) -> None:
        """The batch at this position is settled for good."""
        batch = self.batches[at]
        self.producer_run.forget(batch, at)
        self.size_bytes -= batch.size_bytes
        del self.batches[at]

    def clear(self) -> None:
        """Forget all batches, and end the producer run."""
        self.batches.clear()
        self.size_bytes = 0
        self.producer_run.abandon()
