"""Rebuilding a coordinator that lost decisions: which records it should have, from what the brokers know. Pure.

Each broker reports the chain records and the cursors that it knows. The coordinator has the records that are left. Of
each partition the newest record is written: the one with the highest segment number, then the highest chain epoch. It
gets a chain epoch above all that were reported, so that every broker learns it. Two records that cannot both have been
decided (one segment number, two switch attempts) are not merged. Messages may have been acknowledged under both, so an
administrator must decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from seriatim_api.ids import PartitionId
from seriatim_api.publications import PRODUCER_MARK, RowLayout

from ..state.partition import Partition
from ..values.chain import Chain, as_stub
from ..values.events import CursorRecord
from ..values.log import NO_HAND_OVER, UNKNOWN_HAND_OVER, CursorState
from ..values.producers import append_time_of, newest_of
from ..values.segment import Segment, SegmentState, Start
from ..values.segments import Changes
from ..values.writers import NO_MANIFEST, WriterRecord, WriterState, name_digest


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """What to do with one partition's record.

    Attributes:
        current: The record that the coordinator has; None if it has none.
        chain: The record to write; None: nothing is to be written.
        told_by: The broker that reported it.
        conflict: Why nothing can be written; empty if there is no conflict.
    """

    partition: PartitionId
    current: Chain | None
    chain: Chain | None
    told_by: str = ""
    conflict: str = ""


class KnownWriter(NamedTuple):
    """What a broker knows of a writer in one partition: its last publication there.

    Attributes:
        producer: The writer's producer id.
        sequence: The publication's sequence.
        rows: How many of its rows are here.
        append_time_ms: Of the last of them; 0: not known.
    """

    producer: bytes
    sequence: int
    rows: int
    append_time_ms: int


def known_chain(partition: Partition) -> Chain | None:
    """The newest record that this broker knows, with the starts of the logs on its disk; None if it knows no record.

    A disk remembers what retention dropped also when the broker follows another record by now, see
    `dropped-stays-dropped`.
    """
    chain = partition.decided
    if chain is None:
        return None
    changed: list[Segment] = []
    for log in partition.logs.values():
        segment = chain.segment(log.no) if log.start else None
        if segment is not None and segment.switch_attempt == log.record.switch_attempt:
            changed.append(_begun_at(segment, log.record.begin))
    return replace(chain, segments=chain.parts.with_changes(Changes(tuple(changed), ())))


def known_writers(partition: Partition) -> list[KnownWriter]:
    """The writers that the producer tables of a partition know on this broker.

    An older segment's table counts too, because that of a later one is incomplete while the older one is not settled.
    """
    found: dict[bytes, KnownWriter] = {}
    for log in partition.logs.values():
        for producer, window in log.table.items() if log.table is not None else ():
            if producer.endswith(PRODUCER_MARK):
                newest = newest_of(window)
                told = KnownWriter(producer, newest.epoch, newest.last_sequence + 1, append_time_of(window))
                found[producer] = max(found.get(producer, told), told)
    return list(found.values())


def rebuilt_writers(told: Mapping[PartitionId, Iterable[KnownWriter]], topic: str) -> dict[bytes, WriterRecord]:
    """The records of a topic's writers, by producer id, as far as brokers know them.

    Args:
        told: What brokers reported, for each partition of the topic. Two brokers may report the same partition.
        topic: The topic's name.
    """
    by_producer: dict[bytes, dict[PartitionId, KnownWriter]] = {}
    for partition, writers in told.items():
        for writer in writers:
            parts = by_producer.setdefault(writer.producer, {})
            parts[partition] = max(parts.get(partition, writer), writer)
    found: dict[bytes, WriterRecord] = {}
    for producer, parts in by_producer.items():
        sequence = max(part.sequence for part in parts.values())
        last = {partition: part for partition, part in sorted(parts.items()) if part.sequence == sequence}
        found[producer] = WriterRecord(
            producer,
            topic,
            state=WriterState.DONE,
            sequence=sequence,
            # Without a manifest: it only says for how many partitions the program would repeat the publication.
            manifest=replace(NO_MANIFEST, layout=RowLayout(len(told), 0)),
            done_at_ms=max(part.append_time_ms for part in last.values()),
            rebuilt=tuple((partition, part.rows) for partition, part in last.items()),
        )
    return found


def plan_writer(name: str, current: WriterRecord, known: Mapping[bytes, WriterRecord]) -> WriterRecord | None:
    """The record of a writer, if brokers know a later publication than the coordinator; else None.

    A writer has another producer id than the coordinator's copy knows if it got a new one in the lost time. Such a
    publication counts if it is later than all that the copy says of the writer. If not, it is one of a writer of the
    same name that was deleted.

    Rule `rebuilt-sequence` (P2): the record has the highest sequence that brokers know. Without it:
      1. A program publishes 7. The coordinator is restored as it was when 6 was the last one.
      2. The program opens the writer, and is sent 6. It has other rows by now, and publishes them as 7.
      3. The masters have rows of 7 already, and append nothing. The program is answered ok.
    """
    own = known.get(current.producer)
    if own is not None and (current.state is WriterState.NEW or own.sequence > current.sequence):
        return _moved_on(current, own)
    since_ms = max(current.opened_at_ms, current.decided_at_ms, current.done_at_ms)
    digest = name_digest(name)
    later = [
        one
        for producer, one in known.items()
        if producer != current.producer and producer.startswith(digest) and one.done_at_ms > since_ms
    ]
    return _moved_on(current, max(later, key=lambda one: one.done_at_ms)) if later else None


def _moved_on(current: WriterRecord, known: WriterRecord) -> WriterRecord:
    return replace(
        current,
        producer=known.producer,
        state=WriterState.DONE,
        sequence=known.sequence,
        manifest=known.manifest,
        rows=0,
        digest=b"",
        decided_at_ms=0,
        done_at_ms=known.done_at_ms,
        lost_rows=0,
        rebuilt=known.rebuilt,
    )


def plan_chain(partition: PartitionId, told: Mapping[str, Chain], current: Chain | None) -> ChainPlan:
    """The newest record of a partition.

    Args:
        partition: The partition.
        told: The records that brokers know, by the name of the broker.
        current: The record that the coordinator has; None if it has none.
    """
    assert told or current is not None
    known = [*told.items(), *([("the coordinator", current)] if current is not None else [])]
    by, best = max(known, key=lambda item: (item[1].open_segment.no, item[1].epoch))
    for name, other in known:
        conflict = _conflict(best, other)
        if conflict:
            return ChainPlan(partition, current, None, conflict=f"{conflict} ({by} and {name} report it differently)")
    epoch = max(chain.epoch for _, chain in known)
    newest = [chain for _, chain in known if chain.epoch == epoch]
    planned = replace(best, epoch=epoch + 1)
    others = [chain for _, chain in known]
    segments = tuple(
        _with_start(_with_server_epoch(segment, planned.epoch, others), others) for segment in best.segments
    )
    if (
        current is not None
        and (current.epoch, current.open_segment.no) == (epoch, best.open_segment.no)
        and all(chain.segments == current.segments for chain in newest)
        and segments == current.segments
    ):
        return ChainPlan(partition, current, None)
    return ChainPlan(partition, current, replace(planned, segments=segments), by)


def _with_server_epoch(segment: Segment, epoch: int, known: Iterable[Chain]) -> Segment:
    """The segment in a server epoch that is not below any that was reported.

    Rule `server-epochs-stay` (J3, I9): the server starts over if another record has it in a later server epoch. Without
    it:
      1. The coordinator is restored, without the newest segment. B reads that, takes the right over segment 1 at chain
         epoch 4, and grants k:5 under a token of term 4.
      2. The rebuild writes the record that has the newest segment. In it, A is the server of segment 1 since epoch 1.
      3. A grants k:5 under a token of term 1. And members that know server epoch 4 refuse A's control records.
    """
    others = (other.segment(segment.no) for other in known)
    highest = max((other.server_epoch for other in others if other is not None), default=0)
    return replace(segment, server_epoch=epoch) if highest > segment.server_epoch else segment


def _with_start(segment: Segment, known: Iterable[Chain]) -> Segment:
    """The segment without the messages that retention dropped according to another record.

    Rule `dropped-stays-dropped` (I1, I13): the disks may have dropped what any record says is dropped. Without it:
      1. k:5 is set aside. Retention drops k:0 to k:9 of segment 1, and the coordinator forgets that.
      2. A switcher that does not know it either opens segment 2. The rebuild takes its record, which has the newer
         segment. In it, segment 1 begins at k:0.
      3. The server reads k:5, which is on no disk, again and again. Consumers are not notified that it is gone.
    """
    for other in known:
        theirs = other.segment(segment.no)
        if theirs is not None:
            segment = _begun_at(segment, theirs.begin)
        elif segment.state is SegmentState.SEALED and segment.no < other.segments[0].no:
            segment = as_stub(segment)
    return segment


def _begun_at(segment: Segment, begin: Start) -> Segment:
    is_later = segment.start < begin.first and (segment.sealed_len is None or begin.first <= segment.sealed_len)
    return replace(segment, begin=begin) if is_later else segment


def _conflict(one: Chain, other: Chain) -> str:
    for has, lacks in ((one, other), (other, one)):
        for segment in has.segments:
            if segment.sealed_len and lacks.is_folded(segment.no):
                return f"segment {segment.no} was sealed twice, at {segment.sealed_len} and as empty"
    for mine in one.segments:
        theirs = other.segment(mine.no)
        if theirs is None or theirs is mine:
            continue
        if theirs.switch_attempt != mine.switch_attempt:
            return f"segment {mine.no} was opened twice, on {mine.broker_group} and on {theirs.broker_group}"
        if None not in (mine.sealed_len, theirs.sealed_len) and mine.sealed_len != theirs.sealed_len:
            return f"segment {mine.no} was sealed twice, at {mine.sealed_len} and at {theirs.sealed_len}"
    return ""


def plan_cursor(
    told: Iterable[CursorState], current: CursorRecord | None, topic: str, expired: int = 0, chain_epoch: int = 0
) -> CursorRecord | None:
    """A consumer group's cursor in a partition, if the brokers know a newer one than the coordinator; else None.

    It begins at the least index that a member reports. A server continues at what its own disk has, and counts
    everything below the cursor as acknowledged on all members. Mode, policy and term base are those of the newest
    control record: of the latest server, and of its records the last one. What disks do not report is as in the record
    that the coordinator has: whether the consumer group is paused.

    Rule `rebuilt-as-it-was` (K1, J1, J3): the mode stays, and the term base is above each one that may be lost. Without
    it:
      1. The coordinator is restored as it was when a key-ordered consumer group was in segment 2, or did not exist.
      2. The rebuild writes that the consumer group is in segment 8, and exclusive.
      3. Its parked keys are passed, because an exclusive consumer group has only a floor.

    Rule `rebuilt-goes-back` (K1, J1, J4): where messages are granted key by key, a server that lacks the control record
    of the segment does not begin with empty lists. It begins in a new group epoch, at the oldest message that a member
    reports, because the record names a handoff that no disk has. No message of the segment was granted then, because
    each eligible member has the control record before that. Without it:
      1. k:5 of segment 2 is handed over to segment 3. Its server begins, and the other member has the control record.
         The server dies before its own disk has it.
      2. The coordinator is restored as it was when the consumer group was in segment 1. The rebuild finds the control
         record of the other member, so the consumer group is in segment 3. Which handoff was named is not known.
      3. The server grants k:6 of segment 3, and its empty rows replace those of the other member. k:5 never comes.

    Rule `expired-stays-deleted` (EPOCH): if the coordinator has no record, control records of group epochs up to
    `expired` do not count. Every consumer group that was made since has a higher group epoch. Without it:
      1. A consumer group is deleted. Its deleted cursor is removed after `deleted_kept_s`.
      2. A broker still has its control record, and reports it.
      3. The rebuild makes the deleted consumer group again.
    """
    states = [state for state in told if current is not None or state.group_epoch > expired]
    epoch, no = max(((state.group_epoch, state.segment_no) for state in states), default=(0, 0))
    if not states or (current is not None and (current.group_epoch, current.segment_no) >= (epoch, no)):
        return None
    newest = [state for state in states if (state.group_epoch, state.segment_no) == (epoch, no)]
    start = min(state.acked for state in newest)
    oldest = min((state.oldest for state in newest if state.oldest), default=0)
    before = current if current is not None and not current.deleted else None
    last = max(newest, key=lambda state: (state.server_epoch, state.serial))
    known = replace(before or CursorRecord(no, epoch, start, topic), term_base=last.term_base)
    known = known.with_settings(last.settings)
    base = known.term_base
    if known.mode.is_keyed or base:
        # A server may have begun in the next segment and given tokens, with no record on any disk. A crossing raises
        # the base by at most the highest epoch of the chain, and one.
        base = max(base, current.term_base if current is not None else 0) + chain_epoch + 1
    # With at most once, a server that lacks a handoff passes the segment too. But nothing of that was given.
    handoff = UNKNOWN_HAND_OVER if known.mode.is_keyed and not known.at_most_once else NO_HAND_OVER
    moved = replace(known, segment_no=no, group_epoch=epoch, start_index=start, handoff=handoff, begun_by=None)
    return replace(moved, oldest=oldest, term_base=base, dropped_from=0, dropped_position=0)
