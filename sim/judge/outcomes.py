"""I1 for producers: an acknowledged message is where the acknowledgement says, and still there at the end.

RT: a message that was sent after another one was acknowledged stands after it.
I10: a message that failed is on no disk, now or later, and no consumer group gets it.
PLACE: readers get a message at the place that its receipt names.
GONE: each send to a topic that was deleted has an outcome.
"""

from __future__ import annotations

from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, format_offset, split_offset
from seriatim_broker.core.values.events import AckLevel
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import SegmentState

from .excuses import Excuse
from .seen import Seen
from .views import Fate, messages_of


class Outcomes:
    """Remembers what was reported to producers."""

    def __init__(self, seen: Seen) -> None:
        self.accepted_count = 0
        self._seen = seen
        self._appended: dict[int, Batch] = {}

    def accepted(self, what: str, partition: PartitionId, messages: list[int], segment_no: int, index: int) -> Batch:
        """A broker says that a batch is at a place: return the batch, if it is there."""
        batch = self._seen.placed.get((partition, segment_no, index))
        self.accepted_count += 1
        if batch is None or messages_of(batch) != messages:
            self._seen.fail("I1", f"{what}, where there is {batch and messages_of(batch)}")
        return batch

    def promised(self, what: str, partition: PartitionId, segment_no: int) -> None:
        """RT: what is acknowledged with the promise is not in a segment that was opened over."""
        known = self._seen.history.get(partition)
        segment = known[-1].segment(segment_no) if known else None
        if segment is not None and segment.state is SegmentState.UNSETTLED:
            self._seen.fail("RT", f"{what}, which was opened over: later messages may have been acknowledged after it")

    def appended(self, request: int, batch: Batch) -> None:
        """A master gave the batch of a request its place."""
        self._appended[request] = batch

    def denied(self, who: str, request: int, error: SeriatimError) -> None:
        """I10: a send attempt answered as not stored is on no disk, now or later."""
        batch = self._appended.get(request)
        if batch is None or not error.outcome_known:
            return
        header = batch.header
        what = f"{who} answers {error} for what it put at {header.segment}:{header.base_index}"
        sealed = self._seen.sealed.get((PartitionId(header.partition), header.segment))
        if sealed is None:
            self._seen.fail("I10", f"{what}, and the segment's length is not decided")
        if header.base_index < sealed[0]:
            self._seen.fail("I10", f"{what}, and the segment is sealed at {sealed[0]}")

    def settled(self, messages: list[int], outcome: str, offset: int | None, *, is_final: bool = False) -> None:
        """The application was sent the outcome of a batch, and perhaps that its place is final."""
        seen = self._seen
        for at, message in enumerate(messages):
            fate = seen.fates[message]
            if fate.outcome:
                seen.fail("I10", f"message {message} was {fate.outcome} and is {outcome} now")
            fate.outcome = outcome
            if outcome == "ok":
                fate.acked_us = seen.schedule.now_us
                fate.offset = offset
                if is_final and offset is not None:
                    fate.final_offset = offset + at
                    for view in seen.views(fate.partition):
                        if message in view.first_at:
                            self.given("a group was", message, view.first_at[message])

    def given(self, who: str, message: int, offset: int) -> None:
        """PLACE: a receipt that calls its place final names the one at which all readers get the message."""
        fate = self._seen.fates[message]
        final = fate.final_offset
        if final is not None and offset != final and not self.may_be_gone(fate):
            places = f"{format_offset(offset)}, and its receipt says {format_offset(final)} for good"
            self._seen.fail("PLACE", f"{who} given {message} at {places}")

    # ---- the end ------------------------------------------------------------------------------------

    def may_be_gone(self, fate: Fate) -> bool:
        """Whether an acknowledged message may be missing: its level promised less, or it was lost with its disks."""
        if fate.level < AckLevel.REPLICATED:
            self._seen.excuse(Excuse.WEAK_LEVEL)
            return True
        assert fate.offset is not None
        no, index = split_offset(fate.offset)
        if not self._seen.losses.covers((fate.partition, no), index):
            return False
        self._seen.excuse(Excuse.LOST_AFTERWARDS)
        return True

    def _has_moved(self, fate: Fate, offset: int) -> bool:
        """Whether an acknowledged message stands in another segment than its producer was told: it was sent again."""
        return fate.offset is not None and split_offset(fate.offset)[0] != split_offset(offset)[0]

    def final(self, partition: PartitionId, order: list[tuple[int, int]]) -> None:
        """RT, I1, I10 over the whole run; `order` has each (offset, message) of the partition."""
        seen = self._seen
        standing = {message: offset for offset, message in order}
        behind: tuple[int, int] = (-1, -1)  # the latest send so far, and its message
        for offset, message in order:
            fate = seen.fates[message]
            if message in seen.delayed:
                continue
            is_behind = fate.acked_us is not None and fate.acked_us < behind[0]
            if is_behind and not (self._has_moved(fate, offset) and self.may_be_gone(fate)):
                seen.fail("RT", f"{behind[1]} was sent after {message} was acknowledged, and stands before it")
            behind = max(behind, (fate.sent_us, message))
        for message, fate in seen.fates.items():
            if fate.partition != partition:
                continue
            is_gone = fate.outcome == "ok" and message not in standing and message not in seen.delayed
            if is_gone and message not in seen.lost_repeats.get(partition, ()) and not self.may_be_gone(fate):
                where = format_offset(fate.offset) if fate.offset is not None else "?"
                seen.fail("I1", f"{message} was acknowledged at {where} and is lost")
            if fate.outcome == "failed" and message in standing:
                seen.fail("I10", f"{message} failed, and stands at {format_offset(standing[message])}")

    def final_of_gone(self) -> None:
        """GONE: every send to a deleted topic has an outcome."""
        for message, fate in self._seen.fates.items():
            if fate.partition in self._seen.gone and not fate.outcome:
                self._seen.fail("GONE", f"{message} was sent to a topic that was deleted, and has no outcome")
