"""The record of what was seen in a run. All rules of the judge read it, and some of them write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import Segment, SegmentState
from seriatim_broker.testing.memory_disk import DiskImage, SegmentImage

from ..basics.schedule import Schedule
from .disks import own_tail
from .excuses import Excuse
from .losses import Losses, Place
from .views import ConsumerGroupView, Fate

if TYPE_CHECKING:
    from ..basics.interfaces import Broker

SETTLED = (SegmentState.SEALED, SegmentState.LOST)


class Seen:
    """What was seen of disks, chains, messages and consumer groups.

    Args:
        schedule: The time, and the story.
        brokers: All slots.
        flush: Whether the topic flushes before it commits.
        fail: Ends the run because of a broken promise; its arguments are the rule and a text.

    Attributes:
        placed: Each batch that was ever written, by partition, segment and index.
        sealed: The length and the checksum of each segment that was sealed.
        history: All records of each chain, the oldest first.
        states: Rare states that the run reached.
        certified_falsely: Runs whose certificates are a fault.
        contradicted: Segments where an older copy may decide; another disk keeps all below the index.
        graveyard: The disks that were lost.
        displaced: The disks of processes that were copied, and may run on.
        gone: Partitions whose topics were deleted.
        delayed: Messages that were sent with a due time. They are in no order with others.
        promised: The index of each segment below which something was acknowledged or delivered.
        cursors: The segment of each consumer group's cursor,
        cursor_epochs: and the group epoch.
        forgotten_cursors: Those that the coordinator lost, until it has one of the consumer group again.
        dropped_below: The offset below which retention has dropped all messages of a partition.
        cursorless: The labels of readers of ranges, which no segment and no drop waits for.
        past_views: What consumer groups saw before they were moved, oldest first.
        untold_from: By consumer group, `dropped_from` of its cursor.
        left: The segments that left the record because of retention, as they were last.
        set_back: Batches whose master did not believe the append time before.
        repeats: Messages that a consumer was told to skip, each with the last segment where it was told that.
        lost_repeats: Messages that are skipped, and whose first place is lost.
        waits_for_rebuild: The coordinator went back in time, and an administrator has not rebuilt it yet.
    """

    def __init__(
        self, schedule: Schedule, brokers: Mapping[str, Broker], fail: Callable[[str, str], NoReturn], *, flush: bool
    ) -> None:
        self.schedule = schedule
        self.brokers = brokers
        self.fail = fail
        self.flush = flush
        self.losses = Losses(brokers, watches_memory=not flush)
        self.states: set[str] = set()
        self.keyed_groups: set[str] = set()  # consumer groups in which order is by key
        self.fates: dict[int, Fate] = {}
        self.placed: dict[tuple[PartitionId, int, int], Batch] = {}
        self.sealed: dict[Place, tuple[int, int | None]] = {}
        self.history: dict[PartitionId, list[Chain]] = {}
        self.promised: dict[Place, int] = {}
        self.certified_falsely: dict[RunId, None] = {}
        self.contradicted: dict[Place, int] = {}
        self.graveyard: list[tuple[MemberId, DiskImage]] = []
        self.displaced: list[tuple[MemberId, DiskImage]] = []
        self.gone: set[PartitionId] = set()
        self.delayed: set[int] = set()
        self.groups: dict[tuple[str, PartitionId], ConsumerGroupView] = {}
        self.past_views: dict[tuple[str, PartitionId], list[ConsumerGroupView]] = {}
        self.cursors: dict[tuple[str, PartitionId], int] = {}
        self.cursor_epochs: dict[tuple[str, PartitionId], int] = {}
        self.forgotten_cursors: set[tuple[str, PartitionId]] = set()
        self.dropped_below: dict[PartitionId, int] = {}
        self.cursorless: set[str] = set()
        self.untold_from: dict[tuple[str, PartitionId], int] = {}
        self.left: dict[PartitionId, list[Segment]] = {}
        self.set_back: set[tuple[PartitionId, int, int]] = set()
        self.repeats: dict[int, int] = {}
        self.lost_repeats: dict[PartitionId, set[int]] = {}
        self.waits_for_rebuild = False
        # when the coordinator went back
        self._known_before: dict[tuple[str, PartitionId, str], tuple[int, int, int]] = {}

    def excuse(self, what: Excuse) -> None:
        """Forgive something that would break a promise; docs/internals/excuses.md says why."""
        self.states.add(f"excused: {what.value}")

    # ---- logs ---------------------------------------------------------------------------------------

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

    def is_dropped(self, partition: PartitionId, no: int, index: int) -> bool:
        """Whether the record says that retention dropped the messages there.

        An older copy of the coordinator may lack that until the rebuild. The disks have dropped them all the same.
        """
        known = self.history.get(partition, [])  # an explored world may begin with a record that was never written
        if any(left.no == no for left in self.left.get(partition, ())):
            return True
        chains = known if self.waits_for_rebuild else known[-1:]
        segments = (chain.segment(no) for chain in reversed(chains))
        return any(segment is not None and index < segment.start for segment in segments)

    # ---- disks --------------------------------------------------------------------------------------

    def images(self) -> Iterator[tuple[MemberId, DiskImage]]:
        """What is durable on each disk, also on lost disks."""
        for broker in self.brokers.values():
            yield broker.member, broker.real_disk.durable
        yield from self.graveyard
        yield from self.displaced

    def image(self, member: MemberId) -> DiskImage | None:
        """What is durable on a member's disk."""
        broker = self.brokers.get(member.broker)
        if broker is not None and broker.member == member:
            return broker.real_disk.durable
        return next((image for owner, image in self.graveyard if owner == member), None)

    def logs(self, place: Place) -> list[SegmentImage]:
        """What the present disks have of a segment."""
        images = [broker.disk.durable.partitions.get(place[0]) for broker in self.brokers.values()]
        return [image.segments[place[1]] for image in images if image is not None and place[1] in image.segments]

    def is_present(self, member: MemberId) -> bool:
        """Whether the member's disk is the one that its broker has."""
        return self.brokers[member.broker].member == member

    def is_in_sync(self, partition: PartitionId, segment: Segment, member: MemberId) -> bool:
        """Whether a member's disk holds all of a sealed segment."""
        image = self.image(member)
        if image is None or segment.sealed_len is None:
            return False
        return own_tail(image, partition, segment.no) >= segment.sealed_len

    def runs(self, run: RunId) -> bool:
        """Whether this run has not ended, whatever a certificate says."""
        broker = self.brokers[run.member.broker]
        return broker.process is not None and (broker.member, broker.process.run) == (run.member, run.run)

    # ---- consumer groups ----------------------------------------------------------------------------

    def view(self, group: str, partition: PartitionId, group_epoch: int | None = None) -> ConsumerGroupView:
        """What a consumer group has seen since it was last moved; with `group_epoch`, what it saw in that epoch."""
        found = self.groups.get((group, partition))
        if found is None:
            found = self.groups[group, partition] = ConsumerGroupView()
        if group_epoch is None or group_epoch >= found.group_epoch:
            return found
        past = self.past_views.setdefault((group, partition), [])
        view = next((view for view in reversed(past) if view.group_epoch <= group_epoch), None)
        if view is None:  # only with a planted bug: the consumer group began in a later epoch
            view = ConsumerGroupView(group_epoch=group_epoch)
            past.insert(0, view)
        return view

    def views(self, partition: PartitionId) -> list[ConsumerGroupView]:
        """The views of all consumer groups, also from before they were moved."""
        past = (view for (_, of), views in self.past_views.items() if of == partition for view in views)
        return [*past, *(view for (_, of), view in self.groups.items() if of == partition)]

    def cursor_segments(self, partition: PartitionId) -> list[int]:
        """The cursor segments of all consumer groups; the first segment, if there is no cursor yet."""
        return [no for (_, of), no in self.cursors.items() if of == partition] or [1]

    def may_believe_older(
        self, who: str, group: str, partition: PartitionId, group_epoch: int, server_epoch: int
    ) -> bool:
        """Whether a server may believe a cursor of an older copy of the coordinator, because it cannot know better."""
        return self.waits_for_rebuild and not self._knows_later(who, group, partition, group_epoch, server_epoch)

    def _knows_later(self, who: str, group: str, partition: PartitionId, group_epoch: int, server_epoch: int) -> bool:
        """Whether the disk of a server says that the consumer group was further than in the segment that it serves."""
        chains = reversed(self.history[partition])
        served = (
            segment.no
            for chain in chains
            for segment in chain.segments
            if segment.server_epoch == server_epoch and segment.server.broker == who
        )
        no = next(served, None)
        if no is None:
            return False
        return self._known(who, partition, group)[:2] > (group_epoch, no)

    def _known(self, who: str, partition: PartitionId, group: str) -> tuple[int, int, int]:
        """The latest group epoch, segment and index on a disk, now or when the coordinator went back."""
        before = self._known_before.get((who, partition, group), (0, 0, 0))
        return max(self._known_on_disk(who, partition, group), before)

    def _known_on_disk(self, who: str, partition: PartitionId, group: str) -> tuple[int, int, int]:
        image = self.brokers[who].real_disk.durable.partitions.get(partition)
        states = (state for (_, of), state in image.cursors.items() if of == group) if image is not None else ()
        return max(((state.group_epoch, state.segment_no, state.acked) for state in states), default=(0, 0, 0))

    def place_on_disks(self, partition: PartitionId, group: str) -> tuple[int, int, int]:
        """The same for all disks."""
        return max(self._known(who, partition, group) for who in self.brokers)

    def note_disks(self) -> None:
        """An older copy of the coordinator is back: remember what disks know of groups, before they forget it."""
        for who in self.brokers:
            for partition, image in self.brokers[who].real_disk.durable.partitions.items():
                for _, group in image.cursors:
                    self._known_before[who, partition, group] = self._known_on_disk(who, partition, group)
