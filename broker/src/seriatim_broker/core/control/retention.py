"""Retention: messages that are old enough, or too many, are dropped; oldest first, and readers are told.

The master of the open segment decides, from the chain record, the settings of the topic and the cursors of the groups
(`runtime.retention` asks for them). Then:

  1. One transaction on the chain record says where the partition begins: every sealed segment before that place is a
     stub, the segment of that place has a `start`. It compares that no cursor changed since they were read.
  2. Only then members drop what lies below, when they learn the record (`learning`).
  3. A stub keeps its place in the record, and its server, as long as a group's cursor stands in or before it.

Rule `start-first` (I1, J6): the record before the disks. Without it: (1) the master drops, and dies before its
transaction; (2) the other member serves what the record has, and the copies differ for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..peers import versions
from ..state.broker import BrokerState
from ..state.partition import Partition, Partitions
from ..values.chain import Chain, Segment, SegmentState, Start
from ..values.chain import trim as trimmed
from ..values.effects import Led, LedListed
from ..values.events import ListLed, Trim
from ..values.kinds import WriteOwner
from ..values.messages import FORM_TRIMMED

STUBS_PER_TRIM_MAX = 512
"""Sealed segments that one transaction empties or lets go: two or three pages of the record."""


class Limits(NamedTuple):
    """How long messages stay: for so many ms, and at most so many bytes of a partition. 0: no limit."""

    age_ms: int = 0
    size_bytes: int = 0

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self.age_ms or self.size_bytes)


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Policy:
    """What a topic says of retention.

    Attributes:
        limits: What is beyond them may be dropped.
        keeps_unread: But not what a consumer group has not read,
        unread_limits: unless it is beyond these.
    """

    limits: Limits
    keeps_unread: bool = False
    unread_limits: Limits = NO_LIMITS


class Reader(NamedTuple):
    """A consumer group: the segment in which the coordinator says that it stands, and the offset below which it is
    known to have acknowledged all. `is_served`: by a broker that has the segment; else it reports how far it is."""

    group: str
    segment_no: int
    acked: int
    is_served: bool = True


# ---- deciding (pure, on values) --------------------------------------------------------------------------


def first_segment(chain: Chain, limits: Limits, now_ms: int, open_bytes: int) -> int:
    """The number of the first segment of which something is kept, if sealed ones are dropped as a whole.

    Args:
        chain: The partition.
        limits: What is beyond them goes.
        now_ms: The wall clock.
        open_bytes: Of the open segment, with what was dropped.
    """
    open_segment = chain.open_segment
    kept_bytes = max(open_bytes - open_segment.begin.size_bytes, 0)
    oldest: list[Segment] = []
    for segment in chain.segments:
        if not segment.is_settled:
            break
        oldest.append(segment)
    later_bytes = kept_bytes + sum(map(size_bytes, chain.segments))
    for segment in oldest:
        later_bytes -= size_bytes(segment)
        is_old = bool(limits.age_ms) and segment.sealed_at_ms <= now_ms - limits.age_ms
        is_too_much = bool(limits.size_bytes) and later_bytes >= limits.size_bytes
        if not (is_old or is_too_much or segment.is_stub):
            return segment.no
    following = chain.after(oldest[-1].no) if oldest else chain.segments[0]
    assert following is not None
    return following.no


def size_bytes(segment: Segment) -> int:
    """What is kept of a sealed segment; of one that a version before sealed it is not known."""
    if segment.state is not SegmentState.SEALED or segment.sealed_bytes is None or segment.is_stub:
        return 0
    return max(segment.sealed_bytes - segment.begin.size_bytes, 0)


def dropped(before: Chain, after: Chain) -> tuple[int, int]:
    """How many messages and bytes a trim dropped; segments that a version before retention sealed count without bytes.

    Args:
        before: The record that the trim was decided from.
        after: What it made of it.
    """
    messages = dropped_bytes = 0
    for old in before.segments:
        new = after.segment(old.no)
        if old.state is SegmentState.LOST or old.is_stub:
            continue
        if new is None or new.is_stub:
            messages += (old.sealed_len or 0) - old.start
            dropped_bytes += size_bytes(old)
        elif new.start > old.start:
            messages += new.start - old.start
            dropped_bytes += new.begin.size_bytes - old.begin.size_bytes
        else:
            break
    return messages, dropped_bytes


def first_unread(readers: Iterable[Reader], offset: int) -> int:
    """That offset, or the first one that a group has not acknowledged, if that lies before it."""
    return min((offset, *(reader.acked for reader in readers)))


def first_kept(chain: Chain, no: int, readers: Iterable[Reader]) -> int:
    """The first segment that stays in the record; `no` is the first of which a message stays.

    Rule `stub-stays` (I3): none that a cursor stands in, nor one behind that. The server of such a stub may not have
    heard that it is one. Without it: (1) the stub leaves the record, and the group is served in the next segment; (2)
    the old server, cut off, delivers to another consumer what it still has.

    Rule `tables-stay` (I9): none right before a segment with an incomplete producer table. Readers skip repeats there
    by the tables of all segments before, which only stubs have. Without it repeats are delivered as new.

    A lost segment stays until every group has read something behind it, because the next server tells of the loss.
    """
    kept = chain.from_no(min((no, *(reader.segment_no for reader in readers if reader.is_served))))
    assert kept is not None
    while (before := chain.before(kept.no)) is not None:
        if before.state is not SegmentState.LOST and not kept.incomplete_table:
            break
        kept = before
    return kept.no


def to_pass(chain: Chain, readers: Iterable[Reader]) -> list[tuple[int, str]]:
    """Groups that stand in a segment without messages that is not the open one, and its number."""
    found: list[tuple[int, str]] = []
    for reader in (reader for reader in readers if reader.is_served):
        segment = chain.segment(reader.segment_no)
        if segment is not None and (segment.is_stub or segment.state is SegmentState.LOST):
            found.append((segment.no, reader.group))
    return found


def limited_by_tables(chain: Chain, no: int) -> int:
    """That segment, or an earlier one: all before it may be emptied without the loss of a producer table.

    Rule `table-kept` (I9): before a segment with an incomplete table, the tables of those before are needed. A member
    that was away makes its table from the batches; without them it must get it from a member that has it, so two must.
    Without it: (1) one member is whole, the other one was away; (2) the segment is emptied; (3) the disk of the first
    is lost, and readers behind wait for the table for ever.
    """
    for segment in chain.segments:
        if segment.no >= no:
            break
        is_needed = any(later.incomplete_table for later in chain.following(segment.no, 2))
        if is_needed and not segment.is_stub and not segment.has_two_copies:
            return segment.no
    return no


def cut(chain: Chain, no: int, start: Start | None, kept_no: int) -> tuple[int, Start | None, int]:
    """The same, or a first part of it that fits into one transaction."""
    changed = [s for s in chain.segments if s.no < no and (s.no < kept_no or not s.is_stub)]
    if len(changed) > STUBS_PER_TRIM_MAX:
        no, start = changed[STUBS_PER_TRIM_MAX].no, None
    return no, start, min(kept_no, no)


# ---- on the broker that leads ---------------------------------------------------------------------------


def list_led(broker: BrokerState, partitions: Partitions, event: ListLed) -> LedListed:
    """The partitions whose open segment this member is the master of, a page of them."""
    found: list[Led] = []
    for partition_id in sorted(name for name in partitions if name > event.after):
        partition = partitions[partition_id]
        led = _led(partition)
        if led is not None:
            found.append(led)
        if len(found) >= event.limit:
            break
    return LedListed(event.request, tuple(found))


def _led(partition: Partition) -> Led | None:
    log = partition.open_log()
    if partition.chain is None or log is None or not log.active or not log.unbroken:
        return None
    acked = tuple(
        (cursor.group, cursor.group_epoch, cursor.segment_no, cursor.acked) for cursor in partition.cursors.values()
    )
    return Led(partition.id, partition.chain, log.flushed, log.size_at(log.flushed), acked)


def trim(broker: BrokerState, partition: Partition, event: Trim) -> None:
    """Write what was decided, if the record is still the one that it was decided from."""
    chain, log = partition.chain, partition.open_log()
    if chain is None or log is None or not log.active or not log.unbroken or chain.epoch != event.epoch:
        return
    if partition.switch is not None or partition.writes or partition.write_wait_us(broker):
        return  # the next look decides anew
    if not versions.all_read(broker, FORM_TRIMMED) or limited_by_tables(chain, event.no) != event.no:
        return
    assert event.start is None or event.no != log.no or event.start.first <= log.flushed
    following = trimmed(chain, event.no, event.start, event.first_kept)
    partition.write_chain(broker, WriteOwner.TRIM, following, event.no, cursors_revision=event.cursors_revision)
