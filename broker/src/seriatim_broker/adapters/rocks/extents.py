"""Where batches are: the extents, and for each segment the runs of its batches in them.

A segment's log is a row of *runs*. A run says "from this index on, the batches are in that extent". It ends where the
next run begins. Positions are bytes of the segment's log, so the difference of two positions is the size of a run. So
extents know exactly how many of their bytes are in use, without a counter on disk.

A run may have its bodies in another extent than the rest of its batches, because another log put them there. Such
bodies are *adopted* (see `bodies`). Then that extent counts them too, and is not emptied while the run exists.

This module keeps its tables in memory only. The storage writes the index on disk together with the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

RUNS_APART_MAX: Final = 64
"""Limit for the runs of a log that have bodies apart. Beyond it the log adopts no body that would begin another run.

A run costs about 100 bytes of memory. A log in which adopted and other batches alternate would have a run for each."""

APART_BYTES: Final = 250
"""About the bytes that a batch takes in its extent if its body is in another extent."""


class ExtentRun(NamedTuple):
    """Batches of a segment that are in one extent.

    Attributes:
        start: The first index.
        position: Bytes of the segment's log before this run.
        extent: The extent's number.
        bodies: The extent with the bodies that are stored apart, which may be the same extent; 0: no body is.
    """

    start: int
    position: int
    extent: int
    bodies: int = 0

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents that must not be emptied while this run exists.

        If there are two, each counts all bytes of the run as in use, because after a start it is not known how many of
        them are bodies. With fewer, housekeeping could take a full extent for a sparse one and copy it.
        """
        return (self.extent,) if self.bodies in (0, self.extent) else (self.extent, self.bodies)


@lru_cache(256)
def _shared(runs: tuple[ExtentRun, ...]) -> tuple[ExtentRun, ...]:
    """One shared object for all equal tuples. Most segments have one run from index 0, and an extent has thousands."""
    return runs


@dataclass(slots=True, eq=False)
class ExtentLog:
    """A segment's batches on this disk: its runs, and where the next batch goes.

    Attributes:
        tail: The index after the last batch.
        position: Bytes of the log up to `tail`.
        runs: The runs, ascending.
        cuts: Grows when batches are taken away. If it grew during a read, the batches that were read do not count.
        moves: Grows when batches go to another extent. If it grew during a read, the read must look again.
        moved_ticket: The ticket of the last write that moves batches. Until it is written, a reader finds the batches
            in neither place.
        delayed_ticket: The ticket of the last write that changed rows of delayed batches; None: the log has no such
            row.
    """

    tail: int = 0
    position: int = 0
    runs: tuple[ExtentRun, ...] = ()
    cuts: int = 0
    moves: int = 0
    moved_ticket: int = 0
    delayed_ticket: int | None = None

    def run_at(self, index: int) -> int:
        """The place in `runs` of the run that has `index`; 0 if `index` is before all runs."""
        return max(0, bisect_right(self.runs, index, key=lambda run: run.start) - 1)

    @property
    def first_index(self) -> int:
        """The first index on this disk. Lower ones are not here any more, or never were."""
        return self.runs[0].start if self.runs else self.tail

    def end_of(self, place: int) -> tuple[int, int]:
        """The index and the position at which a run ends."""
        if place + 1 < len(self.runs):
            following = self.runs[place + 1]
            return following.start, following.position
        return self.tail, self.position

    def size_in(self, place: int) -> int:
        """Bytes of a run."""
        return self.end_of(place)[1] - self.runs[place].position


@dataclass(slots=True, eq=False)
class Extent:
    """One extent: the bytes that it took, and the bytes of them that are in use."""

    number: int
    opened_at_ms: int
    size_bytes: int = 0
    live_bytes: int = 0
    runs: int = 0

    def is_sparse(self, live_percent_min: int) -> bool:
        """Whether less than `live_percent_min` of it is in use, so that copying the rest is worth the space."""
        return self.live_bytes * 100 < self.size_bytes * live_percent_min


class ExtentTable:
    """All extents and all segments' logs.

    `active` is the extent that takes the next batches. It is always the one that was begun last. So if a segment was
    dropped and is copied here again, its new batches never go to an extent that still has old batches of it.
    """

    def __init__(self) -> None:
        self.extents: dict[int, Extent] = {}
        self.active: Extent | None = None
        self.spares: list[int] = []
        self._partitions: dict[int, dict[int, ExtentLog]] = {}

    # ---- segments ---------------------------------------------------------------------------------------

    def log(self, partition: int, segment: int) -> ExtentLog | None:
        """A segment's log; None if this disk has none."""
        return self._partitions.get(partition, {}).get(segment)

    def ensure_log(self, partition: int, segment: int) -> ExtentLog:
        """A segment's log. Makes an empty one if there is none."""
        logs = self._partitions.setdefault(partition, {})
        log = logs.get(segment)
        if log is None:
            log = logs[segment] = ExtentLog()
        return log

    def segments_of(self, partition: int) -> list[int]:
        """The numbers of the partition's segments that have a log, ascending."""
        return sorted(self._partitions.get(partition, {}))

    def forget(self, partition: int, segment: int) -> ExtentLog | None:
        """Remove a segment's log, and give back its bytes in the extents. Returns the log; None if there is none."""
        logs = self._partitions.get(partition, {})
        log = logs.pop(segment, None)
        if log is None:
            return None
        if not logs:
            del self._partitions[partition]
        for place, run in enumerate(log.runs):
            self._release(run, log.size_in(place))
        log.cuts += 1
        log.runs = ()
        return log

    def runs_in(self, extent: int) -> Iterator[tuple[int, int, ExtentLog, int]]:
        """Partition, segment, log and place of each run that needs an extent. It goes through all runs."""
        for partition, logs in self._partitions.items():
            for segment, log in logs.items():
                for place, run in enumerate(log.runs):
                    if extent in run.extents:
                        yield partition, segment, log, place

    # ---- runs -------------------------------------------------------------------------------------------

    def append(
        self,
        log: ExtentLog,
        extent: Extent,
        end_index: int,
        size_bytes: int,
        start: int,
        bodies: int = 0,
        *,
        is_adopted: bool = False,
    ) -> ExtentRun | None:
        """Add a batch of [start, end_index) to a log.

        Args:
            log: The log.
            extent: The extent that takes the batch.
            end_index: The index after its last message.
            size_bytes: Its header and body.
            start: Its first index.
            bodies: The extent that has its body apart; 0: the body is with the batch.
            is_adopted: Whether the body was there before. Then `may_adopt` must have said yes.

        Returns:
            The run that this batch begins; None if it belongs to the last one.
        """
        begun = None
        last = log.runs[-1] if log.runs else None
        if last is None or (last.extent, last.bodies) != (extent.number, bodies):
            begun = last = ExtentRun(start, log.position, extent.number, bodies)
            log.runs = _shared((*log.runs, begun))
            self._pin(begun, 0)
        log.tail = end_index
        log.position += size_bytes
        self._use(last, size_bytes)
        extent.size_bytes += APART_BYTES if is_adopted else size_bytes
        return begun

    def may_adopt(self, log: ExtentLog, extent: Extent, bodies: int) -> bool:
        """Whether the next batch of a log may leave its body in the extent `bodies`.

        It may not if this would begin a run and the log has `RUNS_APART_MAX` runs with bodies apart.
        """
        last = log.runs[-1] if log.runs else None
        if last is not None and (last.extent, last.bodies) == (extent.number, bodies):
            return True
        return sum(1 for run in log.runs if run.bodies) < RUNS_APART_MAX

    def restore(self, log: ExtentLog, runs: tuple[ExtentRun, ...], tail: int, position: int) -> None:
        """Set a log to the runs, tail and position that a start found on disk."""
        log.runs, log.tail, log.position = _shared(runs), tail, position
        for place, run in enumerate(runs):
            self._pin(run, log.size_in(place))

    def truncate(self, log: ExtentLog, length: int, position: int) -> tuple[list[ExtentRun], set[int]]:
        """Cut a log at `length`. Returns the runs that are gone, and the extents that have batches which were cut."""
        assert length <= log.tail, (length, log.tail)
        kept = [run for run in log.runs if run.start < length]
        gone = list(log.runs[len(kept) :])
        touched = {run.extent for run in gone}  # without extents of bodies: a read finds a body only by its batch
        for place in range(len(kept), len(log.runs)):
            self._release(log.runs[place], log.size_in(place))
        if kept:
            touched.add(kept[-1].extent)
            cut = log.end_of(len(kept) - 1)[1] - position
            self._use(kept[-1], -cut)
        log.runs, log.tail, log.position = tuple(kept), length, position
        log.cuts += 1
        return gone, touched

    def trim(self, log: ExtentLog, below: int, position: int) -> tuple[list[ExtentRun], ExtentRun | None]:
        """Drop the indexes below `below` from a log. A log that ends before `below` then begins there, empty.

        Args:
            log: The log.
            below: The first index that stays.
            position: The log's position at `below`.

        Returns:
            The runs that are gone, and the rest of the last one, if it had indexes at or above `below`.
        """
        if log.tail < below:
            assert not log.runs, (below, log.tail, "a log that ends below is cut first")
            log.tail, log.position = below, position
            return [], None
        count = sum(1 for place in range(len(log.runs)) if log.end_of(place)[0] <= below)
        gone, kept = list(log.runs[:count]), log.runs[count:]
        for place, run in enumerate(gone):
            self._release(run, log.size_in(place))
        left = None
        if kept and kept[0].start < below:
            cut = kept[0]
            left = cut._replace(start=below, position=min(max(position, cut.position), log.end_of(count)[1]))
            self._use(cut, cut.position - left.position)
            gone.append(cut)
            kept = (left, *kept[1:])
        log.runs = _shared(kept)
        log.cuts += bool(gone)
        return gone, left

    def move(
        self, log: ExtentLog, place: int, mid: int, mid_position: int, target: Extent, bodies: int = 0
    ) -> tuple[ExtentRun, ExtentRun | None]:
        """Note that [start, mid) of a run was copied to another extent.

        Args:
            log: The log.
            place: The run's place in `log.runs`.
            mid: The index after the last copied message.
            mid_position: The log's position at `mid`.
            target: The other extent.
            bodies: The extent with the copy's bodies that are stored apart; 0: none is.

        Returns:
            The new run, and the rest of the old one; None if nothing is left.
        """
        run = log.runs[place]
        end, _end_position = log.end_of(place)
        size_bytes = mid_position - run.position
        assert run.start < mid <= end, (run, mid, end)
        moved = run._replace(extent=target.number, bodies=bodies)
        left = run._replace(start=mid, position=mid_position) if mid < end else None
        log.runs = (*log.runs[:place], moved, *((left,) if left else ()), *log.runs[place + 1 :])
        log.moves += 1
        self._pin(moved, size_bytes)
        if left is None:
            self._release(run, size_bytes)
        else:
            self._use(run, -size_bytes)
        target.size_bytes += size_bytes
        return moved, left

    def _pin(self, run: ExtentRun, size_bytes: int) -> None:
        for number in run.extents:
            self.extents[number].runs += 1
        self._use(run, size_bytes)

    def _release(self, run: ExtentRun, size_bytes: int) -> None:
        for number in run.extents:
            self.extents[number].runs -= 1
            assert self.extents[number].runs >= 0, run
        self._use(run, -size_bytes)

    def _use(self, run: ExtentRun, size_bytes: int) -> None:
        """Count this many bytes more of a run as in use; fewer if the number is negative."""
        for number in run.extents:
            self.extents[number].live_bytes += size_bytes

    # ---- extents ----------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> Extent:
        """Have a spare extent take the next batches. Its `opened_at_ms` is above the last one's, whatever the clock."""
        opened_at_ms = now_ms if self.active is None else max(now_ms, self.active.opened_at_ms + 1)
        extent = self.active = Extent(self.spares.pop(0), opened_at_ms)
        self.extents[extent.number] = extent
        return extent

    def dead(self) -> list[int]:
        """The extents that have nothing in use and take no more batches."""
        return [e.number for e in self.extents.values() if e.runs == 0 and e is not self.active]

    def retire(self, number: int) -> None:
        """Note that a dead extent was emptied, and is spare again."""
        extent = self.extents.pop(number)
        assert extent.runs == 0, number
        assert extent is not self.active, number
        self.spares.append(number)
