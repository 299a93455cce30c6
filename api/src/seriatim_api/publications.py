"""Publications: the bytes of a manifest, and the digest that distinguishes two publications.

A manifest lists the staged batches for each target partition, in the order in which they are appended there. The client
writes it. The broker that publishes checks it before the decision. Each master reads its part of it.

    bytes   field
    0       magic "SQM1"
    4       incarnation of the topic (16 bytes)
    20      parts (u32)
    then for each part, partitions ascending:
    0       partition id (u32)
    4       batches (u32)
    8       rows (u64)
    16      bytes of the values of these rows (u64)
    then for each batch of the part, in order:
    0       partition id of the stage topic (u32)
    4       rows (u32)
    8       offset of the first row there (u64)
    16      id of the chunk that it belongs to (16 bytes)

Nothing in this module does I/O.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self, SupportsIndex, overload

from seriatim_api.errors import BadRequestError
from seriatim_api.ids import INDEX_MAX, OFFSET_MAX, TopicIncarnation, make_offset, split_offset

STAGE_TOPIC: Final = "_stage"
"""The stage topic. It is hidden: users cannot name it (`seriatim_api.ids.is_legal_name`)."""

MANIFEST_BYTES_MAX: Final = 16 << 20
"""The largest manifest: half a million staged batches, with 256 GiB if they are full. Each broker that appends a part
of it reads all of it."""

PARTS_MAX: Final = 20_000
"""The most parts of a manifest, one for each target partition."""

PIECE_BYTES_MAX: Final = 1_000_000
"""The most bytes of a manifest in one staged batch. It is below the brokers' limit of a body."""

PIECES_MAX: Final = -(-MANIFEST_BYTES_MAX // PIECE_BYTES_MAX)

STAGED_BODY_BYTES: Final = 512 << 10
"""The size of a staged batch. It is never cut again, and 16 of them are on their way at once."""

SEQUENCE_MAX: Final = (1 << 32) - 1
"""The largest sequence of a publication. It is the producer epoch of the writer's entry in producer tables."""

PRODUCER_MARK: Final = b"/writer/"
"""The end of each writer's producer id. Brokers refuse a client's batch with such an id, so no program can use one. A
random id almost never ends so. The beginning of a writer's id is random, because tables distinguish ids by it."""

CHUNK_BYTES: Final = 16
DIGEST_BYTES: Final = 16
LAYOUTS_MAX: Final = 8
"""The most layouts in which a request to publish gives digests of its rows, beside that of its manifest."""

CONTENT_BYTES: Final = 4
"""The bytes of a batch's checksum in `ManifestPart.contents`."""

_CHUNK_MARK: Final = b"\x00sz"
_SIZE_BYTES: Final = 3
_SIZE_MAX: Final = (1 << 8 * _SIZE_BYTES) - 1

_MAGIC: Final = b"SQM1"
_HEADER: Final = struct.Struct("<4s16sI")
_PART: Final = struct.Struct("<IIQQ")
_BATCH: Final = struct.Struct("<IIQ16s")


def make_chunk_id(random: bytes, batch_bytes: int, message_bytes: int) -> bytes:
    """The id of a chunk: a mark, the most bytes of a body and of a message in it, and random bytes.

    The master of the stage topic refuses a batch of the chunk that is larger. Its publisher compares the id with the
    limits of the target topic.

    Args:
        random: 16 random bytes, of which 7 are used.
        batch_bytes: The most bytes of a body.
        message_bytes: The most bytes of the key and the value of a message.
    """
    sizes = [min(size, _SIZE_MAX).to_bytes(_SIZE_BYTES, "little") for size in (batch_bytes, message_bytes)]
    return (_CHUNK_MARK + b"".join(sizes) + random)[:CHUNK_BYTES]


def chunk_sizes(chunk: bytes) -> tuple[int, int]:
    """The most bytes of a body and of a message in a chunk, as its id says.

    Raises:
        BadRequestError: The id does not say them.
    """
    if not chunk.startswith(_CHUNK_MARK):
        raise BadRequestError("the id of a chunk does not say the sizes of its batches and messages")
    at = len(_CHUNK_MARK)
    batch_bytes, message_bytes = chunk[at : at + _SIZE_BYTES], chunk[at + _SIZE_BYTES : at + 2 * _SIZE_BYTES]
    return int.from_bytes(batch_bytes, "little"), int.from_bytes(message_bytes, "little")


def is_place(offset: int, rows: int) -> bool:
    """Whether a batch of this many rows can be at that offset."""
    return 0 <= offset <= OFFSET_MAX and 0 < rows <= INDEX_MAX - split_offset(offset)[1]


class StagedBatch(NamedTuple):
    """The place of a staged batch: the partition id of the stage topic, its rows, the offset of the first row, and the
    id of its chunk.
    """

    partition: int
    rows: int
    offset: int
    chunk: bytes


class StagedBatches(Sequence[StagedBatch]):
    """Staged batches in their order, packed as in a manifest, because there may be half a million.

    Attributes:
        first_rows: The number of the first row of each batch, and at the end the number of all rows.
        packed: Their bytes in a manifest.
    """

    __slots__ = ("first_rows", "packed")

    def __init__(self, batches: Iterable[StagedBatch] = ()) -> None:
        self._take(b"".join(_BATCH.pack(*batch) for batch in batches))

    @classmethod
    def read(cls, packed: bytes) -> Self:
        """The staged batches in these bytes of a manifest."""
        found = cls()
        found._take(packed)
        return found

    def _take(self, packed: bytes) -> None:
        rows, first_rows = 0, array("Q", (0,))
        for _, count, _, _ in _BATCH.iter_unpack(packed):
            rows += count
            first_rows.append(rows)
        self.packed = packed
        self.first_rows: Sequence[int] = first_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).read, (self.packed,)

    def __len__(self) -> int:
        return len(self.first_rows) - 1

    def __iter__(self) -> Iterator[StagedBatch]:
        return map(StagedBatch._make, _BATCH.iter_unpack(self.packed))

    @overload
    def __getitem__(self, at: SupportsIndex) -> StagedBatch: ...

    @overload
    def __getitem__(self, at: slice) -> StagedBatches: ...

    def __getitem__(self, at: SupportsIndex | slice) -> StagedBatch | StagedBatches:
        if isinstance(at, slice):
            return StagedBatches(self[number] for number in range(*at.indices(len(self))))
        return StagedBatch._make(_BATCH.unpack_from(self.packed, _BATCH.size * range(len(self))[at]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StagedBatches) and self.packed == other.packed

    def __hash__(self) -> int:
        return hash(self.packed)

    def __repr__(self) -> str:
        return f"<{len(self)} staged batches>"


class RowLayout(NamedTuple):
    """How the rows of a publication were laid out: by how many partitions, and in staged batches of how many bytes.

    Both may change before a program runs again: a topic grows, and its limits are set again. So the decision keeps its
    layout, and a program that repeats it is compared by that one.

    Attributes:
        partition_count: The partitions that the topic had.
        batch_bytes: The most bytes of a staged batch; 0: not known, of a record that was rebuilt.
    """

    partition_count: int
    batch_bytes: int


NO_LAYOUT: Final = RowLayout(0, 0)
"""The layout where there are no rows."""


class LaidOut(NamedTuple):
    """The digests of a publication's rows in one layout."""

    layout: RowLayout
    digest: bytes
    content_digest: bytes


class PartSummary(NamedTuple):
    """What the digests say of the rows of one partition. The fields are those of `ManifestPart`."""

    partition: int
    rows: int
    value_bytes: int
    contents: bytes

    @property
    def has_contents(self) -> bool:
        """Whether it is known what the rows say."""
        return bool(self.contents)

    def followed_by(self, other: PartSummary) -> PartSummary:
        """The rows of both, in this order."""
        contents = self.contents + other.contents if self.contents and other.contents else b""
        return PartSummary(self.partition, self.rows + other.rows, self.value_bytes + other.value_bytes, contents)


class Span(NamedTuple):
    """The part of a stage partition's segment that a publication needs: indexes in [first, end), and its rows there."""

    first: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """The rows to append to one partition.

    Attributes:
        partition: The partition's id.
        value_bytes: The total bytes of the values of these rows.
        batches: The staged batches in their order.
        contents: What the client knows of the rows themselves: for each batch 4 bytes, the CRC-32C of its rows without
            their times. It is not in the manifest; empty if it is not known.
    """

    partition: int
    value_bytes: int
    batches: StagedBatches
    contents: bytes = b""

    @property
    def rows(self) -> int:
        """The number of rows in all batches."""
        return self.batches.first_rows[-1]

    @property
    def has_contents(self) -> bool:
        """Whether it is known what the rows say."""
        return len(self.contents) == CONTENT_BYTES * len(self.batches)

    @property
    def summary(self) -> PartSummary:
        """What the digests say of it."""
        return PartSummary(self.partition, self.rows, self.value_bytes, self.contents if self.has_contents else b"")


@dataclass(frozen=True)
class Manifest:
    """All parts of one publication, partition ids ascending. `incarnation` is the topic's."""

    incarnation: TopicIncarnation
    parts: tuple[ManifestPart, ...]

    @property
    def rows(self) -> int:
        """The number of rows in all parts."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def spans(self) -> Mapping[tuple[int, int], Span]:
        """The spans that it needs, by stage partition and segment. The first call takes as long as `read_manifest`."""
        found: dict[tuple[int, int], Span] = {}
        for part in self.parts:
            for partition, rows, offset, _ in _BATCH.iter_unpack(part.batches.packed):
                no, index = split_offset(offset)
                first, end, known = found.get((partition, no), (index, 0, 0))
                found[partition, no] = Span(min(first, index), max(end, index + rows), known + rows)
        return found

    @cached_property
    def names_a_batch_twice(self) -> bool:
        """Whether two of its entries are the same staged batch. The first call takes as long as `read_manifest`."""
        seen: set[int] = set()
        for part in self.parts:
            before = len(seen)
            seen.update(of << 63 | offset for of, _, offset, _ in _BATCH.iter_unpack(part.batches.packed))
            if len(seen) - before < len(part.batches):
                return True
        return False

    def chunks(self) -> set[bytes]:
        """The ids of the chunks that it names. It takes as long as `read_manifest`."""
        return {chunk for part in self.parts for _, _, _, chunk in _BATCH.iter_unpack(part.batches.packed)}

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory it takes."""
        batches = sum(len(part.batches) for part in self.parts)
        return 500 * (1 + len(self.parts)) + (_BATCH.size + 8) * batches + 200 * len(self.spans)

    def part_of(self, partition: int) -> ManifestPart | None:
        """The part for a partition; None if there is none."""
        return next((part for part in self.parts if part.partition == partition), None)

    def reaches_below(self, partition: int, offset: int) -> bool:
        """Whether it needs rows below that offset of a stage partition."""
        return any(of == partition and make_offset(no, span.first) < offset for (of, no), span in self.spans.items())


def digest_of(parts: Iterable[ManifestPart | PartSummary]) -> bytes:
    """16 bytes. They are equal for two publications with the same numbers of rows and value bytes in each partition."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in sorted(parts, key=lambda part: part.partition):
        found.update(struct.pack("<IQQ", part.partition, part.rows, part.value_bytes))
    return found.digest()


def content_digest_of(parts: Sequence[ManifestPart | PartSummary]) -> bytes:
    """16 bytes. They differ for two publications of which a row differs in key, value, headers or tag.

    Two publications with the same rows, cut into the same batches, have equal ones. Times are left out: if a program
    publishes again, rows without a time of their own get a later one. Empty if the contents of a part are not known.
    """
    if not all(part.has_contents for part in parts):
        return b""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in sorted(parts, key=lambda part: part.partition):
        found.update(struct.pack("<IQ", part.partition, len(part.contents)) + part.contents)
    return found.digest()


def write_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest.

    Raises:
        BadRequestError: The manifest is over `MANIFEST_BYTES_MAX`.
    """
    size_bytes = _HEADER.size + sum(_PART.size + _BATCH.size * len(part.batches) for part in manifest.parts)
    if size_bytes > MANIFEST_BYTES_MAX:
        raise BadRequestError(
            f"the manifest of this publication has {size_bytes} bytes, and {MANIFEST_BYTES_MAX} are allowed: publish "
            "fewer rows at once, or stage larger batches"
        )
    out = [_HEADER.pack(_MAGIC, manifest.incarnation.bytes, len(manifest.parts))]
    for part in sorted(manifest.parts, key=lambda part: part.partition):
        out.append(_PART.pack(part.partition, len(part.batches), part.rows, part.value_bytes))
        out.append(part.batches.packed)
    return b"".join(out)


def read_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes.

    Raises:
        BadRequestError: The bytes are not a manifest, or it is over a limit.
    """
    if len(data) > MANIFEST_BYTES_MAX:
        raise BadRequestError(f"a manifest has at most {MANIFEST_BYTES_MAX} bytes, not {len(data)}")
    try:
        magic, incarnation, count = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise BadRequestError("not a manifest")
        if count > PARTS_MAX:
            raise BadRequestError(f"a manifest has at most {PARTS_MAX} partitions, not {count}")
        parts: list[ManifestPart] = []
        at = _HEADER.size
        for _ in range(count):
            part, at = _read_part(data, at)
            if parts and part.partition <= parts[-1].partition:
                raise BadRequestError("the partitions of a manifest ascend")
            parts.append(part)
    except struct.error as exc:
        raise BadRequestError("a manifest is cut short") from exc
    if at != len(data) or not parts:
        raise BadRequestError("a manifest names at least one partition, and ends with the last of them")
    return Manifest(TopicIncarnation.of_bytes(incarnation), tuple(parts))


def _read_part(data: bytes, at: int) -> tuple[ManifestPart, int]:
    partition, count, rows, value_bytes = _PART.unpack_from(data, at)
    begin, end = at + _PART.size, at + _PART.size + _BATCH.size * count
    if not count or end > len(data):
        raise BadRequestError(f"partition {partition} of a manifest has no batches, or fewer than it says")
    packed = data[begin:end]
    if not all(is_place(offset, rows) for _, rows, offset, _ in _BATCH.iter_unpack(packed)):
        raise BadRequestError(f"partition {partition} of a manifest has a batch without rows, or at no offset")
    part = ManifestPart(partition, value_bytes, StagedBatches.read(packed))
    if part.rows != rows:
        raise BadRequestError(f"partition {partition} of a manifest has {part.rows} rows, and says {rows}")
    return part, end


def pieces_of(data: bytes) -> Sequence[bytes]:
    """Cut a manifest into pieces, each for one staged batch."""
    return [data[at : at + PIECE_BYTES_MAX] for at in range(0, len(data), PIECE_BYTES_MAX)]
