"""I9, I2, I10: a consumer group gets each message once as a first attempt, in the order of offsets, and no failed one.

I3: it gets no message of a segment before it has acknowledged all segments before.
I1: a batch that it is told to skip was given to it at an earlier place.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED
from seriatim_api.ids import PartitionId, format_offset, make_offset, split_offset
from seriatim_broker.core.values.segment import Segment, SegmentState

from .delayed import Delayed
from .excuses import Excuse
from .lost_tables import comes_anew
from .outcomes import Outcomes
from .seen import SETTLED, Seen
from .views import ConsumerGroupView, messages_of


class Deliveries:
    """Compares each delivery with what the consumer group has seen."""

    def __init__(self, seen: Seen, outcomes: Outcomes, delayed: Delayed) -> None:
        self._seen = seen
        self._delayed = delayed
        self._outcomes = outcomes

    def delivered(
        self,
        group: str,
        partition: PartitionId,
        offset: int,
        message: int,
        group_epoch: int | None = None,
        *,
        flagged: bool,
    ) -> None:
        """The application of a group is given a message."""
        seen = self._seen
        chain = seen.history[partition][-1]
        view = seen.view(group, partition, group_epoch)
        what = f"{group} is given {message} at {format_offset(offset)}"
        self._delayed.given(what, partition, offset, message)
        if message in view.seen:
            if not flagged and not self._came_anew(view, partition, message, offset):
                is_other = message in seen.delayed and view.first_at.get(message, offset) != offset
                seen.fail("D1" if is_other else "I9", f"{what} again, as a first attempt")
            return
        fate = seen.fates.get(message)
        if fate is None or fate.partition != partition:
            seen.fail("I2", f"{what}, which no producer sent there")
        if fate.outcome == "failed":
            seen.fail("I10", f"{what}, although its producer was informed that it failed")
        if view.firsts and view.firsts[-1][0] >= offset:
            seen.fail("I2", f"{what} after {view.firsts[-1]}")
        if offset < view.start:
            seen.fail("I11", f"{what}, and epoch {view.group_epoch} of the group began at {format_offset(view.start)}")
        segment_no, _ = split_offset(offset)
        for segment in chain.segments if view.drained_below < segment_no else ():
            if segment.no >= segment_no:
                break
            if segment.no < view.drained_below:
                continue
            if segment.state not in SETTLED or segment.sealed_len is None:
                seen.fail("I3", f"{what}, and segment {segment.no} is not settled")
            if segment.state is SegmentState.SEALED and not self.is_drained(view, partition, segment):
                seen.fail("I3", f"{what}, and of segment {segment.no} it acknowledged {view.acked.get(segment.no, 0)}")
            view.drained_below = segment.no + 1
        self._outcomes.given(f"{group} is", message, offset)
        view.seen.add(message)
        view.first_at[message] = offset
        view.firsts.append((offset, message))

    def _came_anew(self, view: ConsumerGroupView, partition: PartitionId, message: int, offset: int) -> bool:
        """Whether the group is given a message at a second place, once, because the tables that report it are lost."""
        is_first = view.first_at.get(message, offset) != offset and message not in view.anew
        if is_first and comes_anew(self._seen, partition, message, offset):
            view.anew.add(message)
            return True
        return False

    def is_drained(self, view: ConsumerGroupView, partition: PartitionId, segment: Segment) -> bool:
        """Whether all of the segment is acknowledged, except messages that came earlier in the order."""
        assert segment.sealed_len is not None
        acked = view.acked.get(segment.no, 0)
        for batch in self._seen.batches(partition, segment.no, segment.sealed_len):
            if batch.header.end_index <= acked or batch.header.flags & FLAG_DELAYED:
                continue
            here = make_offset(segment.no, batch.header.base_index)
            for place, message in enumerate(messages_of(batch)):
                is_done = batch.header.base_index + place < acked or view.need_not_have(here + place)
                is_done = is_done or view.first_at.get(message, here) < here
                is_done = is_done or self._delayed.stands_before(partition, message, batch)
                if not is_done and not self._was_dropped(partition, view, [message]):
                    return False
        return True

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
        seen = self._seen
        view = seen.view(group, partition, group_epoch)
        index = start
        if start == split_offset(view.start)[1]:  # the group was sent into the middle of a batch
            within = (at for of, no, at in seen.placed if (of, no) == (partition, segment_no) and at <= start)
            index = max(within, default=start)
        while index < end:
            batch = seen.placed.get((partition, segment_no, index))
            if batch is None:
                seen.fail("I5", f"{group} is to skip {segment_no}:{index}, where no batch begins")
            if batch.header.flags & (FLAG_DELAYED | FLAG_CONTROL):
                index = batch.header.end_index
                continue
            seen.states.add("skipped a repeat")
            missing = [message for message in messages_of(batch) if message not in view.seen]
            missing = [message for message in missing if not self._delayed.stands_before(partition, message, batch)]
            missing = [message for message in missing if not self._stands_before(partition, message, view.start)]
            if missing and self._was_dropped(partition, view, missing):
                seen.excuse(Excuse.REPEAT_OF_DROPPED)
                missing = []
            if missing and self._stood_in_a_gap(partition, missing):
                self._note_lost_repeats(partition, missing)
            elif missing:
                seen.fail("I1", f"{group} is to skip {segment_no}:{index} and was never given {missing}")
            for message in messages_of(batch):
                seen.repeats[message] = max(segment_no, seen.repeats.get(message, 0))
            index = batch.header.end_index

    def lost(self, partition: PartitionId, no: int) -> None:
        """A segment is declared lost. What was given there and is skipped in a later segment is skipped there still."""
        seen = self._seen
        given = {
            message
            for view in seen.views(partition)
            for offset, message in view.firsts
            if split_offset(offset)[0] == no and seen.repeats.get(message, 0) > no
        }
        if given:
            self._note_lost_repeats(partition, given)

    def _note_lost_repeats(self, partition: PartitionId, messages: Iterable[int]) -> None:
        """The first place of these messages is lost, and readers are told to skip the other one."""
        self._seen.states.add("a repeat of what is lost")
        self._seen.excuse(Excuse.REPEAT_OF_LOST)
        self._seen.lost_repeats.setdefault(partition, set()).update(messages)

    def _was_dropped(self, partition: PartitionId, view: ConsumerGroupView, messages: list[int]) -> bool:
        """Whether the group was told that the first place of these messages was dropped."""
        if not view.dropped and not view.start:
            return False
        dropped: set[int] = set()
        for (of, no, index), batch in self._seen.placed.items():
            if of == partition:
                for place, message in enumerate(messages_of(batch)):
                    if view.need_not_have(make_offset(no, index + place)):
                        dropped.add(message)
        return dropped.issuperset(messages)

    def _stood_in_a_gap(self, partition: PartitionId, messages: list[int]) -> bool:
        """Whether the first place of these messages was declared lost.

        The producer tables of later segments may still name them, because a table travels with the switch. Then every
        consumer group passes over the repeat, although its segment is there.
        """
        lost = [no for of, no in self._seen.losses.declared if of == partition]
        stood: set[int] = set()
        for (of, no, _), batch in self._seen.placed.items():
            if of == partition and no in lost:
                stood.update(messages_of(batch))
        return stood.issuperset(messages)

    def _stands_before(self, partition: PartitionId, message: int, start: int) -> bool:
        """Whether a message is before the place to which the consumer group was moved: it must not get the message."""
        return bool(start) and any(
            of == partition and make_offset(no, index) < start and message in messages_of(batch)
            for (of, no, index), batch in self._seen.placed.items()
        )
