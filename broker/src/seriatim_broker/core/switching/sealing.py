"""What a switch has to know before it seals: it fences members, waits for their answers, and decides."""

from __future__ import annotations

from seriatim_api.ids import MemberId, RunId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Switch, SwitchKind, SwitchPhase
from ..values.effects import ReadCertificate
from ..values.kinds import SwitchReason, TimerKind
from ..values.messages import FenceAnswer, FenceProgress, FenceRequest, TableRequest
from ..values.producers import NO_TABLE, ProducerTable, Table, merge
from . import lengths, opening, tries


def fence(broker: BrokerState, partition: Partition, switch: Switch, members: tuple[MemberId, ...]) -> None:
    switch.enter(SwitchPhase.FENCING)
    switch.sealing.pending = dict.fromkeys(members, False)
    tries.set_deadline(broker, partition, switch, broker.config.fence_timeout_us << switch.tries)
    for member in members:
        ask_fence(broker, partition, switch, member)
    decide_or_wait(broker, partition, switch)


def ask_fence(broker: BrokerState, partition: Partition, switch: Switch, member: MemberId) -> None:
    assert switch.chain is not None
    if not broker.is_linked(member):
        broker.connect(member.broker)
        return
    switch.sealing.pending[member] = True
    attempt = switch.chain.open_segment.attempt
    broker.send(member, FenceRequest(partition.id, switch.segment_no, attempt, switch.id))


def on_fence_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: FenceAnswer) -> None:
    """A member is fenced, and says what it has."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is not SwitchPhase.FENCING or message.switch != switch.id or sender not in switch.sealing.pending:
        return
    if message.coordinator_behind:
        tries.pause(broker, partition, switch)  # what this member knows, the record may not have
        return
    del switch.sealing.pending[sender]
    if message.fenced:
        switch.fenced = True
        switch.sealing.answers[sender] = message
        if switch.sealing.first_answer_us is None:
            switch.sealing.first_answer_us = broker.now.mono_us
    decide_or_wait(broker, partition, switch)


def on_fence_progress(broker: BrokerState, partition: Partition, sender: MemberId, message: FenceProgress) -> None:
    """A member is fenced and has much to say: it gets the time for it, if nothing else is known yet.

    Without it: (1) a large table needs longer than `fence_timeout_us`; (2) the certificate of the master is there,
    so the segment is opened over, though a member is about to say how long it is.
    """
    switch = partition.switch
    if switch is None:
        return
    if (
        switch.phase is SwitchPhase.FENCING
        and message.switch == switch.id
        and switch.sealing.pending.get(sender)
        and not switch.sealing.answers
    ):
        config = broker.config
        more_us = config.fence_turn_us + config.transfer_us(min(message.size_bytes, 2 * config.table_bytes_max))
        tries.set_deadline(broker, partition, switch, (config.fence_timeout_us << switch.tries) + more_us)


def decide_or_wait(broker: BrokerState, partition: Partition, switch: Switch, timed_out: bool = False) -> None:
    """Go on once the best answer is there, or nobody else can give one, or the time is up."""
    with_length = lengths.believed(broker, partition, switch)
    if with_length and _waits_for_second(broker, switch, with_length):
        return
    hopeless = not any(sent or not broker.is_gone(member) for member, sent in switch.sealing.pending.items())
    if (
        any(switch.sealing.answers[member].unbroken for member in with_length)
        or (with_length and hopeless)
        or (timed_out and with_length)
    ):
        _decide(broker, partition, switch, with_length)
    elif timed_out or hopeless:
        if switch.kind is SwitchKind.PLANNED:
            tries.become_failover(broker, partition, switch, SwitchReason.PLAN_MASTER_DIED)
        elif switch.sealing.answers:
            _open_over(broker, partition, switch)  # only suspects answered: fenced, but no length to trust
        else:
            _ask_certificate(broker, partition, switch)
    elif with_length:
        tries.set_deadline(broker, partition, switch, broker.config.fence_wait_us)


def _waits_for_second(broker: BrokerState, switch: Switch, with_length: list[MemberId]) -> bool:
    """Whether the other members get some more time, because only disks that were just started have answered.

    Rule `second-member` (I1): both members went down, and one is back. Its disk may be an older copy, made within
    the last run, which nothing else tells. The other member knows better, and is probably on its way.
    """
    assert switch.sealing.first_answer_us is not None
    if not all(switch.sealing.answers[member].from_disk for member in with_length):
        return False
    awaited = [member for member in switch.sealing.pending if not broker.directory.is_replaced(member)]
    until_us = switch.sealing.first_answer_us + broker.config.second_member_us
    if not awaited or broker.now.mono_us >= until_us:
        return False
    assert switch.chain is not None
    switch.deadline_us = until_us
    broker.wake(until_us, TimerKind.SWITCH, switch.chain.partition)
    return True


def _decide(broker: BrokerState, partition: Partition, switch: Switch, with_length: list[MemberId]) -> None:
    """The unbroken master's commit; else the shortest answered tail (any would be safe, it copies least)."""
    assert switch.chain is not None
    switch.sealing.source = lengths.choose_source(switch, with_length)
    answer = switch.sealing.answers[switch.sealing.source]
    switch.sealing.table = answer.table
    switch.sealing.table_complete = not answer.incomplete_table
    before = switch.chain.before(switch.segment_no)
    mergeable = (
        not switch.sealing.table_complete and not switch.sealing.table.blocks
    )  # blocks are named only if it is too large
    if mergeable and before is not None and switch.chain.settled_before(switch.segment_no):
        switch.enter(SwitchPhase.TABLES)
        tries.set_deadline(broker, partition, switch, broker.config.table_timeout_us)
        broker.send(before.server, TableRequest(partition.id, before.no))
    else:
        opening.choose_groups(broker, partition, switch)


def on_table(broker: BrokerState, partition: Partition, segment_no: int, table: Table | None) -> None:
    """What lies in all segments before is known: the next segment opens with a complete table again."""
    switch = partition.switch
    if switch is None:
        return
    before = switch.chain.before(switch.segment_no) if switch.chain is not None else None
    if switch.phase is not SwitchPhase.TABLES or before is None or segment_no != before.no:
        return
    if table is not None:
        merged = merge([ProducerTable(table), ProducerTable(switch.sealing.table)]).at_rest()
        if merged.size_bytes <= broker.config.spelled_out_bytes_max:
            switch.sealing.table = merged
            switch.sealing.table_complete = True
    opening.choose_groups(broker, partition, switch)


def _ask_certificate(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Nobody answers: only a certificate that the master's run has ended allows to open over it."""
    assert switch.chain is not None
    switch.enter(SwitchPhase.CERTIFYING)
    tries.set_deadline(broker, partition, switch, broker.config.fence_timeout_us)
    broker.out.emit(ReadCertificate(partition.id, switch.chain.open_segment.master_run_id))


def on_certificate(broker: BrokerState, partition: Partition, run: RunId, exists: bool | None) -> None:
    """Whether the master's run is certified to have ended: by its own certificate, or a later run's of its disk.

    An earlier run's does not: (1) the master's run 0 ended yesterday; (2) run 1 opened this segment and is merely
    unreachable; (3) with yesterday's certificate the next segment is opened while run 1 goes on acknowledging (I7).
    """
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is not SwitchPhase.CERTIFYING:
        return
    assert switch.chain is not None
    wanted = switch.chain.open_segment.master_run_id
    if exists and run.member == wanted.member and run.run >= wanted.run:
        switch.sealing.certificate = run
        _open_over(broker, partition, switch)
    else:
        tries.pause(broker, partition, switch)


def _open_over(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    switch.sealing.source = None
    switch.sealing.table = NO_TABLE
    switch.sealing.table_complete = False
    opening.choose_groups(broker, partition, switch)
