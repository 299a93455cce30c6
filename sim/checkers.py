"""The judge: it sees every write, transaction, reply and delivery, and says which promise was broken.

It knows more than any broker or client: what is on each disk (also on those that were lost since), and the place of
every batch that was ever written. I1 to I14 are the protocol's invariants. Other rules, among them:

    RT      the real-time half of the promise
    TABLE   a prepared producer table tells the truth
    COPY    a member that is listed as a copy has the segment
    LEAVE   a copy leaves a record only if two stay
    TIME    append time never goes back, and never far ahead
    GATE    a member that may be stopped holds nothing alone
    CERT    a member run that was certified dead has ended
    FULL    a full disk takes no new batches
    TWO     of two processes with one directory, one ends
    KEPT    a contradicted disk keeps what it has
    ALARM   if the coordinator has lost what a broker knows, the broker says so and changes nothing
    PLACE   readers get a message at the place that its receipt names
    RETAIN  retention drops what it may drop; a segment leaves the record only when no reader or member needs it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import BatchMismatchError, SequenceGapError, SequenceTooOldError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId, RunId, format_offset, make_offset, split_offset
from seriatim_broker.core.control.controller import holders
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.effects import Batches, DeliveryEvent, Joined, Note
from seriatim_broker.core.values.events import AckLevel, CursorRecord, GroupOperation
from seriatim_broker.core.values.log import Batch, PutBatch, PutPreparation, PutSegment, PutTailCopy, Write
from seriatim_broker.core.values.producers import IdleBlock, ProducerTable, newest_of
from seriatim_broker.core.values.segment import LEGAL_TRANSITIONS, Segment, SegmentState
from seriatim_broker.testing.memory_disk import DiskImage, SegmentImage

from .excuses import Excuse
from .losses import Losses, Place, own_tail
from .schedule import Schedule, Violation

if TYPE_CHECKING:
    from .brokers import Broker
    from .publishing.judge import PublicationJudge

_SETTLED = (SegmentState.SEALED, SegmentState.LOST)
FULL_US_MAX = 3_000_000
"""A disk that has been full for so long takes no new batch: its broker looks, tells its master, and that one moves."""

_NO_BATCH = (0, -1)

PERSON = "person"
"""The name under which a person rebuilds a coordinator that lost decisions, in a world of whole brokers."""


class Fate:
    """What the judge knows of one message."""

    __slots__ = ("acked_us", "final_offset", "level", "offset", "outcome", "partition", "producer", "sent_us")

    def __init__(self, partition: PartitionId, producer: bytes, sent_us: int, level: int) -> None:
        self.partition = partition
        self.producer = producer
        self.sent_us = sent_us
        self.level = level
        self.acked_us: int | None = None
        self.offset: int | None = None
        self.final_offset: int | None = None  # its own, if its receipt says that readers get it there
        self.outcome = ""


class GroupView:
    """What a consumer group has seen and acknowledged of one partition, since it began or was rewound or skipped.

    `start` is the offset at which that was, and `group_epoch` the group epoch that began there.
    """

    __slots__ = ("acked", "confirmed", "drained_below", "dropped", "first_at", "firsts", "group_epoch", "seen", "start")

    def __init__(self, group_epoch: int = 0, start: int = 0) -> None:
        self.group_epoch = group_epoch
        self.start = start  # an offset
        # segments below this number are settled, and all of them is acknowledged
        self.drained_below = split_offset(start)[0]
        self.confirmed: dict[tuple[int, int], int] = {}  # (group epoch, segment) -> confirmed below this index
        self.firsts: list[tuple[int, int]] = []  # (offset, message)
        self.seen: set[int] = set()
        self.first_at: dict[int, int] = {}  # message -> the offset at which it was first given to the group
        # segment -> index below which the application acknowledged
        self.acked: dict[int, int] = dict([split_offset(start)]) if start else {}
        self.dropped: list[tuple[int, int]] = []  # between these offsets it was told of a drop by retention

    def need_not_have(self, offset: int) -> bool:
        """Whether the group was told that a message is gone, or begins behind it."""
        return offset < self.start or any(first <= offset < end for first, end in self.dropped)


def messages_of(batch: Batch) -> list[int]:
    """The ids of the messages that the simulation put into a body."""
    first = int.from_bytes(batch.body[:8], "big")
    return list(range(first, first + batch.header.message_count))


class Judge:
    """Sees everything that happens in one run, and fails the run when a promise is broken.

    Args:
        schedule: The time, and the story.
        brokers: All slots.
        flush: Whether the topic flushes before it commits.
        levels: The ack levels that producers ask for.
        limits: The limits at which brokers may forget producers.
        ahead_ms_max: How far append time may be ahead of the wall clock of the master that appends.
    """

    def __init__(
        self,
        schedule: Schedule,
        brokers: dict[str, Broker],
        *,
        flush: bool = True,
        levels: tuple[int, ...] = (int(AckLevel.REPLICATED_FLUSHED),),
        ahead_ms_max: int = 0,
        limits: BrokerConfig = BrokerConfig(),  # noqa: B008 - it never changes
    ) -> None:
        self.fates: dict[int, Fate] = {}
        self.placed: dict[tuple[PartitionId, int, int], Batch] = {}
        self.sealed: dict[tuple[PartitionId, int], tuple[int, int | None]] = {}
        self.history: dict[PartitionId, list[Chain]] = {}
        self._attempts: dict[tuple[PartitionId, int], bytes] = {}
        self.groups: dict[tuple[str, PartitionId], GroupView] = {}
        self.gaps_asked: set[Place] = set()
        self.certified_falsely: dict[RunId, None] = {}  # by a fault
        self.contradicted: dict[Place, int] = {}  # an older copy may decide there; another disk keeps all below
        self.graveyard: list[tuple[MemberId, DiskImage]] = []
        self.displaced: list[tuple[MemberId, DiskImage]] = []  # of processes that were copied, and may run on
        self.gone: set[PartitionId] = set()  # their topics were deleted
        self.seen_states: set[str] = set()
        self.publications: PublicationJudge | None = None  # only if the world has writers
        self.accepted_count = 0
        self._schedule = schedule
        self._brokers = brokers
        self.losses = Losses(brokers, watches_memory=not flush)
        self._flush = flush
        self._may_miss = min(levels) < AckLevel.REPLICATED  # a producer's acknowledged batches may be gone
        self._cursors: dict[tuple[str, PartitionId], int] = {}
        self._past_views: dict[
            tuple[str, PartitionId], list[GroupView]
        ] = {}  # before the group was moved, oldest first
        self._carried_out: set[bytes] = set()  # ids of operations
        self._paused: set[tuple[str, PartitionId]] = set()  # groups, as their cursors say
        self.subscribed: dict[tuple[int, int], tuple[str, PartitionId]] = {}  # of (stream, subscription)
        self._granted: dict[tuple[int, int], int] = {}  # (stream, subscription) -> group epoch of its grant
        self._passed: dict[Place, frozenset[str]] = {}  # a lost segment: groups that had left it before
        self._lost_repeats: dict[PartitionId, set[int]] = {}  # skipped, and given to no consumer from their first place
        self._told: set[tuple[str, PartitionId, int]] = set()
        self._promised: dict[tuple[PartitionId, int], int] = {}
        self._flushed: dict[tuple[PartitionId, int], int] = {}  # promised, to be on disks
        self._servers: dict[tuple[PartitionId, int], int] = {}
        self._appended: dict[int, Batch] = {}
        self._opened_us: dict[tuple[int, int], int] = {}
        self._ahead_ms_max = ahead_ms_max
        self._limits = limits
        self._latest_ms: dict[PartitionId, int] = {}  # newest append time
        self._heard: dict[PartitionId, dict[bytes, list[Batch]]] = {}  # the batches of each producer that were placed
        self._newest_ms: dict[Place, int] = {}  # newest append time in a segment, also of batches that were cut
        self._opened_over: set[Place] = set()
        self._left: dict[PartitionId, list[Segment]] = {}  # by retention, as they were last
        self._set_back: set[tuple[PartitionId, int, int]] = set()  # their master did not believe the append time before
        self._replay_lengths: dict[PartitionId, tuple[tuple[int, int, int], int]] = {}

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise."""
        raise Violation(rule, text)

    def excuse(self, what: Excuse) -> None:
        """Forgive something that would break a promise; docs/internals/excuses.md says why."""
        self.seen_states.add(f"excused: {what.value}")

    def note(self, effect: Note) -> None:
        """Count what happened, so that a run can say which rare states it reached."""
        self.seen_states.add(effect.name)
        if ("reason", "moved to a chosen place") in effect.fields:
            self.seen_states.add("head moved for balance")

    # ---- disks --------------------------------------------------------------------------------------

    def writes(self, who: str, writes: tuple[Write, ...], wall_ms: int | None = None) -> None:
        """I5: at one place of a segment all disks have the same batch; a member knows a seal only from the chain."""
        self.losses.wrote(who, writes)
        for write in writes:
            if isinstance(write, PutBatch):
                if wall_ms is not None:
                    self._check_time(who, write.partition, write.batch, wall_ms)
                self._place(who, write.partition, write.batch)
            elif isinstance(write, PutTailCopy):
                for batch in write.tail.batches:
                    self._place(who, write.partition, batch)
            elif isinstance(write, PutPreparation) and write.preparation.tail is not None:
                for batch in write.preparation.tail.batches:
                    self._place(who, write.partition, batch)
            elif isinstance(write, PutSegment) and write.segment.sealed_len is not None:
                known = self.sealed.get((write.partition, write.segment.no))
                if known is None or known[0] != write.segment.sealed_len:
                    what = f"{who} takes segment {write.segment.no} for sealed"
                    self.fail("I5", f"{what}: {write.segment}, and the chain says {known}")

    def found(self, partition: PartitionId, batch: Batch) -> None:
        """A batch is on a disk, and this judge did not see the write."""
        header = batch.header
        self.placed.setdefault((partition, header.segment, header.base_index), batch)
        place = (partition, header.segment)
        self._newest_ms[place] = max(self._newest_ms.get(place, 0), header.append_time_ms)

    def _check_time(self, who: str, partition: PartitionId, batch: Batch, wall_ms: int) -> None:
        """TIME: append time is not far ahead of the clock of the master that appends."""
        header = batch.header
        key = (partition, header.segment, header.base_index)
        if key in self.placed:
            return
        place = (partition, header.segment)
        time_ms, limit_ms = header.append_time_ms, self._ahead_ms_max
        if time_ms > wall_ms + limit_ms:
            what = f"{who} appends {header.segment}:{header.base_index} at {time_ms}"
            self.fail("TIME", f"{what}, {time_ms - wall_ms} ms ahead of its clock")
        records = (chain.segment(header.segment) for chain in reversed(self.history[partition]))
        known = next(filter(None, records), None)  # one that was folded since is in an older record
        if known is None:
            self.fail("I7", f"{who} appends to {header.segment}, which no record has")
        if max(self._newest_ms.get(place, 0), known.append_floor_ms) > wall_ms + limit_ms:
            self._set_back.add(key)
        self._newest_ms[place] = max(self._newest_ms.get(place, 0), time_ms)

    def _check_times(self, chain: Chain, open_length: int) -> None:
        """TIME: append time never goes back, unless the master could not believe the time before.

        Behind a segment that was opened over it may go back below that one's times: no member that knew them answered.
        """
        newest_ms = unknown_ms = 0
        for segment in chain.segments:
            length = open_length if segment.state is SegmentState.OPEN else segment.sealed_len
            if segment.state is SegmentState.LOST or length is None:
                continue
            before_ms = newest_ms
            for batch in self.batches(chain.partition, segment.no, length):
                header = batch.header
                key = (chain.partition, header.segment, header.base_index)
                if header.append_time_ms < newest_ms and key in self._set_back:
                    self.excuse(Excuse.TIME_SET_BACK)
                elif header.append_time_ms < newest_ms:
                    back_ms = newest_ms - header.append_time_ms
                    self.fail("TIME", f"append time goes back by {back_ms} ms at {segment.no}:{header.base_index}")
                if header.append_time_ms < unknown_ms:
                    self.excuse(Excuse.TIME_UNKNOWN)
                newest_ms = header.append_time_ms
            if (chain.partition, segment.no) in self._opened_over:
                unknown_ms, newest_ms = max(unknown_ms, newest_ms), min(newest_ms, before_ms)

    def _place(self, who: str, partition: PartitionId, batch: Batch) -> None:
        header = batch.header
        key = (partition, header.segment, header.base_index)
        known = self.placed.get(key)
        if known is None:
            self.placed[key] = batch
            self._latest_ms[partition] = max(self._latest_ms.get(partition, 0), header.append_time_ms)
            self._heard.setdefault(partition, {}).setdefault(header.producer, []).append(batch)
        elif known.header.checksum != header.checksum or known.body != batch.body:
            self.fail("I5", f"two batches at {header.segment}:{header.base_index} ({who}): {known} and {batch}")

    def _images(self) -> Iterator[tuple[MemberId, DiskImage]]:
        """What is durable on each disk, also on lost disks."""
        for broker in self._brokers.values():
            yield broker.member, broker.real_disk.durable
        yield from self.graveyard
        yield from self.displaced

    def _two_hold(self, batch: Batch, why: str) -> None:
        """I12 for messages that consumers get, and for the length at which a segment is sealed.

        Two disks hold the message. If the topic does not flush before it commits and the segment is still open, two
        memories are enough.
        """
        header = batch.header
        if self._flush or (PartitionId(header.partition), header.segment) in self.sealed:
            self._two_copies("I12", batch, why)
            return
        self.excuse(Excuse.TWO_MEMORIES)
        if not self.losses.was_held_by_two(batch):
            self.fail("I12", f"{why}: {batch.header.segment}:{batch.header.base_index} was never in two memories")

    def _two_copies(self, rule: str, batch: Batch, why: str) -> None:
        """Fail if fewer than two disks hold a batch, in their log or as a tail copy."""
        header = batch.header
        partition, end = PartitionId(header.partition), header.end_index
        found: list[MemberId] = []
        for member, image in self._images():
            if holds(image, partition, header.segment, header.base_index, end):
                found.append(member)
                if len(found) == 2:
                    if not all(map(self._is_present, found)):
                        self.excuse(Excuse.LOST_DISK)
                    return
        held_by = ", ".join(map(str, found)) or "no disk"
        self.fail(rule, f"{why}: {header.segment}:{header.base_index} is on {held_by}")

    # ---- chains -------------------------------------------------------------------------------------

    def chain_written(self, who: str, before: Chain | None, after: Chain, certificate: RunId | None) -> None:
        """I5, I6, I7, I12, I14 of one transition, as the coordinator carries it out."""
        if self._schedule.trace:
            from .story import brief

            self._schedule.tell("coord", f"chain by {who}: {brief(after)} cert {certificate}")
        chains.check(after)
        if after.partition in self.gone:
            self.fail("GONE", f"{who} writes a chain of partition {after.partition}, whose topic was deleted")
        self._used_once(who, after)
        self.history.setdefault(after.partition, []).append(after)
        if before is None:
            if after.epoch != 1:
                self.fail("I7", f"a chain begins at epoch {after.epoch}")
            self._opened(after)
            return
        if after.epoch != before.epoch + 1:
            self.fail("I7", f"epoch {before.epoch} is followed by {after.epoch}")
        opened = after.open_segment.no - before.open_segment.no
        if opened not in (0, 1) or any(before.segment(new.no) is None for new in after.segments[: -opened or None]):
            self.fail("I7", f"segments came: {before} {after}")
        for old in before.segments:
            new = after.segment(old.no)
            if new is None and old.no < after.segments[0].no and not after.is_folded(old.no):
                self._left_record(after, old)
            elif new is None:
                self._folded(before, after, old)
            else:
                self._segment_changed(after, old, new)
        if opened:
            if before.open_segment.state is not SegmentState.OPEN:
                self.fail("I7", "opened behind a segment that was not open")
            self._opened(after)
            old = after.segments[-2]
            if old.state is SegmentState.UNSETTLED and not _proves(certificate, old) and not self._suspects(old):
                self.fail("I7", f"{old.no} was opened over without the certificate of {old.master_run_id}")
            if old.state is SegmentState.UNSETTLED and certificate is not None and self._runs(certificate):
                self.fail("CERT", f"{old.no} was opened over with the certificate of {certificate}, which runs")

    def _folded(self, before: Chain, after: Chain, old: Segment) -> None:
        """A segment leaves the record only if it is empty for ever, and no other segment needs its members."""
        what = f"segment {old.no} of partition {after.partition} is folded"
        self.seen_states.add("folded")
        if not after.is_folded(old.no):
            self.fail("I7", f"{what}, and the record does not say so: {after}")
        if old.state is not SegmentState.SEALED or old.sealed_len != 0:
            self.fail("I8", f"{what}, and it is {old.state.value} with {old.sealed_len} messages")
        nearest = before.before(old.no)
        if nearest is None or nearest.tail_from is None or nearest.state is not SegmentState.SEALED:
            return
        whole = [m for m in nearest.members if self._is_present(m) and self.is_whole(after.partition, nearest, m)]
        if len(whole) < 2 and all(map(self._is_present, nearest.members)):
            self.fail("COPY", f"{what}, and its members have the tail of {nearest.no}, which is whole on {whole} only")

    def _left_record(self, after: Chain, old: Segment) -> None:
        """RETAIN: a segment leaves the record at the old end, when no consumer group is in it or before it."""
        self.seen_states.add("left the record")
        what = f"segment {old.no} of partition {after.partition} leaves the record"
        if old.state not in _SETTLED:
            self.fail("RETAIN", f"{what}, and it is {old.state.value}")
        for (group, of), no in self._cursors.items():
            if of == after.partition and no <= old.no:
                self.fail("RETAIN", f"{what}, and {group} stands in {no}")
        if after.segments[0].incomplete_table:
            self.fail("RETAIN", f"{what}, and readers of {after.segments[0].no} need its producer table")
        for group, no in self.untold(after.partition, [name for name, of in self._cursors if of == after.partition]):
            if no == old.no and old.state is SegmentState.LOST:
                self.fail("RETAIN", f"{what}, and {group} was not told that it is lost")
        self._left.setdefault(after.partition, []).append(old)

    def _trimmed(self, partition: PartitionId, old: Segment, new: Segment) -> None:
        """RETAIN: every member had the dropped messages, and the record has the right start of the segment."""
        what = f"segment {new.no} of partition {partition} begins at {new.begin}"
        self.seen_states.add("trimmed open" if new.state is SegmentState.OPEN else "trimmed sealed")
        if new.start <= old.start or new.state not in (SegmentState.OPEN, SegmentState.SEALED):
            self.fail("RETAIN", f"{what}, and began at {old.begin}: {new.state.value}")
        below = self.batches(partition, new.no, new.start)
        size_bytes = sum(batch.size_bytes for batch in below)
        checksum = below[-1].header.checksum
        if (new.begin.checksum, new.begin.size_bytes) != (checksum, size_bytes) and new.sealed_bytes is not None:
            self.fail("RETAIN", f"{what}, and the log has {checksum} and {size_bytes} bytes there")
        for member in new.members if new.state is SegmentState.OPEN else ():
            image = self._image(member)
            if image is not None and own_tail(image, partition, new.no) < new.start:
                self.fail("RETAIN", f"{what}, and {member} has not all of it on its disk")

    def dropped_told(self, group: str, partition: PartitionId, first: int, end: int) -> None:
        """A consumer of the group is told that retention dropped the messages between two offsets: it did."""
        chain = self.history[partition][-1]
        what = f"{group} is told that {format_offset(first)} to {format_offset(end)} is gone"
        self.seen_states.add("told of dropped messages")
        for of, no, index in self.placed:
            if of != partition or not first <= make_offset(no, index) < end:
                continue
            segment = chain.segment(no)
            is_cut = (partition, no) in self.sealed and index >= self.sealed[partition, no][0]
            is_gone = no < chain.segments[0].no or (partition, no) in self.losses.declared
            if not is_cut and not is_gone and (segment is None or index >= segment.start):
                self.fail("I1", f"{what}, and {no}:{index} is there")
        self.excuse(Excuse.DROPPED_UNREAD)
        self.view(group, partition).dropped.append((first, end))

    def _used_once(self, who: str, after: Chain) -> None:
        """TWICE: a segment with stored messages keeps its one switch attempt, even if the coordinator forgot it."""
        for segment in after.segments:
            first = self._attempts.setdefault((after.partition, segment.no), segment.attempt)
            if first != segment.attempt:
                if any(key[:2] == (after.partition, segment.no) for key in self.placed):
                    self.fail("TWICE", f"{who} opens {after.partition}:{segment.no} again, on {segment.group}")
                self._attempts[after.partition, segment.no] = segment.attempt

    def rebuilt(self, after: Chain) -> None:
        """I6, I7, TWICE of a record that a person writes anew after the coordinator lost it: nothing has moved.

        It may lack a transition that was written and that no broker was told of, so it need not follow the last record.
        """
        chains.check(after)
        self._used_once("the rebuild", after)
        for segment in after.segments:
            promised = self._promised.get((after.partition, segment.no), 0)
            what = f"the rebuild writes segment {segment.no} of partition {after.partition} as"
            if segment.sealed_len is not None and segment.sealed_len < promised:
                self.fail("I6", f"{what} sealed at {segment.sealed_len}, and all below {promised} was promised")
        for (partition, no), promised in self._promised.items():
            has_left = any(left.no == no for left in self._left.get(partition, ()))
            if partition == after.partition and promised and after.segment(no) is None and not has_left:
                what = f"the rebuild lacks segment {no} of partition {partition}"
                self.fail("I7", f"{what}, and all below {promised} was promised")
        self.history.setdefault(after.partition, []).append(after)

    def certified(self, who: str, run: RunId) -> None:
        """CERT: if a certificate says that a run has ended, it has ended, unless the certificate itself is a fault."""
        if run not in self.certified_falsely and self._runs(run):
            self.fail("CERT", f"{who} certifies the death of {run}, which runs")

    def _runs(self, run: RunId) -> bool:
        """Whether this run has not ended, whatever a certificate says."""
        broker = self._brokers[run.member.broker]
        return broker.process is not None and (broker.member, broker.process.run) == (run.member, run.run)

    def _suspects(self, segment: Segment) -> bool:
        return not self._flush and any(self._brokers[member.broker].suspect_before_run for member in segment.members)

    def _segment_changed(self, chain: Chain, old: Segment, new: Segment) -> None:
        self._note_change(chain.partition, old, new)
        if new.begin != old.begin:
            self._trimmed(chain.partition, old, new)
        what = f"segment {old.no} of partition {chain.partition}"
        if new.state is not old.state and new.state not in LEGAL_TRANSITIONS[old.state]:
            self.fail("I7", f"{what} went from {old.state} to {new.state}")
        fixed = ("attempt", "group", "master_run", "incomplete_table", "opened_at_ms", "append_floor_ms")
        for name in fixed:
            if getattr(old, name) != getattr(new, name):
                self.fail("I7", f"{what}: {name} changed from {getattr(old, name)} to {getattr(new, name)}")
        if old.state in (SegmentState.OPEN, SegmentState.UNSETTLED) and old.members != new.members:
            self.fail("I7", f"{what}: members of an unsealed segment changed: {old.members} to {new.members}")
        if old.base is not None and old.base != new.base:
            self.fail("I5", f"{what}: base changed from {old.base} to {new.base}")
        if old.state in _SETTLED:
            if (old.sealed_len, old.sealed_checksum) != (new.sealed_len, new.sealed_checksum):
                self.fail("I5", f"{what}: length or checksum changed: {old} {new}")
            for member in new.members:
                if member not in old.members and not self.is_whole(chain.partition, new, member):
                    self.fail("COPY", f"{what}: {member} was listed as a copy and does not have all of it")
            self._check_leaving(chain, old, new, what)
        if new.server_epoch < old.server_epoch or (new.server != old.server and new.server_epoch == old.server_epoch):
            self.fail("I14", f"{what}: the server changed from {old.server} to {new.server} without a new epoch")
        if (
            old.server != new.server
            and old.state is new.state
            and not self._holds_all(chain.partition, new, new.server)
        ):
            self.fail("I14", f"{what}: {new.server} becomes its server and does not hold all of it")
        if old.state is not SegmentState.SEALED and new.state is SegmentState.SEALED:
            self._sealed(chain, new)
        if old.state is not SegmentState.LOST and new.state is SegmentState.LOST:
            self._declared_lost(chain.partition, old)

    def _check_leaving(self, chain: Chain, old: Segment, new: Segment, what: str) -> None:
        """LEAVE: a copy of a member that runs leaves a record only if two whole copies stay."""
        left = {*old.members, *old.tail_copies} - {*new.members, *new.tail_copies}
        there = [member for member in left if self._is_present(member) and self._brokers[member.broker].process]
        if not there or new.state is not SegmentState.SEALED:
            return
        self.seen_states.add("copy left")
        whole = [m for m in new.members if self._is_present(m) and self.is_whole(chain.partition, new, m)]
        if len(whole) < 2:
            self.fail("LEAVE", f"{what}: {there} left, and only {whole} hold the whole of it")

    def _is_present(self, member: MemberId) -> bool:
        """Whether the member's disk is the one that its broker has."""
        return self._brokers[member.broker].member == member

    def said_safe(self, member: MemberId, chains: Iterable[Chain]) -> None:
        """GATE: each message that a stoppable member holds is also on another member."""
        self.seen_states.add("said safe")
        for chain in chains:
            for segment in chain.segments:
                what = f"{member} may be stopped, and segment {segment.no} of partition {chain.partition}"
                if member not in holders(segment):
                    continue
                others = [other for other in (*segment.members, *segment.eligible) if other != member]
                if segment.state is SegmentState.SEALED:
                    if not any(self.is_whole(chain.partition, segment, other) for other in others):
                        self.fail("GATE", f"{what} is whole nowhere else")
                elif segment.state is SegmentState.OPEN:
                    promised = self._promised.get((chain.partition, segment.no), 0)
                    images = [image for other in others if (image := self._image(other)) is not None]
                    if not any(own_tail(image, chain.partition, segment.no) >= promised for image in images):
                        self.fail("GATE", f"{what} is acknowledged up to {promised}, and no other member has that")
                else:
                    self.fail("GATE", f"{what} is not settled")

    def _note_change(self, partition: PartitionId, old: Segment, new: Segment) -> None:
        """Count rare states."""
        seen = self.seen_states
        if old.state is SegmentState.OPEN and new.state is SegmentState.UNSETTLED:
            seen.add("opened over")
            self._opened_over.add((partition, old.no))
        if old.state is SegmentState.UNSETTLED and new.state is SegmentState.SEALED:
            seen.add("settled")
        if old.state is SegmentState.OPEN and new.tail_copies:
            seen.add("tail copied")
        if new.server_epoch > old.server_epoch and old.state is new.state:
            seen.add("server taken")
        if len(new.members) > len(old.members) or set(new.members) - set(old.members):
            seen.add("copy listed")

    def _sealed(self, chain: Chain, segment: Segment) -> None:
        length, partition = segment.sealed_len, chain.partition
        assert length is not None
        what = f"segment {segment.no} of partition {partition} is sealed at {length}"
        promised = self._promised.get((partition, segment.no), 0)
        if length < promised:
            self._forgive(partition, segment.no, length, promised, what)
        self.sealed[partition, segment.no] = (length, segment.sealed_checksum)
        if segment.sealed_checksum != self._checksum_at(partition, segment.no, length):
            self.fail("I5", f"{what}, with a checksum that is not that of the log")
        for batch in self.batches(partition, segment.no, length):
            self._two_hold(batch, what)
        if not self.is_whole(partition, segment, segment.server):
            self.fail("I14", f"{what}, and its server {segment.server} does not hold it")
        for member in segment.eligible:
            if not self.is_whole(partition, segment, member):
                self.fail("I14", f"{what}, and {member} is eligible and does not hold it")
        for member in segment.tail_copies:
            assert segment.tail_from is not None
            if not self._has_tail(partition, segment, member):
                self.fail("COPY", f"{what}: {member} is listed for its tail and has none")

    def _declared_lost(self, partition: PartitionId, old: Segment) -> None:
        """I1: only a segment that is lost, and that a person named, is declared lost.

        Consumer groups that had not read all of it must be told.
        """
        place = (partition, old.no)
        what = f"segment {old.no} of partition {partition} was declared lost"
        if place not in self.gaps_asked:
            self.fail("I1", f"{what}, and no request was for that")
        for member in old.members:
            if self._brokers[member.broker].member == member:
                self.fail("I1", f"{what}, and {member} is there")
        self.seen_states.add("declared lost" if old.state is SegmentState.SEALED else "declared lost unsettled")
        self.losses.declared.add(place)
        passed = {group for (group, of), no in self._cursors.items() if of == partition and no > old.no}
        self._passed[place] = frozenset(passed)
        self._forget_deliveries(partition, old.no, 0)

    def _forgive(self, partition: PartitionId, no: int, length: int, promised: int, what: str) -> None:
        """I6, unless no member with more is left: then what was promised above the length is gone for ever."""
        place = (partition, no)
        if place in self.contradicted:
            known = max(image.known_commit for image in self._logs(place))
            if known > length:
                self.excuse(Excuse.CONTRADICTED)
            else:
                self.excuse(Excuse.CUT_ABOVE_COMMIT)
            self.contradicted[place] = promised if known > length else 0  # a quarantined log is kept as it is
            self.losses.cut[place] = length
            self._forget_deliveries(partition, no, length)
            return
        if self._flush:
            self.fail("I6", f"{what}, and all below {promised} was acknowledged or delivered")
        if length < self._flushed.get(place, 0):
            self.fail("I6", f"{what}, and all below {self._flushed[place]} was acknowledged, flushed")
        left = min(self.losses.longest(place), promised)
        if length < left:
            self.fail("I6", f"{what}; all below {promised} was acknowledged or delivered, and {left} of it is left")
        self.seen_states.add("promised and gone")
        self.excuse(Excuse.MEMORIES_LOST)
        self.losses.cut[place] = length
        self._forget_deliveries(partition, no, length)

    def _forget_deliveries(self, partition: PartitionId, no: int, length: int) -> None:
        """Messages at and above a length are gone. Consumer groups that had them may get them again, after a resend."""
        for view in self._views(partition):
            first, behind = make_offset(no, length), make_offset(no + 1, 0)
            for offset, message in view.firsts:
                if first <= offset < behind:
                    view.seen.discard(message)
                    view.first_at.pop(message, None)
            view.firsts = [pair for pair in view.firsts if not first <= pair[0] < behind]

    def _opened(self, chain: Chain) -> None:
        segment = chain.open_segment
        self._opened_us[chain.partition, segment.no] = self._schedule.now_us
        if len(chain.segments) > 1 and chain.segments[-2].incomplete_table:
            self.seen_states.add("mark inherited" if segment.incomplete_table else "tables merged")
        newest_ms = max((ms for (of, _), ms in self._newest_ms.items() if of == chain.partition), default=0)
        if segment.append_floor_ms > newest_ms:
            what = f"segment {segment.no} begins at {segment.append_floor_ms}"
            self.fail("TIME", f"{what}, and nothing was appended after {newest_ms}")
        if not len(set(segment.members)) >= 2:
            self.fail("I12", f"segment {segment.no} was opened on {segment.members}")
        for member in segment.members:
            image = self._image(member)
            found = image.partitions.get(chain.partition) if image is not None else None
            preparation = found.preparations.get((segment.no, segment.attempt)) if found is not None else None
            if preparation is None:
                self.fail("COPY", f"segment {segment.no} was opened under an attempt that {member} did not prepare")
            if preparation.members != segment.members or preparation.incomplete_table != segment.incomplete_table:
                self.fail("COPY", f"segment {segment.no} was opened as {segment}, prepared as {preparation}")
            if not segment.incomplete_table:
                assert found is not None
                blocks = {block.id: block for block in map(IdleBlock, found.blocks.values())}
                if any(name.id not in blocks for name in preparation.table.blocks):
                    self.fail("TABLE", f"{member} prepared a table whose idle blocks it does not have")
                if preparation.table.blocks:
                    self.seen_states.add("idle blocks named")
                self._check_table(chain, ProducerTable(preparation.table, (), blocks))

    def _check_table(self, chain: Chain, table: ProducerTable) -> None:
        """A table that is not marked incomplete knows the last batch of each producer."""
        if not chain.settled_before(chain.open_segment.no):
            self.fail("TABLE", f"segment {chain.open_segment.no} begins unmarked behind an unsettled one")
        newest = {producer: newest_of(window) for producer, window in table.items()}
        found = {producer: (entry.epoch, entry.last_sequence) for producer, entry in newest.items()}
        expected = self._last_batches(chain, with_lost=False)
        if found == expected:
            return
        at_most = self._last_batches(chain, with_lost=True)  # a table may be older than the gap
        for producer in {**found, **at_most}:
            rank = found.get(producer, _NO_BATCH)
            if producer not in found and self._may_be_forgotten(chain.partition, producer):
                self.excuse(Excuse.PRODUCER_FORGOTTEN)
                continue
            if not expected.get(producer, _NO_BATCH) <= rank <= at_most.get(producer, _NO_BATCH):
                self.fail("TABLE", f"segment {chain.open_segment.no} begins with {found}, the log says {expected}")
            if rank != expected.get(producer, _NO_BATCH):
                self.excuse(Excuse.TABLE_OLDER_THAN_GAP)

    def _may_be_forgotten(self, partition: PartitionId, producer: bytes) -> bool:
        """Whether the producer was idle for so long that a table need not know it any more.

        The append time of its last batch says so, as it does for a broker; an earlier batch has a later time if a
        clock was set back between them. Once it was, the leap forward to the true time makes each idle producer old.
        """
        heard, limits = self._heard.get(partition, {}), self._limits
        headers = [batch.header for batch in heard.get(producer, ()) if not self._is_cut(partition, batch.header)]
        full = len(heard) >= limits.producer_count_max
        limit_ms = limits.producer_evict_ms if full else limits.producer_expiry_ms
        if any(of == partition for of, _, _ in self._set_back):
            limit_ms = limits.producer_idle_ms
        last = max(headers, key=lambda header: (header.producer_epoch, header.last_sequence), default=None)
        if last is None or self._latest_ms[partition] - last.append_time_ms < limit_ms:
            return False
        self.seen_states.add("producer forgotten")
        return True

    def _was_idle(self, producer: bytes) -> bool:
        """Whether there was a time after which only the producer's newest batch need be known."""
        for partition, heard in self._heard.items():
            times = sorted(batch.header.append_time_ms for batch in heard.get(producer, ()))
            pauses_ms = [after - before for before, after in pairwise([*times, self._latest_ms[partition]])]
            if times and max(pauses_ms) >= self._limits.producer_idle_ms:
                return True
        return False

    def _is_cut(self, partition: PartitionId, header: BatchHeader) -> bool:
        """Whether the batch is above the length of its segment."""
        sealed = self.sealed.get((partition, header.segment))
        return sealed is not None and header.base_index >= sealed[0]

    def _last_batches(self, chain: Chain, *, with_lost: bool) -> dict[bytes, tuple[int, int]]:
        """For each producer the epoch and the last sequence of its last batch before the open segment."""
        last: dict[bytes, tuple[int, int]] = {}
        for segment in (*self._left.get(chain.partition, ()), *chain.segments[:-1]):
            if segment.sealed_len is None or (segment.state is SegmentState.LOST and not with_lost):
                continue
            for batch in self.batches(chain.partition, segment.no, segment.sealed_len):
                header = batch.header
                rank = (header.producer_epoch, header.last_sequence)
                last[header.producer] = max(last.get(header.producer, _NO_BATCH), rank)
        return last

    def batches(self, partition: PartitionId, segment_no: int, length: int) -> list[Batch]:
        """The batches of a segment below a length, as they were placed."""
        found: list[Batch] = []
        index = 0
        while index < length:
            batch = self.placed.get((partition, segment_no, index))
            if batch is None:
                self.fail("I5", f"segment {segment_no} is {length} long, and nothing was ever written at {index}")
            found.append(batch)
            index = batch.header.end_index
        if index != length:
            self.fail("I5", f"segment {segment_no} ends at {length}, inside of {found[-1]}")
        return found

    def _checksum_at(self, partition: PartitionId, segment_no: int, length: int) -> int:
        found = self.batches(partition, segment_no, length)
        return found[-1].header.checksum if found else 0

    def _image(self, member: MemberId) -> DiskImage | None:
        broker = self._brokers.get(member.broker)
        if broker is not None and broker.member == member:
            return broker.real_disk.durable
        return next((image for owner, image in self.graveyard if owner == member), None)

    def is_whole(self, partition: PartitionId, segment: Segment, member: MemberId) -> bool:
        """Whether a member's disk holds all of a sealed segment."""
        image = self._image(member)
        if image is None or segment.sealed_len is None:
            return False
        return own_tail(image, partition, segment.no) >= segment.sealed_len

    def _holds_all(self, partition: PartitionId, segment: Segment, member: MemberId) -> bool:
        """Whether a member has all of a sealed segment, in memory at least."""
        broker = self._brokers[member.broker]
        if segment.sealed_len is None or broker.member != member or broker.process is None:
            return self.is_whole(partition, segment, member)
        if not self.is_whole(partition, segment, member):
            self.excuse(Excuse.NOT_YET_FLUSHED)
        return own_tail(broker.real_disk.visible, partition, segment.no) >= segment.sealed_len

    def _has_tail(self, partition: PartitionId, segment: Segment, member: MemberId) -> bool:
        image = self._image(member)
        assert segment.tail_from is not None
        assert segment.sealed_len is not None
        if image is None:
            return False
        return holds(image, partition, segment.no, segment.tail_from, segment.sealed_len)

    # ---- producers ----------------------------------------------------------------------------------

    def sent(
        self, message: int, partition: PartitionId, producer: bytes, level: int = AckLevel.REPLICATED_FLUSHED
    ) -> None:
        """The application handed a message over, and asked for an ack level."""
        self.fates[message] = Fate(partition, producer, self._schedule.now_us, level)

    def accepted(
        self,
        who: str,
        partition: PartitionId,
        messages: list[int],
        offset: int,
        level: int = AckLevel.REPLICATED_FLUSHED,
    ) -> None:
        """A broker says that a batch is at `offset`; the ack level says what that promises.

        If the level carries the promise, the segment is not sealed below the batch. With `replicated_flushed` two disks
        have it, else two members.
        """
        segment_no, index = split_offset(offset)
        batch = self.placed.get((partition, segment_no, index))
        what = f"{who} acknowledges {messages} at {format_offset(offset)}"
        self.accepted_count += 1
        if batch is None or messages_of(batch) != messages:
            self.fail("I1", f"{what}, where there is {batch and messages_of(batch)}")
        if level < AckLevel.REPLICATED or partition in self.gone:
            return  # of a deleted topic a member may have nothing any more
        known = self.history.get(partition)
        segment = known[-1].segment(segment_no) if known else None
        if segment is not None and segment.state is SegmentState.UNSETTLED:
            self.fail("RT", f"{what}, which was opened over: later messages may have been acknowledged behind it")
        self._promise(what, partition, segment_no, batch.header.end_index, "I6")
        if self._is_dropped(partition, segment_no, index):
            self.excuse(Excuse.RESEND_OF_DROPPED)
        elif level == AckLevel.REPLICATED_FLUSHED:
            self._two_copies("I12", batch, what)
            place = (partition, segment_no)
            self._flushed[place] = max(self._flushed.get(place, 0), batch.header.end_index)
        else:
            self._two_hold(batch, what)

    def _is_dropped(self, partition: PartitionId, no: int, index: int) -> bool:
        """Whether the record says that retention dropped the messages there."""
        known = self.history.get(partition)  # an explored world may begin with a record that was never written
        segment = known[-1].segment(no) if known else None
        has_left = any(left.no == no for left in self._left.get(partition, ()))
        return has_left or (segment is not None and index < segment.start)

    def appended(self, request: int, batch: Batch) -> None:
        """A master gave the batch of a request its place."""
        self._appended[request] = batch

    def check_room(self, batch: Batch) -> None:
        """FULL: a master that takes a batch has no member whose disk has been full for more than 3 s."""
        header = batch.header
        chains = self.history.get(PartitionId(header.partition))
        segment = chains[-1].segment(header.segment) if chains else None
        now_us = self._schedule.now_us
        for member in segment.members if segment is not None else ():
            broker = self._brokers[member.broker]
            full_us = now_us - max(broker.full_since_us, self._opened_us.get((header.partition, header.segment), 0))
            if broker.full_until_us > now_us and full_us > FULL_US_MAX and self._is_present(member):
                what = f"{header.segment}:{header.base_index} is taken, and the disk of {member.broker}"
                self.fail("FULL", f"{what} has been full for {full_us / 1e6:.1f} s")

    def denied(self, who: str, request: int, error: SeriatimError) -> None:
        """I10: a send attempt answered as not stored is on no disk, now or later. GAP: no attempt breaks a sequence."""
        if isinstance(error, SequenceGapError | SequenceTooOldError | BatchMismatchError):
            self._broken_sequence(who, error)
        batch = self._appended.get(request)
        if batch is None or not error.outcome_known:
            return
        header = batch.header
        partition = PartitionId(header.partition)
        what = f"{who} answers {error} for what it put at {header.segment}:{header.base_index}"
        sealed = self.sealed.get((partition, header.segment))
        if sealed is None:
            self.fail("I10", f"{what}, and the segment's length is not decided")
        if header.base_index < sealed[0]:
            self.fail("I10", f"{what}, and the segment is sealed at {sealed[0]}")

    def _broken_sequence(self, who: str, error: SeriatimError) -> None:
        """GAP, unless the broker cannot know the producer's last batch: it was acknowledged, and is gone."""
        producer = bytes.fromhex(error.details.get("producer", ""))
        if any(self._may_be_forgotten(partition, producer) for partition in self._heard):
            self.seen_states.add("forgotten producer told")
            self.excuse(Excuse.PRODUCER_FORGOTTEN)
            return
        if isinstance(error, SequenceTooOldError) and self._was_idle(producer):
            self.seen_states.add("cut window told")
            return
        if not (self._may_miss or self.losses.has_any) or not isinstance(error, SequenceGapError):
            self.fail("GAP", f"{who} refuses a producer that keeps the rules: {error}")
        self.seen_states.add("a gap told to a producer")
        self.excuse(Excuse.SEQUENCE_UNKNOWN)

    def _promise(self, what: str, partition: PartitionId, segment_no: int, end: int, rule: str) -> None:
        sealed = self.sealed.get((partition, segment_no))
        if sealed is not None and end > sealed[0]:
            self.fail(rule, f"{what}, and the segment is sealed at {sealed[0]}")
        key = (partition, segment_no)
        self._promised[key] = max(self._promised.get(key, 0), end)

    def settled(self, messages: list[int], outcome: str, offset: int | None, *, is_final: bool = False) -> None:
        """The application was told the outcome of a batch, and perhaps that its place is final."""
        for at, message in enumerate(messages):
            fate = self.fates[message]
            if fate.outcome:
                self.fail("I10", f"message {message} was {fate.outcome} and is {outcome} now")
            fate.outcome = outcome
            if outcome == "ok":
                fate.acked_us = self._schedule.now_us
                fate.offset = offset
                if is_final and offset is not None:
                    fate.final_offset = offset + at
                    for view in self._views(fate.partition):
                        if message in view.first_at:
                            self._is_at_its_place("a group was", message, view.first_at[message])

    def _is_at_its_place(self, who: str, message: int, offset: int) -> None:
        """PLACE: a receipt that calls its place final names the one at which all readers get the message."""
        final = self.fates[message].final_offset
        if final is not None and offset != final:
            places = f"{format_offset(offset)}, and its receipt says {format_offset(final)} for good"
            self.fail("PLACE", f"{who} given {message} at {places}")

    # ---- consumers ----------------------------------------------------------------------------------

    def served(self, who: str, batches: tuple[Batch, ...], server_epoch: int) -> None:
        """A broker puts batches on a consumer's stream: committed, below the seal, and no later server has begun."""
        for batch in batches:
            header = batch.header
            partition = PartitionId(header.partition)
            newest = self._servers.get((partition, header.segment), 0)
            if server_epoch < newest:
                self.fail("SERVER", f"{who} delivers under {server_epoch} after another did under {newest}")
            self._servers[partition, header.segment] = server_epoch
            what = f"{who} delivers {header.segment}:{header.base_index}"
            known = self.placed.get((partition, header.segment, header.base_index))
            if known is None or known.header.checksum != header.checksum:
                self.fail("I5", f"{what}, which is not what was written there")
            self._promise(what, partition, header.segment, header.end_index, "I6")
            if partition not in self.gone:
                self._two_hold(batch, what)

    def heads(self, partition: PartitionId) -> list[int]:
        """The cursor segments of all consumer groups; the first segment, if there is no cursor yet."""
        return [no for (_, of), no in self._cursors.items() if of == partition] or [1]

    def view(self, group: str, partition: PartitionId, group_epoch: int | None = None) -> GroupView:
        """What a consumer group has seen since it was last moved; with `group_epoch`, what it saw in that epoch."""
        found = self.groups.get((group, partition))
        if found is None:
            found = self.groups[group, partition] = GroupView()
        if group_epoch is None or group_epoch >= found.group_epoch:
            return found
        past = self._past_views[group, partition]
        return next(view for view in reversed(past) if view.group_epoch <= group_epoch)

    def _views(self, partition: PartitionId) -> list[GroupView]:
        """The views of all consumer groups, also from before they were moved."""
        past = (view for (_, of), views in self._past_views.items() if of == partition for view in views)
        return [*past, *(view for (_, of), view in self.groups.items() if of == partition)]

    def wanted(self, group: str, partition: PartitionId, chain: Chain, open_length: int) -> int:
        """How many messages the consumer group must get, from the place at which it began or was last moved to."""
        view = self.view(group, partition)
        if not view.start and not view.dropped:
            return self.replay_length(chain, open_length)
        return len(self._due(view, self.replay(chain, open_length)))

    def _due(self, view: GroupView, order: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The part of the replay that a consumer group must get: all behind its beginning, unless dropped unread."""
        due = [pair for pair in order if pair[0] >= view.start]
        return (
            [pair for pair in due if pair[1] in view.seen or not view.need_not_have(pair[0])] if view.dropped else due
        )

    def delivered(
        self,
        group: str,
        partition: PartitionId,
        offset: int,
        message: int,
        *,
        flagged: bool,
        group_epoch: int | None = None,
    ) -> None:
        """The application of a group is given a message."""
        chain = self.history[partition][-1]
        view = self.view(group, partition, group_epoch)
        what = f"{group} is given {message} at {format_offset(offset)}"
        if message in view.seen:
            if not flagged:
                self.fail("I9", f"{what} again, as a first attempt")
            return
        fate = self.fates.get(message)
        if fate is None or fate.partition != partition:
            self.fail("I2", f"{what}, which no producer sent there")
        if fate.outcome == "failed":
            self.fail("I10", f"{what}, which its producer was told to have failed")
        if view.firsts and view.firsts[-1][0] >= offset:
            self.fail("I2", f"{what} behind {view.firsts[-1]}")
        if offset < view.start:
            self.fail("I11", f"{what}, and epoch {view.group_epoch} of the group began at {format_offset(view.start)}")
        segment_no, _ = split_offset(offset)
        for segment in chain.segments if view.drained_below < segment_no else ():
            if segment.no >= segment_no:
                break
            if segment.no < view.drained_below:
                continue
            if segment.state not in _SETTLED or segment.sealed_len is None:
                self.fail("I3", f"{what}, and segment {segment.no} is not settled")
            if segment.state is SegmentState.SEALED and not self._is_drained(view, partition, segment):
                self.fail("I3", f"{what}, and of segment {segment.no} it acknowledged {view.acked.get(segment.no, 0)}")
            view.drained_below = segment.no + 1
        self._is_at_its_place(f"{group} is", message, offset)
        view.seen.add(message)
        view.first_at[message] = offset
        view.firsts.append((offset, message))

    def confirmed(self, group: str, partition: PartitionId, group_epoch: int, segment_no: int, index: int) -> None:
        """A server confirms that everything below `index` is acknowledged, durably on every eligible copy."""
        known = self.view(group, partition, group_epoch).confirmed
        known[group_epoch, segment_no] = max(known.get((group_epoch, segment_no), 0), index)

    def begun(self, group: str, partition: PartitionId, group_epoch: int, segment_no: int, index: int) -> None:
        """I11: the first delivery under a grant, if not flagged, is not below what was confirmed in its group epoch."""
        for (epoch, no), confirmed in self.view(group, partition, group_epoch).confirmed.items():
            if epoch == group_epoch and (no, confirmed) > (segment_no, index):
                self.fail("I11", f"{group} is put at {segment_no}:{index}, and {no}:{confirmed} was confirmed to it")

    def skipped(
        self,
        group: str,
        partition: PartitionId,
        segment_no: int,
        start: int,
        end: int,
        group_epoch: int | None = None,
    ) -> None:
        """A consumer is told to pass over [start, end): each message there is also earlier in the order."""
        view = self.view(group, partition, group_epoch)
        index = start
        if start == split_offset(view.start)[1]:  # the group was sent into the middle of a batch
            within = (at for of, no, at in self.placed if (of, no) == (partition, segment_no) and at <= start)
            index = max(within, default=start)
        while index < end:
            batch = self.placed.get((partition, segment_no, index))
            if batch is None:
                self.fail("I5", f"{group} is to skip {segment_no}:{index}, where no batch begins")
            self.seen_states.add("skipped a repeat")
            missing = [message for message in messages_of(batch) if message not in view.seen]
            missing = [message for message in missing if not self._stands_before(partition, message, view.start)]
            if missing and self._was_dropped(partition, view, missing):
                self.excuse(Excuse.REPEAT_OF_DROPPED)
                missing = []
            if missing and self._stood_in_a_gap(partition, missing):
                self.seen_states.add("a repeat of what is lost")
                self.excuse(Excuse.REPEAT_OF_LOST)
                self._lost_repeats.setdefault(partition, set()).update(missing)
            elif missing:
                self.fail("I1", f"{group} is to skip {segment_no}:{index} and was never given {missing}")
            index = batch.header.end_index

    def _was_dropped(self, partition: PartitionId, view: GroupView, messages: list[int]) -> bool:
        """Whether the group was told that the first place of these messages was dropped."""
        if not view.dropped and not view.start:
            return False
        dropped: set[int] = set()
        for of, no, index in self.placed:
            if of == partition:
                for place, message in enumerate(messages_of(self.placed[of, no, index])):
                    if view.need_not_have(make_offset(no, index + place)):
                        dropped.add(message)
        return dropped.issuperset(messages)

    def _stood_in_a_gap(self, partition: PartitionId, messages: list[int]) -> bool:
        """Whether the first place of these messages was declared lost.

        The producer tables of later segments may still name them, because a table travels with the switch. Then every
        consumer group passes over the repeat, although its segment is there.
        """
        lost = [no for of, no in self.losses.declared if of == partition]
        stood: set[int] = set()
        for of, no, index in self.placed:
            if of == partition and no in lost:
                stood.update(messages_of(self.placed[of, no, index]))
        return stood.issuperset(messages)

    def gap_told(self, group: str, partition: PartitionId, segment_no: int) -> None:
        """A consumer of the group is told that it cannot be given a segment, or the rest of it."""
        if (partition, segment_no) not in self.losses.declared:
            self.fail("I1", f"{group} is told that segment {segment_no} of partition {partition} is lost")
        self.seen_states.add("told of a gap")
        self._told.add((group, partition, segment_no))

    def _stands_before(self, partition: PartitionId, message: int, start: int) -> bool:
        """Whether a message is before the place to which the consumer group was moved: it must not get the message."""
        return bool(start) and any(
            of == partition and make_offset(no, index) < start and message in messages_of(batch)
            for (of, no, index), batch in self.placed.items()
        )

    def acknowledged(self, group: str, partition: PartitionId, offset: int, group_epoch: int | None = None) -> None:
        """The application of a group acknowledges everything up to and including `offset`."""
        segment_no, index = split_offset(offset)
        view = self.view(group, partition, group_epoch)
        view.acked[segment_no] = max(view.acked.get(segment_no, 0), index + 1)

    def moved(self, group: str, partition: PartitionId, segment_no: int) -> None:
        """A reader of ranges, which has no cursor, has finished all before that segment."""
        self._cursors[group, partition] = segment_no

    def is_gone(self, partition: PartitionId, messages: list[int]) -> bool:
        """Whether these acknowledged messages may all be missing, because they were lost with their disks."""
        return all(
            message in self._lost_repeats.get(partition, ()) or self._may_be_gone(self.fates[message])
            for message in messages
        )

    def cursor_written(
        self, who: str, partition: PartitionId, group: str, old: CursorRecord | None, new: CursorRecord
    ) -> None:
        """I8 and I11: a cursor goes forward, over settled segments that the group has drained."""
        self._schedule.tell("coord", f"cursor of {group} by {who}: {new}")
        if partition in self.gone:
            self.seen_states.add("cursor of a deleted partition written")
        self._cursors[group, partition] = new.segment_no
        if old is None and who == PERSON and (group, partition) in self.groups:
            # the group epoch is the same, so all that the cursor passes must be drained
            begun_in = split_offset(self.groups[group, partition].start)[0] or 1
            old = replace(new, segment_no=min(begun_in, new.segment_no), start_index=0)
        if old is None:
            begins = make_offset(new.segment_no, new.start_index)
            if begins > make_offset(1, 0):  # retention dropped all before
                self.groups[group, partition] = GroupView(new.group_epoch, begins)
            return
        what = f"the cursor of {group} goes from segment {old.segment_no} to {new.segment_no}"
        if new.requests != old.requests and not old.deleted:
            self._operated(who, partition, group, old, new)
            return
        if new.paused != old.paused and not (old.deleted or new.deleted):
            self.fail("PAUSE", f"{who} writes {new} over {old}, and no person paused or resumed the group")
        if (new.group_epoch, new.segment_no) == (old.group_epoch, old.segment_no) and new.start_index < old.start_index:
            self.fail("I11", f"{what}, from index {old.start_index} to {new.start_index} in one epoch")
        if new.group_epoch < old.group_epoch or (
            new.group_epoch == old.group_epoch and new.segment_no < old.segment_no
        ):
            self.fail("I11", what)
        chain = self.history[partition][-1]
        view = self.view(group, partition)
        for segment in chain.segments:
            if not old.segment_no <= segment.no < new.segment_no:
                continue
            if segment.state not in _SETTLED or segment.sealed_len is None:
                self.fail("I8", f"{what}, and segment {segment.no} is not settled")
            if segment.state is SegmentState.LOST:
                drained = (partition, segment.no) in self.sealed and self._is_drained(view, partition, segment)
                if not drained and new.group_epoch == old.group_epoch:
                    self.fail("I8", f"{what} in one group epoch, and {segment.no} was lost before it was read")
            elif not self._is_drained(view, partition, segment) and not _says_dropped(segment, new, view):
                self.fail("I8", f"{what}, and of {segment.no} it acknowledged {view.acked.get(segment.no, 0)}")

    # ---- what people do to groups -----------------------------------------------------------------------

    def _operated(self, who: str, partition: PartitionId, group: str, old: CursorRecord, new: CursorRecord) -> None:
        """ONCE, I11: an operation is carried out once; a move raises the group epoch, and a pause changes no place."""
        what = f"{who} writes {new} over {old}"
        if not new.requests or old.requests[-len(new.requests) + 1 :] != new.requests[:-1]:
            self.fail("ONCE", f"{what}, and forgets what was done")
        id_ = new.requests[-1]
        if id_ in self._carried_out:
            self.fail("ONCE", f"{what}, and that was done before")
        self._carried_out.add(id_)
        place, before = (new.segment_no, new.start_index), (old.segment_no, old.start_index)
        if new.paused != old.paused:
            if (place, new.group_epoch) != (before, old.group_epoch):
                self.fail("I11", f"{what}: a pause or its end moves nothing")
            self.seen_states.add("group paused" if new.paused else "group resumed")
            change = self._paused.add if new.paused else self._paused.discard
            change((group, partition))
            return
        if new.group_epoch != old.group_epoch + 1:
            self.fail("I11", f"{what}: to be moved takes the next epoch")
        segment = self.history[partition][-1].segment(new.segment_no)
        if segment is None or (segment.sealed_len is not None and new.start_index > segment.sealed_len):
            self.fail("I8", f"{what}: there is no such place")
        self.seen_states.add("group rewound" if new.begun_by is GroupOperation.REWIND else "group skipped")
        self._past_views.setdefault((group, partition), []).append(self.view(group, partition))
        self.groups[group, partition] = GroupView(new.group_epoch, make_offset(*place))

    def operated(self, group: str, operation: GroupOperation, id_: bytes, *, was_done: bool) -> None:
        """DONE: if a person is told that an operation is done, it was carried out, or there was nothing to do."""
        if id_ not in self._carried_out and not (was_done and not operation.moves):
            self.fail("DONE", f"a person is told that {group} is done with {operation.name}, and nothing was written")

    def told(self, who: str, stream: int, subscription: int, event: DeliveryEvent) -> None:
        """VOID, PAUSE: a broker gives nothing in an epoch that a rewind or a skip has ended, and nothing in a pause."""
        key = (stream, subscription)
        if isinstance(event, Joined):
            self._granted[key] = event.group_epoch
        if not isinstance(event, Batches) or key not in self.subscribed:
            return
        group, partition = self.subscribed[key]
        begun = self.view(group, partition).group_epoch
        if self._granted[key] < begun:
            what = f"{who} delivers to {group} in epoch {self._granted[key]}"
            self.fail("VOID", f"{what}, and was moved in epoch {begun}")
        if (group, partition) in self._paused:
            self.fail("PAUSE", f"{who} delivers to {group}, which is paused")

    def _is_drained(self, view: GroupView, partition: PartitionId, segment: Segment) -> bool:
        """Whether all of the segment is acknowledged, except messages that came earlier in the order."""
        assert segment.sealed_len is not None
        acked = view.acked.get(segment.no, 0)
        for batch in self.batches(partition, segment.no, segment.sealed_len):
            if batch.header.end_index <= acked:
                continue
            here = make_offset(segment.no, batch.header.base_index)
            for place, message in enumerate(messages_of(batch)):
                is_done = batch.header.base_index + place < acked or view.need_not_have(here + place)
                is_done = is_done or view.first_at.get(message, here) < here
                if not is_done and not self._was_dropped(partition, view, [message]):
                    return False
        return True

    # ---- the end ------------------------------------------------------------------------------------

    def replay(self, chain: Chain, open_length: int) -> list[tuple[int, int]]:
        """Every message once, in the one order: (offset, message), computed from the chain and the writes."""
        order: list[tuple[int, int]] = []
        seen: set[int] = set(self._lost_repeats.get(chain.partition, ()))
        for segment in (*self._left.get(chain.partition, ()), *chain.segments):
            length = open_length if segment.state is SegmentState.OPEN else segment.sealed_len
            if segment.state is SegmentState.LOST:
                continue
            assert length is not None, f"segment {segment.no} is not settled"
            for batch in self.batches(chain.partition, segment.no, length):
                for place, message in enumerate(messages_of(batch)):
                    if message not in seen:
                        seen.add(message)
                        order.append(((segment.no << 40) + batch.header.base_index + place, message))
        return order

    def replay_length(self, chain: Chain, open_length: int) -> int:
        """How many messages `replay` would give; remembered, because callers ask often while nothing changes."""
        key = (chain.epoch, open_length, len(self._lost_repeats.get(chain.partition, ())))
        known = self._replay_lengths.get(chain.partition)
        if known is None or known[0] != key:
            known = self._replay_lengths[chain.partition] = (key, len(self.replay(chain, open_length)))
        return known[1]

    def final(self, chain: Chain, open_length: int, groups: list[str]) -> None:
        """I1, I2, I9, I10 and real time over the whole run, once everything has drained."""
        partition = chain.partition
        order = self.replay(chain, open_length)
        standing = {message: offset for offset, message in order}
        behind: tuple[int, int] = (-1, -1)  # the latest send so far, and its message
        for _, message in order:
            fate = self.fates[message]
            if fate.acked_us is not None and fate.acked_us < behind[0]:
                self.fail("RT", f"{behind[1]} was sent after {message} was acknowledged, and stands before it")
            behind = max(behind, (fate.sent_us, message))
        for message, fate in self.fates.items():
            if fate.partition != partition:
                continue
            is_gone = fate.outcome == "ok" and message not in standing
            if is_gone and message not in self._lost_repeats.get(partition, ()) and not self._may_be_gone(fate):
                where = format_offset(fate.offset) if fate.offset is not None else "?"
                self.fail("I1", f"{message} was acknowledged at {where} and is lost")
            if fate.outcome == "failed" and message in standing:
                self.fail("I10", f"{message} failed, and stands at {format_offset(standing[message])}")
        self._check_producer_order(order)
        self._check_times(chain, open_length)
        self._check_quarantine(partition)
        for group, no in self.untold(partition, groups):
            self.fail("I1", f"segment {no} was declared lost, and {group} was never told")
        for group in groups:
            last = self.view(group, partition)
            for view in (*self._past_views.get((group, partition), ()), last):
                wanted = self._due(view, order)
                firsts = view.firsts
                if view is not last:  # it was moved on from there
                    wanted = wanted[: len(firsts)]
                if firsts != wanted:
                    at = next((i for i, it in enumerate(wanted) if i >= len(firsts) or firsts[i] != it), len(wanted))
                    pairs = f"{firsts[at : at + 3]}, {wanted[at : at + 3]}"
                    self.fail("I2", f"{group} differs from the replay at {at} in epoch {view.group_epoch}: {pairs}")

    # ---- deleted topics -----------------------------------------------------------------------------

    def topic_gone(self, partition: PartitionId) -> None:
        """The topic of a partition is deleted: the coordinator has its tombstone."""
        self.gone.add(partition)
        if any(fate.partition == partition and not fate.outcome for fate in self.fates.values()):
            self.seen_states.add("topic deleted under traffic")

    def final_of_gone(self) -> None:
        """GONE, I2, I10: every send to a deleted topic has an outcome, and no consumer group got a failed one.

        Consumer groups got the messages in the order of sending.
        """
        for message, fate in self.fates.items():
            if fate.partition in self.gone and not fate.outcome:
                self.fail("GONE", f"{message} was sent to a topic that was deleted, and has no outcome")
        for (group, partition), view in self.groups.items():
            if partition not in self.gone:
                continue
            self._check_producer_order(view.firsts)
            for _, message in view.firsts:
                if self.fates[message].outcome == "failed":
                    self.fail("I10", f"{message} failed with its topic, and {group} was given it")

    def _check_quarantine(self, partition: PartitionId) -> None:
        """KEPT: messages that the chain lacks because of an older copy are on another disk, marked for a person."""
        for place, promised in self.contradicted.items():
            if place[0] != partition or not promised:
                continue
            if not any(log.record.quarantined and log.tail >= promised for log in self._logs(place)):
                self.fail("KEPT", f"no disk keeps what was acknowledged of segment {place[1]}, below {promised}")
            self.seen_states.add("quarantined")

    def _logs(self, place: Place) -> list[SegmentImage]:
        """What the present disks have of a segment."""
        images = [broker.disk.durable.partitions.get(place[0]) for broker in self._brokers.values()]
        return [image.segments[place[1]] for image in images if image is not None and place[1] in image.segments]

    def untold(self, partition: PartitionId, groups: list[str]) -> list[tuple[str, int]]:
        """Groups that had not left a segment when it was declared lost, and have not been told of it."""
        return [
            (group, no)
            for (of, no), passed in self._passed.items()
            for group in groups
            if of == partition and group not in passed and (group, partition, no) not in self._told
            if self.view(group, partition).start < make_offset(no + 1, 0)  # else the consumer group was moved past it
        ]

    def _may_be_gone(self, fate: Fate) -> bool:
        """Whether an acknowledged message may be missing: its level promised less, or it was lost with its disks."""
        if fate.level < AckLevel.REPLICATED:
            self.excuse(Excuse.WEAK_LEVEL)
            return True
        assert fate.offset is not None
        no, index = split_offset(fate.offset)
        if not self.losses.covers((fate.partition, no), index):
            return False
        self.excuse(Excuse.LOST_AFTERWARDS)
        return True

    def _check_producer_order(self, order: list[tuple[int, int]]) -> None:
        """Ids of one producer's messages grow in the order of sending."""
        last: dict[bytes, int] = {}
        for _, message in order:
            producer = self.fates[message].producer
            if last.get(producer, -1) > message:
                self.fail("I2", f"{message} stands behind {last[producer]} of the same producer")
            last[producer] = message


def holds(image: DiskImage, partition: PartitionId, segment_no: int, base: int, end: int) -> bool:
    """Whether a disk has [base, end) of a segment, in its log or in one tail copy."""
    found = image.partitions.get(partition)
    if found is None:
        return False
    if own_tail(image, partition, segment_no) >= end:
        return True
    tails = [tail for (no, _), tail in found.tails.items() if no == segment_no]
    for preparation in found.preparations.values():
        if preparation.tail is not None and preparation.tail.segment_no == segment_no:
            tails.append(preparation.tail)
    return any(tail.from_index <= base and tail.length >= end for tail in tails)


def _proves(certificate: RunId | None, segment: Segment) -> bool:
    """Whether this certificate says that the run which the segment's master named has ended."""
    wanted = segment.master_run_id
    return certificate is not None and certificate.member == wanted.member and certificate.run >= wanted.run


def _says_dropped(segment: Segment, cursor: CursorRecord, view: GroupView) -> bool:
    """Whether a cursor that leaves an emptied segment says from which offset on its readers are told of the drop."""
    first = max(make_offset(segment.no, view.acked.get(segment.no, 0)), view.start)
    return segment.is_stub and 0 < cursor.dropped_from <= first
