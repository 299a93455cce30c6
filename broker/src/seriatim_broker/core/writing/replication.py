"""Replication of the open segment, the master's side: it sends its batches, and the commit moves. See `following`.

On each new connection the master asks a follower where it is before anything counts: acknowledgements of an older
connection do not. Everything that is not the very next thing ends in a refusal, and a refusal in a resume or a switch.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..consumers import delivery
from ..peers import updates
from ..state.broker import BrokerState
from ..state.outbox import LogDurable
from ..state.partition import Partition
from ..state.segment_log import Follower, SegmentLog
from ..switching import switch
from ..values.kinds import ReplicateRefusal, SwitchReason, TimerKind
from ..values.messages import ReplicaTail, Replicate, ReplicateAck, ReplicateRefused, ResumeReplica
from . import appending, carrying, quiescence

LOOKS_AGAIN_US = 10_000_000
"""A follower that did not find a staged batch on its disk is sent bodies for so long: each miss costs a resume."""

# ---- the master: commit ---------------------------------------------------------------------------------


def on_log_durable(broker: BrokerState, partition: Partition, mark: LogDurable) -> None:
    """This member's disk has the log up to there."""
    log = partition.logs.get(mark.segment_no)
    if log is None or log.generation != mark.generation:
        return
    log.durable = max(log.durable, min(mark.tail, log.tail))
    if log.active and log.unbroken:
        _move_commit(broker, partition, log)


def _move_commit(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """Commit is the least index over all members; replies, readers and followers hear of it."""
    flushed = min([log.durable, *(follower.durable for follower in log.followers)])
    safe = flushed if log.record.flush else min([log.tail, *(follower.received for follower in log.followers)])
    moved = log.advance_commit(safe)
    was_flushed = log.flushed
    log.advance_flushed(min(flushed, log.commit))
    appending.release(broker, log)
    if partition.carryings and (moved or log.flushed > was_flushed):
        carrying.on_commit(broker, partition)
    if moved:
        delivery.pump(broker, partition, log.no)
        if partition.quiescence is not None:
            quiescence.report_quiet(broker, partition, log)
    if log.told_flushed < log.flushed:
        broker.poll(broker.config.commit_idle_us, TimerKind.COMMIT, partition.id)


def tell_commit(broker: BrokerState, partition: Partition) -> None:
    """No frame carried the commit to the followers for a while: it goes alone.

    What a follower is told is how far every member has flushed. Where the topic flushes before it commits, that is the
    commit. Where it does not, the commit may be further; the follower needs the lower one, because it begins its
    uncertain tail there if it is fenced.
    """
    log = _led_log(partition)
    if log is None or log.told_flushed >= log.flushed:
        return
    log.told_flushed = log.flushed
    for follower in log.followers:
        if follower.in_step:
            broker.send(follower.member, Replicate(partition.id, log.no, log.record.attempt, log.flushed, ()))


def _led_log(partition: Partition) -> SegmentLog | None:
    """The log of the open segment, if this member is its master and goes on."""
    log = partition.open_log()
    return log if log is not None and log.active and log.unbroken else None


# ---- the master: followers ------------------------------------------------------------------------------


def begin(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """The segment is open, and this member its master."""
    log.followers = tuple(Follower(member) for member in log.record.members[1:])
    for follower in log.followers:
        _resume_follower(broker, partition, log, follower)


def _resume_follower(broker: BrokerState, partition: Partition, log: SegmentLog, follower: Follower) -> None:
    """First word on a connection: where are you? Acknowledgements of an older connection do not count."""
    _out_of_step(broker, partition, follower)
    broker.send(follower.member, ResumeReplica(partition.id, log.no, log.record.attempt))


def _out_of_step(broker: BrokerState, partition: Partition, follower: Follower) -> None:
    """Without this follower nothing commits: it has a while to come back, then the segment moves on."""
    follower.in_step = False
    if follower.out_of_step_us is None:
        follower.out_of_step_us = broker.now.mono_us
        broker.poll(2 * broker.config.resume_us, TimerKind.STEP, partition.id)


def on_step_due(broker: BrokerState, partition: Partition) -> None:
    """Is a follower out of step for too long?"""
    log = _led_log(partition)
    if log is None:
        return
    since = [follower.out_of_step_us for follower in log.followers if follower.out_of_step_us is not None]
    if not since:
        return
    left_us = min(since) + 2 * broker.config.resume_us - broker.now.mono_us
    if left_us > 0:
        broker.poll(left_us, TimerKind.STEP, partition.id)
    else:
        switch.begin_failover(broker, partition, SwitchReason.FOLLOWER_OUT_OF_STEP, log.no)
        broker.poll(broker.config.retry_us_max, TimerKind.STEP, partition.id)


def resume_followers(broker: BrokerState, partition: Partition) -> None:
    """Ask those again that were not ready."""
    log = _led_log(partition)
    if log is None:
        return
    for follower in log.followers:
        if not follower.in_step and broker.is_linked(follower.member):
            _resume_follower(broker, partition, log, follower)


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A follower is connected (again)."""
    log = _led_log(partition)
    follower = log.follower(member) if log is not None else None
    if log is not None and follower is not None:
        _resume_follower(broker, partition, log, follower)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A follower may come back."""
    log = partition.open_log()
    follower = log.follower(member) if log is not None else None
    if follower is not None:
        _out_of_step(broker, partition, follower)


def on_replica_tail(broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicaTail) -> None:
    """A follower says where it is: send on from there."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or log.record.attempt != message.attempt:
        return
    follower = log.follower(sender)
    if follower is None:
        return
    if message.tail > log.tail or message.tail < log.commit:
        switch.begin_failover(broker, partition, SwitchReason.FOLLOWER_DISAGREES, log.no)
        return
    if message.checksum != log.checksum_at(message.tail):
        switch.begin_failover(broker, partition, SwitchReason.FOLLOWER_DISAGREES, log.no)
        return
    follower.in_step = True
    follower.out_of_step_us = None
    follower.received = message.tail
    follower.durable = message.durable
    rest = tuple(batch for batch in log.uncertain if batch.header.base_index >= message.tail)
    log.told_flushed = log.flushed
    broker.send(sender, Replicate(partition.id, log.no, log.record.attempt, log.flushed, rest))
    _move_commit(broker, partition, log)


def on_replicate_ack(broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateAck) -> None:
    """A follower has more."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or log.record.attempt != message.attempt:
        return
    follower = log.follower(sender)
    if follower is None or not follower.in_step:
        return
    follower.received = max(follower.received, min(message.received, log.tail))
    follower.durable = max(follower.durable, min(message.durable, log.tail))
    _move_commit(broker, partition, log)


def on_replicate_refused(
    broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateRefused
) -> None:
    """A follower takes no more: it lost step, was fenced, or did not hear yet that the segment is open."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or log.record.attempt != message.attempt:
        return
    follower = log.follower(sender)
    if follower is None:
        return
    if message.reason == ReplicateRefusal.GAP:
        if follower.in_step:
            _resume_follower(broker, partition, log, follower)
    elif message.reason == ReplicateRefusal.STAGED:
        follower.looks_from_us = broker.now.mono_us + LOOKS_AGAIN_US
        if follower.in_step:
            _resume_follower(broker, partition, log, follower)
    elif message.reason == ReplicateRefusal.NOT_OPENED and partition.chain is not None:
        _out_of_step(broker, partition, follower)
        updates.tell_member(broker, partition, sender)
        partition.read_chain(broker)  # perhaps it is this member that has not heard
        broker.poll(broker.config.commit_idle_us, TimerKind.FOLLOW, partition.id)
    else:
        partition.read_chain(broker)
        switch.begin_failover(broker, partition, SwitchReason.FOLLOWER_FENCED, log.no)
