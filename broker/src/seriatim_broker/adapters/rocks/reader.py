"""Batches from the disk, verified: place, body and chain of each, and the chain from each to the next.

Runs in a worker thread. rocksdict keeps the interpreter lock inside each step of an iterator, so a step is one
batch: between two of them the event loop has its turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from seriatim_api.batch import Checksum, chain_is_intact
from seriatim_api.errors import CorruptionError

from ...core.log import Batch, TailCopy
from .codec import read_batch, read_prefix
from .engine import Engine
from .extents import Run, SegmentLog
from .keys import batch_key, segment_range, split_batch_key


class Stretch(NamedTuple):
    """Indexes of [from_index, until_index) that lie in one extent."""

    extent: int
    from_index: int
    until_index: int


class Stored(NamedTuple):
    """A batch with what stands before it in its value."""

    commit: int
    position: int
    batch: Batch


def plan(log: SegmentLog, from_index: int, until_index: int) -> list[Stretch]:
    """The stretches that hold [from_index, until_index) of a segment's log, ascending."""
    until_index = min(until_index, log.tail)
    stretches: list[Stretch] = []
    for place in range(log.run_at(from_index), len(log.runs)):
        run = log.runs[place]
        begin, end = max(run.start, from_index), min(log.end_of(place)[0], until_index)
        if begin < end:
            stretches.append(Stretch(run.extent, begin, end))
    return stretches


def read_stretches(
    engine: Engine, checksum: Checksum, partition: int, segment: int, stretches: Iterable[Stretch], max_bytes: int
) -> list[Stored]:
    """Batches of the stretches, from the one that contains the first index; at least one, then up to `max_bytes`.

    Raises:
        CorruptionError: Something is missing, out of its place, or does not match its checksum.
    """
    found: list[Stored] = []
    size = 0
    for stretch in stretches:
        cursor = engine.extent_cursor(stretch.extent, segment_range(partition, segment, stretch.until_index)[0])
        first = _first_key(engine, partition, segment, stretch) if not found else None
        begin = first or batch_key(partition, segment, stretch.from_index)
        index = stretch.from_index
        for key, value in cursor.forward(begin):
            stored = Stored(*read_prefix(value), read_batch(value))
            verify(stored.batch, key, checksum)
            if found:
                verify_link(found[-1].batch, stored.batch)
            size += stored.batch.size_bytes
            if found and size > max_bytes:
                return found
            found.append(stored)
            index = stored.batch.header.end_index
        if index < stretch.until_index:
            raise CorruptionError(
                f"partition {partition} segment {segment}: batches from index {index} on are missing in extent "
                f"{stretch.extent}"
            )
    return found


def last_of_run(engine: Engine, checksum: Checksum, partition: int, segment: int, run: Run) -> Stored:
    """The last batch of a segment's last run, verified.

    Raises:
        CorruptionError: There is none, or it does not match its checksum.
    """
    low, high = segment_range(partition, segment)
    found = engine.extent_cursor(run.extent).at_or_before(high)
    if found is None or not low <= found[0] < high or split_batch_key(found[0])[2] < run.start:
        raise CorruptionError(
            f"partition {partition} segment {segment}: the index names batches from {run.start} on in extent "
            f"{run.extent}, which are not there"
        )
    key, value = found
    stored = Stored(*read_prefix(value), read_batch(value))
    verify(stored.batch, key, checksum)
    return stored


def verify(batch: Batch, key: bytes, checksum: Checksum) -> None:
    """Check that a batch is the one that was put under `key`.

    Raises:
        CorruptionError: It is not.
    """
    header = batch.header
    place = (header.partition, header.segment, header.base_index)
    if place != split_batch_key(key):
        raise CorruptionError(f"the batch stored for {split_batch_key(key)} says that it is {place}")
    _verify_content(batch, checksum)


def verify_link(earlier: Batch, later: Batch) -> None:
    """Check that one batch follows the other.

    Raises:
        CorruptionError: It does not.
    """
    if later.header.base_index != earlier.header.end_index:
        raise CorruptionError(f"{_name(later)}: follows index {earlier.header.end_index} on disk, but begins elsewhere")
    if later.header.previous_checksum != earlier.header.checksum:
        raise CorruptionError(f"{_name(later)}: its checksum chain does not continue the one before it")


def verify_tail(tail: TailCopy, checksum: Checksum) -> None:
    """Check a tail copy.

    Raises:
        CorruptionError: A body or the chain does not match its checksum.
    """
    for batch in tail.batches:
        _verify_content(batch, checksum)
    for earlier, later in zip(tail.batches, tail.batches[1:], strict=False):
        verify_link(earlier, later)


def _verify_content(batch: Batch, checksum: Checksum) -> None:
    header = batch.header
    if len(batch.body) != header.body_length:
        raise CorruptionError(f"{_name(batch)}: its body has {len(batch.body)} bytes, not {header.body_length}")
    if checksum(0, batch.body) != header.body_crc:
        raise CorruptionError(f"{_name(batch)}: its body does not match its checksum")
    if not chain_is_intact(header, checksum):
        raise CorruptionError(f"{_name(batch)}: its header does not match the checksum chain")


def _name(batch: Batch) -> str:
    header = batch.header
    return f"partition {header.partition} batch {header.segment}:{header.base_index}"


def _first_key(engine: Engine, partition: int, segment: int, stretch: Stretch) -> bytes | None:
    """The key of the batch that contains the stretch's first index, or None if none begins at or before it."""
    low, _high = segment_range(partition, segment)
    found = engine.extent_cursor(stretch.extent).at_or_before(batch_key(partition, segment, stretch.from_index))
    return found[0] if found is not None and found[0] >= low else None
