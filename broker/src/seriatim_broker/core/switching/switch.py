"""The switch: seal the open segment and open the next one. Any broker may run it.

Read the chain; fence a member and take its tail; prepare the next group under an id of this attempt; one transaction.
Each phase has a deadline, and whatever goes wrong before the transaction leaves the chain as it was. Being wrong about
who is dead costs a switch, never order. The parts: `tries` (begin, pause, end), `planned`, `sealing` and `lengths`
(what to seal), `opening` (what to open). What the members answer is in `fencing`, `preparing` and `quiescence`.
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
from . import attempts, opening, planned, sealing, tries


def on_chain_read(broker: BrokerState, partition: Partition, chain: Chain | None, revision: int, failed: bool) -> None:
    """The record as the coordinator has it: only this one may be compared with in the transaction."""
    switch = partition.switch
    if switch is None or switch.phase is not SwitchPhase.READING:
        return
    if failed:
        tries.pause(broker, partition, switch)
        return
    if chain is None and switch.genesis is not None and not switch.genesis.refused:
        switch.opening.groups_left = list(switch.genesis.send_chain)
        opening.prepare_next(broker, partition, switch)
        return
    if chain is None:
        tries.give_up(broker, partition, switch, errors.UnknownTopicError(f"there is no partition {partition.id}"))
        return
    chain = partition.chain  # what was read, or something newer that came meanwhile
    assert chain is not None
    if not switch.segment_no:
        switch.segment_no = chain.open_segment.no  # planned: whatever is open now
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
    """A newer record came by another way."""
    switch = partition.switch
    if switch is None:
        return
    if not switch.segment_no and switch.kind is SwitchKind.PLANNED:
        return  # it has not read which segment it is about
    if chain.open_segment.no > switch.segment_no:
        tries.finish(broker, partition, switch)
    elif switch.phase not in (SwitchPhase.READING, SwitchPhase.PAUSED, SwitchPhase.WRITING):
        switch.chain = chain  # another field changed: the transaction compares with the newest revision known


def on_timer(broker: BrokerState, partition: Partition) -> None:
    """A deadline passed."""
    switch = partition.switch
    if switch is None or broker.now.mono_us < switch.deadline_us:
        return
    if switch.phase is SwitchPhase.PAUSED:
        tries.begin(broker, partition, switch)
    elif switch.phase is SwitchPhase.FENCING:
        sealing.decide_or_wait(broker, partition, switch, timed_out=True)
    elif switch.phase is SwitchPhase.TABLES:
        opening.choose_groups(broker, partition, switch)
    elif switch.phase is SwitchPhase.CERTIFYING:
        tries.pause(broker, partition, switch)
    elif switch.phase is SwitchPhase.PREPARING:
        opening.prepare_next(broker, partition, switch)
    elif switch.phase is SwitchPhase.QUIESCING:
        tries.give_up(
            broker, partition, switch, errors.DeadlineExceededError("the master did not come to rest in time")
        )


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member that could not be asked can be asked now."""
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
    """A member will not answer."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is SwitchPhase.FENCING and member in switch.sealing.pending:
        switch.sealing.pending[member] = False
        sealing.decide_or_wait(broker, partition, switch)
    elif switch.phase is SwitchPhase.PREPARING and switch.opening.awaits(member):
        opening.prepare_next(broker, partition, switch)
    elif switch.phase is SwitchPhase.QUIESCING and member in switch.opening.members:
        tries.give_up(broker, partition, switch, errors.UnavailableError(f"{member.broker} of the target went away"))


def on_prepare_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: PrepareAnswer) -> None:
    """A member of the next group is prepared, or will not be."""
    switch = partition.switch
    if switch is None or switch.phase is not SwitchPhase.PREPARING:
        return
    if message.attempt != switch.opening.attempt or sender not in switch.opening.members:
        return
    if message.refusal:
        if message.refusal in (PrepareRefusal.DECIDED, PrepareRefusal.HOLDS_A_BATCH):
            opening.contradict(broker, partition, switch, sender)
        elif message.refusal == PrepareRefusal.BEHIND:
            tries.pause(broker, partition, switch)  # another group may not know what this member knows
        elif (
            message.refusal == PrepareRefusal.VOIDED and not switch.opening.attempt_is_new
        ):  # the member has restarted since
            attempts.void(broker, partition, switch.opening.attempt)
            switch.opening.groups_left.insert(0, switch.opening.group)
            opening.prepare_next(broker, partition, switch)
        else:
            opening.prepare_next(broker, partition, switch)
        return
    if message.missing_bytes:  # it gets idle blocks: as long as it gets on, it has the time
        more_us = broker.config.transfer_us(message.missing_bytes)
        tries.set_deadline(broker, partition, switch, opening.prepare_timeout_us(broker, switch) + more_us)
        return
    switch.opening.prepared[sender] = message.run
    if len(switch.opening.prepared) < len(switch.opening.members):
        return
    if switch.kind is SwitchKind.PLANNED and not switch.fenced:
        planned.quiesce(broker, partition, switch)
    else:
        opening.write(broker, partition, switch)


def on_written(broker: BrokerState, partition: Partition, outcome: WriteOutcome) -> None:
    """Done: everybody concerned hears of it. Lost, or not known: read before anything else.

    Refused: the read that is under way says whether the record has it all the same; if not, try again later.
    """
    switch = partition.switch
    if switch is None:
        return
    if outcome is WriteOutcome.REFUSED and switch.phase is SwitchPhase.WRITING:
        opening.refused(broker, partition, switch)
    elif outcome is not WriteOutcome.DONE and switch.phase is SwitchPhase.WRITING:
        if switch.genesis is not None:
            switch.genesis.refused = outcome is WriteOutcome.CONFLICT  # somebody made, or deleted, it meanwhile
        switch.enter(SwitchPhase.READING)  # the read is under way
        tries.renew(broker, switch)


# ---- how a switch comes about ---------------------------------------------------------------------------


def begin_failover(broker: BrokerState, partition: Partition, reason: SwitchReason, segment_no: int) -> None:
    """Run the switch of this segment, unless it is under way."""
    running = partition.switch
    if running is not None and running.segment_no >= segment_no and not running.is_planned:
        tries.hurry(broker, partition)
        return
    if partition.chain is not None and partition.chain.open_segment.no > segment_no:
        return
    if running is not None:
        tries.give_up(broker, partition, running, errors.UnavailableError("a member failed meanwhile"))
    partition.switch = Switch(SwitchKind.FAILOVER, reason, segment_no, None)
    tries.begin(broker, partition, partition.switch)


def begin_planned(broker: BrokerState, partition: Partition, event: PlanSwitch) -> None:
    """Move the open segment, everyone alive, unless a switch is under way."""
    if partition.switch is not None:
        error = errors.UnavailableError("another switch of this partition is under way", retry_after_ms=100)
        broker.out.emit(Resolved(event.request, partition.route(), error))
        return
    reason = SwitchReason.MOVED if event.target_group else SwitchReason.PLANNED
    partition.switch = Switch(SwitchKind.PLANNED, reason, 0, event.request)
    partition.switch.target_group = event.target_group
    partition.switch.target_master = event.target_master
    tries.begin(broker, partition, partition.switch)


def begin_move(
    broker: BrokerState,
    partition: Partition,
    reason: SwitchReason = SwitchReason.GROUP_CORDONED,
    target_group: str = "",
) -> None:
    """Move the open segment away from its group, as planned; nobody waits for the answer."""
    assert partition.switch is None
    partition.switch = Switch(SwitchKind.PLANNED, reason, 0, None)
    partition.switch.target_group = target_group
    tries.begin(broker, partition, partition.switch)


def begin_genesis(broker: BrokerState, partition: Partition, event: CreatePartition) -> None:
    """Make the partition, with its first segment; one that is there already is no error."""
    if partition.chain is not None or partition.switch is not None:
        busy = errors.UnavailableError("the partition is being made", retry_after_ms=100)
        known = partition.chain is not None
        broker.out.emit(Resolved(event.request, partition.route(), None if known else busy))
        return
    partition.switch = Switch(SwitchKind.GENESIS, SwitchReason.CREATED, 0, event.request)
    partition.switch.genesis = Genesis(event.topic, event.number, event.flush, event.send_chain, event.width)
    tries.begin(broker, partition, partition.switch)
