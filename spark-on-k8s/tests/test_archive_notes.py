"""What an archive notes beside its files, and what an audit makes of files, notes and brokers' counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.audits.coverage import Cover, Finding
from seriatim_spark.audits.expected_counts import frozen, with_brokers, with_notes
from seriatim_spark.directories import archive_notes
from seriatim_spark.directories.archive_files import Reach
from seriatim_spark.directories.archive_notes import Note, note_ranges, notes_of, write_note
from seriatim_spark.offsets import TopicPlaces
from seriatim_spark.options import ReadOptions, parse
from seriatim_spark.reading.batch_plan import ranges_of
from seriatim_spark.reading.brokers import Range

from .fake_brokers import FakeBrokers, FakeClock, FakePartition, FakeTopic


def options(**given: str) -> ReadOptions:
    return parse({"bootstrap": "h:1", "topic": "orders"} | given)


def at(segment: int, index: int) -> int:
    return make_offset(segment, index)


@pytest.fixture(autouse=True)
def repeats(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """Ranges (partition, start) that hold repeats only; others hold rows."""
    known: set[tuple[int, int]] = set()

    def has_no_rows(one: Range, rows: int, _options: ReadOptions) -> bool:
        assert rows > 0
        return (one.partition, one.start) in known

    monkeypatch.setattr(archive_notes, "_has_no_rows", has_no_rows)
    return known


def test_a_note_is_taken_only_of_what_files_do_not_show(tmp_path: Path, repeats: set[tuple[int, int]]) -> None:
    partitions = {n: FakePartition([10, 20]) for n in range(5)}
    brokers = FakeBrokers(orders=FakeTopic("ab", partitions))
    repeats |= {(2, at(2, 15)), (3, at(2, 0)), (4, at(2, 0))}
    begun = {"orders": TopicPlaces("ab", dict.fromkeys(range(4), at(2, 0)) | {1: at(1, 0)})}
    ended = {"orders": TopicPlaces("ab", dict.fromkeys(range(5), at(2, 20)))}
    reached = [
        Reach("orders", "ab", 0, at(2, 0), at(2, 20), at(2, 20)),
        Reach("orders", "ab", 1, at(1, 0), at(2, 20), at(2, 20)),
        Reach("orders", "ab", 2, at(2, 0), at(2, 20), at(2, 15)),
    ]
    directory = str(tmp_path)
    for _ in range(2):  # a micro-batch may run again
        note_ranges(directory, begun, ended, reached, options(), brokers)
    assert notes_of(directory) == [
        Note("orders", "ab", 1, at(1, 0), at(2, 20), 30, at(2, 20), 0),
        Note("orders", "ab", 2, at(2, 0), at(2, 20), 20, at(2, 15), 5),
        Note("orders", "ab", 3, at(2, 0), at(2, 20), 20, at(2, 0), 20),
    ]
    write_note(directory, Note("orders", "ab", 1, at(1, 0), at(2, 20), 7, at(2, 20), 0))
    assert notes_of(directory)[0].messages == 30, "the first one stays"


def cover(start: int, end: int, rows: int, reached: int | None = None, partition: int = 0) -> Cover:
    return Cover("orders", "ab", partition, start, end, rows, reached=end if reached is None else reached)


def hole(offset: int) -> Finding:
    return Finding("hole", "orders", "ab", 0, offset, 1, "the last ones are missing")


def note(start: int, end: int, messages: int, reached: int | None = None, passed: int = 0) -> Note:
    return Note("orders", "ab", 0, start, end, messages, end if reached is None else reached, passed)


CROSSING = note(at(1, 0), at(3, 5), 25)


@pytest.mark.parametrize(
    ("covers", "findings", "known", "kinds"),
    [
        ([cover(at(1, 0), at(3, 5), 25)], [], [CROSSING], []),
        ([cover(at(1, 0), at(2, 0), 10), cover(at(2, 0), at(3, 5), 15)], [], [CROSSING], []),
        ([cover(at(1, 0), at(3, 5), 15)], [], [CROSSING], ["count"]),
        ([cover(at(1, 0), at(3, 5), 25)], [], [], ["count"]),  # who knows
        ([cover(at(1, 0), at(1, 10), 8, at(1, 8))], [hole(at(1, 8))], [], ["hole"]),
        ([cover(at(1, 0), at(1, 10), 8, at(1, 8))], [hole(at(1, 8))], [note(at(1, 0), at(1, 10), 10, at(1, 8), 2)], []),
        (  # one row more is missing than there are repeats
            [cover(at(1, 0), at(1, 10), 7, at(1, 7))],
            [hole(at(1, 7))],
            [note(at(1, 0), at(1, 10), 10, at(1, 8), 2)],
            ["hole", "count"],
        ),
        (  # a micro-batch of repeats only has no file
            [cover(at(1, 0), at(1, 10), 10), cover(at(1, 13), at(1, 20), 7)],
            [],
            [note(at(1, 10), at(1, 13), 3, at(1, 10), 3)],
            [],
        ),
        ([cover(at(1, 0), at(1, 10), 10), cover(at(1, 13), at(1, 20), 7)], [], [], ["uncovered"]),
        (  # messages were gone when the archive was written
            [cover(at(1, 0), at(1, 10), 10), cover(at(1, 13), at(1, 20), 7)],
            [],
            [note(at(1, 10), at(1, 13), 0, at(1, 10), 0)],
            ["hole"],
        ),
        ([cover(at(3, 5), at(3, 9), 4)], [], [CROSSING], []),  # older files were removed
    ],
)
def test_files_are_compared_with_notes(
    covers: list[Cover], findings: list[Finding], known: list[Note], kinds: list[str]
) -> None:
    (report,) = with_notes(covers, findings, known)
    assert sorted(one.kind for one in report.findings) == sorted(kinds), report.findings


def audit(
    brokers: FakeBrokers, covers: list[Cover], findings: list[Finding] | None = None, **given: str
) -> dict[int, list[str]]:
    asked = options(**given)
    clock = FakeClock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    planned = ranges_of(asked, brokers, clock, sleep)
    report = with_brokers(covers, findings or [], planned, asked, brokers)
    return {one.where.partition: sorted({found.kind for found in one.findings}) for one in report}


def cluster(**more: object) -> FakeBrokers:
    partition = FakePartition([10, 20, 5])
    for name, value in more.items():
        setattr(partition, name, value)
    return FakeBrokers(orders=FakeTopic("ab", {0: partition, 1: FakePartition([10])}))


WHOLE = [cover(at(1, 0), at(3, 5), 35), cover(at(1, 0), at(1, 10), 10, partition=1)]


def test_rows_are_compared_with_what_brokers_have(repeats: set[tuple[int, int]]) -> None:
    assert audit(cluster(), WHOLE) == {0: [], 1: []}
    assert audit(cluster(), [cover(at(1, 0), at(3, 5), 15), WHOLE[1]]) == {0: ["count"], 1: []}, "a segment"
    assert audit(cluster(), WHOLE[:1]) == {0: [], 1: ["count"]}, "a partition that gave no rows"
    tail = [cover(at(1, 0), at(3, 5), 33, at(3, 3)), WHOLE[1]]
    assert audit(cluster(), tail, [hole(at(3, 3))]) == {0: ["count", "hole"], 1: []}
    repeats |= {(0, at(3, 3)), (1, at(1, 0))}
    assert audit(cluster(), tail, [hole(at(3, 3))]) == {0: [], 1: []}, "repeats at the end of a range"
    assert audit(cluster(), WHOLE[:1]) == {0: [], 1: []}, "a range of repeats only"


def test_what_nobody_can_read_is_a_finding() -> None:
    start = '{"orders": {"0": "1:3"}}'
    dropped = [cover(at(2, 0), at(3, 5), 25), WHOLE[1]]
    assert audit(cluster(dropped=10), dropped, startingOffsets=start) == {0: ["lost"], 1: []}
    lost = [cover(at(1, 0), at(3, 5), 15), WHOLE[1]]
    assert audit(cluster(lost=frozenset({2})), lost) == {0: ["lost"], 1: []}
    unsettled = [cover(at(1, 0), at(2, 0), 10), WHOLE[1]]
    assert audit(cluster(unsettled=2), unsettled) == {0: ["unsettled"], 1: []}
    assert audit(cluster(unsettled=1), [WHOLE[1]]) == {0: ["unsettled"], 1: []}


def test_an_audit_reads_what_was_planned() -> None:
    brokers = cluster()
    given = {"bootstrap": "h:1", "topic": "orders", "startingTimestamp": "0", "FAILONDATALOSS": "true"}
    planned = ranges_of(parse(given), brokers)
    chosen = frozen(given, planned)
    brokers.topics["orders"].partitions[0].segments[-1] += 100
    again = ranges_of(parse(chosen), brokers)
    assert again.ranges == planned.ranges
    assert not parse(chosen).fail_on_data_loss
