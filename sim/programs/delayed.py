"""Delayed messages in the simulation: what servers read and fire, and programs that cancel.

A program cancels what was acknowledged, by its offset, and asks again until it has a final answer. It asks any broker
first, and follows what that one says: which broker serves the segment, and where the message was stored first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from seriatim_api.batch import FLAG_DELAYED, parse_header
from seriatim_api.delayed import CancelOutcome, fire_producer
from seriatim_api.errors import NotServingError, SeriatimError
from seriatim_api.ids import PartitionId, format_offset, split_offset
from seriatim_broker.core.delayed.listing import complete_below
from seriatim_broker.core.values import delayed_messages as dm
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.delayed import spans_in
from seriatim_broker.core.values.events import Event
from seriatim_broker.core.values.log import Batch, DueRow, StoredVolley, fired_in, moved_to
from seriatim_broker.core.values.positions import Measure
from seriatim_broker.core.values.segment import Segment, SegmentState, Start
from seriatim_broker.runtime.driver.delayed_reads import DelayedReads
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_bodies import SimulatedBodies, messages_of

from ..basics.interfaces import Cluster, CoreProcess

if TYPE_CHECKING:
    from ..basics.setting import Setting
    from ..judge import Judge
    from .carrier import Carrier
    from .clients import Clients

LOOK_US = 100_000
"""So often the judge looks whether what is pending is on two disks."""

ROWS_MAX = 100_000
"""A segment has fewer rows."""

FAILED_SHARE = 0.03
"""Of the reads of rows, this many fail."""

CANCEL_SHARE = 0.4
"""Of the acknowledged batches, this many are cancelled, or one of their messages."""

CANCEL_US = 3_500_000
"""So much later, at most: some are fired by then."""

ANSWER_US = 300_000
"""How long a cancellation waits for its answer."""

ASKED_TIMES = 3
"""So often retention asks a server that does not answer."""
MANY = 1 << 30

PAUSE_US = 60_000
"""The longest pause before it is sent again."""


class Disk:
    """The interface of a storage, as far as these reads need it, over a disk that answers at once."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    async def read(self, partition: PartitionId, no: int, first: int, until: int, bytes_max: int) -> list[Batch]:
        """Batches with these indexes."""
        return self._disk.read(partition, no, first, until, bytes_max)

    async def read_due(
        self, partition: PartitionId, no: int, after: tuple[int, int], until_ms: int, count_max: int
    ) -> list[DueRow]:
        """Rows of delayed batches. What is on its way to the disk is not read yet."""
        rows = self._disk.read_due(partition, no, after, until_ms, ROWS_MAX)
        image = self._disk.durable.partitions.get(partition)
        segment = image.segments.get(no) if image is not None else None
        durable = {batch.header.base_index for batch in segment.batches} if segment is not None else set()
        return [row for row in rows if row.index in durable][:count_max]

    async def read_delayed(self, partition: PartitionId, no: int, from_index: int, count_max: int) -> list[DueRow]:
        """Rows of delayed batches, by index."""
        return self._disk.read_delayed(partition, no, from_index, count_max)


class Delayed:
    """Carries out what brokers want for delayed messages, and cancels some."""

    def __init__(self, setting: Setting, cluster: Cluster, judge: Judge, clients: Clients, carrier: Carrier) -> None:
        self._setting = setting
        self._schedule = setting.schedule
        self._cluster = cluster
        self._judge = judge
        self._clients = clients
        self._carrier = carrier
        self._open: list[_Cancellation] = []

    @property
    def is_done(self) -> bool:
        """Whether each cancellation has its final answer."""
        return not self._open

    def start(self) -> None:
        """The judge looks at what is pending from now on."""
        self._judge.rules.delayed.look()
        self._schedule.after(LOOK_US, self.start)

    # ---- what a server wants ------------------------------------------------------------------------

    def read(self, process: CoreProcess, effect: dm.ReadDue | dm.ReadPending | dm.ReadVolley | dm.FindDelayed) -> None:
        """A disk is read."""
        reads: Any = DelayedReads(Disk(process.broker.disk), SimulatedBodies())  # type: ignore[arg-type]
        if isinstance(effect, dm.ReadVolley):
            self._notice(process, effect.partition, effect.segment_no)
            found = _at_once(reads.volley(effect))
        elif isinstance(effect, dm.FindDelayed):
            found = _at_once(reads.find(effect))
        elif isinstance(effect, dm.ReadPending):
            found = _at_once(reads.pending(effect))
        elif self._schedule.rng.random() < FAILED_SHARE:
            found = dm.DueRead(effect.serial, effect.partition, effect.segment_no, None)
        else:
            found = _at_once(reads.due(effect))
        process.deliver(found)

    def read_fired(self, process: CoreProcess, effect: dm.ReadFired) -> None:
        """A server asks what was fired of its segment; members that have later ones in full answer, or none does."""
        self._schedule.after(self._schedule.rng.randint(1_000, 50_000), self._read_fired, process, effect)

    def _read_fired(self, process: CoreProcess, effect: dm.ReadFired) -> None:
        place, asked_no = effect.partition, effect.segment_no
        chain = self._judge.seen.history[place][-1]
        is_known = chain.epoch >= effect.chain_epoch
        volleys: list[tuple[int, list[StoredVolley]]] = []
        for segment in chain.segments if is_known else ():
            if segment.no < asked_no or segment.state is SegmentState.LOST or segment.is_stub:
                continue
            is_open = segment is chain.open_segment
            is_known = is_known and (is_open or segment.is_settled)
            names = [segment.master] if is_open else [segment.server, *segment.eligible]
            lists = (self._volleys(name.broker, place, segment.no) for name in names)
            found = next((listed for listed in lists if listed is not None), None)
            is_known = is_known and found is not None
            volleys.append((segment.no, found or []))
        producer = fire_producer(place, asked_no)
        of_producer = ((no, [one for one in listed if one.producer == producer]) for no, listed in volleys)
        log = fired_in(of_producer, asked_no, effect.epoch)
        here = [
            (one.index, one.origins[0])
            for one in process.broker.disk.read_volleys(place, asked_no, 0, MANY)
            if one.is_moved
        ]
        is_known = is_known and log.is_fenced
        error = None if is_known else NotServingError("a segment cannot be read now")
        self._judge.seen.states.add("fired messages read" if is_known else "fired messages not read")
        fired = spans_in(asked_no, log.fired, here)
        moved = spans_in(asked_no, (one for one in log.fired if one.is_moved), here)
        process.deliver(dm.FiredRead(effect.serial, place, asked_no, fired, log.last_epoch, error, moved))

    def _moved_to(self, place: PartitionId, origin: int) -> int | None:
        """Where a message was moved to last; 0: nowhere; None: it is not known now."""
        chain = self._judge.seen.history[place][-1]
        found: list[tuple[int, list[StoredVolley]]] = []
        for segment in (segment for segment in chain.segments if segment.no >= split_offset(origin)[0]):
            if segment.state is SegmentState.LOST or segment.is_stub:
                continue
            is_open = segment is chain.open_segment
            names = [segment.master] if is_open else [segment.server, *segment.eligible]
            lists = (self._volleys(name.broker, place, segment.no) for name in names)
            volleys = next((listed for listed in lists if listed is not None), None)
            if volleys is None or not (is_open or segment.is_settled):
                return None
            found.append((segment.no, volleys))
        return moved_to(found, origin)

    def _volleys(self, name: str, place: PartitionId, no: int) -> list[StoredVolley] | None:
        """The committed volleys in a segment, if the broker runs and has the segment in full."""
        process = self._cluster.brokers[name].process
        watched = process.watched if process is not None and process.is_serving else None
        partition = watched.core.partitions.get(place) if watched is not None else None
        length = complete_below(partition, no) if partition is not None else None
        if process is None or length is None:
            return None
        return [one for one in process.broker.disk.read_volleys(place, no, 0, MANY) if one.index < length]

    def _notice(self, process: CoreProcess, partition: PartitionId, no: int) -> None:
        self._judge.rules.delayed.fires(partition, no, process.wall_ms)

    def fire(self, process: CoreProcess, effect: dm.FireVolleys) -> None:
        """A server sends volleys to the master."""
        batches = [(parse_header(header), body) for header, body in effect.batches]
        self._notice(process, effect.partition, effect.segment_no)

        def accepted(name: str, at: int, offset: int) -> None:
            messages = messages_of(Batch(*batches[at]))
            if offset and messages and batches[at][0].flags & FLAG_DELAYED:
                self._judge.seen.states.add("moved")
            elif offset and messages:
                self._judge.accepted(name, effect.partition, list(messages), offset)
                self._judge.seen.states.add("several fired together" if len(batches[at][1]) > 8 else "fired")

        def done(count: int, error: SeriatimError | None) -> dm.VolleysStored:
            return dm.VolleysStored(effect.partition, effect.segment_no, effect.serial, count, error)

        self._carrier.carry(process, effect.partition, batches, accepted, done)

    # ---- retention --------------------------------------------------------------------------------------

    def spare(
        self,
        process: CoreProcess,
        chain: Chain,
        no: int,
        start: Start | None,
        then: Callable[[int, Start | None], None],
    ) -> None:
        """Retention wants to drop all before a place. It does, or before an earlier one, as servers of segments say."""
        segments = [
            segment
            for segment in chain.segments
            if segment.no < no and segment.delayed_until_ms and not segment.is_stub and segment.sealed_len is not None
        ]
        if start is not None and process.core.partitions[chain.partition].logs[no].has_delayed:
            segments.append(chain.open_segment)
        self._spare(process, chain, segments, (no, start), then, ASKED_TIMES)

    def _spare(
        self,
        process: CoreProcess,
        chain: Chain,
        segments: list[Segment],
        wanted: tuple[int, Start | None],
        then: Callable[[int, Start | None], None],
        tries: int,
    ) -> None:
        if not segments:
            then(*wanted)
            return
        (segment, *others), (no, start) = segments, wanted
        end = segment.sealed_len if segment.sealed_len is not None else start.first if start is not None else 0

        def answered(answer: dm.PendingFound | None) -> None:
            first = answer.first if answer is not None and answer.error is None else segment.start
            is_open = segment.sealed_len is None
            if first >= end:
                self._spare(process, chain, others, wanted, then, ASKED_TIMES)
            elif tries and (answer is None or answer.error is not None):
                self._schedule.after(PAUSE_US, self._spare, process, chain, segments, wanted, then, tries - 1)
            else:
                self._judge.seen.states.add("retention spares what is delayed")
                place = process.broker.disk.find(chain.partition, no, end, Measure.INDEX, first) if is_open else None
                is_later = place is not None and place.index > segment.start
                begin = Start(place.index, place.previous_checksum, place.bytes_before) if place and is_later else None
                then(segment.no, begin)

        def ask(request: int, _until: int) -> dm.AskPending:
            return dm.AskPending(
                request, chain.partition, segment.no, end if self._setting.options.moves_delayed else 0
            )

        self._clients.ask_at(segment.server.broker, ask, answered)

    # ---- programs that cancel -----------------------------------------------------------------------

    def stored(self, partition: PartitionId, messages: Sequence[int], offset: int) -> None:
        """A batch that was sent with a due time is acknowledged: perhaps a program cancels it, or a part of it."""
        rng = self._schedule.rng
        if rng.random() >= CANCEL_SHARE:
            return
        whole = rng.random() < 0.5
        for place in range(len(messages)) if whole else [rng.randrange(len(messages))]:
            for _ in range(1 if rng.random() < 0.8 else 2):  # sometimes two programs do
                one = _Cancellation(partition, offset + place, offset + place, offset + place)
                self._open.append(one)
                self._schedule.after(rng.randint(0, CANCEL_US), self._ask, one)

    def _ask(self, one: _Cancellation) -> None:
        """Send it to the broker that is known to serve the segment, or to any."""
        if not one.asked_us:
            one.asked_us = self._schedule.now_us
            self._judge.rules.delayed.asks(one.partition, one.offset)
            self._schedule.tell("canceller", f"cancels {format_offset(one.offset)} of partition {one.partition}")
        name = one.server or self._schedule.rng.choice(sorted(self._cluster.brokers))
        self._schedule.after(self._cluster.network.latency_us(), self._arrive, name, one)

    def _arrive(self, name: str, one: _Cancellation) -> None:
        one.tries += 1
        self._schedule.after(ANSWER_US, self._again, one, one.tries, "")
        process = self._cluster.brokers[name].process
        if process is not None and process.is_serving and not self._clients.cut.get(name):
            request = self._clients.ask(None, partial(self._answered, one, one.tries))
            process.deliver(dm.CancelDelayed(request, one.partition, one.at))

    def _again(self, one: _Cancellation, tries: int, server: str) -> None:
        if one.tries == tries and not one.is_over:
            one.server = server
            self._ask(one)

    def _answered(self, one: _Cancellation, tries: int, answer: Any) -> None:
        if isinstance(answer, tuple):  # it leaves the broker
            name, answer = answer
            place = self._later_place(one, answer)
            answer = self._of_repeat(one, answer)
            if answer.outcome is not None and place == 0:
                rules = self._judge.rules.delayed
                rules.answered(name, one.partition, one.offset, one.asked_us, answer.outcome)
        elif (place := self._later_place(one, answer)) != 0:
            one.at = place or one.at
            self._schedule.after(self._schedule.rng.randint(1_000, PAUSE_US), self._again, one, tries, "")
        elif answer.outcome is not None:
            if not one.is_over:
                self._open.remove(one)
            one.is_over = True
        else:
            if answer.offset:
                one.at = one.origin = answer.offset
            self._schedule.after(self._schedule.rng.randint(1_000, PAUSE_US), self._again, one, tries, answer.server)

    def _of_repeat(self, one: _Cancellation, answer: dm.DelayedCancelled) -> dm.DelayedCancelled:
        """What was stored earlier, and is not delayed there, is visible there."""
        if one.origin == one.offset or answer.outcome is not CancelOutcome.NOT_FOUND or answer.may_be_moved:
            return answer
        return replace(answer, outcome=CancelOutcome.TOO_LATE)

    def _later_place(self, one: _Cancellation, answer: dm.DelayedCancelled) -> int | None:
        """Where the message must be cancelled instead; 0: the answer holds; None: it is not known now."""
        if not answer.may_be_moved:
            return 0
        place = self._moved_to(one.partition, one.origin)
        if place and place != one.at:
            self._judge.seen.states.add("cancelled in a later place")
            return place
        return None if place is None else 0


@dataclass(slots=True, eq=False)
class _Cancellation:
    """A program wants a message to be cancelled.

    Attributes:
        partition: The partition.
        offset: Where the message was acknowledged.
        at: Where it waits, as far as the program knows.
        origin: Where it was stored first, as far as the program knows.
        asked_us: When the program began; 0: it has not.
        server: The broker that serves that segment; empty: not known.
        tries: How many requests were sent.
        is_over: The final answer is there.
    """

    partition: PartitionId
    offset: int
    at: int
    origin: int
    asked_us: int = 0
    server: str = ""
    tries: int = 0
    is_over: bool = False


def _at_once(coroutine: Coroutine[Any, Any, Event]) -> Event:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Event = stop.value
        return result
    raise AssertionError("the read waits for something")
