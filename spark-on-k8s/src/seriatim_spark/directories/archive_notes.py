"""Notes that an archive keeps about ranges, because its files alone cannot show them. Nothing here needs Spark.

    <directory>/topic=orders/incarnation=<id>/partition=3/_ranges/
        000001-000000000800--000002-000000000050.json

A range of a micro-batch gets a note in three cases: it crosses the end of a segment (files do not say how long a
segment was), it ends with repeats of earlier messages, or it holds only repeats. Other ranges need no note.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow.fs as pafs
from seriatim_api.ids import INDEX_BITS, split_offset

from seriatim_spark.directories.archive_files import Reach, chain_of
from seriatim_spark.directories.files import DirectoryError, file_system, flush_path, write_json
from seriatim_spark.errors import DataLossError, ReadOrderError
from seriatim_spark.offsets import Offsets
from seriatim_spark.options import ReadOptions
from seriatim_spark.reading.brokers import Brokers, Range
from seriatim_spark.reading.task_plan import Unit

DIRECTORY: Final = "_ranges"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Note:
    """The note about one range of a micro-batch.

    Attributes:
        start, end: The offsets of the range.
        messages: How many messages brokers had in it, repeats included.
        reached: The offset after the last row that is in a file. If the range added no row: where the files end.
        passed: How many messages from there to the end are repeats, which readers leave out.
    """

    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    messages: int
    reached: int
    passed: int
    version: int = VERSION

    @property
    def excuses(self) -> bool:
        """Whether the messages after `reached` are repeats, as far as offsets show their number."""
        mask = (1 << INDEX_BITS) - 1
        same = self.reached >> INDEX_BITS == self.end >> INDEX_BITS
        return self.passed == self.end - self.reached if same else self.passed >= self.end & mask


def path_of(note: Note) -> str:
    """Return the path of a note below the archive's directory."""
    (first, first_index), (last, last_index) = split_offset(note.start), split_offset(note.end)
    return (
        f"topic={note.topic}/incarnation={note.incarnation}/partition={note.partition}/{DIRECTORY}/"
        f"{first:06}-{first_index:012}--{last:06}-{last_index:012}.json"
    )


def write_note(directory: str, note: Note) -> None:
    """Write a note. An earlier note of the range stays, because retention may have dropped messages since."""
    files, root = file_system(directory)
    path = path_of(note)
    if files.get_file_info(f"{root}/{path}").type == pafs.FileType.File:
        return
    parent = f"{root}/{path}".rpartition("/")[0]
    files.create_dir(parent, recursive=True)
    write_json(directory, path, asdict(note))
    while len(parent) >= len(root):
        flush_path(files, parent)
        parent = parent.rpartition("/")[0]


def note_ranges(
    directory: str, begun: Offsets, ended: Offsets, reached: Iterable[Reach], options: ReadOptions, brokers: Brokers
) -> None:
    """Write the notes of a micro-batch.

    Args:
        directory: The directory of the archive.
        begun, ended: Where the micro-batch begins and ends.
        reached: How far the rows of each range went. A range without rows is not in it.
        options: The options of the source.
        brokers: The brokers to ask about ranges that cross the end of a segment or do not end with a row.
    """
    seen = {(one.topic, one.partition): one for one in reached}
    files, root = file_system(directory)
    told: list[Reach] = []
    for topic, found in ended.items():
        for number, end in found.places.items():
            one = seen.get((topic, number))
            if one is None:
                start = begun[topic].places.get(number, end) if topic in begun else end
                if start >= end:
                    continue
                chain = chain_of(files, root, topic, found.incarnation, number, start, end)
                one = Reach(topic, found.incarnation, number, start, end, chain[-1][1] if chain else start)
            if one.reached != end or one.start >> INDEX_BITS != end >> INDEX_BITS:
                told.append(one)
    whole = [Range(one.topic, one.incarnation, one.partition, one.start, one.end) for one in told]
    behind = [replace(range_, start=one.reached) for range_, one in zip(whole, told, strict=True)]
    plans = brokers.plans(whole, 0) if whole else []
    for one, plan, passed in zip(told, plans, tails_of(behind, options, brokers), strict=True):
        messages = sum(piece.rows for piece in plan.pieces)
        write_note(directory, Note(*one[:5], messages, one.reached, passed or 0))


def notes_of(directory: str) -> list[Note]:
    """Read all notes of an archive.

    Raises:
        DirectoryError: The directory does not exist, or a note cannot be read.
    """
    files, root = file_system(directory)
    if files.get_file_info(root).type != pafs.FileType.Directory:
        raise DirectoryError(f"there is no directory {directory}")
    infos = files.get_file_info(pafs.FileSelector(root, recursive=True))
    paths = sorted(info.path for info in infos if info.path.endswith(".json") and f"/{DIRECTORY}/" in info.path)
    return [_read(files, path) for path in paths]


def _read(files: pafs.FileSystem, path: str) -> Note:
    try:
        with files.open_input_stream(path) as source:
            said: Any = json.loads(source.read())
        if said["version"] != VERSION:
            raise DirectoryError(f"{path} is of version {said['version']} of archives, which is newer than this one")
        return Note(**said)
    except (KeyError, TypeError, ValueError, OSError) as exc:
        raise DirectoryError(f"{path} cannot be read: {exc!r}") from exc


def tails_of(ranges: Sequence[Range], options: ReadOptions, brokers: Brokers) -> list[int | None]:
    """Count the messages of each range that holds only repeats; None if it holds others, or messages are gone.

    Args:
        ranges: The ranges after the last row that was read.
        options: The options of the source.
        brokers: The brokers to ask for the number of messages.
    """
    found: list[int | None] = []
    for one, plan in zip(ranges, brokers.plans(ranges, 0) if ranges else (), strict=True):
        rows = sum(piece.rows for piece in plan.pieces)
        if plan.losses:
            found.append(None)
        else:
            found.append(rows if not rows or _has_no_rows(one, rows, options) else None)
    return found


def _has_no_rows(one: Range, rows: int, options: ReadOptions) -> bool:
    from seriatim_spark.reading.task import read_units

    asked = replace(options, columns=("offset",), fail_on_data_loss=True)
    unit = Unit(one.topic, one.partition, one.start, one.end, one.incarnation, rows)
    try:
        return not any(batch.num_rows for batch in read_units([unit], asked))
    except (DataLossError, ReadOrderError):
        return False
