"""How many delayed messages wait, and since when the oldest one is due: a duty of each broker, every 2 s.

Metrics show these counts, and the limit of a topic (`delayed_pending_max`) is held against them. When the server of a
segment takes it up, it counts the rows of what is left in it: in slices, in a thread, with pauses. From then on nothing
is read: the log says what was appended since then, and the window of the delay ledger what was passed. So a look costs
about 7 µs for each segment that is served here, however many messages wait. The pauses grow if looks would take more
than a twentieth of the time, which is so from 15,000 segments on.

The master of the open segment asks the servers of the other segments of its partition, and gives its core the sum. It
does so only for partitions that took a delayed message in their open segment.

Counts are estimates in two ways. A message that is cancelled while the rows are counted may be left out. And the bytes
of what has passed are taken to be as many as the mean. So a segment is counted again after its end was cut off, or its
beginning dropped, and when more than `PASSED_MAX` messages and more than wait have passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId

from ...core.delayed.ledger import is_done
from ...core.delayed.listing import first_left
from ...core.state.delayed import ALL, Firing
from ...core.state.partition import Partition
from ...core.state.segment_log import SegmentLog
from ...core.values.delayed import NONE_WAIT, Amount
from ...core.values.delayed_messages import DelayedPending
from ...core.values.segment import SegmentState
from ...interfaces.clock import Clock
from ...interfaces.storage import Storage
from ..driver.delayed_reads import DUE_MS_MAX
from ..driver.driver import Core, Driver

LOOK_S: Final = 2.0

LOOKS_SHARE: Final = 20
"""The pause between two looks is at least this many times what a look took."""

PARTITIONS_PER_TURN: Final = 200
"""After this many partitions the rest of the broker has its turn."""

ROWS_PER_READ: Final = 1_000

BEGUN_MAX: Final = 1_000
"""Segments whose counting begins in one look."""

WRITTEN_S: Final = 0.5
"""Rows are read this long after a count has begun: the disk has them by then. If it hangs, the count is too low."""

PASSED_MAX: Final = 100_000

SEGMENTS_PER_CALL: Final = 1_000
CALL_S: Final = 2.0

_log = structlog.get_logger(__name__)

Place = tuple[PartitionId, int]
"""A partition and the number of a segment."""

Ask = Callable[[str, Sequence[Place], float], Awaitable[Sequence[Amount | None]]]
"""Asks another broker what waits in segments that it serves, until a deadline in seconds. None: it does not know."""


class _Begun(NamedTuple):
    """What a count began with, and when.

    Attributes:
        after: All rows up to this due time and index are passed, or in volleys.
        in_volleys: The indexes that are in volleys.
        below: The tail of the log. What is appended from there on is not read.
        appended: What the log says of delayed messages that were appended.
        floor: The floor of the window.
        passed: How many delayed messages were passed from there on.
    """

    at_us: int
    after: tuple[int, int]
    in_volleys: frozenset[int]
    below: int
    appended: Amount
    floor: int
    passed: int


@dataclass(slots=True)
class _Count:
    """The count of a segment. It holds for a server epoch and a start of the log, unless the log is cut."""

    server_epoch: int
    start: int
    tail: int
    begun: _Begun
    found: Amount | None = None

    def holds_for(self, firing: Firing, log: SegmentLog) -> bool:
        """Whether it still counts."""
        return (self.server_epoch, self.start) == (firing.server_epoch, log.start) and self.tail <= log.tail

    def passed(self, firing: Firing) -> int:
        """How many messages were passed since it began."""
        return _passed_from(firing, self.begun.floor) - self.begun.passed

    def left(self, firing: Firing, log: SegmentLog) -> Amount | None:
        """What waits now; None: it is not counted yet."""
        if self.found is None:
            return None
        appended = _appended(log)
        messages = self.found.messages + appended.messages - self.begun.appended.messages
        size_bytes = self.found.size_bytes + appended.size_bytes - self.begun.appended.size_bytes
        left = max(messages - self.passed(firing), 0)
        return Amount(left, size_bytes * left // messages) if left else NONE_WAIT


class DelayedCounts:
    """Counts, until cancelled.

    Args:
        core: Its partitions are read, and nothing else.

    Attributes:
        overdue_s: For how long the oldest message that is due has been due, of the segments that this broker serves.
    """

    def __init__(self, core: Core, driver: Driver, storage: Storage, clock: Clock, broker: str) -> None:
        self._core = core
        self._driver = driver
        self._storage = storage
        self._clock = clock
        self._broker = broker
        self._ask: Ask | None = None
        self._counts: dict[Place, _Count] = {}
        self._to_count: asyncio.Queue[tuple[Place, _Count]] = asyncio.Queue()
        self._told: dict[Place, Amount] = {}  # by other brokers
        self._by_topic: dict[str, int] = {}
        self.overdue_s = 0.0

    def on_ask(self, ask: Ask) -> None:
        """`ask` asks other brokers. Without it, only what this broker serves counts."""
        self._ask = ask

    async def run(self) -> None:
        """Look and count until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_again(), name="look at delayed messages")
            group.create_task(self._count_all(), name="count of delayed messages")

    async def _look_again(self) -> None:
        took_us = 0
        while True:
            await asyncio.sleep(max(LOOK_S, took_us * LOOKS_SHARE / 1e6))
            began_us = self._clock.monotonic_us()
            if self._core.has_delayed:
                await self.look()
            took_us = self._clock.monotonic_us() - began_us

    def by_topic(self) -> Mapping[str, int]:
        """How many messages wait in the segments that this broker serves."""
        return self._by_topic

    # ---- what is served here ----

    async def look(self) -> None:
        """Bring everything up to date, and give the core what waits in the partitions that this broker leads."""
        now_ms, overdue_ms = self._clock.wall_ms(), 0
        by_topic: dict[str, int] = {}
        counts: dict[Place, _Count] = {}
        led: list[tuple[Partition, SegmentLog]] = []
        for number, partition in enumerate(list(self._core.partitions.values()), 1):
            for no, firing in partition.firing.items():
                log = partition.logs.get(no)
                if log is None or partition.chain is None:
                    continue
                overdue_ms = max(overdue_ms, now_ms - _oldest_due_ms(firing, now_ms))
                left = self._count(counts, (partition.id, no), firing, log)
                topic = partition.chain.topic
                by_topic[topic] = by_topic.get(topic, 0) + left.messages
            open_log = partition.open_log()
            if open_log is not None and open_log.has_delayed and open_log.active and open_log.unbroken:
                led.append((partition, open_log))
            if number % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._counts, self._by_topic, self.overdue_s = counts, by_topic, overdue_ms / 1000
        await self._sum_up(led)

    def _count(self, counts: dict[Place, _Count], place: Place, firing: Firing, log: SegmentLog) -> Amount:
        """What waits in a segment; nothing, if it is not counted yet: then its counting begins."""
        count = self._counts.get(place)
        if count is None or not count.holds_for(firing, log):
            if self._to_count.qsize() >= BEGUN_MAX:
                return NONE_WAIT
            count = self._begin(place, firing, log)
        counts[place] = count
        count.tail = log.tail
        left = count.left(firing, log)
        if left is not None and count.passed(firing) > max(left.messages, PASSED_MAX):
            again = self._begin(place, firing, log)
            again.found = left  # until it is counted
            counts[place] = again
        return left or NONE_WAIT

    def _begin(self, place: Place, firing: Firing, log: SegmentLog) -> _Count:
        floor = firing.passed.floor
        begun = _Begun(
            self._clock.monotonic_us(), first_left(firing, log), frozenset(firing.in_volleys), log.tail,
            _appended(log), floor, _passed_from(firing, floor),
        )  # fmt: skip
        count = _Count(firing.server_epoch, log.start, log.tail, begun)
        self._to_count.put_nowait((place, count))
        return count

    def pending(self, place: Place) -> Amount | None:
        """What waits in a segment that this broker serves; None: it does not serve it, or does not know yet."""
        partition = self._core.partitions.get(place[0])
        log = partition.logs.get(place[1]) if partition is not None else None
        if partition is None or log is None:
            return None
        if not log.has_delayed or is_done(partition, log.no):
            return NONE_WAIT
        firing, count = partition.firing.get(log.no), self._counts.get(place)
        if firing is None or count is None or not count.holds_for(firing, log):
            return None
        return count.left(firing, log)

    # ---- counting ----

    async def _count_all(self) -> None:
        while True:
            await self.count_next()

    async def count_next(self) -> None:
        """Count the next segment, once there is one."""
        place, count = await self._to_count.get()
        try:
            await self._read(place, count)
        except SeriatimError as exc:
            _log.warning("delayed_not_counted", partition=place[0], segment=place[1], error=str(exc))
            self._counts.pop(place, None)  # the next look begins again

    async def _read(self, place: Place, count: _Count) -> None:
        """Read the rows of a segment, with a pause after each slice that is as long as the slice took.

        Raises:
            SeriatimError: The disk cannot be read.
        """
        begun = count.begun
        # The disk has what was appended before the count began.
        await asyncio.sleep(max(begun.at_us / 1e6 + WRITTEN_S - self._clock.monotonic_us() / 1e6, 0))
        after, messages, size_bytes = begun.after, len(begun.in_volleys), 0
        while True:
            began_us = self._clock.monotonic_us()
            # After `ALL` there is nothing: all that is left was in volleys.
            rows = await self._storage.read_due(*place, after, DUE_MS_MAX, ROWS_PER_READ) if after < ALL else []
            partition = self._core.partitions.get(place[0])
            firing = partition.firing.get(place[1]) if partition is not None else None
            if firing is None or firing.server_epoch != count.server_epoch:
                return
            for row in rows:
                if row.index < begun.below:
                    left = firing.passed.not_passed(row.index, row.index + row.message_count)
                    if begun.in_volleys:
                        left = [index for index in left if index not in begun.in_volleys]
                    messages += len(left)
                    size_bytes += row.size_bytes * len(left) // row.message_count
            if len(rows) < ROWS_PER_READ:
                count.found = Amount(messages, size_bytes)
                return
            after = rows[-1].due_ms, rows[-1].index
            await asyncio.sleep((self._clock.monotonic_us() - began_us) / 1e6)

    # ---- what waits in a partition ----

    async def _sum_up(self, led: Sequence[tuple[Partition, SegmentLog]]) -> None:
        """Give the core what waits in the partitions that this broker leads."""
        elsewhere: dict[str, list[Place]] = {}
        sums: list[tuple[SegmentLog, Amount, list[Place]]] = []
        for partition, log in led:
            assert partition.chain is not None
            here, others = NONE_WAIT, list[Place]()
            for segment in partition.chain.segments:
                place = (partition.id, segment.no)
                is_sealed = segment.state is SegmentState.SEALED
                if not (segment.delayed_until_ms if is_sealed else segment.state is SegmentState.OPEN):
                    continue
                if segment.server.broker == self._broker:
                    here = here.plus(self.pending(place) or NONE_WAIT)
                else:
                    others.append(place)
                    elsewhere.setdefault(segment.server.broker, []).append(place)
            sums.append((log, here, others))
            await asyncio.sleep(0)
        await asyncio.gather(*(self._ask_server(server, places) for server, places in elsewhere.items()))
        told: dict[Place, Amount] = {}
        for log, here, others in sums:
            for place in others:
                told[place] = self._told.get(place, NONE_WAIT)
                here = here.plus(told[place])
            if log.delayed is not None and here != log.delayed.pending:
                self._driver.feed(DelayedPending(log.partition, log.no, here))
        self._told = told

    async def _ask_server(self, server: str, places: Sequence[Place]) -> None:
        """Ask another broker. What it does not answer stays as it was answered before."""
        for at in range(0, len(places) if self._ask is not None else 0, SEGMENTS_PER_CALL):
            asked = places[at : at + SEGMENTS_PER_CALL]
            try:
                assert self._ask is not None
                found = await self._ask(server, asked, CALL_S)
            except SeriatimError as exc:
                _log.info("delayed_not_told", broker=server, error=str(exc))
                return
            self._told.update({place: one for place, one in zip(asked, found, strict=False) if one is not None})


def _oldest_due_ms(firing: Firing, now_ms: int) -> int:
    """When the oldest message was due that is in memory and not stored as fired; `now_ms`: none is due."""
    rows = (row.due_ms for row in firing.ahead.rows[:1])
    return min((now_ms, *rows, *(volley.due_ms for volley in firing.volleys.waiting.values())))


def _appended(log: SegmentLog) -> Amount:
    return log.delayed.appended if log.delayed is not None else NONE_WAIT


def _passed_from(firing: Firing, floor: int) -> int:
    """How many messages from an index on were passed, without those that were never delayed."""
    return firing.passed.passed_from(floor) - firing.other_count
