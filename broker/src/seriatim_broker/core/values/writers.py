"""The writer record and its transitions, as pure functions. `rpc.distributed.publisher` reads and writes the records.

    (none) ──open──▶ NEW ──decide n──▶ DECIDED(n) ──all committed──▶ DONE(n) ──decide m > n──▶ DECIDED(m)

Opening a writer raises its epoch, in every state. Each change is one transaction, which compares the revision of the
record from which the change was made.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

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
from seriatim_api.ids import PartitionId, TopicIncarnation, format_offset, make_offset
from seriatim_api.publications import (
    LAYOUTS_MAX,
    MANIFEST_BYTES_MAX,
    NO_LAYOUT,
    PIECES_MAX,
    PRODUCER_MARK,
    SEQUENCE_MAX,
    LaidOut,
    Manifest,
    RowLayout,
    digest_of,
    is_place,
)

from .sizes import SizeLimits, limits_of_chunk, refusal

ID_BYTES = 16

EPHEMERAL_KEPT_MS = 86_400_000
"""The record of an unnamed job stays for this time after its publication is done: 1 day."""

NEW_KEPT_MS = 30 * 86_400_000
"""The record of a writer that has published nothing stays for this time after it was opened: 30 days."""

REBUILT_KEPT_MS = 30 * 86_400_000
"""A rebuilt record that no program has asked for stays for this time: 30 days."""

SEGMENTS_MAX = 10_000
"""How many segments of stage partitions the rows of one publication may be in."""

NAME_BYTES = 4
"""How many bytes of a writer's producer id are a digest of its name. A rebuild finds the writer by them."""

NEW_ID_BYTES = ID_BYTES - NAME_BYTES - len(PRODUCER_MARK)
"""How many bytes of a writer's producer id are random."""


class WriterState(enum.IntEnum):
    """The state of a writer. The numbers are those of the stored record."""

    NEW = 1
    DECIDED = 2
    DONE = 3


@dataclass(frozen=True, slots=True)
class ManifestPlace:
    """Where a manifest is staged: the first offset of each piece, the bytes of all of them, their CRC-32C, its id.

    `content_digest` distinguishes publications of other rows with the same sizes. `layout` says how the rows were laid
    out. Both are no part of the place.
    """

    partition: PartitionId
    offsets: tuple[int, ...]
    length: int
    crc: int
    id: bytes
    content_digest: bytes = field(default=b"", compare=False)
    layout: RowLayout = field(default=NO_LAYOUT, compare=False)

    def check(self) -> None:
        """Check that a manifest can be there.

        Raises:
            BadRequestError: The number of pieces, the length, the id or an offset cannot be that of a manifest; or the
                digest of the contents, or the layout, is missing.
        """
        if not 1 <= len(self.offsets) <= PIECES_MAX or not 0 < self.length <= MANIFEST_BYTES_MAX:
            raise BadRequestError(
                f"a manifest has 1 to {PIECES_MAX} pieces and at most {MANIFEST_BYTES_MAX} bytes, not "
                f"{len(self.offsets)} and {self.length}"
            )
        if len(self.id) != ID_BYTES or not self.partition:
            raise BadRequestError(f"the id of a manifest has {ID_BYTES} bytes, and its partition is not 0")
        if len(self.content_digest) != ID_BYTES:
            raise BadRequestError(f"a digest of contents has {ID_BYTES} bytes")
        if not self.layout.partition_count or not self.layout.batch_bytes:
            raise BadRequestError("a manifest says for how many partitions and in batches of which size its rows lie")
        if not all(is_place(offset, 1) for offset in self.offsets):
            raise BadRequestError("the offset of a piece of the manifest is not one that a partition can have")


NO_MANIFEST = ManifestPlace(PartitionId(0), (), 0, 0, b"")


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """A writer of a topic.

    Attributes:
        producer: The producer id of the published batches: `name_digest`, 4 random bytes, and `PRODUCER_MARK`.
        epoch: The epoch that the last opening made; 0: the writer was never opened.
        owner: The name that the owner gave at the last publication that named one; empty: none did.
        sequence: Of the last publication; meaningless while NEW.
        rows: How many rows that publication has; `digest` is its digest.
        lost_rows: If DONE: how many of them were lost with staged segments that were declared lost.
        ephemeral: The record is removed `EPHEMERAL_KEPT_MS` after it is DONE.
        opened_at_ms: When it was opened last; 0: never.
        rebuilt: Of a record that was rebuilt from the brokers' disks: for each partition that had rows of the last
            publication, its id and how many.
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
    rebuilt: tuple[tuple[int, int], ...] = ()

    @property
    def layout(self) -> RowLayout:
        """How the rows of the last publication were laid out.

        Of a rebuilt record, the partition count is that of the topic at the rebuild.
        """
        return self.manifest.layout

    @property
    def is_rebuilt(self) -> bool:
        """Whether the coordinator lost the record, and brokers reported what they have of the last publication.

        Then it is not known whether that publication was carried out everywhere, nor what its digest was.
        """
        return self.state is WriterState.DONE and not self.digest

    @property
    def done_sequence(self) -> int | None:
        """The last sequence of which all rows are known to be committed, or a lower one; None if there is none.

        Rule `rebuilt-again` (P8): the last publication of a rebuilt record does not count. The program publishes it
        again, and each master appends only what it does not have. Without it:
          1. Publication 7 is decided, and carried out on partition 0. The coordinator loses its data.
          2. It is rebuilt. The program opens the writer, is sent 7, and continues with 8.
          3. Partition 1 never gets its rows of 7.
        """
        if self.state is WriterState.NEW or (self.is_rebuilt and not self.sequence):
            return None
        return self.sequence - 1 if self.is_rebuilt else self.sequence

    @property
    def goes_at_ms(self) -> int | None:
        """When the record may be removed; None: never.

        Only records of unnamed jobs, of writers that were opened and never published, and rebuilt ones that no program
        asked for are removed. The program that opened the writer is refused then, and no other program gets its epoch
        (rule `epochs-grow`).
        """
        if self.state is WriterState.DONE and self.ephemeral:
            return self.done_at_ms + EPHEMERAL_KEPT_MS
        if self.state is WriterState.NEW and self.opened_at_ms:
            return self.opened_at_ms + NEW_KEPT_MS
        if self.is_rebuilt and not self.epoch:
            return self.done_at_ms + REBUILT_KEPT_MS
        return None

    def has_decided(self, producer: bytes, sequence: int, manifest: bytes) -> bool:
        """Whether that publication is decided, and not known to be done."""
        named = (self.producer, self.sequence, self.manifest.id)
        return self.state is WriterState.DECIDED and named == (producer, sequence, manifest)


@dataclass(frozen=True, slots=True)
class Publication:
    """A request to publish. Without rows it has no manifest (`NO_MANIFEST`), and the digest of no parts.

    `repeats` has the digests of the same rows in earlier layouts.
    """

    writer: str
    epoch: int
    owner: str
    sequence: int
    manifest: ManifestPlace
    digest: bytes
    ephemeral: bool = False
    repeats: tuple[LaidOut, ...] = ()

    def check(self) -> None:
        """Check that a record could have these values.

        Raises:
            BadRequestError: Sequence, owner, digest or manifest are not within their limits.
        """
        if self.sequence > SEQUENCE_MAX:
            raise BadRequestError(f"sequence {self.sequence} is above {SEQUENCE_MAX}")
        if len(self.owner) > 200:
            raise BadRequestError("an owner has at most 200 characters")
        if len(self.digest) != ID_BYTES:
            raise BadRequestError(f"a digest has {ID_BYTES} bytes")
        if len(self.repeats) > LAYOUTS_MAX:
            raise BadRequestError(f"a request has digests in at most {LAYOUTS_MAX} earlier layouts")
        if any({len(one.digest), len(one.content_digest)} != {ID_BYTES} for one in self.repeats):
            raise BadRequestError(f"the digests of rows in an earlier layout have {ID_BYTES} bytes")
        if self.has_rows:
            self.manifest.check()
        elif self.digest != digest_of(()):
            raise BadRequestError("a publication without a manifest has no rows, so its digest must be that of no rows")

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to publish."""
        return self.manifest != NO_MANIFEST

    @property
    def layout(self) -> RowLayout:
        """How the rows are laid out."""
        return self.manifest.layout


class Verdict(enum.Enum):
    """What the publisher does next."""

    FINISH = "what is decided is carried out first; then judge again"
    DONE = "it was published already"
    DECIDE = "read the manifest, and decide"


def name_digest(writer: str) -> bytes:
    """The bytes with which the producer id of a writer of this name begins."""
    return hashlib.sha256(writer.encode()).digest()[:NAME_BYTES]


def _producer(writer: str, new_id: bytes) -> bytes:
    assert len(new_id) == NEW_ID_BYTES, new_id
    return name_digest(writer) + new_id + PRODUCER_MARK


def opened(
    record: WriterRecord | None, topic: str, writer: str, new_id: bytes, revision: int, now_ms: int
) -> WriterRecord:
    """The record after a program has opened the writer.

    Args:
        record: The record as it was read; None if there is none.
        topic: The name of the topic.
        writer: The name of the writer.
        new_id: 4 random bytes, for the producer id of a new record.
        revision: The coordinator's revision when the record was read, and after a rebuild the time of it added.
        now_ms: Wall time.
    """
    before = record if record is not None else WriterRecord(_producer(writer, new_id), topic)
    # Rule `epochs-grow` (P7): an epoch is above the coordinator's revision at which it was made. So no epoch comes
    # twice, even if the writer is deleted in between. Without it:
    #   1. A program opens the writer, in epoch 1, and is frozen.
    #   2. The writer is deleted. Another program opens it, in epoch 1 again.
    #   3. The first program wakes, and publishes too.
    return replace(before, epoch=max(before.epoch, revision) + 1, opened_at_ms=now_ms)


def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
    """What the publisher does with a publication, as the writer's record is now.

    Raises:
        WriterFencedError: The writer was opened again since.
        UnknownWriterError: The writer was deleted since it was opened.
        WriterOwnedError: Another owner publishes under this writer.
        PublicationDiffersError: This sequence was published with other rows.
        SequencePassedError: A later sequence was published.
        PublishedWithLossError: It was published, and some of its staged rows were lost with their disks.
    """
    if record is None:
        if wanted.epoch:
            raise UnknownWriterError(f"writer {wanted.writer!r} was deleted since it was opened: open it again")
        return Verdict.DECIDE
    # Rule `fences` (P7): only the program that opened the writer last publishes. Without it:
    #   1. A program plans publication 7 from what it read, and is frozen.
    #   2. Another program takes over. It opens the writer, reads the same, and plans 7 too, with other rows.
    #   3. The first program wakes, and decides its 7.
    if wanted.epoch != record.epoch:
        if wanted.epoch > record.epoch:
            raise UnknownWriterError(f"writer {wanted.writer!r} was deleted since it was opened: open it again")
        raise WriterFencedError(
            f"writer {wanted.writer!r} was opened again: its epoch is {record.epoch}, not {wanted.epoch}. Nothing was "
            "published. The program that opened it last continues; this program should end",
            epoch=record.epoch,
        )
    # Rule `owners` (OWNER): a writer publishes for its first owner only. Without it:
    #   1. Two different programs use the writer's name `nightly`, each with its own sequences.
    #   2. One publishes 7. The other one publishes its own 7, and is told that it was published already.
    if record.owner and wanted.owner and record.owner != wanted.owner:
        raise WriterOwnedError(
            f"writer {wanted.writer!r} belongs to {record.owner!r}, not to {wanted.owner!r}: nothing was published; "
            "give each program its own writer",
            owner=record.owner,
        )
    # Rule `finish-first` (P3): nothing is decided while an earlier publication is DECIDED. Without it:
    #   1. Publication 7 is carried out on partition 0, and not yet on partition 1.
    #   2. Publication 8 is decided, and carried out on both.
    #   3. The masters refuse the rest of 7, because the producer epoch of the writer is 8 by then.
    if record.state is WriterState.DECIDED:
        return Verdict.FINISH
    if record.state is WriterState.NEW or wanted.sequence > record.sequence:
        return Verdict.DECIDE
    # Rule `only-the-last-is-ok` (PUB): a sequence below the last one is never answered with ok. Without it:
    #   1. A program publishes 3, and then 7.
    #   2. Its checkpoint is restored as it was before 4, and it publishes 4.
    #   3. It is told that 4 was published, although no publisher ever decided it.
    if wanted.sequence < record.sequence:
        raise SequencePassedError(
            f"writer {wanted.writer!r} has published {record.sequence} already, so it is not known any more whether "
            f"{wanted.sequence} was published; nothing was published now",
            sequence=record.sequence,
        )
    # Rule `digests` (PUB): the last publication is ok only with its digest. Without it:
    #   1. A program publishes 7, and gets no answer.
    #   2. It recreates the rows, and they are other ones. It publishes them as 7.
    #   3. It is told that they were published, and readers have the first rows.
    #
    # Rule `contents` (PUB): and only with the digest of its contents. Without it, the rows that are recreated may have
    # the sizes of the first ones: 2. The program corrects `price=10` to `price=20`. 3. It is told that this is
    # published.
    if record.is_rebuilt:  # each master appends what it does not have; `check_rebuilt` compares the rest
        return Verdict.DECIDE
    _check_same(record, wanted)
    check_loss(record, wanted.writer)
    return Verdict.DONE


def _check_same(record: WriterRecord, wanted: Publication) -> None:
    """Check that these are the rows that were published.

    Rule `repeats-as-decided` (PUB): they are compared in the layout in which they were decided. Without it:
      1. A program publishes 7 on two partitions. The topic grows to four.
      2. The program is run again. It stages the same rows, for four partitions.
      3. It is told that it is not deterministic, and an administrator who believes it stores all rows twice.

    Raises:
        PublicationDiffersError: They are others.
        StagedDataGoneError: They were staged before that layout was known, and so cannot be compared.
    """
    mine = LaidOut(wanted.layout, wanted.digest, wanted.manifest.content_digest)
    first = record.manifest.content_digest
    for one in (mine, *wanted.repeats):
        if (one.digest, one.content_digest) == (record.digest, first):
            return
    name = f"publication {wanted.sequence} of writer {wanted.writer!r}"
    if wanted.has_rows and record.layout not in (wanted.layout, *(one.layout for one in wanted.repeats)):
        raise StagedDataGoneError(
            f"{name} was decided for {record.layout.partition_count} partitions and batches of "
            f"{record.layout.batch_bytes} bytes, after these rows were staged for {wanted.layout.partition_count} and "
            f"{wanted.layout.batch_bytes}: nothing was published now; stage the rows again, and they are compared"
        )
    raise PublicationDiffersError(
        f"{name} stands, with other rows than these: the program that made them is not deterministic, or is not the "
        "one that made the first ones",
        rows=record.rows,
    )


def earlier_layout(record: WriterRecord | None) -> RowLayout | None:
    """The layout in which a repeat of the writer's last publication must be compared; None if there is none."""
    if record is None or record.state is WriterState.NEW or record.is_rebuilt:
        return None
    return record.layout


def check_loss(record: WriterRecord, writer: str) -> None:
    """Check that no rows of a publication that is done were lost.

    Raises:
        PublishedWithLossError: Rows were lost.
    """
    # Rule `says-what-is-lost` (DONE): the program is notified. Without it:
    #   1. A publication of 1,000 rows is decided. The disks with 300 of the staged rows are declared lost.
    #   2. The masters carry out the other 700 rows.
    #   3. The program is answered ok, and believes that readers get 1,000 rows.
    if record.lost_rows:
        raise PublishedWithLossError(
            f"publication {record.sequence} of writer {writer!r} is published, but without up to {record.lost_rows} of "
            f"its {record.rows} rows: the disks on which they were staged were declared lost after the decision, or "
            "the batches that are staged there are not those that the manifest names",
            rows=record.rows,
            lost_rows=record.lost_rows,
        )


def check_manifest(
    wanted: Publication,
    manifest: Manifest,
    incarnation: TopicIncarnation,
    partitions: Collection[int],
    floors: Mapping[int, int],
) -> None:
    """Check that a manifest can be carried out.

    Args:
        wanted: Its publication.
        manifest: The manifest as it was read.
        incarnation: The incarnation of the topic.
        partitions: Ids of the topic's partitions.
        floors: By partition of the stage topic: staged data below that offset may be gone.

    Raises:
        PreconditionError: The topic was deleted and made again since the rows were staged.
        BadRequestError: It names a partition of another topic, too many segments, a batch twice, or other rows than its
            digest.
        StagedDataGoneError: A staged batch is below its floor.
    """
    if manifest.incarnation.bytes != incarnation.bytes:
        raise PreconditionError("the topic was deleted and made again since these rows were staged: stage them again")
    unknown = [part.partition for part in manifest.parts if part.partition not in partitions]
    if unknown:
        raise BadRequestError(f"the manifest names partition id {unknown[0]}, which is not one of the topic")
    if digest_of(manifest.parts) != wanted.digest:
        raise BadRequestError("the digest of the request is not that of the manifest")
    # Rule `each-batch-once`: a manifest names each staged batch once. Without it, 64 KB of manifest that name one batch
    # 2,000 times have the masters append 30 MB, and nothing takes that back.
    if manifest.names_a_batch_twice:
        raise BadRequestError("the manifest names a staged batch twice: stage the rows once more to publish them twice")
    if len(manifest.spans) > SEGMENTS_MAX:
        raise BadRequestError(f"the staged rows that a manifest names are in at most {SEGMENTS_MAX} segments")
    # Rule `above-floors` (KEPT-STAGE): all staged data is above the floors. Without it:
    #   1. Rows are staged. Their publication comes 25 hours later.
    #   2. Retention drops the segment with the rows, because no publication that is decided needs it.
    #   3. The publication is decided, and can never be carried out.
    for (partition, no), span in manifest.spans.items():
        lowest = make_offset(no, span.first)
        if lowest < floors.get(partition, 0):
            raise StagedDataGoneError(
                f"the rows that were staged at {format_offset(lowest)} of stage partition id {partition} are too old "
                "and may be gone: nothing was published; stage the rows again"
            )


def check_sizes(manifest: Manifest, limits: SizeLimits) -> None:
    """Check that all staged rows are within the limits of the target topic (rule `topic-limits`).

    Args:
        manifest: The manifest.
        limits: Of the topic, as they are now.

    Raises:
        BadRequestError: The id of a chunk does not say its sizes.
        MessageTooLargeError: A chunk has larger batches or messages.
    """
    for chunk in sorted(manifest.chunks()):
        error = refusal(limits, *limits_of_chunk(chunk))
        if error is not None:
            raise error


def check_rebuilt(record: WriterRecord | None, wanted: Publication, manifest: Manifest) -> None:
    """Check that a publication that is published again after a rebuild can be the one that brokers have rows of.

    Rule `rebuilt-alike` (P5): what brokers have of it must end with a batch of the manifest. Without it:
      1. A broker has 90 rows of publication 7. The coordinator is rebuilt.
      2. The program cuts its rows into other batches. Publication 7 is decided, with batches of 60 rows.
      3. The master cannot continue after row 90. The publication never ends, and its writer waits for ever.

    Raises:
        PublicationDiffersError: Rows that brokers have are not in the manifest, or not cut like this.
    """
    if record is None or not record.is_rebuilt or wanted.sequence != record.sequence:
        return
    before, now = record.layout.partition_count, wanted.layout.partition_count
    if before != now:
        # Without this: 1. A partition has 5,000 rows of publication 7. The topic grows, and 5,000 is the end of a batch
        # in the new layout too. 2. The master continues there, and other rows than the first 5,000 are left out.
        raise PublicationDiffersError(
            f"publication {wanted.sequence} of writer {wanted.writer!r} cannot be repeated: when the coordinator was "
            f"rebuilt, the topic had {before} partitions, and these rows are laid out for {now}. Nothing was "
            "published. Continue with the next sequence, and look whether all partitions have the rows of this one",
            rows=record.rows,
        )
    for partition, rows in record.rebuilt:
        part = manifest.part_of(partition)
        first_rows = part.batches.first_rows if part is not None else (0,)
        at = bisect_left(first_rows, rows)
        if at == len(first_rows) or first_rows[at] != rows:
            raise PublicationDiffersError(
                f"publication {wanted.sequence} of writer {wanted.writer!r} stands, with other rows than these: "
                f"partition id {partition} has {rows} rows of it. The coordinator was rebuilt since, and nothing more "
                "is known of it. Publish the same rows, staged by the same calls; or continue with the next sequence",
                rows=record.rows,
            )


def check_floor(wanted: Publication, floors: Mapping[int, int]) -> None:
    """Check that the manifest itself is above the floor of its stage partition (rule `above-floors`).

    Raises:
        StagedDataGoneError: It is below.
    """
    if min(wanted.manifest.offsets) < floors.get(wanted.manifest.partition, 0):
        raise StagedDataGoneError(
            "the manifest was staged too long ago and may be gone: nothing was published; stage the rows again"
        )


def decided(
    record: WriterRecord | None, wanted: Publication, topic: str, rows: int, now_ms: int, new_id: bytes
) -> WriterRecord:
    """The record that decides the publication; a new producer id has `new_id` in it."""
    before = record if record is not None else WriterRecord(_producer(wanted.writer, new_id), topic)
    is_again = before.is_rebuilt and wanted.sequence == before.sequence
    assert before.state is not WriterState.DECIDED, "the publication before is finished first"
    assert before.state is WriterState.NEW or wanted.sequence > before.sequence or is_again, "sequences grow"
    return replace(
        before,
        rebuilt=(),
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
    """The record after every partition has committed all its rows."""
    assert record.state is WriterState.DECIDED
    return replace(record, state=WriterState.DONE, lost_rows=lost_rows, done_at_ms=now_ms)
