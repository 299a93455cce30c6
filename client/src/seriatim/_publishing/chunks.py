"""Chunks of staged rows, as values that may be pickled and sent to another process; and the manifest of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seriatim_api.errors import BadRequestError
from seriatim_api.ids import TopicIncarnation
from seriatim_api.publications import (
    LaidOut,
    Manifest,
    ManifestPart,
    PartSummary,
    RowLayout,
    StagedBatch,
    StagedBatches,
    content_digest_of,
    digest_of,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows that one call of `stage` has sent. It may be pickled. No row is published before a writer publishes it.

    Attributes:
        topic: The name of the topic for which the rows are staged.
        incarnation: The topic's incarnation.
        partition_count: The number of partitions that the topic had then.
        id: 16 random bytes.
        parts: The staged batches for each partition.
        batch_bytes: The most bytes of a staged batch.
        repeats: The rows as they would lie in the layouts of the writer's last publication.
    """

    topic: str
    incarnation: str
    partition_count: int
    id: bytes
    parts: tuple[ManifestPart, ...]
    batch_bytes: int = 0
    repeats: tuple[Repeat, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in all partitions."""
        return sum(part.rows for part in self.parts)

    @property
    def layout(self) -> RowLayout:
        """How the rows are laid out."""
        return RowLayout(self.partition_count, self.batch_bytes)

    def in_layout(self, layout: RowLayout) -> Sequence[PartSummary] | None:
        """What the digests say of the rows in that layout; None if it is not known."""
        if layout == self.layout:
            return [part.summary for part in self.parts]
        return next((one.parts for one in self.repeats if one.layout == layout), None)


class Repeat(NamedTuple):
    """The rows of a chunk as they would lie in an earlier layout. Nothing is staged so."""

    layout: RowLayout
    parts: tuple[PartSummary, ...]


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """The rows that were published to one partition.

    Attributes:
        partition_id: The partition's id in the cluster.
        first_offset: The offset of the first row; None if it is not known any more.
        rows: The number of rows.
    """

    partition_id: int
    first_offset: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """A publication that is done: all its rows are committed.

    Attributes:
        sequence: The publication's sequence.
        rows: The number of rows in all partitions.
        was_done: It was published before, and this call changed nothing.
        parts: The rows of each partition. Empty if `was_done`, or if another broker than the one that answered finished
            the publication.
    """

    sequence: int
    rows: int
    was_done: bool
    parts: tuple[PublishedPart, ...]


def manifest_of(topic: str, chunks: Sequence[Chunk]) -> Manifest:
    """The manifest of these chunks. The rows of a partition have the order of the chunks.

    Raises:
        BadRequestError: A chunk is of another topic, or is given twice, or the topic grew or was made again in between.
    """
    first = chunks[0]
    for chunk in chunks:
        if chunk.topic != topic:
            raise BadRequestError(
                f"a chunk was staged for topic {chunk.topic!r}, but this is a writer of topic {topic!r}"
            )
        # Rule `one-count` (SPREAD): all rows of a publication are spread over the same number of partitions.
        # Without it:
        # 1. A chunk is staged while the topic has 2 partitions. A row with key k is for partition 1.
        # 2. The topic grows to 3 partitions. In the next chunk, a later row with key k is for partition 2.
        # 3. Both chunks are published together. A consumer can get the later row of k before the earlier one.
        if (chunk.incarnation, chunk.layout) != (first.incarnation, first.layout):
            raise BadRequestError(
                f"topic {topic!r} grew, was made again, or got another limit of batches, while the rows were staged: "
                "stage all of them again"
            )
    if len({chunk.id for chunk in chunks}) < len(chunks):
        raise BadRequestError("a chunk is given twice")
    found: dict[int, list[ManifestPart]] = {}
    # Rule `chunks-in-order` (CUTS): the rows of a partition have the order of the chunks that were named. Without it:
    # 1. A row in the first chunk creates key k. A row in the second chunk changes k.
    # 2. The manifest names the batches of the second chunk first. The master appends them in the manifest's order.
    # 3. Consumers get the change of k before its creation.
    for chunk in chunks:
        for part in chunk.parts:
            found.setdefault(part.partition, []).append(part)
    incarnation = TopicIncarnation(first.incarnation)
    return Manifest(incarnation, tuple(_joined(partition, found[partition]) for partition in sorted(found)))


def _joined(partition: int, parts: Iterable[ManifestPart]) -> ManifestPart:
    batches: list[StagedBatch] = []
    value_bytes, contents = 0, bytearray()
    for part in parts:
        batches += part.batches
        value_bytes += part.value_bytes
        contents += part.contents
    return ManifestPart(partition, value_bytes, StagedBatches(batches), bytes(contents))


def repeats_of(chunks: Sequence[Chunk]) -> list[LaidOut]:
    """The digests of the rows of these chunks in all earlier layouts in which each chunk is known."""
    first = chunks[0]
    found = []
    for layout in dict.fromkeys(one.layout for one in first.repeats):
        known = [chunk.in_layout(layout) for chunk in chunks]
        parts: dict[int, PartSummary] = {}
        for part in (part for summaries in known for part in summaries or ()):
            before = parts.get(part.partition)
            parts[part.partition] = before.followed_by(part) if before is not None else part
        if None not in known:
            found.append(LaidOut(layout, digest_of(parts.values()), content_digest_of(list(parts.values()))))
    return found
