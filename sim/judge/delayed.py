"""Delayed messages: D1 to D5.

D1  an acknowledged one is visible once, unless it was cancelled; one without an acknowledgement at most once
D2  a message whose cancellation was answered as such is never visible
D3  what a cancellation is answered is true, and stays so
D4  readers get nothing more than 100 ms before it is due, unless the clocks of two brokers were wrong
D5  an acknowledged one that is pending is on two disks

A message is visible where it is in a fired batch, or in an ordinary one because it was due when it was appended.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED
from seriatim_api.delayed import EARLY_MS_MAX, CancelOutcome, fire_producer
from seriatim_api.ids import PartitionId, format_offset, make_offset, split_offset
from seriatim_broker.core.values.log import Batch

from ..basics.interfaces import WALL_MS_START
from .excuses import Excuse
from .seen import Seen
from .two_copies import TwoCopies
from .views import messages_of

CLOCK_MS = 2
"""Clocks are read in milliseconds."""


class Place(NamedTuple):
    """Where a message is delayed."""

    offset: int
    batch: Batch


class Delayed:
    """Follows each message that was sent with a due time.

    Attributes:
        forgotten: Segments in which cancellations were lost, because no ledger was left.
    """

    def __init__(self, seen: Seen, two_copies: TwoCopies) -> None:
        self.forgotten: set[tuple[PartitionId, int]] = set()
        self._seen = seen
        self._two_copies = two_copies
        self._places: dict[int, list[Place]] = {}  # where a message is delayed
        self._at: dict[tuple[PartitionId, int], int] = {}  # (partition, offset) -> the message that is delayed there
        self._fired: dict[int, list[tuple[int, int]]] = {}  # message -> the (segment, index) of batches with it
        self._ahead_ms: dict[tuple[PartitionId, int], int] = {}  # of the clocks of servers that have fired a segment
        self._answers: dict[int, CancelOutcome] = {}
        self._asked: set[int] = set()  # messages that a program wants to be cancelled

    @property
    def _true_ms(self) -> int:
        return WALL_MS_START + self._seen.schedule.now_us // 1000

    # ---- what brokers do ----------------------------------------------------------------------------

    def fires(self, partition: PartitionId, no: int, wall_ms: int) -> None:
        """The server of a segment makes or sends volleys; `wall_ms` is its clock."""
        ahead_ms = wall_ms - self._true_ms
        self._ahead_ms[partition, no] = max(ahead_ms, self._ahead_ms.get((partition, no), ahead_ms))

    def placed(self, who: str, partition: PartitionId, batch: Batch, wall_ms: int | None) -> None:
        """A batch was written for the first time; `wall_ms` is the clock of the broker."""
        header = batch.header
        if header.flags & FLAG_DELAYED:
            for place, message in enumerate(messages_of(batch)):
                offset = make_offset(header.segment, header.base_index + place)
                self._places.setdefault(message, []).append(Place(offset, batch))
                self._at[partition, offset] = message
        elif header.flags & FLAG_FIRED:
            for message in messages_of(batch):
                self._fired.setdefault(message, []).append((header.segment, header.base_index))
                what = f"{who} puts {message} at {header.segment}:{header.base_index}, because it is due"
                if self._is_cancelled(message) and not self._is_forgotten(message):
                    self._seen.fail("D2", f"{what}, and it was cancelled")
                self._check_early(what, partition, batch, message, wall_ms)

    def _check_early(self, what: str, partition: PartitionId, batch: Batch, message: int, wall_ms: int | None) -> None:
        due = [
            (no, place.batch.header.due_time_ms)
            for place in self._places.get(message, ())
            for no in (split_offset(place.offset)[0],)
            if fire_producer(partition, no) == batch.header.producer
        ]
        if not due:
            self._seen.fail("D1", f"{what}, and it is not delayed in that segment")
        no, due_ms = min(due, key=lambda at: at[1])  # a repeat may be there, too, with a later due time
        early_ms = due_ms - self._true_ms
        if early_ms <= EARLY_MS_MAX or wall_ms is None:
            return
        master_ms, server_ms = wall_ms - self._true_ms, self._ahead_ms.get((partition, no), 0)
        if early_ms > min(server_ms, master_ms + EARLY_MS_MAX) + CLOCK_MS:
            clocks = f"by {server_ms} ms of its server, by {master_ms} ms of the master"
            self._seen.fail("D4", f"{what} in {early_ms} ms; clocks are ahead {clocks}")
        self._seen.states.add("fired early by two clocks")

    def given(self, what: str, partition: PartitionId, offset: int, message: int) -> None:
        """The application of a group is given a message."""
        if self._at.get((partition, offset)) is not None:
            self._seen.fail("D4", f"{what}, where it is delayed")
        if self._is_cancelled(message) and not self._is_forgotten(message):
            self._seen.fail("D2", f"{what}, and it was cancelled")

    def stands_before(self, partition: PartitionId, message: int, batch: Batch) -> bool:
        """Whether an ordinary or delayed batch repeats a message that is delayed in a segment before."""
        if batch.header.flags & FLAG_FIRED:
            return False
        places = (split_offset(place.offset) for place in self._places.get(message, ()))
        return any(no < batch.header.segment and self._is_kept(partition, no, index) for no, index in places)

    def _is_kept(self, partition: PartitionId, no: int, index: int) -> bool:
        sealed = self._seen.sealed.get((partition, no))
        return sealed is None or index < sealed[0]

    # ---- retention ----------------------------------------------------------------------------------

    def _is_gone(self, message: int) -> bool:
        """Whether retention has dropped a message that may be cancelled, although no answer says so yet.

        One that was moved is not gone: it waits in its last place.
        """
        fate = self._seen.fates[message]
        is_asked = message in self._asked and fate.offset is not None
        is_dropped = is_asked and self._seen.is_dropped(fate.partition, *split_offset(fate.offset or 0))
        return is_dropped and not any(self._is_there(fate.partition, place) for place in self._places[message])

    # ---- cancellations ------------------------------------------------------------------------------

    def asks(self, partition: PartitionId, offset: int) -> None:
        """A program wants the message that was acknowledged at an offset to be cancelled."""
        message = self._at.get((partition, offset))
        if message is not None:
            self._asked.add(message)

    def answered(self, who: str, partition: PartitionId, offset: int, asked_us: int, outcome: CancelOutcome) -> None:
        """A broker answers the cancellation of the message that was acknowledged at an offset."""
        seen, message = self._seen, self._at.get((partition, offset))
        what = f"{who} answers that {message} at {format_offset(offset)} is {outcome.value}"
        seen.states.add(f"cancellation: {outcome.value}")
        if message is None:
            if outcome is not CancelOutcome.NOT_FOUND:
                seen.fail("D3", f"{what}, and nothing is delayed there")
            return
        if outcome is CancelOutcome.NOT_FOUND:
            fate = seen.fates[message]
            is_known = fate.acked_us is not None and fate.acked_us <= asked_us
            if is_known and not self._is_lost(message) and not self._is_gone(message):
                seen.fail("D3", f"{what}, and it was acknowledged")
            return
        known = self._answers.setdefault(message, outcome)
        if known is not outcome and not self._is_forgotten(message):
            seen.fail("D3", f"{what}, and the answer was {known.value}")
        if outcome is CancelOutcome.CANCELLED:
            fired = [place for place in self._fired.get(message, ()) if self._is_kept(partition, *place)]
            if fired and not self._is_forgotten(message):
                seen.fail("D2", f"{what}, and it is at {fired}")

    # ---- the end ------------------------------------------------------------------------------------

    def pending(
        self, partition: PartitionId, delayed: list[tuple[int, int]], order: list[tuple[int, int]]
    ) -> list[int]:
        """The messages that are delayed there, and neither visible nor cancelled.

        Args:
            partition: The partition.
            delayed: Each (offset, message) that is delayed.
            order: Each (offset, message) that is visible.
        """
        visible = {message for _, message in order}
        waiting = [one for _, one in delayed if one not in visible and not self._is_cancelled(one)]
        return [one for one in waiting if not self._is_gone(one)]

    def _is_forgotten(self, message: int) -> bool:
        """Whether its cancellation may be lost, because no member was left that had the ledger of its segment."""
        partition = self._seen.fates[message].partition
        places = self._places.get(message, ())
        is_forgotten = any((partition, split_offset(place.offset)[0]) in self.forgotten for place in places)
        if is_forgotten:
            self._seen.excuse(Excuse.FORGOTTEN_CANCELLATION)
        return is_forgotten

    def _is_cancelled(self, message: int) -> bool:
        return self._answers.get(message) is CancelOutcome.CANCELLED

    def _is_fired(self, message: int) -> bool:
        partition = self._seen.fates[message].partition
        return any(self._is_kept(partition, *place) for place in self._fired.get(message, ()))

    def never_fired(self, pending: list[int]) -> None:
        """D1: all have been due for seconds, and nothing disturbs the brokers."""
        late = [message for message in pending if self._seen.fates[message].outcome == "ok"]
        if late:
            self._seen.fail("D1", f"{len(late)} messages are acknowledged, and not fired: {late[:5]}")

    def look(self) -> None:
        """D5: each acknowledged message that is pending is on two disks."""
        for message in self._places:
            fate = self._seen.fates[message]
            if fate.outcome == "ok" and not self._is_cancelled(message) and not self._is_fired(message):
                places = self._places[message]
                was_delayed = any(_base(place) == fate.offset for place in places)
                if was_delayed and not self._is_lost(message) and not self._is_gone(message):
                    kept = [place for place in places if self._is_there(fate.partition, place)]
                    if not kept:
                        self._seen.fail("D5", f"{message} is pending, and retention has dropped it")
                    place = next((place for place in kept if _base(place) == fate.offset), kept[0])
                    self._two_copies.on_two_disks(place.batch, f"{message} is pending", "D5")

    def _is_there(self, partition: PartitionId, place: Place) -> bool:
        at = split_offset(place.offset)
        return self._is_kept(partition, *at) and not self._seen.is_dropped(partition, *at)

    def _is_lost(self, message: int) -> bool:
        fate = self._seen.fates[message]
        if fate.offset is None:
            return False
        no, index = split_offset(fate.offset)
        is_lost = self._seen.losses.covers((fate.partition, no), index)
        if is_lost:
            self._seen.excuse(Excuse.LOST_AFTERWARDS)
        return is_lost

    def final(self, partition: PartitionId, order: list[tuple[int, int]]) -> None:
        """D1 and D3 over the whole volley; `order` has each (offset, message) that is visible in the partition."""
        seen = self._seen
        visible = Counter(message for _, message in order)
        for message in sorted(seen.delayed):
            fate, answer = seen.fates[message], self._answers.get(message)
            if fate.partition != partition:
                continue
            where = [format_offset(offset) for offset, one in order if one == message]
            if visible[message] > 1:
                seen.fail("D1", f"{message} is visible at {where}")
            if answer is CancelOutcome.CANCELLED:
                if where and not self._is_forgotten(message):
                    seen.fail("D2", f"{message} was cancelled, and is visible at {where}")
                seen.states.add("cancelled for good")
            elif not where and answer is CancelOutcome.TOO_LATE and not self._is_lost(message):
                seen.fail("D3", f"the cancellation of {message} came too late, and it is not visible")
            elif not where and fate.outcome == "ok" and not self._is_lost(message) and not self._is_gone(message):
                seen.fail("D1", f"{message} was acknowledged at {format_offset(fate.offset or 0)}, and is not visible")


def _base(place: Place) -> int:
    """The offset of the batch."""
    return make_offset(place.batch.header.segment, place.batch.header.base_index)
