"""What was staged, as values that may be pickled and sent to another process; and the manifest of several of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seriatim_api.errors import BadRequestError
from seriatim_api.publications import Manifest, ManifestPart, StagedBatch, StagedBatches


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that one call staged. It may be pickled; nothing of it is published before a writer publishes it.

    Attributes:
        topic: For which topic.
        incarnation: Of that topic.
        partition_count: That it had when the rows were spread over it.
        id: 16 random bytes.
        parts: What was staged for each partition.
    """

    topic: str
    incarnation: str
    partition_count: int
    id: bytes
    parts: tuple[ManifestPart, ...]

    @property
    def rows(self) -> int:
        """Of all partitions."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """What was published to one partition.

    `partition_id`: of the partition in the cluster. `first_offset`: of its first row; None if it is not known any more.
    """

    partition_id: int
    first_offset: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """A publication that is done: all its rows are committed.

    Attributes:
        sequence: Its number.
        rows: In all partitions.
        was_done: It was published before; this call changed nothing.
        parts: By partition; empty if `was_done`, or if other brokers than the one that answered finished it.
    """

    sequence: int
    rows: int
    was_done: bool
    parts: tuple[PublishedPart, ...]


def manifest_of(topic: str, chunks: Sequence[Chunk]) -> Manifest:
    """All parts of these chunks: in each partition in the order of the chunks.

    Raises:
        BadRequestError: They are of different topics, or of one that grew or was made again in between.
    """
    first = chunks[0]
    for chunk in chunks:
        if chunk.topic != topic:
            raise BadRequestError(f"a chunk was staged for topic {chunk.topic!r}, and the writer is of {topic!r}")
        if (chunk.incarnation, chunk.partition_count) != (first.incarnation, first.partition_count):
            raise BadRequestError(
                f"topic {topic!r} grew, or was made again, while the rows were staged: stage all of them again"
            )
    if len({chunk.id for chunk in chunks}) < len(chunks):
        raise BadRequestError("a chunk is given twice")
    found: dict[int, list[ManifestPart]] = {}
    for chunk in chunks:
        for part in chunk.parts:
            found.setdefault(part.partition, []).append(part)
    return Manifest(first.incarnation, tuple(_joined(partition, found[partition]) for partition in sorted(found)))


def _joined(partition: int, parts: Iterable[ManifestPart]) -> ManifestPart:
    batches: list[StagedBatch] = []
    value_bytes = 0
    for part in parts:
        batches += part.batches
        value_bytes += part.value_bytes
    return ManifestPart(partition, value_bytes, StagedBatches(batches))
