"""Readers of ranges in the simulation: each reads from the first message to the end, again and again.

A reader asks for the end as the production code does: it reads the chain from the coordinator, then asks the master of
the open segment. It reads up to that end, from one broker after another, with the client's own check of what follows
what. The judge treats a reader as a consumer group that acknowledges all that it gets. So at the end the reader must
have got the same messages as the consumer groups. The reader also checks three things itself: all messages that were
acknowledged before it asked are before the end, a second read gives the same messages as the first, and no broker
refuses a range up to the end that the master reported, unless a segment became UNSETTLED since.

Brokers that are in no late segment are asked more often than others, because no broker reports them newer chain
records. They read the record when a client asks for the route. So the reader asks them for it while a segment is
UNSETTLED.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from seriatim._core.ranges import RangeCursor
from seriatim_api.errors import OffsetOutOfRangeError, OrderViolationError
from seriatim_api.ids import PartitionId, format_offset, make_offset, split_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.events import ReadRange, ResolveProducer, SurveyPartition
from seriatim_broker.core.values.positions import Place
from seriatim_broker.core.values.segment import SegmentState

from ..basics.interfaces import Coordinator, checksum
from ..judge import Judge, messages_of
from .clients import Clients

PAUSE_US = (5_000, 60_000)
"""Between two questions for the end."""

RETRY_US = 10_000
STEP_BYTES = (1, 400, 4_000)
"""Of one step of a read: one batch, a few, many."""

AGAIN_SHARE = 0.2
"""The share of reads after which the reader reads from an earlier offset again."""

AGAIN_AFTER_BLOCK_SHARE = 0.8
"""The same, for the first read after a segment was UNSETTLED."""

EARLY_SHARE = 0.5
"""The share of these reads that begin at a broker that is in no late segment."""

NO_EPOCH_SHARE = 0.3
"""The share of reads that name no chain epoch, as a reader does that has no plan of the range."""

_FIRST = make_offset(1, 0)


class SimRangeReader:
    """Reads one partition, under a label by which the judge knows it."""

    def __init__(
        self,
        clients: Clients,
        judge: Judge,
        coordinator: Coordinator,
        partition: PartitionId,
        label: str,
        rng: random.Random,
    ) -> None:
        self.label = label
        self.partition = partition
        self._coordinator = coordinator
        self.clients = clients
        self.schedule = clients.schedule
        self.judge = judge
        self.rng = rng
        self._read_below = _FIRST
        self._found: dict[int, int] = {}  # what was read at each offset: its message
        self._acknowledged: set[int] = set()  # before the end was asked for
        self._reading: _Reading | None = None
        self._was_blocked = False
        self._chain: Chain | None = None  # as the master reported it last

    def start(self) -> None:
        """Begin."""
        self._ask()

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        self.schedule.after(self.rng.randint(*PAUSE_US), call, *arguments)

    def begin_at(self, offset: int) -> None:
        """The messages after this place were cut off: continue from there."""
        self._read_below = min(self._read_below, offset)
        self._later(self._ask)

    # ---- where the end is ---------------------------------------------------------------------------

    def _ask(self) -> None:
        """Read the chain as it is now, and ask the master of its open segment."""
        coordinator = self._coordinator
        chain = None if coordinator.is_down else coordinator.records.chain(self.partition)[0]
        if chain is None:
            self._later(self._ask)
            return
        self._acknowledged = {
            message
            for message, fate in self.judge.seen.fates.items()
            if fate.partition == self.partition and fate.outcome == "ok" and fate.level >= 4
        }
        master = chain.open_segment.master.broker

        def make(request: int, deadline_us: int) -> SurveyPartition:
            return SurveyPartition(request, self.partition, chain.epoch, 0, deadline_us)

        self.clients.ask_at(master, make, self._told)

    def _told(self, answer: fx.PartitionSurveyed | None) -> None:
        if answer is None or answer.error is not None or answer.chain is None:
            self._later(self._ask)
            return
        chain = self._chain = answer.chain
        if chain.open_segment.base is None:
            self._was_blocked = True
            self._ask_for_route(chain)
            unsettled = next(segment for segment in chain.segments if segment.state is SegmentState.UNSETTLED)
            self.judge.seen.states.add("range blocked")
            self._acknowledged = set()
            end = make_offset(unsettled.no, 0)
        elif answer.is_master and answer.readable_below is not None:
            end = make_offset(chain.open_segment.no, answer.readable_below)
        else:
            self._later(self._ask)
            return
        if end < self._read_below:
            self._later(self._ask)  # what was read was declared lost, or cut off with the memory of all members
            return
        self._reading = _Reading(
            self, self._read_below, end, epoch=self._epoch(chain), raw=False, take=self._take, done=self._done
        )
        self._reading.go_on(chain.open_segment.master.broker)

    def _ask_for_route(self, chain: Chain) -> None:
        """Ask a broker that is in no late segment where to append, as each client does that begins."""
        early = self._early_brokers(chain)
        if early:

            def make(request: int, deadline_us: int) -> ResolveProducer:
                return ResolveProducer(request, self.partition, None, deadline_us)

            self.clients.ask_at(self.rng.choice(early), make, lambda _answer: None)

    @staticmethod
    def _early_brokers(chain: Chain) -> list[str]:
        """The brokers that have segments, and none of the last two."""
        early, late = (
            {member.broker for segment in segments for member in segment.members}
            for segments in (chain.segments[:-2], chain.segments[-2:])
        )
        return sorted(early - late)

    def _epoch(self, chain: Chain) -> int:
        return 0 if self.rng.random() < NO_EPOCH_SHARE else chain.epoch

    # ---- what was read ------------------------------------------------------------------------------

    def _take(self, offset: int, message: int) -> None:
        self._found[offset] = message
        self.schedule.tell(self.label, f"reads {message} at {format_offset(offset)}")
        self.judge.delivered(self.label, self.partition, offset, message, flagged=False)
        self.judge.acknowledged(self.label, self.partition, offset)

    def _done(self, end: int) -> None:
        self._read_below = end
        self.judge.moved(self.label, self.partition, split_offset(end)[0])
        view = self.judge.view(self.label, self.partition)
        missing = [message for message in self._acknowledged if message not in view.seen]
        missing = [one for one in missing if not view.need_not_have(self._place_of(one)) and not self._is_delayed(one)]
        if missing and not self.judge.is_gone(self.partition, missing):
            text = f"{self.label} reads to the end, {format_offset(end)}, and {missing} was acknowledged before"
            self.judge.fail("RANGE", text)
        self.judge.seen.states.add("range read")
        offsets = sorted(offset for offset in view.first_at.values() if offset < end)
        chain = self._chain
        assert chain is not None
        is_settled = self._was_blocked and chain.open_segment.base is not None
        if offsets and self.rng.random() < (AGAIN_AFTER_BLOCK_SHARE if is_settled else AGAIN_SHARE):
            self._was_blocked = self._was_blocked and not is_settled
            again = _Reading(
                self, self.rng.choice(offsets), end, epoch=self._epoch(chain), raw=True, take=self._compare,
                done=lambda _end: self._later(self._ask),
            )  # fmt: skip
            early = self._early_brokers(chain) if self.rng.random() < EARLY_SHARE else []
            if early and is_settled:
                self.judge.seen.states.add("range read from an early broker after a settling")
            again.go_on(self.rng.choice(early or sorted(self.clients.brokers)))
        else:
            self._later(self._ask)

    def _is_delayed(self, message: int) -> bool:
        """Whether it may come later than what was acknowledged after it."""
        return message in self.judge.seen.delayed

    def _place_of(self, message: int) -> int:
        """The offset at which an acknowledged message stands."""
        offset = self.judge.seen.fates[message].offset
        assert offset is not None
        return offset

    def _compare(self, offset: int, message: int) -> None:
        """Read again, raw: each message is the one that stood there, or a repeat that was skipped."""
        known = self._found.get(offset)
        place = split_offset(offset)[0]
        if known is not None and known != message and (self.partition, place) not in self.judge.seen.losses.cut:
            text = f"{self.label} finds {message} at {format_offset(offset)}, where it read {known} before"
            self.judge.fail("RANGE", text)
        self.judge.seen.states.add("range read again")


class _Reading:
    """One range, from any member that has it. `take` is given offsets and messages, `done` the end."""

    def __init__(
        self,
        reader: SimRangeReader,
        start: int,
        end: int,
        *,
        epoch: int,
        raw: bool,
        take: Callable[[int, int], None],
        done: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._epoch = epoch
        self._raw = raw
        self._take = take
        self._done = done
        self._cursor = RangeCursor(reader.partition, start, end, checksum)
        self._hints: list[str] = []

    def go_on(self, broker: str) -> None:
        """Ask that broker for the next step."""
        reader, cursor = self._reader, self._cursor
        if cursor.is_done:
            self._done(cursor.end)
            return
        size_bytes = reader.rng.choice(STEP_BYTES)
        records_before = len(reader.judge.seen.history[reader.partition]) - 1

        def make(request: int, deadline_us: int) -> ReadRange:
            start, until = Place(*split_offset(cursor.offset)), Place(*split_offset(cursor.end))
            return ReadRange(
                request, reader.partition, start, until, size_bytes, self._raw, deadline_us, epoch=self._epoch
            )

        reader.clients.ask_at(broker, make, lambda answer: self._answered(broker, answer, records_before))

    def _answered(self, broker: str, answer: fx.RangeRead | None, records_before: int) -> None:
        reader, cursor = self._reader, self._cursor
        if answer is None:
            self._retry()
            return
        try:
            for event in answer.events:
                self._read(event)
        except OrderViolationError as error:
            reader.judge.fail("RANGE", f"{broker} to {reader.label}: {error}")
        if isinstance(answer.error, OffsetOutOfRangeError) and "segment" in answer.error.details:
            self._cut_short(answer.error)
            return
        if isinstance(answer.error, OffsetOutOfRangeError):
            self._refused(broker, answer.error, records_before)
        if answer.is_done and not cursor.is_done:
            reader.judge.fail("RANGE", f"{broker} says that {reader.label} is through at {answer.place}")
        if answer.error is not None or answer.brokers:
            self._hints = list(answer.brokers)
            self._retry()
        else:
            self.go_on(broker)

    def _retry(self) -> None:
        """Another broker, one of those that were named if any were."""
        reader = self._reader
        names = self._hints if self._hints and reader.rng.random() < 0.8 else sorted(reader.clients.brokers)
        reader.schedule.after(reader.rng.randint(RETRY_US // 10, RETRY_US), self.go_on, reader.rng.choice(names))

    def _cut_short(self, error: OffsetOutOfRangeError) -> None:
        """The segment ends before: only if all members lost their memory, or another disk contradicts."""
        reader = self._reader
        end = int(error.details["end"])
        no = split_offset(end)[0]
        if (reader.partition, no) not in reader.judge.seen.losses.cut:
            reader.judge.fail("RANGE", f"{reader.label} is told: {error}")
        reader.begin_at(end)

    def _refused(self, broker: str, error: OffsetOutOfRangeError, records_before: int) -> None:
        """The partition ends before: only if a segment is UNSETTLED, or if all members of one lost their memory."""
        reader, seen = self._reader, self._reader.judge.seen
        chains = seen.history[reader.partition][max(records_before, 0) :]
        is_unsettled = any(chain.open_segment.base is None for chain in chains)
        if not is_unsettled and not any(partition == reader.partition for partition, _ in seen.losses.cut):
            reader.judge.fail("RANGE", f"{broker} to {reader.label}: {error}")

    def _read(self, event: fx.RangeEvent) -> None:
        reader, cursor = self._reader, self._cursor
        match event:
            case fx.RangeBatches():
                for batch in event.batches:
                    first, last = cursor.take(batch.header)
                    messages = messages_of(batch)[first:last]
                    for place, message in enumerate(messages, batch.header.base_index + first):
                        self._take(make_offset(event.segment_no, place), message)
            case fx.RangeSkip():
                cursor.skip(event.segment_no, event.from_index, event.to_index, event.checksum)
                judge, partition = reader.judge, reader.partition
                judge.skipped(reader.label, partition, event.segment_no, event.from_index, event.to_index)
                judge.acknowledged(reader.label, partition, make_offset(event.segment_no, event.to_index - 1))
                judge.seen.states.add("range skipped a repeat")
            case fx.RangeSegmentEnd():
                cursor.end_segment(event.segment_no, event.sealed_len, event.sealed_checksum)
            case fx.RangeGap():
                cursor.lose(event.segment_no, event.from_index)
                if not self._raw:
                    reader.judge.gap_told(reader.label, reader.partition, event.segment_no)
            case fx.RangeDropped():
                first, until = make_offset(*event.start), make_offset(*event.until)
                cursor.drop(first, until, event.checksum)
                if not self._raw:
                    reader.judge.dropped_told(reader.label, reader.partition, first, until)
