"""Where a master continues with a publication, and the headers of the batches that it appends. Values only.

Rule `own-table` (I9, P5): a master continues a publication where its own producer table says. Without it:
  1. A master has appended ten batches of a publication. Four of them are sealed in, and it dies.
  2. The next master continues at the eleventh, and six batches are missing.
With the rule, every master that appends a row gives it the same number, in the same batch.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Sequence

from seriatim_api.batch import FLAG_PUBLISH, FLAG_STAGED, BatchHeader, Checksum, make_header, parse_header
from seriatim_api.ids import split_offset
from seriatim_api.publications import StagedBatch

from ..values.log import Batch
from ..values.producers import Entry


class Stand(enum.Enum):
    """What a producer table says of a publication if it does not give a batch to continue at."""

    UNKNOWN = "the writer is not in the table"
    SUPERSEDED = "a later publication of the writer is here, so all of this one is"
    CONTRADICTS = "the table has rows of it that end within a batch of it"


def stand(last: Entry | None, sequence: int, rows: Sequence[int]) -> int | Stand:
    """The number of the batch to append next; the number of all batches if all are here.

    Args:
        last: The writer's newest entry in this master's table.
        sequence: The sequence of the publication.
        rows: The number of the first row of each batch, and as the last item the number of all rows.
    """
    if last is None:
        return Stand.UNKNOWN
    if last.epoch > sequence:
        return Stand.SUPERSEDED
    if last.epoch < sequence:
        return 0
    following = last.last_sequence + 1
    number = bisect_left(rows, following)
    return number if number < len(rows) and rows[number] == following else Stand.CONTRADICTS


def is_as_staged(batch: Batch, staged: StagedBatch, checksum: Checksum) -> bool:
    """Whether this is the batch that the manifest names, with the place, the rows and the checksum that it gives."""
    header, body = batch
    place = (header.partition, header.segment, header.base_index)
    return (
        place == (staged.partition, *split_offset(staged.offset))
        and header.stage == staged.chunk
        and header.message_count == staged.rows
        and header.flags & (FLAG_STAGED | FLAG_PUBLISH) == FLAG_STAGED
        and header.body_length == len(body)
        and checksum(0, body) == header.body_crc
    )


def published(header: BatchHeader, partition: int, producer: bytes, sequence: int, row: int, manifest: bytes) -> bytes:
    """The header under which a staged batch is appended. What the program said of its rows stays.

    Rule `as-the-writer` (PUB): published batches have the writer's producer id, the publication's sequence and the
    row's number. Without it:
      1. A batch keeps the producer id and the sequences under which a task of the program staged it.
      2. The next master looks for the writer in its producer table, finds nothing, and appends the rows again.
    """
    return make_header(
        partition=partition,
        message_count=header.message_count,
        producer=producer,
        producer_epoch=sequence,
        base_sequence=row,
        first_timestamp_ms=header.first_timestamp_ms,
        last_timestamp_ms=header.last_timestamp_ms,
        body_length=header.body_length,
        body_crc=header.body_crc,
        flags=header.flags & ~FLAG_STAGED | FLAG_PUBLISH,
        due_time_ms=header.due_time_ms,
        source_sequence=header.source_sequence,
        trace_id=header.trace_id,
        span_id=header.span_id,
        stage=manifest,
        key_hash=header.key_hash,
    )


def published_header(
    header: BatchHeader, partition: int, producer: bytes, sequence: int, row: int, manifest: bytes
) -> BatchHeader:
    """The same header, parsed."""
    return parse_header(published(header, partition, producer, sequence, row, manifest))
