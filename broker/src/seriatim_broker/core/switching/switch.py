"""The switch: seal the open segment and open the next one. Any broker may run it.

The steps: read the chain record; fence a member and take its tail; have the next broker group prepare under the id of
this switch attempt; write one transaction. Each phase has a deadline. A failure before the transaction leaves the chain
as it was. A broker that is wrong about which member is dead costs one switch, and never breaks the order.

The parts: `tries` (begin, pause, end), `planned`, `sealing` and `lengths` (what to seal), `opening` (what to open).
`fencing`, `preparing` and `writing.quiescence` have the members' answers.
"""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Genesis, Switch, SwitchKind, SwitchPhase
from ..values.chain import Chain
from ..values.effects import Resolved
from ..values.events import CreatePartition, PlanSwitch, WriteOutcome
from ..values.kinds import PrepareRefusal, SwitchReason
from ..values.messages import PrepareAnswer
from . import opening, planned, sealing, switch_attempts, tries


def on_chain_read(broker: BrokerState, partition: Partition, chain: Chain | None, revision: int, failed: bool) -> None:
    """Step 1 is done: continue with the record that was read, or with a newer one that arrived meanwhile."""
    switch = partition.switch
    if switch is None or switch.phase is not SwitchPhase.READING:
        return
    if failed:
        tries.pause(broker, partition, switch)
        return
    if chain is None and switch.genesis is not None and not switch.genesis.refused:
        switch.opening.broker_groups_left = list(switch.genesis.send_chain)
        opening.prepare_next(broker, partition, switch)
        return
    if chain is None:
        tries.give_up(broker, partition, switch, errors.UnknownTopicError(f"there is no {partition.name}"))
        return
    chain = partition.chain  # the record that was read, or a newer one that arrived meanwhile
    assert chain is not None
    if not switch.segment_no:
        switch.segment_no = chain.open_segment.no  # a planned switch names no segment: it moves the open one
    if chain.open_segment.no != switch.segment_no:
        tries.finish(broker, partition, switch)
    elif switch.kind is SwitchKind.PLANNED and switch.fenced:
        tries.become_failover(broker, partition, switch, SwitchReason.PLAN_RECORD_CHANGED)
    elif switch.kind is SwitchKind.PLANNED:
        switch.chain = chain
        planned.rehearse(broker, partition, switch, chain)
    else:
        switch.chain = chain
        sealing.fence(broker, partition, switch, chain.open_segment.members)


def on_learned(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """A newer record arrived, without a read of this switch: end the switch if a later segment is open."""
    switch = partition.switch
    if switch is None:
        return
    if not switch.segment_no and switch.kind is SwitchKind.PLANNED:
        return  # this switch has not read yet which segment is open
    if chain.open_segment.no > switch.segment_no:
        tries.finish(broker, partition, switch)
    elif switch.phase not in (SwitchPhase.READING, SwitchPhase.PAUSED, SwitchPhase.WRITING):
        switch.chain = chain  # the open segment is the same: the transaction compares the newest known revision


def on_timer(broker: BrokerState, partition: Partition) -> None:
    """The deadline of the phase has passed: continue with what is known, try again, or give up."""
    switch = partition.switch
    if switch is None or broker.now.mono_us < switch.deadline_us:
        return
    if switch.phase is SwitchPhase.PAUSED:
        tries.begin(broker, partition, switch)
    elif switch.phase is SwitchPhase.FENCING:
        sealing.decide_or_wait(broker, partition, switch, timed_out=True)
    elif switch.phase is SwitchPhase.TABLES:
        opening.choose_broker_groups(broker, partition, switch)
    elif switch.phase is SwitchPhase.CERTIFYING:
        tries.pause(broker, partition, switch)
    elif switch.phase is SwitchPhase.PREPARING:
        opening.prepare_next(broker, partition, switch)
    elif switch.phase is SwitchPhase.QUIESCING:
        tries.give_up(
            broker,
            partition,
            switch,
            errors.DeadlineExceededError("the master did not come to rest in time; the open segment stays where it is"),
        )


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member is linked: ask it, if this switch waits for it; end a pause."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is SwitchPhase.FENCING and switch.sealing.pending.get(member) is False:
        sealing.ask_fence(broker, partition, switch, member)
    elif switch.phase is SwitchPhase.PREPARING and switch.opening.awaits(member):
        opening.ask_prepare(broker, partition, switch, member)
    elif switch.phase is SwitchPhase.PAUSED:
        tries.begin(broker, partition, switch)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member is not linked any more, so it will not answer: decide without it, or try the next broker group."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is SwitchPhase.FENCING and member in switch.sealing.pending:
        switch.sealing.pending[member] = False
        sealing.decide_or_wait(broker, partition, switch)
    elif switch.phase is SwitchPhase.PREPARING and switch.opening.awaits(member):
        opening.prepare_next(broker, partition, switch)
    elif switch.phase is SwitchPhase.QUIESCING and member in switch.opening.members:
        tries.give_up(
            broker,
            partition,
            switch,
            errors.UnavailableError(
                f"{member.broker}, a member of the target, cannot be reached; the open segment stays where it is"
            ),
        )


def on_prepare_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: PrepareAnswer) -> None:
    """A member of the next broker group has prepared, refuses, or needs more time for idle blocks."""
    switch = partition.switch
    if switch is None or switch.phase is not SwitchPhase.PREPARING:
        return
    if message.switch_attempt != switch.opening.switch_attempt or sender not in switch.opening.members:
        return
    if message.refusal:
        if message.refusal in (PrepareRefusal.DECIDED, PrepareRefusal.HOLDS_A_BATCH):
            opening.contradict(broker, partition, switch, sender)
        elif message.refusal == PrepareRefusal.BEHIND:
            tries.pause(broker, partition, switch)  # another broker group may not know of the loss yet
        elif (
            message.refusal == PrepareRefusal.VOIDED and not switch.opening.switch_attempt_is_new
        ):  # the member has restarted since
            switch_attempts.void(broker, partition, switch.opening.switch_attempt)
            switch.opening.broker_groups_left.insert(0, switch.opening.broker_group)
            opening.prepare_next(broker, partition, switch)
        else:
            opening.prepare_next(broker, partition, switch)
        return
    if message.missing_bytes:  # the member gets idle blocks; each one that arrives gives it more time
        more_us = broker.config.transfer_us(message.missing_bytes)
        tries.set_deadline(broker, partition, switch, opening.prepare_timeout_us(broker, switch) + more_us)
        return
    switch.opening.prepared[sender] = message.member_run
    # Rule `chosen-alone` (I12): every member of the next segment has prepared before the transaction. Without it:
    #   1. Bm is prepared, Bs is not. The switcher opens segment 2 on Bm alone.
    #   2. Bm acknowledges a: one disk has it.
    #   3. Bm's disk dies, and a is lost.
    if len(switch.opening.prepared) < len(switch.opening.members):
        return
    if switch.kind is SwitchKind.PLANNED and not switch.fenced:
        planned.quiesce(broker, partition, switch)
    else:
        opening.write(broker, partition, switch)


def on_written(broker: BrokerState, partition: Partition, outcome: WriteOutcome) -> None:
    """The transaction ended without success: read the chain record before anything else.

    After the answer *refused* the transaction may still be in the record. The read that is under way shows whether it
    is. If it is not, the switch tries again later. After success the newer record ends the switch (`on_learned`).
    """
    switch = partition.switch
    if switch is None:
        return
    if outcome is WriteOutcome.REFUSED and switch.phase is SwitchPhase.WRITING:
        opening.refused(broker, partition, switch)
    elif outcome is not WriteOutcome.DONE and switch.phase is SwitchPhase.WRITING:
        # Rule `unknown-outcome` (I7): after a time-out the switcher reads, and believes nothing else. Without it:
        #   1. Two switchers prepare segment 2. The transaction of switcher 1 gets no answer.
        #   2. Switcher 1 believes that it was carried out, and tells B to open segment 2, sealed at 0.
        #   3. Switcher 2's transaction was carried out: segment 1 is sealed at 1. There are two chains.
        if switch.genesis is not None:
            switch.genesis.refused = outcome is WriteOutcome.CONFLICT  # another broker made or deleted it meanwhile
        switch.enter(SwitchPhase.READING)  # the read is under way
        tries.renew(broker, switch)


# ---- what begins a switch -------------------------------------------------------------------------------


def begin_failover(broker: BrokerState, partition: Partition, reason: SwitchReason, segment_no: int) -> None:
    """Begin a failover of this segment, unless one is under way, or a later segment is open already.

    If a planned switch is under way, it is given up.
    """
    running = partition.switch
    if running is not None and running.segment_no >= segment_no and not running.is_planned:
        tries.hurry(broker, partition)
        return
    if partition.chain is not None and partition.chain.open_segment.no > segment_no:
        return
    if running is not None:
        tries.give_up(
            broker,
            partition,
            running,
            errors.UnavailableError("a member failed meanwhile, so a failover moves the partition; no message is lost"),
        )
    partition.switch = Switch(SwitchKind.FAILOVER, reason, segment_no, None)
    tries.begin(broker, partition, partition.switch)


def begin_planned(broker: BrokerState, partition: Partition, event: PlanSwitch) -> None:
    """Move the open segment while all members are alive; refused while another switch is under way."""
    if partition.switch is not None:
        error = errors.UnavailableError(
            "another switch of this partition is under way; ask again in 100 ms", retry_after_ms=100
        )
        broker.out.emit(Resolved(event.request, partition.route(), error))
        return
    reason = SwitchReason.MOVED if event.target_broker_group else SwitchReason.PLANNED
    partition.switch = Switch(SwitchKind.PLANNED, reason, 0, event.request)
    partition.switch.target_broker_group = event.target_broker_group
    partition.switch.target_master = event.target_master
    tries.begin(broker, partition, partition.switch)


def begin_move(
    broker: BrokerState,
    partition: Partition,
    reason: SwitchReason = SwitchReason.GROUP_CORDONED,
    target_group: str = "",
    target_master: str = "",
) -> None:
    """Move the open segment to another broker group or master, by a planned switch that answers no request."""
    assert partition.switch is None
    partition.switch = Switch(SwitchKind.PLANNED, reason, 0, None)
    partition.switch.target_broker_group = target_group
    partition.switch.target_master = target_master
    tries.begin(broker, partition, partition.switch)


def begin_genesis(broker: BrokerState, partition: Partition, event: CreatePartition) -> None:
    """Make the partition with its first segment; if the partition is there already, this is not an error."""
    if partition.chain is not None or partition.switch is not None:
        busy = errors.UnavailableError("the partition is being made; ask again in 100 ms", retry_after_ms=100)
        known = partition.chain is not None
        broker.out.emit(Resolved(event.request, partition.route(), None if known else busy))
        return
    partition.switch = Switch(SwitchKind.GENESIS, SwitchReason.CREATED, 0, event.request)
    partition.switch.genesis = Genesis(event.topic, event.number, event.flush, event.send_chain, event.width)
    tries.begin(broker, partition, partition.switch)
