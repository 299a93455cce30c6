"""Preparing: a member writes down what the next segment would start from, for a switcher that may open it.

Each attempt has a place of its own: two switchers never overwrite each other, and a member opens only what it prepared
under the attempt that the record names, in the same run. Voiding forbids to open; it deletes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..values.effects import Send
from ..values.kinds import PrepareRefusal, TimerKind
from ..values.log import DropPreparation, Preparation, PutPreparation
from ..values.messages import PrepareAnswer, PrepareRequest
from ..values.states import drop, put
from . import idle_blocks


def on_prepare(broker: BrokerState, partition: Partition, sender: MemberId, message: PrepareRequest) -> None:
    """Write what a segment would start from, under the attempt's own id, beside what others prepared."""
    _forget_replaced(broker, partition, message)
    refusal = _refusal(broker, partition, message)
    answer = PrepareAnswer(partition.id, message.segment_no, message.attempt, broker.run, refusal)
    if refusal:
        broker.send(sender, answer)
        return
    key = (message.segment_no, message.attempt)
    if key not in partition.preparations:
        if idle_blocks.wait_for(broker, partition, sender, message):
            return
        preparation = Preparation(
            message.segment_no,
            message.attempt,
            message.members,
            message.flush,
            message.incomplete_table,
            message.table,
            message.tail,
            broker.run,
        )
        partition.preparations = put(partition.preparations, key, preparation)
        broker.out.write(PutPreparation(partition.id, preparation))
        broker.poll(4 * broker.config.fenced_us, TimerKind.PREPARED, partition.id)
    broker.out.when_durable(Send(sender.broker, answer))


def _forget_replaced(broker: BrokerState, partition: Partition, message: PrepareRequest) -> None:
    """Drop what its switcher knows that the record will never name, so that one preparation a switcher stays."""
    for attempt in message.replaces:
        if (message.segment_no, attempt) in partition.preparations:
            partition.preparations = drop(partition.preparations, (message.segment_no, attempt))
            broker.out.write(DropPreparation(partition.id, message.segment_no, attempt))


def _refusal(broker: BrokerState, partition: Partition, message: PrepareRequest) -> PrepareRefusal:
    """Why a preparation is not taken; empty if it is."""
    if broker.member not in message.members:
        return PrepareRefusal.NOT_A_MEMBER
    known = partition.preparations.get((message.segment_no, message.attempt))
    if known is not None and (known.voided or known.run != broker.run):
        return PrepareRefusal.VOIDED
    if broker.coordinator.behind:
        return PrepareRefusal.BEHIND
    if message.segment_no in partition.logs:
        return PrepareRefusal.HOLDS_A_BATCH
    decided = partition.decided
    if decided is not None and message.segment_no <= decided.open_segment.no:
        return PrepareRefusal.DECIDED
    return PrepareRefusal.NONE


def on_prepared_long_ago(broker: BrokerState, partition: Partition) -> None:
    """Nobody said what became of an attempt: look, for this member may be the master that everybody waits for."""
    known = partition.chain.open_segment.no if partition.chain is not None else 0
    if any(no > known for no, _ in partition.preparations):
        partition.read_chain(broker)
        broker.poll(10 * broker.config.retry_us_max, TimerKind.PREPARED, partition.id)


def void_attempts(broker: BrokerState, partition: Partition) -> None:
    """Void the attempts under which earlier runs prepared to be master."""
    for key, preparation in list(partition.preparations.items()):
        if preparation.members[0] == broker.member and preparation.run != broker.run and not preparation.voided:
            voided = replace(preparation, voided=True)
            partition.preparations = put(partition.preparations, key, voided)
            broker.out.write(PutPreparation(partition.id, voided))
