"""The first half of a switch: it fences members, waits for their answers, and decides what is sealed."""

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
    """Step 2: ask these members of the open segment to fence it."""
    switch.enter(SwitchPhase.FENCING)
    switch.sealing.pending = dict.fromkeys(members, False)
    tries.set_deadline(broker, partition, switch, broker.config.fence_timeout_us << switch.tries)
    for member in members:
        ask_fence(broker, partition, switch, member)
    decide_or_wait(broker, partition, switch)


def ask_fence(broker: BrokerState, partition: Partition, switch: Switch, member: MemberId) -> None:
    """Ask one member, or connect to it if there is no link yet."""
    assert switch.chain is not None
    if not broker.is_linked(member):
        broker.connect(member.broker)
        return
    switch.sealing.pending[member] = True
    attempt = switch.chain.open_segment.switch_attempt
    broker.send(member, FenceRequest(partition.id, switch.segment_no, attempt, switch.id))


def on_fence_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: FenceAnswer) -> None:
    """A member answers: it is fenced and says what it has, or it does not know the segment."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is not SwitchPhase.FENCING or message.switch != switch.id or sender not in switch.sealing.pending:
        return
    if message.coordinator_behind:
        tries.pause(broker, partition, switch)  # the member knows decisions that the record may have lost
        return
    del switch.sealing.pending[sender]
    if message.fenced:
        switch.fenced = True
        switch.sealing.answers[sender] = message
        if switch.sealing.first_answer_us is None:
            switch.sealing.first_answer_us = broker.now.mono_us
    decide_or_wait(broker, partition, switch)


def on_fence_progress(broker: BrokerState, partition: Partition, sender: MemberId, message: FenceProgress) -> None:
    """A member says that its answer to the fence is large: give it more time, if no member has answered yet.

    Without it:
      1. A large table takes longer than `fence_timeout_us`.
      2. The death certificate of the master's member run is in the coordinator.
      3. So the segment is opened over, although a member was about to answer its length.
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
    """Decide if an unbroken master has answered, no other member can answer, or the deadline has passed; else wait."""
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
            _open_over(broker, partition, switch)  # only suspects answered: they are fenced, but gave no length
        else:
            _ask_certificate(broker, partition, switch)
    elif with_length:
        tries.set_deadline(broker, partition, switch, broker.config.fence_wait_us)


def _waits_for_second(broker: BrokerState, switch: Switch, with_length: list[MemberId]) -> bool:
    """Whether to wait for the other members, because only disks that were just started have answered."""
    # Rule `second-member` (I1): if only disks that were just started have answered, the switcher waits
    # `second_member_us` (3 s) for the other members. Without it:
    #   1. a is acknowledged. Both members go down.
    #   2. As's directory is replaced by an older copy from the same member run. The run does not show that it is older.
    #   3. As starts first, and answers tail 0. The switcher seals at 0, a moment before Am is back with a.
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
    """Step 3: choose the answer that decides length and table.

    If the table is incomplete, ask for the table of the segments before, to merge both; else continue to step 4.
    """
    assert switch.chain is not None
    switch.sealing.source = lengths.choose_source(switch, with_length)
    answer = switch.sealing.answers[switch.sealing.source]
    switch.sealing.table = answer.table
    switch.sealing.table_complete = not answer.incomplete_table
    before = switch.chain.before(switch.segment_no)
    mergeable = (
        not switch.sealing.table_complete and not switch.sealing.table.blocks
    )  # an incomplete table names blocks only if it is too large to be merged
    if mergeable and before is not None and switch.chain.settled_before(switch.segment_no):
        switch.enter(SwitchPhase.TABLES)
        tries.set_deadline(broker, partition, switch, broker.config.table_timeout_us)
        broker.send(before.server, TableRequest(partition.id, before.no))
    else:
        opening.choose_broker_groups(broker, partition, switch)


def on_table(broker: BrokerState, partition: Partition, segment_no: int, table: Table | None) -> None:
    """The table of all segments before arrived: merge it, so that the next segment opens with a complete table.

    Without an answer, or with a merge above `spelled_out_bytes_max` (24 MiB), the table stays incomplete.
    """
    switch = partition.switch
    if switch is None:
        return
    before = switch.chain.before(switch.segment_no) if switch.chain is not None else None
    if switch.phase is not SwitchPhase.TABLES or before is None or segment_no != before.no:
        return
    if table is not None:
        # Rule `merge-empty` (I13): the mark goes only if the tables of the settled segments are in the merged one.
        # Without it:
        #   1. P sent sequence 56 to segment 2, which was UNSETTLED when segment 3 was opened, with an incomplete table.
        #   2. Segment 2 is settled. Segment 4 opens, unmarked, with the table of segment 3 only.
        #   3. P's next batch, sequence 57, is refused as a gap, for ever.
        merged = merge([ProducerTable(table), ProducerTable(switch.sealing.table)]).at_rest()
        if merged.size_bytes <= broker.config.spelled_out_bytes_max:
            switch.sealing.table = merged
            switch.sealing.table_complete = True
    opening.choose_broker_groups(broker, partition, switch)


def _ask_certificate(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """No member answers: read whether the death certificate of the master's member run is in the coordinator."""
    assert switch.chain is not None
    switch.enter(SwitchPhase.CERTIFYING)
    tries.set_deadline(broker, partition, switch, broker.config.fence_timeout_us)
    broker.out.emit(ReadCertificate(partition.id, switch.chain.open_segment.master_run_id))


def on_certificate(broker: BrokerState, partition: Partition, run: RunId, exists: bool | None) -> None:
    """Open over the segment if the master's member run is certified to have ended; else pause the switch.

    The certificate of a later member run of the same disk proves as much.
    """
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is not SwitchPhase.CERTIFYING:
        return
    assert switch.chain is not None
    wanted = switch.chain.open_segment.master_run_id
    # Rule `certificate` (I7): without a length, the segment is opened over only with the master's death certificate.
    # Without it:
    #   1. Am and As are alive, after a cut cable. The switcher reaches neither, and opens segment 2 on B.
    #   2. Q's x is acknowledged at 2:0. P can still reach Am, sends y after that, and has it acknowledged at 1:7.
    #   3. y was sent after x was acknowledged, and comes before x.
    #
    # Rule `old-certificate` (I7): one of an earlier member run proves nothing. Without it:
    #   1. Bm's member run 0 ended yesterday, and its certificate is there.
    #   2. Member run 1 opened segment 2, and is only unreachable.
    #   3. The switcher opens segment 3 with yesterday's certificate, while member run 1 keeps acknowledging.
    if exists and run.member == wanted.member and run.run >= wanted.run:
        switch.sealing.certificate = run
        _open_over(broker, partition, switch)
    else:
        tries.pause(broker, partition, switch)


def _open_over(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Open the next segment without a length of this one, which becomes UNSETTLED."""
    # Rule `mark-inherited` (I13), with `opening._content`: no member gave a table, so the next one is incomplete.
    switch.sealing.source = None
    switch.sealing.table = NO_TABLE
    switch.sealing.table_complete = False
    opening.choose_broker_groups(broker, partition, switch)
