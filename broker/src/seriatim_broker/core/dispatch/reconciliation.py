"""Learning: this broker has got a newer chain record, from the coordinator or a member, and follows it.

First it opens, seals, fences or drops its logs. Then it tells every part that follows the record.
"""

from __future__ import annotations

from ..consumers.groups import record_changes
from ..copies import copying, producer_tables, settle
from ..delayed import firing
from ..peers import lost_decisions, right
from ..state.broker import BrokerState
from ..state.partition import STEPS_KEPT, Partition, Step
from ..state.segment_log import SegmentLog
from ..switching import fencing, idle_blocks, routes, switch, switch_attempts
from ..values.chain import Chain
from ..values.log import DropCursor, DropPreparation, DropSegment, LocalSegment, PutChain, PutSegment
from ..values.producers import NO_TABLE
from ..values.segment import Segment, SegmentState
from ..values.segments import Changes
from ..values.states import drop
from ..writing import admission, appending, quiescence, replication
from . import folded_segments, quarantine


def learn(broker: BrokerState, partition: Partition, chain: Chain, revision: int = 0) -> None:
    """Take up a chain record if it is newer than the known one.

    Rule `older-chain` (I7): an older chain record is ignored. Without it:
      1. This member knows that segment 2 is open on broker group B.
      2. An older record arrives late over another link. In it segment 1 is open, and this member is its master.
      3. This member follows it, and works with a segment that is sealed.
    """
    known = partition.chain
    if known is not None and chain.epoch <= known.epoch:
        if chain.epoch == known.epoch and not partition.revision and chain.segments == known.segments:
            partition.revision = revision
        return
    decided = partition.decided
    if decided is not None:
        if chain.epoch < decided.epoch:
            return  # the broker or the coordinator that reported it has an older record than this disk
        if why := lost_decisions.contradiction(decided, chain):
            lost_decisions.begin(broker, partition.id, why)
            return
    chain = chain.sharing(decided)
    changes = chain.changes_since(known)
    partition.take_up(chain, revision)
    switch_attempts.on_learned(broker, partition)
    _note_step(broker, partition, known, chain, changes)
    broker.watch_peers(partition.id, chain)
    _drop_forgotten(broker, partition, chain, known is None, changes)
    folded_segments.on_learned(broker, partition, chain, changes, is_first=known is None)
    for segment in changes.changed:
        _agree(broker, partition, chain, segment)
    _decide_preparations(broker, partition, chain)
    for segment in changes.changed:
        _trim(broker, partition, segment)
    _keep(broker, partition, chain)
    producer_tables.let_go_around(broker, partition, chain, changes.changed)
    right.on_learned(broker, partition, known, chain, changes)
    record_changes.on_learned(broker, partition, known, chain)
    producer_tables.on_learned(broker, partition, chain)
    switch.on_learned(broker, partition, chain)
    fencing.on_learned(broker, partition, chain)
    settle.on_learned(broker, partition, chain, changes)
    copying.on_learned(broker, partition, chain, changes)
    firing.on_learned(broker, partition, chain, changes)
    routes.answer_waiters(broker, partition)


def _note_step(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain, changes: Changes) -> None:
    """Keep what changed, to send other members only that (`updates`). A short record is reported as a whole."""
    if known is None or len(chain.segments) <= broker.config.whole_chain_segments_max:
        partition.steps = ()
        return
    step = Step(known.epoch, tuple(segment.no for segment in changes.changed), changes.gone)
    partition.steps = (*partition.steps[1 - STEPS_KEPT :], step)


def _keep(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """Write the record to the disk, in the write of this step, if this broker has anything of the partition.

    Only changes are written, so a chain of a thousand segments costs as much as one of two.

    Rule `record-not-kept` (I7, I13): the disk remembers what was decided. Without it:
      1. Segment 1 is sealed, segment 2 is open on this member, and a is acknowledged there. This member restarts.
      2. The coordinator is restored as it was before.
      3. No broker knows any more that segment 2 was decided. A switcher opens segment 2 again, on another broker group.
    """
    if partition.kept is None and not (partition.logs or partition.tail_copies):
        return
    if partition.kept is None or chain.epoch > partition.kept.epoch:
        changes = chain.changes_since(partition.kept)
        partition.kept = chain
        changed = tuple(segment.no for segment in changes.changed)
        broker.out.write(PutChain(partition.id, chain, changed, changes.gone))


def _drop_forgotten(broker: BrokerState, partition: Partition, chain: Chain, is_first: bool, changes: Changes) -> None:
    """Drop segments and control records that the record no longer names, because retention let them go.

    Rule `quarantine-stays` (I1): a quarantined log stays, because only an administrator decides that it is not needed.
    Without it:
      1. This member keeps acknowledged messages that are not there according to the chain, and reports that.
      2. Before an administrator has looked, the segment leaves the record.
      3. This member deletes the only copy of these messages.
    """
    first = chain.segments[0].no
    if not is_first and not changes.gone:
        return
    own = [no for no in partition.logs if no < first and not chain.is_folded(no)]
    for no in [no for no in own if not partition.logs[no].record.quarantined]:
        log = partition.logs.pop(no)
        broker.out.write(DropSegment(partition.id, no))
        if log.opened_with is not None:
            broker.out.write(DropPreparation(partition.id, no, log.opened_with.switch_attempt))
    if partition.open_log() is None:
        quiescence.end(broker, partition)
    for cursor in [cursor for cursor in partition.cursors.values() if cursor.segment_no < first]:
        partition.forget_cursor(cursor.consumer_group)
        if cursor.segment_no not in own:  # the others go with their segments
            broker.out.write(DropCursor(partition.id, cursor.segment_no, cursor.consumer_group))
    for no in [no for no in partition.tail_copies if no < first and not chain.is_folded(no)]:
        partition.tail_copies = drop(partition.tail_copies, no)
        broker.out.write(DropSegment(partition.id, no))


def _agree(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
    """Make the log here agree with what the record says of one segment: open, seal or fence it.

    A member truncates only to the sealed length in the record (rule `own-commit`, I6).
    """
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
            # Rule `behind-says-nothing` (ALARM): while the coordinator lacks decisions, a record that only a member has
            # reported answers no batch. The producer's resend is answered by the table of the next segment, once the
            # coordinator has a record of that segment again. Without it: 1. The coordinator went back in time. Two
            # switchers that do not know that seal this segment at different lengths. 2. A member sends this master one
            # of the two records, and the master acknowledges up to that length. 3. The administrator who rebuilds the
            # coordinator takes the other record.
            appending.abandon_waiting(broker, log, partition.route())
        else:
            appending.settle_waiting(broker, log, partition.route())
    elif segment.state is SegmentState.UNSETTLED:
        quiescence.end(broker, partition)
        log.fence(broker)
        appending.abandon_waiting(broker, log, partition.route())
    elif not log.record.lost:
        quiescence.end(broker, partition)
        log.update(broker, fenced=True, lost=True)
        appending.abandon_waiting(broker, log, partition.route())
    if partition.fenced_at_us is not None and not partition.has_unsealed:
        partition.fenced_at_us = None


def _trim(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """Drop the messages below the start of a segment, because the record says that retention dropped them.

    Rule `disk-before-record` (I1, I5): the record is written before a disk drops anything; see `control.retention`.

    A log that is not sealed here and ends below the start is on an older copy of a disk. It waits for the seal.
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
    """Make an empty log, for a member that the record names and that has not taken a batch."""
    chosen = partition.chosen_preparation(segment)
    record = LocalSegment(
        segment.no,
        segment.switch_attempt,
        segment.members,
        chain.flush,
        segment.incomplete_table,
        fenced=fenced,
        producers_max=segment.producers_max,
    )
    log = SegmentLog(partition.id, record, chosen.table if chosen is not None else NO_TABLE, partition.blocks)
    log.suspect = fencing.is_suspect(broker, chosen, record)
    log.is_from_disk = chosen is None or chosen.member_run != broker.member_run
    partition.add_log(log)
    broker.out.write(PutSegment(partition.id, record))
    return log


def _open(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
    """The record names this member in the open segment: open it if this member run prepared it, else fence it.

    Rule `attempt-id` (I1, I6): a member opens only what was prepared under the attempt id that the chain record names
    (`chosen_preparation`). Without it:
      1. a is on Am and As, not committed. Switcher 1 fences Am, which answers commit 0, and prepares segment 2 on B.
      2. Switcher 2 fences As, which answers tail 1, and prepares B with a table in which a is at 1:0.
      3. The transaction of switcher 1 comes first: segment 1 is sealed at 0.
      4. P resends a. Bm finds it in the table of switcher 2 and answers ok, but a is nowhere.

    Rule `voided` (RT): a member run opens only what it prepared itself. Without it:
      1. Switcher 1 prepares segment 2 on Bm. Bm restarts, and the certificate of its earlier member run is written.
      2. The transaction of switcher 1 names that earlier member run as master. Bm opens segment 2 all the same.
      3. Another switcher reaches no member of B. It has the certificate, so it opens segment 3 on A.
      4. Q's x is acknowledged at 3:0. P sends y after that, and Bm acknowledges y at 2:0.

    Rule `append-time-chain` (TIME): a segment begins at the append time that the chain record names. Without it:
      1. The last batch of segment 1 has append time 10:00:05. The clock of the next master is 5 s behind.
      2. The first batch of segment 2 gets append time 10:00:00, and append time goes back.
    """
    chosen = partition.chosen_preparation(segment)
    master = segment.master == broker.member
    fit = (
        chosen is not None
        and chosen.member_run == broker.member_run
        and not chosen.voided
        and not broker.coordinator.behind
    )
    if master:
        fit = fit and segment.master_run == broker.member_run
    log = _empty_log(broker, partition, chain, segment, fenced=not fit)
    if not fit:
        fencing.note_fenced(broker, partition)
        return
    log.active = True
    log.last_append_ms = log.flushed_append_ms = segment.append_floor_ms
    log.keep_small(broker)
    if master:
        log.unbroken = True
        admission.begin(broker, log)
        log.update(broker, opened_member_run=broker.member_run)
        replication.begin(broker, partition, log)


def _decide_preparations(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """Keep the preparation that the record chose with its log, as table and tail copy, and drop the others."""
    if partition.blocks or partition.offer is not None:
        idle_blocks.look_soon(broker, partition)
    for (no, attempt), preparation in list(partition.preparations.items()):
        if no > chain.open_segment.no:
            continue
        segment = chain.segment(no)
        log = partition.logs.get(no)
        if segment is None or segment.switch_attempt != attempt:
            broker.out.write(DropPreparation(partition.id, no, attempt))
        elif log is not None:
            log.opened_with = preparation
        else:
            continue
        partition.preparations = drop(partition.preparations, (no, attempt))
