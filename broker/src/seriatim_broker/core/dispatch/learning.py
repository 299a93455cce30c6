"""Learning: a newer chain record is known, however it came, and what is here is brought in line with it.

Logs are opened, sealed, fenced or dropped first; then every part that follows the record hears of it.
"""

from __future__ import annotations

from ..consumers import serving
from ..copies import copying, producer_tables, settle
from ..peers import behind, right
from ..state.broker import BrokerState
from ..state.partition import STEPS_KEPT, Partition, Step
from ..state.segment_log import SegmentLog
from ..switching import attempts, fencing, idle_blocks, routes, switch
from ..values.chain import Chain, Segment, SegmentState
from ..values.kinds import TimerKind
from ..values.log import DropCursor, DropPreparation, DropSegment, LocalSegment, PutChain, PutSegment
from ..values.producers import NO_TABLE
from ..values.segments import Changes
from ..values.states import drop
from ..writing import appending, quiescence, replication
from . import folding, quarantine


def learn(broker: BrokerState, partition: Partition, chain: Chain, revision: int = 0) -> None:
    """Take up a record; an older one than the known one says nothing."""
    known = partition.chain
    if known is not None and chain.epoch <= known.epoch:
        if chain.epoch == known.epoch and not partition.revision and chain.segments == known.segments:
            partition.revision = revision
        return
    decided = partition.decided
    if decided is not None:
        if chain.epoch < decided.epoch:
            return  # another broker does not know yet, or does not remember, what this disk remembers
        if why := behind.contradiction(decided, chain):
            behind.begin(broker, partition.id, why)
            return
    chain = chain.sharing(decided)
    changes = chain.changes_since(known)
    partition.chain = chain
    partition.revision = revision
    attempts.on_learned(broker, partition)
    _note_step(broker, partition, known, chain, changes)
    broker.watch_peers(partition.id, chain)
    _drop_forgotten(broker, partition, chain, known is None, changes)
    folding.on_learned(broker, partition, chain, changes, is_first=known is None)
    for segment in changes.changed:
        _agree(broker, partition, chain, segment)
    _decide_preparations(broker, partition, chain)
    for segment in changes.changed:
        _trim(broker, partition, segment)
    _keep(broker, partition, chain)
    producer_tables.let_go_around(broker, partition, chain, changes.changed)
    right.on_learned(broker, partition, known, chain, changes)
    serving.on_learned(broker, partition, known, chain)
    producer_tables.on_learned(broker, partition, chain)
    switch.on_learned(broker, partition, chain)
    fencing.on_learned(broker, partition, chain)
    settle.on_learned(broker, partition, chain, changes)
    copying.on_learned(broker, partition, chain, changes)
    routes.answer_waiters(broker, partition)


def _note_step(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain, changes: Changes) -> None:
    """What changed last is told to others (`updates`); of a short record all is."""
    if known is None or len(chain.segments) <= broker.config.whole_chain_segments_max:
        partition.steps = ()
        return
    step = Step(known.epoch, tuple(segment.no for segment in changes.changed), changes.gone)
    partition.steps = (*partition.steps[1 - STEPS_KEPT :], step)


def _keep(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """Write the record to the disk, in the write of this step, if this broker has anything of the partition.

    Only what changed is written: a chain of a thousand segments costs as much as one of two.
    """
    if partition.kept is None and not (partition.logs or partition.tail_copies):
        return
    if partition.kept is None or chain.epoch > partition.kept.epoch:
        changes = chain.changes_since(partition.kept)
        partition.kept = chain
        changed = tuple(segment.no for segment in changes.changed)
        broker.out.write(PutChain(partition.id, chain, changed, changes.gone))


def _drop_forgotten(broker: BrokerState, partition: Partition, chain: Chain, is_first: bool, changes: Changes) -> None:
    """Retention: what the record no longer names is dropped here too.

    Rule `quarantine-stays`: not what is quarantined. Only a person decides that it is not needed any more. Without it:
    (1) this member keeps acknowledged messages that the chain says are not there, and tells a person; (2) the segment
    leaves the record before the person has looked, and the only copy of these messages is deleted (I1).
    """
    first = chain.segments[0].no
    if not is_first and not changes.gone:
        return
    own = [no for no in partition.logs if no < first and not chain.is_folded(no)]
    for no in [no for no in own if not partition.logs[no].record.quarantined]:
        log = partition.logs.pop(no)
        broker.out.write(DropSegment(partition.id, no))
        if log.opened_with is not None:
            broker.out.write(DropPreparation(partition.id, no, log.opened_with.attempt))
    for cursor in [cursor for cursor in partition.cursors.values() if cursor.segment_no < first]:
        partition.cursors = drop(partition.cursors, cursor.group)
        if cursor.segment_no not in own:  # else it goes with the segment
            broker.out.write(DropCursor(partition.id, cursor.segment_no, cursor.group))
    for no in [no for no in partition.tail_copies if no < first and not chain.is_folded(no)]:
        partition.tail_copies = drop(partition.tail_copies, no)
        broker.out.write(DropSegment(partition.id, no))


def _agree(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
    """Bring what is here in line with what the record says of one segment."""
    log = partition.logs.get(segment.no)
    if log is not None and (log.record.sealed_len is not None or log.record.quarantined):
        return
    mine = broker.member in segment.members
    if segment.state is SegmentState.OPEN:
        if mine and log is None:
            _open(broker, partition, chain, segment)
        return
    if log is None:
        if not mine:
            return
        log = _empty_log(broker, partition, chain, segment, fenced=True)
    if segment.state is SegmentState.SEALED:
        assert segment.sealed_len is not None
        assert segment.sealed_checksum is not None
        quiescence.end(broker, partition)
        if quarantine.contradicts(log, segment.sealed_len):
            quarantine.begin(broker, partition, log, segment.sealed_len)
            return
        log.seal(broker, segment.sealed_len, segment.sealed_checksum)
        if broker.coordinator.behind:
            # Rule `behind-says-nothing` (ALARM): the record was told by another member, and this one has not read it.
            # Without it: (1) the coordinator went back, and two switchers that do not know it seal this segment at
            # different lengths; (2) this master is told one of the two records, and acknowledges up to that length;
            # (3) the person who rebuilds the coordinator decides for the other. The next segment's table has the
            # answers, once the coordinator has a record of that segment again.
            appending.abandon_waiting(broker, log, partition.route())
        else:
            appending.settle_waiting(broker, log, partition.route())
    elif segment.state is SegmentState.UNSETTLED:
        quiescence.end(broker, partition)
        log.fence(broker)
        appending.abandon_waiting(broker, log, partition.route())
    elif not log.record.lost:
        log.update(broker, fenced=True, lost=True)
        appending.abandon_waiting(broker, log, partition.route())
    if partition.fenced_at_us is not None and not partition.has_unsealed:
        partition.fenced_at_us = None


def _trim(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """Drop what retention dropped. The record is the permission: it was written before anything goes from a disk.

    A log that is not sealed here and ends below the start is an older copy of a disk: it waits for the seal.
    """
    log = partition.logs.get(segment.no)
    if log is None or log.record.quarantined or segment.start <= log.start:
        return
    if log.record.sealed_len is None and log.tail < segment.start:
        return
    begins_behind = log.tail < segment.start
    log.trim(broker, segment.begin)
    if begins_behind:
        copying.forget_table(broker, partition, log)


def _empty_log(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment, fenced: bool) -> SegmentLog:
    """A log with nothing in it: of a member that was listed, and never took a batch."""
    chosen = partition.chosen_preparation(segment)
    record = LocalSegment(
        segment.no, segment.attempt, segment.members, chain.flush, segment.incomplete_table, fenced=fenced
    )
    log = SegmentLog(partition.id, record, chosen.table if chosen is not None else NO_TABLE, partition.blocks)
    log.suspect = fencing.is_suspect(broker, chosen, record)
    log.is_from_disk = chosen is None or chosen.run != broker.run
    partition.add_log(log)
    broker.out.write(PutSegment(partition.id, record))
    return log


def _open(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
    """The record says that this member belongs to the open segment: begin, if it was prepared in this run."""
    chosen = partition.chosen_preparation(segment)
    master = segment.master == broker.member
    fit = chosen is not None and chosen.run == broker.run and not chosen.voided and not broker.coordinator.behind
    if master:
        fit = fit and segment.master_run == broker.run
    log = _empty_log(broker, partition, chain, segment, fenced=not fit)
    if not fit:
        fencing.note_fenced(broker, partition)
        return
    log.active = True
    log.last_append_ms = log.flushed_append_ms = segment.append_floor_ms
    log.live_table.date(segment.append_floor_ms)
    _begin_windows(broker, partition, log)
    if master:
        log.unbroken = True
        log.update(broker, opened_run=broker.run)
        replication.begin(broker, partition, log)


def _begin_windows(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """Few windows are made at once; many later, when the producers that waited for the switch have been served."""
    config, table = broker.config, log.live_table
    if table.unread_count <= config.window_rows_at_once:
        table.read_on(table.unread_count)
    else:
        broker.poll(config.window_delay_us, TimerKind.WINDOWS, partition.id)


def make_windows(broker: BrokerState, partition: Partition) -> None:
    """Go on to make the producer windows of the segment that was opened, beside everything else."""
    log = partition.open_log()
    if log is not None and log.table is not None and log.table.unread_count:
        log.table.read_on(broker.config.window_rows_at_once)
        if log.table.unread_count:
            broker.poll(broker.config.window_pause_us, TimerKind.WINDOWS, partition.id)


def _decide_preparations(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """What the record chose stays with the log, as table and tail copy; the rest is of no more use."""
    if partition.blocks or partition.offer is not None:
        idle_blocks.look_soon(broker, partition)
    for (no, attempt), preparation in list(partition.preparations.items()):
        if no > chain.open_segment.no:
            continue
        segment = chain.segment(no)
        log = partition.logs.get(no)
        if segment is None or segment.attempt != attempt:
            broker.out.write(DropPreparation(partition.id, no, attempt))
        elif log is not None:
            log.opened_with = preparation
        else:
            continue
        partition.preparations = drop(partition.preparations, (no, attempt))
