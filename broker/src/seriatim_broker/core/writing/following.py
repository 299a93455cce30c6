"""Replication of the open segment, a slave's side: it appends what the master sends, and says how far its log is.

Of a publication the master sends headers only, because the staged batches are on this disk too (`ReplicateStaged`).
The slave reads the body here. Until it has the body, everything that the master sends later waits behind it (`held`).
The master's limit on uncommitted bytes bounds what waits. If the body is not here, the slave says so, and the master
sends all bodies from there on.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import MemberId

from ..consumers.groups import progress
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import Held, SegmentLog
from ..values.effects import FetchStaged, Send
from ..values.events import StagedFetched
from ..values.kinds import ReplicateRefusal
from ..values.log import Batch
from ..values.messages import Replicate, ReplicateAck, ReplicateRefused, ReplicateStaged, TailAnswer, TailRequest
from ..values.states import add
from .publication_plan import is_as_staged


def on_resume(broker: BrokerState, partition: Partition, sender: MemberId, message: TailRequest) -> None:
    """The master asks where this member's log ends."""
    log = _followed_log(broker, partition, sender, message.segment_no, message.switch_attempt)
    if log is not None:
        log.held = ()  # the master sends all of it again, from the tail in this answer on
        broker.send(
            sender,
            TailAnswer(partition.id, log.no, log.record.switch_attempt, log.tail, log.tail_checksum, log.durable),
        )


def on_replicate(broker: BrokerState, partition: Partition, sender: MemberId, message: Replicate) -> None:
    """The master sent batches: append them if they are the next ones and continue the checksum chain."""
    log = _followed_log(broker, partition, sender, message.segment_no, message.switch_attempt)
    if log is None:
        return
    if log.held and message.batches:
        _hold(broker, partition, log, message)
    else:
        _take(broker, partition, log, message)


def on_replicate_staged(broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateStaged) -> None:
    """The master sent the header of a published batch: read the body on this disk."""
    log = _followed_log(broker, partition, sender, message.segment_no, message.switch_attempt)
    if log is not None and message.header.end_index > log.tail:
        _hold(broker, partition, log, message)


def _take(
    broker: BrokerState, partition: Partition, log: SegmentLog, message: Replicate, adopts: BatchHeader | None = None
) -> bool:
    """Append what the master sent; False if it does not continue the log here. `adopts`: see `PutBatch`.

    Rule `slave-flushes` (I12): a slave acknowledges only what it has flushed. Without it:
      1. As has a in memory, and acknowledges it as flushed. Am commits a, and acknowledges it.
      2. As loses power. Only Am's disk has a.
    """
    master = log.record.members[0]
    for batch in message.batches:
        if batch.header.end_index <= log.tail:
            continue  # the master sent it again after a resume
        if not log.follow(broker, batch, adopts, may_wait=message.may_wait):
            broker.send(master, ReplicateRefused(partition.id, log.no, log.record.switch_attempt, ReplicateRefusal.GAP))
            return False
    commit = min(message.commit, log.tail)
    if log.advance_commit(broker, commit):
        log.advance_flushed(commit)
        progress.pump(partition, log.no)
    if message.batches:
        ack = ReplicateAck(partition.id, log.no, log.record.switch_attempt, log.tail, log.tail)
        if not log.record.flush:
            broker.send(master, replace(ack, durable=log.durable))
        broker.out.when_durable(Send(master.broker, ack))
    return True


# ---- staged bodies --------------------------------------------------------------------------------------


def _hold(broker: BrokerState, partition: Partition, log: SegmentLog, message: Replicate | ReplicateStaged) -> None:
    """Keep a message until its staged body is here, and the bodies of all messages before it."""
    serial = 0
    if isinstance(message, ReplicateStaged):
        serial = broker.new_serial()
        broker.out.emit(FetchStaged(serial, partition.id, message.staged, only_here=True))
    log.held = add(log.held, Held(message, serial))


def on_fetched(broker: BrokerState, partition: Partition, event: StagedFetched) -> None:
    """A staged batch was read. If it is not on this disk, ask the master to send the bodies."""
    log = next((log for log in partition.unsealed_logs() if _held_place(log, event.serial) is not None), None)
    if log is None:
        return  # the log was fenced, or the master asked where it ends, meanwhile
    place = _held_place(log, event.serial)
    assert place is not None
    message, batch = log.held[place].message, event.batch
    assert isinstance(message, ReplicateStaged)
    if batch is None or not _is_body_of(broker, message, batch):
        log.held = ()
        broker.send(
            log.record.members[0],
            ReplicateRefused(partition.id, log.no, log.record.switch_attempt, ReplicateRefusal.STAGED),
        )
        return
    held = list(log.held)  # perhaps tens of thousands: all that can go is taken in one pass
    held[place] = Held(message, 0, batch)
    taken = 0
    while taken < len(held) and not held[taken].serial:
        if not _take_held(broker, partition, log, held[taken]):
            taken = len(held)
        else:
            taken += 1
    log.held = held[taken:] or ()


def _held_place(log: SegmentLog, serial: int) -> int | None:
    return next((place for place, held in enumerate(log.held) if held.serial == serial), None)


def _is_body_of(broker: BrokerState, message: ReplicateStaged, batch: Batch) -> bool:
    """Whether a staged batch is the one that the master named, with the body that its header promises.

    Rule `follows-as-staged` (I5, P5). Without it:
      1. This disk has another batch at the place that the manifest names.
      2. The master sends the header of the right batch.
      3. This member stores that header with the body of the other batch, and two copies of the segment differ.
    """
    named, header = message.header, batch.header
    is_same = (named.body_crc, named.body_length) == (header.body_crc, header.body_length)
    return is_same and is_as_staged(batch, message.staged, broker.checksum)


def _take_held(broker: BrokerState, partition: Partition, log: SegmentLog, held: Held) -> bool:
    message = held.message
    if isinstance(message, Replicate):
        return _take(broker, partition, log, message)
    assert held.fetched is not None
    batch = Batch(message.header, held.fetched.body)
    whole = Replicate(message.partition, message.segment_no, message.switch_attempt, message.commit, (batch,))
    return _take(broker, partition, log, whole, held.fetched.header)


def _followed_log(
    broker: BrokerState, partition: Partition, sender: MemberId, no: int, attempt: bytes
) -> SegmentLog | None:
    """The log that a master names; if this member does not follow it there, refuse and return None."""
    log = partition.logs.get(no)
    follows = log is not None and log.active and not log.unbroken and sender == log.record.members[0]
    if log is not None and follows and log.record.switch_attempt == attempt:
        return log
    if log is None and (no, attempt) in partition.preparations:
        partition.read_chain(broker)  # it is prepared here and may be open already; the master will ask again
    broker.send(
        sender,
        ReplicateRefused(
            partition.id, no, attempt, ReplicateRefusal.FENCED if log is not None else ReplicateRefusal.NOT_OPENED
        ),
    )
    return None
