"""The places of sequential readers. A place is an open scan, with the batches that were read ahead of its reader.

Readers have no names here. A sequential read leaves its place behind, under the index at which it ended. The next read
from that index takes the place. Two readers at the same index find two places. So readers need not close anything: a
place that no read takes is dropped after `scan_idle_ms_max` (1 s). A place is void if its log was cut, moved or dropped
since.

From the second read in a row on, the storage reads the next piece ahead. So nothing is read ahead for a reader that
comes only once.

There are limits, and no reader takes another reader's place. If `scans_max` places are kept, further readers have no
place. If `read_ahead_bytes_max` bytes are read ahead, nothing is read ahead for further readers.

All of it runs on the event loop, except the work of the scans.
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
"""Calls a function in a worker thread: `work(function, *arguments)`."""


class Place:
    """The place of a reader in a segment's log.

    Attributes:
        index: The index from which the next read must begin.
        is_kept: True: the place waits for its reader. False: a read is using it.
        batches: Batches that were read ahead, and that no read has taken yet.
        ahead: The piece that is being read ahead.
        bytes_ahead: The bytes that are counted for `batches` and `ahead`.
        reads: The number of reads in a row that used this place.
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
        """The key under which the next read finds this place."""
        return self.partition, self.segment, self.index

    def is_of(self, log: ExtentLog) -> bool:
        """Whether this is the log that was read, and nothing in it was cut or moved since."""
        return log is self._log and (log.cuts, log.moves) == self._seen

    def take(self, until_index: int, max_bytes: int) -> list[Batch]:
        """Batches that were read ahead: at least one if there is one below `until_index`, then up to `max_bytes`."""
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
    """All places of one storage. The owner calls `stop` before it closes the engine."""

    def __init__(self, settings: RocksSettings, work: Work) -> None:
        self._settings = settings
        self._work = work
        self._places: dict[tuple[int, int, int], list[Place]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self.count = 0
        self.bytes_ahead = 0

    def take(self, partition: int, segment: int, index: int, log: ExtentLog) -> Place | None:
        """The place of a read that ended at `index`; None if there is no valid one. The caller must keep or drop it."""
        while places := self._places.get((partition, segment, index)):
            place = places[-1]
            self._take_away(place)
            if place.is_of(log):
                return place
            self.drop(place)
        return None

    def is_ready(self, partition: int, segment: int, index: int) -> bool:
        """Whether `take` would give a place with its next batches in memory, unless the log has changed."""
        places = self._places.get((partition, segment, index))
        return places is not None and bool(places[-1].batches)

    def keep(self, place: Place, index: int) -> bool:
        """Keep a place for the read that will continue at `index`. If there is no room, drop it and return False."""
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
        """Whether the next piece should be read ahead for a place that is kept."""
        settings = self._settings
        return (
            place.reads >= 2
            and place.ahead is None
            and not place.batches
            and self.bytes_ahead + settings.read_ahead_bytes <= settings.read_ahead_bytes_max
        )

    def read_ahead(self, place: Place, stretches: list[Stretch]) -> None:
        """Begin to read the next piece, in a worker thread."""
        size = self._settings.read_ahead_bytes
        place.ahead = self._work(place.scan.read, stretches, size)
        self._account(place)
        place.ahead.add_done_callback(lambda ahead: self._ended(place, ahead))

    def arrived(self, place: Place) -> None:
        """Move the piece that was read ahead to the place's batches.

        The future's callback calls this, and the reader too, because the callback comes a turn of the event loop later.
        Without the reader's call, the reader would continue after batches that it did not get.

        Raises:
            CorruptionError: The piece could not be read.
        """
        ahead, place.ahead = place.ahead, None
        if ahead is not None:
            place.batches.extend(stored.batch for stored in ahead.result())
            self._account(place)

    def _ended(self, place: Place, ahead: asyncio.Future[list[Stored]]) -> None:
        """Take a piece that was read ahead. If the read failed, the reader finds the error when it comes."""
        if place.ahead is not ahead or ahead.cancelled() or ahead.exception() is not None:
            return
        self.arrived(place)
        if place.is_kept and self.bytes_ahead > self._settings.read_ahead_bytes_max:
            self._take_away(place)  # its batches have more bytes than were counted for them
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
        """Let go of all places that are kept, and of the files that they keep alive."""
        for place in [place for places in self._places.values() for place in places]:
            self._take_away(place)
            self.drop(place)

    def stop(self) -> None:
        """Let go of all places, and keep none from now on."""
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
            function()  # the worker threads have ended, and no flush runs for which it could wait
        else:
            self._work(function).add_done_callback(_look_at)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._settings.scan_idle_ms_max / 1000, self._sweep)

    def _sweep(self) -> None:
        """Drop the places that no read took for `scan_idle_ms_max`."""
        self._timer = None
        before = asyncio.get_running_loop().time() - self._settings.scan_idle_ms_max / 1000
        for place in [place for places in self._places.values() for place in places if place.used_at <= before]:
            self._take_away(place)
            self.drop(place)
        if self._places:
            self._set_timer()


def _look_at(done: asyncio.Future[Any]) -> None:
    """Read the error of work whose outcome no reader awaits. The place is void, and the next read meets the error."""
    if not done.cancelled():
        done.exception()
