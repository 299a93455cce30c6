"""Learning: a newer chain record is known, however it came, and what is here is brought in line with it.

Logs are opened, sealed, fenced or dropped first; then every part that follows the record hears of it.
"""

from __future__ import annotations

from . import (
    appending,
    attempts,
    behind,
    blocks,
    copying,
    fencing,
    folding,
    quarantine,
    quiescence,
    replication,
    right,
    routes,
    settle,
    tables,
)
from .chain import Chain, Segment, SegmentState
from .groups import serving
from .log import DropCursor, DropPreparation, DropSegment, LocalSegment, PutChain, PutSegment
from .outbox import Outbox
from .partition import STEPS_KEPT, Partition, Step
from .producers import NO_TABLE
from .replica import SegmentLog
from .segments import Changes
from .state import drop


def learn(outbox: Outbox, partition: Partition, chain: Chain, revision: int = 0) -> None:
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
            behind.begin(outbox, partition.id, why)
            return
    chain = chain.sharing(decided)
    changes = chain.changes_since(known)
    partition.chain = chain
    partition.revision = revision
    attempts.on_learned(outbox, partition)
    _note_step(outbox, partition, known, chain, changes)
    outbox.watch_peers(partition.id, chain)
    _drop_forgotten(outbox, partition, chain, known is None, changes)
    folding.on_learned(outbox, partition, chain, changes, is_first=known is None)
    for segment in changes.changed:
        _agree(outbox, partition, chain, segment)
    _decide_preparations(outbox, partition, chain)
    for segment in changes.changed:
        _trim(outbox, partition, segment)
    _keep(outbox, partition, chain)
    tables.let_go_around(outbox, partition, chain, changes.changed)
    right.on_learned(outbox, partition, known, chain, changes)
    serving.on_learned(outbox, partition, known, chain)
    tables.on_learned(outbox, partition, chain)
    if partition.switch is not None:
        partition.switch.on_learned(outbox, partition, chain)
    fencing.on_learned(outbox, partition, chain)
    settle.on_learned(outbox, partition, chain, changes)
    copying.on_learned(outbox, partition, chain, changes)
    routes.answer_waiters(outbox, partition)


def _note_step(outbox: Outbox, partition: Partition, known: Chain | None, chain: Chain, changes: Changes) -> None:
    """What changed last is told to others (`updates`); of a short record all is."""
    if known is None or len(chain.segments) <= outbox.config.whole_chain_segments_max:
        partition.steps = ()
        return
    step = Step(known.epoch, tuple(segment.no for segment in changes.changed), changes.gone)
    partition.steps = (*partition.steps[1 - STEPS_KEPT :], step)


def _keep(outbox: Outbox, partition: Partition, chain: Chain) -> None:
    """Write the record to the disk, in the write of this step, if this broker has anything of the partition.

    Only what changed is written: a chain of a thousand segments costs as much as one of two.
    """
    if partition.kept is None and not (partition.logs or partition.tail_copies):
        return
    if partition.kept is None or chain.epoch > partition.kept.epoch:
        changes = chain.changes_since(partition.kept)
        partition.kept = chain
        changed = tuple(segment.no for segment in changes.changed)
        outbox.write(PutChain(partition.id, chain, changed, changes.gone))


def _drop_forgotten(outbox: Outbox, partition: Partition, chain: Chain, is_first: bool, changes: Changes) -> None:
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
        outbox.write(DropSegment(partition.id, no))
        if log.opened_with is not None:
            outbox.write(DropPreparation(partition.id, no, log.opened_with.attempt))
    for cursor in [cursor for cursor in partition.cursors.values() if cursor.segment_no < first]:
        partition.cursors = drop(partition.cursors, cursor.group)
        if cursor.segment_no not in own:  # else it goes with the segment
            outbox.write(DropCursor(partition.id, cursor.segment_no, cursor.group))
    for no in [no for no in partition.tail_copies if no < first and not chain.is_folded(no)]:
        partition.tail_copies = drop(partition.tail_copies, no)
        outbox.write(DropSegment(partition.id, no))


def _agree(outbox: Outbox, partition: Partition, chain: Chain, segment: Segment) -> None:
    """Bring what is here in line with what the record says of one segment."""
    log = partition.logs.get(segment.no)
    if log is not None and (log.record.sealed_len is not None or log.record.quarantined):
        return
    mine = outbox.member in segment.members
    if segment.state is SegmentState.OPEN:
        if mine and log is None:
            _open(outbox, partition, chain, segment)
        return
    if log is None:
        if not mine:
            return
        log = _empty_log(outbox, partition, chain, segment, fenced=True)
    if segment.state is SegmentState.SEALED:
        assert segment.sealed_len is not None
        assert segment.sealed_checksum is not None
        quiescence.end(outbox, partition)
        if quarantine.contradicts(log, segment.sealed_len):
            quarantine.begin(outbox, partition, log, segment.sealed_len)
            return
        log.seal(outbox, segment.sealed_len, segment.sealed_checksum)
        if outbox.behind:
            # Rule `behind-says-nothing` (ALARM): the record was told by another member, and this one has not read it.
            # Without it: (1) the coordinator went back, and two switchers that do not know it seal this segment at
            # different lengths; (2) this master is told one of the two records, and acknowledges up to that length;
            # (3) the person who rebuilds the coordinator decides for the other. The next segment's table has the
            # answers, once the coordinator has a record of that segment again.
            appending.abandon_waiting(outbox, log, partition.route())
        else:
            appending.settle_waiting(outbox, log, partition.route())
    elif segment.state is SegmentState.UNSETTLED:
        quiescence.end(outbox, partition)
        log.fence(outbox)
        appending.abandon_waiting(outbox, log, partition.route())
    elif not log.record.lost:
        log.update(outbox, fenced=True, lost=True)
        appending.abandon_waiting(outbox, log, partition.route())
    if partition.fenced_at_us is not None and not partition.has_unsealed:
        partition.fenced_at_us = None


def _trim(outbox: Outbox, partition: Partition, segment: Segment) -> None:
    """Drop what retention dropped. The record is the permission: it was written before anything goes from a disk.

    A log that is not sealed here and ends below the start is an older copy of a disk: it waits for the seal.
    """
    log = partition.logs.get(segment.no)
    if log is None or log.record.quarantined or segment.start <= log.start:
        return
    if log.record.sealed_len is None and log.tail < segment.start:
        return
    begins_behind = log.tail < segment.start
    log.trim(outbox, segment.begin)
    if begins_behind:
        copying.forget_table(outbox, partition, log)


def _empty_log(outbox: Outbox, partition: Partition, chain: Chain, segment: Segment, fenced: bool) -> SegmentLog:
    """A log with nothing in it: of a member that was listed, and never took a batch."""
    chosen = partition.chosen_preparation(segment)
    record = LocalSegment(
        segment.no, segment.attempt, segment.members, chain.flush, segment.incomplete_table, fenced=fenced
    )
    log = SegmentLog(partition.id, record, chosen.table if chosen is not None else NO_TABLE, partition.blocks)
    log.suspect = fencing.is_suspect(outbox, chosen, record)
    log.is_from_disk = chosen is None or chosen.run != outbox.run
    partition.add_log(log)
    outbox.write(PutSegment(partition.id, record))
    return log


def _open(outbox: Outbox, partition: Partition, chain: Chain, segment: Segment) -> None:
    """The record says that this member belongs to the open segment: begin, if it was prepared in this run."""
    chosen = partition.chosen_preparation(segment)
    master = segment.master == outbox.member
    fit = chosen is not None and chosen.run == outbox.run and not chosen.voided and not outbox.behind
    if master:
        fit = fit and segment.master_run == outbox.run
    log = _empty_log(outbox, partition, chain, segment, fenced=not fit)
    if not fit:
        fencing.note_fenced(outbox, partition)
        return
    log.active = True
    log.last_append_ms = log.flushed_append_ms = segment.append_floor_ms
    log.live_table.date(segment.append_floor_ms)
    _begin_windows(outbox, partition, log)
    if master:
        log.unbroken = True
        log.update(outbox, opened_run=outbox.run)
        replication.begin(outbox, partition, log)


def _begin_windows(outbox: Outbox, partition: Partition, log: SegmentLog) -> None:
    """Few windows are made at once; many later, when the producers that waited for the switch have been served."""
    config, table = outbox.config, log.live_table
    if table.unread_count <= config.window_rows_at_once:
        table.read_on(table.unread_count)
    else:
        outbox.poll(config.window_delay_us, "windows", partition.id)


def make_windows(outbox: Outbox, partition: Partition) -> None:
    """Go on to make the producer windows of the segment that was opened, beside everything else."""
    log = partition.open_log()
    if log is not None and log.table is not None and log.table.unread_count:
        log.table.read_on(outbox.config.window_rows_at_once)
        if log.table.unread_count:
            outbox.poll(outbox.config.window_pause_us, "windows", partition.id)


def _decide_preparations(outbox: Outbox, partition: Partition, chain: Chain) -> None:
    """What the record chose stays with the log, as table and tail copy; the rest is of no more use."""
    if partition.blocks or partition.offer is not None:
        blocks.look_soon(outbox, partition)
    for (no, attempt), preparation in list(partition.preparations.items()):
        if no > chain.open_segment.no:
            continue
        segment = chain.segment(no)
        log = partition.logs.get(no)
        if segment is None or segment.attempt != attempt:
            outbox.write(DropPreparation(partition.id, no, attempt))
        elif log is not None:
            log.opened_with = preparation
        else:
            continue
        partition.preparations = drop(partition.preparations, (no, attempt))
