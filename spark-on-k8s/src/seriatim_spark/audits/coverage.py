"""Checks that rows are complete, in order and without repeats: the part of tasks, and the part of the driver.

A *cover* is a range of one partition that was read in one go: by a task, or into one file of an archive. A task follows
the rows of each cover and leaves a summary. The driver puts the covers of a partition one after another. All checks
work on whole columns, and never on single rows. Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from seriatim_api.ids import INDEX_BITS, format_offset

COLUMNS: Final = ("offset", "append_time", "producer", "epoch", "sequence", "passed")
"""The columns that the checks need."""

PRODUCERS_MAX: Final = 100_000
"""The most producers of a cover, and of a partition, whose sequences are followed."""

FINDINGS_MAX: Final = 100
"""The most findings of one kind that a cover keeps. All findings are counted."""

_INDEX_MASK: Final = (1 << INDEX_BITS) - 1


class Where(NamedTuple):
    """A partition of a topic."""

    topic: str
    incarnation: str
    partition: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that the audit has found.

    Attributes:
        kind: A word: hole, order, time, repeat, epoch, range, twice, uncovered, count, lost, unsettled, checksum,
            footer, key.
        offset: The first place of the problem.
        count: The number of messages or places that it concerns.
        text: The human-readable text.
    """

    kind: str
    topic: str
    incarnation: str
    partition: int
    offset: int
    count: int
    text: str


@dataclass(slots=True)
class Cover:
    """The summary of a range that was read in one go. Times are in microseconds since 1970.

    Attributes:
        start, end: The range of offsets [start, end) of the rows.
        rows: The number of rows.
        passed: The number of messages that readers leave out, because they repeat earlier ones.
        size_bytes: The bytes of keys and values, if they were read.
        producers: For each id in hexadecimal: epoch and sequence of its first row, then of its last one.
        untold: Whether there were more producers than the audit follows.
        source: The path of the file; empty if a topic was read.
        reached: The offset after the last row.
    """

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    rows: int = 0
    passed: int = 0
    size_bytes: int = 0
    first_time: int | None = None
    last_time: int | None = None
    producers: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    untold: bool = False
    source: str = ""
    reached: int = 0

    @property
    def where(self) -> Where:
        """The partition."""
        return Where(self.topic, self.incarnation, self.partition)

    def as_dict(self) -> dict[str, Any]:
        """Return the cover as plain data for JSON."""
        return asdict(self)


def cover_from(value: dict[str, Any]) -> Cover:
    """Make a cover from the data of `Cover.as_dict`, after JSON."""
    producers = {name: (at[0], at[1], at[2], at[3]) for name, at in value["producers"].items()}
    return Cover(**{**value, "producers": producers})


class CoverCheck:
    """Follows the rows of one cover.

    Args:
        cover: The cover that is filled. It has a place, and no rows yet.
    """

    def __init__(self, cover: Cover) -> None:
        self.cover = cover
        self.findings: list[Finding] = []
        self._next = cover.start
        self._found: dict[str, int] = {}  # places of each kind

    def take(self, batch: pa.RecordBatch) -> None:
        """Check the next rows. The batch has the columns `COLUMNS`."""
        if batch.num_rows == 0:
            return
        offsets = _numbers(batch, "offset")
        passed = _numbers(batch, "passed")
        times = _numbers(batch, "append_time")
        self._check_offsets(offsets, passed)
        self._check_times(times, offsets)
        self._check_sequences(batch, offsets)
        cover = self.cover
        cover.rows += len(offsets)
        cover.passed += int(passed.sum())
        cover.first_time = int(times[0]) if cover.first_time is None else cover.first_time
        cover.last_time = int(times[-1])
        self._next = int(offsets[-1]) + 1

    def finish(self) -> Cover:
        """Check the end of the range, after the last row. Return the cover."""
        cover = self.cover
        cover.reached = self._next
        same = self._next >> INDEX_BITS == cover.end >> INDEX_BITS
        if self._next > cover.end:
            self._find("range", cover.end, self._next - cover.end, "rows lie after the end of their range")
        elif (same and self._next < cover.end) or (not same and cover.end & _INDEX_MASK):
            missing = cover.end - self._next if same else cover.end & _INDEX_MASK
            self._find(
                "hole",
                self._next,
                missing,
                "the last messages of the range are missing, or are repeats of earlier ones",
            )
        self._say_how_many_more()
        return cover

    def _find(self, kind: str, offset: int, count: int, text: str) -> None:
        found = self._found.get(kind, 0)
        self._found[kind] = found + 1
        if found < FINDINGS_MAX:
            shown = f"{text}, at {format_offset(max(offset, 0))}"
            self.findings.append(Finding(kind, *self.cover.where, offset, count, shown))

    def _say_how_many_more(self) -> None:
        for kind, found in self._found.items():
            if found > FINDINGS_MAX:
                more = found - FINDINGS_MAX
                self.findings.append(
                    Finding(kind, *self.cover.where, self.cover.end, more, f"{more} more of this kind")
                )

    def _check_offsets(self, offsets: Any, passed: Any) -> None:
        expected = np.concatenate([[self._next], offsets[:-1] + 1])
        same = offsets >> INDEX_BITS == expected >> INDEX_BITS
        # If this is the first row of a later segment, the messages that were passed over may be in the segment before.
        ahead = np.where(same, offsets - expected, offsets & _INDEX_MASK) - passed
        back = (offsets < expected) | (same & (ahead < 0))
        holes = np.flatnonzero((ahead > 0) & ~back)
        for at in holes.tolist():
            self._find("hole", int(offsets[at] - ahead[at]), int(ahead[at]), "messages are missing")
        for at in np.flatnonzero(back).tolist():
            last = format_offset(max(int(expected[at]) - 1, 0))
            self._find("order", int(offsets[at]), 1, f"a row stands after {last}")

    def _check_times(self, times: Any, offsets: Any) -> None:
        before = self.cover.last_time
        first = times[:1] if before is None else np.array([before])
        back = np.flatnonzero(np.diff(np.concatenate([first, times])) < 0)
        if len(back):
            self._find("time", int(offsets[back[0]]), len(back), "the append time goes back")

    def _check_sequences(self, batch: pa.RecordBatch, offsets: Any) -> None:
        """Check the sequences of producers.

        Rows of one producer whose sequences follow one another are checked as one run.
        """
        producers = _producers(batch)
        epochs = _numbers(batch, "epoch")
        sequences = _numbers(batch, "sequence")
        follows = (sequences[1:] == sequences[:-1] + 1) & (epochs[1:] == epochs[:-1])
        follows &= (producers[1:] == producers[:-1]).all(axis=1)
        begins = np.concatenate([[0], np.flatnonzero(~follows) + 1])
        ends = np.concatenate([begins[1:], [len(sequences)]]) - 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self._follow(
                producers[begin].tobytes().hex(), int(epochs[begin]), int(sequences[begin]), int(sequences[end]),
                int(offsets[begin]),
            )  # fmt: skip

    def _follow(self, producer: str, epoch: int, first: int, last: int, offset: int) -> None:
        known = self.cover.producers.get(producer)
        if known is None and len(self.cover.producers) >= PRODUCERS_MAX:
            self.cover.untold = True
            return
        if known is None:
            self.cover.producers[producer] = (epoch, first, epoch, last)
            return
        for kind, count, text in _against(known[2], known[3], epoch, first, last):
            self._find(kind, offset, count, f"producer {producer}: {text}")
        if (epoch, last) > (known[2], known[3]):
            self.cover.producers[producer] = (known[0], known[1], epoch, last)


def _against(old_epoch: int, old_last: int, epoch: int, first: int, last: int) -> Iterator[tuple[str, int, str]]:
    """Return the problems of sequences [first, last] of an epoch that come after `old_last` of `old_epoch`."""
    if epoch < old_epoch:
        yield "epoch", 1, f"epoch {epoch} stands after epoch {old_epoch}"
    elif epoch == old_epoch and first <= old_last:
        count = min(last, old_last) - first + 1
        yield "repeat", count, f"sequences from {first} on stand after {old_last}: sent again, or out of order"


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _producers(batch: pa.RecordBatch) -> Any:
    """Return the ids as an array of rows of 16 bytes."""
    column = batch.column("producer")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    begins = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2], np.uint8)[begins[0] : begins[-1]]
    assert len(data) == 16 * len(column), "a producer's id has 16 bytes"
    return data.reshape(-1, 16)


def excused(cover: Cover, passed: int, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without the hole at the end of a cover, because only `passed` repeats are there."""
    rest = [
        one
        for one in findings
        if (one.kind, one.offset, one.topic, one.incarnation, one.partition) != ("hole", cover.reached, *cover.where)
    ]
    cover.passed += passed
    cover.reached = cover.end
    return rest


# ---- what covers say together ----


@dataclass(slots=True)
class PartitionReport:
    """The checked covers of a partition together. `untold`: there were more producers than the audit follows."""

    where: Where
    covers: int = 0
    rows: int = 0
    passed: int = 0
    size_bytes: int = 0
    start: int = 0
    end: int = 0
    untold: bool = False
    findings: list[Finding] = field(default_factory=list)


def put_together(covers: Iterable[Cover], findings: Sequence[Finding]) -> list[PartitionReport]:
    """Make one report for each partition, sorted. Its findings are in the order of their offsets."""
    by_where: dict[Where, list[Cover]] = {}
    for cover in covers:
        by_where.setdefault(cover.where, []).append(cover)
    reports: list[PartitionReport] = []
    for where in sorted({*by_where, *(Where(one.topic, one.incarnation, one.partition) for one in findings)}):
        report = PartitionReport(where)
        _chain(sorted(by_where.get(where, ()), key=lambda cover: (cover.start, cover.end)), report)
        report.findings += [one for one in findings if (one.topic, one.incarnation, one.partition) == where]
        report.findings.sort(key=lambda one: (one.offset, one.kind))
        reports.append(report)
    return reports


def _chain(covers: Sequence[Cover], report: PartitionReport) -> None:
    """Check that the covers of a partition follow one another."""
    last_time: int | None = None
    producers: dict[str, tuple[int, int]] = {}
    for number, cover in enumerate(covers):
        if number == 0:
            report.start = report.end = cover.start
        report.covers += 1
        report.rows += cover.rows
        report.passed += cover.passed
        report.size_bytes += cover.size_bytes
        report.untold |= cover.untold
        between = f"between {format_offset(report.end)} and {format_offset(cover.start)}"
        if cover.start > report.end:
            same = cover.start >> INDEX_BITS == report.end >> INDEX_BITS
            count = cover.start - report.end if same else 0
            report.findings.append(_of(cover, "uncovered", report.end, count, f"nothing covers what lies {between}"))
        elif cover.start < report.end:
            text = f"{format_offset(cover.start)} to {format_offset(min(cover.end, report.end))} is covered twice"
            report.findings.append(_of(cover, "twice", cover.start, cover.rows, text))
            report.end = max(report.end, cover.end)
            continue  # its rows repeat earlier ones, so times and sequences are not compared
        if last_time is not None and cover.first_time is not None and cover.first_time < last_time:
            report.findings.append(_of(cover, "time", cover.start, 1, f"the append time goes back {between}"))
        last_time = cover.last_time if cover.last_time is not None else last_time
        _chain_producers(cover, producers, report)
        report.end = cover.end


def _chain_producers(cover: Cover, known: dict[str, tuple[int, int]], report: PartitionReport) -> None:
    for producer, (epoch, first, last_epoch, last) in cover.producers.items():
        if producer in known:
            upto = last if last_epoch == epoch else first
            for kind, count, text in _against(*known[producer], epoch, first, upto):
                report.findings.append(_of(cover, kind, cover.start, count, f"producer {producer}: {text}"))
            known[producer] = max(known[producer], (last_epoch, last))
        elif len(known) < PRODUCERS_MAX:
            known[producer] = (last_epoch, last)
        else:
            report.untold = True


def _of(cover: Cover, kind: str, offset: int, count: int, text: str) -> Finding:
    return Finding(kind, cover.topic, cover.incarnation, cover.partition, offset, count, text)
