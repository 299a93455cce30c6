"""Copying: a member that lacks a part of a sealed segment gets it from a member that has the whole segment.

Two kinds of members copy: one that comes back, and a broker that the controller asks to become a new copy. Both fetch
batch after batch and check each against the checksum chain, until length and checksum are those of the seal. Then a
member of the segment asks the server to list it as eligible. A new copy first adds itself to the chain record.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..peers import right
from ..state.broker import BrokerState
from ..state.copies import Copying
from ..state.outbox import LogDurable
from ..state.partition import Partition
from ..state.segment_log import SegmentLog
from ..values.chain import Chain, add_copy, may_join, merged, replace_copy
from ..values.effects import ReadLog
from ..values.kinds import ReadKind, StoredFor, TimerKind, WriteOwner
from ..values.log import Batch, DropPreparation, LocalSegment, Preparation, PutPreparation, PutSegment, TrimLog
from ..values.messages import CopyAnswer, CopyRequest, EligibleRequest
from ..values.producers import NO_TABLE, ProducerTable, Table
from ..values.segment import Segment, SegmentState
from ..values.segments import Changes
from ..values.states import drop, put
from . import producer_tables


def on_learned(broker: BrokerState, partition: Partition, chain: Chain, changes: Changes) -> None:
    """The chain record changed: begin to copy each sealed segment that is not complete here, or not listed as
    eligible."""
    for no in changes.gone:
        partition.copies = drop(partition.copies, no)
    for segment in changes.changed:
        if segment.state is not SegmentState.SEALED:
            partition.copies = drop(partition.copies, segment.no)
            continue
        if segment.no in partition.copies:
            _go_on(broker, partition, segment.no)
        elif broker.member in segment.members and broker.member not in segment.eligible:
            partition.copies = put(partition.copies, segment.no, Copying())
            _go_on(broker, partition, segment.no)
        elif broker.member in segment.members:
            log = partition.logs.get(segment.no)
            if log is None or not log.is_in_sync or _lacks_table(partition, chain, segment):
                partition.copies = put(partition.copies, segment.no, Copying())
                _go_on(broker, partition, segment.no)


def heal(broker: BrokerState, partition: Partition, no: int, replaces: MemberId | None) -> None:
    """Become a copy of a segment that has too few copies; `replaces` is a dead member that leaves the record for it."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is not None and chain.is_folded(no):
        return  # the controller has read an older record
    if segment is None:
        partition.copies = put(partition.copies, no, Copying(replaces))  # `on_learned` continues
        partition.read_chain(broker)
        return
    if segment.state is not SegmentState.SEALED:
        partition.read_chain(broker)  # the record here may be older than the controller's, which will ask again
        return
    if broker.member in segment.members or no in partition.copies:
        return
    partition.copies = put(partition.copies, no, Copying(replaces))
    _go_on(broker, partition, no)


def _go_on(broker: BrokerState, partition: Partition, no: int) -> None:
    """Take the next step: ask for batches, or ask to be listed as eligible, or end."""
    copying = partition.copies[no]
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is None or segment is None or segment.sealed_len is None or segment.sealed_checksum is None:
        partition.copies = drop(partition.copies, no)
        return
    log = partition.logs.get(no)
    if log is not None and log.record.quarantined:
        partition.copies = drop(
            partition.copies, no
        )  # an administrator must see it as it is: nothing may write over it
        return
    if log is None or log.record.sealed_len is None:
        log = _begin_log(broker, partition, segment)
    if log.tail == segment.sealed_len and not log.is_in_sync:
        broker.out.note("copy differs", partition.id, segment=no)
        copying.differed = True
        log.start_over(broker, _table_at_open(partition, segment), partition.blocks)
        if log.record.copied_from:
            forget_table(broker, partition, log)
    if log.is_in_sync and not _lacks_table(partition, chain, segment):
        if not _is_stored(broker, copying, log):
            copying.wake_us = broker.now.mono_us + broker.config.retry_us
            broker.wake(copying.wake_us, TimerKind.COPY, partition.id, no)
            return
        _be_listed(broker, partition, chain, segment, copying)
    else:
        _ask(broker, partition, segment, log, copying)


def _begin_log(broker: BrokerState, partition: Partition, segment: Segment) -> SegmentLog:
    """Begin an empty copy of a sealed segment, at the first index that retention has left.

    Rule `copy-begins-at-zero` (I13): a copy begins at the start of the segment. Without it:
      1. Retention drops the messages below index 500 on all members.
      2. A new copy asks for index 0. No member has it, so the copy never ends.
    """
    assert partition.chain is not None
    record = LocalSegment(
        segment.no,
        segment.switch_attempt,
        segment.members,
        partition.chain.flush,
        segment.incomplete_table,
        fenced=True,
        sealed_len=segment.sealed_len,
        sealed_checksum=segment.sealed_checksum,
        begin=segment.begin,
        copied_from=segment.start,
        producers_max=segment.producers_max,
    )
    chosen = partition.chosen_preparation(segment) if not segment.start else None
    log = SegmentLog(partition.id, record, chosen.table if chosen is not None else NO_TABLE, partition.blocks)
    log.opened_with = chosen
    if segment.start:
        forget_table(broker, partition, log)
    if not producer_tables.is_kept(partition.chain, segment.no):
        log.let_table_go(broker)
    partition.add_log(log)
    broker.out.write(PutSegment(partition.id, record))
    if segment.start:
        # Rule `begun-is-durable` (I12): a copy counts only when its beginning is on the disk. Without it: 1. A copy of
        # a stub has no message to wait for, so it is complete at once and is listed. 2. The process dies before it
        # writes the beginning. 3. The record names a copy that is not there.
        broker.out.write(TrimLog(partition.id, segment.no, segment.start, segment.begin.size_bytes))
        broker.out.when_durable(LogDurable(partition.id, log.no, log.tail, log.content_no))
    return log


def forget_table(broker: BrokerState, partition: Partition, log: SegmentLog) -> None:
    """Forget the producer table that the segment was opened with, because this copy begins after dropped messages.

    The batches are gone, so the copy cannot make the table as of the end of the segment from them. It asks another
    member for that table instead (`_lacks_table`).
    """
    known = [attempt for no, attempt in partition.preparations if no == log.no]
    if log.opened_with is not None:
        known.append(log.opened_with.switch_attempt)
    log.opened_with = None
    for attempt in known:
        partition.preparations = drop(partition.preparations, (log.no, attempt))
        broker.out.write(DropPreparation(partition.id, log.no, attempt))


def _lacks_table(partition: Partition, chain: Chain, segment: Segment) -> bool:
    """Whether this copy lacks a producer table that a switch or a reader may still ask for. Then it is not complete."""
    return producer_tables.is_kept(chain, segment.no) and partition.chosen_preparation(segment) is None


def _table_at_open(partition: Partition, segment: Segment) -> Table:
    chosen = partition.chosen_preparation(segment)
    return chosen.table if chosen is not None else NO_TABLE


# ---- getting the batches --------------------------------------------------------------------------------


def _ask(broker: BrokerState, partition: Partition, segment: Segment, log: SegmentLog, copying: Copying) -> None:
    """Ask the next source for the batches after the tail. While the disk here is full, only set the timer."""
    if copying.asked is not None and broker.now.mono_us < copying.wake_us:
        return  # the question before is still open
    if not copying.differed and _took_own_tail(broker, partition, log, copying):
        return
    sources = _sources(broker, partition, segment, log)
    linked = [member for member in sources if broker.is_linked(member)]
    if broker.disk.full_since_us is not None:
        linked = []
    for member in sources:
        broker.connect(member.broker)
    copying.asked = linked[copying.failures % len(linked)] if linked else None
    config = broker.config
    copying.pause_us = min(max(2 * copying.pause_us, config.retry_us), config.retry_us_max)
    copying.wake_us = broker.now.mono_us + (config.retry_us_max if copying.asked is not None else copying.pause_us)
    broker.wake(copying.wake_us, TimerKind.COPY, partition.id, segment.no)
    if copying.asked is not None:
        assert partition.chain is not None
        lacks = _lacks_table(partition, partition.chain, segment)
        is_end = bool(log.record.copied_from)
        want_table, want_end = lacks and not is_end, lacks and is_end and log.is_in_sync
        broker.send(
            copying.asked,
            CopyRequest(partition.id, segment.no, log.tail, config.copy_bytes, want_table, want_end),
        )


def _took_own_tail(broker: BrokerState, partition: Partition, log: SegmentLog, copying: Copying) -> bool:
    """Append the batches of the tail copy that this member keeps itself; returns whether there were any.

    Rule `own-tail-overlooked` (I13). Without it:
      1. The segment is sealed at the length of one disk. Its tail is copied to the members of the next segment, and
         this member is one of them.
      2. That disk is lost. All messages are still here, in this log and in this tail copy.
      3. This member asks every other member for the rest, without end, because no other member may have it.
    """
    sealed_len = log.record.sealed_len
    assert sealed_len is not None
    before = log.tail
    for batch in tail_copy_batches(partition, log.no, log.tail):
        if batch.header.end_index > sealed_len or not log.follow(broker, batch):
            break
    if log.tail == before:
        return False
    copying.token = broker.out.step_token
    broker.out.when_stored(partition.id, StoredFor.COPY, log.no)  # `on_stored` continues
    copying.wake_us = broker.now.mono_us + broker.config.retry_us_max
    broker.wake(copying.wake_us, TimerKind.COPY, partition.id, log.no)
    return True


def _sources(broker: BrokerState, partition: Partition, segment: Segment, log: SegmentLog) -> list[MemberId]:
    """The members that may have the batches after the tail, the server first.

    The holders of a tail copy are among them if this log reaches the beginning of the tail copy. If only the producer
    table as of the end is missing, the members of the next segment are among them too, because they opened it with that
    table.
    """
    others = segment.tail_copies if segment.tail_from is not None and log.tail >= segment.tail_from else ()
    following = partition.chain.after(segment.no) if partition.chain is not None else None
    if log.record.copied_from and log.is_in_sync and following is not None and not following.incomplete_table:
        others = (*others, *following.members)
    sources = dict.fromkeys((segment.server, *segment.eligible, *segment.members, *others))
    return [member for member in sources if member != broker.member]


def on_copy_request(broker: BrokerState, partition: Partition, sender: MemberId, message: CopyRequest) -> None:
    """Another member copies a sealed segment: read the batches for it, or answer from a tail copy."""
    log = partition.logs.get(message.segment_no)
    if log is not None and log.is_in_sync and log.record.sealed_len is not None and message.from_index >= log.start:
        serial = broker.new_serial()
        kind = ReadKind.COPY
        if message.want_table or message.want_end_table:
            kind = ReadKind.COPY_WITH_END_TABLE if message.want_end_table else ReadKind.COPY_WITH_TABLE
        broker.reads[serial] = (kind, partition.id, message.segment_no, sender, message.from_index)
        until = log.record.sealed_len
        broker.out.emit(ReadLog(serial, partition.id, message.segment_no, message.from_index, until, message.max_bytes))
        return
    if message.want_end_table:
        end_table = _opened_next_with(broker, partition, message.segment_no)
        is_here = end_table is not None
        answer = CopyAnswer(partition.id, message.segment_no, message.from_index, is_here, (), end_table, is_here)
        broker.send(sender, answer)
        return
    batches = tail_copy_batches(partition, message.segment_no, message.from_index)
    table = table_at_open(broker, partition, message.segment_no) if message.want_table else None
    available = bool(batches) and (table is not None or not message.want_table)
    broker.send(sender, CopyAnswer(partition.id, message.segment_no, message.from_index, available, batches, table))


def table_at_open(broker: BrokerState, partition: Partition, no: int) -> Table | None:
    """The producer table that a segment was opened with; None if this member does not have it, or it is too large.

    It is empty if no switch and no reader needs the table any more. A member with an older record asks for it all the
    same, and an empty one is enough for it.
    """
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is not None and segment is not None and not producer_tables.is_kept(chain, no):
        return NO_TABLE
    log = partition.logs.get(no)
    if log is not None and log.record.copied_from:
        return None  # this member has the table as of the end instead
    chosen = partition.chosen_preparation(segment) if segment is not None else None
    if chosen is None:
        return None
    size_bytes_max = broker.config.table_bytes_max
    if not chosen.table.blocks:
        return chosen.table if chosen.table.size_bytes <= size_bytes_max else None
    table = ProducerTable(chosen.table, (), partition.blocks)
    return table.spelled_out(size_bytes_max)


def _opened_next_with(broker: BrokerState, partition: Partition, no: int) -> Table | None:
    """The producer table that the next segment was opened with, if it is complete: that is the table as of this end."""
    following = partition.chain.after(no) if partition.chain is not None else None
    if following is None or following.incomplete_table or partition.chosen_preparation(following) is None:
        return None
    return table_at_open(broker, partition, following.no)


def _end_table(broker: BrokerState, partition: Partition, no: int) -> Table | None:
    """The producer table of a whole segment as of its end, without the tables of the segments before it.

    None if this member does not have it, or if it is too large for a message. Empty if no switch and no reader needs
    it any more.
    """
    chain, log = partition.chain, partition.logs.get(no)
    if chain is None or log is None or not producer_tables.is_kept(chain, no):
        return NO_TABLE
    segment = chain.segment(no)
    if segment is None or partition.chosen_preparation(segment) is None:
        return None
    table = log.live_table.at_rest()
    size_bytes_max = broker.config.table_bytes_max
    if not table.blocks:
        return table if table.size_bytes <= size_bytes_max else None
    return log.live_table.spelled_out(size_bytes_max)


def tail_copy_batches(partition: Partition, no: int, from_index: int) -> tuple[Batch, ...]:
    """The batches from an index on in the tail copies that this member keeps; empty if none contains the index."""
    held = [*partition.tail_copies.get(no, ())]
    following = partition.chain.after(no) if partition.chain is not None else None
    if following is not None:
        chosen = partition.chosen_preparation(following)
        if chosen is not None and chosen.tail is not None:
            held.append(chosen.tail)
    for tail in held:
        if tail.segment_no == no and tail.from_index <= from_index < tail.length:
            return tuple(batch for batch in tail.batches if batch.header.base_index >= from_index)
    return ()


def on_log_read(
    broker: BrokerState,
    partition: Partition,
    no: int,
    to: MemberId,
    from_index: int,
    batches: tuple[Batch, ...] | None,
    kind: ReadKind,
) -> None:
    """The disk has read the batches for a `CopyRequest`: answer it."""
    with_table, is_end = kind is not ReadKind.COPY, kind is ReadKind.COPY_WITH_END_TABLE
    table = None
    if with_table:
        table = _end_table(broker, partition, no) if is_end else table_at_open(broker, partition, no)
    log = partition.logs.get(no)
    nothing_to_read = log is not None and log.is_in_sync and from_index == log.tail
    available = (bool(batches) or nothing_to_read) and (table is not None or not with_table)
    broker.send(to, CopyAnswer(partition.id, no, from_index, available, batches or (), table, is_end))


def _take_table(broker: BrokerState, partition: Partition, log: SegmentLog, table: Table) -> None:
    """Keep the producer table that the segment was opened with where a member that opened the segment keeps it."""
    record = log.record
    preparation = Preparation(
        record.no,
        record.switch_attempt,
        record.members,
        record.flush,
        record.incomplete_table,
        table,
        None,
        0,
        voided=True,
        producers_max=record.producers_max,
    )
    log.opened_with = preparation
    broker.out.write(PutPreparation(partition.id, preparation))
    log.take_up(table)


def on_copy_answer(broker: BrokerState, partition: Partition, sender: MemberId, message: CopyAnswer) -> None:
    """A source answered: append the batches that continue the log; if there are none, try another source later."""
    copying = partition.copies.get(message.segment_no)
    log = partition.logs.get(message.segment_no)
    if copying is None or log is None or copying.asked != sender or message.from_index != log.tail:
        return
    copying.asked = None
    sealed_len = log.record.sealed_len
    good = message.available
    segment = partition.chain.segment(log.no) if partition.chain is not None else None
    chain = partition.chain
    if good and chain is not None and segment is not None and _lacks_table(partition, chain, segment):
        is_end = bool(log.record.copied_from)
        good = (message.table is not None and message.is_end_table == is_end) or (is_end and not log.is_in_sync)
        if good and message.table is not None:
            _take_table(broker, partition, log, message.table)
    for batch in message.batches:
        good = good and sealed_len is not None and batch.header.end_index <= sealed_len and log.follow(broker, batch)
        if not good:
            break
    if good:
        copying.pause_us = 0
        copying.token = broker.out.step_token
        broker.out.when_stored(partition.id, StoredFor.COPY, message.segment_no)  # `on_stored` continues
        copying.wake_us = broker.now.mono_us + broker.config.retry_us_max
    else:
        copying.failures += 1
        copying.wake_us = broker.now.mono_us + broker.config.retry_us
        read_if_older(broker, partition, copying.failures)
    broker.wake(copying.wake_us, TimerKind.COPY, partition.id, message.segment_no)


def read_if_older(broker: BrokerState, partition: Partition, failures: int) -> None:
    """A source does not have what was requested: read the chain, at the 1st, 2nd, 4th, 8th failure, and so on.

    Rule `gone-is-read` (I13): a member that requests what retention dropped reads that in the record. Without it:
      1. A broker that is no member of segment 1 knows the record, and is cut off.
      2. Retention drops all of segment 1. The members are notified, and empty their disks.
      3. The broker is to become a copy of segment 1. It requests index 0, which no member has, without end.
    """
    if failures.bit_count() == 1:
        partition.read_chain(broker)


def on_stored(broker: BrokerState, partition: Partition, no: int) -> None:
    """A part of the copy is on the disk: take the next step."""
    if no in partition.copies:
        partition.copies[no].wake_us = broker.now.mono_us
        _go_on(broker, partition, no)


# ---- being listed ---------------------------------------------------------------------------------------


def _be_listed(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment, copying: Copying) -> None:
    """The copy is in sync: add it to the record as a member, then ask the server to list it as eligible, then end."""
    if broker.member not in segment.members:
        list_whole(broker, partition)
        # `record.amend` continues as soon as it may. This copy looks again all the same, so that nothing that is in
        # the way, and ends without a word to this partition, can leave the segment with one copy for good.
        broker.poll(broker.config.retry_us_max, TimerKind.COPY, partition.id, segment.no)
        return
    if broker.member in segment.eligible or segment.server == broker.member:
        partition.copies = drop(partition.copies, segment.no)
        return
    if broker.now.mono_us >= copying.wake_us:
        config = broker.config
        copying.pause_us = min(max(2 * copying.pause_us, config.retry_us), config.retry_us_max)
        copying.wake_us = broker.now.mono_us + copying.pause_us
        broker.wake(copying.wake_us, TimerKind.COPY, partition.id, segment.no)
        if broker.directory.is_replaced(segment.server):
            # Rule `server-unmissed` (I13): a member that needs a server that is gone asks for another one. Without it:
            # 1. The slot of the server has another disk, so the server never comes back. 2. No consumer group reads the
            # segment, so no consumer misses its server. 3. Only a server lists copies as eligible, so this copy never
            # is.
            right.want_another(broker, partition, segment)
        else:
            broker.send(segment.server, EligibleRequest(partition.id, segment.no))


def list_whole(broker: BrokerState, partition: Partition) -> None:
    """Add this member to the records of all segments that it has copied, in one transaction.

    It is added as a member only where the copy is in sync and on the disk at this moment (COPY).
    """
    chain = partition.chain
    if chain is None or not partition.copies or not partition.may_amend(broker):
        return
    changes: dict[int, Chain] = {}
    for no, copying in partition.copies.items():
        segment = chain.segment(no) if may_join(changes, no, partition.pace.segments_max) else None
        log = partition.logs.get(no)
        if segment is None or broker.member in segment.members or segment.state is not SegmentState.SEALED:
            continue
        if log is None or not _is_done(broker, partition, chain, segment, log, copying):
            continue
        dead = copying.replaces
        if dead is not None and dead in segment.members and dead != segment.server:
            changes[no] = replace_copy(chain, no, broker.member, dead)
        else:
            changes[no] = add_copy(chain, no, broker.member)
    if changes:
        partition.write_chain(broker, WriteOwner.COPY, merged(chain, changes))


def _is_done(
    broker: BrokerState, partition: Partition, chain: Chain, segment: Segment, log: SegmentLog, copying: Copying
) -> bool:
    """Whether the copy is in sync, with its producer table, and on the disk."""
    is_whole = log.is_in_sync and not log.record.quarantined and not _lacks_table(partition, chain, segment)
    return is_whole and _is_stored(broker, copying, log)


def _is_stored(broker: BrokerState, copying: Copying, log: SegmentLog) -> bool:
    """Whether all that this member has of the copy is on the disk."""
    # Rule `copy-durable` (COPY): also if the log was appended before this member knew the seal, and is not flushed yet.
    # Without it:
    #   1. The record lists this copy as whole.
    #   2. The other copies leave, because two are listed.
    #   3. This machine loses power, and no disk has the end of the segment.
    return log.durable >= log.tail and broker.out.durable_token >= copying.token


def on_timer(broker: BrokerState, partition: Partition, no: int) -> None:
    """The pause is over: try again, with another source if the one before did not answer."""
    copying = partition.copies.get(no)
    if copying is not None and broker.now.mono_us >= copying.wake_us:
        if copying.asked is not None:
            copying.failures += 1
            copying.asked = None
        _go_on(broker, partition, no)


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A member is linked that may be a source or the server: try again at once."""
    for no, copying in list(partition.copies.items()):
        if copying.asked is None:
            copying.wake_us = broker.now.mono_us
            _go_on(broker, partition, no)


def on_link_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A source is gone: ask another one."""
    for no, copying in list(partition.copies.items()):
        if copying.asked == member:
            copying.failures += 1
            copying.asked = None
            copying.wake_us = broker.now.mono_us
            _go_on(broker, partition, no)
