"""Replication of the open segment, a follower's side: it takes what the master sends, and says how far it is.

Of a publication the master sends headers only, because what is staged is on this disk too (`ReplicateStaged`). The body
is read here, and until it is, what the master sends later waits behind it (`held`), no more than the master lets be
uncommitted. If it is not here, the follower says so, and the master sends the bodies from there on.
"""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.batch import BatchHeader
from seriatim_api.ids import MemberId

from ..consumers import delivery
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import Held, SegmentLog
from ..values.effects import FetchStaged, Send
from ..values.events import StagedFetched
from ..values.kinds import ReplicateRefusal
from ..values.log import Batch
from ..values.messages import ReplicaTail, Replicate, ReplicateAck, ReplicateRefused, ReplicateStaged, ResumeReplica
from ..values.states import add
from .publication_plan import is_as_staged


def on_resume(broker: BrokerState, partition: Partition, sender: MemberId, message: ResumeReplica) -> None:
    """The master asks where this member is."""
    log = _followed_log(broker, partition, sender, message.segment_no, message.attempt)
    if log is not None:
        log.held = ()  # comes again behind the tail that is told now
        broker.send(
            sender, ReplicaTail(partition.id, log.no, log.record.attempt, log.tail, log.tail_checksum, log.durable)
        )


def on_replicate(broker: BrokerState, partition: Partition, sender: MemberId, message: Replicate) -> None:
    """Batches from the master: only the next ones, with the chain unbroken."""
    log = _followed_log(broker, partition, sender, message.segment_no, message.attempt)
    if log is None:
        return
    if log.held and message.batches:
        _hold(broker, partition, log, message)
    else:
        _take(broker, partition, log, message)


def on_replicate_staged(broker: BrokerState, partition: Partition, sender: MemberId, message: ReplicateStaged) -> None:
    """A batch of a publication from the master, whose body has to be found here."""
    log = _followed_log(broker, partition, sender, message.segment_no, message.attempt)
    if log is not None and message.header.end_index > log.tail:
        _hold(broker, partition, log, message)


def _take(
    broker: BrokerState, partition: Partition, log: SegmentLog, message: Replicate, adopts: BatchHeader | None = None
) -> bool:
    """Take what the master sent into the log that follows it; False if it is not what comes next.

    `adopts`: see `PutBatch`.
    """
    master = log.record.members[0]
    for batch in message.batches:
        if batch.header.end_index <= log.tail:
            continue  # sent again after a resume
        if not log.follow(broker, batch, adopts):
            broker.send(master, ReplicateRefused(partition.id, log.no, log.record.attempt, ReplicateRefusal.GAP))
            return False
    commit = min(message.commit, log.tail)
    if log.advance_commit(commit):
        log.advance_flushed(commit)
        delivery.pump(broker, partition, log.no)
    if message.batches:
        ack = ReplicateAck(partition.id, log.no, log.record.attempt, log.tail, log.tail)
        if not log.record.flush:
            broker.send(master, replace(ack, durable=log.durable))
        broker.out.when_durable(Send(master.broker, ack))
    return True


# ---- staged bodies --------------------------------------------------------------------------------------


def _hold(broker: BrokerState, partition: Partition, log: SegmentLog, message: Replicate | ReplicateStaged) -> None:
    """Keep a message until its staged body is here, and those before it."""
    serial = 0
    if isinstance(message, ReplicateStaged):
        serial = broker.new_serial()
        broker.out.emit(FetchStaged(serial, partition.id, message.staged, only_here=True))
    log.held = add(log.held, Held(message, serial))


def on_fetched(broker: BrokerState, partition: Partition, event: StagedFetched) -> None:
    """A staged batch was read, or is not on this disk: then the master has to send the bodies."""
    log = next((log for log in partition.unsealed_logs() if _held_place(log, event.serial) is not None), None)
    if log is None:
        return  # fenced or asked to resume meanwhile
    place = _held_place(log, event.serial)
    assert place is not None
    message, batch = log.held[place].message, event.batch
    assert isinstance(message, ReplicateStaged)
    if batch is None or not _is_body_of(broker, message, batch):
        log.held = ()
        broker.send(
            log.record.members[0], ReplicateRefused(partition.id, log.no, log.record.attempt, ReplicateRefusal.STAGED)
        )
        return
    held = list(log.held)  # there may be ten thousands behind it: they are taken in one pass
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

    Rule `follows-as-staged` (P5). Without it: (1) this disk has another batch at the place that the manifest names; (2)
    the master sends the header of the right one; (3) this member stores that header with a body that is not its own.
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
    whole = Replicate(message.partition, message.segment_no, message.attempt, message.commit, (batch,))
    return _take(broker, partition, log, whole, held.fetched.header)


def _followed_log(
    broker: BrokerState, partition: Partition, sender: MemberId, no: int, attempt: bytes
) -> SegmentLog | None:
    """The log that a master speaks of; answers and returns None if this member does not follow it."""
    log = partition.logs.get(no)
    follows = log is not None and log.active and not log.unbroken and sender == log.record.members[0]
    if log is not None and follows and log.record.attempt == attempt:
        return log
    if log is None and (no, attempt) in partition.preparations:
        partition.read_chain(broker)  # the switch's word has not come yet; the master asks again when it is refused
    broker.send(
        sender,
        ReplicateRefused(
            partition.id, no, attempt, ReplicateRefusal.FENCED if log is not None else ReplicateRefusal.NOT_OPENED
        ),
    )
    return None
