"""Preparing: a member writes down what the next segment would start from, for a switcher that may open it.

Each attempt has a place of its own: two switchers never overwrite each other, and a member opens only what it prepared
under the attempt that the record names, in the same run. Voiding forbids to open; it deletes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId

from . import blocks
from .effects import Send
from .log import DropPreparation, Preparation, PutPreparation
from .messages import PrepareAnswer, PrepareRequest
from .outbox import Outbox
from .partition import Partition
from .state import drop, put


def on_prepare(outbox: Outbox, partition: Partition, sender: MemberId, message: PrepareRequest) -> None:
    """Write what a segment would start from, under the attempt's own id, beside what others prepared."""
    _forget_replaced(outbox, partition, message)
    refusal = _refusal(outbox, partition, message)
    answer = PrepareAnswer(partition.id, message.segment_no, message.attempt, outbox.run, refusal)
    if refusal:
        outbox.send(sender, answer)
        return
    key = (message.segment_no, message.attempt)
    if key not in partition.preparations:
        if blocks.wait_for(outbox, partition, sender, message):
            return
        preparation = Preparation(
            message.segment_no,
            message.attempt,
            message.members,
            message.flush,
            message.incomplete_table,
            message.table,
            message.tail,
            outbox.run,
        )
        partition.preparations = put(partition.preparations, key, preparation)
        outbox.write(PutPreparation(partition.id, preparation))
        outbox.poll(4 * outbox.config.fenced_us, "prepared", partition.id)
    outbox.when_durable(Send(sender.broker, answer))


def _forget_replaced(outbox: Outbox, partition: Partition, message: PrepareRequest) -> None:
    """Drop what its switcher knows that the record will never name, so that one preparation a switcher stays."""
    for attempt in message.replaces:
        if (message.segment_no, attempt) in partition.preparations:
            partition.preparations = drop(partition.preparations, (message.segment_no, attempt))
            outbox.write(DropPreparation(partition.id, message.segment_no, attempt))


def _refusal(outbox: Outbox, partition: Partition, message: PrepareRequest) -> str:
    """Why a preparation is not taken; empty if it is."""
    if outbox.member not in message.members:
        return "not a member"
    known = partition.preparations.get((message.segment_no, message.attempt))
    if known is not None and (known.voided or known.run != outbox.run):
        return "voided"
    if outbox.behind:
        return "the coordinator has lost decisions"
    if message.segment_no in partition.logs:
        return "fenced or holds a batch"
    decided = partition.decided
    if decided is not None and message.segment_no <= decided.open_segment.no:
        return "decided"
    return ""


def on_prepared_long_ago(outbox: Outbox, partition: Partition) -> None:
    """Nobody said what became of an attempt: look, for this member may be the master that everybody waits for."""
    known = partition.chain.open_segment.no if partition.chain is not None else 0
    if any(no > known for no, _ in partition.preparations):
        partition.read_chain(outbox)
        outbox.poll(10 * outbox.config.retry_us_max, "prepared", partition.id)


def void_attempts(outbox: Outbox, partition: Partition) -> None:
    """Void the attempts under which earlier runs prepared to be master."""
    for key, preparation in list(partition.preparations.items()):
        if preparation.members[0] == outbox.member and preparation.run != outbox.run and not preparation.voided:
            voided = replace(preparation, voided=True)
            partition.preparations = put(partition.preparations, key, voided)
            outbox.write(PutPreparation(partition.id, voided))
