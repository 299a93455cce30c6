"""The writer record, and what may become of it. Values only: the publisher reads and writes them.

    (none) ──open──▶ NEW ──decide n──▶ DECIDED(n) ──all committed──▶ DONE(n) ──decide m > n──▶ DECIDED(m)

Opening raises the epoch in whichever state. Each change is one transaction that compares the revision of the record
that it was made from.

Rule `fences` (P7): only who opened the writer last publishes. Without it: (1) a frozen program plans publication 7 from
what it read; (2) another one takes over, opens the writer, reads the same and plans 7 too, with other rows; (3) the
first one wakes and decides its 7.

Rule `finish-first` (P3): nothing is decided while an earlier publication is DECIDED. Without it: (1) 7 is carried out
on partition 0, and not yet on 1; (2) 8 is decided, and carried out on both; (3) the masters refuse the rest of 7,
because the writer's epoch is 8 by then.

Rule `only-the-last-is-ok`: a sequence below the last one is never answered with ok. Without it a program whose
checkpoint was restored hears that rows were published which nobody ever decided.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from seriatim_api.errors import (
    BadRequestError,
    PreconditionError,
    PublicationDiffersError,
    PublishedWithLossError,
    SequencePassedError,
    StagedDataGoneError,
    UnknownWriterError,
    WriterFencedError,
    WriterOwnedError,
)
from seriatim_api.ids import PartitionId, format_offset, make_offset
from seriatim_api.publications import (
    MANIFEST_BYTES_MAX,
    PIECES_MAX,
    PRODUCER_MARK,
    SEQUENCE_MAX,
    Manifest,
    digest_of,
    is_place,
)

ID_BYTES = 16

EPHEMERAL_KEPT_MS = 86_400_000
"""The record of an unnamed job stays so long after its publication is done."""

NEW_KEPT_MS = 30 * 86_400_000
"""The record of a writer that has published nothing stays so long after it was opened."""

SEGMENTS_MAX = 10_000
"""Of stage partitions, of which one publication may need something."""

NEW_ID_BYTES = ID_BYTES - len(PRODUCER_MARK)
"""Random ones of a writer's producer id."""


class WriterState(enum.IntEnum):
    """Numbers as in the record."""

    NEW = 1
    DECIDED = 2
    DONE = 3


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    """Where a manifest is staged: the first offset of each piece, the bytes of all, their CRC-32C, and its id."""

    partition: PartitionId
    offsets: tuple[int, ...]
    length: int
    crc: int
    id: bytes

    def check(self) -> None:
        """Refuse what is no place of a manifest.

        Raises:
            BadRequestError: It is that.
        """
        if not 1 <= len(self.offsets) <= PIECES_MAX or not 0 < self.length <= MANIFEST_BYTES_MAX:
            raise BadRequestError(
                f"a manifest has 1 to {PIECES_MAX} pieces and at most {MANIFEST_BYTES_MAX} bytes, not "
                f"{len(self.offsets)} and {self.length}"
            )
        if len(self.id) != ID_BYTES or not self.partition:
            raise BadRequestError(f"a manifest's id has {ID_BYTES} bytes, and a manifest has a place")
        if not all(is_place(offset, 1) for offset in self.offsets):
            raise BadRequestError("a piece of the manifest is at no offset that there is")


NO_MANIFEST = ManifestPlace(PartitionId(0), (), 0, 0, b"")


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """A writer of a topic.

    Attributes:
        producer: The producer id of what is carried out, made with the record: 8 random bytes, and `PRODUCER_MARK`.
        epoch: Of who opened it last; 0: nobody did.
        owner: Who published last and said so, as they call themselves; empty: nobody said.
        sequence: Of the last publication; meaningless while NEW.
        rows: Of that publication, as `digest` is.
        lost_rows: Of that publication, once DONE: of staged segments that were declared lost.
        ephemeral: The record goes a day after it is DONE.
        opened_at_ms: When it was opened last; 0: nobody opened it.
    """

    producer: bytes
    topic: str
    epoch: int = 0
    owner: str = ""
    state: WriterState = WriterState.NEW
    sequence: int = 0
    manifest: ManifestPlace = NO_MANIFEST
    rows: int = 0
    digest: bytes = b""
    decided_at_ms: int = 0
    done_at_ms: int = 0
    lost_rows: int = 0
    ephemeral: bool = False
    opened_at_ms: int = 0

    @property
    def goes_at_ms(self) -> int | None:
        """When the record may go: of an unnamed job, or of a writer that was opened and never published anything.

        Whoever opened it is refused then; nobody else is given its epoch (rule `epochs-grow`).
        """
        if self.state is WriterState.DONE and self.ephemeral:
            return self.done_at_ms + EPHEMERAL_KEPT_MS
        if self.state is WriterState.NEW and self.opened_at_ms:
            return self.opened_at_ms + NEW_KEPT_MS
        return None

    def has_decided(self, producer: bytes, sequence: int, manifest: bytes) -> bool:
        """Whether that publication is decided, and not known to be done."""
        named = (self.producer, self.sequence, self.manifest.id)
        return self.state is WriterState.DECIDED and named == (producer, sequence, manifest)


@dataclass(frozen=True, slots=True)
class Publication:
    """What somebody wants published. Without rows it has no manifest (`NO_MANIFEST`), and the digest of no parts."""

    writer: str
    epoch: int
    owner: str
    sequence: int
    manifest: ManifestPlace
    digest: bytes
    ephemeral: bool = False

    def check(self) -> None:
        """Refuse what no record could hold.

        Raises:
            BadRequestError: It is that.
        """
        if self.sequence > SEQUENCE_MAX:
            raise BadRequestError(f"sequence {self.sequence} is above {SEQUENCE_MAX}")
        if len(self.owner) > 200:
            raise BadRequestError("an owner has at most 200 characters")
        if len(self.digest) != ID_BYTES:
            raise BadRequestError(f"a digest has {ID_BYTES} bytes")
        if self.has_rows:
            self.manifest.check()
        elif self.digest != digest_of(()):
            raise BadRequestError("without a manifest there are no rows, and the digest is that of none")

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to decide."""
        return self.manifest != NO_MANIFEST


class Verdict(enum.Enum):
    """What a publisher does next."""

    FINISH = "what is decided is carried out first; then judge anew"
    DONE = "it was published already"
    DECIDE = "read the manifest, and decide"


def _producer(new_id: bytes) -> bytes:
    assert len(new_id) == NEW_ID_BYTES, new_id
    return new_id + PRODUCER_MARK


def opened(record: WriterRecord | None, topic: str, new_id: bytes, revision: int, now_ms: int) -> WriterRecord:
    """The record once somebody opened the writer; one that is made has this id in its producer id.

    Rule `epochs-grow` (P7): an epoch is above the coordinator's revision at which it was made. So none comes twice, not
    even if the writer is deleted in between. Without it: (1) a program opens the writer, in epoch 1, and is frozen; (2)
    the writer is deleted, and another program opens it, in epoch 1 again; (3) the first one wakes, and publishes too.

    Args:
        record: As it was read; None: there is none.
        topic: Its name.
        new_id: 8 random bytes.
        revision: Of the coordinator, when the record was read.
        now_ms: Wall time.
    """
    before = record if record is not None else WriterRecord(_producer(new_id), topic)
    return replace(before, epoch=max(before.epoch, revision) + 1, opened_at_ms=now_ms)


def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
    """What becomes of a publication, as the record stands.

    Raises:
        WriterFencedError: The writer was opened again. UnknownWriterError: It was deleted since it was opened.
        WriterOwnedError: Another owner publishes under it.
        PublicationDiffersError: This sequence was published with other rows.
        SequencePassedError: A later one was published.
        PublishedWithLossError: It was published, and some of its staged rows were lost with their disks.
    """
    if record is None:
        if wanted.epoch:
            raise UnknownWriterError(f"writer {wanted.writer!r} was deleted since it was opened: open it again")
        return Verdict.DECIDE
    if wanted.epoch != record.epoch:
        if wanted.epoch > record.epoch:
            raise UnknownWriterError(f"writer {wanted.writer!r} was deleted since it was opened: open it again")
        raise WriterFencedError(
            f"writer {wanted.writer!r} was opened again: its epoch is {record.epoch}, not {wanted.epoch}. Whoever "
            "opened it last goes on; this program should end",
            epoch=record.epoch,
        )
    if record.owner and wanted.owner and record.owner != wanted.owner:
        raise WriterOwnedError(
            f"writer {wanted.writer!r} belongs to {record.owner!r}, not to {wanted.owner!r}: give each program a "
            "writer of its own",
            owner=record.owner,
        )
    if record.state is WriterState.DECIDED:
        return Verdict.FINISH
    if record.state is WriterState.NEW or wanted.sequence > record.sequence:
        return Verdict.DECIDE
    if wanted.sequence < record.sequence:
        raise SequencePassedError(
            f"writer {wanted.writer!r} has published {record.sequence} already: whether {wanted.sequence} ever was "
            "published is not known any more",
            sequence=record.sequence,
        )
    if wanted.digest != record.digest:
        raise PublicationDiffersError(
            f"publication {wanted.sequence} of writer {wanted.writer!r} stands, with other rows than these: what made "
            "them is not deterministic, or is not what made the first",
            rows=record.rows,
        )
    check_loss(record, wanted.writer)
    return Verdict.DONE


def check_loss(record: WriterRecord, writer: str) -> None:
    """Say what a publication that is done has lost.

    Raises:
        PublishedWithLossError: It has.
    """
    if record.lost_rows:
        raise PublishedWithLossError(
            f"publication {record.sequence} of writer {writer!r} stands without up to {record.lost_rows} of "
            f"{record.rows} rows: the disks on which they were staged were declared lost after the decision, or what "
            "is staged there is not what the manifest names",
            rows=record.rows,
            lost_rows=record.lost_rows,
        )


def check_manifest(
    wanted: Publication,
    manifest: Manifest,
    incarnation: str,
    partitions: Collection[int],
    floors: Mapping[int, int],
) -> None:
    """Refuse a manifest that cannot be carried out.

    Args:
        wanted: Its publication.
        manifest: As it was read.
        incarnation: Of the topic.
        partitions: Ids of the topic's partitions.
        floors: Of partitions of the stage topic: below which offset staged data may be gone.

    Raises:
        BadRequestError: It is of another topic, or says something else than its publication.
        StagedDataGoneError: A staged batch lies below its floor.
    """
    if manifest.incarnation != incarnation:
        raise PreconditionError("the topic was deleted and made again since these rows were staged: stage them anew")
    unknown = [part.partition for part in manifest.parts if part.partition not in partitions]
    if unknown:
        raise BadRequestError(f"the manifest names partition id {unknown[0]}, which is none of the topic's")
    if digest_of(manifest.parts) != wanted.digest:
        raise BadRequestError("the digest is not that of the manifest")
    if len(manifest.spans) > SEGMENTS_MAX:
        raise BadRequestError(f"what a manifest names lies in at most {SEGMENTS_MAX} segments")
    for (partition, no), span in manifest.spans.items():
        lowest = make_offset(no, span.first)
        if lowest < floors.get(partition, 0):
            raise StagedDataGoneError(
                f"what was staged at {format_offset(lowest)} of stage partition {partition} is too old and may be "
                "gone: stage the rows anew"
            )


def check_floor(wanted: Publication, floors: Mapping[int, int]) -> None:
    """Refuse a publication whose manifest itself lies too low.

    Raises:
        StagedDataGoneError: It does.
    """
    if min(wanted.manifest.offsets) < floors.get(wanted.manifest.partition, 0):
        raise StagedDataGoneError("the manifest was staged too long ago and may be gone: stage the rows anew")


def decided(
    record: WriterRecord | None, wanted: Publication, topic: str, rows: int, now_ms: int, new_id: bytes
) -> WriterRecord:
    """The record with which the publication is decided; one that is made has this id in its producer id."""
    before = record if record is not None else WriterRecord(_producer(new_id), topic)
    assert before.state is not WriterState.DECIDED, "what is decided is finished first"
    assert before.state is WriterState.NEW or wanted.sequence > before.sequence, "sequences grow"
    return replace(
        before,
        owner=wanted.owner or before.owner,
        state=WriterState.DECIDED,
        sequence=wanted.sequence,
        manifest=wanted.manifest,
        rows=rows,
        digest=wanted.digest,
        decided_at_ms=now_ms,
        done_at_ms=0,
        lost_rows=0,
        ephemeral=wanted.ephemeral,
    )


def done(record: WriterRecord, lost_rows: int, now_ms: int) -> WriterRecord:
    """The record once every partition has committed all its rows."""
    assert record.state is WriterState.DECIDED
    return replace(record, state=WriterState.DONE, lost_rows=lost_rows, done_at_ms=now_ms)
