"""Fencing: what a member answers to a switcher, and what it does if no switcher finishes.

A fence forbids appends to a segment for ever. Fencing and reading the answer are one step: nothing is appended or
committed between the fence and the answered tail. The answer leaves when both are on the disk.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId, PartitionId

from ..peers import right, updates
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..state.switching import FenceTurn
from ..values.chain import Chain
from ..values.effects import Send
from ..values.kinds import SwitchReason, TimerKind
from ..values.log import LocalSegment, Preparation, PutSegment
from ..values.messages import ChainUpdate, FenceAnswer, FenceProgress, FenceRequest
from ..values.producers import NO_TABLE, ProducerTable, Table
from ..values.segment import SegmentState
from . import preparing, switch

# ---- at start -------------------------------------------------------------------------------------------


def fence_at_start(broker: BrokerState, partition: Partition) -> None:
    """Fence every segment that an earlier member run opened, and void what it prepared as a master."""
    # Rule `fence-durable` (I6), with `SegmentLog.fence`; and the second line of defence behind `start-fence`, whose
    # story is at `SegmentLog.recovered`.
    fence_unsealed(broker, partition)
    for log in partition.logs.values():
        if log.record.sealed_len is None and log.table is not None:
            log.keep_small(broker)
    preparing.void_switch_attempts(broker, partition)


def fence_unsealed(broker: BrokerState, partition: Partition) -> None:
    """Fence every segment that is not known to be sealed."""
    for log in partition.unsealed_logs():
        if not log.record.fenced:
            log.fence(broker)


# ---- for a switcher -------------------------------------------------------------------------------------


def on_fence(broker: BrokerState, partition: Partition, sender: MemberId, message: FenceRequest) -> None:
    """Fence the segment and answer what this member has of it, in one step.

    The answer leaves when the fence and everything that it speaks of are on the disk. A switcher that comes too late
    gets the newer chain record instead.
    """
    if _answer_decided(broker, partition, sender, message.segment_no):
        return
    if _refuse_behind(broker, partition, sender, message):
        return
    log = partition.logs.get(message.segment_no)
    if log is None:
        preparation = partition.preparations.get((message.segment_no, message.switch_attempt))
        if preparation is None:
            broker.send(sender, _ignorant(partition.id, message))
            return
        record = LocalSegment(
            message.segment_no,
            message.switch_attempt,
            preparation.members,
            preparation.flush,
            preparation.incomplete_table,
            fenced=True,
            producers_max=preparation.producers_max,
        )
        log = SegmentLog(partition.id, record, preparation.table, partition.blocks)
        log.suspect = is_suspect(broker, preparation, record)
        log.is_from_disk = preparation.member_run != broker.member_run
        partition.add_log(log)
        broker.out.write(PutSegment(partition.id, record))
    if not _waits_for_turn(broker, partition, log, sender, message):
        _fence(broker, partition, log, sender, message)


def _fence(broker: BrokerState, partition: Partition, log: SegmentLog, sender: MemberId, message: FenceRequest) -> None:
    answer = fence_and_answer(broker, partition, log, message)
    broker.out.when_durable(Send(sender.broker, answer))
    note_fenced(broker, partition)


def _waits_for_turn(
    broker: BrokerState, partition: Partition, log: SegmentLog, sender: MemberId, message: FenceRequest
) -> bool:
    """Whether this switcher has to wait, because another one is being given the large table.

    Usually two switchers run: a member of the segment, and the broker that a client complains to. Without turns, both
    carry the same table to the same members of the next broker group, and both are slow. So this member answers the
    second switcher `fence_turn_us` (150 ms) after the first one, or when its link to the first one is lost. If the
    first one succeeds, the second one gets the new record. Both learn at once how many bytes the answer has.
    """
    config, turn = broker.config, partition.fence_turn
    size_bytes = log.live_table.size_bytes + log.uncertain_bytes
    if size_bytes < config.fence_turn_bytes:
        return False
    broker.send(sender, FenceProgress(partition.id, log.no, message.switch, size_bytes))
    if turn is None or turn.segment_no != log.no or broker.now.mono_us >= turn.until_us:
        until_us = broker.now.mono_us + config.fence_turn_us
        partition.fence_turn = FenceTurn(sender, log.no, until_us)
        broker.poll(config.fence_turn_us, TimerKind.FENCE_TURN, partition.id)
        return False
    if sender == turn.switcher:
        return False
    others = tuple(wait for wait in turn.waiting if wait[0] != sender)
    partition.fence_turn = turn._replace(waiting=(*others, (sender, message)))
    return True


def on_turn_over(broker: BrokerState, partition: Partition) -> None:
    """The time of the first switcher is over: answer those that wait."""
    turn = partition.fence_turn
    if turn is not None and broker.now.mono_us < turn.until_us:  # the timer was for an earlier turn
        broker.poll(turn.until_us - broker.now.mono_us, TimerKind.FENCE_TURN, partition.id)
    else:
        end_turn(broker, partition)


def end_turn(broker: BrokerState, partition: Partition) -> None:
    """Answer the switchers that waited."""
    turn, partition.fence_turn = partition.fence_turn, None
    log = partition.logs.get(turn.segment_no) if turn is not None else None
    for sender, message in turn.waiting if turn is not None else ():
        if log is None or _answer_decided(broker, partition, sender, message.segment_no):
            continue
        if not _refuse_behind(broker, partition, sender, message):
            _fence(broker, partition, log, sender, message)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """If the switcher whose turn it is cannot be reached any more, answer the ones that wait."""
    if partition.fence_turn is not None and partition.fence_turn.switcher == member:
        end_turn(broker, partition)


def on_learned(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """A switcher succeeded: notify those that wait."""
    turn = partition.fence_turn
    if turn is not None and turn.segment_no < chain.open_segment.no:
        end_turn(broker, partition)


def is_suspect(broker: BrokerState, chosen: Preparation | None, record: LocalSegment) -> bool:
    """Whether this member may have had a log of the segment and lost it, because it was not flushed to the disk.

    Only a topic that does not flush before commit can lose a log in this way.
    """
    return not record.flush and (chosen.member_run if chosen is not None else 0) < broker.suspect_before_run


def fence_and_answer(broker: BrokerState, partition: Partition, log: SegmentLog, message: FenceRequest) -> FenceAnswer:
    """Fence the log and read the answer, in one step."""
    # Rule `tail-first` (I6): first the fence, then the answer, with nothing between them. Without it:
    #   1. The switcher reads tail 0 from As.
    #   2. a arrives at As. Both members flush it, and Am acknowledges a.
    #   3. The switcher fences As and seals at 0. a is lost (I1).
    #
    # Rule `rest-is-enough` (I6): this also holds in a planned switch, in which the master rests. Without the fence:
    #   1. The master rests, and answers with tail 5. Its plan takes too long.
    #   2. The master gives the plan up, takes its queued batches, and acknowledges a at index 5.
    #   3. The transaction of the switch is carried out and seals at 5. a is lost (I1).
    #
    # Rule `failed-early` (I10): a fence answers no producer. Without it:
    #   1. Am stores a, is fenced by switcher 1 and answers a's producer `failed`, because a is above its commit.
    #   2. Switcher 2 reads tail 1 from As, and its transaction seals at 1, with a in it.
    #   3. a is delivered, although its outcome was `failed`.
    log.fence(broker)
    right.refuse_server(broker, partition, log.no)
    return fence_answer(broker, log, message)


def fence_answer(broker: BrokerState, log: SegmentLog, message: FenceRequest) -> FenceAnswer:
    """What this member has: an unbroken master answers with its commit, every other member with its tail."""
    # Rule `unbroken` (I6): a restarted master answers with its tail. Without it:
    #   1. Am acknowledges a, and restarts.
    #   2. Am remembers the commit that it last made durable, which is 0, and answers that.
    #   3. The switcher seals at 0. a is lost (I1).
    here = log.commit if log.unbroken else log.tail
    table = table_as_of(broker, log, here) if not log.suspect else None
    length = here if table is not None else None
    return FenceAnswer(
        partition=log.partition,
        segment_no=log.no,
        switch=message.switch,
        fenced=True,
        length=length,
        checksum=log.checksum_at(length) if length is not None else 0,
        unbroken=log.unbroken,
        commit=log.flushed,
        last_append_ms=log.append_time_at(length) if length is not None else log.last_append_ms,
        table=table if table is not None else NO_TABLE,
        incomplete_table=log.record.incomplete_table,
        tail=log.tail_copy(length).batches if length is not None else (),
        from_disk=log.is_from_disk,
        size_bytes=log.size_at(length) if length is not None else None,
        delayed_until_ms=log.delayed_until_ms,
    )


def table_as_of(broker: BrokerState, log: SegmentLog, length: int) -> Table | None:
    """The producer table below `length`; None if it is too large for a message.

    The table names its idle blocks, unless the switcher has to merge it. A table that is too large for a merge keeps
    the names, and the next segment keeps the mark *incomplete*.

    The limit is `table_bytes_max` (192 MiB). Above it the member answers no table and no length. The next segment is
    then opened over this one, and a member settles this one later. Without the limit, the switcher would take a part of
    the table for the whole table, and repeats of the other producers would be stored again (I9).
    """
    config, table = broker.config, log.table_as_of(length)
    if table.blocks and log.record.incomplete_table:
        live = ProducerTable(table, (), {block.id: block for block in log.live_table.blocks})
        spelled_out = live.spelled_out(config.spelled_out_bytes_max)
        table = spelled_out if spelled_out is not None else table
    if table.size_bytes <= config.table_bytes_max:
        return table
    producers = table.row_count + sum(name.producer_count for name in table.blocks)
    broker.out.note("table_too_large", log.partition, segment=log.no, producers=producers)
    return None


def _answer_decided(broker: BrokerState, partition: Partition, sender: MemberId, segment_no: int) -> bool:
    """If the segment is decided already, send the switcher the newer chain record, and return True."""
    decided = partition.decided
    if decided is None:
        return False
    segment = decided.segment(segment_no)
    if segment is not None and segment.state is SegmentState.OPEN:
        return False
    if segment is None and segment_no > decided.open_segment.no:
        return False
    if partition.chain is not None:
        updates.tell_member(broker, partition, sender)
    else:
        broker.send(sender, ChainUpdate(decided, 0))
    return True


def _refuse_behind(broker: BrokerState, partition: Partition, sender: MemberId, message: FenceRequest) -> bool:
    """If the coordinator has lost decisions, or may have, send the switcher this and no length, and return True."""
    # Rule `no-fence-behind` (I7): the switcher may not know yet that the coordinator went back. Without it:
    #   1. Segment 1 is sealed, and segment 2 is open on B. An older copy is restored, in which segment 1 is open.
    #   2. A is a member of segment 1 and was down at the switch. The revisions that it has seen show it the loss.
    #   3. C reads the older copy. A sends C the length of segment 1, and C opens segment 2 again.
    #
    # Rule `told-gives-no-length` (I7): nor if this member was only notified of a later segment, and has not read the
    # record yet. Either the switcher is late, or the coordinator lost that segment. Without it:
    #   1. B opens segment 2, and sends the members of segment 1 changes of the record that they cannot apply.
    #   2. The coordinator is away before they can read the record. B restarts.
    #   3. An older copy of the coordinator comes back, in which segment 1 is open.
    #   4. C reads the older copy. The members of segment 1 send C its length, and C opens segment 2 again.
    is_refused = bool(broker.coordinator.behind) or partition.is_told_of_later(message.segment_no)
    if is_refused:
        broker.send(sender, replace(_ignorant(partition.id, message), coordinator_behind=True))
    return is_refused


def _ignorant(partition: PartitionId, message: FenceRequest) -> FenceAnswer:
    """The answer of a member that does not know the segment: not fenced, no length. It never means "not found"."""
    return FenceAnswer(partition, message.segment_no, message.switch, False, None, 0, False, 0, 0, NO_TABLE, True, ())


# ---- no switcher came to an end -------------------------------------------------------------------------


def note_fenced(broker: BrokerState, partition: Partition) -> None:
    """Look at the fenced segment again after `fenced_us` (200 ms), in case the switcher died."""
    if partition.fenced_at_us is None:
        partition.fenced_at_us = broker.now.mono_us
        broker.poll(broker.config.fenced_us, TimerKind.FENCED, partition.id)


def _fenced_us(broker: BrokerState, partition: Partition) -> int:
    """How long a switcher may take. The time grows with the table, which travels to it and to the next broker group."""
    log = partition.open_log()
    return broker.config.fenced_us + (
        2 * broker.config.transfer_us(log.live_table.size_bytes) if log is not None else 0
    )


def on_fenced_too_long(broker: BrokerState, partition: Partition) -> None:
    """No newer chain record arrived: run the switch here, so that the segment does not stay fenced for ever (I13)."""
    if partition.fenced_at_us is None:
        return
    left_us = partition.fenced_at_us + _fenced_us(broker, partition) - broker.now.mono_us
    if left_us > 0:
        broker.poll(left_us, TimerKind.FENCED, partition.id)
        return
    if not partition.has_unsealed:
        partition.fenced_at_us = None
        return
    log = partition.open_log()
    if log is not None and log.record.fenced and log.no == max(unsealed.no for unsealed in partition.unsealed_logs()):
        switch.begin_failover(broker, partition, SwitchReason.FENCED_TOO_LONG, log.no)
    else:
        partition.read_chain(broker)
    broker.poll(broker.config.retry_us_max, TimerKind.FENCED, partition.id)
