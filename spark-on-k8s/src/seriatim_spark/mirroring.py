"""What `mirror` keeps beside its target: which place of the source is which place of the target. No Spark here.

After each micro-batch: where the source's partitions were read to, and where the target's end. Both name the same
message (or the place behind the last one): a consumer that stands there in the source goes on there in the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from seriatim_spark.archiving import read_json, write_json

NAME: Final = "offsets.json"
VERSION: Final = 1

ENTRIES_MAX: Final = 1_000
"""Of the map. When there are more, every second one of the older half goes: the older, the further apart they are."""


class MirrorError(Exception):
    """A target, or a map of offsets, that is not this mirror's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A micro-batch that is in the target.

    Attributes:
        batch: Its number.
        source: By partition, the offset of the source behind its last message.
        target: By partition, the offset of the target behind the same message.
        positions: By partition, the messages of the target before that.
    """

    batch: int
    source: dict[str, int]
    target: dict[str, int]
    positions: dict[str, int]


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Of a mirror.

    Attributes:
        source, target: Incarnations of the topics.
        entries: Older ones first.
    """

    source: str
    target: str
    entries: tuple[Entry, ...] = ()

    def with_entry(self, entry: Entry) -> OffsetMap:
        """One more; a batch that was noted before is noted anew."""
        kept = [one for one in self.entries if one.batch < entry.batch]
        if len(kept) >= ENTRIES_MAX:
            half = len(kept) // 2
            kept = kept[:half:2] + kept[half:]
        return replace(self, entries=(*kept, entry))

    def check_alone(self, positions: Mapping[str, int]) -> None:
        """Whether nothing but this mirror has written to the target since the last entry.

        Args:
            positions: By partition, the messages of the target now.

        Raises:
            MirrorError: Something has.
        """
        known = self.entries[-1].positions if self.entries else {}
        others = {number: at - known.get(number, 0) for number, at in positions.items() if at > known.get(number, 0)}
        if others:
            number, count = next(iter(sorted(others.items(), key=lambda item: int(item[0]))))
            raise MirrorError(
                f"partition {number} of the target has {count} messages that this mirror has not written: offsets of "
                "the source would not be places of the target. Mirror into a topic that nothing else writes to, or "
                "give --shared: then there is no map of offsets"
            )


def load(directory: str, source: str, target: str) -> OffsetMap:
    """The map as it was kept.

    Raises:
        MirrorError: It is of other topics.
    """
    said = read_json(directory, NAME)
    if said is None:
        return OffsetMap(source, target)
    found = _read(said, directory)
    if (found.source, found.target) != (source, target):
        raise MirrorError(
            f"{directory} maps the offsets of topic {found.source} to {found.target}, and not of {source} to {target}: "
            "one of them was deleted and made again. Use another directory and another checkpoint"
        )
    return found


def store(directory: str, offsets: OffsetMap) -> None:
    """Keep a map, in the place of the one before."""
    write_json(directory, NAME, {"version": VERSION, **asdict(offsets)})


def _read(said: Any, directory: str) -> OffsetMap:
    try:
        if said["version"] != VERSION:
            raise MirrorError(f"{directory} is of version {said['version']}, which is newer than this one")
        return OffsetMap(said["source"], said["target"], tuple(Entry(**entry) for entry in said["entries"]))
    except (KeyError, TypeError) as exc:
        raise MirrorError(f"{directory} does not hold a map of offsets: {exc!r}") from exc
