"""Compares the number of rows that an audit has read with the number that there should be.

For a topic brokers say this number, for an archive its notes. Nothing here needs Spark.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence

from seriatim_api.ids import INDEX_BITS, format_offset

from seriatim_spark.audits.coverage import Cover, Finding, PartitionReport, Where, excused, put_together
from seriatim_spark.directories.archive_notes import Note, tails_of
from seriatim_spark.offsets import TopicPlaces, to_json
from seriatim_spark.options import ReadOptions
from seriatim_spark.reading.batch_plan import Planned
from seriatim_spark.reading.brokers import Brokers, Range

Report = list[PartitionReport]


def frozen(source: Mapping[str, str], planned: Planned) -> dict[str, str]:
    """Return options that read the planned ranges, each time the same.

    Messages that are gone cause no error, but findings.
    """
    chosen = ("startingoffsets", "startingtimestamp", "endingoffsets", "endingtimestamp", "failondataloss")
    kept = {name: value for name, value in source.items() if name.lower() not in chosen}
    incarnations = {one.topic: one.incarnation for one in planned.ranges.values()}

    def places(side: str) -> str:
        found = {topic: TopicPlaces(incarnation) for topic, incarnation in incarnations.items()}
        for (topic, number), one in planned.ranges.items():
            found[topic].places[number] = getattr(one, side)
        return json.dumps(to_json(found))

    return {**kept, "startingOffsets": places("start"), "endingOffsets": places("end"), "failOnDataLoss": "false"}


def with_brokers(
    covers: Sequence[Cover], findings: Sequence[Finding], planned: Planned, options: ReadOptions, brokers: Brokers
) -> Report:
    """Compare the rows of a topic that were read with the messages that brokers have."""
    ranges = {
        Where(one.topic, one.incarnation, one.partition): one for one in planned.ranges.values() if one.start < one.end
    }
    read = {cover.where for cover in covers}
    without_rows = [
        Cover(*where, one.start, one.end, reached=one.start) for where, one in ranges.items() if where not in read
    ]
    covers = [*covers, *without_rows]
    ends = [cover for cover in covers if cover.reached < cover.end]
    behind = [Range(one.topic, one.incarnation, one.partition, one.reached, one.end) for one in ends]
    found = list(findings)
    for cover, passed in zip(ends, tails_of(behind, options, brokers), strict=True):
        if passed is not None:
            found = excused(cover, passed, found)
    report = {one.where: one for one in put_together(covers, [*found, *_not_planned(planned)])}
    for where, one in ranges.items():
        partition = report.setdefault(where, PartitionReport(where))
        partition.start, partition.end = one.start, one.end
    for (where, one), plan in zip(
        ranges.items(), brokers.plans(list(ranges.values()), 0) if ranges else (), strict=True
    ):
        _compare_count(report[where], one, sum(piece.rows for piece in plan.pieces))
        report[where].findings += [Finding("lost", *where, one.start, 1, str(loss)) for loss in plan.losses]
    return [report[where] for where in sorted(report)]


def _not_planned(planned: Planned) -> Iterator[Finding]:
    """What the plan left out: messages that are gone, and messages that cannot be read now."""
    for key, what in planned.gone.items():
        one = planned.ranges[key]
        yield Finding("lost", one.topic, one.incarnation, one.partition, one.start, 1, f"gone: {what}")
    for key in planned.unsettled:
        one = planned.ranges[key]
        text = (
            f"no member of the segment after {format_offset(one.end)} answers: its messages and those after it "
            "cannot be checked now"
        )
        yield Finding("unsettled", one.topic, one.incarnation, one.partition, one.end, 1, text)


def _compare_count(partition: PartitionReport, one: Range, told: int) -> None:
    """Compare how many messages of a partition were read with how many brokers have."""
    count = partition.rows + partition.passed
    if told == count:  # then ranges without a cover have no messages
        partition.findings = [found for found in partition.findings if found.kind != "uncovered"]
    else:
        place = f"from {format_offset(one.start)} to {format_offset(one.end)}"
        text = f"brokers have {told} messages {place}, and {count} were read"
        partition.findings.append(Finding("count", *partition.where, one.start, abs(told - count), text))


def with_notes(covers: Sequence[Cover], findings: Sequence[Finding], notes: Sequence[Note]) -> Report:
    """Compare the content of an archive's files with the archive's notes."""
    found = list(findings)
    first: dict[Where, int] = {}
    for cover in covers:
        first[cover.where] = min(first.get(cover.where, cover.start), cover.start)
    # Ranges before the first file were removed from the archive, or never were in it.
    notes = [
        note
        for note in notes
        if (where := Where(note.topic, note.incarnation, note.partition)) in first and note.start >= first[where]
    ]
    by_end = {(cover.where, cover.end): cover for cover in covers}
    more: list[Cover] = []
    for note in notes:
        where = Where(note.topic, note.incarnation, note.partition)
        last = by_end.get((where, note.end))
        if last is not None and last.start >= note.start:
            if last.reached == note.reached and note.excuses:
                found = excused(last, note.passed, found)
        elif note.reached < note.end:  # the rest of the range, after its files, has no rows
            more.append(Cover(*where, note.reached, note.end, passed=note.passed, reached=note.end, source="a note"))
            if not note.excuses:
                text = "messages are missing: they were gone when the archive was written"
                found.append(Finding("hole", *where, note.reached, 1, text))
    covers = [*covers, *more]
    found += _uncounted(covers, notes)
    return put_together(covers, found)


def _uncounted(covers: Sequence[Cover], notes: Sequence[Note]) -> Iterator[Finding]:
    """Find ranges whose files hold fewer messages than brokers had.

    Files alone cannot show this at the end of a segment.
    """
    by_where: dict[Where, list[Note]] = {}
    for note in notes:
        by_where.setdefault(Where(note.topic, note.incarnation, note.partition), []).append(note)
    begins: dict[Where, list[int]] = {}
    for where, known in by_where.items():
        known.sort(key=lambda note: note.start)
        begins[where] = [note.start for note in known]
    held: dict[tuple[Where, int], int] = {}
    for cover in covers:
        at = bisect.bisect_right(begins.get(cover.where, []), cover.start) - 1
        around = by_where[cover.where][at] if at >= 0 else None
        if around is not None and cover.end <= around.end:
            key = (cover.where, around.start)
            held[key] = held.get(key, 0) + cover.rows + cover.passed
        elif cover.start >> INDEX_BITS != cover.end >> INDEX_BITS:
            text = (
                f"{cover.source} goes over the end of a segment, and no note of the archive says how many messages "
                f"lie between {format_offset(cover.start)} and {format_offset(cover.end)}"
            )
            yield Finding("count", *cover.where, cover.start, 1, text)
    for where, known in by_where.items():
        for note in known:
            count = held.get((where, note.start), 0)
            if count < note.messages:
                place = f"from {format_offset(note.start)} to {format_offset(note.end)}"
                text = f"brokers had {note.messages} messages {place}, and files hold {count}"
                yield Finding("count", *where, note.start, note.messages - count, text)
