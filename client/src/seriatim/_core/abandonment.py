"""Gives a batch up: at the delivery deadline, on an error that no retry can repair, or at the producer's end. Pure.

    failed   if the batch is not doubtful. It and the batches after it give their sequences back, and the next batch
             gets its number. None of them was ever stored, so under their new numbers they are new batches, with new
             headers.
    unknown  if the batch is doubtful. The client cannot know which sequence the broker has, so the producer continues
             in the next producer epoch, from sequence 0. Doubtful batches after it are settled as unknown too: the
             broker may refuse their numbers for ever, and under other numbers they could be stored twice. The other
             batches after it are proven not stored. They get new numbers in the new producer epoch, in their order.

Order holds over a change of the producer epoch. If a batch of the old producer epoch arrives after the first batch of
the new one, the broker refuses it because of its producer epoch. If it arrived before, it is before it in the log.

Batches of two producer epochs are never in flight together. The producer first settles those of the old one. Otherwise
the broker would refuse them as fenced by our own new producer epoch.
"""

from __future__ import annotations

from seriatim_api.errors import DeadlineExceededError

from .producer_types import Effect, Outcome, ReplyError, Settled
from .send_attempts import Batch
from .sequences import BatchQueue


def give_up(queue: BatchQueue, batch: Batch, error: ReplyError, effects: list[Effect]) -> None:
    """Settle a batch without an acknowledgement: as failed if it is proven not stored, else as unknown."""
    at = queue.batches.index(batch)
    behind = list(queue.batches)[at + 1 :]
    # If a batch after it is stored, so is this one, whatever the broker answered.
    doubtful = batch.doubtful or any(other.acked for other in behind)
    if doubtful:
        _go_on_in_next_epoch(queue, at, error, effects)
        return
    assert not any(other.doubtful for other in behind), "what stood after a refused batch was refused"
    effects.append(Settled(batch.batch_id, Outcome.FAILED, error=error))
    # Rule `client-keeps-sequences` (GAP): a failed batch gives its sequence back to those after it. Without it:
    # 1. The master has P's sequence 0. P sends a with sequence 1, and a is failed.
    # 2. P sends b with sequence 2.
    # 3. The master expects sequence 1. It refuses b as a gap, now and for ever.
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
    """Give up the batches that were not settled in time.

    Deadlines have the order of the queue. So if the first batch has time left, all have.

    Args:
        queue: The batches.
        now_us: The monotonic time in µs.
        timeout_ms: The delivery time-out, for the error message.
        effects: The list to which the outcomes are added.
    """
    reason = ""  # of a batch, and of those after it that were refused because of it
    while queue.batches and queue.batches[0].deadline_us <= now_us:
        batch = queue.batches[0]
        assert not batch.acked
        if batch.last_error is not None:
            reason = f": {batch.last_error.message}"
        message = f"not settled within {timeout_ms} ms{reason}"
        give_up(queue, batch, ReplyError(DeadlineExceededError.number, message), effects)


def answer_gap(queue: BatchQueue, error: ReplyError, effects: list[Effect]) -> None:
    """Answer a sequence gap at the first batch of a producer run: the broker no longer knows our last batch.

    This happens if enough other producers have sent since, or after a switch if the ack level promises nothing. If no
    batch is doubtful, all get new numbers in the next producer epoch. Otherwise the doubtful ones are given up as
    unknown.
    """
    first = queue.batches[0]
    if first.doubtful or first.base_sequence == 0:
        give_up(queue, first, error, effects)
    else:
        _go_on_in_next_epoch(queue, 0, error, effects)


def give_up_all(queue: BatchQueue, error: ReplyError, effects: list[Effect]) -> None:
    """Settle all batches now, because the producer has ended."""
    for batch in queue.batches:
        if not batch.acked:
            outcome = Outcome.UNKNOWN if batch.doubtful else Outcome.FAILED
            effects.append(Settled(batch.batch_id, outcome, error=error))
    queue.clear()


def _go_on_in_next_epoch(queue: BatchQueue, at: int, error: ReplyError, effects: list[Effect]) -> None:
    """From position `at` on: settle the doubtful batches as unknown, and number the others from 0 in the next producer
    epoch. The producer of an owner ends instead, because only another election can give it the next epoch.
    """
    if queue.is_owned:
        queue.ended = error
        give_up_all(queue, error, effects)
        return
    # Rule `client-same-epoch` (GAP, I1): after an unknown batch the next producer epoch begins. Without it:
    # 1. P sends a with sequence 5, gets no answer, and gives a up as unknown. The master has stored a.
    # 2. P sends b, which has as many messages as a, with sequence 5 in the same producer epoch.
    # 3. The master takes b for a repeat of a, and answers ok with a's offset. P calls b ok, and b is on no disk.
    # If b has another number of messages, the master refuses b. If P continued after a's sequences instead, and no
    # broker had a, the master would refuse b as a gap for ever.
    queue.epoch += 1
    queue.producer_run.alive = False
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
