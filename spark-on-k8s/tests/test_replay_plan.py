"""The plan of a replay: which rows go into which publication, and what stops it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.directories.archive_notes import Note, write_note
from seriatim_spark.directories.replay_plan import ArchivedFile, Replay, ReplayError, begin, checked
from seriatim_spark.pipelines.replay import _files, read_pieces

from .test_archive_files import range_of, write


def file(partition: int, start: int, end: int, rows: int | None = None) -> ArchivedFile:
    return ArchivedFile(
        f"{partition}/{start}", "orders", "ab", partition, make_offset(1, start), make_offset(1, end),
        end - start if rows is None else rows,
    )  # fmt: skip


FILES = checked([file(1, 0, 10), file(0, 100, 125), file(0, 0, 100), file(1, 10, 10)])
REPLAY = Replay("again", "/archive", 40, FILES)


def test_every_row_is_in_one_publication_and_partitions_keep_their_order() -> None:
    assert [found.path for found in FILES] == ["0/0", "0/100", "1/0", "1/10"]
    assert (REPLAY.rows, REPLAY.publications) == (135, 4)
    sent: dict[str, list[int]] = {}
    for number in range(REPLAY.publications):
        pieces = REPLAY.pieces(number)
        assert sum(piece.last - piece.first for piece in pieces) <= 40
        assert {piece.path[0] for piece in pieces} == {"0", "1"}, "both partitions continue together"
        for piece in pieces:
            sent.setdefault(piece.path, []).extend(range(piece.first, piece.last))
    assert sent == {"0/0": list(range(100)), "0/100": list(range(25)), "1/0": list(range(10))}


def test_a_publication_costs_one_look_at_the_files() -> None:
    """However many partitions there are: archives have a hundred thousand files."""
    looks = 0

    class Counted(tuple[ArchivedFile, ...]):
        def __iter__(self) -> Iterator[ArchivedFile]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    files = checked([file(partition, 0, 10) for partition in range(50)])
    replay = replace(REPLAY, files=Counted(files))
    assert len(replay.pieces(3)) == 50
    assert looks <= 3


def test_repeats_that_have_no_file_are_no_gap(tmp_path: Path) -> None:
    write(tmp_path, [*range_of(0, 0, 10), *range_of(0, 13, 10)])
    with pytest.raises(ReplayError, match="between 1:10 and 1:13 is missing"):
        checked(_files(str(tmp_path)))
    for start, end in ((0, 10), (10, 13)):
        reached = 8 if start == 0 else 10
        write_note(
            str(tmp_path),
            Note(
                "orders", "id-1", 0, make_offset(1, start), make_offset(1, end), end - start, make_offset(1, reached),
                end - reached,
            ),
        )  # fmt: skip
    replay = replace(REPLAY, files=checked(_files(str(tmp_path))))
    assert (replay.rows, len(replay.files)) == (20, 3)
    assert sum(piece.last - piece.first for piece in replay.pieces(0)) == 20
    first = next(path for path in tmp_path.rglob("*.parquet") if "000000000000--" in path.name)
    first.unlink()
    assert len(checked(_files(str(tmp_path)))) == 1, "older files were removed"


def test_nothing_is_replayed_of_nothing() -> None:
    assert Replay("again", "/archive", 40, checked([])).publications == 0


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([file(0, 0, 10), file(0, 12, 20)], "between 1:10 and 1:12 is missing"),
        ([file(0, 0, 10), file(0, 8, 20)], "is there twice"),
        ([file(0, 0, 10), replace(file(1, 0, 10), incarnation="cd")], "of one topic"),
    ],
)
def test_an_archive_with_gaps_is_refused(files: list[ArchivedFile], told: str) -> None:
    with pytest.raises(ReplayError, match=told):
        checked(files)


def test_a_replay_goes_on_with_the_files_that_it_began_with(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    assert begin(checkpoint, REPLAY, is_new=True) == REPLAY
    more = replace(REPLAY, files=(*FILES, file(2, 0, 5)))
    assert begin(checkpoint, more, is_new=False) == REPLAY
    for other in (replace(REPLAY, id="other"), replace(REPLAY, publication_rows=41), replace(REPLAY, archive="/x")):
        with pytest.raises(ReplayError, match="belongs to the replay again"):
            begin(checkpoint, other, is_new=True)
    with pytest.raises(ReplayError, match="does not know which"):
        begin(str(tmp_path / "lost"), REPLAY, is_new=False)


def test_pieces_of_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, [*range_of(0, 0, 100), *range_of(1, 0, 50)], 30)
    files = checked(_files(str(tmp_path)))
    replay = Replay("again", str(tmp_path), 45, files)
    found: dict[int, list[int]] = {}
    for number in range(replay.publications):
        asked = pa.RecordBatch.from_pylist([piece._asdict() for piece in replay.pieces(number)])
        for batch in read_pieces(iter([asked]), str(tmp_path)):
            assert batch.column("topic").to_pylist() == ["orders"] * batch.num_rows
            for row in batch.to_pylist():
                found.setdefault(row["partition"], []).append(row["offset"])
    assert found == {0: [make_offset(1, n) for n in range(100)], 1: [make_offset(1, n) for n in range(50)]}
