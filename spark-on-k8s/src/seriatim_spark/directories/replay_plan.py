"""The plan of a `replay` of an archive: which rows of which files each publication sends. No Spark here.

The plan depends on the files that were there when the replay began, and on the number of rows in a publication. Both
are kept in the checkpoint. So a replay that continues after a failure cuts the same rows into the same publications.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from seriatim_api.ids import format_offset

from seriatim_spark.directories.files import read_json, write_json

NAME: Final = "replay.json"
VERSION: Final = 1


class ReplayError(Exception):
    """The archive cannot be replayed, or the replay does not belong to its checkpoint."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of an archive, by its footer.

    `path` is in the archive's file system. It is empty for a range without rows.
    """

    path: str
    topic: str
    incarnation: str
    partition: int
    start: int
    end: int
    rows: int


class Piece(NamedTuple):
    """Rows [first, last) of a file."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that has begun.

    Attributes:
        id: The id of the replay, which is the writer's name.
        archive: The directory of the archive.
        publication_rows: The most rows of a publication.
        files: The files to replay, sorted by partition and offset, without gaps.
    """

    id: str
    archive: str
    publication_rows: int
    files: tuple[ArchivedFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def publications(self) -> int:
        """The number of publications."""
        return -(-self.rows // self.publication_rows)

    def pieces(self, number: int) -> list[Piece]:
        """Return the rows of publication `number`: the next rows of each partition, in their order.

        Each publication takes the same share of each partition, so all partitions end in the last one.
        """
        publications = self.publications
        assert 0 <= number < publications
        found: list[Piece] = []
        for _, group in itertools.groupby(self.files, lambda file: file.partition):
            files = list(group)
            total = sum(file.rows for file in files)
            first, last = (total * at // publications for at in (number, number + 1))
            for file in files:
                if first < file.rows and last > 0 and file.rows:
                    found.append(Piece(file.path, max(first, 0), min(last, file.rows)))
                first, last = first - file.rows, last - file.rows
        return found


def checked(files: Iterable[ArchivedFile]) -> tuple[ArchivedFile, ...]:
    """Put the files in order, and check them.

    Raises:
        ReplayError: The files are of several topics, or messages between two of them are missing.
    """
    found = sorted(files, key=lambda file: (file.partition, file.start, file.end))
    topics = sorted({(file.topic, file.incarnation) for file in found})
    if len(topics) > 1:
        names = ", ".join(f"{topic} ({incarnation})" for topic, incarnation in topics)
        raise ReplayError(
            f"the archive holds messages of {names}, and a replay sends those of one topic: name the directory of one, "
            "such as DIR/topic=NAME/incarnation=ID"
        )
    # The first file of a partition may begin with repeats: files before it were removed, or never existed.
    begins: set[int] = set()
    kept: list[ArchivedFile] = []
    for file in found:
        if file.path or file.partition in begins:
            begins.add(file.partition)
            kept.append(file)
    found = kept
    for before, after in itertools.pairwise(found):
        if before.partition == after.partition and before.end != after.start:
            what = "is missing" if before.end < after.start else "is there twice"
            raise ReplayError(
                f"partition {after.partition}: what lies between {format_offset(before.end)} and "
                f"{format_offset(after.start)} {what}. `audit --archive` says more. Nothing was sent"
            )
    return tuple(found)


def begin(checkpoint: str, replay: Replay, is_new: bool) -> Replay:
    """Return the replay as it first began, without files that the archive got later.

    Args:
        checkpoint: The directory that keeps the replay.
        replay: The replay as it would begin now.
        is_new: Whether the writer has published nothing yet.

    Raises:
        ReplayError: The checkpoint belongs to another replay, or was lost.
    """
    said = read_json(checkpoint, NAME)
    if said is None:
        if not is_new:
            raise ReplayError(
                f"the replay {replay.id} has sent rows already, and {checkpoint} does not know which: give its "
                "checkpoint, or another --id"
            )
        write_json(checkpoint, NAME, {"version": VERSION, **asdict(replay)})
        return replay
    found = _read(said, checkpoint)
    if (found.id, found.archive, found.publication_rows) != (replay.id, replay.archive, replay.publication_rows):
        raise ReplayError(
            f"{checkpoint} belongs to the replay {found.id} of {found.archive} by {found.publication_rows} rows. Give "
            "the same --id, --archive and --rows-per-publication, or another checkpoint"
        )
    return found


def _read(said: Any, checkpoint: str) -> Replay:
    try:
        if said["version"] != VERSION:
            raise ReplayError(f"{checkpoint} is of version {said['version']}, which is newer than this one")
        files: Sequence[Any] = said["files"]
        return Replay(
            said["id"], said["archive"], said["publication_rows"], tuple(ArchivedFile(**file) for file in files)
        )
    except (KeyError, TypeError) as exc:
        raise ReplayError(f"{checkpoint} does not hold a replay: {exc!r}") from exc
