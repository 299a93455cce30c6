"""Retention: messages that are too old, or beyond the size limit, are dropped. The oldest go first; readers are
notified.

The master of the open segment decides. It uses the chain record, the settings of the topic and the cursors of the
consumer groups (`runtime.duties.retention` reads them). Then:

  1. One transaction on the chain record says where the partition begins. Every sealed segment before that place is a
     stub, and the segment of that place has a `start`. The transaction compares that no cursor has changed since the
     cursors were read.
  2. The members drop the messages below the start when they learn that record (`reconciliation`), and not before.
  3. A stub keeps its place in the record, and its server, as long as the cursor of a consumer group is in it or before.

Rule `disk-before-record` (I1, I5): the record says what is dropped before a disk drops it. Without it:
  1. The master drops messages from its disk, and dies before its transaction.
  2. The other member still has them, and the record says that they are there.
  3. Two copies of one segment differ for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..state.broker import BrokerState
from ..state.partition import Partition, Partitions
from ..values.chain import Chain
from ..values.chain import trim as trimmed
from ..values.effects import Led, LedListed
from ..values.events import ListLed, Trim
from ..values.kinds import WriteOwner
from ..values.log import SafeCursor
from ..values.segment import Segment, SegmentState, Start

STUBS_PER_TRIM_MAX = 512
"""Maximum number of sealed segments that change in one transaction: two or three pages of the record."""


class Limits(NamedTuple):
    """How long messages stay: `age_ms` milliseconds, and at most `size_bytes` of a partition. 0: no limit."""

    age_ms: int = 0
    size_bytes: int = 0

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return bool(self.age_ms or self.size_bytes)


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Policy:
    """What a topic says of retention.

    Attributes:
        limits: Messages beyond these limits may be dropped.
        keeps_unread: Messages that a consumer group has not read are kept all the same,
        unread_limits: unless they are beyond these limits.
    """

    limits: Limits
    keeps_unread: bool = False
    unread_limits: Limits = NO_LIMITS


class Reader(NamedTuple):
    """A consumer group: its cursor segment in the coordinator, and the offset below which it has acknowledged all.

    `is_served`: whether a broker serves it. If not, it is an external group, which reports how far it has read.
    `is_spared`: whether retention may have to keep what it has not read. Consumers of a broadcast group come and go,
    and no administrator misses them, so they keep nothing. `oldest`: the oldest message that it has set aside; 0: none.
    `kept`: the offset from which on retention spares what it has not read.

    Rule `durable-floor` (J7): `kept` is what every eligible member has on its disk. Without it:
      1. The topic keeps what is not read. The server of group g, which is the master, has an acknowledgement of 1:0 to
         1:9 in memory. The write of its control record is under way.
      2. Retention drops these messages. The master ends before the write is done.
      3. The next server begins at 1:0, and has to tell g that unread messages were dropped.
    """

    consumer_group: str
    segment_no: int
    acked: int
    is_served: bool = True
    is_spared: bool = True
    oldest: int = 0
    kept: int = 0

    @property
    def wanted(self) -> int:
        """The offset of the first message that it still needs, as the disk of this member says.

        Rule `lists-are-unread` (J7): what is set aside is not read. Without it:
          1. Key k is parked. Its messages k:5 to k:9 are set aside, and the consumer group continues to 2:0.
          2. The topic keeps what is not read. Retention drops segment 1, because all of it is passed.
          3. An administrator releases k, and its messages are gone.
        """
        return min(self.acked, self.oldest) if self.oldest else self.acked


# ---- deciding (pure, on values) --------------------------------------------------------------------------


def first_segment(chain: Chain, limits: Limits, now_ms: int, open_bytes: int) -> int:
    """The number of the first segment of which messages are kept, if sealed segments are dropped as a whole.

    Args:
        chain: The partition.
        limits: Messages beyond these limits are dropped.
        now_ms: The wall clock.
        open_bytes: The bytes of the open segment, with those that were dropped.
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
    """The bytes that are kept of a segment; 0 if it is not sealed."""
    if segment.state is not SegmentState.SEALED or segment.is_stub:
        return 0
    assert segment.sealed_bytes is not None
    return max(segment.sealed_bytes - segment.begin.size_bytes, 0)


def dropped(before: Chain, after: Chain) -> tuple[int, int]:
    """How many messages and bytes a trim dropped.

    Args:
        before: The record that the trim was decided from.
        after: The record that the trim wrote.
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
    """That offset, or the first one that a consumer group has not acknowledged, if that is lower.

    Rule `broadcast-keeps-nothing` (RETAIN): a consumer of a broadcast group does not count. Without it:
      1. A consumer with a name of its own for each start of its process ends, and leaves its position.
      2. For seven days its unread messages fill the disks, although no consumer will read them under that name.
    """
    return min((offset, *(reader.kept for reader in readers if reader.is_spared)))


def first_kept(chain: Chain, no: int, readers: Iterable[Reader]) -> int:
    """The first segment that stays in the record; `no` is the first of which a message stays.

    Rule `stub-leaves` (I3): a stub stays in the record while a cursor is in it or before it. Without it:
      1. The stub leaves the record, and the consumer group is served in the next segment.
      2. The old server is cut off, and has not heard that the segment is a stub. It delivers the messages that it still
         has to another consumer.

    Rule `tables-leave` (I9): a stub stays in the record while readers need its producer table. They find repeats in a
    segment with an incomplete table by the tables of all segments before it. Without it:
      1. A stub right before such a segment leaves the record, and its producer table with it.
      2. Readers do not find a repeat in that segment, and get it as a new message.

    Rule `table-behind-loss` (I9): the same if a lost segment is between them, because that has no table.

    Members keep more tables (`producer_tables.is_kept`): those of a stub right before the open segment too. The stub
    itself leaves, because the open segment was opened with its table. Its own table would be missed only if the open
    segment is opened over and then declared lost, and a producer sends again what retention has dropped by then. Else
    each record would keep a stub, and the stub a server, for as long as the open segment is open.

    A lost segment stays until every consumer group has left the segment after it, because the next server reports the
    loss. A cursor that passes both unread says from where its readers were notified of nothing (`dropped_from`).
    """
    kept = chain.from_no(min((no, *(reader.segment_no for reader in readers if reader.is_served))))
    assert kept is not None
    while (before := chain.before(kept.no)) is not None:
        is_needed = chain.reads_table_of(before.no)
        if before.state is not SegmentState.LOST and not is_needed:
            break
        kept = before
    return kept.no


def to_pass(chain: Chain, readers: Iterable[Reader]) -> list[tuple[int, str]]:
    """The consumer groups whose cursor is in a stub or a lost segment, each with the number of that segment."""
    found: list[tuple[int, str]] = []
    for reader in (reader for reader in readers if reader.is_served):
        segment = chain.segment(reader.segment_no)
        if segment is not None and (segment.is_stub or segment.state is SegmentState.LOST):
            found.append((segment.no, reader.consumer_group))
    return found


def limited_by_tables(chain: Chain, no: int) -> int:
    """That segment, or an earlier one, so that all segments before it may be emptied without losing a producer table.

    Rule `table-kept` (I9, I13): a segment whose producer table is needed is emptied only if it has two in-sync copies.
    A member that was away makes its table from the batches. Without the batches it must get the table from another
    member. Without the rule:
      1. Am has the whole segment. As was away.
      2. The segment is emptied.
      3. The disk of Am is lost. Readers after the segment wait for its table for ever.
    """
    for segment in chain.segments:
        if segment.no >= no:
            break
        is_needed = chain.reads_table_of(segment.no)
        if is_needed and not segment.is_stub and not segment.has_two_copies:
            return segment.no
    return no


def cut(chain: Chain, no: int, start: Start | None, kept_no: int) -> tuple[int, Start | None, int]:
    """The arguments, reduced to a first part that fits into one transaction if they do not fit."""
    changed = [s for s in chain.segments if s.no < no and (s.no < kept_no or not s.is_stub)]
    if len(changed) > STUBS_PER_TRIM_MAX:
        no, start = changed[STUBS_PER_TRIM_MAX].no, None
    return no, start, min(kept_no, no)


# ---- on the master ---------------------------------------------------------------------------


def list_led(broker: BrokerState, partitions: Partitions, event: ListLed) -> LedListed:
    """A page of the partitions in which this member is the master of the open segment."""
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
    cursors = partition.group_cursors
    acked = tuple((cursor.consumer_group, cursor.group_epoch, cursor.segment_no, cursor.acked) for cursor in cursors)
    oldest = tuple(
        (cursor.consumer_group, cursor.group_epoch, cursor.segment_no, cursor.oldest)
        for cursor in cursors
        if cursor.oldest
    )
    size_bytes = log.size_at(log.flushed)
    return Led(partition.id, partition.chain, log.flushed, size_bytes, acked, oldest, _safe(partition), log.has_delayed)


def _safe(partition: Partition) -> tuple[tuple[str, SafeCursor], ...]:
    """What counts as read: it is durable on every eligible member (rule `durable-floor` at `Reader.kept`)."""
    return tuple(partition.safe_cursors.items())


def trim(broker: BrokerState, partition: Partition, event: Trim) -> None:
    """Start the transaction, if the chain record is still the one from which the trim was decided.

    Rule `cursors-not-compared` (I3, RETAIN): the transaction compares that no cursor changed. Without it:
      1. The master reads that the cursor of every consumer group is in segment 7 or later.
      2. An administrator rewinds a consumer group to segment 3.
      3. The master removes segment 3 from the record. The cursor names a segment that does not exist.
    """
    chain, log = partition.chain, partition.open_log()
    if chain is None or log is None or not log.active or not log.unbroken or chain.epoch != event.epoch:
        return
    if partition.switch is not None or partition.writes or partition.write_wait_us(broker):
        return  # the next scan decides again
    if limited_by_tables(chain, event.no) != event.no:
        return
    assert event.start is None or event.no != log.no or event.start.first <= log.flushed
    following = trimmed(chain, event.no, event.start, event.first_kept)
    partition.write_chain(broker, WriteOwner.TRIM, following, event.no, cursors_revision=event.cursors_revision)
