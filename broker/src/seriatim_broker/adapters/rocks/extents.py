"""Where batches are: the extents, and for each segment the runs of its batches in them.

A segment's log is a row of runs; a run says "from this index on, in that extent" and ends where the next begins.
Positions are bytes of the segment's log, so that the difference of two is what a run takes: extents know exactly how
much of them is in use without a counter on disk.

A run may keep its bodies in another extent than the rest of its batches, where another log put them: they are *adopted*
(see `bodies`). Then that extent counts them as its own, and is not emptied while the run is there.

Plain bookkeeping in memory; the index on disk is written by the storage along with the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

RUNS_APART_MAX: Final = 64
"""A log with so many runs whose bodies stand apart adopts nothing that would begin another one. Each costs some 100
bytes of memory, and a log in which adopted batches and others take turns would have one for each turn."""

APART_BYTES: Final = 250
"""About what a batch takes in its extent if its body is in another one."""


class Run(NamedTuple):
    """Batches of a segment from index `start` on, in one extent; `position` bytes of the segment come before.

    `bodies`: the extent with those of their bodies that stand apart, which may be the same one; 0 if none does.
    """

    start: int
    position: int
    extent: int
    bodies: int = 0

    @property
    def extents(self) -> tuple[int, ...]:
        """Those that cannot be emptied while it is there. Both count all of its bytes as in use: how many of them are
        bodies is not known after a start, and what looks unused would be copied."""
        return (self.extent,) if self.bodies in (0, self.extent) else (self.extent, self.bodies)


@lru_cache(256)
def _shared(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """One object for all equal ones: most segments have one run that begins at 0, and an extent holds thousands."""
    return runs


class ExtentLog:
    """A segment's batches on this disk: where the next one goes, and the runs.

    Readers compare: `cuts` grows when something is taken away, which outdates what was read meanwhile; `moves` when
    something goes to another extent. `moved_ticket` is of the last write that moves batches: until that is written they
    are at neither place for a reader.
    """

    __slots__ = ("cuts", "moved_ticket", "moves", "position", "runs", "tail")

    def __init__(self) -> None:
        self.tail = 0
        self.position = 0
        self.runs: tuple[Run, ...] = ()
        self.cuts = 0
        self.moves = 0
        self.moved_ticket = 0

    def run_at(self, index: int) -> int:
        """The place in `runs` of the run that would hold `index`; 0 if it lies before all."""
        return max(0, bisect_right(self.runs, index, key=lambda run: run.start) - 1)

    @property
    def first_index(self) -> int:
        """What lies below is not here any more, and may never have been."""
        return self.runs[0].start if self.runs else self.tail

    def end_of(self, place: int) -> tuple[int, int]:
        """Index and position at which a run ends."""
        if place + 1 < len(self.runs):
            following = self.runs[place + 1]
            return following.start, following.position
        return self.tail, self.position

    def size_in(self, place: int) -> int:
        """Bytes of a run."""
        return self.end_of(place)[1] - self.runs[place].position


class Extent:
    """One extent: what it took, and what of that is in use."""

    __slots__ = ("live_bytes", "number", "opened_at_ms", "runs", "size_bytes")

    def __init__(self, number: int, opened_at_ms: int) -> None:
        self.number = number
        self.opened_at_ms = opened_at_ms
        self.size_bytes = 0
        self.live_bytes = 0
        self.runs = 0

    def is_sparse(self, live_percent_min: int) -> bool:
        """Whether so little of it is in use that copying that is worth the space."""
        return self.live_bytes * 100 < self.size_bytes * live_percent_min


class ExtentTable:
    """All extents and all segments' logs.

    `active` takes the next batches. It is the extent begun last, until another is begun: so what is left in older ones
    of a segment that was dropped is never met by the same segment, should it be copied here again.
    """

    def __init__(self) -> None:
        self.extents: dict[int, Extent] = {}
        self.active: Extent | None = None
        self.spares: list[int] = []
        self._partitions: dict[int, dict[int, ExtentLog]] = {}

    # ---- segments ---------------------------------------------------------------------------------------

    def log(self, partition: int, segment: int) -> ExtentLog | None:
        """A segment's log, or None if nothing of it was ever put."""
        return self._partitions.get(partition, {}).get(segment)

    def ensure_log(self, partition: int, segment: int) -> ExtentLog:
        """A segment's log, made empty if need be."""
        logs = self._partitions.setdefault(partition, {})
        log = logs.get(segment)
        if log is None:
            log = logs[segment] = ExtentLog()
        return log

    def segments_of(self, partition: int) -> list[int]:
        """Numbers of the segments of a partition with a log."""
        return sorted(self._partitions.get(partition, {}))

    def forget(self, partition: int, segment: int) -> ExtentLog | None:
        """Take a segment's log away, out of its extents too."""
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
        """Partition, segment, log and place of each run that needs an extent: looks at everything."""
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
    ) -> Run | None:
        """Take up a batch of [start, end_index) in an extent; returns the run that it begins, if it does.

        `bodies`: the extent that has its body apart, or 0; `is_adopted`: it was there before. Then what `may_adopt`
        says must be true.
        """
        begun = None
        last = log.runs[-1] if log.runs else None
        if last is None or (last.extent, last.bodies) != (extent.number, bodies):
            begun = last = Run(start, log.position, extent.number, bodies)
            log.runs = _shared((*log.runs, begun))
            self._pin(begun, 0)
        log.tail = end_index
        log.position += size_bytes
        self._use(last, size_bytes)
        extent.size_bytes += APART_BYTES if is_adopted else size_bytes
        return begun

    def may_adopt(self, log: ExtentLog, extent: Extent, bodies: int) -> bool:
        """Whether the next batch of a log may leave its body in the extent `bodies`: a log has a limited number of runs
        for that."""
        last = log.runs[-1] if log.runs else None
        if last is not None and (last.extent, last.bodies) == (extent.number, bodies):
            return True
        return sum(1 for run in log.runs if run.bodies) < RUNS_APART_MAX

    def restore(self, log: ExtentLog, runs: tuple[Run, ...], tail: int, position: int) -> None:
        """Take up a log as found on disk."""
        log.runs, log.tail, log.position = _shared(runs), tail, position
        for place, run in enumerate(runs):
            self._pin(run, log.size_in(place))

    def truncate(self, log: ExtentLog, length: int, position: int) -> tuple[list[Run], set[int]]:
        """Cut a log; returns the runs that go, and the extents that hold something of what was cut."""
        assert length <= log.tail, (length, log.tail)
        kept = [run for run in log.runs if run.start < length]
        gone = list(log.runs[len(kept) :])
        touched = {run.extent for run in gone}  # bodies that stand apart are never looked for without their batch
        for place in range(len(kept), len(log.runs)):
            self._release(log.runs[place], log.size_in(place))
        if kept:
            touched.add(kept[-1].extent)
            cut = log.end_of(len(kept) - 1)[1] - position
            self._use(kept[-1], -cut)
        log.runs, log.tail, log.position = tuple(kept), length, position
        log.cuts += 1
        return gone, touched

    def trim(self, log: ExtentLog, below: int, position: int) -> tuple[list[Run], Run | None]:
        """Let go of what lies below, at whose end the log has that position. A log that ends below begins there.

        Returns the runs that go, and what is left of the last of them, if it went on above.
        """
        if log.tail < below:
            assert not log.runs, (below, log.tail, "what ends below is cut first")
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
    ) -> tuple[Run, Run | None]:
        """Note that [start, mid) of a run is copied to another extent; returns the new run, and what is left.

        `bodies`: the extent with the bodies of the copy that stand apart, or 0.
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

    def _pin(self, run: Run, size_bytes: int) -> None:
        for number in run.extents:
            self.extents[number].runs += 1
        self._use(run, size_bytes)

    def _release(self, run: Run, size_bytes: int) -> None:
        for number in run.extents:
            self.extents[number].runs -= 1
            assert self.extents[number].runs >= 0, run
        self._use(run, -size_bytes)

    def _use(self, run: Run, size_bytes: int) -> None:
        """So many bytes more of a run are in use, or fewer."""
        for number in run.extents:
            self.extents[number].live_bytes += size_bytes

    # ---- extents ----------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> Extent:
        """Have a spare extent take the next batches; so `opened_at_ms` grows, whatever the clock does."""
        opened_at_ms = now_ms if self.active is None else max(now_ms, self.active.opened_at_ms + 1)
        extent = self.active = Extent(self.spares.pop(0), opened_at_ms)
        self.extents[extent.number] = extent
        return extent

    def dead(self) -> list[int]:
        """Extents that hold nothing in use, and take no more."""
        return [e.number for e in self.extents.values() if e.runs == 0 and e is not self.active]

    def retire(self, number: int) -> None:
        """A dead extent was emptied, and is spare."""
        extent = self.extents.pop(number)
        assert extent.runs == 0, number
        assert extent is not self.active, number
        self.spares.append(number)
