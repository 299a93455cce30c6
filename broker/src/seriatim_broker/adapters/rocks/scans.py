"""The places of readers that go on where they ended: an open scan each, and what was read ahead for them.

A reader has no name here. A read that says that its caller goes on leaves its place behind, under the index at which it
ended. The next read from that index takes it up; two readers at the same index find two places. So nothing has to be
closed: a place that is not taken up goes by its age. A place is void when its log was cut, moved or dropped since.

From the second read in a row on, the next piece is read ahead: a reader that comes once in a while reads nothing twice.

What is kept is bounded, and no reader takes another one's place away: when `scans_max` places are kept or
`read_ahead_bytes_max` bytes are read ahead, further readers read without.

Everything here runs on the event loop, but for the work of the scans.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ...core.values.log import Batch
from .extents import ExtentLog
from .scan import Scan, Stored, Stretch
from .settings import RocksSettings

Work = Callable[..., "asyncio.Future[Any]"]
"""Has a function called in a worker thread: `work(function, *arguments)`."""


class Place:
    """Where a reader is in a segment's log.

    Attributes:
        index: The next one that it will ask for.
        is_kept: Whether it waits for its reader; else it is in the hands of a read.
        batches: Read ahead, and not asked for yet.
        ahead: The piece that is being read ahead.
        bytes_ahead: What is counted for both.
        reads: How many reads in a row came here.
    """

    __slots__ = (
        "_log",
        "_seen",
        "ahead",
        "batches",
        "bytes_ahead",
        "index",
        "is_kept",
        "opened_at",
        "partition",
        "reads",
        "scan",
        "segment",
        "used_at",
    )

    def __init__(self, partition: int, segment: int, log: ExtentLog, scan: Scan, now: float) -> None:
        self.partition = partition
        self.segment = segment
        self.scan = scan
        self.index = 0
        self.is_kept = False
        self.batches: deque[Batch] = deque()
        self.ahead: asyncio.Future[list[Stored]] | None = None
        self.bytes_ahead = 0
        self.reads = 0
        self.opened_at = self.used_at = now
        self._log = log
        self._seen = (log.cuts, log.moves)

    @property
    def key(self) -> tuple[int, int, int]:
        """Under which the next read finds it."""
        return self.partition, self.segment, self.index

    def is_of(self, log: ExtentLog) -> bool:
        """Whether the log is still the one that was read, with everything where it was."""
        return log is self._log and (log.cuts, log.moves) == self._seen

    def take(self, until_index: int, max_bytes: int) -> list[Batch]:
        """What was read ahead, at least one batch if there is any below `until_index`, then what fits."""
        found: list[Batch] = []
        size = 0
        batches = self.batches
        while batches and batches[0].header.base_index < until_index:
            size += batches[0].size_bytes
            if found and size > max_bytes:
                break
            found.append(batches.popleft())
        return found


class Scans:
    """All places of one storage. Its owner calls `stop` before the engine closes."""

    def __init__(self, settings: RocksSettings, work: Work) -> None:
        self._settings = settings
        self._work = work
        self._places: dict[tuple[int, int, int], list[Place]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self.count = 0
        self.bytes_ahead = 0

    def take(self, partition: int, segment: int, index: int, log: ExtentLog) -> Place | None:
        """The place of a reader that ended at `index`, if one is of use. The caller then has to `keep` or `drop` it."""
        while places := self._places.get((partition, segment, index)):
            place = places[-1]
            self._take_away(place)
            if place.is_of(log):
                return place
            self.drop(place)
        return None

    def is_ready(self, partition: int, segment: int, index: int) -> bool:
        """Whether `take` would give a place whose next batches are in memory, if its log is as it was."""
        places = self._places.get((partition, segment, index))
        return places is not None and bool(places[-1].batches)

    def keep(self, place: Place, index: int) -> bool:
        """Leave a place behind for the read that goes on at `index`; False, and it is dropped, if there is no room."""
        settings = self._settings
        if self._is_stopped or self.count >= settings.scans_max:
            self.drop(place)
            return False
        now = place.used_at = asyncio.get_running_loop().time()
        if now - place.opened_at > settings.scan_age_ms_max / 1000:
            place.opened_at = now
            self._in_background(place.scan.let_go)
        place.index = index
        place.is_kept = True
        place.reads += 1
        self._places.setdefault(place.key, []).append(place)
        self.count += 1
        self._account(place)
        if self._timer is None:
            self._set_timer()
        return True

    def may_read_ahead(self, place: Place) -> bool:
        """Whether the next piece is to be read for a place that is kept."""
        settings = self._settings
        return (
            place.reads >= 2
            and place.ahead is None
            and not place.batches
            and self.bytes_ahead + settings.read_ahead_bytes <= settings.read_ahead_bytes_max
        )

    def read_ahead(self, place: Place, stretches: list[Stretch]) -> None:
        """Have the next piece read."""
        size = self._settings.read_ahead_bytes
        place.ahead = self._work(place.scan.read, stretches, size)
        self._account(place)
        place.ahead.add_done_callback(lambda ahead: self._ended(place, ahead))

    def arrived(self, place: Place) -> None:
        """Take up what was read ahead. The reader says so as well as the future: its callbacks come a turn later, and
        meanwhile the reader would go on behind what it has not been given.

        Raises:
            CorruptionError: What could not be read.
        """
        ahead, place.ahead = place.ahead, None
        if ahead is not None:
            place.batches.extend(stored.batch for stored in ahead.result())
            self._account(place)

    def _ended(self, place: Place, ahead: asyncio.Future[list[Stored]]) -> None:
        """Something was read ahead. An error is left for the reader to find, if it comes."""
        if place.ahead is not ahead or ahead.cancelled() or ahead.exception() is not None:
            return
        self.arrived(place)
        if place.is_kept and self.bytes_ahead > self._settings.read_ahead_bytes_max:
            self._take_away(place)  # its batches are larger than what was counted for them
            self.drop(place)

    def drop(self, place: Place) -> None:
        """Let go of a place that is not kept."""
        assert not place.is_kept, place.key
        ahead, place.ahead = place.ahead, None
        place.batches.clear()
        self.bytes_ahead -= place.bytes_ahead
        place.bytes_ahead = 0
        if ahead is not None:
            ahead.add_done_callback(_look_at)
        self._in_background(place.scan.close)

    def drop_all(self) -> None:
        """Let go of all places that are kept, and of the files that they pin."""
        for place in [place for places in self._places.values() for place in places]:
            self._take_away(place)
            self.drop(place)

    def stop(self) -> None:
        """Let go of everything, and keep nothing more."""
        self.drop_all()
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- inside -----------------------------------------------------------------------------------------

    def _take_away(self, place: Place) -> None:
        places = self._places[place.key]
        places.remove(place)
        if not places:
            del self._places[place.key]
        place.is_kept = False
        self.count -= 1

    def _account(self, place: Place) -> None:
        size_bytes = sum(batch.size_bytes for batch in place.batches)
        size_bytes += self._settings.read_ahead_bytes if place.ahead is not None else place.scan.held_bytes
        self.bytes_ahead += size_bytes - place.bytes_ahead
        place.bytes_ahead = size_bytes

    def _in_background(self, function: Callable[[], None]) -> None:
        if self._is_stopped:
            function()  # there are no threads any more, and no flush that it could wait for
        else:
            self._work(function).add_done_callback(_look_at)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._settings.scan_idle_ms_max / 1000, self._sweep)

    def _sweep(self) -> None:
        """Drop what was not taken up for too long."""
        self._timer = None
        before = asyncio.get_running_loop().time() - self._settings.scan_idle_ms_max / 1000
        for place in [place for places in self._places.values() for place in places if place.used_at <= before]:
            self._take_away(place)
            self.drop(place)
        if self._places:
            self._set_timer()


def _look_at(done: asyncio.Future[Any]) -> None:
    """See the error of work whose outcome no reader waits for: the place is void, and a read meets it again."""
    if not done.cancelled():
        done.exception()
