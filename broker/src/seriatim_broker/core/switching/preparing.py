"""Preparing: a member writes durably everything that it would need to open the next segment.

Each switch attempt has its own place, so two switchers never overwrite each other. A member opens only what it
prepared under the switch attempt that the chain record names, in the same member run. Voiding forbids that a member
opens; it deletes nothing.
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
    """Write the preparation under the id of its switch attempt. The answer leaves when the preparation is on the disk.

    If the member refuses, or lacks idle blocks of the table, it answers at once and writes nothing yet.
    """
    _forget_replaced(broker, partition, message)
    refusal = _refusal(broker, partition, message)
    answer = PrepareAnswer(partition.id, message.segment_no, message.switch_attempt, broker.member_run, refusal)
    if refusal:
        broker.send(sender, answer)
        return
    # Rule `attempt-id` (I1): a preparation is kept under (segment, switch attempt), beside those of other attempts.
    # Without it:
    #   1. a is on Am and As, not committed. Switcher 1 fences Am, and prepares segment 2 on B: "seal at 0, no tail".
    #   2. Switcher 2 has read the same revision. It fences As: "seal at 1, tail [a]".
    #   3. The transaction of switcher 1 is carried out. Switcher 2 does not know it, and prepares B: a is at 1:0.
    #   4. P resends a. B finds it in the table of switcher 2, and answers ok, 1:0. Segment 1 ends at 0: a is nowhere.
    key = (message.segment_no, message.switch_attempt)
    if key not in partition.preparations:
        if idle_blocks.wait_for(broker, partition, sender, message):
            return
        preparation = Preparation(
            message.segment_no,
            message.switch_attempt,
            message.members,
            message.flush,
            message.incomplete_table,
            message.table,
            message.tail,
            broker.member_run,
            producers_max=message.producers_max,
        )
        partition.preparations = put(partition.preparations, key, preparation)
        broker.out.write(PutPreparation(partition.id, preparation))
        broker.poll(4 * broker.config.fenced_us, TimerKind.PREPARED, partition.id)
    broker.out.when_durable(Send(sender.broker, answer))


def _forget_replaced(broker: BrokerState, partition: Partition, message: PrepareRequest) -> None:
    """Drop the preparations that the chain record will never name. The switcher lists them in `message.replaces`.

    So each switcher leaves one preparation, not one for each try (rule `replaces-undecided`, see `switch_attempts`).
    """
    for attempt in message.replaces:
        if (message.segment_no, attempt) in partition.preparations:
            partition.preparations = drop(partition.preparations, (message.segment_no, attempt))
            broker.out.write(DropPreparation(partition.id, message.segment_no, attempt))


def _refusal(broker: BrokerState, partition: Partition, message: PrepareRequest) -> PrepareRefusal:
    """Why this member does not prepare; `NONE` if it does."""
    if broker.member not in message.members:
        return PrepareRefusal.NOT_A_MEMBER
    known = partition.preparations.get((message.segment_no, message.switch_attempt))
    if known is not None and (known.voided or known.member_run != broker.member_run):
        return PrepareRefusal.VOIDED
    if broker.coordinator.behind:
        return PrepareRefusal.BEHIND
    if message.segment_no in partition.logs:
        return PrepareRefusal.HOLDS_A_BATCH
    decided = partition.decided
    is_told = partition.is_told_of_later(message.segment_no - 1)
    if is_told or (decided is not None and message.segment_no <= decided.open_segment.no):
        return PrepareRefusal.DECIDED
    return PrepareRefusal.NONE


def on_prepared_long_ago(broker: BrokerState, partition: Partition) -> None:
    """No broker said which switch attempt was chosen: read the chain record.

    This member may be the master for which the producers wait.
    """
    known = partition.chain.open_segment.no if partition.chain is not None else 0
    if any(no > known for no, _ in partition.preparations):
        partition.read_chain(broker)
        broker.poll(10 * broker.config.retry_us_max, TimerKind.PREPARED, partition.id)


def void_switch_attempts(broker: BrokerState, partition: Partition) -> None:
    """Void the switch attempts under which earlier member runs prepared to be master."""
    # Rule `voided` (I7, RT), with the check of `Preparation.member_run` at the opening. Without it:
    #   1. Switcher 1 prepares segment 2 on Bm, in member run 0.
    #   2. Bm restarts as member run 1. The certificate of member run 0 is written, and is true.
    #   3. Switcher 1's transaction opens segment 2 with `master_run` 0. Bm reads the record and opens segment 2.
    #   4. Another switcher reaches no member of B. It finds the certificate of member run 0, and opens segment 3 on A.
    #   5. Q's x is acknowledged at 3:0. P sends y after that, and Bm acknowledges it at 2:0: sent later, but earlier in
    #      the order.
    for key, preparation in list(partition.preparations.items()):
        if (
            preparation.members[0] == broker.member
            and preparation.member_run != broker.member_run
            and not preparation.voided
        ):
            voided = replace(preparation, voided=True)
            partition.preparations = put(partition.preparations, key, voided)
            broker.out.write(PutPreparation(partition.id, voided))
