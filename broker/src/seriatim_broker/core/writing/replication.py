"""Replication of the open segment, the master's side: it sends its batches, and moves the commit. See `following`.

On each new connection the master first asks the slave where its log ends. Before the answer nothing counts, and
acknowledgements of an older connection never count. A slave refuses every batch that is not the next one. A refusal
leads to a resume, or to a switch.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId
from seriatim_api.publications import STAGE_TOPIC

from ..consumers.groups import progress
from ..peers import updates
from ..state.broker import BrokerState
from ..state.outbox import LogDurable
from ..state.partition import Partition
from ..state.segment_log import Follower, SegmentLog
from ..switching import switch
from ..values.kinds import ReplicateRefusal, SwitchReason, TimerKind
from ..values.messages import Replicate, ReplicateAck, ReplicateRefused, TailAnswer, TailRequest
from . import appending, publication_rows, quiescence

LOOKS_AGAIN_US = 10_000_000
"""A slave that lacks a staged batch gets all bodies from the master for this long, because each miss costs a resume."""

# ---- the master: commit ---------------------------------------------------------------------------------


def on_log_durable(broker: BrokerState, partition: Partition, mark: LogDurable) -> None:
    """This member's disk has the log up to the tail in the mark."""
    log = partition.logs.get(mark.segment_no)
    if log is None or log.content_no != mark.content_no:
        return
    log.durable = max(log.durable, min(mark.tail, log.tail))
    if log.active and log.unbroken:
        _move_commit(broker, partition, log)


def _move_commit(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """Move the commit to the least index over all members; then answer batches, deliver, and notify the slaves.

    Rule `every-member` (I12): the commit waits for every member. Without it:
      1. Am has a on its disk, and commits it alone. It acknowledges a.
      2. Am's disk is lost. No other disk has a.

    Rule `tail-from-commit` (I12): if the topic commits before it flushes, `flushed` stays at what every member is known
    to have flushed. The uncertain tail begins there. Without it:
      1. Both members have a in memory, and Am commits a. Only As flushes it.
      2. The segment is sealed with a, but the uncertain tail begins above a. So no other disk gets a copy of a.
      3. The next master answers a resend of a at `replicated_flushed`. Only the disk of As has a.
    """
    flushed = min([log.durable, *(follower.durable for follower in log.followers)])
    safe = flushed if log.record.flush else min([log.tail, *(follower.received for follower in log.followers)])
    moved = log.advance_commit(broker, safe)
    was_flushed = log.flushed
    log.advance_flushed(min(flushed, log.commit))
    appending.release(broker, log)
    if partition.carryings and (moved or log.flushed > was_flushed):
        publication_rows.on_commit(broker, partition)
    if moved:
        progress.pump(partition, log.no)
        if partition.quiescence is not None:
            quiescence.report_quiet(broker, partition, log)
    if log.flushed > was_flushed and log.untold_since_us is None:
        log.untold_since_us = broker.now.mono_us
    if log.untold_since_us is not None:
        broker.poll(_tells_after_us(broker, partition), TimerKind.COMMIT, partition.id)


def _tells_after_us(broker: BrokerState, partition: Partition) -> int:
    """For how long the commit waits for a frame that carries it: 50 ms, but 2 ms if a slave needs it at once.

    A frame for the commit of each single message costs a master and a slave a tenth of their work at low rates. So the
    commit waits, unless a slave serves from it: consumers of the open segment, or the staged batches of a publication.

    No promise needs it. A fenced slave answers with its tail, and never with the commit that it knows (rules
    `settle-tail`, `own-commit`). A range read that a slave cannot answer yet goes to the master (`range-end-by-any`).
    What a slave does not know as flushed stays in its uncertain tail, so a switch copies more, and not less.
    """
    chain = partition.chain
    if chain is None or chain.open_segment.server != broker.member or chain.topic == STAGE_TOPIC:
        return broker.config.commit_idle_us
    return broker.config.commit_late_us


def tell_commit(broker: BrokerState, partition: Partition) -> None:
    """Send the commit alone if no frame carried it to the slaves for as long as it may wait (`_tells_after_us`).

    The master reports the index up to which every member has flushed. If the topic flushes before it commits, this
    index is the commit. Otherwise the commit may be higher. The slave needs the lower index, because its uncertain tail
    begins there if it is fenced.
    """
    log = _led_log(partition)
    if log is None or log.untold_since_us is None:
        return
    left_us = log.untold_since_us + _tells_after_us(broker, partition) - broker.now.mono_us
    if left_us > 0:  # a frame carried the commit meanwhile, and then it moved again
        broker.poll(left_us, TimerKind.COMMIT, partition.id)
        return
    log.untold_since_us = None
    for follower in log.followers:
        if follower.in_step:
            broker.send(follower.member, Replicate(partition.id, log.no, log.record.switch_attempt, log.flushed, ()))


def _led_log(partition: Partition) -> SegmentLog | None:
    """The log of the open segment, if this member is its unbroken master and no fence stopped it."""
    log = partition.open_log()
    return log if log is not None and log.active and log.unbroken else None


# ---- the master: followers ------------------------------------------------------------------------------


def begin(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """The segment is open, and this member is its master: ask each slave where its log ends."""
    log.followers = tuple(Follower(member) for member in log.record.members[1:])
    for follower in log.followers:
        _resume_follower(broker, partition, log, follower)


def _resume_follower(broker: BrokerState, partition: Partition, log: SegmentLog, follower: Follower) -> None:
    """Ask a slave where its log ends. This is the first message on a connection.

    Rule `old-acks` (I12): acknowledgements of an older connection do not count. Without it:
      1. The master has sent a on the old connection. The connection breaks, and a is lost with it.
      2. On the new connection the master believes that the slave has all that was sent.
      3. It commits a, and acknowledges it. Only its own disk has a.
    """
    _out_of_step(broker, partition, follower)
    broker.send(follower.member, TailRequest(partition.id, log.no, log.record.switch_attempt))


def _out_of_step(broker: BrokerState, partition: Partition, follower: Follower) -> None:
    """Count a slave as out of step: it has twice `resume_us` (0.4 s) to resume, because nothing commits without it."""
    follower.in_step = False
    if follower.out_of_step_us is None:
        follower.out_of_step_us = broker.now.mono_us
        broker.poll(2 * broker.config.resume_us, TimerKind.STEP, partition.id)


def on_step_due(broker: BrokerState, partition: Partition) -> None:
    """Begin a switch if a slave has been out of step for twice `resume_us` (0.4 s)."""
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
    """Ask the slaves that are out of step again where their logs end."""
    log = _led_log(partition)
    if log is None:
        return
    for follower in log.followers:
        if not follower.in_step and broker.is_linked(follower.member):
            _resume_follower(broker, partition, log, follower)


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A slave is linked, perhaps again: ask it where its log ends."""
    log = _led_log(partition)
    follower = log.follower(member) if log is not None else None
    if log is not None and follower is not None:
        _resume_follower(broker, partition, log, follower)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """The link to a slave is lost: the slave is out of step until it resumes."""
    log = partition.open_log()
    follower = log.follower(member) if log is not None else None
    if follower is not None:
        _out_of_step(broker, partition, follower)


def on_tail_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: TailAnswer) -> None:
    """A slave says where its log ends: send it the batches that follow, or begin a switch if its log disagrees.

    Rule `resume-durable` (I12): after a reconnect, only what the slave says is flushed counts as flushed. Without it:
      1. The slave has a in memory, and has not flushed it. The connection breaks.
      2. The slave comes back with a tail that includes a. The master believes that a is flushed, and commits it.
      3. The slave loses power and the master its disk. No disk has a.
    """
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or log.record.switch_attempt != message.switch_attempt:
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
    if len(log.followers) == 1:  # else the others may lack the newest commit still
        log.untold_since_us = None
    broker.send(sender, Replicate(partition.id, log.no, log.record.switch_attempt, log.flushed, rest))
    _move_commit(broker, partition, log)


def on_replicate_ack(broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateAck) -> None:
    """A slave has received or flushed more: move the commit."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or log.record.switch_attempt != message.switch_attempt:
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
    """A slave refuses batches: one is missing, its log is fenced, a staged body is missing, or its log is not open."""
    log = partition.logs.get(message.segment_no)
    if log is None or not log.active or log.record.switch_attempt != message.switch_attempt:
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
        partition.read_chain(broker)  # perhaps this member has not heard of a newer record
        broker.poll(broker.config.commit_idle_us, TimerKind.FOLLOW, partition.id)
    else:
        partition.read_chain(broker)
        switch.begin_failover(broker, partition, SwitchReason.FOLLOWER_FENCED, log.no)
