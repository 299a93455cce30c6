"""Search for a batch by its append time, its index or the bytes before it: a binary search over a segment's headers.

The search looks in the head cache first, which has the newest batches. It searches older batches in the extents, in a
worker thread. Each step reads the one batch that has the index in the middle.
"""

from __future__ import annotations

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader, Checksum, chain_is_intact
from seriatim_api.errors import CorruptionError

from ...core.values.log import Batch
from ...core.values.positions import BatchPlace, Measure
from .codec import read_header, read_prefix
from .extents import ExtentRun
from .floor import Database
from .keys import batch_key, segment_range, split_batch_key


def find_in_memory(
    batches: list[Batch], end_bytes: int, until_index: int, measure: Measure, value: int
) -> tuple[BatchPlace | None, bool]:
    """The first of contiguous batches that reaches `value`.

    Args:
        batches: The newest batches of a segment, up to its end.
        end_bytes: Bytes of the segment's log up to its end.
        until_index: Only batches that begin below this count.
        measure: The measure to compare: append time, index or bytes.
        value: The value to reach.

    Returns:
        The place of the batch, or None; and whether an older batch, before all of these, may be the first.
    """
    bytes_before = end_bytes - sum(batch.size_bytes for batch in batches)
    for number, batch in enumerate(batches):
        found = _place(batch.header, bytes_before)
        if found.index >= until_index:
            return None, number == 0
        if found.reaches(measure, value):
            return found, number == 0
        bytes_before += batch.size_bytes
    return None, not batches


def find_on_disk(
    engine: Database,
    checksum: Checksum,
    partition: int,
    segment: int,
    runs: tuple[ExtentRun, ...],
    until_index: int,
    measure: Measure,
    value: int,
) -> BatchPlace | None:
    """The first batch that reaches `value`, of those that begin below `until_index`. Call it in a worker thread.

    Args:
        engine: The database with the extents.
        checksum: CRC-32C.
        partition: The partition.
        segment: The segment's number.
        runs: The segment's runs, ascending. All batches below `until_index` are in them.
        until_index: Only batches that begin below this count.
        measure: The measure to compare: append time, index or bytes.
        value: The value to reach.

    Raises:
        CorruptionError: A batch is missing, or its header does not match its checksum.
    """
    low, high = runs[0].start, until_index
    found: BatchPlace | None = None
    while low < high:
        middle = (low + high) // 2
        run = max((run for run in runs if run.start <= middle), key=lambda run: run.start)
        place = _place_at(engine, checksum, partition, segment, run, middle)
        if place.reaches(measure, value):
            found, high = place, place.index
        else:
            low = place.end_index
    return found


def _place_at(
    engine: Database, checksum: Checksum, partition: int, segment: int, run: ExtentRun, index: int
) -> BatchPlace:
    """The place of the batch that has `index`. `run` is the run with this batch."""
    with engine.extent_cursor(run.extent, segment_range(partition, segment)[1]) as cursor:
        row = cursor.at_or_before(batch_key(partition, segment, index))
    if row is not None and split_batch_key(row[0])[:2] == (partition, segment):
        header = read_header(row[1])
        if header.base_index <= index < header.end_index:
            if not chain_is_intact(header, checksum):
                raise CorruptionError(f"partition id {partition} batch {segment}:{header.base_index}: a damaged header")
            return _place(header, read_prefix(row[1])[1])
    raise CorruptionError(f"partition id {partition} segment {segment}: the batch with index {index} is missing")


def _place(header: BatchHeader, bytes_before: int) -> BatchPlace:
    return BatchPlace(
        header.base_index,
        header.end_index,
        bytes_before,
        HEADER_SIZE_BYTES + header.body_length,
        header.append_time_ms,
        header.previous_checksum,
    )
