"""The map that `mirror` keeps: which offset of the target belongs to which offset of the source. No Spark here.

After each micro-batch an entry says up to which offsets the source was read, and where the target ends. Both are the
same place in the order of messages. So a consumer that has reached this place in the source continues there in the
target.

    <directory>/entries/000000000017.json

There is one file for each micro-batch, named by its number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from seriatim_spark.directories.files import file_system, names_in, read_json, write_json

ENTRIES: Final = "entries"
OLD_NAME: Final = "offsets.json"
"""The one file for all entries that older versions kept. `load` makes one file of each entry."""

VERSION: Final = 1

ENTRIES_MAX: Final = 1_000
"""If there are more entries, every second one of the older half is removed. So older entries are further apart."""

_FILE_NAME: Final = re.compile(r"(\d{12})\.json")


class MirrorError(Exception):
    """The target cannot be mirrored into, or the map of offsets does not belong to this mirror."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A micro-batch that is in the target.

    Attributes:
        batch: The number of the micro-batch.
        source: For each partition, the offset after the last message that was read.
        target: For each partition, the offset after the same message in the target.
        positions: For each partition, the number of messages of the target before that offset.
    """

    batch: int
    source: dict[str, int]
    target: dict[str, int]
    positions: dict[str, int]


@dataclass(slots=True)
class OffsetMap:
    """The map of a mirror, in a directory.

    Attributes:
        directory: The directory.
        source, target: The incarnations of the topics.
        batches: The micro-batches that have an entry, oldest first.
        last: The entry of the last micro-batch.
    """

    directory: str
    source: str
    target: str
    batches: list[int] = field(default_factory=list)
    last: Entry | None = None

    def before(self, batch: int) -> Entry | None:
        """Return the last entry before a micro-batch. The micro-batch itself may have an entry already."""
        if self.last is None or self.last.batch < batch:
            return self.last
        earlier = [one for one in self.batches if one < batch]
        return entry_of(self.directory, earlier[-1]) if earlier else None

    def note(self, entry: Entry) -> None:
        """Write an entry, in place of any earlier entry of this micro-batch.

        At each moment the disk has a whole map.
        """
        kept = [one for one in self.batches if one < entry.batch]
        gone = [one for one in self.batches if one > entry.batch]
        if len(kept) >= ENTRIES_MAX:
            half = len(kept) // 2
            gone += kept[1:half:2]
            kept = kept[:half:2] + kept[half:]
        said = {"version": VERSION, "topics": [self.source, self.target], **asdict(entry)}
        files, root = file_system(self.directory)
        files.create_dir(f"{root}/{ENTRIES}", recursive=True)
        write_json(self.directory, _name(entry.batch), said)
        for batch in gone:
            files.delete_file(f"{root}/{_name(batch)}")
        self.batches, self.last = [*kept, entry.batch], entry

    def check_alone(self, positions: Mapping[str, int]) -> None:
        """Check that no other program has written to the target since the last entry.

        Args:
            positions: For each partition, the number of messages of the target now.

        Raises:
            MirrorError: The target has messages that this mirror has not written.
        """
        known = self.last.positions if self.last is not None else {}
        others = {number: at - known.get(number, 0) for number, at in positions.items() if at > known.get(number, 0)}
        if others:
            number, count = next(iter(sorted(others.items(), key=lambda item: int(item[0]))))
            raise of_others(f"partition {number} of the target has {count} messages")


def of_others(what: str) -> MirrorError:
    """Return the error for a target that has messages of other programs."""
    return MirrorError(
        f"{what} that this mirror has not written: offsets of the source would not be places of the target. Mirror "
        "into a topic that nothing else writes to, or give --shared: then there is no map of offsets"
    )


def load(directory: str, source: str, target: str) -> OffsetMap:
    """Read the map of a directory.

    Raises:
        MirrorError: The map is of other topics.
    """
    found = OffsetMap(directory, source, target)
    _take_apart(found)
    files, root = file_system(directory)
    names = map(_FILE_NAME.fullmatch, names_in(files, f"{root}/{ENTRIES}"))
    found.batches = sorted(int(name[1]) for name in names if name is not None)
    if found.batches:
        said = read_json(directory, _name(found.batches[-1]))
        found.last = _read(said, directory)
        _check_topics(directory, said["topics"], found)
    return found


def entry_of(directory: str, batch: int) -> Entry:
    """Read the entry of a micro-batch.

    Raises:
        MirrorError: The entry cannot be read.
    """
    return _read(read_json(directory, _name(batch)), directory)


def _name(batch: int) -> str:
    return f"{ENTRIES}/{batch:012}.json"


def _check_topics(directory: str, said: Any, wanted: OffsetMap) -> None:
    if list(said) != [wanted.source, wanted.target]:
        raise MirrorError(
            f"{directory} maps the offsets of topic {said[0]} to {said[1]}, and not of {wanted.source} to "
            f"{wanted.target}: one of them was deleted and made again. Use another directory and another checkpoint"
        )


def _take_apart(offsets: OffsetMap) -> None:
    """Write one file for each entry, if there is one file for all."""
    said = read_json(offsets.directory, OLD_NAME)
    if said is None:
        return
    _check_topics(offsets.directory, [said.get("source"), said.get("target")], offsets)
    for entry in said["entries"]:
        offsets.note(_read({**entry, "version": said["version"], "topics": ()}, offsets.directory))
    files, root = file_system(offsets.directory)
    files.delete_file(f"{root}/{OLD_NAME}")


def _read(said: Any, directory: str) -> Entry:
    try:
        if said["version"] != VERSION:
            raise MirrorError(f"{directory} is of version {said['version']}, which is newer than this one")
        return Entry(**{name: value for name, value in said.items() if name not in ("version", "topics")})
    except (KeyError, TypeError, AttributeError) as exc:
        raise MirrorError(f"{directory} does not hold a map of offsets: {exc!r}") from exc
