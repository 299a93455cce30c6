"""Giving a batch up: at the delivery deadline, on an error that no retry can mend, or at the end. Pure.

    failed   if the batch is not doubtful. It and those behind it give back their sequences: the next one takes its
             number. They were never stored, so under their new numbers they are new batches, built anew.
    unknown  if it is. Nobody can say which sequence the broker has, so the producer goes on under the next epoch, from
             sequence 0. Behind it, batches that are doubtful too are settled as unknown with it: their numbers may be
             refused for ever, and under other numbers they might be stored twice. The others, proven not stored, are
             numbered anew in the new epoch, in their order. Order holds: what still arrives of the old epoch after
             the first batch of the new one is refused by its epoch; what arrived before it stands before it.

Batches of two epochs are never in flight together: those in front are settled first, or a batch of the old epoch
would be refused as fenced by our own new one.
"""

from __future__ import annotations

from seriatim_api.errors import DeadlineExceededError

from .attempts import Batch
from .producer_types import Effect, Outcome, ReplyError, Settled
from .sequences import BatchQueue


def give_up(queue: BatchQueue, batch: Batch, error: ReplyError, effects: list[Effect]) -> None:
    """Settle a batch that nobody acknowledged, as what is known of it."""
    at = queue.batches.index(batch)
    behind = list(queue.batches)[at + 1 :]
    # One behind it is stored: then so is this one, whatever was answered.
    doubtful = batch.doubtful or any(other.acked for other in behind)
    if doubtful:
        _go_on_in_next_epoch(queue, at, error, effects)
        return
    assert not any(other.doubtful for other in behind), "what stood behind a refused batch was refused"
    effects.append(Settled(batch.batch_id, Outcome.FAILED, error=error))
    sequence = batch.base_sequence
    queue.forget(at)
    for other in behind:
        if other.epoch == batch.epoch:
            other.renumber(batch.epoch, sequence)
            sequence += other.message_count
    if batch.epoch == queue.epoch:
        queue.next_sequence = sequence
    queue.drop_acked()


def give_up_overdue(queue: BatchQueue, now_us: int, timeout_ms: int, effects: list[Effect]) -> None:
    """Give up what was not settled in time. Deadlines follow the order of the queue: where the first has time, all do.

    Args:
        queue: Has batches.
        now_us: Monotonic time.
        timeout_ms: What the deadlines were made of, for people.
        effects: Where the outcomes go.
    """
    while queue.batches and queue.batches[0].deadline_us <= now_us:
        batch = queue.batches[0]
        assert not batch.acked
        last = f": {batch.last_error.message}" if batch.last_error else ""
        message = f"not settled within {timeout_ms} ms{last}"
        give_up(queue, batch, ReplyError(DeadlineExceededError.number, message), effects)


def answer_gap(queue: BatchQueue, error: ReplyError, effects: list[Effect]) -> None:
    """A sequence gap at the head of a run: the broker no longer knows our last batch.

    That is so after idle days, or after a switch with an acknowledgement level that promises nothing. If no batch is
    doubtful, all are numbered anew in the next epoch; else the doubtful ones are given up as unknown.
    """
    first = queue.batches[0]
    if first.doubtful or first.base_sequence == 0:
        give_up(queue, first, error, effects)
    else:
        _go_on_in_next_epoch(queue, 0, error, effects)


def give_up_all(queue: BatchQueue, error: ReplyError, effects: list[Effect]) -> None:
    """The producer is over: settle everything now."""
    for batch in queue.batches:
        if not batch.acked:
            outcome = Outcome.UNKNOWN if batch.doubtful else Outcome.FAILED
            effects.append(Settled(batch.batch_id, outcome, error=error))
    queue.clear()


def _go_on_in_next_epoch(queue: BatchQueue, at: int, error: ReplyError, effects: list[Effect]) -> None:
    """From position `at` on: settle the doubtful as unknown, and number the others from 0 in the next epoch."""
    queue.epoch += 1
    queue.run.alive = False
    sequence = 0
    for batch in list(queue.batches)[at:]:
        if batch.acked:
            queue.forget(queue.batches.index(batch))
        elif batch.doubtful:
            effects.append(Settled(batch.batch_id, Outcome.UNKNOWN, error=batch.last_error or error))
            queue.forget(queue.batches.index(batch))
        else:
            batch.renumber(queue.epoch, sequence)
            sequence += batch.message_count
    queue.next_sequence = sequence
    queue.drop_acked()
